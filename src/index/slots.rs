//! A hash table of positions: the part of the snapshot, used as it lies there, and a part for positions that
//! came since.
//!
//! A lookup costs the wait for memory. So it reads one slot, because a slot holds some bits of the hash beside
//! the position. Before many lookups, their slots are [prefetched](SlotTable::prefetch) together. A first index of
//! 500,000 records (`benches/run index`) takes 340 ms on two cores, and 490 ms without that.

use std::io::{self, Write};

use super::column::{Column, SnapshotTable};

/// A free slot.
const FREE: u32 = u32::MAX;

/// Positions by 56 bits of a hash. It holds all positions from 0 on, each once, and none is ever removed.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    /// The positions of the snapshot.
    base: Column<u32>,
    /// The positions that came since.
    since: Vec<u32>,
    /// The number of positions in the snapshot.
    first: usize,
    len: usize,
}

/// The layout of a table. At most two thirds of its slots are taken. A position is in the first slot that was
/// free from its home slot on.
#[derive(Clone, Copy)]
struct SlotLayout {
    slots: usize,
    /// Number of bits of a slot that hold the position. The others hold a part of the hash.
    bits: u32,
}

/// Returns the number of slots for this many positions.
fn slot_count_for(positions: usize) -> usize {
    if positions == 0 { 0 } else { positions + positions / 2 + 1 }
}

/// Returns a hash of which each bit depends on many bits of the given one.
fn mix_hash(hash: u64) -> u64 {
    (hash << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl SlotLayout {
    /// Creates the layout of a table for positions from `first` on. No position that fits has all bits set, so
    /// no taken slot looks free.
    fn new(first: usize, slots: usize) -> Self {
        Self { slots, bits: usize::BITS - (first + slots).leading_zeros() }
    }

    /// Returns the home slot of a hash.
    fn home_slot(self, hash: u64) -> usize {
        (((mix_hash(hash) >> 32) * self.slots as u64) >> 32) as usize
    }

    /// Returns all slots from the home slot on, each once.
    fn probe_sequence(self, hash: u64) -> impl Iterator<Item = usize> {
        let home = self.home_slot(hash);
        (home..self.slots).chain(0..home)
    }

    /// Returns the part of a hash that a slot holds.
    fn hash_tag(self, hash: u64) -> u32 {
        ((mix_hash(hash) >> 8) << self.bits) as u32
    }

    /// Returns the bits of a slot that hold the position.
    fn position_mask(self) -> u32 {
        ((1u64 << self.bits) - 1) as u32
    }

    /// Returns the positions that may have a hash.
    fn candidates(
        self,
        hash: u64,
        get: impl Fn(usize) -> Option<u32>,
    ) -> impl Iterator<Item = u32> {
        let (mark, position) = (self.hash_tag(hash), self.position_mask());
        let taken = self.probe_sequence(hash).map_while(get).take_while(|slot| *slot != FREE);
        taken.filter(move |slot| slot & !position == mark).map(move |slot| slot & position)
    }

    fn insert_position(self, table: &mut [u32], hash: u64, position: u32) {
        let is_free = |at: &usize| table.get(*at).is_none_or(|slot| *slot == FREE);
        let free = self.probe_sequence(hash).find(is_free);
        let Some(slot) = free.and_then(|at| table.get_mut(at)) else {
            panic!("the index is broken: a table of {} hashes has no free slot", table.len())
        };
        *slot = self.hash_tag(hash) | position;
    }

    /// Returns the table of the positions from `first` to `end`.
    fn build_table(self, first: usize, end: usize, hash_of: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut table = vec![FREE; self.slots];
        (first as u32..end as u32).for_each(|at| self.insert_position(&mut table, hash_of(at), at));
        table
    }
}

impl SlotTable {
    /// Opens the table of a snapshot with `len` positions.
    pub fn open(base: Column<u32>, len: usize) -> Option<Self> {
        let fits = base.len() >= slot_count_for(len);
        fits.then(|| Self { base, first: len, len, ..Self::default() })
    }

    fn base_layout(&self) -> SlotLayout {
        SlotLayout::new(0, self.base.len())
    }

    fn tail_layout(&self) -> SlotLayout {
        SlotLayout::new(self.first, self.since.len())
    }

    /// Returns the positions that may have this hash.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let base = self.base_layout().candidates(hash, |at| self.base.get(at).copied());
        base.chain(self.tail_layout().candidates(hash, |at| self.since.get(at).copied()))
    }

    /// Has the processor fetch the home slots of hashes that will be looked up. Returns the positions in these
    /// slots, which need not have these hashes or be positions at all. No step depends on the one before, and
    /// steps are short, so the processor waits for many at once.
    pub fn prefetch(&self, hashes: impl Iterator<Item = u64>) -> Vec<u32> {
        let (base, since) = (self.base_layout(), self.tail_layout());
        let slot = |hash| {
            let old = self.base.get(base.home_slot(hash)).copied().unwrap_or(FREE);
            let new = self.since.get(since.home_slot(hash)).copied().unwrap_or(FREE);
            let is_new = new & !since.position_mask() == since.hash_tag(hash);
            if is_new { new & since.position_mask() } else { old & base.position_mask() }
        };
        hashes.map(slot).collect()
    }

    /// Adds the next position.
    pub fn push(&mut self, hash: u64, hash_of: impl Fn(u32) -> u64) {
        let new = self.len - self.first;
        if slot_count_for(new + 1) > self.since.len() {
            self.reserve(new.max(16), hash_of);
        }
        let (layout, position) = (self.tail_layout(), self.len as u32);
        layout.insert_position(&mut self.since, hash, position);
        self.len += 1;
    }

    /// Makes room for this many more positions.
    pub fn reserve(&mut self, more: usize, hash_of: impl Fn(u32) -> u64) {
        let slots = slot_count_for(self.len - self.first + more);
        if slots > self.since.len() {
            self.since = Vec::new();
            self.since =
                SlotLayout::new(self.first, slots).build_table(self.first, self.len, hash_of);
        }
    }
}

/// The table in the form for a snapshot, with the hash of each position.
pub(super) struct SlotTableSnapshot<'a, F> {
    pub slots: &'a SlotTable,
    pub hash_of: F,
}

