//! Changes of the tables: messages that arrive, return or go, marks, and rejections.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::entry::{EntryFlags, FAR, IndexEntry, MsgIx, NIL, hash_message_id, identity_lookup};
use super::intern::{IDENTITY_MASK, StrId, force_loads, stable_hash, text_identity};
use super::source::{BitSet, SourceId};
use super::tables::{
    IndexTables, InsertOutcome, Reject, RejectKey, TextId, Thread, ThreadIx, Writer,
};
use crate::model::{decode_hex_u64, plain_id};
use crate::store::{FoundMessage, Rejection};

impl IndexTables {
    pub(super) fn intern_writer(&mut self, store: usize, name: &str) -> u32 {
        let known = self.find_writer(store, name);
        self.last_writer = known.unwrap_or_else(|| {
            let id = self.strings.intern(name);
            let next = self.writers.len() as u32;
            self.writer_of.insert((store, id), next);
            let salt = self.compute_writer_salt(store, name);
            self.writers.push(Writer { store, name: id, salt, ..Writer::default() });
            self.signing_changes.fresh.push(next);
            self.note_address(store, id);
            next
        });
        self.last_writer
    }

    fn note_address(&mut self, store: usize, id: StrId) {
        if self.addressed.len() <= store {
            self.addressed.resize(store + 1, BitSet::default());
        }
        if let Some(known) = self.addressed.get_mut(store) {
            known.insert(id);
        }
    }

    /// Returns the recipients as one text, and adds each of them to the known addresses.
    pub(super) fn intern_recipients(&mut self, store: usize, to: &str) -> StrId {
        let id = self.strings.intern(to);
        if !to.contains(", ") {
            self.note_address(store, id);
            return id;
        }
        for one in to.split(", ") {
            let one = self.strings.intern(one);
            self.note_address(store, one);
        }
        id
    }

    pub(super) fn intern_thread(&mut self, store: usize, text: &str) -> ThreadIx {
        let (id, alone) = self.strings.intern_checked(text);
        if let Some(ix) = self.find_thread_by_text(store, id) {
            return ix;
        }
        let ix = self.threads.len() as ThreadIx;
        if let Some(odd) = self.find_free_identity(store, text, alone) {
            self.odd_threads.insert(ix, odd);
        }
        self.thread_of.grow_to(id as usize + 1, NIL);
        let first = self.thread_of.get_mut(id as usize);
        let twin = first.map_or(NIL, |first| std::mem::replace(first, ix));
        self.threads.push(Thread { id, head: NIL, next_same_id: twin, info: store as u32 });
        ix
    }

    /// Releases unused room.
    pub(super) fn shrink_tables(&mut self) {
        self.entries.shrink_to_fit();
        self.strings.shrink_to_fit();
        self.threads.shrink_to_fit();
        self.thread_of.shrink_to_fit();
        self.text_ids.shrink_to_fit();
        self.to_me.shrink_to_fit();
        self.from_me.shrink_to_fit();
        self.links.shrink_to_fit();
    }

    /// Makes room for about this many more messages.
    pub(super) fn reserve(&mut self, messages: usize) {
        self.entries.reserve(messages);
        let texts_each = self.strings.len() as f64 / self.entries.len().max(1) as f64;
        self.strings.reserve((messages as f64 * texts_each) as usize);
        self.identity_slots.reserve(messages, identity_lookup(&self.entries));
    }

    /// Has the processor fetch the table entries that these messages need, all at once. Fetching them one after
    /// the other would take half the time of a first index.
    pub(super) fn prefetch_messages(&self, store: usize, found: &[FoundMessage<'_>]) {
        let hashes = |f: &FoundMessage<'_>| {
            let salt = self.find_writer(store, &f.from).map_or(0, |writer| self.salt(writer));
            (
                hash_message_id(salt, &f.id, decode_hex_u64(&f.id)) & IDENTITY_MASK,
                text_identity(&f.thread),
            )
        };
        let hashes: Vec<(u64, u64)> = found.iter().map(hashes).collect();
        force_loads(self.identity_slots.prefetch(hashes.iter().map(|(key, _)| *key)).into_iter());
        let texts = self.strings.prefetch(hashes.iter().map(|(_, thread)| *thread));
        let with = |id: &StrId| self.thread_of.get(*id as usize).copied();
        let threads: Vec<ThreadIx> = texts.iter().filter_map(with).collect();
        force_loads(threads.iter().filter_map(|ix| Some(self.threads.get(*ix as usize)?.head)));
    }

