//! Mounting as root, with the type `fuse.msgfs` in the mount table. fuser mounts as plain `fuse` without
//! `fusermount3`, and then neither `findmnt -t` nor `mount -t` finds msgfs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::MountOptions;
use super::mountpoint::{FSTYPE, SOURCE};

/// Mounts and returns the connection to the kernel.
///
/// # Errors
/// The kernel's error: `EPERM` without the right to mount.
pub(super) fn mount_as_root(mountpoint: &Path, options: MountOptions) -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags =
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    let data = CString::new(data)?;
    rustix::mount::mount(SOURCE, mountpoint, FSTYPE, flags, data.as_c_str())?;
    Ok(device)
}
