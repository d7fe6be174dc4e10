//! One index over all stores: which messages there are, in which order, whose, in which thread,
//! read or not.
//!
//! - [`entry`](Entry): what is kept of a message (56 bytes); [`Core`]: the tables.
//! - `apply`: from scans to the tables. `judge`: which of it is trusted. `missing`: unsigned messages
//!   of those who sign. `links`: threads made of
//!   reply links. `again`: what is reported once more. `empty`: threads without messages.
//!   `snapshot`: the tables on disk.
//! - `agents`: who has written and been written to.
//! - `marks`: the file of what me has read. `tell`: marks, and what the stores are told of them. `share`: what
//!   my other machines are told of them, and say. `label`: what mail programs keep with a message.
//! - `stores`: the stores, also those that come later.
//!
//! # Locks
//!
//! In this order (which [`crate::model::locks`] checks), and none is held while a store is read for a
//! view or told of marks: `scanning` (one per store: one scan at a time) → `marks` → `core`. Scans
//! take `core` once per batch, so that views are never kept waiting for a whole log.

mod again;
mod agents;
mod apply;
mod change;
mod column;
mod core;
mod empty;
mod entry;
mod intern;
mod judge;
mod label;
mod links;
mod marks;
mod missing;
mod share;
mod slots;
mod snapshot;
mod source;
mod stores;
mod tell;
mod threads;

pub use agents::{Person, Whom};
pub use apply::Changes;
pub use core::{Core, Reject, RejectKey, ThreadIx};
pub use entry::{Entry, MsgIx};
pub use intern::{IDENTITY_MASK, stable_hash};
pub use label::{Label, TRASHED};
pub use source::Source;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::model::locks::{Condvar, Level, Mutex, RwLock, RwLockReadGuard};

use crate::identity::Keyring;
use crate::model::{MessageKey, PublicKey, Timestamp, Unsigned};
use crate::store::{Store, StoreError, fs, process};
use apply::Applier;
use judge::Judge;
use marks::{Marks, Replayed};
use stores::Stores;

/// Where the index keeps its files, and its policy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file of marks.
    pub marks: PathBuf,
    /// The snapshot.
    pub snapshot: PathBuf,
    /// It lies where no other machine changes it: it may be mapped.
    pub map: bool,
    /// Policy for unsigned mail.
    pub unsigned: Unsigned,
    /// Nothing is written: no marks, no watermark, no snapshot.
    pub read_only: bool,
    /// By store: the key that signs what I send there, if it is known.
    pub my_keys: Vec<Option<PublicKey>>,
}

impl Settings {
    /// The file of what was there before keys were pinned: it lies beside the marks.
    fn prior(&self) -> PathBuf {
        self.marks.with_file_name("prior")
    }
}

/// Who wants to know what changed. Called without locks.
type Listener = Arc<dyn Fn(&Changes) + Send + Sync>;

/// The index. Shared by everything above it.
pub struct Index {
    core: RwLock<Core>,
    stores: Stores,
    keyring: Arc<Keyring>,
    marks: Mutex<Marks>,
    scanning: Vec<Mutex<()>>,
    /// By store: why the last scan could not read it as a whole.
    failures: Vec<Mutex<Option<StoreError>>>,
    /// By store: the key that signs there, see [`Settings::my_keys`].
    my_keys: RwLock<Vec<Option<PublicKey>>>,
    settings: Settings,
    listeners: RwLock<Vec<Listener>>,
    /// The generation that waiters have been woken for.
    news: (Mutex<u64>, Condvar),
    /// Marks changed since the stores were told.
    untold: AtomicBool,
    /// By store: why it could not note marks, as long as that is so.
    not_noted: Vec<Mutex<Option<String>>>,
    unsaved: AtomicBool,
}

/// Larger than the file of what was there before keys were pinned becomes.
const PRIOR_LIMIT: u64 = 1 << 30;

