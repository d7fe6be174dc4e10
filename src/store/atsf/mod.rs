//! ATSF 1.1 (Agent Thread Storage Format): a project's conversations with agents. Each has a folder in
//! `.agent/threads/` of the project or of one of its git worktrees.
//!
//! The format, as functions without I/O:
//! - [`line`](mod@line), [`thread`](mod@thread): the contents of a line and of a `thread.json`.
//! - [`blocks`], [`sign`], [`edit`]: a message as text, signatures, derived numbers.
//!
//! The store on top of it, whose logs `engine::lines` follows:
//! - `roots`, `git`: the folders of threads. `thread_facts`: the facts in their `thread.json`. `ids`: the thread of
//!   each id. `sent_log`: the log of my own messages. [`keep`]: the sessions of harnesses as threads.
//! - `read`, [`assets`]: one message in full. `send`, `project_files`, `append`: new ones. `check`, `schema`: the rest.
//!
//! A log is never rewritten, and only the derived numbers of a `thread.json` change. So unknown members, their spelling
//! and their order stay as they are.

mod append;
pub mod assets;
pub mod blocks;
mod check;
pub mod edit;
mod git;
mod ids;
pub mod keep;
pub mod line;
mod project_files;
mod read;
mod roots;
mod schema;
mod send;
mod sent_log;
pub mod sign;
pub mod thread;
mod thread_facts;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::locks::{LockLevel, Mutex};

use super::digest::DigestCache;
use super::engine::Format;
use super::engine::lines::check::{LineCheck, LineReporter};
use super::engine::lines::log::LogCursor;
use super::engine::lines::scan::LogScan;
use super::engine::lines::table::{KEPT, LogRoot, LogRowOf};
use super::engine::lines::{LineFormat, LineStore, LogFacts as _, LogReading, LogShape, NameClass};
use super::kind::KindRow;
use super::{
    AddressFit, AnswerScheme, EmptyThread, Facets, FoundMessage, Location, MessageAppender,
    MessageReader as _, PartContent, PartReader, PrepareContext, PreparedRecord, Receipt, Record,
    RepeatKind, SentMessage, Store as _, StoreDirectory, StoreError, StoreProperties, StoreSpec,
    ThreadScheme as ThreadIds, fs,
};
use crate::model::{Draft, Message, ORIGIN, Remedy, Timestamp, display_path, sanitize_line};
use ids::{AtsfIdAssignment, AtsfIdInput, AtsfIdTable};
use keep::list::KeptList;
pub use line::AtsfThreadStats;
use line::{AtsfCounts, AtsfLine};
pub use roots::project_folders;
use roots::{AGENT, GIT, GitRepository, THREADS};
use sent_log::{AtsfSentLog, AtsfSentSpan};
use thread_facts::{AtsfThreadFacts, AtsfThreadState};

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    has_logs: true,
    ..KindRow::new("atsf", "in an ATSF thread one writes to user or agent", EXAMPLE, |spec| {
        Ok(Arc::new(AtsfStore::open(spec)?))
    })
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "atsf"
# dir = "~/src/project"              # the folder that holds .agent/
# me = "user"                        # a role; default: user
"#;

/// The roles of the format; a mount acts as one of them.
const ROLES: [&str; 3] = ["user", "agent", "system"];
/// The names of a thread's files.
const LOG: &str = "messages.jsonl";
const META: &str = "thread.json";

/// The threads of one project, read and written as one role.
pub type AtsfStore = LineStore<AtsfFormat>;
type AtsfLog = LogRowOf<AtsfFormat>;

/// The state of a project besides its logs.
pub struct AtsfFormat {
    repository: Mutex<GitRepository>,
    sent_log: AtsfSentLog,
    digests: DigestCache,
    /// The threads that were kept from sessions, for those whose `thread.json` does not say so any more.
    kept_list: KeptList,
    /// Threads whose derived numbers could not be updated after an append.
    stale_threads: Mutex<BTreeSet<u32>>,
}

/// Returns the folder of the project: a configuration may also name its `.agent`.
pub fn project_of(dir: &Path) -> &Path {
    match (dir.file_name(), dir.parent()) {
        (Some(name), Some(parent)) if name == AGENT => parent,
        _ => dir,
    }
}

/// Returns the recipient of a message from this role: the format has no recipients.
fn default_recipient(role: &str) -> &'static str {
    if role == "user" { "agent" } else { "user" }
}

impl AtsfStore {
    /// Returns what to do if the project's folder is missing and was never seen.
    fn describe_missing_project(&self) -> Option<String> {
        let dir = &self.properties.dir;
        let is_missing = self.table.read().logs.is_empty() && fs::is_folder_missing(dir);
        is_missing.then(|| {
            format!(
                "the folder of the project does not exist; correct dir in its [[store]], or make it with: {}",
                Remedy::Make(dir.clone())
            )
        })
    }
}

