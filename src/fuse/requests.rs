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
    FuseAdapter, GENERATION, NAME_MAX, cache_ttls, parse_entry_name, requesting_process,
    stale_if_gone,
};
use super::control::MARK_ALL;
use super::guard::run_guarded;
use super::open_dir::OpenDir;
use super::parked_reads::ParkedRead;
use crate::store::probe;
use crate::view::{Attr, Error, NodeProperty};

impl Filesystem for FuseAdapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            // An older kernel lacks some of them; the mount works without.
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let caller = req.pid();
        self.walkers.note_lookup(caller, parent.0);
        if self.may_take_long(parent, Some(name)) {
            let owned = name.to_owned();
            return self.serve_in_thread(
                caller,
                (parent, Some(name)),
                reply,
                move |this, reply| {
                    this.reply_lookup(caller, parent, &owned, reply);
                },
            );
        }
        self.reply_lookup(caller, parent, name, reply);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let serve = move |this: &Self, reply| {
            let found = run_guarded("getattr", || {
                stale_if_gone(this.stat_open_node(&this.resolve_inode(ino)?, fh))
            });
            this.reply_attr(found, reply);
        };
        if self.may_take_long(ino, None) {
            return self.serve_in_thread(req.pid(), (ino, None), reply, serve);
        }
        serve(self, reply);
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
        let done = run_guarded("setattr", || {
            let node = self.resolve_inode(ino)?;
            let file = fh.and_then(|h| self.files.get(h));
            if let Some(size) = size {
                self.tree.writer().set_len(&node, file.as_deref(), size)?;
            }
            let foreign =
                uid.is_some_and(|u| u != self.owner.0) || gid.is_some_and(|g| g != self.owner.1);
            let touches = [mode, uid, gid].iter().any(Option::is_some)
                || [atime, mtime].iter().any(Option::is_some);
            // `cp -p` and `rsync -a` set modes and times of the files that they write, and of the folder.
            let silent = node.has(NodeProperty::Editable);
            if foreign || (touches && !silent) {
                return Err(Error::NotPermitted(
                    "owner, mode and times cannot be changed here".into(),
                ));
            }
            stale_if_gone(self.stat_open_node(&node, fh))
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
        let made = run_guarded("mknod", || {
            if mode & libc::S_IFMT != libc::S_IFREG {
                return Err(Error::NotPermitted("only files can be made here".into()));
            }
            let folder = self.resolve_inode(parent)?;
            let access = self.make_open_request(req, &folder, libc::O_WRONLY);
            let (node, file) =
                self.tree.writer().create(&folder, parse_entry_name(name)?, &access)?;
            self.tree.release(&file);
            self.tree.stat_node(&node)
        });
        self.reply_new_entry(made, reply);
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
        let made = run_guarded("mkdir", || {
            let node =
                self.tree.writer().mkdir(&self.resolve_inode(parent)?, parse_entry_name(name)?)?;
            self.tree.stat_node(&node)
        });
        self.reply_new_entry(made, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(run_guarded("unlink", || self.remove_entry(req, parent, name)), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            run_guarded("rmdir", || {
                self.tree.writer().rmdir(&self.resolve_inode(parent)?, parse_entry_name(name)?)
            }),
            reply,
        );
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
        let done = run_guarded("rename", || {
            if flags.bits() & !RenameFlags::RENAME_NOREPLACE.bits() != 0 {
                return Err(Error::from_errno(libc::EINVAL));
            }
            let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
            self.rename_entry(req.pid(), (parent, name), (newparent, newname), replace)
        });
        reply_empty(done, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let asked = run_guarded("open", || {
            let node = self.resolve_inode(ino)?;
            let access = self.make_open_request(req, &node, flags.0);
            Ok((node, access))
        });
        let (node, access) = match asked {
            Ok(asked) => asked,
            Err(e) => return reply.error(e),
        };
        let serve = move |this: &Self, reply| {
            let opened = run_guarded("open", || {
                let file = stale_if_gone(this.tree.open(&node, &access))?;
                Ok(this.register_open(&node, file, &access))
            });
            reply_open(opened, reply);
        };
        if self.may_take_long(ino, None) {
            return self.serve_in_thread(req.pid(), (ino, None), reply, serve);
        }
        serve(self, reply);
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
        let made = run_guarded("create", || {
            let folder = self.resolve_inode(parent)?;
            let access = self.make_open_request(req, &folder, flags);
            let name = parse_entry_name(name).map_err(|e| match e {
                Error::NotFound => Error::from_errno(libc::EINVAL),
                e => e,
            })?;
            let (node, file) = self.tree.writer().create(&folder, name, &access)?;
            let (handle, how) = self.register_open(&node, file, &access);
            Ok((self.stat_open_node(&node, Some(handle))?, handle, how))
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
        let file = match run_guarded("read", || self.open_file(fh)) {
            Ok(file) => file,
            Err(e) => return reply.error(e),
        };
        if let Some(what) = file.wait_target() {
            let pid = req.pid();
            return self.parked_reads.park_read(ParkedRead {
                pid,
                file,
                target: what,
                offset,
                size,
                reply,
            });
        }
        match run_guarded("read", || self.tree.read(&file, offset, size, req.pid())) {
            Ok(bytes) => reply.data(&bytes),
            Err(e) => reply.error(e),
        }
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
        let done = run_guarded("write", || {
            let file = self.open_file(fh)?;
            file.note_writer(req.pid());
            self.tree.writer().write_file(&file, offset, data)
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
        let done = run_guarded("flush", || {
            let file = self.open_file(fh)?;
            let by = if file.should_know_closer() { requesting_process(req) } else { 0 };
            self.tree.writer().note_closer(&file, req.pid());
            self.tree.flush(&file, by)
        });
        reply_empty(done, reply);
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
        let done = run_guarded("release", || {
            if let Some(file) = self.files.remove(fh) {
                self.tree.release(&file);
            }
            Ok(())
        });
        reply_empty(done, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // An accepted message is on disk when close returns; before that there is no message.
        reply.ok();
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let serve = move |this: &Self, reply| {
            let opened = run_guarded("opendir", || {
                let node = this.resolve_inode(ino)?;
                // The wait and the generation come first, so a change during the listing makes the next one fresh.
                this.tree.wait_for_sent(&node);
                let keep = this.listing_cache_flags(&node);
                let dir = stale_if_gone(OpenDir::open(&this.tree, node))?;
                Ok((this.dirs.insert(dir), keep))
            });
            reply_open(opened, reply);
        };
        if self.may_take_long(ino, None) {
            return self.serve_in_thread(req.pid(), (ino, None), reply, serve);
        }
        serve(self, reply);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let caller = req.pid();
        let serve = move |this: &Self, reply| this.reply_names(caller, fh, offset, reply);
        if offset == 0 && self.may_take_long(ino, None) {
            return self.serve_in_thread(caller, (ino, None), reply, serve);
        }
        serve(self, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let caller = req.pid();
        let serve =
            move |this: &Self, reply| this.reply_attributes(caller, (ino, fh), offset, reply);
        if offset == 0 && self.may_take_long(ino, None) {
            return self.serve_in_thread(caller, (ino, None), reply, serve);
        }
        serve(self, reply);
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
        let reached = store.filter(|s| probe::require_response(s.dir()).is_ok());
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
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let asked = ino == INodeNo::ROOT && cmd == u32::from(MARK_ALL);
        let done = run_guarded("ioctl", || {
            // The kernel asks no permission for it.
            match asked {
                true if req.uid() != self.owner.0 => Err(Error::from_errno(libc::EPERM)),
                true => self.tree.writer().mark_all_read(),
                false => Err(Error::from_errno(libc::ENOTTY)),
            }
        });
        match done {
            Ok(n) => reply.ioctl(i32::try_from(n).unwrap_or(i32::MAX), &[]),
            Err(e) => reply.error(e),
        }
    }

    // After ENOSYS the kernel does not ask again, and `ls -l` costs nothing.
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

impl FuseAdapter {
    fn reply_lookup(&self, caller: u32, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match run_guarded("lookup", || self.lookup_attr(caller, parent, name)) {
            Ok(attr) => {
                let (entry, attrs) = cache_ttls(&attr);
                reply.entry_with_ttls(&attrs, &entry, &self.kernel_attr(&attr), GENERATION);
            }
            Err(e) => reply.error(e),
        }
    }

    fn reply_attr(&self, found: Result<Attr, Errno>, reply: ReplyAttr) {
        match found {
            Ok(attr) => reply.attr(&cache_ttls(&attr).1, &self.kernel_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn reply_new_entry(&self, made: Result<Attr, Errno>, reply: ReplyEntry) {
        match made {
            Ok(attr) => reply.entry(&Duration::ZERO, &self.kernel_attr(&attr), GENERATION),
            Err(e) => reply.error(e),
        }
    }
}

fn reply_open(opened: Result<(FileHandle, FopenFlags), Errno>, reply: ReplyOpen) {
    match opened {
        Ok((handle, how)) => reply.opened(handle, how),
        Err(e) => reply.error(e),
    }
}

fn reply_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}
