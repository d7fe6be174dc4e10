//! Messages that are in two stores: their own, and one that keeps them for the time when their own has them no more.
//!
//! Such a message has one entry, whose place is the one in its own store. The place in the keeping store waits here.
//! When the message is gone from its own store, the entry gets the second place. So it keeps its names and inode
//! numbers.

use serde::{Deserialize, Serialize};

use super::MessageTable;
use super::entry::EntryFlags;
use crate::index::position::MsgIx;
use crate::index::source::SourceId;
use crate::store::Location;

/// The second place of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::index) struct KeptCopy {
    source: SourceId,
    offset: u64,
    len: u32,
    /// True if a rescan has not found it again yet.
    is_stale: bool,
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
        let new = KeptCopy { source, offset: at.offset, len: at.len, is_stale };
        let known = self.kept_copies.entry(ix).or_insert(new);
        if known.is_stale || known.source == source {
            *known = new;
        }
    }

    /// Moves the entry of a message that is gone to its second place. Returns false if it has none.
    pub(in crate::index) fn use_kept_copy(&mut self, ix: MsgIx) -> bool {
        let Some(copy) = self.kept_copies.remove(&ix).filter(|copy| !copy.is_stale) else {
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
        let copies = self.kept_copies.values_mut().filter(|copy| is_among(copy.source));
        copies.for_each(|copy| copy.is_stale = is_stale);
    }

    /// Forgets the second places that a rescan of some sources has not found.
    pub(in crate::index) fn drop_stale_copies(&mut self, is_among: impl Fn(SourceId) -> bool) {
        self.kept_copies.retain(|_, copy| !copy.is_stale || !is_among(copy.source));
    }
}

#[cfg(test)]
mod tests;
