//! `raw/<store>/`: the logs and what lies beside them, byte for byte. What is in the store's own folder
//! lies at the top, what is in another root below its label.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Dir, FileType};

use super::table::{Log, LogOf, Root, Source, Table};
use super::{Facts as _, Format, Lines, Named};
use crate::model::Timestamp;
use crate::store::fs::Stamp;
use crate::store::{RawEntry, below};

/// A folder or file below `raw/<store>/`: the root, and the path below its folder of logs.
fn spot<'a, F: Format>(table: &Table<F>, path: &'a str) -> Option<(u32, Vec<&'a str>)> {
    let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let sound = |part: &&str| below::is_component(part) && !part.starts_with('.');
    if !parts.iter().all(sound) {
        return None;
    }
    let Some((first, rest)) = parts.split_first() else { return Some((0, parts)) };
    // A log of the store's own folder wins over another root of that name.
    let own = table.find(0, first).and_then(|n| table.get(n)).is_some_and(Log::is_listed);
    let other = others(table).find(|(_, root)| !own && root.label == *first);
    match other {
        Some((root, _)) => Some((root, rest.to_vec())),
        None => Some((0, parts)),
    }
}

fn others<F: Format>(table: &Table<F>) -> impl Iterator<Item = (u32, &Root)> {
    (0u32..).zip(&table.roots).skip(1).filter(|(_, root)| root.here)
}

/// The time of a log: that of its last message, which is the same on every machine.
fn time_of<F: Format>(log: &LogOf<F>) -> Option<Timestamp> {
    log.last_time().or_else(|| log.facts.changed())
}

fn folder(name: &str, modified: Timestamp) -> RawEntry {
    RawEntry { name: name.to_owned(), is_dir: true, size: 0, modified, source: None }
}

fn file(name: String, stamp: &Stamp, source: Option<Source>, time: Option<Timestamp>) -> RawEntry {
    let modified = time.unwrap_or_else(|| stamp.modified());
    let source = source.map(Source::number);
    RawEntry { name, is_dir: false, size: stamp.size, modified, source }
}

/// The logs of a root as folders.
fn folders<F: Format>(table: &Table<F>, root: u32) -> Vec<RawEntry> {
    let own = table.logs.iter().filter(|log| log.root == root && log.is_listed());
    own.map(|log| folder(&log.name, time_of::<F>(log).unwrap_or_default())).collect()
}

impl<F: Format> Lines<F> {
    pub(super) fn list_raw(&self, path: &str) -> Option<Vec<RawEntry>> {
        let table = self.table.read();
        let (root, parts) = spot(&table, path)?;
        let mut out = match parts.as_slice() {
            [] if F::SHAPE.file.is_none() => {
                let shown = files(table.roots.get(root as usize)?, F::SHAPE.folder)?;
                let shown = shown.into_iter().filter(|(name, _)| F::classify(name) != Named::Other);
                let entry = |(name, stamp): (String, Stamp)| {
                    let n = table.find(root, &name);
                    let time = n.and_then(|n| time_of::<F>(table.get(n)?));
                    file(name, &stamp, n.map(Source::Log), time)
                };
                shown.map(entry).collect()
            }
            [] => {
                let mut out = folders(&table, root);
                for (n, root) in others(&table).filter(|_| path.is_empty()) {
                    let newest = folders(&table, n).iter().map(|e| e.modified).max();
                    let taken = out.iter().any(|e| e.name == root.label);
                    out.extend(newest.filter(|_| !taken).map(|newest| folder(&root.label, newest)));
                }
                out
            }
            [name, below @ ..] => {
                let n = table.find(root, name)?;
                let log = table.get(n).filter(|log| log.is_listed())?.clone();
                let root = table.roots.get(root as usize)?.clone();
                drop(table);
                match below {
                    [] => inside::<F>(&root, n, &log, false)?,
                    [parts] if F::SHAPE.parts == Some(*parts) => inside::<F>(&root, n, &log, true)?,
                    _ => return None,
                }
            }
        };
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    /// See [`Store::raw_look`](crate::store::Store::raw_look).
    pub(super) fn look_raw(&self, path: &str) -> Option<RawEntry> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let table = self.table.read();
        let (root, parts) = spot(&table, above)?;
        let dir = table.roots.get(root as usize)?.path.clone();
        match parts.as_slice() {
            [] if F::SHAPE.file.is_none() => {
                let n = table.find(root, name);
                let time = n.and_then(|n| time_of::<F>(table.get(n)?));
                drop(table);
                let stamp = regular(&dir, F::SHAPE.folder, name)?;
                let shown = F::classify(name) != Named::Other;
                shown.then(|| file(name.to_owned(), &stamp, n.map(Source::Log), time))
            }
            [] => {
                let own = table.find(root, name).and_then(|n| table.get(n));
                if let Some(log) = own.filter(|log| log.is_listed()) {
                    return Some(folder(name, time_of::<F>(log).unwrap_or_default()));
                }
                let (n, _) = others(&table).find(|(_, r)| above.is_empty() && r.label == *name)?;
                let newest = folders(&table, n).iter().map(|e| e.modified).max()?;
                Some(folder(name, newest))
            }
            [log_name, below @ ..] => {
                let n = table.find(root, log_name)?;
                let log = table.get(n).filter(|log| log.is_listed())?.clone();
                drop(table);
                let mut at = [F::SHAPE.folder, &[*log_name]].concat();
                let carried = match below {
                    [] => false,
                    [parts] if F::SHAPE.parts == Some(*parts) => true,
                    _ => return None,
                };
                if !carried && F::SHAPE.parts == Some(name) {
                    return parts_folder::<F>(&dir, &at, &log);
                }
                at.extend(F::SHAPE.parts.filter(|_| carried));
                let stamp = regular(&dir, &at, name)?;
                inner::<F>(n, &log, carried, name.to_owned(), &stamp)
            }
        }
    }

