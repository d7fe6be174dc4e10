//! The logs of the folder: comparing a line with a position, and appending it in one write.
//!
//! No function here follows a symlink, opens anything but a file, or cuts or changes existing bytes.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::line::PublishedLine;
use crate::model::Timestamp;
use crate::store::engine::lines::append::{LogPath, UnsyncedLogs, append_once, has_final_newline};
use crate::store::fs::{self, Stamp};
use crate::store::samp::alias::{self, SampLogName};
use crate::store::{StoreError, confined};

/// The bytes at the position of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLineMatch {
    /// The line itself.
    Line,
    /// The beginning of the line, of this many bytes, at which the log ends.
    Partial(u64),
    /// The end of the log.
    End,
    /// No bytes, since the log ends before the position.
    Short,
    /// Other bytes.
    Other,
}

/// A line at its position in a log, for recognizing it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatsLogTail {
    at: u64,
    len: usize,
    hash: u64,
}

impl NatsLogTail {
    /// Returns the tail for a line.
    pub fn from_line(line: &PublishedLine<'_>) -> Self {
        Self::new(line.at, line.bytes)
    }

    /// Returns the tail for a line that begins at an offset.
    pub fn new(at: u64, line: &[u8]) -> Self {
        Self { at, len: line.len(), hash: XxHash3_64::oneshot(line) }
    }

    /// Returns the offset at which the line ends.
    pub fn end_offset(self) -> u64 {
        self.at + self.len as u64
    }

    /// Returns true if the line stands in a log.
    pub fn is_in(self, file: &File) -> io::Result<bool> {
        let bytes = fs::read_range(file, self.at, self.len)?;
        Ok(bytes.len() == self.len && XxHash3_64::oneshot(&bytes) == self.hash)
    }
}

/// Compares a line with the bytes at its position in a log of this length.
pub fn match_line(file: &File, len: u64, line: &PublishedLine<'_>) -> io::Result<LogLineMatch> {
    if line.at > len {
        return Ok(LogLineMatch::Short);
    }
    if line.at == len {
        return Ok(LogLineMatch::End);
    }
    let there = fs::read_range(file, line.at, line.bytes.len())?;
    Ok(match line.bytes.strip_prefix(&*there) {
        Some([]) => LogLineMatch::Line,
        Some(_) if line.at + there.len() as u64 >= len => LogLineMatch::Partial(there.len() as u64),
        _ => LogLineMatch::Other,
    })
}

/// The position of appended text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsAppendPosition {
    /// The offset at which the text begins.
    pub at: u64,
    /// The inode of the file.
    pub ino: u64,
}

/// The folder with the logs.
#[derive(Debug)]
pub struct NatsLogFolder {
    dir: OwnedFd,
    path: PathBuf,
    unsynced: UnsyncedLogs,
}

