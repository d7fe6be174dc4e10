//! Marks: which messages me has read, durable and by message key (docs/SEMANTICS.md, S35).
//!
//! One append-only file of JSON lines in the state folder:
//! `["r", store, from, id]` marks, `["u", store, from, id]` clears; with `host` and `count` behind them
//! that is what another machine was heard to say, and what the message counts as since then. And
//! `["w", store, ts, [ids…]]` notes the position of the store's own watermark that was last taken
//! over, so that a message which arrives late, with a time below it, stays unread.
//! A line is one `write`; a torn last line loses that mark and no other.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::model::{Host, Mark, MessageKey, Timestamp};
use crate::store::{Watermark, fs};

/// One change of a mark: whose, and whether it is set.
pub(super) type Change = (MessageKey, bool);

/// The file of marks.
#[derive(Debug)]
pub(super) struct Marks {
    /// `None` when nothing may be written (read-only mounts).
    file: Option<File>,
    len: u64,
    /// Per store, the watermark that was last taken over.
    pub imported: HashMap<String, Watermark>,
    pending: Vec<u8>,
}

impl Marks {
    /// Opens the file and replays it from `from` on; `from` is 0 or what [`Marks::len`] gave when
    /// the snapshot was taken. Answers with the changes in order, and whether `from` was usable.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(path: &Path, from: u64, read_only: bool) -> io::Result<(Self, Vec<Change>, bool)> {
        let bytes = fs::or_nothing(std::fs::read(path))?;
        let usable = bytes.len() as u64 >= from
            && (from == 0 || bytes.get(from as usize - 1) == Some(&b'\n'));
        let mut imported = HashMap::new();
        let mut changes = Vec::new();
        let start = if usable { from as usize } else { 0 };
        // Watermark lines are few and the snapshot does not keep them: they are always replayed.
        let mut at = 0;
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            let is_new = at >= start;
            at += line.len();
            if !is_new && !line.starts_with(b"[\"w\"") {
                continue;
            }
            match parse(line) {
                Some(Line::Mark(change, _)) => changes.push(change),
                Some(Line::Imported(store, mark)) => _ = imported.insert(store, mark),
                None => {}
            }
        }
        let mut marks = Self { file: None, len: bytes.len() as u64, imported, pending: Vec::new() };
        if !read_only {
            marks.file = Some(fs::open_append(path, 0o600)?);
            fs::sync_dir(path.parent().unwrap_or(Path::new("")))?;
            if bytes.last().is_some_and(|b| *b != b'\n') {
                marks.pending.push(b'\n');
            }
        }
        Ok((marks, changes, usable))
    }

    /// Bytes in the file, as far as this process knows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Notes a change; [`Marks::write`] makes it durable.
    pub fn push(&mut self, (key, read): &Change) {
        self.line(&json!([kind(*read), key.store, key.from, key.id]));
    }

    /// Notes what a machine was heard to say of a message.
    pub fn push_heard(&mut self, store: &str, mark: &Mark, (host, count): (Host, u32)) {
        let host = host.to_string();
        self.line(&json!([kind(mark.read), store, mark.from, mark.id, host, count]));
    }

    /// Notes the store's watermark as taken over.
    pub fn push_imported(&mut self, store: &str, mark: &Watermark) {
        let ids: Vec<&String> = mark.ids.iter().collect();
        self.line(&json!(["w", store, mark.time.secs(), ids]));
        self.imported.insert(store.to_owned(), mark.clone());
    }

    fn line(&mut self, value: &Value) {
        if self.file.is_some() {
            self.pending.extend_from_slice(value.to_string().as_bytes());
            self.pending.push(b'\n');
        }
    }

    /// Writes what was noted: after this it survives the end of the process.
    ///
    /// # Errors
    /// As the system gave it; what was noted is then still pending.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if !self.pending.is_empty() {
            if let Err(e) = file.write_all(&self.pending) {
                // Half a line would take the next one with it.
                if file.set_len(self.len).is_err() && self.pending.first() != Some(&b'\n') {
                    self.pending.insert(0, b'\n');
                }
                return Err(e);
            }
            self.len += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// What makes all that was written durable, to be done when nobody waits for the marks.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn to_sync(&self) -> io::Result<impl FnOnce() -> io::Result<()> + use<>> {
        let file = self.file.as_ref().map(File::try_clone).transpose()?;
        Ok(move || file.map_or(Ok(()), |file| file.sync_data()))
    }
}

