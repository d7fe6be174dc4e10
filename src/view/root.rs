//! The mount point, which has the entries of the table of views.

use super::generation_cache::GenerationCache;
use super::listing::Listing;
use super::node::{Ino, Node, NodeProperty};
use super::table::{ROOT_ENTRIES, TreeChanges, View, on_view};
use super::{Error, Tree};
use crate::model::Timestamp;

/// Inode number of the root of every FUSE mount.
const NUMBER: Ino = 1;

/// The view of the mount point.
#[derive(Debug, Default)]
pub(super) struct RootView {
    /// The newest time of the entries that only the index changes. Every `stat` of the mount point needs it.
    newest: GenerationCache<(), Option<Timestamp>>,
}

impl View for RootView {
    type Key = ();

    fn node_properties((): &()) -> &'static [NodeProperty] {
        &[NodeProperty::Folder, NodeProperty::LastingListing]
    }

    fn inode_number(&self, _tree: &Tree, (): &()) -> Option<Ino> {
        Some(NUMBER)
    }

    fn find_by_inode(&self, _tree: &Tree, tag: u64, low: u64) -> Option<()> {
        (tag == 0 && low == NUMBER).then_some(())
    }

    fn list(&self, tree: &Tree, (): &()) -> Result<Listing, Error> {
        let shown = ROOT_ENTRIES.iter().filter(|entry| entry.is_listed && entry.is_shown(tree));
        let named = shown.map(|entry| (entry.name.to_owned(), entry.node.clone()));
        let mut named: Vec<(String, Node)> = named.collect();
        named.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Listing::from_named(named))
    }

    fn find(&self, tree: &Tree, (): &(), name: &str) -> Result<Option<Node>, Error> {
        let entry = ROOT_ENTRIES.iter().find(|entry| entry.name == name);
        let entry = entry.filter(|entry| entry.is_shown(tree));
        if let Some(entry) = entry {
            on_view!(tree, entry.node, note_root_lookup());
        }
        Ok(entry.map(|entry| entry.node.clone()))
    }

    /// Returns the time of the newest entry.
    fn newest_time(&self, tree: &Tree, (): &()) -> Option<Timestamp> {
        let newest = |without_index| {
            let entries = ROOT_ENTRIES.iter().filter(|e| e.changes_without_index == without_index);
            entries.filter_map(|entry| on_view!(tree, entry.node, newest_time())).max()
        };
        newest(true).max(self.newest.get((), tree.generation(), || newest(false)))
    }

    fn stale_keys(&self, _changes: &TreeChanges<'_>) -> Vec<()> {
        vec![()]
    }
}
