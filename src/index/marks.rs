//! The marks of messages: read or not, the labels of mail programs, and the marks that the stores do not have yet
//! (docs/SEMANTICS.md, "Reading and marks"). All changes of a mark's state are in this file. `mark_log` keeps the
//! marks on disk; `mark_save` writes them to that file; `mark_sync` carries them to and from the stores and my other
//! machines.
//!
//! A mark belongs to its store until msgfs makes or clears one. From then on msgfs's own mark counts for good:
//!
//! ```text
//!                        the store reports another mark
//!                               ┌─────────────┐
//!                               ▼             │
//!   a message arrives ────► STORE'S MARK ─────┘
//!                               │
//!                               │ read, marked or unmarked here; covered by a later position of another
//!                               ▼ reader; marked by another machine of mine; in the file of marks
//!   a message arrives ────► OWN MARK ─────┐
//!   whose own mark waits     ▲  ▲         │ the same again; reports of the store change nothing
//!   by identity (an orphan)  │  └─────────┘
//!                            │
//!                            │ read, marked or unmarked here; marked by another machine of mine
//!   an unread message is     │
//!   covered by the first ──► PASSED ──────┐
//!   position of another         ▲         │ a later position; reports of the store
//!   reader that msgfs sees      └─────────┘
//! ```
//!
//! PASSED is a mark of msgfs, too, and counts as read, although nobody has read the message. My read position names the
//! message only if the other reader's does. The entry has the flag `READ_HERE` without `OWN`; an orphan has
//! [`OwnMark::Passed`].
//!
//! A store that keeps marks on its messages gets each own mark that differs from its own:
//!
//! ```text
//!               the mark changes here, or the store contradicts it
//!      ┌───────────────────────────────────────────────────────────┐
//!      │                                                           ▼
//!   SETTLED ◄── the store wrote it, or reports it as it is ─────── DUE ──┐ an error, a busy store, or a
//!      ▲        (or its message moved away 8 times)                ▲  ▲  │ message that moved away: it is
//!      │                                                           │  └──┘ tried again
//!      │ the store reports it as it is                             │
//!      │                             the mark changes here, or the │
//!   LEFT ALONE ── store contradicts it with other unmarked parts ──┘
//!      ▲   ▲
//!      │   └── DUE: the store cannot keep it, or contradicted the write as it did before
//!      └────── LEFT ALONE: the store contradicts it as it did before
//! ```
//!
//! DUE is in `queue`. LEFT ALONE is in `left_alone` and not in `queue`. And `contradicted_in_write` has the contradictions that come
//! during a write.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::mark_log::MarkValue;
use super::messages::{IndexEntry, MessageTable, answered_id_hash};
use super::position::MsgIx;
use super::snapshot::SnapshotHeader;
use crate::model::{Mark, MessageKey};
use crate::store::{FoundMessage, Location, StoreError};

/// Number of attempts to write the mark of a message that is not at its location.
const MOVED_AT_MOST: u8 = 8;

/// The marks of all messages.
#[derive(Debug, Default)]
pub struct MarkTable {
    /// The number of unread messages to me.
    unread: usize,
    /// Marks and cleared marks whose message is in no store at the moment, by identity.
    orphans: HashMap<u64, OwnMark>,
    /// The labels of mail programs, by identity, also for messages that are in no store at the moment.
    labels: HashMap<u64, MailLabel>,
    /// Hashes of the ids that my messages answer.
    answered: HashSet<u64>,
    /// The marks that the stores have not received yet.
    queue: MarkQueue,
    /// A number that grows with each change of a mark that a view can show.
    generation: u64,
}

/// A mark of msgfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OwnMark {
    Unread,
    Read,
    /// Read, but only because a read position passed the message.
    Passed,
}

impl OwnMark {
    /// Returns the mark of a message that was read, or that was made unread.
    pub(super) fn of(read: bool) -> Self {
        if read { Self::Read } else { Self::Unread }
    }

    /// Returns true if the message counts as read.
    pub(super) fn is_read(self) -> bool {
        self != Self::Unread
    }
}

