//! The lists of messages to me and from me, in listing order.
//!
//! Messages that are gone stay in the lists, because every reader of a list checks the entry. Messages that are no
//! longer to me, or from me, leave the list.

use super::entry::EntryFlags;
use super::{EntryTable, IndexEntry, MessageTable};
use crate::index::column::at;
use crate::index::position::{MsgIx, ThreadIx};
use crate::model::Timestamp;

impl EntryTable {
    /// Returns true if a message belongs to the list of messages to me: it is live, and it is to me or of a transcript.
    pub fn is_listed_to_me(&self, entry: &IndexEntry) -> bool {
        entry.is_to_me() || entry.is_live() && self.names().is_transcript(entry.writer)
    }
}

/// The lists of messages. They change only after all lookups of entries succeeded, so a panic leaves them whole.
#[derive(Debug, Default)]
pub(super) struct MessageLists {
    pub(super) to_me: Vec<MsgIx>,
    pub(super) from_me: Vec<MsgIx>,
    /// True during a bulk load, while they are not sorted.
    unsorted: bool,
}

/// The lists, with the messages in them.
#[derive(Clone, Copy, Debug)]
pub struct ListedMessages<'a> {
    known: &'a EntryTable,
    lists: &'a MessageLists,
}

impl<'a> ListedMessages<'a> {
    /// Returns the live messages to me, oldest first, read or not.
    pub fn messages_to_me(self) -> impl DoubleEndedIterator<Item = MsgIx> + use<'a> {
        self.lists.to_me.iter().copied().filter(move |ix| self.known.entry(*ix).is_to_me())
    }

    /// Returns the live messages from me, oldest first.
    pub fn messages_from_me(self) -> impl DoubleEndedIterator<Item = MsgIx> + use<'a> {
        self.lists.from_me.iter().copied().filter(move |ix| self.known.entry(*ix).is_from_me())
    }

    /// Returns the unread messages to me, oldest first.
    pub fn unread(self) -> impl DoubleEndedIterator<Item = MsgIx> + use<'a> {
        self.messages_to_me().filter(move |ix| !self.known.entry(*ix).is_read())
    }

    /// Returns the sorted list of messages to me and those of transcripts, including messages that are gone.
    pub fn sorted_to_me(self) -> &'a [MsgIx] {
        &self.lists.to_me
    }

    /// Returns the sorted list of messages from me, including messages that are gone.
    pub fn sorted_from_me(self) -> &'a [MsgIx] {
        &self.lists.from_me
    }

    /// Returns the time in the name of my newest message that is not after `end`.
    pub fn newest_from_me(self, end: Timestamp) -> Option<Timestamp> {
        self.find_newest_time(self.lists.from_me.split_at(self.count_from_me_until(end)).0, |_| {
            true
        })
    }

    /// Returns the time of the newest of my messages in a thread that are after `start`.
    pub fn newest_from_me_in(self, thread: ThreadIx, start: Timestamp) -> Option<Timestamp> {
        let later = self.lists.from_me.split_at(self.count_from_me_until(start)).1;
        self.find_newest_time(later, |e| e.thread() == thread)
    }

    fn count_from_me_until(self, end: Timestamp) -> usize {
        self.lists.from_me.partition_point(|ix| self.known.name_time(self.known.entry(*ix)) <= end)
    }

    fn find_newest_time(
        self,
        list: &[MsgIx],
        fits: impl Fn(&IndexEntry) -> bool,
    ) -> Option<Timestamp> {
        let mut entries = list.iter().rev().map(|ix| self.known.entry(*ix));
        entries.find(|e| e.is_from_me() && fits(e)).map(|e| self.known.name_time(e))
    }

    /// Returns the time of the newest message, for folders.
    pub fn newest_time(self) -> Option<Timestamp> {
        let last = |list: &[MsgIx]| {
            let mut newest_first = list.iter().rev().map(|ix| self.known.entry(*ix));
            newest_first.find(|e| e.is_live()).map(IndexEntry::time)
        };
        last(&self.lists.to_me).max(last(&self.lists.from_me))
    }
}

