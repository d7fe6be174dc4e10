//! Threads made from links (docs/SEMANTICS.md, S114, S122 and S811), for stores whose format has no thread ids, or
//! whose messages join the threads of their parents.
//!
//! A message belongs to the thread of the message that its link names, if that is known, and if its own signature is
//! valid or its store joins threads. Otherwise it belongs to the thread that it begins. Messages arrive in any
//! order, and signatures may be judged again, so all messages below a message move with it. Each change is recorded as
//! pending, and [`ThreadTable::relink_threads`] applies all of them at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Thread, ThreadTable};
use crate::index::intern::StrId;
use crate::index::messages::MessageTable;
use crate::index::position::{MsgIx, ThreadIx};
use crate::store::FoundMessage;

/// The progress of the search for a message's thread.
#[derive(Clone, Copy)]
enum VisitState {
    Open,
    /// A message on the path up from one of its descendants.
    Walking,
    Done(ThreadIx),
}

/// A search for the threads of many messages at once.
struct ThreadSearch<'a> {
    messages: &'a MessageTable,
    state: HashMap<MsgIx, VisitState>,
    /// The messages that ids mean, as far as they were resolved. Many messages may answer an id that many
    /// messages have.
    meant: HashMap<(usize, StrId), Option<MsgIx>>,
}

impl<'a> ThreadSearch<'a> {
    /// Begins a search for the threads of these messages and of all messages below them.
    fn below(messages: &'a MessageTable, roots: &[MsgIx]) -> Self {
        let mut state: HashMap<MsgIx, VisitState> = HashMap::with_capacity(roots.len());
        let mut open = roots.to_vec();
        while let Some(ix) = open.pop() {
            if state.insert(ix, VisitState::Open).is_none() {
                let (store, links) = (messages.entry(ix).store(), messages.links());
                let below = links.messages_answering(store, links.at(ix).id());
                open.extend(below.filter(|child| !state.contains_key(child)));
            }
        }
        Self { messages, state, meant: HashMap::new() }
    }

    /// Returns the thread of a message. It climbs to the root. Messages outside the search are already in their
    /// thread.
    fn find_root_thread(&mut self, start: MsgIx) -> ThreadIx {
        let messages = self.messages;
        let mut path = Vec::new();
        let mut at = start;
        let own = |ix: MsgIx| messages.links().at(ix).own_thread();
        let thread = loop {
            match self.state.get_mut(&at) {
                None => break messages.entry(at).thread(),
                Some(VisitState::Done(thread)) => break *thread,
                Some(VisitState::Walking) => {
                    // The path from its first visit on is a cycle.
                    let cycle = path.iter().copied().skip_while(|ix| *ix != at);
                    break own(cycle.min_by_key(|ix| plain_id(messages, *ix)).unwrap_or(at));
                }
                Some(state) => *state = VisitState::Walking,
            }
            path.push(at);
            let parent = named_link_target(messages, at).and_then(|(store, id)| {
                *self.meant.entry((store, id)).or_insert_with(|| messages.resolve_id(store, id))
            });
            match parent.filter(|parent| *parent != at) {
                Some(parent) => at = parent,
                None => break own(at),
            }
        };
        for ix in path {
            self.state.insert(ix, VisitState::Done(thread));
        }
        thread
    }
}

/// Returns the store and id that a message's link names, if the link counts.
fn named_link_target(messages: &MessageTable, ix: MsgIx) -> Option<(usize, StrId)> {
    let entry = messages.entry(ix);
    let needs_none = messages.names().store(entry.store()).joins;
    let counts = (entry.is_verified() || needs_none) && !entry.is_rejected();
    let answers = messages.links().at(ix).answers()?;
    counts.then_some((entry.store(), answers))
}

/// Returns the id of a message as links name it.
fn plain_id(messages: &MessageTable, ix: MsgIx) -> &str {
    messages.names().text(messages.links().at(ix).id())
}

impl ThreadTable {
    /// Applies the store's new thread or link of a message. `own` is the thread that it begins, or is in.
    pub(in crate::index) fn update_reply_link(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        own: ThreadIx,
        found: &FoundMessage<'_>,
    ) {
        let store = messages.entry(ix).store();
        if messages.names().store(store).links {
            let answers = messages.intern_linked_id(store, found);
            if messages.links_mut().set_link(store, ix, answers, own) {
                self.pending.push(ix);
            }
        } else {
            self.queue_move(messages, ix, own);
        }
    }

