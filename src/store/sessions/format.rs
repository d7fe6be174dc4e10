//! Transcripts as logs of the engine: from lines to messages (docs/formats/sessions.md).
//!
//! A message ends with its text. So it is complete when it is reported, and it is never reported differently. Its
//! location reaches from the first line since the message before to the line of the text. Lines between that belong to
//! no message, or to another session, are left out again when the message is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::build::{BuiltMessage, MessageBuilder};
use super::dialect::SessionDialect;
use super::facts::{PendingPieces, SessionFacts};
use super::fold::SessionFold;
use super::folder;
use super::line::{LineStep, SessionLine};
use super::message::SessionRole;
use super::owners::{SessionShared, hash_line_id};
use super::read;
use crate::model::locks::{LockLevel, Mutex};
use crate::model::{display_path, sanitize_line};
use crate::store::engine::Format;
use crate::store::engine::lines::check::{LineCheck, LineReporter};
use crate::store::engine::lines::scan::LogScan;
use crate::store::engine::lines::table::{LogRowOf, LogSource};
use crate::store::engine::lines::{LineFormat, LineStore, LogReading, LogShape, NameClass};
use crate::store::fs::{self, Stamp};
use crate::store::{
    AnswerScheme, Facets, FoundMessage, Location, Record, Rejection, RepeatKind, StoreError,
    StoreProperties, StoreSpec, confined,
};

/// The role of a person in a session.
pub(super) const USER: &str = "user";
/// The role of the model in a session.
pub(super) const AGENT: &str = "agent";
/// The role of the harness in a session.
const SYSTEM: &str = "system";

/// The transcripts of one harness, read as one role.
pub type SessionStore<D> = LineStore<SessionFormat<D>>;

/// The format of the transcripts of a harness.
#[derive(Debug)]
pub struct SessionFormat<D> {
    /// The names of sessions that stand in a file of their own, and the stamp of that file.
    pub(super) names: Mutex<(Option<Stamp>, BTreeMap<String, String>)>,
    dialect: PhantomData<D>,
}

/// Returns the sender and the recipient of a message.
pub(in crate::store) fn addresses(
    role: SessionRole,
    agent: Option<&str>,
) -> (Cow<'static, str>, Cow<'static, str>) {
    match (role, agent) {
        (SessionRole::User, None) => (USER.into(), AGENT.into()),
        (SessionRole::Agent, None) => (AGENT.into(), USER.into()),
        (SessionRole::System, None) => (SYSTEM.into(), USER.into()),
        (SessionRole::User, Some(name)) => (AGENT.into(), format!("{AGENT}.{name}").into()),
        (SessionRole::Agent, Some(name)) => (format!("{AGENT}.{name}").into(), AGENT.into()),
        (SessionRole::System, Some(_)) => (SYSTEM.into(), AGENT.into()),
    }
}

/// Returns a report of a message, without its place, its id and its times. A message that was kept elsewhere has the
/// same report.
pub(in crate::store) fn report_message(
    role: SessionRole,
    agent: Option<&str>,
    me: &str,
) -> FoundMessage<'static> {
    let (from, to) = addresses(role, agent);
    let from_me = *from == *me;
    let repeat_kind = RepeatKind::Rewritten;
    FoundMessage { repeat_kind, from, to, from_me, ..FoundMessage::default() }
}

/// Returns the author of a message that ends with a line of this step.
pub(super) fn role_of_step(step: LineStep) -> SessionRole {
    match step {
        LineStep::Prompt => SessionRole::User,
        LineStep::Notice => SessionRole::System,
        LineStep::Skipped | LineStep::Piece | LineStep::Answer | LineStep::End => {
            SessionRole::Agent
        }
    }
}

/// Returns the type of the sub-agent of a log as it is shown.
pub(super) fn agent_of_log<D: SessionDialect>(
    log: &LogRowOf<SessionFormat<D>>,
    is_sidechain: bool,
) -> Option<String> {
    let id = D::identify_log(&log.name).and_then(|names| names.agent);
    let told = log.facts.agent.as_deref().filter(|name| !name.trim().is_empty());
    let name = told.or(id).or(is_sidechain.then_some("sidechain"))?;
    Some(name.chars().map(|c| if c.is_whitespace() || c.is_control() { '-' } else { c }).collect())
}

