//! The grouping of files into messages (docs/formats/agentazall.md, section 8).
//!
//! 1. Files with the same id, From and text, or with the same signed Message-ID (by the same key), are one message.
//!    Files of equal text that verify by different keys stay apart, so that nobody can hide another's message behind a
//!    signature of their own.
//! 2. Without a signed Message-ID, copies that came by other transports are one message. They have the same signature,
//!    From and Subject (and text), and Dates of different form within 48 hours. They are paired in time order.
//! 3. Of different messages with one From and id, one has the id, the others the id with the hash of their file. A
//!    message that has the id keeps it ([`id_ledger`](super::id_ledger)).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::layout::MailboxFolder;
use super::letter::{DateOrigin, LetterFacts, LetterHash};
use crate::store::engine::files;

/// Time limit between copies. Files that are further apart are not copies.
const WINDOW_MS: i64 = 48 * 60 * 60 * 1000;

/// The assignment of an id that an earlier look at a file settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IdAssignment {
    /// No assignment: the file is new, or its message is known by the id of another copy.
    #[default]
    Unassigned,
    /// The id of the file, as it is.
    Plain,
    /// The id of the file with this hash.
    Hashed([u8; 32]),
}

/// One file that may be a copy of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct LetterCopy<'a> {
    /// Its source number.
    pub source: u32,
    /// The path of its folder, and its name there.
    pub path: (&'a str, &'a str),
    /// The folder it lies in.
    pub folder: MailboxFolder,
    /// Its facts.
    pub facts: &'a LetterFacts,
    /// The assignment that was settled before.
    pub assignment: IdAssignment,
    /// True if its id without a hash is known to belong to another message.
    pub is_id_taken: bool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LetterGroup {
    /// Its files, by number.
    pub members: Vec<u32>,
    /// The file that shows it.
    pub display_file: u32,
    /// The file whose id it has.
    pub leader: u32,
    /// The assignment of that id.
    pub assignment: IdAssignment,
    /// True if a copy in `inbox/` is marked read; `None` without a copy there.
    pub read: Option<bool>,
    /// A hash of the copies in `inbox/` that could be marked read and are not.
    pub unmarked: u64,
    /// True if a copy lies in `inbox/`.
    pub to_me: bool,
    /// True if a copy lies in `sent/`, or lies in `outbox/` or `carrying/` and has me or nobody as its writer.
    /// Everything in my `sent/` is mine, whatever its From (an agent may have been renamed). A message in `outbox/` may
    /// be another's that a program will carry, so it counts as mine only by its From.
    pub from_me: bool,
}

