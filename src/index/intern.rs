//! An interner: each text is stored once.

use twox_hash::XxHash3_64;

use super::column::Column;
use super::slots::{SlotTable, SlotTableSnapshot};

/// A text in the [`Interner`].
pub type StrId = u32;

/// All texts of an index in one buffer.
#[derive(Debug, Default)]
pub(super) struct Interner {
    bytes: Column<u8>,
    /// End of each text in `bytes`.
    ends: Column<u32>,
    slots: SlotTable,
    /// The text of the last lookup. Neighbours in a log mostly share theirs.
    last: StrId,
}

/// Mask of the 56 bits of an identity. The rest of an inode number names the view.
pub const IDENTITY_MASK: u64 = (1 << 56) - 1;

/// Returns the identity of a text.
pub(super) fn text_identity(text: &str) -> u64 {
    hash_identity(text.as_bytes())
}

fn hash_identity(text: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(0, text) & IDENTITY_MASK
}

fn identity_lookup<'a>(bytes: &'a Column<u8>, ends: &'a Column<u32>) -> impl Fn(StrId) -> u64 + 'a {
    |id| hash_identity(text_bytes(bytes, ends, id))
}

/// Returns a hash that is the same in every process and on every machine.
pub fn stable_hash(seed: u64, parts: &[&str]) -> u64 {
    let mut hash = seed;
    for part in parts {
        hash = XxHash3_64::oneshot_with_seed(hash, part.as_bytes());
    }
    hash
}

/// Returns the end of a text in the buffer.
fn end_of_text(len: usize) -> u32 {
    u32::try_from(len)
        .unwrap_or_else(|_| panic!("the index is full: it has {len} bytes of text in one table"))
}

impl Interner {
    /// Returns the text with this number.
    pub fn get(&self, id: StrId) -> &str {
        std::str::from_utf8(text_bytes(&self.bytes, &self.ends, id))
            .unwrap_or_else(|_| panic!("the index is broken: its text {id} is not UTF-8"))
    }

    /// Returns true if the text with this number is `text`.
    pub fn is_text(&self, id: StrId, text: &str) -> bool {
        text_bytes(&self.bytes, &self.ends, id) == text.as_bytes()
    }

    /// Interns a text. Returns its number.
    pub fn intern(&mut self, text: &str) -> StrId {
        self.intern_checked(text).0
    }

    /// Interns a text. Also returns true if certainly no other text has its identity.
    pub fn intern_checked(&mut self, text: &str) -> (StrId, bool) {
        if self.len() > 0 && self.is_text(self.last, text) {
            return (self.last, false);
        }
        let hash = text_identity(text);
        let mut alone = true;
        let known = self
            .slots
            .candidates(hash)
            .inspect(|_| alone = false)
            .find(|id| self.is_text(*id, text));
        if let Some(id) = known {
            self.last = id;
            return (id, false);
        }
        let id = self.len() as StrId;
        let Self { bytes, ends, slots, .. } = self;
        let end = end_of_text(bytes.len() + text.len());
        bytes.extend_from_slice(text.as_bytes());
        ends.push(end);
        slots.push(hash, identity_lookup(bytes, ends));
        self.last = id;
        (id, alone)
    }

    /// [Prefetches](SlotTable::prefetch) the data for lookups of these identities. Returns the texts that may
    /// have them.
    pub fn prefetch(&self, identities: impl Iterator<Item = u64>) -> Vec<StrId> {
        let ids = self.slots.prefetch(identities);
        let start = |id: &StrId| self.ends.get((*id as usize).saturating_sub(1)).copied();
        let starts: Vec<Option<u32>> = ids.iter().map(start).collect();
        let first = |at: &Option<u32>| self.bytes.get((*at)? as usize).copied();
        force_loads(starts.iter().filter_map(first).map(u32::from));
        ids
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Makes room for about this many more texts.
    pub fn reserve(&mut self, texts: usize) {
        let Self { bytes, ends, slots, .. } = self;
        ends.reserve(texts);
        slots.reserve(texts, identity_lookup(bytes, ends));
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Returns the text's number, if it is there.
    pub fn find(&self, text: &str) -> Option<StrId> {
        self.slots.candidates(text_identity(text)).find(|id| self.is_text(*id, text))
    }

    /// Returns the texts with this identity: almost always one.
    pub fn find_by_identity(&self, identity: u64) -> impl Iterator<Item = StrId> + '_ {
        let hash = identity_lookup(&self.bytes, &self.ends);
        self.slots.candidates(identity).filter(move |id| hash(*id) == identity)
    }

    /// Returns the bytes, the ends, and the table of their hashes, for the snapshot.
    pub fn snapshot_parts(
        &self,
    ) -> (&Column<u8>, &Column<u32>, SlotTableSnapshot<'_, impl Fn(StrId) -> u64 + '_>) {
        let hash_of = identity_lookup(&self.bytes, &self.ends);
        (&self.bytes, &self.ends, SlotTableSnapshot { slots: &self.slots, hash_of })
    }

    /// Creates an interner from the parts that [`Interner::snapshot_parts`] returned.
    pub fn from_parts(bytes: Column<u8>, ends: Column<u32>, slots: SlotTable) -> Self {
        Self { bytes, ends, slots, last: 0 }
    }

    /// Returns a number that grows with each change.
    pub fn change_count(&self) -> u64 {
        self.ends.change_count()
    }
}

/// Has the processor fetch these values. It does so only if the result is used.
pub(super) fn force_loads(values: impl Iterator<Item = u32>) {
    std::hint::black_box(values.fold(0, std::ops::BitXor::bitxor));
}

fn text_bytes<'a>(bytes: &'a Column<u8>, ends: &Column<u32>, id: StrId) -> &'a [u8] {
    let i = id as usize;
    let start = i.checked_sub(1).map_or(0, |before| *ends.at(before));
    bytes.slice(start as usize..*ends.at(i) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[should_panic(expected = "the index is full")]
    fn a_text_beyond_the_last_end_is_not_taken() {
        assert_eq!(end_of_text(u32::MAX as usize), u32::MAX);
        end_of_text(u32::MAX as usize + 1);
    }

    proptest! {
        #[test]
        fn equal_texts_share_one_id(texts in prop::collection::vec(".{0,6}", 0..60)) {
            let mut interner = Interner::default();
            let ids: Vec<StrId> = texts.iter().map(|t| interner.intern(t)).collect();
            for (text, id) in texts.iter().zip(&ids) {
                prop_assert_eq!(interner.get(*id), text);
                prop_assert_eq!(interner.intern(text), *id);
            }
            for (text, id) in texts.iter().zip(&ids) {
                prop_assert!(interner.find_by_identity(text_identity(text)).any(|other| other == *id));
            }
        }
    }
}
