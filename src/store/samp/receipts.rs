//! The proofs in `.seen-<recipient>` that a recipient has read a record of mine.
//!
//! A position proves that its reader has passed everything before it. A position beyond the time at which it was
//! written covers records that did not exist then, so it proves nothing of those that were written later.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;

use lru::LruCache;

use super::record::{self, SampScratch};
use super::{SampStore, alias, read_position};
use crate::model::locks::Mutex;
use crate::model::{DeliveryState, Timestamp};
use crate::store::{Location, MessageReader as _, Receipt, SentMessage, Store as _, Watermark};

/// The longest record whose other ids are computed, in bytes.
const LONGEST: usize = 2 << 20;

/// The number of record ids that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(8191);

/// The ids of the records of one message for its recipients, by the id of the message and the recipient. Each follows
/// from the text of the message, which its id stands for. To compute one, the whole record is read, with its files.
#[derive(Debug)]
pub(super) struct RecordIds(Mutex<LruCache<(String, String), String>>);

impl Default for RecordIds {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl RecordIds {
    /// Returns the id for this recipient. `compute` returns it if it is not known.
    fn find(
        &self,
        one: &SentMessage<'_>,
        compute: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        let key = (one.id.to_owned(), one.to.to_owned());
        if let Some(known) = self.0.lock().get(&key) {
            return Some(known.clone());
        }
        let id = compute()?;
        self.0.lock().put(key, id.clone());
        Some(id)
    }
}

/// The read position of a recipient.
struct PeerPosition {
    mark: Watermark,
    /// The time at which it was written.
    written: Timestamp,
}

impl PeerPosition {
    /// Reads the position of an alias. A text that is no alias is no part of a path.
    fn load(store: &SampStore, address: &str) -> Option<Self> {
        let mark = alias::is_valid_alias(address)
            .then(|| read_position::read_peer_watermark(store.dir(), address))??;
        Some(Self { mark, written: read_position::modified_time(store.dir(), address)? })
    }

    /// Returns the proof about a record of `from`.
    fn find_proof(&self, from: &str, id: &str, time: Timestamp, now: Timestamp) -> Receipt {
        // The file was written when the position was last moved.
        let moved = (time.secs() == self.mark.time.secs()).then_some(self.written);
        if self.mark.names(from, id) {
            return Receipt::of_state(DeliveryState::Read, moved);
        }
        let was_there = time <= self.written && self.written <= now;
        if was_there && time < self.mark.time {
            return Receipt::of_state(DeliveryState::Passed, None);
        }
        Receipt::default()
    }
}

impl SampStore {
    /// Returns what the positions of the recipients prove.
    pub(super) fn find_record_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let (mut positions, now) = (HashMap::new(), Timestamp::now());
        let mut texts = RecordTexts { store: self, last: None };
        let receipt = |one: &SentMessage<'_>| {
            let known = &self.format.record_ids;
            let record_id =
                one.has_others.then(|| known.find(one, || texts.find_id_for(one))).flatten();
            let position = positions
                .entry(one.to.to_owned())
                .or_insert_with(|| PeerPosition::load(self, one.to));
            let id = record_id.as_deref().unwrap_or(one.id);
            let proof = position.as_ref().map(|p| p.find_proof(self.me(), id, one.time, now));
            Receipt { record_id, ..proof.unwrap_or_default() }
        };
        sent.iter().map(receipt).collect()
    }
}

/// The texts of records, of which the last is kept: the recipients of one message follow each other.
struct RecordTexts<'a> {
    store: &'a SampStore,
    last: Option<(Location, String)>,
}

impl RecordTexts<'_> {
    /// Returns the id of the record of the same message to this recipient.
    fn find_id_for(&mut self, one: &SentMessage<'_>) -> Option<String> {
        if self.last.as_ref().is_none_or(|(at, _)| *at != one.at) {
            let bytes = self.store.read_bytes(&one.at, LONGEST).ok()?;
            let text = match String::from_utf8_lossy(&bytes) {
                Cow::Borrowed(text) => text.to_owned(),
                // Such a record has no computed id.
                Cow::Owned(_) => return None,
            };
            self.last = Some((one.at, text));
        }
        let (_, text) = self.last.as_ref()?;
        let mut scratch = SampScratch::default();
        let parsed = record::parse(text, &mut scratch).ok()?;
        Some(if parsed.to == one.to {
            parsed.id.into_owned()
        } else {
            parsed.recipient_ids()(one.to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(secs: i64, ids: &[&str], written: i64) -> PeerPosition {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let mark = Watermark { time: Timestamp::from_secs(secs), ids };
        PeerPosition { mark, written: Timestamp::from_secs(written) }
    }

    fn proof(position: &PeerPosition, id: &str, secs: i64) -> Option<DeliveryState> {
        let (time, now) = (Timestamp::from_secs(secs), Timestamp::from_secs(1000));
        position.find_proof("foo", id, time, now).state
    }

    #[test]
    fn a_position_passes_and_a_listed_id_is_read() {
        let at = position(50, &["a", "foo:b", "bar:c"], 60);
        assert_eq!(proof(&at, "z", 49), Some(DeliveryState::Passed));
        assert_eq!(proof(&at, "z", 50), None, "not listed in its own second");
        for id in ["a", "b"] {
            for secs in [40, 50, 55] {
                assert_eq!(proof(&at, id, secs), Some(DeliveryState::Read), "{id} {secs}");
            }
        }
        assert_eq!(proof(&at, "c", 50), None, "the record of another writer");
        let forged = position(50, &["a", "zed:a"], 60);
        assert_eq!(
            proof(&forged, "a", 50),
            None,
            "another writer's record that claims the id of mine"
        );
        let both = position(50, &["a", "foo:a", "zed:a"], 60);
        assert_eq!(proof(&both, "a", 50), Some(DeliveryState::Read));
    }

    #[test]
    fn a_position_of_the_future_passes_only_what_was_there_when_it_was_written() {
        let forged = position(9_999_999_999, &[], 500);
        assert_eq!(proof(&forged, "z", 499), Some(DeliveryState::Passed));
        assert_eq!(proof(&forged, "z", 501), None);
        assert_eq!(proof(&position(9_999_999_999, &[], 2000), "z", 10), None, "written tomorrow");
    }
}
