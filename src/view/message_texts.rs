//! The texts of messages: read from their stores, rendered, and cached. Programs that walk through folders get
//! them in batches.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use super::answered::is_same_address;
use super::render_cache::RenderCache;
use super::transcript::find_rules;
use super::{Error, names};
use crate::index::{Index, IndexEntry, MsgIx};
use crate::model::locks::Mutex;
use crate::model::{
    Message, ShownMessage, SignatureState, plain_thread_id, render_body, sanitize_line,
};
use crate::search::BodySource;
use crate::store::{Record, Store, StoreError};

/// Number of messages that are read and rendered together.
const TOGETHER: usize = 64;

/// The file of a message whose store has no text of it now. No message has a file as short as this.
const NO_TEXT: &[u8] = b"\nThe text of this message cannot be read now.\n";

/// A message to be rendered: its number, entry and signature.
type PendingRender = (MsgIx, IndexEntry, SignatureState);

/// The number of messages whose further ids are cached.
const FURTHER_IDS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// The further ids of a message, and its entry when they were read.
type FurtherIds = (IndexEntry, Arc<[String]>);

/// The texts of the messages of one tree.
pub(super) struct MessageTexts {
    index: Arc<Index>,
    cache: Mutex<RenderCache>,
    further_ids: Mutex<LruCache<MsgIx, FurtherIds>>,
}

impl MessageTexts {
    /// Makes an empty cache for the messages of an index.
    pub fn new(index: Arc<Index>) -> Self {
        let further_ids = Mutex::new(LruCache::new(FURTHER_IDS));
        Self { index, cache: Mutex::default(), further_ids }
    }

    /// Drops the cached text of a message.
    pub fn forget(&self, ix: MsgIx) {
        self.cache.lock().remove(ix);
        self.further_ids.lock().pop(&ix);
    }

    /// Returns the ids of a message that the index does not have.
    pub fn further_ids(&self, ix: MsgIx) -> Result<Arc<[String]>, Error> {
        let entry = self.live_entry(ix)?;
        if let Some((seen, ids)) = self.further_ids.lock().get(&ix)
            && entry.has_same_appearance(seen)
        {
            return Ok(Arc::clone(ids));
        }
        let ids: Arc<[String]> = self.read_record(ix, &entry)?.further_ids.into();
        self.further_ids.lock().put(ix, (entry, Arc::clone(&ids)));
        Ok(ids)
    }

    /// Returns true if the text of a message is cached, in its present form or in an earlier one.
    pub fn is_cached(&self, ix: MsgIx) -> bool {
        self.cache.lock().get(ix).is_some()
    }

    /// Returns the length of a message's text, unless it is unknown or the text cannot be read.
    pub fn known_size(&self, ix: MsgIx) -> Result<Option<u64>, Error> {
        let entry = self.live_entry(ix)?;
        let lacks_text = || self.index.store_of(&entry).lacks_text(&entry.location());
        let is_readable = |_: &u64| !lacks_text() || self.cached_text(ix, &entry).is_some();
        Ok(entry.size().filter(is_readable))
    }

    /// Returns the length of a message's text.
    pub fn message_size(&self, ix: MsgIx) -> Result<u64, Error> {
        self.known_size(ix)?.map_or_else(|| Ok(self.rendered_text(ix)?.len() as u64), Ok)
    }

    /// Returns the entry of a message that is not gone.
    pub fn live_entry(&self, ix: MsgIx) -> Result<IndexEntry, Error> {
        let entry = *self.index.read().messages.entry(ix);
        entry.is_live().then_some(entry).ok_or(Error::NotFound)
    }

    /// Returns the rendered text of a message.
    pub fn rendered_text(&self, ix: MsgIx) -> Result<Arc<[u8]>, Error> {
        let (entry, signature, generation) = {
            let tables = self.index.read();
            let entry = *tables.messages.entry(ix);
            if !entry.is_live() {
                return Err(Error::NotFound);
            }
            (entry, tables.trust.signature(&tables.messages, &entry), tables.generation())
        };
        if let Some(bytes) = self.cached_text(ix, &entry) {
            return Ok(bytes);
        }
        let record = self.read_record(ix, &entry)?;
        Ok(self.render_record((ix, &entry), signature, generation, record))
    }

    /// Returns the text of a message as its file shows it: a line says if the store has no text of it now.
    pub fn shown_text(&self, ix: MsgIx) -> Result<Arc<[u8]>, Error> {
        match self.rendered_text(ix) {
            Err(Error::NoText) => Ok(NO_TEXT.into()),
            text => text,
        }
    }

