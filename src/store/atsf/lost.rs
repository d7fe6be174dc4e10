//! What I appended, kept where no co-writer can take it away.
//!
//! Other programs rewrite whole logs from memory, and worktrees are removed with all that is in them.
//! Each message appended here is one line in a file of msgfs's own: its thread, the title, and the
//! message's bytes. A message that no log has any more is reported from there, and is never appended
//! again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;

use super::ids::print;
use super::line::{self, Line};
use super::values::{object, pick, text};
use crate::store::engine::lines::append::ends_in_newline;
use crate::store::engine::lines::log::{Run, pieces, read_lines};
use crate::store::text::canonical::push_text;
use crate::store::{StoreError, fs};

const FILE: &str = "sent.jsonl";

/// A message in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u64,
    pub len: u32,
}

/// What is kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// `None` where nothing may be written and nothing was.
    path: Option<PathBuf>,
    /// By print of role and id.
    places: Mutex<HashMap<u64, Place>>,
    /// What was kept since anybody asked.
    new: Mutex<Vec<Place>>,
}

/// A kept message, taken apart.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub thread: String,
    pub title: Option<String>,
    pub message: &'a str,
    pub line: Line<'a>,
}

impl Kept {
    /// Opens the file in a folder of msgfs's own; what is no record in it is passed over.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(state: Option<&Path>) -> Result<Self, StoreError> {
        let path = state.map(|state| state.join(FILE));
        let mut places = HashMap::new();
        if let Some(path) = &path {
            match fs::open_regular(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => read_all(&opened.map_err(|e| StoreError::io(path, e))?, &mut places)
                    .map_err(|e| StoreError::io(path, e))?,
            }
        }
        Ok(Self { path, places: Mutex::new(places), new: Mutex::default() })
    }

    /// Whether this message was appended once.
    pub fn has(&self, print: u64) -> bool {
        self.places.lock().contains_key(&print)
    }

    /// What was kept since this was last asked.
    pub fn take_new(&self) -> Vec<Place> {
        std::mem::take(&mut *self.new.lock())
    }

    /// Where a message lies.
    pub fn place(&self, print: u64) -> Option<Place> {
        self.places.lock().get(&print).copied()
    }

    /// The messages that `has` knows nothing of, in the order in which they were appended.
    pub fn missing(&self, has: impl Fn(u64) -> bool) -> Vec<Place> {
        let places = self.places.lock();
        let mut out: Vec<Place> =
            places.iter().filter(|(print, _)| !has(**print)).map(|(_, place)| *place).collect();
        out.sort_unstable_by_key(|place| place.offset);
        out
    }

    /// Keeps a message; on disk when it returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn add(&self, thread: &str, title: Option<&str>, message: &str) -> Result<(), StoreError> {
        let Some(path) = &self.path else { return Ok(()) };
        let io = |e| StoreError::io(path, e);
        let Ok(line) = line::parse(message) else { return Ok(()) };
        let print = print(&line.role, &line.id);
        let mut places = self.places.lock();
        if places.contains_key(&print) {
            return Ok(());
        }
        let mut record = String::from("{\"thread\":");
        push_text(&mut record, thread);
        if let Some(title) = title {
            record.push_str(",\"title\":");
            push_text(&mut record, title);
        }
        record.push_str(",\"message\":");
        record.push_str(message);
        record.push_str("}\n");
        let folder = path.parent().unwrap_or(Path::new("/"));
        let new = !path.exists();
        if new {
            fs::make_dirs(folder, 0o700).map_err(io)?;
        }
        let mut file = fs::open_append(path, 0o600).map_err(io)?;
        let mut offset = file.metadata().map_err(io)?.len();
        if !ends_in_newline(&file, offset).map_err(io)? {
            // Torn by a crash.
            record.insert(0, '\n');
            offset += 1;
        }
        file.write_all(record.as_bytes()).and_then(|()| file.sync_data()).map_err(io)?;
        if new {
            fs::sync_dir(folder).map_err(io)?;
        }
        let len = record.trim_matches('\n').len() as u32;
        places.insert(print, Place { offset, len });
        drop(places);
        self.new.lock().push(Place { offset, len });
        Ok(())
    }

    /// The bytes of a record.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let path = self.path.as_ref().ok_or(StoreError::Moved)?;
        let io = |e| StoreError::io(path, e);
        let file = fs::open_regular(path).map_err(io)?;
        fs::read_part(&file, offset, len).map_err(io)
    }
}

/// Takes a line of the file apart; `None` if it is no record.
pub(super) fn record(line: &str) -> Option<Record<'_>> {
    let [thread, title, message] = pick(line, ["thread", "title", "message"])?;
    let message = object(message.as_ref())?;
    Some(Record {
        thread: text(thread.as_ref())?.into_owned(),
        title: text(title.as_ref()).map(std::borrow::Cow::into_owned),
        message,
        line: line::parse(message).ok()?,
    })
}

fn read_all(file: &File, places: &mut HashMap<u64, Place>) -> io::Result<()> {
    let end = file.metadata()?.len();
    read_lines(file, 0, end, |run| {
        let Run::Lines(run, offset) = run else { return };
        for piece in pieces(run, offset) {
            if let Some(r) = record(&piece.text) {
                let place = Place { offset: piece.offset, len: piece.len };
                places.entry(print(&r.line.role, &r.line.id)).or_insert(place);
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
        let kept = Kept::open(Some(&state)).unwrap();
        assert!(!kept.has(print("user", "m1")));
        kept.add("t\0w", Some("a \"title\""), LINE).unwrap();
        kept.add("t\0w", None, LINE).unwrap();
        // A torn record costs itself only.
        let path = state.join(FILE);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"thread\":\"t\",\"mess"].concat()).unwrap();
        let kept = Kept::open(Some(&state)).unwrap();
        kept.add("u", None, &LINE.replace("m1", "m2")).unwrap();
        for kept in [&kept, &Kept::open(Some(&state)).unwrap()] {
            let missing = kept.missing(|_| false);
            assert_eq!(missing.len(), 2);
            let bytes = kept.read(missing[0].offset, missing[0].len as usize).unwrap();
            let text = String::from_utf8(bytes).unwrap();
            let first = record(&text).unwrap();
            assert_eq!((first.thread.as_str(), first.message), ("t\0w", LINE));
            assert_eq!(first.title.as_deref(), Some("a \"title\""));
            let bytes = kept.read(missing[1].offset, missing[1].len as usize).unwrap();
            assert_eq!(record(std::str::from_utf8(&bytes).unwrap()).unwrap().line.id, "m2");
            assert_eq!(kept.missing(|p| p == print("user", "m2")).len(), 1);
        }
    }

    #[test]
    fn where_nothing_may_be_written_nothing_is() {
        let kept = Kept::open(None).unwrap();
        kept.add("t", None, LINE).unwrap();
        assert!(!kept.has(print("user", "m1")));
    }
}
