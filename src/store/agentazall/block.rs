//! The content of a letter after its signature was read (docs/formats/agentazall.md, sections 2 and 4).
//!
//! Three forms of signature exist. The inline block covers the text only (form 1). A line `Signature-V2` in its
//! metadata covers those lines and the text (form 2), so that sender, recipients, subject, date, id and attachments
//! survive a transport that rewrites the header. The legacy form of version 1.0.17 lies in the header and covers all of
//! it. Unsigned metadata is never believed.

use std::sync::Arc;

use super::text::{Letter, split_comma_list};
use crate::model::{PublicKey, SignatureClaim, SignatureScope, SignedBytes, Timestamp, verify};
use crate::store::text::pytext::strip;
use crate::store::text::time::parse_time;
use signed_block::{BlockMatch, SignedBlock, VerifiedBlock, decode_base64};

pub(super) mod signed_block;

#[cfg(test)]
mod tests;

/// The line between the signed text and the rest, if a block is only a part of the text.
const NOT_COVERED: &str = "--- not covered by the signature ---";
/// The metadata line that signs the others.
const V2: &str = "Signature-V2";
/// The metadata line that has the time in UTC and with milliseconds.
pub(super) const TIME: &str = "Time";

/// The content of a letter, after its signature was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterContent {
    /// The sender, from the header or a form 2 signature that verifies.
    pub from: Option<String>,
    /// The recipients.
    pub to: Vec<String>,
    /// The recipients of copies.
    pub cc: Vec<String>,
    /// The subject; `None` if it is empty.
    pub subject: Option<String>,
    /// The date as written ([`parse_date`](super::date::parse_date)).
    pub date: Option<String>,
    /// The time to the millisecond, from a form 2 signature that verifies.
    pub time: Option<Timestamp>,
    /// The `Message-ID` without `<>`.
    pub id: Option<String>,
    /// The id of the message it answers, without `<>`; only from a form 2 signature that verifies.
    pub in_reply_to: Option<String>,
    /// Its id, if a form 2 signature that verifies covers it.
    pub signed_id: Option<String>,
    /// Its idempotency key, from a form 2 signature that verifies.
    pub idempotency_key: Option<String>,
    /// The attachments that a form 2 signature that verifies covers; `None` without one.
    pub signed_attachments: Option<Vec<SignedAttachment>>,
    /// The text to show. It is the file's whole text, markers included. If that is one signed block, it is the text the
    /// block covers, exactly as it was signed.
    pub body: String,
    /// For a block with text outside it: the covered text, the line
    /// `--- not covered by the signature ---`, and the rest.
    pub body_if_valid: Option<String>,
    /// The signature it carries, before anybody judged its key.
    pub claim: Option<SignatureClaim>,
    /// The signature over the whole text, if the key beside it made it. It serves to recognise copies of the same
    /// message. It is never that of a block that the text merely quotes.
    pub signature: Option<[u8; 64]>,
    /// True if a signature in the header covers `Status`: the file must never be edited.
    pub is_legacy: bool,
}

impl LetterContent {
    /// Returns the key of a form 2 signature that verifies and covers the id. The owner of that key wrote this.
    pub fn signer(&self) -> Option<&PublicKey> {
        match &self.claim {
            Some(SignatureClaim::Signed { key, .. }) if self.signed_id.is_some() => key.as_ref(),
            _ => None,
        }
    }
}

/// An attachment named by a form 2 signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignedAttachment {
    /// SHA-256 of its bytes in lower-case hex.
    pub sha256: String,
    /// Its file name.
    pub name: String,
}

/// Reads the signature of a letter.
pub fn read(letter: &Letter) -> LetterContent {
    let mut reading = read_header(letter);
    reading.is_legacy = letter.is_legacy();
    match signed_block::find_signed_block(&letter.body) {
        BlockMatch::Verified(found) if found.block.is_whole_text() => {
            apply_whole_block(&mut reading, *found);
        }
        BlockMatch::Broken(block) => reading.claim = Some(claim_broken_block(&block)),
        BlockMatch::Verified(found) if !reading.is_legacy => {
            apply_partial_block(&mut reading, &found);
        }
        BlockMatch::Verified(_) | BlockMatch::Nothing => {
            if reading.is_legacy {
                read_legacy_signature(&mut reading, letter);
            }
        }
    }
    reading
}

