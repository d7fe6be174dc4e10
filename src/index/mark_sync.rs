//! Marks: made here, imported from the stores, and written to the stores (docs/SEMANTICS.md, "Reading and
//! marks").
//!
//! A mark that msgfs made or cleared overrides the store's mark for good. Without one, the store's mark counts,
//! and changes with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entry::{EntryFlags, IndexEntry, MsgIx};
use super::marks::MarkValue;
use super::tables::IndexTables;
use super::{Index, IndexChanges, marks, write_pending_marks};
use crate::model::{Mark, MarkOrigin, MessageKey, Timestamp};
use crate::store::{FoundMessage, Location, ReadMarks, ReadPosition, Store, StoreError, Watermark};

/// Number of messages that are marked under one lock.
const MARKED_AT_ONCE: usize = 4096;
/// Number of attempts to write the mark of a message that is not at its location.
const MOVED_AT_MOST: u8 = 8;
/// Delay before marks are offered again to a store that was busy.
const BUSY_AGAIN: Duration = Duration::from_millis(500);
/// Delay before marks are offered again to a store that returned an error.
const FAILED_AGAIN: Duration = Duration::from_secs(5);
/// Number of errors in one round of writes after which the other marks of the store wait for the next round.
const ERRORS_AT_MOST: usize = 16;

/// The marks that are still to be written to the stores that keep marks on messages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct MarkQueue {
    /// Messages whose mark is to be written, and how often they were not at their location.
    queue: BTreeMap<MsgIx, u8>,
    /// Messages whose mark is not written again for now: the store contradicted it once or cannot keep it. The
    /// value is a hash of what the store had not marked. The entry lasts until the store agrees, or until that
    /// hash or the mark changes.
    again: HashMap<MsgIx, u64>,
    /// Messages that count as read because the store says so, although it does not say so everywhere.
    partly: HashSet<MsgIx>,
    /// The stores that have marks on their messages.
    stores: BTreeSet<usize>,
    /// The marks that the store contradicted during a write, with the hash of [`MarkQueue::again`].
    #[serde(skip)]
    meanwhile: HashMap<MsgIx, u64>,
    /// True if a store reported a mark that must be written again.
    #[serde(skip)]
    is_asked: bool,
}

impl MarkQueue {
    /// Returns true if marks are to be written.
    pub fn has_due_marks(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if since the last call a store reported a mark that must be written again.
    pub fn take_request(&mut self) -> bool {
        std::mem::take(&mut self.is_asked)
    }
}

impl IndexTables {
    /// Sets or clears a mark of msgfs; `here` means by reading in this process. Returns whether a view shows a
    /// change, or `None` if the mark had been made before.
    pub(super) fn set_own_mark(&mut self, ix: MsgIx, read: bool, here: bool) -> Option<bool> {
        let changed = self.set_read(ix, read);
        let entry = self.entries.get_mut(ix as usize)?;
        entry.flags.set(EntryFlags::READ_HERE, read && here);
        let known = entry.flags.has(EntryFlags::OWN);
        entry.flags.set(EntryFlags::OWN, true);
        let partly = self.telling.partly.remove(&ix) && read;
        if (changed || partly) && self.telling.stores.contains(&entry.store()) {
            self.telling.queue.insert(ix, 0);
            self.telling.again.remove(&ix);
        }
        let identity = entry.identity();
        let seen = changed | (!read && self.reset_label(identity));
        (seen || !known).then_some(seen)
    }

    /// Sets whether a message counts as read. Returns true if that changed anything.
    pub(super) fn set_read(&mut self, ix: MsgIx, read: bool) -> bool {
        let Some(entry) = self.entries.get_mut(ix as usize) else { return false };
        let changed = entry.is_read() != read;
        entry.flags.set(EntryFlags::READ, read);
        let counts = entry.is_to_me();
        if changed {
            self.generation += 1;
            self.mark_changes += 1;
            if counts && read {
                self.unread = self.unread.saturating_sub(1);
            } else if counts {
                self.unread += 1;
            }
        }
        changed
    }

