//! A backup of the lines that this machine appended to my log in the last days, in a place where no other program
//! takes them away.
//!
//! The lines lie in segments, files that only grow: `<number>-<day>`, with one line `<offset> <record>` for each line
//! of the log, in the order in which they were appended. A new segment begins when the last one is full or its day is
//! over. A segment is removed when it is old, or when all of them together are too long. A line is written here after
//! it was written to the log, and is not synced by itself: until it is on disk the spool has it, too.
//!
//! When the backup is cleared, the spool may still have its lines. So their hashes stay here for as long as the lines
//! would have, and they are not kept again. The file with the hashes comes first, and says which segments count: a kill
//! before the others are removed changes nothing.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::model::{Timestamp, format_count};
use crate::store::atomic_file;
use crate::store::engine::lines::append::has_final_newline;
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::fs::{self, Stamp};

/// The time for which a line is kept.
pub(super) const WEEK_MS: i64 = 7 * 86_400_000;
/// The length at which a segment is full.
const SEGMENT: u64 = 1 << 20;
/// The length of all segments together, which they exceed by one segment at most.
const MOST: u64 = 64 << 20;
/// The time for which another process that changes the log is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file with the lines that were cleared.
const CLEARED: &str = "cleared.json";
/// A size that it never reaches.
const CLEARED_LIMIT: u64 = 1 << 30;

/// A line of the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupLine {
    /// The offset at which it was written in the log. It is not its offset after the log was replaced.
    pub at: u64,
    /// The record, without its newline.
    pub text: String,
}

/// A file with kept lines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BackupSegment {
    number: u64,
    path: PathBuf,
    size: u64,
    changed: Timestamp,
}

/// The segment to which lines are written.
#[derive(Debug)]
struct CurrentSegment {
    file: File,
    day: String,
    len: u64,
    /// The stamp of the folder then. If another segment comes, this one is not the last.
    folder: Stamp,
}

/// The lines whose keeping has ended.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClearedLines {
    /// The number of the first segment that counts.
    first: u64,
    /// The hashes of the lines that were cleared at once, with the time of that.
    hashes: Vec<(Timestamp, Vec<u64>)>,
}

/// The backup of lines.
#[derive(Debug)]
pub(super) struct LineBackup {
    folder: PathBuf,
    current: Option<CurrentSegment>,
}