impl<D: SessionDialect> Format<SessionStore<D>> for SessionFormat<D> {
    fn facets(store: &SessionStore<D>) -> Facets<'_> {
        Facets { parts: Some(store), ..Facets::default() }
    }

    fn describe_missing(store: &SessionStore<D>) -> Option<String> {
        let dir = store.properties.dir.as_path();
        let is_there = D::FOLDERS.iter().any(|name| dir.join(name).is_dir());
        if is_there && !fs::is_folder_missing(dir) {
            return None;
        }
        let folder = D::FOLDERS.first().copied().unwrap_or_default();
        Some(format!(
            "there is no {}; correct dir in its [[store]], or run the program once",
            display_path(&dir.join(folder))
        ))
    }

    fn is_relevant_path(store: &SessionStore<D>, path: &Path) -> bool {
        D::NAMES_FILE.is_some_and(|name| path == store.properties.dir.join(name))
    }
}

impl<D: SessionDialect> LineFormat for SessionFormat<D> {
    const SHAPE: LogShape = D::SHAPE;
    type Facts = SessionFacts;
    type Count = ();
    type Shared = SessionShared;
    type ParseBuffer = ();
    type LineContent<'a> = SessionLine<'a>;
    type Head = ();

    /// Opens the base folder of a harness, or the folder of its logs in it.
    fn open(spec: &StoreSpec) -> Result<(Self, StoreProperties), StoreError> {
        let me = spec.own_address.as_deref().unwrap_or(USER);
        if ![USER, AGENT, SYSTEM].contains(&me) {
            return Err(StoreError::Invalid(format!(
                "me = {:?}: in a store of kind {} me must be one of {USER}, {AGENT}, {SYSTEM}",
                sanitize_line(me),
                D::KIND
            )));
        }
        let about = StoreProperties {
            answers: AnswerScheme::Unnamed,
            uses_roles: true,
            holds_transcripts: true,
            ..StoreProperties::new(spec, me, base_folder::<D>(&spec.dir))
        };
        let names = Mutex::with_level(LockLevel::Surroundings, Default::default());
        Ok((Self { names, dialect: PhantomData }, about))
    }

    fn classify_name(name: &str) -> NameClass {
        if D::identify_log(name).is_some() { NameClass::Log } else { NameClass::Other }
    }

    /// Returns the thread of the log: its session, and its sub-agent after a dot.
    fn log_key(log: &LogRowOf<Self>) -> String {
        let names = D::identify_log(&log.name).unwrap_or_default();
        let session = log.facts.session.as_deref().or(names.session).unwrap_or(&log.name);
        match names.agent {
            Some(agent) => format!("{session}.{agent}"),
            None => session.to_owned(),
        }
    }

