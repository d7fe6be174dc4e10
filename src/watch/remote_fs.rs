//! Folders whose changes inotify does not see.

use std::path::Path;

/// File systems that other machines may change, where inotify sees only our own changes: NFS, SMB (three
/// generations), FUSE, 9p, Ceph, AFS, Coda.
const REMOTE: [i64; 9] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
];

/// Returns true if inotify alone sees all changes in a folder.
pub fn is_local(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| !REMOTE.contains(&fs.f_type))
}