/// Why an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A store, named here, cannot be read at all.
    #[error("store {0}: {1}")]
    Store(String, String),
    /// More stores than can be told apart.
    #[error("there are {0} stores, and at most {max} can be mounted at once", max = Source::STORES)]
    TooMany(usize),
    /// The file of marks cannot be used.
    #[error("{0}: {1}")]
    Marks(PathBuf, std::io::Error),
}

impl Index {
    /// Opens the index from its snapshot and brings it up to date. `progress` gets bytes done and
    /// bytes in all, per store.
    ///
    /// # Errors
    /// If the file of marks cannot be read, or there are too many stores.
    pub fn open(
        stores: Vec<Arc<dyn Store>>,
        keyring: Arc<Keyring>,
        settings: Settings,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, IndexError> {
        if stores.len() > Source::STORES {
            return Err(IndexError::TooMany(stores.len()));
        }
        let (core, marks, changes) = restore(&stores, &keyring, &settings)?;
        let bulk = core.unsorted;
        let index = Self {
            core: RwLock::at(Level::Core, core),
            // Also for stores that come later.
            scanning: (0..Source::STORES).map(|_| Mutex::at(Level::Scanning, ())).collect(),
            failures: (0..Source::STORES).map(|_| Mutex::default()).collect(),
            stores: Stores::new(stores),
            keyring,
            marks: Mutex::at(Level::Marks, marks),
            my_keys: RwLock::new(settings.my_keys.clone()),
            settings,
            listeners: RwLock::new(Vec::new()),
            news: (Mutex::new(0), Condvar::default()),
            untold: true.into(),
            not_noted: (0..Source::STORES).map(|_| Mutex::default()).collect(),
            unsaved: bulk.into(),
        };
        for number in 0..index.stores.len() {
            // A store that cannot be read now keeps no other from being shown.
            index.scan(number, true, bulk, progress);
            index.note_empty(number);
        }
        let looked: Vec<bool> =
            (0..index.stores.len()).map(|number| index.failure(number).is_none()).collect();
        if bulk {
            let mut core = index.core.write();
            for (store, looked) in core.stores.iter_mut().zip(&looked) {
                store.is_known = *looked;
            }
            core.relink();
            core.sort();
            core.find_missing(&index.keyring, true);
            core.pack();
            drop(core);
            process::give_back();
        }
        for (number, looked) in looked.into_iter().enumerate() {
            index.core.write().note_seen(number, looked);
        }
        index.save_pins();
        index.judge_first_uses();
        index.judge_again();
        index.replay(&changes);
        for number in 0..index.stores.len() {
            index.import_watermark(number);
        }
        write_marks(&mut index.marks.lock());
        Ok(index)
    }

    /// The stores, in the order of their numbers.
    pub fn stores(&self) -> &[Arc<dyn Store>] {
        &self.stores
    }

    /// Adds a store that could not be opened before, and the key that signs in it, if that is known; its number.
    /// What it holds is taken in by the next [`Index::refresh`]. Only one thread at a time may add stores.
    ///
    /// # Errors
    /// If there are too many stores, or the file of marks cannot be read; then it was not added.
    pub fn add(&self, store: Arc<dyn Store>, key: Option<PublicKey>) -> Result<usize, IndexError> {
        let number = self.stores.len();
        let turn = self.scanning.get(number).ok_or(IndexError::TooMany(number + 1))?;
        // With the turn, so that no snapshot has half of it.
        let turn = turn.lock();
        let mut marks = self.marks.lock();
        write_marks(&mut marks);
        let path = &self.settings.marks;
        let (_, changes, _) = Marks::open(path, Replayed::default(), true)
            .map_err(|error| IndexError::Marks(path.clone(), error))?;
        let name = store.name().to_owned();
        let mut core = self.core.write();
        core.add_store(info(store.as_ref()));
        self.my_keys.write().push(key);
        self.stores.add(store);
        drop((core, marks, turn));
        let of_it: Vec<_> = changes.into_iter().filter(|(key, _)| key.store == name).collect();
        self.replay(&of_it);
        self.publish(&Changes { stores: true, other: true, ..Changes::default() });
        Ok(number)
    }

    /// The store a message lies in.
    pub fn store_of(&self, entry: &Entry) -> Option<&Arc<dyn Store>> {
        self.stores.get(entry.store())
    }

    /// The key that signs what I send in a store, if it is known.
    pub fn my_key(&self, number: usize) -> Option<PublicKey> {
        self.my_keys.read().get(number).copied().flatten()
    }

    /// Notes the key that signs what I send in a store from now on.
    pub fn set_my_key(&self, number: usize, key: PublicKey) {
        if self.my_key(number) != Some(key)
            && let Some(known) = self.my_keys.write().get_mut(number)
        {
            *known = Some(key);
        }
    }

    /// The pinned keys.
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// The tables, for reading. Hold it briefly and read no store while holding it.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read()
    }

