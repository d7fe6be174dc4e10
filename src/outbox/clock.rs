//! The times of sent messages: each later than the one before, and than the message it answers, so that names stand in
//! the order in which messages were written.

use crate::model::{CLOCK_SKEW_MS, Timestamp};

/// The times that the next time must follow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeFloor {
    /// My newest message that an earlier process, or another one, may have written.
    pub mine: Option<Timestamp>,
    /// The answered message, and my newest one in its thread.
    pub parent: Option<Timestamp>,
}

/// The times given so far.
#[derive(Debug, Default)]
pub(super) struct SendClock {
    /// The time of the last request.
    last_request: Timestamp,
    /// The last time that followed from the clock.
    last_time: Timestamp,
    /// The last times that followed from a message too far ahead of the clock: that message's, and the newest of them.
    far: (Timestamp, Timestamp),
}

impl SendClock {
    /// Returns the latest time of a message that all my later messages still follow. A time further ahead comes from a
    /// clock that is wrong.
    pub fn horizon(now: Timestamp) -> Timestamp {
        now.plus_millis(CLOCK_SKEW_MS)
    }

    /// Returns the time of a message sent `now`.
    pub fn next(&mut self, now: Timestamp, before: TimeFloor) -> Timestamp {
        let horizon = Self::horizon(now);
        if horizon < self.last_request {
            // A clock that was set back is believed.
            self.last_time = Timestamp::default();
        }
        self.last_request = now;
        if let Some(parent) = before.parent.filter(|parent| *parent > horizon.max(self.last_time)) {
            // Another agent's clock is ahead of ours, which is no reason to follow it for good.
            let (from, to) = self.far;
            let after = if (from..=to).contains(&parent) { to } else { parent };
            self.far = (parent.min(if after == to { from } else { parent }), after.plus_millis(1));
            return self.far.1;
        }
        let mine = before.mine.filter(|mine| *mine <= horizon);
        let last = [mine, before.parent].into_iter().flatten().fold(self.last_time, Timestamp::max);
        self.last_time = now.max(last.plus_millis(1));
        self.last_time
    }

    /// Notes that a store had to use a later time than the one it was given.
    pub fn note_used(&mut self, given: Timestamp, used: Timestamp) {
        if used > Self::horizon(given) {
            return;
        }
        let last = if given == self.far.1 { &mut self.far.1 } else { &mut self.last_time };
        *last = used.max(*last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timestamp = Timestamp::from_secs(1_777_052_523);
    const HOUR: i64 = 3_600_000;

    fn at(ms: i64) -> Timestamp {
        T.plus_millis(ms)
    }

    fn next(clock: &mut SendClock, now: i64, mine: Option<i64>, parent: Option<i64>) -> i64 {
        let before = TimeFloor { mine: mine.map(at), parent: parent.map(at) };
        clock.next(at(now), before).millis() - T.millis()
    }

    #[test]
    fn times_rise() {
        let mut clock = SendClock::default();
        let mut next = |now, parent| super::tests::next(&mut clock, now, None, parent);
        assert_eq!([next(0, None), next(0, None), next(1, None), next(9, None)], [0, 1, 2, 9]);
        // The answered message is in the past, and the clock is a little behind.
        assert_eq!([next(10, Some(3)), next(4, None)], [10, 11]);
        // A little in the future: later messages are later than the answer, too.
        assert_eq!([next(12, Some(12)), next(12, Some(9000)), next(13, None)], [13, 9001, 9002]);
        assert_eq!(next(9050, None), 9050);
        // Far in the future: only answers go there, one after the other, also to one another.
        let far = [next(9051, Some(HOUR)), next(9051, Some(HOUR)), next(9051, Some(HOUR + 1))];
        assert_eq!(far, [HOUR + 1, HOUR + 2, HOUR + 3]);
        assert_eq!([next(9052, Some(HOUR)), next(9052, None)], [HOUR + 4, 9052]);
        assert_eq!([next(9053, Some(2 * HOUR)), next(9053, None)], [2 * HOUR + 1, 9053]);
        // A clock that is set back far is believed; one that is set back a little is waited for.
        assert_eq!(
            [next(9000, None), next(-HOUR, None), next(-HOUR, None)],
            [9054, -HOUR, 1 - HOUR]
        );
        // There are more messages than milliseconds.
        let many: Vec<i64> = (0..3000).map(|_| next(0, None)).collect();
        assert!(many.is_sorted_by(|a, b| a < b), "{many:?}");
        assert_eq!([next(2999, None), next(3001, None)], [3000, 3001]);
    }

    #[test]
    fn what_was_used_and_what_others_wrote_in_my_name_counts() {
        let mut clock = SendClock::default();
        let mut given = next(&mut clock, 0, None, None);
        for n in 1..1000 {
            clock.note_used(at(given), at(n * 1000));
            given = next(&mut clock, n, None, None);
            assert_eq!(given, n * 1000 + 1);
        }
        // When it is quiet, times are those of the clock again.
        assert_eq!(next(&mut clock, 999_002, None, None), 999_002);
        let mut clock = SendClock::default();
        assert_eq!(next(&mut clock, 0, Some(-5), None), 0);
        assert_eq!(next(&mut clock, 1, Some(50_000), None), 50_001);
        let last = 50_000 + CLOCK_SKEW_MS;
        assert_eq!(next(&mut clock, 50_100, Some(last), None), last + 1);
        let mut clock = SendClock::default();
        assert_eq!(
            next(&mut clock, 0, Some(HOUR), None),
            0,
            "a clock that was wrong is not followed"
        );
        // The same holds beyond a message too far ahead.
        let given = next(&mut clock, 1, None, Some(HOUR));
        clock.note_used(at(given), at(HOUR + 1000));
        assert_eq!(next(&mut clock, 2, None, Some(HOUR)), HOUR + 1001);
        assert_eq!(next(&mut clock, 3, None, None), 3);
        // A store may date a record by another clock, which is no reason to follow it.
        clock.note_used(at(3), at(HOUR));
        assert_eq!(next(&mut clock, 4, None, None), 4);
    }
}
