//! One message file: a header of JSON and a body (docs/formats/amq.md, sections 3 and 6).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::go_time;
use crate::model::{self, SignatureClaim, Timestamp, escape_json, sanitize_line};
use crate::store::Signer;
use crate::store::text::canonical::signed_object_bytes;
use crate::store::text::json::{self, JsonEvent, JsonValue};
use crate::store::text::signature;

/// The size of the largest message file, in bytes.
pub const FILE_BYTES: usize = 10 << 20;
/// The words for a header's priority.
pub const PRIORITIES: &str = "urgent normal low";
/// The words for a header's kind.
pub const KINDS: &str =
    "brainstorm review_request review_response question answer decision status todo";
/// The first line of the bytes that a signature covers.
const SIGNATURE_CONTEXT: &str = "amq-sig-v1\n";
/// The deepest nesting of a header.
const DEPTH: usize = 10_000;
const OPEN: &str = "---json";
const CLOSE: &str = "---";

/// The reason why a file is no message, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmqParseError {
    /// The file ends before its header does.
    #[error("the header does not end")]
    Incomplete,
    /// The file is no message.
    #[error("{0}")]
    Malformed(String),
}

fn parse_error(why: impl Into<String>) -> AmqParseError {
    AmqParseError::Malformed(why.into())
}

/// A message as its file states it.
#[derive(Clone, Debug, PartialEq)]
pub struct AmqMessage {
    /// The shown message.
    pub message: model::Message,
    /// Ids of the messages that it answers, the nearest last.
    pub refs: Vec<String>,
    /// One of [`KINDS`].
    pub kind: Option<String>,
    /// The attachments: `labels.txt` has the sender's labels, one a line. `context.json` has the topic for programs, as
    /// the object was written, but without characters that a terminal obeys.
    pub parts: Vec<(&'static str, String)>,
    /// True if answers go to another queue.
    pub is_routed: bool,
    /// The idempotency key, which only msgfs writes.
    pub idempotency_key: Option<String>,
    /// The signature, if it carries one.
    pub claim: Option<SignatureClaim>,
}

/// The members of a header in their order, under the names that the format's program gives them.
struct AmqHeaderMembers<'a>(Vec<(String, JsonValue<'a>)>);

impl<'a> AmqHeaderMembers<'a> {
    /// Parses a header as the format's program does, which is written in Go: the case of a name does not matter, and
    /// each member must have its type, even if a later member replaces it.
    fn parse_header(header: &'a str) -> Result<Self, AmqParseError> {
        let (mut members, mut fault) = (Vec::new(), None);
        json::visit_members(header, |key, value| {
            // A null member leaves the value of an earlier one.
            if !matches!(value, JsonValue::Null) {
                let name = fold_key(&key.to_text());
                fault = fault.take().or_else(|| find_type_error(&name, &value));
                members.push((name, value));
            }
        })
        .map_err(|e| parse_error(format!("the header is {e}")))?;
        match fault {
            Some(fault) => Err(fault),
            None if is_too_deep(header) => {
                Err(parse_error("the header is nested more than 10000 deep"))
            }
            None => Ok(Self(members)),
        }
    }

    /// Returns the values of the members of this name.
    fn member_values(&self, name: &str) -> impl DoubleEndedIterator<Item = &JsonValue<'a>> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value)
    }

    fn member_text(&self, name: &str) -> Option<String> {
        let last = self.member_values(name).next_back().and_then(value_text)?;
        Some(last.into_owned()).filter(|text| !text.is_empty())
    }

    /// Returns the last list. Its nulls keep the elements of an earlier list.
    fn member_list(&self, name: &str) -> Vec<String> {
        let (mut texts, mut len): (Vec<String>, usize) = (Vec::new(), 0);
        for list in self.member_values(name).filter_map(value_list) {
            len = list.len();
            texts.resize(texts.len().max(len), String::new());
            for (place, text) in texts.iter_mut().zip(list) {
                if let Some(text) = text {
                    *place = text.into_owned();
                }
            }
        }
        texts.truncate(len);
        texts
    }

    fn required_text(&self, name: &str) -> Result<String, AmqParseError> {
        self.member_text(name).ok_or_else(|| parse_error(format!("there is no {name}")))
    }

    fn collect_parts(&self) -> Vec<(&'static str, String)> {
        let labels = self.member_list("labels");
        let labels = labels.iter().filter(|label| !label.is_empty());
        let labels = labels.flat_map(|label| [sanitize_line(label), "\n".into()]).collect();
        let context = match self.member_values("context").next_back() {
            // Tabs and returns stand only between values.
            Some(JsonValue::Compound(text)) => escape_json(&text.replace(['\t', '\r'], " ")) + "\n",
            _ => String::new(),
        };
        let parts = [("labels.txt", labels), ("context.json", context)];
        parts.into_iter().filter(|(_, text)| !text.is_empty()).collect()
    }
}

/// Returns the lower-case name for a key. Go accepts two more letters for `s` and `k`.
fn fold_key(key: &str) -> String {
    let letter = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(letter).collect()
}

