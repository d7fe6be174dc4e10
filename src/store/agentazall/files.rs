//! Putting files and folders in place so that nobody ever sees half of one, and nothing is
//! overwritten: a hidden temporary name whose end is not `.txt` (the reference sends and lists whatever
//! ends so), `fsync`, and a rename that refuses to replace.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::place::is_real_dir;
use crate::store::StoreError;
use crate::store::fs::{self, Stamp};

/// How every temporary name ends.
pub(super) const TEMP_END: &str = ".msgfs-tmp";

/// A name beside `target` that nobody else has.
fn temp_beside(target: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}.{n}{TEMP_END}", std::process::id()));
    target.with_file_name(name)
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::from_raw_mode(mode));
    match open() {
        // Left by a process with our number that died.
        Err(rustix::io::Errno::EXIST) => {
            std::fs::remove_file(path)?;
            Ok(open()?.into())
        }
        other => Ok(other?.into()),
    }
}

/// Makes a new file of what `fill` writes, on disk when it returns.
///
/// # Errors
/// `AlreadyExists` if the name is taken, else as the system gave it; then nothing is there.
pub(super) fn put_new(
    target: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let temp = temp_beside(target);
    let made = create(&temp, mode).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()
    });
    let placed = made.and_then(|()| move_new(&temp, target));
    if placed.is_err() {
        let _ = std::fs::remove_file(&temp);
    }
    placed
}

/// As [`put_new`], for bytes.
///
/// # Errors
/// As [`put_new`].
pub(super) fn put_bytes(target: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    put_new(target, mode, |file| file.write_all(bytes))
}

/// As [`put_new`], for a copy of a file.
///
/// # Errors
/// As [`put_new`], or as the source gave it.
pub(super) fn put_copy(target: &Path, source: &Path) -> io::Result<()> {
    put_new(target, 0o666, |file| io::copy(&mut fs::open_regular(source)?, file).map(drop))
}

/// Renames a file or folder to a name that nothing may have.
///
/// # Errors
/// `AlreadyExists` if something has it, else as the system gave it.
pub(super) fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => move_without_flag(from, to),
        other => Ok(other?),
    }
}

/// The same on file systems that cannot refuse to replace: a second name for a file is exclusive, and
/// a folder replaces nothing but an empty folder.
fn move_without_flag(from: &Path, to: &Path) -> io::Result<()> {
    if is_real_dir(from) {
        if std::fs::symlink_metadata(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        return std::fs::rename(from, to);
    }
    rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
    std::fs::remove_file(from)
}

/// Makes a new folder of copies of these files, on disk when it returns.
///
/// # Errors
/// As [`put_new`].
pub(super) fn put_folder(target: &Path, files: &[(String, PathBuf)]) -> io::Result<()> {
    let temp = temp_beside(target);
    let made = fill_folder(&temp, files).and_then(|()| move_new(&temp, target));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&temp);
    }
    made
}

fn fill_folder(folder: &Path, files: &[(String, PathBuf)]) -> io::Result<()> {
    if is_real_dir(folder) {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir(folder)?;
    for (name, source) in files {
        put_copy(&folder.join(name), source)?;
    }
    fs::sync_dir(folder)
}

/// Makes the folders of `path` below `base` that are missing; one that is a symbolic link is an error.
/// Answers with the folders that got a new entry.
///
/// # Errors
/// As the system gave it, with the folder that is the matter.
pub(super) fn make_dirs(base: &Path, path: &[&str]) -> Result<Vec<PathBuf>, StoreError> {
    let mut at = base.to_owned();
    let mut changed = Vec::new();
    for name in path {
        let above = at.clone();
        at.push(name);
        match std::fs::create_dir(&at) {
            Ok(()) => changed.push(above),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(StoreError::io(&at, e)),
        }
        require_dir(&at)?;
    }
    Ok(changed)
}

/// Fails if there is something else than a folder at a path, or a symbolic link to one.
///
/// # Errors
/// What is there instead; what stands in the way of looking is left to whoever uses the folder.
pub(super) fn require_dir(path: &Path) -> Result<(), StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_dir() => {
            let why = format!("is {}, not a folder", fs::describe(meta.file_type()));
            Err(StoreError::io(path, io::Error::new(io::ErrorKind::NotADirectory, why)))
        }
        _ => Ok(()),
    }
}

