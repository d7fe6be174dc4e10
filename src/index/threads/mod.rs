//! The threads of the index: their ids and identities, their messages, and those that have none.
//!
//! `relink`: threads made from reply links. `empty`: threads without messages. A message is in one chain, that of
//! its thread; the links of the chain are in the entries of the messages.

mod empty;
mod relink;

use std::collections::{BTreeMap, HashSet};

use super::column::{AnyTable, Column};
use super::intern::{IDENTITY_MASK, StrId, force_loads, stable_hash, text_identity};
use super::messages::{IndexEntry, MessageHome, MessageTable};
use super::position::{MsgIx, ThreadIx};
use super::snapshot::SnapshotHeader;
use crate::model::Timestamp;

/// One thread of one store.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Thread {
    id: StrId,
    /// The message that was added last; the others are chained behind it.
    head: MsgIx,
    /// The thread of the same id in another store.
    next_same_id: ThreadIx,
    /// The store in the lower 8 bits, [`Thread::LIVE`] and [`Thread::MINE`].
    info: u32,
}

impl Thread {
    /// Bit of a thread that has live messages.
    const LIVE: u32 = 1 << 30;
    /// Bit of a thread that has live messages from or to me.
    const MINE: u32 = 1 << 31;

    fn store(&self) -> usize {
        (self.info & 0xff) as usize
    }

    /// Returns the bits that a message adds to the info of its thread. `is_listed` is true if it is listed as one to
    /// me.
    fn live_bits(entry: &IndexEntry, is_listed: bool) -> u32 {
        match entry.is_live() {
            true if is_listed || entry.is_from_me() => Self::LIVE | Self::MINE,
            true => Self::LIVE,
            false => 0,
        }
    }

    fn is_visible(&self, all: bool) -> bool {
        self.info & Self::LIVE != 0 && (all || self.info & Self::MINE != 0)
    }
}

/// All threads of all stores.
#[derive(Debug, Default)]
pub struct ThreadTable {
    threads: Column<Thread>,
    /// For each text, the first thread that has it as its id.
    thread_of: Column<ThreadIx>,
    /// Threads whose default identity another thread already had.
    odd_threads: BTreeMap<ThreadIx, u64>,
    /// Threads that their stores report without messages.
    empty: BTreeMap<ThreadIx, Timestamp>,
    /// Messages whose thread may have to change, because a link changed.
    pending: Vec<MsgIx>,
    /// Messages of stores with thread ids that are in another thread now, according to their store.
    rethreaded: BTreeMap<MsgIx, ThreadIx>,
    /// A number that grows with each change of the threads that a view can show.
    generation: u64,
}

impl ThreadTable {
    #[track_caller]
    fn thread(&self, thread: ThreadIx) -> &Thread {
        self.threads.at(thread.number())
    }

    #[track_caller]
    fn thread_mut(&mut self, thread: ThreadIx) -> &mut Thread {
        self.threads.at_mut(thread.number())
    }

    /// Returns a number that grows with each change of the threads that a view can show.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of threads so far, which is the position of the next one.
    pub fn threads_so_far(&self) -> usize {
        self.threads.len()
    }

    /// Returns the positions of the threads behind the first `count`.
    pub fn threads_since(&self, count: usize) -> impl Iterator<Item = ThreadIx> + use<> {
        (count..self.threads.len()).map(ThreadIx::new)
    }

