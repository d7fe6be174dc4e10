//! The owner of each line: a fork copies the lines of another session, and each counts once.
//!
//! The session that a line was copied from owns it. A fork may name its origin in its copies: then it comes after it, and
//! a fork of the fork after both. Else the session whose first line without an id is older owns the line, because such
//! lines are not copied; else the one with the smaller name. So the owner does not depend on the order in which logs are
//! read.

use std::collections::{BTreeMap, BTreeSet};

use bytemuck::{Pod, Zeroable};
use hashbrown::HashTable;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::line::SessionLine;

/// The owner of a line, in 24 bytes a line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct LineOwner {
    /// The hash of the id.
    id: u64,
    /// The offset of the line in its log, times 2^16, and the last full read of the log that found it.
    place: u64,
    /// The hash of the content.
    content: u32,
    log: u32,
}

impl LineOwner {
    fn new(line: &OwnedLine) -> Self {
        let place = line.offset << 16 | u64::from(line.epoch as u16);
        Self { id: line.id, place, content: line.content, log: line.log }
    }

    fn epoch(&self) -> u16 {
        self.place as u16
    }
}

/// A line that is read.
#[derive(Clone, Copy, Debug)]
pub struct OwnedLine {
    /// The hash of its id.
    pub id: u64,
    /// The hash of its content.
    pub content: u32,
    /// The number of its log.
    pub log: u32,
    /// Its offset there.
    pub offset: u64,
    /// The number of times that the log was read.
    pub epoch: u32,
}

/// The decision on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineClaim {
    /// It is a line of this log.
    Own,
    /// An earlier line of this log is the same.
    Repeated,
    /// An earlier line with this id is another one.
    Conflict,
    /// It is a copy of a line of the log with this number.
    CopyOf(u32),
}

/// The rank of a log among those that hold the same line: the lower one owns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct LogRank {
    /// The number of forks between it and a log that names no origin.
    generation: u32,
    /// The time of its first line without an id; the last possible one if none is known.
    begun: i64,
    name: String,
}

/// The highest generation: logs that name each other as origins have it.
const MAX_GENERATION: u32 = 1000;

/// The facts of all logs of a store together.
#[derive(Debug, Default)]
pub struct SessionShared {
    lines: HashTable<LineOwner>,
    ranks: BTreeMap<u32, LogRank>,
    /// The sessions that logs name as their origins.
    origins: BTreeMap<u32, BTreeSet<String>>,
    /// Pairs of a log with copies and the log that owns them.
    copies: BTreeSet<(u32, u32)>,
    /// Logs that must be read again, because lines in others turned out to be theirs, or not to be.
    pub rereads: BTreeSet<u32>,
    /// Logs that were read again or are gone. They may have lost lines.
    pub reread: BTreeSet<u32>,
    /// Logs whose titles may have changed.
    pub retitled: BTreeSet<u32>,
    /// The lines that forks share with their origins, by the log of the fork.
    pub forks: BTreeMap<u32, Vec<ForkedLine>>,
}

/// A line that a fork may have repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkedLine {
    /// The hash of its content.
    pub content: u32,
    /// Its id, if it ends a message.
    pub id: Option<String>,
}

/// Returns the line of an origin that a line of its fork repeats, and the number of lines before it. `ahead` are the
/// lines after the last one that was repeated. A fork may lack a piece of its origin, and no message.
pub fn find_copied<'o>(
    ahead: &'o [ForkedLine],
    line: &SessionLine<'_>,
) -> Option<(usize, &'o ForkedLine)> {
    let is_same = |one: &ForkedLine| one.content == line.content;
    let mut ahead = ahead.iter().enumerate();
    if line.step.ends_message() {
        return ahead.find(|(_, one)| one.id.is_some()).filter(|(_, one)| is_same(one));
    }
    ahead.take_while(|(_, one)| one.id.is_none()).find(|(_, one)| is_same(one))
}

/// Returns the id of the last message among lines.
pub fn last_message(lines: &[ForkedLine]) -> Option<&String> {
    lines.iter().rev().find_map(|line| line.id.as_ref())
}

/// The part of the facts that is saved besides the lines.
#[derive(Serialize, Deserialize)]
struct SavedRanks {
    ranks: Vec<(u32, LogRank)>,
    origins: Vec<(u32, BTreeSet<String>)>,
    copies: Vec<(u32, u32)>,
}

/// Returns the hash of a line's id.
pub fn hash_line_id(id: &str) -> u64 {
    XxHash3_64::oneshot(id.as_bytes())
}

impl SessionShared {
    /// Notes a log by its name, with the time of its first line without an id if that is known. If an earlier time
    /// becomes known, the log may own lines that were taken for copies.
    pub fn note_log(&mut self, log: u32, name: &str, begun: Option<i64>) {
        let begun = begun.unwrap_or(i64::MAX);
        let new = || LogRank { generation: 0, begun: i64::MAX, name: name.to_owned() };
        let rank = self.ranks.entry(log).or_insert_with(new);
        if begun < rank.begun {
            rank.begun = begun;
            self.queue_winners();
        }
    }

