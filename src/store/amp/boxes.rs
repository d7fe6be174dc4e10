//! The boxes of an agent, as files of the engine ([`crate::store::engine::files`]).
//!
//! What bites here, and how it is met (docs/formats/amp.md, sections 4 to 6 and 9):
//!
//! 1. Clients overwrite files in place, so a file can be seen empty or half. A message once read stays
//!    what it was while its file cannot be parsed, and is gone only when the file is.
//! 2. Ids are not signed and anybody may write any file: what makes two files one message is equal
//!    content under one id (mail to myself, in `inbox/` and `sent/`). Other content under the same
//!    id is another message, whose id carries a hash ([`TWIN`](crate::model::TWIN)), so that nothing put in the place of
//!    a verified message can take over its verdict. The first that came keeps the plain id; files are
//!    numbered and read in the order in which they came. What nobody saw because its
//!    signature is none or wrong is no message whose place could be taken.
//! 3. Only a file in `sent/` makes a message mine; one in `inbox/` that names me as its sender
//!    proves nothing.
//! 4. Stale mail stays out of the inbox: it is reported as read, and the file is left alone.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytemuck::{Pod, Zeroable};
use lru::LruCache;
use rustix::fs::FileType;
use sha2::{Digest as _, Sha256};

use super::edit::unmarked;
use super::envelope::{self, Fault, Stored};
use super::facts::{self, Facts};
use super::home::Home;
use super::limits::FILE_BYTES;
use super::relate::{spelled, thread_of};
use super::remote::Underway;
use super::roster::Roster;
use super::several::Several;
use super::{Amp, filename, id, verify};
use crate::model::locks::{Level, Mutex};
use crate::model::verify::{check as check_claim, verify_claim};
use crate::model::{Claim, Timestamp, twin_id};
use crate::store::digest::Digests;
use crate::store::engine::files::unread::Unread;
use crate::store::engine::files::{
    self, Arrival, Dirs, Done, File, Format, Ids, Opened, Pass, Reading, Refusal, Taken, Verdict,
    What,
};
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{Advice, Facets, Found, Location, Record, Report, StoreError, Verify, Ways};

/// Messages whose last good bytes are kept.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);
/// The largest that are.
const KEPT_BYTES: usize = 64 << 10;
/// No message goes stale.
const NEVER: u32 = u32::MAX;

/// What the table keeps of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// Print of the id.
    pub key: u64,
    /// Print of what is shown and signed.
    pub content: u64,
    /// Its time in milliseconds.
    pub time: i64,
    /// Print of another id under which replies may name it; 0 if there is none.
    pub alias: u64,
    /// Print of the id it answers; 0 if it answers none.
    pub answers: u64,
    /// When it goes stale, in seconds since 1970; 0 for never, or if that is past.
    pub expires: u32,
    /// [`Bit`]s.
    pub bits: u32,
}

/// Bits of a [`Kept`].
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Bit {
    /// Past its `expires_at`.
    Expired = 1,
    /// Dated after the moment it came.
    Future = 1 << 1,
    /// It carries a signature.
    Signed = 1 << 2,
    /// Its time is that of the file, for want of a better one.
    FileTime = 1 << 3,
    /// Its signature is none at all, so it is never shown.
    Malformed = 1 << 4,
    /// It is signed and has the id under which it was written, because a link carried it: a second file
    /// with the same signed bytes is the same message, whatever its own id.
    Carried = 1 << 5,
    /// It is signed, and the key of its writer was not known.
    Keyless = 1 << 6,
    /// It is mine, and the link that carries it has more to say.
    Underway = 1 << 7,
    /// The file does not say that it was read.
    Unread = 1 << 8,
}

impl Kept {
    /// Whether it is the same message.
    pub fn is(&self, other: &Self) -> bool {
        (self.key, self.content) == (other.key, other.content)
    }

    pub fn has(&self, bit: Bit) -> bool {
        self.bits & bit as u32 != 0
    }

    pub fn set(&mut self, bit: Bit, on: bool) {
        if on {
            self.bits |= bit as u32;
        }
    }
}

/// The slot under which messages are found by id.
pub(super) const BY_ID: u8 = 0;
/// The slot under which signed messages are found by content, gone ones included: a replay stays one.
pub(super) const BY_CONTENT: u8 = 1;
/// The slot under which messages are found by another id.
pub(super) const BY_ALIAS: u8 = 2;
/// The slot under which messages are found by the id they answer.
const BY_ANSWERS: u8 = 3;

impl files::Facts for Kept {
    const SLOTS: u8 = 4;

