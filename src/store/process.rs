//! This process and others: memory, restarts, and the files of `/proc`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use crate::model::locks::{LockLevel, Mutex};

/// The plan by which this program replaces itself.
static AGAIN: LazyLock<Mutex<RestartPlan>> =
    LazyLock::new(|| Mutex::with_level(LockLevel::Restart, RestartPlan::default()));

#[derive(Default)]
struct RestartPlan {
    arguments: Option<Vec<OsString>>,
    stdout: Option<OwnedFd>,
    /// True if the process ends without a message and without failure when it cannot restart.
    silent: bool,
}

/// Sets the arguments with which this program replaces itself if it cannot go on. With none it ends.
pub fn set_restart_arguments(arguments: Option<Vec<OsString>>) {
    AGAIN.lock().arguments = arguments;
}

/// Sets the standard output of the program after a restart, if it is not the present one.
pub fn set_restart_stdout(stdout: Option<OwnedFd>) {
    AGAIN.lock().stdout = stdout;
}

/// Makes this program end with 0 and without a message if it cannot go on.
pub fn set_silent_exit() {
    AGAIN.lock().silent = true;
}

/// Ends this process at once, as a kill would, and begins anew in its place if the plan has arguments. The files on
/// disk are made for that, and a reader of them gets nothing wrong.
pub fn restart_process() -> ! {
    #[cfg(test)]
    panic!("this process starts again");
    #[cfg(not(test))]
    {
        use std::os::unix::process::CommandExt as _;
        // The lock is held to the end: a second thread with the same fault waits for it.
        let mut again = AGAIN.lock();
        if let Some(arguments) = again.arguments.take() {
            let mut program = std::process::Command::new("/proc/self/exe");
            program.arg0("msgfs").args(arguments);
            if let Some(stdout) = again.stdout.take() {
                program.stdout(stdout);
            }
            let error = program.exec();
            tracing::error!(%error, "cannot start again");
        }
        if again.silent {
            std::process::exit(0);
        }
        eprintln!("msgfs: the saved index is damaged; run this again");
        std::process::exit(1)
    }
}

/// True if the program was started without a standard output that it can write to.
static HAS_NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// Notes whether standard output can be written. It must run before `main`: the standard library puts `/dev/null` in
/// place of a closed one, and hides the error of one that is open only for reading.
pub fn note_stdout() {
    let flags = rustix::fs::fcntl_getfl(rustix::stdio::stdout());
    let is_read_only = |flags: OFlags| flags & OFlags::RWMODE == OFlags::RDONLY;
    HAS_NO_STDOUT.store(flags.map_or(true, is_read_only), Ordering::Relaxed);
}

/// Checks that text written to standard output can reach somebody.
///
/// # Errors
/// `EBADF` if the program was started with a standard output that is closed or open only for reading.
pub fn check_stdout() -> io::Result<()> {
    if HAS_NO_STDOUT.load(Ordering::Relaxed) {
        return Err(rustix::io::Errno::BADF.into());
    }
    Ok(())
}

/// Writes bytes to standard output at once.
///
/// # Errors
/// Those of [`check_stdout`] and of the system.
pub fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    check_stdout()?;
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// The size of a large buffer, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// Gives free memory back to the system. A first index takes much of it for a moment, on all cores, and the allocator
/// would keep it.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has large buffers given back to the system as soon as they are free. The allocator, once it has seen one, would
/// keep all that are not larger. It must be called before any thread is started.
pub fn limit_heap_retention() {
    #[cfg(target_env = "gnu")]
    // SAFETY: they take numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

/// Reads a small file of `/proc`. Such a file does not state its length, and reading a few bytes at a time would take
/// ten calls.
pub fn read_proc_file(id: u32, name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(4 << 10);
    let file = File::open(format!("/proc/{id}/{name}")).ok()?;
    file.take(1 << 20).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// Returns true if this is the first thread of a process, which has the number of the process. Returns false also if
/// it cannot be seen.
pub fn is_first_thread(tid: u32) -> bool {
    // SAFETY: it takes three numbers. Signal 0 is none: the call only tests if there is such a thread of such a
    // process.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, tid, tid, 0) };
    asked == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Returns true if there is no such thread. One that belongs to another user, or that `/proc` hides, is there.
pub fn is_gone(tid: u32) -> bool {
    let known = i32::try_from(tid).ok().and_then(rustix::process::Pid::from_raw);
    // The call sends no signal, and takes the number of any thread.
    known.is_none_or(|tid| rustix::process::test_kill_process(tid) == Err(rustix::io::Errno::SRCH))
}

/// Returns the `stat` of a process or thread, from the field after the command's name on.
pub fn read_proc_stat(id: u32) -> Option<String> {
    let stat = read_proc_file(id, "stat")?;
    // The command's name may hold anything, also spaces and parentheses.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

/// Returns true if a process has ended, and only its parent, or some of its threads, have not noticed yet.
pub fn has_ended(pid: u32) -> bool {
    read_proc_stat(pid).is_some_and(|stat| stat.starts_with(['Z', 'X']))
}

/// Returns true if a process is stopped, as by `kill -STOP` or Ctrl-Z, so that it does nothing until it is continued.
pub fn is_stopped(pid: u32) -> bool {
    read_proc_stat(pid).is_some_and(|stat| stat.starts_with('T'))
}
