//! Messages to several recipients that have a record for each of them. One record represents the message where
//! it is shown once, and in some stores all records are shown under one id.
//!
//! Records are one message if they have the same writer, key and digest, and answer one message. In a store that shows
//! the key as an id, the live record whose own id is the key decides which digest counts, or else the earliest live
//! record. A record with another digest stands alone under its own id. The representative is the record to me, or else
//! the one to the first recipient, or else the earliest.
//!
//! A change of the records only notes their key. [`MessageTable::settle_multicasts`] applies all changes at once, so
//! that many records of one message cost no more than others.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;

use bytemuck::{Pod, Zeroable};

use super::{EntryTable, MessageTable};
use crate::index::column::at_mut;
use crate::index::position::MsgIx;
use crate::model::{decode_hex_u64, plain_id};
use crate::store::MulticastKey;

/// One record of such a message: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(in crate::index) struct MulticastRecord {
    ix: MsgIx,
    /// The record that represents the message, or [`MsgIx::NIL`] if this record stands alone.
    primary: MsgIx,
    key: u64,
    /// The digest, with [`MulticastRecord::BITS`] in its lowest bits.
    digest: u64,
    /// The value of the id that the record answers, or 0.
    answers: u64,
}

impl MulticastRecord {
    /// Bit of the record to the first recipient.
    const FIRST: u64 = 1;
    /// Bit of a record whose key is shown as an id.
    const ID: u64 = 1 << 1;
    /// Bit of a record that is one with others only if the ids that they answer mean one message.
    const UNEQUAL: u64 = 1 << 2;
    const BITS: u64 = Self::FIRST | Self::ID | Self::UNEQUAL;

    fn new(ix: MsgIx, multicast: MulticastKey) -> Self {
        let MulticastKey { key, digest, answers, is_first, is_id } = multicast;
        let first = if is_first { Self::FIRST } else { 0 };
        let id = if is_id { Self::ID } else { 0 };
        let digest = digest & !Self::BITS | first | id;
        Self { ix, primary: MsgIx::NIL, key, digest, answers: answers.map_or(0, NonZeroU64::get) }
    }

    fn has(&self, bit: u64) -> bool {
        self.digest & bit != 0
    }

    fn digest(&self) -> u64 {
        self.digest & !Self::BITS
    }

    /// Returns the same record before it was settled.
    fn unsettled(&self) -> Self {
        Self { primary: MsgIx::NIL, digest: self.digest & !Self::UNEQUAL, ..*self }
    }

    /// Returns the value of the id that all records of the message are shown under, if it is part of one.
    fn shared_id(&self) -> Option<u64> {
        (self.has(Self::ID) && self.primary != MsgIx::NIL).then_some(self.key)
    }
}

/// The records of all such messages. It is empty, and free, without any.
#[derive(Debug, Default)]
pub(super) struct MulticastTable {
    /// In the order of message positions.
    list: Vec<MulticastRecord>,
    /// By writer and key.
    by_key: BTreeSet<(u32, u64, MsgIx)>,
    /// The writers and keys whose records changed.
    unsettled: BTreeSet<(u32, u64)>,
}

impl MulticastTable {
    /// Returns true if there are no such records.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn find(&self, ix: MsgIx) -> Result<usize, usize> {
        if self.list.last().is_none_or(|last| last.ix < ix) {
            return Err(self.list.len());
        }
        self.list.binary_search_by_key(&ix, |record| record.ix)
    }

    fn get(&self, ix: MsgIx) -> Option<&MulticastRecord> {
        self.list.get(self.find(ix).ok()?)
    }

    /// Returns the records with this writer and key.
    fn records_with_key(&self, writer: u32, key: u64) -> impl Iterator<Item = MsgIx> + '_ {
        let range = (writer, key, MsgIx::MIN)..=(writer, key, MsgIx::MAX);
        self.by_key.range(range).map(|(_, _, ix)| *ix)
    }

    /// Sets the key of a record, or removes it.
    fn set(&mut self, ix: MsgIx, writer: u32, key: Option<MulticastKey>) {
        let found = self.find(ix);
        let known = found.ok().and_then(|at| self.list.get(at)).copied();
        let new = key.map(|key| MulticastRecord::new(ix, key));
        if known.map(|known| known.unsettled()) == new {
            return;
        }
        if let Some(known) = known {
            self.by_key.remove(&(writer, known.key, ix));
            self.unsettled.insert((writer, known.key));
        }
        if let Some(MulticastRecord { key, .. }) = new {
            self.by_key.insert((writer, key, ix));
            self.unsettled.insert((writer, key));
        }
        match (found, new) {
            (Ok(at), Some(new)) => *at_mut(&mut self.list, at) = new,
            (Ok(at), None) => drop(self.list.remove(at)),
            (Err(at), Some(new)) => self.list.insert(at, new),
            (Err(_), None) => {}
        }
    }

    /// Returns the table for the snapshot.
    pub fn as_table(&self) -> &Vec<MulticastRecord> {
        &self.list
    }

    /// Rebuilds the table that [`MulticastTable::as_table`] returned; returns `None` if a position in it leads nowhere.
    pub fn from_table(list: Vec<MulticastRecord>, known: &EntryTable) -> Option<Self> {
        let sorted = list.is_sorted_by(|a, b| a.ix < b.ix);
        let primaries = list.iter().map(|record| &record.primary).filter(|ix| **ix != MsgIx::NIL);
        let positions = list.iter().map(|record| &record.ix).chain(primaries);
        if !sorted || !known.has_all(positions) {
            return None;
        }
        let keyed = |r: &MulticastRecord| (known.entry(r.ix).writer, r.key, r.ix);
        let by_key = list.iter().map(keyed).collect();
        Some(Self { list, by_key, unsettled: BTreeSet::new() })
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.list.shrink_to_fit();
        self.by_key = std::mem::take(&mut self.by_key).into_iter().collect();
    }
}

