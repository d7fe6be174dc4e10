//! The folders of threads: their names, and the threads behind them (contract, section 3).
//!
//! A folder is named after the thread's id, and its label if it has one. Where the names of two
//! stores are equal, the store's name follows.

use super::{Tree, names};
use crate::index::{Core, ThreadIx};
use crate::model::{ORIGIN, thread_label};

impl Tree {
    /// The folder name of a thread of a store that no other store shows, too.
    fn own_name(&self, id: &str, number: usize) -> String {
        if self.has_labels(number) { names::labelled_name(id) } else { names::thread_name(id) }
    }

    fn has_labels(&self, number: usize) -> bool {
        self.index.stores().get(number).is_some_and(|s| s.origins())
    }

    /// The folder name of a thread: with the store's name if another store shows the same.
    pub(super) fn thread_folder(&self, thread: ThreadIx) -> Option<String> {
        let core = self.index.read();
        let (id, number) = core.thread_id(thread)?;
        let name = self.own_name(id, number);
        // A label that reads like a store's name must not pass for one.
        let like_store = |label: &str| self.index.stores().iter().any(|s| s.name() == label);
        let ambiguous = self.has_labels(number) && thread_label(id).is_some_and(like_store);
        if ambiguous || self.threads_with_id(&core, id).len() > 1 {
            let store = self.index.stores().get(number)?.name();
            return Some(format!("{name}~{store}"));
        }
        Some(name)
    }

    /// The threads of an id that have a folder, one a store at most.
    fn threads_with_id(&self, core: &Core, id: &str) -> Vec<ThreadIx> {
        let shown = |t: &ThreadIx| core.has_folder(*t, self.all_conversations());
        (0..self.index.stores().len())
            .filter_map(|number| core.find_thread(number, id))
            .filter(shown)
            .collect()
    }

    /// The threads whose id is too long for a name, and gives this one.
    fn threads_cut_to(&self, name: &str) -> Vec<ThreadIx> {
        let core = self.index.read();
        let named = |t: &ThreadIx| {
            core.thread_id(*t).is_some_and(|(id, number)| self.own_name(id, number) == name)
        };
        core.thread_folders(self.all_conversations()).filter(named).collect()
    }

    /// The threads that have this name, or would have it if no other store showed the same.
    fn threads_called(&self, name: &str) -> Vec<ThreadIx> {
        let with_id = |id: &str| self.threads_with_id(&self.index.read(), id);
        match names::thread_id(name) {
            Some(names::ThreadId::Whole(id)) => with_id(&id),
            Some(names::ThreadId::Cut) => self.threads_cut_to(name),
            None => {
                let Some((plain, label)) = name.rsplit_once('~') else { return Vec::new() };
                match (names::thread_id(plain), names::thread_id(label)) {
                    (Some(names::ThreadId::Whole(plain)), Some(names::ThreadId::Whole(label))) => {
                        with_id(&format!("{plain}{ORIGIN}{label}"))
                    }
                    _ => Vec::new(),
                }
            }
        }
    }

    /// The thread of a folder name.
    pub(super) fn thread_named(&self, name: &str) -> Option<ThreadIx> {
        let mut found = self.threads_called(name);
        if let Some((own, _store)) = name.rsplit_once('~') {
            found.extend(self.threads_called(own));
        }
        found.into_iter().find(|t| self.thread_folder(*t).as_deref() == Some(name))
    }

    /// Whether there is anything to read in a thread.
    pub(super) fn has_transcript(&self, thread: ThreadIx) -> bool {
        self.index.read().thread_visible(thread, self.all_conversations())
    }
}
