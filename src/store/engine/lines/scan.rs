//! The scan of logs.
//!
//! These are the dangers, and how the scan meets them:
//!
//! 1. Logs grow while they are read. A line counts when its newline is there, or when it is complete. The cursor never
//!    moves past an unterminated line, so the next scan reads the rest of it.
//! 2. Logs are replaced by rename, truncated, or rewritten in place. A cursor holds as long as the log is the same
//!    file, longer, and the bytes before the cursor are the same. Else the log is read again from its start, and the
//!    index drops messages that are not found.
//! 3. A program that rewrites a log in place leaves it empty or short for a moment. If programs of the format do so
//!    ([`LogShape::rewritten`](super::LogShape)), a log that has lost lines is examined again for up to [`GRACE`].
//!    Until then none of its messages vanishes. Such a scan lasts up to a second longer, and goes on taking in paths
//!    that are noted meanwhile.
//! 4. The end of a log may be a torn line while its writer is writing. It is reported only when the log was left alone
//!    for [`GRACE`].
//! 5. Copies that sync programs put beside a log are read after it, and again whenever it is. So a message in both is
//!    located in the log itself.
//! 6. One bad line, file or folder never hides another: it is rejected, or named in `health`.
//! 7. If a log or its folder cannot be read now, or the folder is missing, earlier messages stay.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::fold::{LineBuffer, LineFold, parse_lines, recycle_list};
use super::log::{LineRun, LogCursor, LogReader, read_lines, split_lines};
use super::log_file::{LogFile, open_below, split_log_name};
use super::table::{LogRowOf, LogSource};
use super::{LineFormat, LineStore};
use crate::model::{Timestamp, verify};
use crate::store::fs::{self, Stamp};
use crate::store::{
    FoundMessage, Rejection, ScanSink, StoreError, confined, parallel, set_source_path,
};

/// The time for which a log that lost lines, or has a torn tail, is not believed.
const GRACE: Duration = Duration::from_secs(1);
/// The interval between examinations meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The change of a log since it was last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogChange {
    Same,
    /// Growth: the log has this stamp now, and all bytes after the cursor are new.
    Grown(Stamp),
    /// Any other change of the log, or of all its messages by its head. `fewer` means that it has lost lines.
    Other {
        stamp: Stamp,
        fewer: bool,
    },
    Gone,
    /// An unknown change: the log cannot be read now, or its change is not believed yet.
    Unknown,
}

/// Reports everything new. The comment at the top of this module has the rules.
pub(super) fn scan_logs<F: LineFormat>(
    store: &LineStore<F>,
    listed: &mut bool,
    full: bool,
    sink: &mut dyn ScanSink,
) -> Result<(), StoreError> {
    let first = !*listed;
    let mut scan = LogScan {
        store,
        sink,
        reread_queue: BTreeSet::new(),
        waiting: HashMap::new(),
        folders: HashMap::new(),
        buffer: LineBuffer::default(),
        done: 0,
        total: 0,
    };
    // A scan without a list of changed paths examines every log if all logs lie in one folder.
    let unasked = F::SHAPE.is_flat() && store.noted.lock().is_empty();
    let work = scan.find_changed_logs(full || first || unasked)?;
    *listed = true;
    scan.process_logs(&work);
    while !scan.waiting.is_empty() {
        std::thread::sleep(LOOK_EVERY);
        let mut work = scan.find_changed_logs(false)?;
        work.extend(scan.waiting.keys().filter_map(|source| source.log_number()));
        scan.process_logs(&work);
        // A log whose whole folder is gone is examined no more, so nothing waits for it.
        scan.waiting.retain(|_, since| since.elapsed() < GRACE * 2);
    }
    F::finish_scan(&mut scan, first);
    Ok(())
}

/// A scan under way.
pub struct LogScan<'a, F: LineFormat> {
    /// The store that is scanned.
    pub store: &'a LineStore<F>,
    /// The receiver of reports.
    pub sink: &'a mut dyn ScanSink,
    /// Logs that must be read again because of messages in others.
    pub reread_queue: BTreeSet<u32>,
    /// Files that vanished or lost lines, and since when.
    waiting: HashMap<LogSource, Instant>,
    /// The open folders with logs, by root.
    pub(super) folders: HashMap<u32, Rc<OwnedFd>>,
    buffer: LineBuffer<F>,
    done: u64,
    total: u64,
}

