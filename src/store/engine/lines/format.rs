//! What a format says.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::LineStore;
use super::check::{LineCheck, LineReporter};
use super::log::LogCursor;
use super::scan::LogScan;
use super::table::{LogRoot, LogRowOf};
use crate::model::Timestamp;
use crate::store::{
    Facets, FoundMessage, Location, Record, StoreError, StoreProperties, StoreSpec,
};

/// What is the same for all stores of a format.
#[derive(Debug)]
pub struct LogShape {
    /// The folders, one in the other, below a root in which logs lie.
    pub folder: &'static [&'static str],
    /// The name of a log that has a folder of its own; `None` where logs lie beside each other.
    pub log_file: Option<&'static str>,
    /// The file beside a log that says what it is.
    pub head_file: Option<&'static str>,
    /// The folder beside a log with files that its messages refer to.
    pub parts_folder: Option<&'static str>,
    /// Other programs write whole logs anew in place: what has lost lines is not believed at once.
    pub rewritten: bool,
    /// Sync programs put copies beside a log, which have the same [key](Format::key).
    pub has_copies: bool,
}

impl LogShape {
    /// Whether logs lie in the root itself. It is listed at every look of which nobody said what changed, which
    /// costs little, and without it there is no store.
    pub fn is_flat(&self) -> bool {
        self.folder.is_empty()
    }
}

/// What a name among the logs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameClass {
    /// A log, or the folder of one.
    Log,
    /// Something else.
    Other,
    /// Named like a log, but none: the rule that is broken, and how.
    Bad(&'static str, &'static str),
}

/// What a format knows of a log.
pub trait LogFacts:
    Clone + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Whether the messages of the log are shown.
    fn is_shown(&self) -> bool {
        true
    }

    /// Whether it is a log of the format at all, so that its files are shown.
    fn is_ours(&self) -> bool {
        true
    }

    /// The whole log is about to be read again.
    fn reset_for_reread(&mut self) {}

    /// When the log was begun: the time of what has none.
    fn begin_time(&self) -> Timestamp {
        Timestamp::default()
    }

    /// When the log, or the file beside it, was changed as far as that says so itself.
    fn change_time(&self) -> Option<Timestamp> {
        None
    }
}

impl LogFacts for () {}

/// A log while lines of it are read.
pub struct LogReading<'r, F: LineFormat> {
    /// Its number.
    pub n: u32,
    /// It.
    pub log: &'r mut LogRowOf<F>,
    /// What is known of all logs together.
    pub shared: &'r mut F::Shared,
}

