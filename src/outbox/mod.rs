//! From draft to appended message: parse, route, spool, commit (docs/SEMANTICS.md, "Writing").
//!
//! # The life of a draft
//!
//! 1. *Open*: every open for writing has a buffer of its own. Each write is checked as far as possible, because shells
//!    never see an error of `close`.
//! 2. *Flush* (each `close` of a descriptor): a draft with new text is parsed, routed, turned into signed records and
//!    put into the spool, with copies of its attachments. Now `close` may return 0: the message survives the end of the
//!    process and loss of power. A later flush with more text replaces it.
//! 3. *Release* (the last `close`): the records go to the one thread that appends to stores; then the index takes them
//!    in and the spool forgets them.
//! 4. A refusal at any point saves the draft among the `SavedDrafts`, with the reason.
//!
//! A message for a thread that another program keeps locked waits alone, and is tried again with growing pauses. The
//! same thread asks a store to deliver its waiting messages at the start and whenever the store changed.
//!
//! # Locks
//!
//! One draft → `reservations` → `saved_drafts` → `folder_notes`, `unlisted_notes`, `last_refusal`; the locks of the
//! index come after `saved_drafts`, under which no store is asked. The table of open drafts is never held while another
//! lock is taken. While a flush waits for the disk only its draft is locked.

mod address;
mod attachments;
mod clock;
mod compose;
pub mod draft;
mod error;
mod folders;
mod keys;
mod lifecycle;
mod listing;
mod mount_check;
pub mod names;
mod pack;
mod refusals;
mod reply_warnings;
mod reservations;
mod retry;
mod route;
mod saved_drafts;
mod sender;
mod spool;
mod thread_backoff;
mod unlisted_notes;
mod whole_message;

pub use compose::Composer;
pub use error::OutboxError;
pub use folders::{BODY, ComposeHandle};
pub use keys::{MyPublicKeys, SigningKeys, explain_lost_key};
pub use reply_warnings::{FollowedReplyWarnings, REPLY_WARNINGS_LOG, ReplyWarnings};
pub use route::invalid_address_error;
pub use saved_drafts::SavedDraft;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::locks::{LockLevel, Mutex};
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::model::{Timestamp, UnknownRecipient};
use crate::store::{Durability, Facets, PreparedRecord, Store, StoreUpkeep};
use attachments::AttachmentSpool;
use folders::ComposeFolders;
use pack::DraftPacker;
use reservations::Reservations;
use saved_drafts::SavedDrafts;
use sender::SendContext;
pub use sender::SenderThread;
use spool::{Spool, SpoolParcel};
use unlisted_notes::UnlistedNotes;

/// The time within which the second use of an idempotency key is a retry.
pub(crate) const IDEMPOTENCY_WINDOW_MS: i64 = 7 * 86_400_000;
/// The largest text that every write checks again. For longer ones this would cost the square of the length.
const EARLY_LIMIT: usize = 64 << 10;
/// The longest wait of a reader for the release of a flushed draft. The kernel sends it right after the last flush.
const CLOSING: Duration = Duration::from_millis(250);
/// The same time after a refused flush. It is longer, because the user then looks for the reason and for nothing else.
const REFUSING: Duration = Duration::from_millis(500);
/// The longest wait, at the end of the process, for programs that take messages.
const TAKING: Duration = Duration::from_secs(60);

/// The kind of message that a draft becomes, which follows from the place of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DraftTarget {
    /// `outbox/<name>`: the name or the headers give the recipient.
    #[default]
    Outbox,
    /// `<message>.reply`: a reply to that message.
    Reply {
        /// Store of the message.
        store: String,
        /// Sender of the message.
        from: String,
        /// Id of the message.
        id: String,
    },
    /// `<message>.reply-all`: a reply to that message that also goes to its other recipients.
    #[serde(rename = "reply-all")]
    ReplyAll {
        /// Store of the message.
        store: String,
        /// Sender of the message.
        from: String,
        /// Id of the message.
        id: String,
    },
    /// `threads/<thread>/<name>`: a reply to the thread.
    Thread {
        /// Store of the thread.
        store: String,
        /// Id of the thread.
        id: String,
    },
}

/// The members of each group, by its name.
pub type RecipientGroups = BTreeMap<String, Vec<String>>;

