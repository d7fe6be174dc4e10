//! The key that signs for me.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer as _, SigningKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{SignerRegistry, disk};
use crate::model::locks::Mutex;
use crate::model::{Fingerprint, PublicKey, Remedy, Seed, Timestamp, display_path, encode_hex};
use crate::store::Signer;
use crate::store::fs::{self, foreign_owner};

/// The reason why my key cannot be used. A key is never repaired, replaced or overwritten.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No key file of this name.
    #[error(
        "{}: there is no signing key here; msgfs makes one at the first mount or send that is not \
         read-only, or restore it from a backup",
        display_path(.0)
    )]
    Missing(PathBuf),
    /// A key file that others can read or change: its permission bits.
    #[error(
        "{}: others on this machine can read the signing key (mode {:04o}), so it is not used; \
         close it with: {}",
        display_path(.0),
        .1,
        Remedy::Permit(.0.clone(), 0o600)
    )]
    Exposed(PathBuf, u32),
    /// A key file that belongs to another user.
    #[error(
        "{}: the signing key belongs to another user ({}), so it is not used; take it over \
         with: {}",
        display_path(.0),
        .1,
        Remedy::Own(.0.clone())
    )]
    Foreign(PathBuf, u32),
    /// A file that is not a key, for this reason.
    #[error(
        "{}: not a usable signing key: {}; msgfs never replaces it: restore it from a \
         backup or, to start with a new key, move it away first: {}",
        display_path(.0),
        .1,
        Remedy::MoveAway(.0.clone())
    )]
    Corrupt(PathBuf, String),
    /// A missing key file whose key has signed: no other key takes its place. The last field is the file that records
    /// the key.
    #[error(
        "{}: the signing key {} is gone; msgfs makes no new one, because others would refuse its \
         signatures; restore it from a backup or, on another machine that has it, with: {}; to \
         start with a new key all the same: {}",
        display_path(.0),
        .1,
        Remedy::ShareKey,
        Remedy::Remove(.2.clone())
    )]
    Gone(PathBuf, Fingerprint, PathBuf),
    /// An unreadable list of keys that have signed, so that no missing key is made: the file, and the reason.
    #[error(
        "{}: the list of keys that have signed cannot be read: {}; msgfs never replaces it: mend it, or, to \
         start without this list, move it away: {}",
        display_path(.0),
        .1,
        Remedy::MoveAway(.0.clone())
    )]
    SignersUnreadable(PathBuf, String),
    /// An I/O error on the key file.
    #[error(
        "{}: the signing key cannot be read or made: {}; check the folder and its owner",
        display_path(.0),
        .1
    )]
    Io(PathBuf, #[source] io::Error),
}

/// The key file: the form of `AgentAZAll`'s `.identity_key`, of which only `private_key_hex` counts.
#[derive(Serialize, Deserialize)]
struct KeyFile {
    private_key_hex: String,
    public_key_hex: Option<String>,
    public_key_b64: Option<String>,
    fingerprint: Option<String>,
    created: Option<String>,
}

/// My Ed25519 key pair.
pub struct KeyPair {
    key: SigningKey,
    public: PublicKey,
}

impl KeyPair {
    /// Loads the mount's own key at `path`. With `make`, a missing key is made, unless one has signed.
    ///
    /// # Errors
    /// The errors of [`KeyPair::load_or_create`]; [`KeyError::Gone`] if the key has signed and is missing;
    /// [`KeyError::SignersUnreadable`] if it is missing and nobody knows if it has signed.
    pub fn load_own(path: &Path, used: &SignerRegistry, make: bool) -> Result<Self, KeyError> {
        let identity = match Self::load(path) {
            Err(e @ KeyError::Missing(_)) => match used.last_key(SignerRegistry::OWN)? {
                Some(key) => {
                    let noted = used.path().to_owned();
                    return Err(KeyError::Gone(path.to_owned(), key.fingerprint(), noted));
                }
                None if make => Self::load_or_create(path)?,
                None => return Err(e),
            },
            found => found?,
        };
        used.record_key_if_readable(SignerRegistry::OWN, identity.public)?;
        Ok(identity)
    }

