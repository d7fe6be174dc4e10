//! The views of the tree: what a view can do, and the table of them.
//!
//! A view is one file of this folder with one struct, which owns its caches, and one row of [`views!`]. Its key
//! says which of its nodes is meant. Only the view reads the key; everything else asks through [`View`].
//! `docs/ADDING-A-VIEW.md` explains how to add one.

use super::agents::AgentsView;
use super::file::{OpenFile, OpenRequest};
use super::listing::Listing;
use super::maildir::{MaildirKey, MaildirView};
use super::me::{MeKey, MeView};
use super::node::{Ino, Node};
use super::outbox::{OutboxKey, OutboxView};
use super::raw::{RawKey, RawView};
use super::readme::ReadmeView;
use super::rejected::{RejectedKey, RejectedView};
use super::status::StatusView;
use super::transcript::{TranscriptKey, TranscriptView};
use super::wait::{WaitKey, WaitView};
use super::{CachePolicy, Error, Tree};
use crate::index::{IndexChanges, ThreadIx};
use crate::model::Timestamp;

/// The attributes that a view knows of a node. The tree adds the number and the rights of other users.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeAttributes {
    /// Permission bits of the owner.
    pub mode: u16,
    /// True if other users never get rights.
    pub is_private: bool,
    /// Exact size in bytes; 0 for a folder.
    pub size: u64,
    /// Modification time.
    pub time: Timestamp,
    /// Time for which a cache may trust them.
    pub caching: CachePolicy,
}

impl NodeAttributes {
    /// Returns the attributes of a file that is only read.
    pub fn of_file(size: u64, time: Timestamp, caching: CachePolicy) -> Self {
        Self { mode: 0o400, is_private: false, size, time, caching }
    }

    /// Returns the attributes of a folder.
    pub fn of_folder(time: Option<Timestamp>, caching: CachePolicy) -> Self {
        let time = time.unwrap_or(super::attr::NO_TIME);
        Self { mode: 0o700, is_private: false, size: 0, time, caching }
    }

    /// Returns the attributes of a file that its owner writes.
    pub fn of_draft(mode: u16, size: u64, time: Timestamp) -> Self {
        Self { mode, is_private: true, size, time, caching: CachePolicy::Volatile }
    }
}

/// A part of the tree, with everything that msgfs does there. A method that a view does not have refuses.
pub(super) trait View {
    /// The place of a node in the view.
    type Key;

    /// True if the view changes without a change of the index.
    const CHANGES_WITHOUT_INDEX: bool = false;

    /// Returns true if the root has this entry now.
    fn is_shown(&self, _tree: &Tree, _key: &Self::Key) -> bool {
        true
    }

    /// Returns true if the node is a folder.
    fn is_folder(key: &Self::Key) -> bool;

    /// Returns the attributes of a node.
    fn stat(&self, tree: &Tree, key: &Self::Key) -> Result<NodeAttributes, Error>;

    /// Returns the inode number of a node, or `None` for an entry of the root, whose number is in the table.
    fn inode_number(&self, _tree: &Tree, _key: &Self::Key) -> Option<Ino> {
        None
    }

    /// Finds a node by the upper 8 and the lower 56 bits of its inode number.
    fn find_by_inode(&self, _tree: &Tree, _tag: u64, _low: u64) -> Option<Self::Key> {
        None
    }

    /// Returns the entries of a folder.
    fn list(&self, _tree: &Tree, _folder: &Self::Key) -> Result<Listing, Error> {
        Err(Error::NotDir)
    }

    /// Finds an entry of a folder by name, listed or not.
    fn find(&self, _tree: &Tree, _folder: &Self::Key, _name: &str) -> Result<Option<Node>, Error> {
        Err(Error::NotDir)
    }

    /// Returns the folder above a folder.
    fn parent_folder(&self, _tree: &Tree, _folder: &Self::Key) -> Node {
        Node::Root
    }

    /// Opens a file to read it, or to write it if it is [editable](View::is_editable).
    fn open(
        &self,
        _tree: &Tree,
        _key: &Self::Key,
        _access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        Err(Error::IsDir)
    }