    /// Applies the store's mark of a message. Returns true if the mark changed.
    pub(super) fn apply_store_mark(&mut self, ix: MsgIx, found: &FoundMessage<'_>) -> bool {
        let Some(entry) = self.entry(ix).copied() else { return false };
        let (word, unmarked) = (found.read, found.unmarked_hash);
        if word.is_some() {
            self.telling.stores.insert(entry.store());
        }
        if !entry.flags.has(EntryFlags::OWN) {
            if word == Some(true) && unmarked != 0 {
                self.telling.partly.insert(ix);
            } else if !self.telling.partly.is_empty() {
                self.telling.partly.remove(&ix);
            }
            return self.set_read(ix, word == Some(true));
        }
        let agrees = word == Some(entry.is_read()) && (!entry.is_read() || unmarked == 0);
        if agrees {
            self.telling.queue.remove(&ix);
            self.telling.again.remove(&ix);
        } else if entry.is_read() && word.is_some() {
            if self.telling.queue.contains_key(&ix) {
                // It contradicts nothing that was written to it, unless that is being written now.
                self.telling.meanwhile.insert(ix, unmarked);
            } else if self.telling.again.insert(ix, unmarked) != Some(unmarked) {
                self.telling.queue.insert(ix, 0);
                self.telling.is_asked = true;
            }
        }
        false
    }

    /// Applies a line of the file of marks. If its message is in no store at the moment, the mark is kept until
    /// it arrives.
    pub(super) fn apply_own_mark(&mut self, store: usize, key: &MessageKey, said: &MarkValue) {
        let place = self.resolve_identity(store, &key.from, &key.id);
        let identity = place.map_or_else(Some, |ix| self.entry(ix).map(IndexEntry::identity));
        match (said, place, identity) {
            (MarkValue::Read(read), Ok(ix), _) => _ = self.set_own_mark(ix, *read, false),
            (MarkValue::Read(read), Err(identity), _) => self.store_orphan_mark(identity, *read),
            (MarkValue::Label(label), _, Some(identity)) => {
                _ = self.set_label(identity, label.clone());
            }
            (MarkValue::Label(_), _, None) => {}
        }
    }

    /// Keeps a mark of a message that is in no store at the moment, until it arrives.
    pub(super) fn store_orphan_mark(&mut self, identity: u64, read: bool) {
        self.orphan_marks.insert(identity, read);
        if !read {
            self.reset_label(identity);
        }
    }

    /// Returns the marks that are to be written to a store, and the locations of their messages.
    fn list_due_marks(&mut self, store: usize) -> Vec<(MsgIx, Location, bool)> {
        self.telling.meanwhile.clear();
        let due = self.telling.queue.keys().filter_map(|ix| {
            let entry = self.entry(*ix).filter(|e| e.store() == store && e.is_live())?;
            Some((*ix, entry.location(), entry.is_read()))
        });
        due.collect()
    }

    /// Records the result of writing a mark.
    fn record_mark_result(&mut self, ix: MsgIx, read: bool, result: &Result<bool, StoreError>) {
        let same = self.entry(ix).is_some_and(|e| e.is_read() == read);
        match result {
            // The mark changed again meanwhile.
            _ if !same => {}
            Ok(noted) => {
                let meanwhile = self.telling.meanwhile.remove(&ix);
                let again = meanwhile
                    .is_some_and(|print| self.telling.again.insert(ix, print) != Some(print));
                self.telling.is_asked |= again;
                if !again {
                    self.telling.queue.remove(&ix);
                }
                if !noted {
                    self.telling.again.entry(ix).or_default();
                }
            }
            Err(StoreError::Moved) => {
                let times = self.telling.queue.entry(ix).or_default();
                *times += 1;
                if *times >= MOVED_AT_MOST {
                    self.telling.queue.remove(&ix);
                }
            }
            Err(_) => {}
        }
    }
}

impl Index {
    /// Marks a message read (`here`: by reading it) or unread. When this returns, the mark survives the end of
    /// this process.
    ///
    /// # Errors
    /// If a store that [writes first](crate::store::ReadMarks::should_write_first) could not write the mark. The
    /// message is then not marked.
    pub fn mark_message(&self, ix: MsgIx, read: bool, here: bool) -> Result<(), StoreError> {
        if self.settings.read_only {
            return Ok(());
        }
        let claimed = read && self.claim_read(ix)?;
        self.mark_local(ix, read, here);
        if claimed {
            self.rescan_store_of(ix);
        }
        Ok(())
    }

