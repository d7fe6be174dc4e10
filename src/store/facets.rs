//! The facets: traits that some stores have and others do not.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::{
    AddressFit, EmptyThread, Location, Notebook, PartContent, PeerReadState, PrepareContext,
    PreparedRecord, Receipt, RemoteMail, SentMessage, Store, StoreError, Watermark,
};
use crate::model::{DeliveryState, Draft, Message, PublicKey, Seed, Timestamp};

/// The facets of a store. A facet that is `None` is something that it cannot do. A facet has default methods for what
/// only some of its stores do.
#[derive(Clone, Copy, Default)]
pub struct Facets<'a> {
    /// The facet of a store that sends.
    pub appender: Option<&'a dyn MessageAppender>,
    /// The facet of a store with work to do after an append.
    pub deliveries: Option<&'a dyn DeliveryQueue>,
    /// The facet of a store that keeps a key for me. Else the mount's key signs.
    pub keys: Option<&'a dyn StoreKeys>,
    /// The facet of a store that keeps marks of mine.
    pub marks: Option<&'a dyn StoreMarks>,
    /// The facet of a store that knows agents or threads besides those of its messages.
    pub directory: Option<&'a dyn StoreDirectory>,
    /// The facet of a store with files that come with messages.
    pub parts: Option<&'a dyn PartReader>,
    /// The facet of a store that is repaired or administered.
    pub upkeep: Option<&'a dyn StoreUpkeep>,
    /// The facet of a store with mail for other machines.
    pub remote: Option<&'a dyn RemoteMail>,
    /// The facet of a store that keeps texts for me.
    pub notebook: Option<&'a dyn Notebook>,
}

impl dyn Store + '_ {
    /// Fails if the store's folder was there and is gone.
    ///
    /// # Errors
    /// `NotFound`, with what to do.
    pub fn require_folder(&self) -> Result<(), StoreError> {
        let Some(gone) = self.describe_missing_folder() else { return Ok(()) };
        let why = format!(
            "{gone}; nothing is written meanwhile: move it back, or make an empty folder there to \
             begin anew"
        );
        Err(StoreError::io(self.dir(), io::Error::new(io::ErrorKind::NotFound, why)))
    }

    /// Returns the facet that sends.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] for a store that takes nothing.
    pub fn require_appender(&self) -> Result<&dyn MessageAppender, StoreError> {
        self.facets().appender.ok_or_else(|| {
            StoreError::NotPermitted(format!(
                "nothing can be sent in a store of kind {}",
                self.kind()
            ))
        })
    }

    /// Returns an address in the spelling of this store; see [`MessageAppender::canonical_address`].
    pub fn canonical_address(&self, address: &str) -> String {
        self.facets().appender.map_or_else(|| address.to_owned(), |o| o.canonical_address(address))
    }

    /// Returns true if an address is one of mine, in any spelling of this store.
    pub fn is_my_address(&self, address: &str) -> bool {
        let address = self.canonical_address(address);
        self.properties().my_addresses().any(|mine| self.canonical_address(mine) == address)
    }

    /// Returns how well a recipient's name fits this store; see [`MessageAppender::address_fit`].
    pub fn address_fit(&self, address: &str) -> AddressFit {
        self.facets().appender.map_or(AddressFit::No, |o| o.address_fit(address))
    }

    /// Returns true if an address is registered; see [`MessageAppender::is_registered`].
    pub fn is_registered(&self, address: &str) -> bool {
        self.facets().appender.is_some_and(|o| o.is_registered(address))
    }

    /// Returns the public half of the key that signs here, as far as it is known without writing anything. `mine` is
    /// the public half of the mount's key.
    pub fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        let Some(keys) = self.facets().keys else { return mine };
        keys.signing_key().ok()?.map_or(mine, |seed| Some(seed.public_key()))
    }
}

/// A store that sends messages.
pub trait MessageAppender {
    /// Returns an address in the spelling of this store's messages, for comparing.
    fn canonical_address(&self, address: &str) -> String {
        address.to_owned()
    }

    /// Returns how well a recipient's name fits this store.
    fn address_fit(&self, address: &str) -> AddressFit;

    /// Returns true if this address is registered in the store. It is not enough that it wrote or received messages.
    fn is_registered(&self, address: &str) -> bool;

    /// Returns the reason why this store carries nothing to an address of its form, if it knows one.
    fn explain_no_route(&self, _address: &str) -> Option<StoreError> {
        None
    }

