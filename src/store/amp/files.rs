//! Which message files there are: walking the boxes, and looking again at what was noted.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex, RwLock};
use lru::LruCache;
use rustix::fs::{Dir, FileType};

use super::arrival::Arrival;
use super::table::{Flags, Mailbox, Table, stamp_print};
use crate::model::one_line;
use crate::store::below;
use crate::store::fs::Fault;

/// At most this many broken or strange files are remembered by name.
const MAX_TROUBLE: usize = 1000;
/// Messages whose last good bytes are kept.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);
/// The largest that are.
const KEPT_BYTES: usize = 64 << 10;

/// The message files of one agent, shared by scans and readers.
#[derive(Debug)]
pub(super) struct Files {
    /// The agent's folder.
    pub dir: PathBuf,
    /// Held for short moments only, and never while a sink is called.
    pub table: RwLock<Table>,
    /// Paths at which something changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// The last bytes of some messages that could be parsed, for when a file cannot be.
    good: Mutex<LruCache<u32, Box<[u8]>>>,
    /// What is wrong, by path.
    trouble: RwLock<BTreeMap<String, String>>,
    /// Something could not be read since the last walk began.
    pub fault: Fault,
}

/// What a scan has to do.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Files to read.
    pub changed: Vec<u32>,
    /// Files that are no longer there.
    pub gone: Vec<u32>,
}

/// What lies in the folders that were walked.
#[derive(Default)]
struct Listing {
    /// Files of the table, with the print of their stamps.
    known: Vec<(u32, u64)>,
    /// Files never seen before: name and folder.
    new: Vec<(String, u32)>,
    /// Folders that could not be listed: nothing is known of what is in them.
    unknown: HashSet<u32>,
    /// Boxes that could not be listed.
    unknown_boxes: HashSet<Mailbox>,
}

/// The name of a message file without `.json`; `None` for all others. Hidden files are those that
/// somebody is still writing.
pub(super) fn stem_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|stem| !stem.is_empty() && !stem.starts_with('.'))
}

impl Files {
    pub fn new(dir: PathBuf) -> Self {
        let (table, noted, trouble) =
            (RwLock::at(Level::Table, Table::default()), Mutex::default(), RwLock::default());
        let (good, fault) = (Mutex::new(LruCache::new(KEPT)), Fault::default());
        Self { dir, table, noted, good, trouble, fault }
    }

    /// Keeps the bytes of a message, unless they are many.
    pub fn keep(&self, source: u32, bytes: &[u8]) {
        if bytes.len() <= KEPT_BYTES {
            self.good.lock().put(source, bytes.into());
        }
    }

    /// The bytes of a message as they last could be parsed.
    pub fn kept(&self, source: u32) -> Option<Box<[u8]>> {
        self.good.lock().get(&source).cloned()
    }

