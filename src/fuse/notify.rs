//! Invalidation of the kernel's caches.
//!
//! Some notifications wait for locks that requests hold while msgfs answers them: that of a folder for a name,
//! that of a page for the pages of a file. Those are never sent. If msgfs were killed while one waits, its
//! process could not end, and the kernel would wait for an answer for ever. Pages are dropped at open; for
//! names see [`Tree::stale_inodes`]. Only attributes remain. A thread that answers no requests sends them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{INodeNo, Notifier};

use super::guard::run_guarded;
use crate::index::IndexChanges;
use crate::view::Tree;

/// Shortest time between two invalidations for marks, so that many marks in a row are sent together.
const PAUSE: Duration = Duration::from_millis(2);

/// The queue to the thread. Dropping it ends the thread.
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

    /// Queues the invalidations for a change of the index. Never blocks.
    pub fn push(&self, changes: &IndexChanges) {
        let _ = self.0.send(changes.clone());
    }
}

fn run(tree: &Tree, notifier: &Notifier, queue: &Receiver<IndexChanges>) {
    let mut told: Option<Instant> = None;
    while let Ok(mut changes) = queue.recv() {
        // After each invalidation the kernel asks anew for the attributes of every folder on the path to the
        // next name that is removed.
        if changes.is_marks_only()
            && let Some(told) = told.filter(|told| told.elapsed() < PAUSE)
        {
            std::thread::sleep(PAUSE.saturating_sub(told.elapsed()));
        }
        // Changes that came meanwhile are sent together.
        while let Ok(more) = queue.try_recv() {
            changes.added.extend(more.added);
            changes.redrawn.extend(more.redrawn);
            changes.textless.extend(more.textless);
            changes.removed.extend(more.removed);
            changes.marked.extend(more.marked);
            changes.moved.extend(more.moved);
            changes.empty_threads.extend(more.empty_threads);
            changes.stores |= more.stores;
            changes.other |= more.other;
        }
        let stale = run_guarded("invalidate", || {
            tree.drop_stale_caches(&changes);
            Ok(tree.stale_inodes(&changes))
        });
        for ino in stale.unwrap_or_default() {
            // ENOENT: the kernel does not know the inode. Any other error: the connection is ending.
            let _ = notifier.inval_inode(INodeNo(ino), -1, 0);
        }
        told = Some(Instant::now());
    }
}
