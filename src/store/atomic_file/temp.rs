//! Temporary names, and the sweep of files that killed writers left under them.
//!
//! A name identifies its writer: `.NAME.SPACE.PID.N.msgfs.tmp`. SPACE is the same for all processes that see each
//! other (one boot of one machine, one space of process ids). The name is hidden and has none of the endings that
//! programs list. Git ignores it in the formats that live in git.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, SystemTime};

use crate::model::locks::{LockLevel, Mutex};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use twox_hash::XxHash3_64;

use crate::store::confined;
use crate::store::fs::Stamp;
use crate::store::process::has_ended;

/// The ending of every temporary name.
pub const TEMP_END: &str = ".msgfs.tmp";
/// The length to which longer names are cut, so that the rest fits.
const LONGEST: usize = 150;
/// The age at which a leftover of another machine or an earlier boot belongs to nobody. A file that grows is not that
/// old.
const STRANGE: Duration = Duration::from_secs(3600);
/// The number of folders that are remembered as swept.
const REMEMBERED: usize = 4096;

/// Returns a temporary name for a file or folder, one that nobody else has.
pub(super) fn temp_name(name: &OsStr) -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = name.as_bytes();
    let mut temp = vec![b'.'];
    temp.extend_from_slice(name.get(..LONGEST).unwrap_or(name));
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    temp.extend_from_slice(format!(".{:08x}.{pid}.{n}{TEMP_END}", pid_space_id()).as_bytes());
    OsString::from_vec(temp)
}

/// Returns the temporary path beside `target`, for a file that other means than a slot put in place.
pub fn temp_path(target: &Path) -> PathBuf {
    let temp = target.with_file_name(temp_name(target.file_name().unwrap_or_default()));
    sweep_folder_once(rustix::fs::CWD, &temp);
    temp
}

/// Returns a number that all processes share that see each other by their ids.
fn pid_space_id() -> u32 {
    static HERE: OnceLock<u32> = OnceLock::new();
    *HERE.get_or_init(|| {
        let mut text = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        text.extend_from_slice(space.as_os_str().as_bytes());
        XxHash3_64::oneshot(&text) as u32
    })
}

/// Returns the space and the process id of the writer of a temporary file; `None` for all other names.
fn parse_temp_name(name: &[u8]) -> Option<(u32, i32)> {
    let name = std::str::from_utf8(name.strip_suffix(TEMP_END.as_bytes())?);
    // The part before the dots may be anything.
    let name = name.ok().filter(|name| name.starts_with('.'))?;
    let mut parts = name.rsplit('.');
    let (n, pid, space) = (parts.next()?, parts.next()?, parts.next()?);
    n.parse::<u64>().ok()?;
    Some((u32::from_str_radix(space, 16).ok()?, pid.parse().ok()?))
}

/// Returns true if nobody will finish a file with this name and this age.
fn is_leftover(name: &[u8], age: Duration) -> bool {
    let Some((space, pid)) = parse_temp_name(name) else { return false };
    let Some(process) = rustix::process::Pid::from_raw(pid) else { return false };
    let mine = pid.cast_unsigned() == std::process::id();
    // After a while an id that is in use belongs to another process.
    age >= STRANGE && !(mine && space == pid_space_id())
        || space == pid_space_id() && !mine && is_process_dead(process)
}

/// Returns true if a process has ended, also if its parent has not waited for it yet.
fn is_process_dead(process: rustix::process::Pid) -> bool {
    if rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    has_ended(process.as_raw_nonzero().get().cast_unsigned())
}

/// Removes files that killed processes left in the folder `base/below`.
pub fn sweep_temp_files(base: &Path, below: &Path) {
    let parts: Option<Vec<&str>> = below.iter().map(OsStr::to_str).collect();
    if let Some(Ok(dir)) = parts.map(|parts| confined::open_dir(base, &parts)) {
        sweep_open_folder(&dir);
    }
}

/// Sweeps the folder in which `temp` will be, unless this process has done that.
pub(super) fn sweep_folder_once(dir: BorrowedFd<'_>, temp: &Path) {
    static SWEPT: LazyLock<Mutex<HashSet<(u64, u64)>>> =
        LazyLock::new(|| Mutex::with_level(LockLevel::Swept, HashSet::new()));
    let folder = temp.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(dir, folder, flags, Mode::empty()) else { return };
    let Ok(stat) = rustix::fs::fstat(&folder) else { return };
    let stamp = Stamp::from(&stat);
    {
        let mut swept = SWEPT.lock();
        if swept.len() >= REMEMBERED {
            swept.clear();
        }
        if !swept.insert((stamp.dev, stamp.ino)) {
            return;
        }
    }
    sweep_open_folder(&folder);
}

fn sweep_open_folder(dir: &OwnedFd) {
    let Ok(entries) = Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if parse_temp_name(name.to_bytes()).is_none() {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let changed = u64::try_from(Stamp::from(&stat).mtime).unwrap_or_default();
        let changed = SystemTime::UNIX_EPOCH + Duration::from_nanos(changed);
        if !is_leftover(name.to_bytes(), changed.elapsed().unwrap_or_default()) {
            continue;
        }
        let removed = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // The path goes through the open folder, which no link can replace.
            let path = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
            std::fs::remove_dir_all(Path::new(&path).join(OsStr::from_bytes(name.to_bytes())))
        } else {
            rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(Into::into)
        };
        let shown = name.to_string_lossy();
        match removed {
            Ok(()) => tracing::info!(name = %crate::model::sanitize_line(&shown), "a leftover \
                temporary file was removed"),
            Err(error) => tracing::debug!(%error, "a leftover temporary file cannot be removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_dead_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        // This is larger than the largest id, so no process has it.
        let dead = format!(".a.{:08x}.4194305.1{TEMP_END}", pid_space_id());
        let folder = format!(".b.{:08x}.4194305.2{TEMP_END}", pid_space_id());
        let keep = [
            format!(".a.{:08x}.1.1{TEMP_END}", pid_space_id()),
            format!(".a.{:08x}.4194305.1{TEMP_END}", pid_space_id() ^ 1),
            temp_name(OsStr::new("a")).into_string().unwrap(),
            format!("a.{:08x}.4194305.1{TEMP_END}", pid_space_id()),
            ".a.4194305.tmp".into(),
            ".a.msgfs.tmp".into(),
        ];
        for name in keep.iter().chain([&dead]) {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join(&folder)).unwrap();
        std::fs::write(dir.path().join(&folder).join("x"), "x").unwrap();
        sweep_temp_files(dir.path(), Path::new(""));
        for name in &keep {
            assert!(dir.path().join(name).exists(), "{name}");
        }
        for name in [&dead, &folder] {
            assert!(!dir.path().join(name).exists(), "{name}");
        }
        assert!(
            is_leftover(keep[1].as_bytes(), STRANGE) && is_leftover(keep[0].as_bytes(), STRANGE)
        );
        assert!(!is_leftover(keep[2].as_bytes(), STRANGE));
    }

    #[test]
    fn long_names_and_foreign_bytes_fit() {
        let long = "x".repeat(255);
        let bytes = OsStr::from_bytes(b"a\xff.b");
        for name in [OsStr::new(&long), bytes] {
            let temp = temp_name(name);
            assert!(temp.len() <= 255, "{temp:?}");
        }
    }
}