impl Format<AtsfStore> for AtsfFormat {
    fn facets(store: &AtsfStore) -> Facets<'_> {
        Facets {
            appender: Some(store),
            deliveries: Some(store),
            parts: Some(store),
            directory: Some(store),
            upkeep: Some(store),
            ..Facets::default()
        }
    }

    fn describe_missing(store: &AtsfStore) -> Option<String> {
        let dir = store.properties.dir.as_path();
        if let Some(what) = store.describe_missing_project() {
            return Some(format!("{}: {what}", display_path(dir)));
        }
        let roots = store.roots();
        let mut all = std::iter::once(dir).chain(roots.iter().map(|root| root.path.as_path()));
        let none = !all.any(|project| std::fs::symlink_metadata(project.join(AGENT)).is_ok());
        none.then(|| {
            format!(
                "there is no {}; if {} is the right project, begin a thread, which makes it: \
                 msgfs send --via {} --subject SUBJECT {} TEXT",
                display_path(&dir.join(AGENT)),
                display_path(dir),
                sanitize_line(&store.properties.name),
                default_recipient(store.me())
            )
        })
    }

    /// Describes my messages that no log has any more.
    fn remarks(store: &AtsfStore) -> Vec<String> {
        let log = &store.format.sent_log;
        let line = |place: &AtsfSentSpan| log.describe_loss_at(place.offset, place.len);
        list_missing_messages(store).iter().filter_map(line).collect()
    }

    fn extra_watched_folders(store: &AtsfStore) -> Vec<PathBuf> {
        store.format.repository.lock().watched_folders(store.dir())
    }

    fn is_relevant_path(store: &AtsfStore, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str);
        let Some((folder, name)) = path.parent().zip(name) else { return false };
        let told = store.format.repository.lock().is_worktree_change(folder, name);
        told.unwrap_or_else(|| name == GIT && store.roots().iter().any(|root| root.path == folder))
    }
}

/// The reason for rejecting a line that has the id of a message of mine and another text.
const ALTERED: &str = "it was changed after it was verified: I sent another text under this id";

impl LineFormat for AtsfFormat {
    const SHAPE: LogShape = LogShape {
        folder: &[AGENT, THREADS],
        log_file: Some(LOG),
        head_file: Some(META),
        parts_folder: Some(assets::FOLDER),
        rewritten: true,
        has_copies: false,
        tree: None,
    };
    type Facts = AtsfThreadFacts;
    type Count = AtsfCounts;
    type Shared = AtsfIdTable;
    type ParseBuffer = ();
    type LineContent<'a> = AtsfLine<'a>;
    /// The text of the `thread.json`.
    type Head = String;

    /// Opens the project whose folder, or whose `.agent`, `spec` names. It creates nothing.
    fn open(spec: &StoreSpec) -> Result<(Self, StoreProperties), StoreError> {
        let me = spec.own_address.as_deref().unwrap_or("user");
        if !ROLES.contains(&me) {
            return Err(StoreError::Invalid(format!(
                "me = {:?}: in an ATSF store me must be one of {}",
                sanitize_line(me),
                ROLES.join(", ")
            )));
        }
        let format = Self {
            repository: Mutex::with_level(LockLevel::Surroundings, GitRepository::default()),
            sent_log: AtsfSentLog::open(spec.state.as_deref())?,
            digests: DigestCache::default(),
            kept_list: KeptList::default(),
            stale_threads: Mutex::default(),
        };
        if let Some(state) = &spec.state {
            format.kept_list.set_folder(state);
        }
        let about = StoreProperties {
            threads: ThreadIds::Labels,
            answers: AnswerScheme::Unnamed,
            uses_roles: true,
            locks_threads: true,
            default_recipient: Some(default_recipient(me)),
            // The mount limits the sizes of files.
            attachment_rule: Some(|_| Ok(())),
            signed_text: Some(sign::text_bytes),
            ..StoreProperties::new(spec, me, project_of(&spec.dir))
        };
        Ok((format, about))
    }

    fn classify_name(name: &str) -> NameClass {
        if name.starts_with('.') { NameClass::Other } else { NameClass::Log }
    }

    /// Returns the thread's id in the mount.
    fn log_key(log: &AtsfLog) -> String {
        // A session has its own id wherever it was kept.
        if log.facts.label.is_empty() || log.facts.kept.is_some() {
            return log.name.clone();
        }
        format!("{}{ORIGIN}{}", log.name, log.facts.label)
    }

    /// Ranks logs by creation: the log that is read first keeps the plain ids.
    fn log_rank(log: &AtsfLog) -> i64 {
        log.facts.created
    }

