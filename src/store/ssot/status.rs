//! What a person should know of the store.

use super::Ssot;
use super::folder::{MESSAGES, stem};
use super::format::task_of;
use super::state::{Facts, State, StateBreach};
use crate::model::Timestamp;

/// At most this many lines of one kind are shown.
const NAMED: usize = 20;

impl Ssot {
    /// That nobody has sent anything here, if so.
    pub(super) fn nothing_yet(&self) -> Option<String> {
        let messages = self.about.dir.join(MESSAGES);
        std::fs::symlink_metadata(&messages).is_err().then(|| {
            format!(
                "there is no {}; check the folder of the store, or send the first record, which makes it",
                messages.display()
            )
        })
    }

    /// See [`Store::remarks`](crate::store::Store::remarks): what waits, what is locked, what breaks a
    /// rule about other messages.
    pub(super) fn remark_lines(&self, now: Timestamp) -> Vec<String> {
        let waiting = self.waiting_lines(now);
        let states = self.format.remarkable.read();
        let held: Vec<String> = states.iter().filter_map(|(task, s)| held_line(task, s)).collect();
        let breach = |(task, state): (&String, &State)| -> Vec<String> {
            let line =
                |b: &StateBreach| format!("task {task}: {} breaks {}: {}", b.id, b.rule, b.why);
            state.breaches.iter().map(line).collect()
        };
        let breaches = states.iter().flat_map(breach).collect();
        let mut out = bounded(held, "tasks");
        out.extend(waiting);
        out.extend(bounded(breaches, "messages"));
        out
    }

    /// The messages from me or to me that wait for their acknowledgement, the most urgent first.
    fn waiting_lines(&self, now: Timestamp) -> Vec<String> {
        let role = self.format.role;
        let table = self.table.read();
        let waits =
            |facts: &Facts| facts.requires_ack() && [facts.from(), facts.to()].contains(&role);
        let waiting = table
            .messages()
            .filter(|(_, _, kept)| kept.acked == 0 && kept.counts() && waits(&kept.facts));
        let deadline = |facts: &Facts| facts.deadline().unwrap_or(Timestamp::from_millis(i64::MAX));
        let mut waiting: Vec<(Timestamp, &str, u32)> =
            waiting.map(|(n, _, kept)| (deadline(&kept.facts), table.name(n), n)).collect();
        waiting.sort_unstable();
        let line = |(_, name, n): &(Timestamp, &str, u32)| {
            let facts = table.facts(*n)?.facts;
            let (task, id, to) = (task_of(table.folder(*n)), stem(name)?, facts.to().as_str());
            let until = match facts.deadline() {
                None => "no deadline".to_owned(),
                Some(at) if at < now => format!("deadline {}, overdue", at.rfc3339()),
                Some(at) => format!("deadline {}", at.rfc3339()),
            };
            Some(format!("task {task}: {id} waits for the acknowledgement of {to}, {until}"))
        };
        let named = waiting.iter().take(NAMED).filter_map(line).collect();
        with_more(named, waiting.len(), "acknowledgements")
    }
}

fn held_line(task: &str, state: &State) -> Option<String> {
    let lifted = format!("the admin lifts that with `msgfs ssot resume {task}`");
    let suspended = match state.suspended.as_slice() {
        [] => None,
        [one] => Some(format!("suspended by {one}")),
        [one, rest @ ..] => Some(format!("suspended by {one} and {} more", rest.len())),
    };
    let locked = state
        .lock
        .as_ref()
        .map(|id| format!("locked after {} rejected verdicts, the last is {id}", state.rejects));
    let why: Vec<String> = locked.into_iter().chain(suspended).collect();
    (!why.is_empty()).then(|| format!("task {task}: {}; {lifted}", why.join(", ")))
}

/// The first lines, and how many more there are.
fn bounded(mut lines: Vec<String>, what: &str) -> Vec<String> {
    let all = lines.len();
    lines.truncate(NAMED);
    with_more(lines, all, what)
}

fn with_more(mut lines: Vec<String>, all: usize, what: &str) -> Vec<String> {
    let more = all.saturating_sub(NAMED);
    if more > 0 {
        lines.push(format!("and {more} more {what}"));
    }
    lines
}