    /// Writes the read mark of a message to its store, if the store writes first. Returns true if it was written
    /// or the store already had it.
    pub(super) fn claim_read(&self, ix: MsgIx) -> Result<bool, StoreError> {
        let mut moved = false;
        loop {
            let entry = self.core.read().entry(ix).copied();
            let Some(entry) = entry.filter(|e| !e.is_read()) else { return Ok(moved) };
            let Some(store) = self.store_of(&entry) else { return Ok(false) };
            let Some(marks) = store.facets().marks.filter(|m| m.should_write_first()) else {
                return Ok(false);
            };
            if !entry.is_live() {
                return Err(StoreError::Moved);
            }
            match marks.write_mark(&entry.location(), true) {
                // Another reader may have taken it. The store's next report of it counts.
                Err(StoreError::Moved) if !moved => {
                    moved = true;
                    self.rescan_store_of(ix);
                }
                Ok(_) => {
                    self.clear_mark_fault(entry.store());
                    return Ok(true);
                }
                Err(error) => {
                    self.warn_once(entry.store(), store.as_ref(), &error);
                    return Err(error);
                }
            }
        }
    }

    /// Applies the changes in the store of a message.
    pub(super) fn rescan_store_of(&self, ix: MsgIx) {
        let number = self.core.read().entry(ix).map(IndexEntry::store);
        if let Some(number) = number
            && let Err(error) = self.refresh_store(number, false)
        {
            tracing::warn!(%error, "the store cannot be read now");
        }
    }

    fn mark_local(&self, ix: MsgIx, read: bool, here: bool) {
        let Some(key) = self.message_key(ix) else { return };
        // The lock is held around both, so that the file has the changes of one message in order.
        let mut marks = self.marks.lock();
        let Some(changed) = self.core.write().set_own_mark(ix, read, here) else { return };
        marks.push(&(key, MarkValue::Read(read)));
        write_pending_marks(&mut marks);
        drop(marks);
        self.has_untold_marks.store(true, Ordering::Relaxed);
        if changed {
            self.publish_changes(&IndexChanges { marked: vec![ix], ..IndexChanges::default() });
        } else {
            self.unsaved.store(true, Ordering::Relaxed);
        }
    }

    /// Marks everything read that `inbox/` lists, as [`Index::mark_message`] would. Returns the number of
    /// messages.
    pub fn mark_all_read(&self) -> usize {
        if self.settings.read_only {
            return 0;
        }
        let unread: Vec<MsgIx> = self.core.read().inbox().collect();
        let comes_first = |store: &Arc<dyn Store>| {
            store.facets().marks.is_some_and(ReadMarks::should_write_first)
        };
        let first: Vec<usize> =
            (0..).zip(self.stores.iter()).filter(|(_, s)| comes_first(s)).map(|(n, _)| n).collect();
        let is_first =
            |ix: &MsgIx| self.core.read().entry(*ix).is_some_and(|e| first.contains(&e.store()));
        let (claimed, unread): (Vec<MsgIx>, Vec<MsgIx>) = unread.into_iter().partition(is_first);
        let claimed =
            claimed.into_iter().filter(|ix| self.mark_message(*ix, true, false).is_ok()).count();
        let mut changes = IndexChanges::default();
        // Chunks keep the locks short, so that readers do not wait long.
        for some in unread.chunks(MARKED_AT_ONCE) {
            let mut marks = self.marks.lock();
            let mut core = self.core.write();
            for ix in some {
                let known = core.entry(*ix).is_none_or(IndexEntry::is_read);
                if known || core.set_own_mark(*ix, true, false).is_none() {
                    continue;
                }
                if let Some(entry) = core.entry(*ix)
                    && let Some(store) = self.store_of(entry)
                {
                    marks.push_read(store.name(), core.sender(entry), &core.id(entry));
                    changes.marked.push(*ix);
                }
            }
            drop(core);
            write_pending_marks(&mut marks);
        }
        self.has_untold_marks.store(true, Ordering::Relaxed);
        self.publish_changes(&changes);
        claimed + changes.marked.len()
    }

