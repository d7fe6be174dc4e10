//! The reader of messages at their locations, alone or many together.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use super::log::BOM;
use super::log_file::LogFile;
use super::table::{KEPT, LogSource};
use super::{LineFormat, LineStore};
use crate::store::fs::{MAX_RECORD, Stamp, read_range};
use crate::store::{Location, StoreError, confined};

/// The time after a change in which a log may be partly rewritten.
const GRACE: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The limit on the gap between two lines that are read together, and on the length of the second line.
const NEAR: u64 = 8 << 10;
/// The number of bytes in which line ends are counted at once.
const COUNTED: usize = 64 << 10;

/// A compressed log that is unpacked in memory.
#[derive(Debug)]
pub(super) struct UnpackedLog {
    /// The stamp of the compressed file.
    stamp: Stamp,
    file: File,
}

/// A line of a log, and the number of lines before it.
#[derive(Debug, Default)]
pub(super) struct CountedLine {
    source: u32,
    offset: u64,
    before: u64,
}

impl<F: LineFormat> LineStore<F> {
    /// Returns the number of the line at a location, counted from 1. It counts on from the line that was counted last,
    /// if that stands before it in the same log.
    pub(super) fn count_lines(&self, at: &Location) -> Result<u64, StoreError> {
        let file = self.open_source(at.source)?;
        let mut last = self.reader.counted.lock();
        if last.source != at.source || last.offset > at.offset {
            *last = CountedLine { source: at.source, ..CountedLine::default() };
        }
        while last.offset < at.offset {
            let most = (at.offset - last.offset).min(COUNTED as u64) as usize;
            let bytes = read_range(&file, last.offset, most)
                .map_err(|e| StoreError::io(&self.properties.dir, e))?;
            if bytes.is_empty() {
                return Err(StoreError::Moved);
            }
            last.before += memchr::memchr_iter(b'\n', &bytes).count() as u64;
            last.offset += bytes.len() as u64;
        }
        Ok(last.before + 1)
    }

