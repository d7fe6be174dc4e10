//! The requests of the kernel, each turned into one call of the tree.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use lru::LruCache;
use parking_lot::Mutex;

use super::Ended;
use super::guard::guarded;
use super::handles::Handles;
use crate::view::reader::{Process, interrupted};
use crate::view::{Access, Attr, Caching, Error, Listing, Node, OpenFile, Place, Reader, Tree};

/// Nothing of ours is reused under another identity.
const GENERATION: Generation = Generation(0);
/// A name that does not go away, and attributes that do not change.
const LONG: Duration = Duration::from_secs(3600);
/// Attributes of folders: told when they change; this bounds the damage if that was lost.
const SHORT: Duration = Duration::from_secs(1);
/// Reads that may wait at the same time.
const MAX_WAITING: usize = 256;
/// Folders whose listing the kernel may hold.
const CACHED_FOLDERS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(4095);

/// An open folder.
struct OpenDir {
    node: Node,
    listing: Listing,
}

/// Serves one mount.
pub(super) struct Adapter {
    tree: Arc<Tree>,
    files: Handles<OpenFile>,
    dirs: Handles<OpenDir>,
    /// Generation of the tree when the kernel was last allowed to keep a folder's listing.
    listed: Mutex<LruCache<u64, u64>>,
    waiting: Arc<AtomicUsize>,
    owner: (u32, u32),
    ended: Ended,
}

impl Adapter {
    pub fn new(tree: Arc<Tree>, ended: Ended) -> Self {
        Self {
            tree,
            files: Handles::default(),
            dirs: Handles::default(),
            listed: Mutex::new(LruCache::new(CACHED_FOLDERS)),
            waiting: Arc::new(AtomicUsize::new(0)),
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            ended,
        }
    }

    fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        self.tree.node(ino.0).ok_or(Error::NotFound)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<OpenFile>, Error> {
        self.files.get(handle).ok_or(Error::NotFound)
    }

