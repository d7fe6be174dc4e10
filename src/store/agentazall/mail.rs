//! A mailbox as files of the engine ([`crate::store::engine::files`]): `<day>/<folder>/<name>.txt`, with
//! attachments in a folder `<name>/` beside it.
//!
//! What bites here, and how it is met:
//!
//! 1. The reference writes in place and copies without temporary names: a file that was touched a moment
//!    ago and looks half-written is looked at again before it counts.
//! 2. One message may lie in several files: what the files make is settled when all were read
//!    ([`known`](super::known)), and only messages that gained, lost or changed a file are reported again.
//! 3. A file that has only grown while its writer was not finished is still the same message. Any other
//!    change of the text makes another one.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jiff::tz::TimeZone;
use rustix::fs::FileType;
use twox_hash::XxHash3_64;

use super::group::Message;
use super::held::Who;
use super::known::{Known, Step, Table, held};
use super::letter::{self, Kept, MAX_FILE, Parsed, Print};
use super::place::{self, Folder, Place};
use super::state::State;
use super::{AgentAzall, config, date, deliver, group::Held, key, mark, parts, text};
use crate::model::locks::{Level, Mutex, RwLock};
use crate::model::{Seed, Timestamp, one_line, twin_id};
use crate::store::digest::Digests;
use crate::store::engine::files::unread::Unread;
use crate::store::engine::files::{
    Dirs, Done, File, Files, Format, Opened, Pass, Reading, Refusal, Taken, Verdict, What,
};
use crate::store::fs::Stamp;
use crate::store::place::TEMP_END;
use crate::store::{Advice, Facets, Found, Location, Record, Report, StoreError, Verify, Ways};

/// Bytes of message files whose readings are kept until they are reported; what is beyond is read again.
const KEPT_BYTES: usize = 64 << 20;
/// Messages reported at once, so that no index is locked for long.
const BATCH: usize = 256;

/// A mailbox and what is known of it beyond single files.
#[derive(Debug)]
pub(super) struct Mail {
    pub me: String,
    pub zone: TimeZone,
    pub config_file: PathBuf,
    /// The folder of all mailboxes of this machine.
    pub mailboxes: PathBuf,
    pub settings: RwLock<config::Settings>,
    pub known: RwLock<Known>,
    pub state: State,
    /// Addresses that mail waits for.
    pub waiting: RwLock<BTreeSet<String>>,
    step: Mutex<(Step, Fresh)>,
    /// One delivery at a time.
    pub delivering: Mutex<()>,
    pub delivered: Mutex<deliver::Delivered>,
    /// Why somebody could not be given what waits for him.
    pub failed: Mutex<deliver::Failed>,
    /// Files that were marked a moment ago.
    pub replaced: Mutex<Vec<mark::Replaced>>,
    /// Folders whose new entries may not be on disk.
    pub unsynced: Mutex<BTreeSet<PathBuf>>,
    pub digests: Digests,
    /// What the mailboxes of others say.
    pub others: Unread,
    /// The mount's key, to be written into a mailbox that is not there yet.
    pub key_for_later: Mutex<Option<Seed>>,
    /// Texts in `me/` that this process has written.
    pub own_texts: Mutex<BTreeSet<String>>,
    /// The ways to other machines, if there are any.
    pub ways: OnceLock<Arc<dyn Ways>>,
}

/// Attachments' folders are watched this long after their message last changed: the reference copies
/// them after the text, file by file.
const PARTS_MS: i64 = 10 * 60 * 1000;

/// Reports of what was read, by number.
#[derive(Debug, Default)]
struct Fresh {
    found: HashMap<u32, Found<'static>>,
    bytes: usize,
}

/// What messages are judged by in one scan.
pub(super) struct Context {
    filters: config::Filters,
    /// Nothing was ever read.
    is_first: bool,
    base: PathBuf,
    /// A print of my key, once somebody asked for it; none is all zero, by which nothing verifies.
    my_key: OnceLock<Print>,
}

impl Mail {
    pub fn new(
        me: String,
        zone: TimeZone,
        (config_file, mailboxes): (PathBuf, PathBuf),
        settings: config::Settings,
        (state, known): (State, Known),
    ) -> Self {
        Self {
            me,
            zone,
            config_file,
            mailboxes,
            settings: RwLock::new(settings),
            known: RwLock::at(Level::Around, known),
            waiting: RwLock::default(),
            step: Mutex::default(),
            delivering: Mutex::at(Level::Store, ()),
            delivered: Mutex::at(Level::Table, state.delivered()),
            failed: Mutex::default(),
            replaced: Mutex::at(Level::Table, Vec::new()),
            unsynced: Mutex::default(),
            digests: Digests::default(),
            others: Unread::default(),
            key_for_later: Mutex::default(),
            own_texts: Mutex::default(),
            ways: OnceLock::new(),
            state,
        }
    }

