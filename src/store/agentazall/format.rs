//! A mailbox as files of the engine ([`crate::store::engine::files`]): `<day>/<folder>/<name>.txt`, with attachments in
//! a folder `<name>/` beside it.
//!
//! Pitfalls, and how they are met:
//!
//! 1. The reference writes in place and copies without temporary names. A file that was touched a moment ago and looks
//!    half-written is read again before it counts.
//! 2. One message may lie in several files. The groups of files are settled when all files were read
//!    ([`group_index`](super::group_index)), and only messages that gained, lost or changed a file are reported again.
//! 3. A file that only grew while its writer was not finished is still the same message. Any other change of the text
//!    makes another one.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use jiff::tz::TimeZone;
use rustix::fs::FileType;
use twox_hash::XxHash3_64;

use super::group::LetterGroup;
use super::group_index::{GroupIndex, LetterChanges, LetterTable, read_assignment};
use super::id_ledger::LetterIdentity;
use super::layout::{self, LetterPath, MailboxFolder};
use super::letter::{self, LetterFacts, LetterHash, MAX_FILE, ParsedLetter};
use super::state::AgentAzallState;
use super::waiting_letters::DeliveryFailures;
use super::{AgentAzall, attachments, config, date, deliver, group::IdAssignment, key, mark, text};
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::model::{Seed, Timestamp, qualify_id};
use crate::store::atomic_file::TEMP_END;
use crate::store::digest::DigestCache;
use crate::store::engine::Format;
use crate::store::engine::files::unread::UnreadCounter;
use crate::store::engine::files::{
    DirCache, FileFormat, FileInput, FileReading, FileRejection, FileStore, FileVerdict,
    PassSummary, PathRole, PendingReport, ScanPass, StoreFile,
};
use crate::store::fs::Stamp;
use crate::store::{
    Advice, ClaimVerifier, Facets, FoundMessage, Location, Record, RouterSlot, StoreError,
    ViolationReporter,
};

/// Bytes of message files whose parsed reports are kept until they are reported. The files beyond are read again.
const KEPT_BYTES: usize = 64 << 20;
/// Number of messages in one report, so that no index is locked for long.
const BATCH: usize = 256;

/// A mailbox and all that is known of it beyond single files.
#[derive(Debug)]
pub(super) struct AgentAzallFormat {
    pub me: String,
    pub zone: TimeZone,
    pub config_file: PathBuf,
    /// The folder of all mailboxes of this machine.
    pub mailboxes: PathBuf,
    pub settings: RwLock<config::ReloadableSettings>,
    pub group_index: RwLock<GroupIndex>,
    pub state: AgentAzallState,
    /// Addresses for which mail waits.
    pub awaited_addresses: RwLock<BTreeSet<String>>,
    scan_changes: Mutex<(LetterChanges, FreshReports)>,
    /// The lock that allows one delivery at a time.
    pub delivery_lock: Mutex<()>,
    pub delivered: Mutex<deliver::DeliveredRecipients>,
    /// The reasons of failed deliveries.
    pub delivery_failures: Mutex<DeliveryFailures>,
    /// Files that were marked a moment ago.
    pub replaced_files: Mutex<Vec<mark::ReplacedFile>>,
    /// Folders whose new entries may not be on disk.
    pub unsynced_dirs: Mutex<BTreeSet<PathBuf>>,
    pub digests: DigestCache,
    /// The unread counts of other mailboxes.
    pub unread_counts: UnreadCounter,
    /// The mount's key, for a mailbox that is not there yet.
    pub key_for_later: Mutex<Option<Seed>>,
    /// Texts in `me/` that this process has written.
    pub own_texts: Mutex<BTreeSet<String>>,
    /// The links to other machines, if there are any.
    pub router: RouterSlot,
}

/// Time after the last change of a message in which its folder of attachments is watched. The reference copies them
/// after the text, file by file.
const PARTS_MS: i64 = 10 * 60 * 1000;

/// The reports of files that were read, by number.
#[derive(Debug, Default)]
struct FreshReports {
    found: HashMap<u32, FoundMessage<'static>>,
    bytes: usize,
}

