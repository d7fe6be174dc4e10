//! Threads made from reply links, for stores whose format has no thread ids (docs/SEMANTICS.md, S114 and S122).
//!
//! A message belongs to the thread of the message it answers, if its signature is valid and that message is
//! known; otherwise to the thread that it begins. Messages arrive in any order, and signatures may be judged
//! again, so all messages below a message move with it. Each change is recorded as pending, and
//! [`IndexTables::relink_threads`] applies all of them at once.
//!
//! A link names an id, not a message. If several messages have that id, the link means the earliest that was not
//! rejected. Messages that are gone from the store count, so that a thread does not fall apart when a message in
//! its middle is deleted.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytemuck::{Pod, Zeroable};

use super::column::Column;
use super::entry::{EntryFlags, IndexEntry, MsgIx, NIL, SignatureKind};
use super::intern::StrId;
use super::tables::{IndexTables, Thread, ThreadIx};
use crate::model::{Timestamp, plain_id};
use crate::store::FoundMessage;

/// The link data of one message of such a store: 16 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ReplyLink {
    /// The message.
    ix: MsgIx,
    /// The store's id of the message, without the qualifier that separates it from others of the same id.
    id: StrId,
    /// The id of the message it answers, or [`NIL`].
    answers: StrId,
    /// The thread it begins.
    own: ThreadIx,
}

/// The reply links of all stores that have them. It is empty, and free, without such stores.
#[derive(Debug, Default)]
pub(super) struct ReplyLinks {
    /// In the order of message positions.
    list: Vec<ReplyLink>,
    /// By store and id, the messages that have the id.
    by_id: BTreeSet<(u32, StrId, MsgIx)>,
    /// By store and id, the messages whose link names the id.
    answering: BTreeSet<(u32, StrId, MsgIx)>,
    /// Messages whose thread may have to change.
    pending: Vec<MsgIx>,
    /// Messages of stores with thread ids that are in another thread now, according to their store.
    rethreaded: Vec<(MsgIx, ThreadIx)>,
}

/// Returns the messages recorded under an id.
fn messages_under(
    set: &BTreeSet<(u32, StrId, MsgIx)>,
    store: usize,
    id: StrId,
) -> impl Iterator<Item = MsgIx> + '_ {
    set.range((store as u32, id, 0)..=(store as u32, id, MsgIx::MAX)).map(|(_, _, ix)| *ix)
}

impl ReplyLinks {
    fn position(&self, ix: MsgIx) -> Option<usize> {
        self.list.binary_search_by_key(&ix, |link| link.ix).ok()
    }

    fn get(&self, ix: MsgIx) -> Option<&ReplyLink> {
        self.list.get(self.position(ix)?)
    }

    /// Returns the plain id of a message, if its store makes threads from links.
    pub fn id(&self, ix: MsgIx) -> Option<StrId> {
        Some(self.get(ix)?.id)
    }

    /// Returns the thread that a message begins, if its store makes threads from links.
    pub fn own_thread(&self, ix: MsgIx) -> Option<ThreadIx> {
        Some(self.get(ix)?.own)
    }

    /// Adds a message, which must be newer in the tables than all others.
    fn add_link(&mut self, store: usize, link: ReplyLink) {
        self.list.push(link);
        self.index_link(store, link);
    }

    fn index_link(&mut self, store: usize, link: ReplyLink) {
        self.by_id.insert((store as u32, link.id, link.ix));
        if link.answers != NIL {
            self.answering.insert((store as u32, link.answers, link.ix));
        }
    }

    /// Sets the link and the own thread of a message. Returns true if that changed anything.
    fn set_link(&mut self, store: usize, ix: MsgIx, answers: StrId, own: ThreadIx) -> bool {
        let at = self.position(ix);
        let Some(link) = at.and_then(|at| self.list.get_mut(at)) else { return false };
        let before = *link;
        (link.answers, link.own) = (answers, own);
        let after = *link;
        self.answering.remove(&(store as u32, before.answers, ix));
        self.index_link(store, after);
        (before.answers, before.own) != (answers, own)
    }

    /// Returns the table for the snapshot.
    pub fn as_table(&self) -> &Vec<ReplyLink> {
        &self.list
    }

