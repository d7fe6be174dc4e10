//! Mount points as the kernel sees them: which file system is mounted at a path, if it still answers, and its
//! unmounting.
//!
//! 1. The mount table (`/proc/self/mountinfo`) is the only source that can be read while a FUSE mount is dead
//!    or hangs. Nothing here touches a mount before the table identified it.
//! 2. A dead daemon leaves a mount on which everything fails with `ENOTCONN`. Only `statfs` shows this
//!    reliably: attributes may still come from the kernel's cache.
//! 3. A daemon that lives and does not answer would hang every process that asks, uninterruptibly. So a child
//!    process asks ([`probe`]), and the wait for it is bounded.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::store::mounts::MAX_LINKS;
pub use crate::store::mounts::{FSTYPE, MountEntry, SOURCE, find_mount, parse_mounts, read_mounts};
use crate::store::probe::{self, PathProbe};

/// The state of a path as a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    /// No mount has this path as its root.
    NotMounted,
    /// A msgfs that answers.
    Alive,
    /// A msgfs whose daemon is gone ("Transport endpoint is not connected").
    Stale,
    /// A msgfs whose daemon exists and has not answered in time. It is starting, stopped or stuck.
    Hung,
    /// Another file system, of this type.
    Foreign(String),
}

/// The treatment of processes that use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// The unmount is refused if a process has a file open or its working folder there.
    IfIdle,
    /// The mount leaves the tree now and ends when the last process closes it.
    Lazy,
}

/// Reason why a mount is still there.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process has a file open or its working folder there.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// The process is not root, and the helper that unmounts for users is missing.
    #[error(
        "unmounting {0} as an ordinary user needs fusermount3; install it with \
         `apt-get install fuse3`, or run `umount {0}` as root"
    )]
    NoHelper(PathBuf),
    /// The helper refused, in its own words.
    #[error("cannot unmount {path}: {said}")]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The output of `fusermount3`.
        said: String,
    },
    /// The system refused.
    #[error("cannot unmount {path}: {source}")]
    Io {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns the absolute path without symbolic links. It does not ask a mount at the path itself: `canonicalize`
/// would ask it, and fail or hang if it is dead.
///
/// The path need not exist as long as its parent does.
///
/// # Errors
/// If a parent does not exist, cannot be searched, or links form a loop.
pub fn resolve_mountpoint(path: &Path) -> io::Result<PathBuf> {
    resolve_among(path, &read_mounts()?)
}

fn resolve_among(path: &Path, mounts: &[MountEntry]) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..MAX_LINKS {
        if find_mount(mounts, &path).is_some() {
            return Ok(path);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return fs::canonicalize(&path);
        };
        let here = resolve_parent(parent, mounts)?.join(name);
        if find_mount(mounts, &here).is_some() {
            return Ok(here);
        }
        match fs::read_link(&here) {
            Ok(target) => path = here.parent().unwrap_or(Path::new("/")).join(target),
            // EINVAL: exists and is no link.
            Err(_) => return Ok(here),
        }
    }
    Err(Errno::LOOP.into())
}

/// Resolves a parent folder. Parents are real folders or healthy mounts; a dead mount among them is the
/// caller's error.
fn resolve_parent(parent: &Path, mounts: &[MountEntry]) -> io::Result<PathBuf> {
    probe::require_response(parent)?;
    if find_mount(mounts, parent).is_some_and(MountEntry::is_ours) {
        return Ok(parent.to_owned());
    }
    fs::canonicalize(parent)
}

/// Returns the mount that contains a folder: the deepest of those above it.
pub fn enclosing_mount<'a>(mounts: &'a [MountEntry], folder: &Path) -> Option<&'a MountEntry> {
    let above = mounts.iter().filter(|mount| contains(&mount.mountpoint, folder));
    above.max_by_key(|mount| mount.mountpoint.components().count())
}

/// Asks one of our mounts for the name of its agent. Returns `None` if it belongs to another user, or does not
/// answer in time.
pub fn read_identity(path: &Path) -> Option<String> {
    probe::require_response(path).ok()?;
    let is_mine = fs::metadata(path).is_ok_and(|m| m.uid() == rustix::process::geteuid().as_raw());
    let text = if is_mine { fs::read_to_string(path.join("status.txt")).ok() } else { None };
    Some(text?.lines().next()?.strip_prefix("me: ")?.to_owned())
}