    /// Returns the cached text of a message, if it is as the entry says.
    fn cached_text(&self, ix: MsgIx, entry: &IndexEntry) -> Option<Arc<[u8]>> {
        // The index forgets the length if another text may have replaced this one in the same place.
        let holds = |(seen, bytes): &&(IndexEntry, Arc<[u8]>)| {
            entry.has_same_appearance(seen) && entry.size() == Some(bytes.len() as u64)
        };
        self.cache.lock().get(ix).filter(holds).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Renders a record that was just read, and caches the text.
    fn render_record(
        &self,
        (ix, entry): (MsgIx, &IndexEntry),
        signature: SignatureState,
        generation: u64,
        record: Record,
    ) -> Arc<[u8]> {
        let kind = record.origin.unwrap_or_else(|| self.index.store_of(entry).kind());
        let message = shown_message(record, signature);
        let mut text = String::with_capacity(256 + message.body.len());
        ShownMessage::new(&message, kind.as_str()).render(&mut text, &signature.to_string());
        let bytes: Arc<[u8]> = text.into_bytes().into();
        if entry.size() != Some(bytes.len() as u64) {
            let ruled = find_rules(&bytes).count() as u32;
            self.index.remember_size(ix, entry, generation, (bytes.len() as u64, ruled));
        }
        self.cache.lock().insert(ix, (*entry, Arc::clone(&bytes)));
        bytes
    }

    /// Reads the record of a message from its store and sets its thread. Fails if the message is gone.
    pub fn read_record(&self, ix: MsgIx, entry: &IndexEntry) -> Result<Record, Error> {
        let mut entry = *entry;
        let record = match self.read_at(&entry) {
            // The message may only have moved since the last scan: another program renamed its file when it read it, or
            // merged a copy of a log into the log, or the store restored a line of mine that the log had lost.
            Err(Error::Store(StoreError::Moved)) => {
                let store = self.index.store_of(&entry);
                if let Some(path) = store.source_path(entry.location().source) {
                    store.note_change(&store.dir().join(path));
                }
                self.rescan_store(entry.store(), entry.is_from_me());
                // Another store may have it now.
                entry = self.live_entry(ix)?;
                self.read_at(&entry)?
            }
            read => read?,
        };
        self.check_record(ix, &entry, record)
    }

    /// Reads the record at the location of an entry.
    fn read_at(&self, entry: &IndexEntry) -> Result<Record, Error> {
        let (store, at) = (self.index.store_of(entry), entry.location());
        store.read_record(&at).map_err(|error| match error {
            StoreError::Moved if store.lacks_text(&at) => Error::NoText,
            error => error.into(),
        })
    }

    /// Returns the record with its thread and the time and the ids that are shown, or `Moved` if it belongs to another
    /// message.
    fn check_record(
        &self,
        ix: MsgIx,
        entry: &IndexEntry,
        mut record: Record,
    ) -> Result<Record, Error> {
        let store = self.index.store_of(entry);
        let tables = self.index.read();
        let known = tables.messages.entry(ix);
        // A mail shows its sender as it was written, and the index knows the address.
        let from = record.message.from.as_deref().unwrap_or_default();
        let is_sender = is_same_address(tables.messages.sender(known), from);
        if tables.messages.id(known) != record.message.id || !is_sender {
            return Err(StoreError::Moved.into());
        }
        if record.has_unknown_time {
            record.message.time = known.time();
        }
        if store.properties().has_indexed_threads() {
            let (thread, _) = tables.threads.thread_id(&tables.messages, known.thread());
            record.message.thread = Some(thread.to_owned());
        }
        if let Some(shared) = tables.messages.shared_id(ix) {
            record.message.id = shared;
        }
        if let Some(answered) = &mut record.message.in_reply_to
            && let Some(shared) = tables.messages.shared_id_for(entry.store(), answered)
        {
            *answered = shared;
        }
        strip_thread_label(store.as_ref(), &mut record.message);
        Ok(record)
    }

    /// Scans a store again, until no file in it is unfinished: the message may be in it. A failure is only logged.
    pub fn rescan_store(&self, number: usize, full: bool) {
        if let Err(error) = self.index.refresh_until_finished(number, full) {
            tracing::warn!(%error, "the store cannot be read now");
        }
    }

    /// Renders the messages whose text is not cached.
    pub fn render_uncached(&self, messages: impl Iterator<Item = MsgIx>) {
        let unread = |ix: &MsgIx| !self.is_cached(*ix);
        let messages: Vec<MsgIx> = messages.filter(unread).collect();
        self.render_batch(&messages, |_| true);
    }

    /// Renders messages of unknown size. The read of a message reports its error.
    pub fn render_unsized(&self, messages: impl Iterator<Item = MsgIx>) {
        let messages: Vec<MsgIx> = messages.collect();
        // Each batch reads the index again: after a change the sizes of one generation would be useless.
        let unknown = |entry: &IndexEntry| entry.size().is_none();
        messages.chunks(TOGETHER).for_each(|some| self.render_batch(some, unknown));
    }

    fn render_batch(&self, messages: &[MsgIx], which: impl Fn(&IndexEntry) -> bool) {
        let mut wanted: BTreeMap<usize, Vec<PendingRender>> = BTreeMap::new();
        let tables = self.index.read();
        let generation = tables.generation();
        for ix in messages.iter().copied() {
            let entry = tables.messages.entry(ix);
            if entry.is_live() && which(entry) {
                let ahead = (ix, *entry, tables.trust.signature(&tables.messages, entry));
                wanted.entry(entry.store()).or_default().push(ahead);
            }
        }
        drop(tables);
        for (number, messages) in wanted {
            let Some(store) = self.index.stores().get(number) else { continue };
            let at: Vec<_> = messages.iter().map(|(_, entry, _)| entry.location()).collect();
            store.read_records(&at, &mut |number, record| {
                let Some((ix, entry, signature)) = messages.get(number) else { return };
                if let Ok(record) = self.check_record(*ix, entry, record) {
                    self.render_record((*ix, entry), *signature, generation, record);
                }
            });
        }
    }
}

impl BodySource for MessageTexts {
    fn read_bodies(&self, messages: &[MsgIx], each: &mut dyn FnMut(MsgIx, &str, &str)) {
        let mut wanted: BTreeMap<usize, Vec<PendingRender>> = BTreeMap::new();
        {
            let tables = self.index.read();
            for ix in messages.iter().copied() {
                let entry = tables.messages.entry(ix);
                let signature = tables.trust.signature(&tables.messages, entry);
                wanted.entry(entry.store()).or_default().push((ix, *entry, signature));
            }
        }
        for (number, messages) in wanted {
            let Some(store) = self.index.stores().get(number) else { continue };
            let at: Vec<_> = messages.iter().map(|(_, entry, _)| entry.location()).collect();
            let mut is_left = vec![true; messages.len()];
            let mut give = |number: usize, ix, signature, record| {
                give_shown(ix, &shown_message(record, signature), each);
                if let Some(left) = is_left.get_mut(number) {
                    *left = false;
                }
            };
            store.read_records(&at, &mut |number, record| {
                let Some((ix, entry, signature)) = messages.get(number) else { return };
                if let Ok(record) = self.check_record(*ix, entry, record) {
                    give(number, *ix, *signature, record);
                }
            });
            let left: Vec<usize> =
                is_left.iter().enumerate().filter(|(_, left)| **left).map(|(n, _)| n).collect();
            for number in left {
                let Some((ix, _, signature)) = messages.get(number) else { continue };
                let read = self.live_entry(*ix).and_then(|entry| self.read_record(*ix, &entry));
                if let Ok(record) = read {
                    give_shown(*ix, &shown_message(record, *signature), each);
                }
            }
        }
    }
}

/// Returns the message of a record, with the body that is shown for its signature.
fn shown_message(mut record: Record, signature: SignatureState) -> Message {
    if let SignatureState::Valid(_) = signature
        && let Some(body) = record.body_if_valid.take()
    {
        record.message.body = body;
    }
    record.message
}

/// Calls `each` with the subject and the body of a message as its file shows them.
fn give_shown(ix: MsgIx, message: &Message, each: &mut dyn FnMut(MsgIx, &str, &str)) {
    let subject = sanitize_line(message.subject.as_deref().unwrap_or_default());
    each(ix, &subject, &render_body(&message.body));
}

/// Returns the subject of a message, if it has one, and the first line of its text, both cut to this many characters.
pub(super) fn read_headline(
    texts: &MessageTexts,
    ix: MsgIx,
    most: usize,
) -> (Option<String>, String) {
    let Ok(text) = texts.rendered_text(ix) else { return (None, String::new()) };
    let text = String::from_utf8_lossy(&text);
    let (header, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let first = |mut lines: std::str::Lines<'_>| {
        lines.find(|l| !l.trim().is_empty()).map(|line| names::cut_line(line, most))
    };
    let subject = header.lines().find_map(|line| line.strip_prefix("Subject: "));
    (subject.and_then(|subject| first(subject.lines())), first(body.lines()).unwrap_or_default())
}

/// Removes the label of a thread's source from its id; people see ids without it.
pub(super) fn strip_thread_label(store: &dyn Store, message: &mut Message) {
    if store.properties().has_thread_labels()
        && let Some(thread) = &mut message.thread
    {
        thread.truncate(plain_thread_id(thread).len());
    }
}
