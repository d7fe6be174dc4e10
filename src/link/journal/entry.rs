//! An entry of a journal: a message on its way to one recipient.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SET_ASIDE;
use crate::link::backoff;

/// A day, in milliseconds.
const DAY: i64 = 24 * 3600 * 1000;

/// A message on its way to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The message's id in its store.
    pub message: String,
    /// The recipient's address.
    pub to: String,
    /// The time at which the link accepted it, in milliseconds since the epoch.
    pub since: i64,
    /// The number of tries.
    pub tries: u32,
    /// The stage of the delivery.
    pub stage: DeliveryStage,
    /// Its failed tries, if there were any.
    pub failed: Option<FailedTries>,
    /// True if the answer to a try is missing, so that the engine may have it.
    pub has_unanswered_try: bool,
    /// The id that the engine gave it.
    pub given_id: Option<String>,
    /// The time at which it was taken or refused, in milliseconds since the epoch.
    pub ended_at: Option<i64>,
}

/// The failed tries of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTries {
    /// The time of the last one, in milliseconds since the epoch.
    pub last: i64,
    /// The time over which they spread, in milliseconds. A pause counts as a day at most, because this machine may have
    /// been off.
    pub spread: i64,
}

/// The stage of a message on its way to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryStage {
    /// An acceptance that is not on disk. No carrier may get the message.
    Unsynced,
    /// A pause until a moment from which on the message may go.
    Waits {
        /// That moment, in milliseconds since the epoch.
        until: i64,
        /// The last reason that the engine or the system gave, if it was tried.
        why: Option<String>,
    },
    /// A try by a carrier, in a job that is not over. The engine may have the message.
    Trying,
    /// A delivery: the engine has the message.
    Taken,
    /// A refusal for good by the engine or here, for this reason.
    Refused(String),
}

/// A change of an entry after a carrier had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The engine has it, perhaps under an id of its own.
    Taken {
        /// The engine's id.
        given: Option<String>,
    },
    /// The engine refused it for good.
    Refused {
        /// The reason.
        why: String,
    },
    /// The link gives it up.
    GivenUp {
        /// The reason.
        why: String,
        /// True if the last try has no answer.
        is_unanswered: bool,
    },
    /// It may go no sooner than a moment.
    Later {
        /// The reason.
        why: String,
        /// True if the last try has no answer.
        is_unanswered: bool,
        /// That moment, in milliseconds since the epoch.
        until: i64,
    },
    /// The carrier ended before it began with it.
    Untried,
}

impl JournalEntry {
    /// Returns true if the message is neither taken nor refused.
    pub fn is_open(&self) -> bool {
        matches!(self.stage, DeliveryStage::Waits { .. } | DeliveryStage::Trying)
    }

    /// Returns its rank among the entries that may go: 0 for all that are not set aside, which go first.
    pub(super) fn rank(&self) -> i64 {
        match self.stage {
            DeliveryStage::Waits { until, .. } if self.tries >= SET_ASIDE => until,
            _ => 0,
        }
    }

    /// Returns the time of the next try after one more failure; `None` if it was tried for long enough.
    pub fn next_try_time(&self, now: i64, asked: Option<Duration>) -> Option<i64> {
        let for_long = self.add_failure(now).spread > backoff::GIVE_UP.as_millis() as i64;
        let wait = asked.unwrap_or_default().max(backoff::retry_delay(self.tries));
        (!for_long).then(|| now.saturating_add(wait.as_millis() as i64))
    }

    /// Returns its failed tries with one more at this time.
    pub(super) fn add_failure(&self, now: i64) -> FailedTries {
        let spread = self.failed.map_or(0, |failed| {
            failed.spread.saturating_add(now.saturating_sub(failed.last).clamp(0, DAY))
        });
        FailedTries { last: now, spread }
    }
}
