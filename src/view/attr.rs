//! `stat` of every node, and lookup of a node by name or number.

use super::folder_scope::FolderScope;
use super::node::{
    Ino, InodeTag, MessageFolder, Node, day_inode, decode_inode, files, folders, make_inode,
    message_inode, split_inode,
};
use super::table::{NodeAttributes, RootEntry, ViewNode, on_view};
use super::{Error, Listing, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx, stable_hash};
use crate::model::{Day, Timestamp};

/// The time for which a cache may trust a name and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// Both hold until they are invalidated: messages do not change.
    Immutable,
    /// A folder holds until it is invalidated, and only for a short time. For a file only the name is so
    /// limited.
    Folder,
    /// The name is never trusted; its target holds until it is invalidated.
    Moving,
    /// The name is never trusted; its target holds for a moment. So each lookup of the path asks once.
    PerLookup,
    /// Both hold for a moment.
    Brief,
    /// Neither is trusted.
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
    /// Returns the inode number of a node.
    pub fn inode_number(&self, node: &Node) -> Ino {
        let identity = |ix: &MsgIx| self.index.read().messages.entry(*ix).identity();
        let thread = |t| {
            let core = self.index.read();
            core.threads.thread_identity(&core.messages, t)
        };
        match node {
            Node::View(of_view) => of_view.inode_number(self),
            Node::Root => 1,
            Node::Inbox => 6,
            Node::Archive => 7,
            Node::Sent => 8,
            Node::Threads => 9,
            Node::ArchiveDay(day) => day_inode(InodeTag::ArchiveDay, *day),
            Node::SentDay(day) => day_inode(InodeTag::SentDay, *day),
            Node::Thread(t) => make_inode(InodeTag::Thread, thread(*t)),
            Node::Message(place, ix) => message_inode(InodeTag::Message, *place, identity(ix)),
            Node::ReplyAll(place, ix) => message_inode(InodeTag::ReplyAll, *place, identity(ix)),
            Node::Reply(place, ix) => message_inode(InodeTag::Reply, *place, identity(ix)),
            Node::Parts(place, ix) => message_inode(InodeTag::Parts, *place, identity(ix)),
            Node::Ack(place, ix) => message_inode(InodeTag::Ack, *place, identity(ix)),
            Node::Warning(ix) => make_inode(InodeTag::Warning, identity(ix)),
            Node::Part(place, ix, name) => {
                let parts = message_inode(InodeTag::Parts, *place, identity(ix)).to_string();
                self.assign_path_inode(&["part", &parts, name], node)
            }
            Node::ThreadDraft(t, name) => {
                let core = self.index.read();
                let (id, _) = core.threads.thread_id(&core.messages, *t);
                self.assign_path_inode(&["threads", id, name], node)
            }
            Node::ReplyDraft(place, ix, name) => {
                let beside = message_inode(InodeTag::Reply, *place, identity(ix)).to_string();
                self.assign_path_inode(&["reply", &beside, name], node)
            }
            Node::Held(store, id, warning) => {
                let what = if *warning { "warning" } else { "held" };
                self.assign_path_inode(&[what, self.store_name(*store), id], node)
            }
        }
    }

    pub(super) fn store_name(&self, number: usize) -> &str {
        self.index.stores().get(number).map_or("", |s| s.name())
    }

    pub(super) fn assign_path_inode(&self, parts: &[&str], node: &Node) -> Ino {
        let number =
            |hash| make_inode(if node.is_dir() { InodeTag::PathDir } else { InodeTag::Path }, hash);
        let mut paths = self.path_nodes.lock();
        let mut ino = number(stable_hash(3, parts));
        // Paths can be chosen so that their hashes are equal.
        while paths.get_or_insert(ino, || node.clone()) != node {
            ino = number(stable_hash(ino.wrapping_add(1), parts));
        }
        if paths.len() > super::PATHS {
            paths.pop_lru();
        }
        ino
    }

    /// Returns the node of an inode number.
    pub fn node_by_inode(&self, ino: Ino) -> Option<Node> {
        let found = {
            let core = self.index.read();
            let (thread, message) = (
                |id| core.threads.find_thread_by_identity(&core.messages, id),
                |id| core.messages.find_by_identity(id),
            );
            decode_inode(ino, thread, message, |ino| self.path_nodes.lock().get(&ino).cloned())
        };
        let (tag, low) = split_inode(ino);
        found.or_else(|| ViewNode::find_by_inode(self, tag, low))
    }

    /// Finds an entry of a folder by name, listed or not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        self.find_entry(parent, name)?.ok_or(Error::NotFound)
    }

    fn find_entry(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        Ok(match parent {
            Node::View(folder) => on_view!(self, folder, find(name))?,
            Node::Root => match RootEntry::find_by_name(self, name) {
                None => self.find_in_listing(parent, name)?,
                found => found,
            },
            Node::Inbox => self.find_message(FolderScope::Inbox, name)?,
            Node::ArchiveDay(day) => self.find_message(FolderScope::ArchiveDay(*day), name)?,
            Node::SentDay(day) => self.find_message(FolderScope::SentDay(*day), name)?,
            Node::Thread(thread) => self.find_message(FolderScope::Thread(*thread), name)?,
            Node::Archive => self.find_day(MessageFolder::Archive, name).map(Node::ArchiveDay),
            Node::Sent => self.find_day(MessageFolder::Sent, name).map(Node::SentDay),
            Node::Threads => self.find_thread(name).map(Node::Thread),
            Node::Parts(place, ix) => {
                self.parts.find(*ix, name)?;
                Some(Node::Part(*place, *ix, name.to_owned()))
            }
            files!() => return Err(Error::NotDir),
        })
    }

    fn find_in_listing(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        Ok(self.find_in(&self.list_folder(parent)?, name))
    }

    /// Finds an entry of a listing by name.
    pub(super) fn find_in(&self, listing: &Listing, name: &str) -> Option<Node> {
        self.iter_entries(listing).find(|(n, _)| n == name).map(|(_, node)| node)
    }

    /// Finds a thread by its name, also one that begins with a message that was just sent.
    pub(super) fn find_thread(&self, name: &str) -> Option<ThreadIx> {
        self.thread_names.find_thread_by_name(name).or_else(|| {
            self.wait_for_sent(&Node::Threads);
            self.thread_names.find_thread_by_name(name)
        })
    }

    fn find_day(&self, place: MessageFolder, name: &str) -> Option<Day> {
        if place == MessageFolder::Sent {
            self.wait_for_sent(&Node::Sent);
        }
        let day = name.parse().ok()?;
        // Pending messages are read first, because one that its store gets meanwhile is in the index
        // afterwards.
        let is_held = place == MessageFolder::Sent && self.pending.days().contains(&day);
        (is_held || self.newest_on_day(place, day).is_some()).then_some(day)
    }

    /// Returns the attributes of a node.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the node is gone, store errors as they come.
    pub fn stat_node(&self, node: &Node) -> Result<Attr, Error> {
        if let Node::Thread(thread) = node {
            self.note_thread_exposed(*thread);
        }
        let read = |size, time, caching| (self.widen_mode(0o400), size, time, caching);
        let written = |mode, size, time| (mode, size, time, CachePolicy::Volatile);
        let (mode, size, time, caching) = match node {
            Node::View(of_view) => {
                return Ok(self.make_attr(node, &on_view!(self, of_view, stat())?));
            }
            Node::Message(place, ix) => {
                let (size, time) = self.texts.message_size(*ix)?;
                // A late parent moves a message to another thread.
                let linked = || {
                    let entry = *self.index.read().messages.entry(*ix);
                    self.index.store_of(&entry).properties().has_reply_links()
                };
                let caching = match place {
                    MessageFolder::Inbox => CachePolicy::Folder,
                    MessageFolder::Thread if linked() => CachePolicy::Folder,
                    MessageFolder::Thread | MessageFolder::Archive | MessageFolder::Sent => {
                        CachePolicy::Immutable
                    }
                    MessageFolder::Maildir => CachePolicy::Moving,
                };
                read(size, time, caching)
            }
            Node::Reply(_, ix) | Node::ReplyAll(_, ix) | Node::Ack(_, ix) => {
                let time = self.index.read().messages.entry(*ix).time();
                // Editors read the files that they open to write.
                written(if let Node::Ack(..) = node { 0o200 } else { 0o600 }, 0, time)
            }
            Node::Warning(ix) => {
                let (text, time) = self.pending.warning_text(*ix)?;
                read(text.len() as u64, time, CachePolicy::Brief)
            }
            Node::Held(..) => {
                let (text, time) = self.pending.text(node)?;
                read(text.len() as u64, time, CachePolicy::Volatile)
            }
            Node::Part(_, ix, name) => {
                let (size, time) = self.parts.size(*ix, name)?;
                read(size, time, CachePolicy::Brief)
            }
            Node::ThreadDraft(..) | Node::ReplyDraft(..) => {
                let draft = self.lookup_draft(node).ok_or(Error::NotFound)?;
                written(0o600, draft.len, draft.time)
            }
            folders!() => return self.stat_folder(node),
        };
        Ok(Attr { ino: self.inode_number(node), is_dir: false, mode, size, time, caching })
    }

    /// Returns the attributes of a node as the kernel gets them.
    pub(super) fn make_attr(&self, node: &Node, known: &NodeAttributes) -> Attr {
        let NodeAttributes { mode, is_private, size, time, caching } = *known;
        let mode = if is_private { mode } else { self.widen_mode(mode) };
        let ino = self.inode_number(node);
        Attr { ino, is_dir: node.is_dir(), mode, size, time, caching }
    }

    /// Returns the attributes of a folder.
    fn stat_folder(&self, node: &Node) -> Result<Attr, Error> {
        let newest = self.newest_time(node);
        // These folders exist as long as they have an entry.
        let of_entries = matches!(
            node,
            Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_) | Node::Parts(..)
        );
        if of_entries && newest.is_none() {
            return Err(Error::NotFound);
        }
        Ok(Attr {
            ino: self.inode_number(node),
            is_dir: true,
            mode: self.widen_mode(0o700),
            size: 0,
            time: newest.unwrap_or(NO_TIME),
            caching: CachePolicy::Folder,
        })
    }

    /// Gives every user the owner's rights to read and search, if every user may read.
    fn widen_mode(&self, mode: u16) -> u16 {
        if self.settings.allow_other {
            mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6
        } else {
            mode
        }
    }

    /// Returns the time of a folder, which is that of its newest entry.
    fn newest_time(&self, node: &Node) -> Option<Timestamp> {
        match node {
            Node::View(of_view) => on_view!(self, of_view, newest_time()),
            Node::Root => RootEntry::newest_time(self, true).max(self.newest_below_root()),
            Node::Inbox => {
                let core = self.index.read();
                core.messages.inbox().next_back().map(|ix| core.messages.entry(ix).time())
            }
            Node::Archive => self.with_day_list(MessageFolder::Archive, newest_live_time),
            Node::Sent => self.with_day_list(MessageFolder::Sent, newest_live_time),
            Node::ArchiveDay(day) => self.newest_on_day(MessageFolder::Archive, *day),
            Node::SentDay(day) => {
                // Pending messages are read first, because one that its store gets meanwhile is in the index
                // afterwards.
                let held = self.pending.newest_of_day(*day);
                held.max(self.newest_on_day(MessageFolder::Sent, *day))
            }
            Node::Thread(t) => {
                let core = self.index.read();
                core.threads
                    .newest_thread_time(&core.messages, *t)
                    .or_else(|| core.threads.empty_thread_time(*t))
            }
            Node::Threads => {
                let newest = self.newest_message_time();
                newest.max(self.index.read().threads.newest_empty_time())
            }
            Node::Parts(_, ix) => self.texts.live_entry(*ix).ok().map(|e| e.time()),
            files!() => None,
        }
    }

    /// Returns the time of the newest message of all threads.
    pub(super) fn newest_message_time(&self) -> Option<Timestamp> {
        let core = self.index.read();
        if self.is_scope_all() {
            newest_live_time(&core, &self.lists.all_messages(&core))
        } else {
            core.messages.newest_time()
        }
    }

    /// Returns the time of the newest message of a day in `archive/` or `sent/`.
    fn newest_on_day(&self, place: MessageFolder, day: Day) -> Option<Timestamp> {
        self.with_day_list(place, |core, list| {
            newest_live_time(core, core.messages.slice_of_day(list, day))
        })
    }

    /// Returns the newest time of everything but drafts and texts. Every `stat` of the mount point needs it, so
    /// it is computed once per change.
    fn newest_below_root(&self) -> Option<Timestamp> {
        self.newest_cache.get((), self.generation(), || {
            let folders = [Node::Archive, Node::Sent, Node::Threads];
            let newest = folders.iter().filter_map(|node| self.newest_time(node)).max();
            newest.max(RootEntry::newest_time(self, false))
        })
    }

    /// Returns the folder above a folder.
    #[allow(clippy::unnested_or_patterns)] // `files!` is a pattern of its own.
    pub fn parent_folder(&self, folder: &Node) -> Node {
        match folder {
            Node::ArchiveDay(_) => Node::Archive,
            Node::SentDay(_) => Node::Sent,
            Node::Thread(_) => Node::Threads,
            Node::View(of_view) => on_view!(self, of_view, parent_folder()),
            Node::Parts(place, ix) => {
                FolderScope::of_message(&self.index.read(), *place, *ix).into()
            }
            Node::Root | Node::Inbox | Node::Archive | Node::Sent | Node::Threads | files!() => {
                Node::Root
            }
        }
    }
}

fn newest_live_time(core: &IndexTables, list: &[MsgIx]) -> Option<Timestamp> {
    list.iter().rev().map(|ix| core.messages.entry(*ix)).find(|e| e.is_live()).map(IndexEntry::time)
}
