//! Folders whose changes inotify does not see.

use std::path::Path;

/// File systems whose changes may be made on other machines, where inotify sees only our own: NFS,
/// SMB (three generations), FUSE, 9p, Ceph, AFS, Coda.
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

/// Whether changes in a folder can be seen by inotify alone.
pub fn is_local(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| !REMOTE.contains(&fs.f_type))
}