impl NatsLogFolder {
    /// Opens the folder.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = confined::open_dir(path, &[])?;
        Ok(Self { dir, path: path.to_owned(), unsynced: UnsyncedLogs::default() })
    }

    /// Opens the folder that has this path now.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.dir = confined::open_dir(&self.path, &[])?;
        Ok(())
    }

    /// Returns the writers that have a log, or something else under its name.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn list_writers(&self) -> io::Result<Vec<String>> {
        let mut writers = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            if let Ok(SampLogName::Main(writer)) =
                entry.file_name().to_str().map(alias::classify_log_name)
            {
                writers.push(writer.to_owned());
            }
        }
        Ok(writers)
    }

    /// Returns the stamp of a log; `None` if there is none.
    ///
    /// # Errors
    /// Returns `InvalidInput` if something else has its name, otherwise the system's error.
    pub fn read_stamp(&self, writer: &str) -> io::Result<Option<Stamp>> {
        match confined::stat(&self.dir, &alias::log_name(writer)) {
            Ok((FileType::RegularFile, stamp)) => Ok(Some(stamp)),
            Ok((kind, _)) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("is {}, not a file", confined::describe_type(kind)),
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens a log for reading; `None` if there is none.
    ///
    /// # Errors
    /// Returns the errors of [`NatsLogFolder::read_stamp`].
    pub fn open_log(&self, writer: &str) -> io::Result<Option<File>> {
        self.open_beside(&alias::log_name(writer))
    }

    /// Appends to a log in one write, makes the log if it is missing, and returns the position. Ends a torn last line
    /// first if `end` is true.
    ///
    /// # Errors
    /// Returns the system's error; then no reader sees a part.
    pub fn append_text(
        &mut self,
        name: &str,
        text: &[u8],
        end: bool,
    ) -> io::Result<NatsAppendPosition> {
        let path = self.path.join(name);
        let spot = LogPath { dir: &self.dir, name, path: &path };
        let mut file = spot.open(true)?;
        let stamp = Stamp::from_file(&file)?;
        if end && !has_final_newline(&file, stamp.size)? {
            append_once(&file, &[b"\n", text].concat(), stamp.size)?;
        } else {
            append_once(&file, text, stamp.size)?;
        }
        self.unsynced.note_append(&path, stamp.size, stamp);
        // Other programs may have appended since the length was read; the file position shows the real offset.
        let at = file.stream_position()?.saturating_sub(text.len() as u64);
        Ok(NatsAppendPosition { at, ino: stamp.ino })
    }

    /// Syncs a log.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn sync_log(&mut self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        let spot = LogPath { dir: &self.dir, name, path: &path };
        self.unsynced.sync_log(&spot).map_err(|error| match error {
            StoreError::Io { source, .. } => source,
            other => io::Error::other(other),
        })
    }

    /// Returns the name of the conflict copy for lines that another machine wrote under a writer's name.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn choose_copy_name(&self, writer: &str, host: &str) -> io::Result<String> {
        let (start, end) = (format!("log-{writer}.sync-conflict-"), format!("-{host}.jsonl"));
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let ours = name.starts_with(&start) && name.ends_with(&end);
            if ours && alias::classify_log_name(name) == SampLogName::Conflict(writer) {
                return Ok(name.to_owned());
            }
        }
        let digits: String =
            Timestamp::now().rfc3339().chars().filter(char::is_ascii_digit).take(14).collect();
        let (date, time) = digits.split_at_checked(8).unwrap_or_default();
        Ok(format!("{start}{date}-{time}{end}"))
    }

    /// Opens a file beside the logs; `None` if there is none.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open_beside(&self, name: &str) -> io::Result<Option<File>> {
        match confined::open_file(&self.dir, name) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The complete lines of a log from an offset on.
#[derive(Debug)]
pub struct NatsLogReader {
    reader: BufReader<File>,
    at: u64,
    line: Vec<u8>,
}

