//! Threads of stores that somebody else keeps locked: when what waits for one is tried again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::spool::SpoolParcel;

/// How long a thread is left alone after it was found locked, at first; then twice as long each time,
const FIRST: Duration = Duration::from_millis(200);
/// … up to this.
const LONGEST: Duration = Duration::from_secs(5);

/// A thread that was found locked.
#[derive(Debug)]
struct ThreadPause {
    due: Instant,
    length: Duration,
    why: String,
}

/// The threads that were found locked, by store and id. What comes for one of them waits behind what
/// is there already, so that the thread gets its messages in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct ThreadBackoff(HashMap<(String, String), ThreadPause>);

fn thread_key(parcel: &SpoolParcel) -> (String, String) {
    (parcel.store.clone(), parcel.message.thread.clone())
}

impl ThreadBackoff {
    /// Whether the parcel's thread is not to be tried `now`: when it is, and why. All that wait for
    /// one thread are told the same moment, so that they stay in their order.
    pub fn paused_until(&self, parcel: &SpoolParcel, now: Instant) -> Option<(Instant, &str)> {
        if self.0.is_empty() {
            return None;
        }
        let pause = self.0.get(&thread_key(parcel)).filter(|p| p.due > now)?;
        Some((pause.due, &pause.why))
    }

    /// Notes that the parcel's thread was found locked; when it is tried again.
    pub fn note_locked(&mut self, parcel: &SpoolParcel, now: Instant, why: &str) -> Instant {
        let before = self.0.remove(&thread_key(parcel));
        let length = before.map_or(FIRST, |p| (p.length * 2).min(LONGEST));
        let due = now + length;
        self.0.insert(thread_key(parcel), ThreadPause { due, length, why: why.to_owned() });
        due
    }

    /// Notes that the parcel's thread is locked no longer.
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
