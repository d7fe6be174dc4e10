//! The processes of waiters: the check that one runs, and the end of a harness's waiters.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::harness::Harness;
use super::sessions::SessionDir;
use crate::config::Env;
use crate::store::process;

/// The process of a waiter. Its start time tells it from a later process with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterProcess {
    pid: u32,
    /// The start time, in ticks since the machine was started.
    began: u64,
}

impl WaiterProcess {
    /// Returns this process.
    pub(super) fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { pid, began: read_start_time(pid)? })
    }

    /// Returns true if it still runs.
    pub fn is_running(&self) -> bool {
        read_start_time(self.pid) == Some(self.began) && !process::has_ended(self.pid)
    }

    /// Ends the process, if it is still the same one and a hook of msgfs. Returns true if it was told to end.
    fn end_process(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        // As long as it is open, the number means this process.
        let Ok(opened) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        self.is_running()
            && is_waiting_hook(self.pid)
            && pidfd_send_signal(&opened, Signal::TERM).is_ok()
    }
}

/// Returns the time at which a process began.
fn read_start_time(pid: u32) -> Option<u64> {
    // The first field of this text is the third of the whole.
    process::read_proc_stat(pid)?.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns true if a process was called as a hook that waits.
fn is_waiting_hook(pid: u32) -> bool {
    let Some(line) = process::read_proc_file(pid, "cmdline") else { return false };
    let words: Vec<&str> = line.split('\0').collect();
    words.windows(2).any(|pair| pair == ["hook", "run"]) && words.contains(&"--wait")
}

/// Ends the waiters of a harness's sessions, and returns how many were told to end.
///
/// The record of an older msgfs does not name the waiter's process. Such a waiter ends by itself when it may not ring
/// any more.
pub fn end_waiters(env: &Env, harness: &Harness) -> usize {
    let mut ended = 0;
    for sessions in SessionDir::locate_all(env) {
        if !sessions.dir().is_dir() {
            continue;
        }
        for session in sessions.dismiss_waiters(harness.name).unwrap_or_default() {
            let ends = session
                .process
                .as_ref()
                .map_or(session.waiter.is_some(), WaiterProcess::end_process);
            ended += usize::from(ends);
        }
    }
    ended
}
