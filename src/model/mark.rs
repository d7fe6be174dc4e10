//! Marks as they are recorded in order, here and on my other machines.

use std::fmt;

use super::text::decode_hex_u64;

/// One of my machines: a random number that separates it from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(pub u64);

impl MachineId {
    /// Parses the form that [`MachineId`] prints, and no other.
    pub fn parse(text: &str) -> Option<Self> {
        decode_hex_u64(text).map(Self)
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The origin of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkOrigin {
    /// A mark that was made or cleared on this machine.
    Here,
    /// A mark of another machine, as it reported it: the machine, and how often its mark was made and cleared by
    /// then.
    Heard(MachineId, u32),
    /// A read position from before msgfs kept marks. Nobody knows which message it stands for.
    Position,
}

/// A mark of a message that was made or cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The sender of the message.
    pub from: String,
    /// The id of the message.
    pub id: String,
    /// True if the message counts as read from here on.
    pub read: bool,
    /// The origin of the mark.
    pub origin: MarkOrigin,
}
