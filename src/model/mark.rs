//! Marks as they are noted one after the other, here and on my other machines.

use std::fmt;

use super::text::unhex_16;

/// One of my machines: a number of chance that tells it from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u64);

impl Host {
    /// The host that is written so, as [`Host`] prints it and not otherwise.
    pub fn parse(text: &str) -> Option<Self> {
        unhex_16(text).map(Self)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Whose word a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was made or cleared on this machine.
    Here,
    /// On another one, or so it says: how often its mark was made and cleared by then.
    Heard(Host, u32),
    /// A read position that was there before msgfs kept marks. Which mail it stands for nobody knows.
    Position,
}

/// A mark of a message that was made or cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The writer of the message.
    pub from: String,
    /// Its id.
    pub id: String,
    /// Whether the message counts as read from here on.
    pub read: bool,
    /// Whose word it is.
    pub origin: Origin,
}
