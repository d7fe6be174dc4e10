//! The processes of waiters: their start by a hook, the check that one runs, the call that wakes a session, and the end
//! of a harness's waiters.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::SilenceReason;
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
        Self::find(std::process::id())
    }

    /// Returns the process of this number.
    fn find(pid: u32) -> Option<Self> {
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

/// The variable that tells a waiter which process is its harness.
const HARNESS_PROCESS: &str = "MSGFS_HARNESS_PROCESS";
/// The largest number of processes between a hook and its harness.
const MOST_BETWEEN: usize = 8;

/// Starts a waiter that outlives this hook, with the same words and the same input. Without a process of the harness
/// above this one there is nobody to wake.
pub(super) fn start_waiter(harness: &Harness, input: &[u8]) -> Result<(), SilenceReason> {
    let Some(above) = find_harness_above(harness) else { return Ok(()) };
    let mut words = std::env::args_os();
    let Some(program) = words.next() else { return Ok(()) };
    let mut waiter = Command::new(program)
        .args(words)
        .arg("--wait")
        .env(HARNESS_PROCESS, above.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // The harness may end the group of the hook.
        .process_group(0)
        .spawn()?;
    if let Some(mut pipe) = waiter.stdin.take() {
        pipe.write_all(input)?;
    }
    Ok(())
}

/// Returns the process of the harness among those that started this one.
fn find_harness_above(harness: &Harness) -> Option<i32> {
    let mut pid = getppid()?.as_raw_nonzero().get();
    for _ in 0..MOST_BETWEEN {
        if is_program_of(harness, pid) {
            return Some(pid);
        }
        pid = read_parent(u32::try_from(pid).ok()?).filter(|parent| *parent > 1)?;
    }
    None
}

/// Returns the process that started a process, or that adopted it.
fn read_parent(pid: u32) -> Option<i32> {
    // The second field of this text is the fourth of the whole.
    process::read_proc_stat(pid)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn is_program_of(harness: &Harness, pid: i32) -> bool {
    let Ok(path) = std::fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    harness.programs.iter().any(|program| name.starts_with(program))
}

/// Returns the processes of a harness that have a terminal, and whose current folder is this one. A session is woken
/// only as long as all of them run: without its terminal nobody would see the turn. A child of such a process does not
/// count: it is about to run another program, and looks like its parent until then.
pub(super) fn list_terminals(harness: &Harness, folder: &Path) -> Vec<WaiterProcess> {
    let Ok(folder) = folder.canonicalize() else { return Vec::new() };
    let is_terminal = |pid: u32| {
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}"));
        let input = link("fd/0").unwrap_or_default();
        (input.starts_with("/dev/pts") || input.starts_with("/dev/tty"))
            && link("cwd").is_ok_and(|cwd| cwd == folder)
            && i32::try_from(pid).is_ok_and(|pid| is_program_of(harness, pid))
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let terminals: Vec<u32> = pids.filter(|pid| is_terminal(*pid)).collect();
    let is_child = |pid: u32| {
        let parent = read_parent(pid).and_then(|parent| u32::try_from(parent).ok());
        parent.is_some_and(|parent| terminals.contains(&parent))
    };
    let parents = terminals.iter().filter(|pid| !is_child(**pid));
    parents.filter_map(|pid| WaiterProcess::find(*pid)).collect()
}

/// Returns the process of the harness that the hook named which started this waiter.
pub(super) fn find_named_harness(harness: &Harness, env: &Env) -> Option<i32> {
    let pid = env.var(HARNESS_PROCESS)?.to_str()?.parse().ok()?;
    (harness.has_own_waiter() && is_program_of(harness, pid)).then_some(pid)
}

/// Calls the program of the harness that runs the session, so that it wakes the session with a text.
pub(super) fn wake_session(
    harness: &Harness,
    env: &Env,
    words: &[&str],
    session: &str,
    text: &str,
) -> Result<(), SilenceReason> {
    let is_id = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let name = harness.programs.first().copied().unwrap_or_default();
    let failed = |why: String| SilenceReason::NotWoken(name, why);
    if session.is_empty() || session.starts_with('-') || !is_id(session) {
        return Err(failed("cannot be given this id of a session".to_owned()));
    }
    // The very program that runs the session, also after an update has replaced it.
    let running =
        find_named_harness(harness, env).map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
    let words = words.iter().map(|word| match *word {
        "SESSION" => session,
        "TEXT" => text,
        word => word,
    });
    let status = Command::new(running.unwrap_or_else(|| name.into()))
        .arg0(name)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("ended with {status}"))),
        Err(why) => Err(failed(format!("cannot be run: {why}"))),
    }
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
