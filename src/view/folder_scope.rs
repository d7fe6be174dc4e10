//! The folders that show messages.

use super::node::NodeProperty;
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::Day;

/// A place where messages have files. Its number is part of their inode numbers.
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

/// The kinds of folders that a message has files in, except those of `.maildir/`.
pub(super) const PLACES: [MessageFolder; 4] =
    [MessageFolder::Inbox, MessageFolder::Archive, MessageFolder::Sent, MessageFolder::Thread];

/// A folder of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Returns the place of its messages.
    pub fn message_folder(self) -> MessageFolder {
        match self {
            Self::Inbox => MessageFolder::Inbox,
            Self::ArchiveDay(_) => MessageFolder::Archive,
            Self::SentDay(_) => MessageFolder::Sent,
            Self::Thread(_) => MessageFolder::Thread,
        }
    }

    /// Returns the folder of a message at a place.
    pub fn of_message(tables: &IndexTables, place: MessageFolder, ix: MsgIx) -> Self {
        let entry = tables.messages.entry(ix);
        match place {
            MessageFolder::Archive => Self::ArchiveDay(tables.messages.name_time(entry).day()),
            MessageFolder::Sent => Self::SentDay(tables.messages.name_time(entry).day()),
            MessageFolder::Thread => Self::Thread(entry.thread()),
            MessageFolder::Inbox | MessageFolder::Maildir => Self::Inbox,
        }
    }

    /// Returns true if the folder shows a message, or has shown it. `all` is true if messages between other agents are
    /// shown.
    pub fn contains(self, tables: &IndexTables, entry: &IndexEntry, all: bool) -> bool {
        let copy = || {
            tables
                .messages
                .find_by_identity(entry.identity())
                .is_some_and(|ix| tables.messages.is_copy(ix))
        };
        let on = |day| tables.messages.name_time(entry).day() == day;
        match self {
            Self::Inbox => entry.is_to_me(),
            Self::ArchiveDay(day) => {
                let is_listed = tables.messages.is_listed_to_me(entry);
                on(day) && entry.is_live() && (is_listed || all && !copy())
            }
            Self::SentDay(day) => on(day) && entry.is_from_me() && !copy(),
            Self::Thread(thread) => entry.is_live() && entry.thread() == thread && !copy(),
        }
    }

    /// Returns the properties of the folder.
    pub fn node_properties(self) -> &'static [NodeProperty] {
        use NodeProperty::{
            Folder, LastingListing, ShowsMessages, ShowsPending, ShowsSent, ShowsUnread, TakesFiles,
        };
        match self {
            Self::Inbox => &[Folder, ShowsMessages, ShowsUnread],
            Self::ArchiveDay(_) => &[Folder, ShowsMessages, LastingListing],
            Self::SentDay(_) => &[Folder, ShowsMessages, LastingListing, ShowsSent, ShowsPending],
            Self::Thread(_) => &[Folder, ShowsMessages, LastingListing, ShowsSent, TakesFiles],
        }
    }
}
