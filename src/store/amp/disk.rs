//! Touching files below an agent's folder, one path component after the other.
//!
//! Folders of other agents belong to others, who can put a symlink anywhere in them. Every step
//! from the agent's folder down is taken relative to the folder before it and refuses symlinks, so
//! no message can make msgfs read or write outside (contract, section 7).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::store::fs::{Stamp, describe};

/// Mode of folders made here (formats/amp.md, section 2: nothing breaks when they are private).
const DIR_MODE: u32 = 0o700;
/// Mode of files made here.
const FILE_MODE: u32 = 0o600;

/// What became of [`place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// The file is new.
    New,
    /// A file of this name was there and is untouched.
    Exists,
}

/// Whether a text can be used as one path component: nothing that leads elsewhere.
pub(super) fn is_component(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !matches!(name, "." | "..")
        && !name.bytes().any(|b| b == b'/' || b == 0)
}

fn component(name: &str) -> io::Result<&str> {
    if is_component(name) {
        return Ok(name);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a file"))
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
pub(super) fn open_dir(base: &Path, parts: &[&str]) -> io::Result<OwnedFd> {
    let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
    let mut dir = rustix::fs::open(base, flags, Mode::empty())?;
    for part in parts {
        dir = rustix::fs::openat(&dir, component(part)?, DIR_FLAGS, Mode::empty())?;
    }
    Ok(dir)
}

/// The same, making what is missing below `base` with mode 0700.
///
/// # Errors
/// As [`open_dir`].
pub(super) fn make_dir(base: &Path, parts: &[&str]) -> io::Result<OwnedFd> {
    let mut dir = open_dir(base, &[])?;
    for part in parts {
        let part = component(part)?;
        match rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(DIR_MODE)) {
            // The name of a new folder must be as durable as what is put into it.
            Ok(()) => rustix::fs::fsync(&dir)?,
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        dir = rustix::fs::openat(&dir, part, DIR_FLAGS, Mode::empty())?;
    }
    Ok(dir)
}

/// Whether a file could be put into the folder `base/parts…`, by [`make_dir`] and [`place`], as far as
/// can be told without making anything.
///
/// # Errors
/// What stands in the way, and where.
pub(super) fn can_make(base: &Path, parts: &[&str]) -> Result<(), (PathBuf, io::Error)> {
    let mut path = base.to_owned();
    let mut dir = open_dir(base, &[]).map_err(|e| (path.clone(), e))?;
    for part in parts {
        let next = path.join(part);
        let opened = component(part)
            .and_then(|part| Ok(rustix::fs::openat(&dir, part, DIR_FLAGS, Mode::empty())?));
        match opened {
            Ok(opened) => (dir, path) = (opened, next),
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) => return Err((next, e)),
        }
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(&dir, ".", access, AtFlags::empty()).map_err(|e| (path, e.into()))
}

/// Opens a regular file in a folder for reading.
///
/// # Errors
/// As the system gave it; `InvalidInput` with a text for anything but a regular file.
pub(super) fn open_file(dir: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, component(name)?, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("is {}, not a file", describe(kind))))
}

/// Opens the regular file `base/parts…`.
///
/// # Errors
/// As [`open_dir`] and [`open_file`].
pub(super) fn open_below(base: &Path, parts: &[&str]) -> io::Result<File> {
    let (name, folders) = parts.split_last().ok_or(io::ErrorKind::NotFound)?;
    open_file(&open_dir(base, folders)?, name)
}

/// What lies under a name in a folder, without following it.
///
/// # Errors
/// As the system gave it.
pub(super) fn look(dir: &OwnedFd, name: &str) -> io::Result<(FileType, Stamp)> {
    let stat = rustix::fs::statat(dir, component(name)?, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((FileType::from_raw_mode(stat.st_mode), stamp_of(&stat)))
}

/// A file type in words.
pub(super) fn describe_type(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "a file",
    }
}

// The widths of these members differ between machines.
#[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
fn stamp_of(stat: &rustix::fs::Stat) -> Stamp {
    let nanos = |secs: i64, ns: i128| i128::from(secs) * 1_000_000_000 + ns;
    Stamp {
        dev: stat.st_dev as u64,
        ino: stat.st_ino as u64,
        size: stat.st_size as u64,
        mtime: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i128),
        ctime: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i128),
    }
}

/// Reads an open file whole, with the stamp it had before; longer than `limit` it is cut there.
///
/// # Errors
/// As the system gave it.
pub(super) fn read_whole(file: &File, limit: usize) -> io::Result<(Stamp, Vec<u8>)> {
    let stamp = stamp_of(&rustix::fs::fstat(file)?);
    let mut bytes = Vec::with_capacity((stamp.size as usize).min(limit) + 1);
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok((stamp, bytes))
}

/// The name of the file in which a file is prepared: hidden from the clients, who list `*.json`.
fn temp_name(name: &str) -> String {
    format!(".{}.tmp", name.strip_suffix(".json").unwrap_or(name))
}

