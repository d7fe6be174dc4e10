//! Why a keyring could not be read or changed.

use std::io;
use std::path::PathBuf;

use crate::identity::shown;
use crate::model::verify::BadKey;
use crate::model::{Fingerprint, Remedy, one_line};

/// Why the keyring could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file is not a keyring.
    #[error(
        "{}: not a usable keyring: {problem}; msgfs never replaces it: mend it, or move it away to \
         start with an empty one (every sender is then trusted on first use again): {}",
        shown(path),
        Remedy::MoveAway(path.clone())
    )]
    Corrupt {
        /// The keyring.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused.
    #[error("{}: the keyring cannot be read or written: {source}", shown(path))]
    Io {
        /// The keyring.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The keyring was opened with [`Keyring::open_read_only`](super::Keyring::open_read_only).
    #[error(
        "{}: the keyring is open for reading only, so trust cannot be changed here",
        shown(path)
    )]
    ReadOnly {
        /// The keyring.
        path: PathBuf,
    },
    /// There is no refused key to trust.
    #[error(
        "no key of {} was refused, so there is none to trust; give the key itself with `--key BASE64`, or see \
         `{}`",
        one_line(address),
        Remedy::ListKeys
    )]
    NothingRefused {
        /// The address.
        address: String,
    },
    /// The key can vouch for nobody.
    #[error("key {fingerprint} cannot be trusted: {source}")]
    BadKey {
        /// The key's name.
        fingerprint: Fingerprint,
        /// The rule it breaks.
        source: BadKey,
    },
    /// The keyring holds a different key of the same name.
    #[error(
        "key {fingerprint} cannot be trusted: the keyring already holds a different key with this \
         fingerprint; one of the two was made to look like the other"
    )]
    Collision {
        /// The name both keys have.
        fingerprint: Fingerprint,
    },
    /// Nobody has the empty address.
    #[error("an empty address cannot be trusted")]
    NoAddress,
}
