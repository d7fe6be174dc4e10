//! A message file: envelope, payload and what the store noted beside them (docs/formats/amp.md,
//! sections 4 and 11).

use std::borrow::Cow;

use super::id::is_message_id;
use super::limits::FILE_BYTES;
use crate::model::one_line;
use crate::store::text::json::{self as scanner, Event, Value};
use crate::store::text::strict::{self as json, Flaw, Member};

/// Read state as the store keeps it (docs/formats/amp.md, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadState {
    /// Not read.
    Unread,
    /// Read.
    Read,
    /// Read and put away.
    Archived,
}

impl ReadState {
    /// Whether it counts as read.
    pub fn is_read(self) -> bool {
        self != Self::Unread
    }

    fn from_word(word: Cow<'_, str>) -> Option<Self> {
        match &*word {
            "unread" => Some(Self::Unread),
            "read" => Some(Self::Read),
            "archived" => Some(Self::Archived),
            _ => None,
        }
    }
}

/// One entry of `payload.attachments`, nothing of it checked (docs/formats/amp.md, section 8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachmentRef<'a> {
    /// Its id, part of the path of the bytes.
    pub id: Option<Cow<'a, str>>,
    /// File name.
    pub filename: Option<Cow<'a, str>>,
    /// MIME type.
    pub content_type: Option<Cow<'a, str>>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// `sha256:` and 64 hex digits.
    pub digest: Option<Cow<'a, str>>,
    /// Where it could be downloaded, which msgfs never does.
    pub url: Option<Cow<'a, str>>,
    /// What a scanner is said to have found.
    pub scan_status: Option<Cow<'a, str>>,
    /// Where the bytes are kept; `afp` is another service.
    pub storage: Option<Cow<'a, str>>,
}

/// A message file, read but not believed. Members that are absent, `null` or of another type than
/// text are `None`.
#[derive(Clone, Debug)]
pub struct Stored<'a> {
    /// `amp/0.1`.
    pub version: Option<Cow<'a, str>>,
    /// The id, of the form of [`is_message_id`].
    pub id: Cow<'a, str>,
    /// Who says to have written it.
    pub from: Cow<'a, str>,
    /// Whom it is for.
    pub to: Cow<'a, str>,
    /// Subject.
    pub subject: Option<Cow<'a, str>>,
    /// `urgent`, `high`, `normal` or `low`.
    pub priority: Option<Cow<'a, str>>,
    /// When it was written, as spelled; not signed.
    pub timestamp: Option<Cow<'a, str>>,
    /// The thread somebody put it in; not signed.
    pub thread_id: Option<Cow<'a, str>>,
    /// What it answers; `None` also for an empty text.
    pub in_reply_to: Option<Cow<'a, str>>,
    /// When it goes stale, as spelled; not signed.
    pub expires_at: Option<Cow<'a, str>>,
    /// The signature as spelled; `None` also for an empty text.
    pub signature: Option<Cow<'a, str>>,
    /// Where answers shall go; not signed, so never followed.
    pub reply_to: Option<Cow<'a, str>>,
    /// The sender's key for retries; not signed.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// The source text of the payload object.
    pub payload: &'a str,
    /// `payload.message`.
    pub message: Option<Cow<'a, str>>,
    /// `payload.type`.
    pub kind: Option<Cow<'a, str>>,
    /// `payload.attachments`.
    pub attachments: Vec<AttachmentRef<'a>>,
    /// `payload.attachments` is an empty list.
    pub has_empty_attachments: bool,
    /// The source text of `payload.context`, unless absent or `null`.
    pub context: Option<&'a str>,
    /// `local.status`, else `metadata.status`; `None` if neither is a known word.
    pub status: Option<ReadState>,
    /// There is an object `local`.
    pub has_local: bool,
    /// There is an object `metadata`.
    pub has_metadata: bool,
    /// `local.received_at` as spelled.
    pub received_at: Option<Cow<'a, str>>,
    /// Length of the file in bytes.
    pub file_len: usize,
}

