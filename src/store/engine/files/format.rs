//! The trait by which a format tells the engine how to find and read its messages.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustix::fs::FileType;

use super::scan::ScanPass;
use super::table::{FileFacts, FileTable};
use super::walk::DirCache;
use super::{FileStore, GRACE, StoreFile, join_path};
use crate::model::Timestamp;
use crate::store::engine::Format;
use crate::store::fs::Stamp;
use crate::store::{
    ClaimVerifier, FoundMessage, Location, Record, StoreError, ViolationReporter, confined,
};

/// The role of a path below the store's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRole {
    /// A folder that contains messages, or folders with messages.
    Folder,
    /// A file that is a message or should be one.
    Message,
    /// Something that belongs to the message at this path: a change of it is a change of the message.
    Companion(String),
    /// Something that causes no file to be read again. [`FileFormat::finish_pass`] gets this name.
    Group(String),
    /// Something on which every reading depends: see [`FileFormat::load_context`].
    Context,
    /// Something that should not be there, and its description.
    Unexpected(String),
    /// Nothing that matters.
    Nothing,
}

impl PathRole {
    /// Returns true if `raw/` shows something of this role and type. A format may have its own rule instead.
    pub fn is_shown(&self, kind: FileType) -> bool {
        match self {
            Self::Folder => kind == FileType::Directory,
            Self::Message | Self::Companion(_) => kind == FileType::RegularFile,
            Self::Group(_) | Self::Context | Self::Unexpected(_) | Self::Nothing => false,
        }
    }
}

/// Describes something that has the name of a message file and is none.
pub fn describe_non_message(kind: FileType) -> String {
    format!("is skipped: it is {}, not a message file", confined::describe_type(kind))
}

/// Describes such a thing where it counts as a rejected message ([`FileFormat::REFUSES_ODD`]).
pub(super) fn describe_odd_type(kind: FileType) -> String {
    format!("it is {}, not a file", confined::describe_type(kind))
}

/// A file that was opened and read.
#[derive(Debug)]
pub struct FileInput<'a, F> {
    /// Its path, and its facts in the table so far.
    pub file: &'a StoreFile<F>,
    /// Its state when it was read.
    pub stamp: Stamp,
    /// The hash of what lies beside it: [`FileFormat::hash_companions`].
    pub companion_hash: u64,
    /// Its bytes, at most one more than [`FileFormat::LONGEST`].
    pub bytes: &'a [u8],
}

impl<F> FileInput<'_, F> {
    /// Returns true if the file was changed less than [`GRACE`] ago, so that an unfinished file gets more time.
    pub fn is_fresh(&self) -> bool {
        let age = Timestamp::now().millis().saturating_sub(self.stamp.modified().millis());
        age < GRACE.as_millis() as i64
    }
}

/// The result of reading a file.
#[derive(Debug)]
pub struct FileReading<M, F> {
    /// The verdict on the file.
    pub verdict: FileVerdict<M, F>,
    /// True if its writer may still be writing it. A file that was changed a moment ago is then read again before it
    /// counts.
    pub unfinished: bool,
    /// True if the verdict depends on other files.
    pub depends: bool,
}

/// The verdict on a file.
#[derive(Debug)]
pub enum FileVerdict<M, F> {
    /// A message.
    Message {
        /// The parsed message, for [`FileFormat::accept_message`].
        message: M,
        /// True if it is the message that was there before, perhaps with another mark.
        same: bool,
    },
    /// No message, but the one that was there before is still shown.
    Broken(FileRejection<F>),
    /// No message.
    Rejected(FileRejection<F>),
    /// Nothing to report.
    Nothing,
}

/// The reason why a file is no message.
#[derive(Debug, Default)]
pub struct FileRejection<F> {
    /// A sentence for a person.
    pub reason: String,
    /// True if it may still become a message.
    pub incomplete: bool,
    /// The time that it states, if any. Else the file's time counts.
    pub time: Option<Timestamp>,
    /// The facts that the table keeps of it.
    pub facts: F,
}

impl<M, F> FileVerdict<M, F> {
    /// Returns true if the file still contains the message that was in it before.
    pub(super) fn has_previous_message(&self) -> bool {
        match self {
            Self::Message { same, .. } => *same,
            Self::Broken(_) => true,
            Self::Rejected(_) | Self::Nothing => false,
        }
    }
}

impl<M, F: Default> FileReading<M, F> {
    /// Returns the reading of a message.
    pub fn message(message: M, same: bool) -> Self {
        let verdict = FileVerdict::Message { message, same };
        Self { verdict, unfinished: false, depends: false }
    }

