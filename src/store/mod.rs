#![doc = include_str!("../../docs/ADDING-A-KIND.md")]

mod about;
pub mod agentazall;
pub mod amp;
pub mod amq;
mod aside;
pub mod asked;
pub mod atsf;
pub mod below;
pub mod digest;
pub mod engine;
mod error;
mod facets;
mod found;
pub mod fs;
mod kind;
pub mod mounts;
pub mod parallel;
pub mod place;
pub mod process;
mod remote;
pub mod samp;
mod sending;
pub mod ssot;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::about::{AttachmentRule, SignedTextFn, StoreProperties, ThreadScheme};
pub use self::aside::{
    Advice, Notebook, NotebookEntry, PeerReadState, PeerUnread, RawEntry, Violation, Watermark,
};
pub use self::error::StoreError;
pub use self::facets::{
    AckWriter, DeliveryQueue, DerivedFiles, Facets, LogRecovery, MessageAppender, PartReader,
    PeerDirectory, ReadMarks, ReadPosition, StoreCommands, StoreKeys, ThreadDirectory,
    TrustListener,
};
pub use self::found::{
    EmptyThread, FoundMessage, Location, PartContent, PrimaryRecord, Record, Rejection, RepeatKind,
    ScanSink, set_source_path,
};
pub use self::kind::Kind;
pub use self::remote::{DeliveryFate, InboundMail, LinkRouter, OutboundMail, RemoteMail};
pub use self::sending::{
    AddressFit, Durability, PrepareContext, PreparedRecord, Signer, refuse_headers,
};
use crate::model::{Roles, SignatureClaim, Timestamp};

/// Who hears of folders before they are listed.
pub trait FolderListener: Send + Sync + fmt::Debug {
    /// This folder is about to be listed: what happens there from now on is not missed.
    fn note_listing(&self, folder: &Path);
}

/// A place on disk that holds messages. See the module for what implementations must keep.
///
/// This is what every kind has. What else a store can is a [facet](Facets).
pub trait Store: Send + Sync + fmt::Debug {
    /// What does not change as long as the store is open.
    fn properties(&self) -> &StoreProperties;

    /// The format.
    fn kind(&self) -> Kind {
        self.properties().kind
    }

    /// The name of this store in the mount.
    fn name(&self) -> &str {
        &self.properties().name
    }

    /// The address this store knows me by.
    fn me(&self) -> &str {
        &self.properties().me
    }

    /// The folder the store lives in.
    fn dir(&self) -> &Path {
        &self.properties().dir
    }

    /// What else it can.
    fn facets(&self) -> Facets<'_>;

    /// A path in the store changed: the next scan must look at it.
    fn note_change(&self, path: &Path);