/// Which rule a message breaks. The text is a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not JSON.
    #[error("{0}")]
    Json(String),
    /// A member of an object inside envelope or payload is there twice.
    #[error("the {object} has the member {} twice", shown(key))]
    DuplicateKey {
        /// `envelope`, `payload` or `message`.
        object: &'static str,
        /// Which.
        key: String,
    },
    /// One of the two halves of a message is not there.
    #[error("the file has no {0}, so it is no message")]
    Missing(&'static str),
    /// The envelope is something else than an object.
    #[error("the envelope is not an object")]
    EnvelopeNotObject,
    /// The payload is something else than an object.
    #[error("the payload is not an object")]
    PayloadNotObject,
    /// A number no program can represent.
    #[error("the {0} holds a number that is not finite")]
    NotFinite(&'static str),
    /// An escape for half a character.
    #[error("the {0} holds a lone surrogate escape, which is not text")]
    Unicode(&'static str),
    /// A member that must be there is missing or cannot be used.
    #[error("envelope.{member} {problem}")]
    Member {
        /// Its name.
        member: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The whole is too large.
    #[error("the file has more than 16 MiB")]
    TooLarge,
}

/// Why a file is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text ends too early: it may still be being written.
    #[error("the file is incomplete: {0}")]
    Incomplete(String),
    /// It will not become one.
    #[error("{0}")]
    Bad(#[from] Problem),
}

/// Reads a message file.
///
/// # Errors
/// [`Fault`] says whether it is worth looking again.
pub fn parse(bytes: &[u8]) -> Result<Stored<'_>, Fault> {
    if bytes.len() > FILE_BYTES {
        return Err(Problem::TooLarge.into());
    }
    let text = utf8(bytes)?;
    if text.starts_with('\u{feff}') {
        return Err(Problem::Json("it begins with a byte order mark".into()).into());
    }
    if text.trim().is_empty() {
        return Err(Fault::Incomplete("it is empty".into()));
    }
    let members = json::members(text).map_err(|e| {
        if json::is_cut_short(text, &e) {
            Fault::Incomplete("it ends in the middle".into())
        } else {
            Problem::Json(format!("it is no message: {e}")).into()
        }
    })?;
    Ok(Parts::of(members)?.stored(bytes.len())?)
}

/// `local.received_at` and `envelope.timestamp` as spelled; nothing else is looked at, so that the
/// order of many files costs little.
pub(super) fn times(bytes: &[u8]) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    let members = utf8(bytes).ok().and_then(|text| json::members(text).ok());
    let parts = members.and_then(|members| Parts::of(members).ok()).unwrap_or_default();
    let envelope = parts.envelope.and_then(object).map(Texts::of);
    let local = parts.local.map(Texts::of);
    (local.and_then(|t| t.text("received_at")), envelope.and_then(|t| t.text("timestamp")))
}

fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|e| {
        if e.error_len().is_none() {
            Fault::Incomplete("it ends in the middle of a character".into())
        } else {
            Problem::Json(format!("it is not UTF-8 (byte {})", e.valid_up_to())).into()
        }
    })
}

/// The members of the file that count.
#[derive(Default)]
struct Parts<'a> {
    envelope: Option<Value<'a>>,
    payload: Option<Value<'a>>,
    local: Option<&'a str>,
    metadata: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(members: Vec<Member<'a>>) -> Result<Self, Problem> {
        let mut parts = Self::default();
        for Member { key, value, .. } in members {
            let once = match &*key {
                "envelope" => parts.envelope.replace(value).is_none(),
                "payload" => parts.payload.replace(value).is_none(),
                // Noted by the store and signed by nobody: the last one counts, as for everybody.
                "local" => {
                    parts.local = object(value);
                    true
                }
                "metadata" => {
                    parts.metadata = object(value);
                    true
                }
                _ => true,
            };
            if !once {
                return Err(Problem::DuplicateKey { object: "message", key: key.into_owned() });
            }
        }
        Ok(parts)
    }

    fn stored(self, file_len: usize) -> Result<Stored<'a>, Problem> {
        let envelope = self.envelope.ok_or(Problem::Missing("envelope"))?;
        let payload = self.payload.ok_or(Problem::Missing("payload"))?;
        let envelope = object(envelope).ok_or(Problem::EnvelopeNotObject)?;
        let payload = object(payload).ok_or(Problem::PayloadNotObject)?;
        check("envelope", envelope)?;
        check("payload", payload)?;
        let envelope = Texts::of(envelope);
        let id = envelope.required("id")?;
        if !is_message_id(&id) {
            let problem = format!("is {}, which is not the id of a message", shown(&id));
            return Err(Problem::Member { member: "id", problem });
        }
        let local = self.local.map(Texts::of);
        let metadata = self.metadata.map(Texts::of);
        let status = |texts: &Option<Texts<'_>>| {
            texts.as_ref().and_then(|t| t.text("status")).and_then(ReadState::from_word)
        };
        let inside = Inside::of(payload);
        Ok(Stored {
            id,
            from: envelope.required("from")?,
            to: envelope.required("to")?,
            subject: envelope.signed("subject")?,
            priority: envelope.signed("priority")?,
            in_reply_to: envelope.signed("in_reply_to")?.filter(|id| !id.is_empty()),
            signature: envelope.signed("signature")?.filter(|text| !text.is_empty()),
            version: envelope.text("version"),
            timestamp: envelope.text("timestamp"),
            thread_id: envelope.text("thread_id"),
            expires_at: envelope.text("expires_at"),
            reply_to: envelope.text("reply_to"),
            idempotency_key: envelope.text("idempotency_key"),
            payload,
            message: inside.message,
            kind: inside.kind,
            attachments: inside.attachments,
            has_empty_attachments: inside.empty_attachments,
            context: inside.context,
            status: status(&local).or_else(|| status(&metadata)),
            has_local: local.is_some(),
            has_metadata: metadata.is_some(),
            received_at: local.and_then(|local| local.text("received_at")),
            file_len,
        })
    }
}