/// Returns an error if a member has a wrong type.
fn find_type_error(name: &str, value: &JsonValue<'_>) -> Option<AmqParseError> {
    let kind = match name {
        "schema" => match value {
            JsonValue::Int(digits) if digits.parse::<i64>().is_ok() => return None,
            _ => "whole number of 64 bits",
        },
        "id" | "from" | "thread" | "subject" | "created" | "priority" | "kind" | "reply_to"
        | "reply_project" | "from_project" => match value_text(value) {
            Some(_) => return None,
            None => "text",
        },
        "to" | "refs" | "labels" => match value_list(value) {
            Some(_) => return None,
            None => "list of texts",
        },
        "context" => match value {
            JsonValue::Compound(text) if text.starts_with('{') => {
                if !has_huge_number(text) {
                    return None;
                }
                return Some(parse_error("context has a number that is too large"));
            }
            _ => return Some(parse_error("context is not an object")),
        },
        _ => return None,
    };
    Some(parse_error(format!("{name} is not a {kind}")))
}

fn value_text<'a>(value: &JsonValue<'a>) -> Option<Cow<'a, str>> {
    match value {
        JsonValue::String(text) => Some(text.to_text()),
        _ => None,
    }
}

/// Returns the elements of a list of texts and nulls.
fn value_list<'a>(value: &JsonValue<'a>) -> Option<Vec<Option<Cow<'a, str>>>> {
    let JsonValue::Compound(list) = value else { return None };
    let (mut depth, mut list_of_texts, mut out) = (0u32, true, Vec::new());
    json::walk_value(list, |event| match event {
        JsonEvent::ArrayStart if depth == 0 => depth = 1,
        JsonEvent::ArrayEnd if depth == 1 => depth = 0,
        JsonEvent::Scalar(JsonValue::Null) => out.push(None),
        JsonEvent::Scalar(JsonValue::String(text)) => out.push(Some(text.to_text())),
        _ => list_of_texts = false,
    })
    .ok()?;
    list_of_texts.then_some(out)
}

/// Returns true if a number exceeds a float of 64 bits.
fn has_huge_number(text: &str) -> bool {
    let mut huge = false;
    let walked = json::walk_value(text, |event| {
        if let JsonEvent::Scalar(JsonValue::Int(digits) | JsonValue::Float(digits)) = event {
            huge |= digits.parse::<f64>().is_ok_and(f64::is_infinite);
        }
    });
    huge || walked.is_err()
}

/// Returns true if the nesting is deeper than the format's program accepts.
fn is_too_deep(header: &str) -> bool {
    let (mut depth, mut deepest) = (0usize, 0);
    // Each level takes two characters.
    if header.len() > 2 * DEPTH {
        let _ = json::walk_value(header, |event| match event {
            JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth = depth.saturating_sub(1),
            _ => {}
        });
    }
    deepest > DEPTH
}

/// Checks that a word, if present, is one of `words`.
pub(super) fn check_word(name: &str, word: Option<&str>, words: &str) -> Result<(), String> {
    match word {
        Some(word) if words.split(' ').all(|known| known != word) => {
            Err(format!("{name} is {word:?}, which is none of {}", words.replace(' ', ", ")))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes that a signature covers.
fn signed_bytes(header: &str, body: &[u8]) -> Option<Vec<u8>> {
    let header = signed_object_bytes(SIGNATURE_CONTEXT, header, "sig")?;
    Some([header.as_slice(), b"\n", body].concat())
}

/// Returns true if a text can be a handle.
pub fn is_handle(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
    !text.is_empty() && text.len() <= 200 && !text.starts_with('-') && text.bytes().all(letter)
}

/// Returns true if a text can be an id: a file name before `.md`. White space around it does not count.
pub fn is_id(text: &str) -> bool {
    let bad = text.contains(['/', '\\', '\0']);
    let name = text.trim();
    let odd = name.is_empty() || name.starts_with('.') || name.strip_suffix(".md").is_some();
    text.len() <= 250 && !odd && !bad
}

/// Returns the first line without its line ends, and the rest.
fn split_first_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (line, rest) = bytes.split_at_checked(memchr::memchr(b'\n', bytes)? + 1)?;
    let end = line.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |last| last + 1);
    Some((line.get(..end)?, rest))
}

/// Returns the text after the line that ends the header. Blanks around that line and empty lines before it do not
/// count.
fn find_body(mut bytes: &[u8]) -> Result<&[u8], AmqParseError> {
    loop {
        let (line, rest, is_whole) = match split_first_line(bytes) {
            Some((line, rest)) => (line, rest, true),
            None => (bytes, &[][..], false),
        };
        let line = String::from_utf8_lossy(line);
        match line.trim() {
            CLOSE if is_whole => return Ok(rest),
            "" if is_whole => bytes = rest,
            begun if !is_whole && CLOSE.starts_with(begun) => {
                return Err(AmqParseError::Incomplete);
            }
            _ => return Err(parse_error("after the header there is no line ---")),
        }
    }
}

/// Splits a file into its header and its body.
fn split_message(bytes: &[u8]) -> Result<(Cow<'_, str>, &[u8]), AmqParseError> {
    let rest = match split_first_line(bytes) {
        Some((line, rest)) if line == OPEN.as_bytes() => rest,
        None if [OPEN, "\r"].concat().as_bytes().starts_with(bytes) => {
            return Err(AmqParseError::Incomplete);
        }
        _ => return Err(parse_error("it does not begin with ---json")),
    };
    let mut values =
        serde_json::Deserializer::from_slice(rest).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        None => return Err(AmqParseError::Incomplete),
        Some(Err(e)) if e.is_eof() => return Err(AmqParseError::Incomplete),
        Some(Err(e)) => return Err(parse_error(format!("the header is not JSON: {e}"))),
        Some(Ok(_)) => {}
    }
    let (header, after) = rest.split_at_checked(values.byte_offset()).unwrap_or_default();
    Ok((String::from_utf8_lossy(header), find_body(after)?))
}

