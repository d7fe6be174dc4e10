#![doc = include_str!("../../docs/ADDING-A-KIND.md")]

pub mod agentazall;
pub mod amp;
pub mod amq;
mod aside;
pub mod atsf;
pub mod below;
pub mod digest;
pub mod engine;
mod error;
mod found;
pub mod fs;
mod kind;
pub mod parallel;
pub mod place;
pub mod process;
pub mod samp;
mod sending;
pub mod ssot;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::aside::{Advice, Note, Notebook, RawEntry, Violation, Watermark};
pub use self::error::StoreError;
pub use self::found::{
    Again, EmptyThread, Found, Location, Part, Record, Rejected, Sink, all_from,
};
pub use self::kind::Kind;
pub use self::sending::{Durability, Fit, Prepared, Preparing, Signer};
use crate::model::{Claim, Draft, PublicKey, Seed, Timestamp};

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

    /// Times are whole seconds, so names count the messages of one second (docs/SEMANTICS.md, S17).
    fn whole_seconds(&self) -> bool;

    /// The largest body it takes, in bytes.
    fn max_body(&self) -> u64;

    /// Whether threads are made of reply links ([`Found::answers`]) because the format has no
    /// thread ids.
    fn links(&self) -> bool {
        false
    }

    /// Whether addresses are roles that several may fill: a signature is verified with the key it
    /// carries, and no key is pinned to an address.
    fn roles(&self) -> bool {
        false
    }

    /// Whether a thread id may carry a label after [`ORIGIN`](crate::model::ORIGIN) that tells
    /// threads of the same id apart.
    fn origins(&self) -> bool {
        false
    }

    /// The threads that have no messages, by id.
    fn empty_threads(&self) -> Vec<EmptyThread> {
        Vec::new()
    }

    /// A path in the store changed: the next scan must look at it.
    fn note(&self, _path: &Path) {}

    /// Whether something could not be read for a reason that may pass by itself, and was not read
    /// since: then a full scan follows in a while.
    fn is_failing(&self) -> bool {
        false
    }

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

    /// Folders besides the watched ones in which a killed msgfs may have left temporary files.
    fn written(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether a change of this file name in a watched folder can matter.
    fn concerns(&self, folder: &Path, name: &std::ffi::OsStr) -> bool;

    /// What is wrong with the store right now, one line each; empty if nothing.
    fn health(&self) -> Vec<String>;

    /// What else a person should know, one line each: mail that waits for somebody.
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

    /// Header lines that only drafts for this store carry, in their canonical spelling.
    fn headers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whom a text goes to that names nobody: an answer to a thread without messages.
    fn default_recipient(&self) -> Option<String> {
        None
    }

    /// The recipient that a text names itself, if it is a whole message of this format.
    fn recipient_in(&self, _text: &str) -> Option<String> {
        None
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
    /// [`StoreError::Busy`], soon, if somebody else keeps the thread locked: this one is tried again
    /// in a moment, and messages of other threads must not wait for it. Else as the system gave it. Nothing is half written as far as readers are concerned.
    fn append(&self, message: &Prepared) -> Result<(), StoreError>;

    /// Whether an append may be made again and then only does what is still missing. If not, what
    /// the index knows as mine counts as appended.
    fn repeats(&self) -> bool {
        false
    }

    /// Whether there can be anything for [`Store::deliver`] to do.
    fn delivers(&self) -> bool {
        self.repeats()
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

    /// Whether the store may keep one read position for me. If not, nobody computes
    /// it.
    fn has_watermark(&self) -> bool {
        false
    }

    /// The read position the store keeps for me, if it has one and somebody set it.
    fn watermark(&self) -> Option<Watermark> {
        None
    }

    /// Moves that position forward, never back, and answers with what was written; `None` if the
    /// position was left alone.
    ///
    /// # Errors
    /// As the system gave it; a read-only store is not an error worth more than a warning.
    fn set_watermark(&self, _mark: &Watermark) -> Result<Option<Watermark>, StoreError> {
        Ok(None)
    }

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
        Kind::Atsf => Arc::new(atsf::Atsf::open(spec)?),
        Kind::Ssot => Arc::new(ssot::Ssot::open(spec)?),
        Kind::Amq => Arc::new(amq::Amq::open(spec)?),
    })
}