    /// Rebuilds the links from the table that [`ReplyLinks::as_table`] returned. `entries` give the stores.
    pub fn from_table(list: Vec<ReplyLink>, entries: &Column<IndexEntry>) -> Option<Self> {
        let store = |link: &ReplyLink| Some(entries.get(link.ix as usize)?.store() as u32);
        // Sets that are built at once are built faster, and their nodes are full.
        let with = list.iter().map(|link| Some((store(link)?, link.id, link.ix)));
        let with = with.collect::<Option<_>>()?;
        let answers = list.iter().filter(|link| link.answers != NIL);
        let answering = answers.map(|link| Some((store(link)?, link.answers, link.ix)));
        let answering = answering.collect::<Option<_>>()?;
        let sorted = list.is_sorted_by(|a, b| a.ix < b.ix);
        sorted.then(|| Self { list, by_id: with, answering, ..Self::default() })
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.list.shrink_to_fit();
        for set in [&mut self.by_id, &mut self.answering] {
            *set = std::mem::take(set).into_iter().collect();
        }
    }
}

/// The progress of the search for a message's thread.
#[derive(Clone, Copy)]
enum VisitState {
    Open,
    /// A message on the path up from one of its descendants.
    Walking,
    Done(ThreadIx),
}

/// A search for the threads of many messages at once.
struct ThreadSearch {
    state: HashMap<MsgIx, VisitState>,
    /// The messages that ids mean, as far as they were resolved. Many messages may answer an id that many
    /// messages have.
    meant: HashMap<(usize, StrId), Option<MsgIx>>,
}

impl IndexTables {
    pub(super) fn has_reply_links(&self, store: usize) -> bool {
        self.stores.get(store).is_some_and(|s| s.links)
    }

    fn intern_answered_id(&mut self, found: &FoundMessage<'_>) -> StrId {
        match found.in_reply_to.as_deref().map(plain_id) {
            Some(id) if !id.is_empty() => self.strings.intern(id),
            _ => NIL,
        }
    }

    /// Records the link of a new message. `own` is the thread that it begins.
    pub(super) fn add_reply_link(
        &mut self,
        store: usize,
        ix: MsgIx,
        own: ThreadIx,
        found: &FoundMessage<'_>,
    ) {
        let id = self.strings.intern(plain_id(&found.id));
        let answers = self.intern_answered_id(found);
        self.links.add_link(store, ReplyLink { ix, id, answers, own });
        self.links.pending.push(ix);
    }

    /// Applies the store's new thread or link of a message.
    pub(super) fn update_reply_link(
        &mut self,
        store: usize,
        ix: MsgIx,
        own: ThreadIx,
        found: &FoundMessage<'_>,
    ) {
        if self.has_reply_links(store) {
            let answers = self.intern_answered_id(found);
            if self.links.set_link(store, ix, answers, own) {
                self.links.pending.push(ix);
            }
        } else if self.entry(ix).is_some_and(|e| e.thread != own) {
            self.links.rethreaded.push((ix, own));
        }
    }

    /// Records that a link may have begun or ceased to count.
    pub(super) fn queue_relink(&mut self, ix: MsgIx) {
        if self.entry(ix).is_some_and(|e| self.has_reply_links(e.store())) {
            self.links.pending.push(ix);
        }
    }

    /// Returns the store and id that a message's link names, if the link counts.
    fn named_link_target(&self, ix: MsgIx) -> Option<(usize, StrId)> {
        let entry = self.entry(ix)?;
        let valid = entry.flags.signature().0 == SignatureKind::Valid
            && !entry.flags.has(EntryFlags::REJECTED);
        let answers = self.links.get(ix)?.answers;
        (valid && answers != NIL).then_some((entry.store(), answers))
    }

    /// Returns the message that a link leads to. Links may form a cycle; [`IndexTables::thread_parent`] cuts it.
    fn find_link_target(&self, ix: MsgIx) -> Option<MsgIx> {
        let (store, id) = self.named_link_target(ix)?;
        self.resolve_id(store, id).filter(|parent| *parent != ix)
    }