    /// Returns the reading of a file that is no message, with the reason.
    pub fn rejected(reason: String) -> Self {
        let verdict = FileVerdict::Rejected(FileRejection { reason, ..FileRejection::default() });
        Self { verdict, unfinished: false, depends: false }
    }

    /// Returns the reading of a file that is no message yet, with the reason.
    pub fn incomplete(reason: String) -> Self {
        let refusal = FileRejection { reason, incomplete: true, ..FileRejection::default() };
        Self { verdict: FileVerdict::Rejected(refusal), unfinished: true, depends: false }
    }

    /// Returns the reading of a file of which nothing is reported.
    pub fn nothing() -> Self {
        Self { verdict: FileVerdict::Nothing, unfinished: false, depends: false }
    }
}

/// A message that is about to be reported.
#[derive(Debug)]
pub struct PendingReport<'a, F: FileFormat> {
    /// Its number, which is new if the file held another message before.
    pub n: u32,
    /// The file as it was read. The number in it is the one that it had before.
    pub opened: &'a FileInput<'a, F::Facts>,
    /// The parsed message.
    pub message: F::Message<'a>,
    /// The facts of the file before, if it was a message.
    pub previous_facts: Option<F::Facts>,
    /// True if it is the same message as before.
    pub is_same: bool,
}

/// A format in which a message is a file. The engine asks it for the role of a path and the meaning of a file. The
/// format never touches a file itself.
pub trait FileFormat: Format<FileStore<Self>> + std::fmt::Debug {
    /// The facts that the table keeps of a file.
    type Facts: FileFacts;
    /// A parsed message until it is reported.
    type Message<'a>: Send;
    /// The context on which readings depend, for one scan.
    type Context: Sync;

    /// The first bytes of the saved table. A table with other bytes is thrown away.
    const TAG: [u8; 8];
    /// The size in bytes of the largest file that can be a message.
    const LONGEST: usize;

    /// Returns the role of a path. The kind is `Unknown` if there may be nothing at the path (any more).
    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole;

    /// Returns a second role that a change at a path has. [`PathRole::Companion`] is for something unexpected that
    /// lies beside a message, and for a folder whose files lie beside the messages of another folder.
    /// [`PathRole::Group`] is for a folder whose files belong to a group. If a folder came or went, its files are not
    /// named one by one.
    fn determine_related_role(&self, _path: &[&str]) -> PathRole {
        PathRole::Nothing
    }

    /// Loads the context on which readings depend, and returns it with its hash. When the hash changes, every file is
    /// read again. `None` means that there is nothing to scan now and that known files stay.
    ///
    /// # Errors
    /// If nothing can be judged now.
    fn load_context(
        &self,
        files: &FileStore<Self>,
    ) -> Result<Option<(Self::Context, u64)>, StoreError>;

    /// Returns a hash of what lies beside a message and belongs to it; 0 if there is nothing.
    ///
    /// # Errors
    /// As the system gave them. Nothing is then known of the message.
    fn hash_companions(
        &self,
        _dirs: &mut DirCache<'_>,
        _folder: &str,
        _name: &str,
    ) -> io::Result<u64> {
        Ok(0)
    }

    /// Returns the order of arrival of a file among those that are found together. Equal ones are ordered by their
    /// paths.
    fn arrival_order(&self, _folder: &str, stamp: &Stamp, _bytes: &[u8]) -> ArrivalOrder {
        ArrivalOrder { when: stamp.modified().millis(), is_got: false, mtime: stamp.mtime }
    }

    /// True if [`FileFormat::arrival_order`] is used. Else files are ordered by their paths.
    const HAS_ARRIVAL: bool = false;