    /// Makes a file in a folder and opens it to write. Returns `None` if no files can be made there.
    fn create(
        &self,
        _tree: &Tree,
        _folder: &Self::Key,
        _name: &str,
        _access: &OpenRequest,
    ) -> Result<Option<(Node, OpenFile)>, Error> {
        Ok(None)
    }

    /// Sets the length of a file that the caller does not hold open. Returns false if it cannot be written.
    fn set_len(&self, _tree: &Tree, _key: &Self::Key, _len: u64) -> Result<bool, Error> {
        Ok(false)
    }

    /// Serves `rm` in a folder. Returns false if nothing can be removed there.
    fn remove(&self, _tree: &Tree, _folder: &Self::Key, _name: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Serves `mv` from a folder. Returns false if that cannot be moved there.
    fn rename(
        &self,
        _tree: &Tree,
        _folder: &Self::Key,
        _name: &str,
        (_to, _new_name): (&Node, &str),
        _replace: bool,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    /// Makes a folder in a folder. Returns `None` if no folders can be made there.
    fn make_folder(
        &self,
        _tree: &Tree,
        _folder: &Self::Key,
        _name: &str,
    ) -> Result<Option<Node>, Error> {
        Ok(None)
    }

    /// Removes an empty folder from a folder. Returns false if no folders can be removed there.
    fn remove_folder(&self, _tree: &Tree, _folder: &Self::Key, _name: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the time of the newest thing in an entry of the root, which counts for the root's own time.
    fn newest_time(&self, _tree: &Tree, _key: &Self::Key) -> Option<Timestamp> {
        None
    }

    /// Returns true if the listing of a folder stays valid until the generation of the index changes.
    fn is_listing_cacheable(_folder: &Self::Key) -> bool {
        false
    }

    /// Returns true if a folder shows messages that were just sent, so that its reader waits for them.
    fn shows_sent_messages(_folder: &Self::Key) -> bool {
        false
    }

    /// Returns true if the tree has to know which process opens a file to read it.
    fn needs_opener(_key: &Self::Key) -> bool {
        false
    }

    /// Returns true for a file that programs write. They may set its mode and times, without effect.
    fn is_editable(_key: &Self::Key) -> bool {
        false
    }

    /// Returns true for a folder in which programs make files.
    fn takes_files(_folder: &Self::Key) -> bool {
        false
    }

    /// Returns true if every read of a file must reach msgfs, because its text changes without notice.
    fn bypasses_page_cache(_key: &Self::Key) -> bool {
        false
    }

    /// Returns true for a file whose name goes when it is closed, because its message is sent.
    fn goes_when_closed(_key: &Self::Key) -> bool {
        false
    }

    /// Returns the draft that a program means by a name in a folder, also if there is none.
    fn name_draft(_folder: &Self::Key, _name: &str) -> Option<Node> {
        None
    }

    /// Returns the nodes whose attributes a cache must forget after a change.
    fn stale_keys(&self, _changes: &TreeChanges<'_>) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// A change of the index, as views need it.
#[derive(Debug)]
pub(super) struct TreeChanges<'a> {
    /// The change.
    pub index: &'a IndexChanges,
    /// The threads that changed, without those that no cache knows.
    pub threads: &'a [ThreadIx],
}

/// An entry of the root.
#[derive(Debug)]
pub(super) struct RootEntry {
    /// File name.
    pub name: &'static str,
    /// True if listings show it.
    pub is_listed: bool,
    /// Inode number, which it has for ever.
    pub number: Ino,
    /// True if it changes without a change of the index.
    pub changes_without_index: bool,
    /// The node of the entry.
    pub node: ViewNode,
}

/// A node of a view. Only its view knows the meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewNode(ViewKey);

impl From<ViewKey> for Node {
    fn from(key: ViewKey) -> Self {
        Self::View(ViewNode(key))
    }
}

impl ViewNode {
    /// Returns the view and the key.
    pub(super) fn key(&self) -> &ViewKey {
        &self.0
    }
}

/// Makes what has a member for each row: the types `ViewKey` and `Views`, the entries of the root, and the macros that
/// call the view of a node. `$d` is a `$` for these macros.
macro_rules! views {
    (($d:tt) $(
        $(#[$doc:meta])*
        $view:ident($key:ty) => $field:ident: $type:ty {
            $($name:literal, listed: $listed:literal, number: $number:literal, $root:expr;)*
        }
    )*) => {
        /// A view, and the place of a node in it.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub(super) enum ViewKey {
            $($(#[$doc])* $view($key),)*
        }

        /// The views of one tree.
        #[derive(Debug, Default)]
        pub(super) struct Views {
            $($(#[$doc])* pub $field: $type,)*
        }

        /// The entries of the root that views have.
        pub(super) static ROOT_ENTRIES: &[RootEntry] = &[
            $($(RootEntry {
                name: $name,
                is_listed: $listed,
                number: $number,
                changes_without_index: <$type as View>::CHANGES_WITHOUT_INDEX,
                node: ViewNode(ViewKey::$view($root)),
            },)*)*
        ];

        /// Calls a method of the view of a node. The method gets the tree and the key before these arguments.
        macro_rules! on_view {
            ($d tree:expr, $d node:expr, $d method:ident($d($d arg:expr),*)) => {
                match $d node.key() {
                    $($crate::view::table::ViewKey::$view(key) => {
                        $crate::view::table::View::$d method(
                            &$d tree.views.$field, $d tree, key $d(, $d arg)*
                        )
                    })*
                }
            };
        }
        pub(super) use on_view;

        /// Calls a function of the view of a node. The function gets the key before these arguments.
        macro_rules! ask_view {
            ($d node:expr, $d function:ident($d($d arg:expr),*)) => {
                match $d node.key() {
                    $(ViewKey::$view(key) => <$type as View>::$d function(key $d(, $d arg)*),)*
                }
            };
        }

        impl Views {
            /// Finds a node whose view knows its inode number, by the two parts of the number.
            fn find_by_inode(&self, tree: &Tree, tag: u64, low: u64) -> Option<ViewKey> {
                None$(.or_else(|| self.$field.find_by_inode(tree, tag, low).map(ViewKey::$view)))*
            }

            /// Returns the nodes whose attributes a cache must forget after a change.
            pub fn stale_nodes(&self, changes: &TreeChanges<'_>) -> Vec<Node> {
                let mut keys = Vec::new();
                $(keys.extend(self.$field.stale_keys(changes).into_iter().map(ViewKey::$view));)*
                keys.into_iter().map(Node::from).collect()
            }
        }
    };
}

views! {
    ($)
    /// `README.txt`
    Readme(()) => readme: ReadmeView {
        "README.txt", listed: true, number: 2, ();
    }
    /// `status.txt`
    Status(()) => status: StatusView {
        "status.txt", listed: true, number: 3, ();
    }
    /// `agents.txt`
    Agents(()) => agents: AgentsView {
        "agents.txt", listed: true, number: 16, ();
    }
    /// `.wait`, `.next` and `.watch`
    Wait(WaitKey) => wait: WaitView {
        ".wait", listed: false, number: 4, WaitKey::Wait;
        ".next", listed: false, number: 5, WaitKey::Next;
        ".watch", listed: false, number: 15, WaitKey::Watch;
    }
    /// `.maildir/`
    Maildir(MaildirKey) => maildir: MaildirView {
        ".maildir", listed: false, number: 17, MaildirKey::Top;
    }
    /// `transcripts/`
    Transcripts(TranscriptKey) => transcripts: TranscriptView {
        "transcripts", listed: true, number: 10, TranscriptKey::Folder;
    }
    /// `outbox/`
    Outbox(OutboxKey) => outbox: OutboxView {
        "outbox", listed: true, number: 11, OutboxKey::Top;
    }
    /// `rejected/`
    Rejected(RejectedKey) => rejected: RejectedView {
        "rejected", listed: true, number: 12, RejectedKey::Folder;
    }
    /// `me/`
    Me(MeKey) => me: MeView {
        "me", listed: true, number: 14, MeKey::Top;
    }
    /// `raw/`
    Raw(RawKey) => raw: RawView {
        "raw", listed: true, number: 13, RawKey::Stores;
    }
}

impl ViewNode {
    /// Returns true for a folder.
    pub(super) fn is_folder(&self) -> bool {
        ask_view!(self, is_folder())
    }

    /// Asks [`View::is_listing_cacheable`].
    pub(super) fn is_listing_cacheable(&self) -> bool {
        ask_view!(self, is_listing_cacheable())
    }

    /// Asks [`View::shows_sent_messages`].
    pub(super) fn shows_sent_messages(&self) -> bool {
        ask_view!(self, shows_sent_messages())
    }

    /// Asks [`View::needs_opener`].
    pub(super) fn needs_opener(&self) -> bool {
        ask_view!(self, needs_opener())
    }

    /// Asks [`View::is_editable`].
    pub(super) fn is_editable(&self) -> bool {
        ask_view!(self, is_editable())
    }

    /// Asks [`View::takes_files`].
    pub(super) fn takes_files(&self) -> bool {
        ask_view!(self, takes_files())
    }

    /// Asks [`View::bypasses_page_cache`].
    pub(super) fn bypasses_page_cache(&self) -> bool {
        ask_view!(self, bypasses_page_cache())
    }

    /// Asks [`View::goes_when_closed`].
    pub(super) fn goes_when_closed(&self) -> bool {
        ask_view!(self, goes_when_closed())
    }

    /// Asks [`View::name_draft`].
    pub(super) fn name_draft(&self, name: &str) -> Option<Node> {
        ask_view!(self, name_draft(name))
    }

    /// Returns the inode number.
    pub(super) fn inode_number(&self, tree: &Tree) -> Ino {
        let entry = || ROOT_ENTRIES.iter().find(|entry| entry.node == *self);
        let number = on_view!(tree, self, inode_number()).or_else(|| Some(entry()?.number));
        number.unwrap_or_else(|| panic!("a view gives {self:?} no number, and the root has none"))
    }

    /// Finds a node by the two parts of its inode number.
    pub(super) fn find_by_inode(tree: &Tree, tag: u64, low: u64) -> Option<Node> {
        let entry = ROOT_ENTRIES.iter().find(|entry| tag == 0 && entry.number == low);
        let node = entry.map(|entry| entry.node.clone());
        node.or_else(|| tree.views.find_by_inode(tree, tag, low).map(Self)).map(Node::View)
    }
}

impl RootEntry {
    /// Returns true if the tree has the entry now.
    pub fn is_shown(&self, tree: &Tree) -> bool {
        on_view!(tree, self.node, is_shown())
    }

    /// Finds an entry by name, listed or not.
    pub fn find_by_name(tree: &Tree, name: &str) -> Option<Node> {
        let entry = ROOT_ENTRIES.iter().find(|entry| entry.name == name)?;
        entry.is_shown(tree).then(|| Node::View(entry.node.clone()))
    }

    /// Returns the newest time in the entries that change with the index, or without it.
    pub fn newest_time(tree: &Tree, without_index: bool) -> Option<Timestamp> {
        let chosen = |entry: &&Self| entry.changes_without_index == without_index;
        let entries = ROOT_ENTRIES.iter().filter(chosen);
        entries.filter_map(|entry| on_view!(tree, entry.node, newest_time())).max()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_entry_of_the_root_has_a_name_and_a_number_of_its_own() {
        let names: HashSet<&str> = ROOT_ENTRIES.iter().map(|entry| entry.name).collect();
        let numbers: HashSet<Ino> = ROOT_ENTRIES.iter().map(|entry| entry.number).collect();
        let nodes: HashSet<&ViewNode> = ROOT_ENTRIES.iter().map(|entry| &entry.node).collect();
        assert_eq!([names.len(), numbers.len(), nodes.len()], [ROOT_ENTRIES.len(); 3]);
    }
}
