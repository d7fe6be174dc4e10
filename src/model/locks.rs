//! Locks that know their level in the one order in which locks are taken.
//!
//! A thread that waits for a lock it holds hangs for ever. So do two threads that take two locks in different
//! order, and only under load. So every lock has a [`LockLevel`]. In builds with debug assertions (all tests),
//! taking a lock panics at once if this thread already holds it or holds one of a later level. Most locks are a
//! [`LockLevel::Leaf`]: a thread that holds one takes no other lock. Several locks of another level are taken in
//! the order of their addresses, for example the locks of a list. In release builds these are the locks of
//! `parking_lot`, with one unused byte.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Instant;

/// The order in which locks are taken, from first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockLevel {
    /// One open file of the tree: its text, or what it shows.
    File,
    /// The composing folders.
    Composing,
    /// One draft of the outbox.
    Draft,
    /// The ids reserved for drafts.
    Reserved,
    /// The saved drafts.
    SavedDrafts,
    /// The index of search. The thread that holds it reads messages.
    Searching,
    /// The scan of a store by the index.
    Scanning,
    /// The file of marks.
    Marks,
    /// An operation that a store does once at a time: scan, append, deliver.
    Store,
    /// A step of a scan that must keep the order of reading. A thread that waits for its turn may hold locks of
    /// earlier levels: the turns before it belong to threads that the scan started, and those take only later
    /// locks.
    Turn,
    /// A store's knowledge of its surroundings.
    Surroundings,
    /// The tree's cache of one generation of the index.
    ViewCache,
    /// The tables of the index.
    IndexTables,
    /// The tables of a store.
    Table,
    /// The writes of the spool, or of a link, to the disk.
    Spool,
    /// A lock under which only locks of later levels are taken.
    Leaf,
    /// The cache of decoded keys.
    Decoded,
    /// The folders from which temporary files were already removed.
    Swept,
    /// The table of mounts.
    Mounts,
    /// The plan of a restart. Any read of the index may need it, under any lock.
    Restart,
}

/// A lock of `parking_lot` with a level.
#[derive(Default)]
pub struct Lock<L: ?Sized> {
    tracker: LockTracker,
    inner: L,
}

/// The guard of a lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockGuard<G> {
    inner: G,
    held: HeldLock,
}

/// `parking_lot::Mutex` with a level.
pub type Mutex<T> = Lock<parking_lot::Mutex<T>>;
/// The guard that [`Mutex::lock`] returns.
pub type MutexGuard<'a, T> = LockGuard<parking_lot::MutexGuard<'a, T>>;
/// `parking_lot::RwLock` with a level.
pub type RwLock<T> = Lock<parking_lot::RwLock<T>>;
/// The guard that [`RwLock::read`] returns.
pub type RwLockReadGuard<'a, T> = LockGuard<parking_lot::RwLockReadGuard<'a, T>>;
/// The guard that [`RwLock::write`] returns.
pub type RwLockWriteGuard<'a, T> = LockGuard<parking_lot::RwLockWriteGuard<'a, T>>;

/// A `parking_lot::Condvar`. A waiting thread holds no other lock, unless it waits with a [`LockLevel::Turn`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl<T> Mutex<T> {
    /// Creates a lock under which no other lock is taken.
    pub fn new(value: T) -> Self {
        Self::with_level(LockLevel::Leaf, value)
    }

    /// Creates a lock of a level.
    pub fn with_level(level: LockLevel, value: T) -> Self {
        Self { tracker: LockTracker(level), inner: parking_lot::Mutex::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and returns its guard.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.tracker.acquire();
        LockGuard { inner: self.inner.lock(), held }
    }

    /// Returns the guard if the lock is free. It never waits, so any level is allowed.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(LockGuard { inner, held: self.tracker.record_held() })
    }
}

impl<T> RwLock<T> {
    /// Creates a lock under which no other lock is taken.
    pub fn new(value: T) -> Self {
        Self::with_level(LockLevel::Leaf, value)
    }

    /// Creates a lock of a level.
    pub fn with_level(level: LockLevel, value: T) -> Self {
        Self { tracker: LockTracker(level), inner: parking_lot::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for the lock, for reading. One thread must not hold it twice: a writer may wait in between.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tracker.acquire();
        LockGuard { inner: self.inner.read(), held }
    }

    /// Waits for the lock, for writing.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tracker.acquire();
        LockGuard { inner: self.inner.write(), held }
    }
}

