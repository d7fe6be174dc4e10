//! The state of a link that outlives its connections.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::failure::NatsError;
use super::line::{self, PublishedLine};
use super::log::{NatsLogFolder, NatsLogReader, NatsLogTail};
use super::state::{NatsState, SubjectPosition};
use crate::link::HealthBoard;
use crate::link::board::LogBacklog;
use crate::model::sanitize_line;
use crate::store::fs::{self, Stamp};
use crate::store::samp::alias::{self, SampLogName};

/// The number of refused lines that are reported one by one.
const TOLD: usize = 8;
/// The limit on the number of writers whose waiting lines are reported.
const WRITERS: usize = 1000;

/// The state of one writer.
#[derive(Debug, Default)]
pub struct WriterState {
    /// The end of the published log.
    pub place: SubjectPosition,
    /// The published ids, if positions do not tell which lines the local log lacks.
    pub published_ids: Option<HashSet<String>>,
    /// The ids in the local log.
    pub local_ids: Option<LogIdSet>,
    /// The stamp of the log when nothing was left to do.
    pub settled_stamp: Option<Stamp>,
    /// A log that was rewritten, and the time since which it is unchanged.
    pub rewritten_since: Option<(Option<Stamp>, Instant)>,
    /// Nothing is published before this moment.
    pub held_until: Option<Instant>,
    /// True if the server accepts lines of this writer from this machine.
    pub is_accepted: bool,
    /// The number of lines of a log that wait behind an offset.
    counted_lines: Option<(Stamp, u64, u64)>,
    /// True if the journal lacks the current position.
    pub is_dirty: bool,
}

impl WriterState {
    /// Moves past a line that is in the local log, or known not to belong there.
    pub fn advance_past(&mut self, line: &PublishedLine<'_>, seq: u64, replayed: bool) {
        if seq >= self.place.seq {
            (self.place.seq, self.place.end) = (seq, line.end_offset());
            self.is_dirty = true;
        } else if !replayed {
            return;
        }
        self.place.tail = Some(NatsLogTail::from_line(line));
        if let Some(published) = &mut self.published_ids {
            published.insert(line.id.clone());
        }
    }

    /// Records that the local log may lack published lines.
    pub fn note_missing_lines(&mut self) {
        self.place.lacks_lines = true;
        self.is_dirty = true;
    }

    /// Records that positions do not tell which lines the local log lacks.
    pub fn start_compare(&mut self, ino: u64, done: u64) {
        self.place.set_odd(Some((ino, done)));
        self.local_ids = None;
        self.is_dirty = true;
    }

    /// Returns the offset up to which the local log was compared with the published one.
    pub fn compared_upto(&self) -> u64 {
        self.place.compared_upto()
    }

    /// Reads the ids of the local log that are not known yet.
    pub fn refresh_ids(&mut self, writer: &str, file: Option<&File>) -> io::Result<&mut LogIdSet> {
        let stamp = file.map(Stamp::from_file).transpose()?.unwrap_or_default();
        if self.place.odd.is_none_or(|(ino, done)| ino != stamp.ino || done > stamp.size) {
            self.start_compare(stamp.ino, 0);
        }
        let mine = self.local_ids.get_or_insert_default();
        mine.read_new_ids(writer, file, &stamp)?;
        Ok(mine)
    }

    /// Moves past lines that are published or that stay on this machine. Returns true if no line is left.
    pub fn advance_compared(&mut self, writer: &str, file: Option<&File>) -> io::Result<bool> {
        let Some((ino, done)) = self.place.odd else { return Ok(true) };
        if let (Some(published), Some(file)) = (&self.published_ids, file) {
            let mut lines = NatsLogReader::read_from(file.try_clone()?, done)?;
            while let Some((line, end)) = lines.next()? {
                let id = line::validate_line(writer, line);
                if id.as_ref().is_ok_and(|id| !published.contains(id)) {
                    break;
                }
                self.place.pass_local_line(ino, (line, end), id.is_ok());
            }
        }
        self.is_dirty = true;
        Ok(self.compared_upto() >= self.local_ids.as_ref().map_or(0, |mine| mine.read_upto))
    }
}

