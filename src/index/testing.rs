//! Helpers for the tests of the index: a mailbox over one store in memory.

use std::borrow::Cow;
use std::sync::Arc;

use crate::model::locks::{LockLevel, Mutex};
use ed25519_dalek::{Signer as _, SigningKey};

use super::messages::StoreInfo;
use super::{Index, IndexChanges, IndexEntry, IndexSettings, IndexTables, MsgIx};
use crate::identity::Keyring;
use crate::model::{
    PublicKey, SignatureClaim, SignatureScope, SignedBytes, Timestamp, Unsigned, plain_id,
};
pub(super) use crate::store::testing::{Folder, MarkBehavior, Memory};
use crate::store::{FoundMessage, Location, Store};

/// Returns a message to me.
pub fn message(from: &str, id: &str, secs: i64) -> FoundMessage<'static> {
    FoundMessage {
        at: Location { source: 0, offset: 0, len: 100 },
        from: from.to_owned().into(),
        to: "me".into(),
        thread: id.to_owned().into(),
        id: id.to_owned().into(),
        time: Timestamp::from_secs(secs),
        to_me: true,
        read: Some(false),
        ..FoundMessage::default()
    }
}

/// Returns a signed message to me that answers another.
pub(super) fn reply(from: &str, id: &str, secs: i64, to: &str, seed: u8) -> FoundMessage<'static> {
    let answers = Some(Cow::Owned(to.to_owned()));
    let claim = Some(Box::new(signed(seed, SignatureScope::Whole)));
    FoundMessage { in_reply_to: answers, claim, ..message(from, id, secs) }
}

pub(super) fn public(seed: u8) -> PublicKey {
    PublicKey(SigningKey::from_bytes(&[seed; 32]).verifying_key().to_bytes())
}

pub(super) fn signed(seed: u8, scope: SignatureScope) -> SignatureClaim {
    let text = b"text".to_vec();
    SignatureClaim::Signed {
        key: Some(public(seed)),
        signature: SigningKey::from_bytes(&[seed; 32]).sign(&text).to_bytes(),
        covered: SignedBytes::from_bytes(text),
        scope,
    }
}

/// A mailbox over one such store, which can be closed and opened again.
pub struct Bed {
    pub dir: tempfile::TempDir,
    pub folder: Arc<Mutex<Folder>>,
    pub unsigned: Unsigned,
    pub my_key: Option<PublicKey>,
}

impl Bed {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder: Arc<Mutex<Folder>> = Arc::default();
        folder.lock().answer = MarkBehavior::Noted;
        Self { dir, folder, unsigned: Unsigned::Accept, my_key: None }
    }

    pub fn keyring(&self) -> Keyring {
        Keyring::open(&self.dir.path().join("keyring.json")).unwrap()
    }

    pub fn open(&self) -> Index {
        self.open_with(&self.memory())
    }

    /// Returns one process's view of the store.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::new(Memory::new("memory", "me", &self.folder))
    }

    pub fn open_with(&self, store: &Arc<Memory>) -> Index {
        let settings = IndexSettings {
            marks: self.dir.path().join("marks"),
            snapshot: self.dir.path().join("snapshot"),
            map: true,
            unsigned: self.unsigned,
            read_only: false,
            my_keys: vec![self.my_key],
        };
        let store: Arc<dyn Store> = Arc::clone(store) as _;
        Index::open(vec![store], Arc::new(self.keyring()), settings, &mut |_, _| {}).unwrap()
    }

    pub fn drop_cache(&self) {
        let _ = std::fs::remove_file(self.dir.path().join("snapshot"));
    }

    pub fn put(&self, source: u32, found: FoundMessage<'static>) {
        self.folder.lock().put(source, found);
    }

    /// Returns the marks that were written to the store since the last call.
    pub fn told(&self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.folder.lock().told)
    }
}

/// Returns empty tables of these stores.
pub(super) fn tables_of(stores: Vec<StoreInfo>) -> IndexTables {
    with_stores(IndexTables::default(), stores)
}

/// Returns the tables of a snapshot with the stores that they were made of.
pub(super) fn with_stores(mut tables: IndexTables, stores: Vec<StoreInfo>) -> IndexTables {
    tables.complete(stores, Default::default());
    tables
}

impl Index {
    /// Breaks an invariant: the message behind this one in the chain of its thread is behind the end of the table.
    pub fn plant_broken_chain(&self, ix: MsgIx) {
        let beyond = MsgIx::for_test(1_000_000);
        let messages = &mut self.tables.write().messages;
        messages.entry_mut(ix).set_next_in_thread(beyond);
        // Nothing that a view cached counts any more.
        messages.note_change();
    }
}

impl IndexTables {
    /// Returns the message that an id means in a store, from any writer: the earliest, if several have it.
    pub fn find_id(&self, store: usize, id: &str) -> Option<MsgIx> {
        let (messages, names) = (&self.messages, self.messages.names());
        if names.store(store).links {
            return messages.resolve_id(store, names.find_text(plain_id(id))?);
        }
        (0u32..)
            .zip(names.writers())
            .filter(|(_, w)| w.store == store)
            .filter_map(|(writer, _)| messages.locate_message(writer, id).ok())
            .min_by(|a, b| messages.compare_order(*a, *b))
    }
}

/// Returns the message with this id.
#[track_caller]
pub fn at(index: &Index, id: &str) -> MsgIx {
    index.read().find_id(0, id).unwrap()
}

/// Returns the entry of the message with this id.
#[track_caller]
pub(super) fn entry(index: &Index, id: &str) -> IndexEntry {
    let ix = at(index, id);
    *index.read().messages.entry(ix)
}

/// Returns the thread id of the message with this id.
#[track_caller]
pub(super) fn thread(index: &Index, id: &str) -> String {
    let entry = entry(index, id);
    let tables = index.read();
    tables.threads.thread_id(&tables.messages, entry.thread()).0.to_owned()
}

/// Returns a list that receives all changes published from now on.
pub(super) fn listen(index: &Index) -> Arc<Mutex<Vec<IndexChanges>>> {
    let heard = Arc::new(Mutex::with_level(LockLevel::File, Vec::new()));
    let into = Arc::clone(&heard);
    index.subscribe(move |changes| into.lock().push(changes.clone()));
    heard
}
