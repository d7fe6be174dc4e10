//! The tree as files below a mount point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use msgfs::model::Timestamp;
use msgfs::view::{AskProgress, AskQuery, FolderEntry, SearchReport, search_report_path};
use rustix::io::Errno;

use super::super::GlobalOptions;
use super::super::context::CommandContext;
use super::super::failure::{Failure, format_io_error};
use super::super::progress::show_search_progress;
use super::{
    PAUSE, SocketAccess, TreeAccess, is_marking_path, read_search_report, resolve_move_target,
    split_path, suggest_listing,
};

/// The longest name of a file, in bytes.
const NAME_MAX: usize = 255;
/// The most bytes read from a file that has the reason of a refusal.
const REASON_LIMIT: u64 = 64 << 10;

/// The mount that acts for me.
pub(super) struct MountAccess {
    root: PathBuf,
    me: String,
    config: Option<PathBuf>,
    state: PathBuf,
}

impl MountAccess {
    pub(super) fn new(root: PathBuf, global: &GlobalOptions, context: &CommandContext) -> Self {
        Self {
            root,
            me: context.me.name.clone(),
            config: global.config.clone(),
            state: context.paths.state.clone(),
        }
    }

    fn full_path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// Connects to the mount to read a report whose name is longer than that of a file.
    fn connect_for_report(&self) -> Result<SocketAccess, Failure> {
        SocketAccess::connect(&self.state).map_err(|e| {
            Failure::from_io(
                "the query or key is longer than a file name, and the mount's socket fails",
                &e,
            )
        })
    }

    /// Returns why the name of a draft, or an acknowledgement, was refused. These have no note, so `status.txt` has the
    /// reason.
    fn read_last_refusal(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix("outbox/").unwrap_or(split_path(path).1);
        let status = fs::read_to_string(self.full_path("status.txt")).ok()?;
        let told = status.lines().find_map(|line| line.strip_prefix("last refusal: "))?;
        let (_, refusal) = told.split_once(' ')?;
        let why = refusal.strip_prefix(name)?.strip_prefix(": ")?;
        Some(format!("{path}: {why}"))
    }

    /// Returns the messages that the mount has indexed for a first search, and those in all.
    fn read_search_progress(&self) -> Option<(u64, u64)> {
        let text = fs::read_to_string(self.full_path(".search")).ok()?;
        let (done, all) = text.trim_end().split_once(' ')?;
        Some((done.parse().ok()?, all.parse().ok()?))
    }

    /// Returns the mount's own text about a refused draft, from the file beside the draft.
    fn read_reason(&self, path: &str) -> Option<String> {
        let beside = format!("{path}.error");
        let in_outbox = format!("outbox/{}.error", split_path(path).1);
        [beside, in_outbox].iter().find_map(|path| {
            let mut text = String::new();
            File::open(self.full_path(path))
                .ok()?
                .take(REASON_LIMIT)
                .read_to_string(&mut text)
                .ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        })
    }
}

