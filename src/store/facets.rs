//! What some stores can and others cannot.

use std::io;
use std::path::{Path, PathBuf};

use super::{
    AddressFit, EmptyThread, Location, Notebook, PartContent, PeerReadState, PrepareContext,
    PreparedRecord, RemoteMail, Store, StoreError, Watermark,
};
use crate::model::{Draft, Message, PublicKey, Seed};

/// What a store can besides being read. What is `None`, it cannot.
#[derive(Clone, Copy, Default)]
pub struct Facets<'a> {
    /// Sends.
    pub appender: Option<&'a dyn MessageAppender>,
    /// Has something to do after an append.
    pub deliveries: Option<&'a dyn DeliveryQueue>,
    /// Keeps a key for me; else the mount's key signs.
    pub keys: Option<&'a dyn StoreKeys>,
    /// Notes on a message that I have read it.
    pub marks: Option<&'a dyn ReadMarks>,
    /// Keeps one read position for me.
    pub read_position: Option<&'a dyn ReadPosition>,
    /// Knows who else is there.
    pub agents: Option<&'a dyn PeerDirectory>,
    /// Hears which of its messages are refused.
    pub trust_listener: Option<&'a dyn TrustListener>,
    /// Takes acknowledgements.
    pub acks: Option<&'a dyn AckWriter>,
    /// Has files that come with messages.
    pub parts: Option<&'a dyn PartReader>,
    /// Has threads without messages.
    pub thread_directory: Option<&'a dyn ThreadDirectory>,
    /// Has files that are derived from messages.
    pub derived_files: Option<&'a dyn DerivedFiles>,
    /// Brings back what other programs take out of it.
    pub recovery: Option<&'a dyn LogRecovery>,
    /// Has commands for people.
    pub commands: Option<&'a dyn StoreCommands>,
    /// Has mail for other machines.
    pub remote: Option<&'a dyn RemoteMail>,
    /// Keeps texts for me.
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

    /// The facet that sends.
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

    /// See [`Outgoing::canonical`].
    pub fn canonical_address(&self, address: &str) -> String {
        self.facets().appender.map_or_else(|| address.to_owned(), |o| o.canonical_address(address))
    }

    /// See [`Outgoing::fits`].
    pub fn address_fit(&self, address: &str) -> AddressFit {
        self.facets().appender.map_or(AddressFit::No, |o| o.address_fit(address))
    }

    /// See [`Outgoing::registered`].
    pub fn is_registered(&self, address: &str) -> bool {
        self.facets().appender.is_some_and(|o| o.is_registered(address))
    }

    /// The public half of the key that signs here, see [`Keys::public_key`].
    pub fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        self.facets().keys.map_or(mine, |keys| keys.public_key(mine))
    }
}

/// Sends messages.
pub trait MessageAppender {
    /// An address as messages of this store carry it, for comparing.
    fn canonical_address(&self, address: &str) -> String {
        address.to_owned()
    }

    /// How well a recipient's name fits this store.
    fn address_fit(&self, address: &str) -> AddressFit;

    /// Whether this address is registered in the store, beyond having written or been written to.
    fn is_registered(&self, address: &str) -> bool;

    /// Tells of an id that no message here has whether one that is still to come may have it: programs of this
    /// format make such ids, and messages carry those of what they answer.
    fn may_be_id(&self, _id: &str) -> bool {
        false
    }

    /// Whether a message, whose body is `sent`, is what this text of a draft becomes, though it reads
    /// otherwise: then a draft with the same idempotency key is a retry.
    fn is_retry_of(&self, _sent: &str, _draft: &str) -> bool {
        false
    }

    /// What a prepared message is shown as while it is not in the store: as it will be shown there. `None`
    /// where that cannot be told.
    fn preview_message(&self, _message: &PreparedRecord) -> Option<Message> {
        None
    }

    /// Turns a draft into records for its recipients (one each, or one for all, as the format has
    /// it), without writing anything.
    ///
    /// # Errors
    /// Whatever breaks a rule of the format.
    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError>;

    /// Whether an append of this many bytes could succeed now, as far as can be told without trying:
    /// so that the writer hears of a full disk, who is gone when the append happens.
    ///
    /// # Errors
    /// What the append would give.
    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError>;

    /// Appends a prepared message; when this returns every reader sees it.
    ///
    /// # Errors
    /// [`StoreError::Busy`], soon, if somebody else keeps the thread locked: this one is tried again
    /// in a moment, and messages of other threads must not wait for it. Else as the system gave it.
    /// Nothing is half written as far as readers are concerned.
    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError>;

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// As the system gave it; then nobody knows what of it is.
    fn sync_appends(&self) -> Result<(), StoreError>;
}

/// Does what waits and writes.
pub trait DeliveryQueue {
    /// Delivers what was appended and could not be delivered, brings derived files up to date. Whether
    /// anything was done. Asked after every change, and at the start; not where nothing may be written.
    ///
    /// # Errors
    /// As the system gave it; the rest has been tried.
    fn deliver_waiting(&self) -> Result<bool, StoreError>;

    /// Whether the last [`Deliveries::deliver`] stopped in between, so that whoever asked can do
    /// something else first.
    fn has_more(&self) -> bool {
        false
    }

