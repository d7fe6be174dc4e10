//! One index over all stores: messages, their order, senders, threads and marks.
//!
//! [`IndexTables`] has four parts, each with private fields:
//!
//! - [`messages`](MessageTable): identity, order, duplicates; the texts, stores and addresses.
//! - [`threads`](ThreadTable): ids, the messages in them, threads made from reply links, empty threads.
//! - [`trust`](TrustTable): signatures, keys of writers, missing signatures, rejections.
//! - [`marks`](MarkTable): read or not, labels, marks that the stores do not have yet.
//!
//! The other three lie on the messages, and their functions take the messages as an argument. `tables` has the
//! changes that concern several parts. Around them:
//!
//! - `apply`: scan reports applied to the tables. `agents`: senders and recipients. `stores`: the stores, also
//!   those that are added later.
//! - `mark_log`: the file of marks. `mark_save`: marks on their way to that file. `mark_sync`: their ways to and from
//!   the stores and my other machines.
//! - `snapshot`: the tables on disk. `saved_tables`: written there, and restored at the start. `column`, `intern`,
//!   `slots`, `source`: tables of plain values.
//! - `change_signal`: the signal on which threads wait for a change.
//! - `position`: positions in the tables. A position that leads nowhere panics with a sentence, and
//!   `fuse::guard` answers EIO.
//!
//! # Locks
//!
//! Locks are taken in this order, which [`crate::model::locks`] checks: `scanning` (one per store: one scan at a
//! time) → `marks` → `tables`. None is held while a store is read for a view or writes marks on messages. Only
//! `marks` is held while the read position of a store is read or written. Scans take `tables` once per batch, so
//! that views never wait for a whole log.

mod agents;
mod apply;
mod change_signal;
mod column;
mod intern;
mod mark_log;
mod mark_save;
mod mark_sync;
mod marks;
mod messages;
mod position;
mod saved_tables;
mod slots;
mod snapshot;
mod source;
mod stores;
mod tables;
mod threads;
mod trust;

pub use agents::{Correspondent, StoreAddress};
pub use apply::IndexChanges;
pub use change_signal::ChangeSignal;
pub use intern::{IDENTITY_MASK, stable_hash};
pub use marks::{MailLabel, MarkTable, TRASHED};
pub use messages::{IndexEntry, MessageTable, NameTable};
pub use position::{MsgIx, ThreadIx};
pub use source::SourceId;
pub use tables::IndexTables;
pub use threads::ThreadTable;
pub use trust::{IndexedRejection, RejectionKey, TrustTable};

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::locks::{LockLevel, Mutex, RwLock, RwLockReadGuard};

use crate::identity::Keyring;
use crate::model::{MessageKey, PublicKey, Timestamp, Unsigned};
use crate::store::append_log::{AppendLog, AppendSync};
use crate::store::engine::files;
use crate::store::{Store, StoreError, process};
use apply::ScanApplier;
use mark_log::{MarkCheckpoint, MarkFile};
use saved_tables::{restore_tables, store_info};
use stores::StoreList;
use trust::TrustJudge;

/// The files and the policy of an index.
#[derive(Clone, Debug)]
pub struct IndexSettings {
    /// The file of marks.
    pub marks: PathBuf,
    /// The snapshot.
    pub snapshot: PathBuf,
    /// True if the snapshot is where no other machine changes it. Only then it may be mapped.
    pub map: bool,
    /// The policy for unsigned messages.
    pub unsigned: Unsigned,
    /// True if nothing is written: no marks, no watermark, no snapshot.
    pub read_only: bool,
    /// For each store, the key that signs what I send there, if it is known.
    pub my_keys: Vec<Option<PublicKey>>,
}

impl IndexSettings {
    /// Returns the file of messages from before keys were pinned, beside the file of marks.
    fn prior_path(&self) -> PathBuf {
        self.marks.with_file_name("prior")
    }
}

/// A subscriber to changes. It is called without locks.
type ChangeListener = Arc<dyn Fn(&IndexChanges) + Send + Sync>;

