//! The reasons for refusing a draft. One variant a meaning; the errno of each is in `view::error`.

use std::sync::Arc;

use crate::model::DraftError;
use crate::store::StoreError;

/// A refusal. Its text is the content of `<name>.error`.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// An unusable name, header, or combination of them.
    #[error("{0}")]
    Invalid(String),
    /// A text that cannot be read as a draft.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// No named recipient.
    #[error("{0}")]
    NoRecipient(String),
    /// A recipient that no store reaches, or that several could reach.
    #[error("{0}")]
    Unreachable(String),
    /// A text that is too large.
    #[error("the text is larger than the {0} bytes a message may have; send it in parts")]
    TooLarge(u64),
    /// An operation that a draft does not allow.
    #[error("{0}")]
    NotPermitted(String),
    /// No such draft.
    #[error("there is no draft of this name")]
    NotFound,
    /// A name that is taken.
    #[error("the name is taken")]
    Exists,
    /// An unusable signing key.
    #[error("{0}")]
    NoKey(String),
    /// An earlier refusal of a draft that has not changed since.
    #[error("{0}")]
    Already(Arc<OutboxError>),
    /// The end of the writing program before it was done.
    #[error("{0}")]
    CutOff(String),
    /// A refusal or failure of a store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A failure of the system to read or write a file.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
}

impl OutboxError {
    /// Returns true if the system failed, and not something in the draft: no further text mends that.
    pub(super) fn is_fault(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Store(StoreError::Io { .. }))
    }
}
