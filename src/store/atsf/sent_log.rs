//! A log of my appended messages that no other writer can change.
//!
//! Other programs rewrite whole logs from memory, and worktrees are removed with everything in them. Each message
//! appended here is one line in a file of msgfs's own: its thread, the title, and the message's bytes. A message that
//! no log has any more is reported from there, and is never appended again.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;
use crate::model::{ORIGIN, sanitize_line};

use super::ids::hash_id;
use super::line::{self, AtsfLine};
use super::sign;
use crate::store::append_log::{AppendLog, AppendSync};
use crate::store::digest::secure_hash64;
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::text::canonical::push_text;
use crate::store::text::json_values::{as_object, as_text, pick_members};
use crate::store::{StoreError, fs};

const FILE: &str = "sent.jsonl";

/// The place of a message in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtsfSentSpan {
    pub offset: u64,
    pub len: u32,
    /// The hash of the message's bytes.
    hash: u64,
}

/// The log of my sent messages.
#[derive(Debug)]
pub(super) struct AtsfSentLog {
    /// The file; `None` if nothing may be written and no file exists.
    path: Option<PathBuf>,
    spans: Mutex<AtsfSentSpans>,
    /// The spans that were added since the last [`Self::drain_new`].
    new_spans: Mutex<Vec<AtsfSentSpan>>,
}

/// The records of the file.
#[derive(Debug)]
struct AtsfSentSpans {
    log: Option<AppendLog>,
    /// The spans by the hash of role and id.
    by_hash: HashMap<u64, AtsfSentSpan>,
}

/// A parsed record of the file.
#[derive(Debug)]
pub(super) struct AtsfSentRecord<'a> {
    pub thread: String,
    pub title: Option<String>,
    pub message: &'a str,
    pub line: AtsfLine<'a>,
}

impl AtsfSentLog {
    /// Opens the file in a folder of msgfs's own and skips whatever is no record.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(state: Option<&Path>) -> Result<Self, StoreError> {
        let path = state.map(|state| state.join(FILE));
        let mut places = HashMap::new();
        if let Some(path) = &path {
            match fs::open_regular(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => load_spans(&opened.map_err(|e| StoreError::io(path, e))?, &mut places)
                    .map_err(|e| StoreError::io(path, e))?,
            }
        }
        let spans = AtsfSentSpans { log: path.as_ref().map(AppendLog::new), by_hash: places };
        Ok(Self { path, spans: Mutex::new(spans), new_spans: Mutex::default() })
    }

    /// Returns true if this message was ever appended.
    pub fn has_message(&self, print: u64) -> bool {
        self.spans.lock().by_hash.contains_key(&print)
    }

    /// Returns the spans that were added since the last call.
    pub fn drain_new(&self) -> Vec<AtsfSentSpan> {
        std::mem::take(&mut *self.new_spans.lock())
    }

    /// Returns the span of a message.
    pub fn find_span(&self, print: u64) -> Option<AtsfSentSpan> {
        self.spans.lock().by_hash.get(&print).copied()
    }

    /// Returns true if the message of this id was appended with another content or time than that of a line. Its
    /// spelling and other members do not count.
    pub fn is_altered(&self, print: u64, line: &str) -> bool {
        let Some(span) = self.find_span(print).filter(|span| span.hash != hash_text(line)) else {
            return false;
        };
        let Ok(bytes) = self.read(span.offset, span.len as usize) else { return false };
        let text = String::from_utf8_lossy(&bytes);
        parse_record(&text)
            .is_some_and(|kept| sign::text_bytes(kept.message) != sign::text_bytes(line))
    }

    /// Returns the messages that `has` does not know, in the order of their appends.
    pub fn list_missing(&self, has: impl Fn(u64) -> bool) -> Vec<AtsfSentSpan> {
        let places = &self.spans.lock().by_hash;
        let mut out: Vec<AtsfSentSpan> =
            places.iter().filter(|(print, _)| !has(**print)).map(|(_, place)| *place).collect();
        out.sort_unstable_by_key(|place| place.offset);
        out
    }

    /// Appends a message. It is on disk when this returns.
    ///
    /// # Errors
    /// The error of the system.
    pub fn append_record(
        &self,
        thread: &str,
        title: Option<&str>,
        message: &str,
    ) -> Result<(), StoreError> {
        let Ok(line) = line::parse(message) else { return Ok(()) };
        let print = hash_id(&line.role, &line.id);
        let mut spans = self.spans.lock();
        let AtsfSentSpans { log: Some(log), by_hash } = &mut *spans else { return Ok(()) };
        if by_hash.contains_key(&print) {
            return Ok(());
        }
        let mut record = render_record(thread, title, message);
        record.push('\n');
        let appended = log.append(record.as_bytes(), AppendSync::Now);
        let offset = appended.map_err(|e| StoreError::io(log.path(), e))?;
        let span = AtsfSentSpan { offset, len: record.len() as u32 - 1, hash: hash_text(message) };
        by_hash.insert(print, span);
        drop(spans);
        self.new_spans.lock().push(span);
        Ok(())
    }

    /// Reads the bytes of a record.
    ///
    /// # Errors
    /// The error of the system.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let path = self.path.as_ref().ok_or(StoreError::Moved)?;
        let io = |e| StoreError::io(path, e);
        let file = fs::open_regular(path).map_err(io)?;
        fs::read_range(&file, offset, len).map_err(io)
    }

    /// Returns the sentence for people about the message of a record, which no log has any more; `None` if the record
    /// cannot be read.
    pub fn describe_loss_at(&self, offset: u64, len: u32) -> Option<String> {
        let bytes = self.read(offset, len as usize).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let record = parse_record(&text)?;
        Some(describe_loss(&record.line, &record.thread))
    }
}

