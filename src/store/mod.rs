//! The [`Store`] trait: what msgfs needs of a place on disk that holds messages.
//!
//! One folder below this module implements one format. A store finds its messages and reports
//! them to a [`Sink`], reads one message in full by its [`Location`], and appends. It knows its
//! format and its folder; it does not know who reads it: no view, no mount, no trust.
//!
//! # Adding a kind
//!
//! 1. A folder `src/store/<kind>/` with a type that implements [`Store`].
//! 2. A variant of [`Kind`] and its line in [`Kind::ALL`].
//! 3. A line in the table of [`open`](fn@open), and one for its default place in `config::paths`.
//!
//! # What an implementation must keep
//!
//! - **Never write what another writer owns**, never rewrite history, never follow a symlink inside
//!   the store, never open anything but regular files (`O_NOFOLLOW | O_NONBLOCK`, then `fstat`).
//! - **Foreign bytes never panic** and never hide other messages: what cannot be read is reported
//!   with [`Sink::batch`] and the scan goes on.
//! - **A location stays valid** until the scan that reports its source with [`Sink::begin_rescan`].
//!   [`Store::read`] checks what it finds there, because files change between scans.
//! - **The order of reports is the store's own order** (for logs: line order); the digits that tell
//!   messages of one second apart follow from it.

pub mod agentazall;
pub mod amp;
pub mod fs;
pub mod json;
pub mod pytext;
pub mod samp;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::model::{Attached, Attachment, Claim, Draft, Message, PublicKey, Seed, Timestamp};

/// The formats msgfs speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// SAMP v1: one append-only JSON-lines log per writer in a shared folder.
    Samp,
    /// AgentAZAll: a mailbox of text files per agent, in folders by day.
    AgentAzall,
    /// AMP 0.1: a mailbox of JSON files per agent.
    Amp,
}

impl Kind {
    /// Every kind, in the order in which they are listed to people.
    pub const ALL: &[Self] = &[Self::Samp, Self::AgentAzall, Self::Amp];

    /// The word used in configuration, paths and header lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Samp => "samp",
            Self::AgentAzall => "agentazall",
            Self::Amp => "amp",
        }
    }

    /// What its addresses look like, as a phrase for people.
    pub const fn grammar(self) -> &'static str {
        match self {
            Self::Samp => {
                "a SAMP alias takes letters, digits, '.', '_' and '-', begins with a letter or \
                 digit and has at most 64 characters"
            }
            Self::AgentAzall => {
                "an AgentAZAll address is written NAME@HOST, or is the name of a mailbox beside mine"
            }
            Self::Amp => {
                "an AMP address is written NAME@TENANT.PROVIDER, or is the NAME of a local agent"
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|k| k.as_str() == s).ok_or_else(|| s.to_owned())
    }
}

/// Where a message's bytes are: a byte range of one of the store's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, by the number the store gave it (see [`Store::source_path`]). At most 2^24 - 1.
    pub source: u32,
    /// First byte of the record.
    pub offset: u64,
    /// Length of the record in bytes, without a line terminator.
    pub len: u32,
}

/// What an index keeps of a message; borrowed from the scan's buffer.
#[derive(Clone, Debug)]
pub struct Found<'a> {
    /// Where it is.
    pub at: Location,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Its writer, already unescaped; empty if it names none.
    pub from: Cow<'a, str>,
    /// Its recipients, already unescaped, joined by `", "` if there are several.
    pub to: Cow<'a, str>,
    /// Its thread id, verbatim. Where the format has none ([`Store::links`]), the id of the thread
    /// it begins unless its reply link leads to another.
    pub thread: Cow<'a, str>,
    /// Where the format has no thread ids, the id of the message it answers. The link counts only
    /// if the signature is valid: a thread is never joined on somebody else's word.
    pub answers: Option<Cow<'a, str>>,
    /// Its id, unique for the writer (see [`TWIN`](crate::model::TWIN)).
    pub id: Cow<'a, str>,
    /// When it was written.
    pub time: Timestamp,
    /// The time in its name, where that is another: the order of the store is not that of the times.
    pub name_time: Option<Timestamp>,
    /// It is addressed to me.
    pub to_me: bool,
    /// I wrote it.
    pub from_me: bool,
    /// The store knows that whatever it reports under this key is this very message (the id is a
    /// hash of the content, or the store compared the texts).
    pub id_verified: bool,
    /// The store's own read mark, where it has one on the message itself.
    pub read: Option<bool>,
    /// Files come with it ([`Store::open_part`]).
    pub parts: bool,
    /// There is a note about it ([`Record::note`]).
    pub noted: bool,
    /// It carries this signature.
    pub claim: Option<Box<Claim>>,
    /// It carries this idempotency key.
    pub idempotency_key: Option<Box<str>>,
}

