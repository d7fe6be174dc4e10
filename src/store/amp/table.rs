//! Every message file ever seen, in few bytes each.
//!
//! A file's number in the table is its source number. It keeps it for as long as the table lives,
//! also after the file is gone. The table is what makes a remount cheap: a file whose stamp has not
//! changed is not opened.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::store::fs::Stamp;

/// The largest number of files: a source number has 24 bits.
pub(super) const MAX_FILES: usize = (1 << 24) - 1;

/// First bytes of a saved table; another version is thrown away.
const MAGIC: &[u8; 8] = b"ampfil02";

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct File {
    /// Print of the [`Stamp`] it had when it was last read; 0 if it must be read.
    pub stamp: u64,
    /// Print of the id; 0 if no message was ever read from it.
    pub key: u64,
    /// Print of what is shown and signed.
    pub content: u64,
    /// The message's time in milliseconds.
    pub time: i64,
    /// Where its name starts in [`Table::names`].
    pub name: u32,
    /// Its folder.
    pub folder: u32,
    /// When it goes stale, in seconds since 1970; 0 for never, or if that is past.
    pub expires: u32,
    /// Its length in bytes.
    pub name_len: u16,
    pub flags: Flags,
}

/// Bits of a [`File`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Flags(u16);

impl Flags {
    /// No longer there.
    pub const GONE: Self = Self(1);
    /// It is a message, or was when it last could be read.
    pub const MESSAGE: Self = Self(1 << 1);
    /// Refused, with a reason.
    pub const REJECTED: Self = Self(1 << 2);
    /// It is a message that cannot be read now.
    pub const BROKEN: Self = Self(1 << 3);
    /// Another message has its id, so its own carries a hash.
    pub const TWIN: Self = Self(1 << 4);
    /// The same message lies in another file, which is the one that was reported.
    pub const COPY: Self = Self(1 << 5);
    /// Past its `expires_at`.
    pub const EXPIRED: Self = Self(1 << 6);
    /// Dated after the moment it came.
    pub const FUTURE: Self = Self(1 << 7);
    /// It carries a signature.
    pub const SIGNED: Self = Self(1 << 8);
    /// Its time is that of the file, for want of a better one.
    pub const FILE_TIME: Self = Self(1 << 9);
    /// Its signature is none at all, so it is never shown.
    pub const MALFORMED: Self = Self(1 << 10);
    /// It answers another message.
    pub const ANSWERS: Self = Self(1 << 11);

    pub fn has(self, bit: Self) -> bool {
        self.0 & bit.0 != 0
    }

    pub fn set(&mut self, bit: Self, on: bool) {
        if on {
            self.0 |= bit.0;
        } else {
            self.0 &= !bit.0;
        }
    }
}

/// Which box a folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Mailbox {
    Inbox,
    Sent,
}

impl Mailbox {
    pub const ALL: [Self; 2] = [Self::Inbox, Self::Sent];

    /// Its folder below `messages/`.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Sent => "sent",
        }
    }
}

/// A folder that holds message files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    pub mailbox: Mailbox,
    /// Its name below the box; empty for the box itself.
    pub name: Box<str>,
}

impl Folder {
    /// Its path relative to the agent's folder.
    pub fn path(&self) -> String {
        let mailbox = self.mailbox.folder();
        if self.name.is_empty() {
            return format!("messages/{mailbox}");
        }
        format!("messages/{mailbox}/{}", self.name)
    }

    /// The same, component by component.
    pub fn parts(&self) -> Vec<&str> {
        let mut parts = vec!["messages", self.mailbox.folder()];
        parts.extend((!self.name.is_empty()).then_some(&*self.name));
        parts
    }
}

/// All files.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub files: Vec<File>,
    pub folders: Vec<Folder>,
    /// The SHA-256 of the files marked [`Flags::TWIN`], as they were when they came: marks change the
    /// file, and the id must stay.
    pub twins: HashMap<u32, [u8; 32]>,
    /// The names of all files without `.json`, one behind the other.
    names: String,
    by_path: HashTable<u32>,
    /// Files that hold messages, by id.
    by_key: HashTable<u32>,
    /// Signed messages by content, gone ones included: a replay stays one.
    by_content: HashTable<u32>,
}

