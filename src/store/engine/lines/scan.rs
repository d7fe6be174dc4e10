//! Following the logs.
//!
//! What bites here, and how it is met:
//!
//! 1. Logs grow under us: a line counts when its newline is there, or when it is complete; the position
//!    never moves past an unterminated line, so the rest of it is read next time.
//! 2. Logs are replaced by rename, truncated, or rewritten in place: a position holds as long as the log
//!    is the same file, longer, and the bytes before it are the same. Else the log is read again from
//!    its start, and the index drops what is not found.
//! 3. A program that rewrites a log in place leaves it empty or short for a moment. Where programs do so
//!    ([`Shape::rewritten`](super::Shape)), what has lost lines is looked at again for up to [`GRACE`],
//!    and until then nothing that was in it vanishes. A scan then lasts up to a second longer, and goes
//!    on taking in what is noted meanwhile.
//! 4. The end of a log may be half a line, for its writer is just writing. It is no news until the log
//!    was left alone for [`GRACE`].
//! 5. Copies that sync programs put beside a log are read after it, and again whenever it is, so that a
//!    message in both is located in the log itself.
//! 6. One bad line, file or folder never hides another: it is rejected, or named in `health`.
//! 7. What cannot be read now keeps what was read of it; so does a folder that is not there.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::fold::{Buffer, Fold, emptied, said};
use super::log::{Reader, Run, Tally, pieces, read_lines};
use super::table::{LogOf, Source};
use super::{Format, Lines};
use crate::model::{Timestamp, verify};
use crate::store::fs::{self, Stamp};
use crate::store::{Found, Rejected, Sink, StoreError, all_from, below, parallel};

/// How long a log that lost lines, or ends in half a line, is not believed.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What happened to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    /// It is like this now: what is behind the position is new.
    Grown(Stamp),
    /// It is not what was read before, or all of it is said differently. `fewer`: it has lost lines.
    Other {
        stamp: Stamp,
        fewer: bool,
    },
    Gone,
    /// It cannot be read now, or is not believed yet.
    Unknown,
}

/// Reports everything new. See the module for the rules.
pub(super) fn scan<F: Format>(
    store: &Lines<F>,
    listed: &mut bool,
    full: bool,
    sink: &mut dyn Sink,
) -> Result<(), StoreError> {
    let first = !*listed;
    // If it is there, it is missed from now on.
    store.health.missed(&store.about.dir);
    let mut scan = Scan {
        store,
        sink,
        again: BTreeSet::new(),
        waiting: HashMap::new(),
        folders: HashMap::new(),
        buffer: Buffer::default(),
        done: 0,
        total: 0,
    };
    // Who does not say what changed wants to know of everything, as far as one folder holds it.
    let unasked = F::SHAPE.is_flat() && !store.has_noted();
    let work = scan.survey(full || first || unasked)?;
    *listed = true;
    scan.run(&work);
    while !scan.waiting.is_empty() {
        std::thread::sleep(LOOK_EVERY);
        let mut work = scan.survey(false)?;
        work.extend(scan.waiting.keys().filter_map(|source| source.log()));
        scan.run(&work);
        // What nobody asks for any more, since its whole folder went, is not waited for.
        scan.waiting.retain(|_, since| since.elapsed() < GRACE * 2);
    }
    F::looked_at_all(&mut scan, first);
    Ok(())
}

/// A scan under way.
pub struct Scan<'a, F: Format> {
    /// What is scanned.
    pub store: &'a Lines<F>,
    /// Who is told.
    pub sink: &'a mut dyn Sink,
    /// Logs that must be read again because of what was found in others.
    pub again: BTreeSet<u32>,
    /// Files that vanished or lost lines, and since when.
    waiting: HashMap<Source, Instant>,
    /// The folders with logs that are open, by root.
    pub(super) folders: HashMap<u32, Rc<OwnedFd>>,
    buffer: Buffer<F>,
    done: u64,
    total: u64,
}

