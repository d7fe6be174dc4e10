//! My own keys. They stay pinned to my addresses when the file loses them: a forged message from me must never be the
//! first to pin a key.

use std::collections::BTreeSet;

use super::Keyring;
use super::state::KeyringState;
use crate::identity::document::{KeyringDocument, PinOrigin, PinRecord};
use crate::model::{PublicKey, Timestamp};

impl Keyring {
    /// Keeps a key that signs for me pinned to an address of mine, also when the file later loses all keys of the
    /// address. If the address has no key now, it gets this one, which the next flush writes.
    pub fn keep_own_key(&self, address: &str, key: PublicKey) {
        let state = &mut *self.state.lock();
        let known = state.own_keys.entry(address.to_owned()).or_default();
        if !known.contains(&key) {
            known.push(key);
        }
        if !state.trusted.contains_key(address) {
            let mut document = state.document.clone();
            state.has_unsaved_uses |= !state.restore_own_keys(&mut document).is_empty();
            let trusted = document.trusted_keys();
            state.adopt_document(document, trusted);
        }
    }
}

impl KeyringState {
    /// Pins my own keys in a document to each of my addresses that has no key there. Returns these addresses.
    pub(super) fn restore_own_keys(&self, document: &mut KeyringDocument) -> BTreeSet<String> {
        let mut restored = BTreeSet::new();
        let pinned = document.trusted_keys();
        for (address, keys) in &self.own_keys {
            if pinned.contains_key(address) {
                continue;
            }
            for key in keys {
                let pin = PinRecord::new(PinOrigin::Manual, None, Timestamp::now());
                if document.pin_key(address, *key, pin).is_some() {
                    restored.insert(address.clone());
                }
            }
        }
        restored
    }
}
