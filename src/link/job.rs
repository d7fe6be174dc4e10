//! One exchange with an engine, in a process of its own.
//!
//! A killed daemon must not cut an exchange in half, so each runs in a short-lived process (`msgfs carry
//! JOB`) of its own session, which ends by itself. Daemon and carrier share a folder: what to do, what
//! came of it, and a lock that the carrier inherits when it is started, so that there is no moment in
//! which neither holds it. Who finds the lock free and no outcome knows that the carrier died.
//!
//! A carrier that brings mail may stay: it asks again and again as long as nothing comes, for a process that starts
//! costs more than what it asks. It holds one end of a pipe. When the other end is closed, by a daemon that wants
//! something else or by its death, it ends, after the exchange that it is at.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::engine::{EngineSettings, ExchangeOutcome, LinkEngine};
use super::room;
use crate::store::{fs, place};

/// What is to be done.
const ORDER: &str = "order.json";
/// What came of it.
const OUTCOME: &str = "outcome.json";
/// Held while a carrier lives.
const LOCK: &str = "lock";
/// What a fetch brought.
const RAW: &str = "raw";
/// Made in there before an engine is asked.
const ASKED: &str = ".asked";
/// Larger than either file.
const MAX_FILE: u64 = 64 << 20;
/// No exchange takes longer: one that does is cut off, and its outcome is not known.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// So long a carrier asks again and again; much less than any exchange may take.
const STAY: Duration = Duration::from_secs(4 * 60);
/// How such a carrier ends: `EX_TEMPFAIL`.
const LATE: i32 = 75;

/// What a carrier is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum CarrierTask {
    /// Hand over the bytes of a file.
    Send {
        /// The entry of the journal.
        no: u64,
        /// The file.
        wire: PathBuf,
    },
    /// Bring what is not known.
    Fetch {
        /// What is.
        known: Vec<String>,
        /// It asks again, so many milliseconds after the last time, as long as nothing comes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Say that these are on disk.
    Acknowledge {
        /// By the engine's ids.
        ids: Vec<String>,
    },
}

/// An order as it lies in the job's folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct JobOrder {
    settings: EngineSettings,
    task: CarrierTask,
}

/// Who carries.
#[derive(Clone)]
pub enum Carrier {
    /// This program, called with `carry JOB`.
    Program(PathBuf),
    /// A thread of this process.
    #[cfg(test)]
    Here(std::sync::Arc<dyn Fn(&Path) + Send + Sync>),
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Carrier")
    }
}

/// A job, by its folder.
#[derive(Debug)]
pub struct CarrierJob {
    folder: PathBuf,
    task: CarrierTask,
    lock: File,
    /// Closed when the carrier is not to ask again.
    hangup_pipe: Option<PipeWriter>,
    is_watched: bool,
}

