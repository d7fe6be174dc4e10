//! What a change of the index makes stale in the kernel's caches: inodes, never names. To take a name
//! back the kernel locks its folder, which a request may hold that waits for us, or for ever once we
//! were killed. Names that go are asked for again soon, or lead to an inode that says it is stale
//! ([`super::Error::Stale`]), and then the kernel asks for the name.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::Tree;
use super::node::{Ino, MailBox, Node, Place};
use crate::index::{Changes, MsgIx, ThreadIx};

/// The places whose pages the kernel may keep; `inbox/` is always read through us.
const CACHED: [Place; 4] = [Place::Archive, Place::Sent, Place::Thread, Place::Maildir];

impl Tree {
    /// The inodes whose attributes a cache of this tree must forget after a change of the index.
    pub fn stale(&self, changes: &Changes) -> HashSet<Ino> {
        let boxes = [MailBox::New, MailBox::Cur].map(Node::MailBox);
        let mut stale = vec![Node::Root, Node::Inbox];
        stale.extend(boxes);
        let listed =
            [&changes.added, &changes.redrawn, &changes.removed].iter().any(|l| !l.is_empty());
        if listed || !changes.moved.is_empty() || !changes.emptied.is_empty() {
            stale.extend([Node::Archive, Node::Sent, Node::Threads, Node::Transcripts]);
        }
        if changes.other {
            stale.extend([Node::Rejected, Node::Raw]);
        }
        if changes.stores {
            stale.extend([Node::Readme, Node::Me]);
        }
        for ix in changes.added.iter().chain(&changes.redrawn).chain(&changes.removed) {
            self.stale_folders(*ix, &mut stale);
        }
        for (ix, left) in &changes.moved {
            self.stale_folders(*ix, &mut stale);
            self.stale_thread(*left, &mut stale);
        }
        for ix in changes.redrawn.iter().chain(changes.moved.iter().map(|(ix, _)| ix)) {
            stale_text(*ix, &mut stale);
        }
        for ix in &changes.removed {
            stale_text(*ix, &mut stale);
            for place in [Place::Inbox, Place::Archive, Place::Sent, Place::Thread] {
                stale.extend([Node::Parts(place, *ix), Node::Ack(place, *ix)]);
            }
        }
        for thread in &changes.emptied {
            self.stale_thread(*thread, &mut stale);
        }
        stale.iter().map(|node| self.ino(node)).collect()
    }

    /// The folders a message is in.
    fn stale_folders(&self, ix: MsgIx, stale: &mut Vec<Node>) {
        let core = self.index.read();
        let Some(entry) = core.entry(ix) else { return };
        let day = core.name_time(entry).day();
        if stale.last() != Some(&Node::SentDay(day)) {
            stale.extend([Node::ArchiveDay(day), Node::SentDay(day)]);
        }
        self.stale_thread(core.thread_of(entry), stale);
    }

    /// A thread got or lost a message: its folder and its transcript.
    fn stale_thread(&self, thread: ThreadIx, stale: &mut Vec<Node>) {
        // Most mail that comes at once is in new threads, of which no cache knows anything.
        if thread < self.threads_told.load(Ordering::Acquire) {
            stale.extend([Node::Thread(thread), Node::Transcript(thread)]);
        }
    }

    /// Notes that a cache may know a node from now on. To be called before its attributes are looked up: what
    /// changes later makes them [stale](Tree::stale).
    pub(super) fn note_told(&self, node: &Node) {
        if let Node::Thread(thread) | Node::Transcript(thread) = node {
            self.threads_told.fetch_max(thread.saturating_add(1), Ordering::AcqRel);
        }
    }

    /// Forgets what was kept of messages that changed or went: call it before the caches are told
    /// of [`Tree::stale`].
    pub fn forget(&self, changes: &Changes) {
        self.mail_time();
        let rewritten = changes.moved.iter().map(|(ix, _)| *ix).chain(changes.redrawn.clone());
        let gone = changes.added.iter().chain(&changes.removed).copied();
        let all: HashSet<MsgIx> = gone.chain(rewritten.clone()).collect();
        for ix in &all {
            self.rendered.lock().forget(*ix);
            self.parts.forget(ix);
        }
        let mut open_anew = self.rewritten.lock();
        open_anew.extend(rewritten.flat_map(|ix| CACHED.map(|place| (place, ix))));
    }

    /// Whether the kernel may keep the pages of a message's file that it has from an earlier open:
    /// not at the first open after the text changed (see [`Changes::redrawn`], [`Changes::moved`]).
    pub fn keeps_pages(&self, place: Place, ix: MsgIx) -> bool {
        let mut rewritten = self.rewritten.lock();
        rewritten.is_empty() || !rewritten.remove(&(place, ix))
    }
}

/// The text of a message changed, or went.
fn stale_text(ix: MsgIx, stale: &mut Vec<Node>) {
    stale.extend([Node::Warning(ix), Node::Message(Place::Inbox, ix)]);
    stale.extend(CACHED.map(|place| Node::Message(place, ix)));
}
