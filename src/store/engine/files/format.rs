//! What a format says of itself, so that the engine can find its messages.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::look::DirCache;
use super::scan::ScanPass;
use super::table::{FileFacts, FileTable};
use super::{FileStore, StoreFile};
use crate::model::Timestamp;
use crate::store::fs::Stamp;
use crate::store::{
    Advice, ClaimVerifier, Facets, FoundMessage, Location, Record, StoreError, ViolationReporter,
    below,
};

/// What a path below the store's folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRole {
    /// A folder in which messages, or folders with them, lie.
    Folder,
    /// A file that is a message or should be one.
    Message,
    /// Something that belongs to the message at this path: a change of it is a change of the message.
    Companion(String),
    /// Something that no file is read again for, but [`Format::finish`] wants to know this name.
    Group(String),
    /// Something on which all judgements rest: see [`Format::begin`].
    Context,
    /// What should not be there; what it is said to be.
    Unexpected(String),
    /// Nothing that matters.
    Nothing,
}

impl PathRole {
    /// Whether something of this kind is shown in `raw/`, as far as its format has no rule of its own.
    pub fn is_shown(&self, kind: FileType) -> bool {
        match self {
            Self::Folder => kind == FileType::Directory,
            Self::Message | Self::Companion(_) => kind == FileType::RegularFile,
            Self::Group(_) | Self::Context | Self::Unexpected(_) | Self::Nothing => false,
        }
    }
}

/// What is said of something that is not the message file it is called like.
pub fn describe_non_message(kind: FileType) -> String {
    format!("is skipped: it is {}, not a message file", below::describe_type(kind))
}

/// The same where it is a refused message ([`Format::REFUSES_ODD`]).
pub(super) fn describe_odd_type(kind: FileType) -> String {
    format!("it is {}, not a file", below::describe_type(kind))
}

/// A file that was opened and read.
#[derive(Debug)]
pub struct FileInput<'a, F> {
    /// Where it is, and what the table says of it so far.
    pub file: &'a StoreFile<F>,
    /// Its state when it was read.
    pub stamp: Stamp,
    /// What lies beside it: [`Format::beside`].
    pub companion_hash: u64,
    /// At most [`Format::LONGEST`] bytes and one.
    pub bytes: &'a [u8],
}

/// What a file says.
#[derive(Debug)]
pub struct FileReading<M, F> {
    /// What it is.
    pub verdict: FileVerdict<M, F>,
    /// Its writer may still be at it: a file that was touched a moment ago is looked at again before it
    /// counts.
    pub unfinished: bool,
    /// What it is depends on other files.
    pub depends: bool,
}

/// What a file is.
#[derive(Debug)]
pub enum FileVerdict<M, F> {
    /// A message.
    Message {
        /// What [`Format::take`] needs to know of it.
        message: M,
        /// It is the one that was there before, with another mark perhaps.
        same: bool,
    },
    /// Not a message, but one that was there before is shown on.
    Broken(FileRejection<F>),
    /// Not a message.
    Rejected(FileRejection<F>),
    /// Nothing to be reported.
    Nothing,
}

/// Why a file is no message.
#[derive(Debug, Default)]
pub struct FileRejection<F> {
    /// A sentence for a person.
    pub reason: String,
    /// It may still become one.
    pub incomplete: bool,
    /// Its time, if it says one; else it is that of the file.
    pub time: Option<Timestamp>,
    /// What is kept of it.
    pub facts: F,
}

impl<M, F> FileVerdict<M, F> {
    /// Returns true if a message that was in the file before is still in it.
    pub(super) fn has_previous_message(&self) -> bool {
        match self {
            Self::Message { same, .. } => *same,
            Self::Broken(_) => true,
            Self::Rejected(_) | Self::Nothing => false,
        }
    }
}

impl<M, F: Default> FileReading<M, F> {
    /// A message.
    pub fn message(message: M, same: bool) -> Self {
        let verdict = FileVerdict::Message { message, same };
        Self { verdict, unfinished: false, depends: false }
    }

