//! From changed files to messages.
//!
//! What bites here, and how it is met:
//!
//! 1. Writers that are not msgfs, and sync programs, may leave a file half written. What is no JSON
//!    object is looked at again for up to [`GRACE`], while everything else is reported at once; a
//!    file that is older than that is not waited for.
//! 2. A message, its signature and its acknowledgement are three files that arrive in any order. So a
//!    task is looked at as a whole whenever anything in it changes.
//! 3. Only `messages/<task_id>/<msg_id>.json` can be a message. A file elsewhere with the same bytes
//!    is a copy that a sync program made; with other bytes it is refused.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;

use super::Ssot;
use super::envelope::{FILE_BYTES, Fault, Message};
use super::folder::{self, ACKS, Listing, MESSAGES, RESUMES};
use super::schema::Breach;
use super::state::{Facts, Item, derive, print};
use super::table::{File, Flags, Table, stamp_print};
use super::words::Role;
use super::{sign, task};
use crate::model::{Claim, Timestamp, one_line};
use crate::store::below;
use crate::store::fs::{self, Stamp};
use crate::store::{Found, Location, Rejected, Sink, StoreError};
use twox_hash::XxHash3_64;

/// How long a file that is no JSON object is waited for.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Files read before what was found in them is reported.
const CHUNK: usize = 256;

/// What scans remember between them, besides the table.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Everything was walked.
    pub listed: bool,
    /// Files that are no JSON object yet, by path, and since when.
    waiting: HashMap<String, Instant>,
}

/// A file to be looked at.
struct Candidate {
    source: u32,
    stem: String,
    sig: u64,
    ack: u64,
}

/// A file that was read.
struct Read<'a> {
    task: &'a str,
    parsed: Result<Message<'a>, Fault>,
    bytes: &'a [u8],
    stamp: Stamp,
}

/// What a file is.
enum Outcome {
    Message(Box<Facts>, Box<Found<'static>>),
    /// The same bytes lie where they belong.
    Copy,
    Rejected {
        rejected: Rejected,
        odd: bool,
    },
    /// Looked at again in a moment.
    Wait,
    /// It could not be read, and is what it was.
    Unread(io::Error),
    Missing,
}

impl Ssot {
    /// See [`Store::scan`](crate::store::Store::scan).
    pub(super) fn scan_store(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let mut memory = self.memory.lock();
        let first = !memory.listed;
        let noted = std::mem::take(&mut *self.noted.lock());
        let tasks = if full || first { None } else { self.tasks_of(&noted) };
        let tasks = match tasks {
            Some(tasks) => tasks,
            None => self.all_tasks()?,
        };
        memory.listed = true;
        self.scan_tasks(&tasks, &mut memory, sink);
        while !memory.waiting.is_empty() {
            std::thread::sleep(LOOK_EVERY);
            let noted = std::mem::take(&mut *self.noted.lock());
            let mut tasks = match self.tasks_of(&noted) {
                Some(tasks) => tasks,
                None => self.all_tasks()?,
            };
            tasks.extend(memory.waiting.keys().filter_map(|path| task_of(path)));
            self.scan_tasks(&tasks, &mut memory, sink);
            // One that was removed meanwhile is not waited for.
            memory.waiting.retain(|_, since| since.elapsed() < GRACE * 2);
        }
        if first {
            self.table.write().shrink();
        }
        Ok(())
    }

    /// The tasks in which something was noted; `None` if everything must be looked at.
    fn tasks_of(
        &self,
        noted: &std::collections::HashSet<std::path::PathBuf>,
    ) -> Option<BTreeSet<String>> {
        let mut out = BTreeSet::new();
        for path in noted {
            let Ok(below) = path.strip_prefix(&self.dir) else { return None };
            let parts: Vec<&str> =
                below.iter().map(|part| part.to_str().unwrap_or_default()).collect();
            match parts.as_slice() {
                [MESSAGES, name] if folder::stem(name).is_some() => drop(out.insert(String::new())),
                [MESSAGES | ACKS | RESUMES, task, ..] => drop(out.insert((*task).to_owned())),
                [] | [MESSAGES | ACKS | RESUMES] => return None,
                _ => {}
            }
        }
        Some(out)
    }

