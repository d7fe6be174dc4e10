//! `raw/<store>/`: the store's own files, byte for byte; never keys or state.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::io;

use rustix::fs::{Dir, FileType};

use super::format::{Format, What};
use super::look::is_in;
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
        let mut parts = self.shown(folder, FileType::Directory)?;
        let dir = below::open_dir(&self.about.dir, &parts).ok()?;
        let entries: Vec<_> = Dir::read_from(&dir).ok()?.flatten().collect();
        let table = self.table.read();
        // Only folders need it.
        let newest = LazyCell::new(|| table.newest());
        let mut out = Vec::new();
        for entry in &entries {
            let Some(name) = entry.file_name().to_str().ok().filter(|n| below::is_component(n))
            else {
                continue;
            };
            let Ok((kind, stamp)) = below::look(&dir, name) else { continue };
            parts.push(name);
            let (shown, what) =
                (self.format.is_shown(&parts, kind), self.format.what(&parts, kind));
            parts.pop();
            let path = join(folder, name);
            let source = table.find_path(&path);
            // The time of a message is the same on every machine and survives marks.
            let (shown, time) = match what {
                What::Beside(message) => {
                    let message = table.find_path(&message);
                    (shown && message.is_some(), message.and_then(|n| time(&table, n)))
                }
                What::Folder => (shown, newest_in(&table, &newest, &path)),
                _ => (shown, source.and_then(|n| time(&table, n))),
            };
            let is_dir = kind == FileType::Directory;
            let size = if is_dir { 0 } else { stamp.size };
            let modified = time.unwrap_or_else(|| stamp.modified());
            let entry = RawEntry { is_dir, size, modified, source, name: name.to_owned() };
            out.extend(shown.then_some(entry));
        }
        drop(table);
        if F::HIDES_EMPTY && folder.is_empty() {
            out.retain(|e| self.list_raw(&e.name).is_some_and(|inside| !inside.is_empty()));
        }
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    /// Whether something that lies beside a message lies beside one that is there.
    fn is_known(&self, path: &[&str], kind: FileType) -> bool {
        let What::Beside(message) = self.format.what(path, kind) else { return true };
        self.table.read().find_path(&message).is_some()
    }

    /// See [`Store::raw_newest`](crate::store::Store::raw_newest).
    pub(super) fn newest_raw(&self, folder: &str) -> Option<Timestamp> {
        self.shown(folder, FileType::Directory)?;
        let newest = {
            let table = self.table.read();
            newest_in(&table, &table.newest(), folder)
        };
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

/// The time of the newest message in a folder and those below it.
fn newest_in<F: Facts>(
    table: &Table<F>,
    newest: &HashMap<u32, i64>,
    path: &str,
) -> Option<Timestamp> {
    let folders = (0u32..).zip(table.folders()).filter(|(_, folder)| is_in(path, &folder.path));
    let times = folders.filter_map(|(n, _)| newest.get(&n).copied());
    times.max().map(Timestamp::from_millis)
}
