//! Canonical JSON: the bytes that ids and signatures are made of (docs/formats/samp.md, sections 5
//! and 10).
//!
//! It is what Python's `json.dumps(…, sort_keys=True, separators=(",", ":"), ensure_ascii=False)`
//! prints for what `json.loads` read: keys sorted by code point, no spaces, characters outside
//! ASCII as they are, numbers printed again from their value. Of the members only `body` is
//! normalised to NFC.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::json::{self, Event, RawStr, Value};
use super::pytext;
use crate::store::text::number;

/// What a signature covers starts with this line, so that it can never be mistaken for another
/// kind of signed text.
pub const SIGNATURE_CONTEXT: &str = "samp-sig-v1\n";

/// Arrays and objects nested deeper than this have no canonical form here. No program of the
/// reference can read a tenth of it, so no such signature exists; the limit bounds the memory that
/// a hostile line can take.
const MAX_DEPTH: usize = 10_000;

/// The members an id is made of, as far as the record has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashed<'a> {
    /// The text.
    pub body: Option<Value<'a>>,
    /// The writer.
    pub from: Option<Value<'a>>,
    /// The thread.
    pub thread: Option<Value<'a>>,
    /// The recipient.
    pub to: Option<Value<'a>>,
    /// The time.
    pub ts: Option<Value<'a>>,
}

/// The id of a record: the first 16 hex digits of a SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id([u8; 16]);

impl Id {
    /// The id of this canonical JSON.
    pub fn of(canonical: &str) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let digest = Sha256::digest(canonical.as_bytes());
        let mut id = [0; 16];
        for (pair, byte) in id.as_chunks_mut::<2>().0.iter_mut().zip(digest) {
            *pair = [byte >> 4, byte & 0xf]
                .map(|nibble| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0'));
        }
        Self(id)
    }

    /// The 16 digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The id of the record with these members; `None` if it has none, because the body is not a
/// string or a string that counts holds a lone surrogate.
pub fn id_of(members: &Hashed<'_>) -> Option<String> {
    compute_id(members, &mut String::new()).map(|id| id.as_str().to_owned())
}

/// [`id_of`], with a buffer to work in, which is left holding the canonical JSON.
pub fn compute_id(members: &Hashed<'_>, buffer: &mut String) -> Option<Id> {
    buffer.clear();
    buffer.push('{');
    if let Some(body) = members.body {
        buffer.push_str("\"body\":");
        push_body(buffer, body)?;
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
    Some(Id::of(buffer))
}

/// What the signature of the record on this line covers: [`SIGNATURE_CONTEXT`] and the canonical
/// JSON of all members except `sig`. `None` if the line is no object or has no canonical form.
pub fn signed_bytes(line: &str) -> Option<Vec<u8>> {
    object_without(SIGNATURE_CONTEXT, line, "sig")
}

/// What a signature in the member `without` of the object on this line covers: the context it is made
/// in and the canonical JSON of all other members. `None` if the line is no object or has no canonical
/// form.
pub fn object_without(context: &str, line: &str, without: &str) -> Option<Vec<u8>> {
    let mut members: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
    let mut lone_key = false;
    json::members(line, |key, value| {
        let (key, lone) = key.decode();
        lone_key |= lone;
        if key != without {
            members.push((key, value));
        }
    })
    .ok()?;
    if lone_key {
        return None;
    }
    sort_members(&mut members);
    let mut out = String::with_capacity(line.len() + context.len());
    out.push_str(context);
    out.push('{');
    for (n, (key, value)) in members.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        push_text(&mut out, key);
        out.push(':');
        if key == "body" {
            push_body(&mut out, *value)?;
        } else {
            push_value(&mut out, *value)?;
        }
    }
    out.push('}');
    Some(out.into_bytes())
}

/// Sorts by key and keeps the last of equal keys.
fn sort_members<T>(members: &mut Vec<(Cow<'_, str>, T)>) {
    // The sort is stable; reversed, the last of equal keys comes first and `dedup` keeps it.
    members.reverse();
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    members.dedup_by(|(a, _), (b, _)| a == b);
}

/// Appends the text as Python writes a string: in quotes, with the escapes it uses and no others.
pub fn push_text(out: &mut String, text: &str) {
    out.push('"');
    let mut clean = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x8 => "\\b",
            0xc => "\\f",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(text.get(clean..at).unwrap_or_default());
        clean = at + 1;
        out.push_str(short);
        if short.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{byte:04x}");
        }
    }
    out.push_str(text.get(clean..).unwrap_or_default());
    out.push('"');
}

fn push_body(out: &mut String, body: Value<'_>) -> Option<()> {
    let Value::String(body) = body else { return None };
    // Escapes are ASCII, which no character outside it combines with without being noticed here.
    if body.is_canonical() && pytext::surely_nfc(body.raw()) {
        push_quoted(out, body.raw());
    } else {
        push_text(out, &pytext::nfc(&whole(body)?));
    }
    Some(())
}

fn push_string(out: &mut String, text: RawStr<'_>) -> Option<()> {
    if text.is_canonical() {
        push_quoted(out, text.raw());
    } else {
        push_text(out, &whole(text)?);
    }
    Some(())
}

