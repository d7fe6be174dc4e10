//! Watches of folders before they are listed for the first time.
//!
//! A change after the listing of a folder and before its watch is missed, unless the folder is listed twice.
//! For a folder that is watched early, all such changes are reported when the [`Watcher`] starts.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use inotify::{Inotify, WatchDescriptor};

use super::watch_loop::{WatchLoop, watch_mask};
use super::{WatchTarget, Watcher};
use crate::model::Watch;
use crate::model::locks::Mutex;
use crate::store::fs::is_local;

/// The most early watches: the system has few, and a user with more folders leaves few of them to others.
const MOST: usize = 8192;

/// Watches of folders whose targets are not known yet.
#[derive(Debug)]
pub struct WatcherBuilder(Mutex<EarlyWatches>);

/// The folders that are watched early.
#[derive(Debug, Default)]
pub(super) struct EarlyWatches {
    pub inotify: Option<Inotify>,
    folders: HashMap<PathBuf, WatchDescriptor>,
}

impl WatcherBuilder {
    /// Returns a builder without watches.
    #[must_use]
    pub fn new(how: Watch) -> Self {
        let inotify = if how == Watch::Auto {
            Inotify::init()
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        if let (Err(e), Watch::Auto) = (&inotify, how) {
            tracing::warn!(error = %e, "inotify cannot be used; stores are polled");
        }
        Self(Mutex::new(EarlyWatches { inotify: inotify.ok(), folders: HashMap::new() }))
    }

    /// Watches a folder that is about to be listed, if possible. Does nothing once the watcher has started.
    pub fn watch_folder(&self, folder: &Path) {
        let EarlyWatches { inotify, folders } = &mut *self.0.lock();
        let Some(inotify) = inotify else { return };
        if folders.len() < MOST
            && is_local(folder)
            && let Ok(watch) = inotify.watches().add(folder, watch_mask(false))
        {
            folders.insert(folder.to_owned(), watch);
        }
    }

    /// Starts watching for these targets. Folders that cannot be watched are polled. Before it returns, it
    /// reports what happened in the folders that were watched early; later changes are reported in all folders.
    /// Also returns the numbers of the targets that have other folders, too.
    ///
    /// # Errors
    /// If the thread or its event descriptor cannot be made.
    pub fn start(&self, targets: Vec<WatchTarget>) -> io::Result<(Watcher, Vec<usize>)> {
        let mut ahead = std::mem::take(&mut *self.0.lock());
        let count = targets.len();
        let watch = WatchLoop::new(targets, ahead.inotify.take());
        let others = (0..count).filter(|n| !watch.is_watched_early(*n, &ahead)).collect();
        watch.remove_unused_watches(ahead.folders.into_values());
        Ok((Watcher::spawn(watch)?, others))
    }
}

impl EarlyWatches {
    /// Returns true if a folder was watched early and the same folder is watched now.
    pub fn contains(&self, folder: &Path, watch: Option<&WatchDescriptor>) -> bool {
        watch.is_some() && self.folders.get(folder) == watch
    }
}
