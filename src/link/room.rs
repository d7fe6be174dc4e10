//! What links write down of the other side, as long as the disk has room for others, too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::store::fs;

/// So much stays free.
pub const ROOM: u64 = 64 << 20;

/// Asked for again after so many bytes.
const STEP: u64 = 4 << 20;

/// A file that grows only while there is room.
#[derive(Debug)]
pub struct SpaceCheckedFile {
    file: File,
    folder: PathBuf,
    written: u64,
}

impl SpaceCheckedFile {
    /// A new file that nobody else may read, or one made empty.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let mut new = OpenOptions::new();
        let file = new.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, folder, written: 0 })
    }

    /// The file, for what is no writing.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Write for SpaceCheckedFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.written >= STEP {
            self.written = 0;
            check_free_space(&self.folder)?;
        }
        let n = self.file.write(buf)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a new file that nobody else may read.
///
/// # Errors
/// As the system gave it.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    SpaceCheckedFile::create(path)?.write_all(bytes)
}

/// Makes sure that a folder's disk has room for others, too.
///
/// # Errors
/// If it has not.
pub fn check_free_space(folder: &Path) -> io::Result<()> {
    fs::check_free_space(folder, ROOM).map_err(|e| {
        let why = format!("{e}; links leave {} MiB free for other programs", ROOM >> 20);
        io::Error::new(io::ErrorKind::StorageFull, why)
    })
}
