//! The ways of marks to and from the stores, and to and from my other machines. `mark_save` writes them to the file.
//! `marks` says what each step does to the state of a mark.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::mark_log::{MarkChange, MarkValue, read_marks_in};
use super::messages::MessageTable;
use super::position::MsgIx;
use super::{Index, IndexChanges, IndexTables};
use crate::model::{Mark, MarkOrigin, Timestamp};
use crate::store::{Store, StoreError, StoreMarks, Watermark};

/// Number of the newest read messages whose ids a read position lists.
const LISTED_IDS: usize = 1000;
/// Number of messages that are marked under one lock.
const MARKED_AT_ONCE: usize = 4096;
/// Delay before marks are offered again to a store that was busy.
const BUSY_AGAIN: Duration = Duration::from_millis(500);
/// Number of times that marks are offered again to a busy store before the process ends.
const BUSY_TRIES: usize = 3;
/// Delay before marks are offered again to a store that returned an error.
const FAILED_AGAIN: Duration = Duration::from_secs(5);
/// Number of errors in one round of writes after which the other marks of the store wait for the next round.
const ERRORS_AT_MOST: usize = 16;

impl Index {
    /// Marks a message read (`here`: by reading it) or unread. When this returns, the mark survives the end of
    /// this process.
    ///
    /// # Errors
    /// If a store that [writes first](crate::store::StoreMarks::should_write_first) could not write the mark. The
    /// message is then not marked. A mark that could not be saved is an error, too. It then counts in this
    /// process, and is tried again.
    pub fn mark_message(&self, ix: MsgIx, read: bool, here: bool) -> Result<(), StoreError> {
        if self.settings.read_only {
            return Ok(());
        }
        let claimed = read && self.claim_read(ix)?;
        let saved = self.mark_local(ix, read, here);
        if claimed {
            self.rescan_store_of(ix);
            // The store has the mark.
            return Ok(());
        }
        saved
    }

