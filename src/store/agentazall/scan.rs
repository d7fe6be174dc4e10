//! Following a mailbox: which files are there, which changed, and what that means for messages.
//!
//! What bites here, and how it is met:
//!
//! 1. The reference writes in place and copies without temporary names: a file that was touched a moment
//!    ago and looks half-written is looked at again for a short while before it counts.
//! 2. Whatever changed, only files whose stamp (or attachments) changed are read again, and only
//!    messages that gained, lost or changed a file are reported again.
//! 3. A file or folder that cannot be read hides nothing that was seen in it before; one that is gone,
//!    or is a symbolic link now, does. A mailbox that is gone as a whole does not.
//! 4. One bad file or folder never hides another: it is rejected, or named in `trouble`.

mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use super::letter::{self, Parsed};
use super::place::{self, Folder, Place};
use super::table::{Change, Row, State, on_disk};
use super::{AgentAzall, date, key, mark, parts};
use crate::model::{Timestamp, one_line};
use crate::store::fs::{self, Stamp};
use crate::store::parallel;
use crate::store::{Found, Sink, StoreError};

/// A file touched less than this ago may still be being written.
const YOUNG_MS: i64 = 1000;
/// How long a scan waits for half-written files, and how often it looks.
const PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of message files whose readings are kept until they are reported; what is beyond is read again.
const KEPT: u64 = 64 << 20;
/// Files read at once.
const TOGETHER: usize = 256;

/// Reports everything that is new or changed. See the module for the rules.
pub(super) fn scan(store: &AgentAzall, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
    let _turn = store.scanning.lock();
    store.catch_up();
    let judge_again = store.reload_config();
    let notes = std::mem::take(&mut *store.noted.lock());
    let mut look = Look::new(store);
    if full {
        store.fault.clear();
        look.everything()?;
    } else {
        for path in notes {
            look.noted(&path)?;
        }
    }
    look.wait_for_young();
    look.missing();
    if judge_again {
        look.judge_again();
    }
    let Look { changes, fresh, .. } = look;
    if changes.is_empty() {
        return Ok(());
    }
    let (delta, lines) = {
        let mut table = store.table.write();
        (table.apply(changes.into_values().collect(), &store.me), table.take_lines())
    };
    // Before anybody can mark what is reported.
    store.state.add_ids(&lines, true);
    report::hand_over(store, delta, fresh, sink);
    Ok(())
}

/// What was seen of one file.
enum Seen {
    /// What is known of it.
    Known,
    /// It is not there.
    Gone,
    /// No message, and why.
    Problem(Stamp, String),
    /// It could not be read.
    Unread(Stamp, io::Error),
    /// A message and the state of its attachments.
    Letter(u64, Box<Parsed>),
}

/// What a scan has seen so far.
struct Look<'s> {
    store: &'s AgentAzall,
    /// By path.
    changes: BTreeMap<String, Change>,
    /// Reports of what was read, by path.
    fresh: HashMap<String, Found<'static>>,
    kept: u64,
    /// Paths of files that look half-written.
    young: BTreeSet<String>,
    /// Folders that were listed (`<day>/<folder>`), and the files in them.
    listed: HashSet<String>,
    seen: HashSet<String>,
    /// All days were listed: what is in no listed folder is gone.
    all: bool,
    /// My key, once somebody asked for it; none counts as all zero, by which nothing verifies.
    my_key: Option<[u8; 32]>,
}

impl<'s> Look<'s> {
    fn new(store: &'s AgentAzall) -> Self {
        Self {
            store,
            changes: BTreeMap::new(),
            fresh: HashMap::new(),
            kept: 0,
            young: BTreeSet::new(),
            listed: HashSet::new(),
            seen: HashSet::new(),
            all: false,
            my_key: None,
        }
    }

    fn noted(&mut self, path: &Path) -> Result<(), StoreError> {
        let Ok(inside) = path.strip_prefix(self.store.base()) else {
            return if path == self.store.config_file { Ok(()) } else { self.everything() };
        };
        let mut names = Vec::new();
        for component in inside.components() {
            match component {
                Component::Normal(name) => names.push(name.to_string_lossy()),
                _ => return Ok(()),
            }
        }
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        match names.as_slice() {
            [] => return self.everything(),
            [day, ..] if !date::is_day(day) => {}
            [day] => self.day(day),
            [day, folder, rest @ ..] => {
                if let Some(folder) = Folder::from_name(folder) {
                    self.noted_inside(day, folder, rest);
                }
            }
        }
        Ok(())
    }