    /// Returns true if a future message may have this id, which no message here has. Programs of this format make such
    /// ids, and messages carry the ids of those that they answer.
    fn may_be_id(&self, _id: &str) -> bool {
        false
    }

    /// Returns true if a message with the body `sent` is made from this text of a draft, though it reads otherwise. A
    /// draft with the same idempotency key is then a retry.
    fn is_retry_of(&self, _sent: &str, _draft: &str) -> bool {
        false
    }

    /// Returns a prepared message as it will be shown when it is in the store. `None` where that is unknown.
    fn preview_message(&self, _message: &PreparedRecord) -> Option<Message> {
        None
    }

    /// Fails if the header of a draft has a line that the format has no place for, or a value that it does not know.
    /// It is asked while a program still writes the text.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for the first such line.
    fn check_header(&self, _draft: &Draft) -> Result<(), StoreError> {
        Ok(())
    }

    /// Turns a draft into records for its recipients, without writing anything. The format has one record for each or
    /// one for all.
    ///
    /// # Errors
    /// If the draft breaks a rule of the format.
    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError>;

    /// Fails if an append of this many bytes would fail now, as far as is known without trying. So the writer learns
    /// of a full disk before it is gone.
    ///
    /// # Errors
    /// The errors that the append would give.
    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError>;

    /// Appends a prepared message. Every reader sees it when this returns.
    ///
    /// # Errors
    /// [`StoreError::Busy`], soon, if somebody else keeps the thread locked. The caller tries this message again in a
    /// moment, and messages of other threads must not wait for it. Else as the system gave it. Readers never see a
    /// part of a message.
    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError>;

    /// Prepares for the end of the process, in stores that hand messages to another program. Each
    /// [`Self::append_record`] then waits until the deadline for a run of it that is under way, and begins no other
    /// one. Returns true if there is a run whose result a repeated append must take.
    fn end_runs(&self, _deadline: Instant) -> bool {
        false
    }