impl<F: LineFormat> LogScan<'_, F> {
    fn process_logs(&mut self, work: &BTreeSet<u32>) {
        let retold = F::read_heads(self, work);
        let mut order: Vec<u32> = work.union(&retold).copied().collect();
        {
            // The order is the same on every machine, because the first log may decide.
            let table = self.store.table.read();
            let place = |l: &LogRowOf<F>| (l.root, F::log_rank(l), l.name.clone());
            order.sort_by_cached_key(|n| table.get(*n).map(place));
        }
        self.update_logs(&order, &retold);
        loop {
            F::note_read(self);
            let Some(n) = self.reread_queue.pop_first() else { break };
            self.update_logs(&[n], &BTreeSet::from([n]));
        }
        self.folders.clear();
        self.total = self.done;
    }

    /// Brings the messages of these logs up to date. All messages of `retold` logs are reported again.
    fn update_logs(&mut self, order: &[u32], retold: &BTreeSet<u32>) {
        let changes: HashMap<u32, LogChange> =
            order.iter().map(|n| (*n, self.detect_change(*n, retold.contains(n)))).collect();
        let lost =
            |n: &&u32| matches!(changes.get(n), Some(LogChange::Other { .. } | LogChange::Gone));
        let mut redo: BTreeSet<u32> =
            order.iter().filter(lost).flat_map(|n| self.log_group(*n)).collect();
        self.total += self.count_bytes(&changes, &redo);
        for n in order {
            if redo.contains(n) {
                let group = self.log_group(*n);
                redo.retain(|n| !group.contains(n));
                self.rescan_group(&group, &changes);
            } else if let Some(LogChange::Grown(stamp)) = changes.get(n)
                && let Some(mut log) = self.clone_log(*n)
            {
                self.sink.resume_source(LogSource::Log(*n).number());
                // `health` names an error, and the next scan reads on.
                let _ = self.read_log(*n, &mut log, stamp, false);
            }
        }
    }

    fn clone_log(&self, n: u32) -> Option<LogRowOf<F>> {
        self.store.table.read().get(n).cloned()
    }

    /// Returns the logs that are read again together, the first one first.
    fn log_group(&self, n: u32) -> Vec<u32> {
        if !F::SHAPE.has_copies {
            return vec![n];
        }
        let table = self.store.table.read();
        let key = table.get(n).map(F::log_key);
        let mut group: Vec<(u32, &LogRowOf<F>)> =
            table.iter_numbered().filter(|(_, log)| Some(F::log_key(log)) == key).collect();
        group.sort_by(|(_, a), (_, b)| (F::log_rank(a), &a.name).cmp(&(F::log_rank(b), &b.name)));
        group.into_iter().map(|(n, _)| n).collect()
    }

    /// Returns the number of bytes to read.
    fn count_bytes(&self, changes: &HashMap<u32, LogChange>, redo: &BTreeSet<u32>) -> u64 {
        let table = self.store.table.read();
        let bytes = |(n, change): (&u32, &LogChange)| match change {
            LogChange::Grown(stamp) if !redo.contains(n) => {
                stamp.size.saturating_sub(table.get(*n).map_or(0, |log| log.tally.offset))
            }
            LogChange::Grown(stamp) | LogChange::Other { stamp, .. } => stamp.size,
            LogChange::Same if redo.contains(n) => {
                table.get(*n).and_then(|log| log.stamp).map_or(0, |stamp| stamp.size)
            }
            _ => 0,
        };
        changes.iter().map(bytes).sum()
    }

    /// Opens the folder of a root that contains its logs.
    pub(super) fn open_root_folder(&mut self, n: u32) -> io::Result<Rc<OwnedFd>> {
        if let Some(dir) = self.folders.get(&n) {
            return Ok(Rc::clone(dir));
        }
        let root = self.store.table.read().roots.get(n as usize).cloned();
        let root = root.filter(|root| root.here).ok_or(io::ErrorKind::NotFound)?;
        let dir = Rc::new(confined::open_dir(&root.path, F::SHAPE.folder)?);
        self.folders.insert(n, Rc::clone(&dir));
        Ok(dir)
    }

    /// Opens the folder that contains a log.
    pub fn open_log_folder(&mut self, log: &LogRowOf<F>) -> io::Result<Rc<OwnedFd>> {
        let dir = self.open_root_folder(log.root)?;
        match F::SHAPE.log_file {
            None => open_below(&dir, split_log_name(&log.name).0),
            Some(_) => Ok(Rc::new(confined::open_subdir(&dir, &log.name)?)),
        }
    }

    /// Returns true if a log lies in the store's own root and that root is missing. Its messages then stay.
    pub fn is_root_missing(&self, log: &LogRowOf<F>) -> bool {
        log.root == 0 && fs::is_folder_missing(&self.store.properties.dir)
    }

    /// Returns the change of a log since it was last read.
    fn detect_change(&mut self, n: u32, retold: bool) -> LogChange {
        let Some(log) = self.clone_log(n) else { return LogChange::Same };
        let source = LogSource::Log(n);
        let gone = if log.stamp.is_some() { LogChange::Gone } else { LogChange::Same };
        if !log.is_shown() {
            self.stop_waiting(source);
            return gone;
        }
        let path = log.path(F::SHAPE.log_file);
        self.store.health.set_fault(&path, None);
        let dir = match self.open_log_folder(&log) {
            Ok(dir) => dir,
            Err(e) => {
                if !fs::is_absent(&e) {
                    self.store.health.note_error(&path, "be read", &e);
                } else if F::SHAPE.tree.is_some() && self.open_root_folder(log.root).is_ok() {
                    // The folder of logs is there, and one below it is not.
                    return gone;
                }
                return LogChange::Unknown;
            }
        };
        match F::SHAPE.stat_log(&dir, &log.name) {
            Ok((_, FileType::RegularFile, stamp)) => {
                self.compare_stamp(n, &log, &dir, stamp, retold)
            }
            Ok((_, kind, _)) => {
                let what =
                    format!("is skipped: it is {}, not a file", confined::describe_type(kind));
                self.store.health.set_fault(&path, Some(what));
                self.stop_waiting(source);
                gone
            }
            Err(e) if !fs::is_absent(&e) => {
                self.store.health.note_error(&path, "be read", &e);
                LogChange::Unknown
            }
            Err(_) if gone == LogChange::Same => gone,
            Err(_) if self.is_root_missing(&log) => LogChange::Unknown,
            Err(_) if F::SHAPE.rewritten && self.should_wait(source, &dir_stamp(&dir)) => {
                LogChange::Unknown
            }
            Err(_) => gone,
        }
    }

    fn compare_stamp(
        &mut self,
        n: u32,
        log: &LogRowOf<F>,
        dir: &OwnedFd,
        stamp: Stamp,
        retold: bool,
    ) -> LogChange {
        let source = LogSource::Log(n);
        let Some(old) = log.stamp.filter(|old| *old != stamp || retold) else {
            self.stop_waiting(source);
            let told = log.stamp.is_some() && !log.half;
            return if told { LogChange::Same } else { LogChange::Grown(stamp) };
        };
        let LogFile { file, .. } = match F::SHAPE.open_log(dir, &log.name) {
            Ok(file) => file,
            Err(e) => {
                self.store.health.note_error(&log.path(F::SHAPE.log_file), "be read", &e);
                return if fs::is_absent(&e) { LogChange::Gone } else { LogChange::Unknown };
            }
        };
        // A last line that was reported without its newline may have changed since.
        let longer = old.is_same_file(&stamp) && stamp.size > old.size && !log.tail;
        if longer && !retold && log.tally.matches_file(&file, stamp.size) {
            self.stop_waiting(source);
            return LogChange::Grown(stamp);
        }
        let fewer = F::SHAPE.rewritten && has_fewer_lines(&file, &stamp, &log.tally);
        if fewer && self.should_wait(source, &stamp) {
            return LogChange::Unknown;
        }
        self.stop_waiting(source);
        LogChange::Other { stamp, fewer }
    }

    /// Returns true if a file that vanished a moment ago still counts as present.
    pub fn should_wait(&mut self, file: LogSource, changed: &Stamp) -> bool {
        let since = *self.waiting.entry(file).or_insert_with(Instant::now);
        let age = Timestamp::now().millis() - changed.modified().millis();
        let young = age < GRACE.as_millis() as i64;
        if young && since.elapsed() < GRACE {
            return true;
        }
        self.stop_waiting(file);
        false
    }

    /// Accepts the present state of a file.
    pub fn stop_waiting(&mut self, file: LogSource) {
        self.waiting.remove(&file);
    }

    /// Reads logs again from the start, except those whose change is unknown.
    fn rescan_group(&mut self, group: &[u32], changes: &HashMap<u32, LogChange>) {
        let known = |n: &&u32| changes.get(n) != Some(&LogChange::Unknown);
        let group: Vec<u32> = group.iter().filter(known).copied().collect();
        let sources: Vec<u32> = group.iter().map(|n| LogSource::Log(*n).number()).collect();
        self.sink.begin_rescan(&sources);
        let mut whole = true;
        for n in &group {
            let Some(log) = self.clone_log(*n) else { continue };
            let read = match (changes.get(n), log.stamp) {
                (Some(LogChange::Other { stamp, fewer }), _) => {
                    let lines = if *fewer { 0 } else { log.tally.lines };
                    self.reread_log(*n, log, *stamp, lines)
                }
                (Some(LogChange::Grown(stamp)), _) => self.reread_log(*n, log, *stamp, 0),
                // The log itself is unchanged, but another log of this group has changed.
                (Some(LogChange::Same) | None, Some(stamp)) => self.reread_log(*n, log, stamp, 0),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            match read {
                Err(e) if fs::is_absent(&e) => self.forget_log(*n),
                read => whole &= read.is_ok(),
            }
        }
        if whole {
            for n in &group {
                F::note_reread(self, *n);
            }
            self.sink.end_rescan(&sources);
        } else {
            self.sink.abort_rescan(&sources);
        }
    }

    /// Hides the messages of a log.
    fn forget_log(&self, n: u32) {
        let Some(mut log) = self.clone_log(n) else { return };
        log.reset_for_reread();
        log.stamp = None;
        self.store.table.write().set_log(n, log);
    }

    /// Reads a whole log. A log that is rewritten meanwhile may end early, with fewer `lines` than it had, or be two
    /// logs in one.
    fn reread_log(
        &mut self,
        n: u32,
        mut log: LogRowOf<F>,
        stamp: Stamp,
        lines: u64,
    ) -> io::Result<()> {
        let until = Instant::now() + GRACE;
        loop {
            log.reset_for_reread();
            self.read_log(n, &mut log, &stamp, true)?;
            let fits = |opened: LogFile| log.tally.matches_file(&opened.file, u64::MAX);
            let torn = F::SHAPE.rewritten
                && (log.tally.lines < lines || !self.open_log(&log).is_ok_and(fits));
            if !torn || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Opens a log for reading.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open_log(&mut self, log: &LogRowOf<F>) -> io::Result<LogFile> {
        F::SHAPE.open_log(&*self.open_log_folder(log)?, &log.name)
    }

    /// Reads a log from its cursor. `seen` is its stamp when it was examined. If an error stops the reading, the next
    /// scan goes on there, or from the start if `again` is set.
    fn read_log(
        &mut self,
        n: u32,
        log: &mut LogRowOf<F>,
        seen: &Stamp,
        again: bool,
    ) -> io::Result<()> {
        let read = self.open_log(log).and_then(|LogFile { file, stamp, len }| {
            if !stamp.is_same_file(seen) {
                return Err(io::Error::other("it was replaced a moment ago"));
            }
            let read = self.read_log_lines(n, log, &file, len);
            log.stamp = Some(stamp);
            log.tally.store_prefix_hash(&file);
            if read.is_err() {
                // This is not the stamp of a file that was read to its end.
                log.stamp = Some(Stamp { ctime: 0, size: log.tally.offset, ..stamp });
                if again {
                    log.tally.invalidate();
                }
            }
            self.store.table.write().set_log(n, log.clone());
            read
        });
        if let Err(e) = &read {
            self.store.health.note_error(&log.path(F::SHAPE.log_file), "be read to its end", e);
        }
        read
    }

    fn read_log_lines(
        &mut self,
        n: u32,
        log: &mut LogRowOf<F>,
        file: &File,
        end: u64,
    ) -> io::Result<()> {
        let key = F::log_key(log);
        let mut reader = LogReader::new(file, log.tally.offset, end);
        let (store, many) = (self.store, reader.is_long());
        let mut failed = None;
        let next = |buffer: &mut LineBuffer<F>| {
            let next = reader.next(&mut buffer.bytes);
            next.unwrap_or_else(|e| {
                failed = Some(e);
                None
            })
        };
        let (sink, progress) = (&mut *self.sink, (&mut self.done, self.total));
        let path = store.table.read().raw_path(log, F::SHAPE.log_file);
        let fold = LineFold { store, sink, n, log: &mut *log, key: &key, path: &path };
        parallel::process_in_order(
            many,
            &mut self.buffer,
            (fold, progress),
            next,
            |buffer, next, turn| {
                let LineBuffer { bytes, found: room, work } = buffer;
                match next.to_run(bytes) {
                    LineRun::Lines(run, offset) => {
                        let lines = split_lines(run, offset);
                        let mut found = std::mem::take(room);
                        let said = parse_lines(store, work, n, &key, &lines, &mut found);
                        // Each thread has its own copy of the path, because threads would fight for one counter.
                        set_source_path(&path, &mut found, &mut []);
                        if many {
                            found
                                .iter()
                                .filter_map(|f| f.claim.as_deref())
                                .for_each(verify::check_claim);
                        }
                        turn.run_in_turn(|(fold, progress)| {
                            fold.accept_lines(said, &mut found, false);
                            fold.advance_cursor(run.len() as u64, progress);
                        });
                        *room = recycle_list(found);
                    }
                    LineRun::TooLong(offset, len) => turn.run_in_turn(|(fold, progress)| {
                        fold.reject_too_long(offset, len);
                        fold.advance_cursor(len, progress);
                    }),
                }
            },
        );
        let LogReader { carry: tail, .. } = reader;
        if let Some(e) = failed {
            return Err(e);
        }
        log.half = false;
        if !tail.trim_ascii().is_empty() {
            // The line is counted when its newline comes.
            let mut as_if = log.clone();
            as_if.half =
                !F::SHAPE.ignores_torn_tail() && is_recently_changed(&Stamp::from_file(file)?);
            let pieces = split_lines(&tail, log.tally.offset);
            let mut found = Vec::new();
            let said = parse_lines(store, &mut self.buffer.work, n, &key, &pieces, &mut found);
            let sink = &mut *self.sink;
            let mut fold = LineFold { store, sink, n, log: &mut as_if, key: &key, path: &path };
            log.tail = fold.accept_lines(said, &mut found, true);
            log.half = as_if.half && !log.tail;
            if log.half {
                // Perhaps no other event causes another scan of this log.
                self.store.health.read_fault.set();
            }
            log.facts = as_if.facts;
            log.tally.last_time = as_if.tally.last_time;
        }
        Ok(())
    }

    /// Reports what was found in a log, or in another file of its folder.
    pub fn report_found(
        &mut self,
        log: &LogRowOf<F>,
        file: Option<&str>,
        found: &mut Vec<FoundMessage<'_>>,
        bad: &mut Vec<Rejection>,
    ) {
        if !found.is_empty() || !bad.is_empty() {
            let path = self.store.table.read().raw_path(log, file);
            set_source_path(&path, found, bad);
            self.sink.report_batch(found, bad);
        }
    }
}

/// Returns true if a log was changed a moment ago, so that its writer may not be done.
pub(super) fn is_recently_changed(stamp: &Stamp) -> bool {
    let age = Timestamp::now().millis() - stamp.modified().millis();
    (0..GRACE.as_millis() as i64).contains(&age)
}

/// Returns the stamp of an open folder.
pub fn dir_stamp(dir: &OwnedFd) -> Stamp {
    rustix::fs::fstat(dir).map(|stat| Stamp::from(&stat)).unwrap_or_default()
}

/// Returns true if a log has fewer complete lines than were read of it.
fn has_fewer_lines<C>(file: &File, stamp: &Stamp, tally: &LogCursor<C>) -> bool {
    let mut lines = 0;
    let counted = read_lines(file, 0, stamp.size, |run| {
        lines += match run {
            LineRun::Lines(run, _) => memchr::memchr_iter(b'\n', run).count() as u64,
            LineRun::TooLong(..) => 1,
        };
    });
    counted.is_ok() && lines < tally.lines
}
