//! Canonical JSON: the bytes from which ids and signatures are made (docs/formats/samp.md, sections 5 and 10).
//!
//! It is the output of Python's `json.dumps(…, sort_keys=True, separators=(",", ":"), ensure_ascii=False)` for a value
//! that `json.loads` read: keys sorted by code point, no spaces, characters outside ASCII as they are, numbers printed
//! again from their value. Of the members only `body` is normalised to NFC.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::json::{self, JsonValue, RawStr};
use super::number::{self, NumberStyle};
use super::pytext;
use super::tape::{JsonProfile, JsonTape, MAX_TOKENS};

/// The first line of the signed bytes, so that a signature can never be mistaken for another kind of signed text.
pub const SIGNATURE_CONTEXT: &str = "samp-sig-v1\n";

/// The members from which an id is made, as far as the record has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashedMembers<'a> {
    /// The text.
    pub body: Option<JsonValue<'a>>,
    /// The sender.
    pub from: Option<JsonValue<'a>>,
    /// The thread.
    pub thread: Option<JsonValue<'a>>,
    /// The recipient.
    pub to: Option<JsonValue<'a>>,
    /// The time.
    pub ts: Option<JsonValue<'a>>,
    /// True if they are known to be spelled in ASCII.
    pub ascii: bool,
}

/// The id of a record: the first 16 hex digits of a SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId([u8; 16]);

impl RecordId {
    /// Returns the id of this canonical JSON.
    pub fn from_canonical(canonical: &str) -> Self {
        Self::from_hash(Sha256::new_with_prefix(canonical.as_bytes()))
    }

    /// Returns the id of the canonical JSON that was hashed.
    pub fn from_hash(hash: Sha256) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut id = [0; 16];
        for (pair, byte) in id.as_chunks_mut::<2>().0.iter_mut().zip(hash.finalize()) {
            *pair = [byte >> 4, byte & 0xf]
                .map(|nibble| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0'));
        }
        Self(id)
    }