impl<F: Fn(u32) -> u64> SlotTableSnapshot<'_, F> {
    /// Returns the current table if the snapshot can use it as it is.
    fn reusable_table(&self) -> Option<&dyn SnapshotTable> {
        let SlotTable { base, since, first, len } = self.slots;
        match (*first, len - first) {
            (_, 0) => Some(base),
            (0, _) => Some(since),
            _ => None,
        }
    }

    fn slot_count(&self) -> usize {
        slot_count_for(self.slots.len)
    }
}

impl<F: Fn(u32) -> u64> SnapshotTable for SlotTableSnapshot<'_, F> {
    fn byte_len(&self) -> u64 {
        self.reusable_table()
            .map_or((self.slot_count() * size_of::<u32>()) as u64, SnapshotTable::byte_len)
    }

    fn piece_count(&self) -> usize {
        let made = || Column::<u32>::count_pieces(self.slot_count() * size_of::<u32>());
        self.reusable_table().map_or_else(made, SnapshotTable::piece_count)
    }

    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        if let Some(table) = self.reusable_table() {
            return table.write_to(out, sums);
        }
        let table =
            SlotLayout::new(0, self.slot_count()).build_table(0, self.slots.len, &self.hash_of);
        table.write_to(out, sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The hashes include many equal ones.
        #[test]
        fn all_are_found_again(
            hashes in prop::collection::vec(prop_oneof![0u64..8, any::<u64>()], 0..300),
            first in 0usize..300,
            room in 0usize..300,
        ) {
            let first = first.min(hashes.len());
            let hash_of = |at: u32| hashes.get(at as usize).copied().unwrap_or_default();
            let base = SlotLayout::new(0, slot_count_for(first)).build_table(0, first, hash_of);
            let mut slots = SlotTable { base: base.into(), first, len: first, ..SlotTable::default() };
            slots.reserve(room, hash_of);
            for (position, hash) in (0u32..).zip(&hashes).skip(first) {
                prop_assert!(slots.candidates(*hash).all(|at| at < position));
                slots.push(*hash, hash_of);
            }
            let mut written = Vec::new();
            let table = SlotTableSnapshot { slots: &slots, hash_of };
            table.write_to(&mut written, &mut Vec::new()).unwrap();
            prop_assert_eq!(table.byte_len(), written.len() as u64);
            let written: Vec<u32> = bytemuck::pod_collect_to_vec(&written);
            let written = SlotTable::open(written.into(), hashes.len()).unwrap();
            slots.prefetch(hashes.iter().copied());
            for (position, hash) in (0u32..).zip(&hashes) {
                prop_assert!(slots.candidates(*hash).any(|at| at == position));
                prop_assert!(written.candidates(*hash).any(|at| at == position));
            }
        }
    }
}