/// Something in the store that is not delivered, and why.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Where it is.
    pub at: Location,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// One sentence for a person.
    pub reason: String,
    /// Its time, or that of the last good record before it.
    pub time: Timestamp,
    /// The file is still being written: it may become a message.
    pub incomplete: bool,
}

/// Receives what a scan finds.
pub trait Sink {
    /// These messages and rejects, in the store's order. A message already known by its key is a
    /// duplicate (or the same one after a rescan) and only its location may be refreshed; but where a
    /// file is one message ([`Found::line`] is 0) and [`Found::id_verified`] says it is that very
    /// message, everything that is said of it now is taken over.
    fn batch(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>);

    /// Everything reported so far from these sources is about to be reported again; what is not,
    /// by the matching [`Sink::end_rescan`], is gone from the store.
    fn begin_rescan(&mut self, sources: &[u32]);

    /// Ends the rescan of these sources.
    fn end_rescan(&mut self, sources: &[u32]);

    /// The scan goes on in this source where it stopped; what was reported
    /// [incomplete](Rejected::incomplete) at its end is about to be reported again.
    fn resume(&mut self, source: u32);

    /// Bytes read so far of the bytes to read, for progress bars.
    fn progress(&mut self, done: u64, total: u64);
}

/// One message read in full.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The message.
    pub message: Message,
    /// The body to show instead if the signature is valid, where that makes a difference: the text
    /// it covers first.
    pub body_if_valid: Option<String>,
    /// The signature it carries, if any.
    pub claim: Option<Claim>,
    /// What lies in the message's folder besides its attachments: texts too long or too foreign for
    /// the body.
    pub parts: Vec<Attachment>,
    /// It asks for an acknowledgement from me that was not given yet.
    pub wants_ack: bool,
    /// What a person should know of a message of mine that is not wrong enough to be refused; shown
    /// as a file beside it.
    pub note: Option<String>,
}

/// A file that comes with a message.
#[derive(Debug)]
pub enum Part {
    /// It lies in the store.
    File(File),
    /// It is made from the message.
    Bytes(Arc<[u8]>),
}

/// Texts that the store keeps for me beside the messages: notes, memories, who I am. A folder holds
/// named texts; of each name there is one current text.
pub trait Notebook: Send + Sync {
    /// The folders, in the order in which they are listed.
    fn folders(&self) -> &'static [&'static str];

    /// The current texts of a folder, by name.
    fn list(&self, folder: &str) -> Vec<Note>;

    /// The current text.
    ///
    /// # Errors
    /// `NotFound` if there is none, else as the system gave it.
    fn read(&self, folder: &str, name: &str) -> io::Result<Vec<u8>>;

    /// Whether a text can have this name, asked before it is written.
    ///
    /// # Errors
    /// As [`Notebook::write`] for the name.
    fn check_name(&self, _folder: &str, _name: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes this the current text of the name, without touching older ones. On disk when it
    /// returns.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a name that cannot be one, else as the system gave it.
    fn write(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError>;
}

/// One text of a [`Notebook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was written.
    pub modified: Timestamp,
}

/// Something about a store that a person should mend, for `msgfs doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What is wrong, in a sentence.
    pub problem: String,
    /// The command that mends it, if one does.
    pub command: Option<String>,
    /// Nothing works until it is mended; else it is only a warning.
    pub serious: bool,
}

/// How well a recipient's name fits a store's address grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// Not an address of this store.
    No,
    /// A name that could be one among other things.
    Plain,
    /// The form that only this kind of store uses.
    Exact,
}

