//! The store on the engine, whatever its sources are.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Format;
use super::health::StoreHealth;
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::store::fs;
use crate::store::{
    Advice, Facets, FolderListener, MessageReader, RawTree, ScanSink, Store, StoreError,
    StoreProperties,
};

/// A store of a format `F`, with a table `T` of its sources and a reader `R` of them.
pub struct SourceStore<F, T, R> {
    /// The properties, which do not change as long as it is open.
    pub properties: StoreProperties,
    /// Its format.
    pub format: F,
    /// The table of its sources. It is locked for short moments only, and never while a sink is called.
    pub table: RwLock<T>,
    /// The faults of single files.
    pub health: StoreHealth,
    /// The state of the reader of sources.
    pub(crate) reader: R,
    /// The state of scans. Its lock allows one scan at a time.
    pub(super) memory: Mutex<ScanMemory>,
    /// Paths at which something changed since the last scan.
    pub(super) noted: Mutex<HashSet<PathBuf>>,
    /// The listener that is told of folders before they are listed.
    pub(super) listener: OnceLock<Arc<dyn FolderListener>>,
}

/// The state that scans keep between them, besides the table.
#[derive(Debug, Default)]
pub struct ScanMemory {
    /// True if everything was scanned.
    pub is_listed: bool,
    /// The hash of the context on which the table depends.
    pub basis: u64,
}

/// The part of a store that depends on what its sources are.
pub trait Engine: MessageReader + RawTree + Send + Sync {
    /// Reads the state that the reader keeps in a folder of msgfs; see [`Store::read_state`].
    ///
    /// # Errors
    /// As for [`Store::read_state`].
    fn load_reader_state(&self, _dir: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns true if a noted path is not taken in yet; see [`Store::has_unscanned_changes`].
    fn has_untaken_paths(&self) -> bool {
        true
    }

    /// Returns the time at which an unfinished file counts; see [`Store::due_time`].
    fn find_due_time(&self) -> Option<Instant> {
        None
    }

    /// Reports everything that is new or changed; see [`Store::scan`].
    ///
    /// # Errors
    /// As for [`Store::scan`].
    fn scan_sources(
        &self,
        memory: &mut ScanMemory,
        full: bool,
        sink: &mut dyn ScanSink,
    ) -> Result<(), StoreError>;

    /// Returns the table as bytes.
    fn save_table(&self) -> Vec<u8>;

    /// Restores the table from bytes, or empties it. Returns the hash of its context; `None` if the
    /// bytes cannot be used, and then the table stays.
    fn replace_table(&self, saved: Option<&[u8]>) -> Option<u64>;

    /// Returns true if sources were seen before the store was opened.
    fn has_earlier_sources(&self) -> bool {
        false
    }

    /// Returns the folders in which sources lie or will lie.
    fn source_folders(&self) -> Vec<PathBuf>;

    /// Returns true if a name in a folder is that of a source, or of a folder of sources.
    fn is_source_name(&self, folder: &Path, name: &OsStr) -> bool;

    /// Returns the remarks of the format; see [`Store::remarks`].
    fn list_remarks(&self) -> Vec<String>;

    /// Returns the faults of the folder and its files, in words.
    fn default_health(&self) -> Vec<String>;
}

impl<F, T: Default, R> SourceStore<F, T, R> {
    /// Returns a store whose sources are not scanned yet.
    pub(super) fn unscanned(properties: StoreProperties, format: F, reader: R) -> Self {
        Self {
            properties,
            format,
            table: RwLock::with_level(LockLevel::Table, T::default()),
            health: StoreHealth::default(),
            reader,
            memory: Mutex::with_level(LockLevel::Store, ScanMemory::default()),
            noted: Mutex::default(),
            listener: OnceLock::new(),
        }
    }
}

impl<F, T, R> SourceStore<F, T, R> {
    /// Returns the paths at which something changed since the last scan, and forgets them.
    pub(super) fn take_noted_paths(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }
}

impl<F, T, R> fmt::Debug for SourceStore<F, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.properties.fmt(f)
    }
}

/// Returns the first lines, and a line with the number of further ones.
pub(super) fn truncate_lines(mut lines: Vec<String>, most: usize, noun: &str) -> Vec<String> {
    let more = lines.len().saturating_sub(most);
    lines.truncate(most);
    if more > 0 {
        lines.push(format!("and {more} more{noun}"));
    }
    lines
}

impl<F, T, R> Store for SourceStore<F, T, R>
where
    F: Format<Self>,
    Self: Engine,
{
    fn properties(&self) -> &StoreProperties {
        &self.properties
    }

    fn facets(&self) -> Facets<'_> {
        F::facets(self)
    }

    fn note_change(&self, path: &Path) {
        F::note_change(self, path);
        self.noted.lock().insert(path.to_owned());
    }

    fn read_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.load_reader_state(dir)
    }

    fn has_unscanned_changes(&self) -> bool {
        self.has_untaken_paths()
    }

    fn is_failing(&self) -> bool {
        self.health.read_fault.is_set()
    }

    fn due_time(&self) -> Option<Instant> {
        self.find_due_time()
    }

    fn scan(&self, full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError> {
        let mut memory = self.memory.lock();
        // If the folder exists now, the call notes that, so that a missing folder is reported from now on.
        self.health.describe_missing_folder(&self.properties.dir);
        self.scan_sources(&mut memory, full, sink)
    }

    fn save_cursors(&self) -> Vec<u8> {
        self.save_table()
    }

    fn restore_cursors(&self, saved: &[u8]) -> bool {
        let mut memory = self.memory.lock();
        let Some(basis) = self.replace_table(Some(saved)) else { return false };
        // The folders are listed again, and only changed sources are read.
        *memory = ScanMemory { basis, is_listed: false };
        true
    }

    fn reset_cursors(&self) {
        let mut memory = self.memory.lock();
        *memory = ScanMemory::default();
        self.replace_table(None);
        self.take_noted_paths();
    }

    fn folders_to_watch(&self) -> Vec<PathBuf> {
        let mut out = F::extra_watched_folders(self);
        out.extend(self.source_folders());
        out.sort_unstable();
        out.dedup();
        out
    }

    fn set_folder_listener(&self, listener: Arc<dyn FolderListener>) {
        let _ = self.listener.set(listener);
    }

    fn is_relevant(&self, folder: &Path, name: &OsStr) -> bool {
        self.is_source_name(folder, name) || F::is_relevant_path(self, &folder.join(name))
    }

    fn describe_missing_folder(&self) -> Option<String> {
        let dir = &self.properties.dir;
        let missed = self.health.describe_missing_folder(dir);
        missed.or_else(|| fs::missing_folder_line(dir).filter(|_| self.has_earlier_sources()))
    }

    fn health(&self) -> Vec<String> {
        F::health(self)
    }

    fn remarks(&self) -> Vec<String> {
        self.list_remarks()
    }

    fn advice(&self) -> Vec<Advice> {
        F::advice(self)
    }
}
