//! The messages of an SSOT, as files of the engine ([`crate::store::engine::files`]).
//!
//! What bites here, and how it is met:
//!
//! 1. Writers that are not msgfs, and sync programs, may leave a file half written. What is no JSON
//!    object is looked at again for a moment, while everything else is reported at once.
//! 2. A message, its signature and its acknowledgement are three files that arrive in any order. So a
//!    change of one of them is a change of the message, and a task is added up anew whenever anything
//!    in it changes.
//! 3. Only `messages/<task_id>/<msg_id>.json` can be a message. A file elsewhere with the same bytes
//!    is a copy that a sync program made; with other bytes it is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;
use twox_hash::XxHash3_64;

use super::envelope::{FILE_BYTES, Message};
use super::folder::{self, ACKS, MESSAGES, RESUMES, TASKS, is_skipped, signed_stem, stem};
use super::schema::Breach;
use super::state::{Facts, Item, Resume, State, derive, print};
use super::words::Role;
use super::{Ssot, sign, task};
use crate::model::locks::{Level, Mutex, RwLock};
use crate::model::{Claim, Timestamp};
use crate::store::engine::files::{
    self, Dirs, Done, File, Files, Format, Opened, Pass, Reading, Refusal, Table, Taken, Verdict,
    What, stamp_print,
};
use crate::store::{
    Advice, Facets, Found, Hearing, Location, Record, Report, Store as _, StoreError, Verify,
    below, digest, fs,
};

/// What the table keeps of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// What the message says, if it is one.
    pub facts: Facts,
    /// Print of its id.
    id: u64,
    /// When its recipient acknowledged it, in milliseconds since 1970; 0 for not yet.
    pub acked: i64,
    /// Print of its bytes.
    digest: u64,
    /// Its refusal is in `errors.log`, or is for others to log.
    logged: u32,
    /// What trust says of the message: [`COUNTS`], [`REFUSED`], or nothing yet.
    trust: u32,
}

/// Trust takes the message: it counts.
const COUNTS: u32 = 0;
/// Trust refuses the message: it counts for nothing.
const REFUSED: u32 = 1;
/// The message was not judged yet, and counts for nothing until then.
const UNHEARD: u32 = 2;

/// The slot under which messages are found by the prints of their ids.
const BY_ID: u8 = 0;
/// In the print of what lies beside a message: a signature does.
pub(super) const SIGNED: u64 = 1;
/// An acknowledgement does.
const ACKED: u64 = 2;

impl files::Facts for Kept {
    const SLOTS: u8 = 1;

    fn key(&self, _slot: u8, is_message: bool) -> u64 {
        if is_message { self.id } else { 0 }
    }

    fn time(&self) -> i64 {
        self.facts.time
    }

    fn prints(&self) -> (u64, u64) {
        (self.id, self.digest)
    }
}

impl Kept {
    /// Whether nobody has to log the refusal any more.
    pub fn is_logged(&self) -> bool {
        self.logged != 0
    }

    pub fn set_logged(&mut self) {
        self.logged = 1;
    }

    /// Whether this is what is kept of a file with these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.digest == digest::print(bytes)
    }

    /// Whether trust refuses the message; `None` if it was not judged yet.
    pub fn is_refused(&self) -> Option<bool> {
        (self.trust != UNHEARD).then_some(self.trust == REFUSED)
    }

    /// Whether the message was judged, and is not refused.
    pub fn counts(&self) -> bool {
        self.trust == COUNTS
    }
}

/// The tasks of an SSOT, as one role sees them.
#[derive(Debug)]
pub(super) struct Tasks {
    dir: PathBuf,
    pub role: Role,
    /// What the messages of tasks add up to of which people should know.
    pub remarkable: RwLock<BTreeMap<String, State>>,
    /// A print of what they add up to, by the number of the folder of each task. Held while a task is
    /// added up: who does so last says what it is.
    prints: Mutex<HashMap<u32, u64>>,
    /// Tasks whose file in `tasks/` may say something else than their messages.
    pub stale: Mutex<BTreeSet<String>>,
    /// Writing `tasks/` stopped before all of them were written.
    pub behind: AtomicBool,
    /// What git should know was put beside the messages.
    pub told_git: AtomicBool,
}

/// A message that is about to be reported.
#[derive(Debug)]
pub(super) struct New {
    kept: Kept,
    found: Found<'static>,
}

/// The task in whose folder a message lies; empty for `messages/` itself.
pub(super) fn task_of(folder: &str) -> &str {
    folder.strip_prefix(MESSAGES).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default()
}