/// Number of an open draft.
pub type DraftId = u64;

/// The settings of the outbox.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// The setting that says if sends wait for the disk.
    pub durability: Durability,
    /// Largest text in bytes.
    pub max_message: u64,
    /// The treatment of unknown recipients.
    pub unknown_recipient: UnknownRecipient,
    /// Names that stand for several recipients.
    pub groups: RecipientGroups,
}

/// A message that was accepted and is not in its store yet, or not for every recipient.
#[derive(Clone, Debug)]
pub struct PendingMessage {
    /// Name of the store.
    pub store: String,
    /// The record that will be appended there.
    pub message: PreparedRecord,
    /// The idempotency key under which it was accepted.
    pub key: Option<String>,
    /// The reason why it waits; `None` if it is just on its way.
    pub waits: Option<String>,
}

/// The last refusal.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Name of the draft.
    pub name: String,
    /// The reason, in a sentence.
    pub reason: String,
    /// The time of the refusal.
    pub time: Timestamp,
}

/// The result of flushing a draft.
#[derive(Debug)]
struct SpooledDraft {
    /// Its number in the spool, from which it is sent at the last close. `None` if every recipient has it already,
    /// because it is a retry under the same idempotency key.
    number: Option<u64>,
    parcels: Vec<SpoolParcel>,
}

/// A draft that is being written.
#[derive(Debug, Default)]
struct OpenDraft {
    name: String,
    target: DraftTarget,
    text: Vec<u8>,
    /// The files of a composing folder that become attachments: names and paths.
    files: Vec<(String, PathBuf)>,
    /// True if the text changed since the last flush.
    dirty: bool,
    /// True if something was written or cut. Otherwise closing the draft changes nothing.
    touched: bool,
    /// The result of the last flush.
    spooled: Option<SpooledDraft>,
    refused: Option<Arc<OutboxError>>,
    /// True if a close was refused, and not a write: more text is then a new attempt.
    refused_at_close: bool,
    /// True if the draft was removed while open. Closing it then sends nothing.
    unlinked: bool,
    /// True for the text of a composing folder, which keeps it if it is refused.
    composed: bool,
    /// True if the draft is sent or saved, and is no longer open.
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

    /// Returns true if the draft is listed in `outbox/`.
    fn is_listed(&self) -> bool {
        !self.unlinked && !self.composed && self.target == DraftTarget::Outbox
    }

    /// Returns true if the draft is written under this name in this place.
    fn is_named(&self, name: &str, target: &DraftTarget) -> bool {
        self.name == name && self.target == *target
    }

    /// Returns true if the draft has nothing that could be sent.
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.files.is_empty()
    }

    /// Notes a refusal and returns it.
    fn record_refusal(&mut self, why: OutboxError) -> OutboxError {
        let why = Arc::new(why);
        self.refused = Some(Arc::clone(&why));
        OutboxError::Already(why)
    }

    /// Notes that a close was refused. The refusal stands until more text is written.
    fn record_close_refusal(&mut self, why: OutboxError) -> OutboxError {
        self.refused_at_close = true;
        self.record_refusal(why)
    }

    /// Clears the refusal after a write or a rename.
    fn clear_refusal(&mut self) {
        self.refused = None;
        self.refused_at_close = false;
    }
}

/// One file listed in `outbox/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// File name.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change.
    pub time: Timestamp,
    /// True for the note beside a refused draft.
    pub is_note: bool,
}

/// An open draft, with facts about it that can be read while it is locked: its flush may wait long for the disk.
#[derive(Debug)]
struct OpenDraftEntry {
    name: String,
    /// True if it is listed in `outbox/`.
    listed: bool,
    written: WriteTime,
    draft: Arc<Mutex<OpenDraft>>,
}

/// The time at which a draft was written last.
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
    packer: DraftPacker,
    sender: SenderThread,
    next: AtomicU64,
    open_drafts: Mutex<BTreeMap<DraftId, OpenDraftEntry>>,
    saved_drafts: Mutex<SavedDrafts>,
    folders: ComposeFolders,
    last_refusal: Mutex<Option<Refusal>>,
    /// The reasons for which composing folders were refused.
    folder_notes: Mutex<BTreeMap<String, (String, Timestamp)>>,
    unlisted_notes: UnlistedNotes,
}

