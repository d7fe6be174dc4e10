//! What my machines said of which message, as each of them comes to know it.
//!
//! Of a message each machine has a count: odd as long as its mark stands, even once that was cleared. Who
//! reads a message that is unread raises its own count; who makes one unread raises those of the marks that
//! it knows, and no other. Counts only grow, and of two the greater one is right, so it does not matter in
//! which order, how often and from whom they are heard; and a mark that somebody did not know of stands.

use std::collections::HashMap;

use crate::model::{Host, Mark, Origin};

/// More counts are not taken from others.
const MOST: usize = 1 << 20;
/// Whose count a mark is that follows from a position: it stands here, and nobody is told.
pub const NOBODY: Host = Host(0);

/// The counts of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said(Vec<(Host, u32)>);

impl Said {
    /// Whether a mark stands.
    pub fn is_read(&self) -> bool {
        self.0.iter().any(|(_, count)| count % 2 == 1)
    }

    /// How often a machine's mark was made and cleared.
    pub fn count(&self, host: Host) -> u32 {
        let at = self.0.binary_search_by_key(&host, |(host, _)| *host);
        at.ok().and_then(|at| self.0.get(at)).map_or(0, |(_, count)| *count)
    }

    /// Takes in a count. Whether it says more than what was known.
    pub fn hear(&mut self, host: Host, count: u32) -> bool {
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

    /// It is read or made unread on a machine; what that changes.
    fn change(&mut self, here: Host, read: bool) -> Vec<(Host, u32)> {
        let mut changed: Vec<(Host, u32)> = Vec::new();
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
            self.hear(*host, *count);
        }
        changed
    }
}

/// A count of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The writer of the message.
    pub from: String,
    /// Its id.
    pub id: String,
    /// Whose count it is.
    pub host: Host,
    /// The count.
    pub count: u32,
}

/// The counts of all messages, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// By writer and id.
    all: HashMap<String, HashMap<String, Said>>,
    len: usize,
}

impl Replica {
    fn get(&self, from: &str, id: &str) -> Option<&Said> {
        self.all.get(from)?.get(id)
    }

    fn said(&mut self, from: &str, id: &str) -> &mut Said {
        if !self.all.contains_key(from) {
            self.all.insert(from.to_owned(), HashMap::new());
        }
        let of_writer = self.all.entry(from.to_owned()).or_default();
        of_writer.entry(id.to_owned()).or_default()
    }

    /// Whether no more can be kept.
    pub fn is_full(&self) -> bool {
        self.len >= MOST
    }

    /// Takes in a count. Whether it says more than what was known.
    pub fn hear(&mut self, entry: &Entry) -> bool {
        let said = self.said(&entry.from, &entry.id);
        let before = said.0.len();
        let changed = said.hear(entry.host, entry.count);
        let grown = said.0.len() - before;
        self.len += grown;
        changed
    }

    /// Takes in a mark as it was noted on a machine; the counts that follow from one made there.
    pub fn note(&mut self, here: Host, mark: &Mark) -> Vec<Entry> {
        let entry = |(host, count)| {
            let (from, id) = (mark.from.clone(), mark.id.clone());
            Entry { from, id, host, count }
        };
        let whose = match mark.origin {
            Origin::Here => here,
            Origin::Position => NOBODY,
            Origin::Heard(host, count) => {
                self.hear(&entry((host, count)));
                return Vec::new();
            }
        };
        let said = self.said(&mark.from, &mark.id);
        let before = said.0.len();
        let changed = said.change(whose, mark.read);
        let grown = said.0.len() - before;
        self.len += grown;
        changed.into_iter().filter(|(host, _)| *host != NOBODY).map(entry).collect()
    }

    /// What is new in these counts, and what each makes of its message. Nothing is changed.
    pub fn news(&self, entries: &[Entry]) -> Vec<Mark> {
        let (mut changed, mut news) = (HashMap::new(), Vec::new());
        for Entry { from, id, host, count } in entries {
            let known = || self.get(from, id).cloned().unwrap_or_default();
            let said: &mut Said = changed.entry((from, id)).or_insert_with(known);
            if self.len + news.len() < MOST && said.hear(*host, *count) {
                let (from, id, read) = (from.clone(), id.clone(), said.is_read());
                news.push(Mark { from, id, read, origin: Origin::Heard(*host, *count) });
            }
        }
        news
    }

