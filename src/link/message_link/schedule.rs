//! The backoff and the pace of a link.
//!
//! Sending and fetching have a backoff each, so that one that fails does not stop the other: they may have two servers,
//! and a single message can fail for ever. While both fail, the link is away as a whole, and one of them tries a pause.
//! While only sending fails, its pauses stay short: each message that fails twice has a backoff of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crate::link::backoff;

/// The longest backoff after a carrier was killed. Its death says nothing about the engine.
const KILLED_WAIT: Duration = Duration::from_secs(5);
/// The most failures that count while only sending fails. They make a pause of 5 s.
const LONE_FAILURES: u32 = 2;

/// The sort of an exchange, as far as the backoff is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeSort {
    /// The delivery of a message.
    Delivery,
    /// A fetch, or the acknowledgement of what it brought.
    Fetch,
}

/// The backoff of one sort of exchanges.
#[derive(Debug, Default)]
pub(super) struct ExchangeBackoff {
    /// The number of failures in a row.
    pub failures: u32,
    /// The reason of the last failure.
    why: String,
    /// The moment before which no such exchange begins, in milliseconds since the epoch.
    pub paused_until: i64,
    /// True if such an exchange reached the engine since the other sort began to fail.
    is_apart: bool,
}

/// The backoff and the pace of a link.
#[derive(Debug, Default)]
pub(super) struct RetrySchedule {
    pub sending: ExchangeBackoff,
    pub fetching: ExchangeBackoff,
    /// The number of killed carriers in a row.
    pub kills: u32,
    /// The next time to fetch mail.
    pub next_fetch: i64,
    /// True if a fetch that is due goes before messages, because messages went last.
    pub is_fetch_first: bool,
    /// The number of messages that the last job delivered.
    pub delivered: usize,
    /// The fetches whose mail could not be saved, with the next time to try. No other mail is fetched meanwhile.
    pub held: BTreeMap<OsString, i64>,
}

impl RetrySchedule {
    /// Returns the moment before which nothing is sent or fetched.
    pub fn paused_until(&self) -> i64 {
        self.sending.paused_until.min(self.fetching.paused_until)
    }

    /// Pauses the whole link until a moment.
    pub fn pause_all(&mut self, until: i64) {
        (self.sending.paused_until, self.fetching.paused_until) = (until, until);
    }

    /// Returns the time at which mail is fetched next, or held mail is tried again.
    pub fn next_fetch_time(&self) -> i64 {
        let next = self.next_fetch.max(self.fetching.paused_until);
        self.held.values().min().copied().unwrap_or(next)
    }

    /// Returns true if mail may be fetched now.
    pub fn is_fetch_due(&self, now: i64) -> bool {
        self.held.is_empty() && self.next_fetch_time() <= now
    }

    /// Records that an exchange reached the engine. Returns the reason why exchanges of the other sort fail, if they
    /// do.
    pub fn note_success(&mut self, sort: ExchangeSort) -> Option<&str> {
        self.kills = 0;
        let (own, other) = self.backoffs(sort);
        // The engine is back, perhaps for both.
        if std::mem::take(own).failures > 0 {
            other.paused_until = 0;
        }
        (own.is_apart, other.is_apart) = (other.failures > 0, false);
        (other.failures > 0).then_some(other.why.as_str())
    }

    /// Records that an exchange did not reach the engine for this reason, and was asked for a pause of this length.
    pub fn note_failure(&mut self, sort: ExchangeSort, why: &str, asked: Duration, now: i64) {
        self.kills = 0;
        let (own, other) = self.backoffs(sort);
        why.clone_into(&mut own.why);
        let before = if own.is_apart { 0 } else { other.failures };
        own.failures = own.failures.max(before).saturating_add(1);
        if sort == ExchangeSort::Delivery && other.failures == 0 {
            // The messages that failed may be the cause. Others wait behind each of them.
            own.failures = own.failures.min(LONE_FAILURES);
        }
        let wait = backoff::retry_delay(own.failures);
        // The first failure may be that of the whole link, as may any while both sorts fail. Only the second one may be
        // if the other sort failed alone before.
        let is_first = own.failures == 1;
        let is_shared = if own.is_apart { !is_first } else { is_first || other.failures > 0 };
        let shared = if is_shared { wait.max(asked) } else { asked };
        let after = |wait: Duration| now.saturating_add(wait.as_millis() as i64);
        own.paused_until = after(wait.max(asked));
        other.paused_until = other.paused_until.max(after(shared));
    }

    /// Records that a carrier was killed.
    pub fn note_kill(&mut self, now: i64) {
        self.kills = self.kills.saturating_add(1);
        let wait = backoff::retry_delay(self.kills).min(KILLED_WAIT);
        self.pause_all(now.saturating_add(wait.as_millis() as i64));
    }

    /// Returns the backoff of a sort of exchanges, and that of the other one.
    fn backoffs(&mut self, sort: ExchangeSort) -> (&mut ExchangeBackoff, &mut ExchangeBackoff) {
        match sort {
            ExchangeSort::Delivery => (&mut self.sending, &mut self.fetching),
            ExchangeSort::Fetch => (&mut self.fetching, &mut self.sending),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ExchangeSort::{Delivery, Fetch};

    #[test]
    fn one_sort_that_fails_does_not_stop_the_other() {
        for (fails, works, pause) in [(Delivery, Fetch, 5000), (Fetch, Delivery, 180_000)] {
            let mut schedule = RetrySchedule::default();
            for _ in 0..5 {
                schedule.note_failure(fails, "down", Duration::ZERO, 0);
                assert_eq!(schedule.note_success(works), Some("down"), "told");
            }
            let (own, other) = schedule.backoffs(fails);
            assert_eq!((own.paused_until, other.paused_until), (pause, 0));
            schedule.note_failure(fails, "down", Duration::from_secs(20), 0);
            assert_eq!(schedule.backoffs(works).0.paused_until, 20_000, "asked for by the server");
        }
    }

    #[test]
    fn a_link_that_is_away_is_tried_once_a_pause_and_is_back_as_a_whole() {
        let mut schedule = RetrySchedule::default();
        let mut waits = Vec::new();
        for sort in [Delivery, Fetch, Delivery, Delivery, Fetch] {
            schedule.note_failure(sort, "down", Duration::ZERO, 0);
            assert_eq!(schedule.sending.paused_until, schedule.fetching.paused_until);
            waits.push(schedule.paused_until() / 1000);
        }
        assert_eq!(waits, [1, 5, 30, 60, 180]);
        assert_eq!(schedule.note_success(Fetch), Some("down"));
        assert_eq!(schedule.sending.paused_until, 0);
        assert_eq!(schedule.note_success(Delivery), None);
    }

    #[test]
    fn a_sort_that_worked_while_the_other_failed_begins_with_a_short_pause() {
        for (fails, works, pauses) in
            [(Delivery, Fetch, [5, 5, 30]), (Fetch, Delivery, [360, 360, 360])]
        {
            let mut schedule = RetrySchedule::default();
            for _ in 0..5 {
                schedule.note_failure(fails, "down", Duration::ZERO, 0);
            }
            schedule.note_success(works);
            schedule.note_failure(fails, "down", Duration::ZERO, 0);
            let mut waits = Vec::new();
            for _ in 0..3 {
                schedule.note_failure(works, "down", Duration::ZERO, 0);
                let (own, other) = schedule.backoffs(works);
                waits.push((own.paused_until / 1000, other.paused_until / 1000));
            }
            assert_eq!(waits, [(1, pauses[0]), (5, pauses[1]), (30, pauses[2])]);
        }
    }
}