/// Groups files into messages. The files are those that share any hash.
pub(super) fn group_copies(items: &[LetterCopy<'_>]) -> Vec<LetterGroup> {
    let mut sets = DisjointSets::new(items.len());
    join_equal_texts(items, &mut sets);
    join_transport_copies(items, &mut sets);
    assign_ids(sets.collect_groups(), items)
}

/// Joins files by rule 1.
fn join_equal_texts(items: &[LetterCopy<'_>], sets: &mut DisjointSets) {
    let mut texts: HashMap<LetterHash, Vec<usize>> = HashMap::new();
    let mut links: HashMap<LetterHash, usize> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        texts.entry(item.facts.text_hash).or_default().push(i);
        if let Some(link) = item.facts.link_hash() {
            sets.join_sets(*links.entry(link).or_insert(i), i);
        }
    }
    for mut same in texts.into_values() {
        same.sort_by_key(|i| items.get(*i).map(|item| display_rank(item)));
        let Some(first) = same.first().copied() else { continue };
        let mut keys: HashMap<LetterHash, usize> = HashMap::new();
        for i in same {
            let kept = items.get(i).map(|item| item.facts);
            let key = kept.filter(|kept| kept.is_signed()).map(|kept| kept.key_hash);
            let with = key.map_or(first, |key| *keys.entry(key).or_insert(i));
            sets.join_sets(with, i);
        }
    }
}

/// Joins files by rule 2.
fn join_transport_copies(items: &[LetterCopy<'_>], sets: &mut DisjointSets) {
    struct CopyGroup<'a> {
        first: usize,
        time: i64,
        path: (&'a str, &'a str),
        forms: u8,
    }
    let mut same: BTreeMap<LetterHash, Vec<CopyGroup<'_>>> = BTreeMap::new();
    for group in sets.collect_groups() {
        let heads = || group.iter().filter_map(|i| items.get(*i));
        if heads().any(|item| item.facts.link_hash().is_some()) {
            continue;
        }
        let Some(copy) = heads().find_map(|item| item.facts.copy_hash()) else { continue };
        let forms = heads().fold(0, |forms, item| forms | form_bit(item.facts.date_origin()));
        let Some(oldest) = heads().min_by_key(|item| (item.facts.time, item.path)) else {
            continue;
        };
        let Some(first) = group.first().copied() else { continue };
        let time = oldest.facts.time;
        same.entry(copy).or_default().push(CopyGroup { first, time, path: oldest.path, forms });
    }
    for mut groups in same.into_values() {
        groups.sort_by_key(|g| (g.time, g.path));
        // The groups that may get another copy, by their forms, each by its position.
        let mut open: BTreeMap<u8, BTreeSet<usize>> = BTreeMap::new();
        for (at, group) in groups.iter().enumerate() {
            let is_late = |place: &usize| {
                groups.get(*place).is_none_or(|o| group.time.saturating_sub(o.time) > WINDOW_MS)
            };
            for places in open.values_mut() {
                while places.first().is_some_and(is_late) {
                    places.pop_first();
                }
            }
            let fits = open.iter().filter(|(forms, _)| **forms & group.forms == 0);
            let oldest = fits.filter_map(|(forms, places)| Some((*places.first()?, *forms))).min();
            let (place, forms) = oldest.unwrap_or((at, 0));
            if let Some(other) = groups.get(place) {
                sets.join_sets(other.first, group.first);
            }
            if let Some(places) = open.get_mut(&forms) {
                places.remove(&place);
            }
            open.entry(forms | group.forms).or_default().insert(place);
        }
    }
}

/// Returns a form as a bit of a set; 0 for no form.
const fn form_bit(form: DateOrigin) -> u8 {
    if matches!(form, DateOrigin::None) { 0 } else { 1 << form as u8 }
}

/// Builds a message from its files, with a settled id.
pub(super) fn build_group(
    members: &[LetterCopy<'_>],
    leader: u32,
    held: IdAssignment,
) -> Option<LetterGroup> {
    let best = members.iter().min_by_key(|i| display_rank(i))?;
    let inbox = || members.iter().filter(|i| i.folder == MailboxFolder::Inbox);
    let mine = |i: &LetterCopy<'_>| match i.folder {
        MailboxFolder::Inbox => false,
        MailboxFolder::Sent => true,
        MailboxFolder::Outbox | MailboxFolder::Carrying => i.facts.has_bit(LetterFacts::MINE),
    };
    let mut sources: Vec<u32> = members.iter().map(|i| i.source).collect();
    sources.sort_unstable();
    Some(LetterGroup {
        display_file: best.source,
        leader,
        assignment: held,
        to_me: inbox().next().is_some(),
        read: inbox().next().is_some().then(|| inbox().any(|i| i.facts.has_bit(LetterFacts::READ))),
        unmarked: files::hash_unmarked_files(
            inbox().filter(|i| i.facts.has_bit(LetterFacts::NEW)).map(|i| i.source),
        ),
        from_me: members.iter().any(mine),
        members: sources,
    })
}

/// Assigns ids by rule 3 and chooses the file that shows each message.
fn assign_ids(groups: Vec<Vec<usize>>, items: &[LetterCopy<'_>]) -> Vec<LetterGroup> {
    let mut out = Vec::with_capacity(groups.len());
    let mut by_name: HashMap<LetterHash, Vec<(usize, LetterCopy<'_>)>> = HashMap::new();
    for group in groups {
        let members: Vec<LetterCopy<'_>> =
            group.iter().filter_map(|i| items.get(*i)).copied().collect();
        let Some(leader) = members.iter().min_by_key(|i| leader_rank(i)) else { continue };
        by_name.entry(leader.facts.name_hash).or_default().push((out.len(), *leader));
        out.extend(build_group(&members, leader.source, IdAssignment::Plain));
    }
    for mut same_named in by_name.into_values() {
        same_named.sort_by_key(|(_, i)| {
            let kept = i.facts;
            let held = i.assignment != IdAssignment::Plain || i.is_id_taken;
            (held, !kept.is_signed(), kept.time, kept.file_hash, i.path)
        });
        let mut used: HashSet<[u8; 32]> = HashSet::new();
        for (n, (ix, leader)) in same_named.iter().enumerate() {
            let hash = match leader.assignment {
                IdAssignment::Hashed(hash) if !used.contains(&hash) => hash,
                IdAssignment::Unassigned | IdAssignment::Plain if n == 0 && !leader.is_id_taken => {
                    continue;
                }
                _ => leader.facts.file_hash,
            };
            used.insert(hash);
            if let Some(message) = out.get_mut(*ix) {
                message.assignment = IdAssignment::Hashed(hash);
            }
        }
    }
    out
}

/// Returns the rank of a file as the one whose id the message has: verified files first, then files with a settled id,
/// then the form of the writer's own program.
fn leader_rank<'a>(i: &LetterCopy<'a>) -> impl Ord + use<'a> {
    let kept = i.facts;
    let signed = (!kept.is_signed(), !kept.has_bit(LetterFacts::WHOLE));
    (
        signed,
        i.assignment == IdAssignment::Unassigned,
        kept.date_origin(),
        i.folder,
        kept.time,
        i.path,
    )
}

/// Returns the rank of a file as the one that shows a message: verified files first, then files with attachments.
fn display_rank<'a>(i: &LetterCopy<'a>) -> impl Ord + use<'a> {
    let kept = i.facts;
    let signed = (!kept.is_signed(), !kept.has_bit(LetterFacts::WHOLE), kept.link_hash().is_none());
    (
        signed,
        !kept.has_bit(LetterFacts::PARTS),
        i.assignment == IdAssignment::Unassigned,
        kept.date_origin(),
        i.folder,
        kept.time,
        i.path,
    )
}

/// Disjoint sets of positions.
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    fn new(len: usize) -> Self {
        Self((0..len).collect())
    }

    fn find_root(&mut self, mut i: usize) -> usize {
        while let Some(above) = self.0.get(i).copied()
            && above != i
        {
            let top = self.0.get(above).copied().unwrap_or(above);
            if let Some(slot) = self.0.get_mut(i) {
                *slot = top;
            }
            i = above;
        }
        i
    }

    fn join_sets(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find_root(a), self.find_root(b));
        if let Some(slot) = self.0.get_mut(a.max(b)) {
            *slot = a.min(b);
        }
    }

    fn collect_groups(&mut self) -> Vec<Vec<usize>> {
        let mut out: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for i in 0..self.0.len() {
            out.entry(self.find_root(i)).or_default().push(i);
        }
        out.into_values().collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
