//! ATSF 1.1 (Agent Thread Storage Format): a project's conversations with agents, a folder each, in
//! `.agent/threads/` of the project and of its git worktrees.
//!
//! The format, as functions without I/O:
//! - [`line`](mod@line), [`thread`](mod@thread), `values`: what a line and a `thread.json` say.
//! - [`blocks`], [`sign`], [`edit`]: a message as text, signatures, derived numbers.
//!
//! The store on top of it, whose logs `engine::lines` follows:
//! - `roots`, `git`: where threads lie. `head`: what their `thread.json` says. `ids`: which thread has
//!   the message of an id. `lost`: what I wrote, kept.
//! - `read`, [`assets`]: one message in full. `send`, `create`, `append`: new ones. `check`, `schema`: the rest.
//!
//! A log is never rewritten and a `thread.json` changed in its derived numbers only, so members nobody
//! here knows, their spelling and their order stay as they are.

mod append;
pub mod assets;
pub mod blocks;
mod check;
mod create;
pub mod edit;
mod git;
mod head;
mod ids;
pub mod line;
mod lost;
mod read;
mod roots;
mod schema;
mod send;
pub mod sign;
pub mod thread;
mod values;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex};

use super::digest::Digests;
use super::engine::lines::check::{Checked, Say};
use super::engine::lines::log::Tally;
use super::engine::lines::scan::Scan;
use super::engine::lines::table::{KEPT, LogOf, Root};
use super::engine::lines::{Facts as _, Format, Lines, Named, Reading, Shape};
use super::{
    About, Again, EmptyThread, Facets, Fit, Found, Location, Outgoing, Part, Parts, Prepared,
    Preparing, Record, Rooms, Spec, Store as _, StoreError, Threads as ThreadIds,
};
use crate::model::{Draft, Message, ORIGIN, Timestamp, one_line};
use head::{State, Thread};
use ids::{Claimed, Ids, Told};
pub use line::Stats;
use line::{Counts, Line};
use lost::{Kept, Place};
use roots::{AGENT, GIT, Repository, THREADS};

/// Roles the format names, as which a mount can act.
const ROLES: [&str; 3] = ["user", "agent", "system"];
/// The files of a thread that have a name of their own.
const LOG: &str = "messages.jsonl";
const META: &str = "thread.json";

/// The threads of one project, read and written as one role.
pub type Atsf = Lines<Threads>;
type Log = LogOf<Threads>;

/// What is kept of a project besides its logs.
pub struct Threads {
    repository: Mutex<Repository>,
    kept: Kept,
    digests: Digests,
    /// Threads whose derived numbers could not be brought up to date after an append.
    stale: Mutex<BTreeSet<u32>>,
}

/// Whom a message of this role is for: the format has no recipients.
fn recipient(role: &str) -> &'static str {
    if role == "user" { "agent" } else { "user" }
}

impl Format for Threads {
    const SHAPE: Shape = Shape {
        folder: &[AGENT, THREADS],
        file: Some(LOG),
        beside: Some(META),
        parts: Some(assets::FOLDER),
        rewritten: true,
        copies: false,
    };
    type Facts = Thread;
    type Count = Counts;
    type Shared = Ids;
    type Work = ();
    type Said<'a> = Line<'a>;
    /// The text of its `thread.json`.
    type Head = String;

    /// Opens the project whose folder, or whose `.agent`, `spec` names. Nothing is made.
    fn open(spec: &Spec) -> Result<(Self, About), StoreError> {
        let me = spec.as_me.as_deref().unwrap_or("user");
        if !ROLES.contains(&me) {
            return Err(StoreError::Invalid(format!(
                "me = {:?}: in an ATSF store me must be one of {}",
                one_line(me),
                ROLES.join(", ")
            )));
        }
        let project = match (spec.dir.file_name(), spec.dir.parent()) {
            (Some(name), Some(parent)) if name == AGENT => parent,
            _ => &spec.dir,
        };
        let format = Self {
            repository: Mutex::at(Level::Around, Repository::default()),
            kept: Kept::open(spec.state.as_deref())?,
            digests: Digests::default(),
            stale: Mutex::default(),
        };
        let about = About {
            threads: ThreadIds::Labels,
            roles: true,
            default_recipient: Some(recipient(me)),
            // How large a file may be is for the mount to say.
            carries: Some(|_| Ok(())),
            covers: Some(sign::covered),
            ..About::new(spec, me, project)
        };
        Ok((format, about))
    }

