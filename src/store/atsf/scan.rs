//! Following the threads of a project.
//!
//! What bites here, and how it is met (formats/atsf.md, sections 5, 8, 9 and 14):
//!
//! 1. The application rewrites whole logs in place: for a moment a log is empty or short. What has
//!    lost lines is looked at again for up to [`GRACE`], and until then nothing that was in it
//!    vanishes. A scan therefore lasts up to a second longer when somebody is just writing, and goes on
//!    taking in what is noted meanwhile.
//! 2. A position holds as long as the log is the same file, longer, and the bytes before it are the
//!    same; else the whole log is read again, and the index drops what is not found.
//! 3. A line that changed is the same message if it has the same id: what is said last counts.
//! 4. One bad line, file or folder never hides another: it is rejected, or named in `health`.
//! 5. What I wrote and nobody has any more is reported from what is kept of it ([`lost`](super::lost)),
//!    before the log is done, so that it is never gone.

mod survey;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::time::{Duration, Instant};

use std::borrow::Cow;

use super::ids::{Claimed, Reading, Told};
use super::line::{self, BOM, Line};
use super::log::{Piece, Tally, pieces, read_lines};
use super::lost::{self, Place};
use super::table::{KEPT, LOG, META, Source, State, Table, Thread};
use super::{Atsf, recipient, sign, thread};
use crate::model::{Timestamp, one_line};
use crate::store::below;
use crate::store::fs::{self, Stamp};
use crate::store::{Again, Found, Location, Rejected, Sink, all_from};
use rustix::fs::FileType;

/// How long a log that lost lines is not believed.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Reports everything new. See the module for the rules.
pub(super) fn scan(store: &Atsf, listed: &mut bool, full: bool, sink: &mut dyn Sink) {
    let first = !*listed;
    let mut scan =
        Scan { store, sink, waiting: HashMap::new(), again: BTreeSet::new(), done: 0, total: 0 };
    let work = scan.survey(full || first, &store.take_noted());
    *listed = true;
    scan.run(work);
    while !scan.waiting.is_empty() {
        std::thread::sleep(LOOK_EVERY);
        let mut work = scan.survey(false, &store.take_noted());
        work.extend(scan.waiting.keys().map(|(thread, _)| thread));
        scan.run(work);
        // What nobody asks for any more, since its whole folder went, is not waited for.
        scan.waiting.retain(|_, since| since.elapsed() < GRACE * 2);
    }
    if first {
        let missing = {
            let table = store.table.read();
            store.kept.missing(|print| table.ids.has(print))
        };
        scan.report_kept(&missing);
    }
}

struct Scan<'a> {
    store: &'a Atsf,
    sink: &'a mut dyn Sink,
    /// Files of threads that vanished or lost lines, and since when.
    waiting: HashMap<(u32, &'static str), Instant>,
    /// Threads that must be read again because an id they share is free.
    again: BTreeSet<u32>,
    done: u64,
    total: u64,
}

