//! A line of a log of Codex (docs/formats/sessions.md, section 5).
//!
//! Messages are events, in their older and their newer form: what the person saw. Thoughts, calls and results are items
//! of the model. Instructions, the state of the world and the history after a compaction are passed over.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_64;

use crate::model::encode_hex;
use crate::store::sessions::build::{CallResult, MessageBuilder};
use crate::store::sessions::line::{HeadNotes, LineStep, SessionLine, TitleNote};
use crate::store::sessions::message::{SessionImage, TokenCount};
use crate::store::text::json::{self, JsonError, JsonValue};
use crate::store::text::json_values::{as_array, as_object, as_text, pick_members};
use crate::store::text::time::parse_time;

/// Events of which no text is shown.
const QUIET_EVENTS: [&str; 36] = [
    "agent_message_delta",
    "agent_reasoning",
    "agent_reasoning_raw_content",
    "agent_reasoning_section_break",
    "background_event",
    "collab_agent_interaction_end",
    "collab_agent_spawn_end",
    "collab_close_end",
    "collab_resume_end",
    "collab_waiting_end",
    "deprecation_notice",
    "dynamic_tool_call_request",
    "dynamic_tool_call_response",
    "entered_review_mode",
    "error",
    "exec_command_begin",
    "exec_command_end",
    "exited_review_mode",
    "guardian_assessment",
    "hook_completed",
    "image_generation_end",
    "item_started",
    "mcp_tool_call_begin",
    "mcp_tool_call_end",
    "patch_apply_begin",
    "patch_apply_end",
    "plan_update",
    "stream_error",
    "task_started",
    "thread_goal_updated",
    "thread_name_updated",
    "thread_settings_applied",
    "token_count",
    "turn_diff",
    "view_image_tool_call",
    "warning",
];
/// Items of an event of which no text is shown.
const QUIET_ITEMS: [&str; 18] = [
    "CollabAgentToolCall",
    "DynamicToolCall",
    "EnteredReviewMode",
    "ExitedReviewMode",
    "Extension",
    "FileChange",
    "FunctionCallOutput",
    "HookPrompt",
    "ImageGeneration",
    "ImageView",
    "McpToolCall",
    "Plan",
    "Reasoning",
    "Sleep",
    "SubAgentActivity",
    "UserAgentControl",
    "WebSearch",
    "WebSearchCall",
];
/// Items of the model of which no text is shown.
const QUIET_RESPONSES: [&str; 6] = [
    "compaction",
    "compaction_summary",
    "context_compaction",
    "ghost_snapshot",
    "message",
    "other",
];
/// Records of which no text is shown.
const QUIET: [&str; 5] = [
    "inter_agent_communication",
    "token_usage_record",
    "turn_context",
    "world_state",
    "ghost_commit",
];

/// The members of a line.
struct CodexRecord<'a> {
    time: Cow<'a, str>,
    kind: Cow<'a, str>,
    payload: &'a str,
}

impl<'a> CodexRecord<'a> {
    fn parse(text: &'a str) -> Result<Self, JsonError> {
        let Some([time, kind, payload]) = pick_members(text, ["timestamp", "type", "payload"])
        else {
            // A second parse finds the reason; this is rare.
            json::visit_members(text, |_, _| {})?;
            return Err(JsonError::NotAnObject);
        };
        Ok(Self {
            time: as_text(time.as_ref()).unwrap_or_default(),
            kind: as_text(kind.as_ref()).unwrap_or_default(),
            payload: as_object(payload.as_ref()).unwrap_or("{}"),
        })
    }
}

/// A message that a person saw.
struct SeenMessage<'a> {
    is_prompt: bool,
    text: Cow<'a, str>,
    /// The texts with images: data URLs.
    images: Vec<Cow<'a, str>>,
}

