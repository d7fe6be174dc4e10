//! The messages whose ids carry a hash, because another message had the id first.
//!
//! Marks, names and threads depend on the id of a message. If the message that had an id first is gone and the cache is
//! lost, nothing in the store tells that the other one was known under another id. So the state folder has both, in a
//! file of JSON lines that only grows: `["p", id, content]` for the message that keeps the plain id, `["q", id,
//! content]` for another one. Ids and contents are hashes.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;
use crate::store::StoreError;
use crate::store::append_log::{AppendLog, AppendSync, read_log, split_log};

/// The name of the file in the folder of a store's state.
const NAME: &str = "same-ids";
/// A size that the file never reaches.
const LIMIT: u64 = 1 << 30;

/// The messages whose ids several messages have or had.
#[derive(Debug, Default)]
pub struct QualifierLog(Mutex<QualifierNotes>);

#[derive(Debug, Default)]
struct QualifierNotes {
    /// The file; `None` where nothing may be written.
    log: Option<AppendLog>,
    /// For each id and content, true if the id of that message carries a hash.
    noted: HashMap<u64, HashMap<u64, bool>>,
}

/// The note about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QualifierNote {
    /// No message of this id is noted.
    UnknownId,
    /// Other messages of this id are noted.
    Other,
    /// It is noted, and its id carries a hash if this is true.
    Known(bool),
}

impl QualifierLog {
    /// Opens the log and reads its file. The folder is created when there is something to keep.
    ///
    /// # Errors
    /// If the file cannot be read: without it, marks of one message would count for another.
    pub fn open(state: Option<PathBuf>) -> Result<Self, StoreError> {
        let Some(dir) = state else { return Ok(Self::default()) };
        let opened = Self::default();
        opened.0.lock().log = Some(AppendLog::new(dir.join(NAME)));
        opened.load_notes(&dir)?;
        Ok(opened)
    }

    /// Reads the file in a folder.
    ///
    /// # Errors
    /// As [`QualifierLog::open`].
    pub fn load_notes(&self, dir: &Path) -> Result<(), StoreError> {
        let file = dir.join(NAME);
        let bytes = read_log(&file, LIMIT).map_err(|e| StoreError::io(&file, e))?;
        let mut notes = self.0.lock();
        for line in split_log(&bytes) {
            if let Ok((kind @ ("p" | "q"), id, content)) =
                serde_json::from_slice::<(&str, u64, u64)>(line.text)
            {
                notes.noted.entry(id).or_default().insert(content, kind == "q");
            }
        }
        Ok(())
    }

    /// Returns the note about a message.
    pub(super) fn find_note(&self, id: u64, content: u64) -> QualifierNote {
        let notes = self.0.lock();
        let Some(contents) = notes.noted.get(&id) else { return QualifierNote::UnknownId };
        contents.get(&content).map_or(QualifierNote::Other, |note| QualifierNote::Known(*note))
    }

    /// Notes a message, unless it is noted. It is on disk when this returns, unless that fails, which is logged.
    pub(super) fn note_message(&self, id: u64, content: u64, is_qualified: bool) {
        let QualifierNotes { log, noted } = &mut *self.0.lock();
        let contents = noted.entry(id).or_default();
        if contents.contains_key(&content) {
            return;
        }
        contents.insert(content, is_qualified);
        let Some(log) = log else { return };
        let kind = if is_qualified { "q" } else { "p" };
        let line = serde_json::to_string(&(kind, id, content)).map_err(io::Error::from);
        let add = |line: String| log.append(format!("{line}\n").as_bytes(), AppendSync::Now);
        if let Err(error) = line.and_then(add) {
            tracing::error!(%error, "the note about two messages of one id could not be saved");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_stays_and_the_first_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("stores/amp");
        let log = QualifierLog::open(Some(state.clone())).unwrap();
        assert_eq!(log.find_note(1, 2), QualifierNote::UnknownId);
        log.note_message(1, 2, false);
        log.note_message(1, 3, true);
        log.note_message(1, 3, false);
        std::fs::write(
            state.join(NAME),
            [&std::fs::read(state.join(NAME)).unwrap()[..], b"[\"q\",1,9"].concat(),
        )
        .unwrap();
        for log in [&log, &QualifierLog::open(Some(state)).unwrap()] {
            assert_eq!(log.find_note(1, 2), QualifierNote::Known(false));
            assert_eq!(log.find_note(1, 3), QualifierNote::Known(true));
            assert_eq!(log.find_note(1, 9), QualifierNote::Other, "half a line is none");
            assert_eq!(log.find_note(2, 2), QualifierNote::UnknownId);
        }
        let unsaved = QualifierLog::open(None).unwrap();
        unsaved.note_message(1, 2, true);
        assert_eq!(unsaved.find_note(1, 2), QualifierNote::Known(true));
    }
}