    /// Returns the message that an id means: the earliest that was not rejected, or else the earliest.
    pub(super) fn resolve_id(&self, store: usize, id: StrId) -> Option<MsgIx> {
        let refused = |ix: MsgIx| self.entry(ix).is_some_and(|e| e.flags.has(EntryFlags::REJECTED));
        messages_under(&self.links.by_id, store, id)
            .min_by(|a, b| refused(*a).cmp(&refused(*b)).then_with(|| self.compare_order(*a, *b)))
    }

    /// Returns the id of the message that this one answers, in stores that make threads from links.
    pub fn answered_id(&self, entry: &IndexEntry) -> Option<&str> {
        let link = self.links.get(self.find_by_identity(entry.identity())?)?;
        (link.answers != NIL).then(|| self.strings.get(link.answers))
    }

    /// Returns the message whose thread this one belongs to because it answers it. That message is known, and
    /// the signature of the link is valid. The root of a cycle has no parent, so that every climb ends.
    pub fn thread_parent(&self, ix: MsgIx) -> Option<MsgIx> {
        let parent = self.find_link_target(ix)?;
        let mut seen = HashSet::from([ix]);
        let mut path = vec![ix];
        let mut at = parent;
        while seen.insert(at) {
            path.push(at);
            let Some(next) = self.find_link_target(at) else { return Some(parent) };
            at = next;
        }
        (at != ix || self.find_smallest_id(&path) != Some(ix)).then_some(parent)
    }

    /// Returns the message with the smallest id.
    fn find_smallest_id(&self, cycle: &[MsgIx]) -> Option<MsgIx> {
        let id = |ix: &MsgIx| self.links.get(*ix).map_or("", |link| self.strings.get(link.id));
        cycle.iter().copied().min_by(|a, b| id(a).cmp(id(b)))
    }

    /// Moves every message whose links or thread changed, and all messages below it, to its current thread.
    /// Returns the moved messages with the threads that they left.
    pub(super) fn relink_threads(&mut self) -> Vec<(MsgIx, ThreadIx)> {
        let pending = std::mem::take(&mut self.links.pending);
        let mut moves = std::mem::take(&mut self.links.rethreaded);
        if !pending.is_empty() {
            let mut climb =
                ThreadSearch { state: self.collect_descendants(&pending), meant: HashMap::new() };
            let mut order: Vec<MsgIx> = climb.state.keys().copied().collect();
            order.sort_unstable();
            for ix in order {
                if let Some(thread) = self.find_root_thread(ix, &mut climb) {
                    moves.push((ix, thread));
                }
            }
        }
        moves.retain(|(ix, thread)| self.entry(*ix).is_some_and(|e| e.thread != *thread));
        self.move_messages(&moves)
    }

    /// Returns these messages and all messages below them.
    fn collect_descendants(&self, roots: &[MsgIx]) -> HashMap<MsgIx, VisitState> {
        let mut all: HashMap<MsgIx, VisitState> = HashMap::with_capacity(roots.len());
        let mut open = roots.to_vec();
        while let Some(ix) = open.pop() {
            let (Some(link), Some(entry)) = (self.links.get(ix), self.entry(ix)) else { continue };
            if all.insert(ix, VisitState::Open).is_none() {
                let below = messages_under(&self.links.answering, entry.store(), link.id);
                open.extend(below.filter(|child| !all.contains_key(child)));
            }
        }
        all
    }

    /// Returns the thread of a message. It climbs to the root. Messages outside the search are already in their
    /// thread.
    fn find_root_thread(&self, start: MsgIx, climb: &mut ThreadSearch) -> Option<ThreadIx> {
        let mut path = Vec::new();
        let mut at = start;
        let own = |ix: MsgIx| self.links.own_thread(ix);
        let thread = loop {
            match climb.state.get_mut(&at) {
                None => break self.entry(at)?.thread,
                Some(VisitState::Done(thread)) => break *thread,
                Some(VisitState::Walking) => {
                    let from = path.iter().position(|ix| *ix == at)?;
                    break own(self.find_smallest_id(path.get(from..)?)?)?;
                }
                Some(state) => *state = VisitState::Walking,
            }
            path.push(at);
            let parent = self.named_link_target(at).and_then(|(store, id)| {
                *climb.meant.entry((store, id)).or_insert_with(|| self.resolve_id(store, id))
            });
            match parent.filter(|parent| *parent != at) {
                Some(parent) => at = parent,
                None => break own(at)?,
            }
        };
        for ix in path {
            climb.state.insert(ix, VisitState::Done(thread));
        }
        Some(thread)
    }

