//! State and helpers that all requests use: open files and folders, attributes, and the times for which the
//! kernel may cache a reply. The requests themselves are in `requests`.

use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::model::locks::Mutex;
use fuser::{FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, Request};
use lru::LruCache;

use super::EndSignal;
use super::handles::HandleTable;
use super::inbox_moves::{self, InboxMoves};
use super::open_dir::OpenDir;
use super::parked_reads::ParkedReadQueue;
use super::recent_drafts::RecentDrafts;
use super::removed_replies::RemovedReplies;
use super::walkers::FolderWalkers;
use crate::view::reader::{ProcessIdentity, program_name, thread_group};
use crate::view::{
    Attr, CachePolicy, Error, Node, NodeProperty, OpenFile, OpenRequest, PagePolicy, ReaderProfile,
    Tree, has_reply_ending, may_mean_another,
};

/// Generation of all inodes; no inode number is reused for another file.
pub(super) const GENERATION: Generation = Generation(0);
/// Cache time of a name that does not go away, and of attributes that do not change.
const LONG: Duration = Duration::from_secs(3600);
/// Cache time of folder attributes. They are invalidated when they change; this time bounds the damage of a
/// lost invalidation.
const SHORT: Duration = Duration::from_secs(1);
/// The longest name, in bytes, as `statfs` reports it.
pub(super) const NAME_MAX: usize = 255;
/// Folders whose listing the kernel may hold.
const CACHED_FOLDERS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(4095);

/// The server of one mount. Threads that serve long requests share it.
#[derive(Clone)]
pub(super) struct FuseAdapter(Arc<AdapterState>);

impl Deref for FuseAdapter {
    type Target = AdapterState;

    fn deref(&self) -> &AdapterState {
        &self.0
    }
}

/// The state that all requests of one mount share.
pub(super) struct AdapterState {
    pub tree: Arc<Tree>,
    pub files: HandleTable<OpenFile>,
    pub dirs: HandleTable<OpenDir>,
    /// Generation of the tree when the kernel was last allowed to keep a folder's listing.
    cached_listings: Mutex<LruCache<u64, u64>>,
    pub parked_reads: ParkedReadQueue,
    pub inbox_moves: InboxMoves,
    pub recent_drafts: RecentDrafts,
    removed_replies: RemovedReplies,
    pub walkers: FolderWalkers,
    /// The number of threads that serve long requests.
    pub long_requests: AtomicUsize,
    pub owner: (u32, u32),
    pub ended: EndSignal,
}