impl Scan<'_> {
    fn run(&mut self, work: BTreeSet<u32>) {
        let mut retitled: BTreeSet<u32> =
            work.iter().copied().filter(|thread| self.meta(*thread)).collect();
        retitled.extend(self.store.table.write().relabel());
        let mut order: Vec<u32> = work.union(&retitled).copied().collect();
        {
            // Who is read first keeps the plain ids, so the order is the same on every machine.
            let table = self.store.table.read();
            order
                .sort_by_cached_key(|n| table.get(*n).map(|t| (t.root, t.created, t.name.clone())));
        }
        for thread in order {
            self.log(thread, retitled.contains(&thread));
        }
        while let Some(thread) = self.again.pop_first() {
            self.log(thread, true);
        }
        self.total = self.done;
    }

    /// Brings what is known of a thread's `thread.json` up to date; whether its messages are shown
    /// differently.
    fn meta(&mut self, n: u32) -> bool {
        let Some(old) = self.store.table.read().get(n).cloned() else { return false };
        let mut new = old.clone();
        self.look_at_meta(n, &mut new);
        let refused = |t: &Thread| match &t.state {
            State::Refused(why) if !t.gone => Some(why.clone()),
            _ => None,
        };
        if refused(&old) != refused(&new) {
            let source = Source::Meta(n).number();
            self.sink.begin_rescan(&[source]);
            self.store.table.write().put(n, new.clone());
            if let Some(reason) = refused(&new) {
                let path = self.store.path_of_source(source).unwrap_or_default();
                let refused = Rejected { path, ..refusal(source, &new, reason) };
                self.sink.batch(&mut Vec::new(), &mut vec![refused]);
            }
            self.sink.end_rescan(&[source]);
        }
        let retitled = old.epoch > 0 && old.title != new.title;
        self.store.table.write().put(n, new);
        retitled
    }

    fn look_at_meta(&mut self, n: u32, thread: &mut Thread) {
        let Ok((root, parts)) = self.store.table.read().place(n) else { return };
        let root_of = self.store.table.read().roots.get(thread.root as usize).cloned();
        let here = root_of.as_ref().is_some_and(|r| r.here);
        let main = root_of.is_some_and(|r| r.is_main());
        let path = format!("{}/{META}", thread.name);
        self.store.set_trouble(&path, None);
        let dir = if here {
            below::open_dir(&root, &parts.each_ref().map(String::as_str))
        } else {
            Err(std::io::ErrorKind::NotFound.into())
        };
        let dir = match dir {
            Ok(dir) => dir,
            // What was in a project that is gone as a whole stays.
            Err(e) if fs::is_absent(&e) && !(main && fs::is_away(&root)) => {
                thread.gone = true;
                return;
            }
            Err(e) => return self.store.cannot(&path, "be read", &e),
        };
        thread.gone = false;
        let stamp = match below::look(&dir, META) {
            Ok((FileType::RegularFile, stamp)) => stamp,
            Ok((kind, _)) => {
                let what = format!("is skipped: it is {}", below::describe_type(kind));
                self.store.set_trouble(&path, Some(what));
                thread.state = State::Foreign;
                return;
            }
            Err(e) if !fs::is_absent(&e) => return self.store.cannot(&path, "be read", &e),
            Err(_) => {
                let dir =
                    rustix::fs::fstat(&dir).map(|stat| Stamp::from(&stat)).unwrap_or_default();
                // Some programs remove a file before they write it anew.
                if !thread.is_read() || !self.must_wait((n, META), &dir) {
                    thread.state = State::Foreign;
                    thread.meta = Stamp::default();
                }
                return;
            }
        };
        self.waiting.remove(&(n, META));
        if let Ok((_, log)) = below::look(&dir, LOG)
            && thread.log != Some(log)
        {
            let read = if thread.epoch > 0 { thread.tally.offset } else { 0 };
            self.total += log.size.saturating_sub(read);
        }
        if stamp == thread.meta {
            return;
        }
        let read = below::open_file(&dir, META)
            .and_then(|file| below::read_whole(&file, thread::MAX_BYTES + 1));
        match read {
            Ok((stamp, bytes)) => self.take_meta(thread, &path, stamp, &bytes),
            Err(e) => self.store.cannot(&path, "be read", &e),
        }
    }

    fn take_meta(&mut self, thread: &mut Thread, path: &str, stamp: Stamp, bytes: &[u8]) {
        match thread::read(bytes) {
            thread::Reading::Thread(meta) => {
                thread.state = match meta.id {
                    Some(id) if id == thread.name => State::Usable,
                    id => State::Misnamed(id.unwrap_or_default()),
                };
                let millis = |time: Option<Timestamp>| time.map(Timestamp::millis);
                thread.title = meta.title;
                thread.created = millis(meta.created).unwrap_or_default();
                thread.updated = millis(meta.updated).unwrap_or(thread.created);
            }
            thread::Reading::Foreign => thread.state = State::Foreign,
            thread::Reading::Refused(why) => thread.state = State::Refused(why),
            thread::Reading::Broken(why) => {
                // What it was before still holds; it is read again with the next look.
                let what = format!("cannot be read as a thread now: {}", one_line(&why));
                return self.store.set_trouble(path, Some(what));
            }
        }
        thread.meta = stamp;
    }

    /// Brings the messages of a thread up to date; with `force`, all of them are reported again.
    fn log(&mut self, n: u32, force: bool) {
        let Some(thread) = self.store.table.read().get(n).cloned() else { return };
        if !thread.is_read() {
            return self.close(n, thread);
        }
        let Ok((root, parts)) = self.store.table.read().place(n) else { return };
        let path = format!("{}/{LOG}", thread.name);
        self.store.set_trouble(&path, None);
        let dir = match below::open_dir(&root, &parts.each_ref().map(String::as_str)) {
            Ok(dir) => dir,
            Err(e) if fs::is_absent(&e) => return,
            Err(e) => return self.store.cannot(&path, "be read", &e),
        };
        match below::look(&dir, LOG) {
            Ok((FileType::RegularFile, stamp)) if thread.log == Some(stamp) && !force => {
                self.waiting.remove(&(n, LOG));
            }
            Ok((FileType::RegularFile, _)) => {
                match below::open_file(&dir, LOG).and_then(|f| Ok((Stamp::of(&f)?, f))) {
                    Ok((stamp, file)) => self.follow(n, thread, &file, stamp, force),
                    Err(e) => self.store.cannot(&path, "be read", &e),
                }
            }
            Ok((kind, _)) => {
                let what = format!("is skipped: it is {}", below::describe_type(kind));
                self.store.set_trouble(&path, Some(what));
                self.close(n, thread);
            }
            Err(e) if !fs::is_absent(&e) => self.store.cannot(&path, "be read", &e),
            Err(_) => {
                let dir =
                    rustix::fs::fstat(&dir).map(|stat| Stamp::from(&stat)).unwrap_or_default();
                if thread.log.is_none() || !self.must_wait((n, LOG), &dir) {
                    self.close(n, thread);
                }
            }
        }
    }

    /// Whether something that vanished a moment ago is not believed yet.
    fn must_wait(&mut self, file: (u32, &'static str), stamp: &Stamp) -> bool {
        let since = *self.waiting.entry(file).or_insert_with(Instant::now);
        let changed = i64::try_from(stamp.mtime.div_euclid(1_000_000)).unwrap_or_default();
        let young = Timestamp::now().millis() - changed < GRACE.as_millis() as i64;
        if young && since.elapsed() < GRACE {
            return true;
        }
        self.waiting.remove(&file);
        false
    }

    /// The messages of a thread are not to be seen any more.
    fn close(&mut self, n: u32, mut thread: Thread) {
        self.waiting.remove(&(n, LOG));
        self.waiting.remove(&(n, META));
        let source = Source::Log(n).number();
        if thread.log.is_some() {
            self.sink.begin_rescan(&[source]);
            thread.epoch += 1;
            (thread.log, thread.tail, thread.tally) = (None, false, Tally::default());
            self.finish(n, thread);
            self.sink.end_rescan(&[source]);
        }
    }

    fn follow(&mut self, n: u32, mut thread: Thread, file: &File, stamp: Stamp, force: bool) {
        let source = Source::Log(n).number();
        let longer = |old: Stamp| old.same_file(&stamp) && stamp.size > old.size;
        let grown = !force
            && !thread.tail
            && thread.log.is_some_and(longer)
            && thread.tally.fits(file, stamp.size);
        if grown {
            self.waiting.remove(&(n, LOG));
            self.sink.resume(source);
            self.read(n, &mut thread, file, stamp);
            self.store.table.write().put(n, thread);
            return;
        }
        let known = thread.log.is_some();
        let shrunk = known && has_fewer_lines(file, &stamp, &thread.tally);
        if shrunk && self.must_wait((n, LOG), &stamp) {
            return;
        }
        let lines = if shrunk { 0 } else { thread.tally.lines };
        self.waiting.remove(&(n, LOG));
        let again = thread.epoch > 0;
        if again {
            self.sink.begin_rescan(&[source]);
        }
        let until = Instant::now() + GRACE;
        loop {
            thread.epoch += 1;
            (thread.tail, thread.shared, thread.tally) = (false, false, Tally::default());
            self.read(n, &mut thread, file, Stamp::of(file).unwrap_or(stamp));
            if thread.is_unread() {
                break;
            }
            // One that is rewritten meanwhile may end early, or be two logs in one.
            let torn = thread.tally.lines < lines || !thread.tally.fits(file, u64::MAX);
            if !torn || Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if thread.is_unread() {
            self.store.table.write().put(n, thread);
            return self.sink.keep(&[source]);
        }
        self.finish(n, thread);
        if again {
            self.sink.end_rescan(&[source]);
        }
    }

    /// Ends the reading of a whole log: what was not found again is free, and what of it is mine is
    /// reported from what is kept.
    fn finish(&mut self, n: u32, thread: Thread) {
        let gone = {
            let mut table = self.store.table.write();
            let gone = if thread.epoch > 1 { table.ids.sweep(n, thread.epoch) } else { Vec::new() };
            table.put(n, thread);
            if !gone.is_empty() {
                let shared = (0u32..).zip(&table.threads).filter(|(_, t)| t.shared && t.is_read());
                self.again.extend(shared.map(|(other, _)| other).filter(|other| *other != n));
            }
            gone
        };
        let mine: Vec<Place> = gone.iter().filter_map(|p| self.store.kept.place(*p)).collect();
        self.report_kept(&mine);
    }

    /// Reads a log from where it was read before.
    fn read(&mut self, n: u32, thread: &mut Thread, file: &File, stamp: Stamp) {
        let key = thread.key();
        let from = thread.tally.offset;
        let read = read_lines(file, from, stamp.size, |run, offset| {
            self.batch(n, thread, &key, &pieces(run, offset), false);
            self.done += run.len() as u64;
            self.sink.progress(self.done, self.total.max(self.done));
        });
        thread.log = Some(stamp);
        match read {
            Ok((offset, tail)) => {
                thread.tally.offset = offset;
                thread.tally.seal(file);
                if !tail.trim_ascii().is_empty() {
                    // It is counted when its newline comes.
                    let mut as_if = thread.clone();
                    thread.tail = self.batch(n, &mut as_if, &key, &pieces(&tail, offset), true);
                    thread.shared |= as_if.shared;
                }
            }
            Err(e) => {
                let path = format!("{}/{LOG}", thread.name);
                self.store.cannot(&path, "be read to its end", &e);
                // No position and no stamp that a later look could take for its own.
                thread.tally.offset = u64::MAX;
                thread.log = Some(Stamp { ctime: 0, ..stamp });
            }
        }
    }

    /// Reports a run of lines; whether the last of them is a message. `tail`: it has no newline.
    fn batch(
        &mut self,
        n: u32,
        thread: &mut Thread,
        key: &str,
        pieces: &[Piece<'_>],
        tail: bool,
    ) -> bool {
        let (mut found, mut rejected) = (Vec::with_capacity(pieces.len()), Vec::new());
        let mut is_message = false;
        {
            let mut table = self.store.table.write();
            for piece in pieces {
                thread.tally.lines += 1;
                let (text, skipped) = match piece.text.strip_prefix(BOM) {
                    Some(rest) if piece.offset == 0 => (rest, BOM.len_utf8() as u32),
                    _ => (&*piece.text, 0),
                };
                let at = Location {
                    source: Source::Log(n).number(),
                    offset: piece.offset + u64::from(skipped),
                    len: piece.len.saturating_sub(skipped),
                };
                if text.trim().is_empty() {
                    continue;
                }
                let line = line::parse(text);
                is_message = line.is_ok();
                match line {
                    Err(e) => rejected.push(bad_line(at, thread, &e, tail)),
                    Ok(line) => {
                        found.extend(self.take((n, key), thread, &mut table, text, line, at));
                    }
                }
            }
        }
        if !found.is_empty() || !rejected.is_empty() {
            let path = self.store.path_of_source(Source::Log(n).number()).unwrap_or_default();
            all_from(&path, &mut found, &mut rejected);
            self.sink.batch(&mut found, &mut rejected);
        }
        is_message
    }

    /// Counts a message and gives it its id; `None` if it stands in the log before.
    fn take<'a>(
        &self,
        (n, key): (u32, &'a str),
        thread: &mut Thread,
        table: &mut Table,
        text: &str,
        line: Line<'a>,
        at: Location,
    ) -> Option<Found<'a>> {
        let by = Reading { thread: n, epoch: thread.epoch, key };
        let told = Told { role: &line.role, id: &line.id, content: line.content };
        let id = match table.ids.claim(told, by) {
            Claimed::Duplicate => None,
            Claimed::Id { id, shared, .. } => {
                thread.shared |= shared;
                Some(id.into_owned())
            }
        };
        let times = thread.tally.count(&line, Timestamp::from_millis(thread.created));
        let place = (at, thread.tally.lines);
        Some(self.found(text, line, id?, place, times, key))
    }

    fn found<'a>(
        &self,
        text: &str,
        line: Line<'a>,
        id: String,
        (at, number): (Location, u64),
        (time, name_time): (Timestamp, Timestamp),
        key: &'a str,
    ) -> Found<'a> {
        let mine = line.role == self.store.me.as_str();
        Found {
            at,
            line: number,
            to: Cow::Borrowed(recipient(&line.role)),
            thread: Cow::Borrowed(key),
            answers: None,
            // Most ids are taken as they are; a copy of those is spared.
            id: if id == line.id { line.id.clone() } else { Cow::Owned(id) },
            time,
            name_time: Some(name_time),
            to_me: !mine,
            from_me: mine,
            again: Again::Rewritten,
            read: None,
            parts: line.has_parts(),
            noted: false,
            claim: line.signed.then(|| sign::claim(text)).flatten().map(Box::new),
            idempotency_key: line.idem.as_deref().filter(|_| mine).map(Into::into),
            from: line.role,
            ..Found::default()
        }
    }

    /// Reports messages of mine from what is kept of them.
    fn report_kept(&mut self, places: &[Place]) {
        for place in places {
            let Ok(bytes) = self.store.kept.read(place.offset, place.len as usize) else {
                continue;
            };
            let text = String::from_utf8_lossy(&bytes);
            let Some(record) = lost::record(&text) else { continue };
            let time = record.line.when().time().unwrap_or_default();
            let at = Location { source: KEPT, offset: place.offset, len: place.len };
            let id = record.line.id.clone().into_owned();
            let (message, key) = (record.message, record.thread.as_str());
            let found = self.found(message, record.line, id, (at, 0), (time, time), key);
            self.sink.batch(&mut vec![found], &mut Vec::new());
        }
    }
}

