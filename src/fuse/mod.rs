//! The adapter to the kernel: requests in, replies out, caches told. No policy, and no idea of what a
//! message is.
//!
//! What bites here, and where it is met:
//!
//! 1. A handler that blocks stalls a dispatch thread: reads of `.wait`, `.next` and `.watch` are parked
//!    (`waiting`); appends to stores happen elsewhere.
//! 2. fuser does not know `FUSE_INTERRUPT`: a waiting read asks `/proc` whether its process was
//!    signalled ([`crate::view::reader::interrupted`]).
//! 3. A panic in a handler would leave the mount hanging for ever (`guard`).
//! 4. Notifications deadlock when sent by a thread that serves requests, and those of names for ever when
//!    we are killed (`notify`, `moving`).
//! 5. Sizes must be exact: `rsync` and `tar` store nothing where `st_size` is 0. Only `.wait`, `.next`,
//!    `.watch` and `.reply` have size 0, and no listing shows them.
//! 6. `getxattr` answers ENOSYS once and is never asked again; `open` never does, for the kernel would
//!    then drop `O_TRUNC`.
//! 7. `AutoUnmount` hangs in fuser 0.18 and forces `allow_other`: it is not used; stale mounts are
//!    cleared at the next start ([`mountpoint`]).

mod adapter;
mod control;
mod direct;
mod guard;
mod handles;
mod inplace;
pub mod mountpoint;
mod moving;
mod notify;
mod requests;
mod waiting;
mod walkers;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::locks::{Condvar, Mutex};
use fuser::{BackgroundSession, MountOption, Session, SessionACL};

use crate::store::asked;
use crate::view::Tree;
use adapter::FuseAdapter;
pub use control::mark_all_read;
use mountpoint::UnmountMode;
use notify::InvalidationQueue;

/// Threads that serve requests: more than one, so that a flush waiting for the disk does not keep
/// `ls` waiting.
const THREADS: usize = 4;

/// How to mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions {
    /// Other users may look in.
    pub allow_other: bool,
    /// The kernel refuses every write.
    pub read_only: bool,
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or `fusermount3` refused.
    #[error("{0}")]
    Refused(io::Error),
    /// A thread could not be started.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Set when the kernel's connection has ended.
type EndSignal = Arc<(Mutex<bool>, Condvar)>;

/// A mount. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseMount {
    session: Mutex<Option<BackgroundSession>>,
    ended: EndSignal,
    mountpoint: PathBuf,
    device: Option<String>,
}

/// Mounts a tree; the mount answers when this returns.
///
/// # Errors
/// As the kernel or `fusermount3` gave it.
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
    // A file descriptor a thread needs /dev/fuse to be openable by this user; fusermount3 does not.
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

/// A file system of nothing.
struct EmptyFilesystem;

impl fuser::Filesystem for EmptyFilesystem {}

/// Whether this process can mount at all: something empty is mounted on a folder made for it, and taken
/// away again. Where it cannot, everything that a mount needs may still seem to be there.
///
/// # Errors
/// As the kernel or `fusermount3` gave it.
pub fn probe_mount(options: MountOptions) -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("msgfs-probe-{}", std::process::id()));
    asked::require_response(&folder)?;
    // Made, not found: nobody else's folder is mounted on or removed.
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

/// Mounts directly where that is allowed, else through `fusermount3`.
fn open_session<F: fuser::Filesystem>(
    adapter: F,
    mountpoint: &Path,
    config: fuser::Config,
    options: MountOptions,
) -> io::Result<Session<F>> {
    if rustix::process::geteuid().is_root() {
        match direct::mount_as_root(mountpoint, options) {
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
    /// Unmounts and waits for the last request. A mount that is in use is detached if `lazily`, and
    /// then not waited for: it ends when its users let go.
    ///
    /// # Errors
    /// As the system gave it, `EBUSY` among others.
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

    /// Whether the mount is where it was made: it may be detached, and another one in its place.
    pub fn is_in_place(&self) -> bool {
        self.device.is_some() && mountpoint::mounted_device(&self.mountpoint) == self.device
    }

    /// Whether the kernel still talks to us.
    pub fn is_alive(&self) -> bool {
        !*self.ended.0.lock()
    }

    /// Waits until the kernel's connection has ended, at most `limit`; whether it has.
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
