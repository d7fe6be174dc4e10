//! From draft to appended message: parse, route, spool, commit (docs/SEMANTICS.md, "Writing").
//!
//! # The life of a draft
//!
//! 1. *Open*: every open for writing has a buffer of its own. Each write is judged as far as it can
//!    be, because shells never see an error of `close`.
//! 2. *Flush* (each `close` of a descriptor): a draft with new text is parsed, routed, turned into
//!    signed records and put into the spool, with copies of what goes along. Now `close` may return 0: the message survives
//!    the end of the process and loss of power. A later flush with more text replaces it.
//! 3. *Release* (the last `close`): the records go to the one thread that appends to stores; then
//!    the index takes them in and the spool forgets them.
//! 4. A refusal at any point keeps the draft on the shelf, with the sentence that says why.
//!
//! What is for a thread that somebody else keeps locked waits alone, and is tried again with growing
//! pauses. What a store could not deliver at once, it is asked to deliver again at the start and whenever it
//! changed, by the same thread.
//!
//! # Locks
//!
//! One draft → `reserved` → `shelf` → `notes`, `last_refusal`; the locks of the index come after
//! `reserved`. The table of open drafts is never held while another lock is taken. While a flush
//! waits for the disk only its draft is locked.

mod address;
mod attachments;
mod busy;
mod clock;
mod compose;
mod contents;
pub mod draft;
mod error;
mod folders;
mod kept;
mod keys;
mod life;
pub mod names;
mod pack;
mod reach;
mod reserved;
mod route;
mod sender;
mod spool;
mod whole;

pub use error::OutboxError;
pub use folders::{BODY, Composed};
pub use kept::Kept;
pub use keys::{Keys, MyKeys, lost_key};
pub use route::not_an_address;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::locks::{Level, Mutex};
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::model::{Timestamp, UnknownRecipient};
use crate::store::{Durability, Facets, Prepared, Recovery, Store};
use attachments::Attachments;
use clock::Clock;
use draft::Headers;
use folders::Folders;
use kept::Shelf;
use reserved::Reserved;
use sender::{Sender, Tools};
use spool::{Parcel, Spool};

/// A key used again within this time means a retry.
const IDEMPOTENCY_WINDOW_MS: i64 = 7 * 86_400_000;
/// Judging every write of a long draft again would cost the square of its length.
const EARLY_LIMIT: usize = 64 << 10;
/// The kernel sends the release right after the flush of the last close; who reads within this
/// time waits for it.
const CLOSING: Duration = Duration::from_millis(250);
/// The same after a refused one. Longer, because who was refused looks for the reason and for nothing
/// else.
const REFUSING: Duration = Duration::from_millis(500);
/// For so long the note of a draft that was removed can still be removed by its name, though it is listed
/// no more: `rm outbox/*` has asked for both.
const NOTE_AFTER: Duration = Duration::from_secs(60);

/// What a draft becomes, from where it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// `outbox/<name>`: the name or the headers say whom it is for.
    #[default]
    Outbox,
    /// `<message>.reply`: an answer to that message.
    Reply {
        /// Store of the message.
        store: String,
        /// Its writer.
        from: String,
        /// Its id.
        id: String,
    },
    /// `<message>.reply-all`: an answer to that message that also goes to its other recipients.
    #[serde(rename = "reply-all")]
    ReplyAll {
        /// Store of the message.
        store: String,
        /// Its writer.
        from: String,
        /// Its id.
        id: String,
    },
    /// `threads/<thread>/<name>`: an answer to the thread.
    Thread {
        /// Store of the thread.
        store: String,
        /// Its id.
        id: String,
    },
}

/// By the name of a group, its members.
pub type Groups = BTreeMap<String, Vec<String>>;

/// Number of an open draft.
pub type DraftId = u64;

/// How the outbox works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether sends wait for the disk.
    pub durability: Durability,
    /// Largest text in bytes.
    pub max_message: u64,
    /// What happens to recipients nobody has heard of.
    pub unknown_recipient: UnknownRecipient,
    /// Names that stand for several recipients.
    pub groups: Groups,
}

