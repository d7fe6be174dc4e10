//! Keys and trust: the key that signs for me, and the keys that vouch for others.
//!
//! [`Identity`] is my own Ed25519 key and signs what I send. [`Keyring`] remembers which key
//! belongs to which address and judges the signatures that stores find on messages. Signatures are
//! checked in one place, [`model::verify`](crate::model::verify). What can be relied on:
//! docs/SEMANTICS.md, "Identity".

mod disk;
mod document;
mod key;
mod keyring;

pub use key::{Identity, KeyError};
pub use keyring::{Keyring, KeyringError, Pin, Print, Signed, Verdict};

use std::path::Path;

use crate::model::one_line;

/// A path in a sentence: on one line, whatever bytes it holds.
fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}
