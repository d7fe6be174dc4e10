//! The worktrees of a repository, as `git` lists them.
//!
//! `git` runs in a way that executes nothing of the repository (no hooks, no file system monitor), takes no locks and
//! ends after a moment. Without git, or outside a repository, the list is empty.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The time limit for git.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer of git, in bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// Returns the folder that the worktrees of a repository share, if `dir` lies in one.
pub(super) fn find_common_dir(dir: &Path) -> Option<PathBuf> {
    let answer = run_git(dir, &["rev-parse", "--git-common-dir"])?;
    let path = answer.strip_suffix(b"\n").unwrap_or(&answer);
    if path.is_empty() {
        return None;
    }
    // The path is relative to `dir`.
    std::fs::canonicalize(dir.join(OsStr::from_bytes(path))).ok()
}

/// Returns the folders of the worktrees of the repository around `dir`, the main one first.
pub(super) fn list_worktrees(dir: &Path) -> Vec<PathBuf> {
    if let Some(answer) = run_git(dir, &["worktree", "list", "--porcelain", "-z"]) {
        return parse_worktrees(&answer, 0);
    }
    // Git before 2.36 has no `-z`.
    run_git(dir, &["worktree", "list", "--porcelain"])
        .map_or_else(Vec::new, |answer| parse_worktrees(&answer, b'\n'))
}

/// Parses a list whose lines end in this byte. Bare and prunable worktrees are left out.
fn parse_worktrees(answer: &[u8], end: u8) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut now: Option<PathBuf> = None;
    for line in answer.split(|b| *b == end).chain([&b""[..]]) {
        if let Some(path) = line.strip_prefix(b"worktree ") {
            now = Some(OsStr::from_bytes(path).into());
        } else if line == b"bare" || line.starts_with(b"prunable") {
            now = None;
        } else if line.is_empty() {
            out.extend(now.take());
        }
    }
    out
}

/// Returns true if all of these paths are ignored in the work tree around `dir`, and `None` if git cannot tell. Tracked
/// files are not ignored.
pub(super) fn are_ignored(dir: &Path, paths: &[&str]) -> Option<bool> {
    let words: Vec<&str> = ["check-ignore", "--"].iter().chain(paths).copied().collect();
    let (code, answer) = ask_git(dir, &words)?;
    match code {
        0 => Some(answer.split_inclusive(|b| *b == b'\n').count() == paths.len()),
        1 => Some(false),
        _ => None,
    }
}

/// Returns the output of git; `None` if it fails or takes too long.
fn run_git(dir: &Path, words: &[&str]) -> Option<Vec<u8>> {
    ask_git(dir, words).filter(|(code, _)| *code == 0).map(|(_, answer)| answer)
}

/// Returns the exit code and the output of git; `None` if it does not run or takes too long.
fn ask_git(dir: &Path, words: &[&str]) -> Option<(i32, Vec<u8>)> {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir).args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]);
    git.args(words)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C");
    // A mount made from a hook or an alias must not answer for that repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_TRACE"] {
        git.env_remove(name);
    }
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = git.spawn().ok()?;
    let stdout = child.stdout.take()?;
    let (tell, told) = crossbeam_channel::bounded(1);
    let reading = std::thread::Builder::new().name("msgfs-git".into()).spawn(move || {
        let mut answer = Vec::new();
        let read = stdout.take(MAX_ANSWER).read_to_end(&mut answer);
        let _ = tell.send(read.ok().map(|_| answer));
    });
    let answer = reading.ok().and_then(|_| told.recv_timeout(PATIENCE).ok()).flatten();
    if answer.is_none() {
        let _ = child.kill();
    }
    let done = child.wait().ok()?;
    Some((done.code()?, answer?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_and_prunable_ones_are_left_out() {
        let list = "worktree /a b\0HEAD 1\0branch refs/heads/main\0\0worktree /bare\0bare\0\0\
                    worktree /gone\0HEAD 2\0detached\0prunable gitdir file points to nothing\0\0\
                    worktree /locked\0HEAD 3\0locked\0\0";
        assert_eq!(parse_worktrees(list.as_bytes(), 0), [Path::new("/a b"), Path::new("/locked")]);
        let lines = list.replace('\0', "\n");
        assert_eq!(parse_worktrees(lines.as_bytes(), b'\n'), parse_worktrees(list.as_bytes(), 0));
        assert_eq!(parse_worktrees(b"worktree /cut", 0), [Path::new("/cut")]);
        assert!(parse_worktrees(b"", 0).is_empty());
    }

    #[test]
    fn outside_a_repository_there_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_common_dir(dir.path()), None);
        assert!(list_worktrees(dir.path()).is_empty());
    }
}
