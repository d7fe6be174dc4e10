//! Which message files there are: listing folders, and looking again at what was noted.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use rustix::fs::{Dir, FileType};

use super::format::{Arrival, Format, What, no_message};
use super::table::{Table, stamp_print};
use super::{Files, join, parts};
use crate::model::spelling;
use crate::store::fs::{self, Stamp};
use crate::store::{StoreError, below, parallel};

/// Folders that are open at once.
const OPEN: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// The remark about a name that no message has.
const NOT_UTF8: &str = "is skipped: its name is not UTF-8";

/// What a scan has to do.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Files to read.
    pub changed: Vec<u32>,
    /// Files that are no longer there.
    pub gone: Vec<u32>,
    /// Names given by [`What::Group`].
    pub groups: BTreeSet<String>,
    /// Everything was looked at.
    pub is_full: bool,
}

/// Folders of a store, kept open for those who come to them again and again.
#[derive(Debug)]
pub struct Dirs<'a> {
    base: Cow<'a, Path>,
    open: LruCache<String, Arc<OwnedFd>>,
}

impl<'a> Dirs<'a> {
    /// Of the store whose folder this is.
    pub fn new(base: impl Into<Cow<'a, Path>>) -> Self {
        Self { base: base.into(), open: LruCache::new(OPEN) }
    }

    /// A folder by its path in the store.
    ///
    /// # Errors
    /// As [`below::open_dir`].
    pub fn open(&mut self, path: &str) -> io::Result<Arc<OwnedFd>> {
        if let Some(dir) = self.open.get(path) {
            return Ok(Arc::clone(dir));
        }
        let dir = match path.rsplit_once('/') {
            _ if path.is_empty() => below::open_dir(&self.base, &[])?,
            // One step from a folder that was just gone through.
            Some((above, name)) => below::step(&*self.open(above)?, name)?,
            None => below::step(&*self.open("")?, path)?,
        };
        let dir = Arc::new(dir);
        self.open.put(path.to_owned(), Arc::clone(&dir));
        Ok(dir)
    }

    /// A folder in a folder, which is not kept open.
    ///
    /// # Errors
    /// As [`below::open_dir`].
    pub fn open_new(&mut self, folder: &str, name: &str) -> io::Result<OwnedFd> {
        let dir = self.open(folder)?;
        below::step(&dir, name)
    }

    /// What lies at a path; `None` if nothing does.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn look(&mut self, folder: &str, name: &str) -> io::Result<Option<(FileType, Stamp)>> {
        let found = self.open(folder).and_then(|dir| below::look(&dir, name));
        match found {
            Err(e) if fs::is_absent(&e) => Ok(None),
            found => found.map(Some),
        }
    }
}

/// A file by the path of its folder, and its name there.
type New = (Arc<str>, Box<str>);

/// What lies in the folders that were listed.
#[derive(Debug, Default)]
struct Listing {
    /// Files of the table that are there, with the prints of their stamps and of what lies beside them.
    known: Vec<(u32, u64, u64)>,
    /// Files that are not in the table.
    new: Vec<New>,
    /// Folders that were listed with all below them, and single paths at which no message is.
    roots: Vec<String>,
    /// Folders that could not be listed: nothing is known of what is in them.
    unknown: Vec<String>,
    /// Those that could.
    listed: HashSet<String>,
    groups: BTreeSet<String>,
}

/// Whether something that is called like a message is taken in.
fn is_message<F: Format>(kind: FileType) -> bool {
    kind == FileType::RegularFile || F::REFUSES_ODD && kind != FileType::Unknown
}

/// What is said of something that is not the folder it is called like.
fn no_folder(kind: FileType) -> String {
    format!("is skipped: it is {}, not a folder", below::describe_type(kind))
}

