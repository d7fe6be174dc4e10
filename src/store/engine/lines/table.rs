//! All logs ever seen, and how far they were read.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::log::LogCursor;
use super::{LineFormat, LogFacts, NameClass};
use crate::model::Timestamp;
use crate::store::StoreError;
use crate::store::fs::Stamp;

/// The source that stands for what a format keeps besides the logs.
pub const KEPT: u32 = 0;
/// The source numbers of an index go no further, and a log has two.
pub const MAX_LOGS: usize = (1 << 23) - 1;

/// What a source number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogSource {
    /// What the format keeps besides the logs.
    Kept,
    /// This log.
    Log(u32),
    /// The file beside this log.
    Head(u32),
}

impl LogSource {
    /// What this number stands for.
    pub fn from_number(number: u32) -> Self {
        match (number.checked_sub(1), number % 2) {
            (None, _) => Self::Kept,
            (Some(n), 1) => Self::Log(n / 2),
            (Some(n), _) => Self::Head(n / 2),
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::Kept => KEPT,
            Self::Log(log) => 1 + 2 * log,
            Self::Head(log) => 2 + 2 * log,
        }
    }

    /// The log it belongs to.
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
    /// Where it is.
    pub path: PathBuf,
    /// Empty for the store's own folder; else unique.
    pub label: String,
    /// It is there, as of the last look.
    pub here: bool,
}

impl LogRoot {
    /// The store's own folder.
    pub fn main_root(path: PathBuf) -> Self {
        Self { path, label: String::new(), here: true }
    }

    /// It is the store's own folder.
    pub fn is_main(&self) -> bool {
        self.label.is_empty()
    }
}

/// A log and how far it was read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogRow<X, C> {
    /// The root it lies in.
    pub root: u32,
    /// Its file's name; where each log has a folder of its own, the name of that.
    pub name: String,
    /// Its folder is not there.
    pub gone: bool,
    /// The file as it was when it was read; `None` if nothing of it is shown.
    pub stamp: Option<Stamp>,
    /// How far it was read.
    pub tally: LogCursor<C>,
    /// The unterminated last line was a message and was delivered.
    pub tail: bool,
    /// It ends in half a line that its writer may still finish; nobody was told of it yet.
    pub half: bool,
    /// Counts the readings of the whole log.
    pub epoch: u32,
    /// What the format knows of it.
    pub facts: X,
}

/// A log of a format.
pub type LogRowOf<F> = LogRow<<F as LineFormat>::Facts, <F as LineFormat>::Count>;

impl<X: LogFacts, C: Default> LogRow<X, C> {
    /// Its messages are shown.
    pub fn is_shown(&self) -> bool {
        !self.gone && self.facts.is_shown()
    }

    /// Its files are shown.
    pub fn is_listed(&self) -> bool {
        !self.gone && self.facts.is_ours()
    }

    /// The time of its last message, if it has one that says when it was written.
    pub fn last_time(&self) -> Option<Timestamp> {
        self.tally.last_time.map(Timestamp::from_millis)
    }

    /// Forgets what was read, for it is read again or gone.
    pub fn reset_for_reread(&mut self) {
        self.epoch += 1;
        (self.tail, self.half, self.tally) = (false, false, LogCursor::default());
        self.facts.reset_for_reread();
    }

    /// A path below the root's folder of logs: the log itself, or a file beside it.
    pub fn path(&self, file: Option<&str>) -> String {
        file.map_or_else(|| self.name.clone(), |file| format!("{}/{file}", self.name))
    }
}

/// The tables.
pub struct LogTable<F: LineFormat> {
    /// The folders with logs, the store's own first.
    pub roots: Vec<LogRoot>,
    /// The logs by number.
    pub logs: Vec<LogRowOf<F>>,
    by_name: HashMap<(u32, String), u32>,
    /// What the format knows of all logs together.
    pub shared: F::Shared,
}

impl<F: LineFormat> Default for LogTable<F> {
    fn default() -> Self {
        let (roots, logs, by_name) = Default::default();
        Self { roots, logs, by_name, shared: F::Shared::default() }
    }
}

impl<F: LineFormat> LogTable<F> {
    /// A log by its number.
    pub fn get(&self, log: u32) -> Option<&LogRowOf<F>> {
        self.logs.get(log as usize)
    }

    /// All logs with their numbers.
    pub fn iter_numbered(&self) -> impl Iterator<Item = (u32, &LogRowOf<F>)> {
        (0u32..).zip(&self.logs)
    }

    /// Changes what is known of a log.
    pub fn set_log(&mut self, n: u32, log: LogRowOf<F>) {
        if let Some(slot) = self.logs.get_mut(n as usize) {
            *slot = log;
        }
    }

    /// The log of a name.
    pub fn find_log(&self, root: u32, name: &str) -> Option<u32> {
        // Borrowing half of a pair is not possible; names are short.
        self.by_name.get(&(root, name.to_owned())).copied()
    }

    /// The number of a log, for names that can be one; `None` also if there are too many.
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

    /// The folder of the root a log lies in, and the names below it, down to its folder.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such log.
    pub fn log_folder_path(&self, log: u32) -> Result<(PathBuf, Vec<String>), StoreError> {
        let log = self.get(log).ok_or(StoreError::Moved)?;
        let root = self.roots.get(log.root as usize).ok_or(StoreError::Moved)?;
        let mut parts: Vec<String> = F::SHAPE.folder.iter().map(|s| (*s).to_owned()).collect();
        parts.extend(F::SHAPE.log_file.map(|_| log.name.clone()));
        Ok((root.path.clone(), parts))
    }

    /// A path in `raw/`: what lies in another root is under its label.
    pub fn raw_path(&self, log: &LogRowOf<F>, file: Option<&str>) -> String {
        let label = self.roots.get(log.root as usize).map_or("", |root| &root.label);
        let slash = if label.is_empty() { "" } else { "/" };
        format!("{label}{slash}{}", log.path(file))
    }

    /// As bytes, for [`Table::restore`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let Ok(text) = serde_json::to_vec(&(&self.roots, &self.logs)) else {
            return Vec::new();
        };
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(&text);
        out.extend_from_slice(&F::save_shared(&self.shared));
        out
    }

    /// From bytes; `None` if they cannot be used.
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