/// A print of some texts, stable on disk. Not for telling hostile texts apart: see
/// [`super::facts::digest`].
fn path_hash(folder: u32, name: &str) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(folder), name.as_bytes())
}

/// A print of a stamp, never 0.
pub(super) fn stamp_print(stamp: &Stamp) -> u64 {
    let mut bytes = [0; 56];
    let numbers = [stamp.dev, stamp.ino, stamp.size].map(u64::to_le_bytes);
    let times = [stamp.mtime, stamp.ctime].map(i128::to_le_bytes);
    let all = numbers.as_flattened().iter().chain(times.as_flattened());
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    XxHash3_64::oneshot(&bytes).max(1)
}

impl Table {
    pub fn get(&self, source: u32) -> Option<&File> {
        self.files.get(source as usize)
    }

    pub fn get_mut(&mut self, source: u32) -> Option<&mut File> {
        self.files.get_mut(source as usize)
    }

    pub fn folder(&self, file: &File) -> Option<&Folder> {
        self.folders.get(file.folder as usize)
    }

    /// A file's name without `.json`.
    pub fn stem(&self, file: &File) -> &str {
        let start = file.name as usize;
        self.names.get(start..start + usize::from(file.name_len)).unwrap_or_default()
    }

    /// A file's path relative to the agent's folder.
    pub fn path(&self, source: u32) -> Option<String> {
        let file = self.get(source)?;
        Some(format!("{}/{}.json", self.folder(file)?.path(), self.stem(file)))
    }

    /// The number of a folder, new if it was never seen.
    pub fn folder_number(&mut self, mailbox: Mailbox, name: &str) -> u32 {
        let known = self.find_folder(mailbox, name);
        known.unwrap_or_else(|| {
            self.folders.push(Folder { mailbox, name: name.into() });
            (self.folders.len() - 1) as u32
        })
    }

    pub fn find_folder(&self, mailbox: Mailbox, name: &str) -> Option<u32> {
        let fits = |f: &Folder| f.mailbox == mailbox && *f.name == *name;
        self.folders.iter().position(fits).map(|n| n as u32)
    }

    pub fn find(&self, folder: u32, stem: &str) -> Option<u32> {
        let is_it =
            |n: &u32| self.get(*n).is_some_and(|f| f.folder == folder && self.stem(f) == stem);
        self.by_path.find(path_hash(folder, stem), is_it).copied()
    }

    /// The number of a file, new if it was never seen; `None` if the table is full.
    pub fn number(&mut self, folder: u32, stem: &str) -> Option<u32> {
        if let Some(n) = self.find(folder, stem) {
            return Some(n);
        }
        let name = u32::try_from(self.names.len()).ok()?;
        let name_len = u16::try_from(stem.len()).ok()?;
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let n = self.files.len() as u32;
        self.names.push_str(stem);
        self.files.push(File { name, folder, name_len, ..File::default() });
        let Self { files, names, by_path, .. } = self;
        by_path.insert_unique(path_hash(folder, stem), n, |n| hash_at(files, names, *n));
        Some(n)
    }

    /// Files that hold messages of this id, in the order of their numbers.
    pub fn with_key(&self, key: u64) -> Vec<u32> {
        let is_it = |n: &&u32| self.get(**n).is_some_and(|f| f.key == key);
        let mut out: Vec<u32> = self.by_key.iter_hash(key).filter(is_it).copied().collect();
        out.sort_unstable();
        out
    }

    /// The file in which these signed bytes came first.
    pub fn first_with_content(&self, content: u64) -> Option<u32> {
        let is_it = |n: &&u32| self.get(**n).is_some_and(|f| f.content == content);
        self.by_content.iter_hash(content).filter(is_it).copied().min()
    }

    /// Notes what a file holds now.
    pub fn put(&mut self, source: u32, new: File) {
        self.forget_key(source);
        let Some(slot) = self.files.get_mut(source as usize) else { return };
        let known = slot.content == new.content && slot.flags.has(Flags::SIGNED);
        if !known && let Ok(entry) = find_entry(&mut self.by_content, slot.content, source) {
            entry.remove();
        }
        *slot = File { name: slot.name, name_len: slot.name_len, folder: slot.folder, ..new };
        let files = &self.files;
        if new.key != 0 && !new.flags.has(Flags::GONE) {
            self.by_key.insert_unique(new.key, source, |n| at(files, *n).key);
        }
        if new.flags.has(Flags::SIGNED) && !known {
            self.by_content.insert_unique(new.content, source, |n| at(files, *n).content);
        }
    }

