//! What is known about who wrote a message.

use std::fmt;
use std::sync::Arc;

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

/// Byte strings a signature may cover: formats whose writers disagree have several readings of one
/// message, and one that verifies is enough.
#[derive(Clone)]
pub enum Covered {
    /// These.
    These(Vec<Vec<u8>>),
    /// Those that the function calls back with, made one by one until one is accepted.
    Lazy(Arc<Readings>),
}

/// Calls back with each reading until it is accepted; whether one was.
pub type Readings = dyn Fn(&mut dyn FnMut(&[u8]) -> bool) -> bool + Send + Sync;

impl Covered {
    /// One reading only.
    pub fn one(bytes: Vec<u8>) -> Self {
        Self::These(vec![bytes])
    }

    /// Whether `accept` takes any of the readings; asks no further than the first it takes.
    pub fn any(&self, mut accept: impl FnMut(&[u8]) -> bool) -> bool {
        match self {
            Self::These(list) => list.iter().any(|bytes| accept(bytes)),
            Self::Lazy(readings) => readings(&mut accept),
        }
    }

    /// All readings.
    pub fn all(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.any(|bytes| {
            out.push(bytes.to_vec());
            false
        });
        out
    }
}

impl fmt::Debug for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::These(list) => f.debug_tuple("These").field(list).finish(),
            Self::Lazy(_) => f.write_str("Lazy"),
        }
    }
}

impl PartialEq for Covered {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl Eq for Covered {}

/// A signature as a store found it on a message: what was claimed, before anybody judged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A well-formed signature.
    Signed {
        /// The key the message (or its store) offers; `None` if it names none.
        key: Option<PublicKey>,
        /// The 64 bytes of the signature.
        signature: [u8; 64],
        /// What it may cover.
        covered: Covered,
        /// What is special about it.
        scope: ClaimScope,
    },
    /// Something is in the place of a signature that cannot be one, or that is known to be wrong;
    /// the text says what.
    Malformed(String),
}

/// How much of a message a signature speaks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimScope {
    /// All that is shown of it.
    #[default]
    Whole,
    /// All that is shown; but the signed text names another sender than the envelope did. Refused
    /// if the key is pinned to somebody else than the signed sender.
    Renamed,
    /// All of it, by whoever holds the key it carries: writers of this kind are roles, not
    /// identities, so no key is ever pinned and none is compared.
    Unpinned,
    /// A part of the text. It never makes a pin; without one for its key the message counts as
    /// not signed.
    Part,
}