    fn log_remark(log: &AtsfLog) -> Option<String> {
        match &log.facts.state {
            AtsfThreadState::Misnamed(id) => Some(format!(
                "names the thread {:?}; msgfs uses the folder's name and writes nothing there",
                sanitize_line(id)
            )),
            AtsfThreadState::Refused(why) => Some(why.clone()),
            AtsfThreadState::Foreign | AtsfThreadState::Usable => None,
        }
    }

    fn parse_line<'a>(
        _: &AtsfStore,
        (): &mut (),
        _: &'a str,
        text: &'a str,
        _: Location,
        _: &mut Vec<FoundMessage<'a>>,
    ) -> Result<AtsfLine<'a>, String> {
        line::parse(text).map_err(|e| e.to_string())
    }

    /// Counts a message and assigns its id. A message that occurs earlier in the log is left out. A changed line with
    /// the same id is the same message: the last version counts. A message of mine counts only as it was sent.
    fn accept_line<'a>(
        store: &AtsfStore,
        reading: &mut LogReading<'_, Self>,
        (key, text, at): (&'a str, &'a str, Location),
        line: AtsfLine<'a>,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        let log = &mut *reading.log;
        if let Some(source) = log.facts.kept.clone() {
            read::accept_kept_line(store, reading, &source, (key, text, at), line, found);
            return Ok(());
        }
        let sent = &store.format.sent_log;
        if line.role == store.me() && sent.is_altered(ids::hash_id(&line.role, &line.id), text) {
            line::count_line(&mut log.tally, &line);
            return Err(ALTERED.to_owned());
        }
        let by = ids::AtsfLogScan { thread: reading.n, epoch: log.epoch, key };
        let told = AtsfIdInput { role: &line.role, id: &line.id, content: line.content };
        if let AtsfIdAssignment::Id { id, shared, .. } = reading.shared.assign_id(told, by) {
            let id = id.into_owned();
            log.facts.shared |= shared;
            let times = line::count_message(&mut log.tally, &line, log.facts.begin_time());
            found.push(describe_message(store, text, line, id, (at, log.tally.lines), times, key));
        } else {
            line::count_line(&mut log.tally, &line);
        }
        Ok(())
    }

    fn parse_record(store: &AtsfStore, at: &Location, text: &str) -> Result<Record, StoreError> {
        read::build_record(store, at, text)
    }

    /// Returns the hash that the id would carry if another thread had it. Then it does not matter which thread has it.
    fn content_digest(store: &AtsfStore, at: &Location) -> Result<[u8; 32], StoreError> {
        let line = store.read_bytes(at, usize::MAX)?;
        read::digest_message(store, at, &String::from_utf8_lossy(&line))
    }

    fn find_roots(
        &self,
        project: &Path,
        roots: &mut Vec<LogRoot>,
        ask: bool,
        noted: &HashSet<PathBuf>,
    ) -> bool {
        let mut repository = self.repository.lock();
        if roots.is_empty() {
            *repository = GitRepository::default();
        }
        let told = |path: &PathBuf| {
            let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
            repository.is_worktree_change(folder, name)
        };
        let ask = ask || noted.iter().any(|path| told(path).is_some());
        repository.refresh_roots(project, roots, ask)
    }

    fn read_heads(scan: &mut LogScan<'_, Self>, logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut retitled: BTreeSet<u32> =
            logs.iter().copied().filter(|n| thread_facts::refresh_thread(scan, *n)).collect();
        retitled.extend(thread_facts::relabel_threads(&mut scan.store.table.write()));
        retitled
    }

    /// Frees the ids that the reread did not find, and reports my missing messages from the sent log.
    fn note_reread(scan: &mut LogScan<'_, Self>, n: u32) {
        let gone = {
            let mut table = scan.store.table.write();
            let Some(epoch) = table.get(n).map(|log| log.epoch) else { return };
            let gone = table.shared.forget_unseen(n, epoch);
            if !gone.is_empty() {
                let shared = table.iter_numbered().filter(|(_, l)| l.facts.shared && l.is_shown());
                scan.reread_queue
                    .extend(shared.map(|(other, _)| other).filter(|other| *other != n));
            }
            gone
        };
        let kept = &scan.store.format.sent_log;
        let mine: Vec<AtsfSentSpan> =
            gone.iter().filter_map(|print| kept.find_span(*print)).collect();
        report_missing(scan, &mine);
    }

    /// Reports my messages that no log has any more, including those that another program removed before any scan saw
    /// them.
    fn finish_scan(scan: &mut LogScan<'_, Self>, first: bool) {
        let new = scan.store.format.sent_log.drain_new();
        if !first && new.is_empty() {
            return;
        }
        let mut missing = list_missing_messages(scan.store);
        missing.retain(|place| first || new.contains(place));
        report_missing(scan, &missing);
    }

    fn save_shared(ids: &AtsfIdTable) -> Vec<u8> {
        ids.save()
    }

    fn restore_shared(bytes: &[u8]) -> Option<AtsfIdTable> {
        AtsfIdTable::restore(bytes)
    }

    fn load_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.kept_list.set_folder(dir);
        Ok(())
    }

    fn read_kept(&self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        self.sent_log.read(offset, len)
    }

    fn is_shown_part(name: &str) -> bool {
        assets::parse_asset_digest(name).is_some()
    }

    fn check_head(name: &str, dir: &OwnedFd, say: &mut LineReporter<'_>) -> Option<String> {
        check::check_meta(name, dir, say)
    }

    fn check_line(store: &AtsfStore, line: &mut LineCheck<'_, Self>) {
        check::check_line(store, line);
    }

    fn check_counts(meta: &String, tally: &LogCursor<AtsfCounts>, say: &mut LineReporter<'_>) {
        check::check_derived(meta, tally, say);
    }
}

