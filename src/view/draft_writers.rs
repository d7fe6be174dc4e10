//! The processes that write a draft. If a signal ended such a process, its text may be incomplete, and it is
//! not sent (docs/SEMANTICS.md, S181).

use super::reader::{parent_pid, thread_group};
use crate::model::locks::Mutex;

/// Largest number of ancestors that are followed; a shell script has a few levels.
const DEEPEST: usize = 32;

/// The processes whose death leaves a draft unfinished: the opener, the last writer, and the processes between
/// them. Those started the writer and may have been about to start another.
#[derive(Debug)]
pub struct DraftWriters {
    opener: u32,
    last: Mutex<LastWriter>,
}

#[derive(Debug, Default)]
struct LastWriter {
    thread: u32,
    ancestors: Vec<u32>,
}

/// Returns true if the closing process is the opener. An unknown process counts as the opener.
pub(super) fn is_opener(opener: u32, by: u32) -> bool {
    opener == by || opener == 0 || by == 0
}

impl DraftWriters {
    /// Makes the record of a draft that a process opens; `opener` is 0 if the process is unknown.
    pub(super) fn new(opener: u32) -> Self {
        Self { opener, last: Mutex::default() }
    }

    /// Returns true if a process opened the draft.
    pub(super) fn is_opened_by(&self, process: u32) -> bool {
        is_opener(self.opener, process)
    }

    /// Notes that a thread writes.
    pub(super) fn note_write(&self, thread: u32) {
        let mut last = self.last.lock();
        // Nearly always the thread is that of the opener, or the previous writer, and nothing has to be looked up.
        if thread == 0 || thread == last.thread {
            return;
        }
        let family =
            if thread == self.opener { vec![thread] } else { self.collect_ancestors(thread) };
        *last = LastWriter { thread, ancestors: family };
    }

    /// Returns a process and its ancestors, up to the opener.
    fn collect_ancestors(&self, thread: u32) -> Vec<u32> {
        let known = |pid: &u32| *pid > 1;
        let up =
            |pid: &u32| if *pid == self.opener { None } else { parent_pid(*pid).filter(known) };
        std::iter::successors(thread_group(thread), up).take(DEEPEST).collect()
    }

    /// Returns true if the death of a process leaves the draft unfinished.
    pub(super) fn is_writer(&self, process: u32) -> bool {
        process != 0 && (process == self.opener || self.last.lock().ancestors.contains(&process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_and_those_who_started_it_are_needed() {
        let me = std::process::id();
        let parent = parent_pid(me).unwrap();
        let writers = DraftWriters::new(parent);
        assert!(writers.is_writer(parent) && !writers.is_writer(me) && !writers.is_writer(0));
        writers.note_write(me);
        assert!(writers.is_writer(parent) && writers.is_writer(me) && !writers.is_writer(1));
        let elsewhere = DraftWriters::new(0);
        elsewhere.note_write(0);
        assert!(!elsewhere.is_writer(0) && elsewhere.is_opened_by(me));
    }
}
