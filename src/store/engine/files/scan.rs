//! From changed files to messages.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::format::{Done, Format, Opened, Reading, Refusal, Reports, Taken, Verdict, odd};
use super::look::{Dirs, Work};
use super::open::File;
use super::table::{Flags, Table, stamp_print};
use super::{Files, GRACE, Memory};
use crate::model::{Timestamp, one_line, spelling};
use crate::store::fs::{self, Stamp};
use crate::store::{Found, Rejected, Sink, StoreError, below, parallel};

/// How often an unfinished file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Files read before what was found in them is reported.
const CHUNK: usize = 128;
/// Bytes read before that.
const CHUNK_BYTES: usize = 4 << 20;
/// From so many files on, other threads are worth their start.
const MANY: usize = 64;
/// What is said of a message whose file is none any more.
const BROKEN: &str = "cannot be read as a message now; its last readable text is shown";

/// What a format may do while files are taken in.
#[derive(Debug)]
pub struct Pass<'a, F: Format> {
    /// All files.
    pub table: &'a mut Table<F::Facts>,
    queue: &'a mut VecDeque<u32>,
}

impl<F: Format> Pass<'_, F> {
    /// Has files read and reported again.
    pub fn look(&mut self, files: impl IntoIterator<Item = u32>) {
        self.queue.extend(files);
    }
}

/// A file read in full.
#[derive(Debug)]
struct Read<F> {
    file: File<F>,
    stamp: Stamp,
    beside: u64,
    /// Where its bytes are.
    bytes: Range<usize>,
}

/// An unfinished file.
#[derive(Debug)]
struct Waiting {
    /// When that was seen first.
    since: Instant,
    /// The print of the stamp it had.
    stamp: u64,
}

struct Scan<'a, F: Format> {
    files: &'a Files<F>,
    context: &'a F::Context,
    sink: &'a mut dyn Sink,
    dirs: Dirs<'a>,
    queue: VecDeque<u32>,
    waiting: HashMap<u32, Waiting>,
    /// Numbers whose rescan was begun.
    again: BTreeSet<u32>,
    /// Not everything could be reported anew.
    keeps: bool,
    touched: BTreeSet<u32>,
    done: u64,
    total: u64,
}

impl<F: Format> Files<F> {
    /// Reports what is new or changed.
    ///
    /// # Errors
    /// If nothing can be judged now, or the store's folder cannot be opened.
    pub(super) fn scan_files(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let mut memory = self.memory.lock();
        // If it is there, it is missed from now on.
        self.health.missed(&self.about.dir);
        let Some((context, basis)) = self.format.begin(self)? else { return Ok(()) };
        if memory.basis != basis {
            self.table.write().forget_stamps();
            *memory = Memory { basis, is_listed: false };
        }
        let first = !memory.is_listed;
        let noted = self.take_noted();
        let work = if full || first { self.walk()? } else { self.look_again(&noted)? };
        let Some(mut work) = work else { return Ok(()) };
        memory.is_listed = true;
        work.changed.extend(self.format.due(&context, &self.table.read()));
        let mut scan = Scan::new(self, &context, sink);
        scan.run(work);
        while !scan.waiting.is_empty() {
            std::thread::sleep(LOOK_EVERY);
            let mut work = self.look_again(&self.take_noted())?.unwrap_or_default();
            work.changed.extend(scan.due());
            scan.run(work);
        }
        if first {
            self.table.write().shrink();
        }
        if full || first {
            self.tell_broken();
        }
        Ok(())
    }

    /// After the list of troubles was begun anew: files that are still broken are in it.
    fn tell_broken(&self) {
        let table = self.table.read();
        for (n, ..) in table.messages().filter(|(_, row, _)| row.has(Flags::BROKEN)) {
            self.health.set(&table.path(n).unwrap_or_default(), Some(BROKEN.into()));
        }
    }
}

impl<'s, F: Format> Scan<'s, F> {
    fn new(files: &'s Files<F>, context: &'s F::Context, sink: &'s mut dyn Sink) -> Self {
        Self {
            files,
            context,
            sink,
            dirs: Dirs::new(&files.about.dir),
            queue: VecDeque::new(),
            waiting: HashMap::new(),
            again: BTreeSet::new(),
            keeps: false,
            touched: BTreeSet::new(),
            done: 0,
            total: 0,
        }
    }

