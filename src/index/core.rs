//! The tables of the index: messages, writers, threads, and the orders in which views list them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Flags, MsgIx, NIL, Sig, hex_id};
use super::intern::{Interner, StrId, stable_hash};
use crate::model::{Day, Fingerprint, PublicKey, SignatureState, Timestamp};
use crate::store::{Found, Rejected};

/// Identities keep 56 bits; the rest of an inode number names the view.
pub const IDENTITY_MASK: u64 = (1 << 56) - 1;

/// An identity as a hash for the tables: they pick the bucket by the lowest bits and tell its
/// entries apart by the highest, so these must not be zero, nor the lowest again.
fn spread(identity: u64) -> u64 {
    identity | (identity >> 40) << 56
}

/// Position of a thread in the index.
pub type ThreadIx = u32;

/// Where a rejected thing stands: store and source as in an entry, and the offset.
pub type RejectKey = (u32, u64);

/// One writer of one store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Writer {
    store: u8,
    name: StrId,
    /// The second of the newest message and how many messages it holds.
    newest: (i64, u32),
    /// Messages per second, once a message arrived out of order.
    counts: Option<HashMap<i64, u32>>,
    /// Keys that validly signed a message of this writer, oldest first.
    pub(super) keys: Vec<[u8; 32]>,
}

/// One thread of one store.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Thread {
    identity: u64,
    id: StrId,
    store: u32,
    head: u32,
    tail: u32,
    /// Live messages, and those of them that me wrote or got.
    live: u32,
    mine: u32,
}

/// Something refused on the way in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reject {
    /// One sentence for a person.
    pub reason: String,
    /// Line in the log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Length in bytes of what is there.
    pub len: u32,
    /// Its time, or that of the record before it.
    pub time_ms: i64,
    /// It may still become a message.
    pub(super) incomplete: bool,
    /// The message, if it could be read as one.
    pub message: Option<MsgIx>,
    /// Identity behind its inode number.
    pub identity: u64,
}

/// What [`Core::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    New(MsgIx),
    Known,
    /// Another message of this writer has the id, and this one does not hash to it.
    IdTaken,
}

/// The tables. All positions are those of this process; the snapshot keeps them.
#[derive(Debug, Default)]
pub struct Core {
    pub(super) entries: Vec<Entry>,
    pub(super) keys: HashTable<MsgIx>,
    pub(super) strings: Interner,
    pub(super) writers: Vec<Writer>,
    pub(super) writer_of: HashMap<(u8, StrId), u32>,
    pub(super) threads: Vec<Thread>,
    pub(super) thread_of: HashTable<ThreadIx>,
    /// By text: a bit per store that knows it as the address of a writer or recipient.
    pub(super) addressed: Vec<u32>,
    pub(super) to_me: Vec<MsgIx>,
    pub(super) from_me: Vec<MsgIx>,
    pub(super) rejects: BTreeMap<RejectKey, Reject>,
    pub(super) reject_of: HashMap<u64, RejectKey>,
    pub(super) idempotency: HashMap<String, Vec<MsgIx>>,
    /// Marks whose message is not in any store at the moment.
    pub(super) orphan_marks: HashSet<u64>,
    pub(super) unread: usize,
    pub(super) stores: Vec<StoreInfo>,
    /// Grows with every change that a view can show.
    pub(super) generation: u64,
}

/// What the tables need to know of a store.
#[derive(Clone, Debug)]
pub(super) struct StoreInfo {
    pub name: String,
    pub whole_seconds: bool,
}

impl Core {
    /// The message at a position.
    pub fn entry(&self, ix: MsgIx) -> Option<&Entry> {
        self.entries.get(ix as usize)
    }

