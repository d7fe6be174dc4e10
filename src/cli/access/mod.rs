//! The tree, through the process that acts for me if there is one and directly if not.
//!
//! Only one process at a time may act for one me. If a mount does, its folder is where the tree
//! is, and plain file operations are the way in. If that cannot be seen from here, as in another container, or
//! if `msgfs carry --all` acts, that process serves its tree over a socket in the state folder. Otherwise the
//! command opens the mailbox itself. Commands see one trait, [`Access`], and do not know which it is.

mod direct;
mod mounted;
mod served;
mod server;
mod wire;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use msgfs::config::{self, LockError};
use msgfs::fuse::mountpoint::{self, MountState};
use msgfs::mailbox::MailboxOpenError;
use msgfs::view::FolderEntry;

use super::GlobalOptions;
use super::context::CommandContext;
use super::failure::Failure;
use super::output::{SectionWriter, StdoutWriter};

use direct::DirectAccess;
use mounted::MountAccess;
use served::SocketAccess;

pub(crate) use served::{grant_takeover, request_takeover};
pub(crate) use server::TreeServer;

/// How long to wait for another command, or for a mount that is starting or ending.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether it is over.
const PAUSE: Duration = Duration::from_millis(50);

/// What a command is going to do with the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessPurpose {
    /// Send, or mark as read. Else it looks only, and no lock is needed.
    pub acts: bool,
    /// Wait for what comes.
    pub waits: bool,
}

impl AccessPurpose {
    /// Look at what is there.
    pub(crate) const LOOK: Self = Self { acts: false, waits: false };
    /// Look, and wait for what comes.
    pub(crate) const WAIT: Self = Self { acts: false, waits: true };
    /// Send, or mark as read.
    pub(crate) const ACT: Self = Self { acts: true, waits: false };
}

/// The tree by path. Paths are relative to its root (see [`tree_path`]).
pub(crate) trait TreeAccess {
    /// The entries of a folder by name, or the one file that the path names.
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure>;

    /// Writes a file's bytes to `out`; marks it read where reading marks.
    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure>;

    /// Tells whether there is something under a path, listed or not.
    fn has_path(&self, path: &str) -> bool;

    /// Writes one draft, whole. The failure carries the reason of the refusal.
    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure>;

    /// Removes a draft or a note, or marks a message of `inbox/` as read.
    fn rm(&self, path: &str) -> Result<(), Failure>;

    /// Marks all messages of `inbox/` as read; how many those were.
    fn mark_all_read(&self) -> Result<usize, Failure>;

    /// Renames a draft, which sends it unless the new name is private, or makes a message unread. Into
    /// a folder under the name it has. `Some`: the two are not in one place, and the text must be written
    /// anew at this path.
    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure>;

    /// Names of the unread messages, oldest first, asked in such a way that a later
    /// [`Access::cat`] of them still counts as reading.
    fn list_unread(&self) -> Result<Vec<String>, Failure> {
        let listed = self.ls("inbox")?;
        Ok(listed.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect())
    }

    /// Waits until there is unread mail and returns its names; empty if none came in time.
    fn wait_for_mail(&self, timeout: Duration) -> Result<Vec<String>, Failure>;

    /// Ends the access. What was read or sent is durable when this returns.
    fn close(self: Box<Self>) {}
}

/// Does `work` with the tree of me; once more if whoever served it ended before anything was done.
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

/// Does `work` with each path. As other tools do: what fails is said, the others are done, and it fails
/// at the end.
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

/// Adds to the failure of a path what was probably meant by it.
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

fn open_tree(
    global: &GlobalOptions,
    purpose: AccessPurpose,
) -> Result<Box<dyn TreeAccess>, Failure> {
    let context = CommandContext::find(global)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let holder = config::find_lock_holder(&context.paths.state);
        let mount = holder.as_ref().and_then(|holder| holder.mountpoint.clone());
        if let Some(dir) = &mount
            && let Ok(MountState::Alive) = mountpoint::mount_state(dir)
        {
            return Ok(Box::new(MountAccess::new(dir.clone(), global, &context)));
        }
        if holder.is_some()
            && (purpose.acts || !purpose.waits)
            && let Some(served) = SocketAccess::connect(&context.paths.state)
        {
            return Ok(Box::new(served));
        }
        if mount.is_some() && purpose.acts && Instant::now() < deadline {
            // Starting or ending: to look, the mount is not needed.
            thread::sleep(PAUSE);
            continue;
        }
        match DirectAccess::open(global, purpose) {
            Err(Failure::Open(MailboxOpenError::Lock(LockError::Held(_))))
                if Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            outcome => return outcome.map(|direct| Box::new(direct) as Box<dyn TreeAccess>),
        }
    }
}

/// A path as typed (`/inbox/`, `./inbox`, `inbox`) in the form the tree uses: `inbox`, and the
/// empty path for the root.
///
/// # Errors
/// For `..`: the tree has no outside.
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

/// The last component and what is before it: `inbox/x` is `("inbox", "x")`.
pub(crate) fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Where a file goes that is moved to `to`, which may be a folder.
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
