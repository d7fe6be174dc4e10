//! Probes of paths by a child process. A file system that does not answer blocks the caller, and no signal ends that.
//! Not even a thread may call it, because its process could not end. A child that gets no answer is left alone, and
//! waited for when it ends.

use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use super::mounts;

/// The time after which a file system counts as one that does not answer.
pub const WITHIN: Duration = Duration::from_secs(2);

/// Fails if the file system behind a path does not answer. It is only asked if another program or machine serves a
/// file system on the way.
///
/// # Errors
/// `TimedOut`. An error that the file system returns is none here.
pub fn require_response(path: &Path) -> io::Result<()> {
    if mounts::read_mounts().is_ok_and(|mounts| !mounts::may_reach_served(path, &mounts)) {
        return Ok(());
    }
    match PathProbe::start(path)?.wait_answer(Instant::now() + WITHIN) {
        Some(_) => Ok(()),
        None => Err(io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")),
    }
}

/// A question to the file system behind a path: a child process that waits for the answer.
#[derive(Debug)]
pub struct PathProbe {
    child: Pid,
    answer: io::PipeReader,
    answered: bool,
}

impl PathProbe {
    /// Starts a child that asks the file system for a sign of life.
    ///
    /// # Errors
    /// If the path is none or no child can be started.
    pub fn start(path: &Path) -> io::Result<Self> {
        let path = CString::new(std::path::absolute(path)?.as_os_str().as_bytes())?;
        let (answer, told) = io::pipe()?;
        // SAFETY: the child has one thread of a process that may have more. It makes system calls only, takes no lock
        // and no memory, and ends without returning.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => run_child(&path, told.as_fd()),
            child => {
                let child = Pid::from_raw(child).ok_or(Errno::CHILD)?;
                Ok(Self { child, answer, answered: false })
            }
        }
    }

    /// Waits for the answer of the file system until `deadline`; `None` if there is none.
    pub fn wait_answer(mut self, deadline: Instant) -> Option<Result<(), Errno>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok()?;
            match poll(&mut [PollFd::new(&self.answer, PollFlags::IN)], Some(&left)) {
                Ok(0) => return None,
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        let mut said = [0; 4];
        self.answer.read_exact(&mut said).ok()?;
        self.answered = true;
        let code = i32::from_ne_bytes(said);
        Some(if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code)) })
    }
}

impl Drop for PathProbe {
    fn drop(&mut self) {
        let child = self.child;
        // The child ends now if it can.
        let _ = rustix::process::kill_process(child, Signal::KILL);
        let now = if self.answered { WaitOptions::empty() } else { WaitOptions::NOHANG };
        if let Ok(Some(_)) | Err(_) = rustix::process::waitpid(Some(child), now) {
            return;
        }
        // The end of this process ends a thread that waits for a child, and the system then adopts the child.
        let wait = move || rustix::process::waitpid(Some(child), WaitOptions::empty());
        let _ = std::thread::Builder::new().name("msgfs-probe".to_owned()).spawn(wait);
    }
}

/// Does the child's work. It keeps no descriptor of the process open: no lock, no pipe, no folder.
fn run_child(path: &CString, told: BorrowedFd<'_>) -> ! {
    let own = libc::c_uint::try_from(told.as_raw_fd()).unwrap_or_default();
    // SAFETY: this process is a copy that uses none of these descriptors but its own. The code makes the system call
    // itself, because musl has no function for it.
    unsafe {
        if own > 0 {
            libc::syscall(libc::SYS_close_range, 0, own - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, own.saturating_add(1), libc::c_uint::MAX, 0);
    }
    let _ = rustix::process::chdir(c"/");
    let code = rustix::fs::statfs(path.as_c_str()).err().map_or(0, Errno::raw_os_error);
    let _ = rustix::io::write(told, &code.to_ne_bytes());
    // SAFETY: the child must run no code of the original process at its end.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_reached_also_with_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let said =
            |path: &Path| PathProbe::start(path).unwrap().wait_answer(Instant::now() + WITHIN);
        assert_eq!(said(dir.path()), Some(Ok(())));
        assert_eq!(said(&dir.path().join("none")), Some(Err(Errno::NOENT)));
        require_response(&dir.path().join("none/deeper")).unwrap();
    }

    #[test]
    fn a_question_that_is_dropped_leaves_no_child() {
        let question = PathProbe::start(Path::new("/")).unwrap();
        let child = question.child;
        drop(question);
        let gone = || rustix::process::test_kill_process(child).is_err();
        let began = Instant::now();
        while !gone() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(gone());
    }
}
