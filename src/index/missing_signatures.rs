//! Unsigned messages of writers who sign: `Signature: missing`.
//!
//! A message counts as missing its signature if its writer has a key and the message is not older than the pin
//! of that key. In a log the order of the lines decides this. In stores of files nothing in a message can prove
//! it, because a forger chooses the date. So the messages that were there when the key was pinned are recorded
//! ([`PriorMessages`]), and all others are newer. Dates decide only where nothing is recorded, at the first scan
//! of a store. A message that was verified once and has lost its signature since is missing it, too.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::entry::{MsgIx, SignatureKind};
use super::source::BitSet;
use super::tables::IndexTables;
use crate::identity::{Keyring, SignedMessage};

/// The key that unsigned messages of a writer should have been signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExpectedKey {
    /// Its number among the keys of the writer.
    key: u32,
    /// The time when it was pinned, in milliseconds since 1970.
    since: i64,
}

/// Changes that may concern missing signatures.
#[derive(Debug, Default)]
pub(super) struct SigningChanges {
    /// Writers whose first signed message may have changed.
    pub writers: HashSet<u32>,
    /// New writers.
    pub fresh: Vec<u32>,
    /// Addresses that got or lost keys.
    pub addresses: BTreeSet<String>,
}

impl IndexTables {
    /// Records that a message is not signed.
    pub(super) fn note_unsigned(&mut self, ix: MsgIx) {
        let (sig, key) = self.classify_unsigned(ix);
        self.set_signature(ix, sig, key);
    }

    /// Queues a review of the writer's unsigned messages, if this message's signature, position or presence may
    /// change the first signed message.
    pub(super) fn queue_signer_review(&mut self, ix: MsgIx) {
        let Some(entry) = self.entry(ix) else { return };
        let first = self.writers.get(entry.writer as usize).and_then(|w| w.first_signed);
        let counts = entry.is_live() && entry.flags.signature().0 == SignatureKind::Valid;
        let before = || first.is_none_or(|first| self.is_before(ix, first));
        if first == Some(ix) || counts && before() {
            let writer = entry.writer;
            self.signing_changes.writers.insert(writer);
        }
    }

    /// Queues a review for addresses that got or lost keys.
    pub(super) fn queue_key_review(&mut self, addresses: &BTreeSet<String>) {
        let theirs = (0u32..).zip(&self.writers);
        let theirs = theirs.filter(|(_, w)| addresses.contains(self.strings.get(w.name)));
        let theirs: Vec<u32> = theirs.map(|(number, _)| number).collect();
        self.signing_changes.writers.extend(theirs);
        self.signing_changes.addresses.extend(addresses.iter().cloned());
    }

    /// Records how many messages a scan has seen. Messages that arrive from now on are new.
    pub(super) fn note_scanned(&mut self, store: usize, looked: bool) {
        let seen = self.entries.len() as MsgIx;
        if let Some(info) = self.stores.get_mut(store) {
            info.seen = seen;
            info.is_known |= looked;
        }
    }