/// Reads the header.
fn read_header(letter: &Letter) -> LetterContent {
    let value = |key| letter.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
    LetterContent {
        from: value("From"),
        to: letter.list_values("To"),
        cc: letter.list_values("Cc"),
        subject: value("Subject"),
        date: value("Date"),
        id: letter.get("Message-ID").and_then(strip_id_brackets),
        body: letter.body.clone(),
        ..LetterContent::default()
    }
}

/// Returns an id without `<>` and white space; `None` if nothing is left.
fn strip_id_brackets(id: &str) -> Option<String> {
    let id = strip(id);
    let id = id.strip_prefix('<').unwrap_or(id);
    let id = strip(id.strip_suffix('>').unwrap_or(id));
    (!id.is_empty()).then(|| id.to_owned())
}

/// Takes in a text that is one block, signed by its key.
fn apply_whole_block(reading: &mut LetterContent, found: VerifiedBlock<'_>) {
    reading.body.clone_from(&found.text);
    let scope = match (found.block.has_right_fingerprint(&found.key), verify_envelope(&found)) {
        (false, _) => Err(describe_wrong_fingerprint(&found.key)),
        (true, Some(false)) => Err(format!("its {V2} does not match its metadata and text")),
        (true, None) => Ok(SignatureScope::Whole),
        (true, Some(true)) => Ok(apply_signed_metadata(reading, &found.block)),
    };
    reading.signature = scope.is_ok().then_some(found.signature);
    reading.claim =
        Some(scope.map_or_else(SignatureClaim::Malformed, |scope| SignatureClaim::Signed {
            key: Some(found.key),
            signature: found.signature,
            covered: SignedBytes::from_verified(found.covered, found.key, found.signature),
            scope,
        }));
}

/// Takes in a text that contains a block signed by its key. Such a block says nothing about the sender of the rest: it
/// may be a quotation. So its metadata is not believed, and a block that contradicts itself is merely text.
fn apply_partial_block(reading: &mut LetterContent, found: &VerifiedBlock<'_>) {
    let block = &found.block;
    if !block.has_right_fingerprint(&found.key) || verify_envelope(found) == Some(false) {
        return;
    }
    let rest: Vec<&str> = block
        .outside
        .iter()
        .filter(|text| !strip(text).is_empty())
        .map(|text| text.trim_matches('\n'))
        .collect();
    let rest = rest.join("\n");
    reading.body_if_valid = Some(format!("{}\n{NOT_COVERED}\n{rest}", found.text));
    reading.claim = Some(SignatureClaim::Signed {
        key: Some(found.key),
        signature: found.signature,
        covered: SignedBytes::from_verified(found.covered.clone(), found.key, found.signature),
        scope: SignatureScope::Part,
    });
}

/// Returns the claim of a text that is one block, not signed by its key.
fn claim_broken_block(block: &SignedBlock<'_>) -> SignatureClaim {
    let Some(key) = block.key() else {
        return SignatureClaim::Malformed("its Public-Key is not 32 bytes in base64".into());
    };
    let Some(signature) = decode_base64::<64>(block.signature) else {
        return SignatureClaim::Malformed("its signature is not 64 bytes in base64".into());
    };
    if !block.has_right_fingerprint(&key) {
        return SignatureClaim::Malformed(describe_wrong_fingerprint(&key));
    }
    let (body, inside) = (block.body.to_owned(), block.inside.to_owned());
    let covered = SignedBytes::from_visitor(Arc::new(move |accept| {
        signed_block::try_candidates(&body, &inside, &mut |reading| {
            accept(reading.bytes.as_bytes())
        })
    }));
    SignatureClaim::Signed { key: Some(key), signature, covered, scope: SignatureScope::Whole }
}

fn describe_wrong_fingerprint(key: &PublicKey) -> String {
    format!("its Fingerprint line is not that of its key, which is {}", key.fingerprint())
}