/// The kind and the content of an event.
enum CodexEvent<'a> {
    Message(SeenMessage<'a>),
    /// The end of a command, with its item.
    Command(&'a str),
    End,
    Quiet,
    Unknown(Cow<'a, str>),
}

fn read_event(payload: &str) -> CodexEvent<'_> {
    let names = ["type", "message", "images", "item"];
    let Some([kind, message, images, item]) = pick_members(payload, names) else {
        return CodexEvent::Quiet;
    };
    let kind = as_text(kind.as_ref()).unwrap_or_default();
    let text = || as_text(message.as_ref()).unwrap_or_default();
    match &*kind {
        "user_message" => {
            let mut urls = Vec::new();
            let array = as_array(images.as_ref()).unwrap_or("[]");
            let _ = json::visit_elements(array, |_, value| urls.extend(as_text(Some(&value))));
            CodexEvent::Message(SeenMessage { is_prompt: true, text: text(), images: urls })
        }
        "agent_message" => {
            let images = Vec::new();
            CodexEvent::Message(SeenMessage { is_prompt: false, text: text(), images })
        }
        "item_completed" => as_object(item.as_ref()).map_or(CodexEvent::Quiet, read_item),
        "task_complete" | "turn_complete" | "turn_aborted" | "context_compacted"
        | "thread_rolled_back" => CodexEvent::End,
        known if QUIET_EVENTS.contains(&known) => CodexEvent::Quiet,
        _ => CodexEvent::Unknown(kind.into_owned().into()),
    }
}

fn read_item(item: &str) -> CodexEvent<'_> {
    let Some([kind, content]) = pick_members(item, ["type", "content"]) else {
        return CodexEvent::Quiet;
    };
    let kind = as_text(kind.as_ref()).unwrap_or_default();
    match &*kind {
        "UserMessage" | "AgentMessage" => {
            let (mut texts, mut images) = (Vec::new(), Vec::new());
            let array = as_array(content.as_ref()).unwrap_or("[]");
            let _ = json::visit_elements(array, |part, _| {
                let Some([text, url]) = pick_members(part, ["text", "image_url"]) else { return };
                texts.extend(as_text(text.as_ref()));
                images.extend(as_text(url.as_ref()));
            });
            let text = match texts.len() {
                1 => texts.pop().unwrap_or_default(),
                _ => Cow::Owned(texts.concat()),
            };
            CodexEvent::Message(SeenMessage { is_prompt: kind == "UserMessage", text, images })
        }
        "CommandExecution" => CodexEvent::Command(item),
        "ContextCompaction" => CodexEvent::End,
        known if QUIET_ITEMS.contains(&known) => CodexEvent::Quiet,
        _ => CodexEvent::Unknown(kind.into_owned().into()),
    }
}

/// Parses a line.
///
/// # Errors
/// If it is no JSON object.
pub fn parse<'a>(session: &str, text: &'a str) -> Result<SessionLine<'a>, JsonError> {
    let record = CodexRecord::parse(text)?;
    let mut line = SessionLine { time: parse_time(&record.time), ..SessionLine::default() };
    match &*record.kind {
        "session_meta" => line.notes = read_head(record.payload),
        "response_item" => judge_response(record.payload, &mut line),
        "event_msg" => match read_event(record.payload) {
            CodexEvent::Message(message) => {
                judge_message(session, &record.time, message, &mut line);
            }
            CodexEvent::Command(_) => (line.step, line.has_parts) = (LineStep::Piece, true),
            CodexEvent::End => line.step = LineStep::End,
            CodexEvent::Quiet => {}
            CodexEvent::Unknown(kind) => line.unknown = Some(kind),
        },
        "compacted" => line.step = LineStep::End,
        known if QUIET.contains(&known) => {}
        _ => line.unknown = Some(record.kind),
    }
    Ok(line)
}

/// Takes in a message that a person saw.
fn judge_message<'a>(
    session: &str,
    time: &str,
    message: SeenMessage<'a>,
    line: &mut SessionLine<'a>,
) {
    if message.text.trim().is_empty() && message.images.is_empty() {
        return;
    }
    let (step, role) =
        if message.is_prompt { (LineStep::Prompt, "user") } else { (LineStep::Answer, "agent") };
    line.step = step;
    line.has_parts = !message.images.is_empty();
    line.id = Cow::Owned(derive_message_id(session, time, role, &message.text));
    let seed = u64::from(message.is_prompt);
    let hash = XxHash3_64::oneshot_with_seed(seed, message.text.as_bytes());
    line.content = (hash >> 32) as u32;
    if message.is_prompt {
        line.notes.title = Some(TitleNote::Prompt(message.text));
    }
}

/// Returns the id of a message. It stays the same when the log is migrated or compressed.
pub fn derive_message_id(session: &str, time: &str, role: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    for part in [session, time, role, text] {
        hash.update(part);
        hash.update("\n");
    }
    let mut id = encode_hex(&hash.finalize());
    id.truncate(32);
    id
}