    /// Notes that a log names a session as its origin. Lines that it owns may be those of others.
    pub fn note_origin(&mut self, log: u32, origin: &str) {
        let origins = self.origins.entry(log).or_default();
        if !origins.contains(origin) {
            origins.insert(origin.to_owned());
            self.count_generations();
        }
    }

    /// Forgets the origins that logs named which are gone.
    pub fn forget_origins(&mut self, is_gone: impl Fn(u32) -> bool) {
        let before = self.origins.len();
        self.origins.retain(|log, _| !is_gone(*log));
        if self.origins.len() < before {
            self.count_generations();
        }
    }

    /// Counts the generation of each log anew: one more than the highest of the origins that it names.
    fn count_generations(&mut self) {
        let mut named: BTreeMap<&str, u32> = BTreeMap::new();
        let mut found: BTreeMap<u32, u32> = BTreeMap::new();
        loop {
            let before = found.clone();
            for (log, origins) in &self.origins {
                let Some(rank) = self.ranks.get(log) else { continue };
                let above = origins.iter().filter_map(|origin| named.get(origin.as_str())).max();
                let generation = (above.map_or(0, |above| *above) + 1).min(MAX_GENERATION);
                found.insert(*log, generation);
                let known = named.entry(&rank.name).or_default();
                *known = generation.max(*known);
            }
            if found == before {
                break;
            }
        }
        for (log, rank) in &mut self.ranks {
            rank.generation = found.get(log).copied().unwrap_or_default();
        }
        self.queue_winners();
    }

    /// Queues the logs with copies that turned out to be theirs.
    fn queue_winners(&mut self) {
        let rank = |log: &u32| self.ranks.get(log);
        let wins = |(of, owner): &&(u32, u32)| rank(of) < rank(owner);
        self.rereads.extend(self.copies.iter().filter(wins).map(|(of, _)| *of));
    }

    /// Returns the name under which a log was noted.
    pub fn log_name(&self, log: u32) -> Option<&str> {
        self.ranks.get(&log).map(|rank| rank.name.as_str())
    }

    /// Decides on a line. If the line is taken from another log, that log is read again.
    pub fn claim_line(&mut self, line: &OwnedLine) -> LineClaim {
        let mine = LineOwner::new(line);
        let Some(known) = self.lines.find_mut(line.id, |known| known.id == line.id) else {
            self.lines.insert_unique(line.id, mine, |known| known.id);
            return LineClaim::Own;
        };
        if known.log == line.log {
            if known.epoch() != mine.epoch() {
                *known = mine;
                return LineClaim::Own;
            }
            let same = known.content == mine.content;
            return if same { LineClaim::Repeated } else { LineClaim::Conflict };
        }
        let other = known.log;
        if self.ranks.get(&line.log) < self.ranks.get(&other) {
            *known = mine;
            self.copies.insert((other, line.log));
            self.rereads.insert(other);
            return LineClaim::Own;
        }
        self.copies.insert((line.log, other));
        if known.content == mine.content { LineClaim::CopyOf(other) } else { LineClaim::Conflict }
    }

    /// Returns true if the line with this id belongs to the log in which it stands.
    pub fn is_own_line(&self, id: u64, log: u32, offset: u64) -> bool {
        let known = self.lines.find(id, |known| known.id == id);
        known.is_some_and(|known| known.log == log && known.place >> 16 == offset)
    }

    /// Returns true if a log owns the line with this id.
    pub fn owns_line(&self, id: u64, log: u32) -> bool {
        self.lines.find(id, |known| known.id == id).is_some_and(|known| known.log == log)
    }

    /// Forgets the lines that logs have lost, and has the logs read again that have copies of them. `epoch` returns how
    /// often a log was read.
    pub fn forget_lost_lines(&mut self, epoch: impl Fn(u32) -> u32) {
        let reread = std::mem::take(&mut self.reread);
        if reread.is_empty() {
            return;
        }
        let mut losers = BTreeSet::new();
        self.lines.retain(|line| {
            let stays = !reread.contains(&line.log) || line.epoch() == epoch(line.log) as u16;
            if !stays {
                losers.insert(line.log);
            }
            stays
        });
        let freed = |(_, owner): &(u32, u32)| losers.contains(owner);
        self.rereads.extend(self.copies.iter().filter(|pair| freed(pair)).map(|(of, _)| *of));
        self.copies.retain(|pair| !freed(pair));
    }

    /// Returns the facts as bytes, for [`SessionShared::restore`].
    pub fn save(&self) -> Vec<u8> {
        let ranks = self.ranks.iter().map(|(log, rank)| (*log, rank.clone())).collect();
        let origins = self.origins.iter().map(|(log, named)| (*log, named.clone())).collect();
        let copies = self.copies.iter().copied().collect();
        let saved = SavedRanks { ranks, origins, copies };
        let Ok(text) = serde_json::to_vec(&saved) else { return Vec::new() };
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(&text);
        for line in &self.lines {
            out.extend_from_slice(bytemuck::bytes_of(line));
        }
        out
    }

