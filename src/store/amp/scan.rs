//! From changed files to messages.
//!
//! What bites here, and how it is met (formats/amp.md, sections 4 to 6 and 9):
//!
//! 1. Clients overwrite files in place, so a file can be seen empty or half. What does not parse is
//!    looked at again for up to [`GRACE`], while everything else is reported at once; a file that is
//!    older than that is not waited for. A scan therefore lasts up to a second longer when somebody
//!    is just writing, and goes on taking in what is noted meanwhile.
//! 2. A message once read stays what it was while its file cannot be parsed, and is gone only when the
//!    file is.
//! 3. Ids are not signed and anybody may write any file: what makes two files one message is equal
//!    content under one id (mail to myself, in `inbox/` and `sent/`). Other content under the same
//!    id is another message, whose id carries a hash ([`TWIN`](crate::model::TWIN)), so that nothing put in the place of
//!    a verified message can take over its verdict. The first that came keeps the plain id; files are
//!    numbered and read in the order in which they came (`arrival`). What nobody saw because its
//!    signature is none or wrong is no message whose place could be taken.
//! 4. Only a file in `sent/` makes a message mine; one in `inbox/` that names me as its sender
//!    proves nothing.
//! 5. Stale mail stays out of the inbox: it is reported as read, and the file is left alone.

mod report;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::envelope::{self, Fault, Stored};
use super::facts::{self, Facts, file_time};
use super::files::{Files, Work};
use super::home::Roster;
use super::limits::FILE_BYTES;
use super::relate::{mailbox_of, same_message};
use super::table::{File, Flags, Mailbox, stamp_print};
use crate::model::{Claim, Timestamp, one_line};
use crate::store::below;
use crate::store::fs::{self, Stamp};
use crate::store::parallel;
use crate::store::{Found, Location, Rejected, Sink, StoreError};

/// How long a file that does not parse is waited for.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Files read before what was found in them is reported.
const CHUNK: usize = 256;
/// Bytes read before that.
const CHUNK_BYTES: usize = 4 << 20;

/// What scans remember between them, besides the table.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The boxes were walked.
    pub listed: bool,
    /// Print of the names that are mine, on which every judgement in the table rests.
    pub basis: u64,
    /// When the next message goes stale, in seconds since 1970.
    pub next_expiry: Option<u32>,
}

/// A print of the names that are mine.
pub(super) fn basis(roster: &Roster) -> u64 {
    facts::digest(&roster.my_names())
}

/// Reports everything new. See the module for the rules.
pub(super) fn scan(
    files: &Files,
    roster: &Arc<Roster>,
    memory: &mut Memory,
    full: bool,
    sink: &mut dyn Sink,
) -> Result<(), StoreError> {
    let now_mine = basis(roster);
    if memory.basis != now_mine {
        forget_judgements(files);
        memory.basis = now_mine;
        memory.listed = false;
    }
    let noted = files.take_noted();
    let full = full || !memory.listed;
    let mut work = if full {
        files.walk().map_err(|e| StoreError::io(&files.dir, e))?
    } else {
        files.look_again(&noted)
    };
    let first = !memory.listed;
    memory.listed = true;
    let mut scan = Scan::new(files, roster, sink);
    work.changed.extend(scan.stale_since(memory, full));
    scan.total = work.changed.len() as u64;
    scan.run(work);
    while !scan.waiting.is_empty() {
        std::thread::sleep(LOOK_EVERY);
        let mut work = files.look_again(&files.take_noted());
        work.changed.extend(scan.due());
        scan.run(work);
    }
    memory.next_expiry = scan.next_expiry.into_iter().chain(memory.next_expiry).min();
    if first {
        files.table.write().shrink();
    }
    if full {
        tell_broken(files);
    }
    Ok(())
}

/// Everything must be read again.
fn forget_judgements(files: &Files) {
    files.table.write().files.iter_mut().for_each(|f| f.stamp = 0);
}

/// After the list of troubles was begun anew: files that are still broken are in it.
fn tell_broken(files: &Files) {
    let table = files.table.read();
    let broken = |f: &File| f.flags.has(Flags::BROKEN) && !f.flags.has(Flags::GONE);
    for (source, _) in (0u32..).zip(&table.files).filter(|(_, f)| broken(f)) {
        files.set_trouble(&table.path(source).unwrap_or_default(), Some(BROKEN.into()));
    }
}

const BROKEN: &str = "cannot be read as a message now; what it was before is shown";

/// A file read in full.
struct Read {
    source: u32,
    stamp: Stamp,
    bytes: Vec<u8>,
}

