//! What is wrong with a store, as its engine sees it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::locks::RwLock;
use crate::model::{one_line, spelling};
use crate::store::fs::{self, Fault};

/// At most this many broken or strange files are remembered by name.
const MAX_TROUBLE: usize = 1000;

/// What is wrong with single files, and whether that may pass.
#[derive(Debug, Default)]
pub struct Health {
    /// By path: what is wrong with it, in words.
    trouble: RwLock<BTreeMap<String, String>>,
    /// Something could not be read since the last full scan began.
    pub fault: Fault,
    /// The store's folder was there since the store was opened.
    there: AtomicBool,
}

impl Health {
    /// Notes what is wrong with something at a path, or that nothing is.
    pub fn set(&self, path: &str, what: Option<String>) {
        if what.is_none() && !self.trouble.read().contains_key(path) {
            return;
        }
        let mut trouble = self.trouble.write();
        match what {
            Some(what) if trouble.len() < MAX_TROUBLE || trouble.contains_key(path) => {
                trouble.insert(path.to_owned(), what);
            }
            Some(_) => {}
            None => drop(trouble.remove(path)),
        }
    }

    /// Notes that something cannot be read now.
    pub fn cannot(&self, path: &str, what: &str, error: &io::Error) {
        self.fault.note(error);
        self.set(path, Some(format!("cannot {what}: {error}")));
    }

    /// Says that the store's folder is not there any more, if so.
    pub fn missed(&self, dir: &Path) -> Option<String> {
        let gone = fs::away_line(dir);
        if gone.is_none() {
            self.there.store(true, Ordering::Relaxed);
        }
        gone.filter(|_| self.there.load(Ordering::Relaxed))
    }

    /// Forgets what is wrong with these paths.
    pub fn forget(&self, is_one: impl Fn(&str) -> bool) {
        self.trouble.write().retain(|path, _| !is_one(path));
    }

    /// What is wrong, a line each.
    pub fn lines(&self) -> Vec<String> {
        let line = |(path, what): (&String, &String)| {
            format!("{} {what}", one_line(&spelling::shown(path)))
        };
        self.trouble.read().iter().map(line).collect()
    }
}