/// Reads the description of a session.
fn read_head(payload: &str) -> HeadNotes<'_> {
    let names = [
        "cwd",
        "cli_version",
        "git",
        "forked_from_id",
        "parent_thread_id",
        "source",
        "agent_nickname",
        "agent_role",
        "history_base",
        "forked_from_ordinal_exclusive",
    ];
    let Some([cwd, version, git, forked, parent, source, nickname, role, base, shared]) =
        pick_members(payload, names)
    else {
        return HeadNotes { is_first: true, ..HeadNotes::default() };
    };
    let git = as_object(git.as_ref()).and_then(|git| pick_members(git, ["branch", "commit_hash"]));
    let [branch, commit] = git.unwrap_or_default();
    let spawned = as_object(source.as_ref())
        .and_then(|source| pick_members(source, ["subagent"]))
        .map(|[agent]| agent);
    let spawn = spawned
        .as_ref()
        .and_then(|agent| as_object(agent.as_ref()))
        .and_then(|agent| pick_members(agent, ["thread_spawn"]))
        .and_then(|[spawn]| as_object(spawn.as_ref()));
    let names = ["parent_thread_id", "agent_nickname", "agent_role"];
    let [spawner, spawned_name, spawned_role] =
        spawn.and_then(|spawn| pick_members(spawn, names)).unwrap_or_default();
    let first = |values: &[&Option<JsonValue<'_>>]| {
        let texts = values.iter().filter_map(|value| as_text(value.as_ref()));
        texts.map(Cow::into_owned).find(|text| !text.trim().is_empty()).map(Cow::Owned)
    };
    let base = as_object(base.as_ref())
        .and_then(|base| pick_members(base, ["thread_id", "end_ordinal_exclusive"]))
        .and_then(|[log, end]| Some((as_text(log.as_ref())?, as_count(end.as_ref())?)));
    let is_sub_agent = spawned.flatten().is_some();
    let agent = first(&[&nickname, &spawned_name, &role, &spawned_role]);
    HeadNotes {
        cwd: as_text(cwd.as_ref()),
        version: as_text(version.as_ref()),
        git_branch: as_text(branch.as_ref()),
        git_commit: as_text(commit.as_ref()),
        origin: first(&[&forked, &parent, &spawner]),
        agent: agent.or(Some(Cow::Borrowed("subagent"))).filter(|_| is_sub_agent),
        repeats_origin: as_text(forked.as_ref()).is_some()
            && base.is_none()
            && as_count(shared.as_ref()).is_none(),
        base,
        is_first: true,
        ..HeadNotes::default()
    }
}

fn as_count(value: Option<&JsonValue<'_>>) -> Option<u64> {
    match value {
        Some(JsonValue::Int(text)) => text.parse().ok(),
        _ => None,
    }
}

/// Returns the number of a line, in logs that number them.
pub fn read_ordinal(text: &str) -> Option<u64> {
    let [ordinal] = pick_members(text, ["ordinal"])?;
    as_count(ordinal.as_ref())
}

/// Returns the thread that the first line of a log describes.
pub fn read_thread_id(text: &str) -> Option<String> {
    let record = CodexRecord::parse(text).ok()?;
    let [id] = pick_members(record.payload, ["id"])?;
    as_text(id.as_ref())
        .filter(|id| record.kind == "session_meta" && !id.is_empty())
        .map(Cow::into_owned)
}

/// Decides what an item of the model is.
fn judge_response<'a>(payload: &'a str, line: &mut SessionLine<'a>) {
    let names = ["type", "summary", "call_id"];
    let Some([kind, summary, call]) = pick_members(payload, names) else { return };
    let kind = as_text(kind.as_ref()).unwrap_or_default();
    // A copy may spell the rest of an item in another way.
    let known_by = match &*kind {
        "reasoning" => Some(read_summary(summary.as_ref())).filter(|text| !text.is_empty()),
        kind if is_call(kind) || is_output(kind) => {
            Some(as_text(call.as_ref()).unwrap_or_default().into_owned())
        }
        _ => None,
    };
    if let Some(text) = known_by {
        (line.step, line.has_parts) = (LineStep::Piece, true);
        let hash = XxHash3_64::oneshot([&*kind, "\n", &text].concat().as_bytes());
        line.content = ((hash >> 32) as u32).max(1);
    } else if kind != "reasoning" && !QUIET_RESPONSES.contains(&&*kind) {
        line.unknown = Some(kind.into_owned().into());
    }
}

