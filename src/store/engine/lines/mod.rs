//! The engine for stores in which a message is a line of a log that only grows.
//!
//! - [`log`]: a log as a run of lines, and how far it was read. `table`: all logs.
//! - `survey`: which logs may have changed. `scan`: what happened to them, and reading them.
//! - `read`: one message. `append`: a new one. `raw`, `check`: the files themselves.
//!
//! A format ([`Format`]) says what the name of a log means, what a line says, and what is appended.
//! What people call the rules of following a log are those of `scan`.

pub mod append;
pub mod check;
pub mod log;
mod raw;
mod read;
pub mod scan;
mod survey;
pub mod table;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::locks::{Level, Mutex, RwLock};
use crate::model::{Claim, Draft, Timestamp, one_line};
use crate::store::fs::{self, Fault};
use crate::store::{
    EmptyThread, Fit, Found, Kind, Location, Part, Prepared, Preparing, RawEntry, Record, Sink,
    Spec, Store, StoreError, Violation, Watermark,
};
use append::Unsynced;
use check::{Checked, Say};
use scan::Scan;
use table::{LogOf, Root, Source, Table};

/// Lines of one kind that are shown to people.
const SHOWN: usize = 50;
/// Single files remembered as being in trouble.
const MAX_TROUBLE: usize = 1000;

/// What is the same for all stores of a format.
#[derive(Debug)]
pub struct Shape {
    /// The format.
    pub kind: Kind,
    /// The folders, one in the other, below a root in which logs lie.
    pub folder: &'static [&'static str],
    /// The name of a log that has a folder of its own; `None` where logs lie beside each other.
    pub file: Option<&'static str>,
    /// The file beside a log that says what it is.
    pub beside: Option<&'static str>,
    /// The folder beside a log with files that its messages refer to.
    pub parts: Option<&'static str>,
    /// Other programs write whole logs anew in place: what has lost lines is not believed at once.
    pub rewritten: bool,
    /// Sync programs put copies beside a log, which have the same [key](Format::key).
    pub copies: bool,
    /// As [`Store::whole_seconds`].
    pub whole_seconds: bool,
    /// Addresses are roles, threads may have an origin and messages be restated.
    pub roles: bool,
    /// As [`Store::repeats`].
    pub repeats: bool,
    /// Files may go along with a message.
    pub carries: bool,
    /// As [`Store::has_watermark`].
    pub watermark: bool,
    /// What follows when the folder is said to be gone.
    pub away: &'static str,
}

impl Shape {
    /// Whether logs lie in the root itself. It is listed at every look, which costs little, and without
    /// it there is no store.
    pub fn is_flat(&self) -> bool {
        self.folder.is_empty()
    }
}

/// What a name among the logs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A log, or the folder of one.
    Log,
    /// Something else.
    Other,
    /// Named like a log, but none: the rule that is broken, and how.
    Bad(&'static str, &'static str),
}

/// What a format knows of a log.
pub trait Facts:
    Clone + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Whether the messages of the log are shown.
    fn is_read(&self) -> bool {
        true
    }

    /// The whole log is about to be read again.
    fn restart(&mut self) {}
}

impl Facts for () {}

/// A log while lines of it are read.
pub struct Reading<'r, F: Format> {
    /// Its number.
    pub n: u32,
    /// It.
    pub log: &'r mut LogOf<F>,
    /// What is known of all logs together.
    pub shared: &'r mut F::Shared,
    /// Memory to work in.
    pub work: &'r mut F::Work,
}