    /// Adds one message. It is not in any list yet: see [`IndexTables::admit_message`].
    pub(super) fn insert_message(
        &mut self,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let writer = self.intern_writer(store, &found.from);
        let (hash, plain) = match self.locate_message(writer, &found.id) {
            Err(new) => new,
            Ok(ix) => return self.apply_repeat(ix, store, found),
        };
        let ix = self.entries.len() as MsgIx;
        let seq = self.compute_name_offset(store, writer, ix, found);
        let mut flags = EntryFlags::default();
        flags.set(EntryFlags::ID_HEX, plain);
        flags.set(EntryFlags::TO_ME, found.to_me);
        flags.set(EntryFlags::FROM_ME, found.from_me);
        flags.set(EntryFlags::PARTS, found.has_parts);
        // An empty table is skipped, because a lookup would hash each message.
        let orphans = Some(&mut self.orphan_marks).filter(|marks| !marks.is_empty());
        let own = orphans.and_then(|marks| marks.remove(&(hash & IDENTITY_MASK)));
        flags.set(EntryFlags::OWN, own.is_some());
        flags.set(EntryFlags::READ, own.unwrap_or(found.read == Some(true)));
        if !plain {
            if let Some(value) = decode_hex_u64(&found.id) {
                self.hex_ids.insert(ix, value);
            } else if !self.has_reply_links(store) || plain_id(&found.id) != found.id {
                let id = self.strings.intern(&found.id);
                self.text_ids.push(TextId { ix, id });
            }
        }
        let thread = self.intern_thread(store, &found.thread);
        let next = self
            .threads
            .get_mut(thread as usize)
            .map_or(NIL, |t| std::mem::replace(&mut t.head, ix));
        let to = self.intern_recipients(store, &found.to);
        self.entries.push(IndexEntry {
            hash,
            time_ms: found.time.millis(),
            offset: found.at.offset,
            len: found.at.len,
            source: SourceId::new(store, found.at.source),
            writer,
            to,
            thread,
            next,
            size: 0,
            name_offset: seq,
            flags,
        });
        self.identity_slots.push(hash & IDENTITY_MASK, identity_lookup(&self.entries));
        if let Some(writer) = self.writers.get_mut(writer as usize) {
            writer.last = Some(ix);
        }
        self.note_copy(ix, found);
        if let Some(key) = &found.idempotency_key {
            self.idempotency.entry(key.to_string()).or_default().push(ix);
        }
        if found.read.is_some() {
            self.apply_store_mark(ix, found);
        }
        if found.has_note {
            self.set_note(ix, true);
        }
        if self.has_reply_links(store) {
            self.add_reply_link(store, ix, thread, found);
        }
        InsertOutcome::New(ix)
    }

    /// Records whether another record replaces this one.
    pub(super) fn note_copy(&mut self, ix: MsgIx, found: &FoundMessage<'_>) {
        if let Some(copy) = &found.copy_of {
            self.copies.insert(ix, copy.clone());
        } else if !self.copies.is_empty() {
            self.copies.remove(&ix);
        }
    }

