//! A message file: envelope, payload and what the store noted beside them (docs/formats/amp.md,
//! sections 4 and 11).

use std::borrow::Cow;

use super::id::is_message_id;
use super::limits::FILE_BYTES;
use crate::model::sanitize_line;
use crate::store::text::json::{self as scanner, JsonEvent, JsonValue};
use crate::store::text::strict::{self as json, JsonFlaw, JsonMember};

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
    /// Size in bytes.
    pub size: Option<u64>,
    /// `sha256:` and 64 hex digits.
    pub digest: Option<Cow<'a, str>>,
    /// Where it could be downloaded, which only a link does.
    pub url: Option<Cow<'a, str>>,
    /// What a scanner is said to have found.
    pub scan_status: Option<Cow<'a, str>>,
    /// Where the bytes are kept; `afp` is another service.
    pub storage: Option<Cow<'a, str>>,
}

/// A message file, read but not believed. Members that are absent, `null` or of another type than
/// text are `None`.
#[derive(Clone, Debug)]
pub struct AmpMessage<'a> {
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
    /// What it answers; `None` also for an empty text.
    pub in_reply_to: Option<Cow<'a, str>>,
    /// When it goes stale, as spelled; not signed.
    pub expires_at: Option<Cow<'a, str>>,
    /// The signature as spelled; `None` also for an empty text.
    pub signature: Option<Cow<'a, str>>,
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
    /// `local.received_at` as spelled.
    pub received_at: Option<Cow<'a, str>>,
    /// `local.fetched_from`, if a provider elsewhere gave it: the provider.
    pub fetched_from: Option<Cow<'a, str>>,
    /// `local.relayed_id`: the id that a provider elsewhere gave a message of mine.
    pub relayed_id: Option<Cow<'a, str>>,
    /// Length of the file in bytes.
    pub file_len: usize,
}

