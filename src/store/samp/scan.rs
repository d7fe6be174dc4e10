//! Following the logs of a SAMP folder.
//!
//! What bites here, and how it is met (formats/samp.md, sections 6 and 9):
//!
//! 1. Logs grow under us: a line counts when its newline is there, or when it is complete JSON; the
//!    position never moves past an unterminated line, so the rest of it is read next time.
//! 2. Logs are replaced by rename (compaction, Syncthing), truncated, or rewritten in place: the
//!    position is tied to device and inode and to a print of the bytes before it. On any mismatch
//!    all files of that writer are read again from the start; the index drops what is not found.
//! 3. Conflict copies belong to the writer of the main log and are read after all main logs, so that
//!    a record in both is located in the main log.
//! 4. One bad line, file or folder entry never hides another: it is rejected or named in `trouble`.
//! 5. A file that cannot be read now keeps what was read of it; so does a folder that is not there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::alias::{self, LogName};
use super::record::{self, Parsed, Scratch};
use super::sources::{Source, Sources};
use crate::model::Timestamp;
use crate::store::fs::{self, Fault, Stamp};
use crate::store::{Again, Found, Location, Rejected, Sink, StoreError, all_from};

/// Bytes read at once: they, and what is found in them, fit the processor's cache, and no index is
/// locked for longer than one batch takes.
const CHUNK: usize = 256 << 10;
/// A line longer than this is not a message; it is skipped without keeping it in memory.
const MAX_LINE: usize = fs::MAX_RECORD;
/// Bytes before the position that must still be the same for the position to hold.
const PRINT_LEN: u64 = 4096;

/// What has to happen with one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    /// It is like this now: what is behind the position is new.
    Grown(Stamp),
    /// Not what was read before: start over, with all files of this writer.
    Other(Stamp),
    Gone,
    /// It cannot be read now.
    Unknown,
}

/// Reports everything new in the folder. See the module for the rules.
pub(super) fn scan(
    dir: &Path,
    me: &str,
    sources: &mut Sources,
    fault: &Fault,
    sink: &mut dyn Sink,
) -> Result<(), StoreError> {
    fault.clear();
    let order = list(dir, sources)?;
    let mut changes: HashMap<u32, Change> = HashMap::new();
    for n in &order {
        let change = examine(dir, *n, sources).unwrap_or_else(|e| {
            let name = sources.get(*n).map_or("", |s| &s.file_name);
            let text = format!("{} cannot be read: {e}", show(name));
            sources.trouble.push(text);
            fault.note(&e);
            if fs::is_absent(&e) { Change::Gone } else { Change::Unknown }
        });
        changes.insert(*n, change);
    }
    for (n, source) in (0u32..).zip(&sources.list) {
        if source.present {
            changes.entry(n).or_insert(Change::Gone);
        }
    }
    if changes.values().any(|c| *c == Change::Gone) && fs::is_away(dir) {
        // It went away while it was looked at, and the files with it.
        return Err(StoreError::io(dir, std::io::ErrorKind::NotFound.into()));
    }
    let mut redo: Vec<String> = changes
        .iter()
        .filter(|(_, c)| matches!(c, Change::Other(_) | Change::Gone))
        .filter_map(|(n, _)| sources.get(*n).map(|s| s.alias.clone()))
        .collect();
    redo.sort_unstable();
    redo.dedup();
    let mut reader = Reader::new(dir, me, fault, sink);
    reader.total = total_bytes(&order, &changes, &redo, sources);
    for n in order {
        let in_redo = sources.get(n).is_some_and(|s| redo.contains(&s.alias));
        if let (false, Some(Change::Grown(stamp))) = (in_redo, changes.get(&n)) {
            reader.sink.resume(n);
            let broken_tail = reader.follow(n, *stamp, false, sources).unwrap_or_default();
            if broken_tail && let Some(s) = sources.get(n) {
                redo.push(s.alias.clone());
            }
        }
    }
    for alias in redo {
        reader.redo(&alias, sources, &changes);
    }
    Ok(())
}

