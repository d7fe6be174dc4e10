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

use super::{TrustTable, WriterTrust};
use crate::identity::Keyring;
use crate::index::messages::{IndexEntry, MessageTable, SignatureKind};
use crate::index::position::MsgIx;
use crate::index::source::BitSet;
use crate::model::push_json_line;

/// The key that unsigned messages of a writer should have been signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::index) struct ExpectedKey {
    /// Its number among the keys of the writer.
    key: u32,
    /// The time when it was pinned, in milliseconds since 1970.
    since: i64,
    /// True if the writer must sign in this store: the key signed here before, or a person trusts it.
    #[serde(default)]
    is_due: bool,
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

impl TrustTable {
    /// Records that a message is not signed.
    pub(in crate::index) fn note_unsigned(&mut self, messages: &mut MessageTable, ix: MsgIx) {
        let (sig, key) = self.classify_unsigned(messages, ix);
        self.set_signature(messages, ix, sig, key);
    }

    /// Queues a review of the writer's unsigned messages, if this message's signature, position or presence may
    /// change the first signed message.
    pub(in crate::index) fn queue_signer_review(&mut self, messages: &MessageTable, ix: MsgIx) {
        let entry = messages.entry(ix);
        let first = self.signer(entry.writer()).first_signed;
        let counts = entry.is_live() && entry.is_verified();
        let before = || first.is_none_or(|first| is_before(messages, ix, first));
        if first == Some(ix) || counts && before() {
            self.queue_writer_review(entry.writer());
        }
    }

    /// Queues a review of a writer's unsigned messages.
    pub(in crate::index) fn queue_writer_review(&mut self, writer: u32) {
        self.signing_changes.writers.insert(writer);
    }

    /// Queues a review for addresses that got or lost keys.
    pub(in crate::index) fn queue_key_review(
        &mut self,
        messages: &MessageTable,
        addresses: &BTreeSet<String>,
    ) {
        let names = messages.names();
        let writers = (0u32..).zip(names.writers());
        let theirs = writers.filter(|(_, w)| addresses.contains(names.text(w.name)));
        self.signing_changes.writers.extend(theirs.map(|(number, _)| number));
        self.signing_changes.addresses.extend(addresses.iter().cloned());
    }

    /// Reclassifies unsigned messages after [`TrustTable::queue_signer_review`] and
    /// [`TrustTable::queue_key_review`], or for every writer after a bulk load. Returns the messages that are
    /// shown differently.
    pub(in crate::index) fn update_missing_signatures(
        &mut self,
        messages: &mut MessageTable,
        keyring: &Keyring,
        everybody: bool,
    ) -> Vec<MsgIx> {
        let SigningChanges { mut writers, fresh, mut addresses } =
            std::mem::take(&mut self.signing_changes);
        let names = messages.names();
        writers.extend(fresh.into_iter().filter(|w| keyring.is_pinned(names.writer_name(*w))));
        if everybody {
            writers = (0u32..).zip(names.writers()).map(|(number, _)| number).collect();
            addresses.extend(keyring.trust_hashes().into_keys());
        }
        if writers.is_empty() && addresses.is_empty() {
            return Vec::new();
        }
        let firsts = find_first_signed(messages, &writers.iter().collect());
        let (mut sign, mut forgotten) = (Vec::new(), HashSet::new());
        for number in &writers {
            let first = firsts.get(number).copied();
            let expected_key = self.find_expected_key(messages, keyring, *number, first);
            let signer = self.signer_mut(*number);
            let before = std::mem::replace(&mut signer.expected_key, expected_key);
            signer.first_signed = first;
            sign.extend(before.or(expected_key).map(|_| number));
            if before.is_some() && expected_key.is_none() {
                forgotten.insert(*number);
            }
        }
        // No message lacks the signature of a forgotten key.
        self.stripped.retain(|ix, _| !forgotten.contains(&messages.entry(*ix).writer()));
        let among: BitSet = sign.into_iter().collect();
        self.update_prior_messages(messages, keyring, &writers, addresses, &among);
        let mut redrawn = Vec::new();
        // Writers who never signed lack no signature.
        if among.is_empty() {
            return redrawn;
        }
        for ix in messages.messages_since(0) {
            if !is_unsigned_from(messages, ix, &among) {
                continue;
            }
            let after = self.classify_unsigned(messages, ix);
            let before = self.signature_kind(messages, messages.entry(ix));
            if before != after {
                self.set_signature(messages, ix, after.0, after.1);
                messages.invalidate_rendering(ix);
                redrawn.push(ix);
            }
        }
        redrawn
    }

