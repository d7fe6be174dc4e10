//! One message file: a header of JSON and a body (docs/formats/amq.md, sections 3 and 6).

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{Claim, ClaimScope, Covered, PublicKey, Timestamp};
use crate::store::samp::canonical::object_without;

/// Bytes of the largest file that is a message.
pub const FILE_BYTES: usize = 10 << 20;
/// What a header may say of its urgency.
pub const PRIORITIES: [&str; 3] = ["urgent", "normal", "low"];
/// What a header may say that a message is.
pub const KINDS: [&str; 8] = [
    "brainstorm",
    "review_request",
    "review_response",
    "question",
    "answer",
    "decision",
    "status",
    "todo",
];
/// What a signature covers starts with this line.
const SIGNATURE_CONTEXT: &str = "amq-sig-v1\n";
const OPEN: &str = "---json\n";

/// Why a file is no message, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It ends before its header does.
    #[error("the header does not end")]
    Unfinished,
    /// It is something else.
    #[error("{0}")]
    Wrong(String),
}

fn wrong(why: impl Into<String>) -> Fault {
    Fault::Wrong(why.into())
}

/// A message as its file says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Unique, and the name of its file without `.md`.
    pub id: String,
    /// Handle of the writer.
    pub from: String,
    /// Handles of all recipients.
    pub to: Vec<String>,
    /// The conversation.
    pub thread: String,
    /// Subject line, if it has one.
    pub subject: Option<String>,
    /// When it was written.
    pub created: Timestamp,
    /// Ids of the messages it answers, the nearest last.
    pub refs: Vec<String>,
    /// One of [`PRIORITIES`].
    pub priority: Option<String>,
    /// One of [`KINDS`].
    pub kind: Option<String>,
    /// Words that its writer put on it.
    pub labels: Vec<String>,
    /// What it is about, for programs.
    pub context: Option<Value>,
    /// Answers go by another queue.
    pub is_routed: bool,
    /// The idempotency key, which only msgfs writes.
    pub idem: Option<String>,
    /// The text; bytes that are not UTF-8 are replaced.
    pub body: String,
    /// The signature, if it carries one.
    pub claim: Option<Claim>,
}

/// The members of a header, in their order.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Members {
    /// The last member of this name, whatever its case, as the program reads it; `null` is none.
    fn get(&self, name: &str) -> Option<&Value> {
        let named = self.0.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<String>, Fault> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
            Some(_) => Err(wrong(format!("{name} is not a text"))),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Fault> {
        let not = || wrong(format!("{name} is not a list of texts"));
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(not);
        value.as_array().ok_or_else(not)?.iter().map(text).collect()
    }

    fn required(&self, name: &str) -> Result<String, Fault> {
        self.text(name)?.ok_or_else(|| wrong(format!("there is no {name}")))
    }

    fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<String>, Fault> {
        let word = self.text(name)?;
        match &word {
            Some(other) if !words.contains(&other.as_str()) => {
                Err(wrong(format!("{name} is {other:?}, which is none of {}", words.join(", "))))
            }
            _ => Ok(word),
        }
    }
}

/// Whether a text can be a handle.
pub fn is_handle(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
    !text.is_empty() && text.len() <= 200 && !text.starts_with('-') && text.bytes().all(letter)
}

/// Whether a text can be an id: the name of a file, with `.md` behind it.
pub fn is_id(text: &str) -> bool {
    let bad = |c: char| matches!(c, '/' | '\\' | '\0');
    let ends = text.strip_suffix(".md").is_some();
    !text.is_empty() && text.len() <= 250 && !text.starts_with('.') && !ends && !text.contains(bad)
}

/// The name of a message file without `.md`; `None` for all others.
pub fn stem_of(name: &str) -> Option<&str> {
    name.strip_suffix(".md").filter(|stem| !stem.is_empty() && !name.starts_with('.'))
}

/// The lines of a file, its header and its body: CRLF is a newline.
fn split(bytes: &[u8]) -> Result<(String, String), Fault> {
    let text = String::from_utf8_lossy(bytes);
    let text: Cow<'_, str> =
        if text.contains('\r') { text.replace("\r\n", "\n").into() } else { text };
    let Some(rest) = text.strip_prefix(OPEN) else {
        let begins = OPEN.starts_with(&*text);
        return Err(if begins {
            Fault::Unfinished
        } else {
            wrong("it does not begin with ---json")
        });
    };
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        None => return Err(Fault::Unfinished),
        Some(Err(e)) if e.is_eof() => return Err(Fault::Unfinished),
        Some(Err(e)) => return Err(wrong(format!("the header is not JSON: {e}"))),
        Some(Ok(_)) => {}
    }
    let (header, after) = rest.split_at_checked(values.byte_offset()).unwrap_or_default();
    let after = after.trim_start();
    let body = after.strip_prefix("---").and_then(|rest| match rest.strip_prefix('\n') {
        None if rest.is_empty() => Some(""),
        body => body,
    });
    match body {
        Some(body) => Ok((header.to_owned(), body.to_owned())),
        None if after.len() < 4 => Err(Fault::Unfinished),
        None => Err(wrong("after the header there is no line ---")),
    }
}