    /// Calls `listener` after every change, without locks held.
    pub fn subscribe(&self, listener: impl Fn(&Changes) + Send + Sync + 'static) {
        self.listeners.write().push(Arc::new(listener));
    }

    /// Remembers the rendered length of a message, and how many of its lines begin like a separator
    /// of transcripts, as it was in `seen` at that generation.
    pub fn remember_size(&self, ix: MsgIx, seen: &Entry, generation: u64, size: (u64, u32)) {
        self.core.write().set_size(ix, seen, generation, size);
    }

    /// Takes in what changed in a store: with `full` all of it, else what the store was told of
    /// ([`Store::note`]) or did itself.
    ///
    /// # Errors
    /// If the store as a whole cannot be read.
    pub fn refresh(&self, number: usize, full: bool) -> Result<(), IndexError> {
        let mut changes = self.scan(number, full, false, &mut |_, _| {});
        changes.emptied = self.note_empty(number);
        changes.marked.extend(self.import_watermark(number));
        if self.core.read().telling.is_due() {
            self.untold.store(true, Ordering::Relaxed);
            // Whoever tells it waits for changes, and there may be none to see.
            if self.core.write().telling.take_asked() {
                self.wake();
            }
        }
        self.publish(&changes);
        self.judge_first_uses();
        self.failure(number).map_or(Ok(()), Err)
    }

    /// The same for what was noted, or written by this process, if no scan has taken it in meanwhile.
    ///
    /// # Errors
    /// If the store as a whole cannot be read.
    pub fn catch_up(&self, number: usize) -> Result<(), IndexError> {
        let turn = self.scanning.get(number).map(Mutex::lock);
        let behind = self.stores.get(number).is_some_and(|store| store.is_behind());
        drop(turn);
        if behind || self.failure(number).is_some() {
            return self.refresh(number, false);
        }
        Ok(())
    }

    /// Why the last scan could not read a store as a whole.
    pub fn failure(&self, number: usize) -> Option<IndexError> {
        let error = self.failures.get(number)?.lock().as_ref()?.to_string();
        let store = self.stores.get(number)?.name().to_owned();
        Some(IndexError::Store(store, error))
    }

    /// Whether something in a store could not be read for a reason that may pass by itself.
    pub fn is_failing(&self, number: usize) -> bool {
        let failure = self.failures.get(number).map(Mutex::lock);
        let passes = failure.is_some_and(|e| e.as_ref().is_some_and(StoreError::may_pass));
        passes || self.stores.get(number).is_some_and(|store| store.is_failing())
    }