impl Condvar {
    /// Waits until it is notified. The lock is free meanwhile.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        assert_alone(&guard.held);
        self.0.wait(&mut guard.inner);
    }

    /// Waits until it is notified or the deadline passes. Returns true if the deadline passed first.
    #[track_caller]
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> bool {
        assert_alone(&guard.held);
        self.0.wait_until(&mut guard.inner, deadline).timed_out()
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl<L: ?Sized + fmt::Debug> fmt::Debug for Lock<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<G: Deref> Deref for LockGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for LockGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

thread_local! {
    /// The locks of this thread: level, address, and the place in the code that took each.
    static HELD: RefCell<Vec<(LockLevel, usize, &'static Location<'static>)>> =
        const { RefCell::new(Vec::new()) };
}

/// The level of a lock.
struct LockTracker(LockLevel);

impl Default for LockTracker {
    fn default() -> Self {
        Self(LockLevel::Leaf)
    }
}

/// A record that this thread holds the lock at an address.
#[derive(Debug)]
struct HeldLock(usize);

impl LockTracker {
    /// Panics if the lock is out of order, and records it as held.
    #[track_caller]
    fn acquire(&self) -> HeldLock {
        let (level, address) = (self.0, std::ptr::from_ref(self) as usize);
        let early = |(other, at, _): &&(LockLevel, usize, _)| {
            *other > level || *other == level && (level == LockLevel::Leaf || *at >= address)
        };
        if cfg!(debug_assertions) && !std::thread::panicking() {
            HELD.with_borrow(|held| {
                if let Some((other, at, site)) = held.iter().find(early) {
                    let same = if *at == address { "the same lock" } else { "another" };
                    panic!("locks out of order: {level:?} while {same} ({other:?}) is held since {site}");
                }
            });
        }
        self.record_held()
    }

    #[track_caller]
    fn record_held(&self) -> HeldLock {
        let (address, site) = (std::ptr::from_ref(self) as usize, Location::caller());
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| held.push((self.0, address, site)));
        }
        HeldLock(address)
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let _ = HELD.try_with(|held| held.borrow_mut().retain(|(_, at, _)| *at != self.0));
        }
    }
}

/// Panics if this thread holds a lock besides the one it waits with, unless that one is a turn.
#[track_caller]
fn assert_alone(with: &HeldLock) {
    if cfg!(debug_assertions) {
        HELD.with_borrow(|held| {
            let turn = held.iter().any(|(level, at, _)| *at == with.0 && *level == LockLevel::Turn);
            assert!(held.len() <= 1 || turn, "waiting while other locks are held: {held:?}");
        });
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn panics(what: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(what)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn what_could_hang_panics() {
        let tables = RwLock::with_level(LockLevel::IndexTables, 1);
        let (leaf, other) = (Mutex::new(2), Mutex::<u8>::default());
        let both = {
            let (one, two) = (tables.read(), leaf.lock());
            *one + *two
        };
        assert_eq!(both, 3);
        // Reading twice hangs if a writer waits in between.
        assert!(
            panics(|| drop((tables.read(), tables.read()))).contains("the same lock (IndexTables)")
        );
        assert!(
            panics(|| drop((leaf.lock(), tables.write())))
                .contains("IndexTables while another (Leaf)")
        );
        assert!(panics(|| drop((leaf.lock(), other.lock()))).contains("Leaf while another"));
        // After a panic no lock is held.
        drop((tables.write(), other.lock()));
    }

    #[test]
    fn a_list_is_locked_in_its_order() {
        let list = [
            Mutex::with_level(LockLevel::Scanning, ()),
            Mutex::with_level(LockLevel::Scanning, ()),
        ];
        let all: Vec<_> = list.iter().map(Mutex::lock).collect();
        drop(all);
        assert!(panics(|| drop((list[1].lock(), list[0].lock()))).contains("Scanning"));
        let tables = RwLock::with_level(LockLevel::IndexTables, ());
        let waits = || {
            let _tables = tables.read();
            Condvar::default().wait_until(&mut Mutex::new(()).lock(), Instant::now());
        };
        assert!(panics(waits).contains("waiting while"));
        let (before, turn) =
            (Mutex::with_level(LockLevel::Store, ()), Mutex::with_level(LockLevel::Turn, ()));
        let _before = before.lock();
        assert!(Condvar::default().wait_until(&mut turn.lock(), Instant::now()));
    }
}
