//! The read counts of messages, as each machine comes to know them.
//!
//! Each machine has a count for each message. An odd count means that its mark *read* stands; clearing the mark makes
//! the count even. A machine that reads an unread message raises its own count. A machine that makes a message unread
//! raises the counts of those marks that it knows, and no others. Counts only grow, and the greater of two is right, so
//! order, repetition and source of the counts do not matter. A mark that the clearing machine did not know stays.

use std::collections::HashMap;

use crate::model::{MachineId, Mark, MarkOrigin};

/// The limit on the size of the counts that are accepted from other machines, in bytes.
const MOST: usize = if cfg!(test) { 64 << 10 } else { 192 << 20 };
/// The size of a count besides its texts.
const COUNT: usize = 160;
/// The owner of a mark that follows from a read position: it is kept here and not published.
pub const NOBODY: MachineId = MachineId(0);

/// The counts of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounter(Vec<(MachineId, u32)>);

impl ReadCounter {
    /// Returns true if the message is read.
    pub fn is_read(&self) -> bool {
        self.0.iter().any(|(_, count)| count % 2 == 1)
    }

    /// Returns how often a machine's mark was made and cleared.
    pub fn count(&self, host: MachineId) -> u32 {
        let at = self.0.binary_search_by_key(&host, |(host, _)| *host);
        at.ok().and_then(|at| self.0.get(at)).map_or(0, |(_, count)| *count)
    }

    /// Merges a count. Returns true if it is greater than the known one.
    pub fn merge_count(&mut self, host: MachineId, count: u32) -> bool {
        match self.0.binary_search_by_key(&host, |(host, _)| *host) {
            Err(at) if count > 0 => self.0.insert(at, (host, count)),
            Err(_) => return false,
            Ok(at) => match self.0.get_mut(at) {
                Some((_, known)) if *known < count => *known = count,
                _ => return false,
            },
        }
        true
    }

    /// Makes the message read or unread on a machine. Returns the changed counts.
    fn set_read(&mut self, here: MachineId, read: bool) -> Vec<(MachineId, u32)> {
        let mut changed: Vec<(MachineId, u32)> = Vec::new();
        match read {
            true if !self.is_read() => changed.push((here, self.count(here).saturating_add(1))),
            true => {}
            false => changed.extend(
                self.0
                    .iter()
                    .filter(|(_, n)| n % 2 == 1)
                    .map(|(host, n)| (*host, n.saturating_add(1))),
            ),
        }
        for (host, count) in &changed {
            self.merge_count(*host, *count);
        }
        changed
    }
}

/// The count of one machine for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadCount {
    /// The writer of the message.
    pub from: String,
    /// The id of the message.
    pub id: String,
    /// The machine that has this count.
    pub host: MachineId,
    /// The count.
    pub count: u32,
}

/// Returns the size in memory of one count for this message.
fn count_size(from: &str, id: &str) -> usize {
    COUNT + from.len() + id.len()
}

/// The known counts of all messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkReplica {
    /// The counts, by writer and id.
    all: HashMap<String, HashMap<String, ReadCounter>>,
    /// The size of all counts.
    size: usize,
}

impl MarkReplica {
    fn get(&self, from: &str, id: &str) -> Option<&ReadCounter> {
        self.all.get(from)?.get(id)
    }

    fn counter_mut(&mut self, from: &str, id: &str) -> &mut ReadCounter {
        if !self.all.contains_key(from) {
            self.all.insert(from.to_owned(), HashMap::new());
        }
        let of_writer = self.all.entry(from.to_owned()).or_default();
        of_writer.entry(id.to_owned()).or_default()
    }

    /// Returns true if no more counts can be kept.
    pub fn is_full(&self) -> bool {
        self.size >= MOST
    }

    /// Returns true if there is a count of the same machine for the same message.
    pub fn has_count(&self, entry: &ReadCount) -> bool {
        self.get(&entry.from, &entry.id).is_some_and(|said| said.count(entry.host) > 0)
    }

    /// Merges a count. Returns true if it is greater than the known one.
    pub fn merge_count(&mut self, entry: &ReadCount) -> bool {
        let said = self.counter_mut(&entry.from, &entry.id);
        let before = said.0.len();
        let changed = said.merge_count(entry.host, entry.count);
        let grown = said.0.len() - before;
        self.size += grown * count_size(&entry.from, &entry.id);
        changed
    }