/// The ids in a log.
#[derive(Debug, Default)]
pub struct LogIdSet {
    ino: u64,
    read_upto: u64,
    all: HashSet<String>,
}

impl LogIdSet {
    /// Reads the new lines of the log.
    pub fn read_new_ids(
        &mut self,
        writer: &str,
        file: Option<&File>,
        stamp: &Stamp,
    ) -> io::Result<()> {
        if self.ino != stamp.ino || self.read_upto > stamp.size {
            *self = Self { ino: stamp.ino, ..Self::default() };
        }
        let Some(file) = file.filter(|_| self.read_upto < stamp.size) else { return Ok(()) };
        let mut lines = NatsLogReader::read_from(file.try_clone()?, self.read_upto)?;
        while let Some((line, end)) = lines.next()? {
            self.all.extend(line::validate_line(writer, line));
            self.read_upto = end;
        }
        Ok(())
    }

    /// Returns true if the log has this id.
    pub fn contains(&self, id: &str) -> bool {
        self.all.contains(id)
    }
}

/// The subject of a request that may kill the connection. A message that the library cannot read kills it each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConnectionRisk {
    /// No risk.
    #[default]
    None,
    /// A request for the message at the cursor.
    Cursor,
    /// A request for the subjects of these writers.
    Writers(Vec<String>),
    /// A request for the messages behind this one.
    Feed(u64),
}

/// The state of a link that synchronizes logs.
#[derive(Debug)]
pub struct LogSync {
    /// The folder of the logs.
    pub logs: NatsLogFolder,
    /// The saved state.
    pub state: NatsState,
    /// The state of each writer.
    pub writers: HashMap<String, WriterState>,
    /// The conflict copies beside the logs, which hold lines that another machine wrote under the same name.
    pub conflict_copies: HashMap<String, LogIdSet>,
    /// A code of seven characters for this machine.
    pub host: String,
    /// Writers whose log may have lines to publish.
    pub pending_writers: BTreeSet<String>,
    /// The request that may kill the connection.
    pub risk: ConnectionRisk,
    /// The request that killed the connection last, and how many times in a row.
    strikes: (ConnectionRisk, u32),
    /// True if the writers are requested one by one.
    pub asks_singly: bool,
    /// Writers whose subject may hold a broken message.
    pub broken_writers: HashSet<String>,
    /// True if the next messages are read one by one.
    pub reads_carefully: bool,
    /// Files with appended lines that may not be on disk.
    pub unsynced_files: BTreeSet<String>,
    board: Arc<HealthBoard>,
    notes: LogSyncNotes,
}

/// Further notes for people.
#[derive(Debug, Default)]
struct LogSyncNotes {
    /// The sequence number of the last message whose refusal was counted.
    last_counted: u64,
    refused: u64,
    recent: VecDeque<String>,
    /// True if the notes changed since the last report.
    is_dirty: bool,
    lasting: BTreeMap<String, String>,
}

impl LogSync {
    /// Returns the state at the start.
    pub fn new(
        folder: &Path,
        (state, places): (NatsState, HashMap<String, SubjectPosition>),
        board: Arc<HealthBoard>,
    ) -> io::Result<Self> {
        let writer = |place| WriterState { place, ..WriterState::default() };
        let writers = places.into_iter().map(|(name, place)| (name, writer(place))).collect();
        Ok(Self {
            logs: NatsLogFolder::open(folder)?,
            state,
            writers,
            conflict_copies: HashMap::new(),
            host: derive_host_code(),
            pending_writers: BTreeSet::new(),
            risk: ConnectionRisk::None,
            strikes: (ConnectionRisk::None, 0),
            asks_singly: false,
            broken_writers: HashSet::new(),
            reads_carefully: false,
            unsynced_files: BTreeSet::new(),
            board,
            notes: LogSyncNotes::default(),
        })
    }

    /// Returns the state of a writer, and adds an empty one if there is none.
    pub fn writer_mut(&mut self, name: &str) -> &mut WriterState {
        self.writers.entry(name.to_owned()).or_default()
    }

