//! Keys and trust: the key that signs for me, and the keys that vouch for others.
//!
//! [`KeyPair`] is my own Ed25519 key and signs my messages. [`Keyring`] remembers the keys of each address and judges
//! the signatures that stores find on messages. Signatures are checked in one place,
//! [`model::verify`](crate::model::verify). The promises are in docs/SEMANTICS.md, "Identity".

mod disk;
mod document;
mod key;
mod keyring;
mod signers;

pub use key::{KeyError, KeyPair, OwnKey};
pub use keyring::{
    Keyring, KeyringError, MessageDigest, Pin, SignatureVerdict, SignedMessage,
    describe_other_own_key,
};
pub use signers::SignerRegistry;