    /// Files whose time is over, or that have changed since they were unfinished.
    fn due(&mut self) -> Vec<u32> {
        let mut out = Vec::new();
        for (n, waiting) in &self.waiting {
            let file = File::of(&self.files.table.read(), *n);
            let found = file.and_then(|f| self.dirs.look(&f.folder, &f.name).ok().flatten());
            let same = found.is_some_and(|(_, stamp)| stamp_print(&stamp) == waiting.stamp);
            out.extend((!same || waiting.since.elapsed() >= GRACE).then_some(*n));
        }
        out
    }

    fn run(&mut self, mut work: Work) {
        self.add_dependent(&mut work);
        work.changed.sort_unstable();
        work.changed.dedup();
        self.total += work.changed.len() as u64;
        self.queue.extend(work.changed);
        self.vanish(&work.gone);
        loop {
            while !self.queue.is_empty() {
                self.read_all();
            }
            let touched = std::mem::take(&mut self.touched);
            let (files, context, is_full) = (self.files, self.context, work.is_full);
            let (touched, groups) = (&touched, &work.groups);
            let mut done = Done { files, is_full, touched, groups, reports: self };
            let more = files.format.finish(context, &mut done);
            self.queue.extend(more);
            if self.queue.is_empty() {
                break;
            }
        }
        if !self.again.is_empty() {
            let again: Vec<u32> = std::mem::take(&mut self.again).into_iter().collect();
            if std::mem::take(&mut self.keeps) {
                self.sink.keep(&again);
            } else {
                self.sink.end_rescan(&again);
            }
        }
    }

    /// Adds the files whose meaning depends on others in folders in which something changed.
    fn add_dependent(&self, work: &mut Work) {
        let table = self.files.table.read();
        let changed = work.changed.iter().chain(&work.gone);
        let folders: BTreeSet<u32> = changed.filter_map(|n| Some(table.row(*n)?.folder)).collect();
        let depends = |n: &u32| table.row(*n).is_some_and(|row| row.has(Flags::DEPENDS));
        let dependent = folders.iter().flat_map(|folder| table.files_in(*folder)).filter(depends);
        work.changed.extend(dependent);
    }

    /// These were reported, and are not there any more or are about to be reported anew.
    fn begin_again(&mut self, again: Vec<u32>) {
        let new: Vec<u32> = again.into_iter().filter(|n| self.again.insert(*n)).collect();
        if !new.is_empty() {
            self.sink.begin_rescan(&new);
        }
    }

    /// Files that are no longer there.
    fn vanish(&mut self, gone: &[u32]) {
        for n in gone {
            self.waiting.remove(n);
        }
        if gone.is_empty() || fs::is_away(&self.files.about.dir) {
            return;
        }
        self.files.note_verified(self.sink, gone.iter().copied());
        let mut reported = Vec::new();
        for n in gone {
            self.touched.insert(*n);
            let mut table = self.files.table.write();
            let Some(row) = table.row(*n).copied().filter(|row| !row.has(Flags::GONE)) else {
                continue;
            };
            table.retire(*n);
            if row.is_message() || row.is_refused() {
                reported.push(*n);
            }
            self.lose(&mut table, *n, row.is_message());
            let path = table.path(*n).unwrap_or_default();
            drop(table);
            self.files.health.set(&path, None);
        }
        self.begin_again(reported);
    }

    /// Tells the format that a file is not the message any more that it was.
    fn lose(&mut self, table: &mut Table<F::Facts>, n: u32, was_message: bool) {
        if was_message {
            self.files.format.lost(&mut Pass { table, queue: &mut self.queue }, n);
        }
        table.twins.remove(&n);
    }

