//! Claude Code: a log per session in `projects/<project>/`, and one per sub-agent beside it.

pub mod line;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Read as _};

use super::build::MessageBuilder;
use super::dialect::{LogIdentity, SessionDialect};
use super::facts::PendingPieces;
use super::format::SessionFormat;
use super::line::SessionLine;
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::engine::lines::scan::LogScan;
use crate::store::engine::lines::table::{LogRow, LogRowOf};
use crate::store::engine::lines::{LogShape, LogTree};
use crate::store::text::json_values::{as_text, pick_members};
use crate::store::{Kind, confined};

/// The folder of projects in the base folder.
const PROJECTS: &str = "projects";
/// The folder of sub-agents in that of a session.
const SUBAGENTS: &str = "subagents";
/// The folder of whole results in that of a session.
const RESULTS: &str = "tool-results";
/// The number of bytes of a file beside a log that are read.
const MAX_META: u64 = 64 << 10;
/// The number of bytes at the start of a log in which its session is looked for.
const MAX_HEAD: u64 = 1 << 20;

/// The way in which Claude Code writes transcripts.
#[derive(Debug, Default)]
pub struct ClaudeCode;

type ClaudeFormat = SessionFormat<ClaudeCode>;

impl SessionDialect for ClaudeCode {
    const KIND: Kind = Kind::Claude;
    const FOLDERS: &'static [&'static str] = &[PROJECTS];
    const SHAPE: LogShape = LogShape {
        folder: &[PROJECTS],
        log_file: None,
        head_file: None,
        parts_folder: None,
        rewritten: false,
        has_copies: false,
        tree: Some(LogTree { is_folder, packed_suffix: ".zst" }),
    };
    const PIECES_HAVE_IDS: bool = true;
    const FIRST_LINE_DESCRIBES_SESSION: bool = false;

    fn identify_log(name: &str) -> Option<LogIdentity<'_>> {
        let parts: Vec<&str> = name.split('/').collect();
        let stem = parts.last()?.strip_suffix(".jsonl").filter(|stem| !stem.is_empty())?;
        let agent = stem.strip_prefix("agent-").filter(|id| !id.is_empty());
        match (parts.as_slice(), agent) {
            // Older versions put sub-agents beside the sessions.
            ([_, _], Some(_)) => Some(LogIdentity { session: None, agent }),
            ([_, _], None) => Some(LogIdentity { session: Some(stem), agent: None }),
            ([_, session, folder, _], Some(_)) if *folder == SUBAGENTS => {
                Some(LogIdentity { session: Some(session), agent })
            }
            _ => None,
        }
    }

    fn parse_line<'a>(_: &str, text: &'a str) -> Result<SessionLine<'a>, String> {
        line::parse(text).map_err(|e| e.to_string())
    }

    fn derive_id(_: &str, message: &PendingPieces) -> String {
        message.last_id.clone()
    }

    fn result_folder(name: &str) -> Option<String> {
        let parts: Vec<&str> = name.split('/').collect();
        match parts.as_slice() {
            [project, session, _, _] => Some(format!("{project}/{session}/{RESULTS}")),
            [project, log] => Some(format!("{project}/{}/{RESULTS}", log.strip_suffix(".jsonl")?)),
            _ => None,
        }
    }

    fn read_contents(text: &str, message: &mut MessageBuilder) {
        line::read_contents(text, message);
    }

    /// Finds the session and the type of sub-agents.
    fn read_heads(scan: &mut LogScan<'_, ClaudeFormat>, logs: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut changed = BTreeSet::new();
        for n in logs {
            let Some(log) = scan.store.table.read().get(*n).cloned() else { continue };
            let names = Self::identify_log(&log.name).unwrap_or_default();
            if names.agent.is_none() {
                continue;
            }
            let mut facts = log.facts.clone();
            if facts.agent.is_none() {
                facts.agent = read_agent_type(scan, &log).ok().flatten();
            }
            if names.session.is_none() && facts.session.is_none() {
                facts.session = read_session_id(scan, &log).ok().flatten();
            }
            if facts != log.facts {
                if log.stamp.is_some() {
                    changed.insert(*n);
                }
                scan.store.table.write().set_log(*n, LogRow { facts, ..log });
            }
        }
        changed
    }
}

/// Returns true if a folder below that of projects may contain logs: a project, a session, or its sub-agents.
fn is_folder(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>()[..] {
        [_] => true,
        // Other files of a project have an extension.
        [_, name] => !name.contains('.'),
        [_, _, folder] => folder == SUBAGENTS,
        _ => false,
    }
}

/// Returns the type of a sub-agent, from the file beside its log.
fn read_agent_type(
    scan: &mut LogScan<'_, ClaudeFormat>,
    log: &LogRowOf<ClaudeFormat>,
) -> io::Result<Option<String>> {
    let name = log.name.rsplit('/').next().unwrap_or_default();
    let name = format!("{}.meta.json", name.strip_suffix(".jsonl").unwrap_or(name));
    let dir = scan.open_log_folder(log)?;
    let mut text = String::new();
    confined::open_file_without_trace(&dir, &name)?.take(MAX_META).read_to_string(&mut text)?;
    let kind = pick_members(&text, ["agentType"]).and_then(|[kind]| as_text(kind.as_ref()));
    Ok(kind.map(Cow::into_owned))
}

/// Returns the session of which a log is, from its first lines.
fn read_session_id(
    scan: &mut LogScan<'_, ClaudeFormat>,
    log: &LogRowOf<ClaudeFormat>,
) -> io::Result<Option<String>> {
    let file = scan.open_log(log)?.file;
    let mut session = None;
    read_lines(&file, 0, MAX_HEAD, |run| {
        if let (LineRun::Lines(run, offset), None) = (run, &session) {
            let told = |text: &str| {
                let [id] = pick_members(text, ["sessionId"])?;
                as_text(id.as_ref()).map(Cow::into_owned).filter(|id| !id.is_empty())
            };
            session = split_lines(run, offset).iter().find_map(|line| told(&line.text));
        }
    })?;
    Ok(session)
}

#[cfg(test)]
mod tests;
