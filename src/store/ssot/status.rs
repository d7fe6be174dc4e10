//! What a person should know of the store, and which folders tell of news.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Ssot;
use super::folder::{self, ACKS, MESSAGES, RESUMES, TASKS};
use super::state::{State, Waiting};
use super::table::File;
use crate::model::{Timestamp, one_line};
use crate::store::fs;

/// At most this many folders of one kind are watched, the newest tasks first; what changes in others
/// is seen by a full scan.
const MAX_WATCHED: usize = 2048;
/// At most this many lines of one kind are shown.
const NAMED: usize = 20;
const AREAS: [&str; 3] = [MESSAGES, ACKS, RESUMES];

impl Ssot {
    /// See [`Store::watched`](crate::store::Store::watched).
    pub(super) fn folders_to_watch(&self) -> Vec<PathBuf> {
        // Of an SSOT that is not there yet, the nearest folder that is.
        let top = folder::existing(&self.dir);
        if top != self.dir {
            return vec![top];
        }
        let mut out = vec![top];
        for (area, folders) in AREAS.into_iter().zip(&self.seen.read().folders) {
            let path = self.dir.join(area);
            if path.is_dir() {
                let tasks = folders.iter().rev().take(MAX_WATCHED);
                out.extend(tasks.map(|task| path.join(task)).filter(|path| path.is_dir()));
                out.push(path);
            }
        }
        out
    }

    /// See [`Store::concerns`](crate::store::Store::concerns).
    pub(super) fn is_of_concern(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if self.dir.starts_with(&path) {
            return true;
        }
        let Ok(inside) = path.strip_prefix(&self.dir) else { return false };
        let parts: Vec<&str> = inside.iter().map(|p| p.to_str().unwrap_or_default()).collect();
        let visible = |name: &str| !name.starts_with('.') && !folder::is_temporary(name);
        match parts.as_slice() {
            [area] => AREAS.contains(area),
            [area, task] => AREAS.contains(area) && visible(task),
            [area, _, file] => AREAS.contains(area) && folder::is_ours(file),
            _ => false,
        }
    }

    /// See [`Store::health`](crate::store::Store::health).
    pub(super) fn health_lines(&self) -> Vec<String> {
        let read = self.table.read().files.iter().any(File::is_message);
        let seen = self.seen.read();
        let gone = fs::away_line(&self.dir).filter(|_| read);
        let lines = seen.trouble.values().flatten().map(|line| one_line(line).into_owned());
        bounded(gone.into_iter().chain(lines).collect(), "files")
    }

    /// See [`Store::remarks`](crate::store::Store::remarks): what waits, what is locked, what breaks a
    /// rule about other messages.
    pub(super) fn remark_lines(&self, now: Timestamp) -> Vec<String> {
        let seen = self.seen.read();
        let states = &seen.states;
        let mut waiting: Vec<(&str, &Waiting)> = Vec::new();
        for (task, state) in states {
            let mine = |w: &&Waiting| w.from == self.role || w.to == self.role;
            waiting.extend(state.waiting.iter().filter(mine).map(|w| (task.as_str(), w)));
        }
        waiting
            .sort_by_key(|(_, w)| (w.deadline.unwrap_or(Timestamp::from_millis(i64::MAX)), &w.id));
        let waiting = waiting.iter().map(|(task, w)| waiting_line(task, w, now)).collect();
        let held: Vec<String> = states.iter().filter_map(|(task, s)| held_line(task, s)).collect();
        let breach = |(task, state): (&String, &State)| -> Vec<String> {
            let line = |b: &super::state::StateBreach| {
                format!("task {task}: {} breaks {}: {}", b.id, b.rule, b.why)
            };
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

/// Folders that others may think hold messages.
pub(super) const KNOWN_FOLDERS: [&str; 4] = [MESSAGES, ACKS, RESUMES, TASKS];