impl Outbox {
    /// Opens the outbox of a state folder and sends what an earlier process had accepted.
    ///
    /// # Errors
    /// If the state folder cannot be used.
    pub fn open(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
    ) -> Result<Arc<Self>, OutboxError> {
        let outbox = Self::open_state(state, index, keys, settings, false)?;
        let stores = outbox.context.index.stores();
        if stores.iter().all(|store| outbox.report_sent_to_store(store.as_ref())) {
            outbox.context.trim_spool();
        }
        outbox.recover_spool();
        for number in 0..outbox.context.index.stores().len() {
            outbox.handle_store_change(number);
        }
        Ok(outbox)
    }

    /// Opens the outbox of a state folder to look at only. Another process may have it open; nothing is sent, saved or
    /// removed.
    ///
    /// # Errors
    /// If the state folder cannot be read.
    pub fn open_read_only(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
    ) -> Result<Arc<Self>, OutboxError> {
        Self::open_state(state, index, keys, settings, true)
    }

    fn open_state(
        state: &Path,
        index: Arc<Index>,
        keys: Arc<SigningKeys>,
        settings: OutboxSettings,
        read_only: bool,
    ) -> Result<Arc<Self>, OutboxError> {
        let io = |what| move |error| OutboxError::Io { what, error };
        let (at, drafts) = (state.join("spool"), state.join("drafts"));
        let spool = if read_only {
            Spool::open_read_only(&at)
        } else {
            Spool::open(&at, settings.durability)
        };
        let spool = spool.map_err(io("the spool cannot be opened"))?;
        let saved_drafts = if read_only {
            SavedDrafts::open_read_only(&drafts)
        } else {
            SavedDrafts::open(&drafts)
        };
        let saved_drafts = saved_drafts.map_err(io("refused drafts cannot be read"))?;
        let pending = spool.pending();
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let attachments = if read_only {
            Ok(AttachmentSpool::open_read_only(state))
        } else {
            AttachmentSpool::open(state, settings.durability, parcels)
        };
        let attachments =
            attachments.map_err(io("the copies of attachments cannot be looked at"))?;
        let parcels = pending.iter().flat_map(|(_, parcels)| parcels);
        let spooled = parcels.map(|p| p.message.id.as_str()).collect();
        let folders =
            ComposeFolders::open(state.join("composing"), settings.durability, &spooled, read_only)
                .map_err(io("the composing folders cannot be looked at"))?;
        let errors = folders.list_errors().into_iter().map(|(name, why, time)| (name, (why, time)));
        let notes = Mutex::new(errors.collect());
        let reserved = Mutex::with_level(LockLevel::Reserved, Reservations::default());
        let durability = settings.durability;
        let tools =
            Arc::new(SendContext { index, spool, reservations: reserved, attachments, durability });
        let sender = if read_only {
            let waiting = pending.iter().map(|(n, _)| *n).collect();
            Ok(SenderThread::without_thread(Arc::clone(&tools), waiting))
        } else {
            SenderThread::start(Arc::clone(&tools))
        };
        let sender = sender.map_err(io("the sending thread cannot be started"))?;
        let last_refusal = saved_drafts.last_refusal();
        let warnings = ReplyWarnings::open(&state.join(REPLY_WARNINGS_LOG), !read_only);
        let packer =
            DraftPacker::new(Arc::clone(&tools), settings.clone(), Arc::clone(&keys), warnings);
        Ok(Arc::new(Self {
            context: tools,
            settings,
            keys,
            packer,
            sender,
            next: AtomicU64::new(1),
            open_drafts: Mutex::default(),
            saved_drafts: Mutex::with_level(LockLevel::SavedDrafts, saved_drafts),
            last_refusal: Mutex::new(last_refusal),
            folder_notes: notes,
            folders,
            unlisted_notes: UnlistedNotes::default(),
        }))
    }

