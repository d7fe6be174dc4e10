//! The trait by which a format tells the engine how to read its logs.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::LineStore;
use super::check::{LineCheck, LineReporter};
use super::log::LogCursor;
use super::scan::LogScan;
use super::table::{LogRoot, LogRowOf};
use crate::model::Timestamp;
use crate::store::engine::Format;
use crate::store::{
    FoundMessage, Location, MessageReader, Record, Rejection, StoreError, StoreProperties,
    StoreSpec,
};

/// The properties that all stores of a format share.
#[derive(Debug)]
pub struct LogShape {
    /// The folders, one in the other, below a root that contains logs.
    pub folder: &'static [&'static str],
    /// The name of a log that has a folder of its own; `None` where logs lie beside each other.
    pub log_file: Option<&'static str>,
    /// The file beside a log that describes it.
    pub head_file: Option<&'static str>,
    /// The folder beside a log with files that its messages refer to.
    pub parts_folder: Option<&'static str>,
    /// True if other programs write whole logs anew in place. A log that has lost lines is then not believed at once.
    pub rewritten: bool,
    /// True if sync programs put copies beside a log, which have the same [key](LineFormat::log_key).
    pub has_copies: bool,
    /// The rules for logs at any depth below the folder, whose names are paths; `None` where all logs lie in one
    /// folder.
    pub tree: Option<LogTree>,
}

/// The rules for logs at any depth.
#[derive(Debug)]
pub struct LogTree {
    /// A function that returns true if a folder at this path may contain logs.
    pub is_folder: fn(&str) -> bool,
    /// The suffix that other programs add to the name of a log when they compress it.
    pub packed_suffix: &'static str,
}

impl LogShape {
    /// Returns true if logs lie in the root itself. Each scan without a list of changed paths lists such a root. The
    /// listing costs little, and without the root there is no store.
    pub fn is_flat(&self) -> bool {
        self.folder.is_empty() && self.tree.is_none()
    }

    /// Returns true if an unfinished last line is no message yet, and no rejection either.
    pub(super) fn ignores_torn_tail(&self) -> bool {
        self.tree.is_some()
    }
}

/// The class of a name in the folder of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameClass {
    /// A log, or the folder of one.
    Log,
    /// Something else.
    Other,
    /// A name like that of a log for something that is none: the broken rule, and how it is broken.
    Bad(&'static str, &'static str),
}

/// The facts that a format keeps of a log.
pub trait LogFacts:
    Clone + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Returns true if the messages of the log are shown.
    fn is_shown(&self) -> bool {
        true
    }

    /// Returns true if it is a log of the format at all, so that its files are shown.
    fn is_ours(&self) -> bool {
        true
    }

    /// Resets the facts before the whole log is read again.
    fn reset_for_reread(&mut self) {}

    /// Returns the time at which the log was begun. A record without a time gets it.
    fn begin_time(&self) -> Timestamp {
        Timestamp::default()
    }

    /// Returns the title that is the subject of all messages of the log; empty if it has none now, `None` if logs of
    /// the format have no titles.
    fn title(&self) -> Option<&str> {
        None
    }

    /// Returns the time of the last change that the log, or the file beside it, states itself.
    fn change_time(&self) -> Option<Timestamp> {
        None
    }
}

impl LogFacts for () {}

/// A log while its lines are read.
pub struct LogReading<'r, F: LineFormat> {
    /// Its number.
    pub n: u32,
    /// Its row in the table.
    pub log: &'r mut LogRowOf<F>,
    /// The facts of all logs together.
    pub shared: &'r mut F::Shared,
}

/// A log-structured format.
pub trait LineFormat: Format<LineStore<Self>> {
    /// The properties that all its stores share.
    const SHAPE: LogShape;
    /// The facts of a log besides its cursor.
    type Facts: LogFacts;
    /// The counts of a log.
    type Count: Copy + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// The facts of all logs together, kept with the table.
    type Shared: Default + Send + Sync + 'static;
    /// Memory in which a thread parses lines.
    type ParseBuffer: Default;
    /// The content of a line by itself.
    type LineContent<'a>;
    /// The content of the file beside a log, for `check`.
    type Head;

    /// Opens a store. Returns the format's own state and the properties of the store.
    fn open(spec: &StoreSpec) -> Result<(Self, StoreProperties), StoreError>;

    /// Returns the class of a name.
    fn classify_name(name: &str) -> NameClass;

    /// Returns the key of a log, by which its lines are parsed: its owner or its subject.
    fn log_key(log: &LogRowOf<Self>) -> String;

