//! The schema of messages and of `thread.json` for `msgfs check` (docs/formats/atsf.md, sections 3 and 4). Readers
//! require less, so an oddly shaped message is still shown.

use crate::model::sanitize_line;
use crate::store::text::json::{JsonValue, visit_members};
use crate::store::text::json_values::{as_array, as_object, as_text, pick_members, split_elements};

/// The required type of a member.
#[derive(Clone, Copy, Debug)]
enum AtsfSchemaType {
    Text,
    /// A string, or `null` for a missing value.
    TextOrNull,
    Number,
    WholeNumber,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// An object with these members; more are allowed.
    Object(&'static [AtsfSchemaField]),
    /// An array of such values.
    List(&'static AtsfSchemaType),
    /// A content block, whose members depend on its `type`.
    Block,
}

/// A member of an object.
#[derive(Clone, Copy, Debug)]
struct AtsfSchemaField {
    name: &'static str,
    value_type: AtsfSchemaType,
    is_required: bool,
}

const fn req(name: &'static str, is: AtsfSchemaType) -> AtsfSchemaField {
    AtsfSchemaField { name, value_type: is, is_required: true }
}

const fn opt(name: &'static str, is: AtsfSchemaType) -> AtsfSchemaField {
    AtsfSchemaField { name, value_type: is, is_required: false }
}

/// The schema of a message. The line parser itself checks the members that every reader needs.
const MESSAGE: &[AtsfSchemaField] = &[
    req("content", AtsfSchemaType::List(&AtsfSchemaType::Block)),
    opt("toolCalls", AtsfSchemaType::List(&AtsfSchemaType::Object(CALL))),
    opt("stopReason", AtsfSchemaType::Text),
    opt("model", AtsfSchemaType::Text),
    opt(
        "tokens",
        AtsfSchemaType::Object(&[
            opt("input", AtsfSchemaType::Number),
            opt("output", AtsfSchemaType::Number),
        ]),
    ),
];

const CALL: &[AtsfSchemaField] = &[
    req("toolCallId", AtsfSchemaType::Text),
    req("name", AtsfSchemaType::Text),
    req(
        "status",
        AtsfSchemaType::OneOf(&["pending", "running", "in_progress", "completed", "failed"]),
    ),
    opt("title", AtsfSchemaType::Text),
    opt("input", AtsfSchemaType::Text),
    opt("output", AtsfSchemaType::Text),
    opt("duration", AtsfSchemaType::Number),
    opt(
        "diff",
        AtsfSchemaType::Object(&[
            req("path", AtsfSchemaType::Text),
            opt("oldText", AtsfSchemaType::TextOrNull),
            opt("newText", AtsfSchemaType::TextOrNull),
        ]),
    ),
];

const FILE: &[AtsfSchemaField] =
    &[req("assetRef", AtsfSchemaType::Text), req("mimeType", AtsfSchemaType::Text)];

/// The members of each type of content block; other types may have any members.
const BLOCKS: &[(&str, &[AtsfSchemaField])] = &[
    ("text", &[req("text", AtsfSchemaType::Text)]),
    ("thinking", &[req("text", AtsfSchemaType::Text)]),
    ("image", FILE),
    ("audio", FILE),
    ("resource", &[req("uri", AtsfSchemaType::Text)]),
    ("resource_link", &[req("uri", AtsfSchemaType::Text), req("name", AtsfSchemaType::Text)]),
    ("tool_call_ref", &[req("toolCallId", AtsfSchemaType::Text)]),
];

/// The schema of `thread.json`. Its version, id and times have separate rules.
const THREAD: &[AtsfSchemaField] = &[
    req("title", AtsfSchemaType::Text),
    req("createdAt", AtsfSchemaType::Text),
    req("updatedAt", AtsfSchemaType::Text),
    req(
        "agent",
        AtsfSchemaType::Object(&[
            req("id", AtsfSchemaType::Text),
            req("name", AtsfSchemaType::Text),
            opt("version", AtsfSchemaType::Text),
            opt("protocol", AtsfSchemaType::Text),
            opt("protocolVersion", AtsfSchemaType::Number),
        ]),
    ),
    req(
        "context",
        AtsfSchemaType::Object(&[
            req("workingDir", AtsfSchemaType::Text),
            opt("relativeDir", AtsfSchemaType::Text),
            opt("gitBranch", AtsfSchemaType::Text),
            opt("gitCommit", AtsfSchemaType::Text),
            opt(
                "worktree",
                AtsfSchemaType::Object(&[
                    req("path", AtsfSchemaType::Text),
                    req("branch", AtsfSchemaType::Text),
                ]),
            ),
        ]),
    ),
    req(
        "stats",
        AtsfSchemaType::Object(&[
            req("messageCount", AtsfSchemaType::WholeNumber),
            req("userMessageCount", AtsfSchemaType::WholeNumber),
            req("agentMessageCount", AtsfSchemaType::WholeNumber),
            req("toolCallCount", AtsfSchemaType::WholeNumber),
        ]),
    ),
    opt("parentThreadId", AtsfSchemaType::Text),
    opt("metadata", AtsfSchemaType::Object(&[])),
];

/// Returns the violations in the shape of a message, each as a phrase.
pub(super) fn check_message(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    check_fields(line, MESSAGE, "", &mut out);
    out
}

/// Returns the violations in the shape of a `thread.json`, each as a phrase.
pub(super) fn check_thread(content: &str) -> Vec<String> {
    let mut out = Vec::new();
    check_fields(content, THREAD, "", &mut out);
    out
}

fn check_fields(content: &str, of: &'static [AtsfSchemaField], path: &str, out: &mut Vec<String>) {
    for field in of {
        let [value] = pick_members(content, [field.name]).unwrap_or_default();
        let path = format!("{path}{}", field.name);
        match value {
            Some(value) => check_value(&value, field.value_type, &path, out),
            None if field.is_required => {
                out.push(format!("it has no {} {path:?}", type_name(field.value_type)));
            }
            None => {}
        }
    }
}

fn check_value(value: &JsonValue<'_>, is: AtsfSchemaType, path: &str, out: &mut Vec<String>) {
    let some = Some(value);
    let fits = match is {
        AtsfSchemaType::Text => as_text(some).is_some(),
        AtsfSchemaType::TextOrNull => as_text(some).is_some() || matches!(value, JsonValue::Null),
        AtsfSchemaType::Number => matches!(value, JsonValue::Int(_) | JsonValue::Float(_)),
        AtsfSchemaType::WholeNumber => {
            matches!(value, JsonValue::Int(digits) | JsonValue::Float(digits) if !digits.starts_with('-'))
        }
        AtsfSchemaType::OneOf(words) => match as_text(some) {
            None => false,
            Some(word) => {
                if !words.contains(&&*word) {
                    let word = sanitize_line(&word).into_owned();
                    out.push(format!(
                        "{path:?} is {word:?}, which is none of {}",
                        words.join(", ")
                    ));
                }
                true
            }
        },
        AtsfSchemaType::Object(of) => match as_object(some) {
            None => false,
            Some(inner) => {
                check_fields(inner, of, &format!("{path}."), out);
                true
            }
        },
        AtsfSchemaType::List(of) => match as_array(some) {
            None => false,
            Some(list) => {
                for (n, item) in split_elements(list).into_iter().enumerate() {
                    check_item(item, *of, &format!("{path}[{n}]"), out);
                }
                true
            }
        },
        AtsfSchemaType::Block => true,
    };
    if !fits {
        out.push(format!("{path:?} is no {}", type_name(is)));
    }
}

/// Checks an element of an array, which must be an object everywhere in the format.
fn check_item(item: &str, is: AtsfSchemaType, path: &str, out: &mut Vec<String>) {
    if visit_members(item, |_, _| {}).is_err() {
        return out.push(format!("{path:?} is no object"));
    }
    let of = if let AtsfSchemaType::Object(of) = is {
        of
    } else {
        let [kind] = pick_members(item, ["type"]).unwrap_or_default();
        let Some(kind) = as_text(kind.as_ref()) else {
            return out.push(format!("it has no string \"{path}.type\""));
        };
        let known = BLOCKS.iter().find(|(name, _)| *name == kind);
        known.map_or(&[][..], |(_, of)| of)
    };
    check_fields(item, of, &format!("{path}."), out);
}

fn type_name(is: AtsfSchemaType) -> &'static str {
    match is {
        AtsfSchemaType::Text | AtsfSchemaType::TextOrNull | AtsfSchemaType::OneOf(_) => "string",
        AtsfSchemaType::Number => "number",
        AtsfSchemaType::WholeNumber => "number of 0 or more",
        AtsfSchemaType::Object(_) | AtsfSchemaType::Block => "object",
        AtsfSchemaType::List(_) => "array",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"id":"a","role":"agent","timestamp":"2025-02-14T10:30:00.000Z",
        "content":[{"type":"text","text":"x"},{"type":"thinking","text":"y"},
        {"type":"image","assetRef":"r","mimeType":"m"},{"type":"tool_call_ref","toolCallId":"c"},
        {"type":"new","z":null}],"toolCalls":[{"toolCallId":"c","name":"n","status":"completed",
        "title":"t","duration":1.5,"diff":{"path":"p","oldText":null,"newText":"q"},"kind":"edit"}],
        "stopReason":"end","model":"m","tokens":{"input":1,"output":2}}"#;

    #[test]
    fn each_member_of_a_message_has_its_shape() {
        assert_eq!(check_message(LINE), [""; 0]);
        for (from, to, told) in [
            (r#"{"type":"text","text":"x"}"#, "null", r#""content[0]" is no object"#),
            (r#"{"type":"text","text":"x"}"#, "{}", r#"it has no string "content[0].type""#),
            (r#""text","text":"x""#, r#""text""#, r#"it has no string "content[0].text""#),
            (r#""text":"x""#, r#""text":5"#, r#""content[0].text" is no string"#),
            (r#""text":"y""#, r#""thinking":"y""#, r#"it has no string "content[1].text""#),
            (r#""assetRef":"r","#, "", r#"it has no string "content[2].assetRef""#),
            (r#","mimeType":"m""#, "", r#"it has no string "content[2].mimeType""#),
            (r#","toolCallId":"c"}"#, "}", r#"it has no string "content[3].toolCallId""#),
            (
                r#""toolCallId":"c","name""#,
                r#""name""#,
                r#"it has no string "toolCalls[0].toolCallId""#,
            ),
            (r#""name":"n","#, "", r#"it has no string "toolCalls[0].name""#),
            (r#""status":"completed","#, "", r#"it has no string "toolCalls[0].status""#),
            (r#""title":"t""#, r#""title":null"#, r#""toolCalls[0].title" is no string"#),
            (r#""duration":1.5"#, r#""duration":"1""#, r#""toolCalls[0].duration" is no number"#),
            (r#""path":"p","#, "", r#"it has no string "toolCalls[0].diff.path""#),
            (r#""stopReason":"end""#, r#""stopReason":1"#, r#""stopReason" is no string"#),
            (r#""model":"m""#, r#""model":{}"#, r#""model" is no string"#),
            (r#""input":1"#, r#""input":"1""#, r#""tokens.input" is no number"#),
            (r#"{"input":1,"output":2}"#, "7", r#""tokens" is no object"#),
        ] {
            let broken = LINE.replacen(from, to, 1);
            assert_ne!(broken, LINE, "{from}");
            assert_eq!(check_message(&broken), [told], "{broken}");
        }
        let bad = check_message(&LINE.replace("completed", "done"));
        assert!(bad.len() == 1 && bad[0].contains("\"done\""), "{bad:?}");
        for calls in ["{}", "null", "\"x\""] {
            let line = format!(r#"{{"content":[],"toolCalls":{calls}}}"#);
            assert_eq!(check_message(&line), [r#""toolCalls" is no array"#]);
        }
        assert_eq!(
            check_message(r#"{"content":[],"toolCalls":[null]}"#),
            [r#""toolCalls[0]" is no object"#]
        );
    }

    #[test]
    fn each_member_of_a_thread_has_its_shape() {
        let text = r#"{"title":"t","createdAt":"x","updatedAt":"x","agent":{"id":"i","name":"n",
            "protocolVersion":1},"context":{"workingDir":"/p","worktree":{"path":"p","branch":"b"}},
            "stats":{"messageCount":0,"userMessageCount":0,"agentMessageCount":0,"toolCallCount":0},
            "metadata":{}}"#;
        assert_eq!(check_thread(text), [""; 0]);
        // Every spelling of a number is valid.
        assert_eq!(check_thread(&text.replace(":0", ":1.2e1")), [""; 0]);
        for (from, to, told) in [
            (r#""title":"t","#, "", r#"it has no string "title""#),
            (r#""title":"t""#, r#""title":7"#, r#""title" is no string"#),
            (r#""id":"i","#, "", r#"it has no string "agent.id""#),
            (
                r#""protocolVersion":1"#,
                r#""protocolVersion":"1""#,
                r#""agent.protocolVersion" is no number"#,
            ),
            (r#""workingDir":"/p","#, "", r#"it has no string "context.workingDir""#),
            (r#""path":"p","#, "", r#"it has no string "context.worktree.path""#),
            (
                r#""messageCount":0"#,
                r#""messageCount":-1"#,
                r#""stats.messageCount" is no number of 0 or more"#,
            ),
            (
                r#""toolCallCount":0"#,
                r#""toolCallCount":"0""#,
                r#""stats.toolCallCount" is no number of 0 or more"#,
            ),
            (r#""metadata":{}"#, r#""metadata":[]"#, r#""metadata" is no object"#),
        ] {
            let broken = text.replacen(from, to, 1);
            assert_ne!(broken, text, "{from}");
            assert_eq!(check_thread(&broken), [told], "{broken}");
        }
    }
}