    fn kernel_attr(&self, attr: &Attr) -> FileAttr {
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

    /// Who opens a file, as far as the tree wants to know.
    fn reader(req: &Request, node: &Node, flags: i32) -> Reader {
        let nofollow = flags & libc::O_NOFOLLOW != 0;
        let noatime = flags & libc::O_NOATIME != 0;
        let matters = matches!(node, Node::Message(Place::Inbox, _)) && !nofollow && !noatime;
        let process = if matters { Process::of(req.pid()) } else { None };
        Reader { nofollow, noatime, process }
    }

    fn access(req: &Request, node: &Node, flags: i32) -> Access {
        Access {
            write: flags & libc::O_ACCMODE != libc::O_RDONLY,
            append: flags & libc::O_APPEND != 0,
            truncate: flags & libc::O_TRUNC != 0,
            reader: Self::reader(req, node, flags),
        }
    }

    /// Attributes of a node, with the length of the open file if there is one.
    fn attr_of(&self, node: &Node, handle: Option<FileHandle>) -> Result<Attr, Error> {
        let open = handle.and_then(|h| self.files.get(h)).and_then(|f| self.tree.open_len(&f));
        match (self.tree.attr(node), open) {
            (Ok(attr), Some(size)) => Ok(Attr { size, ..attr }),
            // A draft that was removed while it is open.
            (Err(Error::NotFound), Some(size)) => Ok(Attr {
                ino: self.tree.ino(node),
                is_dir: false,
                mode: 0o600,
                size,
                time: crate::model::Timestamp::now(),
                caching: Caching::Volatile,
            }),
            (attr, _) => attr,
        }
    }

    fn entry(&self, node: &Node) -> Result<Attr, Error> {
        self.tree.attr(node)
    }

    /// Answers a read that waits for mail, on a thread of its own.
    fn wait(&self, pid: u32, file: Arc<OpenFile>, offset: u64, size: usize, reply: ReplyData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return reply.error(Errno::EAGAIN);
        }
        let (tree, waiting) = (Arc::clone(&self.tree), Arc::clone(&self.waiting));
        let answer = move || {
            let got = guarded("wait", || {
                tree.await_mail(&file, &|| interrupted(pid))?;
                tree.read(&file, offset, size)
            });
            waiting.fetch_sub(1, Ordering::Relaxed);
            match got {
                Ok(bytes) => reply.data(&bytes),
                Err(e) => reply.error(e),
            }
        };
        let spawned = std::thread::Builder::new().name("msgfs-wait".into()).spawn(answer);
        if let Err(e) = spawned {
            // The reply went with the closure; dropping it has answered EIO.
            tracing::error!(error = %e, "no thread to wait on");
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the kernel's copy of a folder's listing is still true, and notes that it gets one.
    fn may_keep(&self, node: &Node) -> FopenFlags {
        if !self.tree.is_cacheable(node) {
            return FopenFlags::empty();
        }
        let now = self.tree.generation();
        let before = self.listed.lock().put(self.tree.ino(node), now);
        if before == Some(now) {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_CACHE_DIR
        }
    }

    /// Notes who lists `inbox/`, at the beginning of a listing.
    fn note_lister(&self, req: &Request, dir: &OpenDir, offset: u64) {
        if dir.node == Node::Inbox && offset == 0 {
            self.tree.listed_inbox(Process::of(req.pid()));
        }
    }

    /// Entry `number` of a listing, `.` and `..` first.
    fn dir_entry(&self, dir: &OpenDir, number: u64) -> Option<(String, Node)> {
        match number {
            0 => Some((".".to_owned(), dir.node.clone())),
            1 => Some(("..".to_owned(), parent(&dir.node))),
            n => self.tree.item(&dir.listing, usize::try_from(n - 2).ok()?),
        }
    }
}

/// The folder above a folder.
fn parent(node: &Node) -> Node {
    match node {
        Node::ArchiveDay(_) => Node::Archive,
        Node::SentDay(_) => Node::Sent,
        Node::Thread(_) => Node::Threads,
        Node::Compose(_) => Node::Outbox,
        Node::RawDir(number, path) => match path.rsplit_once('/') {
            Some((up, _)) => Node::RawDir(*number, up.to_owned()),
            None if path.is_empty() => Node::Raw,
            None => Node::RawDir(*number, String::new()),
        },
        _ => Node::Root,
    }
}

fn is_dir(node: &Node) -> bool {
    !matches!(
        node,
        Node::Readme
            | Node::Status
            | Node::Wait
            | Node::Next
            | Node::Transcript(_)
            | Node::Draft(_)
            | Node::ThreadDraft(..)
            | Node::ComposeFile(..)
            | Node::Reject(_)
            | Node::RawFile(..)
            | Node::Message(..)
            | Node::Reply(..)
    )
}

fn kind(is_dir: bool) -> FileType {
    if is_dir { FileType::Directory } else { FileType::RegularFile }
}

/// How long the name, and the attributes, may be trusted.
fn ttls(attr: &Attr) -> (Duration, Duration) {
    match attr.caching {
        Caching::Immutable => (LONG, LONG),
        Caching::Folder if attr.is_dir => (SHORT, SHORT),
        Caching::Folder => (SHORT, LONG),
        Caching::Volatile => (Duration::ZERO, Duration::ZERO),
    }
}

fn text(name: &OsStr) -> Result<&str, Error> {
    name.to_str().ok_or(Error::NotFound)
}

/// How the kernel shall treat an open file.
fn open_flags(node: &Node, file: &OpenFile) -> FopenFlags {
    match (node, file) {
        // Every read has to reach us: it decides whether the message was read to its end.
        (Node::Message(Place::Inbox, _), _) => FopenFlags::FOPEN_DIRECT_IO,
        (Node::Message(..) | Node::Readme, _) => {
            FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
        }
        (_, OpenFile::Draft { .. } | OpenFile::Compose { .. } | OpenFile::Waiting { .. }) => {
            FopenFlags::FOPEN_DIRECT_IO
        }
        (Node::Status | Node::Draft(_), _) => {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH
        }
        _ => FopenFlags::FOPEN_NOFLUSH,
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            // An older kernel has not all of them; the mount works without.
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = guarded("lookup", || {
            let node = self.tree.lookup(&self.node(parent)?, text(name)?)?;
            self.entry(&node)
        });
        match found {
            Ok(attr) => {
                let (entry, attrs) = ttls(&attr);
                reply.entry_with_ttls(&attrs, &entry, &self.kernel_attr(&attr), GENERATION);
            }
            Err(e) => reply.error(e),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        match guarded("getattr", || self.attr_of(&self.node(ino)?, fh)) {
            Ok(attr) => reply.attr(&ttls(&attr).1, &self.kernel_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = guarded("setattr", || {
            let node = self.node(ino)?;
            let file = fh.and_then(|h| self.files.get(h));
            if let Some(size) = size {
                self.tree.set_len(&node, file.as_deref(), size)?;
            }
            let foreign =
                uid.is_some_and(|u| u != self.owner.0) || gid.is_some_and(|g| g != self.owner.1);
            let touches = mode.is_some()
                || uid.is_some()
                || gid.is_some()
                || atime.is_some()
                || mtime.is_some();
            // `cp -p` and `rsync -a` set modes and times of what they write; drafts take them silently.
            if foreign || (touches && !self.tree.is_draft(&node)) {
                return Err(Error::NotPermitted(
                    "owner, mode and times cannot be changed here".into(),
                ));
            }
            self.attr_of(&node, fh)
        });
        match done {
            Ok(attr) => reply.attr(&ttls(&attr).1, &self.kernel_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = guarded("mknod", || {
            if mode & libc::S_IFMT != libc::S_IFREG {
                return Err(Error::NotPermitted("only files can be made here".into()));
            }
            let folder = self.node(parent)?;
            let access = Self::access(req, &folder, libc::O_WRONLY);
            let (node, file) = self.tree.create(&folder, text(name)?, &access)?;
            self.tree.release(&file);
            self.entry(&node)
        });
        match made {
            Ok(attr) => reply.entry(&Duration::ZERO, &self.kernel_attr(&attr), GENERATION),
            Err(e) => reply.error(e),
        }
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = guarded("mkdir", || {
            let node = self.tree.mkdir(&self.node(parent)?, text(name)?)?;
            self.entry(&node)
        });
        match made {
            Ok(attr) => reply.entry(&Duration::ZERO, &self.kernel_attr(&attr), GENERATION),
            Err(e) => reply.error(e),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(guarded("unlink", || self.tree.unlink(&self.node(parent)?, text(name)?)), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(guarded("rmdir", || self.tree.rmdir(&self.node(parent)?, text(name)?)), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = guarded("rename", || {
            if flags.bits() & !RenameFlags::RENAME_NOREPLACE.bits() != 0 {
                return Err(std::io::Error::from_raw_os_error(libc::EINVAL).into());
            }
            let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
            let (from, to) = (self.node(parent)?, self.node(newparent)?);
            self.tree.rename(&from, text(name)?, &to, text(newname)?, replace)
        });
        empty(done, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = guarded("open", || {
            let node = self.node(ino)?;
            let file = self.tree.open(&node, &Self::access(req, &node, flags.0))?;
            let how = open_flags(&node, &file);
            Ok((self.files.add(file), how))
        });
        match opened {
            Ok((handle, how)) => reply.opened(handle, how),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = guarded("create", || {
            let folder = self.node(parent)?;
            let name =
                name.to_str().ok_or_else(|| std::io::Error::from_raw_os_error(libc::EINVAL))?;
            let access = Self::access(req, &folder, flags);
            let (node, file) = self.tree.create(&folder, name, &access)?;
            let how = open_flags(&node, &file);
            let handle = self.files.add(file);
            Ok((self.attr_of(&node, Some(handle))?, handle, how))
        });
        match made {
            Ok((attr, handle, how)) => {
                reply.created(&Duration::ZERO, &self.kernel_attr(&attr), GENERATION, handle, how);
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size as usize;
        let file = match guarded("read", || self.file(fh)) {
            Ok(file) => file,
            Err(e) => return reply.error(e),
        };
        if self.tree.would_wait(&file) {
            return self.wait(req.pid(), file, offset, size, reply);
        }
        match guarded("read", || self.tree.read(&file, offset, size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = guarded("write", || self.tree.write_file(&*self.file(fh)?, offset, data));
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        empty(guarded("flush", || self.tree.flush(&*self.file(fh)?)), reply);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let done = guarded("release", || {
            if let Some(file) = self.files.remove(fh) {
                self.tree.release(&file);
            }
            Ok(())
        });
        empty(done, reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // What close promises is on disk when close returns; before that there is no message.
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = guarded("opendir", || {
            let node = self.node(ino)?;
            // Before the listing is taken: what comes meanwhile makes the next one fresh.
            let keep = self.may_keep(&node);
            let listing = self.tree.list(&node)?;
            Ok((self.dirs.add(OpenDir { node, listing }), keep))
        });
        match opened {
            Ok((handle, keep)) => reply.opened(handle, keep),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let done = guarded("readdir", || {
            let dir = self.dirs.get(fh).ok_or(Error::NotFound)?;
            self.note_lister(req, &dir, offset);
            for number in offset..dir.listing.len() as u64 + 2 {
                let Some((name, node)) = self.dir_entry(&dir, number) else { continue };
                let ino = INodeNo(self.tree.ino(&node));
                if reply.add(ino, number + 1, kind(is_dir(&node)), &name) {
                    break;
                }
            }
            Ok(())
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let done = guarded("readdirplus", || {
            let dir = self.dirs.get(fh).ok_or(Error::NotFound)?;
            self.note_lister(req, &dir, offset);
            for number in offset..dir.listing.len() as u64 + 2 {
                let Some((name, node)) = self.dir_entry(&dir, number) else { continue };
                // What went since the folder was opened is not listed any more.
                let Ok(attr) = self.entry(&node) else { continue };
                let ttl = ttls(&attr);
                let ttl = ttl.0.min(ttl.1);
                let full = reply.add(
                    INodeNo(attr.ino),
                    number + 1,
                    &name,
                    &ttl,
                    &self.kernel_attr(&attr),
                    GENERATION,
                );
                if full {
                    break;
                }
            }
            Ok(())
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.dirs.remove(fh);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let store = self.tree.index().stores().first();
        match store.and_then(|s| rustix::fs::statvfs(s.dir()).ok()) {
            Some(fs) => reply.statfs(
                fs.f_blocks,
                fs.f_bfree,
                fs.f_bavail,
                fs.f_files,
                fs.f_ffree,
                fs.f_bsize as u32,
                255,
                fs.f_frsize as u32,
            ),
            None => reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096),
        }
    }

    // ENOSYS is for the kernel: it does not ask again, and `ls -l` costs nothing.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

fn empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}
