//! A log as a run of lines, and the cursor in it.

use std::borrow::Cow;
use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::store::fs::{MAX_RECORD, read_at_most};

/// Bytes that are read at once. They, and the messages in them, fit the processor's cache, and no index is locked for
/// longer than one batch takes.
const CHUNK: usize = 256 << 10;
/// The number of bytes from which other threads are worth their start.
const LONG: u64 = 4 * CHUNK as u64;
/// The length of the longest line that can be a message. Longer lines are skipped without keeping them in memory.
pub const MAX_LINE: usize = MAX_RECORD;
/// The number of bytes before a cursor, and at the beginning, that must be the same for the cursor to hold.
const PRINT: u64 = 4096;
/// The hash of no bytes at all.
const NONE: u64 = u64::MAX;

/// The byte order mark that some editors put before a text.
pub const BOM: char = '\u{feff}';

/// The position up to which a log was read, and the counts of its format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCursor<C> {
    /// The next byte to read, always at the start of a line.
    pub offset: u64,
    /// The number of lines before it.
    pub lines: u64,
    /// The time of the last message that has one, in milliseconds.
    pub last_time: Option<i64>,
    /// The counts of the format.
    pub count: C,
    /// The hash of the bytes before the offset.
    print: u64,
}

impl<C> LogCursor<C> {
    /// Returns true if the bytes before the cursor are those that were counted.
    pub fn matches_file(&self, file: &File, size: u64) -> bool {
        size >= self.offset && hash_prefix(file, self.offset).is_ok_and(|print| print == self.print)
    }

    /// Stores the hash of the bytes before the cursor.
    pub fn store_prefix_hash(&mut self, file: &File) {
        self.print = hash_prefix(file, self.offset).unwrap_or(NONE);
    }

    /// Changes the cursor so that it matches no file.
    pub fn invalidate(&mut self) {
        self.print = NONE;
    }
}

fn hash_prefix(file: &File, offset: u64) -> io::Result<u64> {
    let len = offset.min(PRINT);
    let mut bytes = vec![0; len as usize * 2];
    let (head, tail) = bytes.split_at_mut(len as usize);
    let got = read_at_most(file, head, 0)? + read_at_most(file, tail, offset - len)?;
    // A prefix without a final newline does not end at the start of a line.
    let sound = got as u64 == len * 2 && tail.last().is_none_or(|b| *b == b'\n');
    if !sound {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(XxHash3_64::oneshot(&bytes) >> 1)
}

/// A part of a log that [`read_lines`] hands out.
pub enum LineRun<'a> {
    /// Complete lines, and the offset of the first one.
    Lines(&'a [u8], u64),
    /// A line that is too long to be a message: its offset and its length.
    TooLong(u64, u64),
}

/// Reads from an offset to `end` and hands out runs of lines. Returns the offset and the bytes of the last line if it
/// has no newline.
pub fn read_lines(
    file: &File,
    from: u64,
    end: u64,
    mut each: impl FnMut(LineRun<'_>),
) -> io::Result<(u64, Vec<u8>)> {
    let (mut reader, mut buffer) = (LogReader::new(file, from, end), Vec::new());
    while let Some(next) = reader.next(&mut buffer)? {
        each(next.to_run(&buffer));
    }
    Ok((reader.offset, reader.carry))
}

/// The offset and length of what [`LogReader::next`] has read.
#[derive(Clone, Copy, Debug)]
pub enum NextRun {
    /// Complete lines, which are in the buffer, with the offset of the first one.
    Lines(u64),
    /// A long line, as [`LineRun::TooLong`].
    TooLong(u64, u64),
}

impl NextRun {
    /// Returns the run with its lines, which are in `buffer`.
    pub fn to_run(self, buffer: &[u8]) -> LineRun<'_> {
        match self {
            Self::Lines(offset) => LineRun::Lines(buffer, offset),
            Self::TooLong(offset, len) => LineRun::TooLong(offset, len),
        }
    }
}

/// A reader of a log, piece by piece.
pub struct LogReader<'f> {
    file: &'f File,
    /// The offset of the next line.
    pub offset: u64,
    end: u64,
    /// Bytes of that line that were read. At the end, it is a line without a newline.
    pub carry: Vec<u8>,
}

