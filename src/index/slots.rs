//! A table from hashes to positions: that of the snapshot, as it lies there, and one for what came
//! since.

use std::io::{self, Write};

use hashbrown::HashTable;

use super::column::{Column, Table};
use super::entry::NIL;
use super::intern::spread;

/// Positions by 56 bits of a hash. None is ever taken away.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// A power of two of slots, at most two thirds of them taken, each by a position or [`NIL`]. One
    /// stands in the first slot that was free from its hash's own on.
    base: Column<u32>,
    table: HashTable<u32>,
}

/// The table for a snapshot of so many positions, by the hash of each. It is made when it is written.
pub(super) struct Hashes<F> {
    pub count: usize,
    pub hash: F,
}

impl<F: Fn(usize) -> u64> Hashes<F> {
    fn slots(&self) -> usize {
        if self.count == 0 { 0 } else { (self.count + self.count / 2 + 1).next_power_of_two() }
    }
}

impl<F: Fn(usize) -> u64> Table for Hashes<F> {
    fn bytes(&self) -> u64 {
        (self.slots() * size_of::<u32>()) as u64
    }

    fn pieces(&self) -> usize {
        Column::<u32>::pieces(self.slots() * size_of::<u32>())
    }

    fn write(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        let len = self.slots();
        let mut slots = vec![NIL; len];
        for position in 0..self.count {
            let mut at = home((self.hash)(position), len);
            while slots.get(at).is_some_and(|slot| *slot != NIL) {
                at = (at + 1) & (len - 1);
            }
            if let Some(slot) = slots.get_mut(at) {
                *slot = position as u32;
            }
        }
        slots.as_slice().write(out, sums)
    }
}

/// The slot of a hash, of a power of two of them.
fn home(hash: u64, slots: usize) -> usize {
    let mixed = (hash << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize & slots.wrapping_sub(1)
}

impl Slots {
    /// The table of a snapshot.
    pub fn open(base: Column<u32>) -> Option<Self> {
        let fits = base.len() == 0 || base.len().is_power_of_two();
        fits.then(|| Self { base, table: HashTable::new() })
    }

    /// The positions that may have this hash.
    pub fn with(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let len = self.base.len();
        let first = home(hash, len);
        let slots = (0..len).filter_map(move |n| self.base.get((first + n) & (len - 1)).copied());
        let base = slots.take_while(|slot| *slot != NIL);
        base.chain(self.table.iter_hash(spread(hash)).copied())
    }

    /// Adds a position, which must not be there.
    pub fn insert(&mut self, hash: u64, position: u32, hash_of: impl Fn(u32) -> u64) {
        self.table.insert_unique(spread(hash), position, |p| spread(hash_of(*p)));
    }

    /// Makes room for so many more.
    pub fn reserve(&mut self, more: usize, hash_of: impl Fn(u32) -> u64) {
        self.table.reserve(more, |p| spread(hash_of(*p)));
    }
}