/// Writes a new file under a temporary name in the same folder, syncs it, and gives it its name only
/// if nothing has it.
///
/// # Errors
/// As the system gave it; then no file and no temporary file remains.
pub(super) fn place(
    dir: &OwnedFd,
    name: &str,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<Placed> {
    let name = component(name)?;
    if rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(Placed::Exists);
    }
    let temp = temp_name(name);
    let done = write_temp(dir, &temp, FILE_MODE, write).and_then(|()| give_name(dir, &temp, name));
    if !matches!(done, Ok(Placed::New)) {
        let _ = rustix::fs::unlinkat(dir, &temp, AtFlags::empty());
    }
    done
}

fn write_temp(
    dir: &OwnedFd,
    temp: &str,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(dir, temp, flags, Mode::from_raw_mode(mode));
    let fd = match open() {
        // Left by a process that died; the id in the name is ours.
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, temp, AtFlags::empty())?;
            open()?
        }
        other => other?,
    };
    let mut file = File::from(fd);
    write(&mut file)?;
    file.sync_all()
}

fn give_name(dir: &OwnedFd, temp: &str, name: &str) -> io::Result<Placed> {
    match rustix::fs::renameat_with(dir, temp, dir, name, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Placed::New),
        Err(Errno::EXIST) => Ok(Placed::Exists),
        // Some file systems have no such rename; a hard link never replaces either.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            match rustix::fs::linkat(dir, temp, dir, name, AtFlags::empty()) {
                Ok(()) => {
                    rustix::fs::unlinkat(dir, temp, AtFlags::empty())?;
                    Ok(Placed::New)
                }
                Err(Errno::EXIST) => Ok(Placed::Exists),
                Err(e) => Err(e.into()),
            }
        }
        Err(e) => Err(e.into()),
    }
}

/// Replaces a file by one with these contents, if it is still the one with this stamp; `false` if
/// somebody changed it meanwhile. Keeps its permission bits and its time of modification; that it
/// is another file now shows in inode number and time of change.
///
/// # Errors
/// As the system gave it; then the old file is untouched.
pub(super) fn replace(
    dir: &OwnedFd,
    name: &str,
    contents: &[u8],
    seen: &Stamp,
) -> io::Result<bool> {
    let name = component(name)?;
    let old = open_file(dir, name)?;
    let meta = old.metadata()?;
    let temp = temp_name(name);
    let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777;
    let written = write_temp(dir, &temp, mode, |file| {
        // The umask took some; the mark must not change who can read the message.
        file.set_permissions(meta.permissions())?;
        file.write_all(contents)?;
        file.set_modified(meta.modified()?)
    });
    let swapped = written.and_then(|()| {
        // As late as possible: what was written in between would be lost.
        if look(dir, name)?.1 != *seen {
            return Ok(false);
        }
        rustix::fs::renameat(dir, &temp, dir, name)?;
        Ok(true)
    });
    if !matches!(swapped, Ok(true)) {
        let _ = rustix::fs::unlinkat(dir, &temp, AtFlags::empty());
    }
    swapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn new_files_are_private_and_never_replace() {
        let base = tempfile::tempdir().unwrap();
        let dir = make_dir(base.path(), &["a", "b"]).unwrap();
        assert_eq!(place(&dir, "x.json", |f| f.write_all(b"one")).unwrap(), Placed::New);
        assert_eq!(place(&dir, "x.json", |f| f.write_all(b"two")).unwrap(), Placed::Exists);
        let path = base.path().join("a/b/x.json");
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(base.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let dir = open_dir(base.path(), &[]).unwrap();
        assert!(place(&dir, "x.json", |_| Err(io::ErrorKind::StorageFull.into())).is_err());
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn symlinks_on_the_way_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("f"), "secret").unwrap();
        symlink(elsewhere.path(), base.path().join("link")).unwrap();
        symlink(elsewhere.path().join("f"), base.path().join("f")).unwrap();
        assert!(open_dir(base.path(), &["link"]).is_err());
        assert!(make_dir(base.path(), &["link", "new"]).is_err());
        assert!(open_below(base.path(), &["link", "f"]).is_err());
        assert!(open_below(base.path(), &["f"]).is_err());
        assert!(open_below(base.path(), &["..", "f"]).is_err());
        assert!(!elsewhere.path().join("new").exists());
    }

    #[test]
    fn what_cannot_be_made_is_told_before() {
        let base = tempfile::tempdir().unwrap();
        let can = |parts: &[&str]| can_make(base.path(), parts).map_err(|(path, _)| path);
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
        assert_eq!(can_make(&base.path().join("no"), &[]).unwrap_err().0, base.path().join("no"));
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_fifo_is_never_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let fifo = base.path().join("p.json");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let error = open_below(base.path(), &["p.json"]).unwrap_err();
        assert!(error.to_string().contains("a FIFO"), "{error}");
    }

    #[test]
    fn a_file_is_replaced_only_as_it_was_seen() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("x.json");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let dir = open_dir(base.path(), &[]).unwrap();
        let (stamp, _) = read_whole(&open_file(&dir, "x.json").unwrap(), 100).unwrap();
        assert!(replace(&dir, "x.json", b"new", &stamp).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let now = look(&dir, "x.json").unwrap().1;
        assert_eq!(now.mtime, stamp.mtime);
        // The clock of a file system ticks slowly; the number differs in any case.
        assert!(now.ino != stamp.ino && now.ctime >= stamp.ctime);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!replace(&dir, "x.json", b"lost", &stamp).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }
}