    /// Not a message, for this reason.
    pub fn rejected(reason: String) -> Self {
        let verdict = FileVerdict::Rejected(FileRejection { reason, ..FileRejection::default() });
        Self { verdict, unfinished: false, depends: false }
    }

    /// Not a message yet, for this reason.
    pub fn incomplete(reason: String) -> Self {
        let refusal = FileRejection { reason, incomplete: true, ..FileRejection::default() };
        Self { verdict: FileVerdict::Rejected(refusal), unfinished: true, depends: false }
    }

    /// Nothing to be reported.
    pub fn nothing() -> Self {
        Self { verdict: FileVerdict::Nothing, unfinished: false, depends: false }
    }
}

/// A message that is about to be reported.
#[derive(Debug)]
pub struct PendingReport<'a, F: FileFormat> {
    /// Its number, which is new if the file held another message before.
    pub n: u32,
    /// The file as it was read; its number there is the one it had before.
    pub opened: &'a FileInput<'a, F::Facts>,
    /// What it says.
    pub message: F::Message<'a>,
    /// What the file was before, if it was a message.
    pub previous_facts: Option<F::Facts>,
    /// It is the same message.
    pub is_same: bool,
}

/// A format in which a message is a file. The engine asks it what a path is and what a file says; it
/// never touches a file itself.
pub trait FileFormat: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// What the table keeps of a file.
    type Facts: FileFacts;
    /// What a file says, until it is reported.
    type Message<'a>: Send;
    /// What judgements rest on, for one scan.
    type Context: Sync;

    /// First bytes of the saved table; another version is thrown away.
    const TAG: [u8; 8];
    /// Bytes of the largest file that can be a message.
    const LONGEST: usize;

    /// What a path is. The kind is `Unknown` for something that may not be there (any more).
    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole;

    /// What else a change at a path means: [`What::Beside`] for something strange that lies beside a
    /// message, and for a folder whose files lie beside the messages of another; [`What::Group`] for a
    /// folder whose files belong to a group. Which files came or went is not told if their folder did.
    fn determine_related_role(&self, _path: &[&str]) -> PathRole {
        PathRole::Nothing
    }

    /// What judgements rest on as it is now, and a print of that: when the print changes, every file is
    /// read again. `None` if there is nothing to look at now: what was there stays.
    ///
    /// # Errors
    /// If nothing can be judged now.
    fn load_context(
        &self,
        files: &FileStore<Self>,
    ) -> Result<Option<(Self::Context, u64)>, StoreError>;

    /// A print of what lies beside a message and belongs to it; 0 if nothing does.
    ///
    /// # Errors
    /// As the system gave it; then nothing is known of the message.
    fn hash_companions(
        &self,
        _dirs: &mut DirCache<'_>,
        _folder: &str,
        _name: &str,
    ) -> io::Result<u64> {
        Ok(0)
    }

    /// When a file came, for those that are found together; equal ones go by their paths.
    fn arrival_order(&self, _folder: &str, stamp: &Stamp, _bytes: &[u8]) -> ArrivalOrder {
        ArrivalOrder { when: stamp.modified().millis(), is_got: false, mtime: stamp.mtime }
    }

    /// Whether [`Format::arrival`] is asked; else files come in the order of their paths.
    const HAS_ARRIVAL: bool = false;

    /// What a file says. Called on all cores at once and without any lock; `dirs` are those of this thread.
    ///
    /// # Errors
    /// If what belongs to it cannot be read: then nothing is known of the message.
    fn parse_file<'a>(
        &self,
        context: &Self::Context,
        dirs: &mut DirCache<'_>,
        opened: &'a FileInput<'a, Self::Facts>,
    ) -> io::Result<FileReading<Self::Message<'a>, Self::Facts>>;

    /// Returns the facts that the table keeps of a message, as far as the file alone says it.
    fn message_facts<'m>(message: &'m Self::Message<'_>) -> &'m Self::Facts;

    /// Returns true if a print of what lies beside a message says that a signature does.
    fn is_signed(_beside: u64) -> bool {
        false
    }

    /// The file from which the message in a file was reported: where several hold it, that may be another.
    fn report_source(_files: &FileStore<Self>, n: u32) -> u32 {
        n
    }

    /// Notes what is kept of a message ([`Table::change`]) and says how it is reported, if it is.
    fn accept_message<'a>(
        &self,
        context: &Self::Context,
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>>;

    /// A message is no longer there, or another is in its place.
    fn forget_message(&self, _pass: &mut ScanPass<'_, Self>, _n: u32) {}

    /// What a store of the format can.
    fn facets(files: &FileStore<Self>) -> Facets<'_>;

    /// The message at a location; see [`Store::read`](crate::store::Store::read).
    ///
    /// # Errors
    /// As there.
    fn read_record(files: &FileStore<Self>, at: &Location) -> Result<Record, StoreError>;

    /// See [`Store::check`](crate::store::Store::check).
    ///
    /// # Errors
    /// As there.
    fn check_files(
        files: &FileStore<Self>,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError>;

    /// See [`Store::health`](crate::store::Store::health).
    fn health(files: &FileStore<Self>) -> Vec<String> {
        files.default_health()
    }

    /// See [`Store::remarks`](crate::store::Store::remarks).
    fn remarks(_files: &FileStore<Self>) -> Vec<String> {
        Vec::new()
    }

    /// See [`Store::advice`](crate::store::Store::advice).
    fn advice(_files: &FileStore<Self>) -> Vec<Advice> {
        Vec::new()
    }

    /// Messages that must be read again although nothing happened to their files.
    fn messages_to_reread(
        &self,
        _context: &Self::Context,
        _table: &FileTable<Self::Facts>,
    ) -> Vec<u32> {
        Vec::new()
    }

    /// All files were taken: what belongs together can be reported. What must be read now, because of
    /// them.
    fn finish_pass(&self, _context: &Self::Context, _done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        Vec::new()
    }

    /// Whether something that is called like a message and is no regular file is a refused message; else
    /// it is only said to be skipped.
    const REFUSES_ODD: bool = false;

    /// Whether what is no message is refused in a folder. Else it is for others to mend.
    fn may_reject_in(&self, _folder: &str) -> bool {
        true
    }

    /// The table was replaced by another.
    fn note_restored_table(&self, _table: &FileTable<Self::Facts>) {}

    /// Whether something is shown in `raw/`.
    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        self.determine_role(path, kind).is_shown(kind)
    }

    /// Whether the root of `raw/` leaves out folders in which nothing is shown.
    const HIDES_EMPTY: bool = false;

    /// Folders besides those of the messages in which a change can mean something.
    fn extra_watched_folders(_files: &FileStore<Self>) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether a change of a path outside the store's folder can mean something.
    fn is_relevant_outside(&self, _path: &Path) -> bool {
        false
    }
}

