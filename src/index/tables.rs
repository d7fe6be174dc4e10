//! The four parts of the index, and the changes that concern several of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::column::SnapshotFile;
use super::intern::text_identity;
use super::marks::{MarkTable, OwnMark};
use super::messages::{IndexEntry, MessageTable, SignatureKind, StoreInfo};
use super::position::{MsgIx, ThreadIx};
use super::source::SourceId;
use super::threads::ThreadTable;
use super::trust::{LostSignatures, PriorMessages, TrustTable};
use crate::identity::Keyring;
use crate::model::PublicKey;
use crate::store::{FoundMessage, Rejection, RepeatKind};

/// The tables of the index.
#[derive(Debug, Default)]
pub struct IndexTables {
    /// The messages, on which the other parts lie.
    pub messages: MessageTable,
    /// The threads of the messages.
    pub threads: ThreadTable,
    /// The trust in the messages, and what is rejected.
    pub trust: TrustTable,
    /// The marks of the messages.
    pub marks: MarkTable,
    /// The file in which the tables begin, if they were not all read from the stores.
    pub(super) snapshot: Option<Arc<SnapshotFile>>,
}

/// The outcome of [`IndexTables::insert_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertOutcome {
    New(MsgIx),
    Known,
    /// A known message; the entry was updated with the store's current values.
    Updated(MsgIx, EntryUpdate),
    /// A known message that is also at another location; the second value is true if that location is in the log
    /// itself. The report may replace the entry.
    Repeated(MsgIx, bool),
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

impl IndexTables {
    /// Sets the values that no snapshot has: the stores, the messages from before keys were pinned, and lost
    /// signatures.
    pub(super) fn complete(
        &mut self,
        stores: Vec<StoreInfo>,
        (prior, lost): (PriorMessages, LostSignatures),
    ) {
        self.messages.names_mut().set_stores(stores);
        self.trust.set_trust_notes(prior, lost);
    }

    /// Returns a number that grows with each change that a view can show.
    pub fn generation(&self) -> u64 {
        self.name_generation() + self.marks.generation()
    }

    /// Returns a number that grows with each change that a view can show, except changes of marks. No file name depends
    /// on marks.
    pub fn name_generation(&self) -> u64 {
        self.messages.generation() + self.threads.generation() + self.trust.generation()
    }

    /// Releases unused room.
    pub(super) fn shrink_tables(&mut self) {
        self.messages.shrink_to_fit();
        self.threads.shrink_to_fit();
    }