/// Returns true if the second signature fits; `None` if there is none. It covers all metadata lines but its own, each
/// with its newline, one newline, and the text.
fn verify_envelope(found: &VerifiedBlock<'_>) -> Option<bool> {
    let block = &found.block;
    let own = |line: &&str| signed_block::parse_meta_line(line, V2).is_some();
    let at = block.meta.iter().rposition(own)?;
    let signature = block.value(V2).and_then(decode_base64::<64>);
    let mut bytes = String::new();
    for (_, line) in block.meta.iter().enumerate().filter(|(n, _)| *n != at) {
        bytes.push_str(line);
        bytes.push('\n');
    }
    bytes.push('\n');
    bytes.push_str(&found.text);
    let fits = |signature| verify::verify(&found.key, bytes.as_bytes(), &signature);
    Some(signature.is_some_and(fits))
}

/// Replaces the header by the signed metadata. The returned scope tells if the sender changed.
fn apply_signed_metadata(reading: &mut LetterContent, block: &SignedBlock<'_>) -> SignatureScope {
    let value = |key| block.value(key).filter(|value| !value.is_empty()).map(str::to_owned);
    let mut scope = SignatureScope::Whole;
    if let Some(from) = value("From") {
        let bare = super::names::bare_address;
        if reading.from.as_deref().is_some_and(|outer| bare(outer) != bare(&from)) {
            scope = SignatureScope::Renamed;
        }
        reading.from = Some(from);
    }
    // The recipients are one fact: a Cc that the signature does not have was added on the way.
    if block.value("To").is_some() || block.value("Cc").is_some() {
        reading.to = block.value("To").map(split_comma_list).unwrap_or_default();
        reading.cc = block.value("Cc").map(split_comma_list).unwrap_or_default();
    }
    if block.value("Subject").is_some() {
        reading.subject = value("Subject");
    }
    if let Some(date) = value("Date") {
        reading.date = Some(date);
    }
    reading.time = value(TIME).as_deref().and_then(parse_time);
    reading.signed_id = block.value("Message-ID").and_then(strip_id_brackets);
    if reading.signed_id.is_some() {
        reading.id.clone_from(&reading.signed_id);
    }
    reading.in_reply_to = block.value("In-Reply-To").and_then(strip_id_brackets);
    reading.idempotency_key = value("Idempotency-Key");
    reading.signed_attachments =
        Some(block.values("Attachment").filter_map(parse_signed_attachment).collect());
    scope
}

/// Parses `sha256=<64 hex>; name=<name>`.
fn parse_signed_attachment(value: &str) -> Option<SignedAttachment> {
    let (hash, name) = value.strip_prefix("sha256=")?.split_once(';')?;
    let sha256 = strip(hash).to_ascii_lowercase();
    let name = strip(strip(name).strip_prefix("name=")?).to_owned();
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hash && !name.is_empty()).then_some(SignedAttachment { sha256, name })
}

/// Reads the signature of version 1.0.17. It covers the header lines but its own in file order, the separator and the
/// text. Readers of that version change the line `Status: new`, which it covers. So the bytes with `new` are tried too.
fn read_legacy_signature(reading: &mut LetterContent, letter: &Letter) {
    let key = letter.get("Public-Key").and_then(decode_base64::<32>).map(PublicKey);
    let signature = letter.get("Signature").and_then(decode_base64::<64>);
    let (Some(key), Some(signature)) = (key, signature) else {
        let (what, bytes) = if key.is_none() { ("Public-Key", 32) } else { ("Signature", 64) };
        let why = format!("its {what} header is not {bytes} bytes in base64");
        reading.claim = Some(SignatureClaim::Malformed(why));
        return;
    };
    let covered = |status: Option<&str>| {
        let lines = letter.headers.iter().filter(|(name, _)| name != "Signature");
        let value = |name: &str, is| status.filter(|_| name == "Status").unwrap_or(is);
        let lines = lines.map(|(name, is)| format!("{name}: {}", value(name, is)));
        let lines: Vec<String> = lines.collect();
        format!("{}\n---\n{}", lines.join("\n"), letter.body).into_bytes()
    };
    let readings = vec![covered(None), covered(Some("new"))];
    let claim = SignatureClaim::Signed {
        key: Some(key),
        signature,
        covered: SignedBytes::from_candidates(readings),
        scope: SignatureScope::Whole,
    };
    reading.signature = verify::verify_claim(&key, &claim).then_some(signature);
    reading.claim = Some(claim);
}