    /// Reclassifies unsigned messages after [`IndexTables::queue_signer_review`] and
    /// [`IndexTables::queue_key_review`], or for every writer after a bulk load. Returns the messages that are
    /// shown differently.
    pub(super) fn update_missing_signatures(
        &mut self,
        keyring: &Keyring,
        everybody: bool,
    ) -> Vec<MsgIx> {
        let SigningChanges { mut writers, fresh, mut addresses } =
            std::mem::take(&mut self.signing_changes);
        writers.extend(fresh.into_iter().filter(|writer| {
            let name = self.writers.get(*writer as usize).map(|w| self.strings.get(w.name));
            name.is_some_and(|name| keyring.is_pinned(name))
        }));
        if everybody {
            writers = (0u32..).zip(&self.writers).map(|(number, _)| number).collect();
            addresses.extend(keyring.trust_hashes().into_keys());
        }
        if writers.is_empty() && addresses.is_empty() {
            return Vec::new();
        }
        let firsts = self.find_first_signed(&writers.iter().collect());
        let (mut sign, mut forgotten) = (Vec::new(), HashSet::new());
        for number in &writers {
            let first = firsts.get(number).copied();
            let lacked = self.find_expected_key(keyring, *number, first);
            if let Some(writer) = self.writers.get_mut(*number as usize) {
                let before = std::mem::replace(&mut writer.lacked, lacked);
                writer.first_signed = first;
                sign.extend(before.or(lacked).map(|_| number));
                if before.is_some() && lacked.is_none() {
                    forgotten.insert(*number);
                }
            }
        }
        // No message lacks the signature of a forgotten key.
        let entries = &self.entries;
        let writer_of = |ix: &MsgIx| entries.get(*ix as usize).map(|entry| entry.writer);
        self.stripped
            .retain(|ix, _| writer_of(ix).is_none_or(|writer| !forgotten.contains(&writer)));
        let among: BitSet = sign.into_iter().collect();
        self.update_prior_messages(keyring, &writers, addresses, &among);
        let mut redrawn = Vec::new();
        // Writers who never signed lack no signature.
        if among.is_empty() {
            return redrawn;
        }
        for ix in 0..self.entries.len() as MsgIx {
            if !self.is_unsigned_from(ix, &among) {
                continue;
            }
            let after = self.classify_unsigned(ix);
            let before = self.signature_kind_at(ix);
            if before != after {
                self.set_signature(ix, after.0, after.1);
                self.invalidate_rendering(ix);
                redrawn.push(ix);
            }
        }
        redrawn
    }

    fn is_unsigned_from(&self, ix: MsgIx, writers: &BitSet) -> bool {
        let entry = self.entry(ix).filter(|e| e.is_live() && writers.contains(e.writer));
        entry.is_some_and(|e| {
            matches!(e.flags.signature().0, SignatureKind::None | SignatureKind::Missing)
        })
    }

    /// Returns the key of a writer: the key of the first validly signed message, otherwise the first pinned key.
    /// A valid message of a writer without a pin is signed with my own key.
    fn find_expected_key(
        &mut self,
        keyring: &Keyring,
        number: u32,
        first: Option<MsgIx>,
    ) -> Option<ExpectedKey> {
        let writer = self.writers.get(number as usize)?;
        if self.stores.get(writer.store).is_some_and(|store| store.roles) {
            return None;
        }
        let pin = keyring.first_pin(self.strings.get(writer.name));
        let time = |ix| self.entry(ix).map(|e| e.time_ms);
        match (pin, first) {
            (_, Some(first)) => {
                let since = pin.map(|(_, since)| since.millis()).or_else(|| time(first))?;
                Some(ExpectedKey { key: self.signature_kind_at(first).1 as u32, since })
            }
            (Some((key, since)), None) => {
                let key = self.key_number(number, key)? as u32;
                Some(ExpectedKey { key, since: since.millis() })
            }
            (None, None) => None,
        }
    }