/// Returns true if a message lies where it belongs.
pub(super) fn is_at(file: &File<Kept>, message: &Message<'_>) -> bool {
    (task_of(&file.folder), stem(&file.name)) == (&message.task, Some(&message.id))
}

impl Format for Tasks {
    type Facts = Kept;
    type Message<'a> = New;
    type Context = ();

    const TAG: [u8; 8] = *b"ssotfi05";
    const LONGEST: usize = FILE_BYTES;

    fn what(&self, path: &[&str], kind: FileType) -> What {
        let plain = matches!(kind, FileType::RegularFile | FileType::Unknown);
        match path {
            _ if path.iter().any(|name| is_skipped(name)) => What::Nothing,
            [MESSAGES | ACKS | RESUMES] => What::Folder,
            [MESSAGES, name] | [MESSAGES, _, name] if stem(name).is_some() => What::Message,
            [MESSAGES, above @ .., name] if above.len() < 2 && signed_stem(name).is_some() => {
                if plain {
                    signed(path)
                } else {
                    strange(kind)
                }
            }
            [MESSAGES | ACKS | RESUMES, _] if kind != FileType::RegularFile => What::Folder,
            [MESSAGES, _, _] if !plain => strange(kind),
            // Nothing is read there, but the files in it are mine to write.
            [TASKS] if !matches!(kind, FileType::Directory | FileType::Unknown) => strange(kind),
            [ACKS, task, name] if stem(name).is_some() => {
                What::Beside(format!("{MESSAGES}/{task}/{name}"))
            }
            [RESUMES, task, name] if stem(name).is_some() => What::Group((*task).to_owned()),
            _ => What::Nothing,
        }
    }

    fn also(&self, path: &[&str]) -> What {
        match path {
            [MESSAGES, _, name] if signed_stem(name).is_some() => signed(path),
            [ACKS] => What::Beside(MESSAGES.to_owned()),
            [ACKS, task] => What::Beside(format!("{MESSAGES}/{task}")),
            [RESUMES] => What::Group(String::new()),
            [RESUMES, task] => What::Group((*task).to_owned()),
            _ => What::Nothing,
        }
    }

    fn begin(&self, _files: &Ssot) -> Result<Option<(Self::Context, u64)>, StoreError> {
        Ok(Some(((), 0)))
    }

    fn beside(&self, dirs: &mut Dirs<'_>, folder: &str, name: &str) -> io::Result<u64> {
        let Some(stem) = stem(name) else { return Ok(0) };
        let signature = dirs.look(folder, &format!("{stem}.sig"))?;
        let ack = dirs.look(&format!("{ACKS}/{}", task_of(folder)), name)?;
        // What is no file in the place of a signature makes the message a wrongly signed one.
        let ack = ack.filter(|(kind, _)| *kind == FileType::RegularFile);
        let prints = [signature, ack].map(|it| it.map_or(0, |(_, stamp)| stamp_print(&stamp)));
        let [signed, acked] = prints.map(|print| print != 0);
        let there = (u64::from(signed) * SIGNED) | (u64::from(acked) * ACKED);
        let print = XxHash3_64::oneshot(bytemuck::bytes_of(&prints)) & !(SIGNED | ACKED);
        Ok(if there == 0 { 0 } else { print | there })
    }

