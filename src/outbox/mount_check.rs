//! A check for paths that lead into a mount of msgfs, without asking the mount.
//!
//! A file of a mount cannot be read while the mount takes a message: the caller that waits for the file is one of the
//! threads that would have to answer. Two mounts wait for each other the same way. So a path is followed one name at a
//! time, as the kernel follows it, and the kernel's own tables name the mount of each step. Nothing is looked up in a
//! mount of msgfs, and nothing there is opened.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::store::mounts::{self, MAX_LINKS, MountEntry};

/// The flags for opening the next name without following a link.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The kind of file system at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MountType {
    Msgfs,
    /// A proc file system. Some of its links are not paths: they lead to what a process has open, whatever their text
    /// is.
    Proc,
    Other,
}

/// The mounts of this process, by the numbers that the kernel gives them.
struct MountTypes(HashMap<u64, MountType>);

impl MountTypes {
    fn read() -> io::Result<Self> {
        let mounted = |mount: &MountEntry| match mount.fstype.as_str() {
            _ if mount.is_ours() => MountType::Msgfs,
            "proc" => MountType::Proc,
            _ => MountType::Other,
        };
        Ok(Self(mounts::read_mounts()?.iter().map(|mount| (mount.id, mounted(mount))).collect()))
    }

    /// Returns the kind of file system on which this is open. The kernel answers this by itself.
    fn mount_type_of(&self, fd: &OwnedFd) -> io::Result<MountType> {
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let known = id.and_then(|id| self.0.get(&id.trim().parse().ok()?).copied());
        known.ok_or_else(|| io::Error::other("it lies in a mount that this process does not see"))
    }
}

/// The entry of a name in a folder.
enum PathStep {
    /// A folder, or a file.
    To(OwnedFd),
    /// A symbolic link that leads to this path.
    Link(PathBuf),
}

/// Returns true if an absolute path leads into a mount of msgfs, through any links and mounts.
///
/// # Errors
/// If it leads nowhere or to a mount that this process cannot see; I/O errors.
pub(super) fn is_in_msgfs(path: &Path) -> io::Result<bool> {
    let mounts = MountTypes::read()?;
    let root = || openat(CWD, "/", STEP | OFlags::DIRECTORY, Mode::empty());
    let (mut at, mut rest, mut links) = (root()?, path_names(path), 0);
    loop {
        let mounted = mounts.mount_type_of(&at)?;
        if mounted == MountType::Msgfs {
            return Ok(true);
        }
        let Some(name) = rest.pop() else { return Ok(false) };
        match follow_step(&mounts, mounted, &at, &name)? {
            PathStep::To(next) => at = next,
            PathStep::Link(_) if links == MAX_LINKS => return Err(Errno::LOOP.into()),
            PathStep::Link(target) => {
                links += 1;
                if target.is_absolute() {
                    at = root()?;
                }
                rest.extend(path_names(&target));
            }
        }
    }
}

/// Returns the names of a path, the first one last.
fn path_names(path: &Path) -> Vec<OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(is_name).map(|part| part.as_os_str().to_owned()).collect()
}

/// Goes one step from a folder that is in no mount of msgfs.
fn follow_step(
    mounts: &MountTypes,
    mounted: MountType,
    at: &OwnedFd,
    name: &OsStr,
) -> io::Result<PathStep> {
    // The name is opened as a folder first, so that a mount made at the first use is made.
    match openat(at, name, STEP | OFlags::DIRECTORY, Mode::empty()) {
        Ok(folder) => return Ok(PathStep::To(folder)),
        Err(Errno::NOTDIR) => {}
        Err(e) => return Err(e.into()),
    }
    let found = openat(at, name, STEP, Mode::empty())?;
    // A single file of a mount may be mounted elsewhere.
    if mounts.mount_type_of(&found)? == MountType::Msgfs
        || FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::Symlink
    {
        return Ok(PathStep::To(found));
    }
    if mounted == MountType::Proc {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        return Ok(PathStep::To(openat(at, name, flags, Mode::empty())?));
    }
    let target = readlinkat(&found, "", Vec::new())?;
    Ok(PathStep::Link(PathBuf::from(OsString::from_vec(target.into_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_followed_as_the_kernel_follows_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/f"), "x").unwrap();
        symlink("d/../d/f", at("near")).unwrap();
        symlink(at("near"), at("far")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let here = std::fs::File::open(at("d")).unwrap();
        let open = PathBuf::from(format!("/proc/self/fd/{}/f", here.as_raw_fd()));
        for path in
            [at("d"), at("d/f"), at("near"), at("far"), "/".into(), "/proc/mounts".into(), open]
        {
            assert!(!is_in_msgfs(&path).unwrap(), "{path:?}");
        }
        for (name, errno) in [
            ("none", Errno::NOENT),
            ("d/f/x", Errno::NOTDIR),
            ("near/x", Errno::NOTDIR),
            ("loop", Errno::LOOP),
        ] {
            let e = is_in_msgfs(&at(name)).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(errno.raw_os_error()), "{name}");
        }
    }
}