impl TreeAccess for MountAccess {
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure> {
        let full = self.full_path(path);
        let meta = fs::symlink_metadata(&full).map_err(|e| failure_from_errno(path, &e))?;
        if !meta.is_dir() {
            return Ok(vec![entry_from_metadata(split_path(path).1.to_owned(), &meta)]);
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(&full).map_err(|e| failure_from_errno(path, &e))? {
            let entry = entry.map_err(|e| failure_from_errno(path, &e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.metadata() {
                Ok(meta) => all.push(entry_from_metadata(name, &meta)),
                // An entry that was read or sent since the folder was opened is gone now.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {}
                Err(_) => {
                    let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                    all.push(FolderEntry::unread(name, is_dir));
                }
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Reads a file that marks through the socket, over which the mount learns what was printed. A file would be marked
    /// although nobody got its text. A report whose name is too long for a file is read there, too.
    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        if is_marking_path(path) {
            // The kernel interrupts this wait. The mount does not notice the end of a command that waits at the socket,
            // so there is little to wait for there.
            if path == ".next" {
                let unread = read_names(&self.full_path(".wait"));
                if unread.map_err(|e| failure_from_errno(path, &e))?.is_empty() {
                    return Ok(());
                }
            }
            if let Ok(served) = SocketAccess::connect(&self.state) {
                return served.cat(path, out);
            }
        }
        if path.starts_with(".sent/") && has_long_name(path) {
            return self.connect_for_report()?.cat(path, out);
        }
        let mut file =
            File::open(self.full_path(path)).map_err(|e| failure_from_errno(path, &e))?;
        let mut written = Ok(());
        read_to_end(&mut file, |part| {
            written = out.write_all(part);
            written.is_ok()
        })
        .map_err(|e| failure_from_errno(path, &e))?;
        written.map_err(|e| Failure::from_output_error(&e))
    }

    /// Asks through the socket if the query is too long for the name of a folder.
    fn search(&self, query: &str, limit: usize) -> Result<SearchReport, Failure> {
        let path = search_report_path(query, limit);
        if has_long_name(&path) {
            return self.connect_for_report()?.search(query, limit);
        }
        show_search_progress(|| self.read_search_progress(), || read_search_report(self, &path))
    }

    fn has_path(&self, path: &str) -> bool {
        fs::symlink_metadata(self.full_path(path)).is_ok()
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        let opened =
            OpenOptions::new().write(true).create(true).truncate(true).open(self.full_path(path));
        let mut file = opened.map_err(|e| {
            let is_named = path.starts_with("outbox/") && e.raw_os_error() == Some(libc::EINVAL);
            let text = is_named.then(|| self.read_last_refusal(path)).flatten();
            let text = text.unwrap_or_else(|| failure_from_errno(path, &e).to_string());
            Failure::Errno(e.raw_os_error().unwrap_or(libc::EIO), text)
        })?;
        let written = file.write_all(text);
        // The mount judges the whole draft at its close, so the error of close matters.
        let closed = close_file(file);
        written.and(closed).map_err(|e| {
            let is_ack = path.strip_suffix(".ack").is_some();
            let acknowledged = || is_ack.then(|| self.read_last_refusal(path)).flatten();
            let text = self.read_reason(path).or_else(acknowledged);
            let text = text.unwrap_or_else(|| failure_from_errno(path, &e).to_string());
            Failure::Errno(e.raw_os_error().unwrap_or(libc::EIO), text)
        })
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        fs::remove_file(self.full_path(path)).map_err(|e| failure_from_errno(path, &e))
    }

    fn mark_all_read(&self) -> Result<usize, Failure> {
        let marked = File::open(&self.root).and_then(|root| msgfs::fuse::mark_all_read(&root));
        match marked {
            // This is a mount of an earlier version.
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                let mut unread = self.ls("inbox")?;
                unread.retain(|entry| !entry.is_dir);
                let all: Vec<String> = unread.iter().map(|e| format!("inbox/{}", e.name)).collect();
                super::for_each_path(&all, |path| self.rm(path)).map(|()| all.len())
            }
            Err(e) if e.raw_os_error() != Some(libc::EROFS) => Err(Failure::refused(format!(
                "a message is still unread, because a store refused its mark or the mark could not be saved; \
                 `msgfs status` says why: {}",
                format_io_error(&e)
            ))),
            marked => marked.map_err(|e| failure_from_errno("inbox", &e)),
        }
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        let to = resolve_move_target(self.full_path(to).is_dir(), from, to);
        match fs::rename(self.full_path(from), self.full_path(&to)) {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => Ok(Some(to)),
            done => done.map(|()| None).map_err(|e| match self.read_reason(&to) {
                Some(reason) => Failure::refused(reason),
                None => failure_from_errno(from, &e),
            }),
        }
    }

    fn list_unread(&self) -> Result<Vec<String>, Failure> {
        // A process that has listed inbox/ reads without marking (docs/SEMANTICS.md, S29: looking must not
        // consume). So another process lists, and this one reads.
        let mut ls = Command::new("/proc/self/exe");
        ls.args(["ls", "inbox", "--me", &self.me]);
        if let Some(config) = &self.config {
            ls.arg("--config").arg(config);
        }
        let done = ls
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| Failure::from_io("cannot list inbox/ in a process of its own", &e))?;
        if !done.status.success() {
            return Err(Failure::AlreadyReported);
        }
        let names = String::from_utf8_lossy(&done.stdout);
        Ok(names.lines().filter(|n| n.strip_suffix(".txt").is_some()).map(str::to_owned).collect())
    }

    fn wait_for_mail(&self, timeout: Duration) -> Result<Vec<String>, Failure> {
        let deadline = Instant::now() + timeout;
        let unread = self.ls("inbox")?;
        let unread: Vec<String> =
            unread.into_iter().filter(|e| !e.is_dir).map(|e| e.name).collect();
        if !unread.is_empty() || timeout.is_zero() {
            return Ok(unread);
        }
        // The read blocks in the kernel for as long as the mount likes, so a thread does it while this one
        // keeps the time. The end of the process interrupts it.
        let (answer, answered) = mpsc::channel();
        let file = self.full_path(".wait");
        thread::spawn(move || {
            while answer.send(read_names(&file)).is_ok() {
                // A mount with `wait_timeout = "0s"` answers at once; the pause prevents a busy loop.
                thread::sleep(PAUSE);
            }
        });
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left) {
                Ok(Ok(names)) if names.is_empty() => {}
                Ok(Ok(names)) => return Ok(names),
                Ok(Err(e)) if is_gone(&e) => return Err(Failure::ServerGone),
                Ok(Err(e)) => return Err(failure_from_errno(".wait", &e)),
                Err(_) => return Ok(Vec::new()),
            }
        }
    }

    fn next_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
        out: &mut dyn Write,
    ) -> Result<AskProgress, Failure> {
        // The socket tells what was printed. A file would be marked when its reader dies.
        SocketAccess::connect(&self.state)
            .map_err(|_| Failure::ServerGone)?
            .next_answer(query, within, out)
    }
}

