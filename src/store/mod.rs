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
//! 3. A line in the table of [`open`](fn@open).
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

pub mod fs;
pub mod samp;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::model::{Claim, Draft, Message, PublicKey, Timestamp};

/// The formats msgfs speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// SAMP v1: one append-only JSON-lines log per writer in a shared folder.
    Samp,
}

impl Kind {
    /// Every kind, in the order in which they are listed to people.
    pub const ALL: &[Self] = &[Self::Samp];

    /// The word used in configuration, paths and header lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Samp => "samp",
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
    /// Its writer, already unescaped.
    pub from: Cow<'a, str>,
    /// Its recipients, already unescaped, joined by `", "` if there are several.
    pub to: Cow<'a, str>,
    /// Its thread id, verbatim.
    pub thread: Cow<'a, str>,
    /// Its id, unique for the writer.
    pub id: Cow<'a, str>,
    /// When it was written.
    pub time: Timestamp,
    /// It is addressed to me.
    pub to_me: bool,
    /// I wrote it.
    pub from_me: bool,
    /// The id is the one the content hashes to (where the format has such ids).
    pub id_verified: bool,
    /// The store's own read mark, where it has one on the message itself.
    pub read: Option<bool>,
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
    /// duplicate (or the same one after a rescan) and only its location may be refreshed.
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
#[derive(Clone, Debug)]
pub struct Record {
    /// The message.
    pub message: Message,
    /// The signature it carries, if any.
    pub claim: Option<Claim>,
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

    /// Reports everything that is new or changed since the last scan.
    ///
    /// # Errors
    /// Only when the store as a whole cannot be read; trouble with single files is part of
    /// [`Store::health`].
    fn scan(&self, sink: &mut dyn Sink) -> Result<(), StoreError>;

    /// The scan's positions, to be kept with the index built from them.
    fn save(&self) -> Vec<u8>;

    /// Resumes from what [`Store::save`] gave. `false` if it cannot be used, in which case nothing
    /// was changed and the next scan starts over.
    fn restore(&self, saved: &[u8]) -> bool;

    /// Forgets all positions: the next scan starts over.
    fn reset(&self);

    /// Folders in which any change may mean a new message.
    fn watched(&self) -> Vec<PathBuf>;

    /// Whether a change of this file name (in a watched folder) can matter.
    fn concerns(&self, name: &std::ffi::OsStr) -> bool;

    /// What is wrong with the store right now, one line each, for `status.txt`; empty if nothing.
    fn health(&self) -> Vec<String>;

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

    /// How well a recipient's name fits this store.
    fn fits(&self, address: &str) -> Fit;

    /// Whether this address is registered in the store, beyond having written or been written to.
    fn registered(&self, address: &str) -> bool;

    /// Turns a draft into records for each recipient, without writing anything.
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

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// As the system gave it; then nobody knows what of it is.
    fn sync(&self) -> Result<(), StoreError>;

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

/// Opens the store of a kind in a folder, creating the folder if the format has it created.
///
/// # Errors
/// If the folder cannot be created or read, or `me` is no address of this kind.
pub fn open(kind: Kind, name: &str, dir: &Path, me: &str) -> Result<Arc<dyn Store>, StoreError> {
    match kind {
        Kind::Samp => Ok(Arc::new(samp::SampStore::open(name, dir, me)?)),
    }
}
