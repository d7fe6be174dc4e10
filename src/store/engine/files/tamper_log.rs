//! The messages that were changed after they were verified (docs/SEMANTICS.md, S570).
//!
//! A path that held a message with a valid signature takes no other content under the id of that message. The table
//! shows the earlier content of such a path, because the number of that message went out of use. The hashes of the
//! earlier content are also kept in the state folder, because the cache may be lost. They are in a file of JSON lines
//! `["c", path, id, content]`, which only grows.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use super::format::{FileFormat, FileRejection, FileVerdict};
use super::open::StoreFile;
use super::table::{FileFacts as _, FileFlags, FileRow};
use super::{FileStore, JudgedFile};
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::append_log::{AppendLog, AppendSync, read_log, split_log};
use crate::store::{ScanSink, StoreError};

/// The name of the file in the folder of a store's state.
const NAME: &str = "changed";
/// A size that the file never reaches.
const LIMIT: u64 = 1 << 30;
/// The reason for rejecting a file that was changed.
const REASON: &str = "it was changed after it was verified: the file held a signed message with \
    this id, and now it holds something else";

/// The hashes of verified messages, by the paths that later held other content under the same id.
#[derive(Debug, Default)]
pub(super) struct TamperLog(Mutex<TamperNotes>);

#[derive(Debug, Default)]
struct TamperNotes {
    /// The file; `None` where nothing may be written.
    log: Option<AppendLog>,
    by_path: HashMap<String, HashSet<(u64, u64)>>,
}

impl TamperLog {
    /// Opens the log and reads its file. The folder is created when there is something to keep.
    ///
    /// # Errors
    /// If the file cannot be read: without it, rejected messages would be shown.
    pub fn open(state: Option<PathBuf>) -> Result<Self, StoreError> {
        let Some(dir) = state else { return Ok(Self::default()) };
        let changed = Self::default();
        changed.0.lock().log = Some(AppendLog::new(dir.join(NAME)));
        changed.load_notes(&dir)?;
        Ok(changed)
    }

    /// Reads the file in a folder.
    ///
    /// # Errors
    /// As [`TamperLog::open`].
    pub fn load_notes(&self, dir: &Path) -> Result<(), StoreError> {
        let file = dir.join(NAME);
        let bytes = read_log(&file, LIMIT).map_err(|e| StoreError::io(&file, e))?;
        let mut notes = self.0.lock();
        for line in split_log(&bytes) {
            if let Ok(("c", path, id, content)) =
                serde_json::from_slice::<(&str, String, u64, u64)>(line.text)
            {
                notes.by_path.entry(path).or_default().insert((id, content));
            }
        }
        Ok(())
    }

    /// Returns the hashes of the noted contents of a path.
    fn noted_hashes(&self, path: impl FnOnce() -> String) -> Vec<(u64, u64)> {
        let notes = &self.0.lock().by_path;
        let held = if notes.is_empty() { None } else { notes.get(&path()) };
        held.into_iter().flatten().copied().collect()
    }

    /// Notes the hashes of a path's content. They are on disk when this returns, unless that fails, which is logged.
    fn note_hashes(&self, path: String, prints: (u64, u64)) {
        let TamperNotes { log, by_path } = &mut *self.0.lock();
        let line = serde_json::to_string(&("c", &path, prints.0, prints.1));
        if !by_path.entry(path).or_default().insert(prints) {
            return;
        }
        let Some(log) = log else { return };
        let add = |line: String| log.append(format!("{line}\n").as_bytes(), AppendSync::Now);
        if let Err(error) = line.map_err(io::Error::from).and_then(add) {
            tracing::error!(%error, "the note about a changed message could not be saved");
        }
    }
}