    /// Applies a mark that this machine noted. Returns the counts to publish, if it was made here.
    pub fn apply_mark(&mut self, here: MachineId, mark: &Mark) -> Vec<ReadCount> {
        let entry = |(host, count)| {
            let (from, id) = (mark.from.clone(), mark.id.clone());
            ReadCount { from, id, host, count }
        };
        let whose = match mark.origin {
            MarkOrigin::Here => here,
            MarkOrigin::Position => NOBODY,
            MarkOrigin::Heard(host, count) => {
                self.merge_count(&entry((host, count)));
                return Vec::new();
            }
        };
        let said = self.counter_mut(&mark.from, &mark.id);
        let before = said.0.len();
        let changed = said.set_read(whose, mark.read);
        let grown = said.0.len() - before;
        self.size += grown * count_size(&mark.from, &mark.id);
        changed.into_iter().filter(|(host, _)| *host != NOBODY).map(entry).collect()
    }

    /// Returns a mark for each new count, with its effect on the message. Changes nothing.
    pub fn preview_news(&self, entries: &[ReadCount]) -> Vec<Mark> {
        let (mut changed, mut news, mut size) = (HashMap::new(), Vec::new(), self.size);
        for ReadCount { from, id, host, count } in entries {
            let known = || self.get(from, id).cloned().unwrap_or_default();
            let said: &mut ReadCounter = changed.entry((from, id)).or_insert_with(known);
            if size < MOST && said.merge_count(*host, *count) {
                size += count_size(from, id);
                let (from, id, read) = (from.clone(), id.clone(), said.is_read());
                news.push(Mark { from, id, read, origin: MarkOrigin::Heard(*host, *count) });
            }
        }
        news
    }