impl CarrierJob {
    /// Writes an order down. On disk when it returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn new(folder: &Path, settings: &EngineSettings, task: CarrierTask) -> io::Result<Self> {
        fs::make_dirs(&folder.join(RAW), 0o700)?;
        let order = JobOrder { settings: settings.clone(), task };
        place::write_atomic(&folder.join(ORDER), &serde_json::to_vec(&order)?, 0o600)?;
        let lock = fs::open_read_write(&folder.join(LOCK), 0o600)?;
        Ok(Self::with_lock(folder, order.task, lock))
    }

    fn with_lock(folder: &Path, task: CarrierTask, lock: File) -> Self {
        Self { folder: folder.to_owned(), task, lock, hangup_pipe: None, is_watched: false }
    }

    /// A job that was left behind; `None` if its order was never written.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn reopen(folder: &Path) -> io::Result<Option<Self>> {
        let Ok(bytes) = fs::read_small_file(&folder.join(ORDER), MAX_FILE) else { return Ok(None) };
        let Ok(order) = serde_json::from_slice::<JobOrder>(&bytes) else { return Ok(None) };
        let lock = fs::open_read_write(&folder.join(LOCK), 0o600)?;
        Ok(Some(Self::with_lock(folder, order.task, lock)))
    }

    /// What is to be done.
    pub fn task(&self) -> &CarrierTask {
        &self.task
    }

    /// Where a fetch writes to.
    pub fn raw_folder(&self) -> PathBuf {
        self.folder.join(RAW)
    }

    /// Whether the engine may have been asked.
    pub fn has_asked(&self) -> bool {
        self.raw_folder().join(ASKED).exists()
    }

    /// Starts the carrier, which goes on if this process dies. `ended` is called when it has ended.
    ///
    /// # Errors
    /// As the system gave it; then nothing was started.
    pub fn start(
        &mut self,
        carrier: &Carrier,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if !fs::lock_with_timeout(&self.lock, Duration::ZERO)? {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another process does this exchange already",
            ));
        }
        // The lock belongs to the open file, which the carrier inherits.
        let lock = self.lock.try_clone()?;
        match carrier {
            Carrier::Program(program) => {
                let (theirs, mine) = io::pipe()?;
                let child = Command::new(program)
                    .arg("carry")
                    .arg(&self.folder)
                    .stdin(Stdio::from(lock))
                    .stdout(Stdio::from(theirs))
                    .stderr(Stdio::null())
                    .spawn();
                let mut child = child?;
                self.hangup_pipe = Some(mine);
                std::thread::Builder::new().name("msgfs-reap".into()).spawn(move || {
                    let _ = child.wait();
                    ended();
                })?;
            }
            #[cfg(test)]
            Carrier::Here(carry) => {
                let (carry, folder) = (std::sync::Arc::clone(carry), self.folder.clone());
                std::thread::spawn(move || {
                    // A carrier that dies says that it ended, as the system does.
                    let carry = std::panic::AssertUnwindSafe(|| carry(&folder));
                    let _ = std::panic::catch_unwind(carry);
                    drop(lock);
                    ended();
                });
            }
        }
        self.is_watched = true;
        Ok(())
    }

    /// Returns whether it is told when the carrier ends.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Has the carrier not ask again.
    pub fn stop_polling(&mut self) {
        self.hangup_pipe = None;
    }

    /// Whether the carrier has ended. What this process itself holds of the lock is given up.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        // An open file of its own, since the carrier's shares the lock.
        self.lock = fs::open_read_write(&self.folder.join(LOCK), 0o600)?;
        fs::lock_with_timeout(&self.lock, Duration::ZERO)
    }

    /// What came of it; `None` if the carrier died.
    pub fn read_outcome(&self) -> Option<ExchangeOutcome> {
        let bytes = fs::read_small_file(&self.folder.join(OUTCOME), MAX_FILE).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Removes all of it.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.folder)
    }
}

/// Returns how many exchanges are at work below the folder of all links of a name.
pub fn count_running_jobs(links: &Path) -> usize {
    let below = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let jobs = below(links.to_owned()).flat_map(below).flat_map(|link| below(link.join("jobs")));
    let is_held = |job: &PathBuf| {
        let lock = fs::open_regular(&job.join(LOCK));
        let look = FlockOperation::NonBlockingLockShared;
        lock.is_ok_and(|lock| rustix::fs::flock(lock, look) == Err(Errno::WOULDBLOCK))
    };
    jobs.filter(is_held).count()
}

/// Notes that an engine is asked now, in the folder a fetch writes to. On disk when it returns.
///
/// # Errors
/// As the system gave it; then it must not be asked.
pub fn note_asked(raw: &Path) -> io::Result<()> {
    place::write_atomic(&raw.join(ASKED), b"", 0o600)
}

/// The folder of the link to which the folder of a fetch belongs. One carrier a link works at a time, so
/// it may keep there what it wants to remember; nothing may depend on that it is still there.
pub fn link_folder(raw: &Path) -> Option<&Path> {
    raw.parent()?.parent()?.parent()
}

