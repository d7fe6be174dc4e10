//! `stat` of every node, and finding a node by name or number.

use super::node::{
    Decoded, Ino, Node, Place, Tag, day_ino, decode, fixed_ino, join, message_ino, reply_ino,
};
use super::{Error, Tree, names};
use crate::index::{Entry, MsgIx};
use crate::model::Timestamp;

/// How long a cache may trust what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Until it is told otherwise: messages do not change.
    Immutable,
    /// Until it is told otherwise, and not for long.
    Folder,
    /// Not at all.
    Volatile,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// A folder.
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u16,
    /// Exact size in bytes.
    pub size: u64,
    /// Modification time.
    pub time: Timestamp,
    /// How long this holds.
    pub caching: Caching,
}

/// The time of `README.txt`, which changes only with the program: 2026-01-01.
const README_TIME: Timestamp = Timestamp::from_secs(1_767_225_600);
/// Folders that hold nothing, and files of no particular time.
const NO_TIME: Timestamp = Timestamp::from_secs(0);

impl Tree {
    /// The inode number of a node.
    pub fn ino(&self, node: &Node) -> Ino {
        if let Some(ino) = fixed_ino(node) {
            return ino;
        }
        let core = self.index.read();
        let identity = |ix: &MsgIx| core.entry(*ix).map_or(0, Entry::identity);
        let thread = |t| core.thread_identity(t).unwrap_or(0);
        match node {
            Node::ArchiveDay(day) => day_ino(Tag::ArchiveDay, *day),
            Node::SentDay(day) => day_ino(Tag::SentDay, *day),
            Node::Thread(t) => join(Tag::Thread, thread(*t)),
            Node::Transcript(t) => join(Tag::Transcript, thread(*t)),
            Node::Reject(identity) => join(Tag::Reject, *identity),
            Node::Message(place, ix) => message_ino(*place, identity(ix)),
            Node::Reply(place, ix) => reply_ino(*place, identity(ix)),
            Node::Draft(name) => self.path_ino(&["outbox", name], node),
            Node::ThreadDraft(t, name) => {
                let (id, _) = core.thread_id(*t).unwrap_or(("", 0));
                self.path_ino(&["threads", id, name], node)
            }
            Node::Compose(folder) => self.path_ino(&["compose", folder], node),
            Node::ComposeFile(folder, name) => self.path_ino(&["compose", folder, name], node),
            Node::RawDir(n, path) | Node::RawFile(n, path) => {
                let store = self.index.stores().get(*n).map_or("", |s| s.name());
                self.path_ino(&["raw", store, path], node)
            }
            // The fixed ones have been answered above.
            _ => 0,
        }
    }

    fn path_ino(&self, parts: &[&str], node: &Node) -> Ino {
        let hash = crate::index::stable_hash(3, parts) & crate::index::IDENTITY_MASK;
        self.paths.lock().entry(hash).or_insert_with(|| node.clone());
        join(Tag::Path, hash)
    }

    /// The node of an inode number.
    pub fn node(&self, ino: Ino) -> Option<Node> {
        let core = self.index.read();
        Some(match decode(ino)? {
            Decoded::Node(node) => node,
            Decoded::Thread(identity) => Node::Thread(core.thread_by_identity(identity)?),
            Decoded::Transcript(identity) => Node::Transcript(core.thread_by_identity(identity)?),
            Decoded::Message(place, identity) => Node::Message(place, core.by_identity(identity)?),
            Decoded::Reply(place, identity) => Node::Reply(place, core.by_identity(identity)?),
            Decoded::Path(hash) => self.paths.lock().get(&hash)?.clone(),
        })
    }