    /// Returns the counts that another replica lacks and that may be published.
    pub fn list_missing_in(&self, other: &Self) -> Vec<ReadCount> {
        let mut beyond = Vec::new();
        for (from, of_writer) in &self.all {
            for (id, said) in of_writer {
                let known = other.get(from, id);
                for (host, count) in said.0.iter().filter(|(host, _)| *host != NOBODY) {
                    if known.is_none_or(|known| known.count(*host) < *count) {
                        let (from, id) = (from.clone(), id.clone());
                        beyond.push(ReadCount { from, id, host: *host, count: *count });
                    }
                }
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn said() -> impl Strategy<Value = ReadCounter> {
        vec((1u64..5, 1u32..6), 0..6).prop_map(|counts| {
            let mut said = ReadCounter::default();
            for (host, count) in counts {
                said.merge_count(MachineId(host), count);
            }
            said
        })
    }

    fn joined(a: &ReadCounter, b: &ReadCounter) -> ReadCounter {
        let mut all = a.clone();
        for (host, count) in &b.0 {
            all.merge_count(*host, *count);
        }
        all
    }

    fn mark(read: bool, origin: MarkOrigin) -> Mark {
        Mark { from: "bob".into(), id: "1".into(), read, origin }
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter(a in said(), b in said(), c in said()) {
            prop_assert_eq!(joined(&a, &b), joined(&b, &a));
            prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
            prop_assert_eq!(joined(&a, &a), a.clone());
            prop_assert_eq!(joined(&a, &joined(&a, &b)), joined(&a, &b));
        }

        /// Checks that a count does not clear a mark that its machine never knew.
        #[test]
        fn who_knows_less_makes_nothing_unread(a in said(), b in said()) {
            let stands = |(host, count): &&(MachineId, u32)| count % 2 == 1 && b.count(*host) <= *count;
            if a.0.iter().any(|own| stands(&own)) {
                prop_assert!(joined(&a, &b).is_read());
            }
        }

        /// Runs four machines that read, clear and exchange counts in any order. In the model each mark is a thing of
        /// its own, and clearing removes the known ones.
        #[test]
        fn marks_stand_until_somebody_who_knows_them_clears_them(
            steps in vec((0usize..4, 0usize..4, 0u8..3), 0..60),
        ) {
            let mut replicas = vec![MarkReplica::default(); 4];
            // Each model has the marks that were made and those that were cleared.
            let mut models = vec![(HashSet::new(), HashSet::new()); 4];
            for (n, (here, there, what)) in steps.into_iter().enumerate() {
                let host = MachineId(here as u64 + 1);
                let (made, cleared) = &mut models[here];
                match what {
                    0 => {
                        if made.is_subset(cleared) {
                            made.insert(n);
                        }
                        replicas[here].apply_mark(host, &mark(true, MarkOrigin::Here));
                    }
                    1 => {
                        cleared.extend(made.iter().copied());
                        replicas[here].apply_mark(host, &mark(false, MarkOrigin::Here));
                    }
                    _ => {
                        let (theirs, gone) = models[there].clone();
                        models[here].0.extend(theirs);
                        models[here].1.extend(gone);
                        let all = replicas[there].list_missing_in(&MarkReplica::default());
                        for news in replicas[here].preview_news(&all) {
                            replicas[here].apply_mark(host, &news);
                        }
                    }
                }
                let read = |replica: &MarkReplica| replica.get("bob", "1").is_some_and(ReadCounter::is_read);
                for (replica, (made, cleared)) in replicas.iter().zip(&models) {
                    prop_assert_eq!(read(replica), !made.is_subset(cleared));
                    let all = replica.list_missing_in(&MarkReplica::default());
                    prop_assert_eq!(replica.size, all.len() * count_size("bob", "1"));
                }
            }
        }

        /// Checks that the missing counts of each side make both sides equal.
        #[test]
        fn what_is_beyond_is_enough(a in said(), b in said()) {
            let whole = |said: &ReadCounter| {
                let mut replica = MarkReplica::default();
                for (host, count) in &said.0 {
                    let (from, id) = ("bob".to_owned(), "1".to_owned());
                    replica.merge_count(&ReadCount { from, id, host: *host, count: *count });
                }
                replica
            };
            let (mut one, two) = (whole(&a), whole(&b));
            for entry in two.list_missing_in(&one) {
                prop_assert!(one.merge_count(&entry));
            }
            prop_assert_eq!(&one, &whole(&joined(&a, &b)));
            prop_assert!(two.list_missing_in(&one).is_empty());
        }
    }

    #[test]
    fn marks_of_one_machine() {
        let (mut replica, here, there) = (MarkReplica::default(), MachineId(1), MachineId(2));
        let counts =
            |changed: Vec<ReadCount>| changed.iter().map(|e| (e.host.0, e.count)).collect();
        let all: Vec<Vec<(u64, u32)>> = [true, true, false, false, true]
            .map(|read| counts(replica.apply_mark(here, &mark(read, MarkOrigin::Here))))
            .to_vec();
        assert_eq!(all, [vec![(1, 1)], vec![], vec![(1, 2)], vec![], vec![(1, 3)]]);
        let theirs = ReadCount { from: "bob".into(), id: "1".into(), host: there, count: 1 };
        let news = replica.preview_news(&[theirs.clone(), theirs.clone()]);
        assert_eq!(news, [mark(true, MarkOrigin::Heard(there, 1))]);
        assert!(replica.apply_mark(here, &news[0]).is_empty());
        assert!(replica.preview_news(&[theirs]).is_empty());
        let both: Vec<(u64, u32)> =
            counts(replica.apply_mark(here, &mark(false, MarkOrigin::Here)));
        assert_eq!(both, [(1, 4), (2, 2)], "both marks were known");
    }

    #[test]
    fn a_mark_by_a_position_stands_here_and_is_not_told() {
        let (mut replica, here, there) = (MarkReplica::default(), MachineId(1), MachineId(2));
        assert!(replica.apply_mark(here, &mark(true, MarkOrigin::Position)).is_empty());
        assert!(replica.list_missing_in(&MarkReplica::default()).is_empty());
        let cleared = ReadCount { from: "bob".into(), id: "1".into(), host: there, count: 2 };
        assert_eq!(replica.preview_news(&[cleared]), [mark(true, MarkOrigin::Heard(there, 2))]);
        assert!(replica.apply_mark(here, &mark(false, MarkOrigin::Here)).is_empty());
        assert!(!replica.get("bob", "1").unwrap().is_read());
        let told = replica.apply_mark(here, &mark(true, MarkOrigin::Here));
        assert_eq!((told.len(), told[0].host), (1, here));
    }

    /// S434: long ids take the room of more short ones.
    #[test]
    fn s434_counts_are_limited_by_their_size() {
        let entry = |n: usize, len: usize| {
            let id = format!("{n:0len$}");
            ReadCount { from: "bob".into(), id, host: MachineId(2), count: 1 }
        };
        let accepted = |len: usize| {
            let all: Vec<ReadCount> = (0..1000).map(|n| entry(n, len)).collect();
            let mut replica = MarkReplica::default();
            for mark in replica.preview_news(&all) {
                replica.apply_mark(MachineId(1), &mark);
            }
            assert!(replica.is_full() && replica.preview_news(&[entry(0, 7)]).is_empty());
            replica.list_missing_in(&MarkReplica::default()).len()
        };
        assert_eq!((accepted(10), accepted(1000)), (379, 57));
    }
}