    fn key(&self, slot: u8, is_message: bool) -> u64 {
        match slot {
            BY_ID if is_message => self.key,
            BY_CONTENT if self.has(Bit::Signed) => self.content,
            BY_ALIAS if is_message => self.alias,
            BY_ANSWERS if is_message => self.answers,
            _ => 0,
        }
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn prints(&self) -> (u64, u64) {
        (self.key, self.content)
    }
}

/// Which box a file lies in: the one where marks are kept before the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mailbox {
    Inbox,
    Sent,
}

impl Mailbox {
    /// The box that a folder of the store is or lies in.
    pub fn of(folder: &str) -> Option<Self> {
        Self::named(folder.strip_prefix("messages/")?.split('/').next()?)
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "inbox" => Some(Self::Inbox),
            "sent" => Some(Self::Sent),
            _ => None,
        }
    }
}

/// The name of a message file without `.json`; `None` for all others. Hidden files are those that
/// somebody is still writing.
pub(super) fn stem_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|stem| !stem.is_empty() && !stem.starts_with('.'))
}

/// The boxes of one agent.
#[derive(Debug)]
pub(super) struct Boxes {
    pub home: Home,
    /// The last bytes of some messages that could be parsed, for when a file cannot be.
    good: Mutex<LruCache<u32, Box<[u8]>>>,
    /// When the next message goes stale, in seconds since 1970; 0 if that is not known.
    next_expiry: AtomicU32,
    /// Prints of other ids of new messages: replies that came before them may name these.
    renamed: Mutex<HashSet<u64>>,
    /// The ways to other machines.
    pub ways: OnceLock<Arc<dyn Ways>>,
    /// Messages of mine of which links have more to say; `None` until they were looked for.
    pub underway: Mutex<Option<HashMap<u32, Underway>>>,
    /// A writer's key has become known.
    pub has_new_keys: AtomicBool,
    pub digests: Digests,
    /// What the mailboxes of others say.
    pub others: Unread,
    /// One append at a time; two that make the same folder would wait for each other anyway.
    pub appending: Mutex<()>,
    /// Folders with new names in them that may not be on disk yet.
    pub unsynced: Mutex<HashSet<PathBuf>>,
}

/// What messages are judged by in one scan.
pub(super) struct Context {
    roster: Arc<Roster>,
    now: Timestamp,
}

/// A message in a file.
pub(super) struct Parsed<'a> {
    pub stored: Stored<'a>,
    pub facts: Facts,
    claim: Option<Claim>,
}

impl Boxes {
    pub fn new(home: Home) -> Self {
        let (good, next_expiry) = (Mutex::new(LruCache::new(KEPT)), AtomicU32::new(0));
        Self {
            home,
            good,
            next_expiry,
            renamed: Mutex::default(),
            ways: OnceLock::new(),
            underway: Mutex::default(),
            has_new_keys: AtomicBool::new(false),
            digests: Digests::default(),
            others: Unread::default(),
            appending: Mutex::at(Level::Store, ()),
            unsynced: Mutex::default(),
        }
    }

    /// Takes note of the other ids of a message: replies that came before it may name it so.
    fn note_renamed(&self, message: &str, alias: u64) {
        let is_turned = message.starts_with("msg-") || message.starts_with("receipt-");
        let turned = is_turned.then(|| facts::digest(&[&id::fold(message)]));
        let other = Some(alias).filter(|alias| *alias != 0);
        self.renamed.lock().extend(turned.into_iter().chain(other));
    }

    /// Keeps the bytes of a message, unless they are many.
    pub fn keep(&self, n: u32, bytes: &[u8]) {
        if bytes.len() <= KEPT_BYTES {
            self.good.lock().put(n, bytes.into());
        }
    }

    /// The bytes of a message as they last could be parsed.
    pub fn kept(&self, n: u32) -> Option<Box<[u8]>> {
        self.good.lock().get(&n).cloned()
    }

    /// Whether nobody ever saw what a file held: its signature is none, or not by the key of its
    /// writer. What replaces it is not put in the place of a message.
    fn was_never_shown(&self, context: &Context, n: u32, old: &Kept) -> bool {
        if !old.has(Bit::Signed) || old.has(Bit::Malformed) {
            return old.has(Bit::Malformed);
        }
        let Some(bytes) = self.kept(n) else { return false };
        let Ok(stored) = envelope::parse(&bytes) else { return false };
        let from = stored.from.to_ascii_lowercase();
        let Some(key) = context.roster.key_of(&from) else { return false };
        let also_to = context.roster.also_to(&stored.to);
        let claim = verify::claim(&stored, Some(key), &also_to).ok().flatten();
        claim.is_some_and(|claim| !verify_claim(&key, &claim))
    }

