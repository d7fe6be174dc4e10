//! Nodes of the tree and their inode numbers.
//!
//! An inode number describes its node. The upper 8 bits are the kind of node; the lower 56 are the identity of
//! a message or thread, a day, or the hash of a path. So numbers are the same after a remount, and finding the
//! node of a number needs no table that the kernel's lookups would fill.

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

/// The folders of `.maildir/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaildirFolder {
    /// Messages that are unread and that no mail program has seen.
    New,
    /// Messages that are read or that a mail program has seen.
    Cur,
    /// A folder that is always empty.
    Tmp,
}

/// One node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The mount point.
    Root,
    /// `README.txt`
    Readme,
    /// `status.txt`
    Status,
    /// `agents.txt`
    Agents,
    /// `.wait`, not listed.
    Wait,
    /// `.next`, not listed.
    Next,
    /// `.watch`, not listed.
    Watch,
    /// `.maildir/`, not listed.
    Maildir,
    /// A folder of `.maildir/`.
    MailBox(MaildirFolder),
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
    /// A draft that is being written in a thread's folder.
    ThreadDraft(ThreadIx, String),
    /// An unfinished answer to a message, under a private name beside it, not listed.
    ReplyDraft(MessageFolder, MsgIx, String),
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
    /// `me/`: texts that stores keep for me.
    Me,
    /// `me/<store>/`, if several stores keep texts.
    MeStore(usize),
    /// A folder of texts, of a store.
    TextFolder(usize, &'static str),
    /// A text, in a folder of a store.
    Text(usize, &'static str, String),
}

/// Every folder, as a pattern. A `match` on a node ends with this or [`files!`] and never with `_`, so it does
/// not compile until each new node is considered.
macro_rules! folders {
    () => {
        Node::Root
            | Node::Maildir
            | Node::MailBox(_)
            | Node::Inbox
            | Node::Archive
            | Node::ArchiveDay(_)
            | Node::Sent
            | Node::SentDay(_)
            | Node::Threads
            | Node::Thread(_)
            | Node::Transcripts
            | Node::Outbox
            | Node::Compose(_)
            | Node::Rejected
            | Node::Raw
            | Node::RawDir(..)
            | Node::Parts(..)
            | Node::Me
            | Node::MeStore(_)
            | Node::TextFolder(..)
    };
}
pub(super) use folders;

/// Every file, as a pattern.
macro_rules! files {
    () => {
        Node::Readme
            | Node::Status
            | Node::Agents
            | Node::Wait
            | Node::Next
            | Node::Watch
            | Node::Transcript(_)
            | Node::Draft(_)
            | Node::ThreadDraft(..)
            | Node::ReplyDraft(..)
            | Node::ComposeFile(..)
            | Node::Reject(_)
            | Node::RawFile(..)
            | Node::Message(..)
            | Node::Reply(..)
            | Node::ReplyAll(..)
            | Node::Ack(..)
            | Node::Warning(_)
            | Node::Held(..)
            | Node::Part(..)
            | Node::Text(..)
    };
}
pub(super) use files;

impl Node {
    /// Returns true for a folder.
    pub fn is_dir(&self) -> bool {
        match self {
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

/// The nodes that exist once, in the order of their inode numbers from 1 on
/// ([`Tree::inode_number`](super::Tree::inode_number)).
pub(super) const FIXED: [Node; 20] = [
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
    Node::Watch,
    Node::Agents,
    Node::Maildir,
    Node::MailBox(MaildirFolder::New),
    Node::MailBox(MaildirFolder::Cur),
    Node::MailBox(MaildirFolder::Tmp),
];

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

/// Returns the node of an inode number. The three functions find a thread, a message and a path node by its
/// number.
pub(super) fn decode_inode(
    ino: Ino,
    thread: impl Fn(u64) -> Option<ThreadIx>,
    message: impl Fn(u64) -> Option<MsgIx>,
    path: impl Fn(u64) -> Option<Node>,
) -> Option<Node> {
    let (tag, low) = (ino >> TAG_SHIFT, ino & LOW);
    let day = || Day::from_number(low as i64 - DAY_BIAS);
    let beside = |base: InodeTag| Some((*PLACES.get((tag - base as u64) as usize)?, message(low)?));
    Some(match tag {
        0 => FIXED.get(usize::try_from(low).ok()?.checked_sub(1)?)?.clone(),
        1 => Node::ArchiveDay(day()),
        2 => Node::SentDay(day()),
        3 => Node::Thread(thread(low)?),
        4 => Node::Transcript(thread(low)?),
        5 => Node::Reject(low),
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
