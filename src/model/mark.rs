//! Marks as they are noted one after the other, here and on my other machines.

use std::fmt;

use super::text::decode_hex_u64;

/// One of my machines: a number of chance that tells it from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(pub u64);

impl MachineId {
    /// The host that is written so, as [`Host`] prints it and not otherwise.
    pub fn parse(text: &str) -> Option<Self> {
        decode_hex_u64(text).map(Self)
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Whose word a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkOrigin {
    /// It was made or cleared on this machine.
    Here,
    /// On another one, or so it says: how often its mark was made and cleared by then.
    Heard(MachineId, u32),
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
    pub origin: MarkOrigin,
}
