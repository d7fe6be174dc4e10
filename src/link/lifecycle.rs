//! The trait of links as a mount sees them: started, woken, asked for their health, and stopped.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::HealthBoard;
use super::marks::MarkLogProvider;

/// A link of a mount, whatever it carries. It works in threads of its own, so no method waits for the network.
pub(super) trait Link: Send + Sync + fmt::Debug {
    /// Returns the board with the link's name and health.
    fn board(&self) -> &Arc<HealthBoard>;

    /// Returns the folder in which commands leave requests, if the link takes any.
    fn request_folder(&self) -> Option<&Path> {
        None
    }

    /// Starts to carry for a store, by number.
    ///
    /// # Errors
    /// Returns the system's error, if no thread can be started.
    fn start(self: Arc<Self>, store: usize, callbacks: &LinkCallbacks) -> io::Result<()>;

    /// Tells the link that there may be something to do.
    fn wake(&self, event: &LinkEvent<'_>);

    /// Asks the link to end. A running exchange goes on in its carrier, and the next start takes it up.
    fn stop(&self);

    /// Waits until the threads of a link that was asked to end are over.
    fn join(&self);
}

/// A reason to wake a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkEvent<'a> {
    /// A change of these files of the store, or of any.
    #[cfg_attr(not(feature = "nats"), allow(dead_code))]
    // Only links of logs look at the files.
    StoreChange(Option<&'a [PathBuf]>),
    /// A change of a mark.
    MarkChange,
    /// A request of a command in the link's folder.
    Request,
}

/// The callbacks of links that carry.
#[derive(Clone)]
pub(super) struct LinkCallbacks {
    /// Makes a store scan, since mail came or a message went.
    pub on_change: RescanCallback,
    /// Returns the marks of a store.
    #[cfg_attr(not(feature = "nats"), allow(dead_code))] // Only links of logs carry marks.
    pub mark_logs: MarkLogProvider,
}

/// A callback that makes a store, by number, scan again.
pub type RescanCallback = Arc<dyn Fn(usize) + Send + Sync>;

impl fmt::Debug for LinkCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkCallbacks").finish_non_exhaustive()
    }
}