/// The context in which one scan judges messages.
pub(super) struct LetterScanContext {
    filters: config::Filters,
    /// True if nothing was ever read.
    is_first: bool,
    base: PathBuf,
    /// A hash of my key, once it was needed. Without a key it is all zero, and no signature verifies by that.
    my_key: OnceLock<LetterHash>,
}

impl AgentAzallFormat {
    pub fn new(
        me: String,
        zone: TimeZone,
        (config_file, mailboxes): (PathBuf, PathBuf),
        settings: config::ReloadableSettings,
        state: Option<&Path>,
    ) -> Self {
        Self {
            me,
            zone,
            config_file,
            mailboxes,
            settings: RwLock::new(settings),
            group_index: RwLock::with_level(LockLevel::Surroundings, GroupIndex::default()),
            awaited_addresses: RwLock::default(),
            scan_changes: Mutex::default(),
            delivery_lock: Mutex::with_level(LockLevel::Store, ()),
            delivered: Mutex::with_level(LockLevel::Table, BTreeMap::new()),
            delivery_failures: Mutex::default(),
            replaced_files: Mutex::with_level(LockLevel::Table, Vec::new()),
            unsynced_dirs: Mutex::default(),
            digests: DigestCache::default(),
            unread_counts: UnreadCounter::default(),
            key_for_later: Mutex::default(),
            own_texts: Mutex::default(),
            router: RouterSlot::default(),
            state: AgentAzallState::new(state),
        }
    }

    /// Reads the state that is saved in a folder.
    ///
    /// # Errors
    /// The errors of [`AgentAzallState::load`].
    pub fn load_saved_state(&self, dir: &Path) -> Result<(), StoreError> {
        let (ledger, delivered) = self.state.load(dir)?;
        self.group_index.write().ledger = ledger;
        *self.delivered.lock() = delivered;
        Ok(())
    }

    /// Parses the bytes of a file.
    pub fn parse_letter_file(
        &self,
        file: &StoreFile<LetterFacts>,
        stamp: &Stamp,
        bytes: &[u8],
    ) -> Option<ParsedLetter> {
        let path = file.path();
        let place = LetterPath::parse(&path)?;
        Some(letter::parse_letter(bytes, stamp, &place, (&self.me, &self.zone)))
    }

    /// Returns the reason of the address filter to reject a message. My own mail to myself needs no permission.
    fn find_filter_refusal(
        &self,
        context: &LetterScanContext,
        file: &StoreFile<LetterFacts>,
        parsed: &ParsedLetter,
    ) -> Option<String> {
        if !file.folder.ends_with("/inbox") {
            return None;
        }
        let why = context.filters.find_refusal(&parsed.from)?;
        // A message that was delivered and read stays. Without the cache the mark is the only sign of that.
        if parsed.facts.has_bit(LetterFacts::READ) && (file.row.is_message() || context.is_first) {
            return None;
        }
        let is_mine = || {
            let read = || key::read_key(&context.base).ok().flatten();
            let print = || read().map(|seed| letter::hash_key(&seed.public_key().0));
            *context.my_key.get_or_init(|| print().unwrap_or_default()) == parsed.facts.key_hash
        };
        let mine = parsed.from == self.me && parsed.facts.is_signed() && is_mine();
        (!mine).then_some(why)
    }

