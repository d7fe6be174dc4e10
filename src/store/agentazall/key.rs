//! `.identity_key`: the agent's own signing key (docs/formats/agentazall.md, section 5). Only `private_key_hex` is read
//! back, as in the reference. An existing key is never replaced.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use serde_json::Value;
use zeroize::Zeroizing;

use super::{date, new_files};
use crate::model::{PublicKey, Seed, Timestamp, encode_hex};
use crate::store::{StoreError, fs};

/// Size limit of a key file.
const LIMIT: u64 = 64 << 10;

/// Returns the path of an agent's key.
pub(super) fn key_path(base: &Path) -> PathBuf {
    base.join(".identity_key")
}

/// Returns the agent's key; `None` if it has none.
///
/// # Errors
/// [`StoreError::NoKey`] with a remedy if there is one that cannot be used.
pub(super) fn read_key(base: &Path) -> Result<Option<Seed>, StoreError> {
    let path = key_path(base);
    let shown = path.display();
    let owner = std::fs::symlink_metadata(&path).ok().and_then(|m| fs::foreign_owner(&m));
    if let Some(owner) = owner {
        return Err(StoreError::NoKey(format!(
            "the key {shown} belongs to another user ({owner}), so it is not used; take it over \
             with: {}",
            fs::chown_command(&path)
        )));
    }
    let bytes = match fs::read_small_file(&path, LIMIT) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(StoreError::NoKey(format!(
                "the key {shown} cannot be read ({e}); mend that, msgfs never replaces a key"
            )));
        }
    };
    parse_key(&bytes).map(Some).ok_or_else(|| {
        StoreError::NoKey(format!(
            "the key {shown} is damaged: it has no private_key_hex of 64 hex digits; restore it \
             from a backup (msgfs never replaces a key)"
        ))
    })
}

/// Returns the public part of the agent's key, if it has one that can be used.
pub fn read_public_key(base: &Path) -> Option<PublicKey> {
    read_key(base).ok().flatten().map(|seed| seed.public_key())
}

fn parse_key(bytes: &[u8]) -> Option<Seed> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    let text = match value.get_mut("private_key_hex").map(Value::take) {
        Some(Value::String(text)) => Zeroizing::new(text),
        _ => return None,
    };
    let digits = text.trim();
    if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut seed = Zeroizing::new([0u8; 32]);
    for (i, byte) in seed.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Seed::new(*seed))
}

/// Writes the agent's first key, in the reference's form, for its owner only.
///
/// # Errors
/// `AlreadyExists` if there is one by now, else the error of the system.
pub(super) fn write_first_key(
    base: &Path,
    seed: &Seed,
    now: Timestamp,
    zone: &TimeZone,
) -> io::Result<()> {
    let public = seed.public_key();
    let created = date::to_local_time(now, zone).strftime("%Y-%m-%dT%H:%M:%S.%6f");
    // The text is built by hand, because the members have an order there.
    let text = Zeroizing::new(format!(
        "{{\n  \"private_key_hex\": \"{}\",\n  \"public_key_hex\": \"{}\",\n  \
         \"public_key_b64\": \"{}\",\n  \"fingerprint\": \"{}\",\n  \"created\": \"{created}\"\n}}",
        *Zeroizing::new(encode_hex(seed.bytes())),
        encode_hex(&public.0),
        STANDARD.encode(public.0),
        public.fingerprint(),
    ));
    new_files::create_file(&key_path(base), 0o600, text.as_bytes())?;
    fs::sync_dir(base)
}

/// Returns true if other users than its owner can read the key.
pub(super) fn is_exposed(base: &Path) -> bool {
    std::fs::symlink_metadata(key_path(base)).is_ok_and(|m| m.is_file() && m.mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_key_is_written_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_key(dir.path()).unwrap(), None);
        let seed = Seed::new([7; 32]);
        write_first_key(dir.path(), &seed, Timestamp::from_secs(1_700_000_000), &TimeZone::UTC)
            .unwrap();
        assert_eq!(read_key(dir.path()).unwrap(), Some(seed.clone()));
        assert!(!is_exposed(dir.path()));
        let text = std::fs::read_to_string(key_path(dir.path())).unwrap();
        assert!(text.contains(r#""created": "2023-11-14T22:13:20.000000""#), "{text}");
        assert!(text.starts_with("{\n  \"private_key_hex\": \"0707"), "{text}");
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
        let other = Seed::new([8; 32]);
        let e = write_first_key(dir.path(), &other, Timestamp::now(), &TimeZone::UTC).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read_key(dir.path()).unwrap(), Some(seed));
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(key_path(dir.path()), open).unwrap();
        assert!(is_exposed(dir.path()) && read_key(dir.path()).is_ok());
    }

    #[test]
    fn damaged_keys_and_links_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = key_path(dir.path());
        for text in ["", "{}", r#"{"private_key_hex": "ab"}"#, r#"{"private_key_hex": 5}"#, "[1"] {
            std::fs::write(&file, text).unwrap();
            assert!(matches!(read_key(dir.path()), Err(StoreError::NoKey(_))), "{text}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert!(matches!(read_key(dir.path()), Err(StoreError::NoKey(_))));
    }
}
