//! The file of marks: which messages I have read, by message key (docs/SEMANTICS.md, S35).
//!
//! Marks are in one append-only file of JSON lines in the state folder. `["r", store, from, id]` sets a mark, and
//! `["u", store, from, id]` clears it. With `host` and `count` after them, the line repeats a mark of another machine,
//! and the message has that mark from then on. With `null` after them, the mark follows from a position from before
//! msgfs kept any. `["f", store, from, id, label]` keeps a mail program's label of a message ([`MailLabel`]). `["w",
//! store, ts, [ids…]]` records the store's own watermark at its last import, so that a message which arrives late, with
//! a time below it, stays unread. With another list after it, the line has the ids that came and those that went since
//! the line before. A line is one `write`. A torn last line loses that mark and no other.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::marks::MailLabel;
use crate::model::{MachineId, Mark, MarkOrigin, MessageKey, Timestamp, push_json_line};
use crate::store::append_log::{AppendLog, AppendSync, split_log};
use crate::store::{Watermark, fs};

/// The value that the file has for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkValue {
    /// True if the message is read.
    Read(bool),
    /// The message counts as read because a read position passed it.
    Passed,
    /// The label of mail programs.
    Label(MailLabel),
}

/// One line about a message.
pub(super) type MarkChange = (MessageKey, MarkValue);

/// A part of the file, from its start, and the watermarks in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MarkCheckpoint {
    /// The length of the part.
    pub len: u64,
    /// For each store, the watermark that was last imported.
    pub imported: HashMap<String, Watermark>,
}

