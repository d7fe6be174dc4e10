//! The contract between stores and links on mail to and from other machines.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{NOT_TRIED_AGAIN, StoreError};
use crate::model::PublicKey;

/// A store with mail for other machines, which also takes mail from there.
pub trait RemoteMail {
    /// Returns the file that describes the engines, where the format has one of its own.
    fn description_path(&self) -> Option<PathBuf> {
        None
    }

    /// Sets the links that there are. It is set once, before anything is delivered.
    fn set_router(&self, router: Arc<dyn LinkRouter>);

    /// Returns the names of the links that a message can name to go by.
    fn link_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns true if a message can name a link so.
    fn has_link(&self, link: &str) -> bool {
        self.link_names().iter().any(|name| name == link)
    }

    /// Puts mail that a link brought into the store. It is on disk when this returns. A second call changes nothing.
    ///
    /// # Errors
    /// As the system gave it. Then it is filed again.
    fn file_mail(&self, arrived: &InboundMail) -> Result<(), StoreError>;
}

/// The links to other machines.
pub trait LinkRouter: Send + Sync + fmt::Debug {
    /// Returns the link that reaches an address; `None` if there is none.
    ///
    /// # Errors
    /// The reason why none of several can be chosen.
    fn find_link(&self, address: &str) -> Result<Option<String>, String>;

    /// Returns the names of the links that carry messages.
    fn link_names(&self) -> Vec<String>;

    /// Returns true if a link reaches an address; false also if there is no such link.
    fn can_reach(&self, link: &str, address: &str) -> bool;

    /// Returns the link that reaches an address and on which I have the address `mine`; `None` if there is none.
    fn find_link_as(&self, _mine: &str, _address: &str) -> Option<String> {
        None
    }

    /// Returns my address on a link, if it is another than in the store.
    fn own_address(&self, _link: &str) -> Option<String> {
        None
    }

    /// Fails if a message that goes by a link may not have files of these sizes.
    ///
    /// # Errors
    /// The reason, and what to do.
    fn check_file_sizes(&self, _link: &str, _files: &[u64]) -> Result<(), String> {
        Ok(())
    }

    /// Accepts a message for one recipient. It is on disk once [`Self::sync_accepted`] has returned, and before the
    /// engine gets it. A second call changes nothing.
    ///
    /// # Errors
    /// As the system gave it. Then the message was not accepted.
    fn accept_mail(&self, link: &str, parcel: &OutboundMail) -> io::Result<()>;

    /// Waits until all accepted messages are on disk.
    ///
    /// # Errors
    /// As the system gave it. Then some messages that were accepted since the last call are forgotten, and the store
    /// hands them over again.
    fn sync_accepted(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the fate of a message for a recipient; `None` if no link took it.
    fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate>;

    /// Returns true if a link took this message for a recipient, and its engine does not have it. Many messages may be
    /// asked about.
    fn is_underway(&self, message: &str, to: &str) -> bool {
        self.delivery_fate(message, to).is_some_and(|fate| fate != DeliveryFate::Taken)
    }

    /// Returns the names of the links that are stopped although they are in the settings, each with the reason.
    fn stopped_links(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the id that the engine gave a message for a recipient, where engines give ids of their own and this one
    /// is known.
    fn engine_id(&self, _message: &str, _to: &str) -> Option<String> {
        None
    }

    /// Returns the length of the longest record that any link takes, in bytes with its terminator, and the name of the
    /// link with this limit. `None` as long as no limit is known.
    fn length_limit(&self) -> Option<(u64, String)> {
        None
    }
}

/// The place in a format for the links to other machines. It is empty until they are set, and stays so if there are none.
#[derive(Debug, Default)]
pub struct RouterSlot(OnceLock<Arc<dyn LinkRouter>>);

impl RouterSlot {
    /// Sets the links. The first ones stay: a mount has one set of links.
    pub fn set(&self, router: Arc<dyn LinkRouter>) {
        let _ = self.0.set(router);
    }

    /// Returns the links, if they are set.
    pub fn get(&self) -> Option<&dyn LinkRouter> {
        self.0.get().map(Arc::as_ref)
    }

    /// Returns the names of the links that carry messages.
    pub fn link_names(&self) -> Vec<String> {
        self.get().map(LinkRouter::link_names).unwrap_or_default()
    }

    /// Returns the link that reaches an address; `None` if there is none.
    ///
    /// # Errors
    /// The reason why none of several can be chosen.
    pub fn find_link(&self, address: &str) -> Result<Option<String>, String> {
        self.get().map_or(Ok(None), |router| router.find_link(address))
    }

    /// Waits until all messages that links accepted are on disk.
    ///
    /// # Errors
    /// As [`LinkRouter::sync_accepted`], with the store's folder.
    pub fn sync_accepted(&self, dir: &Path) -> Result<(), StoreError> {
        let synced = self.get().map_or(Ok(()), LinkRouter::sync_accepted);
        synced.map_err(|e| StoreError::io(dir, e))
    }

    /// Returns the fate of a message for a recipient; `None` if no link took it.
    pub fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        self.get()?.delivery_fate(message, to)
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
    /// Its attachments: names and paths.
    pub parts: Vec<(String, PathBuf)>,
}

/// The fate of a message for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryFate {
    /// A message that waits, for this reason.
    Waits(String),
    /// A message that the engine has.
    Taken,
    /// A message that the engine will never take, for this reason.
    Refused(String),
    /// A message that was given up, for this reason, and that the engine may have.
    Uncertain(String),
}

impl DeliveryFate {
    /// Returns the sentences for people about a recipient to whom nothing is carried any more; `None` if it is carried,
    /// or was.
    pub fn describe_end(&self, to: &str) -> Option<String> {
        match self {
            Self::Waits(_) | Self::Taken => None,
            Self::Refused(why) => Some(format!(
                "{to} does not get it, because it was refused for good: {why}\n{NOT_TRIED_AGAIN}"
            )),
            Self::Uncertain(why) => {
                Some(format!("{to} may have it or not: {why}\nit is not tried again\n"))
            }
        }
    }
}

/// Mail that a link brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboundMail {
    /// The name of its file, always the same for the same message.
    pub name: String,
    /// A second name, for where another message has the first.
    pub other_name: String,
    /// The day of its folder, where the format has days: `YYYY-MM-DD`.
    pub day: Option<String>,
    /// Its text, as the store is to have it.
    pub bytes: Vec<u8>,
    /// Its attachments: names and paths.
    pub parts: Vec<(String, PathBuf)>,
    /// Keys of senders, as the engine states them: addresses and keys. Mail without a text brings only these.
    pub keys: Vec<(String, PublicKey)>,
}
