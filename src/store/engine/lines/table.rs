//! The table of all logs ever seen, with their cursors.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::log::LogCursor;
use super::log_file::split_log_name;
use super::{LineFormat, LogFacts, NameClass};
use crate::model::Timestamp;
use crate::store::StoreError;
use crate::store::fs::Stamp;

/// The source number for what a format keeps besides the logs.
pub const KEPT: u32 = 0;
/// The largest number of logs. A log has two source numbers, and those of an index go no further.
pub const MAX_LOGS: usize = (1 << 23) - 1;

/// The meaning of a source number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogSource {
    /// The data that the format keeps besides the logs.
    Kept,
    /// A log.
    Log(u32),
    /// The file beside a log.
    Head(u32),
}

impl LogSource {
    /// Returns the meaning of a number.
    pub fn from_number(number: u32) -> Self {
        match (number.checked_sub(1), number % 2) {
            (None, _) => Self::Kept,
            (Some(n), 1) => Self::Log(n / 2),
            (Some(n), _) => Self::Head(n / 2),
        }
    }

    /// Returns the number of a source.
    pub fn number(self) -> u32 {
        match self {
            Self::Kept => KEPT,
            Self::Log(log) => 1 + 2 * log,
            Self::Head(log) => 2 + 2 * log,
        }
    }

    /// Returns the log to which it belongs.
    pub fn log_number(self) -> Option<u32> {
        match self {
            Self::Kept => None,
            Self::Log(log) | Self::Head(log) => Some(log),
        }
    }
}

/// A folder below which logs lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRoot {
    /// Its path.
    pub path: PathBuf,
    /// Its label, empty for the store's own folder and else unique.
    pub label: String,
    /// True if it was there at the last scan.
    pub here: bool,
}

impl LogRoot {
    /// Returns the root that is the store's own folder.
    pub fn main_root(path: PathBuf) -> Self {
        Self { path, label: String::new(), here: true }
    }

    /// Returns true if it is the store's own folder.
    pub fn is_main(&self) -> bool {
        self.label.is_empty()
    }
}

/// A log and its cursor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogRow<X, C> {
    /// The number of its root.
    pub root: u32,
    /// The name of its file, or of its folder where each log has one.
    pub name: String,
    /// True if its folder is not there.
    pub gone: bool,
    /// The stamp of the file when it was read; `None` if none of its messages is shown.
    pub stamp: Option<Stamp>,
    /// Its cursor.
    pub tally: LogCursor<C>,
    /// True if the unterminated last line was reported as a message.
    pub tail: bool,
    /// True if it ends in a torn line that its writer may still finish. The line was not reported yet.
    pub half: bool,
    /// The number of times that the whole log was read.
    pub epoch: u32,
    /// The facts that the format keeps of it.
    pub facts: X,
}

/// A log of a format.
pub type LogRowOf<F> = LogRow<<F as LineFormat>::Facts, <F as LineFormat>::Count>;

impl<X: LogFacts, C: Default> LogRow<X, C> {
    /// Returns true if its messages are shown.
    pub fn is_shown(&self) -> bool {
        !self.gone && self.facts.is_shown()
    }

    /// Returns true if its files are shown.
    pub fn is_listed(&self) -> bool {
        !self.gone && self.facts.is_ours()
    }

    /// Returns the time of its last message that states one, if any does.
    pub fn last_time(&self) -> Option<Timestamp> {
        self.tally.last_time.map(Timestamp::from_millis)
    }

    /// Resets the cursor and the facts, because the log is read again or gone.
    pub fn reset_for_reread(&mut self) {
        self.epoch += 1;
        (self.tail, self.half, self.tally) = (false, false, LogCursor::default());
        self.facts.reset_for_reread();
    }

    /// Returns a path below the root's folder of logs: the log itself, or a file beside it.
    pub fn path(&self, file: Option<&str>) -> String {
        file.map_or_else(|| self.name.clone(), |file| format!("{}/{file}", self.name))
    }
}

/// The table of logs and roots.
pub struct LogTable<F: LineFormat> {
    /// The folders with logs, the store's own first.
    pub roots: Vec<LogRoot>,
    /// The logs, by number.
    pub logs: Vec<LogRowOf<F>>,
    by_name: HashMap<(u32, String), u32>,
    /// The facts of all logs together that the format keeps.
    pub shared: F::Shared,
}

