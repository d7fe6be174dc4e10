//! Errors of reading or changing a keyring.

use std::io;
use std::path::PathBuf;

use super::rejection_text::list_refused_keys;
use crate::model::verify::PublicKeyError;
use crate::model::{Fingerprint, PublicKey, Remedy, display_path, sanitize_line};

/// The reason why the keyring could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// A file that is not a keyring, for this reason.
    #[error(
        "{}: not a usable keyring: {}; msgfs never replaces it: mend it, or move it away to \
         start with an empty one (every sender is then trusted on first use again): {}",
        display_path(.0),
        .1,
        Remedy::MoveAway(.0.clone())
    )]
    Corrupt(PathBuf, String),
    /// A keyring that is nearly as large as it can be.
    #[error(
        "{}: the keyring is full: a sender without a key in it gets none, and what that sender signs is unknown; take \
         out what is not needed, or move it away to start with an empty one (every sender is then trusted on first \
         use again): {}",
        display_path(.0),
        Remedy::MoveAway(.0.clone())
    )]
    Full(PathBuf),
    /// An I/O error.
    #[error("{}: the keyring cannot be read or written: {source}", display_path(path))]
    Io {
        /// The keyring.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A keyring opened with [`Keyring::open_read_only`](super::Keyring::open_read_only).
    #[error(
        "{}: the keyring is open for reading only, so trust cannot be changed here",
        display_path(.0)
    )]
    ReadOnly(PathBuf),
    /// No refused key of this address to trust.
    #[error(
        "no key of {} was refused, so there is none to trust; give the key itself with `--key BASE64`, or see \
         `{}`",
        sanitize_line(.0),
        Remedy::ListKeys
    )]
    NothingRefused(String),
    /// Several refused keys of this address, of which a person has to name one.
    #[error(
        "several keys of {} were refused, and msgfs does not know which one is real; ask for the fingerprint, and \
         accept that key with:{}",
        sanitize_line(.0),
        list_refused_keys(.0, .1)
    )]
    SeveralRefused(String, Vec<PublicKey>),
    /// A key that can vouch for nobody: its fingerprint, and the rule it breaks.
    #[error("key {0} cannot be trusted: {1}")]
    BadKey(Fingerprint, #[source] PublicKeyError),
    /// A different key of the same fingerprint in the keyring.
    #[error(
        "key {0} cannot be trusted: the keyring already holds a different key with this \
         fingerprint; one of the two was made to look like the other"
    )]
    Collision(Fingerprint),
    /// The empty address, which nobody has.
    #[error("an empty address cannot be trusted")]
    NoAddress,
}
