//! New files in the folders of a store. Nothing is replaced, every name is on disk when it is there, and the next scan
//! examines it.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::format::FileFormat;
use super::{FileStore, path_parts};
use crate::model::Timestamp;
use crate::store::atomic_file::{FileSlot, StagedFile, rename_new_between};
use crate::store::{Store as _, StoreError, confined, fs};

/// Mode of new files.
const FILE_MODE: u32 = 0o600;
/// Mode of new folders.
const DIR_MODE: u32 = 0o700;

/// An open folder of a store.
#[derive(Debug)]
pub struct OpenFolder<'a, F: FileFormat> {
    files: &'a FileStore<F>,
    dir: OwnedFd,
    path: PathBuf,
}

/// The outcome of putting a file in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceOutcome {
    /// Success: the file is in place.
    Done,
    /// A conflict: something else has the name.
    NameTaken,
    /// A loss: the file that was to be put in place is gone.
    Gone,
}

impl<F: FileFormat> FileStore<F> {
    /// Opens a folder by its path in the store.
    ///
    /// # Errors
    /// As [`confined::open_dir`].
    pub fn open_folder(&self, path: &str) -> Result<OpenFolder<'_, F>, StoreError> {
        self.open_folder_of(&self.properties.dir, path)
    }

    /// Opens a folder, and creates it if it is not there.
    ///
    /// # Errors
    /// As [`confined::make_dir`].
    pub fn make_folder(&self, path: &str) -> Result<OpenFolder<'_, F>, StoreError> {
        let dir = &self.properties.dir;
        self.wrap_folder(dir.join(path), confined::make_dir(dir, &path_parts(path), DIR_MODE))
    }

    /// Opens a folder by its path in a mailbox that lies elsewhere.
    ///
    /// # Errors
    /// As [`confined::open_dir`].
    pub fn open_folder_of(
        &self,
        mailbox: &Path,
        path: &str,
    ) -> Result<OpenFolder<'_, F>, StoreError> {
        self.wrap_folder(mailbox.join(path), confined::open_dir(mailbox, &path_parts(path)))
    }

    fn wrap_folder(
        &self,
        path: PathBuf,
        dir: io::Result<OwnedFd>,
    ) -> Result<OpenFolder<'_, F>, StoreError> {
        let dir = dir.map_err(|e| StoreError::io(&path, e))?;
        Ok(OpenFolder { files: self, dir, path })
    }
}

impl<F: FileFormat> OpenFolder<'_, F> {
    /// Returns the path of a name in it.
    pub fn child_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn map_error<T>(&self, name: &str, done: io::Result<T>) -> Result<T, StoreError> {
        done.map_err(|e| StoreError::io(&self.child_path(name), e))
    }

    fn finish_placement(
        &self,
        name: &str,
        done: io::Result<()>,
    ) -> Result<PlaceOutcome, StoreError> {
        match done {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(PlaceOutcome::NameTaken),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(PlaceOutcome::Gone),
            done => {
                self.map_error(name, done.and_then(|()| fs::sync_open_dir(&self.dir)))?;
                self.files.note_change(&self.child_path(name));
                Ok(PlaceOutcome::Done)
            }
        }
    }

    /// Returns the names in it.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn list_names(&self) -> Result<Vec<String>, StoreError> {
        let names = self.map_error("", super::list_names(&self.dir))?;
        Ok(names.into_iter().filter_map(|(name, _)| name.ok()).collect())
    }

    /// Returns the content of a file of this name, at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn read_file(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let read =
            confined::open_file(&self.dir, name).and_then(|f| confined::read_whole(&f, limit));
        match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(self.map_error(name, read)?.1)),
        }
    }

    /// Creates a file with these bytes.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn create_file(&self, name: &str, bytes: &[u8]) -> Result<PlaceOutcome, StoreError> {
        let slot = self.map_error(name, FileSlot::for_component(&self.dir, name))?;
        self.finish_placement(name, slot.create_with(FILE_MODE, |file| file.write_all(bytes)))
    }

    /// Creates a file with these bytes that gets its name in another folder.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn stage_file(&self, name: &str, bytes: &[u8]) -> Result<StagedFile<&OwnedFd>, StoreError> {
        let staged =
            FileSlot::for_component(&self.dir, name).and_then(|slot| slot.stage(FILE_MODE, bytes));
        self.map_error(name, staged.and_then(|file| fs::sync_open_dir(&self.dir).map(|()| file)))
    }

    /// Makes the names of files that are here survive loss of power.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn sync_names(&self) -> Result<(), StoreError> {
        self.map_error("", fs::sync_open_dir(&self.dir))
    }

    /// Gives a staged file its name in this folder.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn publish_file(
        &self,
        name: &str,
        file: &StagedFile<&OwnedFd>,
    ) -> Result<PlaceOutcome, StoreError> {
        self.finish_placement(name, file.publish(&self.dir))
    }

    /// Moves a file here from another folder, under its name there.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn move_from(&self, from: &Self, name: &str) -> Result<PlaceOutcome, StoreError> {
        self.move_as((from, name), name)
    }

    /// Moves a file here from another folder, or this one, under a new name.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn move_as(
        &self,
        (from, old): (&Self, &str),
        name: &str,
    ) -> Result<PlaceOutcome, StoreError> {
        let moved = rename_new_between((&from.dir, Path::new(old)), (&self.dir, Path::new(name)));
        let put = self.finish_placement(name, moved.and_then(|()| fs::sync_open_dir(&from.dir)))?;
        // Another process may have been faster, so both paths are examined.
        from.files.note_change(&from.child_path(old));
        self.files.note_change(&self.child_path(name));
        Ok(put)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove_file(&self, name: &str) -> Result<(), StoreError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => self.map_error(name, removed.map_err(Into::into)),
        }
    }

    /// Returns the time of the last change of a file, if it is there.
    pub fn modified_time(&self, name: &str) -> Option<Timestamp> {
        Some(confined::stat(&self.dir, name).ok()?.1.modified())
    }

    /// Fails unless a file of so many bytes could be put here now.
    ///
    /// # Errors
    /// The errors that putting it would give.
    pub fn check_can_create(&self, bytes: u64) -> Result<(), StoreError> {
        self.map_error("", confined::check_writable(&self.dir))?;
        fs::check_free_space(&self.path, bytes)
    }
}
