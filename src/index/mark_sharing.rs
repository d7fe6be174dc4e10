//! My marks on several machines: export of the marks made here, and import of theirs.

use std::io;
use std::sync::atomic::Ordering;

use super::marks::read_marks_in;
use super::tables::IndexTables;
use super::{Index, IndexChanges, IndexEntry, MsgIx};
use crate::model::Mark;

impl Index {
    /// Returns the marks of a store that were recorded since the file of marks had this length, and its length
    /// now. It writes pending marks to the file first.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn read_marks_since(&self, number: usize, at: u64) -> io::Result<(Vec<Mark>, u64)> {
        let Some(store) = self.stores.get(number) else { return Ok((Vec::new(), at)) };
        let upto = {
            let mut marks = self.marks.lock();
            marks.write()?;
            marks.len()
        };
        if at == upto {
            return Ok((Vec::new(), at));
        }
        Ok((read_marks_in(&self.settings.marks, store.name(), at..upto)?, upto))
    }

    /// Imports the marks of my other machines, also for messages that are not here yet. When this returns, they
    /// survive the end of this process. Returns the length of the file of marks. If that is not `at`, it does
    /// nothing and returns `None`.
    ///
    /// # Errors
    /// If the file cannot be written. The rest is then written with the next mark.
    pub fn import_marks(&self, number: usize, at: u64, heard: &[Mark]) -> io::Result<Option<u64>> {
        let Some(store) = self.stores.get(number) else { return Ok(Some(at)) };
        if self.settings.read_only {
            return Ok(Some(at));
        }
        let mut marks = self.marks.lock();
        marks.write()?;
        if marks.len() != at {
            return Ok(None);
        }
        let mut marked = Vec::new();
        let mut core = self.core.write();
        for mark in heard {
            marks.push_mark(store.name(), mark);
            marked.extend(apply_heard_mark(&mut core, number, mark));
        }
        drop(core);
        let written = marks.write();
        let len = marks.len();
        drop(marks);
        self.has_untold_marks.store(true, Ordering::Relaxed);
        self.unsaved.store(true, Ordering::Relaxed);
        self.publish_changes(&IndexChanges { marked, ..IndexChanges::default() });
        written.map(|()| Some(len))
    }
}

/// Applies the mark of another machine. Returns the message if its mark changed.
fn apply_heard_mark(core: &mut IndexTables, number: usize, mark: &Mark) -> Option<MsgIx> {
    match core.resolve_identity(number, &mark.from, &mark.id) {
        Ok(ix) => {
            // The name of a message that was read here still opens.
            let here = core.entry(ix).is_some_and(IndexEntry::is_read_here);
            (core.set_own_mark(ix, mark.read, here) == Some(true)).then_some(ix)
        }
        Err(identity) => {
            core.store_orphan_mark(identity, mark.read);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bed, at, entry, message};
    use super::*;
    use crate::model::{MachineId, MarkOrigin};

    fn heard(id: &str, read: bool) -> Mark {
        let origin = MarkOrigin::Heard(MachineId(7), if read { 1 } else { 2 });
        Mark { from: "foo".into(), id: id.into(), read, origin }
    }

    #[test]
    fn what_is_heard_is_noted_behind_all_that_was_noted_here() {
        let bed = Bed::new();
        bed.put(1, message("foo", "a", 5));
        bed.put(2, message("foo", "b", 6));
        let index = bed.open();
        let (_, at_first) = index.read_marks_since(0, 0).unwrap();
        index.mark_message(at(&index, "a"), true, true).unwrap();
        assert_eq!(index.import_marks(0, at_first, &[heard("b", true)]).unwrap(), None);
        assert!(!entry(&index, "b").is_read());
        let (marks, len) = index.read_marks_since(0, at_first).unwrap();
        let (from, id) = ("foo".to_owned(), "a".to_owned());
        assert_eq!(marks, [Mark { from, id, read: true, origin: MarkOrigin::Here }]);
        let all = [heard("a", false), heard("b", true), heard("c", true), heard("d", true)];
        let len = index.import_marks(0, len, &all).unwrap().unwrap();
        assert_eq!(index.read_marks_since(0, len).unwrap(), (Vec::new(), len));
        assert!(!entry(&index, "a").is_read() && entry(&index, "b").is_read());
        // A message that arrives later is read already, in this process and in the next.
        bed.put(3, message("foo", "c", 7));
        index.refresh_store(0, false).unwrap();
        assert!(entry(&index, "c").is_read());
        assert_eq!(index.read().unread_count(), 1);
        drop(index);
        bed.put(4, message("foo", "d", 8));
        let index = bed.open();
        let read = ["a", "b", "c", "d"].map(|id| entry(&index, id).is_read());
        assert_eq!(read, [false, true, true, true]);
        assert_eq!(index.read_marks_since(0, 0).unwrap().0.len(), 5);
    }
}
