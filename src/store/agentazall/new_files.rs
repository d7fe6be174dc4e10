//! New files and folders, made under hidden temporary names. These do not end in `.txt`, because the reference sends
//! and lists every file that does.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::layout::is_real_dir;
use crate::store::StoreError;
use crate::store::atomic_file::{self, FileSlot};
use crate::store::fs;

/// Makes a new file of these bytes. It is on disk when this returns.
///
/// # Errors
/// `AlreadyExists` if the name is taken, else the error of the system; then nothing is there.
pub(super) fn create_file(target: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    FileSlot::new(CWD, target).create_with(mode, |file| file.write_all(bytes))
}

/// Makes a new file that is a copy of another. It is on disk when this returns.
///
/// # Errors
/// The same as [`create_file`], or the error of the source.
pub(super) fn copy_file(target: &Path, source: &Path) -> io::Result<()> {
    FileSlot::new(CWD, target)
        .create_with(0o666, |file| io::copy(&mut fs::open_regular(source)?, file).map(drop))
}

/// Makes a new folder of copies of these files. It is on disk when this returns.
///
/// # Errors
/// The same as [`create_file`].
pub(super) fn create_folder_of_copies(
    target: &Path,
    files: &[(String, PathBuf)],
) -> io::Result<()> {
    let temp = atomic_file::temp_path(target);
    let made = fill_folder(&temp, files).and_then(|()| atomic_file::rename_new(CWD, &temp, target));
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
        copy_file(&folder.join(name), source)?;
    }
    fs::sync_dir(folder)
}

/// Makes the missing folders of `path` below `base`. Each is on disk before the next is made. A symbolic link in the
/// path is an error.
///
/// # Errors
/// The error of the system, with the folder that caused it.
pub(super) fn make_dirs_below(base: &Path, path: &[&str]) -> Result<(), StoreError> {
    let mut at = base.to_owned();
    for name in path {
        let above = at.clone();
        at.push(name);
        match std::fs::create_dir(&at).and_then(|()| fs::sync_dir(&above)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io(&at, e));
            }
            _ => {}
        }
        require_dir(&at)?;
    }
    Ok(())
}

/// Fails if there is something else than a folder at a path, or a symbolic link to one.
///
/// # Errors
/// The type of the file that is there instead. If the path cannot be examined, the user of the folder meets the error.
pub(super) fn require_dir(path: &Path) -> Result<(), StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_dir() => {
            let why = format!("is {}, not a folder", fs::describe_file_type(&meta));
            Err(StoreError::io(path, io::Error::new(io::ErrorKind::NotADirectory, why)))
        }
        _ => Ok(()),
    }
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
    fn no_temporary_name_is_taken_for_a_message() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.txt");
        assert!(!atomic_file::temp_path(&target).to_string_lossy().ends_with(".txt"));
        create_file(&target, 0o666, b"one").unwrap();
        let e = create_file(&target, 0o666, b"two").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn folders_come_whole() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("s");
        std::fs::write(&source, "text").unwrap();
        let target = dir.path().join("t");
        let missing = [("x".to_owned(), source.clone()), ("y".to_owned(), dir.path().join("no"))];
        assert!(create_folder_of_copies(&target, &missing).is_err());
        assert_eq!(names(dir.path()), ["s"]);
        create_folder_of_copies(&target, &missing[..1]).unwrap();
        assert_eq!(std::fs::read(target.join("x")).unwrap(), b"text");
        assert!(create_folder_of_copies(&target, &missing[..1]).is_err());
    }

    #[test]
    fn links_are_not_followed_when_folders_are_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("day")).unwrap();
        assert!(make_dirs_below(dir.path(), &["day", "inbox"]).is_err());
        assert!(names(&dir.path().join("real")).is_empty());
        make_dirs_below(dir.path(), &["other", "inbox"]).unwrap();
        assert!(dir.path().join("other/inbox").is_dir());
    }
}
