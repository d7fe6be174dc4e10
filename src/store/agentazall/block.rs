//! What a letter says once its signature was read (docs/formats/agentazall.md, sections 2 and 4).
//!
//! Three forms of signature exist. The inline block covers the text only (form 1). A line
//! `Signature-V2` in its metadata covers those lines and the text (form 2), so that sender,
//! recipients, subject, date, id and attachments survive a transport that rewrites the header. The
//! legacy form of version 1.0.17 lies in the header and covers all of it. Nothing unsigned in the
//! metadata is believed.

use std::sync::Arc;

use super::text::{Letter, comma_list};
use crate::model::{Claim, ClaimScope, Covered, PublicKey, Timestamp, verify};
use crate::store::text::pytext::strip;
use crate::store::text::time::parse_time;
use unwrap::{Block, Found, Verified, decode};

pub(super) mod unwrap;

#[cfg(test)]
mod tests;

/// The line between the signed text and the rest, where a block is only a part of the text.
const NOT_COVERED: &str = "--- not covered by the signature ---";
/// The metadata line that signs the others.
const V2: &str = "Signature-V2";
/// The metadata line that has the time in UTC and with milliseconds.
pub(super) const TIME: &str = "Time";

/// What a letter says, after its signature was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Who wrote it, as the header or a form 2 signature that verifies has it.
    pub from: Option<String>,
    /// Whom it is for.
    pub to: Vec<String>,
    /// Who else gets it.
    pub cc: Vec<String>,
    /// The subject; `None` if it is empty.
    pub subject: Option<String>,
    /// The date as written ([`parse_date`](super::date::parse_date)).
    pub date: Option<String>,
    /// The time to the millisecond, as a form 2 signature that verifies has it.
    pub time: Option<Timestamp>,
    /// The `Message-ID` without `<>`.
    pub id: Option<String>,
    /// The id of the message it answers without `<>`; only from a form 2 signature that verifies.
    pub answers: Option<String>,
    /// Its id, where a form 2 signature that verifies covers it.
    pub signed_id: Option<String>,
    /// Its idempotency key, from a form 2 signature that verifies.
    pub idempotency_key: Option<String>,
    /// The attachments that a form 2 signature that verifies covers; `None` without one.
    pub files: Option<Vec<SignedFile>>,
    /// The text to show. It is the file's whole text, markers included, unless that is one signed
    /// block: then the text the block covers, exactly as it was signed.
    pub body: String,
    /// For a block with text outside it: the covered text, the line
    /// `--- not covered by the signature ---`, and the rest.
    pub body_if_valid: Option<String>,
    /// The signature it carries, before anybody judged whose it is.
    pub claim: Option<Claim>,
    /// The signature over the whole text if the key beside it made it, for recognising copies of the
    /// same message. Never that of a block that the text merely quotes.
    pub signature: Option<[u8; 64]>,
    /// A signature in the header covers `Status`: the file must never be edited.
    pub legacy: bool,
}

impl Reading {
    /// The key of a form 2 signature that verifies and covers the id: whoever has it wrote this.
    pub fn signer(&self) -> Option<&PublicKey> {
        match &self.claim {
            Some(Claim::Signed { key, .. }) if self.signed_id.is_some() => key.as_ref(),
            _ => None,
        }
    }
}

/// An attachment named by a form 2 signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignedFile {
    /// SHA-256 of its bytes in lower-case hex.
    pub sha256: String,
    /// Its file name.
    pub name: String,
}

/// Reads the signature of a letter.
pub fn read(letter: &Letter) -> Reading {
    let mut reading = header(letter);
    reading.legacy = letter.is_legacy();
    match unwrap::find(&letter.body) {
        Found::Verified(found) if found.block.is_whole() => whole(&mut reading, *found),
        Found::Broken(block) => reading.claim = Some(broken(&block)),
        Found::Verified(found) if !reading.legacy => part(&mut reading, &found),
        Found::Verified(_) | Found::Nothing => {
            if reading.legacy {
                legacy(&mut reading, letter);
            }
        }
    }
    reading
}

/// What the header says.
fn header(letter: &Letter) -> Reading {
    let value = |key| letter.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
    Reading {
        from: value("From"),
        to: letter.list("To"),
        cc: letter.list("Cc"),
        subject: value("Subject"),
        date: value("Date"),
        id: letter.get("Message-ID").and_then(bare_id),
        body: letter.body.clone(),
        ..Reading::default()
    }
}

/// An id without `<>` and white space; `None` if nothing is left.
fn bare_id(id: &str) -> Option<String> {
    let id = strip(id);
    let id = id.strip_prefix('<').unwrap_or(id);
    let id = strip(id.strip_suffix('>').unwrap_or(id));
    (!id.is_empty()).then(|| id.to_owned())
}

/// The text is one block, and its key signed it.
fn whole(reading: &mut Reading, found: Verified<'_>) {
    reading.body.clone_from(&found.text);
    let scope = match (found.block.states(&found.key), envelope(&found)) {
        (false, _) => Err(wrong_fingerprint(&found.key)),
        (true, Some(false)) => Err(format!("its {V2} does not match its metadata and text")),
        (true, None) => Ok(ClaimScope::Whole),
        (true, Some(true)) => Ok(apply(reading, &found.block)),
    };
    reading.signature = scope.is_ok().then_some(found.signature);
    reading.claim = Some(scope.map_or_else(Claim::Malformed, |scope| Claim::Signed {
        key: Some(found.key),
        signature: found.signature,
        covered: Covered::proven(found.covered, found.key, found.signature),
        scope,
    }));
}

