//! The folders in which a message lies under its own name, and the messages in each.

use super::node::{MessageFolder, Node};
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::Day;

/// A folder that shows messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderScope {
    /// `inbox/`
    Inbox,
    /// `archive/<day>/`
    ArchiveDay(Day),
    /// `sent/<day>/`
    SentDay(Day),
    /// `threads/<thread>/`
    Thread(ThreadIx),
}

impl FolderScope {
    /// Returns the scope of a node; `None` if it is no folder of messages.
    pub fn of_node(node: &Node) -> Option<Self> {
        match node {
            Node::Inbox => Some(Self::Inbox),
            Node::ArchiveDay(day) => Some(Self::ArchiveDay(*day)),
            Node::SentDay(day) => Some(Self::SentDay(*day)),
            Node::Thread(thread) => Some(Self::Thread(*thread)),
            _ => None,
        }
    }

    /// Returns the folder of a message. A message of `.maildir/` lies in `inbox/`, too.
    pub fn of_message(core: &IndexTables, place: MessageFolder, ix: MsgIx) -> Self {
        let entry = core.messages.entry(ix);
        let day = || core.messages.name_time(entry).day();
        match place {
            MessageFolder::Archive => Self::ArchiveDay(day()),
            MessageFolder::Sent => Self::SentDay(day()),
            MessageFolder::Thread => Self::Thread(entry.thread()),
            MessageFolder::Inbox | MessageFolder::Maildir => Self::Inbox,
        }
    }

    /// Returns the kind of the folder.
    pub fn message_folder(self) -> MessageFolder {
        match self {
            Self::Inbox => MessageFolder::Inbox,
            Self::ArchiveDay(_) => MessageFolder::Archive,
            Self::SentDay(_) => MessageFolder::Sent,
            Self::Thread(_) => MessageFolder::Thread,
        }
    }

    /// Returns true if the folder shows a message, or has shown it. `all` is true if the messages between others
    /// are shown.
    pub fn contains(self, core: &IndexTables, entry: &IndexEntry, all: bool) -> bool {
        let copy = || {
            core.messages
                .find_by_identity(entry.identity())
                .is_some_and(|ix| core.messages.is_copy(ix))
        };
        let on = |day| core.messages.name_time(entry).day() == day;
        match self {
            Self::Inbox => entry.is_to_me(),
            Self::ArchiveDay(day) => {
                on(day) && entry.is_live() && (entry.is_to_me() || all && !copy())
            }
            Self::SentDay(day) => on(day) && entry.is_from_me(),
            Self::Thread(thread) => entry.is_live() && entry.thread() == thread && !copy(),
        }
    }
}

impl From<FolderScope> for Node {
    fn from(folder: FolderScope) -> Self {
        match folder {
            FolderScope::Inbox => Self::Inbox,
            FolderScope::ArchiveDay(day) => Self::ArchiveDay(day),
            FolderScope::SentDay(day) => Self::SentDay(day),
            FolderScope::Thread(thread) => Self::Thread(thread),
        }
    }
}
