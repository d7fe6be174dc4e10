//! Access to files in folders that others can write to.
//!
//! A store opens all its files through this module. So no symlink is followed, and no FIFO, device or folder in the
//! place of a file is ever opened for good (docs/SEMANTICS.md, S83).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::StoreError;
use crate::model::{Remedy, Timestamp};

/// The size of the largest record of a store. Nothing larger is a message, and no more of a record is held in memory.
pub const MAX_RECORD: usize = 64 << 20;

/// The identity and state of a file, to notice that it was replaced or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stamp {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the epoch.
    pub mtime: i128,
    /// Change time in nanoseconds since the epoch.
    pub ctime: i128,
}

impl Stamp {
    /// Returns the stamp of an open file.
    ///
    /// # Errors
    /// As `fstat` gave it.
    pub fn from_file(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }

    /// Returns the stamp of the file or symlink at a path; `None` if there is none.
    ///
    /// # Errors
    /// As `lstat` gave it.
    pub fn from_path(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(Self::from(&meta))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns the time at which the file was last modified.
    pub fn modified(&self) -> Timestamp {
        Timestamp::from_nanos(self.mtime)
    }

    /// Returns true if this is the same file, whatever happened to its contents.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
}

impl From<&std::fs::Metadata> for Stamp {
    fn from(m: &std::fs::Metadata) -> Self {
        let nanos = |secs: i64, ns: i64| i128::from(secs) * 1_000_000_000 + i128::from(ns);
        Self {
            dev: m.dev(),
            ino: m.ino(),
            size: m.size(),
            mtime: nanos(m.mtime(), m.mtime_nsec()),
            ctime: nanos(m.ctime(), m.ctime_nsec()),
        }
    }
}

// The widths of these members differ between machines.
#[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
impl From<&rustix::fs::Stat> for Stamp {
    fn from(stat: &rustix::fs::Stat) -> Self {
        let nanos = |secs: i64, ns: i128| i128::from(secs) * 1_000_000_000 + ns;
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            size: stat.st_size as u64,
            mtime: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i128),
            ctime: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i128),
        }
    }
}

/// Returns true if an error means that there is no such file, or something else in its place. Any other error says
/// nothing of the file, and its earlier state stays.
pub fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    let linked = error.raw_os_error() == Some(libc::ELOOP);
    linked || matches!(error.kind(), NotFound | NotADirectory | InvalidInput)
}

/// Returns true if an error may pass without a change of the file that a watch would see: a failing disk or network,
/// no more memory or descriptors.
pub fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, PermissionDenied, UnexpectedEof};
    !is_absent(error) && !matches!(error.kind(), PermissionDenied | InvalidData | UnexpectedEof)
}

/// A flag for something that could not be read. It stays set until everything has been read again.
#[derive(Debug, Default)]
pub struct FaultFlag(AtomicBool);

impl FaultFlag {
    /// Sets the flag if the error is transient.
    pub fn note_error(&self, error: &io::Error) {
        self.0.fetch_or(is_transient(error), Ordering::Relaxed);
    }

    /// Sets the flag.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Clears the flag before everything is read again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns true if the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns true if a folder is not there at all: moved away, removed, or its disk unmounted. Its files then do not
/// count as gone.
pub fn is_folder_missing(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|e| is_absent(&e))
}

/// Returns a line that names a store's folder if it is missing.
pub fn missing_folder_line(dir: &Path) -> Option<String> {
    let shown = dir.to_string_lossy();
    is_folder_missing(dir).then(|| {
        format!(
            "the folder {} is gone; its messages stay listed, and msgfs follows it again when it \
             is back",
            crate::model::sanitize_line(&shown)
        )
    })
}

/// Opens a regular file for reading. A symlink gives `ELOOP`. Anything else that is not a regular file gives
/// `InvalidInput` with a text that describes it.
///
/// # Errors
/// As above, or as `open` gave it.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_at(CWD, path, OFlags::RDONLY, 0)
}

