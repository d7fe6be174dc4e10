//! The scan that turns changed files into messages.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::FileType;

use super::batch::{FileReader, FileReadingResult, ReadBatch, file_inputs, parse_files};
use super::format::{
    FileFormat, FileInput, FileReading, FileRejection, FileVerdict, MessageReporter, PassSummary,
    PendingReport, describe_odd_type,
};
use super::open::StoreFile;
use super::qualifier_log::QualifierLog;
use super::table::{FileFlags, FileTable, stamp_hash};
use super::walk::{DirCache, ScanWork};
use super::{FileStore, GRACE, LOOK_EVERY};
use crate::model::sanitize_line;
use crate::store::engine::sources::ScanMemory;
use crate::store::fs::{self, Stamp};
use crate::store::{FoundMessage, Location, Rejection, ScanSink, StoreError, parallel};

/// Files that are read before their messages are reported.
const CHUNK: usize = 128;
/// The number of files from which other threads are worth their start.
const MANY: usize = 64;
/// The faults of a message whose file is no message any more, if its last text is there and if it is not.
const BROKEN: &str = "cannot be read as a message now; its last readable text is shown";
const BROKEN_WITHOUT_TEXT: &str =
    "cannot be read as a message now; it stays listed, without text until the file is mended";

/// The access of a format to the table while files are accepted.
#[derive(Debug)]
pub struct ScanPass<'a, F: FileFormat> {
    /// All files.
    pub table: &'a mut FileTable<F::Facts>,
    queue: &'a mut VecDeque<u32>,
    /// The messages whose ids carry a hash.
    pub(super) qualifier_log: &'a QualifierLog,
}

impl<F: FileFormat> ScanPass<'_, F> {
    /// Has files read and reported again.
    pub fn queue_files(&mut self, files: impl IntoIterator<Item = u32>) {
        self.queue.extend(files);
    }
}

/// An unfinished file.
#[derive(Clone, Debug)]
pub(super) struct UnfinishedFile {
    /// The time at which it was first seen unfinished.
    pub since: Instant,
    /// The hash of the stamp that it had.
    stamp: u64,
}

struct FileScan<'a, F: FileFormat> {
    files: &'a FileStore<F>,
    context: &'a F::Context,
    sink: &'a mut dyn ScanSink,
    dirs: DirCache<'a>,
    queue: VecDeque<u32>,
    waiting: HashMap<u32, UnfinishedFile>,
    /// Numbers whose rescan was begun.
    rescan_numbers: BTreeSet<u32>,
    /// True if not everything could be reported anew.
    keeps_reported: bool,
    touched: BTreeSet<u32>,
    done: u64,
    total: u64,
}

/// Reports everything that is new or changed.
///
/// # Errors
/// If nothing can be judged now, or the store's folder cannot be opened.
pub(super) fn scan_files<F: FileFormat>(
    store: &FileStore<F>,
    memory: &mut ScanMemory,
    full: bool,
    sink: &mut dyn ScanSink,
) -> Result<(), StoreError> {
    let scanned = scan_if_possible(store, memory, full, sink);
    if !matches!(scanned, Ok(true)) {
        store.postpone_unfinished();
    }
    scanned.map(drop)
}

/// Reports everything that is new or changed. Returns false if nothing could be judged.
fn scan_if_possible<F: FileFormat>(
    store: &FileStore<F>,
    memory: &mut ScanMemory,
    full: bool,
    sink: &mut dyn ScanSink,
) -> Result<bool, StoreError> {
    let Some((context, basis)) = store.format.load_context(store)? else { return Ok(false) };
    if memory.basis != basis {
        store.table.write().forget_stamps();
        *memory = ScanMemory { basis, is_listed: false };
    }
    let first = !memory.is_listed;
    let noted = store.take_noted_paths();
    let work = if full || first { store.walk_store()? } else { store.scan_noted_paths(&noted)? };
    let Some(mut work) = work else { return Ok(false) };
    memory.is_listed = true;
    work.is_first = first;
    work.changed.extend(store.format.messages_to_reread(&context, &store.table.read()));
    let mut scan = FileScan::new(store, &context, sink);
    work.changed.extend(scan.due_files());
    scan.process_work(work);
    while !scan.waiting.is_empty() && !scan.sink.is_watched() {
        std::thread::sleep(LOOK_EVERY);
        let mut work = store.scan_noted_paths(&store.take_noted_paths())?.unwrap_or_default();
        work.changed.extend(scan.due_files());
        scan.process_work(work);
    }
    *store.reader.unfinished.lock() = scan.waiting;
    if first {
        store.table.write().shrink_to_fit();
    }
    if full || first {
        store.report_broken();
    }
    Ok(true)
}

