//! Requests to a mount as a whole, by an ioctl on its root. They replace one request for each of many names.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The request that marks all messages of `inbox/` as read. The answer is their number.
pub(super) const MARK_ALL: u16 = 0x4d01;

/// Asks the mount with this root to mark all messages of `inbox/` as read. Returns their number.
///
/// # Errors
/// `ENOTTY` if it is no such mount, or the refusal.
pub fn mark_all_read(root: &File) -> io::Result<usize> {
    // SAFETY: the descriptor is open, and the call has no argument that could point anywhere.
    let marked = unsafe { libc::ioctl(root.as_raw_fd(), libc::Ioctl::from(MARK_ALL)) };
    usize::try_from(marked).map_err(|_| io::Error::last_os_error())
}
