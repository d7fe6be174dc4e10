//! A table of every message file ever seen, in few bytes each.
//!
//! A file's number in the table is its source number. It stands for one message under one path. When the file is gone,
//! or holds another message, the number is never used again. So a caller with an old number can neither read nor mark
//! the wrong message. The table makes a remount cheap: a file whose stamp has not changed is not opened.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::model::to_json;
use crate::store::fs::Stamp;

/// The largest number of files: a source number has 24 bits.
pub const MAX_FILES: usize = (1 << 24) - 1;

/// The facts that a format keeps of a file, in a fixed size.
pub trait FileFacts: Pod + Default + PartialEq + Debug + Send + Sync {
    /// The number of keys under which a file can be found.
    const SLOTS: u8 = 0;

    /// Returns the key of a slot; 0 for none. Files that are gone may still be found.
    fn slot_key(&self, _slot: u8, _is_message: bool) -> u64 {
        0
    }

    /// Returns the time of the message, in milliseconds since 1970.
    fn time(&self) -> i64;

    /// Returns hashes of its id, and of all its content that is shown or signed. Nobody can make two texts with one
    /// hash.
    fn hashes(&self) -> (u64, u64);

    /// Returns true if the file is gone, and its message still counts as there.
    fn is_held(&self) -> bool {
        false
    }

    /// Returns the hash that earlier builds noted of the same content.
    fn earlier_content_hash(&self) -> u64 {
        self.hashes().1
    }
}

/// The facts of a file that every format has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FileRow {
    /// The hash of the [`Stamp`] that it had when it was last read; 0 if it must be read.
    pub stamp: u64,
    /// The hash of what lies beside it ([`FileFormat::hash_companions`](super::FileFormat::hash_companions)).
    pub companion_hash: u64,
    /// The offset of its name in the names of the table.
    name: u32,
    /// The number of its folder.
    pub folder: u32,
    /// Its size in bytes.
    pub len: u32,
    name_len: u16,
    flags: FileFlags,
}

/// The bits of a [`FileRow`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct FileFlags(u16);

impl FileFlags {
    /// A file that is no longer there, or has another number now.
    pub const GONE: Self = Self(1);
    /// A message, also one that can no longer be read.
    pub const MESSAGE: Self = Self(1 << 1);
    /// A file that is rejected, with a reason.
    pub const REFUSED: Self = Self(1 << 2);
    /// A message that cannot be read now.
    pub const BROKEN: Self = Self(1 << 3);
    /// A file whose verdict depends on other files. It is read again when anything in its folder changes.
    pub const DEPENDS: Self = Self(1 << 4);
    /// A message that had a valid signature when it was here last.
    pub const VERIFIED: Self = Self(1 << 5);
}

impl FileRow {
    /// Returns true if a bit is set.
    pub fn has_flag(&self, bit: FileFlags) -> bool {
        self.flags.0 & bit.0 != 0
    }

    /// Sets or clears a bit.
    pub fn set_flag(&mut self, bit: FileFlags, on: bool) {
        if on {
            self.flags.0 |= bit.0;
        } else {
            self.flags.0 &= !bit.0;
        }
    }

    /// Returns true if it is a message that is there.
    pub fn is_message(&self) -> bool {
        self.has_flag(FileFlags::MESSAGE) && !self.has_flag(FileFlags::GONE)
    }

    /// Returns true if it is there and rejected.
    pub fn is_rejected(&self) -> bool {
        self.has_flag(FileFlags::REFUSED) && !self.has_flag(FileFlags::GONE)
    }
}

/// A folder that was listed, or holds or held message files.
#[derive(Debug)]
pub struct FolderRow {
    /// Its path in the store.
    pub path: Box<str>,
    /// True if it was there when it was last listed. Not saved.
    pub is_listed: bool,
    /// Its files, some of which may be gone.
    files: Vec<u32>,
}

/// The table of all files.
#[derive(Debug)]
pub struct FileTable<F> {
    rows: Vec<FileRow>,
    facts: Vec<F>,
    folders: Vec<FolderRow>,
    by_folder: HashTable<u32>,
    /// The names of all files, one after the other.
    names: String,
    by_path: HashTable<u32>,
    /// The numbers of verified messages that went out of use, by path.
    retired: HashTable<u32>,
    /// File numbers by key, with the slot in the upper 8 bits.
    keys: HashTable<u32>,
    /// The SHA-256 that the ids of duplicates carry. They are hashes of the files as they were when they came, because
    /// marks change the file and the id must stay.
    pub qualifiers: HashMap<u32, [u8; 32]>,
    /// The last readable texts of messages whose files are broken.
    pub last_texts: HashMap<u32, Box<str>>,
    /// The results of [`FileTable::newest_in`], as long as no message comes, goes or changes its time.
    newest: OnceLock<HashMap<Box<str>, i64>>,
}

