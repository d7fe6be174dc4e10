//! `msgfs check`: the check of every file of the SSOT by the rules of the format.

use std::collections::BTreeSet;

use rustix::fs::FileType;

use super::Ssot;
use super::envelope::SsotMessage;
use super::folder::{self, ACKS, MESSAGES, RESUMES, TASKS, is_skipped_name, json_stem};
use super::format::parse_task;
use super::task::{self, LookedUpTasks};
use super::vocabulary::is_task_id;
use crate::model::sanitize_line;
use crate::store::engine::files::{self, PathRole, WalkEntry, file_violation};
use crate::store::{ClaimVerifier, StoreError, ViolationReporter, confined};

struct SsotChecker<'a> {
    store: &'a Ssot,
    verify: ClaimVerifier<'a>,
    report: ViolationReporter<'a>,
    /// Every task that has a folder.
    tasks: BTreeSet<String>,
}

impl Ssot {
    /// Checks all files for [`MessageReader::check`](crate::store::MessageReader::check).
    pub(super) fn check_store(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        let mut checker = SsotChecker { store: self, verify, report, tasks: BTreeSet::new() };
        self.visit_entries(&mut |visit| match visit {
            WalkEntry::Message { folder, name, bytes, .. } => {
                checker.check_message(folder, name, bytes);
            }
            WalkEntry::Other { path, what } => checker.check_other(path, &what),
            WalkEntry::Wrong(violation) => (checker.report)(violation),
        })?;
        checker.check_states();
        Ok(())
    }
}

