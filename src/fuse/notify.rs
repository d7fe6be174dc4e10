//! Telling the kernel what its caches must forget.
//!
//! Notifications wait for locks that requests hold while we answer them (the folder's during a
//! create, a page's during a read), so they are never sent by a thread that answers requests, never
//! with a lock of ours held, and never for pages of files: those are dropped at open. One thread
//! sends them all.

use std::collections::HashSet;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{INodeNo, Notifier};

use crate::index::Changes;
use crate::view::{Stale, Tree};

/// Queue to the thread. Dropping it ends the thread.
#[derive(Clone)]
pub(super) struct Notices(Sender<Changes>);

impl Notices {
    /// Starts the thread.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn start(tree: Arc<Tree>, notifier: Notifier) -> std::io::Result<Self> {
        let (queue, changes) = unbounded();
        std::thread::Builder::new()
            .name("msgfs-notify".into())
            .spawn(move || run(&tree, &notifier, &changes))?;
        Ok(Self(queue))
    }

    /// Queues what a change of the index makes stale. Never blocks.
    pub fn push(&self, changes: &Changes) {
        let _ = self.0.send(changes.clone());
    }
}

fn run(tree: &Tree, notifier: &Notifier, queue: &Receiver<Changes>) {
    while let Ok(mut changes) = queue.recv() {
        // What came meanwhile is told in one go.
        while let Ok(more) = queue.try_recv() {
            changes.added.extend(more.added);
            changes.redrawn.extend(more.redrawn);
            changes.removed.extend(more.removed);
            changes.marked.extend(more.marked);
            changes.moved.extend(more.moved);
            changes.emptied.extend(more.emptied);
            changes.other |= more.other;
        }
        tree.forget(&changes);
        let stale: HashSet<Stale> = tree.stale(&changes);
        for what in stale {
            // ENOENT: the kernel knows nothing of it. Any other error: the connection is ending.
            let _ = match what {
                Stale::Attributes(ino) => notifier.inval_inode(INodeNo(ino), -1, 0),
                Stale::Name(parent, name) => notifier.inval_entry(INodeNo(parent), name.as_ref()),
            };
        }
    }
}
