//! The faults of a store, as its engine sees them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::locks::RwLock;
use crate::model::{name_encoding, sanitize_line};
use crate::store::fs::{self, FaultFlag};

/// The number of broken or unexpected files that are remembered by name.
const MAX_TROUBLE: usize = 1000;

/// The faults of single files, and a flag for errors that may pass.
#[derive(Debug, Default)]
pub struct StoreHealth {
    /// The faults in words, by path.
    faults: RwLock<BTreeMap<String, String>>,
    /// Set if something could not be read since the last full scan began.
    pub read_fault: FaultFlag,
    /// True if the store's folder was there since the store was opened.
    was_seen: AtomicBool,
}

impl StoreHealth {
    /// Sets or clears the fault of a path.
    pub fn set_fault(&self, path: &str, what: Option<String>) {
        if what.is_none() && !self.faults.read().contains_key(path) {
            return;
        }
        let mut trouble = self.faults.write();
        match what {
            Some(what) if trouble.len() < MAX_TROUBLE || trouble.contains_key(path) => {
                trouble.insert(path.to_owned(), what);
            }
            Some(_) => {}
            None => drop(trouble.remove(path)),
        }
    }

    /// Notes that something cannot be read now.
    pub fn note_error(&self, path: &str, what: &str, error: &io::Error) {
        self.read_fault.note_error(error);
        self.set_fault(path, Some(format!("cannot {what}: {error}")));
    }

    /// Returns a line if the store's folder was there and is missing now.
    pub fn describe_missing_folder(&self, dir: &Path) -> Option<String> {
        let gone = fs::missing_folder_line(dir);
        if gone.is_none() {
            self.was_seen.store(true, Ordering::Relaxed);
        }
        gone.filter(|_| self.was_seen.load(Ordering::Relaxed))
    }

    /// Clears the faults of these paths.
    pub fn clear_faults(&self, is_one: impl Fn(&str) -> bool) {
        self.faults.write().retain(|path, _| !is_one(path));
    }

    /// Returns the faults, one line each.
    pub fn fault_lines(&self) -> Vec<String> {
        let line = |(path, what): (&String, &String)| {
            format!("{} {what}", sanitize_line(&name_encoding::display_name(path)))
        };
        self.faults.read().iter().map(line).collect()
    }
}
