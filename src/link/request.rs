//! What a command asks of the process that carries: a file in the link's folder, which goes away when it
//! is done.

use std::io;
use std::path::Path;

use crate::store::{fs, place};

/// The file in the link's folder.
pub const FILE: &str = "request";

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRequest {
    /// Try what waits now.
    Retry,
    /// Give up what waits.
    Drop,
}

impl LinkRequest {
    const ALL: [(&str, Self); 2] = [("retry", Self::Retry), ("drop", Self::Drop)];

    /// Asks it.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn write(self, folder: &Path) -> io::Result<()> {
        let word = Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(word, _)| word);
        place::write_atomic(&folder.join(FILE), word.as_bytes(), 0o600)
    }

    /// What is asked, as long as it is not done.
    pub fn read(folder: &Path) -> Option<Self> {
        let word = fs::read_small_file(&folder.join(FILE), 64).ok()?;
        Self::ALL.iter().find(|(one, _)| one.as_bytes() == word).map(|(_, request)| *request)
    }

    /// It is done.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove(folder: &Path) -> io::Result<()> {
        std::fs::remove_file(folder.join(FILE))
    }
}
