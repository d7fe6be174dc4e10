//! One message file: a header of JSON and a body (docs/formats/amq.md, sections 3 and 6).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::model::{self, Claim, Timestamp, one_line};
use crate::store::Signer;
use crate::store::text::canonical::object_without;
use crate::store::text::json::{self, Value};
use crate::store::text::signature;
use crate::store::text::time::parse_time;

/// Bytes of the largest file that is a message.
pub const FILE_BYTES: usize = 10 << 20;
/// What a header may say of its urgency.
pub const PRIORITIES: &str = "urgent normal low";
/// What a header may say that a message is.
pub const KINDS: &str =
    "brainstorm review_request review_response question answer decision status todo";
/// What a signature covers starts with this line.
const SIGNATURE_CONTEXT: &str = "amq-sig-v1\n";
const OPEN: &str = "---json";
const CLOSE: &str = "---";

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
    /// What is shown of it.
    pub shown: model::Message,
    /// Ids of the messages it answers, the nearest last.
    pub refs: Vec<String>,
    /// One of [`KINDS`].
    pub kind: Option<String>,
    /// The files that come with it: `labels.txt`, words that its writer put on it, a line each, and
    /// `context.json`, what it is about, for programs: an object as it was written.
    pub parts: Vec<(&'static str, String)>,
    /// Answers go by another queue.
    pub is_routed: bool,
    /// The idempotency key, which only msgfs writes.
    pub idem: Option<String>,
    /// The signature, if it carries one.
    pub claim: Option<Claim>,
}

/// The members of a header, in their order.
struct Members<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Members<'a> {
    fn of(header: &'a str) -> Result<Self, Fault> {
        let mut members = Vec::new();
        json::members(header, |key, value| {
            // A member that is null leaves what an earlier one said.
            if !matches!(value, Value::Null) {
                members.push((key.to_text(), value));
            }
        })
        .map_err(|e| wrong(format!("the header is {e}")))?;
        Ok(Self(members))
    }

    /// The last member of this name, whatever its case, as the format's program reads it.
    fn get(&self, name: &str) -> Option<&Value<'a>> {
        let named = |(key, _): &&(Cow<'a, str>, Value<'a>)| key.eq_ignore_ascii_case(name);
        self.0.iter().rev().find(named).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Result<Option<String>, Fault> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => {
                Ok(Some(text.to_text().into_owned()).filter(|text| !text.is_empty()))
            }
            Some(_) => Err(wrong(format!("{name} is not a text"))),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Fault> {
        let texts = match self.get(name) {
            None => Some(Vec::new()),
            Some(Value::Compound(list)) => serde_json::from_str(list).ok(),
            Some(_) => None,
        };
        texts.ok_or_else(|| wrong(format!("{name} is not a list of texts")))
    }

    fn required(&self, name: &str) -> Result<String, Fault> {
        self.text(name)?.ok_or_else(|| wrong(format!("there is no {name}")))
    }

    fn parts(&self) -> Result<Vec<(&'static str, String)>, Fault> {
        let labels = self.texts("labels")?;
        let labels = labels.iter().flat_map(|label| [one_line(label), "\n".into()]).collect();
        let context = match self.get("context") {
            None => String::new(),
            Some(Value::Compound(text)) if text.starts_with('{') => format!("{text}\n"),
            Some(_) => return Err(wrong("context is not an object")),
        };
        let parts = [("labels.txt", labels), ("context.json", context)];
        Ok(parts.into_iter().filter(|(_, text)| !text.is_empty()).collect())
    }
}

/// Whether a word, if there is one, is one of these.
pub(super) fn one_of(name: &str, word: Option<&str>, words: &str) -> Result<(), String> {
    match word {
        Some(word) if words.split(' ').all(|known| known != word) => {
            Err(format!("{name} is {word:?}, which is none of {}", words.replace(' ', ", ")))
        }
        _ => Ok(()),
    }
}

/// What a signature covers.
fn covered(header: &str, body: &[u8]) -> Option<Vec<u8>> {
    let header = object_without(SIGNATURE_CONTEXT, header, "sig")?;
    Some([header.as_slice(), b"\n", body].concat())
}

/// Whether a text can be a handle.
pub fn is_handle(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
    !text.is_empty() && text.len() <= 200 && !text.starts_with('-') && text.bytes().all(letter)
}

