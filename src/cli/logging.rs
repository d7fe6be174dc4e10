//! Where the log goes: standard error, or a file for a daemon. `$MSGFS_LOG` sets what is logged
//! (`debug`, `msgfs=trace`, ...).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use msgfs::model::plain_lines;
use rustix::fs::OFlags;
use tracing_subscriber::EnvFilter;

/// A log larger than this is set aside as `log.old` when the next mount starts.
const KEEP: u64 = 4 << 20;

fn filter(default: &str) -> EnvFilter {
    EnvFilter::try_from_env("MSGFS_LOG")
        .unwrap_or_else(|_| EnvFilter::new(format!("{default},fuser=error")))
}

/// Logs to standard error.
pub(crate) fn to_stderr(default: &str) {
    // An error means that a log is set up already, which is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(default))
        .with_writer(|| Plain(io::stderr()))
        .with_ansi(false)
        .with_target(false)
        .try_init();
}

/// Logs to a file, which is returned so that stray output can go there too.
///
/// # Errors
/// If the file cannot be opened for appending, or is a symbolic link.
pub(crate) fn to_file(path: &Path, default: &str) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|m| m.len() > KEEP) {
        fs::rename(path, path.with_extension("old"))?;
    }
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(default))
        .with_writer(Mutex::new(Plain(file.try_clone()?)))
        .with_ansi(false)
        .try_init();
    Ok(file)
}

/// A log in which nothing drives a terminal or hides: each event is written in one piece.
struct Plain<W>(W);

impl<W: io::Write> io::Write for Plain<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain_lines(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