/// Returns the state of a path; never hangs. Symbolic links are resolved first. A path that does not exist is
/// [`MountState::NotMounted`].
///
/// # Errors
/// If the mount table cannot be read, or a file system above the path does not answer.
pub fn mount_state(path: &Path) -> io::Result<MountState> {
    let mounts = read_mounts()?;
    let path = match resolve_among(path, &mounts) {
        Ok(path) => path,
        Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(e),
        Err(_) => return Ok(MountState::NotMounted),
    };
    Ok(match find_mount(&mounts, &path) {
        None => MountState::NotMounted,
        Some(mount) if !mount.is_ours() => MountState::Foreign(mount.fstype.clone()),
        Some(_) => probe_daemon(&path),
    })
}

/// Returns the states of our mounts. All are asked at the same time.
pub fn mount_states(mounts: &[&MountEntry]) -> Vec<MountState> {
    let put = |mount: &&MountEntry| PathProbe::start(&mount.mountpoint);
    let questions: Vec<io::Result<PathProbe>> = mounts.iter().map(put).collect();
    let deadline = Instant::now() + probe::WITHIN;
    questions.into_iter().map(|question| state_from_answer(question, deadline)).collect()
}

/// Asks the daemon behind a mount for a sign of life.
fn probe_daemon(path: &Path) -> MountState {
    state_from_answer(PathProbe::start(path), Instant::now() + probe::WITHIN)
}

fn state_from_answer(question: io::Result<PathProbe>, deadline: Instant) -> MountState {
    match question.map(|question| question.wait_answer(deadline)) {
        Ok(Some(Err(Errno::NOTCONN | Errno::CONNABORTED))) => MountState::Stale,
        // Any other answer, even a refusal, comes from a living connection.
        Ok(Some(_)) => MountState::Alive,
        Ok(None) | Err(_) => MountState::Hung,
    }
}

/// Unmounts a path: directly if this process may, through `fusermount3` otherwise.
///
/// # Errors
/// [`UnmountError`], whose text names the remedy.
pub fn unmount_path(path: &Path, how: UnmountMode) -> Result<(), UnmountError> {
    let flags = match how {
        UnmountMode::IfIdle => UnmountFlags::NOFOLLOW,
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_as_user(path, how),
        Err(Errno::BUSY) => Err(UnmountError::Busy(path.to_owned())),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted(path.to_owned())),
        Err(e) => Err(UnmountError::Io { path: path.to_owned(), source: e.into() }),
    }
}

/// Unmounts, lazily if the mount is in use. Returns true if it was detached lazily.
///
/// # Errors
/// Those of [`unmount_path`], but never [`UnmountError::Busy`].
pub fn unmount_or_detach(path: &Path) -> Result<bool, UnmountError> {
    match unmount_path(path, UnmountMode::IfIdle) {
        Ok(()) => Ok(false),
        Err(UnmountError::Busy(_)) => unmount_path(path, UnmountMode::Lazy).map(|()| true),
        Err(e) => Err(e),
    }
}

fn unmount_as_user(path: &Path, how: UnmountMode) -> Result<(), UnmountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if how == UnmountMode::Lazy {
        command.arg("-z");
    }
    // The helper's words are compared below, so they must not be translated.
    command.arg("--").arg(path).env("LC_ALL", "C").stdin(Stdio::null());
    let done = command.output().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => UnmountError::NoHelper(path.to_owned()),
        _ => UnmountError::Io { path: path.to_owned(), source },
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if said.contains("resource busy") {
        Err(UnmountError::Busy(path.to_owned()))
    } else {
        Err(UnmountError::Refused { path: path.to_owned(), said })
    }
}

/// Returns true if `inner` is `outer` or lies below it. Both must be resolved.
pub fn contains(outer: &Path, inner: &Path) -> bool {
    inner.starts_with(outer)
}

/// Returns the device number of the mount at a path, as in [`MountEntry::device`].
pub fn mounted_device(path: &Path) -> Option<String> {
    find_mount(&read_mounts().ok()?, path).map(|m| m.device.clone())
}

/// Returns every msgfs in a mount table, topmost per path.
pub fn list_our_mounts(mounts: &[MountEntry]) -> Vec<&MountEntry> {
    let on_top = |m: &MountEntry| find_mount(mounts, &m.mountpoint).is_some_and(|top| top == m);
    mounts.iter().filter(|m| m.is_ours() && on_top(m)).collect()
}

/// Returns the path as a person would type it in a shell: quoted where the shell would split it.
pub fn shell_word(path: &OsStr) -> String {
    crate::model::quote_shell_word(&path.to_string_lossy())
}

#[cfg(test)]
mod tests;
