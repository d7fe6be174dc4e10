//! Files that must never be seen half written: keys and the keyring.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::store::fs;

/// No key and no keyring is larger; what is, is not read.
const MAX_BYTES: u64 = 64 << 20;

/// Owner reads and writes, nobody else does anything.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opens a regular file for reading. Never follows a symlink in the last component (`ELOOP`) and
/// never waits for a FIFO; what is not a regular file is `InvalidInput`.
pub(super) fn open_regular(path: &Path) -> io::Result<(File, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((File::from(fd), stat))
}

/// Reads an opened file to its end.
pub(super) fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 64 MiB"));
    }
    Ok(bytes)
}

/// Creates a file with this content, durably, or fails with `AlreadyExists` if there is anything
/// of that name. Nobody ever sees a part of the content under that name.
pub(super) fn create_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = Temp::write(path, bytes)?;
    match rustix::fs::linkat(CWD, &temp.path, CWD, path, AtFlags::empty()) {
        Ok(()) => {}
        // File systems without hard links; renaming without replacing gives the same promise.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            rustix::fs::renameat_with(CWD, &temp.path, CWD, path, RenameFlags::NOREPLACE)?;
        }
        Err(e) => return Err(e.into()),
    }
    drop(temp);
    fs::sync_dir(folder_of(path))
}

/// Replaces a file, or creates it, durably. Readers see the old content or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = Temp::write(path, bytes)?;
    rustix::fs::rename(&temp.path, path)?;
    fs::sync_dir(folder_of(path))
}

/// A file beside the final one, removed again unless it was renamed away.
struct Temp {
    path: PathBuf,
}

impl Temp {
    fn write(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        let folder = folder_of(target);
        fs::make_dirs(folder, 0o700)?;
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mut name = OsString::from(".");
        name.push(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{:016x}.tmp", u64::from_ne_bytes(random)));
        let path = folder.join(name);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&path, flags, PRIVATE)?);
        let temp = Self { path };
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(temp)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // After a rename there is nothing of this name, and that is as it should be.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Excludes other processes from replacing the same file; released when dropped. It lies beside
/// the file because the file itself is replaced under its readers.
pub(super) struct WriteLock {
    _file: File,
}

/// Replacing a keyring takes milliseconds; who holds the lock longer than this hangs.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

impl WriteLock {
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        fs::make_dirs(folder_of(path), 0o700)?;
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(Path::new(&name), flags, PRIVATE)?);
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "another process keeps it locked",
                    ));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Tells one state of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // widths differ by platform
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Of what is there now, symlinks not followed; `None` if nothing is.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(Some(Self::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
