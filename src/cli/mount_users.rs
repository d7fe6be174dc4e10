//! The processes that use a mount: by their working folder, an open file, or a mount namespace of their own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use msgfs::model::sanitize_line;
use msgfs::store::mounts;
use msgfs::view::reader::program_name;

/// A process, and its kind of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountUser {
    pid: u32,
    name: String,
    holds: &'static str,
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", sanitize_line(&self.name), self.pid, self.holds)
    }
}

/// Returns the processes that use anything at or below a mount point, by process id. Only root can see the
/// processes of other users.
///
/// Only links of `/proc` are read, so that a dead mount is never asked.
pub(crate) fn find_mount_users(mountpoint: &Path) -> Vec<MountUser> {
    collect_users(|pid| inspect_process(pid, mountpoint))
}

/// Returns the processes whose mount table has a device, `MAJOR:MINOR`, by process id. After an unmount here,
/// these are processes of containers and sandboxes that still see the mount. The msgfs that serves it is left
/// out.
pub(crate) fn find_device_users(device: &str, server: Option<u32>) -> Vec<MountUser> {
    let sees = |pid| {
        let table = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
        mounts::parse_mounts(&table).iter().any(|mount| mount.device == device).then_some(())?;
        Some(MountUser { pid, name: program_name(pid).unwrap_or_default(), holds: "mount" })
    };
    collect_users(|pid| if server == Some(pid) { None } else { sees(pid) })
}

/// Calls `ask` for each process but this one, and returns the results by process id.
fn collect_users(mut ask: impl FnMut(u32) -> Option<MountUser>) -> Vec<MountUser> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut users: Vec<MountUser> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // The asking command does not count.
        .filter(|pid| *pid != std::process::id())
        .filter_map(&mut ask)
        .collect();
    users.sort_by_key(|user| user.pid);
    users
}

fn inspect_process(pid: u32, mountpoint: &Path) -> Option<MountUser> {
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
    Some(MountUser { pid, name: program_name(pid).unwrap_or_default(), holds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_seen_and_who_asks_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        let file = fs::File::create(path.join("x")).unwrap();
        assert_eq!(find_mount_users(&path), []);
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").stdin(file).spawn().unwrap();
        let found = find_mount_users(&path);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((found.len(), found[0].pid, found[0].holds), (1, other.id(), "open file"));
    }
}
