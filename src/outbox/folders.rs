//! Composing folders: messages with files that are being put together, on disk.
//!
//! One folder each below `<state>/composing/`, named by number:
//!
//! - `name`, the name in `outbox/`. A folder without it does not count.
//! - `files/`, the files written there, under their own names. The file [`BODY`] is the text.
//! - `cut/`, an empty file of the same name for each file that is not whole: while it is open for writing, and after a
//!   write that failed. So a file that was open when the process died is known not to be whole.
//! - `promised`, once the close of the text has returned 0: the message will be sent, by the next process too.
//! - `error`, the reason for a refusal.
//! - `sent-as`, the ids under which it goes into the spool, written just before. A process that finds one of them in
//!   the spool knows that the folder was sent.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::OutboxError;
use crate::model::locks::{Condvar, LockLevel, Mutex, MutexGuard};
use crate::model::{Timestamp, sanitize_line};
use crate::store::{Durability, atomic_file, fs};

pub use files::ComposeHandle;

/// The file of a composing folder that is its text, and sends it.
pub const BODY: &str = "body";
/// The time without a close in the folder after which its message is sent. Copy programs open one file after the other,
/// and the text need not be the last.
const QUIET: Duration = Duration::from_secs(1);
/// The file in a folder with the ids of the messages that were made of it.
const SENT_AS: &str = "sent-as";

/// A file of a composing folder.
#[derive(Debug)]
struct ComposeFile {
    /// A number that stays the same under any name.
    id: u64,
    time: Timestamp,
    /// The number of descriptors open for writing.
    writers: u32,
    /// The reason why the file is not whole.
    cut: Option<String>,
}

#[derive(Debug)]
struct ComposeFolder {
    dir: PathBuf,
    files: BTreeMap<String, ComposeFile>,
    time: Timestamp,
    /// The time at which something in the folder was last closed or moved.
    touched: Instant,
    /// The number of open drafts of its text.
    writing: u32,
    accepted: bool,
    /// True if the folder is on its way into the spool: nothing can be changed.
    sending: bool,
    /// True if a thread waits until the folder is quiet.
    awaited: bool,
    /// The reason for a refusal.
    error: Option<String>,
}

impl ComposeFolder {
    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.join("files").join(name)
    }

    fn cut_mark_path(&self, name: &str) -> PathBuf {
        self.dir.join("cut").join(name)
    }

    fn is_open(&self) -> bool {
        self.writing > 0 || self.files.values().any(|file| file.writers > 0)
    }

    fn touch(&mut self) {
        (self.time, self.touched) = (Timestamp::now(), Instant::now());
    }

    fn find_file(&mut self, id: u64) -> Option<(&String, &mut ComposeFile)> {
        self.files.iter_mut().find(|(_, file)| file.id == id)
    }
}

#[derive(Debug, Default)]
struct ComposeState {
    all: BTreeMap<String, ComposeFolder>,
    next: u64,
    /// True if no thread waits for folders any more.
    ended: bool,
}

/// The composing folders of one state folder.
#[derive(Debug)]
pub(super) struct ComposeFolders {
    dir: PathBuf,
    durability: Durability,
    state: Mutex<ComposeState>,
    changed: Condvar,
    /// The time of the last change in any folder that [`ComposeFolders::newest_time`] returned last.
    newest: Mutex<Option<Timestamp>>,
}

fn save_error(error: io::Error) -> OutboxError {
    OutboxError::Io { what: "the files of the message cannot be saved", error }
}

fn create_if_missing(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map(drop)
}

/// Removes a folder. The note that it was sent goes last: without it, the next process would send the rest again.
fn remove_sent_folder(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false if entry.file_name() != SENT_AS => std::fs::remove_file(entry.path())?,
            false => {}
        }
    }
    std::fs::remove_dir_all(dir)
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

