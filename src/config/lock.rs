//! The lock by which one process at a time acts for one me.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::presence::MountedAddress;
use crate::model::{Remedy, display_path};
use crate::store::mounts::{self, MountEntry};
use crate::store::{fs, process};

/// The time for which a held lock is tried again, because an ending process may still hold it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The time for which a mount waits for a command, which ends by itself.
const COMMANDS: Duration = Duration::from_secs(30);

/// The time for which a process that has ended is waited for, because its threads may wait for a slow disk.
const LAST_THREADS: Duration = Duration::from_secs(20);

/// The time for which a mount that begins or ends is waited for: the holder names a mount point and no device.
const ENDING: Duration = Duration::from_secs(3);

/// The most bytes read from a lock file, which has a few dozen bytes and a path.
const MAX_CONTENT: usize = 64 << 10;

/// The holder of a state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// The process; `None` if it is not written, as in the moment between locking and writing.
    pub pid: Option<u32>,
    /// The mount point, if it has mounted.
    pub mountpoint: Option<PathBuf>,
    /// The number of the mounted device, as in [`MountEntry::device`]. `None` before and after the mount, and in the
    /// lock of an earlier version.
    pub device: Option<String>,
    /// The addresses that it acts for in stores that show who is mounted.
    #[serde(default)]
    pub addresses: Vec<MountedAddress>,
}

impl LockHolder {
    /// Returns true if this mount is the holder's. The path alone does not tell: it may have the mount of somebody
    /// else, after the holder's was detached and in another container.
    pub fn serves(&self, mount: &MountEntry) -> bool {
        self.mountpoint.as_ref() == Some(&mount.mountpoint)
            && self.device.as_ref() == Some(&mount.device)
    }

    /// Returns the holder's mount, if it is the topmost one at its path.
    pub fn find_mount<'a>(&self, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
        mounts::find_mount(mounts, self.mountpoint.as_deref()?).filter(|mount| self.serves(mount))
    }

    /// Returns true if this mount may be the holder's. A msgfs of an earlier version notes no device, so only the path
    /// tells. A holder that [serves](Self::serves) the mount comes first.
    pub fn may_serve(&self, mount: &MountEntry) -> bool {
        let is_placed = self.mountpoint.as_ref() == Some(&mount.mountpoint);
        self.serves(mount) || self.device.is_none() && is_placed && mount.is_ours()
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("another process")?,
        }
        match &self.mountpoint {
            Some(dir) => write!(f, ", mounted at {}", display_path(dir)),
            None => Ok(()),
        }
    }
}

/// A reason why the state folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("msgfs is already running for this name: {0}; look with --read-only, or end it first{remedy}", remedy = remedy(.0))]
    Held(LockHolder),
    /// The operating system refused the lock file.
    #[error("{}: the lock cannot be taken: {}", display_path(.0), .1)]
    Io(PathBuf, #[source] io::Error),
}

fn remedy(holder: &LockHolder) -> String {
    let mounted = holder.mountpoint.clone().map(Remedy::Unmount);
    let remedy = mounted.or(holder.pid.map(Remedy::End));
    remedy.map(|remedy| format!(" with: {remedy}")).unwrap_or_default()
}

/// The right to act for a me. It lasts until it is dropped or the process ends, however it ends.
///
/// The right belongs to the open file, so a child made by `fork` shares it and keeps it when its parent ends.
/// Programs started by `exec` never get it. The file itself stays, because removing it would let two processes
/// lock two files of the same name.
#[derive(Debug)]
pub struct StateLock {
    file: File,
    path: PathBuf,
}

impl StateLock {
    /// Takes the lock of a state folder and writes the holder into it. Waits for a holder that is ending; a mount also
    /// waits for a command.
    ///
    /// # Errors
    /// Returns [`LockError::Held`] with the holder, or [`LockError::Io`].
    pub fn acquire(state: &Path, mountpoint: Option<&Path>) -> Result<Self, LockError> {
        Self::acquire_at(lock_file(state), mountpoint)
    }

