//! Acknowledgements and the files in `tasks/`: what a role writes besides its messages (formats/amp1.md,
//! section 5).

use std::io;

use super::Ssot;
use super::folder::{self, ACKS, IMMUTABLE};
use super::task;
use super::words::Role;
use crate::model::Timestamp;
use crate::store::{Location, StoreError};

impl Ssot {
    /// Acknowledges the message at a location, once.
    pub(super) fn give_ack(&self, at: &Location) -> Result<(), StoreError> {
        let (task, id, facts) = {
            let table = self.table.read();
            let file = table.get(at.source).filter(|f| f.is_message()).ok_or(StoreError::Moved)?;
            (table.folder_of(file).to_owned(), table.stem(file).to_owned(), file.facts)
        };
        if facts.to() != self.role || !facts.requires_ack() {
            let why = format!("{id} asks {} for no acknowledgement", self.role.as_str());
            return Err(StoreError::Invalid(why));
        }
        let path = self.dir.join(ACKS).join(&task).join(format!("{id}.json"));
        let dir = folder::make(&self.dir, &[ACKS, &task])?;
        let text = folder::ack_text(&id, self.role, &task, Timestamp::now());
        let put = folder::put_new(&dir, &format!("{id}.json"), IMMUTABLE, text.as_bytes());
        self.noted.lock().insert(path.clone());
        match put {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map_err(|e| StoreError::io(&path, e)),
        }
        match folder::ack(&self.dir, &task, &id) {
            Ok((by, _)) if by == self.role => Ok(()),
            _ => Err(StoreError::NotPermitted(format!(
                "{}: is in the place of the acknowledgement and is none by {}; remove it, then \
                 acknowledge again",
                path.display(),
                self.role.as_str()
            ))),
        }
    }

    /// Brings `tasks/` up to date where something changed; only the coordinator does.
    pub(super) fn write_tasks(&self) -> Result<bool, StoreError> {
        let stale = std::mem::take(&mut *self.stale.lock());
        if self.role != Role::Coordinator {
            return Ok(false);
        }
        let mut failed = None;
        let mut written = false;
        for name in stale.iter().filter(|name| super::words::is_task_id(name)) {
            let Some(state) = self.seen.read().states.get(name).cloned() else { continue };
            match task::write(&self.dir, name, &state) {
                Ok(changed) => written |= changed,
                Err(e) => {
                    self.stale.lock().insert(name.clone());
                    failed = Some(e);
                }
            }
        }
        failed.map_or(Ok(written), Err)
    }

    /// Makes every file in `tasks/` anew that is not what it should be.
    pub(super) fn rebuild_tasks(&self) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        for name in task::all(&self.dir)? {
            let state = task::load(&self.dir, &name)?;
            if self.role != Role::Coordinator {
                if task::is_current(&self.dir, &name, &state) {
                    continue;
                }
                return Err(StoreError::NotPermitted(format!(
                    "tasks/{name}.json does not say what its messages do, but it is the \
                     coordinator's; you are {}: run the repair as coordinator",
                    self.role.as_str()
                )));
            }
            if task::write(&self.dir, &name, &state)? {
                lines.push(format!("tasks/{name}.json: made anew from its messages"));
            }
        }
        Ok(lines)
    }
}
