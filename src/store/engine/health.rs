//! What is wrong with a store, as its engine sees it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::locks::RwLock;
use crate::model::{sanitize_line, spelling};
use crate::store::fs::{self, FaultFlag};

/// At most this many broken or strange files are remembered by name.
const MAX_TROUBLE: usize = 1000;

/// What is wrong with single files, and whether that may pass.
#[derive(Debug, Default)]
pub struct StoreHealth {
    /// By path: what is wrong with it, in words.
    faults: RwLock<BTreeMap<String, String>>,
    /// Something could not be read since the last full scan began.
    pub read_fault: FaultFlag,
    /// The store's folder was there since the store was opened.
    was_seen: AtomicBool,
}

impl StoreHealth {
    /// Notes what is wrong with something at a path, or that nothing is.
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

    /// Says that the store's folder is not there any more, if so.
    pub fn describe_missing_folder(&self, dir: &Path) -> Option<String> {
        let gone = fs::missing_folder_line(dir);
        if gone.is_none() {
            self.was_seen.store(true, Ordering::Relaxed);
        }
        gone.filter(|_| self.was_seen.load(Ordering::Relaxed))
    }

    /// Forgets what is wrong with these paths.
    pub fn clear_faults(&self, is_one: impl Fn(&str) -> bool) {
        self.faults.write().retain(|path, _| !is_one(path));
    }

    /// What is wrong, a line each.
    pub fn fault_lines(&self) -> Vec<String> {
        let line = |(path, what): (&String, &String)| {
            format!("{} {what}", sanitize_line(&spelling::display_name(path)))
        };
        self.faults.read().iter().map(line).collect()
    }
}
