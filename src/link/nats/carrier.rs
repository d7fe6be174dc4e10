//! What a link knows, from one connection to the next.

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

/// So many refused lines are told one by one.
const TOLD: usize = 8;
/// Of more writers it is not told which lines wait.
const WRITERS: usize = 1000;

/// What is known of a writer.
#[derive(Debug, Default)]
pub struct WriterState {
    /// Where the published log ends.
    pub place: SubjectPosition,
    /// Its last line.
    pub tail: Option<NatsLogTail>,
    /// The ids in it, where places do not tell what the log here lacks.
    pub published_ids: Option<HashSet<String>>,
    /// The ids in the log here.
    pub local_ids: Option<LogIdSet>,
    /// The log here may lack lines, which are put back once what is new in it was published.
    pub lacks_lines: bool,
    /// The log as it was when nothing was left to do.
    pub settled_stamp: Option<Stamp>,
    /// A log that was rewritten, and since when it has stayed so.
    pub rewritten_since: Option<(Option<Stamp>, Instant)>,
    /// Nothing is published before.
    pub held_until: Option<Instant>,
    /// The server takes lines of this writer from this machine.
    pub is_accepted: bool,
    /// How many lines of a log wait behind an offset.
    counted_lines: Option<(Stamp, u64, u64)>,
    /// Its place is not in the journal.
    pub is_dirty: bool,
}

impl WriterState {
    /// A line has passed: it is in the log here, or known not to go there.
    pub fn advance_past(&mut self, line: &PublishedLine<'_>, seq: u64, replayed: bool) {
        if seq >= self.place.seq {
            (self.place.seq, self.place.end) = (seq, line.end_offset());
            self.is_dirty = true;
        } else if !replayed {
            return;
        }
        self.tail = Some(NatsLogTail::from_line(line));
        if let Some(published) = &mut self.published_ids {
            published.insert(line.id.clone());
        }
    }

    /// Notes that places do not tell what the log here lacks.
    pub fn start_compare(&mut self, ino: u64, done: u64) {
        self.place.odd = Some((ino, done));
        self.local_ids = None;
        self.is_dirty = true;
    }

    /// How far the log here was compared with what was published.
    pub fn compared_upto(&self) -> u64 {
        self.place.odd.map_or(self.place.end, |(_, done)| done)
    }

    /// Reads the ids of the log here as far as they are not known.
    pub fn refresh_ids(&mut self, writer: &str, file: Option<&File>) -> io::Result<&mut LogIdSet> {
        let stamp = file.map(Stamp::from_file).transpose()?.unwrap_or_default();
        if self.place.odd.is_none_or(|(ino, done)| ino != stamp.ino || done > stamp.size) {
            self.start_compare(stamp.ino, 0);
        }
        let mine = self.local_ids.get_or_insert_default();
        mine.read_new_ids(writer, file, &stamp)?;
        Ok(mine)
    }

    /// Goes on over lines that are published or stay here. Whether that is all of them.
    pub fn advance_compared(&mut self, writer: &str, file: Option<&File>) -> io::Result<bool> {
        let Some((ino, mut done)) = self.place.odd else { return Ok(true) };
        if let (Some(published), Some(file)) = (&self.published_ids, file) {
            let mut lines = NatsLogReader::read_from(file.try_clone()?, done)?;
            while let Some((line, end)) = lines.next()? {
                match line::validate_line(writer, line) {
                    Ok(id) if !published.contains(&id) => break,
                    _ => done = end,
                }
            }
        }
        self.place.odd = Some((ino, done));
        self.is_dirty = true;
        Ok(done >= self.local_ids.as_ref().map_or(0, |mine| mine.read_upto))
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
    /// Reads what is new.
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

    /// Whether one is there.
    pub fn contains(&self, id: &str) -> bool {
        self.all.contains(id)
    }
}

/// What a request is about that may kill the connection: a message that the library cannot read does, each
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConnectionRisk {
    /// Nothing.
    #[default]
    None,
    /// The subjects of these writers.
    Writers(Vec<String>),
    /// Whatever comes behind this message.
    Feed(u64),
}

/// What a link knows.
#[derive(Debug)]
pub struct LogSync {
    /// The logs.
    pub logs: NatsLogFolder,
    /// What is kept.
    pub state: NatsState,
    /// The writers.
    pub writers: HashMap<String, WriterState>,
    /// The copies of logs beside them, for what another machine wrote in the same name.
    pub conflict_copies: HashMap<String, LogIdSet>,
    /// Seven characters for this machine.
    pub host: String,
    /// Writers whose log may be to publish.
    pub pending_writers: BTreeSet<String>,
    /// What the connection may die of.
    pub risk: ConnectionRisk,
    /// How often it did, in a row.
    strikes: (ConnectionRisk, u32),
    /// The writers are asked for one by one.
    pub asks_singly: bool,
    /// Writers whose subject may hold a broken message.
    pub broken_writers: HashSet<String>,
    /// The next messages are read one by one.
    pub reads_carefully: bool,
    /// Files that were appended to and may not be on disk.
    pub unsynced_files: BTreeSet<String>,
    board: Arc<HealthBoard>,
    notes: LogSyncNotes,
}

/// What people are told besides.
#[derive(Debug, Default)]
struct LogSyncNotes {
    /// The last message of which a refusal was counted.
    last_counted: u64,
    refused: u64,
    recent: VecDeque<String>,
    /// People were not told yet.
    is_dirty: bool,
    lasting: BTreeMap<String, String>,
}

impl LogSync {
    /// What is known at the start.
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

