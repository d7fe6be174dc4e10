//! All errors of a view, and the one place that maps each to an errno (docs/SEMANTICS.md, "Errors").

use crate::model::DraftError;
use crate::outbox::OutboxError;
use crate::search::SearchError;
use crate::store::StoreError;

/// Reason why an operation on the tree failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or folder")]
    NotFound,
    /// No such name, with the reason.
    #[error("{0}")]
    Missing(String),
    /// A number whose node is gone; the kernel has to look its name up again.
    #[error("it is gone")]
    Stale,
    /// A folder where a file was expected.
    #[error("is a folder")]
    IsDir,
    /// A file where a folder was expected.
    #[error("is not a folder")]
    NotDir,
    /// An operation that the rules of the tree forbid.
    #[error("{0}")]
    NotPermitted(String),
    /// The mount is read-only.
    #[error("this mount is read-only; mount without --read-only to write")]
    ReadOnly,
    /// A folder that still has entries.
    #[error("the folder is not empty")]
    NotEmpty,
    /// A message that counts as there, although its store has no text of it now.
    #[error("its store has no text of this message now")]
    NoText,
    /// A store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A draft was refused.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A search failed.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Error {
    /// Makes the error of an operation that only the tree's rules forbid.
    pub(super) fn not_permitted(why: &str) -> Self {
        Self::NotPermitted(why.to_owned())
    }

    /// Makes the error that the system would give.
    pub(crate) fn from_errno(errno: i32) -> Self {
        std::io::Error::from_raw_os_error(errno).into()
    }

    /// Returns the errno that the kernel passes on. The match is exhaustive on purpose, so that each new error
    /// gets an errno here.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound | Self::Missing(_) => libc::ENOENT,
            Self::Stale => libc::ESTALE,
            Self::IsDir => libc::EISDIR,
            Self::NotDir => libc::ENOTDIR,
            Self::NotPermitted(_) => libc::EPERM,
            Self::ReadOnly => libc::EROFS,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::Store(e) => store_errno(e),
            Self::Outbox(e) => outbox_errno(e),
            Self::Search(SearchError::Interrupted) => libc::EINTR,
            Self::NoText | Self::Search(SearchError::Table(_)) => libc::EIO,
            Self::Io(e) => io_errno(e),
        }
    }
}

fn outbox_errno(e: &OutboxError) -> i32 {
    match e {
        OutboxError::Invalid(_)
        | OutboxError::Draft(
            DraftError::BadHeader { .. } | DraftError::NoHeader(_) | DraftError::OpenHeader,
        ) => libc::EINVAL,
        OutboxError::Draft(DraftError::NotUtf8(_)) => libc::EILSEQ,
        OutboxError::NoRecipient(_) | OutboxError::Draft(DraftError::NoRecipient(_)) => {
            libc::EDESTADDRREQ
        }
        OutboxError::Unreachable(_) => libc::EHOSTUNREACH,
        OutboxError::TooLarge(_) => libc::EFBIG,
        OutboxError::NotPermitted(_) => libc::EPERM,
        OutboxError::NotFound => libc::ENOENT,
        OutboxError::Exists => libc::EEXIST,
        OutboxError::NoKey(_) => libc::ENOKEY,
        OutboxError::CutOff(_) => libc::ECANCELED,
        OutboxError::Already(e) => outbox_errno(e),
        OutboxError::Store(e) => store_errno(e),
        OutboxError::Io { error, .. } => io_errno(error),
    }
}

fn store_errno(e: &StoreError) -> i32 {
    match e {
        StoreError::Io { source, .. } => io_errno(source),
        StoreError::Invalid(_) => libc::EINVAL,
        StoreError::Refused(_) => libc::EBADMSG,
        StoreError::TooLarge(_) => libc::EFBIG,
        StoreError::Unreachable(_) => libc::EHOSTUNREACH,
        // The next listing of the folder shows its present entries.
        StoreError::Moved => libc::ENOENT,
        StoreError::NoKey(_) => libc::ENOKEY,
        StoreError::NotPermitted(_) => libc::EPERM,
        StoreError::Busy(_) => libc::EAGAIN,
    }
}

fn io_errno(e: &std::io::Error) -> i32 {
    use std::io::ErrorKind;
    if let Some(errno) = e.raw_os_error() {
        return errno;
    }
    // Errors that msgfs or a store made, not the system.
    match e.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::StorageFull => libc::ENOSPC,
        ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        ErrorKind::FileTooLarge => libc::EFBIG,
        ErrorKind::CrossesDevices => libc::EXDEV,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_of_a_store_has_its_errno() {
        let text = || "why".to_owned();
        let io = |e: std::io::Error| StoreError::io(std::path::Path::new("x"), e);
        for (error, errno) in [
            (StoreError::Invalid(text()), libc::EINVAL),
            (StoreError::Refused(text()), libc::EBADMSG),
            (StoreError::TooLarge(text()), libc::EFBIG),
            (StoreError::Unreachable(text()), libc::EHOSTUNREACH),
            (StoreError::NoKey(text()), libc::ENOKEY),
            (StoreError::Moved, libc::ENOENT),
            (io(std::io::Error::from_raw_os_error(libc::ENOSPC)), libc::ENOSPC),
            (io(std::io::ErrorKind::NotFound.into()), libc::ENOENT),
            (io(std::io::Error::other("odd")), libc::EIO),
        ] {
            assert_eq!(Error::Store(error).errno(), errno);
        }
    }
}
