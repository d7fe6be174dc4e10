//! Strict Ed25519 verification: one signature, one key, one spelling of each.

use ed25519_dalek::{Signature, VerifyingKey};

use super::{Claim, PublicKey};

/// Why 32 bytes cannot serve as a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// They are not a point of the curve.
    #[error("its 32 bytes are not an Ed25519 public key")]
    NotAPoint,
    /// They are a second spelling of a point, which would give one key two fingerprints.
    #[error("it is not written in the canonical form")]
    NotCanonical,
    /// The point has small order: signatures "by" it fit any message.
    #[error("it is of small order, so anybody could sign with it")]
    SmallOrder,
}

/// Checks that a key is a canonical point of large order.
///
/// # Errors
/// [`BadKey`] says which rule it breaks.
pub fn check_key(key: &PublicKey) -> Result<(), BadKey> {
    decode(key).map(drop)
}

/// Whether `signature` is by `key` over `message`. `S` must be canonical, and neither the key nor
/// `R` may be of small order.
pub fn verify(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
    let signature = Signature::from_bytes(signature);
    decode(key).is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
}

/// Whether a claimed signature is by `key` over any of the byte strings it may cover. The claim
/// remembers the first answer.
pub fn verify_claim(key: &PublicKey, claim: &Claim) -> bool {
    match claim {
        Claim::Signed { signature, covered, .. } => {
            covered.fits(*key, *signature, |bytes| verify(key, bytes, signature))
        }
        Claim::Malformed(_) => false,
    }
}

/// What is wrong with a claimed signature by the key it names itself, whoever that may be; `None` if
/// nothing is, or if it names no key.
pub fn fault(claim: &Claim) -> Option<String> {
    match claim {
        Claim::Malformed(why) => Some(why.clone()),
        Claim::Signed { key: None, .. } => None,
        Claim::Signed { key: Some(key), .. } => match check_key(key) {
            Err(e) => Some(format!("the key cannot be used: {e}")),
            Ok(()) if verify_claim(key, claim) => None,
            Ok(()) => Some("the signature does not fit the message and the key it names".into()),
        },
    }
}

fn decode(key: &PublicKey) -> Result<VerifyingKey, BadKey> {
    let point = VerifyingKey::from_bytes(&key.0).map_err(|_| BadKey::NotAPoint)?;
    if point.to_edwards().compress().to_bytes() != key.0 {
        return Err(BadKey::NotCanonical);
    }
    if point.is_weak() {
        return Err(BadKey::SmallOrder);
    }
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

    /// The identity, -1, and a point of order eight.
    fn small_order() -> Vec<[u8; 32]> {
        let mut identity = [0; 32];
        identity[0] = 1;
        let mut minus_one = [0xff; 32];
        minus_one[0] = 0xec;
        minus_one[31] = 0x7f;
        let eight = [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef,
            0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88,
            0x6d, 0x53, 0xfc, 0x05,
        ];
        vec![identity, minus_one, [0; 32], eight]
    }

    fn pair(seed: u8) -> (SigningKey, PublicKey) {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let public = PublicKey(key.verifying_key().to_bytes());
        (key, public)
    }

    #[test]
    fn small_order_keys_sign_nothing() {
        for bytes in small_order() {
            let key = PublicKey(bytes);
            assert_eq!(check_key(&key), Err(BadKey::SmallOrder), "{bytes:02x?}");
            // R = identity, S = 0 satisfies the plain equation for a key of order one.
            let mut forged = [0; 64];
            forged[0] = 1;
            assert!(!verify(&key, b"anything", &forged));
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
                assert_eq!(check_key(&PublicKey(wrapped)), Err(BadKey::NotCanonical), "y = {y}");
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
        let bad = (0..=255u8).filter(|b| check_key(&PublicKey([*b; 32])) == Err(BadKey::NotAPoint));
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
            prop_assert!(verify(&public, &message, &signature));
            let mut flipped = signature;
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify(&public, &message, &flipped));
            let mut longer = message.clone();
            longer.push(0);
            prop_assert!(!verify(&public, &longer, &signature));
            prop_assert!(!verify(&PublicKey(other), &message, &signature));
        }
    }
}
