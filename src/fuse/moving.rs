//! `mv archive/DAY/X inbox/` makes X unread, and the file stays where it is.
//!
//! To the kernel a rename that succeeded has moved the name: it would show the archive's inode as
//! `inbox/X` for as long as it trusts the name, and reading that marks nothing. Taking a name back is
//! no way out (`notify`). So the rename is answered with ESTALE once the message is unread. The kernel
//! then begins anew, in the same system call, and asks for both names again. This time `inbox/X` is
//! said to be the inode of `archive/DAY/X`. A rename of a file to another name of the same file does
//! nothing by definition: the system call returns 0 and no name has moved. That answer is given to the
//! mover alone, as often as the kernel asks in this call, and holds for no time at all.

use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use crate::view::Node;

/// How long an answer waits for the mover, who comes back at once.
const COMES_BACK: Duration = Duration::from_secs(2);
/// Movers at one moment; the oldest is forgotten above.
const MANY: usize = 1024;

/// A name on its way to `inbox/`.
#[derive(Debug)]
struct Move {
    /// The thread that renames; only its system call begins anew.
    mover: u32,
    name: String,
    /// What the name leads to until then.
    from: Node,
    /// How often the kernel asks: once more if it knows another inode under the name.
    asks: u8,
    asked: bool,
    since: Instant,
}

/// The names on their way to `inbox/`.
#[derive(Debug, Default)]
pub(super) struct Moving(Mutex<Vec<Move>>);

impl Moving {
    /// A rename is answered with ESTALE. `known`: the name leads to something in `inbox/`.
    pub fn begin(&self, mover: u32, name: &str, from: Node, known: bool) {
        let mut moves = self.0.lock();
        let same = moves.iter().position(|m| m.mover == mover);
        // The kernel begins anew only once: it has been here before, and gives up after this answer.
        let gives_up = same.is_some_and(|at| {
            let before = moves.remove(at);
            before.asked && before.name == name && before.since.elapsed() < COMES_BACK
        });
        if gives_up {
            return;
        }
        if moves.len() >= MANY {
            moves.remove(0);
        }
        let (name, asks, since) = (name.to_owned(), 1 + u8::from(known), Instant::now());
        moves.push(Move { mover, name, from, asks, asked: false, since });
    }

    /// What a name in `inbox/` leads to for the thread that looks it up, if it is moving it.
    pub fn answer(&self, who: u32, name: &str) -> Option<Node> {
        let mut moves = self.0.lock();
        if moves.is_empty() {
            return None;
        }
        moves.retain(|m| m.since.elapsed() < COMES_BACK);
        let at = moves.iter().position(|m| m.mover == who && m.name == name);
        let Some(at) = at else {
            // From now on the kernel knows the name, and asks the mover's call once more.
            let others = moves.iter_mut().filter(|m| m.name == name && !m.asked);
            others.for_each(|m| m.asks = 2);
            return None;
        };
        let m = moves.get_mut(at)?;
        (m.asks, m.asked) = (m.asks.saturating_sub(1), true);
        let from = m.from.clone();
        if m.asks == 0 {
            moves.remove(at);
        }
        Some(from)
    }

    /// `inbox/` is listed, which tells the kernel its names.
    pub fn listed(&self) {
        self.0.lock().iter_mut().filter(|m| !m.asked).for_each(|m| m.asks = 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Node = Node::Readme;

    #[test]
    fn only_the_mover_is_answered_and_as_often_as_the_kernel_asks() {
        let moving = Moving::default();
        moving.begin(1, "x", X, false);
        assert_eq!(moving.answer(1, "y"), None);
        assert_eq!(moving.answer(1, "x"), Some(X));
        assert_eq!(moving.answer(1, "x"), None);
        moving.begin(1, "x", X, true);
        moving.begin(2, "x", Node::Status, true);
        assert_eq!(moving.answer(3, "x"), None);
        assert_eq!([1, 2, 1, 2].map(|who| moving.answer(who, "x")).map(|n| n.is_some()), [true; 4]);
        assert_eq!([1, 2].map(|who| moving.answer(who, "x")), [None, None]);
    }

    #[test]
    fn who_looks_meanwhile_makes_the_kernel_ask_again() {
        let moving = Moving::default();
        for look in [|m: &Moving| drop(m.answer(9, "x")), Moving::listed] {
            moving.begin(1, "x", X, false);
            look(&moving);
            assert_eq!([(); 3].map(|()| moving.answer(1, "x").is_some()), [true, true, false]);
        }
    }

    #[test]
    fn a_move_that_comes_again_leaves_no_answer_behind() {
        let moving = Moving::default();
        moving.begin(1, "x", X, true);
        assert!(moving.answer(1, "x").is_some());
        moving.begin(1, "x", X, true);
        assert_eq!(moving.answer(1, "x"), None);
        for n in 0..2 * MANY as u32 {
            moving.begin(n, "x", X, false);
        }
        assert_eq!(moving.0.lock().len(), MANY);
    }
}
