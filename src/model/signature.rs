//! What is known about who wrote a message.

use std::fmt;

use sha2::{Digest, Sha256};

/// An Ed25519 public key as its 32 raw bytes, not yet checked to be a point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// The first 16 hex digits of the SHA-256 of the raw key.
    pub fn fingerprint(&self) -> Fingerprint {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        let mut first = [0u8; 8];
        first.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        Fingerprint(first)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

/// The short name of a key, shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 8]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The `Signature:` line of a message (contract, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureState {
    /// Signed by the key pinned for the sender.
    Valid(Fingerprint),
    /// Not signed, and nothing suggests that it should be.
    None,
    /// Signed, by a key that nobody vouches for.
    Unknown,
    /// Not signed, although this sender had validly signed an earlier message with this key.
    Missing(Fingerprint),
}

impl fmt::Display for SignatureState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(fp) => write!(f, "valid {fp}"),
            Self::None => f.write_str("none"),
            Self::Unknown => f.write_str("unknown"),
            Self::Missing(fp) => write!(f, "missing {fp}"),
        }
    }
}

/// A signature as a store found it on a message: what was claimed, before anybody verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A well-formed signature.
    Signed {
        /// The key the message (or its store) offers; `None` if it names none.
        key: Option<PublicKey>,
        /// The 64 bytes of the signature.
        signature: [u8; 64],
        /// The byte strings it may cover: formats whose writers disagree list several, and one
        /// that verifies is enough.
        covered: Vec<Vec<u8>>,
    },
    /// Something is in the place of a signature that cannot be one; the text says what.
    Malformed(String),
}
