//! Mail for other machines, and mail from there: what a store and the links agree on.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::StoreError;
use crate::model::PublicKey;

/// Has mail for other machines, and takes what comes from there.
pub trait RemoteMail {
    /// The file that describes the engines, where the format has one of its own.
    fn description_path(&self) -> Option<PathBuf>;

    /// The ways there are. Told once, before anything is delivered.
    fn set_router(&self, ways: Arc<dyn LinkRouter>);

    /// Whether one of the ways has this name, and a message can say that it is to go there.
    fn has_link(&self, _link: &str) -> bool {
        false
    }

    /// Puts what a link brought in its place. On disk when it returns; again changes nothing.
    ///
    /// # Errors
    /// As the system gave it; then it is filed again.
    fn file_mail(&self, arrived: &InboundMail) -> Result<(), StoreError>;
}

/// The ways to other machines.
pub trait LinkRouter: Send + Sync + fmt::Debug {
    /// The link that reaches an address; `None` if there is none.
    ///
    /// # Errors
    /// Why none of several can be chosen.
    fn find_link(&self, address: &str) -> Result<Option<String>, String>;

    /// Whether there is a link of this name.
    fn has_link(&self, link: &str) -> bool;

    /// Whether a link reaches an address; `false` also if there is no such link.
    fn can_reach(&self, link: &str, address: &str) -> bool;

    /// The link that reaches an address and where I am this one; `None` if there is none.
    fn find_link_as(&self, _mine: &str, _address: &str) -> Option<String> {
        None
    }

    /// My address where a link leads, if it is another than in the store.
    fn own_address(&self, _link: &str) -> Option<String> {
        None
    }

    /// Whether a message that goes by a link may have files of these sizes.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn check_file_sizes(&self, _link: &str, _files: &[u64]) -> Result<(), String> {
        Ok(())
    }

    /// Takes a message for one recipient. On disk when it returns; again changes nothing.
    ///
    /// # Errors
    /// As the system gave it; then it was not taken.
    fn accept_mail(&self, link: &str, parcel: &OutboundMail) -> io::Result<()>;

    /// What became of a message for a recipient; `None` if no link took it.
    fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate>;

    /// The id that the engine gave a message for a recipient, where it gives ids of its own and has told.
    fn engine_id(&self, _message: &str, _to: &str) -> Option<String> {
        None
    }

    /// The longest record that goes, in bytes with what ends it, and the link that takes no longer one; `None` as long as
    /// there is no limit or none is known.
    fn length_limit(&self) -> Option<(u64, String)> {
        None
    }
}

/// A message on its way to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMail {
    /// Its id.
    pub message_id: String,
    /// The recipient.
    pub to: String,
    /// Its text, as it lies in the store.
    pub bytes: Vec<u8>,
    /// What goes along: names, and where they lie.
    pub parts: Vec<(String, PathBuf)>,
}

/// What became of a message for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryFate {
    /// It waits, for this reason.
    Waits(String),
    /// The engine has it.
    Taken,
    /// It will never be taken, for this reason.
    Refused(String),
}

/// What a link brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboundMail {
    /// The name it gets, always the same for the same message.
    pub name: String,
    /// A second name, for where the first is another message's.
    pub other_name: String,
    /// The day under which it lies, where the format has days: `YYYY-MM-DD`.
    pub day: Option<String>,
    /// Its text, as it is to lie in the store.
    pub bytes: Vec<u8>,
    /// What comes with it: names, and where it lies.
    pub parts: Vec<(String, PathBuf)>,
    /// Keys of writers, as the engine says: addresses and keys. Without any text they are all that is
    /// brought.
    pub keys: Vec<(String, PublicKey)>,
}