    /// Has a store record what earlier processes had sent and may not have recorded on disk. Returns false if it
    /// cannot.
    fn report_sent_to_store(&self, store: &dyn Store) -> bool {
        let spool = &self.context.spool;
        let Some(upkeep) = store.facets().upkeep else {
            spool.forget_sent(store.name());
            return true;
        };
        let sent = spool.list_sent(store.name());
        let messages: Vec<&PreparedRecord> = sent.iter().map(|parcel| &parcel.message).collect();
        let told = upkeep.note_appended(&messages);
        told.inspect(|()| spool.forget_sent(store.name()))
            .inspect_err(|error| {
                tracing::warn!(%error, "the list of sent messages cannot be saved; the messages \
                    stay in the spool");
            })
            .is_ok()
    }

    /// Adds a new store and sends what waits for it.
    pub fn add_store(&self, number: usize) {
        if let Some(store) = self.context.index.stores().get(number) {
            self.report_sent_to_store(store.as_ref());
        }
        self.sender.retry_failed();
        self.handle_store_change(number);
    }

    /// Sends the messages that an earlier process left in the spool, if their stores do not have them. Ends each entry
    /// when the disk has it.
    fn recover_spool(&self) {
        for (n, parcels) in self.context.spool.pending() {
            let messages =
                parcels.iter().filter(|p| !sender::is_in_store(&self.context.index, p)).count();
            if messages > 0 {
                tracing::info!(messages, "sending messages that an earlier process accepted");
            }
            self.context.reservations.lock().insert_all(&parcels);
            self.sender.send(n, parcels, true);
        }
        self.sender.wait_until_appended(Duration::from_secs(10));
    }

    /// Returns the thread that appends messages whose `close` has returned.
    pub fn sender(&self) -> &SenderThread {
        &self.sender
    }

    /// Handles a change of a store: messages that wait in it are delivered if they can be now, and lines that others
    /// took out are brought back.
    pub fn handle_store_change(&self, number: usize) {
        let Some(store) = self.context.index.stores().get(number) else { return };
        let Facets { deliveries, upkeep, .. } = store.facets();
        if deliveries.is_some() || upkeep.is_some_and(StoreUpkeep::is_recovery_due) {
            self.sender.request_delivery(number);
        }
    }

    /// Returns the faults that keep stores from sending or delivering, one line each.
    pub fn list_faults(&self) -> Vec<String> {
        let stores = self.context.index.stores();
        let mut out = Vec::new();
        for (number, why) in self.sender.undelivered_stores() {
            let name = self.context.index.store(number).name();
            out.push(format!(
                "the store {name} cannot write or deliver everything until this is mended: {why}"
            ));
        }
        for (name, why) in self.keys.list_faults(stores) {
            out.push(format!("nothing can be sent in the store {name}: {why}"));
        }
        out
    }

    /// Returns the warnings about replies of mine.
    pub fn reply_warnings(&self) -> &ReplyWarnings {
        &self.packer.reply_warnings
    }

    /// Returns the public keys by which I am known now.
    pub fn my_keys(&self) -> MyPublicKeys {
        self.keys.public_keys(self.context.index.stores())
    }

    /// Returns the last refusal.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.last_refusal.lock().clone()
    }

    /// Stops sending after finishing what is under way, also in other programs; the rest stays in the spool.
    pub fn close(self: &Arc<Self>) {
        for folder in self.folders.stop_waiting() {
            self.composer().send_folder(&folder);
        }
        self.composer().wait_for_folders(Duration::from_secs(5));
        self.sender.wait_until_appended(Duration::from_secs(5));
        let deadline = Instant::now() + TAKING;
        let stores = self.context.index.stores().iter();
        let appenders = stores.filter_map(|store| store.facets().appender);
        // The loop must call every store, so it does not stop at the first.
        if appenders.filter(|appender| appender.end_runs(deadline)).count() > 0 {
            tracing::info!("a program that takes mail still runs; msgfs waits for it");
            self.sender.retry_failed();
        }
        self.sender.stop();
        self.saved_drafts.lock().save_unsaved();
    }
}

/// Returns the store of this name, and its number.
fn find_store<'a>(index: &'a Index, name: &str) -> Option<(usize, &'a Arc<dyn Store>)> {
    index.stores().iter().enumerate().find(|(_, store)| store.name() == name)
}

/// Returns the text of the note beside a refused draft.
pub(super) fn render_note(reason: &str) -> String {
    format!("{}\n", crate::model::sanitize_text(reason))
}

#[cfg(test)]
mod tests;
