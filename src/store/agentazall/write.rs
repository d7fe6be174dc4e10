//! Writing a letter: the reference's exact grammar, signed so that the reference verifies it and other copies of msgfs
//! can trust the header too (docs/formats/agentazall.md, sections 2 and 4; section 14, P1 and P2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use super::block::TIME;
use super::block::signed_block::{BEGIN, END, SIGNATURE_BEGIN, SIGNATURE_END};
use super::date::format_local_stamp;
use super::text::normalize_newlines;
use crate::model::{DraftAttachment, Timestamp, encode_hex, flatten_line};
use crate::store::Signer;
use crate::store::text::pytext::{is_space, strip};

/// The header that names the link.
pub(super) const VIA: &str = "Via";

/// A message to be written.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingLetter<'a> {
    /// My address.
    pub from: &'a str,
    /// The recipients.
    pub to: &'a [String],
    /// The recipients of copies.
    pub cc: &'a [String],
    /// The subject; the line is written even if it is empty.
    pub subject: &'a str,
    /// The moment of sending.
    pub now: Timestamp,
    /// The zone of `Date`, which the line does not name.
    pub zone: &'a TimeZone,
    /// The message's id ([`generate_id`]).
    pub id: &'a str,
    /// The id of the message it answers.
    pub in_reply_to: Option<&'a str>,
    /// The key that makes sending again harmless.
    pub idempotency_key: Option<&'a str>,
    /// The link that the sender chose for it. It is unsigned, because it concerns only my machine.
    pub via_link: Option<&'a str>,
    /// The text.
    pub body: &'a str,
    /// The attachments.
    pub attachments: &'a [DraftAttachment],
}

/// Returns the message file: header, separator, and the text in a signed block.
///
/// The signed text is the text as every reader will see it. Line ends are LF. White space at the end is gone, because
/// the reference strips it before it verifies. Markers of a signed block get a blank after their leading dashes (`---
/// END AGENTAZALL …`), because the reference would take them for the block's own. Values are one line each, and their
/// markers are broken in the same way.
pub fn compose_letter(out: &OutgoingLetter<'_>, signer: &dyn Signer) -> String {
    let body = to_signable_text(out.body);
    let headers = build_headers(out);
    let key = signer.public_key();
    let mut meta = vec![
        ("Fingerprint", key.fingerprint().to_string()),
        ("Public-Key", STANDARD.encode(key.0)),
    ];
    meta.extend(headers.iter().cloned());
    // `Date` is local, in whole seconds, and does not name its zone.
    meta.push((TIME, out.now.rfc3339()));
    let links = [("In-Reply-To", out.in_reply_to), ("Idempotency-Key", out.idempotency_key)];
    meta.extend(links.into_iter().filter_map(|(name, v)| Some((name, sanitize_value(v?)))));
    for file in out.attachments {
        let line =
            format!("sha256={}; name={}", sanitize_value(&file.sha256), sanitize_value(&file.name));
        meta.push(("Attachment", line));
    }
    let meta = render_lines(&meta);
    let envelope = STANDARD.encode(signer.sign(format!("{meta}\n{body}").as_bytes()));
    let signature = STANDARD.encode(signer.sign(body.as_bytes()));

    let mut headers = headers;
    headers.push(("Status", "new".into()));
    if !out.attachments.is_empty() {
        let names: Vec<String> =
            out.attachments.iter().map(|file| sanitize_value(&file.name)).collect();
        headers.push(("Attachments", names.join(", ")));
    }
    headers.extend(out.via_link.map(|via| (VIA, sanitize_value(via))));
    format!(
        "{}\n---\n{BEGIN}\n{meta}Signature-V2: {envelope}\n\n{body}\n{END}\n\
         {SIGNATURE_BEGIN}\n{signature}\n{SIGNATURE_END}",
        render_lines(&headers)
    )
}

/// Returns the headers that are also signed, in the reference's order.
fn build_headers(out: &OutgoingLetter<'_>) -> Vec<(&'static str, String)> {
    let list =
        |names: &[String]| names.iter().map(|n| sanitize_value(n)).collect::<Vec<_>>().join(", ");
    let mut headers = vec![("From", sanitize_value(out.from)), ("To", list(out.to))];
    if !out.cc.is_empty() {
        headers.push(("Cc", list(out.cc)));
    }
    headers.push(("Subject", sanitize_value(out.subject)));
    headers.push(("Date", format_local_stamp(out.now, out.zone)));
    headers.push(("Message-ID", sanitize_value(out.id)));
    headers
}

fn render_lines(pairs: &[(&str, String)]) -> String {
    let line =
        |(key, value): &(&str, String)| format!("{}\n", format!("{key}: {value}").trim_end());
    pairs.iter().map(line).collect()
}

/// Returns a value in the form that a line can hold. Its ends are stripped, as the reader would do.
fn sanitize_value(text: &str) -> String {
    break_markers(strip(&flatten_line(strip(text))).to_owned())
}

/// Returns the text that is signed for a body.
fn to_signable_text(body: &str) -> String {
    let body = normalize_newlines(body);
    break_markers(body.trim_end_matches(is_space).to_owned())
}

/// Puts a blank into every marker of a signed block. Two markers may share dashes; then it takes two rounds.
fn break_markers(mut text: String) -> String {
    let markers = [BEGIN, END, SIGNATURE_BEGIN, SIGNATURE_END];
    while let Some(marker) = markers.iter().find(|marker| text.contains(**marker)) {
        let broken = marker.replacen("---", "--- ", 1);
        text = text.replace(marker, &broken);
    }
    text
}

/// Returns a new id: the first 12 hex digits of the SHA-256 of sender, recipient, subject, time and random bytes, as
/// the reference makes them. It is no hash of the content.
pub fn generate_id(from: &str, to: &str, subject: &str, now: Timestamp, random: [u8; 8]) -> String {
    let random = encode_hex(&random);
    let text = [from, to, subject, &now.iso8601_basic(), &random].join("|");
    let digest: [u8; 32] = Sha256::digest(text).into();
    encode_hex(&digest).chars().take(12).collect()
}

#[cfg(test)]
mod tests;
