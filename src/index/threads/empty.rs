//! Threads without messages, in stores that report them.

use std::collections::BTreeMap;

use super::ThreadTable;
use crate::index::Index;
use crate::index::messages::{MessageHome, MessageTable};
use crate::index::position::ThreadIx;
use crate::model::Timestamp;
use crate::store::{EmptyThread, StoreDirectory};

impl ThreadTable {
    /// Returns the time of the last change of a thread that its store reports without messages; `None` for every
    /// other thread.
    pub fn empty_thread_time(&self, thread: ThreadIx) -> Option<Timestamp> {
        self.empty.get(&thread).copied()
    }

    /// Returns the time of the last change of the newest thread without messages.
    pub fn newest_empty_time(&self) -> Option<Timestamp> {
        self.empty.values().max().copied()
    }

    /// Returns all threads that have a folder: those with [live messages](ThreadTable::visible_threads), and
    /// those that their stores report without messages.
    pub fn thread_folders(&self, all: bool) -> impl Iterator<Item = ThreadIx> + '_ {
        let bare = self.empty.keys().copied().filter(move |t| !self.is_thread_visible(*t, all));
        self.visible_threads(all).chain(bare)
    }

    /// Returns true if a thread has a folder.
    pub fn has_thread_folder(&self, thread: ThreadIx, all: bool) -> bool {
        self.is_thread_visible(thread, all) || self.empty.contains_key(&thread)
    }

    /// Takes over the threads that a store reports without messages. Returns those that are new, changed or no
    /// longer reported.
    fn set_empty_threads(
        &mut self,
        messages: &mut MessageTable,
        store: usize,
        reported: &[EmptyThread],
    ) -> Vec<ThreadIx> {
        let home = MessageHome::of_store(store);
        let now: BTreeMap<ThreadIx, Timestamp> =
            reported.iter().map(|t| (self.intern_thread(messages, home, &t.id), t.time)).collect();
        let gone = |t: &&ThreadIx| self.thread(**t).store() == store && !now.contains_key(*t);
        let mut changed: Vec<ThreadIx> = self.empty.keys().filter(gone).copied().collect();
        for thread in &changed {
            self.empty.remove(thread);
        }
        for (thread, time) in now {
            if self.empty.insert(thread, time) != Some(time) {
                changed.push(thread);
            }
        }
        self.generation += u64::from(!changed.is_empty());
        changed
    }
}

impl Index {
    /// Updates the threads that a store reports without messages. Returns those that are new, changed or no
    /// longer reported.
    pub(in crate::index) fn update_empty_threads(&self, number: usize) -> Vec<ThreadIx> {
        let Some(store) = self.stores.get(number) else { return Vec::new() };
        let reported =
            store.facets().directory.map_or_else(Vec::new, StoreDirectory::empty_threads);
        if reported.is_empty() && self.tables.read().threads.empty.is_empty() {
            return Vec::new();
        }
        let tables = &mut *self.tables.write();
        tables.threads.set_empty_threads(&mut tables.messages, number, &reported)
    }
}

#[cfg(test)]
mod tests;
