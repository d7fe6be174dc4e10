//! The access to the messages of a store, and to its files as they are.

use std::fs::File;
use std::io;

use sha2::{Digest as _, Sha256};

use super::{ClaimVerifier, Location, RawEntry, Record, StoreError, ViolationReporter};
use crate::model::Timestamp;

/// The title that a source gives to all its messages, as their subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTitle {
    /// The number of the source.
    pub source: u32,
    /// Its path, as [`MessageReader::source_path`] returns it.
    pub path: String,
    /// The title; empty if it has none now.
    pub title: String,
}

/// The messages of a store, by the locations at which scans found them.
pub trait MessageReader {
    /// Returns the path of a source relative to the store's folder.
    fn source_path(&self, source: u32) -> Option<String>;

    /// Returns the number of the line at a location of a log, counted from 1; 0 where a file is one message, and if the
    /// log cannot be read.
    fn line_number(&self, _at: &Location) -> u64 {
        0
    }

    /// Returns true if a source is the log to which my messages are appended, and no copy of it.
    fn is_my_log(&self, _source: u32) -> bool {
        false
    }

    /// Returns the titles of the sources, where a format has such titles.
    fn source_titles(&self) -> Vec<SourceTitle> {
        Vec::new()
    }

    /// Reads the message at a location.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if that record is no longer there, I/O errors as they come.
    fn read_record(&self, at: &Location) -> Result<Record, StoreError>;

    /// Returns true if the message at a location counts as there, although the store has no text of it now.
    fn lacks_text(&self, _at: &Location) -> bool {
        false
    }

    /// Reads the messages at several locations in the fastest order, and hands each on with its number. Messages that
    /// cannot be read at once are left out, and the caller reads them one by one.
    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        for (number, at) in at.iter().enumerate() {
            if let Ok(record) = self.read_record(at) {
                each(number, record);
            }
        }
    }

    /// Returns the bytes at a location, whatever they are, at most `limit` of them.
    ///
    /// # Errors
    /// I/O errors as they come.
    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError>;

    /// Returns the SHA-256 of a message as its writer left it: marks that the store keeps in its file do not count. It
    /// differs from those of all messages with the same id, and from the hashes that their ids carry.
    ///
    /// # Errors
    /// I/O errors as they come.
    fn content_digest(&self, at: &Location) -> Result<[u8; 32], StoreError> {
        Ok(Sha256::digest(self.read_bytes(at, usize::MAX)?).into())
    }

    /// Validates everything (schema, ids, signatures) and reports each violation. `verify` checks a signature.
    ///
    /// # Errors
    /// Only when the store cannot be read at all.
    fn check(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError>;
}

/// The files of a store as `raw/<store>/` shows them.
pub trait RawTree {
    /// Returns the entries of a folder of `raw/<store>/`, `""` being its root; `None` if there is no such folder. Only
    /// message files are listed, never keys or state.
    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>>;

    /// Returns one entry by its path without listing its folder. [`RawTree::list_raw_folder`] returns the same entry.
    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry>;

    /// Returns the time of the newest entry of such a folder.
    fn newest_raw_time(&self, folder: &str) -> Option<Timestamp>;

    /// Opens a file listed by [`RawTree::list_raw_folder`].
    ///
    /// # Errors
    /// As the system gave it.
    fn open_raw_file(&self, path: &str) -> io::Result<File>;
}