impl<F: FileFormat> FileStore<F> {
    /// Leaves unfinished files to the next scan that can judge them. A file that stayed due would have the store
    /// scanned without a pause.
    fn postpone_unfinished(&self) {
        let unfinished = std::mem::take(&mut *self.reader.unfinished.lock());
        let table = self.table.read();
        let paths = unfinished.keys().filter_map(|n| table.path(*n));
        let paths: Vec<PathBuf> = paths.map(|path| self.properties.dir.join(path)).collect();
        drop(table);
        self.noted.lock().extend(paths);
    }

    /// Adds files that are still broken to the list of faults, after that was begun anew.
    fn report_broken(&self) {
        let table = self.table.read();
        for (n, ..) in table.messages().filter(|(_, row, _)| row.has_flag(FileFlags::BROKEN)) {
            let has_text = table.last_texts.contains_key(&n);
            self.note_broken(&table.path(n).unwrap_or_default(), has_text);
        }
    }

    /// Adds a broken file to the list of faults.
    fn note_broken(&self, path: &str, has_text: bool) {
        let fault = if has_text { BROKEN } else { BROKEN_WITHOUT_TEXT };
        self.health.set_fault(path, Some(fault.into()));
    }
}

impl<'s, F: FileFormat> FileScan<'s, F> {
    fn new(files: &'s FileStore<F>, context: &'s F::Context, sink: &'s mut dyn ScanSink) -> Self {
        Self {
            files,
            context,
            sink,
            dirs: DirCache::new(&files.properties.dir),
            queue: VecDeque::new(),
            // The store keeps its list meanwhile: a file does not stop being due while it is examined.
            waiting: files.reader.unfinished.lock().clone(),
            rescan_numbers: BTreeSet::new(),
            keeps_reported: false,
            touched: BTreeSet::new(),
            done: 0,
            total: 0,
        }
    }

    /// Returns the files for which [`GRACE`] is over, or that have changed since they were found unfinished.
    fn due_files(&mut self) -> Vec<u32> {
        let mut out = Vec::new();
        for (n, waiting) in &self.waiting {
            let file = StoreFile::from_table(&self.files.table.read(), *n);
            let found = file.and_then(|f| self.dirs.stat(&f.folder, &f.name).ok().flatten());
            let same = found.is_some_and(|(_, stamp)| stamp_hash(&stamp) == waiting.stamp);
            out.extend((!same || waiting.since.elapsed() >= GRACE).then_some(*n));
        }
        out
    }

    fn process_work(&mut self, mut work: ScanWork) {
        self.add_dependent(&mut work);
        work.changed.sort_unstable();
        work.changed.dedup();
        self.total += work.changed.len() as u64;
        self.queue.extend(work.changed);
        self.remove_gone_files(&work.gone);
        loop {
            while !self.queue.is_empty() {
                self.read_queue();
            }
            let touched = std::mem::take(&mut self.touched);
            let (files, context) = (self.files, self.context);
            let ScanWork { is_full, is_first, ref groups, .. } = work;
            let touched = &touched;
            let mut done = PassSummary { files, is_full, is_first, touched, groups, reports: self };
            let more = files.format.finish_pass(context, &mut done);
            self.queue.extend(more);
            if self.queue.is_empty() {
                break;
            }
        }
        if !self.rescan_numbers.is_empty() {
            let again: Vec<u32> = std::mem::take(&mut self.rescan_numbers).into_iter().collect();
            if std::mem::take(&mut self.keeps_reported) {
                self.sink.abort_rescan(&again);
            } else {
                self.sink.end_rescan(&again);
            }
        }
    }

    /// Adds files whose meaning depends on others in folders in which something changed.
    fn add_dependent(&self, work: &mut ScanWork) {
        let table = self.files.table.read();
        let changed = work.changed.iter().chain(&work.gone);
        let folders: BTreeSet<u32> = changed.filter_map(|n| Some(table.row(*n)?.folder)).collect();
        let depends = |n: &u32| table.row(*n).is_some_and(|row| row.has_flag(FileFlags::DEPENDS));
        let dependent = folders.iter().flat_map(|folder| table.files_in(*folder)).filter(depends);
        work.changed.extend(dependent);
    }