/// A message in it.
struct Parsed<'a> {
    read: &'a Read,
    stored: Stored<'a>,
    facts: Facts,
    /// Its signature, or why it is refused.
    admitted: Result<Option<Claim>, String>,
}

/// A file that did not parse.
struct Waiting {
    /// When that was seen first.
    since: Instant,
    /// The print of the stamp it had.
    stamp: u64,
}

struct Scan<'a> {
    files: &'a Files,
    roster: &'a Roster,
    sink: &'a mut dyn Sink,
    now: Timestamp,
    /// Folders opened for reading.
    dirs: lru::LruCache<u32, Arc<OwnedFd>>,
    waiting: HashMap<u32, Waiting>,
    /// New messages whose ids are spelled with dashes, in the other spelling.
    turned: HashSet<String>,
    pub next_expiry: Option<u32>,
    done: u64,
    total: u64,
}

impl<'s> Scan<'s> {
    fn new(files: &'s Files, roster: &'s Roster, sink: &'s mut dyn Sink) -> Self {
        let open = std::num::NonZeroUsize::MIN.saturating_add(31);
        Self {
            files,
            roster,
            sink,
            now: Timestamp::now(),
            dirs: lru::LruCache::new(open),
            waiting: HashMap::new(),
            turned: HashSet::new(),
            next_expiry: None,
            done: 0,
            total: 0,
        }
    }

    /// Messages that have gone stale since they were read.
    fn stale_since(&self, memory: &mut Memory, full: bool) -> Vec<u32> {
        let now = u32::try_from(self.now.secs()).unwrap_or(u32::MAX);
        if !full && memory.next_expiry.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let table = self.files.table.read();
        let dated = || {
            let lives = |f: &File| f.expires != 0 && !f.flags.has(Flags::GONE);
            (0u32..).zip(&table.files).filter(move |(_, f)| lives(f))
        };
        memory.next_expiry = dated().map(|(_, f)| f.expires).filter(|e| *e > now).min();
        dated().filter(|(_, f)| f.expires <= now).map(|(n, _)| n).collect()
    }

    /// Files whose second is over, or that have changed since they did not parse.
    fn due(&self) -> Vec<u32> {
        let over = self.waiting.iter().filter(|(_, w)| w.since.elapsed() >= GRACE);
        over.map(|(source, _)| *source)
            .collect::<HashSet<_>>()
            .into_iter()
            .chain(self.touched())
            .collect()
    }

    fn touched(&self) -> Vec<u32> {
        let changed = |(source, w): &(&u32, &Waiting)| {
            let place = self.place(**source);
            let print = place.and_then(|(folder, parts, name)| {
                let dir = below::open_dir(&self.files.dir, &as_strs(&parts)).ok()?;
                let _ = folder;
                Some(stamp_print(&below::look(&dir, &name).ok()?.1))
            });
            print != Some(w.stamp)
        };
        self.waiting.iter().filter(changed).map(|(source, _)| *source).collect()
    }

    /// A file's folder, the folder's path and the file's name.
    fn place(&self, source: u32) -> Option<(u32, Vec<String>, String)> {
        let table = self.files.table.read();
        let file = table.get(source)?;
        let parts = table.folder(file)?.parts().into_iter().map(str::to_owned).collect();
        Some((file.folder, parts, format!("{}.json", table.stem(file))))
    }

    fn run(&mut self, mut work: Work) {
        work.changed.sort_unstable();
        work.changed.dedup();
        let mut queue: VecDeque<u32> = work.changed.into();
        let mut gone = Vec::new();
        for source in work.gone {
            queue.extend(self.vanish(source, &mut gone));
        }
        if !gone.is_empty() {
            self.sink.begin_rescan(&gone);
        }
        while !queue.is_empty() {
            let reads = self.read_some(&mut queue);
            let again = self.chunk(&reads);
            queue.extend(again);
            if queue.is_empty() {
                queue.extend(self.answering_turned());
            }
            self.sink.progress(self.done.min(self.total), self.total);
        }
        if !gone.is_empty() {
            self.sink.end_rescan(&gone);
        }
    }