impl SsotChecker<'_> {
    fn report_violation(&mut self, file: &str, rule: &'static str, detail: String) {
        (self.report)(file_violation(file, rule, sanitize_line(&detail).into_owned()));
    }

    fn check_message(&mut self, folder: &str, name: &str, bytes: &[u8]) {
        let path = format!("{folder}/{name}");
        if folder == MESSAGES {
            return self.report_misplaced(&path);
        }
        let message = match SsotMessage::parse(bytes) {
            Ok(message) => message,
            Err(fault) => {
                let breaches = &fault.breaches;
                for breach in breaches.iter() {
                    self.report_violation(&path, breach.rule, breach.sentence());
                }
                if let (Some(last), Some(more)) =
                    (breaches.last(), breaches.describe_others(breaches.len()))
                {
                    self.report_violation(&path, last.rule, more);
                }
                return;
            }
        };
        if (parse_task(folder), json_stem(name)) != (&message.task, Some(&message.id)) {
            if let Some(breach) = self.store.format.find_misplacement(&message, bytes) {
                self.report_violation(&path, breach.rule, breach.sentence());
            }
            return;
        }
        if task::is_tampered(self.store, &message, bytes) {
            let why = "was changed after it was verified".to_owned();
            return self.report_violation(&path, "signature", why);
        }
        let claim = self.store.read_claim(folder, &message.id, bytes);
        if let Some(wrong) = claim.and_then(|claim| (self.verify)(&claim)) {
            self.report_violation(&path, "signature", wrong);
        }
    }

    fn report_misplaced(&mut self, path: &str) {
        let why = "is in messages/ itself; it belongs in messages/<task_id>/".to_owned();
        self.report_violation(path, "name", why);
    }

    /// Checks anything but a message file.
    fn check_other(&mut self, path: &str, what: &PathRole) {
        match (files::path_parts(path).as_slice(), what) {
            ([.., name], _) if is_skipped_name(name) => {}
            ([_, task], PathRole::Folder) => self.check_task_folder(task),
            ([MESSAGES, _], _) => self.report_misplaced(path),
            ([MESSAGES, _, _], PathRole::Companion(message)) if self.has_file(message) => {}
            ([MESSAGES, _, _], PathRole::Companion(_)) => {
                self.report_violation(
                    path,
                    "signature",
                    "is a signature whose message is missing".into(),
                );
            }
            ([MESSAGES, _, _], _) => {
                self.report_violation(path, "name", "is neither a message nor a signature".into());
            }
            ([ACKS, task, name], _) => self.check_ack(path, task, name),
            ([RESUMES, task, name], PathRole::Group(_)) => {
                let read = folder::read_resume(
                    &self.store.properties.dir,
                    task,
                    json_stem(name).unwrap_or(name),
                );
                if let Err(why) = read {
                    self.report_violation(path, "resume", why);
                }
            }
            _ => {}
        }
    }

    fn has_file(&self, path: &str) -> bool {
        confined::open_path(&self.store.properties.dir, &files::path_parts(path)).is_ok()
    }

    fn check_task_folder(&mut self, name: &str) {
        if self.tasks.insert(name.to_owned()) && !is_task_id(name) {
            let why = "is not named after a task, T-YYYY-NNN".to_owned();
            self.report_violation(&format!("{MESSAGES}/{name}"), "task_id_format", why);
        }
    }

    fn check_ack(&mut self, path: &str, task: &str, name: &str) {
        let base = &self.store.properties.dir;
        let Some(id) = json_stem(name) else {
            return self.report_violation(path, "name", "is not an acknowledgement".into());
        };
        let given = match folder::read_ack(base, task, id) {
            Ok((by, _)) => by,
            Err(why) => return self.report_violation(path, "ack", why),
        };
        let bytes = task::read_message_bytes(base, task, id);
        let Some(message) = bytes.as_deref().ok().and_then(|b| SsotMessage::parse(b).ok()) else {
            return self.report_violation(
                path,
                "ack",
                "acknowledges a message that is not here".into(),
            );
        };
        if message.to != given {
            let (by, to) = (given.as_str(), message.to.as_str());
            self.report_violation(path, "ack", format!("is by {by}, but the message is for {to}"));
        }
    }

    /// Checks the state of each task, and its file in `tasks/`.
    fn check_states(&mut self) {
        let derived = self.list_task_files();
        let mut looked_up = LookedUpTasks::new();
        for task in std::mem::take(&mut self.tasks) {
            let path = format!("{TASKS}/{task}.json");
            let state = match task::load_checked_state(self.store, &task, &mut looked_up) {
                Ok(state) => state,
                Err(e) => {
                    self.report_violation(&format!("{MESSAGES}/{task}"), "file", e.to_string());
                    continue;
                }
            };
            for breach in &state.breaches {
                let path = format!("{MESSAGES}/{task}/{}.json", breach.id);
                self.report_violation(&path, breach.rule, breach.why.clone());
            }
            if derived.contains(&task) && state.message_count == 0 {
                let why = "no message of this task counts".to_owned();
                self.report_violation(&path, "task_state", why);
            } else if derived.contains(&task) {
                let text = task::render_task_file(&self.store.properties.dir, &task, &state);
                match folder::read_file(
                    &self.store.properties.dir,
                    &files::path_parts(&path),
                    text.len() + 1,
                ) {
                    Ok((_, bytes)) if bytes == text.as_bytes() => {}
                    Ok(_) => self.report_violation(
                        &path,
                        "task_state",
                        "does not match its messages".into(),
                    ),
                    Err(e) => self.report_violation(&path, "file", format!("cannot be read: {e}")),
                }
            } else if !derived.is_empty() && is_task_id(&task) && state.message_count > 0 {
                self.report_violation(&path, "task_state", "is missing".into());
            }
        }
    }

    /// Returns the tasks that have a file in `tasks/`, and reports the other files there.
    fn list_task_files(&mut self) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        let listed = folder::list_names(&self.store.properties.dir, &[TASKS]).unwrap_or_else(|e| {
            self.report_violation(TASKS, "file", format!("cannot be listed: {e}"));
            Vec::new()
        });
        for (name, kind) in listed {
            let path = format!("{TASKS}/{name}");
            match json_stem(&name).filter(|task| is_task_id(task)) {
                _ if kind == FileType::Directory => {}
                _ if kind != FileType::RegularFile => {
                    self.report_violation(
                        &path,
                        "file",
                        format!("is {}", confined::describe_type(kind)),
                    );
                }
                None => self.report_violation(
                    &path,
                    "name",
                    "is not named after a task, T-YYYY-NNN".into(),
                ),
                Some(task) => {
                    self.tasks.insert(task.to_owned());
                    out.insert(task.to_owned());
                }
            }
        }
        out
    }
}