    /// Records the prior messages of writers who have keys and no record yet. Removes the records of writers who
    /// have no keys any more.
    fn update_prior_messages(
        &mut self,
        keyring: &Keyring,
        writers: &HashSet<u32>,
        addresses: BTreeSet<String>,
        among: &BitSet,
    ) {
        let mut new: HashMap<u32, Vec<u64>> = HashMap::new();
        for number in writers {
            let Some(writer) = self.writers.get(*number as usize) else { continue };
            let name = self.strings.get(writer.name);
            let store = self.stores.get(writer.store);
            let asks = writer.lacked.is_some()
                && store.is_some_and(|s| !s.log || writer.first_signed.is_some());
            if asks && store.is_some_and(|s| self.prior_messages.get(&s.name, name).is_none()) {
                new.insert(*number, Vec::new());
            }
        }
        if !new.is_empty() {
            for ix in 0..self.entries.len() as MsgIx {
                let Some(entry) = self.entry(ix).filter(|_| self.is_unsigned_from(ix, among))
                else {
                    continue;
                };
                let Some(noted) = new.get_mut(&entry.writer) else { continue };
                let seen = self.stores.get(entry.store()).map_or(0, |s| s.seen);
                if self.is_after_first_signed(ix).is_none()
                    && (ix < seen || !self.is_dated_later(ix))
                {
                    noted.extend(self.prior_digest(ix));
                }
            }
        }
        for (number, prints) in new {
            let Some(writer) = self.writers.get(number as usize) else { continue };
            let Some(store) = self.stores.get(writer.store) else { continue };
            self.prior_messages.insert(&store.name, self.strings.get(writer.name), prints);
        }
        for address in addresses {
            let signs = |w: &super::tables::Writer| {
                w.lacked.is_some() && self.strings.get(w.name) == address
            };
            if keyring.is_pinned(&address) {
                // Scanned stores that do not know the writer had no messages from it.
                for (number, store) in self.stores.iter().enumerate() {
                    let asks = store.is_known && !store.log && !store.roles;
                    if asks && self.find_writer(number, &address).is_none() {
                        self.prior_messages.insert(&store.name, &address, Vec::new());
                    }
                }
            } else if !self.writers.iter().any(signs) {
                self.prior_messages.remove(&address);
            }
        }
    }

    /// Returns the number of a message in the file of prior messages.
    fn prior_digest(&self, ix: MsgIx) -> Option<u64> {
        let entry = self.entry(ix)?;
        let store = &self.stores.get(entry.store())?.name;
        Some(
            SignedMessage { store, from: self.sender(entry), id: &self.id(entry) }
                .digest()
                .number(),
        )
    }

    /// Returns the first message that each of these writers validly signed.
    fn find_first_signed(&self, writers: &BitSet) -> HashMap<u32, MsgIx> {
        let mut firsts: HashMap<u32, MsgIx> = HashMap::new();
        for (ix, entry) in (0u32..).zip(&self.entries) {
            let counts = entry.is_live() && entry.flags.signature().0 == SignatureKind::Valid;
            if !counts || !writers.contains(entry.writer) {
                continue;
            }
            let first = firsts.entry(entry.writer).or_insert(ix);
            if self.is_before(ix, *first) {
                *first = ix;
            }
        }
        firsts
    }

    /// Returns true if a message is before another of the same writer: by their lines in a log, otherwise by
    /// their dates.
    fn is_before(&self, one: MsgIx, other: MsgIx) -> bool {
        let by_line = self
            .entry(one)
            .zip(self.entry(other))
            .filter(|(one, _)| self.stores.get(one.store()).is_some_and(|store| store.log));
        match by_line {
            Some((one, other)) => (one.source, one.offset) < (other.source, other.offset),
            None => self.compare_order(one, other) == Ordering::Less,
        }
    }

    /// Returns true if an unsigned message is after the first signed one of its writer in a log. Returns `None`
    /// if no log decides it.
    fn is_after_first_signed(&self, ix: MsgIx) -> Option<bool> {
        let entry = self.entry(ix)?;
        self.stores.get(entry.store()).filter(|store| store.log)?;
        let first = self.writers.get(entry.writer as usize)?.first_signed;
        // Writers who never signed there lack no signature.
        let Some(first) = first.and_then(|first| self.entry(first)) else { return Some(false) };
        (first.source == entry.source).then_some(first.offset < entry.offset)
    }

    /// Returns true if the date of an unsigned message is after that of its writer's first signed message, or
    /// after the pin.
    fn is_dated_later(&self, ix: MsgIx) -> bool {
        let Some(entry) = self.entry(ix) else { return false };
        let Some(writer) = self.writers.get(entry.writer as usize) else { return false };
        let pinned = || writer.lacked.is_some_and(|lacked| lacked.since <= entry.time_ms);
        writer
            .first_signed
            .map_or_else(pinned, |first| self.compare_order(first, ix) == Ordering::Less)
    }