    /// What is known of a writer.
    pub fn writer_mut(&mut self, name: &str) -> &mut WriterState {
        self.writers.entry(name.to_owned()).or_default()
    }

    /// Brings the logs to disk, and then what is known of them.
    ///
    /// # Errors
    /// As the system gave it; then nothing is noted.
    pub fn flush(&mut self) -> Result<(), NatsError> {
        while let Some(name) = self.unsynced_files.first() {
            self.logs.sync_log(name).map_err(NatsError::disk(name))?;
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

    /// Has every log looked at.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn queue_all_logs(&mut self) -> Result<(), NatsError> {
        let names = self.logs.list_writers().map_err(NatsError::disk("the folder of the logs"))?;
        self.pending_writers.extend(names);
        let published = self.writers.iter().filter(|(_, w)| w.place.end > 0);
        self.pending_writers.extend(published.map(|(name, _)| name.clone()));
        Ok(())
    }

    /// Has the logs among these files looked at.
    pub fn queue_changed_logs(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let name =
                path.file_name().and_then(|name| name.to_str()).map(alias::classify_log_name);
            if let Some(SampLogName::Main(writer)) = name {
                self.pending_writers.insert(writer.to_owned());
            }
        }
    }

    /// How many lines wait to be published, and whose.
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

    /// A line is refused for good.
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

    /// A line stays on this machine.
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

    /// Tells people something until it is no longer so.
    pub fn set_note(&mut self, about: &str, text: Option<String>) {
        let same = self.notes.lasting.get(about) == text.as_ref();
        match text {
            _ if same => return,
            Some(text) => self.notes.lasting.insert(about.to_owned(), text),
            None => self.notes.lasting.remove(about),
        };
        self.notes.is_dirty = true;
    }

    /// Tells people what is new. Not at once: who floods the stream with what is refused makes the disk no
    /// busier.
    pub fn report_notes(&mut self) {
        if !std::mem::take(&mut self.notes.is_dirty) {
            return;
        }
        let lasting = self.notes.lasting.values().cloned();
        let notes: Vec<String> = lasting.chain(self.notes.recent.iter().cloned()).collect();
        self.board.update_health(|standing| {
            standing.refused = self.notes.refused;
            standing.notes = notes;
        });
    }

    /// The stream is another one: its messages have other numbers, and nobody knows what it does not take.
    pub fn reset_refusal_count(&mut self) {
        self.notes.last_counted = 0;
        let before = self.notes.lasting.len();
        self.notes.lasting.retain(|about, _| !about.starts_with("publish "));
        self.notes.is_dirty |= self.notes.lasting.len() != before;
    }

    /// The connection ended. Three times in a row at the same place, and what is there is read in a way
    /// that nothing can break. Whether the next try will differ.
    pub fn note_disconnect(&mut self) -> bool {
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
            ConnectionRisk::None => {}
        }
        true
    }
}

/// Whether an error says that something else has the name of a log, or that it is another's: the line cannot
/// be put there, and others can.
pub fn is_log_blocked(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    let kind = error.kind();
    kind != NotFound && fs::is_absent(error) || matches!(kind, IsADirectory | PermissionDenied)
}

/// Seven capital letters and digits for this machine.
fn derive_host_code() -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let uname = rustix::system::uname();
    let hash = Sha256::digest(uname.nodename().to_bytes());
    let digit = |byte: &u8| DIGITS.get(usize::from(byte % 32)).map(|digit| char::from(*digit));
    hash.iter().filter_map(digit).take(7).collect()
}