/// Opens (creating if needed, with `mode` less the umask) a regular file for reading and appending.
///
/// # Errors
/// As [`open_regular`].
pub fn open_append(path: &Path, mode: u32) -> io::Result<File> {
    open_at(CWD, path, OFlags::RDWR | OFlags::CREATE | OFlags::APPEND, mode)
}

/// Opens a file like [`open_append`], for a process that alone writes it, at any offset.
///
/// # Errors
/// As [`open_regular`].
pub fn open_read_write(path: &Path, mode: u32) -> io::Result<File> {
    open_at(CWD, path, OFlags::RDWR | OFlags::CREATE, mode)
}

/// Opens a regular file at a path that is absolute or begins at an open folder.
pub(super) fn open_at(dir: impl AsFd, path: &Path, how: OFlags, mode: u32) -> io::Result<File> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let opened = retry_on_intr(|| rustix::fs::openat(&dir, path, flags, mode));
    let file = File::from(opened.map_err(|error| match error {
        // The system opens no socket, and no device without a driver.
        Errno::NXIO => {
            io::Error::new(io::ErrorKind::InvalidInput, "is a socket or device, not a file")
        }
        other => other.into(),
    })?);
    require_regular(&file)?;
    Ok(file)
}

/// File systems that other machines may change, where inotify sees only our own changes: NFS, SMB (three
/// generations), FUSE, 9p, Ceph, AFS, Coda.
const REMOTE: [i64; 9] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
];

/// Returns true if only this machine changes the files of such a file system.
fn is_local_type(kind: i64) -> bool {
    !REMOTE.contains(&kind)
}

/// Returns true if only this machine changes a folder, so that inotify sees all changes in it.
pub fn is_local(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|about| is_local_type(about.f_type))
}

/// Returns true if a process has a file open for writing, as far as the system tells: it gives a lease for reading only
/// where nobody has. It tells nothing of another user's file, or of one on a file system of another machine.
pub fn is_open_for_writing(file: &File) -> bool {
    /// Linux has this number on every architecture.
    const F_SETSIG: libc::c_int = 10;
    // Others refuse a lease although nobody writes, or know only the writers of this machine.
    if !rustix::fs::fstatfs(file).is_ok_and(|about| is_local_type(about.f_type)) {
        return false;
    }
    let control = |command, value: libc::c_int| {
        // SAFETY: these commands take an integer, and the descriptor is open as long as `file` lives.
        unsafe { libc::fcntl(file.as_raw_fd(), command, value) }
    };
    // If another process opens the file while the lease is held, this one gets a signal, which it ignores.
    if control(F_SETSIG, libc::SIGURG) == -1 {
        return false;
    }
    if control(libc::F_SETLEASE, libc::F_RDLCK) == -1 {
        return io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
    }
    control(libc::F_SETLEASE, libc::F_UNLCK);
    false
}

/// Fails for anything but a regular file.
///
/// # Errors
/// `InvalidInput` with a text that describes it, or as `fstat` gave it.
pub fn require_regular(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.is_file() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("is {}, not a file", describe_file_type(&meta)),
    ))
}

/// Returns the type of a file in words.
pub fn describe_file_type(meta: &Metadata) -> &'static str {
    super::confined::describe_type(rustix::fs::FileType::from_raw_mode(meta.mode()))
}

/// Fills `buf` from `offset` as far as the file goes. Returns the number of bytes read.
///
/// # Errors
/// As `pread` gave it.
pub fn read_at_most(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Returns at most `most` bytes of a file from `offset` on.
///
/// # Errors
/// As `pread` gave it.
pub fn read_range(file: &File, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let read = read_at_most(file, &mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Takes an exclusive lock of an open file, waiting at most this long for others who hold it. Returns true if it is
/// held now.
///
/// # Errors
/// As `flock` gave it.
pub fn lock_with_timeout(file: &File, patience: Duration) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if start.elapsed() >= patience => return Ok(false),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns the bytes that were read, or none where there is no file.
///
/// # Errors
/// As the system gave it, but for `NotFound`.
pub fn empty_if_absent(read: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// Reads a small file whole. A file larger than `limit` is an error.
///
/// # Errors
/// As [`open_regular`] or `read` gave it.
pub fn read_small_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_limited(open_regular(path)?, limit)
}

/// Reads an open file like [`read_small_file`].
///
/// # Errors
/// As `read` gave it.
pub fn read_limited(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len().min(limit);
    // One byte more lets the read that finds the end do without more memory.
    let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1);
    file.take(limit + 1).read_to_end(&mut out)?;
    if out.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "is larger than it can be"));
    }
    Ok(out)
}