    pub fn note(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    pub fn take_noted(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }

    /// What is wrong with single files, in words, and how many more there are.
    pub fn troubles(&self, limit: usize) -> (Vec<String>, usize) {
        let trouble = self.trouble.read();
        let lines =
            trouble.iter().take(limit).map(|(path, what)| format!("{} {what}", one_line(path)));
        (lines.collect(), trouble.len().saturating_sub(limit))
    }

    pub fn set_trouble(&self, path: &str, what: Option<String>) {
        let mut trouble = self.trouble.write();
        match what {
            Some(what) if trouble.len() < MAX_TROUBLE || trouble.contains_key(path) => {
                trouble.insert(path.to_owned(), what);
            }
            Some(_) => {}
            None => drop(trouble.remove(path)),
        }
    }

    /// Looks at everything.
    ///
    /// # Errors
    /// If the agent's folder cannot be opened; then nothing is known of what is in it.
    pub fn walk(&self) -> io::Result<Work> {
        below::open_dir(&self.dir, &[])?;
        self.trouble.write().clear();
        self.fault.clear();
        let mut listing = Listing::default();
        for mailbox in Mailbox::ALL {
            self.list_box(mailbox, &mut listing);
        }
        let mut work = self.compare(&listing, |_, _| true);
        self.enrol(listing.new, &mut work);
        Ok(work)
    }

    /// Looks at what is noted.
    pub fn look_again(&self, noted: &HashSet<PathBuf>) -> Work {
        let (mut listing, mut work) = (Listing::default(), Work::default());
        let (mut boxes, mut folders) = (HashSet::new(), HashSet::new());
        for path in noted {
            let Ok(below) = path.strip_prefix(&self.dir) else { continue };
            let parts: Option<Vec<&str>> = below.iter().map(std::ffi::OsStr::to_str).collect();
            let mailbox = |name: &str| Mailbox::ALL.into_iter().find(|m| m.folder() == name);
            match parts.as_deref() {
                Some(["messages"]) => boxes.extend(Mailbox::ALL),
                Some(["messages", name]) => boxes.extend(mailbox(name)),
                Some(["messages", name, file]) if stem_of(file).is_some() => {
                    if let Some(mailbox) = mailbox(name) {
                        self.look_at(mailbox, "", file, &mut listing, &mut work);
                    }
                }
                Some(["messages", name, folder]) if !folder.starts_with('.') => {
                    folders.extend(mailbox(name).map(|m| (m, (*folder).to_owned())));
                }
                Some(["messages", name, folder, file]) => {
                    if let (Some(mailbox), Some(_)) = (mailbox(name), stem_of(file)) {
                        self.look_at(mailbox, folder, file, &mut listing, &mut work);
                    }
                }
                _ => {}
            }
        }
        for mailbox in &boxes {
            self.list_box(*mailbox, &mut listing);
        }
        folders.retain(|(mailbox, _)| !boxes.contains(mailbox));
        for (mailbox, name) in &folders {
            self.list_folder(*mailbox, name, &mut listing);
        }
        if !boxes.is_empty() || !folders.is_empty() {
            let walked = self.compare(&listing, |mailbox, name| {
                boxes.contains(&mailbox) || folders.contains(&(mailbox, name.to_owned()))
            });
            work.changed.extend(walked.changed);
            work.gone.extend(walked.gone);
        }
        self.enrol(listing.new, &mut work);
        work
    }

    /// Looks at one file.
    fn look_at(
        &self,
        mailbox: Mailbox,
        folder: &str,
        file: &str,
        listing: &mut Listing,
        work: &mut Work,
    ) {
        let Some(stem) = stem_of(file) else { return };
        let mut parts = vec!["messages", mailbox.folder()];
        parts.extend((!folder.is_empty()).then_some(folder));
        let path = format!("{}/{file}", parts.join("/"));
        let found = below::open_dir(&self.dir, &parts).and_then(|dir| below::look(&dir, file));
        let mut table = self.table.write();
        let known = table.find_folder(mailbox, folder).and_then(|n| table.find(n, stem));
        let lives = |n: &u32| table.get(*n).is_some_and(|f| !f.flags.has(Flags::GONE));
        match found {
            Ok((FileType::RegularFile, stamp)) => {
                if let Some(source) = known {
                    let print = stamp_print(&stamp);
                    let same = table.get(source).is_some_and(|f| f.stamp == print);
                    work.changed.extend((!same).then_some(source));
                } else {
                    let folder = table.folder_number(mailbox, folder);
                    listing.new.push((stem.to_owned(), folder));
                }
            }
            Ok((kind, _)) => {
                self.set_trouble(&path, Some(skipped(kind)));
                work.gone.extend(known.filter(lives));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.set_trouble(&path, None);
                work.gone.extend(known.filter(lives));
            }
            Err(e) => self.cannot(&path, "be looked at", &e),
        }
    }

    /// Notes that something cannot be read now.
    pub fn cannot(&self, path: &str, what: &str, error: &io::Error) {
        self.fault.note(error);
        self.set_trouble(path, Some(format!("cannot {what}: {error}")));
    }

    fn list_box(&self, mailbox: Mailbox, listing: &mut Listing) {
        let path = format!("messages/{}", mailbox.folder());
        let dir = match below::open_dir(&self.dir, &["messages", mailbox.folder()]) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => {
                self.cannot(&path, "be listed", &e);
                listing.unknown_boxes.insert(mailbox);
                return;
            }
        };
        let mut folders = Vec::new();
        let number = self.table.write().folder_number(mailbox, "");
        let listed = self.entries(&dir, &path, &mut |name, kind| {
            if stem_of(name).is_some() {
                self.meet(&dir, &path, number, name, listing);
            } else if kind == FileType::Directory {
                folders.push(name.to_owned());
            } else {
                self.set_trouble(&format!("{path}/{name}"), Some(skipped(kind)));
            }
        });
        if !listed {
            listing.unknown_boxes.insert(mailbox);
        }
        folders.sort_unstable();
        for folder in folders {
            self.list_folder(mailbox, &folder, listing);
        }
    }

