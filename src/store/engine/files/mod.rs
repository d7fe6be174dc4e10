//! Stores in which a message is a file.
//!
//! The engine owns all that lies between the disk and a [`Format`]:
//! - `look`: listing folders and looking at single files, without following any link; what is new,
//!   changed, or gone.
//! - `scan`: reading what changed, on all cores, and reporting it; waiting for half-written files.
//! - `table`: every file ever seen, and how that is saved. `copies`: those with one id. `changed`: those
//!   that held a verified message and hold something else now.
//! - `store`: what a store is asked. `open`: one file by its number. `put`: new files. `raw`, `watch`,
//!   `visit`: what `raw/` shows, which folders tell of
//!   news, the walk of `msgfs check`.
//!
//! Rules that hold for every format:
//!
//! 1. Nothing is opened through a symbolic link below the store's folder.
//! 2. A file that is unfinished and was touched less than [`GRACE`] ago is looked at again for as long,
//!    while everything else is reported at once.
//! 3. What cannot be read now stays what it was, and is tried again. What is gone, or is something else
//!    now, is gone. A store that is away as a whole hides nothing.
//! 4. A number stands for one message under one path and is never used again.
//! 5. One bad file never hides another.

mod changed;
mod copies;
mod format;
mod look;
mod open;
mod put;
mod raw;
mod scan;
mod store;
mod table;
pub mod unread;
mod visit;
mod watch;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::changed::TamperLog;
pub use self::copies::{FileCopies, IdLookup, hash_unmarked_files, other_copies};
pub use self::format::{
    ArrivalOrder, FileFormat, FileInput, FileReading, FileRejection, FileVerdict, MessageReporter,
    PassSummary, PathRole, PendingReport, describe_non_message,
};
pub use self::look::DirCache;
pub use self::open::StoreFile;
pub use self::put::{OpenFolder, PlaceOutcome};
use self::scan::JudgedFile;
pub use self::scan::ScanPass;
pub use self::table::{FileFacts, FileFlags, FileRow, FileTable, stamp_hash};
pub use self::visit::{WalkEntry, file_violation, list_names};
use super::health::StoreHealth;
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::store::{FolderListener, Store as _, StoreError, StoreProperties};

/// How long an unfinished file is waited for.
pub const GRACE: Duration = Duration::from_secs(1);
/// At most this many are named to people.
const NAMED: usize = 20;

/// The files of one store, shared by scans and readers.
#[derive(Debug)]
pub struct FileStore<F: FileFormat> {
    /// What does not change as long as it is open.
    pub properties: StoreProperties,
    /// Its format.
    pub format: F,
    /// Held for short moments only, and never while a sink is called.
    pub table: RwLock<FileTable<F::Facts>>,
    /// One scan at a time.
    memory: Mutex<ScanMemory>,
    /// Paths at which something changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// What is wrong with single files.
    pub health: StoreHealth,
    /// Who hears of folders before they are listed.
    listener: OnceLock<Arc<dyn FolderListener>>,
    /// The messages that were changed after they were verified.
    tamper_log: TamperLog,
}

/// What scans remember between them, besides the table.
#[derive(Debug, Default)]
struct ScanMemory {
    /// Everything was looked at.
    is_listed: bool,
    /// Print of what every judgement in the table rests on.
    basis: u64,
}

/// A path in a store.
pub(super) fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The components of a path in a store.
pub fn path_parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

impl<F: FileFormat> FileStore<F> {
    /// The files of a store. Nothing is looked at yet.
    ///
    /// # Errors
    /// If what is kept of them in the state folder cannot be read.
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

    /// What is wrong with the folder and what lies in it, in words.
    pub fn default_health(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.describe_missing_folder().into_iter().collect();
        lines.extend(self.fault_lines());
        lines.extend(self.unwatched_line());
        lines
    }

    /// What is wrong with single files, in words.
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
