//! One exchange with an engine, in a process of its own.
//!
//! A killed daemon must not interrupt an exchange, so each exchange runs in a short-lived process (`msgfs carry JOB`)
//! of its own session, which ends by itself. Daemon and carrier share a folder with the order, the outcome and a lock.
//! The carrier inherits the lock when it starts, so one of the two always holds it. A free lock without an outcome
//! means that the carrier died.
//!
//! A carrier that fetches mail may stay: it asks again and again as long as nothing comes, because starting a process
//! costs more than a request. It holds one end of a pipe. The daemon closes the other end when it wants something else,
//! or by dying. Then the carrier ends after its current exchange.

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

use super::disk_space;
use super::engine::{EngineSettings, ExchangeOutcome, LinkEngine};
use crate::store::{atomic_file, fs};

/// The file with the order.
const ORDER: &str = "order.json";
/// The file with the outcome.
const OUTCOME: &str = "outcome.json";
/// The file whose lock is held while a carrier lives.
const LOCK: &str = "lock";
/// The folder into which a fetch writes.
const RAW: &str = "raw";
/// A file in that folder, made before the engine is asked.
const ASKED: &str = ".asked";
/// The limit on the size of either file.
const MAX_FILE: u64 = 64 << 20;
/// The limit on the time of an exchange. A longer one is cut off, and its outcome is unknown.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// The time for which a carrier keeps asking; much less than any exchange may take.
const STAY: Duration = Duration::from_secs(4 * 60);
/// The exit code of a carrier that was cut off: `EX_TEMPFAIL`.
const LATE: i32 = 75;

/// The task of a carrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum CarrierTask {
    /// The delivery of a file's bytes.
    Send {
        /// The number of the entry in the journal.
        no: u64,
        /// The file.
        wire: PathBuf,
    },
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

/// An order in the form in which it lies in the job's folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct JobOrder {
    settings: EngineSettings,
    task: CarrierTask,
}

/// The process that carries.
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

/// A job, identified by its folder.
#[derive(Debug)]
pub struct CarrierJob {
    folder: PathBuf,
    task: CarrierTask,
    lock: File,
    /// A pipe that is closed when the carrier should stop asking.
    hangup_pipe: Option<PipeWriter>,
    is_watched: bool,
}

impl CarrierJob {
    /// Writes an order to disk durably.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(folder: &Path, settings: &EngineSettings, task: CarrierTask) -> io::Result<Self> {
        fs::make_dirs(&folder.join(RAW), 0o700)?;
        let order = JobOrder { settings: settings.clone(), task };
        atomic_file::write_atomic(&folder.join(ORDER), &serde_json::to_vec(&order)?, 0o600)?;
        let lock = fs::open_read_write(&folder.join(LOCK), 0o600)?;
        Ok(Self::with_lock(folder, order.task, lock))
    }

    fn with_lock(folder: &Path, task: CarrierTask, lock: File) -> Self {
        Self { folder: folder.to_owned(), task, lock, hangup_pipe: None, is_watched: false }
    }

    /// Opens a job that an earlier process left; `None` if its order was never written.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn reopen(folder: &Path) -> io::Result<Option<Self>> {
        let Ok(bytes) = fs::read_small_file(&folder.join(ORDER), MAX_FILE) else { return Ok(None) };
        let Ok(order) = serde_json::from_slice::<JobOrder>(&bytes) else { return Ok(None) };
        let lock = fs::open_read_write(&folder.join(LOCK), 0o600)?;
        Ok(Some(Self::with_lock(folder, order.task, lock)))
    }

    /// Returns the task of the job.
    pub fn task(&self) -> &CarrierTask {
        &self.task
    }

    /// Returns the folder into which a fetch writes.
    pub fn raw_folder(&self) -> PathBuf {
        self.folder.join(RAW)
    }

    /// Returns true if the engine may have been asked.
    pub fn has_asked(&self) -> bool {
        self.raw_folder().join(ASKED).exists()
    }

    /// Starts the carrier, which survives the death of this process. Calls `ended` when the carrier has ended.
    ///
    /// # Errors
    /// Returns the system's error; then nothing was started.
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
                    // A carrier that dies calls `ended` too, as a process would.
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

    /// Returns true if this process is notified when the carrier ends.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Tells the carrier to stop asking.
    pub fn stop_polling(&mut self) {
        self.hangup_pipe = None;
    }

    /// Returns true if the carrier has ended. Gives up this process's own share of the lock.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        // This needs an open file of its own, since the old one shares the carrier's lock.
        self.lock = fs::open_read_write(&self.folder.join(LOCK), 0o600)?;
        fs::lock_with_timeout(&self.lock, Duration::ZERO)
    }

    /// Returns the outcome; `None` if the carrier died.
    pub fn read_outcome(&self) -> Option<ExchangeOutcome> {
        let bytes = fs::read_small_file(&self.folder.join(OUTCOME), MAX_FILE).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Removes the job's folder.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.folder)
    }
}