/// Whether a text can be an id: the name of a file, with `.md` behind it.
pub fn is_id(text: &str) -> bool {
    let ends = text.strip_suffix(".md").is_some();
    let bad = text.contains(['/', '\\', '\0']);
    !text.is_empty() && text.len() <= 250 && !text.starts_with('.') && !ends && !bad
}

/// What comes after a line that says this and nothing more.
fn after_line<'a>(bytes: &'a [u8], line: &str) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(line.as_bytes())?;
    rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n"))
}

/// The header and the body of a file.
fn split(bytes: &[u8]) -> Result<(Cow<'_, str>, &[u8]), Fault> {
    let begins = |line: &str, bytes| [line, "\r\n"].concat().as_bytes().starts_with(bytes);
    let rest = after_line(bytes, OPEN).ok_or_else(|| {
        let other = || wrong("it does not begin with ---json");
        if begins(OPEN, bytes) { Fault::Unfinished } else { other() }
    })?;
    let mut values =
        serde_json::Deserializer::from_slice(rest).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        None => return Err(Fault::Unfinished),
        Some(Err(e)) if e.is_eof() => return Err(Fault::Unfinished),
        Some(Err(e)) => return Err(wrong(format!("the header is not JSON: {e}"))),
        Some(Ok(_)) => {}
    }
    let (header, after) = rest.split_at_checked(values.byte_offset()).unwrap_or_default();
    let after = after.trim_ascii_start();
    match after_line(after, CLOSE) {
        Some(body) => Ok((String::from_utf8_lossy(header), body)),
        None if begins(CLOSE, after) => Err(Fault::Unfinished),
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
    let members = Members::of(&header)?;
    let (id, from) = (members.required("id")?, members.required("from")?);
    let (to, thread) = (members.texts("to")?, members.required("thread")?);
    let created = members.required("created")?;
    if !is_id(&id) {
        return Err(wrong(format!("the id {id:?} cannot be the name of a file")));
    }
    if let Some(other) = to.iter().chain([&from]).find(|handle| !is_handle(handle)) {
        return Err(wrong(format!("{other:?} is not a handle")));
    }
    if to.is_empty() {
        return Err(wrong("to names nobody"));
    }
    if thread.trim() != thread {
        return Err(wrong("thread begins or ends with white space"));
    }
    let refs = members.texts("refs")?;
    let (kind, priority) = (members.text("kind")?, members.text("priority")?);
    one_of("kind", kind.as_deref(), KINDS).map_err(Fault::Wrong)?;
    one_of("priority", priority.as_deref(), PRIORITIES).map_err(Fault::Wrong)?;
    let extra = [("Type", kind.clone()), ("Priority", priority)];
    let shown = model::Message {
        time: parse_time(&created)
            .ok_or_else(|| wrong(format!("created is {created:?}, which is no time")))?,
        subject: members.text("subject")?,
        extra: extra.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        in_reply_to: refs.last().cloned(),
        body: String::from_utf8_lossy(body).replace("\r\n", "\n"),
        from: Some(from),
        thread: Some(thread),
        id,
        to,
        ..model::Message::default()
    };
    let [to_agent, to_project, from_project] =
        ["reply_to", "reply_project", "from_project"].map(|name| members.text(name));
    let routes = [to_agent?, to_project?, from_project?];
    Ok(Message {
        parts: members.parts()?,
        is_routed: routes.iter().any(Option::is_some),
        idem: members.text("idem")?,
        claim: signature::claim(&header, || covered(&header, body)),
        shown,
        refs,
        kind,
    })
}

/// The members of an object to be printed, in this order; those without a value are left out.
pub type Printed<'a> = Vec<(&'a str, serde_json::Value)>;

/// JSON as the format's program prints it.
pub fn print(members: &Printed<'_>) -> String {
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

/// The bytes of a message file, signed.
pub fn compose(mut header: Printed<'_>, body: &str, signer: &dyn Signer) -> String {
    let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
    let body = format!("{body}{end}");
    header.push(("pub", BASE64.encode(signer.public_key().0).into()));
    let covered = covered(&print(&header), body.as_bytes()).unwrap_or_default();
    header.push(("sig", BASE64.encode(signer.sign(&covered)).into()));
    format!("{OPEN}\n{}\n{CLOSE}\n{body}", print(&header))
}

/// An id: the moment, the process, and eight digits of chance.
pub fn new_id(now: Timestamp, chance: u32) -> String {
    let moment = now.rfc3339().replace(':', "-");
    format!("{moment}_pid{}_{chance:08x}", std::process::id())
}