/// The marks that are still to be written to the stores that keep marks on messages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct MarkQueue {
    /// Messages whose mark is to be written, and how often they were not at their location.
    queue: BTreeMap<MsgIx, u8>,
    /// Messages whose mark is left alone for now, because the store contradicted it once or cannot keep it. The value
    /// is a hash of the parts that the store reported as unmarked. An entry lasts until the store agrees, or until that
    /// hash or the mark changes.
    left_alone: HashMap<MsgIx, u64>,
    /// Messages that count as read because the store reports so, although some of their parts are unmarked.
    partly_marked: HashSet<MsgIx>,
    /// The stores that have marks on their messages.
    stores: BTreeSet<usize>,
    /// The marks that the store contradicted during a write, with the hash of [`MarkQueue::left_alone`].
    #[serde(skip)]
    contradicted_in_write: HashMap<MsgIx, u64>,
    /// True if a store reported a mark that must be written again.
    #[serde(skip)]
    is_write_requested: bool,
}

impl MarkTable {
    /// Returns a number that grows with each change of a mark that a view can show.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of unread messages to me.
    pub fn unread_count(&self) -> usize {
        self.unread
    }

    /// Counts a message that views show from now on.
    pub(super) fn count_shown(&mut self, entry: &IndexEntry) {
        self.unread += usize::from(entry.is_unread());
    }

    /// Counts a message, as it was until now, that views do not show any more, or show differently.
    pub(super) fn count_hidden(&mut self, entry: &IndexEntry) {
        if entry.is_unread() {
            self.unread = self.unread.checked_sub(1).unwrap_or_else(|| {
                panic!("the index is broken: an unread message goes, and it counted none")
            });
        }
    }

    // --- the mark of a message ---

    /// Sets or clears a mark of msgfs; `here` means by reading in this process. Returns whether a view shows a
    /// change, or `None` if the mark had been made before.
    pub(super) fn set_own_mark(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        read: bool,
        here: bool,
    ) -> Option<bool> {
        let changed = self.set_read(messages, ix, read);
        let entry = messages.entry_mut(ix);
        // Nobody has read a message that a position only passed, so its mark is new.
        let known = entry.has_own_mark() && !entry.is_only_passed();
        entry.set_own_mark(read && here);
        let partly = self.queue.partly_marked.remove(&ix) && read;
        if (changed || partly) && self.queue.stores.contains(&entry.store()) {
            self.queue.queue.insert(ix, 0);
            self.queue.left_alone.remove(&ix);
        }
        let seen = changed | (!read && self.reset_label(entry.identity()));
        (seen || !known).then_some(seen)
    }

    /// Marks a message read because a read position passed it.
    pub(super) fn set_passed_mark(&mut self, messages: &mut MessageTable, ix: MsgIx) {
        self.set_own_mark(messages, ix, true, false);
        messages.entry_mut(ix).set_only_passed();
    }

    /// Sets whether a message counts as read. Returns true if that changed anything.
    fn set_read(&mut self, messages: &mut MessageTable, ix: MsgIx, read: bool) -> bool {
        let entry = messages.entry_mut(ix);
        if entry.is_read() == read {
            return false;
        }
        self.generation += 1;
        self.count_hidden(entry);
        entry.set_read(read);
        self.count_shown(entry);
        true
    }

