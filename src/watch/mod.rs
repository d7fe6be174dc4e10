//! What changed in the stores: inotify where the file system has it, polling where it has not.
//!
//! One thread. It tells nobody what changed, only that something did: scans find out themselves, and
//! many events of one moment become one scan.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, eventfd, poll};

use crate::model::Watch;

/// How often folders are looked at that cannot be watched.
const POLL: Duration = Duration::from_millis(500);

/// File systems whose changes may be made on other machines, where inotify sees only our own: NFS,
/// SMB (three generations), FUSE, 9p, Ceph, AFS, Coda.
const REMOTE: [i64; 9] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
];

/// A folder to watch.
pub struct Target {
    /// The folder.
    pub dir: PathBuf,
    /// Whether a change of this name in it matters.
    pub concerns: Box<dyn Fn(&OsStr) -> bool + Send>,
    /// What to do when something changed.
    pub changed: Box<dyn Fn() + Send>,
}

/// A running watch. Ends when dropped.
#[derive(Debug)]
pub struct Watcher {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts watching. Folders that cannot be watched are polled.
    ///
    /// # Errors
    /// If the thread or its event descriptor cannot be made.
    pub fn start(targets: Vec<Target>, how: Watch) -> io::Result<Self> {
        let stop = eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let watch = Loop::new(targets, how);
        let thread = std::thread::Builder::new()
            .name("msgfs-watch".into())
            .spawn(move || watch.run(&stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let told = rustix::io::write(&self.stop, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| told) {
            let _ = thread.join();
        }
    }
}

/// Whether changes in a folder can be seen by inotify alone.
fn is_local(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| !REMOTE.contains(&fs.f_type))
}

struct Loop {
    inotify: Option<Inotify>,
    targets: Vec<Watched>,
}

struct Watched {
    target: Target,
    /// `None` while the folder is polled.
    descriptor: Option<WatchDescriptor>,
}

impl Loop {
    fn new(targets: Vec<Target>, how: Watch) -> Self {
        let inotify = if how == Watch::Auto {
            Inotify::init()
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        if let (Err(e), Watch::Auto) = (&inotify, how) {
            tracing::warn!(error = %e, "inotify cannot be used; stores are polled");
        }
        let targets =
            targets.into_iter().map(|target| Watched { target, descriptor: None }).collect();
        let mut watch = Self { inotify: inotify.ok(), targets };
        watch.watch_all();
        watch
    }

    /// Adds a watch for every folder that has none and can have one.
    fn watch_all(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mask = WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        for watched in self.targets.iter_mut().filter(|w| w.descriptor.is_none()) {
            let dir = &watched.target.dir;
            if !is_local(dir) {
                continue;
            }
            match inotify.watches().add(dir, mask) {
                Ok(descriptor) => watched.descriptor = Some(descriptor),
                Err(e) => tracing::warn!(dir = %dir.display(), error = %e, "folder is polled"),
            }
        }
    }

    fn run(mut self, stop: &OwnedFd) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let polls = self.targets.iter().any(|w| w.descriptor.is_none());
            match self.sleep(stop, polls) {
                Wake::Stop => return,
                Wake::Events => self.events(&mut buffer),
                Wake::Timer => {
                    let polled: Vec<bool> =
                        self.targets.iter().map(|w| w.descriptor.is_none()).collect();
                    // A folder that was replaced, or appeared, can be watched again: before it is
                    // looked at, so that nothing happens in between unseen.
                    self.watch_all();
                    for (watched, _) in self.targets.iter().zip(polled).filter(|(_, p)| *p) {
                        watched.tell();
                    }
                }
            }
        }
    }

    fn sleep(&self, stop: &OwnedFd, polls: bool) -> Wake {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if let Some(inotify) = &self.inotify {
            fds.push(PollFd::from_borrowed_fd(inotify.as_fd(), PollFlags::IN));
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: POLL.as_nanos() as i64 };
        match poll(&mut fds, polls.then_some(&limit)) {
            Ok(0) => Wake::Timer,
            Ok(_) if fds.first().is_some_and(|f| !f.revents().is_empty()) => Wake::Stop,
            Ok(_) | Err(rustix::io::Errno::INTR) => Wake::Events,
            Err(e) => {
                tracing::error!(error = %e, "waiting for changes failed; stores are polled");
                std::thread::sleep(POLL);
                Wake::Events
            }
        }
    }

    fn events(&mut self, buffer: &mut [u8]) {
        let Some(inotify) = &mut self.inotify else { return };
        let mut touched = vec![false; self.targets.len()];
        loop {
            let events = match inotify.read_events(buffer) {
                Ok(events) => events,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => {
                    tracing::warn!(error = %e, "inotify failed");
                    break;
                }
            };
            for event in events {
                let lost = event.mask.contains(EventMask::Q_OVERFLOW);
                let own = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                for (watched, touched) in self.targets.iter_mut().zip(&mut touched) {
                    if !lost && watched.descriptor.as_ref() != Some(&event.wd) {
                        continue;
                    }
                    let gone = event.mask.intersects(own);
                    let concerns = |name: &OsStr| (watched.target.concerns)(name);
                    *touched |= lost || gone || event.name.is_none_or(concerns);
                    if gone {
                        watched.descriptor = None;
                    }
                }
            }
        }
        for (watched, touched) in self.targets.iter().zip(touched) {
            if touched {
                watched.tell();
            }
        }
    }
}

impl Watched {
    /// Says that something changed. A panic of whoever hears it must not end the watching.
    fn tell(&self) {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&self.target.changed));
        if told.is_err() {
            tracing::error!(dir = %self.target.dir.display(), "taking in a change panicked");
        }
    }
}

enum Wake {
    Stop,
    Events,
    Timer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn watch(dir: &Path, how: Watch) -> (Watcher, Receiver<()>) {
        let (tx, rx) = channel();
        let target = Target {
            dir: dir.to_owned(),
            concerns: Box::new(|name| name == "a"),
            changed: Box::new(move || {
                let _ = tx.send(());
            }),
        };
        (Watcher::start(vec![target], how).unwrap(), rx)
    }

    #[test]
    fn changes_of_names_that_matter_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (_watcher, rx) = watch(dir.path(), Watch::Auto);
        std::fs::write(dir.path().join("b"), "x").unwrap();
        assert!(rx.recv_timeout(Duration::from_millis(300)).is_err());
        std::fs::write(dir.path().join("a"), "x").unwrap();
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn a_folder_that_is_replaced_is_watched_again() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("d");
        std::fs::create_dir(&dir).unwrap();
        let (_watcher, rx) = watch(&dir, Watch::Auto);
        std::fs::remove_dir(&dir).unwrap();
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("a"), "x").unwrap();
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn polling_looks_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (watcher, rx) = watch(dir.path(), Watch::Poll);
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
        drop(watcher);
    }
}
