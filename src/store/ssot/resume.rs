//! `msgfs ssot resume TASK`: the admin lifts the lock or the suspension of a task. It writes one
//! immutable file that names what it lifts; `reject_count` stays.

use std::io;

use super::Ssot;
use super::folder::{self, IMMUTABLE, RESUMES};
use super::state::Resume;
use super::words::{Role, is_task_id};
use crate::model::{Timestamp, one_line};
use crate::store::{Commands, Store as _, StoreError};

impl Commands for Ssot {
    fn command(&self, words: &[String]) -> Result<String, StoreError> {
        match words {
            [word, task] if word == "resume" => self.resume_task(task),
            _ => Err(StoreError::Invalid("the command is: resume TASK".into())),
        }
    }
}

impl Ssot {
    /// Lifts what holds a task up; what was lifted, a line each.
    fn resume_task(&self, task: &str) -> Result<String, StoreError> {
        if self.format.role != Role::Admin {
            return Err(StoreError::NotPermitted(format!(
                "only the admin resumes a task, and you are {} here; run it with --me admin, or set \
                 me = \"admin\" in the [[store]]",
                self.format.role.as_str()
            )));
        }
        if !is_task_id(task) {
            let task = one_line(task);
            return Err(StoreError::Invalid(format!("{task:?} is not a task id, T-YYYY-NNN")));
        }
        let nothing = || StoreError::Refused(format!("{task} is neither locked nor suspended"));
        // Before anything is made: an SSOT is not begun with a command that does nothing.
        let state = super::task::load(self, task)?;
        if state.lock.is_none() && state.suspended.is_empty() {
            return Err(nothing());
        }
        let _lock = folder::lock_task(&self.about.dir, task)?;
        let state = super::task::load(self, task)?;
        if state.lock.is_none() && state.suspended.is_empty() {
            return Err(nothing());
        }
        let mut resume = Resume {
            time: Timestamp::now(),
            lock: state.lock.clone(),
            escalations: state.suspended.clone(),
        };
        self.put_resume(task, &mut resume)?;
        let mut lines = vec![format!("{task} is resumed")];
        lines.extend(state.lock.map(|id| {
            format!("lifted: the lock after {} rejected verdicts, by {id}", state.rejects)
        }));
        lines.extend(state.suspended.iter().map(|id| format!("lifted: the suspension by {id}")));
        Ok(lines.join("\n"))
    }

    fn put_resume(&self, task: &str, resume: &mut Resume) -> Result<(), StoreError> {
        let dir = folder::make(&self.about.dir, &[RESUMES, task])?;
        loop {
            let name = format!("{}.json", resume.time.millis());
            let path = self.about.dir.join(RESUMES).join(task).join(&name);
            let text = folder::resume_text(task, resume);
            match folder::put_new(&dir, &name, IMMUTABLE, text.as_bytes()) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    resume.time = resume.time.plus_millis(1);
                }
                done => {
                    self.note(&path);
                    return done.map_err(|e| StoreError::io(&path, e));
                }
            }
        }
    }
}
