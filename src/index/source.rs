//! The number of a file of a store, and sets of small numbers.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// Bits of the file's number. The other bits are the store's number.
const FILE_BITS: u32 = 24;

/// A file of a store, by the numbers that the index and the store gave them, in 32 bits.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct SourceId(u32);

impl SourceId {
    /// Largest number of stores.
    pub const STORES: usize = 1 << (u32::BITS - FILE_BITS);

    /// Creates the id of the file that a store gave this number.
    pub(super) fn new(store: usize, file: u32) -> Self {
        assert!(
            store < Self::STORES && file < 1 << FILE_BITS,
            "the index has no room for file {file} of store {store}"
        );
        Self((store as u32) << FILE_BITS | file)
    }

    /// Returns the number of the store.
    pub fn store(self) -> usize {
        (self.0 >> FILE_BITS) as usize
    }

    /// Returns the number that the store gave the file.
    pub fn file(self) -> u32 {
        self.0 & ((1 << FILE_BITS) - 1)
    }
}

/// A set of small numbers with one bit each. On disk it is a list, because the numbers are few among many.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub(super) struct BitSet(Vec<u64>);

impl BitSet {
    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    /// Returns true if the set has no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the set has a number.
    pub fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}

impl From<BitSet> for Vec<u32> {
    fn from(bits: BitSet) -> Self {
        let words = (0u32..).step_by(64).zip(&bits.0).filter(|(_, word)| **word != 0);
        words.flat_map(|(first, _)| first..first + 64).filter(|n| bits.contains(*n)).collect()
    }
}

impl From<Vec<u32>> for BitSet {
    fn from(numbers: Vec<u32>) -> Self {
        numbers.iter().collect()
    }
}

impl<'a> FromIterator<&'a u32> for BitSet {
    fn from_iter<I: IntoIterator<Item = &'a u32>>(numbers: I) -> Self {
        let mut bits = Self::default();
        numbers.into_iter().for_each(|number| bits.insert(*number));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn store_and_file_are_kept(store in 0..SourceId::STORES, file in 0u32..1 << FILE_BITS) {
            let source = SourceId::new(store, file);
            prop_assert_eq!((source.store(), source.file()), (store, file));
        }

        #[test]
        fn a_set_has_what_was_put_in(numbers in prop::collection::btree_set(0u32..300, 0..40)) {
            let bits: BitSet = numbers.iter().collect();
            prop_assert!((0..400).all(|n| bits.contains(n) == numbers.contains(&n)));
            prop_assert_eq!(Vec::from(bits), numbers.into_iter().collect::<Vec<_>>());
        }
    }
}
