//! The texts of the index, its stores, and the writers and recipients in them.

use std::collections::HashMap;

use crate::index::column::{at, at_mut};
use crate::index::intern::{IDENTITY_MASK, Interner, StrId, stable_hash};
use crate::index::snapshot::{SavedWriter, SnapshotHeader};
use crate::index::source::BitSet;
use crate::store::Kind;

/// One writer of one store.
#[derive(Clone, Debug)]
pub(in crate::index) struct Writer {
    pub store: usize,
    pub name: StrId,
    /// Hash of store and name.
    pub salt: u64,
    /// The kind whose messages the store keeps for this writer, while no store of that kind is mounted.
    pub origin: Option<Kind>,
    /// The second of the newest message, and the number of messages in that second.
    pub(super) newest: (i64, u32),
    /// The number of messages in each second, once a message arrived out of order.
    pub(super) counts: Option<HashMap<i64, u32>>,
}

/// The data of a store that the tables need.
#[derive(Clone, Debug, Default)]
pub(in crate::index) struct StoreInfo {
    pub name: String,
    pub kind: Kind,
    /// A hash that separates the identities of its threads from those of other stores.
    pub salt: u64,
    pub whole_seconds: bool,
    /// True if threads are made from reply links.
    pub links: bool,
    /// True if these links are the parents that messages name ([`FoundMessage::parent`](crate::store::FoundMessage)).
    pub joins: bool,
    /// True if its addresses are roles, which several agents may fill.
    pub roles: bool,
    /// True if it keeps the messages of a writer in one log.
    pub log: bool,
    /// True if its messages are transcripts, which are shown as if they were mine.
    pub transcripts: bool,
    /// True if it was scanned before.
    pub is_known: bool,
    /// The number of messages after the last scan.
    pub seen: usize,
}

impl StoreInfo {
    /// Makes the data of a store of this name.
    pub fn with_name(name: &str) -> Self {
        let salt = stable_hash(1, &[name]) & IDENTITY_MASK;
        Self { name: name.to_owned(), salt, ..Self::default() }
    }
}

/// The store to which a message belongs. It gives the message its identity, wherever its bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) struct MessageHome {
    /// The number of the store.
    pub store: usize,
    /// The kind from which the store keeps the message, if no store of that kind is mounted.
    pub origin: Option<Kind>,
}

impl MessageHome {
    /// Returns the home of a store's own messages.
    pub fn of_store(store: usize) -> Self {
        Self { store, origin: None }
    }
}

/// The texts, each once, and the stores, writers and addresses that they name.
#[derive(Debug, Default)]
pub struct NameTable {
    texts: Interner,
    stores: Vec<StoreInfo>,
    writers: Vec<Writer>,
    writer_of: HashMap<(usize, Option<Kind>, StrId), u32>,
    /// For each store, the texts that are the address of a writer or recipient.
    addressed: Vec<BitSet>,
    /// The writer of the last lookup. Neighbours in a log have the same writer.
    last_writer: u32,
}

impl NameTable {
    /// Creates the table of a snapshot.
    pub(super) fn from_snapshot(texts: Interner, header: &mut SnapshotHeader) -> Self {
        let writer = |saved: &mut SavedWriter| Writer {
            store: saved.store,
            name: saved.name,
            salt: saved.salt,
            origin: saved.origin,
            newest: saved.newest,
            counts: saved.counts.take(),
        };
        let writers: Vec<Writer> = header.writers.iter_mut().map(writer).collect();
        let addressed = std::mem::take(&mut header.addressed);
        let key = |(n, w): (u32, &Writer)| ((w.store, w.origin, w.name), n);
        let writer_of = (0u32..).zip(&writers).map(key).collect();
        Self { texts, writers, writer_of, addressed, ..Self::default() }
    }

