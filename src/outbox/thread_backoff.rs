//! Threads of stores that another program keeps locked, and the times at which they are tried again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::spool::SpoolParcel;
use crate::store::StoreProperties;

/// The first pause after a thread was found locked. Each further pause is twice as long, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// A thread that was found locked.
#[derive(Debug)]
struct ThreadPause {
    due: Instant,
    length: Duration,
    why: String,
}

/// The threads that were found locked, by store and id. A new message for such a thread waits behind the others, so
/// that the thread gets its messages in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct ThreadBackoff(HashMap<BackoffKey, ThreadPause>);

/// The store and the id of a thread, or of a message where threads are not locked.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct BackoffKey(String, String);

impl BackoffKey {
    /// Returns the key of a message that goes to this store.
    pub fn new(parcel: &SpoolParcel, store: &StoreProperties) -> Self {
        let SpoolParcel { store: name, message, .. } = parcel;
        let id = if store.locks_threads { &message.thread } else { &message.id };
        Self(name.clone(), id.clone())
    }
}

impl ThreadBackoff {
    /// Returns the time of the next attempt and the reason, if a thread must not be tried `now`. All messages that wait
    /// for one thread get the same time, so that they stay in their order.
    pub fn paused_until(&self, thread: &BackoffKey, now: Instant) -> Option<(Instant, &str)> {
        let pause = self.0.get(thread).filter(|p| p.due > now)?;
        Some((pause.due, &pause.why))
    }

    /// Notes that a thread was found locked, and returns the time of the next attempt.
    pub fn note_locked(&mut self, thread: BackoffKey, now: Instant, why: &str) -> Instant {
        let before = self.0.remove(&thread);
        let length = before.map_or(FIRST, |p| (p.length * 2).min(LONGEST));
        let due = now + length;
        self.0.insert(thread, ThreadPause { due, length, why: why.to_owned() });
        due
    }

    /// Notes that a thread is no longer locked.
    pub fn clear_pause(&mut self, thread: &BackoffKey) {
        self.0.remove(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(store: &str, thread: &str) -> BackoffKey {
        BackoffKey(store.into(), thread.into())
    }

    #[test]
    fn pauses_grow_and_are_those_of_one_thread() {
        let (mut busy, now) = (ThreadBackoff::default(), Instant::now());
        let t = key("atsf", "t");
        let lock = |busy: &mut ThreadBackoff| busy.note_locked(key("atsf", "t"), now, "locked");
        let millis: Vec<u128> = (0..7).map(|_| (lock(&mut busy) - now).as_millis()).collect();
        assert_eq!(millis, [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(busy.paused_until(&t, now), Some((now + LONGEST, "locked")));
        assert_eq!(busy.paused_until(&t, now + LONGEST), None);
        assert_eq!(busy.paused_until(&key("atsf", "u"), now), None);
        assert_eq!(busy.paused_until(&key("other", "t"), now), None);
        busy.clear_pause(&t);
        assert_eq!(busy.paused_until(&t, now), None);
        assert_eq!(lock(&mut busy), now + FIRST);
    }
}
