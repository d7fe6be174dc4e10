//! A line of a log of Claude Code (docs/formats/sessions.md, section 2).
//!
//! Few members are read. Requests, attachments and snapshots are passed over without being taken apart.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::store::sessions::build::{CallResult, MessageBuilder};
use crate::store::sessions::line::{HeadNotes, LineStep, SessionLine, TitleNote, hash_content};
use crate::store::sessions::message::{SessionImage, TokenCount};
use crate::store::text::json::{self, JsonError, JsonValue};
use crate::store::text::json_values::{as_array, as_object, as_text, pick_members};
use crate::store::text::time::parse_time;

/// Types of records of which no text is shown.
const QUIET: [&str; 18] = [
    "agent-name",
    "api-request",
    "api-request-blob",
    "api-request-shape",
    "atis-latch",
    "attachment",
    "cost-state",
    "custom-title",
    "file-history-snapshot",
    "fork-context-ref",
    "last-prompt",
    "mode",
    "permission-mode",
    "progress",
    "queue-operation",
    "summary",
    "tools-used",
    "worktree-state",
];
/// The model of texts that the program itself wrote in the place of an answer.
const SYNTHETIC: &str = "<synthetic>";
/// The beginnings of texts that no person typed.
const NOTES: [&str; 9] = [
    "<command-name>",
    "<command-message>",
    "<local-command-",
    "<bash-input>",
    "<bash-stdout>",
    "<bash-stderr>",
    "<task-notification>",
    "<system-reminder>",
    INTERRUPTED,
];
const INTERRUPTED: &str = "[Request interrupted";

/// The members of a line that are read.
#[derive(Default)]
struct ClaudeRecord<'a> {
    kind: Option<JsonValue<'a>>,
    uuid: Option<JsonValue<'a>>,
    time: Option<JsonValue<'a>>,
    session: Option<JsonValue<'a>>,
    cwd: Option<JsonValue<'a>>,
    version: Option<JsonValue<'a>>,
    branch: Option<JsonValue<'a>>,
    subtype: Option<JsonValue<'a>>,
    source: Option<JsonValue<'a>>,
    message: Option<JsonValue<'a>>,
    content: Option<JsonValue<'a>>,
    forked: Option<JsonValue<'a>>,
    requested: Option<JsonValue<'a>>,
    snapshot: Option<JsonValue<'a>>,
    worktree: Option<JsonValue<'a>>,
    worktree_path: Option<JsonValue<'a>>,
    title: Option<JsonValue<'a>>,
    summary: Option<JsonValue<'a>>,
    leaf: Option<JsonValue<'a>>,
    agent: Option<JsonValue<'a>>,
    is_meta: bool,
    is_summary: bool,
    is_sidechain: bool,
    is_api_error: bool,
}

impl<'a> ClaudeRecord<'a> {
    fn parse(text: &'a str) -> Result<Self, JsonError> {
        let mut r = Self::default();
        json::visit_members(text, |key, value| {
            let is_true = matches!(value, JsonValue::Bool(true));
            let slot = match key.raw_text() {
                "type" => &mut r.kind,
                "uuid" => &mut r.uuid,
                "timestamp" => &mut r.time,
                "sessionId" => &mut r.session,
                "cwd" => &mut r.cwd,
                "version" => &mut r.version,
                "gitBranch" => &mut r.branch,
                "subtype" => &mut r.subtype,
                "promptSource" => &mut r.source,
                "message" => &mut r.message,
                "content" => &mut r.content,
                "forkedFrom" => &mut r.forked,
                "requestSessionId" => &mut r.requested,
                "snapshot" => &mut r.snapshot,
                "worktreeSession" => &mut r.worktree,
                "worktreePath" => &mut r.worktree_path,
                "customTitle" | "aiTitle" | "title" => &mut r.title,
                "summary" => &mut r.summary,
                "leafUuid" => &mut r.leaf,
                "agentId" => &mut r.agent,
                "isMeta" => return r.is_meta = is_true,
                "isCompactSummary" => return r.is_summary = is_true,
                "isSidechain" => return r.is_sidechain = is_true,
                "isApiErrorMessage" => return r.is_api_error = is_true,
                _ => return,
            };
            *slot = Some(value);
        })?;
        Ok(r)
    }

