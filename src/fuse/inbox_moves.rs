//! `mv archive/DAY/X inbox/` makes X unread, and the file stays where it is.
//!
//! To the kernel, a rename that succeeded has moved the name. It would then show the archive's inode as
//! `inbox/X` for as long as it trusts the name, and reading that inode marks nothing. The name cannot be
//! invalidated either (`notify`). So the rename is answered with ESTALE once the message is unread. The kernel
//! then begins anew, in the same system call, and looks both names up again. This time `inbox/X` leads to the
//! inode of `archive/DAY/X`. A rename between two names of one file does nothing by definition: the system call
//! returns 0 and no name has moved. Only the mover gets that answer, only while it renames, and the kernel may
//! not cache it.
//!
//! `/proc/TID/syscall` says whether a thread still renames. Some systems hide it (Yama, without root). There
//! the answer is given as often as the kernel is expected to ask: once, and once more if it knows another inode
//! under the name.

use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use crate::view::Node;
use crate::view::reader::current_system_call;

/// Longest time for which an answer waits for the mover, who comes back at once.
const COMES_BACK: Duration = Duration::from_secs(2);
/// Largest number of movers at one moment; above it the oldest is forgotten.
const MANY: usize = 1024;

/// A name that is being moved to `inbox/`.
#[derive(Debug)]
struct InboxMove {
    /// The thread that renames; only its system call begins anew.
    mover: u32,
    name: String,
    /// The node to which the name leads until then.
    from: Node,
    /// Number of lookups that are still expected from the kernel.
    expected_lookups: u8,
    since: Instant,
}

/// The names that are being moved to `inbox/`.
#[derive(Debug, Default)]
pub(super) struct InboxMoves(Mutex<Vec<InboxMove>>);

impl InboxMoves {
    /// Registers a rename that is answered with ESTALE. `known` is true if the name leads to something in
    /// `inbox/`.
    pub fn begin_move(&self, mover: u32, name: &str, from: Node, known: bool) {
        let mut moves = self.0.lock();
        moves.retain(|m| m.mover != mover && m.since.elapsed() < COMES_BACK);
        if moves.len() >= MANY {
            moves.remove(0);
        }
        let (name, asks, since) = (name.to_owned(), 1 + u8::from(known), Instant::now());
        moves.push(InboxMove { mover, name, from, expected_lookups: asks, since });
    }

    /// Returns the node of a name in `inbox/` if the thread that looks it up is moving it. `renames` returns
    /// true if that thread is in a rename now, or `None` if that is invisible.
    pub fn resolve_move(
        &self,
        who: u32,
        name: &str,
        renames: impl FnOnce() -> Option<bool>,
    ) -> Option<Node> {
        let mut moves = self.0.lock();
        if moves.is_empty() {
            return None;
        }
        let at = moves.iter().position(|m| m.mover == who && m.name == name);
        let Some(at) = at else {
            // From now on the kernel knows the name, so it looks it up once more in the mover's call.
            moves.iter_mut().filter(|m| m.name == name).for_each(|m| m.expected_lookups = 2);
            return None;
        };
        let m = moves.get_mut(at)?;
        let renames = renames();
        if renames.is_none() {
            m.expected_lookups = m.expected_lookups.saturating_sub(1);
        }
        let answers = renames != Some(false) && m.since.elapsed() < COMES_BACK;
        let from = answers.then(|| m.from.clone());
        if m.expected_lookups == 0 || !answers {
            moves.remove(at);
        }
        from
    }
}

/// Returns true if a thread is in a system call that renames; `None` if that is invisible.
pub(super) fn is_renaming(tid: u32) -> Option<bool> {
    let number = current_system_call(tid)?;
    #[cfg(any(target_arch = "x86_64", target_arch = "x86", target_arch = "arm"))]
    let old = number == libc::SYS_rename;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "arm")))]
    let old = false;
    Some(old || number == libc::SYS_renameat || number == libc::SYS_renameat2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Node = Node::ROOT;

    #[test]
    fn who_renames_is_answered_as_long_as_it_does() {
        let moving = InboxMoves::default();
        moving.begin_move(1, "x", X, false);
        let answers = |who, name, renames| moving.resolve_move(who, name, || renames).is_some();
        assert!(!answers(1, "y", Some(true)) && !answers(2, "x", Some(true)));
        assert!(answers(1, "x", Some(true)) && answers(1, "x", Some(true)));
        assert!(!answers(1, "x", Some(false)) && !answers(1, "x", Some(true)));
        assert!(!is_renaming(std::process::id()).unwrap_or(false));
    }

    #[test]
    fn otherwise_as_often_as_the_kernel_asks() {
        let moving = InboxMoves::default();
        let answers = |who| moving.resolve_move(who, "x", || None).is_some();
        moving.begin_move(1, "x", X, false);
        assert_eq!([answers(1), answers(1)], [true, false]);
        moving.begin_move(1, "x", X, true);
        moving.begin_move(2, "x", Node::draft_for_test("x"), true);
        assert_eq!([answers(1), answers(2), answers(1), answers(2)], [true; 4]);
        assert_eq!([answers(1), answers(2)], [false; 2]);
        // A lookup by another thread makes the kernel ask again.
        moving.begin_move(1, "x", X, false);
        assert_eq!([answers(9), answers(1), answers(1), answers(1)], [false, true, true, false]);
        for n in 0..2 * MANY as u32 {
            moving.begin_move(n, "x", X, false);
        }
        assert_eq!(moving.0.lock().len(), MANY);
    }
}
