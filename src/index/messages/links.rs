//! The ids that messages have, and those that their links name: the id that a message answers in stores whose format
//! has no thread ids, that of its parent in stores that join threads.
//!
//! A link names an id, not a message. If several messages have that id, the link means the earliest that was not
//! rejected. Messages that are gone from the store count, so that a thread does not fall apart when a message in its
//! middle is deleted. The links of stores that join threads need no signature. There an id that several messages have
//! means none of them, and those that are gone count only while none is there.

use std::collections::BTreeSet;

use bytemuck::{Pod, Zeroable};

use crate::index::column::{Column, at_mut};
use crate::index::intern::StrId;
use crate::index::messages::IndexEntry;
use crate::index::position::{MsgIx, ThreadIx};

/// Value of [`ReplyLink::answers`] for a message whose link names none.
const NO_ID: StrId = StrId::MAX;

/// The link data of one message of such a store: 16 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(in crate::index) struct ReplyLink {
    /// The message.
    ix: MsgIx,
    /// The store's id of the message, without the qualifier that separates it from others of the same id.
    id: StrId,
    /// The id that its link names, or [`NO_ID`].
    answers: StrId,
    /// The thread it begins.
    own: ThreadIx,
}

impl ReplyLink {
    /// Creates the link of a message. `answers` is the id that the link names, `own` the thread that it begins.
    pub fn new(ix: MsgIx, id: StrId, answers: Option<StrId>, own: ThreadIx) -> Self {
        Self { ix, id, answers: answers.unwrap_or(NO_ID), own }
    }

    /// Returns the plain id of the message.
    pub fn id(&self) -> StrId {
        self.id
    }

    /// Returns the id that the link names.
    pub fn answers(&self) -> Option<StrId> {
        (self.answers != NO_ID).then_some(self.answers)
    }

    /// Returns the thread that the message begins.
    pub fn own_thread(&self) -> ThreadIx {
        self.own
    }
}

/// The reply links of all stores that have them. It is empty, and free, without such stores.
#[derive(Debug, Default)]
pub(in crate::index) struct ReplyLinks {
    /// In the order of message positions.
    list: Vec<ReplyLink>,
    /// By store and id, the messages that have the id.
    by_id: BTreeSet<(u32, StrId, MsgIx)>,
    /// By store and id, the messages whose link names the id.
    answering: BTreeSet<(u32, StrId, MsgIx)>,
}

/// Panics because a message has no reply link, although all messages of its store have one.
#[cold]
#[track_caller]
fn panic_without_link(ix: MsgIx) -> ! {
    panic!("the index is broken: it has no reply link for the message at {ix:?}")
}

/// Returns the messages recorded under an id.
fn messages_under(
    set: &BTreeSet<(u32, StrId, MsgIx)>,
    store: usize,
    id: StrId,
) -> impl Iterator<Item = MsgIx> + '_ {
    set.range((store as u32, id, MsgIx::MIN)..=(store as u32, id, MsgIx::MAX)).map(|(_, _, ix)| *ix)
}

impl ReplyLinks {
    fn position(&self, ix: MsgIx) -> Option<usize> {
        self.list.binary_search_by_key(&ix, |link| link.ix).ok()
    }

    /// Returns the link of a message whose store makes threads from links.
    #[track_caller]
    pub fn at(&self, ix: MsgIx) -> &ReplyLink {
        self.get(ix).unwrap_or_else(|| panic_without_link(ix))
    }

    /// Returns the link of a message, if its store makes threads from links.
    pub fn get(&self, ix: MsgIx) -> Option<&ReplyLink> {
        self.list.get(self.position(ix)?)
    }

    /// Returns the messages that have an id.
    pub fn messages_with_id(&self, store: usize, id: StrId) -> impl Iterator<Item = MsgIx> + '_ {
        messages_under(&self.by_id, store, id)
    }

    /// Returns the messages whose link names an id.
    pub fn messages_answering(&self, store: usize, id: StrId) -> impl Iterator<Item = MsgIx> + '_ {
        messages_under(&self.answering, store, id)
    }

    /// Adds a message, which must be newer in the tables than all others.
    pub fn add_link(&mut self, store: usize, link: ReplyLink) {
        self.list.push(link);
        self.index_link(store, link);
    }

    fn index_link(&mut self, store: usize, link: ReplyLink) {
        self.by_id.insert((store as u32, link.id, link.ix));
        if let Some(answers) = link.answers() {
            self.answering.insert((store as u32, answers, link.ix));
        }
    }

    /// Sets the link and the own thread of a message. Returns true if that changed anything.
    pub fn set_link(
        &mut self,
        store: usize,
        ix: MsgIx,
        answers: Option<StrId>,
        own: ThreadIx,
    ) -> bool {
        let at = self.position(ix).unwrap_or_else(|| panic_without_link(ix));
        let link = at_mut(&mut self.list, at);
        let before = *link;
        let after = ReplyLink::new(ix, before.id, answers, own);
        *link = after;
        self.answering.remove(&(store as u32, before.answers, ix));
        self.index_link(store, after);
        (before.answers, before.own) != (after.answers, after.own)
    }

    /// Returns the table for the snapshot.
    pub fn as_table(&self) -> &Vec<ReplyLink> {
        &self.list
    }

    /// Rebuilds the links from the table that [`ReplyLinks::as_table`] returned. `entries` give the stores.
    pub fn from_table(list: Vec<ReplyLink>, entries: &Column<IndexEntry>) -> Option<Self> {
        let store = |link: &ReplyLink| Some(entries.get(link.ix.number())?.store() as u32);
        // Sets that are built at once are built faster, and their nodes are full.
        let with = list.iter().map(|link| Some((store(link)?, link.id, link.ix)));
        let with = with.collect::<Option<_>>()?;
        let answers = list.iter().filter_map(|link| Some((link, link.answers()?)));
        let answering = answers.map(|(link, id)| Some((store(link)?, id, link.ix)));
        let answering = answering.collect::<Option<_>>()?;
        let sorted = list.is_sorted_by(|a, b| a.ix < b.ix);
        sorted.then_some(Self { list, by_id: with, answering })
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.list.shrink_to_fit();
        for set in [&mut self.by_id, &mut self.answering] {
            *set = std::mem::take(set).into_iter().collect();
        }
    }
}