    /// Begins the rescan of reported files that are gone or are about to be reported anew.
    fn start_rescan(&mut self, again: Vec<u32>) {
        let new: Vec<u32> = again.into_iter().filter(|n| self.rescan_numbers.insert(*n)).collect();
        if !new.is_empty() {
            self.sink.begin_rescan(&new);
        }
    }

    /// Removes files that are no longer there.
    fn remove_gone_files(&mut self, gone: &[u32]) {
        for n in gone {
            self.waiting.remove(n);
        }
        if gone.is_empty() || fs::is_folder_missing(&self.files.properties.dir) {
            return;
        }
        self.files.note_verified(self.sink, gone.iter().copied());
        let mut reported = Vec::new();
        for n in gone {
            self.touched.insert(*n);
            let mut table = self.files.table.write();
            let Some(row) = table.row(*n).copied().filter(|row| !row.has_flag(FileFlags::GONE))
            else {
                continue;
            };
            table.retire_number(*n);
            if row.is_message() || row.is_rejected() {
                reported.push(*n);
            }
            self.drop_message(&mut table, *n, row.is_message());
            let path = table.path(*n).unwrap_or_default();
            drop(table);
            self.files.health.set_fault(&path, None);
        }
        self.start_rescan(reported);
    }

    /// Tells the format that a file no longer holds the message that it held.
    fn drop_message(&mut self, table: &mut FileTable<F::Facts>, n: u32, was_message: bool) {
        if was_message {
            let qualifier_log = &self.files.reader.qualifier_log;
            let mut pass = ScanPass { table, queue: &mut self.queue, qualifier_log };
            self.files.format.forget_message(&mut pass, n);
        }
        table.qualifiers.remove(&n);
        table.last_texts.remove(&n);
    }

    /// Reads the files of the queue, on all cores if there are many, and accepts them in their order.
    fn read_queue(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        let (files, context) = (self.files, self.context);
        let many = queue.len() >= MANY;
        let own = &mut FileReader::<F>::default();
        let next = |reader: &mut FileReader<F>| {
            reader.queue.extend(queue.drain(..CHUNK.min(queue.len())));
            (!reader.queue.is_empty()).then_some(())
        };
        parallel::process_in_order(many, own, self, next, |reader, (), turn| {
            let reads = reader.read_batch(files);
            let opened = file_inputs(&reads);
            let readings = parse_files(files, context, reader.dirs(files), &opened);
            turn.run_in_turn(|scan| {
                scan.accept_batch(&reads, &opened, readings);
                // These files were too much to be held at once.
                while !reader.queue.is_empty() {
                    let reads = reader.read_batch(files);
                    let opened = file_inputs(&reads);
                    let readings = parse_files(files, context, reader.dirs(files), &opened);
                    scan.accept_batch(&reads, &opened, readings);
                }
            });
            reader.buffer = reads.bytes;
        });
    }