    /// Reads the files of the queue, on all cores if there are many, and takes them in in their order.
    fn read_all(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        let (files, context) = (self.files, self.context);
        let many = queue.len() >= MANY;
        let own = &mut Reader::<F>::default();
        let next = |reader: &mut Reader<F>| {
            reader.queue.extend(queue.drain(..CHUNK.min(queue.len())));
            (!reader.queue.is_empty()).then_some(())
        };
        parallel::in_order(many, own, self, next, |reader, (), turn| {
            let reads = reader.read_some(files);
            let opened = as_opened(&reads);
            let readings = said(files, context, reader.dirs(files), &opened);
            turn.take(|scan| {
                scan.take_in(&reads, &opened, readings);
                // What was too much to be held at once.
                while !reader.queue.is_empty() {
                    let reads = reader.read_some(files);
                    let opened = as_opened(&reads);
                    let readings = said(files, context, reader.dirs(files), &opened);
                    scan.take_in(&reads, &opened, readings);
                }
            });
            reader.buffer = reads.bytes;
        });
    }

    /// Reports what is in these files.
    fn take_in<'r>(
        &mut self,
        reads: &'r Reads<F::Facts>,
        opened: &'r [Opened<'r, F::Facts>],
        readings: Vec<Said<'r, F>>,
    ) {
        self.done += reads.count as u64;
        self.vanish(&reads.gone);
        let (mut ready, mut refused) = (Vec::new(), Vec::new());
        for (file, error) in &reads.failed {
            self.unreadable(file, error, &mut refused);
        }
        self.report(&mut Vec::new(), &mut refused);
        for (opened, reading) in opened.iter().zip(readings) {
            match reading {
                Err(e) => self.unreadable(opened.file, &e, &mut refused),
                Ok(reading) if reading.unfinished && self.waits(opened) => {}
                Ok(reading) => {
                    self.waiting.remove(&opened.file.n);
                    ready.push((opened, reading));
                }
            }
        }
        let ready = self.number(ready);
        let mut found = Vec::new();
        for (opened, n, reading) in ready {
            self.take(opened, n, reading, &mut found, &mut refused);
        }
        self.report(&mut found, &mut refused);
        self.sink.progress(self.done.min(self.total), self.total);
    }

    fn report(&mut self, found: &mut Vec<Found<'_>>, refused: &mut Vec<Rejected>) {
        if found.is_empty() && refused.is_empty() {
            return;
        }
        let table = self.files.table.read();
        for one in found.iter_mut() {
            one.path = table.path(one.at.source).unwrap_or_default().into();
        }
        for one in refused.iter_mut() {
            one.path = table.path(one.at.source).unwrap_or_default();
        }
        drop(table);
        self.sink.batch(found, refused);
        found.clear();
        refused.clear();
    }

    /// Whether an unfinished file is given a moment.
    fn waits(&mut self, opened: &Opened<'_, F::Facts>) -> bool {
        let age = Timestamp::now().millis().saturating_sub(opened.stamp.modified().millis());
        let n = opened.file.n;
        let since = self.waiting.get(&n).map_or_else(Instant::now, |w| w.since);
        let waits = since.elapsed() < GRACE && age < GRACE.as_millis() as i64;
        if waits {
            self.waiting.insert(n, Waiting { since, stamp: stamp_print(&opened.stamp) });
        }
        waits
    }

    /// Gives another number to files that hold another message than the one that was reported, and has
    /// what was reported reported anew.
    fn number<'r>(&mut self, mut ready: Vec<Ready<'r, F>>) -> Vec<Numbered<'r, F>> {
        let mut again = Vec::new();
        let mut out = Vec::new();
        self.files.judge_leaving(self.sink, &mut ready);
        for (opened, reading) in ready {
            let (n, row) = (opened.file.n, &opened.file.row);
            let stays = reading.verdict.stays() && row.is_message();
            let renewed = row.is_message() && !matches!(reading.verdict, Verdict::Broken(_));
            if !stays && (row.is_message() || row.is_refused()) {
                again.push(n);
            }
            let mut table = self.files.table.write();
            let number = if renewed && !stays { table.renew(n) } else { Some(n) };
            if number != Some(n) {
                self.lose(&mut table, n, true);
            }
            self.touched.insert(n);
            out.extend(number.map(|number| (opened, number, reading)));
        }
        self.begin_again(again);
        out
    }

    /// Notes what a file is, and adds it to what is reported.
    fn take<'r>(
        &mut self,
        opened: &'r Opened<'r, F::Facts>,
        n: u32,
        reading: Reading<F::Message<'r>, F::Facts>,
        found: &mut Vec<Found<'r>>,
        refused: &mut Vec<Rejected>,
    ) {
        self.touched.insert(n);
        let mut table = self.files.table.write();
        let refusal = match reading.verdict {
            Verdict::Broken(_) if opened.file.row.is_message() => {
                table.change(n, |row, _| {
                    row.stamp = stamp_print(&opened.stamp);
                    row.set(Flags::BROKEN, true);
                });
                drop(table);
                return self.files.health.set(&opened.file.path(), Some(BROKEN.into()));
            }
            Verdict::Broken(refusal) | Verdict::Refused(refusal) => Some(refusal),
            Verdict::Message { message, same } => {
                note(&mut table, n, opened, Some(Flags::MESSAGE), reading.depends);
                let old = opened.file.message().copied();
                let taken = Taken { n, opened, message, before: old, same: same && old.is_some() };
                let mut pass = Pass { table: &mut table, queue: &mut self.queue };
                found.extend(self.files.format.take(self.context, &mut pass, taken));
                None
            }
            Verdict::Nothing => {
                note(&mut table, n, opened, None, reading.depends);
                None
            }
        };
        if let Some(refusal) = refusal {
            note(&mut table, n, opened, Some(Flags::REFUSED), reading.depends);
            refused.push(reject(&mut table, n, opened, refusal));
        }
        drop(table);
        if opened.file.row.has(Flags::BROKEN) {
            self.files.health.set(&opened.file.path(), None);
        }
    }

    /// A file that is there and cannot be read.
    fn unreadable(
        &mut self,
        file: &File<F::Facts>,
        error: &io::Error,
        refused: &mut Vec<Rejected>,
    ) {
        let n = file.n;
        self.waiting.remove(&n);
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        if fs::may_pass(error) || denied && file.row.is_message() {
            // Whatever it is, it still is; without a stamp, the next walk reads it.
            self.files.health.cannot(&file.path(), "be read now", error);
            return self.files.table.write().change(n, |row, _| row.stamp = 0);
        }
        let found = self.dirs.look(&file.folder, &file.name).ok().flatten();
        let other = found.filter(|(kind, _)| *kind != FileType::RegularFile);
        let (reason, stamp) = match other {
            Some((kind, stamp)) => (odd(kind), stamp),
            None => (format!("it cannot be read: {error}"), Stamp::default()),
        };
        let opened = Opened { file, stamp, beside: 0, bytes: &[] };
        for (opened, n, reading) in self.number(vec![(&opened, Reading::refused(reason))]) {
            self.take(opened, n, reading, &mut Vec::new(), refused);
            if other.is_none() {
                self.files.table.write().change(n, |row, _| row.stamp = 0);
            }
        }
    }
}

