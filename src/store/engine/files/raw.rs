//! `raw/<store>/`: the store's own files, byte for byte; never keys or state.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType};

use super::format::{Format, What};
use super::table::{Facts, Table};
use super::{Files, join};
use crate::model::Timestamp;
use crate::store::{RawEntry, below};

impl<F: Format> Files<F> {
    /// A path that is shown, in parts, given what it is.
    fn shown<'p>(&self, path: &'p str, kind: FileType) -> Option<Vec<&'p str>> {
        let parts: Vec<&str> = if path.is_empty() { Vec::new() } else { path.split('/').collect() };
        let (last, above) = parts.split_last().map_or((None, &[][..]), |(l, a)| (Some(l), a));
        let dirs = (1..=above.len())
            .all(|n| above.get(..n).is_some_and(|p| self.format.is_shown(p, FileType::Directory)));
        let own = last.is_none() || self.format.is_shown(&parts, kind);
        (dirs && own && parts.iter().all(|part| below::is_component(part))).then_some(parts)
    }

    /// See [`Store::raw_list`](crate::store::Store::raw_list).
    pub(super) fn list_raw(&self, folder: &str) -> Option<Vec<RawEntry>> {
        let parts = self.shown(folder, FileType::Directory)?;
        let dir = below::open_dir(&self.about.dir, &parts).ok()?;
        let mut out = Vec::new();
        for entry in Dir::read_from(&dir).ok()?.flatten() {
            if let Ok(name) = entry.file_name().to_str() {
                out.extend(self.raw_entry(&dir, folder, &parts, name));
            }
        }
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    /// See [`Store::raw_look`](crate::store::Store::raw_look).
    pub(super) fn look_raw(&self, path: &str) -> Option<RawEntry> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts = self.shown(folder, FileType::Directory)?;
        let dir = below::open_dir(&self.about.dir, &parts).ok()?;
        self.raw_entry(&dir, folder, &parts, name)
    }

    /// Returns the entry of a name in a folder, of which these are the path and its parts; `None` if it is not shown.
    fn raw_entry(
        &self,
        dir: &OwnedFd,
        folder: &str,
        above: &[&str],
        name: &str,
    ) -> Option<RawEntry> {
        let (kind, stamp) = below::look(dir, name).ok()?;
        let is_dir = kind == FileType::Directory;
        let path = join(folder, name);
        let parts: Vec<&str> = above.iter().copied().chain([name]).collect();
        let (shown, what) = (self.format.is_shown(&parts, kind), self.format.what(&parts, kind));
        let hides = F::HIDES_EMPTY && folder.is_empty() && is_dir;
        if !shown || hides && self.list_raw(name).is_none_or(|inside| inside.is_empty()) {
            return None;
        }
        let table = self.table.read();
        let source = table.find_path(&path);
        // The time of a message is the same on every machine and survives marks.
        let time = match what {
            What::Beside(message) => time(&table, table.find_path(&message)?),
            What::Folder => table.newest_in(&path).map(Timestamp::from_millis),
            _ => source.and_then(|n| time(&table, n)),
        };
        let modified = time.unwrap_or_else(|| stamp.modified());
        let size = if is_dir { 0 } else { stamp.size };
        Some(RawEntry { is_dir, size, modified, source, name: name.to_owned() })
    }

    /// Whether something that lies beside a message lies beside one that is there.
    fn is_known(&self, path: &[&str], kind: FileType) -> bool {
        let What::Beside(message) = self.format.what(path, kind) else { return true };
        self.table.read().find_path(&message).is_some()
    }

    /// See [`Store::raw_newest`](crate::store::Store::raw_newest).
    pub(super) fn newest_raw(&self, folder: &str) -> Option<Timestamp> {
        self.shown(folder, FileType::Directory)?;
        let newest = self.table.read().newest_in(folder).map(Timestamp::from_millis);
        newest.or_else(|| self.list_raw(folder)?.iter().map(|e| e.modified).max())
    }

    /// See [`Store::raw_open`](crate::store::Store::raw_open).
    ///
    /// # Errors
    /// `NotFound` for what is not shown, else as the system gave it.
    pub(super) fn open_raw(&self, path: &str) -> io::Result<std::fs::File> {
        let shown = self.shown(path, FileType::RegularFile).filter(|parts| !parts.is_empty());
        let known = shown.filter(|parts| self.is_known(parts, FileType::RegularFile));
        below::open_below(&self.about.dir, &known.ok_or(io::ErrorKind::NotFound)?)
    }
}

fn time<F: Facts>(table: &Table<F>, n: u32) -> Option<Timestamp> {
    table.row(n).filter(|row| row.is_message())?;
    table.facts(n).map(|facts| Timestamp::from_millis(facts.time()))
}
