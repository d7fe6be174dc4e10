//! `raw/<store>/`: the store's own files, as they are now.
//!
//! Each name is looked up alone, so that the cost of `ls -l` for each file does not grow with the folder. The
//! time of a folder may be that of its newest entry, which takes a listing. That time is cached in proportion
//! to the duration of the listing.

use std::num::NonZeroUsize;
use std::time::Instant;

use lru::LruCache;

use super::file::{OpenFile, OpenRequest};
use super::listing::Listing;
use super::node::{Ino, Node, NodeProperty};
use super::table::{NodeAttributes, TreeChanges, View, ViewKey};
use super::{CachePolicy, Error, Tree, join_path};
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::RawEntry;

/// Factor between the time that a folder's listing took and the time for which its result is cached.
const CACHE_TIME_FACTOR: u32 = 20;
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

/// A node of `raw/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RawKey {
    /// `raw/`
    Stores,
    /// A folder of a store: its number and path below it.
    Folder(usize, String),
    /// A file of a store.
    File(usize, String),
}

/// The view `raw/`.
#[derive(Debug)]
pub(super) struct RawView {
    /// The times of the last folders, by store and path.
    times: Mutex<LruCache<(usize, String), CachedFolderTime>>,
}

impl Default for RawView {
    fn default() -> Self {
        Self { times: Mutex::new(LruCache::new(FOLDERS)) }
    }
}

impl View for RawView {
    type Key = RawKey;

    fn node_properties(key: &RawKey) -> &'static [NodeProperty] {
        if let RawKey::File(..) = key { &[] } else { &[NodeProperty::Folder] }
    }

    fn inode_number(&self, tree: &Tree, key: &RawKey) -> Option<Ino> {
        let (RawKey::Folder(number, path) | RawKey::File(number, path)) = key else { return None };
        let node = ViewKey::Raw(key.clone()).into();
        Some(tree.assign_path_inode(&["raw", tree.store_name(*number), path], &node))
    }

    fn stat(&self, tree: &Tree, key: &RawKey) -> Result<NodeAttributes, Error> {
        let caching = match key {
            RawKey::File(number, path) => {
                return Ok(file_attributes(&stat_raw(tree, *number, path)?));
            }
            // The kernel caches its attributes for a moment, so that `ls -l` does not compute its time again for each
            // file.
            RawKey::Folder(number, path) if !path.is_empty() => {
                if !stat_raw(tree, *number, path)?.is_dir {
                    return Err(Error::NotFound);
                }
                CachePolicy::Brief
            }
            RawKey::Folder(..) | RawKey::Stores => CachePolicy::Folder,
        };
        Ok(NodeAttributes::of_folder(self.newest_time(tree, key), caching))
    }

    fn list(&self, tree: &Tree, folder: &RawKey) -> Result<Listing, Error> {
        match folder {
            RawKey::Stores => {
                let named = |n| (tree.store_name(n).to_owned(), store_folder(n));
                Ok(Listing::from_named((0..tree.index.stores().len()).map(named)))
            }
            RawKey::Folder(number, path) => {
                let store = tree.index.stores().get(*number).ok_or(Error::NotFound)?;
                let entries = store.list_raw_folder(path).ok_or(Error::NotFound)?;
                let listed = |entry: RawEntry| {
                    let node = raw_node(*number, path, &entry);
                    let told = (!entry.is_dir).then(|| file_attributes(&entry));
                    (entry.name, node, told)
                };
                Ok(Listing::with_attributes(entries.into_iter().map(listed)))
            }
            RawKey::File(..) => Err(Error::NotDir),
        }
    }

    fn find(&self, tree: &Tree, folder: &RawKey, name: &str) -> Result<Option<Node>, Error> {
        match folder {
            RawKey::Stores => {
                let found = tree.index.stores().iter().position(|store| store.name() == name);
                Ok(found.map(store_folder))
            }
            RawKey::Folder(number, path) => {
                let entry = stat_raw(tree, *number, &join_path(path, name))?;
                Ok(Some(raw_node(*number, path, &entry)))
            }
            RawKey::File(..) => Err(Error::NotDir),
        }
    }

    fn parent_folder(&self, _tree: &Tree, folder: &RawKey) -> Option<RawKey> {
        let RawKey::Folder(number, path) = folder else { return None };
        if path.is_empty() {
            return Some(RawKey::Stores);
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        Some(RawKey::Folder(*number, above.to_owned()))
    }

    fn open(&self, tree: &Tree, key: &RawKey, _access: &OpenRequest) -> Result<OpenFile, Error> {
        let RawKey::File(number, path) = key else { return Err(Error::IsDir) };
        let store = tree.index.stores().get(*number).ok_or(Error::NotFound)?;
        Ok(OpenFile::Raw(store.open_raw_file(path)?))
    }

    /// Returns the time of the newest file in a folder or below.
    fn newest_time(&self, tree: &Tree, key: &RawKey) -> Option<Timestamp> {
        match key {
            RawKey::Stores => (0..tree.index.stores().len())
                .filter_map(|number| self.newest_in_folder(tree, number, ""))
                .max(),
            RawKey::Folder(number, path) => self.newest_in_folder(tree, *number, path),
            RawKey::File(..) => None,
        }
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<RawKey> {
        if changes.index.other { vec![RawKey::Stores] } else { Vec::new() }
    }
}

impl RawView {
    fn newest_in_folder(&self, tree: &Tree, number: usize, path: &str) -> Option<Timestamp> {
        let (key, generation, start) =
            ((number, path.to_owned()), tree.generation(), Instant::now());
        let seen = self.times.lock().get(&key).copied();
        if let Some(seen) = seen.filter(|s| s.generation == generation && start < s.until) {
            return seen.time;
        }
        let time = tree.index.stores().get(number)?.newest_raw_time(path);
        let until = Instant::now() + start.elapsed() * CACHE_TIME_FACTOR;
        self.times.lock().put(key, CachedFolderTime { time, generation, until });
        time
    }
}

/// Returns a file or folder by its path, with its present size.
fn stat_raw(tree: &Tree, number: usize, path: &str) -> Result<RawEntry, Error> {
    let store = tree.index.stores().get(number).ok_or(Error::NotFound)?;
    store.stat_raw_entry(path).ok_or(Error::NotFound)
}

fn file_attributes(entry: &RawEntry) -> NodeAttributes {
    NodeAttributes::of_file(entry.size, entry.modified, CachePolicy::PerLookup)
}

/// Returns the folder of a store.
fn store_folder(number: usize) -> Node {
    ViewKey::Raw(RawKey::Folder(number, String::new())).into()
}

fn raw_node(number: usize, folder: &str, entry: &RawEntry) -> Node {
    let path = join_path(folder, &entry.name);
    let key = if entry.is_dir { RawKey::Folder } else { RawKey::File };
    ViewKey::Raw(key(number, path)).into()
}
