//! What changes the tables: messages that come, come back or go, marks, rejects.

use std::cmp::Ordering;
use std::collections::HashMap;

use hashbrown::HashTable;

use super::core::{Core, Inserted, OddId, Reject, RejectKey, Thread, ThreadIx, Writer};
use super::entry::{Entry, Flags, MsgIx, NIL, hex_id, mix};
use super::intern::{IDENTITY_MASK, StrId, spread, stable_hash};
use crate::store::{Found, Rejected};

impl Core {
    pub(super) fn writer(&mut self, store: usize, name: &str) -> u32 {
        if let Some(w) = self.writers.get(self.last_writer as usize)
            && w.store as usize == store
            && self.strings.get(w.name) == name
        {
            return self.last_writer;
        }
        let id = self.strings.intern(name);
        let next = self.writers.len() as u32;
        let n = *self.writer_of.entry((store as u8, id)).or_insert(next);
        if n == next {
            let salt = self.writer_salt(store, name);
            self.writers.push(Writer { store: store as u8, name: id, salt, ..Writer::default() });
            self.address(store, id);
        }
        self.last_writer = n;
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
        let id = self.strings.intern(id);
        if let Some(ix) = self.thread_with(store, id) {
            return ix;
        }
        let ix = self.threads.len() as ThreadIx;
        if self.thread_of.len() <= id as usize {
            self.thread_of.resize(id as usize + 1, NIL);
        }
        let first = self.thread_of.get_mut(id as usize);
        let twin = first.map_or(NIL, |first| std::mem::replace(first, ix));
        self.threads.push(Thread { id, head: NIL, twin, info: store as u32 });
        ix
    }

    /// Makes room for about this many more messages.
    pub(super) fn reserve(&mut self, messages: usize) {
        self.entries.reserve(messages);
        let texts_each = self.strings.len() as f64 / self.entries.len().max(1) as f64;
        self.strings.reserve((messages as f64 * texts_each) as usize);
        let entries = &self.entries;
        self.keys.reserve(messages, |ix| entries.get(*ix as usize).map_or(0, |e| spread(e.hash)));
    }

    /// Takes in one message. It is not in any list yet: see [`Core::admit`].
    pub(super) fn insert(&mut self, store: usize, found: &Found<'_>) -> Inserted {
        let writer = self.writer(store, &found.from);
        let (hash, plain) = match self.locate(writer, &found.id) {
            Err(new) => new,
            Ok(ix) => return self.meet_again(ix, store, found),
        };
        let whole = self.stores.get(store).is_some_and(|s| s.whole_seconds);
        let seq = if whole { self.next_in_second(writer, found.time.secs()) } else { 0 };
        let mut flags = Flags::default();
        flags.set(Flags::ID_HEX, plain);
        flags.set(Flags::TO_ME, found.to_me);
        flags.set(Flags::FROM_ME, found.from_me);
        let orphan =
            !self.orphan_marks.is_empty() && self.orphan_marks.remove(&(hash & IDENTITY_MASK));
        flags.set(Flags::READ, orphan || found.read == Some(true));
        let ix = self.entries.len() as MsgIx;
        if !plain {
            let odd = match hex_id(&found.id) {
                Some(value) => OddId::Hex(value),
                None => OddId::Text(self.strings.intern(&found.id)),
            };
            self.odd_ids.insert(ix, odd);
        }
        let thread = self.thread(store, &found.thread);
        let next = self
            .threads
            .get_mut(thread as usize)
            .map_or(NIL, |t| std::mem::replace(&mut t.head, ix));
        let to = self.recipients(store, &found.to);
        self.entries.push(Entry {
            hash,
            time_ms: found.time.millis(),
            offset: found.at.offset,
            len: found.at.len,
            source: (store as u32) << 24 | found.at.source,
            writer,
            to,
            thread,
            next,
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
            t.info |= Thread::LIVE | if mine { Thread::MINE } else { 0 };
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

    /// Takes a message that is gone out of the views. Lists keep its place: every reader of a list
    /// asks the entry.
    pub(super) fn dismiss(&mut self, ix: MsgIx) {
        self.generation += 1;
        let Some(entry) = self.entry(ix).copied() else { return };
        if entry.is_to_me() && !entry.is_read() {
            self.unread = self.unread.saturating_sub(1);
        }
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.flags.set(Flags::GONE, true);
            entry.flags.set(Flags::STALE, false);
        }
        let mut info = 0;
        let mut at = self.threads.get(entry.thread as usize).map_or(NIL, |t| t.head);
        while let Some(e) = self.entry(at) {
            if e.is_live() {
                info |= Thread::LIVE;
                info |= if e.is_to_me() || e.is_from_me() { Thread::MINE } else { 0 };
            }
            at = e.next;
        }
        if let Some(t) = self.threads.get_mut(entry.thread as usize) {
            t.info = t.info & 0xff | info;
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
        let writer = self.strings.find(from).and_then(|n| self.writer_of.get(&(store as u8, n)));
        let hash = match writer.map(|w| self.locate(*w, id)) {
            Some(Ok(ix)) => {
                self.set_read(ix, read, false);
                return;
            }
            Some(Err((hash, _))) => hash,
            None => self.hash_of(store, from, id),
        };
        if read {
            self.orphan_marks.insert(hash & IDENTITY_MASK);
        } else {
            self.orphan_marks.remove(&(hash & IDENTITY_MASK));
        }
    }

    /// The hash that the first message of a writer nobody knows yet would get.
    fn hash_of(&self, store: usize, from: &str, id: &str) -> u64 {
        let salt = self.writer_salt(store, from);
        hex_id(id).map_or_else(|| stable_hash(salt, &[id]), |value| mix(value, salt))
    }

    fn writer_salt(&self, store: usize, name: &str) -> u64 {
        stable_hash(5, &[self.stores.get(store).map_or("", |s| s.name.as_str()), name])
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
            self.keys.insert_unique(spread(e.hash), ix, |ix| {
                entries.get(*ix as usize).map_or(0, |e| spread(e.hash))
            });
        }
        self.writer_of = (0u32..).zip(&self.writers).map(|(n, w)| ((w.store, w.name), n)).collect();
        self.reject_of = self.rejects.iter().map(|(key, r)| (r.identity, *key)).collect();
    }
}
