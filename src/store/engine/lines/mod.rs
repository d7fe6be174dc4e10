//! The engine for stores in which a message is a line of a log that only grows.
//!
//! - [`log`] reads a log as a run of lines and keeps the cursor. `table` holds all logs.
//! - `survey` finds the logs that may have changed. `scan` finds their changes and reads them. `fold` accepts the
//!   contents of their lines.
//! - `read` reads one message. `append` writes a new one. `raw` and `check` work on the files themselves.
//!
//! A format ([`LineFormat`]) defines the names of logs, the contents of lines, and the lines to append.

pub mod append;
pub mod check;
mod fold;
mod format;
pub mod log;
mod raw;
mod read;
pub mod scan;
mod survey;
pub mod table;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::health::StoreHealth;
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::model::{Timestamp, sanitize_line};
use crate::store::fs::{self, Stamp};
use crate::store::{
    Advice, ClaimVerifier, Facets, Location, RawEntry, Record, ScanSink, Store, StoreError,
    StoreProperties, StoreSpec, ViolationReporter,
};
use append::UnsyncedLogs;
pub use format::{LineFormat, LogFacts, LogReading, LogShape, NameClass};
use read::ReadAheadCache;
use table::{LogRoot, LogSource, LogTable};

/// The number of lines of one kind that are shown to people.
const SHOWN: usize = 50;

/// A store of logs.
pub struct LineStore<F: LineFormat> {
    /// The properties, which do not change as long as it is open.
    pub(crate) properties: StoreProperties,
    /// The format's own state.
    pub(crate) format: F,
    pub(crate) table: RwLock<LogTable<F>>,
    /// A flag that is set once everything was listed. Its lock allows one scan at a time.
    scanning: Mutex<bool>,
    /// Paths that changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// Bytes of logs that were read a moment ago.
    read_ahead: Mutex<ReadAheadCache>,
    /// The faults of single files.
    pub(crate) health: StoreHealth,
    /// Appends that may not be on disk. The lock allows one append at a time.
    pub(crate) appending: Mutex<UnsyncedLogs>,
}

impl<F: LineFormat> Debug for LineStore<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.properties.fmt(f)
    }
}

impl<F: LineFormat> LineStore<F> {
    /// Opens a store.
    pub fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let (format, about) = F::open(spec)?;
        Ok(Self {
            properties: about,
            format,
            table: RwLock::with_level(LockLevel::Table, LogTable::default()),
            scanning: Mutex::with_level(LockLevel::Store, false),
            noted: Mutex::default(),
            read_ahead: Mutex::default(),
            health: StoreHealth::default(),
            appending: Mutex::with_level(LockLevel::Store, UnsyncedLogs::default()),
        })
    }

    /// Fails unless there is room for an append of this many bytes.
    ///
    /// # Errors
    /// As the system gave it.
    pub(crate) fn check_free_space(&self, bytes: u64) -> Result<(), StoreError> {
        fs::check_free_space(&self.properties.dir, bytes)
    }

    /// Returns true if the folder may be missing and nothing was ever seen in it.
    pub(crate) fn is_expected_missing(&self) -> bool {
        self.format.may_be_missing() && self.table.read().logs.is_empty()
    }

    /// Has the next scan examine a path.
    pub(crate) fn note_path(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    /// Returns true if a log in the store's folder is as it was when it was read.
    fn is_up_to_date(&self, path: &Path) -> bool {
        let name = path.strip_prefix(&self.properties.dir).ok().and_then(Path::to_str);
        let Some(name) = name else { return false };
        let table = self.table.read();
        let log = table.find_log(0, name).and_then(|n| table.get(n));
        let read = log.filter(|log| log.is_shown() && !log.half).and_then(|log| log.stamp);
        drop(table);
        read.is_some() && Stamp::from_path(path).ok().flatten() == read
    }

    fn has_noted_paths(&self) -> bool {
        !self.noted.lock().is_empty()
    }

    fn take_noted_paths(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }

    /// Returns the roots as of the last scan, or the store's own before the first one.
    pub(crate) fn roots(&self) -> Vec<LogRoot> {
        let roots = self.table.read().roots.clone();
        if roots.is_empty() { vec![LogRoot::main_root(self.properties.dir.clone())] } else { roots }
    }

    /// Returns the deepest existing folder on the way from a root to its logs.
    fn deepest_folder(root: &LogRoot) -> PathBuf {
        let down = (0..=F::SHAPE.folder.len()).rev();
        let mut paths = down.map(|depth| {
            F::SHAPE.folder.iter().take(depth).fold(root.path.clone(), |path, part| path.join(part))
        });
        paths.find(|path| path.is_dir()).unwrap_or_else(|| root.path.clone())
    }
}

