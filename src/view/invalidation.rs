//! Inodes that a change of the index makes stale in the kernel's caches. Names are never invalidated. To
//! invalidate one, the kernel locks its folder, and a request that waits for msgfs may hold that lock. If msgfs
//! were killed then, the kernel would wait for ever. A name that is gone is soon looked up again, or leads to
//! an inode that reports [`super::Error::Stale`]. Then the kernel looks the name up.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::Tree;
use super::node::{Ino, Node, PagePolicy};
use super::table::TreeChanges;
use crate::index::{IndexChanges, MsgIx, ThreadIx};

impl Tree {
    /// Returns the inodes whose attributes a cache of this tree must forget after a change of the index.
    pub fn stale_inodes(&self, changes: &IndexChanges) -> HashSet<Ino> {
        self.stale_nodes(changes).iter().map(|node| self.inode_number(node)).collect()
    }

    fn stale_nodes(&self, changes: &IndexChanges) -> Vec<Node> {
        let (mut days, mut threads) = (Vec::new(), changes.empty_threads.clone());
        let IndexChanges { added, redrawn, textless, removed, moved, .. } = changes;
        let moved_messages = moved.iter().map(|(ix, _)| ix);
        let all = added.iter().chain(redrawn).chain(textless).chain(removed).chain(moved_messages);
        for ix in all {
            let tables = self.index.read();
            let entry = tables.messages.entry(*ix);
            let day = tables.messages.name_time(entry).day();
            if days.last() != Some(&day) {
                days.push(day);
            }
            threads.push(entry.thread());
        }
        threads.extend(moved.iter().map(|(_, left)| *left));
        // Most messages that come at once are in new threads, which no cache knows.
        let exposed = self.threads_exposed.load(Ordering::Acquire);
        threads.retain(|thread| thread.is_among_first(exposed));
        self.views.stale_nodes(&TreeChanges { index: changes, days, threads })
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
        let rewritten = changes.moved.iter().map(|(ix, _)| ix).chain(&changes.redrawn);
        let all: HashSet<&MsgIx> =
            rewritten.chain(&changes.added).chain(&changes.removed).collect();
        for ix in all {
            self.texts.forget(*ix);
            self.parts.forget(*ix);
        }
        if changes.redrawn.is_empty() && changes.moved.is_empty() {
            return;
        }
        let IndexChanges { redrawn, moved, .. } = changes.clone();
        let nodes = self.stale_nodes(&IndexChanges { redrawn, moved, ..IndexChanges::default() });
        let kept = nodes.iter().filter(|node| node.page_policy() == PagePolicy::Keep);
        let inodes: Vec<Ino> = kept.map(|node| self.inode_number(node)).collect();
        self.rewritten.lock().extend(inodes);
    }

    /// Returns the use that the kernel may make of the pages of a file from an earlier open. The first open after
    /// a change of the text drops them (see [`IndexChanges::redrawn`], [`IndexChanges::moved`]).
    pub fn page_policy(&self, node: &Node) -> PagePolicy {
        let policy = node.page_policy();
        let is_rewritten = || {
            let any = !self.rewritten.lock().is_empty();
            let ino = any.then(|| self.inode_number(node));
            ino.is_some_and(|ino| self.rewritten.lock().remove(&ino))
        };
        if policy == PagePolicy::Keep && is_rewritten() { PagePolicy::Drop } else { policy }
    }
}