    /// Returns the key of a writer: the key of the first validly signed message, otherwise the first pinned key.
    /// A valid message of a writer without a pin is signed with my own key.
    fn find_expected_key(
        &mut self,
        messages: &MessageTable,
        keyring: &Keyring,
        number: u32,
        first: Option<MsgIx>,
    ) -> Option<ExpectedKey> {
        let names = messages.names();
        if names.store(names.writer(number).store).roles {
            return None;
        }
        let pin = keyring.first_pin(names.writer_name(number));
        let store = &names.store(names.writer(number).store).name;
        let is_due = keyring.must_sign(names.writer_name(number), store);
        match (pin, first) {
            (_, Some(first)) => {
                let first = messages.entry(first);
                let since = pin.map_or_else(|| first.time().millis(), |(_, since)| since.millis());
                let key = self.signature_kind(messages, first).1 as u32;
                Some(ExpectedKey { key, since, is_due })
            }
            (Some((key, since)), None) => {
                let key = self.key_number(number, key) as u32;
                Some(ExpectedKey { key, since: since.millis(), is_due })
            }
            (None, None) => None,
        }
    }

    /// Records the prior messages of writers who have keys and no record yet. Removes the records of writers who
    /// have no keys any more.
    fn update_prior_messages(
        &mut self,
        messages: &MessageTable,
        keyring: &Keyring,
        writers: &HashSet<u32>,
        addresses: BTreeSet<String>,
        among: &BitSet,
    ) {
        let names = messages.names();
        let mut new: HashMap<u32, Vec<u64>> = HashMap::new();
        for number in writers {
            let signer = self.signer(*number);
            let store = names.store(names.writer(*number).store);
            let asks =
                signer.expected_key.is_some() && (!store.log || signer.first_signed.is_some());
            if asks && self.prior_messages.get(&store.name, names.writer_name(*number)).is_none() {
                new.insert(*number, Vec::new());
            }
        }
        if !new.is_empty() {
            for ix in messages.messages_since(0) {
                if !is_unsigned_from(messages, ix, among) {
                    continue;
                }
                let entry = messages.entry(ix);
                let Some(noted) = new.get_mut(&entry.writer()) else { continue };
                let was_there = ix.is_among_first(names.store(entry.store()).seen);
                if self.is_after_first_signed(messages, ix).is_none()
                    && (was_there || !self.is_dated_later(messages, ix))
                {
                    noted.push(messages.digest_number(ix));
                }
            }
        }
        for (number, prints) in new {
            let store = &names.store(names.writer(number).store).name;
            self.prior_messages.insert(store, names.writer_name(number), prints);
        }
        for address in addresses {
            let signs = |(number, signer): (u32, &WriterTrust)| {
                signer.expected_key.is_some() && names.writer_name(number) == address
            };
            if keyring.is_pinned(&address) {
                // Scanned stores that do not know the writer had no messages from it.
                for (number, store) in names.stores().iter().enumerate() {
                    let asks = store.is_known && !store.log && !store.roles;
                    if asks && names.find_writer(number, &address).is_none() {
                        self.prior_messages.insert(&store.name, &address, Vec::new());
                    }
                }
            } else if !(0u32..).zip(&self.signers).any(signs) {
                self.prior_messages.remove(&address);
            }
        }
    }