/// Returns the first lines, and a line with the number of further ones.
fn truncate_lines(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

impl<F: LineFormat> Store for LineStore<F> {
    fn properties(&self) -> &StoreProperties {
        &self.properties
    }

    fn facets(&self) -> Facets<'_> {
        F::facets(self)
    }

    fn note_change(&self, path: &Path) {
        self.format.note_change(&self.properties, path);
        self.note_path(path);
    }

    /// Returns true if a noted path is not taken in yet. The writer of a change notes it, and so does the watch of the
    /// folder. The second note needs no scan.
    fn has_unscanned_changes(&self) -> bool {
        if !F::SHAPE.is_flat() {
            return true;
        }
        // The paths are taken before they are examined: a later change is noted anew.
        let mut new = self.take_noted_paths();
        new.retain(|path| !self.is_up_to_date(path));
        let mut noted = self.noted.lock();
        noted.extend(new);
        !noted.is_empty()
    }

    fn scan(&self, full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError> {
        // Found records are read anew, and so are those that are read while the scan runs.
        self.read_ahead.lock().discard_all();
        let done = scan::scan_logs(self, &mut self.scanning.lock(), full, sink);
        self.read_ahead.lock().discard_all();
        done
    }

    fn is_failing(&self) -> bool {
        self.health.read_fault.is_set()
    }

    fn save_cursors(&self) -> Vec<u8> {
        self.table.read().to_bytes()
    }

    fn restore_cursors(&self, saved: &[u8]) -> bool {
        let Some(table) = LogTable::from_bytes(saved) else { return false };
        // The folders are walked again, and only changed logs are read.
        *self.scanning.lock() = false;
        *self.table.write() = table;
        self.read_ahead.lock().discard_all();
        true
    }

    fn reset_cursors(&self) {
        let mut listed = self.scanning.lock();
        *listed = false;
        *self.table.write() = LogTable::default();
        self.read_ahead.lock().discard_all();
        self.take_noted_paths();
    }

    /// Returns the folders of logs. For a root without logs, it is the folder in which they will appear.
    fn folders_to_watch(&self) -> Vec<PathBuf> {
        let mut out = self.format.extra_watched_folders(&self.properties.dir);
        let roots = self.roots();
        let shown = |root: &&LogRoot| root.here || root.is_main();
        out.extend(roots.iter().filter(shown).map(Self::deepest_folder));
        if F::SHAPE.log_file.is_some() {
            let table = self.table.read();
            for (n, _) in table.iter_numbered().filter(|(_, log)| !log.gone) {
                let place = table.log_folder_path(n);
                out.extend(place.map(|(root, parts)| parts.iter().fold(root, |p, s| p.join(s))));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    fn is_relevant(&self, folder: &Path, name: &OsStr) -> bool {
        // A name that is not UTF-8 is relevant.
        let Some(name) = name.to_str() else { return true };
        let of_root = self.roots().iter().find_map(|root| {
            let below = folder.strip_prefix(&root.path).ok()?;
            let mut parts = below.iter();
            for part in F::SHAPE.folder {
                match parts.next() {
                    None => return Some(name == *part),
                    Some(taken) if taken == *part => {}
                    Some(_) => return None,
                }
            }
            match (parts.next(), parts.next()) {
                (None, _) => Some(F::classify_name(name) != NameClass::Other),
                (Some(_), None) => {
                    Some([F::SHAPE.log_file, F::SHAPE.head_file].contains(&Some(name)))
                }
                _ => None,
            }
        });
        of_root.unwrap_or(false) || F::is_relevant_name(self, folder, name)
    }

    fn describe_missing_folder(&self) -> Option<String> {
        self.health.describe_missing_folder(&self.properties.dir)
    }

    fn health(&self) -> Vec<String> {
        if let Some(gone) =
            fs::missing_folder_line(&self.properties.dir).filter(|_| !self.is_expected_missing())
        {
            return vec![gone];
        }
        let mut out: Vec<String> = F::describe_missing(self).into_iter().collect();
        {
            let table = self.table.read();
            for log in table.logs.iter().filter(|log| !log.gone) {
                let Some(what) = F::log_remark(log) else { continue };
                out.push(format!(
                    "{} {what}",
                    sanitize_line(&table.raw_path(log, F::SHAPE.head_file))
                ));
            }
        }
        out.extend(self.health.fault_lines());
        truncate_lines(out)
    }

    fn remarks(&self) -> Vec<String> {
        // Nobody waits for a scan that is under way; then the last one counts.
        if self.scanning.try_lock().is_some_and(|listed| !*listed) {
            return Vec::new();
        }
        truncate_lines(F::remarks(self))
    }

    fn advice(&self) -> Vec<Advice> {
        F::describe_missing(self).map(Advice::warning).into_iter().collect()
    }

    fn source_path(&self, source: u32) -> Option<String> {
        let table = self.table.read();
        match LogSource::from_number(source) {
            LogSource::Kept => None,
            LogSource::Log(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.log_file)),
            LogSource::Head(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.head_file)),
        }
    }

    fn read_record(&self, at: &Location) -> Result<Record, StoreError> {
        self.with_line(at, |text| F::parse_record(self, at, text))
    }

    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        self.with_lines(at, |number, at, text| {
            if let Ok(record) = F::parse_record(self, at, text) {
                each(number, record);
            }
        });
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.read_bytes_at(at, limit)
    }

    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry> {
        self.stat_raw(path)
    }

    fn newest_raw_time(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn open_raw_file(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn check(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        self.check_logs(verify, report)
    }
}

#[cfg(test)]
mod tests;
