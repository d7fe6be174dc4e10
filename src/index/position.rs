//! Positions in the tables of the index.
//!
//! Only the index makes positions and reads their numbers, and no value is ever removed from a table. So a
//! position always leads to its value: if it does not, an invariant is broken, and the lookup panics with a
//! sentence. Numbers from outside (inode numbers, ids) are looked up by functions that return `None`.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// Declares a type for the positions in one table. It is a number of 32 bits in memory and on disk.
macro_rules! position_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable, Serialize, Deserialize,
        )]
        #[repr(transparent)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The lower bound of all positions.
            pub const MIN: Self = Self(0);
            /// The upper bound of all positions. No value has it.
            pub const MAX: Self = Self(u32::MAX);
            /// The end of a chain.
            pub(super) const NIL: Self = Self::MAX;

            /// Creates the position of the value before which a table has this many values.
            pub(super) fn new(number: usize) -> Self {
                match u32::try_from(number) {
                    Ok(number) if number < Self::NIL.0 => Self(number),
                    _ => panic!("the index is full: it has {number} values in one table"),
                }
            }

            /// Returns the number of values before it.
            #[inline]
            pub(super) fn number(self) -> usize {
                self.0 as usize
            }

            /// Returns the position, unless it is the end of a chain.
            #[inline]
            pub(super) fn or_end(self) -> Option<Self> {
                (self != Self::NIL).then_some(self)
            }

            /// Returns true if it is one of the first `count` positions.
            pub fn is_among_first(self, count: usize) -> bool {
                self.number() < count
            }

            /// Returns the number of positions up to this one.
            pub fn count_up_to(self) -> usize {
                self.number() + 1
            }

            /// Creates a position for a test without an index.
            #[cfg(test)]
            pub fn for_test(number: u32) -> Self {
                Self(number)
            }
        }
    };
}

position_type! {
    /// Position of a message in the index. It stays the same for the life of the process, and means nothing
    /// outside it.
    MsgIx
}

position_type! {
    /// Position of a thread in the index. It stays the same for the life of the process, and means nothing
    /// outside it.
    ThreadIx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_plain_numbers_in_json() {
        let map = std::collections::BTreeMap::from([(MsgIx::new(7), ThreadIx::new(3))]);
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(text, r#"{"7":3}"#);
        assert_eq!(serde_json::from_str::<std::collections::BTreeMap<_, _>>(&text).unwrap(), map);
    }

    #[test]
    #[should_panic(expected = "the index is full")]
    fn the_end_of_a_chain_is_no_position() {
        MsgIx::new(u32::MAX as usize);
    }
}
