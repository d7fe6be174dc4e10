//! The engine for stores in which a message is a line of a log that only grows.
//!
//! - [`log`]: a log as a run of lines, and how far it was read. `table`: all logs.
//! - `survey`: which logs may have changed. `scan`: what happened to them, and reading them. `fold`: what
//!   their lines say.
//! - `read`: one message. `append`: a new one. `raw`, `check`: the files themselves.
//!
//! A format ([`Format`]) says what the name of a log means, what a line says, and what is appended.

pub mod append;
pub mod check;
mod fold;
mod format;
pub mod log;
mod raw;
mod read;
pub mod scan;
mod survey;
pub mod table;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::health::Health;
use crate::model::locks::{Level, Mutex, RwLock};
use crate::model::{Timestamp, one_line};
use crate::store::fs::{self, Stamp};
use crate::store::{
    About, Advice, Facets, Location, RawEntry, Record, Report, Sink, Spec, Store, StoreError,
    Verify,
};
use append::Unsynced;
pub use format::{Facts, Format, Named, Reading, Shape};
use read::Stretches;
use table::{Root, Source, Table};

/// Lines of one kind that are shown to people.
const SHOWN: usize = 50;

/// A store of logs.
pub struct Lines<F: Format> {
    /// What does not change as long as it is open.
    pub(crate) about: About,
    /// What the format keeps of it.
    pub(crate) format: F,
    pub(crate) table: RwLock<Table<F>>,
    /// One scan at a time; set once everything was listed.
    scanning: Mutex<bool>,
    /// Paths that changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// What was read of logs a moment ago.
    stretches: Mutex<Stretches>,
    /// What is wrong with single files.
    pub(crate) health: Health,
    /// One append at a time; what of it may not be on disk.
    pub(crate) appending: Mutex<Unsynced>,
}

impl<F: Format> Debug for Lines<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.about.fmt(f)
    }
}

impl<F: Format> Lines<F> {
    /// Opens a store.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let (format, about) = F::open(spec)?;
        Ok(Self {
            about,
            format,
            table: RwLock::at(Level::Table, Table::default()),
            scanning: Mutex::at(Level::Store, false),
            noted: Mutex::default(),
            stretches: Mutex::default(),
            health: Health::default(),
            appending: Mutex::at(Level::Store, Unsynced::default()),
        })
    }

    /// Whether there is room for an append of this many bytes.
    ///
    /// # Errors
    /// As the system gave it.
    pub(crate) fn room_for(&self, bytes: u64) -> Result<(), StoreError> {
        fs::room_for(&self.about.dir, bytes)
    }

    /// Whether the folder may be missing, and nothing was ever seen in it.
    pub(crate) fn is_unborn(&self) -> bool {
        self.format.may_be_missing() && self.table.read().logs.is_empty()
    }

    /// Has the next scan look at a path.
    pub(crate) fn remember(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    /// Whether a log that lies in the store's folder is as it was when it was read.
    fn has_taken_in(&self, path: &Path) -> bool {
        let name = path.strip_prefix(&self.about.dir).ok().and_then(Path::to_str);
        let Some(name) = name else { return false };
        let table = self.table.read();
        let log = table.find(0, name).and_then(|n| table.get(n));
        let read = log.filter(|log| log.is_read() && !log.half).and_then(|log| log.stamp);
        drop(table);
        read.is_some() && Stamp::at(path).ok().flatten() == read
    }

    fn has_noted(&self) -> bool {
        !self.noted.lock().is_empty()
    }

    fn take_noted(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }

    /// The roots as of the last look, or before the first one.
    pub(crate) fn roots(&self) -> Vec<Root> {
        let roots = self.table.read().roots.clone();
        if roots.is_empty() { vec![Root::main(self.about.dir.clone())] } else { roots }
    }

    /// A path below a root down to which folders lead to the logs, as far as they exist.
    fn deepest(root: &Root) -> PathBuf {
        let down = (0..=F::SHAPE.folder.len()).rev();
        let mut paths = down.map(|depth| {
            F::SHAPE.folder.iter().take(depth).fold(root.path.clone(), |path, part| path.join(part))
        });
        paths.find(|path| path.is_dir()).unwrap_or_else(|| root.path.clone())
    }
}