    /// The counts that another one does not have and that may be told.
    pub fn beyond(&self, other: &Self) -> Vec<Entry> {
        let mut beyond = Vec::new();
        for (from, of_writer) in &self.all {
            for (id, said) in of_writer {
                let known = other.get(from, id);
                for (host, count) in said.0.iter().filter(|(host, _)| *host != NOBODY) {
                    if known.is_none_or(|known| known.count(*host) < *count) {
                        let (from, id) = (from.clone(), id.clone());
                        beyond.push(Entry { from, id, host: *host, count: *count });
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

    fn said() -> impl Strategy<Value = Said> {
        vec((1u64..5, 1u32..6), 0..6).prop_map(|counts| {
            let mut said = Said::default();
            for (host, count) in counts {
                said.hear(Host(host), count);
            }
            said
        })
    }

    fn joined(a: &Said, b: &Said) -> Said {
        let mut all = a.clone();
        for (host, count) in &b.0 {
            all.hear(*host, *count);
        }
        all
    }

    fn mark(read: bool, origin: Origin) -> Mark {
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

        /// Who never knew a mark that stands here does not clear it.
        #[test]
        fn who_knows_less_makes_nothing_unread(a in said(), b in said()) {
            let stands = |(host, count): &&(Host, u32)| count % 2 == 1 && b.count(*host) <= *count;
            if a.0.iter().any(|own| stands(&own)) {
                prop_assert!(joined(&a, &b).is_read());
            }
        }

        /// Four machines that read, clear and hear of each other in any order, beside a model in which each
        /// mark is a thing of its own and clearing takes away those that are known.
        #[test]
        fn marks_stand_until_somebody_who_knows_them_clears_them(
            steps in vec((0usize..4, 0usize..4, 0u8..3), 0..60),
        ) {
            let mut replicas = vec![Replica::default(); 4];
            // Made, and cleared.
            let mut models = vec![(HashSet::new(), HashSet::new()); 4];
            for (n, (here, there, what)) in steps.into_iter().enumerate() {
                let host = Host(here as u64 + 1);
                let (made, cleared) = &mut models[here];
                match what {
                    0 => {
                        if made.is_subset(cleared) {
                            made.insert(n);
                        }
                        replicas[here].note(host, &mark(true, Origin::Here));
                    }
                    1 => {
                        cleared.extend(made.iter().copied());
                        replicas[here].note(host, &mark(false, Origin::Here));
                    }
                    _ => {
                        let (theirs, gone) = models[there].clone();
                        models[here].0.extend(theirs);
                        models[here].1.extend(gone);
                        let all = replicas[there].beyond(&Replica::default());
                        for news in replicas[here].news(&all) {
                            replicas[here].note(host, &news);
                        }
                    }
                }
                let read = |replica: &Replica| replica.get("bob", "1").is_some_and(Said::is_read);
                for (replica, (made, cleared)) in replicas.iter().zip(&models) {
                    prop_assert_eq!(read(replica), !made.is_subset(cleared));
                    prop_assert_eq!(replica.len, replica.beyond(&Replica::default()).len());
                }
            }
        }

        /// What one has beyond another is what it takes for both to be equal.
        #[test]
        fn what_is_beyond_is_enough(a in said(), b in said()) {
            let whole = |said: &Said| {
                let mut replica = Replica::default();
                for (host, count) in &said.0 {
                    let (from, id) = ("bob".to_owned(), "1".to_owned());
                    replica.hear(&Entry { from, id, host: *host, count: *count });
                }
                replica
            };
            let (mut one, two) = (whole(&a), whole(&b));
            for entry in two.beyond(&one) {
                prop_assert!(one.hear(&entry));
            }
            prop_assert_eq!(&one, &whole(&joined(&a, &b)));
            prop_assert!(two.beyond(&one).is_empty());
        }
    }

    #[test]
    fn marks_of_one_machine() {
        let (mut replica, here, there) = (Replica::default(), Host(1), Host(2));
        let counts = |changed: Vec<Entry>| changed.iter().map(|e| (e.host.0, e.count)).collect();
        let all: Vec<Vec<(u64, u32)>> = [true, true, false, false, true]
            .map(|read| counts(replica.note(here, &mark(read, Origin::Here))))
            .to_vec();
        assert_eq!(all, [vec![(1, 1)], vec![], vec![(1, 2)], vec![], vec![(1, 3)]]);
        let theirs = Entry { from: "bob".into(), id: "1".into(), host: there, count: 1 };
        let news = replica.news(&[theirs.clone(), theirs.clone()]);
        assert_eq!(news, [mark(true, Origin::Heard(there, 1))]);
        assert!(replica.note(here, &news[0]).is_empty());
        assert!(replica.news(&[theirs]).is_empty());
        let both: Vec<(u64, u32)> = counts(replica.note(here, &mark(false, Origin::Here)));
        assert_eq!(both, [(1, 4), (2, 2)], "both marks were known");
    }

    #[test]
    fn a_mark_by_a_position_stands_here_and_is_not_told() {
        let (mut replica, here, there) = (Replica::default(), Host(1), Host(2));
        assert!(replica.note(here, &mark(true, Origin::Position)).is_empty());
        assert!(replica.beyond(&Replica::default()).is_empty());
        let cleared = Entry { from: "bob".into(), id: "1".into(), host: there, count: 2 };
        assert_eq!(replica.news(&[cleared]), [mark(true, Origin::Heard(there, 2))]);
        assert!(replica.note(here, &mark(false, Origin::Here)).is_empty());
        assert!(!replica.get("bob", "1").unwrap().is_read());
        let told = replica.note(here, &mark(true, Origin::Here));
        assert_eq!((told.len(), told[0].host), (1, here));
    }
}
