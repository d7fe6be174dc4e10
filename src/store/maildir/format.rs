//! A Maildir as files of the engine ([`crate::store::engine::files`]).
//!
//! Other programs rename and move files all the time. A message is therefore its content: the id in the index carries
//! the digest of the canonical form. So nobody takes the id of another mail, whichever comes first. A message that
//! disappears is held for a moment, because a program may be about to put it back under another name.

use std::io;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;

use super::mail::{self, MaildirMail};
use super::names::{self, MailFolderRole};
use super::outcomes::{MailOutcome, MailOutcomes};
use super::send::SendmailRuns;
use super::settings::{MaildirMarks, MaildirSettings};
use super::{MaildirStore, check};
use crate::mime::reading::{FILE_BYTES, MailLimitError};
use crate::model::{Message, Timestamp, list_distinct};
use crate::store::digest::secure_hash64;
use crate::store::engine::Format;
use crate::store::engine::files::{
    self, DirCache, FileFacts, FileFlags, FileFormat, FileInput, FileReading, FileRow, FileTable,
    PassSummary, PathRole, PendingReport, ScanPass, StoreFile,
};
use crate::store::fs::Stamp;
use crate::store::{
    Advice, ClaimVerifier, Facets, FoundMessage, Location, Record, StoreError, ViolationReporter,
    confined, fs,
};

/// The time for which a message that disappeared still counts as there, in milliseconds.
const HOLD_MS: i64 = 10_000;

/// The facts about a mail that the table keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MaildirFacts {
    /// The hash of the id.
    key: u64,
    /// The digest of all that is shown or signed.
    pub(super) digest: [u8; 32],
    /// The time of writing, in milliseconds since 1970.
    time: i64,
    /// The time at which the file went away, in milliseconds since 1970, while its message is held; 0 for all others.
    pub(super) gone_at: i64,
}

impl FileFacts for MaildirFacts {
    const SLOTS: u8 = 1;

    /// Returns the hash of the id, also for a file that is gone.
    fn slot_key(&self, _: u8, _: bool) -> u64 {
        self.key
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn is_held(&self) -> bool {
        self.gone_at != 0
    }

    fn hashes(&self) -> (u64, u64) {
        let [first, ..]: [u64; 4] = bytemuck::cast(self.digest);
        (self.key, first)
    }
}

impl MaildirFacts {
    pub(super) fn new(shown: &Message, digest: [u8; 32]) -> Self {
        let (key, time) = (secure_hash64(shown.id.as_bytes()), shown.time.millis());
        Self { key, digest, time, gone_at: 0 }
    }

    /// Returns the files that hold this message and are there.
    pub(super) fn find_copies(&self, table: &FileTable<Self>) -> Vec<u32> {
        let mut all = find_mails(table, self.key);
        all.retain(|n| table.facts(*n).is_some_and(|other| other.digest == self.digest));
        all
    }
}

/// Returns the path of another leaf of the mail folder to which a leaf belongs.
pub(super) fn sibling(folder: &str, leaf: &str) -> String {
    match folder.rsplit_once('/') {
        Some((above, _)) => format!("{above}/{leaf}"),
        None => leaf.to_owned(),
    }
}

/// A Maildir as one person sees it.
#[derive(Debug)]
pub struct MaildirFormat {
    /// The settings, with addresses in lower case.
    pub(super) settings: MaildirSettings,
    /// The runs of the program that sends mail.
    pub(super) runs: SendmailRuns,
    /// The mails that only some of their recipients have, or that the program refused.
    pub(super) outcomes: MailOutcomes,
}

impl MaildirFormat {
    pub(super) fn new(settings: MaildirSettings) -> Self {
        Self { settings, runs: SendmailRuns::default(), outcomes: MailOutcomes::default() }
    }

    /// Returns the role of the mail folder in which a leaf lies.
    fn leaf_role(&self, leaf: &[&str]) -> MailFolderRole {
        let name = leaf.split_last().and_then(|(_, folder)| names::folder_name(folder));
        name.map_or(MailFolderRole::Hidden, |name| names::folder_role(&name, &self.settings))
    }

    /// Returns the role of the mail folder of a file in the table.
    pub(super) fn file_role(&self, table: &FileTable<MaildirFacts>, n: u32) -> MailFolderRole {
        self.leaf_role(&files::path_parts(table.folder(n)))
    }

