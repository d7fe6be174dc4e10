//! The proofs that a store has of the way of a message of mine to one recipient.

use super::{DeliveryFate, Location};
use crate::model::{DeliveryState, Timestamp};

/// The line below the reason for which a recipient does not get a message.
pub const NOT_TRIED_AGAIN: &str = "it is not tried again: if the reason is gone, send it anew\n";

/// A message of mine, and one of its recipients.
#[derive(Clone, Copy, Debug)]
pub struct SentMessage<'a> {
    /// Its location.
    pub at: Location,
    /// Its id.
    pub id: &'a str,
    /// Its time.
    pub time: Timestamp,
    /// The recipient, as the message names it.
    pub to: &'a str,
    /// True if it has more recipients.
    pub has_others: bool,
}

/// The knowledge of a store about one recipient of a message of mine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The state that the store proves beyond the fact that it has the message. `None` if it proves no more.
    pub state: Option<DeliveryState>,
    /// The time of that state, as far as it is known.
    pub since: Option<Timestamp>,
    /// The reason for which it waits, was refused or was given up.
    pub reason: Option<String>,
    /// The id of the record for this recipient, if the message has a record for each and this is another one.
    pub record_id: Option<String>,
    /// True if the state is proven only for a message that I signed and that waits for nothing.
    pub is_tentative: bool,
}

impl Receipt {
    /// Returns the receipt of a state that is proven.
    pub fn of_state(state: DeliveryState, since: Option<Timestamp>) -> Self {
        Self { state: Some(state), since, ..Self::default() }
    }

    /// Returns the receipt of a message that a link carries.
    pub fn of_fate(fate: DeliveryFate) -> Self {
        match fate {
            DeliveryFate::Waits(why) => Self::of_fault(DeliveryState::Waiting, why),
            DeliveryFate::Taken => Self::of_state(DeliveryState::Delivered, None),
            DeliveryFate::Refused(why) => Self::of_fault(DeliveryState::Refused, why),
            DeliveryFate::Uncertain(why) => Self { reason: Some(why), ..Self::default() },
        }
    }

    /// Returns the receipt of a message that waits or was refused.
    pub fn of_fault(state: DeliveryState, reason: String) -> Self {
        Self { state: Some(state), reason: Some(reason), ..Self::default() }
    }
}
