//! The kernel's table of mounts (`/proc/self/mountinfo`). It is the only source that can be read while a mount is dead
//! or hangs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::model::locks::{LockLevel, Mutex};

/// The file system type of our mounts in the mount table.
pub const FSTYPE: &str = "fuse.msgfs";

/// The source of our mounts in the mount table. It distinguishes mounts made by root directly. These have the type
/// `fuse`, because only `mount(2)` with another type name sets the subtype.
pub const SOURCE: &str = "msgfs";

/// The number of symbolic links in a row after which they count as a loop.
pub const MAX_LINKS: usize = 40;

/// The size that a mount table usually does not exceed, in bytes.
const USUAL_TABLE: usize = 4096;

/// File systems that another program or another machine serves, beside those of FUSE.
const SERVED: [&str; 13] = [
    "9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4",
    "smb3", "virtiofs",
];

/// The fields of a line of `/proc/self/mountinfo` that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The number that the kernel gives this mount.
    pub id: u64,
    /// The number of the mounted device, `MAJOR:MINOR`.
    pub device: String,
    /// The path at which it is mounted.
    pub mountpoint: PathBuf,
    /// The file system type, with its subtype: `ext4`, `fuse.msgfs`.
    pub fstype: String,
    /// The source of the mount; a free text for FUSE.
    pub source: OsString,
    /// Options of this mount (`ro`, `nosuid`), comma separated.
    pub options: String,
    /// The user whose process serves it. Only FUSE states it.
    pub owner: Option<u32>,
}

impl MountEntry {
    /// Returns true if a msgfs made this mount.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE || (self.fstype == "fuse" && self.source == SOURCE)
    }

    /// Returns true if another program or machine serves it, which may not answer.
    fn is_served(&self) -> bool {
        self.fstype.starts_with("fuse.") || SERVED.contains(&self.fstype.as_str())
    }
}

/// The mount table as this process read it last. Most processes ask for it many times, and it rarely changes.
static TABLE: LazyLock<Mutex<Option<MountTable>>> =
    LazyLock::new(|| Mutex::with_level(LockLevel::Mounts, None));

struct MountTable {
    /// The open table. The kernel reports a change that came after the last report (proc(5)).
    file: File,
    entries: Arc<[MountEntry]>,
}

impl MountTable {
    fn open() -> io::Result<Self> {
        let mut file = File::open("/proc/self/mountinfo")?;
        let entries = Self::read(&mut file)?;
        Ok(Self { file, entries })
    }

    /// Reads the table again if the kernel reports a change.
    fn update(&mut self) -> io::Result<()> {
        let now = Some(&Timespec::default());
        if poll(&mut [PollFd::new(&self.file, PollFlags::PRI)], now)? > 0 {
            self.file.rewind()?;
            self.entries = Self::read(&mut self.file)?;
        }
        Ok(())
    }

    fn read(file: &mut File) -> io::Result<Arc<[MountEntry]>> {
        let mut table = Vec::with_capacity(USUAL_TABLE);
        file.read_to_end(&mut table)?;
        Ok(parse_mounts(&table).into())
    }
}

/// Returns the mount table of this process, in the kernel's order. Of two mounts at one path, the later one is on top.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn read_mounts() -> io::Result<Arc<[MountEntry]>> {
    let mut known = TABLE.lock();
    let mut table = match known.take() {
        Some(table) => table,
        None => MountTable::open()?,
    };
    table.update()?;
    Ok(Arc::clone(&known.insert(table).entries))
}

/// Parses a mount table. Lines that are not of the documented form (proc(5)) are left out.
pub fn parse_mounts(table: &[u8]) -> Vec<MountEntry> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// Parses one line: `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source superoptions`, with any number of
/// optional fields before the lone hyphen.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?;
    let mountpoint = fields.nth(1)?;
    let options = fields.next()?;
    fields.find(|f| *f == b"-")?;
    let fstype = fields.next()?;
    let source = fields.next().unwrap_or_default();
    let owner = fields.next().and_then(|options| {
        let mut options = std::str::from_utf8(options).ok()?.split(',');
        options.find_map(|option| option.strip_prefix("user_id="))?.parse().ok()
    });
    if mountpoint.first() != Some(&b'/') || fstype.is_empty() {
        return None;
    }
    Some(MountEntry {
        id,
        device: String::from_utf8_lossy(device).into_owned(),
        mountpoint: PathBuf::from(OsString::from_vec(unescape_octal(mountpoint))),
        fstype: String::from_utf8_lossy(&unescape_octal(fstype)).into_owned(),
        source: OsString::from_vec(unescape_octal(source)),
        options: String::from_utf8_lossy(options).into_owned(),
        owner,
    })
}

/// Decodes the kernel's `\ooo` (three octal digits) for space, tab, newline, backslash and `#`.
fn unescape_octal(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) =
            (byte, tail)
        {
            out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
            rest = after;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

/// Returns the topmost mount whose root is exactly this path.
pub fn find_mount<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|m| m.mountpoint == path)
}

/// Returns true if a look-up of a path may ask a file system that another program or machine serves. It asks none
/// itself: a link on the way is read only where nobody else serves its file system.
pub fn may_reach_served(path: &Path, mounts: &[MountEntry]) -> bool {
    if !mounts.iter().any(MountEntry::is_served) {
        return false;
    }
    let is_served = |path: &Path| find_mount(mounts, path).is_some_and(MountEntry::is_served);
    let Ok(path) = std::path::absolute(path) else { return true };
    let mut here = PathBuf::from("/");
    let mut rest = reversed_components(&path);
    let mut links = 0;
    if is_served(&here) {
        return true;
    }
    while let Some(part) = rest.pop() {
        if part == OsStr::new("..") {
            here.pop();
            continue;
        }
        let next = here.join(part);
        if is_served(&next) {
            return true;
        }
        let Ok(target) = fs::read_link(&next) else {
            here = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return false;
        }
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        rest.extend(reversed_components(&target));
    }
    false
}

/// Returns the components of a path, the first one last.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().rev().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_followed_to_who_serves_it() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        for folder in ["remote", "local", "bound"] {
            fs::create_dir(base.join(folder)).unwrap();
        }
        symlink("remote/deep", base.join("link")).unwrap();
        symlink(base.join("link"), base.join("local/far")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        let line = |name: &str, fstype: &str| {
            format!("1 0 0:1 / {} rw - {fstype} s rw\n", base.join(name).display())
        };
        let table = [line("remote", "fuse.sshfs"), line("bound", "ext4"), line("mail", FSTYPE)];
        let mounts = parse_mounts(table.concat().as_bytes());
        for (path, served) in [
            ("remote", true),
            ("remote/a/b", true),
            ("link", true),
            ("link/x", true),
            ("local/far/x", true),
            ("local/../mail/x", true),
            ("", false),
            ("local", false),
            ("bound/x", false),
            ("none/x", false),
            ("remote2", false),
            ("loop", false),
        ] {
            assert_eq!(may_reach_served(&base.join(path), &mounts), served, "{path}");
        }
        let root = parse_mounts(b"1 0 0:1 / / rw - nfs4 s rw\n");
        assert!(may_reach_served(&base, &root));
    }
}
