//! A check for paths that lead to another folder than the watched one.
//!
//! inotify follows a folder, not its path. It reports no removal of a folder while anybody keeps a file of it
//! open. So the ancestors are watched as well, mounts are noticed, and the folder of each path is compared with
//! the watched one.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};

/// The identity of a folder: device and inode.
pub(super) type FolderId = (u64, u64);

/// Returns the folder that a path leads to now.
pub(super) fn folder_id(path: &Path) -> Option<FolderId> {
    let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir)?;
    Some((meta.dev(), meta.ino()))
}

/// Opens a file that polls as urgent data when something is mounted or unmounted.
pub(super) fn open_mountinfo() -> Option<File> {
    File::open("/proc/self/mountinfo").ok()
}

/// Events by which a folder is not what it was.
pub(super) const SELF: EventMask =
    EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED);

/// Events that every watch reports: the folder itself goes or moves.
pub(super) const OWN: WatchMask =
    WatchMask::DELETE_SELF.union(WatchMask::MOVE_SELF).union(WatchMask::ONLYDIR);

/// The watches of the ancestors of watched folders.
#[derive(Default)]
pub(super) struct AncestorWatches {
    /// The names in each ancestor that lead to a watched folder.
    names: HashMap<WatchDescriptor, HashSet<OsString>>,
}

impl AncestorWatches {
    /// Watches the ancestors of these folders. Returns the watches that are of no use here any more.
    pub fn watch_ancestors<'p>(
        &mut self,
        inotify: &Inotify,
        folders: impl Iterator<Item = &'p Path>,
    ) -> Vec<WatchDescriptor> {
        // The nearest ancestor reports every name in it. For those further up a report of their own move is
        // enough, because many names come and go in them.
        let mut wanted: HashMap<&Path, (WatchMask, HashSet<&OsStr>)> = HashMap::new();
        for folder in folders {
            let mut mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE;
            for path in folder.ancestors() {
                let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { break };
                let (masks, names) =
                    wanted.entry(above).or_insert_with(|| (WatchMask::empty(), HashSet::new()));
                let known = !names.insert(name) && masks.contains(mask);
                *masks |= mask;
                if known {
                    break;
                }
                mask = WatchMask::empty();
            }
        }
        let mut names: HashMap<WatchDescriptor, HashSet<OsString>> = HashMap::new();
        for (path, (mask, of)) in wanted {
            // An ancestor that cannot be watched is left to the comparison once a minute.
            if let Ok(watch) = inotify.watches().add(path, mask | OWN | WatchMask::MASK_ADD) {
                names.entry(watch).or_default().extend(of.into_iter().map(OsStr::to_owned));
            }
        }
        let old = std::mem::replace(&mut self.names, names);
        old.into_keys().filter(|watch| !self.contains(watch)).collect()
    }

    /// Returns true if a watch is of use here.
    pub fn contains(&self, watch: &WatchDescriptor) -> bool {
        self.names.contains_key(watch)
    }

    /// Returns true if an event may mean that a path leads elsewhere.
    pub fn may_move_folder(&self, event: &Event<&OsStr>) -> bool {
        let Some(names) = self.names.get(&event.wd) else { return false };
        let named =
            EventMask::CREATE | EventMask::DELETE | EventMask::MOVED_FROM | EventMask::MOVED_TO;
        event.mask.intersects(SELF)
            || event.mask.intersects(named) && event.name.is_some_and(|name| names.contains(name))
    }
}
