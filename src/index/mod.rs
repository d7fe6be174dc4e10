//! One index over all stores: which messages there are, in which order, whose, in which thread,
//! read or not.
//!
//! - [`entry`](Entry): what is kept of a message (56 bytes); [`Core`]: the tables.
//! - `apply`: from scans to the tables. `marks`: what me has read. `snapshot`: the tables on disk.
//!
//! # Locks
//!
//! In this order, and none is held while a store is read for a view:
//! `scanning` (one per store: one scan at a time) → `marks` → `core`. Scans take `core` once per
//! batch, so that views are never kept waiting for a whole log.

mod apply;
mod change;
mod core;
mod entry;
mod intern;
mod marks;
mod snapshot;

pub use apply::Changes;
pub use core::{Core, Reject, RejectKey, ThreadIx};
pub use entry::{Entry, MsgIx};
pub use intern::{IDENTITY_MASK, stable_hash};

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use crate::identity::Keyring;
use crate::model::{MessageKey, PublicKey, Timestamp, Unsigned};
use crate::store::{Store, StoreError, Watermark};
use apply::{Applier, Judge, Judgement};
use marks::Marks;

/// Where the index keeps its files, and its policy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file of marks.
    pub marks: PathBuf,
    /// The snapshot.
    pub snapshot: PathBuf,
    /// Policy for unsigned mail.
    pub unsigned: Unsigned,
    /// Nothing is written: no marks, no watermark, no snapshot.
    pub read_only: bool,
    /// My own key.
    pub my_key: Option<PublicKey>,
}

/// Who wants to know what changed. Called without locks.
type Listener = Box<dyn Fn(&Changes) + Send + Sync>;

/// The index. Shared by everything above it.
pub struct Index {
    core: RwLock<Core>,
    stores: Vec<Arc<dyn Store>>,
    keyring: Arc<Keyring>,
    marks: Mutex<Marks>,
    scanning: Vec<Mutex<()>>,
    settings: Settings,
    listeners: RwLock<Vec<Listener>>,
    /// The generation that waiters have been woken for.
    news: (Mutex<u64>, Condvar),
    /// Marks changed since the stores were told.
    untold: std::sync::atomic::AtomicBool,
    unsaved: std::sync::atomic::AtomicBool,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("stores", &self.stores).finish_non_exhaustive()
    }
}