/// Renders the record of a message without its newline.
pub(super) fn render_record(thread: &str, title: Option<&str>, message: &str) -> String {
    let mut record = String::from("{\"thread\":");
    push_text(&mut record, thread);
    if let Some(title) = title {
        record.push_str(",\"title\":");
        push_text(&mut record, title);
    }
    record.push_str(",\"message\":");
    record.push_str(message);
    record.push('}');
    record
}

/// Returns the sentence for people about a message of mine that no log has any more.
pub(super) fn describe_loss(line: &AtsfLine<'_>, thread: &str) -> String {
    format!(
        "my message {} of {} is not in the thread {} any more: another program rewrote or removed \
         the log; it is shown in sent/ and not sent again",
        sanitize_line(&line.id),
        sanitize_line(&line.timestamp),
        sanitize_line(&thread.replace(ORIGIN, "~"))
    )
}

fn hash_text(message: &str) -> u64 {
    secure_hash64(message.trim_end().as_bytes())
}

/// Parses a line of the file; `None` if it is no record.
pub(super) fn parse_record(line: &str) -> Option<AtsfSentRecord<'_>> {
    let [thread, title, message] = pick_members(line, ["thread", "title", "message"])?;
    let message = as_object(message.as_ref())?;
    Some(AtsfSentRecord {
        thread: as_text(thread.as_ref())?.into_owned(),
        title: as_text(title.as_ref()).map(std::borrow::Cow::into_owned),
        message,
        line: line::parse(message).ok()?,
    })
}

fn load_spans(file: &File, places: &mut HashMap<u64, AtsfSentSpan>) -> io::Result<()> {
    let end = file.metadata()?.len();
    read_lines(file, 0, end, |run| {
        let LineRun::Lines(run, offset) = run else { return };
        for piece in split_lines(run, offset) {
            if let Some(r) = parse_record(&piece.text) {
                let hash = hash_text(r.message);
                let place = AtsfSentSpan { offset: piece.offset, len: piece.len, hash };
                places.entry(hash_id(&r.line.role, &r.line.id)).or_insert(place);
            }
        }
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"{"id":"m1","role":"user","timestamp":"2025-02-14T10:30:00.000Z","content":[],"x":1e2}"#;

    #[test]
    fn what_is_kept_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("stores/atsf");
        let kept = AtsfSentLog::open(Some(&state)).unwrap();
        assert!(!kept.has_message(hash_id("user", "m1")));
        kept.append_record("t\0w", Some("a \"title\""), LINE).unwrap();
        kept.append_record("t\0w", None, LINE).unwrap();
        // A torn record loses only itself.
        let path = state.join(FILE);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"thread\":\"t\",\"mess"].concat()).unwrap();
        let kept = AtsfSentLog::open(Some(&state)).unwrap();
        kept.append_record("u", None, &LINE.replace("m1", "m2")).unwrap();
        for kept in [&kept, &AtsfSentLog::open(Some(&state)).unwrap()] {
            let missing = kept.list_missing(|_| false);
            assert_eq!(missing.len(), 2);
            let bytes = kept.read(missing[0].offset, missing[0].len as usize).unwrap();
            let text = String::from_utf8(bytes).unwrap();
            let first = parse_record(&text).unwrap();
            assert_eq!((first.thread.as_str(), first.message), ("t\0w", LINE));
            assert_eq!(first.title.as_deref(), Some("a \"title\""));
            let bytes = kept.read(missing[1].offset, missing[1].len as usize).unwrap();
            assert_eq!(parse_record(std::str::from_utf8(&bytes).unwrap()).unwrap().line.id, "m2");
            assert_eq!(kept.list_missing(|p| p == hash_id("user", "m2")).len(), 1);
        }
    }

    #[test]
    fn where_nothing_may_be_written_nothing_is() {
        let kept = AtsfSentLog::open(None).unwrap();
        kept.append_record("t", None, LINE).unwrap();
        assert!(!kept.has_message(hash_id("user", "m1")));
    }
}
