//! One file by its number.

use std::io;

use super::format::Format;
use super::look::Dirs;
use super::table::{Facts, Row, Table};
use super::{Files, join};
use crate::store::fs::Stamp;
use crate::store::{Location, StoreError, below};

/// A file of the table, as it was when it was asked for.
#[derive(Clone, Debug)]
pub struct File<F> {
    /// Its number.
    pub n: u32,
    /// The path of its folder in the store.
    pub folder: String,
    /// Its name.
    pub name: String,
    /// What is known of it.
    pub row: Row,
    /// What its format keeps of it.
    pub facts: F,
}

impl<F: Facts> File<F> {
    /// Takes it from the table.
    pub fn of(table: &Table<F>, n: u32) -> Option<Self> {
        Some(Self {
            n,
            folder: table.folder(n).to_owned(),
            name: table.name(n).to_owned(),
            row: *table.row(n)?,
            facts: *table.facts(n)?,
        })
    }

    /// Its path in the store.
    pub fn path(&self) -> String {
        join(&self.folder, &self.name)
    }

    /// What the format keeps of it, if it is a message.
    pub fn message(&self) -> Option<&F> {
        Some(&self.facts).filter(|_| self.row.is_message())
    }

    /// Its location, now that it has this size.
    pub fn at(n: u32, len: usize) -> Location {
        Location { source: n, offset: 0, len: u32::try_from(len).unwrap_or(u32::MAX) }
    }
}

impl<F: Format> Files<F> {
    /// A file by its number.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such file any more.
    pub fn file(&self, n: u32) -> Result<File<F::Facts>, StoreError> {
        let file = File::of(&self.table.read(), n);
        file.filter(|file| !file.row.has(super::Flags::GONE)).ok_or(StoreError::Moved)
    }

    /// The bytes of a file as they are, at most so many.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if it is not there, else as the system gave it.
    pub fn bytes(
        &self,
        file: &File<F::Facts>,
        limit: usize,
    ) -> Result<(Stamp, Vec<u8>), StoreError> {
        let open = || {
            let dir = Dirs::new(&self.about.dir).open(&file.folder)?;
            below::read_whole(&below::open_file(&dir, &file.name)?, limit)
        };
        open().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&self.about.dir.join(file.path()), e),
        })
    }
}
