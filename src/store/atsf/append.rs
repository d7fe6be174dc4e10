//! The one write to a log, and the updates after it.
//!
//! Under an exclusive `flock` of the log, a torn tail is repaired, one `write` appends the line, the disk has it,
//! `thread.json` gets its numbers, and msgfs keeps a copy. Each step happens once or not at all, so a repeated append
//! after a crash does the missing steps.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::ids::hash_id;
use super::line::{self, AtsfCounts, AtsfLine};
use super::roots::{AGENT, THREADS};
use super::{
    AtsfFormat, AtsfStore, LOG, META, assets, edit, project_files, send, thread, thread_facts,
};
use crate::model::{Timestamp, sanitize_line};
use crate::store::atomic_file::FileSlot;
use crate::store::engine::lines::append::{LogPath, append_line, has_final_newline};
use crate::store::engine::lines::log::{LineRun, LogCursor, LogLine, read_lines, split_lines};
use crate::store::engine::lines::{LineFormat as _, LogFacts as _};
use crate::store::fs::{self, Stamp};
use crate::store::text::json;
use crate::store::{DeliveryQueue, PreparedRecord, Store as _, StoreError, confined};

const FILE_MODE: u32 = 0o644;

/// An open folder of a thread.
pub(super) struct AtsfThreadFolder {
    pub root: PathBuf,
    pub name: String,
    /// The thread's id in the mount.
    pub key: String,
    /// The thread's number, if it was seen before.
    pub number: Option<u32>,
    pub dir: OwnedFd,
}

impl AtsfThreadFolder {
    pub fn file_path(&self, file: &str) -> PathBuf {
        self.root.join(AGENT).join(THREADS).join(&self.name).join(file)
    }

    fn path_parts(&self) -> [&str; 3] {
        [AGENT, THREADS, &self.name]
    }

    fn file_error(&self, file: &str) -> impl Fn(io::Error) -> StoreError + use<> {
        let path = self.file_path(file);
        move |e| StoreError::io(&path, e)
    }

    /// Opens and locks the log.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another program holds the lock.
    pub fn lock_log(&self, create: bool) -> Result<File, StoreError> {
        LogPath { dir: &self.dir, name: LOG, path: &self.file_path(LOG) }.open_locked(create)
    }
}

impl DeliveryQueue for AtsfStore {
    /// Retries the updates that `settle_derived` could not do. A locked thread delays no other one.
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        let _one = self.reader.appending.lock();
        let stale: Vec<u32> = self.format.stale_threads.lock().iter().copied().collect();
        let mut busy = None;
        for n in &stale {
            match self.refresh_derived(*n) {
                Err(e @ StoreError::Busy(_)) => {
                    busy = Some(e);
                    continue;
                }
                Err(e) => {
                    // The thread is gone, or msgfs may not mend it; `msgfs check` reports it.
                    tracing::warn!(store = %self.properties.dir.display(), error = %e, "thread.json \
                        could not be brought up to date");
                }
                Ok(()) => {}
            }
            self.format.stale_threads.lock().remove(n);
        }
        busy.map_or(Ok(!stale.is_empty()), Err)
    }
}

