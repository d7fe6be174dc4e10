//! The secret half of a signing key, on its way from a file to the signer.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};
use zeroize::Zeroizing;

use super::PublicKey;

/// The 32-byte seed of an Ed25519 key (RFC 8032, section 5.1.5). It is never printed, and wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed(Zeroizing<[u8; 32]>);

impl Seed {
    /// Takes ownership of the bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the public half of the key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(SigningKey::from_bytes(&self.0).verifying_key().to_bytes())
    }

    /// Returns the signature of the bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        SigningKey::from_bytes(&self.0).sign(bytes).to_bytes()
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}