    /// Takes the lock of the one process that carries for a state folder, even while a mount carries in its
    /// place.
    ///
    /// # Errors
    /// Returns the errors of [`StateLock::acquire`].
    pub fn acquire_to_carry(state: &Path) -> Result<Self, LockError> {
        Self::acquire_at(carry_lock_file(state), None)
    }

    fn acquire_at(path: PathBuf, mountpoint: Option<&Path>) -> Result<Self, LockError> {
        let io = |source| LockError::Io(path.clone(), source);
        let file = fs::open_read_write(&path, 0o600).map_err(io)?;
        let start = Instant::now();
        while !fs::lock_with_timeout(&file, PATIENCE).map_err(io)? {
            let holder = read_holder(&file);
            let ends = if holder.pid.is_some_and(process::has_ended) {
                LAST_THREADS
            } else if holder.mountpoint.is_none() {
                if mountpoint.is_some() { COMMANDS } else { Duration::ZERO }
            } else if holder.device.is_none() {
                ENDING
            } else {
                Duration::ZERO
            };
            if start.elapsed() > ends {
                return Err(LockError::Held(holder));
            }
        }
        let lock = Self { file, path };
        lock.write_holder(mountpoint, &[])?;
        Ok(lock)
    }

    /// Writes the holder again: after `fork`, and when the mount point or the stores are known.
    ///
    /// # Errors
    /// Returns [`LockError::Io`].
    pub fn write_holder(
        &self,
        mountpoint: Option<&Path>,
        addresses: &[MountedAddress],
    ) -> Result<(), LockError> {
        self.write(&LockHolder {
            pid: Some(std::process::id()),
            // A path that is not UTF-8 is only shown to people from here, never used.
            mountpoint: mountpoint.map(|dir| dir.to_string_lossy().into_owned().into()),
            device: None,
            addresses: addresses.to_vec(),
        })
    }

    /// Adds the device of the mount to the holder. `None` takes it away, when the mount ends: the next mount may get
    /// the same number.
    ///
    /// # Errors
    /// Returns [`LockError::Io`].
    pub fn write_device(&self, device: Option<&str>) -> Result<(), LockError> {
        let (pid, device) = (Some(std::process::id()), device.map(str::to_owned));
        self.write(&LockHolder { pid, device, ..read_holder(&self.file) })
    }

    /// Writes a holder over the one before.
    fn write(&self, holder: &LockHolder) -> Result<(), LockError> {
        let io = |source| LockError::Io(self.path.clone(), source);
        let text = serde_json::to_string(holder).map_err(|e| io(e.into()))?;
        let text = format!("{text}\n");
        // A reader never finds an empty file in between.
        self.file
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| self.file.set_len(text.len() as u64))
            .map_err(io)
    }
}

/// Returns the current holder of a state folder, or `None` if there is none. It disturbs nobody: an attempt to
/// lock at the same moment waits longer than this check takes.
pub fn find_lock_holder(state: &Path) -> Option<LockHolder> {
    find_file_holder(&lock_file(state))
}

/// Returns the holder of a lock file.
pub(super) fn find_file_holder(path: &Path) -> Option<LockHolder> {
    let file = fs::open_regular(path).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Some(read_holder(&file)),
        _ => None,
    }
}

/// Waits until nobody holds a state folder, however long that takes.
///
/// # Errors
/// Returns [`LockError::Io`].
pub fn wait_until_free(state: &Path) -> Result<(), LockError> {
    let path = lock_file(state);
    let wait = || {
        let file = fs::open_read_write(&path, 0o600)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockShared))?;
        Ok(())
    };
    wait().map_err(|source| LockError::Io(path.clone(), source))
}

/// Returns the path of the lock of a state folder.
pub(super) fn lock_file(state: &Path) -> PathBuf {
    state.join("lock")
}

