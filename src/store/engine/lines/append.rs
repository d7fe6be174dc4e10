//! The one write to a log: one line with its newline, by one `write`, after the end of the log was mended.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::model::sanitize_line;
use crate::store::fs::{self, Stamp, require_regular};
use crate::store::{StoreError, confined};

/// The time for which an append waits for a lock. Other messages must be sent too.
const PATIENCE: Duration = Duration::from_millis(100);
const FILE_MODE: u32 = 0o644;

/// A log in an open folder.
#[derive(Clone, Copy, Debug)]
pub struct LogPath<'a> {
    /// The folder.
    pub dir: &'a OwnedFd,
    /// The name of the log in it.
    pub name: &'a str,
    /// The path of the log.
    pub path: &'a Path,
}

impl LogPath<'_> {
    /// Returns an error with this path.
    pub fn io_error(&self, error: impl Into<io::Error>) -> StoreError {
        StoreError::io(self.path, error.into())
    }

    fn open_read_write(&self, more: OFlags) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
        let mode = Mode::from_raw_mode(FILE_MODE);
        let opened = retry_on_intr(|| rustix::fs::openat(self.dir, self.name, flags, mode))?;
        let file = File::from(opened);
        require_regular(&file)?;
        Ok(file)
    }

    /// Opens the log for appending. Creates it if `create` is set.
    ///
    /// # Errors
    /// As the system gave it; `InvalidInput` for something that is no file.
    pub fn open(&self, create: bool) -> io::Result<File> {
        let create = if create { OFlags::CREATE } else { OFlags::empty() };
        self.open_read_write(OFlags::APPEND | create)
    }

    /// Opens the log with the lock that the programs of some formats take while they append.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another program holds the lock.
    pub fn open_locked(&self, create: bool) -> Result<File, StoreError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let file = self.open(create).map_err(|e| self.io_error(e))?;
            let patience = give_up.saturating_duration_since(Instant::now());
            let locked = fs::lock_with_timeout(&file, patience).map_err(|e| self.io_error(e))?;
            let same = confined::stat(self.dir, self.name).map_err(|e| self.io_error(e))?.1;
            if locked && same.is_same_file(&Stamp::from_file(&file).map_err(|e| self.io_error(e))?)
            {
                return Ok(file);
            }
            // The log was replaced while this waited for it, or it is still locked.
            if Instant::now() >= give_up {
                return Err(StoreError::Busy(format!(
                    "another program holds the lock of {}",
                    sanitize_line(&self.path.to_string_lossy())
                )));
            }
        }
    }
}

/// Returns true if a file of this length is empty or ends in a newline.
pub fn has_final_newline(file: &File, len: u64) -> io::Result<bool> {
    let mut last = [b'\n'];
    if len > 0 {
        fs::read_at_most(file, &mut last, len - 1)?;
    }
    Ok(last == *b"\n")
}

/// Appends a line to a log of this length. With `open`, the last line is ended first.
///
/// # Errors
/// As the system gave it. Then no reader sees a torn line.
pub fn append_line(file: &File, before: u64, open: bool, line: &str) -> io::Result<()> {
    let start = if open { "\n" } else { "" };
    append_once(file, format!("{start}{line}\n").as_bytes(), before)
}

/// Appends a text by one `write`. If the disk takes only a part of it, the part is taken back, so that no reader sees
/// a torn line.
pub fn append_once(mut file: &File, text: &[u8], before: u64) -> io::Result<()> {
    let written = loop {
        match file.write(text) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if written == text.len() {
        return Ok(());
    }
    // A program that takes no lock may have appended meanwhile. Cutting would then take its line, so the torn part is
    // left for readers to skip.
    if file.metadata()?.len() == before + written as u64 {
        file.set_len(before)?;
    }
    Err(io::Error::from_raw_os_error(libc::ENOSPC))
}

/// Bytes that were appended to a log and may not be on disk.
#[derive(Debug)]
struct UnsyncedAppend {
    /// The offset at which they begin, and the stamp of the file.
    from: u64,
    file: Stamp,
    /// True if the disk has failed to take them.
    failed: bool,
}

/// Appends that may not be on disk, by log.
#[derive(Debug, Default)]
pub struct UnsyncedLogs {
    appends: HashMap<PathBuf, UnsyncedAppend>,
    /// The files whose names this process has brought to disk. A name that stands there already may have been made by
    /// a process that ended before it synced the folder.
    synced_names: HashMap<PathBuf, Stamp>,
}

impl UnsyncedLogs {
    /// Notes that bytes were appended after `from`.
    pub fn note_append(&mut self, log: &Path, from: u64, file: Stamp) {
        if self.appends.get(log).is_none_or(|behind| !behind.file.is_same_file(&file)) {
            self.appends.insert(log.to_owned(), UnsyncedAppend { from, file, failed: false });
        }
    }

    /// Waits until a log and its name are on disk. The wait includes bytes that a killed msgfs appended, of which
    /// nothing is known here.
    ///
    /// # Errors
    /// As the system gave it. Then it is unknown which bytes are on disk.
    pub fn sync_log(&mut self, log: &LogPath<'_>) -> Result<(), StoreError> {
        let mut behind = self.appends.get_mut(log.path);
        let mut file = confined::open_file(log.dir, log.name).map_err(|e| log.io_error(e))?;
        let stamp = Stamp::from_file(&file).map_err(|e| log.io_error(e))?;
        if let Some(behind) = behind.as_ref().filter(|b| b.failed && b.file.is_same_file(&stamp)) {
            file = log.open_read_write(OFlags::empty()).map_err(|e| log.io_error(e))?;
            fs::rewrite_tail(&file, behind.from).map_err(|e| log.io_error(e))?;
        }
        if let Err(e) = file.sync_data() {
            if let Some(behind) = &mut behind {
                behind.failed = true;
            }
            return Err(log.io_error(e));
        }
        if self.synced_names.get(log.path).is_none_or(|named| !named.is_same_file(&stamp)) {
            fs::sync_open_dir(log.dir).map_err(|e| log.io_error(e))?;
            self.synced_names.insert(log.path.to_owned(), stamp);
        }
        self.appends.remove(log.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_did_not_take_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let folder = confined::open_dir(dir.path(), &[]).unwrap();
        let spot = LogPath { dir: &folder, name: "log", path: &path };
        let mut unsynced = UnsyncedLogs::default();
        let append = |line: &str, unsynced: &mut UnsyncedLogs| {
            let file = spot.open(true).unwrap();
            let stamp = Stamp::from_file(&file).unwrap();
            append_line(&file, stamp.size, false, line).unwrap();
            unsynced.note_append(&path, stamp.size, stamp);
        };
        let fail =
            |unsynced: &mut UnsyncedLogs| unsynced.appends.get_mut(&path).unwrap().failed = true;
        for line in ["one", "two"] {
            append(line, &mut unsynced);
        }
        fail(&mut unsynced);
        let before = Stamp::from_file(&File::open(&path).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        unsynced.sync_log(&spot).unwrap();
        let after = Stamp::from_file(&File::open(&path).unwrap()).unwrap();
        assert!(after.is_same_file(&before) && after.mtime > before.mtime, "written");
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
        assert!(unsynced.appends.is_empty());
        // A file that replaced the log is left alone.
        append("three", &mut unsynced);
        fail(&mut unsynced);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"other\n").unwrap();
        unsynced.sync_log(&spot).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"other\n");
    }
}
