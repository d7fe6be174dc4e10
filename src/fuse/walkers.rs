//! Programs that walk through folders for their names only.
//!
//! The kernel asks for attributes with the first piece of each folder, for every program, and a message must be
//! rendered for its size if no program has asked for it yet. So the second folder that a thread of a program
//! lists is a test: the reply has only names. If the thread then looks one of them up, it gets attributes from
//! there on, and otherwise names. The first `find` through the threads of 3,000 AgentAZAll letters takes 0.43 s,
//! and 0.65 s without this.

use std::num::NonZeroUsize;

use crate::model::locks::Mutex;
use lru::LruCache;

/// Walkers that are remembered.
const MANY: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// The part of a listing that a walker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingNeed {
    /// It has listed one folder, with attributes, and may or may not have used them.
    Unknown,
    /// Names, as far as is known.
    Names,
    /// Attributes, too.
    Attributes,
}

#[derive(Debug)]
struct FolderWalker {
    /// The folder it listed last.
    folder: u64,
    need: ListingNeed,
}

/// The threads that listed folders with messages of unknown size, by their ids.
#[derive(Debug)]
pub(super) struct FolderWalkers(Mutex<LruCache<u32, FolderWalker>>);

impl Default for FolderWalkers {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MANY)))
    }
}

impl FolderWalkers {
    /// Notes that a thread lists a folder whose attributes are expensive. Returns true if the thread needs only
    /// names.
    pub fn should_list_names(&self, thread: u32, folder: u64) -> bool {
        let mut walkers = self.0.lock();
        let walker = walkers
            .get_or_insert_mut(thread, || FolderWalker { folder, need: ListingNeed::Unknown });
        if walker.folder != folder && walker.need == ListingNeed::Unknown {
            walker.need = ListingNeed::Names;
        }
        walker.folder = folder;
        walker.need == ListingNeed::Names
    }

    /// Notes that a thread looks up a name in a folder.
    pub fn note_lookup(&self, thread: u32, folder: u64) {
        let mut walkers = self.0.lock();
        if let Some(walker) = walkers.peek_mut(&thread)
            && walker.folder == folder
            && walker.need == ListingNeed::Names
        {
            walker.need = ListingNeed::Attributes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_nothing_up_is_given_names() {
        let walkers = FolderWalkers::default();
        assert!(!walkers.should_list_names(1, 10), "the first folder");
        assert!(!walkers.should_list_names(1, 10), "the same again");
        assert!(walkers.should_list_names(1, 11));
        walkers.note_lookup(2, 11);
        walkers.note_lookup(1, 10);
        assert!(walkers.should_list_names(1, 12), "nobody else, and nowhere else");
        walkers.note_lookup(1, 12);
        assert!(!walkers.should_list_names(1, 13) && !walkers.should_list_names(1, 14));
        assert!(!walkers.should_list_names(2, 14), "another one begins anew");
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let walkers = FolderWalkers::default();
        (0..1000).for_each(|thread| assert!(!walkers.should_list_names(thread, 1)));
        assert!(!walkers.should_list_names(0, 2) && walkers.should_list_names(999, 2));
        assert_eq!(walkers.0.lock().len(), MANY.get());
    }
}