/// Signs on behalf of me; implemented by the identity layer.
pub trait Signer: Send + Sync {
    /// The public half of the key.
    fn public_key(&self) -> PublicKey;
    /// An Ed25519 signature over `bytes`.
    fn sign(&self, bytes: &[u8]) -> [u8; 64];
}

/// What [`Store::prepare`] needs besides the draft.
pub struct Preparing<'a> {
    /// The moment of sending.
    pub now: Timestamp,
    /// The message that is answered, if it is known.
    pub parent: Option<&'a Message>,
    /// Signs the records.
    pub signer: &'a dyn Signer,
    /// Whether I already have a message with this id, so that a second message with the same text
    /// in the same second gets another.
    pub taken: &'a dyn Fn(&str) -> bool,
}

/// One message ready to be appended, byte for byte. It survives in the spool until it is in the
/// store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Prepared {
    /// Whom it goes to.
    pub to: String,
    /// Its id in the store.
    pub id: String,
    /// The thread it belongs to.
    pub thread: String,
    /// The exact bytes the store appends (for SAMP: the line without its newline).
    pub bytes: String,
    /// The files that go along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Attached>,
}

/// Whether an append waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// `fdatasync` before the append counts as done.
    #[default]
    Fsync,
    /// The kernel decides when.
    None,
}

/// The read position of me as the store keeps it for its other readers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// Everything before this time counts as read.
    pub time: Timestamp,
    /// Ids at or after `time` that count as read, in either spelling (`id`, `from:id`).
    pub ids: std::collections::HashSet<String>,
}

impl Watermark {
    /// Whether the mark says that this message was read.
    pub fn covers(&self, time: Timestamp, from: &str, id: &str) -> bool {
        time.secs() < self.time.secs()
            || self.ids.contains(&format!("{from}:{id}"))
            || (time.secs() == self.time.secs() && self.ids.contains(id))
    }
}

/// A file or folder below `raw/<store>/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// One path component.
    pub name: String,
    /// A folder.
    pub is_dir: bool,
    /// Size in bytes (0 for folders).
    pub size: u64,
    /// Modification time on disk.
    pub modified: Timestamp,
    /// The source number, if the file is one of the sources of messages.
    pub source: Option<u32>,
}

/// One broken rule found by `msgfs check`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// Path of the file, relative to the store.
    pub file: String,
    /// Line in the file, counted from 1; 0 for the file as a whole.
    pub line: u64,
    /// A short word for programs.
    pub rule: &'static str,
    /// A sentence for people.
    pub detail: String,
}

/// Why a store refused or failed. Mapped to errno in one place, `view::error`.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The recipient or a header is not valid in this store.
    #[error("{0}")]
    Invalid(String),
    /// The message breaks a rule of the format, or the recipient refuses it.
    #[error("{0}")]
    Refused(String),
    /// Larger than the format allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nobody by this name can be reached.
    #[error("{0}")]
    Unreachable(String),
    /// What was at this location is no longer there: the file was changed by somebody else.
    #[error("the record is no longer where it was; the file was changed")]
    Moved,
    /// The key that must sign cannot be used.
    #[error("{0}")]
    NoKey(String),
    /// The store is not mine to change in this place.
    #[error("{0}")]
    NotPermitted(String),
    /// Somebody else holds a lock; the same again a moment later may work.
    #[error("{0}")]
    Busy(String),
}

impl StoreError {
    /// Wraps an I/O error with the path it happened on.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// A place on disk that holds messages. See the module for what implementations must keep.
pub trait Store: Send + Sync + fmt::Debug {
    /// The format.
    fn kind(&self) -> Kind;

    /// The name of this store in the mount (default: the kind).
    fn name(&self) -> &str;

    /// The address this store knows me by.
    fn me(&self) -> &str;

    /// The folder the store lives in.
    fn dir(&self) -> &Path;

    /// Times are whole seconds, so names count the messages of one second (contract, section 3).
    fn whole_seconds(&self) -> bool;

    /// The largest body it takes, in bytes.
    fn max_body(&self) -> u64;

    /// Whether threads are made of reply links ([`Found::answers`]) because the format has no
    /// thread ids.
    fn links(&self) -> bool {
        false
    }

    /// A path in the store changed: the next scan must look at it.
    fn note(&self, _path: &Path) {}