/// Why an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A store cannot be read at all.
    #[error("store {store}: {error}")]
    Store {
        /// Its name.
        store: String,
        /// What is wrong.
        error: StoreError,
    },
    /// The file of marks cannot be used.
    #[error("{path}: {error}")]
    Marks {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl Index {
    /// Opens the index from its snapshot and brings it up to date. `progress` gets bytes done and
    /// bytes in all, per store.
    ///
    /// # Errors
    /// If a store or the file of marks cannot be read.
    pub fn open(
        stores: Vec<Arc<dyn Store>>,
        keyring: Arc<Keyring>,
        settings: Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, IndexError> {
        let restored = snapshot::load(&settings.snapshot, &fingerprint(&stores, &settings));
        let restored = restored.filter(|r| {
            let fits = r.stores.len() == stores.len()
                && stores.iter().zip(&r.stores).all(|(store, saved)| store.restore(saved));
            if !fits {
                // Positions without the tables they belong to would hide messages.
                for store in &stores {
                    store.reset();
                }
            }
            fits
        });
        let marks_from = restored.as_ref().map_or(0, |r| r.marks_len);
        let (marks, changes, usable) = Marks::open(&settings.marks, marks_from, settings.read_only)
            .map_err(|error| IndexError::Marks { path: settings.marks.clone(), error })?;
        let bulk = restored.is_none();
        let mut core = restored.map(|r| r.core).unwrap_or_default();
        core.stores = stores
            .iter()
            .map(|s| core::StoreInfo {
                name: s.name().to_owned(),
                whole_seconds: s.whole_seconds(),
            })
            .collect();
        let index = Self {
            core: RwLock::new(core),
            scanning: stores.iter().map(|_| Mutex::new(())).collect(),
            stores,
            keyring,
            marks: Mutex::new(marks),
            settings,
            listeners: RwLock::new(Vec::new()),
            news: (Mutex::new(0), Condvar::new()),
            untold: true.into(),
            unsaved: bulk.into(),
        };
        for number in 0..index.stores.len() {
            index.scan(number, bulk, progress)?;
        }
        if bulk {
            index.core.write().sort();
        }
        index.replay(&changes, usable);
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

    /// The store a message lies in.
    pub fn store_of(&self, entry: &Entry) -> Option<&Arc<dyn Store>> {
        self.stores.get(entry.store())
    }

    /// The pinned keys.
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// The tables, for reading. Hold it briefly and read no store while holding it.
    pub fn read(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read()
    }

    /// Calls `listener` after every change, without locks held.
    pub fn subscribe(&self, listener: impl Fn(&Changes) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Remembers the rendered length of a message.
    pub fn remember_size(&self, ix: MsgIx, size: u64) {
        self.core.write().set_size(ix, size);
    }

    /// Takes in what changed in a store.
    ///
    /// # Errors
    /// If the store as a whole cannot be read.
    pub fn refresh(&self, number: usize) -> Result<(), IndexError> {
        let mut changes = self.scan(number, false, &mut |_, _| {})?;
        changes.marked.extend(self.import_watermark(number));
        self.publish(&changes);
        Ok(())
    }

    fn scan(
        &self,
        number: usize,
        bulk: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Changes, IndexError> {
        let (Some(store), Some(turn)) = (self.stores.get(number), self.scanning.get(number)) else {
            return Ok(Changes::default());
        };
        let _turn = turn.lock();
        let mut applier = Applier {
            index: self,
            number,
            store: store.as_ref(),
            bulk,
            reserved: false,
            changes: Changes::default(),
            progress,
        };
        store
            .scan(&mut applier)
            .map_err(|error| IndexError::Store { store: store.name().to_owned(), error })?;
        self.save_pins();
        Ok(applier.changes)
    }

    fn save_pins(&self) {
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
            my_key: self.settings.my_key,
        }
    }

    /// Wakes those who wait and tells those who cache.
    fn publish(&self, changes: &Changes) {
        if changes.is_empty() {
            return;
        }
        self.unsaved.store(true, std::sync::atomic::Ordering::Relaxed);
        for listener in self.listeners.read().iter() {
            listener(changes);
        }
        self.wake();
    }

    /// Waits until something changed since `seen` or until `deadline`; the number to pass next time.
    pub fn wait(&self, seen: u64, deadline: Instant) -> u64 {
        let (woken, condvar) = &self.news;
        let mut now = woken.lock();
        while *now == seen {
            if condvar.wait_until(&mut now, deadline).timed_out() {
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

    /// Marks a message read (`here`: by reading it) or unread. Durable when this returns, as far
    /// as the end of this process is concerned.
    pub fn mark(&self, ix: MsgIx, read: bool, here: bool) {
        if self.settings.read_only {
            return;
        }
        let Some(key) = self.key(ix) else { return };
        {
            // Held around both, so that the file has changes of one message in their order.
            let mut marks = self.marks.lock();
            if !self.core.write().set_read(ix, read, here) {
                return;
            }
            marks.push(&change(key, read));
            write_marks(&mut marks);
        }
        self.untold.store(true, std::sync::atomic::Ordering::Relaxed);
        self.publish(&Changes { marked: vec![ix], ..Changes::default() });
    }

    /// Tells those who cache that a message has another name than they think.
    pub fn announce(&self, ix: MsgIx) {
        self.publish(&Changes { marked: vec![ix], ..Changes::default() });
    }

    /// Applies the file of marks to the tables. A snapshot that no longer fits the file is corrected
    /// by starting from unread.
    fn replay(&self, changes: &[marks::Change], usable: bool) {
        let mut core = self.core.write();
        if !usable {
            for ix in 0..core.entries.len() as MsgIx {
                core.set_read(ix, false, false);
            }
            core.orphan_marks.clear();
        }
        for c in changes {
            let number = self.stores.iter().position(|s| s.name() == c.store);
            let Some(number) = number else { continue };
            core.mark_by_key(number, &c.from, &c.id, c.read);
        }
    }

    /// Takes over what other readers of the store have read: what the store's watermark covers now
    /// and did not cover when it was last taken over (contract, section 4).
    fn import_watermark(&self, number: usize) -> Vec<MsgIx> {
        let Some(store) = self.stores.get(number) else { return Vec::new() };
        // Read under the lock: else our own writing of it could pass for somebody else's reading.
        let mut marks = self.marks.lock();
        let Some(mark) = store.watermark() else { return Vec::new() };
        let last = marks.imported.get(store.name()).cloned();
        if last.as_ref() == Some(&mark) {
            return Vec::new();
        }
        let mut core = self.core.write();
        let newly = |core: &Core, ix: &MsgIx| {
            core.entry(*ix).filter(|e| e.store() == number && !e.is_read()).is_some_and(|e| {
                let (from, id) = (core.from(e), core.id(e));
                mark.covers(e.time(), from, &id)
                    && !last.as_ref().is_some_and(|l| l.covers(e.time(), from, &id))
            })
        };
        let read: Vec<MsgIx> = core.to_me().filter(|ix| newly(&core, ix)).collect();
        for ix in &read {
            if let Some(e) = core.entry(*ix) {
                let (from, id) = (core.from(e).to_owned(), core.id(e));
                marks.push(&marks::Change { store: store.name().to_owned(), from, id, read: true });
            }
            core.set_read(*ix, true, false);
        }
        drop(core);
        marks.push_imported(store.name(), &mark);
        // Now: after a crash, what arrives late meanwhile must not look as if it had been covered.
        write_marks(&mut marks);
        read
    }

    /// Tells the stores, in their own way, what was read. Does nothing if no mark changed.
    pub fn tell_stores(&self) {
        let untold = self.untold.swap(false, std::sync::atomic::Ordering::Relaxed);
        if !untold || self.settings.read_only {
            return;
        }
        for (number, store) in self.stores.iter().enumerate() {
            let Some(mark) = self.contiguous(number) else { continue };
            let mut marks = self.marks.lock();
            match store.set_watermark(&mark) {
                // What we wrote ourselves must not be taken over as somebody else's reading.
                Ok(Some(written)) => {
                    marks.push_imported(store.name(), &written);
                    write_marks(&mut marks);
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(store = store.name(), error = %e, "the read position was not saved");
                }
            }
        }
    }

    /// The watermark that says no more than what was really read: the newest second up to which
    /// nothing is unread, with the read ids of that second in both spellings.
    fn contiguous(&self, number: usize) -> Option<Watermark> {
        let core = self.core.read();
        let now = Timestamp::now().secs();
        let mut limit = now;
        let mut read: Vec<MsgIx> = Vec::new();
        for ix in core.to_me() {
            let Some(e) = core.entry(ix).filter(|e| e.store() == number) else { continue };
            let secs = e.time().secs();
            if e.is_read() {
                read.push(ix);
            } else {
                limit = limit.min(secs);
            }
            if secs > limit && limit < now {
                break;
            }
        }
        let secs = |ix: &MsgIx| core.entry(*ix).map_or(i64::MAX, |e| e.time().secs());
        let newest = read.iter().map(secs).filter(|s| *s <= limit).max()?;
        let ids = read.iter().filter(|ix| secs(ix) == newest || secs(ix) > now).filter_map(|ix| {
            let e = core.entry(*ix)?;
            let id = core.id(e);
            Some([format!("{}:{id}", core.from(e)), id])
        });
        Some(Watermark { time: Timestamp::from_secs(newest), ids: ids.flatten().collect() })
    }

    /// Judges refused messages again after the keyring changed.
    pub fn judge_again(&self) {
        let candidates: Vec<MsgIx> = {
            let core = self.core.read();
            core.rejects().filter_map(|(_, r)| r.message).collect()
        };
        let mut changes = Changes::default();
        for ix in candidates {
            let Some(entry) = self.core.read().entry(ix).copied() else { continue };
            let Some(store) = self.store_of(&entry) else { continue };
            let Ok(record) = store.read(&entry.location()) else { continue };
            let (from, signed_before) = {
                let core = self.core.read();
                (core.from(&entry).to_owned(), core.has_signed(ix))
            };
            let judge = self.judge(entry.store());
            if let Judgement::Accepted(sig, key) =
                judge.judge(&from, record.claim.as_ref(), signed_before)
            {
                self.core.write().accept_rejected(ix, sig, key);
                changes.added.push(ix);
            }
        }
        self.save_pins();
        self.publish(&changes);
    }

    /// Writes the snapshot if anything changed since the last one.
    pub fn save(&self) {
        let unsaved = self.unsaved.swap(false, std::sync::atomic::Ordering::Relaxed);
        if !unsaved || self.settings.read_only {
            return;
        }
        let _turns: Vec<_> = self.scanning.iter().map(Mutex::lock).collect();
        let mut marks = self.marks.lock();
        write_marks(&mut marks);
        let stores: Vec<Vec<u8>> = self.stores.iter().map(|s| s.save()).collect();
        let result = snapshot::save(
            &self.settings.snapshot,
            &fingerprint(&self.stores, &self.settings),
            &self.core.read(),
            &stores,
            marks.len(),
        );
        if let Err(e) = result {
            tracing::warn!(path = %self.settings.snapshot.display(), error = %e, "the index was not saved");
        }
    }

    /// When a mark last changed: the time of the file, so that it is the same after a remount.
    pub fn marks_time(&self) -> Option<Timestamp> {
        let modified = std::fs::metadata(&self.settings.marks).ok()?.modified().ok()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
    }

    /// Ends: marks on disk, stores told, snapshot written.
    pub fn close(&self) {
        self.tell_stores();
        if let Err(e) = self.marks.lock().sync() {
            tracing::error!(path = %self.settings.marks.display(), error = %e, "marks were not saved");
        }
        self.save();
    }

    /// Wakes everybody who waits, though nothing changed.
    pub fn wake(&self) {
        *self.news.0.lock() += 1;
        self.news.1.notify_all();
    }
}

fn change(key: MessageKey, read: bool) -> marks::Change {
    marks::Change { store: key.store, from: key.from, id: key.id, read }
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
        let _ = write!(text, "|{}|{}|{}|{}", s.kind(), s.name(), s.dir().display(), s.me());
    }
    text
}

#[cfg(test)]
mod tests;