    fn parse_line<'a>(
        _: &SessionStore<D>,
        (): &mut (),
        key: &'a str,
        text: &'a str,
        _: Location,
        _: &mut Vec<FoundMessage<'a>>,
    ) -> Result<SessionLine<'a>, String> {
        D::parse_line(key, text)
    }

    fn accept_line<'a>(
        store: &SessionStore<D>,
        reading: &mut LogReading<'_, Self>,
        (key, _, at): (&'a str, &'a str, Location),
        line: SessionLine<'a>,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        let LogReading { n, log, shared } = reading;
        SessionFold { store, n: *n, log, shared, key, at }.accept_line(line, found)
    }

    fn parse_record(
        store: &SessionStore<D>,
        at: &Location,
        text: &str,
    ) -> Result<Record, StoreError> {
        read::build_record(store, at, text)
    }

    fn read_heads(scan: &mut LogScan<'_, Self>, logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        D::read_heads(scan, logs)
    }

    fn note_reread(scan: &mut LogScan<'_, Self>, log: u32) {
        scan.store.table.write().shared.reread.insert(log);
    }

    /// Forgets what logs have lost, gives sessions their titles, and queues the logs that must be read again.
    fn note_read(scan: &mut LogScan<'_, Self>) {
        D::note_read(scan);
        let mut table = scan.store.table.write();
        let table = &mut *table;
        let logs = &table.logs;
        table.shared.retitled.extend(table.shared.reread.iter());
        let is_gone = |log: u32| logs.get(log as usize).is_none_or(|log| log.stamp.is_none());
        table.shared.forget_origins(is_gone);
        table.shared.forget_lost_lines(|log| logs.get(log as usize).map_or(0, |log| log.epoch));
        title_threads::<D>(&mut table.logs, &mut table.shared);
        scan.reread_queue.extend(std::mem::take(&mut table.shared.rereads));
    }

    fn save_shared(shared: &SessionShared) -> Vec<u8> {
        shared.save()
    }

    fn restore_shared(bytes: &[u8]) -> Option<SessionShared> {
        SessionShared::restore(bytes)
    }

    fn check_head(_: &str, _: &OwnedFd, _: &mut LineReporter<'_>) -> Option<()> {
        Some(())
    }

    fn list_rejected(store: &SessionStore<D>) -> Result<Vec<Rejection>, StoreError> {
        folder::list_rejected::<D>(&store.properties.dir)
    }

    /// Checks that a line is one of the format, and names types that are not known.
    fn check_line(_: &SessionStore<D>, line: &mut LineCheck<'_, Self>) {
        // The program may still be writing the last line.
        if !line.ended || line.text.trim().is_empty() {
            return;
        }
        match D::parse_line("", line.text) {
            Err(why) => line.report_violation("schema", why),
            Ok(SessionLine { unknown: Some(word), .. }) => {
                let word = sanitize_line(&word).into_owned();
                line.report_once(
                    "unknown",
                    format!("the type {word:?} is not known; it is skipped"),
                );
            }
            Ok(_) => {}
        }
    }
}

/// Gives all logs of a thread the title that the first of them has.
fn title_threads<D: SessionDialect>(
    logs: &mut [LogRowOf<SessionFormat<D>>],
    shared: &mut SessionShared,
) {
    let retitled = std::mem::take(&mut shared.retitled);
    if retitled.is_empty() {
        return;
    }
    let threads: HashSet<String> = retitled
        .iter()
        .filter_map(|n| logs.get(*n as usize))
        .map(SessionFormat::<D>::log_key)
        .collect();
    let mut found: BTreeMap<String, (&str, String)> = BTreeMap::new();
    for (n, log) in (0u32..).zip(&*logs).filter(|(_, log)| log.is_shown()) {
        let thread = SessionFormat::<D>::log_key(log);
        if !threads.contains(&thread) {
            continue;
        }
        let is_here = |leaf: &str| shared.owns_line(hash_line_id(leaf), n);
        let title = log.facts.read.about.title(log.facts.given_title.as_deref(), is_here);
        // The names begin with the time, whatever folder they are in.
        let name = log.name.rsplit('/').next().unwrap_or_default();
        let is_first = found.get(&thread).is_none_or(|(first, _)| name < *first);
        if let Some(title) = title.filter(|_| is_first) {
            found.insert(thread, (name, title));
        }
    }
    let titles: BTreeMap<String, String> =
        found.into_iter().map(|(thread, (_, title))| (thread, title)).collect();
    for (n, log) in (0u32..).zip(logs) {
        let thread = SessionFormat::<D>::log_key(log);
        let title = titles.get(&thread).cloned().unwrap_or_default();
        if threads.contains(&thread) && log.facts.title.as_ref() != Some(&title) {
            let is_shown = log.facts.read.name_time.is_some();
            if is_shown && log.facts.title.is_some() {
                shared.rereads.insert(n);
            }
            log.facts.title = (is_shown || !title.is_empty()).then_some(title);
        }
    }
}

