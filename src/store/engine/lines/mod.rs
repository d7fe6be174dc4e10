//! The reader of stores in which a message is a line of a log that only grows.
//!
//! - [`log`] reads a log as a run of lines and keeps the cursor. `table` holds all logs.
//! - `log_file` opens a log, and `tree` walks through folders of logs.
//! - `survey` finds the logs that may have changed. `scan` finds their changes and reads them. `fold` accepts the
//!   contents of their lines.
//! - `read` reads one message. `append` writes a new one. `raw` and `check` work on the files themselves.
//!
//! A format ([`LineFormat`] in `format`) defines the names of logs, the contents of lines, and the lines to append.

pub mod append;
pub mod check;
mod fold;
mod format;
pub mod log;
pub mod log_file;
mod raw;
mod read;
pub mod scan;
mod survey;
pub mod table;
mod tree;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::sources::{ScanMemory, truncate_lines};
use super::{Engine, SourceStore};
use crate::model::locks::{LockLevel, Mutex};
use crate::model::sanitize_line;
use crate::store::fs::{self, Stamp, read_range};
use crate::store::{
    ClaimVerifier, Location, MessageReader, Record, ScanSink, SourceTitle, StoreError, StoreSpec,
    ViolationReporter,
};
use append::UnsyncedLogs;
pub use format::{LineFormat, LogFacts, LogReading, LogShape, LogTree, NameClass};
use read::{CountedLine, UnpackedLog};
use table::{KEPT, LogRoot, LogSource, LogTable};

/// The number of lines of one kind that are shown to people.
const SHOWN: usize = 50;

/// A store of logs.
pub type LineStore<F> = SourceStore<F, LogTable<F>, AppendedLines>;

/// The state of the reader of appended lines.
#[derive(Debug)]
pub struct AppendedLines {
    /// The compressed log that was unpacked last.
    unpacked: Mutex<Option<UnpackedLog>>,
    /// The folders that the last walk through a tree of logs came to.
    folders: Mutex<BTreeSet<PathBuf>>,
    /// The line that was counted last. The lines of a log are mostly asked for one after the other.
    counted: Mutex<CountedLine>,
    /// Appends that may not be on disk. The lock allows one append at a time.
    pub(crate) appending: Mutex<UnsyncedLogs>,
}

impl<F: LineFormat> LineStore<F> {
    /// Opens a store.
    ///
    /// # Errors
    /// If the format cannot open it.
    pub fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let (format, about) = F::open(spec)?;
        let reader = AppendedLines {
            unpacked: Mutex::default(),
            folders: Mutex::default(),
            counted: Mutex::default(),
            appending: Mutex::with_level(LockLevel::Store, UnsyncedLogs::default()),
        };
        Ok(Self::unscanned(about, format, reader))
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

impl<F: LineFormat> Engine for LineStore<F> {
    fn load_reader_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.format.load_state(dir)
    }