    /// Every task of which something is there, or was, and `messages/` itself.
    fn all_tasks(&self) -> Result<BTreeSet<String>, StoreError> {
        self.fault.clear();
        if fs::is_away(&self.dir) {
            // What was in it stays: it was moved away, its disk unmounted, or it is made anew.
            return Ok(BTreeSet::new());
        }
        let mut out: BTreeSet<String> =
            self.table.read().folders().map(str::to_owned).chain([String::new()]).collect();
        let mut seen = super::Seen::default();
        for (area, folders) in [MESSAGES, ACKS, RESUMES].into_iter().zip(&mut seen.folders) {
            let listing = folder::list(&self.dir, &[area])
                .map_err(|e| StoreError::io(&self.dir.join(area), e))?;
            out.extend(listing.folders.iter().cloned());
            folders.extend(listing.folders);
        }
        let mut known = self.seen.write();
        known.folders = seen.folders;
        known.trouble.clear();
        Ok(out)
    }

    fn scan_tasks(&self, tasks: &BTreeSet<String>, memory: &mut Memory, sink: &mut dyn Sink) {
        for (n, task) in (1u64..).zip(tasks) {
            self.scan_task(task, memory, sink);
            sink.progress(n, tasks.len() as u64);
        }
    }

    fn scan_task(&self, task: &str, memory: &mut Memory, sink: &mut dyn Sink) {
        let mut trouble = Vec::new();
        let areas = match self.list_areas(task) {
            Ok(areas) => areas,
            // Nothing is known, so nothing has changed.
            Err(e) => {
                trouble.push(format!("{task} cannot be listed: {e}"));
                self.fault.note(&e);
                self.seen.write().set_trouble(task, trouble);
                return;
            }
        };
        let [messages, acks, _] = &areas;
        let prefix = if task.is_empty() { String::new() } else { format!("{task}/") };
        trouble.extend(
            messages
                .strange
                .iter()
                .map(|(name, why)| format!("{MESSAGES}/{prefix}{} {why}", one_line(name))),
        );
        // In `messages/` itself each folder is a task.
        let odd = messages.folders.iter().filter(|_| !task.is_empty());
        trouble.extend(odd.map(|name| {
            format!("{MESSAGES}/{prefix}{} is skipped: it is a folder", one_line(name))
        }));
        if fs::is_away(&self.dir) {
            return;
        }
        let gone = self.vanished(task, messages);
        if !gone.is_empty() {
            sink.begin_rescan(&gone);
            sink.end_rescan(&gone);
        }
        let queue = self.candidates(task, messages, acks, !gone.is_empty(), &mut trouble);
        let failed = |e: &io::Error| self.fault.note(e);
        let open = || self.open_messages(task).inspect_err(failed).ok();
        let dir = if queue.is_empty() { None } else { open() };
        for chunk in queue.chunks(CHUNK) {
            if let Some(dir) = &dir {
                self.take_chunk((task, dir), chunk, memory, &mut trouble, sink);
            }
        }
        self.settle(task, &mut trouble);
        self.seen.write().set_trouble(task, trouble);
    }

    /// What lies in the three folders of a task.
    fn list_areas(&self, task: &str) -> io::Result<[Listing; 3]> {
        if task.is_empty() {
            let mut messages = folder::list(&self.dir, &[MESSAGES])?;
            messages.folders.clear();
            return Ok([messages, Listing::default(), Listing::default()]);
        }
        let list = |area: &str| folder::list(&self.dir, &[area, task]);
        let areas = [list(MESSAGES)?, list(ACKS)?, list(RESUMES)?];
        let mut seen = self.seen.write();
        for (listing, folders) in areas.iter().zip(&mut seen.folders) {
            // One that is empty yet must be watched before its first file comes.
            if listing.exists {
                folders.insert(task.to_owned());
            }
        }
        Ok(areas)
    }

    pub(super) fn open_messages(&self, task: &str) -> io::Result<OwnedFd> {
        let parts = [MESSAGES, task];
        below::open_dir(&self.dir, if task.is_empty() { &parts[..1] } else { &parts })
    }

    /// Notes which files of a task are no longer there; those that were reported.
    fn vanished(&self, task: &str, messages: &Listing) -> Vec<u32> {
        let mut table = self.table.write();
        let is_gone = |(stem, n): (&str, u32)| {
            let there = messages.files.contains_key(&format!("{stem}.json"));
            (!there).then_some(n)
        };
        let gone: Vec<u32> = table.files_in(task).into_iter().filter_map(is_gone).collect();
        let mut out = Vec::new();
        for n in gone {
            let Some(file) = table.get_mut(n) else { continue };
            if file.is_reported() {
                out.push(n);
            }
            file.flags.set(Flags::GONE, true);
            file.stamp = 0;
        }
        out
    }

