//! The tables of the index: messages, writers, threads, and the orders in which views list them. The module
//! `change` changes them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::column::Column;
use super::entry::{
    EntryFlags, IndexEntry, MANY_KEYS, MsgIx, SignatureKind, hash_message_id, unmix_id,
};
use super::intern::{IDENTITY_MASK, Interner, StrId, stable_hash};
use super::label::MailLabel;
use super::mark_sync::MarkQueue;
use super::missing_signatures::{ExpectedKey, PriorMessages, SigningChanges};
use super::reply_links::ReplyLinks;
use super::slots::SlotTable;
use super::source::{BitSet, SourceId};
use crate::model::{Day, Fingerprint, PublicKey, SignatureState, Timestamp, decode_hex_u64};
use crate::store::PrimaryRecord;

/// Position of a thread in the index.
pub type ThreadIx = u32;

/// The file and the offset of a rejection.
pub type RejectKey = (SourceId, u64);

/// One writer of one store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Writer {
    pub(super) store: usize,
    pub(super) name: StrId,
    /// Hash of store and name.
    pub(super) salt: u64,
    /// The second of the newest message, and the number of messages in that second.
    pub(super) newest: (i64, u32),
    /// The number of messages in each second, once a message arrived out of order.
    pub(super) counts: Option<HashMap<i64, u32>>,
    /// The keys that validly signed a message of this writer, oldest first.
    pub(super) keys: Vec<[u8; 32]>,
    /// The writer's message that was added last.
    pub(super) last: Option<MsgIx>,
    /// The writer's first validly signed message, in listing order or in the order of its log.
    pub(super) first_signed: Option<MsgIx>,
    /// The key that the writer's unsigned messages should have been signed with.
    pub(super) lacked: Option<ExpectedKey>,
}

/// One thread of one store.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Thread {
    pub(super) id: StrId,
    /// The message that was added last; the others are chained behind it.
    pub(super) head: MsgIx,
    /// The thread of the same id in another store.
    pub(super) next_same_id: ThreadIx,
    /// The store in the lower 8 bits, [`Thread::LIVE`] and [`Thread::MINE`].
    pub(super) info: u32,
}

impl Thread {
    /// Bit of a thread that has live messages.
    pub(super) const LIVE: u32 = 1 << 30;
    /// Bit of a thread that has live messages from or to me.
    pub(super) const MINE: u32 = 1 << 31;

    pub(super) fn store(&self) -> usize {
        (self.info & 0xff) as usize
    }

    /// Returns the bits that a message adds to the info of its thread.
    pub(super) fn live_bits(entry: &IndexEntry) -> u32 {
        match entry.is_live() {
            true if entry.is_to_me() || entry.is_from_me() => Self::LIVE | Self::MINE,
            true => Self::LIVE,
            false => 0,
        }
    }

    fn is_visible(&self, all: bool) -> bool {
        self.info & Self::LIVE != 0 && (all || self.info & Self::MINE != 0)
    }
}

/// Bytes of a store that were rejected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reject {
    /// Path of the file, relative to its store.
    pub path: String,
    /// One sentence for a person.
    pub reason: String,
    /// Line in the log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Length of the rejected bytes.
    pub len: u32,
    /// Time of the rejected record, or of the record before it.
    pub time_ms: i64,
    /// True if it may still become a message.
    pub(super) incomplete: bool,
    /// The message, if it could be parsed as one.
    pub message: Option<MsgIx>,
    /// Identity behind its inode number.
    pub identity: u64,
}

/// An id that is not 16 hex digits and is not in the message's reply link. It cannot be computed from the
/// entry's hash.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct TextId {
    pub(super) ix: MsgIx,
    pub(super) id: StrId,
}

/// The outcome of [`IndexTables::insert_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertOutcome {
    New(MsgIx),
    Known,
    /// A known message; the entry was updated with the store's current values.
    Updated(MsgIx, EntryUpdate),
    /// A rejected message: another message of this writer has the id, and this one does not hash to it.
    IdTaken,
}

/// The changes in a message that was reported again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EntryUpdate {
    /// True if its mark changed.
    pub(super) marked: bool,
    /// True if something else changed that a view shows.
    pub(super) shown: bool,
}

