//! The keyring: the keys that belong to each address.
//!
//! # Rules
//!
//! 1. The keys pinned for an address decide, whatever key a message offers and in whatever store it lies. An address
//!    without a pin gets one from the first message whose signature verifies with the key it offers (trust on first
//!    use). A signature over a part of a message, or by nobody, makes no pin.
//! 2. Another key is refused until a person trusts it. Trusting adds a key: messages signed with the older ones stay
//!    valid.
//! 3. Keys are compared as 32 bytes, never by fingerprint: fingerprints are 64 bits of a hash.
//! 4. Forgetting an address takes all its keys away. The messages that it wrote until then pin no key: each counts by a
//!    pinned key or not at all. The next new message pins again. If a forgotten key verifies a signature and the key on
//!    offer does not, the verdict is unknown, not wrong.
//! 5. The file wins. Another process may change it (`msgfs key trust`). Its text replaces the state in memory, except
//!    for first-use pins that are not written yet and that the file does not contradict, and for my own keys: they stay
//!    pinned to my addresses that have no key in the file.
//! 6. A file that cannot be understood is an error and is never replaced.
//! 7. A message brings no key for an address that is too long, and none into a file that is nearly as large as it can
//!    be. Its signature is then unknown. Keys that are there stay.
//!
//! The verdict on a signature follows from the message and the file alone, whatever was judged before.
//!
//! # Locks
//!
//! One mutex guards the state. It is held while the file is written, so that nothing is lost in between, and never
//! while a signature is verified. The lock on disk is taken after the mutex.

mod error;
mod own_keys;
mod rejection_text;
mod reviews;
mod size;
mod state;

pub use error::KeyringError;
pub use rejection_text::describe_other_own_key;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use self::rejection_text::{describe_changed_key, describe_foreign_key, describe_wrong_signature};
use self::state::{KeyringState, io_error_at, truncate_hash};
use super::disk;
use super::document::{KeyringDocument, PinOrigin, PinRecord, parse_time};
use crate::model::locks::Mutex;
use crate::model::verify::{check_key, verify_claim};
use crate::model::{
    Fingerprint, PublicKey, SignatureClaim, SignatureScope, Timestamp, sanitize_line,
};

/// A stand-in for one message in the keyring: 8 bytes of a hash of its store, its sender and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageDigest(pub(super) u64);

/// A message whose signature is judged.
#[derive(Clone, Copy, Debug)]
pub struct SignedMessage<'a> {
    /// Name of the store it lies in.
    pub store: &'a str,
    /// The sender that it names.
    pub from: &'a str,
    /// Its id.
    pub id: &'a str,
}

impl MessageDigest {
    /// Returns the digest as a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl SignedMessage<'_> {
    /// Returns the digest by which the keyring remembers the message.
    pub fn digest(&self) -> MessageDigest {
        let mut hash = Sha256::new();
        for text in [self.store, self.from, self.id] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        MessageDigest(truncate_hash(hash))
    }
}

/// The keyring's verdict on a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureVerdict {
    /// A signature by a key trusted for the sender.
    Valid(PublicKey),
    /// A signature that no known key can judge.
    Unknown,
    /// A signature that is wrong, malformed, or by a key that is not the sender's, with a sentence for a person.
    Rejected(String),
}

/// One address and a key trusted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The address that the key vouches for.
    pub address: String,
    /// The fingerprint of the key.
    pub fingerprint: Fingerprint,
    /// The key.
    pub key: PublicKey,
    /// The time at which the key was first seen, under any address.
    pub first_seen: Timestamp,
    /// The time at which the key was last seen, to the day.
    pub last_seen: Timestamp,
    /// The time at which the key was pinned to this address.
    pub since: Timestamp,
    /// True if a person trusted the key, and not the first message.
    pub by_hand: bool,
    /// Names of the stores in which the key was seen for this address.
    pub stores: Vec<String>,
}

/// The keyring of one me. Share it with `Arc`; every method takes `&self`.
#[derive(Debug)]
pub struct Keyring {
    path: PathBuf,
    read_only: bool,
    state: Mutex<KeyringState>,
}

