//! A job of a carrier: a folder with the order, the outcomes, and what a fetch brings.
//!
//! The daemon writes the order. The carrier appends the outcomes to a file, a line each, and ends the job with a line.
//! A line is in the file before the carrier begins anything else, so a kill of either process loses no outcome. A job
//! that no carrier has and that has no last line shows that its carrier died: the first message without an outcome may
//! have been sent, and those behind it were not begun.
//!
//! An order to send needs no sync, nor do its outcomes. After a loss of power the journal alone says which messages may
//! have been sent, and they count as unknown. An order to fetch is synced with its outcome, because its folder may hold
//! mail that the server has deleted.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::{EngineSettings, ExchangeOutcome};
use crate::model::display_path;
use crate::store::append_log::{AppendLog, AppendSync};
use crate::store::{atomic_file, fs};

/// The folder of jobs in a link's folder.
const JOBS: &str = "jobs";
/// The file with the order.
const ORDER: &str = "order.json";
/// The file with the outcomes.
const OUTCOMES: &str = "outcomes";
/// The file in which older builds left the only outcome of a job.
const OLD_OUTCOME: &str = "outcome.json";
/// The file whose lock the carrier of an older build holds while it lives.
const OLD_LOCK: &str = "lock";
/// The folder into which a fetch writes.
const RAW: &str = "raw";
/// A file in that folder, made before the engine is asked.
const ASKED: &str = ".asked";
/// The limit on the size of any of these files.
const MAX_FILE: u64 = 64 << 20;

/// The task of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum CarrierTask {
    /// The delivery of messages, one after the other.
    Deliver {
        /// The messages, the oldest first. The name in the file is that of older builds.
        #[serde(rename = "letters")]
        messages: Vec<MessageOrder>,
    },
    /// A delivery of one message, as older builds ordered it.
    Send(MessageOrder),
    /// A fetch of messages that are not known.
    Fetch {
        /// The known ids.
        known: Vec<String>,
        /// The pause between two requests in milliseconds, if the carrier asks again as long as nothing comes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// The acknowledgement of messages that are on disk.
    Acknowledge {
        /// The engine's ids.
        ids: Vec<String>,
    },
}

impl CarrierTask {
    /// Returns true if messages are delivered.
    pub(super) fn is_delivery(&self) -> bool {
        matches!(self, Self::Deliver { .. } | Self::Send(_))
    }
}

/// A message to deliver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageOrder {
    /// The number of the entry in the journal.
    pub no: u64,
    /// The file with the bytes to send.
    pub wire: PathBuf,
}

/// An order in the form in which it lies in the job's folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobOrder {
    pub settings: EngineSettings,
    pub task: CarrierTask,
}

/// A line of the file of outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "line")]
pub enum OutcomeLine {
    /// The outcome of a message. The name in the file is that of older builds.
    #[serde(rename = "letter")]
    Message {
        /// The number of the entry in the journal.
        no: u64,
        /// The outcome.
        outcome: ExchangeOutcome,
    },
    /// The outcome of any other job.
    Job {
        /// The outcome.
        outcome: ExchangeOutcome,
    },
    /// The end of the job: nothing of it is begun any more.
    End,
}

/// A job as the daemon sees it, identified by its folder.
#[derive(Debug)]
pub struct CarrierJob {
    folder: PathBuf,
    task: CarrierTask,
    /// The number of bytes of outcomes that were read.
    read: usize,
}