impl AtsfStore {
    pub(super) fn append_prepared(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        let mut unsynced = self.reader.appending.lock();
        let (text, meta) = send::split_prepared(&message.bytes);
        let told = line::parse(text)
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        // A message that another program removed is never appended again.
        if self.format.sent_log.has_message(hash_id(&told.role, &told.id)) {
            return Ok(());
        }
        let folder = match meta {
            Some(_) => self.make_thread_folder(&message.thread)?,
            None => self.find_thread_folder(&message.thread)?,
        };
        if meta.is_none() {
            Self::require_appendable(&folder)?;
        }
        for (file, name) in message.files.iter().zip(send::list_asset_references(&told)) {
            assets::store_asset(&folder.root, &folder.path_parts(), &name, file)?;
        }
        let file = folder.lock_log(meta.is_some())?;
        let before = Stamp::from_file(&file).map_err(folder.file_error(LOG))?;
        let mut tally = self.count_log(&folder, &file, Some((text, &told)))?;
        if !tally.has_message {
            tally.append_line(&file, text, &told).map_err(folder.file_error(LOG))?;
        }
        // The lock is held until the line is on disk.
        let path = folder.file_path(LOG);
        unsynced.note_append(&path, before.size, before);
        unsynced.sync_log(&LogPath { dir: &folder.dir, name: LOG, path: &path })?;
        self.note_change(&path);
        self.note_change(&folder.file_path(META));
        match meta.filter(|_| confined::stat(&folder.dir, META).is_err()) {
            Some(meta) => publish_thread(&folder, meta, &tally.tally)?,
            None => self.settle_derived(&folder, &tally.tally),
        }
        // This is the last step: a message in the sent log is never appended again.
        self.format.sent_log.append_record(
            &folder.key,
            self.find_title(&folder, meta).as_deref(),
            text,
        )
    }

    /// Returns the title of a thread, or of the `thread.json` with which it begins.
    pub(super) fn find_title(
        &self,
        folder: &AtsfThreadFolder,
        meta: Option<&str>,
    ) -> Option<String> {
        if let Some(meta) = meta {
            let thread::AtsfThreadFile::Thread(meta) = thread::parse(meta.as_bytes()) else {
                return None;
            };
            return meta.title;
        }
        self.table.read().get(folder.number?)?.facts.title.clone()
    }

    /// Makes the folder of a new thread, or opens the one of an interrupted append.
    fn make_thread_folder(&self, name: &str) -> Result<AtsfThreadFolder, StoreError> {
        let root = self.properties.dir.clone();
        project_files::create_project_files(&root)?;
        let dir = confined::make_dir(&root, &[AGENT, THREADS, name], 0o755)
            .map_err(|e| StoreError::io(&root.join(AGENT).join(THREADS).join(name), e))?;
        let number = self.table.read().find_log(0, name);
        Ok(AtsfThreadFolder { root, name: name.to_owned(), key: name.to_owned(), number, dir })
    }

    /// Opens the folder of a thread by its id in the mount.
    pub(super) fn find_thread_folder(&self, key: &str) -> Result<AtsfThreadFolder, StoreError> {
        let found = thread_facts::find_thread(&self.table.read(), key);
        let unknown = || {
            StoreError::Invalid(format!(
                "Thread: there is no thread {:?} in this project; without a Thread line, a line \
                 `Subject: …` begins a new one",
                sanitize_line(key)
            ))
        };
        let n = found.ok_or_else(unknown)?;
        let kept = self.table.read().get(n).and_then(|log| log.facts.kept.clone());
        if let Some(source) = kept {
            return Err(StoreError::NotPermitted(format!(
                "the thread {} was kept from a session of {}; nobody reads what is written there",
                sanitize_line(key),
                source.kind
            )));
        }
        self.open_thread_folder(n)
    }

    pub(super) fn open_thread_folder(&self, n: u32) -> Result<AtsfThreadFolder, StoreError> {
        let (name, key) = {
            let table = self.table.read();
            let log = table.get(n).ok_or(StoreError::Moved)?;
            (log.name.clone(), AtsfFormat::log_key(log))
        };
        let (root, parts) = self.table.read().log_folder_path(n)?;
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        let dir = confined::open_dir(&root, &names)
            .map_err(|e| StoreError::io(&parts.iter().fold(root.clone(), |p, s| p.join(s)), e))?;
        Ok(AtsfThreadFolder { root, name, key, number: Some(n), dir })
    }

