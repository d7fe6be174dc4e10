//! Where the log goes: standard error, or a file for a daemon. `$MSGFS_LOG` sets what is logged
//! (`debug`, `msgfs=trace`, ...).
//!
//! A log that cannot be written is nobody's failure: a full disk, a closed standard error, a reader that
//! is gone or does not read. Lines are dropped then, and nothing waits.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use msgfs::model::plain_lines;
use msgfs::store::fs::open_append;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;

/// A log larger than this is set aside as `log.old` when the next mount starts.
const KEEP: u64 = 4 << 20;

/// Logs to standard error.
pub(crate) fn to_stderr(default: &str) {
    to(default, false, || Lossy(io::stderr()));
}

fn to<W: Write>(default: &str, target: bool, writer: impl Fn() -> W + Send + Sync + 'static) {
    let wanted = EnvFilter::try_from_env("MSGFS_LOG")
        .unwrap_or_else(|_| EnvFilter::new(format!("{default},fuser=error,async_nats=off")));
    let filter = silenced(wanted);
    // An error means that a log is set up already, which is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(target)
        .try_init();
}

/// What is logged, but for what this library says of its logins, with passwords, and of what servers answer to them.
fn silenced(filter: EnvFilter) -> EnvFilter {
    let targets = ["async_nats", "async_nats::connection", "async_nats::connector"];
    targets.into_iter().fold(filter, |filter, target| match format!("{target}=off").parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => EnvFilter::new("off"),
    })
}

/// Logs to a file, which is returned so that stray output can go there too.
///
/// # Errors
/// If the file cannot be opened for appending, or is a symbolic link.
pub(crate) fn to_file(path: &Path, default: &str) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|m| m.len() > KEEP) {
        // If it cannot be set aside, it grows.
        let _ = fs::rename(path, path.with_extension("old"));
    }
    let file = open_append(path, 0o600)?;
    let log = Arc::new(file.try_clone()?);
    to(default, true, move || Lossy(Arc::clone(&log)));
    Ok(file)
}

/// What a pipe that has room takes at once.
const ATOMIC: usize = 4096;

/// Takes everything, one event a call, and hands on what can be written without waiting. Nothing in it
/// drives a terminal or hides.
struct Lossy<W>(W);

impl<W: Write + AsFd> Write for Lossy<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        for part in plain_lines(&text).as_bytes().chunks(ATOMIC) {
            let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
            let ready = poll(&mut fds, Some(&Timespec::default()));
            if ready != Ok(1) || self.0.write_all(part).is_err() {
                break;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_logged() {
        for wanted in ["trace", "async_nats=trace", "async_nats::connection=trace"] {
            let filter = silenced(EnvFilter::new(wanted)).to_string();
            assert!(filter.contains("async_nats::connection=off"), "{filter}");
            assert!(!filter.contains("connection=trace"), "{filter}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_dropped_and_nothing_waits() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut log = Lossy(writer);
        // Far more than the pipe holds, and nobody reads.
        assert_eq!(log.write(&vec![b'x'; 1 << 20]).unwrap(), 1 << 20);
        let mut some = [0; 10];
        io::Read::read_exact(&mut reader, &mut some).unwrap();
        drop(reader);
        log.write_all(b"nobody is there\n").unwrap();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        Lossy(full).write_all(b"no room\n").unwrap();
    }
}
