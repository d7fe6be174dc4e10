//! All sessions below a base folder, for readers outside a mount.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::build::sum_tokens;
use super::claude::ClaudeCode;
use super::dialect::SessionDialect;
use super::format::{SessionFormat, SessionStore, build_message, open_result_file};
use super::message::{SessionHead, SessionMessage, SessionResultFile};
use super::render::render_message;
use crate::model::{Roles, Timestamp};
use crate::store::engine::lines::LineFormat as _;
use crate::store::engine::lines::table::LogSource;
use crate::store::maildir::MaildirSettings;
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
/// copied line belongs to. Whoever reads several sessions opens the folder once.
///
/// # Errors
/// If the folder cannot be read, or the kind has no sessions.
pub fn open_sessions(kind: Kind, dir: &Path) -> Result<Box<dyn SessionFolder>, StoreError> {
    match kind {
        Kind::Claude => Ok(Box::new(ScannedSessions::<ClaudeCode>::open(dir)?)),
        Kind::Samp
        | Kind::AgentAzall
        | Kind::Amp
        | Kind::Atsf
        | Kind::Ssot
        | Kind::Amq
        | Kind::Maildir
        | Kind::Codex => {
            Err(StoreError::Invalid(format!("a store of kind {kind} holds no sessions")))
        }
    }
}

/// The sessions of one harness, after a scan.
struct ScannedSessions<D: SessionDialect> {
    store: SessionStore<D>,
    threads: BTreeMap<String, Vec<(Timestamp, Location)>>,
}

impl<D: SessionDialect> ScannedSessions<D> {
    fn open(dir: &Path) -> Result<Self, StoreError> {
        let store = SessionStore::<D>::open(&StoreSpec {
            name: D::KIND.to_string(),
            kind: D::KIND,
            dir: dir.to_owned(),
            may_create: false,
            me: String::new(),
            own_address: None,
            state: None,
            roles: Roles::default(),
            home: None,
            maildir: MaildirSettings::default(),
        })?;
        let mut found = SessionSink::default();
        store.scan(true, &mut found)?;
        let mut threads = found.threads;
        // A thread may have several logs.
        threads.values_mut().for_each(|messages| messages.sort_by_key(|(time, _)| *time));
        threads.retain(|_, messages| !messages.is_empty());
        Ok(Self { store, threads })
    }

    /// Reads the files that the calls of a message name. A file that is gone is left out, as where it is shown.
    fn read_result_files(&self, at: &Location, message: &SessionMessage) -> Vec<SessionResultFile> {
        let read = |name: String| {
            let file = open_result_file(&self.store, at.source, &name).ok()?;
            let data = fs::read_limited(file, fs::MAX_RECORD as u64).ok()?;
            Some(SessionResultFile { name, data })
        };
        render_message(message).result_files.into_iter().filter_map(read).collect()
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
        for (_, at) in self.threads.get(id).into_iter().flatten() {
            let (built, answered) =
                self.store.with_line(at, |text| build_message(&self.store, at, text))?;
            let mut message = built.message;
            message.in_reply_to = answered;
            message.result_files = self.read_result_files(at, &message);
            let new = built.usage.into_iter().filter(|(answer, _)| counted.insert(answer.clone()));
            message.tokens = sum_tokens(new.map(|(_, tokens)| tokens));
            each(message)?;
        }
        Ok(head)
    }
}

/// The locations of the messages of each thread.
#[derive(Default)]
struct SessionSink {
    threads: BTreeMap<String, Vec<(Timestamp, Location)>>,
}

impl ScanSink for SessionSink {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        _: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        for message in found.drain(..) {
            let time = message.name_time.unwrap_or(message.time);
            let thread = self.threads.entry(message.thread.into_owned()).or_default();
            thread.push((time, message.at));
        }
        Vec::new()
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        for messages in self.threads.values_mut() {
            messages.retain(|(_, at)| !sources.contains(&at.source));
        }
    }

    fn end_rescan(&mut self, _: &[u32]) {}

    fn resume_source(&mut self, _: u32) {}

    fn report_progress(&mut self, _: u64, _: u64) {}
}
