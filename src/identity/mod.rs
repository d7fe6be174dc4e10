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
mod used;

pub use key::{KeyError, KeyPair, OwnKey};
pub use keyring::{
    Keyring, KeyringError, MessageDigest, Pin, SignatureVerdict, SignedMessage,
    describe_other_own_key,
};
pub use used::SignerRegistry;
