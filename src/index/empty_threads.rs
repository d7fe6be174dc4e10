//! Threads without messages, in stores that report them.

use std::collections::BTreeMap;

use super::Index;
use super::tables::{IndexTables, ThreadIx};
use crate::model::Timestamp;
use crate::store::ThreadDirectory;

impl IndexTables {
    /// Returns the time of the last change of a thread that its store reports without messages; `None` for every
    /// other thread.
    pub fn empty_thread_time(&self, thread: ThreadIx) -> Option<Timestamp> {
        self.empty.get(&thread).copied()
    }

    /// Returns the time of the last change of the newest thread without messages.
    pub fn newest_empty_time(&self) -> Option<Timestamp> {
        self.empty.values().max().copied()
    }

    /// Returns all threads that have a folder: those with [live messages](IndexTables::visible_threads), and
    /// those that their stores report without messages.
    pub fn thread_folders(&self, all: bool) -> impl Iterator<Item = ThreadIx> + '_ {
        let bare = self.empty.keys().copied().filter(move |t| !self.is_thread_visible(*t, all));
        self.visible_threads(all).chain(bare)
    }

    /// Returns true if a thread has a folder.
    pub fn has_thread_folder(&self, thread: ThreadIx, all: bool) -> bool {
        self.is_thread_visible(thread, all) || self.empty.contains_key(&thread)
    }
}

impl Index {
    /// Updates the threads that a store reports without messages. Returns those that are new, changed or no
    /// longer reported.
    pub(super) fn update_empty_threads(&self, number: usize) -> Vec<ThreadIx> {
        let Some(store) = self.stores.get(number) else { return Vec::new() };
        let reported =
            store.facets().thread_directory.map_or_else(Vec::new, ThreadDirectory::empty_threads);
        let of_store = |core: &IndexTables, thread: &ThreadIx| {
            core.thread_id(*thread).is_some_and(|(_, store)| store == number)
        };
        if reported.is_empty() && self.core.read().empty.is_empty() {
            return Vec::new();
        }
        let core = &mut *self.core.write();
        let now: BTreeMap<ThreadIx, Timestamp> =
            reported.iter().map(|t| (core.intern_thread(number, &t.id), t.time)).collect();
        let gone = core.empty.keys().filter(|t| of_store(core, t) && !now.contains_key(t));
        let mut changed: Vec<ThreadIx> = gone.copied().collect();
        for thread in &changed {
            core.empty.remove(thread);
        }
        for (thread, time) in now {
            if core.empty.insert(thread, time) != Some(time) {
                changed.push(thread);
            }
        }
        core.generation += u64::from(!changed.is_empty());
        changed
    }
}

#[cfg(test)]
mod tests;
