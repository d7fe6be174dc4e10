//! `mv` from another file system and `install` remove the file at the new name, and then make it with `O_EXCL`. The
//! answer beside a message is there at all times, so they would fail. After such a removal the name is gone for that
//! one process until it makes the file. No other process misses it.

use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use crate::view::Node;
use crate::view::reader::thread_group;

/// Time for which a name is gone; the program makes the file at once.
const GONE: Duration = Duration::from_secs(10);
/// Largest number of names at one moment; above it the oldest is there again.
const MANY: usize = 64;

/// The answers that were removed, with the process that removed each.
#[derive(Debug, Default)]
pub(super) struct RemovedReplies(Mutex<Vec<(u32, Node, Instant)>>);

impl RemovedReplies {
    /// Records that a process removed an answer.
    pub fn record_removed(&self, by: u32, answer: &Node) {
        if by == 0 {
            return;
        }
        self.forget(by, answer);
        let mut all = self.0.lock();
        if all.len() >= MANY {
            all.remove(0);
        }
        all.push((by, answer.clone(), Instant::now()));
    }

    /// Forgets that a process removed an answer, because it makes it again.
    pub fn forget(&self, by: u32, answer: &Node) {
        self.0.lock().retain(|(process, node, since)| {
            (*process, node) != (by, answer) && since.elapsed() < GONE
        });
    }

    /// Returns true if the process of a thread has removed an answer and not made it again.
    pub fn is_gone(&self, thread: u32, answer: &Node) -> bool {
        let is_removed =
            |(_, node, since): &&(u32, Node, Instant)| node == answer && since.elapsed() < GONE;
        let by: Vec<u32> = self.0.lock().iter().filter(is_removed).map(|(by, ..)| *by).collect();
        !by.is_empty() && thread_group(thread).is_some_and(|process| by.contains(&process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_gone_only_for_who_removed_it() {
        let (names, answer) = (RemovedReplies::default(), Node::draft_for_test("bob"));
        let (me, other) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(!names.is_gone(me, &answer));
        names.record_removed(me, &answer);
        assert!(names.is_gone(me, &answer) && !names.is_gone(other, &answer));
        assert!(!names.is_gone(me, &Node::draft_for_test("carol")));
        names.forget(other, &answer);
        assert!(names.is_gone(me, &answer));
        names.forget(me, &answer);
        assert!(!names.is_gone(me, &answer));
        for n in 0..2 * MANY as u32 {
            names.record_removed(n + 1, &answer);
        }
        assert_eq!(names.0.lock().len(), MANY);
    }
}
