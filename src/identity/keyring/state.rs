//! The state of the keyring in memory, and its exchange with the file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::size::KeyringSize;
use super::{KeyringError, SignatureVerdict};
use crate::identity::disk;
use crate::identity::document::{KeyringDocument, PinOrigin, PinRecord};
use crate::model::{PublicKey, Timestamp};
use crate::store::fs::{self, Stamp};

/// The document in memory, and what the file does not have yet.
#[derive(Debug, Default)]
pub(super) struct KeyringState {
    pub document: KeyringDocument,
    /// The trusted keys of `document`, by address, kept because every signed message needs them.
    pub trusted: HashMap<String, Vec<PublicKey>>,
    /// First-use pins that are not in the file.
    pub new_pins: BTreeMap<String, (PublicKey, PinRecord)>,
    /// Refused keys of each address that are not in the file, with the time, in their order.
    pub new_refusals: BTreeMap<String, Vec<(PublicKey, String)>>,
    /// My own keys, by my address.
    pub own_keys: BTreeMap<String, Vec<PublicKey>>,
    /// True if days or stores of use, or pins of my own keys, are not in the file.
    pub has_unsaved_uses: bool,
    /// The stamp of the file when it was last read or written; `None` if there was no file.
    pub stamp: Option<Stamp>,
    /// The size of the file with what is not written yet.
    pub size: KeyringSize,
    /// Addresses that got their first key and were not reported yet.
    pub first_uses: BTreeSet<String>,
    /// Addresses whose keys were trusted or forgotten since the last question.
    pub changed_addresses: BTreeSet<String>,
    /// Addresses whose messages are being judged again, with the number of such reviews.
    pub under_review: BTreeMap<String, usize>,
    /// The reason why the file could not be read again.
    pub fault: Option<String>,
}

impl KeyringState {
    /// Returns another address to which the key is pinned.
    pub fn find_other_owner(&self, key: &PublicKey, address: &str) -> Option<String> {
        let entry = self.document.entry(*key)?;
        entry.form.pinned.keys().find(|a| *a != address).cloned()
    }

    /// Pins the first key of an address: trust on first use.
    pub fn pin_first_key(
        &mut self,
        from: &str,
        store: &str,
        key: PublicKey,
        now: Timestamp,
    ) -> SignatureVerdict {
        let pin = PinRecord::new(PinOrigin::FirstUse, Some(store), now);
        if self.document.pin_key(from, key, pin.clone()).is_none() {
            return SignatureVerdict::Rejected(format!(
                "the key {} it offers was made to look like another key in the keyring",
                key.fingerprint()
            ));
        }
        self.first_uses.insert(from.to_owned());
        self.new_pins.insert(from.to_owned(), (key, pin));
        self.trusted.insert(from.to_owned(), vec![key]);
        SignatureVerdict::Valid(key)
    }

    /// Remembers the key as refused for the address.
    pub fn record_refused_key(&mut self, from: &str, key: PublicKey, now: Timestamp) {
        if self.document.is_refused(from, key) || !self.size.add_key(from) {
            return;
        }
        let when = now.rfc3339();
        // A key that collides with another cannot be trusted later either.
        if self.document.record_refused_key(from, key, &when).is_some() {
            let new = self.new_refusals.entry(from.to_owned()).or_default();
            new.retain(|(other, _)| self.document.is_refused(from, *other));
            new.push((key, when));
        }
    }

    /// Returns true if there are changes that the file lacks.
    pub fn is_dirty(&self) -> bool {
        self.has_unsaved_uses || !self.new_pins.is_empty() || !self.new_refusals.is_empty()
    }

    /// Reads the file again if it is not the one read or written last.
    pub fn reload_if_stale(&mut self, path: &Path) -> Result<(), KeyringError> {
        let now = Stamp::from_path(path).map_err(io_error_at(path))?;
        if now == self.stamp && self.fault.is_none() { Ok(()) } else { self.read_file(path) }
    }

