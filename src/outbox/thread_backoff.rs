//! Threads of stores that another program keeps locked, and the times at which they are tried again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::spool::SpoolParcel;

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
pub(super) struct ThreadBackoff(HashMap<(String, String), ThreadPause>);

fn thread_key(parcel: &SpoolParcel) -> (String, String) {
    (parcel.store.clone(), parcel.message.thread.clone())
}

impl ThreadBackoff {
    /// Returns the time of the next attempt and the reason, if the parcel's thread must not be tried `now`. All
    /// messages that wait for one thread get the same time, so that they stay in their order.
    pub fn paused_until(&self, parcel: &SpoolParcel, now: Instant) -> Option<(Instant, &str)> {
        if self.0.is_empty() {
            return None;
        }
        let pause = self.0.get(&thread_key(parcel)).filter(|p| p.due > now)?;
        Some((pause.due, &pause.why))
    }

    /// Notes that the parcel's thread was found locked, and returns the time of the next attempt.
    pub fn note_locked(&mut self, parcel: &SpoolParcel, now: Instant, why: &str) -> Instant {
        let before = self.0.remove(&thread_key(parcel));
        let length = before.map_or(FIRST, |p| (p.length * 2).min(LONGEST));
        let due = now + length;
        self.0.insert(thread_key(parcel), ThreadPause { due, length, why: why.to_owned() });
        due
    }

    /// Notes that the parcel's thread is no longer locked.
    pub fn clear_pause(&mut self, parcel: &SpoolParcel) {
        if !self.0.is_empty() {
            self.0.remove(&thread_key(parcel));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spool::tests::parcel;
    use super::*;

    #[test]
    fn pauses_grow_and_are_those_of_one_thread() {
        let (mut busy, now) = (ThreadBackoff::default(), Instant::now());
        let t = parcel("atsf", "id", "t");
        let millis = (0..7).map(|_| (busy.note_locked(&t, now, "locked") - now).as_millis());
        let millis: Vec<u128> = millis.collect();
        assert_eq!(millis, [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(busy.paused_until(&t, now), Some((now + LONGEST, "locked")));
        assert_eq!(busy.paused_until(&t, now + LONGEST), None);
        assert_eq!(busy.paused_until(&parcel("atsf", "id", "u"), now), None);
        assert_eq!(busy.paused_until(&parcel("other", "id", "t"), now), None);
        busy.clear_pause(&t);
        assert_eq!(busy.paused_until(&t, now), None);
        assert_eq!(busy.note_locked(&t, now, "again"), now + FIRST);
    }
}