    /// Applies the file of marks to the tables.
    pub(super) fn replay_marks(&self, changes: &[marks::MarkChange]) {
        let mut core = self.core.write();
        for (key, said) in changes {
            let number = self.stores.iter().position(|s| s.name() == key.store);
            let Some(number) = number else { continue };
            core.apply_own_mark(number, key, said);
        }
    }

    /// Imports marks from other readers of the store: the messages that the store's watermark covers now and did
    /// not cover at the last import (docs/SEMANTICS.md, S36).
    pub(super) fn import_watermark(&self, number: usize) -> Vec<MsgIx> {
        let Some(store) = self.stores.get(number) else { return Vec::new() };
        let Some(position) = store.facets().read_position else { return Vec::new() };
        // The watermark is read under the lock. Otherwise our own write of it could look like another reader's.
        let mut marks = self.marks.lock();
        let Some(mark) = position.watermark() else { return Vec::new() };
        let last = marks.imported.get(store.name()).cloned();
        if last.as_ref() == Some(&mark) {
            return Vec::new();
        }
        let mut core = self.core.write();
        let newly = |core: &IndexTables, ix: &MsgIx| {
            core.entry(*ix).filter(|e| e.store() == number && !e.is_read()).is_some_and(|e| {
                let (from, id) = (core.sender(e), core.id(e));
                mark.has_read(e.time(), from, &id)
                    && !last.as_ref().is_some_and(|l| l.has_read(e.time(), from, &id))
            })
        };
        let read: Vec<MsgIx> = core.messages_to_me().filter(|ix| newly(&core, ix)).collect();
        // A message that came late, below the first imported position, counts as read, although nobody has read
        // it.
        let origin = if last.is_some() { MarkOrigin::Here } else { MarkOrigin::Position };
        for ix in &read {
            if let Some(e) = core.entry(*ix) {
                let (from, id) = (core.sender(e).to_owned(), core.id(e));
                marks.push_mark(store.name(), &Mark { from, id, read: true, origin });
            }
            core.set_own_mark(*ix, true, false);
        }
        drop(core);
        marks.push_watermark(store.name(), &mark);
        // It is written now: after a crash, a message that arrived late must not look as if it had been covered.
        write_pending_marks(&mut marks);
        read
    }

    /// Writes the marks to the stores, in their own way. It does nothing if no mark changed. Returns the delay
    /// after which a busy or failing store is to be tried again.
    pub fn sync_marks_to_stores(&self) -> Option<Duration> {
        let untold = self.has_untold_marks.swap(false, Ordering::Relaxed);
        if !untold || self.settings.read_only {
            return None;
        }
        // The file is synced first, so that no store has a mark that msgfs may lose.
        self.sync_marks();
        let mut again = None;
        for (number, store) in self.stores.iter().enumerate() {
            let next = self.sync_marks_to_store(number, store.as_ref());
            again = again.into_iter().chain(next).min();
            if let Some(position) = store.facets().read_position {
                self.write_watermark(number, store.name(), position);
            }
        }
        if again.is_some() {
            self.has_untold_marks.store(true, Ordering::Relaxed);
        }
        again
    }