    /// Returns the offset of the time in a new message's name from the message's time, or [`FAR`].
    pub(super) fn compute_name_offset(
        &mut self,
        store: usize,
        writer: u32,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> u16 {
        let whole = self.stores.get(store).is_some_and(|s| s.whole_seconds);
        let counted = if whole { self.count_in_second(writer, found.time.secs()) } else { 0 };
        if let Some(name) = found.name_time {
            let ahead = name.millis().saturating_sub(found.time.millis());
            let near = u16::try_from(ahead).ok().filter(|seq| *seq != FAR);
            match near {
                Some(_) => self.far_names.remove(&ix),
                None => self.far_names.insert(ix, name.millis()),
            };
            return near.unwrap_or(FAR);
        }
        counted
    }

    /// Counts a message of this writer in this second, and returns how many were there before, at most 999.
    pub(super) fn count_in_second(&mut self, writer: u32, secs: i64) -> u16 {
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

    /// Adds a new or returned message to the lists. `sorted` keeps them in order at once; a bulk load sorts at
    /// its end with [`IndexTables::sort_lists`].
    pub(super) fn admit_message(&mut self, ix: MsgIx, sorted: bool) {
        self.generation += 1;
        let Some(entry) = self.entry(ix).copied() else { return };
        if !entry.is_live() {
            return;
        }
        self.unread += usize::from(entry.is_to_me() && !entry.is_read());
        self.add_to_lists(ix, sorted);
    }

    /// Adds a live message to its lists, if it is not there already, and updates the bits of its thread.
    pub(super) fn add_to_lists(&mut self, ix: MsgIx, sorted: bool) {
        let Some(entry) = self.entry(ix).copied() else { return };
        if let Some(t) = self.threads.get_mut(entry.thread as usize) {
            t.info |= Thread::live_bits(&entry);
        }
        if entry.is_to_me() {
            let list = std::mem::take(&mut self.to_me);
            self.to_me = self.insert_in_order(list, ix, sorted);
        }
        if entry.is_from_me() {
            let list = std::mem::take(&mut self.from_me);
            self.from_me = self.insert_in_order(list, ix, sorted);
        }
    }

    fn insert_in_order(&self, mut list: Vec<MsgIx>, ix: MsgIx, sorted: bool) -> Vec<MsgIx> {
        if !sorted || list.last().is_none_or(|last| self.compare_order(*last, ix) == Ordering::Less)
        {
            list.push(ix);
            return list;
        }
        if let Err(at) = list.binary_search_by(|other| self.compare_order(*other, ix)) {
            list.insert(at, ix);
        }
        list
    }

    /// Removes messages that are gone from the views. They stay in the lists, because every reader of a list
    /// checks the entry.
    pub(super) fn dismiss_gone(&mut self, gone: &[MsgIx]) {
        for ix in gone {
            self.hide_message(*ix, EntryFlags::GONE);
        }
        let threads = gone.iter().filter_map(|ix| self.entry(*ix)).map(|e| e.thread);
        let threads: HashSet<ThreadIx> = threads.collect();
        for thread in threads {
            self.recompute_thread_bits(thread);
        }
    }

    /// Removes a message that is rejected later from every view but `rejected/`.
    pub(super) fn withhold_message(&mut self, ix: MsgIx) {
        self.hide_message(ix, EntryFlags::REJECTED);
        self.note_unvouched(ix, false);
        self.queue_relink(ix);
        if let Some(thread) = self.entry(ix).map(|e| e.thread) {
            self.recompute_thread_bits(thread);
        }
    }

    /// Sets a flag after which a message is not live.
    fn hide_message(&mut self, ix: MsgIx, why: EntryFlags) {
        self.generation += 1;
        let Some(entry) = self.entries.get_mut(ix as usize) else { return };
        if entry.is_to_me() && !entry.is_read() {
            self.unread = self.unread.saturating_sub(1);
        }
        entry.flags.set(why, true);
        entry.flags.set(EntryFlags::STALE, false);
        self.queue_signer_review(ix);
    }

    /// Sorts the lists after a bulk load.
    pub(super) fn sort_lists(&mut self) {
        let mut names: Vec<&str> = self.writers.iter().map(|w| self.strings.get(w.name)).collect();
        names.sort_unstable();
        let rank =
            |w: &Writer| names.partition_point(|name| *name < self.strings.get(w.name)) as u32;
        let ranks: Vec<u32> = self.writers.iter().map(rank).collect();
        // A short key that decides nearly every comparison, and the message.
        let keyed = |ix: &MsgIx| {
            let entry = self.entry(*ix)?;
            let by_id = self.stores.get(entry.store()).is_some_and(|s| s.links);
            let rank = ranks.get(entry.writer as usize).filter(|_| !by_id).copied().unwrap_or(0);
            let after_time = (entry.store() as u32) << 24 | rank.min(0xff_ffff);
            Some((self.name_time(entry), after_time, *ix))
        };
        let sorted = |list: &[MsgIx]| {
            let mut list: Vec<_> = list.iter().filter_map(keyed).collect();
            list.sort_by(|x, y| {
                (x.0, x.1).cmp(&(y.0, y.1)).then_with(|| self.compare_order(x.2, y.2))
            });
            // A message that returned during the load was added twice.
            list.dedup();
            list.into_iter().map(|(.., ix)| ix).collect()
        };
        (self.to_me, self.from_me) = (sorted(&self.to_me), sorted(&self.from_me));
        self.unsorted = false;
    }

    /// Returns the message with this key, or the identity that it will have when it arrives.
    pub(super) fn resolve_identity(
        &self,
        store: usize,
        from: &str,
        id: &str,
    ) -> Result<MsgIx, u64> {
        let hash = match self.find_writer(store, from).map(|w| self.locate_message(w, id)) {
            Some(Ok(ix)) => return Ok(ix),
            Some(Err((hash, _))) => hash,
            // The hash of the first message of a writer that is not known yet.
            None => hash_message_id(self.compute_writer_salt(store, from), id, decode_hex_u64(id)),
        };
        Err(hash & IDENTITY_MASK)
    }

    fn compute_writer_salt(&self, store: usize, name: &str) -> u64 {
        stable_hash(5, &[self.stores.get(store).map_or("", |s| s.name.as_str()), name])
    }

    /// Stores the rendered length of a message, so that `stat` need not render it again. It does nothing if
    /// anything changed since `generation`, when the entry was `seen`: a message that was reported again may
    /// have another text at the same location.
    pub fn set_size(&mut self, ix: MsgIx, seen: &IndexEntry, generation: u64, size: (u64, u32)) {
        if generation != self.generation {
            return;
        }
        if self.entry(ix).is_some_and(|e| e.has_same_appearance(seen)) {
            self.store_size(ix, u32::try_from(size.0).unwrap_or(0), size.1);
        }
    }

    fn store_size(&mut self, ix: MsgIx, size: u32, rules: u32) {
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.size = size;
        }
        if rules > 0 {
            self.ruled.insert(ix, rules);
        } else {
            self.ruled.remove(&ix);
        }
    }

    /// Stores the length of the file of a new message, if its store reported it.
    pub(super) fn set_reported_size(&mut self, ix: MsgIx, found: &FoundMessage<'_>) {
        let Some((sig, _)) = self.entry(ix).map(|e| e.flags.signature()) else { return };
        // Such a file has no line that a transcript must indent.
        self.store_size(ix, found.plain_length.map_or(0, |len| len + sig.rendered_len()), 0);
    }

    pub(super) fn add_reject(&mut self, store: usize, rejected: Rejection, message: Option<MsgIx>) {
        self.generation += 1;
        let mut path = rejected.path;
        if path.is_empty() {
            path = format!("source {}", rejected.at.source);
        }
        let key = (SourceId::new(store, rejected.at.source), rejected.at.offset);
        let name = self.stores.get(store).map_or("", |s| s.name.as_str());
        let line = rejected.line.to_string();
        let mut identity = stable_hash(2, &[name, &path, &line]) & IDENTITY_MASK;
        // Somebody may construct two paths with equal hashes.
        while self.reject_of.get(&identity).is_some_and(|other| *other != key) {
            identity = stable_hash(identity, &[&path, &line]) & IDENTITY_MASK;
        }
        let reject = Reject {
            path,
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

    /// Rebuilds the tables that are not in a snapshot.
    pub(super) fn rebuild_lookups(&mut self) {
        self.writer_of = (0u32..).zip(&self.writers).map(|(n, w)| ((w.store, w.name), n)).collect();
        self.reject_of = self.rejects.iter().map(|(key, r)| (r.identity, *key)).collect();
    }
}