    /// Has the processor fetch the table entries that these messages need, all at once.
    pub(super) fn prefetch_messages(&self, store: usize, found: &[FoundMessage<'_>]) {
        let keys = found.iter().map(|f| (&*f.from, &*f.id));
        let threads = found.iter().map(|f| text_identity(&f.thread));
        self.threads.prefetch(&self.messages.prefetch(store, keys, threads));
    }

    /// Adds one message. It is not in any list yet: see [`IndexTables::admit_message`].
    pub(super) fn insert_message(
        &mut self,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let home = self.messages.find_message_home(store, found);
        let (writer, is_new) = self.messages.intern_writer(home, &found.from);
        if is_new {
            self.trust.add_writer(writer);
        }
        let new = match self.messages.locate_message(writer, &found.id) {
            Err(new) => new,
            Ok(ix) => return self.apply_report(ix, store, found),
        };
        let own = self.marks.take_orphan_mark(new.identity());
        let read = own.map_or(found.read == Some(true), OwnMark::is_read);
        let thread = self.threads.intern_thread(&mut self.messages, home, &found.thread);
        let ix = self.messages.next_position();
        let next = self.threads.push_head(thread, ix);
        self.messages.push(new, store, found, (thread, next), (read, own.is_some()));
        if own == Some(OwnMark::Passed) {
            self.messages.entry_mut(ix).set_only_passed();
        }
        if found.read.is_some() {
            self.marks.apply_store_mark(&mut self.messages, ix, found);
        }
        self.threads.queue_relink(&self.messages, ix);
        InsertOutcome::New(ix)
    }

    /// Applies a report of a message that the index knows. If several stores have it, the one in its own store counts.
    /// But if its own store has lost the kept thread, the kept message counts, and not that of a fork that copied it.
    fn apply_report(&mut self, ix: MsgIx, store: usize, found: &FoundMessage<'_>) -> InsertOutcome {
        let entry = *self.messages.entry(ix);
        if entry.is_gone() || entry.store() == store {
            return self.apply_repeat(ix, store, found);
        }
        let home = self.messages.find_message_home(store, found);
        let there = self.threads.intern_thread(&mut self.messages, home, &found.thread);
        let here = self.threads.next_thread(&self.messages, ix);
        let (is_kept, was_kept) = (found.origin.is_some(), self.messages.is_kept(&entry));
        let kept = if is_kept { there } else { here };
        let kept_counts = there != here && !self.has_message_in(kept, home.store);
        if is_kept && was_kept || is_kept != kept_counts {
            let source = SourceId::new(store, found.at.source);
            self.messages.note_kept_copy(ix, (source, there), &found.at, false);
            return InsertOutcome::Known;
        }
        let place = (entry.source(), here);
        self.messages.note_kept_copy(ix, place, &entry.location(), entry.is_stale());
        self.apply_restated(ix, store, found)
    }

    /// Returns true if a store has a message of a thread. Examines the first 100 only: a session that is not gone has
    /// most of its messages.
    fn has_message_in(&self, thread: ThreadIx, store: usize) -> bool {
        let some = self.threads.thread_chain(&self.messages, thread).take(100);
        some.map(|ix| self.messages.entry(ix))
            .any(|entry| entry.store() == store && entry.is_live() && !entry.is_stale())
    }

    /// Applies a report of a known key in one store: a duplicate, or the message after a rescan.
    fn apply_repeat(&mut self, ix: MsgIx, store: usize, found: &FoundMessage<'_>) -> InsertOutcome {
        let verified = match found.repeat_kind {
            RepeatKind::Restated | RepeatKind::Rewritten => {
                return self.apply_restated(ix, store, found);
            }
            RepeatKind::Same => true,
            RepeatKind::Claimed => false,
        };
        let source = SourceId::new(store, found.at.source);
        let entry = self.messages.entry(ix);
        let at = entry.location();
        let same_place = entry.source() == source && at.offset == found.at.offset;
        // A refused message may lie in a place that proves that I wrote it, too.
        let is_proven = entry.is_rejected() && found.from_me && !found.is_my_name_unproven;
        if same_place || is_proven || entry.is_stale() || entry.is_gone() {
            let came_back = self.messages.relocate(ix, source, found);
            return if came_back {
                InsertOutcome::New(ix)
            } else {
                InsertOutcome::Updated(ix, EntryUpdate::default())
            };
        }
        let own_thread = self.messages.links().get(ix).map(super::messages::ReplyLink::own_thread);
        let thread = self.threads.find_thread(&self.messages, store, &found.thread);
        let same_text = entry.time().millis() == found.time.millis()
            && self.messages.recipient_list(entry) == found.to
            && Some(own_thread.unwrap_or(entry.thread())) == thread
            && at.len == found.at.len;
        if !same_text && !verified {
            return InsertOutcome::IdTaken;
        }
        // The other file of a writer is a conflict copy of the log.
        let is_log_itself = entry.source() != source && !found.is_in_copy;
        let is_better_signed = found.claim.is_some() && !entry.is_verified();
        if is_log_itself || verified && (entry.is_rejected() || is_better_signed) {
            InsertOutcome::Repeated(ix, is_log_itself)
        } else {
            InsertOutcome::Known
        }
    }

    /// Applies a report that the store vouches for. Location, thread, link, mark, recipients and time become
    /// those of the report (see [`Store::scan`](crate::store::Store::scan)).
    pub(super) fn apply_restated(
        &mut self,
        ix: MsgIx,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let marked = self.marks.apply_store_mark(&mut self.messages, ix, found);
        let before = *self.messages.entry(ix);
        let is_rewritten = found.repeat_kind == RepeatKind::Rewritten;
        let (shown, moves) = self.messages.restate(ix, store, found, is_rewritten);
        if moves {
            self.threads.queue_relink(&self.messages, ix);
            // The message may now be on the other side of its writer's first signed message.
            self.trust.queue_writer_review(before.writer());
        }
        let home = self.messages.find_message_home(store, found);
        let own = self.threads.intern_thread(&mut self.messages, home, &found.thread);
        self.threads.update_reply_link(&mut self.messages, ix, own, found);
        if before.is_gone() {
            self.threads.queue_relink(&self.messages, ix);
            return InsertOutcome::New(ix);
        }
        if shown {
            self.messages.note_change();
            self.marks.count_hidden(&before);
            let after = *self.messages.entry(ix);
            self.marks.count_shown(&after);
            self.list_message(ix);
            self.messages.queue_multicast(ix);
            self.threads.recompute_thread_bits(&self.messages, after.thread());
        }
        InsertOutcome::Updated(ix, EntryUpdate { marked, shown })
    }

    /// Adds a new or returned message to the lists.
    pub(super) fn admit_message(&mut self, ix: MsgIx) {
        self.messages.note_change();
        self.messages.queue_multicast(ix);
        let entry = self.messages.entry(ix);
        if entry.is_live() {
            self.marks.count_shown(entry);
            self.list_message(ix);
        }
    }

    /// Adds a live message to its lists, if it is not there already, and updates the bits of its thread.
    fn list_message(&mut self, ix: MsgIx) {
        self.threads.note_live(&self.messages, ix);
        self.messages.add_to_lists(ix);
    }

    /// Removes messages that are gone from the views, and from the list those that another store keeps. Returns the
    /// kept ones.
    pub(super) fn dismiss_gone(&mut self, gone: &mut Vec<MsgIx>) -> Vec<MsgIx> {
        let kept: Vec<MsgIx> = gone.iter().copied().filter(|ix| self.use_kept_copy(*ix)).collect();
        gone.retain(|ix| kept.binary_search(ix).is_err());
        for ix in &*gone {
            self.hide_message(*ix, IndexEntry::set_gone);
            self.threads.queue_relink(&self.messages, *ix);
        }
        let threads = gone.iter().map(|ix| self.messages.entry(*ix).thread());
        let threads: HashSet<ThreadIx> = threads.collect();
        for thread in threads {
            self.threads.recompute_thread_bits(&self.messages, thread);
        }
        kept
    }

    /// Moves the entry of a message that is gone to its next place. Returns false if it has none.
    fn use_kept_copy(&mut self, ix: MsgIx) -> bool {
        let here = self.threads.next_thread(&self.messages, ix);
        let Some(there) = self.messages.use_kept_copy(ix, here) else { return false };
        self.threads.queue_move(&self.messages, ix, there);
        true
    }

    /// Removes a message that is rejected later from every view but `rejected/`.
    pub(super) fn withhold_message(&mut self, ix: MsgIx) {
        self.hide_message(ix, |entry| entry.set_rejected(true));
        self.trust.note_unvouched(ix, false);
        self.threads.queue_relink(&self.messages, ix);
        let thread = self.messages.entry(ix).thread();
        self.threads.recompute_thread_bits(&self.messages, thread);
    }

    /// Changes a message so that it is not live any more.
    fn hide_message(&mut self, ix: MsgIx, change: impl FnOnce(&mut IndexEntry)) {
        self.messages.note_change();
        let entry = self.messages.entry_mut(ix);
        self.marks.count_hidden(entry);
        change(entry);
        entry.set_stale(false);
        self.messages.queue_multicast(ix);
        self.trust.queue_signer_review(&self.messages, ix);
    }

    /// Stores a new verdict on a message that was judged before, and updates all that depends on it. Returns
    /// true if the message is shown differently.
    pub(super) fn accept_signature(
        &mut self,
        ix: MsgIx,
        sig: SignatureKind,
        key: Option<PublicKey>,
        signed: bool,
    ) -> bool {
        self.trust.note_unvouched(ix, signed && sig != SignatureKind::Valid);
        let was_rejected = self.messages.entry(ix).is_rejected();
        if was_rejected {
            self.messages.entry_mut(ix).set_rejected(false);
        }
        let changed = self.trust.replace_signature(&mut self.messages, ix, sig, key);
        if was_rejected {
            self.trust.remove_rejects(|_, r| r.message == Some(ix));
            self.admit_message(ix);
        } else if changed {
            self.messages.invalidate_rendering(ix);
        } else {
            return false;
        }
        self.threads.queue_relink(&self.messages, ix);
        true
    }

    /// Adds a rejection, and the message in it if there is one.
    pub(super) fn add_reject(&mut self, store: usize, rejected: Rejection, message: Option<MsgIx>) {
        self.trust.add_reject(&self.messages, store, rejected, message);
    }

    /// Moves every message whose links or thread changed to its current thread. Returns the moved messages with
    /// the threads that they left.
    pub(super) fn relink_threads(&mut self) -> Vec<(MsgIx, ThreadIx)> {
        self.threads.relink_threads(&mut self.messages)
    }

    /// Decides anew which records are one message. Returns the messages that are shown differently. In a message that
    /// may answer one of these, a header line may have another id.
    pub(super) fn settle_multicasts(&mut self) -> Vec<MsgIx> {
        let mut changed = self.messages.settle_multicasts();
        let mut earliest: HashMap<ThreadIx, i64> = HashMap::new();
        for entry in changed.iter().map(|ix| self.messages.entry(*ix)) {
            let time = earliest.entry(entry.thread()).or_insert(i64::MAX);
            *time = entry.time().millis().min(*time);
        }
        let mut later = Vec::new();
        for (thread, time) in earliest {
            let chain = self.threads.thread_chain(&self.messages, thread);
            later.extend(chain.filter(|ix| self.messages.entry(*ix).time().millis() >= time));
        }
        for ix in &later {
            self.messages.queue_multicast_answer(*ix);
        }
        changed.extend(self.messages.settle_multicasts());
        changed.extend(later);
        changed.sort_unstable();
        changed.dedup();
        changed.retain(|ix| self.messages.entry(*ix).is_live());
        changed
    }

    /// Reclassifies unsigned messages whose writers got or lost keys, or those of `everybody`. Returns the
    /// messages that are shown differently.
    pub(super) fn update_missing_signatures(
        &mut self,
        keyring: &Keyring,
        everybody: bool,
    ) -> Vec<MsgIx> {
        self.trust.update_missing_signatures(&mut self.messages, keyring, everybody)
    }

    /// Sets or clears a mark of msgfs; `here` means by reading in this process. Returns whether a view shows a
    /// change, or `None` if the mark had been made before.
    pub(super) fn set_own_mark(&mut self, ix: MsgIx, read: bool, here: bool) -> Option<bool> {
        self.marks.set_own_mark(&mut self.messages, ix, read, here)
    }

    /// Stores the rendered length of a message, so that `stat` need not render it again. It does nothing if
    /// anything changed since `generation`, when the entry was `seen`: a message that was reported again may
    /// have another text at the same location.
    pub(super) fn set_size(
        &mut self,
        ix: MsgIx,
        seen: &IndexEntry,
        generation: u64,
        size: (u64, u32),
    ) {
        if generation == self.generation() && self.messages.entry(ix).has_same_appearance(seen) {
            self.messages.set_size(ix, size);
        }
    }

    /// Returns a number that grows with each change of the large tables.
    pub(super) fn change_count(&self) -> u64 {
        self.messages.change_count() + self.threads.change_count()
    }

    /// Uses the large tables of a snapshot that was written from these. Returns the tables that it replaced.
    pub(super) fn adopt_tables(&mut self, mut saved: Self) -> Self {
        self.messages.swap_tables(&mut saved.messages);
        self.threads.swap_tables(&mut saved.threads);
        std::mem::swap(&mut self.snapshot, &mut saved.snapshot);
        saved
    }
}

#[cfg(test)]
mod tests;