    /// Returns a thread's id and store.
    pub fn thread_id<'a>(&self, messages: &'a MessageTable, thread: ThreadIx) -> (&'a str, usize) {
        let t = self.thread(thread);
        (messages.names().text(t.id), t.store())
    }

    /// Returns all threads that have live messages. Threads between others are included only with `all`.
    pub fn visible_threads(&self, all: bool) -> impl Iterator<Item = ThreadIx> + '_ {
        let visible = self.threads.iter().enumerate().filter(move |(_, t)| t.is_visible(all));
        visible.map(|(number, _)| ThreadIx::new(number))
    }

    /// Returns true if a thread is shown.
    pub fn is_thread_visible(&self, thread: ThreadIx, all: bool) -> bool {
        self.thread(thread).is_visible(all)
    }

    /// Returns the thread with this store and id.
    pub fn find_thread(&self, messages: &MessageTable, store: usize, id: &str) -> Option<ThreadIx> {
        self.find_thread_by_text(store, messages.names().find_text(id)?)
    }

    fn find_thread_by_text(&self, store: usize, id: StrId) -> Option<ThreadIx> {
        // Texts that came after the last thread are in no thread's chain.
        let mut next = *self.thread_of.get(id as usize)?;
        while let Some(thread) = next.or_end() {
            let t = self.thread(thread);
            if t.store() == store {
                return Some(thread);
            }
            next = t.next_same_id;
        }
        None
    }

    /// Returns the thread with this home and id. It is added if there is none.
    pub(super) fn intern_thread(
        &mut self,
        messages: &mut MessageTable,
        home: MessageHome,
        text: &str,
    ) -> ThreadIx {
        let store = home.store;
        let (id, alone) = messages.names_mut().intern_text(text);
        if let Some(ix) = self.find_thread_by_text(store, id) {
            return ix;
        }
        let ix = ThreadIx::new(self.threads.len());
        let except = (alone && home.origin.is_none()).then_some(store);
        let wanted = text_identity(text) ^ messages.names().home_salt(home);
        let identity = self.find_free_identity(messages, wanted, text, except);
        if identity != default_identity(messages, store, text) {
            self.odd_threads.insert(ix, identity);
        }
        self.thread_of.grow_to(id as usize + 1, ThreadIx::NIL);
        let next_same_id = std::mem::replace(self.thread_of.at_mut(id as usize), ix);
        self.threads.push(Thread { id, head: MsgIx::NIL, next_same_id, info: store as u32 });
        ix
    }

    /// Has the processor fetch the threads whose ids may be these texts.
    pub(super) fn prefetch(&self, texts: &[StrId]) {
        // The texts may be other texts, or none at all.
        let with = |id: &StrId| self.thread_of.get(*id as usize).copied();
        let threads: Vec<ThreadIx> = texts.iter().filter_map(with).collect();
        force_loads(threads.iter().filter_map(|ix| Some(self.threads.get(ix.number())?.id)));
    }

    // --- identities: the same in every process, and each thread has another ---

    /// Returns the identity that a thread's inode numbers are made from.
    pub fn thread_identity(&self, messages: &MessageTable, thread: ThreadIx) -> u64 {
        if let Some(odd) = self.odd_threads.get(&thread) {
            return *odd;
        }
        let (id, store) = self.thread_id(messages, thread);
        default_identity(messages, store, id)
    }

    /// Returns the identity of a thread that is new in its store: the wanted one, or another if that is taken.
    /// Somebody may construct ids with equal hashes. No other text of the store `except` has the identity of its
    /// id.
    fn find_free_identity(
        &self,
        messages: &MessageTable,
        wanted: u64,
        id: &str,
        mut except: Option<usize>,
    ) -> u64 {
        let mut identity = wanted;
        while self.find_thread_except(messages, identity, except).is_some() {
            identity = stable_hash(identity.wrapping_add(1), &[id]) & IDENTITY_MASK;
            except = None;
        }
        identity
    }

    /// Returns the thread with the identity that its inode numbers are made from.
    pub fn find_thread_by_identity(
        &self,
        messages: &MessageTable,
        identity: u64,
    ) -> Option<ThreadIx> {
        self.find_thread_except(messages, identity, None)
    }

    /// Returns the thread with an identity. The store `except` is not searched.
    fn find_thread_except(
        &self,
        messages: &MessageTable,
        identity: u64,
        except: Option<usize>,
    ) -> Option<ThreadIx> {
        let odd = self.odd_threads.iter().find(|(_, odd)| **odd == identity);
        if let Some((thread, _)) = odd {
            return Some(*thread);
        }
        let names = messages.names();
        let mut stores = names.stores().iter().enumerate().filter(|(n, _)| Some(*n) != except);
        stores.find_map(|(store, info)| {
            let ids = names.find_texts_by_identity(identity ^ info.salt);
            let mut found = ids.filter_map(|id| self.find_thread_by_text(store, id));
            found.find(|t| !self.odd_threads.contains_key(t))
        })
    }

    // --- the messages of a thread ---

    /// Returns the live messages of a thread, each once, oldest first.
    pub fn thread_messages(&self, messages: &MessageTable, thread: ThreadIx) -> Vec<MsgIx> {
        self.thread_messages_since(messages, thread, Timestamp::from_millis(i64::MIN))
    }

    /// Returns the messages of a thread whose names have this time or a later one; `None` if the thread has more than
    /// `most` messages.
    pub fn short_thread_since(
        &self,
        messages: &MessageTable,
        thread: ThreadIx,
        since: Timestamp,
        most: usize,
    ) -> Option<Vec<MsgIx>> {
        let is_short = self.thread_chain(messages, thread).nth(most).is_none();
        is_short.then(|| self.thread_messages_since(messages, thread, since))
    }

    fn thread_messages_since(
        &self,
        messages: &MessageTable,
        thread: ThreadIx,
        since: Timestamp,
    ) -> Vec<MsgIx> {
        let shown = self.shown_messages(messages, thread);
        let later = shown.filter(|(_, entry)| messages.name_time(entry) >= since);
        let mut out: Vec<MsgIx> = later.map(|(ix, _)| ix).collect();
        out.sort_by(|a, b| messages.compare_order(*a, *b));
        out
    }

    /// Returns the time of the newest live message of a thread.
    pub fn newest_thread_time(
        &self,
        messages: &MessageTable,
        thread: ThreadIx,
    ) -> Option<Timestamp> {
        self.shown_messages(messages, thread).map(|(_, entry)| entry.time()).max()
    }

    fn shown_messages<'a>(
        &self,
        messages: &'a MessageTable,
        thread: ThreadIx,
    ) -> impl Iterator<Item = (MsgIx, &'a IndexEntry)> {
        let entries = self.thread_chain(messages, thread).map(|ix| (ix, messages.entry(ix)));
        entries.filter(|(ix, entry)| entry.is_live() && !messages.is_copy(*ix))
    }

    /// Returns the messages of a thread, live or not.
    pub(super) fn thread_chain<'a>(
        &self,
        messages: &'a MessageTable,
        thread: ThreadIx,
    ) -> impl Iterator<Item = MsgIx> + use<'a> {
        let head = self.thread(thread).head.or_end();
        std::iter::successors(head, |ix| messages.entry(*ix).next_in_thread())
    }

    /// Returns true if a thread of a store has messages, from and to any address.
    pub fn has_thread_messages(&self, messages: &MessageTable, store: usize, thread: &str) -> bool {
        let thread = self.find_thread(messages, store, thread);
        thread.is_some_and(|thread| self.thread(thread).head != MsgIx::NIL)
    }

    /// Returns all senders and recipients of a thread, also of messages that are not shown.
    pub fn list_participants(
        &self,
        messages: &MessageTable,
        store: usize,
        thread: &str,
    ) -> Vec<String> {
        let Some(thread) = self.find_thread(messages, store, thread) else { return Vec::new() };
        let entries = self.thread_chain(messages, thread).map(|ix| messages.entry(ix));
        let ends: HashSet<(u32, StrId)> = entries.map(|e| (e.writer(), e.recipients())).collect();
        let names = |(writer, to): (u32, StrId)| {
            let from = messages.names().writer_name(writer);
            std::iter::once(from).chain(messages.names().text(to).split(", "))
        };
        ends.into_iter().flat_map(names).map(str::to_owned).collect()
    }

    /// Puts a new message in front of the chain of a thread. Returns the message behind it.
    pub(super) fn push_head(&mut self, thread: ThreadIx, ix: MsgIx) -> MsgIx {
        std::mem::replace(&mut self.thread_mut(thread).head, ix)
    }

    /// Records that a message of a thread is live now.
    pub(super) fn note_live(&mut self, messages: &MessageTable, ix: MsgIx) {
        let entry = messages.entry(ix);
        let bits = Thread::live_bits(entry, messages.is_listed_to_me(entry));
        self.thread_mut(entry.thread()).info |= bits;
    }

    /// Recomputes whether a thread has live messages and whether some of them are from or to me.
    pub(super) fn recompute_thread_bits(&mut self, messages: &MessageTable, thread: ThreadIx) {
        let entries = self.thread_chain(messages, thread).map(|ix| messages.entry(ix));
        let bits = entries.fold(0, |bits, entry| {
            bits | Thread::live_bits(entry, messages.is_listed_to_me(entry))
        });
        let t = self.thread_mut(thread);
        t.info = t.info & 0xff | bits;
    }

    // --- the snapshot ---

    /// Creates the table of a snapshot; returns `None` if a position in it leads nowhere.
    pub(super) fn from_snapshot(
        threads: Column<Thread>,
        thread_of: Column<ThreadIx>,
        header: &mut SnapshotHeader,
    ) -> Option<Self> {
        let odd_threads = std::mem::take(&mut header.odd_threads);
        let fits = odd_threads.keys().all(|thread| thread.is_among_first(threads.len()));
        fits.then(|| Self { threads, thread_of, odd_threads, ..Self::default() })
    }

    /// Fills in the values that the header of a snapshot has.
    pub(super) fn save_into(&self, header: &mut SnapshotHeader) {
        header.odd_threads.clone_from(&self.odd_threads);
    }

    /// Returns the tables of a snapshot.
    pub(super) fn snapshot_tables(&self) -> [AnyTable<'_>; 2] {
        [Box::new(&self.threads), Box::new(&self.thread_of)]
    }

    /// Returns a number that grows with each change of the large tables.
    pub(super) fn change_count(&self) -> u64 {
        self.threads.change_count() + self.thread_of.change_count()
    }

    /// Exchanges the large tables with those of a snapshot that was written from these.
    pub(super) fn swap_tables(&mut self, saved: &mut Self) {
        std::mem::swap(&mut self.threads, &mut saved.threads);
        std::mem::swap(&mut self.thread_of, &mut saved.thread_of);
    }

    /// Releases unused room.
    pub(super) fn shrink_to_fit(&mut self) {
        self.threads.shrink_to_fit();
        self.thread_of.shrink_to_fit();
    }
}

/// Returns the identity that a thread gets unless another thread has it.
fn default_identity(messages: &MessageTable, store: usize, id: &str) -> u64 {
    text_identity(id) ^ messages.names().store(store).salt
}
