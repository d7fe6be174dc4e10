//! Strict Ed25519 verification: one signature, one key, one encoding of each.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};
use lru::LruCache;

use super::locks::{LockLevel, Mutex};
use super::{PublicKey, SignatureClaim, signature_cache};

/// Number of keys that are cached decoded. This saves a tenth of a check.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Usable keys, by their bytes.
static DECODED: LazyLock<Mutex<LruCache<[u8; 32], VerifyingKey>>> =
    LazyLock::new(|| Mutex::with_level(LockLevel::Decoded, LruCache::new(KEPT)));

/// The encodings of the points of small order.
const SMALL_ORDER: [[u8; 32]; 8] = {
    let (mut one, mut minus_one, mut four) = ([0; 32], [0xff; 32], [0; 32]);
    one[0] = 1;
    (minus_one[0], minus_one[31]) = (0xec, 0x7f);
    four[31] = 0x80;
    let eight = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ];
    let other = [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ];
    let (mut minus_eight, mut minus_other) = (eight, other);
    minus_eight[31] |= 0x80;
    minus_other[31] |= 0x80;
    [one, minus_one, [0; 32], four, eight, minus_eight, other, minus_other]
};

/// The reason why 32 bytes cannot serve as a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Bytes that are not a point of the curve.
    #[error("its 32 bytes are not an Ed25519 public key")]
    NotAPoint,
    /// A second encoding of a point, which would give one key two fingerprints.
    #[error("it is not written in the canonical form")]
    NotCanonical,
    /// A point of small order: signatures "by" it fit any message.
    #[error("it is of small order, so anybody could sign with it")]
    SmallOrder,
}

/// Checks that a key is a canonical point of large order.
///
/// # Errors
/// [`PublicKeyError`] says which rule it breaks.
pub fn check_key(key: &PublicKey) -> Result<(), PublicKeyError> {
    decode_key(key).map(drop)
}

/// Returns true if `signature` is by `key` over `message`. `S` must be canonical, and neither the key nor `R`
/// may have small order. A signature that fitted before is not computed again.
///
/// The result equals that of the library's `verify_strict`, at less cost: `verify_strict` decodes `R` to see its
/// order. A signature that fits has the computed `R`, which is encoded canonically, and there are eight
/// canonical encodings of points of small order.
pub fn verify(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
    let small = signature.first_chunk().is_none_or(|r| SMALL_ORDER.contains(r));
    let fits = || {
        let signature = Signature::from_bytes(signature);
        decode_key(key).is_ok_and(|key| key.verify(message, &signature).is_ok())
    };
    !small && signature_cache::verify_cached(key, signature, message, fits)
}

/// Returns true if a claimed signature is by `key` over any of its candidates. The claim caches the first
/// result.
pub fn verify_claim(key: &PublicKey, claim: &SignatureClaim) -> bool {
    match claim {
        SignatureClaim::Signed { signature, covered, .. } => {
            covered.verify_once(*key, *signature, |bytes| verify(key, bytes, signature))
        }
        SignatureClaim::Malformed(_) => false,
    }
}

/// Checks a claimed signature by the key it names, if it names one. The claim caches the result for later calls.
pub fn check_claim(claim: &SignatureClaim) {
    if let SignatureClaim::Signed { key: Some(key), .. } = claim {
        verify_claim(key, claim);
    }
}

/// Returns the fault of a claimed signature by the key that it names itself. Returns `None` if it has no fault
/// or names no key.
pub fn find_claim_fault(claim: &SignatureClaim) -> Option<String> {
    match claim {
        SignatureClaim::Malformed(why) => Some(why.clone()),
        SignatureClaim::Signed { key: None, .. } => None,
        SignatureClaim::Signed { key: Some(key), .. } => match check_key(key) {
            Err(e) => Some(format!("the key cannot be used: {e}")),
            Ok(()) if verify_claim(key, claim) => None,
            Ok(()) => Some("the signature does not fit the message and the key it names".into()),
        },
    }
}

