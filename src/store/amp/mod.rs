//! AMP 0.1 (Agent Messaging Protocol): a folder per agent, a JSON file per message.
//!
//! The format, as functions without I/O:
//! - [`envelope`], [`id`], [`address`], [`limits`]: the contents of a file.
//! - [`verify`], [`frame`]: the bytes that a signature covers. [`injection`]: signs of injection.
//! - [`write`](mod@write), [`edit`], [`filename`], [`pem`]: new messages, marks, attachments, keys.
//!
//! The store on top of it:
//! - `agent`, `home`, `roster`: the agents of this host, my own agent, and the meaning of addresses.
//! - `format`, `facts`, `table_facts`, `references`: the files, and those that are one message. `multicast`: messages
//!   to several recipients.
//! - `read`, `attachments`: one message in full. `send`: new ones. `receipts`: proofs that they were read. `health`,
//!   `check`: the rest.
//! - [`registration`], `remote`: the mail that links exchange with providers elsewhere.

pub mod address;
mod agent;
mod attachments;
mod check;
pub mod edit;
pub mod envelope;
mod facts;
pub mod filename;
mod format;
pub mod frame;
mod health;
mod home;
pub mod id;
pub mod injection;
pub mod limits;
mod multicast;
pub mod pem;
mod read;
mod receipts;
mod references;
pub mod registration;
mod remote;
mod roster;
mod send;
mod table_facts;
pub mod verify;
pub mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::engine::files::FileStore;
use super::kind::{DefaultPlace, KindRow};
use super::{Store, StoreError, StoreKeys, StoreProperties, StoreSpec, ThreadScheme};
use crate::model::Seed;
use format::AmpFormat;
use home::AmpHome;

pub use health::signing_key;

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    place: DefaultPlace::Home(".agent-messaging"),
    dir_variables: &["AMP_DIR"],
    // A user who set the variable may mean one agent's own folder.
    is_store: Some(|dir, is_named| dir.join("agents").is_dir() || is_named && dir.is_dir()),
    has_priorities: true,
    ..KindRow::new(
        "amp",
        "an AMP address is written NAME@TENANT.PROVIDER, or is the NAME of a local agent",
        EXAMPLE,
        open,
    )
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "amp"
# dir = "~/.agent-messaging"         # the folder of agents/
# me = "bob"                         # default: my name
"#;

/// The mailbox of one AMP agent. Its address for me is the one at the time of opening; a later one is used for mail
/// that is sent later.
type AmpStore = FileStore<AmpFormat>;

/// Opens the mailbox of the agent that `spec` names. It creates nothing.
///
/// # Errors
/// If `spec.dir` has no agents, or I am none of them or several.
fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(AmpStore::open(spec)?))
}

impl AmpStore {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let home = AmpHome::open(spec)?;
        let me = home.refresh_roster()?.me.address.clone();
        let about = StoreProperties {
            threads: ThreadScheme::Links,
            offers_keys: true,
            max_body: limits::BODY_BYTES as u64,
            attachment_rule: Some(send::check_attachable),
            ..StoreProperties::new(spec, me, &home.my_dir)
        };
        Self::new(about, AmpFormat::new(home))
    }
}

impl StoreKeys for AmpStore {
    fn signing_key(&self) -> Result<Option<Seed>, StoreError> {
        health::signing_key(&self.properties.dir).map(Some)
    }

    fn adopt_key(&self, _mine: &Seed) -> Result<Seed, StoreError> {
        health::signing_key(&self.properties.dir)
    }
}