    /// Reports the messages of these files.
    fn accept_batch<'r>(
        &mut self,
        reads: &'r ReadBatch<F::Facts>,
        opened: &'r [FileInput<'r, F::Facts>],
        readings: Vec<FileReadingResult<'r, F>>,
    ) {
        self.done += reads.count as u64;
        self.remove_gone_files(&reads.gone);
        let (mut ready, mut refused) = (Vec::new(), Vec::new());
        for (file, error) in &reads.failed {
            self.handle_unreadable(file, error, &mut refused);
        }
        self.send_batch(&mut Vec::new(), &mut refused);
        for (opened, reading) in opened.iter().zip(readings) {
            match reading {
                Err(e) => self.handle_unreadable(opened.file, &e, &mut refused),
                Ok(reading) if reading.unfinished && self.should_wait(opened) => {}
                Ok(reading) => {
                    self.waiting.remove(&opened.file.n);
                    ready.push((opened, reading));
                }
            }
        }
        let ready = self.assign_numbers(ready);
        let mut found = Vec::new();
        for (opened, n, reading) in ready {
            self.accept_file(opened, n, reading, &mut found, &mut refused);
        }
        self.send_batch(&mut found, &mut refused);
        self.sink.report_progress(self.done.min(self.total), self.total);
    }

    fn send_batch(&mut self, found: &mut Vec<FoundMessage<'_>>, refused: &mut Vec<Rejection>) {
        if found.is_empty() && refused.is_empty() {
            return;
        }
        let table = self.files.table.read();
        let path = |at: &Location| {
            let path = table.path(at.source);
            path.unwrap_or_else(|| panic!("the table of files has no file {}", at.source))
        };
        for one in found.iter_mut() {
            one.path = path(&one.at).into();
        }
        for one in refused.iter_mut() {
            one.path = path(&one.at);
        }
        drop(table);
        let decided = self.sink.report_batch(found, refused);
        F::note_decisions(self.files, &decided);
        found.clear();
        refused.clear();
    }

    /// Returns true if an unfinished file gets more time.
    fn should_wait(&mut self, opened: &FileInput<'_, F::Facts>) -> bool {
        let n = opened.file.n;
        let since = self.waiting.get(&n).map_or_else(Instant::now, |w| w.since);
        let waits = since.elapsed() < GRACE && opened.is_fresh();
        if waits {
            self.waiting.insert(n, UnfinishedFile { since, stamp: stamp_hash(&opened.stamp) });
        }
        waits
    }

    /// Gives another number to files that hold another message than the reported one. Has the reported ones rescanned.
    fn assign_numbers<'r>(
        &mut self,
        mut ready: Vec<JudgedFile<'r, F>>,
    ) -> Vec<NumberedFile<'r, F>> {
        let mut again = Vec::new();
        let mut out = Vec::new();
        self.files.reject_tampered_files(self.sink, &mut ready);
        for (opened, reading) in ready {
            let (n, row) = (opened.file.n, &opened.file.row);
            let stays = reading.verdict.has_previous_message() && row.is_message();
            let renewed = row.is_message() && !matches!(reading.verdict, FileVerdict::Broken(_));
            if !stays && (row.is_message() || row.is_rejected()) {
                again.push(n);
            }
            let mut table = self.files.table.write();
            let number = if renewed && !stays { table.renew_number(n) } else { Some(n) };
            if number != Some(n) {
                self.drop_message(&mut table, n, true);
            }
            self.touched.insert(n);
            out.extend(number.map(|number| (opened, number, reading)));
        }
        self.start_rescan(again);
        out
    }

    /// Notes the verdict on a file, and adds the file to the report.
    fn accept_file<'r>(
        &mut self,
        opened: &'r FileInput<'r, F::Facts>,
        n: u32,
        reading: FileReading<F::Message<'r>, F::Facts>,
        found: &mut Vec<FoundMessage<'r>>,
        refused: &mut Vec<Rejection>,
    ) {
        self.touched.insert(n);
        let mut table = self.files.table.write();
        let refusal = match reading.verdict {
            FileVerdict::Broken(_) if opened.file.row.is_message() => {
                table.update_row(n, |row, _| {
                    row.stamp = stamp_hash(&opened.stamp);
                    row.set_flag(FileFlags::BROKEN, true);
                });
                let text = self.files.format.last_text(n);
                table.last_texts.extend(text.map(|text| (n, text)));
                let has_text = table.last_texts.contains_key(&n);
                drop(table);
                // Nothing is reported of the file, but the table must be saved.
                self.sink.resume_source(n);
                if !has_text {
                    self.sink.note_lost_texts(&[n]);
                }
                return self.files.note_broken(&opened.file.path(), has_text);
            }
            FileVerdict::Broken(refusal) | FileVerdict::Rejected(refusal) => Some(refusal),
            FileVerdict::Message { message, same } => {
                note_file(&mut table, n, opened, Some(FileFlags::MESSAGE), reading.depends);
                let old = opened.file.message_facts().copied();
                let taken = PendingReport {
                    n,
                    opened,
                    message,
                    previous_facts: old,
                    is_same: same && old.is_some(),
                };
                let qualifier_log = &self.files.reader.qualifier_log;
                let mut pass =
                    ScanPass { table: &mut table, queue: &mut self.queue, qualifier_log };
                found.extend(self.files.format.accept_message(self.context, &mut pass, taken));
                None
            }
            FileVerdict::Nothing => {
                note_file(&mut table, n, opened, None, reading.depends);
                None
            }
        };
        if let Some(refusal) = refusal {
            note_file(&mut table, n, opened, Some(FileFlags::REFUSED), reading.depends);
            refused.push(reject_file(&mut table, n, opened, refusal));
        }
        drop(table);
        if opened.file.row.has_flag(FileFlags::BROKEN) {
            self.files.health.set_fault(&opened.file.path(), None);
        }
    }

    /// Handles a file that is there and cannot be read.
    fn handle_unreadable(
        &mut self,
        file: &StoreFile<F::Facts>,
        error: &io::Error,
        refused: &mut Vec<Rejection>,
    ) {
        let n = file.n;
        self.waiting.remove(&n);
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        if fs::is_transient(error) || denied && file.row.is_message() {
            // The file stays what it was. Without a stamp, the next walk reads it.
            self.files.health.note_error(&file.path(), "be read now", error);
            return self.files.table.write().update_row(n, |row, _| row.stamp = 0);
        }
        let found = self.dirs.stat(&file.folder, &file.name).ok().flatten();
        let other = found.filter(|(kind, _)| *kind != FileType::RegularFile);
        let (reason, stamp) = match other {
            Some((kind, stamp)) => (describe_odd_type(kind), stamp),
            None => (format!("it cannot be read: {error}"), Stamp::default()),
        };
        let opened = FileInput { file, stamp, companion_hash: 0, bytes: &[] };
        for (opened, n, reading) in
            self.assign_numbers(vec![(&opened, FileReading::rejected(reason))])
        {
            self.accept_file(opened, n, reading, &mut Vec::new(), refused);
            if other.is_none() {
                self.files.table.write().update_row(n, |row, _| row.stamp = 0);
            }
        }
    }
}

