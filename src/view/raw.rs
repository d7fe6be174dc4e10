//! `raw/<store>/`: the store's own files.
//!
//! A folder that was listed is remembered for a moment, so that `ls -l` lists it once and not once a
//! file. The size of a file is always that of the file as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listing::Listing;
use super::node::Node;
use super::{Error, Tree, join_path};
use crate::model::locks::Mutex;
use crate::store::RawEntry;

/// For how long a folder is remembered at least; one that took long to list, longer.
const FRESH: Duration = Duration::from_secs(1);
/// How many times as long as the listing took.
const TIMES: u32 = 20;

/// A folder of a store, by the name of each entry.
#[derive(Debug)]
struct Folder {
    /// Store, path, and generation of the index.
    of: (usize, String, u64),
    until: Instant,
    entries: BTreeMap<String, RawEntry>,
}

/// The folder listed last.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Option<Arc<Folder>>>);

impl Tree {
    fn raw_folder(&self, number: usize, path: &str) -> Result<Arc<Folder>, Error> {
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        let (generation, start) = (self.generation(), Instant::now());
        let entries = store.raw_list(path).ok_or(Error::NotFound)?;
        let folder = Arc::new(Folder {
            of: (number, path.to_owned(), generation),
            until: Instant::now() + FRESH.max(start.elapsed() * TIMES),
            entries: entries.into_iter().map(|e| (e.name.clone(), e)).collect(),
        });
        *self.raw.0.lock() = Some(Arc::clone(&folder));
        Ok(folder)
    }

    pub(super) fn list_raw(&self, number: usize, path: &str) -> Result<Listing, Error> {
        let folder = self.raw_folder(number, path)?;
        Ok(Listing::named(folder.entries.values().map(|e| (e.name.clone(), node(number, path, e)))))
    }

    /// A file or folder by its name.
    fn raw_named(&self, number: usize, path: &str, name: &str) -> Result<RawEntry, Error> {
        let of = (number, path.to_owned(), self.generation());
        let seen = self.raw.0.lock().clone();
        let seen = seen.filter(|seen| seen.of == of && Instant::now() < seen.until);
        if let Some(entry) = seen.and_then(|seen| seen.entries.get(name).cloned()) {
            return Ok(entry);
        }
        let folder = self.raw_folder(number, path)?;
        folder.entries.get(name).cloned().ok_or(Error::NotFound)
    }

    pub(super) fn find_raw(&self, number: usize, path: &str, name: &str) -> Result<Node, Error> {
        Ok(node(number, path, &self.raw_named(number, path, name)?))
    }

    /// A file, with the size it has now.
    pub(super) fn raw_entry(&self, number: usize, path: &str) -> Result<RawEntry, Error> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let entry = self.raw_named(number, folder, name)?;
        let store = self.index.stores().get(number).filter(|_| !entry.is_dir);
        match store.ok_or(Error::NotFound)?.raw_open(path) {
            Ok(file) => Ok(RawEntry { size: file.metadata()?.len(), ..entry }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NotFound),
            // It is listed, though it cannot be read.
            Err(_) => Ok(entry),
        }
    }
}

fn node(number: usize, folder: &str, entry: &RawEntry) -> Node {
    let path = join_path(folder, &entry.name);
    if entry.is_dir { Node::RawDir(number, path) } else { Node::RawFile(number, path) }
}
