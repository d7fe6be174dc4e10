//! Transcripts of coding agents: what Claude Code and Codex write down of each session (docs/formats/sessions.md).
//!
//! - [`message`]: a session and its messages, as all readers see them. [`folder`]: all sessions of a folder, outside a
//!   mount.
//! - [`line`](mod@line), `build`, `render`: what a line is, a message from its lines, and a message as text.
//! - `owners`, `facts`: what is kept of all logs together, and of one log.
//! - [`dialect`]: what the harnesses do not share. [`claude`] and [`codex`] implement it.
//! - [`mod@format`], `read`: the store, whose logs `engine::lines` follows.
//!
//! Transcripts are only read. Nothing of them is mail to anybody.

pub mod build;
pub mod claude;
pub mod codex;
pub mod dialect;
pub mod facts;
pub mod folder;
pub mod format;
pub mod line;
pub mod message;
mod owners;
mod read;
pub mod render;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use self::claude::ClaudeCode;
use self::codex::CodexCli;
use self::format::SessionStore;
use super::{Kind, Store, StoreError, StoreSpec};

/// Opens a folder of transcripts. It creates nothing.
///
/// # Errors
/// If I am no role of a session.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    match spec.kind {
        Kind::Claude => Ok(Arc::new(SessionStore::<ClaudeCode>::open(spec)?)),
        Kind::Codex => Ok(Arc::new(SessionStore::<CodexCli>::open(spec)?)),
        kind => Err(StoreError::Invalid(format!("a store of kind {kind} holds no sessions"))),
    }
}
