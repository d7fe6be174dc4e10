//! The order in which the messages of a task count. The milliseconds in their ids come from the clocks of several
//! machines, so sure facts come first. A message counts after the messages that it names, after those that its writer
//! had acknowledged, after the one that it answers by its type, and after the earlier ones of its writer. If that
//! leaves a choice, and in a circle, the earlier message counts first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::state::{TaskMessage, hash_id};
use super::vocabulary::{Role, SsotMessageType};

/// Sorts the messages of a task.
pub(super) fn sort_messages(mut items: Vec<TaskMessage>) -> Vec<TaskMessage> {
    items.sort_by(|a, b| {
        let key = |i: &TaskMessage| (i.facts.order_millis, i.facts.time);
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    });
    let order = PrecedenceGraph::from_messages(&items).sort_topologically();
    let mut items: Vec<Option<TaskMessage>> = items.into_iter().map(Some).collect();
    order.into_iter().filter_map(|n| items.get_mut(n)?.take()).collect()
}

/// The messages of each writer, as numbers in the order of times.
#[derive(Debug)]
struct WriterSequences(BTreeMap<Role, Vec<usize>>);

impl WriterSequences {
    fn from_messages(items: &[TaskMessage]) -> Self {
        let mut writers: BTreeMap<Role, Vec<usize>> = BTreeMap::new();
        for (n, item) in items.iter().enumerate() {
            writers.entry(item.facts.from()).or_default().push(n);
        }
        Self(writers)
    }

    fn written_by(&self, role: Role) -> &[usize] {
        self.0.get(&role).map_or(&[], Vec::as_slice)
    }
}

/// The precedence of messages, as numbers in the order of times.
#[derive(Debug)]
struct PrecedenceGraph {
    /// The messages that count after each.
    successors: Vec<Vec<usize>>,
    /// For each, the number of messages before it that were not counted yet.
    open_predecessors: Vec<usize>,
    /// The next message of the same writer.
    next_by_writer: Vec<Option<usize>>,
    /// True for the first message of a writer, and for one whose predecessor was counted.
    is_next_of_writer: Vec<bool>,
}

impl PrecedenceGraph {
    fn from_messages(items: &[TaskMessage]) -> Self {
        let n = items.len();
        let mut links = Self {
            successors: vec![Vec::new(); n],
            open_predecessors: vec![0; n],
            next_by_writer: vec![None; n],
            is_next_of_writer: vec![true; n],
        };
        let writers = WriterSequences::from_messages(items);
        links.add_writer_edges(items, &writers);
        let numbers: HashMap<u64, usize> =
            items.iter().enumerate().map(|(n, item)| (hash_id(&item.id), n)).collect();
        let mut linked = vec![false; n];
        for (n, item) in items.iter().enumerate() {
            let named = item.facts.refs.iter().chain(&item.facts.context_refs);
            for before in named.filter_map(|id| numbers.get(id)) {
                links.add_edge(*before, n);
                set_flag(&mut linked, n);
            }
            // A review request names a result together with the dispatch that it answers.
            if let [Some(dispatch), Some(result)] = item.facts.refs.map(|id| numbers.get(&id)) {
                links.add_edge(*dispatch, *result);
                set_flag(&mut linked, *result);
            }
        }
        links.add_answer_edges(items, &linked);
        links
    }

    /// Adds the order of each writer's own messages, and the messages that a writer sent after an acknowledgement: both
    /// are by the writer's own clock.
    fn add_writer_edges(&mut self, items: &[TaskMessage], writers: &WriterSequences) {
        for own in writers.0.values() {
            for (before, n) in own.iter().zip(own.iter().skip(1)) {
                if let (Some(next), Some(is_next)) =
                    (self.next_by_writer.get_mut(*before), self.is_next_of_writer.get_mut(*n))
                {
                    (*next, *is_next) = (Some(*n), false);
                }
            }
        }
        for (n, item) in items.iter().enumerate() {
            let Some(acked) = item.acked_at else { continue };
            let own = writers.written_by(item.facts.to());
            let order = |n: &usize| items.get(*n).map_or(i64::MAX, |i| i.facts.order_millis);
            let later = own.partition_point(|n| order(n) < acked.millis());
            own.get(later).into_iter().for_each(|after| self.add_edge(n, *after));
        }
    }

    /// Adds an edge from a request to each result or verdict that names nothing and is earlier than all requests to its
    /// writer. The writer's first such answer belongs to the first request.
    fn add_answer_edges(&mut self, items: &[TaskMessage], linked: &[bool]) {
        for (answer, asks) in [
            (SsotMessageType::Result, SsotMessageType::Dispatch),
            (SsotMessageType::ReviewVerdict, SsotMessageType::ReviewRequest),
        ] {
            for role in Role::ALL {
                let asked =
                    |(_, i): &(usize, &TaskMessage)| i.facts.kind() == asks && i.facts.to() == role;
                let all = || items.iter().enumerate();
                let asked: Vec<(usize, &TaskMessage)> = all().filter(asked).collect();
                let first = asked.first().map_or(0, |(n, _)| *n);
                let seen = asked.iter().filter_map(|(_, i)| i.acked_at).min();
                let astray = all()
                    .filter(|(_, i)| i.facts.kind() == answer && i.facts.from() == role)
                    .filter(|(n, _)| *n < first && linked.get(*n) == Some(&false))
                    .filter(|(_, i)| seen.is_none_or(|seen| i.facts.order_millis < seen.millis()));
                for (nth, (n, _)) in astray.enumerate() {
                    let before = asked.get(nth).or(asked.last());
                    // A review request that counts more rejections came after this one.
                    let before = before.filter(|(_, i)| i.facts.rejects as usize <= nth);
                    if let Some((before, _)) = before {
                        self.add_edge(*before, n);
                    }
                }
            }
        }
    }

    fn add_edge(&mut self, before: usize, after: usize) {
        if before != after
            && let (Some(list), Some(waits)) =
                (self.successors.get_mut(before), self.open_predecessors.get_mut(after))
        {
            list.push(after);
            *waits += 1;
        }
    }

    fn sort_topologically(mut self) -> Vec<usize> {
        let mut left: BTreeSet<usize> = (0..self.successors.len()).collect();
        let mut ready: BTreeSet<usize> = left.clone();
        ready.retain(|n| self.is_ready(*n));
        let mut out = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let free = |n: &&usize| self.open_predecessors.get(**n) == Some(&0);
            // A circle means that a writer's clock was set back, or that a writer lies.
            let one = ready.pop_first().or_else(|| left.iter().find(free).copied());
            let Some(one) = one.or_else(|| left.first().copied()) else { break };
            left.remove(&one);
            ready.remove(&one);
            out.push(one);
            let next = self.next_by_writer.get(one).copied().flatten();
            if let Some(is_next) = next.and_then(|next| self.is_next_of_writer.get_mut(next)) {
                *is_next = true;
            }
            let after = self.successors.get_mut(one).map(std::mem::take).unwrap_or_default();
            for n in &after {
                if let Some(waits) = self.open_predecessors.get_mut(*n) {
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
        self.open_predecessors.get(n) == Some(&0) && self.is_next_of_writer.get(n) == Some(&true)
    }
}

fn set_flag(flags: &mut [bool], n: usize) {
    if let Some(flag) = flags.get_mut(n) {
        *flag = true;
    }
}
