//! Files with one id: which of them hold the same message, and which ids are carried by two.

use twox_hash::XxHash3_64;

use super::format::FileFormat;
use super::scan::ScanPass;
use super::table::{FileFacts, FileTable};

/// How a message stands to those in other files.
#[derive(Debug)]
pub struct FileCopies {
    /// The files that hold it, its own among them, by number.
    pub members: Vec<u32>,
    /// The hash that its id carries, because another message has the id.
    pub twin_hash: Option<[u8; 32]>,
}

/// What is known of a message that was read.
#[derive(Clone, Copy, Debug)]
pub struct IdLookup {
    /// The slot in which ids are keys, and the print of its own.
    pub key: (u8, u64),
    /// It is the message that was there before.
    pub is_same: bool,
    /// Another message with this id was shown in its place before.
    pub replaces_other: bool,
}

/// A print of the files of a message that do not say yet that it was read; 0 for none.
pub fn hash_unmarked_files(files: impl IntoIterator<Item = u32>) -> u64 {
    let mut files: Vec<u32> = files.into_iter().collect();
    files.sort_unstable();
    if files.is_empty() { 0 } else { XxHash3_64::oneshot(bytemuck::cast_slice(&files)).max(1) }
}

/// Files other than this one under the same key that are the same to `same`.
pub fn other_copies<F: FileFacts>(
    table: &FileTable<F>,
    n: u32,
    key: (u8, u64),
    same: impl Fn(&F) -> bool,
) -> Vec<u32> {
    let is_other = |m: &u32| *m != n && table.facts(*m).is_some_and(&same);
    table.files_with_key(key.0, key.1).into_iter().filter(is_other).collect()
}

impl<F: FileFormat> ScanPass<'_, F> {
    /// Compares a message with those known under its id: files that are the `same` hold it too, and all
    /// others another message. Who came first keeps the plain id; `hash` is made of the file as it came.
    pub fn find_copies(
        &mut self,
        n: u32,
        ids: IdLookup,
        same: impl Fn(&F::Facts) -> bool,
        hash: impl FnOnce() -> [u8; 32],
    ) -> FileCopies {
        let mut members = other_copies(self.table, n, ids.key, same);
        let known =
            self.table.files_with_key(ids.key.0, ids.key.1).into_iter().filter(|m| *m != n).count();
        let twin = if ids.is_same {
            self.table.twins.get(&n).copied()
        } else if let Some(first) = members.first() {
            self.table.twins.get(first).copied()
        } else if known > 0 || ids.replaces_other {
            Some(hash())
        } else {
            None
        };
        match twin {
            Some(hash) => drop(self.table.twins.insert(n, hash)),
            None => drop(self.table.twins.remove(&n)),
        }
        members.push(n);
        members.sort_unstable();
        FileCopies { members, twin_hash: twin }
    }
}
