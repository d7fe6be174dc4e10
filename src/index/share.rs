//! Marks of me on several machines: what was noted here, for whoever tells the others, and what they say.

use std::io;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::marks::read_part;
use super::{Changes, Entry, Index, MsgIx};
use crate::model::Mark;

impl Index {
    /// The marks of a store that were noted since the file of marks had this length, and its length now. All
    /// of them are in the file.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn marks_since(&self, number: usize, at: u64) -> io::Result<(Vec<Mark>, u64)> {
        let Some(store) = self.stores.get(number) else { return Ok((Vec::new(), at)) };
        let upto = {
            let mut marks = self.marks.lock();
            marks.write()?;
            marks.len()
        };
        if at == upto {
            return Ok((Vec::new(), at));
        }
        Ok((read_part(&self.settings.marks, store.name(), at..upto)?, upto))
    }

    /// Takes over what my other machines say of messages, also of those that are not here yet. Durable when
    /// this returns, as far as the end of this process is concerned. The length of the file of marks; `None`,
    /// and nothing is done, if it is not the one that is given.
    ///
    /// # Errors
    /// If the file cannot be written; what could not be is written with the next mark.
    pub fn hear_marks(&self, number: usize, at: u64, heard: &[Mark]) -> io::Result<Option<u64>> {
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
            let Some(said) = mark.heard else { continue };
            marks.push_heard(store.name(), mark, said);
            marked.extend(take_over(&mut core, number, mark));
        }
        drop(core);
        let written = marks.write();
        let len = marks.len();
        drop(marks);
        self.untold.store(true, Ordering::Relaxed);
        self.unsaved.store(true, Ordering::Relaxed);
        self.publish(&Changes { marked, ..Changes::default() });
        written.map(|()| Some(len))
    }
}

/// The message, if it is another now.
fn take_over(core: &mut Core, number: usize, mark: &Mark) -> Option<MsgIx> {
    match core.identity_of(number, &mark.from, &mark.id) {
        Ok(ix) => {
            // A name that was read here still opens.
            let here = core.entry(ix).is_some_and(Entry::is_read_here);
            (core.set_own(ix, mark.read, here) == Some(true)).then_some(ix)
        }
        Err(identity) => {
            core.orphan_marks.insert(identity, mark.read);
            None
        }
    }
}
