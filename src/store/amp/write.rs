//! New messages (docs/formats/amp.md, sections 4, 7, 9 and 11).
//!
//! Every known program reads and verifies the written files: they have no `null`, no empty list, only ASCII letters in
//! keys, and no numbers but the sizes of files.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::address::is_wire_address;
use super::filename::{clean_filename, parse_sha256};
use super::id::{is_attachment_id, is_message_id};
use super::limits::{
    ATTACHMENT_BYTES, ATTACHMENTS, ATTACHMENTS_BYTES, BODY_BYTES, MESSAGE_BYTES, SUBJECT_CHARS,
};
use super::verify::{AmpSignedFields, PRIORITIES, canonical_payload, signed_bytes};
use crate::model::{Seed, Timestamp, sanitize_line};
use crate::store::text::edit::JsonEdits;
use crate::store::text::strict_json as json;
use crate::store::text::time::format_time;
use crate::store::{Signer, StoreError};

/// The version of the envelope.
const VERSION: &str = "amp/0.1";

/// The lifetime of a message in milliseconds: as long as relays keep it.
const LIFETIME_MS: i64 = 7 * 86_400_000;

/// The types that every program knows.
const KINDS: [&str; 10] = [
    "request",
    "response",
    "notification",
    "alert",
    "task",
    "status",
    "handoff",
    "ack",
    "update",
    "system",
];

/// A message to write.
#[derive(Clone, Debug)]
pub struct AmpNewMessage<'a> {
    /// My address.
    pub from: &'a str,
    /// The recipient's address.
    pub to: &'a str,
    /// Subject, not empty.
    pub subject: &'a str,
    /// `urgent`, `high`, `normal` or `low`.
    pub priority: &'a str,
    /// `payload.type`.
    pub kind: &'a str,
    /// Id of the message it answers.
    pub in_reply_to: Option<&'a str>,
    /// The id of the thread's first message; the own id if the message begins one.
    pub thread_id: &'a str,
    /// Its id.
    pub id: &'a str,
    /// The time of sending.
    pub now: Timestamp,
    /// The text.
    pub body: &'a str,
    /// The attachments.
    pub files: &'a [AmpNewAttachment<'a>],
    /// All recipients if there are several: each gets a message of his own.
    pub recipients: &'a [&'a str],
    /// True if a link carries it. Then the signed part repeats the id.
    pub is_carried: bool,
    /// `idk_<uuid>`, or the key that the sender gave.
    pub idempotency_key: Option<&'a str>,
}

/// An attachment of a message to write.
#[derive(Clone, Copy, Debug)]
pub struct AmpNewAttachment<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its name, made by [`clean_filename`].
    pub filename: &'a str,
    /// The MIME type.
    pub content_type: &'a str,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 in lower-case hex.
    pub sha256: &'a str,
}

/// Returns true if a word may be `payload.type`: one of the ten, or one with a name space (`github:push`).
pub fn is_kind(text: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
    };
    KINDS.contains(&text)
        || (text.len() <= 128
            && text.split_once(':').is_some_and(|(ns, name)| word(ns) && word(name)))
}

/// Returns true if a word may be `envelope.priority`.
pub fn is_priority(text: &str) -> bool {
    PRIORITIES.contains(&text)
}

/// Checks all rules that can be checked before the message is written.
///
/// # Errors
/// The first broken rule.
pub fn check_limits(out: &AmpNewMessage<'_>) -> Result<(), StoreError> {
    check_words(out)?;
    check_subject(out.subject)?;
    if out.body.contains('\0') {
        let why = "the text holds the character U+0000, which this store does not carry";
        return Err(StoreError::Invalid(why.into()));
    }
    if out.body.contains('\u{7f}') {
        let why = "the text holds the character U+007F (delete), which the programs of this store sign \
                   in different ways, so that nobody could verify it; remove it";
        return Err(StoreError::Invalid(why.into()));
    }
    if out.body.len() > BODY_BYTES {
        return Err(StoreError::TooLarge(format!(
            "the text has {} bytes; this store takes at most {BODY_BYTES}: attach it as a file",
            out.body.len()
        )));
    }
    for file in out.files {
        let digest = format!("sha256:{}", file.sha256);
        let good = is_attachment_id(file.id)
            && clean_filename(file.filename) == file.filename
            && parse_sha256(&digest).is_some();
        if !good {
            return Err(StoreError::Invalid(format!(
                "{} cannot be attached under this name",
                file.filename
            )));
        }
    }
    check_sizes(out.files.iter().map(|file| (file.filename, file.size)))
}

