//! The messages of an SSOT, as files of the engine ([`crate::store::engine::files`]).
//!
//! Pitfalls, and how they are met:
//!
//! 1. Writers that are not msgfs, and sync programs, may leave a file half written. A file that is no JSON object is
//!    read again for a moment, while everything else is reported at once.
//! 2. A message, its signature and its acknowledgement are three files that arrive in any order. So a change of one of
//!    them is a change of the message, and the state of a task is derived again when anything in it changes.
//! 3. Only `messages/<task_id>/<msg_id>.json` can be a message. A file elsewhere with the same bytes is a copy that a
//!    sync program made. A file elsewhere with other bytes is rejected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;
use twox_hash::XxHash3_64;

use super::envelope::{FILE_BYTES, SsotMessage};
use super::folder::{
    self, ACKS, MESSAGES, RESUMES, TASKS, is_skipped_name, json_stem, signature_stem,
};
use super::schema::RuleBreach;
use super::state::{TaskMessage, TaskMessageFacts, TaskResume, TaskState, derive_state, hash_id};
use super::vocabulary::{Role, split_message_id};
use super::{Ssot, sign, task};
use crate::model::locks::{LockLevel, Mutex, RwLock};
use crate::model::{SignatureClaim, Timestamp};
use crate::store::engine::Format;
use crate::store::engine::files::{
    self, DirCache, FileFormat, FileInput, FileReading, FileRejection, FileStore, FileTable,
    FileVerdict, PassSummary, PathRole, PendingReport, ScanPass, StoreFile, stamp_hash,
};
use crate::store::{
    ClaimVerifier, Facets, FoundMessage, Location, Record, StoreError, ViolationReporter, confined,
    digest, fs,
};

/// The facts of a file that the table keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SsotFileFacts {
    /// The facts of the message, if the file is one.
    pub message: TaskMessageFacts,
    /// Hash of its id.
    id_hash: u64,
    /// Time at which its recipient acknowledged it, in milliseconds since 1970; 0 for not yet.
    pub acked: i64,
    /// Hash of its bytes.
    digest: u64,
    /// 1 if its rejection is in `errors.log`, or is for others to log.
    logged: u32,
    /// The decision of trust on the message: [`COUNTS`], [`REFUSED`] or [`UNHEARD`].
    trust: u32,
}

/// Trust accepts the message: it counts.
const COUNTS: u32 = 0;
/// Trust refuses the message: it counts for nothing.
const REFUSED: u32 = 1;
/// The message was not judged yet, and counts for nothing until then.
const UNHEARD: u32 = 2;

/// The slot in which messages are found by the hashes of their ids.
const BY_ID: u8 = 0;
/// Bit in the hash of the companions: there is a signature.
pub(super) const SIGNED: u64 = 1;
/// Bit in the hash of the companions: there is an acknowledgement.
const ACKED: u64 = 2;

impl files::FileFacts for SsotFileFacts {
    const SLOTS: u8 = 1;

    fn slot_key(&self, _slot: u8, is_message: bool) -> u64 {
        if is_message { self.id_hash } else { 0 }
    }

    fn time(&self) -> i64 {
        self.message.time
    }

    fn hashes(&self) -> (u64, u64) {
        (self.id_hash, self.digest)
    }
}

impl SsotFileFacts {
    /// Returns the facts of a message that was not judged yet. `digest` is the hash of its bytes.
    pub fn from_message(message: &SsotMessage<'_>, digest: u64) -> Self {
        Self {
            message: TaskMessageFacts::from_message(message),
            id_hash: hash_id(&message.id),
            digest,
            trust: UNHEARD,
            ..Self::default()
        }
    }

    /// Returns true if nobody has to log the rejection any more.
    pub fn is_logged(&self) -> bool {
        self.logged != 0
    }

    pub fn set_logged(&mut self) {
        self.logged = 1;
    }

    /// Returns true if these are the facts of a file with these bytes.
    pub fn has_digest_of(&self, bytes: &[u8]) -> bool {
        self.digest == digest::secure_hash64(bytes)
    }

    /// Returns true if trust refuses the message; `None` if it was not judged yet.
    pub fn is_refused(&self) -> Option<bool> {
        (self.trust != UNHEARD).then_some(self.trust == REFUSED)
    }

