//! Which files are one message, and what that changes: the files of the engine sorted by
//! [`group`](super::group), with the ids that were settled before ([`held`](super::held)).
//!
//! Files that could be one message, or share a writer and an id, are found through prints they have in
//! common; when a file changes, only the files reached through them are sorted anew.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::group::{self, Held, Item, Message};
use super::held::{Ledger, Settled, Who};
use super::letter::{BY_NAME, Kept};
use super::place::Folder;
use crate::store::engine::files::{self, Facts as _};

/// The files of the mailbox.
pub(super) type Table = files::Table<Kept>;

/// What is known beyond single files.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Who has which id.
    pub ledger: Ledger,
    /// The files of messages that have more than one, by the number of the leader.
    groups: HashMap<u32, Vec<u32>>,
}

/// What taking in files found so far.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// What gave a message its id and is not there any more, and what was settled about that id.
    pub lost: Vec<(Kept, Held)>,
    /// Files whose writers were not finished: before and now.
    pub grown: Vec<(Kept, Kept)>,
    /// Keys that files had before they changed.
    keys: BTreeSet<(u8, u64)>,
    /// Messages to which they belonged, by the numbers of their leaders.
    leaders: BTreeSet<u32>,
}

/// What has to be reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    /// Files that were reported before and are reported again, or are gone.
    pub again: Vec<u32>,
    /// Messages to report.
    pub messages: Vec<Message>,
}

impl Step {
    /// A file is about to change, or changed from this.
    pub fn leave(&mut self, old: &Kept) {
        let keys = (0..Kept::SLOTS).map(|slot| (slot, old.key(slot, true)));
        self.keys.extend(keys.filter(|(_, key)| *key != 0));
        self.leaders.insert(old.leader);
    }
}

/// What is settled about the id of a file.
pub(super) fn held(table: &Table, n: u32) -> Held {
    match (table.twins.get(&n), table.facts(n)) {
        (Some(hash), _) => Held::Twin(*hash),
        (None, Some(kept)) if kept.has(Kept::PLAIN) => Held::Plain,
        _ => Held::No,
    }
}

/// What a file says, for [`group`].
fn item(table: &Table, n: u32, settled: Settled) -> Option<Item<'_>> {
    table.row(n).filter(|row| row.is_message())?;
    let folder = Folder::from_name(table.folder(n).rsplit_once('/')?.1)?;
    let (path, kept) = ((table.folder(n), table.name(n)), table.facts(n)?);
    Some(Item { source: n, path, folder, kept, held: settled.held, taken: settled.taken })
}