    fn list_folder(&self, mailbox: Mailbox, name: &str, listing: &mut Listing) {
        let path = format!("messages/{}/{name}", mailbox.folder());
        let number = self.table.write().folder_number(mailbox, name);
        let dir = match below::open_dir(&self.dir, &["messages", mailbox.folder(), name]) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => {
                self.cannot(&path, "be listed", &e);
                listing.unknown.insert(number);
                return;
            }
        };
        let listed = self.entries(&dir, &path, &mut |name, kind| {
            if stem_of(name).is_some() {
                self.meet(&dir, &path, number, name, listing);
            } else if kind != FileType::RegularFile {
                self.set_trouble(&format!("{path}/{name}"), Some(skipped(kind)));
            }
        });
        if !listed {
            listing.unknown.insert(number);
        }
    }

    /// Calls back with every name in a folder that is not hidden; `false` if not all could be had.
    fn entries(&self, dir: &OwnedFd, path: &str, each: &mut dyn FnMut(&str, FileType)) -> bool {
        let opened = Dir::read_from(dir).map_err(io::Error::from);
        let Ok(entries) = opened.inspect_err(|e| self.cannot(path, "be listed", e)) else {
            return false;
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.cannot(path, "be listed to its end", &e.into());
                    return false;
                }
            };
            let Ok(name) = entry.file_name().to_str() else {
                let shown = entry.file_name().to_string_lossy().into_owned();
                self.set_trouble(
                    &format!("{path}/{shown}"),
                    Some("is skipped: its name is not UTF-8".into()),
                );
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => below::look(dir, name).map_or(FileType::Unknown, |(k, _)| k),
                known => known,
            };
            each(name, kind);
        }
        true
    }

    /// Takes note of one `.json` file of a listing.
    fn meet(&self, dir: &OwnedFd, path: &str, folder: u32, name: &str, listing: &mut Listing) {
        let Some(stem) = stem_of(name) else { return };
        match below::look(dir, name) {
            Ok((FileType::RegularFile, stamp)) => match self.table.read().find(folder, stem) {
                Some(source) => listing.known.push((source, stamp_print(&stamp))),
                None => listing.new.push((stem.to_owned(), folder)),
            },
            Ok((kind, _)) => self.set_trouble(&format!("{path}/{name}"), Some(skipped(kind))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                self.cannot(&format!("{path}/{name}"), "be looked at", &e);
                // Nothing is known, so nothing has changed.
                let table = self.table.read();
                let known = table.find(folder, stem);
                listing.known.extend(known.and_then(|n| Some((n, table.get(n)?.stamp))));
            }
        }
    }

    /// What of a listing has changed, and what of the folders that were `walked` is missing in it.
    fn compare(&self, listing: &Listing, walked: impl Fn(Mailbox, &str) -> bool) -> Work {
        let mut work = Work::default();
        let table = self.table.read();
        let mut seen = vec![false; table.files.len()];
        for (source, stamp) in &listing.known {
            if let Some(seen) = seen.get_mut(*source as usize) {
                *seen = true;
            }
            let same = |f: &super::table::File| f.stamp == *stamp;
            work.changed.extend(Some(*source).filter(|n| !table.get(*n).is_some_and(same)));
        }
        let considered: Vec<bool> = (0u32..)
            .zip(&table.folders)
            .map(|(n, f)| {
                walked(f.mailbox, &f.name)
                    && !listing.unknown.contains(&n)
                    && !listing.unknown_boxes.contains(&f.mailbox)
            })
            .collect();
        for (source, (file, seen)) in (0u32..).zip(table.files.iter().zip(seen)) {
            let walked = considered.get(file.folder as usize).copied().unwrap_or(false);
            if walked && !seen && !file.flags.has(Flags::GONE) {
                work.gone.push(source);
            }
        }
        work
    }

    /// Numbers files never seen before, in the order in which they came: files are read in the order
    /// of their numbers, and who is read first keeps a plain id and is nobody's replay.
    fn enrol(&self, new: Vec<(String, u32)>, work: &mut Work) {
        let new = self.by_arrival(new);
        let mut table = self.table.write();
        let full = "no more files are taken in: there are 16,777,215";
        for (stem, folder) in &new {
            match table.number(*folder, stem) {
                Some(source) => work.changed.push(source),
                None => self.set_trouble("messages", Some(full.into())),
            }
        }
    }

    fn by_arrival(&self, mut new: Vec<(String, u32)>) -> Vec<(String, u32)> {
        if new.len() < 2 {
            return new;
        }
        let folders = self.table.read().folders.clone();
        let folder = |n: u32| folders.get(n as usize);
        new.sort_by(|(a, f), (b, g)| {
            let name = |n: &u32| folder(*n).map(|f| (&f.name, f.mailbox));
            name(f).cmp(&name(g)).then_with(|| a.cmp(b))
        });
        let mut dated: Vec<(Arrival, (String, u32))> = Vec::with_capacity(new.len());
        let mut open: Option<(u32, Option<OwnedFd>)> = None;
        for (stem, number) in new {
            let Some(folder) = folder(number) else { continue };
            if open.as_ref().is_none_or(|(of, _)| *of != number) {
                open = Some((number, below::open_dir(&self.dir, &folder.parts()).ok()));
            }
            let dir = open.as_ref().and_then(|(_, dir)| dir.as_ref());
            let arrival = Arrival::of_file(dir, &format!("{stem}.json"), folder.mailbox);
            dated.push((arrival, (stem, number)));
        }
        // Stable: equal ones stay in the order of their paths.
        dated.sort_by_key(|(arrival, _)| *arrival);
        dated.into_iter().map(|(_, file)| file).collect()
    }
}

fn skipped(kind: FileType) -> String {
    format!("is skipped: it is {}, not a message file", below::describe_type(kind))
}
