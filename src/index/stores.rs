//! The stores of an index. Stores may be added while other threads read the list.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::store::Store;

/// The stores by number. An added store is never removed and keeps its number, so an earlier slice stays right.
#[derive(Debug)]
pub(super) struct StoreList {
    all: Vec<Arc<dyn Store>>,
    /// The list with one more store.
    grown: OnceLock<Box<Self>>,
}

impl StoreList {
    /// Makes the list of these stores.
    pub fn new(all: Vec<Arc<dyn Store>>) -> Self {
        Self { all, grown: OnceLock::new() }
    }

    /// Returns the numbers of the stores in the order in which they are read at the start.
    pub fn scan_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        // Stores that are only read come first: another store may keep their messages.
        order.sort_by_key(|n| self.get(*n).is_some_and(|store| store.facets().appender.is_some()));
        order
    }

    fn newest_list(&self) -> &Self {
        let mut newest = self;
        while let Some(grown) = newest.grown.get() {
            newest = grown;
        }
        newest
    }

    /// Adds a store and returns its number. Only one thread at a time may do so.
    pub fn append(&self, store: Arc<dyn Store>) -> usize {
        let newest = self.newest_list();
        let number = newest.all.len();
        let all = newest.all.iter().cloned().chain([store]).collect();
        newest.grown.get_or_init(|| Box::new(Self::new(all)));
        number
    }
}

impl Deref for StoreList {
    type Target = [Arc<dyn Store>];

    fn deref(&self) -> &Self::Target {
        &self.newest_list().all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::Memory;

    #[test]
    fn what_is_added_has_the_next_number_and_changes_no_earlier_look() {
        let store =
            |name: &str| -> Arc<dyn Store> { Arc::new(Memory::new(name, "me", &Arc::default())) };
        let stores = StoreList::new(vec![store("a")]);
        let before = &stores[..];
        assert_eq!((stores.append(store("b")), stores.append(store("c"))), (1, 2));
        assert_eq!(before.len(), 1);
        let names: Vec<&str> = stores.iter().map(|store| store.name()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