/// Checks a subject.
///
/// # Errors
/// [`StoreError::Invalid`] if it is empty, has more than 256 characters or a control character.
pub fn check_subject(subject: &str) -> Result<(), StoreError> {
    if subject.trim().is_empty() {
        return Err(StoreError::Invalid("Subject: is empty; this store wants one".into()));
    }
    if subject.chars().count() > SUBJECT_CHARS {
        let why = format!("Subject: has more than {SUBJECT_CHARS} characters; shorten it");
        return Err(StoreError::Invalid(why));
    }
    if subject.contains(char::is_control) {
        let why = "Subject: has a control character; write it on one line without tabs";
        return Err(StoreError::Invalid(why.into()));
    }
    Ok(())
}

fn check_words(out: &AmpNewMessage<'_>) -> Result<(), StoreError> {
    let invalid = |why: String| Err(StoreError::Invalid(why));
    if let Some(bad) = [out.from, out.to].into_iter().find(|address| !is_wire_address(address)) {
        return invalid(format!("{bad:?} is not an AMP address (name@tenant.provider)"));
    }
    if !is_priority(out.priority) {
        return invalid(format!(
            "Priority: {:?} is none of {}",
            out.priority,
            PRIORITIES.join(", ")
        ));
    }
    if !is_kind(out.kind) {
        return invalid(format!(
            "Type: {:?} is none of {}, and has no name space like github:push",
            out.kind,
            KINDS.join(", ")
        ));
    }
    let ids = [Some(out.id), Some(out.thread_id), out.in_reply_to];
    if let Some(bad) = ids.into_iter().flatten().find(|id| !is_message_id(id)) {
        return invalid(format!("{bad:?} is not the id of a message of this store"));
    }
    Ok(())
}

/// Checks the number and sizes of attachments, given by name and size in bytes.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn check_sizes<'a>(
    mut files: impl Iterator<Item = (&'a str, u64)> + Clone,
) -> Result<(), StoreError> {
    let (count, total) =
        files.clone().fold((0, 0u64), |(n, sum), (_, size)| (n + 1, sum.saturating_add(size)));
    if count > ATTACHMENTS {
        let why = format!("{count} files are attached; this store takes {ATTACHMENTS}");
        return Err(StoreError::TooLarge(why));
    }
    if let Some((name, size)) = files.find(|(_, size)| *size > ATTACHMENT_BYTES) {
        return Err(StoreError::TooLarge(format!(
            "Attach: {} has {size} bytes; this store takes files of at most {ATTACHMENT_BYTES} bytes \
             (25 MiB)",
            sanitize_line(name)
        )));
    }
    if total > ATTACHMENTS_BYTES {
        return Err(StoreError::TooLarge(format!(
            "the attached files have {total} bytes together; this store takes {ATTACHMENTS_BYTES}"
        )));
    }
    Ok(())
}

#[derive(Serialize)]
struct AmpEnvelope<'a> {
    version: &'a str,
    id: &'a str,
    from: &'a str,
    to: &'a str,
    subject: &'a str,
    priority: &'a str,
    timestamp: &'a str,
    expires_at: &'a str,
    signature: &'a str,
    // This is absent, not null: one verifier signs null as a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_reply_to: Option<&'a str>,
    thread_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

#[derive(Serialize)]
struct AmpPayload<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<AmpContext<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<AmpAttachment<'a>>,
}

#[derive(Serialize)]
struct AmpContext<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    recipients: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    msgfs: Option<AmpOwnId<'a>>,
}

#[derive(Serialize)]
struct AmpOwnId<'a> {
    id: &'a str,
}

#[derive(Serialize)]
struct AmpAttachment<'a> {
    id: &'a str,
    filename: &'a str,
    content_type: &'a str,
    size: u64,
    digest: String,
    // Nothing was scanned, and the file says so.
    scan_status: &'a str,
    uploaded_at: &'a str,
    expires_at: &'a str,
}

#[derive(Serialize)]
struct AmpMessageFile<'a> {
    envelope: AmpEnvelope<'a>,
    payload: AmpPayload<'a>,
    /// `sent_at`.
    local: BTreeMap<&'a str, &'a str>,
}

