//! One file by its number.

use std::io;

use super::format::FileFormat;
use super::table::{FileFacts, FileRow, FileTable};
use super::walk::DirCache;
use super::{FileStore, join_path};
use crate::store::fs::Stamp;
use crate::store::{Location, StoreError, confined};

/// A file of the table, as it was when the table was read.
#[derive(Clone, Debug)]
pub struct StoreFile<F> {
    /// Its number.
    pub n: u32,
    /// The path of its folder in the store.
    pub folder: String,
    /// Its name.
    pub name: String,
    /// Its row in the table.
    pub row: FileRow,
    /// The facts that its format keeps of it.
    pub facts: F,
}

impl<F: FileFacts> StoreFile<F> {
    /// Returns the file with a number in the table.
    pub fn from_table(table: &FileTable<F>, n: u32) -> Option<Self> {
        Some(Self {
            n,
            folder: table.folder(n).to_owned(),
            name: table.name(n).to_owned(),
            row: *table.row(n)?,
            facts: *table.facts(n)?,
        })
    }

    /// Returns its path in the store.
    pub fn path(&self) -> String {
        join_path(&self.folder, &self.name)
    }

    /// Returns the facts that the format keeps of it, if it is a message.
    pub fn message_facts(&self) -> Option<&F> {
        Some(&self.facts).filter(|_| self.row.is_message())
    }

    /// Returns the location of a file with this size.
    pub fn location(n: u32, len: usize) -> Location {
        Location { source: n, offset: 0, len: u32::try_from(len).unwrap_or(u32::MAX) }
    }
}

impl<F: FileFormat> FileStore<F> {
    /// Returns a file by its number.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such file any more.
    pub fn find_file(&self, n: u32) -> Result<StoreFile<F::Facts>, StoreError> {
        let file = StoreFile::from_table(&self.table.read(), n);
        file.filter(|file| !file.row.has_flag(super::FileFlags::GONE)).ok_or(StoreError::Moved)
    }

    /// Returns the bytes of a file as they are, at most `limit` of them.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if it is not there, else as the system gave it.
    pub fn read_file_bytes(
        &self,
        file: &StoreFile<F::Facts>,
        limit: usize,
    ) -> Result<(Stamp, Vec<u8>), StoreError> {
        self.read_file_bytes_in(&mut DirCache::new(&self.properties.dir), file, limit)
    }

    /// Returns the bytes of a file, as [`FileStore::read_file_bytes`], with the folders of a cache.
    ///
    /// # Errors
    /// As there.
    pub fn read_file_bytes_in(
        &self,
        dirs: &mut DirCache<'_>,
        file: &StoreFile<F::Facts>,
        limit: usize,
    ) -> Result<(Stamp, Vec<u8>), StoreError> {
        let mut read = || {
            let dir = dirs.open(&file.folder)?;
            confined::read_whole(&confined::open_file(&dir, &file.name)?, limit)
        };
        read().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&self.properties.dir.join(file.path()), e),
        })
    }
}
