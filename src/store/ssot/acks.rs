//! Acknowledgements and the files in `tasks/`: the files that a role writes besides its messages (docs/formats/ssot.md,
//! section 5).

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Ssot;
use super::folder::{self, ACKS, IMMUTABLE, MESSAGES, RESUMES, TASKS, json_stem};
use super::format::{SsotFormat, parse_task};
use super::task;
use super::vocabulary::Role;
use crate::model::{DeliveryState, Timestamp};
use crate::store::engine::files::FileFormat as _;
use crate::store::{
    DeliveryQueue, Location, PeerReadState, PeerUnread, Receipt, SentMessage, Store,
    StoreDirectory, StoreError, StoreMarks, StoreUpkeep,
};

/// Longest time for which `tasks/` is written at once: a mount that must end does not wait for thousands of files. The
/// rest is found again at the next start.
const AT_ONCE: Duration = Duration::from_millis(500);

impl StoreMarks for Ssot {
    fn acknowledge_message(&self, at: &Location) -> Result<(), StoreError> {
        let file = self.find_file(at.source)?;
        let kept =
            file.message_facts().filter(|kept| kept.is_counted()).ok_or(StoreError::Moved)?;
        let facts = kept.message;
        let (task, id) = (parse_task(&file.folder), json_stem(&file.name).unwrap_or_default());
        let (base, role) = (&self.properties.dir, self.format.role);
        if facts.to() != role || !facts.requires_ack() {
            let why = format!("{id} does not ask {} for an acknowledgement", role.as_str());
            return Err(StoreError::Invalid(why));
        }
        let path = base.join(ACKS).join(task).join(&file.name);
        let dir = folder::make_folder(base, &[ACKS, task])?;
        let text = folder::render_ack(id, role, task, Timestamp::now());
        let put = folder::create_file(&dir, &file.name, IMMUTABLE, text.as_bytes());
        self.note_change(&path);
        match put {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map_err(|e| StoreError::io(&path, e)),
        }
        match folder::read_ack(base, task, id) {
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

impl StoreDirectory for Ssot {
    fn list_peers(&self) -> Vec<String> {
        Role::ALL.iter().filter(|role| role.can_receive()).map(|r| r.as_str().to_owned()).collect()
    }

    /// Returns the number of messages that wait for each role's acknowledgement, and the time of its last one.
    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        let table = self.table.read();
        let told = |address: &&str| {
            let role = Role::from_name(address)?;
            let (mut behind, mut since) = (0, None);
            for (_, _, kept) in table.messages().filter(|(_, _, kept)| kept.is_counted()) {
                if kept.message.to() == role && kept.message.requires_ack() {
                    behind += u64::from(kept.acked == 0);
                    since = since.max((kept.acked != 0).then_some(kept.acked));
                }
            }
            Some(PeerReadState {
                unread: PeerUnread::Count(behind),
                since: since.map(Timestamp::from_millis),
            })
        };
        addresses.iter().map(told).collect()
    }

    fn provable_states(&self, _: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Read, Stored, Told, Waiting};
        vec![Waiting, Stored, Told, Read, Answered]
    }

    /// Returns a receipt for each message that its recipient has acknowledged.
    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let table = self.table.read();
        let receipt = |one: &SentMessage<'_>| {
            let kept = table.facts(one.at.source)?;
            let is_acked = kept.acked != 0 && Role::from_name(one.to) == Some(kept.message.to());
            let since = Timestamp::from_millis(kept.acked);
            is_acked.then(|| Receipt::of_state(DeliveryState::Read, Some(since)))
        };
        sent.iter().map(|one| receipt(one).unwrap_or_default()).collect()
    }
}

impl DeliveryQueue for Ssot {
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        // The settings are written once: a person who removes the folder meanwhile must not find a new file in it.
        if !self.format.has_git_settings.load(Ordering::Relaxed)
            && self.properties.dir.join(MESSAGES).is_dir()
        {
            self.format.has_git_settings.store(true, Ordering::Relaxed);
            folder::write_git_settings(&self.properties.dir)?;
        }
        let logged = self.log_rejections();
        let written = self.write_task_files(AT_ONCE);
        Ok(logged? | written?)
    }

    fn has_more(&self) -> bool {
        // Tasks that became stale since do not count: they are written when their scan is over.
        self.format.is_behind.load(Ordering::Relaxed)
    }

    fn folders_to_sweep(&self) -> Vec<PathBuf> {
        vec![self.properties.dir.join(TASKS)]
    }
}

impl Ssot {
    /// Brings `tasks/` up to date for changed tasks, for at most `limit` and one file more. Only the coordinator
    /// writes.
    pub(super) fn write_task_files(&self, limit: Duration) -> Result<bool, StoreError> {
        let (base, tasks) = (&self.properties.dir, &self.format);
        let mut stale = std::mem::take(&mut *tasks.stale_tasks.lock());
        if tasks.role != Role::Coordinator {
            return Ok(false);
        }
        let begun = Instant::now();
        let mut failed = None;
        let mut written = false;
        stale.retain(|name| super::vocabulary::is_task_id(name));
        while let Some(name) = stale.pop_first() {
            let name = &name;
            let resumes = folder::read_resumes(base, name, &mut |_, _| {});
            let state = resumes.map(|resumes| SsotFormat::derive_task_state(self, name, &resumes));
            let state = state.map_err(|e| StoreError::io(&base.join(RESUMES).join(name), e));
            // A folder that was moved away is not made anew.
            let write = |state| {
                (self as &dyn Store).require_folder()?;
                task::write_task_file(base, name, &state)
            };
            match state.and_then(write) {
                Ok(changed) => written |= changed,
                Err(e) => {
                    tasks.stale_tasks.lock().insert(name.clone());
                    failed = Some(e);
                }
            }
            if begun.elapsed() >= limit {
                break;
            }
        }
        tasks.is_behind.store(!stale.is_empty(), Ordering::Relaxed);
        tasks.stale_tasks.lock().append(&mut stale);
        failed.map_or(Ok(written), Err)
    }
}

impl StoreUpkeep for Ssot {
    fn run_command(&self, words: &[String]) -> Result<String, StoreError> {
        match words {
            [word, task] if word == "resume" => self.resume_task(task),
            _ => Err(StoreError::Invalid("the command is: resume TASK".into())),
        }
    }

    fn depends_on_trust(&self) -> bool {
        true
    }

    fn apply_decision(&self, at: &Location, is_refused: bool) {
        SsotFormat::note_decisions(self, &[(*at, is_refused)]);
        let task = parse_task(self.table.read().folder(at.source)).to_owned();
        self.format.update_task(self, &task, true);
    }

    fn repair_files(&self) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        for name in task::list_tasks(&self.properties.dir)? {
            let state = task::load_state(self, &name)?;
            if self.format.role != Role::Coordinator {
                if task::is_task_file_current(&self.properties.dir, &name, &state) {
                    continue;
                }
                return Err(StoreError::NotPermitted(format!(
                    "tasks/{name}.json does not match its messages, but only the coordinator \
                     changes it; you are {}: run the repair as coordinator",
                    self.format.role.as_str()
                )));
            }
            if task::write_task_file(&self.properties.dir, &name, &state)? {
                let done = if state.message_count > 0 {
                    "made anew from its messages"
                } else {
                    "removed, because no message of this task counts"
                };
                lines.push(format!("tasks/{name}.json: {done}"));
            }
        }
        Ok(lines)
    }
}