/// A message that was accepted and is not, or not for everybody, in its store yet.
#[derive(Clone, Debug)]
pub struct Held {
    /// Name of the store.
    pub store: String,
    /// What will be appended there.
    pub message: Prepared,
    /// Why it could not be, and since when; `None` if it is just on its way.
    pub waits: Option<(String, Timestamp)>,
}

/// The last refusal.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Name of the draft.
    pub name: String,
    /// The sentence.
    pub reason: String,
    /// When.
    pub time: Timestamp,
}

/// What a flush made of a draft.
#[derive(Debug)]
struct Spooled {
    /// Its number in the spool, from where it is sent at the last close. `None`: every recipient has
    /// it already, as it is a retry under the same idempotency key.
    number: Option<u64>,
    parcels: Vec<Parcel>,
}

/// A draft that is being written.
#[derive(Debug, Default)]
struct Open {
    name: String,
    target: Target,
    text: Vec<u8>,
    /// The files of a composing folder, which go along: names, and where they lie.
    files: Vec<(String, PathBuf)>,
    /// The text changed since the last flush.
    dirty: bool,
    /// Something was written or cut: otherwise closing it changes nothing.
    touched: bool,
    /// What the last flush made of it.
    spooled: Option<Spooled>,
    refused: Option<Arc<OutboxError>>,
    /// It was a close that was refused, and not a write: more text is a new attempt.
    at_close: bool,
    /// Removed while open: closing it sends nothing.
    unlinked: bool,
    /// The text of a composing folder, which keeps it if it is refused.
    composed: bool,
    /// It is sent or kept, and no draft that is open any more.
    over: bool,
    written: Written,
}

impl Open {
    fn new(name: &str, target: Target, text: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            target,
            text,
            written: Written::at(Timestamp::now()),
            ..Self::default()
        }
    }

    /// Whether it is listed in `outbox/`.
    fn is_listed(&self) -> bool {
        !self.unlinked && !self.composed && self.target == Target::Outbox
    }

    /// Whether it is written under this name in this place.
    fn is(&self, name: &str, target: &Target) -> bool {
        self.name == name && self.target == *target
    }

    /// Whether there is nothing in it that could be sent.
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.files.is_empty()
    }

    /// Notes a refusal and gives it on.
    fn refuse(&mut self, why: OutboxError) -> OutboxError {
        let why = Arc::new(why);
        self.refused = Some(Arc::clone(&why));
        OutboxError::Already(why)
    }

    /// Notes that a close was refused, which stands until somebody writes again.
    fn refuse_close(&mut self, why: OutboxError) -> OutboxError {
        self.at_close = true;
        self.refuse(why)
    }

    /// Something was written or renamed: what was refused counts no more.
    fn try_again(&mut self) {
        self.refused = None;
        self.at_close = false;
    }
}

/// What is listed in `outbox/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// File name.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// When it was last changed.
    pub time: Timestamp,
    /// The note beside a refused draft.
    pub is_note: bool,
}

/// An open draft, and what is asked of it while it is locked: its flush may wait long for the disk.
#[derive(Debug)]
struct Named {
    name: String,
    /// It is listed in `outbox/`.
    listed: bool,
    written: Written,
    draft: Arc<Mutex<Open>>,
}

/// When a draft was written last.
#[derive(Clone, Debug, Default)]
struct Written(Arc<AtomicI64>);

impl Written {
    fn at(time: Timestamp) -> Self {
        Self(Arc::new(time.millis().into()))
    }

