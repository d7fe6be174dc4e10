//! Files with one id: copies of one message, and different messages that carry one id.

use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_64;

use super::format::FileFormat;
use super::qualifier_log::QualifierNote;
use super::scan::ScanPass;
use super::table::{FileFacts, FileTable};

/// The relation of a message to those in other files.
#[derive(Debug)]
pub struct FileCopies {
    /// The numbers of the files that hold it, its own among them.
    pub members: Vec<u32>,
    /// The hash that its id carries, because another message has the id.
    pub qualifier: Option<[u8; 32]>,
}

/// The facts of a message that was read, for looking up its id.
#[derive(Clone, Copy, Debug)]
pub struct IdLookup {
    /// The slot in which ids are keys, and the hash of its own id.
    pub key: (u8, u64),
    /// The hash of its content ([`FileFacts::hashes`]).
    pub content: u64,
    /// True if it is the message that was there before.
    pub is_same: bool,
    /// The hash of the content of another message with this id that was shown in its place before.
    pub replaced: Option<u64>,
}

/// Returns a hash of the files of a message that carry no read mark yet; 0 for none.
pub fn hash_unmarked_files(files: impl IntoIterator<Item = u32>) -> u64 {
    let mut files: Vec<u32> = files.into_iter().collect();
    files.sort_unstable();
    if files.is_empty() { 0 } else { XxHash3_64::oneshot(bytemuck::cast_slice(&files)).max(1) }
}

/// Returns the files other than this one under the same key for which `same` is true.
pub fn other_copies<F: FileFacts>(
    table: &FileTable<F>,
    n: u32,
    key: (u8, u64),
    same: impl Fn(&F) -> bool,
) -> Vec<u32> {
    let is_other = |m: &u32| *m != n && table.facts(*m).is_some_and(&same);
    table.files_with_key(key.0, key.1).into_iter().filter(is_other).collect()
}

/// Returns the SHA-256 of a message file as its writer left it.
pub(super) fn digest_content<F: FileFormat>(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(F::strip_marks(bytes)).into()
}

impl<F: FileFormat> ScanPass<'_, F> {
    /// Compares a message with those known under its id. Files with the same content hold it too, and all others hold
    /// another message. The first message keeps the plain id. Another one gets the hash of its bytes without marks:
    /// marks change the file, but the id must stay, also without the cache.
    pub fn find_copies(&mut self, n: u32, ids: IdLookup, bytes: &[u8]) -> FileCopies {
        let mut members =
            other_copies(self.table, n, ids.key, |facts| facts.hashes().1 == ids.content);
        let qualifier = if ids.is_same {
            self.table.qualifiers.get(&n).copied()
        } else if let Some(first) = members.first() {
            self.table.qualifiers.get(first).copied()
        } else {
            self.has_other_message(n, ids).then(|| digest_content::<F>(bytes))
        };
        match qualifier {
            Some(hash) => drop(self.table.qualifiers.insert(n, hash)),
            None => drop(self.table.qualifiers.remove(&n)),
        }
        members.push(n);
        members.sort_unstable();
        FileCopies { members, qualifier }
    }

    /// Returns true if another message has the id of a new one, or had it first. Both are then noted for ever.
    fn has_other_message(&self, n: u32, ids: IdLookup) -> bool {
        let (id, log) = (ids.key.1, self.qualifier_log);
        let note = log.find_note(id, ids.content);
        if let QualifierNote::Known(is_qualified) = note {
            return is_qualified;
        }
        let known = self.table.files_with_key(ids.key.0, id);
        let mut plain = known.iter().filter(|m| **m != n && !self.table.qualifiers.contains_key(m));
        let first = plain.find_map(|m| Some(self.table.facts(*m)?.hashes().1));
        let first = first.or(ids.replaced);
        let is_taken = note == QualifierNote::Other
            || ids.replaced.is_some()
            || known.iter().any(|other| *other != n);
        if is_taken {
            first.inspect(|content| log.note_message(id, *content, false));
            log.note_message(id, ids.content, true);
        }
        is_taken
    }
}