fn is_call(kind: &str) -> bool {
    matches!(kind, "function_call" | "custom_tool_call" | "local_shell_call" | "web_search_call")
        || matches!(kind, "tool_search_call" | "image_generation_call")
}

fn is_output(kind: &str) -> bool {
    matches!(kind, "function_call_output" | "custom_tool_call_output" | "tool_search_output")
}

/// Returns the text of a thought.
fn read_summary(summary: Option<&JsonValue<'_>>) -> String {
    let mut texts = Vec::new();
    let _ = json::visit_elements(as_array(summary).unwrap_or("[]"), |part, _| {
        let text = pick_members(part, ["text"]).and_then(|[text]| as_text(text.as_ref()));
        texts.extend(text.map(Cow::into_owned));
    });
    texts.join("\n\n").trim().to_owned()
}

/// Adds the contents of a line to a message.
pub fn read_contents(text: &str, message: &mut MessageBuilder) {
    let Ok(record) = CodexRecord::parse(text) else { return };
    match &*record.kind {
        "response_item" => read_response(record.payload, message),
        "event_msg" => match read_event(record.payload) {
            CodexEvent::Message(seen) => {
                if !seen.text.trim().is_empty() {
                    message.add_text(seen.text.into_owned());
                }
                for image in seen.images.iter().filter_map(|url| read_data_url(url)) {
                    message.add_image(image);
                }
            }
            CodexEvent::Command(item) => read_command(item, message),
            CodexEvent::End | CodexEvent::Quiet | CodexEvent::Unknown(_) => {}
        },
        _ => {}
    }
}

fn read_response(payload: &str, message: &mut MessageBuilder) {
    let names =
        ["type", "summary", "call_id", "id", "name", "arguments", "input", "action", "output"];
    let Some([kind, summary, call, id, name, arguments, input, action, output]) =
        pick_members(payload, names)
    else {
        return;
    };
    let get = |value: &Option<JsonValue<'_>>| as_text(value.as_ref()).map(Cow::into_owned);
    let kind = get(&kind).unwrap_or_default();
    let call = get(&call).or_else(|| get(&id)).unwrap_or_default();
    if kind == "reasoning" {
        message.add_thinking(read_summary(summary.as_ref()));
    } else if is_call(&kind) {
        let name =
            get(&name).unwrap_or_else(|| kind.strip_suffix("_call").unwrap_or(&kind).to_owned());
        let given = get(&arguments).or_else(|| get(&input));
        let input = given.or_else(|| as_object(action.as_ref()).map(str::to_owned));
        message.add_call(call, name, input.unwrap_or_default());
    } else if is_output(&kind) {
        let (text, images) = read_output(output.as_ref());
        message.add_result(CallResult { id: call, output: Some(text), ..CallResult::default() });
        for image in images {
            message.add_image(image);
        }
    }
}

/// Returns the text and the images of a result.
fn read_output(output: Option<&JsonValue<'_>>) -> (String, Vec<SessionImage>) {
    if let Some(text) = as_text(output) {
        return (text.into_owned(), Vec::new());
    }
    if let Some(object) = as_object(output) {
        let content = pick_members(object, ["content"]).and_then(|[content]| content);
        return match content {
            Some(content) if as_object(Some(&content)).is_none() => read_output(Some(&content)),
            _ => (object.to_owned(), Vec::new()),
        };
    }
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    let _ = json::visit_elements(as_array(output).unwrap_or("[]"), |part, _| {
        let Some([text, url]) = pick_members(part, ["text", "image_url"]) else { return };
        texts.extend(as_text(text.as_ref()).map(Cow::into_owned));
        images.extend(as_text(url.as_ref()).and_then(|url| read_data_url(&url)));
    });
    (texts.join("\n"), images)
}

