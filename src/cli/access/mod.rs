//! Access to the tree: through the process that acts for me if there is one, and directly otherwise.
//!
//! Only one process at a time may act for one me. If it is a mount, its folder holds the tree, and commands use
//! plain file operations. If the mount cannot be seen from here, like in another container, or if `msgfs carry
//! --all` acts, that process serves its tree over a socket in the state folder. Otherwise the command opens the
//! mailbox itself. Commands see one trait, [`TreeAccess`], and do not know which case it is.

mod direct;
mod mount;
mod server;
mod silence;
mod socket;
mod wire;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use msgfs::config::{self, LockError, LockHolder};
use msgfs::fuse::mountpoint::{self, MountState};
use msgfs::mailbox::MailboxOpenError;
use msgfs::model::sanitize_line;
use msgfs::view::{AskProgress, AskQuery, FolderEntry, SearchReport, search_report_path};

use super::GlobalOptions;
use super::context::CommandContext;
use super::failure::Failure;
use super::output::{self, SectionWriter, StdoutWriter};

use direct::DirectAccess;
use mount::MountAccess;
use socket::SocketAccess;

pub(crate) use server::TreeServer;
pub(crate) use socket::{grant_takeover, request_takeover};

/// The longest wait for another command, or for a mount that is starting or ending.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two checks.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// The longest time for which the acting process waits for an answer at once. It does not see when the command ends.
const ROUND: Duration = Duration::from_secs(10);

/// The purpose for which a command uses the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessPurpose {
    /// The command sends or marks as read. Otherwise it only reads and needs no lock.
    pub acts: bool,
    /// The command waits for new mail.
    pub waits: bool,
    /// The command looks again and again, and changes meanwhile matter.
    pub follows: bool,
    /// The command searches, and may write the index of search if nobody acts.
    pub searches: bool,
}

impl AccessPurpose {
    /// Reads only.
    pub(crate) const LOOK: Self =
        Self { acts: false, waits: false, follows: false, searches: false };
    /// Reads, and waits for new mail.
    pub(crate) const WAIT: Self = Self { waits: true, follows: true, ..Self::LOOK };
    /// Reads again and again.
    pub(crate) const FOLLOW: Self = Self { follows: true, ..Self::LOOK };
    /// Sends, or marks as read.
    pub(crate) const ACT: Self = Self { acts: true, ..Self::LOOK };
    /// Searches.
    pub(crate) const SEARCH: Self = Self { searches: true, ..Self::LOOK };
}

/// Returns the end of an error about a path: the command that shows the names there.
fn suggest_listing(path: &str, errno: i32) -> String {
    let path = sanitize_line(path);
    let path = path.trim_start_matches("./").trim_end_matches('/');
    let (folder, verb) = match errno {
        libc::EISDIR => (path, "list it with"),
        libc::ENOENT => {
            let top = path.split_once('/').map_or("", |(top, _)| top);
            let known = ["archive", "inbox", "outbox", "sent", "threads"];
            (if known.contains(&top) { top } else { "" }, "see")
        }
        _ => return String::new(),
    };
    let space = if folder.is_empty() { "" } else { " " };
    format!("; {verb} `msgfs ls{space}{folder}`")
}

/// The tree by path. Paths are relative to its root (see [`parse_tree_path`]).
pub(crate) trait TreeAccess {
    /// Returns the entries of a folder by name, or the one file that the path names.
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure>;

    /// Writes a file's bytes to `out`, and marks the message read if reading it marks.
    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure>;

    /// Returns true if something exists under a path, listed or not.
    fn has_path(&self, path: &str) -> bool;

    /// Writes one whole draft. The failure has the reason of the refusal.
    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure>;

    /// Removes a draft or a note, or marks a message of `inbox/` as read.
    fn rm(&self, path: &str) -> Result<(), Failure>;

    /// Marks all messages of `inbox/` as read, and returns their number.
    fn mark_all_read(&self) -> Result<usize, Failure>;