    /// Reads the key at `path`, or makes one if there is nothing of that name.
    ///
    /// A new key is on disk, complete, with mode 0600, before it appears under its name. If two processes make one at
    /// the same time, both get the one that came first. Missing folders are made with mode 0700.
    ///
    /// # Errors
    /// The errors of [`KeyPair::load`], except that a missing key is made.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load(path) {
            Err(KeyError::Missing { .. }) => {}
            other => return other,
        }
        let io = |source| KeyError::Io(path.to_owned(), source);
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed).map_err(|e| io(io::Error::other(e)))?;
        let identity = Self::from_seed(&seed);
        match disk::create_file(path, identity.to_file_text().as_bytes()) {
            Ok(()) => {
                tracing::info!(path = %display_path(path), key = %identity.public.fingerprint(), "made a signing key");
                Ok(identity)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Self::load(path),
            Err(e) => Err(io(e)),
        }
    }

    /// Reads the key at `path`.
    ///
    /// # Errors
    /// [`KeyError::Exposed`] if anybody but the owner has any access, [`KeyError::Foreign`] if another user owns the
    /// file, [`KeyError::Corrupt`] if it is a symlink, no regular file or not a key, and if its public half does not
    /// belong to the private one; [`KeyError::Missing`] and [`KeyError::Io`].
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let corrupt = |problem: String| KeyError::Corrupt(path.to_owned(), problem);
        let io = |source| KeyError::Io(path.to_owned(), source);
        let file = fs::open_regular(path).map_err(|e| {
            match (disk::describe_file_fault(&e), e.kind()) {
                (Some(problem), _) => corrupt(problem),
                (None, io::ErrorKind::NotFound) => KeyError::Missing(path.to_owned()),
                (None, _) => io(e),
            }
        })?;
        let meta = file.metadata().map_err(io)?;
        if let Some(owner) = foreign_owner(&meta) {
            return Err(KeyError::Foreign(path.to_owned(), owner));
        }
        let mode = meta.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed(path.to_owned(), mode));
        }
        Self::parse(&fs::read_limited(file, disk::MAX_BYTES).map_err(io)?).map_err(corrupt)
    }

    /// Replaces the key at `path` with this one and keeps the old one beside it. Returns the path of the old one, if
    /// there was another. Readers find the one or the other.
    ///
    /// # Errors
    /// [`KeyError::Io`] if it cannot be written; then nothing is changed.
    pub fn install_key_file(&self, path: &Path) -> Result<Option<PathBuf>, KeyError> {
        let io = |source| KeyError::Io(path.to_owned(), source);
        let kept = match Self::load(path) {
            Ok(old) if old.public == self.public => return Ok(None),
            Ok(old) => format!("replaced-{}.json", old.public.fingerprint()),
            Err(KeyError::Missing(_)) => {
                disk::create_file(path, self.to_file_text().as_bytes()).map_err(io)?;
                return Ok(None);
            }
            Err(_) => format!("replaced-{}.bad", Timestamp::now().millis()),
        };
        let kept = path.with_file_name(kept);
        match std::fs::hard_link(path, &kept) {
            // It was replaced before.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => done.map_err(io)?,
        }
        disk::replace_file(path, self.to_file_text().as_bytes()).map_err(io)?;
        Ok(Some(kept))
    }

    /// Parses the text of a key file. The error names the fault, never the content.
    ///
    /// # Errors
    /// A phrase.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("it is empty".into());
        }
        let file: KeyFile = serde_json::from_slice(bytes).map_err(|e| {
            format!("it is not JSON with a member private_key_hex (line {})", e.line())
        })?;
        let seed = decode_hex_32(&file.private_key_hex)
            .ok_or("private_key_hex is not 64 hexadecimal digits (32 bytes)")?;
        let identity = Self::from_seed(&seed);
        let public = identity.public;
        let differs = |member: Option<String>, is: String| {
            member.is_some_and(|m| !m.trim().eq_ignore_ascii_case(&is))
        };
        if differs(file.public_key_hex, encode_hex(&public.0))
            || file.public_key_b64.is_some_and(|b| b.trim() != public.to_base64())
            || differs(file.fingerprint, public.fingerprint().to_string())
        {
            return Err("its public half does not belong to its private half".into());
        }
        Ok(identity)
    }

    /// Returns the key pair of a seed that another component keeps, such as a store.
    pub fn new(seed: &Seed) -> Self {
        Self::from_seed(seed.bytes())
    }

    /// Returns the secret half, for stores that sign with this key too (see
    /// [`StoreKeys::signing_key`](crate::store::StoreKeys::signing_key)).
    pub fn seed(&self) -> Seed {
        Seed::new(*self.key.as_bytes())
    }

    /// Returns the key pair of a 32-byte seed (RFC 8032, section 5.1.5).
    fn from_seed(seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let public = PublicKey(key.verifying_key().to_bytes());
        Self { key, public }
    }

    /// Returns the text of a key file.
    pub fn to_file_text(&self) -> Zeroizing<String> {
        let file = KeyFile {
            private_key_hex: encode_hex(self.key.as_bytes()),
            public_key_hex: Some(encode_hex(&self.public.0)),
            public_key_b64: Some(self.public.to_base64()),
            fingerprint: Some(self.public.fingerprint().to_string()),
            // The form calls for local time without a zone, to the microsecond.
            created: Some(jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()),
        };
        let text = serde_json::to_string_pretty(&file);
        Zeroizing::new(text.unwrap_or_else(|e| panic!("five texts cannot be written as JSON: {e}")))
    }
}

/// The mount's own key as its file has it now: a person may take it away, put it back, or close it to others while
/// mounted.
#[derive(Debug)]
pub struct OwnKey {
    path: PathBuf,
    may_create: bool,
    last: Mutex<Option<(fs::Stamp, Seed)>>,
}

impl OwnKey {
    /// Returns the key at `path`, see [`KeyPair::load_own`].
    pub fn new(path: PathBuf, make: bool) -> Self {
        Self { path, may_create: make, last: Mutex::default() }
    }

    /// Returns the key, and reads it again if its file was replaced or changed.
    ///
    /// # Errors
    /// The errors of [`KeyPair::load_own`].
    pub fn load_current(&self, used: &SignerRegistry) -> Result<Seed, KeyError> {
        let stamp = fs::Stamp::from_path(&self.path).ok().flatten();
        let known = self.last.lock().clone().filter(|(known, _)| Some(*known) == stamp);
        if let Some((_, seed)) = known {
            // A person may have removed the list because of another key.
            if let Ok(None) = used.last_key(SignerRegistry::OWN) {
                used.record_key(SignerRegistry::OWN, seed.public_key())?;
            }
            return Ok(seed);
        }
        let seed = KeyPair::load_own(&self.path, used, self.may_create)?.seed();
        *self.last.lock() = stamp.map(|stamp| (stamp, seed.clone()));
        Ok(seed)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public.fingerprint())
    }
}

impl Signer for KeyPair {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

/// Decodes 64 hexadecimal digits of either case.
fn decode_hex_32(text: &str) -> Option<[u8; 32]> {
    let text = text.trim().as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut out = [0u8; 32];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let digit = |c: &u8| char::from(*c).to_digit(16);
        *byte = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
    }
    Some(out)
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