impl LineBackup {
    /// Returns the backup in a folder of msgfs's own, which need not be there yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, current: None }
    }

    /// Locks the log against all other processes until the result is dropped.
    ///
    /// # Errors
    /// `TimedOut` if another one has it for long, else as the system gave it.
    pub fn lock_log(&self) -> io::Result<File> {
        fs::make_dirs(&self.folder, 0o700)?;
        let file = fs::open_read_write(&self.folder.join("lock"), 0o600)?;
        if fs::lock_with_timeout(&file, PATIENCE)? {
            Ok(file)
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    }

    /// Reads which lines were cleared.
    fn read_cleared(&self) -> io::Result<ClearedLines> {
        let bytes = fs::read_small_file(&self.folder.join(CLEARED), CLEARED_LIMIT);
        Ok(serde_json::from_slice(&fs::empty_if_absent(bytes)?).unwrap_or_default())
    }

    /// Lists the segments that count, oldest first.
    fn list_segments(&self) -> io::Result<Vec<BackupSegment>> {
        let first = self.read_cleared()?.first;
        Ok(self.list_all_segments()?.into_iter().filter(|s| s.number >= first).collect())
    }

    /// Lists the segments, oldest first, with those that a kill kept from being removed.
    fn list_all_segments(&self) -> io::Result<Vec<BackupSegment>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.split_once('-')?.0.parse().ok());
            let Some(number) = number else { continue };
            let stamp = Stamp::from(&entry.metadata()?);
            let (size, changed) = (stamp.size, stamp.modified());
            all.push(BackupSegment { number, path: entry.path(), size, changed });
        }
        all.sort_unstable_by_key(|segment| segment.number);
        Ok(all)
    }

    /// Adds a line that was written at an offset of the log.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn append_line(&mut self, at: u64, text: &str) -> io::Result<()> {
        let day = Timestamp::now().day().to_string();
        let folder = Stamp::from_path(&self.folder)?;
        let fits = |c: &CurrentSegment| {
            Some(c.folder.mtime) == folder.map(|f| f.mtime) && c.day == day && c.len < SEGMENT
        };
        if !self.current.as_ref().is_some_and(fits) {
            self.open_next_segment(day)?;
        }
        let Some(current) = &mut self.current else { return Err(io::ErrorKind::NotFound.into()) };
        let line = format!("{at} {text}\n");
        let written = current.file.write_all(line.as_bytes());
        current.len += line.len() as u64;
        if written.is_err() {
            // Perhaps a part of it was written, so the next one begins a line of its own.
            self.current = None;
        }
        written
    }

    /// Opens the last segment, or a new one if that is full or of another day, and removes old ones.
    fn open_next_segment(&mut self, day: String) -> io::Result<()> {
        self.sync_segment()?;
        let first = self.read_cleared()?.first;
        let (all, cleared): (Vec<_>, Vec<_>) =
            self.list_all_segments()?.into_iter().partition(|segment| segment.number >= first);
        let name = |number: u64| format!("{number:010}-{day}");
        let last = all.last();
        let goes_on = last.filter(|last| {
            last.size < SEGMENT
                && last.path.file_name().is_some_and(|n| n == name(last.number).as_str())
        });
        let number =
            goes_on.or(last).map_or(first, |last| last.number + u64::from(goes_on.is_none()));
        let path = self.folder.join(name(number));
        let mut file = fs::open_append(&path, 0o600)?;
        let mut len = file.metadata()?.len();
        if !has_final_newline(&file, len)? {
            file.write_all(b"\n")?;
            len += 1;
        }
        let mut sum: u64 = all.iter().map(|segment| segment.size).sum();
        let old = Timestamp::now().millis() - WEEK_MS;
        remove_segments(&cleared)?;
        for segment in all.iter().filter(|segment| segment.number < number) {
            if segment.changed.millis() < old || sum > MOST {
                std::fs::remove_file(&segment.path)?;
                sum -= segment.size;
            }
        }
        let folder = Stamp::from_path(&self.folder)?.unwrap_or_default();
        self.current = Some(CurrentSegment { file, day, len, folder });
        Ok(())
    }

    /// Brings the backup to disk.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn sync_segment(&mut self) -> io::Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        current.file.sync_data()?;
        fs::sync_dir(&self.folder)
    }

    /// Reads all kept lines, in the order in which they were appended.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn read_all(&self) -> io::Result<Vec<BackupLine>> {
        let mut all = Vec::new();
        for segment in self.list_segments()? {
            all.extend(read_segment(&segment)?);
        }
        Ok(all)
    }

    /// Reads the line that was kept last.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn read_last(&self) -> io::Result<Option<BackupLine>> {
        for segment in self.list_segments()?.iter().rev() {
            if let Some(last) = read_segment(segment)?.pop() {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// Returns those of these lines, which were appended in this order, that are not kept.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn find_missing<'a>(&self, lines: &[&'a str]) -> io::Result<Vec<&'a str>> {
        let Some(newest) = lines.last() else { return Ok(Vec::new()) };
        if self.read_last()?.is_some_and(|last| last.text == *newest) {
            return Ok(Vec::new());
        }
        let cleared = self.read_cleared()?.hashes.into_iter().flat_map(|(_, hashes)| hashes);
        let mut known: HashSet<u64> = cleared.collect();
        known.extend(self.read_all()?.iter().map(|line| hash_line(&line.text)));
        Ok(lines.iter().copied().filter(|line| !known.contains(&hash_line(line))).collect())
    }

    /// Removes all kept lines. [`LineBackup::find_missing`] does not return them again.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn clear(&mut self) -> io::Result<()> {
        self.current = None;
        let (mut cleared, segments) = (self.read_cleared()?, self.list_all_segments()?);
        let (now, kept) = (Timestamp::now(), self.read_all()?);
        cleared.hashes.retain(|(time, _)| time.millis() >= now.millis() - WEEK_MS);
        cleared.hashes.push((now, kept.iter().map(|line| hash_line(&line.text)).collect()));
        let next = segments.last().map_or(0, |last| last.number + 1);
        cleared.first = cleared.first.max(next);
        let text = serde_json::to_vec(&cleared)?;
        atomic_file::write_atomic(&self.folder.join(CLEARED), &text, 0o600)?;
        remove_segments(&segments)
    }

    /// Returns true if the last kept line is the one that was added here last.
    pub fn is_unchanged(&self) -> bool {
        let Some(current) = &self.current else { return false };
        let same = |folder: &Stamp| folder.mtime == current.folder.mtime;
        Stamp::from_path(&self.folder).ok().flatten().as_ref().is_some_and(same)
            && current.file.metadata().is_ok_and(|file| file.len() == current.len)
    }
}

fn hash_line(text: &str) -> u64 {
    XxHash3_64::oneshot(text.as_bytes())
}

fn remove_segments(segments: &[BackupSegment]) -> io::Result<()> {
    segments.iter().try_for_each(|segment| std::fs::remove_file(&segment.path))
}

/// Reads the lines of a segment. Anything that is no line of it is skipped.
fn read_segment(segment: &BackupSegment) -> io::Result<Vec<BackupLine>> {
    let file = fs::open_regular(&segment.path)?;
    let mut lines = Vec::new();
    read_lines(&file, 0, segment.size, |run| {
        let LineRun::Lines(run, offset) = run else { return };
        for piece in split_lines(run, offset) {
            let Some((at, text)) = piece.text.split_once(' ') else { continue };
            if let Ok(at) = at.parse() {
                lines.push(BackupLine { at, text: text.to_owned() });
            }
        }
    })?;
    Ok(lines)
}

