//! A line of a transcript, as far as lists need it: its place in the message that it belongs to, and the facts of the
//! session in it.

use std::borrow::Cow;

use twox_hash::XxHash3_64;

use crate::model::Timestamp;
use crate::store::text::json::JsonValue;

/// The part that a line has in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineStep {
    /// None: no text of it is shown.
    #[default]
    Skipped,
    /// A thought, a call or a result. It belongs to the message that the next text ends.
    Piece,
    /// Text of an answer. It ends the message that the pieces before it began.
    Answer,
    /// A prompt, which is a message of its own.
    Prompt,
    /// A text of the harness, which is a message of its own.
    Notice,
    /// The end of a turn or of a context: pieces that no text has followed are a message.
    End,
}

impl LineStep {
    /// Returns true if a line of this step is the last one of a message.
    pub fn ends_message(self) -> bool {
        matches!(self, Self::Answer | Self::Prompt | Self::Notice)
    }

    /// Returns true if the content of a line of this step is shown.
    pub fn is_shown(self) -> bool {
        self == Self::Piece || self.ends_message()
    }
}

/// A title that a line states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TitleNote<'a> {
    /// The title that a person gave.
    Custom(Cow<'a, str>),
    /// The title that the harness made.
    Generated(Cow<'a, str>),
    /// The summary of the branch that ends with the line of this id. It may be that of another session.
    Summary(Cow<'a, str>, Cow<'a, str>),
    /// The first words of a prompt.
    Prompt(Cow<'a, str>),
}

/// The facts of a session that a line states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadNotes<'a> {
    /// The working directory.
    pub cwd: Option<Cow<'a, str>>,
    /// The version of the harness.
    pub version: Option<Cow<'a, str>>,
    /// The git branch.
    pub git_branch: Option<Cow<'a, str>>,
    /// The git commit.
    pub git_commit: Option<Cow<'a, str>>,
    /// The path of a git worktree.
    pub worktree: Option<Cow<'a, str>>,
    /// The type of the sub-agent whose session it is.
    pub agent: Option<Cow<'a, str>>,
    /// The session that is forked, or that started the sub-agent.
    pub origin: Option<Cow<'a, str>>,
    /// The log that it goes on from, and the number of the first line that it does not share with it.
    pub base: Option<(Cow<'a, str>, u64)>,
    /// True if it begins with what its origin has, written anew.
    pub repeats_origin: bool,
    /// A title.
    pub title: Option<TitleNote<'a>>,
    /// True if the line must be the first one of its log.
    pub is_first: bool,
}

/// A line of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionLine<'a> {
    /// Its part in a message.
    pub step: LineStep,
    /// Its id; empty if it has none.
    pub id: Cow<'a, str>,
    /// Its time.
    pub time: Option<Timestamp>,
    /// A hash of its content; 0 if a piece is not compared with others.
    pub content: u32,
    /// The session that it names as the one from which it was copied.
    pub copied_from: Option<Cow<'a, str>>,
    /// True if it holds more than text.
    pub has_parts: bool,
    /// The sub-agent of which it is, where the log is that of the session itself.
    pub is_sidechain: bool,
    /// A type of record or block that is not known.
    pub unknown: Option<Cow<'a, str>>,
    /// The facts of the session in it.
    pub notes: HeadNotes<'a>,
}

/// Returns the hash of a value as it is spelled.
pub fn hash_content(value: &JsonValue<'_>) -> u32 {
    let text = match value {
        JsonValue::String(text) => text.raw_text(),
        JsonValue::Compound(text) => text,
        _ => "",
    };
    (XxHash3_64::oneshot(text.as_bytes()) >> 32) as u32
}

/// Returns the first line of a text that has one, at most 100 characters of it, for a title.
pub fn first_words(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(100).collect::<String>().trim_end().to_owned()
}