    fn facets(store: &Atsf) -> Facets<'_> {
        Facets {
            outgoing: Some(store),
            deliveries: Some(store),
            parts: Some(store),
            rooms: Some(store),
            upkeep: Some(store),
            ..Facets::default()
        }
    }

    fn classify(name: &str) -> Named {
        if name.starts_with('.') { Named::Other } else { Named::Log }
    }

    /// The thread's id in the mount.
    fn key(log: &Log) -> String {
        if log.facts.label.is_empty() {
            return log.name.clone();
        }
        format!("{}{ORIGIN}{}", log.name, log.facts.label)
    }

    /// Who is read first keeps the plain ids.
    fn rank(log: &Log) -> i64 {
        log.facts.created
    }

    fn remark(log: &Log) -> Option<String> {
        match &log.facts.state {
            State::Misnamed(id) => Some(format!(
                "names the thread {:?}; msgfs uses the folder's name and writes nothing there",
                one_line(id)
            )),
            State::Refused(why) => Some(why.clone()),
            State::Foreign | State::Usable => None,
        }
    }

    fn said<'a>(
        _: &Atsf,
        (): &mut (),
        _: &'a str,
        text: &'a str,
        _: Location,
        _: &mut Vec<Found<'a>>,
    ) -> Result<Line<'a>, String> {
        line::parse(text).map_err(|e| e.to_string())
    }

    /// Counts a message and gives it its id; it is left out if it stands in the log before. A line that
    /// changed is the same message if it has the same id: what is said last counts.
    fn line<'a>(
        store: &Atsf,
        reading: &mut Reading<'_, Self>,
        (key, text, at): (&'a str, &'a str, Location),
        line: Line<'a>,
        found: &mut Vec<Found<'a>>,
    ) -> Result<(), String> {
        let log = &mut *reading.log;
        let by = ids::Reading { thread: reading.n, epoch: log.epoch, key };
        let told = Told { role: &line.role, id: &line.id, content: line.content };
        if let Claimed::Id { id, shared, .. } = reading.shared.claim(told, by) {
            let id = id.into_owned();
            log.facts.shared |= shared;
            let times = line::count(&mut log.tally, &line, log.facts.begun());
            found.push(describe(store, text, line, id, (at, log.tally.lines), times, key));
        }
        Ok(())
    }

    fn record(store: &Atsf, at: &Location, text: &str) -> Result<Record, StoreError> {
        read::record(store, at, text)
    }

    fn find_roots(
        &self,
        project: &Path,
        roots: &mut Vec<Root>,
        ask: bool,
        noted: &HashSet<PathBuf>,
    ) -> bool {
        let mut repository = self.repository.lock();
        if roots.is_empty() {
            *repository = Repository::default();
        }
        let told = |path: &PathBuf| {
            let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
            repository.concerns(folder, name)
        };
        let ask = ask || noted.iter().any(|path| told(path).is_some());
        repository.refresh(project, roots, ask)
    }

    fn look_beside(scan: &mut Scan<'_, Self>, logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut retitled: BTreeSet<u32> =
            logs.iter().copied().filter(|n| head::look(scan, *n)).collect();
        retitled.extend(head::relabel(&mut scan.store.table.write()));
        retitled
    }

    /// What was not found again is free, and what of it is mine is reported from what is kept.
    fn reread(scan: &mut Scan<'_, Self>, n: u32) {
        let gone = {
            let mut table = scan.store.table.write();
            let Some(epoch) = table.get(n).map(|log| log.epoch) else { return };
            let gone = table.shared.sweep(n, epoch);
            if !gone.is_empty() {
                let shared = table.numbered().filter(|(_, l)| l.facts.shared && l.is_read());
                scan.again.extend(shared.map(|(other, _)| other).filter(|other| *other != n));
            }
            gone
        };
        let kept = &scan.store.format.kept;
        let mine: Vec<Place> = gone.iter().filter_map(|print| kept.place(*print)).collect();
        report_kept(scan, &mine);
    }

    /// What I wrote and nobody has any more is reported from what is kept of it; also what another program
    /// took away before any scan saw it.
    fn looked_at_all(scan: &mut Scan<'_, Self>, first: bool) {
        let new = scan.store.format.kept.take_new();
        if !first && new.is_empty() {
            return;
        }
        let mut missing = missing(scan.store);
        missing.retain(|place| first || new.contains(place));
        report_kept(scan, &missing);
    }

    fn save(ids: &Ids) -> Vec<u8> {
        ids.save()
    }

    fn restore(bytes: &[u8]) -> Option<Ids> {
        Ids::restore(bytes)
    }

    fn read_kept(&self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        self.kept.read(offset, len)
    }

    fn is_part(name: &str) -> bool {
        assets::digest_in(name).is_some()
    }

    /// Messages of mine that no log has any more.
    fn remarks(store: &Atsf) -> Vec<String> {
        let line = |place: &Place| {
            let bytes = store.format.kept.read(place.offset, place.len as usize).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            let record = lost::record(&text)?;
            let thread = record.thread.replace(ORIGIN, "~");
            Some(format!(
                "my message {} of {} is not in the thread {} any more: another program rewrote or \
                 removed the log; it is shown in sent/ and not sent again",
                one_line(&record.line.id),
                one_line(&record.line.timestamp),
                one_line(&thread)
            ))
        };
        missing(store).iter().filter_map(line).collect()
    }

    fn missing(store: &Atsf) -> Option<String> {
        let roots = store.roots();
        let main = std::iter::once(store.about.dir.as_path());
        let mut all = main.chain(roots.iter().map(|root| root.path.as_path()));
        let none = !all.any(|project| std::fs::symlink_metadata(project.join(AGENT)).is_ok());
        none.then(|| {
            format!(
                "there is no {}; check the folder of the store, or begin a thread, which makes it \
                 (`Via: {}` and a subject)",
                store.about.dir.join(AGENT).display(),
                one_line(&store.about.name)
            )
        })
    }

    fn watched(&self, project: &Path) -> Vec<PathBuf> {
        self.repository.lock().watched(project)
    }

    fn tells(store: &Atsf, folder: &Path, name: &str) -> bool {
        let told = store.format.repository.lock().concerns(folder, name);
        told.unwrap_or_else(|| name == GIT && store.roots().iter().any(|root| root.path == folder))
    }

    fn check_head(name: &str, dir: &OwnedFd, say: &mut Say<'_>) -> Option<String> {
        check::meta(name, dir, say)
    }

    fn check_line(store: &Atsf, line: &mut Checked<'_, Self>) {
        check::line(store, line);
    }

    fn check_counted(meta: &String, tally: &Tally<Counts>, say: &mut Say<'_>) {
        check::derived(meta, tally, say);
    }
}

