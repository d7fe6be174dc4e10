//! A session of a harness as a thread: `msgfs keep`.
//!
//! The ids in the log say which messages the thread has. So a keep that was killed is completed by the next one, and
//! nothing is doubled. The log is locked from before it is read until `thread.json` is up to date. These are the steps,
//! and each has been synced before the next one begins:
//!
//! 1. The folder and the empty log.
//! 2. Each image before the line that refers to it; then the lines, in order.
//! 3. The line in the [`list`] of kept threads.
//! 4. `thread.json`, which makes the folder a thread.
//!
//! [`line`](mod@line) turns a message into a line and back, and [`head`] has the facts of `thread.json`. `ignore` keeps
//! git from the folder. [`project`] tells which messages the threads of other sessions have already.

pub mod head;
pub mod ignore;
pub mod line;
pub mod list;
pub mod project;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use sha2::{Digest as _, Sha256};

use super::append::{AtsfThreadFolder, find_whole_tail, last_message_time};
use super::line::{AtsfCounts, count_message, parse};
use super::roots::{AGENT, THREADS};
use super::{AtsfFormat, LOG, META, assets, project_files, thread, thread_facts};
use crate::model::{Timestamp, encode_hex, sanitize_line};
use crate::store::atomic_file::FileSlot;
use crate::store::engine::lines::append::{LogPath, UnsyncedLogs, append_once, has_final_newline};
use crate::store::engine::lines::log::{LineRun, LogCursor, MAX_LINE, read_lines, split_lines};
use crate::store::engine::lines::{LineFormat as _, NameClass};
use crate::store::fs::{self, Stamp};
use crate::store::sessions::message::{SessionHead, SessionMessage};
use crate::store::{Kind, StoreError, confined};
use head::KeptHead;
use list::KeptList;
use project::KeptProject;

/// The modes of what is kept: transcripts hold secrets.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The number of bytes of lines that are written together.
const BATCH: usize = 1 << 20;
/// The time for which a keep waits for the lock of a log.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of keeping one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepReport {
    /// The number of messages that are new in the thread.
    pub added: u64,
    /// The messages that cannot be kept, a sentence for each.
    pub left_out: Vec<String>,
}

/// Receives the messages of a session in order.
pub type MessageReceiver<'a> = dyn FnMut(SessionMessage) -> Result<(), StoreError> + 'a;

/// Writes what is new in a session into its thread of a project. `read` hands over the messages of the session of
/// that kind and id, and returns its head.
///
/// # Errors
/// As the system gave it, [`StoreError::Busy`] if another program holds the lock of the log, and
/// [`StoreError::NotPermitted`] if the thread cannot be written. The messages before the failure are kept.
pub fn keep_session(
    project: &mut KeptProject,
    (kind, id): (Kind, &str),
    read: impl FnOnce(&mut MessageReceiver<'_>) -> Result<SessionHead, StoreError>,
) -> Result<KeepReport, StoreError> {
    let mut keeping =
        SessionKeeper { project, kind, id, thread: None, report: KeepReport::default() };
    let head = read(&mut |message| keeping.keep_message(message));
    // The lines until a failure are kept, and the next keep finds them.
    let Some(thread) = keeping.thread.as_mut() else { return head.map(|_| keeping.report) };
    thread.flush()?;
    thread.sync_log()?;
    thread.publish(&head?, &keeping.project.list)?;
    Ok(keeping.report)
}

/// The state while a session is kept.
struct SessionKeeper<'a> {
    project: &'a mut KeptProject,
    kind: Kind,
    id: &'a str,
    /// The thread, once there is a message.
    thread: Option<KeptThread>,
    report: KeepReport,
}

impl SessionKeeper<'_> {
    fn keep_message(&mut self, mut message: SessionMessage) -> Result<(), StoreError> {
        let id = line::kept_id(self.kind, &message.id);
        let thread = match &mut self.thread {
            Some(thread) => thread,
            None if !self.project.has_thread(self.id)
                && self.project.has_gone_message(&id, message.time) =>
            {
                return Ok(());
            }
            none => none.insert(KeptThread::open(&self.project.folder, self.kind, self.id)?),
        };
        match thread.add_message(&mut message, self.project)? {
            MessageFate::Known => {}
            MessageFate::Added => self.report.added += 1,
            MessageFate::TooLong(len) => self.report.left_out.push(format!(
                "the message {} of {} has {len} bytes, and a line has at most {MAX_LINE}",
                sanitize_line(&message.id),
                message.time.rfc3339(),
            )),
        }
        Ok(())
    }
}

/// The result of adding a message to a thread.
enum MessageFate {
    Known,
    Added,
    TooLong(usize),
}

/// A thread that is being written, with its locked log.
struct KeptThread {
    kind: Kind,
    folder: AtsfThreadFolder,
    path: PathBuf,
    file: File,
    tally: LogCursor<AtsfCounts>,
    /// The length of the log, and that of its whole lines.
    size: u64,
    whole: u64,
    /// True if the last line lacks its newline.
    lacks_newline: bool,
    ids: HashSet<String>,
    last_id: String,
    agent: Option<String>,
    first_time: Option<Timestamp>,
    /// Lines that are not written yet.
    lines: String,
    unsynced: UnsyncedLogs,
}

