//! Nodes of the tree and their inode numbers.
//!
//! An inode number says what it stands for: the upper 8 bits name the kind of node, the lower 56 are
//! the identity of a message or thread, a day, or the hash of a path. So numbers are the same after a
//! remount, and finding the node of a number needs no table that the kernel's lookups would fill.

use crate::index::{MsgIx, ThreadIx};
use crate::model::Day;

/// The folders a message file can lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// `inbox/`
    Inbox = 0,
    /// `archive/<day>/`
    Archive = 1,
    /// `sent/<day>/`
    Sent = 2,
    /// `threads/<thread>/`
    Thread = 3,
}

const PLACES: [Place; 4] = [Place::Inbox, Place::Archive, Place::Sent, Place::Thread];

/// One node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mount point.
    Root,
    /// `README.txt`
    Readme,
    /// `status.txt`
    Status,
    /// `.wait`, not listed.
    Wait,
    /// `.next`, not listed.
    Next,
    /// `inbox/`
    Inbox,
    /// `archive/`
    Archive,
    /// `archive/<day>/`
    ArchiveDay(Day),
    /// `sent/`
    Sent,
    /// `sent/<day>/`
    SentDay(Day),
    /// `threads/`
    Threads,
    /// `threads/<thread>/`
    Thread(ThreadIx),
    /// `transcripts/`
    Transcripts,
    /// `transcripts/<thread>.txt`
    Transcript(ThreadIx),
    /// `outbox/`
    Outbox,
    /// A draft, or the note beside one, in `outbox/`.
    Draft(String),
    /// A draft being written in a thread's folder.
    ThreadDraft(ThreadIx, String),
    /// `outbox/<name>/`, a composing folder.
    Compose(String),
    /// A file in a composing folder.
    ComposeFile(String, String),
    /// `rejected/`
    Rejected,
    /// A file in `rejected/`, by identity.
    Reject(u64),
    /// `raw/`
    Raw,
    /// A folder of `raw/`: store and path below it.
    RawDir(usize, String),
    /// A file of `raw/`.
    RawFile(usize, String),
    /// A message.
    Message(Place, MsgIx),
    /// `<name>.reply` beside a message, not listed.
    Reply(Place, MsgIx),
    /// `<name>.ack` beside a message that asks for an acknowledgement, not listed.
    Ack(Place, MsgIx),
    /// `<name>.warning` beside a message in `sent/`: what I should know of it.
    Warning(MsgIx),
    /// `<name>.d/` beside a message: the files that come with it.
    Parts(Place, MsgIx),
    /// A file that comes with a message.
    Part(Place, MsgIx, String),
    /// `me/`: texts that stores keep for me.
    Me,
    /// `me/<store>/`, where several stores keep texts.
    MeStore(usize),
    /// A folder of texts, of a store.
    TextFolder(usize, &'static str),
    /// A text, in a folder of a store.
    Text(usize, &'static str, String),
}

impl Node {
    /// A folder.
    pub fn is_dir(&self) -> bool {
        match self {
            Self::Root
            | Self::Inbox
            | Self::Archive
            | Self::ArchiveDay(_)
            | Self::Sent
            | Self::SentDay(_)
            | Self::Threads
            | Self::Thread(_)
            | Self::Transcripts
            | Self::Outbox
            | Self::Compose(_)
            | Self::Rejected
            | Self::Raw
            | Self::RawDir(..)
            | Self::Parts(..)
            | Self::Me
            | Self::MeStore(_)
            | Self::TextFolder(..) => true,
            Self::Readme
            | Self::Status
            | Self::Wait
            | Self::Next
            | Self::Transcript(_)
            | Self::Draft(_)
            | Self::ThreadDraft(..)
            | Self::ComposeFile(..)
            | Self::Reject(_)
            | Self::RawFile(..)
            | Self::Message(..)
            | Self::Reply(..)
            | Self::Ack(..)
            | Self::Warning(_)
            | Self::Part(..)
            | Self::Text(..) => false,
        }
    }
}

/// An inode number. Never 0; 1 is the root.
pub type Ino = u64;

/// Upper 8 bits of an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    ArchiveDay = 1,
    SentDay = 2,
    Thread = 3,
    Transcript = 4,
    Reject = 5,
    /// Paths whose text is in the tree's table: drafts, raw files, texts, files of messages.
    Path = 6,
    Message = 16,
    Reply = 24,
    Parts = 32,
    Ack = 40,
    Warning = 48,
}

