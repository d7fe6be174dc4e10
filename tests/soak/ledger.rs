//! The messages that were written, the marks that must be found, and the problems that were found.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::Mount;
use crate::common::dice::Dice;
use crate::people::{Kind, PEOPLE, Stores};

/// The longest time that a message may be on its way while mounts are killed, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// One message, by the token in its text.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) kind: Kind,
    /// The sender; `None` if another program wrote it.
    pub(crate) from: Option<usize>,
    pub(crate) to: usize,
    /// The time when its close or rename returned 0, and the life of the mount then. The fate of the others is unknown.
    pub(crate) accepted: Option<(Instant, u64)>,
}

/// A person's mount and the acts of that person.
#[derive(Default)]
pub(crate) struct Side {
    pub(crate) mount: Mutex<Option<Mount>>,
    /// The life of the mount, which is odd while the mount is down: failures are expected meanwhile.
    pub(crate) life: AtomicU64,
    /// Names that somebody meant to mark; `read` has those that are certainly marked.
    pub(crate) tried: Mutex<BTreeSet<String>>,
    pub(crate) read: Mutex<BTreeSet<String>>,
}

/// The number of events of each sort.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) kills: AtomicU64,
    pub(crate) ends: AtomicU64,
    pub(crate) caches: AtomicU64,
    pub(crate) rings: AtomicU64,
    pub(crate) rung: Mutex<[u64; PEOPLE.len()]>,
    pub(crate) copies: AtomicU64,
    pub(crate) backups: AtomicU64,
    pub(crate) edited: AtomicU64,
    pub(crate) replies: AtomicU64,
    pub(crate) marks: AtomicU64,
    pub(crate) looks: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) facts: AtomicU64,
}

pub(crate) struct Soak {
    pub(crate) stores: Stores,
    pub(crate) sides: [Side; PEOPLE.len()],
    pub(crate) seed: u64,
    pub(crate) counts: Counts,
    ledger: Mutex<BTreeMap<String, Sent>>,
    number: AtomicU64,
    problems: Mutex<Vec<String>>,
    stop: AtomicBool,
    start: Instant,
}

/// Locks a mutex, also if a thread has failed while it held the lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts one more.
pub(crate) fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

impl Soak {
    pub(crate) fn new(stores: Stores, seed: u64) -> Self {
        Self {
            stores,
            sides: Default::default(),
            seed,
            counts: Counts::default(),
            ledger: Mutex::default(),
            number: AtomicU64::new(0),
            problems: Mutex::default(),
            stop: AtomicBool::new(false),
            start: Instant::now(),
        }
    }

    pub(crate) fn dice(&self, which: u64) -> Dice {
        let mut dice = Dice(self.seed ^ (which + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        dice.below(2);
        dice
    }

    pub(crate) fn over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Waits, but not beyond the end.
    pub(crate) fn pause(&self, millis: u64) {
        let until = Instant::now() + Duration::from_millis(millis);
        while !self.over() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20).min(until - Instant::now()));
        }
    }

    /// Reports a problem at once, and ends the test.
    pub(crate) fn wrong(&self, what: String) {
        let after = self.start.elapsed();
        say(&format!("soak: WRONG after {after:.1?}: {what}"));
        locked(&self.problems).push(what);
        self.stop();
    }

    pub(crate) fn problems(&self) -> usize {
        locked(&self.problems).len()
    }

    /// Runs this; a panic is a problem like any other.
    pub(crate) fn guarded(&self, who: &str, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            self.wrong(format!("{who}: {text}"));
        }
    }

    pub(crate) fn life(&self, person: usize) -> u64 {
        self.sides[person].life.load(Ordering::SeqCst)
    }

    /// Returns true if the mount has been up without a break since it was in this life.
    pub(crate) fn was_up_since(&self, person: usize, life: u64) -> bool {
        life.is_multiple_of(2) && self.life(person) == life
    }

    /// Returns a new token, which is noted before anything is done with it.
    pub(crate) fn token(&self, kind: Kind, from: Option<usize>, to: usize) -> String {
        let n = self.number.fetch_add(1, Ordering::Relaxed);
        let token = format!("tok-{}-{n}-end", from.map_or("zed", |p| PEOPLE[p]));
        locked(&self.ledger).insert(token.clone(), Sent { kind, from, to, accepted: None });
        token
    }

    /// Notes that msgfs accepted the message, or that it is in the store.
    pub(crate) fn accepted(&self, token: &str, life: u64) {
        if let Some(sent) = locked(&self.ledger).get_mut(token) {
            sent.accepted = Some((Instant::now(), life));
        }
    }

    pub(crate) fn sent(&self, token: &str) -> Option<Sent> {
        locked(&self.ledger).get(token).cloned()
    }

    pub(crate) fn ledger(&self) -> BTreeMap<String, Sent> {
        locked(&self.ledger).clone()
    }
}

/// Prints a line that is seen also when the test passes.
pub(crate) fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Returns the tokens in a text, each once.
pub(crate) fn tokens(text: &str) -> BTreeSet<&str> {
    let token = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let end = rest.find("-end")? + 4;
        Some(&rest[..end])
    };
    text.match_indices("tok-").filter_map(token).collect()
}