fn decode_key(key: &PublicKey) -> Result<VerifyingKey, PublicKeyError> {
    if let Some(known) = DECODED.lock().get(&key.0) {
        return Ok(*known);
    }
    let point = VerifyingKey::from_bytes(&key.0).map_err(|_| PublicKeyError::NotAPoint)?;
    if point.to_edwards().compress().to_bytes() != key.0 {
        return Err(PublicKeyError::NotCanonical);
    }
    if point.is_weak() {
        return Err(PublicKeyError::SmallOrder);
    }
    DECODED.lock().put(key.0, point);
    Ok(point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::{Signer as _, SigningKey};
    use proptest::prelude::*;

    /// The order of the base point, little-endian.
    const L: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];

    fn pair(seed: u8) -> (SigningKey, PublicKey) {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let public = PublicKey(key.verifying_key().to_bytes());
        (key, public)
    }

    #[test]
    fn small_order_keys_sign_nothing() {
        for bytes in SMALL_ORDER {
            let key = PublicKey(bytes);
            assert_eq!(check_key(&key), Err(PublicKeyError::SmallOrder), "{bytes:02x?}");
            // R = identity, S = 0 satisfies the plain equation for a key of order one.
            let mut forged = [0; 64];
            forged[0] = 1;
            assert!(!verify(&key, b"anything", &forged));
        }
    }

    #[test]
    fn these_are_all_points_of_small_order() {
        let mut all = SMALL_ORDER.to_vec();
        all.sort_unstable();
        all.dedup();
        // As many as the curve has, each in its canonical encoding.
        assert_eq!(all.len(), 8);
        for bytes in all {
            let point = VerifyingKey::from_bytes(&bytes).unwrap();
            assert!(point.is_weak(), "{bytes:02x?}");
            assert_eq!(point.to_edwards().compress().to_bytes(), bytes);
        }
    }

    /// Asserts that both verifications agree, and returns their result.
    fn as_strict(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
        let strict = decode_key(key)
            .is_ok_and(|key| key.verify_strict(message, &Signature::from_bytes(signature)).is_ok());
        assert_eq!(verify(key, message, signature), strict, "{key:?} {signature:02x?}");
        strict
    }

    #[test]
    fn an_r_of_small_order_is_refused() {
        // The plain equation holds for all of these: a key of large order, with or without a part of
        // small order, and an S made for an R of small order.
        let forged = [
            (
                "88aa55e6afeed8960a3191de78600347db8acd0a3795412f275f049b86260488",
                "message 0",
                "0100000000000000000000000000000000000000000000000000000000000000\
                 8771922bf99ad24b2bb02827edbbcaeb9325b17d8110d6141946897618163504",
            ),
            (
                "ef2a32ce8d9c67056724a53f63c0c182a6e021dc6e708741f63a7d50c730982c",
                "message 1",
                "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85\
                 5e7c44f4b776596d97e0cc4b62720f0057bb9957658e37b8c699425c9fa84c0c",
            ),
            (
                "fe06cb89e538357d67e1501076feee76fb27a48505045ae2f026af9a80f47117",
                "message 0",
                "0000000000000000000000000000000000000000000000000000000000000000\
                 41f0b4a466f166ac5b98d9486dca73b277420457731795c5e8c38ff4330caa08",
            ),
            (
                "99555efe5dbf5b50b6fb4d8c38ee05c4ea8a97011c08e11366e8c8c00e8ce5d5",
                "message 0",
                "0000000000000000000000000000000000000000000000000000000000000080\
                 79f6d411bc7f979f18bc1229cf4ae7a643b6d68a12231a62f5e3d396f648ba0e",
            ),
            (
                "6555aa1950112769f5ce6e21879ffcb8247532f5c86abed0d8a0fb6479d9fb77",
                "message 2",
                "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f\
                 ad1ca4214f7cb8d013dbeceae1008d968b68d571df297036b322c190b4f61b0e",
            ),
            (
                "fed4cd31726398fa98db5ac09c3f3e7d591fde23918f78be09c582af38cf67d3",
                "message 0",
                "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05\
                 0c86c93fa21ef0c81c1e52c93c65614a683bf8eedad4d1722e6fa05f876cf201",
            ),
            (
                "eff834761ac7ca82981eafef8901118904d85b7afafba51d0fd950657f0b8ee8",
                "message 0",
                "0000000000000000000000000000000000000000000000000000000000000000\
                 2c9d8b24cd62f19d82c0e8efc67a3427ef3af7f886c1c2ce619ef9a61507b20c",
            ),
            (
                "54aaa101a240a4af4904b273c711fa3b157568fee3f71eec9917373ff1731a2a",
                "message 0",
                "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85\
                 561cc09a7c4aa30c7a593737138fe01042574d418c1a919265a5d844f367e309",
            ),
        ];
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = hex.as_bytes().chunks(2);
            digits
                .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
                .collect()
        };
        for (key, message, signature) in forged {
            let key = PublicKey(bytes(key).try_into().unwrap());
            let signature = bytes(signature).try_into().unwrap();
            let plain = decode_key(&key)
                .unwrap()
                .verify(message.as_bytes(), &Signature::from_bytes(&signature));
            assert!(plain.is_ok());
            assert!(!as_strict(&key, message.as_bytes(), &signature));
        }
    }

    #[test]
    fn a_second_spelling_of_a_key_is_refused() {
        // y = 3 and y = p + 3 are the same point, if there is one.
        let mut found = 0;
        for y in 0..19u8 {
            let mut plain = [0; 32];
            plain[0] = y;
            let mut wrapped = [0xff; 32];
            wrapped[0] = 0xed + y.min(0x12);
            wrapped[31] = 0x7f;
            if check_key(&PublicKey(plain)).is_ok() {
                found += 1;
                assert_eq!(
                    check_key(&PublicKey(wrapped)),
                    Err(PublicKeyError::NotCanonical),
                    "y = {y}"
                );
            }
        }
        assert!(found > 0);
    }

    #[test]
    fn s_must_be_canonical() {
        let (key, public) = pair(7);
        let good = key.sign(b"hello").to_bytes();
        assert!(verify(&public, b"hello", &good));
        let mut carry = 0u16;
        let mut malleated = good;
        for (s, l) in malleated[32..].iter_mut().zip(L) {
            carry += u16::from(*s) + u16::from(l);
            *s = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        assert_eq!(carry, 0, "S + L still fits, so only the range check can refuse it");
        assert!(!verify(&public, b"hello", &malleated));
    }

    #[test]
    fn not_every_32_bytes_are_a_key() {
        let bad = (0..=255u8)
            .filter(|b| check_key(&PublicKey([*b; 32])) == Err(PublicKeyError::NotAPoint));
        assert!(bad.count() > 50);
    }

    proptest! {
        #[test]
        fn only_the_signed_bytes_verify(
            seed in any::<[u8; 32]>(),
            message in proptest::collection::vec(any::<u8>(), 0..200),
            bit in 0usize..512,
            other in any::<[u8; 32]>(),
        ) {
            let key = SigningKey::from_bytes(&seed);
            let public = PublicKey(key.verifying_key().to_bytes());
            let signature = key.sign(&message).to_bytes();
            prop_assert!(as_strict(&public, &message, &signature));
            let mut flipped = signature;
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!as_strict(&public, &message, &flipped));
            let mut longer = message.clone();
            longer.push(0);
            prop_assert!(!verify(&public, &longer, &signature));
            prop_assert!(!verify(&PublicKey(other), &message, &signature));
        }
    }
}
