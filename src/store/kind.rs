//! The kinds of stores, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

    /// Returns the word for it in configuration, paths and header lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Samp => "samp",
            Self::AgentAzall => "agentazall",
            Self::Amp => "amp",
            Self::Atsf => "atsf",
            Self::Ssot => "ssot",
            Self::Amq => "amq",
            Self::Maildir => "maildir",
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }

    /// Returns the grammar of its addresses, as a phrase for people.
    pub const fn address_grammar(self) -> &'static str {
        match self {
            Self::Samp => {
                "a name in SAMP takes letters, digits, '.', '_' and '-', begins with a letter or \
                 digit and has at most 64 characters"
            }
            Self::AgentAzall => {
                "an AgentAZAll address is written NAME@HOST, or is the name of a mailbox beside mine"
            }
            Self::Amp => {
                "an AMP address is written NAME@TENANT.PROVIDER, or is the NAME of a local agent"
            }
            Self::Atsf => "in an ATSF thread one writes to user or agent",
            Self::Ssot => "a task record goes to admin, coordinator, executor or reviewer",
            Self::Amq => {
                "an AMQ handle takes lower-case letters, digits, '_' and '-', and has a mailbox in \
                 the queue"
            }
            Self::Maildir => "mail goes to an address written NAME@HOST",
            Self::Claude | Self::Codex => {
                "nobody writes into the transcripts of a coding agent but its own program"
            }
        }
    }

    /// Returns true if the messages of a sender stand in a log, in the order in which they were written.
    pub const fn has_logs(self) -> bool {
        matches!(self, Self::Samp | Self::Atsf | Self::Claude | Self::Codex)
    }

    /// Returns true if its threads are the sessions of a harness.
    pub const fn has_sessions(self) -> bool {
        matches!(self, Self::Claude | Self::Codex)
    }

    /// Returns true if its messages may have a priority.
    pub const fn has_priorities(self) -> bool {
        matches!(self, Self::Amp | Self::Amq)
    }

    /// Returns true if its messages may ask for an acknowledgement ([`Record::wants_ack`](super::Record::wants_ack)).
    pub const fn has_acks(self) -> bool {
        matches!(self, Self::Ssot)
    }

    /// Returns the commands of this kind, `msgfs <kind> COMMAND…`: usage and a description.
    /// [`StoreUpkeep::run_command`](super::StoreUpkeep::run_command) runs them.
    pub const fn commands(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Samp
            | Self::AgentAzall
            | Self::Amp
            | Self::Atsf
            | Self::Amq
            | Self::Maildir
            | Self::Claude
            | Self::Codex => &[],
            Self::Ssot => {
                &[("resume TASK", "lift the lock or the suspension of a task; works only as admin")]
            }
        }
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