/// The tables. Positions mean nothing outside this process and its snapshots.
#[derive(Debug, Default)]
pub struct IndexTables {
    pub(super) entries: Column<IndexEntry>,
    pub(super) identity_slots: SlotTable,
    pub(super) strings: Interner,
    pub(super) writers: Vec<Writer>,
    pub(super) writer_of: HashMap<(usize, StrId), u32>,
    pub(super) threads: Column<Thread>,
    /// For each text, the first thread that has it as its id.
    pub(super) thread_of: Column<ThreadIx>,
    /// In the order of message positions.
    pub(super) text_ids: Column<TextId>,
    /// Ids of 16 hex digits whose hash another message already has.
    pub(super) hex_ids: HashMap<MsgIx, u64>,
    /// For each store, the texts that are the address of a writer or recipient.
    pub(super) addressed: Vec<BitSet>,
    pub(super) to_me: Vec<MsgIx>,
    pub(super) from_me: Vec<MsgIx>,
    pub(super) rejects: BTreeMap<RejectKey, Reject>,
    pub(super) reject_of: HashMap<u64, RejectKey>,
    /// Times in names that are too far from the message's time, in milliseconds.
    pub(super) far_names: HashMap<MsgIx, i64>,
    /// Numbers of a writer's keys that do not fit into an entry. Roles have so many, because several agents may
    /// fill one.
    pub(super) many_keys: HashMap<MsgIx, u32>,
    /// Messages with a note for me.
    pub(super) noted: BTreeSet<MsgIx>,
    /// Records that another record may replace ([`IndexTables::is_copy`]).
    pub(super) copies: HashMap<MsgIx, PrimaryRecord>,
    /// Threads that their stores report without messages.
    pub(super) empty: BTreeMap<ThreadIx, Timestamp>,
    pub(super) idempotency: HashMap<String, Vec<MsgIx>>,
    /// Marks and cleared marks whose message is in no store at the moment.
    pub(super) orphan_marks: HashMap<u64, bool>,
    /// The labels of mail programs, by identity, also for messages that are in no store at the moment.
    pub(super) labels: HashMap<u64, MailLabel>,
    /// Hashes of the ids that my messages answer.
    pub(super) answered: HashSet<u64>,
    /// Reply links, for stores without thread ids.
    pub(super) links: ReplyLinks,
    /// Signed messages whose signature does not count until somebody vouches for the key.
    pub(super) unvouched: BTreeSet<MsgIx>,
    /// Verified messages that lost their signatures, with the numbers of the keys.
    pub(super) stripped: HashMap<MsgIx, u32>,
    /// Hashes of the text of verified messages, in logs that may be rewritten.
    pub(super) texts: HashMap<MsgIx, u64>,
    /// Changes that may concern missing signatures.
    pub(super) signing_changes: SigningChanges,
    /// The unsigned messages that were there before keys were pinned.
    pub(super) prior_messages: PriorMessages,
    /// The marks that the stores have not received yet.
    pub(super) telling: MarkQueue,
    /// True during a bulk load, while the lists are not sorted.
    pub(super) unsorted: bool,
    pub(super) unread: usize,
    pub(super) stores: Vec<StoreInfo>,
    /// The writer of the last lookup. Neighbours in a log have the same writer.
    pub(super) last_writer: u32,
    /// A number that grows with each change that a view can show.
    pub(super) generation: u64,
    /// The part of `generation` that counts changes of marks.
    pub(super) mark_changes: u64,
    /// Number of lines that begin like a transcript's separator, for messages that have such lines and whose
    /// length is known.
    pub(super) ruled: BTreeMap<MsgIx, u32>,
    /// Threads whose default identity another thread already had.
    pub(super) odd_threads: BTreeMap<ThreadIx, u64>,
}

