//! The log: on standard error, or in a file for a daemon. `$MSGFS_LOG` sets the filter (`debug`, `msgfs=trace`,
//! ...).
//!
//! A log that cannot be written causes no failure. The disk may be full, standard error closed, or the reader
//! gone or slow. Then lines are dropped, and nothing waits.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::output;
use msgfs::model::sanitize_lines;
use msgfs::store::fs::open_append;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The size above which a log is renamed to `log.old` when the next mount starts.
const KEEP: u64 = 4 << 20;

/// Logs to standard error.
pub(crate) fn log_to_stderr(default: &str) {
    init_logging(default, false, || LossyWriter(io::stderr()));
}

fn init_logging<W: Write + 'static>(
    default: &str,
    target: bool,
    writer: impl Fn() -> W + Send + Sync + 'static,
) {
    let wanted = std::env::var("MSGFS_LOG").ok().and_then(|text| {
        let wanted = parse_filter(&text);
        if let Err(why) = &wanted {
            output::print_notice(why);
        }
        wanted.ok()
    });
    let filter = silence_logins(wanted.unwrap_or_else(|| default_filter(default)));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(target);
    // An error means that a log is set up already, which is as good.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
}

/// Parses the filter in `$MSGFS_LOG`.
///
/// # Errors
/// Returns a line that names the first word that is neither a level nor a module of msgfs.
fn parse_filter(text: &str) -> Result<Targets, String> {
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_known = |word: &str| match word.split_once('=') {
        Some((module, level)) => !module.contains('=') && is_level(level),
        None => is_level(word) || word.contains("::") || word == "msgfs",
    };
    let wrong = words().find(|word| !is_known(word));
    match text.parse() {
        Ok(filter) if wrong.is_none() => Ok(filter),
        _ => Err(format!(
            "msgfs: MSGFS_LOG is ignored: {:?} is no level; the levels are off, error, warn, info, debug and trace, \
             and a module has its own as in msgfs::index=debug",
            wrong.unwrap_or(text)
        )),
    }
}

/// Parses the filter for an unset or invalid `$MSGFS_LOG`.
fn default_filter(directives: &str) -> Targets {
    format!("{directives},fuser=error,async_nats=off")
        .parse()
        .unwrap_or_else(|e| panic!("the built-in log filter `{directives}` cannot be parsed: {e}"))
}

/// Turns off the messages of the NATS library about its logins, because they contain passwords and the answers
/// of servers.
fn silence_logins(filter: Targets) -> Targets {
    ["async_nats", "async_nats::connection", "async_nats::connector"]
        .into_iter()
        .fold(filter, |filter, target| filter.with_target(target, LevelFilter::OFF))
}

/// Logs to a file, which is returned so that stray output can go there too.
///
/// # Errors
/// Returns an error if the file cannot be opened for appending, or is a symbolic link.
pub(crate) fn log_to_file(path: &Path, default: &str) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|m| m.len() > KEEP) {
        // If the rename fails, the log grows.
        let _ = fs::rename(path, path.with_extension("old"));
    }
    let file = open_append(path, 0o600)?;
    let log = Arc::new(file.try_clone()?);
    init_logging(default, true, move || LossyWriter(Arc::clone(&log)));
    Ok(file)
}

/// The bytes that a pipe with room takes at once.
const ATOMIC: usize = 4096;

/// A writer that accepts everything, one event a call, and passes on the text that can be written without
/// waiting. The text cannot drive a terminal or hide.
struct LossyWriter<W>(W);

impl<W: Write + AsFd> Write for LossyWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        for part in sanitize_lines(&text).as_bytes().chunks(ATOMIC) {
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
            let filter = silence_logins(wanted.parse().unwrap());
            for target in ["async_nats", "async_nats::connection", "async_nats::connector"] {
                assert!(!filter.would_enable(target, &tracing::Level::ERROR), "{filter}");
            }
        }
    }

    #[test]
    fn only_levels_and_modules_are_a_filter() {
        for good in ["", "debug", "WARN", "msgfs=trace", "warn,msgfs::index=debug", "msgfs::index"]
        {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for (bad, word) in
            [("wran", "wran"), ("msgfs=loud", "msgfs=loud"), ("debug, a=b=c", "a=b=c")]
        {
            let why = parse_filter(bad).unwrap_err();
            assert!(why.contains(&format!("{word:?}")) && why.contains("trace"), "{why}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_dropped_and_nothing_waits() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut log = LossyWriter(writer);
        // This is far more than the pipe holds, and nobody reads.
        assert_eq!(log.write(&vec![b'x'; 1 << 20]).unwrap(), 1 << 20);
        let mut some = [0; 10];
        io::Read::read_exact(&mut reader, &mut some).unwrap();
        drop(reader);
        log.write_all(b"nobody is there\n").unwrap();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        LossyWriter(full).write_all(b"no room\n").unwrap();
    }
}
