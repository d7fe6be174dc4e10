//! From draft to appended message: parse, route, spool, commit (contract, section 5).
//!
//! # The life of a draft
//!
//! 1. *Open*: every open for writing has a buffer of its own. Each write is judged as far as it can
//!    be, because shells never see an error of `close`.
//! 2. *Flush* (each `close` of a descriptor): a draft with new text is parsed, routed, turned into
//!    signed records and put into the [spool](spool). Now `close` may return 0: the message survives
//!    the end of the process and loss of power. A later flush with more text replaces it.
//! 3. *Release* (the last `close`): the records go to the one thread that appends to stores; then
//!    the index takes them in and the spool forgets them.
//! 4. A refusal at any point keeps the draft on the [shelf](kept), with the sentence that says why.
//!
//! # Locks
//!
//! `open` (the table) → one draft → `reserved` → `shelf`; the index locks below all of them. No lock
//! is held while waiting for the disk but that of the one draft.

mod address;
pub mod draft;
mod error;
mod kept;
pub mod names;
mod route;
mod sender;
pub mod spool;

pub use error::OutboxError;
pub use kept::Kept;
pub use route::not_an_address;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::model::{Draft, Timestamp, UnknownRecipient};
use crate::store::{Durability, Preparing, Signer};
use kept::Shelf;
use sender::Sender;
use spool::{Parcel, Spool};

/// A key used again within this time means a retry.
const IDEMPOTENCY_WINDOW_MS: i64 = 7 * 86_400_000;
/// Judging every write of a long draft again would cost the square of its length.
const EARLY_LIMIT: usize = 64 << 10;
/// The kernel sends the release right after the flush of the last close; who reads within this
/// time waits for it.
const CLOSING: Duration = Duration::from_millis(60);

/// What a draft becomes, from where it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// `outbox/<name>`: the name or the headers say whom it is for.
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
    /// `threads/<thread>/<name>`: an answer to the thread.
    Thread {
        /// Store of the thread.
        store: String,
        /// Its id.
        id: String,
    },
}

/// Number of an open draft.
pub type DraftId = u64;

/// How the outbox works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether sends wait for the disk.
    pub durability: Durability,
    /// Largest text in bytes.
    pub max_message: u64,
    /// What happens to recipients nobody has heard of.
    pub unknown_recipient: UnknownRecipient,
}

/// The last refusal, for `status.txt`.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Name of the draft.
    pub name: String,
    /// The sentence.
    pub reason: String,
    /// When.
    pub time: Timestamp,
}

/// A draft that is being written.
#[derive(Debug)]
struct Open {
    name: String,
    target: Target,
    text: Vec<u8>,
    /// Files that go along, by absolute path.
    attach: Vec<String>,
    /// The text changed since the last flush.
    dirty: bool,
    /// Something was written or cut: otherwise closing it changes nothing.
    touched: bool,
    /// In the spool, ready to be sent at the last close.
    spooled: Option<(u64, Vec<Parcel>)>,
    refused: Option<Arc<OutboxError>>,
    /// Removed while open: closing it sends nothing.
    unlinked: bool,
    time: Timestamp,
}

