//! What a link has promised and what it has got, on disk.
//!
//! One file a link, of JSON lines that are only ever added; made anew by rename when most of it is over.
//! A line is on disk before what it announces happens: the intent before the first byte leaves, the
//! outcome before anything else is done. What a torn last line said never happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff;
use crate::store::{fs, place};

/// The file in the link's folder.
pub(super) const FILE: &str = "journal";

/// No journal is larger: it is made anew long before.
const MAX_FILE: u64 = 1 << 30;

/// What is over is remembered for this long, in milliseconds.
const REMEMBERED: i64 = 90 * 24 * 3600 * 1000;

/// A journal of fewer lines is not worth making anew.
const FEW_LINES: usize = 1000;

/// Where a carrier notes how far a message has come that goes in several steps; removed with the message's bytes.
pub fn note_beside(wire: &Path) -> PathBuf {
    wire.with_extension("note")
}

/// A message that is to go to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The message's id in its store.
    pub message: String,
    /// The recipient's address.
    pub to: String,
    /// When it was handed over, in milliseconds since the epoch.
    pub since: i64,
    /// How often it was tried.
    pub tries: u32,
    /// Where it stands.
    pub stage: Stage,
    /// The id that the engine gave it.
    pub given: Option<String>,
}

/// Where a message stands on its way to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits, and may go from this moment on; why it waits, if it was tried.
    Waits {
        /// In milliseconds since the epoch.
        until: i64,
        /// What the engine or the system said last.
        why: Option<String>,
    },
    /// A carrier has it, or had it when it died: the engine may have it.
    Trying,
    /// The engine has it.
    Taken,
    /// It will never be taken, for this reason.
    Refused(String),
}

/// One line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
enum Line {
    /// A message was handed over; its bytes are in a file of this number.
    Spooled { no: u64, message: String, to: String, at: i64 },
    /// A carrier is about to get it.
    Trying { no: u64, tries: u32 },
    /// It goes no sooner than that.
    Later { no: u64, until: i64, why: String },
    /// The engine has it.
    Taken {
        no: u64,
        at: i64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given: Option<String>,
    },
    /// It is refused for good.
    Refused { no: u64, at: i64, why: String },
    /// A message that the link brought is in the store.
    Seen { id: String, at: i64 },
    /// A fetch was cut off that may have lost mail.
    Cut { at: i64 },
}

/// The journal of one link.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// `None` for whoever only looks.
    file: Option<File>,
    lines: usize,
    next: u64,
    entries: BTreeMap<u64, Entry>,
    /// When those came to their end that have.
    ended: HashMap<u64, i64>,
    by_key: HashMap<(String, String), u64>,
    /// Those that may go, the oldest first; and those that wait, by the moment from which on they may.
    ready: BTreeSet<u64>,
    waits: BTreeSet<(i64, u64)>,
    refused: usize,
    seen: HashMap<String, i64>,
    cuts: Vec<i64>,
}

impl Journal {
    /// Opens the journal in a link's folder, which is made if it is missing.
    ///
    /// # Errors
    /// As the system gave it: without its journal a link would send twice.
    pub fn open(folder: &Path, now: i64) -> io::Result<Self> {
        fs::make_dirs(folder, 0o700)?;
        let (mut journal, is_torn) = Self::read(folder, now)?;
        let mut file = fs::open_append(&folder.join(FILE), 0o600)?;
        if is_torn {
            file.write_all(b"\n")?;
        }
        journal.file = Some(file);
        if journal.lines > FEW_LINES + 4 * (journal.entries.len() + journal.seen.len()) {
            journal.make_anew()?;
        }
        fs::sync_dir(folder)?;
        Ok(journal)
    }