/// The candidate files in reading order: main logs by name, then conflict copies by name.
fn list(dir: &Path, sources: &mut Sources) -> Result<Vec<u32>, StoreError> {
    sources.trouble.clear();
    let entries = std::fs::read_dir(dir).map_err(|e| StoreError::io(dir, e))?;
    let mut names: Vec<(bool, String, String)> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| StoreError::io(dir, e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            sources.trouble.push(format!(
                "{} is skipped: its name is not UTF-8",
                show(&name.to_string_lossy())
            ));
            continue;
        };
        let (conflict, alias) = match alias::classify(name) {
            LogName::NotALog => continue,
            LogName::BadAlias => {
                sources
                    .trouble
                    .push(format!("{} is skipped: its name holds no valid alias", show(name)));
                continue;
            }
            LogName::Main(alias) => (false, alias),
            LogName::Conflict(alias) => (true, alias),
        };
        match entry.file_type() {
            Ok(kind) if kind.is_file() => {
                names.push((conflict, name.to_owned(), alias.to_owned()));
                if conflict {
                    sources.trouble.push(format!(
                        "{} is a conflict copy left by a sync program; messages only it holds are shown",
                        show(name)
                    ));
                }
            }
            Ok(kind) => sources.trouble.push(format!(
                "{} is skipped: it is {}, not a file",
                show(name),
                fs::describe(kind)
            )),
            // Whether it can be read is found when it is examined.
            Err(_) => names.push((conflict, name.to_owned(), alias.to_owned())),
        }
    }
    names.sort_unstable();
    sources.trouble.sort_unstable();
    Ok(names.iter().map(|(conflict, name, alias)| sources.number(name, alias, *conflict)).collect())
}

fn show(name: &str) -> Cow<'_, str> {
    crate::model::one_line(name)
}

/// Tells what happened to a file since it was last read.
fn examine(dir: &Path, n: u32, sources: &Sources) -> std::io::Result<Change> {
    let Some(source) = sources.get(n) else { return Ok(Change::Same) };
    let path = dir.join(&source.file_name);
    let stamp = Stamp::from(&std::fs::symlink_metadata(&path)?);
    if source.present && stamp == source.stamp {
        return Ok(Change::Same);
    }
    let longer = source.present && stamp.same_file(&source.stamp) && stamp.size > source.stamp.size;
    let new = source.stamp == Stamp::default();
    let grown =
        new || longer && print(&fs::open_regular(&path)?, source.offset)? == Some(source.print);
    Ok(if grown { Change::Grown(stamp) } else { Change::Other(stamp) })
}

/// A print of the bytes just before `offset` and of the file's beginning; `None` if it is shorter.
fn print(file: &File, offset: u64) -> std::io::Result<Option<[u8; 32]>> {
    let len = offset.min(PRINT_LEN);
    let mut buf = vec![0; len as usize];
    let mut hash = Sha256::new();
    for start in [0, offset - len] {
        if fs::read_at_most(file, &mut buf, start)? != buf.len() {
            return Ok(None);
        }
        hash.update(&buf);
    }
    Ok(Some(hash.finalize().into()))
}

fn total_bytes(
    order: &[u32],
    changes: &HashMap<u32, Change>,
    redo: &[String],
    sources: &Sources,
) -> u64 {
    let bytes = |n: &u32| {
        let source = sources.get(*n)?;
        let change = changes.get(n)?;
        match change {
            Change::Grown(stamp) | Change::Other(stamp) if redo.contains(&source.alias) => {
                Some(stamp.size)
            }
            Change::Grown(stamp) => Some(stamp.size.saturating_sub(source.offset)),
            _ if redo.contains(&source.alias) => Some(source.stamp.size),
            _ => None,
        }
    };
    order.iter().filter_map(bytes).sum()
}

/// Reads files and hands batches to the sink.
struct Reader<'s> {
    dir: &'s Path,
    me: String,
    fault: &'s Fault,
    sink: &'s mut dyn Sink,
    scratch: Scratch,
    done: u64,
    total: u64,
}

/// Where a run of lines stands in its file.
struct Place<'a> {
    line: u64,
    alias: &'a str,
    from_me: bool,
    last_time: Timestamp,
}