    /// Returns the members of the message: its id, model, content, usage and the reason why it ended.
    fn message_members(&self) -> [Option<JsonValue<'a>>; 5] {
        let names = ["id", "model", "content", "usage", "stop_reason"];
        let message = as_object(self.message.as_ref());
        message.and_then(|text| pick_members(text, names)).unwrap_or_default()
    }
}

/// The blocks of a message, as far as lists need them.
#[derive(Default)]
struct BlockSummary<'a> {
    has_text: bool,
    has_result: bool,
    /// True if there is a block with something to show besides text.
    has_parts: bool,
    first_text: Option<Cow<'a, str>>,
    unknown: Option<Cow<'a, str>>,
}

impl<'a> BlockSummary<'a> {
    fn of_content(content: Option<&JsonValue<'a>>) -> Self {
        let mut out = Self::default();
        if let Some(text) = as_text(content) {
            out.note_text(text);
            return out;
        }
        let array = as_array(content).unwrap_or("[]");
        let _ = json::visit_elements(array, |block, _| {
            let Some([kind, text]) = pick_members(block, ["type", "text"]) else { return };
            let kind = as_text(kind.as_ref()).unwrap_or_default();
            match &*kind {
                "text" => out.note_text(as_text(text.as_ref()).unwrap_or_default()),
                "thinking" | "tool_use" | "server_tool_use" | "image" => out.has_parts = true,
                "tool_result" => (out.has_parts, out.has_result) = (true, true),
                "redacted_thinking" => {}
                _ => out.unknown = Some(kind),
            }
        });
        out
    }

    fn note_text(&mut self, text: Cow<'a, str>) {
        self.has_text |= !text.trim().is_empty();
        self.first_text.get_or_insert(text);
    }
}

/// Parses a line.
///
/// # Errors
/// If it is no JSON object.
pub fn parse(text: &str) -> Result<SessionLine<'_>, JsonError> {
    let record = ClaudeRecord::parse(text)?;
    let kind = as_text(record.kind.as_ref()).unwrap_or_default();
    let time = as_text(record.time.as_ref()).and_then(|time| parse_time(&time));
    let mut line = SessionLine {
        id: as_text(record.uuid.as_ref()).unwrap_or_default(),
        time,
        is_sidechain: record.is_sidechain,
        notes: HeadNotes {
            cwd: as_text(record.cwd.as_ref()),
            version: as_text(record.version.as_ref()),
            git_branch: as_text(record.branch.as_ref()),
            ..HeadNotes::default()
        },
        ..SessionLine::default()
    };
    match &*kind {
        "user" | "assistant" => judge_conversation(&record, &kind, &mut line),
        "system" => {
            let subtype = as_text(record.subtype.as_ref()).unwrap_or_default();
            if matches!(&*subtype, "compact_boundary" | "turn_duration") {
                line.step = LineStep::End;
            }
        }
        "ai-title" => line.notes.title = title(&record).map(TitleNote::Generated),
        known if QUIET.contains(&known) => take_note(&record, known, &mut line),
        _ => line.unknown = Some(kind.into_owned().into()),
    }
    Ok(line)
}

fn title<'a>(record: &ClaudeRecord<'a>) -> Option<Cow<'a, str>> {
    as_text(record.title.as_ref())
}

