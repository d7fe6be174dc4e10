//! `stat` of every node, and lookup of a node by name.

use super::node::{Ino, Node};
use super::table::{NodeAttributes, on_view};
use super::{Error, Listing, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::Timestamp;

/// The time for which a cache may trust a name and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// The name and the attributes are trusted until they are invalidated: messages do not change.
    Immutable,
    /// For a folder, both are trusted for a short time at most, or until they are invalidated. For a file, only the
    /// name has this limit.
    Folder,
    /// The name is never trusted; the attributes of its target are trusted until they are invalidated.
    Moving,
    /// The name is never trusted; the attributes of its target are trusted for a moment. So each lookup of a path asks
    /// msgfs once.
    PerLookup,
    /// Both are trusted for a moment.
    Brief,
    /// Neither is trusted at all.
    Volatile,
}

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// True for a folder.
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u16,
    /// Exact size in bytes.
    pub size: u64,
    /// Modification time.
    pub time: Timestamp,
    /// Time for which a cache may trust them.
    pub caching: CachePolicy,
}

/// The time of `README.txt`, which changes only with the program: 2026-01-01.
pub(super) const README_TIME: Timestamp = Timestamp::from_secs(1_767_225_600);
/// The time of empty folders, and of files without a time of their own.
pub(super) const NO_TIME: Timestamp = Timestamp::from_secs(0);

impl Tree {
    /// Returns the name of a store.
    pub(super) fn store_name(&self, number: usize) -> &str {
        self.index.store(number).name()
    }

    /// Finds an entry of a folder by name, listed or not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        self.index.require_sound_tables();
        on_view!(self, parent, find(name))?.ok_or(Error::NotFound)
    }

    /// Finds an entry of a listing by name.
    pub(super) fn find_in(&self, listing: &Listing, name: &str) -> Option<Node> {
        listing.iter_entries(self).find(|(n, _)| n == name).map(|(_, node)| node)
    }

    /// Finds a thread by its name, also one that begins with a message that was just sent.
    pub(super) fn find_thread(&self, name: &str) -> Option<ThreadIx> {
        self.thread_names.find_thread_by_name(name).or_else(|| {
            self.settle_sent_messages();
            self.thread_names.find_thread_by_name(name)
        })
    }

    /// Returns the attributes of a node.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the node is gone, store errors as they come.
    pub fn stat_node(&self, node: &Node) -> Result<Attr, Error> {
        Ok(self.make_attr(node, &on_view!(self, node, stat())?))
    }

    /// Returns the attributes of a node as the kernel gets them.
    pub(super) fn make_attr(&self, node: &Node, known: &NodeAttributes) -> Attr {
        let NodeAttributes { mode, is_private, size, time, caching } = *known;
        let mode = if is_private { mode } else { self.widen_mode(mode) };
        let ino = self.inode_number(node);
        Attr { ino, is_dir: node.is_dir(), mode, size, time, caching }
    }

    /// Gives every user the owner's rights to read and search, if every user may read.
    fn widen_mode(&self, mode: u16) -> u16 {
        if self.settings.allow_other {
            mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6
        } else {
            mode
        }
    }

    /// Returns the attributes of a message's file.
    pub(super) fn stat_message(
        &self,
        ix: MsgIx,
        caching: CachePolicy,
    ) -> Result<NodeAttributes, Error> {
        let (size, caching) = match self.texts.message_size(ix) {
            // The text may come back at any time.
            Err(Error::NoText) => (self.texts.shown_text(ix)?.len() as u64, CachePolicy::Volatile),
            size => (size?, caching),
        };
        Ok(NodeAttributes::of_file(size, self.texts.live_entry(ix)?.time(), caching))
    }

    /// Returns the folder above a folder.
    pub fn parent_folder(&self, folder: &Node) -> Node {
        self.views.parent_folder(self, folder)
    }

    /// Returns the file name of a message.
    pub fn message_name(&self, ix: MsgIx) -> String {
        format!("{}.txt", self.names.unique_stem(&self.index.read(), ix))
    }
}