    /// Returns the rank in which logs of one root are read. Logs of the same rank are read in the order of their
    /// names.
    fn log_rank(_log: &LogRowOf<Self>) -> i64 {
        0
    }

    /// Returns true if a log is a copy that others may have written.
    fn is_conflict_copy(_log: &LogRowOf<Self>) -> bool {
        false
    }

    /// Returns what people should know of a log that is there.
    fn log_remark(_log: &LogRowOf<Self>) -> Option<String> {
        None
    }

    /// Parses one line of the log with this key by itself, on any core and without any lock. Messages that depend on
    /// nothing else go to `found`. The engine counts them and notes the log's last time.
    ///
    /// # Errors
    /// The reason why it is no message, in a sentence.
    fn parse_line<'a>(
        store: &LineStore<Self>,
        work: &mut Self::ParseBuffer,
        key: &'a str,
        text: &'a str,
        at: Location,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<Self::LineContent<'a>, String>;

    /// Accepts the content of one line (the log's key, its text, its location) after the lines before it. New messages
    /// go to `found`, unless [`LineFormat::parse_line`] finds the messages.
    ///
    /// # Errors
    /// The reason why it is no message, in a sentence.
    fn accept_line<'a>(
        _store: &LineStore<Self>,
        _reading: &mut LogReading<'_, Self>,
        _line: (&'a str, &'a str, Location),
        _said: Self::LineContent<'a>,
        _found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Returns the message at a location, parsed from its line.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if it is no message.
    fn parse_record(
        store: &LineStore<Self>,
        at: &Location,
        text: &str,
    ) -> Result<Record, StoreError>;

    /// Returns the digest of a message; see [`MessageReader::content_digest`].
    ///
    /// # Errors
    /// As for [`MessageReader::content_digest`].
    fn content_digest(store: &LineStore<Self>, at: &Location) -> Result<[u8; 32], StoreError> {
        Ok(Sha256::digest(store.read_bytes(at, usize::MAX)?).into())
    }

    /// Finds the folders with logs, and returns true if they have changed. `ask` searches for them even if nothing
    /// indicates a change.
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

    /// Reads the files beside these logs. Returns the logs whose messages must all be reported again.
    fn read_heads(_scan: &mut LogScan<'_, Self>, _logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// Notes that a whole log was read again, or is gone. The messages that it lost are not reported yet.
    fn note_reread(_scan: &mut LogScan<'_, Self>, _log: u32) {}

    /// Notes that logs were read. It may queue logs to be read again ([`LogScan::reread_queue`]) because of messages in
    /// others.
    fn note_read(_scan: &mut LogScan<'_, Self>) {}

    /// Notes that a scan has finished. `first` means that it was the first one and covered all logs.
    fn finish_scan(_scan: &mut LogScan<'_, Self>, _first: bool) {}

    /// Returns the facts of all logs together as bytes.
    fn save_shared(_shared: &Self::Shared) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the facts of all logs from bytes; `None` if they cannot be used.
    fn restore_shared(_bytes: &[u8]) -> Option<Self::Shared> {
        Some(Self::Shared::default())
    }

    /// Reads the state that the format keeps in a folder of msgfs; see
    /// [`Store::read_state`](crate::store::Store::read_state).
    ///
    /// # Errors
    /// As for [`Store::read_state`](crate::store::Store::read_state).
    fn load_state(&self, _dir: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Reads bytes that the format keeps besides the logs.
    fn read_kept(&self, _offset: u64, _len: usize) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::Moved)
    }

    /// Returns true if a file of this name in [`LogShape::parts_folder`] is shown.
    fn is_shown_part(_name: &str) -> bool {
        false
    }

    /// Returns true if a store whose folder was never seen is empty instead of out of reach.
    fn may_be_missing(&self) -> bool {
        false
    }

    /// Checks a log's name and the file beside it; `None` if the log needs no further checks.
    fn check_head(name: &str, dir: &OwnedFd, say: &mut LineReporter<'_>) -> Option<Self::Head>;

    /// Checks one line, and counts it.
    fn check_line(store: &LineStore<Self>, line: &mut LineCheck<'_, Self>);

    /// Returns the lines that a reader of all logs rejects, where a line alone does not tell.
    ///
    /// # Errors
    /// If the logs cannot be read.
    fn list_rejected(_store: &LineStore<Self>) -> Result<Vec<Rejection>, StoreError> {
        Ok(Vec::new())
    }

    /// Checks the counts of a log against the statements of its head.
    fn check_counts(
        _head: &Self::Head,
        _tally: &LogCursor<Self::Count>,
        _say: &mut LineReporter<'_>,
    ) {
    }
}