/// Takes the facts of a record without text.
fn take_note<'a>(record: &ClaudeRecord<'a>, kind: &str, line: &mut SessionLine<'a>) {
    match kind {
        "custom-title" => line.notes.title = title(record).map(TitleNote::Custom),
        "summary" => {
            let both = as_text(record.summary.as_ref()).zip(as_text(record.leaf.as_ref()));
            line.notes.title = both.map(|(text, leaf)| TitleNote::Summary(text, leaf));
        }
        "worktree-state" => {
            let nested = as_object(record.worktree.as_ref())
                .and_then(|text| pick_members(text, ["worktreePath"]))
                .and_then(|[path]| as_text(path.as_ref()));
            line.notes.worktree = as_text(record.worktree_path.as_ref()).or(nested);
        }
        "file-history-snapshot" if line.time.is_none() => {
            let time = as_object(record.snapshot.as_ref())
                .and_then(|text| pick_members(text, ["timestamp"]))
                .and_then(|[time]| as_text(time.as_ref()));
            line.time = time.and_then(|time| parse_time(&time));
        }
        _ => {}
    }
}

/// Decides what a line of the conversation is.
fn judge_conversation<'a>(record: &ClaudeRecord<'a>, kind: &str, line: &mut SessionLine<'a>) {
    let [_, model, content, ..] = record.message_members();
    let blocks = BlockSummary::of_content(content.as_ref());
    line.content = content.as_ref().map_or(0, hash_content);
    line.has_parts = blocks.has_parts;
    let session = as_text(record.session.as_ref()).unwrap_or_default();
    let forked = as_object(record.forked.as_ref())
        .and_then(|text| pick_members(text, ["sessionId"]))
        .and_then(|[id]| as_text(id.as_ref()));
    let origin = forked.or_else(|| as_text(record.requested.as_ref()));
    line.copied_from = origin.filter(|origin| *origin != session && !origin.is_empty());
    line.notes.origin.clone_from(&line.copied_from);
    line.step = if kind == "assistant" {
        let is_own_text = as_text(model.as_ref()).is_some_and(|model| model == SYNTHETIC);
        match (is_own_text, record.is_api_error, blocks.has_text) {
            (_, true, true) => LineStep::Notice,
            (false, _, true) => LineStep::Answer,
            (false, _, false) if blocks.has_parts => LineStep::Piece,
            _ => LineStep::Skipped,
        }
    } else {
        judge_user(record, &blocks)
    };
    if line.step == LineStep::Prompt {
        line.notes.title = blocks.first_text.map(TitleNote::Prompt);
    }
    line.unknown = blocks.unknown;
}

/// Decides what a line of the type `user` is: a prompt, results of calls, or a note of the program.
fn judge_user(record: &ClaudeRecord<'_>, blocks: &BlockSummary<'_>) -> LineStep {
    if record.is_summary {
        return if blocks.has_text { LineStep::Notice } else { LineStep::Skipped };
    }
    if blocks.has_result {
        return LineStep::Piece;
    }
    if record.is_meta || !(blocks.has_text || blocks.has_parts) {
        return LineStep::Skipped;
    }
    let text = blocks.first_text.as_deref().unwrap_or_default();
    if text.starts_with(INTERRUPTED) {
        return LineStep::End;
    }
    let source = as_text(record.source.as_ref());
    let is_typed = source.is_none_or(|source| matches!(&*source, "typed" | "queued" | "sdk"));
    let is_note = NOTES.iter().any(|note| text.trim_start().starts_with(note));
    if is_typed && !is_note { LineStep::Prompt } else { LineStep::Skipped }
}