    /// Reads the files of a message for its report; returns `None` if one has another text by now.
    fn reread_report(&self, files: &FileStore<Self>, n: u32) -> Option<FoundMessage<'static>> {
        let file = files.find_file(n).ok()?;
        let (stamp, bytes) = files.read_file_bytes(&file, MAX_FILE).ok()?;
        let parsed = self
            .parse_letter_file(&file, &stamp, &bytes)
            .filter(|p| p.facts.text_hash == file.facts.text_hash);
        if parsed.is_none() {
            // A stamp that no reported file has: the next scan reads the file.
            files.table.write().update_row(n, |row, _| row.stamp = 0);
            files.health.read_fault.set();
        }
        Some(parsed?.into_report(&self.me))
    }

    /// Builds the report of a message.
    fn build_report(
        &self,
        files: &FileStore<Self>,
        message: &LetterGroup,
        fresh: &mut HashMap<u32, FoundMessage<'static>>,
    ) -> Option<FoundMessage<'static>> {
        let mut read = |n| fresh.remove(&n).or_else(|| self.reread_report(files, n));
        let mut one = read(message.display_file)?;
        if message.leader != message.display_file {
            let leader = read(message.leader)?;
            (one.id, one.time) = (leader.id, leader.time);
        }
        one.id = compose_id(&one.id, message.assignment).into();
        let table = files.table.read();
        let len = table.row(message.display_file).map_or(0, |row| row.len);
        one.at = StoreFile::<LetterFacts>::location(message.display_file, len as usize);
        one.has_parts =
            table.facts(message.display_file).is_some_and(|kept| kept.has_bit(LetterFacts::PARTS));
        one.to_me = message.to_me;
        one.from_me = message.from_me;
        one.has_note = message.from_me
            && match parse_folder(table.folder(message.display_file)) {
                Some(MailboxFolder::Outbox | MailboxFolder::Carrying) => true,
                Some(MailboxFolder::Sent) => {
                    one.to.split(", ").any(|to| files.describe_link_end(&one.id, to).is_some())
                }
                _ => false,
            };
        (one.read, one.unmarked_hash) = (message.read, message.unmarked);
        one.idempotency_key = one.idempotency_key.filter(|_| message.from_me);
        Some(one)
    }
}

/// Returns the folder of a day that this path names.
pub(super) fn parse_folder(path: &str) -> Option<MailboxFolder> {
    MailboxFolder::from_name(path.rsplit_once('/')?.1)
}

/// Returns the id by which a message is known.
pub(super) fn compose_id(id: &str, held: IdAssignment) -> String {
    let qualifier = if let IdAssignment::Hashed(hash) = held { Some(hash) } else { None };
    qualify_id(id, qualifier.as_ref()).into_owned()
}

/// Returns true if a known file only grew while its writer was not finished.
fn is_only_grown(
    old: &LetterFacts,
    opened: &FileInput<'_, LetterFacts>,
    now: &LetterFacts,
) -> bool {
    // The file of a whole signed text was finished. Anybody may set a file's time back.
    if old.is_signed() && old.has_bit(LetterFacts::WHOLE) {
        return false;
    }
    let young = (0..mark::STILL_MS).contains(&now.mtime.saturating_sub(old.mtime));
    // A removed mark means that another program put a new message here.
    let may = (old.has_bit(LetterFacts::UNFINISHED) || young)
        && (now.has_bit(LetterFacts::READ) || !old.has_bit(LetterFacts::READ));
    let size = u64::from(opened.file.row.len);
    may && old.text_hash != now.text_hash && letter::has_grown(opened.bytes, &old.file_hash, size)
}

impl Format<AgentAzall> for AgentAzallFormat {
    fn facets(files: &AgentAzall) -> Facets<'_> {
        Facets {
            appender: Some(files),
            directory: Some(files),
            deliveries: Some(files),
            keys: Some(files),
            marks: Some(files),
            parts: Some(files),
            remote: Some(files),
            notebook: Some(files),
            ..Facets::default()
        }
    }

    fn health(files: &AgentAzall) -> Vec<String> {
        files.render_mailbox_health()
    }

    fn remarks(files: &AgentAzall) -> Vec<String> {
        files.render_waiting_lines()
    }

    fn advice(files: &AgentAzall) -> Vec<Advice> {
        files.list_mailbox_advice()
    }

    fn extra_watched_folders(files: &AgentAzall) -> Vec<PathBuf> {
        let mail = &files.format;
        let mut out: Vec<PathBuf> =
            mail.config_file.parent().map(Path::to_owned).into_iter().collect();
        out.push(mail.mailboxes.clone());
        let table = files.table.read();
        let since = Timestamp::now().millis() - PARTS_MS;
        let young =
            table.messages().filter(|(_, row, kept)| row.companion_hash != 0 && kept.mtime > since);
        let paths = young.filter_map(|(n, ..)| table.path(n));
        out.extend(paths.map(|path| layout::attachments_dir(&files.properties.dir.join(path))));
        out.retain(|path| path.is_dir());
        out
    }

    fn is_relevant_path(files: &AgentAzall, path: &Path) -> bool {
        let mail = &files.format;
        let name = path.strip_prefix(&mail.mailboxes).ok().and_then(Path::to_str);
        *path == mail.config_file
            || name.is_some_and(|name| mail.awaited_addresses.read().contains(name))
    }
}

