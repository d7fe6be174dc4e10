//! The thread that watches: its watches, its timers, and the calls of the targets.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ancestors::{self, AncestorWatches, FolderId, folder_id};
use super::builder::EarlyWatches;
use super::{FolderChanges, WatchTarget};
use crate::store::fs::is_local;

/// The interval at which folders without a watch are polled.
pub(super) const POLL: Duration = Duration::from_millis(500);
/// The interval at which watched folders are compared with what their paths lead to.
const COMPARE: Duration = Duration::from_secs(60);
/// The first and the longest delay before a failing target is called again.
pub(super) const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Bytes of events per read.
const BUFFER: usize = 64 << 10;
/// Most reads of events before they are reported.
const READS_AT_MOST: usize = 64;
/// Most times the folders are asked for after one change.
const ROUNDS_AT_MOST: usize = 32;

/// Returns the events that a watch reports; `closed` leaves out single writes. A folder of several targets
/// reports the events of all of them.
pub(super) fn watch_mask(closed: bool) -> WatchMask {
    let written = if closed { WatchMask::empty() } else { WatchMask::MODIFY };
    written
        | WatchMask::MASK_ADD
        | WatchMask::CLOSE_WRITE
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::ATTRIB
        | ancestors::OWN
}

/// The state of the thread that watches.
pub(super) struct WatchLoop {
    inotify: Option<Inotify>,
    targets: Vec<WatchedTarget>,
    /// The hash function for lists of folders.
    hasher: RandomState,
    /// The folders of each descriptor, with the number of their target. Several targets, or two names, may list
    /// one folder.
    watches: HashMap<WatchDescriptor, Vec<(usize, Arc<Path>)>>,
    ancestors: AncestorWatches,
    mounts: Option<std::fs::File>,
    /// The time of the next comparison of the folders.
    next_compare: Instant,
    /// The time of the next poll.
    next_poll: Instant,
    /// The log already has the warning that folders cannot be watched.
    warned: bool,
}

/// A target, and what is known about its folders.
struct WatchedTarget {
    target: WatchTarget,
    /// Hash of the folders that the target listed last; 0 forces a new comparison.
    listed_hash: u64,
    folders: HashMap<Arc<Path>, WatchedFolder>,
    /// Number of folders without a watch.
    polled: usize,
    /// The time of the next retry, and the delay before it.
    retry: Option<(Instant, Duration)>,
    /// The time of the next call without an event.
    due: Option<Instant>,
}

/// A folder of a target.
struct WatchedFolder {
    /// `None` while the folder is polled.
    descriptor: Option<WatchDescriptor>,
    /// The folder that the descriptor watches.
    identity: Option<FolderId>,
    /// The folder existed at the last poll.
    existed: bool,
}

/// The events of one moment for one target.
#[derive(Default)]
struct TargetChanges {
    paths: HashSet<PathBuf>,
    unknown: bool,
}

impl WatchLoop {
    /// Returns the state in which the folders of these targets are watched, or polled where that is not possible.
    pub(super) fn new(targets: Vec<WatchTarget>, inotify: Option<Inotify>) -> Self {
        let watched = |target| WatchedTarget {
            target,
            listed_hash: 0,
            folders: HashMap::new(),
            polled: 0,
            retry: None,
            due: None,
        };
        let mut watch = Self {
            inotify,
            targets: targets.into_iter().map(watched).collect(),
            hasher: RandomState::new(),
            watches: HashMap::new(),
            ancestors: AncestorWatches::default(),
            mounts: ancestors::open_mountinfo(),
            next_compare: Instant::now() + COMPARE,
            next_poll: Instant::now() + POLL,
            warned: false,
        };
        for n in 0..watch.targets.len() {
            watch.relist_folders(n);
        }
        watch
    }

