//! Reviews: the index judges the messages of an address again after its keys changed.
//!
//! An address waits for its review from the change of its keys until [`Keyring::finish_review`]. A snapshot that is
//! written meanwhile may have old verdicts, so [`Keyring::reviewed_hashes`] has the next process review it again.

use std::collections::{BTreeMap, BTreeSet};

use super::Keyring;
use super::state::{KeyringState, diff_names};

impl Keyring {
    /// Returns the addresses that got their first key since the last call. The caller judges the messages that waited
    /// for it, and then calls [`Keyring::finish_review`].
    pub fn take_first_uses(&self) -> BTreeSet<String> {
        let state = &mut *self.state.lock();
        let taken = std::mem::take(&mut state.first_uses);
        state.begin_review(taken)
    }

    /// Returns the addresses whose keys any process trusted or forgot since the last call. The caller judges their
    /// signatures again, and then calls [`Keyring::finish_review`].
    pub fn take_changed_addresses(&self) -> BTreeSet<String> {
        let state = &mut *self.state.lock();
        let taken = std::mem::take(&mut state.changed_addresses);
        state.begin_review(taken)
    }

    /// Records that the caller has judged the messages of these addresses again.
    pub fn finish_review(&self, addresses: &BTreeSet<String>) {
        let under_review = &mut self.state.lock().under_review;
        for address in addresses {
            if let Some(reviews) = under_review.get_mut(address) {
                *reviews -= 1;
            }
        }
        under_review.retain(|_, reviews| *reviews > 0);
    }

    /// Has [`Keyring::take_changed_addresses`] name every address whose hash differs from `before`, an earlier
    /// [`Keyring::reviewed_hashes`].
    pub fn note_changes_since(&self, before: &BTreeMap<String, u64>) {
        let state = &mut *self.state.lock();
        let now = state.trust_hashes();
        state.changed_addresses.extend(diff_names(before, &now));
    }

    /// Returns the addresses without any key whose hash differs from `before`, an earlier [`Keyring::reviewed_hashes`].
    /// An address that only waited for a review there has lost no key.
    pub fn find_unpinned_since(&self, before: &BTreeMap<String, u64>) -> BTreeSet<String> {
        let state = self.state.lock();
        let now = state.trust_hashes();
        let has_waited = |address: &str| {
            let hash = now.get(address).copied().unwrap_or_default();
            before.get(address) == Some(&waiting_hash(hash))
        };
        let changed = diff_names(before, &now).into_iter();
        changed
            .filter(|address| !state.trusted.contains_key(address) && !has_waited(address))
            .collect()
    }

    /// Returns the [`Keyring::trust_hashes`] that the verdicts on all messages reflect. Each address that waits for a
    /// review, and each in `waiting`, has another hash, so that [`Keyring::note_changes_since`] finds a difference.
    pub fn reviewed_hashes(&self, mut waiting: BTreeSet<String>) -> BTreeMap<String, u64> {
        let state = self.state.lock();
        let mut hashes = state.trust_hashes();
        let taken = state.under_review.keys();
        waiting
            .extend(state.changed_addresses.iter().chain(&state.first_uses).chain(taken).cloned());
        for address in waiting {
            let hash = hashes.entry(address).or_default();
            *hash = waiting_hash(*hash);
        }
        hashes
    }
}

/// Returns the hash that an address with this hash has while it waits for a review.
fn waiting_hash(hash: u64) -> u64 {
    !hash
}

impl KeyringState {
    /// Records that a review of these addresses begins, and returns them.
    fn begin_review(&mut self, addresses: BTreeSet<String>) -> BTreeSet<String> {
        for address in &addresses {
            *self.under_review.entry(address.clone()).or_default() += 1;
        }
        addresses
    }
}
