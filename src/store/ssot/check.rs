//! `msgfs check`: every file of the SSOT against the rules of the format.

use std::collections::BTreeSet;

use super::Ssot;
use super::envelope::{FILE_BYTES, Message};
use super::folder::{self, ACKS, Listing, MESSAGES, RESUMES, TASKS};
use super::scan::{read_claim, unreadable};
use super::status::KNOWN_FOLDERS;
use super::task;
use super::words::is_task_id;
use crate::model::{Claim, one_line};
use crate::store::{StoreError, Violation};

struct Checker<'a> {
    store: &'a Ssot,
    verify: &'a dyn Fn(&Claim) -> Option<String>,
    report: &'a mut dyn FnMut(Violation),
}

impl Ssot {
    /// See [`Store::check`](crate::store::Store::check).
    pub(super) fn check_store(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        let top = folder::list(&self.dir, &[]).map_err(|e| StoreError::io(&self.dir, e))?;
        let mut checker = Checker { store: self, verify, report };
        for (name, why) in &top.strange {
            if KNOWN_FOLDERS.contains(&&**name) {
                checker.say(name, "file", why.clone());
            }
        }
        let mut tasks = BTreeSet::new();
        for area in [MESSAGES, ACKS, RESUMES] {
            let listing = checker.list(&[area]);
            tasks.extend(listing.folders);
            if area != MESSAGES {
                continue;
            }
            for name in listing.files.keys() {
                let why = "lies in messages/ itself; its place is messages/<task_id>/".to_owned();
                checker.say(&format!("{area}/{name}"), "name", why);
            }
        }
        for task in &tasks {
            checker.task(task);
        }
        checker.derived(&tasks);
        Ok(())
    }
}