impl<F: Format> fmt::Debug for Scan<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<F: Format> Reports for Scan<'_, F> {
    fn again(&mut self, files: Vec<u32>) {
        self.begin_again(files);
    }

    fn report(&mut self, found: &mut Vec<Found<'_>>) {
        Self::report(self, found, &mut Vec::new());
    }

    fn keep(&mut self) {
        self.keeps = true;
    }
}

/// What a thread reads files with.
struct Reader<F: Format> {
    /// The numbers of those that it is to read.
    queue: VecDeque<u32>,
    dirs: Option<Dirs<'static>>,
    /// Room for what is read next.
    buffer: Vec<u8>,
    format: PhantomData<F>,
}

impl<F: Format> Default for Reader<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), dirs: None, buffer: Vec::new(), format: PhantomData }
    }
}

/// What came of reading files.
struct Reads<F> {
    done: Vec<Read<F>>,
    /// What they hold, one behind the other: a buffer for each would have to be found and given back.
    bytes: Vec<u8>,
    gone: Vec<u32>,
    failed: Vec<(File<F>, io::Error)>,
    /// How many they are.
    count: usize,
}

impl<F: Format> Reader<F> {
    fn dirs(&mut self, files: &Files<F>) -> &mut Dirs<'static> {
        self.dirs.get_or_insert_with(|| Dirs::new(files.about.dir.clone()))
    }

    /// Reads the next files, as many as are held at once.
    fn read_some(&mut self, files: &Files<F>) -> Reads<F::Facts> {
        let bytes = std::mem::take(&mut self.buffer);
        let mut out =
            Reads { done: Vec::new(), bytes, gone: Vec::new(), failed: Vec::new(), count: 0 };
        out.bytes.clear();
        while out.bytes.len() < CHUNK_BYTES
            && let Some(n) = self.queue.pop_front()
        {
            out.count += 1;
            let file = File::of(&files.table.read(), n);
            let Some(file) = file.filter(|file| !file.row.has(Flags::GONE)) else { continue };
            let start = out.bytes.len();
            match read(files, self.dirs(files), &file, &mut out.bytes) {
                Ok((stamp, beside)) => {
                    out.done.push(Read { file, stamp, beside, bytes: start..out.bytes.len() });
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => out.gone.push(n),
                Err(e) => out.failed.push((file, e)),
            }
        }
        out
    }
}