/// The first lines, and how many more there are.
fn cut(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

impl<F: Format> Store for Lines<F> {
    fn about(&self) -> &About {
        &self.about
    }

    fn facets(&self) -> Facets<'_> {
        F::facets(self)
    }

    fn note(&self, path: &Path) {
        self.format.noted(&self.about, path);
        self.remember(path);
    }

    /// A change is noted by who made it, and by who watches the folder. The second to come needs no scan.
    fn is_behind(&self) -> bool {
        if !F::SHAPE.is_flat() {
            return true;
        }
        // Taken before they are looked at: what changes after that look is noted anew.
        let mut new = self.take_noted();
        new.retain(|path| !self.has_taken_in(path));
        let mut noted = self.noted.lock();
        noted.extend(new);
        !noted.is_empty()
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        // What is found is read anew, and so is what is read while the scan runs.
        self.stretches.lock().scanned();
        let done = scan::scan(self, &mut self.scanning.lock(), full, sink);
        self.stretches.lock().scanned();
        done
    }

    fn is_failing(&self) -> bool {
        self.health.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.table.read().save()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let Some(table) = Table::restore(saved) else { return false };
        // The folders are walked again: only what has changed since is read.
        *self.scanning.lock() = false;
        *self.table.write() = table;
        self.stretches.lock().scanned();
        true
    }

    fn reset(&self) {
        let mut listed = self.scanning.lock();
        *listed = false;
        *self.table.write() = Table::default();
        self.stretches.lock().scanned();
        self.take_noted();
    }

    /// The folders of logs; of a root that has none yet, the folder in which they will appear.
    fn watched(&self) -> Vec<PathBuf> {
        let mut out = self.format.watched(&self.about.dir);
        let roots = self.roots();
        let shown = |root: &&Root| root.here || root.is_main();
        out.extend(roots.iter().filter(shown).map(Self::deepest));
        if F::SHAPE.file.is_some() {
            let table = self.table.read();
            for (n, _) in table.numbered().filter(|(_, log)| !log.gone) {
                let place = table.place(n);
                out.extend(place.map(|(root, parts)| parts.iter().fold(root, |p, s| p.join(s))));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        // What is not UTF-8 is told of.
        let Some(name) = name.to_str() else { return true };
        let of_root = self.roots().iter().find_map(|root| {
            let below = folder.strip_prefix(&root.path).ok()?;
            let mut parts = below.iter();
            for part in F::SHAPE.folder {
                match parts.next() {
                    None => return Some(name == *part),
                    Some(taken) if taken == *part => {}
                    Some(_) => return None,
                }
            }
            match (parts.next(), parts.next()) {
                (None, _) => Some(F::classify(name) != Named::Other),
                (Some(_), None) => Some([F::SHAPE.file, F::SHAPE.beside].contains(&Some(name))),
                _ => None,
            }
        });
        of_root.unwrap_or(false) || F::tells(self, folder, name)
    }

    fn missed(&self) -> Option<String> {
        self.health.missed(&self.about.dir)
    }

    fn health(&self) -> Vec<String> {
        if let Some(gone) = fs::away_line(&self.about.dir).filter(|_| !self.is_unborn()) {
            return vec![gone];
        }
        let mut out: Vec<String> = F::missing(self).into_iter().collect();
        {
            let table = self.table.read();
            for log in table.logs.iter().filter(|log| !log.gone) {
                let Some(what) = F::remark(log) else { continue };
                out.push(format!("{} {what}", one_line(&table.raw_path(log, F::SHAPE.beside))));
            }
        }
        out.extend(self.health.lines());
        cut(out)
    }

    fn remarks(&self) -> Vec<String> {
        // While a scan is under way nobody waits for it; then the last one counts.
        if self.scanning.try_lock().is_some_and(|listed| !*listed) {
            return Vec::new();
        }
        cut(F::remarks(self))
    }

    fn advice(&self) -> Vec<Advice> {
        F::missing(self).map(Advice::warning).into_iter().collect()
    }

    fn source_path(&self, source: u32) -> Option<String> {
        let table = self.table.read();
        match Source::of(source) {
            Source::Kept => None,
            Source::Log(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.file)),
            Source::Beside(n) => Some(table.raw_path(table.get(n)?, F::SHAPE.beside)),
        }
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        self.with_line(at, |text| F::record(self, at, text))
    }

    fn read_many(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        self.with_lines(at, |number, at, text| {
            if let Ok(record) = F::record(self, at, text) {
                each(number, record);
            }
        });
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.bytes_at(at, limit)
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn raw_look(&self, path: &str) -> Option<RawEntry> {
        self.look_raw(path)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn check(&self, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        self.check_logs(verify, report)
    }
}

#[cfg(test)]
mod tests;