impl<'f> LogReader<'f> {
    /// Returns a reader from an offset, which is at the start of a line, to `end`.
    pub fn new(file: &'f File, offset: u64, end: u64) -> Self {
        Self { file, offset, end, carry: Vec::new() }
    }

    /// Returns true if reading this much is worth all cores.
    pub fn is_long(&self) -> bool {
        self.end.saturating_sub(self.offset) >= LONG
    }

    /// Reads the next lines into a buffer whose bytes are not needed any more; `None` at the end.
    ///
    /// # Errors
    /// As the system gave it. Then the end is reached.
    pub fn next(&mut self, buf: &mut Vec<u8>) -> io::Result<Option<NextRun>> {
        let next = self.read_run(buf);
        if next.is_err() {
            self.end = self.offset;
        }
        next
    }

    fn read_run(&mut self, buf: &mut Vec<u8>) -> io::Result<Option<NextRun>> {
        buf.clear();
        // A long line stays in its buffer. Else each piece of it would move the earlier bytes.
        if self.carry.len() > CHUNK {
            std::mem::swap(buf, &mut self.carry);
        } else {
            buf.append(&mut self.carry);
        }
        loop {
            let (carry, offset) = (buf.len(), self.offset);
            let at = offset + carry as u64;
            let want = (CHUNK as u64).min(self.end.saturating_sub(at)) as usize;
            buf.resize(carry + want, 0);
            let got = read_at_most(self.file, buf.get_mut(carry..).unwrap_or_default(), at)?;
            buf.truncate(carry + got);
            if got == 0 {
                self.end = self.end.min(at);
                std::mem::swap(buf, &mut self.carry);
                return Ok(None);
            }
            // The carried bytes hold no newline.
            let fresh = buf.get(carry..).unwrap_or_default();
            if let Some(last) = memchr::memrchr(b'\n', fresh) {
                let complete = carry + last + 1;
                self.carry.extend_from_slice(buf.get(complete..).unwrap_or_default());
                buf.truncate(complete);
                self.offset += complete as u64;
                return Ok(Some(NextRun::Lines(offset)));
            }
            if buf.len() > MAX_LINE {
                self.offset = find_next_line(self.file, offset + buf.len() as u64, self.end)?;
                *buf = Vec::new();
                return Ok(Some(NextRun::TooLong(offset, self.offset - offset)));
            }
        }
    }
}

/// Returns the offset of the line after this one.
fn find_next_line(file: &File, mut at: u64, end: u64) -> io::Result<u64> {
    let mut buf = vec![0; CHUNK];
    loop {
        let got = read_at_most(file, &mut buf, at)?;
        match buf.get(..got).and_then(|b| memchr::memchr(b'\n', b)) {
            Some(i) => return Ok(at + i as u64 + 1),
            None if got == 0 || at >= end => return Ok(at),
            None => at += got as u64,
        }
    }
}

/// A line and its place in the log.
pub struct LogLine<'a> {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes, without the newline.
    pub len: u32,
    /// Its text. Bytes that are no UTF-8 are U+FFFD.
    pub text: Cow<'a, str>,
}

impl LogLine<'_> {
    /// Returns the text without the byte order mark that may begin a file, and the length of the mark in bytes.
    pub fn strip_bom(&self) -> (&str, u32) {
        match self.text.strip_prefix(BOM) {
            Some(rest) if self.offset == 0 => (rest, BOM.len_utf8() as u32),
            _ => (&self.text, 0),
        }
    }
}

