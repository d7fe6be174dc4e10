//! What the requests share: open files and folders, attributes, and how long the kernel may trust
//! what it was told. The requests themselves are in `requests`.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use crate::model::locks::Mutex;
use fuser::{FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, Request};
use lru::LruCache;

use super::Ended;
use super::guard::guarded;
use super::handles::Handles;
use super::inplace::InPlace;
use super::moving::{self, Moving};
use super::waiting::Waiters;
use super::walkers::Walkers;
use crate::view::reader::{Process, program_of, thread_group};
use crate::view::{Access, Attr, Caching, Error, Listing, Node, OpenFile, Place, Reader, Tree};

/// Nothing of ours is reused under another identity.
pub(super) const GENERATION: Generation = Generation(0);
/// A name that does not go away, and attributes that do not change.
const LONG: Duration = Duration::from_secs(3600);
/// Attributes of folders: told when they change; this bounds the damage if that was lost.
const SHORT: Duration = Duration::from_secs(1);
/// The longest name, in bytes, as `statfs` tells it.
pub(super) const NAME_MAX: usize = 255;
/// Entries of a listing before those of the tree: `.` and `..`.
pub(super) const FIRST: u64 = 2;
/// Folders whose listing the kernel may hold.
const CACHED_FOLDERS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(4095);

/// An open folder.
pub(super) struct OpenDir {
    pub node: Node,
    pub listing: Arc<Listing>,
}

/// Serves one mount.
pub(super) struct Adapter {
    pub tree: Arc<Tree>,
    pub files: Handles<OpenFile>,
    pub dirs: Handles<OpenDir>,
    /// Generation of the tree when the kernel was last allowed to keep a folder's listing.
    listed: Mutex<LruCache<u64, u64>>,
    pub waiters: Waiters,
    pub moving: Moving,
    pub in_place: InPlace,
    pub walkers: Walkers,
    pub owner: (u32, u32),
    pub ended: Ended,
}

impl Adapter {
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(tree: Arc<Tree>, ended: Ended) -> std::io::Result<Self> {
        Ok(Self {
            waiters: Waiters::start(&tree)?,
            tree,
            files: Handles::default(),
            dirs: Handles::default(),
            listed: Mutex::new(LruCache::new(CACHED_FOLDERS)),
            moving: Moving::default(),
            in_place: InPlace::default(),
            walkers: Walkers::default(),
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            ended,
        })
    }

