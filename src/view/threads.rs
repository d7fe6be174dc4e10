//! The folders of threads: their names, and the threads behind them (docs/SEMANTICS.md, S23 and S190).
//!
//! A folder is named after the thread's id, and its label if it has one. If two stores have the same name, the
//! store's name follows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::names;
use crate::index::{Index, IndexTables, ThreadIx};
use crate::model::locks::Mutex;
use crate::model::{ORIGIN, Scope, thread_label};

/// The threads whose names look as if they were cut, by the first digits of the hash at their end. Such a name does
/// not tell the id. Threads are only ever added.
#[derive(Debug, Default)]
struct LongThreadNames {
    /// Number of threads examined so far.
    indexed_count: usize,
    by_hash: HashMap<u32, Vec<ThreadIx>>,
}

/// Returns the key of a name in [`LongThreadNames`]. A label instead of a hash may follow the `~`.
fn hash_key(name: &str) -> Option<u32> {
    let digits = names::hash_of_cut_name(name)?.get(..8)?;
    Some(u32::from_str_radix(digits, 16).unwrap_or_default())
}

/// The names of the folders of threads.
pub(super) struct ThreadNames {
    index: Arc<Index>,
    scope: Scope,
    long_names: Mutex<LongThreadNames>,
    /// Threads whose folder was looked up without the name of their store.
    plain_folders: Mutex<HashSet<ThreadIx>>,
}

impl ThreadNames {
    /// Makes the value for the threads of an index.
    pub fn new(index: Arc<Index>, scope: Scope) -> Self {
        Self { index, scope, long_names: Mutex::default(), plain_folders: Mutex::default() }
    }

    /// Returns the folder name of a thread, which no other thread of the store has.
    fn own_folder_name(&self, id: &str, number: usize) -> String {
        names::thread_folder_name(id, self.has_labels(number))
    }

    /// Returns the threads whose names end with the same hash.
    fn threads_with_hash(&self, tables: &IndexTables, name: &str) -> Vec<ThreadIx> {
        let Some(key) = hash_key(name) else { return Vec::new() };
        let mut known = self.long_names.lock();
        for thread in tables.threads.threads_since(known.indexed_count) {
            let (id, number) = tables.threads.thread_id(&tables.messages, thread);
            // A short id has a short name: an escaped byte takes three.
            let key = (id.len() > 60).then(|| self.own_folder_name(id, number));
            if let Some(key) = key.and_then(|name| hash_key(&name)) {
                known.by_hash.entry(key).or_default().push(thread);
            }
        }
        known.indexed_count = tables.threads.threads_so_far();
        known.by_hash.get(&key).cloned().unwrap_or_default()
    }

    fn has_labels(&self, number: usize) -> bool {
        self.index.stores().get(number).is_some_and(|s| s.properties().has_thread_labels())
    }

    /// Returns the folder name of a thread. It has the store's name if another store shows the same name.
    pub fn thread_folder_name(&self, thread: ThreadIx) -> Option<String> {
        self.make_folder_name(&self.index.read(), thread)
    }

    fn make_folder_name(&self, tables: &IndexTables, thread: ThreadIx) -> Option<String> {
        let (id, number) = tables.threads.thread_id(&tables.messages, thread);
        let name = self.own_folder_name(id, number);
        // A label that reads like a store's name must not pass for one.
        let like_store = |label: &str| self.index.stores().iter().any(|s| s.name() == label);
        let ambiguous = self.has_labels(number) && thread_label(id).is_some_and(like_store);
        if ambiguous || self.find_threads_with_id(tables, id).len() > 1 {
            let store = self.index.stores().get(number)?.name();
            return Some(format!("{name}~{store}"));
        }
        self.plain_folders.lock().insert(thread);
        Some(name)
    }

    fn has_folder(&self, tables: &IndexTables, thread: ThreadIx) -> bool {
        tables.threads.has_thread_folder(thread, self.scope == Scope::All)
    }

    /// Returns the threads of an id that have a folder, at most one a store.
    fn find_threads_with_id(&self, tables: &IndexTables, id: &str) -> Vec<ThreadIx> {
        let shown = |t: &ThreadIx| self.has_folder(tables, *t);
        (0..self.index.stores().len())
            .filter_map(|number| tables.threads.find_thread(&tables.messages, number, id))
            .filter(shown)
            .collect()
    }

    /// Returns the threads that have this name, or would have it if no other store showed the same.
    fn find_threads_by_name(&self, tables: &IndexTables, name: &str) -> Vec<ThreadIx> {
        let mut found = match names::parse_thread_name(name) {
            Some(names::ParsedThreadName::Complete(id)) => {
                return self.find_threads_with_id(tables, &id);
            }
            Some(names::ParsedThreadName::Truncated) => self.threads_with_hash(tables, name),
            None => Vec::new(),
        };
        if let Some((plain, label)) = name.rsplit_once('~')
            && let Some(names::ParsedThreadName::Complete(plain)) = names::parse_thread_name(plain)
            && let Some(names::ParsedThreadName::Complete(label)) = names::parse_thread_name(label)
        {
            found.extend(self.find_threads_with_id(tables, &format!("{plain}{ORIGIN}{label}")));
        }
        found
    }

    /// Finds the thread of a folder name.
    pub fn find_thread_by_name(&self, name: &str) -> Option<ThreadIx> {
        let tables = self.index.read();
        let mut found = self.find_threads_by_name(&tables, name);
        if let Some((own, _store)) = name.rsplit_once('~') {
            found.extend(self.find_threads_by_name(&tables, own));
        }
        found.retain(|t| self.has_folder(&tables, *t));
        let called =
            found.iter().find(|t| self.make_folder_name(&tables, **t).as_deref() == Some(name));
        called.copied().or_else(|| self.find_thread_by_old_name(&tables, &found, name))
    }

    /// Finds, among threads that share a name, the one that was shown under it before another store had such a thread.
    /// The name still opens that thread, although it is not listed.
    fn find_thread_by_old_name(
        &self,
        tables: &IndexTables,
        found: &[ThreadIx],
        name: &str,
    ) -> Option<ThreadIx> {
        let own = |t: &ThreadIx| {
            let (id, number) = tables.threads.thread_id(&tables.messages, *t);
            self.own_folder_name(id, number) == name
        };
        let shown: Vec<ThreadIx> = {
            let shown = self.plain_folders.lock();
            found.iter().copied().filter(|t| shown.contains(t)).collect()
        };
        let mut once = shown.into_iter().filter(own);
        once.next().filter(|_| once.next().is_none())
    }
}
