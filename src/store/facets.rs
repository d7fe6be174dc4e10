//! The facets: traits that some stores have and others do not.

use std::io;
use std::path::{Path, PathBuf};

use super::{
    AddressFit, EmptyThread, Location, Notebook, PartContent, PeerReadState, PrepareContext,
    PreparedRecord, RemoteMail, Store, StoreError, Watermark,
};
use crate::model::{Draft, Message, PublicKey, Seed};

/// The facets of a store. A facet that is `None` is something that it cannot do.
#[derive(Clone, Copy, Default)]
pub struct Facets<'a> {
    /// The facet of a store that sends.
    pub appender: Option<&'a dyn MessageAppender>,
    /// The facet of a store with work to do after an append.
    pub deliveries: Option<&'a dyn DeliveryQueue>,
    /// The facet of a store that keeps a key for me. Else the mount's key signs.
    pub keys: Option<&'a dyn StoreKeys>,
    /// The facet of a store that keeps read marks on messages.
    pub marks: Option<&'a dyn ReadMarks>,
    /// The facet of a store that keeps one read position for me.
    pub read_position: Option<&'a dyn ReadPosition>,
    /// The facet of a store that knows other agents.
    pub agents: Option<&'a dyn PeerDirectory>,
    /// The facet of a store that learns which of its messages are refused.
    pub trust_listener: Option<&'a dyn TrustListener>,
    /// The facet of a store that takes acknowledgements.
    pub acks: Option<&'a dyn AckWriter>,
    /// The facet of a store with files that come with messages.
    pub parts: Option<&'a dyn PartReader>,
    /// The facet of a store with threads without messages.
    pub thread_directory: Option<&'a dyn ThreadDirectory>,
    /// The facet of a store with files that are derived from messages.
    pub derived_files: Option<&'a dyn DerivedFiles>,
    /// The facet of a store that restores lines that other programs take out of it.
    pub recovery: Option<&'a dyn LogRecovery>,
    /// The facet of a store with commands for people.
    pub commands: Option<&'a dyn StoreCommands>,
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

    /// Returns how well a recipient's name fits this store; see [`MessageAppender::address_fit`].
    pub fn address_fit(&self, address: &str) -> AddressFit {
        self.facets().appender.map_or(AddressFit::No, |o| o.address_fit(address))
    }

    /// Returns true if an address is registered; see [`MessageAppender::is_registered`].
    pub fn is_registered(&self, address: &str) -> bool {
        self.facets().appender.is_some_and(|o| o.is_registered(address))
    }

    /// Returns the public half of the key that signs here; see [`StoreKeys::public_key`].
    pub fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        self.facets().keys.map_or(mine, |keys| keys.public_key(mine))
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

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// As the system gave it. Then it is unknown which records are on disk.
    fn sync_appends(&self) -> Result<(), StoreError>;
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
    fn folders_to_sweep(&self) -> Vec<PathBuf>;
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

    /// Returns the public half of that key, as far as it is known without writing anything. `mine` is the public half
    /// of the mount's key.
    fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey>;
}

/// A store that keeps my read marks on the messages themselves.
pub trait ReadMarks {
    /// Notes on the message itself that I have read it, or not. Returns true if the store now has this mark.
    ///
    /// # Errors
    /// As the system gave it, [`StoreError::Moved`].
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError>;

    /// Returns true if the store gets a read mark before the message counts as read: other programs take messages
    /// without the mark.
    fn should_write_first(&self) -> bool {
        false
    }
}

/// A store that keeps one read position for me.
pub trait ReadPosition {
    /// Returns the position, if somebody set it.
    fn watermark(&self) -> Option<Watermark>;

    /// Moves the position forward, never back. Returns the position that was written; `None` if it was left alone.
    ///
    /// # Errors
    /// As the system gave it. A read-only store deserves no more than a warning.
    fn advance_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError>;
}

/// A store that knows which agents have a mailbox in it, and how far they have read. It opens no file that I may not
/// read.
pub trait PeerDirectory {
    /// Returns the addresses of agents with a mailbox of their own, as messages carry them. Agents that only wrote or
    /// received messages need not be among them.
    fn list_peers(&self) -> Vec<String>;

    /// Returns how much each of these agents has not read yet, where the store shows it.
    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>>;
}

/// A store that learns which of its messages are refused, because it derives something from the others.
pub trait TrustListener {
    /// Notes for each of these messages whether it is refused. The index calls this for new reports and whenever a
    /// judgement changes, while its tables are still locked. So a thread that sees a message in the index finds it
    /// noted here.
    fn note_judgements(&self, judged: &[(Location, bool)]);

    /// Applies a changed judgement of a message that no scan has reported. The caller holds no lock. The end of a scan
    /// does the same for reported messages.
    fn apply_judgement(&self, at: &Location);
}

/// A store that takes acknowledgements.
pub trait AckWriter {
    /// Acknowledges the message at a location. A second acknowledgement changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it asks for no acknowledgement from me, else as the system gave it.
    fn acknowledge_message(&self, at: &Location) -> Result<(), StoreError>;
}

/// A store with files that come with messages.
pub trait PartReader {
    /// Opens a file that comes with the message at a location, by its name in
    /// [`Store::read_record`](super::Store::read_record). A withheld file is not found.
    ///
    /// # Errors
    /// `NotFound` as an I/O error if there is none of this name, else as the system gave it.
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError>;
}

/// A store with threads without messages.
pub trait ThreadDirectory {
    /// Returns those threads, by id.
    fn empty_threads(&self) -> Vec<EmptyThread>;
}

/// A store with files that are derived from messages.
pub trait DerivedFiles {
    /// Writes those files anew that may be wrong. Returns a line for each of them.
    ///
    /// # Errors
    /// As the system gave it.
    fn repair_files(&self) -> Result<Vec<String>, StoreError>;
}

/// A store that restores lines that other programs take out of it. Sync programs put another machine's version of a
/// file in the place of mine.
pub trait LogRecovery {
    /// Notes that these messages, which are in the store, were appended by an earlier process.
    ///
    /// # Errors
    /// As the system gave it.
    fn note_appended(&self, messages: &[&PreparedRecord]) -> Result<(), StoreError>;

    /// Brings the backup of [`MessageAppender::append_record`] to disk.
    ///
    /// # Errors
    /// As the system gave it.
    fn sync_backup(&self) -> Result<(), StoreError>;

    /// Has the next [`LogRecovery::recover_lines`] examine everything.
    fn suspect_loss(&self);

    /// Returns true if [`LogRecovery::recover_lines`] has something to examine. Costs little.
    fn is_recovery_due(&self) -> bool;

    /// Appends lines again that were taken out. It also appends lines that only a conflict copy of a sync program has,
    /// if `mine` has signed them. Returns true if anything was appended.
    ///
    /// # Errors
    /// As the system gave it.
    fn recover_lines(&self, mine: Option<&PublicKey>) -> Result<bool, StoreError>;

    /// Returns the incidents of the last days, one line each, from the notes in the store's state folder.
    fn incidents(&self, state: &Path) -> Vec<String>;
}

/// A store with commands for people.
pub trait StoreCommands {
    /// Runs `msgfs <kind> WORD…` and returns the text to print.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an unknown command, else whatever stands in the way.
    fn run_command(&self, words: &[String]) -> Result<String, StoreError>;
}
