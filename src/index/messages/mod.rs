//! The messages of the index: their identity, their order, and their duplicates. The three other parts of the
//! index (threads, trust, marks) lie on this one: their functions take it as an argument.
//!
//! - [`entry`](IndexEntry): one message (56 bytes). [`names`](NameTable): texts, stores, writers, recipients.
//! - [`identity`](EntryTable): the entries, their ids and order. `links`: the ids that messages have and answer.
//!   `lists`: the lists in which views show messages.
//! - `answers`: the ids that messages to me answer. `multicast`: messages to several recipients, with a record for
//!   each.
//! - `kept`: messages that other stores keep.
//! - `arrival`: messages that come, or that their store reports with other values.

mod answers;
mod arrival;
mod entry;
mod identity;
mod kept;
mod links;
mod lists;
mod multicast;
mod names;

pub(in crate::index) use answers::{AnswerLink, answered_id_hash};
pub use entry::IndexEntry;
pub(in crate::index) use entry::{MANY_KEYS, SignatureKind};
#[cfg(test)]
pub(in crate::index) use entry::{mix_id, unmix_id};
pub use identity::EntryTable;
use kept::KeptCopies;
pub(in crate::index) use kept::KeptCopy;
pub(in crate::index) use links::ReplyLink;
pub(in crate::index) use multicast::MulticastRecord;
pub use names::NameTable;
pub(in crate::index) use names::{MessageHome, StoreInfo};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};

use super::column::{AnyTable, Column};
use super::intern::Interner;
use super::position::MsgIx;
use super::slots::{SlotTable, SlotTableSnapshot};
use super::snapshot::SnapshotHeader;
use super::source::SourceId;
use crate::store::FoundMessage;
use answers::AnswerLinks;
use entry::{EntryFlags, identity_lookup};
use identity::TextId;
use links::ReplyLinks;
use lists::MessageLists;
use multicast::MulticastTable;

/// The messages of all stores: their entries, lists and duplicates.
#[derive(Debug, Default)]
pub struct MessageTable {
    known: EntryTable,
    lists: MessageLists,
    /// Messages with a note for me.
    noted: BTreeSet<MsgIx>,
    /// The records of messages to several recipients.
    multicasts: MulticastTable,
    idempotency: HashMap<String, Vec<MsgIx>>,
    answers: AnswerLinks,
    /// The further places of messages that several stores have.
    kept_copies: KeptCopies,
    /// Number of lines that begin like a transcript's separator, for messages that have such lines and whose
    /// length is known.
    ruled: BTreeMap<MsgIx, u32>,
    /// A number that grows with each change of the messages that a view can show.
    generation: u64,
    /// The number of times that a message got another time.
    time_moves: u64,
}

impl Deref for MessageTable {
    type Target = EntryTable;

    fn deref(&self) -> &EntryTable {
        &self.known
    }
}

impl DerefMut for MessageTable {
    fn deref_mut(&mut self) -> &mut EntryTable {
        &mut self.known
    }
}

/// The columns of a snapshot that hold messages.
pub(in crate::index) struct MessageColumns {
    pub entries: Column<IndexEntry>,
    pub identity_slots: SlotTable,
    pub texts: Interner,
    pub text_ids: Column<TextId>,
    pub to_me: Vec<MsgIx>,
    pub from_me: Vec<MsgIx>,
    pub links: Vec<ReplyLink>,
    pub answers: Vec<AnswerLink>,
    pub multicasts: Vec<MulticastRecord>,
    pub kept_copies: Vec<KeptCopy>,
}

impl MessageTable {
    /// Returns a number that grows with each change of the messages that a view can show.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns a number that grows each time that a known message gets another time.
    pub fn time_moves(&self) -> u64 {
        self.time_moves
    }

    /// Records a change that a view can show.
    pub(super) fn note_change(&mut self) {
        self.generation += 1;
    }