    /// Renames a draft, which sends it unless the new name is private, or makes a message unread. If `to` is a
    /// folder, the file keeps its name. Returns `Some` if the file cannot be renamed: then its text must be
    /// written to this path.
    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure>;

    /// Returns the names of the unread messages, oldest first. A later [`TreeAccess::cat`] of them still counts
    /// as reading.
    fn list_unread(&self) -> Result<Vec<String>, Failure> {
        let listed = self.ls("inbox")?;
        Ok(listed.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect())
    }

    /// Waits until there is unread mail and returns its names; empty if none came in time.
    fn wait_for_mail(&self, timeout: Duration) -> Result<Vec<String>, Failure>;

    /// Prints the next answer to a question to `out` and marks it read once it is printed. Waits for it, at most
    /// `within`.
    fn next_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
        out: &mut dyn Write,
    ) -> Result<AskProgress, Failure>;

    /// Returns the newest messages that a query finds, at most `limit`.
    fn search(&self, query: &str, limit: usize) -> Result<SearchReport, Failure> {
        read_search_report(self, &search_report_path(query, limit))
    }

    /// Ends the access. All that was read or sent is durable when this returns.
    fn close(self: Box<Self>) {}
}

/// Reads a report of a search from its path in the tree.
fn read_search_report<T: TreeAccess + ?Sized>(
    tree: &T,
    path: &str,
) -> Result<SearchReport, Failure> {
    let mut text = Vec::new();
    tree.cat(path, &mut text)?;
    serde_json::from_slice(&text).map_err(|e| {
        Failure::refused(format!("the result of the search is not what this msgfs expects: {e}"))
    })
}