/// Returns the number of running exchanges of all links below a folder.
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

/// Records durably, in the folder of a fetch, that an engine is asked now.
///
/// # Errors
/// Returns the system's error; then the engine must not be asked.
pub fn note_asked(raw: &Path) -> io::Result<()> {
    atomic_file::write_atomic(&raw.join(ASKED), b"", 0o600)
}

/// Returns the folder of the link to which the folder of a fetch belongs. One carrier a link works at a time, so it may
/// cache things there; they may vanish at any time.
pub fn link_folder(raw: &Path) -> Option<&Path> {
    raw.parent()?.parent()?.parent()
}

/// Makes this process a carrier with a session of its own and a limited life.
///
/// # Errors
/// Fails if no thread can be started.
pub fn become_carrier(folder: &Path) -> io::Result<()> {
    // A signal to the daemon's session does not reach this one.
    let _ = rustix::process::setsid();
    let folder = folder.to_owned();
    let limit = move || {
        std::thread::sleep(LONGEST);
        let minutes = LONGEST.as_secs() / 60;
        let why = format!("the exchange took more than {minutes} minutes and was ended");
        // Even without an outcome the free lock shows that the exchange is over.
        let _ = write_outcome(&folder, &ExchangeOutcome::Unknown { why });
        std::process::exit(LATE);
    };
    std::thread::Builder::new().name("msgfs-longest".into()).spawn(limit).map(drop)
}

/// Runs the job in a folder. `open` makes the engine.
///
/// # Errors
/// Fails if there is no order, or the outcome cannot be written.
pub fn run_job(
    folder: &Path,
    open: impl FnOnce(&EngineSettings) -> Result<Box<dyn LinkEngine>, String>,
) -> io::Result<()> {
    let bytes = fs::read_small_file(&folder.join(ORDER), MAX_FILE)?;
    let order: JobOrder = serde_json::from_slice(&bytes)?;
    let outcome = match open(&order.settings) {
        Err(why) => ExchangeOutcome::away(why),
        Ok(engine) => {
            // The secrets may change meanwhile.
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

/// Asks for mail until some comes, or the daemon hangs up, or the time is over.
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
        // From here to the next request nothing can be lost.
        if is_over
            || std::fs::remove_file(raw.join(ASKED))
                .is_err_and(|e| e.kind() != io::ErrorKind::NotFound)
        {
            return outcome;
        }
        if Instant::now() > until
            || wait_for_hangup(every)
            || disk_space::check_free_space(raw).is_err()
            || engine.find_other_carrier().is_some()
        {
            return outcome;
        }
    }
}

/// Waits, and returns true if the daemon hung up meanwhile.
fn wait_for_hangup(within: Duration) -> bool {
    let line = rustix::stdio::stdout();
    let mut watched = [PollFd::new(&line, PollFlags::empty())];
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    poll(&mut watched, Some(&limit)) != Ok(0)
}

/// Writes the outcome. The first rename makes it visible even if this process is killed; the second write makes it
/// durable.
fn write_outcome(folder: &Path, outcome: &ExchangeOutcome) -> io::Result<()> {
    let bytes = serde_json::to_vec(outcome)?;
    let path = folder.join(OUTCOME);
    let temp = atomic_file::temp_path(&path);
    std::fs::write(&temp, &bytes)?;
    std::fs::rename(&temp, &path)?;
    atomic_file::write_atomic(&path, &bytes, 0o600)
}
