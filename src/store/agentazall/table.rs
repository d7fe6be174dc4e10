//! The message files of a mailbox and the messages they make, between scans.
//!
//! A file's row is its source number. Files that could be one message, or share a writer and an id,
//! are found through hashes they have in common ([`Table::keys`]); when a file changes, only the
//! files reached through them are sorted anew.
//!
//! A number stands for one text under one path: when another text is found there, or none, the number
//! is never used again. Thus whoever still has it can neither read nor mark the wrong message.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::group::{self, Held, Item, Message};
use super::held::{Ledger, Settled, Who};
use super::letter::Head;
use super::place::{Folder, Place};
use crate::model::Timestamp;
use crate::store::Location;
use crate::store::fs::Stamp;

/// The most sources an index can number.
const MAX_SOURCES: usize = (1 << 24) - 1;

/// What a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// It is not there (any more).
    #[default]
    Gone,
    /// A message.
    Letter(Box<Head>),
    /// A message that the address filter keeps out, and why.
    Refused(Box<Head>, Box<str>),
    /// Something that cannot be read as one.
    Problem {
        /// What is wrong, in a sentence.
        reason: Box<str>,
        /// It may still become a message.
        incomplete: bool,
    },
}

impl State {
    /// What it says, if it could be read.
    pub fn head(&self) -> Option<&Head> {
        match self {
            Self::Letter(head) | Self::Refused(head, _) => Some(head),
            Self::Gone | Self::Problem { .. } => None,
        }
    }

    fn letter(&self) -> Option<&Head> {
        if let Self::Letter(head) = self { Some(head) } else { None }
    }
}

/// One file that is or was in the mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// `<day>/<folder>/<name>`; empty where the number is not used any more.
    pub path: Box<str>,
    /// As it was when it was read.
    pub stamp: Stamp,
    /// The state of the folder with its attachments; 0 if there is none.
    pub parts: u64,
    /// What it is.
    pub state: State,
    /// What was settled about its id.
    pub held: Held,
    /// The message it belongs to, by its number in [`Table::messages`].
    pub message: u32,
}

impl Row {
    /// Its place as a location.
    pub fn location(&self, source: u32) -> Location {
        let len = u32::try_from(self.stamp.size).unwrap_or(u32::MAX);
        Location { source, offset: 0, len }
    }

    /// Its message's time, else that of the file.
    pub fn time(&self) -> Timestamp {
        self.state.head().map_or_else(|| on_disk(&self.stamp), |head| head.time)
    }
}

/// A file's own modification time.
pub(super) fn on_disk(stamp: &Stamp) -> Timestamp {
    Timestamp::from_millis(i64::try_from(stamp.mtime / 1_000_000).unwrap_or_default())
}

/// One file as a scan found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// `<day>/<folder>/<name>`.
    pub path: String,
    /// As it is now.
    pub stamp: Stamp,
    /// The state of its attachments' folder.
    pub parts: u64,
    /// What it is now.
    pub state: State,
    /// It is what was there before, with more added to it: its writer was not finished.
    pub grown: bool,
}

/// What has to be reported after changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    /// Sources that were reported before and are reported again, or are gone.
    pub again: Vec<u32>,
    /// Messages to report.
    pub messages: Vec<Message>,
    /// Sources to report as rejected.
    pub rejected: Vec<u32>,
}

/// What taking in changes found so far.
#[derive(Default)]
struct Step {
    touched: BTreeSet<u32>,
    /// Numbers that were reported before.
    known: BTreeSet<u32>,
    reached: BTreeSet<u32>,
    /// What gave a message its id and is not there any more, and what was settled about that id.
    lost: Vec<(Head, Held)>,
    delta: Delta,
}

/// All files ever seen in the mailbox.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    by_path: HashTable<u32>,
    hasher: std::hash::RandomState,
    /// Hashes that files have in common if they may belong together, each with a row.
    keys: HashTable<(u64, u32)>,
    messages: HashMap<u32, Message>,
    next_message: u32,
    /// Files in an `outbox/`.
    outbox: BTreeSet<u32>,
    /// Who has which id.
    ledger: Ledger,
}