/// Returns the file from the last byte before `from` on, or from its start.
fn read_file_from(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(from.saturating_sub(1)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The file of marks.
#[derive(Debug)]
pub(super) struct MarkFile {
    /// The file; `None` if nothing may be written (read-only mounts).
    log: Option<AppendLog>,
    /// The length of the whole lines in bytes.
    len: u64,
    /// For each store, the watermark that was last imported.
    pub imported: HashMap<String, Arc<Watermark>>,
    pending: Vec<u8>,
    /// The error of the last write, as long as its lines are pending.
    fault: Option<String>,
}

impl MarkFile {
    /// Opens the file and replays the lines after a part that was replayed before. Returns the changes in order,
    /// and true if the file still begins with that part. Otherwise all of it is replayed.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(
        path: &Path,
        before: MarkCheckpoint,
        read_only: bool,
    ) -> io::Result<(Self, Vec<MarkChange>, bool)> {
        let MarkCheckpoint { len: from, imported } = before;
        let rest = fs::empty_if_absent(read_file_from(path, from))?;
        let usable = from == 0 || rest.first() == Some(&b'\n');
        let (bytes, from, mut imported) = match rest.split_first() {
            Some((_, rest)) if usable && from > 0 => (rest.to_vec(), from, imported),
            _ if usable => (rest, 0, HashMap::new()),
            _ => (fs::empty_if_absent(std::fs::read(path))?, 0, HashMap::new()),
        };
        let mut changes = Vec::new();
        for line in split_log(&bytes) {
            match parse_line(line.text) {
                Some(MarkLine::Mark((key, MarkValue::Read(true)), MarkOrigin::Position)) => {
                    changes.push((key, MarkValue::Passed));
                }
                Some(MarkLine::Mark(change, _)) => changes.push(change),
                Some(MarkLine::Imported(store, mark)) => _ = imported.insert(store, mark),
                Some(MarkLine::ImportedChange(store, mark, gone)) => {
                    let known = imported.entry(store).or_default();
                    known.time = mark.time;
                    known.ids.retain(|id| !gone.contains(id));
                    known.ids.extend(mark.ids);
                }
                None => {}
            }
        }
        let whole = memchr::memrchr(b'\n', &bytes).map_or(0, |at| at + 1);
        let len = from + whole as u64;
        let imported = imported.into_iter().map(|(store, mark)| (store, mark.into())).collect();
        let mut marks = Self { log: None, len, imported, pending: Vec::new(), fault: None };
        if !read_only {
            let mut log = AppendLog::new(path);
            log.open()?;
            marks.log = Some(log);
        }
        Ok((marks, changes, usable))
    }

    /// Returns the part of the file that need not be replayed again.
    pub fn checkpoint(&self) -> MarkCheckpoint {
        let imported = self.imported.iter();
        let imported = imported.map(|(store, mark)| (store.clone(), (**mark).clone())).collect();
        MarkCheckpoint { len: self.len, imported }
    }

    /// Returns the length of the file, as far as this process knows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Adds a change that is made here. [`MarkFile::write`] makes it durable.
    pub fn push(&mut self, (key, said): &MarkChange) {
        let MessageKey { store, from, id } = key;
        match said {
            MarkValue::Read(true) => self.push_read(store, from, id),
            MarkValue::Read(false) => self.push_line(&("u", store, from, id)),
            MarkValue::Passed => self.push_line(&("r", store, from, id, ())),
            MarkValue::Label(label) => self.push_line(&("f", store, from, id, label)),
        }
    }

    /// Adds the mark of a message that was read here.
    pub fn push_read(&mut self, store: &str, from: &str, id: &str) {
        self.push_line(&("r", store, from, id));
    }

    /// Adds a mark of any origin.
    pub fn push_mark(&mut self, store: &str, mark: &Mark) {
        let kind = if mark.read { "r" } else { "u" };
        let (from, id) = (&mark.from, &mark.id);
        match mark.origin {
            MarkOrigin::Here => self.push_line(&(kind, store, from, id)),
            MarkOrigin::Heard(host, count) => {
                self.push_line(&(kind, store, from, id, host.to_string(), count));
            }
            MarkOrigin::Position => self.push_line(&(kind, store, from, id, ())),
        }
    }

    /// Adds a store's watermark as imported.
    pub fn push_watermark(&mut self, store: &str, mark: Arc<Watermark>) {
        let secs = match mark.time.millis() {
            whole if whole % 1000 == 0 => Value::from(whole / 1000),
            millis => Value::from(millis as f64 / 1000.0),
        };
        if let Some(before) = self.imported.get(store) {
            let came: Vec<String> = mark.ids.difference(&before.ids).cloned().collect();
            let gone: Vec<String> = before.ids.difference(&mark.ids).cloned().collect();
            self.push_line(&("w", store, secs, came, gone));
        } else {
            self.push_line(&("w", store, secs, &mark.ids));
        }
        self.imported.insert(store.to_owned(), mark);
    }

    fn push_line(&mut self, value: &impl Serialize) {
        if self.log.is_some() {
            push_json_line(&mut self.pending, value);
        }
    }

    /// Writes the added lines. After this they survive the end of the process.
    ///
    /// # Errors
    /// The error of the system. The lines are then still pending.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(log) = self.log.as_mut().filter(|_| !self.pending.is_empty()) else {
            return Ok(());
        };
        let written = log.append(&self.pending, AppendSync::Later);
        self.fault = written.as_ref().err().map(ToString::to_string);
        written?;
        self.len = log.len();
        self.pending.clear();
        Ok(())
    }

    /// Returns the error of the last write, as long as its lines are pending.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Exchanges the file of the log.
    #[cfg(test)]
    pub fn swap_file(&mut self, file: Arc<File>) -> Arc<File> {
        self.log.as_mut().unwrap().swap_file(file)
    }

    /// Returns a function that syncs all that was written. The caller runs it without the lock.
    pub fn prepare_sync(&self) -> impl FnOnce() -> io::Result<()> + use<> {
        let file = self.log.as_ref().and_then(AppendLog::file);
        move || file.map_or(Ok(()), |file| file.sync_data())
    }
}

/// Returns the marks of a store in a part of the file, in order.
pub(super) fn read_marks_in(
    path: &Path,
    store: &str,
    part: std::ops::Range<u64>,
) -> io::Result<Vec<Mark>> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(part.start))?;
    let mut bytes = Vec::new();
    file.take(part.end.saturating_sub(part.start)).read_to_end(&mut bytes)?;
    let mark = |line: &[u8]| match parse_line(line) {
        Some(MarkLine::Mark((key, MarkValue::Read(read)), origin)) if key.store == store => {
            let MessageKey { from, id, .. } = key;
            Some(Mark { from, id, read, origin })
        }
        _ => None,
    };
    Ok(bytes.split(|b| *b == b'\n').filter_map(mark).collect())
}

enum MarkLine {
    Mark(MarkChange, MarkOrigin),
    Imported(String, Watermark),
    /// The new time and the ids that came, and those that went.
    ImportedChange(String, Watermark, HashSet<String>),
}