impl KeptThread {
    /// Opens the thread of a session, and makes its folder and its log if they are missing.
    fn open(project: &Path, kind: Kind, id: &str) -> Result<Self, StoreError> {
        let path = project.join(AGENT).join(THREADS).join(id);
        if AtsfFormat::classify_name(id) != NameClass::Log || !confined::is_component(id) {
            return Err(StoreError::Invalid(format!(
                "{:?} cannot be the name of a thread's folder",
                sanitize_line(id)
            )));
        }
        let io = |e| StoreError::io(&path, e);
        confined::make_dir(project, &[AGENT, THREADS], FOLDER_MODE).map_err(io)?;
        project_files::create_project_files(project)?;
        let dir = confined::make_dir(project, &[AGENT, THREADS, id], FOLDER_MODE).map_err(io)?;
        require_thread(&dir, id, &path)?;
        let (root, name, key) = (project.to_owned(), id.to_owned(), id.to_owned());
        let folder = AtsfThreadFolder { root, name, key, number: None, dir };
        let log = path.join(LOG);
        let file = open_log(&folder.dir, &log)?;
        let stamp = Stamp::from_file(&file).map_err(|e| StoreError::io(&log, e))?;
        let mut thread = Self {
            kind,
            folder,
            path: log,
            file,
            tally: LogCursor::default(),
            size: stamp.size,
            whole: 0,
            lacks_newline: false,
            ids: HashSet::new(),
            last_id: String::new(),
            agent: None,
            first_time: None,
            lines: String::new(),
            unsynced: UnsyncedLogs::default(),
        };
        thread.unsynced.note_append(&thread.path, stamp.size, stamp);
        thread.read_log().map_err(|e| StoreError::io(&thread.path, e))?;
        Ok(thread)
    }