impl ComposeFolders {
    /// Loads the folders that earlier processes left. `spooled` are the ids in the spool. With `read_only` nothing is
    /// removed, and their acceptance is ignored, because the process that accepted them may still run.
    pub fn open(
        dir: PathBuf,
        durability: Durability,
        spooled: &BTreeSet<&str>,
        read_only: bool,
    ) -> io::Result<Self> {
        let mut state = ComposeState::default();
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        for entry in entries.into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|n| n.parse::<u64>().ok());
            let Some(number) = number else { continue };
            state.next = state.next.max(number);
            let sent = read_sent_ids(&entry.path());
            if sent.as_ref().is_ok_and(|ids| ids.iter().any(|id| spooled.contains(id.as_str()))) {
                if !read_only {
                    remove_sent_folder(&entry.path())?;
                }
                continue;
            }
            // Without the ids the message could go a second time.
            match sent.and_then(|_| load_folder(entry.path())) {
                Ok((name, mut folder)) => {
                    folder.accepted &= !read_only;
                    state.all.insert(name, folder);
                }
                Err(e) => {
                    tracing::warn!(folder = %entry.path().display(), error = %e, "cannot be read \
                        as a composing folder");
                }
            }
        }
        let mut id = 0;
        for file in state.all.values_mut().flat_map(|folder| folder.files.values_mut()) {
            id += 1;
            file.id = id;
        }
        state.next = state.next.max(id);
        let newest = Mutex::new(state.all.values().map(|folder| folder.time).max());
        let state = Mutex::with_level(LockLevel::Composing, state);
        Ok(Self { dir, durability, state, changed: Condvar::default(), newest })
    }

    /// Changes a folder that is not being sent, and wakes the threads that wait for it.
    fn update_folder<T>(
        &self,
        name: &str,
        work: impl FnOnce(&mut ComposeFolder) -> Result<T, OutboxError>,
    ) -> Result<T, OutboxError> {
        let mut state = self.state.lock();
        let folder = state.all.get_mut(name).ok_or(OutboxError::NotFound)?;
        if folder.sending {
            return Err(OutboxError::NotPermitted("this message is just being sent".into()));
        }
        let done = work(folder);
        drop(state);
        self.changed.notify_all();
        done
    }

    fn read_folder<T>(&self, name: &str, look: impl FnOnce(&ComposeFolder) -> T) -> Option<T> {
        self.state.lock().all.get(name).map(look)
    }

    /// Returns true if the close of a folder's text was accepted, so that its message will be sent.
    pub fn is_accepted(&self, name: &str) -> bool {
        self.read_folder(name, |folder| folder.accepted).unwrap_or(false)
    }

    /// Returns the names of all folders.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().all.keys().cloned().collect()
    }

    /// Returns the time of the last change in any folder. While a text is being saved it returns the earlier result, so
    /// that `stat` of `outbox/` does not wait for the disk.
    pub fn newest_time(&self) -> Option<Timestamp> {
        let Some(state) = self.state.try_lock() else { return *self.newest.lock() };
        let newest = state.all.values().map(|folder| folder.time).max();
        *self.newest.lock() = newest;
        newest
    }

    /// Returns the time of the last change in a folder.
    pub fn folder_time(&self, name: &str) -> Option<Timestamp> {
        self.read_folder(name, |folder| folder.time)
    }

    /// Returns the names of the files in a folder.
    pub fn file_names(&self, name: &str) -> Option<Vec<String>> {
        self.read_folder(name, |folder| folder.files.keys().cloned().collect())
    }

    /// Returns length and time of a file.
    pub fn stat_file(&self, name: &str, file: &str) -> Option<(u64, Timestamp)> {
        let (path, time) =
            self.read_folder(name, |f| Some((f.file_path(file), f.files.get(file)?.time)))??;
        std::fs::symlink_metadata(path).ok().map(|meta| (meta.len(), time))
    }

    /// Creates an empty composing folder.
    pub fn create_folder(&self, name: &str) -> Result<(), OutboxError> {
        let mut state = self.state.lock();
        if state.all.contains_key(name) {
            return Err(OutboxError::Exists);
        }
        state.next += 1;
        let dir = self.dir.join(state.next.to_string());
        for part in ["files", "cut"] {
            fs::make_dirs(&dir.join(part), 0o700).map_err(save_error)?;
        }
        atomic_file::write_atomic(&dir.join("name"), name.as_bytes(), 0o600).map_err(save_error)?;
        state.all.insert(name.to_owned(), new_folder(dir));
        Ok(())
    }

    /// Removes a folder that holds no files. Returns true if it held none.
    pub fn remove_empty(&self, name: &str) -> Result<bool, OutboxError> {
        let is_empty = self.update_folder(name, |folder| Ok(folder.files.is_empty()))?;
        if is_empty {
            self.delete_from_disk(name);
            self.forget_folder(name);
        }
        Ok(is_empty)
    }

    /// Removes the contents of a folder from the disk.
    pub fn delete_from_disk(&self, name: &str) {
        let Some(dir) = self.read_folder(name, |folder| folder.dir.clone()) else { return };
        let removed = remove_sent_folder(&dir).and_then(|()| match self.durability {
            Durability::Fsync => fs::sync_dir(&self.dir),
            Durability::None => Ok(()),
        });
        if let Err(e) = removed {
            tracing::warn!(folder = %dir.display(), error = %e, "a composing folder cannot be \
                removed");
        }
    }

    /// Forgets a folder.
    pub fn forget_folder(&self, name: &str) {
        self.state.lock().all.remove(name);
        self.changed.notify_all();
    }

    /// Returns the folders that were refused, each with the reason and the time.
    pub fn list_errors(&self) -> Vec<(String, String, Timestamp)> {
        let state = self.state.lock();
        let of =
            |(name, f): (&String, &ComposeFolder)| Some((name.clone(), f.error.clone()?, f.time));
        state.all.iter().filter_map(of).collect()
    }

    /// Notes the reason for a refusal, or removes it.
    pub fn set_error(&self, name: &str, error: Option<&str>) {
        let mut state = self.state.lock();
        let Some(folder) = state.all.get_mut(name) else { return };
        if folder.error.as_deref() == error {
            return;
        }
        folder.error = error.map(str::to_owned);
        let path = folder.dir.join("error");
        let noted = match error {
            Some(error) => atomic_file::write_atomic(&path, error.as_bytes(), 0o600),
            None => remove_if_exists(&path),
        };
        if let Err(e) = noted {
            tracing::warn!(folder = %sanitize_line(name), error = %e, "the reason why this composing \
                folder was refused could not be saved");
        }
    }

    /// Gives a folder another name.
    pub fn rename_folder(&self, from: &str, to: &str) -> Result<(), OutboxError> {
        self.update_folder(from, |folder| {
            if folder.is_open() {
                let why = "something in this folder is still being written";
                return Err(OutboxError::NotPermitted(why.into()));
            }
            atomic_file::write_atomic(&folder.dir.join("name"), to.as_bytes(), 0o600)
                .map_err(save_error)?;
            folder.touch();
            // The waiting thread waits for the old name.
            folder.awaited = false;
            Ok(())
        })?;
        let mut state = self.state.lock();
        if let Some(folder) = state.all.remove(from) {
            state.all.insert(to.to_owned(), folder);
        }
        Ok(())
    }

    /// Returns the saved text, which is empty if there is none.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read_body(&self, name: &str) -> Result<Vec<u8>, OutboxError> {
        match self.read_file(name, BODY) {
            Err(OutboxError::NotFound) => Ok(Vec::new()),
            read => read,
        }
    }

    /// Notes that the text is incomplete, because a signal ended its writer.
    pub fn mark_body_cut(&self, name: &str) {
        let noted = self.update_folder(name, |folder| {
            create_if_missing(&folder.cut_mark_path(BODY)).map_err(save_error)?;
            let half = || "the program that wrote it was ended by a signal".to_owned();
            folder.files.entry(BODY.to_owned()).and_modify(|text| text.cut = Some(half()));
            Ok(())
        });
        if let Err(e) = noted {
            tracing::warn!(folder = %sanitize_line(name), error = %e, "the note that the text of this \
                composing folder is incomplete could not be saved");
        }
    }

    /// Returns true if a folder has its whole text and stays because it was refused.
    pub fn is_refused(&self, name: &str) -> bool {
        let refused = |f: &ComposeFolder| {
            let whole = f.files.get(BODY).is_some_and(|text| text.cut.is_none());
            f.error.is_some() && whole && f.writing == 0 && !f.accepted && !f.sending
        };
        self.read_folder(name, refused).unwrap_or_default()
    }

    /// Notes that a write of the text begins or ends.
    pub fn set_writing(&self, name: &str, begins: bool) {
        let _ = self.update_folder(name, |folder| {
            folder.writing =
                if begins { folder.writing + 1 } else { folder.writing.saturating_sub(1) };
            folder.touch();
            Ok(())
        });
    }

    /// Saves the text, and with `accept` also that the message is accepted, which is on disk when this returns.
    pub fn save_body(&self, name: &str, text: &[u8], accept: bool) -> Result<(), OutboxError> {
        let id = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next
        };
        let durable = accept && self.durability == Durability::Fsync;
        self.update_folder(name, |folder| {
            let keep = || {
                atomic_file::write_atomic(&folder.file_path(BODY), text, 0o600)?;
                remove_if_exists(&folder.cut_mark_path(BODY))?;
                if durable {
                    for file in folder.files.keys().filter(|file| *file != BODY) {
                        fs::open_regular(&folder.file_path(file))?.sync_all()?;
                    }
                    fs::sync_dir(&folder.dir.join("files"))?;
                    fs::sync_dir(&folder.dir.join("cut"))?;
                }
                if accept {
                    atomic_file::write_atomic(&folder.dir.join("promised"), b"", 0o600)?;
                }
                Ok(())
            };
            keep().map_err(save_error)?;
            let (time, open) = (Timestamp::now(), 0);
            folder
                .files
                .insert(BODY.to_owned(), ComposeFile { id, time, writers: open, cut: None });
            folder.touch();
            if accept {
                folder.accepted = true;
                return Ok(());
            }
            withdraw_acceptance(folder)
        })
    }

    /// Claims the wait for a folder. Returns true if the caller must wait for it now.
    pub fn claim_quiet_wait(&self, name: &str) -> bool {
        let mut state = self.state.lock();
        let folder = state.all.get_mut(name).filter(|f| f.accepted && !f.sending && !f.awaited);
        folder.map(|folder| folder.awaited = true).is_some()
    }

    /// Waits until nothing in a folder is open and nothing was closed for a while. Returns true if the caller must send
    /// it now.
    pub fn wait_until_quiet(&self, name: &str) -> bool {
        let mut state = self.state.lock();
        loop {
            let ended = state.ended;
            let Some(folder) = state.all.get_mut(name) else { return false };
            if ended || !folder.accepted || folder.sending {
                folder.awaited = false;
                return false;
            }
            let due = folder.touched + QUIET;
            if folder.is_open() {
                self.changed.wait(&mut state);
            } else if Instant::now() >= due {
                (folder.sending, folder.awaited) = (true, false);
                return true;
            } else {
                self.changed.wait_until(&mut state, due);
            }
        }
    }

    /// Ends all waits. Returns the names of the folders that must be sent at once.
    pub fn stop_waiting(&self) -> Vec<String> {
        let mut state = self.state.lock();
        state.ended = true;
        let ready =
            |folder: &ComposeFolder| folder.accepted && !folder.sending && !folder.is_open();
        let all = state.all.iter_mut().filter(|(_, folder)| ready(folder));
        let names = all.map(|(name, folder)| {
            folder.sending = true;
            name.clone()
        });
        let names = names.collect();
        drop(state);
        self.changed.notify_all();
        names
    }

    /// Waits until the closed folders are sent, at most until `deadline`. It does not wait for folders that are still
    /// being written.
    pub fn wait_until_sent(&self, deadline: Instant) {
        let mut state: MutexGuard<'_, ComposeState> = self.state.lock();
        let coming = |f: &ComposeFolder| f.sending || f.awaited && f.accepted && !f.is_open();
        while state.all.values().any(coming) {
            if self.changed.wait_until(&mut state, deadline) {
                return;
            }
        }
    }

    /// Saves the ids under which a folder goes into the spool.
    pub fn note_sent_ids(&self, name: &str, ids: &[&str]) -> Result<(), OutboxError> {
        let dir =
            self.read_folder(name, |folder| folder.dir.clone()).ok_or(OutboxError::NotFound)?;
        atomic_file::write_atomic(&dir.join(SENT_AS), ids.join("\n").as_bytes(), 0o600)
            .map_err(save_error)
    }

    /// Cancels the sending of a folder. The folder stays until its text is written again.
    pub fn cancel_send(&self, name: &str) {
        let mut state = self.state.lock();
        if let Some(folder) = state.all.get_mut(name) {
            folder.sending = false;
            if let Err(e) = withdraw_acceptance(folder) {
                tracing::warn!(folder = %sanitize_line(name), error = %e, "the acceptance of this \
                    composing folder could not be removed, so it may be sent again");
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Removes the acceptance of a folder.
fn withdraw_acceptance(folder: &mut ComposeFolder) -> Result<(), OutboxError> {
    folder.accepted = false;
    remove_if_exists(&folder.dir.join("promised")).map_err(save_error)
}

fn new_folder(dir: PathBuf) -> ComposeFolder {
    ComposeFolder {
        dir,
        files: BTreeMap::new(),
        time: Timestamp::now(),
        touched: Instant::now(),
        writing: 0,
        accepted: false,
        sending: false,
        awaited: false,
        error: None,
    }
}

/// Returns the ids under which the message of a folder may have been sent.
fn read_sent_ids(dir: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_to_string(dir.join(SENT_AS)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(read?.lines().map(str::to_owned).collect()),
    }
}

/// Loads a folder that an earlier process left.
fn load_folder(dir: PathBuf) -> io::Result<(String, ComposeFolder)> {
    let name = String::from_utf8_lossy(&std::fs::read(dir.join("name"))?).into_owned();
    let mut folder = new_folder(dir);
    for entry in std::fs::read_dir(folder.dir.join("files"))? {
        let entry = entry?;
        let Ok(file) = entry.file_name().into_string() else { continue };
        let time = fs::Stamp::from(&entry.metadata()?).modified();
        let cut = folder.cut_mark_path(&file).try_exists()?;
        let cut = cut.then(|| "it was being written when msgfs ended".to_owned());
        folder.files.insert(file, ComposeFile { id: 0, time, writers: 0, cut });
    }
    folder.time = folder.files.values().map(|file| file.time).max().unwrap_or(folder.time);
    folder.accepted = folder.dir.join("promised").try_exists()?;
    folder.error = std::fs::read_to_string(folder.dir.join("error")).ok();
    Ok((name, folder))
}
