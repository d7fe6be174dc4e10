//! One mail: its decoded values, and the canonical form that identifies it and that a signature covers
//! (docs/formats/maildir.md, sections 4, 6 and 7).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::format::MaildirFacts;
use super::names;
use crate::mime::attachments::{MailAttachment, list_attachments};
use crate::mime::reading::{
    MailLimitError, find_body, first_text, list_addresses, list_ids, parse_limited, read_body,
    received_seconds, written_seconds,
};
use crate::model::verify::find_claim_fault;
use crate::model::{
    self, Attachment, PublicKey, SignatureClaim, SignatureScope, SignedBytes, Timestamp, encode_hex,
};

/// The first bytes of a signed text.
const SIGNED: &str = "maildir-sig-v1\n";
/// The first second of 1990. Names of files do not begin with an earlier one.
const YEAR_1990: i64 = 631_152_000;
/// The longest id, in bytes.
const ID_BYTES: usize = 900;
/// One day, in milliseconds.
const DAY_MS: i64 = 86_400_000;

/// A mail that was read.
#[derive(Debug, Default)]
pub struct MaildirMail {
    /// The message as it is shown. Its thread is the one that it names if it is signed, else the id of the first mail
    /// that it names, else its own.
    pub message: model::Message,
    /// The contents of its attachments.
    pub files: Vec<Vec<u8>>,
    /// The ids in `References`.
    pub references: Vec<String>,
    /// The id of the mail whose thread this one joins: the first that it names. `None` if it names its thread itself,
    /// or no mail.
    pub parent: Option<String>,
    /// The signature that it carries.
    pub claim: Option<SignatureClaim>,
    /// True if its signature is by the key that it names.
    pub is_signed: bool,
    /// The canonical form.
    pub canonical: String,
    /// The facts about it that the table keeps.
    pub facts: MaildirFacts,
    /// The idempotency key that it carries.
    pub idempotency_key: Option<String>,
}

/// Parses a mail. Its file gives the time if the mail has none.
///
/// # Errors
/// Returns a [`MailLimitError`].
pub fn parse_mail(
    raw: &[u8],
    name: &str,
    modified: Timestamp,
) -> Result<MaildirMail, MailLimitError> {
    let mail = parse_limited(raw)?;
    let body_part = find_body(&mail);
    let body = body_part.map(|n| read_body(&mail, n)).unwrap_or_default();
    let is_file = |n: &u32| mail.attachments.contains(n) || mail.text_body.contains(n);
    let numbers = (0..mail.parts.len() as u32).filter(|n| is_file(n) && Some(*n) != body_part);
    let parts = numbers.filter_map(|n| mail.parts.get(n as usize));
    let files = list_attachments(&mail, parts);

    let [from, to, cc] = ["From", "To", "Cc"].map(|name| list_addresses(&mail, name));
    let ids = |name| list_ids(&mail, name).into_iter().map(shorten_id).collect::<Vec<_>>();
    let written_id = ids("Message-ID").into_iter().next();
    let references = ids("References");
    let answered = ids("In-Reply-To").pop();
    let subject = first_text(&mail, "Subject").map(|text| join_blanks(&text));
    let subject = subject.filter(|text| !text.is_empty());
    let date = written_seconds(&mail);
    let ms = first_text(&mail, "X-Msgfs-Ms").and_then(|ms| ms.trim().parse().ok());
    let ms: Option<u16> = ms.filter(|ms| *ms <= 999);
    let own_thread = first_text(&mail, "X-Msgfs-Thread").map(|text| join_blanks(&text));
    let part = |file: &MailAttachment<'_>| {
        json!([file.name, file.bytes.len(), encode_hex(&Sha256::digest(&file.bytes))])
    };
    let mut canonical = json!({
        "body": Some(&body).filter(|body| !body.is_empty()),
        "cc": sorted(&cc),
        "date": date,
        "from": from.first().map(|from| from.to_ascii_lowercase()),
        "id": written_id,
        "ms": ms,
        "parts": files.iter().map(part).collect::<Vec<_>>(),
        "re": answered,
        "subject": subject,
        "thread": own_thread,
        "to": sorted(&to),
    });
    let is_absent = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    canonical.as_object_mut().into_iter().for_each(|all| all.retain(|_, value| !is_absent(value)));
    let canonical = canonical.to_string();
    let blankless = |name| first_text(&mail, name).map(|text| text.split_whitespace().collect());
    let [key, signature]: [Option<String>; 2] = ["X-Msgfs-Key", "X-Msgfs-Signature"].map(blankless);
    let claim = parse_claim(key.as_ref(), signature.as_ref(), &canonical);
    let is_signed = claim.as_ref().is_some_and(|claim| {
        matches!(claim, SignatureClaim::Signed { key: Some(_), .. })
            && find_claim_fault(claim).is_none()
    });
    let mut digest = Sha256::new_with_prefix(&canonical);
    [key, signature].iter().flatten().for_each(|mark| digest.update(format!("\0{mark}")));
    let digest: [u8; 32] = digest.finalize().into();
    let seconds = date.or_else(|| received_seconds(&mail)).map(Timestamp::from_secs);
    let time = seconds.unwrap_or_else(|| file_time(name, modified));
    let time = time.plus_millis(ms.filter(|_| is_signed).map_or(0, i64::from));
    let id = written_id.unwrap_or_else(|| digest_id(&digest));
    let own_thread = own_thread.filter(|thread| is_signed && !thread.is_empty());
    let parent = references.first().or(answered.as_ref()).filter(|_| own_thread.is_none());
    let parent = parent.filter(|parent| **parent != id).cloned();
    let thread = own_thread.or_else(|| parent.clone()).unwrap_or_else(|| id.clone());
    let attachments = files.iter().map(|f| Attachment::new(&*f.name, f.bytes.len())).collect();
    let message = model::Message {
        from: from.into_iter().next(),
        to,
        cc,
        time,
        subject,
        thread: Some(thread),
        in_reply_to: answered,
        id,
        attachments,
        body,
        ..model::Message::default()
    };
    Ok(MaildirMail {
        files: files.into_iter().map(|file| file.bytes.into_owned()).collect(),
        idempotency_key: first_text(&mail, "X-Msgfs-Idempotency").filter(|key| !key.is_empty()),
        facts: MaildirFacts::new(&message, digest),
        message,
        references,
        parent,
        claim,
        is_signed,
        canonical,
    })
}

