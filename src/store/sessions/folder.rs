//! All sessions below a base folder, for readers outside a mount.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::build::sum_tokens;
use super::dialect::{LineContext, SessionDialect};
use super::format::{SessionFormat, SessionStore, build_message, open_result_file};
use super::message::{SessionHead, SessionMessage, SessionResultFile, SessionRole, TokenCount};
use super::render::render_message;
use crate::model::Timestamp;
use crate::store::engine::lines::LineFormat as _;
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::engine::lines::table::LogSource;
use crate::store::{
    FoundMessage, Kind, Location, Rejection, ScanSink, Store as _, StoreError, StoreSpec, fs,
};

/// A function that receives each message of a session.
pub type SessionReader<'a> = &'a mut dyn FnMut(SessionMessage) -> Result<(), StoreError>;

/// All sessions below a base folder, as of the moment when it was opened.
pub trait SessionFolder {
    /// Returns the heads of all sessions with messages, in the order of their ids.
    fn heads(&self) -> Vec<SessionHead>;

    /// Reads the messages of a session in order.
    ///
    /// # Errors
    /// If there is no such session, it cannot be read, or `each` fails.
    fn read(&self, id: &str, each: SessionReader<'_>) -> Result<SessionHead, StoreError>;
}

/// Opens the sessions below a base folder. It reads all of them once, because only the whole tells which session a
/// copied line belongs to. A caller that reads several sessions opens the folder once.
///
/// # Errors
/// If the folder cannot be read, or the kind has no sessions.
pub fn open_sessions(kind: Kind, dir: &Path) -> Result<Box<dyn SessionFolder>, StoreError> {
    let none = || StoreError::Invalid(format!("a store of kind {kind} holds no sessions"));
    kind.row().open_sessions.ok_or_else(none)?(dir)
}

/// Opens the sessions of one harness below a base folder.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn open_dialect<D: SessionDialect>(
    dir: &Path,
) -> Result<Box<dyn SessionFolder>, StoreError> {
    Ok(Box::new(ScannedSessions::<D>::open(dir)?))
}

/// Returns the lines of one harness below a base folder that are rejected.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn list_rejected<D: SessionDialect>(dir: &Path) -> Result<Vec<Rejection>, StoreError> {
    Ok(scan_folder::<D>(dir)?.1.rejected)
}

fn scan_folder<D: SessionDialect>(
    dir: &Path,
) -> Result<(SessionStore<D>, SessionSink), StoreError> {
    let store = SessionStore::<D>::open(&StoreSpec {
        name: D::KIND.to_string(),
        kind: D::KIND,
        dir: dir.to_owned(),
        ..StoreSpec::default()
    })?;
    let mut found = SessionSink::default();
    store.scan(true, &mut found)?;
    Ok((store, found))
}

/// The sessions of one harness, after a scan.
struct ScannedSessions<D: SessionDialect> {
    store: SessionStore<D>,
    threads: BTreeMap<String, Vec<(Timestamp, Location)>>,
}

impl<D: SessionDialect> ScannedSessions<D> {
    fn open(dir: &Path) -> Result<Self, StoreError> {
        let (store, SessionSink { mut threads, .. }) = scan_folder::<D>(dir)?;
        // A thread may have several logs.
        for messages in threads.values_mut() {
            messages.sort_by_key(|(time, _)| *time);
        }
        threads.retain(|_, messages| !messages.is_empty());
        Ok(Self { store, threads })
    }

    /// Reads the files that the calls of a message name. A file that is gone is left out, as where it is shown.
    fn read_result_files(&self, at: &Location, message: &SessionMessage) -> Vec<SessionResultFile> {
        let read = |name: String| {
            let file = open_result_file(&self.store, at.source, &name).ok()?;
            let data = fs::read_limited(file, fs::MAX_RECORD as u64).ok()?.into();
            Some(SessionResultFile { name, data })
        };
        render_message(message).result_files.into_iter().filter_map(read).collect()
    }

    /// Returns the locations of the messages of a session.
    fn locations(&self, id: &str) -> impl Iterator<Item = &Location> {
        self.threads.get(id).into_iter().flatten().map(|(_, at)| at)
    }

    fn head(&self, id: &str) -> Option<SessionHead> {
        let (_, first) = self.threads.get(id)?.first()?;
        let n = LogSource::from_number(first.source).log_number()?;
        let table = self.store.table.read();
        let log = table.get(n)?;
        let facts = &log.facts;
        let about = &facts.read.about;
        let names = D::identify_log(&log.name)?;
        let session = facts.session.as_deref().or(names.session);
        let parent = match names.agent {
            Some(_) => session.map(str::to_owned),
            None => about.origin.clone(),
        };
        Some(SessionHead {
            id: SessionFormat::<D>::log_key(log),
            kind: D::KIND,
            title: facts.title.clone().unwrap_or_default(),
            version: about.version.clone(),
            cwd: about.cwd.clone(),
            git_branch: about.git_branch.clone(),
            git_commit: about.git_commit.clone(),
            worktree: about.worktree.clone(),
            parent,
        })
    }
}