/// The marks of a store in a part of the file, in order.
pub(super) fn read_part(
    path: &Path,
    store: &str,
    part: std::ops::Range<u64>,
) -> io::Result<Vec<Mark>> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(part.start))?;
    let mut bytes = Vec::new();
    file.take(part.end.saturating_sub(part.start)).read_to_end(&mut bytes)?;
    let mark = |line: &[u8]| match parse(line) {
        Some(Line::Mark((MessageKey { store: of, from, id }, read), heard)) if of == store => {
            Some(Mark { from, id, read, heard })
        }
        _ => None,
    };
    Ok(bytes.split(|b| *b == b'\n').filter_map(mark).collect())
}

fn kind(read: bool) -> &'static str {
    if read { "r" } else { "u" }
}

enum Line {
    Mark(Change, Option<(Host, u32)>),
    Imported(String, Watermark),
}

fn parse(line: &[u8]) -> Option<Line> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let fields = value.as_array()?;
    let text = |i: usize| fields.get(i).and_then(Value::as_str).map(str::to_owned);
    let kind = text(0)?;
    match kind.as_str() {
        "r" | "u" => {
            let key = MessageKey { store: text(1)?, from: text(2)?, id: text(3)? };
            let host = fields.get(4).and_then(Value::as_str).and_then(Host::parse);
            let count = fields.get(5).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
            Some(Line::Mark((key, kind == "r"), host.zip(count)))
        }
        "w" => {
            let ids = fields.get(3)?.as_array()?;
            let ids: HashSet<String> =
                ids.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
            let time = Timestamp::from_secs(fields.get(2)?.as_i64()?);
            Some(Line::Imported(text(1)?, Watermark { time, ids }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(id: &str, read: bool) -> Change {
        (MessageKey { store: "samp".into(), from: "f\n\"".into(), id: id.into() }, read)
    }

    #[test]
    fn marks_survive_and_a_torn_line_loses_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        let (mut marks, none, _) = Marks::open(&path, 0, false).unwrap();
        assert!(none.is_empty());
        marks.push(&change("1", true));
        marks.push(&change("1", false));
        marks.push_imported(
            "samp",
            &Watermark { time: Timestamp::from_secs(7), ..Default::default() },
        );
        marks.write().unwrap();
        let len = marks.len();
        drop(marks);
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"[\"r\",\"sa")
            .unwrap();
        let (mut marks, changes, usable) = Marks::open(&path, 0, false).unwrap();
        assert!(usable);
        assert_eq!(changes, [change("1", true), change("1", false)]);
        assert_eq!(marks.imported["samp"].time.secs(), 7);
        marks.push(&change("2", true));
        marks.write().unwrap();
        let (mut marks, changes, usable) = Marks::open(&path, len, false).unwrap();
        assert!(usable);
        assert_eq!(changes, [change("2", true)]);
        let theirs = Mark { from: "a".into(), id: "3".into(), read: true, heard: None };
        marks.push_heard("samp", &theirs, (Host(1), 3));
        marks.push_heard("other", &theirs, (Host(1), 3));
        marks.write().unwrap();
        let heard = Some((Host(1), 3));
        assert_eq!(
            read_part(&path, "samp", len..marks.len()).unwrap()[1..],
            [Mark { heard, ..theirs }]
        );
        let (marks, changes, usable) = Marks::open(&path, 10_000, true).unwrap();
        assert!(!usable);
        assert_eq!(changes.len(), 5);
        assert_eq!(marks.imported.len(), 1);
    }
}
