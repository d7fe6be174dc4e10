//! What was read, for links that tell my other machines of it.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::model::Mark;

/// The marks of a store, as whoever keeps them gives them to a link: one file that grows.
pub trait SharedMarkLog: fmt::Debug + Send + Sync {
    /// Those that were noted since the file had this length, and its length now.
    ///
    /// # Errors
    /// As the system gave it.
    fn read_since(&self, at: u64) -> io::Result<(Vec<Mark>, u64)>;

    /// Notes what was heard. The length of the file after it; `None`, and nothing is noted, if it has grown
    /// since it had the length that is given.
    ///
    /// # Errors
    /// As the system gave it.
    fn append_heard(&self, at: u64, heard: &[Mark]) -> io::Result<Option<u64>>;
}

/// Gives the marks of a store, by number.
pub type MarkLogProvider = Arc<dyn Fn(usize) -> Arc<dyn SharedMarkLog> + Send + Sync>;
