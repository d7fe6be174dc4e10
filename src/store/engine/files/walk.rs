//! The search for message files: it lists folders, and examines noted paths again.

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

use super::format::{ArrivalOrder, FileFormat, PathRole, describe_non_message};
use super::table::{FileTable, stamp_hash};
use super::{FileStore, join_path, path_parts};
use crate::model::name_encoding;
use crate::store::fs::{self, Stamp};
use crate::store::{StoreError, confined, parallel};

/// The number of folders that are open at once.
const OPEN: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// The remark about a name that no message has.
const NOT_UTF8: &str = "is skipped: its name is not UTF-8";

/// The work of a scan.
#[derive(Debug, Default)]
pub(super) struct ScanWork {
    /// Files to read.
    pub changed: Vec<u32>,
    /// Files that are no longer there.
    pub gone: Vec<u32>,
    /// Names given by [`PathRole::Group`].
    pub groups: BTreeSet<String>,
    /// True if everything was listed.
    pub is_full: bool,
    /// True for the first scan of this process.
    pub is_first: bool,
}

/// A cache of open folders of a store.
#[derive(Debug)]
pub struct DirCache<'a> {
    base: Cow<'a, Path>,
    open: LruCache<String, Arc<OwnedFd>>,
}

impl<'a> DirCache<'a> {
    /// Returns an empty cache for the store with this folder.
    pub fn new(base: impl Into<Cow<'a, Path>>) -> Self {
        Self { base: base.into(), open: LruCache::new(OPEN) }
    }

    /// Opens a folder by its path in the store.
    ///
    /// # Errors
    /// As [`confined::open_dir`].
    pub fn open(&mut self, path: &str) -> io::Result<Arc<OwnedFd>> {
        if let Some(dir) = self.open.get(path) {
            return Ok(Arc::clone(dir));
        }
        let dir = match path.rsplit_once('/') {
            _ if path.is_empty() => confined::open_dir(&self.base, &[])?,
            // The folder above was opened a moment ago, and this is one step from it.
            Some((above, name)) => confined::open_subdir(&*self.open(above)?, name)?,
            None => confined::open_subdir(&*self.open("")?, path)?,
        };
        let dir = Arc::new(dir);
        self.open.put(path.to_owned(), Arc::clone(&dir));
        Ok(dir)
    }

    /// Opens a folder in a folder without keeping it open.
    ///
    /// # Errors
    /// As [`confined::open_dir`].
    pub fn open_uncached(&mut self, folder: &str, name: &str) -> io::Result<OwnedFd> {
        let dir = self.open(folder)?;
        confined::open_subdir(&dir, name)
    }

    /// Returns the type and stamp of the file at a path; `None` if there is none.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn stat(&mut self, folder: &str, name: &str) -> io::Result<Option<(FileType, Stamp)>> {
        let found = self.open(folder).and_then(|dir| confined::stat(&dir, name));
        match found {
            Err(e) if fs::is_absent(&e) => Ok(None),
            found => found.map(Some),
        }
    }
}

/// A file: the path of its folder, and its name there.
type NewFile = (Arc<str>, Box<str>);

/// The contents of the folders that were listed.
#[derive(Debug, Default)]
struct ScanListing {
    /// Files of the table that are there, with the hashes of their stamps and of what lies beside them.
    known: Vec<(u32, u64, u64)>,
    /// Files that are not in the table.
    new: Vec<NewFile>,
    /// Folders that were listed with everything below them, and single paths at which no message is.
    roots: Vec<String>,
    /// Folders that could not be listed. Nothing is known of their files.
    unknown: Vec<String>,
    /// Folders that were listed.
    listed: HashSet<String>,
    groups: BTreeSet<String>,
}

/// Returns true if something with the name of a message is accepted as a file.
fn is_accepted_type<F: FileFormat>(kind: FileType) -> bool {
    kind == FileType::RegularFile || F::REFUSES_ODD && kind != FileType::Unknown
}

/// Describes something that has the name of a folder and is none.
fn describe_non_folder(kind: FileType) -> String {
    format!("is skipped: it is {}, not a folder", confined::describe_type(kind))
}

