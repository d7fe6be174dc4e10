//! Inodes that a change of the index makes stale in the kernel's caches. Names are never invalidated. To
//! invalidate one, the kernel locks its folder, and a request that waits for msgfs may hold that lock. If msgfs
//! were killed then, the kernel would wait for ever. A name that is gone is soon looked up again, or leads to
//! an inode that reports [`super::Error::Stale`]. Then the kernel looks the name up.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::Tree;
use super::node::{Ino, MessageFolder, Node};
use super::table::TreeChanges;
use crate::index::{IndexChanges, MsgIx, ThreadIx};

/// The folders whose pages the kernel may keep. Every read of `inbox/` goes through msgfs.
const CACHED: [MessageFolder; 4] =
    [MessageFolder::Archive, MessageFolder::Sent, MessageFolder::Thread, MessageFolder::Maildir];

impl Tree {
    /// Returns the inodes whose attributes a cache of this tree must forget after a change of the index.
    pub fn stale_inodes(&self, changes: &IndexChanges) -> HashSet<Ino> {
        let mut stale = vec![Node::Root, Node::Inbox];
        if changes_listings(changes) {
            stale.extend([Node::Archive, Node::Sent, Node::Threads]);
        }
        let mut threads = Vec::new();
        for ix in changes.added.iter().chain(&changes.redrawn).chain(&changes.removed) {
            threads.push(self.add_stale_days(*ix, &mut stale));
        }
        for (ix, left) in &changes.moved {
            threads.extend([self.add_stale_days(*ix, &mut stale), *left]);
        }
        threads.extend(&changes.empty_threads);
        // Most messages that come at once are in new threads, which no cache knows.
        let exposed = self.threads_exposed.load(Ordering::Acquire);
        threads.retain(|thread| thread.is_among_first(exposed));
        stale.extend(threads.iter().copied().map(Node::Thread));
        stale.extend(self.views.stale_nodes(&TreeChanges { index: changes, threads: &threads }));
        for ix in changes.redrawn.iter().chain(changes.moved.iter().map(|(ix, _)| ix)) {
            add_stale_text(*ix, &mut stale);
        }
        for ix in &changes.removed {
            add_stale_text(*ix, &mut stale);
            for place in [
                MessageFolder::Inbox,
                MessageFolder::Archive,
                MessageFolder::Sent,
                MessageFolder::Thread,
            ] {
                stale.extend([Node::Parts(place, *ix), Node::Ack(place, *ix)]);
            }
        }
        stale.iter().map(|node| self.inode_number(node)).collect()
    }

    /// Adds the day folders of a message. Returns its thread.
    fn add_stale_days(&self, ix: MsgIx, stale: &mut Vec<Node>) -> ThreadIx {
        let core = self.index.read();
        let entry = core.messages.entry(ix);
        let day = core.messages.name_time(entry).day();
        if stale.last() != Some(&Node::SentDay(day)) {
            stale.extend([Node::ArchiveDay(day), Node::SentDay(day)]);
        }
        entry.thread()
    }

    /// Notes that a cache may know a thread from now on. The caller notes it before it reads the attributes, so
    /// that later changes make them [stale](Tree::stale_inodes).
    pub(super) fn note_thread_exposed(&self, thread: ThreadIx) {
        self.threads_exposed.fetch_max(thread.count_up_to(), Ordering::AcqRel);
    }

    /// Drops the cached values of messages that changed or went. The caller does so before it invalidates
    /// [`Tree::stale_inodes`].
    pub fn drop_stale_caches(&self, changes: &IndexChanges) {
        self.views.maildir.change_time(self);
        let rewritten = changes.moved.iter().map(|(ix, _)| *ix).chain(changes.redrawn.clone());
        let gone = changes.added.iter().chain(&changes.removed).copied();
        let all: HashSet<MsgIx> = gone.chain(rewritten.clone()).collect();
        for ix in &all {
            self.texts.forget(*ix);
            self.parts.forget(*ix);
        }
        let mut open_anew = self.rewritten.lock();
        open_anew.extend(rewritten.flat_map(|ix| CACHED.map(|place| (place, ix))));
    }

    /// Returns true if the kernel may keep the pages of a message's file from an earlier open. The first open
    /// after a change of the text returns false (see [`IndexChanges::redrawn`], [`IndexChanges::moved`]).
    pub fn may_keep_pages(&self, place: MessageFolder, ix: MsgIx) -> bool {
        let mut rewritten = self.rewritten.lock();
        rewritten.is_empty() || !rewritten.remove(&(place, ix))
    }
}

/// Returns true if messages or threads came, went or look different.
pub(super) fn changes_listings(changes: &IndexChanges) -> bool {
    let IndexChanges { added, redrawn, removed, moved, empty_threads, .. } = changes;
    [added, redrawn, removed].iter().any(|messages| !messages.is_empty())
        || !moved.is_empty()
        || !empty_threads.is_empty()
}

/// Adds the files of a message whose text changed or went.
fn add_stale_text(ix: MsgIx, stale: &mut Vec<Node>) {
    stale.extend([Node::Warning(ix), Node::Message(MessageFolder::Inbox, ix)]);
    stale.extend(CACHED.map(|place| Node::Message(place, ix)));
}
