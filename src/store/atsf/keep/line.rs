//! A message of a session as a line of a log, and back.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::super::line::AtsfLine;
use super::head::KeptSource;
use crate::model::{Timestamp, encode_hex};
use crate::store::Kind;
use crate::store::sessions::message::{
    CallStatus, SessionBlock, SessionImage, SessionMessage, SessionResultFile, SessionRole,
    TokenCount, ToolCall,
};
use crate::store::sessions::render::image_name;
use crate::store::text::json::JsonValue;
use crate::store::text::json_values::{as_object, as_text, pick_members, split_elements};

/// A line of a kept thread.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptLine<'a> {
    id: &'a str,
    role: &'static str,
    timestamp: String,
    content: Vec<KeptBlock<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<KeptCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<KeptTokens>,
    /// This and the next two are members of msgfs's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_reply_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_time: Option<String>,
}

/// The folder in the URI of a file with a whole result.
const RESULTS: &str = "tool-results/";

/// A block of content.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum KeptBlock<'a> {
    Text { text: &'a str },
    Thinking { text: &'a str },
    Image { asset_ref: String, mime_type: &'a str },
    ToolCallRef { tool_call_id: &'a str },
    Resource { uri: String, asset_ref: String, mime_type: &'static str },
}

/// A tool call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptCall<'a> {
    tool_call_id: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    input: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a str>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<u64>,
}

#[derive(Debug, Serialize)]
struct KeptTokens {
    input: u64,
    output: u64,
}

/// The roles of the format for the authors of a session.
const ROLES: [(SessionRole, &str); 3] =
    [(SessionRole::User, "user"), (SessionRole::Agent, "agent"), (SessionRole::System, "system")];

/// The words of the format for the states of a call.
const STATES: [(CallStatus, &str); 3] = [
    (CallStatus::Completed, "completed"),
    (CallStatus::Failed, "failed"),
    (CallStatus::Pending, "pending"),
];

/// Returns the word for a value in a table that has every value.
fn find_name<T: PartialEq + Copy>(table: &[(T, &'static str)], value: T) -> &'static str {
    let Some((_, name)) = table.iter().find(|(known, _)| *known == value) else {
        panic!("the table of the words of a format lacks a value")
    };
    name
}

fn find_value<T: Copy>(table: &[(T, &'static str)], name: &str) -> Option<T> {
    table.iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
}

/// Returns the id of a message in the log. The 32 hex digits of a Codex message get the form of a UUID.
pub(super) fn kept_id(kind: Kind, id: &str) -> String {
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let parts: Option<Vec<&str>> = parts.iter().map(|(from, to)| id.get(*from..*to)).collect();
    let is_hash = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    match parts.filter(|_| is_hash && kind == Kind::Codex) {
        Some(parts) => parts.join("-"),
        None => id.to_owned(),
    }
}

/// Returns the id that a message of this kind had in its session.
pub(in crate::store::atsf) fn session_id(kind: Kind, kept: &str) -> String {
    let plain = kept.replace('-', "");
    if kind == Kind::Codex && kept_id(kind, &plain) == kept { plain } else { kept.to_owned() }
}

/// Returns the author of a message by its role.
pub(in crate::store::atsf) fn author(role: &str) -> SessionRole {
    find_value(&ROLES, role).unwrap_or(SessionRole::Agent)
}

/// Returns the files in `assets/` to which the line of a message refers, with their names.
pub fn list_assets(message: &SessionMessage) -> Vec<(String, &[u8])> {
    let images = message.blocks.iter().filter_map(|block| match block {
        SessionBlock::Image(image) => Some((image_name(image), &*image.data)),
        SessionBlock::Text(_) | SessionBlock::Thinking(_) | SessionBlock::Call(_) => None,
    });
    let results = message.result_files.iter().map(|file| (result_asset_name(file), &*file.data));
    images.chain(results).collect()
}

fn result_asset_name(file: &SessionResultFile) -> String {
    let digest = encode_hex(&Sha256::digest(&file.data));
    format!("sha256-{}.txt", digest.get(..16).unwrap_or(&digest))
}

/// Returns a message as a line without its newline.
pub fn render(kind: Kind, message: &SessionMessage) -> String {
    let id = &kept_id(kind, &message.id);
    let mut calls = Vec::new();
    let mut content: Vec<KeptBlock<'_>> = Vec::new();
    content.extend(message.blocks.iter().map(|block| match block {
        SessionBlock::Text(text) => KeptBlock::Text { text },
        SessionBlock::Thinking(text) => KeptBlock::Thinking { text },
        SessionBlock::Image(image) => {
            KeptBlock::Image { asset_ref: image_name(image), mime_type: &image.media_type }
        }
        SessionBlock::Call(call) => {
            calls.push(KeptCall {
                tool_call_id: &call.id,
                name: &call.name,
                input: &call.input,
                output: call.output.as_deref(),
                status: find_name(&STATES, call.status),
                duration: call.duration_ms,
            });
            KeptBlock::ToolCallRef { tool_call_id: &call.id }
        }
    }));
    content.extend(message.result_files.iter().map(|file| KeptBlock::Resource {
        uri: format!("{RESULTS}{}", file.name),
        asset_ref: result_asset_name(file),
        mime_type: "text/plain",
    }));
    let line = KeptLine {
        id,
        role: find_name(&ROLES, message.role),
        timestamp: message.time.rfc3339(),
        content,
        tool_calls: calls,
        stop_reason: message.stop_reason.as_deref(),
        model: message.model.as_deref(),
        tokens: message.tokens.map(|t| KeptTokens { input: t.input, output: t.output }),
        in_reply_to: message.in_reply_to.as_deref().map(|id| kept_id(kind, id)),
        sub_agent: message.agent.as_deref(),
        name_time: message.name_time.map(Timestamp::rfc3339),
    };
    match serde_json::to_string(&line) {
        Ok(text) => text,
        Err(e) => panic!("texts and numbers are always JSON: {e}"),
    }
}

/// Returns the type of the sub-agent of a line: its own, or that of the thread.
pub(in crate::store::atsf) fn sub_agent(text: &str, source: &KeptSource) -> Option<String> {
    let own = pick_members(text, ["subAgent"])
        .and_then(|[own]| Some(as_text(own.as_ref())?.into_owned()));
    own.or_else(|| source.agent.clone())
}

/// Returns the id that a line of a kept thread answers, as it is in the session.
pub(in crate::store::atsf) fn answered_id(kind: Kind, text: &str) -> Option<String> {
    let [answered] = pick_members(text, ["inReplyTo"])?;
    Some(session_id(kind, &as_text(answered.as_ref())?))
}

/// A function that returns the bytes of a file by its name in `assets/`.
pub type AssetReader<'a> = dyn Fn(&str) -> Option<Vec<u8>> + 'a;

/// Returns the message on a line of a kept thread. Blocks that no keep writes are left out.
pub fn read_message(
    line: &AtsfLine<'_>,
    text: &str,
    source: &KeptSource,
    asset: &AssetReader<'_>,
) -> SessionMessage {
    let [stop, model, tokens] =
        pick_members(text, ["stopReason", "model", "tokens"]).unwrap_or_default();
    let owned = |value: Option<&JsonValue<'_>>| as_text(value).map(std::borrow::Cow::into_owned);
    let tokens = as_object(tokens.as_ref()).map(|tokens| {
        let [input, output] = pick_members(tokens, ["input", "output"]).unwrap_or_default();
        let number = |value| as_number(value).unwrap_or_default();
        TokenCount { input: number(input.as_ref()), output: number(output.as_ref()) }
    });
    let calls = line.calls.map(split_elements).unwrap_or_default();
    let calls: Vec<ToolCall> = calls.into_iter().filter_map(read_call).collect();
    let mut numbers = number_calls(&calls);
    let mut calls: Vec<Option<ToolCall>> = calls.into_iter().map(Some).collect();
    // Several blocks may refer to one file.
    let mut files: HashMap<String, Option<Arc<[u8]>>> = HashMap::new();
    let mut read_once = |name: String| {
        files.entry(name).or_insert_with_key(|name| asset(name).map(Arc::from)).clone()
    };
    let (mut blocks, mut result_files) = (Vec::new(), Vec::new());
    for block in split_elements(line.content) {
        let names = ["type", "text", "assetRef", "mimeType", "toolCallId", "uri"];
        let [kind, text, file, mime, call, uri] = pick_members(block, names).unwrap_or_default();
        let get = |value| owned(value).unwrap_or_default();
        match &*as_text(kind.as_ref()).unwrap_or_default() {
            "text" => blocks.push(SessionBlock::Text(get(text.as_ref()))),
            "thinking" => blocks.push(SessionBlock::Thinking(get(text.as_ref()))),
            "image" => {
                let data = read_once(get(file.as_ref())).unwrap_or_default();
                let media_type = get(mime.as_ref());
                blocks.push(SessionBlock::Image(SessionImage { media_type, data }));
            }
            "tool_call_ref" => {
                let number = numbers.get_mut(&get(call.as_ref())).and_then(Vec::pop);
                let marked = number.and_then(|n| calls.get_mut(n)?.take());
                blocks.extend(marked.map(SessionBlock::Call));
            }
            "resource" => {
                let uri = get(uri.as_ref());
                if let Some(name) = uri.strip_prefix(RESULTS)
                    && let Some(data) = read_once(get(file.as_ref()))
                {
                    result_files.push(SessionResultFile { name: name.to_owned(), data });
                }
            }
            _ => {}
        }
    }
    // Another program may drop the marks of calls.
    blocks.extend(calls.into_iter().flatten().map(SessionBlock::Call));
    SessionMessage {
        id: session_id(source.kind, &line.id),
        role: author(&line.role),
        agent: sub_agent(text, source),
        time: line.parse_timestamp().time().unwrap_or_default(),
        blocks,
        stop_reason: owned(stop.as_ref()),
        model: owned(model.as_ref()),
        tokens,
        in_reply_to: answered_id(source.kind, text),
        name_time: line.name_time,
        result_files,
    }
}

/// Returns the numbers of the calls by their ids. Several calls may have one id; the number of the first one is last.
fn number_calls(calls: &[ToolCall]) -> HashMap<String, Vec<usize>> {
    let mut numbers: HashMap<String, Vec<usize>> = HashMap::new();
    for (n, call) in calls.iter().enumerate().rev() {
        numbers.entry(call.id.clone()).or_default().push(n);
    }
    numbers
}

/// Returns a tool call; `None` if the text is no object.
fn read_call(call: &str) -> Option<ToolCall> {
    let names = ["toolCallId", "name", "input", "output", "status", "duration"];
    let [id, name, input, output, status, duration] = pick_members(call, names)?;
    let text = |value: Option<&JsonValue<'_>>| as_text(value).map(std::borrow::Cow::into_owned);
    let status = text(status.as_ref()).and_then(|status| find_value(&STATES, &status));
    Some(ToolCall {
        id: text(id.as_ref()).unwrap_or_default(),
        name: text(name.as_ref()).unwrap_or_default(),
        input: text(input.as_ref()).unwrap_or_default(),
        output: text(output.as_ref()),
        status: status.unwrap_or(CallStatus::Pending),
        duration_ms: as_number(duration.as_ref()),
    })
}

fn as_number(value: Option<&JsonValue<'_>>) -> Option<u64> {
    match value {
        Some(JsonValue::Int(digits)) => digits.parse().ok(),
        _ => None,
    }
}
