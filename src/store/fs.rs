//! Touching files in folders that others can write to.
//!
//! Everything a store opens goes through here, so that no symlink is followed and no FIFO, device
//! or folder in the place of a file is ever opened for good (contract, section 7).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::model::shell_word;

/// No record of a store is larger, and of no record more is held in memory: what is larger is no
/// message.
pub const MAX_RECORD: usize = 64 << 20;

/// Identity and state of a file, to notice that it was replaced or changed.
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
    /// The stamp of an open file.
    ///
    /// # Errors
    /// As `fstat` gave it.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }

    /// Whether this is the same file, whatever happened to its contents.
    pub fn same_file(&self, other: &Self) -> bool {
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

/// Opens a regular file for reading; a symlink gives `ELOOP`, anything else that is not a regular
/// file `InvalidInput` with a text that says what it is.
///
/// # Errors
/// As above, or as `open` gave it.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    require_regular(&file)?;
    Ok(file)
}

/// Opens (creating if needed, with `mode` less the umask) a regular file for reading and appending.
///
/// # Errors
/// As [`open_regular`].
pub fn open_append(path: &Path, mode: u32) -> io::Result<File> {
    append_with(path, OFlags::CREATE, mode)
}

/// As [`open_append`], but only if the file exists.
///
/// # Errors
/// As [`open_regular`].
pub fn open_existing_append(path: &Path) -> io::Result<File> {
    append_with(path, OFlags::empty(), 0)
}

fn append_with(path: &Path, more: OFlags, mode: u32) -> io::Result<File> {
    let flags = more
        | OFlags::RDWR
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?);
    require_regular(&file)?;
    Ok(file)
}

/// Fails for anything but a regular file.
///
/// # Errors
/// `InvalidInput` with a text that says what it is, or as `fstat` gave it.
pub fn require_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("is {}, not a file", describe(kind))))
}

/// A file type in words.
pub fn describe(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_block_device() || kind.is_char_device() {
        "a device"
    } else {
        "a file"
    }
}

/// Fills `buf` from `offset` as far as the file goes; the number of bytes read.
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

/// Reads a small file whole; larger than `limit` is an error.
///
/// # Errors
/// As [`open_regular`] or `read` gave it.
pub fn read_small(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    open_regular(path)?.take(limit + 1).read_to_end(&mut out)?;
    if out.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "is larger than it can be"));
    }
    Ok(out)
}

/// Whether a file system takes writes and has this many bytes left.
///
/// # Errors
/// `EROFS` or `ENOSPC`.
pub fn room_for(dir: &Path, bytes: u64) -> io::Result<()> {
    let Ok(fs) = rustix::fs::statvfs(dir) else { return Ok(()) };
    if fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(io::Error::from_raw_os_error(libc::EROFS));
    }
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    if fs.f_blocks > 0 && blocks.saturating_mul(fs.f_frsize) < bytes {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    Ok(())
}

/// The user that owns an open file or folder, unless it is me.
pub fn foreign_owner(meta: &std::fs::Metadata) -> Option<u32> {
    let owner = meta.uid();
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

/// The command that makes a file or folder mine.
pub fn own_command(path: &Path) -> String {
    let me = rustix::process::geteuid().as_raw();
    let sudo = if me == 0 { "" } else { "sudo " };
    format!("{sudo}chown {me} {}", shell_word(&path.to_string_lossy()))
}

/// Makes new names in a folder survive loss of power.
///
/// # Errors
/// As the system gave it.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
