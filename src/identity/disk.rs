//! Files that must never be seen half written: keys and the keyring.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::CWD;
use rustix::io::Errno;

use crate::store::atomic_file::{self, FileSlot};
use crate::store::fs;

/// The largest size of a key or a keyring. Larger files are neither read nor written.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// The mode of private files: the owner reads and writes, nobody else does anything.
const PRIVATE: u32 = 0o600;

/// The longest wait for the lock. Replacing a keyring takes milliseconds; a process that holds the lock longer hangs.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Returns the fault of a file, if it is the reason why [`fs::open_regular`] refused it.
pub(super) fn describe_file_fault(e: &io::Error) -> Option<String> {
    let is_link = e.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    let what = if is_link { "a symbolic link" } else { "not a regular file" };
    (is_link || e.kind() == io::ErrorKind::InvalidInput).then(|| format!("it is {what}"))
}

/// Creates a file with this content, durably, or fails with `AlreadyExists` if there is anything of that name. No
/// reader ever sees a part of the content under that name.
pub(super) fn create_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = make_parent_dir(path)?;
    FileSlot::new(CWD, path).create_with(PRIVATE, |file| file.write_all(bytes))?;
    fs::sync_dir(folder)
}

/// Replaces a file, or creates it, durably. Readers see the old content or the new one. Content that is too large to
/// be read again is an error.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    make_parent_dir(path)?;
    atomic_file::write_atomic(path, bytes, PRIVATE)
}

/// Excludes other processes from replacing the same file, until the result is dropped. The lock lies beside the file
/// because the file itself is replaced under its readers.
pub(super) fn lock_beside(path: &Path) -> io::Result<File> {
    make_parent_dir(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = fs::open_read_write(Path::new(&name), PRIVATE)?;
    if fs::lock_with_timeout(&file, LOCK_PATIENCE)? {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another process keeps it locked"))
}

fn make_parent_dir(path: &Path) -> io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::make_dirs(folder, 0o700)?;
    Ok(folder)
}