    /// Returns true if an unsigned message is after the first signed one of its writer in a log. Returns `None`
    /// if no log decides it.
    fn is_after_first_signed(&self, messages: &MessageTable, ix: MsgIx) -> Option<bool> {
        let entry = messages.entry(ix);
        if !messages.names().store(entry.store()).log {
            return None;
        }
        let signer = self.signer(entry.writer());
        let Some(first) = signer.first_signed else {
            // Writers who never signed there lack no signature. The log of one who did may have been replaced.
            let is_due = signer.expected_key.is_some_and(|key| key.is_due);
            return Some(is_due && self.is_dated_later(messages, ix));
        };
        let first = messages.entry(first);
        let is_later = first.location().offset < entry.location().offset;
        (first.source() == entry.source()).then_some(is_later)
    }

    /// Returns true if the date of an unsigned message is after that of its writer's first signed message, or
    /// after the pin.
    fn is_dated_later(&self, messages: &MessageTable, ix: MsgIx) -> bool {
        let entry = messages.entry(ix);
        let signer = self.signer(entry.writer());
        match signer.first_signed {
            Some(first) => messages.compare_order(first, ix) == Ordering::Less,
            None => signer
                .expected_key
                .is_some_and(|expected_key| expected_key.since <= entry.time().millis()),
        }
    }

    /// Returns the signature state of an unsigned message, and the key that its writer signs with.
    fn classify_unsigned(&self, messages: &MessageTable, ix: MsgIx) -> (SignatureKind, usize) {
        let none = (SignatureKind::None, 0);
        let entry = messages.entry(ix);
        let store = messages.names().store(entry.store());
        // In stores of files a message that lost its signature is another content, and rejected where it
        // matters.
        let stripped = self.stripped.get(&ix).filter(|_| store.log || store.roles);
        let Some(expected_key) = self.signer(entry.writer()).expected_key else {
            // A role has no key, but this message had one.
            let stripped = stripped.filter(|_| store.roles);
            return stripped.map_or(none, |key| (SignatureKind::Missing, *key as usize));
        };
        let noted = || {
            let noted = self.prior_messages.get(&store.name, messages.sender(entry))?;
            Some(!noted.contains(&messages.digest_number(ix)))
        };
        let newer = || {
            let by_log = self.is_after_first_signed(messages, ix);
            by_log.or_else(noted).unwrap_or_else(|| self.is_dated_later(messages, ix))
        };
        if stripped.is_some() || newer() {
            (SignatureKind::Missing, expected_key.key as usize)
        } else {
            none
        }
    }
}

fn is_unsigned_from(messages: &MessageTable, ix: MsgIx, writers: &BitSet) -> bool {
    let entry = messages.entry(ix);
    entry.is_live() && writers.contains(entry.writer()) && entry.is_unsigned()
}

/// Returns the first message that each of these writers validly signed.
fn find_first_signed(messages: &MessageTable, writers: &BitSet) -> HashMap<u32, MsgIx> {
    let mut firsts: HashMap<u32, MsgIx> = HashMap::new();
    for (ix, entry) in messages.all_entries() {
        if !entry.is_live() || !entry.is_verified() || !writers.contains(entry.writer()) {
            continue;
        }
        let first = firsts.entry(entry.writer()).or_insert(ix);
        if is_before(messages, ix, *first) {
            *first = ix;
        }
    }
    firsts
}

/// Returns true if a message is before another of the same writer: by their lines in a log, otherwise by their
/// dates.
fn is_before(messages: &MessageTable, one: MsgIx, other: MsgIx) -> bool {
    let (first, second) = (messages.entry(one), messages.entry(other));
    if messages.names().store(first.store()).log {
        let line = |e: &IndexEntry| (e.source(), e.location().offset);
        line(first) < line(second)
    } else {
        messages.compare_order(one, other) == Ordering::Less
    }
}

/// The unsigned messages that were there before their writer's key was pinned, by store and writer.
#[derive(Debug, Default)]
pub(in crate::index) struct PriorMessages {
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
            push_json_line(&mut self.lines, &("n", store, from, &prints));
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
            push_json_line(&mut self.lines, &("x", from));
        }
    }

    /// Takes the lines that must be appended to the file.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }
}
