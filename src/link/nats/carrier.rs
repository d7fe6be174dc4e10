//! What a link knows, from one connection to the next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::failure::Failure;
use super::line::{self, Line};
use super::log::{Lines, Logs, Tail};
use super::state::{Place, State};
use crate::link::Board;
use crate::link::board::Behind;
use crate::model::one_line;
use crate::store::fs::{self, Stamp};
use crate::store::samp::alias::{self, LogName};

/// So many refused lines are told one by one.
const TOLD: usize = 8;
/// Of more writers it is not told which lines wait.
const WRITERS: usize = 1000;

/// What is known of a writer.
#[derive(Debug, Default)]
pub struct Writer {
    /// Where the published log ends.
    pub place: Place,
    /// Its last line.
    pub tail: Option<Tail>,
    /// The ids in it, where places do not tell what the log here lacks.
    pub published: Option<HashSet<String>>,
    /// The ids in the log here.
    pub mine: Option<Ids>,
    /// The log here may lack lines, which are put back once what is new in it was published.
    pub wanting: bool,
    /// The log as it was when nothing was left to do.
    pub seen: Option<Stamp>,
    /// A log that was rewritten, and since when it has stayed so.
    pub unsettled: Option<(Option<Stamp>, Instant)>,
    /// Nothing is published before.
    pub hold: Option<Instant>,
    /// The server takes lines of this writer from this machine.
    pub proven: bool,
    /// How many lines of a log wait behind an offset.
    waits: Option<(Stamp, u64, u64)>,
    /// Its place is not in the journal.
    pub changed: bool,
}

impl Writer {
    /// A line has passed: it is in the log here, or known not to go there.
    pub fn passed(&mut self, line: &Line<'_>, seq: u64, replayed: bool) {
        if seq >= self.place.seq {
            (self.place.seq, self.place.end) = (seq, line.end());
            self.changed = true;
        } else if !replayed {
            return;
        }
        self.tail = Some(Tail::of(line));
        if let Some(published) = &mut self.published {
            published.insert(line.id.clone());
        }
    }

    /// Notes that places do not tell what the log here lacks.
    pub fn compare(&mut self, ino: u64, done: u64) {
        self.place.odd = Some((ino, done));
        self.mine = None;
        self.changed = true;
    }

    /// How far the log here was compared with what was published.
    pub fn done(&self) -> u64 {
        self.place.odd.map_or(self.place.end, |(_, done)| done)
    }

    /// Reads the ids of the log here as far as they are not known.
    pub fn refresh(&mut self, writer: &str, file: Option<&File>) -> io::Result<&mut Ids> {
        let stamp = file.map(Stamp::of).transpose()?.unwrap_or_default();
        if self.place.odd.is_none_or(|(ino, done)| ino != stamp.ino || done > stamp.size) {
            self.compare(stamp.ino, 0);
        }
        let mine = self.mine.get_or_insert_default();
        mine.read(writer, file, &stamp)?;
        Ok(mine)
    }

    /// Goes on over lines that are published or stay here. Whether that is all of them.
    pub fn advance(&mut self, writer: &str, file: Option<&File>) -> io::Result<bool> {
        let Some((ino, mut done)) = self.place.odd else { return Ok(true) };
        if let (Some(published), Some(file)) = (&self.published, file) {
            let mut lines = Lines::from(file.try_clone()?, done)?;
            while let Some((line, end)) = lines.next()? {
                match line::travels(writer, line) {
                    Ok(id) if !published.contains(&id) => break,
                    _ => done = end,
                }
            }
        }
        self.place.odd = Some((ino, done));
        self.changed = true;
        Ok(done >= self.mine.as_ref().map_or(0, |mine| mine.upto))
    }
}

/// The ids in a log.
#[derive(Debug, Default)]
pub struct Ids {
    ino: u64,
    upto: u64,
    all: HashSet<String>,
}

impl Ids {
    /// Reads what is new.
    pub fn read(&mut self, writer: &str, file: Option<&File>, stamp: &Stamp) -> io::Result<()> {
        if self.ino != stamp.ino || self.upto > stamp.size {
            *self = Self { ino: stamp.ino, ..Self::default() };
        }
        let Some(file) = file.filter(|_| self.upto < stamp.size) else { return Ok(()) };
        let mut lines = Lines::from(file.try_clone()?, self.upto)?;
        while let Some((line, end)) = lines.next()? {
            self.all.extend(line::travels(writer, line));
            self.upto = end;
        }
        Ok(())
    }