impl MessageAppender for AtsfStore {
    fn address_fit(&self, address: &str) -> AddressFit {
        let word = !address.is_empty() && address.len() <= 255 && sanitize_line(address) == address;
        if word { AddressFit::Via } else { AddressFit::No }
    }

    fn is_registered(&self, address: &str) -> bool {
        // A project always has a user and an agent, even before they write. The agent may also be called by its id.
        address != self.me() && self.address_fit(address) != AddressFit::No
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        read::render_prepared(self, prepared)
    }

    fn check_header(&self, draft: &Draft) -> Result<(), StoreError> {
        send::check_header(draft)
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        if let Some(what) = self.describe_missing_project() {
            let error = io::Error::new(io::ErrorKind::NotFound, what);
            return Err(StoreError::io(&self.properties.dir, error));
        }
        self.prepare_draft(draft, with)
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.check_free_space(bytes)
    }

    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        self.append_prepared(message)
    }
}

impl PartReader for AtsfStore {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        read::open_part(self, at, name)
    }
}

impl StoreDirectory for AtsfStore {
    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        sent.iter().map(|one| read::find_receipt(self, one)).collect()
    }

    /// Returns the threads without messages: their log is empty, missing or lies elsewhere.
    fn empty_threads(&self) -> Vec<EmptyThread> {
        let is_empty = |l: &AtsfLog| l.tally.count.stats.messages == 0 && !l.tail;
        let silent = |l: &&AtsfLog| l.is_shown() && is_empty(l) && l.facts.kept.is_none();
        let shown = |log: &AtsfLog| EmptyThread {
            id: AtsfFormat::log_key(log),
            title: log.facts.title.clone(),
            time: Timestamp::from_millis(log.facts.updated),
        };
        self.table.read().logs.iter().filter(silent).map(shown).collect()
    }
}

fn describe_message<'a>(
    store: &AtsfStore,
    text: &'a str,
    line: AtsfLine<'a>,
    id: String,
    (at, number): (Location, u64),
    (time, name_time): (Timestamp, Timestamp),
    key: &'a str,
) -> FoundMessage<'a> {
    let mine = line.role == store.me();
    FoundMessage {
        at,
        repeat_kind: RepeatKind::Rewritten,
        line: number,
        to: Cow::Borrowed(default_recipient(&line.role)),
        thread: Cow::Borrowed(key),
        // Most ids are used as they are, so they need no copy.
        id: if id == line.id { line.id.clone() } else { Cow::Owned(id) },
        time,
        name_time: Some(name_time),
        to_me: !mine,
        from_me: mine,
        has_parts: line.has_parts(),
        record: text,
        claim: line.has_signature.then(|| sign::extract_claim(text)).flatten().map(Box::new),
        idempotency_key: line.idempotency_key.as_deref().filter(|_| mine).map(Into::into),
        from: line.role,
        ..FoundMessage::default()
    }
}

/// Returns the spans of my messages that no log has.
fn list_missing_messages(store: &AtsfStore) -> Vec<AtsfSentSpan> {
    let table = store.table.read();
    store.format.sent_log.list_missing(|print| table.shared.has_id(print))
}

/// Reports messages of mine from the sent log.
fn report_missing(scan: &mut LogScan<'_, AtsfFormat>, places: &[AtsfSentSpan]) {
    for place in places {
        let Ok(bytes) = scan.store.format.sent_log.read(place.offset, place.len as usize) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let Some(record) = sent_log::parse_record(&text) else { continue };
        let time = record.line.parse_timestamp().time().unwrap_or_default();
        let at = Location { source: KEPT, offset: place.offset, len: place.len };
        let id = record.line.id.clone().into_owned();
        let (message, key) = (record.message, record.thread.as_str());
        let mut found =
            describe_message(scan.store, message, record.line, id, (at, 0), (time, time), key);
        found.has_note = true;
        scan.sink.report_batch(&mut vec![found], &mut Vec::new());
    }
}
