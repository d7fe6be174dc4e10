//! A table from hashes to positions: that of the snapshot, as it lies there, and one for what came
//! since.
//!
//! What a lookup costs is the wait for memory, so it asks one place: a slot holds a part of the hash beside
//! the position, and who is about to look up many has their places [fetched](Slots::fetch) together.

use std::io::{self, Write};

use super::column::{Column, Table};

/// Positions by 56 bits of a hash. None is ever taken away.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// At most two thirds of the slots are taken. One stands in the first that was free from its own
    /// place on, and places are in the order of tags: to fill a larger table is to go through both once.
    base: Column<Slot>,
    since: Vec<Slot>,
    /// How many positions there are, and how many of them came since.
    len: usize,
    new: usize,
}

/// A tag in the upper half, and a position in the lower one.
type Slot = u64;

/// A free one.
const FREE: Slot = Slot::MAX;

/// How many slots so many positions get in a snapshot.
fn slots_for(positions: usize) -> usize {
    if positions == 0 { 0 } else { positions + positions / 2 + 1 }
}

/// The part of a hash that is kept: 32 bits that each depend on many.
fn tag_of(hash: u64) -> u64 {
    (hash << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The own place of a tag, of so many.
fn home(tag: u64, slots: usize) -> usize {
    ((tag * slots as u64) >> 32) as usize
}

/// The places from that of a tag on, each once.
fn from_home(tag: u64, slots: usize) -> impl Iterator<Item = usize> {
    let home = home(tag, slots);
    (home..slots).chain(0..home)
}

/// Puts a slot into the first free place, of which there must be one.
fn put(slots: &mut [Slot], slot: Slot) {
    let mut places = from_home(slot >> 32, slots.len());
    let free = places.find(|at| slots.get(*at).is_none_or(|other| *other == FREE));
    if let Some(place) = free.and_then(|at| slots.get_mut(at)) {
        *place = slot;
    }
}

/// The positions that may have a tag, in a table of so many slots.
fn with_tag(
    tag: u64,
    slots: usize,
    get: impl Fn(usize) -> Option<Slot>,
) -> impl Iterator<Item = u32> {
    let taken = from_home(tag, slots).map_while(get).take_while(|slot| *slot != FREE);
    taken.filter(move |slot| slot >> 32 == tag).map(|slot| slot as u32)
}

impl Slots {
    /// The table of a snapshot, with its number of positions.
    pub fn open(base: Column<Slot>, len: usize) -> Option<Self> {
        (base.len() == slots_for(len)).then(|| Self { base, len, ..Self::default() })
    }

    /// The positions that may have this hash.
    pub fn with(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let tag = tag_of(hash);
        let base = with_tag(tag, self.base.len(), |at| self.base.get(at).copied());
        base.chain(with_tag(tag, self.since.len(), |at| self.since.get(at).copied()))
    }

    /// Has the processor fetch the places of hashes that are about to be looked up. No step depends on
    /// the one before, and there is next to nothing between two, so it waits for many at once.
    pub fn fetch(&self, hashes: impl Iterator<Item = u64>) {
        let first = |hash| {
            let tag = tag_of(hash);
            let base = self.base.get(home(tag, self.base.len()));
            let since = self.since.get(home(tag, self.since.len()));
            base.copied().unwrap_or_default() ^ since.copied().unwrap_or_default()
        };
        // The processor does it only if somebody wants to know what comes out.
        std::hint::black_box(hashes.map(first).fold(0, std::ops::BitXor::bitxor));
    }

    /// Adds a position, which must not be there.
    pub fn insert(&mut self, hash: u64, position: u32) {
        if slots_for(self.new + 1) > self.since.len() {
            self.reserve(self.new.max(16));
        }
        put(&mut self.since, tag_of(hash) << 32 | u64::from(position));
        self.len += 1;
        self.new += 1;
    }

    /// Makes room for so many more.
    pub fn reserve(&mut self, more: usize) {
        let slots = slots_for(self.new + more);
        if slots > self.since.len() {
            self.since = filled(slots, self.since.iter().copied());
        }
    }

    /// All slots that are taken.
    fn all(&self) -> impl Iterator<Item = Slot> + '_ {
        self.base.iter().chain(&self.since).copied()
    }
}

/// A table of so many slots, with these.
fn filled(slots: usize, with: impl Iterator<Item = Slot>) -> Vec<Slot> {
    let mut table = vec![FREE; slots];
    with.filter(|slot| *slot != FREE).for_each(|slot| put(&mut table, slot));
    table
}

impl Table for Slots {
    fn bytes(&self) -> u64 {
        (slots_for(self.len) * size_of::<Slot>()) as u64
    }

    fn pieces(&self) -> usize {
        Column::<Slot>::pieces(slots_for(self.len) * size_of::<Slot>())
    }

    fn write(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        if self.new == 0 {
            return self.base.write(out, sums);
        }
        filled(slots_for(self.len), self.all()).as_slice().write(out, sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Few different hashes, and some that share their tag.
        #[test]
        fn all_are_found_again(hashes in prop::collection::vec(prop_oneof![0u64..8, any::<u64>()], 0..300)) {
            let mut slots = Slots::default();
            for (position, hash) in (0u32..).zip(&hashes) {
                prop_assert!(slots.with(*hash).all(|at| at < position));
                slots.insert(*hash, position);
            }
            let written = filled(slots_for(slots.len), slots.all());
            prop_assert_eq!((slots.bytes(), slots.len), (size_of_val(&*written) as u64, hashes.len()));
            for (position, hash) in (0u32..).zip(&hashes) {
                slots.fetch([*hash].into_iter());
                prop_assert!(slots.with(*hash).any(|at| at == position));
                let mut written = with_tag(tag_of(*hash), written.len(), |at| written.get(at).copied());
                prop_assert!(written.any(|at| at == position));
            }
        }
    }
}
