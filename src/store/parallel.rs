//! Work on many items at once, on all cores.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use crate::model::locks::{Condvar, LockLevel, Mutex};

/// The number of items for which a thread is worth its start.
const LEAST: usize = 16;

/// The number of cores. It is read once, because that takes a while: the limits of a container are in files.
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Returns the results of `f` for all items, in their order.
pub fn map<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    map_with(items, || (), |(), item| f(item))
}

/// Returns the same with a value that each thread makes for itself.
pub fn map_with<'a, T: Sync, W, R: Send>(
    items: &'a [T],
    make: impl Fn() -> W + Sync,
    f: impl Fn(&mut W, &'a T) -> R + Sync,
) -> Vec<R> {
    let threads = (items.len() / LEAST).min(*CORES);
    let do_all = |share: &'a [T]| {
        let mut with = make();
        share.iter().map(|item| f(&mut with, item)).collect::<Vec<R>>()
    };
    if threads < 2 {
        return do_all(items);
    }
    let do_all = &do_all;
    let mut shares = items.chunks(items.len().div_ceil(threads));
    let own = shares.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares.map(|share| scope.spawn(move || do_all(share))).collect();
        let mut done = do_all(own);
        for other in others {
            done.extend(join_thread(other));
        }
        done
    })
}

/// Returns the result of a thread. Its panic goes on here.
fn join_thread<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Works on pieces as they come, on all cores if there are `many`, else on this one.
///
/// `next` returns one piece after the other, and may keep data of the piece in the buffer. `own` is the buffer of this
/// thread. `work` first does what needs no other piece. Then it takes its [`OrderedTurn`], in which it changes `all`
/// in the order of the pieces. So one thread has a turn while the others work on later pieces, and nothing is handed
/// from thread to thread. Every turn must be taken.
pub fn process_in_order<B: Default, P, S: Send>(
    many: bool,
    own: &mut B,
    all: S,
    next: impl FnMut(&mut B) -> Option<P> + Send,
    work: impl Fn(&mut B, P, OrderedTurn<'_, S>) + Sync,
) {
    let source = Mutex::new((0u64, next));
    let turns = TurnQueue {
        now: Mutex::with_level(LockLevel::Turn, (0, all)),
        next: Condvar::default(),
        broken: AtomicBool::new(false),
    };
    let (source, turns, work) = (&source, &turns, &work);
    let run = move |buffer: &mut B| {
        loop {
            let (number, piece) = {
                let mut source = source.lock();
                let (number, next) = &mut *source;
                let Some(piece) = next(buffer) else { return };
                *number += 1;
                (*number - 1, piece)
            };
            work(buffer, piece, OrderedTurn { turns, number });
            if turns.broken.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    if !many || *CORES < 2 {
        return run(own);
    }
    std::thread::scope(|scope| {
        // This thread works, too. The system runs a new thread before the one that started it, on the same core, and
        // that delays the start of the next thread.
        let others: Vec<_> =
            (1..*CORES).map(|_| scope.spawn(move || run(&mut B::default()))).collect();
        run(own);
        others.into_iter().for_each(join_thread);
    });
}

/// The queue of turns, and the value that turns change.
struct TurnQueue<S> {
    /// The number of the present turn, and the value.
    now: Mutex<(u64, S)>,
    next: Condvar,
    /// Set when a thread panicked: no turn comes any more.
    broken: AtomicBool,
}

/// The turn of one piece: see [`process_in_order`].
pub struct OrderedTurn<'a, S> {
    turns: &'a TurnQueue<S>,
    number: u64,
}

impl<S> OrderedTurn<'_, S> {
    /// Waits until all pieces before this one had their turn, and calls `f`. It does not call it if one of them
    /// panicked.
    pub fn run_in_turn(self, f: impl FnOnce(&mut S)) {
        let broken = || self.turns.broken.load(Ordering::Relaxed);
        let mut now = self.turns.now.lock();
        while now.0 != self.number && !broken() {
            self.turns.next.wait(&mut now);
        }
        if !broken() {
            f(&mut now.1);
            now.0 += 1;
        }
        drop(now);
        self.turns.next.notify_all();
    }
}

impl<S> Drop for OrderedTurn<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The lock is held so that no thread begins to wait without seeing the flag.
            let _now = self.turns.now.lock();
            self.turns.broken.store(true, Ordering::Relaxed);
            self.turns.next.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_and_in_order() {
        for count in [0, 1, 31, 32, 33, 1000] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map(&items, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let items: Vec<usize> = (0..100).collect();
        assert!(std::panic::catch_unwind(|| map(&items, |n| assert!(*n != 77))).is_err());
    }

    /// Returns the results of `process_in_order` for so many pieces.
    fn sums(many: bool, count: u64, work: impl Fn(u64) + Sync) -> Vec<u64> {
        let (mut out, mut given) = (Vec::new(), 0);
        let next = |buffer: &mut u64| {
            *buffer = given;
            given += 1;
            (given <= count).then_some(given - 1)
        };
        process_in_order(many, &mut 0, &mut out, next, |buffer, piece, turn| {
            assert_eq!(*buffer, piece);
            work(piece);
            turn.run_in_turn(|out| out.push(piece));
        });
        out
    }

    #[test]
    fn turns_come_in_order_whoever_is_slow() {
        for many in [false, true] {
            for count in [0, 1, 2, 100] {
                let slow = |piece: u64| {
                    std::thread::sleep(std::time::Duration::from_micros(piece * 7919 % 300));
                };
                assert_eq!(sums(many, count, slow), (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_panic_ends_all_turns() {
        for many in [false, true] {
            let broken = || sums(many, 100, |piece| assert!(piece != 7));
            assert!(std::panic::catch_unwind(broken).is_err());
        }
    }
}
