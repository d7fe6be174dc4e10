//! What takes and gives whole messages.
//!
//! One half of an engine runs in the daemon and touches no network: it says whom it reaches, makes the
//! bytes that go out and takes apart those that came in. The other half runs in a carrier
//! ([`super::job`]) and touches nothing but the network and its job's folder.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{secret, tls};
use crate::model::sanitize_line;
use crate::store::{InboundMail, OutboundMail};

/// An engine.
pub trait LinkEngine: Send + Sync + fmt::Debug {
    /// The engine in few words, for people, without secrets.
    fn describe_engine(&self) -> String;

    /// How well it reaches an address that has no mailbox on this machine; `None` if not at all.
    fn rank_address(&self, address: &str) -> Option<u8>;

    /// My address there, if it is another than in the store.
    fn own_address(&self) -> Option<&str> {
        None
    }

    /// Whether a message may have files of these sizes, by what is known in the link's folder.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn check_attachment_sizes(&self, _folder: &Path, _files: &[u64]) -> Result<(), String> {
        Ok(())
    }

    /// The bytes that go to one recipient. They are kept, so that every try sends the same. An engine that must
    /// hand over something else first notes beside them ([`note_beside`](super::journal::note_beside)) how far it
    /// has come.
    ///
    /// # Errors
    /// Why it can never go.
    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, String>;

    /// What a fetch brought, from the folder it wrote to: each item, or why it cannot be had now. What could
    /// not stays in the folder and is asked for again, so that no attachment is lost to a full disk.
    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>>;

    /// Whether a fetch must know that this was brought before: they may be many.
    fn is_needed_by_fetch(&self, _id: &str) -> bool {
        true
    }

    /// Who else carries this mail now, so that the link must not: why, and what to do.
    fn find_other_carrier(&self) -> Option<String>;

    /// How often it is asked for mail.
    fn poll_interval(&self) -> Duration;

    /// Whether what it hands over is gone there, so that a fetch that was cut off may have lost mail.
    fn is_fetch_destructive(&self) -> bool;

    /// Hands over the bytes of one message. Runs in a carrier.
    fn send(&self, wire: &Path) -> ExchangeOutcome;

    /// Brings what there is and is not known to the folder, each file synced. Runs in a carrier.
    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome;

    /// Returns true if a carrier stays, and asks again as long as nothing comes.
    fn can_keep_polling(&self) -> bool {
        false
    }

    /// Returns true if the last fetch brought something to the folder that is to be filed or acknowledged. Runs in a carrier
    /// that stays.
    fn has_fetched(&self, _raw: &Path) -> bool {
        true
    }

    /// Says that these are on disk here. Runs in a carrier.
    fn acknowledge(&self, ids: &[String]) -> ExchangeOutcome;

    /// What `msgfs doctor` finds when it tries the engine without sending, a line each.
    fn check_connection(&self) -> Vec<String>;

    /// What the engine is told and nobody else may be, as the files have it now.
    fn load_secrets(&self) -> Vec<Zeroizing<String>>;
}

/// What `msgfs doctor` finds, as people may be told it.
pub fn check_engine(engine: &dyn LinkEngine) -> Vec<String> {
    let mut secrets = engine.load_secrets();
    let found = engine.check_connection();
    secrets.extend(engine.load_secrets());
    found.iter().map(|line| tls::add_advice(secret::redact_text(line, &secrets))).collect()
}

/// One message that a link brought.
#[derive(Debug)]
pub struct FetchedItem {
    /// What tells it from all others of this link.
    pub id: String,
    /// What is to be filed.
    pub arrived: InboundMail,
    /// The id under which the engine wants to hear that it is here.
    pub ack_id: Option<String>,
}

impl FetchedItem {
    /// Something that is still there and needs not be filed.
    pub fn from_known_id(id: String) -> Self {
        Self { id, arrived: InboundMail::default(), ack_id: None }
    }

    /// Whether it brings nothing.
    pub fn is_only_known(&self) -> bool {
        self.arrived == InboundMail::default()
    }
}

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum ExchangeOutcome {
    /// The engine has it, or has given all there was.
    Done,
    /// The engine has it, and calls it so.
    Named {
        /// The id it gave.
        id: String,
    },
    /// It refuses this message for good.
    Refused {
        /// In its words.
        why: String,
    },
    /// It does not take this message now, but may later.
    Later {
        /// In its words.
        why: String,
        /// How long it asks to wait, in seconds.
        after: Option<u64>,
    },
    /// It cannot be spoken to now; nothing was handed over.
    Away {
        /// What it or the system says.
        why: String,
        /// How long it asks to wait, in seconds.
        after: Option<u64>,
    },
    /// The answer was lost: it may have it, and gets the same once more.
    Unknown {
        /// What the system says.
        why: String,
    },
}

impl ExchangeOutcome {
    /// It cannot be spoken to now, for this reason.
    pub fn away(why: impl fmt::Display) -> Self {
        Self::Away { why: sanitize_line(&why.to_string()).into_owned(), after: None }
    }

    /// The reason, if it did not go well.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Done | Self::Named { .. } => None,
            Self::Refused { why }
            | Self::Later { why, .. }
            | Self::Away { why, .. }
            | Self::Unknown { why } => Some(why),
        }
    }

    /// The same as people may be told it.
    #[must_use]
    pub fn redact_secrets(mut self, secrets: &[Zeroizing<String>]) -> Self {
        match &mut self {
            Self::Done | Self::Named { .. } => {}
            Self::Refused { why }
            | Self::Later { why, .. }
            | Self::Away { why, .. }
            | Self::Unknown { why } => *why = tls::add_advice(secret::redact_text(why, secrets)),
        }
        self
    }
}

/// Where an engine finds what it needs, without secrets: this is written into jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSettings {
    /// Which engine.
    pub kind: String,
    /// The file that describes it: the store's own configuration or a registration.
    pub file: PathBuf,
    /// Which of several in that file.
    pub part: String,
    /// Who I am there.
    pub me: String,
    /// Plain text may go anywhere.
    pub insecure: bool,
    /// A file with certificates of further authorities, in PEM.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// `mail`: I get a copy of what I send.
    #[serde(default)]
    pub self_copy: bool,
}