    /// Returns true if the message was judged and is not refused.
    pub fn is_counted(&self) -> bool {
        self.trust == COUNTS
    }
}

/// The tasks of an SSOT, as one role sees them.
#[derive(Debug)]
pub(super) struct SsotFormat {
    dir: PathBuf,
    pub role: Role,
    /// The states of the tasks that people should know of.
    pub remarkable_tasks: RwLock<BTreeMap<String, TaskState>>,
    /// A hash of the state of each task, by the number of its folder. The lock is held while a state is derived, so
    /// that the newest state stays.
    state_hashes: Mutex<HashMap<u32, u64>>,
    /// Tasks whose file in `tasks/` may differ from their messages.
    pub stale_tasks: Mutex<BTreeSet<String>>,
    /// True if writing `tasks/` stopped before all files were written.
    pub is_behind: AtomicBool,
    /// True if the settings for git were put beside the messages.
    pub has_git_settings: AtomicBool,
}

/// A message that is about to be reported.
#[derive(Debug)]
pub(super) struct PendingTaskReport {
    facts: SsotFileFacts,
    found: FoundMessage<'static>,
}

/// Returns the task in whose folder a message lies; empty for `messages/` itself.
pub(super) fn parse_task(folder: &str) -> &str {
    folder.strip_prefix(MESSAGES).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default()
}

/// Returns true if a message lies where it belongs.
pub(super) fn is_in_place(file: &StoreFile<SsotFileFacts>, message: &SsotMessage<'_>) -> bool {
    (parse_task(&file.folder), json_stem(&file.name)) == (&message.task, Some(&message.id))
}

impl Format<Ssot> for SsotFormat {
    fn facets(files: &Ssot) -> Facets<'_> {
        Facets {
            appender: Some(files),
            deliveries: Some(files),
            marks: Some(files),
            directory: Some(files),
            upkeep: Some(files),
            ..Facets::default()
        }
    }

    fn describe_missing(files: &Ssot) -> Option<String> {
        files.describe_missing_store()
    }

    fn remarks(files: &Ssot) -> Vec<String> {
        files.render_task_remarks(Timestamp::now())
    }
}

impl FileFormat for SsotFormat {
    type Facts = SsotFileFacts;
    type Message<'a> = PendingTaskReport;
    type Context = ();

    const TAG: [u8; 8] = *b"ssotfi06";
    const LONGEST: usize = FILE_BYTES;

    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole {
        let plain = matches!(kind, FileType::RegularFile | FileType::Unknown);
        match path {
            _ if path.iter().any(|name| is_skipped_name(name)) => PathRole::Nothing,
            [MESSAGES | ACKS | RESUMES] => PathRole::Folder,
            [MESSAGES, name] | [MESSAGES, _, name] if json_stem(name).is_some() => {
                PathRole::Message
            }
            [MESSAGES, above @ .., name] if above.len() < 2 && signature_stem(name).is_some() => {
                if plain {
                    classify_signature(path)
                } else {
                    classify_strange(kind)
                }
            }
            [MESSAGES | ACKS | RESUMES, _] if kind != FileType::RegularFile => PathRole::Folder,
            [MESSAGES, _, _] if !plain => classify_strange(kind),
            // Nothing is read there, but msgfs writes the files in it.
            [TASKS] if !matches!(kind, FileType::Directory | FileType::Unknown) => {
                classify_strange(kind)
            }
            [ACKS, task, name] if json_stem(name).is_some() => {
                PathRole::Companion(format!("{MESSAGES}/{task}/{name}"))
            }
            [RESUMES, task, name] if json_stem(name).is_some() => {
                PathRole::Group((*task).to_owned())
            }
            _ => PathRole::Nothing,
        }
    }

    fn determine_related_role(&self, path: &[&str]) -> PathRole {
        match path {
            [MESSAGES, _, name] if signature_stem(name).is_some() => classify_signature(path),
            [ACKS] => PathRole::Companion(MESSAGES.to_owned()),
            [ACKS, task] => PathRole::Companion(format!("{MESSAGES}/{task}")),
            [RESUMES] => PathRole::Group(String::new()),
            [RESUMES, task] => PathRole::Group((*task).to_owned()),
            _ => PathRole::Nothing,
        }
    }