/// Returns the id under which the index knows a mail.
pub(super) fn index_id(id: String, digest: &[u8; 32]) -> String {
    model::qualify_id(id, Some(digest)).into_owned()
}

/// Returns the bytes that a signature covers.
pub fn signed_bytes(canonical: &str) -> Vec<u8> {
    [SIGNED, canonical].concat().into_bytes()
}

/// Returns an id, or the digest of a long one.
fn shorten_id(id: String) -> String {
    if id.len() > ID_BYTES { digest_id(&Sha256::digest(id)) } else { id }
}

/// Returns an id made from a digest: that of the contents of a mail without an id, or of an id that is too long. The
/// headers that transports add do not change it.
fn digest_id(digest: &[u8]) -> String {
    format!("sha256-{}", encode_hex(digest.get(..16).unwrap_or_default()))
}

fn sorted(addresses: &[String]) -> Vec<String> {
    let mut all: Vec<String> = addresses.iter().map(|a| a.to_ascii_lowercase()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn join_blanks(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the time of a mail that has none: that in the name of its file, or else that of the file.
fn file_time(name: &str, modified: Timestamp) -> Timestamp {
    let limit = Timestamp::now().plus_millis(DAY_MS).secs();
    let told = names::name_seconds(name).filter(|secs| (YEAR_1990..=limit).contains(secs));
    told.map_or(Timestamp::from_secs(modified.secs()), Timestamp::from_secs)
}

/// Returns the signature of a mail, if it has one, with the key that it names.
fn parse_claim(
    key: Option<&String>,
    signature: Option<&String>,
    canonical: &str,
) -> Option<SignatureClaim> {
    let malformed = |what: &str| Some(SignatureClaim::Malformed(format!("{what} in base64")));
    let Ok(signature) = BASE64.decode(signature?).unwrap_or_default().try_into() else {
        return malformed("X-Msgfs-Signature is not 64 bytes");
    };
    let known = key.and_then(|key| PublicKey::from_base64(key));
    if known.is_none() && key.is_some() {
        return malformed("X-Msgfs-Key is not 32 bytes");
    }
    let covered = SignedBytes::from_bytes(signed_bytes(canonical));
    Some(SignatureClaim::Signed { key: known, signature, covered, scope: SignatureScope::Whole })
}