impl Keyring {
    /// Opens the keyring. A missing file is an empty keyring, which is not written until there is something to write.
    ///
    /// # Errors
    /// [`KeyringError::Corrupt`] if the file is no keyring or no regular file, and I/O errors.
    pub fn open(path: &Path) -> Result<Self, KeyringError> {
        let mut state = KeyringState::default();
        state.read_file(path)?;
        state.changed_addresses.clear();
        Ok(Self { path: path.to_owned(), read_only: false, state: Mutex::new(state) })
    }

    /// Opens the keyring like [`Keyring::open`], but never writes: pins made on first use live in memory.
    ///
    /// # Errors
    /// The errors of [`Keyring::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, KeyringError> {
        Ok(Self { read_only: true, ..Self::open(path)? })
    }

    /// Judges the signature of a message, and pins the key it offers if its sender has none. Call it in the order of
    /// the messages: the first one decides. The keyring does not judge messages without any signature.
    ///
    /// A claim over a [part](SignatureScope::Part) is valid by a key pinned for the sender. Otherwise it proves nothing
    /// and gives [`SignatureVerdict::Unknown`].
    pub fn judge_signature(
        &self,
        message: SignedMessage<'_>,
        claim: &SignatureClaim,
    ) -> SignatureVerdict {
        let (offered, scope) = match claim {
            SignatureClaim::Malformed(why) => {
                return SignatureVerdict::Rejected(format!(
                    "the signature is malformed: {}",
                    sanitize_line(why)
                ));
            }
            SignatureClaim::Signed { key, scope, .. } => (*key, *scope),
        };
        let fits = |key: &PublicKey| verify_claim(key, claim);
        let pinned = self.pinned_keys(message.from);
        // The key that a store offers may differ from the one that signed the message: the sender's key file may have
        // been replaced since. Only the signed part of a text names its key for sure.
        let asked = |key: &PublicKey| match scope {
            SignatureScope::Unpinned => false,
            SignatureScope::Part => offered.is_none_or(|offered| offered == *key),
            SignatureScope::Whole | SignatureScope::Renamed => true,
        };
        // The offered key comes first: it is usually the right one, and its check is remembered.
        let is_offered = |key: &&PublicKey| offered == Some(**key);
        let others = pinned.iter().rev().filter(|key| !is_offered(key));
        let mut keys = pinned.iter().filter(is_offered).chain(others);
        if let Some(key) = keys.find(|key| asked(key) && fits(key)) {
            let state = &mut *self.state.lock();
            let now = Timestamp::now();
            state.has_unsaved_uses |=
                state.document.record_use(message.from, *key, message.store, now);
            return SignatureVerdict::Valid(*key);
        }
        let Some(offered) = offered.filter(|_| scope != SignatureScope::Part) else {
            let wrong = offered.is_none() && scope != SignatureScope::Part && !pinned.is_empty();
            return if wrong && scope != SignatureScope::Unpinned && !self.is_forgotten(message) {
                SignatureVerdict::Rejected(describe_wrong_signature(message.from, None, &pinned))
            } else {
                SignatureVerdict::Unknown
            };
        };
        if !fits(&offered) {
            // The sender's key file may now offer another key than the one that signed the message.
            let forgotten = self.state.lock().document.forgotten_keys(message.from);
            if forgotten.iter().any(fits) {
                return SignatureVerdict::Unknown;
            }
            let reason = match check_key(&offered) {
                Ok(()) => describe_wrong_signature(message.from, Some(offered), &pinned),
                Err(bad) => {
                    format!("the key {} it offers is not usable: {bad}", offered.fingerprint())
                }
            };
            return SignatureVerdict::Rejected(reason);
        }
        match scope {
            SignatureScope::Unpinned => SignatureVerdict::Valid(offered),
            _ if message.from.is_empty() || self.is_forgotten(message) => SignatureVerdict::Unknown,
            _ => self.settle_new_key(message, offered, scope),
        }
    }

    /// Decides about a key that is not pinned for the sender and whose signature verified, and remembers the result.
    fn settle_new_key(
        &self,
        message: SignedMessage<'_>,
        key: PublicKey,
        scope: SignatureScope,
    ) -> SignatureVerdict {
        let (from, now) = (message.from, Timestamp::now());
        let state = &mut *self.state.lock();
        let trusted = state.trusted.get(from).cloned().unwrap_or_default();
        if trusted.contains(&key) {
            // Another thread has pinned it meanwhile.
            return SignatureVerdict::Valid(key);
        }
        let owner = state.find_other_owner(&key, from).filter(|_| scope == SignatureScope::Renamed);
        if trusted.is_empty() && owner.is_none() {
            if !state.size.add_key(from) {
                return SignatureVerdict::Unknown;
            }
            return state.pin_first_key(from, message.store, key, now);
        }
        state.record_refused_key(from, key, now);
        SignatureVerdict::Rejected(match owner {
            Some(owner) => describe_foreign_key(from, key, &owner),
            None => describe_changed_key(from, key, &trusted),
        })
    }

    /// Returns true if the message was there when the keys of its sender were forgotten.
    pub fn is_forgotten(&self, message: SignedMessage<'_>) -> bool {
        let state = self.state.lock();
        let held = state.document.forgotten_messages.get(message.from);
        held.is_some_and(|held| held.contains(&message.digest()))
    }

    /// Returns the keys trusted for an address, the one trusted last at the end.
    pub fn pinned_keys(&self, address: &str) -> Vec<PublicKey> {
        self.state.lock().trusted.get(address).cloned().unwrap_or_default()
    }

    /// Returns the trusted key that was pinned first for an address, and the time of the pin.
    pub fn first_pin(&self, address: &str) -> Option<(PublicKey, Timestamp)> {
        let state = self.state.lock();
        state.trusted.get(address)?;
        let pins = state.document.entries().filter_map(|e| {
            let pin = e.form.pinned.get(address)?;
            Some((parse_time(&pin.since).unwrap_or_default(), e.key))
        });
        pins.min_by_key(|(since, _)| *since).map(|(since, key)| (key, since))
    }

    /// Returns true if a writer with this address must sign in a store: a pinned key signed there before, or a person
    /// trusts a key. Nobody has to trust the keys that are mine.
    pub fn must_sign(&self, address: &str, store: &str) -> bool {
        let state = self.state.lock();
        let is_mine = state.own_keys.contains_key(address);
        state.document.entries().filter_map(|entry| entry.form.pinned.get(address)).any(|pin| {
            pin.stores.iter().any(|name| name == store) || pin.by == PinOrigin::Manual && !is_mine
        })
    }

    /// Returns true if any key is pinned for the address.
    pub fn is_pinned(&self, address: &str) -> bool {
        self.state.lock().trusted.contains_key(address)
    }

    /// Returns, by address, a hash of all that decides about its signatures: its keys, and its messages that were there
    /// when keys were forgotten.
    pub fn trust_hashes(&self) -> BTreeMap<String, u64> {
        self.state.lock().trust_hashes()
    }

    /// Returns the key that was refused last for an address since its keys were trusted or forgotten.
    pub fn refused_key(&self, address: &str) -> Option<PublicKey> {
        self.state.lock().document.refused_keys(address).pop()
    }

    /// Returns another address to which the key is pinned.
    pub fn find_other_owner(&self, key: &PublicKey, address: &str) -> Option<String> {
        self.state.lock().find_other_owner(key, address)
    }

    /// Returns every pin, by address, then by the time it was made.
    pub fn list_pins(&self) -> Vec<Pin> {
        let state = self.state.lock();
        let time = |text: &str| parse_time(text).unwrap_or_default();
        let mut pins: Vec<Pin> = state
            .document
            .entries()
            .flat_map(|e| e.form.pinned.iter().map(move |(address, pin)| (e, address, pin)))
            .map(|(entry, address, pin)| Pin {
                address: address.clone(),
                fingerprint: entry.key.fingerprint(),
                key: entry.key,
                first_seen: time(&entry.form.first_seen),
                last_seen: time(&entry.form.last_seen),
                since: time(&pin.since),
                by_hand: pin.by == PinOrigin::Manual,
                stores: pin.stores.clone(),
            })
            .collect();
        pins.sort_by(|a, b| {
            (&a.address, a.since, a.fingerprint).cmp(&(&b.address, b.since, b.fingerprint))
        });
        pins
    }

    /// Trusts a key for an address, beside those already trusted, and writes the file before it returns. Without a key,
    /// it trusts the only one that was offered and refused since a key was trusted. Returns the key. Trusting it again
    /// changes nothing.
    ///
    /// # Errors
    /// [`KeyringError::NothingRefused`] and [`KeyringError::SeveralRefused`] if no key is given and none or several
    /// were refused, [`KeyringError::BadKey`] and [`KeyringError::Collision`] if the key can vouch for nobody,
    /// [`KeyringError::NoAddress`] if the address is empty, [`KeyringError::ReadOnly`], and errors of writing the file.
    /// After an error nothing is changed.
    pub fn trust_key(
        &self,
        address: &str,
        key: Option<PublicKey>,
    ) -> Result<PublicKey, KeyringError> {
        if address.is_empty() {
            return Err(KeyringError::NoAddress);
        }
        self.edit_document(|document| {
            let key = match key {
                Some(key) => key,
                None => only_refused_key(document, address)?,
            };
            let fingerprint = key.fingerprint();
            check_key(&key).map_err(|source| KeyringError::BadKey(fingerprint, source))?;
            document
                .pin_key(address, key, PinRecord::new(PinOrigin::Manual, None, Timestamp::now()))
                .ok_or(KeyringError::Collision(fingerprint))?;
            Ok(key)
        })
    }

    /// Forgets every key of an address, and writes the file before it returns. The address's messages that are there
    /// (`held`) pin no key; the first signature of any other is trusted again. Returns true if there was a pin.
    ///
    /// # Errors
    /// [`KeyringError::ReadOnly`], and errors of writing the file. After an error nothing is changed.
    pub fn forget_address(
        &self,
        address: &str,
        held: BTreeSet<MessageDigest>,
    ) -> Result<bool, KeyringError> {
        self.edit_document(|document| Ok(document.forget_address(address, held)))
    }

    /// Writes what is new since the last flush: one durable write, or none if there is nothing. Call it at the end of a
    /// batch. Changes that another process wrote in the meantime are merged.
    ///
    /// # Errors
    /// Errors of reading or writing the file. After an error what is new stays and can be flushed later.
    pub fn flush(&self) -> Result<(), KeyringError> {
        let state = &mut *self.state.lock();
        if self.read_only || !state.is_dirty() {
            return Ok(());
        }
        let _lock = self.lock_file()?;
        state.reload_if_stale(&self.path)?;
        let document = state.document.clone();
        state.write_file(&self.path, document)
    }

    /// Reads the file again if another process changed it (one `stat` if not). Returns true if trust has changed since
    /// the last [`Keyring::take_changed_addresses`], also if a flush noticed the change: the caller then judges
    /// messages again. A file that cannot be read changes nothing, see [`Keyring::fault`].
    pub fn reload_if_changed(&self) -> bool {
        let state = &mut *self.state.lock();
        if let Err(error) = state.reload_if_stale(&self.path) {
            let text = error.to_string();
            if state.fault.as_ref() != Some(&text) {
                tracing::warn!("{text}");
                state.fault = Some(text);
            }
        }
        !state.changed_addresses.is_empty()
    }

    /// Returns why the file could not be read again, or that it is full; `None` if all is well.
    pub fn fault(&self) -> Option<String> {
        let state = self.state.lock();
        let full = || KeyringError::Full(self.path.clone()).to_string();
        state.fault.clone().or_else(|| state.size.is_full().then(full))
    }

    /// Applies a change to the newest state of the file and writes it.
    fn edit_document<T>(
        &self,
        edit: impl FnOnce(&mut KeyringDocument) -> Result<T, KeyringError>,
    ) -> Result<T, KeyringError> {
        if self.read_only {
            return Err(KeyringError::ReadOnly(self.path.clone()));
        }
        let state = &mut *self.state.lock();
        let _lock = self.lock_file()?;
        state.reload_if_stale(&self.path)?;
        let mut document = state.document.clone();
        let result = edit(&mut document)?;
        if document != state.document || state.is_dirty() {
            state.write_file(&self.path, document)?;
        }
        Ok(result)
    }

    fn lock_file(&self) -> Result<File, KeyringError> {
        disk::lock_beside(&self.path).map_err(io_error_at(&self.path))
    }
}

/// Returns the key refused for an address, if it is the only one.
fn only_refused_key(document: &KeyringDocument, address: &str) -> Result<PublicKey, KeyringError> {
    let refused = document.refused_keys(address);
    match refused[..] {
        [] => Err(KeyringError::NothingRefused(address.to_owned())),
        [key] => Ok(key),
        _ => Err(KeyringError::SeveralRefused(address.to_owned(), refused)),
    }
}

#[cfg(test)]
mod tests;
