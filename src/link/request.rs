//! A command's request to the process that carries: a file in the link's folder, which is removed after it is done.

use std::io;
use std::path::Path;

use crate::store::{atomic_file, fs};

/// The name of the file in the link's folder.
pub const FILE: &str = "request";

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRequest {
    /// An order to try all waiting messages now.
    Retry,
    /// An order to give up all waiting messages.
    Drop,
}

impl LinkRequest {
    const ALL: [(&str, Self); 2] = [("retry", Self::Retry), ("drop", Self::Drop)];

    /// Leaves the request in a link's folder.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn write(self, folder: &Path) -> io::Result<()> {
        let word = Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(word, _)| word);
        atomic_file::write_atomic(&folder.join(FILE), word.as_bytes(), 0o600)
    }

    /// Reads the pending request.
    pub fn read(folder: &Path) -> Option<Self> {
        let word = fs::read_small_file(&folder.join(FILE), 64).ok()?;
        Self::ALL.iter().find(|(one, _)| one.as_bytes() == word).map(|(_, request)| *request)
    }

    /// Removes the request, since it is done.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn remove(folder: &Path) -> io::Result<()> {
        std::fs::remove_file(folder.join(FILE))
    }
}
