//! A message file: envelope, payload and the store's notes (docs/formats/amp.md, sections 4 and 11).

use std::borrow::Cow;

use super::id::is_message_id;
use super::limits::{FILE_BYTES, KEPT_ATTACHMENTS};
use crate::model::{cut_text, sanitize_line};
use crate::store::text::json::{self as scanner, JsonEvent, JsonValue};
use crate::store::text::strict_json::{self as json, JsonFlaw, JsonMember};

/// The read state that the store keeps (docs/formats/amp.md, section 5).
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
    /// Returns true if it counts as read.
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

/// One entry of `payload.attachments`, unchecked (docs/formats/amp.md, section 8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachmentRef<'a> {
    /// The id, which is part of the path of the bytes.
    pub id: Option<Cow<'a, str>>,
    /// The file name.
    pub filename: Option<Cow<'a, str>>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// `sha256:` and 64 hex digits.
    pub digest: Option<Cow<'a, str>>,
    /// The address for a download, which only a link does.
    pub url: Option<Cow<'a, str>>,
    /// The reported result of a scanner.
    pub scan_status: Option<Cow<'a, str>>,
    /// The service that keeps the bytes; `afp` is another one.
    pub storage: Option<Cow<'a, str>>,
}

/// A message file as it was parsed; nothing in it is verified. A text member is `None` if it is absent, `null` or no
/// text.
#[derive(Clone, Debug)]
pub struct AmpMessage<'a> {
    /// The id, of the form that [`is_message_id`] accepts.
    pub id: Cow<'a, str>,
    /// The sender that it claims.
    pub from: Cow<'a, str>,
    /// The recipient.
    pub to: Cow<'a, str>,
    /// The subject.
    pub subject: Option<Cow<'a, str>>,
    /// `urgent`, `high`, `normal` or `low`.
    pub priority: Option<Cow<'a, str>>,
    /// The time of writing, as spelled; not signed.
    pub timestamp: Option<Cow<'a, str>>,
    /// The id that it answers; `None` also for an empty text.
    pub in_reply_to: Option<Cow<'a, str>>,
    /// The time at which it goes stale, as spelled; not signed.
    pub expires_at: Option<Cow<'a, str>>,
    /// The signature, as spelled; `None` also for an empty text.
    pub signature: Option<Cow<'a, str>>,
    /// The sender's key for retries; not signed.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// The source text of the payload object.
    pub payload: &'a str,
    /// `payload.message`.
    pub message: Option<Cow<'a, str>>,
    /// `payload.type`.
    pub kind: Option<Cow<'a, str>>,
    /// The first [`KEPT_ATTACHMENTS`] entries of `payload.attachments`.
    pub attachments: Vec<AttachmentRef<'a>>,
    /// The number of further entries.
    pub more_attachments: usize,
    /// `payload.attachments` is an empty list.
    pub has_empty_attachments: bool,
    /// The source text of `payload.context`, unless absent or `null`.
    pub context: Option<&'a str>,
    /// `local.status`, else `metadata.status`; `None` if neither is a known word.
    pub status: Option<ReadState>,
    /// `local.received_at`, as spelled.
    pub received_at: Option<Cow<'a, str>>,
    /// `local.fetched_from`: the provider elsewhere that delivered the message.
    pub fetched_from: Option<Cow<'a, str>>,
    /// `local.relayed_id`: the id that a provider elsewhere assigned to a message of mine.
    pub relayed_id: Option<Cow<'a, str>>,
    /// The length of the file in bytes.
    pub file_len: usize,
}