    /// The files of a task that must be read. Those that do not lie where they belong must be
    /// whenever anything else changed.
    fn candidates(
        &self,
        task: &str,
        messages: &Listing,
        acks: &Listing,
        changed: bool,
        trouble: &mut Vec<String>,
    ) -> Vec<Candidate> {
        let mut table = self.table.write();
        let known: HashMap<String, u32> =
            table.files_in(task).into_iter().map(|(stem, n)| (stem.to_owned(), n)).collect();
        let of = |listing: &Listing, name: String| listing.files.get(&name).map_or(0, stamp_print);
        let (mut queue, mut odd) = (Vec::new(), Vec::new());
        for (name, stamp) in &messages.files {
            let Some(stem) = folder::stem(name) else { continue };
            let known = known.get(stem).copied();
            let Some(source) = known.or_else(|| table.enrol(task, stem)) else {
                trouble.push("no more files are taken in: there are 16,777,215".into());
                break;
            };
            let Some(file) = table.get(source) else { continue };
            let linked = messages.strange.iter().any(|(n, _)| *n == format!("{stem}.sig"));
            let sig = if linked { 1 } else { of(messages, format!("{stem}.sig")) };
            let ack = of(acks, name.clone());
            let candidate = Candidate { source, stem: stem.to_owned(), sig, ack };
            let now = (stamp_print(stamp), sig, ack);
            if (file.stamp, file.sig, file.ack) != now {
                queue.push(candidate);
            } else if file.flags.has(Flags::ODD) {
                odd.push(candidate);
            }
        }
        if changed || !queue.is_empty() {
            queue.extend(odd);
        }
        queue
    }