    /// Returns true if all folders of a target were watched before the start.
    pub(super) fn is_watched_early(&self, n: usize, ahead: &EarlyWatches) -> bool {
        let is_in = |(path, folder): (&Arc<Path>, &WatchedFolder)| {
            ahead.contains(path, folder.descriptor.as_ref())
        };
        self.targets.get(n).is_some_and(|w| w.listed_hash != 0 && w.folders.iter().all(is_in))
    }

    /// Removes those of these watches that nothing uses any more.
    pub(super) fn remove_unused_watches(&self, watches: impl Iterator<Item = WatchDescriptor>) {
        let Some(inotify) = &self.inotify else { return };
        for watch in watches {
            if !self.watches.contains_key(&watch) && !self.ancestors.contains(&watch) {
                // An error means that the folder is gone, and the watch with it.
                let _ = inotify.watches().remove(watch);
            }
        }
    }

    /// Reads the events that came before the thread runs.
    pub(super) fn read_waiting_events(&mut self) {
        self.read_events(&mut vec![0; BUFFER]);
    }

    /// Reports changes until `stop` is set and `wake` is written to.
    pub(super) fn run(mut self, wake: &OwnedFd, stop: &AtomicBool) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let [called, events, mounts] = self.wait_for_events(wake);
            if called {
                let _ = rustix::io::read(wake, &mut [0; 8]);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                for n in 0..self.targets.len() {
                    self.refresh_target(n);
                }
            }
            if events {
                self.read_events(&mut buffer);
            }
            if mounts {
                self.compare_folders();
            }
            self.run_due_timers();
        }
    }

    /// Waits until something happens or is due. Returns three flags: a wake-up by a handle, events of inotify,
    /// and a mount or unmount.
    fn wait_for_events(&self, wake: &OwnedFd) -> [bool; 3] {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        if let Some(inotify) = &self.inotify {
            fds.push(PollFd::from_borrowed_fd(inotify.as_fd(), PollFlags::IN));
            fds.extend(self.mounts.as_ref().map(|mounts| PollFd::new(mounts, PollFlags::PRI)));
        }
        let limit = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::error!(error = %e, "waiting for changes failed; stores are polled");
                std::thread::sleep(POLL);
                return [false, true, false];
            }
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        [(); 3].map(|()| ready.next().unwrap_or_default())
    }

    fn has_polled_folders(&self) -> bool {
        self.targets.iter().any(|w| w.polled > 0)
    }

    /// Returns the time at which something is due even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let again = self.targets.iter().filter_map(|w| Some(w.retry?.0)).min();
        let due = self.targets.iter().filter_map(|w| w.due).min();
        let look = self.has_polled_folders().then_some(self.next_poll);
        let compare = (!self.watches.is_empty()).then_some(self.next_compare);
        [again, due, look, compare].into_iter().flatten().min()
    }

    fn run_due_timers(&mut self) {
        let now = Instant::now();
        if self.next_poll <= now && self.has_polled_folders() {
            self.poll_folders();
        }
        if self.next_compare <= now {
            self.compare_folders();
        }
        for n in 0..self.targets.len() {
            let due = |w: &mut WatchedTarget| w.retry.take_if(|(at, _)| *at <= now);
            if let Some((_, waited)) = self.targets.get_mut(n).and_then(due) {
                self.notify_target(n, &FolderChanges::Unknown);
                self.refresh_target_after(n, waited * 2);
            }
            let due = |w: &mut WatchedTarget| w.due.take_if(|at| *at <= now);
            if self.targets.get_mut(n).and_then(due).is_some() {
                self.notify_target(n, &FolderChanges::Paths(Vec::new()));
                self.refresh_target(n);
            }
        }
    }

    /// Polls the folders that have no watch.
    fn poll_folders(&mut self) {
        let start = Instant::now();
        for n in 0..self.targets.len() {
            let changed = self.targets.get_mut(n).is_some_and(WatchedTarget::may_have_changed);
            // A folder that was replaced, or appeared, can be watched again. The watch comes before the report,
            // so that no change in between is missed.
            let new = self.relist_folders(n);
            if changed || !new.is_empty() {
                self.notify_target(n, &FolderChanges::Unknown);
                self.refresh_target(n);
            }
        }
        // Polling takes at most a tenth of the time.
        self.next_poll = Instant::now() + POLL.max(start.elapsed() * 9);
    }

    /// Compares the watched folders with what their paths lead to, and reports the differences.
    fn compare_folders(&mut self) {
        self.next_compare = Instant::now() + COMPARE;
        let moved: Vec<usize> =
            (0..self.targets.len()).filter(|n| self.unwatch_moved(*n)).collect();
        for n in moved {
            self.notify_target(n, &FolderChanges::Unknown);
            self.refresh_target(n);
        }
        self.watch_ancestors();
    }

    /// Removes the watches of paths that lead to another folder now, or to none. Returns true if there were
    /// any.
    fn unwatch_moved(&mut self, n: usize) -> bool {
        let Some(watched) = self.targets.get_mut(n) else { return false };
        let moved = |(path, folder): &(&Arc<Path>, &WatchedFolder)| {
            folder.descriptor.is_some() && folder_id(path) != folder.identity
        };
        let moved: Vec<Arc<Path>> =
            watched.folders.iter().filter(moved).map(|(path, _)| Arc::clone(path)).collect();
        if moved.is_empty() {
            return false;
        }
        // The next listing takes them as new.
        watched.listed_hash = 0;
        for path in moved {
            self.unwatch_folder(n, &path);
        }
        true
    }

    /// Watches the ancestors of the folders that are watched now.
    fn watch_ancestors(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let folders = self.targets.iter().flat_map(|w| &w.folders);
        let watched = folders.filter(|(_, f)| f.descriptor.is_some());
        let unused = self.ancestors.watch_ancestors(inotify, watched.map(|(path, _)| &**path));
        self.remove_unused_watches(unused.into_iter());
    }

    fn read_events(&mut self, buffer: &mut [u8]) {
        let mut touched: Vec<TargetChanges> =
            self.targets.iter().map(|_| TargetChanges::default()).collect();
        let mut compare = false;
        for _ in 0..READS_AT_MOST {
            let Some(inotify) = &mut self.inotify else { return };
            let mut gone = Vec::new();
            match inotify.read_events(buffer) {
                Ok(events) => {
                    for event in events {
                        compare |= self.ancestors.may_move_folder(&event);
                        note_event(&self.targets, &self.watches, &event, &mut touched, &mut gone);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => {
                    tracing::warn!(error = %e, "inotify failed");
                    break;
                }
            }
            for descriptor in &gone {
                self.unwatch_below(descriptor);
            }
        }
        for (n, what) in touched.into_iter().enumerate() {
            if what.unknown | (compare && self.unwatch_moved(n)) {
                self.notify_target(n, &FolderChanges::Unknown);
            } else if !what.paths.is_empty() {
                self.notify_target(n, &FolderChanges::Paths(what.paths.into_iter().collect()));
            } else {
                continue;
            }
            self.refresh_target(n);
        }
        if compare {
            self.watch_ancestors();
        }
    }

    /// Removes the watches of a folder that is not where it was, and of all folders below it.
    fn unwatch_below(&mut self, descriptor: &WatchDescriptor) {
        for (n, path) in self.watches.get(descriptor).cloned().unwrap_or_default() {
            let Some(watched) = self.targets.get(n) else { continue };
            let below = watched.folders.keys().filter(|p| p.starts_with(&path));
            for path in below.cloned().collect::<Vec<_>>() {
                self.unwatch_folder(n, &path);
            }
            if let Some(watched) = self.targets.get_mut(n) {
                // The next listing takes them as new.
                watched.listed_hash = 0;
            }
        }
    }

    /// Asks for the folders of a target until none is new, and reports the new ones.
    fn refresh_target(&mut self, n: usize) {
        self.refresh_target_after(n, AGAIN[0]);
    }

    /// Does the same as [`Self::refresh_target`]; a failing target is retried after `wait`.
    fn refresh_target_after(&mut self, n: usize, wait: Duration) {
        self.list_new_folders(n);
        // A failing target is retried, unless a retry is planned already.
        let Some(watched) = self.targets.get_mut(n) else { return };
        let failing = std::panic::AssertUnwindSafe(&watched.target.is_failing);
        let failing = std::panic::catch_unwind(failing).unwrap_or_default();
        let wait = wait.min(AGAIN[1]);
        let planned = || watched.retry.unwrap_or_else(|| (Instant::now() + wait, wait));
        watched.retry = failing.then(planned);
        watched.plan_due_call();
    }

    fn list_new_folders(&mut self, n: usize) {
        for _ in 0..ROUNDS_AT_MOST {
            let new = self.relist_folders(n);
            if new.is_empty() {
                return;
            }
            self.notify_target(n, &FolderChanges::Paths(new));
        }
        tracing::warn!(
            "new folders appear too fast; some of them are looked at with the next change"
        );
    }

    /// Asks a target for its folders, watches those that have no watch and removes the other watches. Returns
    /// the folders that have a watch now and had none.
    fn relist_folders(&mut self, n: usize) -> Vec<PathBuf> {
        let Some(watched) = self.targets.get_mut(n) else { return Vec::new() };
        let Some(dirs) = watched.list_dirs() else { return Vec::new() };
        let listed = self.hasher.hash_one(&dirs).max(1);
        if listed == watched.listed_hash && watched.polled == 0 {
            return Vec::new();
        }
        let wanted: HashSet<&Path> = dirs.iter().map(PathBuf::as_path).collect();
        let unwanted = watched.folders.keys().filter(|p| !wanted.contains(p.as_ref()));
        for path in unwanted.cloned().collect::<Vec<_>>() {
            self.unwatch_folder(n, &path);
        }
        let mut new = Vec::new();
        let mut full = false;
        for dir in &dirs {
            let Some(watched) = self.targets.get(n) else { break };
            let known = watched.folders.get(dir.as_path());
            if known.is_some_and(|f| f.descriptor.is_some()) || (full && known.is_some()) {
                continue;
            }
            match self.watch_folder(n, dir, full) {
                Ok(true) => new.push(dir.clone()),
                Ok(false) => {}
                Err(e) => {
                    full |= e.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error());
                    self.warn_once(dir, &e);
                }
            }
        }
        if let Some(watched) = self.targets.get_mut(n) {
            watched.listed_hash = listed;
            watched.polled = watched.folders.values().filter(|f| f.descriptor.is_none()).count();
        }
        if !new.is_empty() {
            self.watch_ancestors();
        }
        new
    }

    /// Watches a folder if possible; returns true if it has a watch. `full`: no watches are left.
    fn watch_folder(&mut self, n: usize, dir: &Path, full: bool) -> io::Result<bool> {
        let path: Arc<Path> = Arc::from(dir);
        let before = folder_id(dir);
        let closed = self.targets.get(n).is_some_and(|watched| watched.target.on_close_only);
        let result = match &self.inotify {
            Some(inotify) if !full && is_local(dir) => {
                inotify.watches().add(dir, watch_mask(closed)).map(Some)
            }
            _ => Ok(None),
        };
        // If the folder was replaced meanwhile, it is unknown which one is watched. The next comparison finds
        // the difference.
        let identity = before.filter(|before| folder_id(dir) == Some(*before));
        let descriptor = result.as_ref().ok().cloned().flatten();
        if let Some(descriptor) = &descriptor {
            let one = || Vec::with_capacity(1);
            let stands_for = self.watches.entry(descriptor.clone()).or_insert_with(one);
            stands_for.push((n, Arc::clone(&path)));
        }
        if let Some(watched) = self.targets.get_mut(n) {
            let existed = watched.folders.get(&path).map_or(before.is_some(), |f| f.existed);
            watched.folders.insert(path, WatchedFolder { descriptor, identity, existed });
        }
        result.map(|watch| watch.is_some())
    }

    fn unwatch_folder(&mut self, n: usize, path: &Path) {
        let folder = self.targets.get_mut(n).and_then(|w| w.folders.remove(path));
        let Some(descriptor) = folder.and_then(|f| f.descriptor) else { return };
        let Some(stands_for) = self.watches.get_mut(&descriptor) else { return };
        stands_for.retain(|(target, of)| *target != n || **of != *path);
        if stands_for.is_empty() {
            self.watches.remove(&descriptor);
            self.remove_unused_watches(std::iter::once(descriptor));
        }
    }

    /// Logs one warning only: there may be thousands of folders, and each is tried twice a second.
    fn warn_once(&mut self, dir: &Path, error: &io::Error) {
        if !self.warned && error.kind() != io::ErrorKind::NotFound {
            self.warned = true;
            tracing::warn!(
                dir = %dir.display(),
                %error,
                "a folder cannot be watched and is polled; if there are no watches left, raise \
                 fs.inotify.max_user_watches"
            );
        }
    }

    /// Calls the target's callback. A panic in it must not end the watch.
    fn notify_target(&self, n: usize, what: &FolderChanges) {
        let Some(watched) = self.targets.get(n) else { return };
        let told = || (watched.target.on_change)(what);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(told)).is_err() {
            let folder = watched.folders.keys().min();
            tracing::error!(?folder, "a bug in msgfs: reading a change panicked");
        }
    }
}

