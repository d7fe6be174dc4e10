//! Transcripts of coding agents: what Claude Code and Codex write down of each session (docs/formats/sessions.md).

pub mod message;

use std::sync::Arc;

use super::{Store, StoreError, StoreSpec};

/// Opens a folder of transcripts. It creates nothing.
///
/// # Errors
/// If it cannot be read.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    let _ = spec;
    Err(StoreError::Invalid("sessions cannot be read yet".into()))
}