    fn take_chunk(
        &self,
        (task, dir): (&str, &OwnedFd),
        chunk: &[Candidate],
        memory: &mut Memory,
        trouble: &mut Vec<String>,
        sink: &mut dyn Sink,
    ) {
        let (mut found, mut rejected, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in chunk {
            let (outcome, mut new) = self.judge(task, dir, candidate, memory);
            let mut table = self.table.write();
            let Some(old) = table.get(candidate.source).copied() else { continue };
            let same = old.is_message() && old.digest == new.digest;
            let stays = same && matches!(outcome, Outcome::Message(..));
            let unchanged = matches!(outcome, Outcome::Wait | Outcome::Unread(_));
            if old.is_reported() && !stays && !unchanged {
                again.push(candidate.source);
            }
            let path = table.path(candidate.source).unwrap_or_default();
            match outcome {
                Outcome::Message(facts, message) => {
                    new.facts = *facts;
                    new.flags.set(Flags::MESSAGE, true);
                    found.push(Found { path: path.into(), ..*message });
                }
                Outcome::Copy => new.flags.set(Flags::ODD, true),
                Outcome::Rejected { rejected: refused, odd } => {
                    new.flags.set(Flags::REJECTED, true);
                    new.flags.set(Flags::ODD, odd);
                    let known = old.is_rejected() && old.digest == new.digest;
                    new.flags.set(Flags::LOGGED, known && old.flags.has(Flags::LOGGED));
                    rejected.push(Rejected { path, ..refused });
                }
                Outcome::Wait => continue,
                Outcome::Unread(e) => {
                    self.fault.note(&e);
                    let shown = one_line(&candidate.stem);
                    trouble.push(format!("{MESSAGES}/{task}/{shown}.json cannot be read now: {e}"));
                    continue;
                }
                Outcome::Missing => new.flags.set(Flags::GONE, true),
            }
            table.put(candidate.source, new);
        }
        if !again.is_empty() {
            sink.begin_rescan(&again);
        }
        if !found.is_empty() || !rejected.is_empty() {
            sink.batch(&mut found, &mut rejected);
        }
        if !again.is_empty() {
            sink.end_rescan(&again);
        }
    }

    /// What a file is, and what the table says of it if it is that.
    fn judge(
        &self,
        task: &str,
        dir: &OwnedFd,
        candidate: &Candidate,
        memory: &mut Memory,
    ) -> (Outcome, File) {
        let name = format!("{}.json", candidate.stem);
        let path = format!("{task}/{name}");
        let mut file = File { sig: candidate.sig, ack: candidate.ack, ..File::default() };
        let read =
            below::open_file(dir, &name).and_then(|file| below::read_whole(&file, FILE_BYTES + 1));
        let outcome = match read {
            Ok((stamp, bytes)) => {
                file.stamp = stamp_print(&stamp);
                file.digest = XxHash3_64::oneshot(&bytes);
                file.len = bytes.len() as u32;
                match Message::parse(&bytes) {
                    Err(fault) if Self::waits(&path, &fault, &stamp, memory) => {
                        return (Outcome::Wait, file);
                    }
                    parsed => {
                        let read = Read { task, parsed, bytes: &bytes, stamp };
                        self.judge_parsed(read, dir, candidate, &mut file)
                            .unwrap_or_else(Outcome::Unread)
                    }
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Outcome::Missing,
            Err(e) if fs::may_pass(&e) => Outcome::Unread(e),
            Err(e) => {
                let reason = format!("it cannot be read: {e}");
                let rejected = refused(candidate.source, &Stamp::default(), 0, reason, false);
                Outcome::Rejected { rejected, odd: false }
            }
        };
        memory.waiting.remove(&path);
        (outcome, file)
    }

    /// What a file is that was read.
    fn judge_parsed(
        &self,
        read: Read<'_>,
        dir: &OwnedFd,
        of: &Candidate,
        file: &mut File,
    ) -> io::Result<Outcome> {
        let refuse = |reason: String, incomplete: bool| {
            let reason = one_line(&reason).into_owned();
            refused(of.source, &read.stamp, read.bytes.len(), reason, incomplete)
        };
        Ok(match &read.parsed {
            Err(fault) => {
                let rejected = refuse(fault.to_string(), fault.incomplete);
                Outcome::Rejected { rejected, odd: false }
            }
            Ok(message) if message.task == read.task && message.id == of.stem => {
                let (facts, found) = self.found(dir, message, read.bytes, of, file)?;
                Outcome::Message(Box::new(facts), Box::new(found))
            }
            Ok(message) => match self.misplaced(message, read.bytes) {
                None => Outcome::Copy,
                Some(breach) => {
                    Outcome::Rejected { rejected: refuse(breach.to_string(), false), odd: true }
                }
            },
        })
    }

    /// Whether a file that is no message is given a moment to become one.
    fn waits(path: &str, fault: &Fault, stamp: &Stamp, memory: &mut Memory) -> bool {
        let broken = fault.breaches.iter().any(|b| b.rule == "not_an_object");
        if !broken || !is_young(stamp) {
            return false;
        }
        let since = *memory.waiting.entry(path.to_owned()).or_insert_with(Instant::now);
        since.elapsed() < GRACE
    }

    /// Why a message is refused that does not lie where it belongs; `None` if it lies there too.
    pub(super) fn misplaced(&self, message: &Message<'_>, bytes: &[u8]) -> Option<Breach> {
        let place = format!("{MESSAGES}/{}/{}.json", message.task, message.id);
        match task::message_bytes(&self.dir, &message.task, &message.id) {
            Ok(there) if there == bytes => None,
            Ok(there) if Message::parse(&there).is_ok_and(|m| m.id == message.id) => {
                let why = format!("is that of another message, {place}");
                Some(Breach::new("duplicate_msg_id", "msg_id", why))
            }
            _ => {
                let why = format!("says that the file belongs at {place}, and it lies elsewhere");
                Some(Breach::new("msg_id_format", "msg_id", why))
            }
        }
    }

    fn found(
        &self,
        dir: &OwnedFd,
        message: &Message<'_>,
        bytes: &[u8],
        candidate: &Candidate,
        file: &mut File,
    ) -> io::Result<(Facts, Found<'static>)> {
        let acked = if candidate.ack == 0 { None } else { self.acked(message)? };
        let acked = acked.filter(|(by, _)| *by == message.to);
        file.acked = acked.map_or(0, |(_, time)| time.millis());
        let (to_me, from_me) = (message.to == self.role, message.from == self.role);
        let idem = message.node.text("idem").filter(|_| from_me);
        let found = Found {
            at: Location { source: candidate.source, offset: 0, len: bytes.len() as u32 },
            line: 0,
            from: message.from.as_str().into(),
            to: message.to.as_str().into(),
            thread: message.task.clone().into(),
            answers: None,
            id: message.id.clone().into(),
            time: message.order,
            name_time: None,
            to_me,
            from_me,
            read: (to_me && acked.is_some()).then_some(true),
            parts: false,
            noted: from_me && !message.soft.is_empty(),
            claim: claim_of(dir, candidate, bytes)?.map(Box::new),
            idempotency_key: idem.map(Into::into),
            ..Found::default()
        };
        Ok((Facts::of(message), found))
    }

    /// By whom and when a message was acknowledged; nothing if the file is no acknowledgement.
    fn acked(&self, message: &Message<'_>) -> io::Result<Option<(Role, Timestamp)>> {
        let name = format!("{}.json", message.id);
        match folder::read(&self.dir, &[ACKS, &message.task, &name], folder::SMALL) {
            Err(e) if fs::may_pass(&e) => Err(e),
            Err(_) => Ok(None),
            Ok((_, bytes)) => Ok(folder::parse_ack(&bytes, &message.task, &message.id).ok()),
        }
    }

    /// Adds up a task and notes what is new.
    fn settle(&self, task: &str, trouble: &mut Vec<String>) {
        let mut broken = |name: &str, why: String| {
            trouble.push(format!("{RESUMES}/{task}/{} does not count: {why}", one_line(name)));
        };
        let resumes = match folder::resumes(&self.dir, task, &mut broken) {
            Ok(resumes) => resumes,
            // What the messages add up to stays what it was.
            Err(e) => {
                self.fault.note(&e);
                return trouble.push(format!("{RESUMES}/{task} cannot be read: {e}"));
            }
        };
        let table = self.table.read();
        let items = items(&table, task);
        let here: BTreeSet<u64> = items.iter().map(|i| print(&i.id)).collect();
        let exists = |id: u64| here.contains(&id) || is_somewhere(&table, id);
        let state = derive(items, &resumes, &exists);
        drop(table);
        let mut seen = self.seen.write();
        let old = seen.states.get(task);
        if old == Some(&state) || (old.is_none() && state.messages == 0) {
            return;
        }
        self.stale.lock().insert(task.to_owned());
        if state.messages == 0 {
            seen.states.remove(task);
        } else {
            seen.states.insert(task.to_owned(), state);
        }
    }
}

/// The messages of a task.
fn items(table: &Table, task: &str) -> Vec<Item> {
    let files = table.files_in(task).into_iter();
    let of = |(stem, n): (&str, u32)| {
        let file = table.get(n).filter(|f| f.is_message())?;
        let acked = (file.acked != 0).then(|| Timestamp::from_millis(file.acked));
        Some(Item { id: stem.to_owned(), facts: file.facts, acked })
    };
    files.filter_map(of).collect()
}

fn is_somewhere(table: &Table, id: u64) -> bool {
    table.files.iter().any(|f| f.is_message() && print(table.stem(f)) == id)
}

/// The signature beside a message, if there is one.
fn claim_of(dir: &OwnedFd, candidate: &Candidate, message: &[u8]) -> io::Result<Option<Claim>> {
    if candidate.sig == 0 {
        return Ok(None);
    }
    Ok(Some(match read_claim(dir, &candidate.stem, message) {
        Err(e) if fs::may_pass(&e) => return Err(e),
        read => read.unwrap_or_else(|e| Claim::Malformed(unreadable(&e))),
    }))
}

/// What is wrong with a signature whose file cannot be read.
pub(super) fn unreadable(error: &io::Error) -> String {
    format!("its signature file cannot be read: {error}")
}

/// Reads the signature of a message from its file.
///
/// # Errors
/// As the system gave it.
pub(super) fn read_claim(dir: &OwnedFd, stem: &str, message: &[u8]) -> io::Result<Claim> {
    let file = below::open_file(dir, &format!("{stem}.sig"))?;
    let (_, bytes) = below::read_whole(&file, folder::SMALL)?;
    Ok(sign::claim(&bytes, message))
}

fn refused(source: u32, stamp: &Stamp, len: usize, reason: String, incomplete: bool) -> Rejected {
    let at = Location { source, offset: 0, len: len as u32 };
    Rejected { at, reason, time: on_disk(stamp), incomplete, ..Rejected::default() }
}

/// A file's own modification time.
pub(super) fn on_disk(stamp: &Stamp) -> Timestamp {
    let ms = stamp.mtime.div_euclid(1_000_000);
    Timestamp::from_millis(i64::try_from(ms).unwrap_or_default())
}

/// Whether a file was changed so lately that somebody may still be writing it.
fn is_young(stamp: &Stamp) -> bool {
    let age = Timestamp::now().millis().saturating_sub(on_disk(stamp).millis());
    age < GRACE.as_millis() as i64
}

/// The task in whose folder a waiting file lies.
fn task_of(path: &str) -> Option<String> {
    Path::new(path).parent()?.to_str().map(|task| task.trim_start_matches('/').to_owned())
}