impl<F: FileFormat> FileStore<F> {
    /// Returns those of these files that hold a message with a valid signature.
    fn filter_verified(
        &self,
        sink: &mut dyn ScanSink,
        files: impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        let mut messages: Vec<u32> = {
            let table = self.table.read();
            files.filter(|n| table.row(*n).is_some_and(FileRow::is_message)).collect()
        };
        if messages.is_empty() {
            return messages;
        }
        let from: Vec<u32> = messages.iter().map(|n| F::report_source(self, *n)).collect();
        let verified = sink.verified_sources(&from);
        let mut from = from.iter();
        messages.retain(|_| from.next().is_some_and(|from| verified.contains(from)));
        messages
    }

    /// Notes in the table which of these files held a message with a valid signature. They are about to lose their
    /// messages.
    pub(super) fn note_verified(
        &self,
        sink: &mut dyn ScanSink,
        leaving: impl Iterator<Item = u32>,
    ) {
        for n in self.filter_verified(sink, leaving) {
            self.table.write().update_row(n, |row, _| row.set_flag(FileFlags::VERIFIED, true));
        }
    }

    /// Rejects files that replace verified messages under their ids. Also notes the content of messages that lost
    /// their signature.
    pub(super) fn reject_tampered_files(
        &self,
        sink: &mut dyn ScanSink,
        ready: &mut [JudgedFile<'_, F>],
    ) {
        let leaving = ready.iter().filter(|(_, reading)| !reading.verdict.has_previous_message());
        self.note_verified(sink, leaving.map(|(opened, _)| opened.file.n));
        let stripped = ready.iter().filter(|(opened, reading)| {
            let lost = F::is_signed(opened.file.row.companion_hash)
                && !F::is_signed(opened.companion_hash);
            lost && reading.verdict.has_previous_message()
        });
        for n in self.filter_verified(sink, stripped.map(|(opened, _)| opened.file.n)) {
            self.note_stripped_signature(n);
        }
        for (opened, reading) in ready {
            let FileVerdict::Message { message, same: false } = &reading.verdict else { continue };
            let facts = F::message_facts(message);
            if self.is_tampered(opened.file, facts) {
                reading.verdict = FileVerdict::Rejected(FileRejection {
                    reason: REASON.to_owned(),
                    time: Some(Timestamp::from_millis(facts.time())),
                    ..FileRejection::default()
                });
            }
        }
    }

    /// Notes the content of a verified message whose signature is gone, so that no other text can take its place.
    fn note_stripped_signature(&self, n: u32) {
        let table = self.table.read();
        if let Some(facts) = table.facts(n).copied() {
            let path = F::lasting_path(table.folder(n), table.name(n));
            drop(table);
            self.reader.tamper_log.note_hashes(path, facts.hashes());
        }
    }

    /// Returns true if a file held a verified message under this id, and none with this content. It then notes the
    /// hashes of that message.
    pub fn is_tampered(&self, file: &StoreFile<F::Facts>, facts: &F::Facts) -> bool {
        let ((id, content), earlier) = (facts.hashes(), facts.earlier_content_hash());
        let mut left: Vec<(u64, u64)> = {
            let table = self.table.read();
            let current = Some(file.n)
                .filter(|n| table.row(*n).is_some_and(|r| r.has_flag(FileFlags::VERIFIED)));
            let left =
                table.retired_numbers(file.row.folder, &file.name).into_iter().chain(current);
            left.filter_map(|n| Some(table.facts(n)?.hashes())).collect()
        };
        left.retain(|held| held.0 == id);
        let log = &self.reader.tamper_log;
        let mut noted = log.noted_hashes(|| F::lasting_path(&file.folder, &file.name));
        // Earlier builds noted the whole path.
        noted.extend(log.noted_hashes(|| file.path()));
        let held: Vec<_> = left.iter().chain(&noted).filter(|held| held.0 == id).collect();
        if held.is_empty() || held.iter().any(|held| [content, earlier].contains(&held.1)) {
            return false;
        }
        for prints in left {
            self.reader.tamper_log.note_hashes(F::lasting_path(&file.folder, &file.name), prints);
        }
        true
    }
}