    fn load_context(&self, _files: &Ssot) -> Result<Option<(Self::Context, u64)>, StoreError> {
        Ok(Some(((), 0)))
    }

    fn hash_companions(
        &self,
        dirs: &mut DirCache<'_>,
        folder: &str,
        name: &str,
    ) -> io::Result<u64> {
        let Some(stem) = json_stem(name) else { return Ok(0) };
        let signature = dirs.stat(folder, &format!("{stem}.sig"))?;
        let ack = dirs.stat(&format!("{ACKS}/{}", parse_task(folder)), name)?;
        // If something else than a file is in the place of a signature, the message is wrongly signed.
        let ack = ack.filter(|(kind, _)| *kind == FileType::RegularFile);
        let prints = [signature, ack].map(|it| it.map_or(0, |(_, stamp)| stamp_hash(&stamp)));
        let [signed, acked] = prints.map(|print| print != 0);
        let there = (u64::from(signed) * SIGNED) | (u64::from(acked) * ACKED);
        let print = XxHash3_64::oneshot(bytemuck::bytes_of(&prints)) & !(SIGNED | ACKED);
        Ok(if there == 0 { 0 } else { print | there })
    }

    fn parse_file<'a>(
        &self,
        (): &(),
        dirs: &mut DirCache<'_>,
        opened: &'a FileInput<'a, SsotFileFacts>,
    ) -> io::Result<FileReading<PendingTaskReport, SsotFileFacts>> {
        let mut digest = digest::secure_hash64(opened.bytes);
        if opened.bytes.len() > FILE_BYTES {
            // Only the beginning was read.
            digest = (digest ^ opened.stamp.size).max(1);
        }
        let message = match SsotMessage::parse(opened.bytes) {
            Ok(message) => message,
            Err(fault) => {
                let unfinished = fault.breaches.iter().any(|b| b.rule == "not_an_object");
                let verdict = refuse_file(opened, digest, fault.to_string(), fault.is_incomplete);
                return Ok(FileReading { verdict, unfinished, depends: false });
            }
        };
        let file = opened.file;
        if !is_in_place(file, &message) {
            let verdict = match self.find_misplacement(&message, opened.bytes) {
                None => FileVerdict::Nothing,
                Some(breach) => refuse_file(opened, digest, breach.to_string(), false),
            };
            return Ok(FileReading { verdict, unfinished: false, depends: true });
        }
        let (mut acked, mut claim) = (None, None);
        let mut read =
            |folder: &str, name: &str| folder::read_small_file(&*dirs.open(folder)?, name);
        if opened.companion_hash & ACKED != 0 {
            let ack = read(&format!("{ACKS}/{}", message.task), &file.name);
            acked = read_ack_time(ack, &message)?;
        }
        if opened.companion_hash & SIGNED != 0 {
            let signature = read(&file.folder, &format!("{}.sig", message.id));
            claim = sign::claim_from_result(signature, opened.bytes)?;
        }
        let kept = SsotFileFacts {
            acked: acked.map_or(0, Timestamp::millis),
            ..SsotFileFacts::from_message(&message, digest)
        };
        let found = self.build_report(&message, claim, acked.is_some());
        let same = file.message_facts().is_some_and(|old| old.digest == digest);
        Ok(FileReading::message(PendingTaskReport { facts: kept, found }, same))
    }

    fn is_signed(beside: u64) -> bool {
        beside & SIGNED != 0
    }

    fn message_facts(message: &PendingTaskReport) -> &SsotFileFacts {
        &message.facts
    }

    fn accept_message<'a>(
        &self,
        _context: &Self::Context,
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>> {
        let PendingTaskReport { facts: mut kept, mut found } = taken.message;
        // The old decision holds until the message is judged again.
        if let Some(before) = taken.previous_facts.filter(|_| taken.is_same) {
            (kept.trust, kept.logged) = (before.trust, before.logged);
        }
        pass.table.update_row(taken.n, |_, facts| *facts = kept);
        found.at = StoreFile::<SsotFileFacts>::location(taken.n, taken.opened.bytes.len());
        Some(found)
    }

    fn note_decisions(files: &Ssot, decided: &[(Location, bool)]) {
        let mut table = files.table.write();
        let mut stale = files.format.stale_tasks.lock();
        for (at, refused) in decided {
            let trust = if *refused { REFUSED } else { COUNTS };
            if table.facts(at.source).is_some_and(|kept| kept.trust != trust) {
                table.update_row(at.source, |_, kept| (kept.trust, kept.logged) = (trust, 0));
                stale.insert(parse_task(table.folder(at.source)).to_owned());
            }
        }
    }

    fn note_restored_table(&self, table: &FileTable<SsotFileFacts>) {
        if table.is_empty() {
            self.remarkable_tasks.write().clear();
            self.state_hashes.lock().clear();
        }
    }

    fn read_record(files: &Ssot, at: &Location) -> Result<Record, StoreError> {
        files.read_message(at)
    }

    fn check_files(
        files: &Ssot,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        files.check_store(verify, report)
    }

    fn finish_pass(&self, _context: &Self::Context, done: &mut PassSummary<'_, Self>) -> Vec<u32> {
        let mut tasks = done.groups.clone();
        {
            let table = done.files.table.read();
            let all = done.is_full || tasks.remove("");
            if all {
                tasks.extend(table.folders().iter().map(|f| parse_task(&f.path).to_owned()));
            } else {
                tasks.extend(done.touched.iter().map(|n| parse_task(table.folder(*n)).to_owned()));
            }
        }
        tasks.remove("");
        let resumed = tasks.len() < 2 || folder::may_have_resumes(&self.dir);
        for task in tasks {
            self.update_task(done.files, &task, resumed);
        }
        Vec::new()
    }

    /// Returns true only for messages and their signatures.
    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        path.first() == Some(&MESSAGES) && self.determine_role(path, kind).is_shown(kind)
    }
}