    /// Checks that messages may be appended to a thread.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] with the reason.
    pub(super) fn require_appendable(folder: &AtsfThreadFolder) -> Result<(), StoreError> {
        let shown = sanitize_line(&folder.name);
        let no = |why: String| Err(StoreError::NotPermitted(why));
        let (_, bytes) =
            thread_facts::read_thread_file(&folder.dir).map_err(folder.file_error(META))?;
        match thread::parse(&bytes) {
            thread::AtsfThreadFile::Thread(meta) if meta.id.as_deref() == Some(&folder.name) => {}
            thread::AtsfThreadFile::Thread(meta) => {
                return no(format!(
                    "the folder {shown} holds a thread.json of the thread {:?}; nothing is written \
                     there",
                    sanitize_line(&meta.id.unwrap_or_default())
                ));
            }
            thread::AtsfThreadFile::Refused(why) => {
                return no(format!("the thread {shown}: {why}"));
            }
            thread::AtsfThreadFile::Foreign | thread::AtsfThreadFile::Broken(_) => {
                return no(format!("the thread.json of the thread {shown} cannot be read"));
            }
        }
        match confined::stat(&folder.dir, LOG) {
            Ok((rustix::fs::FileType::RegularFile, _)) => Ok(()),
            Ok((kind, _)) => no(format!(
                "the log of the thread {shown} is {}, not a file",
                confined::describe_type(kind)
            )),
            Err(_) => no(format!(
                "the log is not here: of the thread {shown} this copy of the project has only \
                 thread.json"
            )),
        }
    }

    /// Counts a locked log without repairing it.
    pub(super) fn count_log(
        &self,
        folder: &AtsfThreadFolder,
        file: &File,
        looked_for: Option<(&str, &AtsfLine<'_>)>,
    ) -> Result<AtsfLogCount, StoreError> {
        let io = folder.file_error(LOG);
        let stamp = Stamp::from_file(file).map_err(&io)?;
        let mine = looked_for.map(|(_, line)| hash_id(&line.role, &line.id));
        let (mut tally, mut seen, created) = self.find_known_tally(folder, file, &stamp, mine);
        let mut take = |text: &str, tally: &mut LogCursor<AtsfCounts>| {
            if let Ok(line) = line::parse(text) {
                seen |= Some(hash_id(&line.role, &line.id)) == mine;
                line::count_message(tally, &line, created);
            }
        };
        let read = read_lines(file, tally.offset, stamp.size, |run| {
            let LineRun::Lines(run, offset) = run else { return tally.lines += 1 };
            for piece in split_lines(run, offset) {
                tally.lines += 1;
                take(piece.strip_bom().0, &mut tally);
            }
        });
        let (offset, tail) = read.map_err(&io)?;
        tally.offset = offset;
        let last = find_whole_tail(&tail, offset);
        if let Some(last) = &last {
            take(last.strip_bom().0, &mut tally);
        }
        let is_torn = !tail.is_empty() && last.is_none();
        let has_newline = has_final_newline(file, stamp.size).map_err(&io)?;
        Ok(AtsfLogCount {
            tally,
            size: stamp.size,
            has_message: seen,
            is_torn,
            lacks_newline: !is_torn && !has_newline,
        })
    }

    /// Returns the counts of the last scan, if the log still begins with the same bytes; whether that part has the
    /// message; and the time of the thread's creation.
    fn find_known_tally(
        &self,
        folder: &AtsfThreadFolder,
        file: &File,
        stamp: &Stamp,
        looked_for: Option<u64>,
    ) -> (LogCursor<AtsfCounts>, bool, Timestamp) {
        let table = self.table.read();
        let Some((n, log)) = folder.number.and_then(|n| Some((n, table.get(n)?))) else {
            return (LogCursor::default(), false, Timestamp::default());
        };
        let created = log.facts.begin_time();
        let same = log.stamp.is_some_and(|seen| seen.is_same_file(stamp));
        if !same || !log.tally.matches_file(file, stamp.size) {
            return (LogCursor::default(), false, created);
        }
        let seen =
            !log.tail && looked_for.is_some_and(|print| table.shared.has_id_in_thread(print, n));
        (log.tally, seen, created)
    }

    /// Updates the derived members of a thread. The message itself is safe, so a failed update is retried later.
    fn settle_derived(&self, folder: &AtsfThreadFolder, tally: &LogCursor<AtsfCounts>) {
        if let Err(e) = write_derived(folder, tally) {
            tracing::warn!(store = %self.properties.dir.display(), error = %e, "the numbers in thread.json are not up to date");
            self.format.stale_threads.lock().extend(folder.number);
        }
    }

    fn refresh_derived(&self, n: u32) -> Result<(), StoreError> {
        let folder = self.open_thread_folder(n)?;
        let file = folder.lock_log(false)?;
        let counted = self.count_log(&folder, &file, None)?;
        write_derived(&folder, &counted.tally).map(drop)
    }
}

/// The counts of a log, made under its lock.
pub(super) struct AtsfLogCount {
    pub tally: LogCursor<AtsfCounts>,
    size: u64,
    /// True if the log has the message that was searched.
    has_message: bool,
    /// True if it ends in a torn line: no object and no newline.
    is_torn: bool,
    /// True if it ends in an object, or in a line that is too long, without a newline.
    lacks_newline: bool,
}

impl AtsfLogCount {
    /// Repairs the tail of the log and appends a line with one `write`.
    fn append_line(&mut self, file: &File, text: &str, line: &AtsfLine<'_>) -> io::Result<()> {
        if self.is_torn {
            let lost = self.size - self.tally.offset;
            tracing::warn!(bytes = lost, "a log ended in half a line, which msgfs removed");
            file.set_len(self.tally.offset)?;
            self.size = self.tally.offset;
        }
        append_line(file, self.size, self.lacks_newline, text)?;
        line::count_message(&mut self.tally, line, Timestamp::default());
        Ok(())
    }
}

/// Returns the line that the bytes behind the last newline of a log are, if it is a whole object.
pub(super) fn find_whole_tail(tail: &[u8], offset: u64) -> Option<LogLine<'_>> {
    let line = split_lines(tail, offset).pop()?;
    json::visit_members(line.strip_bom().0, |_, _| {}).ok()?;
    Some(line)
}

