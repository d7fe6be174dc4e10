//! `msgfs umount`: ends a mount and its msgfs.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use msgfs::config::{self, LockHolder, LockProcess};
use msgfs::fuse::mountpoint::{
    self, MountEntry, MountState, UnmountError, UnmountMode, shell_word,
};

use clap_complete::engine::ArgValueCompleter;

use super::context;
use super::failure::{Failure, refuse};
use super::mount_users::{self, MountUser};
use super::{GlobalOptions, complete, output};

/// The time within which the msgfs behind a mount must save everything and end.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(10);
/// The time for which a mount may be in use by nobody we can see: a program may just be ending.
const SETTLE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Unmount a folder and wait until its msgfs has ended
///
/// When the command returns, everything that was sent and read is saved. If the msgfs of the mount
/// has died, the command removes the dead mount. If a program still uses the mount, the command
/// changes nothing and names the program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs umount ~/mail\n  \
    msgfs umount --lazy ~/mail   # even if a program uses it")]
pub(crate) struct Args {
    /// The folder of the mount
    #[arg(add = ArgValueCompleter::new(complete::mounts))]
    dir: PathBuf,
    /// Unmount now, even if a program uses the mount. Its msgfs ends when the last program closes it
    #[arg(short, long)]
    lazy: bool,
}

/// Runs `msgfs umount`.
pub(crate) fn run(_global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let shown = shell_word(args.dir.as_os_str());
    let dir =
        mountpoint::resolve_mountpoint(&args.dir).map_err(|e| Failure::from_io(&shown, &e))?;
    // A process whose folder is in the mount uses it; this command does not need to.
    std::env::set_current_dir("/").map_err(|e| Failure::from_io("/", &e))?;
    match mountpoint::mount_state(&dir).map_err(|e| Failure::from_io(&shown, &e))? {
        MountState::NotMounted => match find_daemon(&dir) {
            Some((state, holder)) => end_detached_daemon(&state, &holder, &shown),
            None => refuse!("nothing is mounted at {shown}; {}", list_mounts()),
        },
        MountState::Foreign(kind) => {
            refuse!("{shown} is a mount of {kind}, not of msgfs; to unmount it: umount {shown}")
        }
        MountState::Stale => {
            mountpoint::unmount_path(&dir, UnmountMode::Lazy).map_err(Failure::refused)?;
            output::print_notice(&format!("removed a dead mount at {shown} (its msgfs had died)"));
            Ok(())
        }
        MountState::Alive => end_mount(&dir, &shown, args.lazy),
        MountState::Hung => end_hung_mount(&dir, &shown, args.lazy),
    }
}

/// Returns the end of the error about a folder that is no mount: the folders that are mounts.
fn list_mounts() -> String {
    let mounts = mountpoint::read_mounts().unwrap_or_default();
    let all: Vec<String> = mountpoint::list_our_mounts(&mounts)
        .iter()
        .map(|mount| shell_word(mount.mountpoint.as_os_str()))
        .collect();
    match all.as_slice() {
        [] => "no msgfs is mounted here".to_owned(),
        [only] => format!("a msgfs is mounted at {only}"),
        all => format!("the mounts of msgfs are {}", all.join(", ")),
    }
}

/// Ends a mount whose msgfs does not answer. Its end cannot be awaited, and asking it keeps the mount busy.
fn end_hung_mount(dir: &Path, shown: &str, lazy: bool) -> Result<(), Failure> {
    if !lazy {
        refuse!(
            "{shown} does not answer: its msgfs is starting, stopped or stuck; try again, or unmount it \
             with: msgfs umount --lazy {shown}"
        );
    }
    let daemon = find_daemon(dir);
    mountpoint::unmount_path(dir, UnmountMode::Lazy).map_err(Failure::refused)?;
    let end = daemon.and_then(|(_, holder)| holder.pid).map_or_else(String::new, |pid| {
        format!("; its msgfs does not answer; to end it: kill -CONT {pid}; kill {pid}")
    });
    output::print_notice(&format!("{shown} is detached{end}"));
    Ok(())
}

fn end_mount(dir: &Path, shown: &str, lazy: bool) -> Result<(), Failure> {
    let daemon = find_daemon(dir);
    let device = find_device(dir);
    let users = if lazy {
        let users = mount_users::find_mount_users(dir);
        mountpoint::unmount_path(dir, UnmountMode::Lazy).map_err(Failure::refused)?;
        users
    } else {
        unmount_idle(dir, shown)?;
        Vec::new()
    };
    if !users.is_empty() {
        output::print_notice(&format!(
            "{shown} is detached, but still in use by {}; it ends when nothing uses it, or at once with: \
             msgfs umount {shown}",
            format_users(&users)
        ));
        return Ok(());
    }
    let Some((state, holder)) = daemon else { return Ok(()) };
    wait_for_daemon_end(&state, &holder, shown, device.as_deref())
}