    pub fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        self.tree.node(ino.0).ok_or(Error::Stale)
    }

    pub fn file(&self, handle: FileHandle) -> Result<Arc<OpenFile>, Error> {
        self.files.get(handle).ok_or(Error::NotFound)
    }

    pub fn kernel_attr(&self, attr: &Attr) -> FileAttr {
        let time = attr.time.to_system_time();
        FileAttr {
            ino: INodeNo(attr.ino),
            size: attr.size,
            blocks: attr.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: kind(attr.is_dir),
            perm: attr.mode,
            nlink: if attr.is_dir { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// How a file is opened, and by whom, as far as the tree wants to know.
    pub fn access(&self, req: &Request, node: &Node, flags: i32) -> Access {
        let has = |flag: i32| flags & flag != 0;
        let (nofollow, noatime) = (has(libc::O_NOFOLLOW), has(libc::O_NOATIME));
        let unread = matches!(node, Node::Message(Place::Inbox, _));
        let matters = unread && !nofollow && !noatime;
        // Without --allow-other the kernel lets nobody else in.
        let stranger = self.tree.settings().allow_other && req.uid() != self.owner.0;
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let who_matters = write || unread || *node == Node::Next;
        let opener = if who_matters { process_of(req) } else { 0 };
        let (process, program) =
            if matters { (Process::of(req.pid()), program_of(opener)) } else { (None, None) };
        Access {
            write,
            append: has(libc::O_APPEND),
            truncate: has(libc::O_TRUNC),
            opener,
            reader: Reader { stranger, nofollow, noatime, process, program },
        }
    }

    /// Attributes of a node, with the length of the open file if there is one.
    pub fn attr_of(&self, node: &Node, handle: Option<FileHandle>) -> Result<Attr, Error> {
        let open = handle.and_then(|h| self.files.get(h)).and_then(|f| self.tree.open_len(&f));
        match (self.tree.attr(node), open) {
            (Ok(attr), Some(size)) => Ok(Attr { size, ..attr }),
            // A draft that was sent or removed since its name was looked up: open it, and it is a
            // new one. An error here would fail whoever writes the same name at the same time. A folder
            // stays one for whoever is in it.
            (Err(Error::NotFound), size) if self.tree.is_draft(node) => Ok(Attr {
                ino: self.tree.ino(node),
                is_dir: node.is_dir(),
                mode: if node.is_dir() { 0o700 } else { 0o600 },
                size: size.unwrap_or(0),
                time: crate::model::Timestamp::now(),
                caching: Caching::Volatile,
            }),
            (attr, _) => attr,
        }
    }

    /// What a name in a folder leads to.
    pub fn find(&self, who: u32, parent: INodeNo, name: &OsStr) -> Result<Attr, Error> {
        let (parent, name) = (self.node(parent)?, text(name)?);
        if parent == Node::Inbox
            && let Some(from) = self.moving.answer(who, name, || moving::renames(who))
        {
            // Again: somebody may have read it meanwhile.
            self.tree.make_unread(&from);
            return Ok(Attr { caching: Caching::Volatile, ..self.tree.attr(&from)? });
        }
        let found = self.tree.lookup(&parent, name).and_then(|node| self.tree.attr(&node));
        let found = found.map(|attr| {
            let volatile = self.tree.may_mean_another(&parent, name);
            if volatile { Attr { caching: Caching::Volatile, ..attr } } else { attr }
        });
        if matches!(found, Err(Error::NotFound))
            && let Some(draft) = self.in_place.find(who, &parent, name)
        {
            return self.attr_of(&draft, None);
        }
        found
    }

    /// `rename`: what only makes a message unread again moves no name.
    pub fn rename(
        &self,
        who: u32,
        (from, name): (INodeNo, &OsStr),
        (to, new_name): (INodeNo, &OsStr),
        replace: bool,
    ) -> Result<(), Error> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        let (name, new_name) = (text(name)?, text(new_name)?);
        let moving = to == Node::Inbox && from != Node::Inbox;
        if moving && !replace {
            // The name may be there by the time the kernel asks again, and that would be EEXIST.
            // Programs then look for themselves and rename plainly.
            return Err(Error::os(libc::EINVAL));
        }
        let known = moving && self.tree.lookup(&to, new_name).is_ok();
        self.tree.rename(&from, name, &to, new_name, replace)?;
        if moving {
            self.moving.begin(who, new_name, self.tree.lookup(&from, name)?, known);
            return Err(Error::Stale);
        }
        Ok(())
    }

    /// Whether the kernel's copy of a folder's listing is still true, and notes that it gets one.
    pub fn may_keep(&self, node: &Node) -> FopenFlags {
        if !self.tree.is_cacheable(node) {
            return FopenFlags::empty();
        }
        let now = self.tree.generation();
        let ino = self.tree.ino(node);
        let before = self.listed.lock().put(ino, now);
        if before == Some(now) {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_CACHE_DIR
        }
    }

    /// A file was opened: its handle, and how the kernel shall treat it.
    pub fn opened(&self, node: &Node, file: OpenFile, access: &Access) -> (FileHandle, FopenFlags) {
        self.in_place.opened(access.opener, node);
        let how = open_flags(&self.tree, node, &file);
        (self.files.add(file), how)
    }

    /// Hands the entries of a folder from `offset` on to `add`, each with the offset of the next, until
    /// that says the reply is full; the offset of the first that was not added. Who lists `inbox/` is
    /// noted at the beginning of a listing.
    pub fn list(
        &self,
        req: &Request,
        dir: &OpenDir,
        offset: u64,
        mut add: impl FnMut(u64, &str, &Node) -> bool,
    ) -> u64 {
        if dir.node == Node::Inbox && offset == 0 {
            self.tree.listed_inbox(Process::of(req.pid()));
        }
        let (mut name, end) = (String::new(), dir.listing.len() as u64 + FIRST);
        for number in offset..end {
            name.clear();
            let node = match number {
                0 => {
                    name.push('.');
                    Some(dir.node.clone())
                }
                1 => {
                    name.push_str("..");
                    Some(self.tree.parent(&dir.node))
                }
                n => self.tree.name_item(&dir.listing, (n - FIRST) as usize, &mut name),
            };
            let Some(node) = node else { continue };
            if add(number + 1, &name, &node) {
                return number;
            }
        }
        end
    }

    /// Has messages of a folder rendered, as far as their sizes are not known.
    pub fn look_ahead(&self, dir: &OpenDir, from: u64, count: usize) {
        let from = from.saturating_sub(FIRST) as usize;
        let _ = guarded("look ahead", || {
            self.tree.look_ahead(&dir.listing, from, count);
            Ok(())
        });
    }

    /// A file was read: has the messages rendered that are read next, while whoever reads is busy with it.
    pub fn read_on(&self, file: &OpenFile) {
        let _ = guarded("read on", || {
            self.tree.read_on(file);
            Ok(())
        });
    }

    /// A part of a folder was listed with sizes: has as many messages rendered that are asked for next, while
    /// whoever asks is busy with these.
    pub fn look_beyond(&self, dir: &OpenDir, from: u64, end: u64) {
        let count = end.saturating_sub(from) as usize;
        if end < dir.listing.len() as u64 + FIRST {
            return self.look_ahead(dir, end, count);
        }
        let _ = guarded("look beyond", || {
            if count > 0 {
                self.tree.look_beyond(&dir.node, count);
            }
            Ok(())
        });
    }
}

/// The process behind a request, which names a thread; 0 if it cannot be seen from here.
pub(super) fn process_of(req: &Request) -> u32 {
    thread_group(req.pid()).unwrap_or(0)
}

pub(super) fn kind(is_dir: bool) -> FileType {
    if is_dir { FileType::Directory } else { FileType::RegularFile }
}

/// How long the name, and the attributes, may be trusted.
pub(super) fn ttls(attr: &Attr) -> (Duration, Duration) {
    match attr.caching {
        Caching::Immutable => (LONG, LONG),
        Caching::Folder if attr.is_dir => (SHORT, SHORT),
        Caching::Folder => (SHORT, LONG),
        Caching::Moving => (Duration::ZERO, LONG),
        Caching::Looked => (Duration::ZERO, SHORT),
        Caching::Brief => (SHORT, SHORT),
        Caching::Volatile => (Duration::ZERO, Duration::ZERO),
    }
}

/// A name as the tree has it.
pub(super) fn text(name: &OsStr) -> Result<&str, Error> {
    if name.len() > NAME_MAX {
        return Err(Error::os(libc::ENAMETOOLONG));
    }
    name.to_str().ok_or(Error::NotFound)
}

/// What was looked up before and is gone now: its name is to be looked up again.
pub(super) fn known<T>(result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|e| if matches!(e, Error::NotFound) { Error::Stale } else { e })
}

