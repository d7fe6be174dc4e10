//! The views of the tree: what a view can do, and the table of them.
//!
//! A view is one file of this folder with one struct, which owns its caches, and one row of [`views!`]. Its key
//! says which of its nodes is meant. Only the view reads the key; everything else asks through [`View`].
//! `docs/ADDING-A-VIEW.md` explains how to add one.

use super::agents::AgentsView;
use super::file::{OpenFile, OpenRequest};
use super::folder_scope::FolderScope;
use super::listing::Listing;
use super::maildir::{MaildirKey, MaildirView};
use super::me::{MeKey, MeView};
use super::messages::{MessagesKey, MessagesView};
use super::node::{Ino, Node, NodeProperty};
use super::outbox::{OutboxKey, OutboxView};
use super::raw::{RawKey, RawView};
use super::readme::ReadmeView;
use super::rejected::{RejectedKey, RejectedView};
use super::root::RootView;
use super::search::{SearchKey, SearchView};
use super::sent::{SentKey, SentView};
use super::status::{StatusKey, StatusView};
use super::transcript::{TranscriptKey, TranscriptView};
use super::wait::{WaitKey, WaitView};
use super::{CachePolicy, Error, Tree};
use crate::index::{IndexChanges, MsgIx, ThreadIx};
use crate::model::{Day, Timestamp};

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

    /// Returns the attributes of a file with this text and time.
    pub fn of_text((text, time): &(String, Timestamp), caching: CachePolicy) -> Self {
        Self::of_file(text.len() as u64, *time, caching)
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

/// The reason why most files cannot be written.
pub(super) const WRITE_REFUSAL: &str = "this file cannot be written; drafts go to outbox/";

/// A part of the tree, with everything that msgfs does there. A method that a view does not have refuses.
pub(super) trait View {
    /// The key of a node in the view.
    type Key;

    /// True if the view changes without a change of the index.
    const CHANGES_WITHOUT_INDEX: bool = false;

    /// Returns true if the root has this entry now.
    fn is_shown(&self, _tree: &Tree, _key: &Self::Key) -> bool {
        true
    }

    /// Returns the properties of a node. A node without properties is a file that is only read.
    fn node_properties(_key: &Self::Key) -> &'static [NodeProperty] {
        &[]
    }

    /// Returns the text of a file that is made for each reader, and its time.
    fn text(&self, _tree: &Tree, _key: &Self::Key) -> Result<(String, Timestamp), Error> {
        Err(Error::IsDir)
    }

    /// Notes that a program looks for an entry of the root, so that it gets a text of this moment.
    fn note_root_lookup(&self, _tree: &Tree, _key: &Self::Key) {}

    /// Returns the attributes of a node: those of its text, or of a folder with the time of its newest entry.
    fn stat(&self, tree: &Tree, key: &Self::Key) -> Result<NodeAttributes, Error> {
        if Self::node_properties(key).contains(&NodeProperty::Folder) {
            return Ok(NodeAttributes::of_folder(self.newest_time(tree, key), CachePolicy::Folder));
        }
        Ok(NodeAttributes::of_text(&self.text(tree, key)?, CachePolicy::Volatile))
    }

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
    fn find(&self, tree: &Tree, folder: &Self::Key, name: &str) -> Result<Option<Node>, Error> {
        Ok(tree.find_in(&self.list(tree, folder)?, name))
    }

    /// Returns the folder above a folder, or `None` below the root.
    fn parent_folder(&self, _tree: &Tree, _folder: &Self::Key) -> Option<Self::Key> {
        None
    }

    /// Opens a file to read it, or to write it if it is [editable](NodeProperty::Editable).
    fn open(&self, tree: &Tree, key: &Self::Key, _how: &OpenRequest) -> Result<OpenFile, Error> {
        Ok(OpenFile::from_bytes(self.text(tree, key)?.0.into_bytes()))
    }

    /// Returns true if a request on a node, or on a name in it, would have to wait for long work. The method itself
    /// waits for nothing.
    fn may_take_long(&self, _tree: &Tree, _key: &Self::Key, _name: Option<&str>) -> bool {
        false
    }

    /// Does the long work of a request, so that the request itself is short. `is_over` returns true if nobody waits any
    /// longer.
    fn prepare(
        &self,
        _tree: &Tree,
        _key: &Self::Key,
        _name: Option<&str>,
        _is_over: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the file that a program makes under a name in a folder, or `None` if no files can be made there. The
    /// file is then opened to write.
    fn name_file(&self, _: &Tree, _folder: &Self::Key, _name: &str) -> Result<Option<Node>, Error> {
        Ok(None)
    }

    /// Sets the length of a file that the caller does not hold open. Returns false if it cannot be written.
    fn set_len(&self, _tree: &Tree, _key: &Self::Key, _len: u64) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the reason why a node cannot be written.
    fn write_refusal(&self, _tree: &Tree, _key: &Self::Key) -> &'static str {
        WRITE_REFUSAL
    }

    /// Serves `rm` in a folder. Returns false if nothing can be removed there.
    fn remove(&self, _tree: &Tree, _folder: &Self::Key, _name: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Serves `mv` from a folder. Returns false if the entry cannot be moved there.
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
        _: &Tree,
        _folder: &Self::Key,
        _name: &str,
    ) -> Result<Option<Node>, Error> {
        Ok(None)
    }

    /// Removes an empty folder from a folder. Returns false if no folders can be removed there.
    fn remove_folder(&self, _tree: &Tree, _folder: &Self::Key, _name: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the time of the newest entry of a folder. The time of an entry of the root also counts for the root.
    fn newest_time(&self, _tree: &Tree, _key: &Self::Key) -> Option<Timestamp> {
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
    /// The days of its messages.
    pub days: Vec<Day>,
    /// The threads that changed, without those that no cache knows.
    pub threads: Vec<ThreadIx>,
}

impl TreeChanges<'_> {
    /// Returns the messages whose text changed or went.
    pub fn changed_texts(&self) -> impl Iterator<Item = MsgIx> {
        let IndexChanges { redrawn, textless, moved, removed, .. } = self.index;
        let moved = moved.iter().map(|(ix, _)| ix);
        redrawn.iter().chain(textless).chain(moved).chain(removed).copied()
    }

    /// Returns true if messages or threads came, went or look different.
    pub fn changes_listings(&self) -> bool {
        let IndexChanges { added, redrawn, removed, moved, empty_threads, .. } = self.index;
        [added, redrawn, removed].iter().any(|messages| !messages.is_empty())
            || !moved.is_empty()
            || !empty_threads.is_empty()
    }
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
    pub node: Node,
}

/// Generates the items that have one member for each row: the types `ViewKey` and `Views`, the entries of the root, and
/// the macros that call the view of a node. `$d` is a `$` for these macros.
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
                node: Node::new(ViewKey::$view($root)),
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

        impl ViewKey {
            /// Returns the properties of a node.
            pub fn node_properties(&self) -> &'static [NodeProperty] {
                match self {
                    $(Self::$view(key) => <$type as View>::node_properties(key),)*
                }
            }
        }

        impl Views {
            /// Finds a node whose view knows its inode number, by the two parts of the number.
            pub fn find_by_inode(&self, tree: &Tree, tag: u64, low: u64) -> Option<ViewKey> {
                None$(.or_else(|| self.$field.find_by_inode(tree, tag, low).map(ViewKey::$view)))*
            }

            /// Returns the folder above a folder.
            pub fn parent_folder(&self, tree: &Tree, folder: &Node) -> Node {
                let above = match folder.key() {
                    $(ViewKey::$view(key) => {
                        self.$field.parent_folder(tree, key).map(ViewKey::$view)
                    })*
                };
                above.map_or(Node::ROOT, Node::new)
            }

            /// Returns the nodes whose attributes a cache must forget after a change.
            pub fn stale_nodes(&self, changes: &TreeChanges<'_>) -> Vec<Node> {
                let mut keys = Vec::new();
                $(keys.extend(self.$field.stale_keys(changes).into_iter().map(ViewKey::$view));)*
                keys.into_iter().map(Node::new).collect()
            }
        }
    };
}

