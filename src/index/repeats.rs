//! Messages that are reported again: duplicates, rescans, and stores whose last report counts.

use super::entry::{EntryFlags, IndexEntry, MsgIx};
use super::source::SourceId;
use super::tables::{EntryUpdate, IndexTables, InsertOutcome};
use crate::store::{FoundMessage, RepeatKind};

impl IndexTables {
    /// Applies a report of a known key: a duplicate, or the message after a rescan.
    pub(super) fn apply_repeat(
        &mut self,
        ix: MsgIx,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let verified = match found.repeat_kind {
            RepeatKind::Restated | RepeatKind::Rewritten => {
                return self.apply_restated(ix, store, found);
            }
            RepeatKind::Same => true,
            RepeatKind::Claimed => false,
        };
        let source = SourceId::new(store, found.at.source);
        let to = self.strings.intern(&found.to);
        let thread = self.find_thread(store, &found.thread);
        let begins = self.links.own_thread(ix);
        let Some(entry) = self.entries.get_mut(ix as usize) else { return InsertOutcome::Known };
        let same_place = entry.source == source && entry.offset == found.at.offset;
        let lost = entry.flags.has(EntryFlags::STALE) || entry.flags.has(EntryFlags::GONE);
        let same_text = entry.time_ms == found.time.millis()
            && entry.to == to
            && Some(begins.unwrap_or(entry.thread)) == thread
            && (entry.len == found.at.len || verified);
        if !lost && !same_place {
            return if same_text || verified {
                InsertOutcome::Known
            } else {
                InsertOutcome::IdTaken
            };
        }
        let came_back = entry.flags.has(EntryFlags::GONE);
        entry.source = source;
        entry.offset = found.at.offset;
        if entry.len != found.at.len {
            entry.len = found.at.len;
            entry.size = 0;
        }
        entry.flags.set(EntryFlags::STALE, false);
        entry.flags.set(EntryFlags::GONE, false);
        if came_back {
            InsertOutcome::New(ix)
        } else {
            InsertOutcome::Updated(ix, EntryUpdate::default())
        }
    }

    /// Applies a report that the store vouches for. Location, thread, link, mark, recipients and time become
    /// those of the report (see [`Store::scan`](crate::store::Store::scan)).
    fn apply_restated(
        &mut self,
        ix: MsgIx,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let marked = self.apply_store_mark(ix, found);
        let Some(before) = self.entry(ix).copied() else { return InsertOutcome::Known };
        // This runs before the entry changes, because the old time gives the position in the lists.
        let moves = found.time != before.time()
            || found.name_time.is_some_and(|name| name != self.name_time(&before));
        if moves {
            self.remove_from_lists(ix);
        }
        let after = self.build_restated_entry(ix, &before, store, found);
        let noted = self.set_note(ix, found.has_note);
        self.note_copy(ix, found);
        let shown = moves
            || noted
            || found.repeat_kind == RepeatKind::Rewritten
            || after.to != before.to
            // The files beside it are part of what is shown.
            || after.flags.has(EntryFlags::PARTS)
            || SHOWN.iter().any(|bit| after.flags.has(*bit) != before.flags.has(*bit));
        let was_unread = before.is_to_me() && !before.is_read();
        if moves {
            self.queue_relink(ix);
            // It may be on the other side of its writer's first signed message now.
            self.signing_changes.writers.insert(after.writer);
        }
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            *entry = after;
        }
        let own = self.intern_thread(store, &found.thread);
        self.update_reply_link(store, ix, own, found);
        if let Some(key) = &found.idempotency_key {
            let known = self.idempotency.entry(key.to_string()).or_default();
            if !known.contains(&ix) {
                known.push(ix);
            }
        }
        if before.flags.has(EntryFlags::GONE) {
            return InsertOutcome::New(ix);
        }
        if shown {
            self.generation += 1;
            let is_unread = after.is_to_me() && !after.is_read();
            self.unread =
                (self.unread + usize::from(is_unread)).saturating_sub(usize::from(was_unread));
            self.add_to_lists(ix, !self.unsorted);
            self.recompute_thread_bits(after.thread);
        }
        InsertOutcome::Updated(ix, EntryUpdate { marked, shown })
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
        after.to = self.intern_recipients(store, &found.to);
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

    /// Sets whether there is a note about a message. Returns true if that changed anything.
    pub(super) fn set_note(&mut self, ix: MsgIx, noted: bool) -> bool {
        if noted { self.noted.insert(ix) } else { self.noted.remove(&ix) }
    }

    /// Removes a message from the lists. It must still have its old time.
    fn remove_from_lists(&mut self, ix: MsgIx) {
        if self.unsorted {
            return;
        }
        for mine in [true, false] {
            let list = if mine { &self.to_me } else { &self.from_me };
            let at = list
                .binary_search_by(|other| self.compare_order(*other, ix))
                .ok()
                .or_else(|| list.iter().position(|other| *other == ix));
            let list = if mine { &mut self.to_me } else { &mut self.from_me };
            if let Some(at) = at {
                list.remove(at);
            }
        }
    }
}

/// Flags that decide in which views a message is shown, and with which files.
const SHOWN: [EntryFlags; 3] = [EntryFlags::TO_ME, EntryFlags::FROM_ME, EntryFlags::PARTS];

#[cfg(test)]
mod tests;