impl MessageTable {
    /// Returns true if another record of the same message replaces this record where a message is shown once.
    pub fn is_copy(&self, ix: MsgIx) -> bool {
        self.find_original(ix).is_some()
    }

    /// Returns the record that replaces this one where a message is shown once, if there is one.
    pub fn find_original(&self, ix: MsgIx) -> Option<MsgIx> {
        self.multicasts.get(ix)?.primary.or_end().filter(|primary| *primary != ix)
    }

    /// Returns the live records of the message of which this is a record.
    pub fn records_of_message(&self, ix: MsgIx) -> Vec<MsgIx> {
        let Some(record) = self.multicasts.get(ix).filter(|r| r.primary != MsgIx::NIL) else {
            return vec![ix];
        };
        let all = self.multicasts.records_with_key(self.entry(ix).writer, record.key);
        let is_one =
            |ix: &MsgIx| self.multicasts.get(*ix).is_some_and(|r| r.primary == record.primary);
        all.filter(is_one).collect()
    }

    /// Returns true if there is a note for me about a message, on whichever of its records.
    pub fn has_message_note(&self, ix: MsgIx) -> bool {
        self.has_note(ix)
            || self.multicasts.get(ix).is_some()
                && self.records_of_message(ix).into_iter().any(|record| self.has_note(record))
    }