    /// Finds an entry of a folder by name, listed or not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        self.find(parent, name)?.ok_or(Error::NotFound)
    }

    fn find(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        Ok(match parent {
            Node::Root => match name {
                ".wait" => Some(Node::Wait),
                ".next" => Some(Node::Next),
                _ => self.find_listed(parent, name)?,
            },
            Node::Inbox | Node::Thread(_) | Node::ArchiveDay(_) | Node::SentDay(_) => {
                self.find_message(parent, name)
            }
            Node::Archive => self.find_day(Place::Archive, name).map(Node::ArchiveDay),
            Node::Sent => self.find_day(Place::Sent, name).map(Node::SentDay),
            Node::Threads => self.thread_named(name).map(Node::Thread),
            Node::Transcripts => {
                let folder = name.strip_suffix(".txt");
                folder.and_then(|f| self.thread_named(f)).map(Node::Transcript)
            }
            Node::Outbox => self.find_draft(name),
            Node::Rejected => self.reject_names().get(name).copied().map(Node::Reject),
            Node::Compose(_) | Node::Raw | Node::RawDir(..) => self.find_listed(parent, name)?,
            _ => return Err(Error::NotDir),
        })
    }

    fn find_listed(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        let listing = self.list(parent)?;
        let items = (0..listing.len()).filter_map(|i| self.item(&listing, i));
        Ok(items.into_iter().find(|(n, _)| n == name).map(|(_, node)| node))
    }

    fn find_day(&self, place: Place, name: &str) -> Option<crate::model::Day> {
        if place == Place::Sent {
            self.settle(&Node::Sent);
        }
        let day = name.parse().ok()?;
        let live = self.with_day_list(place, |core, list| {
            core.on_day(list, day).iter().filter_map(|ix| core.entry(*ix)).any(Entry::is_live)
        });
        live.then_some(day)
    }

    fn find_message(&self, parent: &Node, name: &str) -> Option<Node> {
        if let Some(stem) = name.strip_suffix(".txt")
            && let Some((place, ix)) = self.message_named(parent, stem)
        {
            return Some(Node::Message(place, ix));
        }
        if let Some(stem) = name.strip_suffix(".reply")
            && let Some((place, ix)) = self.message_named(parent, stem)
        {
            return Some(Node::Reply(place, ix));
        }
        let Node::Thread(thread) = parent else { return None };
        let draft = Node::ThreadDraft(*thread, name.to_owned());
        self.thread_draft(*thread, name).map(|_| draft)
    }

    /// `stat` of a node.
    ///
    /// # Errors
    /// [`Error::NotFound`] for what is gone, store errors as they come.
    pub fn attr(&self, node: &Node) -> Result<Attr, Error> {
        let ino = self.ino(node);
        let open = |mode: u16| {
            if self.settings.allow_other {
                mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6
            } else {
                mode
            }
        };
        let dir = |time: Option<Timestamp>| Attr {
            ino,
            is_dir: true,
            mode: open(0o700),
            size: 0,
            time: time.unwrap_or(NO_TIME),
            caching: Caching::Folder,
        };
        let file = |mode: u16, size: u64, time: Timestamp, caching: Caching| Attr {
            ino,
            is_dir: false,
            mode,
            size,
            time,
            caching,
        };
        Ok(match node {
            Node::Readme => {
                let size = self.readme().len() as u64;
                file(open(0o400), size, README_TIME, Caching::Immutable)
            }
            Node::Status => {
                let (text, time) = self.status();
                file(open(0o400), text.len() as u64, time, Caching::Volatile)
            }
            Node::Wait | Node::Next => file(open(0o400), 0, NO_TIME, Caching::Volatile),
            Node::Message(place, ix) => {
                let (size, time) = self.message_size(*ix)?;
                let caching =
                    if *place == Place::Inbox { Caching::Folder } else { Caching::Immutable };
                file(open(0o400), size, time, caching)
            }
            Node::Reply(_, ix) => {
                let time = self.index.read().entry(*ix).map_or(NO_TIME, Entry::time);
                file(0o200, 0, time, Caching::Volatile)
            }
            Node::Transcript(thread) => {
                let plan = self.transcript(*thread)?;
                file(open(0o400), plan.len(), plan.time(), Caching::Volatile)
            }
            Node::Reject(identity) => {
                let (text, time) = self.reject_text(*identity)?;
                file(open(0o400), text.len() as u64, time, Caching::Volatile)
            }
            Node::RawFile(number, path) => {
                let entry = self.raw_entry(*number, path)?;
                file(open(0o400), entry.size, entry.modified, Caching::Volatile)
            }
            Node::RawDir(_, path) if !path.is_empty() => {
                Attr { caching: Caching::Volatile, ..dir(self.newest(node)) }
            }
            Node::Draft(name) => {
                let draft =
                    self.outbox.as_ref().and_then(|o| o.find(name)).ok_or(Error::NotFound)?;
                file(
                    if draft.is_note { 0o400 } else { 0o600 },
                    draft.len,
                    draft.time,
                    Caching::Volatile,
                )
            }
            Node::ThreadDraft(thread, name) => {
                let draft = self.thread_draft(*thread, name).ok_or(Error::NotFound)?;
                file(0o600, draft.len, draft.time, Caching::Volatile)
            }
            Node::Compose(name) => {
                let time = self.compose_time(name).ok_or(Error::NotFound)?;
                Attr { caching: Caching::Volatile, ..dir(Some(time)) }
            }
            Node::ComposeFile(folder, name) => {
                let (len, time) = self.compose_file(folder, name).ok_or(Error::NotFound)?;
                file(0o600, len, time, Caching::Volatile)
            }
            Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_) => {
                dir(Some(self.newest(node).ok_or(Error::NotFound)?))
            }
            _ => dir(self.newest(node)),
        })
    }

    fn message_size(&self, ix: MsgIx) -> Result<(u64, Timestamp), Error> {
        let (size, time) = {
            let core = self.index.read();
            let entry = core.entry(ix).filter(|e| e.is_live()).ok_or(Error::NotFound)?;
            (entry.size(), entry.time())
        };
        match size {
            Some(size) => Ok((size, time)),
            None => Ok((self.rendered(ix)?.len() as u64, time)),
        }
    }

    /// The time of a folder: that of its newest entry.
    fn newest(&self, node: &Node) -> Option<Timestamp> {
        let last = |list: &[MsgIx]| {
            let core = self.index.read();
            let times = list.iter().rev().filter_map(|ix| core.entry(*ix));
            times.into_iter().find(|e| e.is_live()).map(Entry::time)
        };
        match node {
            Node::Root => self.newest(&Node::Outbox).max(self.newest_below_root()),
            Node::Inbox => {
                let core = self.index.read();
                core.inbox_rev().find_map(|ix| core.entry(ix).map(Entry::time))
            }
            Node::Archive => self.with_day_list(Place::Archive, newest_live),
            Node::Sent => self.with_day_list(Place::Sent, newest_live),
            Node::ArchiveDay(day) => self.with_day_list(Place::Archive, |core, list| {
                newest_live(core, core.on_day(list, *day))
            }),
            Node::SentDay(day) => self.with_day_list(Place::Sent, |core, list| {
                newest_live(core, core.on_day(list, *day))
            }),
            Node::Thread(t) => last(&self.thread_messages(*t)),
            Node::Threads | Node::Transcripts if self.all_conversations() => {
                last(&self.every_message())
            }
            Node::Threads | Node::Transcripts => self.index.read().newest(),
            Node::Rejected => {
                let core = self.index.read();
                core.rejects().map(|(_, r)| Timestamp::from_millis(r.time_ms)).max()
            }
            Node::Raw => (0..self.index.stores().len())
                .filter_map(|n| self.newest(&Node::RawDir(n, String::new())))
                .max(),
            Node::RawDir(number, folder) => self.index.stores().get(*number)?.raw_newest(folder),
            Node::Outbox => self.outbox.as_ref()?.list().iter().map(|l| l.time).max(),
            _ => None,
        }
    }

    /// The newest of everything but drafts. Asked with every `stat` of the mount point, so it is
    /// found once per change.
    fn newest_below_root(&self) -> Option<Timestamp> {
        let generation = self.generation();
        if let Some((at, time)) = *self.newest_seen.lock()
            && at == generation
        {
            return time;
        }
        let folders = [Node::Archive, Node::Sent, Node::Threads, Node::Rejected, Node::Raw];
        let times = folders.iter().filter_map(|n| self.newest(n));
        let time = times.chain([self.status_time(), README_TIME]).max();
        *self.newest_seen.lock() = Some((generation, time));
        time
    }

    pub(super) fn raw_entry(
        &self,
        number: usize,
        path: &str,
    ) -> Result<crate::store::RawEntry, Error> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        let entries = store.raw_list(folder).ok_or(Error::NotFound)?;
        entries.into_iter().find(|e| e.name == name && !e.is_dir).ok_or(Error::NotFound)
    }

    /// The file name of a message in its short form.
    pub fn message_name(&self, ix: MsgIx) -> Option<String> {
        let core = self.index.read();
        Some(names::message_file(&core, core.entry(ix)?))
    }
}

