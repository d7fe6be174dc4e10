//! The boxes of an agent, as files of the engine ([`crate::store::engine::files`]).
//!
//! The dangers, and how this file meets them (docs/formats/amp.md, sections 4 to 6 and 9):
//!
//! 1. Clients overwrite files in place, so a file can be empty or torn for a moment. A message once read stays what it
//!    was while its file cannot be parsed, and is gone only when the file is.
//! 2. Ids are not signed, and anybody may write any file. So two files are one message only if they have equal content
//!    under one id (mail to myself, in `inbox/` and `sent/`). Other content under the same id is another message, and
//!    its id carries a hash ([`QUALIFIER`](crate::model::QUALIFIER)). So nothing that replaces a verified message
//!    inherits its verdict. The first to arrive keeps the plain id; files are numbered and read in the order of their
//!    arrival. A message that was never shown, because its signature is malformed or wrong, has no place to take. Other
//!    clients change content on the way, and not every such change is one that a signature allows. So of the files of
//!    one message, one with a valid signature is reported.
//! 3. Only a file in `sent/` makes a message mine. A file in `inbox/` that names me as its sender proves nothing.
//! 4. Stale mail stays out of the inbox: it is reported as read, and the file is left alone.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lru::LruCache;
use rustix::fs::FileType;

use super::envelope::{self, AmpMessage, AmpParseError};
use super::facts::{self, AmpFacts};
use super::home::AmpHome;
use super::limits::FILE_BYTES;
use super::multicast::AmpMulticast;
use super::references::{begun_thread_id, resolve_reply_id};
use super::remote::AmpPendingRelay;
use super::roster::Roster;
use super::table_facts::{AmpFlag, AmpTableFacts, BY_ANSWERS, BY_CONTENT, BY_ID};
use super::{AmpStore, edit, filename, id, verify};
use crate::model::locks::{LockLevel, Mutex};
use crate::model::verify::{check_claim, verify_claim};
use crate::model::{SignatureClaim, Timestamp, qualify_id};
use crate::store::digest::DigestCache;
use crate::store::engine::Format;
use crate::store::engine::files::unread::UnreadCounter;
use crate::store::engine::files::{
    self, ArrivalOrder, DirCache, FileFormat, FileInput, FileReading, FileRejection, FileVerdict,
    IdLookup, PassSummary, PathRole, PendingReport, ScanPass, StoreFile,
};
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{
    Advice, ClaimVerifier, Facets, FoundMessage, Location, Record, RepeatKind, RouterSlot,
    StoreError, ViolationReporter,
};

/// The number of messages whose last good bytes are cached.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);
/// The largest message that is cached, in bytes.
const KEPT_BYTES: usize = 64 << 10;
/// The value of `next_expiry` if no message goes stale.
const NEVER: u32 = u32::MAX;

/// The box of a file. If both hold a message, the inbox comes first, because marks are kept there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AmpMailFolder {
    Inbox,
    Sent,
}

impl AmpMailFolder {
    /// Returns the box that a folder of the store is or lies in.
    pub fn from_path(folder: &str) -> Option<Self> {
        Self::from_name(folder.strip_prefix("messages/")?.split('/').next()?)
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "inbox" => Some(Self::Inbox),
            "sent" => Some(Self::Sent),
            _ => None,
        }
    }
}

/// Returns the name of a message file without `.json`; `None` for other files. A hidden file is still being written.
pub(super) fn message_file_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|stem| !stem.is_empty() && !stem.starts_with('.'))
}