/// Adds the outcome of a command to its call.
fn read_command(item: &str, message: &mut MessageBuilder) {
    let Some([id, exit_code, duration]) = pick_members(item, ["id", "exit_code", "duration"])
    else {
        return;
    };
    let is_error = match exit_code {
        Some(JsonValue::Int(code)) => Some(code != "0"),
        _ => None,
    };
    let parts = as_object(duration.as_ref()).and_then(|text| pick_members(text, ["secs", "nanos"]));
    let duration_ms = parts.and_then(|[secs, nanos]| {
        let millis = as_count(nanos.as_ref())? / 1_000_000;
        Some(as_count(secs.as_ref())?.saturating_mul(1000).saturating_add(millis))
    });
    let id = as_text(id.as_ref()).unwrap_or_default().into_owned();
    message.add_result(CallResult { id, output: None, is_error, duration_ms });
}

/// Returns the image in a data URL.
fn read_data_url(url: &str) -> Option<SessionImage> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let media_type = head.strip_suffix(";base64")?.to_owned();
    let data = BASE64.decode(data).ok()?.into();
    Some(SessionImage { media_type, data })
}

/// Returns the model that works from this line on, and the tokens of the answer before it, if the line states them.
pub fn read_context(text: &str) -> (Option<String>, Option<TokenCount>) {
    // Few lines are of these types.
    if !(text.contains("turn_context") || text.contains("token_usage_record")) {
        return (None, None);
    }
    let Ok(record) = CodexRecord::parse(text) else { return (None, None) };
    let Some([model, usage]) = pick_members(record.payload, ["model", "usage"]) else {
        return (None, None);
    };
    match &*record.kind {
        "turn_context" => (as_text(model.as_ref()).map(Cow::into_owned), None),
        "token_usage_record" => {
            let names = ["input_tokens", "output_tokens"];
            let counts = as_object(usage.as_ref()).and_then(|usage| pick_members(usage, names));
            let tokens = counts.and_then(|[input, output]| {
                let (input, output) = (as_count(input.as_ref())?, as_count(output.as_ref())?);
                Some(TokenCount { input, output })
            });
            (None, tokens)
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THREAD: &str = "01a21513-c9d0-7083-aec5-c7538fdc5181";
    const TEXT: &str = "please run: echo hello codex";
    const ID: &str = "060849bb129c4f25642bdc6e99c3cb08";

    fn event(payload: &str) -> String {
        format!(
            r#"{{"timestamp":"2026-11-25T23:39:08.126Z","type":"event_msg","payload":{payload}}}"#
        )
    }

    #[test]
    fn an_id_is_the_same_in_both_forms() {
        let old = event(&format!(r#"{{"type":"user_message","message":"{TEXT}","images":[]}}"#));
        let new = event(&format!(
            r#"{{"type":"item_completed","item":{{"type":"UserMessage","id":"item-1","content":[{{"type":"text","text":"{TEXT}"}}]}}}}"#
        ));
        let [old, new] = [&old, &new].map(|text| parse(THREAD, text).unwrap());
        assert_eq!((&*old.id, old.step), (ID, LineStep::Prompt));
        assert_eq!(old, new);
    }

    #[test]
    fn what_the_model_saw_is_no_message() {
        for payload in [
            r##"{"type":"message","role":"user","content":[{"type":"input_text","text":"# AGENTS.md"}]}"##,
            r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Summary"}]}"#,
            r#"{"type":"reasoning","summary":[],"encrypted_content":"x"}"#,
        ] {
            let text = format!(r#"{{"timestamp":"","type":"response_item","payload":{payload}}}"#);
            let line = parse(THREAD, &text).unwrap();
            assert_eq!((line.step, line.unknown), (LineStep::Skipped, None), "{payload}");
        }
    }

    #[test]
    fn an_unknown_type_is_named() {
        let line = event(r#"{"type":"new_thing_2027"}"#);
        assert_eq!(parse(THREAD, &line).unwrap().unknown.as_deref(), Some("new_thing_2027"));
        let line = r#"{"timestamp":"","type":"new-thing","payload":{}}"#;
        assert_eq!(parse(THREAD, line).unwrap().unknown.as_deref(), Some("new-thing"));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in any::<String>(), json in "[\\[\\]{}\":,a0\\\\ typemsgpload]{0,60}") {
            for text in [&text, &json, &event(&json), &event(&text)] {
                let _ = parse(THREAD, text);
                let _ = read_context(text);
                read_contents(text, &mut MessageBuilder::default());
            }
            let _ = read_data_url(&text);
        }
    }
}