/// Reads a message file.
///
/// # Errors
/// What the format's program makes a dead letter of, and files that are larger than it takes.
pub fn parse(bytes: &[u8]) -> Result<Message, Fault> {
    if bytes.len() > FILE_BYTES {
        return Err(wrong("it is larger than 10 MiB"));
    }
    let (header, body) = split(bytes)?;
    let members: Members =
        serde_json::from_str(&header).map_err(|e| wrong(format!("the header is not JSON: {e}")))?;
    let id = members.required("id")?;
    let from = members.required("from")?;
    let to = members.texts("to")?;
    let thread = members.required("thread")?;
    let created = members.required("created")?;
    let handles = std::iter::once(&from).chain(&to);
    if !is_id(&id) {
        return Err(wrong(format!("the id {id:?} cannot be the name of a file")));
    }
    if let Some(other) = handles.into_iter().find(|handle| !is_handle(handle)) {
        return Err(wrong(format!("{other:?} is not a handle")));
    }
    if to.is_empty() {
        return Err(wrong("to names nobody"));
    }
    if thread.trim() != thread {
        return Err(wrong("thread begins or ends with white space"));
    }
    let moment: jiff::Timestamp =
        created.parse().map_err(|_| wrong(format!("created is {created:?}, which is no time")))?;
    Ok(Message {
        created: Timestamp::from_millis(moment.as_millisecond()),
        subject: members.text("subject")?,
        refs: members.texts("refs")?,
        priority: members.one_of("priority", &PRIORITIES)?,
        kind: members.one_of("kind", &KINDS)?,
        labels: members.texts("labels")?,
        context: members.get("context").cloned(),
        is_routed: members.text("reply_to")?.or(members.text("reply_project")?).is_some(),
        idem: members.text("idem")?,
        claim: claim(&members, &header, &body),
        id,
        from,
        to,
        thread,
        body,
    })
}

/// The signature in a header: `sig` over the header without it and the body, by the key `pub`.
fn claim(members: &Members, header: &str, body: &str) -> Option<Claim> {
    let malformed = |why: &str| Some(Claim::Malformed(why.to_owned()));
    let sig = members.0.iter().rev().find(|(key, _)| key == "sig")?;
    let key = members.0.iter().rev().find(|(key, _)| key == "pub");
    let Some(signature) = bytes_of::<64>(&sig.1) else {
        return malformed("the member \"sig\" is not the base64 of 64 bytes");
    };
    let key = match key.map(|(_, value)| bytes_of::<32>(value)) {
        None => None,
        Some(Some(key)) => Some(PublicKey(key)),
        Some(None) => return malformed("the member \"pub\" is not the base64 of 32 bytes"),
    };
    let Some(covered) = covered(header, body) else {
        return malformed("the header has no canonical form");
    };
    let covered = Covered::one(covered);
    Some(Claim::Signed { key, signature, covered, scope: ClaimScope::Whole })
}

fn bytes_of<const N: usize>(value: &Value) -> Option<[u8; N]> {
    BASE64.decode(value.as_str()?).ok()?.try_into().ok()
}

/// What a signature covers.
fn covered(header: &str, body: &str) -> Option<Vec<u8>> {
    let mut out = object_without(SIGNATURE_CONTEXT, header, "sig")?;
    out.push(b'\n');
    out.extend_from_slice(body.as_bytes());
    Some(out)
}

/// A header to be written, its members in the order of the format's program.
#[derive(Debug, Serialize)]
pub struct Header<'a> {
    /// 1.
    pub schema: u8,
    /// See [`Message::id`].
    pub id: &'a str,
    /// See [`Message::from`].
    pub from: &'a str,
    /// See [`Message::to`].
    pub to: &'a [String],
    /// See [`Message::thread`].
    pub thread: &'a str,
    /// See [`Message::subject`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subject: &'a str,
    /// See [`Message::created`].
    pub created: String,
    /// See [`Message::refs`].
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub refs: &'a [String],
    /// See [`Message::priority`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<&'a str>,
    /// See [`Message::kind`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'a str>,
    /// See [`Message::idem`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idem: Option<&'a str>,
    /// The key that signs, in base64.
    #[serde(rename = "pub")]
    pub key: String,
    /// The signature, in base64; absent while it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sig: Option<String>,
}

/// The bytes of a message file, signed by `sign`.
pub fn compose(mut header: Header<'_>, body: &str, sign: impl Fn(&[u8]) -> [u8; 64]) -> String {
    let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
    let body = format!("{body}{end}");
    let covered = covered(&print(&header), &body).unwrap_or_default();
    header.sig = Some(BASE64.encode(sign(&covered)));
    format!("{OPEN}{}\n---\n{body}", print(&header))
}

/// A key as headers carry it.
pub fn key_text(key: &PublicKey) -> String {
    BASE64.encode(key.0)
}

/// JSON as the format's program prints it.
pub fn print(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
}

/// A time as the format's program prints it: no zeros at the end of its fraction.
pub fn time_text(time: Timestamp) -> String {
    let text = time.rfc3339();
    let plain = text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
    // Of whole seconds nothing of the seconds themselves was cut.
    if time.millis() % 1000 == 0 {
        format!("{}Z", text.get(..19).unwrap_or(plain))
    } else {
        format!("{plain}Z")
    }
}

/// An id: the moment, the process, and eight digits of chance.
pub fn new_id(now: Timestamp, chance: [u8; 4]) -> String {
    let moment = now.rfc3339().replace(':', "-");
    format!("{moment}_pid{}_{:08x}", std::process::id(), u32::from_be_bytes(chance))
}
