//! Nodes of the tree and their inode numbers.
//!
//! An inode number describes its node. The upper 8 bits are the kind of node; the lower 56 are the identity of
//! a message or thread, a day, or the hash of a path. So numbers are the same after a remount, and finding the
//! node of a number needs no table that the kernel's lookups would fill, except for hashes of paths.

use lru::LruCache;

use super::Tree;
use super::table::{ROOT_ENTRIES, ViewKey, on_view};
use crate::index::stable_hash;
use crate::model::Day;

/// A node of the tree: a view and a key. Only the view knows the meaning of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node(ViewKey);

impl From<ViewKey> for Node {
    fn from(key: ViewKey) -> Self {
        Self(key)
    }
}

/// A property of a node, for everything outside its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProperty {
    /// A folder. Every other node is a file.
    Folder,
    /// A folder whose listing stays valid until the generation of the index changes.
    LastingListing,
    /// A folder that shows messages that were just sent, so that its reader waits for them.
    ShowsSent,
    /// A folder that shows messages of mine before their store has them.
    ShowsPending,
    /// A folder of messages. The id of one stands for its name.
    ShowsMessages,
    /// The folder of unread messages: a message that is moved there becomes unread and keeps its place.
    ShowsUnread,
    /// A folder in which programs make files. `mv` may copy a file there.
    TakesFiles,
    /// A folder with files of a message, which nobody can change.
    FixedFiles,
    /// A file whose open depends on the process that opens it to read.
    NeedsOpener,
    /// A file that programs write. They may set its mode and times, without effect.
    Editable,
    /// A file whose name goes when it is closed, because its message is sent.
    GoesWhenClosed,
    /// A file that is there again for other programs after one removed it.
    StaysWhenRemoved,
    /// A file that the kernel does not cache as it caches others.
    Pages(PagePolicy),
}

/// The use that the kernel may make of the pages of an open file that it read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePolicy {
    /// The kernel may keep the pages that were read since the open.
    Drop,
    /// The kernel may also keep the pages from before the open.
    Keep,
    /// The kernel may keep no page: every read has to reach msgfs.
    Bypass,
    /// The kernel may keep no page, and programs cannot seek in the file.
    Stream,
}

impl Node {
    /// The mount point.
    pub const ROOT: Self = Self(ViewKey::Root(()));

    /// Makes a node.
    pub(super) const fn new(key: ViewKey) -> Self {
        Self(key)
    }

    /// Returns the view and the key.
    pub(super) fn key(&self) -> &ViewKey {
        &self.0
    }

    /// Returns true if the node has a property.
    pub fn has(&self, wanted: NodeProperty) -> bool {
        self.0.node_properties().contains(&wanted)
    }

    /// Returns true for a folder.
    pub fn is_dir(&self) -> bool {
        self.has(NodeProperty::Folder)
    }

    /// Returns the use that the kernel may make of the node's pages while its text stays the same.
    pub(super) fn page_policy(&self) -> PagePolicy {
        let policy = |known: &NodeProperty| {
            if let NodeProperty::Pages(policy) = known { Some(*policy) } else { None }
        };
        self.0.node_properties().iter().find_map(policy).unwrap_or(PagePolicy::Drop)
    }
}

/// An inode number. Never 0; 1 is the root.
pub type Ino = u64;

/// Upper 8 bits of an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InodeTag {
    ArchiveDay = 1,
    SentDay = 2,
    Thread = 3,
    Transcript = 4,
    Reject = 5,
    /// Files whose path is in the tree's table: drafts, raw files, texts, attachments.
    Path = 6,
    /// Folders whose path is in the table. The kernel gives up an inode that changes from a folder to a file,
    /// so the two never share a number.
    PathDir = 7,
    /// Messages. The number of the `MessageFolder` is added to this tag and to those of the files beside a message, but
    /// for `.warning` and `.answer`, which are the same file in each folder.
    Message = 16,
    /// Messages in the folders of `.maildir/`.
    MaildirMessage = 20,
    Reply = 24,
    Parts = 32,
    Ack = 40,
    Warning = 48,
    ReplyAll = 56,
    Answer = 64,
}