fn refusal(source: u32, thread: &Thread, reason: String) -> Rejected {
    let len = u32::try_from(thread.meta.size).unwrap_or(u32::MAX);
    let millis = i64::try_from(thread.meta.mtime.div_euclid(1_000_000)).unwrap_or_default();
    Rejected {
        at: Location { source, offset: 0, len },
        reason,
        time: Timestamp::from_millis(millis),
        ..Rejected::default()
    }
}

fn bad_line(at: Location, thread: &Thread, error: &line::LineError, tail: bool) -> Rejected {
    let error = one_line(&error.to_string()).into_owned();
    Rejected {
        at,
        line: thread.tally.lines,
        reason: if tail {
            format!("the last line of the log is not complete yet ({error})")
        } else {
            error
        },
        time: Timestamp::from_millis(thread.tally.last_time.unwrap_or(thread.created)),
        incomplete: tail,
        ..Rejected::default()
    }
}

/// Whether a log has fewer complete lines than were read of it.
fn has_fewer_lines(file: &File, stamp: &Stamp, tally: &Tally) -> bool {
    let mut lines = 0;
    let counted = read_lines(file, 0, stamp.size, |run, _| {
        lines += memchr::memchr_iter(b'\n', run).count() as u64;
    });
    counted.is_ok() && lines < tally.lines
}
