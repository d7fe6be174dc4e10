//! Nodes of the tree and their inode numbers.
//!
//! An inode number describes its node. The upper 8 bits are the kind of node; the lower 56 are the identity of
//! a message or thread, a day, or the hash of a path. So numbers are the same after a remount, and finding the
//! node of a number needs no table that the kernel's lookups would fill.

use super::table::{ViewKey, ViewNode};
use crate::index::{MsgIx, ThreadIx};
use crate::model::Day;

/// The folders that can contain a message file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageFolder {
    /// `inbox/`
    Inbox = 0,
    /// `archive/<day>/`
    Archive = 1,
    /// `sent/<day>/`
    Sent = 2,
    /// `threads/<thread>/`
    Thread = 3,
    /// Any folder of `.maildir/`.
    Maildir = 4,
}

const PLACES: [MessageFolder; 5] = [
    MessageFolder::Inbox,
    MessageFolder::Archive,
    MessageFolder::Sent,
    MessageFolder::Thread,
    MessageFolder::Maildir,
];

/// One node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mount point.
    Root,
    /// A node of a view in the table.
    View(ViewNode),
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
    /// A draft that is being written in a thread's folder.
    ThreadDraft(ThreadIx, String),
    /// An unfinished answer to a message, under a private name beside it, not listed.
    ReplyDraft(MessageFolder, MsgIx, String),
    /// A message.
    Message(MessageFolder, MsgIx),
    /// `<name>.reply` beside a message, not listed.
    Reply(MessageFolder, MsgIx),
    /// `<name>.reply-all` beside a message, not listed.
    ReplyAll(MessageFolder, MsgIx),
    /// `<name>.ack` beside a message that asks for an acknowledgement, not listed.
    Ack(MessageFolder, MsgIx),
    /// `<name>.warning` beside a message in `sent/`: a note about it.
    Warning(MsgIx),
    /// A message of mine in `sent/` that is not in its store yet, or the note about it: store, id, and true for
    /// the note.
    Held(usize, String, bool),
    /// `<name>.d/` beside a message: its attachments.
    Parts(MessageFolder, MsgIx),
    /// An attachment of a message.
    Part(MessageFolder, MsgIx, String),
}

/// Every folder outside the table of views, as a pattern. A `match` on a node ends with this or [`files!`] and
/// never with `_`, so it does not compile until each new node is considered.
macro_rules! folders {
    () => {
        Node::Root
            | Node::Inbox
            | Node::Archive
            | Node::ArchiveDay(_)
            | Node::Sent
            | Node::SentDay(_)
            | Node::Threads
            | Node::Thread(_)
            | Node::Parts(..)
    };
}
pub(super) use folders;

/// Every file outside the table of views, as a pattern.
macro_rules! files {
    () => {
        Node::ThreadDraft(..)
            | Node::ReplyDraft(..)
            | Node::Message(..)
            | Node::Reply(..)
            | Node::ReplyAll(..)
            | Node::Ack(..)
            | Node::Warning(_)
            | Node::Held(..)
            | Node::Part(..)
    };
}
pub(super) use files;

impl Node {
    /// Returns the view and the key of a node of the table of views.
    pub(super) fn view_key(&self) -> Option<&ViewKey> {
        if let Self::View(node) = self { Some(node.key()) } else { None }
    }

    /// Returns true for a folder.
    pub fn is_dir(&self) -> bool {
        match self {
            Node::View(node) => node.is_folder(),
            folders!() => true,
            files!() => false,
        }
    }
}

/// An inode number. Never 0; 1 is the root.
pub type Ino = u64;

/// Upper 8 bits of an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InodeTag {
    ArchiveDay = 1,
    SentDay = 2,
    Thread = 3,
    Transcript = 4,
    Reject = 5,
    /// Files whose path is in the tree's table: drafts, raw files, texts, attachments.
    Path = 6,
    /// Folders whose path is in the table. The kernel gives up an inode that changes from a folder to a file,
    /// so the two never share a number.
    PathDir = 7,
    Message = 16,
    Reply = 24,
    Parts = 32,
    Ack = 40,
    Warning = 48,
    ReplyAll = 56,
}

const TAG_SHIFT: u32 = 56;
const LOW: u64 = (1 << TAG_SHIFT) - 1;
/// Offset that makes the numbers of days positive.
const DAY_BIAS: i64 = 1 << 40;

