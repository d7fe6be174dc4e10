//! The reader of stores in which a message is a file.
//!
//! It owns everything between the disk and a [`FileFormat`]:
//! - `format` is what a format says of files. `walk` lists folders and examines single files, without following any
//!   link. It finds what is new, changed, or gone.
//! - `batch` reads and parses changed files. `scan` uses it on all cores, and reports the messages. It waits for
//!   unfinished files, or leaves them to the next scan if a watcher calls it in time.
//! - `table` holds every file ever seen, and saves them. `copies` finds the files with one id, and `qualifier_log`
//!   keeps which message had an id first. `tamper_log` finds files that held a verified message and hold something else
//!   now.
//! - `store` is the part of the engine that such stores have alone. `open` opens one file by its number.
//!   `folder` has the folders into which new files are put. `unread` counts unread messages. `raw` lists `raw/`,
//!   `watch` names the folders to watch, and `visit` is the walk of `msgfs check`.
//!
//! Rules that hold for every format:
//!
//! 1. Nothing is opened through a symbolic link below the store's folder.
//! 2. An unfinished file that was changed less than [`GRACE`] ago is examined again until that time is over. Everything
//!    else is reported at once.
//! 3. A file that cannot be read now stays what it was, and is tried again. A file that is gone, or is something else
//!    now, is gone. A store that is away as a whole hides nothing.
//! 4. A number stands for one message under one path and is never used again.
//! 5. One bad file never hides another.

mod batch;
mod copies;
mod folder;
mod format;
mod open;
mod qualifier_log;
mod raw;
mod scan;
mod store;
mod table;
mod tamper_log;
pub mod unread;
mod visit;
mod walk;
mod watch;

use std::collections::HashMap;
use std::time::{Duration, Instant};

pub use self::copies::{FileCopies, IdLookup, hash_unmarked_files, other_copies};
pub use self::folder::{OpenFolder, PlaceOutcome};
pub use self::format::{
    ArrivalOrder, FileFormat, FileInput, FileReading, FileRejection, FileVerdict, MessageReporter,
    PassSummary, PathRole, PendingReport, describe_non_message,
};
pub use self::open::StoreFile;
use self::qualifier_log::QualifierLog;
pub use self::scan::ScanPass;
use self::scan::{JudgedFile, UnfinishedFile};
pub use self::table::{FileFacts, FileFlags, FileRow, FileTable, stamp_hash};
use self::tamper_log::TamperLog;
pub use self::visit::{WalkEntry, file_violation, list_names};
pub use self::walk::DirCache;
use super::SourceStore;
use super::sources::truncate_lines;
use crate::model::locks::Mutex;
use crate::store::{Store, StoreError, StoreProperties};

/// The time for which an unfinished file does not count.
pub const GRACE: Duration = Duration::from_secs(1);
/// The interval between examinations of an unfinished file.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The number of faults that people are shown.
const NAMED: usize = 20;

/// A store in which a message is a file.
pub type FileStore<F> = SourceStore<F, FileTable<<F as FileFormat>::Facts>, WholeFiles>;

/// The state of the reader of whole files.
#[derive(Debug)]
pub struct WholeFiles {
    /// The messages that were changed after they were verified.
    tamper_log: TamperLog,
    /// The messages whose ids carry a hash.
    qualifier_log: QualifierLog,
    /// The files that the last scan left unfinished, by number.
    unfinished: Mutex<HashMap<u32, UnfinishedFile>>,
}

/// Calls `scan` until no file of the store is unfinished, or for [`GRACE`]. A scan that a watcher follows waits for no
/// file.
pub fn await_unfinished(store: &dyn Store, mut scan: impl FnMut()) {
    let until = Instant::now() + GRACE;
    while store.due_time().is_some() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        scan();
    }
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
        let reader = WholeFiles {
            tamper_log: TamperLog::open(about.state.clone())?,
            qualifier_log: QualifierLog::open(about.state.clone())?,
            unfinished: Mutex::default(),
        };
        Ok(Self::unscanned(about, format, reader))
    }

    /// Returns the faults of single files, in words.
    pub fn fault_lines(&self) -> Vec<String> {
        truncate_lines(self.health.fault_lines(), NAMED, " files")
    }
}
