//! The messages that a table of words has, by their rows.

use crate::index::{IndexEntry, IndexTables, MsgIx};

/// One row of a table: the message, and the state in which it was inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedDocument {
    /// The row, counted from 1.
    pub row: u32,
    /// The identity of the message.
    pub identity: u64,
    /// The stamp of its record then.
    pub stamp: u32,
}

/// Returns a number that changes if the record of a message does. It is never 0.
pub(super) fn stamp_of(entry: &IndexEntry) -> u32 {
    let time = (entry.time().millis() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((time >> 32) as u32).wrapping_add(entry.location().len) | 1
}

/// Returns the number of a message in the index.
fn number_of(ix: MsgIx) -> usize {
    ix.count_up_to() - 1
}

/// The messages of a table.
#[derive(Debug, Default)]
pub(super) struct DocumentMap {
    /// The message of each row; `MsgIx::MAX` for a row that stands for none.
    messages: Vec<MsgIx>,
    /// The row and the stamp of each message by its number; zeros for a message that the table lacks.
    rows: Vec<(u32, u32)>,
    /// Rows of messages that the index does not have now.
    absent: Vec<SavedDocument>,
    /// The number of messages of the index when they were sought last.
    sought_among: usize,
}

impl DocumentMap {
    /// Returns true if the table has a message as its record is now.
    pub fn has(&self, ix: MsgIx, entry: &IndexEntry) -> bool {
        self.rows.get(number_of(ix)).is_some_and(|(_, stamp)| *stamp == stamp_of(entry))
    }

    /// Returns the row of a message, in whatever state it was inserted.
    pub fn row_of(&self, ix: MsgIx) -> Option<u32> {
        self.rows.get(number_of(ix)).map(|(row, _)| *row).filter(|row| *row != 0)
    }

    /// Returns the message of a row.
    pub fn message_of(&self, row: u32) -> Option<MsgIx> {
        let at = usize::try_from(row).ok()?.checked_sub(1)?;
        self.messages.get(at).copied().filter(|ix| *ix != MsgIx::MAX)
    }

    /// Returns the number of rows that stand for a message.
    pub fn live_rows(&self) -> usize {
        self.rows.iter().filter(|(row, _)| *row != 0).count() + self.absent.len()
    }

    /// Records the message of a row, and forgets the row that it had.
    pub fn insert(&mut self, row: u32, ix: MsgIx, stamp: u32) {
        self.forget(ix);
        self.reserve_row(row);
        if let Some(slot) = self.messages.get_mut(row as usize - 1) {
            *slot = ix;
        }
        let number = number_of(ix);
        if self.rows.len() <= number {
            self.rows.resize(number + 1, (0, 0));
        }
        if let Some(slot) = self.rows.get_mut(number) {
            *slot = (row, stamp);
        }
    }

    /// Forgets a message, which is then missing in the table.
    pub fn forget(&mut self, ix: MsgIx) {
        let Some(row) = self.row_of(ix) else { return };
        if let Some(slot) = self.messages.get_mut(row as usize - 1) {
            *slot = MsgIx::MAX;
        }
        if let Some(slot) = self.rows.get_mut(number_of(ix)) {
            *slot = (0, 0);
        }
    }

    /// Lets the table have a message in another state than that of now, so that it is inserted anew.
    pub fn mark_changed(&mut self, ix: MsgIx) {
        if let Some((_, stamp)) = self.rows.get_mut(number_of(ix)) {
            *stamp = 0;
        }
    }

    /// Adds a row whose message is not known yet.
    pub fn add_saved(&mut self, document: SavedDocument) {
        self.reserve_row(document.row);
        self.absent.push(document);
        self.sought_among = 0;
    }

    fn reserve_row(&mut self, row: u32) {
        if self.messages.len() < row as usize {
            self.messages.resize(row as usize, MsgIx::MAX);
        }
    }

    /// Finds the messages of rows that were not known, if the index has grown.
    pub fn resolve_absent(&mut self, tables: &IndexTables) {
        let now = tables.messages.messages_so_far();
        if self.absent.is_empty() || self.sought_among == now {
            return;
        }
        self.sought_among = now;
        for document in std::mem::take(&mut self.absent) {
            match tables.messages.find_by_identity(document.identity) {
                // A message has one row. A later one is newer.
                Some(ix) if self.row_of(ix).is_none_or(|row| row < document.row) => {
                    self.insert(document.row, ix, document.stamp);
                }
                Some(_) => {}
                None => self.absent.push(document),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_row() {
        let [a, b] = [3, 0].map(MsgIx::for_test);
        let mut map = DocumentMap::default();
        map.insert(1, a, 5);
        map.insert(2, b, 7);
        assert_eq!(
            (map.message_of(1), map.message_of(2), map.message_of(3)),
            (Some(a), Some(b), None)
        );
        map.insert(3, a, 9);
        assert_eq!((map.message_of(1), map.message_of(3), map.row_of(a)), (None, Some(a), Some(3)));
        assert_eq!(map.live_rows(), 2);
        map.forget(b);
        assert_eq!((map.message_of(0), map.message_of(2), map.row_of(b)), (None, None, None));
    }
}
