//! A watch over the folders of the stores, by inotify where the file system has it and by polling elsewhere.
//!
//! One thread calls each [`WatchTarget`] with the paths that changed, once for the events of one moment. After
//! each call it asks again for the folders. A new folder gets a watch and is reported once more, so that
//! nothing that happened before the watch is missed.
//!
//! The thread follows the path of a folder. After a folder is removed and made anew, moved away and back, or unmounted
//! and mounted, it watches the folder that the path leads to (`ancestors`). `builder` watches a folder before it is
//! first listed.
//!
//! While nothing happens the thread wakes once a minute to compare the folders. It wakes more often only if a
//! folder cannot be watched (it is on another machine, does not exist, or the system has no watches left), or
//! if something could not be read for a reason that may pass.

mod ancestors;
mod builder;
mod watch_loop;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::eventfd;

pub use self::builder::WatcherBuilder;
use self::watch_loop::WatchLoop;

/// A change in the folders of a [`WatchTarget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderChanges {
    /// These files, or anything in these folders, without repetition.
    Paths(Vec<PathBuf>),
    /// Anything: events were lost, a folder was replaced or cannot be watched.
    Unknown,
}

/// A filter that returns true if a change of this name in this folder matters.
pub type NameFilter = dyn Fn(&Path, &OsStr) -> bool + Send;

/// Folders to watch together, and the callbacks for their changes.
pub struct WatchTarget {
    /// Returns the folders as of now. A missing folder is polled twice a second, so a target that expects new
    /// folders lists their parent instead.
    pub dirs: Box<dyn Fn() -> Vec<PathBuf> + Send>,
    /// Returns true if a change of this name in this folder matters.
    pub is_relevant: Box<NameFilter>,
    /// A written file matters only once its writer closes it, not with every write.
    pub on_close_only: bool,
    /// The callback for a change.
    pub on_change: Box<dyn Fn(&FolderChanges) + Send>,
    /// Returns true if something could not be read for a reason that may pass without any event. Then
    /// [`FolderChanges::Unknown`] is reported after 1, 2, 4 … 30 seconds, until it can be read.
    pub is_failing: Box<dyn Fn() -> bool + Send>,
    /// Returns the time at which it must be called again without an event, if there is one. Then
    /// [`FolderChanges::Paths`] without a path is reported.
    pub due_time: Box<dyn Fn() -> Option<Instant> + Send>,
}

/// A handle that wakes a [`Watcher`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Asks every target for its folders again, because they may have changed without an event.
    pub fn refresh_folders(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A running watch. It ends when dropped.
#[derive(Debug)]
pub struct Watcher {
    wake: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn spawn(mut watch: WatchLoop) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (woken, stopped) = (Arc::clone(&wake), Arc::clone(&stop));
        watch.read_waiting_events();
        let thread = std::thread::Builder::new()
            .name("msgfs-watch".into())
            .spawn(move || watch.run(&woken, &stopped))?;
        Ok(Self { wake: Waker(wake), stop, thread: Some(thread) })
    }

    /// Returns a handle that wakes this watcher.
    pub fn waker(&self) -> &Waker {
        &self.wake
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let told = rustix::io::write(&self.wake.0, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| told) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