impl<F: FileFormat> fmt::Debug for FileScan<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileScan").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<F: FileFormat> MessageReporter for FileScan<'_, F> {
    fn begin_rescan(&mut self, files: Vec<u32>) {
        self.start_rescan(files);
    }

    fn report_messages(&mut self, found: &mut Vec<FoundMessage<'_>>) {
        Self::send_batch(self, found, &mut Vec::new());
    }

    fn keep_reported(&mut self) {
        self.keeps_reported = true;
    }

    fn note_lost_texts(&mut self, files: &[u32]) {
        self.sink.note_lost_texts(files);
    }
}

/// A file that was read, and its reading.
pub(super) type JudgedFile<'r, F> = (
    &'r FileInput<'r, <F as FileFormat>::Facts>,
    FileReading<<F as FileFormat>::Message<'r>, <F as FileFormat>::Facts>,
);
/// A file, its new number, and its reading.
type NumberedFile<'r, F> = (
    &'r FileInput<'r, <F as FileFormat>::Facts>,
    u32,
    FileReading<<F as FileFormat>::Message<'r>, <F as FileFormat>::Facts>,
);

/// Notes that a file was read, and what it is.
fn note_file<T: super::FileFacts>(
    table: &mut FileTable<T>,
    n: u32,
    opened: &FileInput<'_, T>,
    is: Option<FileFlags>,
    depends: bool,
) {
    table.update_row(n, |row, _| {
        row.stamp = stamp_hash(&opened.stamp);
        row.companion_hash = opened.companion_hash;
        row.len = u32::try_from(opened.bytes.len()).unwrap_or(u32::MAX);
        for flag in [FileFlags::MESSAGE, FileFlags::REFUSED, FileFlags::BROKEN] {
            row.set_flag(flag, is == Some(flag));
        }
        row.set_flag(FileFlags::DEPENDS, depends);
    });
    table.last_texts.remove(&n);
}

/// Notes the facts of a rejected file, and returns the rejection.
fn reject_file<T: super::FileFacts>(
    table: &mut FileTable<T>,
    n: u32,
    opened: &FileInput<'_, T>,
    refusal: FileRejection<T>,
) -> Rejection {
    table.update_row(n, |_, facts| *facts = refusal.facts);
    Rejection {
        at: StoreFile::<T>::location(n, opened.bytes.len()),
        reason: sanitize_line(&refusal.reason).into_owned(),
        time: refusal.time.unwrap_or_else(|| opened.stamp.modified()),
        incomplete: refusal.incomplete,
        ..Rejection::default()
    }
}
