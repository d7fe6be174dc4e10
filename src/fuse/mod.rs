//! The adapter to the kernel: requests in, replies out, caches told. No policy, and no idea of what a
//! message is.
//!
//! What bites here, and where it is met:
//!
//! 1. A handler that blocks stalls a dispatch thread: reads of `.wait` and `.next` are answered from
//!    threads of their own ([`adapter`]); appends to stores happen elsewhere.
//! 2. fuser does not know `FUSE_INTERRUPT`: a waiting read asks `/proc` whether its process was
//!    signalled ([`crate::view::reader::interrupted`]).
//! 3. A panic in a handler would leave the mount hanging for ever ([`guard`]).
//! 4. Notifications deadlock when sent by a thread that serves requests ([`notify`]).
//! 5. Sizes must be exact: `rsync` and `tar` store nothing where `st_size` is 0. Only `.wait`, `.next`
//!    and `.reply` have size 0, and no listing shows them.
//! 6. `getxattr` answers ENOSYS once and is never asked again; `open` never does, for the kernel would
//!    then drop `O_TRUNC`.
//! 7. `AutoUnmount` hangs in fuser 0.18 and forces `allow_other`: it is not used; stale mounts are
//!    cleared at the next start ([`mountpoint`]).

mod adapter;
mod guard;
mod handles;
pub mod mountpoint;
mod notify;
mod requests;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, MountOption, Session, SessionACL};
use parking_lot::{Condvar, Mutex};

use crate::view::Tree;
use adapter::Adapter;
use notify::Notices;

/// Threads that serve requests: more than one, so that a flush waiting for the disk does not keep
/// `ls` waiting.
const THREADS: usize = 4;

/// How to mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
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
type Ended = Arc<(Mutex<bool>, Condvar)>;

/// A mount. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    session: Mutex<Option<BackgroundSession>>,
    ended: Ended,
}

/// Mounts a tree; the mount answers when this returns.
///
/// # Errors
/// As the kernel or `fusermount3` gave it.
pub fn mount(tree: Arc<Tree>, mountpoint: &Path, options: &Options) -> Result<Mounted, MountError> {
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
    let ended: Ended = Arc::new((Mutex::new(false), Condvar::new()));
    let adapter = Adapter::new(Arc::clone(&tree), Arc::clone(&ended));
    let session = Session::new(adapter, mountpoint, &config).map_err(MountError::Refused)?;
    let session = session.spawn().map_err(MountError::Thread)?;
    let notices =
        Notices::start(Arc::clone(&tree), session.notifier()).map_err(MountError::Thread)?;
    tree.index().subscribe(move |changes| notices.push(changes));
    Ok(Mounted { session: Mutex::new(Some(session)), ended })
}

impl Mounted {
    /// Unmounts and waits for the last request. A mount that is in use is detached if `lazily`.
    ///
    /// # Errors
    /// As the system gave it, `EBUSY` among others.
    pub fn unmount(self, lazily: bool) -> io::Result<()> {
        let Some(session) = self.session.lock().take() else { return Ok(()) };
        if !self.is_alive() {
            return session.join();
        }
        let done = session.umount_and_join();
        if done.is_err() && lazily { Ok(()) } else { done }
    }

    /// Whether the kernel still talks to us.
    pub fn is_alive(&self) -> bool {
        !*self.ended.0.lock()
    }

    /// Waits until the kernel's connection has ended, at most `limit`; whether it has.
    pub fn wait_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut ended = self.ended.0.lock();
        while !*ended {
            if self.ended.1.wait_until(&mut ended, deadline).timed_out() {
                break;
            }
        }
        *ended
    }
}