impl<F> Default for FileTable<F> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            facts: Vec::new(),
            folders: Vec::new(),
            by_folder: HashTable::new(),
            names: String::new(),
            by_path: HashTable::new(),
            retired: HashTable::new(),
            keys: HashTable::new(),
            qualifiers: HashMap::new(),
            last_texts: HashMap::new(),
            newest: OnceLock::new(),
        }
    }
}

/// Returns the hash of a stamp, never 0.
pub fn stamp_hash(stamp: &Stamp) -> u64 {
    let mut bytes = [0; 56];
    let numbers = [stamp.dev, stamp.ino, stamp.size].map(u64::to_le_bytes);
    let times = [stamp.mtime, stamp.ctime].map(i128::to_le_bytes);
    let all = numbers.as_flattened().iter().chain(times.as_flattened());
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    XxHash3_64::oneshot(&bytes).max(1)
}

/// Returns the hash of a path, stable on disk. Hostile texts may have the same hash.
fn path_hash(folder: u32, name: &str) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(folder), name.as_bytes())
}

fn split_key_entry(entry: u32) -> (u32, u8) {
    (entry & MAX_FILES as u32, (entry >> 24) as u8)
}

fn row_name<'n>(names: &'n str, row: &FileRow) -> &'n str {
    let start = row.name as usize;
    names.get(start..start + usize::from(row.name_len)).unwrap_or_default()
}

/// Returns a function that hashes a file's path, by the file's number.
fn path_hasher<'t>(rows: &'t [FileRow], names: &'t str) -> impl Fn(&u32) -> u64 + 't {
    |n| {
        let row = rows.get(*n as usize).copied().unwrap_or_default();
        path_hash(row.folder, row_name(names, &row))
    }
}

fn entry_key<F: FileFacts>(rows: &[FileRow], facts: &[F], entry: u32) -> u64 {
    let (n, slot) = split_key_entry(entry);
    let row = rows.get(n as usize);
    let facts = facts.get(n as usize);
    row.zip(facts).map_or(0, |(row, facts)| facts.slot_key(slot, row.is_message()))
}

impl<F: FileFacts> FileTable<F> {
    /// Returns the number of files that were ever seen.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if no file was ever seen.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the row of a file.
    pub fn row(&self, n: u32) -> Option<&FileRow> {
        self.rows.get(n as usize)
    }

    /// Returns the facts that the format keeps of a file.
    pub fn facts(&self, n: u32) -> Option<&F> {
        self.facts.get(n as usize)
    }

    /// Returns every file that is a message and there, with the facts that its format keeps of it.
    pub fn messages(&self) -> impl Iterator<Item = (u32, &FileRow, &F)> {
        self.iter_all().filter(|(_, row, _)| row.is_message())
    }

    /// Returns the time of the newest message of every folder that has one, by number.
    pub fn newest_by_folder(&self) -> HashMap<u32, i64> {
        let mut out: HashMap<u32, i64> = HashMap::new();
        for (_, row, facts) in self.messages() {
            let newest = out.entry(row.folder).or_insert(i64::MIN);
            *newest = facts.time().max(*newest);
        }
        out
    }

    /// Returns the time of the newest message in a folder and those below it.
    pub fn newest_in(&self, path: &str) -> Option<i64> {
        let newest = self.newest.get_or_init(|| {
            let mut out: HashMap<Box<str>, i64> = HashMap::new();
            for (n, time) in self.newest_by_folder() {
                let mut path = self.folders.get(n as usize).map(|folder| &*folder.path);
                while let Some(here) = path {
                    match out.get_mut(here) {
                        Some(newest) => *newest = time.max(*newest),
                        None => drop(out.insert(here.into(), time)),
                    }
                    let above = here.rsplit_once('/').map_or("", |(above, _)| above);
                    path = (!here.is_empty()).then_some(above);
                }
            }
            out
        });
        newest.get(path).copied()
    }

