//! A stand-in for links that carry the lines of logs, for builds without them.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::board::HealthBoard;
use super::links::LinkSetOptions;
use super::marks::SharedMarkLog;
use super::spec::LinkConfig;

/// A type without values.
#[derive(Debug)]
pub(super) struct LogLink {
    pub(super) board: Arc<HealthBoard>,
    never: Infallible,
}

impl LogLink {
    pub(super) fn open(_: &LinkSetOptions<'_>, spec: &LinkConfig) -> Result<(usize, Self), String> {
        Err(spec.kind().explain_absence().unwrap_or_default())
    }

    pub(super) fn longest_line(&self) -> Option<(u64, String)> {
        match self.never {}
    }

    pub(super) fn start(&self, _: Arc<dyn SharedMarkLog>) -> io::Result<()> {
        match self.never {}
    }

    pub(super) fn notify_mark_change(&self) {
        match self.never {}
    }

    pub(super) fn notify_store_change(&self, _: Option<&[PathBuf]>) {
        match self.never {}
    }

    pub(super) fn stop(&self) {
        match self.never {}
    }
}