/// Returns the base folder, if a path is that or the folder of logs in it.
fn base_folder<D: SessionDialect>(dir: &Path) -> PathBuf {
    let is_logs = dir.file_name().is_some_and(|last| D::FOLDERS.iter().any(|name| last == *name));
    let has_logs = D::FOLDERS.iter().any(|name| dir.join(name).is_dir());
    match dir.parent() {
        Some(parent) if !has_logs && is_logs => parent.to_owned(),
        _ => dir.to_owned(),
    }
}

/// Builds the message at a location from its lines. It returns the message, and the id of the message that it answers.
///
/// # Errors
/// [`StoreError::Moved`] if no message is there.
pub(super) fn build_message<D: SessionDialect>(
    store: &SessionStore<D>,
    at: &Location,
    text: &str,
) -> Result<(BuiltMessage, Option<String>), StoreError> {
    let LogSource::Log(n) = LogSource::from_number(at.source) else {
        return Err(StoreError::Moved);
    };
    let key = store.table.read().get(n).map(SessionFormat::<D>::log_key);
    let key = key.ok_or(StoreError::Moved)?;
    let mut builder = MessageBuilder::default();
    let mut last = None;
    let mut seen = HashSet::new();
    let mut offset = at.offset;
    for raw in text.split('\n') {
        let here = offset;
        offset += raw.len() as u64 + 1;
        let Ok(line) = D::parse_line(&key, raw) else { continue };
        // In a text with replaced characters, offsets are not those of the log.
        let place = (text.len() == at.len as usize).then_some(here);
        if !line.step.is_shown() || !is_own_line::<D>(store, n, &line, place) {
            continue;
        }
        if !line.id.is_empty() && !seen.insert(hash_line_id(&line.id)) {
            continue;
        }
        D::read_contents(raw, &mut builder);
        let (id, end) = (line.id.into_owned(), here + raw.len() as u64);
        last = Some((id, line.step, line.time, line.is_sidechain, end));
    }
    let (mut id, step, time, is_sidechain, end) = last.ok_or(StoreError::Moved)?;
    let table = store.table.read();
    let log = table.get(n).ok_or(StoreError::Moved)?;
    let read = &log.facts.read;
    let time = time.or_else(|| read.taken_times.get(&at.offset).copied());
    let time = time.ok_or(StoreError::Moved)?;
    if !D::PIECES_HAVE_IDS && step == LineStep::Piece {
        let span = PendingPieces { start: at.offset, end, time, ..PendingPieces::default() };
        id = D::derive_id(&key, &span);
    }
    let answered = read.last_copied.clone().filter(|_| read.first_own.as_ref() == Some(&id));
    let agent = agent_of_log::<D>(log, is_sidechain);
    Ok((builder.finish(id, role_of_step(step), agent, time), answered))
}

/// Returns true if a line belongs to the log in which it stands.
fn is_own_line<D: SessionDialect>(
    store: &SessionStore<D>,
    n: u32,
    line: &SessionLine<'_>,
    place: Option<u64>,
) -> bool {
    if !D::PIECES_HAVE_IDS && line.step == LineStep::Piece {
        return true;
    }
    let id = hash_line_id(&line.id);
    let table = store.table.read();
    match place {
        Some(offset) => table.shared.is_own_line(id, n, offset),
        None => table.shared.owns_line(id, n),
    }
}

/// Opens a file in the folder of a session's whole results, if the log has one.
pub(super) fn open_result_file<D: SessionDialect>(
    store: &SessionStore<D>,
    source: u32,
    name: &str,
) -> std::io::Result<std::fs::File> {
    let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let LogSource::Log(n) = LogSource::from_number(source) else { return Err(missing()) };
    let (root, folder) = {
        let table = store.table.read();
        let log = table.get(n).ok_or_else(missing)?;
        let folder = D::result_folder(&log.name).ok_or_else(missing)?;
        (table.roots.first().ok_or_else(missing)?.path.clone(), folder)
    };
    let mut parts: Vec<&str> = D::SHAPE.folder.to_vec();
    parts.extend(folder.split('/'));
    parts.push(name);
    confined::open_path_without_trace(&root, &parts)
}