    fn forget_key(&mut self, source: u32) {
        let Some(file) = self.files.get(source as usize) else { return };
        if let Ok(entry) = find_entry(&mut self.by_key, file.key, source) {
            entry.remove();
        }
    }

    /// Gives back what growing took too much.
    pub fn shrink(&mut self) {
        self.files.shrink_to_fit();
        self.names.shrink_to_fit();
        let Self { files, names, by_path, by_key, by_content, .. } = self;
        by_path.shrink_to_fit(|n| hash_at(files, names, *n));
        by_key.shrink_to_fit(|n| at(files, *n).key);
        by_content.shrink_to_fit(|n| at(files, *n).content);
    }

    /// The table as bytes for [`Table::restore`], with a print of what its judgements rest on.
    pub fn save(&self, basis: u64) -> Vec<u8> {
        let mut folders = String::new();
        for f in &self.folders {
            folders.push(if f.mailbox == Mailbox::Inbox { 'i' } else { 's' });
            folders.push_str(&f.name);
            folders.push('\0');
        }
        let files: &[u8] = bytemuck::cast_slice(&self.files);
        let mut twins: Vec<_> = self.twins.iter().collect();
        twins.sort_unstable();
        let mut out = Vec::with_capacity(64 + files.len() + self.names.len() + folders.len());
        out.extend_from_slice(MAGIC);
        let sizes = [files.len(), twins.len(), folders.len(), self.names.len()];
        out.extend_from_slice(&basis.to_le_bytes());
        for size in sizes {
            out.extend_from_slice(&(size as u64).to_le_bytes());
        }
        out.extend_from_slice(files);
        for (source, hash) in twins {
            out.extend_from_slice(&source.to_le_bytes());
            out.extend_from_slice(hash);
        }
        out.extend_from_slice(folders.as_bytes());
        out.extend_from_slice(self.names.as_bytes());
        out
    }

    /// A saved table and the print it was saved with; `None` if the bytes are anything else.
    pub fn restore(saved: &[u8]) -> Option<(Self, u64)> {
        let mut rest = saved.strip_prefix(MAGIC)?;
        let mut number = || -> Option<u64> {
            let (first, tail) = rest.split_first_chunk::<8>()?;
            rest = tail;
            Some(u64::from_le_bytes(*first))
        };
        let basis = number()?;
        let sizes = [number()?, number()?, number()?, number()?];
        let [files_len, twins_len, folders_len, names_len] =
            sizes.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (files, rest) = rest.split_at_checked(files_len)?;
        let (twins, rest) = rest.split_at_checked(twins_len.checked_mul(TWIN_LEN)?)?;
        let (folders, names) = rest.split_at_checked(folders_len)?;
        if names.len() != names_len || files.len() % size_of::<File>() != 0 {
            return None;
        }
        let mut table = Self {
            files: files
                .chunks_exact(size_of::<File>())
                .map(bytemuck::pod_read_unaligned)
                .collect(),
            names: std::str::from_utf8(names).ok()?.to_owned(),
            twins: twins.chunks_exact(TWIN_LEN).filter_map(twin).collect(),
            ..Self::default()
        };
        for line in std::str::from_utf8(folders).ok()?.split_terminator('\0') {
            let mailbox = match line.as_bytes().first()? {
                b'i' => Mailbox::Inbox,
                b's' => Mailbox::Sent,
                _ => return None,
            };
            table.folders.push(Folder { mailbox, name: line.get(1..)?.into() });
        }
        table.is_sound().then(|| {
            table.build();
            (table, basis)
        })
    }

    /// Whether every file has a name and a folder.
    fn is_sound(&self) -> bool {
        self.files.len() <= MAX_FILES
            && self.files.iter().all(|f| {
                let start = f.name as usize;
                self.names.get(start..start + usize::from(f.name_len)).is_some()
                    && (f.folder as usize) < self.folders.len()
            })
    }