    /// Returns the files that hold a message, with the roles of their folders, those for me first. It is reported from
    /// the first one.
    pub(super) fn list_copies(
        &self,
        table: &FileTable<MaildirFacts>,
        facts: &MaildirFacts,
    ) -> Vec<(MailFolderRole, u32)> {
        let copies = facts.find_copies(table).into_iter();
        let mut copies: Vec<_> = copies.map(|n| (self.file_role(table, n), n)).collect();
        copies.sort_unstable();
        copies
    }
}

/// Returns the files with mails of this id.
pub(super) fn find_mails(table: &FileTable<MaildirFacts>, key: u64) -> Vec<u32> {
    let mut found = table.files_with_key(0, key);
    found.retain(|n| table.row(*n).is_some_and(FileRow::is_message));
    found
}

/// Returns true if a file was written a moment ago, and a process still has it open for that.
fn is_being_written(dirs: &mut DirCache<'_>, opened: &FileInput<'_, MaildirFacts>) -> bool {
    if !opened.is_fresh() {
        return false;
    }
    let file = dirs.open(&opened.file.folder);
    // The writer may also have closed it since it was read.
    file.and_then(|dir| confined::open_file(&dir, &opened.file.name)).is_ok_and(|file| {
        fs::is_open_for_writing(&file)
            || Stamp::from_file(&file).is_ok_and(|stamp| stamp != opened.stamp)
    })
}

impl Format<MaildirStore> for MaildirFormat {
    fn facets(store: &MaildirStore) -> Facets<'_> {
        let writes_marks = store.format.settings.marks == MaildirMarks::On;
        Facets {
            appender: Some(store),
            directory: Some(store),
            marks: writes_marks.then_some(store),
            parts: Some(store),
            ..Facets::default()
        }
    }

    fn describe_missing(store: &MaildirStore) -> Option<String> {
        Self::advice(store).first().map(Advice::to_line)
    }

    fn remarks(store: &MaildirStore) -> Vec<String> {
        let refused = store.format.outcomes.list_recent().into_iter();
        let remark = |mail: MailOutcome| {
            format!("a mail to {} was refused for good: {}", mail.recipients(), mail.why)
        };
        refused.map(remark).collect()
    }

    fn advice(store: &MaildirStore) -> Vec<Advice> {
        check::advise(store)
    }
}

impl FileFormat for MaildirFormat {
    type Facts = MaildirFacts;
    type Message<'a> = Box<MaildirMail>;
    type Context = ();

    const TAG: [u8; 8] = *b"maildi04";
    const LONGEST: usize = FILE_BYTES;
    const REFUSES_ODD: bool = true;

    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole {
        let is_shown = |leaf: &[&str]| self.leaf_role(leaf) != MailFolderRole::Hidden;
        let is_folder = matches!(kind, FileType::Directory | FileType::Unknown);
        match path {
            [.., "new" | "cur"] if is_shown(path) => PathRole::Folder,
            [leaf @ .., name] if matches!(leaf, [.., "new" | "cur"]) => {
                if is_shown(leaf) && !name.starts_with('.') {
                    PathRole::Message
                } else {
                    PathRole::Nothing
                }
            }
            // A folder that is not shown may have one in it that is.
            folder if is_folder && names::folder_name(folder).is_some() => PathRole::Folder,
            _ => PathRole::Nothing,
        }
    }

    fn read_record(store: &MaildirStore, at: &Location) -> Result<Record, StoreError> {
        let MaildirMail { mut message, facts, claim, .. } = store.read_mail(at.source)?;
        let copies = store.format.list_copies(&store.table.read(), &facts);
        let in_sent = copies.iter().any(|(role, _)| *role == MailFolderRole::Sent);
        let note = in_sent.then(|| store.describe_refusal(&message.id)).flatten();
        message.id = mail::index_id(message.id, &facts.digest);
        let from = message.from.as_deref().unwrap_or_default().to_ascii_lowercase();
        let is_my_name_unproven = store.format.settings.me.contains(&from) && !in_sent;
        Ok(Record { message, claim, is_my_name_unproven, note, ..Record::default() })
    }

    fn check_files(
        store: &MaildirStore,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        check::check_mails(store, verify, report)
    }

    fn load_context(&self, _: &MaildirStore) -> Result<Option<((), u64)>, StoreError> {
        let settings = format!("{:?}", self.settings);
        Ok(Some(((), secure_hash64(settings.as_bytes()))))
    }