const TAG_SHIFT: u32 = 56;
const LOW: u64 = (1 << TAG_SHIFT) - 1;
/// Offset that makes the numbers of days positive.
const DAY_BIAS: i64 = 1 << 40;

/// Returns the inode number with this tag and the lower 56 bits of a number.
pub(super) fn make_inode(tag: InodeTag, low: u64) -> Ino {
    join_inode(tag as u64, low)
}

/// Returns the inode number with these upper 8 bits and the lower 56 bits of a number.
pub(super) fn join_inode(tag: u64, low: u64) -> Ino {
    tag << TAG_SHIFT | low & LOW
}

/// Returns the inode number of a day with this tag.
pub(super) fn day_inode(tag: InodeTag, day: Day) -> Ino {
    make_inode(tag, (day.number() + DAY_BIAS) as u64)
}

/// Returns the day whose number has these lower 56 bits.
pub(super) fn inode_day(low: u64) -> Day {
    Day::from_number(low as i64 - DAY_BIAS)
}

/// The nodes whose inode number is the hash of a path. Files push out no folders, because the kernel looks up names by
/// the number of their folder as long as a program is in it.
#[derive(Debug)]
pub(super) struct PathNodes {
    pub files: LruCache<Ino, Node>,
    pub folders: LruCache<Ino, Node>,
}

impl Default for PathNodes {
    fn default() -> Self {
        // `unbounded`, because a cache with a limit allocates room for all its values at once.
        Self { files: LruCache::unbounded(), folders: LruCache::unbounded() }
    }
}

impl PathNodes {
    /// Files that are known at one moment. The kernel looks a forgotten one up again by its name.
    pub const FILES: usize = 1 << 16;
    /// Folders that are known at one moment.
    pub const FOLDERS: usize = 1 << 18;

    /// Returns the table of the files or that of the folders, and the largest number of nodes in it.
    fn of_kind(&mut self, is_dir: bool) -> (&mut LruCache<Ino, Node>, usize) {
        if is_dir { (&mut self.folders, Self::FOLDERS) } else { (&mut self.files, Self::FILES) }
    }
}

impl Tree {
    /// Returns the inode number of a node.
    pub fn inode_number(&self, node: &Node) -> Ino {
        let entry = || ROOT_ENTRIES.iter().find(|entry| entry.node == *node);
        let number = on_view!(self, node, inode_number()).or_else(|| Some(entry()?.number));
        number.unwrap_or_else(|| panic!("a view gives {node:?} no number, and the root has none"))
    }

    /// Returns the node of an inode number.
    pub fn node_by_inode(&self, ino: Ino) -> Option<Node> {
        let (tag, low) = (ino >> TAG_SHIFT, ino & LOW);
        let is_dir = tag == InodeTag::PathDir as u64;
        if is_dir || tag == InodeTag::Path as u64 {
            return self.path_nodes.lock().of_kind(is_dir).0.get(&ino).cloned();
        }
        let entry = ROOT_ENTRIES.iter().find(|entry| tag == 0 && entry.number == low);
        let node = entry.map(|entry| entry.node.clone());
        node.or_else(|| self.views.find_by_inode(self, tag, low).map(Node))
    }

    /// Returns the inode number of a path, and remembers its node until it is forgotten.
    pub(super) fn assign_path_inode(&self, parts: &[&str], node: &Node) -> Ino {
        let tag = if node.is_dir() { InodeTag::PathDir } else { InodeTag::Path };
        let number = |hash| make_inode(tag, hash);
        let mut paths = self.path_nodes.lock();
        let (nodes, most) = paths.of_kind(node.is_dir());
        let mut ino = number(stable_hash(3, parts));
        // Paths can be chosen so that their hashes are equal.
        while nodes.get_or_insert(ino, || node.clone()) != node {
            ino = number(stable_hash(ino.wrapping_add(1), parts));
        }
        if nodes.len() > most {
            nodes.pop_lru();
        }
        ino
    }
}