/// Parses a message file.
///
/// # Errors
/// If the format's program would make it a dead letter, or if it is too large.
pub fn parse(bytes: &[u8]) -> Result<AmqMessage, AmqParseError> {
    if bytes.len() > FILE_BYTES {
        return Err(parse_error("it is larger than 10 MiB"));
    }
    let (header, body) = split_message(bytes)?;
    let members = AmqHeaderMembers::parse_header(&header)?;
    let (id, from) = (members.required_text("id")?, members.required_text("from")?);
    let (to, thread) = (members.member_list("to"), members.required_text("thread")?);
    let created = members.required_text("created")?;
    if !is_id(&id) {
        return Err(parse_error(format!("the id {id:?} cannot be the name of a file")));
    }
    if let Some(other) = to.iter().chain([&from]).find(|handle| !is_handle(handle)) {
        return Err(parse_error(format!("{other:?} is not a handle")));
    }
    if to.is_empty() {
        return Err(parse_error("to names nobody"));
    }
    if thread.trim() != thread {
        return Err(parse_error("thread begins or ends with white space"));
    }
    let mut refs = members.member_list("refs");
    refs.retain(|id| !id.is_empty());
    let (kind, priority) = (members.member_text("kind"), members.member_text("priority"));
    check_word("kind", kind.as_deref(), KINDS).map_err(AmqParseError::Malformed)?;
    check_word("priority", priority.as_deref(), PRIORITIES).map_err(AmqParseError::Malformed)?;
    let extra = [("Type", kind.clone()), ("Priority", priority)];
    let shown = model::Message {
        time: go_time::parse(&created)
            .ok_or_else(|| parse_error(format!("created is {created:?}, which is no time")))?,
        subject: members.member_text("subject"),
        extra: extra.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        in_reply_to: refs.last().cloned(),
        body: String::from_utf8_lossy(body).replace("\r\n", "\n"),
        from: Some(from),
        thread: Some(thread),
        id,
        to,
        ..model::Message::default()
    };
    let routes = ["reply_to", "reply_project", "from_project"];
    Ok(AmqMessage {
        parts: members.collect_parts(),
        is_routed: routes.iter().any(|name| members.member_text(name).is_some()),
        idempotency_key: members.member_text("idem"),
        claim: signature::parse_claim(&header, || signed_bytes(&header, body)),
        message: shown,
        refs,
        kind,
    })
}

/// The members of an object to print, in this order. Members without a value are left out.
pub type AmqJsonFields<'a> = Vec<(&'a str, serde_json::Value)>;

/// Prints JSON as the format's program does.
pub fn print_json(members: &AmqJsonFields<'_>) -> String {
    let lines = members.iter().filter(|(_, value)| {
        value != &serde_json::Value::Null && value != "" && value != &serde_json::json!([])
    });
    let lines = lines.map(|(name, value)| format!("\"{name}\": {value:#}").replace('\n', "\n  "));
    let mut text = format!("{{\n  {}\n}}", lines.collect::<Vec<_>>().join(",\n  "));
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        text = text.replace(c, &format!("\\u{:04x}", c as u32));
    }
    text
}

/// Returns the bytes of a signed message file.
pub fn compose_message(mut header: AmqJsonFields<'_>, body: &str, signer: &dyn Signer) -> String {
    let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
    let body = format!("{body}{end}");
    header.push(("pub", BASE64.encode(signer.public_key().0).into()));
    let covered = signed_bytes(&print_json(&header), body.as_bytes()).unwrap_or_default();
    header.push(("sig", BASE64.encode(signer.sign(&covered)).into()));
    format!("{OPEN}\n{}\n{CLOSE}\n{body}", print_json(&header))
}

/// Makes an id of the time, the process, and eight random digits.
pub fn new_id(now: Timestamp, chance: u32) -> String {
    let moment = now.rfc3339().replace(':', "-");
    format!("{moment}_pid{}_{chance:08x}", std::process::id())
}
