//! The facts about messages in the table of files, and the slots by which it finds them.

use bytemuck::{Pod, Zeroable};

use crate::store::engine::files::FileFacts;

/// The facts about a message that the table keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AmpTableFacts {
    /// The hash of the id.
    pub key: u64,
    /// The hash of everything that is shown and signed.
    pub content: u64,
    /// The time of the message in milliseconds.
    pub time: i64,
    /// The hash of another id under which replies may name the message; 0 if there is none.
    pub alias: u64,
    /// The hash of the id that it answers; 0 if it answers none.
    pub answers: u64,
    /// The [hash](super::roster::Roster::key_hash) of the keys among which the one of its signature was missing; 0 if
    /// none was.
    pub lacking_keys: u64,
    /// The second since 1970 at which it goes stale; 0 if it never does, or already has.
    pub expires: u32,
    /// [`AmpFlag`]s.
    pub flags: u32,
}

/// The flags of an [`AmpTableFacts`].
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum AmpFlag {
    /// It is past its `expires_at`.
    Expired = 1,
    /// It is dated after the moment of its arrival.
    Future = 1 << 1,
    /// It carries a signature.
    Signed = 1 << 2,
    /// Its time is the file's time, because it has no better one.
    FileTime = 1 << 3,
    /// Its signature is malformed, so it is never shown.
    Malformed = 1 << 4,
    /// It is signed, and its signed part holds the id under which it was written, because a link carried it. A second
    /// file with the same signed bytes is the same message, even under another id.
    Carried = 1 << 5,
    /// It is mine, and the link that carries it will report more.
    RelayPending = 1 << 7,
    /// The file does not say that the message was read.
    Unread = 1 << 8,
    /// The sender's key in the store did not make its signature.
    Invalid = 1 << 9,
}

impl AmpTableFacts {
    /// Returns true if both are the same message.
    pub fn is_same_message(&self, other: &Self) -> bool {
        (self.key, self.content) == (other.key, other.content)
    }

    pub fn has_flag(&self, bit: AmpFlag) -> bool {
        self.flags & bit as u32 != 0
    }

    pub fn set_flag(&mut self, bit: AmpFlag, on: bool) {
        if on {
            self.flags |= bit as u32;
        }
    }
}

/// The slot that finds messages by id.
pub(super) const BY_ID: u8 = 0;
/// The slot that finds signed messages by content, gone ones too: a replay stays a replay.
pub(super) const BY_CONTENT: u8 = 1;
/// The slot that finds messages by their other id.
pub(super) const BY_ALIAS: u8 = 2;
/// The slot that finds messages by the id that they answer.
pub(super) const BY_ANSWERS: u8 = 3;

impl FileFacts for AmpTableFacts {
    const SLOTS: u8 = 4;

    fn slot_key(&self, slot: u8, is_message: bool) -> u64 {
        match slot {
            BY_ID if is_message => self.key,
            BY_CONTENT if self.has_flag(AmpFlag::Signed) => self.content,
            BY_ALIAS if is_message => self.alias,
            BY_ANSWERS if is_message => self.answers,
            _ => 0,
        }
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn hashes(&self) -> (u64, u64) {
        (self.key, self.content)
    }
}
