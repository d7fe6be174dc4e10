//! Access to files below a folder, one path component after the other.
//!
//! Files below a store's folder belong to others, who can put a symlink anywhere in it. Every step from the store's
//! folder down is taken relative to the folder before it and refuses symlinks. So no message can make msgfs read or
//! write outside (docs/SEMANTICS.md, S83).

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::fs::{Stamp, open_at};
use crate::model::name_encoding;

/// Returns true if a text can be used as one path component that leads nowhere else.
pub fn is_component(name: &str) -> bool {
    is_component_bytes(name.as_bytes())
}

fn is_component_bytes(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|b| *b == b'/' || *b == 0)
}

/// Returns a text as one path component.
///
/// # Errors
/// `InvalidInput` if it cannot be one.
pub fn require_component(name: &str) -> io::Result<&str> {
    if is_component(name) { Ok(name) } else { Err(component_error()) }
}

fn component_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a file")
}

/// Returns the bytes of a [spelled](name_encoding) name as one path component.
///
/// # Errors
/// As [`require_component`].
fn unspell_component(name: &str) -> io::Result<Cow<'_, [u8]>> {
    let bytes = name_encoding::decode_name(name);
    if is_component_bytes(&bytes) { Ok(bytes) } else { Err(component_error()) }
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Opens the folder `base/parts…`. `base` itself may be reached through symlinks.
///
/// # Errors
/// As the system gave it; `ELOOP` or `ENOTDIR` if one of the parts is a symlink.
pub fn open_dir(base: &Path, parts: &[&str]) -> io::Result<OwnedFd> {
    let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
    let mut dir = retry_on_intr(|| rustix::fs::open(base, flags, Mode::empty()))?;
    for part in parts {
        dir = open_subdir(&dir, part)?;
    }
    Ok(dir)
}

/// Opens a folder in a folder.
///
/// # Errors
/// As [`open_dir`].
pub fn open_subdir(dir: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    let part = require_component(part)?;
    Ok(retry_on_intr(|| rustix::fs::openat(dir, part, DIR_FLAGS, Mode::empty()))?)
}

/// Opens the folder `base/parts…`, and creates the missing ones below `base` with this mode less the umask.
///
/// # Errors
/// As [`open_dir`].
pub fn make_dir(base: &Path, parts: &[&str], mode: u32) -> io::Result<OwnedFd> {
    make_dir_with(base, parts, mode, |_| Ok(()))
}

/// Does the same as [`make_dir`], and hands each folder that it creates to `prepare`.
///
/// # Errors
/// As [`open_dir`] and `prepare`.
pub fn make_dir_with(
    base: &Path,
    parts: &[&str],
    mode: u32,
    prepare: impl Fn(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let mut dir = open_dir(base, &[])?;
    for part in parts {
        let part = require_component(part)?;
        let made = retry_on_intr(|| rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(mode)));
        match made {
            // The name of a new folder must be as durable as the files in it.
            Ok(()) => super::fs::fsync(&dir)?,
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        dir = open_subdir(&dir, part)?;
        if made.is_ok() {
            prepare(&dir)?;
        }
    }
    Ok(dir)
}

/// Fails unless [`make_dir`] and [`FileSlot`](super::atomic_file::FileSlot) could put a file into the folder
/// `base/parts…`, as far as is known without creating anything.
///
/// # Errors
/// The obstacle, and its path.
pub fn check_can_create(base: &Path, parts: &[&str]) -> Result<(), (PathBuf, io::Error)> {
    let mut path = base.to_owned();
    let mut dir = open_dir(base, &[]).map_err(|e| (path.clone(), e))?;
    for part in parts {
        let next = path.join(part);
        match open_subdir(&dir, part) {
            Ok(opened) => (dir, path) = (opened, next),
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) => return Err((next, e)),
        }
    }
    check_writable(&dir).map_err(|e| (path, e))
}

/// Fails unless new names can be put into an open folder.
///
/// # Errors
/// As the system gave it.
pub fn check_writable(dir: &OwnedFd) -> io::Result<()> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(rustix::fs::accessat(dir, ".", access, AtFlags::empty())?)
}

/// Opens a regular file in a folder for reading. Its name may be [spelled](name_encoding).
///
/// # Errors
/// As the system gave it; `InvalidInput` with a text for anything but a regular file.
pub fn open_file(dir: &OwnedFd, name: &str) -> io::Result<File> {
    open_at(dir, Path::new(OsStr::from_bytes(&unspell_component(name)?)), OFlags::RDONLY, 0)
}

/// Opens a regular file in a folder for reading, as [`open_file`]. If the file is mine, its time of access stays.
///
/// # Errors
/// As there.
pub fn open_file_without_trace(dir: &OwnedFd, name: &str) -> io::Result<File> {
    let name = unspell_component(name)?;
    let path = Path::new(OsStr::from_bytes(&name));
    match open_at(dir, path, OFlags::RDONLY | OFlags::NOATIME, 0) {
        Err(e) if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            open_at(dir, path, OFlags::RDONLY, 0)
        }
        opened => opened,
    }
}