    fn now(&self) {
        self.0.store(Timestamp::now().millis(), Ordering::Relaxed);
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// The outbox. One per mount.
pub struct Outbox {
    tools: Arc<Tools>,
    settings: Settings,
    keys: Arc<Keys>,
    sender: Sender,
    next: AtomicU64,
    clock: Mutex<Clock>,
    open: Mutex<BTreeMap<DraftId, Named>>,
    shelf: Mutex<Shelf>,
    folders: Folders,
    last_refusal: Mutex<Option<Refusal>>,
    /// Why composing folders were refused.
    notes: Mutex<BTreeMap<String, (String, Timestamp)>>,
    /// The notes of drafts that were removed a moment ago, and when that was.
    removed: Mutex<BTreeMap<String, (String, Timestamp, Instant)>>,
}

impl Outbox {
    /// Opens the outbox of a state folder and sends what an earlier process had promised.
    ///
    /// # Errors
    /// If the state folder cannot be used.
    pub fn open(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<Keys>,
        settings: Settings,
    ) -> Result<Self, OutboxError> {
        let outbox = Self::of(state, index, keys, settings, false)?;
        outbox.tell_sent();
        outbox.recover();
        for number in 0..outbox.tools.index.stores().len() {
            outbox.changed(number);
        }
        Ok(outbox)
    }

    /// What is in the outbox of a state folder, to look at only: another process may have it open, and
    /// nothing is sent, kept or removed.
    ///
    /// # Errors
    /// If the state folder cannot be read.
    pub fn look(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<Keys>,
        settings: Settings,
    ) -> Result<Self, OutboxError> {
        Self::of(state, index, keys, settings, true)
    }

    fn of(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<Keys>,
        settings: Settings,
        looks: bool,
    ) -> Result<Self, OutboxError> {
        let io = |what| move |error| OutboxError::Io { what, error };
        let (at, drafts) = (state.join("spool"), state.join("drafts"));
        let spool =
            if looks { Spool::open_read_only(&at) } else { Spool::open(&at, settings.durability) };
        let spool = spool.map_err(io("the spool cannot be opened"))?;
        let shelf = if looks { Shelf::open_read_only(&drafts) } else { Shelf::open(&drafts) };
        let shelf = shelf.map_err(io("refused drafts cannot be read"))?;
        let pending = spool.pending();
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let attachments = if looks {
            Ok(Attachments::open_read_only(state))
        } else {
            Attachments::open(state, settings.durability, parcels)
        };
        let attachments =
            attachments.map_err(io("the copies of attachments cannot be looked at"))?;
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let spooled = parcels.map(|p| p.message.id.as_str()).collect();
        let folders = Folders::open(state.join("composing"), settings.durability, &spooled, looks)
            .map_err(io("the composing folders cannot be looked at"))?;
        let errors = folders.errors().into_iter().map(|(name, why, time)| (name, (why, time)));
        let notes = Mutex::new(errors.collect());
        let reserved = Mutex::at(Level::Reserved, Reserved::default());
        let durability = settings.durability;
        let tools = Arc::new(Tools { index, spool, reserved, attachments, durability });
        let sender = if looks { Ok(Sender::idle()) } else { Sender::start(Arc::clone(&tools)) };
        let sender = sender.map_err(io("the sending thread cannot be started"))?;
        let last_refusal = shelf.last_refusal();
        Ok(Self {
            tools,
            settings,
            keys,
            sender,
            next: AtomicU64::new(1),
            clock: Mutex::default(),
            open: Mutex::default(),
            shelf: Mutex::at(Level::Shelf, shelf),
            last_refusal: Mutex::new(last_refusal),
            notes,
            folders,
            removed: Mutex::default(),
        })
    }

    /// The header lines a draft can have here.
    fn headers(&self) -> Headers {
        let stores = self.tools.index.stores();
        Headers::with(stores.iter().flat_map(|store| store.about().headers).copied())
    }

    /// Has the stores keep what earlier processes had sent and that they may not have kept on disk.
    fn tell_sent(&self) {
        if self.tools.index.stores().iter().all(|store| self.tell_sent_in(store.as_ref())) {
            self.tools.trim();
        }
    }

    /// Has one store do so. Returns false if it cannot.
    fn tell_sent_in(&self, store: &dyn Store) -> bool {
        let Some(recovery) = store.facets().recovery else { return true };
        let sent = self.tools.spool.take_sent(store.name());
        let messages: Vec<&Prepared> = sent.iter().map(|parcel| &parcel.message).collect();
        let told = recovery.note_appended(&messages);
        told.inspect_err(|error| {
            tracing::warn!(%error, "the list of sent messages cannot be saved; the messages stay \
                in the spool");
        })
        .is_ok()
    }

    /// Takes a store that was not there before into account: what waits for it is sent.
    pub fn added(&self, number: usize) {
        if let Some(store) = self.tools.index.stores().get(number) {
            self.tell_sent_in(store.as_ref());
        }
        self.sender.try_again();
        self.changed(number);
    }

    /// Sends what is in the spool from an earlier process, as far as it is not in its store, and ends it
    /// when the disk has it.
    fn recover(&self) {
        for (n, parcels) in self.tools.spool.pending() {
            let messages =
                parcels.iter().filter(|p| !sender::is_in_store(&self.tools.index, p)).count();
            if messages > 0 {
                tracing::info!(messages, "sending messages that an earlier process accepted");
            }
            let mut reserved = self.tools.reserved.lock();
            for parcel in &parcels {
                reserved.add(parcel, None);
            }
            drop(reserved);
            self.sender.send(n, parcels, true);
        }
        self.settle(Duration::from_secs(10));
    }

    /// Waits until everything whose `close` has returned is in its store and in the index, at most
    /// `limit`.
    pub fn settle(&self, limit: Duration) {
        self.sender.settle(limit);
    }

    /// Messages that could not be appended and are tried again: recipient and reason.
    pub fn stuck(&self) -> Vec<(String, String)> {
        self.sender.stuck()
    }

    /// Whether there are messages as [`Outbox::held`] gives them, or may be.
    pub fn holds(&self) -> bool {
        self.sender.holds()
    }

    /// The messages whose `close` has returned and that not everybody has yet who shall, oldest first.
    pub fn held(&self) -> Vec<Held> {
        self.sender.held(&self.tools.spool)
    }

    /// A store changed: what waits in it may be delivered now, and what others took out is brought back.
    pub fn changed(&self, number: usize) {
        let Some(store) = self.tools.index.stores().get(number) else { return };
        let Facets { deliveries, recovery, .. } = store.facets();
        if deliveries.is_some() || recovery.is_some_and(Recovery::is_due) {
            self.sender.deliver(number);
        }
    }

    /// What keeps stores from sending or delivering, one line each.
    pub fn troubles(&self) -> Vec<String> {
        let stores = self.tools.index.stores();
        let mut out = Vec::new();
        for (number, why) in self.sender.undelivered() {
            let name = stores.get(number).map_or("", |store| store.name());
            out.push(format!(
                "mail waits in the store {name} and is delivered when this is mended: {why}"
            ));
        }
        for (name, why) in self.keys.troubles(stores) {
            out.push(format!("nothing can be sent in the store {name}: {why}"));
        }
        out
    }

    /// The keys by which I am known now.
    pub fn my_keys(&self) -> MyKeys {
        self.keys.mine(self.tools.index.stores())
    }

    /// The last refusal.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.last_refusal.lock().clone()
    }

    /// Stops sending after what is under way; the rest stays in the spool.
    pub fn close(&self) {
        for folder in self.folders.end() {
            self.send_folder(&folder);
        }
        self.settle_folders(Duration::from_secs(5));
        self.settle(Duration::from_secs(5));
        self.sender.stop();
        self.shelf.lock().save_rest();
    }
}

/// The store of this name, and its number.
fn named<'a>(index: &'a Index, name: &str) -> Option<(usize, &'a Arc<dyn Store>)> {
    index.stores().iter().enumerate().find(|(_, store)| store.name() == name)
}

/// The text of the note beside a refused draft.
pub(super) fn note(reason: &str) -> String {
    format!("{}\n", crate::model::safe_text(reason))
}

#[cfg(test)]
mod tests;
