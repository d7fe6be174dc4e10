//! Programs that run with a time limit and with their output in files, so that a background child that keeps a
//! pipe open cannot hang a test.

use std::fmt;
use std::io::{Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The result of a finished program.
pub(crate) struct Out {
    /// Its exit status; `None` if it had to be killed.
    pub(crate) status: Option<ExitStatus>,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
    /// The time that it ran.
    pub(crate) took: Duration,
}

impl Out {
    /// Returns true if it exited with 0.
    pub(crate) fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// Returns its exit code. A signal is 128 + number, as shells count; `None` means that it was killed here.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|s| s.code().or_else(|| s.signal().map(|n| 128 + n)))
    }

    /// Returns both outputs.
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} after {:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.status.map_or_else(|| "killed: too slow".to_owned(), |s| s.to_string()),
            self.took,
            self.stdout,
            self.stderr
        )
    }
}

/// Runs a command with the usual limit. Panics if it does not end in time.
#[track_caller]
pub(crate) fn run(command: Command, input: Option<&[u8]>) -> Out {
    run_for(command, input, Duration::from_secs(120))
}

/// Runs a command. Panics if it does not end within `limit`.
#[track_caller]
pub(crate) fn run_for(command: Command, input: Option<&[u8]>, limit: Duration) -> Out {
    let shown = format!("{command:?}");
    let out = try_run(command, input, limit).unwrap_or_else(|e| panic!("{shown}: {e}"));
    assert!(out.status.is_some(), "does not end: {shown}\n{out:?}");
    out
}

/// Runs a command. Kills its process group after `limit`.
pub(crate) fn try_run(
    command: Command,
    input: Option<&[u8]>,
    limit: Duration,
) -> std::io::Result<Out> {
    Running::start(command, input)?.finish(limit)
}

/// A program that runs beside the test. Dropping it kills its process group.
pub(crate) struct Running {
    child: Child,
    stdout: std::fs::File,
    stderr: std::fs::File,
    started: Instant,
    reaped: bool,
}

/// Lets a program be ended by Ctrl-C also where the tests run in the background of a shell, which ignores that signal
/// there.
fn heed_interrupts(command: &mut Command) {
    let restore = || {
        // SAFETY: `signal` may be called between fork and exec, and no handler of this process is replaced.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: the function takes no lock and allocates nothing.
    unsafe { command.pre_exec(restore) };
}

impl Running {
    /// Starts a program in a process group of its own.
    pub(crate) fn start(mut command: Command, input: Option<&[u8]>) -> std::io::Result<Self> {
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let stdin = match input {
            None => Stdio::null(),
            Some(bytes) => {
                let mut f = tempfile::tempfile()?;
                f.write_all(bytes)?;
                f.rewind()?;
                Stdio::from(f)
            }
        };
        heed_interrupts(&mut command);
        let child = command
            .process_group(0)
            .stdin(stdin)
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()?;
        Ok(Self { child, stdout, stderr, started: Instant::now(), reaped: false })
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns true if it still runs.
    pub(crate) fn running(&mut self) -> bool {
        let ended = self.child.try_wait().ok().flatten().is_some();
        self.reaped |= ended;
        !ended
    }

    /// Signals its whole process group, as Ctrl-C on a terminal does.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        if !self.reaped
            && let Some(pid) = rustix::process::Pid::from_raw(self.pid())
        {
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// Waits for its end, at most `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> std::io::Result<Out> {
        let start = Instant::now();
        let mut status = None;
        loop {
            if let Some(s) = self.child.try_wait()? {
                self.reaped = true;
                status = Some(s);
                break;
            }
            if start.elapsed() > limit {
                self.signal(rustix::process::Signal::KILL);
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let took = self.started.elapsed();
        let text = |f: &mut std::fs::File| -> std::io::Result<String> {
            let mut bytes = Vec::new();
            f.rewind()?;
            f.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Out { status, stdout: text(&mut self.stdout)?, stderr: text(&mut self.stderr)?, took })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        let group = rustix::process::Pid::from_raw(self.pid());
        let others =
            || group.is_some_and(|id| rustix::process::test_kill_process_group(id).is_ok());
        // A process in uninterruptible sleep cannot be reaped; the mount's watchdog frees it. Its children keep
        // files of the mount open until they are gone, too.
        let start = Instant::now();
        while (self.running() || others()) && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
