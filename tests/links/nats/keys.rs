//! Keys, credentials and certificates as an operator makes them.

use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// An nkey.
pub(crate) struct Keys {
    key: SigningKey,
    pub(crate) seed: String,
    pub(crate) public: String,
}

fn base32(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut out, mut bits, mut count) = (String::new(), 0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            out.push(digits[(bits >> count & 31) as usize].into());
        }
        bits &= (1 << count) - 1;
    }
    if count > 0 {
        out.push(digits[(bits << (5 - count) & 31) as usize].into());
    }
    out
}

fn checked(mut bytes: Vec<u8>) -> String {
    let mut crc = 0u16;
    for byte in &bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    bytes.extend(crc.to_le_bytes());
    base32(&bytes)
}

impl Keys {
    pub(crate) fn user(n: u8) -> Self {
        Self::new(b'U', n)
    }

    /// Makes the key of an operator, account or user: O, A or U.
    pub(crate) fn new(letter: u8, n: u8) -> Self {
        let kind = (letter - b'A') << 3;
        let key = SigningKey::from_bytes(&[n; 32]);
        let seed = [&[18 << 3 | kind >> 5, kind << 3][..], &[n; 32]].concat();
        let public = [&[kind][..], &key.verifying_key().to_bytes()].concat();
        Self { key, seed: checked(seed), public: checked(public) }
    }

    /// Returns a JWT in which this key vouches for another one.
    pub(crate) fn jwt(&self, of: &Self, kind: &str, until: Option<i64>, more: &Value) -> String {
        let mut nats = more.clone();
        nats["type"] = json!(kind);
        nats["version"] = json!(2);
        let mut claims = json!({
            "iat": now(), "iss": self.public, "sub": of.public, "name": kind, "nats": nats,
        });
        if let Some(until) = until {
            claims["exp"] = json!(until);
        }
        claims["jti"] = json!(base32(&Sha256::digest(claims.to_string())));
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text =
            format!("{}.{}", part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(&claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(text.as_bytes()).to_bytes());
        format!("{text}.{signature}")
    }
}

pub(crate) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs().try_into().unwrap()
}

/// Makes an authority (`ca.pem`) and a certificate that it signed for a server (`server.pem`, `server.key`).
pub(crate) fn certificates(dir: &Path) {
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    for line in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj /CN=server",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -out server.pem -days 2",
    ] {
        let mut command = Command::new("openssl");
        command.args(line.split(' ')).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "openssl {line}");
    }
}
