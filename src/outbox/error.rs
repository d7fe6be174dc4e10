//! Why a draft is refused. One variant a meaning; the errno of each is in `view::error`.

use std::sync::Arc;

use crate::model::DraftError;
use crate::store::StoreError;

/// A refusal. Its text is what `<name>.error` says.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// A name, a header or a combination of them cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The text cannot be read as a draft.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// Nobody is named as recipient.
    #[error("{0}")]
    NoRecipient(String),
    /// No store reaches the recipient, or several could.
    #[error("{0}")]
    Unreachable(String),
    /// Too large.
    #[error("the text is larger than the {0} bytes a message may have")]
    TooLarge(u64),
    /// Not a thing that can be done to a draft.
    #[error("{0}")]
    NotPermitted(String),
    /// There is no such draft.
    #[error("there is no draft of this name")]
    NotFound,
    /// A name is taken.
    #[error("the name is taken")]
    Exists,
    /// The key that must sign cannot be used.
    #[error("{0}")]
    NoKey(String),
    /// The draft was refused before, and nothing has changed since.
    #[error("{0}")]
    Already(Arc<OutboxError>),
    /// The program that wrote the draft was ended before it was done.
    #[error("{0}")]
    CutOff(String),
    /// A store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state folder could not be written.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
}

impl OutboxError {
    /// Whether the system failed, rather than something in the draft: no further text mends that.
    pub(super) fn is_fault(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Store(StoreError::Io { .. }))
    }
}