/// How the kernel shall treat an open file.
pub(super) fn open_flags(tree: &Tree, node: &Node, file: &OpenFile) -> FopenFlags {
    match (node, file) {
        // Every read has to reach us: it decides whether the message was read to its end.
        (Node::Message(Place::Inbox, _), _) => FopenFlags::FOPEN_DIRECT_IO,
        (Node::Message(place, ix), _) if !tree.keeps_pages(*place, *ix) => {
            FopenFlags::FOPEN_NOFLUSH
        }
        (Node::Message(..), _) => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
        (
            _,
            OpenFile::Draft { .. }
            | OpenFile::Compose { .. }
            | OpenFile::Text(_)
            | OpenFile::Ack { .. }
            | OpenFile::Waiting { .. },
        ) => FopenFlags::FOPEN_DIRECT_IO,
        // Not to be sought in: a shell that could would read lines twice, or never.
        (_, OpenFile::Watch(_)) => {
            FopenFlags::FOPEN_DIRECT_IO
                | FopenFlags::FOPEN_STREAM
                | FopenFlags::FOPEN_NONSEEKABLE
                | FopenFlags::FOPEN_NOFLUSH
        }
        (Node::Status | Node::Agents | Node::Draft(_) | Node::Text(..), _) => {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH
        }
        _ => FopenFlags::FOPEN_NOFLUSH,
    }
}