/// Replaces the bytes of a file that still is as `stamp` says, keeping owner, mode and modification time:
/// a mark does not make a message look as if it had just been written. Answers with the new file.
///
/// # Errors
/// `None` as the answer if it changed meanwhile; else as the system gave it.
pub(super) fn replace(path: &Path, stamp: &Stamp, bytes: &[u8]) -> io::Result<Option<Stamp>> {
    let was = std::fs::symlink_metadata(path)?;
    let temp = temp_beside(path);
    let written = create(&temp, 0o600).and_then(|mut file| {
        file.write_all(bytes)?;
        let (uid, gid) =
            (rustix::fs::Uid::from_raw(was.uid()), rustix::fs::Gid::from_raw(was.gid()));
        // Only root can give a file away; for everybody else it is his already.
        let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
        file.set_permissions(std::fs::Permissions::from_mode(was.mode() & 0o7777))?;
        file.set_modified(was.modified()?)?;
        file.sync_all()?;
        Ok(file)
    });
    let result = written.and_then(|file| {
        if Stamp::from(&std::fs::symlink_metadata(path)?) != *stamp {
            return Ok(None);
        }
        std::fs::rename(&temp, path)?;
        // The rename itself changes the time of change.
        Stamp::of(&file).map(Some)
    });
    if !matches!(result, Ok(Some(_))) {
        let _ = std::fs::remove_file(&temp);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_replaced_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.txt");
        put_bytes(&target, 0o666, b"one").unwrap();
        let e = put_bytes(&target, 0o666, b"two").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&target).unwrap(), b"one");
        assert!(put_new(&dir.path().join("b"), 0o666, |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(names(dir.path()), ["a.txt"]);
        assert!(!temp_beside(&target).to_string_lossy().ends_with(".txt"));
    }

    #[test]
    fn the_way_without_the_flag_refuses_too() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        assert!(move_without_flag(&a, &b).is_err());
        assert_eq!(std::fs::read(&b).unwrap(), b"b");
        move_without_flag(&a, &dir.path().join("c")).unwrap();
        assert_eq!(names(dir.path()), ["b", "c"]);
        std::fs::create_dir(&a).unwrap();
        assert!(move_without_flag(&a, &b).is_err());
    }

    #[test]
    fn folders_come_whole() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("s");
        std::fs::write(&source, "text").unwrap();
        let target = dir.path().join("t");
        let missing = [("x".to_owned(), source.clone()), ("y".to_owned(), dir.path().join("no"))];
        assert!(put_folder(&target, &missing).is_err());
        assert_eq!(names(dir.path()), ["s"]);
        put_folder(&target, &missing[..1]).unwrap();
        assert_eq!(std::fs::read(target.join("x")).unwrap(), b"text");
        assert!(put_folder(&target, &missing[..1]).is_err());
    }

    #[test]
    fn links_are_not_followed_when_folders_are_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("day")).unwrap();
        assert!(make_dirs(dir.path(), &["day", "inbox"]).is_err());
        assert!(names(&dir.path().join("real")).is_empty());
        let changed = make_dirs(dir.path(), &["other", "inbox"]).unwrap();
        assert_eq!(changed, [dir.path().to_owned(), dir.path().join("other")]);
    }

    #[test]
    fn a_file_is_replaced_only_as_it_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let stamp = Stamp::from(&std::fs::symlink_metadata(&path).unwrap());
        let other = Stamp { size: 9, ..stamp };
        assert_eq!(replace(&path, &other, b"new").unwrap(), None);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let now = replace(&path, &stamp, b"new").unwrap().unwrap();
        assert_eq!(now, Stamp::from(&std::fs::symlink_metadata(&path).unwrap()));
        assert_eq!(now.mtime, stamp.mtime);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["a.txt"]);
    }
}