    /// What is kept of a message.
    fn date(&self, parsed: &Parsed<'_>, to_me: bool, now: Timestamp) -> Kept {
        let mut kept = parsed.facts.kept;
        kept.set(Bit::Unread, to_me && !parsed.facts.read);
        kept.set(Bit::Malformed, matches!(parsed.claim, Some(Claim::Malformed(_))));
        kept.set(Bit::Keyless, matches!(parsed.claim, Some(Claim::Signed { key: None, .. })));
        let given = parsed.stored.relayed_id.as_deref().filter(|_| !to_me);
        kept.alias = given.map_or(kept.alias, |id| facts::digest(&[id]));
        let Some(expires) = parsed.facts.expires else { return kept };
        if expires <= now {
            kept.set(Bit::Expired, true);
        } else if to_me && let Ok(secs) = u32::try_from(expires.secs()) {
            // The next second: at this one it is not past yet.
            kept.expires = secs.saturating_add(1);
            self.next_expiry.fetch_min(kept.expires, Ordering::Relaxed);
        }
        kept
    }
}

impl Format for Boxes {
    type Facts = Kept;
    type Message<'a> = Parsed<'a>;
    type Context = Context;

    const TAG: [u8; 8] = *b"ampfil05";
    const LONGEST: usize = FILE_BYTES;
    const HAS_ARRIVAL: bool = true;

    fn what(&self, path: &[&str], kind: FileType) -> What {
        if path.iter().any(|name| name.starts_with('.')) {
            return What::Nothing;
        }
        match path {
            ["messages"] => What::Folder,
            ["messages", name, rest @ ..] if Mailbox::named(name).is_some() => match rest {
                [] => What::Folder,
                [name] | [_, name] if stem_of(name).is_some() => What::Message,
                [_] if matches!(kind, FileType::Directory | FileType::Unknown) => What::Folder,
                [_, _] if matches!(kind, FileType::RegularFile | FileType::Unknown) => {
                    What::Nothing
                }
                [_] | [_, _] => What::Strange(files::no_message(kind)),
                _ => What::Nothing,
            },
            ["config.json" | "registrations"] => What::Around,
            ["registrations", name] if stem_of(name).is_some() => What::Around,
            _ => What::Nothing,
        }
    }

    fn begin(&self, files: &Amp) -> Result<Option<(Context, u64)>, StoreError> {
        let roster = self.home.roster()?;
        if roster.unsure {
            // Who signed what cannot be told without the keys of the others.
            let why = std::io::Error::other("the files of an agent cannot be read now");
            return Err(StoreError::io(&files.about.dir, why));
        }
        let basis = facts::digest(&roster.my_names());
        Ok(Some((Context { roster, now: Timestamp::now() }, basis)))
    }

    /// What the store noted, else what the message's writer says, else the time of the file.
    fn arrival(&self, folder: &str, stamp: &Stamp, bytes: &[u8]) -> Arrival {
        let (received, written) = envelope::times(bytes);
        let noted = received.as_deref().and_then(parse_time);
        let said = noted.or_else(|| written.as_deref().and_then(parse_time));
        Arrival {
            when: said.unwrap_or_else(|| stamp.modified()).millis(),
            is_got: Mailbox::of(folder) == Some(Mailbox::Inbox),
            mtime: stamp.mtime,
        }
    }