impl Open {
    /// Notes a refusal and gives it on.
    fn refuse(&mut self, why: OutboxError) -> OutboxError {
        let why = Arc::new(why);
        self.refused = Some(Arc::clone(&why));
        OutboxError::Already(why)
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

/// The outbox. One per mount.
pub struct Outbox {
    index: Arc<Index>,
    settings: Settings,
    signer: Result<Arc<dyn Signer>, String>,
    spool: Arc<Spool>,
    sender: Sender,
    next: AtomicU64,
    open: Mutex<HashMap<DraftId, Arc<Mutex<Open>>>>,
    shelf: Mutex<Shelf>,
    /// Ids promised to drafts that are not in the index yet, by store.
    reserved: Arc<Mutex<HashSet<(String, String)>>>,
    last_refusal: Mutex<Option<Refusal>>,
    /// Why composing folders were refused.
    notes: Mutex<BTreeMap<String, (String, Timestamp)>>,
    state: PathBuf,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Outbox {
    /// Opens the outbox of a state folder and sends what an earlier process had promised.
    ///
    /// # Errors
    /// If the state folder cannot be used.
    pub fn open(
        state: &Path,
        index: Arc<Index>,
        signer: Result<Arc<dyn Signer>, String>,
        settings: Settings,
    ) -> Result<Self, OutboxError> {
        let io = |what| move |error| OutboxError::Io { what, error };
        let spool = Spool::open(&state.join("spool"), settings.durability)
            .map_err(io("the spool cannot be opened"))?;
        let shelf = Shelf::open(&state.join("drafts")).map_err(io("kept drafts cannot be read"))?;
        let spool = Arc::new(spool);
        let reserved = Arc::new(Mutex::new(HashSet::new()));
        let sender = Sender::start(
            Arc::clone(&index),
            Arc::clone(&spool),
            Arc::clone(&reserved),
            settings.durability,
        )
        .map_err(io("the sending thread cannot be started"))?;
        let last_refusal = shelf
            .iter()
            .filter_map(|(name, kept)| {
                let reason = kept.error.clone()?;
                Some(Refusal { name: name.clone(), reason, time: kept.time })
            })
            .max_by_key(|r| r.time);
        let outbox = Self {
            index,
            settings,
            signer,
            spool,
            sender,
            next: AtomicU64::new(1),
            open: Mutex::new(HashMap::new()),
            shelf: Mutex::new(shelf),
            reserved,
            last_refusal: Mutex::new(last_refusal),
            notes: Mutex::new(BTreeMap::new()),
            state: state.to_owned(),
        };
        outbox.recover();
        Ok(outbox)
    }

    /// Sends what is in the spool from an earlier process and not in its store.
    fn recover(&self) {
        for (n, parcels) in self.spool.pending() {
            let missing: Vec<Parcel> =
                parcels.into_iter().filter(|p| !self.is_in_store(p)).collect();
            if missing.is_empty() {
                self.spool.end(n);
            } else {
                tracing::info!(
                    messages = missing.len(),
                    "sending what an earlier process had promised"
                );
                self.commit(n, missing);
            }
        }
        self.settle(Duration::from_secs(10));
    }

    fn is_in_store(&self, parcel: &Parcel) -> bool {
        let stores = self.index.stores();
        let Some(number) = stores.iter().position(|s| s.name() == parcel.store) else {
            return false;
        };
        let me = stores.get(number).map_or("", |s| s.me());
        self.index.read().find(number, me, &parcel.message.id).is_some()
    }

    fn commit(&self, n: u64, parcels: Vec<Parcel>) {
        let mut reserved = self.reserved.lock();
        for p in &parcels {
            reserved.insert((p.store.clone(), p.message.id.clone()));
        }
        drop(reserved);
        self.sender.send(n, parcels);
    }

    /// Whether a file of this name may be created in `outbox/`.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if the name is neither an address nor that of a private draft.
    pub fn check_name(&self, name: &str) -> Result<(), OutboxError> {
        if names::is_private(name) {
            return Ok(());
        }
        if names::is_error_note(name) {
            return Err(OutboxError::NotPermitted(
                "names that end in .error are notes about refused drafts".into(),
            ));
        }
        let stores = self.index.stores();
        let recipient = names::recipient(name);
        if stores.iter().all(|s| s.fits(recipient) == crate::store::Fit::No) {
            return Err(not_an_address(stores, recipient));
        }
        Ok(())
    }

    /// Starts a draft. One that is kept under this name lends its text unless `truncate`, and its
    /// target.
    ///
    /// # Errors
    /// As [`Outbox::check_name`].
    pub fn start(
        &self,
        name: &str,
        target: Target,
        truncate: bool,
    ) -> Result<DraftId, OutboxError> {
        let kept = self.shelf.lock().get(name).cloned();
        if kept.is_none() && target == Target::Outbox {
            self.check_name(name).inspect_err(|e| {
                self.note_refusal(name, &e.to_string(), Timestamp::now());
            })?;
        }
        let (target, text, touched) = match kept {
            Some(kept) => {
                let cut = truncate && !kept.text.is_empty();
                (kept.target, if truncate { Vec::new() } else { kept.text.to_vec() }, cut)
            }
            None => (target, Vec::new(), false),
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            name: name.to_owned(),
            target,
            text,
            attach: Vec::new(),
            dirty: false,
            touched,
            spooled: None,
            refused: None,
            unlinked: false,
            time: Timestamp::now(),
        };
        self.open.lock().insert(id, Arc::new(Mutex::new(open)));
        Ok(id)
    }

    fn draft(&self, id: DraftId) -> Result<Arc<Mutex<Open>>, OutboxError> {
        self.open.lock().get(&id).cloned().ok_or(OutboxError::NotFound)
    }

    /// Writes at `offset`, or at the end if `None` (`O_APPEND`).
    ///
    /// # Errors
    /// What is already certain to be refused; the draft is then kept with its note.
    pub fn write(&self, id: DraftId, offset: Option<u64>, data: &[u8]) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if let Some(refused) = &d.refused {
            // What follows a refused part would stand alone, and be judged as something else.
            return Err(OutboxError::Already(Arc::clone(refused)));
        }
        let at = offset.unwrap_or(d.text.len() as u64);
        let end = at.saturating_add(data.len() as u64);
        d.touched = true;
        d.time = Timestamp::now();
        if end > self.settings.max_message {
            return Err(d.refuse(OutboxError::TooLarge(self.settings.max_message)));
        }
        let (at, end) = (at as usize, end as usize);
        if d.text.len() < end {
            d.text.resize(end, 0);
        }
        if let Some(slot) = d.text.get_mut(at..end) {
            slot.copy_from_slice(data);
        }
        d.dirty = true;
        if names::is_private(&d.name) || d.text.len() > EARLY_LIMIT {
            return Ok(());
        }
        self.judge_early(&d).map_err(|e| d.refuse(e))
    }

    /// What can be said of a draft that may not be complete.
    fn judge_early(&self, d: &Open) -> Result<(), OutboxError> {
        let Some(mut draft) = draft::parse_partial(&d.text)? else { return Ok(()) };
        address::complete(&self.index, &mut draft, &d.name, &d.target)?;
        self.signer.as_ref().map_err(|e| OutboxError::NoKey(e.clone()))?;
        self.routes(&draft).map(drop)
    }

    /// Cuts or extends the text.
    ///
    /// # Errors
    /// [`OutboxError::TooLarge`].
    pub fn truncate(&self, id: DraftId, len: u64) -> Result<(), OutboxError> {
        if len > self.settings.max_message {
            return Err(OutboxError::TooLarge(self.settings.max_message));
        }
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if d.text.len() as u64 != len {
            d.text.resize(len as usize, 0);
            d.dirty = true;
            d.touched = true;
            d.refused = None;
        }
        Ok(())
    }

    /// A descriptor was closed. When this returns `Ok` for a draft with text, the message survives
    /// whatever happens to this process.
    ///
    /// # Errors
    /// The refusal.
    pub fn flush(&self, id: DraftId) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if names::is_private(&d.name) || d.unlinked {
            return Ok(());
        }
        if let Some(refused) = &d.refused {
            return Err(OutboxError::Already(Arc::clone(refused)));
        }
        if !d.dirty {
            return Ok(());
        }
        self.spool_draft(&mut d).map_err(|e| d.refuse(e))?;
        d.dirty = false;
        self.sender.closing(id, Instant::now() + CLOSING);
        Ok(())
    }

    /// Puts the draft as it is now into the spool, in place of an earlier version.
    fn spool_draft(&self, d: &mut Open) -> Result<(), OutboxError> {
        let earlier = d.spooled.take();
        if d.text.is_empty() {
            if let Some((n, parcels)) = earlier {
                self.forget(n, &parcels);
            }
            return Ok(());
        }
        let made = self.prepare(d, earlier.as_ref().map_or(&[][..], |(_, p)| p));
        if let Some((n, parcels)) = earlier {
            self.forget(n, &parcels);
        }
        let parcels = made?;
        if parcels.is_empty() {
            // Every recipient has it already: a retry under the same idempotency key.
            d.spooled = Some((0, parcels));
            return Ok(());
        }
        let n = self.spool.put(parcels.clone()).map_err(|error| {
            self.release_ids(&parcels);
            OutboxError::Io { what: "the message could not be put into the spool", error }
        })?;
        d.spooled = Some((n, parcels));
        Ok(())
    }

    fn forget(&self, n: u64, parcels: &[Parcel]) {
        if n != 0 {
            self.spool.end(n);
        }
        self.release_ids(parcels);
    }

    fn release_ids(&self, parcels: &[Parcel]) {
        let mut reserved = self.reserved.lock();
        for p in parcels {
            reserved.remove(&(p.store.clone(), p.message.id.clone()));
        }
    }

    /// Parses, routes and signs. The ids of the result are reserved.
    fn prepare(&self, d: &Open, replaced: &[Parcel]) -> Result<Vec<Parcel>, OutboxError> {
        let mut draft = draft::parse(&d.text)?;
        draft.attach.extend(d.attach.iter().cloned());
        address::complete(&self.index, &mut draft, &d.name, &d.target)?;
        let signer = self.signer.as_ref().map_err(|e| OutboxError::NoKey(e.clone()))?;
        let routes = self.routes(&draft)?;
        let mut parcels = Vec::new();
        let mut reserved = self.reserved.lock();
        for p in replaced {
            reserved.remove(&(p.store.clone(), p.message.id.clone()));
        }
        for (number, to) in routes {
            let Some(store) = self.index.stores().get(number) else { continue };
            let mut part = Draft { to, cc: Vec::new(), ..draft.clone() };
            if self.already_sent(number, &mut part)? {
                continue;
            }
            if draft.body.len() as u64 > store.max_body() {
                return Err(OutboxError::TooLarge(store.max_body()));
            }
            let core = self.index.read();
            let taken = |id: &str| {
                core.find(number, store.me(), id).is_some()
                    || reserved.contains(&(store.name().to_owned(), id.to_owned()))
            };
            let with = Preparing { now: Timestamp::now(), signer: signer.as_ref(), taken: &taken };
            for message in store.prepare(&part, &with)? {
                parcels.push(Parcel { store: store.name().to_owned(), message });
            }
        }
        let bytes: u64 = parcels.iter().map(|p| p.message.bytes.len() as u64 + 2).sum();
        for p in &parcels {
            if let Some(store) = self.index.stores().iter().find(|s| s.name() == p.store) {
                room_for(store.dir(), bytes)?;
            }
        }
        for p in &parcels {
            reserved.insert((p.store.clone(), p.message.id.clone()));
        }
        Ok(parcels)
    }

    /// Recipients by store, in the order of the stores' first recipients.
    fn routes(&self, draft: &Draft) -> Result<Vec<(usize, Vec<String>)>, OutboxError> {
        let mut routes: Vec<(usize, Vec<String>)> = Vec::new();
        for to in draft.to.iter().chain(&draft.cc) {
            let unknown = self.settings.unknown_recipient;
            let number = route::route(&self.index, to, draft.via.as_deref(), unknown)?;
            match routes.iter_mut().find(|(n, _)| *n == number) {
                Some((_, list)) => list.push(to.clone()),
                None => routes.push((number, vec![to.clone()])),
            }
        }
        Ok(routes)
    }

    /// Takes out the recipients who already got this under the same idempotency key; true if nobody
    /// is left.
    fn already_sent(&self, number: usize, part: &mut Draft) -> Result<bool, OutboxError> {
        let Some(key) = &part.idempotency_key else { return Ok(false) };
        let store = self.index.stores().get(number);
        let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
        let earlier: Vec<_> = {
            let core = self.index.read();
            let sent = core.with_idempotency_key(key).iter().filter_map(|ix| core.entry(*ix));
            sent.filter(|e| e.store() == number && e.time() >= since)
                .map(|e| (core.to(e).to_owned(), e.location()))
                .collect()
        };
        for (to, at) in earlier {
            let Some(place) = part.to.iter().position(|t| *t == to) else { continue };
            let record = store.map(|s| s.read(&at)).transpose()?;
            let same = record.is_some_and(|r| same_text(&r.message.body, &part.body));
            if !same {
                return Err(OutboxError::Invalid(format!(
                    "Idempotency-Key: {key:?} was used for another text to {to}; use a new key for a \
                     new message"
                )));
            }
            part.to.remove(place);
        }
        Ok(part.to.is_empty())
    }

    /// The last descriptor was closed: a spooled draft is sent, any other is kept.
    pub fn release(&self, id: DraftId) {
        let Some(draft) = self.open.lock().remove(&id) else { return };
        let mut d = draft.lock();
        if d.dirty && !d.unlinked && !names::is_private(&d.name) && d.refused.is_none() {
            // No flush came: the process was killed with a full buffer.
            if let Err(e) = self.spool_draft(&mut d) {
                d.refuse(e);
            }
        }
        match d.spooled.take() {
            Some((n, parcels)) if d.unlinked || d.refused.is_some() => self.forget(n, &parcels),
            Some((n, parcels)) => {
                self.shelf.lock().remove(&d.name);
                if n != 0 {
                    self.commit(n, parcels);
                }
                self.sender.released(id);
                return;
            }
            None => {}
        }
        self.sender.released(id);
        if !d.unlinked {
            self.keep(&d);
        }
    }

    fn keep(&self, d: &Open) {
        let mut shelf = self.shelf.lock();
        if !d.touched && shelf.get(&d.name).is_some() {
            return;
        }
        if d.refused.is_none() && d.target != Target::Outbox && d.text.is_empty() {
            return;
        }
        if let Some(refused) = &d.refused {
            self.note_refusal(&d.name, &refused.to_string(), d.time);
        }
        shelf.put(
            &d.name,
            Kept {
                target: d.target.clone(),
                text: d.text.clone().into(),
                error: d.refused.as_ref().map(ToString::to_string),
                time: d.time,
            },
        );
    }

    fn note_refusal(&self, name: &str, reason: &str, time: Timestamp) {
        let (shown, why) = (crate::model::one_line(name), crate::model::one_line(reason));
        tracing::warn!(name = %shown, reason = %why, "draft refused");
        *self.last_refusal.lock() =
            Some(Refusal { name: name.to_owned(), reason: reason.to_owned(), time });
    }

    /// Renames a draft. A private one that gets a plain name is sent.
    ///
    /// # Errors
    /// The refusal; the draft then stays under its old name and the note stands beside the new one.
    pub fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), OutboxError> {
        self.check_name(to)?;
        if !replace && self.find(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        let renamed =
            open.iter().filter(|d| d.lock().name == from).map(|d| d.lock().name = to.into());
        if renamed.count() > 0 {
            return Ok(());
        }
        let Some(kept) = self.shelf.lock().get(from).cloned() else {
            return Err(OutboxError::NotFound);
        };
        let mut d = Open {
            name: to.to_owned(),
            target: kept.target.clone(),
            text: kept.text.to_vec(),
            attach: Vec::new(),
            dirty: true,
            touched: true,
            spooled: None,
            refused: None,
            unlinked: false,
            time: kept.time,
        };
        if names::is_private(to) || d.text.is_empty() {
            let mut shelf = self.shelf.lock();
            shelf.remove(from);
            shelf.put(to, Kept { error: None, ..kept });
            return Ok(());
        }
        match self.spool_draft(&mut d) {
            Ok(()) => {
                let mut shelf = self.shelf.lock();
                shelf.remove(from);
                shelf.remove(to);
                drop(shelf);
                if let Some((n, parcels)) = d.spooled.take().filter(|(n, _)| *n != 0) {
                    self.commit(n, parcels);
                }
                Ok(())
            }
            Err(e) => {
                // Both: who renamed still has the old name, who looks for the new one finds why.
                let e = d.refuse(e);
                self.keep(&d);
                self.shelf.lock().remove(from);
                Err(e)
            }
        }
    }

    /// Removes a draft, or the note beside one.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove(&self, name: &str) -> Result<(), OutboxError> {
        if let Some(draft) = name.strip_suffix(".error") {
            if self.notes.lock().remove(draft).is_some() {
                return Ok(());
            }
            let mut shelf = self.shelf.lock();
            let Some(kept) = shelf.get(draft).filter(|k| k.error.is_some()).cloned() else {
                return Err(OutboxError::NotFound);
            };
            shelf.put(draft, Kept { error: None, ..kept });
            return Ok(());
        }
        let mut found = self.shelf.lock().remove(name).is_some();
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        for d in open {
            let mut d = d.lock();
            if d.name == name {
                d.unlinked = true;
                found = true;
            }
        }
        if found { Ok(()) } else { Err(OutboxError::NotFound) }
    }