const TAG_SHIFT: u32 = 56;
const LOW: u64 = (1 << TAG_SHIFT) - 1;
/// Days may be negative; this moves them above zero.
const DAY_BIAS: i64 = 1 << 40;

/// The nodes that exist once, in the order of their inode numbers from 1 on.
const FIXED: [Node; 14] = [
    Node::Root,
    Node::Readme,
    Node::Status,
    Node::Wait,
    Node::Next,
    Node::Inbox,
    Node::Archive,
    Node::Sent,
    Node::Threads,
    Node::Transcripts,
    Node::Outbox,
    Node::Rejected,
    Node::Raw,
    Node::Me,
];

/// What an inode number says, before identities are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Node(Node),
    Thread(u64),
    Transcript(u64),
    Path(u64),
    Message(Place, u64),
    Reply(Place, u64),
    Parts(Place, u64),
    Ack(Place, u64),
    Warning(u64),
}

pub(super) fn join(tag: Tag, low: u64) -> Ino {
    (tag as u64) << TAG_SHIFT | low & LOW
}

pub(super) fn message_ino(place: Place, identity: u64) -> Ino {
    (Tag::Message as u64 + place as u64) << TAG_SHIFT | identity & LOW
}

pub(super) fn reply_ino(place: Place, identity: u64) -> Ino {
    (Tag::Reply as u64 + place as u64) << TAG_SHIFT | identity & LOW
}

pub(super) fn parts_ino(place: Place, identity: u64) -> Ino {
    (Tag::Parts as u64 + place as u64) << TAG_SHIFT | identity & LOW
}

pub(super) fn ack_ino(place: Place, identity: u64) -> Ino {
    (Tag::Ack as u64 + place as u64) << TAG_SHIFT | identity & LOW
}

pub(super) fn day_ino(tag: Tag, day: Day) -> Ino {
    join(tag, (day.number() + DAY_BIAS) as u64)
}

/// The number of a node that exists once.
pub(super) fn fixed_ino(node: &Node) -> Option<Ino> {
    FIXED.iter().position(|n| n == node).map(|i| i as u64 + 1)
}

pub(super) fn decode(ino: Ino) -> Option<Decoded> {
    let (tag, low) = (ino >> TAG_SHIFT, ino & LOW);
    let place = |base: Tag| PLACES.get((tag - base as u64) as usize).copied();
    let day = || Day::from_number(low as i64 - DAY_BIAS);
    Some(match tag {
        0 => {
            let node = usize::try_from(low).ok()?.checked_sub(1).and_then(|i| FIXED.get(i))?;
            Decoded::Node(node.clone())
        }
        1 => Decoded::Node(Node::ArchiveDay(day())),
        2 => Decoded::Node(Node::SentDay(day())),
        3 => Decoded::Thread(low),
        4 => Decoded::Transcript(low),
        5 => Decoded::Node(Node::Reject(low)),
        6 => Decoded::Path(low),
        16..=19 => Decoded::Message(place(Tag::Message)?, low),
        24..=27 => Decoded::Reply(place(Tag::Reply)?, low),
        32..=35 => Decoded::Parts(place(Tag::Parts)?, low),
        40..=43 => Decoded::Ack(place(Tag::Ack)?, low),
        48 => Decoded::Warning(low),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    #[test]
    fn numbers_say_what_they_stand_for() {
        assert_eq!(fixed_ino(&Node::Root), Some(1));
        for node in &FIXED {
            assert_eq!(decode(fixed_ino(node).unwrap()), Some(Decoded::Node(node.clone())));
        }
        for secs in [-1, 0, 1_777_052_523] {
            let day = Timestamp::from_secs(secs).day();
            let ino = day_ino(Tag::SentDay, day);
            assert_eq!(decode(ino), Some(Decoded::Node(Node::SentDay(day))));
        }
        for place in PLACES {
            assert_eq!(decode(message_ino(place, 7)), Some(Decoded::Message(place, 7)));
            assert_eq!(decode(reply_ino(place, 7)), Some(Decoded::Reply(place, 7)));
            assert_eq!(decode(parts_ino(place, 7)), Some(Decoded::Parts(place, 7)));
            assert_eq!(decode(ack_ino(place, 7)), Some(Decoded::Ack(place, 7)));
        }
        assert_eq!(decode(join(Tag::Warning, 7)), Some(Decoded::Warning(7)));
        assert_eq!(decode(0), None);
        assert_eq!(decode(u64::MAX), None);
    }
}