impl Known {
    /// No files yet.
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, groups: HashMap::new() }
    }

    /// The message that a file belongs to.
    pub fn message_of(&self, table: &Table, n: u32) -> Option<Message> {
        table.row(n).filter(|row| row.is_message())?;
        let leader = table.facts(n).map(|kept| kept.leader).filter(|n| *n != Kept::UNSORTED)?;
        let one = [n];
        let members = self.groups.get(&leader).map_or(&one[..], Vec::as_slice);
        let of = |n: &u32| item(table, *n, Settled { held: held(table, *n), taken: false });
        let items: Vec<Item<'_>> = members.iter().filter_map(of).collect();
        group::message(&items, leader, held(table, leader))
    }

    /// Settles that the message of this file has its id for good.
    pub fn keep_id(&mut self, table: &Table, n: u32) {
        let leader = table.facts(n).map(|kept| kept.leader);
        if let Some((leader, kept)) = leader.and_then(|n| Some((n, table.facts(n)?))) {
            self.ledger.settle(kept, held(table, leader));
        }
    }

    /// Takes over another table.
    pub fn restore(&mut self, table: &Table) {
        self.groups.clear();
        for (n, _, kept) in table.messages() {
            self.groups.entry(kept.leader).or_default().push(n);
        }
        self.groups.retain(|_, members| members.len() > 1);
    }

    /// Settles which messages the files make now, given those that were read or went away.
    pub fn apply(&mut self, table: &mut Table, touched: &BTreeSet<u32>, step: Step) -> Delta {
        for (was, now) in &step.grown {
            if let Some(settled) = self.ledger.look(was) {
                self.ledger.settle(now, settled.held);
            }
        }
        let mut reached = BTreeSet::new();
        let members = step.leaders.iter().filter_map(|n| self.groups.get(n)).flatten();
        let keys = step.keys.iter().flat_map(|(slot, key)| table.with_key(*slot, *key));
        for n in touched.iter().chain(members).copied().chain(keys) {
            self.reach(table, n, &mut reached);
        }
        // Before anything gets a name: what is gone keeps its own.
        let lost: Vec<Kept> = step
            .lost
            .into_iter()
            .filter(|(kept, held)| self.ledger.settle(kept, *held))
            .map(|(kept, _)| kept)
            .collect();
        let changed = |m: &Message| m.members.iter().any(|n| touched.contains(n));
        let old: Vec<Message> = self.leaders(table, &reached, &step.leaders);
        for leader in &step.leaders {
            self.groups.remove(leader);
        }
        let new = self.sort_anew(table, &reached);
        self.settle(table, lost, &new);
        let old: Vec<Message> =
            old.into_iter().filter(|m| changed(m) || !new.contains(m)).collect();
        let overlaps =
            |m: &Message| old.iter().any(|o| o.members.iter().any(|n| m.members.contains(n)));
        let messages = new.into_iter().filter(|m| changed(m) || overlaps(m)).collect();
        let mut again: Vec<u32> = old.into_iter().flat_map(|m| m.members).collect();
        again.sort_unstable();
        Delta { again, messages }
    }

    /// The messages that these files made so far, those with files that are gone included.
    fn leaders(&self, table: &Table, files: &BTreeSet<u32>, gone: &BTreeSet<u32>) -> Vec<Message> {
        let leaders: BTreeSet<u32> = files
            .iter()
            .filter_map(|n| Some(table.facts(*n)?.leader))
            .chain(gone.iter().copied())
            .collect();
        let message = |leader: u32| {
            let members = self.groups.get(&leader).cloned().unwrap_or_else(|| vec![leader]);
            let known = members.iter().find_map(|n| self.message_of(table, *n))?;
            Some(Message { members, ..known })
        };
        leaders.into_iter().filter_map(message).collect()
    }

    /// Keeps what cannot be told from the files alone: who has an id that others want too, and by which
    /// of its copies a message is known. Of what is gone, its id, unless it went on under another name.
    fn settle(&mut self, table: &Table, lost: Vec<Kept>, new: &[Message]) {
        let named: Vec<(&Kept, &Message)> =
            new.iter().filter_map(|m| Some((table.facts(m.leader)?, m))).collect();
        let mut wanted: HashMap<[u8; 16], usize> = HashMap::new();
        for (kept, _) in &named {
            *wanted.entry(kept.name).or_default() += 1;
        }
        for kept in lost {
            let same = |h: &&Kept| h.name == kept.name && Who::of(h).is(&Who::of(&kept));
            let goes_on = named.iter().any(|(h, _)| same(h));
            if goes_on && wanted.get(&kept.name) == Some(&1) {
                self.ledger.unsettle(&kept);
            }
        }
        for (kept, message) in named {
            let mut copies = message.members.iter().filter_map(|n| table.facts(*n));
            if message.held != Held::Plain
                || wanted.get(&kept.name) != Some(&1)
                || self.ledger.look(kept).is_some()
                || copies.any(|copy| (copy.name, copy.time) != (kept.name, kept.time))
            {
                self.ledger.settle(kept, message.held);
            }
        }
    }

    /// Sorts these files into messages again.
    fn sort_anew(&mut self, table: &mut Table, files: &BTreeSet<u32>) -> Vec<Message> {
        let new = {
            let item = |n: &u32| {
                let own = Settled { held: held(table, *n), taken: false };
                item(table, *n, self.ledger.look(table.facts(*n)?).unwrap_or(own))
            };
            let items: Vec<Item<'_>> = files.iter().filter_map(item).collect();
            group::messages(&items)
        };
        for n in files {
            table.twins.remove(n);
            let leader = table.facts(*n).map_or(*n, |kept| kept.leader);
            self.groups.remove(&leader);
        }
        for message in &new {
            for n in &message.members {
                let plain = *n == message.leader && message.held == Held::Plain;
                table.change(*n, |_, kept| {
                    kept.leader = message.leader;
                    kept.set(Kept::PLAIN, plain);
                });
            }
            if let Held::Twin(hash) = message.held {
                table.twins.insert(message.leader, hash);
            }
            if message.members.len() > 1 {
                self.groups.insert(message.leader, message.members.clone());
            }
        }
        new
    }

    /// Adds the file, and all that is connected with it, to `reached`.
    fn reach(&self, table: &Table, from: u32, reached: &mut BTreeSet<u32>) {
        let mut todo = vec![from];
        let mut seen_keys: HashSet<(u8, u64)> = HashSet::new();
        while let Some(n) = todo.pop() {
            let there = table.row(n).is_some_and(files::Row::is_message);
            let Some(kept) = table.facts(n).filter(|_| there) else { continue };
            if !reached.insert(n) && n != from {
                continue;
            }
            if let Some(members) = self.groups.get(&kept.leader) {
                todo.extend(members.iter().filter(|m| !reached.contains(m)));
            }
            for slot in 0..=BY_NAME {
                let key = kept.key(slot, true);
                if key != 0 && seen_keys.insert((slot, key)) {
                    let with = table.with_key(slot, key);
                    todo.extend(with.into_iter().filter(|m| !reached.contains(m)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