    fn read<'a>(
        &self,
        (): &(),
        dirs: &mut Dirs<'_>,
        opened: &'a Opened<'a, Kept>,
    ) -> io::Result<Reading<New, Kept>> {
        let digest = digest::print(opened.bytes);
        let message = match Message::parse(opened.bytes) {
            Ok(message) => message,
            Err(fault) => {
                let unfinished = fault.breaches.iter().any(|b| b.rule == "not_an_object");
                let verdict = refused(opened, digest, fault.to_string(), fault.incomplete);
                return Ok(Reading { verdict, unfinished, depends: false });
            }
        };
        let file = opened.file;
        if !is_at(file, &message) {
            let verdict = match self.misplaced(&message, opened.bytes) {
                None => Verdict::Nothing,
                Some(breach) => refused(opened, digest, breach.to_string(), false),
            };
            return Ok(Reading { verdict, unfinished: false, depends: true });
        }
        let (mut acked, mut claim) = (None, None);
        let mut read = |folder: &str, name: &str| folder::read_in(&*dirs.open(folder)?, name);
        if opened.beside & ACKED != 0 {
            let ack = read(&format!("{ACKS}/{}", message.task), &file.name);
            acked = acknowledged(ack, &message)?;
        }
        if opened.beside & SIGNED != 0 {
            let signature = read(&file.folder, &format!("{}.sig", message.id));
            claim = sign::claim_in(signature, opened.bytes)?;
        }
        let kept = Kept {
            facts: Facts::of(&message),
            id: print(&message.id),
            acked: acked.map_or(0, Timestamp::millis),
            digest,
            logged: 0,
            trust: UNHEARD,
        };
        let found = self.found(&message, claim, acked.is_some());
        let same = file.message().is_some_and(|old| old.digest == digest);
        Ok(Reading::message(New { kept, found }, same))
    }

    fn is_signed(beside: u64) -> bool {
        beside & SIGNED != 0
    }

    fn facts(message: &New) -> &Kept {
        &message.kept
    }

    fn take<'a>(
        &self,
        _context: &Self::Context,
        pass: &mut Pass<'_, Self>,
        taken: Taken<'a, Self>,
    ) -> Option<Found<'a>> {
        let New { mut kept, mut found } = taken.message;
        // Until it was judged again.
        if let Some(before) = taken.before.filter(|_| taken.same) {
            (kept.trust, kept.logged) = (before.trust, before.logged);
        }
        pass.table.change(taken.n, |_, facts| *facts = kept);
        found.at = File::<Kept>::at(taken.n, taken.opened.bytes.len());
        Some(found)
    }

    fn restored(&self, table: &Table<Kept>) {
        if table.is_empty() {
            self.remarkable.write().clear();
            self.prints.lock().clear();
        }
    }

    fn facets(files: &Ssot) -> Facets<'_> {
        Facets {
            outgoing: Some(files),
            deliveries: Some(files),
            hearing: Some(files),
            acks: Some(files),
            agents: Some(files),
            upkeep: Some(files),
            commands: Some(files),
            ..Facets::default()
        }
    }

    fn record(files: &Ssot, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn check(files: &Ssot, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        files.check_store(verify, report)
    }

    fn health(files: &Ssot) -> Vec<String> {
        let mut lines = files.usual_health();
        if files.missed().is_none() {
            lines.extend(files.nothing_yet());
        }
        lines
    }

    fn advice(files: &Ssot) -> Vec<Advice> {
        files.nothing_yet().map(Advice::warning).into_iter().collect()
    }

    fn remarks(files: &Ssot) -> Vec<String> {
        files.remark_lines(Timestamp::now())
    }

    fn finish(&self, _context: &Self::Context, done: &mut Done<'_, Self>) -> Vec<u32> {
        let mut tasks = done.groups.clone();
        {
            let table = done.files.table.read();
            let all = done.is_full || tasks.remove("");
            if all {
                tasks.extend(table.folders().iter().map(|f| task_of(&f.path).to_owned()));
            } else {
                tasks.extend(done.touched.iter().map(|n| task_of(table.folder(*n)).to_owned()));
            }
        }
        tasks.remove("");
        let resumed = tasks.len() < 2 || folder::may_be_resumed(&self.dir);
        for task in tasks {
            self.settle(done.files, &task, resumed);
        }
        Vec::new()
    }

    /// The messages and their signatures only.
    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        path.first() == Some(&MESSAGES) && self.what(path, kind).is_shown(kind)
    }
}

/// What a signature file is.
fn signed(path: &[&str]) -> What {
    let path = path.join("/");
    signed_stem(&path).map_or(What::Nothing, |stem| What::Beside(format!("{stem}.json")))
}

fn strange(kind: FileType) -> What {
    What::Strange(format!("is skipped: it is {}", below::describe_type(kind)))
}

/// A file that is refused. One whose bytes were refused before is not logged again.
fn refused(
    opened: &Opened<'_, Kept>,
    digest: u64,
    reason: String,
    incomplete: bool,
) -> Verdict<New, Kept> {
    let old = &opened.file.facts;
    let known = opened.file.row.is_refused() && old.digest == digest;
    let facts = Kept { digest, logged: if known { old.logged } else { 0 }, ..Kept::default() };
    Verdict::Refused(Refusal { reason, incomplete, time: None, facts })
}

impl Tasks {
    pub fn new(dir: PathBuf, role: Role) -> Self {
        let (prints, stale) = (Mutex::at(Level::Around, HashMap::new()), Mutex::default());
        let (told_git, behind) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { dir, role, remarkable: RwLock::default(), prints, stale, told_git, behind }
    }

    /// Why a message is refused that does not lie where it belongs; `None` if it lies there too.
    pub fn misplaced(&self, message: &Message<'_>, bytes: &[u8]) -> Option<Breach> {
        let place = format!("{MESSAGES}/{}/{}.json", message.task, message.id);
        match task::message_bytes(&self.dir, &message.task, &message.id) {
            Ok(there) if there == bytes => None,
            Ok(there) if Message::parse(&there).is_ok_and(|m| m.id == message.id) => {
                let why = format!("is that of another message, {place}");
                Some(Breach::new("duplicate_msg_id", "msg_id", why))
            }
            _ => {
                let why = format!("says that the file belongs at {place}, but it is elsewhere");
                Some(Breach::new("msg_id_format", "msg_id", why))
            }
        }
    }