fn read<F: Format>(
    files: &Files<F>,
    dirs: &mut Dirs<'_>,
    file: &File<F::Facts>,
    bytes: &mut Vec<u8>,
) -> io::Result<(Stamp, u64)> {
    let opened = below::open_file(&*dirs.open(&file.folder)?, &file.name)?;
    let stamp = below::read_onto(&opened, F::LONGEST.saturating_add(1), bytes)?;
    Ok((stamp, files.beside(dirs, &file.folder, &file.name)?))
}

fn as_opened<T>(reads: &Reads<T>) -> Vec<Opened<'_, T>> {
    let mut out = Vec::with_capacity(reads.done.len());
    for Read { file, stamp, beside, bytes } in &reads.done {
        let bytes = reads.bytes.get(bytes.clone()).unwrap_or_default();
        out.push(Opened { file, stamp: *stamp, beside: *beside, bytes });
    }
    out
}

/// What files say.
fn said<'r, F: Format>(
    files: &Files<F>,
    context: &F::Context,
    dirs: &mut Dirs<'_>,
    opened: &'r [Opened<'r, F::Facts>],
) -> Vec<Said<'r, F>> {
    let mut said = |opened: &'r Opened<'r, F::Facts>| {
        if spelling::is_odd(&opened.file.name) {
            return Ok(Reading::refused("its name is not UTF-8".into()));
        }
        files.format.read(context, dirs, opened)
    };
    opened.iter().map(&mut said).collect()
}

/// What a file says, if it could be read.
type Said<'r, F> = io::Result<Reading<<F as Format>::Message<'r>, <F as Format>::Facts>>;

/// A file that was read, and what it says.
pub(super) type Ready<'r, F> = (
    &'r Opened<'r, <F as Format>::Facts>,
    Reading<<F as Format>::Message<'r>, <F as Format>::Facts>,
);
/// The same with the number that it has from now on.
type Numbered<'r, F> = (
    &'r Opened<'r, <F as Format>::Facts>,
    u32,
    Reading<<F as Format>::Message<'r>, <F as Format>::Facts>,
);

/// Notes that a file was read and is this.
fn note<T: super::Facts>(
    table: &mut Table<T>,
    n: u32,
    opened: &Opened<'_, T>,
    is: Option<Flags>,
    depends: bool,
) {
    table.change(n, |row, _| {
        row.stamp = stamp_print(&opened.stamp);
        row.beside = opened.beside;
        row.len = u32::try_from(opened.bytes.len()).unwrap_or(u32::MAX);
        for flag in [Flags::MESSAGE, Flags::REFUSED, Flags::BROKEN] {
            row.set(flag, is == Some(flag));
        }
        row.set(Flags::DEPENDS, depends);
    });
}

/// Notes why a file is refused, and says so.
fn reject<T: super::Facts>(
    table: &mut Table<T>,
    n: u32,
    opened: &Opened<'_, T>,
    refusal: Refusal<T>,
) -> Rejected {
    table.change(n, |_, facts| *facts = refusal.facts);
    Rejected {
        at: File::<T>::at(n, opened.bytes.len()),
        reason: one_line(&refusal.reason).into_owned(),
        time: refusal.time.unwrap_or_else(|| opened.stamp.modified()),
        incomplete: refusal.incomplete,
        ..Rejected::default()
    }
}
