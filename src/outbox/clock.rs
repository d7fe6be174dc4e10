//! The times of what is sent: each later than the one before, and than what it answers, so that names
//! stand in the order in which messages were written.

use crate::model::Timestamp;

/// How far times run ahead of the clock where more is sent than there are milliseconds.
const AHEAD: i64 = 1000;

/// The times given so far.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// When the last one was asked for.
    asked: Timestamp,
    /// The last one that followed from the clock.
    given: Timestamp,
    /// The last one that followed from a message ahead of the clock, and that message's.
    answered: (Timestamp, Timestamp),
}

impl Clock {
    /// The time of a message sent `now` that answers one of the time `parent`.
    pub fn next(&mut self, now: Timestamp, parent: Option<Timestamp>) -> Timestamp {
        let set_back = now.plus_millis(AHEAD) < self.asked;
        self.asked = now;
        if let Some(parent) = parent.filter(|parent| *parent >= now) {
            // Somebody's clock is ahead of ours, which is no reason to go with it for good.
            let (before, given) = self.answered;
            let after = if before == parent { given } else { parent };
            self.answered = (parent, after.plus_millis(1));
            return self.answered.1;
        }
        let crowded = self.given >= now.plus_millis(AHEAD);
        self.given = match (set_back, crowded) {
            (true, _) => now,
            (false, true) => self.given,
            (false, false) => now.max(self.given.plus_millis(1)),
        };
        self.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp::from_secs(1_777_052_523);

    #[test]
    fn times_rise() {
        let mut clock = Clock::default();
        let mut next = |now, parent: Option<i64>| {
            let parent = parent.map(|ms| T.plus_millis(ms));
            clock.next(T.plus_millis(now), parent).millis() - T.millis()
        };
        assert_eq!([next(0, None), next(0, None), next(1, None), next(9, None)], [0, 1, 2, 9]);
        // What is answered is in the past, and the clock is a little behind.
        assert_eq!([next(10, Some(3)), next(4, None)], [10, 11]);
        // In the future: only answers go there, one after the other.
        assert_eq!(
            [next(12, Some(12)), next(12, Some(9000)), next(12, Some(9000))],
            [13, 9001, 9002]
        );
        assert_eq!([next(13, None), next(14, Some(5000)), next(15, None)], [13, 5001, 15]);
        // A clock that is set back is believed, and one that stands still is not left far behind.
        assert_eq!(next(-60_000, None), -60_000);
        let many: Vec<i64> = (0..3000).map(|_| next(0, None)).collect();
        assert!(many.is_sorted() && many[..1000].is_sorted_by(|a, b| a < b));
        assert_eq!(many[2999], 1000);
    }
}
