//! The groups of files that are one message, and the changes of these groups. The files of the engine are grouped by
//! [`group`](super::group), with the ids that were settled before ([`id_ledger`](super::id_ledger)).
//!
//! Files that could be one message, or share a writer and an id, have hashes in common and are found by them. When a
//! file changes, only the files connected with it are grouped again.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::group::{self, IdAssignment, LetterCopy, LetterGroup};
use super::id_ledger::{IdLedger, IdRuling, LetterIdentity};
use super::layout::MailboxFolder;
use super::letter::{BY_NAME, LetterFacts};
use crate::store::engine::files::{self, FileFacts as _};

/// The files of the mailbox.
pub(super) type LetterTable = files::FileTable<LetterFacts>;

/// The groups, and the ids that were settled.
#[derive(Debug, Default)]
pub(super) struct GroupIndex {
    /// The owners of ids.
    pub ledger: IdLedger,
    /// The files of messages that have more than one, by the number of the leader.
    groups: HashMap<u32, Vec<u32>>,
}

/// The changes by the files that a scan has read so far.
#[derive(Debug, Default)]
pub(super) struct LetterChanges {
    /// Leaders that are gone, with the assignments of their ids.
    pub lost: Vec<(LetterFacts, IdAssignment)>,
    /// Files whose writers were not finished: old and new facts.
    pub grown: Vec<(LetterFacts, LetterFacts)>,
    /// Keys that files had before they changed.
    keys: BTreeSet<(u8, u64)>,
    /// Old messages of the changed files, by the numbers of their leaders.
    leaders: BTreeSet<u32>,
}

/// The changes of messages that must be reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GroupDelta {
    /// Files that were reported before and are reported again, or are gone.
    pub withdrawn_files: Vec<u32>,
    /// Messages to report.
    pub groups: Vec<LetterGroup>,
}

impl LetterChanges {
    /// Notes the facts of a file before its change.
    pub fn note_change(&mut self, old: &LetterFacts) {
        let keys = (0..LetterFacts::SLOTS).map(|slot| (slot, old.slot_key(slot, true)));
        self.keys.extend(keys.filter(|(_, key)| *key != 0));
        self.leaders.insert(old.leader);
    }
}

/// Returns the assignment of a file's id.
pub(super) fn read_assignment(table: &LetterTable, n: u32) -> IdAssignment {
    match (table.qualifiers.get(&n), table.facts(n)) {
        (Some(hash), _) => IdAssignment::Hashed(*hash),
        (None, Some(kept)) if kept.has_bit(LetterFacts::PLAIN) => IdAssignment::Plain,
        _ => IdAssignment::Unassigned,
    }
}

/// Returns a file as an input of [`group`].
fn build_copy(table: &LetterTable, n: u32, settled: IdRuling) -> Option<LetterCopy<'_>> {
    table.row(n).filter(|row| row.is_message())?;
    let folder = MailboxFolder::from_name(table.folder(n).rsplit_once('/')?.1)?;
    let (path, kept) = ((table.folder(n), table.name(n)), table.facts(n)?);
    Some(LetterCopy {
        source: n,
        path,
        folder,
        facts: kept,
        assignment: settled.assignment,
        is_id_taken: settled.is_id_taken,
    })
}

impl GroupIndex {
    /// Returns the message that a file belongs to.
    pub fn find_group(&self, table: &LetterTable, n: u32) -> Option<LetterGroup> {
        table.row(n).filter(|row| row.is_message())?;
        let leader =
            table.facts(n).map(|kept| kept.leader).filter(|n| *n != LetterFacts::UNSORTED)?;
        let one = [n];
        let members = self.groups.get(&leader).map_or(&one[..], Vec::as_slice);
        let of = |n: &u32| {
            build_copy(
                table,
                *n,
                IdRuling { assignment: read_assignment(table, *n), is_id_taken: false },
            )
        };
        let items: Vec<LetterCopy<'_>> = members.iter().filter_map(of).collect();
        group::build_group(&items, leader, read_assignment(table, leader))
    }

    /// Assigns its id to the message of this file for good.
    pub fn make_id_permanent(&mut self, table: &LetterTable, n: u32) {
        let leader = table.facts(n).map(|kept| kept.leader);
        if let Some((leader, kept)) = leader.and_then(|n| Some((n, table.facts(n)?))) {
            self.ledger.assign_id(kept, read_assignment(table, leader));
        }
    }

    /// Builds the groups of another table.
    pub fn restore_groups(&mut self, table: &LetterTable) {
        self.groups.clear();
        for (n, _, kept) in table.messages() {
            self.groups.entry(kept.leader).or_default().push(n);
        }
        self.groups.retain(|_, members| members.len() > 1);
    }