/// Returns the lines of a run.
pub fn split_lines(run: &[u8], offset: u64) -> Vec<LogLine<'_>> {
    // The whole run is checked once. Only a run with a flaw is checked line by line.
    let whole = std::str::from_utf8(run).ok();
    let mut out = Vec::with_capacity(run.len() / 256 + 1);
    let mut start = 0;
    let ends = memchr::memchr_iter(b'\n', run).chain(std::iter::once(run.len()));
    for end in ends {
        if end > start || end < run.len() {
            let text = match whole {
                Some(whole) => Cow::Borrowed(whole.get(start..end).unwrap_or_default()),
                None => String::from_utf8_lossy(run.get(start..end).unwrap_or_default()),
            };
            let len = u32::try_from(end - start).unwrap_or(u32::MAX);
            out.push(LogLine { offset: offset + start as u64, len, text });
        }
        start = end + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8], from: u64) -> (Vec<(u64, String)>, u64, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, bytes).unwrap();
        let mut out = Vec::new();
        let file = File::open(&path).unwrap();
        let (offset, tail) = read_lines(&file, from, bytes.len() as u64, |run| match run {
            LineRun::Lines(run, at) => {
                out.extend(
                    split_lines(run, at).into_iter().map(|p| (p.offset, p.text.into_owned())),
                );
            }
            LineRun::TooLong(at, len) => out.push((at, format!("{len} bytes"))),
        })
        .unwrap();
        (out, offset, tail)
    }

    #[test]
    fn lines_and_where_they_stand() {
        let (lines, offset, tail) = texts(b"a\n\nbc\r\n\xff\nrest", 0);
        let told: Vec<(u64, &str)> = lines.iter().map(|(at, t)| (*at, t.as_str())).collect();
        assert_eq!(told, [(0, "a"), (2, ""), (3, "bc\r"), (7, "\u{fffd}")]);
        assert_eq!((offset, tail.as_slice()), (9, &b"rest"[..]));
        let (lines, offset, tail) = texts(b"a\nb\n", 2);
        assert_eq!((lines, offset, tail), (vec![(2, "b".to_owned())], 4, Vec::new()));
    }

    #[test]
    fn long_lines_come_whole() {
        let long = "x".repeat(CHUNK * 3 + 7);
        let (lines, _, tail) = texts(format!("s\n{long}\ne\n").as_bytes(), 0);
        assert_eq!(lines.iter().map(|(_, t)| t.len()).collect::<Vec<_>>(), [1, long.len(), 1]);
        assert!(tail.is_empty());
    }

    #[test]
    fn what_is_too_long_hides_nothing() {
        let mut bytes = b"s\n".to_vec();
        bytes.resize(MAX_LINE + 3 * CHUNK, b'x');
        bytes.extend_from_slice(b"\ne\n");
        let (lines, offset, tail) = texts(&bytes, 0);
        let len = bytes.len() - 4;
        assert_eq!(lines[1], (2, format!("{len} bytes")));
        assert_eq!((lines.len(), lines[2].1.as_str()), (3, "e"));
        assert_eq!((offset, tail.len()), (bytes.len() as u64, 0));
    }

    #[test]
    fn a_position_fits_only_the_bytes_it_was_counted_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let fits = |tally: &LogCursor<()>, bytes: &str| {
            std::fs::write(&path, bytes).unwrap();
            tally.matches_file(&File::open(&path).unwrap(), bytes.len() as u64)
        };
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut tally = LogCursor::<()> { offset: 8, ..LogCursor::default() };
        tally.store_prefix_hash(&File::open(&path).unwrap());
        assert!(fits(&tally, "one\ntwo\n"));
        assert!(fits(&tally, "one\ntwo\nthree\n"));
        assert!(!fits(&tally, "one\ntwo"));
        assert!(!fits(&tally, "one\ntwx\nthree\n"));
        assert!(!fits(&tally, "onetwo\n three\n"));
        assert!(!fits(&tally, ""));
    }
}