/// A log-structured format.
pub trait Format: Send + Sync + Sized + 'static {
    /// What is the same for all stores of it.
    const SHAPE: Shape;
    /// What is known of a log besides how far it was read.
    type Facts: Facts;
    /// What is counted in a log.
    type Count: Copy + Debug + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What is known of all logs together; kept with the table.
    type Shared: Default + Send + Sync + 'static;
    /// Memory for a scan to work in.
    type Work: Default;
    /// What was read of the file beside a log, for `check`.
    type Head;

    /// Opens a store: what the format keeps of it, its folder and who I am.
    ///
    /// # Errors
    /// As [`open`](crate::store::open).
    fn open(spec: &Spec) -> Result<(Self, PathBuf, String), StoreError>;

    /// What a name is.
    fn classify(name: &str) -> Named;

    /// Who or what a log is for: what its lines are read as.
    fn key(log: &LogOf<Self>) -> String;

    /// Logs of one root are read in this order, and in that of their names.
    fn rank(_log: &LogOf<Self>) -> i64 {
        0
    }

    /// What people should know of a log that is there.
    fn remark(_log: &LogOf<Self>) -> Option<String> {
        None
    }

    /// Takes in one line of the log with this key: what it finds goes to `found`.
    ///
    /// # Errors
    /// Why it is no message, in a sentence.
    fn line<'a>(
        store: &Lines<Self>,
        reading: &mut Reading<'_, Self>,
        key: &'a str,
        text: &'a str,
        at: Location,
        found: &mut Vec<Found<'a>>,
    ) -> Result<(), String>;

    /// The message at a location, from its line.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if it is no message.
    fn record(store: &Lines<Self>, at: &Location, text: &str) -> Result<Record, StoreError>;

    /// The folders with logs; whether they are others now. `ask`: also if nothing says so.
    fn find_roots(
        &self,
        dir: &Path,
        roots: &mut Vec<Root>,
        _ask: bool,
        _noted: &HashSet<PathBuf>,
    ) -> bool {
        let new = roots.is_empty();
        if new {
            roots.push(Root::main(dir.to_owned()));
        }
        new
    }

    /// Looks at what lies beside these logs; those of which all is said differently now.
    fn look_beside(_scan: &mut Scan<'_, Self>, _logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// A whole log was read again, or is gone; what it had and has no more is not told of yet.
    fn reread(_scan: &mut Scan<'_, Self>, _log: u32) {}

    /// All logs were looked at for the first time.
    fn looked_at_all(_scan: &mut Scan<'_, Self>) {}

    /// When the log was begun: the time of what has none.
    fn begun(_facts: &Self::Facts) -> Timestamp {
        Timestamp::default()
    }

    /// When the log, or the file beside it, was changed as far as that says so itself.
    fn changed(_facts: &Self::Facts) -> Option<Timestamp> {
        None
    }

    /// What is kept of all logs together, as bytes.
    fn save(_shared: &Self::Shared) -> Vec<u8> {
        Vec::new()
    }

    /// From bytes; `None` if they cannot be used.
    fn restore(_bytes: &[u8]) -> Option<Self::Shared> {
        Some(Self::Shared::default())
    }

    /// Reads what is kept besides the logs.
    ///
    /// # Errors
    /// As the system gave it.
    fn read_kept(&self, _offset: u64, _len: usize) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::Moved)
    }

    /// As [`Store::open_part`].
    ///
    /// # Errors
    /// As there.
    fn open_part(_: &Lines<Self>, _: &Location, name: &str) -> Result<Part, StoreError> {
        Err(StoreError::io(Path::new(name), io::ErrorKind::NotFound.into()))
    }

    /// Whether a file of this name in [`Shape::parts`] is shown.
    fn is_part(_name: &str) -> bool {
        false
    }

    /// Whether a log, or its folder, is shown in `raw/`.
    fn is_raw(log: &LogOf<Self>) -> bool {
        !log.gone
    }

    /// As [`Store::empty_threads`].
    fn empty_threads(_table: &Table<Self>) -> Vec<EmptyThread> {
        Vec::new()
    }

    /// As [`Store::remarks`], for a store that was looked at.
    fn remarks(_store: &Lines<Self>) -> Vec<String> {
        Vec::new()
    }

    /// Folders besides those of logs in which a change matters.
    fn watched(&self, _dir: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether a change of this name, which is not that of a log, matters.
    fn tells(_store: &Lines<Self>, _folder: &Path, _name: &str) -> bool {
        false
    }

    /// As [`Store::fits`].
    fn fits(address: &str) -> Fit;

    /// As [`Store::registered`].
    fn registered(store: &Lines<Self>, address: &str) -> bool;

    /// As [`Store::default_recipient`].
    fn default_recipient(_me: &str) -> Option<String> {
        None
    }

    /// As [`Store::prepare`].
    ///
    /// # Errors
    /// As there.
    fn prepare(
        store: &Lines<Self>,
        draft: &Draft,
        with: &Preparing<'_>,
    ) -> Result<Vec<Prepared>, StoreError>;

    /// As [`Store::appendable`], but for the room on the disk.
    ///
    /// # Errors
    /// As there.
    fn appendable(_store: &Lines<Self>) -> Result<(), StoreError> {
        Ok(())
    }

    /// As [`Store::append`].
    ///
    /// # Errors
    /// As there.
    fn append(
        store: &Lines<Self>,
        message: &Prepared,
        unsynced: &mut Unsynced,
    ) -> Result<(), StoreError>;

    /// As [`Store::sync`], for what an append does not wait for itself.
    ///
    /// # Errors
    /// As there.
    fn sync(_store: &Lines<Self>, _unsynced: &mut Unsynced) -> Result<(), StoreError> {
        Ok(())
    }

    /// As [`Store::deliver`].
    ///
    /// # Errors
    /// As there.
    fn deliver(_store: &Lines<Self>) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// As [`Store::repair`].
    ///
    /// # Errors
    /// As there.
    fn repair(_store: &Lines<Self>) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// As [`Store::watermark`].
    fn watermark(_store: &Lines<Self>) -> Option<Watermark> {
        None
    }

    /// As [`Store::set_watermark`].
    ///
    /// # Errors
    /// As there.
    fn set_watermark(_: &Lines<Self>, _: &Watermark) -> Result<Option<Watermark>, StoreError> {
        Ok(None)
    }

    /// Checks a log's name and what lies beside it; `None` if the log is nothing to check.
    fn check_head(name: &str, dir: &std::os::fd::OwnedFd, say: &mut Say<'_>) -> Option<Self::Head>;

    /// Checks one line, and counts it.
    fn check_line(store: &Lines<Self>, line: &mut Checked<'_, Self>);

    /// Checks what was said of a log against what was counted in it.
    fn check_counted(_head: &Self::Head, _tally: &log::Tally<Self::Count>, _say: &mut Say<'_>) {}
}

/// A store of logs.
pub struct Lines<F: Format> {
    name: String,
    /// The store's folder.
    pub(crate) dir: PathBuf,
    /// Who I am in it.
    pub(crate) me: String,
    /// What the format keeps of it.
    pub(crate) format: F,
    pub(crate) table: RwLock<Table<F>>,
    /// One scan at a time; set once everything was listed.
    scanning: Mutex<bool>,
    /// Paths that changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// By path: what is wrong with it, in words.
    trouble: RwLock<BTreeMap<String, String>>,
    fault: Fault,
    /// One append at a time; what of it may not be on disk.
    appending: Mutex<Unsynced>,
}

impl<F: Format> Debug for Lines<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(F::SHAPE.kind.as_str())
            .field("dir", &self.dir)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl<F: Format> Lines<F> {
    /// Opens a store.
    ///
    /// # Errors
    /// As [`open`](crate::store::open).
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let (format, dir, me) = F::open(spec)?;
        Ok(Self {
            name: spec.name.clone(),
            dir,
            me,
            format,
            table: RwLock::at(Level::Table, Table::default()),
            scanning: Mutex::at(Level::Store, false),
            noted: Mutex::default(),
            trouble: RwLock::default(),
            fault: Fault::default(),
            appending: Mutex::at(Level::Store, Unsynced::default()),
        })
    }

    /// Has the next scan look at a path.
    pub(crate) fn remember(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    fn take_noted(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }

    /// Notes, or with `None` forgets, what is wrong with a file or folder.
    pub(crate) fn set_trouble(&self, path: &str, what: Option<String>) {
        if what.is_none() && !self.trouble.read().contains_key(path) {
            return;
        }
        let mut trouble = self.trouble.write();
        match what {
            Some(what) if trouble.len() < MAX_TROUBLE => {
                drop(trouble.insert(path.to_owned(), what));
            }
            Some(_) => {}
            None => drop(trouble.remove(path)),
        }
    }

    /// Notes that something cannot be read now.
    pub(crate) fn cannot(&self, path: &str, what: &str, error: &io::Error) {
        self.fault.note(error);
        self.set_trouble(path, Some(format!("cannot {what}: {error}")));
    }

    /// The roots as of the last look, or before the first one.
    pub(crate) fn roots(&self) -> Vec<Root> {
        let roots = self.table.read().roots.clone();
        if roots.is_empty() { vec![Root::main(self.dir.clone())] } else { roots }
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
    fn kind(&self) -> Kind {
        F::SHAPE.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        &self.me
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn whole_seconds(&self) -> bool {
        F::SHAPE.whole_seconds
    }

    fn max_body(&self) -> u64 {
        u64::MAX
    }

    fn roles(&self) -> bool {
        F::SHAPE.roles
    }

    fn origins(&self) -> bool {
        F::SHAPE.roles
    }

    fn restates(&self) -> bool {
        F::SHAPE.roles
    }

    fn empty_threads(&self) -> Vec<EmptyThread> {
        F::empty_threads(&self.table.read())
    }

    fn note(&self, path: &Path) {
        self.remember(path);
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        scan::scan(self, &mut self.scanning.lock(), full, sink)
    }

    fn is_failing(&self) -> bool {
        self.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.table.read().save()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let Some(table) = Table::restore(saved) else { return false };
        // The folders are walked again: only what has changed since is read.
        *self.scanning.lock() = false;
        *self.table.write() = table;
        true
    }

    fn reset(&self) {
        let mut listed = self.scanning.lock();
        *listed = false;
        *self.table.write() = Table::default();
        self.take_noted();
    }

    /// The folders of logs; of a root that has none yet, the folder in which they will appear.
    fn watched(&self) -> Vec<PathBuf> {
        let mut out = self.format.watched(&self.dir);
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

    fn health(&self) -> Vec<String> {
        if let Some(gone) = fs::away_line(&self.dir) {
            return vec![format!("{gone}{}", F::SHAPE.away)];
        }
        let mut out: Vec<String> = Vec::new();
        {
            let table = self.table.read();
            for log in table.logs.iter().filter(|log| !log.gone) {
                let Some(what) = F::remark(log) else { continue };
                out.push(format!("{} {what}", one_line(&table.raw_path(log, F::SHAPE.beside))));
            }
        }
        let trouble = self.trouble.read();
        out.extend(trouble.iter().map(|(path, what)| format!("{} {what}", one_line(path))));
        cut(out)
    }

    fn remarks(&self) -> Vec<String> {
        // While a scan is under way nobody waits for it; then the last one counts.
        if self.scanning.try_lock().is_some_and(|listed| !*listed) {
            return Vec::new();
        }
        cut(F::remarks(self))
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

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.bytes_at(at, limit)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        F::open_part(self, at, name)
    }

    fn fits(&self, address: &str) -> Fit {
        F::fits(address)
    }

    fn registered(&self, address: &str) -> bool {
        F::registered(self, address)
    }

    fn default_recipient(&self) -> Option<String> {
        F::default_recipient(&self.me)
    }

    fn carries(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        // How large a file may be is for the mount to say.
        if files.is_empty() || F::SHAPE.carries {
            return Ok(());
        }
        Err(StoreError::Invalid(format!(
            "Attach: a message in the store {} carries text only; put the file where the recipient \
             can read it and name its path in the text",
            self.name
        )))
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        F::prepare(self, draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        F::appendable(self)?;
        fs::room_for(&self.dir, bytes).map_err(|e| StoreError::io(&self.dir, e))
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        F::append(self, message, &mut self.appending.lock())
    }

    fn repeats(&self) -> bool {
        F::SHAPE.repeats
    }

    fn deliver(&self) -> Result<bool, StoreError> {
        let _one = self.appending.lock();
        F::deliver(self)
    }

    fn sync(&self) -> Result<(), StoreError> {
        F::sync(self, &mut self.appending.lock())
    }

    fn has_watermark(&self) -> bool {
        F::SHAPE.watermark
    }

    fn watermark(&self) -> Option<Watermark> {
        F::watermark(self)
    }

    fn set_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError> {
        F::set_watermark(self, mark)
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn repair(&self) -> Result<Vec<String>, StoreError> {
        let _one = self.appending.lock();
        F::repair(self)
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        self.check_logs(verify, report)
    }
}
