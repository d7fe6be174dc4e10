//! The file of the index: who writes it, and the signs that it is what was written.
//!
//! SQLite notices damage to the structure of its pages, and nothing else. So a file that is not being written has a
//! seal beside it: a second file with a checksum of all its bytes. The seal is removed before the first write and made
//! again behind the last one. A file that does not fit its seal is damaged. A file without a seal was being written
//! when its process died, and SQLite's journal repairs that. The stamp of the file tells when it was replaced, cut or
//! written by somebody else.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use twox_hash::XxHash3_64;

use super::error::TableError;
use crate::store::atomic_file;
use crate::store::fs::{Stamp, make_dirs, open_read_write, open_regular, read_small_file};

/// The number of bytes that are read at once for a checksum.
const CHUNK: usize = 1 << 20;
/// The mode of the files: only their owner reads them.
const MODE: u32 = 0o600;
/// The endings of the names of the files that SQLite opens.
const OPENED: [&str; 4] = ["", "-journal", "-wal", "-shm"];
/// The ending of the name of the lock.
const LOCK: &str = ".lock";
/// The largest seal, in bytes.
const SEAL_SIZE: u64 = 64;
/// The number of attempts to read a file that another process may begin to write.
const ATTEMPTS: usize = 3;

/// The state of a file beside its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealState {
    /// The bytes are those that were sealed.
    Whole,
    /// There is no seal.
    Unsealed,
    /// The bytes are others.
    Broken,
}

/// The path of the index, and of what lies beside it.
#[derive(Clone, Debug)]
pub(super) struct IndexFile {
    path: PathBuf,
}

/// The right to write the file, which one process has at a time. It lasts as long as its file is open.
#[derive(Debug)]
pub(super) struct WriterLock(File);

impl IndexFile {
    /// Makes the value for a path. It opens nothing.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the path of the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path with an ending added.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(self.path.as_os_str());
        name.push(ending);
        PathBuf::from(name)
    }

    /// Takes the right to write, unless another process has it.
    ///
    /// # Errors
    /// If the folder takes no file.
    pub fn try_lock(&self) -> io::Result<Option<WriterLock>> {
        if let Some(folder) = self.path.parent() {
            make_dirs(folder, 0o700)?;
        }
        let file = open_read_write(&self.beside(LOCK), MODE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(WriterLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns true if a lock is that of the file, and not of one that was removed with its folder.
    pub fn is_locked_by(&self, lock: &WriterLock) -> bool {
        let held = lock.0.metadata().map(|meta| Stamp::from(&meta));
        let named = Stamp::from_path(&self.beside(LOCK));
        matches!((held, named), (Ok(held), Ok(Some(named))) if held.is_same_file(&named))
    }

    /// Makes the file, if it is missing.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn create(&self) -> io::Result<()> {
        open_read_write(&self.path, MODE).map(drop)
    }

    /// Fails unless everything that SQLite opens is a file. The open of a pipe would never end.
    ///
    /// # Errors
    /// [`TableError::Damaged`], or as the system gave it.
    pub fn check_types(&self) -> Result<(), TableError> {
        for ending in OPENED {
            match fs::symlink_metadata(self.beside(ending)) {
                Ok(meta) if !meta.is_file() => {
                    return Err(TableError::Damaged(format!("search{ending} is no file")));
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the file and what lies beside it.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove(&self) -> io::Result<()> {
        for ending in OPENED.into_iter().chain([".seal"]) {
            match fs::remove_file(self.beside(ending)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the stamp of the file, or `None` if there is none.
    pub fn stamp(&self) -> Option<Stamp> {
        Stamp::from_path(&self.path).ok().flatten()
    }

    /// Compares the file with its seal.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn check_seal(&self) -> io::Result<SealState> {
        let seal = || match read_small_file(&self.beside(".seal"), SEAL_SIZE) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            // It is too large for a seal, so it fits no file.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(Some(Vec::new())),
            Err(e) => Err(e),
        };
        for _ in 0..ATTEMPTS {
            let Some(sealed) = seal()? else { return Ok(SealState::Unsealed) };
            if compute_seal(&self.path)?.as_bytes() == sealed {
                return Ok(SealState::Whole);
            }
            // Another process removes the seal before it writes. Then the bytes that were read are no proof.
            if seal()? == Some(sealed) {
                return Ok(SealState::Broken);
            }
        }
        Ok(SealState::Unsealed)
    }

    /// Seals the file.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn write_seal(&self) -> io::Result<()> {
        let text = compute_seal(&self.path)?;
        atomic_file::write_atomic(&self.beside(".seal"), text.as_bytes(), 0o600)
    }

    /// Removes the seal.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove_seal(&self) -> io::Result<()> {
        match fs::remove_file(self.beside(".seal")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// Returns the text of the seal of a file: its length and the checksum of all its bytes.
fn compute_seal(path: &Path) -> io::Result<String> {
    let (mut file, mut bytes) = (open_regular(path)?, Vec::with_capacity(CHUNK));
    let (mut hash, mut len) = (0, 0);
    loop {
        bytes.clear();
        len += (&mut file).take(CHUNK as u64).read_to_end(&mut bytes)? as u64;
        if bytes.is_empty() {
            return Ok(format!("{len} {hash:016x}\n"));
        }
        hash = XxHash3_64::oneshot_with_seed(hash, &bytes);
    }
}

impl From<io::Error> for TableError {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_fits_only_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = IndexFile::new(dir.path().join("search"));
        fs::write(file.path(), vec![7; CHUNK + 10]).unwrap();
        assert_eq!(file.check_seal().unwrap(), SealState::Unsealed);
        file.write_seal().unwrap();
        assert_eq!(file.check_seal().unwrap(), SealState::Whole);
        for bytes in [vec![7; CHUNK + 9], vec![7; CHUNK], vec![8; CHUNK + 10], Vec::new()] {
            fs::write(file.path(), bytes).unwrap();
            assert_eq!(file.check_seal().unwrap(), SealState::Broken);
        }
        fs::write(file.beside(".seal"), [b'x'; 100]).unwrap();
        assert_eq!(file.check_seal().unwrap(), SealState::Broken, "larger than a seal");
        file.remove_seal().unwrap();
        assert_eq!(file.check_seal().unwrap(), SealState::Unsealed);
        file.remove().unwrap();
        assert_eq!(file.stamp(), None);
    }

    #[test]
    fn one_process_writes() {
        let dir = tempfile::tempdir().unwrap();
        let file = IndexFile::new(dir.path().join("below/search"));
        let lock = file.try_lock().unwrap();
        assert!(lock.as_ref().is_some_and(|lock| file.is_locked_by(lock)));
        assert!(file.try_lock().unwrap().is_none());
        fs::remove_dir_all(dir.path().join("below")).unwrap();
        assert!(lock.as_ref().is_some_and(|lock| !file.is_locked_by(lock)));
        drop(lock);
        assert!(file.try_lock().unwrap().is_some());
    }
}
