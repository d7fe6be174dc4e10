//! A stand-in for links that carry the lines of logs, for builds without them.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use super::board::HealthBoard;
use super::lifecycle::{Link, LinkCallbacks, LinkEvent};
use super::links::{LinkSetOptions, TakenLogProof};
use super::spec::LinkConfig;
use crate::store::Store;

/// A type without values.
#[derive(Debug)]
pub(super) struct LogLink(Infallible);

impl LogLink {
    /// Fails with the reason that this build has no such links.
    pub(super) fn open(_: &LinkSetOptions<'_>, spec: &LinkConfig) -> Result<(usize, Self), String> {
        Err(spec.kind().explain_absence().unwrap_or_default())
    }

    /// Returns nothing: no link of this type exists.
    pub(super) fn longest_line(&self) -> Option<(u64, String)> {
        match self.0 {}
    }
}

/// Returns `None`: this build has no such links.
pub(super) fn open_read_only_board(
    _: &LinkSetOptions<'_>,
    _: &LinkConfig,
    _: &dyn Store,
) -> Option<HealthBoard> {
    None
}

/// Returns `None`: this build has no such links.
pub(super) fn find_taken_log(
    _: &LinkSetOptions<'_>,
    _: &LinkConfig,
    _: &dyn Store,
) -> Option<Arc<dyn TakenLogProof>> {
    None
}

impl Link for LogLink {
    fn board(&self) -> &Arc<HealthBoard> {
        match self.0 {}
    }

    fn start(self: Arc<Self>, _: usize, _: &LinkCallbacks) -> io::Result<()> {
        match self.0 {}
    }

    fn wake(&self, _: &LinkEvent<'_>) {
        match self.0 {}
    }

    fn stop(&self) {
        match self.0 {}
    }

    fn join(&self) {
        match self.0 {}
    }
}