    /// Restores the facts from bytes; `None` if they are malformed.
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let (text, rest) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let SavedRanks { ranks, origins, copies } = serde_json::from_slice(text).ok()?;
        let (owners, odd) = rest.as_chunks::<{ size_of::<LineOwner>() }>();
        if !odd.is_empty() {
            return None;
        }
        let mut lines = HashTable::with_capacity(owners.len());
        for bytes in owners {
            let owner: LineOwner = bytemuck::pod_read_unaligned(bytes);
            lines.insert_unique(owner.id, owner, |known| known.id);
        }
        let (ranks, origins) = (ranks.into_iter().collect(), origins.into_iter().collect());
        let copies = copies.into_iter().collect();
        Some(Self { lines, ranks, origins, copies, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(shared: &mut SessionShared, log: u32, epoch: u32, id: &str) -> LineClaim {
        let id = hash_line_id(id);
        shared.claim_line(&OwnedLine { id, content: 7, log, offset: 9, epoch })
    }

    #[test]
    fn the_older_log_owns_a_line_in_whatever_order() {
        for order in [[0, 1], [1, 0]] {
            let mut shared = SessionShared::default();
            for log in order {
                shared.note_log(log, &format!("s{log}"), Some(i64::from(log)));
                claim(&mut shared, log, 1, "a");
            }
            assert!(shared.owns_line(hash_line_id("a"), 0), "{order:?}");
            assert_eq!(shared.rereads.contains(&1), order == [1, 0]);
            assert_eq!(claim(&mut shared, 1, 2, "a"), LineClaim::CopyOf(0));
        }
    }

    #[test]
    fn a_log_that_names_its_origin_is_a_fork() {
        let mut shared = SessionShared::default();
        shared.note_log(0, "a", Some(1));
        shared.note_log(1, "b", Some(2));
        assert_eq!(claim(&mut shared, 0, 1, "x"), LineClaim::Own);
        assert_eq!(claim(&mut shared, 1, 1, "x"), LineClaim::CopyOf(0));
        shared.note_origin(0, "b");
        assert_eq!(std::mem::take(&mut shared.rereads), BTreeSet::from([1]));
        assert_eq!(claim(&mut shared, 1, 2, "x"), LineClaim::Own);
        assert_eq!(std::mem::take(&mut shared.rereads), BTreeSet::from([0]));
        assert_eq!(claim(&mut shared, 0, 2, "x"), LineClaim::CopyOf(1));
        // The original is deleted.
        shared.reread.insert(1);
        shared.forget_lost_lines(|_| 3);
        assert_eq!(shared.rereads, BTreeSet::from([0]));
        assert_eq!(claim(&mut shared, 0, 3, "x"), LineClaim::Own);
    }

    #[test]
    fn a_fork_of_a_fork_comes_after_both() {
        let generations = |named: &[(u32, &str)]| {
            let mut shared = SessionShared::default();
            for (log, name) in [(0, "c"), (1, "b"), (2, "a"), (3, "x")] {
                shared.note_log(log, name, None);
            }
            for (log, origin) in named {
                shared.note_origin(*log, origin);
            }
            let again = SessionShared::restore(&shared.save()).unwrap();
            assert_eq!((&again.ranks, &again.origins), (&shared.ranks, &shared.origins));
            let of = |shared: &SessionShared| {
                [0, 1, 2, 3].map(|log| shared.ranks.get(&log).unwrap().generation)
            };
            let all = of(&shared);
            shared.forget_origins(|log| log == 1);
            (all, of(&shared))
        };
        let expected = ([2, 1, 0, 0], [1, 0, 0, 0]);
        assert_eq!(generations(&[(0, "b"), (1, "a")]), expected);
        assert_eq!(generations(&[(1, "a"), (0, "b"), (0, "gone")]), expected);
        // Two logs that name each other come after all others.
        let (most, last) = (MAX_GENERATION, [1, 0, 1, 0]);
        assert_eq!(generations(&[(0, "b"), (1, "c"), (2, "x")]), ([most, most, 1, 0], last));
    }

    #[test]
    fn a_time_that_is_known_later_decides_again() {
        let mut shared = SessionShared::default();
        shared.note_log(0, "a", None);
        shared.note_log(1, "b", None);
        claim(&mut shared, 0, 1, "x");
        assert_eq!(claim(&mut shared, 1, 1, "x"), LineClaim::CopyOf(0));
        shared.note_log(1, "b", Some(5));
        assert_eq!(std::mem::take(&mut shared.rereads), BTreeSet::from([1]));
        assert_eq!(claim(&mut shared, 1, 2, "x"), LineClaim::Own);
        assert_eq!(shared.rereads, BTreeSet::from([0]));
    }

    #[test]
    fn what_is_saved_is_restored() {
        let mut shared = SessionShared::default();
        shared.note_log(3, "c", Some(4));
        for n in 0..100 {
            claim(&mut shared, 3, 1, &n.to_string());
        }
        let again = SessionShared::restore(&shared.save()).unwrap();
        assert!((0..100).all(|n| again.is_own_line(hash_line_id(&n.to_string()), 3, 9)));
        assert_eq!(again.ranks, shared.ranks);
        assert!(SessionShared::restore(&[1, 2, 3]).is_none());
    }
}