impl FuseAdapter {
    /// Makes the adapter and starts the thread of parked reads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(tree: Arc<Tree>, ended: EndSignal) -> std::io::Result<Self> {
        Ok(Self(Arc::new(AdapterState {
            parked_reads: ParkedReadQueue::start(&tree)?,
            tree,
            files: HandleTable::default(),
            dirs: HandleTable::default(),
            cached_listings: Mutex::new(LruCache::new(CACHED_FOLDERS)),
            inbox_moves: InboxMoves::default(),
            recent_drafts: RecentDrafts::default(),
            removed_replies: RemovedReplies::default(),
            walkers: FolderWalkers::default(),
            long_requests: AtomicUsize::new(0),
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            ended,
        })))
    }

    /// Returns the node of an inode number.
    pub fn resolve_inode(&self, ino: INodeNo) -> Result<Node, Error> {
        self.tree.node_by_inode(ino.0).ok_or(Error::Stale)
    }

    /// Returns the open file of a handle.
    pub fn open_file(&self, handle: FileHandle) -> Result<Arc<OpenFile>, Error> {
        self.files.get(handle).ok_or(Error::NotFound)
    }

    /// Returns attributes in the form that the kernel gets.
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
            kind: file_type(attr.is_dir),
            perm: attr.mode,
            nlink: if attr.is_dir { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Returns the facts about an open that the tree needs: the flags and the reader profile.
    pub fn make_open_request(&self, req: &Request, node: &Node, flags: i32) -> OpenRequest {
        let has = |flag: i32| flags & flag != 0;
        let (nofollow, noatime) = (has(libc::O_NOFOLLOW), has(libc::O_NOATIME));
        let who_matters = node.has(NodeProperty::NeedsOpener);
        // Without --allow-other the kernel admits no other user.
        let stranger = self.tree.settings().allow_other && req.uid() != self.owner.0;
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let opener = if write || who_matters { requesting_process(req) } else { 0 };
        let (process, program) = if who_matters && !nofollow && !noatime {
            (ProcessIdentity::from_thread(req.pid()), program_name(opener))
        } else {
            (None, None)
        };
        OpenRequest {
            write,
            append: has(libc::O_APPEND),
            truncate: has(libc::O_TRUNC),
            opener,
            reader: ReaderProfile { stranger, nofollow, noatime, process, program },
        }
    }

    /// Returns the attributes of a node, with the length of the open file if there is one.
    pub fn stat_open_node(&self, node: &Node, handle: Option<FileHandle>) -> Result<Attr, Error> {
        let open =
            handle.and_then(|h| self.files.get(h)).and_then(|f| self.tree.writer().open_len(&f));
        match (self.tree.stat_node(node), open) {
            (Ok(attr), Some(size)) => Ok(Attr { size, ..attr }),
            // The draft was sent or removed since its name was looked up. Opening it makes a new one. An error
            // here would fail another program that writes the same name at the same time. A folder stays one
            // for the processes in it.
            (Err(Error::NotFound), size) if node.has(NodeProperty::Editable) => Ok(Attr {
                ino: self.tree.inode_number(node),
                is_dir: node.is_dir(),
                mode: if node.is_dir() { 0o700 } else { 0o600 },
                size: size.unwrap_or(0),
                time: crate::model::Timestamp::now(),
                caching: CachePolicy::Volatile,
            }),
            (attr, _) => attr,
        }
    }

    /// Returns the attributes of a name in a folder.
    pub fn lookup_attr(&self, who: u32, parent: INodeNo, name: &OsStr) -> Result<Attr, Error> {
        let parent = self.resolve_inode(parent)?;
        let name = parse_entry_name(name).inspect_err(|error| {
            if matches!(error, Error::NotFound) {
                self.tree.note_odd_name(&parent, name);
            }
        })?;
        if parent.has(NodeProperty::ShowsUnread)
            && let Some(from) =
                self.inbox_moves.resolve_move(who, name, || inbox_moves::is_renaming(who))
        {
            // A program may have read it meanwhile, so it is marked unread again.
            // `status.txt` says why it could not be saved.
            drop(self.tree.writer().mark_unread(&from));
            return Ok(Attr { caching: CachePolicy::Volatile, ..self.tree.stat_node(&from)? });
        }
        let found = self.tree.lookup(&parent, name).and_then(|node| {
            let is_gone = self.removed_replies.is_gone(who, &node);
            if is_gone { Err(Error::NotFound) } else { self.tree.stat_node(&node) }
        });
        let found = found.map(|attr| {
            let volatile = may_mean_another(&parent, name);
            if volatile { Attr { caching: CachePolicy::Volatile, ..attr } } else { attr }
        });
        if matches!(found, Err(Error::NotFound))
            && let Ok(Some(draft)) = self.tree.name_file(&parent, name)
            && self.recent_drafts.is_finishing(who, &draft)
        {
            return self.stat_open_node(&draft, None);
        }
        found
    }

    /// Serves `unlink`.
    pub fn remove_entry(&self, req: &Request, parent: INodeNo, name: &OsStr) -> Result<(), Error> {
        let (parent, name) = (self.resolve_inode(parent)?, parse_entry_name(name)?);
        // Other files need no second look-up.
        let found = has_reply_ending(name).then(|| self.tree.lookup(&parent, name).ok()).flatten();
        self.tree.writer().unlink(&parent, name)?;
        if let Some(answer) = found.filter(|node| node.has(NodeProperty::StaysWhenRemoved)) {
            self.removed_replies.record_removed(requesting_process(req), &answer);
        }
        Ok(())
    }

    /// Serves `rename`. A rename that only makes a message unread moves no name.
    pub fn rename_entry(
        &self,
        who: u32,
        (from, name): (INodeNo, &OsStr),
        (to, new_name): (INodeNo, &OsStr),
        replace: bool,
    ) -> Result<(), Error> {
        let (from, to) = (self.resolve_inode(from)?, self.resolve_inode(to)?);
        let (name, new_name) = (parse_entry_name(name)?, parse_entry_name(new_name)?);
        let moving = to.has(NodeProperty::ShowsUnread) && from != to;
        if moving && !replace {
            // The name may exist when the kernel asks again, and the result would be EEXIST. After EINVAL,
            // programs check the name themselves and rename without the flag.
            return Err(Error::from_errno(libc::EINVAL));
        }
        let known = moving && self.tree.lookup(&to, new_name).is_ok();
        self.tree.writer().rename(&from, name, &to, new_name, replace)?;
        if moving {
            self.inbox_moves.begin_move(who, new_name, self.tree.lookup(&from, name)?, known);
            return Err(Error::Stale);
        }
        Ok(())
    }

    /// Returns the flags that tell the kernel if its copy of a folder's listing is still valid, and notes that
    /// it gets one.
    pub fn listing_cache_flags(&self, node: &Node) -> FopenFlags {
        if !self.tree.is_cacheable(node) {
            return FopenFlags::empty();
        }
        let now = self.tree.generation();
        let ino = self.tree.inode_number(node);
        let before = self.cached_listings.lock().put(ino, now);
        if before == Some(now) {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_CACHE_DIR
        }
    }

    /// Has the next open of a folder drop the kernel's copy of its listing.
    pub fn forget_cached_listing(&self, node: &Node) {
        let ino = self.tree.inode_number(node);
        self.cached_listings.lock().pop(&ino);
    }

    /// Registers an opened file. Returns its handle, and the flags for the kernel.
    pub fn register_open(
        &self,
        node: &Node,
        file: OpenFile,
        access: &OpenRequest,
    ) -> (FileHandle, FopenFlags) {
        if node.has(NodeProperty::GoesWhenClosed) {
            self.recent_drafts.record_opened(access.opener, node);
        }
        if access.write && node.has(NodeProperty::StaysWhenRemoved) {
            self.removed_replies.forget(access.opener, node);
        }
        let how = open_flags(&self.tree, node, &file);
        (self.files.insert(file), how)
    }
}