    /// Returns the signature state of an unsigned message, and the key that its writer signs with.
    fn classify_unsigned(&self, ix: MsgIx) -> (SignatureKind, usize) {
        let none = (SignatureKind::None, 0);
        let Some(entry) = self.entry(ix) else { return none };
        let (writer, store) =
            (self.writers.get(entry.writer as usize), self.stores.get(entry.store()));
        let Some((writer, store)) = writer.zip(store) else { return none };
        // In stores of files a message that lost its signature is another content, and rejected where it
        // matters.
        let stripped = self.stripped.get(&ix).filter(|_| store.log || store.roles);
        let Some(lacked) = writer.lacked else {
            // A role has no key, but this message had one.
            let stripped = stripped.filter(|_| store.roles);
            return stripped.map_or(none, |key| (SignatureKind::Missing, *key as usize));
        };
        let noted = || {
            let noted = self.prior_messages.get(&store.name, self.strings.get(writer.name))?;
            Some(!self.prior_digest(ix).is_some_and(|print| noted.contains(&print)))
        };
        let newer = || {
            self.is_after_first_signed(ix).or_else(noted).unwrap_or_else(|| self.is_dated_later(ix))
        };
        if stripped.is_some() || newer() {
            (SignatureKind::Missing, lacked.key as usize)
        } else {
            none
        }
    }

    /// Records whether a message was verified and has lost its signature, although its text is the same.
    pub(super) fn note_stripped(&mut self, ix: MsgIx, stripped: bool) {
        if !stripped {
            if !self.stripped.is_empty() {
                self.stripped.remove(&ix);
            }
        } else if let (SignatureKind::Valid, key) = self.signature_kind_at(ix) {
            self.stripped.insert(ix, key as u32);
        }
    }
}

/// The unsigned messages that were there before their writer's key was pinned, by store and writer.
#[derive(Debug, Default)]
pub(super) struct PriorMessages {
    noted: HashMap<String, HashMap<String, HashSet<u64>>>,
    /// Lines that are not in the file yet.
    lines: Vec<u8>,
}

impl PriorMessages {
    /// Parses the lines that [`PriorMessages::take_lines`] returned. It skips other lines.
    pub fn load(text: &[u8]) -> Self {
        let mut prior = Self::default();
        for line in text.split(|b| *b == b'\n') {
            if let Ok(("n", store, from, prints)) =
                serde_json::from_slice::<(&str, String, String, Vec<u64>)>(line)
            {
                prior.insert(&store, &from, prints);
            } else if let Ok(("x", from)) = serde_json::from_slice::<(&str, String)>(line) {
                prior.remove(&from);
            }
        }
        prior.lines.clear();
        prior
    }

    fn get(&self, store: &str, from: &str) -> Option<&HashSet<u64>> {
        self.noted.get(store)?.get(from)
    }

    /// Records the prior messages of a writer, unless the writer has a record.
    fn insert(&mut self, store: &str, from: &str, prints: Vec<u64>) {
        if self.get(store, from).is_none() {
            self.push_line(&("n", store, from, &prints));
            let noted = self.noted.entry(store.to_owned()).or_default();
            noted.insert(from.to_owned(), prints.into_iter().collect());
        }
    }

    /// Removes the record of a writer.
    fn remove(&mut self, from: &str) {
        let mut known = false;
        for noted in self.noted.values_mut() {
            known |= noted.remove(from).is_some();
        }
        if known {
            self.push_line(&("x", from));
        }
    }

    fn push_line(&mut self, value: &impl Serialize) {
        // The values are texts and numbers, so serializing them into memory does not fail.
        if serde_json::to_writer(&mut self.lines, value).is_ok() {
            self.lines.push(b'\n');
        }
    }

    /// Takes the lines that must be appended to the file.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }
}
