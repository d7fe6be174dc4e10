//! Every message file ever seen, in few bytes each.
//!
//! A file's number in the table is its source number. It keeps it for as long as the table lives,
//! also after the file is gone. The table is what makes a remount cheap: a file whose stamp has not
//! changed is not opened.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};

use super::folder::MESSAGES;
use super::state::Facts;
use crate::store::fs::Stamp;
use twox_hash::XxHash3_64;

/// The largest number of files: a source number has 24 bits.
const MAX_FILES: usize = (1 << 24) - 1;
/// First bytes of a saved table; another version is thrown away.
const MAGIC: &[u8; 8] = b"ssotab01";

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct File {
    /// Print of the [`Stamp`] it had when it was last read; 0 if it must be read.
    pub stamp: u64,
    /// The same for its signature file; 0 if there is none.
    pub sig: u64,
    /// The same for its acknowledgement.
    pub ack: u64,
    /// When its recipient acknowledged it, in milliseconds since 1970; 0 for not yet.
    pub acked: i64,
    /// Print of its bytes.
    pub digest: u64,
    /// What the message says, if it is one.
    pub facts: Facts,
    /// Length in bytes.
    pub len: u32,
    /// Its folder.
    pub folder: u32,
    /// Where its name starts in [`Table::names`].
    pub name: u32,
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
    /// It is a message.
    pub const MESSAGE: Self = Self(1 << 1);
    /// Refused, with a reason.
    pub const REJECTED: Self = Self(1 << 2);
    /// It does not lie where its message belongs: what it is depends on what lies there.
    pub const ODD: Self = Self(1 << 3);
    /// Its refusal is in `errors.log`, or is for others to log.
    pub const LOGGED: Self = Self(1 << 4);

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

impl File {
    /// Whether it is a message that is there.
    pub fn is_message(&self) -> bool {
        self.flags.has(Flags::MESSAGE) && !self.flags.has(Flags::GONE)
    }

    /// Whether it was reported, as a message or as refused.
    pub fn is_reported(&self) -> bool {
        self.is_message() || self.is_rejected()
    }

    /// Whether it is there and refused.
    pub fn is_rejected(&self) -> bool {
        self.flags.has(Flags::REJECTED) && !self.flags.has(Flags::GONE)
    }
}

/// A folder below `messages/`.
#[derive(Clone, Debug, Default)]
struct Folder {
    /// Empty for `messages/` itself.
    name: Box<str>,
    files: Vec<u32>,
}

/// All files.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub files: Vec<File>,
    folders: Vec<Folder>,
    by_folder: HashMap<Box<str>, u32>,
    /// The names of all files without `.json`, one behind the other.
    names: String,
}

/// A print of a stamp, never 0.
pub(super) fn stamp_print(stamp: &Stamp) -> u64 {
    let numbers = [stamp.dev, stamp.ino, stamp.size].map(u64::to_le_bytes);
    let times = [stamp.mtime, stamp.ctime].map(i128::to_le_bytes);
    let bytes = [numbers.as_flattened(), times.as_flattened()].concat();
    XxHash3_64::oneshot(&bytes).max(1)
}

impl Table {
    pub fn get(&self, source: u32) -> Option<&File> {
        self.files.get(source as usize)
    }

    pub fn get_mut(&mut self, source: u32) -> Option<&mut File> {
        self.files.get_mut(source as usize)
    }

    /// A file's name without `.json`.
    pub fn stem(&self, file: &File) -> &str {
        let start = file.name as usize;
        self.names.get(start..start + usize::from(file.name_len)).unwrap_or_default()
    }

    /// The name of a file's folder.
    pub fn folder_of(&self, file: &File) -> &str {
        self.folders.get(file.folder as usize).map_or("", |f| &f.name)
    }

    /// A file's path in the store.
    pub fn path(&self, source: u32) -> Option<String> {
        let file = self.get(source)?;
        Some(match self.folder_of(file) {
            "" => format!("{MESSAGES}/{}.json", self.stem(file)),
            folder => format!("{MESSAGES}/{folder}/{}.json", self.stem(file)),
        })
    }

