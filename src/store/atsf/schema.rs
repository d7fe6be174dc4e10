//! The shape of messages and of `thread.json`, for `msgfs check` (docs/formats/atsf.md, sections 3 and
//! 4). Reading asks for less: what is only oddly shaped is shown all the same.

use super::values::{array, elements, object, pick, text};
use crate::model::one_line;
use crate::store::text::json::{Value, members};

/// What a member must be.
#[derive(Clone, Copy, Debug)]
enum Is {
    Text,
    /// A string, or `null` for what is not there.
    TextOrNull,
    Number,
    Whole,
    /// One of these words.
    Word(&'static [&'static str]),
    /// An object of these members; further ones are allowed.
    Object(&'static [Field]),
    /// An array of such values.
    List(&'static Is),
    /// A content block, whose members depend on its `type`.
    Block,
}

/// A member.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    is: Is,
    needed: bool,
}

const fn req(name: &'static str, is: Is) -> Field {
    Field { name, is, needed: true }
}

const fn opt(name: &'static str, is: Is) -> Field {
    Field { name, is, needed: false }
}

/// A message. What no reader can do without is asked for when the line is read.
const MESSAGE: &[Field] = &[
    req("content", Is::List(&Is::Block)),
    opt("toolCalls", Is::List(&Is::Object(CALL))),
    opt("stopReason", Is::Text),
    opt("model", Is::Text),
    opt("tokens", Is::Object(&[opt("input", Is::Number), opt("output", Is::Number)])),
];

const CALL: &[Field] = &[
    req("toolCallId", Is::Text),
    req("name", Is::Text),
    req("status", Is::Word(&["pending", "running", "in_progress", "completed", "failed"])),
    opt("title", Is::Text),
    opt("input", Is::Text),
    opt("output", Is::Text),
    opt("duration", Is::Number),
    opt(
        "diff",
        Is::Object(&[
            req("path", Is::Text),
            opt("oldText", Is::TextOrNull),
            opt("newText", Is::TextOrNull),
        ]),
    ),
];

const FILE: &[Field] = &[req("assetRef", Is::Text), req("mimeType", Is::Text)];

/// The members of each type of content block; others may have any.
const BLOCKS: &[(&str, &[Field])] = &[
    ("text", &[req("text", Is::Text)]),
    ("thinking", &[req("text", Is::Text)]),
    ("image", FILE),
    ("audio", FILE),
    ("resource", &[req("uri", Is::Text)]),
    ("resource_link", &[req("uri", Is::Text), req("name", Is::Text)]),
    ("tool_call_ref", &[req("toolCallId", Is::Text)]),
];

/// `thread.json`. Its version, id and times have rules of their own.
const THREAD: &[Field] = &[
    req("title", Is::Text),
    req("createdAt", Is::Text),
    req("updatedAt", Is::Text),
    req(
        "agent",
        Is::Object(&[
            req("id", Is::Text),
            req("name", Is::Text),
            opt("version", Is::Text),
            opt("protocol", Is::Text),
            opt("protocolVersion", Is::Number),
        ]),
    ),
    req(
        "context",
        Is::Object(&[
            req("workingDir", Is::Text),
            opt("relativeDir", Is::Text),
            opt("gitBranch", Is::Text),
            opt("gitCommit", Is::Text),
            opt("worktree", Is::Object(&[req("path", Is::Text), req("branch", Is::Text)])),
        ]),
    ),
    req(
        "stats",
        Is::Object(&[
            req("messageCount", Is::Whole),
            req("userMessageCount", Is::Whole),
            req("agentMessageCount", Is::Whole),
            req("toolCallCount", Is::Whole),
        ]),
    ),
    opt("parentThreadId", Is::Text),
    opt("metadata", Is::Object(&[])),
];

/// What is wrong with the shape of a message, a phrase each.
pub(super) fn message(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    fields(line, MESSAGE, "", &mut out);
    out
}

/// The same of a `thread.json`.
pub(super) fn thread(content: &str) -> Vec<String> {
    let mut out = Vec::new();
    fields(content, THREAD, "", &mut out);
    out
}

