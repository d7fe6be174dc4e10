//! The facts that are kept of a log: those of the session in its lines, and the message that is not complete yet.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::line::{HeadNotes, TitleNote, first_words};
use crate::model::Timestamp;
use crate::store::engine::lines::LogFacts;

/// The number of summaries that are kept. Those of other sessions may stand in a log.
const MAX_SUMMARIES: usize = 32;

/// The lines since the last message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingPieces {
    /// The offset of the first line.
    pub start: u64,
    /// The offset after the last line.
    pub end: u64,
    /// The id of the last line.
    pub last_id: String,
    /// The time of the last line.
    pub time: Timestamp,
    /// The number of the last line.
    pub line: u64,
    /// True if it is of a sub-agent whose lines stand in the log of the session.
    pub is_sidechain: bool,
}

/// The titles that lines state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SessionTitles {
    custom: Option<String>,
    generated: Option<String>,
    /// The summaries, each with the id of the line that it ends with.
    summaries: Vec<(String, String)>,
    prompt: Option<String>,
}

/// The facts of a session that its lines state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDescription {
    /// The working directory at its start.
    pub cwd: String,
    /// The last version of the harness.
    pub version: String,
    /// The last git branch.
    pub git_branch: Option<String>,
    /// The git commit at its start.
    pub git_commit: Option<String>,
    /// The path of the git worktree that the harness made.
    pub worktree: Option<String>,
    /// The session that it was forked from.
    pub origin: Option<String>,
    /// The log that it goes on from, and the number of the first line that it does not share with it.
    pub base: Option<(String, u64)>,
    titles: SessionTitles,
}

/// The facts that lines have stated so far. They begin anew when the log is read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionProgress {
    /// The facts of the session.
    pub about: SessionDescription,
    /// The message that is not complete yet.
    pub pending: Option<PendingPieces>,
    /// The times of messages whose last line states none that can be read, by their offsets: each has that of the message
    /// before it.
    pub taken_times: BTreeMap<u64, Timestamp>,
    /// The time in the name of the last message.
    pub name_time: Option<i64>,
    /// The id of the last message that was copied before the first own one.
    pub last_copied: Option<String>,
    /// The id of the first own message.
    pub first_own: Option<String>,
    /// True if a line was read.
    pub is_begun: bool,
    /// True if the log is none of the format.
    pub is_refused: bool,
    /// True if the log may begin with copies of what its origin has.
    pub repeats_origin: bool,
    /// The number of lines of the origin up to the last one that was copied.
    pub copied_lines: usize,
    /// True if a line was no copy, so that none after it is one.
    pub copies_ended: bool,
}

/// The facts of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFacts {
    /// The facts that its lines state.
    pub read: SessionProgress,
    /// The session, where the name of the log does not tell it.
    pub session: Option<String>,
    /// The type of the sub-agent, from the file beside the log or from its first line.
    pub agent: Option<String>,
    /// The name of the session, where it does not stand in its lines.
    pub given_title: Option<String>,
    /// The title under which its messages were reported; empty if they have none, `None` before any was reported.
    pub title: Option<String>,
}

impl LogFacts for SessionFacts {
    fn title(&self) -> Option<&str> {
        Some(self.title.as_deref().unwrap_or_default())
    }

    fn reset_for_reread(&mut self) {
        self.read = SessionProgress::default();
    }
}

impl SessionDescription {
    /// Takes in the facts of a line. Returns true if the title may have changed.
    pub fn take_notes(&mut self, notes: HeadNotes<'_>) -> bool {
        let keep_first = |slot: &mut Option<String>, new: Option<Cow<'_, str>>| {
            if slot.is_none() {
                *slot = new.map(Cow::into_owned);
            }
        };
        let keep_last = |slot: &mut String, new: &Option<Cow<'_, str>>| {
            if let Some(new) = new.as_deref().filter(|new| new != slot) {
                new.clone_into(slot);
            }
        };
        if self.cwd.is_empty() {
            keep_last(&mut self.cwd, &notes.cwd);
        }
        keep_last(&mut self.version, &notes.version);
        if let Some(branch) = notes.git_branch.filter(|new| !new.is_empty()) {
            keep_last(self.git_branch.get_or_insert_default(), &Some(branch));
        }
        keep_first(&mut self.git_commit, notes.git_commit);
        if notes.worktree.is_some() {
            self.worktree = notes.worktree.map(Cow::into_owned);
        }
        keep_first(&mut self.origin, notes.origin);
        if let Some((log, end)) = notes.base.filter(|_| self.base.is_none()) {
            self.base = Some((log.into_owned(), end));
        }
        notes.title.is_some_and(|title| self.titles.take_note(title))
    }

    /// Returns the title. `is_here` returns true if the line with an id is one of this session.
    pub fn title(&self, given: Option<&str>, is_here: impl Fn(&str) -> bool) -> Option<String> {
        let titles = &self.titles;
        let summary = || {
            let mut own = titles.summaries.iter().rev().filter(|(_, leaf)| is_here(leaf));
            own.next().map(|(text, _)| text.as_str())
        };
        let all = [given, titles.custom.as_deref(), titles.generated.as_deref()];
        let stated = all.into_iter().flatten().find(|title| !title.trim().is_empty());
        let title = stated.or_else(summary).or(titles.prompt.as_deref());
        title.map(first_words).filter(|title| !title.is_empty())
    }
}

impl SessionTitles {
    fn take_note(&mut self, note: TitleNote<'_>) -> bool {
        let before = self.clone();
        match note {
            TitleNote::Custom(title) => self.custom = Some(title.into_owned()),
            TitleNote::Generated(title) => self.generated = Some(title.into_owned()),
            TitleNote::Summary(text, leaf) => {
                let new = (text.into_owned(), leaf.into_owned());
                self.summaries.retain(|known| *known != new);
                if self.summaries.len() >= MAX_SUMMARIES {
                    self.summaries.remove(0);
                }
                self.summaries.push(new);
            }
            TitleNote::Prompt(text) if self.prompt.is_none() => {
                self.prompt = Some(first_words(&text)).filter(|words| !words.is_empty());
            }
            TitleNote::Prompt(_) => return false,
        }
        *self != before
    }
}