    /// Returns every file ever seen.
    pub fn iter_all(&self) -> impl Iterator<Item = (u32, &FileRow, &F)> {
        (0u32..).zip(&self.rows).zip(&self.facts).map(|((n, row), facts)| (n, row, facts))
    }

    /// Returns the folders, by number.
    pub fn folders(&self) -> &[FolderRow] {
        &self.folders
    }

    /// Returns the path of a file's folder.
    pub fn folder(&self, n: u32) -> &str {
        let folder = self.row(n).and_then(|row| self.folders.get(row.folder as usize));
        folder.map_or("", |folder| &folder.path)
    }

    /// Returns a file's name.
    pub fn name(&self, n: u32) -> &str {
        self.row(n).map_or("", |row| row_name(&self.names, row))
    }

    /// Returns a file's path in the store.
    pub fn path(&self, n: u32) -> Option<String> {
        self.row(n)?;
        Some(super::join_path(self.folder(n), self.name(n)))
    }

    /// Returns the number of a folder, if it was ever seen.
    pub fn find_folder(&self, path: &str) -> Option<u32> {
        let is_it = |n: &u32| self.folders.get(*n as usize).is_some_and(|f| *f.path == *path);
        self.by_folder.find(path_hash(0, path), is_it).copied()
    }

    /// Returns the folders that were listed and are there, with their numbers.
    pub fn listed_folders(&self) -> impl Iterator<Item = (u32, &FolderRow)> {
        (0u32..).zip(&self.folders).filter(|(_, folder)| folder.is_listed)
    }

    /// Notes that a folder was listed.
    pub fn mark_listed(&mut self, path: &str) {
        let n = self.folder_number(path);
        if let Some(folder) = self.folders.get_mut(n as usize) {
            folder.is_listed = true;
        }
    }

    /// Notes that these folders are no longer listed.
    pub fn unmark_listed(&mut self, is_gone: impl Fn(&str) -> bool) {
        let gone = self.folders.iter_mut().filter(|folder| is_gone(&folder.path));
        gone.for_each(|folder| folder.is_listed = false);
    }

    /// Returns the files that are in a folder.
    pub fn files_in(&self, folder: u32) -> impl Iterator<Item = u32> {
        let files = self.folders.get(folder as usize).map(|f| f.files.as_slice());
        let there = |n: &u32| self.row(*n).is_some_and(|row| !row.has_flag(FileFlags::GONE));
        files.unwrap_or_default().iter().copied().filter(there)
    }

    /// Returns the number of the file that is at a path.
    pub fn find_file(&self, folder: u32, name: &str) -> Option<u32> {
        let is_it =
            |n: &u32| self.row(*n).is_some_and(|row| row.folder == folder && self.name(*n) == name);
        self.by_path.find(path_hash(folder, name), is_it).copied()
    }

    /// Returns the numbers of verified messages that were once at a path.
    pub fn retired_numbers(&self, folder: u32, name: &str) -> Vec<u32> {
        let is_it =
            |n: &&u32| self.row(**n).is_some_and(|r| r.folder == folder) && self.name(**n) == name;
        self.retired.iter_hash(path_hash(folder, name)).filter(is_it).copied().collect()
    }

