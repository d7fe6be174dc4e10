//! The entries of `raw/<store>/`: the logs and the files beside them, byte for byte. Files of the store's own folder
//! lie at the top, those of another root below its label.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Dir, FileType};

use super::table::{LogRoot, LogRow, LogRowOf, LogSource, LogTable};
use super::{LineFormat, LineStore, LogFacts as _, NameClass};
use crate::model::Timestamp;
use crate::store::fs::Stamp;
use crate::store::{RawEntry, RawTree, confined};

/// Returns the root of a folder or file below `raw/<store>/`, and the path below its folder of logs.
fn resolve_raw_path<'a, F: LineFormat>(
    table: &LogTable<F>,
    path: &'a str,
) -> Option<(u32, Vec<&'a str>)> {
    let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let sound = |part: &&str| confined::is_component(part) && !part.starts_with('.');
    if !parts.iter().all(sound) {
        return None;
    }
    let Some((first, rest)) = parts.split_first() else { return Some((0, parts)) };
    // A log of the store's own folder wins over another root of that name.
    let own = table.find_log(0, first).and_then(|n| table.get(n)).is_some_and(LogRow::is_listed);
    let other = other_roots(table).find(|(_, root)| !own && root.label == *first);
    match other {
        Some((root, _)) => Some((root, rest.to_vec())),
        None => Some((0, parts)),
    }
}

fn other_roots<F: LineFormat>(table: &LogTable<F>) -> impl Iterator<Item = (u32, &LogRoot)> {
    (0u32..).zip(&table.roots).skip(1).filter(|(_, root)| root.here)
}

/// Returns the time of a log. It is that of its last message, which is the same on every machine.
pub(super) fn log_time<F: LineFormat>(log: &LogRowOf<F>) -> Option<Timestamp> {
    log.last_time().or_else(|| log.facts.change_time())
}

/// Returns the entry of a folder in `raw/`.
pub(super) fn folder_entry(name: &str, modified: Timestamp) -> RawEntry {
    RawEntry { name: name.to_owned(), is_dir: true, size: 0, modified, source: None }
}

/// Returns the entry of a file in `raw/`. Its time is that of its stamp if none is given.
pub(super) fn file_entry(
    name: String,
    stamp: &Stamp,
    source: Option<LogSource>,
    time: Option<Timestamp>,
) -> RawEntry {
    let modified = time.unwrap_or_else(|| stamp.modified());
    let source = source.map(LogSource::number);
    RawEntry { name, is_dir: false, size: stamp.size, modified, source }
}

/// Returns the logs of a root as folders: all of them, or only the one with a name.
fn log_folders<F: LineFormat>(table: &LogTable<F>, root: u32, only: Option<&str>) -> Vec<RawEntry> {
    let entry = |log: &LogRowOf<F>| folder_entry(&log.name, log_time::<F>(log).unwrap_or_default());
    if let Some(name) = only {
        let log = table.find_log(root, name).and_then(|n| table.get(n));
        return log.filter(|log| log.is_listed()).map(entry).into_iter().collect();
    }
    table.logs.iter().filter(|log| log.root == root && log.is_listed()).map(entry).collect()
}

impl<F: LineFormat> LineStore<F> {
    /// Returns the entries of a folder: all of them, or only the one with a name.
    fn raw_entries(&self, path: &str, only: Option<&str>) -> Option<Vec<RawEntry>> {
        if F::SHAPE.tree.is_some() {
            return self.raw_tree_entries(path, only);
        }
        let table = self.table.read();
        let (root, parts) = resolve_raw_path(&table, path)?;
        match parts.as_slice() {
            [] if F::SHAPE.log_file.is_none() => {
                let place = table.roots.get(root as usize)?.clone();
                drop(table);
                let mut shown = list_regular_files(&place, F::SHAPE.folder, only)?;
                shown.retain(|(name, _)| F::classify_name(name) != NameClass::Other);
                let table = self.table.read();
                let entry = |(name, stamp): (String, Stamp)| {
                    let n = table.find_log(root, &name);
                    let time = n.and_then(|n| log_time::<F>(table.get(n)?));
                    file_entry(name, &stamp, n.map(LogSource::Log), time)
                };
                Some(shown.into_iter().map(entry).collect())
            }
            [] => {
                let mut out = log_folders(&table, root, only);
                let others = other_roots(&table).filter(|(_, root)| {
                    path.is_empty() && only.is_none_or(|name| root.label == name)
                });
                for (n, root) in others {
                    let newest = log_folders(&table, n, None).iter().map(|e| e.modified).max();
                    let taken = out.iter().any(|e| e.name == root.label);
                    out.extend(
                        newest.filter(|_| !taken).map(|newest| folder_entry(&root.label, newest)),
                    );
                }
                Some(out)
            }
            [name, below @ ..] => {
                let n = table.find_log(root, name)?;
                let log = table.get(n).filter(|log| log.is_listed())?.clone();
                let root = table.roots.get(root as usize)?.clone();
                drop(table);
                match below {
                    [] => list_log_folder::<F>(&root, n, &log, false, only),
                    [parts] if F::SHAPE.parts_folder == Some(*parts) => {
                        list_log_folder::<F>(&root, n, &log, true, only)
                    }
                    _ => None,
                }
            }
        }
    }
}

