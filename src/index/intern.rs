//! Each text once.

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

/// A text in the [`Interner`].
pub type StrId = u32;

/// All texts of an index in one buffer.
#[derive(Debug, Default)]
pub(super) struct Interner {
    bytes: String,
    /// End of each text in `bytes`.
    ends: Vec<u32>,
    table: HashTable<StrId>,
    /// The text asked for last: neighbours in a log mostly share theirs.
    last: StrId,
}

/// Identities keep 56 bits; the rest of an inode number names the view.
pub const IDENTITY_MASK: u64 = (1 << 56) - 1;

/// An identity as a hash for the tables: they pick the bucket by the lowest bits and tell its
/// entries apart by the highest, so these must not be zero, nor the lowest again.
pub(super) fn spread(identity: u64) -> u64 {
    let identity = identity & IDENTITY_MASK;
    identity | (identity >> 40) << 56
}

/// The identity of a text.
pub(super) fn text_identity(text: &str) -> u64 {
    stable_hash(0, &[text]) & IDENTITY_MASK
}

/// A hash that is the same in every process and on every machine.
pub fn stable_hash(seed: u64, parts: &[&str]) -> u64 {
    let mut hash = seed;
    for part in parts {
        hash = XxHash3_64::oneshot_with_seed(hash, part.as_bytes());
    }
    hash
}

impl Interner {
    pub fn get(&self, id: StrId) -> &str {
        slice(&self.bytes, &self.ends, id)
    }

    pub fn intern(&mut self, text: &str) -> StrId {
        if !self.ends.is_empty() && self.get(self.last) == text {
            return self.last;
        }
        let hash = spread(text_identity(text));
        let Self { bytes, ends, table, .. } = self;
        if let Some(id) = table.find(hash, |id| slice(bytes, ends, *id) == text) {
            self.last = *id;
            return *id;
        }
        let id = ends.len() as StrId;
        bytes.push_str(text);
        ends.push(bytes.len() as u32);
        table.insert_unique(hash, id, |id| spread(text_identity(slice(bytes, ends, *id))));
        self.last = id;
        id
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Makes room for about this many more texts.
    pub fn reserve(&mut self, texts: usize) {
        let Self { bytes, ends, table, .. } = self;
        ends.reserve(texts);
        table.reserve(texts, |id| spread(text_identity(slice(bytes, ends, *id))));
    }

    /// Gives back the room that growing took too much.
    pub fn pack(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// The text's number, if it is there.
    pub fn find(&self, text: &str) -> Option<StrId> {
        let same = |id: &StrId| slice(&self.bytes, &self.ends, *id) == text;
        self.table.find(spread(text_identity(text)), same).copied()
    }

    /// The texts with this identity: one, but for the rarest of chances.
    pub fn with_identity(&self, identity: u64) -> impl Iterator<Item = StrId> + '_ {
        let same = move |id: &&StrId| text_identity(self.get(**id)) == identity;
        self.table.iter_hash(spread(identity)).filter(same).copied()
    }

    /// Bytes and ends, for the snapshot.
    pub fn parts(&self) -> (&[u8], &[u32]) {
        (self.bytes.as_bytes(), &self.ends)
    }

    /// Rebuilds what [`Interner::parts`] gave; `None` if the parts do not fit together.
    pub fn from_parts(bytes: Vec<u8>, ends: Vec<u32>) -> Option<Self> {
        let bytes = String::from_utf8(bytes).ok()?;
        let sound = ends.is_sorted()
            && ends.last().copied().unwrap_or(0) as usize == bytes.len()
            && ends.iter().all(|e| bytes.is_char_boundary(*e as usize));
        if !sound {
            return None;
        }
        let mut table = HashTable::with_capacity(ends.len());
        for id in 0..ends.len() as StrId {
            let hash = spread(text_identity(slice(&bytes, &ends, id)));
            table.insert_unique(hash, id, |id| spread(text_identity(slice(&bytes, &ends, *id))));
        }
        Some(Self { bytes, ends, table, last: 0 })
    }
}

fn slice<'a>(bytes: &'a str, ends: &[u32], id: StrId) -> &'a str {
    let i = id as usize;
    let start = i.checked_sub(1).and_then(|p| ends.get(p)).copied().unwrap_or(0);
    let end = ends.get(i).copied().unwrap_or(start);
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_texts_share_one_id(texts in prop::collection::vec(".{0,6}", 0..60)) {
            let mut interner = Interner::default();
            let ids: Vec<StrId> = texts.iter().map(|t| interner.intern(t)).collect();
            for (text, id) in texts.iter().zip(&ids) {
                prop_assert_eq!(interner.get(*id), text);
                prop_assert_eq!(interner.intern(text), *id);
            }
            let (bytes, ends) = interner.parts();
            let mut again = Interner::from_parts(bytes.to_vec(), ends.to_vec()).unwrap();
            for (text, id) in texts.iter().zip(&ids) {
                prop_assert_eq!(again.intern(text), *id);
            }
        }
    }

    #[test]
    fn damaged_parts_are_refused() {
        assert!(Interner::from_parts(vec![0xff], vec![1]).is_none());
        assert!(Interner::from_parts(b"abc".to_vec(), vec![2]).is_none());
        assert!(Interner::from_parts("\u{e9}".into(), vec![1, 2]).is_none());
    }
}