impl NatsLogReader {
    /// Returns a reader from an offset at which a line begins.
    ///
    /// # Errors
    /// Returns the error of `seek`.
    pub fn read_from(mut file: File, at: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(at))?;
        Ok(Self { reader: BufReader::with_capacity(64 << 10, file), at, line: Vec::new() })
    }

    /// Returns the next line with its newline, and the offset of its end; `None` behind the last complete line. An
    /// overlong line is cut at its limit.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        let limit = fs::MAX_RECORD as u64;
        self.line.clear();
        let mut len = self.reader.by_ref().take(limit).read_until(b'\n', &mut self.line)? as u64;
        let mut ended = self.line.ends_with(b"\n");
        while !ended && len >= limit {
            let buffer = self.reader.fill_buf()?;
            let newline = memchr::memchr(b'\n', buffer);
            let (used, rest) = (newline.map_or(buffer.len(), |n| n + 1), buffer.len());
            ended = newline.is_some();
            self.reader.consume(used);
            len += used as u64;
            if rest == 0 {
                break;
            }
        }
        if !ended {
            return Ok(None);
        }
        self.at += len;
        Ok(Some((&self.line, self.at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: u64, text: &str) -> PublishedLine<'_> {
        PublishedLine { at, bytes: text.as_bytes(), id: String::new() }
    }

    #[test]
    fn what_stands_at_a_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log-a.jsonl");
        std::fs::write(&path, "one\ntwo\nth").unwrap();
        let file = File::open(&path).unwrap();
        let table = [
            (0, "one\n", LogLineMatch::Line),
            (4, "two\n", LogLineMatch::Line),
            (4, "too\n", LogLineMatch::Other),
            (4, "two", LogLineMatch::Line),
            (5, "wo\n", LogLineMatch::Line),
            (8, "three\n", LogLineMatch::Partial(2)),
            (8, "tree\n", LogLineMatch::Other),
            (10, "x\n", LogLineMatch::End),
            (11, "x\n", LogLineMatch::Short),
            (u64::MAX, "x\n", LogLineMatch::Short),
        ];
        for (at, text, found) in table {
            assert_eq!(match_line(&file, 10, &line(at, text)).unwrap(), found, "{at} {text}");
        }
        assert!(NatsLogTail::from_line(&line(4, "two\n")).is_in(&file).unwrap());
        assert!(!NatsLogTail::from_line(&line(4, "tow\n")).is_in(&file).unwrap());
        assert!(!NatsLogTail::from_line(&line(8, "th\n")).is_in(&file).unwrap());
        assert_eq!(NatsLogTail::from_line(&line(4, "two\n")).end_offset(), 8);
    }

    #[test]
    fn a_line_goes_behind_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = NatsLogFolder::open(dir.path()).unwrap();
        assert_eq!(logs.read_stamp("a").unwrap(), None);
        assert_eq!(logs.append_text("log-a.jsonl", b"one\n", true).unwrap().at, 0);
        assert_eq!(logs.append_text("log-a.jsonl", b"tw", true).unwrap().at, 4);
        assert_eq!(logs.append_text("log-a.jsonl", b"o\n", false).unwrap().at, 6);
        assert_eq!(logs.append_text("log-a.jsonl", b"thr", true).unwrap().at, 8);
        assert_eq!(logs.append_text("log-a.jsonl", b"four\n", true).unwrap().at, 12);
        logs.sync_log("log-a.jsonl").unwrap();
        assert_eq!(
            std::fs::read(dir.path().join("log-a.jsonl")).unwrap(),
            b"one\ntwo\nthr\nfour\n"
        );
        assert_eq!(logs.list_writers().unwrap(), ["a"]);
        let mut lines = NatsLogReader::read_from(logs.open_log("a").unwrap().unwrap(), 4).unwrap();
        assert_eq!(lines.next().unwrap(), Some((&b"two\n"[..], 8)));
        assert_eq!(lines.next().unwrap(), Some((&b"thr\n"[..], 12)));
    }

    #[test]
    fn what_is_no_log_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "secret\n").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("log-a.jsonl")).unwrap();
        std::fs::create_dir(dir.path().join("log-b.jsonl")).unwrap();
        let fifo = dir.path().join("log-c.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let mut logs = NatsLogFolder::open(dir.path()).unwrap();
        for writer in ["a", "b", "c"] {
            assert!(logs.read_stamp(writer).is_err());
            assert!(logs.open_log(writer).is_err());
            assert!(logs.append_text(&alias::log_name(writer), b"x\n", true).is_err());
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"secret\n");
    }

    #[test]
    fn a_copy_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = NatsLogFolder::open(dir.path()).unwrap();
        let name = logs.choose_copy_name("a.b", "ABCDEF2").unwrap();
        assert_eq!(alias::classify_log_name(&name), SampLogName::Conflict("a.b"));
        logs.append_text(&name, b"x\n", true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(logs.choose_copy_name("a.b", "ABCDEF2").unwrap(), name);
        assert_ne!(logs.choose_copy_name("a.b", "OTHER22").unwrap(), name);
        assert_ne!(logs.choose_copy_name("a", "ABCDEF2").unwrap(), name);
    }
}