/// The data of a store that the tables need.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreInfo {
    pub name: String,
    /// A hash that separates the identities of its threads from those of other stores.
    pub salt: u64,
    pub whole_seconds: bool,
    /// True if threads are made from reply links.
    pub links: bool,
    /// True if its addresses are roles, which several agents may fill.
    pub roles: bool,
    /// True if it keeps the messages of a writer in one log.
    pub log: bool,
    /// True if it was scanned before.
    pub is_known: bool,
    /// The number of messages after the last scan; positions below it were there then.
    pub seen: MsgIx,
}

impl StoreInfo {
    pub fn with_name(name: &str) -> Self {
        let salt = stable_hash(1, &[name]) & IDENTITY_MASK;
        Self { name: name.to_owned(), salt, ..Self::default() }
    }
}

impl IndexTables {
    /// Returns the message at a position.
    pub fn entry(&self, ix: MsgIx) -> Option<&IndexEntry> {
        self.entries.get(ix as usize)
    }

    /// Appends the data of a store that was added later.
    pub(super) fn add_store(&mut self, info: StoreInfo) {
        self.stores.push(info);
        self.generation += 1;
    }

    /// Returns a number that grows with each change that a view can show.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns a number that grows with each such change except marks. No file name depends on marks.
    pub fn name_generation(&self) -> u64 {
        self.generation - self.mark_changes
    }

    /// Returns the number of messages so far, which is the position of the next one.
    pub fn messages_so_far(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of threads so far, which is the position of the next one.
    pub fn threads_so_far(&self) -> usize {
        self.threads.len()
    }

    /// Returns the store, writer and id of a message, which no other message has in common.
    pub fn key_parts(&self, entry: &IndexEntry) -> [String; 3] {
        let store = self.stores.get(entry.store()).map_or("", |s| s.name.as_str());
        [store.to_owned(), self.sender(entry).to_owned(), self.id(entry)]
    }

    /// Returns the number of unread messages to me.
    pub fn unread_count(&self) -> usize {
        self.unread
    }

    /// Returns the live messages to me, oldest first, read or not.
    pub fn messages_to_me(&self) -> impl DoubleEndedIterator<Item = MsgIx> + '_ {
        self.to_me.iter().copied().filter(|ix| self.entry(*ix).is_some_and(IndexEntry::is_to_me))
    }

