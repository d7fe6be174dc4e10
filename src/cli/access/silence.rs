//! The process that acts for me and does not answer, because it is stopped or stuck.

use std::path::Path;

use msgfs::config::{LockHolder, LockProcess};
use msgfs::fuse::mountpoint::shell_word;
use msgfs::store::process;

/// Returns true if the process that holds a state folder is stopped. A number that may belong to another process, as
/// one of another container, does not count.
pub(super) fn is_stopped(state: &Path, holder: Option<&LockHolder>) -> bool {
    let may_be = holder.and_then(|holder| holder.pid).is_some_and(process::is_stopped);
    may_be && matches!(LockProcess::find_acting(state), Some(Ok(held)) if held.is_stopped())
}

/// Returns the sentence about a process that does not answer, and the commands that help.
pub(super) fn describe(me: &str, holder: &LockHolder, is_stopped: bool) -> String {
    let dir = holder.mountpoint.as_deref().map(|dir| shell_word(dir.as_os_str()));
    let subject = if dir.is_some() { "the mount" } else { "the msgfs" };
    let why = if is_stopped { ", because it is stopped" } else { "" };
    let go_on = match holder.pid {
        Some(pid) if is_stopped => format!("; to let it go on: kill -CONT {pid}"),
        Some(pid) => format!("; try again, or if it is stuck, end it: kill {pid}"),
        None => "; try again".to_owned(),
    };
    let detach = dir.map_or_else(String::new, |dir| {
        format!("; to remove the mount instead: msgfs umount --lazy {dir}")
    });
    format!("{subject} of {me} does not answer{why} ({holder}){go_on}{detach}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_silence_has_its_command() {
        let mounted = LockHolder {
            pid: Some(7),
            mountpoint: Some("/home/u/my mail".into()),
            ..LockHolder::default()
        };
        assert_eq!(
            describe("bob", &mounted, true),
            "the mount of bob does not answer, because it is stopped (process 7, mounted at /home/u/my mail); \
             to let it go on: kill -CONT 7; to remove the mount instead: msgfs umount --lazy '/home/u/my mail'"
        );
        let stuck = describe("bob", &mounted, false);
        assert!(
            stuck.contains("does not answer (process 7") && stuck.contains("kill 7;"),
            "{stuck}"
        );
        let carries = describe("bob", &LockHolder { mountpoint: None, ..mounted }, true);
        assert_eq!(
            carries,
            "the msgfs of bob does not answer, because it is stopped (process 7); to let it go on: kill -CONT 7"
        );
        assert!(describe("bob", &LockHolder::default(), false).ends_with("; try again"));
    }
}
