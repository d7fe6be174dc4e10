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
pub use folders::{BODY, ComposeHandle};
pub use kept::SavedDraft;
pub use keys::{MyPublicKeys, SigningKeys, explain_lost_key};
pub use route::invalid_address_error;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::locks::{LockLevel, Mutex};
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::model::{Timestamp, UnknownRecipient};
use crate::store::{Durability, Facets, LogRecovery, PreparedRecord, Store};
use attachments::AttachmentSpool;
use clock::SendClock;
use draft::DraftParser;
use folders::ComposeFolders;
use kept::SavedDrafts;
use reserved::Reservations;
use sender::{SendContext, SenderThread};
use spool::{Spool, SpoolParcel};

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
pub enum DraftTarget {
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
pub type RecipientGroups = BTreeMap<String, Vec<String>>;

/// Number of an open draft.
pub type DraftId = u64;

/// How the outbox works.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// Whether sends wait for the disk.
    pub durability: Durability,
    /// Largest text in bytes.
    pub max_message: u64,
    /// What happens to recipients nobody has heard of.
    pub unknown_recipient: UnknownRecipient,
    /// Names that stand for several recipients.
    pub groups: RecipientGroups,
}

/// A message that was accepted and is not, or not for everybody, in its store yet.
#[derive(Clone, Debug)]
pub struct PendingMessage {
    /// Name of the store.
    pub store: String,
    /// What will be appended there.
    pub message: PreparedRecord,
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
struct SpooledDraft {
    /// Its number in the spool, from where it is sent at the last close. `None`: every recipient has
    /// it already, as it is a retry under the same idempotency key.
    number: Option<u64>,
    parcels: Vec<SpoolParcel>,
}

/// A draft that is being written.
#[derive(Debug, Default)]
struct OpenDraft {
    name: String,
    target: DraftTarget,
    text: Vec<u8>,
    /// The files of a composing folder, which go along: names, and where they lie.
    files: Vec<(String, PathBuf)>,
    /// The text changed since the last flush.
    dirty: bool,
    /// Something was written or cut: otherwise closing it changes nothing.
    touched: bool,
    /// What the last flush made of it.
    spooled: Option<SpooledDraft>,
    refused: Option<Arc<OutboxError>>,
    /// It was a close that was refused, and not a write: more text is a new attempt.
    refused_at_close: bool,
    /// Removed while open: closing it sends nothing.
    unlinked: bool,
    /// The text of a composing folder, which keeps it if it is refused.
    composed: bool,
    /// It is sent or kept, and no draft that is open any more.
    finished: bool,
    written: WriteTime,
}

impl OpenDraft {
    fn new(name: &str, target: DraftTarget, text: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            target,
            text,
            written: WriteTime::from_time(Timestamp::now()),
            ..Self::default()
        }
    }

    /// Whether it is listed in `outbox/`.
    fn is_listed(&self) -> bool {
        !self.unlinked && !self.composed && self.target == DraftTarget::Outbox
    }

    /// Whether it is written under this name in this place.
    fn is_named(&self, name: &str, target: &DraftTarget) -> bool {
        self.name == name && self.target == *target
    }

    /// Whether there is nothing in it that could be sent.
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.files.is_empty()
    }

    /// Notes a refusal and gives it on.
    fn record_refusal(&mut self, why: OutboxError) -> OutboxError {
        let why = Arc::new(why);
        self.refused = Some(Arc::clone(&why));
        OutboxError::Already(why)
    }

    /// Notes that a close was refused, which stands until somebody writes again.
    fn record_close_refusal(&mut self, why: OutboxError) -> OutboxError {
        self.refused_at_close = true;
        self.record_refusal(why)
    }

    /// Something was written or renamed: what was refused counts no more.
    fn clear_refusal(&mut self) {
        self.refused = None;
        self.refused_at_close = false;
    }
}

/// What is listed in `outbox/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
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
struct OpenDraftEntry {
    name: String,
    /// It is listed in `outbox/`.
    listed: bool,
    written: WriteTime,
    draft: Arc<Mutex<OpenDraft>>,
}

/// When a draft was written last.
#[derive(Clone, Debug, Default)]
struct WriteTime(Arc<AtomicI64>);

impl WriteTime {
    fn from_time(time: Timestamp) -> Self {
        Self(Arc::new(time.millis().into()))
    }

