//! The one write to a log, and what follows from it.
//!
//! Under an exclusive `flock` of the log: a torn end is mended, one `write` appends the line, the disk
//! has it, `thread.json` gets its numbers, and msgfs keeps a copy. Each step happens once or not at
//! all, so an append made again after a crash does what is missing.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::ids::print;
use super::line::{self, Counts, Line};
use super::roots::{AGENT, THREADS};
use super::{Atsf, LOG, META, Threads, assets, create, edit, head, send, thread};
use crate::model::{Timestamp, one_line};
use crate::store::engine::lines::append::{Spot, write_line};
use crate::store::engine::lines::log::{Run, Tally, pieces, read_lines};
use crate::store::engine::lines::{Facts as _, Format as _};
use crate::store::fs::{self, Stamp};
use crate::store::place::Slot;
use crate::store::text::json;
use crate::store::{Deliveries, Prepared, StoreError, below};

const FILE_MODE: u32 = 0o644;

/// A thread's folder, open.
pub(super) struct Folder {
    pub root: PathBuf,
    pub name: String,
    /// The thread as the mount has it.
    pub key: String,
    /// Its number, if it was seen before.
    pub number: Option<u32>,
    pub dir: OwnedFd,
}

impl Folder {
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(AGENT).join(THREADS).join(&self.name).join(file)
    }

    fn parts(&self) -> [&str; 3] {
        [AGENT, THREADS, &self.name]
    }

    fn failed(&self, file: &str) -> impl Fn(io::Error) -> StoreError + use<> {
        let path = self.path(file);
        move |e| StoreError::io(&path, e)
    }

    /// Opens and locks the log.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another program holds the lock.
    pub fn lock(&self, create: bool) -> Result<File, StoreError> {
        Spot { dir: &self.dir, name: LOG, path: &self.path(LOG) }.lock(create)
    }
}

impl Deliveries for Atsf {
    /// Does again what [`Atsf::settle_derived`] could not.
    fn deliver(&self) -> Result<bool, StoreError> {
        let _one = self.appending.lock();
        let stale: Vec<u32> = self.format.stale.lock().iter().copied().collect();
        for n in &stale {
            match self.refresh_derived(*n) {
                Err(e @ StoreError::Busy(_)) => return Err(e),
                Err(e) => {
                    // It is gone, or nobody's to mend; `msgfs check` tells of it.
                    tracing::warn!(store = %self.about.dir.display(), error = %e, "thread.json \
                        could not be brought up to date");
                }
                Ok(()) => {}
            }
            self.format.stale.lock().remove(n);
        }
        Ok(!stale.is_empty())
    }

