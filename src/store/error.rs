//! The errors of stores.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a store refused or failed. `view::error` is the one place that maps it to errno.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An error of the operating system.
    #[error("{path}: {source}")]
    Io {
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A recipient or a header that is not valid in this store.
    #[error("{0}")]
    Invalid(String),
    /// A message that breaks a rule of the format, or that the recipient refuses.
    #[error("{0}")]
    Refused(String),
    /// A message larger than the format allows.
    #[error("{0}")]
    TooLarge(String),
    /// A recipient that cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// A record that is no longer at this location, because another program changed the file.
    #[error("the record is no longer where it was; the file was changed")]
    Moved,
    /// A key that must sign and cannot be used.
    #[error("{0}")]
    NoKey(String),
    /// A change that is not mine to make in this store.
    #[error("{0}")]
    NotPermitted(String),
    /// A lock that another program holds. The same call may work a moment later.
    #[error("{0}")]
    Busy(String),
}

impl StoreError {
    /// Wraps an I/O error with its path.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Returns true if the same call may work later although nothing in the store changes.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { source, .. } if super::fs::is_transient(source))
    }
}
