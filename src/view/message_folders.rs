//! The messages that each folder shows, and the time of the newest one.

use std::collections::HashSet;

use super::folder_scope::{FolderScope, MessageFolder};
use super::{Error, Listing, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx};
use crate::model::{Day, Timestamp};

impl FolderScope {
    /// Returns the entries of the folder.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the folder is gone.
    pub fn list(self, tree: &Tree) -> Result<Listing, Error> {
        let nothing = HashSet::new();
        match self {
            Self::Inbox => {
                let tables = tree.index.read();
                Ok(Listing::from_messages(
                    &tree.names,
                    &tables,
                    self.message_folder(),
                    tables.messages.lists().unread(),
                    &nothing,
                ))
            }
            Self::ArchiveDay(day) => list_day(tree, self.message_folder(), day, &nothing),
            Self::SentDay(day) => {
                // Pending messages are read first, so one that reaches its store meanwhile is found in the index.
                let held = tree.pending.list_of_day(day);
                let noted = find_warned(tree, day);
                let listed = list_day(tree, self.message_folder(), day, &noted).ok();
                tree.pending.add_to_listing(held, listed).ok_or(Error::NotFound)
            }
            Self::Thread(thread) => {
                let tables = tree.index.read();
                let list = tree.lists.thread_messages(&tables, thread);
                if list.is_empty() && tables.threads.empty_thread_time(thread).is_none() {
                    return Err(Error::NotFound);
                }
                Ok(Listing::from_messages(
                    &tree.names,
                    &tables,
                    self.message_folder(),
                    list.iter().copied(),
                    &nothing,
                ))
            }
        }
    }

    /// Returns the time of the newest entry.
    pub fn newest_time(self, tree: &Tree) -> Option<Timestamp> {
        match self {
            Self::Inbox => {
                let tables = tree.index.read();
                tables
                    .messages
                    .lists()
                    .unread()
                    .next_back()
                    .map(|ix| tables.messages.entry(ix).time())
            }
            Self::ArchiveDay(day) => newest_on_day(tree, self.message_folder(), day),
            Self::SentDay(day) => {
                // Pending messages are read first, as in `list`.
                let held = tree.pending.newest_of_day(day);
                held.max(newest_on_day(tree, self.message_folder(), day))
            }
            Self::Thread(thread) => {
                let tables = tree.index.read();
                let newest = tables.threads.newest_thread_time(&tables.messages, thread);
                newest.or_else(|| tables.threads.empty_thread_time(thread))
            }
        }
    }
}

/// Runs `f` on the list behind the day folders of `archive/` or `sent/`, in listing order.
fn with_day_list<T>(
    tree: &Tree,
    place: MessageFolder,
    f: impl FnOnce(&IndexTables, &[MsgIx]) -> T,
) -> T {
    let tables = tree.index.read();
    if place == MessageFolder::Sent {
        f(&tables, tables.messages.lists().sorted_from_me())
    } else if tree.is_scope_all() {
        f(&tables, &tree.lists.all_messages(&tables))
    } else {
        f(&tables, tables.messages.lists().sorted_to_me())
    }
}

/// Returns the days of `archive/` or `sent/` with messages in their stores.
pub(super) fn list_days(tree: &Tree, place: MessageFolder) -> Vec<Day> {
    with_day_list(tree, place, |tables, list| {
        let (mut days, mut at) = (Vec::new(), 0);
        // The loop takes one step a day, not a message, because the list is in order of time.
        while let Some(entry) = list.get(at).map(|ix| tables.messages.entry(*ix)) {
            let day = tables.messages.name_time(entry).day();
            let of_day = tables.messages.slice_of_day(list, day);
            if of_day.iter().any(|ix| tables.messages.entry(*ix).is_live()) {
                days.push(day);
            }
            at += of_day.len().max(1);
        }
        days
    })
}

/// Returns the messages of a day in `archive/` or `sent/`. A `.warning` is listed beside each of the `noted` messages.
fn list_day(
    tree: &Tree,
    place: MessageFolder,
    day: Day,
    noted: &HashSet<MsgIx>,
) -> Result<Listing, Error> {
    with_day_list(tree, place, |tables, list| {
        let once = place == MessageFolder::Sent;
        let shown = |ix: &MsgIx| {
            tables.messages.entry(*ix).is_live() && !(once && tables.messages.is_copy(*ix))
        };
        let of_day: Vec<MsgIx> =
            tables.messages.slice_of_day(list, day).iter().copied().filter(shown).collect();
        if of_day.is_empty() {
            return Err(Error::NotFound);
        }
        Ok(Listing::from_messages(&tree.names, tables, place, of_day, noted))
    })
}

/// Returns the messages that are listed with a `.warning`: those of any day that wait for a recipient, and those of
/// this day that wait for a link or are replies with a warning. The shown record stands for each record with a warning.
fn find_warned(tree: &Tree, day: Day) -> HashSet<MsgIx> {
    let mut warned: HashSet<MsgIx> =
        tree.pending.list_undelivered().into_iter().map(|(ix, _)| ix).collect();
    if tree.pending.may_have_own_warning() {
        let of_day = |tables: &IndexTables, list: &[MsgIx]| {
            let entries = tables.messages.slice_of_day(list, day).iter();
            entries.map(|ix| (*ix, *tables.messages.entry(*ix))).collect::<Vec<_>>()
        };
        let entries = with_day_list(tree, MessageFolder::Sent, of_day);
        let has_own = |(_, entry): &(MsgIx, IndexEntry)| tree.pending.has_own_warning(entry);
        warned.extend(entries.into_iter().filter(has_own).map(|(ix, _)| ix));
    }
    let tables = tree.index.read();
    warned.into_iter().map(|ix| tables.messages.find_original(ix).unwrap_or(ix)).collect()
}

/// Returns the time of the newest message in `archive/` or `sent/`.
pub(super) fn newest_at_place(tree: &Tree, place: MessageFolder) -> Option<Timestamp> {
    with_day_list(tree, place, newest_live_time)
}

/// Returns the time of the newest message of a day in `archive/` or `sent/`.
pub(super) fn newest_on_day(tree: &Tree, place: MessageFolder, day: Day) -> Option<Timestamp> {
    with_day_list(tree, place, |tables, list| {
        newest_live_time(tables, tables.messages.slice_of_day(list, day))
    })
}

fn newest_live_time(tables: &IndexTables, list: &[MsgIx]) -> Option<Timestamp> {
    list.iter()
        .rev()
        .map(|ix| tables.messages.entry(*ix))
        .find(|e| e.is_live())
        .map(IndexEntry::time)
}
