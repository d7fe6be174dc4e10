//! Acknowledgements and the files in `tasks/`: what a role writes besides its messages
//! (docs/formats/ssot.md, section 5).

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Ssot;
use super::folder::{self, ACKS, IMMUTABLE, MESSAGES, RESUMES, TASKS, stem};
use super::format::{Tasks, task_of};
use super::task;
use super::words::Role;
use crate::model::Timestamp;
use crate::store::{
    Acks, Agents, Behind, Deliveries, Location, Store as _, StoreError, Told, Upkeep,
};

/// For so long `tasks/` is written at once: a mount that shall end does not wait for thousands of files.
/// What is left is found again at the next start.
const AT_ONCE: Duration = Duration::from_millis(500);

impl Acks for Ssot {
    fn acknowledge(&self, at: &Location) -> Result<(), StoreError> {
        let file = self.file(at.source)?;
        let kept = file.message().filter(|kept| kept.counts()).ok_or(StoreError::Moved)?;
        let facts = kept.facts;
        let (task, id) = (task_of(&file.folder), stem(&file.name).unwrap_or_default());
        let (base, role) = (&self.about.dir, self.format.role);
        if facts.to() != role || !facts.requires_ack() {
            let why = format!("{id} does not ask {} for an acknowledgement", role.as_str());
            return Err(StoreError::Invalid(why));
        }
        let path = base.join(ACKS).join(task).join(&file.name);
        let dir = folder::make(base, &[ACKS, task])?;
        let text = folder::ack_text(id, role, task, Timestamp::now());
        let put = folder::put_new(&dir, &file.name, IMMUTABLE, text.as_bytes());
        self.note(&path);
        match put {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map_err(|e| StoreError::io(&path, e)),
        }
        match folder::ack(base, task, id) {
            Ok((by, _)) if by == role => Ok(()),
            _ => Err(StoreError::NotPermitted(format!(
                "{}: this file has the name of the acknowledgement, but it is not one by {}; \
                 remove it, then acknowledge again",
                path.display(),
                role.as_str()
            ))),
        }
    }
}

impl Agents for Ssot {
    fn agents(&self) -> Vec<String> {
        Role::ALL.iter().filter(|role| role.receives()).map(|r| r.as_str().to_owned()).collect()
    }

    /// What asks a role for an acknowledgement and has none.
    fn told(&self, addresses: &[&str]) -> Vec<Option<Told>> {
        let table = self.table.read();
        let told = |address: &&str| {
            let role = Role::named(address)?;
            let (mut behind, mut since) = (0, None);
            for (_, _, kept) in table.messages().filter(|(_, _, kept)| kept.counts()) {
                if kept.facts.to() == role && kept.facts.requires_ack() {
                    behind += u64::from(kept.acked == 0);
                    since = since.max((kept.acked != 0).then_some(kept.acked));
                }
            }
            Some(Told { behind: Behind::Count(behind), since: since.map(Timestamp::from_millis) })
        };
        addresses.iter().map(told).collect()
    }
}

impl Deliveries for Ssot {
    fn deliver(&self) -> Result<bool, StoreError> {
        // Once: who removes the folder meanwhile is not to find a new file in it.
        if !self.format.told_git.load(Ordering::Relaxed) && self.about.dir.join(MESSAGES).is_dir() {
            self.format.told_git.store(true, Ordering::Relaxed);
            folder::for_git(&self.about.dir)?;
        }
        let logged = self.log_errors();
        let written = self.write_tasks(AT_ONCE);
        Ok(logged? | written?)
    }

    fn has_more(&self) -> bool {
        // Not what has become stale since: that is written when its scan is over.
        self.format.behind.load(Ordering::Relaxed)
    }

    fn written(&self) -> Vec<PathBuf> {
        vec![self.about.dir.join(TASKS)]
    }
}

impl Ssot {
    /// Brings `tasks/` up to date where something changed, for at most `limit` and the file at hand; only
    /// the coordinator does.
    pub(super) fn write_tasks(&self, limit: Duration) -> Result<bool, StoreError> {
        let (base, tasks) = (&self.about.dir, &self.format);
        let mut stale = std::mem::take(&mut *tasks.stale.lock());
        if tasks.role != Role::Coordinator {
            return Ok(false);
        }
        let begun = Instant::now();
        let mut failed = None;
        let mut written = false;
        stale.retain(|name| super::words::is_task_id(name));
        while let Some(name) = stale.pop_first() {
            let name = &name;
            let resumes = folder::resumes(base, name, &mut |_, _| {});
            let state = resumes.map(|resumes| Tasks::state(self, name, &resumes));
            let state = state.map_err(|e| StoreError::io(&base.join(RESUMES).join(name), e));
            match state.and_then(|state| task::write(base, name, &state)) {
                Ok(changed) => written |= changed,
                Err(e) => {
                    tasks.stale.lock().insert(name.clone());
                    failed = Some(e);
                }
            }
            if begun.elapsed() >= limit {
                break;
            }
        }
        tasks.behind.store(!stale.is_empty(), Ordering::Relaxed);
        tasks.stale.lock().append(&mut stale);
        failed.map_or(Ok(written), Err)
    }
}

impl Upkeep for Ssot {
    fn repair(&self) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        for name in task::all(&self.about.dir)? {
            let state = task::load(self, &name)?;
            if self.format.role != Role::Coordinator {
                if task::is_current(&self.about.dir, &name, &state) {
                    continue;
                }
                return Err(StoreError::NotPermitted(format!(
                    "tasks/{name}.json does not match its messages, but only the coordinator \
                     changes it; you are {}: run the repair as coordinator",
                    self.format.role.as_str()
                )));
            }
            if task::write(&self.about.dir, &name, &state)? {
                lines.push(format!("tasks/{name}.json: made anew from its messages"));
            }
        }
        Ok(lines)
    }
}
