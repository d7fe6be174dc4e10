//! Codex CLI: a log per thread in `sessions/YYYY/MM/DD/` or `archived_sessions/`, and one more for each branch of it.

pub mod line;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};

use super::build::MessageBuilder;
use super::dialect::{LineContext, LogIdentity, SessionDialect};
use super::facts::PendingPieces;
use super::format::SessionFormat;
use super::line::{LineStep, SessionLine};
use super::owners::{ForkedLine, last_message};
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::engine::lines::scan::LogScan;
use crate::store::engine::lines::table::{LogRow, LogRowOf};
use crate::store::engine::lines::{LineFormat as _, LogShape, LogTree};
use crate::store::fs::Stamp;
use crate::store::text::json_values::{as_text, pick_members};
use crate::store::{Kind, confined};

/// The folder of sessions in the base folder.
const SESSIONS: &str = "sessions";
/// The folder of sessions that a person has put away.
const ARCHIVED: &str = "archived_sessions";
/// The file in the base folder with the names of threads.
const NAMES: &str = "session_index.jsonl";
/// The number of bytes of that file that are read.
const MAX_NAMES: u64 = 16 << 20;
/// The number of bytes at the start of a log in which its thread is looked for.
const MAX_HEAD: u64 = 4 << 20;
/// The length of the time in the name of a log.
const TIME: usize = "2026-11-25T23-39-08".len();

/// The way in which Codex writes transcripts.
#[derive(Debug, Default)]
pub struct CodexCli;

type CodexFormat = SessionFormat<CodexCli>;

impl SessionDialect for CodexCli {
    const KIND: Kind = Kind::Codex;
    const FOLDERS: &'static [&'static str] = &[SESSIONS, ARCHIVED];
    const SHAPE: LogShape = LogShape {
        folder: &[],
        log_file: None,
        head_file: None,
        parts_folder: None,
        rewritten: false,
        has_copies: false,
        tree: Some(LogTree { is_folder, packed_suffix: ".zst" }),
    };
    const PIECES_HAVE_IDS: bool = false;
    const FIRST_LINE_DESCRIBES_SESSION: bool = true;
    const HAS_CONTEXT: bool = true;
    const NAMES_FILE: Option<&'static str> = Some(NAMES);

    fn identify_log(name: &str) -> Option<LogIdentity<'_>> {
        let (above, file) = name.rsplit_once('/')?;
        if !(above == ARCHIVED || is_folder(above) && above.split('/').count() == 4) {
            return None;
        }
        let stem = file.strip_suffix(".jsonl")?.strip_prefix("rollout-")?;
        // A branch of a thread has an id of its own after that of the thread.
        let thread = stem.get(TIME..).and_then(|rest| rest.strip_prefix('-'));
        let session = thread.and_then(|ids| ids.split('_').next()).filter(|id| !id.is_empty());
        Some(LogIdentity { session, agent: None })
    }

    fn parse_line<'a>(session: &str, text: &'a str) -> Result<SessionLine<'a>, String> {
        line::parse(session, text).map_err(|e| e.to_string())
    }

    /// Returns the id of a message without text, which is made like that of any other message.
    fn derive_id(session: &str, message: &PendingPieces) -> String {
        line::derive_message_id(session, &message.time.rfc3339(), "agent", "")
    }

    fn result_folder(_: &str) -> Option<String> {
        None
    }

    fn read_contents(text: &str, message: &mut MessageBuilder) {
        line::read_contents(text, message);
    }

    fn read_context(text: &str) -> LineContext {
        let (model, tokens) = line::read_context(text);
        LineContext { model, tokens }
    }

    /// Finds the threads that are not part of the names of logs, and the names that people gave to threads.
    fn read_heads(scan: &mut LogScan<'_, CodexFormat>, logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        for n in logs {
            let Some(log) = scan.store.table.read().get(*n).cloned() else { continue };
            let is_told =
                Self::identify_log(&log.name).is_some_and(|names| names.session.is_some());
            if is_told || log.facts.session.is_some() {
                continue;
            }
            if let Ok(Some(session)) = read_first_line(scan, &log, line::read_thread_id) {
                let mut facts = log.facts.clone();
                facts.session = Some(session);
                scan.store.table.write().set_log(*n, LogRow { facts, ..log });
            }
        }
        take_names(scan);
        BTreeSet::new()
    }

    /// Finds the lines that forks share with their origins. Older versions of Codex repeat these lines; newer ones name
    /// the place where they end.
    fn note_read(scan: &mut LogScan<'_, CodexFormat>) {
        let mut found = Vec::new();
        {
            let mut table = scan.store.table.write();
            let table = &mut *table;
            let is_there = |log: &LogRowOf<CodexFormat>| log.is_shown() && log.stamp.is_some();
            let there: Vec<&LogRowOf<CodexFormat>> =
                table.logs.iter().filter(|log| is_there(log)).collect();
            for (n, log) in (0u32..).zip(&table.logs).filter(|(_, log)| is_there(log)) {
                let Some(origin) = ForkOrigin::of_log(log) else { continue };
                let is_known = table.shared.forks.contains_key(&n);
                let has_origin = there.iter().any(|other| origin.is_log(other));
                if has_origin && !is_known {
                    found.push((n, origin));
                } else if !has_origin && is_known {
                    table.shared.forks.remove(&n);
                    table.shared.rereads.insert(n);
                }
            }
        }
        for (n, origin) in found {
            let lines = list_lines(scan, n, &origin);
            let mut table = scan.store.table.write();
            let last = last_message(&lines);
            // A log that was read with these lines before the store was opened has nothing new.
            let is_done = table.get(n).is_some_and(|log| {
                let read = &log.facts.read;
                read.copied_lines > 0 || last.is_some() && read.last_copied.as_ref() == last
            });
            if !is_done {
                table.shared.rereads.insert(n);
            }
            table.shared.forks.insert(n, lines);
        }
    }
}