/// Returns the role of a signature file: a companion of its message.
fn classify_signature(path: &[&str]) -> PathRole {
    let path = path.join("/");
    signature_stem(&path)
        .map_or(PathRole::Nothing, |stem| PathRole::Companion(format!("{stem}.json")))
}

fn classify_strange(kind: FileType) -> PathRole {
    PathRole::Unexpected(format!("is skipped: it is {}", confined::describe_type(kind)))
}

/// Rejects a file. A rejection of the same bytes is not logged again.
fn refuse_file(
    opened: &FileInput<'_, SsotFileFacts>,
    digest: u64,
    reason: String,
    incomplete: bool,
) -> FileVerdict<PendingTaskReport, SsotFileFacts> {
    let old = &opened.file.facts;
    let known = opened.file.row.is_rejected() && old.digest == digest;
    let facts = SsotFileFacts {
        digest,
        logged: if known { old.logged } else { 0 },
        ..SsotFileFacts::default()
    };
    FileVerdict::Rejected(FileRejection { reason, incomplete, time: None, facts })
}

impl SsotFormat {
    pub fn new(dir: PathBuf, role: Role) -> Self {
        let (prints, stale) =
            (Mutex::with_level(LockLevel::Surroundings, HashMap::new()), Mutex::default());
        let (told_git, behind) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            dir,
            role,
            remarkable_tasks: RwLock::default(),
            state_hashes: prints,
            stale_tasks: stale,
            has_git_settings: told_git,
            is_behind: behind,
        }
    }

    /// Returns the reason to reject a message that does not lie where it belongs; `None` if it lies there too.
    pub fn find_misplacement(&self, message: &SsotMessage<'_>, bytes: &[u8]) -> Option<RuleBreach> {
        let place = format!("{MESSAGES}/{}/{}.json", message.task, message.id);
        match task::read_message_bytes(&self.dir, &message.task, &message.id) {
            Ok(there) if there == bytes => None,
            Ok(there) if SsotMessage::parse(&there).is_ok_and(|m| m.id == message.id) => {
                let why = format!("is that of another message, {place}");
                Some(RuleBreach::new("duplicate_msg_id", "msg_id", why))
            }
            _ => {
                let why = format!("says that the file belongs at {place}, but it is elsewhere");
                Some(RuleBreach::new("msg_id_format", "msg_id", why))
            }
        }
    }

    fn build_report(
        &self,
        message: &SsotMessage<'_>,
        claim: Option<SignatureClaim>,
        acked: bool,
    ) -> FoundMessage<'static> {
        let (to_me, from_me) = (message.to == self.role, message.from == self.role);
        let idem = message.node.text("idem").filter(|_| from_me);
        let answered = message.answered_id().filter(|_| to_me);
        FoundMessage {
            from: message.from.as_str().into(),
            to: message.to.as_str().into(),
            thread: message.task.clone().into(),
            id: message.id.clone().into(),
            time: message.order,
            to_me,
            from_me,
            // All roles write into the folder of messages.
            is_my_name_unproven: from_me,
            read: (to_me && acked).then_some(true),
            has_note: from_me && !message.soft_breaches.is_empty(),
            claim: claim.map(Box::new),
            idempotency_key: idem.map(Into::into),
            in_reply_to: answered.map(|id| id.to_owned().into()),
            ..FoundMessage::default()
        }
    }

    /// Derives the state of a task and notes changes. `resumed`: something may have been resumed.
    pub(super) fn update_task(&self, files: &FileStore<Self>, task: &str, resumed: bool) {
        let mut prints = self.state_hashes.lock();
        let mut told = |stem: &str, fault: Option<String>| {
            let path = format!("{RESUMES}/{task}/{stem}.json");
            files.health.set_fault(&path, fault.map(|why| format!("does not count: {why}")));
        };
        let resumes =
            if resumed { folder::read_resumes(&self.dir, task, &mut told) } else { Ok(Vec::new()) };
        let state = match resumes.map(|resumes| Self::derive_task_state(files, task, &resumes)) {
            Ok(state) => state,
            // The state stays what it was.
            Err(e) => return files.health.note_error(&format!("{RESUMES}/{task}"), "be read", &e),
        };
        let folder = files.table.read().find_folder(&format!("{MESSAGES}/{task}"));
        let Some(folder) = folder else { return };
        let mut print = DefaultHasher::new();
        state.hash(&mut print);
        let old = prints.insert(folder, print.finish());
        if old != Some(print.finish()) {
            self.stale_tasks.lock().insert(task.to_owned());
        }
        let mut remarkable = self.remarkable_tasks.write();
        if state.is_remarkable() {
            remarkable.insert(task.to_owned(), state);
        } else {
            remarkable.remove(task);
        }
    }

    /// Derives the state of a task from its messages and resumes.
    pub fn derive_task_state(
        files: &FileStore<Self>,
        task: &str,
        resumes: &[TaskResume],
    ) -> TaskState {
        let table = files.table.read();
        let counts = |n: &u32| table.facts(*n).is_some_and(SsotFileFacts::is_counted);
        let find_task = |id: u64| {
            let files = table.files_with_key(BY_ID, id);
            let mut stems =
                files.iter().filter(|n| counts(n)).filter_map(|n| json_stem(table.name(*n)));
            // A copy may have another name.
            let (_, found, _) = split_message_id(stems.find(|stem| hash_id(stem) == id)?)?;
            Some(found.to_owned())
        };
        derive_state(list_task_messages(&table, task), resumes, &find_task)
    }
}

