//! The bytes that a signature covers (docs/formats/amp.md, section 9).
//!
//! A signature covers `from|to|subject|priority|in_reply_to|hash`; the hash is that of the payload as the signer's
//! program printed it. Programs print differently, and some add or drop members after signing, so a message has several
//! readings. All readings have the same meaning, so it is safe to accept any of them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::address::{is_name, is_wire_address};
use super::agent::short_form_name;
use super::envelope::{AmpMessage, AmpRejection, shown};
use super::frame;
use super::id::is_message_id;
use super::limits::MESSAGE_BYTES;
use crate::model::{PublicKey, SignatureClaim, SignatureScope, SignedBytes, verify};
use crate::store::text::tape::{JsonProfile, JsonTape, TapePiece};

/// The words for `envelope.priority`.
pub const PRIORITIES: [&str; 4] = ["urgent", "high", "normal", "low"];

/// The priority that is signed if the member is absent.
const DEFAULT_PRIORITY: &str = "normal";

/// Checks the signed members that become names: `from`, `to`, `priority`, `in_reply_to`. In a signed message they must
/// follow the grammar, so that the six signed fields can be split in one way only. In an unsigned one no text may look
/// like a path.
///
/// # Errors
/// The broken rule.
pub fn check_signed_fields(stored: &AmpMessage<'_>) -> Result<(), AmpRejection> {
    let signed = stored.signature.is_some();
    let wrong = |member, text: &str, what: &str| {
        let problem = format!("is {}, which is {what}", shown(text));
        Err(AmpRejection::Member { member, problem })
    };
    for (member, text) in [("from", &stored.from), ("to", &stored.to)] {
        // A bare name has no `|` either; the store resolves it.
        let selects =
            member == "to" && short_form_name(&text.to_ascii_lowercase()).is_some_and(is_name);
        if !(is_wire_address(text) || selects || (!signed && is_harmless(text))) {
            return wrong(member, text, "not an address");
        }
    }
    match (&stored.priority, &stored.in_reply_to) {
        (Some(word), _) if signed && !PRIORITIES.contains(&&**word) => {
            wrong("priority", word, "none of the four")
        }
        (_, Some(id)) if !is_message_id(id) => wrong("in_reply_to", id, "not the id of a message"),
        _ => Ok(()),
    }
}

/// Returns true if an unsigned text is harmless in the place of an address.
fn is_harmless(text: &str) -> bool {
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '\\' | '|');
    text.len() <= 254 && !text.starts_with('.') && !text.contains("..") && !text.contains(bad)
}

/// Returns the signature of a message and the bytes that it may cover; `None` if it is not signed. Runs
/// [`check_signed_fields`] first. `key` is the sender's key, if the store knows it. `also_to` are addresses that mean
/// the same recipient; the sender may have signed any of them.
///
/// # Errors
/// The errors of [`check_signed_fields`].
pub fn extract_claim(
    stored: &AmpMessage<'_>,
    key: Option<PublicKey>,
    also_to: &[&str],
) -> Result<Option<SignatureClaim>, AmpRejection> {
    check_signed_fields(stored)?;
    let Some(text) = stored.signature.as_deref() else { return Ok(None) };
    let Some(signature) = decode_signature(text) else {
        let why = "envelope.signature is not the 64 bytes of a signature in base64 on one line";
        return Ok(Some(SignatureClaim::Malformed(why.into())));
    };
    let signed = Arc::new(AmpSignedContent::from_message(stored, also_to));
    let covered =
        SignedBytes::from_visitor(Arc::new(move |accept| signed.find_accepted(accept).is_some()));
    Ok(Some(SignatureClaim::Signed { key, signature, covered, scope: SignatureScope::Whole }))
}

/// Decodes strictly: the standard alphabet, padding, no line ends, no stray bits.
fn decode_signature(text: &str) -> Option<[u8; 64]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// The texts of a message to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmpBodies {
    /// The text as stored.
    pub body: String,
    /// The text to show if the signature is valid. It exists only if a receiver's program framed the text and the
    /// signature covers the inner text.
    pub body_if_valid: Option<String>,
}

/// Chooses the texts to show; `key` judges the signature. A signed text is never altered, even if it looks framed.
pub fn choose_bodies(
    stored: &AmpMessage<'_>,
    key: Option<&PublicKey>,
    also_to: &[&str],
) -> AmpBodies {
    let body = stored.message.as_deref().unwrap_or_default().to_owned();
    let framed = !frame::strip_frame(&body).is_empty();
    let signature = stored.signature.as_deref().and_then(decode_signature);
    let body_if_valid = match (framed, key, signature) {
        (true, Some(key), Some(signature)) => AmpSignedContent::from_message(stored, also_to)
            .find_accepted(&mut |bytes| verify::verify(key, bytes, &signature))
            .and_then(|hit| hit.unwrapped),
        _ => None,
    };
    AmpBodies { body, body_if_valid }
}

/// Returns the signed bytes for a payload in this spelling.
pub fn signed_bytes(fields: &AmpSignedFields<'_>, payload: &str) -> Vec<u8> {
    let hash = STANDARD.encode(Sha256::digest(payload.as_bytes()));
    let AmpSignedFields { from, to, subject, priority, in_reply_to } = fields;
    format!("{from}|{to}|{subject}|{priority}|{in_reply_to}|{hash}").into_bytes()
}

/// The signed members of an envelope.
#[derive(Clone, Copy, Debug)]
pub struct AmpSignedFields<'a> {
    /// Sender.
    pub from: &'a str,
    /// Recipient.
    pub to: &'a str,
    /// Subject.
    pub subject: &'a str,
    /// Priority, `normal` if absent.
    pub priority: &'a str,
    /// Id of the parent, empty if there is none.
    pub in_reply_to: &'a str,
}

