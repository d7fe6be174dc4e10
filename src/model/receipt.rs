//! The states of a message of mine on its way to a recipient.

use std::fmt;

/// The state of a message for one recipient, from the weakest to the strongest. [`DeliveryState::Refused`] is no step
/// of the way: it is shown only while nothing above [`DeliveryState::Stored`] is proven.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// It is accepted, and something keeps it from the recipient's store.
    Waiting,
    /// It is durable in the store's own files here.
    Stored,
    /// A provider or server refused it for good.
    Refused,
    /// A mailbox of the recipient, a provider or a server has it.
    Delivered,
    /// A bell of a session of the recipient has rung for it.
    Told,
    /// The recipient's read position has passed it.
    Passed,
    /// The recipient's own mark names it.
    Read,
    /// An accepted message of the recipient answers it.
    Answered,
}

impl DeliveryState {
    /// All states, in the order in which people list them.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Stored,
        Self::Delivered,
        Self::Told,
        Self::Passed,
        Self::Read,
        Self::Answered,
        Self::Refused,
    ];

    /// Returns its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Stored => "stored",
            Self::Refused => "refused",
            Self::Delivered => "delivered",
            Self::Told => "told",
            Self::Passed => "passed",
            Self::Read => "read",
            Self::Answered => "answered",
        }
    }

    /// Returns the state of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_a_word_of_its_own() {
        for state in DeliveryState::ALL {
            assert_eq!(DeliveryState::from_word(state.as_str()), Some(state));
        }
        assert_eq!(DeliveryState::from_word("gone"), None);
    }

    #[test]
    fn a_refusal_yields_to_everything_above_stored() {
        assert!(DeliveryState::Refused > DeliveryState::Stored);
        assert!(DeliveryState::Refused < DeliveryState::Delivered);
    }
}