    /// Returns the live messages from me, oldest first.
    pub fn messages_from_me(&self) -> impl DoubleEndedIterator<Item = MsgIx> + '_ {
        self.from_me
            .iter()
            .copied()
            .filter(|ix| self.entry(*ix).is_some_and(IndexEntry::is_from_me))
    }

    /// Returns every live message.
    pub fn live_messages(&self) -> impl Iterator<Item = MsgIx> + '_ {
        (0u32..).zip(&self.entries).filter(|(_, e)| e.is_live()).map(|(ix, _)| ix)
    }

    /// Returns the unread messages to me, oldest first.
    pub fn inbox(&self) -> impl DoubleEndedIterator<Item = MsgIx> + '_ {
        self.messages_to_me().filter(|ix| self.entry(*ix).is_some_and(|e| !e.is_read()))
    }

    /// Returns the unread messages to me, newest first.
    pub fn inbox_newest_first(&self) -> impl Iterator<Item = MsgIx> + '_ {
        self.inbox().rev()
    }

    /// Returns the time in the name of a message's file. It carries the store's order: it is the time of the
    /// message or a later one. Folders by day use it.
    pub fn name_time(&self, entry: &IndexEntry) -> Timestamp {
        entry.near_name_time().unwrap_or_else(|| {
            let far =
                self.find_by_identity(entry.identity()).and_then(|ix| self.far_names.get(&ix));
            far.map_or(entry.time(), |ms| Timestamp::from_millis(*ms))
        })
    }

    /// Returns the part of a sorted list whose names are on one day.
    pub fn slice_of_day<'a>(&self, list: &'a [MsgIx], day: Day) -> &'a [MsgIx] {
        let of = |ix: &MsgIx| self.entry(*ix).map(|e| self.name_time(e).day());
        let from = list.partition_point(|ix| of(ix) < Some(day));
        let to = list.partition_point(|ix| of(ix) <= Some(day));
        list.get(from..to).unwrap_or_default()
    }

    /// Returns the sorted list of messages to me, including messages that are gone.
    pub fn to_me_list(&self) -> &[MsgIx] {
        &self.to_me
    }

    /// Returns the sorted list of messages from me, including messages that are gone.
    pub fn from_me_list(&self) -> &[MsgIx] {
        &self.from_me
    }

    /// Returns the length of a message in a transcript, if the length of its file is known.
    pub fn length_in_transcript(&self, ix: MsgIx) -> Option<u64> {
        let len = self.entry(ix)?.size()?;
        Some(len + u64::from(self.ruled.get(&ix).copied().unwrap_or(0)))
    }

    /// Returns the message's writer.
    pub fn sender(&self, entry: &IndexEntry) -> &str {
        self.writers.get(entry.writer as usize).map_or("", |w| self.strings.get(w.name))
    }

    /// Returns the message's recipients, joined by `", "`.
    pub fn recipient_list(&self, entry: &IndexEntry) -> &str {
        self.strings.get(entry.to)
    }

    /// Returns the message's id.
    pub fn id(&self, entry: &IndexEntry) -> String {
        if let Some(id) = self.hex_id(entry) {
            return format!("{id:016x}");
        }
        let Some(ix) = self.find_by_identity(entry.identity()) else { return String::new() };
        match self.text_id(ix) {
            Some(id) => id.to_owned(),
            None => self.hex_ids.get(&ix).map_or_else(String::new, |id| format!("{id:016x}")),
        }
    }

    /// Returns the value of an id that is exactly 16 lower-case hex digits.
    pub fn hex_id(&self, entry: &IndexEntry) -> Option<u64> {
        let hex = entry.flags.has(EntryFlags::ID_HEX);
        hex.then(|| unmix_id(entry.hash, self.salt(entry.writer)))
    }

    fn text_id(&self, ix: MsgIx) -> Option<&str> {
        let odd = self.text_ids.get(self.text_ids.partition_point(|odd| odd.ix < ix));
        let of_its_own = odd.filter(|odd| odd.ix == ix).map(|odd| odd.id);
        Some(self.strings.get(of_its_own.or_else(|| self.links.id(ix))?))
    }

    /// Returns the value of the message's `Signature:` line.
    pub fn signature(&self, entry: &IndexEntry) -> SignatureState {
        let (sig, key) = self.signature_kind(entry);
        let keys = self.writers.get(entry.writer as usize).map_or(&[][..], |w| &w.keys);
        let fingerprint =
            keys.get(key).map_or(Fingerprint([0; 8]), |k| PublicKey(*k).fingerprint());
        match sig {
            SignatureKind::None => SignatureState::None,
            SignatureKind::Valid => SignatureState::Valid(fingerprint),
            SignatureKind::Unknown => SignatureState::Unknown,
            SignatureKind::Missing => SignatureState::Missing(fingerprint),
        }
    }

    /// Returns the kind of a message's signature and the number of the writer's key.
    fn signature_kind(&self, entry: &IndexEntry) -> (SignatureKind, usize) {
        match entry.flags.signature() {
            (sig, MANY_KEYS) => {
                let ix = self.find_by_identity(entry.identity());
                let key = ix.and_then(|ix| self.many_keys.get(&ix));
                (sig, key.map_or(MANY_KEYS, |key| *key as usize))
            }
            few => few,
        }
    }

    /// Returns the same for the message at a position.
    pub(super) fn signature_kind_at(&self, ix: MsgIx) -> (SignatureKind, usize) {
        self.entry(ix).map_or((SignatureKind::None, 0), |entry| self.signature_kind(entry))
    }

    /// Returns true if there is a note for me about a message ([`Record::note`](crate::store::Record::note)).
    pub fn has_note(&self, ix: MsgIx) -> bool {
        self.noted.contains(&ix)
    }

    /// Returns the thread of a message.
    pub fn thread_of(&self, entry: &IndexEntry) -> ThreadIx {
        entry.thread
    }

    /// Returns a thread's id and store.
    pub fn thread_id(&self, thread: ThreadIx) -> Option<(&str, usize)> {
        let t = self.threads.get(thread as usize)?;
        Some((self.strings.get(t.id), t.store()))
    }

    /// Returns all threads that have live messages. Threads between others are included only with `all`.
    pub fn visible_threads(&self, all: bool) -> impl Iterator<Item = ThreadIx> + '_ {
        (0u32..).zip(&self.threads).filter(move |(_, t)| t.is_visible(all)).map(|(ix, _)| ix)
    }

    /// Returns true if a thread is shown.
    pub fn is_thread_visible(&self, thread: ThreadIx, all: bool) -> bool {
        self.threads.get(thread as usize).is_some_and(|t| t.is_visible(all))
    }

    /// Returns the thread with this store and id.
    pub fn find_thread(&self, store: usize, id: &str) -> Option<ThreadIx> {
        self.find_thread_by_text(store, self.strings.find(id)?)
    }

    pub(super) fn find_thread_by_text(&self, store: usize, id: StrId) -> Option<ThreadIx> {
        let mut at = *self.thread_of.get(id as usize)?;
        loop {
            let t = self.threads.get(at as usize)?;
            if t.store() == store {
                return Some(at);
            }
            at = t.next_same_id;
        }
    }

    /// Returns true if another record of the same message replaces this record where a message is shown once. A
    /// record to me that has not arrived yet also does so: the records of a message follow each other in the
    /// store.
    pub fn is_copy(&self, ix: MsgIx) -> bool {
        let Some((copy, entry)) = self.copies.get(&ix).zip(self.entry(ix)) else { return false };
        let first = self.find_original(ix).and_then(|ix| self.entry(ix));
        let last = || self.writers.get(entry.writer as usize)?.last;
        let coming = || last().is_some_and(|last| self.copies.get(&last) == Some(copy));
        first.map_or_else(|| copy.to_me && coming(), IndexEntry::is_live)
    }

    /// Returns the record that replaces this one where a message is shown once, if there is one.
    pub fn find_original(&self, ix: MsgIx) -> Option<MsgIx> {
        let (copy, entry) = self.copies.get(&ix).zip(self.entry(ix))?;
        self.locate_message(entry.writer, &copy.id).ok()
    }

    /// Returns the records that another record may replace.
    pub fn copies(&self) -> impl Iterator<Item = MsgIx> + '_ {
        self.copies.keys().copied()
    }

    /// Returns all senders and recipients of a thread, also of messages that are not shown.
    pub fn list_participants(&self, store: usize, thread: &str) -> Vec<String> {
        let Some(thread) = self.find_thread(store, thread) else { return Vec::new() };
        let entries = self.thread_chain(thread).filter_map(|ix| self.entry(ix));
        let ends: HashSet<(u32, StrId)> = entries.map(|e| (e.writer, e.to)).collect();
        let names = |(writer, to): (u32, StrId)| {
            let from = self.writers.get(writer as usize).map(|w| self.strings.get(w.name));
            from.into_iter().chain(self.strings.get(to).split(", "))
        };
        ends.into_iter().flat_map(names).map(str::to_owned).collect()
    }

    /// Returns true if a thread of a store has messages, from and to any address.
    pub fn has_thread_messages(&self, store: usize, thread: &str) -> bool {
        self.find_thread(store, thread)
            .is_some_and(|thread| self.thread_chain(thread).next().is_some())
    }

    /// Returns the message with the identity that its inode numbers are made from.
    pub fn find_by_identity(&self, identity: u64) -> Option<MsgIx> {
        let same = |ix: &MsgIx| self.entry(*ix).is_some_and(|e| e.identity() == identity);
        self.identity_slots.candidates(identity).find(same)
    }

    /// Returns the message with this store, writer and id.
    pub fn find_message(&self, store: usize, from: &str, id: &str) -> Option<MsgIx> {
        self.locate_message(self.find_writer(store, from)?, id).ok()
    }

    /// Returns the writer with this name.
    pub(super) fn find_writer(&self, store: usize, name: &str) -> Option<u32> {
        let is_it = |w: &&Writer| w.store == store && self.strings.is_text(w.name, name);
        if self.writers.get(self.last_writer as usize).as_ref().is_some_and(is_it) {
            return Some(self.last_writer);
        }
        self.writer_of.get(&(store, self.strings.find(name)?)).copied()
    }

    /// Returns the salt that separates the hashes of this writer's ids from those of other writers.
    pub(super) fn salt(&self, writer: u32) -> u64 {
        self.writers.get(writer as usize).map_or(0, |w| w.salt)
    }

    /// Returns the position of a message. If there is none, returns the hash that it would get, and true if that
    /// hash contains the id.
    pub(super) fn locate_message(&self, writer: u32, id: &str) -> Result<MsgIx, (u64, bool)> {
        let hex = decode_hex_u64(id);
        let mut hash = hash_message_id(self.salt(writer), id, hex);
        let mut plain = hex.is_some();
        loop {
            match self.find_by_identity(hash & IDENTITY_MASK) {
                Some(ix) if self.is_message(ix, writer, id, hex) => return Ok(ix),
                // A crafted id may have another message's identity. The next hash serves as well.
                Some(_) => {
                    hash = stable_hash(hash, &[id]);
                    plain = false;
                }
                None => return Err((hash, plain)),
            }
        }
    }

    fn is_message(&self, ix: MsgIx, writer: u32, id: &str, hex: Option<u64>) -> bool {
        let Some(entry) = self.entry(ix).filter(|e| e.writer == writer) else { return false };
        if entry.flags.has(EntryFlags::ID_HEX) {
            return hex == Some(unmix_id(entry.hash, self.salt(writer)));
        }
        match self.text_id(ix) {
            Some(text) => text == id,
            None => hex.is_some() && hex == self.hex_ids.get(&ix).copied(),
        }
    }

    /// Returns true if the address has sent or received a message in the store.
    pub fn is_known_address(&self, store: usize, address: &str) -> bool {
        let known = self.addressed.get(store).zip(self.strings.find(address));
        known.is_some_and(|(addresses, id)| addresses.contains(id))
    }

    /// Returns the addresses that have sent or received messages, for "did you mean".
    pub fn known_addresses(&self) -> impl Iterator<Item = &str> {
        let known = |id: &StrId| self.addressed.iter().any(|addresses| addresses.contains(*id));
        (0..self.strings.len() as StrId).filter(known).map(|id| self.strings.get(id))
    }

    /// Returns true if this address has ever written a message in the store.
    pub fn has_written(&self, store: usize, address: &str) -> bool {
        self.find_writer(store, address).is_some()
    }

    /// Returns my messages with this idempotency key.
    pub fn find_by_idempotency_key(&self, key: &str) -> &[MsgIx] {
        self.idempotency.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns all rejections, in the order of files and offsets.
    pub fn rejects(&self) -> impl Iterator<Item = (&RejectKey, &Reject)> {
        self.rejects.iter()
    }

    /// Returns the rejection with the identity that its inode number is made from.
    pub fn find_reject(&self, identity: u64) -> Option<(RejectKey, &Reject)> {
        let key = self.reject_of.get(&identity)?;
        Some((*key, self.rejects.get(key)?))
    }

    /// Compares two messages in listing order: by time and by order within the second, as in names; then by
    /// store, writer and id.
    pub fn compare_order(&self, a: MsgIx, b: MsgIx) -> Ordering {
        let (Some(x), Some(y)) = (self.entry(a), self.entry(b)) else { return a.cmp(&b) };
        let by_id = self.stores.get(x.store()).is_some_and(|s| s.links);
        self.name_time(x)
            .cmp(&self.name_time(y))
            .then_with(|| x.store().cmp(&y.store()))
            // Equal times are sorted by id if names carry no store order.
            .then_with(|| if by_id { self.id(x).cmp(&self.id(y)) } else { Ordering::Equal })
            .then_with(|| self.sender(x).cmp(self.sender(y)))
            .then_with(|| {
                if x.flags.has(EntryFlags::ID_HEX) && y.flags.has(EntryFlags::ID_HEX) {
                    let id = |e: &IndexEntry| unmix_id(e.hash, self.salt(e.writer));
                    id(x).cmp(&id(y))
                } else {
                    self.id(x).cmp(&self.id(y))
                }
            })
            .then(a.cmp(&b))
    }
}