    /// Returns the 16 digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Returns the id of the record with these members. `None` if it has none, because the body is not a string or a
/// string that counts holds a lone surrogate.
pub fn record_id(members: &HashedMembers<'_>) -> Option<String> {
    compute_id(members, &mut String::new()).map(|id| id.as_str().to_owned())
}

/// Returns the same id as [`record_id`]. It works in a buffer, which then holds the canonical JSON.
pub fn compute_id(members: &HashedMembers<'_>, buffer: &mut String) -> Option<RecordId> {
    buffer.clear();
    buffer.push('{');
    if let Some(body) = members.body {
        buffer.push_str("\"body\":");
        push_body(buffer, body, members.ascii)?;
    }
    let others = [
        ("\"from\":", members.from),
        ("\"thread\":", members.thread),
        ("\"to\":", members.to),
        ("\"ts\":", members.ts),
    ];
    for (key, value) in others {
        let Some(value) = value else { continue };
        if buffer.len() > 1 {
            buffer.push(',');
        }
        buffer.push_str(key);
        push_value(buffer, value)?;
    }
    buffer.push('}');
    Some(RecordId::from_canonical(buffer))
}

/// Returns the bytes that the signature of the record on this line covers: [`SIGNATURE_CONTEXT`] and the canonical
/// JSON of all members except `sig`. `None` if the line is no object or has no canonical form.
pub fn signed_bytes(line: &str) -> Option<Vec<u8>> {
    signed_object_bytes(SIGNATURE_CONTEXT, line, "sig")
}

/// Returns the bytes that a signature in the member `without` of the object on this line covers: its context and the
/// canonical JSON of all other members. `None` if the line is no object or has no canonical form.
pub fn signed_object_bytes(context: &str, line: &str, without: &str) -> Option<Vec<u8>> {
    let mut out = String::with_capacity(line.len() + context.len());
    out.push_str(context);
    let is_covered = |key: &str| key != without;
    push_object(&mut out, line, is_covered, push_value)?;
    Some(out.into_bytes())
}

/// Returns the bytes in which all records of one message to several recipients agree: the canonical JSON of all members
/// but `id`, `to`, `sig` and this `other` one, without the `data` of `files`. `None` if the line is no object or has no
/// canonical form.
pub fn common_bytes(line: &str, other: Option<&str>) -> Option<Vec<u8>> {
    let mut out = String::with_capacity(line.len());
    let is_common = |key: &str| !matches!(key, "id" | "to" | "sig") && Some(key) != other;
    push_object(&mut out, line, is_common, push_files)?;
    Some(out.into_bytes())
}

/// Appends the canonical JSON of the object on this line, with the members that `is_wanted` accepts. `push_list`
/// appends the value of `files`.
fn push_object(
    out: &mut String,
    line: &str,
    is_wanted: impl Fn(&str) -> bool,
    push_list: impl Fn(&mut String, JsonValue<'_>) -> Option<()>,
) -> Option<()> {
    let mut members: Vec<(Cow<'_, str>, JsonValue<'_>)> = Vec::new();
    let mut unfit = false;
    json::visit_members(line, |key, value| {
        let (key, lone) = key.decode();
        unfit |= lone || members.len() >= MAX_TOKENS;
        if !unfit && is_wanted(&key) {
            members.push((key, value));
        }
    })
    .ok()?;
    if unfit {
        return None;
    }
    // The sort is stable. After the reversal, the last of equal keys comes first and `dedup` keeps it.
    members.reverse();
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    members.dedup_by(|(a, _), (b, _)| a == b);
    out.push('{');
    for (n, (key, value)) in members.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        push_text(out, key);
        out.push(':');
        match &**key {
            "body" => push_body(out, *value, false)?,
            "files" => push_list(out, *value)?,
            _ => push_value(out, *value)?,
        }
    }
    out.push('}');
    Some(())
}

/// The blanks of JSON.
const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Appends a list of files without the `data` of each.
fn push_files(out: &mut String, value: JsonValue<'_>) -> Option<()> {
    let JsonValue::Compound(text) = value else { return push_value(out, value) };
    let Some(mut rest) = text.strip_prefix('[') else { return push_value(out, value) };
    out.push('[');
    loop {
        rest = rest.trim_start_matches(SPACE);
        if rest.starts_with(']') {
            break;
        }
        let (file, after) = json::split_first_value(rest)?;
        let drop_data = |members: &mut Vec<(&str, _)>| members.retain(|(key, _)| *key != "data");
        JsonTape::parse(file)?.print_as(out, JsonProfile::PythonRaw, drop_data)?;
        rest = after.trim_start_matches(SPACE);
        rest = rest.strip_prefix(',').unwrap_or(rest);
        out.push(',');
    }
    out.push(']');
    Some(())
}

/// Appends the text as Python writes a string: in quotes, with Python's escapes and no others.
pub fn push_text(out: &mut String, text: &str) {
    push_escaped(out, text, |_| false);
}

/// Appends a text like [`push_text`], with escapes for these characters `too`.
pub(super) fn push_escaped(out: &mut String, text: &str, too: impl Fn(char) -> bool) {
    out.push('"');
    let mut clean = 0;
    for (at, c) in text.char_indices() {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            c if c < ' ' || too(c) => "",
            _ => continue,
        };
        out.push_str(text.get(clean..at).unwrap_or_default());
        clean = at + c.len_utf8();
        out.push_str(short);
        if short.is_empty() {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.push_str(text.get(clean..).unwrap_or_default());
    out.push('"');
}

fn push_body(out: &mut String, body: JsonValue<'_>, ascii: bool) -> Option<()> {
    let JsonValue::String(body) = body else { return None };
    // Escapes are ASCII. A character outside ASCII that combines with one is noticed here.
    if body.is_canonical() && (ascii || pytext::is_surely_nfc(body.raw_text())) {
        push_quoted(out, body.raw_text());
    } else {
        push_text(out, &pytext::to_nfc(&decode_whole(body)?));
    }
    Some(())
}

fn push_string(out: &mut String, text: RawStr<'_>) -> Option<()> {
    if text.is_canonical() {
        push_quoted(out, text.raw_text());
    } else {
        push_text(out, &decode_whole(text)?);
    }
    Some(())
}

/// Appends a text that is already escaped.
fn push_quoted(out: &mut String, raw: &str) {
    out.push('"');
    out.push_str(raw);
    out.push('"');
}

/// Returns the value of a string that has no lone surrogate.
fn decode_whole(text: RawStr<'_>) -> Option<Cow<'_, str>> {
    let (text, lone) = text.decode();
    (!lone).then_some(text)
}

fn push_value(out: &mut String, value: JsonValue<'_>) -> Option<()> {
    match value {
        JsonValue::String(text) => push_string(out, text)?,
        JsonValue::Int(text) | JsonValue::Float(text) => {
            number::push_number(out, text, NumberStyle::Python)?;
        }
        // Python prints a constant that is no JSON as it read it.
        JsonValue::Constant(text) => out.push_str(text),
        JsonValue::Bool(true) => out.push_str("true"),
        JsonValue::Bool(false) => out.push_str("false"),
        JsonValue::Null => out.push_str("null"),
        JsonValue::Compound(text) => {
            JsonTape::parse(text)?.print_as(out, JsonProfile::PythonRaw, |_| ())?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
