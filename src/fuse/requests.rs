//! The requests of the kernel, each turned into one call of the tree.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::adapter::{
    Adapter, FIRST, GENERATION, NAME_MAX, OpenDir, kind, known, process_of, text, ttls,
};
use super::control::MARK_ALL;
use super::guard::guarded;
use super::waiting::Parked;
use crate::store::asked;
use crate::view::{Attr, Error, Node, TOGETHER};

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

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.walkers.looked_up(req.pid(), parent.0);
        match guarded("lookup", || self.find(req.pid(), parent, name)) {
            Ok(attr) => {
                let (entry, attrs) = ttls(&attr);
                reply.entry_with_ttls(&attrs, &entry, &self.kernel_attr(&attr), GENERATION);
            }
            Err(e) => reply.error(e),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = guarded("getattr", || known(self.attr_of(&self.node(ino)?, fh)));
        self.reply_attr(found, reply);
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
            let touches = [mode, uid, gid].iter().any(Option::is_some)
                || [atime, mtime].iter().any(Option::is_some);
            // `cp -p` and `rsync -a` set modes and times of what they write, and of the folder.
            let silent = node == Node::Outbox || self.tree.is_draft(&node);
            if foreign || (touches && !silent) {
                return Err(Error::NotPermitted(
                    "owner, mode and times cannot be changed here".into(),
                ));
            }
            known(self.attr_of(&node, fh))
        });
        self.reply_attr(done, reply);
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
            let access = self.access(req, &folder, libc::O_WRONLY);
            let (node, file) = self.tree.create(&folder, text(name)?, &access)?;
            self.tree.release(&file);
            self.tree.attr(&node)
        });
        self.reply_made(made, reply);
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
            self.tree.attr(&node)
        });
        self.reply_made(made, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(guarded("unlink", || self.tree.unlink(&self.node(parent)?, text(name)?)), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(guarded("rmdir", || self.tree.rmdir(&self.node(parent)?, text(name)?)), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = guarded("rename", || {
            if flags.bits() & !RenameFlags::RENAME_NOREPLACE.bits() != 0 {
                return Err(Error::os(libc::EINVAL));
            }
            let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
            self.rename(req.pid(), (parent, name), (newparent, newname), replace)
        });
        empty(done, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = guarded("open", || {
            let node = self.node(ino)?;
            let access = self.access(req, &node, flags.0);
            let file = known(self.tree.open(&node, &access))?;
            Ok(self.opened(&node, file, &access))
        });
        reply_opened(opened, reply);
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
            let access = self.access(req, &folder, flags);
            let name = text(name).map_err(|e| match e {
                Error::NotFound => Error::os(libc::EINVAL),
                e => e,
            })?;
            let (node, file) = self.tree.create(&folder, name, &access)?;
            let (handle, how) = self.opened(&node, file, &access);
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
        if let Some(what) = self.tree.waits_for(&file) {
            let pid = req.pid();
            return self.waiters.park(Parked { pid, file, what, offset, size, reply });
        }
        match guarded("read", || self.tree.read(&file, offset, size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(e) => return reply.error(e),
        }
        self.read_on(&file);
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = guarded("write", || {
            let file = self.file(fh)?;
            self.tree.writes(&file, req.pid());
            self.tree.write_file(&file, offset, data)
        });
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let done = guarded("flush", || {
            let file = self.file(fh)?;
            let by = if file.asks_who() { process_of(req) } else { 0 };
            self.tree.closes(&file, req.pid());
            self.tree.flush(&file, by)
        });
        empty(done, reply);
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

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // What close promises is on disk when close returns; before that there is no message.
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = guarded("opendir", || {
            let node = self.node(ino)?;
            // In this order: what comes while the listing is taken makes the next one fresh.
            self.tree.settle(&node);
            let keep = self.may_keep(&node);
            let listing = known(self.tree.listing(&node))?;
            Ok((self.dirs.add(OpenDir { node, listing }), keep))
        });
        reply_opened(opened, reply);
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
            self.list(req, &dir, offset, |next, name, node| {
                let ino = INodeNo(self.tree.ino(node));
                reply.add(ino, next, kind(node.is_dir()), name)
            });
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
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let done = guarded("readdirplus", || {
            let dir = self.dirs.get(fh).ok_or(Error::NotFound)?;
            let names = offset == 0
                && !self.tree.knows_sizes(&dir.listing)
                && self.walkers.asks_names(req.pid(), ino.0);
            let mut ready = offset;
            let end = self.list(req, &dir, offset, |next, name, node| {
                let number = next - 1;
                if names && number >= FIRST {
                    // The kernel comes back for the names alone.
                    return true;
                }
                if number >= ready && !names {
                    ready = number + TOGETHER as u64;
                    self.look_ahead(&dir, number, TOGETHER);
                }
                // What went since the folder was opened is not listed any more.
                let attr = match number.checked_sub(FIRST) {
                    Some(number) => self.tree.attr_in(&dir.listing, number as usize, node),
                    None => self.tree.attr(node),
                };
                let Ok(attr) = attr else { return false };
                let (entry, attrs) = ttls(&attr);
                let (ino, ttl) = (INodeNo(attr.ino), entry.min(attrs));
                reply.add(ino, next, name, &ttl, &self.kernel_attr(&attr), GENERATION)
            });
            Ok((!names).then_some((dir, end)))
        });
        match done {
            Ok(listed) => {
                reply.ok();
                if let Some((dir, end)) = listed {
                    self.look_beyond(&dir, offset, end);
                }
            }
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

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let store = self.tree.index().stores().first();
        let reached = store.filter(|s| asked::reach(s.dir()).is_ok());
        match reached.and_then(|s| rustix::fs::statvfs(s.dir()).ok()) {
            Some(fs) => {
                let (block, fragment) = (fs.f_bsize as u32, fs.f_frsize as u32);
                let (blocks, free, avail) = (fs.f_blocks, fs.f_bfree, fs.f_bavail);
                let name = NAME_MAX as u32;
                reply.statfs(blocks, free, avail, fs.f_files, fs.f_ffree, block, name, fragment);
            }
            None => reply.statfs(0, 0, 0, 0, 0, 4096, NAME_MAX as u32, 4096),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let asked = ino == INodeNo::ROOT && cmd == u32::from(MARK_ALL);
        let done = guarded("ioctl", || {
            if asked { self.tree.mark_all() } else { Err(Error::os(libc::ENOTTY)) }
        });
        match done {
            Ok(n) => reply.ioctl(i32::try_from(n).unwrap_or(i32::MAX), &[]),
            Err(e) => reply.error(e),
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

impl Adapter {
    fn reply_attr(&self, found: Result<Attr, Errno>, reply: ReplyAttr) {
        match found {
            Ok(attr) => reply.attr(&ttls(&attr).1, &self.kernel_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn reply_made(&self, made: Result<Attr, Errno>, reply: ReplyEntry) {
        match made {
            Ok(attr) => reply.entry(&Duration::ZERO, &self.kernel_attr(&attr), GENERATION),
            Err(e) => reply.error(e),
        }
    }
}

fn reply_opened(opened: Result<(FileHandle, FopenFlags), Errno>, reply: ReplyOpen) {
    match opened {
        Ok((handle, how)) => reply.opened(handle, how),
        Err(e) => reply.error(e),
    }
}

fn empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}