    fn written(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

impl Atsf {
    pub(super) fn append_prepared(&self, message: &Prepared) -> Result<(), StoreError> {
        let mut unsynced = self.appending.lock();
        let (text, meta) = send::unpack(&message.bytes);
        let told = line::parse(text)
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        // What another program removed is never put back.
        if self.format.kept.has(print(&told.role, &told.id)) {
            return Ok(());
        }
        let folder = match meta {
            Some(_) => self.make_folder(&message.thread)?,
            None => self.known_folder(&message.thread)?,
        };
        if meta.is_none() {
            Self::require_thread(&folder)?;
        }
        for (file, name) in message.files.iter().zip(send::references(&told)) {
            assets::put(&folder.root, &folder.parts(), &name, file)?;
        }
        let file = folder.lock(meta.is_some())?;
        let before = Stamp::of(&file).map_err(folder.failed(LOG))?;
        let mut tally = self.count(&folder, &file, Some((text, &told)))?;
        if !tally.seen {
            tally.append(&file, text, &told).map_err(folder.failed(LOG))?;
        }
        // The lock is held until the disk has it.
        let path = folder.path(LOG);
        unsynced.add(&path, true, before.size, before);
        unsynced.sync(&Spot { dir: &folder.dir, name: LOG, path: &path })?;
        self.remember(&path);
        self.remember(&folder.path(META));
        match meta.filter(|_| below::look(&folder.dir, META).is_err()) {
            Some(meta) => publish(&folder, meta, &tally.tally)?,
            None => self.settle_derived(&folder, &tally.tally),
        }
        // Last: what is kept is never looked at again.
        self.format.kept.add(&folder.key, self.title_of(&folder, meta).as_deref(), text)
    }

    fn title_of(&self, folder: &Folder, meta: Option<&str>) -> Option<String> {
        if let Some(meta) = meta {
            let thread::Reading::Thread(meta) = thread::read(meta.as_bytes()) else { return None };
            return meta.title;
        }
        self.table.read().get(folder.number?)?.facts.title.clone()
    }

    /// The folder of a new thread, made if it is not there; of one that an append was interrupted in,
    /// that one.
    fn make_folder(&self, name: &str) -> Result<Folder, StoreError> {
        let root = self.about.dir.clone();
        create::project_files(&root)?;
        let dir = below::make_dir(&root, &[AGENT, THREADS, name], 0o755)
            .map_err(|e| StoreError::io(&root.join(AGENT).join(THREADS).join(name), e))?;
        let number = self.table.read().find(0, name);
        Ok(Folder { root, name: name.to_owned(), key: name.to_owned(), number, dir })
    }

    /// The folder of a thread by its id as the mount has it.
    pub(super) fn known_folder(&self, key: &str) -> Result<Folder, StoreError> {
        let found = head::by_key(&self.table.read(), key);
        let unknown = || {
            StoreError::Invalid(format!(
                "Thread: there is no thread {:?} in this project; without a Thread line, a line \
                 `Subject: …` begins a new one",
                one_line(key)
            ))
        };
        self.folder(found.ok_or_else(unknown)?)
    }

    pub(super) fn folder(&self, n: u32) -> Result<Folder, StoreError> {
        let (name, key) = {
            let table = self.table.read();
            let log = table.get(n).ok_or(StoreError::Moved)?;
            (log.name.clone(), Threads::key(log))
        };
        let (root, parts) = self.table.read().place(n)?;
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        let dir = below::open_dir(&root, &names)
            .map_err(|e| StoreError::io(&parts.iter().fold(root.clone(), |p, s| p.join(s)), e))?;
        Ok(Folder { root, name, key, number: Some(n), dir })
    }

    /// Whether messages may be appended to a thread.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] with the reason.
    pub(super) fn require_thread(folder: &Folder) -> Result<(), StoreError> {
        let shown = one_line(&folder.name);
        let no = |why: String| Err(StoreError::NotPermitted(why));
        let (_, bytes) = head::read(&folder.dir).map_err(folder.failed(META))?;
        match thread::read(&bytes) {
            thread::Reading::Thread(meta) if meta.id.as_deref() == Some(&folder.name) => {}
            thread::Reading::Thread(meta) => {
                return no(format!(
                    "the folder {shown} holds a thread.json of the thread {:?}; nothing is written \
                     there",
                    one_line(&meta.id.unwrap_or_default())
                ));
            }
            thread::Reading::Refused(why) => return no(format!("the thread {shown}: {why}")),
            thread::Reading::Foreign | thread::Reading::Broken(_) => {
                return no(format!("the thread.json of the thread {shown} cannot be read"));
            }
        }
        match below::look(&folder.dir, LOG) {
            Ok((rustix::fs::FileType::RegularFile, _)) => Ok(()),
            Ok((kind, _)) => no(format!(
                "the log of the thread {shown} is {}, not a file",
                below::describe_type(kind)
            )),
            Err(_) => no(format!(
                "the log is not here: of the thread {shown} this copy of the project has only \
                 thread.json"
            )),
        }
    }

    /// Counts a locked log, mending nothing yet.
    pub(super) fn count(
        &self,
        folder: &Folder,
        file: &File,
        looked_for: Option<(&str, &Line<'_>)>,
    ) -> Result<Counted, StoreError> {
        let io = folder.failed(LOG);
        let stamp = Stamp::of(file).map_err(&io)?;
        let mine = looked_for.map(|(_, line)| print(&line.role, &line.id));
        let (mut tally, mut seen, created) = self.known_tally(folder, file, &stamp, mine);
        let mut take = |text: &str, tally: &mut Tally<Counts>| {
            if let Ok(line) = line::parse(text) {
                seen |= Some(print(&line.role, &line.id)) == mine;
                line::count(tally, &line, created);
            }
        };
        let read = read_lines(file, tally.offset, stamp.size, |run| {
            let Run::Lines(run, offset) = run else { return tally.lines += 1 };
            for piece in pieces(run, offset) {
                tally.lines += 1;
                take(piece.unmarked().0, &mut tally);
            }
        });
        let (offset, tail) = read.map_err(&io)?;
        tally.offset = offset;
        let text = String::from_utf8_lossy(&tail);
        let whole = json::members(&text, |_, _| {}).is_ok();
        if whole {
            take(&text, &mut tally);
        }
        Ok(Counted { tally, size: stamp.size, seen, torn: !tail.is_empty() && !whole, open: whole })
    }

    /// What was counted of a log when it was scanned, if it still begins so; whether a message is in
    /// that part; and when the thread was made.
    fn known_tally(
        &self,
        folder: &Folder,
        file: &File,
        stamp: &Stamp,
        looked_for: Option<u64>,
    ) -> (Tally<Counts>, bool, Timestamp) {
        let table = self.table.read();
        let Some((n, log)) = folder.number.and_then(|n| Some((n, table.get(n)?))) else {
            return (Tally::default(), false, Timestamp::default());
        };
        let created = log.facts.begun();
        let same = log.stamp.is_some_and(|seen| seen.same_file(stamp));
        if !same || !log.tally.fits(file, stamp.size) {
            return (Tally::default(), false, created);
        }
        let seen = !log.tail && looked_for.is_some_and(|print| table.shared.has_in(print, n));
        (log.tally, seen, created)
    }

    /// Brings the derived members of a thread up to date; what fails is tried again later, for the
    /// message itself is safe.
    fn settle_derived(&self, folder: &Folder, tally: &Tally<Counts>) {
        if let Err(e) = write_derived(folder, tally) {
            tracing::warn!(store = %self.about.dir.display(), error = %e, "the numbers in thread.json are not up to date");
            self.format.stale.lock().extend(folder.number);
        }
    }

    fn refresh_derived(&self, n: u32) -> Result<(), StoreError> {
        let folder = self.folder(n)?;
        let file = folder.lock(false)?;
        let counted = self.count(&folder, &file, None)?;
        write_derived(&folder, &counted.tally).map(drop)
    }
}

/// A log as it was counted under its lock.
pub(super) struct Counted {
    pub tally: Tally<Counts>,
    size: u64,
    /// The message that was looked for is in it.
    seen: bool,
    /// It ends in something that is no object and has no newline.
    torn: bool,
    /// It ends in an object without a newline.
    open: bool,
}

impl Counted {
    /// Appends a line with one `write`, after the end was mended.
    fn append(&mut self, file: &File, text: &str, line: &Line<'_>) -> io::Result<()> {
        if self.torn {
            let lost = self.size - self.tally.offset;
            tracing::warn!(bytes = lost, "a log ended in half a line, which msgfs removed");
            file.set_len(self.tally.offset)?;
            self.size = self.tally.offset;
        }
        write_line(file, self.size, self.open, text)?;
        line::count(&mut self.tally, line, Timestamp::default());
        Ok(())
    }
}

/// The time that `updatedAt` repeats.
pub(super) fn updated(tally: &Tally<Counts>) -> Option<Timestamp> {
    tally.last_time.map(Timestamp::from_millis)
}

/// Brings the derived members of `thread.json` up to date; whether they were not.
pub(super) fn write_derived(folder: &Folder, tally: &Tally<Counts>) -> Result<bool, StoreError> {
    let io = folder.failed(META);
    for _ in 0..3 {
        let file = below::open_file(&folder.dir, META).map_err(&io)?;
        let mode = rustix::fs::fstat(&file).map_err(|e| io(e.into()))?.st_mode & 0o777;
        let (stamp, bytes) = below::read_whole(&file, thread::MAX_BYTES + 1).map_err(&io)?;
        let edited = edit::set_derived(&bytes, &tally.count.stats, updated(tally))
            .map_err(|why| StoreError::NotPermitted(format!("thread.json is left alone: {why}")))?;
        let Some(edited) = edited else { return Ok(false) };
        if below::look(&folder.dir, META).map_err(&io)?.1 == stamp {
            Slot::new(&folder.dir, META).overwrite(mode, &edited).map_err(&io)?;
            fs::sync(&folder.dir).map_err(&io)?;
            return Ok(true);
        }
    }
    Err(StoreError::Busy("thread.json is changed again and again by another program".into()))
}

/// Gives a new thread its `thread.json`, which makes it one.
fn publish(folder: &Folder, meta: &str, tally: &Tally<Counts>) -> Result<(), StoreError> {
    let edited = edit::set_derived(meta.as_bytes(), &tally.count.stats, updated(tally));
    let bytes = edited.ok().flatten().unwrap_or_else(|| meta.as_bytes().to_vec());
    let placed = Slot::new(&folder.dir, META).fill(FILE_MODE, |file| file.write_all(&bytes));
    placed.map_err(folder.failed(META))?;
    fs::sync(&folder.dir).map_err(folder.failed(META))
}