impl<D: SessionDialect> SessionFolder for ScannedSessions<D> {
    fn heads(&self) -> Vec<SessionHead> {
        self.threads.keys().filter_map(|id| self.head(id)).collect()
    }

    fn read(&self, id: &str, each: SessionReader<'_>) -> Result<SessionHead, StoreError> {
        let none = || StoreError::Invalid(format!("there is no session {id:?} with messages"));
        let head = self.head(id).ok_or_else(none)?;
        let mut counted: HashSet<String> = HashSet::new();
        let mut context = SessionContext::read(&self.store, self.locations(id))?;
        for (name_time, at) in self.threads.get(id).into_iter().flatten() {
            let (built, answered) =
                self.store.with_line(at, |text| build_message(&self.store, at, text))?;
            let mut message = built.message;
            message.in_reply_to = answered;
            message.name_time = Some(*name_time);
            message.result_files = self.read_result_files(at, &message);
            let new = built.usage.into_iter().filter(|(answer, _)| counted.insert(answer.clone()));
            message.tokens = sum_tokens(new.map(|(_, tokens)| tokens));
            context.complete_message(at, &mut message);
            each(message)?;
        }
        Ok(head)
    }
}

/// The facts that lines without text state of the messages around them: models and tokens, by log.
#[derive(Default)]
struct SessionContext {
    /// The models, each with the offset from which on it works.
    models: BTreeMap<u32, Vec<(u64, String)>>,
    /// The tokens of answers, by the location of the message to which they belong.
    tokens: HashMap<(u32, u64), TokenCount>,
}

impl SessionContext {
    /// Reads the facts around messages.
    fn read<'l, D: SessionDialect>(
        store: &SessionStore<D>,
        messages: impl Iterator<Item = &'l Location>,
    ) -> Result<Self, StoreError> {
        let mut logs: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for at in messages {
            let span = (at.offset, at.offset + u64::from(at.len));
            logs.entry(at.source).or_default().push(span);
        }
        let mut out = Self::default();
        if !D::HAS_CONTEXT {
            return Ok(out);
        }
        for (source, spans) in logs {
            let file = store.open_source(source)?;
            let end = file.metadata().map_err(|e| StoreError::io(store.dir(), e))?.len();
            let read = read_lines(&file, 0, end, |run| {
                let LineRun::Lines(run, offset) = run else { return };
                for line in split_lines(run, offset) {
                    out.note_line::<D>(source, line.offset, &line.text, &spans);
                }
            });
            read.map_err(|e| StoreError::io(store.dir(), e))?;
        }
        Ok(out)
    }

    fn note_line<D: SessionDialect>(
        &mut self,
        source: u32,
        offset: u64,
        text: &str,
        spans: &[(u64, u64)],
    ) {
        let LineContext { model, tokens } = D::read_context(text);
        if let Some(model) = model {
            self.models.entry(source).or_default().push((offset, model));
        }
        let Some(tokens) = tokens else { return };
        // A line with tokens stands after its answer: the message around the line if there is one, else the message
        // before it.
        let next = spans.partition_point(|(_, end)| *end <= offset);
        let around = spans.get(next).filter(|(start, _)| *start < offset);
        let before = next.checked_sub(1).and_then(|n| spans.get(n));
        if let Some((start, _)) = around.or(before) {
            let sum = self.tokens.entry((source, *start)).or_default();
            *sum = sum_tokens([*sum, tokens].into_iter()).unwrap_or_default();
        }
    }

    /// Adds the facts to a message of the model.
    fn complete_message(&mut self, at: &Location, message: &mut SessionMessage) {
        if message.role != SessionRole::Agent {
            return;
        }
        let end = at.offset + u64::from(at.len);
        if message.model.is_none() {
            let known = self.models.get(&at.source).map_or(&[][..], Vec::as_slice);
            let before = known.partition_point(|(offset, _)| *offset < end);
            let model = before.checked_sub(1).and_then(|n| known.get(n));
            message.model = model.map(|(_, model)| model.clone());
        }
        if let Some(tokens) = self.tokens.remove(&(at.source, at.offset)) {
            message.tokens = Some(tokens);
        }
    }
}

/// The locations of the messages of each thread, and the lines that are rejected.
#[derive(Default)]
struct SessionSink {
    threads: BTreeMap<String, Vec<(Timestamp, Location)>>,
    rejected: Vec<Rejection>,
}

impl ScanSink for SessionSink {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        rejected: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        for message in found.drain(..) {
            let time = message.name_time.unwrap_or(message.time);
            let thread = self.threads.entry(message.thread.into_owned()).or_default();
            thread.push((time, message.at));
        }
        self.rejected.append(rejected);
        Vec::new()
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        for messages in self.threads.values_mut() {
            messages.retain(|(_, at)| !sources.contains(&at.source));
        }
        self.rejected.retain(|rejected| !sources.contains(&rejected.at.source));
    }

    fn end_rescan(&mut self, _: &[u32]) {}

    fn resume_source(&mut self, _: u32) {}

    fn report_progress(&mut self, _: u64, _: u64) {}
}