/// Returns true if a part of a path is longer than the name of a file may be.
fn has_long_name(path: &str) -> bool {
    path.split('/').any(|name| name.len() > NAME_MAX)
}

/// Returns true for the errors of a mount that has ended.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ENOTCONN | libc::ENOENT))
}

fn read_names(file: &Path) -> io::Result<Vec<String>> {
    let mut text = Vec::new();
    read_to_end(&mut File::open(file)?, |part| {
        text.extend_from_slice(part);
        true
    })?;
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}

/// Reads to the end, or until `take` returns false. The library's own loops trust the size. Waiting files have
/// none, so those loops would begin with reads of a few bytes.
fn read_to_end(file: &mut File, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) if take(buffer.get(..n).unwrap_or_default()) => {}
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Closes a file and returns the error of the file system, which a drop would ignore.
fn close_file(file: File) -> io::Result<()> {
    // SAFETY: `into_raw_fd` gives up ownership, so this is the only close of this descriptor.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn entry_from_metadata(name: String, meta: &fs::Metadata) -> FolderEntry {
    FolderEntry {
        name,
        is_dir: meta.is_dir(),
        size: meta.len(),
        time: meta.modified().map_or_else(|_| Timestamp::default(), Timestamp::from),
        mode: (meta.permissions().mode() & 0o7777) as u16,
    }
}

/// Returns a refusal of the mount in words (docs/SEMANTICS.md, "Errors"): the kernel passes on only a number.
fn failure_from_errno(path: &str, error: &io::Error) -> Failure {
    let path = if path.is_empty() { "/" } else { path };
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    let hint = match number {
        Some(Errno::INVAL) => {
            "a name or header is not valid, or the newest messages come from several senders"
        }
        Some(Errno::DESTADDRREQ) => "no recipient; add a `To:` line or use the name as file name",
        Some(Errno::HOSTUNREACH) => {
            "no store reaches this recipient, or several could; name one with a `Via:` line"
        }
        Some(Errno::ILSEQ) => "the text is not UTF-8; convert it with `iconv -t UTF-8` first",
        Some(Errno::FBIG) => "the text is larger than the store or max_message allows",
        Some(Errno::PERM) => "this cannot be written; README.txt in the mount says what can",
        Some(Errno::NOKEY) => "the signing key is missing or not readable; see `msgfs doctor`",
        Some(Errno::BADMSG) => "the recipient refuses messages from you, or a rule is broken",
        Some(Errno::ROFS) => "the mount is read-only",
        _ => {
            let hint = suggest_listing(path, error.raw_os_error().unwrap_or_default());
            return Failure::refused(format!("{path}: {}{hint}", format_io_error(error)));
        }
    };
    Failure::refused(format!("{path}: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_sentences() {
        let text =
            |n| failure_from_errno("outbox/bob", &io::Error::from_raw_os_error(n)).to_string();
        assert!(text(libc::EDESTADDRREQ).contains("no recipient"));
        assert!(text(libc::EILSEQ).contains("UTF-8"));
        assert_eq!(
            text(libc::ENOENT),
            "outbox/bob: No such file or directory; see `msgfs ls outbox`"
        );
    }

    #[test]
    fn the_error_of_close_is_seen() {
        let file = OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert!(close_file(file).is_ok());
    }
}
