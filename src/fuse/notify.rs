//! Telling the kernel what its caches must forget.
//!
//! Some notifications wait for locks that requests hold while we answer them: the folder's for a name,
//! a page's for the pages of a file. Those are never sent: if we are killed while one waits, this
//! process cannot end, and the kernel waits for an answer for ever. Pages are dropped at open; for names
//! see [`Tree::stale`]. What remains, attributes, is sent by one thread that answers no requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{INodeNo, Notifier};

use crate::index::IndexChanges;
use crate::view::Tree;

/// Where many are marked one after the other, that is told in one go this often.
const PAUSE: Duration = Duration::from_millis(2);

/// Queue to the thread. Dropping it ends the thread.
#[derive(Clone)]
pub(super) struct InvalidationQueue(Sender<IndexChanges>);

impl InvalidationQueue {
    /// Starts the thread.
    pub fn start(tree: Arc<Tree>, notifier: Notifier) -> std::io::Result<Self> {
        let (queue, changes) = unbounded();
        std::thread::Builder::new()
            .name("msgfs-notify".into())
            .spawn(move || run(&tree, &notifier, &changes))?;
        Ok(Self(queue))
    }

    /// Queues what a change of the index makes stale. Never blocks.
    pub fn push(&self, changes: &IndexChanges) {
        let _ = self.0.send(changes.clone());
    }
}

fn run(tree: &Tree, notifier: &Notifier, queue: &Receiver<IndexChanges>) {
    let mut told: Option<Instant> = None;
    while let Ok(mut changes) = queue.recv() {
        // Each time the kernel asks for the attributes anew, of each folder on the path to the next name that
        // is removed.
        if changes.is_marks_only()
            && let Some(told) = told.filter(|told| told.elapsed() < PAUSE)
        {
            std::thread::sleep(PAUSE.saturating_sub(told.elapsed()));
        }
        // What came meanwhile is told in one go.
        while let Ok(more) = queue.try_recv() {
            changes.added.extend(more.added);
            changes.redrawn.extend(more.redrawn);
            changes.removed.extend(more.removed);
            changes.marked.extend(more.marked);
            changes.moved.extend(more.moved);
            changes.empty_threads.extend(more.empty_threads);
            changes.stores |= more.stores;
            changes.other |= more.other;
        }
        tree.drop_stale_caches(&changes);
        for ino in tree.stale_inodes(&changes) {
            // ENOENT: the kernel knows nothing of it. Any other error: the connection is ending.
            let _ = notifier.inval_inode(INodeNo(ino), -1, 0);
        }
        told = Some(Instant::now());
    }
}