    /// Applies the store's mark of a message. Returns true if the mark changed.
    pub(super) fn apply_store_mark(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> bool {
        let entry = *messages.entry(ix);
        let (word, unmarked) = (found.read, found.unmarked_hash);
        if word.is_some() {
            self.queue.stores.insert(entry.store());
        }
        if !entry.has_own_mark() {
            if word == Some(true) && unmarked != 0 {
                self.queue.partly_marked.insert(ix);
            } else if !self.queue.partly_marked.is_empty() {
                self.queue.partly_marked.remove(&ix);
            }
            return self.set_read(messages, ix, word == Some(true));
        }
        let agrees = word == Some(entry.is_read()) && (!entry.is_read() || unmarked == 0);
        if agrees {
            self.queue.queue.remove(&ix);
            self.queue.left_alone.remove(&ix);
        } else if entry.is_read() && word.is_some() {
            if self.queue.queue.contains_key(&ix) {
                // The mark was not written yet, so the store contradicts nothing, unless a write is under way.
                self.queue.contradicted_in_write.insert(ix, unmarked);
            } else if self.queue.left_alone.insert(ix, unmarked) != Some(unmarked) {
                self.queue.queue.insert(ix, 0);
                self.queue.is_write_requested = true;
            }
        }
        false
    }

    /// Applies a line of the file of marks. If its message is in no store at the moment, the mark is kept until
    /// it arrives.
    pub(super) fn apply_logged_mark(
        &mut self,
        messages: &mut MessageTable,
        store: usize,
        key: &MessageKey,
        said: &MarkValue,
    ) {
        let place = messages.resolve_identity(store, &key.from, &key.id);
        match (said, place) {
            (MarkValue::Read(read), Ok(ix)) => {
                _ = self.set_own_mark(messages, ix, *read, false);
            }
            (MarkValue::Read(read), Err(identity)) => {
                self.store_orphan_mark(identity, OwnMark::of(*read));
            }
            (MarkValue::Passed, Ok(ix)) => self.set_passed_mark(messages, ix),
            (MarkValue::Passed, Err(identity)) => self.store_orphan_mark(identity, OwnMark::Passed),
            (MarkValue::Label(label), Ok(ix)) => {
                self.set_label(messages.entry(ix).identity(), label.clone());
            }
            (MarkValue::Label(label), Err(identity)) => {
                self.set_label(identity, label.clone());
            }
        }
    }

    /// Applies the mark of another machine. Returns the message if its mark changed.
    pub(super) fn apply_remote_mark(
        &mut self,
        messages: &mut MessageTable,
        store: usize,
        mark: &Mark,
    ) -> Option<MsgIx> {
        match messages.resolve_identity(store, &mark.from, &mark.id) {
            Ok(ix) => {
                // The name of a message that was read here still opens.
                let here = messages.entry(ix).is_read_here();
                (self.set_own_mark(messages, ix, mark.read, here) == Some(true)).then_some(ix)
            }
            Err(identity) => {
                self.store_orphan_mark(identity, OwnMark::of(mark.read));
                None
            }
        }
    }

    /// Keeps a mark of a message that is in no store at the moment, until it arrives.
    fn store_orphan_mark(&mut self, identity: u64, mark: OwnMark) {
        self.orphans.insert(identity, mark);
        if !mark.is_read() {
            self.reset_label(identity);
        }
    }

    /// Returns the mark that waited for a message that arrives.
    pub(super) fn take_orphan_mark(&mut self, identity: u64) -> Option<OwnMark> {
        // An empty table is skipped, because a lookup would hash each message.
        if self.orphans.is_empty() { None } else { self.orphans.remove(&identity) }
    }

    #[cfg(test)]
    pub(super) fn orphan_marks(&self) -> &HashMap<u64, OwnMark> {
        &self.orphans
    }

    // --- the marks that stores do not have yet ---

    /// Returns true if marks are to be written to stores.
    pub(super) fn has_due_marks(&self) -> bool {
        !self.queue.queue.is_empty()
    }

    /// Returns true if since the last call a store reported a mark that must be written again.
    pub(super) fn take_request(&mut self) -> bool {
        std::mem::take(&mut self.queue.is_write_requested)
    }

    /// Returns the marks that are to be written to a store, and the locations of their messages.
    pub(super) fn list_due_marks(
        &mut self,
        messages: &MessageTable,
        store: usize,
    ) -> Vec<(MsgIx, Location, bool)> {
        self.queue.contradicted_in_write.clear();
        let due = self.queue.queue.keys().filter_map(|ix| {
            let entry = messages.entry(*ix);
            let is_due = entry.store() == store && entry.is_live();
            is_due.then(|| (*ix, entry.location(), entry.is_read()))
        });
        due.collect()
    }

    /// Records the result of writing a mark.
    pub(super) fn record_mark_result(
        &mut self,
        messages: &MessageTable,
        ix: MsgIx,
        read: bool,
        result: &Result<bool, StoreError>,
    ) {
        if messages.entry(ix).is_read() != read {
            // The mark changed again meanwhile.
            return;
        }
        match result {
            Ok(noted) => {
                let meanwhile = self.queue.contradicted_in_write.remove(&ix);
                let again = meanwhile
                    .is_some_and(|print| self.queue.left_alone.insert(ix, print) != Some(print));
                self.queue.is_write_requested |= again;
                if !again {
                    self.queue.queue.remove(&ix);
                }
                if !noted {
                    self.queue.left_alone.entry(ix).or_default();
                }
            }
            Err(StoreError::Moved) => {
                let times = self.queue.queue.entry(ix).or_default();
                *times += 1;
                if *times >= MOVED_AT_MOST {
                    self.queue.queue.remove(&ix);
                }
            }
            Err(_) => {}
        }
    }

    // --- labels ---

    /// Returns the label of a message.
    pub fn label(&self, entry: &IndexEntry) -> Option<&MailLabel> {
        self.labels.get(&entry.identity())
    }

    /// Sets a label by its message's identity. Returns true if that changed anything.
    pub(super) fn set_label(&mut self, identity: u64, label: MailLabel) -> bool {
        let before = if label == MailLabel::default() {
            self.labels.remove(&identity)
        } else {
            self.labels.insert(identity, label.clone())
        };
        let changed = before.unwrap_or_default() != label;
        self.generation += u64::from(changed);
        changed
    }

    /// Resets the label of a message that is unread again, so that mail programs list it. Returns true if that
    /// changed anything.
    fn reset_label(&mut self, identity: u64) -> bool {
        let Some(mut label) = self.labels.get(&identity).cloned() else { return false };
        label.reset_for_unread();
        self.set_label(identity, label)
    }

    /// Returns true if a message of mine answers this one, as far as the format has reply links.
    pub fn is_answered(&self, messages: &MessageTable, entry: &IndexEntry) -> bool {
        if self.answered.is_empty() {
            return false;
        }
        let hash_of = |id: &str| answered_id_hash(messages.names(), entry.store(), id);
        let shared = messages.shared_id(messages.position_of(entry));
        std::iter::once(messages.id(entry))
            .chain(shared)
            .any(|id| self.answered.contains(&hash_of(&id)))
    }

    /// Records the id that a message of mine answers.
    pub(super) fn note_answer(
        &mut self,
        messages: &MessageTable,
        store: usize,
        found: &FoundMessage<'_>,
    ) {
        if let Some(id) = found.in_reply_to.as_deref().filter(|_| found.from_me) {
            self.answered.insert(answered_id_hash(messages.names(), store, id));
        }
    }

    // --- the snapshot ---

    /// Creates the table of a snapshot; returns `None` if a position in it leads nowhere.
    pub(super) fn from_snapshot(
        messages: &MessageTable,
        header: &mut SnapshotHeader,
    ) -> Option<Self> {
        let queue = std::mem::take(&mut header.mark_queue);
        let all = queue.queue.keys().chain(queue.left_alone.keys()).chain(&queue.partly_marked);
        let fits = messages.has_all(all);
        fits.then(|| Self {
            unread: header.unread,
            orphans: std::mem::take(&mut header.orphan_marks),
            labels: std::mem::take(&mut header.labels),
            answered: std::mem::take(&mut header.answered),
            queue,
            generation: 0,
        })
    }

    /// Fills in the values that the header of a snapshot has.
    pub(super) fn save_into(&self, header: &mut SnapshotHeader) {
        header.unread = self.unread;
        header.orphan_marks.clone_from(&self.orphans);
        header.labels.clone_from(&self.labels);
        header.answered.clone_from(&self.answered);
        header.mark_queue.clone_from(&self.queue);
    }
}

/// The flag of a message in the trash, which can still be restored.
pub const TRASHED: char = 'T';

/// The label that mail programs keep with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailLabel {
    /// Its flags as a program spelled them, including flags that other programs do not know; `None` if it
    /// spelled none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// True if a program has seen it and nobody has read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub old: bool,
    /// True if it was removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// True if a program cleared the flag for answered messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
}

impl MailLabel {
    /// Returns true if mail programs do not list the message any more.
    pub fn is_hidden(&self) -> bool {
        self.removed || self.flags.as_ref().is_some_and(|flags| flags.contains(TRASHED))
    }

    /// Resets the label of a message that is unread again. Mail programs then see it as new.
    fn reset_for_unread(&mut self) {
        (self.old, self.removed) = (false, false);
        if let Some(flags) = &mut self.flags {
            flags.retain(|flag| flag != TRASHED);
        }
        self.flags.take_if(|flags| flags.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unread_again_is_there_again() {
        let mut label = MailLabel {
            flags: Some("FTa".into()),
            old: true,
            removed: true,
            ..MailLabel::default()
        };
        assert!(label.is_hidden());
        label.reset_for_unread();
        assert_eq!(label, MailLabel { flags: Some("Fa".into()), ..MailLabel::default() });
        assert!(!label.is_hidden());
        let said = serde_json::to_string(&label).unwrap();
        assert_eq!(said, r#"{"flags":"Fa"}"#);
        assert_eq!(serde_json::from_str::<MailLabel>("{}").unwrap(), MailLabel::default());
    }
}
