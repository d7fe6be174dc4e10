//! Signatures, keys, and the verdict on a message's sender.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// An Ed25519 public key as its 32 raw bytes, not yet checked to be a point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Returns the base64 of the raw key.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// Parses a key in base64. Blanks around it do not count.
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the first 16 hex digits of the SHA-256 of the raw key.
    pub fn fingerprint(&self) -> Fingerprint {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        let [first, ..]: [[u8; 8]; 4] = bytemuck::cast(digest);
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

/// The `Signature:` line of a message (docs/SEMANTICS.md, S71).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureState {
    /// A signature by the key pinned for the sender, by my own key, or by any key of a role.
    Valid(Fingerprint),
    /// No signature, and no sign that there should be one.
    None,
    /// A signature by a key that nobody vouches for.
    Unknown,
    /// No signature, although this sender validly signed an earlier message with this key.
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

/// The byte strings that a signature may cover. If the writers of a format disagree, a message has several
/// candidates, and one that verifies is enough. The result of the first check is cached, because it is asked for
/// twice: a store checks a signature to distinguish copies of a message, and the index checks it to judge the
/// message.
#[derive(Clone)]
pub struct SignedBytes {
    candidates: Arc<CandidateVisitor>,
    checked: OnceLock<Box<SignatureCheck>>,
}

/// A function that calls back with each candidate until one is accepted. It returns true if one was.
pub type CandidateVisitor = dyn Fn(&mut dyn FnMut(&[u8]) -> bool) -> bool + Send + Sync;

/// The key and signature of a check, and the result for all candidates together.
#[derive(Clone, Copy)]
struct SignatureCheck {
    key: PublicKey,
    signature: [u8; 64],
    fits: bool,
}

impl SignedBytes {
    /// Creates a claim with one candidate.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::from_visitor(Arc::new(move |accept| accept(&bytes)))
    }

    /// Creates a claim with these candidates.
    pub fn from_candidates(readings: Vec<Vec<u8>>) -> Self {
        Self::from_visitor(Arc::new(move |accept| readings.iter().any(|bytes| accept(bytes))))
    }

    /// Creates a claim whose candidates the function makes one by one, until one is accepted.
    pub fn from_visitor(readings: Arc<CandidateVisitor>) -> Self {
        Self { candidates: readings, checked: OnceLock::new() }
    }

    /// Creates a claim with one candidate that this key is known to have signed.
    pub fn from_verified(bytes: Vec<u8>, key: PublicKey, signature: [u8; 64]) -> Self {
        let checked = OnceLock::from(Box::new(SignatureCheck { key, signature, fits: true }));
        Self { checked, ..Self::from_bytes(bytes) }
    }

    /// Returns true if `check` accepts a candidate for this key and signature. If the first call had the same
    /// key and signature, its result is returned and `check` is not called.
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

    /// Returns true if the result of a check is cached.
    pub fn is_checked(&self) -> bool {
        self.checked.get().is_some()
    }

    /// Returns true if `accept` accepts a candidate. It stops at the first accepted one.
    pub fn any_candidate(&self, mut accept: impl FnMut(&[u8]) -> bool) -> bool {
        (self.candidates)(&mut accept)
    }

    /// Returns all candidates.
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
        f.debug_tuple("SignedBytes").field(&self.candidates()).finish()
    }
}

impl PartialEq for SignedBytes {
    fn eq(&self, other: &Self) -> bool {
        self.candidates() == other.candidates()
    }
}

impl Eq for SignedBytes {}

/// A signature as a store found it on a message, before anybody judged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureClaim {
    /// A well-formed signature.
    Signed {
        /// The key that the message or its store offers; `None` if it names none.
        key: Option<PublicKey>,
        /// The 64 bytes of the signature.
        signature: [u8; 64],
        /// The bytes that it may cover.
        covered: SignedBytes,
        /// The part of the message that it covers, and special rules for it.
        scope: SignatureScope,
    },
    /// Bytes in the place of a signature that cannot be one or are known to be wrong; the text says why.
    Malformed(String),
}

/// The part of a message that a signature covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureScope {
    /// All that is shown of the message.
    #[default]
    Whole,
    /// All that is shown, but the signed text names another sender than the envelope. The message is rejected if
    /// the key is pinned to another address than the signed sender.
    Renamed,
    /// All that is shown, signed with the key that the signature carries. Writers of this kind are roles, not
    /// identities, so no key is pinned or compared.
    Unpinned,
    /// A part of the text. It never makes a pin. If its key is not pinned, the message counts as unsigned.
    Part,
}