/// What a pass did, for [`Format::finish`].
#[derive(Debug)]
pub struct PassSummary<'a, F: FileFormat> {
    /// The files.
    pub files: &'a FileStore<F>,
    /// Everything was looked at.
    pub is_full: bool,
    /// Files that were read or went away.
    pub touched: &'a BTreeSet<u32>,
    /// Names given by [`What::Group`].
    pub groups: &'a BTreeSet<String>,
    /// Whom to report to.
    pub reports: &'a mut dyn MessageReporter,
}

/// Takes reports of messages that are made of several files.
pub trait MessageReporter: std::fmt::Debug {
    /// What was reported from these files is about to be reported anew, or is gone.
    fn begin_rescan(&mut self, files: Vec<u32>);

    /// Reports messages.
    fn report_messages(&mut self, found: &mut Vec<FoundMessage<'_>>);

    /// Something could not be reported now: what was reported before stays.
    fn keep_reported(&mut self);
}

/// When a file came: what the store noted, else what its writer says, else the time of its file; in
/// one moment what I sent before what I got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrivalOrder {
    /// In milliseconds since 1970.
    pub when: i64,
    /// Somebody sent it to me.
    pub is_got: bool,
    /// Modification time of the file, in nanoseconds since 1970.
    pub mtime: i128,
}

impl ArrivalOrder {
    /// Of what cannot be read: it is no message and comes last.
    pub(super) const LAST: Self = Self { when: i64::MAX, is_got: true, mtime: i128::MAX };
}