    /// Returns the reason why a store could not write marks, as long as it lasts.
    pub fn mark_fault(&self, number: usize) -> Option<String> {
        self.mark_faults.get(number)?.lock().clone()
    }

    /// Writes the marks of one store. No lock is held meanwhile. Returns the same delay as
    /// [`Index::sync_marks_to_stores`].
    fn sync_marks_to_store(&self, number: usize, store: &dyn Store) -> Option<Duration> {
        let (marks, due) = (store.facets().marks, self.core.write().list_due_marks(number));
        let (mut look, mut busy, mut errors) = (false, false, 0);
        for (ix, at, read) in due {
            let result = marks.map_or(Ok(false), |marks| marks.write_mark(&at, read));
            self.core.write().record_mark_result(ix, read, &result);
            match result {
                Ok(noted) => look |= noted,
                Err(StoreError::Moved) => look = true,
                Err(StoreError::Busy(_)) => busy = true,
                Err(error) => {
                    self.warn_once(number, store, &error);
                    errors += 1;
                    if errors >= ERRORS_AT_MOST {
                        break;
                    }
                }
            }
        }
        if errors == 0 {
            self.clear_mark_fault(number);
        }
        // The message may be elsewhere now, and its length may have changed.
        if look && let Err(error) = self.refresh_store(number, false) {
            tracing::warn!(%error, "the store cannot be read now");
        }
        match (busy, errors) {
            (true, _) => Some(BUSY_AGAIN),
            (false, 0) => None,
            (false, _) => Some(FAILED_AGAIN),
        }
    }

    /// Clears the fault of a store that could write marks.
    fn clear_mark_fault(&self, number: usize) {
        if let Some(not_noted) = self.mark_faults.get(number) {
            *not_noted.lock() = None;
        }
    }

    fn warn_once(&self, number: usize, store: &dyn Store, error: &StoreError) {
        let why = self.mark_faults.get(number).and_then(|n| n.lock().replace(error.to_string()));
        if why.is_none() {
            tracing::warn!(
                store = store.name(),
                %error,
                "the store could not mark messages as read; this is tried again"
            );
        }
    }

    fn write_watermark(&self, number: usize, store: &str, position: &dyn ReadPosition) {
        let Some(mark) = self.contiguous_watermark(number) else { return };
        let mut marks = self.marks.lock();
        match position.advance_watermark(&mark) {
            // Our own write must not be imported as another reader's mark.
            Ok(Some(written)) => {
                marks.push_watermark(store, &written);
                write_pending_marks(&mut marks);
            }
            Ok(None) => {}
            Err(e) => {
                tracing::warn!(store, error = %e, "the read position was not saved");
            }
        }
    }

    /// Returns the watermark that covers only messages that were really read: the newest second up to which
    /// nothing is unread, with the read ids of that second, and of any time in the future, in both forms.
    pub(super) fn contiguous_watermark(&self, number: usize) -> Option<Watermark> {
        let core = self.core.read();
        let now = Timestamp::now().secs();
        let mut limit = now;
        let mut read: Vec<MsgIx> = Vec::new();
        for ix in core.messages_to_me() {
            let Some(e) = core.entry(ix).filter(|e| e.store() == number) else { continue };
            let secs = e.time().secs();
            if e.is_read() {
                read.push(ix);
            } else {
                limit = limit.min(secs);
            }
            if secs > limit && limit < now {
                break;
            }
        }
        let secs = |ix: &MsgIx| core.entry(*ix).map_or(i64::MAX, |e| e.time().secs());
        let newest = read.iter().map(secs).filter(|s| *s <= limit).max()?;
        let ids = read.iter().filter(|ix| secs(ix) == newest || secs(ix) > now).filter_map(|ix| {
            let e = core.entry(*ix)?;
            let id = core.id(e);
            Some([format!("{}:{id}", core.sender(e)), id])
        });
        Some(Watermark { time: Timestamp::from_secs(newest), ids: ids.flatten().collect() })
    }
}

#[cfg(test)]
mod tests;