    /// Returns the number of the file that is at a path in one piece.
    pub fn find_path(&self, path: &str) -> Option<u32> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.find_file(self.find_folder(folder)?, name)
    }

    /// Returns the number of a folder, a new one if it was never seen.
    pub fn folder_number(&mut self, path: &str) -> u32 {
        if let Some(n) = self.find_folder(path) {
            return n;
        }
        let n = self.folders.len() as u32;
        self.folders.push(FolderRow { path: path.into(), is_listed: false, files: Vec::new() });
        let Self { folders, by_folder, .. } = self;
        let hash = |n: &u32| folders.get(*n as usize).map_or(0, |f| path_hash(0, &f.path));
        by_folder.insert_unique(path_hash(0, path), n, hash);
        n
    }

    /// Gives a number to a file that has none; `None` if the table is full.
    pub fn add_file(&mut self, folder: u32, name: &str) -> Option<u32> {
        let start = u32::try_from(self.names.len()).ok()?;
        self.names.push_str(name);
        self.push_row(FileRow {
            name: start,
            name_len: u16::try_from(name.len()).ok()?,
            folder,
            ..FileRow::default()
        })
    }

    fn push_row(&mut self, row: FileRow) -> Option<u32> {
        if self.rows.len() >= MAX_FILES {
            return None;
        }
        let n = self.rows.len() as u32;
        self.folders.get_mut(row.folder as usize)?.files.push(n);
        self.rows.push(row);
        self.facts.push(F::default());
        let Self { rows, names, by_path, .. } = self;
        let hash = path_hasher(rows, names);
        by_path.insert_unique(hash(&n), n, hash);
        Some(n)
    }

    /// Takes a number out of use. The facts stay, so that its keys may still find it.
    pub fn retire_number(&mut self, n: u32) {
        let Some(row) = self.row(n) else { return };
        let hash = path_hash(row.folder, self.name(n));
        let folder = row.folder as usize;
        if let Ok(entry) = self.by_path.find_entry(hash, |m| *m == n) {
            entry.remove();
        }
        if let Some(files) = self.folders.get_mut(folder).map(|f| &mut f.files)
            && files.last() == Some(&n)
        {
            files.pop();
        }
        self.update_row(n, |row, _| {
            row.set_flag(FileFlags::GONE, true);
            row.stamp = 0;
        });
        let Self { rows, names, retired: left, .. } = self;
        if rows.get(n as usize).is_some_and(|row| row.has_flag(FileFlags::VERIFIED)) {
            left.insert_unique(hash, n, path_hasher(rows, names));
        }
    }

    /// Gives a new number to the file at the path of a number, because it holds another message; `None` if the table
    /// is full.
    pub fn renew_number(&mut self, n: u32) -> Option<u32> {
        let FileRow { name, name_len, folder, .. } = *self.row(n)?;
        self.retire_number(n);
        self.push_row(FileRow { name, folder, name_len, ..FileRow::default() })
    }

    /// Changes the row and the facts of a file. A key that stays is not touched: many files may share it, and a search
    /// for one of them passes the others.
    pub fn update_row(&mut self, n: u32, change: impl FnOnce(&mut FileRow, &mut F)) {
        let Self { rows, facts, keys, newest, .. } = self;
        let (Some(row), Some(kept)) = (rows.get_mut(n as usize), facts.get_mut(n as usize)) else {
            return;
        };
        let (old_row, old_facts) = (*row, *kept);
        change(row, kept);
        let (row, kept) = (*row, *kept);
        let (rows, facts) = (&*rows, &*facts);
        let time = |row: &FileRow, facts: &F| row.is_message().then(|| facts.time());
        if time(&row, &kept) != time(&old_row, &old_facts) {
            newest.take();
        }
        let changed = (0..F::SLOTS).filter_map(|slot| {
            let old = old_facts.slot_key(slot, old_row.is_message());
            let new = kept.slot_key(slot, row.is_message());
            (old != new).then_some((n | u32::from(slot) << 24, old, new))
        });
        // All old keys go first: an insertion may move every entry to the place of its new key.
        for (entry, old, _) in changed.clone().filter(|(_, old, _)| *old != 0) {
            if let Ok(entry) = keys.find_entry(old, |e| *e == entry) {
                entry.remove();
            }
        }
        for (entry, _, new) in changed.filter(|(.., new)| *new != 0) {
            keys.insert_unique(new, entry, |e| entry_key(rows, facts, *e));
        }
    }

    /// Returns the files with this key, in the order of their numbers.
    pub fn files_with_key(&self, slot: u8, key: u64) -> Vec<u32> {
        let is_it = |e: &&u32| {
            split_key_entry(**e).1 == slot && entry_key(&self.rows, &self.facts, **e) == key
        };
        let found = self.keys.iter_hash(key).filter(is_it);
        let mut out: Vec<u32> = found.map(|e| split_key_entry(*e).0).collect();
        out.sort_unstable();
        out
    }

    /// Marks every file to be read again.
    pub fn forget_stamps(&mut self) {
        self.rows.iter_mut().for_each(|row| row.stamp = 0);
    }

    /// Frees the spare memory that growing left.
    pub fn shrink_to_fit(&mut self) {
        self.rows.shrink_to_fit();
        self.facts.shrink_to_fit();
        self.names.shrink_to_fit();
        self.folders.shrink_to_fit();
        self.folders.iter_mut().for_each(|f| f.files.shrink_to_fit());
        let Self { rows, facts, names, by_path, keys, .. } = self;
        by_path.shrink_to_fit(path_hasher(rows, names));
        keys.shrink_to_fit(|e| entry_key(rows, facts, *e));
    }

    /// Returns the table as bytes for [`FileTable::from_bytes`], with the hash of its context. The
    /// tag differs for each format and version.
    pub fn to_bytes(&self, tag: [u8; 8], basis: u64) -> Vec<u8> {
        let folders: String = self.folders.iter().flat_map(|f| [&*f.path, "\0"]).collect();
        let mut qualifiers: Vec<_> = self.qualifiers.iter().collect();
        qualifiers.sort_unstable();
        let qualifiers: Vec<u8> = qualifiers
            .into_iter()
            .flat_map(|(n, hash)| [&n.to_le_bytes()[..], hash].concat())
            .collect();
        let last_texts = to_json(&self.last_texts);
        let parts: [&[u8]; 6] = [
            bytemuck::cast_slice(&self.rows),
            bytemuck::cast_slice(&self.facts),
            &qualifiers,
            folders.as_bytes(),
            self.names.as_bytes(),
            &last_texts,
        ];
        let mut out = [tag, basis.to_le_bytes()].concat();
        for part in parts {
            out.extend_from_slice(&(part.len() as u64).to_le_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    /// Returns a saved table and the hash that it was saved with; `None` if the bytes are anything else.
    pub fn from_bytes(saved: &[u8], tag: [u8; 8]) -> Option<(Self, u64)> {
        let mut rest = saved.strip_prefix(&tag)?;
        let number = |rest: &mut &[u8]| {
            let (first, tail) = rest.split_first_chunk::<8>()?;
            *rest = tail;
            Some(u64::from_le_bytes(*first))
        };
        let basis = number(&mut rest)?;
        let mut part = || {
            let len = usize::try_from(number(&mut rest)?).ok()?;
            let (part, tail) = rest.split_at_checked(len)?;
            rest = tail;
            Some(part)
        };
        let (rows, facts, qualifiers, folders, names) =
            (part()?, part()?, part()?, part()?, part()?);
        // Older tables end here.
        let last_texts = part().unwrap_or(b"{}");
        let mut table = Self {
            facts: cast_values(facts)?,
            names: std::str::from_utf8(names).ok()?.to_owned(),
            qualifiers: qualifiers.chunks(36).map(parse_qualifier).collect::<Option<_>>()?,
            last_texts: serde_json::from_slice(last_texts).ok()?,
            ..Self::default()
        };
        for path in std::str::from_utf8(folders).ok()?.split_terminator('\0') {
            table.folder_number(path);
        }
        let rows: Vec<FileRow> = cast_values(rows)?;
        let sound = |row: &FileRow| {
            let start = row.name as usize;
            let name = table.names.get(start..start + usize::from(row.name_len));
            name.is_some() && (row.folder as usize) < table.folders.len()
        };
        let whole = rows.len() <= MAX_FILES && rows.len() == table.facts.len();
        (rest.is_empty() && whole && rows.iter().all(sound)).then(|| {
            table.build_lookups(rows);
            (table, basis)
        })
    }

    fn build_lookups(&mut self, rows: Vec<FileRow>) {
        self.rows = rows;
        let Self { rows, facts, folders, names, by_path, retired: left, keys, .. } = self;
        let hash = path_hasher(rows, names);
        for (n, row) in (0u32..).zip(rows.iter()) {
            if !row.has_flag(FileFlags::GONE) {
                by_path.insert_unique(hash(&n), n, &hash);
                if let Some(folder) = folders.get_mut(row.folder as usize) {
                    folder.files.push(n);
                }
            } else if row.has_flag(FileFlags::VERIFIED) {
                left.insert_unique(hash(&n), n, &hash);
            }
            for slot in 0..F::SLOTS {
                let entry = n | u32::from(slot) << 24;
                let key = entry_key(rows, facts, entry);
                if key != 0 {
                    keys.insert_unique(key, entry, |e| entry_key(rows, facts, *e));
                }
            }
        }
    }
}

/// Returns the values in some bytes; `None` if they are not a whole number of values.
fn cast_values<T: Pod>(bytes: &[u8]) -> Option<Vec<T>> {
    let chunks = bytes.chunks_exact(size_of::<T>());
    chunks.remainder().is_empty().then(|| chunks.map(bytemuck::pod_read_unaligned).collect())
}

fn parse_qualifier(saved: &[u8]) -> Option<(u32, [u8; 32])> {
    let (n, hash) = saved.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*n), hash.try_into().ok()?))
}

#[cfg(test)]
mod tests;