/// What the payload says.
#[derive(Default)]
struct Inside<'a> {
    message: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    attachments: Vec<AttachmentRef<'a>>,
    empty_attachments: bool,
    context: Option<&'a str>,
}

impl<'a> Inside<'a> {
    fn of(payload: &'a str) -> Self {
        let mut inside = Self::default();
        for Member { key, value, value_at, .. } in json::members(payload).unwrap_or_default() {
            match &*key {
                "message" => inside.message = text(value),
                "type" => inside.kind = text(value),
                "attachments" => {
                    inside.attachments = attachments(value);
                    inside.empty_attachments =
                        inside.attachments.is_empty() && !matches!(value, Value::Null);
                }
                "context" if !matches!(value, Value::Null) => {
                    inside.context = payload.get(value_at);
                }
                _ => {}
            }
        }
        inside
    }
}

/// The entries of a list of attachments. What is none is an entry that says nothing, so that it is
/// withheld, not hidden.
fn attachments(value: Value<'_>) -> Vec<AttachmentRef<'_>> {
    let list = match value {
        Value::Null => return Vec::new(),
        Value::Compound(list) if list.starts_with('[') => list,
        _ => return vec![AttachmentRef::default()],
    };
    let mut entries: Vec<AttachmentRef<'_>> = Vec::new();
    let mut depth = 0usize;
    let mut key = Cow::Borrowed("");
    // The payload was parsed before: there is no error to come.
    let _ = scanner::walk(list, |event| match event {
        Event::ObjectStart | Event::ArrayStart => {
            if depth == 1 {
                entries.push(AttachmentRef::default());
            }
            depth += 1;
        }
        Event::ObjectEnd | Event::ArrayEnd => depth = depth.saturating_sub(1),
        Event::Key(name) if depth == 2 => key = name.to_text(),
        Event::Scalar(_) if depth == 1 => entries.push(AttachmentRef::default()),
        Event::Scalar(value) if depth == 2 => {
            if let Some(entry) = entries.last_mut() {
                entry.set(&key, value);
            }
        }
        Event::Key(_) | Event::Scalar(_) => {}
    });
    entries
}

impl<'a> AttachmentRef<'a> {
    fn set(&mut self, key: &str, value: Value<'a>) {
        let member = match key {
            "id" => &mut self.id,
            "filename" => &mut self.filename,
            "content_type" => &mut self.content_type,
            "digest" => &mut self.digest,
            "url" => &mut self.url,
            "scan_status" => &mut self.scan_status,
            "storage" => &mut self.storage,
            "size" => {
                self.size = match value {
                    Value::Int(digits) => digits.parse().ok(),
                    _ => None,
                };
                return;
            }
            _ => return,
        };
        *member = text(value);
    }
}

/// The members of an object of which the texts are wanted; of equal keys the last.
struct Texts<'a>(Vec<Member<'a>>);

impl<'a> Texts<'a> {
    fn of(object: &'a str) -> Self {
        Self(json::members(object).unwrap_or_default())
    }

    fn find(&self, name: &str) -> Option<Value<'a>> {
        self.0.iter().rev().find(|m| m.key == name).map(|m| m.value)
    }

    /// The text of a member; `None` for whatever is none.
    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.find(name).and_then(text)
    }

    /// A member that decides about the message: anything but a text or nothing is an error.
    fn signed(&self, member: &'static str) -> Result<Option<Cow<'a, str>>, Problem> {
        match self.find(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_text())),
            Some(_) => Err(Problem::Member { member, problem: "is not a text".into() }),
        }
    }

    /// A member without which there is no message.
    fn required(&self, member: &'static str) -> Result<Cow<'a, str>, Problem> {
        self.signed(member)?
            .filter(|text| !text.is_empty())
            .ok_or(Problem::Member { member, problem: "is missing".into() })
    }
}

fn check(object: &'static str, text: &str) -> Result<(), Problem> {
    json::check(text).map_err(|flaw| match flaw {
        Flaw::Duplicate(key) => Problem::DuplicateKey { object, key },
        Flaw::NotFinite => Problem::NotFinite(object),
        Flaw::LoneSurrogate => Problem::Unicode(object),
        Flaw::TooDeep => Problem::Json(format!("the {object} is nested too deeply")),
    })
}

fn object(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Compound(text) if text.starts_with('{') => Some(text),
        _ => None,
    }
}

fn text(value: Value<'_>) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.to_text()),
        _ => None,
    }
}

/// A foreign value for use in a sentence: quoted, on one line, not too long.
pub(super) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(80).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", one_line(&cut))
}

#[cfg(test)]
mod tests;
