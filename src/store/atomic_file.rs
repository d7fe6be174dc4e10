//! Atomic placement of files. Nobody ever sees a part of a file, and nothing is overwritten unseen: a temporary name
//! in the same folder, `fsync`, and a rename.
//!
//! [`sweep_temp_files`] removes files that a killed msgfs left under such names. The same happens in each folder
//! before the first file is put there.

mod temp;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use super::confined;
use super::fs::{self, Stamp};
pub use temp::{TEMP_END, sweep_temp_files, temp_path};

/// A name that a file is to get, and the temporary one beside it under which it is written.
///
/// Both are relative to an open folder, which no symlink can then replace. With [`CWD`] they are paths.
#[derive(Debug)]
pub struct FileSlot<D> {
    /// The folder.
    pub dir: D,
    /// The name that the file gets.
    pub name: PathBuf,
    /// The name while it is written.
    temp: PathBuf,
}

impl<D: AsFd> FileSlot<D> {
    /// Returns a slot for a file of this name.
    pub fn new(dir: D, name: impl Into<PathBuf>) -> Self {
        let name = name.into();
        let temp = name.with_file_name(temp::temp_name(name.file_name().unwrap_or_default()));
        Self { dir, name, temp }
    }

    /// Returns a slot for a name that must be one component.
    ///
    /// # Errors
    /// As [`confined::require_component`].
    pub fn for_component(dir: D, name: &str) -> io::Result<Self> {
        Ok(Self::new(dir, confined::require_component(name)?))
    }

    /// Creates a new file from the bytes that `fill` writes, with `mode` less the umask. It is on disk when this
    /// returns.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken, else as the system gave it. Then nothing new is there.
    pub fn create_with(
        &self,
        mode: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        self.write_temp(mode, fill)
            .and_then(|_| rename_new(self.dir.as_fd(), &self.temp, &self.name))
            .inspect_err(|_| self.remove_temp())
    }

    /// Gives the name to a file with these bytes, whatever had it before.
    ///
    /// # Errors
    /// As the system gave it. The old file is then untouched and no temporary file remains.
    pub fn overwrite(&self, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.overwrite_with(mode, |file| file.write_all(bytes))
    }

    /// Gives the name to a file with the bytes that `fill` writes.
    ///
    /// # Errors
    /// As [`FileSlot::overwrite`].
    pub fn overwrite_with(
        &self,
        mode: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let placed = self.write_temp(mode, fill).and_then(|_| self.rename_temp());
        placed.inspect_err(|_| self.remove_temp())
    }

    /// Replaces the bytes of a file that still has the stamp `seen`, keeping owner, mode and time of modification. So
    /// a mark does not make a message look newly written. Returns the new file's stamp, `None` if somebody changed the
    /// file meanwhile.
    ///
    /// # Errors
    /// As the system gave it. Then the old file is untouched.
    pub fn replace_if_unchanged(&self, seen: &Stamp, bytes: &[u8]) -> io::Result<Option<Stamp>> {
        let keep_time = |file: &File, was: &_| Ok(rustix::fs::futimens(file, &mtime_only(was))?);
        self.replace_with(seen, bytes, keep_time)
    }

    /// Replaces the bytes of a file as [`FileSlot::replace_if_unchanged`], with a new time of modification. So others
    /// see that it changed.
    ///
    /// # Errors
    /// As [`FileSlot::replace_if_unchanged`].
    pub fn update_if_unchanged(&self, seen: &Stamp, bytes: &[u8]) -> io::Result<Option<Stamp>> {
        self.replace_with(seen, bytes, |_, _| Ok(()))
    }

    fn replace_with(
        &self,
        seen: &Stamp,
        bytes: &[u8],
        set_time: impl FnOnce(&File, &rustix::fs::Stat) -> io::Result<()>,
    ) -> io::Result<Option<Stamp>> {
        let swapped = self.try_replace(seen, bytes, set_time);
        if !matches!(swapped, Ok(Some(_))) {
            self.remove_temp();
        }
        swapped
    }

    fn try_replace(
        &self,
        seen: &Stamp,
        bytes: &[u8],
        set_time: impl FnOnce(&File, &rustix::fs::Stat) -> io::Result<()>,
    ) -> io::Result<Option<Stamp>> {
        let was = self.stat_target()?;
        let file = self.write_temp(0o600, |file| {
            let (uid, gid) =
                (rustix::fs::Uid::from_raw(was.st_uid), rustix::fs::Gid::from_raw(was.st_gid));
            // Only root can give a file away; anybody else owns it already.
            let _ = rustix::fs::fchown(&*file, Some(uid), Some(gid));
            // The mode is not set by `open`, where the umask would remove bits: the same users must be able to read
            // it.
            rustix::fs::fchmod(&*file, Mode::from_raw_mode(was.st_mode & 0o7777))?;
            file.write_all(bytes)?;
            set_time(file, &was)
        })?;
        // This check is as late as possible: bytes that are written in between would be lost.
        if Stamp::from(&self.stat_target()?) != *seen {
            return Ok(None);
        }
        self.rename_temp()?;
        // The rename itself changes the time of change.
        Stamp::from_file(&file).map(Some)
    }