    /// Takes the bytes of a file apart.
    pub fn take_apart(&self, file: &File<Kept>, stamp: &Stamp, bytes: &[u8]) -> Option<Parsed> {
        let path = file.path();
        let place = Place::parse(&path)?;
        Some(letter::take_apart(bytes, stamp, &place, (&self.me, &self.zone)))
    }

    /// Why the address filter keeps a message out. My own mail to myself needs no permission.
    fn refusal(&self, context: &Context, file: &File<Kept>, parsed: &Parsed) -> Option<String> {
        if !file.folder.ends_with("/inbox") {
            return None;
        }
        let why = context.filters.refuses(&parsed.from)?;
        // What was delivered and read stays; without the cache nobody knows more than that it was read.
        if parsed.kept.has(Kept::READ) && (file.row.is_message() || context.is_first) {
            return None;
        }
        let is_mine = || {
            let read = || key::read(&context.base).ok().flatten();
            let print = || read().map(|seed| letter::key_print(&seed.public_key().0));
            *context.my_key.get_or_init(|| print().unwrap_or_default()) == parsed.kept.key
        };
        let mine = parsed.from == self.me && parsed.kept.is_signed() && is_mine();
        (!mine).then_some(why)
    }

    /// Reads the files of a message for its report; `None` if one is no longer what it was.
    fn read_again(&self, files: &Files<Self>, n: u32) -> Option<Found<'static>> {
        let file = files.file(n).ok()?;
        let (stamp, bytes) = files.bytes(&file, MAX_FILE).ok()?;
        let parsed =
            self.take_apart(&file, &stamp, &bytes).filter(|p| p.kept.text == file.facts.text);
        if parsed.is_none() {
            // Not the stamp of a file that was reported: the next scan reads it.
            files.table.write().change(n, |row, _| row.stamp = 0);
            files.health.fault.set();
        }
        Some(parsed?.found(&self.me))
    }

    /// The report of a message.
    fn found(
        &self,
        files: &Files<Self>,
        message: &Message,
        fresh: &mut HashMap<u32, Found<'static>>,
    ) -> Option<Found<'static>> {
        let mut read = |n| fresh.remove(&n).or_else(|| self.read_again(files, n));
        let mut one = read(message.best)?;
        if message.leader != message.best {
            let leader = read(message.leader)?;
            (one.id, one.time) = (leader.id, leader.time);
        }
        one.id = id_of(&one.id, message.held).into();
        let table = files.table.read();
        let len = table.row(message.best).map_or(0, |row| row.len);
        one.at = File::<Kept>::at(message.best, len as usize);
        one.parts = table.facts(message.best).is_some_and(|kept| kept.has(Kept::PARTS));
        one.to_me = message.to_me;
        one.from_me = message.from_me;
        one.noted = message.from_me
            && match folder_of(table.folder(message.best)) {
                Some(Folder::Outbox | Folder::Carrying) => true,
                Some(Folder::Sent) => {
                    one.to.split(", ").any(|to| files.refusal(&one.id, to).is_some())
                }
                _ => false,
            };
        (one.read, one.unmarked) = (message.read, message.unmarked);
        one.idempotency_key = one.idempotency_key.filter(|_| message.from_me);
        Some(one)
    }
}

/// Which folder of a day the path of one is.
pub(super) fn folder_of(path: &str) -> Option<Folder> {
    Folder::from_name(path.rsplit_once('/')?.1)
}

/// The id by which a message is known.
pub(super) fn id_of(id: &str, held: Held) -> String {
    let twin = if let Held::Twin(hash) = held { Some(hash) } else { None };
    twin_id(id, twin.as_ref()).into_owned()
}

/// Whether a known file has only grown while its writer was not finished.
fn is_grown(old: &Kept, opened: &Opened<'_, Kept>, now: &Kept) -> bool {
    let young = (0..mark::STILL_MS).contains(&now.mtime.saturating_sub(old.mtime));
    // A mark that was taken away says that somebody put a new message here.
    let may = (old.has(Kept::UNFINISHED) || young) && (now.has(Kept::READ) || !old.has(Kept::READ));
    let size = u64::from(opened.file.row.len);
    may && old.text != now.text && letter::has_grown(opened.bytes, &old.file, size)
}

