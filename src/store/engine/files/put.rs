//! Putting files into the folders of a store: nothing is replaced, every name is on disk when it is
//! there, and the next scan looks at it.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::format::Format;
use super::{Files, parts};
use crate::model::Timestamp;
use crate::store::place::{Slot, Staged, move_between};
use crate::store::{Store as _, StoreError, below, fs};

/// Mode of new files.
const FILE_MODE: u32 = 0o600;
/// Mode of new folders.
const DIR_MODE: u32 = 0o700;

/// An open folder of a store.
#[derive(Debug)]
pub struct Folder<'a, F: Format> {
    files: &'a Files<F>,
    dir: OwnedFd,
    path: PathBuf,
}

/// What became of putting a file in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there.
    Done,
    /// Something else has the name.
    Taken,
    /// The file that was to be put there is gone.
    Gone,
}

impl<F: Format> Files<F> {
    /// A folder by its path in the store.
    ///
    /// # Errors
    /// As [`below::open_dir`].
    pub fn folder(&self, path: &str) -> Result<Folder<'_, F>, StoreError> {
        self.opened(path, below::open_dir(&self.about.dir, &parts(path)))
    }

    /// The same, made if it is not there.
    ///
    /// # Errors
    /// As [`below::make_dir`].
    pub fn make_folder(&self, path: &str) -> Result<Folder<'_, F>, StoreError> {
        self.opened(path, below::make_dir(&self.about.dir, &parts(path), DIR_MODE))
    }

    fn opened(&self, path: &str, dir: io::Result<OwnedFd>) -> Result<Folder<'_, F>, StoreError> {
        let path = self.about.dir.join(path);
        let dir = dir.map_err(|e| StoreError::io(&path, e))?;
        Ok(Folder { files: self, dir, path })
    }
}

impl<F: Format> Folder<'_, F> {
    /// Where a name in it is.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn check<T>(&self, name: &str, done: io::Result<T>) -> Result<T, StoreError> {
        done.map_err(|e| StoreError::io(&self.at(name), e))
    }

    fn placed(&self, name: &str, done: io::Result<()>) -> Result<Put, StoreError> {
        match done {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Put::Taken),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Put::Gone),
            done => {
                self.check(name, done.and_then(|()| fs::sync_folder(&self.dir)))?;
                self.files.note(&self.at(name));
                Ok(Put::Done)
            }
        }
    }

    /// The names in it.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let names = self.check("", super::names(&self.dir))?;
        Ok(names.into_iter().filter_map(|(name, _)| name.ok()).collect())
    }

    /// What a file of this name holds, at most so many bytes; `None` if there is none.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let read = below::open_file(&self.dir, name).and_then(|f| below::read_whole(&f, limit));
        match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(self.check(name, read)?.1)),
        }
    }

    /// A new file with these bytes.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<Put, StoreError> {
        let slot = self.check(name, Slot::below(&self.dir, name))?;
        self.placed(name, slot.fill(FILE_MODE, |file| file.write_all(bytes)))
    }

    /// A new file with these bytes that gets its name in another folder.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn stage(&self, name: &str, bytes: &[u8]) -> Result<Staged<&OwnedFd>, StoreError> {
        let staged = Slot::below(&self.dir, name).and_then(|slot| slot.stage(FILE_MODE, bytes));
        self.check(name, staged.and_then(|file| fs::sync_folder(&self.dir).map(|()| file)))
    }

    /// Gives such a file its name here.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn publish(&self, name: &str, file: &Staged<&OwnedFd>) -> Result<Put, StoreError> {
        self.placed(name, file.publish(&self.dir))
    }

    /// Moves a file here from another folder.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn take(&self, from: &Self, name: &str) -> Result<Put, StoreError> {
        let path = Path::new(name);
        let moved = move_between((&from.dir, path), (&self.dir, path));
        let put = self.placed(name, moved.and_then(|()| fs::sync_folder(&from.dir)))?;
        // Whoever was faster: what was there is to be looked at.
        from.files.note(&from.at(name));
        self.files.note(&self.at(name));
        Ok(put)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => self.check(name, removed.map_err(Into::into)),
        }
    }

    /// When a file was changed, if it is there.
    pub fn modified(&self, name: &str) -> Option<Timestamp> {
        Some(below::look(&self.dir, name).ok()?.1.modified())
    }

    /// Whether a file of so many bytes could be put here now.
    ///
    /// # Errors
    /// What putting it would give.
    pub fn takes(&self, bytes: u64) -> Result<(), StoreError> {
        self.check("", below::can_write(&self.dir))?;
        fs::room_for(&self.path, bytes)
    }
}
