//! The one write to a log, and what follows from it (formats/atsf.md, sections 6, 8, 9 and 15).
//!
//! Under an exclusive `flock` of the log: a torn end is mended, one `write` appends the line, the disk
//! has it, `thread.json` gets its numbers, and msgfs keeps a copy. Each step happens once or not at
//! all, so an append made again after a crash does what is missing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::ids::print;
use super::line::{self, Line};
use super::log::{Tally, pieces, read_lines};
use super::roots::{AGENT, THREADS};
use super::table::{LOG, META};
use super::{Atsf, assets, create, edit, send, thread};
use crate::model::{Timestamp, one_line};
use crate::store::fs::{self, Stamp, require_regular};
use crate::store::place::Slot;
use crate::store::{Prepared, StoreError, below, json};

/// How long a lock is waited for: others have messages to send too.
const PATIENCE: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(10);
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
}

impl Atsf {
    pub(super) fn append_prepared(
        &self,
        message: &Prepared,
        refused: &mut HashMap<PathBuf, u64>,
    ) -> Result<(), StoreError> {
        let (text, meta) = send::unpack(&message.bytes);
        let told = line::parse(text)
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        // What another program removed is never put back.
        if self.kept.has(print(&told.role, &told.id)) {
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
        let file = lock(&folder, meta.is_some())?;
        let before = file.metadata().map_err(folder.failed(LOG))?.len();
        let mut tally = self.count(&folder, &file, Some((text, &told)))?;
        if !tally.seen {
            tally.append(&file, text, &told).map_err(folder.failed(LOG))?;
        }
        sync(&folder, &file, before, refused)?;
        rustix::fs::fsync(&folder.dir).map_err(|e| folder.failed(LOG)(e.into()))?;
        self.remember(&folder.path(LOG));
        self.remember(&folder.path(META));
        match meta.filter(|_| below::look(&folder.dir, META).is_err()) {
            Some(meta) => publish(&folder, meta, &tally.tally)?,
            None => self.settle_derived(&folder, &tally.tally),
        }
        // Last: what is kept is never looked at again.
        self.kept.add(&folder.key, self.title_of(&folder, meta).as_deref(), text)
    }

    fn title_of(&self, folder: &Folder, meta: Option<&str>) -> Option<String> {
        if let Some(meta) = meta {
            let thread::Reading::Thread(meta) = thread::read(meta.as_bytes()) else { return None };
            return meta.title;
        }
        self.table.read().get(folder.number?)?.title.clone()
    }

    /// The folder of a new thread, made if it is not there; of one that an append was interrupted in,
    /// that one.
    fn make_folder(&self, name: &str) -> Result<Folder, StoreError> {
        let root = self.project.clone();
        create::project_files(&root)?;
        let dir = below::make_dir(&root, &[AGENT, THREADS, name], 0o755)
            .map_err(|e| StoreError::io(&root.join(AGENT).join(THREADS).join(name), e))?;
        let number = self.table.read().find(0, name);
        Ok(Folder { root, name: name.to_owned(), key: name.to_owned(), number, dir })
    }

    /// The folder of a thread by its id as the mount has it.
    pub(super) fn known_folder(&self, key: &str) -> Result<Folder, StoreError> {
        let found = self.table.read().by_key(key);
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
        let (root, parts) = self.table.read().place(n)?;
        let dir = below::open_dir(&root, &parts.each_ref().map(String::as_str))
            .map_err(|e| StoreError::io(&parts.iter().fold(root.clone(), |p, s| p.join(s)), e))?;
        let [_, _, name] = parts;
        let key = self.table.read().get(n).map_or_else(|| name.clone(), super::table::Thread::key);
        Ok(Folder { root, name, key, number: Some(n), dir })
    }

    /// Whether messages may be appended to a thread.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] with the reason.
    pub(super) fn require_thread(folder: &Folder) -> Result<(), StoreError> {
        let shown = one_line(&folder.name);
        let no = |why: String| Err(StoreError::NotPermitted(why));
        let bytes = below::open_file(&folder.dir, META)
            .and_then(|file| below::read_whole(&file, thread::MAX_BYTES + 1))
            .map_err(folder.failed(META))?
            .1;
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
        let mut take = |text: &str, tally: &mut Tally| {
            if let Ok(line) = line::parse(text) {
                seen |= Some(print(&line.role, &line.id)) == mine;
                tally.count(&line, created);
            }
        };
        let read = read_lines(file, tally.offset, stamp.size, |run, offset| {
            for piece in pieces(run, offset) {
                tally.lines += 1;
                let bom = if piece.offset == 0 { line::BOM } else { '\n' };
                take(piece.text.trim_start_matches(bom), &mut tally);
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
    ) -> (Tally, bool, Timestamp) {
        let table = self.table.read();
        let Some((n, thread)) = folder.number.and_then(|n| Some((n, table.get(n)?))) else {
            return (Tally::default(), false, Timestamp::default());
        };
        let created = Timestamp::from_millis(thread.created);
        let same = thread.log.is_some_and(|log| log.same_file(stamp));
        if !same || thread.epoch == 0 || !thread.tally.fits(file, stamp.size) {
            return (Tally::default(), false, created);
        }
        let seen = !thread.tail && looked_for.is_some_and(|print| table.ids.has_in(print, n));
        (thread.tally, seen, created)
    }

    /// Brings the derived members of a thread up to date; what fails is tried again later, for the
    /// message itself is safe.
    fn settle_derived(&self, folder: &Folder, tally: &Tally) {
        if let Err(e) = write_derived(folder, tally) {
            tracing::warn!(store = self.name, error = %e, "the numbers in thread.json are not up to date");
            self.stale.lock().extend(folder.number);
        }
    }

    /// Does again what [`Atsf::settle_derived`] could not.
    pub(super) fn refresh_stale(&self) -> Result<bool, StoreError> {
        let stale: Vec<u32> = self.stale.lock().iter().copied().collect();
        for n in &stale {
            match self.refresh_derived(*n) {
                Err(e @ StoreError::Busy(_)) => return Err(e),
                Err(e) => {
                    // It is gone, or nobody's to mend; `msgfs check` tells of it.
                    tracing::warn!(store = self.name, error = %e, "thread.json stays as it is");
                }
                Ok(()) => {}
            }
            self.stale.lock().remove(n);
        }
        Ok(!stale.is_empty())
    }

    fn refresh_derived(&self, n: u32) -> Result<(), StoreError> {
        let folder = self.folder(n)?;
        let file = lock(&folder, false)?;
        let counted = self.count(&folder, &file, None)?;
        write_derived(&folder, &counted.tally).map(drop)
    }
}

/// A log as it was counted under its lock.
pub(super) struct Counted {
    pub tally: Tally,
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
    fn append(&mut self, mut file: &File, text: &str, line: &Line<'_>) -> io::Result<()> {
        if self.torn {
            let lost = self.size - self.tally.offset;
            tracing::warn!(bytes = lost, "a log ended in half a line, which is cut off");
            file.set_len(self.tally.offset)?;
            self.size = self.tally.offset;
        }
        let mut bytes = Vec::with_capacity(text.len() + 2);
        if self.open {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
        let written = loop {
            match file.write(&bytes) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if written < bytes.len() {
            // Nobody else appends while the lock is held.
            file.set_len(self.size)?;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.tally.count(line, Timestamp::default());
        Ok(())
    }
}

/// Waits until what was appended behind `before` is on disk, and what it had refused earlier.
fn sync(
    folder: &Folder,
    file: &File,
    before: u64,
    refused: &mut HashMap<PathBuf, u64>,
) -> Result<(), StoreError> {
    let (path, io) = (folder.path(LOG), folder.failed(LOG));
    if let Some(from) = refused.get(&path) {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let again = rustix::fs::openat(&folder.dir, LOG, flags, Mode::empty());
        let again = File::from(again.map_err(|e| io(e.into()))?);
        require_regular(&again).and_then(|()| fs::write_again(&again, *from)).map_err(&io)?;
    }
    if let Err(e) = file.sync_data() {
        refused.entry(path).or_insert(before);
        return Err(io(e));
    }
    refused.remove(&path);
    Ok(())
}

/// Opens and locks the log of a thread.
///
/// # Errors
/// [`StoreError::Busy`] if another program holds the lock.
pub(super) fn lock(folder: &Folder, create: bool) -> Result<File, StoreError> {
    let io = folder.failed(LOG);
    let give_up = Instant::now() + PATIENCE;
    let mut flags =
        OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if create {
        flags |= OFlags::CREATE;
    }
    loop {
        let opened = rustix::fs::openat(&folder.dir, LOG, flags, Mode::from_raw_mode(FILE_MODE));
        let file = File::from(opened.map_err(|e| io(e.into()))?);
        require_regular(&file).map_err(&io)?;
        let locked = loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break true,
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < give_up => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => break false,
                Err(e) => return Err(io(e.into())),
            }
        };
        let same = below::look(&folder.dir, LOG).map_err(&io)?.1;
        if locked && same.same_file(&Stamp::of(&file).map_err(&io)?) {
            return Ok(file);
        }
        // Replaced while it was waited for, or still locked.
        if Instant::now() >= give_up {
            return Err(StoreError::Busy(format!(
                "another program holds the lock of {}; it is tried again",
                one_line(&folder.path(LOG).to_string_lossy())
            )));
        }
    }
}

/// The time that `updatedAt` repeats.
pub(super) fn updated(tally: &Tally) -> Option<Timestamp> {
    tally.last_time.map(Timestamp::from_millis)
}

/// Brings the derived members of `thread.json` up to date; whether they were not.
pub(super) fn write_derived(folder: &Folder, tally: &Tally) -> Result<bool, StoreError> {
    let io = folder.failed(META);
    for _ in 0..3 {
        let file = below::open_file(&folder.dir, META).map_err(&io)?;
        let mode = rustix::fs::fstat(&file).map_err(|e| io(e.into()))?.st_mode & 0o777;
        let (stamp, bytes) = below::read_whole(&file, thread::MAX_BYTES + 1).map_err(&io)?;
        let edited = edit::set_derived(&bytes, &tally.stats, updated(tally))
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
fn publish(folder: &Folder, meta: &str, tally: &Tally) -> Result<(), StoreError> {
    let edited = edit::set_derived(meta.as_bytes(), &tally.stats, updated(tally));
    let bytes = edited.ok().flatten().unwrap_or_else(|| meta.as_bytes().to_vec());
    let placed = Slot::new(&folder.dir, META).fill(FILE_MODE, |file| file.write_all(&bytes));
    placed.map_err(folder.failed(META))?;
    fs::sync(&folder.dir).map_err(folder.failed(META))
}
