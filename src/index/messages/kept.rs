//! Messages that are in several stores: in their own store, and in stores that keep them for the time when their own
//! store has lost them.
//!
//! Such a message has one entry, whose place is the one in its own store. The places in the keeping stores wait here.
//! When the message is gone from the place of its entry, the entry gets the next place. So the message keeps its names
//! and inode numbers. If its own store has the message only in another thread (a fork), the kept one may count, and the
//! other waits here.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

use super::entry::EntryFlags;
use super::{EntryTable, MessageHome, MessageTable};
use crate::index::position::{MsgIx, ThreadIx};
use crate::index::source::SourceId;
use crate::store::{FoundMessage, Location};

/// A further place of a message: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(in crate::index) struct KeptCopy {
    offset: u64,
    ix: MsgIx,
    source: SourceId,
    len: u32,
    thread: ThreadIx,
    /// 1 if a rescan has not found it again yet, or else 0.
    stale: u32,
    unused: u32,
}

/// The further places of messages, by message and source.
#[derive(Debug, Default)]
pub(super) struct KeptCopies(BTreeMap<(MsgIx, SourceId), KeptCopy>);

impl KeptCopies {
    /// Returns the table for a snapshot.
    pub fn to_table(&self) -> Vec<KeptCopy> {
        self.0.values().copied().collect()
    }

    /// Rebuilds what [`KeptCopies::to_table`] returned; returns `None` if a position in it leads nowhere.
    pub fn from_table(list: Vec<KeptCopy>, known: &EntryTable) -> Option<Self> {
        let fits = known.has_all(list.iter().map(|copy| &copy.ix));
        fits.then(|| Self(list.into_iter().map(|copy| ((copy.ix, copy.source), copy)).collect()))
    }

    /// Takes out a place of a message that is not stale, in this thread if there is one.
    fn take_place(&mut self, ix: MsgIx, thread: ThreadIx) -> Option<KeptCopy> {
        let from = (ix, SourceId::new(0, 0));
        let places = self.0.range(from..).take_while(|((of, _), _)| *of == ix);
        let fresh = places.map(|(_, copy)| *copy).filter(|copy| copy.stale == 0);
        let next = fresh.min_by_key(|copy| copy.thread != thread)?;
        self.0.remove(&(ix, next.source))
    }
}

impl MessageTable {
    /// Notes a further place of a message.
    pub(in crate::index) fn note_kept_copy(
        &mut self,
        ix: MsgIx,
        (source, thread): (SourceId, ThreadIx),
        at: &Location,
        is_stale: bool,
    ) {
        let (offset, len, stale) = (at.offset, at.len, is_stale.into());
        let copy = KeptCopy { offset, ix, source, len, thread, stale, unused: 0 };
        self.kept_copies.0.insert((ix, source), copy);
    }

    /// Moves the entry of a message that is gone from a thread to its next place. Returns the thread there; `None` if
    /// it has no other place.
    pub(in crate::index) fn use_kept_copy(
        &mut self,
        ix: MsgIx,
        thread: ThreadIx,
    ) -> Option<ThreadIx> {
        let copy = self.kept_copies.take_place(ix, thread)?;
        let entry = self.entry_mut(ix);
        (entry.source, entry.offset, entry.len) = (copy.source, copy.offset, copy.len);
        entry.size = 0;
        entry.flags.set(EntryFlags::STALE, false);
        self.note_change();
        Some(copy.thread)
    }

    /// Marks the further places in some sources as stale, or as found.
    pub(in crate::index) fn mark_stale_copies(
        &mut self,
        is_among: impl Fn(SourceId) -> bool,
        is_stale: bool,
    ) {
        for copy in self.kept_copies.0.values_mut().filter(|copy| is_among(copy.source)) {
            copy.stale = is_stale.into();
        }
    }

    /// Forgets the further places that a rescan of some sources has not found.
    pub(in crate::index) fn drop_stale_copies(&mut self, is_among: impl Fn(SourceId) -> bool) {
        self.kept_copies.0.retain(|_, copy| copy.stale == 0 || !is_among(copy.source));
    }

    /// Returns the home of a message that a store reports. For a kept message it is the store of the original kind that
    /// has it, else the first store of that kind, else the keeping store itself.
    pub(in crate::index) fn find_message_home(
        &self,
        store: usize,
        found: &FoundMessage<'_>,
    ) -> MessageHome {
        if found.origin.is_none() {
            return MessageHome::of_store(store);
        }
        let kinds = self.names().stores().iter().map(|info| Some(info.kind));
        let origins = kinds.enumerate().filter(|(_, kind)| *kind == found.origin).map(|(n, _)| n);
        let has_it = |n: &usize| self.find_message(*n, &found.from, &found.id).is_some();
        let home = origins.clone().find(has_it).or_else(|| origins.clone().next());
        match home {
            Some(store) => MessageHome::of_store(store),
            None => MessageHome { store, origin: found.origin },
        }
    }
}

#[cfg(test)]
mod tests;
