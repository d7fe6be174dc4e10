//! In which order the messages of a task count. The milliseconds in their ids come from the clocks of
//! several machines, so what is sure comes first: a message counts after those that it names, after those
//! that its writer had acknowledged, after what it answers by its type, and after the earlier ones of its
//! writer. Where that leaves a choice, and in a circle, the earlier one counts first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::state::{Item, print};
use super::words::{Role, Type};

/// Sorts the messages of a task.
pub(super) fn in_order(mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by(|a, b| {
        let key = |i: &Item| (i.facts.order, i.facts.time);
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    });
    let order = Links::of(&items).order();
    let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    order.into_iter().filter_map(|n| items.get_mut(n)?.take()).collect()
}

/// The messages of each writer, by numbers in the order of times.
#[derive(Debug)]
struct Writers(BTreeMap<Role, Vec<usize>>);

impl Writers {
    fn of(items: &[Item]) -> Self {
        let mut writers: BTreeMap<Role, Vec<usize>> = BTreeMap::new();
        for (n, item) in items.iter().enumerate() {
            writers.entry(item.facts.from()).or_default().push(n);
        }
        Self(writers)
    }

    fn by(&self, role: Role) -> &[usize] {
        self.0.get(&role).map_or(&[], Vec::as_slice)
    }
}

/// What comes before what, by numbers in the order of times.
#[derive(Debug)]
struct Links {
    /// Those that count after each.
    after: Vec<Vec<usize>>,
    /// How many of those before each were not counted yet.
    waits: Vec<usize>,
    /// The next one of the same writer.
    next: Vec<Option<usize>>,
    /// It is the first of its writer, or the one before it was counted.
    is_next: Vec<bool>,
}

impl Links {
    fn of(items: &[Item]) -> Self {
        let n = items.len();
        let mut links = Self {
            after: vec![Vec::new(); n],
            waits: vec![0; n],
            next: vec![None; n],
            is_next: vec![true; n],
        };
        let writers = Writers::of(items);
        links.add_writers(items, &writers);
        let numbers: HashMap<u64, usize> =
            items.iter().enumerate().map(|(n, item)| (print(&item.id), n)).collect();
        let mut linked = vec![false; n];
        for (n, item) in items.iter().enumerate() {
            let named = item.facts.refs.iter().chain(&item.facts.context);
            for before in named.filter_map(|id| numbers.get(id)) {
                links.add(*before, n);
                set(&mut linked, n);
            }
            // A review request names a result together with what that answers.
            if let [Some(dispatch), Some(result)] = item.facts.refs.map(|id| numbers.get(&id)) {
                links.add(*dispatch, *result);
                set(&mut linked, *result);
            }
        }
        links.add_answers(items, &linked);
        links
    }

    /// Adds what each writer wrote after another of his messages, and after an acknowledgement: both are
    /// by his own clock.
    fn add_writers(&mut self, items: &[Item], writers: &Writers) {
        for own in writers.0.values() {
            for (before, n) in own.iter().zip(own.iter().skip(1)) {
                if let (Some(next), Some(is_next)) =
                    (self.next.get_mut(*before), self.is_next.get_mut(*n))
                {
                    (*next, *is_next) = (Some(*n), false);
                }
            }
        }
        for (n, item) in items.iter().enumerate() {
            let Some(acked) = item.acked else { continue };
            let own = writers.by(item.facts.to());
            let order = |n: &usize| items.get(*n).map_or(i64::MAX, |i| i.facts.order);
            let later = own.partition_point(|n| order(n) < acked.millis());
            own.get(later).into_iter().for_each(|after| self.add(n, *after));
        }
    }

    /// Adds what results and verdicts answer that name nothing, if they are earlier than all that was
    /// asked of their writer: his first one answers the first of it.
    fn add_answers(&mut self, items: &[Item], linked: &[bool]) {
        for (answer, asks) in [(Type::Result, Type::Dispatch), (Type::Verdict, Type::Request)] {
            for role in Role::ALL {
                let asked =
                    |(_, i): &(usize, &Item)| i.facts.kind() == asks && i.facts.to() == role;
                let all = || items.iter().enumerate();
                let asked: Vec<(usize, &Item)> = all().filter(asked).collect();
                let first = asked.first().map_or(0, |(n, _)| *n);
                let seen = asked.iter().filter_map(|(_, i)| i.acked).min();
                let astray = all()
                    .filter(|(_, i)| i.facts.kind() == answer && i.facts.from() == role)
                    .filter(|(n, _)| *n < first && linked.get(*n) == Some(&false))
                    .filter(|(_, i)| seen.is_none_or(|seen| i.facts.order < seen.millis()));
                for (nth, (n, _)) in astray.enumerate() {
                    let before = asked.get(nth).or(asked.last());
                    // A review request that knows of more rejections came after this one.
                    let before = before.filter(|(_, i)| i.facts.rejects as usize <= nth);
                    if let Some((before, _)) = before {
                        self.add(*before, n);
                    }
                }
            }
        }
    }

    fn add(&mut self, before: usize, after: usize) {
        if before != after
            && let (Some(list), Some(waits)) =
                (self.after.get_mut(before), self.waits.get_mut(after))
        {
            list.push(after);
            *waits += 1;
        }
    }

    fn order(mut self) -> Vec<usize> {
        let mut left: BTreeSet<usize> = (0..self.after.len()).collect();
        let mut ready: BTreeSet<usize> = left.clone();
        ready.retain(|n| self.is_ready(*n));
        let mut out = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let free = |n: &&usize| self.waits.get(**n) == Some(&0);
            // In a circle a writer's clock was set back, or somebody lies.
            let one = ready.pop_first().or_else(|| left.iter().find(free).copied());
            let Some(one) = one.or_else(|| left.first().copied()) else { break };
            left.remove(&one);
            ready.remove(&one);
            out.push(one);
            let next = self.next.get(one).copied().flatten();
            if let Some(is_next) = next.and_then(|next| self.is_next.get_mut(next)) {
                *is_next = true;
            }
            let after = self.after.get_mut(one).map(std::mem::take).unwrap_or_default();
            for n in &after {
                if let Some(waits) = self.waits.get_mut(*n) {
                    *waits -= 1;
                }
            }
            let open = after.into_iter().chain(next).filter(|n| left.contains(n));
            let open: Vec<usize> = open.filter(|n| self.is_ready(*n)).collect();
            ready.extend(open);
        }
        out
    }

    fn is_ready(&self, n: usize) -> bool {
        self.waits.get(n) == Some(&0) && self.is_next.get(n) == Some(&true)
    }
}

fn set(flags: &mut [bool], n: usize) {
    if let Some(flag) = flags.get_mut(n) {
        *flag = true;
    }
}
