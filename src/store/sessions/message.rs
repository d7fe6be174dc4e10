//! A session in the terms that all harnesses share: its head, and its messages with all that their lines say.

use std::path::Path;
use std::sync::Arc;

use super::folder::open_sessions;
use crate::model::Timestamp;
use crate::store::{Kind, StoreError};

/// The author of a message of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// The person, or the agent that started a sub-agent.
    User,
    /// The agent, or a sub-agent.
    Agent,
    /// The harness.
    System,
}

/// One message of a session, with all that its lines say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionMessage {
    /// Its id: the uuid of its line (Claude Code), or a hash as 32 hex digits (Codex).
    pub id: String,
    /// Its author.
    pub role: SessionRole,
    /// The type of the sub-agent in whose session it stands.
    pub agent: Option<String>,
    /// The time of its line.
    pub time: Timestamp,
    /// Its contents, in order.
    pub blocks: Vec<SessionBlock>,
    /// The reason why the model stopped.
    pub stop_reason: Option<String>,
    /// The model that wrote it.
    pub model: Option<String>,
    /// The tokens of the answers that are first named in it.
    pub tokens: Option<TokenCount>,
    /// The id of the message that it answers: the last one that a fork shares with its origin. Only a reader of whole
    /// sessions knows it, and the files.
    pub in_reply_to: Option<String>,
    /// The time in its name, which keeps the order of the session. Only a reader of whole sessions knows it.
    pub name_time: Option<Timestamp>,
    /// The files with whole results that its calls name.
    pub result_files: Vec<SessionResultFile>,
}

/// A file into which a harness wrote the whole result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionResultFile {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub data: Arc<[u8]>,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionBlock {
    /// Text.
    Text(String),
    /// A thought of the model.
    Thinking(String),
    /// An image.
    Image(SessionImage),
    /// A call of a tool, or a result whose call stands in an earlier message.
    Call(ToolCall),
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionImage {
    /// Its media type.
    pub media_type: String,
    /// Its bytes, decoded. Several blocks may share them.
    pub data: Arc<[u8]>,
}

/// A call of a tool, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The name of the tool. It is empty if the call stands in an earlier message.
    pub name: String,
    /// The arguments as JSON text. They are empty if the call stands in an earlier message.
    pub input: String,
    /// The text of the result.
    pub output: Option<String>,
    /// Its state.
    pub status: CallStatus,
    /// The time that it took.
    pub duration_ms: Option<u64>,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// It has a result.
    Completed,
    /// It has a result, which is an error.
    Failed,
    /// It has no result in this message.
    Pending,
}

/// The tokens that an answer of the model took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCount {
    /// The tokens that the model read.
    pub input: u64,
    /// The tokens that the model wrote.
    pub output: u64,
}

/// The description of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHead {
    /// Its id, which is the thread of its messages: `<session>`, or `<session>.<agent id>` for a sub-agent.
    pub id: String,
    /// The kind of store that has it.
    pub kind: Kind,
    /// Its title, at most 100 characters.
    pub title: String,
    /// The version of the harness that wrote it last.
    pub version: String,
    /// The working directory at its start.
    pub cwd: String,
    /// The git branch.
    pub git_branch: Option<String>,
    /// The git commit.
    pub git_commit: Option<String>,
    /// The path of the git worktree that the harness made for it.
    pub worktree: Option<String>,
    /// The session from which it was forked, or in which the sub-agent was started.
    pub parent: Option<String>,
}

/// Returns the heads of all sessions below a base folder, sub-agents included.
///
/// # Errors
/// If the folder cannot be read, or the kind has no sessions.
pub fn list_sessions(kind: Kind, dir: &Path) -> Result<Vec<SessionHead>, StoreError> {
    Ok(open_sessions(kind, dir)?.heads())
}

/// Reads the messages of one session in order: its own ones, without what a fork copied.
///
/// # Errors
/// If there is no such session, it cannot be read, or `each` fails.
pub fn read_session(
    kind: Kind,
    dir: &Path,
    id: &str,
    each: &mut dyn FnMut(SessionMessage) -> Result<(), StoreError>,
) -> Result<SessionHead, StoreError> {
    open_sessions(kind, dir)?.read(id, each)
}