    fn touch(&self) {
        self.0.store(Timestamp::now().millis(), Ordering::Relaxed);
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// The outbox. One per mount.
pub struct Outbox {
    context: Arc<SendContext>,
    settings: OutboxSettings,
    keys: Arc<SigningKeys>,
    sender: SenderThread,
    next: AtomicU64,
    clock: Mutex<SendClock>,
    open_drafts: Mutex<BTreeMap<DraftId, OpenDraftEntry>>,
    saved_drafts: Mutex<SavedDrafts>,
    folders: ComposeFolders,
    last_refusal: Mutex<Option<Refusal>>,
    /// Why composing folders were refused.
    folder_notes: Mutex<BTreeMap<String, (String, Timestamp)>>,
    /// The notes of drafts that were removed a moment ago, and when that was.
    removed_notes: Mutex<BTreeMap<String, (String, Timestamp, Instant)>>,
}

impl Outbox {
    /// Opens the outbox of a state folder and sends what an earlier process had promised.
    ///
    /// # Errors
    /// If the state folder cannot be used.
    pub fn open(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
    ) -> Result<Self, OutboxError> {
        let outbox = Self::open_state(state, index, keys, settings, false)?;
        outbox.report_sent_to_stores();
        outbox.recover_spool();
        for number in 0..outbox.context.index.stores().len() {
            outbox.handle_store_change(number);
        }
        Ok(outbox)
    }

    /// What is in the outbox of a state folder, to look at only: another process may have it open, and
    /// nothing is sent, kept or removed.
    ///
    /// # Errors
    /// If the state folder cannot be read.
    pub fn open_read_only(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
    ) -> Result<Self, OutboxError> {
        Self::open_state(state, index, keys, settings, true)
    }

    fn open_state(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
        looks: bool,
    ) -> Result<Self, OutboxError> {
        let io = |what| move |error| OutboxError::Io { what, error };
        let (at, drafts) = (state.join("spool"), state.join("drafts"));
        let spool =
            if looks { Spool::open_read_only(&at) } else { Spool::open(&at, settings.durability) };
        let spool = spool.map_err(io("the spool cannot be opened"))?;
        let shelf =
            if looks { SavedDrafts::open_read_only(&drafts) } else { SavedDrafts::open(&drafts) };
        let shelf = shelf.map_err(io("refused drafts cannot be read"))?;
        let pending = spool.pending();
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let attachments = if looks {
            Ok(AttachmentSpool::open_read_only(state))
        } else {
            AttachmentSpool::open(state, settings.durability, parcels)
        };
        let attachments =
            attachments.map_err(io("the copies of attachments cannot be looked at"))?;
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let spooled = parcels.map(|p| p.message.id.as_str()).collect();
        let folders =
            ComposeFolders::open(state.join("composing"), settings.durability, &spooled, looks)
                .map_err(io("the composing folders cannot be looked at"))?;
        let errors = folders.list_errors().into_iter().map(|(name, why, time)| (name, (why, time)));
        let notes = Mutex::new(errors.collect());
        let reserved = Mutex::with_level(LockLevel::Reserved, Reservations::default());
        let durability = settings.durability;
        let tools =
            Arc::new(SendContext { index, spool, reservations: reserved, attachments, durability });
        let sender = if looks {
            Ok(SenderThread::without_thread())
        } else {
            SenderThread::start(Arc::clone(&tools))
        };
        let sender = sender.map_err(io("the sending thread cannot be started"))?;
        let last_refusal = shelf.last_refusal();
        Ok(Self {
            context: tools,
            settings,
            keys,
            sender,
            next: AtomicU64::new(1),
            clock: Mutex::default(),
            open_drafts: Mutex::default(),
            saved_drafts: Mutex::with_level(LockLevel::Shelf, shelf),
            last_refusal: Mutex::new(last_refusal),
            folder_notes: notes,
            folders,
            removed_notes: Mutex::default(),
        })
    }

    /// The header lines a draft can have here.
    fn draft_parser(&self) -> DraftParser {
        let stores = self.context.index.stores();
        DraftParser::with_headers(
            stores.iter().flat_map(|store| store.properties().headers).copied(),
        )
    }

    /// Has the stores keep what earlier processes had sent and that they may not have kept on disk.
    fn report_sent_to_stores(&self) {
        if self.context.index.stores().iter().all(|store| self.report_sent_to_store(store.as_ref()))
        {
            self.context.trim_spool();
        }
    }

    /// Has one store do so. Returns false if it cannot.
    fn report_sent_to_store(&self, store: &dyn Store) -> bool {
        let Some(recovery) = store.facets().recovery else { return true };
        let sent = self.context.spool.drain_sent(store.name());
        let messages: Vec<&PreparedRecord> = sent.iter().map(|parcel| &parcel.message).collect();
        let told = recovery.note_appended(&messages);
        told.inspect_err(|error| {
            tracing::warn!(%error, "the list of sent messages cannot be saved; the messages stay \
                in the spool");
        })
        .is_ok()
    }

    /// Takes a store that was not there before into account: what waits for it is sent.
    pub fn add_store(&self, number: usize) {
        if let Some(store) = self.context.index.stores().get(number) {
            self.report_sent_to_store(store.as_ref());
        }
        self.sender.retry_failed();
        self.handle_store_change(number);
    }

    /// Sends what is in the spool from an earlier process, as far as it is not in its store, and ends it
    /// when the disk has it.
    fn recover_spool(&self) {
        for (n, parcels) in self.context.spool.pending() {
            let messages =
                parcels.iter().filter(|p| !sender::is_in_store(&self.context.index, p)).count();
            if messages > 0 {
                tracing::info!(messages, "sending messages that an earlier process accepted");
            }
            let mut reserved = self.context.reservations.lock();
            for parcel in &parcels {
                reserved.insert(parcel, None);
            }
            drop(reserved);
            self.sender.send(n, parcels, true);
        }
        self.wait_until_appended(Duration::from_secs(10));
    }

    /// Waits until everything whose `close` has returned is in its store and in the index, at most
    /// `limit`.
    pub fn wait_until_appended(&self, limit: Duration) {
        self.sender.wait_until_appended(limit);
    }

    /// Messages that could not be appended and are tried again: recipient and reason.
    pub fn stuck_messages(&self) -> Vec<(String, String)> {
        self.sender.stuck_messages()
    }

    /// Whether there are messages as [`Outbox::held`] gives them, or may be.
    pub fn has_pending(&self) -> bool {
        self.sender.has_pending()
    }

    /// The messages whose `close` has returned and that not everybody has yet who shall, oldest first.
    pub fn pending_messages(&self) -> Vec<PendingMessage> {
        self.sender.pending_messages(&self.context.spool)
    }

    /// A store changed: what waits in it may be delivered now, and what others took out is brought back.
    pub fn handle_store_change(&self, number: usize) {
        let Some(store) = self.context.index.stores().get(number) else { return };
        let Facets { deliveries, recovery, .. } = store.facets();
        if deliveries.is_some() || recovery.is_some_and(LogRecovery::is_recovery_due) {
            self.sender.request_delivery(number);
        }
    }

    /// What keeps stores from sending or delivering, one line each.
    pub fn list_faults(&self) -> Vec<String> {
        let stores = self.context.index.stores();
        let mut out = Vec::new();
        for (number, why) in self.sender.undelivered_stores() {
            let name = stores.get(number).map_or("", |store| store.name());
            out.push(format!(
                "mail waits in the store {name} and is delivered when this is mended: {why}"
            ));
        }
        for (name, why) in self.keys.list_faults(stores) {
            out.push(format!("nothing can be sent in the store {name}: {why}"));
        }
        out
    }

    /// The keys by which I am known now.
    pub fn my_keys(&self) -> MyPublicKeys {
        self.keys.public_keys(self.context.index.stores())
    }

    /// The last refusal.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.last_refusal.lock().clone()
    }

    /// Stops sending after what is under way; the rest stays in the spool.
    pub fn close(&self) {
        for folder in self.folders.stop_waiting() {
            self.send_folder(&folder);
        }
        self.wait_for_folders(Duration::from_secs(5));
        self.wait_until_appended(Duration::from_secs(5));
        self.sender.stop();
        self.saved_drafts.lock().save_unsaved();
    }
}

/// The store of this name, and its number.
fn find_store<'a>(index: &'a Index, name: &str) -> Option<(usize, &'a Arc<dyn Store>)> {
    index.stores().iter().enumerate().find(|(_, store)| store.name() == name)
}

/// The text of the note beside a refused draft.
pub(super) fn render_note(reason: &str) -> String {
    format!("{}\n", crate::model::sanitize_text(reason))
}

#[cfg(test)]
mod tests;