/// The index. Everything above it shares it.
pub struct Index {
    tables: RwLock<IndexTables>,
    stores: StoreList,
    keyring: Arc<Keyring>,
    marks: Mutex<MarkFile>,
    scanning: Vec<Mutex<()>>,
    /// For each store, the error of the last scan that could not read it as a whole.
    failures: Vec<Mutex<Option<StoreError>>>,
    /// For each store, the key that signs there, see [`IndexSettings::my_keys`].
    my_keys: RwLock<Vec<Option<PublicKey>>>,
    settings: IndexSettings,
    listeners: RwLock<Vec<ChangeListener>>,
    change_signal: ChangeSignal,
    /// True if marks changed since they were last written to the stores.
    has_unwritten_marks: AtomicBool,
    /// For each store, the reason why it cannot write marks, as long as it lasts.
    mark_faults: Vec<Mutex<Option<String>>>,
    unsaved: AtomicBool,
    /// True if a watcher has the stores scanned at their [due times](Store::due_time).
    watched: AtomicBool,
}

/// The reason why an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The store named here cannot be read at all.
    #[error("store {0}: {1}")]
    Store(String, String),
    /// There are more stores than [`SourceId`] can number.
    #[error("there are {0} stores, and at most {max} can be mounted at once", max = SourceId::STORES)]
    TooMany(usize),
    /// The file of marks cannot be used.
    #[error("{0}: {1}")]
    Marks(PathBuf, std::io::Error),
}

impl Index {
    /// Opens the index from its snapshot and brings it up to date. `progress` gets, for each store, how much is done
    /// and how much it is in all.
    ///
    /// # Errors
    /// If the file of marks cannot be read, or there are too many stores.
    pub fn open(
        stores: Vec<Arc<dyn Store>>,
        keyring: Arc<Keyring>,
        settings: IndexSettings,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, IndexError> {
        if stores.len() > SourceId::STORES {
            return Err(IndexError::TooMany(stores.len()));
        }
        let (tables, marks, changes) = restore_tables(&stores, &keyring, &settings)?;
        let bulk = tables.messages.is_bulk_load();
        let index = Self {
            tables: RwLock::with_level(LockLevel::IndexTables, tables),
            // This includes stores that are added later.
            scanning: (0..SourceId::STORES)
                .map(|_| Mutex::with_level(LockLevel::Scanning, ()))
                .collect(),
            failures: (0..SourceId::STORES).map(|_| Mutex::default()).collect(),
            stores: StoreList::new(stores),
            keyring,
            marks: Mutex::with_level(LockLevel::Marks, marks),
            my_keys: RwLock::new(settings.my_keys.clone()),
            settings,
            listeners: RwLock::new(Vec::new()),
            change_signal: ChangeSignal::default(),
            has_unwritten_marks: true.into(),
            mark_faults: (0..SourceId::STORES).map(|_| Mutex::default()).collect(),
            unsaved: bulk.into(),
            watched: false.into(),
        };
        for number in index.stores.scan_order() {
            // A store that cannot be read now does not hide the others.
            index.scan_store(number, true, bulk, progress);
            index.update_empty_threads(number);
        }
        let looked: Vec<bool> =
            (0..index.stores.len()).map(|number| index.store_failure(number).is_none()).collect();
        if bulk {
            let mut tables = index.tables.write();
            tables.messages.set_known_stores(&looked);
            tables.relink_threads();
            tables.settle_multicasts();
            tables.messages.sort_lists();
            tables.update_missing_signatures(&index.keyring, true);
            tables.shrink_tables();
            drop(tables);
            process::trim_heap();
        }
        for (number, looked) in looked.into_iter().enumerate() {
            index.tables.write().messages.note_scanned(number, looked);
        }
        index.save_pins();
        index.judge_first_uses();
        index.rejudge_changed();
        index.replay_marks(&changes);
        for number in 0..index.stores.len() {
            index.import_watermark(number);
        }
        _ = index.save_marks(&mut index.marks.lock());
        Ok(index)
    }

    /// Returns the stores, in the order of their numbers.
    pub fn stores(&self) -> &[Arc<dyn Store>] {
        &self.stores
    }

    /// Adds a store that could not be opened before, with the key that signs in it, if that is known. Returns
    /// its number. The next [`Index::refresh_store`] reads its messages. Only one thread at a time may add
    /// stores.
    ///
    /// # Errors
    /// If there are too many stores, or the file of marks cannot be read. The store is then not added.
    pub fn add_store(
        &self,
        store: Arc<dyn Store>,
        key: Option<PublicKey>,
    ) -> Result<usize, IndexError> {
        let number = self.stores.len();
        let turn = self.scanning.get(number).ok_or(IndexError::TooMany(number + 1))?;
        // The scan lock is held, so that no snapshot has half of it.
        let turn = turn.lock();
        let mut marks = self.marks.lock();
        _ = self.save_marks(&mut marks);
        let path = &self.settings.marks;
        let (_, changes, _) = MarkFile::open(path, MarkCheckpoint::default(), true)
            .map_err(|error| IndexError::Marks(path.clone(), error))?;
        let name = store.name().to_owned();
        let mut tables = self.tables.write();
        tables.messages.add_store(store_info(store.as_ref()));
        self.my_keys.write().push(key);
        self.stores.append(store);
        drop((tables, marks, turn));
        let of_it: Vec<_> = changes.into_iter().filter(|(key, _)| key.store == name).collect();
        self.replay_marks(&of_it);
        self.publish_changes(&IndexChanges {
            stores: true,
            other: true,
            ..IndexChanges::default()
        });
        Ok(number)
    }

    /// Returns the store of this number.
    ///
    /// # Panics
    /// If there is none: numbers of stores come from the index and stay valid.
    #[track_caller]
    pub fn store(&self, number: usize) -> &Arc<dyn Store> {
        column::at(&self.stores, number)
    }

    /// Returns the store of a message.
    pub fn store_of(&self, entry: &IndexEntry) -> &Arc<dyn Store> {
        self.store(entry.store())
    }

    /// Returns the key that signs what I send in a store, if it is known.
    pub fn my_key(&self, number: usize) -> Option<PublicKey> {
        self.my_keys.read().get(number).copied().flatten()
    }

    /// Sets the key that signs what I send in a store from now on.
    pub fn set_my_key(&self, number: usize, key: PublicKey) {
        if self.my_key(number) != Some(key)
            && let Some(known) = self.my_keys.write().get_mut(number)
        {
            *known = Some(key);
        }
    }

    /// Returns the keyring.
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// Returns the tables, for reading. The caller holds the guard briefly, and reads no store meanwhile.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, IndexTables> {
        self.tables.read()
    }