fn parse_line(line: &[u8]) -> Option<MarkLine> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let fields = value.as_array()?;
    let text = |i: usize| fields.get(i).and_then(Value::as_str).map(str::to_owned);
    let kind = text(0)?;
    match kind.as_str() {
        "r" | "u" | "f" => {
            let key = MessageKey { store: text(1)?, from: text(2)?, id: text(3)? };
            if kind == "f" {
                let label = MailLabel::deserialize(fields.get(4)?).ok()?;
                return Some(MarkLine::Mark((key, MarkValue::Label(label)), MarkOrigin::Here));
            }
            let host = || MachineId::parse(fields.get(4)?.as_str()?);
            let count = || fields.get(5)?.as_u64()?.try_into().ok();
            let origin = match fields.get(4) {
                None => MarkOrigin::Here,
                Some(Value::Null) => MarkOrigin::Position,
                Some(_) => MarkOrigin::Heard(host()?, count()?),
            };
            Some(MarkLine::Mark((key, MarkValue::Read(kind == "r")), origin))
        }
        "w" => {
            let ids = |list: &Value| -> Option<HashSet<String>> {
                let list = list.as_array()?;
                Some(list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect())
            };
            let time = Timestamp::from_json_secs(fields.get(2)?.as_number()?)?;
            let mark = Watermark { time, ids: ids(fields.get(3)?)? };
            Some(match fields.get(4) {
                None => MarkLine::Imported(text(1)?, mark),
                Some(gone) => MarkLine::ImportedChange(text(1)?, mark, ids(gone)?),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn change(id: &str, read: bool) -> MarkChange {
        (key(id), MarkValue::Read(read))
    }

    fn key(id: &str) -> MessageKey {
        MessageKey { store: "samp".into(), from: "f\n\"".into(), id: id.into() }
    }

    #[test]
    fn what_mail_programs_keep_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        let label = MailLabel { flags: Some("\"F\n".into()), old: true, ..MailLabel::default() };
        let said = [label, MailLabel::default()].map(|l| (key("1"), MarkValue::Label(l)));
        let (mut marks, ..) = MarkFile::open(&path, MarkCheckpoint::default(), false).unwrap();
        for change in &said {
            marks.push(change);
        }
        marks.write().unwrap();
        let (_, changes, _) = MarkFile::open(&path, MarkCheckpoint::default(), true).unwrap();
        assert_eq!(changes, said);
    }

    #[test]
    fn marks_survive_and_a_torn_line_loses_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        let (mut marks, none, _) = MarkFile::open(&path, MarkCheckpoint::default(), false).unwrap();
        assert!(none.is_empty());
        marks.push(&change("1", true));
        marks.push(&change("1", false));
        let position = |secs, ids: &[&str]| Watermark {
            time: Timestamp::from_secs(secs),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        marks.push_watermark("samp", position(5, &["a", "b"]).into());
        marks.push_watermark("samp", position(7, &["b", "c"]).into());
        marks.write().unwrap();
        let before = marks.checkpoint();
        drop(marks);
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"[\"r\",\"sa")
            .unwrap();
        let (mut marks, changes, usable) =
            MarkFile::open(&path, MarkCheckpoint::default(), false).unwrap();
        assert!(usable);
        assert_eq!(changes, [change("1", true), change("1", false)]);
        assert_eq!(*marks.imported["samp"], position(7, &["b", "c"]));
        marks.push(&change("2", true));
        marks.write().unwrap();
        let (mut marks, changes, usable) = MarkFile::open(&path, before, false).unwrap();
        assert!(usable);
        assert_eq!(changes, [change("2", true)]);
        assert_eq!(*marks.imported["samp"], position(7, &["b", "c"]));
        let mark = |origin| Mark { from: "a".into(), id: "3".into(), read: true, origin };
        let more = [
            mark(MarkOrigin::Heard(MachineId(1), 3)),
            mark(MarkOrigin::Position),
            mark(MarkOrigin::Here),
        ];
        let len = marks.len();
        marks.push_mark("other", &more[0]);
        for mark in &more {
            marks.push_mark("samp", mark);
        }
        marks.write().unwrap();
        assert_eq!(read_marks_in(&path, "samp", len..marks.len()).unwrap(), more);
        let before = |len| MarkCheckpoint { len, ..MarkCheckpoint::default() };
        assert!(
            !MarkFile::open(&path, before(len - 1), true).unwrap().2,
            "in the middle of a line"
        );
        let (marks, changes, usable) = MarkFile::open(&path, before(10_000), true).unwrap();
        assert!(!usable);
        assert_eq!(changes.len(), 7);
        assert_eq!(marks.imported.len(), 1);
    }
}