impl MessageTable {
    /// Returns the lists of messages to me and from me.
    pub fn lists(&self) -> ListedMessages<'_> {
        ListedMessages { known: &self.known, lists: &self.lists }
    }

    /// Returns true if a thread has a message to me whose time is exactly this whole second and that names no answered
    /// id.
    pub fn has_answer_in_second(&self, thread: ThreadIx, second: Timestamp) -> bool {
        let newest_first = self.lists.to_me.iter().rev().copied();
        let mut since = newest_first.take_while(|ix| self.name_time(self.entry(*ix)) >= second);
        since.any(|ix| {
            let entry = self.entry(ix);
            entry.thread() == thread && entry.time() == second && !self.names_answered_id(ix)
        })
    }

    /// Begins a bulk load, during which the lists are not sorted. [`MessageTable::sort_lists`] ends it.
    pub(in crate::index) fn begin_bulk_load(&mut self) {
        self.lists.unsorted = true;
    }

    /// Returns true during a bulk load.
    pub(in crate::index) fn is_bulk_load(&self) -> bool {
        self.lists.unsorted
    }

    /// Adds a live message to its lists, if it is not there already.
    pub(in crate::index) fn add_to_lists(&mut self, ix: MsgIx) {
        self.lists.add(&self.known, ix);
    }

    /// Removes a message from the lists. It must still have its old time.
    pub(super) fn remove_from_lists(&mut self, ix: MsgIx) {
        self.lists.remove(&self.known, ix);
    }

    /// Sorts the lists after a bulk load.
    pub(in crate::index) fn sort_lists(&mut self) {
        self.lists.sort(&self.known);
    }
}

impl MessageLists {
    /// Makes the lists of a snapshot, which are sorted.
    pub fn from_snapshot(to_me: Vec<MsgIx>, from_me: Vec<MsgIx>) -> Self {
        Self { to_me, from_me, unsorted: false }
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.to_me.shrink_to_fit();
        self.from_me.shrink_to_fit();
    }

    fn add(&mut self, known: &EntryTable, ix: MsgIx) {
        let entry = known.entry(ix);
        let to_me = known.is_listed_to_me(entry);
        let lists = [(to_me, &mut self.to_me), (entry.is_from_me(), &mut self.from_me)];
        for (_, list) in lists.into_iter().filter(|(is_there, _)| *is_there) {
            let is_last = || list.last().is_none_or(|last| known.compare_order(*last, ix).is_lt());
            if self.unsorted || is_last() {
                list.push(ix);
            } else if let Err(at) = list.binary_search_by(|other| known.compare_order(*other, ix)) {
                list.insert(at, ix);
            }
        }
    }

    fn remove(&mut self, known: &EntryTable, ix: MsgIx) {
        if self.unsorted {
            return;
        }
        for list in [&mut self.to_me, &mut self.from_me] {
            let at = list
                .binary_search_by(|other| known.compare_order(*other, ix))
                .ok()
                .or_else(|| list.iter().position(|other| *other == ix));
            if let Some(at) = at {
                list.remove(at);
            }
        }
    }

    fn sort(&mut self, known: &EntryTable) {
        let (texts, writers) = (known.names(), known.names().writers());
        let mut names: Vec<&str> = writers.iter().map(|w| texts.text(w.name)).collect();
        names.sort_unstable();
        let rank = |name: &str| names.partition_point(|other| *other < name) as u32;
        let ranks: Vec<u32> = writers.iter().map(|w| rank(texts.text(w.name))).collect();
        // A short key that decides nearly every comparison, and the message.
        let keyed = |ix: &MsgIx| {
            let entry = known.entry(*ix);
            let home = texts.writer(entry.writer()).store;
            let by_id = texts.store(home).links;
            let rank = if by_id { 0 } else { *at(&ranks, entry.writer() as usize) };
            let after_time = (home as u32) << 24 | rank.min(0xff_ffff);
            (known.name_time(entry), after_time, *ix)
        };
        let lists =
            [(EntryFlags::TO_ME, &mut self.to_me), (EntryFlags::FROM_ME, &mut self.from_me)];
        for (flag, list) in lists {
            // A report during the load may have cleared the flag.
            let of_list = list.iter().filter(|ix| {
                let entry = known.entry(**ix);
                let is_transcript = || texts.is_transcript(entry.writer);
                entry.flags.has(flag) || flag == EntryFlags::TO_ME && is_transcript()
            });
            let mut keys: Vec<_> = of_list.map(keyed).collect();
            keys.sort_by(|x, y| {
                (x.0, x.1).cmp(&(y.0, y.1)).then_with(|| known.compare_order(x.2, y.2))
            });
            // A message that returned during the load was added twice.
            keys.dedup();
            *list = keys.into_iter().map(|(.., ix)| ix).collect();
        }
        self.unsorted = false;
    }
}
