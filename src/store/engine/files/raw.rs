//! The entries of `raw/<store>/`: the store's own files, byte for byte, never keys or state.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType};

use super::format::{FileFormat, PathRole};
use super::table::{FileFacts, FileTable};
use super::{FileStore, join_path};
use crate::model::Timestamp;
use crate::store::{RawEntry, RawTree, confined};

impl<F: FileFormat> FileStore<F> {
    /// Returns the parts of a path if it is shown as something of this type.
    fn shown_parts<'p>(&self, path: &'p str, kind: FileType) -> Option<Vec<&'p str>> {
        let parts: Vec<&str> = if path.is_empty() { Vec::new() } else { path.split('/').collect() };
        let (last, above) = parts.split_last().map_or((None, &[][..]), |(l, a)| (Some(l), a));
        let dirs = (1..=above.len())
            .all(|n| above.get(..n).is_some_and(|p| self.format.is_shown(p, FileType::Directory)));
        let own = last.is_none() || self.format.is_shown(&parts, kind);
        (dirs && own && parts.iter().all(|part| confined::is_component(part))).then_some(parts)
    }

    /// Returns the entry of a name in a folder with this path and these parts; `None` if it is not shown.
    fn raw_entry(
        &self,
        dir: &OwnedFd,
        folder: &str,
        above: &[&str],
        name: &str,
    ) -> Option<RawEntry> {
        let (kind, stamp) = confined::stat(dir, name).ok()?;
        let is_dir = kind == FileType::Directory;
        let path = join_path(folder, name);
        let parts: Vec<&str> = above.iter().copied().chain([name]).collect();
        let (shown, what) =
            (self.format.is_shown(&parts, kind), self.format.determine_role(&parts, kind));
        let hides = F::HIDES_EMPTY && folder.is_empty() && is_dir;
        if !shown || hides && self.list_raw_folder(name).is_none_or(|inside| inside.is_empty()) {
            return None;
        }
        let table = self.table.read();
        let source = table.find_path(&path);
        // The time of a message is the same on every machine and survives marks.
        let time = match what {
            PathRole::Companion(message) => message_time(&table, table.find_path(&message)?),
            PathRole::Folder => table.newest_in(&path).map(Timestamp::from_millis),
            _ => source.and_then(|n| message_time(&table, n)),
        };
        let modified = time.unwrap_or_else(|| stamp.modified());
        let size = if is_dir { 0 } else { stamp.size };
        Some(RawEntry { is_dir, size, modified, source, name: name.to_owned() })
    }

    /// Returns false if something belongs to a message that is not there.
    fn has_known_message(&self, path: &[&str], kind: FileType) -> bool {
        let PathRole::Companion(message) = self.format.determine_role(path, kind) else {
            return true;
        };
        self.table.read().find_path(&message).is_some()
    }
}

impl<F: FileFormat> RawTree for FileStore<F> {
    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>> {
        let parts = self.shown_parts(folder, FileType::Directory)?;
        let dir = confined::open_dir(&self.properties.dir, &parts).ok()?;
        let mut out = Vec::new();
        for entry in Dir::read_from(&dir).ok()?.flatten() {
            if let Ok(name) = entry.file_name().to_str() {
                out.extend(self.raw_entry(&dir, folder, &parts, name));
            }
        }
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts = self.shown_parts(folder, FileType::Directory)?;
        let dir = confined::open_dir(&self.properties.dir, &parts).ok()?;
        self.raw_entry(&dir, folder, &parts, name)
    }

    fn newest_raw_time(&self, folder: &str) -> Option<Timestamp> {
        self.shown_parts(folder, FileType::Directory)?;
        let newest = self.table.read().newest_in(folder).map(Timestamp::from_millis);
        newest.or_else(|| self.list_raw_folder(folder)?.iter().map(|e| e.modified).max())
    }

    fn open_raw_file(&self, path: &str) -> io::Result<std::fs::File> {
        let shown = self.shown_parts(path, FileType::RegularFile).filter(|parts| !parts.is_empty());
        let known = shown.filter(|parts| self.has_known_message(parts, FileType::RegularFile));
        confined::open_path(&self.properties.dir, &known.ok_or(io::ErrorKind::NotFound)?)
    }
}

fn message_time<F: FileFacts>(table: &FileTable<F>, n: u32) -> Option<Timestamp> {
    table.row(n).filter(|row| row.is_message())?;
    table.facts(n).map(|facts| Timestamp::from_millis(facts.time()))
}
