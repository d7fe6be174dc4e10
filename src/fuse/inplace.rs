//! `rsync --inplace` writes a draft under its own name and sets times and mode by that name when it has
//! closed it. By then the draft is sent and its name is gone, and rsync fails. So the name leads that one
//! process, and only if it is rsync, to the empty draft still; nobody else sees it, and no folder
//! lists it.

use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use crate::view::Node;
use crate::view::reader::program_of;

/// How long a name is remembered: a large file takes its time.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Names at one moment; the oldest is forgotten above.
const MANY: usize = 64;

/// The drafts that rsync has opened, by process.
#[derive(Debug, Default)]
pub(super) struct InPlace(Mutex<Vec<(u32, Node, Instant)>>);

impl InPlace {
    /// A process opened a draft for writing.
    pub fn opened(&self, by: u32, node: &Node) {
        let draft = matches!(node, Node::Draft(_) | Node::ThreadDraft(..));
        if !draft || program_of(by).as_deref() != Some("rsync") {
            return;
        }
        let mut all = self.0.lock();
        all.retain(|(_, of, since)| of != node && since.elapsed() < REMEMBERED);
        if all.len() >= MANY {
            all.remove(0);
        }
        all.push((by, node.clone(), Instant::now()));
    }

    /// The draft of a name that is gone, for the process that wrote it.
    pub fn find(&self, by: impl FnOnce() -> u32, parent: &Node, name: &str) -> Option<Node> {
        let node = match parent {
            Node::Outbox => Node::Draft(name.to_owned()),
            Node::Thread(thread) => Node::ThreadDraft(*thread, name.to_owned()),
            _ => return None,
        };
        let all = self.0.lock();
        let (writer, ..) = all.iter().find(|(_, of, _)| *of == node)?;
        (*writer == by()).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rsync_finds_its_draft_again() {
        let (names, draft) = (InPlace::default(), Node::Draft("bob".into()));
        names.opened(std::process::id(), &draft);
        assert_eq!(names.find(std::process::id, &Node::Outbox, "bob"), None);
        for n in 0..2 * MANY as u32 {
            names.0.lock().push((n, draft.clone(), Instant::now()));
        }
        assert_eq!(names.find(|| 0, &Node::Outbox, "bob"), Some(draft));
        assert_eq!(names.find(|| 1, &Node::Outbox, "bob"), None);
        assert_eq!(names.find(|| 0, &Node::Inbox, "bob"), None);
    }
}
