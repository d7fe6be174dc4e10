//! The engine of stores in which a message is a file.
//!
//! The engine owns everything between the disk and a [`FileFormat`]:
//! - `look` lists folders and examines single files, without following any link. It finds what is new, changed, or
//!   gone.
//! - `scan` reads changed files, on all cores, and reports them. It waits for unfinished files.
//! - `table` holds every file ever seen, and saves them. `copies` finds the files with one id. `changed` finds files
//!   that held a verified message and hold something else now.
//! - `store` implements the trait of stores. `open` opens one file by its number. `put` places new files. `raw` lists
//!   `raw/`, `watch` names the folders to watch, and `visit` is the walk of `msgfs check`.
//!
//! Rules that hold for every format:
//!
//! 1. Nothing is opened through a symbolic link below the store's folder.
//! 2. An unfinished file that was changed less than [`GRACE`] ago is examined again for as long, while everything else
//!    is reported at once.
//! 3. A file that cannot be read now stays what it was, and is tried again. A file that is gone, or is something else
//!    now, is gone. A store that is away as a whole hides nothing.
//! 4. A number stands for one message under one path and is never used again.
//! 5. One bad file never hides another.

mod copies;
mod folder;
mod format;
mod open;
mod raw;
mod scan;
mod store;
mod table;
mod tamper_log;
pub mod unread;
mod visit;
mod walk;
mod watch;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use self::copies::{FileCopies, IdLookup, hash_unmarked_files, other_copies};
pub use self::folder::{OpenFolder, PlaceOutcome};
pub use self::format::{
    ArrivalOrder, FileFormat, FileInput, FileReading, FileRejection, FileVerdict, MessageReporter,
    PassSummary, PathRole, PendingReport, describe_non_message,
};
pub use self::open::StoreFile;
use self::scan::JudgedFile;
pub use self::scan::ScanPass;
pub use self::table::{FileFacts, FileFlags, FileRow, FileTable, stamp_hash};
use self::tamper_log::TamperLog;
pub use self::visit::{WalkEntry, file_violation, list_names};
pub use self::walk::DirCache;
use super::health::StoreHealth;
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::store::{FolderListener, Store as _, StoreError, StoreProperties};

/// The time for which a scan waits for an unfinished file.
pub const GRACE: Duration = Duration::from_secs(1);
/// The number of faults that people are shown.
const NAMED: usize = 20;

/// The files of one store, shared by scans and readers.
#[derive(Debug)]
pub struct FileStore<F: FileFormat> {
    /// The properties, which do not change as long as it is open.
    pub properties: StoreProperties,
    /// Its format.
    pub format: F,
    /// The table of files. It is locked for short moments only, and never while a sink is called.
    pub table: RwLock<FileTable<F::Facts>>,
    /// The state of scans. Its lock allows one scan at a time.
    memory: Mutex<ScanMemory>,
    /// Paths at which something changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// The faults of single files.
    pub health: StoreHealth,
    /// The listener that hears of folders before they are listed.
    listener: OnceLock<Arc<dyn FolderListener>>,
    /// The messages that were changed after they were verified.
    tamper_log: TamperLog,
}

/// The state that scans keep between them, besides the table.
#[derive(Debug, Default)]
struct ScanMemory {
    /// True if everything was scanned.
    is_listed: bool,
    /// The hash of the context on which every judgement in the table rests.
    basis: u64,
}

/// Returns the path of a name in a folder of a store.
pub(super) fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Returns the components of a path in a store.
pub fn path_parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

impl<F: FileFormat> FileStore<F> {
    /// Returns a store whose files are not scanned yet.
    ///
    /// # Errors
    /// If the notes on them in the state folder cannot be read.
    pub fn new(about: StoreProperties, format: F) -> Result<Self, StoreError> {
        Ok(Self {
            tamper_log: TamperLog::open(about.state.clone())?,
            properties: about,
            format,
            table: RwLock::with_level(LockLevel::Table, FileTable::default()),
            memory: Mutex::with_level(LockLevel::Store, ScanMemory::default()),
            noted: Mutex::default(),
            health: StoreHealth::default(),
            listener: OnceLock::new(),
        })
    }

    fn take_noted_paths(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }

    fn replace_table(&self, table: FileTable<F::Facts>, with: ScanMemory) {
        let mut memory = self.memory.lock();
        *memory = with;
        self.format.note_restored_table(&table);
        *self.table.write() = table;
    }

    /// Returns the faults of the folder and its files, in words.
    pub fn default_health(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.describe_missing_folder().into_iter().collect();
        lines.extend(self.fault_lines());
        lines.extend(self.unwatched_line());
        lines
    }

    /// Returns the faults of single files, in words.
    pub fn fault_lines(&self) -> Vec<String> {
        let mut lines = self.health.fault_lines();
        let more = lines.len().saturating_sub(NAMED);
        lines.truncate(NAMED);
        if more > 0 {
            lines.push(format!("and {more} more files"));
        }
        lines
    }
}
