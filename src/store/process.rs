//! This process and others: memory, starting again, and what `/proc` tells.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use crate::model::locks::Mutex;

/// How this program takes its own place.
static AGAIN: LazyLock<Mutex<RestartPlan>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct RestartPlan {
    arguments: Option<Vec<OsString>>,
    stdout: Option<OwnedFd>,
    /// Nothing is said if it ends instead, and that is no failure.
    silent: bool,
}

/// Says with which arguments this program takes its own place if it cannot go on; with none it ends.
pub fn set_restart_arguments(arguments: Option<Vec<OsString>>) {
    AGAIN.lock().arguments = arguments;
}

/// Says what is its standard output then, if not the one it has.
pub fn set_restart_stdout(stdout: Option<OwnedFd>) {
    AGAIN.lock().stdout = stdout;
}

/// Says that it ends with 0 and without a word if it cannot go on.
pub fn set_silent_exit() {
    AGAIN.lock().silent = true;
}

/// Ends this process at once, as a kill would, and begins anew in its place if it was said how. What is on
/// disk is made for that; who has read something from it is not told anything wrong.
pub fn restart_process() -> ! {
    #[cfg(test)]
    panic!("this process starts again");
    #[cfg(not(test))]
    {
        use std::os::unix::process::CommandExt as _;
        // Held to the end: a second thread with the same trouble waits for it.
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

/// The size of a large buffer, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// Gives memory that is free back to the system: a first index takes much of it for a moment, on all
/// cores, and the allocator would keep it.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has large buffers given back to the system as soon as they are free: the allocator, once it has seen
/// one, would keep all that are not larger. To be called before any thread is started.
pub fn limit_heap_retention() {
    #[cfg(target_env = "gnu")]
    // SAFETY: they take numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

/// A small file of `/proc`, which does not say how long it is: asked for a few bytes at a time it takes ten
/// calls.
pub fn read_proc_file(id: u32, name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(4 << 10);
    let file = File::open(format!("/proc/{id}/{name}")).ok()?;
    file.take(1 << 20).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// Whether this is the first thread of a process, by whose number that goes. `false` also if it cannot
/// be seen.
pub fn is_first_thread(tid: u32) -> bool {
    // SAFETY: it takes three numbers. Signal 0 is none: it only says whether there is such a thread of
    // such a process.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, tid, tid, 0) };
    asked == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// The `stat` of a process or thread, from the field after the command's name on.
pub fn read_proc_stat(id: u32) -> Option<String> {
    let stat = read_proc_file(id, "stat")?;
    // The command's name may hold anything, also spaces and parentheses.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

/// Whether a process has ended, and only whoever started it, or some of its threads, have not noticed
/// yet.
pub fn has_ended(pid: u32) -> bool {
    read_proc_stat(pid).is_some_and(|stat| stat.starts_with(['Z', 'X']))
}