    /// Moves messages from thread to thread. Returns those that a view can show, with the threads that they
    /// left.
    fn move_messages(&mut self, moves: &[(MsgIx, ThreadIx)]) -> Vec<(MsgIx, ThreadIx)> {
        if moves.is_empty() {
            return Vec::new();
        }
        self.generation += 1;
        let leaving: HashSet<MsgIx> = moves.iter().map(|(ix, _)| *ix).collect();
        let left = moves.iter().filter_map(|(ix, _)| Some((*ix, self.entry(*ix)?.thread)));
        let left: Vec<(MsgIx, ThreadIx)> = left.collect();
        let old: BTreeSet<ThreadIx> = left.iter().map(|(_, thread)| *thread).collect();
        for thread in old {
            let stay = self.thread_chain(thread).filter(|ix| !leaving.contains(ix));
            let stay: Vec<MsgIx> = stay.collect();
            self.set_chain(thread, &stay);
            self.recompute_thread_bits(thread);
        }
        for (ix, thread) in moves {
            self.enter_thread(*ix, *thread);
        }
        left.into_iter()
            .filter(|(ix, _)| self.entry(*ix).is_some_and(IndexEntry::is_live))
            .collect()
    }

    /// Returns the live messages of a thread, each once, oldest first.
    pub fn thread_messages(&self, thread: ThreadIx) -> Vec<MsgIx> {
        let mut out: Vec<MsgIx> = self.shown_messages(thread).map(|(ix, _)| ix).collect();
        out.sort_by(|a, b| self.compare_order(*a, *b));
        out
    }

    /// Returns the time of the newest of them.
    pub fn newest_thread_time(&self, thread: ThreadIx) -> Option<Timestamp> {
        self.shown_messages(thread).map(|(_, entry)| entry.time()).max()
    }

    fn shown_messages(&self, thread: ThreadIx) -> impl Iterator<Item = (MsgIx, &IndexEntry)> {
        let entries = self.thread_chain(thread).filter_map(|ix| Some((ix, self.entry(ix)?)));
        entries.filter(|(ix, entry)| entry.is_live() && !self.is_copy(*ix))
    }

    /// Returns the messages of a thread, live or not.
    pub(super) fn thread_chain(&self, thread: ThreadIx) -> impl Iterator<Item = MsgIx> + '_ {
        let head = self.threads.get(thread as usize).map_or(NIL, |t| t.head);
        let exists = |ix: &MsgIx| self.entry(*ix).is_some();
        std::iter::successors(Some(head).filter(exists), move |ix| {
            self.entry(*ix).map(|e| e.next).filter(exists)
        })
    }

    fn set_chain(&mut self, thread: ThreadIx, messages: &[MsgIx]) {
        let nexts = messages.iter().skip(1).copied().chain([NIL]);
        for (ix, next) in messages.iter().zip(nexts) {
            if let Some(entry) = self.entries.get_mut(*ix as usize) {
                entry.next = next;
            }
        }
        if let Some(t) = self.threads.get_mut(thread as usize) {
            t.head = messages.first().copied().unwrap_or(NIL);
        }
    }

    /// Adds a message that is in no chain to the chain of a thread.
    fn enter_thread(&mut self, ix: MsgIx, thread: ThreadIx) {
        let Some(entry) = self.entries.get_mut(ix as usize) else { return };
        let Some(t) = self.threads.get_mut(thread as usize) else { return };
        entry.thread = thread;
        entry.next = std::mem::replace(&mut t.head, ix);
        // The rendered message has a line with the thread.
        entry.size = 0;
        t.info |= Thread::live_bits(entry);
    }

    /// Recomputes whether a thread has live messages and whether some of them are from or to me.
    pub(super) fn recompute_thread_bits(&mut self, thread: ThreadIx) {
        let bits = self.thread_chain(thread).filter_map(|ix| self.entry(ix));
        let bits = bits.fold(0, |bits, entry| bits | Thread::live_bits(entry));
        if let Some(t) = self.threads.get_mut(thread as usize) {
            t.info = t.info & 0xff | bits;
        }
    }
}

#[cfg(test)]
mod tests;