/// The format of one agent's boxes.
#[derive(Debug)]
pub(super) struct AmpFormat {
    pub home: AmpHome,
    /// The last parsable bytes of some messages, for the time when a file cannot be parsed.
    last_good_bytes: Mutex<LruCache<u32, Box<[u8]>>>,
    /// The second since 1970 at which the next message goes stale; 0 if it is not known.
    next_expiry: AtomicU32,
    /// Hashes of the other ids of new messages. Replies that came earlier may name them.
    new_aliases: Mutex<HashSet<u64>>,
    /// The links to other machines.
    pub router: RouterSlot,
    /// My messages about which links will report more; `None` until they were looked up.
    pub pending_relays: Mutex<Option<HashMap<u32, AmpPendingRelay>>>,
    /// The [hash](Roster::key_hash) of the keys of the last scan; 0 before the first one.
    known_keys: AtomicU64,
    pub digests: DigestCache,
    /// The unread counts of other agents' mailboxes.
    pub other_mailboxes: UnreadCounter,
    /// Allows one append at a time. Two that make the same folder would wait for each other anyway.
    pub append_lock: Mutex<()>,
    /// Folders with new names that may not be on disk yet.
    pub unsynced: Mutex<HashSet<PathBuf>>,
}

/// The agents and the time by which one scan judges messages.
pub(super) struct AmpScanContext {
    roster: Arc<Roster>,
    now: Timestamp,
}

/// A message in a file.
pub(super) struct AmpMessageRecord<'a> {
    pub stored: AmpMessage<'a>,
    pub facts: AmpFacts,
    claim: Option<SignatureClaim>,
}

impl AmpFormat {
    pub fn new(home: AmpHome) -> Self {
        let (good, next_expiry) = (Mutex::new(LruCache::new(KEPT)), AtomicU32::new(0));
        Self {
            home,
            last_good_bytes: good,
            next_expiry,
            new_aliases: Mutex::default(),
            router: RouterSlot::default(),
            pending_relays: Mutex::default(),
            known_keys: AtomicU64::new(0),
            digests: DigestCache::default(),
            other_mailboxes: UnreadCounter::default(),
            append_lock: Mutex::with_level(LockLevel::Store, ()),
            unsynced: Mutex::default(),
        }
    }

    /// Remembers the other ids of a message, because replies that came earlier may name them.
    fn note_aliases(&self, message: &str, alias: u64) {
        let is_turned = message.starts_with("msg-") || message.starts_with("receipt-");
        let turned = is_turned.then(|| facts::hash_texts(&[&id::fold_id(message)]));
        let other = Some(alias).filter(|alias| *alias != 0);
        self.new_aliases.lock().extend(turned.into_iter().chain(other));
    }

    /// Caches the bytes of a message, unless they are too many.
    pub fn cache_bytes(&self, n: u32, bytes: &[u8]) {
        if bytes.len() <= KEPT_BYTES {
            self.last_good_bytes.lock().put(n, bytes.into());
        }
    }

    /// Returns the bytes of a message as they last could be parsed.
    pub fn cached_bytes(&self, n: u32) -> Option<Box<[u8]>> {
        self.last_good_bytes.lock().get(&n).cloned()
    }

    /// Returns true if the old content of a file was never shown: its signature is malformed, or the sender's key did
    /// not make it. Its successor does not count as a replacement of a message.
    fn has_never_been_shown(&self, context: &AmpScanContext, n: u32, old: &AmpTableFacts) -> bool {
        if !old.has_flag(AmpFlag::Signed) || old.has_flag(AmpFlag::Malformed) {
            return old.has_flag(AmpFlag::Malformed);
        }
        let Some(bytes) = self.cached_bytes(n) else { return false };
        let Ok(stored) = envelope::parse(&bytes) else { return false };
        let from = stored.from.to_ascii_lowercase();
        let Some(key) = context.roster.find_key(&from) else { return false };
        let also_to = context.roster.alternate_addresses(&stored.to);
        let claim = verify::extract_claim(&stored, Some(key), &also_to).ok().flatten();
        claim.is_some_and(|claim| !verify_claim(&key, &claim))
    }