    /// Writes the read mark of a message to its store, if the store writes first. Returns true if it was written
    /// or the store already had it.
    pub(super) fn claim_read(&self, ix: MsgIx) -> Result<bool, StoreError> {
        let mut moved = false;
        loop {
            let entry = *self.tables.read().messages.entry(ix);
            if entry.is_read() {
                return Ok(moved);
            }
            let store = self.store_of(&entry);
            let Some(marks) = store.facets().marks.filter(|m| m.should_write_first()) else {
                return Ok(false);
            };
            if !entry.is_live() {
                return Err(StoreError::Moved);
            }
            match marks.write_mark(&entry.location(), true) {
                // Another reader may have claimed the message. The next report of the store decides.
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
        let number = self.tables.read().messages.entry(ix).store();
        if let Err(error) = self.refresh_store(number, false) {
            tracing::warn!(%error, "the store cannot be read now");
        }
    }

    fn mark_local(&self, ix: MsgIx, read: bool, here: bool) -> Result<(), StoreError> {
        let key = self.message_key(ix);
        // The lock is held around both, so that the file has the changes of one message in order.
        let mut marks = self.marks.lock();
        let changed = self.tables.write().set_own_mark(ix, read, here);
        if changed.is_some() {
            marks.push(&(key, MarkValue::Read(read)));
        }
        // The same mark may be pending since an earlier call.
        let saved = self.save_marks(&mut marks);
        drop(marks);
        let Some(changed) = changed else { return saved };
        self.has_unwritten_marks.store(true, Ordering::Relaxed);
        if changed {
            self.publish_changes(&IndexChanges { marked: vec![ix], ..IndexChanges::default() });
        } else {
            self.unsaved.store(true, Ordering::Relaxed);
        }
        saved
    }

    /// Marks everything read that `inbox/` lists, as [`Index::mark_message`] would. Returns the number of
    /// messages.
    ///
    /// # Errors
    /// The first error of [`Index::mark_message`], after all other messages are marked.
    pub fn mark_all_read(&self) -> Result<usize, StoreError> {
        if self.settings.read_only {
            return Ok(0);
        }
        let unread: Vec<MsgIx> = self.tables.read().messages.lists().unread().collect();
        let comes_first = |store: &Arc<dyn Store>| {
            store.facets().marks.is_some_and(StoreMarks::should_write_first)
        };
        let first: Vec<usize> =
            (0..).zip(self.stores.iter()).filter(|(_, s)| comes_first(s)).map(|(n, _)| n).collect();
        let is_first = |ix: &MsgIx| first.contains(&self.tables.read().messages.entry(*ix).store());
        let (claimed, unread): (Vec<MsgIx>, Vec<MsgIx>) = unread.into_iter().partition(is_first);
        let claimed = claimed.into_iter().map(|ix| self.mark_message(ix, true, false));
        // A message that is gone needs no mark.
        let claimed: Vec<Result<(), StoreError>> =
            claimed.filter(|result| !matches!(result, Err(StoreError::Moved))).collect();
        let (mut changes, mut saved) = (IndexChanges::default(), None);
        // Chunks keep the locks short, so that readers do not wait long.
        for some in unread.chunks(MARKED_AT_ONCE) {
            let mut marks = self.marks.lock();
            let mut tables = self.tables.write();
            for ix in some {
                if tables.messages.entry(*ix).is_read()
                    || tables.set_own_mark(*ix, true, false).is_none()
                {
                    continue;
                }
                let messages = &tables.messages;
                let entry = messages.entry(*ix);
                let store = self.store_of(entry).name();
                marks.push_read(store, messages.sender(entry), &messages.id(entry));
                changes.marked.push(*ix);
            }
            drop(tables);
            saved = Some(self.save_marks(&mut marks));
        }
        // Marks may be pending since an earlier call.
        let saved = saved.unwrap_or_else(|| self.save_marks(&mut self.marks.lock()));
        self.has_unwritten_marks.store(true, Ordering::Relaxed);
        self.publish_changes(&changes);
        let number = claimed.len() + changes.marked.len();
        claimed.into_iter().collect::<Result<(), _>>().and(saved).map(|()| number)
    }

    /// Applies the file of marks to the tables.
    pub(super) fn replay_marks(&self, changes: &[MarkChange]) {
        let IndexTables { messages, marks, .. } = &mut *self.tables.write();
        for (key, said) in changes {
            let number = self.stores.iter().position(|s| s.name() == key.store);
            let Some(number) = number else { continue };
            marks.apply_logged_mark(messages, number, key, said);
        }
    }

    /// Imports marks from other readers of the store: the messages that the store's watermark covers now and did
    /// not cover at the last import (docs/SEMANTICS.md, S36).
    pub(super) fn import_watermark(&self, number: usize) -> Vec<MsgIx> {
        let Some(store) = self.stores.get(number) else { return Vec::new() };
        let Some(position) = store.facets().marks.filter(|marks| marks.keeps_position()) else {
            return Vec::new();
        };
        // The watermark is read under the lock. Otherwise our own write of it could look like another reader's.
        let mut marks = self.marks.lock();
        let Some(mark) = position.watermark() else { return Vec::new() };
        let last = marks.imported.get(store.name()).cloned();
        if last.as_ref() == Some(&mark) {
            // The next comparison is then one of pointers.
            marks.imported.insert(store.name().to_owned(), mark);
            return Vec::new();
        }
        let mut tables = self.tables.write();
        let newly = |tables: &IndexTables, ix: &MsgIx| {
            let e = tables.messages.entry(*ix);
            e.store() == number && !e.is_read() && {
                let (from, id) = (tables.messages.sender(e), tables.messages.id(e));
                mark.has_read(e.time(), from, &id)
                    && (mark.names(from, &id)
                        || position.was_there_for_position(&e.location(), e.time()))
                    && !last.as_ref().is_some_and(|l| l.has_read(e.time(), from, &id))
            }
        };
        let read: Vec<MsgIx> =
            tables.messages.lists().messages_to_me().filter(|ix| newly(&tables, ix)).collect();
        // A message that came late, below the first imported position, counts as read, although nobody has read
        // it. When the position moves later, its reader has shown what it covers now and did not cover before.
        let origin = if last.is_some() { MarkOrigin::Here } else { MarkOrigin::Position };
        for ix in &read {
            let [_, from, id] = tables.messages.key_parts(tables.messages.entry(*ix));
            marks.push_mark(store.name(), &Mark { from, id, read: true, origin });
            let IndexTables { messages, marks, .. } = &mut *tables;
            match origin {
                MarkOrigin::Position => marks.set_passed_mark(messages, *ix),
                _ => _ = marks.set_own_mark(messages, *ix, true, false),
            }
        }
        drop(tables);
        marks.push_watermark(store.name(), mark);
        // It is written now: after a crash, a message that arrived late must not look as if it had been covered.
        _ = self.save_marks(&mut marks);
        read
    }

    /// Writes the marks to the stores, in their own way. It does nothing if no mark changed. Returns the delay
    /// after which a busy or failing store is to be tried again.
    pub fn sync_marks_to_stores(&self) -> Option<Duration> {
        let has_unwritten = self.has_unwritten_marks.swap(false, Ordering::Relaxed);
        if !has_unwritten || self.settings.read_only {
            return None;
        }
        // The file is synced first, so that no store has a mark that msgfs may lose.
        let mut again = if self.sync_marks() { None } else { Some(FAILED_AGAIN) };
        for (number, store) in self.stores.iter().enumerate() {
            let next = self.sync_marks_to_store(number, store.as_ref());
            again = again.into_iter().chain(next).min();
        }
        if again.is_some() {
            self.has_unwritten_marks.store(true, Ordering::Relaxed);
        }
        again
    }

    /// Writes the marks to the stores for the last time. The store of a command that ends would otherwise have them
    /// only after the next command.
    pub(super) fn finish_marks(&self) {
        let mut again = self.sync_marks_to_stores();
        for _ in 0..BUSY_TRIES {
            let Some(wait) = again.filter(|wait| *wait <= BUSY_AGAIN) else { return };
            std::thread::sleep(wait);
            again = self.sync_marks_to_stores();
        }
    }

    /// Returns a sentence about a store that could not write marks, as long as that lasts.
    pub fn mark_fault(&self, number: usize) -> Option<String> {
        let why = self.mark_faults.get(number)?.lock().clone()?;
        let marks = self.stores.get(number)?.facets().marks;
        Some(if marks.is_some_and(StoreMarks::should_write_first) {
            let messages = &self.tables.read().messages;
            // Another program may have claimed it meanwhile.
            messages.lists().unread().find(|ix| messages.entry(*ix).store() == number)?;
            format!(
                "msgfs could not claim what you have read, so it is still unread; mend this and read it again: {why}"
            )
        } else {
            format!("msgfs could not tell it what you have read, and tries again: {why}")
        })
    }

    /// Writes the marks of one store. No lock is held meanwhile. Returns the same delay as
    /// [`Index::sync_marks_to_stores`].
    fn sync_marks_to_store(&self, number: usize, store: &dyn Store) -> Option<Duration> {
        let marks = store.facets().marks;
        // A store that writes first has no mark waiting here after an error: the message is still unread.
        let is_retried = !marks.is_some_and(StoreMarks::should_write_first);
        let due = {
            let tables = &mut *self.tables.write();
            tables.marks.list_due_marks(&tables.messages, number)
        };
        let (mut needs_scan, mut busy, mut wrote) = (false, false, false);
        let (mut is_refused, mut errors) = (false, 0);
        for (ix, at, read) in due {
            let result = marks.map_or(Ok(false), |marks| marks.write_mark(&at, read));
            {
                let tables = &mut *self.tables.write();
                tables.marks.record_mark_result(&tables.messages, ix, read, &result);
            }
            match result {
                Ok(noted) => {
                    needs_scan |= noted;
                    wrote = true;
                }
                Err(StoreError::Moved) => needs_scan = true,
                Err(StoreError::Busy(_)) => busy = true,
                // Something is wrong with this message, so the others are still tried.
                Err(error @ StoreError::Invalid(_)) => {
                    self.warn_once(number, store, &error);
                    is_refused = true;
                }
                Err(error) => {
                    self.warn_once(number, store, &error);
                    errors += 1;
                    if errors >= ERRORS_AT_MOST {
                        break;
                    }
                }
            }
        }
        if let Some(position) = marks.filter(|marks| marks.keeps_position())
            && let Err(error) = self.write_watermark(number, store.name(), position)
        {
            self.warn_once(number, store, &error);
            errors += 1;
        }
        let has_failed = is_refused || errors > 0;
        if !has_failed && (is_retried || wrote) {
            self.clear_mark_fault(number);
        }
        // The message may be elsewhere now, and its length may have changed.
        if needs_scan && let Err(error) = self.refresh_store(number, false) {
            tracing::warn!(%error, "the store cannot be read now");
        }
        match (busy, has_failed) {
            (true, _) => Some(BUSY_AGAIN),
            (false, true) => Some(FAILED_AGAIN),
            (false, false) => None,
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
            tracing::warn!(store = store.name(), %error, "the store could not mark messages as read");
        }
    }

    /// Writes my read position to a store that keeps one.
    ///
    /// # Errors
    /// If the store does not take the position.
    fn write_watermark(
        &self,
        number: usize,
        store: &str,
        position: &dyn StoreMarks,
    ) -> Result<(), StoreError> {
        let mark = self.contiguous_watermark(number);
        let mut marks = self.marks.lock();
        let old = position.watermark();
        if mark.is_none() && old.is_none() {
            return Ok(());
        }
        // If nothing is read any more, the ids of the position leave it.
        let mark = mark.unwrap_or_default();
        if old.as_ref().is_some_and(|old| marks.imported.get(store) != Some(old)) {
            drop(marks);
            // Another reader moved the position. The messages that this reader has read are marked before the position
            // is written.
            return match self.refresh_store(number, true) {
                Ok(()) => self.write_watermark(number, store, position),
                // The fault of the store is reported by its scans.
                Err(error) => {
                    tracing::warn!(store, %error, "the read position was not saved");
                    Ok(())
                }
            };
        }
        let old = old.unwrap_or_default();
        let retired = find_retired_ids(&self.tables.read().messages, number, &old, &mark);
        // Our own write must not be imported as another reader's mark.
        if let Some(written) = position.advance_watermark(&mark, &retired)? {
            marks.push_watermark(store, Arc::new(written));
            _ = self.save_marks(&mut marks);
        }
        Ok(())
    }

    /// Returns the watermark that covers only messages that were really read: the newest second up to which nothing is
    /// unread, with the read ids of that second, of any time in the future, and of the newest messages that were read,
    /// in both forms. A position that passed a message proves that it was read only if the position names the message.
    /// `None` if nothing was read.
    pub(super) fn contiguous_watermark(&self, number: usize) -> Option<Watermark> {
        let known = self.stores.get(number)?;
        let known = self.marks.lock().imported.get(known.name()).cloned().unwrap_or_default();
        let messages = &self.tables.read().messages;
        let now = Timestamp::now().secs();
        let entry = |ix: &MsgIx| messages.entry(*ix);
        let secs = |ix: &MsgIx| entry(ix).time().secs();
        let named = LazyCell::new(|| find_named(messages, number, &known));
        let is_listed = |ix: &MsgIx| {
            let entry = entry(ix);
            let is_read = entry.store() == number && entry.is_read();
            is_read && (!entry.is_only_passed() || named.contains(ix))
        };
        let mut limit = now;
        let mut newest = None;
        for ix in messages.lists().messages_to_me().filter(|ix| entry(ix).store() == number) {
            let at = secs(&ix);
            if at > limit {
                break;
            }
            if entry(&ix).is_read() {
                newest = newest.max(Some(at));
            } else {
                limit = at;
            }
        }
        let mut listed: Vec<MsgIx> = Vec::new();
        for ix in messages.lists().messages_to_me().rev() {
            // The times in names order the list, and no message is later than its name.
            let latest = messages.name_time(entry(&ix)).secs();
            let is_full = listed.len() >= LISTED_IDS;
            if is_full && latest <= now && newest.is_none_or(|newest| latest < newest) {
                break;
            }
            let at = secs(&ix);
            if (!is_full || at > now || Some(at) == newest) && is_listed(&ix) {
                listed.push(ix);
            }
        }
        if listed.is_empty() {
            return None;
        }
        let ids = listed.iter().flat_map(|ix| both_spellings(messages, *ix)).collect();
        Some(Watermark { time: Timestamp::from_secs(newest.unwrap_or(0)), ids })
    }
}

/// Returns the two spellings of a message's id in a read position.
fn both_spellings(messages: &MessageTable, ix: MsgIx) -> [String; 2] {
    let entry = messages.entry(ix);
    let id = messages.id(entry);
    [format!("{}:{id}", messages.sender(entry)), id]
}

/// Returns the messages of a store that a read position names, in either spelling.
fn find_named(messages: &MessageTable, number: usize, mark: &Watermark) -> HashSet<MsgIx> {
    let names = messages.names();
    let writers = || (0u32..).zip(names.writers()).filter(|(_, w)| w.store == number);
    let full: HashSet<&str> =
        mark.ids.iter().filter_map(|spelled| spelled.rsplit_once(':')).map(|(_, id)| id).collect();
    let mut named = HashSet::new();
    for spelled in &mark.ids {
        if let Some((from, id)) = spelled.rsplit_once(':') {
            named.extend(messages.find_message(number, from, id));
        } else if !full.contains(spelled.as_str()) {
            named.extend(writers().filter_map(|(w, _)| messages.locate_message(w, spelled).ok()));
        }
    }
    named
}

/// Returns the ids of an old position that do not belong in a new one: those of messages that are unread now, and of
/// read messages that are neither among the listed ones nor of the position's second. An id of an unknown message
/// stays.
fn find_retired_ids(
    messages: &MessageTable,
    number: usize,
    old: &Watermark,
    new: &Watermark,
) -> HashSet<String> {
    let is_retired = |from: &str, id: &str| {
        let known = messages.find_message(number, from, id).map(|ix| messages.entry(ix));
        known.is_some_and(|entry| {
            !entry.is_read() || entry.time().secs() != old.time.secs() && !new.ids.contains(id)
        })
    };
    let named = old.ids.iter().filter_map(|spelled| spelled.rsplit_once(':'));
    let retired = named.filter(|(from, id)| is_retired(from, id));
    retired.flat_map(|(from, id)| [format!("{from}:{id}"), id.to_owned()]).collect()
}

impl Index {
    /// Returns the marks of a store that were recorded since the file of marks had this length, and its length
    /// now. It writes pending marks to the file first.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn read_marks_since(&self, number: usize, at: u64) -> io::Result<(Vec<Mark>, u64)> {
        let Some(store) = self.stores.get(number) else { return Ok((Vec::new(), at)) };
        let upto = {
            let mut marks = self.marks.lock();
            marks.write()?;
            marks.len()
        };
        if at == upto {
            return Ok((Vec::new(), at));
        }
        Ok((read_marks_in(&self.settings.marks, store.name(), at..upto)?, upto))
    }

    /// Imports the marks of my other machines, also for messages that are not here yet. When this returns, they
    /// survive the end of this process. Returns the length of the file of marks. If that is not `at`, it does
    /// nothing and returns `None`.
    ///
    /// # Errors
    /// If the file cannot be written. The rest is then written with the next mark.
    pub fn import_marks(&self, number: usize, at: u64, heard: &[Mark]) -> io::Result<Option<u64>> {
        let Some(store) = self.stores.get(number) else { return Ok(Some(at)) };
        if self.settings.read_only {
            return Ok(Some(at));
        }
        let mut marks = self.marks.lock();
        marks.write()?;
        if marks.len() != at {
            return Ok(None);
        }
        let mut marked = Vec::new();
        let mut guard = self.tables.write();
        let tables = &mut *guard;
        for mark in heard {
            marks.push_mark(store.name(), mark);
            marked.extend(tables.marks.apply_remote_mark(&mut tables.messages, number, mark));
        }
        drop(guard);
        let written = marks.write();
        let len = marks.len();
        drop(marks);
        self.has_unwritten_marks.store(true, Ordering::Relaxed);
        self.unsaved.store(true, Ordering::Relaxed);
        self.publish_changes(&IndexChanges { marked, ..IndexChanges::default() });
        written.map(|()| Some(len))
    }
}

#[cfg(test)]
mod tests;