    /// The names of all folders that ever held files.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.folders.iter().map(|f| &*f.name)
    }

    /// The numbers of the files of a folder, by name without `.json`.
    pub fn files_in(&self, folder: &str) -> HashMap<&str, u32> {
        let of = |n: &u32| Some((self.stem(self.get(*n)?), *n));
        let number = self.by_folder.get(folder);
        let found = number.and_then(|n| self.folders.get(*n as usize));
        found.map(|f| f.files.iter().filter_map(of).collect()).unwrap_or_default()
    }

    /// A number for a file never seen before; `None` if the table is full.
    pub fn enrol(&mut self, folder: &str, stem: &str) -> Option<u32> {
        let name = u32::try_from(self.names.len()).ok()?;
        let name_len = u16::try_from(stem.len()).ok()?;
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let within = self.folder_number(folder);
        let n = self.files.len() as u32;
        self.names.push_str(stem);
        self.files.push(File { name, name_len, folder: within, ..File::default() });
        self.folders.get_mut(within as usize)?.files.push(n);
        Some(n)
    }

    fn folder_number(&mut self, name: &str) -> u32 {
        if let Some(n) = self.by_folder.get(name) {
            return *n;
        }
        let n = self.folders.len() as u32;
        self.folders.push(Folder { name: name.into(), files: Vec::new() });
        self.by_folder.insert(name.into(), n);
        n
    }

    /// Notes what a file holds now.
    pub fn put(&mut self, source: u32, new: File) {
        let Some(slot) = self.files.get_mut(source as usize) else { return };
        *slot = File { name: slot.name, name_len: slot.name_len, folder: slot.folder, ..new };
    }

    /// Gives back what growing took too much.
    pub fn shrink(&mut self) {
        self.files.shrink_to_fit();
        self.names.shrink_to_fit();
        self.folders.iter_mut().for_each(|f| f.files.shrink_to_fit());
    }

    /// The table as bytes for [`Table::restore`], with who read it.
    pub fn save(&self, me: &str) -> Vec<u8> {
        let mut folders = String::new();
        for name in self.folders() {
            folders.push_str(name);
            folders.push('\0');
        }
        let files: &[u8] = bytemuck::cast_slice(&self.files);
        let mut out = MAGIC.to_vec();
        for size in [me.len(), files.len(), folders.len(), self.names.len()] {
            out.extend_from_slice(&(size as u64).to_le_bytes());
        }
        for part in [me.as_bytes(), files, folders.as_bytes(), self.names.as_bytes()] {
            out.extend_from_slice(part);
        }
        out
    }

    /// A saved table; `None` if the bytes are anything else, or somebody else's.
    pub fn restore(saved: &[u8], me: &str) -> Option<Self> {
        let mut rest = saved.strip_prefix(MAGIC)?;
        let mut sizes = [0usize; 4];
        for size in &mut sizes {
            let (first, tail) = rest.split_first_chunk::<8>()?;
            *size = usize::try_from(u64::from_le_bytes(*first)).ok()?;
            rest = tail;
        }
        let [me_len, files_len, folders_len, names_len] = sizes;
        let (by, rest) = rest.split_at_checked(me_len)?;
        let (files, rest) = rest.split_at_checked(files_len)?;
        let (folders, names) = rest.split_at_checked(folders_len)?;
        let whole = names.len() == names_len && files.len() % size_of::<File>() == 0;
        if !whole || by != me.as_bytes() {
            return None;
        }
        let mut table =
            Self { names: std::str::from_utf8(names).ok()?.to_owned(), ..Self::default() };
        for name in std::str::from_utf8(folders).ok()?.split_terminator('\0') {
            table.folder_number(name);
        }
        table.files =
            files.chunks_exact(size_of::<File>()).map(bytemuck::pod_read_unaligned).collect();
        for (n, file) in (0u32..).zip(&table.files) {
            let start = file.name as usize;
            table.names.get(start..start + usize::from(file.name_len))?;
            table.folders.get_mut(file.folder as usize)?.files.push(n);
        }
        (table.files.len() <= MAX_FILES).then_some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Table {
        let mut t = Table::default();
        for (folder, stem) in [("T-2026-001", "a"), ("", "b"), ("T-2026-001", "c")] {
            let n = t.enrol(folder, stem).unwrap();
            t.put(n, File { stamp: 5, acked: 7, ..File::default() });
        }
        t
    }

    #[test]
    fn a_file_is_small() {
        assert_eq!(size_of::<File>(), 104);
    }

    #[test]
    fn a_table_comes_back_as_it_was_and_to_the_same_role() {
        let t = sample();
        assert_eq!(t.path(0).unwrap(), "messages/T-2026-001/a.json");
        assert_eq!(t.path(1).unwrap(), "messages/b.json");
        let back = Table::restore(&t.save("executor"), "executor").unwrap();
        assert_eq!(back.files, t.files);
        assert_eq!(back.files_in("T-2026-001"), HashMap::from([("a", 0), ("c", 2)]));
        assert!(Table::restore(&t.save("executor"), "reviewer").is_none());
    }

    proptest! {
        #[test]
        fn damaged_tables_are_refused_or_sound(cut in 0usize..8, at in 0usize..500, byte: u8) {
            let mut saved = sample().save("admin");
            if let Some(b) = saved.get_mut(at) {
                *b = byte;
            }
            saved.truncate(saved.len().saturating_sub(cut));
            if let Some(t) = Table::restore(&saved, "admin") {
                prop_assert_eq!(t.files.len(), sample().files.len());
                for n in 0..t.files.len() as u32 {
                    prop_assert!(t.path(n).is_some_and(|path| path.starts_with("messages/")), "{}", n);
                }
            }
        }
    }
}
