//! Requests that would wait for long work, such as the first search. Each gets a thread of its own, so that the threads
//! of the session stay free. The caller may be interrupted: then the request is answered with EINTR, and the work goes
//! on.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use fuser::{Errno, INodeNo, ReplyAttr, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyOpen};

use super::adapter::{FuseAdapter, parse_entry_name};
use super::guard::run_guarded;
use crate::view::reader::has_pending_signal;

/// The most threads for such requests. Further ones are refused.
const THREADS: usize = 64;

/// A reply that can be an error.
pub(super) trait FallibleReply: Send + 'static {
    /// Answers with an error.
    fn fail(self, errno: Errno);
}

macro_rules! fallible_replies {
    ($($reply:ty),*) => {
        $(impl FallibleReply for $reply {
            fn fail(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

fallible_replies!(ReplyEntry, ReplyAttr, ReplyOpen, ReplyDirectory, ReplyDirectoryPlus);

impl FuseAdapter {
    /// Returns true if a request on an inode, or on a name in it, would wait for long work.
    pub fn may_take_long(&self, ino: INodeNo, name: Option<&OsStr>) -> bool {
        let asked = run_guarded("look ahead", || {
            let name = name.map(parse_entry_name).transpose()?;
            Ok(self.tree.may_take_long(&self.resolve_inode(ino)?, name))
        });
        asked.unwrap_or(false)
    }

    /// Does the long work of a request in a thread of its own, and then calls `serve`.
    pub fn serve_in_thread<R: FallibleReply>(
        &self,
        caller: u32,
        (ino, name): (INodeNo, Option<&OsStr>),
        reply: R,
        serve: impl FnOnce(&Self, R) + Send + 'static,
    ) {
        if self.long_requests.fetch_add(1, Ordering::Relaxed) >= THREADS {
            self.long_requests.fetch_sub(1, Ordering::Relaxed);
            return reply.fail(Errno::EAGAIN);
        }
        let (adapter, name) = (self.clone(), name.map(OsStr::to_owned));
        let work = move || {
            let prepared = run_guarded("prepare", || {
                let name = name.as_deref().map(parse_entry_name).transpose()?;
                let node = adapter.resolve_inode(ino)?;
                adapter.tree.prepare(&node, name, &|| has_pending_signal(caller))
            });
            match prepared {
                Ok(()) => serve(&adapter, reply),
                Err(errno) => reply.fail(errno),
            }
            adapter.long_requests.fetch_sub(1, Ordering::Relaxed);
        };
        // A reply that is dropped is answered with EIO.
        if let Err(error) = std::thread::Builder::new().name("msgfs-long".into()).spawn(work) {
            tracing::error!(%error, "a long request gets no thread");
            self.long_requests.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