    /// Groups the changed files again. `touched` has the files that were read or went away.
    pub fn apply_changes(
        &mut self,
        table: &mut LetterTable,
        touched: &BTreeSet<u32>,
        step: LetterChanges,
    ) -> GroupDelta {
        for (was, now) in &step.grown {
            if let Some(settled) = self.ledger.find_ruling(was) {
                self.ledger.assign_id(now, settled.assignment);
            }
        }
        let members = step.leaders.iter().filter_map(|n| self.groups.get(n)).flatten();
        let keys = step.keys.iter().flat_map(|(slot, key)| table.files_with_key(*slot, *key));
        let from = touched.iter().chain(members).copied().chain(keys).collect();
        let reached = self.collect_connected(table, from);
        // The ids of lost files are settled before any file gets a name: a lost file keeps its own.
        let lost: Vec<LetterFacts> = step
            .lost
            .into_iter()
            .filter(|(kept, held)| self.ledger.assign_id(kept, *held))
            .map(|(kept, _)| kept)
            .collect();
        let changed = |m: &LetterGroup| m.members.iter().any(|n| touched.contains(n));
        let old: Vec<LetterGroup> = self.list_old_groups(table, &reached, &step.leaders);
        for leader in &step.leaders {
            self.groups.remove(leader);
        }
        let new = self.regroup_files(table, &reached);
        self.settle_ids(table, lost, &new);
        let by_leader: HashMap<u32, &LetterGroup> = new.iter().map(|m| (m.leader, m)).collect();
        let is_new = |m: &LetterGroup| by_leader.get(&m.leader).is_some_and(|same| *same == m);
        let old = old.into_iter().filter(|m| changed(m) || !is_new(m));
        let mut again: Vec<u32> = old.flat_map(|m| m.members).collect();
        again.sort_unstable();
        let overlaps = |m: &LetterGroup| m.members.iter().any(|n| again.binary_search(n).is_ok());
        let messages = new.into_iter().filter(|m| changed(m) || overlaps(m)).collect();
        GroupDelta { withdrawn_files: again, groups: messages }
    }

    /// Returns the messages that these files made so far. Messages with files that are gone are among them.
    fn list_old_groups(
        &self,
        table: &LetterTable,
        files: &BTreeSet<u32>,
        gone: &BTreeSet<u32>,
    ) -> Vec<LetterGroup> {
        let leaders: BTreeSet<u32> = files
            .iter()
            .filter_map(|n| Some(table.facts(*n)?.leader))
            .chain(gone.iter().copied())
            .collect();
        let message = |leader: u32| {
            let members = self.groups.get(&leader).cloned().unwrap_or_else(|| vec![leader]);
            let known = members.iter().find_map(|n| self.find_group(table, *n))?;
            Some(LetterGroup { members, ..known })
        };
        leaders.into_iter().filter_map(message).collect()
    }

    /// Saves in the ledger the assignments that do not follow from the files alone: the owner of an id that several
    /// messages want, and the copy by which a message is known. A lost file keeps its id, unless its message went on
    /// under another name.
    fn settle_ids(&mut self, table: &LetterTable, lost: Vec<LetterFacts>, new: &[LetterGroup]) {
        let named: Vec<(&LetterFacts, &LetterGroup)> =
            new.iter().filter_map(|m| Some((table.facts(m.leader)?, m))).collect();
        let mut wanted: HashMap<[u8; 16], Vec<&LetterFacts>> = HashMap::new();
        for (kept, _) in &named {
            wanted.entry(kept.name_hash).or_default().push(kept);
        }
        for kept in lost {
            let Some([only]) = wanted.get(&kept.name_hash).map(Vec::as_slice) else { continue };
            if LetterIdentity::from_facts(only).is_same_message(&LetterIdentity::from_facts(&kept))
            {
                self.ledger.revoke_unsaved(&kept);
            }
        }
        for (kept, message) in named {
            let mut copies = message.members.iter().filter_map(|n| table.facts(*n));
            if message.assignment != IdAssignment::Plain
                || wanted.get(&kept.name_hash).is_none_or(|all| all.len() != 1)
                || self.ledger.find_ruling(kept).is_some()
                || copies.any(|copy| (copy.name_hash, copy.time) != (kept.name_hash, kept.time))
            {
                self.ledger.assign_id(kept, message.assignment);
            }
        }
    }

    /// Groups these files again.
    fn regroup_files(
        &mut self,
        table: &mut LetterTable,
        files: &BTreeSet<u32>,
    ) -> Vec<LetterGroup> {
        let new = {
            let item = |n: &u32| {
                let own = IdRuling { assignment: read_assignment(table, *n), is_id_taken: false };
                build_copy(table, *n, self.ledger.find_ruling(table.facts(*n)?).unwrap_or(own))
            };
            let items: Vec<LetterCopy<'_>> = files.iter().filter_map(item).collect();
            group::group_copies(&items)
        };
        for n in files {
            table.qualifiers.remove(n);
            let leader = table.facts(*n).map_or(*n, |kept| kept.leader);
            self.groups.remove(&leader);
        }
        for message in &new {
            for n in &message.members {
                let plain = *n == message.leader && message.assignment == IdAssignment::Plain;
                table.update_row(*n, |_, kept| {
                    kept.leader = message.leader;
                    kept.set_bit(LetterFacts::PLAIN, plain);
                });
            }
            if let IdAssignment::Hashed(hash) = message.assignment {
                table.qualifiers.insert(message.leader, hash);
            }
            if message.members.len() > 1 {
                self.groups.insert(message.leader, message.members.clone());
            }
        }
        new
    }

    /// Returns these files, and all files connected with them. Each group and each key is followed once.
    fn collect_connected(&self, table: &LetterTable, from: Vec<u32>) -> BTreeSet<u32> {
        let mut todo = from;
        let mut reached = BTreeSet::new();
        let mut seen_leaders: HashSet<u32> = HashSet::new();
        let mut seen_keys: HashSet<(u8, u64)> = HashSet::new();
        while let Some(n) = todo.pop() {
            let there = table.row(n).is_some_and(files::FileRow::is_message);
            let Some(kept) = table.facts(n).filter(|_| there) else { continue };
            if !reached.insert(n) {
                continue;
            }
            if seen_leaders.insert(kept.leader) {
                todo.extend(self.groups.get(&kept.leader).into_iter().flatten());
            }
            for slot in 0..=BY_NAME {
                let key = kept.slot_key(slot, true);
                if key != 0 && seen_keys.insert((slot, key)) {
                    todo.extend(table.files_with_key(slot, key));
                }
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests;