    fn read<'a>(
        &self,
        context: &Context,
        _: &mut Dirs<'_>,
        opened: &'a Opened<'a, Kept>,
    ) -> std::io::Result<Reading<Parsed<'a>, Kept>> {
        let stored = match envelope::parse(opened.bytes) {
            Ok(stored) => stored,
            Err(fault) => {
                let incomplete = matches!(fault, Fault::Incomplete(_));
                let reason = fault.to_string();
                let verdict = Verdict::Broken(Refusal { reason, incomplete, ..Refusal::default() });
                return Ok(Reading { verdict, unfinished: true, depends: false });
            }
        };
        let facts = facts::facts(&stored, &opened.stamp, context.now);
        let mailbox = Mailbox::of(&opened.file.folder).unwrap_or(Mailbox::Inbox);
        let verdict = match facts::admit(&stored, &facts, mailbox, &context.roster) {
            Err(reason) => {
                let time = Some(facts.time);
                Verdict::Refused(Refusal { reason, time, ..Refusal::default() })
            }
            Ok(claim) => {
                // Here, on all cores; the index asks for the outcome.
                claim.iter().for_each(check_claim);
                let same = opened.file.message().is_some_and(|old| old.is(&facts.kept));
                Verdict::Message { message: Parsed { stored, facts, claim }, same }
            }
        };
        Ok(Reading { verdict, unfinished: false, depends: false })
    }

    fn facts<'m>(message: &'m Parsed<'_>) -> &'m Kept {
        &message.facts.kept
    }

    fn reported_from(files: &Amp, n: u32) -> u32 {
        let table = files.table.read();
        let Some(kept) = table.facts(n) else { return n };
        primary(&table, &copies(&table, n, kept)).unwrap_or(n)
    }

    /// Reports a message, or has the file reported in which the same message lies.
    fn take<'a>(
        &self,
        context: &Context,
        pass: &mut Pass<'_, Self>,
        taken: Taken<'a, Self>,
    ) -> Option<Found<'a>> {
        let Taken { n, opened, message: parsed, before, same } = taken;
        let never_shown = |old: &Kept| self.was_never_shown(context, opened.file.n, old);
        let seen = before.filter(|old| same || !never_shown(old));
        self.keep(n, opened.bytes);
        let Kept { key, content, .. } = parsed.facts.kept;
        let replaces = !same && seen.is_some_and(|old| old.key == key);
        let ids = Ids { key: (BY_ID, key), stays: same, replaces };
        // Of the file as it came: marks change it, and the id must stay, also without the cache.
        let hash = || Sha256::digest(unmarked(opened.bytes)).into();
        let mut copies = pass.copies(n, ids, |kept| kept.content == content, hash);
        let to_me = Mailbox::of(&opened.file.folder) == Some(Mailbox::Inbox);
        let mut kept = self.date(&parsed, to_me, context.now);
        let (is_open, underway) = if to_me { (false, None) } else { self.underway(&parsed) };
        kept.set(Bit::Underway, is_open);
        let noted = underway.as_ref().is_some_and(|underway| underway.noted);
        self.keep_underway(n, underway);
        if !before.is_some_and(|old| same && old.alias == kept.alias) {
            self.note_renamed(&parsed.stored.id, kept.alias);
        }
        pass.table.change(n, |_, facts| *facts = kept);
        copies.members.extend(doubles(pass.table, n, &kept));
        let mailbox = |n: &u32| Mailbox::of(pass.table.folder(*n));
        let primary = primary(pass.table, &copies.members);
        if primary != Some(n) {
            pass.look(primary);
            return None;
        }
        let from_me = copies.members.iter().any(|n| mailbox(n) == Some(Mailbox::Sent));
        let answers = parsed.facts.answers.clone().map(|id| spelled(pass.table, id));
        let stale = kept.has(Bit::Expired);
        let mut found =
            found(&context.roster, parsed, copies.twin.as_ref(), (to_me, from_me), stale);
        found.at = File::<Kept>::at(n, opened.bytes.len());
        // What another one stands for is where that one is: it may answer what only its reader has.
        let first = found.copy_of.as_ref().map(|first| first.id.clone());
        found.answers = first.or(answers).map(Into::into);
        found.noted = noted;
        if to_me && !stale {
            let unread = |n: &u32| pass.table.facts(*n).is_some_and(|kept| kept.has(Bit::Unread));
            let inbox = copies.members.iter().filter(|n| mailbox(n) == Some(Mailbox::Inbox));
            let (open, read): (Vec<u32>, Vec<u32>) = inbox.partition(|n| unread(n));
            (found.read, found.unmarked) = (Some(!read.is_empty()), files::unmarked(open));
        }
        Some(found)
    }

    /// Other files that hold the same message must be reported in its place.
    fn lost(&self, pass: &mut Pass<'_, Self>, n: u32) {
        let Some(old) = pass.table.facts(n).copied() else { return };
        let same = |kept: &Kept| kept.content == old.content;
        let mut copies = files::others(pass.table, n, (BY_ID, old.key), same);
        copies.extend(doubles(pass.table, n, &old));
        pass.look(copies);
    }

    /// Messages that have gone stale since they were read, whose writers' keys may have become known, or
    /// of which links say something new.
    fn due(&self, context: &Context, table: &files::Table<Kept>) -> Vec<u32> {
        let mut due = self.changed_underway(table);
        if self.has_new_keys.swap(false, Ordering::Relaxed) {
            let keyless = table.messages().filter(|(_, _, kept)| kept.has(Bit::Keyless));
            due.extend(keyless.map(|(n, ..)| n));
        }
        let now = u32::try_from(context.now.secs()).unwrap_or(NEVER - 1);
        if self.next_expiry.load(Ordering::Relaxed) > now {
            return due;
        }
        let dated = || table.messages().filter(|(_, _, kept)| kept.expires != 0);
        let later = dated().map(|(_, _, kept)| kept.expires).filter(|expires| *expires > now);
        self.next_expiry.store(later.min().unwrap_or(NEVER), Ordering::Relaxed);
        due.extend(dated().filter(|(_, _, kept)| kept.expires <= now).map(|(n, ..)| n));
        due
    }

    /// Files that answer one of the messages noted by [`Boxes::note_renamed`].
    fn finish(&self, _: &Context, done: &mut Done<'_, Self>) -> Vec<u32> {
        let renamed = std::mem::take(&mut *self.renamed.lock());
        let table = done.files.table.read();
        renamed.into_iter().flat_map(|print| table.with_key(BY_ANSWERS, print)).collect()
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        match path {
            ["attachments", rest @ ..] if !path.iter().any(|name| name.starts_with('.')) => {
                let folder = kind == FileType::Directory && rest.len() < 2;
                folder || kind == FileType::RegularFile && rest.len() == 2
            }
            _ => self.what(path, kind).is_shown(kind),
        }
    }

    fn watched_besides(files: &Amp) -> Vec<PathBuf> {
        vec![files.about.dir.join("registrations")]
    }

    fn facets(files: &Amp) -> Facets<'_> {
        Facets {
            outgoing: Some(files),
            agents: Some(files),
            keys: Some(files),
            marks: Some(files),
            parts: Some(files),
            deliveries: Some(files),
            remote: Some(files),
            ..Facets::default()
        }
    }

    fn record(files: &Amp, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn check(files: &Amp, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        files.check_boxes(verify, report)
    }

    fn health(files: &Amp) -> Vec<String> {
        files.health_lines()
    }

    fn advice(files: &Amp) -> Vec<Advice> {
        files.advice_lines()
    }
}

