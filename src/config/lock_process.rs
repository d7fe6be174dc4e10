//! The process that holds a lock of ours, proved before it is ended.
//!
//! A lock file has the pid of its holder. That pid may belong to another process: one of another container, or
//! a later one. So it counts only if the process is this user's and has the lock file open. A descriptor keeps
//! the pid from before the check until after the signal.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use super::lock::{LockHolder, carry_lock_file, find_file_holder, lock_file};
use crate::store::process;

/// A process that is proved to be a msgfs of this user.
#[derive(Debug)]
pub struct LockProcess {
    /// The holder as written in the lock.
    pub holder: LockHolder,
    process: OwnedFd,
}

impl LockProcess {
    /// Returns the process that acts for a state folder, or `None` if there is none. A holder that cannot be
    /// proved is the error.
    pub fn find_acting(state: &Path) -> Option<Result<Self, LockHolder>> {
        Self::find_holding(&lock_file(state))
    }

    /// Returns the process that carries for a state folder without a mount, or waits to do so, like
    /// [`LockProcess::find_acting`].
    pub fn find_carrying(state: &Path) -> Option<Result<Self, LockHolder>> {
        Self::find_holding(&carry_lock_file(state))
    }

    fn find_holding(lock: &Path) -> Option<Result<Self, LockHolder>> {
        let holder = find_file_holder(lock)?;
        let process = holder.pid.and_then(|pid| prove_holder(pid, &fs::metadata(lock).ok()?));
        Some(match process {
            Some(process) => Ok(Self { holder, process }),
            None => Err(holder),
        })
    }

    /// Returns true if the process is stopped and does nothing until it is continued.
    pub fn is_stopped(&self) -> bool {
        self.holder.pid.is_some_and(process::is_stopped)
    }

    /// Asks the process to end. A stopped process continues, so that it can end.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn terminate(&self) -> io::Result<()> {
        for signal in [Signal::TERM, Signal::CONT] {
            pidfd_send_signal(&self.process, signal)?;
        }
        Ok(())
    }

    /// Waits until the process has ended. Returns true if it has.
    pub fn wait_for_end(&self, time: Duration) -> bool {
        has_ended(&self.process, time)
    }
}

/// Returns a descriptor of a process that is this user's and has a file open.
fn prove_holder(pid: u32, file: &Metadata) -> Option<OwnedFd> {
    let process = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let folder = Path::new("/proc").join(pid.to_string());
    if fs::metadata(&folder).ok()?.uid() != geteuid().as_raw() {
        return None;
    }
    let is_it = |open: Metadata| (open.dev(), open.ino()) == (file.dev(), file.ino());
    let mut open = fs::read_dir(folder.join("fd")).ok()?.flatten();
    let has_it = open.any(|entry| fs::metadata(entry.path()).is_ok_and(is_it));
    // The data was of this process only if it still exists.
    (has_it && !has_ended(&process, Duration::ZERO)).then_some(process)
}

fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let time = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    matches!(rustix::io::retry_on_intr(|| poll(&mut ends, Some(&time))), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StateLock;
    use crate::config::lock::tests::Reaped;
    use std::process::Command;

    #[test]
    fn only_who_has_the_lock_open_is_proved() {
        let dir = tempfile::tempdir().unwrap();
        assert!(LockProcess::find_acting(dir.path()).is_none());
        let lock = StateLock::acquire(dir.path(), None).unwrap();
        let proved = LockProcess::find_acting(dir.path()).unwrap().unwrap();
        assert_eq!(proved.holder.pid, Some(std::process::id()));
        assert!(!proved.wait_for_end(Duration::ZERO));
        assert!(LockProcess::find_carrying(dir.path()).is_none());

        // This pid belongs to another process here, like one of another container may.
        let mut other = Reaped(Command::new("sleep").arg("60").spawn().unwrap());
        let text = format!("{{\"pid\": {}}}", other.0.id());
        fs::write(dir.path().join("lock"), text).unwrap();
        let told = LockProcess::find_acting(dir.path()).unwrap().unwrap_err();
        assert_eq!(told.pid, Some(other.0.id()));
        assert!(other.0.try_wait().unwrap().is_none());
        drop(lock);
    }

    #[test]
    fn what_is_proved_is_ended_although_it_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("lock")).unwrap();
        let mut child = Reaped(Command::new("sleep").arg("60").stdin(file).spawn().unwrap());
        let raw = Pid::from_raw(i32::try_from(child.0.id()).unwrap()).unwrap();
        rustix::process::kill_process(raw, Signal::STOP).unwrap();
        let process = prove_holder(child.0.id(), &fs::metadata(dir.path().join("lock")).unwrap());
        let holder = LockHolder { pid: Some(child.0.id()), ..LockHolder::default() };
        let held = LockProcess { holder, process: process.unwrap() };
        let began = std::time::Instant::now();
        while !held.is_stopped() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(held.is_stopped());
        held.terminate().unwrap();
        assert!(held.wait_for_end(Duration::from_secs(20)));
        assert!(child.0.wait().unwrap().code().is_none(), "by the signal");
    }
}