    /// Reports everything that is new or changed since the last scan. Unless `full`, it is enough to
    /// look at what was [noted](Store::note) and what this process wrote itself.
    ///
    /// A message may be reported again at any time with another location, thread, link or mark;
    /// what it says is then what counts.
    ///
    /// # Errors
    /// Only when the store as a whole cannot be read; trouble with single files is part of
    /// [`Store::health`].
    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError>;

    /// The scan's positions, to be kept with the index built from them.
    fn save(&self) -> Vec<u8>;

    /// Resumes from what [`Store::save`] gave. `false` if it cannot be used, in which case nothing
    /// was changed and the next scan starts over.
    fn restore(&self, saved: &[u8]) -> bool;

    /// Forgets all positions: the next scan starts over.
    fn reset(&self);

    /// Folders in which any change may mean a new message, as of the last scan.
    fn watched(&self) -> Vec<PathBuf>;

    /// Whether a change of this file name in a watched folder can matter.
    fn concerns(&self, folder: &Path, name: &std::ffi::OsStr) -> bool;

    /// What is wrong with the store right now, one line each, for `status.txt`; empty if nothing.
    fn health(&self) -> Vec<String>;

    /// What else a person should know, one line each, for `status.txt`: mail that waits for somebody.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// What a person should mend, for `msgfs doctor`.
    fn advice(&self) -> Vec<Advice> {
        Vec::new()
    }

    /// The texts it keeps for me, if the format has any.
    fn notebook(&self) -> Option<&dyn Notebook> {
        None
    }

    /// The path of a source relative to [`Store::dir`].
    fn source_path(&self, source: u32) -> Option<String>;

    /// The same for messages to people; a source that is not known any more is named by number.
    fn source_path_or_number(&self, source: u32) -> String {
        self.source_path(source).unwrap_or_else(|| format!("source {source}"))
    }

    /// Reads the message at a location.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such record there any more, I/O errors as they come.
    fn read(&self, at: &Location) -> Result<Record, StoreError>;

    /// The bytes at a location, whatever they are, at most `limit` of them.
    ///
    /// # Errors
    /// I/O errors as they come.
    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError>;

    /// Acknowledges the message at a location. Once is enough; again changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it asks for no acknowledgement from me, else as the system gave it.
    fn acknowledge(&self, _at: &Location) -> Result<(), StoreError> {
        Err(StoreError::Invalid("this message asks for no acknowledgement".into()))
    }

    /// A command of this kind for people, `msgfs <kind> WORD…`; answers with what to print.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a command it does not know, else whatever stands in the way.
    fn command(&self, _words: &[String]) -> Result<String, StoreError> {
        Err(StoreError::Invalid(format!("a store of kind {} has no commands", self.kind())))
    }

    /// Opens a file that comes with the message at a location, by the name under which
    /// [`Store::read`] lists it. One that is withheld is not found.
    ///
    /// # Errors
    /// `NotFound` as an I/O error if there is none of this name, else as the system gave it.
    fn open_part(&self, _at: &Location, name: &str) -> Result<Part, StoreError> {
        Err(StoreError::io(Path::new(name), io::ErrorKind::NotFound.into()))
    }

    /// An address as messages of this store carry it, for comparing.
    fn canonical(&self, address: &str) -> String {
        address.to_owned()
    }

    /// How well a recipient's name fits this store.
    fn fits(&self, address: &str) -> Fit;

    /// Whether this address is registered in the store, beyond having written or been written to.
    fn registered(&self, address: &str) -> bool;

    /// The key that signs what I send here: the store's own key for me, or `mine`, the mount's key,
    /// where the format keeps none. A store whose format wants a key in it and has none may put
    /// `mine` there.
    ///
    /// # Errors
    /// [`StoreError::NoKey`] if there is none or it cannot be used.
    fn signing_key(&self, mine: Option<&Seed>) -> Result<Seed, StoreError> {
        mine.cloned().ok_or_else(|| StoreError::NoKey("there is no signing key".into()))
    }

    /// The public half of that key, as far as it can be told without writing anything; `mine` is
    /// the public half of the mount's key.
    fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        mine
    }