    fn build(&mut self) {
        let Self { files, names, by_path, by_key, by_content, .. } = self;
        for (n, file) in (0u32..).zip(files.iter()) {
            by_path.insert_unique(hash_at(files, names, n), n, |n| hash_at(files, names, *n));
            if file.key != 0 && !file.flags.has(Flags::GONE) {
                by_key.insert_unique(file.key, n, |n| at(files, *n).key);
            }
            if file.flags.has(Flags::SIGNED) {
                by_content.insert_unique(file.content, n, |n| at(files, *n).content);
            }
        }
    }
}

/// Bytes of a saved twin: source number and hash.
const TWIN_LEN: usize = 36;

fn twin(saved: &[u8]) -> Option<(u32, [u8; 32])> {
    let (source, hash) = saved.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*source), hash.try_into().ok()?))
}

fn find_entry(
    table: &mut HashTable<u32>,
    hash: u64,
    source: u32,
) -> Result<hashbrown::hash_table::OccupiedEntry<'_, u32>, ()> {
    table.find_entry(hash, |n| *n == source).map_err(drop)
}

fn at(files: &[File], n: u32) -> File {
    files.get(n as usize).copied().unwrap_or_default()
}

fn hash_at(files: &[File], names: &str, n: u32) -> u64 {
    let file = at(files, n);
    let start = file.name as usize;
    let name = names.get(start..start + usize::from(file.name_len)).unwrap_or_default();
    path_hash(file.folder, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Table {
        let mut t = Table::default();
        let inbox = t.folder_number(Mailbox::Inbox, "alice_x");
        let sent = t.folder_number(Mailbox::Sent, "");
        for (n, folder) in [(0u64, inbox), (1, sent), (2, inbox)] {
            let source = t.number(folder, &format!("msg_{n}_a")).unwrap();
            let mut file = File { stamp: 5, key: 9 + n / 2, content: 3, ..File::default() };
            file.flags.set(Flags::SIGNED, true);
            t.put(source, file);
        }
        t
    }

    #[test]
    fn a_file_is_small() {
        assert_eq!(size_of::<File>(), 48);
    }

    #[test]
    fn files_are_found_by_path_key_and_content() {
        let mut t = sample();
        assert_eq!(t.with_key(9), [0, 1]);
        assert_eq!(t.first_with_content(3), Some(0));
        assert_eq!(t.path(0).unwrap(), "messages/inbox/alice_x/msg_0_a.json");
        assert_eq!(t.path(1).unwrap(), "messages/sent/msg_1_a.json");
        assert_eq!(t.find(0, "msg_2_a"), Some(2));
        assert_eq!(t.find(1, "msg_2_a"), None);
        let mut gone = *t.get(0).unwrap();
        gone.flags.set(Flags::GONE, true);
        t.put(0, gone);
        assert_eq!((t.with_key(9), t.first_with_content(3)), (vec![1], Some(0)));
        let other = File { key: 77, content: 4, ..File::default() };
        t.put(0, other);
        assert_eq!((t.with_key(77), t.first_with_content(3)), (vec![0], Some(1)));
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let mut t = sample();
        t.twins.insert(2, [7; 32]);
        let (back, basis) = Table::restore(&t.save(42)).unwrap();
        assert_eq!((basis, &back.files, &back.folders), (42, &t.files, &t.folders));
        assert_eq!(back.twins, t.twins);
        assert_eq!(back.with_key(9), [0, 1]);
        assert_eq!(back.find(0, "msg_2_a"), Some(2));
    }

    proptest! {
        #[test]
        fn damaged_tables_are_refused_or_sound(
            cut in 0usize..400, at in 0usize..400, byte in any::<u8>(),
        ) {
            let mut saved = sample().save(1);
            if let Some(b) = saved.get_mut(at) {
                *b = byte;
            }
            saved.truncate(saved.len().saturating_sub(cut % 8));
            if let Some((t, _)) = Table::restore(&saved) {
                prop_assert_eq!(t.files.len(), sample().files.len());
                for n in 0..t.files.len() as u32 {
                    prop_assert!(t.path(n).is_some_and(|path| path.starts_with("messages/")), "{}", n);
                }
            }
        }
    }
}
