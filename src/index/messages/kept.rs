//! Messages that are in two stores: their own, and one that keeps them for the time when their own has them no more.
//!
//! Such a message has one entry, whose place is the one in its own store. The place in the keeping store waits here.
//! When the message is gone from its own store, the entry gets the second place. So it keeps its names and inode
//! numbers.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

use super::entry::EntryFlags;
use super::{EntryTable, MessageHome, MessageTable};
use crate::index::position::MsgIx;
use crate::index::source::SourceId;
use crate::store::{FoundMessage, Location};

/// The second place of a message: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(in crate::index) struct KeptCopy {
    offset: u64,
    ix: MsgIx,
    source: SourceId,
    len: u32,
    /// 1 if a rescan has not found it again yet, or else 0.
    stale: u32,
}

/// The second places of messages.
#[derive(Debug, Default)]
pub(super) struct KeptCopies(BTreeMap<MsgIx, KeptCopy>);

impl KeptCopies {
    /// Returns the table for a snapshot.
    pub fn to_table(&self) -> Vec<KeptCopy> {
        self.0.values().copied().collect()
    }

    /// Rebuilds what [`KeptCopies::to_table`] returned; returns `None` if a position in it leads nowhere.
    pub fn from_table(list: Vec<KeptCopy>, known: &EntryTable) -> Option<Self> {
        let fits = known.has_all(list.iter().map(|copy| &copy.ix));
        fits.then(|| Self(list.into_iter().map(|copy| (copy.ix, copy)).collect()))
    }
}

impl MessageTable {
    /// Notes the second place of a message. The first that is known stays, unless a rescan looks for it.
    pub(in crate::index) fn note_kept_copy(
        &mut self,
        ix: MsgIx,
        source: SourceId,
        at: &Location,
        is_stale: bool,
    ) {
        let (offset, len, stale) = (at.offset, at.len, is_stale.into());
        let new = KeptCopy { offset, ix, source, len, stale };
        let known = self.kept_copies.0.entry(ix).or_insert(new);
        if known.stale == 1 || known.source == source {
            *known = new;
        }
    }

    /// Moves the entry of a message that is gone to its second place. Returns false if it has none.
    pub(in crate::index) fn use_kept_copy(&mut self, ix: MsgIx) -> bool {
        let Some(copy) = self.kept_copies.0.remove(&ix).filter(|copy| copy.stale == 0) else {
            return false;
        };
        let entry = self.entry_mut(ix);
        (entry.source, entry.offset, entry.len) = (copy.source, copy.offset, copy.len);
        entry.size = 0;
        entry.flags.set(EntryFlags::STALE, false);
        self.note_change();
        true
    }

    /// Marks the second places in some sources as stale, or as found.
    pub(in crate::index) fn mark_stale_copies(
        &mut self,
        is_among: impl Fn(SourceId) -> bool,
        is_stale: bool,
    ) {
        for copy in self.kept_copies.0.values_mut().filter(|copy| is_among(copy.source)) {
            copy.stale = is_stale.into();
        }
    }

    /// Forgets the second places that a rescan of some sources has not found.
    pub(in crate::index) fn drop_stale_copies(&mut self, is_among: impl Fn(SourceId) -> bool) {
        self.kept_copies.0.retain(|_, copy| copy.stale == 0 || !is_among(copy.source));
    }

    /// Returns the home of a message that a store reports. Of several stores from which it may have been kept, it is the
    /// one that has it.
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