    /// Returns the live records that other records replace.
    pub fn copies(&self) -> impl Iterator<Item = MsgIx> + '_ {
        let records = self.multicasts.list.iter();
        records.filter(|r| r.primary != MsgIx::NIL && r.primary != r.ix).map(|r| r.ix)
    }

    /// Returns the id that the records of a message to several recipients have in common, if this is one of them.
    pub fn shared_id(&self, ix: MsgIx) -> Option<String> {
        self.shared_hex_id(ix).map(|id| format!("{id:016x}"))
    }

    fn shared_hex_id(&self, ix: MsgIx) -> Option<u64> {
        self.multicasts.get(ix).and_then(MulticastRecord::shared_id)
    }

    /// Returns the id under which a message is shown: the shared one, or else its own.
    pub fn shown_id(&self, ix: MsgIx) -> String {
        self.shared_id(ix).unwrap_or_else(|| self.id(self.entry(ix)))
    }

    /// Returns the value of the id under which a message is shown, if that is 16 lower-case hex digits.
    pub fn shown_hex_id(&self, ix: MsgIx) -> Option<u64> {
        self.shared_hex_id(ix).or_else(|| self.hex_id(self.entry(ix)))
    }

    /// Returns true if people know a message by this id: the one under which it is shown, or its own.
    pub fn has_plain_id(&self, ix: MsgIx, id: &str) -> bool {
        plain_id(&self.id(self.entry(ix))) == id || self.shared_id(ix).is_some_and(|own| own == id)
    }

    /// Returns the id that a record may have in common with other records, also while it stands alone.
    pub fn possible_shared_id(&self, ix: MsgIx) -> Option<String> {
        let record = self.multicasts.get(ix).filter(|r| r.has(MulticastRecord::ID))?;
        Some(format!("{:016x}", record.key))
    }

    /// Returns the shared id of the message in a store of which the record with this own id is a part.
    pub fn shared_id_for(&self, store: usize, id: &str) -> Option<String> {
        if self.multicasts.is_empty() {
            return None;
        }
        let writers = (0u32..).zip(self.names().writers()).filter(|(_, w)| w.store == store);
        let mut with_id = writers.filter_map(|(writer, _)| self.locate_message(writer, id).ok());
        with_id.find_map(|ix| self.shared_id(ix))
    }

    /// Sets the message to several recipients of which a record is one.
    pub(super) fn set_multicast(&mut self, ix: MsgIx, key: Option<MulticastKey>) {
        if key.is_some() || !self.multicasts.is_empty() {
            self.multicasts.set(ix, self.known.entry(ix).writer, key);
        }
    }

    /// Notes that a message came, went, or is judged otherwise.
    pub(in crate::index) fn queue_multicast(&mut self, ix: MsgIx) {
        if self.multicasts.is_empty() {
            return;
        }
        let entry = self.known.entry(ix);
        let own = self.multicasts.get(ix).map(|record| record.key);
        // Records of others may have this id in common.
        for key in own.into_iter().chain(self.known.hex_id(entry)) {
            if self.multicasts.records_with_key(entry.writer, key).next().is_some() {
                self.multicasts.unsettled.insert((entry.writer, key));
            }
        }
    }

    /// Notes that the message may have changed that a record answers.
    pub(in crate::index) fn queue_multicast_answer(&mut self, ix: MsgIx) {
        let record = self.multicasts.get(ix).filter(|r| r.has(MulticastRecord::UNEQUAL));
        let key = record.map(|record| (self.known.entry(ix).writer, record.key));
        self.multicasts.unsettled.extend(key);
    }

    /// Decides anew which of the changed records are one message. Returns the records that are shown under another
    /// id, or behind another record, than before.
    pub(in crate::index) fn settle_multicasts(&mut self) -> Vec<MsgIx> {
        let time_of = |(writer, key): &(u32, u64)| {
            let first = self.multicasts.records_with_key(*writer, *key).next();
            first.map(|ix| self.known.entry(ix).time())
        };
        let mut keys: Vec<(u32, u64)> = self.multicasts.unsettled.iter().copied().collect();
        // Messages are settled in the order of time, so a message has its shared id before those that answer it.
        keys.sort_by_cached_key(time_of);
        self.multicasts.unsettled.clear();
        let mut changed = Vec::new();
        for (writer, key) in keys {
            self.settle_records(writer, key, &mut changed);
        }
        if !changed.is_empty() {
            self.generation += 1;
        }
        changed
    }

    fn settle_records(&mut self, writer: u32, key: u64, changed: &mut Vec<MsgIx>) {
        let all: Vec<MsgIx> = self.multicasts.records_with_key(writer, key).collect();
        let (alike, is_unequal) = self.find_equal_records(writer, key, &all);
        let has = |ix: &&MsgIx, bit| self.multicasts.get(**ix).is_some_and(|r| r.has(bit));
        let to_me = alike.iter().find(|ix| self.entry(**ix).is_to_me());
        let first = || alike.iter().find(|ix| has(ix, MulticastRecord::FIRST));
        let primary = to_me.or_else(first).or_else(|| alike.first()).copied();
        for ix in all {
            let is_alike = alike.binary_search(&ix).is_ok();
            let primary = primary.filter(|_| is_alike).unwrap_or(MsgIx::NIL);
            let Ok(at) = self.multicasts.find(ix) else { continue };
            let record = at_mut(&mut self.multicasts.list, at);
            let unequal = if is_unequal { MulticastRecord::UNEQUAL } else { 0 };
            record.digest = record.digest & !MulticastRecord::UNEQUAL | unequal;
            if std::mem::replace(&mut record.primary, primary) != primary {
                changed.push(ix);
            }
        }
    }

    /// Returns the records among these that are one message, in order, and true if that depends on the messages which
    /// they answer. A record that an earlier msgfs wrote answers the id of the record that its own recipient got, so
    /// different answered ids may mean one message.
    fn find_equal_records(&self, writer: u32, key: u64, all: &[MsgIx]) -> (Vec<MsgIx>, bool) {
        let record = |ix: &MsgIx| self.multicasts.get(*ix).filter(|_| self.entry(*ix).is_live());
        let live: Vec<&MulticastRecord> = all.iter().filter_map(record).collect();
        let shows_id = live.iter().any(|record| record.has(MulticastRecord::ID));
        let holder = || {
            let ix = self.locate_message(writer, &format!("{key:016x}")).ok()?;
            self.entry(ix).is_live().then(|| self.multicasts.get(ix).filter(|r| r.key == key))
        };
        let holder = shows_id.then(holder).flatten();
        let Some(decides) = holder.unwrap_or_else(|| live.first().copied()) else {
            return (Vec::new(), false);
        };
        let alike = || live.iter().filter(|record| record.digest() == decides.digest());
        let is_unequal = alike().any(|record| record.answers != decides.answers);
        let store = self.names().writer(writer).store;
        let mut known: HashMap<u64, u64> = HashMap::new();
        let mut message = |answers: u64| {
            let shared = || self.shared_id_for(store, &format!("{answers:016x}"));
            let shared = || shared().and_then(|id| decode_hex_u64(&id)).unwrap_or(answers);
            *known.entry(answers).or_insert_with(shared)
        };
        let wanted = if is_unequal { message(decides.answers) } else { decides.answers };
        let is_one = |record: &&&MulticastRecord| {
            record.answers == decides.answers
                || record.answers != 0 && decides.answers != 0 && message(record.answers) == wanted
        };
        (alike().filter(is_one).map(|record| record.ix).collect(), is_unequal)
    }
}

#[cfg(test)]
mod tests;
