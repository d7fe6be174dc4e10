//! AMQ (Agent Message Queue): a Maildir per agent below one root, with a header of JSON on each message
//! (docs/formats/amq.md).
//!
//! - [`message`]: one file. [`mod@format`]: a root as files of the engine.
//! - `send`: new messages. `claim`, `receipts`: receipts for read messages, and their proofs. `go_time`:
//!   times as Go prints them. `check`: `msgfs check`.

mod check;
mod claim;
pub mod format;
mod go_time;
pub mod message;
mod receipts;
mod send;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::engine::files::{FileRow, FileStore, OpenFolder, StoreFile};
use super::kind::KindRow;
use super::{
    Location, PartContent, PartReader, PeerReadState, PeerUnread, Receipt, SentMessage, Store,
    StoreDirectory, StoreError, StoreProperties, StoreSpec, digest,
};
use crate::model::locks::{LockLevel, Mutex};
use crate::model::{DeliveryState, sanitize_line};
use format::{AmqFormat, AmqTableFacts};
use message::{AmqMessage, FILE_BYTES};

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    dir_variables: &["AM_ROOT"],
    is_store: Some(|dir, _| dir.join("agents").is_dir()),
    has_priorities: true,
    ..KindRow::new(
        "amq",
        "an AMQ handle takes lower-case letters, digits, '_' and '-', and has a mailbox in the queue",
        EXAMPLE,
        open,
    )
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "amq"
# dir = "~/src/project/.agent-mail/collab"    # the folder of agents/
# me = "bob"                         # a handle; default: my name
"#;

/// The folders that make a mailbox.
const LEAVES: &str = "inbox/tmp inbox/new inbox/cur outbox/sent receipts dlq/tmp dlq/new dlq/cur";

/// A queue, read and written as one agent.
type AmqStore = FileStore<AmqFormat>;

/// Opens a queue root. It creates nothing.
///
/// # Errors
/// If my name cannot be a handle.
fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(AmqStore::open(spec)?))
}

impl AmqStore {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let me = spec.own_address.clone().unwrap_or_else(|| spec.me.to_ascii_lowercase());
        if !message::is_handle(&me) {
            let (me, grammar) = (sanitize_line(&me), KIND.address_grammar);
            let why = format!("{me:?} is not a handle: {grammar}; set me in its [[store]]");
            return Err(StoreError::Invalid(why));
        }
        let about = StoreProperties {
            // The file also has the header.
            max_body: (FILE_BYTES - (64 << 10)) as u64,
            ..StoreProperties::new(spec, &me, &spec.dir)
        };
        Self::new(about, AmqFormat { me, claim_lock: Mutex::with_level(LockLevel::Store, ()) })
    }

    /// Reads the message in a file, if the file has not changed.
    fn read_message_in(&self, file: &StoreFile<AmqTableFacts>) -> Result<AmqMessage, StoreError> {
        let (_, bytes) = self.read_file_bytes(file, FILE_BYTES)?;
        let known =
            file.message_facts().is_none_or(|kept| kept.content == digest::secure_hash64(&bytes));
        message::parse(&bytes).ok().filter(|_| known).ok_or(StoreError::Moved)
    }

    /// Opens a folder of a mailbox.
    fn open_mailbox_folder(
        &self,
        agent: &str,
        leaf: &str,
    ) -> Result<OpenFolder<'_, AmqFormat>, StoreError> {
        self.open_folder(&format!("agents/{agent}/{leaf}"))
    }

    /// Returns the missing folders of my mailbox.
    fn missing_folders(&self) -> impl Iterator<Item = String> {
        let missing =
            LEAVES.split(' ').filter(|leaf| self.open_mailbox_folder(self.me(), leaf).is_err());
        missing.map(|leaf| format!("agents/{}/{leaf}", self.me()))
    }
}

impl StoreDirectory for AmqStore {
    fn list_peers(&self) -> Vec<String> {
        let table = self.table.read();
        let agent = |path: &str| {
            path.strip_prefix("agents/")?.strip_suffix("/inbox/new").map(str::to_owned)
        };
        table.listed_folders().filter_map(|(_, folder)| agent(&folder.path)).collect()
    }

    /// Returns how much each agent has not read: the messages in its `new/`.
    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        let table = self.table.read();
        let told = |address: &&str| {
            let path = format!("agents/{address}/inbox/new");
            let new = table.find_folder(&path)?;
            table.folders().get(new as usize).filter(|folder| folder.is_listed)?;
            let is_message = |n: &u32| table.row(*n).is_some_and(FileRow::is_message);
            let behind = PeerUnread::Count(table.files_in(new).filter(is_message).count() as u64);
            let since = std::fs::symlink_metadata(self.properties.dir.join(path)).ok();
            Some(PeerReadState {
                unread: behind,
                since: since.and_then(|m| m.modified().ok()).map(Into::into),
            })
        };
        addresses.iter().map(told).collect()
    }

    fn provable_states(&self, _: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Stored, Told, Waiting};
        vec![Waiting, Stored, Delivered, Told, Read, Answered]
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        sent.iter().map(|one| self.find_message_receipt(one)).collect()
    }
}

impl PartReader for AmqStore {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let read = self.read_message_in(&self.find_file(at.source)?)?;
        let part = read.parts.into_iter().find(|(part, _)| *part == name);
        PartContent::from_bytes(name, part.map(|(_, text)| text.into_bytes()))
    }
}