impl Checker<'_> {
    fn say(&mut self, file: &str, rule: &'static str, detail: String) {
        let detail = one_line(&detail).into_owned();
        (self.report)(Violation { file: file.to_owned(), line: 0, rule, detail });
    }

    /// What lies in a folder; what is strange there is reported.
    fn list(&mut self, parts: &[&str]) -> Listing {
        let path = parts.join("/");
        match folder::list(&self.store.dir, parts) {
            Ok(listing) => {
                for (name, why) in &listing.strange {
                    self.say(&format!("{path}/{name}"), "file", why.clone());
                }
                listing
            }
            Err(e) => {
                self.say(&path, "file", format!("cannot be listed: {e}"));
                Listing::default()
            }
        }
    }

    fn task(&mut self, name: &str) {
        if !is_task_id(name) {
            let why = "is not named after a task, T-YYYY-NNN".to_owned();
            self.say(&format!("{MESSAGES}/{name}"), "task_id_format", why);
        }
        let messages = self.list(&[MESSAGES, name]);
        for file in messages.files.keys() {
            if let Some(stem) = folder::stem(file) {
                self.message(name, stem, &messages);
            } else {
                self.beside(name, file, &messages);
            }
        }
        for file in self.list(&[ACKS, name]).files.keys() {
            self.ack(name, file);
        }
        let mut broken = Vec::new();
        let mut hear = |file: &str, why: String| broken.push((file.to_owned(), why));
        let read = folder::resumes(&self.store.dir, name, &mut hear);
        for (file, why) in broken {
            self.say(&format!("{RESUMES}/{name}/{file}"), "resume", why);
        }
        if let Err(e) = read {
            self.say(&format!("{RESUMES}/{name}"), "file", format!("cannot be listed: {e}"));
        }
        self.state(name);
    }

    fn message(&mut self, task: &str, stem: &str, listing: &Listing) {
        let path = format!("{MESSAGES}/{task}/{stem}.json");
        let name = format!("{stem}.json");
        let read = folder::read(&self.store.dir, &[MESSAGES, task, &name], FILE_BYTES + 1);
        let bytes = match read {
            Ok((_, bytes)) => bytes,
            Err(e) => return self.say(&path, "file", format!("cannot be read: {e}")),
        };
        let message = match Message::parse(&bytes) {
            Ok(message) => message,
            Err(fault) => {
                for breach in fault.breaches {
                    self.say(&path, breach.rule, breach.sentence());
                }
                return;
            }
        };
        if message.id != stem || message.task != task {
            if let Some(breach) = self.store.misplaced(&message, &bytes) {
                self.say(&path, breach.rule, breach.sentence());
            }
            return;
        }
        if !listing.files.contains_key(&format!("{stem}.sig")) {
            return;
        }
        let dir = self.store.open_messages(task);
        match dir.and_then(|dir| read_claim(&dir, stem, &bytes)) {
            Ok(claim) => {
                if let Some(wrong) = (self.verify)(&claim) {
                    self.say(&path, "signature", wrong);
                }
            }
            Err(e) => self.say(&path, "signature", unreadable(&e)),
        }
    }

    /// A file that is no message.
    fn beside(&mut self, task: &str, file: &str, listing: &Listing) {
        let path = format!("{MESSAGES}/{task}/{file}");
        match folder::signed_stem(file) {
            Some(stem) if listing.files.contains_key(&format!("{stem}.json")) => {}
            Some(_) => self.say(&path, "signature", "is the signature of no message".into()),
            None => self.say(&path, "name", "is neither a message nor a signature".into()),
        }
    }

    fn ack(&mut self, task: &str, file: &str) {
        let path = format!("{ACKS}/{task}/{file}");
        let Some(id) = folder::stem(file) else {
            return self.say(&path, "name", "is no acknowledgement".into());
        };
        let given = match folder::ack(&self.store.dir, task, id) {
            Ok((by, _)) => by,
            Err(why) => return self.say(&path, "ack", why),
        };
        let bytes = task::message_bytes(&self.store.dir, task, id);
        let Some(message) = bytes.as_deref().ok().and_then(|b| Message::parse(b).ok()) else {
            return self.say(&path, "ack", "acknowledges a message that is not here".into());
        };
        if message.to != given {
            let (by, to) = (given.as_str(), message.to.as_str());
            self.say(&path, "ack", format!("is by {by}, but the message is for {to}"));
        }
    }

    fn state(&mut self, task: &str) {
        match task::load(&self.store.dir, task) {
            Ok(state) => {
                for breach in state.breaches {
                    let path = format!("{MESSAGES}/{task}/{}.json", breach.id);
                    self.say(&path, breach.rule, breach.why);
                }
            }
            Err(e) => self.say(&format!("{MESSAGES}/{task}"), "file", e.to_string()),
        }
    }

    /// `tasks/` against what the messages say.
    fn derived(&mut self, tasks: &BTreeSet<String>) {
        let listing = self.list(&[TASKS]);
        for file in listing.files.keys() {
            let path = format!("{TASKS}/{file}");
            let Some(name) = folder::stem(file).filter(|name| is_task_id(name)) else {
                self.say(&path, "name", "is not named after a task, T-YYYY-NNN".into());
                continue;
            };
            if !tasks.contains(name) {
                self.say(&path, "task_state", "there are no messages of this task".into());
                continue;
            }
            let state = match task::load(&self.store.dir, name) {
                Ok(state) => state,
                Err(e) => {
                    self.say(&path, "task_state", e.to_string());
                    continue;
                }
            };
            let text = task::text(&self.store.dir, name, &state);
            let read = folder::read(&self.store.dir, &[TASKS, file], text.len() + 1);
            match read {
                Ok((_, bytes)) if bytes == text.as_bytes() => {}
                Ok(_) => self.say(&path, "task_state", "is not what its messages say".into()),
                Err(e) => self.say(&path, "file", format!("cannot be read: {e}")),
            }
        }
        if !listing.files.is_empty() {
            for name in tasks.iter().filter(|name| is_task_id(name)) {
                let made = listing.files.contains_key(&format!("{name}.json"));
                let there = task::load(&self.store.dir, name).is_ok_and(|s| s.messages > 0);
                if there && !made {
                    let path = format!("{TASKS}/{name}.json");
                    self.say(&path, "task_state", "is missing".into());
                }
            }
        }
    }
}
