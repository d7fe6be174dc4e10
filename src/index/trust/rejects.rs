//! Bytes of stores that were rejected, and the messages in them.

use serde::{Deserialize, Serialize};

use super::TrustTable;
use crate::index::intern::{IDENTITY_MASK, stable_hash};
use crate::index::messages::{IndexEntry, MessageTable};
use crate::index::position::MsgIx;
use crate::index::source::SourceId;
use crate::store::Rejection;

/// The file and the offset of a rejection.
pub type RejectionKey = (SourceId, u64);

/// Bytes of a store that were rejected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexedRejection {
    /// Path of the file, relative to its store.
    pub path: String,
    /// One sentence for a person.
    pub reason: String,
    /// Line in the log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Length of the rejected bytes.
    pub len: u32,
    /// Time of the rejected record, or of the record before it.
    pub time_ms: i64,
    /// True if it may still become a message.
    pub(in crate::index) incomplete: bool,
    /// True if the message was changed after it was verified. No key makes such a message valid.
    is_changed: bool,
    /// The message, if it could be parsed as one.
    pub message: Option<MsgIx>,
    /// Identity behind its inode number.
    pub identity: u64,
}

impl TrustTable {
    /// Returns all rejections, in the order of files and offsets.
    pub fn rejects(&self) -> impl Iterator<Item = (&RejectionKey, &IndexedRejection)> {
        self.rejects.iter()
    }

    /// Returns the rejection with the identity that its inode number is made from.
    pub fn find_rejection(&self, identity: u64) -> Option<(RejectionKey, &IndexedRejection)> {
        let key = *self.reject_of.get(&identity)?;
        let Some(reject) = self.rejects.get(&key) else {
            panic!("the index is broken: it has no rejection with the identity {identity:#x}")
        };
        Some((key, reject))
    }

    /// Adds a rejection of a store, and the message in it if there is one.
    pub(in crate::index) fn add_reject(
        &mut self,
        messages: &MessageTable,
        store: usize,
        rejected: Rejection,
        message: Option<MsgIx>,
    ) {
        self.generation += 1;
        let mut path = rejected.path;
        if path.is_empty() {
            path = format!("source {}", rejected.at.source);
        }
        let key = (SourceId::new(store, rejected.at.source), rejected.at.offset);
        let name = messages.names().store(store).name.as_str();
        let line = rejected.line.to_string();
        let mut identity = stable_hash(2, &[name, &path, &line]) & IDENTITY_MASK;
        // Somebody may construct two paths with equal hashes.
        while self.reject_of.get(&identity).is_some_and(|other| *other != key) {
            identity = stable_hash(identity, &[&path, &line]) & IDENTITY_MASK;
        }
        let reject = IndexedRejection {
            path,
            reason: rejected.reason,
            line: rejected.line,
            len: rejected.at.len,
            time_ms: rejected.time.millis(),
            incomplete: rejected.incomplete,
            is_changed: false,
            message,
            identity,
        };
        self.reject_of.insert(identity, key);
        if let Some(before) = self.rejects.insert(key, reject)
            && before.identity != identity
        {
            self.reject_of.remove(&before.identity);
        }
    }

    /// Records that a rejected message was changed after it was verified.
    pub(in crate::index) fn note_changed_text(&mut self, messages: &MessageTable, ix: MsgIx) {
        if let Some(reject) = self.rejects.get_mut(&key_of(messages.entry(ix))) {
            reject.is_changed = true;
        }
    }

    /// Returns true if a message is rejected because it was changed after it was verified.
    pub(super) fn is_changed_text(&self, messages: &MessageTable, ix: MsgIx) -> bool {
        let reject = self.rejects.get(&key_of(messages.entry(ix)));
        reject.is_some_and(|reject| reject.is_changed && reject.message == Some(ix))
    }

    /// Removes the rejections for which `drop` returns true.
    pub(in crate::index) fn remove_rejects(
        &mut self,
        drop: impl Fn(&RejectionKey, &IndexedRejection) -> bool,
    ) {
        let gone: Vec<RejectionKey> =
            self.rejects.iter().filter(|(k, r)| drop(k, r)).map(|(k, _)| *k).collect();
        for key in gone {
            self.generation += 1;
            if let Some(reject) = self.rejects.remove(&key) {
                self.reject_of.remove(&reject.identity);
            }
        }
    }
}

/// Returns the key of the rejection of a message.
fn key_of(entry: &IndexEntry) -> RejectionKey {
    (entry.source(), entry.location().offset)
}