    /// Syncs the logs, and then saves the state.
    ///
    /// # Errors
    /// Returns the system's error; then no state is saved.
    pub fn flush(&mut self) -> Result<(), NatsError> {
        while let Some(name) = self.unsynced_files.first() {
            match self.logs.sync_log(name) {
                // The file was removed or replaced meanwhile, so nothing is left to sync.
                Err(error) if fs::is_absent(&error) => {}
                synced => synced.map_err(NatsError::disk(name))?,
            }
            self.unsynced_files.pop_first();
        }
        let changed: Vec<&str> = self
            .writers
            .iter()
            .filter(|(_, w)| w.is_dirty)
            .map(|(name, _)| name.as_str())
            .collect();
        let place = |name: &&'_ str| self.writers.get(*name).map(|w| &w.place);
        let changed_places = changed.iter().filter_map(|name| Some((*name, place(name)?)));
        let all = self.writers.iter().map(|(name, w)| (name.as_str(), &w.place));
        self.state
            .save_changes(changed_places, all)
            .map_err(NatsError::disk("the state of the link"))?;
        self.writers.values_mut().for_each(|w| w.is_dirty = false);
        self.report_notes();
        Ok(())
    }

    /// Queues every log for examination.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn queue_all_logs(&mut self) -> Result<(), NatsError> {
        let names = self.logs.list_writers().map_err(NatsError::disk("the folder of the logs"))?;
        self.pending_writers.extend(names);
        let published = self.writers.iter().filter(|(_, w)| w.place.end > 0);
        self.pending_writers.extend(published.map(|(name, _)| name.clone()));
        Ok(())
    }

    /// Queues the logs among these files.
    pub fn queue_changed_logs(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let name =
                path.file_name().and_then(|name| name.to_str()).map(alias::classify_log_name);
            if let Some(SampLogName::Main(writer)) = name {
                self.pending_writers.insert(writer.to_owned());
            }
        }
    }

    /// Returns the number of lines that wait to be published, and their writers.
    pub fn measure_backlog(&mut self) -> (u64, BTreeMap<String, LogBacklog>) {
        let (mut sum, mut behind) = (0, BTreeMap::new());
        for name in self.logs.list_writers().unwrap_or_default() {
            let count = self.count_waiting_lines(&name).unwrap_or_default();
            sum += count;
            if count > 0 && behind.len() < WRITERS {
                let from = self.writers.get(&name).map_or(0, WriterState::compared_upto);
                let why = self.notes.lasting.get(&format!("publish {name}")).cloned();
                behind.insert(name, LogBacklog { from, why });
            }
        }
        (sum, behind)
    }

    fn count_waiting_lines(&mut self, name: &str) -> io::Result<u64> {
        let Some(stamp) = self.logs.read_stamp(name)? else { return Ok(0) };
        let from = self.writers.get(name).map_or(0, WriterState::compared_upto);
        if stamp.size <= from {
            return Ok(0);
        }
        if let Some((was, start, count)) = self.writer_mut(name).counted_lines
            && (was, start) == (stamp, from)
        {
            return Ok(count);
        }
        let Some(file) = self.logs.open_log(name)? else { return Ok(0) };
        let (mut lines, mut count) = (NatsLogReader::read_from(file, from)?, 0);
        while lines.next()?.is_some() {
            count += 1;
        }
        self.writer_mut(name).counted_lines = Some((stamp, from, count));
        Ok(count)
    }

    /// Records that a line is refused for good.
    pub fn note_refused_message(&mut self, seq: u64, subject: &str, why: &str) {
        if seq <= self.notes.last_counted {
            return;
        }
        self.notes.last_counted = seq;
        self.push_refusal_note(format!(
            "message {seq} of {} is refused: {}",
            sanitize_line(subject),
            sanitize_line(why)
        ));
    }

    /// Records that a line stays on this machine.
    pub fn note_local_line(&mut self, writer: &str, end: u64, why: &str) {
        self.push_refusal_note(format!(
            "the line of {} that ends at byte {end} stays on this machine: {}",
            alias::log_name(writer),
            sanitize_line(why)
        ));
    }

    fn push_refusal_note(&mut self, text: String) {
        self.notes.refused += 1;
        if self.notes.recent.len() == TOLD {
            self.notes.recent.pop_front();
        }
        self.notes.recent.push_back(text);
        self.notes.is_dirty = true;
    }

    /// Shows people a note until it is removed.
    pub fn set_note(&mut self, about: &str, text: Option<String>) {
        let same = self.notes.lasting.get(about) == text.as_ref();
        match text {
            _ if same => return,
            Some(text) => self.notes.lasting.insert(about.to_owned(), text),
            None => self.notes.lasting.remove(about),
        };
        self.notes.is_dirty = true;
    }

    /// Reports new notes. They are collected first, so a flood of refused lines does not keep the disk busy.
    pub fn report_notes(&mut self) {
        if !std::mem::take(&mut self.notes.is_dirty) {
            return;
        }
        let lasting = self.notes.lasting.values().cloned();
        let notes: Vec<String> = lasting.chain(self.notes.recent.iter().cloned()).collect();
        self.board.update_health(|health| {
            health.refused = self.notes.refused;
            health.notes = notes;
        });
    }

    /// Resets the counts for another stream: its messages have other numbers, and its refusals are unknown.
    pub fn reset_refusal_count(&mut self) {
        self.notes.last_counted = 0;
        self.remove_publish_notes();
    }

    /// Removes the notes about what the server refuses, because nothing is known of it now.
    fn remove_publish_notes(&mut self) {
        let before = self.notes.lasting.len();
        self.notes.lasting.retain(|about, _| !about.starts_with("publish "));
        self.notes.is_dirty |= self.notes.lasting.len() != before;
    }

    /// Records that the connection ended. After three times in a row at the same request, that request is made more
    /// carefully, so that no message can end the connection. Returns true if the next try will differ.
    pub fn note_disconnect(&mut self) -> bool {
        self.remove_publish_notes();
        self.report_notes();
        let risk = std::mem::take(&mut self.risk);
        self.strikes = match &self.strikes {
            (same, count) if *same == risk => (risk, count + 1),
            _ => (risk, 1),
        };
        if self.strikes.1 < 3 || self.strikes.0 == ConnectionRisk::None {
            return false;
        }
        match std::mem::take(&mut self.strikes).0 {
            ConnectionRisk::Writers(names) if names.len() > 1 => self.asks_singly = true,
            ConnectionRisk::Writers(names) => self.broken_writers.extend(names),
            ConnectionRisk::Feed(_) => self.reads_carefully = true,
            ConnectionRisk::Cursor => self.state.cursor.is_risky = true,
            ConnectionRisk::None => {}
        }
        true
    }
}