/// Calls `work` with the tree of me. Calls it again if the serving process ended before it began.
pub(crate) fn with_tree<T>(
    global: &GlobalOptions,
    purpose: AccessPurpose,
    work: impl Fn(&dyn TreeAccess) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let access = open_tree(global, purpose)?;
        let outcome = work(access.as_ref());
        access.close();
        match outcome {
            Err(Failure::ServerGone) if Instant::now() < deadline => thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Calls `work` with each path. A failure is reported at once, the other paths are still done, and the result
/// is a failure at the end.
pub(crate) fn for_each_path(
    paths: &[String],
    mut work: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut outcome = Ok(());
    for path in paths {
        match work(path) {
            Ok(()) => {}
            Err(failure @ (Failure::OutputClosed | Failure::ServerGone)) => return Err(failure),
            Err(failure) => {
                let failure = add_pattern_hint(path, failure);
                failure.report();
                outcome = Err(Failure::AlreadyReported);
            }
        }
    }
    outcome
}

/// Adds a hint to the failure of a path that looks like a pattern.
pub(crate) fn add_pattern_hint(path: &str, failure: Failure) -> Failure {
    let (folder, name) = split_path(path);
    if !name.contains(['*', '?', '[']) {
        return failure;
    }
    let folder = if folder.is_empty() { String::new() } else { format!(" {folder}") };
    let all = if path == "inbox/*" { "; `msgfs inbox` prints all of them" } else { "" };
    let hint = format!("patterns are not expanded here: `msgfs ls{folder}` lists the names{all}");
    Failure::refused(format!("{failure}; {hint}"))
}

/// The names in the root of the tree.
const ROOT: &[&str] = &[
    "README.txt",
    "agents.txt",
    "archive",
    "inbox",
    "me",
    "outbox",
    "raw",
    "rejected",
    "search",
    "sent",
    "sent.txt",
    "status.txt",
    "threads",
    "transcripts",
];

/// Returns true if reading this file changes a mark (docs/SEMANTICS.md, "Reading and marks").
pub(crate) fn is_marking_path(path: &str) -> bool {
    path.starts_with("inbox/") || path == ".next" || is_answer_path(path)
}

/// Returns true if the file waits for the answer to a message of mine.
pub(crate) fn is_answer_path(path: &str) -> bool {
    path.starts_with("sent/") && path.ends_with(".answer")
}

/// Copies a file of the tree to standard output.
pub(crate) fn print_file(access: &dyn TreeAccess, path: &str) -> Result<(), Failure> {
    let mut out = StdoutWriter::default();
    let outcome = access.cat(path, &mut out);
    out.finish(outcome)
}

/// Copies one of several files of the tree to standard output, under a separator line.
pub(crate) fn print_file_section(access: &dyn TreeAccess, path: &str) -> Result<(), Failure> {
    let mut out = SectionWriter::new(split_path(path).1);
    let outcome = access.cat(path, &mut out);
    out.finish(outcome)
}

/// Prints the next answer to a question to `out`, as [`TreeAccess::next_answer`]. No lock is held while it waits, and it
/// may return earlier without an answer. It fails with [`Failure::ServerGone`] also after an answer was printed: then
/// the answer may not be marked.
pub(crate) fn wait_for_answer(
    global: &GlobalOptions,
    query: AskQuery<'_>,
    within: Duration,
    out: &mut dyn Write,
) -> Result<AskProgress, Failure> {
    let context = CommandContext::find(global)?;
    let served = config::find_lock_holder(&context.paths.state)
        .and_then(|_| SocketAccess::connect(&context.paths.state).ok());
    if let Some(served) = served {
        return served.next_answer(query, within.min(ROUND), out);
    }
    let alone = DirectAccess::open(global, AccessPurpose::WAIT)?;
    let came = alone.wait_for_answer(query, within);
    Box::new(alone).close();
    came?;
    let access = open_tree(global, AccessPurpose::ACT)?;
    let outcome = access.next_answer(query, Duration::ZERO, out);
    access.close();
    outcome
}

fn open_tree(
    global: &GlobalOptions,
    purpose: AccessPurpose,
) -> Result<Box<dyn TreeAccess>, Failure> {
    let context = CommandContext::find(global)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let holder = config::find_lock_holder(&context.paths.state);
        let mount = holder.as_ref().and_then(|holder| holder.mountpoint.clone());
        let is_stopped = silence::is_stopped(&context.paths.state, holder.as_ref());
        let state = match &holder {
            Some(_) if is_stopped => MountState::Hung,
            Some(holder) => find_mount_state(holder),
            None => MountState::NotMounted,
        };
        if let (Some(dir), MountState::Alive) = (&mount, &state) {
            return Ok(Box::new(MountAccess::new(dir.clone(), global, &context)));
        }
        let mut is_silent = is_stopped || state == MountState::Hung;
        if holder.is_some() && !is_silent && (purpose.acts || !purpose.waits) {
            match SocketAccess::connect(&context.paths.state) {
                Ok(served) => return Ok(Box::new(served)),
                Err(error) => is_silent = socket::is_silence(&error),
            }
        }
        if let Some(holder) = holder.filter(|_| is_silent) {
            // It may have been stopped while this command waited for its answer.
            let is_stopped = is_stopped || silence::is_stopped(&context.paths.state, Some(&holder));
            let silence = silence::describe(&context.me.name, &holder, is_stopped);
            if purpose.acts {
                return Err(Failure::refused(silence));
            }
            output::print_notice(&format!("msgfs: {silence}"));
            output::print_notice("this is read from the stores without it:");
            return open_directly(global, purpose);
        }
        if mount.is_some() && purpose.acts && Instant::now() < deadline {
            // The mount is starting or ending. A command that only reads does not need it.
            thread::sleep(PAUSE);
            continue;
        }
        match open_directly(global, purpose) {
            Err(Failure::Open(MailboxOpenError::Lock(LockError::Held(_))))
                if Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Returns the state of a holder's mount. A mount of somebody else at its path does not count.
fn find_mount_state(holder: &LockHolder) -> MountState {
    let mounts = mountpoint::read_mounts().unwrap_or_default();
    let seen = holder.find_mount(&mounts);
    let state = seen.and_then(|mount| mountpoint::mount_state(&mount.mountpoint).ok());
    state.unwrap_or(MountState::NotMounted)
}

fn open_directly(
    global: &GlobalOptions,
    purpose: AccessPurpose,
) -> Result<Box<dyn TreeAccess>, Failure> {
    let is_alone = || {
        Ok::<_, Failure>(
            config::find_lock_holder(&CommandContext::find(global)?.paths.state).is_none(),
        )
    };
    let purpose = AccessPurpose { searches: purpose.searches && is_alone()?, ..purpose };
    DirectAccess::open(global, purpose).map(|direct| Box::new(direct) as Box<dyn TreeAccess>)
}

/// Returns a typed path (`/inbox/`, `./inbox`, `inbox`) in the tree's form: `inbox`, and the empty path for the
/// root.
///
/// # Errors
/// Returns an error for `..`: the tree has no outside.
pub(crate) fn parse_tree_path(typed: &str) -> Result<String, Failure> {
    let parts: Vec<&str> = typed.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if parts.contains(&"..") || typed.contains('\0') {
        return Err(Failure::Usage(format!(
            "{typed}: paths start at the root of the mount and cannot leave it; try `msgfs ls`"
        )));
    }
    let is_outside = |first: &&str| !first.starts_with('.') && !ROOT.contains(first);
    if typed.starts_with(['/', '~'])
        && let Some(first) = parts.first().filter(|first| is_outside(first))
    {
        let from = parts.iter().position(|part| ROOT.contains(part));
        let inside = from.and_then(|at| parts.get(at..)).map(|rest| rest.join("/"));
        let hint = inside.map_or_else(|| "msgfs ls".to_owned(), |path| format!("msgfs ls {path}"));
        return Err(Failure::refused(format!(
            "{typed}: paths start at the root of the tree, which has no {first}; try `{hint}`"
        )));
    }
    Ok(parts.join("/"))
}

/// Splits a path into its folder and its last component: `inbox/x` is `("inbox", "x")`.
pub(crate) fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the path of a file that is moved to `to`, which may be a folder.
fn resolve_move_target(is_dir: bool, from: &str, to: &str) -> String {
    match (is_dir, split_path(from).1) {
        (false, _) => to.to_owned(),
        (true, name) if to.is_empty() => name.to_owned(),
        (true, name) => format!("{to}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_path_and_a_folder_name_the_listing() {
        for (path, errno, hint) in [
            ("nope", libc::ENOENT, "; see `msgfs ls`"),
            ("nope/x", libc::ENOENT, "; see `msgfs ls`"),
            ("./inbox/nope", libc::ENOENT, "; see `msgfs ls inbox`"),
            ("archive/2020-01-01/x", libc::ENOENT, "; see `msgfs ls archive`"),
            ("inbox/", libc::EISDIR, "; list it with `msgfs ls inbox`"),
            ("status.txt", libc::EPERM, ""),
        ] {
            assert_eq!(suggest_listing(path, errno), hint);
        }
    }

    #[test]
    fn paths_are_normalised_and_stay_inside() {
        for (typed, path) in [
            ("", ""),
            ("/", ""),
            (".", ""),
            ("inbox", "inbox"),
            ("/inbox/", "inbox"),
            ("./threads//t/x.txt", "threads/t/x.txt"),
            ("threads/..%2F", "threads/..%2F"),
        ] {
            assert_eq!(parse_tree_path(typed).unwrap(), path, "{typed}");
        }
        for typed in ["..", "inbox/../..", "/../etc/passwd"] {
            assert!(parse_tree_path(typed).is_err(), "{typed}");
        }
        for typed in ["/root/mail/inbox/x", "~/mail/inbox/x"] {
            let text = parse_tree_path(typed).unwrap_err().to_string();
            assert!(
                text.contains("root of the tree") && text.contains("`msgfs ls inbox/x`"),
                "{text}"
            );
        }
    }
}