    /// Returns true if a noted path is not taken in yet. The writer of a change notes it, and so does the watch of the
    /// folder. The second note needs no scan.
    fn has_untaken_paths(&self) -> bool {
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

    fn scan_sources(
        &self,
        memory: &mut ScanMemory,
        full: bool,
        sink: &mut dyn ScanSink,
    ) -> Result<(), StoreError> {
        scan::scan_logs(self, &mut memory.is_listed, full, sink)
    }

    fn save_table(&self) -> Vec<u8> {
        self.table.read().to_bytes()
    }

    fn replace_table(&self, saved: Option<&[u8]>) -> Option<u64> {
        let table = saved.map_or_else(|| Some(LogTable::default()), LogTable::from_bytes)?;
        *self.table.write() = table;
        Some(0)
    }

    /// Returns the folders of logs. For a root without logs, it is the folder in which they will appear.
    fn source_folders(&self) -> Vec<PathBuf> {
        let roots = self.roots();
        let shown = |root: &&LogRoot| root.here || root.is_main();
        let mut out: Vec<PathBuf> = roots.iter().filter(shown).map(Self::deepest_folder).collect();
        out.extend(self.reader.folders.lock().iter().cloned());
        if F::SHAPE.log_file.is_some() {
            let table = self.table.read();
            for (n, _) in table.iter_numbered().filter(|(_, log)| !log.gone) {
                let place = table.log_folder_path(n);
                out.extend(place.map(|(root, parts)| parts.iter().fold(root, |p, s| p.join(s))));
            }
        }
        out
    }

    fn is_source_name(&self, folder: &Path, name: &OsStr) -> bool {
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
            if F::SHAPE.tree.is_some() {
                let above = parts.map(OsStr::to_str).collect::<Option<Vec<_>>>()?;
                let path = [above.as_slice(), &[name]].concat().join("/");
                let is_log = F::classify_name(F::SHAPE.log_name(&path)) != NameClass::Other;
                return Some(is_log || F::SHAPE.is_tree_folder(&path));
            }
            match (parts.next(), parts.next()) {
                (None, _) => Some(F::classify_name(name) != NameClass::Other),
                (Some(_), None) => {
                    Some([F::SHAPE.log_file, F::SHAPE.head_file].contains(&Some(name)))
                }
                _ => None,
            }
        });
        of_root.unwrap_or(false)
    }

    fn list_remarks(&self) -> Vec<String> {
        // Nobody waits for a scan that is under way; then the last one counts.
        if self.memory.try_lock().is_some_and(|memory| !memory.is_listed) {
            return Vec::new();
        }
        truncate_lines(F::remarks(self), SHOWN, "")
    }

    fn default_health(&self) -> Vec<String> {
        let missing = F::describe_missing(self);
        let gone = fs::missing_folder_line(&self.properties.dir);
        // A folder that was never seen is not gone.
        let is_new =
            self.is_expected_missing() || missing.is_some() && self.table.read().logs.is_empty();
        if let Some(gone) = gone.filter(|_| !is_new) {
            return vec![gone];
        }
        let mut out: Vec<String> = missing.into_iter().collect();
        {
            let table = self.table.read();
            let remark = |log: &table::LogRowOf<F>| {
                let path = table.raw_path(log, F::SHAPE.head_file);
                F::log_remark(log).map(|what| format!("{} {what}", sanitize_line(&path)))
            };
            let logs = table.logs.iter().filter(|log| !log.gone);
            let remarks: BTreeSet<String> = logs.filter_map(remark).collect();
            out.extend(remarks);
        }
        out.extend(self.health.fault_lines());
        truncate_lines(out, SHOWN, "")
    }
}

impl<F: LineFormat> MessageReader for LineStore<F> {
    fn source_path(&self, source: u32) -> Option<String> {
        let table = self.table.read();
        match LogSource::from_number(source) {
            LogSource::Kept => None,
            LogSource::Log(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.log_file)),
            LogSource::Head(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.head_file)),
        }
    }

    fn line_number(&self, at: &Location) -> u64 {
        self.count_lines(at).unwrap_or(0)
    }

    fn is_my_log(&self, source: u32) -> bool {
        let LogSource::Log(number) = LogSource::from_number(source) else { return false };
        self.table
            .read()
            .get(number)
            .is_some_and(|log| F::log_key(log) == self.properties.me && !F::is_conflict_copy(log))
    }

    fn source_titles(&self) -> Vec<SourceTitle> {
        let table = self.table.read();
        let titles = table.iter_numbered().filter_map(|(n, log)| {
            Some(SourceTitle {
                source: LogSource::Log(n).number(),
                path: table.raw_path(log, F::SHAPE.log_file),
                title: log.facts.title()?.to_owned(),
            })
        });
        titles.collect()
    }

    fn read_record(&self, at: &Location) -> Result<Record, StoreError> {
        let mut record = self.with_line(at, |text| F::parse_record(self, at, text))?;
        record.is_my_name_unproven = record.message.from.as_ref() == Some(&self.properties.me)
            && LogSource::from_number(at.source)
                .log_number()
                .is_some_and(|n| self.table.read().get(n).is_some_and(F::is_conflict_copy));
        Ok(record)
    }

    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        self.with_lines(at, |number, at, text| {
            if let Ok(record) = F::parse_record(self, at, text) {
                each(number, record);
            }
        });
    }

    fn content_digest(&self, at: &Location) -> Result<[u8; 32], StoreError> {
        F::content_digest(self, at)
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        let limit = limit.min(at.len as usize);
        if at.source == KEPT {
            return self.format.read_kept(at.offset, limit);
        }
        let file = self.open_source(at.source)?;
        read_range(&file, at.offset, limit).map_err(|e| StoreError::io(&self.properties.dir, e))
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