/// Appends a text that is already escaped.
fn push_quoted(out: &mut String, raw: &str) {
    out.push('"');
    out.push_str(raw);
    out.push('"');
}

/// The value of a string that has no lone surrogate.
fn whole(text: RawStr<'_>) -> Option<Cow<'_, str>> {
    let (text, lone) = text.decode();
    (!lone).then_some(text)
}

fn push_value(out: &mut String, value: Value<'_>) -> Option<()> {
    match value {
        Value::String(text) => push_string(out, text)?,
        Value::Int("-0") => out.push('0'),
        // The grammar leaves nothing else for Python to print differently.
        Value::Int(text) | Value::Constant(text) => out.push_str(text),
        Value::Float(text) => push_float(out, text.parse().ok()?),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Null => out.push_str("null"),
        Value::Compound(text) => push_compound(out, text)?,
    }
    Some(())
}

/// Appends a float as Python's `json` prints it.
fn push_float(out: &mut String, value: f64) {
    match value {
        _ if value.is_finite() => number::push_double(out, value, number::Style::Python),
        _ if value.is_nan() => out.push_str("NaN"),
        _ => out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" }),
    }
}

/// One step of a nested value; containers know where they end.
enum Token<'a> {
    Object { end: usize },
    Array { end: usize },
    Key(RawStr<'a>),
    Scalar(Value<'a>),
}

/// A container that is being written.
enum Frame<'a> {
    /// The members that are left, in order, as (key, token of the value).
    Object(std::vec::IntoIter<(Cow<'a, str>, usize)>),
    /// The next element and the end.
    Array { next: usize, end: usize },
}

/// Appends an array or object with all keys sorted.
///
/// The tokens are listed first and written then, so that sorting moves no text: the cost stays
/// near linear however the objects are nested.
fn push_compound(out: &mut String, text: &str) -> Option<()> {
    let tokens = tokens(text)?;
    let mut stack: Vec<Frame<'_>> = Vec::new();
    let mut at = 0;
    loop {
        match tokens.get(at)? {
            Token::Object { end } => {
                out.push('{');
                stack.push(Frame::Object(sorted_members(&tokens, at, *end)?.into_iter()));
            }
            Token::Array { end } => {
                out.push('[');
                stack.push(Frame::Array { next: at + 1, end: *end });
            }
            Token::Scalar(value) => push_value(out, *value)?,
            Token::Key(_) => return None,
        }
        loop {
            let Some(frame) = stack.last_mut() else { return Some(()) };
            let next = match frame {
                Frame::Object(members) => members.next().map(|(key, at)| (Some(key), at)),
                Frame::Array { next, end } => (*next < *end).then(|| {
                    let at = *next;
                    *next = after(&tokens, at);
                    (None, at)
                }),
            };
            let in_object = matches!(frame, Frame::Object(_));
            let Some((key, value)) = next else {
                out.push(if in_object { '}' } else { ']' });
                stack.pop();
                continue;
            };
            // A bracket just opened needs no comma. No value ends in an opening bracket, as a
            // string ends in a quote.
            if !out.ends_with(['{', '[']) {
                out.push(',');
            }
            if let Some(key) = key {
                push_text(out, &key);
                out.push(':');
            }
            at = value;
            break;
        }
    }
}

/// Lists the tokens of a value; `None` if it is nested too deeply.
fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut too_deep = false;
    json::walk(text, |event| {
        if too_deep {
            return;
        }
        match event {
            Event::ObjectStart | Event::ArrayStart => {
                too_deep = open.len() >= MAX_DEPTH;
                open.push(tokens.len());
                tokens.push(match event {
                    Event::ObjectStart => Token::Object { end: 0 },
                    _ => Token::Array { end: 0 },
                });
            }
            Event::ObjectEnd | Event::ArrayEnd => {
                let here = tokens.len();
                let start = open.pop().and_then(|start| tokens.get_mut(start));
                if let Some(Token::Object { end } | Token::Array { end }) = start {
                    *end = here;
                }
            }
            Event::Key(key) => tokens.push(Token::Key(key)),
            Event::Scalar(value) => tokens.push(Token::Scalar(value)),
        }
    })
    .ok()?;
    (!too_deep).then_some(tokens)
}

/// The token behind the value at this one.
fn after(tokens: &[Token<'_>], at: usize) -> usize {
    match tokens.get(at) {
        Some(Token::Object { end } | Token::Array { end }) => *end,
        _ => at + 1,
    }
}

/// The members of the object at this token, sorted; `None` if a key holds a lone surrogate.
fn sorted_members<'a>(
    tokens: &[Token<'a>],
    object: usize,
    end: usize,
) -> Option<Vec<(Cow<'a, str>, usize)>> {
    let mut members = Vec::new();
    let mut at = object + 1;
    while at < end {
        let Some(Token::Key(key)) = tokens.get(at) else { return None };
        members.push((whole(*key)?, at + 1));
        at = after(tokens, at + 1);
    }
    sort_members(&mut members);
    Some(members)
}

#[cfg(test)]
mod tests;
