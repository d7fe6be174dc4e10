//! The lines about the store for people.

use super::Ssot;
use super::folder::{MESSAGES, json_stem};
use super::format::parse_task;
use super::state::{StateBreach, TaskMessageFacts, TaskState};
use crate::model::Timestamp;

/// Limit of the lines of one kind.
const NAMED: usize = 20;

impl Ssot {
    /// Returns a line if nobody has sent anything here.
    pub(super) fn describe_missing_store(&self) -> Option<String> {
        let messages = self.properties.dir.join(MESSAGES);
        std::fs::symlink_metadata(&messages).is_err().then(|| {
            format!(
                "there is no {}; check the folder of the store, or send the first record, which makes it",
                messages.display()
            )
        })
    }

    /// Returns the lines for [`Store::remarks`](crate::store::Store::remarks): waiting acknowledgements, held tasks,
    /// and messages that break a rule about other messages.
    pub(super) fn render_task_remarks(&self, now: Timestamp) -> Vec<String> {
        let waiting = self.render_waiting_acks(now);
        let states = self.format.remarkable_tasks.read();
        let held: Vec<String> =
            states.iter().filter_map(|(task, s)| render_hold_line(task, s)).collect();
        let breach = |(task, state): (&String, &TaskState)| -> Vec<String> {
            let line =
                |b: &StateBreach| format!("task {task}: {} breaks {}: {}", b.id, b.rule, b.why);
            state.breaches.iter().map(line).collect()
        };
        let breaches = states.iter().flat_map(breach).collect();
        let mut out = limit_lines(held, "tasks");
        out.extend(waiting);
        out.extend(limit_lines(breaches, "messages"));
        out
    }

    /// Returns the messages from me or to me that wait for their acknowledgement, the most urgent first.
    fn render_waiting_acks(&self, now: Timestamp) -> Vec<String> {
        let role = self.format.role;
        let table = self.table.read();
        let waits = |facts: &TaskMessageFacts| {
            facts.requires_ack() && [facts.from(), facts.to()].contains(&role)
        };
        let waiting = table
            .messages()
            .filter(|(_, _, kept)| kept.acked == 0 && kept.is_counted() && waits(&kept.message));
        let deadline = |facts: &TaskMessageFacts| {
            facts.ack_deadline().unwrap_or(Timestamp::from_millis(i64::MAX))
        };
        let mut waiting: Vec<(Timestamp, &str, u32)> =
            waiting.map(|(n, _, kept)| (deadline(&kept.message), table.name(n), n)).collect();
        waiting.sort_unstable();
        let line = |(_, name, n): &(Timestamp, &str, u32)| {
            let facts = table.facts(*n)?.message;
            let (task, id, to) =
                (parse_task(table.folder(*n)), json_stem(name)?, facts.to().as_str());
            let until = match facts.ack_deadline() {
                None => "no deadline".to_owned(),
                Some(at) if at < now => format!("deadline {}, overdue", at.rfc3339()),
                Some(at) => format!("deadline {}", at.rfc3339()),
            };
            Some(format!("task {task}: {id} waits for the acknowledgement of {to}, {until}"))
        };
        let named = waiting.iter().take(NAMED).filter_map(line).collect();
        append_more_line(named, waiting.len(), "acknowledgements")
    }
}

fn render_hold_line(task: &str, state: &TaskState) -> Option<String> {
    let lifted = format!("the admin lifts that with `msgfs ssot resume {task}`");
    let suspended = match state.suspended.as_slice() {
        [] => None,
        [one] => Some(format!("suspended by {one}")),
        [one, rest @ ..] => Some(format!("suspended by {one} and {} more", rest.len())),
    };
    let locked = state.lock.as_ref().map(|id| {
        format!("locked after {} rejected verdicts, the last is {id}", state.reject_count)
    });
    let why: Vec<String> = locked.into_iter().chain(suspended).collect();
    (!why.is_empty()).then(|| format!("task {task}: {}; {lifted}", why.join(", ")))
}

/// Returns the first lines, and the number of the others.
fn limit_lines(mut lines: Vec<String>, what: &str) -> Vec<String> {
    let all = lines.len();
    lines.truncate(NAMED);
    append_more_line(lines, all, what)
}

fn append_more_line(mut lines: Vec<String>, all: usize, what: &str) -> Vec<String> {
    let more = all.saturating_sub(NAMED);
    if more > 0 {
        lines.push(format!("and {more} more {what}"));
    }
    lines
}