    fn noted_inside(&mut self, day: &str, folder: Folder, rest: &[&str]) {
        let [name, ..] = rest else { return self.folder(day, folder) };
        let dir = self.store.base().join(day).join(folder.as_str());
        if ![self.store.base(), &self.store.base().join(day), &dir]
            .into_iter()
            .all(place::is_real_dir)
        {
            return self.day(day);
        }
        // A change of anything that belongs to a message is a change of the message.
        let end = if rest.len() == 1 && place::is_text(name) { "" } else { ".txt" };
        let path = format!("{day}/{}/{name}{end}", folder.as_str());
        let seen = self.look(&path, None);
        self.file(&path, seen);
    }

    fn everything(&mut self) -> Result<(), StoreError> {
        let base = self.store.base();
        let mut odd = Vec::new();
        let days = match std::fs::symlink_metadata(base) {
            Ok(meta) if meta.is_dir() => place::days(base, &mut |line| odd.push(line))
                .map_err(|e| StoreError::io(base, e))?,
            Ok(meta) => {
                odd.push(no_folder(base, meta.file_type()));
                Vec::new()
            }
            // What was in it stays: it was moved away, its disk unmounted, or it is made anew.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                let above = base.parent().unwrap_or(base).to_string_lossy();
                let line = format!("{}, the mailbox_dir, is not a folder", one_line(&above));
                self.store.trouble.write().insert(String::new(), vec![line]);
                return Ok(());
            }
            Err(e) => return Err(StoreError::io(base, e)),
        };
        let mut trouble = self.store.trouble.write();
        trouble.clear();
        trouble.insert(String::new(), odd);
        drop(trouble);
        self.store.layout.write().clear();
        self.all = true;
        for day in days {
            self.day(&day);
        }
        Ok(())
    }

    fn day(&mut self, day: &str) {
        for folder in Folder::ALL {
            self.folder(day, folder);
        }
    }

    /// Lists one folder of messages.
    fn folder(&mut self, day: &str, folder: Folder) {
        let inside = format!("{day}/{}", folder.as_str());
        let above = self.store.base().join(day);
        let dir = above.join(folder.as_str());
        let mut trouble = Vec::new();
        let looked = std::fs::symlink_metadata(&above)
            .and_then(|above| Ok((above.is_dir(), std::fs::symlink_metadata(&dir)?)));
        let entries = match looked {
            Ok((true, meta)) if meta.is_dir() => std::fs::read_dir(&dir).map(Some),
            Ok((_, meta)) if meta.is_dir() => Ok(None),
            Ok((_, meta)) => {
                let what = fs::describe(meta.file_type());
                trouble.push(format!("{inside} is skipped: it is {what}, not a folder"));
                Ok(None)
            }
            Err(e) if fs::is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        };
        match entries {
            Ok(Some(entries)) => {
                self.store.lay_out(day, folder, true);
                self.listed.insert(inside.clone());
                self.entries(&inside, entries, &mut trouble);
            }
            Ok(None) => {
                self.store.lay_out(day, folder, false);
                self.listed.insert(inside.clone());
            }
            Err(e) => {
                self.store.lay_out(day, folder, true);
                trouble.push(format!("{inside} cannot be read: {e}"));
                self.store.fault.note(&e);
                self.keep(&inside);
            }
        }
        let mut all = self.store.trouble.write();
        if trouble.is_empty() {
            all.remove(&inside);
        } else {
            all.insert(inside, trouble);
        }
    }

    fn entries(&mut self, inside: &str, entries: std::fs::ReadDir, trouble: &mut Vec<String>) {
        let mut files = Vec::new();
        let mut others: HashSet<String> = HashSet::new();
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    trouble.push(format!("{inside} cannot be read to its end: {e}"));
                    self.store.fault.note(&e);
                    self.keep(inside);
                    continue;
                }
            };
            match entry.file_name().into_string() {
                Ok(name) if place::is_text(&name) => files.push(name),
                Ok(name) => {
                    others.insert(name);
                }
                Err(name) => {
                    let name = name.to_string_lossy();
                    let name = one_line(&name);
                    trouble.push(format!("{inside}/{name} is skipped: its name is not UTF-8"));
                }
            }
        }
        files.sort_unstable();
        for names in files.chunks(TOGETHER) {
            // Reading and checking signatures is what takes time; what follows from it has an order.
            let looks = parallel::map(names, |name| {
                let stem = name.strip_suffix(".txt").unwrap_or_default();
                let path = format!("{inside}/{name}");
                let seen = self.look(&path, Some(others.contains(stem)));
                (path, seen)
            });
            for (path, seen) in looks {
                self.file(&path, seen);
                self.seen.insert(path);
            }
        }
    }

    /// What was seen in a folder before stays.
    fn keep(&mut self, inside: &str) {
        let table = self.store.table.read();
        let start = format!("{inside}/");
        let kept = table.rows().iter().filter(|row| row.path.starts_with(&start));
        self.seen.extend(kept.map(|row| row.path.to_string()));
        self.listed.insert(inside.to_owned());
    }

    /// Looks at one file, and reads it if it is not what it was. `has_parts`: whether there is
    /// something that may be its attachments.
    fn look(&self, path: &str, has_parts: Option<bool>) -> Seen {
        let full = self.store.base().join(path);
        let meta = match std::fs::symlink_metadata(&full) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Seen::Gone,
            Err(e) => return Seen::Unread(Stamp::default(), e),
        };
        let stamp = Stamp::from(&meta);
        let state = match has_parts {
            Some(false) => Ok((0, false)),
            _ => parts::state(&place::parts_dir(&full)),
        };
        let (parts, any) = match state {
            Ok(state) => state,
            Err(e) => return Seen::Unread(stamp, e),
        };
        {
            let table = self.store.table.read();
            let row = table.find(path).and_then(|n| table.row(n));
            if row.is_some_and(|r| r.stamp == stamp && r.parts == parts && r.state != State::Gone) {
                return Seen::Known;
            }
        }
        if !meta.is_file() {
            let what = fs::describe(meta.file_type());
            return Seen::Problem(stamp, format!("it is {what}, not a file"));
        }
        match self.open(path) {
            Ok(Some(mut parsed)) => {
                parsed.head.parts = any;
                Seen::Letter(parts, Box::new(parsed))
            }
            Ok(None) => Seen::Gone,
            Err(e) => Seen::Unread(stamp, e),
        }
    }

    /// Notes what was seen of a file.
    fn file(&mut self, path: &str, seen: Seen) {
        self.store.set_trouble(path, None);
        match seen {
            Seen::Known => {}
            Seen::Gone => self.gone(path),
            Seen::Problem(stamp, why) => self.problem(path, stamp, why),
            Seen::Unread(stamp, error) => self.unread(path, stamp, &error),
            Seen::Letter(parts, parsed) => {
                let age = Timestamp::now().millis().saturating_sub(on_disk(&parsed.stamp).millis());
                if parsed.head.unfinished && (-YOUNG_MS..YOUNG_MS).contains(&age) {
                    self.young.insert(path.to_owned());
                } else {
                    self.letter(path, parts, *parsed);
                }
            }
        }
    }

    fn open(&self, path: &str) -> io::Result<Option<Parsed>> {
        let Some(place) = Place::parse(path) else { return Ok(None) };
        match letter::open(&self.store.base().join(path), &place, self.store.zone()) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Gives files that look half-written the time to be finished.
    fn wait_for_young(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.young.is_empty() {
            let over = Instant::now() >= deadline;
            for path in std::mem::take(&mut self.young) {
                match self.open(&path) {
                    Ok(Some(parsed)) if parsed.head.unfinished && !over => {
                        self.young.insert(path);
                    }
                    Ok(Some(mut parsed)) => {
                        let folder = place::parts_dir(&self.store.base().join(&path));
                        match parts::state(&folder) {
                            Ok((parts, any)) => {
                                parsed.head.parts = any;
                                self.letter(&path, parts, parsed);
                            }
                            Err(e) => self.unread(&path, parsed.stamp, &e),
                        }
                    }
                    Ok(None) => self.gone(&path),
                    Err(e) => self.unread(&path, Stamp::default(), &e),
                }
            }
            if !self.young.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn letter(&mut self, path: &str, parts: u64, parsed: Parsed) {
        let stamp = parsed.stamp;
        let grown = self.is_completed(path, &parsed);
        if parsed.len == 0 {
            let state = State::Problem { reason: "the file is empty".into(), incomplete: true };
            return self.change(path, stamp, parts, state);
        }
        let head = Box::new(parsed.head.clone());
        if let Some(why) = self.refusal(path, &head) {
            return self.change(path, stamp, parts, State::Refused(head, why.into()));
        }
        self.kept = self.kept.saturating_add(stamp.size);
        if self.kept <= KEPT {
            self.fresh.insert(path.to_owned(), parsed.found(&self.store.me));
        }
        let (path, state) = (path.to_owned(), State::Letter(head));
        self.changes.insert(path.clone(), Change { path, stamp, parts, state, grown });
    }

    /// Whether a known file has only grown while its writer was not finished: then it is still the same
    /// message. Any other change of the text makes another one.
    fn is_completed(&self, path: &str, parsed: &Parsed) -> bool {
        let (before, stamp) = {
            let table = self.store.table.read();
            let Some(row) = table.find(path).and_then(|n| table.row(n)) else { return false };
            let State::Letter(head) = &row.state else { return false };
            if head.text == parsed.head.text {
                return false;
            }
            (head.clone(), row.stamp)
        };
        let still = i128::from(mark::STILL_MS) * 1_000_000;
        let young = (0..still).contains(&parsed.stamp.mtime.saturating_sub(stamp.mtime));
        // A mark that was taken away says that somebody put a new message here.
        let may = (before.unfinished || young) && (parsed.head.read || !before.read);
        may && letter::load(&self.store.base().join(path))
            .is_ok_and(|(_, bytes)| letter::has_grown(&bytes, &before.file, stamp.size))
    }

    /// Why the address filter keeps a message out. My own mail to myself needs no permission.
    fn refusal(&mut self, path: &str, head: &letter::Head) -> Option<String> {
        if Place::parse(path)?.folder != Folder::Inbox {
            return None;
        }
        let why = self.store.settings.read().filters.refuses(&head.from)?;
        if *head.from == *self.store.me && head.key.is_some() {
            let base = self.store.base();
            let read = || key::read(base).ok().flatten().map(|seed| seed.public_key().0);
            if Some(*self.my_key.get_or_insert_with(|| read().unwrap_or_default())) == head.key {
                return None;
            }
        }
        Some(why)
    }

    fn problem(&mut self, path: &str, stamp: Stamp, reason: String) {
        let state = State::Problem { reason: reason.into(), incomplete: false };
        self.change(path, stamp, 0, state);
    }

    /// A file that cannot be read. What it was before, it still is; one never read before is no
    /// message, unless that may pass.
    fn unread(&mut self, path: &str, stamp: Stamp, error: &io::Error) {
        let known = {
            let table = self.store.table.read();
            table.find(path).and_then(|n| table.row(n)).is_some_and(|r| r.state.head().is_some())
        };
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        if fs::may_pass(error) || known && denied {
            self.store.fault.note(error);
            self.store.set_trouble(path, Some(format!("{path} cannot be read now: {error}")));
        } else {
            self.problem(path, stamp, format!("it cannot be read: {error}"));
        }
    }

    fn gone(&mut self, path: &str) {
        if fs::is_away(self.store.base()) {
            return;
        }
        let there = {
            let table = self.store.table.read();
            table.find(path).and_then(|n| table.row(n)).is_some_and(|r| r.state != State::Gone)
        };
        self.changes.remove(path);
        if there {
            self.change(path, Stamp::default(), 0, State::Gone);
        }
    }

    fn change(&mut self, path: &str, stamp: Stamp, parts: u64, state: State) {
        let change = Change { path: path.to_owned(), stamp, parts, state, grown: false };
        self.changes.insert(path.to_owned(), change);
    }

    /// Files that were in a listed folder and are not any more.
    fn missing(&mut self) {
        if self.listed.is_empty() && !self.all {
            return;
        }
        let gone: Vec<String> = {
            let table = self.store.table.read();
            let there = table.rows().iter().filter(|row| row.state != State::Gone);
            there
                .filter(|row| {
                    let folder = row.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let listed = self.listed.contains(folder);
                    !self.seen.contains(&*row.path) && (listed || self.all)
                })
                .map(|row| row.path.to_string())
                .collect()
        };
        for path in gone {
            if !self.changes.contains_key(&path) {
                self.gone(&path);
            }
        }
    }

    /// Applies a changed address filter to what is known.
    fn judge_again(&mut self) {
        let rows: Vec<Row> = self.store.table.read().rows().to_vec();
        for row in rows {
            if self.changes.contains_key(&*row.path) {
                continue;
            }
            let Some(head) = row.state.head().cloned().map(Box::new) else { continue };
            let state = match self.refusal(&row.path, &head) {
                Some(why) => State::Refused(head, why.into()),
                None => State::Letter(head),
            };
            if state != row.state {
                self.change(&row.path, row.stamp, row.parts, state);
            }
        }
    }
}

/// What is the matter with a mailbox that is not a folder, and what to do.
pub(super) fn no_folder(base: &Path, kind: std::fs::FileType) -> String {
    format!(
        "{} is {}, not a folder; a mailbox must be a folder: move it away, or put the folder it stands \
         for in its place",
        one_line(&base.to_string_lossy()),
        fs::describe(kind)
    )
}