/// Returns the process behind a request, which names a thread; 0 if it is invisible from here.
pub(super) fn requesting_process(req: &Request) -> u32 {
    thread_group(req.pid()).unwrap_or(0)
}

/// Returns the file type of a folder or of a file.
pub(super) fn file_type(is_dir: bool) -> FileType {
    if is_dir { FileType::Directory } else { FileType::RegularFile }
}

/// Returns the times for which the kernel may trust the name and the attributes.
pub(super) fn cache_ttls(attr: &Attr) -> (Duration, Duration) {
    match attr.caching {
        CachePolicy::Immutable => (LONG, LONG),
        CachePolicy::Folder if attr.is_dir => (SHORT, SHORT),
        CachePolicy::Folder => (SHORT, LONG),
        CachePolicy::Moving => (Duration::ZERO, LONG),
        CachePolicy::PerLookup => (Duration::ZERO, SHORT),
        CachePolicy::Brief => (SHORT, SHORT),
        CachePolicy::Volatile => (Duration::ZERO, Duration::ZERO),
    }
}

/// Returns a name as text, or an error if the tree can have no such name.
pub(super) fn parse_entry_name(name: &OsStr) -> Result<&str, Error> {
    if name.len() > NAME_MAX {
        return Err(Error::from_errno(libc::ENAMETOOLONG));
    }
    name.to_str().ok_or(Error::NotFound)
}

/// Turns `NotFound` into `Stale`, so that the kernel looks the name up again.
pub(super) fn stale_if_gone<T>(result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|e| if matches!(e, Error::NotFound) { Error::Stale } else { e })
}

/// Returns the flags that tell the kernel what to do with an open file.
fn open_flags(tree: &Tree, node: &Node, file: &OpenFile) -> FopenFlags {
    let policy = match file {
        // Other bytes follow at the same place.
        OpenFile::NoText(_) => PagePolicy::Bypass,
        _ => tree.page_policy(node),
    };
    let pages = match policy {
        PagePolicy::Drop => FopenFlags::empty(),
        PagePolicy::Keep => FopenFlags::FOPEN_KEEP_CACHE,
        PagePolicy::Bypass => FopenFlags::FOPEN_DIRECT_IO,
        PagePolicy::Stream => {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_STREAM | FopenFlags::FOPEN_NONSEEKABLE
        }
    };
    // The close of every other file means nothing.
    if file.should_know_closer() { pages } else { pages | FopenFlags::FOPEN_NOFLUSH }
}
