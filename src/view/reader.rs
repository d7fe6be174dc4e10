//! Facts about the process that reads. They tell reading a message from looking at a folder (docs/SEMANTICS.md,
//! S28, S29 and S220: looking must not consume).

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::store::process;

/// One program run: a process from one `execve` to the next.
///
/// `bash -c 'cat inbox/*'` lists as bash and then becomes cat under the same pid, so the pid alone says too
/// little. Three more facts tell the runs apart: the start time of the process, its executable, and the random
/// addresses that the kernel gave to its code and arguments at `execve`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    pid: u32,
    started: String,
    exe: Option<(u64, u64)>,
    /// Start of code, stack, data, and arguments; zeros where the kernel hides them.
    layout: Vec<String>,
}

/// Fields of `/proc/<pid>/stat`, counted from the one after the command's name.
const PARENT: usize = 1;
const FLAGS: usize = 6;
const EXIT_CODE: usize = 49;
const STARTED: usize = 19;
const LAYOUT: [usize; 4] = [23, 25, 42, 45];

impl ProcessIdentity {
    /// Looks a process up by the id of any of its threads. Returns `None` if it is gone, or lives in a pid
    /// namespace that is invisible from here (pid 0).
    pub fn from_thread(tid: u32) -> Option<Self> {
        if tid == 0 {
            return None;
        }
        let pid = thread_group(tid)?;
        let stat = process::read_proc_stat(pid)?;
        let fields: Vec<&str> = stat.split_ascii_whitespace().collect();
        let field = |n: usize| fields.get(n).map_or_else(String::new, |f| (*f).to_owned());
        let exe = std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|m| (m.dev(), m.ino()));
        Some(Self { pid, started: field(STARTED), exe, layout: LAYOUT.map(field).to_vec() })
    }
}

fn read_stat_field(tid: u32, field: usize) -> Option<u32> {
    process::read_proc_stat(tid)?.split_ascii_whitespace().nth(field)?.parse().ok()
}

/// Returns the parent of a process.
pub(super) fn parent_pid(pid: u32) -> Option<u32> {
    read_stat_field(pid, PARENT)
}

/// Time to wait for the answer of a probe thread before the state of that thread is examined.
const PROBE_WAIT: Duration = Duration::from_millis(20);

/// Returns true if a process has ended, so that it can close nothing any more.
pub(super) fn has_gone(pid: u32) -> bool {
    process::read_proc_stat(pid).is_none() || process::has_ended(pid)
}

/// The kernel's flag for a thread that is ending.
const ENDING: u32 = 4;