    fn found(&self, message: &Message<'_>, claim: Option<Claim>, acked: bool) -> Found<'static> {
        let (to_me, from_me) = (message.to == self.role, message.from == self.role);
        let idem = message.node.text("idem").filter(|_| from_me);
        Found {
            from: message.from.as_str().into(),
            to: message.to.as_str().into(),
            thread: message.task.clone().into(),
            id: message.id.clone().into(),
            time: message.order,
            to_me,
            from_me,
            read: (to_me && acked).then_some(true),
            noted: from_me && !message.soft.is_empty(),
            claim: claim.map(Box::new),
            idempotency_key: idem.map(Into::into),
            ..Found::default()
        }
    }

    /// Adds up a task and notes what is new. `resumed`: something may have been resumed.
    fn settle(&self, files: &Files<Self>, task: &str, resumed: bool) {
        let mut prints = self.prints.lock();
        let mut told = |stem: &str, fault: Option<String>| {
            let path = format!("{RESUMES}/{task}/{stem}.json");
            files.health.set(&path, fault.map(|why| format!("does not count: {why}")));
        };
        let resumes =
            if resumed { folder::resumes(&self.dir, task, &mut told) } else { Ok(Vec::new()) };
        let state = match resumes.map(|resumes| Self::state(files, task, &resumes)) {
            Ok(state) => state,
            // What the messages add up to stays what it was.
            Err(e) => return files.health.cannot(&format!("{RESUMES}/{task}"), "be read", &e),
        };
        let folder = files.table.read().find_folder(&format!("{MESSAGES}/{task}"));
        let Some(folder) = folder else { return };
        let mut print = DefaultHasher::new();
        state.hash(&mut print);
        let old = prints.insert(folder, print.finish());
        if old != Some(print.finish()) && (old.is_some() || state.messages > 0) {
            self.stale.lock().insert(task.to_owned());
        }
        let mut remarkable = self.remarkable.write();
        if state.is_remarkable() {
            remarkable.insert(task.to_owned(), state);
        } else {
            remarkable.remove(task);
        }
    }

    /// What the messages of a task add up to with what resumed it.
    pub fn state(files: &Files<Self>, task: &str, resumes: &[Resume]) -> State {
        let table = files.table.read();
        let counts = |n: &u32| table.facts(*n).is_some_and(Kept::counts);
        let exists = |id: u64| table.with_key(BY_ID, id).iter().any(counts);
        derive(items(&table, task), resumes, &exists)
    }
}

impl Hearing for Ssot {
    fn hear(&self, judged: &[(Location, bool)]) {
        let mut table = self.table.write();
        let mut stale = self.format.stale.lock();
        for (at, refused) in judged {
            let trust = if *refused { REFUSED } else { COUNTS };
            if table.facts(at.source).is_some_and(|kept| kept.trust != trust) {
                table.change(at.source, |_, kept| (kept.trust, kept.logged) = (trust, 0));
                stale.insert(task_of(table.folder(at.source)).to_owned());
            }
        }
    }

    fn heed(&self, at: &Location) {
        let task = task_of(self.table.read().folder(at.source)).to_owned();
        self.format.settle(self, &task, true);
    }
}

/// When a message was acknowledged by its recipient, by what was read from the file for that.
fn acknowledged(read: io::Result<Vec<u8>>, message: &Message<'_>) -> io::Result<Option<Timestamp>> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(e) if fs::may_pass(&e) => return Err(e),
        Err(_) => return Ok(None),
    };
    let ack = folder::parse_ack(&bytes, &message.task, &message.id).ok();
    Ok(ack.filter(|(by, _)| *by == message.to).map(|(_, time)| time))
}

/// The messages of a task.
fn items(table: &files::Table<Kept>, task: &str) -> Vec<Item> {
    let folder = table.find_folder(&format!("{MESSAGES}/{task}"));
    let files = folder.into_iter().flat_map(|folder| table.files_in(folder));
    let of = |n: u32| {
        let kept = table.facts(n).filter(|_| table.row(n).is_some_and(files::Row::is_message))?;
        if !kept.counts() {
            return None;
        }
        let acked = (kept.acked != 0).then(|| Timestamp::from_millis(kept.acked));
        Some(Item { id: stem(table.name(n))?.to_owned(), facts: kept.facts, acked })
    };
    files.filter_map(of).collect()
}