/// Fails unless a file system takes writes and has this many bytes left.
///
/// # Errors
/// `EROFS` or `ENOSPC`.
pub fn check_free_space(dir: &Path, bytes: u64) -> Result<(), StoreError> {
    check_room_for_files(dir, bytes, 0)
}

/// Fails unless a file system takes writes and has room for this many new files of so many bytes in all. Each of them,
/// and the folder that it may need, begins a block of its own.
///
/// # Errors
/// `EROFS` or `ENOSPC`.
pub fn check_room_for_files(dir: &Path, bytes: u64, files: u64) -> Result<(), StoreError> {
    let failed = |code| Err(StoreError::io(dir, io::Error::from_raw_os_error(code)));
    let Ok(fs) = rustix::fs::statvfs(dir) else { return Ok(()) };
    if fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return failed(libc::EROFS);
    }
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    let needed = bytes.saturating_add(fs.f_frsize.saturating_mul(2 * files));
    if fs.f_blocks > 0 && blocks.saturating_mul(fs.f_frsize) < needed {
        return failed(libc::ENOSPC);
    }
    Ok(())
}

/// Writes the end of a file once more as it is, from an offset on. After a failed `fsync` the system believes that the
/// disk has the bytes, and the next `fsync` succeeds without them. So they are written anew. The file is not open for
/// appending.
///
/// # Errors
/// As the system gave it.
pub fn rewrite_tail(file: &File, from: u64) -> io::Result<()> {
    // The system may let us drop its cache. Then the bytes that are read back are those on the disk.
    let _ = rustix::fs::fadvise(file, from, None, rustix::fs::Advice::DontNeed);
    let rest = file.metadata()?.len().saturating_sub(from) as usize;
    file.write_all_at(&read_range(file, from, rest)?, from)
}

/// Creates a folder and the missing ones above it, with this mode less the umask. Its name survives loss of power when
/// this returns.
///
/// # Errors
/// As the system gave it.
pub fn make_dirs(dir: &Path, mode: u32) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let above = dir.parent().unwrap_or(Path::new(""));
    make_dirs(above, mode)?;
    match std::fs::DirBuilder::new().mode(mode).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) => Err(e),
        Ok(()) => match sync_dir(above) {
            // The folder can be written and not read.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        },
    }
}

/// Waits until the bytes of an open file, or the names in an open folder, are on disk.
///
/// # Errors
/// As the system gave it, but never that it was interrupted.
pub fn fsync(of: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::fsync(&of))?)
}

/// Returns the user that owns an open file or folder, unless it is me.
pub fn foreign_owner(meta: &std::fs::Metadata) -> Option<u32> {
    let owner = meta.uid();
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

/// Returns the command that makes a file or folder mine.
pub fn chown_command(path: &Path) -> String {
    Remedy::Own(path.to_owned()).to_string()
}

/// Makes new names in a folder survive loss of power.
///
/// # Errors
/// As the system gave it.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    // The parent of a bare name.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    sync_open_dir(File::open(dir)?)
}

/// Makes new names in several folders survive loss of power. A folder that is gone meanwhile holds nothing that could
/// be lost.
///
/// # Errors
/// As the system gave it, with the folder.
pub fn sync_dirs<'a>(dirs: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), StoreError> {
    dirs.into_iter().try_for_each(|dir| match sync_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io(dir, e)),
        _ => Ok(()),
    })
}

/// Makes new names in an open folder survive loss of power.
///
/// # Errors
/// As the system gave it.
pub fn sync_open_dir(dir: impl AsFd) -> io::Result<()> {
    match fsync(dir) {
        // The file system does not support it.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
        done => done,
    }
}
