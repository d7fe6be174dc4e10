//! In place of the links that carry the lines of logs, where msgfs was built without them.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::board::Board;
use super::links::Wanted;
use super::marks::Marks;
use super::spec::Spec;

/// There is none.
#[derive(Debug)]
pub(super) struct Logs {
    pub(super) board: Arc<Board>,
    never: Infallible,
}

impl Logs {
    pub(super) fn open(_: &Wanted<'_>, spec: &Spec) -> Result<(usize, Self), String> {
        Err(spec.kind.explain_absence().unwrap_or_default())
    }

    pub(super) fn longest(&self) -> Option<(u64, String)> {
        match self.never {}
    }

    pub(super) fn start(&self, _: Arc<dyn Marks>) -> io::Result<()> {
        match self.never {}
    }

    pub(super) fn marked(&self) {
        match self.never {}
    }

    pub(super) fn changed(&self, _: Option<&[PathBuf]>) {
        match self.never {}
    }

    pub(super) fn stop(&self) {
        match self.never {}
    }
}
