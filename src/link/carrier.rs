//! The carrier of a link, as the daemon sees it: a process that makes the exchanges of one link.
//!
//! A killed daemon must not interrupt an exchange, so a process of its own session (`msgfs carry LINK-FOLDER`) makes
//! it. The process stays: it takes one job after the other, and keeps its connection to the engine between messages. It
//! inherits the lock of its link when it starts, so a free lock means that no carrier lives.
//!
//! Daemon and carrier share a socket. The daemon writes the names of jobs, a line each; an empty line asks the carrier
//! to end its job after the current exchange. The carrier writes `OUTCOME` when it has appended an outcome, and
//! `ENDED` when a job is over. The daemon ends the carrier by closing the socket, or by dying. Then the carrier ends
//! after its current exchange. Nothing else ends it, so a job that was handed over is never lost unseen.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::job::CarrierJob;
use crate::store::fs;

/// The file in a link's folder whose lock is held while a carrier lives.
const LOCK: &str = "carrier.lock";
/// The byte that announces an outcome.
pub(super) const OUTCOME: u8 = b'o';
/// The byte that announces the end of a job.
pub(super) const ENDED: u8 = b'e';

/// The program that carries.
#[derive(Clone)]
pub enum CarrierProgram {
    /// This program, called with `carry LINK-FOLDER`.
    Program(PathBuf),
    /// A thread of this process, with its end of the socket and the link's folder.
    #[cfg(test)]
    Here(CarrierFunction),
}

/// The work of a carrier in a thread of this process.
#[cfg(test)]
pub type CarrierFunction = Arc<dyn Fn(&UnixStream, &Path) + Send + Sync>;

impl std::fmt::Debug for CarrierProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CarrierProgram")
    }
}

/// A running carrier of this process.
#[derive(Debug)]
pub struct CarrierProcess {
    socket: UnixStream,
    handed_over: u64,
    progress: Arc<CarrierProgress>,
}

/// The reports of a carrier.
#[derive(Debug, Default)]
struct CarrierProgress {
    ended_jobs: AtomicU64,
    is_dead: AtomicBool,
}

impl CarrierProcess {
    /// Starts a carrier for the link of a folder. The carrier survives the death of this process. `report` is called
    /// after each outcome and each job, and when the carrier has ended.
    ///
    /// # Errors
    /// Returns the system's error; `WouldBlock` if a carrier lives. Then nothing was started.
    pub fn start(
        program: &CarrierProgram,
        link: &Path,
        report: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let Some(lock) = take_lock(link)? else {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another process carries for this link already",
            ));
        };
        let (mine, theirs) = UnixStream::pair()?;
        let reports = mine.try_clone()?;
        let progress = Arc::<CarrierProgress>::default();
        let reported = Arc::clone(&progress);
        match program {
            CarrierProgram::Program(program) => {
                // The lock belongs to the open file, which the carrier inherits. It writes nothing there.
                let mut child = Command::new(program)
                    .arg("carry")
                    .arg(link)
                    .stdin(Stdio::from(OwnedFd::from(theirs)))
                    .stdout(Stdio::from(lock))
                    .stderr(Stdio::null())
                    .spawn()?;
                std::thread::Builder::new().name("msgfs-reap".into()).spawn(move || {
                    reported.follow(reports, &report, || drop(child.wait()));
                })?;
            }
            #[cfg(test)]
            CarrierProgram::Here(carry) => {
                let (carry, folder) = (Arc::clone(carry), link.to_owned());
                let carrier = std::thread::spawn(move || {
                    // A carrier that dies frees its lock, as a process would.
                    let carry = std::panic::AssertUnwindSafe(|| carry(&theirs, &folder));
                    let _ = std::panic::catch_unwind(carry);
                    drop((theirs, lock));
                });
                std::thread::spawn(move || {
                    reported.follow(reports, &report, || drop(carrier.join()));
                });
            }
        }
        Ok(Self { socket: mine, handed_over: 0, progress })
    }

    /// Gives the carrier a job, which it begins after those before it.
    ///
    /// # Errors
    /// Returns the system's error. The carrier may have the job all the same.
    pub fn hand_over(&mut self, job: &CarrierJob) -> io::Result<()> {
        self.handed_over += 1;
        let line = [job.name().as_encoded_bytes(), b"\n"].concat();
        self.socket.write_all(&line)
    }

    /// Asks the carrier to end its job after the current exchange.
    pub fn interrupt_job(&self) {
        // A carrier that cannot be asked is dead, which is noticed elsewhere.
        let _ = (&self.socket).write_all(b"\n");
    }

    /// Returns true if a job that was handed over is not over, and the carrier lives.
    pub fn is_working(&self) -> bool {
        !self.is_dead() && self.progress.ended_jobs.load(Ordering::Acquire) < self.handed_over
    }

    /// Returns true if the carrier has ended, and its lock is free.
    pub fn is_dead(&self) -> bool {
        self.progress.is_dead.load(Ordering::Acquire)
    }
}

impl Drop for CarrierProcess {
    fn drop(&mut self) {
        // The thread that reads the reports has the same socket open.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

impl CarrierProgress {
    /// Reads the reports until the carrier ends, and then waits for its end.
    fn follow(&self, mut reports: UnixStream, report: &dyn Fn(), wait: impl FnOnce()) {
        let mut bytes = [0; 256];
        loop {
            let read = match reports.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let ended = bytes.iter().take(read).filter(|byte| **byte == ENDED).count();
            self.ended_jobs.fetch_add(ended as u64, Ordering::AcqRel);
            report();
        }
        wait();
        self.is_dead.store(true, Ordering::Release);
        report();
    }
}

/// Takes the lock of a link's carrier; `None` if a carrier has it.
///
/// # Errors
/// Returns the system's error.
fn take_lock(link: &Path) -> io::Result<Option<File>> {
    let lock = fs::open_read_write(&link.join(LOCK), 0o600)?;
    Ok(fs::lock_with_timeout(&lock, Duration::ZERO)?.then_some(lock))
}

/// Returns true if a carrier works for a link, perhaps that of an earlier process.
///
/// # Errors
/// Returns the system's error.
pub fn has_carrier(link: &Path) -> io::Result<bool> {
    take_lock(link).map(|lock| lock.is_none())
}

/// Returns the number of running carriers of all links below a folder.
pub fn count_carriers(links: &Path) -> usize {
    let below = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let is_held = |link: &PathBuf| {
        let lock = fs::open_regular(&link.join(LOCK));
        let look = FlockOperation::NonBlockingLockShared;
        lock.is_ok_and(|lock| rustix::fs::flock(lock, look) == Err(Errno::WOULDBLOCK))
    };
    below(links.to_owned()).flat_map(below).filter(is_held).count()
}
