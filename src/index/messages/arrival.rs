//! Messages that arrive, and messages that their store reports with other values.

use std::collections::HashMap;

use super::entry::{EntryFlags, FAR, hash_message_id, identity_lookup};
use super::identity::TextId;
use super::links::ReplyLink;
use super::names::{MessageHome, StoreInfo};
use super::{EntryTable, IndexEntry, MessageTable};
use crate::index::intern::{IDENTITY_MASK, StrId, force_loads};
use crate::index::position::{MsgIx, ThreadIx};
use crate::index::source::SourceId;
use crate::model::{decode_hex_u64, plain_id};
use crate::store::FoundMessage;

/// The hash of a message that is not in the index yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct NewMessage {
    writer: u32,
    hash: u64,
    /// True if the hash contains the id.
    has_id: bool,
}

impl NewMessage {
    /// Makes the hash of a new message of a writer.
    pub(super) fn new(writer: u32, hash: u64, has_id: bool) -> Self {
        Self { writer, hash, has_id }
    }

    /// Returns the 56-bit identity that the message's inode numbers will be made from.
    pub fn identity(self) -> u64 {
        self.hash & IDENTITY_MASK
    }
}

/// Flags that decide in which views a message is shown, and with which files.
const SHOWN: [EntryFlags; 3] = [EntryFlags::TO_ME, EntryFlags::FROM_ME, EntryFlags::PARTS];

impl EntryTable {
    /// Records how many messages a scan has seen. Messages that arrive from now on are new.
    pub(in crate::index) fn note_scanned(&mut self, store: usize, looked: bool) {
        let seen = self.entries.len();
        let info = self.names.store_mut(store);
        info.seen = seen;
        info.is_known |= looked;
    }

    /// Sets which stores a bulk load has scanned.
    pub(in crate::index) fn set_known_stores(&mut self, looked: &[bool]) {
        for (number, looked) in looked.iter().enumerate() {
            self.names.store_mut(number).is_known = *looked;
        }
    }

    /// Makes room for about this many more messages.
    pub(in crate::index) fn reserve(&mut self, messages: usize) {
        self.entries.reserve(messages);
        let texts = self.names.texts_mut();
        let texts_each = texts.len() as f64 / self.entries.len().max(1) as f64;
        texts.reserve((messages as f64 * texts_each) as usize);
        self.identity_slots.reserve(messages, identity_lookup(&self.entries));
    }

    /// Has the processor fetch the table entries of messages with these keys, and of texts with these
    /// identities. Returns the texts that may have them.
    pub(in crate::index) fn prefetch<'a>(
        &self,
        store: usize,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
        texts: impl Iterator<Item = u64>,
    ) -> Vec<StrId> {
        let hash = |(from, id): (&str, &str)| {
            let salt =
                self.names.find_writer(store, from).map_or(0, |writer| self.names.salt(writer));
            hash_message_id(salt, id, decode_hex_u64(id)) & IDENTITY_MASK
        };
        // All hashes are made first: a step of a prefetch must be short.
        let keys: Vec<u64> = keys.map(hash).collect();
        let texts: Vec<u64> = texts.collect();
        force_loads(self.identity_slots.prefetch(keys.into_iter()).into_iter());
        self.names.texts().prefetch(texts.into_iter())
    }

    /// Returns the writer of a message, and true if the writer is new.
    pub(in crate::index) fn intern_writer(&mut self, home: MessageHome, name: &str) -> (u32, bool) {
        self.names.intern_writer(home, name)
    }
}

impl MessageTable {
    /// Appends the data of a store that was added later.
    pub(in crate::index) fn add_store(&mut self, store: StoreInfo) {
        self.known.names.add_store(store);
        self.generation += 1;
    }

    /// Releases unused room.
    pub(in crate::index) fn shrink_to_fit(&mut self) {
        self.known.entries.shrink_to_fit();
        self.known.names.texts_mut().shrink_to_fit();
        self.known.text_ids.shrink_to_fit();
        self.lists.shrink_to_fit();
        self.known.links.shrink_to_fit();
        self.multicasts.shrink_to_fit();
    }

    /// Adds a message to a thread, in front of `next`. It is in no list yet. `read` is its mark, and `own` is
    /// true if msgfs made that mark.
    pub(in crate::index) fn push(
        &mut self,
        new: NewMessage,
        store: usize,
        found: &FoundMessage<'_>,
        (thread, next): (ThreadIx, MsgIx),
        (read, own): (bool, bool),
    ) {
        let NewMessage { writer, hash, has_id } = new;
        let ix = self.next_position();
        let name_offset = self.compute_name_offset(store, writer, ix, found);
        let mut flags = EntryFlags::default();
        flags.set(EntryFlags::ID_HEX, has_id);
        flags.set(EntryFlags::TO_ME, found.to_me);
        flags.set(EntryFlags::FROM_ME, found.from_me);
        flags.set(EntryFlags::PARTS, found.has_parts);
        flags.set(EntryFlags::OWN, own);
        flags.set(EntryFlags::READ, read);
        self.keep_id(new, store, ix, &found.id);
        let to = self.known.names.intern_recipients(store, &found.to);
        self.known.entries.push(IndexEntry {
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
            name_offset,
            flags,
        });
        self.known.identity_slots.push(hash & IDENTITY_MASK, identity_lookup(&self.known.entries));
        self.set_multicast(ix, found.multicast);
        self.note_idempotency_key(ix, found);
        self.note_answered_id(ix, store, found);
        if found.has_note {
            self.set_note(ix, true);
        }
        if self.known.names.store(store).links {
            let id = self.known.names.texts_mut().intern(plain_id(&found.id));
            let answers = self.intern_linked_id(store, found);
            self.known.links.add_link(store, ReplyLink::new(ix, id, answers, thread));
        }
    }

