//! `raw/<store>/`: the store's own files, as they are now.
//!
//! Each name is looked up alone, so that the cost of `ls -l` for each file does not grow with the folder. The
//! time of a folder may be that of its newest entry, which takes a listing. That time is cached in proportion
//! to the duration of the listing.

use std::num::NonZeroUsize;
use std::time::Instant;

use lru::LruCache;

use super::listing::Listing;
use super::node::Node;
use super::{Error, Tree, join_path};
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::RawEntry;

/// Factor between the time that a folder's listing took and the time for which its result is cached.
const TIMES: u32 = 20;
/// Folders whose time is cached.
const FOLDERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// The time of a folder.
#[derive(Clone, Copy, Debug)]
struct CachedFolderTime {
    time: Option<Timestamp>,
    /// The generation of the index at that time.
    generation: u64,
    until: Instant,
}

/// The times of the last folders, by store and path.
#[derive(Debug)]
pub(super) struct RawTimeCache(Mutex<LruCache<(usize, String), CachedFolderTime>>);

impl Default for RawTimeCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(FOLDERS)))
    }
}

impl Tree {
    pub(super) fn list_raw(&self, number: usize, path: &str) -> Result<Listing, Error> {
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        let entries = store.list_raw_folder(path).ok_or(Error::NotFound)?;
        let listed = |entry: RawEntry| {
            let node = raw_node(number, path, &entry);
            let told = (!entry.is_dir).then_some((entry.size, entry.modified));
            (entry.name, node, told)
        };
        Ok(Listing::with_stats(entries.into_iter().map(listed)))
    }

    pub(super) fn find_raw(&self, number: usize, path: &str, name: &str) -> Result<Node, Error> {
        Ok(raw_node(number, path, &self.raw_entry(number, &join_path(path, name))?))
    }

    /// Returns a file or folder by its path, with its present size.
    pub(super) fn raw_entry(&self, number: usize, path: &str) -> Result<RawEntry, Error> {
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        store.stat_raw_entry(path).ok_or(Error::NotFound)
    }

    /// Returns the time of a folder.
    pub(super) fn raw_newest_time(&self, number: usize, path: &str) -> Option<Timestamp> {
        let (key, generation, start) =
            ((number, path.to_owned()), self.generation(), Instant::now());
        let seen = self.raw_times.0.lock().get(&key).copied();
        if let Some(seen) = seen.filter(|s| s.generation == generation && start < s.until) {
            return seen.time;
        }
        let time = self.index.stores().get(number)?.newest_raw_time(path);
        let until = Instant::now() + start.elapsed() * TIMES;
        self.raw_times.0.lock().put(key, CachedFolderTime { time, generation, until });
        time
    }
}

fn raw_node(number: usize, folder: &str, entry: &RawEntry) -> Node {
    let path = join_path(folder, &entry.name);
    if entry.is_dir { Node::RawDir(number, path) } else { Node::RawFile(number, path) }
}
