//! The record of what a link has accepted, sent and received, on disk.
//!
//! Each link has one file of JSON lines. Lines are only appended; the file is compacted by rename when most of it is
//! over. A line is on disk before the event that it announces: the intent before the first byte leaves, the outcome
//! before anything else is done. A torn last line counts as never written.

mod entry;
mod wire_files;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::entry::{DeliveryStage, EntryChange, FailedTries, JournalEntry};
pub use self::wire_files::{
    progress_note_path, remove_wire_files, sync_wire_files, write_wire_file,
};
use crate::store::append_log::{AppendLog, AppendSync, read_log, split_log};

/// The name of the journal's file in the link's folder.
pub(super) const FILE: &str = "journal";

/// The limit on the size of a journal, which is compacted long before.
const MAX_FILE: u64 = 1 << 30;

/// The time for which finished entries are remembered, in milliseconds.
const REMEMBERED: i64 = 90 * 24 * 3600 * 1000;

/// The number of lines below which a journal is not compacted.
const FEW_LINES: usize = 1000;

/// The number of tries after which a message lets all others go first, and waits by its own backoff if the link fails
/// at it.
pub const SET_ASIDE: u32 = 2;

/// One line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
enum JournalLine {
    /// The acceptance of a message, whose bytes are in a file of this number.
    Spooled { no: u64, message: String, to: String, at: i64 },
    /// The start of a try.
    Trying { no: u64, tries: u32 },
    /// The end of a carrier that did not begin the try.
    Untried { no: u64, at: i64 },
    /// A delay until this moment.
    Later {
        no: u64,
        until: i64,
        why: String,
        /// The failed tries with this one. Older builds did not write them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<FailedTries>,
        /// True if a try has no answer. Older builds did not write it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unanswered: bool,
    },
    /// A delivery to the engine.
    Taken {
        no: u64,
        at: i64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given: Option<String>,
    },
    /// A refusal for good.
    Refused {
        no: u64,
        at: i64,
        why: String,
        /// True if a try has no answer, and the link gave the message up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unanswered: bool,
    },
    /// The arrival of a fetched message in the store.
    Seen { id: String, at: i64 },
    /// An interruption of a fetch that may have lost mail.
    Cut { at: i64 },
}

/// The journal of one link.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// The file; `None` if the journal is read-only.
    log: Option<AppendLog>,
    lines: usize,
    next_no: u64,
    entries: BTreeMap<u64, JournalEntry>,
    /// The numbers of the entries of each message, the oldest first.
    by_message: HashMap<String, Vec<u64>>,
    /// The numbers of the entries that have no line yet.
    unsynced: BTreeSet<u64>,
    /// The entries that may go, by [rank](JournalEntry::rank) and number; `waiting` has the others, by the moment from
    /// which on they may go.
    ready: BTreeSet<(i64, u64)>,
    waiting: BTreeSet<(i64, u64)>,
    /// The entries that were refused. Those that may have arrived all the same are not among them.
    refused: BTreeSet<u64>,
    /// The entries that a person gave up while a carrier had them.
    given_up: HashSet<u64>,
    seen: HashMap<String, i64>,
    cuts: Vec<i64>,
}

impl Journal {
    /// Opens the journal in a link's folder, and makes the folder if it is missing.
    ///
    /// # Errors
    /// Returns the system's error: without its journal a link would send twice.
    pub fn open(folder: &Path, now: i64) -> io::Result<Self> {
        let mut journal = Self::open_read_only(folder, now)?;
        let mut log = AppendLog::new(folder.join(FILE));
        log.open()?;
        journal.log = Some(log);
        journal.sweep_wire_files();
        if journal.lines > FEW_LINES + 4 * (journal.entries.len() + journal.seen.len()) {
            journal.compact_file()?;
        }
        Ok(journal)
    }