/// Makes this process a carrier: of its own session, and of a bounded life.
///
/// # Errors
/// If no thread can be started.
pub fn become_carrier(folder: &Path) -> io::Result<()> {
    // Whoever ends the daemon's session does not end this one.
    let _ = rustix::process::setsid();
    let folder = folder.to_owned();
    let limit = move || {
        std::thread::sleep(LONGEST);
        let minutes = LONGEST.as_secs() / 60;
        let why = format!("the exchange took more than {minutes} minutes and was ended");
        // Without an outcome it is known, too, that it is over.
        let _ = write_outcome(&folder, &ExchangeOutcome::Unknown { why });
        std::process::exit(LATE);
    };
    std::thread::Builder::new().name("msgfs-longest".into()).spawn(limit).map(drop)
}

/// Does the job in a folder. `open` makes the engine.
///
/// # Errors
/// If there is no order, or the outcome cannot be written.
pub fn run_job(
    folder: &Path,
    open: impl FnOnce(&EngineSettings) -> Result<Box<dyn LinkEngine>, String>,
) -> io::Result<()> {
    let bytes = fs::read_small_file(&folder.join(ORDER), MAX_FILE)?;
    let order: JobOrder = serde_json::from_slice(&bytes)?;
    let outcome = match open(&order.settings) {
        Err(why) => ExchangeOutcome::away(why),
        Ok(engine) => {
            // Somebody may change them meanwhile.
            let mut secrets = engine.load_secrets();
            let outcome = run_task(engine.as_ref(), &order.task, folder);
            secrets.extend(engine.load_secrets());
            outcome.redact_secrets(&secrets)
        }
    };
    write_outcome(folder, &outcome)
}

fn run_task(engine: &dyn LinkEngine, task: &CarrierTask, folder: &Path) -> ExchangeOutcome {
    match task {
        CarrierTask::Send { wire, .. } => engine.send(wire),
        CarrierTask::Fetch { known, every } => {
            let known: HashSet<String> = known.iter().cloned().collect();
            let raw = folder.join(RAW);
            match every {
                None => engine.fetch(&raw, &known),
                Some(every) => poll_mail(engine, &raw, &known, Duration::from_millis(*every)),
            }
        }
        CarrierTask::Acknowledge { ids } => engine.acknowledge(ids),
    }
}

/// Asks for mail until some comes, or something else is to be done.
fn poll_mail(
    engine: &dyn LinkEngine,
    raw: &Path,
    known: &HashSet<String>,
    every: Duration,
) -> ExchangeOutcome {
    let until = Instant::now() + STAY;
    loop {
        let outcome = engine.fetch(raw, known);
        let is_over = outcome != ExchangeOutcome::Done || engine.has_fetched(raw);
        // From here to the next time nothing can be lost.
        if is_over
            || std::fs::remove_file(raw.join(ASKED))
                .is_err_and(|e| e.kind() != io::ErrorKind::NotFound)
        {
            return outcome;
        }
        if Instant::now() > until
            || wait_for_hangup(every)
            || room::check_free_space(raw).is_err()
            || engine.find_other_carrier().is_some()
        {
            return outcome;
        }
    }
}

/// Waits; returns whether the daemon hung up meanwhile.
fn wait_for_hangup(within: Duration) -> bool {
    let line = rustix::stdio::stdout();
    let mut watched = [PollFd::new(&line, PollFlags::empty())];
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    poll(&mut watched, Some(&limit)) != Ok(0)
}

/// Says what came of it: at once for whoever looks when this process is killed, then durably.
fn write_outcome(folder: &Path, outcome: &ExchangeOutcome) -> io::Result<()> {
    let bytes = serde_json::to_vec(outcome)?;
    let path = folder.join(OUTCOME);
    let temp = place::temp_path(&path);
    std::fs::write(&temp, &bytes)?;
    std::fs::rename(&temp, &path)?;
    place::write_atomic(&path, &bytes, 0o600)
}
