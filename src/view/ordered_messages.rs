//! The messages of threads, and those of the whole mailbox, in listing order.

use std::sync::Arc;

use super::generation_cache::GenerationCache;
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::{Scope, Timestamp};

/// A cache of the message lists used last.
#[derive(Debug)]
pub(super) struct OrderedMessages {
    scope: Scope,
    by_thread: GenerationCache<ThreadIx, Arc<Vec<MsgIx>>>,
    all: GenerationCache<(), Arc<Vec<MsgIx>>>,
    newest: GenerationCache<(), Option<Timestamp>>,
}

impl OrderedMessages {
    /// Makes an empty cache.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            by_thread: GenerationCache::default(),
            all: GenerationCache::default(),
            newest: GenerationCache::default(),
        }
    }

    /// Returns true if messages between other agents are shown.
    pub fn is_scope_all(&self) -> bool {
        self.scope == Scope::All
    }

    /// Returns the messages of a thread in listing order.
    pub fn thread_messages(&self, tables: &IndexTables, thread: ThreadIx) -> Arc<Vec<MsgIx>> {
        let make = || Arc::new(tables.threads.thread_messages(&tables.messages, thread));
        self.by_thread.get(thread, tables.name_generation(), make)
    }

    /// Returns all messages in listing order, for `scope = "all"`.
    pub fn all_messages(&self, tables: &IndexTables) -> Arc<Vec<MsgIx>> {
        self.all.get((), tables.name_generation(), || {
            let mut all: Vec<MsgIx> = tables
                .messages
                .live_messages()
                .filter(|ix| !tables.messages.is_copy(*ix))
                .collect();
            all.sort_by(|a, b| tables.messages.compare_order(*a, *b));
            Arc::new(all)
        })
    }

    /// Returns the time of the newest message of all threads that are shown, also between other agents.
    pub fn newest_time(&self, tables: &IndexTables) -> Option<Timestamp> {
        let IndexTables { messages, threads, .. } = tables;
        // A change of marks does not look at all messages again.
        self.newest.get((), tables.name_generation(), || {
            // The threads of my own messages are shown. Only few others are newer, so few threads are looked up.
            let mine = messages.lists().newest_time();
            let live = messages.live_messages().map(|ix| messages.entry(ix));
            let newer = live.filter(|entry| Some(entry.time()) > mine);
            let shown = newer
                .filter(|entry| threads.is_thread_visible(entry.thread(), self.is_scope_all()));
            shown.map(IndexEntry::time).max().max(mine)
        })
    }
}
