//! The processes that use a mount: by their working folder, an open file, or a mount namespace of their own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use msgfs::model::one_line;
use msgfs::store::mounts;
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
    find(|pid| user(pid, mountpoint))
}

/// Returns the processes in whose mount table a device is, `MAJOR:MINOR`, by process id: after a mount was taken
/// away here, those of containers and sandboxes that still see it. The msgfs that serves it is not among them.
pub(crate) fn that_see_device(device: &str, server: Option<u32>) -> Vec<User> {
    let sees = |pid| {
        let table = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
        mounts::parse(&table).iter().any(|mount| mount.device == device).then_some(())?;
        Some(User { pid, name: program_of(pid).unwrap_or_default(), holds: "mount" })
    };
    find(|pid| if server == Some(pid) { None } else { sees(pid) })
}

/// Asks for each process but this one, and returns the answers by process id.
fn find(mut ask: impl FnMut(u32) -> Option<User>) -> Vec<User> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut users: Vec<User> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // The command that asks is no answer.
        .filter(|pid| *pid != std::process::id())
        .filter_map(&mut ask)
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