/// Opens the regular file `base/parts…`.
///
/// # Errors
/// As [`open_dir`] and [`open_file`].
pub fn open_path(base: &Path, parts: &[&str]) -> io::Result<File> {
    let (name, folders) = parts.split_last().ok_or(io::ErrorKind::NotFound)?;
    if folders.is_empty() {
        // There is no step between that could be a symlink.
        return open_at(rustix::fs::CWD, &base.join(require_component(name)?), OFlags::RDONLY, 0);
    }
    open_file(&open_dir(base, folders)?, name)
}

/// Opens the regular file `base/parts…`, as [`open_path`]. If the file is mine, its time of access stays.
///
/// # Errors
/// As there.
pub fn open_path_without_trace(base: &Path, parts: &[&str]) -> io::Result<File> {
    let (name, folders) = parts.split_last().ok_or(io::ErrorKind::NotFound)?;
    open_file_without_trace(&open_dir(base, folders)?, name)
}

/// Returns the type and stamp of a name in a folder, without following it. The name may be [spelled](name_encoding).
///
/// # Errors
/// As the system gave it.
pub fn stat(dir: &OwnedFd, name: &str) -> io::Result<(FileType, Stamp)> {
    let stat = rustix::fs::statat(dir, &*unspell_component(name)?, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((FileType::from_raw_mode(stat.st_mode), Stamp::from(&stat)))
}

/// Returns a file type in words.
pub fn describe_type(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "a file",
    }
}

/// Reads an open file whole, with the stamp that it had before. A file longer than `limit` is cut there.
///
/// # Errors
/// As the system gave it.
pub fn read_whole(file: &File, limit: usize) -> io::Result<(Stamp, Vec<u8>)> {
    let mut bytes = Vec::new();
    let stamp = read_whole_into(file, limit, &mut bytes)?;
    Ok((stamp, bytes))
}

/// Reads an open file like [`read_whole`], and appends its bytes to the buffer. An error leaves the buffer unchanged.
///
/// # Errors
/// As the system gave it.
pub fn read_whole_into(file: &File, limit: usize, bytes: &mut Vec<u8>) -> io::Result<Stamp> {
    let (stamp, before) = (Stamp::from(&rustix::fs::fstat(file)?), bytes.len());
    bytes.reserve((stamp.size as usize).min(limit) + 1);
    let read = file.take(limit as u64).read_to_end(bytes);
    read.inspect_err(|_| bytes.truncate(before))?;
    Ok(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn symlinks_on_the_way_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("f"), "secret").unwrap();
        symlink(elsewhere.path(), base.path().join("link")).unwrap();
        symlink(elsewhere.path().join("f"), base.path().join("f")).unwrap();
        assert!(open_dir(base.path(), &["link"]).is_err());
        assert!(make_dir(base.path(), &["link", "new"], 0o700).is_err());
        assert!(open_path(base.path(), &["link", "f"]).is_err());
        assert!(open_path(base.path(), &["f"]).is_err());
        assert!(open_path(base.path(), &["..", "f"]).is_err());
        assert!(!elsewhere.path().join("new").exists());
    }

    #[test]
    fn what_cannot_be_made_is_told_before() {
        let base = tempfile::tempdir().unwrap();
        let can = |parts: &[&str]| check_can_create(base.path(), parts).map_err(|(path, _)| path);
        assert_eq!(can(&["messages", "inbox", "x"]), Ok(()));
        std::fs::create_dir_all(base.path().join("messages/inbox")).unwrap();
        assert_eq!(can(&["messages", "inbox", "x"]), Ok(()));
        std::fs::write(base.path().join("messages/inbox/x"), "").unwrap();
        assert_eq!(can(&["messages", "inbox", "x"]), Err(base.path().join("messages/inbox/x")));
        symlink("nowhere", base.path().join("messages/sent")).unwrap();
        assert_eq!(can(&["messages", "sent", "x"]), Err(base.path().join("messages/sent")));
        assert_eq!(can(&["messages", ".."]), Err(base.path().join("messages/..")));
        let inbox = base.path().join("messages/inbox");
        std::fs::set_permissions(&inbox, std::fs::Permissions::from_mode(0o500)).unwrap();
        if !rustix::process::geteuid().is_root() {
            assert_eq!(can(&["messages", "inbox", "y"]), Err(inbox.clone()));
        }
        std::fs::set_permissions(&inbox, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(
            check_can_create(&base.path().join("no"), &[]).unwrap_err().0,
            base.path().join("no")
        );
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_fifo_is_never_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let fifo = base.path().join("p.json");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let error = open_path(base.path(), &["p.json"]).unwrap_err();
        assert!(error.to_string().contains("a FIFO"), "{error}");
    }
}
