//! `msgfs ssot resume TASK`: the admin lifts the lock or the suspension of a task. The command writes one immutable
//! file that names what it lifts; `reject_count` stays.

use std::io;

use super::Ssot;
use super::folder::{self, IMMUTABLE, RESUMES};
use super::state::TaskResume;
use super::vocabulary::{Role, is_task_id};
use crate::model::{Timestamp, sanitize_line};
use crate::store::{Store as _, StoreError};

impl Ssot {
    /// Lifts the lock and the suspensions of a task. Returns a line for each.
    pub(super) fn resume_task(&self, task: &str) -> Result<String, StoreError> {
        if self.format.role != Role::Admin {
            return Err(StoreError::NotPermitted(format!(
                "only the admin resumes a task, and you are {} here; run it with --me admin, or set \
                 me = \"admin\" in the [[store]]",
                self.format.role.as_str()
            )));
        }
        if !is_task_id(task) {
            let task = sanitize_line(task);
            return Err(StoreError::Invalid(format!("{task:?} is not a task id, T-YYYY-NNN")));
        }
        let nothing = || StoreError::Refused(format!("{task} is neither locked nor suspended"));
        // This comes before any file is made: a command that does nothing must not begin an SSOT.
        let state = super::task::load_state(self, task)?;
        if state.lock.is_none() && state.suspended.is_empty() {
            return Err(nothing());
        }
        let _lock = folder::lock_task(&self.properties.dir, task)?;
        let state = super::task::load_state(self, task)?;
        if state.lock.is_none() && state.suspended.is_empty() {
            return Err(nothing());
        }
        let mut resume = TaskResume {
            time: Timestamp::now(),
            lock: state.lock.clone(),
            escalations: state.suspended.clone(),
        };
        self.write_resume(task, &mut resume)?;
        let mut lines = vec![format!("{task} is resumed")];
        lines.extend(state.lock.map(|id| {
            format!("lifted: the lock after {} rejected verdicts, by {id}", state.reject_count)
        }));
        lines.extend(state.suspended.iter().map(|id| format!("lifted: the suspension by {id}")));
        Ok(lines.join("\n"))
    }

    fn write_resume(&self, task: &str, resume: &mut TaskResume) -> Result<(), StoreError> {
        let dir = folder::make_folder(&self.properties.dir, &[RESUMES, task])?;
        loop {
            let name = format!("{}.json", resume.time.millis());
            let path = self.properties.dir.join(RESUMES).join(task).join(&name);
            let text = folder::render_resume(task, resume);
            match folder::create_file(&dir, &name, IMMUTABLE, text.as_bytes()) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    resume.time = resume.time.plus_millis(1);
                }
                done => {
                    self.note_change(&path);
                    return done.map_err(|e| StoreError::io(&path, e));
                }
            }
        }
    }
}