/// Returns the lock of the one process that carries for a state folder.
pub(super) fn carry_lock_file(state: &Path) -> PathBuf {
    state.join("carry.lock")
}

/// Returns the holder in the file; empty if it is not written yet.
fn read_holder(file: &File) -> LockHolder {
    let text = fs::read_range(file, 0, MAX_CONTENT).ok();
    // The end of a longer holder may still follow (see `StateLock::write`).
    let first =
        |text: Vec<u8>| serde_json::Deserializer::from_slice(&text).into_iter().next()?.ok();
    text.and_then(first).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::mounts::parse_mounts;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, Stdio};

    /// A child that is killed even when the test panics.
    pub(in crate::config) struct Reaped(pub(in crate::config) Child);

    impl Drop for Reaped {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns true if nobody holds the lock, at the latest in a moment. A child that another test is just
    /// starting shares every descriptor between its `fork` and its `exec`.
    fn is_free(state: &Path) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if find_lock_holder(state).is_none() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn the_second_is_refused_and_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_lock_holder(dir.path()), None);
        let first = StateLock::acquire(dir.path(), Some(Path::new("/home/u/my mail"))).unwrap();
        let mode = std::fs::metadata(dir.path().join("lock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let start = Instant::now();
        StateLock::acquire(dir.path(), None).unwrap_err();
        assert!(start.elapsed() >= ENDING, "a mount that ends is waited for");
        first.write_device(Some("0:99")).unwrap();
        let error = StateLock::acquire(dir.path(), None).unwrap_err();
        let text = error.to_string();
        for part in [
            &format!("process {}", std::process::id()),
            "mounted at /home/u/my mail",
            "--read-only",
            "msgfs umount '/home/u/my mail'",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let seen = find_lock_holder(dir.path()).unwrap();
        assert_eq!(seen.pid, Some(std::process::id()));
        first.write_holder(None, &[]).unwrap();
        assert_eq!(find_lock_holder(dir.path()).unwrap().mountpoint, None);

        drop(first);
        assert!(is_free(dir.path()), "the file stays, the lock does not");
        StateLock::acquire(dir.path(), None).unwrap();
    }

    #[test]
    fn a_holder_is_known_by_the_device_of_its_mount() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::acquire(dir.path(), Some(Path::new("/m"))).unwrap();
        let mounts = parse_mounts(
            b"1 0 0:7 / /m rw - fuse.msgfs msgfs rw\n2 0 0:8 / /m rw - fuse.msgfs msgfs rw\n\
              3 0 0:8 / /bound rw - fuse.msgfs msgfs rw\n",
        );
        let served = || {
            let holder = find_lock_holder(dir.path()).unwrap();
            assert_eq!(holder.mountpoint.as_deref(), Some(Path::new("/m")));
            mounts.iter().map(|mount| holder.serves(mount)).collect::<Vec<_>>()
        };
        let may_serve = || {
            let holder = find_lock_holder(dir.path()).unwrap();
            mounts.iter().map(|mount| holder.may_serve(mount)).collect::<Vec<_>>()
        };
        assert_eq!(served(), [false, false, false], "it has not mounted yet");
        lock.write_device(Some("0:8")).unwrap();
        assert_eq!((served(), may_serve()), (vec![false, true, false], vec![false, true, false]));
        lock.write_device(None).unwrap();
        assert_eq!(served(), [false, false, false], "it mounts no more");
        // An earlier version wrote no device. The end of a longer holder does not confuse.
        std::fs::write(dir.path().join("lock"), "{\"pid\":1,\"mountpoint\":\"/m\"}\n:1}\n")
            .unwrap();
        assert_eq!((served(), may_serve()), (vec![false; 3], vec![true, true, false]));
    }

    #[test]
    fn a_holder_that_is_ending_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::acquire(dir.path(), None).unwrap();
        std::thread::scope(|s| {
            s.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(first);
            });
            StateLock::acquire(dir.path(), None).unwrap();
        });
    }

    #[test]
    fn looking_does_not_disturb() {
        let dir = tempfile::tempdir().unwrap();
        drop(StateLock::acquire(dir.path(), None).unwrap());
        std::thread::scope(|s| {
            let looks = s.spawn(|| {
                let end = Instant::now() + Duration::from_millis(200);
                while Instant::now() < end {
                    find_lock_holder(dir.path());
                }
            });
            while !looks.is_finished() {
                drop(StateLock::acquire(dir.path(), None).unwrap());
            }
        });
    }

    #[test]
    fn programs_started_meanwhile_do_not_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::acquire(dir.path(), None).unwrap();
        let flags = rustix::io::fcntl_getfd(&lock.file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let _child = Reaped(Command::new("sleep").arg("60").spawn().unwrap());
        drop(lock);
        assert!(is_free(dir.path()));
    }

    /// Holds the lock in the process that the next test kills; it is no test of its own.
    #[test]
    #[ignore = "run by killed_holders_let_go in a process of its own"]
    fn hold_until_killed() {
        let Some(dir) = std::env::var_os("MSGFS_TEST_LOCK") else { return };
        let _lock = StateLock::acquire(Path::new(&dir), Some(Path::new("/m"))).unwrap();
        eprintln!("held");
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn killed_holders_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Reaped(
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "config::lock::tests::hold_until_killed",
                    "--ignored",
                    "--nocapture",
                ])
                .env("MSGFS_TEST_LOCK", dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "held"));
        let expected = LockHolder {
            pid: Some(child.0.id()),
            mountpoint: Some("/m".into()),
            ..LockHolder::default()
        };
        assert_eq!(find_lock_holder(dir.path()), Some(expected.clone()));
        match StateLock::acquire(dir.path(), None).unwrap_err() {
            LockError::Held(held) => assert_eq!(held, expected),
            other @ LockError::Io(..) => panic!("{other}"),
        }
        child.0.kill().unwrap(); // SIGKILL
        child.0.wait().unwrap();
        assert!(is_free(dir.path()));
        StateLock::acquire(dir.path(), None).unwrap();
    }

    #[test]
    fn a_holder_that_has_ended_is_known_at_every_look() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::acquire(dir.path(), None).unwrap();
        // It has ended as soon as it is done, because nobody waits for it until the test ends.
        let ended = Reaped(Command::new("true").spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(10);
        while !process::has_ended(ended.0.id()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let path = lock_file(dir.path());
        std::fs::write(&path, format!(r#"{{"pid": {}}}"#, ended.0.id())).unwrap();
        let file = fs::open_regular(&path).unwrap();
        for _ in 0..2 {
            assert_eq!(read_holder(&file).pid, Some(ended.0.id()));
        }
        std::thread::scope(|s| {
            let waiting = s.spawn(|| StateLock::acquire(dir.path(), None));
            let end = Instant::now() + 3 * PATIENCE;
            while !waiting.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!waiting.is_finished(), "its last threads are waited for");
            drop(lock);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn trouble_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no");
        let error = StateLock::acquire(&missing, None).unwrap_err();
        assert!(error.to_string().contains("no/lock"), "{error}");
        assert_eq!(find_lock_holder(&missing), None);
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("lock")).unwrap();
        assert!(matches!(StateLock::acquire(dir.path(), None), Err(LockError::Io { .. })));
        assert_eq!(find_lock_holder(dir.path()), None);
    }

    #[test]
    fn what_a_holder_wrote_can_be_anything() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::acquire(dir.path(), None).unwrap();
        for text in ["", "{", "[1]", "\0\0", r#"{"pid": -1}"#] {
            std::fs::write(dir.path().join("lock"), text).unwrap();
            assert_eq!(find_lock_holder(dir.path()), Some(LockHolder::default()), "{text}");
        }
        drop(lock);
    }
}
