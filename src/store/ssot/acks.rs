//! Acknowledgements and the files in `tasks/`: what a role writes besides its messages
//! (docs/formats/ssot.md, section 5).

use std::io;

use super::Ssot;
use super::folder::{self, ACKS, IMMUTABLE, RESUMES, stem};
use super::format::task_of;
use super::task;
use super::words::Role;
use crate::model::Timestamp;
use crate::store::{Location, StoreError};

impl Ssot {
    /// Acknowledges the message at a location, once.
    pub(super) fn give_ack(&self, at: &Location) -> Result<(), StoreError> {
        let file = self.files.file(at.source)?;
        let facts = file.message().ok_or(StoreError::Moved)?.facts;
        let (task, id) = (task_of(&file.folder), stem(&file.name).unwrap_or_default());
        let (base, role) = (&self.files.dir, self.tasks().role);
        if facts.to() != role || !facts.requires_ack() {
            let why = format!("{id} asks {} for no acknowledgement", role.as_str());
            return Err(StoreError::Invalid(why));
        }
        let path = base.join(ACKS).join(task).join(&file.name);
        let dir = folder::make(base, &[ACKS, task])?;
        let text = folder::ack_text(id, role, task, Timestamp::now());
        let put = folder::put_new(&dir, &file.name, IMMUTABLE, text.as_bytes());
        self.files.note(&path);
        match put {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map_err(|e| StoreError::io(&path, e)),
        }
        match folder::ack(base, task, id) {
            Ok((by, _)) if by == role => Ok(()),
            _ => Err(StoreError::NotPermitted(format!(
                "{}: is in the place of the acknowledgement and is none by {}; remove it, then \
                 acknowledge again",
                path.display(),
                role.as_str()
            ))),
        }
    }

    /// Brings `tasks/` up to date where something changed; only the coordinator does.
    pub(super) fn write_tasks(&self) -> Result<bool, StoreError> {
        let (base, tasks) = (&self.files.dir, self.tasks());
        let stale = std::mem::take(&mut *tasks.stale.lock());
        if tasks.role != Role::Coordinator {
            return Ok(false);
        }
        let mut failed = None;
        let mut written = false;
        for name in stale.iter().filter(|name| super::words::is_task_id(name)) {
            let state = tasks.state(&self.files, name, &mut |_, _| {});
            let state = state.map_err(|e| StoreError::io(&base.join(RESUMES).join(name), e));
            match state.and_then(|state| task::write(base, name, &state)) {
                Ok(changed) => written |= changed,
                Err(e) => {
                    tasks.stale.lock().insert(name.clone());
                    failed = Some(e);
                }
            }
        }
        failed.map_or(Ok(written), Err)
    }

    /// Makes every file in `tasks/` anew that is not what it should be.
    pub(super) fn rebuild_tasks(&self) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        for name in task::all(&self.files.dir)? {
            let state = task::load(&self.files.dir, &name)?;
            if self.tasks().role != Role::Coordinator {
                if task::is_current(&self.files.dir, &name, &state) {
                    continue;
                }
                return Err(StoreError::NotPermitted(format!(
                    "tasks/{name}.json does not say what its messages do, but it is the \
                     coordinator's; you are {}: run the repair as coordinator",
                    self.tasks().role.as_str()
                )));
            }
            if task::write(&self.files.dir, &name, &state)? {
                lines.push(format!("tasks/{name}.json: made anew from its messages"));
            }
        }
        Ok(lines)
    }
}
