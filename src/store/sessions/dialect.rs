//! The trait by which a harness describes how it writes its transcripts.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::build::MessageBuilder;
use super::facts::PendingPieces;
use super::format::SessionFormat;
use super::line::SessionLine;
use super::message::TokenCount;
use crate::store::Kind;
use crate::store::engine::lines::LogShape;
use crate::store::engine::lines::scan::LogScan;

/// The session and the sub-agent whose lines a log holds, as the name of the log tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogIdentity<'a> {
    /// The session; `None` if only the lines tell it.
    pub session: Option<&'a str>,
    /// The id of the sub-agent.
    pub agent: Option<&'a str>,
}

/// The facts that a line without text states of the messages around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineContext {
    /// The model that works from here on.
    pub model: Option<String>,
    /// The tokens of the answer before it.
    pub tokens: Option<TokenCount>,
}

/// The way in which a harness writes its transcripts.
pub trait SessionDialect: Debug + Send + Sync + Sized + 'static {
    /// The kind of its stores.
    const KIND: Kind;
    /// The folders in the base folder that contain logs. One of them must be there.
    const FOLDERS: &'static [&'static str];
    /// The shape of its logs.
    const SHAPE: LogShape;
    /// True if thoughts, calls and results have ids, too.
    const PIECES_HAVE_IDS: bool;
    /// True if the first line of a log describes the session.
    const FIRST_LINE_DESCRIBES_SESSION: bool;

    /// True if lines without text state facts of the messages around them.
    const HAS_CONTEXT: bool = false;
    /// The file in the base folder with titles of sessions.
    const NAMES_FILE: Option<&'static str> = None;

    /// Returns what the name of a log tells; `None` if the name is not that of a log.
    fn identify_log(name: &str) -> Option<LogIdentity<'_>>;

    /// Parses a line of a session.
    ///
    /// # Errors
    /// The reason why the text is no line of a session, in a sentence.
    fn parse_line<'a>(session: &str, text: &'a str) -> Result<SessionLine<'a>, String>;

    /// Returns an id for a message that ends with a line without one.
    fn derive_id(session: &str, message: &PendingPieces) -> String;

    /// Returns the folder with the whole results of the calls of a log's session, as a path below the folder of logs.
    fn result_folder(name: &str) -> Option<String>;

    /// Adds the contents of a line to a message.
    fn read_contents(text: &str, message: &mut MessageBuilder);

    /// Returns the facts that a line without text states of the messages around it.
    fn read_context(_text: &str) -> LineContext {
        LineContext::default()
    }

    /// Notes that logs were read. It may queue logs to be read again because of others.
    fn note_read(_scan: &mut LogScan<'_, SessionFormat<Self>>) {}

    /// Reads the facts about these logs from files beside them or from their first lines. Returns the logs whose
    /// messages must all be reported again.
    fn read_heads(
        scan: &mut LogScan<'_, SessionFormat<Self>>,
        logs: &BTreeSet<u32>,
    ) -> BTreeSet<u32>;
}