impl Outgoing for Atsf {
    fn fits(&self, address: &str) -> Fit {
        let word = !address.is_empty() && address.len() <= 255 && one_line(address) == address;
        if word { Fit::Via } else { Fit::No }
    }

    fn registered(&self, address: &str) -> bool {
        // A project always has a user and an agent, also before either has written, and the agent
        // may be called by its id.
        address != self.me() && self.fits(address) != Fit::No
    }

    fn shown(&self, prepared: &Prepared) -> Option<Message> {
        read::prepared(self, prepared)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        self.prepare_draft(draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.room_for(bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.append_prepared(message)
    }

    fn sync(&self) -> Result<(), StoreError> {
        // An append is on disk when it returns.
        Ok(())
    }
}

impl Parts for Atsf {
    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        read::open_part(self, at, name)
    }
}

impl Rooms for Atsf {
    /// Threads without messages: those whose log is empty, elsewhere or not here any more.
    fn empty_threads(&self) -> Vec<EmptyThread> {
        let silent = |l: &&Log| l.is_read() && l.tally.count.stats.messages == 0 && !l.tail;
        let shown = |log: &Log| EmptyThread {
            id: Threads::key(log),
            title: log.facts.title.clone(),
            time: Timestamp::from_millis(log.facts.updated),
        };
        self.table.read().logs.iter().filter(silent).map(shown).collect()
    }
}

fn describe<'a>(
    store: &Atsf,
    text: &'a str,
    line: Line<'a>,
    id: String,
    (at, number): (Location, u64),
    (time, name_time): (Timestamp, Timestamp),
    key: &'a str,
) -> Found<'a> {
    let mine = line.role == store.me();
    Found {
        at,
        again: Again::Rewritten,
        line: number,
        to: Cow::Borrowed(recipient(&line.role)),
        thread: Cow::Borrowed(key),
        // Most ids are taken as they are; a copy of those is spared.
        id: if id == line.id { line.id.clone() } else { Cow::Owned(id) },
        time,
        name_time: Some(name_time),
        to_me: !mine,
        from_me: mine,
        parts: line.has_parts(),
        record: text,
        claim: line.signed.then(|| sign::claim(text)).flatten().map(Box::new),
        idempotency_key: line.idem.as_deref().filter(|_| mine).map(Into::into),
        from: line.role,
        ..Found::default()
    }
}

/// What is kept of messages that no log has.
fn missing(store: &Atsf) -> Vec<Place> {
    let table = store.table.read();
    store.format.kept.missing(|print| table.shared.has(print))
}

/// Reports messages of mine from what is kept of them.
fn report_kept(scan: &mut Scan<'_, Threads>, places: &[Place]) {
    for place in places {
        let Ok(bytes) = scan.store.format.kept.read(place.offset, place.len as usize) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let Some(record) = lost::record(&text) else { continue };
        let time = record.line.when().time().unwrap_or_default();
        let at = Location { source: KEPT, offset: place.offset, len: place.len };
        let id = record.line.id.clone().into_owned();
        let (message, key) = (record.message, record.thread.as_str());
        let found = describe(scan.store, message, record.line, id, (at, 0), (time, time), key);
        scan.sink.batch(&mut vec![found], &mut Vec::new());
    }
}
