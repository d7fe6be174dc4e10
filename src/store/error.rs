//! Why a store refused or failed.

use std::io;
use std::path::{Path, PathBuf};

/// Why a store refused or failed. Mapped to errno in one place, `view::error`.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The recipient or a header is not valid in this store.
    #[error("{0}")]
    Invalid(String),
    /// The message breaks a rule of the format, or the recipient refuses it.
    #[error("{0}")]
    Refused(String),
    /// Larger than the format allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nobody by this name can be reached.
    #[error("{0}")]
    Unreachable(String),
    /// What was at this location is no longer there: the file was changed by somebody else.
    #[error("the record is no longer where it was; the file was changed")]
    Moved,
    /// The key that must sign cannot be used.
    #[error("{0}")]
    NoKey(String),
    /// The store is not mine to change in this place.
    #[error("{0}")]
    NotPermitted(String),
    /// Somebody else holds a lock; the same again a moment later may work.
    #[error("{0}")]
    Busy(String),
}

impl StoreError {
    /// Wraps an I/O error with the path it happened on.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Whether the same may work later although nothing in the store changes.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { source, .. } if super::fs::is_transient(source))
    }
}
