//! The trait of engines, which hand over and fetch whole messages.
//!
//! One half of an engine runs in the daemon and touches no network: it says which addresses it reaches, encodes the
//! bytes that go out and unpacks those that came in. The other half, a [`LinkSession`], runs in a carrier
//! ([`super::carrier`]) and touches nothing but the network and its job's folder. `docs/ADDING-A-LINK.md` says what
//! each method must promise.

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

/// A way to hand over and fetch messages, such as e-mail or a relay.
pub trait LinkEngine: Send + Sync + fmt::Debug {
    /// Returns a short description of the engine for people, without secrets.
    fn describe_engine(&self) -> String;

    /// Returns how well the engine reaches an address that has no mailbox on this machine; `None` if not at all.
    fn rank_address(&self, address: &str) -> Option<u8>;

    /// Returns my address at the engine, if it differs from the one in the store.
    fn own_address(&self) -> Option<&str> {
        None
    }

    /// Checks that a message may have files of these sizes, by what the link's folder records.
    ///
    /// # Errors
    /// Returns the reason and the remedy, if it may not.
    fn check_attachment_sizes(&self, _folder: &Path, _files: &[u64]) -> Result<(), String> {
        Ok(())
    }

    /// Encodes the bytes that go to one recipient. They are kept, so that every try sends the same. An engine that must
    /// hand over something else first records its progress beside them
    /// ([`progress_note_path`](super::journal::progress_note_path)).
    ///
    /// # Errors
    /// Returns the reason why the message can never go, or cannot be read now.
    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError>;

    /// Unpacks what a fetch wrote to a folder: each item, or the error that prevents reading it now. An item with an
    /// error stays in the folder and is tried again, so that a full disk loses no attachment.
    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>>;

    /// Returns true if a fetch must know that this id was fetched before. There may be many such ids.
    fn is_needed_by_fetch(&self, _id: &str) -> bool {
        true
    }

    /// Returns why the link must not carry because another program carries this mail now, with the remedy.
    fn find_other_carrier(&self) -> Option<String>;

    /// Returns the time between two fetches.
    fn poll_interval(&self) -> Duration;

    /// Returns true if the engine deletes what it hands over, so that an interrupted fetch may have lost mail.
    fn is_fetch_destructive(&self) -> bool;

    /// Opens a session, which connects when it is used first. Runs in a carrier.
    fn open_session(&self) -> Box<dyn LinkSession + '_>;

    /// Returns true if a carrier asks again by itself as long as nothing comes.
    fn can_keep_polling(&self) -> bool {
        false
    }

    /// Returns true if the last fetch wrote something to the folder that must be filed or acknowledged. Runs in a
    /// carrier that asks again by itself.
    fn has_fetched(&self, _raw: &Path) -> bool {
        true
    }

    /// Tries the engine without sending and returns the problems for `msgfs doctor`, one a line.
    fn check_connection(&self) -> Vec<String>;

    /// Returns the secrets that only the engine may see, as the files have them now.
    fn load_secrets(&self) -> Vec<Zeroizing<String>>;
}

/// The reason why a message was not encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A property of the message, which can never go.
    #[error("{0}")]
    Final(String),
    /// A file that cannot be read now.
    #[error("{0}")]
    Passing(io::Error),
}

impl From<String> for EncodeError {
    fn from(why: String) -> Self {
        Self::Final(why)
    }
}

impl EncodeError {
    /// Returns the error for a file that cannot be read, with its description. The error is final if there is no such
    /// regular file any more.
    pub fn from_read_error(error: &io::Error, why: String) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Self::Final(why),
            kind => Self::Passing(io::Error::new(kind, why)),
        }
    }
}

/// The use of an engine by a carrier, which keeps its connection from one exchange to the next.
///
/// An outcome concerns one exchange only: after a refusal the session takes the next message. A connection that the
/// server ended while nothing was exchanged is replaced unseen.
pub trait LinkSession {
    /// Hands over the bytes of one message.
    fn send(&mut self, wire: &Path) -> ExchangeOutcome;