    /// Returns my messages with this idempotency key.
    pub fn find_by_idempotency_key(&self, key: &str) -> &[MsgIx] {
        self.idempotency.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns true if there is a note for me about a message ([`Record::note`](crate::store::Record::note)).
    pub fn has_note(&self, ix: MsgIx) -> bool {
        self.noted.contains(&ix)
    }

    /// Returns true if a message is shown from a store that keeps it for another.
    pub fn is_kept(&self, entry: &IndexEntry) -> bool {
        self.names().writer_home(entry.writer) != MessageHome::of_store(entry.store())
    }

    // --- duplicates ---

    /// Takes over the location of a message that was reported again from a place where the index does not have
    /// it. Returns true if it was gone.
    pub(super) fn relocate(
        &mut self,
        ix: MsgIx,
        source: SourceId,
        found: &FoundMessage<'_>,
    ) -> bool {
        let entry = self.entry_mut(ix);
        let came_back = entry.is_gone();
        (entry.source, entry.offset) = (source, found.at.offset);
        if entry.len != found.at.len {
            entry.len = found.at.len;
            entry.size = 0;
        }
        entry.flags.set(EntryFlags::STALE, false);
        entry.flags.set(EntryFlags::GONE, false);
        self.note_answered_id(ix, source.store(), found);
        // Other programs may rewrite a log without the members that they do not know.
        self.set_multicast(ix, found.multicast);
        came_back
    }

    // --- rendered lengths ---

    /// Returns the length of a message in a transcript, if the length of its file is known.
    pub fn length_in_transcript(&self, ix: MsgIx) -> Option<u64> {
        let len = self.entry(ix).size()?;
        Some(len + u64::from(self.ruled.get(&ix).copied().unwrap_or(0)))
    }

    /// Stores the rendered length of a message and the number of its lines that begin like a transcript's
    /// separator, so that `stat` need not render it again.
    pub(super) fn set_size(&mut self, ix: MsgIx, (size, rules): (u64, u32)) {
        // A length that does not fit counts as unknown.
        self.entry_mut(ix).size = u32::try_from(size).unwrap_or(0);
        if rules > 0 {
            self.ruled.insert(ix, rules);
        } else {
            self.ruled.remove(&ix);
        }
    }

    /// Stores the length of the file of a new message, if its store reported it.
    pub(super) fn set_reported_size(&mut self, ix: MsgIx, found: &FoundMessage<'_>) {
        let (sig, _) = self.entry(ix).signature();
        // Such a file has no line that a transcript must indent.
        let size = found.plain_length.map_or(0, |len| len + sig.rendered_len());
        self.set_size(ix, (size.into(), 0));
    }

    /// Marks the rendered text of a message as changed.
    pub(super) fn invalidate_rendering(&mut self, ix: MsgIx) {
        self.entry_mut(ix).size = 0;
        self.generation += 1;
    }

    // --- the snapshot ---

    /// Creates the table of a snapshot; returns `None` if a position in it leads nowhere.
    pub(super) fn from_snapshot(
        columns: MessageColumns,
        header: &mut SnapshotHeader,
    ) -> Option<Self> {
        let MessageColumns { entries, identity_slots, texts, text_ids, .. } = columns;
        let MessageColumns { to_me, from_me, links, answers, multicasts, kept_copies, .. } =
            columns;
        let links = ReplyLinks::from_table(links, &entries)?;
        let names = NameTable::from_snapshot(texts, header);
        let known = EntryTable {
            entries,
            identity_slots,
            names,
            text_ids,
            hex_ids: std::mem::take(&mut header.hex_ids),
            links,
            far_names: std::mem::take(&mut header.far_names),
        };
        let table = Self {
            answers: AnswerLinks::from_table(answers, &known)?,
            multicasts: MulticastTable::from_table(multicasts, &known)?,
            kept_copies: KeptCopies::from_table(kept_copies, &known)?,
            known,
            lists: MessageLists::from_snapshot(to_me, from_me),
            noted: std::mem::take(&mut header.noted),
            idempotency: std::mem::take(&mut header.idempotency),
            ruled: std::mem::take(&mut header.ruled),
            time_moves: 0,
            generation: 0,
        };
        let lists = table.lists.to_me.iter().chain(&table.lists.from_me).chain(table.noted.iter());
        let maps = table.known.hex_ids.keys().chain(table.known.far_names.keys());
        let rest = table.ruled.keys().chain(table.idempotency.values().flatten());
        table.has_all(lists.chain(maps).chain(rest)).then_some(table)
    }

    /// Fills in the values that the header of a snapshot has.
    pub(super) fn save_into(&self, header: &mut SnapshotHeader) {
        self.known.names.save_into(header);
        header.hex_ids.clone_from(&self.known.hex_ids);
        header.far_names.clone_from(&self.known.far_names);
        header.noted.clone_from(&self.noted);
        header.idempotency.clone_from(&self.idempotency);
        header.ruled.clone_from(&self.ruled);
    }

    /// Returns the tables of a snapshot: those before the tables of threads, and those behind them.
    pub(super) fn snapshot_tables(&self) -> ([AnyTable<'_>; 5], [AnyTable<'_>; 7]) {
        let hash_of = identity_lookup(&self.known.entries);
        let identities = SlotTableSnapshot { slots: &self.known.identity_slots, hash_of };
        let (texts, ends, slots) = self.known.names.texts().snapshot_parts();
        let first: [AnyTable<'_>; 5] = [
            Box::new(&self.known.entries),
            Box::new(identities),
            Box::new(texts),
            Box::new(ends),
            Box::new(slots),
        ];
        let links = self.known.links.as_table();
        let last: [AnyTable<'_>; 7] = [
            Box::new(&self.known.text_ids),
            Box::new(&self.lists.to_me),
            Box::new(&self.lists.from_me),
            Box::new(links),
            Box::new(self.answers.as_table()),
            Box::new(self.multicasts.as_table()),
            Box::new(self.kept_copies.to_table()),
        ];
        (first, last)
    }
}

impl EntryTable {
    /// Returns a number that grows with each change of the large tables.
    pub(super) fn change_count(&self) -> u64 {
        let texts = self.names.texts().change_count();
        self.entries.change_count() + self.text_ids.change_count() + texts
    }

    /// Exchanges the large tables with those of a snapshot that was written from these.
    pub(super) fn swap_tables(&mut self, saved: &mut Self) {
        std::mem::swap(&mut self.entries, &mut saved.entries);
        std::mem::swap(&mut self.identity_slots, &mut saved.identity_slots);
        std::mem::swap(self.names.texts_mut(), saved.names.texts_mut());
        std::mem::swap(&mut self.text_ids, &mut saved.text_ids);
    }
}