/// Everything that a signature can cover, kept for a later check.
struct AmpSignedContent {
    from: String,
    /// The recipient as stored, then the addresses with the same meaning.
    to: Vec<String>,
    subject: String,
    priority: String,
    in_reply_to: String,
    payload: String,
    message: String,
    has_empty_attachments: bool,
    has_context: bool,
}

/// The reading that was accepted.
struct AmpSignatureMatch {
    /// The text inside the frame, if the signature does not cover the frame.
    unwrapped: Option<String>,
}

impl AmpSignedContent {
    fn from_message(stored: &AmpMessage<'_>, also_to: &[&str]) -> Self {
        let text = |text: &Option<std::borrow::Cow<'_, str>>, default: &str| {
            text.as_deref().unwrap_or(default).to_owned()
        };
        Self {
            from: stored.from.clone().into_owned(),
            to: std::iter::once(&*stored.to)
                .chain(also_to.iter().copied())
                .map(str::to_owned)
                .collect(),
            subject: text(&stored.subject, ""),
            priority: text(&stored.priority, DEFAULT_PRIORITY),
            in_reply_to: text(&stored.in_reply_to, ""),
            payload: stored.payload.to_owned(),
            message: text(&stored.message, ""),
            has_empty_attachments: stored.has_empty_attachments,
            has_context: stored.context.is_some(),
        }
    }

    /// Tries the readings, the most likely first.
    fn find_accepted(&self, accept: &mut dyn FnMut(&[u8]) -> bool) -> Option<AmpSignatureMatch> {
        let tape = JsonTape::parse(&self.payload)?;
        let raw_subject = escape_tsv(&self.subject);
        let subjects: Vec<&str> =
            std::iter::once(self.subject.as_str()).chain(raw_subject.as_deref()).collect();
        let mut tried: Vec<[u8; 32]> = Vec::new();
        for view in self.payload_variants() {
            for profile in tape.differing_profiles() {
                let Some(printed) = view.print_payload(&tape, profile) else { continue };
                let hash = Sha256::digest(printed.as_bytes()).into();
                if tried.contains(&hash) {
                    continue;
                }
                tried.push(hash);
                let fields = self.to.iter().flat_map(|to| subjects.iter().map(move |s| (to, s)));
                for (to, subject) in fields {
                    if accept(&signed_bytes(&self.signed_fields(to, subject), &printed)) {
                        return Some(AmpSignatureMatch {
                            unwrapped: view.message.map(str::to_owned),
                        });
                    }
                }
            }
        }
        None
    }

    fn signed_fields<'a>(&'a self, to: &'a str, subject: &'a str) -> AmpSignedFields<'a> {
        let Self { from, priority, in_reply_to, .. } = self;
        AmpSignedFields { from, to, subject, priority, in_reply_to }
    }

    /// Returns the payload as stored, then without the members that programs add after signing, then each without a
    /// frame.
    fn payload_variants(&self) -> Vec<AmpPayloadVariant<'_>> {
        let mut views = vec![AmpPayloadVariant::default()];
        // A payload over the size limit gets no second try, because that costs time.
        if self.payload.len() > MESSAGE_BYTES {
            return views;
        }
        if self.has_empty_attachments {
            views.push(AmpPayloadVariant {
                drops_attachments: true,
                ..AmpPayloadVariant::default()
            });
        }
        if !self.has_context {
            let others: Vec<_> =
                views.iter().map(|v| AmpPayloadVariant { toggles_context: true, ..*v }).collect();
            views.extend(others);
        }
        let plain = views.clone();
        for inside in frame::strip_frame(&self.message) {
            views.extend(
                plain.iter().map(|view| AmpPayloadVariant { message: Some(inside), ..*view }),
            );
        }
        views
    }
}

/// One way to undo the changes of other programs: members that they add or drop after signing are restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AmpPayloadVariant<'a> {
    /// Drops `attachments`. This is only right if it is empty.
    drops_attachments: bool,
    /// Removes `context` if it is `null`, or adds it as `null` if it is absent.
    toggles_context: bool,
    /// The text that replaces `message`.
    message: Option<&'a str>,
}

impl<'a> AmpPayloadVariant<'a> {
    /// Prints the payload in this variant; `None` if some value has no form in this profile.
    fn print_payload(&self, tape: &'a JsonTape<'a>, profile: JsonProfile) -> Option<String> {
        let mut out = String::new();
        tape.print_as(&mut out, profile, |members| {
            let before = members.len();
            members.retain(|(key, _)| !(self.toggles_context && *key == "context"));
            if self.toggles_context && members.len() == before {
                members.push(("context", TapePiece::Null));
            }
            members.retain(|(key, _)| !(self.drops_attachments && *key == "attachments"));
            // Of equal keys the last counts.
            members.extend(self.message.map(|text| ("message", TapePiece::Text(text))));
        })?;
        Some(out)
    }
}

/// Returns the subject as the plugin signs it: after jq's `@tsv` and the shell's `read`. `None` if that changes
/// nothing.
fn escape_tsv(subject: &str) -> Option<String> {
    let escaped = subject
        .replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let trimmed = escaped.trim_matches(' ');
    (trimmed != subject).then(|| trimmed.to_owned())
}

/// Prints a payload as msgfs signs it; `None` if it is no JSON.
pub fn canonical_payload(payload: &str) -> Option<String> {
    AmpPayloadVariant::default().print_payload(&JsonTape::parse(payload)?, JsonProfile::Jcs)
}

#[cfg(test)]
mod tests;