    fn stat_target(&self) -> io::Result<rustix::fs::Stat> {
        Ok(rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn write_temp(
        &self,
        mode: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        temp::sweep_folder_once(self.dir.as_fd(), &self.temp);
        let mode = Mode::from_raw_mode(mode);
        let open = || rustix::fs::openat(&self.dir, &self.temp, flags, mode);
        let mut file = File::from(retry_on_intr(open)?);
        fill(&mut file)?;
        file.sync_all()?;
        Ok(file)
    }

    /// Writes a new file that has no name yet. It is on disk when this returns.
    ///
    /// # Errors
    /// As the system gave it. Then nothing new is there.
    pub fn stage(self, mode: u32, bytes: &[u8]) -> io::Result<StagedFile<D>> {
        let staged = StagedFile(self);
        staged.0.write_temp(mode, |file| file.write_all(bytes))?;
        Ok(staged)
    }

    fn rename_temp(&self) -> io::Result<()> {
        let rename = || rustix::fs::renameat(&self.dir, &self.temp, &self.dir, &self.name);
        Ok(retry_on_intr(rename)?)
    }

    fn remove_temp(&self) {
        let _ = rustix::fs::unlinkat(&self.dir, &self.temp, AtFlags::empty());
    }
}

/// A file that was written and has no name yet. It is removed with this value, unless it got one.
#[derive(Debug)]
pub struct StagedFile<D: AsFd>(FileSlot<D>);

impl<D: AsFd> StagedFile<D> {
    /// Gives it its name in another folder of the same file system.
    ///
    /// # Errors
    /// As [`rename_new_between`].
    pub fn publish(&self, into: impl AsFd) -> io::Result<()> {
        let FileSlot { dir, name, temp } = &self.0;
        rename_new_between((dir, temp), (into, name))
    }
}

impl<D: AsFd> Drop for StagedFile<D> {
    fn drop(&mut self) {
        self.0.remove_temp();
    }
}

/// Returns the time of modification of a file, in the form in which it is set on another.
// The widths of these members differ between machines.
#[allow(clippy::unnecessary_cast)]
fn mtime_only(stat: &rustix::fs::Stat) -> rustix::fs::Timestamps {
    rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: rustix::fs::Timespec {
            tv_sec: stat.st_mtime as i64,
            tv_nsec: stat.st_mtime_nsec as _,
        },
    }
}

/// Renames a file or folder to a name that nothing may have.
///
/// # Errors
/// `AlreadyExists` if something has it, else as the system gave it.
pub fn rename_new(dir: impl AsFd, from: &Path, to: &Path) -> io::Result<()> {
    rename_new_between((&dir, from), (&dir, to))
}

/// Renames a file or folder into another folder, to a name that nothing may have.
///
/// # Errors
/// As [`rename_new`].
pub fn rename_new_between(
    (from_dir, from): (impl AsFd, &Path),
    (to_dir, to): (impl AsFd, &Path),
) -> io::Result<()> {
    let (from_dir, to_dir) = (from_dir.as_fd(), to_dir.as_fd());
    let rename = || rustix::fs::renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE);
    match retry_on_intr(rename) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rename_new_fallback((from_dir, from), (to_dir, to))
        }
        other => Ok(other?),
    }
}

