//! The messages of threads, and those of the whole mailbox, in listing order.

use std::sync::Arc;

use super::generation_cache::GenerationCache;
use crate::index::{IndexEntry, IndexTables, MessageTable, MsgIx, ThreadIx};
use crate::model::locks::Mutex;
use crate::model::{Scope, Timestamp};

/// The number of messages in a block of [`BlockTimes`].
const BLOCK: usize = 4096;

/// The newest time in each block of messages. It tells which blocks to look at, so that an arrival does not make all
/// messages looked at again. A message that is gone still counts.
#[derive(Debug, Default)]
struct BlockTimes {
    /// The number of messages that were counted.
    count: usize,
    /// [`MessageTable::time_moves`] at that time.
    time_moves: u64,
    newest: Vec<Timestamp>,
}

impl BlockTimes {
    /// Counts the messages that came since the last call; all of them if one got another time.
    fn update(&mut self, messages: &MessageTable) {
        if self.time_moves != messages.time_moves() {
            *self = Self { time_moves: messages.time_moves(), ..Self::default() };
        }
        for ix in messages.messages_since(self.count) {
            let time = messages.entry(ix).time();
            match self.newest.get_mut(self.count / BLOCK) {
                Some(newest) => *newest = time.max(*newest),
                None => self.newest.push(time),
            }
            self.count += 1;
        }
    }

    /// Returns the messages of the blocks in which one may be newer than a time.
    fn blocks_newer_than<'t>(
        &self,
        messages: &'t MessageTable,
        time: Option<Timestamp>,
    ) -> impl Iterator<Item = &'t IndexEntry> {
        let blocks =
            self.newest.iter().enumerate().filter(move |(_, newest)| Some(**newest) > time);
        let block = |(n, _): (usize, _)| messages.messages_since(n * BLOCK).take(BLOCK);
        blocks.flat_map(block).map(|ix| messages.entry(ix))
    }
}

/// A cache of the message lists used last.
#[derive(Debug)]
pub(super) struct OrderedMessages {
    scope: Scope,
    by_thread: GenerationCache<ThreadIx, Arc<Vec<MsgIx>>>,
    all: GenerationCache<(), Arc<Vec<MsgIx>>>,
    newest: GenerationCache<(), Option<Timestamp>>,
    block_times: Mutex<BlockTimes>,
}

impl OrderedMessages {
    /// Makes an empty cache.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            by_thread: GenerationCache::default(),
            all: GenerationCache::default(),
            newest: GenerationCache::default(),
            block_times: Mutex::default(),
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
        // A change of marks looks at no message again.
        self.newest.get((), tables.name_generation(), || {
            // The threads of my own messages are shown. Only few others are newer, so few threads are looked up.
            let mine = messages.lists().newest_time();
            let mut blocks = self.block_times.lock();
            blocks.update(messages);
            let newer = blocks
                .blocks_newer_than(messages, mine)
                .filter(|entry| entry.is_live() && Some(entry.time()) > mine);
            let shown = newer
                .filter(|entry| threads.is_thread_visible(entry.thread(), self.is_scope_all()));
            shown.map(IndexEntry::time).max().max(mine)
        })
    }
}
