//! Open folders and the requests that read them. Offsets are numbers of a listing that an open folder keeps. A program
//! that goes back to the beginning, as `rewinddir` does, gets the entries of that moment.

use std::sync::Arc;

use fuser::{FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::adapter::{FuseAdapter, GENERATION, cache_ttls, file_type};
use super::guard::run_guarded;
use crate::model::locks::Mutex;
use crate::view::reader::ProcessIdentity;
use crate::view::{Error, Listing, Node, NodeProperty, Tree};

/// Entries of a listing before those of the tree: `.` and `..`.
const FIRST: u64 = 2;

/// An open folder.
pub(super) struct OpenDir {
    node: Node,
    kept: Mutex<KeptListing>,
}

/// The listing of an open folder.
struct KeptListing {
    /// The generation of the tree before the listing was taken.
    generation: u64,
    listing: Arc<Listing>,
    /// True once its beginning was asked for.
    begun: bool,
}

impl OpenDir {
    /// Takes the listing of a folder.
    ///
    /// # Errors
    /// Those of [`Tree::cached_listing`].
    pub fn open(tree: &Tree, node: Node) -> Result<Self, Error> {
        let kept = Mutex::new(KeptListing::take(tree, &node, false)?);
        Ok(Self { node, kept })
    }

    /// Returns the listing to read from its beginning, and true if it was taken anew. The first reader gets the one of
    /// the open, unless the tree has changed.
    fn listing_from_start(&self, tree: &Tree) -> Result<(Arc<Listing>, bool), Error> {
        let generation = tree.generation();
        {
            let mut kept = self.kept.lock();
            if !kept.begun && kept.generation == generation {
                kept.begun = true;
                return Ok((Arc::clone(&kept.listing), false));
            }
        }
        tree.wait_for_sent(&self.node);
        let new = KeptListing::take(tree, &self.node, true)?;
        let listing = Arc::clone(&new.listing);
        *self.kept.lock() = new;
        Ok((listing, true))
    }

    /// Returns the listing to which offsets after the beginning belong.
    fn kept_listing(&self) -> Arc<Listing> {
        Arc::clone(&self.kept.lock().listing)
    }
}

impl KeptListing {
    fn take(tree: &Tree, node: &Node, begun: bool) -> Result<Self, Error> {
        // The generation is read first, so a change during the listing counts as a later one.
        let generation = tree.generation();
        Ok(Self { generation, listing: tree.cached_listing(node)?, begun })
    }
}

impl FuseAdapter {
    /// Serves `readdir`.
    pub fn reply_names(&self, caller: u32, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let done = run_guarded("readdir", || {
            let dir = self.dirs.get(fh).ok_or(Error::NotFound)?;
            let listing = self.listing_at(&dir, offset)?;
            self.emit_entries(caller, (&dir.node, &listing), offset, |next, name, node| {
                let ino = INodeNo(self.tree.inode_number(node));
                reply.add(ino, next, file_type(node.is_dir()), name)
            });
            Ok(())
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    /// Serves `readdirplus`.
    pub fn reply_attributes(
        &self,
        caller: u32,
        (ino, fh): (INodeNo, FileHandle),
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let done = run_guarded("readdirplus", || {
            let dir = self.dirs.get(fh).ok_or(Error::NotFound)?;
            let listing = self.listing_at(&dir, offset)?;
            let names = offset == 0
                && !self.tree.has_all_sizes(&listing)
                && self.walkers.should_list_names(caller, ino.0);
            self.emit_entries(caller, (&dir.node, &listing), offset, |next, name, node| {
                let number = next - 1;
                if names && number >= FIRST {
                    // The kernel then asks for the names alone.
                    return true;
                }
                // An entry that went after the listing was taken is not listed any more.
                let attr = match number.checked_sub(FIRST) {
                    Some(number) => listing.stat_entry(&self.tree, number as usize, node),
                    None => self.tree.stat_node(node),
                };
                let Ok(attr) = attr else { return false };
                let (entry, attrs) = cache_ttls(&attr);
                let (ino, ttl) = (INodeNo(attr.ino), entry.min(attrs));
                reply.add(ino, next, name, &ttl, &self.kernel_attr(&attr), GENERATION)
            });
            Ok(())
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    /// Returns the listing to read from an offset on.
    fn listing_at(&self, dir: &OpenDir, offset: u64) -> Result<Arc<Listing>, Error> {
        if offset > 0 {
            return Ok(dir.kept_listing());
        }
        let (listing, is_new) = dir.listing_from_start(&self.tree)?;
        if is_new {
            // The kernel may keep it as a copy, and it is of another moment than the last open.
            self.forget_cached_listing(&dir.node);
        }
        Ok(listing)
    }

    /// Passes the entries of a folder from `offset` on to `add`, each with the offset of the next, until `add`
    /// returns true because the reply is full. At the beginning of `inbox/` the lister is noted.
    fn emit_entries(
        &self,
        caller: u32,
        (folder, listing): (&Node, &Listing),
        offset: u64,
        mut add: impl FnMut(u64, &str, &Node) -> bool,
    ) {
        if folder.has(NodeProperty::ShowsUnread) && offset == 0 {
            self.tree.note_inbox_lister(ProcessIdentity::from_thread(caller));
        }
        // The kernel looks the entries up by the number of the folder, which their numbers must not push out.
        self.tree.inode_number(folder);
        let (mut name, end) = (String::new(), listing.len() as u64 + FIRST);
        for number in offset..end {
            name.clear();
            let node = match number {
                0 => {
                    name.push('.');
                    Some(folder.clone())
                }
                1 => {
                    name.push_str("..");
                    Some(self.tree.parent_folder(folder))
                }
                n => listing.push_entry_name(&self.tree, (n - FIRST) as usize, &mut name),
            };
            let Some(node) = node else { continue };
            if add(number + 1, &name, &node) {
                return;
            }
        }
    }
}