    fn parse_file<'a>(
        &self,
        (): &(),
        dirs: &mut DirCache<'_>,
        opened: &'a FileInput<'a, MaildirFacts>,
    ) -> io::Result<FileReading<Self::Message<'a>, MaildirFacts>> {
        if names::has_flag(&opened.file.name, 'T') {
            return Ok(FileReading::nothing());
        }
        let read = mail::parse_mail(opened.bytes, &opened.file.name, opened.stamp.modified());
        let reading = match read {
            Ok(mail) => {
                let is_it = |old: &MaildirFacts| old.digest == mail.facts.digest;
                let same = opened.file.message_facts().is_some_and(is_it);
                FileReading::message(Box::new(mail), same)
            }
            Err(why @ MailLimitError::Empty) => {
                return Ok(FileReading::incomplete(why.to_string()));
            }
            Err(why) => FileReading::rejected(why.to_string()),
        };
        // Some programs write where others only rename.
        let unfinished = !opened.bytes.ends_with(b"\n") || is_being_written(dirs, opened);
        Ok(FileReading { unfinished, ..reading })
    }

    fn message_facts<'m>(message: &'m Self::Message<'_>) -> &'m MaildirFacts {
        &message.facts
    }

    /// Returns the mail folder and the part of the name that stays when programs move the file and change its flags.
    fn lasting_path(folder: &str, name: &str) -> String {
        sibling(folder, names::unique_part(name))
    }

    fn report_source(store: &MaildirStore, n: u32) -> u32 {
        let table = store.table.read();
        let copies = table.facts(n).map(|facts| store.format.list_copies(&table, facts));
        copies.unwrap_or_default().first().map_or(n, |(_, first)| *first)
    }

    fn accept_message<'a>(
        &self,
        (): &(),
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>> {
        let PendingReport { n, opened, message: mail, .. } = taken;
        pass.table.update_row(n, |_, kept| *kept = mail.facts);
        let copies = self.list_copies(pass.table, &mail.facts);
        if let Some((_, first)) = copies.first().filter(|(_, first)| *first != n) {
            pass.queue_files([*first]);
            return None;
        }
        let inbox = || copies.iter().filter(|(role, _)| *role == MailFolderRole::Inbox);
        let is_read = |n: &u32| names::has_flag(pass.table.name(*n), 'S');
        let to_me = inbox().next().is_some();
        let unread = inbox().map(|(_, n)| *n).filter(|n| !is_read(n));
        let shown = mail.message;
        let from = shown.from.unwrap_or_default().to_ascii_lowercase();
        let in_sent = copies.iter().any(|(role, _)| *role == MailFolderRole::Sent);
        let has_my_name = self.settings.me.contains(&from);
        // Anybody can write my address into a mail, so it must be signed. The index rejects it if the key is not mine.
        let from_me = in_sent || has_my_name && mail.is_signed;
        let is_my_name_unproven = has_my_name && !in_sent;
        let has_note = in_sent && self.outcomes.find_refusal(&shown.id).is_some();
        let all = shown.to.iter().chain(&shown.cc).map(|to| to.to_ascii_lowercase());
        Some(FoundMessage {
            at: StoreFile::<MaildirFacts>::location(n, opened.bytes.len()),
            from: from.into(),
            to: list_distinct(all).join(", ").into(),
            thread: shown.thread.unwrap_or_default().into(),
            parent: mail.parent.map(Into::into),
            id: mail::index_id(shown.id, &mail.facts.digest).into(),
            time: shown.time,
            to_me,
            from_me,
            is_my_name_unproven,
            read: to_me.then(|| inbox().any(|(_, n)| is_read(n))),
            unmarked_hash: files::hash_unmarked_files(
                unread.filter(|_| self.settings.marks == MaildirMarks::On),
            ),
            has_parts: !shown.attachments.is_empty(),
            has_note,
            claim: mail.claim.map(Box::new),
            idempotency_key: mail.idempotency_key.filter(|_| from_me).map(Into::into),
            in_reply_to: shown.in_reply_to.map(Into::into),
            ..FoundMessage::default()
        })
    }

    fn load_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.outcomes.keep_in(dir);
        Ok(())
    }

    /// Returns the mails that were refused after they were reported.
    fn messages_to_reread(&self, (): &(), table: &FileTable<MaildirFacts>) -> Vec<u32> {
        let refused = self.outcomes.take_unreported().into_iter();
        refused.flat_map(|id| find_mails(table, secure_hash64(id.as_bytes()))).collect()
    }

    /// Queues other files that hold the same message, so that they are reported in its place.
    fn forget_message(&self, pass: &mut ScanPass<'_, Self>, n: u32) {
        let Some(facts) = pass.table.facts(n).copied() else { return };
        pass.queue_files(facts.find_copies(pass.table));
    }

    /// Holds the messages of files that are gone, and lets go of those that were held long enough. A process that did
    /// not see a file go cannot know when it went, and holds nothing.
    fn finish_pass(&self, (): &(), done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        let now = Timestamp::now().millis();
        let mut table = done.files.table.write();
        let lost = |n: &&u32| !done.is_first && is_lost(&table, **n);
        let lost: Vec<u32> = done.touched.iter().filter(lost).copied().collect();
        for n in &lost {
            table.update_row(*n, |_, facts| facts.gone_at = now);
        }
        let gone = table.iter_all().filter(|(_, _, facts)| facts.gone_at != 0);
        let (held, over): (Vec<u32>, Vec<u32>) = gone
            .map(|(n, ..)| n)
            .partition(|n| table.facts(*n).is_some_and(|facts| facts.gone_at > now - HOLD_MS));
        if !held.is_empty() {
            // Another scan must follow by itself.
            done.files.health.read_fault.set();
        }
        if !lost.is_empty() {
            drop(table);
            // A pass that keeps what was reported lets nothing go.
            done.reports.keep_reported();
            done.reports.note_lost_texts(&lost);
            return Vec::new();
        }
        for n in &over {
            table.update_row(*n, |_, facts| facts.gone_at = 0);
        }
        drop(table);
        done.reports.begin_rescan(over);
        Vec::new()
    }
}

/// Returns true if a file is gone, and no other file holds the message that it held.
fn is_lost(table: &FileTable<MaildirFacts>, n: u32) -> bool {
    let was_shown =
        |row: &FileRow| row.has_flag(FileFlags::GONE) && row.has_flag(FileFlags::MESSAGE);
    let facts = table.facts(n).filter(|_| table.row(n).is_some_and(was_shown));
    facts.is_some_and(|facts| facts.find_copies(table).is_empty())
}