    fn scan(
        &self,
        number: usize,
        full: bool,
        bulk: bool,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Changes {
        let (Some(store), Some(turn)) = (self.stores.get(number), self.scanning.get(number)) else {
            return Changes::default();
        };
        let _turn = turn.lock();
        let mut applier = Applier {
            index: self,
            number,
            store: store.as_ref(),
            bulk,
            reserved: false,
            stale: Vec::new(),
            changes: Changes::default(),
            progress,
        };
        let failure = store.scan(full, &mut applier).err();
        if failure.is_some() {
            applier.keep_those(|_| true);
        }
        let changes = applier.changes;
        if !bulk {
            self.core.write().note_seen(number, failure.is_none());
        }
        if let Some(last) = self.failures.get(number) {
            *last.lock() = failure;
        }
        self.save_pins();
        changes
    }

    fn save_pins(&self) {
        let lines = self.core.write().prior.take_lines();
        if !lines.is_empty() && !self.settings.read_only {
            let path = self.settings.prior();
            let added = fs::open_append(&path, 0o600).and_then(|mut file| {
                // A line that was torn off takes no other with it.
                file.write_all(&[b"\n", lines.as_slice()].concat())?;
                file.sync_data()
            });
            if let Err(error) = added {
                tracing::error!(path = %path.display(), %error, "the list of messages from before \
                    a key was pinned was not saved");
            }
        }
        if let Err(e) = self.keyring.flush() {
            tracing::error!(error = %e, "pinned keys were not saved; they are kept in memory");
        }
    }

    fn judge(&self, number: usize) -> Judge<'_> {
        let store = self.stores.get(number);
        Judge {
            keyring: &self.keyring,
            unsigned: self.settings.unsigned,
            store: store.map_or("", |s| s.name()),
            me: store.map_or("", |s| s.me()),
            my_key: self.my_key(number),
            roles: store.is_some_and(|s| s.about().roles),
        }
    }

    /// Wakes those who wait and tells those who cache.
    fn publish(&self, changes: &Changes) {
        if changes.is_empty() {
            return;
        }
        self.unsaved.store(true, Ordering::Relaxed);
        let listeners = self.listeners.read().clone();
        for listener in &listeners {
            listener(changes);
        }
        self.wake();
    }

    /// Waits until something changed since `seen` or until `deadline`; the number to pass next time.
    pub fn wait(&self, seen: u64, deadline: Instant) -> u64 {
        let (woken, condvar) = &self.news;
        let mut now = woken.lock();
        while *now == seen {
            if condvar.wait_until(&mut now, deadline) {
                break;
            }
        }
        *now
    }

    /// The number of changes so far, for [`Index::wait`].
    pub fn news(&self) -> u64 {
        *self.news.0.lock()
    }

    /// The message's key.
    pub fn key(&self, ix: MsgIx) -> Option<MessageKey> {
        let core = self.core.read();
        let entry = core.entry(ix)?;
        let store = self.store_of(entry)?.name().to_owned();
        Some(MessageKey { store, from: core.from(entry).to_owned(), id: core.id(entry) })
    }

    /// Writes the snapshot if anything changed since the last one, and goes on with what it holds: what
    /// came since the one before needs no memory any more.
    pub fn save(&self) {
        let Some(changes) = self.write_snapshot().filter(|_| self.settings.map) else { return };
        let Some(saved) = load(&self.stores, &self.settings) else { return };
        let mut core = self.core.write();
        let old = (core.changes() == changes).then(|| core.adopt(saved.core));
        drop(core);
        drop(old);
        process::give_back();
    }

    /// Writes the snapshot if anything changed since the last one; the state of the tables in it.
    fn write_snapshot(&self) -> Option<u64> {
        let unsaved = self.unsaved.swap(false, Ordering::Relaxed);
        if !unsaved || self.settings.read_only {
            return None;
        }
        self.sync_marks();
        let _turns: Vec<_> = self.scanning.iter().map(Mutex::lock).collect();
        let mut marks = self.marks.lock();
        write_marks(&mut marks);
        let stores: Vec<Vec<u8>> = self.stores.iter().map(|s| s.save()).collect();
        let core = self.core.read();
        let result = snapshot::save(
            &self.settings.snapshot,
            &fingerprint(&self.stores, &self.settings),
            &core,
            &stores,
            marks.replayed(),
            self.keyring.trust_by_address(),
        );
        if let Err(e) = &result {
            tracing::warn!(path = %self.settings.snapshot.display(), error = %e, "the index was not saved");
        }
        result.ok().map(|()| core.changes())
    }

    /// When a mark last changed: the time of the file, so that it is the same after a remount.
    pub fn marks_time(&self) -> Option<Timestamp> {
        Some(std::fs::metadata(&self.settings.marks).ok()?.modified().ok()?.into())
    }

