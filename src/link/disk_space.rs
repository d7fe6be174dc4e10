//! Files with foreign content, which grow only while the disk has room for other programs too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::store::fs;

/// The number of bytes that stay free.
pub const ROOM: u64 = 64 << 20;

/// The number of written bytes after which the free space is checked again.
const STEP: u64 = 4 << 20;

/// A file that grows only while there is room.
#[derive(Debug)]
pub struct SpaceCheckedFile {
    file: File,
    folder: PathBuf,
    written: u64,
    has_failed: bool,
}

impl SpaceCheckedFile {
    /// Creates or empties a file that only its owner may read.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let mut new = OpenOptions::new();
        let file = new.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, folder, written: 0, has_failed: false })
    }

    /// Returns the file, for everything but writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if a write failed, so that an error of a copy into the file is one of this machine.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn write_if_room(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.written >= STEP {
            self.written = 0;
            check_free_space(&self.folder)?;
        }
        let n = self.file.write(buf)?;
        self.written += n as u64;
        Ok(n)
    }
}

impl Write for SpaceCheckedFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.write_if_room(buf);
        self.has_failed |= written.is_err();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// Returns the system's error.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    SpaceCheckedFile::create(path)?.write_all(bytes)
}

/// Checks that a folder's disk has room for other programs too.
///
/// # Errors
/// Returns `StorageFull` if it has not.
pub fn check_free_space(folder: &Path) -> io::Result<()> {
    fs::check_free_space(folder, ROOM).map_err(|e| {
        let why = format!("{e}; links leave {} MiB free for other programs", ROOM >> 20);
        io::Error::new(io::ErrorKind::StorageFull, why)
    })
}