/// The text contains a block whose key signed it, which says nothing about the sender of the rest:
/// the block may be a quotation. So its metadata is not believed, and a block that contradicts
/// itself is merely text.
fn part(reading: &mut Reading, found: &Verified<'_>) {
    let block = &found.block;
    if !block.states(&found.key) || envelope(found) == Some(false) {
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
    reading.claim = Some(Claim::Signed {
        key: Some(found.key),
        signature: found.signature,
        covered: Covered::proven(found.covered.clone(), found.key, found.signature),
        scope: ClaimScope::Part,
    });
}

/// The text is one block, but its key did not sign it.
fn broken(block: &Block<'_>) -> Claim {
    let Some(key) = block.key() else {
        return Claim::Malformed("its Public-Key is not 32 bytes in base64".into());
    };
    let Some(signature) = decode::<64>(block.signature) else {
        return Claim::Malformed("its signature is not 64 bytes in base64".into());
    };
    if !block.states(&key) {
        return Claim::Malformed(wrong_fingerprint(&key));
    }
    let (body, inside) = (block.body.to_owned(), block.inside.to_owned());
    let covered = Covered::lazy(Arc::new(move |accept| {
        unwrap::readings(&body, &inside, &mut |reading| accept(reading.bytes.as_bytes()))
    }));
    Claim::Signed { key: Some(key), signature, covered, scope: ClaimScope::Whole }
}

fn wrong_fingerprint(key: &PublicKey) -> String {
    format!("its Fingerprint line is not that of its key, which is {}", key.fingerprint())
}

/// Whether the second signature fits, if there is one: over all metadata lines but its own, each with
/// its newline, one newline, and the text.
fn envelope(found: &Verified<'_>) -> Option<bool> {
    let block = &found.block;
    let own = |line: &&str| unwrap::meta_value(line, V2).is_some();
    let at = block.meta.iter().rposition(own)?;
    let signature = block.value(V2).and_then(decode::<64>);
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

/// Puts the signed metadata in the place of the header. The scope says whether the sender changed.
fn apply(reading: &mut Reading, block: &Block<'_>) -> ClaimScope {
    let value = |key| block.value(key).filter(|value| !value.is_empty()).map(str::to_owned);
    let mut scope = ClaimScope::Whole;
    if let Some(from) = value("From") {
        let bare = super::names::bare_address;
        if reading.from.as_deref().is_some_and(|outer| bare(outer) != bare(&from)) {
            scope = ClaimScope::Renamed;
        }
        reading.from = Some(from);
    }
    // Who gets it is one fact: a Cc that the signature does not have was added on the way.
    if block.value("To").is_some() || block.value("Cc").is_some() {
        reading.to = block.value("To").map(comma_list).unwrap_or_default();
        reading.cc = block.value("Cc").map(comma_list).unwrap_or_default();
    }
    if block.value("Subject").is_some() {
        reading.subject = value("Subject");
    }
    if let Some(date) = value("Date") {
        reading.date = Some(date);
    }
    reading.time = value(TIME).as_deref().and_then(parse_time);
    reading.signed_id = block.value("Message-ID").and_then(bare_id);
    if reading.signed_id.is_some() {
        reading.id.clone_from(&reading.signed_id);
    }
    reading.answers = block.value("In-Reply-To").and_then(bare_id);
    reading.idempotency_key = value("Idempotency-Key");
    reading.files = Some(block.values("Attachment").filter_map(signed_file).collect());
    scope
}

/// Reads `sha256=<64 hex>; name=<name>`.
fn signed_file(value: &str) -> Option<SignedFile> {
    let (hash, name) = value.strip_prefix("sha256=")?.split_once(';')?;
    let sha256 = strip(hash).to_ascii_lowercase();
    let name = strip(strip(name).strip_prefix("name=")?).to_owned();
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hash && !name.is_empty()).then_some(SignedFile { sha256, name })
}

/// The signature of version 1.0.17: over the header lines but its own in file order, the separator
/// and the text. Readers of that version change the line `Status: new`, which it covers: what they broke so
/// is read as it was.
fn legacy(reading: &mut Reading, letter: &Letter) {
    let key = letter.get("Public-Key").and_then(decode::<32>).map(PublicKey);
    let signature = letter.get("Signature").and_then(decode::<64>);
    let (Some(key), Some(signature)) = (key, signature) else {
        let (what, bytes) = if key.is_none() { ("Public-Key", 32) } else { ("Signature", 64) };
        let why = format!("its {what} header is not {bytes} bytes in base64");
        reading.claim = Some(Claim::Malformed(why));
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
    let claim = Claim::Signed {
        key: Some(key),
        signature,
        covered: Covered::these(readings),
        scope: ClaimScope::Whole,
    };
    reading.signature = verify::verify_claim(&key, &claim).then_some(signature);
    reading.claim = Some(claim);
}