impl Format for Mail {
    type Facts = Kept;
    type Message<'a> = Parsed;
    type Context = Context;

    const TAG: [u8; 8] = *b"agzall04";
    const LONGEST: usize = MAX_FILE;
    const REFUSES_ODD: bool = true;

    fn what(&self, path: &[&str], _: FileType) -> What {
        let beside = |day: &str, folder: &str, stem: &str| {
            What::Beside(format!("{day}/{folder}/{stem}.txt"))
        };
        match path {
            [day, ..] if !date::is_day(day) => What::Nothing,
            [_, folder, ..] if Folder::from_name(folder).is_none() => What::Nothing,
            [_] | [_, _] => What::Folder,
            [_, _, name] if place::is_text(name) => What::Message,
            [_, _, name] if name.starts_with('.') || name.strip_suffix(".tmp").is_some() => {
                What::Nothing
            }
            [day, folder, stem] => beside(day, folder, stem),
            [day, folder, stem, name] if !name.ends_with(TEMP_END) => beside(day, folder, stem),
            _ => What::Nothing,
        }
    }

    fn begin(&self, files: &AgentAzall) -> Result<Option<(Context, u64)>, StoreError> {
        files.catch_up();
        // What was in a mailbox that is something else now stays; health says so.
        if files.require_base_if_any().is_err() {
            return Ok(None);
        }
        let (base, is_first) = (files.about.dir.clone(), files.table.read().is_empty());
        let mut settings = self.settings.write();
        settings.reload(&self.config_file, &self.mailboxes, &files.health.fault);
        let zone = self.zone.iana_name().map_or_else(|| format!("{:?}", self.zone), str::to_owned);
        let basis = XxHash3_64::oneshot(format!("{zone}\0{:?}", settings.filters).as_bytes());
        let filters = settings.filters.clone();
        Ok(Some((Context { filters, is_first, base, my_key: OnceLock::new() }, basis)))
    }

    fn beside(&self, dirs: &mut Dirs<'_>, folder: &str, name: &str) -> io::Result<u64> {
        parts::state(dirs, folder, name.strip_suffix(".txt").unwrap_or(name))
    }