    pub(super) fn newest_raw(&self, path: &str) -> Option<Timestamp> {
        if F::SHAPE.file.is_none() && path.is_empty() {
            // It is asked for often, and what was read says it.
            let table = self.table.read();
            let logs = table.logs.iter().filter_map(|log| Some((log, log.stamp?)));
            return logs.map(|(log, s)| time_of::<F>(log).unwrap_or_else(|| s.modified())).max();
        }
        self.list_raw(path)?.iter().map(|e| e.modified).max()
    }

    pub(super) fn open_raw(&self, path: &str) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (root, parts) = {
            let table = self.table.read();
            let (root, parts) = spot(&table, path).ok_or_else(missing)?;
            let known = parts.first().and_then(|name| table.get(table.find(root, name)?));
            let shown = match (F::SHAPE.file, parts.as_slice()) {
                (None, [name]) => F::classify(name) != Named::Other,
                (Some(_), [_, file]) => [F::SHAPE.file, F::SHAPE.beside].contains(&Some(*file)),
                (Some(_), [_, folder, name]) => F::SHAPE.parts == Some(*folder) && F::is_part(name),
                _ => false,
            };
            if !shown || F::SHAPE.file.is_some() && !known.is_some_and(Log::is_listed) {
                return Err(missing());
            }
            let root = table.roots.get(root as usize).map(|root| root.path.clone());
            (root.unwrap_or_else(|| self.about.dir.clone()), parts)
        };
        below::open_below(&root, &[F::SHAPE.folder, parts.as_slice()].concat())
    }
}

/// The regular files of a folder of a root, and how they are.
fn files(root: &Root, parts: &[&str]) -> Option<Vec<(String, Stamp)>> {
    let dir = below::open_dir(&root.path, parts).ok()?;
    let entries = Dir::read_from(&dir).ok()?.flatten();
    let file = |entry: rustix::fs::DirEntry| {
        let name = entry.file_name().to_str().ok()?;
        let (kind, stamp) = below::look(&dir, name).ok()?;
        (kind == FileType::RegularFile).then(|| (name.to_owned(), stamp))
    };
    Some(entries.filter_map(file).collect())
}

/// How a regular file in a folder of a root is.
fn regular(root: &Path, parts: &[&str], name: &str) -> Option<Stamp> {
    let (kind, stamp) = below::look(&below::open_dir(root, parts).ok()?, name).ok()?;
    (kind == FileType::RegularFile).then_some(stamp)
}

/// A log, what lies beside it, and the folder of what its messages carry; or that folder's files.
fn inside<F: Format>(root: &Root, n: u32, log: &LogOf<F>, carried: bool) -> Option<Vec<RawEntry>> {
    let own = [F::SHAPE.folder, &[log.name.as_str()]].concat();
    let mut parts = own.clone();
    parts.extend(F::SHAPE.parts.filter(|_| carried));
    let found = files(root, &parts)?.into_iter();
    let mut out: Vec<RawEntry> =
        found.filter_map(|(name, stamp)| inner::<F>(n, log, carried, name, &stamp)).collect();
    if !carried {
        out.extend(parts_folder::<F>(&root.path, &own, log));
    }
    Some(out)
}

/// A file beside a log, or one that its messages carry; `None` if it is not shown.
fn inner<F: Format>(
    n: u32,
    log: &LogOf<F>,
    carried: bool,
    name: String,
    stamp: &Stamp,
) -> Option<RawEntry> {
    let (source, time) = match Some(name.as_str()) {
        _ if carried => F::is_part(&name).then_some((None, None))?,
        log_file if log_file == F::SHAPE.file => (Some(Source::Log(n)), time_of::<F>(log)),
        beside if beside == F::SHAPE.beside => (Some(Source::Beside(n)), log.facts.changed()),
        _ => return None,
    };
    Some(file(name, stamp, source, time))
}

/// The folder of what the messages of a log carry, if it is there.
fn parts_folder<F: Format>(root: &Path, own: &[&str], log: &LogOf<F>) -> Option<RawEntry> {
    let name = F::SHAPE.parts?;
    below::open_dir(root, &[own, &[name]].concat()).ok()?;
    Some(folder(name, time_of::<F>(log).unwrap_or_default()))
}