impl FileFormat for AgentAzallFormat {
    type Facts = LetterFacts;
    type Message<'a> = ParsedLetter;
    type Context = LetterScanContext;

    const TAG: [u8; 8] = *b"agzall05";
    const LONGEST: usize = MAX_FILE;
    const REFUSES_ODD: bool = true;

    fn determine_role(&self, path: &[&str], _: FileType) -> PathRole {
        let beside = |day: &str, folder: &str, stem: &str| {
            PathRole::Companion(format!("{day}/{folder}/{stem}.txt"))
        };
        match path {
            [day, ..] if !date::is_day(day) => PathRole::Nothing,
            [_, folder, ..] if MailboxFolder::from_name(folder).is_none() => PathRole::Nothing,
            [_] | [_, _] => PathRole::Folder,
            [_, _, name] if layout::is_text_name(name) => PathRole::Message,
            [_, _, name] if name.starts_with('.') || name.strip_suffix(".tmp").is_some() => {
                PathRole::Nothing
            }
            [day, folder, stem] => beside(day, folder, stem),
            [day, folder, stem, name] if !name.ends_with(TEMP_END) => beside(day, folder, stem),
            _ => PathRole::Nothing,
        }
    }

    fn load_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.load_saved_state(dir)
    }

    fn load_context(
        &self,
        files: &AgentAzall,
    ) -> Result<Option<(LetterScanContext, u64)>, StoreError> {
        files.restore_late_writes();
        // The messages of a mailbox that is something else now stay; health reports it.
        if files.require_mailbox_folder().is_err() {
            return Ok(None);
        }
        let (base, is_first) = (files.properties.dir.clone(), files.table.read().is_empty());
        let mut settings = self.settings.write();
        settings.reload(&self.config_file, &self.mailboxes, &files.health.read_fault);
        let zone = self.zone.iana_name().map_or_else(|| format!("{:?}", self.zone), str::to_owned);
        let basis = XxHash3_64::oneshot(format!("{zone}\0{:?}", settings.filters).as_bytes());
        let filters = settings.filters.clone();
        Ok(Some((LetterScanContext { filters, is_first, base, my_key: OnceLock::new() }, basis)))
    }

    fn hash_companions(
        &self,
        dirs: &mut DirCache<'_>,
        folder: &str,
        name: &str,
    ) -> io::Result<u64> {
        attachments::hash_dir_state(dirs, folder, name.strip_suffix(".txt").unwrap_or(name))
    }

    fn parse_file<'a>(
        &self,
        context: &LetterScanContext,
        _: &mut DirCache<'_>,
        opened: &'a FileInput<'a, LetterFacts>,
    ) -> io::Result<FileReading<ParsedLetter, LetterFacts>> {
        if let Some(why) = letter::find_size_fault(opened.bytes) {
            return Ok(FileReading::rejected(why));
        }
        let Some(mut parsed) = self.parse_letter_file(opened.file, &opened.stamp, opened.bytes)
        else {
            return Ok(FileReading::rejected("it lies in a place where no messages belong".into()));
        };
        parsed.facts.set_bit(LetterFacts::PARTS, opened.companion_hash & attachments::SHOWN != 0);
        let unfinished = parsed.facts.has_bit(LetterFacts::UNFINISHED);
        let facts = parsed.facts;
        let verdict = if opened.bytes.is_empty() {
            let reason = "the file is empty".into();
            FileVerdict::Rejected(FileRejection { reason, incomplete: true, time: None, facts })
        } else if let Some(reason) = parsed.find_link_fault() {
            FileVerdict::Rejected(FileRejection { reason, incomplete: false, time: None, facts })
        } else if let Some(reason) = self.find_filter_refusal(context, opened.file, &parsed) {
            let time = Some(Timestamp::from_millis(facts.time));
            FileVerdict::Rejected(FileRejection { reason, incomplete: false, time, facts })
        } else {
            let is = |old: &LetterFacts| {
                // A file that lost a signature is another message, even with the same text. Without Form 2 anybody may
                // have written its header.
                let lost = old.is_signed() && !parsed.facts.is_signed()
                    || old.link_hash().is_some() && parsed.facts.link_hash().is_none();
                LetterIdentity::from_facts(old)
                    .is_same_message(&LetterIdentity::from_facts(&parsed.facts))
                    && !lost
                    || is_only_grown(old, opened, &parsed.facts)
            };
            let same = opened.file.message_facts().is_some_and(is);
            FileVerdict::Message { message: parsed, same }
        };
        Ok(FileReading { verdict, unfinished, depends: false })
    }

    fn message_facts(message: &ParsedLetter) -> &LetterFacts {
        &message.facts
    }

    fn report_source(files: &AgentAzall, n: u32) -> u32 {
        let known = files.format.group_index.read();
        known.find_group(&files.table.read(), n).map_or(n, |message| message.display_file)
    }

    fn accept_message<'a>(
        &self,
        _: &LetterScanContext,
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>> {
        let PendingReport { n, opened, message: parsed, previous_facts: before, is_same: same } =
            taken;
        let mut kept = parsed.facts;
        kept.leader = LetterFacts::UNSORTED;
        let mut step = self.scan_changes.lock();
        if let Some(old) = before.filter(|_| same) {
            step.0.note_change(&old);
            kept.leader = old.leader;
            kept.set_bit(
                LetterFacts::PLAIN,
                old.has_bit(LetterFacts::PLAIN) && old.name_hash == kept.name_hash,
            );
            if old.name_hash != kept.name_hash {
                pass.table.qualifiers.remove(&n);
            } else if old.text_hash != kept.text_hash {
                step.0.grown.push((old, kept));
            }
        }
        pass.table.update_row(n, |_, facts| *facts = kept);
        step.1.bytes += opened.bytes.len();
        if step.1.bytes <= KEPT_BYTES {
            step.1.found.insert(n, parsed.into_report(&self.me));
        }
        None
    }

    fn forget_message(&self, pass: &mut ScanPass<'_, Self>, n: u32) {
        let Some(old) = pass.table.facts(n) else { return };
        let mut step = self.scan_changes.lock();
        step.0.note_change(old);
        if old.leader == n {
            step.0.lost.push((*old, read_assignment(pass.table, n)));
        }
    }

    /// Groups the files into messages and reports those that changed, in the order of their time.
    fn finish_pass(&self, _: &LetterScanContext, done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        let (step, FreshReports { mut found, .. }) = std::mem::take(&mut *self.scan_changes.lock());
        if done.touched.is_empty() {
            return Vec::new();
        }
        let (delta, lines, mut messages) = {
            let mut known = self.group_index.write();
            let mut table = done.files.table.write();
            let mut delta = known.apply_changes(&mut table, done.touched, step);
            let order = |m: LetterGroup, table: &LetterTable| {
                let time = table.facts(m.leader).map_or(0, |kept| kept.time);
                (time, table.path(m.display_file).unwrap_or_default(), m)
            };
            let messages: Vec<_> =
                std::mem::take(&mut delta.groups).into_iter().map(|m| order(m, &table)).collect();
            (delta, known.ledger.take_unsaved_lines(), messages)
        };
        // The ids are saved before anybody can mark the reported messages.
        self.state.append_ids(&lines, true);
        messages.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        done.reports.begin_rescan(delta.withdrawn_files);
        for batch in messages.chunks(BATCH) {
            let mut batch_found = Vec::with_capacity(batch.len());
            for (_, _, message) in batch {
                match self.build_report(done.files, message, &mut found) {
                    Some(one) => batch_found.push(one),
                    None => done.reports.keep_reported(),
                }
            }
            done.reports.report_messages(&mut batch_found);
        }
        Vec::new()
    }

    fn note_restored_table(&self, table: &LetterTable) {
        self.group_index.write().restore_groups(table);
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        match (self.determine_role(path, kind), path) {
            (PathRole::Folder, _) | (PathRole::Companion(_), [_, _, _]) => {
                kind == FileType::Directory
            }
            (PathRole::Message, _) => kind == FileType::RegularFile,
            (PathRole::Companion(_), [.., name]) => {
                kind == FileType::RegularFile && attachments::is_usable_name(name)
            }
            _ => false,
        }
    }

    const HIDES_EMPTY: bool = true;

    fn read_record(files: &AgentAzall, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn strip_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
        text::without_mark(bytes)
    }

    fn check_files(
        files: &AgentAzall,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        files.check_mailbox(verify, report)
    }
}