    /// The journal in a link's folder as it is now, for whoever only looks.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn look(folder: &Path, now: i64) -> io::Result<Self> {
        Self::read(folder, now).map(|(journal, _)| journal)
    }

    /// What is on disk, and whether its last line was torn off.
    fn read(folder: &Path, now: i64) -> io::Result<(Self, bool)> {
        let bytes = fs::or_nothing(fs::read_small(&folder.join(FILE), MAX_FILE))?;
        let mut journal = Self {
            folder: folder.to_owned(),
            file: None,
            lines: 0,
            next: 0,
            entries: BTreeMap::new(),
            ended: HashMap::new(),
            by_key: HashMap::new(),
            ready: BTreeSet::new(),
            waits: BTreeSet::new(),
            refused: 0,
            seen: HashMap::new(),
            cuts: Vec::new(),
        };
        for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            journal.lines += 1;
            // What was torn off was never acted upon.
            if let Ok(line) = serde_json::from_slice(line) {
                journal.apply(line);
            }
        }
        journal.forget_old(now);
        Ok((journal, bytes.last().is_some_and(|b| *b != b'\n')))
    }

    /// The file with the bytes of an entry.
    pub fn wire(&self, no: u64) -> PathBuf {
        self.folder.join("out").join(no.to_string())
    }

    /// Takes a message for a recipient: its bytes, then the line. On disk when it returns. Again changes
    /// nothing.
    ///
    /// # Errors
    /// As the system gave it; then it was not taken.
    pub fn spool(&mut self, message: &str, to: &str, wire: &[u8], now: i64) -> io::Result<()> {
        if self.find(message, to).is_some() {
            return Ok(());
        }
        let (no, path) = (self.next, self.wire(self.next));
        if let Some(folder) = path.parent() {
            fs::make_dirs(folder, 0o700)?;
        }
        place::write_atomic(&path, wire, 0o600)?;
        let (message, to) = (message.to_owned(), to.to_owned());
        self.add(Line::Spooled { no, message, to, at: now })
    }

    /// Takes a message for a recipient to whom it cannot go: only the refusal is kept.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn refuse_at_once(
        &mut self,
        message: &str,
        to: &str,
        why: &str,
        now: i64,
    ) -> io::Result<()> {
        if self.find(message, to).is_some() {
            return Ok(());
        }
        let (no, message, to) = (self.next, message.to_owned(), to.to_owned());
        self.write(vec![
            Line::Spooled { no, message, to, at: now },
            Line::Refused { no, at: now, why: why.to_owned() },
        ])
    }

    /// A carrier is about to get it. On disk when this returns.
    ///
    /// # Errors
    /// As the system gave it; then no carrier may get it.
    pub fn trying(&mut self, no: u64) -> io::Result<()> {
        let tries = self.entries.get(&no).map_or(0, |entry| entry.tries).saturating_add(1);
        self.add(Line::Trying { no, tries })
    }

    /// It goes no sooner than that.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn later(&mut self, no: u64, why: &str, until: i64) -> io::Result<()> {
        self.add(Line::Later { no, until, why: why.to_owned() })
    }

    /// The engine has it, perhaps under an id of its own. On disk when this returns; then its bytes are
    /// removed.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn taken(&mut self, no: u64, given: Option<&str>, now: i64) -> io::Result<()> {
        self.add(Line::Taken { no, at: now, given: given.map(str::to_owned) })?;
        self.remove_wire(no);
        Ok(())
    }

    /// It is refused for good. On disk when this returns; then its bytes are removed.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn refused(&mut self, no: u64, why: &str, now: i64) -> io::Result<()> {
        self.add(Line::Refused { no, at: now, why: why.to_owned() })?;
        self.remove_wire(no);
        Ok(())
    }

    /// Messages that the link brought are in the store, or are still listed by the engine. On disk when
    /// this returns.
    ///
    /// # Errors
    /// As the system gave it; then they come again, and are known by their names.
    pub fn seen(&mut self, ids: &[String], now: i64) -> io::Result<()> {
        // What is still listed must not be forgotten.
        let is_old = |at: &i64| now.saturating_sub(*at) > REMEMBERED / 2;
        let new = ids.iter().filter(|id| self.seen.get(*id).is_none_or(is_old));
        let lines: Vec<Line> = new.map(|id| Line::Seen { id: id.clone(), at: now }).collect();
        if lines.is_empty() { Ok(()) } else { self.write(lines) }
    }

    /// A fetch was cut off that may have lost mail. On disk when this returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn cut(&mut self, now: i64) -> io::Result<()> {
        self.add(Line::Cut { at: now })
    }

    /// When fetches were cut off, in milliseconds since the epoch, the oldest first.
    pub fn cuts(&self) -> &[i64] {
        &self.cuts
    }

    /// Whether the link brought this before.
    pub fn is_seen(&self, id: &str) -> bool {
        self.seen.contains_key(id)
    }

    /// All that it brought before and remembers.
    pub fn all_seen(&self) -> impl Iterator<Item = &str> {
        self.seen.keys().map(String::as_str)
    }

    /// What became of a message for a recipient.
    pub fn find(&self, message: &str, to: &str) -> Option<&Entry> {
        let no = self.by_key.get(&(message.to_owned(), to.to_owned()))?;
        self.entries.get(no)
    }

    /// An entry by its number.
    pub fn entry(&self, no: u64) -> Option<&Entry> {
        self.entries.get(&no)
    }

    /// All entries that are not over, the oldest first.
    pub fn open_entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        let open = |stage: &Stage| matches!(stage, Stage::Waits { .. } | Stage::Trying);
        self.entries.iter().filter(move |(_, e)| open(&e.stage)).map(|(no, e)| (*no, e))
    }

    /// How many entries are not over.
    pub fn open_count(&self) -> usize {
        self.ready.len() + self.waits.len()
    }

    /// How many entries were refused.
    pub fn refused_count(&self) -> usize {
        self.refused
    }

    /// The oldest entry that may go now.
    pub fn due(&mut self, now: i64) -> Option<u64> {
        while let Some((until, no)) = self.waits.first().copied().filter(|(until, _)| *until <= now)
        {
            self.waits.remove(&(until, no));
            self.ready.insert(no);
        }
        self.ready.first().copied()
    }

    /// When an entry may go next; `None` if none is open.
    pub fn next_due(&self) -> Option<i64> {
        let ready = self.ready.first().map(|_| 0);
        ready.or_else(|| self.waits.first().map(|(until, _)| *until))
    }

    fn add(&mut self, line: Line) -> io::Result<()> {
        self.write(vec![line])
    }

    fn write(&mut self, lines: Vec<Line>) -> io::Result<()> {
        let text = text(&lines)?;
        let Some(file) = &mut self.file else {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        };
        let before = file.metadata()?.len();
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        if let Err(e) = written {
            // What is not known to be on disk did not happen.
            let _ = file.set_len(before);
            return Err(e);
        }
        self.lines += lines.len();
        for line in lines {
            self.apply(line);
        }
        Ok(())
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Spooled { no, message, to, at } => {
                self.next = self.next.max(no + 1);
                self.by_key.insert((message.clone(), to.clone()), no);
                let stage = Stage::Waits { until: at, why: None };
                let entry = Entry { message, to, since: at, tries: 0, stage, given: None };
                let old = self.entries.insert(no, entry);
                self.count(no, old.map(|old| old.stage).as_ref());
            }
            Line::Trying { no, tries } => self.set(no, |entry| {
                entry.tries = tries;
                entry.stage = Stage::Trying;
            }),
            Line::Later { no, until, why } => {
                self.set(no, |entry| entry.stage = Stage::Waits { until, why: Some(why) });
            }
            Line::Taken { no, at, given } => {
                self.set(no, |entry| {
                    entry.stage = Stage::Taken;
                    entry.given = given;
                });
                self.ended.insert(no, at);
            }
            Line::Refused { no, at, why } => {
                self.set(no, |entry| entry.stage = Stage::Refused(why));
                self.ended.insert(no, at);
            }
            Line::Seen { id, at } => {
                self.seen.insert(id, at);
            }
            Line::Cut { at } => self.cuts.push(at),
        }
    }

    fn set(&mut self, no: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(&no) {
            let old = entry.stage.clone();
            change(entry);
            self.count(no, Some(&old));
        }
    }

    /// Puts an entry, whose stage was another one, among those of its stage, so that nobody must look at all of them.
    fn count(&mut self, no: u64, old: Option<&Stage>) {
        match old {
            Some(Stage::Waits { until, .. }) => {
                self.waits.remove(&(*until, no));
                self.ready.remove(&no);
            }
            Some(Stage::Trying) => drop(self.ready.remove(&no)),
            Some(Stage::Refused(_)) => self.refused -= 1,
            Some(Stage::Taken) | None => {}
        }
        match self.entries.get(&no).map(|entry| &entry.stage) {
            Some(Stage::Waits { until, .. }) => drop(self.waits.insert((*until, no))),
            // Whoever had it is no more, or it would not be asked for.
            Some(Stage::Trying) => drop(self.ready.insert(no)),
            Some(Stage::Refused(_)) => self.refused += 1,
            Some(Stage::Taken) | None => {}
        }
    }

    fn remove_wire(&self, no: u64) {
        let wire = self.wire(no);
        if let Err(error) = std::fs::remove_file(&wire) {
            tracing::debug!(%error, no, "the file of a finished message could not be removed");
        }
        // Few have one.
        let _ = std::fs::remove_file(note_beside(&wire));
    }

    fn forget_old(&mut self, now: i64) {
        let is_old = |at: i64| now.saturating_sub(at) > REMEMBERED;
        // Counted from when the link last heard something, not from now: who was off for long has
        // forgotten nothing.
        let last = self.seen.values().copied().max().unwrap_or(now).min(now);
        self.seen.retain(|_, at| last.saturating_sub(*at) <= REMEMBERED);
        self.cuts.retain(|at| !is_old(*at));
        let old: Vec<u64> =
            self.ended.iter().filter(|(_, at)| is_old(**at)).map(|(no, _)| *no).collect();
        for no in old {
            self.ended.remove(&no);
            if let Some(entry) = self.entries.remove(&no) {
                self.count(no, Some(&entry.stage));
                self.by_key.remove(&(entry.message, entry.to));
            }
        }
    }

    /// Writes what still counts to a new file.
    fn make_anew(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        for (no, entry) in &self.entries {
            let (no, at) = (*no, self.ended.get(no).copied().unwrap_or(entry.since));
            let (message, to) = (entry.message.clone(), entry.to.clone());
            lines.push(Line::Spooled { no, message, to, at: entry.since });
            if entry.tries > 0 {
                lines.push(Line::Trying { no, tries: entry.tries });
            }
            match &entry.stage {
                Stage::Waits { why: None, .. } | Stage::Trying => {}
                Stage::Waits { until, why: Some(why) } => {
                    lines.push(Line::Later { no, until: *until, why: why.clone() });
                }
                Stage::Taken => {
                    lines.push(Line::Taken { no, at, given: entry.given.clone() });
                }
                Stage::Refused(why) => lines.push(Line::Refused { no, at, why: why.clone() }),
            }
        }
        let seen = self.seen.iter().map(|(id, at)| Line::Seen { id: id.clone(), at: *at });
        lines.extend(seen);
        lines.extend(self.cuts.iter().map(|at| Line::Cut { at: *at }));
        let text = text(&lines)?;
        let path = self.folder.join(FILE);
        place::write_atomic(&path, &text, 0o600)?;
        self.file = Some(fs::open_append(&path, 0o600)?);
        self.lines = lines.len();
        Ok(())
    }
}

impl Entry {
    /// When it is tried again after one more failure; `None` if it was tried for long enough.
    pub fn next_try(&self, now: i64, asked: Option<Duration>) -> Option<i64> {
        let for_long = now.saturating_sub(self.since) > backoff::GIVE_UP.as_millis() as i64;
        let wait = asked.unwrap_or_default().max(backoff::wait(self.tries));
        (!for_long).then(|| now.saturating_add(wait.as_millis() as i64))
    }
}

/// Lines as they stand in the file.
fn text(lines: &[Line]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