fn newest_live(core: &crate::index::Core, list: &[MsgIx]) -> Option<Timestamp> {
    list.iter().rev().filter_map(|ix| core.entry(*ix)).find(|e| e.is_live()).map(Entry::time)
}

/// Something a cache holds that is no longer true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stale {
    /// The attributes of a node.
    Attributes(Ino),
    /// A name in a folder.
    Name(Ino, String),
}

impl Tree {
    /// What a change of the index makes stale in a cache of this tree.
    pub fn stale(&self, changes: &crate::index::Changes) -> std::collections::HashSet<Stale> {
        let mut nodes = vec![Node::Root, Node::Inbox];
        if !changes.added.is_empty() || !changes.removed.is_empty() {
            nodes.extend([Node::Archive, Node::Sent, Node::Threads, Node::Transcripts]);
        }
        if changes.other {
            nodes.extend([Node::Rejected, Node::Raw]);
        }
        let mut stale = std::collections::HashSet::new();
        for (ix, gone) in changes
            .added
            .iter()
            .map(|ix| (ix, false))
            .chain(changes.removed.iter().map(|ix| (ix, true)))
        {
            let Some(entry) = self.index.read().entry(*ix).copied() else { continue };
            let day = entry.time().day();
            let thread = self.index.read().thread_of(&entry);
            let folders = [
                (Node::Inbox, Place::Inbox),
                (Node::ArchiveDay(day), Place::Archive),
                (Node::SentDay(day), Place::Sent),
                (Node::Thread(thread), Place::Thread),
            ];
            for (folder, place) in folders {
                stale.insert(Stale::Attributes(self.ino(&folder)));
                if gone && let Some(name) = self.message_name(*ix) {
                    stale.insert(Stale::Name(self.ino(&folder), name));
                    stale.insert(Stale::Attributes(self.ino(&Node::Message(place, *ix))));
                }
            }
        }
        // A name that was moved from `archive/` to `inbox/` stands there with the inode number it had.
        for ix in &changes.marked {
            let Some(entry) = self.index.read().entry(*ix).copied() else { continue };
            let Some(name) = self.message_name(*ix).filter(|_| !entry.is_read()) else { continue };
            for folder in [Node::Inbox, Node::ArchiveDay(entry.time().day())] {
                stale.insert(Stale::Name(self.ino(&folder), name.clone()));
            }
        }
        stale.extend(nodes.iter().map(|n| Stale::Attributes(self.ino(n))));
        stale
    }
}