    /// Reads the file, and adds what is not written yet where the file does not object.
    pub fn read_file(&mut self, path: &Path) -> Result<(), KeyringError> {
        let (mut document, stamp) = read_document(path)?;
        let restored = self.restore_own_keys(&mut document);
        let in_file = document.trusted_keys();
        let mut size = KeyringSize::of_file(stamp);
        let forgotten = &self.document.forgotten_messages;
        self.new_pins.retain(|address, (key, pin)| {
            let is_older = document.forgotten_messages.get(address) != forgotten.get(address);
            !is_older
                && !in_file.contains_key(address)
                && size.add_key(address)
                && document.pin_key(address, *key, pin.clone()).is_some()
        });
        let trusted = document.trusted_keys();
        self.new_refusals.retain(|address, refused| {
            refused.retain(|(key, when)| {
                // The key was refused because the address has another key, or because another address has this key.
                let still = match trusted.get(address) {
                    Some(keys) => !keys.contains(key),
                    None => trusted.values().flatten().any(|other| other == key),
                };
                still
                    && size.add_key(address)
                    && document.record_refused_key(address, *key, when).is_some()
            });
            !refused.is_empty()
        });
        self.has_unsaved_uses = !restored.is_empty();
        (self.stamp, self.size) = (stamp, size);
        self.adopt_document(document, trusted);
        // The file has lost the refused keys of these addresses, too.
        self.changed_addresses.extend(restored);
        self.fault = None;
        Ok(())
    }

    /// Makes a document the state and notes the addresses whose trust it changes.
    pub fn adopt_document(
        &mut self,
        document: KeyringDocument,
        trusted: HashMap<String, Vec<PublicKey>>,
    ) {
        let before = self.trust_hashes();
        (self.document, self.trusted) = (document, trusted);
        self.changed_addresses.extend(diff_names(&before, &self.trust_hashes()));
    }

    /// Returns a hash of the trusted keys of each address.
    pub fn trust_hashes(&self) -> BTreeMap<String, u64> {
        let mut hashes: BTreeMap<&str, Sha256> = BTreeMap::new();
        for (address, keys) in &self.trusted {
            let hash = hashes.entry(address).or_default();
            for key in keys {
                hash.update(key.0);
            }
        }
        for (address, held) in &self.document.forgotten_messages {
            let hash = hashes.entry(address).or_default();
            hash.update("forgotten");
            for print in held {
                hash.update(print.0.to_be_bytes());
            }
        }
        let short = |(address, hash): (&str, Sha256)| (address.to_owned(), truncate_hash(hash));
        hashes.into_iter().map(short).collect()
    }

    /// Replaces the file and makes its content the state.
    pub fn write_file(
        &mut self,
        path: &Path,
        document: KeyringDocument,
    ) -> Result<(), KeyringError> {
        let io = io_error_at(path);
        let text = document.to_text().map_err(|e| io(e.into()))?;
        disk::replace_file(path, text.as_bytes()).map_err(|e| match e.kind() {
            io::ErrorKind::FileTooLarge => KeyringError::Full(path.to_owned()),
            _ => io(e),
        })?;
        let trusted = document.trusted_keys();
        self.adopt_document(document, trusted);
        self.new_pins.clear();
        self.new_refusals.clear();
        self.has_unsaved_uses = false;
        self.stamp = Stamp::from_path(path).map_err(io)?;
        self.size = KeyringSize::of_file(self.stamp);
        Ok(())
    }
}

/// Returns a function that makes an error about a file from one of the system.
pub(super) fn io_error_at(path: &Path) -> impl Fn(io::Error) -> KeyringError + Copy + '_ {
    |source| KeyringError::Io { path: path.to_owned(), source }
}

/// Returns the first 8 bytes of a hash.
pub(super) fn truncate_hash(hash: Sha256) -> u64 {
    let hash: [u8; 32] = hash.finalize().into();
    hash.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight))
}

/// Returns the names whose values differ between two tables.
pub(super) fn diff_names(
    one: &BTreeMap<String, u64>,
    other: &BTreeMap<String, u64>,
) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    names.into_iter().filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// Returns the document and its stamp. The stamp is taken before the content, so that a later change is noticed.
fn read_document(path: &Path) -> Result<(KeyringDocument, Option<Stamp>), KeyringError> {
    let corrupt = |problem: String| KeyringError::Corrupt(path.to_owned(), problem);
    let io = io_error_at(path);
    let file = match fs::open_regular(path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok((KeyringDocument::default(), None));
        }
        Err(e) => return Err(disk::describe_file_fault(&e).map_or_else(|| io(e), corrupt)),
    };
    let stamp = Stamp::from_file(&file).map_err(io)?;
    let bytes = fs::read_limited(file, disk::MAX_BYTES).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => corrupt(format!("it {e}")),
        _ => io(e),
    })?;
    Ok((KeyringDocument::parse(&bytes).map_err(corrupt)?, Some(stamp)))
}
