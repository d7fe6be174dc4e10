//! The marks *read*, for links that share them with my other machines.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::model::Mark;

/// The marks of a store as a growing file, for a link.
pub trait SharedMarkLog: fmt::Debug + Send + Sync {
    /// Returns the marks since the file had this length, and its current length.
    ///
    /// # Errors
    /// Returns the system's error.
    fn read_since(&self, at: u64) -> io::Result<(Vec<Mark>, u64)>;

    /// Appends marks of other machines if the file still has the given length, and returns its new length. Otherwise
    /// appends nothing and returns `None`.
    ///
    /// # Errors
    /// Returns the system's error.
    fn append_heard(&self, at: u64, heard: &[Mark]) -> io::Result<Option<u64>>;
}

/// A function that returns the marks of a store, by number.
pub type MarkLogProvider = Arc<dyn Fn(usize) -> Arc<dyn SharedMarkLog> + Send + Sync>;