    /// Records that a message that no link moves belongs to a thread.
    pub(in crate::index) fn queue_move(
        &mut self,
        messages: &MessageTable,
        ix: MsgIx,
        thread: ThreadIx,
    ) {
        if messages.entry(ix).thread() == thread {
            self.rethreaded.remove(&ix);
        } else {
            self.rethreaded.insert(ix, thread);
        }
    }

    /// Returns the thread of a message that no link moves, also before [`ThreadTable::relink_threads`] moves it there.
    pub(in crate::index) fn next_thread(&self, messages: &MessageTable, ix: MsgIx) -> ThreadIx {
        self.rethreaded.get(&ix).copied().unwrap_or_else(|| messages.entry(ix).thread())
    }

    /// Records that a link may have begun or ceased to count.
    pub(in crate::index) fn queue_relink(&mut self, messages: &MessageTable, ix: MsgIx) {
        if messages.names().store(messages.entry(ix).store()).links {
            self.pending.push(ix);
        }
    }

    /// Moves every message whose links or thread changed, and all messages below it, to its current thread.
    /// Returns the moved messages with the threads that they left.
    pub(in crate::index) fn relink_threads(
        &mut self,
        messages: &mut MessageTable,
    ) -> Vec<(MsgIx, ThreadIx)> {
        let pending = std::mem::take(&mut self.pending);
        let mut moves = std::mem::take(&mut self.rethreaded);
        if !pending.is_empty() {
            let mut search = ThreadSearch::below(messages, &pending);
            let mut order: Vec<MsgIx> = search.state.keys().copied().collect();
            order.sort_unstable();
            for ix in order {
                moves.insert(ix, search.find_root_thread(ix));
            }
        }
        moves.retain(|ix, thread| messages.entry(*ix).thread() != *thread);
        self.move_messages(messages, &moves)
    }

    /// Moves messages from thread to thread. Returns those that a view can show, with the threads that they
    /// left.
    fn move_messages(
        &mut self,
        messages: &mut MessageTable,
        moves: &BTreeMap<MsgIx, ThreadIx>,
    ) -> Vec<(MsgIx, ThreadIx)> {
        if moves.is_empty() {
            return Vec::new();
        }
        self.generation += 1;
        let leaving: HashSet<MsgIx> = moves.keys().copied().collect();
        let left = moves.keys().map(|ix| (*ix, messages.entry(*ix).thread()));
        let left: Vec<(MsgIx, ThreadIx)> = left.collect();
        let old: BTreeSet<ThreadIx> = left.iter().map(|(_, thread)| *thread).collect();
        for thread in old {
            let stay = self.thread_chain(messages, thread).filter(|ix| !leaving.contains(ix));
            let stay: Vec<MsgIx> = stay.collect();
            self.set_chain(messages, thread, &stay);
            self.recompute_thread_bits(messages, thread);
        }
        for (ix, thread) in moves {
            self.enter_thread(messages, *ix, *thread);
        }
        left.into_iter().filter(|(ix, _)| messages.entry(*ix).is_live()).collect()
    }

    fn set_chain(&mut self, messages: &mut MessageTable, thread: ThreadIx, chain: &[MsgIx]) {
        let nexts = chain.iter().skip(1).copied().chain([MsgIx::NIL]);
        for (ix, next) in chain.iter().zip(nexts) {
            messages.entry_mut(*ix).set_next_in_thread(next);
        }
        self.thread_mut(thread).head = chain.first().copied().unwrap_or(MsgIx::NIL);
    }

    /// Adds a message that is in no chain to the chain of a thread.
    fn enter_thread(&mut self, messages: &mut MessageTable, ix: MsgIx, thread: ThreadIx) {
        let next = self.push_head(thread, ix);
        messages.entry_mut(ix).set_thread(thread, next);
        let entry = messages.entry(ix);
        let bits = Thread::live_bits(entry, messages.is_listed_to_me(entry));
        self.thread_mut(thread).info |= bits;
    }
}

#[cfg(test)]
mod tests;