impl Table {
    /// A table without files.
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// Forgets all files, but not who has which id.
    pub fn clear(&mut self) {
        *self = Self::new(std::mem::take(&mut self.ledger));
    }

    /// What was settled about ids since this was asked last, to be kept ([`Ledger::take_lines`]).
    pub fn take_lines(&mut self) -> Vec<u8> {
        self.ledger.take_lines()
    }

    /// Settles that the message of this file has its id for good.
    pub fn keep_id(&mut self, source: u32) {
        let leader = self.message_of(source).map(|m| (m.leader, m.held));
        let head = leader.and_then(|(n, _)| self.rows.get(n as usize)?.state.letter());
        if let (Some((_, held)), Some(head)) = (leader, head) {
            self.ledger.settle(head, held);
        }
    }

    /// Has a file looked at again.
    pub fn forget_stamp(&mut self, source: u32) {
        if let Some(row) = self.rows.get_mut(source as usize) {
            row.stamp = Stamp::default();
        }
    }

    /// The row of a source.
    pub fn row(&self, source: u32) -> Option<&Row> {
        self.rows.get(source as usize)
    }

    /// All rows, in the order of their numbers.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The number of a path.
    pub fn find(&self, path: &str) -> Option<u32> {
        let rows = &self.rows;
        let same = |n: &u32| rows.get(*n as usize).is_some_and(|row| *row.path == *path);
        self.by_path.find(self.hasher.hash_one(path), same).copied()
    }

    /// The message that a file belongs to.
    pub fn message_of(&self, source: u32) -> Option<&Message> {
        let row = self.row(source)?;
        row.state.letter()?;
        self.messages.get(&row.message)
    }