/// Does the same on file systems that cannot refuse to replace. A second name for a file is exclusive, and a folder
/// replaces nothing but an empty folder.
fn rename_new_fallback(
    (from_dir, from): (impl AsFd, &Path),
    (to_dir, to): (impl AsFd, &Path),
) -> io::Result<()> {
    let look = |dir: BorrowedFd<'_>, path| rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW);
    let was = look(from_dir.as_fd(), from)?;
    if FileType::from_raw_mode(was.st_mode) == FileType::Directory {
        if look(to_dir.as_fd(), to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        return Ok(rustix::fs::renameat(from_dir, from, to_dir, to)?);
    }
    rustix::fs::linkat(&from_dir, from, to_dir, to, AtFlags::empty())?;
    Ok(rustix::fs::unlinkat(from_dir, from, AtFlags::empty())?)
}

/// Replaces a file by one with these contents. It is on disk, with its name, when this returns.
///
/// # Errors
/// As [`FileSlot::overwrite`].
pub fn write_atomic(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    write_atomic_with(path, mode, |file| file.write_all(contents))
}

/// Replaces a file by one with the bytes that `fill` writes.
///
/// # Errors
/// As [`FileSlot::overwrite`].
pub fn write_atomic_with(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    FileSlot::new(CWD, path).overwrite_with(mode, fill)?;
    path.parent().map_or(Ok(()), fs::sync_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns a slot by its path, and one by its name in an open folder.
    fn slots(dir: &Path, name: &str) -> [FileSlot<std::os::fd::OwnedFd>; 2] {
        let open = |path: &Path| rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
        let slot = |dir, base: &Path| FileSlot::new(dir, base.join(name));
        [slot(open(dir), Path::new("")), slot(open(Path::new("/")), dir)]
    }

    #[test]
    fn nothing_is_replaced_and_nothing_is_left_behind() {
        for way in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let slot = &slots(dir.path(), "a.txt")[way];
            slot.create_with(0o600, |f| f.write_all(b"one")).unwrap();
            let e = slot.create_with(0o600, |f| f.write_all(b"two")).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
            let path = dir.path().join("a.txt");
            assert_eq!(std::fs::read(&path).unwrap(), b"one");
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let other = &slots(dir.path(), "b")[way];
            assert!(other.create_with(0o666, |_| Err(io::ErrorKind::StorageFull.into())).is_err());
            assert_eq!(names(dir.path()), ["a.txt"]);
            slot.overwrite(0o600, b"three").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"three");
            assert_eq!(names(dir.path()), ["a.txt"]);
        }
    }

    #[test]
    fn the_way_without_the_flag_refuses_too() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        assert!(rename_new_fallback((CWD, &a), (CWD, &b)).is_err());
        assert_eq!(std::fs::read(&b).unwrap(), b"b");
        rename_new_fallback((CWD, &a), (CWD, &dir.path().join("c"))).unwrap();
        assert_eq!(names(dir.path()), ["b", "c"]);
        std::fs::create_dir(&a).unwrap();
        assert!(rename_new_fallback((CWD, &a), (CWD, &b)).is_err());
    }

    #[test]
    fn what_is_staged_is_named_once_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [tmp, new] = ["tmp", "new"].map(|name| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            rustix::fs::open(dir.path().join(name), OFlags::PATH, Mode::empty()).unwrap()
        });
        let stage =
            |text: &[u8]| FileSlot::for_component(&tmp, "a").unwrap().stage(0o600, text).unwrap();
        let (one, two) = (stage(b"one"), stage(b"two"));
        assert_eq!(
            (names(&dir.path().join("tmp")).len(), names(&dir.path().join("new")).len()),
            (2, 0)
        );
        one.publish(&new).unwrap();
        assert_eq!(two.publish(&new).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop((one, two));
        assert!(names(&dir.path().join("tmp")).is_empty());
        assert_eq!(std::fs::read(dir.path().join("new/a")).unwrap(), b"one");
    }

    #[test]
    fn a_file_is_replaced_only_as_it_was_seen() {
        for way in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.txt");
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o646)).unwrap();
            let stamp = Stamp::from(&std::fs::symlink_metadata(&path).unwrap());
            let other = Stamp { size: 9, ..stamp };
            let slot = &slots(dir.path(), "a.txt")[way];
            assert_eq!(slot.replace_if_unchanged(&other, b"new").unwrap(), None);
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            let now = slot.replace_if_unchanged(&stamp, b"new").unwrap().unwrap();
            assert_eq!(now, Stamp::from(&std::fs::symlink_metadata(&path).unwrap()));
            assert_eq!(now.mtime, stamp.mtime);
            // The clock of a file system ticks slowly; the number differs in any case.
            assert!(now.ino != stamp.ino && now.ctime >= stamp.ctime);
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o646);
            assert_eq!(slot.replace_if_unchanged(&stamp, b"lost").unwrap(), None);
            assert_eq!(slot.update_if_unchanged(&stamp, b"lost").unwrap(), None);
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
            let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
            File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
            let stamp = Stamp::from(&std::fs::symlink_metadata(&path).unwrap());
            let now = slot.update_if_unchanged(&stamp, b"newer").unwrap().unwrap();
            assert!(now.mtime > stamp.mtime);
            assert_eq!(std::fs::read(&path).unwrap(), b"newer");
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o646);
            assert_eq!(names(dir.path()), ["a.txt"]);
        }
    }
}