impl<F: Format> Scan<'_, F> {
    fn run(&mut self, work: &BTreeSet<u32>) {
        let retold = F::look_beside(self, work);
        let mut order: Vec<u32> = work.union(&retold).copied().collect();
        {
            // The same on every machine, for who is read first may matter.
            let table = self.store.table.read();
            let place = |l: &LogOf<F>| (l.root, F::rank(l), l.name.clone());
            order.sort_by_cached_key(|n| table.get(*n).map(place));
        }
        self.take(&order, &retold);
        while let Some(n) = self.again.pop_first() {
            self.take(&[n], &BTreeSet::from([n]));
        }
        self.folders.clear();
        self.total = self.done;
    }

    /// Brings the messages of these logs up to date; those of `retold` are all reported again.
    fn take(&mut self, order: &[u32], retold: &BTreeSet<u32>) {
        let changes: HashMap<u32, Change> =
            order.iter().map(|n| (*n, self.examine(*n, retold.contains(n)))).collect();
        let lost = |n: &&u32| matches!(changes.get(n), Some(Change::Other { .. } | Change::Gone));
        let mut redo: BTreeSet<u32> =
            order.iter().filter(lost).flat_map(|n| self.group(*n)).collect();
        self.total += self.bytes(&changes, &redo);
        for n in order {
            if redo.contains(n) {
                let group = self.group(*n);
                redo.retain(|n| !group.contains(n));
                self.redo(&group, &changes);
            } else if let Some(Change::Grown(stamp)) = changes.get(n)
                && let Some(mut log) = self.log(*n)
            {
                self.sink.resume(Source::Log(*n).number());
                // What could not be read is told, and read with the next scan.
                let _ = self.read(*n, &mut log, stamp, false);
            }
        }
    }

    fn log(&self, n: u32) -> Option<LogOf<F>> {
        self.store.table.read().get(n).cloned()
    }

    /// The logs that are read again together, the first one first.
    fn group(&self, n: u32) -> Vec<u32> {
        if !F::SHAPE.copies {
            return vec![n];
        }
        let table = self.store.table.read();
        let key = table.get(n).map(F::key);
        let mut group: Vec<(u32, &LogOf<F>)> =
            table.numbered().filter(|(_, log)| Some(F::key(log)) == key).collect();
        group.sort_by(|(_, a), (_, b)| (F::rank(a), &a.name).cmp(&(F::rank(b), &b.name)));
        group.into_iter().map(|(n, _)| n).collect()
    }

    /// How much is to be read.
    fn bytes(&self, changes: &HashMap<u32, Change>, redo: &BTreeSet<u32>) -> u64 {
        let table = self.store.table.read();
        let bytes = |(n, change): (&u32, &Change)| match change {
            Change::Grown(stamp) if !redo.contains(n) => {
                stamp.size.saturating_sub(table.get(*n).map_or(0, |log| log.tally.offset))
            }
            Change::Grown(stamp) | Change::Other { stamp, .. } => stamp.size,
            Change::Same if redo.contains(n) => {
                table.get(*n).and_then(|log| log.stamp).map_or(0, |stamp| stamp.size)
            }
            _ => 0,
        };
        changes.iter().map(bytes).sum()
    }

    /// The folder of a root in which its logs lie.
    pub(super) fn root_folder(&mut self, n: u32) -> io::Result<Rc<OwnedFd>> {
        if let Some(dir) = self.folders.get(&n) {
            return Ok(Rc::clone(dir));
        }
        let root = self.store.table.read().roots.get(n as usize).cloned();
        let root = root.filter(|root| root.here).ok_or(io::ErrorKind::NotFound)?;
        let dir = Rc::new(below::open_dir(&root.path, F::SHAPE.folder)?);
        self.folders.insert(n, Rc::clone(&dir));
        Ok(dir)
    }

    /// The folder in which a log lies.
    pub fn folder(&mut self, log: &LogOf<F>) -> io::Result<Rc<OwnedFd>> {
        let dir = self.root_folder(log.root)?;
        match F::SHAPE.file {
            None => Ok(dir),
            Some(_) => Ok(Rc::new(below::step(&dir, &log.name)?)),
        }
    }

    /// Whether the root a log lies in is the store's own and not there: then nothing in it is gone.
    pub fn is_away(&self, log: &LogOf<F>) -> bool {
        log.root == 0 && fs::is_away(&self.store.about.dir)
    }

    /// Tells what happened to a log since it was last read.
    fn examine(&mut self, n: u32, retold: bool) -> Change {
        let Some(log) = self.log(n) else { return Change::Same };
        let source = Source::Log(n);
        let gone = if log.stamp.is_some() { Change::Gone } else { Change::Same };
        if !log.is_read() {
            self.believe(source);
            return gone;
        }
        let path = log.path(F::SHAPE.file);
        self.store.health.set(&path, None);
        let dir = match self.folder(&log) {
            Ok(dir) => dir,
            Err(e) => {
                if !fs::is_absent(&e) {
                    self.store.health.cannot(&path, "be read", &e);
                }
                return Change::Unknown;
            }
        };
        match below::look(&dir, F::SHAPE.file.unwrap_or(&log.name)) {
            Ok((FileType::RegularFile, stamp)) => self.compare(n, &log, &dir, stamp, retold),
            Ok((kind, _)) => {
                let what = format!("is skipped: it is {}, not a file", below::describe_type(kind));
                self.store.health.set(&path, Some(what));
                self.believe(source);
                gone
            }
            Err(e) if !fs::is_absent(&e) => {
                self.store.health.cannot(&path, "be read", &e);
                Change::Unknown
            }
            Err(_) if gone == Change::Same => gone,
            Err(_) if self.is_away(&log) => Change::Unknown,
            Err(_) if F::SHAPE.rewritten && self.must_wait(source, &stamp_of(&dir)) => {
                Change::Unknown
            }
            Err(_) => gone,
        }
    }

    fn compare(
        &mut self,
        n: u32,
        log: &LogOf<F>,
        dir: &OwnedFd,
        stamp: Stamp,
        retold: bool,
    ) -> Change {
        let source = Source::Log(n);
        let Some(old) = log.stamp.filter(|old| *old != stamp || retold) else {
            self.believe(source);
            let told = log.stamp.is_some() && !log.half;
            return if told { Change::Same } else { Change::Grown(stamp) };
        };
        let file = match below::open_file(dir, F::SHAPE.file.unwrap_or(&log.name)) {
            Ok(file) => file,
            Err(e) => {
                self.store.health.cannot(&log.path(F::SHAPE.file), "be read", &e);
                return if fs::is_absent(&e) { Change::Gone } else { Change::Unknown };
            }
        };
        // A last line that was delivered without its newline may have become another.
        let longer = old.same_file(&stamp) && stamp.size > old.size && !log.tail;
        if longer && !retold && log.tally.fits(&file, stamp.size) {
            self.believe(source);
            return Change::Grown(stamp);
        }
        let fewer = F::SHAPE.rewritten && has_fewer_lines(&file, &stamp, &log.tally);
        if fewer && self.must_wait(source, &stamp) {
            return Change::Unknown;
        }
        self.believe(source);
        Change::Other { stamp, fewer }
    }

    /// Whether something that vanished a moment ago is not believed yet.
    pub fn must_wait(&mut self, file: Source, changed: &Stamp) -> bool {
        let since = *self.waiting.entry(file).or_insert_with(Instant::now);
        let age = Timestamp::now().millis() - changed.modified().millis();
        let young = age < GRACE.as_millis() as i64;
        if young && since.elapsed() < GRACE {
            return true;
        }
        self.believe(file);
        false
    }

    /// A file is what it looks like.
    pub fn believe(&mut self, file: Source) {
        self.waiting.remove(&file);
    }

    /// Reads logs again from the start, but for those of which nothing is known.
    fn redo(&mut self, group: &[u32], changes: &HashMap<u32, Change>) {
        let known = |n: &&u32| changes.get(n) != Some(&Change::Unknown);
        let group: Vec<u32> = group.iter().filter(known).copied().collect();
        let sources: Vec<u32> = group.iter().map(|n| Source::Log(*n).number()).collect();
        self.sink.begin_rescan(&sources);
        let mut whole = true;
        for n in &group {
            let Some(log) = self.log(*n) else { continue };
            let read = match (changes.get(n), log.stamp) {
                (Some(Change::Other { stamp, fewer }), _) => {
                    let lines = if *fewer { 0 } else { log.tally.lines };
                    self.read_again(*n, log, *stamp, lines)
                }
                (Some(Change::Grown(stamp)), _) => self.read_again(*n, log, *stamp, 0),
                // Not changed itself, but another one of this group was.
                (Some(Change::Same) | None, Some(stamp)) => self.read_again(*n, log, stamp, 0),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            match read {
                Err(e) if fs::is_absent(&e) => self.close(*n),
                read => whole &= read.is_ok(),
            }
        }
        if whole {
            for n in &group {
                F::reread(self, *n);
            }
            self.sink.end_rescan(&sources);
        } else {
            self.sink.keep(&sources);
        }
    }

    /// The messages of a log are not to be seen any more.
    fn close(&self, n: u32) {
        let Some(mut log) = self.log(n) else { return };
        log.restart();
        log.stamp = None;
        self.store.table.write().put(n, log);
    }

    /// Reads a whole log. One that is rewritten meanwhile may end early, with fewer `lines` than it
    /// had, or be two logs in one.
    fn read_again(
        &mut self,
        n: u32,
        mut log: LogOf<F>,
        stamp: Stamp,
        lines: u64,
    ) -> io::Result<()> {
        let until = Instant::now() + GRACE;
        loop {
            log.restart();
            self.read(n, &mut log, &stamp, true)?;
            let fits = |file: File| log.tally.fits(&file, u64::MAX);
            let torn =
                F::SHAPE.rewritten && (log.tally.lines < lines || !self.open(&log).is_ok_and(fits));
            if !torn || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn open(&mut self, log: &LogOf<F>) -> io::Result<File> {
        below::open_file(&*self.folder(log)?, F::SHAPE.file.unwrap_or(&log.name))
    }

    /// Reads a log that was as `seen` says from where it was read before. What cannot be read to its end
    /// goes on there with the next scan, or `again` from its start.
    fn read(&mut self, n: u32, log: &mut LogOf<F>, seen: &Stamp, again: bool) -> io::Result<()> {
        let read = self.open(log).and_then(|file| {
            let stamp = Stamp::of(&file)?;
            if !stamp.same_file(seen) {
                return Err(io::Error::other("it was replaced a moment ago"));
            }
            let read = self.read_open(n, log, &file, stamp.size);
            log.stamp = Some(stamp);
            log.tally.seal(&file);
            if read.is_err() {
                // Not the stamp of a file that was read.
                log.stamp = Some(Stamp { ctime: 0, size: log.tally.offset, ..stamp });
                if again {
                    log.tally.spoil();
                }
            }
            self.store.table.write().put(n, log.clone());
            read
        });
        if let Err(e) = &read {
            self.store.health.cannot(&log.path(F::SHAPE.file), "be read to its end", e);
        }
        read
    }

    fn read_open(&mut self, n: u32, log: &mut LogOf<F>, file: &File, end: u64) -> io::Result<()> {
        let key = F::key(log);
        let mut reader = Reader::new(file, log.tally.offset, end);
        let (store, many) = (self.store, reader.is_long());
        let mut failed = None;
        let next = |buffer: &mut Buffer<F>| {
            let next = reader.next(&mut buffer.bytes);
            next.unwrap_or_else(|e| {
                failed = Some(e);
                None
            })
        };
        let (sink, progress) = (&mut *self.sink, (&mut self.done, self.total));
        let path = store.table.read().raw_path(log, F::SHAPE.file);
        let fold = Fold { store, sink, n, log: &mut *log, key: &key, path: &path };
        parallel::in_order(many, &mut self.buffer, (fold, progress), next, |buffer, next, turn| {
            let Buffer { bytes, found: room, work } = buffer;
            match next.run(bytes) {
                Run::Lines(run, offset) => {
                    let lines = pieces(run, offset);
                    let mut found = std::mem::take(room);
                    let said = said(store, work, n, &key, &lines, &mut found);
                    // Not one for all threads, which would fight for its counter.
                    all_from(&path, &mut found, &mut []);
                    if many {
                        found.iter().filter_map(|f| f.claim.as_deref()).for_each(verify::check);
                    }
                    turn.take(|(fold, progress)| {
                        fold.take_in(said, &mut found, false);
                        fold.advance(run.len() as u64, progress);
                    });
                    *room = emptied(found);
                }
                Run::TooLong(offset, len) => turn.take(|(fold, progress)| {
                    fold.too_long(offset, len);
                    fold.advance(len, progress);
                }),
            }
        });
        let Reader { carry: tail, .. } = reader;
        if let Some(e) = failed {
            return Err(e);
        }
        log.half = false;
        if !tail.trim_ascii().is_empty() {
            // It is counted when its newline comes.
            let mut as_if = log.clone();
            as_if.half = is_young(&Stamp::of(file)?);
            let pieces = pieces(&tail, log.tally.offset);
            let mut found = Vec::new();
            let said = said(store, &mut self.buffer.work, n, &key, &pieces, &mut found);
            let sink = &mut *self.sink;
            let mut fold = Fold { store, sink, n, log: &mut as_if, key: &key, path: &path };
            log.tail = fold.take_in(said, &mut found, true);
            log.half = as_if.half && !log.tail;
            if log.half {
                // Nothing may happen that would have it looked at again.
                self.store.health.fault.set();
            }
            log.facts = as_if.facts;
            log.tally.last_time = as_if.tally.last_time;
        }
        Ok(())
    }

    /// Reports what was found in a log, or in another file of its folder.
    pub fn report(
        &mut self,
        log: &LogOf<F>,
        file: Option<&str>,
        found: &mut Vec<Found<'_>>,
        bad: &mut Vec<Rejected>,
    ) {
        if !found.is_empty() || !bad.is_empty() {
            let path = self.store.table.read().raw_path(log, file);
            all_from(&path, found, bad);
            self.sink.batch(found, bad);
        }
    }
}

/// Whether a log was changed a moment ago, so that its writer may not be done.
pub(super) fn is_young(stamp: &Stamp) -> bool {
    let age = Timestamp::now().millis() - stamp.modified().millis();
    (0..GRACE.as_millis() as i64).contains(&age)
}

/// The stamp of an open folder.
pub fn stamp_of(dir: &OwnedFd) -> Stamp {
    rustix::fs::fstat(dir).map(|stat| Stamp::from(&stat)).unwrap_or_default()
}

/// Whether a log has fewer complete lines than were read of it.
fn has_fewer_lines<C>(file: &File, stamp: &Stamp, tally: &Tally<C>) -> bool {
    let mut lines = 0;
    let counted = read_lines(file, 0, stamp.size, |run| {
        lines += match run {
            Run::Lines(run, _) => memchr::memchr_iter(b'\n', run).count() as u64,
            Run::TooLong(..) => 1,
        };
    });
    counted.is_ok() && lines < tally.lines
}