/// Adds the contents of a line of the conversation to a message.
pub fn read_contents(text: &str, message: &mut MessageBuilder) {
    let Ok(record) = ClaudeRecord::parse(text) else { return };
    let [id, model, content, usage, stop] = record.message_members();
    if let Some(text) = as_text(content.as_ref()) {
        message.add_text(text.into_owned());
    }
    let array = as_array(content.as_ref()).unwrap_or("[]");
    let _ = json::visit_elements(array, |block, _| read_block(block, message));
    if as_text(record.kind.as_ref()).is_none_or(|kind| kind != "assistant") {
        return;
    }
    if let Some(model) = as_text(model.as_ref()) {
        message.model = Some(model.into_owned());
    }
    if let Some(stop) = as_text(stop.as_ref()) {
        message.stop_reason = Some(stop.into_owned());
    }
    let answer = as_text(id.as_ref()).or_else(|| as_text(record.uuid.as_ref()));
    let counts = as_object(usage.as_ref())
        .and_then(|text| pick_members(text, ["input_tokens", "output_tokens"]));
    if let (Some(answer), Some([input, output])) = (answer, counts) {
        let tokens =
            TokenCount { input: as_count(input.as_ref()), output: as_count(output.as_ref()) };
        message.note_usage(&answer, tokens);
    }
}

fn as_count(value: Option<&JsonValue<'_>>) -> u64 {
    match value {
        Some(JsonValue::Int(text)) => text.parse().unwrap_or(0),
        _ => 0,
    }
}

fn read_block(block: &str, message: &mut MessageBuilder) {
    let names = ["type", "text", "thinking", "id", "name", "input", "source"];
    let Some([kind, text, thinking, id, name, input, source]) = pick_members(block, names) else {
        return;
    };
    let get = |value: &Option<JsonValue<'_>>| {
        as_text(value.as_ref()).map(Cow::into_owned).unwrap_or_default()
    };
    match &*get(&kind) {
        "text" => {
            let text = get(&text);
            if !text.trim().is_empty() {
                message.add_text(text);
            }
        }
        "thinking" => message.add_thinking(get(&thinking)),
        "tool_use" | "server_tool_use" => {
            message.add_call(get(&id), get(&name), spell(input.as_ref()));
        }
        "tool_result" => read_result(block, message),
        "image" => {
            if let Some(image) = as_object(source.as_ref()).and_then(read_image) {
                message.add_image(image);
            }
        }
        _ => {}
    }
}

/// Returns a value as it is spelled.
fn spell(value: Option<&JsonValue<'_>>) -> String {
    match value {
        Some(JsonValue::String(text)) => format!("\"{}\"", text.raw_text()),
        Some(
            JsonValue::Compound(text)
            | JsonValue::Int(text)
            | JsonValue::Float(text)
            | JsonValue::Constant(text),
        ) => (*text).to_owned(),
        Some(JsonValue::Bool(is_true)) => is_true.to_string(),
        Some(JsonValue::Null) => "null".to_owned(),
        None => String::new(),
    }
}

/// Adds the result of a call: its text, and its images.
fn read_result(block: &str, message: &mut MessageBuilder) {
    let names = ["tool_use_id", "content", "is_error"];
    let Some([id, content, is_error]) = pick_members(block, names) else { return };
    let mut texts: Vec<String> =
        as_text(content.as_ref()).map(Cow::into_owned).into_iter().collect();
    let mut images = Vec::new();
    let array = as_array(content.as_ref()).unwrap_or("[]");
    let _ = json::visit_elements(array, |inner, _| {
        let Some([kind, text, source]) = pick_members(inner, ["type", "text", "source"]) else {
            return;
        };
        match as_text(kind.as_ref()).as_deref() {
            Some("text") => texts.extend(as_text(text.as_ref()).map(Cow::into_owned)),
            Some("image") => images.extend(as_object(source.as_ref()).and_then(read_image)),
            _ => {}
        }
    });
    message.add_result(CallResult {
        id: as_text(id.as_ref()).unwrap_or_default().into_owned(),
        output: Some(texts.join("\n")),
        is_error: Some(matches!(is_error, Some(JsonValue::Bool(true)))),
        duration_ms: None,
    });
    for image in images {
        message.add_image(image);
    }
}