    /// The files that wait in an `outbox/`, by number.
    pub fn outbox(&self) -> impl Iterator<Item = u32> + '_ {
        self.outbox.iter().copied()
    }

    /// Takes over rows that were saved.
    pub fn restore(&mut self, rows: Vec<Row>, me: &str) {
        self.clear();
        self.rows = rows;
        for n in 0..self.rows.len() as u32 {
            self.index_path(n);
            self.add_keys(n);
        }
        let all: BTreeSet<u32> = (0..self.rows.len() as u32).collect();
        self.sort_anew(&all, me);
    }

    /// Takes in what a scan found and settles which messages the files make.
    pub fn apply(&mut self, changes: Vec<Change>, me: &str) -> Delta {
        let mut step = Step::default();
        for change in changes {
            self.take_in(change, &mut step);
        }
        let Step { touched, known, mut reached, lost, mut delta } = step;
        for n in &touched {
            self.reach(*n, &mut reached);
        }
        // Before anything gets a name: what is gone keeps its own.
        let lost: Vec<Head> = lost
            .into_iter()
            .filter(|(head, held)| self.ledger.settle(head, *held))
            .map(|(head, _)| head)
            .collect();
        let (old, new) = self.sort_anew(&reached, me);
        self.settle(lost, &new);
        let same = |m: &Message| !m.members.iter().any(|n| touched.contains(n));
        let old: Vec<Message> = old.into_iter().filter(|m| !(same(m) && new.contains(m))).collect();
        delta.messages = new
            .into_iter()
            .filter(|m| {
                !same(m) || old.iter().any(|o| o.members.iter().any(|n| m.members.contains(n)))
            })
            .collect();
        let mut again = known;
        again.extend(old.iter().flat_map(|m| m.members.iter().copied()));
        delta.again = again.into_iter().collect();
        delta
    }

    /// Takes in one file.
    fn take_in(&mut self, change: Change, step: &mut Step) {
        let known = self.find(&change.path);
        if known.is_none() && change.state == State::Gone {
            return;
        }
        let Some(mut n) = self.number(&change.path) else { return };
        let was = self.row(n).map(|row| row.state.clone()).unwrap_or_default();
        if was != State::Gone {
            step.known.insert(n);
        }
        self.reach(n, &mut step.reached);
        self.remove_keys(n);
        let same = match (was.letter(), change.state.letter()) {
            (Some(was), Some(now)) => change.grown || Who::of(was).is(&Who::of(now)),
            (was, _) => was.is_none(),
        };
        if let (true, Some(was), Some(now)) = (change.grown, was.letter(), change.state.letter())
            && (&was.from, &was.id) == (&now.from, &now.id)
            && let Some(settled) = self.ledger.look(was)
        {
            self.ledger.settle(now, settled.held);
        }
        if !same {
            step.lost.extend(was.letter().cloned().and_then(|head| Some((head, self.led_by(n)?))));
        }
        if change.state == State::Gone || (!same && change.state.letter().is_some()) {
            step.touched.insert(n);
            self.retire(n);
            if change.state == State::Gone {
                return;
            }
            let Some(next) = self.number(&change.path) else { return };
            n = next;
        }
        let Some(row) = self.rows.get_mut(n as usize) else { return };
        let name = |state: &State| state.letter().map(|h| (h.from.clone(), h.id.clone()));
        if name(&was) != name(&change.state) {
            row.held = Held::No;
        }
        row.stamp = change.stamp;
        row.parts = change.parts;
        if matches!(change.state, State::Refused(..) | State::Problem { .. }) {
            step.delta.rejected.push(n);
        }
        row.state = change.state;
        self.add_keys(n);
        step.touched.insert(n);
    }

    /// What is settled about the id of the message that this file gave its id.
    fn led_by(&self, n: u32) -> Option<Held> {
        let message = self.messages.get(&self.row(n)?.message)?;
        (message.leader == n).then_some(message.held)
    }

    /// Takes a number out of use.
    fn retire(&mut self, n: u32) {
        let Some(path) = self.row(n).map(|row| row.path.clone()) else { return };
        if let Ok(entry) = self.by_path.find_entry(self.hasher.hash_one(&*path), |m| *m == n) {
            entry.remove();
        }
        if let Some(row) = self.rows.get_mut(n as usize) {
            let message = row.message;
            *row = Row { message, ..Row::default() };
        }
    }

    /// Keeps what cannot be told from the files alone: who has an id that others want too, and by which
    /// of its copies a message is known. Of what is gone, its id, unless it went on under another name.
    fn settle(&mut self, lost: Vec<Head>, new: &[Message]) {
        let leader = |m: &Message| self.rows.get(m.leader as usize).and_then(|r| r.state.letter());
        let named: Vec<(&Head, &Message)> =
            new.iter().filter_map(|m| Some((leader(m)?, m))).collect();
        let mut wanted: HashMap<(&str, &str), usize> = HashMap::new();
        for (head, _) in &named {
            *wanted.entry((&head.from, &head.id)).or_default() += 1;
        }
        for head in lost {
            let same = |h: &&Head| (&h.from, &h.id) == (&head.from, &head.id);
            let goes_on = named.iter().any(|(h, _)| same(h) && Who::of(h).is(&Who::of(&head)));
            if goes_on && wanted.get(&(&*head.from, &*head.id)) == Some(&1) {
                self.ledger.unsettle(&head);
            }
        }
        for (head, message) in named {
            let copies = message.members.iter().filter_map(|n| self.rows.get(*n as usize));
            let known = |h: &Head| (&h.from, &h.id, h.time) == (&head.from, &head.id, head.time);
            if message.held != Held::Plain
                || wanted.get(&(&*head.from, &*head.id)) != Some(&1)
                || self.ledger.look(head).is_some()
                || copies.filter_map(|r| r.state.letter()).any(|h| !known(h))
            {
                self.ledger.settle(head, message.held);
            }
        }
    }

    /// Sorts these files into messages again; what they made before, and what they make now.
    fn sort_anew(&mut self, files: &BTreeSet<u32>, me: &str) -> (Vec<Message>, Vec<Message>) {
        let numbers: BTreeSet<u32> =
            files.iter().filter_map(|n| self.row(*n)).map(|row| row.message).collect();
        // Rows of files that never belonged to a message have the number 0, which none has.
        let old: Vec<Message> = numbers.iter().filter_map(|n| self.messages.remove(n)).collect();
        let items: Vec<Item<'_>> = files
            .iter()
            .filter_map(|n| {
                let row = self.row(*n)?;
                let folder = Place::parse(&row.path)?.folder;
                let head = row.state.letter()?;
                let settled = self.ledger.look(head);
                let settled = settled.unwrap_or(Settled { held: row.held, taken: false });
                let Settled { held, taken } = settled;
                Some(Item { source: *n, path: &row.path, folder, head, held, taken })
            })
            .collect();
        let new = group::messages(&items, me);
        for n in files {
            if let Some(row) = self.rows.get_mut(*n as usize) {
                row.message = 0;
                row.held = Held::No;
            }
        }
        for message in &new {
            self.next_message += 1;
            for n in &message.members {
                if let Some(row) = self.rows.get_mut(*n as usize) {
                    row.message = self.next_message;
                    row.held = if *n == message.leader { message.held } else { Held::No };
                }
            }
            self.messages.insert(self.next_message, message.clone());
        }
        (old, new)
    }

    /// Adds the file, and all that is connected with it, to `reached`.
    fn reach(&self, from: u32, reached: &mut BTreeSet<u32>) {
        let mut todo = vec![from];
        let mut seen_keys: HashSet<u64> = HashSet::new();
        while let Some(n) = todo.pop() {
            if !reached.insert(n) && n != from {
                continue;
            }
            let Some(row) = self.row(n) else { continue };
            if let Some(message) = self.messages.get(&row.message) {
                todo.extend(message.members.iter().filter(|m| !reached.contains(m)));
            }
            for key in self.keys_of(n) {
                if seen_keys.insert(key) {
                    let with = self.keys.iter_hash(key).filter(|(k, _)| *k == key);
                    todo.extend(with.map(|(_, m)| *m).filter(|m| !reached.contains(m)));
                }
            }
        }
    }

    /// What this file has in common with those it may belong to.
    fn keys_of(&self, n: u32) -> impl Iterator<Item = u64> + use<> {
        let head = self.row(n).and_then(|row| row.state.letter());
        let short = |print: [u8; 16]| u128::from_le_bytes(print) as u64;
        [
            head.map(|h| short(h.text)),
            head.and_then(|h| h.link).map(short),
            head.and_then(|h| h.copy).map(short),
            head.map(|h| self.hasher.hash_one((&h.from, &h.id))),
        ]
        .into_iter()
        .flatten()
    }

    fn add_keys(&mut self, n: u32) {
        for key in self.keys_of(n) {
            self.keys.insert_unique(key, (key, n), |(key, _)| *key);
        }
        let Some(row) = self.rows.get(n as usize) else { return };
        let waits = Place::parse(&row.path).is_some_and(|p| p.folder == Folder::Outbox);
        if waits && row.state.letter().is_some() {
            self.outbox.insert(n);
        }
    }

    fn remove_keys(&mut self, n: u32) {
        for key in self.keys_of(n) {
            if let Ok(entry) = self.keys.find_entry(key, |e| *e == (key, n)) {
                entry.remove();
            }
        }
        self.outbox.remove(&n);
    }

    /// The number of a path, a new one if it was never seen; `None` when there are too many.
    fn number(&mut self, path: &str) -> Option<u32> {
        if let Some(n) = self.find(path) {
            return Some(n);
        }
        if self.rows.len() >= MAX_SOURCES {
            return None;
        }
        let n = self.rows.len() as u32;
        self.rows.push(Row { path: path.into(), ..Row::default() });
        self.index_path(n);
        Some(n)
    }

    fn index_path(&mut self, n: u32) {
        let (rows, hasher) = (&self.rows, &self.hasher);
        let hash = |n: &u32| rows.get(*n as usize).map_or(0, |row| hasher.hash_one(&*row.path));
        if rows.get(n as usize).is_none_or(|row| row.path.is_empty()) {
            return;
        }
        self.by_path.insert_unique(hash(&n), n, hash);
    }
}

#[cfg(test)]
mod tests;