    /// Opens the file of a source. It is never kept open: its disk could then not be unmounted.
    pub(crate) fn open_source(&self, source: u32) -> Result<File, StoreError> {
        if F::SHAPE.tree.is_some() {
            return self.open_tree_log(source);
        }
        let (n, name) = match LogSource::from_number(source) {
            LogSource::Kept => return Err(StoreError::Moved),
            LogSource::Log(n) => (n, F::SHAPE.log_file),
            LogSource::Head(n) => (n, F::SHAPE.head_file),
        };
        let (root, mut parts) = {
            let table = self.table.read();
            let (root, mut parts) = table.log_folder_path(n)?;
            let log = table.get(n).map(|log| log.name.as_str());
            parts.extend(name.or(log).map(str::to_owned));
            (root, parts)
        };
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        confined::open_path(&root, &names).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if F::SHAPE.rewritten => StoreError::Moved,
            _ => StoreError::io(&parts.drain(..).fold(root.clone(), |p, part| p.join(part)), e),
        })
    }

    /// Opens a log of a tree. A compressed one stays unpacked until another one is.
    fn open_tree_log(&self, source: u32) -> Result<File, StoreError> {
        let LogSource::Log(n) = LogSource::from_number(source) else {
            return Err(StoreError::Moved);
        };
        let (root, parts, name) = {
            let table = self.table.read();
            let (root, parts) = table.log_folder_path(n)?;
            (root, parts, table.get(n).ok_or(StoreError::Moved)?.name.clone())
        };
        let io = |e| StoreError::io(&root.join(&name), e);
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        let dir = confined::open_dir(&root, &names).map_err(io)?;
        let (file, _, stamp) = F::SHAPE.stat_log(&dir, &name).map_err(io)?;
        if file == F::SHAPE.file_name(&name) {
            return F::SHAPE.open_log_bytes(&dir, &file).map_err(io);
        }
        let mut unpacked = self.reader.unpacked.lock();
        if unpacked.as_ref().is_none_or(|known| known.stamp != stamp) {
            let LogFile { file, stamp, .. } = F::SHAPE.open_log(&dir, &name).map_err(io)?;
            *unpacked = Some(UnpackedLog { stamp, file });
        }
        let known = unpacked.as_ref().ok_or(StoreError::Moved)?;
        known.file.try_clone().map_err(io)
    }

    /// Hands the line at a location to `use_it`, which returns [`StoreError::Moved`] if it is no message. A log that
    /// is being rewritten is short for a moment.
    pub(crate) fn with_line<T>(
        &self,
        at: &Location,
        use_it: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let io = |e| StoreError::io(&self.properties.dir, e);
        if at.source == KEPT {
            let bytes = self.format.read_kept(at.offset, at.len as usize)?;
            return use_it(&String::from_utf8_lossy(&bytes));
        }
        if at.len as usize > MAX_RECORD {
            return Err(StoreError::Moved);
        }
        let until = Instant::now() + GRACE;
        loop {
            let file = self.open_source(at.source)?;
            let from = at.offset.saturating_sub(1);
            let len = (at.offset - from) as usize + at.len as usize + 1;
            let bytes = read_range(&file, from, len).map_err(io)?;
            if let Some(line) = extract_line(&bytes, from, at) {
                match use_it(&String::from_utf8_lossy(line)) {
                    Err(StoreError::Moved) => {}
                    done => return done,
                }
            }
            let changed =
                Stamp::from_file(&file).and_then(|_| file.metadata()?.modified()).map_err(io)?;
            let young = changed.elapsed().map_or(true, |age| age < GRACE);
            if !F::SHAPE.rewritten || !young || Instant::now() >= until {
                return Err(StoreError::Moved);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Hands on the lines at several locations. Each log is opened once, and near lines are read together. Lines that
    /// are not there are left out.
    pub(super) fn with_lines(&self, at: &[Location], mut each: impl FnMut(usize, &Location, &str)) {
        let in_log = |at: &Location| at.source != KEPT && at.len as usize <= MAX_RECORD;
        let mut lines: Vec<(usize, &Location)> =
            at.iter().enumerate().filter(|(_, at)| in_log(at)).collect();
        lines.sort_unstable_by_key(|(_, at)| (at.source, at.offset));
        for log in lines.chunk_by(|(_, a), (_, b)| a.source == b.source) {
            let Some(Ok(file)) = log.first().map(|(_, at)| self.open_source(at.source)) else {
                continue;
            };
            for near in log.chunk_by(|(_, a), (_, b)| are_near(a, b)) {
                let Some((bytes, from)) = read_span(&file, near) else { continue };
                for (number, at) in near {
                    if let Some(line) = extract_line(&bytes, from, at) {
                        each(*number, at, &String::from_utf8_lossy(line));
                    }
                }
            }
        }
    }
}

fn end_offset(at: &Location) -> u64 {
    at.offset.saturating_add(at.len.into())
}

/// Returns true if the second line of a log is read together with the first.
fn are_near(a: &Location, b: &Location) -> bool {
    u64::from(b.len) < NEAR && b.offset.checked_sub(end_offset(a)).is_some_and(|gap| gap < NEAR)
}

/// Returns the bytes of lines that follow each other, with the byte before and the byte after, and the offset of the
/// first byte.
fn read_span(file: &File, lines: &[(usize, &Location)]) -> Option<(Vec<u8>, u64)> {
    let ((_, first), (_, last)) = (lines.first()?, lines.last()?);
    let from = first.offset.saturating_sub(1);
    let most = usize::try_from(end_offset(last).checked_sub(from)?).ok()? + 1;
    Some((read_range(file, from, most).ok()?, from))
}

/// Returns the bytes at a location, if a line begins and ends there. `bytes` is a part of its log that holds the bytes
/// before and after it, if the log has them.
fn extract_line<'a>(bytes: &'a [u8], from: u64, at: &Location) -> Option<&'a [u8]> {
    const MARK: u64 = BOM.len_utf8() as u64;
    // Some writers end lines with a bare CR.
    let end = |b: &u8| matches!(b, b'\n' | b'\r');
    let begin = usize::try_from(at.offset.checked_sub(from)?).ok()?;
    let before = begin.checked_sub(1).and_then(|n| bytes.get(n));
    let starts = at.offset == 0 || at.offset == MARK || before.is_some_and(end);
    let (line, rest) = bytes.get(begin..)?.split_at_checked(at.len as usize)?;
    (starts && rest.first().is_none_or(end)).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(source: u32, offset: u64, len: u32) -> Location {
        Location { source, offset, len }
    }

    #[test]
    fn a_line_is_whole_or_none() {
        let log = b"one\ntwo\r\nthree";
        let line = |from, upto: usize, offset, len| {
            let bytes = &log[from as usize..upto];
            extract_line(bytes, from, &at(0, offset, len))
                .map(|l| String::from_utf8_lossy(l).into_owned())
        };
        assert_eq!(line(0, 4, 0, 3).as_deref(), Some("one"));
        assert_eq!(line(3, 8, 4, 3).as_deref(), Some("two"));
        assert_eq!(line(0, 14, 4, 3).as_deref(), Some("two"));
        assert_eq!(line(8, 14, 9, 5).as_deref(), Some("three"));
        for (from, upto, offset, len) in
            [(4, 8, 4, 3), (0, 14, 5, 2), (0, 14, 4, 2), (3, 6, 4, 3), (0, 14, 9, 6), (9, 14, 4, 3)]
        {
            assert_eq!(line(from, upto, offset, len), None, "{from}..{upto} {offset} {len}");
        }
    }
}