    /// Ends: marks on disk, stores told, snapshot written.
    pub fn close(&self) {
        self.tell_stores();
        self.sync_marks();
        self.write_snapshot();
    }

    /// Brings the marks to the disk. Nobody who marks waits for it.
    fn sync_marks(&self) {
        let sync = {
            let mut marks = self.marks.lock();
            marks.write().and_then(|()| marks.to_sync())
        };
        if let Err(e) = sync.and_then(|sync| sync()) {
            tracing::error!(path = %self.settings.marks.display(), error = %e, "marks were not saved");
        }
    }

    /// Wakes everybody who waits, though nothing changed.
    pub fn wake(&self) {
        *self.news.0.lock() += 1;
        self.news.1.notify_all();
    }
}

/// The tables of the snapshot, or empty ones if it cannot be used, and the marks made since.
fn restore(
    stores: &[Arc<dyn Store>],
    keyring: &Keyring,
    settings: &Settings,
) -> Result<(Core, Marks, Vec<marks::Change>), IndexError> {
    let infos: Vec<core::StoreInfo> = stores.iter().map(|s| info(s.as_ref())).collect();
    let prior = settings.prior();
    let prior = fs::or_nothing(fs::read_small(&prior, PRIOR_LIMIT))
        .map_err(|error| IndexError::Marks(prior, error))?;
    let prior = missing::Prior::load(&prior);
    let saved = load(stores, settings);
    let before = saved.as_ref().map(|saved| saved.marks.clone()).unwrap_or_default();
    let replayed = before.len > 0;
    let open = |before| {
        Marks::open(&settings.marks, before, settings.read_only)
            .map_err(|error| IndexError::Marks(settings.marks.clone(), error))
    };
    let (marks, changes, usable) = open(before)?;
    // Marks that the file does not have any more cannot be told from the stores' own words.
    let saved = saved.filter(|_| usable);
    let had = saved.is_some();
    if let Some(saved) = saved {
        let fits = saved.stores.len() == stores.len()
            && stores.iter().zip(&saved.stores).all(|(store, saved)| store.restore(saved));
        if fits {
            keyring.note_changed_since(&saved.trust);
            let mut core = Core { stores: infos, prior, ..saved.core };
            (0..stores.len()).for_each(|number| core.note_seen(number, true));
            return Ok((core, marks, changes));
        }
        // Positions without the tables they belong to would hide messages.
        for store in stores {
            store.reset();
        }
    }
    let empty = Core { stores: infos, prior, unsorted: true, ..Core::default() };
    if !had || !replayed {
        return Ok((empty, marks, changes));
    }
    drop(marks);
    let (marks, changes, _) = open(Replayed::default())?;
    Ok((empty, marks, changes))
}

fn load(stores: &[Arc<dyn Store>], settings: &Settings) -> Option<snapshot::Restored> {
    let print = fingerprint(stores, settings);
    snapshot::load(&settings.snapshot, &print, settings.map, snapshot::CHECKED_AT_ONCE)
}

fn info(store: &dyn Store) -> core::StoreInfo {
    core::StoreInfo {
        whole_seconds: store.about().whole_seconds,
        links: store.about().links(),
        roles: store.about().roles,
        log: store.kind().keeps_logs(),
        ..core::StoreInfo::named(store.name())
    }
}

fn write_marks(marks: &mut Marks) {
    if let Err(e) = marks.write() {
        tracing::error!(error = %e, "marks could not be written; they are kept in memory");
    }
}

/// Names everything besides the stores' contents that the tables depend on.
fn fingerprint(stores: &[Arc<dyn Store>], settings: &Settings) -> String {
    let mut text = settings.unsigned.to_string();
    for s in stores {
        let (roles, dir) = (s.about().roles, s.dir().display());
        let _ = write!(text, "|{}|{}|{dir}|{}|{roles}", s.kind(), s.name(), s.me());
    }
    text
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