/// Other files that hold the same message although they have other ids: an answer was lost on the way,
/// and the link sent the same once more.
pub(super) fn doubles(table: &files::Table<Kept>, n: u32, kept: &Kept) -> Vec<u32> {
    if !kept.has(Bit::Carried) {
        return Vec::new();
    }
    let mut out = table.with_key(BY_CONTENT, kept.content);
    let is_message = |m: u32| table.row(m).is_some_and(files::Row::is_message);
    let other = |m: &u32| table.facts(*m).is_some_and(|other| other.key != kept.key);
    out.retain(|m| *m != n && other(m) && is_message(*m));
    out
}

/// The files that hold the same message as this one, itself among them.
pub(super) fn copies(table: &files::Table<Kept>, n: u32, kept: &Kept) -> Vec<u32> {
    let same = |other: &Kept| other.content == kept.content;
    let mut copies = files::others(table, n, (BY_ID, kept.key), same);
    copies.extend(doubles(table, n, kept));
    copies.push(n);
    copies
}

/// Which of the files that hold a message is the one that is reported.
fn primary(table: &files::Table<Kept>, members: &[u32]) -> Option<u32> {
    members.iter().min_by_key(|n| (Mailbox::of(table.folder(**n)), **n)).copied()
}

fn found<'r>(
    roster: &Roster,
    parsed: Parsed<'r>,
    twin: Option<&[u8; 32]>,
    (to_me, from_me): (bool, bool),
    stale: bool,
) -> Found<'r> {
    let Parsed { stored, facts, claim } = parsed;
    // Under an id that came before, it is not what its id says.
    let several = Several::of_stored(&stored, &facts).filter(|_| twin.is_none());
    let copy_of = several.as_ref().and_then(|several| several.stands_for(&facts.to, roster));
    let thread = several.map(|several| several.thread());
    let parts = stored.attachments.iter().any(|a| filename::check_attachment(a).is_none());
    let key = stored.idempotency_key.as_deref().filter(|_| from_me);
    Found {
        thread: thread.unwrap_or_else(|| thread_of(&stored.id, twin).into_owned()).into(),
        id: twin_id(stored.id.clone(), twin),
        to: facts.everybody.join(", ").into(),
        time: facts.time,
        to_me,
        from_me: from_me && roster.may_write_as(&facts.from),
        from: facts.from.into(),
        read: to_me.then_some(facts.read || stale),
        parts,
        claim: claim.map(Box::new),
        idempotency_key: key.map(Into::into),
        copy_of,
        ..Found::default()
    }
}
