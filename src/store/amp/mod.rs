//! AMP 0.1 (Agent Messaging Protocol): a folder per agent, a JSON file per message.
//!
//! The format, as functions without I/O:
//! - [`envelope`], [`id`], [`address`], [`limits`]: what a file says.
//! - [`verify`], [`wrap`]: what a signature covers. [`scan_text`]: what to warn of.
//! - [`write`](mod@write), [`edit`], [`filename`], [`pem`]: new messages, marks, attachments, keys.
//!
//! The store on top of it:
//! - `agent`, `home`, `roster`: the agents of this host, which of them is me, and whom an address means.
//! - `boxes`, `facts`, `relate`: what its files are, and which of them are one message. `several`: those
//!   that are one message to several.
//! - `read`, `parts`: one message in full. `send`: new ones. `status`, `check`: the rest.
//! - [`registration`], `remote`: what links carry to providers elsewhere and bring from there.

pub mod address;
mod agent;
mod boxes;
mod check;
pub mod edit;
pub mod envelope;
mod facts;
pub mod filename;
mod home;
pub mod id;
pub mod limits;
mod parts;
pub mod pem;
mod read;
pub mod registration;
mod relate;
mod remote;
mod roster;
pub mod scan_text;
mod send;
mod several;
mod status;
pub mod verify;
pub mod wrap;
pub mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::engine::files::FileStore;
use super::{Store, StoreError, StoreKeys, StoreProperties, StoreSpec, ThreadScheme};
use crate::model::{PublicKey, Seed};
use boxes::AmpFormat;
use home::AmpHome;

pub use status::signing_key;

/// The mailbox of one AMP agent. My address in it is the one when it was opened; a later one is used for
/// what is sent later.
type AmpStore = FileStore<AmpFormat>;

/// Opens the mailbox of the agent that `spec` names. Nothing is made.
///
/// # Errors
/// If there are no agents at `spec.dir`, or I am none of them or several.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(AmpStore::open(spec)?))
}

impl AmpStore {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let home = AmpHome::open(spec)?;
        let me = home.refresh_roster()?.me.address.clone();
        let about = StoreProperties {
            threads: ThreadScheme::Links,
            max_body: limits::BODY_BYTES as u64,
            attachment_rule: Some(send::check_attachable),
            ..StoreProperties::new(spec, me, &home.my_dir)
        };
        Self::new(about, AmpFormat::new(home))
    }
}

impl StoreKeys for AmpStore {
    fn signing_key(&self) -> Result<Option<Seed>, StoreError> {
        status::signing_key(&self.properties.dir).map(Some)
    }

    fn adopt_key(&self, _mine: &Seed) -> Result<Seed, StoreError> {
        status::signing_key(&self.properties.dir)
    }

    fn public_key(&self, _mine: Option<PublicKey>) -> Option<PublicKey> {
        Some(status::signing_key(&self.properties.dir).ok()?.public_key())
    }
}