    /// Parses a file. The engine calls this on all cores at once and without any lock. `dirs` belongs to the calling
    /// thread.
    ///
    /// # Errors
    /// If something that belongs to the file cannot be read. Nothing is then known of the message.
    fn parse_file<'a>(
        &self,
        context: &Self::Context,
        dirs: &mut DirCache<'_>,
        opened: &'a FileInput<'a, Self::Facts>,
    ) -> io::Result<FileReading<Self::Message<'a>, Self::Facts>>;

    /// Returns the facts that the table keeps of a message, as far as the file alone states them.
    fn message_facts<'m>(message: &'m Self::Message<'_>) -> &'m Self::Facts;

    /// Returns true if the hash of what lies beside a message shows that there is a signature.
    fn is_signed(_beside: u64) -> bool {
        false
    }

    /// Returns the part of a file's path that stays as long as the file holds its message.
    fn lasting_path(folder: &str, name: &str) -> String {
        join_path(folder, name)
    }

    /// Returns the file from which the message in a file was reported. It may be another file if several hold the
    /// message.
    fn report_source(_files: &FileStore<Self>, n: u32) -> u32 {
        n
    }

    /// Notes the facts of a message ([`FileTable::update_row`]) and returns the message as it is reported, if it is.
    fn accept_message<'a>(
        &self,
        context: &Self::Context,
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>>;

    /// Notes the decisions of trust on reported messages: true for each that is refused. A scan calls it for each batch
    /// that it reports, before it goes on.
    fn note_decisions(_files: &FileStore<Self>, _decided: &[(Location, bool)]) {}

    /// Notes that a message is gone, or that another one is in its place.
    fn forget_message(&self, _pass: &mut ScanPass<'_, Self>, _n: u32) {}

    /// Returns the text of a message's file as it last could be parsed, if the format has it in memory.
    fn last_text(&self, _n: u32) -> Option<Box<str>> {
        None
    }

    /// Reads the message at a location; see [`MessageReader::read_record`](crate::store::MessageReader::read_record).
    ///
    /// # Errors
    /// As for [`MessageReader::read_record`](crate::store::MessageReader::read_record).
    fn read_record(files: &FileStore<Self>, at: &Location) -> Result<Record, StoreError>;

    /// Returns the bytes of a message file without what marks change in it.
    fn strip_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytes)
    }

    /// Checks all files; see [`MessageReader::check`](crate::store::MessageReader::check).
    ///
    /// # Errors
    /// As for [`MessageReader::check`](crate::store::MessageReader::check).
    fn check_files(
        files: &FileStore<Self>,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError>;

    /// Reads the format's own state, which another process may write.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load_state(&self, _dir: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the messages that must be read again although their files did not change.
    fn messages_to_reread(
        &self,
        _context: &Self::Context,
        _table: &FileTable<Self::Facts>,
    ) -> Vec<u32> {
        Vec::new()
    }

    /// Finishes a pass in which all files were accepted: messages of several files can be reported now. Returns the
    /// files that must be read now because of them.
    fn finish_pass(&self, _context: &Self::Context, _done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        Vec::new()
    }

    /// True if something that has the name of a message and is no regular file is a rejected message. Else `health`
    /// only says that it is skipped.
    const REFUSES_ODD: bool = false;

    /// Returns true if files of a folder that are no messages are rejected. Else they are left for other programs to
    /// repair.
    fn may_reject_in(&self, _folder: &str) -> bool {
        true
    }

    /// Notes that another table has replaced the table.
    fn note_restored_table(&self, _table: &FileTable<Self::Facts>) {}

    /// Returns true if `raw/` shows this path.
    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        self.determine_role(path, kind).is_shown(kind)
    }

    /// True if the root of `raw/` leaves out folders in which nothing is shown.
    const HIDES_EMPTY: bool = false;
}

/// The results of a pass, for [`FileFormat::finish_pass`].
#[derive(Debug)]
pub struct PassSummary<'a, F: FileFormat> {
    /// The store.
    pub files: &'a FileStore<F>,
    /// True if everything was scanned.
    pub is_full: bool,
    /// True for the first scan of this process.
    pub is_first: bool,
    /// The files that were read or went away.
    pub touched: &'a BTreeSet<u32>,
    /// The names given by [`PathRole::Group`].
    pub groups: &'a BTreeSet<String>,
    /// The receiver of reports.
    pub reports: &'a mut dyn MessageReporter,
}

/// A receiver of messages that are made of several files.
pub trait MessageReporter: std::fmt::Debug {
    /// Announces that the messages of these files are reported anew or are gone.
    fn begin_rescan(&mut self, files: Vec<u32>);

    /// Reports messages.
    fn report_messages(&mut self, found: &mut Vec<FoundMessage<'_>>);

    /// Notes that something could not be reported now: earlier reports stay valid.
    fn keep_reported(&mut self);

    /// Notes that the texts of these messages are lost
    /// ([`ScanSink::note_lost_texts`](crate::store::ScanSink::note_lost_texts)). The caller holds no lock.
    fn note_lost_texts(&mut self, files: &[u32]);
}

/// The time at which a file came: the time that the store noted, else the time that its writer states, else the time
/// of the file. At the same moment, my sent messages come before received ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrivalOrder {
    /// Milliseconds since 1970.
    pub when: i64,
    /// True if somebody sent it to me.
    pub is_got: bool,
    /// Modification time of the file, in nanoseconds since 1970.
    pub mtime: i128,
}

impl ArrivalOrder {
    /// The order of a file that cannot be read: it is no message and comes last.
    pub(super) const LAST: Self = Self { when: i64::MAX, is_got: true, mtime: i128::MAX };
}