    /// Whether a message can carry files of these names and sizes.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it carries none or not under such a name, [`StoreError::TooLarge`].
    fn carries(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        if files.is_empty() {
            return Ok(());
        }
        Err(StoreError::Invalid(format!(
            "Attach: a message in the store {} carries text only; put the file where the recipient \
             can read it and name its path in the text",
            self.name()
        )))
    }

    /// Turns a draft into records for its recipients (one each, or one for all, as the format has
    /// it), without writing anything.
    ///
    /// # Errors
    /// Whatever breaks a rule of the format.
    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError>;

    /// Whether an append of this many bytes could succeed now, as far as can be told without trying:
    /// so that the writer hears of a full disk, who is gone when the append happens.
    ///
    /// # Errors
    /// What the append would give.
    fn appendable(&self, bytes: u64) -> Result<(), StoreError>;

    /// Appends a prepared message; when this returns every reader sees it.
    ///
    /// # Errors
    /// As the system gave it. Nothing is half written as far as readers are concerned.
    fn append(&self, message: &Prepared) -> Result<(), StoreError>;

    /// Whether an append may be made again and then only does what is still missing. If not, what
    /// the index knows as mine counts as appended.
    fn repeats(&self) -> bool {
        false
    }

    /// Does what waits and writes: delivers what was appended and could not be delivered, brings
    /// derived files up to date. Whether anything was done. Asked after every change, and at the start; not where
    /// nothing may be written.
    ///
    /// # Errors
    /// As the system gave it; the rest has been tried.
    fn deliver(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Notes on the message itself that I have read it, or not, where the format has a place for
    /// that; `true` if the store now says so.
    ///
    /// # Errors
    /// As the system gave it, [`StoreError::Moved`].
    fn tell(&self, _at: &Location, _read: bool) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// As the system gave it; then nobody knows what of it is.
    fn sync(&self) -> Result<(), StoreError>;

    /// Whether the store may keep one read position for me. If not, nobody computes it.
    fn has_watermark(&self) -> bool {
        true
    }

    /// The read position the store keeps for me, if it has one and somebody set it.
    fn watermark(&self) -> Option<Watermark>;

    /// Moves that position forward, never back, and answers with what was written; `None` if the
    /// position was left alone.
    ///
    /// # Errors
    /// As the system gave it; a read-only store is not an error worth more than a warning.
    fn set_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError>;

    /// The entries of a folder of `raw/<store>/`, `""` being its root; `None` if there is no such
    /// folder. Only message files, never keys or state.
    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>>;

    /// The time of the newest entry of such a folder.
    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.raw_list(folder)?.iter().map(|e| e.modified).max()
    }

    /// Opens a file listed by [`Store::raw_list`].
    ///
    /// # Errors
    /// As the system gave it.
    fn raw_open(&self, path: &str) -> io::Result<File>;

    /// Makes anew what is derived from messages and may be wrong; a line for each thing made.
    ///
    /// # Errors
    /// As the system gave it.
    fn repair(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// Validates everything (schema, ids, signatures by `verify`, which answers with what is wrong)
    /// and reports each violation.
    ///
    /// # Errors
    /// Only when the store cannot be read at all.
    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError>;
}

/// What is needed to open a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name in the mount; unique, usable as one path component.
    pub name: String,
    /// Its format.
    pub kind: Kind,
    /// Its folder (or, where the format has one, its configuration file), absolute; it may not exist.
    pub dir: PathBuf,
    /// Who the mount acts for.
    pub me: String,
    /// The address this store shall know me by, if somebody said so.
    pub as_me: Option<String>,
    /// A folder of msgfs's own where the store may keep what would be lost otherwise; `None` where
    /// nothing may be written.
    pub state: Option<PathBuf>,
    /// `$HOME`, for formats whose programs look there whatever else they are told.
    pub home: Option<PathBuf>,
}

/// Opens a store, creating its folder if the format has it created.
///
/// # Errors
/// If the folder cannot be created or read, or I am nobody in it.
pub fn open(spec: &Spec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match spec.kind {
        Kind::Samp => Arc::new(samp::SampStore::open(spec)?),
        Kind::AgentAzall => Arc::new(agentazall::AgentAzall::open(spec)?),
        Kind::Amp => Arc::new(amp::Amp::open(spec)?),
    })
}
