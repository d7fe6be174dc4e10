//! Why a keyring could not be read or changed.

use std::io;
use std::path::PathBuf;

use crate::model::verify::PublicKeyError;
use crate::model::{Fingerprint, Remedy, display_path, sanitize_line};

/// Why the keyring could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file is not a keyring: what is wrong with it.
    #[error(
        "{}: not a usable keyring: {}; msgfs never replaces it: mend it, or move it away to \
         start with an empty one (every sender is then trusted on first use again): {}",
        display_path(.0),
        .1,
        Remedy::MoveAway(.0.clone())
    )]
    Corrupt(PathBuf, String),
    /// The operating system refused.
    #[error("{}: the keyring cannot be read or written: {source}", display_path(path))]
    Io {
        /// The keyring.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The keyring was opened with [`Keyring::open_read_only`](super::Keyring::open_read_only).
    #[error(
        "{}: the keyring is open for reading only, so trust cannot be changed here",
        display_path(.0)
    )]
    ReadOnly(PathBuf),
    /// There is no refused key of this address to trust.
    #[error(
        "no key of {} was refused, so there is none to trust; give the key itself with `--key BASE64`, or see \
         `{}`",
        sanitize_line(.0),
        Remedy::ListKeys
    )]
    NothingRefused(String),
    /// The key of this name can vouch for nobody: the rule it breaks.
    #[error("key {0} cannot be trusted: {1}")]
    BadKey(Fingerprint, #[source] PublicKeyError),
    /// The keyring holds a different key of the same name.
    #[error(
        "key {0} cannot be trusted: the keyring already holds a different key with this \
         fingerprint; one of the two was made to look like the other"
    )]
    Collision(Fingerprint),
    /// Nobody has the empty address.
    #[error("an empty address cannot be trusted")]
    NoAddress,
}