    /// Folders besides the watched ones in which a killed msgfs may have left temporary files.
    fn folders_to_sweep(&self) -> Vec<PathBuf>;
}

/// Keeps a key of its own for me.
pub trait StoreKeys {
    /// The key that signs what I send here; `None` if there is none and it takes the mount's.
    ///
    /// # Errors
    /// [`StoreError::NoKey`] if there is one that cannot be used, or none and it takes no other.
    fn signing_key(&self) -> Result<Option<Seed>, StoreError>;

    /// Puts the mount's key there, where there is none and none ever signed; answers with the one that
    /// signs from now on.
    ///
    /// # Errors
    /// [`StoreError::NoKey`] if it cannot be put there.
    fn adopt_key(&self, mine: &Seed) -> Result<Seed, StoreError>;

    /// The public half of that key, as far as it can be told without writing anything; `mine` is
    /// the public half of the mount's key.
    fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey>;
}

/// Has a place for my read marks on the messages themselves.
pub trait ReadMarks {
    /// Notes on the message itself that I have read it, or not; `true` if the store now says so.
    ///
    /// # Errors
    /// As the system gave it, [`StoreError::Moved`].
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError>;

    /// Returns true if a message is told to be read before it counts as read: others take what was not told.
    fn should_write_first(&self) -> bool {
        false
    }
}

/// Keeps one read position for me.
pub trait ReadPosition {
    /// The position, if somebody set it.
    fn watermark(&self) -> Option<Watermark>;

    /// Moves it forward, never back, and answers with what was written; `None` if it was left alone.
    ///
    /// # Errors
    /// As the system gave it; a read-only store is not an error worth more than a warning.
    fn advance_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError>;
}

/// Knows who has a place in the store, and how far others have read. Nothing is opened that I may not read.
pub trait PeerDirectory {
    /// The addresses of those who have a place of their own, as messages carry them; who has only written
    /// or been written to need not be among them.
    fn list_peers(&self) -> Vec<String>;

    /// How much each of these others has not read yet, where the store tells.
    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>>;
}

/// Hears which of its messages trust refuses, because something is derived from those that count.
pub trait TrustListener {
    /// Notes what was judged of these messages, and whether each is refused. Called when they were reported
    /// and whenever the judgement changes, while the tables of the index are still locked: whoever sees a
    /// message there finds that it was heard of here.
    fn note_judgements(&self, judged: &[(Location, bool)]);

    /// Draws the consequences of another judgement of a message that no scan has reported. Called with no
    /// lock held; the end of a scan does the same for what it reported.
    fn apply_judgement(&self, at: &Location);
}

/// Takes acknowledgements.
pub trait AckWriter {
    /// Acknowledges the message at a location. Once is enough; again changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it asks for no acknowledgement from me, else as the system gave it.
    fn acknowledge_message(&self, at: &Location) -> Result<(), StoreError>;
}

/// Has files that come with messages.
pub trait PartReader {
    /// Opens a file that comes with the message at a location, by the name under which
    /// [`Store::read`](super::Store::read) lists it. One that is withheld is not found.
    ///
    /// # Errors
    /// `NotFound` as an I/O error if there is none of this name, else as the system gave it.
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError>;
}

/// Has threads without messages.
pub trait ThreadDirectory {
    /// Those, by id.
    fn empty_threads(&self) -> Vec<EmptyThread>;
}

/// Has files that are derived from messages.
pub trait DerivedFiles {
    /// Makes anew those that may be wrong; a line for each thing made.
    ///
    /// # Errors
    /// As the system gave it.
    fn repair_files(&self) -> Result<Vec<String>, StoreError>;
}

/// Brings back what other programs take out of the store: sync programs put another machine's version of a
/// file in the place of mine.
pub trait LogRecovery {
    /// Notes that these messages, which are in the store, were appended by an earlier process.
    ///
    /// # Errors
    /// As the system gave it.
    fn note_appended(&self, messages: &[&PreparedRecord]) -> Result<(), StoreError>;

    /// Brings to disk what [`Outgoing::append`] keeps besides.
    ///
    /// # Errors
    /// As the system gave it.
    fn sync_backup(&self) -> Result<(), StoreError>;

    /// Has the next [`Recovery::recover`] look at everything.
    fn suspect_loss(&self);

    /// Returns true if [`Recovery::recover`] has something to look at. Costs little.
    fn is_recovery_due(&self) -> bool;

    /// Appends again what was taken out, and what only a copy has that a sync program put aside, if `mine` has
    /// signed it. Whether anything was appended.
    ///
    /// # Errors
    /// As the system gave it.
    fn recover_lines(&self, mine: Option<&PublicKey>) -> Result<bool, StoreError>;

    /// Returns the incidents of the last days, a line each, as it is noted in the store's state folder.
    fn incidents(&self, state: &Path) -> Vec<String>;
}

/// Has commands for people.
pub trait StoreCommands {
    /// `msgfs <kind> WORD…`; answers with what to print.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a command it does not know, else whatever stands in the way.
    fn run_command(&self, words: &[String]) -> Result<String, StoreError>;
}