    /// Restarts the process if somebody wrote into the snapshot on which the tables lie. Callers that begin to answer
    /// a question about many messages ask this first.
    pub fn require_sound_tables(&self) {
        // The guard ends before the system call: a change that waits for it would be seen later.
        let snapshot = self.tables.read().snapshot.clone();
        if let Some(snapshot) = snapshot {
            snapshot.require_unchanged();
        }
    }

    /// Calls `listener` after every change, without locks held.
    pub fn subscribe(&self, listener: impl Fn(&IndexChanges) + Send + Sync + 'static) {
        self.listeners.write().push(Arc::new(listener));
    }

    /// Stores the rendered length of a message, and the number of its lines that begin like a transcript's
    /// separator, if the entry still is as in `seen` at that generation.
    pub fn remember_size(&self, ix: MsgIx, seen: &IndexEntry, generation: u64, size: (u64, u32)) {
        self.tables.write().set_size(ix, seen, generation, size);
    }

    /// Notes that from now on a watcher has each store scanned at its [due time](Store::due_time). No scan waits for
    /// unfinished files any more.
    pub fn set_watched(&self) {
        self.watched.store(true, Ordering::Relaxed);
    }

    /// Scans a store for changes: all of it with `full`, otherwise only the changes that the store was notified
    /// of ([`Store::note_change`]) or made itself.
    ///
    /// # Errors
    /// If the store as a whole cannot be read.
    pub fn refresh_store(&self, number: usize, full: bool) -> Result<(), IndexError> {
        let mut changes = self.scan_store(number, full, false, &mut |_, _| {});
        changes.empty_threads = self.update_empty_threads(number);
        changes.marked.extend(self.import_watermark(number));
        if self.tables.read().marks.has_due_marks() {
            self.has_unwritten_marks.store(true, Ordering::Relaxed);
            // The thread that writes marks waits for changes, and there may be no visible one.
            if self.tables.write().marks.take_request() {
                self.change_signal.notify();
            }
        }
        self.publish_changes(&changes);
        self.judge_first_uses();
        let failure = self.store_failure(number);
        if failure.is_none() {
            self.rejudge_unreviewed(number);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Scans a store as [`Index::refresh_store`] does, and again until no file in it is unfinished: a message that is
    /// looked for may be in it.
    ///
    /// # Errors
    /// If the store as a whole could not be read the first time.
    pub fn refresh_until_finished(&self, number: usize, full: bool) -> Result<(), IndexError> {
        let first = self.refresh_store(number, full);
        if let Some(store) = self.stores.get(number) {
            // The failure of a store is kept, and the first one is returned.
            files::await_unfinished(store.as_ref(), || _ = self.refresh_store(number, false));
        }
        first
    }

    /// Scans a store as [`Index::refresh_store`] does, if it has changes that no scan has read, or if its last
    /// scan failed.
    ///
    /// # Errors
    /// If the store as a whole cannot be read.
    pub fn refresh_if_behind(&self, number: usize) -> Result<(), IndexError> {
        let turn = self.scanning.get(number).map(Mutex::lock);
        let behind = self.stores.get(number).is_some_and(|store| store.has_unscanned_changes());
        drop(turn);
        if behind || self.store_failure(number).is_some() {
            return self.refresh_store(number, false);
        }
        Ok(())
    }

    /// Returns the error of the last scan, if it could not read the store as a whole.
    pub fn store_failure(&self, number: usize) -> Option<IndexError> {
        let error = self.failures.get(number)?.lock().as_ref()?.to_string();
        let store = self.stores.get(number)?.name().to_owned();
        Some(IndexError::Store(store, error))
    }

    /// Returns true if a part of a store could not be read for a reason that may pass by itself.
    pub fn is_failing(&self, number: usize) -> bool {
        let failure = self.failures.get(number).map(Mutex::lock);
        let passes = failure.is_some_and(|e| e.as_ref().is_some_and(StoreError::is_transient));
        passes || self.stores.get(number).is_some_and(|store| store.is_failing())
    }

    fn scan_store(
        &self,
        number: usize,
        full: bool,
        bulk: bool,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> IndexChanges {
        let (Some(store), Some(turn)) = (self.stores.get(number), self.scanning.get(number)) else {
            return IndexChanges::default();
        };
        let _turn = turn.lock();
        let mut applier = ScanApplier {
            index: self,
            number,
            store: store.as_ref(),
            bulk,
            reserved: false,
            messages_before: self.tables.read().messages.messages_so_far(),
            stale: Vec::new(),
            changes: IndexChanges::default(),
            progress,
        };
        let failure = store.scan(full, &mut applier).err();
        if failure.is_some() {
            applier.unmark_stale(|source| source.store() == number);
        }
        let changes = applier.changes;
        if !bulk {
            self.tables.write().messages.note_scanned(number, failure.is_none());
        }
        if let Some(last) = self.failures.get(number) {
            *last.lock() = failure;
        }
        self.save_pins();
        changes
    }

    fn save_pins(&self) {
        let lines = self.tables.write().trust.take_note_lines();
        if !lines.is_empty() && !self.settings.read_only {
            let mut log = AppendLog::new(self.settings.prior_path());
            if let Err(error) = log.append(&lines, AppendSync::Now) {
                tracing::error!(path = %log.path().display(), %error, "the list of messages from before \
                    a key was pinned was not saved");
            }
        }
        if let Err(e) = self.keyring.flush() {
            tracing::error!(error = %e, "pinned keys were not saved; they are kept in memory");
        }
    }

    fn trust_judge(&self, number: usize) -> TrustJudge<'_> {
        let store = self.store(number);
        TrustJudge {
            keyring: &self.keyring,
            unsigned: self.settings.unsigned,
            store: store.name(),
            mine: store.properties().my_addresses().collect(),
            my_key: self.my_key(number),
            roles: store.properties().uses_roles,
        }
    }

    /// Notifies listeners and waiting threads.
    fn publish_changes(&self, changes: &IndexChanges) {
        if changes.is_empty() {
            return;
        }
        self.unsaved.store(true, Ordering::Relaxed);
        let listeners = self.listeners.read().clone();
        for listener in &listeners {
            listener(changes);
        }
        self.change_signal.notify();
    }

    /// Returns the signal that is given after every change.
    pub fn change_signal(&self) -> &ChangeSignal {
        &self.change_signal
    }

    /// Returns the message's key.
    pub fn message_key(&self, ix: MsgIx) -> MessageKey {
        let tables = self.tables.read();
        let [store, from, id] = tables.messages.key_parts(tables.messages.entry(ix));
        MessageKey { store, from, id }
    }

    /// Returns the time of the last change of a mark. It is the time of the file, and so the same after a
    /// remount.
    pub fn marks_time(&self) -> Option<Timestamp> {
        Some(std::fs::metadata(&self.settings.marks).ok()?.modified().ok()?.into())
    }

    /// Closes the index: syncs marks, writes them to the stores, and writes the snapshot. A store that is busy for a
    /// moment gets them a little later, within two seconds.
    pub fn close(&self) {
        self.finish_marks();
        self.sync_marks();
        self.write_snapshot();
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