impl CarrierJob {
    /// Writes an order into a new folder of this name.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(
        link: &Path,
        name: &str,
        settings: &EngineSettings,
        task: CarrierTask,
    ) -> io::Result<Self> {
        let folder = job_folder(link, name);
        fs::make_dirs(&folder.join(RAW), 0o700)?;
        let order = JobOrder { settings: settings.clone(), task };
        let (path, bytes) = (folder.join(ORDER), serde_json::to_vec(&order)?);
        if matches!(order.task, CarrierTask::Fetch { .. }) {
            atomic_file::write_atomic(&path, &bytes, 0o600)?;
        } else {
            fs::open_append(&path, 0o600)?.write_all(&bytes)?;
        }
        Ok(Self { folder, task: order.task, read: 0 })
    }

    /// Returns the job of the lowest name that is left in a link's folder, except those that wait by their name.
    /// Removes jobs whose order was never written.
    ///
    /// # Errors
    /// Returns the system's error. A job whose order cannot be read stays, because its folder may hold the only copy of
    /// fetched mail.
    pub fn find_left(link: &Path, waits: &dyn Fn(&OsStr) -> bool) -> io::Result<Option<Self>> {
        let entries = match std::fs::read_dir(link.join(JOBS)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let is_due = |folder: &PathBuf| !folder.file_name().is_some_and(waits);
        let folders = entries.flatten().map(|entry| entry.path());
        let mut folders: Vec<PathBuf> = folders.filter(is_due).collect();
        folders.sort_unstable();
        for folder in folders {
            let Some(order) = read_order(&folder)? else {
                // This job was never started.
                std::fs::remove_dir_all(&folder)?;
                continue;
            };
            let task = match order.task {
                CarrierTask::Send(message) => CarrierTask::Deliver { messages: vec![message] },
                other => other,
            };
            return Ok(Some(Self { folder, task, read: 0 }));
        }
        Ok(None)
    }

    /// Returns the task of the job.
    pub fn task(&self) -> &CarrierTask {
        &self.task
    }

    /// Returns the name of the job's folder.
    pub(super) fn name(&self) -> &OsStr {
        self.folder.file_name().unwrap_or_default()
    }

    /// Returns the folder into which a fetch writes.
    pub fn raw_folder(&self) -> PathBuf {
        self.folder.join(RAW)
    }

    /// Returns true if the engine may have been asked.
    pub fn has_asked(&self) -> bool {
        self.raw_folder().join(ASKED).try_exists().unwrap_or(true)
    }

    /// Returns true if the carrier of an older build, which had this job alone, works on it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn has_old_carrier(&self) -> io::Result<bool> {
        match fs::open_regular(&self.folder.join(OLD_LOCK)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            lock => Ok(!fs::lock_with_timeout(&lock?, Duration::ZERO)?),
        }
    }

    /// Returns the outcomes that were appended since the last call.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn read_outcomes(&mut self) -> io::Result<Vec<OutcomeLine>> {
        let bytes =
            fs::empty_if_absent(fs::read_small_file(&self.folder.join(OUTCOMES), MAX_FILE))?;
        let new = bytes.get(self.read..).unwrap_or_default();
        let whole = new.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let lines = new.get(..whole).unwrap_or_default().split(|b| *b == b'\n');
        self.read += whole;
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// Returns the outcomes of a job of an older build; none if the job is of this build.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn read_old_outcome(&self) -> io::Result<Vec<OutcomeLine>> {
        let bytes =
            fs::empty_if_absent(fs::read_small_file(&self.folder.join(OLD_OUTCOME), MAX_FILE))?;
        let Ok(outcome) = serde_json::from_slice::<ExchangeOutcome>(&bytes) else {
            return Ok(Vec::new());
        };
        let line = match &self.task {
            CarrierTask::Deliver { messages } => messages
                .first()
                .map(|message| OutcomeLine::Message { no: message.no, outcome: outcome.clone() }),
            _ => Some(OutcomeLine::Job { outcome }),
        };
        Ok(line.into_iter().chain([OutcomeLine::End]).collect())
    }

    /// Removes the job's folder.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.folder)
    }
}

/// Returns the folder of a job in a link's folder.
pub(super) fn job_folder(link: &Path, name: impl AsRef<Path>) -> PathBuf {
    link.join(JOBS).join(name)
}

/// Returns the folder into which the fetch of a job writes.
pub(super) fn raw_folder(job: &Path) -> PathBuf {
    job.join(RAW)
}

/// Reads the order in a job's folder; `None` if there is none, or a torn one and nothing that was fetched.
///
/// # Errors
/// Returns the system's error, with the path of the order.
pub(super) fn read_order(job: &Path) -> io::Result<Option<JobOrder>> {
    let path = job.join(ORDER);
    let told = |e: io::Error| {
        io::Error::new(e.kind(), format!("{} cannot be read: {e}", display_path(&path)))
    };
    let bytes = match fs::read_small_file(&path, MAX_FILE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(told)?,
    };
    match serde_json::from_slice(&bytes) {
        Ok(order) => Ok(Some(order)),
        Err(_) if !has_raw_files(job)? => Ok(None),
        Err(e) => Err(told(e.into())),
    }
}

/// Returns true if a fetch wrote something to the folder of a job.
fn has_raw_files(job: &Path) -> io::Result<bool> {
    match std::fs::read_dir(raw_folder(job)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries?.next().is_some()),
    }
}

/// Records durably, in the folder of a fetch, that an engine is asked now.
///
/// # Errors
/// Returns the system's error; then the engine must not be asked.
pub fn note_asked(raw: &Path) -> io::Result<()> {
    atomic_file::write_atomic(&raw.join(ASKED), b"", 0o600)
}