    fn read<'a>(
        &self,
        context: &Context,
        _: &mut Dirs<'_>,
        opened: &'a Opened<'a, Kept>,
    ) -> io::Result<Reading<Parsed, Kept>> {
        if opened.bytes.len() > MAX_FILE {
            let limit = MAX_FILE >> 20;
            let why = format!("is larger than {limit} MiB, so it is not a message");
            return Ok(Reading::refused(format!("it cannot be read: {why}")));
        }
        let Some(mut parsed) = self.take_apart(opened.file, &opened.stamp, opened.bytes) else {
            return Ok(Reading::refused("it lies in a place where no messages belong".into()));
        };
        parsed.kept.set(Kept::PARTS, opened.beside & parts::SHOWN != 0);
        let unfinished = parsed.kept.has(Kept::UNFINISHED);
        let facts = parsed.kept;
        let verdict = if opened.bytes.is_empty() {
            let reason = "the file is empty".into();
            Verdict::Refused(Refusal { reason, incomplete: true, time: None, facts })
        } else if let Some(why) = parsed.letter.get(text::UNREADABLE) {
            let reason = format!("a link brought a message that cannot be read: {}", one_line(why));
            Verdict::Refused(Refusal { reason, incomplete: false, time: None, facts })
        } else if let Some(reason) = self.refusal(context, opened.file, &parsed) {
            let time = Some(Timestamp::from_millis(facts.time));
            Verdict::Refused(Refusal { reason, incomplete: false, time, facts })
        } else {
            let is = |old: &Kept| {
                // The text alone is not what was signed.
                let lost = old.is_signed() && !parsed.kept.is_signed();
                Who::of(old).is(&Who::of(&parsed.kept)) && !lost
                    || is_grown(old, opened, &parsed.kept)
            };
            let same = opened.file.message().is_some_and(is);
            Verdict::Message { message: parsed, same }
        };
        Ok(Reading { verdict, unfinished, depends: false })
    }

    fn facts(message: &Parsed) -> &Kept {
        &message.kept
    }

    fn reported_from(files: &AgentAzall, n: u32) -> u32 {
        let known = files.format.known.read();
        known.message_of(&files.table.read(), n).map_or(n, |message| message.best)
    }

    fn take<'a>(
        &self,
        _: &Context,
        pass: &mut Pass<'_, Self>,
        taken: Taken<'a, Self>,
    ) -> Option<Found<'a>> {
        let Taken { n, opened, message: parsed, before, same } = taken;
        let mut kept = parsed.kept;
        kept.leader = Kept::UNSORTED;
        let mut step = self.step.lock();
        if let Some(old) = before.filter(|_| same) {
            step.0.leave(&old);
            kept.leader = old.leader;
            kept.set(Kept::PLAIN, old.has(Kept::PLAIN) && old.name == kept.name);
            if old.name != kept.name {
                pass.table.twins.remove(&n);
            } else if old.text != kept.text {
                step.0.grown.push((old, kept));
            }
        }
        pass.table.change(n, |_, facts| *facts = kept);
        step.1.bytes += opened.bytes.len();
        if step.1.bytes <= KEPT_BYTES {
            step.1.found.insert(n, parsed.found(&self.me));
        }
        None
    }

    fn lost(&self, pass: &mut Pass<'_, Self>, n: u32) {
        let Some(old) = pass.table.facts(n) else { return };
        let mut step = self.step.lock();
        step.0.leave(old);
        if old.leader == n {
            step.0.lost.push((*old, held(pass.table, n)));
        }
    }

    /// Settles which messages there are and reports those that changed, in the order of their time.
    fn finish(&self, _: &Context, done: &mut Done<'_, Self>) -> Vec<u32> {
        let (step, Fresh { mut found, .. }) = std::mem::take(&mut *self.step.lock());
        if done.touched.is_empty() {
            return Vec::new();
        }
        let (delta, lines, mut messages) = {
            let mut known = self.known.write();
            let mut table = done.files.table.write();
            let mut delta = known.apply(&mut table, done.touched, step);
            let order = |m: Message, table: &Table| {
                let time = table.facts(m.leader).map_or(0, |kept| kept.time);
                (time, table.path(m.best).unwrap_or_default(), m)
            };
            let messages: Vec<_> =
                std::mem::take(&mut delta.messages).into_iter().map(|m| order(m, &table)).collect();
            (delta, known.ledger.take_lines(), messages)
        };
        // Before anybody can mark what is reported.
        self.state.add_ids(&lines, true);
        messages.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        done.reports.again(delta.again);
        for batch in messages.chunks(BATCH) {
            let mut batch_found = Vec::with_capacity(batch.len());
            for (_, _, message) in batch {
                match self.found(done.files, message, &mut found) {
                    Some(one) => batch_found.push(one),
                    None => done.reports.keep(),
                }
            }
            done.reports.report(&mut batch_found);
        }
        Vec::new()
    }

    fn restored(&self, table: &Table) {
        self.known.write().restore(table);
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        match (self.what(path, kind), path) {
            (What::Folder, _) | (What::Beside(_), [_, _, _]) => kind == FileType::Directory,
            (What::Message, _) => kind == FileType::RegularFile,
            (What::Beside(_), [.., name]) => kind == FileType::RegularFile && parts::is_part(name),
            _ => false,
        }
    }

    const HIDES_EMPTY: bool = true;

    fn watched_besides(files: &AgentAzall) -> Vec<PathBuf> {
        let mail = &files.format;
        let mut out: Vec<PathBuf> =
            mail.config_file.parent().map(Path::to_owned).into_iter().collect();
        out.push(mail.mailboxes.clone());
        let table = files.table.read();
        let since = Timestamp::now().millis() - PARTS_MS;
        let young = table.messages().filter(|(_, row, kept)| row.beside != 0 && kept.mtime > since);
        let paths = young.filter_map(|(n, ..)| table.path(n));
        out.extend(paths.map(|path| place::parts_dir(&files.about.dir.join(path))));
        out
    }

    fn facets(files: &AgentAzall) -> Facets<'_> {
        Facets {
            outgoing: Some(files),
            agents: Some(files),
            deliveries: Some(files),
            keys: Some(files),
            marks: Some(files),
            parts: Some(files),
            remote: Some(files),
            notebook: Some(files),
            ..Facets::default()
        }
    }

    fn record(files: &AgentAzall, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn check(files: &AgentAzall, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        files.check_all(verify, report)
    }

    fn health(files: &AgentAzall) -> Vec<String> {
        files.health_lines()
    }

    fn remarks(files: &AgentAzall) -> Vec<String> {
        files.waiting_lines()
    }

    fn advice(files: &AgentAzall) -> Vec<Advice> {
        files.all_advice()
    }

    fn concerns_besides(&self, path: &Path) -> bool {
        let name = path.strip_prefix(&self.mailboxes).ok().and_then(Path::to_str);
        *path == self.config_file || name.is_some_and(|name| self.waiting.read().contains(name))
    }
}