impl<'s> Reader<'s> {
    fn new(dir: &'s Path, me: &str, fault: &'s Fault, sink: &'s mut dyn Sink) -> Self {
        let scratch = Scratch::default();
        Self { dir, me: me.to_owned(), fault, sink, scratch, done: 0, total: 0 }
    }

    /// Reads all files of one writer again from the start, but for those of which nothing is known.
    fn redo(&mut self, alias: &str, sources: &mut Sources, changes: &HashMap<u32, Change>) {
        let mut group = sources.group(alias);
        group.retain(|n| changes.get(n) != Some(&Change::Unknown));
        self.sink.begin_rescan(&group);
        let mut whole = true;
        for n in &group {
            let Some(source) = sources.get(*n) else { continue };
            let read = match changes.get(n) {
                Some(Change::Grown(stamp) | Change::Other(stamp)) => {
                    self.follow(*n, *stamp, true, sources)
                }
                // Not changed itself, but another file of this writer was.
                Some(Change::Same) => self.follow(*n, source.stamp, true, sources),
                _ => Err(std::io::ErrorKind::NotFound.into()),
            };
            match read {
                Err(e) if fs::is_absent(&e) => sources.gone(*n),
                read => whole &= read.is_ok(),
            }
        }
        if whole {
            self.sink.end_rescan(&group);
        } else {
            self.sink.keep(&group);
        }
    }

    /// Reads a file that is as `stamp` says from the source's position to the end, or `again` from its
    /// start. True if an unterminated line that had been delivered turned out to be no message: what
    /// came after was glued to it. What could not be read is read with the next scan.
    fn follow(
        &mut self,
        n: u32,
        stamp: Stamp,
        again: bool,
        sources: &mut Sources,
    ) -> std::io::Result<bool> {
        let Some(mut source) = sources.get(n).cloned() else { return Ok(false) };
        let path = self.dir.join(&source.file_name);
        if again {
            (source.offset, source.lines, source.tail_delivered) = (0, 0, false);
        }
        (source.stamp, source.present) = (stamp, true);
        let read = fs::open_regular(&path).and_then(|file| {
            if !Stamp::of(&file)?.same_file(&stamp) {
                return Err(std::io::Error::other("it was replaced a moment ago"));
            }
            let read = self.read_lines(&file, n, &mut source);
            let print = print(&file, source.offset).ok().flatten();
            if read.is_err() {
                // Not the stamp of a file that was read. With its print it goes on where it stopped.
                (source.stamp.ctime, source.stamp.size) = (0, source.offset);
            }
            source.print = print.filter(|_| read.is_ok() || !again).unwrap_or_default();
            sources.put(n, source);
            read
        });
        if let Err(e) = &read {
            let shown = path.to_string_lossy();
            sources.trouble.push(format!("{} cannot be read to its end: {e}", show(&shown)));
            self.fault.note(e);
        }
        read
    }

    fn read_lines(&mut self, file: &File, n: u32, source: &mut Source) -> std::io::Result<bool> {
        let mut buf: Vec<u8> = Vec::new();
        // The file may have grown since it was examined; what is read is what it was then, so that
        // stamp and position agree.
        let end = source.stamp.size;
        let mut carry = 0;
        let mut broken_tail = false;
        let mut offset = source.offset;
        while offset + (carry as u64) < end {
            let at = offset + carry as u64;
            let want = (CHUNK as u64).min(end - at) as usize;
            buf.resize(carry + want, 0);
            let got = match buf.get_mut(carry..) {
                Some(free) => fs::read_at_most(file, free, at)?,
                None => 0,
            };
            if got == 0 {
                break;
            }
            buf.truncate(carry + got);
            // What was carried over holds no newline.
            let fresh = buf.get(carry..).unwrap_or_default();
            let complete = memchr::memrchr(b'\n', fresh).map_or(0, |i| carry + i + 1);
            let (lines, rest) = buf.split_at(complete);
            broken_tail |=
                source.tail_delivered && !lines.is_empty() && !self.first_is_record(lines);
            if !lines.is_empty() {
                source.tail_delivered = false;
            }
            self.lines(lines, offset, n, source);
            self.done += got as u64;
            self.sink.progress(self.done, self.total.max(self.done));
            let rest_len = rest.len();
            offset += complete as u64;
            if rest_len > MAX_LINE {
                offset = self.skip_line(file, offset, end, n, source)?;
                carry = 0;
            } else {
                // A long line stays where it is: else each piece of it would move what came before.
                if complete > 0 {
                    buf.copy_within(complete.., 0);
                }
                carry = rest_len;
            }
            source.offset = offset;
        }
        buf.truncate(carry);
        self.tail(&buf, n, source, &mut broken_tail);
        Ok(broken_tail)
    }