    /// Fills in the values that the header of a snapshot has. [`TrustTable`](crate::index::trust::TrustTable)
    /// completes the writers.
    pub(super) fn save_into(&self, header: &mut SnapshotHeader) {
        header.addressed.clone_from(&self.addressed);
        let saved = |w: &Writer| SavedWriter {
            store: w.store,
            name: w.name,
            salt: w.salt,
            origin: w.origin,
            newest: w.newest,
            counts: w.counts.clone(),
            ..SavedWriter::default()
        };
        header.writers = self.writers.iter().map(saved).collect();
    }

    /// Returns the interner of the texts.
    pub(super) fn texts(&self) -> &Interner {
        &self.texts
    }

    /// Returns the interner of the texts, for a change.
    pub(super) fn texts_mut(&mut self) -> &mut Interner {
        &mut self.texts
    }

    /// Returns the text with this number.
    pub(in crate::index) fn text(&self, id: StrId) -> &str {
        self.texts.get(id)
    }

    /// Returns the number of a text, if the index has it.
    pub(in crate::index) fn find_text(&self, text: &str) -> Option<StrId> {
        self.texts.find(text)
    }

    /// Returns the texts with this identity: almost always one.
    pub(in crate::index) fn find_texts_by_identity(
        &self,
        identity: u64,
    ) -> impl Iterator<Item = StrId> + '_ {
        self.texts.find_by_identity(identity)
    }

    /// Interns a text. Also returns true if certainly no other text has its identity.
    pub(in crate::index) fn intern_text(&mut self, text: &str) -> (StrId, bool) {
        self.texts.intern_checked(text)
    }

    /// Returns all stores, in the order of their numbers.
    pub(in crate::index) fn stores(&self) -> &[StoreInfo] {
        &self.stores
    }

    /// Returns a store by its number.
    #[track_caller]
    pub(in crate::index) fn store(&self, store: usize) -> &StoreInfo {
        at(&self.stores, store)
    }

    /// Returns a store by its number, for a change.
    #[track_caller]
    pub(super) fn store_mut(&mut self, store: usize) -> &mut StoreInfo {
        at_mut(&mut self.stores, store)
    }

    /// Sets the stores of an index that is opened.
    pub(in crate::index) fn set_stores(&mut self, stores: Vec<StoreInfo>) {
        self.stores = stores;
    }

    /// Appends a store that was added later.
    pub(super) fn add_store(&mut self, store: StoreInfo) {
        self.stores.push(store);
    }

    /// Returns all writers, in the order of their numbers.
    pub(in crate::index) fn writers(&self) -> &[Writer] {
        &self.writers
    }

    /// Returns a writer by its number.
    #[track_caller]
    pub(in crate::index) fn writer(&self, writer: u32) -> &Writer {
        at(&self.writers, writer as usize)
    }

    /// Returns a writer by its number, for a change.
    #[track_caller]
    pub(super) fn writer_mut(&mut self, writer: u32) -> &mut Writer {
        at_mut(&mut self.writers, writer as usize)
    }

    /// Returns the salt that separates the hashes of a writer's ids from those of other writers.
    pub(super) fn salt(&self, writer: u32) -> u64 {
        self.writer(writer).salt
    }

    /// Returns the address of a writer.
    pub(in crate::index) fn writer_name(&self, writer: u32) -> &str {
        self.text(self.writer(writer).name)
    }

    /// Returns the writer with this address.
    pub(in crate::index) fn find_writer(&self, store: usize, name: &str) -> Option<u32> {
        self.find_writer_at(MessageHome::of_store(store), name)
    }

    fn find_writer_at(&self, home: MessageHome, name: &str) -> Option<u32> {
        let is_home = |w: &Writer| w.store == home.store && w.origin == home.origin;
        let is_it = |w: &&Writer| is_home(w) && self.texts.is_text(w.name, name);
        if self.writers.get(self.last_writer as usize).as_ref().is_some_and(is_it) {
            return Some(self.last_writer);
        }
        self.writer_of.get(&(home.store, home.origin, self.find_text(name)?)).copied()
    }

    /// Returns the writer with this address, and true if it is new.
    pub(super) fn intern_writer(&mut self, home: MessageHome, name: &str) -> (u32, bool) {
        let known = self.find_writer_at(home, name);
        self.last_writer = known.unwrap_or_else(|| {
            let id = self.texts.intern(name);
            let next = self.writers.len() as u32;
            let MessageHome { store, origin } = home;
            self.writer_of.insert((store, origin, id), next);
            let salt = stable_hash(5, &[self.home_name(home), name]);
            let (newest, counts) = ((0, 0), None);
            self.writers.push(Writer { store, name: id, salt, origin, newest, counts });
            self.note_address(store, id);
            next
        });
        (self.last_writer, known.is_none())
    }

    /// Computes the salt of a writer that may be new.
    pub(super) fn compute_writer_salt(&self, store: usize, name: &str) -> u64 {
        stable_hash(5, &[self.store(store).name.as_str(), name])
    }

    /// Returns true if two writers are the same address of stores of the same name.
    pub(super) fn is_same_writer(&self, a: u32, b: u32) -> bool {
        let same = |x: &Writer, y: &Writer| x.salt == y.salt && x.name == y.name;
        a == b || same(self.writer(a), self.writer(b))
    }

    /// Returns the home of a writer's messages.
    pub(in crate::index) fn writer_home(&self, writer: u32) -> MessageHome {
        let writer = self.writer(writer);
        MessageHome { store: writer.store, origin: writer.origin }
    }

    /// Returns true if the messages of a writer are transcripts, in their own store or kept.
    pub(in crate::index) fn is_transcript(&self, writer: u32) -> bool {
        let home = self.writer_home(writer);
        home.origin.is_some_and(Kind::has_sessions) || self.store(home.store).transcripts
    }

    /// Returns the name of the store to which messages belong. A kind that is not mounted has the name that a store of
    /// it has by default.
    pub(in crate::index) fn home_name(&self, home: MessageHome) -> &str {
        match home.origin {
            Some(kind) => kind.as_str(),
            None => &self.store(home.store).name,
        }
    }

    /// Returns the hash that separates the identities of threads of a home from those of others.
    pub(in crate::index) fn home_salt(&self, home: MessageHome) -> u64 {
        match home.origin {
            Some(kind) => StoreInfo::with_name(kind.as_str()).salt,
            None => self.store(home.store).salt,
        }
    }

    fn note_address(&mut self, store: usize, id: StrId) {
        if self.addressed.len() <= store {
            self.addressed.resize(store + 1, BitSet::default());
        }
        at_mut(&mut self.addressed, store).insert(id);
    }

    /// Returns the recipients as one text, and adds each of them to the known addresses.
    pub(super) fn intern_recipients(&mut self, store: usize, to: &str) -> StrId {
        let id = self.texts.intern(to);
        if !to.contains(", ") {
            self.note_address(store, id);
            return id;
        }
        for one in to.split(", ") {
            let one = self.texts.intern(one);
            self.note_address(store, one);
        }
        id
    }

    /// Returns true if the address has sent or received a message in the store.
    pub fn is_known_address(&self, store: usize, address: &str) -> bool {
        let known = self.addressed.get(store).zip(self.find_text(address));
        known.is_some_and(|(addresses, id)| addresses.contains(id))
    }

    /// Returns the addresses that have sent or received messages, for "did you mean".
    pub fn known_addresses(&self) -> impl Iterator<Item = &str> {
        let known = |id: &StrId| self.addressed.iter().any(|addresses| addresses.contains(*id));
        (0..self.texts.len() as StrId).filter(known).map(|id| self.text(id))
    }

    /// Returns true if this address has ever written a message in the store.
    pub fn has_written(&self, store: usize, address: &str) -> bool {
        self.find_writer(store, address).is_some()
    }
}
