//! The kinds of stores: a table with one row a kind. The folder of a kind gives its row.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::maildir::MaildirSettings;
use super::sessions::folder::SessionFolder;
use super::{Store, StoreError, StoreSpec};
use super::{agentazall, amp, amq, atsf, maildir, samp, sessions, ssot};
use crate::model::{SettingsFiles, TextRule};

/// The kinds of stores that msgfs supports.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// SAMP v1: one append-only JSON-lines log per sender in a shared folder.
    #[default]
    Samp,
    /// AgentAZAll: a mailbox of text files per agent, in folders by day.
    AgentAzall,
    /// AMP 0.1: a mailbox of JSON files per agent.
    Amp,
    /// ATSF 1.1: a log of messages per thread, in the folders of projects.
    Atsf,
    /// AMP/1.0: task records between roles, one file per message in a shared folder (SSOT).
    Ssot,
    /// AMQ: a Maildir per agent below one root, with a header of JSON on each message.
    Amq,
    /// Maildir: one mail a file, as mail programs and servers keep them.
    Maildir,
    /// Claude Code: a log per session, in a folder per project. It is only read.
    Claude,
    /// Codex CLI: a log per session, in folders by day. It is only read.
    Codex,
}

/// The default place of the stores of a kind, if no variable names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPlace {
    /// None.
    Nowhere,
    /// This folder below `$HOME`.
    Home(&'static str),
    /// This folder below `$XDG_STATE_HOME`.
    State(&'static str),
}

/// A function that opens a store and creates its folder if the format allows it.
pub type OpenFn = fn(&StoreSpec) -> Result<Arc<dyn Store>, StoreError>;

/// A function that opens the sessions below a folder ([`sessions::folder`]).
pub type OpenSessionsFn = fn(&Path) -> Result<Box<dyn SessionFolder>, StoreError>;

/// The row of a kind: what the rest of msgfs asks of it.
#[derive(Debug)]
pub struct KindRow {
    /// The word for it in configuration, paths and header lines.
    pub word: &'static str,
    /// The grammar of its addresses, as a phrase for people.
    pub address_grammar: &'static str,
    /// Its `[[store]]` in the configuration that `msgfs init` writes, behind comment signs.
    pub example: &'static str,
    /// Opens a store.
    pub open: OpenFn,
    /// The default place.
    pub place: DefaultPlace,
    /// The variables that name the default place. The first that is set counts.
    pub dir_variables: &'static [&'static str],
    /// The variable that gives my name to the format's programs.
    pub me_variable: Option<&'static str>,
    /// Tells whether there is a store in a folder, and whether a variable names the folder. Without it, stores that
    /// nobody configured are not looked for.
    pub is_store: Option<fn(&Path, bool) -> bool>,
    /// Tells whether there is a store in a folder, for a kind of which only configured stores are opened. `msgfs doctor`
    /// then says that the store at the default place is not read.
    pub is_offered: Option<fn(&Path) -> bool>,
    /// The keys of a `[[store]]` that only this kind has, each with the rule for its texts.
    pub keys: &'static [(&'static str, TextRule)],
    /// Opens the sessions in its stores, if its threads are the sessions of a harness.
    pub open_sessions: Option<OpenSessionsFn>,
    /// True if the messages of a sender stand in a log, in the order in which they were written.
    pub has_logs: bool,
    /// True if its messages may have a priority.
    pub has_priorities: bool,
    /// True if its messages may ask for an acknowledgement ([`Record::wants_ack`](super::Record::wants_ack)).
    pub has_acks: bool,
    /// Its commands, `msgfs <kind> COMMAND…`: usage and a description.
    /// [`StoreUpkeep::run_command`](super::StoreUpkeep::run_command) runs them.
    pub commands: &'static [(&'static str, &'static str)],
}

/// The settings that only stores of one kind have. The name of a variant in small letters is the word of the kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KindSettings {
    /// None, as most kinds have.
    #[default]
    #[serde(skip)]
    None,
    /// Those of a Maildir.
    Maildir(MaildirSettings),
}

impl KindSettings {
    /// Returns the files among the settings, with their keys, to be made absolute.
    pub fn files_mut(&mut self) -> SettingsFiles<'_> {
        match self {
            Self::None => Vec::new(),
            Self::Maildir(settings) => settings.files_mut(),
        }
    }
}

impl KindRow {
    /// Returns a row with what every kind must have. It is never found by itself.
    pub(super) const fn new(
        word: &'static str,
        address_grammar: &'static str,
        example: &'static str,
        open: OpenFn,
    ) -> Self {
        Self {
            word,
            address_grammar,
            example,
            open,
            place: DefaultPlace::Nowhere,
            dir_variables: &[],
            me_variable: None,
            is_store: None,
            is_offered: None,
            keys: &[],
            open_sessions: None,
            has_logs: false,
            has_priorities: false,
            has_acks: false,
            commands: &[],
        }
    }
}

impl Kind {
    /// Every kind, in the order in which they are listed to people.
    pub const ALL: &[Self] = &[
        Self::Samp,
        Self::AgentAzall,
        Self::Amp,
        Self::Atsf,
        Self::Ssot,
        Self::Amq,
        Self::Maildir,
        Self::Claude,
        Self::Codex,
    ];

    /// Returns the row of the kind.
    pub const fn row(self) -> &'static KindRow {
        match self {
            Self::Samp => &samp::KIND,
            Self::AgentAzall => &agentazall::KIND,
            Self::Amp => &amp::KIND,
            Self::Atsf => &atsf::KIND,
            Self::Ssot => &ssot::KIND,
            Self::Amq => &amq::KIND,
            Self::Maildir => &maildir::KIND,
            Self::Claude => &sessions::CLAUDE,
            Self::Codex => &sessions::CODEX,
        }
    }

    /// Returns the kind whose stores alone have this key, if one has.
    pub fn from_key(key: &str) -> Option<Self> {
        let has_key = |kind: &&Self| kind.row().keys.iter().any(|(own, _)| *own == key);
        Self::ALL.iter().find(has_key).copied()
    }

    /// Returns the word for it in configuration, paths and header lines.
    pub const fn as_str(self) -> &'static str {
        self.row().word
    }

    /// Returns true if its threads are the sessions of a harness.
    pub const fn has_sessions(self) -> bool {
        self.row().open_sessions.is_some()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|k| k.as_str() == s).ok_or_else(|| s.to_owned())
    }
}