views! {
    ($)
    /// The mount point.
    Root(()) => root: RootView {}
    /// `inbox/`, `archive/`, `sent/` and `threads/`
    Messages(MessagesKey) => messages: MessagesView {
        "inbox", listed: true, number: 6, MessagesKey::Folder(FolderScope::Inbox);
        "archive", listed: true, number: 7, MessagesKey::Archive;
        "sent", listed: true, number: 8, MessagesKey::Sent;
        "threads", listed: true, number: 9, MessagesKey::Threads;
    }
    /// `README.txt`
    Readme(()) => readme: ReadmeView {
        "README.txt", listed: true, number: 2, ();
    }
    /// `status.txt`
    Status(StatusKey) => status: StatusView {
        "status.txt", listed: true, number: 3, StatusKey::Text;
        ".status", listed: false, number: 25, StatusKey::Report;
    }
    /// `agents.txt`
    Agents(()) => agents: AgentsView {
        "agents.txt", listed: true, number: 16, ();
    }
    /// `sent.txt`
    Sent(SentKey) => sent: SentView {
        "sent.txt", listed: true, number: 21, SentKey::List;
        ".sent", listed: false, number: 22, SentKey::Reports;
    }
    /// `search/`
    Search(SearchKey) => search: SearchView {
        "search", listed: true, number: 23, SearchKey::Top;
        ".search", listed: false, number: 24, SearchKey::Progress;
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

impl RootEntry {
    /// Returns true if the tree has the entry now.
    pub fn is_shown(&self, tree: &Tree) -> bool {
        on_view!(tree, self.node, is_shown())
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
        let nodes: HashSet<&Node> = ROOT_ENTRIES.iter().map(|entry| &entry.node).collect();
        assert_eq!([names.len(), numbers.len(), nodes.len()], [ROOT_ENTRIES.len(); 3]);
    }
}