impl<F: LineFormat> RawTree for LineStore<F> {
    fn list_raw_folder(&self, path: &str) -> Option<Vec<RawEntry>> {
        let mut out = self.raw_entries(path, None)?;
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.raw_entries(above, Some(name))?.pop()
    }

    fn newest_raw_time(&self, path: &str) -> Option<Timestamp> {
        if F::SHAPE.log_file.is_none() && path.is_empty() {
            // It is needed often, and the table contains it.
            let table = self.table.read();
            let logs = table.logs.iter().filter_map(|log| Some((log, log.stamp?)));
            return logs.map(|(log, s)| log_time::<F>(log).unwrap_or_else(|| s.modified())).max();
        }
        self.list_raw_folder(path)?.iter().map(|e| e.modified).max()
    }

    fn open_raw_file(&self, path: &str) -> io::Result<File> {
        if F::SHAPE.tree.is_some() {
            return self.open_raw_tree_file(path);
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (root, parts) = {
            let table = self.table.read();
            let (root, parts) = resolve_raw_path(&table, path).ok_or_else(missing)?;
            let known = parts.first().and_then(|name| table.get(table.find_log(root, name)?));
            let shown = match (F::SHAPE.log_file, parts.as_slice()) {
                (None, [name]) => F::classify_name(name) != NameClass::Other,
                (Some(_), [_, file]) => {
                    [F::SHAPE.log_file, F::SHAPE.head_file].contains(&Some(*file))
                }
                (Some(_), [_, folder, name]) => {
                    F::SHAPE.parts_folder == Some(*folder) && F::is_shown_part(name)
                }
                _ => false,
            };
            if !shown || F::SHAPE.log_file.is_some() && !known.is_some_and(LogRow::is_listed) {
                return Err(missing());
            }
            let root = table.roots.get(root as usize).map(|root| root.path.clone());
            (root.unwrap_or_else(|| self.properties.dir.clone()), parts)
        };
        confined::open_path(&root, &[F::SHAPE.folder, parts.as_slice()].concat())
    }
}

/// Returns the regular files of a folder of a root, with their stamps: all of them, or only the one with a name.
fn list_regular_files(
    root: &LogRoot,
    parts: &[&str],
    only: Option<&str>,
) -> Option<Vec<(String, Stamp)>> {
    let dir = confined::open_dir(&root.path, parts).ok()?;
    let file = |name: &str| {
        let (kind, stamp) = confined::stat(&dir, name).ok()?;
        (kind == FileType::RegularFile).then(|| (name.to_owned(), stamp))
    };
    if let Some(name) = only {
        return Some(file(name).into_iter().collect());
    }
    let entries = Dir::read_from(&dir).ok()?.flatten();
    Some(entries.filter_map(|entry| file(entry.file_name().to_str().ok()?)).collect())
}

/// Returns the entries of a log's folder: the log, the files beside it, and the folder of attachments. With `carried`,
/// it returns the files of that folder. With `only`, it returns the one with this name.
fn list_log_folder<F: LineFormat>(
    root: &LogRoot,
    n: u32,
    log: &LogRowOf<F>,
    carried: bool,
    only: Option<&str>,
) -> Option<Vec<RawEntry>> {
    let own = [F::SHAPE.folder, &[log.name.as_str()]].concat();
    let mut parts = own.clone();
    parts.extend(F::SHAPE.parts_folder.filter(|_| carried));
    let found = list_regular_files(root, &parts, only)?.into_iter();
    let mut out: Vec<RawEntry> = found
        .filter_map(|(name, stamp)| log_folder_entry::<F>(n, log, carried, name, &stamp))
        .collect();
    if !carried && only.is_none_or(|name| F::SHAPE.parts_folder == Some(name)) {
        out.extend(parts_folder_entry::<F>(&root.path, &own, log));
    }
    Some(out)
}

/// Returns the entry of a file beside a log, or of an attachment of its messages; `None` if it is not shown.
fn log_folder_entry<F: LineFormat>(
    n: u32,
    log: &LogRowOf<F>,
    carried: bool,
    name: String,
    stamp: &Stamp,
) -> Option<RawEntry> {
    let (source, time) = match Some(name.as_str()) {
        _ if carried => F::is_shown_part(&name).then_some((None, None))?,
        log_file if log_file == F::SHAPE.log_file => (Some(LogSource::Log(n)), log_time::<F>(log)),
        beside if beside == F::SHAPE.head_file => {
            (Some(LogSource::Head(n)), log.facts.change_time())
        }
        _ => return None,
    };
    Some(file_entry(name, stamp, source, time))
}

/// Returns the folder of a log's attachments, if it is there.
fn parts_folder_entry<F: LineFormat>(
    root: &Path,
    own: &[&str],
    log: &LogRowOf<F>,
) -> Option<RawEntry> {
    let name = F::SHAPE.parts_folder?;
    confined::open_dir(root, &[own, &[name]].concat()).ok()?;
    Some(folder_entry(name, log_time::<F>(log).unwrap_or_default()))
}