    fn first_is_record(&mut self, lines: &[u8]) -> bool {
        let first = lines.split(|b| *b == b'\n').next().unwrap_or_default();
        record::parse(&String::from_utf8_lossy(first), &mut self.scratch).is_ok()
    }

    /// Passes over a line that is too long to be a message.
    fn skip_line(
        &mut self,
        file: &File,
        start: u64,
        end: u64,
        n: u32,
        source: &mut Source,
    ) -> std::io::Result<u64> {
        let mut at = start;
        let mut buf = vec![0; CHUNK];
        let next = loop {
            let got = fs::read_at_most(file, &mut buf, at)?;
            match buf.get(..got).and_then(|b| memchr::memchr(b'\n', b)) {
                Some(i) => break at + i as u64 + 1,
                None if got == 0 || at >= end => break at,
                None => at += got as u64,
            }
        };
        source.lines += 1;
        let rejected = Rejected {
            at: Location {
                source: n,
                offset: start,
                len: u32::try_from(next - start).unwrap_or(u32::MAX),
            },
            line: source.lines,
            reason: format!("the line is longer than {} MiB", MAX_LINE >> 20),
            time: Timestamp::from_secs(source.last_time),
            path: source.file_name.clone(),
            ..Rejected::default()
        };
        self.sink.batch(&mut Vec::new(), &mut vec![rejected]);
        Ok(next)
    }

    /// An unterminated last line: a message if it is complete, else reported as incomplete.
    fn tail(&mut self, tail: &[u8], n: u32, source: &mut Source, broken_tail: &mut bool) {
        if tail.iter().all(u8::is_ascii_whitespace) {
            source.tail_delivered = false;
            return;
        }
        let text = String::from_utf8_lossy(tail);
        let is_record =
            record::parse(text.trim_start_matches('\u{feff}'), &mut self.scratch).is_ok();
        *broken_tail |= source.tail_delivered && !is_record;
        let lines = source.lines;
        self.batch(tail, source.offset, n, source, true);
        source.lines = lines;
        source.tail_delivered = is_record;
    }

    fn lines(&mut self, lines: &[u8], offset: u64, n: u32, source: &mut Source) {
        if !lines.is_empty() {
            self.batch(lines, offset, n, source, false);
        }
    }

    /// Parses a run of lines and hands it to the sink as one batch.
    fn batch(&mut self, bytes: &[u8], offset: u64, n: u32, source: &mut Source, incomplete: bool) {
        // Valid UTF-8 is checked once for the whole run; only a run with a flaw is looked at line by line.
        let whole = std::str::from_utf8(bytes).ok();
        let alias = source.alias.clone();
        let mut place = Place {
            line: 0,
            from_me: alias == self.me,
            alias: &alias,
            last_time: Timestamp::from_secs(source.last_time),
        };
        let lossy: Vec<Cow<'_, str>>;
        let pieces = line_ranges(bytes);
        let mut found = Vec::with_capacity(pieces.len());
        let mut rejected = Vec::new();
        let texts: &[Cow<'_, str>] = if whole.is_some() {
            &[]
        } else {
            lossy = pieces
                .iter()
                .map(|(s, e)| String::from_utf8_lossy(bytes.get(*s..*e).unwrap_or_default()))
                .collect();
            &lossy
        };
        for (i, (start, end)) in pieces.iter().enumerate() {
            source.lines += 1;
            place.line = source.lines;
            let text = match whole {
                Some(w) => w.get(*start..*end).unwrap_or_default(),
                None => texts.get(i).map_or("", |t| t),
            };
            let at =
                Location { source: n, offset: offset + *start as u64, len: (end - start) as u32 };
            self.line(text, at, incomplete, &mut place, &mut found, &mut rejected);
        }
        source.last_time = place.last_time.secs();
        all_from(&source.file_name, &mut found, &mut rejected);
        self.sink.batch(&mut found, &mut rejected);
    }