    /// Waits until everything appended is on disk. It does nothing where each append is on disk when it returns.
    ///
    /// # Errors
    /// As the system gave it. Then it is unknown which records are on disk.
    fn sync_appends(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A store that delivers and writes what waits in it.
pub trait DeliveryQueue {
    /// Delivers appended messages that could not be delivered, and brings derived files up to date. Returns true if
    /// anything was done. It is called after every change and at the start, but not where nothing may be written.
    ///
    /// # Errors
    /// As the system gave it. The rest has been tried.
    fn deliver_waiting(&self) -> Result<bool, StoreError>;

    /// Returns true if the last [`DeliveryQueue::deliver_waiting`] stopped in between, so that the caller can do
    /// something else first.
    fn has_more(&self) -> bool {
        false
    }

    /// Returns folders besides the watched ones in which a killed msgfs may have left temporary files.
    fn folders_to_sweep(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// A store that keeps a key of its own for me.
pub trait StoreKeys {
    /// Returns the key that signs my messages here; `None` if there is none and the store takes the mount's key.
    ///
    /// # Errors
    /// [`StoreError::NoKey`] if the key cannot be used, or if there is none and the store takes no other.
    fn signing_key(&self) -> Result<Option<Seed>, StoreError>;

    /// Puts the mount's key into a store that has no key, and in which none ever signed. Returns the key that signs
    /// from now on.
    ///
    /// # Errors
    /// [`StoreError::NoKey`] if it cannot be put there.
    fn adopt_key(&self, mine: &Seed) -> Result<Seed, StoreError>;
}

/// A store that keeps marks of mine: on the messages themselves, as one read position, or as acknowledgements.
pub trait StoreMarks {
    /// Notes on the message itself that I have read it, or not. Returns true if the store now has this mark.
    ///
    /// # Errors
    /// As the system gave it, [`StoreError::Moved`].
    fn write_mark(&self, _at: &Location, _read: bool) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns true if the store gets a read mark before the message counts as read: other programs take messages
    /// without the mark.
    fn should_write_first(&self) -> bool {
        false
    }

    /// Returns true if the store keeps one read position for me.
    fn keeps_position(&self) -> bool {
        false
    }

    /// Returns the position, if somebody set it.
    fn watermark(&self) -> Option<Arc<Watermark>> {
        None
    }

    /// Returns false if a message before the position may have come after the position was written. A sender whose clock
    /// is ahead moves the position past the messages that others write later.
    fn was_there_for_position(&self, _at: &Location, _time: Timestamp) -> bool {
        true
    }

    /// Moves the position forward, never back, and lists the ids of `mark` in it. The ids in `retired` leave the list.
    /// Returns the position that was written; `None` if it was left alone.
    ///
    /// # Errors
    /// As the system gave it. A read-only store deserves no more than a warning.
    fn advance_watermark(
        &self,
        _mark: &Watermark,
        _retired: &HashSet<String>,
    ) -> Result<Option<Watermark>, StoreError> {
        Ok(None)
    }

    /// Acknowledges the message at a location. A second acknowledgement changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it asks for no acknowledgement from me, else as the system gave it.
    fn acknowledge_message(&self, _at: &Location) -> Result<(), StoreError> {
        Err(StoreError::Invalid("messages of this store ask for no acknowledgement".into()))
    }
}

/// A store that knows agents and threads besides those of its messages. It opens no file that I may not read.
pub trait StoreDirectory {
    /// Returns the addresses of agents with a mailbox of their own, as messages carry them. Agents that only wrote or
    /// received messages need not be among them.
    fn list_peers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how much each of these agents has not read yet, where the store shows it.
    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        vec![None; addresses.len()]
    }

    /// Returns the states that this store can ever prove for a message to this recipient. A store that cannot tell
    /// proves no more than that it has the message.
    fn provable_states(&self, _to: &str) -> Vec<DeliveryState> {
        vec![DeliveryState::Waiting, DeliveryState::Stored]
    }

    /// Returns what the store proves now of each of these messages of mine. Each file with proofs is read once. A file
    /// that I cannot read proves nothing.
    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        sent.iter().map(|_| Receipt::default()).collect()
    }

    /// Returns the threads without messages, by id.
    fn empty_threads(&self) -> Vec<EmptyThread> {
        Vec::new()
    }
}

/// A store with files that come with messages.
pub trait PartReader {
    /// Opens a file that comes with the message at a location, by its name in
    /// [`MessageReader::read_record`](super::MessageReader::read_record). A withheld file is not found.
    ///
    /// # Errors
    /// `NotFound` as an I/O error if there is none of this name, else as the system gave it.
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError>;
}

/// A store that is repaired or administered: its files are derived from messages, other programs take lines out of it,
/// or people give it commands.
pub trait StoreUpkeep {
    /// Writes derived files anew that may be wrong. Returns a line for each of them.
    ///
    /// # Errors
    /// As the system gave it.
    fn repair_files(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// Runs `msgfs <kind> WORD…` and returns the text to print.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an unknown command, else whatever stands in the way.
    fn run_command(&self, _words: &[String]) -> Result<String, StoreError> {
        Err(StoreError::Invalid("stores of this kind have no commands".into()))
    }

    /// Returns true if the store derives something from those of its messages that trust accepts. Scans then tell it
    /// the decisions ([`ScanSink::report_batch`](super::ScanSink::report_batch)).
    fn depends_on_trust(&self) -> bool {
        false
    }

    /// Applies a changed decision on a message that no scan has reported: true if it is refused now. No scan is under
    /// way, and the tables of the index are not locked.
    fn apply_decision(&self, _at: &Location, _is_refused: bool) {}

    /// Notes that these messages, which are in the store, were appended by an earlier process.
    ///
    /// # Errors
    /// As the system gave it.
    fn note_appended(&self, _messages: &[&PreparedRecord]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Brings the backup of [`MessageAppender::append_record`] to disk.
    ///
    /// # Errors
    /// As the system gave it.
    fn sync_backup(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Has the next [`StoreUpkeep::recover_lines`] examine everything.
    fn suspect_loss(&self) {}

    /// Returns true if [`StoreUpkeep::recover_lines`] has something to examine. Costs little.
    fn is_recovery_due(&self) -> bool {
        false
    }

    /// Appends lines again that other programs took out: sync programs put another machine's version of a file in the
    /// place of mine. It also appends lines that only a conflict copy has, if `mine` has signed them. Returns true if
    /// anything was appended.
    ///
    /// # Errors
    /// As the system gave it.
    fn recover_lines(&self, _mine: Option<&PublicKey>) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns the incidents of the last days, one line each, from the notes in the store's state folder.
    fn incidents(&self, _state: &Path) -> Vec<String> {
        Vec::new()
    }
}
