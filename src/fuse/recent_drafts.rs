//! `install` and Python's `shutil.copy` write a draft, close it, and then set mode or times by its name; `rsync
//! --inplace` also looks the name up. By then the draft is sent and its name is gone, and they would fail. So
//! the name still leads that one process to the empty draft: rsync always, other programs while they are in a
//! system call that sets modes, owners or times. No other process sees it, and no folder lists it.

use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use crate::view::Node;
use crate::view::reader::{current_system_call, program_name, thread_group};

/// Time for which a name is remembered; a large file takes long.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Largest number of names at one moment; above it the oldest is forgotten.
const MANY: usize = 64;

/// System calls that set the attributes of a file by its name.
const SETTING: &[libc::c_long] = &[
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    // fchmodat2, which not every libc knows; its number is the same everywhere.
    452,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// The drafts that were opened, with the process that opened each.
#[derive(Debug, Default)]
pub(super) struct RecentDrafts(Mutex<Vec<(u32, Node, Instant)>>);

impl RecentDrafts {
    /// Records that a process opened a draft for writing.
    pub fn record_opened(&self, by: u32, node: &Node) {
        if by == 0 {
            return;
        }
        let mut all = self.0.lock();
        all.retain(|(_, of, since)| of != node && since.elapsed() < REMEMBERED);
        if all.len() >= MANY {
            all.remove(0);
        }
        all.push((by, node.clone(), Instant::now()));
    }

    /// Returns true if a thread of the process that wrote a draft now sets its attributes by its name.
    pub fn is_finishing(&self, thread: u32, draft: &Node) -> bool {
        let writer = self.0.lock().iter().find(|(_, of, _)| of == draft).map(|(by, ..)| *by);
        writer.is_some_and(|writer| {
            thread_group(thread) == Some(writer) && is_setting_attrs(writer, thread)
        })
    }
}

/// Returns true if a thread that looks up its own draft is setting attributes, and not checking that the name
/// exists. If the system call is invisible, only rsync and install count.
fn is_setting_attrs(process: u32, thread: u32) -> bool {
    let program = program_name(process);
    match (program.as_deref(), current_system_call(thread)) {
        (Some("rsync"), _) | (Some("install"), None) => true,
        (_, call) => call.is_some_and(|number| SETTING.contains(&number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_looks_does_not_find_its_draft_again() {
        let (names, draft, me) =
            (RecentDrafts::default(), Node::draft_for_test("bob"), std::process::id());
        names.record_opened(me, &draft);
        assert!(!names.is_finishing(me, &draft));
        for n in 0..2 * MANY as u32 {
            names.record_opened(n + 1, &Node::draft_for_test(&n.to_string()));
        }
        assert_eq!(names.0.lock().len(), MANY);
    }
}