/// The origin of a fork.
enum ForkOrigin {
    /// The thread that the fork repeats.
    Thread(String),
    /// The log that the fork goes on from, and the number of the first line that it does not share.
    Log(String, u64),
}

impl ForkOrigin {
    fn of_log(log: &LogRowOf<CodexFormat>) -> Option<Self> {
        let read = &log.facts.read;
        match (&read.about.base, &read.about.origin) {
            (Some((base, end)), _) => Some(Self::Log(base.clone(), *end)),
            (None, Some(origin)) if read.repeats_origin => Some(Self::Thread(origin.clone())),
            _ => None,
        }
    }

    fn is_log(&self, log: &LogRowOf<CodexFormat>) -> bool {
        match self {
            Self::Thread(thread) => CodexFormat::log_key(log) == *thread,
            Self::Log(id, _) => {
                let stem = log.name.strip_suffix(".jsonl").unwrap_or(&log.name);
                let before = stem.strip_suffix(id.as_str());
                before.is_some_and(|before| before.ends_with(['-', '_']))
            }
        }
    }

    /// Returns true if a fork shares a line, or may share it.
    fn has_line(&self, text: &str) -> bool {
        match self {
            Self::Thread(_) => true,
            Self::Log(_, end) => line::read_ordinal(text).is_some_and(|ordinal| ordinal < *end),
        }
    }
}

/// Returns true if a folder may contain logs.
fn is_folder(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    match parts.next() {
        Some(SESSIONS) => path.split('/').count() <= 4 && parts.all(is_number),
        Some(ARCHIVED) => parts.next().is_none(),
        _ => false,
    }
}

/// Returns what `read` finds in the first line of a log.
fn read_first_line<T>(
    scan: &mut LogScan<'_, CodexFormat>,
    log: &LogRowOf<CodexFormat>,
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let file = scan.open_log(log)?.file;
    let mut found = None;
    read_lines(&file, 0, MAX_HEAD, |run| {
        if let (LineRun::Lines(run, offset), None) = (run, &found) {
            let first = split_lines(run, offset).into_iter().next();
            found = first.and_then(|first| read(&first.text));
        }
    })?;
    Ok(found)
}

/// Reads the names that people gave to threads, if their file has changed.
fn take_names(scan: &mut LogScan<'_, CodexFormat>) {
    let dir = &scan.store.properties.dir;
    let stamp = confined::open_path_without_trace(dir, &[NAMES])
        .ok()
        .and_then(|file| Some((Stamp::from_file(&file).ok()?, file)));
    let known = &scan.store.format.names;
    let mut known = known.lock();
    if stamp.as_ref().map(|(stamp, _)| *stamp) != known.0 {
        let mut text = Vec::new();
        let read = stamp.as_ref().map(|(_, file)| file.take(MAX_NAMES).read_to_end(&mut text));
        if let Some(Err(e)) = read {
            return scan.store.health.note_error(NAMES, "be read", &e);
        }
        *known = (stamp.map(|(stamp, _)| stamp), parse_names(&String::from_utf8_lossy(&text)));
    }
    let mut table = scan.store.table.write();
    let table = &mut *table;
    for (n, log) in (0u32..).zip(&mut table.logs) {
        let name = known.1.get(&CodexFormat::log_key(log));
        if log.facts.given_title.as_ref() != name {
            log.facts.given_title = name.cloned();
            table.shared.retitled.insert(n);
        }
    }
}

/// Returns the names of threads. The last line of a thread counts.
fn parse_names(text: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let Some([id, name]) = pick_members(line, ["id", "thread_name"]) else { continue };
        if let (Some(id), Some(name)) = (as_text(id.as_ref()), as_text(name.as_ref())) {
            names.insert(id.into_owned(), name.into_owned());
        }
    }
    names
}

/// Returns the lines that a fork shares with its origin, or may share.
fn list_lines(
    scan: &mut LogScan<'_, CodexFormat>,
    fork: u32,
    origin: &ForkOrigin,
) -> Vec<ForkedLine> {
    let (fork, mut logs) = {
        let table = scan.store.table.read();
        let logs = table.logs.iter().filter(|log| origin.is_log(log)).cloned();
        (table.get(fork).cloned(), logs.collect::<Vec<LogRowOf<CodexFormat>>>())
    };
    // Copies have new times. Lines that the origin got after the fork was begun were not copied.
    let begun = match (origin, fork) {
        (ForkOrigin::Thread(_), Some(fork)) => {
            let read = |text: &str| line::parse("", text).ok()?.time;
            read_first_line(scan, &fork, read).ok().flatten()
        }
        _ => None,
    };
    logs.sort_by(|a, b| a.name.cmp(&b.name));
    let mut out = Vec::new();
    for log in logs {
        let Ok(opened) = scan.open_log(&log) else { continue };
        let thread = CodexFormat::log_key(&log);
        let _ = read_lines(&opened.file, 0, opened.len, |run| {
            let LineRun::Lines(run, offset) = run else { return };
            for piece in split_lines(run, offset) {
                let Ok(line) = line::parse(&thread, &piece.text) else { continue };
                let is_compared =
                    line.step.ends_message() || line.step == LineStep::Piece && line.content != 0;
                let is_later = line.time.zip(begun).is_some_and(|(time, begun)| time > begun);
                if is_compared && !is_later && origin.has_line(&piece.text) {
                    let id = line.step.ends_message().then(|| line.id.into_owned());
                    out.push(ForkedLine { content: line.content, id });
                }
            }
        });
    }
    out
}