/// The rule that a message breaks. The text is a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmpRejection {
    /// The file is not JSON.
    #[error("{0}")]
    Json(String),
    /// An object inside the envelope or the payload has a member twice.
    #[error("the {object} has the member {} twice", shown(key))]
    DuplicateKey {
        /// `envelope`, `payload` or `message`.
        object: &'static str,
        /// The repeated member.
        key: String,
    },
    /// A link could make no message of the received bytes, for this reason.
    #[error("a link brought something that is not a message: {0}")]
    Unreadable(String),
    /// The envelope or the payload is missing.
    #[error("the file has no {0}, so it is not a message")]
    Missing(&'static str),
    /// The envelope or the payload is no object.
    #[error("the {0} is not an object")]
    NotObject(&'static str),
    /// A number that no program can represent.
    #[error("the {0} holds a number that is not finite")]
    NotFinite(&'static str),
    /// An escape of a lone surrogate.
    #[error("the {0} holds a lone surrogate escape, which is not text")]
    Unicode(&'static str),
    /// A required member is missing or unusable.
    #[error("envelope.{member} {problem}")]
    Member {
        /// The member's name.
        member: &'static str,
        /// The problem.
        problem: String,
    },
    /// The file is too large.
    #[error("the file has more than 16 MiB")]
    TooLarge,
}

/// The reason why a file is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmpParseError {
    /// The text ends too early. It may still be in writing.
    #[error("the file is incomplete: {0}")]
    Incomplete(String),
    /// The file will not become a message.
    #[error("{0}")]
    Rejected(#[from] AmpRejection),
}

/// Parses a message file.
///
/// # Errors
/// [`AmpParseError`] tells whether another try may succeed.
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

/// Returns `local.received_at` and `envelope.timestamp` as spelled. It reads nothing else, so sorting many files costs
/// little.
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

/// Collects the members of a file. Signed members may occur only once. Of the store's notes the last one counts, as in
/// every other program.
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
    let (attachments, more_attachments) = list.map(parse_attachments).unwrap_or_default();
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
        more_attachments,
        context: context.and_then(|m| payload.get(m.value_at.clone())),
        status: status("local").or_else(|| status("metadata")),
        received_at: noted("local", "received_at"),
        fetched_from: noted("local", "fetched_from")
            .filter(|_| noted("local", "delivery_method").is_some_and(|how| how == "relay")),
        relayed_id: noted("local", "relayed_id").filter(|id| is_message_id(id)),
        file_len,
    })
}

/// Parses a list of attachments, and counts the entries that are too many. An invalid entry becomes an empty one, so
/// that it is withheld and not hidden.
fn parse_attachments(value: JsonValue<'_>) -> (Vec<AttachmentRef<'_>>, usize) {
    let list = match value {
        JsonValue::Null => return (Vec::new(), 0),
        JsonValue::Compound(list) if list.starts_with('[') => list,
        _ => return (vec![AttachmentRef::default()], 0),
    };
    let mut entries: Vec<AttachmentRef<'_>> = Vec::new();
    let (mut depth, mut more) = (0usize, 0usize);
    let begin = |entries: &mut Vec<AttachmentRef<'_>>, more: &mut usize| {
        if entries.len() < KEPT_ATTACHMENTS {
            entries.push(AttachmentRef::default());
        } else {
            *more += 1;
        }
    };
    let mut key = Cow::Borrowed("");
    // The payload was parsed before, so there is no error.
    let _ = scanner::walk_value(list, |event| match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            if depth == 1 {
                begin(&mut entries, &mut more);
            }
            depth += 1;
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth = depth.saturating_sub(1),
        JsonEvent::Key(name) if depth == 2 => key = name.to_text(),
        JsonEvent::Scalar(_) if depth == 1 => begin(&mut entries, &mut more),
        JsonEvent::Scalar(value) if depth == 2 && more == 0 => {
            if let Some(entry) = entries.last_mut() {
                entry.set_member(&key, value);
            }
        }
        JsonEvent::Key(_) | JsonEvent::Scalar(_) => {}
    });
    (entries, more)
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

/// The members of an object; of equal keys the last counts.
struct AmpObjectMembers<'a>(Vec<JsonMember<'a>>);

impl<'a> AmpObjectMembers<'a> {
    fn from_object(object: &'a str) -> Self {
        Self(json::parse_members(object).unwrap_or_default())
    }

    fn find_member(&self, name: &str) -> Option<&JsonMember<'a>> {
        json::find_last(&self.0, name)
    }

    /// Returns the members of a member that is an object.
    fn member_object(&self, name: &str) -> Option<Self> {
        object_text(self.find_member(name)?.value).map(Self::from_object)
    }

    /// Returns the text of a member; `None` if it is no text.
    fn member_text(&self, name: &str) -> Option<Cow<'a, str>> {
        string_text(self.find_member(name)?.value)
    }

    /// Returns a member that decides about the message. Anything but a text, `null` or nothing is an error.
    fn signed_text(&self, member: &'static str) -> Result<Option<Cow<'a, str>>, AmpRejection> {
        match self.find_member(member).map(|m| m.value) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(JsonValue::String(text)) => Ok(Some(text.to_text())),
            Some(_) => Err(AmpRejection::Member { member, problem: "is not a text".into() }),
        }
    }

    /// Returns a member that every message must have.
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

/// Quotes a foreign value for a sentence, on one line and not too long.
pub(super) fn shown(text: &str) -> String {
    format!("\"{}\"", sanitize_line(&cut_text(text, 80)))
}

#[cfg(test)]
mod tests;
