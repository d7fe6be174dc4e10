//! A cache of signatures that were found to fit.
//!
//! A message is read again when it is shown. A second check by Ed25519 was 45 % of the processor time of a first
//! listing (docs/PERFORMANCE.md, "Reading"). So a signature that fitted once is known by a hash of
//! key, signature and signed bytes. The hash begins with random bytes of this process, so that nobody outside can
//! search for two messages with one hash.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

use super::PublicKey;
use super::locks::{LockLevel, Mutex};

/// Number of cached signatures: 2 MiB. A newer one replaces an older one.
const SLOTS: usize = 1 << 17;

/// The cache of this process; `None` if the system gives no random bytes.
static FITTED: LazyLock<Option<SignatureCache>> = LazyLock::new(SignatureCache::new);

/// Returns the result of `check`, or true without a check if the same three fitted before.
pub(super) fn verify_cached(
    key: &PublicKey,
    signature: &[u8; 64],
    message: &[u8],
    check: impl FnOnce() -> bool,
) -> bool {
    let Some(cache) = &*FITTED else { return check() };
    let hash = cache.hash(key, signature, message);
    if cache.contains(&hash) {
        return true;
    }
    let fits = check();
    if fits {
        cache.insert(&hash);
    }
    fits
}

/// A table of hashes. Each hash determines its own slot.
struct SignatureCache {
    /// The hash state after the random bytes.
    start: Sha256,
    slots: Mutex<Box<[[u8; 16]]>>,
}

impl SignatureCache {
    /// Returns an empty cache; `None` if the system gives no random bytes.
    fn new() -> Option<Self> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).ok()?;
        let slots = vec![[0; 16]; SLOTS].into_boxed_slice();
        let slots = Mutex::with_level(LockLevel::Decoded, slots);
        Some(Self { start: Sha256::new_with_prefix(random), slots })
    }

    fn hash(&self, key: &PublicKey, signature: &[u8; 64], message: &[u8]) -> [u8; 32] {
        let hash = self.start.clone().chain_update(key.0).chain_update(signature);
        hash.chain_update(message).finalize().into()
    }

    fn contains(&self, hash: &[u8; 32]) -> bool {
        let (at, value) = split_hash(hash);
        self.slots.lock().get(at) == Some(&value)
    }

    fn insert(&self, hash: &[u8; 32]) {
        let (at, value) = split_hash(hash);
        if let Some(slot) = self.slots.lock().get_mut(at) {
            *slot = value;
        }
    }
}

/// Returns the slot of a hash, and the value that is stored there.
fn split_hash(hash: &[u8; 32]) -> (usize, [u8; 16]) {
    let [value, place] = [0, 16].map(|from| {
        let half = hash.get(from..from + 16).and_then(|half| half.try_into().ok());
        half.unwrap_or_else(|| unreachable!("a hash has two halves"))
    });
    let place = u128::from_le_bytes(place) % SLOTS as u128;
    (place as usize, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fitted_is_remembered() {
        let (key, signature) = (PublicKey([7; 32]), [9; 64]);
        let asked = |message: &[u8], answer| {
            let mut asked = false;
            let check = || {
                asked = true;
                answer
            };
            (verify_cached(&key, &signature, message, check), asked)
        };
        assert_eq!(asked(b"forged", false), (false, true));
        assert_eq!(asked(b"forged", false), (false, true), "a refusal is not remembered");
        assert_eq!(asked(b"signed", true), (true, true));
        assert_eq!(asked(b"signed", false), (true, false));
        assert_eq!(asked(b"signed!", false), (false, true));
        let (other, signature) = (PublicKey([8; 32]), [9; 64]);
        assert!(!verify_cached(&other, &signature, b"signed", || false), "another key");
        assert!(!verify_cached(&key, &[8; 64], b"signed", || false), "another signature");
    }

    #[test]
    fn a_newer_one_takes_the_place_of_an_older_one() {
        let cache = SignatureCache::new().unwrap();
        let (mut first, mut second) = ([1; 32], [1; 32]);
        (first[0], second[0]) = (2, 3);
        cache.insert(&first);
        assert!(cache.contains(&first) && !cache.contains(&second));
        cache.insert(&second);
        assert!(!cache.contains(&first) && cache.contains(&second));
    }
}