/// Returns an image whose bytes stand in its source.
fn read_image(source: &str) -> Option<SessionImage> {
    let [kind, data] = pick_members(source, ["media_type", "data"])?;
    let data = BASE64.decode(&*as_text(data.as_ref())?).ok()?.into();
    Some(SessionImage { media_type: as_text(kind.as_ref())?.into_owned(), data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(more: &str, content: &str) -> String {
        format!(
            r#"{{"type":"user","uuid":"u","timestamp":"2026-11-25T10:00:00.000Z","sessionId":"s"{more},"message":{{"role":"user","content":{content}}}}}"#
        )
    }

    fn assistant(model: &str, blocks: &str) -> String {
        format!(
            r#"{{"type":"assistant","uuid":"u","timestamp":"2026-11-25T10:00:00.000Z","message":{{"id":"m","model":"{model}","content":{blocks}}}}}"#
        )
    }

    #[test]
    fn only_what_a_person_typed_is_a_prompt() {
        let text = r#""hello""#;
        for (line, step) in [
            (user("", text), LineStep::Prompt),
            (user(r#","promptSource":"typed""#, text), LineStep::Prompt),
            (user(r#","promptSource":"hook""#, text), LineStep::Skipped),
            (user(r#","isMeta":true"#, text), LineStep::Skipped),
            (user(r#","isCompactSummary":true"#, text), LineStep::Notice),
            (user("", r#""<command-name>/compact</command-name>""#), LineStep::Skipped),
            (user("", r#""<task-notification>done""#), LineStep::Skipped),
            (user("", r#""[Request interrupted by user for tool use]""#), LineStep::End),
            (user("", r#"[{"type":"tool_result","tool_use_id":"t"}]"#), LineStep::Piece),
            (user("", r#"[{"type":"image"}]"#), LineStep::Prompt),
            (user("", "[]"), LineStep::Skipped),
        ] {
            assert_eq!(parse(&line).unwrap().step, step, "{line}");
        }
    }

    #[test]
    fn a_text_ends_a_message() {
        for (model, blocks, step) in [
            ("m", r#"[{"type":"text","text":"a"}]"#, LineStep::Answer),
            ("m", r#"[{"type":"text","text":" "}]"#, LineStep::Skipped),
            ("m", r#"[{"type":"thinking","thinking":"a"}]"#, LineStep::Piece),
            ("m", r#"[{"type":"tool_use","id":"t"}]"#, LineStep::Piece),
            ("m", r#"[{"type":"hologram"}]"#, LineStep::Skipped),
            (SYNTHETIC, r#"[{"type":"text","text":"No response requested."}]"#, LineStep::Skipped),
        ] {
            assert_eq!(parse(&assistant(model, blocks)).unwrap().step, step, "{blocks}");
        }
        let error = assistant(SYNTHETIC, r#"[{"type":"text","text":"API Error"}]"#);
        let error = error.replacen('{', r#"{"isApiErrorMessage":true,"#, 1);
        assert_eq!(parse(&error).unwrap().step, LineStep::Notice);
    }

    #[test]
    fn what_is_not_known_is_named() {
        let line = parse(r#"{"type":"new-thing-2027"}"#).unwrap();
        assert_eq!(
            (line.step, line.unknown.as_deref()),
            (LineStep::Skipped, Some("new-thing-2027"))
        );
        let line = assistant("m", r#"[{"type":"hologram"},{"type":"text","text":"a"}]"#);
        let line = parse(&line).unwrap();
        assert_eq!((line.step, line.unknown.as_deref()), (LineStep::Answer, Some("hologram")));
        assert!(parse(r#"{"a":1}{"b":2}"#).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in any::<String>(), json in "[\\[\\]{}\":,a0\\\\ typemsgcontu]{0,60}") {
            for text in [text, json] {
                let _ = parse(&text);
                let mut message = MessageBuilder::default();
                read_contents(&text, &mut message);
                read_contents(&user("", &text), &mut message);
                read_block(&text, &mut message);
            }
        }
    }
}