/// Returns the signal that is ending a thread at this moment. Returns `None` if the thread lives on, exits by
/// itself, or is invisible from here.
///
/// A thread of its own reads `stat`. A program that calls `execve` closes files while it holds the lock that
/// `stat` waits for, so a read in this thread would deadlock with it. Such a program counts as living on.
///
/// A thread that ends gives up its memory before its files. `statm` shows that without the lock.
pub(super) fn detect_ending_signal(tid: u32) -> Option<u32> {
    if has_memory(tid) {
        return None;
    }
    let (tell, told) = bounded(1);
    let (answer, answered) = bounded(1);
    let look = move || {
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        let _ = answer.send(read_ending_signal(tid));
    };
    std::thread::Builder::new().name("msgfs-look".into()).spawn(look).ok()?;
    let looking = told.recv().ok()?;
    let mut waits = 0;
    loop {
        match answered.recv_timeout(PROBE_WAIT) {
            Ok(signal) => return signal,
            // The probe thread waits for a lock, and not for a processor.
            Err(RecvTimeoutError::Timeout) if thread_state(looking) == Some('D') => waits += 1,
            Err(RecvTimeoutError::Timeout) => waits = 0,
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        if waits > 2 {
            return None;
        }
    }
}

/// Returns true if a thread visibly has memory, which every thread has until it ends.
fn has_memory(tid: u32) -> bool {
    process::read_proc_file(tid, "statm").is_some_and(|pages| !pages.starts_with("0 "))
}

/// Returns the state letter of a thread of this process, as `ps` shows it.
fn thread_state(tid: u32) -> Option<char> {
    process::read_proc_stat(tid)?.trim_start().chars().next()
}

fn read_ending_signal(tid: u32) -> Option<u32> {
    if tid == 0 || read_stat_field(tid, FLAGS)? & ENDING == 0 {
        return None;
    }
    // The value is that of `wait`: its low bits are the signal.
    Some(read_stat_field(tid, EXIT_CODE)? & 0x7f).filter(|signal| *signal != 0)
}

/// Returns the process of a thread. Most requests come from the first thread of a process, and that check is
/// cheaper than to read `status`.
pub fn thread_group(tid: u32) -> Option<u32> {
    if tid != 0 && process::is_first_thread(tid) {
        return Some(tid);
    }
    let status = process::read_proc_file(tid, "status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Programs that contain many others; their first argument says which one runs.
const MANY_IN_ONE: [&str; 2] = ["busybox", "toybox"];

/// Returns the name of the program that a process runs.
pub fn program_name(pid: u32) -> Option<String> {
    let name = process::read_proc_file(pid, "comm")?;
    let name = name.trim_end_matches('\n');
    let arguments = || process::read_proc_file(pid, "cmdline");
    let applet = Some(name).filter(|name| MANY_IN_ONE.contains(name)).and_then(|_| arguments());
    let applet = applet.as_deref().and_then(|all| all.split('\0').nth(1));
    Some(applet.filter(|applet| !applet.is_empty()).unwrap_or(name).to_owned())
}

/// Returns the number of the system call that a thread is in; `None` if it is invisible.
pub fn current_system_call(tid: u32) -> Option<libc::c_long> {
    let call = process::read_proc_file(tid, "syscall")?;
    call.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns true if a signal is pending for this thread that it neither blocks nor ignores, or if the thread is gone. A
/// blocked read of that thread must then end.
pub fn has_pending_signal(tid: u32) -> bool {
    is_interrupted(tid, read_status(tid).as_deref())
}

/// Returns true if nobody can see from here which signals are pending for a thread: it is in another pid namespace
/// (pid 0), or `/proc` hides it.
pub fn has_hidden_signals(tid: u32) -> bool {
    read_status(tid).is_none()
}

fn read_status(tid: u32) -> Option<String> {
    process::read_proc_file(tid, "status")
}

fn is_interrupted(tid: u32, status: Option<&str>) -> bool {
    let Some(status) = status else {
        // The thread may live on, because `/proc` can hide the processes of other users.
        return tid != 0 && process::is_gone(tid);
    };
    let mask = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("0");
        u64::from_str_radix(line.trim(), 16).unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !(mask("SigBlk:") | mask("SigIgn:")) != 0
}

/// The facts about an open that decide whether reading marks the message.
#[derive(Clone, Debug, Default)]
pub struct ReaderProfile {
    /// True for another user than the one who mounted. Only the owner's reading marks.
    pub stranger: bool,
    /// `O_NOFOLLOW`, which `grep -r`, `rsync`, `tar` and `cp -a` use and `cat` does not.
    pub nofollow: bool,
    /// `O_NOATIME`: the reader asks to leave no trace.
    pub noatime: bool,
    /// The process, if it can be known.
    pub process: Option<ProcessIdentity>,
    /// The name of its program, if it can be known.
    pub program: Option<String>,
}

/// Programs that search, cut out, sum, compare, copy, pack, sign or scan the files that they open, rather than
/// show them whole (docs/DETAILS.md, S220). Scripts have their own name. The system knows 15 bytes of a name.
#[rustfmt::skip]
const LOOKING: &[&str] = &[
    "7z", "7za", "7zr", "7zz", "ack", "ack-grep", "afio", "ag", "age", "agrep", "ar", "awk",
    "b2sum", "b3sum", "bacula-fd", "borg", "borgmatic", "brotli", "bsdcpio", "bsdtar", "bup",
    "bzcmp", "bzdiff", "bzegrep", "bzfgrep", "bzgrep", "bzip2", "cfv", "cksfv", "cksum", "clamd",
    "clamdscan", "clamscan", "cloc", "cmp", "colordiff", "comm", "compress", "cp", "cpio", "crc32",
    "csync2", "ctags", "cut", "dar", "diff", "diff3", "difft", "duff", "duplicity", "dwdiff",
    "egrep", "exiftool", "fclones", "fd", "fdfind", "fdupes", "fgrep", "file", "find", "fossil",
    "gawk", "git", "gpg", "gpg2", "gpgsm", "gpgv", "grep", "gsed", "gzip", "hardlink", "hashdeep",
    "hd", "head", "hexdump", "hg", "install", "jdupes", "join", "jq", "kopia", "lbzip2", "lrzip",
    "lz4", "lzgrep", "lzip", "lzma", "lzop", "mairix", "mawk", "md5deep", "md5sum", "mimetype",
    "minisign", "namazu", "nawk", "notmuch", "od", "omindex", "openssl", "original-awk", "pax",
    "pbzip2", "pcre2grep", "pcregrep", "pigz", "pixz", "plzip", "pzstd", "rar", "rclone", "rdfind",
    "rdiff", "rdiff-backup", "recollindex", "restic", "rg", "rga", "rgrep", "rhash", "rmlint",
    "rsync", "scc", "scp", "sdiff", "sed", "sftp", "sha1deep", "sha1sum", "sha224sum",
    "sha256deep", "sha256sum", "sha384sum", "sha3sum", "sha512sum", "shasum", "signify-openbsd",
    "sort", "sq", "star", "strings", "sum", "svn", "swish-e", "syncthing", "tail", "tar",
    "tarsnap", "tokei", "tr", "tre-agrep", "ug", "ugrep", "uniq", "unison", "wc", "wdiff",
    "whirlpooldeep", "xdelta3", "xxd", "xxh128sum", "xxh32sum", "xxh64sum", "xxhsum", "xz",
    "xzcmp", "xzdiff", "xzegrep", "xzfgrep", "xzgrep", "zcmp", "zdiff", "zegrep", "zfgrep",
    "zgrep", "zip", "zpaq", "zstd", "zstdgrep",
];

impl ReaderProfile {
    /// Returns true if the program only looks at the file, however much it reads.
    pub(super) fn is_only_looking(&self) -> bool {
        let program = self.program.as_deref();
        self.stranger || self.nofollow || self.noatime || program.is_some_and(is_looking_program)
    }
}

fn is_looking_program(name: &str) -> bool {
    LOOKING.contains(&name)
}

/// Returns true if a thread runs one of the programs that only look.
pub(super) fn runs_looking_program(tid: u32) -> bool {
    program_name(tid).is_some_and(|name| is_looking_program(&name))
}

/// The number of processes from which on those that are gone are forgotten.
const MANY: usize = 256;

/// The processes that have listed `inbox/`.
#[derive(Debug, Default)]
pub(super) struct InboxListers(HashSet<ProcessIdentity>);

impl InboxListers {
    /// Notes that a process has listed `inbox/`.
    pub fn insert(&mut self, process: ProcessIdentity) {
        if self.0.len() >= MANY {
            let alive =
                |p: &ProcessIdentity| ProcessIdentity::from_thread(p.pid).as_ref() == Some(p);
            self.0.retain(alive);
        }
        self.0.insert(process);
    }

    /// Returns true if a process has listed `inbox/`.
    pub fn contains(&self, process: &ProcessIdentity) -> bool {
        self.0.contains(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    #[test]
    fn a_process_is_the_same_until_it_becomes_another_program() {
        let me = ProcessIdentity::from_thread(std::process::id()).unwrap();
        assert_eq!(Some(&me), ProcessIdentity::from_thread(std::process::id()).as_ref());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read x; exec sh -c 'read y'"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let before = ProcessIdentity::from_thread(child.id()).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"go\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let changed = loop {
            let now = ProcessIdentity::from_thread(child.id()).unwrap();
            if now != before || Instant::now() > deadline {
                break now != before;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        drop(stdin);
        child.wait().unwrap();
        assert!(changed, "execve of the same program must be seen");
        assert!(ProcessIdentity::from_thread(0).is_none());
    }

    #[test]
    fn the_programs_that_only_look_are_those_of_the_documentation() {
        assert!(LOOKING.is_sorted() && LOOKING.iter().all(|name| name.len() <= 15));
        let text = include_str!("../../docs/DETAILS.md");
        let (_, list) = text.split_once("- **S220**").unwrap();
        let (list, _) = list.split_once(", by the name in").unwrap();
        let mut named: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        // The table of the page is grouped by the purpose of the programs.
        named.sort_unstable();
        assert_eq!(named, LOOKING);
    }

    #[test]
    fn every_thread_belongs_to_its_process() {
        let own = || thread_group(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        let of_another = std::thread::spawn(own).join().unwrap();
        let me = Some(std::process::id());
        assert_eq!((thread_group(std::process::id()), own(), of_another), (me, me, me));
        assert_eq!((thread_group(0), thread_group(u32::MAX)), (None, None));
    }

    #[test]
    fn nobody_interrupts_this_test() {
        assert!(!has_pending_signal(std::process::id()));
        assert!(!has_pending_signal(0));
        assert!(has_hidden_signals(0) && !has_hidden_signals(std::process::id()));
    }

    #[test]
    fn a_hidden_thread_is_interrupted_only_when_it_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        assert!(is_interrupted(gone, None) && has_pending_signal(gone));
        assert!(!is_interrupted(std::process::id(), None));
        // A request names a thread, and most threads have another number than their process.
        let own = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(!std::thread::spawn(move || is_interrupted(own(), None)).join().unwrap());
        assert!(!is_interrupted(0, None));
    }
}