/// Which rule a message breaks. The text is a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmpRejection {
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
    /// A link could make no message of what came, for this reason.
    #[error("a link brought something that is not a message: {0}")]
    Unreadable(String),
    /// One of the two halves of a message is not there.
    #[error("the file has no {0}, so it is not a message")]
    Missing(&'static str),
    /// One of them is something else than an object.
    #[error("the {0} is not an object")]
    NotObject(&'static str),
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
pub enum AmpParseError {
    /// The text ends too early: it may still be being written.
    #[error("the file is incomplete: {0}")]
    Incomplete(String),
    /// It will not become one.
    #[error("{0}")]
    Rejected(#[from] AmpRejection),
}

/// Reads a message file.
///
/// # Errors
/// [`Fault`] says whether it is worth looking again.
pub fn parse(bytes: &[u8]) -> Result<AmpMessage<'_>, AmpParseError> {
    if bytes.len() > FILE_BYTES {
        return Err(AmpRejection::TooLarge.into());
    }
    let text = decode_utf8(bytes)?;
    if text.starts_with('\u{feff}') {
        return Err(AmpRejection::Json("it begins with a byte order mark".into()).into());
    }
    if text.trim().is_empty() {
        return Err(AmpParseError::Incomplete("it is empty".into()));
    }
    let members = json::parse_members(text).map_err(|e| {
        if json::is_cut_short(text, &e) {
            AmpParseError::Incomplete("it ends in the middle".into())
        } else {
            AmpRejection::Json(format!("it is not a message: {e}")).into()
        }
    })?;
    Ok(build_message(&collect_members(members)?, bytes.len())?)
}

/// `local.received_at` and `envelope.timestamp` as spelled; nothing else is looked at, so that the
/// order of many files costs little.
pub(super) fn read_times(bytes: &[u8]) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    let members = decode_utf8(bytes).ok().and_then(|text| json::parse_members(text).ok());
    let Some(Ok(file)) = members.map(collect_members) else { return (None, None) };
    let text = |half: &str, name: &str| file.member_object(half)?.member_text(name);
    (text("local", "received_at"), text("envelope", "timestamp"))
}

fn decode_utf8(bytes: &[u8]) -> Result<&str, AmpParseError> {
    std::str::from_utf8(bytes).map_err(|e| {
        if e.error_len().is_none() {
            AmpParseError::Incomplete("it ends in the middle of a character".into())
        } else {
            AmpRejection::Json(format!("it is not UTF-8 (byte {})", e.valid_up_to())).into()
        }
    })
}

/// The members of a file. What is signed is there once; of what the store noted the last counts, as for
/// everybody.
fn collect_members(members: Vec<JsonMember<'_>>) -> Result<AmpObjectMembers<'_>, AmpRejection> {
    for half in ["envelope", "payload"] {
        if members.iter().filter(|m| m.key == half).count() > 1 {
            return Err(AmpRejection::DuplicateKey { object: "message", key: half.into() });
        }
    }
    Ok(AmpObjectMembers(members))
}

fn build_message<'a>(
    file: &AmpObjectMembers<'a>,
    file_len: usize,
) -> Result<AmpMessage<'a>, AmpRejection> {
    if file.find_member("envelope").is_none()
        && file.find_member("unreadable").is_some()
        && let Some(why) = file.member_text("why")
    {
        return Err(AmpRejection::Unreadable(shown(&why)));
    }
    let half = |name: &'static str| {
        let value = file.find_member(name).ok_or(AmpRejection::Missing(name))?.value;
        object_text(value).ok_or(AmpRejection::NotObject(name))
    };
    let (envelope, payload) = (half("envelope")?, half("payload")?);
    check_object("envelope", envelope)?;
    check_object("payload", payload)?;
    let envelope = AmpObjectMembers::from_object(envelope);
    let id = envelope.required_text("id")?;
    if !is_message_id(&id) {
        let problem = format!("is {}, which is not the id of a message", shown(&id));
        return Err(AmpRejection::Member { member: "id", problem });
    }
    let noted = |half: &str, name: &str| file.member_object(half)?.member_text(name);
    let status = |half: &str| noted(half, "status").and_then(ReadState::from_word);
    let inside = AmpObjectMembers::from_object(payload);
    let list = inside.find_member("attachments").map(|m| m.value);
    let attachments = list.map(parse_attachments).unwrap_or_default();
    let is_list = list.is_some_and(|value| !matches!(value, JsonValue::Null));
    let context = inside.find_member("context").filter(|m| !matches!(m.value, JsonValue::Null));
    Ok(AmpMessage {
        id,
        from: envelope.required_text("from")?,
        to: envelope.required_text("to")?,
        subject: envelope.signed_text("subject")?,
        priority: envelope.signed_text("priority")?,
        in_reply_to: envelope.signed_text("in_reply_to")?.filter(|id| !id.is_empty()),
        signature: envelope.signed_text("signature")?.filter(|text| !text.is_empty()),
        timestamp: envelope.member_text("timestamp"),
        expires_at: envelope.member_text("expires_at"),
        idempotency_key: envelope.member_text("idempotency_key"),
        payload,
        message: inside.member_text("message"),
        kind: inside.member_text("type"),
        has_empty_attachments: is_list && attachments.is_empty(),
        attachments,
        context: context.and_then(|m| payload.get(m.value_at.clone())),
        status: status("local").or_else(|| status("metadata")),
        received_at: noted("local", "received_at"),
        fetched_from: noted("local", "fetched_from")
            .filter(|_| noted("local", "delivery_method").is_some_and(|how| how == "relay")),
        relayed_id: noted("local", "relayed_id").filter(|id| is_message_id(id)),
        file_len,
    })
}