    /// Fetches what is available and not known into the folder, and syncs each file. Returns
    /// [`ExchangeOutcome::Later`] if the engine refused some messages, and handed over all others.
    fn fetch(&mut self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome;

    /// Tells the engine that these messages are on disk here.
    fn acknowledge(&mut self, ids: &[String]) -> ExchangeOutcome;

    /// Ends the connection, since nothing is to be exchanged now. The next exchange makes another.
    fn disconnect(&mut self);
}

/// Returns the problems for `msgfs doctor`, without secrets and with advice.
pub fn check_engine(engine: &dyn LinkEngine) -> Vec<String> {
    let mut secrets = engine.load_secrets();
    let found = engine.check_connection();
    secrets.extend(engine.load_secrets());
    found.iter().map(|line| tls::add_advice(secret::redact_text(line, &secrets))).collect()
}

/// One message that a link fetched.
#[derive(Debug)]
pub struct FetchedItem {
    /// The id that distinguishes it from all others of this link.
    pub id: String,
    /// The message to file.
    pub arrived: InboundMail,
    /// The id by which it is acknowledged to the engine.
    pub ack_id: Option<String>,
}

impl FetchedItem {
    /// Returns an item that the engine still lists and that needs no filing.
    pub fn from_known_id(id: String) -> Self {
        Self { id, arrived: InboundMail::default(), ack_id: None }
    }

    /// Returns true if the item has no message to file.
    pub fn is_only_known(&self) -> bool {
        self.arrived == InboundMail::default()
    }
}

/// The result of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum ExchangeOutcome {
    /// Success: the engine has the message, or has handed over all that it had.
    Done,
    /// Success, with an id that the engine gave the message.
    Named {
        /// The engine's id.
        id: String,
    },
    /// A refusal of this message for good.
    Refused {
        /// The engine's words.
        why: String,
    },
    /// A refusal for now: the engine may take this message later, or hand over what it refused in a fetch.
    Later {
        /// The engine's words.
        why: String,
        /// The delay that the engine asks for, in seconds.
        after: Option<u64>,
    },
    /// A failure before anything was handed over, since the engine cannot be reached now.
    Away {
        /// The words of the engine or the system.
        why: String,
        /// The delay that the engine asks for, in seconds.
        after: Option<u64>,
    },
    /// A lost answer. The engine may have the message, and gets the same bytes once more.
    Unknown {
        /// The words of the system.
        why: String,
    },
}

impl ExchangeOutcome {
    /// Returns an outcome that says the engine cannot be reached now, for this reason.
    pub fn away(why: impl fmt::Display) -> Self {
        Self::Away { why: sanitize_line(&why.to_string()).into_owned(), after: None }
    }

    /// Returns the outcome of an exchange that no message had begun: a refusal then concerns the engine as a whole.
    #[must_use]
    pub fn before_message(self) -> Self {
        match self {
            Self::Refused { why } => Self::away(why),
            Self::Later { why, after } => Self::Away { why, after },
            other => other,
        }
    }

    /// Returns the reason of a failure; `None` after a success.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Done | Self::Named { .. } => None,
            Self::Refused { why }
            | Self::Later { why, .. }
            | Self::Away { why, .. }
            | Self::Unknown { why } => Some(why),
        }
    }

    /// Removes secrets from the reason and adds advice.
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

impl From<io::Error> for ExchangeOutcome {
    fn from(error: io::Error) -> Self {
        Self::away(error)
    }
}

/// The location of an engine's data, without secrets: it is written into jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSettings {
    /// The name of the engine.
    pub kind: String,
    /// The file that describes the engine: the store's own configuration or a registration.
    pub file: PathBuf,
    /// The part of that file, if it describes several.
    pub part: String,
    /// My name at the engine.
    pub me: String,
    /// True if plain text may go to any host.
    pub insecure: bool,
    /// A file with certificates of further authorities, in PEM.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// `mail`: true if I get a copy of each message that I send.
    #[serde(default)]
    pub self_copy: bool,
}

/// The settings of links, with their names.
pub type NamedSettings = Vec<(String, EngineSettings)>;
