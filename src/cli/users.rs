//! Who uses a mount: which processes have their working folder or an open file there.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use msgfs::model::one_line;
use msgfs::view::reader::program_of;

/// A process and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pid: u32,
    name: String,
    holds: &'static str,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", one_line(&self.name), self.pid, self.holds)
    }
}

/// The processes that use anything at or below a mount point, by process id. Processes of other
/// users can only be seen by root and are left out otherwise.
///
/// Only links of `/proc` are read, so that a dead mount is never asked.
pub(crate) fn of(mountpoint: &Path) -> Vec<User> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut users: Vec<User> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // Who asks is no answer.
        .filter(|pid| *pid != std::process::id())
        .filter_map(|pid| user(pid, mountpoint))
        .collect();
    users.sort_by_key(|user| user.pid);
    users
}

fn user(pid: u32, mountpoint: &Path) -> Option<User> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let inside = |link: PathBuf| fs::read_link(link).is_ok_and(|path| path.starts_with(mountpoint));
    let holds = if inside(process.join("cwd")) {
        "working folder"
    } else if inside(process.join("root")) {
        "root folder"
    } else if fs::read_dir(process.join("fd")).ok()?.flatten().any(|fd| inside(fd.path())) {
        "open file"
    } else {
        return None;
    };
    Some(User { pid, name: program_of(pid).unwrap_or_default(), holds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_seen_and_who_asks_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        let file = fs::File::create(path.join("x")).unwrap();
        assert_eq!(of(&path), []);
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").stdin(file).spawn().unwrap();
        let found = of(&path);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((found.len(), found[0].pid, found[0].holds), (1, other.id(), "open file"));
    }
}
