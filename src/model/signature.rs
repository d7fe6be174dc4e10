//! What is known about who wrote a message.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// An Ed25519 public key as its 32 raw bytes, not yet checked to be a point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// The base64 of the raw key.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// Reads that; blanks around it do not count.
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The first 16 hex digits of the SHA-256 of the raw key.
    pub fn fingerprint(&self) -> Fingerprint {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        Fingerprint(digest.first_chunk().copied().unwrap_or_default())
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

/// The `Signature:` line of a message (docs/SEMANTICS.md, S71).
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
/// message, and one that verifies is enough. It remembers what came of the first check, for whoever is
/// handed it asks again: a store checks a signature to tell copies of a message apart, and the index
/// to judge it.
#[derive(Clone)]
pub struct SignedBytes {
    candidates: Arc<CandidateVisitor>,
    checked: OnceLock<Box<SignatureCheck>>,
}

/// Calls back with each reading until it is accepted; whether one was.
pub type CandidateVisitor = dyn Fn(&mut dyn FnMut(&[u8]) -> bool) -> bool + Send + Sync;

/// By which key a signature was checked, and whether it covers any of the readings.
#[derive(Clone, Copy)]
struct SignatureCheck {
    key: PublicKey,
    signature: [u8; 64],
    fits: bool,
}

impl SignedBytes {
    /// One reading only.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::from_visitor(Arc::new(move |accept| accept(&bytes)))
    }

    /// These readings.
    pub fn from_candidates(readings: Vec<Vec<u8>>) -> Self {
        Self::from_visitor(Arc::new(move |accept| readings.iter().any(|bytes| accept(bytes))))
    }

    /// Those that the function calls back with, made one by one until one is accepted.
    pub fn from_visitor(readings: Arc<CandidateVisitor>) -> Self {
        Self { candidates: readings, checked: OnceLock::new() }
    }

    /// A reading that this key is known to have signed.
    pub fn from_verified(bytes: Vec<u8>, key: PublicKey, signature: [u8; 64]) -> Self {
        let checked = OnceLock::from(Box::new(SignatureCheck { key, signature, fits: true }));
        Self { checked, ..Self::from_bytes(bytes) }
    }

    /// Whether `check` takes any of the readings for this key and signature. It is not asked if the
    /// first such question was the same.
    pub(super) fn verify_once(
        &self,
        key: PublicKey,
        signature: [u8; 64],
        check: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let ask = || Box::new(SignatureCheck { key, signature, fits: self.any_candidate(&check) });
        let first = self.checked.get_or_init(ask);
        let same = (first.key, first.signature) == (key, signature);
        if same { first.fits } else { self.any_candidate(&check) }
    }

    /// Whether it remembers the outcome of a check.
    pub fn is_checked(&self) -> bool {
        self.checked.get().is_some()
    }

    /// Whether `accept` takes any of the readings; asks no further than the first it takes.
    pub fn any_candidate(&self, mut accept: impl FnMut(&[u8]) -> bool) -> bool {
        (self.candidates)(&mut accept)
    }

    /// All readings.
    pub fn candidates(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.any_candidate(|bytes| {
            out.push(bytes.to_vec());
            false
        });
        out
    }
}

impl fmt::Debug for SignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Covered").field(&self.candidates()).finish()
    }
}

impl PartialEq for SignedBytes {
    fn eq(&self, other: &Self) -> bool {
        self.candidates() == other.candidates()
    }
}

impl Eq for SignedBytes {}

/// A signature as a store found it on a message: what was claimed, before anybody judged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureClaim {
    /// A well-formed signature.
    Signed {
        /// The key the message (or its store) offers; `None` if it names none.
        key: Option<PublicKey>,
        /// The 64 bytes of the signature.
        signature: [u8; 64],
        /// What it may cover.
        covered: SignedBytes,
        /// What is special about it.
        scope: SignatureScope,
    },
    /// Something is in the place of a signature that cannot be one, or that is known to be wrong;
    /// the text says what.
    Malformed(String),
}

/// How much of a message a signature speaks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureScope {
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