fn fields(content: &str, of: &'static [Field], path: &str, out: &mut Vec<String>) {
    for field in of {
        let [value] = pick(content, [field.name]).unwrap_or_default();
        let path = format!("{path}{}", field.name);
        match value {
            Some(value) => check(&value, field.is, &path, out),
            None if field.needed => out.push(format!("it has no {} {path:?}", kind(field.is))),
            None => {}
        }
    }
}

fn check(value: &Value<'_>, is: Is, path: &str, out: &mut Vec<String>) {
    let some = Some(value);
    let fits = match is {
        Is::Text => text(some).is_some(),
        Is::TextOrNull => text(some).is_some() || matches!(value, Value::Null),
        Is::Number => matches!(value, Value::Int(_) | Value::Float(_)),
        Is::Whole => {
            matches!(value, Value::Int(digits) | Value::Float(digits) if !digits.starts_with('-'))
        }
        Is::Word(words) => match text(some) {
            None => false,
            Some(word) => {
                if !words.contains(&&*word) {
                    let word = one_line(&word).into_owned();
                    out.push(format!(
                        "{path:?} is {word:?}, which is none of {}",
                        words.join(", ")
                    ));
                }
                true
            }
        },
        Is::Object(of) => match object(some) {
            None => false,
            Some(inner) => {
                fields(inner, of, &format!("{path}."), out);
                true
            }
        },
        Is::List(of) => match array(some) {
            None => false,
            Some(list) => {
                for (n, item) in elements(list).into_iter().enumerate() {
                    item_of(item, *of, &format!("{path}[{n}]"), out);
                }
                true
            }
        },
        Is::Block => true,
    };
    if !fits {
        out.push(format!("{path:?} is no {}", kind(is)));
    }
}

/// An element of an array, which is an object in all of the format.
fn item_of(item: &str, is: Is, path: &str, out: &mut Vec<String>) {
    if members(item, |_, _| {}).is_err() {
        return out.push(format!("{path:?} is no object"));
    }
    let of = if let Is::Object(of) = is {
        of
    } else {
        let [kind] = pick(item, ["type"]).unwrap_or_default();
        let Some(kind) = text(kind.as_ref()) else {
            return out.push(format!("it has no string \"{path}.type\""));
        };
        let known = BLOCKS.iter().find(|(name, _)| *name == kind);
        known.map_or(&[][..], |(_, of)| of)
    };
    fields(item, of, &format!("{path}."), out);
}

fn kind(is: Is) -> &'static str {
    match is {
        Is::Text | Is::TextOrNull | Is::Word(_) => "string",
        Is::Number => "number",
        Is::Whole => "number of 0 or more",
        Is::Object(_) | Is::Block => "object",
        Is::List(_) => "array",
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
        assert_eq!(message(LINE), [""; 0]);
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
            assert_eq!(message(&broken), [told], "{broken}");
        }
        let bad = message(&LINE.replace("completed", "done"));
        assert!(bad.len() == 1 && bad[0].contains("\"done\""), "{bad:?}");
        for calls in ["{}", "null", "\"x\""] {
            let line = format!(r#"{{"content":[],"toolCalls":{calls}}}"#);
            assert_eq!(message(&line), [r#""toolCalls" is no array"#]);
        }
        assert_eq!(
            message(r#"{"content":[],"toolCalls":[null]}"#),
            [r#""toolCalls[0]" is no object"#]
        );
    }

    #[test]
    fn each_member_of_a_thread_has_its_shape() {
        let text = r#"{"title":"t","createdAt":"x","updatedAt":"x","agent":{"id":"i","name":"n",
            "protocolVersion":1},"context":{"workingDir":"/p","worktree":{"path":"p","branch":"b"}},
            "stats":{"messageCount":0,"userMessageCount":0,"agentMessageCount":0,"toolCallCount":0},
            "metadata":{}}"#;
        assert_eq!(thread(text), [""; 0]);
        // Any spelling of a number is one.
        assert_eq!(thread(&text.replace(":0", ":1.2e1")), [""; 0]);
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
            assert_eq!(thread(&broken), [told], "{broken}");
        }
    }
}