    /// Builds the facts about a message for the table.
    fn build_table_facts(
        &self,
        context: &AmpScanContext,
        parsed: &AmpMessageRecord<'_>,
        to_me: bool,
    ) -> AmpTableFacts {
        let mut kept = parsed.facts.table_facts;
        kept.set_flag(AmpFlag::Unread, to_me && !parsed.facts.is_read);
        kept.set_flag(
            AmpFlag::Malformed,
            matches!(parsed.claim, Some(SignatureClaim::Malformed(_))),
        );
        if let Some(SignatureClaim::Signed { key: None, .. }) = parsed.claim {
            kept.lacking_keys = context.roster.key_hash;
        }
        kept.set_flag(
            AmpFlag::Invalid,
            matches!(&parsed.claim, Some(claim @ SignatureClaim::Signed { key: Some(key), .. })
                if !verify_claim(key, claim)),
        );
        let given = parsed.stored.relayed_id.as_deref().filter(|_| !to_me);
        kept.alias = given.map_or(kept.alias, |id| facts::hash_texts(&[id]));
        let Some(expires) = parsed.facts.expires else { return kept };
        if expires <= context.now {
            kept.set_flag(AmpFlag::Expired, true);
        } else if to_me && let Ok(secs) = u32::try_from(expires.secs()) {
            // At `expires` itself the message is not stale yet.
            kept.expires = secs.saturating_add(1);
            self.next_expiry.fetch_min(kept.expires, Ordering::Relaxed);
        }
        kept
    }
}

impl Format<AmpStore> for AmpFormat {
    fn facets(files: &AmpStore) -> Facets<'_> {
        Facets {
            appender: Some(files),
            directory: Some(files),
            keys: Some(files),
            marks: Some(files),
            parts: Some(files),
            deliveries: Some(files),
            remote: Some(files),
            ..Facets::default()
        }
    }

    fn health(files: &AmpStore) -> Vec<String> {
        files.collect_health()
    }

    fn advice(files: &AmpStore) -> Vec<Advice> {
        files.collect_advice()
    }

    fn extra_watched_folders(files: &AmpStore) -> Vec<PathBuf> {
        let folder = files.properties.dir.join("registrations");
        Some(folder).filter(|folder| folder.is_dir()).into_iter().collect()
    }
}

impl FileFormat for AmpFormat {
    type Facts = AmpTableFacts;
    type Message<'a> = AmpMessageRecord<'a>;
    type Context = AmpScanContext;

    const TAG: [u8; 8] = *b"ampfil07";
    const LONGEST: usize = FILE_BYTES;
    const HAS_ARRIVAL: bool = true;

    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole {
        if path.iter().any(|name| name.starts_with('.')) {
            return PathRole::Nothing;
        }
        match path {
            ["messages"] => PathRole::Folder,
            ["messages", name, rest @ ..] if AmpMailFolder::from_name(name).is_some() => match rest
            {
                [] => PathRole::Folder,
                [name] | [_, name] if message_file_stem(name).is_some() => PathRole::Message,
                [_] if matches!(kind, FileType::Directory | FileType::Unknown) => PathRole::Folder,
                [_, _] if matches!(kind, FileType::RegularFile | FileType::Unknown) => {
                    PathRole::Nothing
                }
                [_] | [_, _] => PathRole::Unexpected(files::describe_non_message(kind)),
                _ => PathRole::Nothing,
            },
            ["config.json" | "registrations"] => PathRole::Context,
            ["registrations", name] if message_file_stem(name).is_some() => PathRole::Context,
            _ => PathRole::Nothing,
        }
    }