    /// Everything in `outbox/`, by name.
    pub fn list(&self) -> Vec<Listed> {
        let mut out: HashMap<String, Listed> = HashMap::new();
        for (name, kept) in self.shelf.lock().iter() {
            let file = |name: String, len: usize, is_note| {
                (name.clone(), Listed { name, len: len as u64, time: kept.time, is_note })
            };
            out.extend([file(name.clone(), kept.text.len(), false)]);
            if let Some(error) = &kept.error {
                out.extend([file(format!("{name}.error"), note(error).len(), true)]);
            }
        }
        for (name, (error, time)) in self.notes.lock().iter() {
            let name = format!("{name}.error");
            let len = note(error).len() as u64;
            out.insert(name.clone(), Listed { name, len, time: *time, is_note: true });
        }
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        for d in open {
            let d = d.lock();
            if !d.unlinked && d.target == Target::Outbox {
                let (name, len) = (d.name.clone(), d.text.len() as u64);
                out.insert(name.clone(), Listed { name, len, time: d.time, is_note: false });
            }
        }
        let mut list: Vec<Listed> = out.into_values().collect();
        list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// One entry of `outbox/`.
    pub fn find(&self, name: &str) -> Option<Listed> {
        self.list().into_iter().find(|l| l.name == name)
    }

    /// An open draft by name and target.
    pub fn find_open(&self, name: &str, target: &Target) -> Option<Listed> {
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        open.iter().find_map(|d| {
            let d = d.lock();
            (d.name == name && d.target == *target && !d.unlinked).then(|| Listed {
                name: name.to_owned(),
                len: d.text.len() as u64,
                time: d.time,
                is_note: false,
            })
        })
    }

    /// Largest text in bytes.
    pub fn max_message(&self) -> u64 {
        self.settings.max_message
    }

    /// Ends an open draft without sending it: it is kept as it is.
    pub fn set_aside(&self, id: DraftId) {
        if let Some(draft) = self.open.lock().remove(&id) {
            self.keep(&draft.lock());
        }
    }

    /// Sends a composing folder: its `body` and its other files. What is refused stays on the shelf
    /// under the folder's name.
    ///
    /// # Errors
    /// The refusal.
    pub fn send_folder(
        &self,
        name: &str,
        body: &[u8],
        attachments: &[(String, Vec<u8>)],
    ) -> Result<(), OutboxError> {
        let mut d = Open {
            name: name.to_owned(),
            target: Target::Outbox,
            text: body.to_vec(),
            attach: self.lay_out(name, attachments)?,
            dirty: true,
            touched: true,
            spooled: None,
            refused: None,
            unlinked: false,
            time: Timestamp::now(),
        };
        let done = self.spool_draft(&mut d);
        match &done {
            Ok(()) => {
                self.notes.lock().remove(name);
                if let Some((n, parcels)) = d.spooled.take().filter(|(n, _)| *n != 0) {
                    self.commit(n, parcels);
                }
            }
            Err(e) => {
                self.note_refusal(&d.name, &e.to_string(), d.time);
                self.notes.lock().insert(name.to_owned(), (e.to_string(), d.time));
            }
        }
        let _ = std::fs::remove_dir_all(self.composed(name));
        done
    }

    /// Where the files of a composing folder lie while it is sent.
    fn composed(&self, name: &str) -> PathBuf {
        let hash = crate::index::stable_hash(4, &[name]);
        self.state.join("composing").join(format!("{hash:016x}"))
    }

    fn lay_out(&self, name: &str, files: &[(String, Vec<u8>)]) -> Result<Vec<String>, OutboxError> {
        let dir = self.composed(name);
        let io = |error| OutboxError::Io { what: "the attachments could not be kept", error };
        let mut paths = Vec::new();
        for (file, bytes) in files {
            std::fs::create_dir_all(&dir).map_err(io)?;
            let path = dir.join(file);
            std::fs::write(&path, bytes).map_err(io)?;
            paths.push(path.to_string_lossy().into_owned());
        }
        Ok(paths)
    }

    /// The text of a kept draft, of the note beside it, or of the newest open draft of this name.
    pub fn text(&self, name: &str) -> Option<Arc<[u8]>> {
        let open = self.open.lock();
        let newest = open.iter().filter(|(_, d)| d.lock().name == name).max_by_key(|(id, _)| **id);
        if let Some((_, d)) = newest {
            return Some(d.lock().text.clone().into());
        }
        drop(open);
        let shelf = self.shelf.lock();
        if let Some(kept) = shelf.get(name) {
            return Some(Arc::clone(&kept.text));
        }
        let draft = name.strip_suffix(".error")?;
        let of_folder = self.notes.lock().get(draft).map(|(error, _)| error.clone());
        let error = of_folder.or_else(|| shelf.get(draft)?.error.clone())?;
        Some(note(&error).into_bytes().into())
    }

    /// The text of an open draft.
    pub fn open_text(&self, id: DraftId) -> Option<Vec<u8>> {
        self.draft(id).ok().map(|d| d.lock().text.clone())
    }

    /// Length of an open draft.
    pub fn open_len(&self, id: DraftId) -> Option<u64> {
        self.draft(id).ok().map(|d| d.lock().text.len() as u64)
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

    /// The last refusal.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.last_refusal.lock().clone()
    }

    /// Stops sending after what is under way; the rest stays in the spool.
    pub fn close(&self) {
        self.settle(Duration::from_secs(5));
        self.sender.stop();
    }
}

/// The text of the note beside a refused draft.
fn note(reason: &str) -> String {
    format!("{}\n", crate::model::safe_text(reason))
}

fn same_text(sent: &str, draft: &str) -> bool {
    use unicode_normalization::UnicodeNormalization;
    // A thread prefix was taken off when it was sent.
    let (sent, draft): (String, String) = (sent.nfc().collect(), draft.nfc().collect());
    sent == draft || draft.ends_with(&sent) && draft.trim_start().starts_with("[thread:")
}

/// Refuses early what the disk cannot take, so that the writer hears of it.
fn room_for(dir: &Path, bytes: u64) -> Result<(), OutboxError> {
    let fail = |errno: i32| OutboxError::Io {
        what: "the store cannot be written",
        error: std::io::Error::from_raw_os_error(errno),
    };
    let Ok(fs) = rustix::fs::statvfs(dir) else { return Ok(()) };
    if fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(fail(libc::EROFS));
    }
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    if fs.f_blocks > 0 && blocks.saturating_mul(fs.f_frsize) < bytes {
        return Err(fail(libc::ENOSPC));
    }
    Ok(())
}