    /// Reads the ids and the counts of the log.
    fn read_log(&mut self) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let (offset, tail) = read_lines(&file, 0, self.size, |run| {
            let LineRun::Lines(run, offset) = run else { return };
            for piece in split_lines(run, offset) {
                self.note_line(piece.strip_bom().0);
            }
        })?;
        // Text behind the last newline is a message if it is whole, and else it is cut off.
        let last = find_whole_tail(&tail, offset);
        if let Some(last) = &last {
            self.note_line(last.strip_bom().0);
        }
        let is_torn = !tail.is_empty() && last.is_none();
        self.lacks_newline = !is_torn && !has_final_newline(&file, self.size)?;
        self.whole = if is_torn { offset } else { self.size };
        Ok(())
    }

    fn note_line(&mut self, text: &str) {
        if let Ok(line) = parse(text) {
            let (time, _) = count_message(&mut self.tally, &line, Timestamp::default());
            self.first_time.get_or_insert(time);
            line.id.as_ref().clone_into(&mut self.last_id);
            self.ids.insert(self.last_id.clone());
        }
    }

    /// Adds a message that neither the log nor the thread of a session that is gone has yet.
    fn add_message(
        &mut self,
        message: &mut SessionMessage,
        project: &mut KeptProject,
    ) -> Result<MessageFate, StoreError> {
        // Lines of sub-agents may also stand in the session itself.
        if self.folder.name.contains('.') && self.agent.is_none() {
            self.agent.clone_from(&message.agent);
        }
        let id = line::kept_id(self.kind, &message.id);
        if self.ids.contains(&id) || project.has_gone_message(&id, message.time) {
            return Ok(MessageFate::Known);
        }
        let next = self.tally.count.next_name_time(message.time);
        message.name_time.take_if(|time| *time == next);
        let text = line::render(self.kind, message);
        if text.len() > MAX_LINE {
            return Ok(MessageFate::TooLong(text.len()));
        }
        for (name, data) in line::list_assets(message) {
            self.store_asset(&name, data)?;
        }
        self.note_line(&text);
        self.lines.push_str(&text);
        self.lines.push('\n');
        if self.lines.len() >= BATCH {
            self.flush()?;
        }
        Ok(MessageFate::Added)
    }

    /// Writes an image or a whole result into the thread's folder, unless it is there.
    fn store_asset(&self, name: &str, data: &[u8]) -> Result<(), StoreError> {
        let parts = [AGENT, THREADS, &self.folder.name, assets::FOLDER];
        let path = parts.iter().fold(self.folder.root.clone(), |p, s| p.join(s)).join(name);
        let io = |e| StoreError::io(&path, e);
        let thread = [AGENT, THREADS, &*self.folder.name];
        let sha256 = encode_hex(&Sha256::digest(data));
        assets::check_clash(&self.folder.root, &thread, name, &sha256)?;
        let dir = confined::make_dir(&self.folder.root, &parts, FOLDER_MODE).map_err(io)?;
        let placed = FileSlot::new(&dir, name)
            .create_with(FILE_MODE, |file| file.write_all(data))
            .and_then(|()| fs::fsync(&dir));
        match placed {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(io),
        }
    }

    /// Writes the waiting lines with one `write`, and ends the last line of the log.
    fn flush(&mut self) -> Result<(), StoreError> {
        if self.lines.is_empty() && !self.lacks_newline {
            return Ok(());
        }
        let lines = std::mem::take(&mut self.lines);
        self.write_lines(&lines).map_err(|e| StoreError::io(&self.path, e))
    }

    fn write_lines(&mut self, lines: &str) -> io::Result<()> {
        if self.whole < self.size {
            let bytes = self.size - self.whole;
            tracing::warn!(bytes, "a log ended in half a line, which msgfs removed");
            self.file.set_len(self.whole)?;
            self.size = self.whole;
        }
        let start = if std::mem::take(&mut self.lacks_newline) { "\n" } else { "" };
        let text = format!("{start}{lines}");
        append_once(&self.file, text.as_bytes(), self.size)?;
        self.size += text.len() as u64;
        self.whole = self.size;
        Ok(())
    }

    /// Waits until the log is on disk. Bytes that the disk refused are written once more.
    fn sync_log(&mut self) -> Result<(), StoreError> {
        let log = LogPath { dir: &self.folder.dir, name: LOG, path: &self.path };
        self.unsynced.sync_log(&log).or_else(|_| self.unsynced.sync_log(&log))
    }

    /// Lists the thread as kept, and brings its `thread.json` up to date.
    fn publish(&self, head: &SessionHead, list: &Path) -> Result<(), StoreError> {
        let source = head::KeptSource { kind: self.kind, agent: self.agent.clone() };
        KeptList::add_thread(list, &self.folder.name, &source)?;
        let created = self.first_time.unwrap_or_default();
        let kept = KeptHead { head, source: &source, last_id: &self.last_id, created };
        let (stats, updated) = (&self.tally.count.stats, last_message_time(&self.tally));
        let path = self.folder.file_path(META);
        let io = |e| StoreError::io(&path, e);
        for _ in 0..3 {
            let (seen, bytes) = match confined::open_file(&self.folder.dir, META) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let slot = FileSlot::new(&self.folder.dir, META);
                    let bytes = kept.render(stats, updated);
                    match slot.create_with(FILE_MODE, |file| file.write_all(&bytes)) {
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                        placed => placed.map_err(io)?,
                    }
                    return fs::fsync(&self.folder.dir).map_err(io);
                }
                opened => {
                    let file = opened.map_err(io)?;
                    confined::read_whole(&file, thread::MAX_BYTES + 1).map_err(io)?
                }
            };
            let changed = kept.update(&bytes, stats, updated).map_err(|why| {
                StoreError::NotPermitted(format!("{} is left alone: {why}", path.display()))
            })?;
            let Some(changed) = changed else { return Ok(()) };
            let slot = FileSlot::new(&self.folder.dir, META);
            if slot.update_if_unchanged(&seen, &changed).map_err(io)?.is_some() {
                return fs::fsync(&self.folder.dir).map_err(io);
            }
        }
        Err(StoreError::Busy(format!(
            "{} is changed again and again by another program",
            path.display()
        )))
    }
}

/// Fails if the folder holds something else than the thread of this id, or nothing.
fn require_thread(dir: &OwnedFd, id: &str, path: &Path) -> Result<(), StoreError> {
    let bytes = match thread_facts::read_thread_file(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|e| StoreError::io(&path.join(META), e))?.1,
    };
    let why = match thread::parse(&bytes) {
        thread::AtsfThreadFile::Thread(meta) if meta.id.as_deref() == Some(id) => return Ok(()),
        thread::AtsfThreadFile::Thread(_) => "it names another thread".to_owned(),
        thread::AtsfThreadFile::Foreign => "it is no thread.json of this format".to_owned(),
        thread::AtsfThreadFile::Refused(why) | thread::AtsfThreadFile::Broken(why) => why,
    };
    let path = path.join(META);
    Err(StoreError::NotPermitted(format!("{} is left alone: {why}", path.display())))
}

/// Opens and locks the log. Only its owner may read it.
fn open_log(dir: &OwnedFd, path: &Path) -> Result<File, StoreError> {
    let io = |e: io::Error| StoreError::io(path, e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(FILE_MODE);
    match retry_on_intr(|| rustix::fs::openat(dir, LOG, flags, mode)) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(e) => return Err(io(e.into())),
    }
    let log = LogPath { dir, name: LOG, path };
    let give_up = Instant::now() + PATIENCE;
    let file = loop {
        match log.open_locked(false) {
            Err(StoreError::Busy(_)) if Instant::now() < give_up => {}
            locked => break locked?,
        }
    };
    let about = file.metadata().map_err(io)?;
    let is_mine = about.uid() == rustix::process::geteuid().as_raw();
    if is_mine && about.mode() & 0o077 != 0 {
        // Another program wrote the log anew.
        file.set_permissions(PermissionsExt::from_mode(FILE_MODE)).map_err(io)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