/// The nodes outside the table of views that exist once, with their inode numbers.
pub(super) const FIXED: [(Ino, Node); 5] =
    [(1, Node::Root), (6, Node::Inbox), (7, Node::Archive), (8, Node::Sent), (9, Node::Threads)];

pub(super) fn make_inode(tag: InodeTag, low: u64) -> Ino {
    (tag as u64) << TAG_SHIFT | low & LOW
}

/// Returns the inode number of a message, or of a file beside it.
pub(super) fn message_inode(tag: InodeTag, place: MessageFolder, identity: u64) -> Ino {
    (tag as u64 + place as u64) << TAG_SHIFT | identity & LOW
}

pub(super) fn day_inode(tag: InodeTag, day: Day) -> Ino {
    make_inode(tag, (day.number() + DAY_BIAS) as u64)
}

/// Returns the upper 8 and the lower 56 bits of an inode number.
pub(super) fn split_inode(ino: Ino) -> (u64, u64) {
    (ino >> TAG_SHIFT, ino & LOW)
}

/// Returns the node of an inode number, if it is outside the table of views. The three functions find a thread,
/// a message and a path node by its number.
pub(super) fn decode_inode(
    ino: Ino,
    thread: impl Fn(u64) -> Option<ThreadIx>,
    message: impl Fn(u64) -> Option<MsgIx>,
    path: impl Fn(u64) -> Option<Node>,
) -> Option<Node> {
    let (tag, low) = split_inode(ino);
    let day = || Day::from_number(low as i64 - DAY_BIAS);
    let beside = |base: InodeTag| Some((*PLACES.get((tag - base as u64) as usize)?, message(low)?));
    Some(match tag {
        0 => FIXED.into_iter().find(|(number, _)| *number == low)?.1,
        1 => Node::ArchiveDay(day()),
        2 => Node::SentDay(day()),
        3 => Node::Thread(thread(low)?),
        6 | 7 => path(ino)?,
        16..=20 => beside(InodeTag::Message).map(|(place, ix)| Node::Message(place, ix))?,
        24..=28 => beside(InodeTag::Reply).map(|(place, ix)| Node::Reply(place, ix))?,
        32..=36 => beside(InodeTag::Parts).map(|(place, ix)| Node::Parts(place, ix))?,
        40..=44 => beside(InodeTag::Ack).map(|(place, ix)| Node::Ack(place, ix))?,
        48 => Node::Warning(message(low)?),
        56..=60 => beside(InodeTag::ReplyAll).map(|(place, ix)| Node::ReplyAll(place, ix))?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    /// Decodes a number; the identity of each thread or message is its own number.
    fn decode(ino: Ino) -> Option<Node> {
        let thread = |identity: u64| Some(ThreadIx::for_test(identity as u32));
        let message = |identity: u64| Some(MsgIx::for_test(identity as u32));
        super::decode_inode(ino, thread, message, |_| None)
    }

    #[test]
    fn numbers_say_what_they_stand_for() {
        for secs in [-1, 0, 1_777_052_523] {
            let day = Timestamp::from_secs(secs).day();
            let ino = day_inode(InodeTag::SentDay, day);
            assert_eq!(decode(ino), Some(Node::SentDay(day)));
        }
        let ix = MsgIx::for_test(7);
        for place in PLACES {
            assert_eq!(
                decode(message_inode(InodeTag::Message, place, 7)),
                Some(Node::Message(place, ix))
            );
            assert_eq!(
                decode(message_inode(InodeTag::Reply, place, 7)),
                Some(Node::Reply(place, ix))
            );
            let all = message_inode(InodeTag::ReplyAll, place, 7);
            assert_eq!(decode(all), Some(Node::ReplyAll(place, ix)));
            assert_eq!(
                decode(message_inode(InodeTag::Parts, place, 7)),
                Some(Node::Parts(place, ix))
            );
            assert_eq!(decode(message_inode(InodeTag::Ack, place, 7)), Some(Node::Ack(place, ix)));
        }
        assert_eq!(decode(make_inode(InodeTag::Warning, 7)), Some(Node::Warning(ix)));
        assert_eq!(decode(0), None);
        assert_eq!(decode(u64::MAX), None);
    }
}