/// The entries of a list of attachments. What is none is an entry that says nothing, so that it is
/// withheld, not hidden.
fn parse_attachments(value: JsonValue<'_>) -> Vec<AttachmentRef<'_>> {
    let list = match value {
        JsonValue::Null => return Vec::new(),
        JsonValue::Compound(list) if list.starts_with('[') => list,
        _ => return vec![AttachmentRef::default()],
    };
    let mut entries: Vec<AttachmentRef<'_>> = Vec::new();
    let mut depth = 0usize;
    let mut key = Cow::Borrowed("");
    // The payload was parsed before: there is no error to come.
    let _ = scanner::walk_value(list, |event| match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            if depth == 1 {
                entries.push(AttachmentRef::default());
            }
            depth += 1;
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth = depth.saturating_sub(1),
        JsonEvent::Key(name) if depth == 2 => key = name.to_text(),
        JsonEvent::Scalar(_) if depth == 1 => entries.push(AttachmentRef::default()),
        JsonEvent::Scalar(value) if depth == 2 => {
            if let Some(entry) = entries.last_mut() {
                entry.set_member(&key, value);
            }
        }
        JsonEvent::Key(_) | JsonEvent::Scalar(_) => {}
    });
    entries
}

impl<'a> AttachmentRef<'a> {
    fn set_member(&mut self, key: &str, value: JsonValue<'a>) {
        let member = match key {
            "id" => &mut self.id,
            "filename" => &mut self.filename,
            "digest" => &mut self.digest,
            "url" => &mut self.url,
            "scan_status" => &mut self.scan_status,
            "storage" => &mut self.storage,
            "size" => {
                self.size = match value {
                    JsonValue::Int(digits) => digits.parse().ok(),
                    _ => None,
                };
                return;
            }
            _ => return,
        };
        *member = string_text(value);
    }
}

/// The members of an object of which the texts are wanted; of equal keys the last.
struct AmpObjectMembers<'a>(Vec<JsonMember<'a>>);

impl<'a> AmpObjectMembers<'a> {
    fn from_object(object: &'a str) -> Self {
        Self(json::parse_members(object).unwrap_or_default())
    }

    fn find_member(&self, name: &str) -> Option<&JsonMember<'a>> {
        json::find_last(&self.0, name)
    }

    /// The members of a member that is an object.
    fn member_object(&self, name: &str) -> Option<Self> {
        object_text(self.find_member(name)?.value).map(Self::from_object)
    }

    /// The text of a member; `None` for whatever is none.
    fn member_text(&self, name: &str) -> Option<Cow<'a, str>> {
        string_text(self.find_member(name)?.value)
    }

    /// A member that decides about the message: anything but a text or nothing is an error.
    fn signed_text(&self, member: &'static str) -> Result<Option<Cow<'a, str>>, AmpRejection> {
        match self.find_member(member).map(|m| m.value) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::String(text)) => Ok(Some(text.to_text())),
            Some(_) => Err(AmpRejection::Member { member, problem: "is not a text".into() }),
        }
    }

    /// A member without which there is no message.
    fn required_text(&self, member: &'static str) -> Result<Cow<'a, str>, AmpRejection> {
        self.signed_text(member)?
            .filter(|text| !text.is_empty())
            .ok_or(AmpRejection::Member { member, problem: "is missing".into() })
    }
}

fn check_object(object: &'static str, text: &str) -> Result<(), AmpRejection> {
    json::check_value(text).map_err(|flaw| match flaw {
        JsonFlaw::Duplicate(key) => AmpRejection::DuplicateKey { object, key },
        JsonFlaw::NotFinite => AmpRejection::NotFinite(object),
        JsonFlaw::LoneSurrogate => AmpRejection::Unicode(object),
        JsonFlaw::TooDeep => AmpRejection::Json(format!("the {object} is nested too deeply")),
    })
}

fn object_text(value: JsonValue<'_>) -> Option<&str> {
    match value {
        JsonValue::Compound(text) if text.starts_with('{') => Some(text),
        _ => None,
    }
}

fn string_text(value: JsonValue<'_>) -> Option<Cow<'_, str>> {
    match value {
        JsonValue::String(text) => Some(text.to_text()),
        _ => None,
    }
}

/// A foreign value for use in a sentence: quoted, on one line, not too long.
pub(super) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(80).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", sanitize_line(&cut))
}

#[cfg(test)]
mod tests;
