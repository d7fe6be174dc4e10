//! Key files: Ed25519 in PEM, PKCS#8 for the secret half and SPKI for the public one
//! (docs/formats/amp.md, section 3).

use ed25519_dalek::pkcs8::{DecodePrivateKey as _, KeypairBytes, PublicKeyBytes, spki};
use spki::DecodePublicKey as _;

use crate::model::{PublicKey, Seed, verify};

/// The reason why a key file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// The key is of another algorithm. The format names RSA and P-256, but nobody makes them.
    #[error("the key is not an Ed25519 key, the only kind that is supported")]
    Algorithm,
    /// It is encrypted, and nobody can enter the passphrase.
    #[error("it is encrypted")]
    Encrypted,
    /// It is no PEM, or does not hold what its label says.
    #[error("the file is not a key in PEM form")]
    NotAKey,
    /// The key is readable, but too weak to trust.
    #[error("the public key cannot be used: {0}")]
    Weak(#[from] verify::PublicKeyError),
}

/// Parses `keys/public.pem`.
///
/// # Errors
/// If it is no PEM, of another algorithm, or a key with which anybody could sign.
pub fn parse_public_key(text: &str) -> Result<PublicKey, PemError> {
    let key = PublicKeyBytes::from_public_key_pem(text.trim()).map_err(|e| map_spki_error(&e))?;
    let key = PublicKey(key.0);
    verify::check_key(&key)?;
    Ok(key)
}

/// Parses `keys/private.pem`.
///
/// # Errors
/// If it is encrypted, no PEM or of another algorithm.
pub fn parse_private_key(text: &str) -> Result<Seed, PemError> {
    use ed25519_dalek::pkcs8::Error;
    // PKCS#8 has it in the label, the older forms in a header.
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("4,ENCRYPTED") {
        return Err(PemError::Encrypted);
    }
    KeypairBytes::from_pkcs8_pem(text.trim()).map(|key| Seed::new(key.secret_key)).map_err(|e| {
        match e {
            Error::PublicKey(e) => map_spki_error(&e),
            _ => PemError::NotAKey,
        }
    })
}

fn map_spki_error(error: &spki::Error) -> PemError {
    match error {
        spki::Error::OidUnknown { .. } => PemError::Algorithm,
        _ => PemError::NotAKey,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn pem(label: &str, der: &[u8]) -> String {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    }

    fn spki(key: [u8; 32]) -> Vec<u8> {
        [[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00].as_slice(), &key]
            .concat()
    }

    fn pkcs8(seed: [u8; 32]) -> Vec<u8> {
        let head = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        [head.as_slice(), &seed].concat()
    }

    #[test]
    fn both_halves_of_a_pair() {
        let signing = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
        let raw = signing.verifying_key().to_bytes();
        let (public_text, private_text) =
            (pem("PUBLIC KEY", &spki(raw)), pem("PRIVATE KEY", &pkcs8([7; 32])));
        // These are the sizes that openssl gives.
        assert_eq!((public_text.len(), private_text.len()), (113, 119));
        assert_eq!(parse_public_key(&public_text), Ok(PublicKey(raw)));
        assert_eq!(
            parse_public_key(&format!("\n{}", public_text.replace('\n', "\r\n"))),
            Ok(PublicKey(raw))
        );
        assert_eq!(parse_private_key(&private_text), Ok(Seed::new([7; 32])));
    }

    #[test]
    fn what_is_no_key() {
        let mut identity = [0; 32];
        identity[0] = 1;
        let weak = verify::PublicKeyError::SmallOrder;
        assert_eq!(
            parse_public_key(&pem("PUBLIC KEY", &spki(identity))),
            Err(PemError::Weak(weak))
        );
        let mut other = spki([9; 32]);
        other[8] = 0x6e; // X25519
        assert_eq!(parse_public_key(&pem("PUBLIC KEY", &other)), Err(PemError::Algorithm));
        let mut other = pkcs8([9; 32]);
        other[11] = 0x6e;
        assert_eq!(parse_private_key(&pem("PRIVATE KEY", &other)), Err(PemError::Algorithm));
        for text in ["", "hello", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"] {
            assert_eq!(parse_public_key(text), Err(PemError::NotAKey), "{text}");
            assert_eq!(parse_private_key(text), Err(PemError::NotAKey), "{text}");
        }
        let encrypted = pem("ENCRYPTED PRIVATE KEY", &pkcs8([9; 32]));
        assert_eq!(parse_private_key(&encrypted), Err(PemError::Encrypted));
        let old = "-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n";
        assert_eq!(parse_private_key(old), Err(PemError::Encrypted));
        assert_eq!(parse_private_key(&pem("PUBLIC KEY", &spki([9; 32]))), Err(PemError::NotAKey));
        assert_eq!(parse_public_key(&pem("PRIVATE KEY", &pkcs8([9; 32]))), Err(PemError::NotAKey));
    }
}
