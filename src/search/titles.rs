//! The titles that stores give to all messages of a source, as a log of a session or of a thread. A message does not
//! change with its title, but its subject does. So the table keeps a hash of each title, and what was retitled
//! meanwhile is indexed anew.

use std::collections::HashMap;

use crate::index::Index;
use crate::store::digest::secure_hash64;

/// The title of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TitleMark {
    /// The number of the store, and that of the source there.
    pub source: (usize, u32),
    /// The hash of their names, which stays the same from mount to mount.
    pub key: i64,
    /// The hash of the title.
    pub print: i64,
}

/// The hash of the title of each source, by the hash of its name.
pub(super) type TitlePrints = HashMap<i64, i64>;

/// Returns the titles of all sources that have one for all their messages, or might have one.
pub(super) fn list_titles(index: &Index) -> Vec<TitleMark> {
    let hash = |text: &str| secure_hash64(text.as_bytes()).cast_signed();
    let stores = index.stores().iter().enumerate();
    let marks = stores.flat_map(|(number, store)| {
        store.source_titles().into_iter().map(move |title| TitleMark {
            source: (number, title.source),
            key: hash(&format!("{}\0{}", store.name(), title.path)),
            print: hash(&title.title),
        })
    });
    marks.collect()
}