/// Returns true if a path is that of a folder or lies below it.
pub(super) fn is_in(folder: &str, path: &str) -> bool {
    let rest = path.strip_prefix(folder);
    folder.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl<F: FileFormat> FileStore<F> {
    /// Scans the whole store. A store whose folder is missing keeps its messages.
    ///
    /// # Errors
    /// If the folder cannot be opened. Nothing is then known of its files.
    pub(super) fn walk_store(&self) -> Result<Option<ScanWork>, StoreError> {
        self.health.read_fault.clear();
        if fs::is_folder_missing(&self.properties.dir) {
            return Ok(None);
        }
        confined::open_dir(&self.properties.dir, &[])
            .map_err(|e| StoreError::io(&self.properties.dir, e))?;
        self.health.clear_faults(|_| true);
        let (mut dirs, mut listing) = (DirCache::new(&self.properties.dir), ScanListing::default());
        self.list_folder("", &mut dirs, &mut listing);
        // The marks are removed only now, so that a thread that asks meanwhile for folders to watch gets all.
        self.table.write().unmark_listed(|path| !listing.listed.contains(path));
        listing.roots.push(String::new());
        let mut work = self.compute_work(listing);
        self.find_moved_files(&mut work, &mut dirs);
        work.is_full = true;
        Ok(Some(work))
    }

    /// Searches the other possible places of missing files. The folders were listed one after the other, and a file
    /// that moved meanwhile may have been found in neither.
    fn find_moved_files(&self, work: &mut ScanWork, dirs: &mut DirCache<'_>) {
        let mut listing = ScanListing::default();
        let path = |n: &u32| self.table.read().path(*n);
        for path in work.gone.iter().filter_map(path) {
            self.scan_related(
                self.format.determine_related_role(&path_parts(&path)),
                dirs,
                &mut listing,
            );
        }
        let more = self.compute_work(listing);
        work.changed.extend(more.changed);
        work.groups.extend(more.groups);
    }

    /// Examines the noted paths.
    ///
    /// # Errors
    /// As [`FileStore::walk_store`].
    pub(super) fn scan_noted_paths(
        &self,
        noted: &HashSet<PathBuf>,
    ) -> Result<Option<ScanWork>, StoreError> {
        let mut paths: BTreeSet<String> = BTreeSet::new();
        for path in noted {
            if self.properties.dir.starts_with(path) {
                return self.walk_store();
            }
            let Ok(inside) = path.strip_prefix(&self.properties.dir) else { continue };
            if inside.to_str().is_some() || self.is_folder_listed(inside.parent()) {
                paths
                    .insert(name_encoding::encode_name(inside.as_os_str().as_bytes()).into_owned());
            }
        }
        let (mut dirs, mut listing) = (DirCache::new(&self.properties.dir), ScanListing::default());
        for path in paths {
            if !listing.roots.iter().any(|root| is_in(root, &path)) {
                self.scan_path(&path, &mut dirs, &mut listing);
            }
        }
        Ok(Some(self.compute_work(listing)))
    }

    /// Returns true if a folder was listed and is there.
    pub(super) fn is_folder_listed(&self, folder: Option<&Path>) -> bool {
        let Some(folder) = folder.and_then(Path::to_str) else { return false };
        let table = self.table.read();
        let n = table.find_folder(folder).and_then(|n| table.folders().get(n as usize));
        n.is_some_and(|folder| folder.is_listed)
    }

    /// Notes a name that is not UTF-8: `health` names it, and a file that would be a message under another name is
    /// rejected. Returns true for such a file.
    fn visit_odd_name(
        &self,
        folder: &Arc<str>,
        name: &str,
        kind: FileType,
        dirs: &mut DirCache<'_>,
        listing: &mut ScanListing,
    ) -> bool {
        let here = join_path(folder, name);
        let is_there = kind != FileType::Unknown;
        self.health.set_fault(&here, is_there.then(|| NOT_UTF8.into()));
        let would_be =
            self.format.determine_role(&path_parts(&name_encoding::display_name(&here)), kind);
        let is_refused = would_be == PathRole::Message
            && is_accepted_type::<F>(kind)
            && self.format.may_reject_in(folder);
        if is_refused {
            self.visit_message(folder, name, dirs, listing);
        }
        is_refused
    }

    /// Examines one path.
    fn scan_path(&self, path: &str, dirs: &mut DirCache<'_>, listing: &mut ScanListing) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let kind = match dirs.stat(folder, name) {
            Ok(found) => found.map_or(FileType::Unknown, |(kind, _)| kind),
            Err(e) => return self.health.note_error(path, "be looked at", &e),
        };
        if name_encoding::is_encoded(path) {
            if !self.visit_odd_name(&folder.into(), name, kind, dirs, listing) {
                listing.roots.push(path.to_owned());
            }
            return;
        }
        let there = kind != FileType::Unknown;
        match self.format.determine_role(&path_parts(path), kind) {
            PathRole::Folder if !there || kind == FileType::Directory => {
                self.health.set_fault(path, None);
                self.list_folder(path, dirs, listing);
                listing.roots.push(path.to_owned());
            }
            PathRole::Folder => {
                self.health.set_fault(path, Some(describe_non_folder(kind)));
                listing.roots.push(path.to_owned());
            }
            PathRole::Message => self.scan_message_path(path, kind, dirs, listing),
            PathRole::Unexpected(why) => {
                self.health.set_fault(path, there.then_some(why));
                listing.roots.push(path.to_owned());
            }
            what => {
                self.health.set_fault(path, None);
                self.scan_related(what, dirs, listing);
            }
        }
        self.scan_related(self.format.determine_related_role(&path_parts(path)), dirs, listing);
    }

    /// Examines the message or group to which a path belongs.
    fn scan_related(&self, what: PathRole, dirs: &mut DirCache<'_>, listing: &mut ScanListing) {
        match what {
            PathRole::Companion(message) => self.scan_path(&message, dirs, listing),
            PathRole::Group(group) => drop(listing.groups.insert(group)),
            _ => {}
        }
    }

    fn scan_message_path(
        &self,
        path: &str,
        kind: FileType,
        dirs: &mut DirCache<'_>,
        listing: &mut ScanListing,
    ) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        match kind {
            kind if is_accepted_type::<F>(kind) => {
                self.visit_message(&folder.into(), name, dirs, listing);
            }
            kind => {
                let why = (kind != FileType::Unknown).then(|| describe_non_message(kind));
                self.health.set_fault(path, why);
                listing.roots.push(path.to_owned());
            }
        }
    }

    /// Lists a folder and those below it.
    fn list_folder(&self, path: &str, dirs: &mut DirCache<'_>, listing: &mut ScanListing) {
        if let Some(listener) = self.listener.get() {
            listener.note_listing(&self.properties.dir.join(path));
        }
        let opened = dirs.open(path);
        let dir = match opened {
            Ok(dir) => dir,
            Err(e) if fs::is_absent(&e) => {
                self.table.write().unmark_listed(|known| is_in(path, known));
                self.health.clear_faults(|known| is_in(path, known));
                return;
            }
            Err(e) => {
                self.health.note_error(path, "be listed", &e);
                return listing.unknown.push(path.to_owned());
            }
        };
        self.table.write().mark_listed(path);
        listing.listed.insert(path.to_owned());
        let (mut folders, shared) = (Vec::new(), Arc::from(path));
        let above = path_parts(path);
        let whole = self.for_each_entry(&dir, path, &mut |name, kind| {
            if name_encoding::is_encoded(name) {
                self.visit_odd_name(&shared, name, kind, dirs, listing);
                return;
            }
            let parts: Vec<&str> = above.iter().copied().chain([name]).collect();
            let here = || join_path(path, name);
            match (self.format.determine_role(&parts, kind), kind) {
                (PathRole::Folder, FileType::Directory) => folders.push(here()),
                (PathRole::Folder, kind) => {
                    self.health.set_fault(&here(), Some(describe_non_folder(kind)));
                }
                (PathRole::Message, kind) if is_accepted_type::<F>(kind) => {
                    self.visit_message(&shared, name, dirs, listing);
                }
                (PathRole::Message, kind) => {
                    self.health.set_fault(&here(), Some(describe_non_message(kind)));
                }
                (PathRole::Group(group), _) => drop(listing.groups.insert(group)),
                (PathRole::Unexpected(why), _) => self.health.set_fault(&here(), Some(why)),
                (PathRole::Companion(_) | PathRole::Context | PathRole::Nothing, _) => {}
            }
        });
        if !whole {
            listing.unknown.push(path.to_owned());
        }
        folders.sort_unstable();
        for folder in folders {
            self.list_folder(&folder, dirs, listing);
        }
    }

    /// Calls back with every name in a folder, [spelled](name_encoding). Returns false if not all could be read.
    fn for_each_entry(
        &self,
        dir: &OwnedFd,
        path: &str,
        each: &mut dyn FnMut(&str, FileType),
    ) -> bool {
        let opened = Dir::read_from(dir).map_err(io::Error::from);
        let Ok(entries) = opened.inspect_err(|e| self.health.note_error(path, "be listed", e))
        else {
            return false;
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.health.note_error(path, "be listed to its end", &e.into());
                    return false;
                }
            };
            let name = name_encoding::encode_name(entry.file_name().to_bytes());
            if matches!(&*name, "." | "..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    confined::stat(dir, &name).map_or(FileType::Unknown, |(k, _)| k)
                }
                known => known,
            };
            each(&name, kind);
        }
        true
    }

    /// Notes one message file that is there.
    fn visit_message(
        &self,
        folder: &Arc<str>,
        name: &str,
        dirs: &mut DirCache<'_>,
        listing: &mut ScanListing,
    ) {
        let known = {
            let table = self.table.read();
            table.find_folder(folder).and_then(|number| table.find_file(number, name))
        };
        let Some(n) = known else {
            return listing.new.push((Arc::clone(folder), name.into()));
        };
        let found = dirs.stat(folder, name).and_then(|found| {
            let Some((kind, stamp)) = found else { return Ok(None) };
            let is_file = kind == FileType::RegularFile;
            let beside = if is_file { self.companion_hash(dirs, folder, name)? } else { 0 };
            Ok(Some((n, stamp_hash(&stamp), beside)))
        });
        match found {
            Ok(found) => listing.known.extend(found),
            Err(e) => {
                self.health.note_error(&join_path(folder, name), "be looked at", &e);
                // Nothing is known, so nothing has changed.
                let table = self.table.read();
                listing.known.extend(table.row(n).map(|row| (n, row.stamp, row.companion_hash)));
            }
        }
    }

    /// Returns the hash of what lies beside a file, as its format defines it. A name that is not UTF-8 has nothing
    /// beside it.
    pub(super) fn companion_hash(
        &self,
        dirs: &mut DirCache<'_>,
        folder: &str,
        name: &str,
    ) -> io::Result<u64> {
        if name_encoding::is_encoded(name) {
            Ok(0)
        } else {
            self.format.hash_companions(dirs, folder, name)
        }
    }

    /// Compares a listing with the table. Returns the changed files, the missing files of listed folders, and the new
    /// files with new numbers.
    fn compute_work(&self, mut listing: ScanListing) -> ScanWork {
        let mut work =
            ScanWork { groups: std::mem::take(&mut listing.groups), ..ScanWork::default() };
        {
            let table = self.table.read();
            let mut seen = HashSet::new();
            for (n, stamp, beside) in &listing.known {
                seen.insert(*n);
                let same =
                    table.row(*n).is_some_and(|r| (r.stamp, r.companion_hash) == (*stamp, *beside));
                work.changed.extend((!same).then_some(*n));
            }
            work.gone = listing.find_missing(&table, &seen);
        }
        let new = self.sort_by_arrival(std::mem::take(&mut listing.new));
        let mut table = self.table.write();
        for (folder, name) in &new {
            let number = table.folder_number(folder);
            if let Some(n) = table.find_file(number, name).or_else(|| table.add_file(number, name))
            {
                work.changed.push(n);
            } else {
                let full = "is full: no more than 16,777,215 files are taken in";
                self.health.set_fault(folder, Some(full.into()));
            }
        }
        work
    }

    /// Sorts new files by the order in which they came. Files are read in the order of their numbers, and the first one
    /// keeps its plain id and does not count as a replay.
    fn sort_by_arrival(&self, mut new: Vec<NewFile>) -> Vec<NewFile> {
        new.sort_unstable();
        new.dedup();
        if !F::HAS_ARRIVAL || new.len() < 2 {
            return new;
        }
        let arrival = |dirs: &mut DirCache<'_>, bytes: &mut Vec<u8>, (folder, name): &NewFile| {
            let file = confined::open_file(&*dirs.open(folder)?, name)?;
            bytes.clear();
            let stamp = confined::read_whole_into(&file, F::LONGEST + 1, bytes)?;
            io::Result::Ok(self.format.arrival_order(folder, &stamp, bytes))
        };
        let own = || (DirCache::new(&*self.properties.dir), Vec::new());
        let arrivals = parallel::map_with(&new, own, |(dirs, bytes), file| {
            arrival(dirs, bytes, file).unwrap_or(ArrivalOrder::LAST)
        });
        let mut order: Vec<(ArrivalOrder, NewFile)> = arrivals.into_iter().zip(new).collect();
        // The sort is stable: equal files stay in the order of their paths.
        order.sort_by_key(|(arrival, _)| *arrival);
        new = order.into_iter().map(|(_, file)| file).collect();
        new
    }
}

impl ScanListing {
    /// Returns files of the table that lie in listed folders and were not found there.
    fn find_missing<T: super::FileFacts>(
        &self,
        table: &FileTable<T>,
        seen: &HashSet<u32>,
    ) -> Vec<u32> {
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
