//! `messages.jsonl` as a run of lines, and what is counted of them.

use std::borrow::Cow;
use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::line::Line;
use crate::model::Timestamp;
use crate::store::fs::{MAX_RECORD, read_at_most};

/// Bytes read at once: they, and what is found in them, fit the processor's cache.
const CHUNK: usize = 256 << 10;
/// A longer line stops the reading.
const MAX_LINE: usize = MAX_RECORD;
/// Bytes before a position, and at the beginning, that must be the same for the position to hold.
const PRINT: u64 = 4096;

/// The four derived numbers of a thread (formats/atsf.md, section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Lines that are messages.
    pub messages: u64,
    /// Those of the role `user`.
    pub user: u64,
    /// Those of the role `agent`.
    pub agent: u64,
    /// Those of the role `system`, which have no number of their own.
    pub system: u64,
    /// Tool calls of all of them.
    pub calls: u64,
}

/// How far a log was read, and what was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Next byte to read; always at the start of a line.
    pub offset: u64,
    /// Lines before it.
    pub lines: u64,
    pub stats: Stats,
    /// The time of the last message that has one, in milliseconds.
    pub last_time: Option<i64>,
    /// The time in the name of the last message.
    pub name_time: Option<i64>,
    /// Print of the bytes before the offset.
    print: u64,
}

/// A line and where it stands.
pub(super) struct Piece<'a> {
    pub offset: u64,
    /// Its length in bytes, without the newline.
    pub len: u32,
    pub text: Cow<'a, str>,
}

impl Tally {
    /// Whether the bytes before the position are those that were counted.
    pub fn fits(&self, file: &File, size: u64) -> bool {
        size >= self.offset && print(file, self.offset).is_ok_and(|print| print == self.print)
    }

    /// Notes the bytes before the position.
    pub fn seal(&mut self, file: &File) {
        // One that cannot be read fits nothing later.
        self.print = print(file, self.offset).unwrap_or(u64::MAX);
    }

    /// Counts a message; its time and the time in its name. A message whose time is none has that of
    /// the one before, or `else_time`.
    pub fn count(&mut self, line: &Line<'_>, else_time: Timestamp) -> (Timestamp, Timestamp) {
        self.stats.messages += 1;
        match &*line.role {
            "user" => self.stats.user += 1,
            "agent" => self.stats.agent += 1,
            "system" => self.stats.system += 1,
            _ => {}
        }
        self.stats.calls += line.call_count();
        let own = line.when().time();
        let before = self.last_time.map_or(else_time, Timestamp::from_millis);
        let time = own.unwrap_or(before);
        self.last_time = own.map(Timestamp::millis).or(self.last_time);
        let after = self.name_time.map(|before| Timestamp::from_millis(before).plus_millis(1));
        let name = after.map_or(time, |after| after.max(time));
        self.name_time = Some(name.millis());
        (time, name)
    }
}

fn print(file: &File, offset: u64) -> io::Result<u64> {
    let len = offset.min(PRINT);
    let mut bytes = vec![0; len as usize * 2];
    let (head, tail) = bytes.split_at_mut(len as usize);
    let got = read_at_most(file, head, 0)? + read_at_most(file, tail, offset - len)?;
    // What ends in no newline is not the start of a line.
    let sound = got as u64 == len * 2 && tail.last().is_none_or(|b| *b == b'\n');
    if !sound {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(XxHash3_64::oneshot(&bytes) >> 1)
}

/// Reads from a position to `end` and hands out runs of complete lines with their offsets; answers
/// with where the last line starts that has no newline, and its bytes.
///
/// # Errors
/// As the system gave it; `InvalidData` for a line that is too long to be one.
pub(super) fn read_lines(
    file: &File,
    from: u64,
    end: u64,
    mut each: impl FnMut(&[u8], u64),
) -> io::Result<(u64, Vec<u8>)> {
    let (mut offset, mut buf): (u64, Vec<u8>) = (from, Vec::new());
    loop {
        let carry = buf.len();
        let at = offset + carry as u64;
        // Doubling, so that a long line is not searched again and again.
        let want = (CHUNK.max(carry) as u64).min(end.saturating_sub(at)) as usize;
        if want == 0 {
            return Ok((offset, buf));
        }
        buf.resize(carry + want, 0);
        let got = read_at_most(file, buf.get_mut(carry..).unwrap_or_default(), at)?;
        buf.truncate(carry + got);
        if got == 0 {
            return Ok((offset, buf));
        }
        let fresh = buf.get(carry..).unwrap_or_default();
        let complete = memchr::memrchr(b'\n', fresh).map_or(0, |i| carry + i + 1);
        if complete > 0 {
            each(buf.get(..complete).unwrap_or_default(), offset);
            offset += complete as u64;
            buf.drain(..complete);
        } else if buf.len() > MAX_LINE {
            let text = format!("a line is longer than {} MiB", MAX_LINE >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
}

/// The lines of a run. Bytes that are no UTF-8 are U+FFFD.
pub(super) fn pieces(run: &[u8], offset: u64) -> Vec<Piece<'_>> {
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
            out.push(Piece { offset: offset + start as u64, len, text });
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
        let (offset, tail) = read_lines(&file, from, bytes.len() as u64, |run, at| {
            out.extend(pieces(run, at).into_iter().map(|p| (p.offset, p.text.into_owned())));
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
    fn a_position_fits_only_the_bytes_it_was_counted_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let fits = |tally: &Tally, bytes: &str| {
            std::fs::write(&path, bytes).unwrap();
            tally.fits(&File::open(&path).unwrap(), bytes.len() as u64)
        };
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut tally = Tally { offset: 8, ..Tally::default() };
        tally.seal(&File::open(&path).unwrap());
        assert!(fits(&tally, "one\ntwo\n"));
        assert!(fits(&tally, "one\ntwo\nthree\n"));
        assert!(!fits(&tally, "one\ntwo"));
        assert!(!fits(&tally, "one\ntwx\nthree\n"));
        assert!(!fits(&tally, "onetwo\n three\n"));
        assert!(!fits(&tally, ""));
    }
}