    /// A file is no longer there. Other files that hold the same message must be reported in its
    /// place.
    fn vanish(&mut self, source: u32, gone: &mut Vec<u32>) -> Vec<u32> {
        self.waiting.remove(&source);
        if fs::is_away(&self.files.dir) {
            return Vec::new();
        }
        let mut table = self.files.table.write();
        let Some(old) = table.get(source).copied() else { return Vec::new() };
        if old.flags.has(Flags::GONE) {
            return Vec::new();
        }
        let mut flags = old.flags;
        flags.set(Flags::GONE, true);
        table.put(source, File { stamp: 0, flags, ..old });
        table.twins.remove(&source);
        if old.flags.has(Flags::MESSAGE) || old.flags.has(Flags::REJECTED) {
            gone.push(source);
        }
        let path = table.path(source).unwrap_or_default();
        let copies = same_message(&table, source, old.key, old.content);
        drop(table);
        self.files.set_trouble(&path, None);
        copies
    }

    /// Reads the next files, as many as are reported together.
    fn read_some(&mut self, queue: &mut VecDeque<u32>) -> Vec<Read> {
        let (mut out, mut bytes, mut rejected) = (Vec::new(), 0, Vec::new());
        let mut missing = Vec::new();
        while out.len() < CHUNK
            && bytes < CHUNK_BYTES
            && let Some(source) = queue.pop_front()
        {
            self.done += 1;
            match self.read(source) {
                Ok(read) => {
                    bytes += read.bytes.len();
                    out.push(read);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => missing.push(source),
                Err(e) => self.unreadable(source, &e, &mut rejected),
            }
        }
        for source in missing {
            let mut gone = Vec::new();
            queue.extend(self.vanish(source, &mut gone));
            if !gone.is_empty() {
                self.sink.begin_rescan(&gone);
                self.sink.end_rescan(&gone);
            }
        }
        self.report(&mut Vec::new(), &mut rejected);
        out
    }

    fn read(&mut self, source: u32) -> io::Result<Read> {
        let (folder, parts, name) = self.place(source).ok_or(io::ErrorKind::NotFound)?;
        let dir = if let Some(dir) = self.dirs.get(&folder) {
            Arc::clone(dir)
        } else {
            let dir = Arc::new(below::open_dir(&self.files.dir, &as_strs(&parts))?);
            self.dirs.put(folder, Arc::clone(&dir));
            dir
        };
        // The format refuses what is longer than its limit, so one byte more is enough.
        let (stamp, bytes) = below::read_whole(&below::open_file(&dir, &name)?, FILE_BYTES + 1)?;
        Ok(Read { source, stamp, bytes })
    }

    /// Reports what is in these files; what must be looked at next because of it.
    fn chunk(&mut self, reads: &[Read]) -> Vec<u32> {
        let (mut parsed, mut rejected) = (Vec::new(), Vec::new());
        let (files, roster, now) = (self.files, self.roster, self.now);
        let understood = parallel::map(reads, |read| {
            let stored = envelope::parse(&read.bytes)?;
            let facts = facts::facts(&stored, &read.stamp, now);
            let mailbox = mailbox_of(&files.table.read(), read.source).unwrap_or(Mailbox::Inbox);
            let admitted = facts::admit(&stored, &facts, mailbox, roster);
            Ok(Parsed { read, stored, facts, admitted })
        });
        for (read, understood) in reads.iter().zip(understood) {
            match understood {
                Ok(one) => {
                    self.waiting.remove(&read.source);
                    parsed.push(one);
                }
                Err(fault) => self.no_message(read, &fault, &mut rejected),
            }
        }
        let before: Vec<File> = {
            let table = self.files.table.read();
            parsed.iter().filter_map(|p| table.get(p.read.source).copied()).collect()
        };
        let replaced = |(p, old): (&Parsed<'_>, &File)| {
            let other = (old.key, old.content) != (p.facts.key, p.facts.content);
            let was = old.flags.has(Flags::REJECTED)
                || old.flags.has(Flags::MESSAGE) && (other || p.admitted.is_err());
            (was && !old.flags.has(Flags::GONE)).then_some(p.read.source)
        };
        let again: Vec<u32> = parsed.iter().zip(&before).filter_map(replaced).collect();
        if !again.is_empty() {
            self.sink.begin_rescan(&again);
        }
        let (mut found, mut next) = (Vec::new(), Vec::new());
        for p in parsed {
            self.take(p, &mut found, &mut rejected, &mut next);
        }
        self.report(&mut found, &mut rejected);
        if !again.is_empty() {
            self.sink.end_rescan(&again);
        }
        next
    }

    fn report(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>) {
        if !found.is_empty() || !rejected.is_empty() {
            self.sink.batch(found, rejected);
        }
    }

    /// A file that does not parse: waited for, kept as what it was, or refused.
    fn no_message(&mut self, read: &Read, fault: &Fault, rejected: &mut Vec<Rejected>) {
        let stamp = stamp_print(&read.stamp);
        let since = self.waiting.get(&read.source).map_or_else(Instant::now, |w| w.since);
        if since.elapsed() < GRACE && is_young(&read.stamp) {
            self.waiting.insert(read.source, Waiting { since, stamp });
            return;
        }
        self.waiting.remove(&read.source);
        let incomplete = matches!(fault, Fault::Incomplete(_));
        self.refuse_file(
            read.source,
            stamp,
            one_line(&fault.to_string()).into_owned(),
            incomplete,
            read,
            rejected,
        );
    }

    fn refuse_file(
        &mut self,
        source: u32,
        stamp: u64,
        reason: String,
        incomplete: bool,
        read: &Read,
        rejected: &mut Vec<Rejected>,
    ) {
        let mut table = self.files.table.write();
        let Some(old) = table.get(source).copied() else { return };
        let path = table.path(source).unwrap_or_default();
        let mut flags = old.flags;
        if flags.has(Flags::MESSAGE) && !flags.has(Flags::GONE) {
            flags.set(Flags::BROKEN, true);
            table.put(source, File { stamp, flags, ..old });
            drop(table);
            self.files.set_trouble(&path, Some(BROKEN.into()));
            return;
        }
        let was_refused = flags.has(Flags::REJECTED) && !flags.has(Flags::GONE);
        let mut flags = Flags::default();
        flags.set(Flags::REJECTED, true);
        let time = file_time(&read.stamp);
        table.put(source, File { stamp, flags, time: time.millis(), ..File::default() });
        drop(table);
        if was_refused {
            self.sink.begin_rescan(&[source]);
            self.sink.end_rescan(&[source]);
        }
        let at = Location { source, offset: 0, len: read.bytes.len() as u32 };
        rejected.push(Rejected { at, path, line: 0, reason, time, incomplete });
    }

    /// A file that is there and cannot be opened.
    fn unreadable(&mut self, source: u32, error: &io::Error, rejected: &mut Vec<Rejected>) {
        self.waiting.remove(&source);
        if fs::may_pass(error) {
            // Whatever it is, it still is; without a stamp, the next walk reads it.
            let mut table = self.files.table.write();
            let path = table.path(source).unwrap_or_default();
            self.files.cannot(&path, "be read now", error);
            if let Some(old) = table.get(source).copied() {
                table.put(source, File { stamp: 0, ..old });
            }
            return;
        }
        let reason = format!("it cannot be read: {error}");
        let read = Read { source, stamp: Stamp::default(), bytes: Vec::new() };
        self.refuse_file(source, 0, reason, false, &read, rejected);
    }

    /// Notes what a file holds and reports why it is refused, or what [`Scan::accept`] says.
    fn take<'r>(
        &mut self,
        mut p: Parsed<'r>,
        found: &mut Vec<Found<'r>>,
        rejected: &mut Vec<Rejected>,
        next: &mut Vec<u32>,
    ) {
        let source = p.read.source;
        let at = Location { source, offset: 0, len: p.read.bytes.len() as u32 };
        let mut table = self.files.table.write();
        let Some(old) = table.get(source).copied() else { return };
        let (key, content) = (p.facts.key, p.facts.content);
        let was = old.flags.has(Flags::MESSAGE) && !old.flags.has(Flags::GONE);
        if was && (old.key != key || old.content != content || p.admitted.is_err()) {
            next.extend(same_message(&table, source, old.key, old.content));
        }
        if old.flags.has(Flags::BROKEN) {
            let path = table.path(source).unwrap_or_default();
            self.files.set_trouble(&path, None);
        }
        let claim = match std::mem::replace(&mut p.admitted, Ok(None)) {
            Ok(claim) => claim,
            Err(reason) => {
                let mut file = p.file();
                file.flags.set(Flags::REJECTED, true);
                table.put(source, file);
                table.twins.remove(&source);
                let (time, path) = (p.facts.time, table.path(source).unwrap_or_default());
                drop(table);
                rejected.push(Rejected { at, path, reason, time, ..Rejected::default() });
                return;
            }
        };
        drop(table);
        self.accept(p, claim, &old, found, next);
    }
}

/// Whether a file was changed so lately that somebody may still be writing it.
fn is_young(stamp: &Stamp) -> bool {
    let age = Timestamp::now().millis().saturating_sub(file_time(stamp).millis());
    age < GRACE.as_millis() as i64
}

fn as_strs(parts: &[String]) -> Vec<&str> {
    parts.iter().map(String::as_str).collect()
}