/// Whether a path is that of a folder or lies below it.
pub(super) fn is_in(folder: &str, path: &str) -> bool {
    let rest = path.strip_prefix(folder);
    folder.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl<F: Format> Files<F> {
    /// Looks at everything. A store whose folder is away keeps what was read of it.
    ///
    /// # Errors
    /// If the folder cannot be opened; then nothing is known of what is in it.
    pub(super) fn walk(&self) -> Result<Option<Work>, StoreError> {
        self.health.fault.clear();
        if fs::is_away(&self.about.dir) {
            return Ok(None);
        }
        below::open_dir(&self.about.dir, &[]).map_err(|e| StoreError::io(&self.about.dir, e))?;
        self.health.forget(|_| true);
        let (mut dirs, mut listing) = (Dirs::new(&self.about.dir), Listing::default());
        self.list("", &mut dirs, &mut listing);
        // Not before: who asks meanwhile which folders to watch is told of all.
        self.table.write().unlist(|path| !listing.listed.contains(path));
        listing.roots.push(String::new());
        let mut work = self.work_of(listing);
        self.look_for_moved(&mut work, &mut dirs);
        work.is_full = true;
        Ok(Some(work))
    }

    /// Looks where files that were not met may have gone while the folders were listed one after the other: a file
    /// that moved meanwhile may have been met in neither.
    fn look_for_moved(&self, work: &mut Work, dirs: &mut Dirs<'_>) {
        let mut listing = Listing::default();
        let path = |n: &u32| self.table.read().path(*n);
        for path in work.gone.iter().filter_map(path) {
            self.follow(self.format.also(&parts(&path)), dirs, &mut listing);
        }
        let more = self.work_of(listing);
        work.changed.extend(more.changed);
        work.groups.extend(more.groups);
    }

    /// Looks at what is noted.
    ///
    /// # Errors
    /// As [`Files::walk`].
    pub(super) fn look_again(&self, noted: &HashSet<PathBuf>) -> Result<Option<Work>, StoreError> {
        let mut paths: BTreeSet<String> = BTreeSet::new();
        for path in noted {
            if self.about.dir.starts_with(path) {
                return self.walk();
            }
            let Ok(inside) = path.strip_prefix(&self.about.dir) else { continue };
            if inside.to_str().is_some() || self.is_listed(inside.parent()) {
                paths.insert(spelling::spelled(inside.as_os_str().as_bytes()).into_owned());
            }
        }
        let (mut dirs, mut listing) = (Dirs::new(&self.about.dir), Listing::default());
        for path in paths {
            if !listing.roots.iter().any(|root| is_in(root, &path)) {
                self.look_at(&path, &mut dirs, &mut listing);
            }
        }
        Ok(Some(self.work_of(listing)))
    }

    /// Returns true if a folder was listed and is there.
    pub(super) fn is_listed(&self, folder: Option<&Path>) -> bool {
        let Some(folder) = folder.and_then(Path::to_str) else { return false };
        let table = self.table.read();
        let n = table.find_folder(folder).and_then(|n| table.folders().get(n as usize));
        n.is_some_and(|folder| folder.is_listed)
    }

    /// Takes note of a name that is not UTF-8: it is told, and what would be a message under another name is refused.
    /// Returns true if it is.
    fn meet_odd(
        &self,
        folder: &Arc<str>,
        name: &str,
        kind: FileType,
        dirs: &mut Dirs<'_>,
        listing: &mut Listing,
    ) -> bool {
        let here = join(folder, name);
        let is_there = kind != FileType::Unknown;
        self.health.set(&here, is_there.then(|| NOT_UTF8.into()));
        let would_be = self.format.what(&parts(&spelling::shown(&here)), kind);
        let is_refused =
            would_be == What::Message && is_message::<F>(kind) && self.format.refuses_in(folder);
        if is_refused {
            self.meet(folder, name, dirs, listing);
        }
        is_refused
    }

    /// Looks at one path.
    fn look_at(&self, path: &str, dirs: &mut Dirs<'_>, listing: &mut Listing) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let kind = match dirs.look(folder, name) {
            Ok(found) => found.map_or(FileType::Unknown, |(kind, _)| kind),
            Err(e) => return self.health.cannot(path, "be looked at", &e),
        };
        if spelling::is_odd(path) {
            if !self.meet_odd(&folder.into(), name, kind, dirs, listing) {
                listing.roots.push(path.to_owned());
            }
            return;
        }
        let there = kind != FileType::Unknown;
        match self.format.what(&parts(path), kind) {
            What::Folder if !there || kind == FileType::Directory => {
                self.health.set(path, None);
                self.list(path, dirs, listing);
                listing.roots.push(path.to_owned());
            }
            What::Folder => {
                self.health.set(path, Some(no_folder(kind)));
                listing.roots.push(path.to_owned());
            }
            What::Message => self.look_at_message(path, kind, dirs, listing),
            What::Strange(why) => {
                self.health.set(path, there.then_some(why));
                listing.roots.push(path.to_owned());
            }
            what => {
                self.health.set(path, None);
                self.follow(what, dirs, listing);
            }
        }
        self.follow(self.format.also(&parts(path)), dirs, listing);
    }

    /// Looks at what a path stands for.
    fn follow(&self, what: What, dirs: &mut Dirs<'_>, listing: &mut Listing) {
        match what {
            What::Beside(message) => self.look_at(&message, dirs, listing),
            What::Group(group) => drop(listing.groups.insert(group)),
            _ => {}
        }
    }

    fn look_at_message(
        &self,
        path: &str,
        kind: FileType,
        dirs: &mut Dirs<'_>,
        listing: &mut Listing,
    ) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        match kind {
            kind if is_message::<F>(kind) => self.meet(&folder.into(), name, dirs, listing),
            kind => {
                let why = (kind != FileType::Unknown).then(|| no_message(kind));
                self.health.set(path, why);
                listing.roots.push(path.to_owned());
            }
        }
    }

    /// Lists a folder and those below it.
    fn list(&self, path: &str, dirs: &mut Dirs<'_>, listing: &mut Listing) {
        if let Some(listener) = self.listener.get() {
            listener.lists(&self.about.dir.join(path));
        }
        let opened = dirs.open(path);
        let dir = match opened {
            Ok(dir) => dir,
            Err(e) if fs::is_absent(&e) => {
                self.table.write().unlist(|known| is_in(path, known));
                self.health.forget(|known| is_in(path, known));
                return;
            }
            Err(e) => {
                self.health.cannot(path, "be listed", &e);
                return listing.unknown.push(path.to_owned());
            }
        };
        self.table.write().list(path);
        listing.listed.insert(path.to_owned());
        let (mut folders, shared) = (Vec::new(), Arc::from(path));
        let above = parts(path);
        let whole = self.entries(&dir, path, &mut |name, kind| {
            if spelling::is_odd(name) {
                self.meet_odd(&shared, name, kind, dirs, listing);
                return;
            }
            let parts: Vec<&str> = above.iter().copied().chain([name]).collect();
            let here = || join(path, name);
            match (self.format.what(&parts, kind), kind) {
                (What::Folder, FileType::Directory) => folders.push(here()),
                (What::Folder, kind) => self.health.set(&here(), Some(no_folder(kind))),
                (What::Message, kind) if is_message::<F>(kind) => {
                    self.meet(&shared, name, dirs, listing);
                }
                (What::Message, kind) => self.health.set(&here(), Some(no_message(kind))),
                (What::Group(group), _) => drop(listing.groups.insert(group)),
                (What::Strange(why), _) => self.health.set(&here(), Some(why)),
                (What::Beside(_) | What::Around | What::Nothing, _) => {}
            }
        });
        if !whole {
            listing.unknown.push(path.to_owned());
        }
        folders.sort_unstable();
        for folder in folders {
            self.list(&folder, dirs, listing);
        }
    }

    /// Calls back with every name in a folder, [spelled](spelling); `false` if not all could be had.
    fn entries(&self, dir: &OwnedFd, path: &str, each: &mut dyn FnMut(&str, FileType)) -> bool {
        let opened = Dir::read_from(dir).map_err(io::Error::from);
        let Ok(entries) = opened.inspect_err(|e| self.health.cannot(path, "be listed", e)) else {
            return false;
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.health.cannot(path, "be listed to its end", &e.into());
                    return false;
                }
            };
            let name = spelling::spelled(entry.file_name().to_bytes());
            if matches!(&*name, "." | "..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => below::look(dir, &name).map_or(FileType::Unknown, |(k, _)| k),
                known => known,
            };
            each(&name, kind);
        }
        true
    }

    /// Takes note of one message file that is there.
    fn meet(&self, folder: &Arc<str>, name: &str, dirs: &mut Dirs<'_>, listing: &mut Listing) {
        let known = {
            let table = self.table.read();
            table.find_folder(folder).and_then(|number| table.find(number, name))
        };
        let Some(n) = known else {
            return listing.new.push((Arc::clone(folder), name.into()));
        };
        let found = dirs.look(folder, name).and_then(|found| {
            let Some((kind, stamp)) = found else { return Ok(None) };
            let is_file = kind == FileType::RegularFile;
            let beside = if is_file { self.beside(dirs, folder, name)? } else { 0 };
            Ok(Some((n, stamp_print(&stamp), beside)))
        });
        match found {
            Ok(found) => listing.known.extend(found),
            Err(e) => {
                self.health.cannot(&join(folder, name), "be looked at", &e);
                // Nothing is known, so nothing has changed.
                let table = self.table.read();
                listing.known.extend(table.row(n).map(|row| (n, row.stamp, row.beside)));
            }
        }
    }

    /// Returns the print of what lies beside a file, as its format sees it. A name that is not UTF-8 has nothing beside it.
    pub(super) fn beside(&self, dirs: &mut Dirs<'_>, folder: &str, name: &str) -> io::Result<u64> {
        if spelling::is_odd(name) { Ok(0) } else { self.format.beside(dirs, folder, name) }
    }

    /// What of a listing has changed, what of the folders that were listed is missing in it, and numbers
    /// for what is new.
    fn work_of(&self, mut listing: Listing) -> Work {
        let mut work = Work { groups: std::mem::take(&mut listing.groups), ..Work::default() };
        {
            let table = self.table.read();
            let mut seen = HashSet::new();
            for (n, stamp, beside) in &listing.known {
                seen.insert(*n);
                let same = table.row(*n).is_some_and(|r| (r.stamp, r.beside) == (*stamp, *beside));
                work.changed.extend((!same).then_some(*n));
            }
            work.gone = listing.missing(&table, &seen);
        }
        let new = self.by_arrival(std::mem::take(&mut listing.new));
        let mut table = self.table.write();
        for (folder, name) in &new {
            let number = table.folder_number(folder);
            if let Some(n) = table.find(number, name).or_else(|| table.enrol(number, name)) {
                work.changed.push(n);
            } else {
                let full = "is full: no more than 16,777,215 files are taken in";
                self.health.set(folder, Some(full.into()));
            }
        }
        work
    }

    /// Sorts new files by the order in which they came: files are read in the order of their numbers,
    /// and who is read first keeps a plain id and is nobody's replay.
    fn by_arrival(&self, mut new: Vec<New>) -> Vec<New> {
        new.sort_unstable();
        new.dedup();
        if !F::HAS_ARRIVAL || new.len() < 2 {
            return new;
        }
        let arrival = |dirs: &mut Dirs<'_>, bytes: &mut Vec<u8>, (folder, name): &New| {
            let file = below::open_file(&*dirs.open(folder)?, name)?;
            bytes.clear();
            let stamp = below::read_onto(&file, F::LONGEST + 1, bytes)?;
            io::Result::Ok(self.format.arrival(folder, &stamp, bytes))
        };
        let own = || (Dirs::new(&*self.about.dir), Vec::new());
        let arrivals = parallel::map_with(&new, own, |(dirs, bytes), file| {
            arrival(dirs, bytes, file).unwrap_or(Arrival::LAST)
        });
        let mut order: Vec<(Arrival, New)> = arrivals.into_iter().zip(new).collect();
        // Stable: equal ones stay in the order of their paths.
        order.sort_by_key(|(arrival, _)| *arrival);
        new = order.into_iter().map(|(_, file)| file).collect();
        new
    }
}

impl Listing {
    /// Files of the table that lie in what was listed and were not met there.
    fn missing<T: super::Facts>(&self, table: &Table<T>, seen: &HashSet<u32>) -> Vec<u32> {
        let unknown = |path: &str| self.unknown.iter().any(|folder| is_in(folder, path));
        let mut out = Vec::new();
        for root in &self.roots {
            if let Some(n) = table.find_path(root) {
                out.extend((!seen.contains(&n)).then_some(n));
            }
        }
        for (number, folder) in (0u32..).zip(table.folders()) {
            let listed = self.roots.iter().any(|root| is_in(root, &folder.path));
            if listed && !unknown(&folder.path) {
                out.extend(table.files_in(number).filter(|n| !seen.contains(n)));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }
}
