//! Logs at any depth below a folder: the walk to them, and their entries in `raw/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{Dir, FileType};

use super::log_file::{open_below, split_log_name};
use super::raw::{file_entry, folder_entry, log_time};
use super::table::{LogRoot, LogRow, LogSource};
use super::{LineFormat, LineStore, NameClass};
use crate::model::{Timestamp, sanitize_line};
use crate::store::{RawEntry, confined};

/// An entry of a walk.
pub(super) enum TreeEntry<'a> {
    /// A log, by its name, and the open folder that contains it.
    Log(&'a str, &'a OwnedFd),
    /// Something that is skipped, and the reason.
    Skipped(&'a str, String),
    /// A folder that cannot be listed now.
    Unread(&'a str, io::Error),
}

impl<F: LineFormat> LineStore<F> {
    /// Calls back with every log below the folder of logs of a root, in the order of their names.
    pub(super) fn walk_tree(
        &self,
        root: &LogRoot,
        dir: &OwnedFd,
        each: &mut dyn FnMut(TreeEntry<'_>),
    ) {
        let mut folders = BTreeSet::new();
        self.walk_folder(root, dir, "", &mut folders, each);
        *self.reader.folders.lock() = folders;
    }

    fn walk_folder(
        &self,
        root: &LogRoot,
        dir: &OwnedFd,
        path: &str,
        folders: &mut BTreeSet<PathBuf>,
        each: &mut dyn FnMut(TreeEntry<'_>),
    ) {
        let base = F::SHAPE.folder.iter().fold(root.path.clone(), |base, part| base.join(part));
        let place = base.join(path);
        if let Some(listener) = self.listener.get() {
            listener.note_listing(&place);
        }
        folders.insert(place);
        let names = match list_entries(dir) {
            Ok(names) => names,
            Err(e) => return each(TreeEntry::Unread(path, e)),
        };
        let mut below = Vec::new();
        let mut logs = BTreeMap::new();
        for (name, kind) in names {
            let here = if path.is_empty() { name } else { format!("{path}/{name}") };
            let log = F::SHAPE.log_name(&here);
            let is_log = F::classify_name(log) == NameClass::Log;
            match kind {
                FileType::RegularFile if is_log => drop(logs.insert(log.to_owned(), None)),
                FileType::Directory if F::SHAPE.is_tree_folder(&here) => below.push(here),
                kind if is_log || kind == FileType::Symlink && F::SHAPE.is_tree_folder(&here) => {
                    let word = if is_log { "file" } else { "folder" };
                    let what = confined::describe_type(kind);
                    logs.insert(here, Some(format!("it is {what}, not a {word}")));
                }
                _ => {}
            }
        }
        for (name, fault) in logs {
            match fault {
                None => each(TreeEntry::Log(&name, dir)),
                Some(why) => each(TreeEntry::Skipped(&name, why)),
            }
        }
        for here in below {
            match confined::open_subdir(dir, split_log_name(&here).1) {
                Ok(dir) => self.walk_folder(root, &dir, &here, folders, each),
                Err(e) => each(TreeEntry::Unread(&here, e)),
            }
        }
    }

    /// Returns the entries of a folder of `raw/`: all of them, or only the one with a name.
    pub(super) fn raw_tree_entries(&self, path: &str, only: Option<&str>) -> Option<Vec<RawEntry>> {
        let table = self.table.read();
        let root = table.roots.first()?.clone();
        let mut folders: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut files = Vec::new();
        let shown = table.iter_numbered().filter(|(_, log)| log.is_listed() && log.stamp.is_some());
        for (n, log) in shown {
            let below = log.name.strip_prefix(path).and_then(|rest| match path {
                "" => Some(rest),
                _ => rest.strip_prefix('/'),
            });
            let Some(below) = below else { continue };
            let time = log_time::<F>(log);
            let is_wanted = |name: &str| only.is_none_or(|only| F::SHAPE.log_name(only) == name);
            match below.split_once('/') {
                Some((folder, _)) if only.is_none_or(|only| only == folder) => {
                    let newest = folders.entry(folder.to_owned()).or_default();
                    *newest = (*newest).max(time.unwrap_or_default());
                }
                None if is_wanted(below) => files.push((n, below.to_owned(), time)),
                _ => {}
            }
        }
        drop(table);
        if folders.is_empty() && files.is_empty() {
            return path.is_empty().then(Vec::new);
        }
        let mut out: Vec<RawEntry> =
            folders.iter().map(|(name, newest)| folder_entry(name, *newest)).collect();
        let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
        let dir = confined::open_dir(&root.path, &[F::SHAPE.folder, &parts].concat()).ok()?;
        for (n, name, time) in files {
            let Ok((name, FileType::RegularFile, stamp)) = F::SHAPE.stat_log(&dir, &name) else {
                continue;
            };
            if only.is_none_or(|only| only == name) {
                out.push(file_entry(name, &stamp, Some(LogSource::Log(n)), time));
            }
        }
        Some(out)
    }

    /// Opens a file of `raw/`, as it is on disk.
    pub(super) fn open_raw_tree_file(&self, path: &str) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let root = {
            let table = self.table.read();
            let log = table.find_log(0, F::SHAPE.log_name(path)).and_then(|n| table.get(n));
            log.filter(|log| LogRow::is_listed(log)).ok_or_else(missing)?;
            table.roots.first().ok_or_else(missing)?.path.clone()
        };
        let (above, name) = split_log_name(path);
        let dir = Rc::new(confined::open_dir(&root, F::SHAPE.folder)?);
        F::SHAPE.open_log_bytes(&*open_below(&dir, above)?, name)
    }
}

/// Returns the names in a folder with their types, sorted. Names that are not UTF-8 are left out: no log has one.
fn list_entries(dir: &OwnedFd) -> io::Result<Vec<(String, FileType)>> {
    let mut out = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                confined::stat(dir, name).map_or(FileType::Unknown, |(kind, _)| kind)
            }
            known => known,
        };
        out.push((name.to_owned(), kind));
    }
    out.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(out)
}

/// Returns a path for people.
pub(super) fn show_path(path: &str) -> String {
    sanitize_line(path).into_owned()
}
