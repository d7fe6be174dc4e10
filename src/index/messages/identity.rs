//! The entries of the messages, and what identifies them: names, ids, reply links, and their order.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::arrival::NewMessage;
use super::entry::{EntryFlags, IndexEntry, hash_message_id, unmix_id};
use super::links::{ReplyLink, ReplyLinks};
use super::names::NameTable;
use crate::identity::SignedMessage;
use crate::index::column::Column;
use crate::index::intern::{IDENTITY_MASK, StrId, stable_hash};
use crate::index::position::MsgIx;
use crate::index::slots::SlotTable;
use crate::model::{Day, Timestamp, decode_hex_u64};

/// An id that is not 16 hex digits and is not in the message's reply link. It cannot be computed from the
/// entry's hash.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(in crate::index) struct TextId {
    pub(super) ix: MsgIx,
    pub(super) id: StrId,
}

/// The entries of all messages of all stores. Positions mean nothing outside this process and its snapshots.
#[derive(Debug, Default)]
pub struct EntryTable {
    pub(super) entries: Column<IndexEntry>,
    pub(super) identity_slots: SlotTable,
    pub(super) names: NameTable,
    /// In the order of message positions.
    pub(super) text_ids: Column<TextId>,
    /// Ids of 16 hex digits whose hash another message already has.
    pub(super) hex_ids: HashMap<MsgIx, u64>,
    pub(super) links: ReplyLinks,
    /// Times in names that are too far from the message's time, in milliseconds.
    pub(super) far_names: HashMap<MsgIx, i64>,
}

impl EntryTable {
    /// Returns the message at a position.
    #[track_caller]
    pub fn entry(&self, ix: MsgIx) -> &IndexEntry {
        self.entries.at(ix.number())
    }

    /// Returns the message at a position, for a change.
    #[track_caller]
    pub(in crate::index) fn entry_mut(&mut self, ix: MsgIx) -> &mut IndexEntry {
        self.entries.at_mut(ix.number())
    }

    /// Returns all messages with their positions.
    pub(in crate::index) fn all_entries(&self) -> impl Iterator<Item = (MsgIx, &IndexEntry)> {
        self.entries.iter().enumerate().map(|(number, entry)| (MsgIx::new(number), entry))
    }