    /// Keeps the id of a new message, unless it can be computed from the hash or is in the reply link.
    fn keep_id(&mut self, new: NewMessage, store: usize, ix: MsgIx, id: &str) {
        if new.has_id {
            return;
        }
        if let Some(value) = decode_hex_u64(id) {
            self.known.hex_ids.insert(ix, value);
        } else if !self.known.names.store(store).links || plain_id(id) != id {
            let id = self.known.names.texts_mut().intern(id);
            self.known.text_ids.push(TextId { ix, id });
        }
    }

    /// Returns the id of the message whose thread a message joins, as a text of the index.
    pub(in crate::index) fn intern_linked_id(
        &mut self,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> Option<StrId> {
        let joins = self.known.names.store(store).joins;
        let id = if joins { &found.parent } else { &found.in_reply_to };
        let id = id.as_deref().map(plain_id).filter(|id| !id.is_empty())?;
        Some(self.known.names.texts_mut().intern(id))
    }

    fn note_idempotency_key(&mut self, ix: MsgIx, found: &FoundMessage<'_>) {
        let Some(key) = &found.idempotency_key else { return };
        let known = self.idempotency.entry(key.to_string()).or_default();
        if !known.contains(&ix) {
            known.push(ix);
        }
    }

    /// Sets whether there is a note about a message. Returns true if that changed anything.
    fn set_note(&mut self, ix: MsgIx, noted: bool) -> bool {
        if noted { self.noted.insert(ix) } else { self.noted.remove(&ix) }
    }

    /// Returns the offset of the time in a new message's name from the message's time, or [`FAR`].
    fn compute_name_offset(
        &mut self,
        store: usize,
        writer: u32,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> u16 {
        let whole = self.known.names.store(store).whole_seconds;
        let counted = if whole { self.count_in_second(writer, found.time.secs()) } else { 0 };
        if let Some(name) = found.name_time {
            let ahead = name.millis().saturating_sub(found.time.millis());
            let near = u16::try_from(ahead).ok().filter(|seq| *seq != FAR);
            match near {
                Some(_) => self.known.far_names.remove(&ix),
                None => self.known.far_names.insert(ix, name.millis()),
            };
            return near.unwrap_or(FAR);
        }
        counted
    }

    /// Counts a message of this writer in this second, and returns how many were there before, at most 999.
    fn count_in_second(&mut self, writer: u32, secs: i64) -> u16 {
        let w = self.known.names.writer_mut(writer);
        let (newest, count) = w.newest;
        if w.counts.is_none() && (count == 0 || secs >= newest) {
            w.newest = if count > 0 && secs == newest { (secs, count + 1) } else { (secs, 1) };
            return if secs == newest { count.min(999) as u16 } else { 0 };
        }
        if w.counts.is_none() {
            let mut counts: HashMap<i64, u32> = HashMap::new();
            for e in self.known.entries.iter().filter(|e| e.writer == writer) {
                *counts.entry(e.time().secs()).or_default() += 1;
            }
            w.counts = Some(counts);
        }
        let slot = w.counts.get_or_insert_default().entry(secs).or_default();
        *slot += 1;
        (*slot - 1).min(999) as u16
    }

    /// Gives a message the values of a report that the store vouches for: location, time, recipients, flags.
    /// Returns true if a view shows a change, and true if its time moved.
    pub(in crate::index) fn restate(
        &mut self,
        ix: MsgIx,
        store: usize,
        found: &FoundMessage<'_>,
        is_rewritten: bool,
    ) -> (bool, bool) {
        let before = *self.entry(ix);
        let moves = found.time != before.time()
            || found.name_time.is_some_and(|name| name != self.name_time(&before));
        let leaves = [(EntryFlags::TO_ME, found.to_me), (EntryFlags::FROM_ME, found.from_me)];
        // This runs before the entry changes, because the old time gives the position in the lists.
        if moves || leaves.iter().any(|(flag, stays)| before.flags.has(*flag) && !stays) {
            self.remove_from_lists(ix);
        }
        let after = self.build_restated_entry(ix, &before, store, found);
        let noted = self.set_note(ix, found.has_note);
        self.note_idempotency_key(ix, found);
        self.note_answered_id(ix, store, found);
        *self.entry_mut(ix) = after;
        self.time_moves += u64::from(moves);
        self.set_multicast(ix, found.multicast);
        let shown = moves
            || noted
            || is_rewritten
            || after.to != before.to
            // The files beside it are part of what is shown.
            || after.flags.has(EntryFlags::PARTS)
            || SHOWN.iter().any(|bit| after.flags.has(*bit) != before.flags.has(*bit));
        (shown, moves)
    }

    /// Returns the entry as the store describes it now.
    fn build_restated_entry(
        &mut self,
        ix: MsgIx,
        before: &IndexEntry,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> IndexEntry {
        let mut after = *before;
        after.source = SourceId::new(store, found.at.source);
        after.offset = found.at.offset;
        after.len = found.at.len;
        after.time_ms = found.time.millis();
        after.to = self.known.names.intern_recipients(store, &found.to);
        if found.name_time.is_some() || after.time().secs() != before.time().secs() {
            after.name_offset = self.compute_name_offset(store, before.writer, ix, found);
        }
        after.flags.set(EntryFlags::TO_ME, found.to_me);
        after.flags.set(EntryFlags::FROM_ME, found.from_me);
        after.flags.set(EntryFlags::PARTS, found.has_parts);
        after.flags.set(EntryFlags::STALE, false);
        after.flags.set(EntryFlags::GONE, false);
        after.size = 0;
        after
    }
}
