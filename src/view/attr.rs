//! `stat` of every node, and lookup of a node by name or number.

use super::node::{
    Ino, InodeTag, MaildirFolder, MessageFolder, Node, day_inode, decode_inode, files, folders,
    make_inode, message_inode,
};
use super::{Error, Tree};
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
const README_TIME: Timestamp = Timestamp::from_secs(1_767_225_600);
/// The time of empty folders, and of files without a time of their own.
const NO_TIME: Timestamp = Timestamp::from_secs(0);

impl Tree {
    /// Returns the inode number of a node.
    pub fn inode_number(&self, node: &Node) -> Ino {
        let identity = |ix: &MsgIx| self.index.read().messages.entry(*ix).identity();
        let thread = |t| {
            let core = self.index.read();
            core.threads.thread_identity(&core.messages, t)
        };
        match node {
            Node::Root => 1,
            Node::Readme => 2,
            Node::Status => 3,
            Node::Wait => 4,
            Node::Next => 5,
            Node::Inbox => 6,
            Node::Archive => 7,
            Node::Sent => 8,
            Node::Threads => 9,
            Node::Transcripts => 10,
            Node::Outbox => 11,
            Node::Rejected => 12,
            Node::Raw => 13,
            Node::Me => 14,
            Node::Watch => 15,
            Node::Agents => 16,
            Node::Maildir => 17,
            Node::MailBox(MaildirFolder::New) => 18,
            Node::MailBox(MaildirFolder::Cur) => 19,
            Node::MailBox(MaildirFolder::Tmp) => 20,
            Node::ArchiveDay(day) => day_inode(InodeTag::ArchiveDay, *day),
            Node::SentDay(day) => day_inode(InodeTag::SentDay, *day),
            Node::Thread(t) => make_inode(InodeTag::Thread, thread(*t)),
            Node::Transcript(t) => make_inode(InodeTag::Transcript, thread(*t)),
            Node::Reject(identity) => make_inode(InodeTag::Reject, *identity),
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
            Node::Draft(name) => self.assign_path_inode(&["outbox", name], node),
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
            Node::Compose(folder) => self.assign_path_inode(&["compose", folder], node),
            Node::ComposeFile(folder, name) => {
                self.assign_path_inode(&["compose", folder, name], node)
            }
            Node::RawDir(n, path) | Node::RawFile(n, path) => {
                self.assign_path_inode(&["raw", self.store_name(*n), path], node)
            }
            Node::MeStore(n) => self.assign_path_inode(&["me", self.store_name(*n)], node),
            Node::TextFolder(n, folder) => {
                self.assign_path_inode(&["me", self.store_name(*n), folder], node)
            }
            Node::Text(n, folder, name) => {
                self.assign_path_inode(&["me", self.store_name(*n), folder, name], node)
            }
        }
    }

    pub(super) fn store_name(&self, number: usize) -> &str {
        self.index.stores().get(number).map_or("", |s| s.name())
    }