/// Adds one event to `touched`; `gone` gets the descriptors of folders that are gone.
fn note_event(
    targets: &[WatchedTarget],
    watches: &HashMap<WatchDescriptor, Vec<(usize, Arc<Path>)>>,
    event: &inotify::Event<&OsStr>,
    touched: &mut [TargetChanges],
    gone: &mut Vec<WatchDescriptor>,
) {
    if event.mask.contains(EventMask::Q_OVERFLOW) {
        for t in touched {
            t.unknown = true;
        }
        return;
    }
    let lost = event.mask.intersects(ancestors::SELF);
    let Some(stands_for) = watches.get(&event.wd) else { return };
    if lost {
        gone.push(event.wd.clone());
    }
    for (n, folder) in stands_for {
        let (Some(watched), Some(touched)) = (targets.get(*n), touched.get_mut(*n)) else {
            continue;
        };
        touched.unknown |= lost;
        match event.name {
            Some(name) if !touched.unknown && (watched.target.is_relevant)(folder, name) => {
                touched.paths.insert(folder.join(name));
            }
            None if !touched.unknown => {
                touched.paths.insert(folder.to_path_buf());
            }
            _ => {}
        }
    }
}

impl WatchedTarget {
    /// Returns the folders as of now, or `None` if the callback panicked.
    fn list_dirs(&self) -> Option<Vec<PathBuf>> {
        let ask = std::panic::AssertUnwindSafe(&self.target.dirs);
        std::panic::catch_unwind(ask).ok()
    }

    /// Plans the next call without an event.
    fn plan_due_call(&mut self) {
        let ask = std::panic::AssertUnwindSafe(&self.target.due_time);
        let (due, now) = (std::panic::catch_unwind(ask).unwrap_or_default(), Instant::now());
        // The target was called just now. If it still names a time that is over, it could do nothing.
        self.due = due.map(|at| if at > now { at } else { now + POLL });
    }

    /// Returns true if any folder without a watch exists now, or existed at the last poll.
    fn may_have_changed(&mut self) -> bool {
        let mut any = false;
        for (path, folder) in &mut self.folders {
            if folder.descriptor.is_none() {
                let exists = path.is_dir();
                any |= exists || folder.existed;
                folder.existed = exists;
            }
        }
        any
    }
}
