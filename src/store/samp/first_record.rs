//! The search for the first record of a message, which has the bytes of its files.
//!
//! A message's records are appended one after the other, so the first one normally stands a few lines before the
//! others. Lines that were lost and appended again may stand behind them. The index keeps nothing for this search: it
//! reads the part of the log in which the first record can be, and looks for its id, which follows from any of the
//! others.

use memchr::{memchr, memmem, memrchr};

use super::SampStore;
use super::files::{ListedSampFile, MAX_RECORD_WITH_FILES, base64_len};
use super::record::{self, SampRecord, SampScratch};
use crate::store::Location;
use crate::store::fs::read_range;

/// The most bytes of a log that are read before or behind a record.
const MAX_WINDOW: u64 = 16 << 20;
/// The room for lines of other messages between the records.
const SLACK: u64 = 256 << 10;
/// The room for values that differ between two records of a message, such as the recipient.
const DIFFERENCE: u64 = 256;
/// The most lines with that id that are examined. Answers name it, too.
const MAX_CANDIDATES: usize = 16;

/// Returns the line of the first record of a message in the log in which another record of it stands.
pub(super) fn find_first_record(
    store: &SampStore,
    at: &Location,
    parsed: &SampRecord<'_>,
    listed: &[ListedSampFile<'_>],
) -> Option<String> {
    let first = parsed.rcpt.first().filter(|first| **first != *parsed.to)?;
    let between = parsed.rcpt.iter().position(|to| *to == parsed.to)? as u64;
    let sizes = listed.iter().map(|file| base64_len(file.size.unwrap_or(0)));
    let data = sizes.fold(0u64, u64::saturating_add).min(MAX_RECORD_WITH_FILES);
    let others = between.saturating_mul(u64::from(at.len) + DIFFERENCE);
    let window = others.saturating_add(data + SLACK).min(MAX_WINDOW);

    let wanted = WantedRecord { id: parsed.recipient_ids()(first), to: first, from: &parsed.from };
    let file = store.open_source(at.source).ok()?;
    let begin = at.offset.saturating_sub(window);
    let before = read_range(&file, begin, (at.offset - begin) as usize).ok()?;
    wanted.find_last(&before).or_else(|| {
        let behind = read_range(&file, at.offset + u64::from(at.len), window as usize).ok()?;
        wanted.find_next(&behind)
    })
}

/// A record that is looked for.
struct WantedRecord<'a> {
    id: String,
    to: &'a str,
    from: &'a str,
}

impl WantedRecord<'_> {
    /// Returns the last line of these bytes that is the record.
    fn find_last(&self, bytes: &[u8]) -> Option<String> {
        let finder = memmem::FinderRev::new(&self.id);
        let mut end = bytes.len();
        for _ in 0..MAX_CANDIDATES {
            let found = finder.rfind(bytes.get(..end)?)?;
            let line = line_around(bytes, found);
            if let Some(line) = self.accept_line(bytes.get(line.clone())?) {
                return Some(line);
            }
            end = line.start;
        }
        None
    }

    /// Returns the first line of these bytes that is the record.
    fn find_next(&self, bytes: &[u8]) -> Option<String> {
        let finder = memmem::Finder::new(&self.id);
        let mut begin = 0;
        for _ in 0..MAX_CANDIDATES {
            let found = begin + finder.find(bytes.get(begin..)?)?;
            let line = line_around(bytes, found);
            if let Some(line) = self.accept_line(bytes.get(line.clone())?) {
                return Some(line);
            }
            begin = line.end;
        }
        None
    }

    /// Returns the line if it is the record.
    fn accept_line(&self, line: &[u8]) -> Option<String> {
        let line = String::from_utf8_lossy(line);
        let parsed = record::parse(&line, &mut SampScratch::default()).ok()?;
        let is_it = parsed.from == self.from
            && parsed.to == self.to
            && parsed.files.is_some()
            && parsed.recipient_ids()(self.to) == self.id;
        is_it.then(|| line.into_owned())
    }
}

/// Returns the range of the line in which a position lies.
fn line_around(bytes: &[u8], position: usize) -> std::ops::Range<usize> {
    let (before, behind) = bytes.split_at_checked(position).unwrap_or((bytes, &[]));
    let start = memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let end = memchr(b'\n', behind).map_or(bytes.len(), |newline| position + newline);
    start..end
}