    fn assign_path_inode(&self, parts: &[&str], node: &Node) -> Ino {
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
        let core = self.index.read();
        let (thread, message) = (
            |id| core.threads.find_thread_by_identity(&core.messages, id),
            |id| core.messages.find_by_identity(id),
        );
        decode_inode(ino, thread, message, |ino| self.path_nodes.lock().get(&ino).cloned())
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
            Node::Root => match name {
                ".wait" => Some(Node::Wait),
                ".next" => Some(Node::Next),
                ".watch" => Some(Node::Watch),
                ".maildir" => Some(Node::Maildir),
                _ => self.find_in_listing(parent, name)?,
            },
            Node::Inbox | Node::Thread(_) | Node::ArchiveDay(_) | Node::SentDay(_) => {
                self.find_message(parent, name)?
            }
            Node::Archive => self.find_day(MessageFolder::Archive, name).map(Node::ArchiveDay),
            Node::Sent => self.find_day(MessageFolder::Sent, name).map(Node::SentDay),
            Node::Threads => self.find_thread(name).map(Node::Thread),
            Node::Transcripts => {
                // The text must have the messages that were just sent, also in an old thread.
                self.wait_for_sent(&Node::Transcripts);
                let folder = name.strip_suffix(".txt");
                let thread = folder.and_then(|f| self.find_thread(f));
                let all = self.is_scope_all();
                let shown = |t: &ThreadIx| self.index.read().threads.is_thread_visible(*t, all);
                thread.filter(shown).map(Node::Transcript)
            }
            Node::MailBox(which) => self.find_in_maildir(*which, name),
            Node::Outbox => self.find_draft(name),
            Node::Rejected => self.reject_names().get(name).copied().map(Node::Reject),
            Node::Parts(place, ix) => {
                self.find_part(*ix, name)?;
                Some(Node::Part(*place, *ix, name.to_owned()))
            }
            Node::TextFolder(number, folder) => {
                let found = self.text_size(&(*number, *folder, name.to_owned()));
                found.ok().map(|_| Node::Text(*number, folder, name.to_owned()))
            }
            Node::RawDir(number, path) => Some(self.find_raw(*number, path, name)?),
            Node::Compose(_) | Node::Raw | Node::Me | Node::MeStore(_) | Node::Maildir => {
                self.find_in_listing(parent, name)?
            }
            files!() => return Err(Error::NotDir),
        })
    }

    fn find_in_listing(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        let listing = self.list_folder(parent)?;
        Ok(self.iter_entries(&listing).find(|(n, _)| n == name).map(|(_, node)| node))
    }

    /// Finds a thread by its name, also one that begins with a message that was just sent.
    fn find_thread(&self, name: &str) -> Option<ThreadIx> {
        self.find_thread_by_name(name).or_else(|| {
            self.wait_for_sent(&Node::Threads);
            self.find_thread_by_name(name)
        })
    }

    fn find_day(&self, place: MessageFolder, name: &str) -> Option<Day> {
        if place == MessageFolder::Sent {
            self.wait_for_sent(&Node::Sent);
        }
        let day = name.parse().ok()?;
        // Pending messages are read first, because one that its store gets meanwhile is in the index
        // afterwards.
        let is_held = place == MessageFolder::Sent && self.pending_days().contains(&day);
        (is_held || self.newest_on_day(place, day).is_some()).then_some(day)
    }

    /// Returns the attributes of a node.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the node is gone, store errors as they come.
    pub fn stat_node(&self, node: &Node) -> Result<Attr, Error> {
        self.note_exposed(node);
        let read = |size, time, caching| (self.widen_mode(0o400), size, time, caching);
        let written = |mode, size, time| (mode, size, time, CachePolicy::Volatile);
        let (mode, size, time, caching) = match node {
            Node::Readme => {
                read(self.readme_text().len() as u64, README_TIME, CachePolicy::Immutable)
            }
            Node::Status => {
                let (text, time) = self.status_text();
                read(text.len() as u64, time, CachePolicy::Volatile)
            }
            Node::Agents => {
                let agents = self.agent_directory();
                read(agents.text.len() as u64, agents.time, CachePolicy::Volatile)
            }
            Node::Wait | Node::Next | Node::Watch => read(0, NO_TIME, CachePolicy::Volatile),
            Node::Message(place, ix) => {
                let (size, time) = self.message_size(*ix)?;
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
                let (text, time) = self.warning_text(*ix)?;
                read(text.len() as u64, time, CachePolicy::Brief)
            }
            Node::Held(..) => {
                let (text, time) = self.pending_text(node)?;
                read(text.len() as u64, time, CachePolicy::Volatile)
            }
            Node::Part(_, ix, name) => {
                let (size, time) = self.part_size(*ix, name)?;
                read(size, time, CachePolicy::Brief)
            }
            Node::Transcript(thread) => {
                let plan = self.transcript_plan(*thread)?;
                read(plan.len(), plan.time(), CachePolicy::PerLookup)
            }
            Node::Reject(identity) => {
                let (text, time) = self.reject_text(*identity)?;
                read(text.len() as u64, time, CachePolicy::Volatile)
            }
            Node::RawFile(number, path) => {
                let entry = self.raw_entry(*number, path)?;
                return Ok(self.make_raw_attr(node, entry.size, entry.modified));
            }
            Node::Draft(name) => {
                let draft = self.outbox.as_ref().and_then(|o| o.find_entry(name));
                let draft = draft.ok_or(Error::NotFound)?;
                written(if draft.is_note { 0o400 } else { 0o600 }, draft.len, draft.time)
            }
            Node::ThreadDraft(..) | Node::ReplyDraft(..) => {
                let draft = self.lookup_draft(node).ok_or(Error::NotFound)?;
                written(0o600, draft.len, draft.time)
            }
            Node::ComposeFile(folder, name) => {
                let outbox = self.outbox.as_ref();
                let found =
                    outbox.and_then(|outbox| outbox.composer().stat_folder_file(folder, name));
                let (len, time) = found.ok_or(Error::NotFound)?;
                written(0o600, len, time)
            }
            Node::Text(number, folder, name) => {
                let (len, time) = self.text_size(&(*number, *folder, name.clone()))?;
                written(if self.is_view_only() { 0o400 } else { 0o600 }, len, time)
            }
            folders!() => return self.stat_folder(node),
        };
        Ok(Attr { ino: self.inode_number(node), is_dir: false, mode, size, time, caching })
    }

    /// Returns the attributes of a file in `raw/`.
    pub(super) fn make_raw_attr(&self, node: &Node, size: u64, time: Timestamp) -> Attr {
        let (ino, mode) = (self.inode_number(node), self.widen_mode(0o400));
        Attr { ino, is_dir: false, mode, size, time, caching: CachePolicy::PerLookup }
    }

    /// Returns the attributes of a folder.
    fn stat_folder(&self, node: &Node) -> Result<Attr, Error> {
        let newest = self.newest_time(node);
        // These folders exist as long as they have an entry.
        let of_entries = matches!(
            node,
            Node::ArchiveDay(_)
                | Node::SentDay(_)
                | Node::Thread(_)
                | Node::Parts(..)
                | Node::Compose(_)
        );
        if of_entries && newest.is_none() {
            return Err(Error::NotFound);
        }
        let caching = match node {
            // Its content is looked up once, and not again for each of its files.
            Node::RawDir(_, path) if !path.is_empty() => CachePolicy::Brief,
            Node::Me
            | Node::MeStore(_)
            | Node::TextFolder(..)
            | Node::Compose(_)
            // A person who changed one of them looks at the other.
            | Node::MailBox(_) => CachePolicy::Volatile,
            _ => CachePolicy::Folder,
        };
        Ok(Attr {
            ino: self.inode_number(node),
            is_dir: true,
            mode: self.widen_mode(0o700),
            size: 0,
            time: newest.unwrap_or(NO_TIME),
            caching,
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

    pub(super) fn message_size(&self, ix: MsgIx) -> Result<(u64, Timestamp), Error> {
        let entry = self.live_entry(ix)?;
        let size = entry.size().map_or_else(|| Ok(self.rendered_text(ix)?.len() as u64), Ok);
        size.map(|size| (size, entry.time()))
    }

    /// Returns the entry of a message that is not gone.
    pub(super) fn live_entry(&self, ix: MsgIx) -> Result<IndexEntry, Error> {
        let entry = *self.index.read().messages.entry(ix);
        entry.is_live().then_some(entry).ok_or(Error::NotFound)
    }

    /// Returns the time of a folder, which is that of its newest entry.
    fn newest_time(&self, node: &Node) -> Option<Timestamp> {
        match node {
            Node::Root => {
                let written = self.newest_time(&Node::Outbox).max(self.newest_time(&Node::Me));
                written.max(self.newest_below_root())
            }
            Node::Inbox => {
                let core = self.index.read();
                core.messages.inbox().next_back().map(|ix| core.messages.entry(ix).time())
            }
            Node::MailBox(MaildirFolder::New | MaildirFolder::Cur) => Some(self.maildir_time()),
            // Their entries never change.
            Node::Maildir | Node::MailBox(MaildirFolder::Tmp) => Some(README_TIME),
            Node::Archive => self.with_day_list(MessageFolder::Archive, newest_live_time),
            Node::Sent => self.with_day_list(MessageFolder::Sent, newest_live_time),
            Node::ArchiveDay(day) => self.newest_on_day(MessageFolder::Archive, *day),
            Node::SentDay(day) => {
                // Pending messages are read first, because one that its store gets meanwhile is in the index
                // afterwards.
                let held = self.newest_pending(*day);
                held.max(self.newest_on_day(MessageFolder::Sent, *day))
            }
            Node::Thread(t) => {
                let core = self.index.read();
                core.threads
                    .newest_thread_time(&core.messages, *t)
                    .or_else(|| core.threads.empty_thread_time(*t))
            }
            Node::Threads => {
                let newest = self.newest_time(&Node::Transcripts);
                newest.max(self.index.read().threads.newest_empty_time())
            }
            Node::Transcripts if self.is_scope_all() => {
                let core = self.index.read();
                newest_live_time(&core, &self.all_messages(&core))
            }
            Node::Transcripts => self.index.read().messages.newest_time(),
            Node::Rejected => {
                let core = self.index.read();
                core.trust.rejects().map(|(_, r)| Timestamp::from_millis(r.time_ms)).max()
            }
            Node::Raw => (0..self.index.stores().len())
                .filter_map(|n| self.newest_time(&Node::RawDir(n, String::new())))
                .max(),
            Node::RawDir(number, folder) => self.raw_newest_time(*number, folder),
            Node::Parts(_, ix) => self.live_entry(*ix).ok().map(|e| e.time()),
            Node::Me | Node::MeStore(_) | Node::TextFolder(..) => self.newest_text_time(node),
            Node::Outbox => self.outbox.as_ref()?.newest_time(),
            Node::Compose(name) => self.outbox.as_ref()?.composer().folder_time(name),
            files!() => None,
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
            let folders = [Node::Archive, Node::Sent, Node::Threads, Node::Rejected, Node::Raw];
            let times = folders.iter().filter_map(|n| self.newest_time(n));
            times.chain([self.status_time(), README_TIME]).max()
        })
    }

    /// Returns the folder above a folder.
    #[allow(clippy::unnested_or_patterns)] // `files!` is a pattern of its own.
    pub fn parent_folder(&self, folder: &Node) -> Node {
        match folder {
            Node::ArchiveDay(_) => Node::Archive,
            Node::SentDay(_) => Node::Sent,
            Node::Thread(_) => Node::Threads,
            Node::Compose(_) => Node::Outbox,
            Node::RawDir(number, path) => match path.rsplit_once('/') {
                Some((up, _)) => Node::RawDir(*number, up.to_owned()),
                None if path.is_empty() => Node::Raw,
                None => Node::RawDir(*number, String::new()),
            },
            Node::Parts(place, ix) => self.folder_of_message(*place, *ix),
            Node::MeStore(_) => Node::Me,
            Node::TextFolder(number, _) => self.parent_of_texts(*number),
            Node::MailBox(_) => Node::Maildir,
            Node::Root
            | Node::Maildir
            | Node::Inbox
            | Node::Archive
            | Node::Sent
            | Node::Threads
            | Node::Transcripts
            | Node::Outbox
            | Node::Rejected
            | Node::Raw
            | Node::Me
            | files!() => Node::Root,
        }
    }

    /// Returns the folder of a message.
    pub(super) fn folder_of_message(&self, place: MessageFolder, ix: MsgIx) -> Node {
        let core = self.index.read();
        let entry = core.messages.entry(ix);
        match place {
            MessageFolder::Archive => Node::ArchiveDay(core.messages.name_time(entry).day()),
            MessageFolder::Sent => Node::SentDay(core.messages.name_time(entry).day()),
            MessageFolder::Thread => Node::Thread(entry.thread()),
            MessageFolder::Inbox | MessageFolder::Maildir => Node::Inbox,
        }
    }

    /// Returns the file name of a message.
    pub fn message_name(&self, ix: MsgIx) -> String {
        format!("{}.txt", self.unique_stem(&self.index.read(), ix))
    }
}

fn newest_live_time(core: &IndexTables, list: &[MsgIx]) -> Option<Timestamp> {
    list.iter().rev().map(|ix| core.messages.entry(*ix)).find(|e| e.is_live()).map(IndexEntry::time)
}
