//! The adapter to the kernel: it takes requests, sends replies and invalidates caches. It has no policy, and
//! does not know messages.
//!
//! The pitfalls, and the modules that deal with them:
//!
//! 1. A handler that blocks stalls a dispatch thread. So reads of `.wait`, `.next`, `.answer` and `.watch` are
//!    parked
//!    (`parked_reads`), and another thread appends to stores.
//! 2. fuser does not know `FUSE_INTERRUPT`. A waiting read asks `/proc` for signals to its process
//!    ([`crate::view::reader::has_pending_signal`]).
//! 3. A panic in a handler would leave the mount hanging for ever (`guard`).
//! 4. Notifications deadlock if a thread that serves requests sends them. Those of names hang for ever if msgfs
//!    is killed meanwhile (`notify`, `inbox_moves`).
//! 5. Sizes must be exact: `rsync` and `tar` store nothing if `st_size` is 0. Only files that
//!    wait (`.wait`, `.next`, `.answer`, `.watch`) and files that take a text (`.reply`, `.reply-all`, `.ack`) have
//!    size 0, and no listing shows them.
//! 6. `getxattr` answers ENOSYS once and is never asked again. `open` never answers so, because the kernel
//!    would then drop `O_TRUNC`.
//! 7. `AutoUnmount` hangs in fuser 0.18 and forces `allow_other`, so it is not used. The next start clears
//!    stale mounts ([`mountpoint`]).

mod adapter;
mod control;
mod guard;
mod handles;
mod inbox_moves;
mod long_requests;
pub mod mountpoint;
mod notify;
mod open_dir;
mod parked_reads;
mod recent_drafts;
mod removed_replies;
mod requests;
mod root_mount;
mod walkers;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::locks::{Condvar, Mutex};
use fuser::{BackgroundSession, MountOption, Session, SessionACL};

use crate::store::probe;
use crate::view::Tree;
use adapter::FuseAdapter;
pub use control::mark_all_read;
use mountpoint::UnmountMode;
use notify::InvalidationQueue;

/// Threads that serve requests. With several, a flush that waits for the disk does not delay `ls`.
const THREADS: usize = 4;

/// Options of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions {
    /// True if other users may read.
    pub allow_other: bool,
    /// True if the kernel refuses every write.
    pub read_only: bool,
}

/// Reason why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or `fusermount3` refused.
    #[error("{0}")]
    Refused(io::Error),
    /// A thread could not be started.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
}

/// A signal that is set when the kernel's connection has ended.
type EndSignal = Arc<(Mutex<bool>, Condvar)>;

/// A mount. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseMount {
    session: Mutex<Option<BackgroundSession>>,
    ended: EndSignal,
    mountpoint: PathBuf,
    device: Option<String>,
}

/// Mounts a tree. The mount answers when this returns.
///
/// # Errors
/// The error of the kernel or of `fusermount3`.
pub fn mount_tree(
    tree: Arc<Tree>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<FuseMount, MountError> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("msgfs".into()),
        MountOption::Subtype("msgfs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    // A file descriptor for each thread needs a /dev/fuse that this user can open; fusermount3 does not.
    config.clone_fd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let ended: EndSignal = Arc::new((Mutex::new(false), Condvar::default()));
    let adapter =
        FuseAdapter::new(Arc::clone(&tree), Arc::clone(&ended)).map_err(MountError::Thread)?;
    let session =
        open_session(adapter, mountpoint, config, *options).map_err(MountError::Refused)?;
    let session = session.spawn().map_err(MountError::Thread)?;
    let notices = InvalidationQueue::start(Arc::clone(&tree), session.notifier())
        .map_err(MountError::Thread)?;
    tree.index().subscribe(move |changes| notices.push(changes));
    let device = mountpoint::mounted_device(mountpoint);
    let mountpoint = mountpoint.to_owned();
    Ok(FuseMount { session: Mutex::new(Some(session)), ended, mountpoint, device })
}

/// A file system without files.
struct EmptyFilesystem;

impl fuser::Filesystem for EmptyFilesystem {}

/// Checks that this process can mount, by mounting an empty file system on a new folder and unmounting it.
/// Everything that a mount needs may seem to be there even where mounting fails.
///
/// # Errors
/// The error of the kernel or of `fusermount3`.
pub fn probe_mount(options: MountOptions) -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("msgfs-probe-{}", std::process::id()));
    probe::require_response(&folder)?;
    // The folder must be new, so that no other folder is mounted on or removed.
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::FSName("msgfs".into())];
    let outcome = open_session(EmptyFilesystem, &folder, config, options).map(|session| {
        if mountpoint::mounted_device(&folder).is_some() {
            let _ = mountpoint::unmount_or_detach(&folder);
        }
        drop(session);
    });
    let _ = std::fs::remove_dir(&folder);
    outcome
}

/// Mounts directly if that is allowed, else through `fusermount3`.
fn open_session<F: fuser::Filesystem>(
    adapter: F,
    mountpoint: &Path,
    config: fuser::Config,
    options: MountOptions,
) -> io::Result<Session<F>> {
    if rustix::process::geteuid().is_root() {
        match root_mount::mount_as_root(mountpoint, options) {
            Ok(device) => {
                let session = Session::from_fd(adapter, device, config.acl, config);
                if session.is_err() {
                    let _ = mountpoint::unmount_or_detach(mountpoint);
                }
                return session;
            }
            // Root in a container may not mount, but may have a fusermount3 that can.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            Err(e) => return Err(e),
        }
    }
    Session::new(adapter, mountpoint, &config)
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.session.lock().is_some() && self.is_alive() && self.is_in_place() {
            let _ = mountpoint::unmount_or_detach(&self.mountpoint);
        }
    }
}

impl FuseMount {
    /// Unmounts and waits for the last request. A mount that is in use is detached if `lazily` is set. It then
    /// ends when its users close it, and this does not wait for them.
    ///
    /// # Errors
    /// The system's error, `EBUSY` among others.
    pub fn unmount(self, lazily: bool) -> io::Result<()> {
        let Some(session) = self.session.lock().take() else { return Ok(()) };
        if self.is_alive() && self.is_in_place() {
            match mountpoint::unmount_path(&self.mountpoint, UnmountMode::IfIdle) {
                Ok(()) => {}
                Err(_) if lazily => {
                    return mountpoint::unmount_path(&self.mountpoint, UnmountMode::Lazy)
                        .map_err(io::Error::other);
                }
                Err(e) => return Err(io::Error::other(e)),
            }
        }
        session.join()
    }

    /// Returns true if the mount is still where it was made. It may be detached, and another one in its place.
    pub fn is_in_place(&self) -> bool {
        self.device.is_some() && mountpoint::mounted_device(&self.mountpoint) == self.device
    }

    /// Returns the number of the mounted device, as in [`mountpoint::MountEntry::device`].
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns true while the kernel's connection lives.
    pub fn is_alive(&self) -> bool {
        !*self.ended.0.lock()
    }

    /// Waits until the kernel's connection has ended, at most `limit`. Returns true if it has.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut ended = self.ended.0.lock();
        while !*ended {
            if self.ended.1.wait_until(&mut ended, deadline) {
                break;
            }
        }
        *ended
    }
}