impl<F: LineFormat> Default for LogTable<F> {
    fn default() -> Self {
        let (roots, logs, by_name) = Default::default();
        Self { roots, logs, by_name, shared: F::Shared::default() }
    }
}

impl<F: LineFormat> LogTable<F> {
    /// Returns a log by its number.
    pub fn get(&self, log: u32) -> Option<&LogRowOf<F>> {
        self.logs.get(log as usize)
    }

    /// Returns all logs with their numbers.
    pub fn iter_numbered(&self) -> impl Iterator<Item = (u32, &LogRowOf<F>)> {
        (0u32..).zip(&self.logs)
    }

    /// Replaces the row of a log.
    pub fn set_log(&mut self, n: u32, log: LogRowOf<F>) {
        if let Some(slot) = self.logs.get_mut(n as usize) {
            *slot = log;
        }
    }

    /// Returns the number of the log with a name.
    pub fn find_log(&self, root: u32, name: &str) -> Option<u32> {
        // Half of a pair cannot be borrowed, and names are short.
        self.by_name.get(&(root, name.to_owned())).copied()
    }

    /// Returns the number of a log, a new one if it has none. `None` if the name is not that of a log, or there are
    /// too many logs.
    pub fn assign_number(&mut self, root: u32, name: &str) -> Option<u32> {
        if let Some(n) = self.find_log(root, name) {
            return Some(n);
        }
        if self.logs.len() >= MAX_LOGS || F::classify_name(name) != NameClass::Log {
            return None;
        }
        let n = self.logs.len() as u32;
        let gone = F::SHAPE.log_file.is_some();
        self.logs.push(LogRow { root, name: name.to_owned(), gone, ..LogRow::default() });
        self.by_name.insert((root, name.to_owned()), n);
        Some(n)
    }

    /// Returns the path of a log's root, and the names of folders below it down to the log's folder.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such log.
    pub fn log_folder_path(&self, log: u32) -> Result<(PathBuf, Vec<String>), StoreError> {
        let log = self.get(log).ok_or(StoreError::Moved)?;
        let root = self.roots.get(log.root as usize).ok_or(StoreError::Moved)?;
        let mut parts: Vec<String> = F::SHAPE.folder.iter().map(|s| (*s).to_owned()).collect();
        parts.extend(F::SHAPE.log_file.map(|_| log.name.clone()));
        let above = split_log_name(&log.name).0;
        parts.extend(above.split('/').filter(|_| !above.is_empty()).map(str::to_owned));
        Ok((root.path.clone(), parts))
    }

    /// Returns the path of a log or a file beside it in `raw/`. Those of another root are under its label.
    pub fn raw_path(&self, log: &LogRowOf<F>, file: Option<&str>) -> String {
        let label = self.roots.get(log.root as usize).map_or("", |root| &root.label);
        let slash = if label.is_empty() { "" } else { "/" };
        format!("{label}{slash}{}", log.path(file))
    }

    /// Returns the table as bytes, for [`LogTable::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let Ok(text) = serde_json::to_vec(&(&self.roots, &self.logs)) else {
            return Vec::new();
        };
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(&text);
        out.extend_from_slice(&F::save_shared(&self.shared));
        out
    }

    /// Restores the table from bytes; `None` if they cannot be used.
    pub fn from_bytes(saved: &[u8]) -> Option<Self> {
        let (len, rest) = saved.split_first_chunk::<8>()?;
        let (text, shared) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let (roots, logs): (Vec<LogRoot>, Vec<LogRowOf<F>>) = serde_json::from_slice(text).ok()?;
        let by_name = (0u32..).zip(&logs).map(|(n, l)| ((l.root, l.name.clone()), n)).collect();
        Some(Self { roots, logs, by_name, shared: F::restore_shared(shared)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_numbers_go_both_ways() {
        for n in 0..20 {
            assert_eq!(LogSource::from_number(n).number(), n);
        }
        assert_eq!(LogSource::from_number(1), LogSource::Log(0));
        assert_eq!(LogSource::from_number(2), LogSource::Head(0));
        assert_eq!(LogSource::from_number(3), LogSource::Log(1));
    }
}