    fn load_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.home.load_saved_state(dir)
    }

    fn load_context(&self, files: &AmpStore) -> Result<Option<(AmpScanContext, u64)>, StoreError> {
        let roster = self.home.refresh_roster()?;
        if roster.unsure {
            // Signatures cannot be judged without the keys of the other agents.
            let why = std::io::Error::other("the files of an agent cannot be read now");
            return Err(StoreError::io(&files.properties.dir, why));
        }
        let basis = facts::hash_texts(&roster.my_names());
        Ok(Some((AmpScanContext { roster, now: Timestamp::now() }, basis)))
    }

    /// Orders by the time that the store noted, else by the sender's time, else by the time of the file.
    fn arrival_order(&self, folder: &str, stamp: &Stamp, bytes: &[u8]) -> ArrivalOrder {
        let (received, written) = envelope::read_times(bytes);
        let noted = received.as_deref().and_then(parse_time);
        let said = noted.or_else(|| written.as_deref().and_then(parse_time));
        ArrivalOrder {
            when: said.unwrap_or_else(|| stamp.modified()).millis(),
            is_got: AmpMailFolder::from_path(folder) == Some(AmpMailFolder::Inbox),
            mtime: stamp.mtime,
        }
    }

    fn parse_file<'a>(
        &self,
        context: &AmpScanContext,
        _: &mut DirCache<'_>,
        opened: &'a FileInput<'a, AmpTableFacts>,
    ) -> std::io::Result<FileReading<AmpMessageRecord<'a>, AmpTableFacts>> {
        let stored = match envelope::parse(opened.bytes) {
            Ok(stored) => stored,
            Err(fault) => {
                let incomplete = matches!(fault, AmpParseError::Incomplete(_));
                let reason = fault.to_string();
                let verdict = FileVerdict::Broken(FileRejection {
                    reason,
                    incomplete,
                    ..FileRejection::default()
                });
                return Ok(FileReading { verdict, unfinished: true, depends: false });
            }
        };
        let facts = facts::collect_facts(&stored, &opened.stamp, context.now);
        let mailbox = AmpMailFolder::from_path(&opened.file.folder).unwrap_or(AmpMailFolder::Inbox);
        let verdict = match facts::admit_message(&stored, &facts, mailbox, &context.roster) {
            Err(reason) => {
                let time = Some(facts.time);
                FileVerdict::Rejected(FileRejection { reason, time, ..FileRejection::default() })
            }
            Ok(claim) => {
                // The check runs here on all cores; the index only reads the result.
                claim.iter().for_each(check_claim);
                let same = opened
                    .file
                    .message_facts()
                    .is_some_and(|old| old.is_same_message(&facts.table_facts));
                FileVerdict::Message { message: AmpMessageRecord { stored, facts, claim }, same }
            }
        };
        Ok(FileReading { verdict, unfinished: false, depends: false })
    }

    fn message_facts<'m>(message: &'m AmpMessageRecord<'_>) -> &'m AmpTableFacts {
        &message.facts.table_facts
    }

    fn report_source(files: &AmpStore, n: u32) -> u32 {
        let table = files.table.read();
        let Some(kept) = table.facts(n) else { return n };
        choose_primary_copy(&table, &find_copies(&table, n, kept)).unwrap_or(n)
    }

    /// Reports a message, or queues the file that is the primary copy of the same message.
    fn accept_message<'a>(
        &self,
        context: &AmpScanContext,
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>> {
        let PendingReport { n, opened, message: parsed, previous_facts: before, is_same: same } =
            taken;
        let never_shown =
            |old: &AmpTableFacts| self.has_never_been_shown(context, opened.file.n, old);
        let seen = before.filter(|old| same || !never_shown(old));
        self.cache_bytes(n, opened.bytes);
        let AmpTableFacts { key, content, .. } = parsed.facts.table_facts;
        let replaced = seen.filter(|old| !same && old.key == key).map(|old| old.content);
        let ids = IdLookup { key: (BY_ID, key), content, is_same: same, replaced };
        let mut copies = pass.find_copies(n, ids, opened.bytes);
        let to_me = AmpMailFolder::from_path(&opened.file.folder) == Some(AmpMailFolder::Inbox);
        let mut kept = self.build_table_facts(context, &parsed, to_me);
        let (is_open, underway) =
            if to_me { (false, None) } else { self.find_pending_relay(&parsed) };
        kept.set_flag(AmpFlag::RelayPending, is_open);
        let noted = underway.as_ref().is_some_and(|underway| underway.has_note);
        self.store_pending_relay(n, underway);
        if !before.is_some_and(|old| same && old.alias == kept.alias) {
            self.note_aliases(&parsed.stored.id, kept.alias);
        }
        pass.table.update_row(n, |_, facts| *facts = kept);
        copies.members.extend(find_resent_copies(pass.table, n, &kept));
        let mailbox = |n: &u32| AmpMailFolder::from_path(pass.table.folder(*n));
        let primary = choose_primary_copy(pass.table, &copies.members);
        if primary != Some(n) {
            pass.queue_files(primary);
            return None;
        }
        let from_me = copies.members.iter().any(|n| mailbox(n) == Some(AmpMailFolder::Sent));
        let answers = parsed.facts.answers.clone().map(|id| resolve_reply_id(pass.table, id));
        let stale = kept.has_flag(AmpFlag::Expired);
        if !to_me && !context.roster.may_write_as(&parsed.facts.from) {
            // It was admitted because my key signed it.
            self.home.remember_address(&parsed.facts.from);
        }
        let (mut found, represented) =
            describe_message(&context.roster, parsed, copies.qualifier.as_ref(), (to_me, from_me));
        if stale && before.is_some_and(|old| same && !old.has_flag(AmpFlag::Expired)) {
            // Its text has one more warning.
            found.repeat_kind = RepeatKind::Rewritten;
        }
        found.at = StoreFile::<AmpTableFacts>::location(n, opened.bytes.len());
        // A copy answers what its primary record answers: its own parent may be known only to its recipient.
        found.in_reply_to = represented.or(answers).map(Into::into);
        found.has_note = noted;
        if to_me {
            let unread =
                |n: &u32| pass.table.facts(*n).is_some_and(|kept| kept.has_flag(AmpFlag::Unread));
            let inbox = copies.members.iter().filter(|n| mailbox(n) == Some(AmpMailFolder::Inbox));
            let (open, read): (Vec<u32>, Vec<u32>) = inbox.partition(|n| unread(n));
            (found.read, found.unmarked_hash) =
                (Some(!read.is_empty()), files::hash_unmarked_files(open));
        }
        Some(found)
    }

    /// Queues other files that hold the same message, so that they are reported in its place.
    fn forget_message(&self, pass: &mut ScanPass<'_, Self>, n: u32) {
        let Some(old) = pass.table.facts(n).copied() else { return };
        let same = |kept: &AmpTableFacts| kept.content == old.content;
        let mut copies = files::other_copies(pass.table, n, (BY_ID, old.key), same);
        copies.extend(find_resent_copies(pass.table, n, &old));
        pass.queue_files(copies);
    }

    /// Returns the messages that went stale since they were read, those whose sender's key may have become known, and
    /// those about which links report something new.
    fn messages_to_reread(
        &self,
        context: &AmpScanContext,
        table: &files::FileTable<AmpTableFacts>,
    ) -> Vec<u32> {
        let mut due = self.list_changed_relays(table);
        let keys = context.roster.key_hash;
        if self.known_keys.swap(keys, Ordering::Relaxed) != keys {
            let lacks = |kept: &AmpTableFacts| ![0, keys].contains(&kept.lacking_keys);
            due.extend(table.messages().filter(|(.., kept)| lacks(kept)).map(|(n, ..)| n));
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

    /// Returns the files that answer one of the messages noted by [`AmpFormat::note_aliases`].
    fn finish_pass(&self, _: &AmpScanContext, done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        let renamed = std::mem::take(&mut *self.new_aliases.lock());
        let table = done.files.table.read();
        renamed.into_iter().flat_map(|print| table.files_with_key(BY_ANSWERS, print)).collect()
    }

    fn last_text(&self, n: u32) -> Option<Box<str>> {
        String::from_utf8(self.cached_bytes(n)?.into()).ok().map(String::into_boxed_str)
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        match path {
            ["attachments", rest @ ..] if !path.iter().any(|name| name.starts_with('.')) => {
                let folder = kind == FileType::Directory && rest.len() < 2;
                folder || kind == FileType::RegularFile && rest.len() == 2
            }
            _ => self.determine_role(path, kind).is_shown(kind),
        }
    }

    fn read_record(files: &AmpStore, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn strip_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
        edit::strip_marks(bytes)
    }

    fn check_files(
        files: &AmpStore,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        files.check_messages(verify, report)
    }
}

/// Returns other files that hold the same message under other ids. This happens when a response was lost and the link
/// sent the message again.
pub(super) fn find_resent_copies(
    table: &files::FileTable<AmpTableFacts>,
    n: u32,
    kept: &AmpTableFacts,
) -> Vec<u32> {
    if !kept.has_flag(AmpFlag::Carried) {
        return Vec::new();
    }
    let mut out = table.files_with_key(BY_CONTENT, kept.content);
    let is_message = |m: u32| table.row(m).is_some_and(files::FileRow::is_message);
    let other = |m: &u32| table.facts(*m).is_some_and(|other| other.key != kept.key);
    out.retain(|m| *m != n && other(m) && is_message(*m));
    out
}

/// Returns all files that hold the same message as this one, including this one.
pub(super) fn find_copies(
    table: &files::FileTable<AmpTableFacts>,
    n: u32,
    kept: &AmpTableFacts,
) -> Vec<u32> {
    let same = |other: &AmpTableFacts| other.content == kept.content;
    let mut copies = files::other_copies(table, n, (BY_ID, kept.key), same);
    copies.extend(find_resent_copies(table, n, kept));
    copies.push(n);
    copies
}

/// Chooses the one file that is reported for a message. A copy that was changed on the way may have a signature that
/// does not fit any more, so other copies come before it.
fn choose_primary_copy(table: &files::FileTable<AmpTableFacts>, members: &[u32]) -> Option<u32> {
    let is_invalid =
        |n: u32| table.facts(n).is_some_and(|kept: &AmpTableFacts| kept.has_flag(AmpFlag::Invalid));
    let rank = |n: &&u32| (is_invalid(**n), AmpMailFolder::from_path(table.folder(**n)), **n);
    members.iter().min_by_key(rank).copied()
}

fn describe_message<'r>(
    roster: &Roster,
    parsed: AmpMessageRecord<'r>,
    qualifier: Option<&[u8; 32]>,
    (to_me, from_me): (bool, bool),
) -> (FoundMessage<'r>, Option<String>) {
    let AmpMessageRecord { stored, facts, claim } = parsed;
    // If another message had the id first, the id says nothing about recipients.
    let several = AmpMulticast::from_stored(&stored, &facts).filter(|_| qualifier.is_none());
    let represented =
        several.as_ref().and_then(|several| several.find_representative(&facts.to, roster));
    let multicast = several.as_ref().and_then(|several| several.key_for(&facts.to));
    let thread = several.map(|several| several.thread_id());
    let parts = stored.attachments.iter().any(|a| filename::withheld_reason(a).is_none());
    let key = stored.idempotency_key.as_deref().filter(|_| from_me);
    let found = FoundMessage {
        thread: thread
            .unwrap_or_else(|| begun_thread_id(&stored.id, qualifier).into_owned())
            .into(),
        id: qualify_id(stored.id.clone(), qualifier),
        to: facts.recipients.join(", ").into(),
        time: facts.time,
        to_me,
        from_me: from_me
            && (roster.may_write_as(&facts.from) || facts::is_signed_by_me(&stored, roster)),
        from: facts.from.into(),
        read: to_me.then_some(facts.is_read),
        has_parts: parts,
        claim: claim.map(Box::new),
        idempotency_key: key.map(Into::into),
        multicast,
        ..FoundMessage::default()
    };
    (found, represented)
}
