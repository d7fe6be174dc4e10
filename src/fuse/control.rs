//! What is asked of a mount as a whole, by an ioctl on its root: what would take a request for each of many
//! names.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Mark everything read that `inbox/` lists; answers with how many messages that were.
pub(super) const MARK_ALL: u16 = 0x4d01;

/// Has the mount whose root this is mark everything read that `inbox/` lists; how many messages that were.
///
/// # Errors
/// `ENOTTY` if it is no such mount, or the refusal.
pub fn mark_all_read(root: &File) -> io::Result<usize> {
    // SAFETY: the descriptor is open, and the call has no argument that could point anywhere.
    let marked = unsafe { libc::ioctl(root.as_raw_fd(), libc::Ioctl::from(MARK_ALL)) };
    usize::try_from(marked).map_err(|_| io::Error::last_os_error())
}