    /// Returns every live message.
    pub fn live_messages(&self) -> impl Iterator<Item = MsgIx> + '_ {
        self.all_entries().filter(|(_, e)| e.is_live()).map(|(ix, _)| ix)
    }

    /// Returns the number by which the state folder knows a message.
    pub(in crate::index) fn digest_number(&self, ix: MsgIx) -> u64 {
        let [store, from, id] = self.key_parts(self.entry(ix));
        SignedMessage { store: &store, from: &from, id: &id }.digest().number()
    }

    /// Returns the number of messages so far, which is the position of the next one.
    pub fn messages_so_far(&self) -> usize {
        self.entries.len()
    }

    /// Returns the positions of the messages behind the first `count`.
    pub fn messages_since(&self, count: usize) -> impl Iterator<Item = MsgIx> + use<> {
        (count..self.entries.len()).map(MsgIx::new)
    }

    /// Returns the position of the message that is added next.
    pub(in crate::index) fn next_position(&self) -> MsgIx {
        MsgIx::new(self.entries.len())
    }

    /// Returns true if each of these positions, which a snapshot has, leads to a message.
    pub(in crate::index) fn has_all<'a>(
        &self,
        positions: impl IntoIterator<Item = &'a MsgIx>,
    ) -> bool {
        positions.into_iter().all(|ix| ix.is_among_first(self.entries.len()))
    }

    /// Returns the texts, stores, writers and recipients.
    pub fn names(&self) -> &NameTable {
        &self.names
    }

    /// Returns the texts, stores, writers and recipients, for a change.
    pub(in crate::index) fn names_mut(&mut self) -> &mut NameTable {
        &mut self.names
    }

    /// Returns the reply links.
    pub(in crate::index) fn links(&self) -> &ReplyLinks {
        &self.links
    }

    /// Returns the reply links, for a change.
    pub(in crate::index) fn links_mut(&mut self) -> &mut ReplyLinks {
        &mut self.links
    }

    /// Returns the store, writer and id of a message, which no other message has in common.
    pub fn key_parts(&self, entry: &IndexEntry) -> [String; 3] {
        let store = self.names.home_name(self.names.writer_home(entry.writer)).to_owned();
        [store, self.sender(entry).to_owned(), self.id(entry)]
    }

    /// Returns the message's writer.
    pub fn sender(&self, entry: &IndexEntry) -> &str {
        self.names.writer_name(entry.writer)
    }

    /// Returns the message's recipients, joined by `", "`.
    pub fn recipient_list(&self, entry: &IndexEntry) -> &str {
        self.names.text(entry.to)
    }

    /// Returns the time in the name of a message's file. It carries the store's order: it is the time of the
    /// message or a later one. Folders by day use it.
    pub fn name_time(&self, entry: &IndexEntry) -> Timestamp {
        entry.near_name_time().unwrap_or_else(|| {
            let ix = self.position_of(entry);
            let Some(ms) = self.far_names.get(&ix) else {
                panic!("the index is broken: it has no time in a name for the message at {ix:?}")
            };
            Timestamp::from_millis(*ms)
        })
    }

    /// Returns the message's id.
    pub fn id(&self, entry: &IndexEntry) -> String {
        if let Some(id) = self.hex_id(entry) {
            return format!("{id:016x}");
        }
        let ix = self.position_of(entry);
        match (self.text_id(ix), self.hex_ids.get(&ix)) {
            (Some(id), _) => id.to_owned(),
            (None, Some(id)) => format!("{id:016x}"),
            (None, None) => panic!("the index is broken: it has no id for the message at {ix:?}"),
        }
    }

    /// Returns the value of an id that is exactly 16 lower-case hex digits.
    pub fn hex_id(&self, entry: &IndexEntry) -> Option<u64> {
        let hex = entry.flags.has(EntryFlags::ID_HEX);
        hex.then(|| unmix_id(entry.hash, self.names.salt(entry.writer)))
    }

    fn text_id(&self, ix: MsgIx) -> Option<&str> {
        // The message may be behind the last one that has such an id.
        let odd = self.text_ids.get(self.text_ids.partition_point(|odd| odd.ix < ix));
        let of_its_own = odd.filter(|odd| odd.ix == ix).map(|odd| odd.id);
        let linked = || self.links.get(ix).map(ReplyLink::id);
        Some(self.names.text(of_its_own.or_else(linked)?))
    }

    /// Returns the message with the identity that its inode numbers are made from.
    pub fn find_by_identity(&self, identity: u64) -> Option<MsgIx> {
        let candidates = self.identity_slots.candidates(identity);
        let mut positions = candidates.map(|number| MsgIx::new(number as usize));
        positions.find(|ix| self.entry(*ix).identity() == identity)
    }

    /// Returns the position of a message that is in the index.
    pub(in crate::index) fn position_of(&self, entry: &IndexEntry) -> MsgIx {
        let identity = entry.identity();
        self.find_by_identity(identity).unwrap_or_else(|| {
            panic!("the index is broken: it has no message with the identity {identity:#x}")
        })
    }

    /// Returns the message with this store, writer and id.
    pub fn find_message(&self, store: usize, from: &str, id: &str) -> Option<MsgIx> {
        self.locate_message(self.names.find_writer(store, from)?, id).ok()
    }

    /// Returns the position of a message. If there is none, returns the hash that it would get.
    pub(in crate::index) fn locate_message(
        &self,
        writer: u32,
        id: &str,
    ) -> Result<MsgIx, NewMessage> {
        let hex = decode_hex_u64(id);
        let mut hash = hash_message_id(self.names.salt(writer), id, hex);
        let mut has_id = hex.is_some();
        loop {
            match self.find_by_identity(hash & IDENTITY_MASK) {
                Some(ix) if self.is_message(ix, writer, id, hex) => return Ok(ix),
                // A crafted id may have another message's identity. The next hash serves as well.
                Some(_) => {
                    hash = stable_hash(hash, &[id]);
                    has_id = false;
                }
                None => return Err(NewMessage::new(writer, hash, has_id)),
            }
        }
    }

    fn is_message(&self, ix: MsgIx, writer: u32, id: &str, hex: Option<u64>) -> bool {
        let entry = self.entry(ix);
        if !self.names.is_same_writer(entry.writer, writer) {
            return false;
        }
        if entry.flags.has(EntryFlags::ID_HEX) {
            return hex == Some(unmix_id(entry.hash, self.names.salt(writer)));
        }
        match self.text_id(ix) {
            Some(text) => text == id,
            None => hex.is_some() && hex == self.hex_ids.get(&ix).copied(),
        }
    }

    /// Returns the message with this key, or the identity that it will have when it arrives.
    pub(in crate::index) fn resolve_identity(
        &self,
        store: usize,
        from: &str,
        id: &str,
    ) -> Result<MsgIx, u64> {
        match self.names.find_writer(store, from).map(|w| self.locate_message(w, id)) {
            Some(Ok(ix)) => Ok(ix),
            Some(Err(new)) => Err(new.identity()),
            // The hash of the first message of a writer that is not known yet.
            None => {
                let salt = self.names.compute_writer_salt(store, from);
                Err(hash_message_id(salt, id, decode_hex_u64(id)) & IDENTITY_MASK)
            }
        }
    }

    /// Returns the message that an id means: the earliest that was not rejected, or else the earliest. In a store whose
    /// links need no signature anybody could make the earliest message, so an id that several messages have means none
    /// of them.
    pub(in crate::index) fn resolve_id(&self, store: usize, id: StrId) -> Option<MsgIx> {
        let rejected = |ix: MsgIx| self.entry(ix).is_rejected();
        let all = self.links.messages_with_id(store, id);
        if self.names.store(store).joins {
            let mut all: Vec<MsgIx> = all.filter(|ix| !rejected(*ix)).collect();
            // A message that is gone counts only while none is there.
            if all.iter().any(|ix| self.entry(*ix).is_live()) {
                all.retain(|ix| self.entry(*ix).is_live());
            }
            return all.pop().filter(|_| all.is_empty());
        }
        all.min_by(|a, b| rejected(*a).cmp(&rejected(*b)).then_with(|| self.compare_order(*a, *b)))
    }

    /// Compares two messages in listing order: by time and by order within the second, as in names; then by
    /// store, writer and id.
    pub fn compare_order(&self, a: MsgIx, b: MsgIx) -> Ordering {
        let (x, y) = (self.entry(a), self.entry(b));
        let [home, other] = [x, y].map(|entry| self.names.writer(entry.writer).store);
        let by_id = self.names.store(home).links;
        self.name_time(x)
            .cmp(&self.name_time(y))
            .then_with(|| home.cmp(&other))
            // Equal times are sorted by id if names carry no store order.
            .then_with(|| if by_id { self.id(x).cmp(&self.id(y)) } else { Ordering::Equal })
            .then_with(|| self.sender(x).cmp(self.sender(y)))
            .then_with(|| {
                if x.flags.has(EntryFlags::ID_HEX) && y.flags.has(EntryFlags::ID_HEX) {
                    let id = |e: &IndexEntry| unmix_id(e.hash, self.names.salt(e.writer));
                    id(x).cmp(&id(y))
                } else {
                    self.id(x).cmp(&self.id(y))
                }
            })
            .then(a.cmp(&b))
    }

    /// Returns the part of a sorted list whose names are on one day.
    pub fn slice_of_day<'a>(&self, list: &'a [MsgIx], day: Day) -> &'a [MsgIx] {
        let of = |ix: &MsgIx| self.name_time(self.entry(*ix)).day();
        let (until_then, _) = list.split_at(list.partition_point(|ix| of(ix) <= day));
        until_then.split_at(until_then.partition_point(|ix| of(ix) < day)).1
    }
}