    /// Reads what is kept in the folder of its state, where nothing may be written and so [`Spec::state`] is
    /// `None`.
    ///
    /// # Errors
    /// If there is something that cannot be read.
    fn read_state(&self, _dir: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether something was [noted](Store::note), or written by this process, that no scan has taken in. A
    /// scan that was under way meanwhile may have.
    fn has_unscanned_changes(&self) -> bool {
        true
    }

    /// Whether something could not be read for a reason that may pass by itself, and was not read
    /// since: then a full scan follows in a while.
    fn is_failing(&self) -> bool;

    /// Reports everything that is new or changed since the last scan. What cannot be read now stays
    /// what it was. Unless `full`, it is enough to
    /// look at what was [noted](Store::note) and what this process wrote itself.
    ///
    /// A message may be reported again at any time with another location, thread, link or mark;
    /// what it says is then what counts.
    ///
    /// # Errors
    /// Only when the store as a whole cannot be read; trouble with single files is part of
    /// [`Store::health`].
    fn scan(&self, full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError>;

    /// The scan's positions, to be kept with the index built from them.
    fn save_cursors(&self) -> Vec<u8>;

    /// Resumes from what [`Store::save`] gave. `false` if it cannot be used, in which case nothing
    /// was changed and the next scan starts over.
    fn restore_cursors(&self, saved: &[u8]) -> bool;

    /// Forgets all positions: the next scan starts over.
    fn reset_cursors(&self);

    /// Folders in which any change may mean a new message, as of the last scan.
    fn folders_to_watch(&self) -> Vec<PathBuf>;

    /// Tells of the folders that scans list which [`Store::watched`] does not name before. Once.
    fn set_folder_listener(&self, _listener: Arc<dyn FolderListener>) {}

    /// Whether a change of this file name in a watched folder can matter.
    fn is_relevant(&self, folder: &Path, name: &OsStr) -> bool;

    /// Says that the store's folder was there and is gone, if so: then nothing is written, for it may
    /// come back, and what was made in its place would hide it.
    fn describe_missing_folder(&self) -> Option<String>;

    /// What is wrong with the store right now, one line each; empty if nothing.
    fn health(&self) -> Vec<String>;

    /// What else a person should know, one line each: mail that waits for somebody.
    fn remarks(&self) -> Vec<String>;

    /// What a person should mend, for `msgfs doctor`.
    fn advice(&self) -> Vec<Advice>;

    /// The path of a source relative to the store's folder.
    fn source_path(&self, source: u32) -> Option<String>;

    /// Reads the message at a location.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such record there any more, I/O errors as they come.
    fn read_record(&self, at: &Location) -> Result<Record, StoreError>;

    /// Reads the messages at several locations, in the order in which that is done fastest, and hands each on
    /// with its number. What cannot be read at once is left out: it is asked for alone.
    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        for (number, at) in at.iter().enumerate() {
            if let Ok(record) = self.read_record(at) {
                each(number, record);
            }
        }
    }

    /// The bytes at a location, whatever they are, at most `limit` of them.
    ///
    /// # Errors
    /// I/O errors as they come.
    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError>;

    /// The entries of a folder of `raw/<store>/`, `""` being its root; `None` if there is no such
    /// folder. Only message files, never keys or state.
    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>>;

    /// One entry by its path, as [`Store::raw_list`] tells it of its folder, without listing the folder.
    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry>;

    /// The time of the newest entry of such a folder.
    fn newest_raw_time(&self, folder: &str) -> Option<Timestamp>;

    /// Opens a file listed by [`Store::raw_list`].
    ///
    /// # Errors
    /// As the system gave it.
    fn open_raw_file(&self, path: &str) -> io::Result<File>;

    /// Validates everything (schema, ids, signatures by `verify`, which answers with what is wrong)
    /// and reports each violation.
    ///
    /// # Errors
    /// Only when the store cannot be read at all.
    fn check(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError>;
}

/// Answers with what is wrong with a signature.
pub type ClaimVerifier<'a> = &'a dyn Fn(&SignatureClaim) -> Option<String>;

/// Hears of each broken rule.
pub type ViolationReporter<'a> = &'a mut dyn FnMut(Violation);

/// What is needed to open a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// Its name in the mount; unique, usable as one path component.
    pub name: String,
    /// Its format.
    pub kind: Kind,
    /// Its folder (or, where the format has one, its configuration file), absolute; it may not exist.
    pub dir: PathBuf,
    /// The folder is made where it is missing, if the format has it made: nobody wrote it down, who may have
    /// mistyped it.
    pub may_create: bool,
    /// Who the mount acts for.
    pub me: String,
    /// The address this store shall know me by, if somebody said so.
    pub own_address: Option<String>,
    /// A folder of msgfs's own where the store may keep what would be lost otherwise; `None` where
    /// nothing may be written.
    pub state: Option<PathBuf>,
    /// What signatures say of roles, where the format's addresses are roles and keys may be pinned to them.
    pub roles: Roles,
    /// `$HOME`, for formats whose programs look there whatever else they are told.
    pub home: Option<PathBuf>,
}

/// Opens a store, creating its folder if the format has it created.
///
/// # Errors
/// If the folder cannot be created or read, or I am nobody in it.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    asked::require_response(&spec.dir).map_err(|e| StoreError::io(&spec.dir, e))?;
    Ok(match spec.kind {
        Kind::Samp => Arc::new(samp::SampStore::open(spec)?),
        Kind::AgentAzall => agentazall::open(spec)?,
        Kind::Amp => amp::open(spec)?,
        Kind::Atsf => Arc::new(atsf::AtsfStore::open(spec)?),
        Kind::Ssot => ssot::open(spec)?,
        Kind::Amq => amq::open(spec)?,
    })
}