    #[allow(clippy::too_many_arguments)]
    fn line<'a>(
        &mut self,
        text: &'a str,
        mut at: Location,
        incomplete: bool,
        place: &mut Place<'_>,
        found: &mut Vec<Found<'a>>,
        rejected: &mut Vec<Rejected>,
    ) {
        let mut text = text;
        if at.offset == 0
            && let Some(rest) = text.strip_prefix('\u{feff}')
        {
            at.offset += 3;
            at.len = at.len.saturating_sub(3);
            text = rest;
        }
        if text.trim_matches(super::pytext::is_space).is_empty() {
            return;
        }
        let error = match self.accept(text, at, place, found) {
            Ok(()) => return,
            Err(reason) => reason,
        };
        if self.split_at_cr(text, at, place, found) {
            return;
        }
        let reason = if incomplete {
            format!("the last line of the log is not complete yet ({error})")
        } else {
            error
        };
        let (line, time) = (place.line, place.last_time);
        rejected.push(Rejected { at, line, reason, time, incomplete, ..Rejected::default() });
    }

    /// Some writers end lines with a bare CR. True if every piece was a message.
    fn split_at_cr<'a>(
        &mut self,
        text: &'a str,
        at: Location,
        place: &mut Place<'_>,
        found: &mut Vec<Found<'a>>,
    ) -> bool {
        // Offsets in a text that was repaired are not those of the file.
        if !text.trim_end().contains('\r') || text.len() != at.len as usize {
            return false;
        }
        let before = found.len();
        let mut offset = at.offset;
        for piece in text.split('\r') {
            let len = piece.len();
            let blank = piece.trim_matches(super::pytext::is_space).is_empty();
            let piece_at = Location { offset, len: len as u32, ..at };
            if !blank && self.accept(piece, piece_at, place, found).is_err() {
                found.truncate(before);
                return false;
            }
            offset += len as u64 + 1;
        }
        true
    }

    fn accept<'a>(
        &mut self,
        text: &'a str,
        at: Location,
        place: &mut Place<'_>,
        found: &mut Vec<Found<'a>>,
    ) -> Result<(), String> {
        let parsed = record::parse(text, &mut self.scratch).map_err(|e| e.to_string())?;
        if parsed.from != place.alias {
            return Err(format!(
                "it says it is from {:?}, but it stands in the log of {:?}",
                show(&parsed.from),
                place.alias
            ));
        }
        place.last_time = Timestamp::from_secs(parsed.secs);
        found.push(self.found(text, at, place, parsed));
        Ok(())
    }

    fn found<'a>(
        &self,
        text: &'a str,
        at: Location,
        place: &Place<'_>,
        parsed: Parsed<'a>,
    ) -> Found<'a> {
        let claim = if parsed.has_sig { record::claim(text).map(Box::new) } else { None };
        Found {
            at,
            line: place.line,
            to_me: parsed.to == self.me.as_str(),
            from_me: place.from_me,
            time: Timestamp::from_secs(parsed.secs),
            again: if parsed.id_verified { Again::Same } else { Again::Claimed },
            read: None,
            name_time: None,
            noted: false,
            parts: false,
            answers: None,
            claim,
            idempotency_key: parsed.idem.filter(|_| place.from_me).map(std::convert::Into::into),
            from: parsed.from,
            to: parsed.to,
            thread: parsed.thread,
            id: parsed.id,
            ..Found::default()
        }
    }
}

/// Start and end (without the newline) of each line.
fn line_ranges(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut out = Vec::with_capacity(bytes.len() / 256 + 1);
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', bytes) {
        out.push((start, end));
        start = end + 1;
    }
    if start < bytes.len() {
        out.push((start, bytes.len()));
    }
    out
}