/// Returns the time at which the recipient acknowledged a message. `read` is the result of reading the acknowledgement.
fn read_ack_time(
    read: io::Result<Vec<u8>>,
    message: &SsotMessage<'_>,
) -> io::Result<Option<Timestamp>> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(e) if fs::is_transient(&e) => return Err(e),
        Err(_) => return Ok(None),
    };
    let ack = folder::parse_ack(&bytes, &message.task, &message.id).ok();
    Ok(ack.filter(|(by, _)| *by == message.to).map(|(_, time)| time))
}

/// Returns the messages of a task that count.
fn list_task_messages(table: &files::FileTable<SsotFileFacts>, task: &str) -> Vec<TaskMessage> {
    let folder = table.find_folder(&format!("{MESSAGES}/{task}"));
    let files = folder.into_iter().flat_map(|folder| table.files_in(folder));
    let of = |n: u32| {
        let kept =
            table.facts(n).filter(|_| table.row(n).is_some_and(files::FileRow::is_message))?;
        if !kept.is_counted() {
            return None;
        }
        let acked = (kept.acked != 0).then(|| Timestamp::from_millis(kept.acked));
        Some(TaskMessage {
            id: json_stem(table.name(n))?.to_owned(),
            facts: kept.message,
            acked_at: acked,
        })
    };
    files.filter_map(of).collect()
}