/// Returns the device of the mount at a folder, which identifies it in every mount table.
fn find_device(dir: &Path) -> Option<String> {
    Some(mountpoint::find_mount(&mountpoint::read_mounts().ok()?, dir)?.device.clone())
}

/// Ends the msgfs of a mount that was detached and is still in use. Its users get errors from now on.
fn end_detached_daemon(state: &Path, holder: &LockHolder, shown: &str) -> Result<(), Failure> {
    let Some(Ok(process)) = LockProcess::find_acting(state) else {
        refuse!("{shown} is not mounted here, but another msgfs uses this folder: {holder}");
    };
    process.terminate().map_err(|e| Failure::from_io(format!("cannot end {holder}"), &e))?;
    wait_for_daemon_end(state, holder, shown, None)?;
    output::print_notice(&format!("{shown} was detached already; its msgfs has ended now"));
    Ok(())
}

/// Waits until the msgfs that held a state folder has ended. The kernel ends the connection only when the last
/// mount namespace has let go of the device. If a container or a sandbox still has it, the refusal names its
/// programs.
fn wait_for_daemon_end(
    state: &Path,
    holder: &LockHolder,
    shown: &str,
    device: Option<&str>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + GONE_WITHIN;
    while config::find_lock_holder(state).is_some_and(|now| now.pid == holder.pid) {
        if Instant::now() < deadline {
            thread::sleep(PAUSE);
            continue;
        }
        let users = device.map(|device| mount_users::find_device_users(device, holder.pid));
        if let Some(users) = users.filter(|users| !users.is_empty()) {
            refuse!(
                "{shown} is unmounted here, but other mount namespaces (of a container or a sandbox) still have it: {}; \
                 its msgfs ends when they end, or at once with: msgfs umount {shown}",
                format_users(&users)
            );
        }
        refuse!(
            "{shown} is unmounted, but its msgfs ({holder}) has not ended yet; the log may say why: {}",
            shell_word(state.join("log").as_os_str())
        );
    }
    Ok(())
}

/// Unmounts a mount that nobody uses.
fn unmount_idle(dir: &Path, shown: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + SETTLE;
    loop {
        match mountpoint::unmount_path(dir, UnmountMode::IfIdle) {
            Ok(()) => return Ok(()),
            Err(UnmountError::Busy(_)) => {
                let users = mount_users::find_mount_users(dir);
                if users.is_empty() && Instant::now() < deadline {
                    thread::sleep(PAUSE);
                    continue;
                }
                refuse!(
                    "{shown} is in use by {}; end this use, or run: msgfs umount --lazy {shown}",
                    format_users(&users)
                );
            }
            Err(e) => return Err(Failure::refused(e)),
        }
    }
}

pub(super) fn format_users(users: &[MountUser]) -> String {
    if users.is_empty() {
        // Only root sees the open files of other people's processes.
        return "a process that you cannot see".to_owned();
    }
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the state folder of the msgfs that serves the mount at a folder, and its holder. If nothing is mounted
/// there, its mount was detached, or it mounts later. A read-only mount holds no state folder, and nothing has to wait
/// for its end.
fn find_daemon(dir: &Path) -> Option<(PathBuf, LockHolder)> {
    let is_placed = |holder: &LockHolder| holder.mountpoint.as_deref() == Some(dir);
    let mounts = mountpoint::read_mounts().ok()?;
    let Some(mount) = mountpoint::find_mount(&mounts, dir) else {
        return context::find_holder(is_placed);
    };
    find_serving(mount, |is_it| context::find_holder(is_it))
}

/// Calls `find` with a test of the holder of a mount: first if it serves the mount, then if it may be a msgfs of an
/// earlier version that does. Returns the first result.
pub(super) fn find_serving<T>(
    mount: &MountEntry,
    find: impl Fn(&dyn Fn(&LockHolder) -> bool) -> Option<T>,
) -> Option<T> {
    find(&|holder| holder.serves(mount)).or_else(|| find(&|holder| holder.may_serve(mount)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_notes_its_device_comes_before_one_of_an_earlier_version() {
        let mounts = mountpoint::parse_mounts(b"1 0 0:7 / /m rw - fuse.msgfs msgfs rw\n");
        let holder = |pid, dir: &str, device: Option<&str>| LockHolder {
            pid: Some(pid),
            mountpoint: Some(dir.into()),
            device: device.map(str::to_owned),
            ..LockHolder::default()
        };
        let mut holders =
            vec![holder(1, "/m", Some("0:8")), holder(2, "/n", None), holder(3, "/m", None)];
        let serving = |holders: &[LockHolder]| {
            let find = |is_it: &dyn Fn(&LockHolder) -> bool| holders.iter().find(|h| is_it(h));
            find_serving(&mounts[0], find)?.pid
        };
        assert_eq!(serving(&holders[..2]), None);
        assert_eq!(serving(&holders), Some(3));
        holders.push(holder(4, "/m", Some("0:7")));
        assert_eq!(serving(&holders), Some(4));
    }
}