/// Returns true if an error says that the name of a log is taken by something else or belongs to another user. Then
/// only this log's lines cannot be written.
pub fn is_log_blocked(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    let kind = error.kind();
    kind != NotFound && fs::is_absent(error) || matches!(kind, IsADirectory | PermissionDenied)
}

/// Derives seven capital letters and digits from the name of this machine.
fn derive_host_code() -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let uname = rustix::system::uname();
    let hash = Sha256::digest(uname.nodename().to_bytes());
    let digit = |byte: &u8| DIGITS.get(usize::from(byte % 32)).map(|digit| char::from(*digit));
    hash.iter().filter_map(digit).take(7).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> LogSync {
        let folder = dir.join("samp");
        std::fs::create_dir_all(&folder).unwrap();
        let kept = NatsState::open(&dir.join("state")).unwrap().unwrap();
        LogSync::new(&folder, kept, Arc::new(HealthBoard::new("nats", dir, ""))).unwrap()
    }

    /// A log that is removed or replaced before it is synced does not stop the link.
    #[test]
    fn a_log_that_vanishes_before_it_is_synced_stops_nothing() {
        for is_replaced in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut log_sync = open(dir.path());
            for name in ["log-a.jsonl", "log-b.jsonl"] {
                log_sync.logs.append_text(name, b"x\n", true).unwrap();
                log_sync.unsynced_files.insert(name.to_owned());
            }
            let log = dir.path().join("samp/log-a.jsonl");
            std::fs::remove_file(&log).unwrap();
            if is_replaced {
                std::fs::create_dir(&log).unwrap();
            }
            log_sync.flush().unwrap();
            assert!(log_sync.unsynced_files.is_empty(), "{is_replaced}");
        }
    }
}
