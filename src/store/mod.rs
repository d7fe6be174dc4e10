#![doc = include_str!("../../docs/ADDING-A-KIND.md")]

pub mod agentazall;
pub mod amp;
pub mod amq;
pub mod append_log;
pub mod atomic_file;
pub mod atsf;
pub mod confined;
pub mod digest;
pub mod engine;
mod error;
mod extras;
mod facets;
pub mod fs;
mod kind;
pub mod maildir;
pub mod mounts;
pub mod parallel;
mod prepare;
pub mod probe;
pub mod process;
mod properties;
mod reading;
mod receipt;
mod records;
mod remote;
pub mod samp;
pub mod sessions;
pub mod ssot;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use self::error::StoreError;
pub use self::extras::{
    Advice, Notebook, NotebookEntry, PeerReadState, PeerUnread, RawEntry, Violation, Watermark,
};
pub use self::facets::{
    DeliveryQueue, Facets, MessageAppender, PartReader, StoreDirectory, StoreKeys, StoreMarks,
    StoreUpkeep,
};
pub use self::kind::{DefaultPlace, Kind, KindRow, KindSettings};
pub use self::prepare::{AddressFit, PrepareContext, PreparedRecord, Signer, refuse_headers};
pub use self::properties::{
    AnswerScheme, AttachmentRule, NextAnswerRule, SignedTextFn, StoreProperties, ThreadScheme,
};
pub use self::reading::{MessageReader, RawTree, SourceTitle};
pub use self::receipt::{NOT_TRIED_AGAIN, Receipt, SentMessage};
pub use self::records::{
    EmptyThread, FoundMessage, Location, MulticastKey, PartContent, Record, Rejection, RepeatKind,
    ScanSink, set_source_path,
};
pub use self::remote::{
    DeliveryFate, InboundMail, LinkRouter, OutboundMail, RemoteMail, RouterSlot,
};
pub use crate::model::Durability;

use crate::model::{Roles, SignatureClaim};

/// A listener that hears of folders before they are listed.
pub trait FolderListener: Send + Sync + fmt::Debug {
    /// Announces that this folder is about to be listed: no change in it is missed from now on.
    fn note_listing(&self, folder: &Path);
}

/// A mailbox of one kind on disk. The module's head says what implementations must keep.
///
/// Every kind has the methods of this trait. A store can do more by its [facets](Facets).
pub trait Store: MessageReader + RawTree + Send + Sync + fmt::Debug {
    /// Returns the properties, which do not change as long as the store is open.
    fn properties(&self) -> &StoreProperties;

    /// Returns the kind.
    fn kind(&self) -> Kind {
        self.properties().kind
    }

    /// Returns the name of this store in the mount.
    fn name(&self) -> &str {
        &self.properties().name
    }

    /// Returns the address by which this store knows me.
    fn me(&self) -> &str {
        &self.properties().me
    }

    /// Returns the folder of the store.
    fn dir(&self) -> &Path {
        &self.properties().dir
    }

    /// Returns the facets of the store.
    fn facets(&self) -> Facets<'_>;

    /// Notes that a path in the store has changed: the next scan examines it.
    fn note_change(&self, path: &Path);

    /// Reads the state that the store keeps in a folder of msgfs. It serves where nothing may be written and
    /// [`StoreSpec::state`] is therefore `None`.
    ///
    /// # Errors
    /// If there is something that cannot be read.
    fn read_state(&self, _dir: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns true if a path was [noted](Store::note_change), or written by this process, and no scan has taken it
    /// in. A scan that was under way meanwhile may have taken it in.
    fn has_unscanned_changes(&self) -> bool {
        true
    }

    /// Returns true if something could not be read for a reason that may pass by itself, and was not read since. A
    /// full scan then follows in a while.
    fn is_failing(&self) -> bool;

    /// Returns the time at which a file counts that the last scan found unfinished, if there is one. A scan is due
    /// then.
    fn due_time(&self) -> Option<Instant> {
        None
    }

    /// Reports everything that is new or changed since the last scan. Sources that cannot be read now keep their
    /// messages. Unless `full`, it is enough to examine the paths that were [noted](Store::note_change) and those that
    /// this process wrote.
    ///
    /// A message may be reported again at any time with another location, thread, link or mark. The last report
    /// counts.
    ///
    /// # Errors
    /// Only when the store as a whole cannot be read. Faults of single files are part of [`Store::health`].
    fn scan(&self, full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError>;

    /// Returns the cursors of the scan, which are kept with the index that was built from them.
    fn save_cursors(&self) -> Vec<u8>;

    /// Resumes from the bytes of [`Store::save_cursors`]. Returns false if they cannot be used. Then nothing was
    /// changed and the next scan starts over.
    fn restore_cursors(&self, saved: &[u8]) -> bool;

    /// Forgets all cursors: the next scan starts over.
    fn reset_cursors(&self);

    /// Returns the folders in which any change may mean a new message, as of the last scan.
    fn folders_to_watch(&self) -> Vec<PathBuf>;

    /// Sets the listener for folders that scans list and that [`Store::folders_to_watch`] has not named before. It is
    /// set once.
    fn set_folder_listener(&self, _listener: Arc<dyn FolderListener>) {}

    /// Returns true if a change of this file name in a watched folder can matter.
    fn is_relevant(&self, folder: &Path, name: &OsStr) -> bool;

    /// Returns a sentence if the store's folder was there and is gone. Nothing is then written, because the folder may
    /// come back and hide behind a new one.
    fn describe_missing_folder(&self) -> Option<String>;

    /// Returns the present faults of the store, one line each; empty if there are none.
    fn health(&self) -> Vec<String>;

    /// Returns other facts that a person should know, one line each: mail that waits.
    fn remarks(&self) -> Vec<String>;

    /// Returns what a person should mend, for `msgfs doctor`.
    fn advice(&self) -> Vec<Advice>;
}

/// A function that returns what is wrong with a signature.
pub type ClaimVerifier<'a> = &'a dyn Fn(&SignatureClaim) -> Option<String>;

/// A function that receives each broken rule.
pub type ViolationReporter<'a> = &'a mut dyn FnMut(Violation);

/// The settings with which a store is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSpec {
    /// Its name in the mount; unique, usable as one path component.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its folder (or, where the format has one, its configuration file), absolute. It may not exist.
    pub dir: PathBuf,
    /// True if a missing folder is created where the format allows it: nobody wrote its path into a configuration, so
    /// nobody mistyped it.
    pub may_create: bool,
    /// The agent for whom the mount acts.
    pub me: String,
    /// The address by which this store shall know me, if the configuration states one.
    pub own_address: Option<String>,
    /// A folder of msgfs's own in which the store may keep what would be lost otherwise; `None` where nothing may be
    /// written.
    pub state: Option<PathBuf>,
    /// The statements of signatures on roles, where the format's addresses are roles and keys may be pinned to them.
    pub roles: Roles,
    /// The way in which an append treats the disk.
    pub durability: Durability,
    /// `$HOME`, for formats whose programs always read there.
    pub home: Option<PathBuf>,
    /// The settings that only stores of its kind have.
    pub settings: KindSettings,
}

/// Opens a store. Creates its folder if the format allows it.
///
/// # Errors
/// If the folder cannot be created or read, or I am nobody in it.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    probe::require_response(&spec.dir).map_err(|e| StoreError::io(&spec.dir, e))?;
    (spec.kind.row().open)(spec)
}