    /// Reads the journal in a link's folder without opening it for writing.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open_read_only(folder: &Path, now: i64) -> io::Result<Self> {
        let bytes = read_log(&folder.join(FILE), MAX_FILE)?;
        let mut journal = Self {
            folder: folder.to_owned(),
            log: None,
            lines: 0,
            next_no: 0,
            entries: BTreeMap::new(),
            by_message: HashMap::new(),
            unsynced: BTreeSet::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            refused: BTreeSet::new(),
            given_up: HashSet::new(),
            seen: HashMap::new(),
            cuts: Vec::new(),
        };
        for line in split_log(&bytes) {
            journal.lines += 1;
            if let Ok(line) = serde_json::from_slice(line.text) {
                journal.apply_line(line);
            }
        }
        journal.forget_old(now);
        Ok(journal)
    }

    /// Returns the path of the file with the bytes of an entry.
    pub fn wire_path(&self, no: u64) -> PathBuf {
        self.folder.join("out").join(no.to_string())
    }

    /// Reserves a number for a new entry, and returns it with the path for the bytes of the message.
    pub fn reserve_number(&mut self) -> (u64, PathBuf) {
        let no = self.next_no;
        self.next_no += 1;
        (no, self.wire_path(no))
    }

    /// Adds a message for a recipient, whose bytes are in the [file](write_wire_file) of this reserved number. It is
    /// accepted once it is [recorded](Self::record_accepted). Returns false if the message is known, and the bytes are
    /// not needed.
    pub fn add_unsynced(&mut self, no: u64, message: &str, to: &str, now: i64) -> bool {
        if self.find_entry(message, to).is_some() {
            return false;
        }
        self.insert_entry(no, (message.to_owned(), to.to_owned()), now, DeliveryStage::Unsynced);
        self.unsynced.insert(no);
        true
    }

    /// Returns the numbers of the messages that were added and not recorded, and the paths of their bytes.
    pub fn list_unsynced(&self) -> (Vec<u64>, Vec<PathBuf>) {
        let paths = self.unsynced.iter().map(|no| self.wire_path(*no)).collect();
        (self.unsynced.iter().copied().collect(), paths)
    }

    /// Records durably that some messages are accepted, whose bytes are on disk. All share one sync.
    ///
    /// # Errors
    /// Returns the system's error; then they were not accepted.
    pub fn record_accepted(&mut self, numbers: &[u64]) -> io::Result<()> {
        let line = |no: &u64| {
            let JournalEntry { message, to, since, .. } = self.entries.get(no)?;
            let (message, to) = (message.clone(), to.clone());
            Some(JournalLine::Spooled { no: *no, message, to, at: *since })
        };
        self.append_lines(numbers.iter().filter_map(line).collect())?;
        for no in numbers {
            self.unsynced.remove(no);
        }
        Ok(())
    }

    /// Forgets messages that were added and cannot be recorded.
    pub fn forget_unsynced(&mut self, numbers: &[u64]) {
        for no in numbers {
            self.unsynced.remove(no);
            self.remove_entry(*no);
        }
    }

    /// Removes the bytes of messages that are over or were never accepted, because the process ended before it removed
    /// them or before it wrote the line.
    fn sweep_wire_files(&self) {
        let Ok(entries) = std::fs::read_dir(self.folder.join("out")) else { return };
        let number = |path: &Path| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let is_open = |no: u64| self.entries.get(&no).is_some_and(JournalEntry::is_open);
        let paths = entries.flatten().map(|entry| entry.path());
        let left: Vec<PathBuf> =
            paths.filter(|path| number(path).is_some_and(|no| !is_open(no))).collect();
        remove_wire_files(&left);
    }

    /// Accepts a message for a recipient that it cannot reach, and keeps only the refusal.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn refuse_at_once(
        &mut self,
        message: &str,
        to: &str,
        why: &str,
        now: i64,
    ) -> io::Result<()> {
        if self.find_entry(message, to).is_some() {
            return Ok(());
        }
        let (no, message, to) = (self.next_no, message.to_owned(), to.to_owned());
        self.append_lines(vec![
            JournalLine::Spooled { no, message, to, at: now },
            JournalLine::Refused { no, at: now, why: why.to_owned(), unanswered: false },
        ])
    }

    /// Records durably that a carrier is about to get some open entries, whose job exists.
    ///
    /// # Errors
    /// Returns the system's error; then no carrier may get them.
    pub fn record_tries(&mut self, all: Vec<u64>) -> io::Result<()> {
        let tries = |no| self.entries.get(&no).map_or(0, |entry| entry.tries).saturating_add(1);
        let line = |no| JournalLine::Trying { no, tries: tries(no) };
        self.append_lines(all.into_iter().map(line).collect())
    }

    /// Records changes of entries durably, all with one sync. Returns the paths of the bytes of those that are over,
    /// which the caller [removes](remove_wire_files).
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record_changes(
        &mut self,
        changes: Vec<(u64, EntryChange)>,
        now: i64,
    ) -> io::Result<Vec<PathBuf>> {
        let is_over = |change: &EntryChange| {
            !matches!(change, EntryChange::Later { .. } | EntryChange::Untried)
        };
        let over: Vec<u64> =
            changes.iter().filter(|(_, change)| is_over(change)).map(|(no, _)| *no).collect();
        let changed: Vec<u64> = changes.iter().map(|(no, _)| *no).collect();
        let was_unanswered =
            |no| self.entries.get(&no).is_some_and(|entry| entry.has_unanswered_try);
        let line = |(no, change)| match change {
            EntryChange::Taken { given } => JournalLine::Taken { no, at: now, given },
            EntryChange::Refused { why } => {
                JournalLine::Refused { no, at: now, why, unanswered: false }
            }
            EntryChange::GivenUp { why, is_unanswered } => {
                let unanswered = is_unanswered || was_unanswered(no);
                JournalLine::Refused { no, at: now, why, unanswered }
            }
            EntryChange::Later { why, until, is_unanswered } => {
                let failed = self.entries.get(&no).and_then(|entry| match entry.stage {
                    DeliveryStage::Trying => Some(entry.add_failure(now)),
                    _ => entry.failed,
                });
                let unanswered = is_unanswered || was_unanswered(no);
                JournalLine::Later { no, until, why, failed, unanswered }
            }
            EntryChange::Untried => JournalLine::Untried { no, at: now },
        };
        let lines = changes.into_iter().map(line).collect();
        self.append_lines(lines)?;
        for no in changed {
            self.given_up.remove(&no);
        }
        Ok(over.into_iter().map(|no| self.wire_path(no)).collect())
    }

    /// Records a change of every open entry that no carrier has. If the change is to give up, those that a carrier has
    /// are given up after their try. Returns the number of changed entries, and the paths of the bytes of those that
    /// are over.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn change_waiting(
        &mut self,
        change: &EntryChange,
        now: i64,
    ) -> io::Result<(usize, Vec<PathBuf>)> {
        let open = self.open_entries().filter(|(_, e)| e.stage != DeliveryStage::Trying);
        let changes: Vec<_> = open.map(|(no, _)| (no, change.clone())).collect();
        if matches!(change, EntryChange::GivenUp { .. }) {
            self.give_up_tried();
        }
        Ok((changes.len(), self.record_changes(changes, now)?))
    }

    /// Remembers that a person gave up the entries that a carrier has, until the next change of each.
    fn give_up_tried(&mut self) {
        let tried = self.list_tried_entries();
        self.given_up.extend(tried);
    }

    /// Makes the entries wait that a carrier had, since no job is left. A loss of power can take a job, but not the
    /// record of its tries.
    pub fn release_tried(&mut self, now: i64) {
        for no in self.list_tried_entries() {
            let waits = DeliveryStage::Waits { until: now, why: None };
            self.update_entry(no, |entry| {
                entry.stage = waits;
                entry.has_unanswered_try = true;
            });
        }
    }

    fn list_tried_entries(&self) -> Vec<u64> {
        let tried = self.open_entries().filter(|(_, e)| e.stage == DeliveryStage::Trying);
        tried.map(|(no, _)| no).collect()
    }

    /// Returns true if a person gave up an entry while a carrier had it.
    pub fn is_given_up(&self, no: u64) -> bool {
        self.given_up.contains(&no)
    }

    /// Records durably that fetched messages are in the store, or that the engine still lists them.
    ///
    /// # Errors
    /// Returns the system's error; then the messages come again, and are recognized by their names.
    pub fn record_seen(&mut self, ids: &[String], now: i64) -> io::Result<()> {
        // Ids that the engine still lists must not be forgotten.
        let is_old = |at: &i64| now.saturating_sub(*at) > REMEMBERED / 2;
        let new = ids.iter().filter(|id| self.seen.get(*id).is_none_or(is_old));
        let lines = new.map(|id| JournalLine::Seen { id: id.clone(), at: now }).collect();
        self.append_lines(lines)
    }

    /// Records durably that a fetch was interrupted that may have lost mail.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record_cut(&mut self, now: i64) -> io::Result<()> {
        self.append_line(JournalLine::Cut { at: now })
    }

    /// Returns the times of interrupted fetches, in milliseconds since the epoch, the oldest first.
    pub fn cuts(&self) -> &[i64] {
        &self.cuts
    }

    /// Returns true if the link fetched this id before.
    pub fn is_seen(&self, id: &str) -> bool {
        self.seen.contains_key(id)
    }

    /// Returns all ids that the link fetched and remembers.
    pub fn seen_ids(&self) -> impl Iterator<Item = &str> {
        self.seen.keys().map(String::as_str)
    }

    /// Returns the entry of a message for a recipient.
    pub fn find_entry(&self, message: &str, to: &str) -> Option<&JournalEntry> {
        let mut numbers = self.by_message.get(message)?.iter().rev();
        numbers.find_map(|no| self.entries.get(no).filter(|entry| entry.to == to))
    }

    /// Returns an entry by its number.
    pub fn entry(&self, no: u64) -> Option<&JournalEntry> {
        self.entries.get(&no)
    }

    /// Returns all open entries, the oldest first.
    pub fn open_entries(&self) -> impl Iterator<Item = (u64, &JournalEntry)> {
        self.entries.iter().filter(|(_, entry)| entry.is_open()).map(|(no, entry)| (*no, entry))
    }

    /// Returns the number of open entries.
    pub fn open_count(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    /// Returns the number of refused entries.
    pub fn refused_count(&self) -> usize {
        self.refused.len()
    }

    /// Returns the entries that may go now, at most so many: the oldest first, and behind them those that are
    /// [set aside](SET_ASIDE), in turn.
    pub fn list_due_entries(&mut self, now: i64, at_most: usize) -> Vec<u64> {
        while let Some((until, no)) =
            self.waiting.first().copied().filter(|(until, _)| *until <= now)
        {
            self.waiting.remove(&(until, no));
            let rank = self.entries.get(&no).map_or(0, JournalEntry::rank);
            self.ready.insert((rank, no));
        }
        self.ready.iter().map(|(_, no)| *no).take(at_most).collect()
    }

    /// Returns the time at which the next entry may go, 0 for now; `None` if no entry is open.
    pub fn next_due_time(&self) -> Option<i64> {
        let ready = self.ready.first().map(|_| 0);
        ready.or_else(|| self.waiting.first().map(|(until, _)| *until))
    }

    fn append_line(&mut self, line: JournalLine) -> io::Result<()> {
        self.append_lines(vec![line])
    }

    fn append_lines(&mut self, lines: Vec<JournalLine>) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let text = render_lines(&lines)?;
        let log = self.log.as_mut().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        log.append(&text, AppendSync::Now)?;
        self.lines += lines.len();
        for line in lines {
            self.apply_line(line);
        }
        Ok(())
    }

    fn apply_line(&mut self, line: JournalLine) {
        match line {
            JournalLine::Spooled { no, message, to, at } => {
                self.next_no = self.next_no.max(no + 1);
                let stage = DeliveryStage::Waits { until: at, why: None };
                self.insert_entry(no, (message, to), at, stage);
            }
            JournalLine::Trying { no, tries } => self.update_entry(no, |entry| {
                entry.tries = tries;
                entry.stage = DeliveryStage::Trying;
            }),
            JournalLine::Untried { no, at } => self.update_entry(no, |entry| {
                entry.tries = entry.tries.saturating_sub(1);
                entry.stage = DeliveryStage::Waits { until: at, why: None };
            }),
            JournalLine::Later { no, until, why, failed, unanswered } => {
                self.update_entry(no, |entry| {
                    if entry.stage == DeliveryStage::Trying {
                        entry.failed = failed.or_else(|| Some(entry.add_failure(until)));
                    } else {
                        entry.failed = failed.or(entry.failed);
                    }
                    entry.has_unanswered_try |= unanswered;
                    entry.stage = DeliveryStage::Waits { until, why: Some(why) };
                });
            }
            JournalLine::Taken { no, at, given } => {
                self.update_entry(no, |entry| {
                    entry.stage = DeliveryStage::Taken;
                    entry.given_id = given;
                    entry.ended_at = Some(at);
                });
            }
            JournalLine::Refused { no, at, why, unanswered } => {
                self.update_entry(no, |entry| {
                    entry.has_unanswered_try = unanswered;
                    entry.stage = DeliveryStage::Refused(why);
                    entry.ended_at = Some(at);
                });
            }
            JournalLine::Seen { id, at } => {
                self.seen.insert(id, at);
            }
            JournalLine::Cut { at } => self.cuts.push(at),
        }
    }

    fn insert_entry(&mut self, no: u64, whose: (String, String), at: i64, stage: DeliveryStage) {
        let (message, to) = whose;
        let numbers = self.by_message.entry(message.clone()).or_default();
        if !numbers.contains(&no) {
            numbers.push(no);
        }
        let entry = JournalEntry {
            message,
            to,
            since: at,
            tries: 0,
            stage,
            failed: None,
            has_unanswered_try: false,
            given_id: None,
            ended_at: None,
        };
        let old = self.entries.insert(no, entry);
        self.reindex_entry(no, old.map(|old| old.stage).as_ref());
    }

    fn remove_entry(&mut self, no: u64) {
        let Some(entry) = self.entries.remove(&no) else { return };
        self.reindex_entry(no, Some(&entry.stage));
        if let Entry::Occupied(mut numbers) = self.by_message.entry(entry.message) {
            numbers.get_mut().retain(|kept| *kept != no);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }

    fn update_entry(&mut self, no: u64, change: impl FnOnce(&mut JournalEntry)) {
        if let Some(entry) = self.entries.get_mut(&no) {
            let old = entry.stage.clone();
            change(entry);
            self.reindex_entry(no, Some(&old));
        }
    }

    /// Moves an entry from the set of its old stage to the set of its new one, so that no call searches all entries.
    fn reindex_entry(&mut self, no: u64, old: Option<&DeliveryStage>) {
        match old {
            Some(DeliveryStage::Waits { until, .. }) => {
                self.waiting.remove(&(*until, no));
                // It has one of these two ranks.
                self.ready.remove(&(0, no));
                self.ready.remove(&(*until, no));
            }
            Some(DeliveryStage::Trying) => drop(self.ready.remove(&(0, no))),
            Some(DeliveryStage::Refused(_)) => drop(self.refused.remove(&no)),
            Some(DeliveryStage::Unsynced | DeliveryStage::Taken) | None => {}
        }
        let Some(entry) = self.entries.get(&no) else { return };
        match entry.stage {
            DeliveryStage::Waits { until, .. } => drop(self.waiting.insert((until, no))),
            // Its job is over or lost when this set is asked.
            DeliveryStage::Trying => drop(self.ready.insert((0, no))),
            DeliveryStage::Refused(_) if !entry.has_unanswered_try => {
                self.refused.insert(no);
            }
            DeliveryStage::Refused(_) | DeliveryStage::Unsynced | DeliveryStage::Taken => {}
        }
    }

    fn forget_old(&mut self, now: i64) {
        let is_old = |at: i64| now.saturating_sub(at) > REMEMBERED;
        // The age is counted from the last id that the link saw, not from now, so a link that was off for long forgets
        // nothing.
        let last = self.seen.values().copied().max().unwrap_or(now).min(now);
        self.seen.retain(|_, at| last.saturating_sub(*at) <= REMEMBERED);
        self.cuts.retain(|at| !is_old(*at));
        let old = self.entries.iter().filter(|(_, entry)| entry.ended_at.is_some_and(is_old));
        let old: Vec<u64> = old.map(|(no, _)| *no).collect();
        for no in old {
            self.remove_entry(no);
        }
    }

    /// Writes what still counts to a new file.
    fn compact_file(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        for (no, entry) in &self.entries {
            let (no, at) = (*no, entry.ended_at.unwrap_or(entry.since));
            let unanswered = entry.has_unanswered_try;
            let (message, to) = (entry.message.clone(), entry.to.clone());
            lines.push(JournalLine::Spooled { no, message, to, at: entry.since });
            let is_untried = matches!(&entry.stage, DeliveryStage::Waits { why: None, .. });
            // The line of a later stage has them, and no other needs them.
            if entry.failed.is_some() && (is_untried || entry.stage == DeliveryStage::Trying) {
                let (until, why, failed) = (at, String::new(), entry.failed);
                lines.push(JournalLine::Later { no, until, why, failed, unanswered });
            }
            if entry.tries > 0 {
                let tries = entry.tries.saturating_add(u32::from(is_untried));
                lines.push(JournalLine::Trying { no, tries });
            }
            match &entry.stage {
                DeliveryStage::Waits { why: None, until } if entry.tries > 0 => {
                    lines.push(JournalLine::Untried { no, at: *until });
                }
                DeliveryStage::Waits { why: None, .. }
                | DeliveryStage::Trying
                | DeliveryStage::Unsynced => {}
                DeliveryStage::Waits { until, why: Some(why) } => {
                    let (until, why, failed) = (*until, why.clone(), entry.failed);
                    lines.push(JournalLine::Later { no, until, why, failed, unanswered });
                }
                DeliveryStage::Taken => {
                    lines.push(JournalLine::Taken { no, at, given: entry.given_id.clone() });
                }
                DeliveryStage::Refused(why) => {
                    lines.push(JournalLine::Refused { no, at, why: why.clone(), unanswered });
                }
            }
        }
        let seen = self.seen.iter().map(|(id, at)| JournalLine::Seen { id: id.clone(), at: *at });
        lines.extend(seen);
        lines.extend(self.cuts.iter().map(|at| JournalLine::Cut { at: *at }));
        let text = render_lines(&lines)?;
        let log = self.log.as_mut().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        log.replace(&text)?;
        self.lines = lines.len();
        Ok(())
    }
}

/// Renders lines in the form in which they stand in the file.
fn render_lines(lines: &[JournalLine]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