/// Writes and signs a message in the form for `sent/`: JSON with two-space indentation and a final newline.
///
/// # Errors
/// The errors of [`check_limits`].
pub fn compose_message(out: &AmpNewMessage<'_>, signer: &dyn Signer) -> Result<String, StoreError> {
    check_limits(out)?;
    let now = format_time(out.now);
    let expires = format_time(out.now.plus_millis(LIFETIME_MS));
    let payload = build_payload(out, &now, &expires);
    let fields = AmpSignedFields {
        from: out.from,
        to: out.to,
        subject: out.subject,
        priority: out.priority,
        in_reply_to: out.in_reply_to.unwrap_or_default(),
    };
    let printed = serde_json::to_string(&payload).ok().and_then(|text| canonical_payload(&text));
    let printed =
        printed.ok_or_else(|| StoreError::Invalid("the message has no JSON form".into()))?;
    let signature = STANDARD.encode(signer.sign(&signed_bytes(&fields, &printed)));
    let sent = AmpMessageFile {
        envelope: AmpEnvelope {
            version: VERSION,
            id: out.id,
            from: out.from,
            to: out.to,
            subject: out.subject,
            priority: out.priority,
            timestamp: &out.now.rfc3339(),
            expires_at: &expires,
            signature: &signature,
            in_reply_to: out.in_reply_to,
            thread_id: out.thread_id,
            idempotency_key: out.idempotency_key,
        },
        payload,
        local: [("sent_at", now.as_str())].into(),
    };
    let mut text = serde_json::to_string_pretty(&sent)
        .map_err(|e| StoreError::Invalid(format!("the message has no JSON form: {e}")))?;
    text.push('\n');
    if text.len() > MESSAGE_BYTES {
        return Err(StoreError::TooLarge(format!(
            "the message has {} bytes of JSON; this store takes {MESSAGE_BYTES}: attach the text as a file",
            text.len()
        )));
    }
    Ok(text)
}

fn build_payload<'a>(
    out: &AmpNewMessage<'a>,
    uploaded_at: &'a str,
    expires_at: &'a str,
) -> AmpPayload<'a> {
    let attachments = out.files.iter().map(|file| AmpAttachment {
        id: file.id,
        filename: file.filename,
        content_type: file.content_type,
        size: file.size,
        digest: format!("sha256:{}", file.sha256),
        scan_status: "unscanned",
        uploaded_at,
        expires_at,
    });
    let recipients = if out.recipients.len() > 1 { out.recipients } else { &[] };
    let msgfs = out.is_carried.then_some(AmpOwnId { id: out.id });
    let context = AmpContext { recipients, msgfs };
    let says_nothing = context.recipients.is_empty() && context.msgfs.is_none();
    let context = Some(context).filter(|_| !says_nothing);
    AmpPayload { kind: out.kind, message: out.body, context, attachments: attachments.collect() }
}

/// An attachment as a provider keeps it.
#[derive(Clone, Debug)]
pub struct AmpProviderAttachment {
    /// The id that the provider gave it.
    pub id: String,
    /// The address of its bytes.
    pub url: String,
}

/// Puts the provider's attachment ids and addresses into a composed message and signs it again. Returns `None` if the
/// numbers of attachments differ.
pub fn sign_with_uploads(
    sent: &str,
    uploaded: &[AmpProviderAttachment],
    seed: &Seed,
) -> Option<String> {
    let mut message: serde_json::Value = serde_json::from_str(sent).ok()?;
    let files = message.get_mut("payload")?.get_mut("attachments")?.as_array_mut()?;
    if files.len() != uploaded.len() {
        return None;
    }
    for (file, uploaded) in files.iter_mut().zip(uploaded) {
        let file = file.as_object_mut()?;
        for (name, text) in
            [("id", uploaded.id.as_str()), ("url", &uploaded.url), ("scan_status", "clean")]
        {
            file.insert(name.to_owned(), text.into());
        }
    }
    let printed = canonical_payload(&message.get("payload")?.to_string())?;
    let said = |name: &str| message.get("envelope")?.get(name)?.as_str();
    let fields = AmpSignedFields {
        from: said("from")?,
        to: said("to")?,
        subject: said("subject")?,
        priority: said("priority")?,
        in_reply_to: said("in_reply_to").unwrap_or_default(),
    };
    let signature = STANDARD.encode(seed.sign(&signed_bytes(&fields, &printed)));
    let envelope = message.get_mut("envelope")?.as_object_mut()?;
    envelope.insert("signature".to_owned(), signature.into());
    Some(message.to_string())
}

/// Returns a composed message in the form for the recipient's `inbox/`: only `local` differs. Returns `None` if
/// [`compose_message`] did not make it. The copy says nothing about trust: its reader has to verify it.
pub fn make_delivered_copy(sent: &str, received_at: Timestamp) -> Option<String> {
    let members = json::parse_members(sent).ok()?;
    let received = format_time(received_at);
    let mut edits = JsonEdits::new(sent);
    let local = format!(
        "{{\n    \"received_at\": \"{received}\",\n    \"delivery_method\": \"local\",\n    \
         \"status\": \"unread\"\n  }}"
    );
    edits.replace_range(&json::find_last(&members, "local")?.value_at, local);
    String::from_utf8(edits.apply()?).ok()
}

#[cfg(test)]
mod tests;
