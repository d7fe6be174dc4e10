//! The messages of threads, and those of the whole mailbox, in listing order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::generation_cache::GenerationCache;
use crate::index::{IndexTables, MsgIx, ThreadIx};
use crate::model::{Scope, Timestamp};

/// The lists that were used last.
#[derive(Debug)]
pub(super) struct OrderedMessages {
    scope: Scope,
    by_thread: GenerationCache<ThreadIx, Arc<Vec<MsgIx>>>,
    /// Flags that are true for threads of whose messages a part was asked for.
    asked: GenerationCache<ThreadIx, Arc<AtomicBool>>,
    all: GenerationCache<(), Arc<Vec<MsgIx>>>,
}

impl OrderedMessages {
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            by_thread: GenerationCache::default(),
            asked: GenerationCache::default(),
            all: GenerationCache::default(),
        }
    }

    /// Returns true if the messages between others are shown.
    pub fn is_scope_all(&self) -> bool {
        self.scope == Scope::All
    }

    /// Returns the messages of a thread in listing order.
    pub fn thread_messages(&self, core: &IndexTables, thread: ThreadIx) -> Arc<Vec<MsgIx>> {
        let make = || Arc::new(core.threads.thread_messages(&core.messages, thread));
        self.by_thread.get(thread, core.generation(), make)
    }

    /// Returns messages of a thread in listing order, and the number of those whose names are earlier than a time. One
    /// who asks once need not wait until a long thread is sorted.
    pub fn thread_messages_since(
        &self,
        core: &IndexTables,
        thread: ThreadIx,
        since: Timestamp,
    ) -> (Arc<Vec<MsgIx>>, usize) {
        let asked = self.asked.get(thread, core.generation(), Arc::default);
        if !asked.swap(true, Ordering::Relaxed) {
            let later = core.threads.thread_messages_since(&core.messages, thread, since);
            return (Arc::new(later), 0);
        }
        let all = self.thread_messages(core, thread);
        let is_before = |ix: &MsgIx| core.messages.name_time(core.messages.entry(*ix)) < since;
        let before = all.partition_point(is_before);
        (all, before)
    }

    /// Returns all messages in listing order, for `scope = "all"`.
    pub fn all_messages(&self, core: &IndexTables) -> Arc<Vec<MsgIx>> {
        self.all.get((), core.generation(), || {
            let mut all: Vec<MsgIx> =
                core.messages.live_messages().filter(|ix| !core.messages.is_copy(*ix)).collect();
            all.sort_by(|a, b| core.messages.compare_order(*a, *b));
            Arc::new(all)
        })
    }
}