/// The incidents of my log, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LogIncidents {
    /// Set if the log lacked its end: when that was found, how many lines were appended again, and how many were too
    /// old.
    pub lacked: Option<(Timestamp, u64, u64)>,
    /// Set if the log was empty or gone: when that was found, and how many lines are not kept any more.
    pub ended: Option<(Timestamp, u64)>,
    /// Set if conflict copies had lines that it lacked: when they were appended, and how many.
    pub taken: Option<(Timestamp, u64)>,
}

const INCIDENTS: &str = "incidents.json";

impl LogIncidents {
    /// Reads the incidents from the state folder of the store.
    pub fn read(state: &Path) -> Self {
        let bytes = fs::read_small_file(&state.join(INCIDENTS), 64 << 10).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Writes the incidents there.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn write(&self, state: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        atomic_file::write_atomic(&state.join(INCIDENTS), &text, 0o600)
    }

    /// Returns a line for each incident that is not long ago.
    pub fn recent_lines(&self, log: &str) -> Vec<String> {
        let since = Timestamp::now().millis() - WEEK_MS;
        let recent = |time: &Timestamp| time.millis() >= since;
        let mut out = Vec::new();
        if let Some((time, count, old)) = self.lacked.filter(|(time, ..)| recent(time)) {
            let old = if old > 0 {
                format!(", without those that are older than 7 days ({old})")
            } else {
                String::new()
            };
            out.push(format!(
                "{log} was cut, or another program put a version without my last messages in its \
                 place (found {}): msgfs appended {} again{old}",
                time.rfc3339_short(),
                format_count(count, "missing message")
            ));
        }
        if let Some((time, count)) = self.ended.filter(|(time, _)| recent(time)) {
            out.push(format!(
                "{log} was found empty or gone ({}); it held {} of the last 7 days. msgfs keeps no \
                 copies, and appends only again what it was still sending",
                time.rfc3339_short(),
                format_count(count, "message")
            ));
        }
        if let Some((time, count)) = self.taken.filter(|(time, _)| recent(time)) {
            out.push(format!(
                "{log} lacked {} of mine, which msgfs appended from a conflict copy ({})",
                format_count(count, "message"),
                time.rfc3339_short()
            ));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn texts(kept: &LineBackup) -> Vec<String> {
        kept.read_all().unwrap().into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn lines_stay_in_order_and_torn_ones_cost_themselves_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("kept");
        let mut kept = LineBackup::new(folder.clone());
        assert_eq!((kept.read_last().unwrap(), kept.read_all().unwrap().len()), (None, 0));
        let lock = kept.lock_log().unwrap();
        kept.append_line(0, "one").unwrap();
        kept.append_line(9, "two").unwrap();
        kept.sync_segment().unwrap();
        drop(lock);
        let segment = kept.list_segments().unwrap().pop().unwrap();
        let mode = std::fs::metadata(&segment.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let mut file = std::fs::File::options().append(true).open(&segment.path).unwrap();
        file.write_all(b"17 thr").unwrap();
        let mut again = LineBackup::new(folder);
        again.append_line(30, "four").unwrap();
        assert_eq!(texts(&again), ["one", "two", "thr", "four"]);
        assert_eq!(again.read_last().unwrap(), Some(BackupLine { at: 30, text: "four".into() }));
        assert_eq!(again.find_missing(&["two", "four"]).unwrap(), Vec::<&str>::new());
        assert_eq!(again.find_missing(&["two", "five"]).unwrap(), ["five"]);
        // The first one notices that the second one added a line.
        kept.append_line(50, "six").unwrap();
        assert_eq!(texts(&again), ["one", "two", "thr", "four", "six"]);
        again.clear().unwrap();
        assert!(texts(&kept).is_empty());
        again.append_line(0, "seven").unwrap();
        assert_eq!(texts(&kept), ["seven"]);
    }

    #[test]
    fn the_oldest_segments_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = LineBackup::new(dir.path().join("kept"));
        let _lock = kept.lock_log().unwrap();
        let long = "x".repeat(SEGMENT as usize);
        for _ in 0..3 {
            kept.append_line(0, &long).unwrap();
        }
        let segments = kept.list_segments().unwrap();
        assert_eq!(segments.len(), 3);
        let file = File::options().write(true).open(&segments[0].path).unwrap();
        let long_ago = Timestamp::now().plus_millis(-WEEK_MS - 1000).to_system_time();
        file.set_modified(long_ago).unwrap();
        kept.append_line(0, "y").unwrap();
        assert_eq!(texts(&kept).len(), 3, "two long ones and the new one");
        for _ in 0..80 {
            kept.append_line(0, &long).unwrap();
        }
        let sum: u64 = kept.list_segments().unwrap().iter().map(|segment| segment.size).sum();
        assert!(sum <= MOST + 2 * SEGMENT + 100, "{sum}");
    }
}
