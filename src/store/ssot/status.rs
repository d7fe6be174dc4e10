//! What a person should know of the store.

use super::Ssot;
use super::folder;
use super::state::{State, StateBreach, Waiting};
use crate::model::Timestamp;

/// At most this many lines of one kind are shown.
const NAMED: usize = 20;

impl Ssot {
    /// See [`Store::health`](crate::store::Store::health).
    pub(super) fn health_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.files.away_line().into_iter().collect();
        lines.extend(self.files.troubles());
        lines.extend(self.files.unwatched_line());
        lines
    }

    /// See [`Store::remarks`](crate::store::Store::remarks): what waits, what is locked, what breaks a
    /// rule about other messages.
    pub(super) fn remark_lines(&self, now: Timestamp) -> Vec<String> {
        let role = self.tasks().role;
        let states = self.tasks().states.read();
        let mut waiting: Vec<(&str, &Waiting)> = Vec::new();
        for (task, state) in &*states {
            let mine = |w: &&Waiting| w.from == role || w.to == role;
            waiting.extend(state.waiting.iter().filter(mine).map(|w| (task.as_str(), w)));
        }
        waiting
            .sort_by_key(|(_, w)| (w.deadline.unwrap_or(Timestamp::from_millis(i64::MAX)), &w.id));
        let waiting = waiting.iter().map(|(task, w)| waiting_line(task, w, now)).collect();
        let held: Vec<String> = states.iter().filter_map(|(task, s)| held_line(task, s)).collect();
        let breach = |(task, state): (&String, &State)| -> Vec<String> {
            let line =
                |b: &StateBreach| format!("task {task}: {} breaks {}: {}", b.id, b.rule, b.why);
            state.breaches.iter().map(line).collect()
        };
        let breaches = states.iter().flat_map(breach).collect();
        let mut out = bounded(held, "tasks");
        out.extend(bounded(waiting, "acknowledgements"));
        out.extend(bounded(breaches, "messages"));
        out
    }
}

fn waiting_line(task: &str, w: &Waiting, now: Timestamp) -> String {
    let (id, to) = (&w.id, w.to.as_str());
    let until = match w.deadline {
        None => "no deadline".to_owned(),
        Some(at) if at < now => format!("deadline {}, overdue", folder::rfc3339(at)),
        Some(at) => format!("deadline {}", folder::rfc3339(at)),
    };
    format!("task {task}: {id} waits for the acknowledgement of {to}, {until}")
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
    let more = lines.len().saturating_sub(NAMED);
    lines.truncate(NAMED);
    if more > 0 {
        lines.push(format!("and {more} more {what}"));
    }
    lines
}
