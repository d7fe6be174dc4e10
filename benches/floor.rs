//! The floor: the smallest file system that shows the same files as a mount of msgfs, all of it in memory, with the
//! same open flags, time-outs, capabilities and number of threads. It discards written bytes. Its time is the time of
//! the kernel and of fuser; `benches/run` measures the mount beside it.
//!
//! ```text
//! floor FOLDER MOUNTPOINT     shows a copy of FOLDER until standard input ends; says "ready" when it is there
//! ```

#![allow(clippy::indexing_slicing)] // The table of positions never changes.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr,
    Request, WriteFlags,
};

/// These are the values of `src/fuse`.
const THREADS: usize = 4;
const FILES: Duration = Duration::from_secs(3600);
const FOLDERS: Duration = Duration::from_secs(1);
/// The inode number of every new file; no position has it.
const MADE: INodeNo = INodeNo(2);

fn main() -> Result<(), Box<dyn Error>> {
    let [folder, mountpoint] = &std::env::args_os().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: floor FOLDER MOUNTPOINT".into());
    };
    let made = made(&fs::metadata(folder)?)?;
    let mut floor = Floor { nodes: Vec::new(), by_number: HashMap::new(), made };
    floor.copy(Path::new(folder), 0)?;
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("floor".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.n_threads = Some(THREADS);
    config.clone_fd = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let session = fuser::Session::new(floor, Path::new(mountpoint), &config)?.spawn()?;
    say("ready");
    std::io::read_to_string(std::io::stdin())?;
    session.umount_and_join()?;
    Ok(())
}

struct Node {
    attr: FileAttr,
    bytes: Vec<u8>,
    /// Names and positions in the table of a folder's entries, with `.` and `..`.
    entries: Vec<(OsString, usize)>,
    by_name: HashMap<OsString, usize>,
    /// True after its name was removed.
    gone: AtomicBool,
}

struct Floor {
    nodes: Vec<Node>,
    by_number: HashMap<INodeNo, usize>,
    /// The attributes of a new file.
    made: FileAttr,
}

impl Floor {
    /// Copies a file or folder with all below it, and returns its position.
    fn copy(&mut self, path: &Path, parent: usize) -> std::io::Result<usize> {
        let (meta, at) = (fs::metadata(path)?, self.nodes.len());
        let bytes = if meta.is_file() { fs::read(path)? } else { Vec::new() };
        let attr = attr(at, &meta, bytes.len() as u64)?;
        self.by_number.insert(attr.ino, at);
        let (entries, by_name, gone) = (Vec::new(), HashMap::new(), AtomicBool::new(false));
        self.nodes.push(Node { attr, bytes, entries, by_name, gone });
        if meta.is_dir() {
            let mut names = fs::read_dir(path)?
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<std::io::Result<Vec<_>>>()?;
            names.sort_unstable();
            let mut entries = vec![(".".into(), at), ("..".into(), parent)];
            for name in names {
                let below = self.copy(&path.join(&name), at)?;
                entries.push((name, below));
            }
            let node = &mut self.nodes[at];
            node.by_name = entries.iter().skip(2).cloned().collect();
            node.entries = entries;
        }
        Ok(at)
    }

    fn node(&self, ino: INodeNo) -> Option<&Node> {
        self.nodes.get(*self.by_number.get(&ino)?)
    }

    /// Returns the node of a name in a folder.
    fn named(&self, parent: INodeNo, name: &OsStr) -> Option<&Node> {
        let node = &self.nodes[*self.node(parent)?.by_name.get(name)?];
        (!node.gone.load(Ordering::Relaxed)).then_some(node)
    }

    /// Returns the entries of a folder from an offset on, each with the offset of the next.
    fn list(&self, ino: INodeNo, offset: u64) -> impl Iterator<Item = (u64, &OsStr, &Node)> {
        let entries = self.node(ino).map_or(&[][..], |node| &node.entries);
        let rest = (offset + 1..).zip(entries.iter().skip(offset as usize));
        let rest = rest.map(|(next, (name, at))| (next, name.as_os_str(), &self.nodes[*at]));
        rest.filter(|(.., node)| !node.gone.load(Ordering::Relaxed))
    }
}

/// Returns the inode number of a position. The numbers have no order, as those of msgfs, because `find`, `grep` and
/// `tar` sort a large folder by them.
fn number(at: usize) -> INodeNo {
    if at == 0 {
        return INodeNo::ROOT;
    }
    // SplitMix64 gives each position a different number.
    let mut x = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    INodeNo(x ^ x >> 31)
}

/// Returns the attributes of a new file.
fn made(folder: &fs::Metadata) -> std::io::Result<FileAttr> {
    let attr = attr(0, folder, 0)?;
    Ok(FileAttr { ino: MADE, kind: FileType::RegularFile, perm: 0o600, nlink: 1, ..attr })
}

fn attr(at: usize, meta: &fs::Metadata, size: u64) -> std::io::Result<FileAttr> {
    let time: SystemTime = meta.modified()?;
    let folder = meta.is_dir();
    Ok(FileAttr {
        ino: number(at),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: if folder { FileType::Directory } else { FileType::RegularFile },
        perm: if folder { 0o700 } else { 0o400 },
        nlink: if folder { 2 } else { 1 },
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

fn ttl(node: &Node) -> &'static Duration {
    if node.attr.kind == FileType::Directory { &FOLDERS } else { &FILES }
}

impl Filesystem for Floor {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.named(parent, name) {
            Some(node) => reply.entry(ttl(node), &node.attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.named(parent, name) {
            Some(node) => {
                node.gone.store(true, Ordering::Relaxed);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino) {
            Some(node) => reply.attr(ttl(node), &node.attr),
            None if ino == MADE => reply.attr(&Duration::ZERO, &self.made),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let how = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(&Duration::ZERO, &self.made, Generation(0), FileHandle(MADE.0), how);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let how = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(ino.0), how);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.node(ino).map_or(&[][..], |node| &node.bytes);
        let from = bytes.len().min(offset as usize);
        let upto = bytes.len().min(from + size as usize);
        reply.data(&bytes[from..upto]);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The flags are those of a folder in which nothing changes.
        let how = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        reply.opened(FileHandle(ino.0), how);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for (next, name, node) in self.list(ino, offset) {
            if reply.add(node.attr.ino, next, node.attr.kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        for (next, name, node) in self.list(ino, offset) {
            if reply.add(node.attr.ino, next, name, ttl(node), &node.attr, Generation(0)) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    // After this error the kernel does not ask again.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
}

#[expect(clippy::print_stdout, reason = "this is what it is for")]
fn say(what: &str) {
    println!("{what}");
}