/// Returns the time that `updatedAt` repeats.
pub(super) fn last_message_time(tally: &LogCursor<AtsfCounts>) -> Option<Timestamp> {
    tally.last_time.map(Timestamp::from_millis)
}

/// Updates the derived members of `thread.json`. Returns true if they changed.
pub(super) fn write_derived(
    folder: &AtsfThreadFolder,
    tally: &LogCursor<AtsfCounts>,
) -> Result<bool, StoreError> {
    let io = folder.file_error(META);
    for _ in 0..3 {
        let file = confined::open_file(&folder.dir, META).map_err(&io)?;
        let (stamp, bytes) = confined::read_whole(&file, thread::MAX_BYTES + 1).map_err(&io)?;
        let edited = edit::set_derived(&bytes, &tally.count.stats, last_message_time(tally))
            .map_err(|why| StoreError::NotPermitted(format!("thread.json is left alone: {why}")))?;
        let Some(edited) = edited else { return Ok(false) };
        let slot = FileSlot::new(&folder.dir, META);
        if slot.update_if_unchanged(&stamp, &edited).map_err(&io)?.is_some() {
            fs::fsync(&folder.dir).map_err(&io)?;
            return Ok(true);
        }
    }
    Err(StoreError::Busy("thread.json is changed again and again by another program".into()))
}

/// Writes the `thread.json` of a new thread, which makes the folder a thread.
fn publish_thread(
    folder: &AtsfThreadFolder,
    meta: &str,
    tally: &LogCursor<AtsfCounts>,
) -> Result<(), StoreError> {
    let edited = edit::set_derived(meta.as_bytes(), &tally.count.stats, last_message_time(tally));
    let bytes = edited.ok().flatten().unwrap_or_else(|| meta.as_bytes().to_vec());
    let placed =
        FileSlot::new(&folder.dir, META).create_with(FILE_MODE, |file| file.write_all(&bytes));
    placed.map_err(folder.file_error(META))?;
    fs::fsync(&folder.dir).map_err(folder.file_error(META))
}
