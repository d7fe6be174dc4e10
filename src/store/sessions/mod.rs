//! Transcripts of coding agents: what Claude Code and Codex write down of each session (docs/formats/sessions.md).
//!
//! - [`message`]: a session and its messages, as all readers see them. [`folder`]: all sessions of a folder, outside a
//!   mount.
//! - [`line`](mod@line), `build`, `render`: what a line is, a message from its lines, and a message as text.
//! - `owners`, `facts`: the facts that are kept of all logs together, and of one log.
//! - [`dialect`]: what the harnesses do not share. [`claude`] and [`codex`] implement it.
//! - [`mod@format`], `read`: the store, whose logs `engine::lines` follows.
//!
//! Transcripts are only read. Nothing of them is mail to anybody.

pub mod build;
pub mod claude;
pub mod codex;
pub mod dialect;
pub mod facts;
mod fold;
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
use self::dialect::SessionDialect;
use self::format::SessionStore;
use super::kind::{DefaultPlace, KindRow};
use super::{Store, StoreError, StoreSpec};

/// The grammar of the addresses in transcripts, as a phrase for people.
const GRAMMAR: &str = "nobody writes into the transcripts of a coding agent but its own program";

/// The row of the kind `claude`.
pub(super) const CLAUDE: KindRow = KindRow {
    place: DefaultPlace::Home(".claude"),
    dir_variables: &["CLAUDE_CONFIG_DIR"],
    open_sessions: Some(folder::open_dialect::<ClaudeCode>),
    has_logs: true,
    ..KindRow::new("claude", GRAMMAR, CLAUDE_EXAMPLE, open::<ClaudeCode>)
};

/// The row of the kind `codex`.
pub(super) const CODEX: KindRow = KindRow {
    place: DefaultPlace::Home(".codex"),
    dir_variables: &["CODEX_HOME"],
    open_sessions: Some(folder::open_dialect::<CodexCli>),
    has_logs: true,
    ..KindRow::new("codex", GRAMMAR, CODEX_EXAMPLE, open::<CodexCli>)
};

const CLAUDE_EXAMPLE: &str = r#"# The transcripts of coding agents, to read and to search. They hold secrets: everything that an agent saw.
# [[store]]
# kind = "claude"
# dir = "~/.claude"                  # the folder of projects/; default: $CLAUDE_CONFIG_DIR, else this
"#;

const CODEX_EXAMPLE: &str = r#"# [[store]]
# kind = "codex"
# dir = "~/.codex"                   # the folder of sessions/; default: $CODEX_HOME, else this
"#;

/// Opens a folder of transcripts. It creates nothing.
fn open<D: SessionDialect>(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(SessionStore::<D>::open(spec)?))
}
