//! `msgfs check`: every file of the SSOT against the rules of the format.

use std::collections::BTreeSet;

use rustix::fs::FileType;

use super::Ssot;
use super::envelope::Message;
use super::folder::{self, ACKS, MESSAGES, RESUMES, TASKS, is_skipped, stem};
use super::format::task_of;
use super::task;
use super::words::is_task_id;
use crate::model::one_line;
use crate::store::engine::files::{self, Visit, What, violation};
use crate::store::{Report, StoreError, Verify, below};

struct Checker<'a> {
    store: &'a Ssot,
    verify: Verify<'a>,
    report: Report<'a>,
    /// Every task that has a folder.
    tasks: BTreeSet<String>,
}

impl Ssot {
    /// See [`Store::check`](crate::store::Store::check).
    pub(super) fn check_store(
        &self,
        verify: Verify<'_>,
        report: Report<'_>,
    ) -> Result<(), StoreError> {
        let mut checker = Checker { store: self, verify, report, tasks: BTreeSet::new() };
        self.visit(&mut |visit| match visit {
            Visit::Message { folder, name, bytes, .. } => checker.message(folder, name, bytes),
            Visit::Other { path, what } => checker.other(path, &what),
            Visit::Wrong(violation) => (checker.report)(violation),
        })?;
        checker.states();
        Ok(())
    }
}

impl Checker<'_> {
    fn say(&mut self, file: &str, rule: &'static str, detail: String) {
        (self.report)(violation(file, rule, one_line(&detail).into_owned()));
    }

    fn message(&mut self, folder: &str, name: &str, bytes: &[u8]) {
        let path = format!("{folder}/{name}");
        if folder == MESSAGES {
            return self.misplaced(&path);
        }
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(fault) => {
                for breach in fault.breaches {
                    self.say(&path, breach.rule, breach.sentence());
                }
                return;
            }
        };
        if (task_of(folder), stem(name)) != (&message.task, Some(&message.id)) {
            if let Some(breach) = self.store.format.misplaced(&message, bytes) {
                self.say(&path, breach.rule, breach.sentence());
            }
            return;
        }
        let claim = self.store.claim(folder, &message.id, bytes);
        if let Some(wrong) = claim.and_then(|claim| (self.verify)(&claim)) {
            self.say(&path, "signature", wrong);
        }
    }

    fn misplaced(&mut self, path: &str) {
        let why = "is in messages/ itself; it belongs in messages/<task_id>/".to_owned();
        self.say(path, "name", why);
    }

    /// Anything but a message file.
    fn other(&mut self, path: &str, what: &What) {
        match (files::parts(path).as_slice(), what) {
            ([.., name], _) if is_skipped(name) => {}
            ([_, task], What::Folder) => self.task(task),
            ([MESSAGES, _], _) => self.misplaced(path),
            ([MESSAGES, _, _], What::Beside(message)) if self.is_there(message) => {}
            ([MESSAGES, _, _], What::Beside(_)) => {
                self.say(path, "signature", "is a signature whose message is missing".into());
            }
            ([MESSAGES, _, _], _) => {
                self.say(path, "name", "is neither a message nor a signature".into());
            }
            ([ACKS, task, name], _) => self.ack(path, task, name),
            ([RESUMES, task, name], What::Group(_)) => {
                let read = folder::resume(&self.store.about.dir, task, stem(name).unwrap_or(name));
                if let Err(why) = read {
                    self.say(path, "resume", why);
                }
            }
            _ => {}
        }
    }

    fn is_there(&self, path: &str) -> bool {
        below::open_below(&self.store.about.dir, &files::parts(path)).is_ok()
    }

    fn task(&mut self, name: &str) {
        if self.tasks.insert(name.to_owned()) && !is_task_id(name) {
            let why = "is not named after a task, T-YYYY-NNN".to_owned();
            self.say(&format!("{MESSAGES}/{name}"), "task_id_format", why);
        }
    }

    fn ack(&mut self, path: &str, task: &str, name: &str) {
        let base = &self.store.about.dir;
        let Some(id) = stem(name) else {
            return self.say(path, "name", "is not an acknowledgement".into());
        };
        let given = match folder::ack(base, task, id) {
            Ok((by, _)) => by,
            Err(why) => return self.say(path, "ack", why),
        };
        let bytes = task::message_bytes(base, task, id);
        let Some(message) = bytes.as_deref().ok().and_then(|b| Message::parse(b).ok()) else {
            return self.say(path, "ack", "acknowledges a message that is not here".into());
        };
        if message.to != given {
            let (by, to) = (given.as_str(), message.to.as_str());
            self.say(path, "ack", format!("is by {by}, but the message is for {to}"));
        }
    }

    /// What the messages of each task add up to, and whether `tasks/` says so.
    fn states(&mut self) {
        let derived = self.derived();
        for task in std::mem::take(&mut self.tasks) {
            let path = format!("{TASKS}/{task}.json");
            let state = match task::load(self.store, &task) {
                Ok(state) => state,
                Err(e) => {
                    self.say(&format!("{MESSAGES}/{task}"), "file", e.to_string());
                    continue;
                }
            };
            for breach in &state.breaches {
                let path = format!("{MESSAGES}/{task}/{}.json", breach.id);
                self.say(&path, breach.rule, breach.why.clone());
            }
            if derived.contains(&task) {
                let text = task::text(&self.store.about.dir, &task, &state);
                match folder::read(&self.store.about.dir, &files::parts(&path), text.len() + 1) {
                    Ok((_, bytes)) if bytes == text.as_bytes() => {}
                    Ok(_) => self.say(&path, "task_state", "does not match its messages".into()),
                    Err(e) => self.say(&path, "file", format!("cannot be read: {e}")),
                }
            } else if !derived.is_empty() && is_task_id(&task) && state.messages > 0 {
                self.say(&path, "task_state", "is missing".into());
            }
        }
    }

    /// The tasks of which there is a file in `tasks/`, and what is wrong with the others there.
    fn derived(&mut self) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        let listed = folder::list(&self.store.about.dir, &[TASKS]).unwrap_or_else(|e| {
            self.say(TASKS, "file", format!("cannot be listed: {e}"));
            Vec::new()
        });
        for (name, kind) in listed {
            let path = format!("{TASKS}/{name}");
            match stem(&name).filter(|task| is_task_id(task)) {
                _ if kind == FileType::Directory => {}
                _ if kind != FileType::RegularFile => {
                    self.say(&path, "file", format!("is {}", below::describe_type(kind)));
                }
                None => self.say(&path, "name", "is not named after a task, T-YYYY-NNN".into()),
                Some(task) => {
                    if !self.tasks.contains(task) {
                        let why = "there are no messages of this task".to_owned();
                        self.say(&path, "task_state", why);
                    }
                    out.insert(task.to_owned());
                }
            }
        }
        out
    }
}
