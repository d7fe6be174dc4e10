//! Helpers for the tests of several rooms: a key, a store in memory, texts in memory, a sink that keeps its reports.

mod book;
mod folder;
mod memory;
mod texts;

use ed25519_dalek::{Signer as _, SigningKey};

pub use book::{Book, Kept};
pub use folder::{Folder, Letter, MarkBehavior};
pub use memory::Memory;
pub use texts::Texts;

use super::Signer;
use crate::model::PublicKey;

/// The traits of a store, for their methods.
pub mod traits {
    pub use crate::store::{
        DeliveryQueue as _, MessageAppender as _, Notebook as _, PartReader as _, Store as _,
        StoreMarks as _, StoreUpkeep as _,
    };
}

/// A throwaway key.
pub struct Key(SigningKey);

impl Key {
    /// Returns the key of a seed of 32 such bytes.
    pub fn new(seed: u8) -> Self {
        SigningKey::from_bytes(&[seed; 32]).into()
    }
}

impl From<SigningKey> for Key {
    fn from(key: SigningKey) -> Self {
        Self(key)
    }
}

impl Signer for Key {
    fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }
}