/// Records that nothing that the engine was asked can be lost any more. Returns false if the record failed.
pub(super) fn clear_asked(raw: &Path) -> bool {
    let removed = std::fs::remove_file(raw.join(ASKED));
    removed.is_ok() || removed.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Returns the folder of the link to which the folder of a fetch belongs. One carrier a link works at a time, so it may
/// cache things there; they may vanish at any time.
pub fn link_folder(raw: &Path) -> Option<&Path> {
    raw.parent()?.parent()?.parent()
}

/// The outcomes of a job as its carrier writes them.
#[derive(Debug)]
pub(super) struct OutcomeLog {
    log: AppendLog,
    sync: AppendSync,
}

impl OutcomeLog {
    /// Opens the file of outcomes in a job's folder. `is_delivery` is false for a fetch and for an acknowledgement.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(job: &Path, is_delivery: bool) -> io::Result<Self> {
        let mut log = AppendLog::new(job.join(OUTCOMES));
        log.open()?;
        let sync = if is_delivery { AppendSync::Later } else { AppendSync::Now };
        Ok(Self { log, sync })
    }

    /// Appends a line, which survives this process. The outcome of a fetch also survives a loss of power.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn append(&mut self, line: &OutcomeLine) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.log.append(&bytes, self.sync).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn settings() -> EngineSettings {
        EngineSettings {
            kind: "fake".into(),
            file: PathBuf::new(),
            part: String::new(),
            me: "me".into(),
            insecure: false,
            ca: None,
            self_copy: false,
        }
    }

    fn message(no: u64) -> MessageOrder {
        MessageOrder { no, wire: PathBuf::from(format!("out/{no}")) }
    }

    #[test]
    fn outcomes_are_read_once_and_a_torn_one_never() {
        let dir = tempfile::tempdir().unwrap();
        let task = CarrierTask::Deliver { messages: vec![message(7), message(8)] };
        let mut job = CarrierJob::new(dir.path(), "1", &settings(), task.clone()).unwrap();
        let folder = job_folder(dir.path(), "1");
        let mut log = OutcomeLog::open(&folder, true).unwrap();
        let line = |no| OutcomeLine::Message { no, outcome: ExchangeOutcome::Done };
        assert_eq!(job.read_outcomes().unwrap(), []);
        log.append(&line(7)).unwrap();
        let mut torn = File::options().append(true).open(folder.join(OUTCOMES)).unwrap();
        torn.write_all(b"{\"line\":\"let").unwrap();
        assert_eq!(job.read_outcomes().unwrap(), [line(7)]);
        log.append(&line(8)).unwrap();
        log.append(&OutcomeLine::End).unwrap();
        assert_eq!(job.read_outcomes().unwrap(), [line(8), OutcomeLine::End]);
        let mut left = CarrierJob::find_left(dir.path(), &|_| false).unwrap().unwrap();
        assert_eq!(left.task(), &task);
        assert_eq!(left.read_outcomes().unwrap().len(), 3);
        left.remove().unwrap();
        assert!(CarrierJob::find_left(dir.path(), &|_| false).unwrap().is_none());
    }

    /// Only a job that was never started is removed. One whose order cannot be read may hold fetched mail.
    #[test]
    fn a_job_whose_order_cannot_be_read_stays() {
        for (order, mail, stays) in
            [(None, false, false), (Some("{\"set"), false, false), (Some("{\"set"), true, true)]
        {
            let dir = tempfile::tempdir().unwrap();
            let folder = job_folder(dir.path(), "1");
            std::fs::create_dir_all(folder.join(RAW)).unwrap();
            if let Some(text) = order {
                std::fs::write(folder.join(ORDER), text).unwrap();
            }
            if mail {
                std::fs::write(folder.join(RAW).join("0.txt"), "mail").unwrap();
            }
            let found = CarrierJob::find_left(dir.path(), &|_| false);
            assert_eq!((found.is_err(), folder.exists()), (stays, stays), "{order:?} {mail}");
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = job_folder(dir.path(), "1");
        // Reading a folder fails, but not because nothing is there.
        std::fs::create_dir_all(folder.join(ORDER)).unwrap();
        let why = CarrierJob::find_left(dir.path(), &|_| false).unwrap_err().to_string();
        assert!(why.contains("order.json cannot be read") && folder.exists(), "{why}");
    }

    /// A job that a build left which started a process for each message is taken up.
    #[test]
    fn jobs_of_older_builds_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let folder = job_folder(dir.path(), "1");
        std::fs::create_dir_all(folder.join(RAW)).unwrap();
        std::fs::write(
            folder.join(ORDER),
            r#"{"settings":{"kind":"mail","file":"c.json","part":"/email","me":"me","insecure":false},
                "task":{"do":"send","no":7,"wire":"out/7"}}"#,
        )
        .unwrap();
        let lock = fs::open_read_write(&folder.join(OLD_LOCK), 0o600).unwrap();
        let mut job = CarrierJob::find_left(dir.path(), &|_| false).unwrap().unwrap();
        assert_eq!(job.task(), &CarrierTask::Deliver { messages: vec![message(7)] });
        assert!(fs::lock_with_timeout(&lock, Duration::ZERO).unwrap());
        assert!(job.has_old_carrier().unwrap());
        std::fs::write(folder.join(OLD_OUTCOME), r#"{"is":"done"}"#).unwrap();
        drop(lock);
        assert!(!job.has_old_carrier().unwrap());
        assert_eq!(job.read_outcomes().unwrap(), []);
        let line = OutcomeLine::Message { no: 7, outcome: ExchangeOutcome::Done };
        assert_eq!(job.read_old_outcome().unwrap(), [line, OutcomeLine::End]);
    }
}