    /// Grows with every change that a view can show.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Messages to me that are not marked.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// Live messages to me, oldest first, read or not.
    pub fn to_me(&self) -> impl DoubleEndedIterator<Item = MsgIx> + '_ {
        self.to_me.iter().copied().filter(|ix| self.entry(*ix).is_some_and(Entry::is_to_me))
    }

    /// Live messages from me, oldest first.
    pub fn from_me(&self) -> impl DoubleEndedIterator<Item = MsgIx> + '_ {
        self.from_me.iter().copied().filter(|ix| self.entry(*ix).is_some_and(Entry::is_from_me))
    }

    /// Every live message.
    pub fn all(&self) -> impl Iterator<Item = MsgIx> + '_ {
        (0u32..).zip(&self.entries).filter(|(_, e)| e.is_live()).map(|(ix, _)| ix)
    }

    /// Unread messages to me, oldest first.
    pub fn inbox(&self) -> impl Iterator<Item = MsgIx> + '_ {
        self.to_me().filter(|ix| self.entry(*ix).is_some_and(|e| !e.is_read()))
    }

    /// The same, newest first.
    pub fn inbox_rev(&self) -> impl Iterator<Item = MsgIx> + '_ {
        self.to_me().rev().filter(|ix| self.entry(*ix).is_some_and(|e| !e.is_read()))
    }

    /// The part of a sorted list whose names fall on a day.
    pub fn on_day<'a>(&self, list: &'a [MsgIx], day: Day) -> &'a [MsgIx] {
        let time = |ix: &MsgIx| self.entry(*ix).map_or(i64::MIN, |e| e.time_ms);
        let from = list.partition_point(|ix| Timestamp::from_millis(time(ix)).day() < day);
        let to = list.partition_point(|ix| Timestamp::from_millis(time(ix)).day() <= day);
        list.get(from..to).unwrap_or_default()
    }

    /// The sorted list of messages to me, gone ones included.
    pub fn to_me_list(&self) -> &[MsgIx] {
        &self.to_me
    }

    /// The sorted list of messages from me, gone ones included.
    pub fn from_me_list(&self) -> &[MsgIx] {
        &self.from_me
    }

    /// The message's writer.
    pub fn from(&self, entry: &Entry) -> &str {
        self.writers.get(entry.writer as usize).map_or("", |w| self.strings.get(w.name))
    }

    /// The message's recipients, joined by `", "`.
    pub fn to(&self, entry: &Entry) -> &str {
        self.strings.get(entry.to)
    }

    /// The message's id.
    pub fn id(&self, entry: &Entry) -> String {
        if entry.flags.has(Flags::ID_HEX) {
            format!("{:016x}", entry.id)
        } else {
            self.strings.get(entry.id as StrId).to_owned()
        }
    }

    /// The `Signature:` line of the message.
    pub fn signature(&self, entry: &Entry) -> SignatureState {
        let (sig, key) = entry.flags.signature();
        let keys = self.writers.get(entry.writer as usize).map_or(&[][..], |w| &w.keys);
        let fingerprint =
            keys.get(key).map_or(Fingerprint([0; 8]), |k| PublicKey(*k).fingerprint());
        match sig {
            Sig::None => SignatureState::None,
            Sig::Valid => SignatureState::Valid(fingerprint),
            Sig::Unknown => SignatureState::Unknown,
            Sig::Missing => SignatureState::Missing(fingerprint),
        }
    }

    /// The thread a message belongs to.
    pub fn thread_of(&self, entry: &Entry) -> ThreadIx {
        entry.thread
    }

    /// A thread's id, and the store it lies in.
    pub fn thread_id(&self, thread: ThreadIx) -> Option<(&str, usize)> {
        let t = self.threads.get(thread as usize)?;
        Some((self.strings.get(t.id), t.store as usize))
    }

    /// The identity behind a thread's inode numbers.
    pub fn thread_identity(&self, thread: ThreadIx) -> Option<u64> {
        self.threads.get(thread as usize).map(|t| t.identity)
    }

    /// All threads that have live messages, those of others only with `all`.
    pub fn threads(&self, all: bool) -> impl Iterator<Item = ThreadIx> + '_ {
        (0u32..)
            .zip(&self.threads)
            .filter(move |(_, t)| t.live > 0 && (all || t.mine > 0))
            .map(|(ix, _)| ix)
    }

    /// Whether a thread is shown.
    pub fn thread_visible(&self, thread: ThreadIx, all: bool) -> bool {
        self.threads.get(thread as usize).is_some_and(|t| t.live > 0 && (all || t.mine > 0))
    }

    /// Finds a thread by store and id.
    pub fn find_thread(&self, store: usize, id: &str) -> Option<ThreadIx> {
        let identity = self.thread_hash(store, id);
        let same = |ix: &ThreadIx| self.thread_id(*ix).is_some_and(|(i, s)| i == id && s == store);
        self.thread_of.find(spread(identity), same).copied()
    }

    /// Finds a thread by the identity behind its inode numbers.
    pub fn thread_by_identity(&self, identity: u64) -> Option<ThreadIx> {
        self.thread_of
            .find(spread(identity), |ix| self.thread_identity(*ix) == Some(identity))
            .copied()
    }

    /// The live messages of a thread, oldest first.
    pub fn thread_messages(&self, thread: ThreadIx) -> Vec<MsgIx> {
        let mut out = Vec::new();
        let mut at = self.threads.get(thread as usize).map_or(NIL, |t| t.head);
        while let Some(entry) = self.entry(at) {
            if entry.is_live() {
                out.push(at);
            }
            at = entry.next;
        }
        out.sort_by(|a, b| self.order(*a, *b));
        out
    }

    /// The time of the newest live message of a thread.
    pub fn thread_newest(&self, thread: ThreadIx) -> Option<Timestamp> {
        let mut newest = None;
        let mut at = self.threads.get(thread as usize).map_or(NIL, |t| t.head);
        while let Some(entry) = self.entry(at) {
            if entry.is_live() {
                newest = newest.max(Some(entry.time()));
            }
            at = entry.next;
        }
        newest
    }

    /// Finds a message by the identity behind its inode numbers.
    pub fn by_identity(&self, identity: u64) -> Option<MsgIx> {
        let same = |ix: &MsgIx| self.entry(*ix).is_some_and(|e| e.hash == identity);
        self.keys.find(spread(identity), same).copied()
    }

    /// Finds a message by its key.
    pub fn find(&self, store: usize, from: &str, id: &str) -> Option<MsgIx> {
        self.locate(store, from, id).ok()
    }

    /// The position, or the identity that a message with this key would get.
    fn locate(&self, store: usize, from: &str, id: &str) -> Result<MsgIx, u64> {
        let name = self.stores.get(store).map_or("", |s| s.name.as_str());
        // A crafted id may collide with another message's hash; the next seed is then as good.
        let mut hash = stable_hash(0, &[name, from, id]) & IDENTITY_MASK;
        loop {
            match self.by_identity(hash) {
                Some(ix) if self.is(ix, store, from, id) => return Ok(ix),
                Some(_) => hash = stable_hash(hash, &[id]) & IDENTITY_MASK,
                None => return Err(hash),
            }
        }
    }

    fn is(&self, ix: MsgIx, store: usize, from: &str, id: &str) -> bool {
        let Some(entry) = self.entry(ix) else { return false };
        let same_id = if entry.flags.has(Flags::ID_HEX) {
            hex_id(id) == Some(entry.id)
        } else {
            self.strings.get(entry.id as StrId) == id
        };
        same_id && entry.store() == store && self.from(entry) == from
    }

    /// Whether anybody by this address has written or been written to in the store.
    pub fn knows(&self, store: usize, address: &str) -> bool {
        let id = self.strings.find(address);
        let mask = id.and_then(|id| self.addressed.get(id as usize)).copied().unwrap_or(0);
        mask & (1 << store.min(31)) != 0
    }

    /// Addresses that have written or been written to, for "did you mean".
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let known = (0u32..).zip(&self.addressed).filter(|(_, mask)| **mask != 0);
        known.map(|(id, _)| self.strings.get(id))
    }

    /// Whether this address has ever written a message in the store.
    pub fn has_written(&self, store: usize, address: &str) -> bool {
        let id = self.strings.find(address);
        id.is_some_and(|id| self.writer_of.contains_key(&(store as u8, id)))
    }

    /// My messages that carry this idempotency key.
    pub fn with_idempotency_key(&self, key: &str) -> &[MsgIx] {
        self.idempotency.get(key).map_or(&[], Vec::as_slice)
    }

    /// Everything refused, in the order of files and positions.
    pub fn rejects(&self) -> impl Iterator<Item = (&RejectKey, &Reject)> {
        self.rejects.iter()
    }

    /// A rejected thing by the identity behind its inode number.
    pub fn reject_by_identity(&self, identity: u64) -> Option<(RejectKey, &Reject)> {
        let key = self.reject_of.get(&identity)?;
        Some((*key, self.rejects.get(key)?))
    }

    /// Listing order: by name, that is by time, order within the second, writer and id.
    pub fn order(&self, a: MsgIx, b: MsgIx) -> Ordering {
        let (Some(x), Some(y)) = (self.entry(a), self.entry(b)) else { return a.cmp(&b) };
        (x.time_ms.saturating_add(i64::from(x.seq)))
            .cmp(&y.time_ms.saturating_add(i64::from(y.seq)))
            .then_with(|| self.from(x).cmp(self.from(y)))
            .then_with(|| {
                if x.flags.has(Flags::ID_HEX) && y.flags.has(Flags::ID_HEX) {
                    x.id.cmp(&y.id)
                } else {
                    self.id(x).cmp(&self.id(y))
                }
            })
            .then(a.cmp(&b))
    }

    fn thread_hash(&self, store: usize, id: &str) -> u64 {
        let name = self.stores.get(store).map_or("", |s| s.name.as_str());
        stable_hash(1, &[name, id]) & IDENTITY_MASK
    }

    pub(super) fn writer(&mut self, store: usize, name: &str) -> u32 {
        let id = self.strings.intern(name);
        let next = self.writers.len() as u32;
        let n = *self.writer_of.entry((store as u8, id)).or_insert(next);
        if n == next {
            self.writers.push(Writer { store: store as u8, name: id, ..Writer::default() });
            self.address(store, id);
        }
        n
    }

    fn address(&mut self, store: usize, id: StrId) {
        if self.addressed.len() <= id as usize {
            self.addressed.resize(id as usize + 1, 0);
        }
        if let Some(mask) = self.addressed.get_mut(id as usize) {
            *mask |= 1 << store.min(31);
        }
    }

    /// The recipients as one text, each of them noted as an address.
    fn recipients(&mut self, store: usize, to: &str) -> StrId {
        let id = self.strings.intern(to);
        if !to.contains(", ") {
            self.address(store, id);
            return id;
        }
        for one in to.split(", ") {
            let one = self.strings.intern(one);
            self.address(store, one);
        }
        id
    }

    fn thread(&mut self, store: usize, id: &str) -> ThreadIx {
        if let Some(ix) = self.find_thread(store, id) {
            return ix;
        }
        let identity = self.thread_hash(store, id);
        let ix = self.threads.len() as u32;
        let id = self.strings.intern(id);
        self.threads.push(Thread {
            identity,
            id,
            store: store as u32,
            head: NIL,
            tail: NIL,
            live: 0,
            mine: 0,
        });
        let threads = &self.threads;
        self.thread_of.insert_unique(spread(identity), ix, |ix| {
            threads.get(*ix as usize).map_or(0, |t| spread(t.identity))
        });
        ix
    }

    /// Takes in one message. It is not in any list yet: see [`Core::admit`].
    pub(super) fn insert(&mut self, store: usize, found: &Found<'_>) -> Inserted {
        let hash = match self.locate(store, &found.from, &found.id) {
            Err(hash) => hash,
            Ok(ix) => return self.meet_again(ix, store, found),
        };
        let writer = self.writer(store, &found.from);
        let whole = self.stores.get(store).is_some_and(|s| s.whole_seconds);
        let seq = if whole { self.next_in_second(writer, found.time.secs()) } else { 0 };
        let (id, hex) = match hex_id(&found.id) {
            Some(value) => (value, true),
            None => (u64::from(self.strings.intern(&found.id)), false),
        };
        let mut flags = Flags::default();
        flags.set(Flags::ID_HEX, hex);
        flags.set(Flags::TO_ME, found.to_me);
        flags.set(Flags::FROM_ME, found.from_me);
        let orphan = !self.orphan_marks.is_empty() && self.orphan_marks.remove(&hash);
        flags.set(Flags::READ, orphan || found.read == Some(true));
        let ix = self.entries.len() as MsgIx;
        let thread = self.thread(store, &found.thread);
        let to = self.recipients(store, &found.to);
        self.entries.push(Entry {
            hash,
            time_ms: found.time.millis(),
            id,
            offset: found.at.offset,
            len: found.at.len,
            source: (store as u32) << 24 | found.at.source,
            writer,
            to,
            thread,
            next: NIL,
            size: 0,
            seq,
            flags,
        });
        let entries = &self.entries;
        self.keys.insert_unique(spread(hash), ix, |ix| {
            entries.get(*ix as usize).map_or(0, |e| spread(e.hash))
        });
        if let Some(key) = &found.idempotency_key {
            self.idempotency.entry(key.to_string()).or_default().push(ix);
        }
        self.chain(ix, thread);
        Inserted::New(ix)
    }

    /// The same key again: a duplicate, or the message after a rescan.
    fn meet_again(&mut self, ix: MsgIx, store: usize, found: &Found<'_>) -> Inserted {
        let source = (store as u32) << 24 | found.at.source;
        let to = self.strings.intern(&found.to);
        let thread = self.find_thread(store, &found.thread);
        let Some(entry) = self.entries.get_mut(ix as usize) else { return Inserted::Known };
        let same_place = entry.source == source && entry.offset == found.at.offset;
        let lost = entry.flags.has(Flags::STALE) || entry.flags.has(Flags::GONE);
        let same_text = entry.time_ms == found.time.millis()
            && entry.to == to
            && Some(entry.thread) == thread
            && (entry.len == found.at.len || found.id_verified);
        if !lost && !same_place {
            return if same_text || found.id_verified {
                Inserted::Known
            } else {
                Inserted::IdTaken
            };
        }
        let came_back = entry.flags.has(Flags::GONE);
        entry.source = source;
        entry.offset = found.at.offset;
        if entry.len != found.at.len {
            entry.len = found.at.len;
            entry.size = 0;
        }
        entry.flags.set(Flags::STALE, false);
        entry.flags.set(Flags::GONE, false);
        if came_back { Inserted::New(ix) } else { Inserted::Known }
    }

    fn chain(&mut self, ix: MsgIx, thread: ThreadIx) {
        let Some(t) = self.threads.get_mut(thread as usize) else { return };
        let tail = std::mem::replace(&mut t.tail, ix);
        if t.head == NIL {
            t.head = ix;
        } else if let Some(last) = self.entries.get_mut(tail as usize) {
            last.next = ix;
        }
    }

    /// How many messages this writer already has in this second, at most 999.
    fn next_in_second(&mut self, writer: u32, secs: i64) -> u16 {
        let Some(w) = self.writers.get_mut(writer as usize) else { return 0 };
        let (newest, count) = w.newest;
        if w.counts.is_none() && (count == 0 || secs >= newest) {
            w.newest = if count > 0 && secs == newest { (secs, count + 1) } else { (secs, 1) };
            return if secs == newest { count.min(999) as u16 } else { 0 };
        }
        if w.counts.is_none() {
            let mut counts: HashMap<i64, u32> = HashMap::new();
            for e in self.entries.iter().filter(|e| e.writer == writer) {
                *counts.entry(e.time().secs()).or_default() += 1;
            }
            w.counts = Some(counts);
        }
        let slot = w.counts.get_or_insert_default().entry(secs).or_default();
        *slot += 1;
        (*slot - 1).min(999) as u16
    }

    /// Puts a new or returned message into the lists. `sorted` keeps them in order at once; a bulk
    /// load sorts at its end with [`Core::sort`].
    pub(super) fn admit(&mut self, ix: MsgIx, sorted: bool) {
        self.generation += 1;
        let Some(entry) = self.entry(ix).copied() else { return };
        if !entry.is_live() {
            return;
        }
        let mine = entry.flags.has(Flags::TO_ME) || entry.flags.has(Flags::FROM_ME);
        if let Some(t) = self.threads.get_mut(entry.thread as usize) {
            t.live += 1;
            t.mine += u32::from(mine);
        }
        if entry.flags.has(Flags::TO_ME) {
            self.unread += usize::from(!entry.is_read());
            let list = std::mem::take(&mut self.to_me);
            self.to_me = self.enlist(list, ix, sorted);
        }
        if entry.flags.has(Flags::FROM_ME) {
            let list = std::mem::take(&mut self.from_me);
            self.from_me = self.enlist(list, ix, sorted);
        }
    }

    fn enlist(&self, mut list: Vec<MsgIx>, ix: MsgIx, sorted: bool) -> Vec<MsgIx> {
        if !sorted || list.last().is_none_or(|last| self.order(*last, ix) == Ordering::Less) {
            list.push(ix);
            return list;
        }
        if let Err(at) = list.binary_search_by(|other| self.order(*other, ix)) {
            list.insert(at, ix);
        }
        list
    }

    /// Takes a message out of the lists, as gone or as refused. Lists keep its place: every reader
    /// of a list asks the entry.
    pub(super) fn dismiss(&mut self, ix: MsgIx, why: Flags) {
        self.generation += 1;
        let Some(entry) = self.entry(ix).copied() else { return };
        if entry.is_live() {
            let mine = entry.flags.has(Flags::TO_ME) || entry.flags.has(Flags::FROM_ME);
            if let Some(t) = self.threads.get_mut(entry.thread as usize) {
                t.live = t.live.saturating_sub(1);
                t.mine = t.mine.saturating_sub(u32::from(mine));
            }
            if entry.flags.has(Flags::TO_ME) && !entry.is_read() {
                self.unread = self.unread.saturating_sub(1);
            }
        }
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.flags.set(why, true);
            entry.flags.set(Flags::STALE, false);
        }
    }

    /// Sorts the lists after a bulk load.
    pub(super) fn sort(&mut self) {
        let sorted = |mut list: Vec<MsgIx>| {
            list.sort_by(|a, b| self.order(*a, *b));
            list
        };
        let (to_me, from_me) = (sorted(self.to_me.clone()), sorted(self.from_me.clone()));
        self.to_me = to_me;
        self.from_me = from_me;
    }

    /// Sets or clears a mark. True if that changed anything.
    pub(super) fn set_read(&mut self, ix: MsgIx, read: bool, here: bool) -> bool {
        let Some(entry) = self.entries.get_mut(ix as usize) else { return false };
        let changed = entry.is_read() != read;
        entry.flags.set(Flags::READ, read);
        entry.flags.set(Flags::READ_HERE, read && here);
        let counts = entry.is_to_me();
        if changed {
            self.generation += 1;
            if counts && read {
                self.unread = self.unread.saturating_sub(1);
            } else if counts {
                self.unread += 1;
            }
        }
        changed
    }

    /// Sets a mark by key; for a message that is in no store at the moment it is kept until it comes.
    pub(super) fn mark_by_key(&mut self, store: usize, from: &str, id: &str, read: bool) {
        match self.locate(store, from, id) {
            Ok(ix) => {
                self.set_read(ix, read, false);
            }
            Err(hash) if read => {
                self.orphan_marks.insert(hash);
            }
            Err(hash) => {
                self.orphan_marks.remove(&hash);
            }
        }
    }

    /// Remembers the rendered length of a message, so that `stat` need not render it again.
    pub fn set_size(&mut self, ix: MsgIx, size: u64) {
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.size = u32::try_from(size).unwrap_or(0);
        }
    }

    pub(super) fn add_reject(
        &mut self,
        store: usize,
        rejected: Rejected,
        path: &str,
        message: Option<MsgIx>,
    ) {
        self.generation += 1;
        let key = ((store as u32) << 24 | rejected.at.source, rejected.at.offset);
        let name = self.stores.get(store).map_or("", |s| s.name.as_str());
        let line = rejected.line.to_string();
        let identity = stable_hash(2, &[name, path, &line]) & IDENTITY_MASK;
        let reject = Reject {
            reason: rejected.reason,
            line: rejected.line,
            len: rejected.at.len,
            time_ms: rejected.time.millis(),
            incomplete: rejected.incomplete,
            message,
            identity,
        };
        self.reject_of.insert(identity, key);
        self.rejects.insert(key, reject);
    }

    pub(super) fn remove_rejects(&mut self, drop: impl Fn(&RejectKey, &Reject) -> bool) {
        let gone: Vec<RejectKey> =
            self.rejects.iter().filter(|(k, r)| drop(k, r)).map(|(k, _)| *k).collect();
        for key in gone {
            self.generation += 1;
            if let Some(reject) = self.rejects.remove(&key) {
                self.reject_of.remove(&reject.identity);
            }
        }
    }

    /// Rebuilds what is not in a snapshot.
    pub(super) fn reindex(&mut self) {
        let entries = &self.entries;
        self.keys = HashTable::with_capacity(entries.len());
        for (ix, e) in (0u32..).zip(entries) {
            self.keys
                .insert_unique(e.hash, ix, |ix| entries.get(*ix as usize).map_or(0, |e| e.hash));
        }
        let threads = &self.threads;
        self.thread_of = HashTable::with_capacity(threads.len());
        for (ix, t) in (0u32..).zip(threads) {
            self.thread_of.insert_unique(spread(t.identity), ix, |ix| {
                threads.get(*ix as usize).map_or(0, |t| spread(t.identity))
            });
        }
        self.writer_of = (0u32..).zip(&self.writers).map(|(n, w)| ((w.store, w.name), n)).collect();
        self.reject_of = self.rejects.iter().map(|(key, r)| (r.identity, *key)).collect();
    }
}