    /// Whether one is there.
    pub fn has(&self, id: &str) -> bool {
        self.all.contains(id)
    }
}

/// What a request is about that may kill the connection: a message that the library cannot read does, each
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Risk {
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
pub struct Carrier {
    /// The logs.
    pub logs: Logs,
    /// What is kept.
    pub state: State,
    /// The writers.
    pub writers: HashMap<String, Writer>,
    /// The copies of logs beside them, for what another machine wrote in the same name.
    pub copies: HashMap<String, Ids>,
    /// Seven characters for this machine.
    pub host: String,
    /// Writers whose log may be to publish.
    pub todo: BTreeSet<String>,
    /// What the connection may die of.
    pub risk: Risk,
    /// How often it did, in a row.
    strikes: (Risk, u32),
    /// The writers are asked for one by one.
    pub singly: bool,
    /// Writers whose subject may hold a broken message.
    pub broken: HashSet<String>,
    /// The next messages are read one by one.
    pub careful: bool,
    /// Files that were appended to and may not be on disk.
    pub unsynced: BTreeSet<String>,
    board: Arc<Board>,
    notes: Notes,
}

/// What people are told besides.
#[derive(Debug, Default)]
struct Notes {
    /// The last message of which a refusal was counted.
    counted: u64,
    refused: u64,
    last: VecDeque<String>,
    /// People were not told yet.
    changed: bool,
    lasting: BTreeMap<String, String>,
}

impl Carrier {
    /// What is known at the start.
    pub fn new(
        folder: &Path,
        (state, places): (State, HashMap<String, Place>),
        board: Arc<Board>,
    ) -> io::Result<Self> {
        let writer = |place| Writer { place, ..Writer::default() };
        let writers = places.into_iter().map(|(name, place)| (name, writer(place))).collect();
        Ok(Self {
            logs: Logs::open(folder)?,
            state,
            writers,
            copies: HashMap::new(),
            host: host(),
            todo: BTreeSet::new(),
            risk: Risk::None,
            strikes: (Risk::None, 0),
            singly: false,
            broken: HashSet::new(),
            careful: false,
            unsynced: BTreeSet::new(),
            board,
            notes: Notes::default(),
        })
    }

    /// What is known of a writer.
    pub fn writer(&mut self, name: &str) -> &mut Writer {
        self.writers.entry(name.to_owned()).or_default()
    }

    /// Brings the logs to disk, and then what is known of them.
    ///
    /// # Errors
    /// As the system gave it; then nothing is noted.
    pub fn flush(&mut self) -> Result<(), Failure> {
        while let Some(name) = self.unsynced.first() {
            self.logs.sync(name).map_err(Failure::disk(name))?;
            self.unsynced.pop_first();
        }
        let changed: Vec<&str> =
            self.writers.iter().filter(|(_, w)| w.changed).map(|(name, _)| name.as_str()).collect();
        let place = |name: &&'_ str| self.writers.get(*name).map(|w| &w.place);
        let changed_places = changed.iter().filter_map(|name| Some((*name, place(name)?)));
        let all = self.writers.iter().map(|(name, w)| (name.as_str(), &w.place));
        self.state.note(changed_places, all).map_err(Failure::disk("the state of the link"))?;
        self.writers.values_mut().for_each(|w| w.changed = false);
        self.tell();
        Ok(())
    }

    /// Has every log looked at.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn look_at_all(&mut self) -> Result<(), Failure> {
        let names = self.logs.writers().map_err(Failure::disk("the folder of the logs"))?;
        self.todo.extend(names);
        let published = self.writers.iter().filter(|(_, w)| w.place.end > 0);
        self.todo.extend(published.map(|(name, _)| name.clone()));
        Ok(())
    }

    /// Has the logs among these files looked at.
    pub fn look_at(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()).map(alias::classify);
            if let Some(LogName::Main(writer)) = name {
                self.todo.insert(writer.to_owned());
            }
        }
    }

    /// How many lines wait to be published, and whose.
    pub fn waiting(&mut self) -> (u64, BTreeMap<String, Behind>) {
        let (mut sum, mut behind) = (0, BTreeMap::new());
        for name in self.logs.writers().unwrap_or_default() {
            let count = self.waits(&name).unwrap_or_default();
            sum += count;
            if count > 0 && behind.len() < WRITERS {
                let from = self.writers.get(&name).map_or(0, Writer::done);
                let why = self.notes.lasting.get(&format!("publish {name}")).cloned();
                behind.insert(name, Behind { from, why });
            }
        }
        (sum, behind)
    }

    fn waits(&mut self, name: &str) -> io::Result<u64> {
        let Some(stamp) = self.logs.stamp(name)? else { return Ok(0) };
        let from = self.writers.get(name).map_or(0, Writer::done);
        if stamp.size <= from {
            return Ok(0);
        }
        if let Some((was, start, count)) = self.writer(name).waits
            && (was, start) == (stamp, from)
        {
            return Ok(count);
        }
        let Some(file) = self.logs.read(name)? else { return Ok(0) };
        let (mut lines, mut count) = (Lines::from(file, from)?, 0);
        while lines.next()?.is_some() {
            count += 1;
        }
        self.writer(name).waits = Some((stamp, from, count));
        Ok(count)
    }

    /// A line is refused for good.
    pub fn refuse(&mut self, seq: u64, subject: &str, why: &str) {
        if seq <= self.notes.counted {
            return;
        }
        self.notes.counted = seq;
        self.refused(format!(
            "message {seq} of {} is refused: {}",
            one_line(subject),
            one_line(why)
        ));
    }

    /// A line stays on this machine.
    pub fn keep_here(&mut self, writer: &str, end: u64, why: &str) {
        self.refused(format!(
            "the line of {} that ends at byte {end} stays on this machine: {}",
            alias::log_name(writer),
            one_line(why)
        ));
    }

    fn refused(&mut self, text: String) {
        self.notes.refused += 1;
        if self.notes.last.len() == TOLD {
            self.notes.last.pop_front();
        }
        self.notes.last.push_back(text);
        self.notes.changed = true;
    }

    /// Tells people something until it is no longer so.
    pub fn say(&mut self, about: &str, text: Option<String>) {
        let same = self.notes.lasting.get(about) == text.as_ref();
        match text {
            _ if same => return,
            Some(text) => self.notes.lasting.insert(about.to_owned(), text),
            None => self.notes.lasting.remove(about),
        };
        self.notes.changed = true;
    }

    /// Tells people what is new. Not at once: who floods the stream with what is refused makes the disk no
    /// busier.
    pub fn tell(&mut self) {
        if !std::mem::take(&mut self.notes.changed) {
            return;
        }
        let lasting = self.notes.lasting.values().cloned();
        let notes: Vec<String> = lasting.chain(self.notes.last.iter().cloned()).collect();
        self.board.tell(|standing| {
            standing.refused = self.notes.refused;
            standing.notes = notes;
        });
    }

    /// The stream is another one: its messages have other numbers, and nobody knows what it does not take.
    pub fn count_anew(&mut self) {
        self.notes.counted = 0;
        let before = self.notes.lasting.len();
        self.notes.lasting.retain(|about, _| !about.starts_with("publish "));
        self.notes.changed |= self.notes.lasting.len() != before;
    }

    /// The connection ended. Three times in a row at the same place, and what is there is read in a way
    /// that nothing can break. Whether the next try will differ.
    pub fn struck(&mut self) -> bool {
        let risk = std::mem::take(&mut self.risk);
        self.strikes = match &self.strikes {
            (same, count) if *same == risk => (risk, count + 1),
            _ => (risk, 1),
        };
        if self.strikes.1 < 3 || self.strikes.0 == Risk::None {
            return false;
        }
        match std::mem::take(&mut self.strikes).0 {
            Risk::Writers(names) if names.len() > 1 => self.singly = true,
            Risk::Writers(names) => self.broken.extend(names),
            Risk::Feed(_) => self.careful = true,
            Risk::None => {}
        }
        true
    }
}

/// Whether an error says that something else has the name of a log, or that it is another's: the line cannot
/// be put there, and others can.
pub fn is_barred(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    let kind = error.kind();
    kind != NotFound && fs::is_absent(error) || matches!(kind, IsADirectory | PermissionDenied)
}

/// Seven capital letters and digits for this machine.
fn host() -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let uname = rustix::system::uname();
    let hash = Sha256::digest(uname.nodename().to_bytes());
    let digit = |byte: &u8| DIGITS.get(usize::from(byte % 32)).map(|digit| char::from(*digit));
    hash.iter().filter_map(digit).take(7).collect()
}