/// A log-structured format.
pub trait LineFormat: Send + Sync + Sized + 'static {
    /// What is the same for all stores of it.
    const SHAPE: LogShape;
    /// What is known of a log besides how far it was read.
    type Facts: LogFacts;
    /// What is counted in a log.
    type Count: Copy + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What is known of all logs together; kept with the table.
    type Shared: Default + Send + Sync + 'static;
    /// Memory for a thread to read lines with.
    type ParseBuffer: Default;
    /// What a line says by itself.
    type LineContent<'a>;
    /// What was read of the file beside a log, for `check`.
    type Head;

    /// Opens a store: what the format keeps of it, and what it is.
    fn open(spec: &StoreSpec) -> Result<(Self, StoreProperties), StoreError>;

    /// What a store of the format can.
    fn facets(store: &LineStore<Self>) -> Facets<'_>;

    /// What a name is.
    fn classify_name(name: &str) -> NameClass;

    /// Who or what a log is for: what its lines are read as.
    fn log_key(log: &LogRowOf<Self>) -> String;

    /// Logs of one root are read in this order, and in that of their names.
    fn log_rank(_log: &LogRowOf<Self>) -> i64 {
        0
    }

    /// What people should know of a log that is there.
    fn log_remark(_log: &LogRowOf<Self>) -> Option<String> {
        None
    }

    /// Reads one line of the log with this key as far as it speaks for itself: on any core, and without any
    /// lock. Messages that depend on nothing else go to `found`; their number and the log's last time are
    /// noted by the engine.
    ///
    /// # Errors
    /// Why it is no message, in a sentence.
    fn parse_line<'a>(
        store: &LineStore<Self>,
        work: &mut Self::ParseBuffer,
        key: &'a str,
        text: &'a str,
        at: Location,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<Self::LineContent<'a>, String>;

    /// Takes in what one line (the log's key, its text, its place) said, after those before it: what it finds
    /// goes to `found`, unless [`Format::said`] finds the messages.
    ///
    /// # Errors
    /// As there.
    fn accept_line<'a>(
        _store: &LineStore<Self>,
        _reading: &mut LogReading<'_, Self>,
        _line: (&'a str, &'a str, Location),
        _said: Self::LineContent<'a>,
        _found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// The message at a location, from its line.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if it is no message.
    fn parse_record(
        store: &LineStore<Self>,
        at: &Location,
        text: &str,
    ) -> Result<Record, StoreError>;

    /// The folders with logs; whether they are others now. `ask`: also if nothing says so.
    fn find_roots(
        &self,
        dir: &Path,
        roots: &mut Vec<LogRoot>,
        _ask: bool,
        _noted: &HashSet<PathBuf>,
    ) -> bool {
        let new = roots.is_empty();
        if new {
            roots.push(LogRoot::main_root(dir.to_owned()));
        }
        new
    }

    /// Looks at what lies beside these logs; those of which all is said differently now.
    fn read_heads(_scan: &mut LogScan<'_, Self>, _logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// A path in the store has changed.
    fn note_change(&self, _about: &StoreProperties, _path: &Path) {}

    /// A whole log was read again, or is gone; what it had and has no more is not told of yet.
    fn note_reread(_scan: &mut LogScan<'_, Self>, _log: u32) {}

    /// A scan looked at all it had to look at; `first`: at all logs, for the first time.
    fn finish_scan(_scan: &mut LogScan<'_, Self>, _first: bool) {}

    /// What is kept of all logs together, as bytes.
    fn save_shared(_shared: &Self::Shared) -> Vec<u8> {
        Vec::new()
    }

    /// From bytes; `None` if they cannot be used.
    fn restore_shared(_bytes: &[u8]) -> Option<Self::Shared> {
        Some(Self::Shared::default())
    }

    /// Reads what is kept besides the logs.
    fn read_kept(&self, _offset: u64, _len: usize) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::Moved)
    }

    /// Whether a file of this name in [`Shape::parts`] is shown.
    fn is_shown_part(_name: &str) -> bool {
        false
    }

    /// As `Store::remarks`, for a store that was looked at.
    fn remarks(_store: &LineStore<Self>) -> Vec<String> {
        Vec::new()
    }

    /// That what makes the folder a store is not there, if so.
    fn describe_missing(_store: &LineStore<Self>) -> Option<String> {
        None
    }

    /// Whether the store is empty where its folder was never seen, instead of out of reach.
    fn may_be_missing(&self) -> bool {
        false
    }

    /// Folders besides those of logs in which a change matters.
    fn extra_watched_folders(&self, _dir: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether a change of this name, which is not that of a log, matters.
    fn is_relevant_name(_store: &LineStore<Self>, _folder: &Path, _name: &str) -> bool {
        false
    }

    /// Checks a log's name and what lies beside it; `None` if the log is nothing to check.
    fn check_head(name: &str, dir: &OwnedFd, say: &mut LineReporter<'_>) -> Option<Self::Head>;

    /// Checks one line, and counts it.
    fn check_line(store: &LineStore<Self>, line: &mut LineCheck<'_, Self>);

    /// Checks what was said of a log against what was counted in it.
    fn check_counts(
        _head: &Self::Head,
        _tally: &LogCursor<Self::Count>,
        _say: &mut LineReporter<'_>,
    ) {
    }
}
