//! JSON with sorted keys, as the programs that sign it print it (docs/formats/amp.md, section 9; docs/formats/samp.md,
//! section 10).
//!
//! Each program sorts and prints in its own way. A [`JsonTape`] is a value that is taken apart once and prints itself
//! in every [`JsonProfile`]. Its tokens are listed before they are written, so that sorting moves no text: the cost
//! stays near linear however the objects are nested.

use std::borrow::Cow;

use super::canonical::push_escaped;
use super::json::{self, JsonEvent, JsonValue, RawStr};
use super::number::{self, NumberStyle};
use super::strict_json::MAX_DEPTH;

/// The most keys and values of a value that is printed: each costs far more memory than its text.
pub const MAX_TOKENS: usize = 1 << 20;

/// The way in which a program prints JSON before it signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonProfile {
    /// RFC 8785: raw UTF-8, keys by UTF-16 unit. msgfs writes this.
    Jcs,
    /// jq 1.6: raw UTF-8 but DEL, keys by code point.
    Jq16,
    /// jq since 1.7: the same, with numbers as written.
    Jq17,
    /// JavaScript objects: as JCS, but keys that look like array indices first.
    Js,
    /// Python's `json.dumps`: everything outside ASCII escaped, keys by code point.
    Python,
    /// The same with `ensure_ascii=False`: raw UTF-8.
    PythonRaw,
}

/// A value, taken apart.
#[derive(Debug)]
pub struct JsonTape<'a> {
    tokens: Vec<TapeToken<'a>>,
    traits: TapeTraits,
}

/// The properties of a value that make the profiles differ.
#[derive(Clone, Copy, Debug, Default)]
struct TapeTraits {
    non_ascii: bool,
    del: bool,
    odd_number: bool,
    index_key: bool,
    /// True for a key `__proto__`, which JavaScript drops. If it were accepted, anybody could add such a member.
    proto_key: bool,
}

#[derive(Debug)]
enum TapeToken<'a> {
    Object {
        end: usize,
    },
    Array {
        end: usize,
    },
    Key(Cow<'a, str>),
    Text(Cow<'a, str>),
    /// A string that is no text: it holds half a surrogate pair.
    Lone,
    Number(&'a str),
    Word(&'static str),
    /// `NaN` and its like.
    Constant(&'a str),
}

/// A part that is to be printed.
#[derive(Clone, Copy, Debug)]
pub enum TapePiece<'t> {
    /// The value at this token.
    At(usize),
    /// `null`.
    Null,
    /// A string.
    Text(&'t str),
}

/// A container that is being printed.
enum PrintFrame<'t> {
    /// The members that are left, in order.
    Object(std::vec::IntoIter<(&'t str, TapePiece<'t>)>),
    /// The next element and the end.
    Array { next: usize, end: usize },
}

impl<'a> JsonTape<'a> {
    /// Takes a value apart. `None` if it is not JSON, nested too deeply, has more than [`MAX_TOKENS`] keys and values,
    /// or has half a surrogate pair in a key.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut tape = Self { tokens: Vec::new(), traits: TapeTraits::default() };
        let mut open = Vec::new();
        let mut sound = true;
        json::walk_value(text, |event| {
            sound = sound && tape.push_event(&mut open, event).is_some();
        })
        .ok()?;
        sound.then_some(tape)
    }

    fn push_event(&mut self, open: &mut Vec<usize>, event: JsonEvent<'a>) -> Option<()> {
        let here = self.tokens.len();
        let token = match event {
            JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
                open.push(here);
                match event {
                    JsonEvent::ObjectStart => TapeToken::Object { end: 0 },
                    _ => TapeToken::Array { end: 0 },
                }
            }
            JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => {
                let start = open.pop().and_then(|start| self.tokens.get_mut(start));
                if let Some(TapeToken::Object { end } | TapeToken::Array { end }) = start {
                    *end = here;
                }
                return Some(());
            }
            JsonEvent::Key(key) => {
                let key = self.decode_text(key)?;
                self.traits.index_key |= array_index(&key).is_some();
                self.traits.proto_key |= key == "__proto__";
                TapeToken::Key(key)
            }
            JsonEvent::Scalar(JsonValue::String(text)) => {
                self.decode_text(text).map_or(TapeToken::Lone, TapeToken::Text)
            }
            JsonEvent::Scalar(JsonValue::Int(number) | JsonValue::Float(number)) => {
                self.traits.odd_number |= !number::is_plain_integer(number);
                TapeToken::Number(number)
            }
            JsonEvent::Scalar(JsonValue::Bool(true)) => TapeToken::Word("true"),
            JsonEvent::Scalar(JsonValue::Bool(false)) => TapeToken::Word("false"),
            JsonEvent::Scalar(JsonValue::Null) => TapeToken::Word("null"),
            JsonEvent::Scalar(JsonValue::Constant(text)) => TapeToken::Constant(text),
            JsonEvent::Scalar(JsonValue::Compound(_)) => return None,
        };
        self.tokens.push(token);
        (open.len() <= MAX_DEPTH && self.tokens.len() <= MAX_TOKENS).then_some(())
    }

    fn decode_text(&mut self, text: RawStr<'a>) -> Option<Cow<'a, str>> {
        let (text, lone) = text.decode();
        self.traits.non_ascii |= !text.is_ascii();
        self.traits.del |= text.contains('\u{7f}');
        (!lone).then_some(text)
    }

    /// Returns the profiles that can print this value differently, the most likely first.
    pub fn differing_profiles(&self) -> impl Iterator<Item = JsonProfile> + use<> {
        let t = self.traits;
        // Sorting differs only for keys outside the basic plane, which are not ASCII.
        let jq = t.del || t.odd_number || t.non_ascii || t.index_key;
        [
            (JsonProfile::Jcs, true),
            (JsonProfile::Jq16, jq),
            (JsonProfile::Jq17, t.odd_number),
            (JsonProfile::Js, t.index_key && !t.proto_key),
            (JsonProfile::Python, jq),
        ]
        .into_iter()
        .filter_map(|(profile, differs)| differs.then_some(profile))
    }

    /// Appends the value in a profile. `change` changes the members of its outermost object before they are sorted.
    /// `None` if something in it has no form in that profile.
    pub fn print_as<'t>(
        &'t self,
        out: &mut String,
        profile: JsonProfile,
        change: impl FnOnce(&mut Vec<(&'t str, TapePiece<'t>)>),
    ) -> Option<()> {
        let mut change = Some(change);
        let mut stack: Vec<PrintFrame<'_>> = Vec::new();
        let mut piece = TapePiece::At(0);
        loop {
            let at =
                if let TapePiece::At(at) = piece { self.tokens.get(at)? } else { &TapeToken::Lone };
            match (piece, at) {
                (TapePiece::Null, _) => out.push_str("null"),
                (TapePiece::Text(text), _) => push_text(out, text, profile),
                (TapePiece::At(at), TapeToken::Object { end }) => {
                    out.push('{');
                    let mut members = self.object_members(at, *end)?;
                    change.take().into_iter().for_each(|change| change(&mut members));
                    sort_members(&mut members, profile);
                    stack.push(PrintFrame::Object(members.into_iter()));
                }
                (TapePiece::At(at), TapeToken::Array { end }) => {
                    out.push('[');
                    change = None;
                    stack.push(PrintFrame::Array { next: at + 1, end: *end });
                }
                (_, TapeToken::Text(text)) => push_text(out, text, profile),
                (_, TapeToken::Number(text)) => {
                    number::push_number(out, text, profile.number_style())?;
                }
                (_, TapeToken::Word(word)) => out.push_str(word),
                (_, TapeToken::Constant(text)) if profile.number_style() == NumberStyle::Python => {
                    out.push_str(text);
                }
                (_, TapeToken::Constant(_) | TapeToken::Lone | TapeToken::Key(_)) => return None,
            }
            let Some((key, next)) = self.next_piece(out, &mut stack) else { return Some(()) };
            // Only a container that was just opened ends in a bracket: strings end in a quote.
            if !out.ends_with(['{', '[']) {
                out.push(',');
            }
            if let Some(key) = key {
                push_text(out, key, profile);
                out.push(':');
            }
            piece = next;
        }
    }

    /// Returns the next part to print, and the key before it. Closes containers that have ended. `None` at the end.
    fn next_piece<'t>(
        &self,
        out: &mut String,
        stack: &mut Vec<PrintFrame<'t>>,
    ) -> Option<(Option<&'t str>, TapePiece<'t>)> {
        loop {
            let (next, close) = match stack.last_mut()? {
                PrintFrame::Object(members) => {
                    (members.next().map(|(key, piece)| (Some(key), piece)), '}')
                }
                PrintFrame::Array { next, end } => {
                    let at = *next;
                    *next = self.skip_value(at);
                    ((at < *end).then_some((None, TapePiece::At(at))), ']')
                }
            };
            if next.is_some() {
                return next;
            }
            out.push(close);
            stack.pop();
        }
    }

    /// Returns the members of the object at this token, as written.
    fn object_members(&self, object: usize, end: usize) -> Option<Vec<(&str, TapePiece<'_>)>> {
        let mut members = Vec::new();
        let mut at = object + 1;
        while at < end {
            let Some(TapeToken::Key(key)) = self.tokens.get(at) else { return None };
            members.push((&**key, TapePiece::At(at + 1)));
            at = self.skip_value(at + 1);
        }
        Some(members)
    }

    /// Returns the token after the value at this one.
    fn skip_value(&self, at: usize) -> usize {
        match self.tokens.get(at) {
            Some(TapeToken::Object { end } | TapeToken::Array { end }) => *end,
            _ => at + 1,
        }
    }
}

impl JsonProfile {
    const fn number_style(self) -> NumberStyle {
        match self {
            Self::Jcs | Self::Js => NumberStyle::Ecma,
            Self::Jq16 => NumberStyle::Jq16,
            Self::Jq17 => NumberStyle::Jq17,
            Self::Python | Self::PythonRaw => NumberStyle::Python,
        }
    }
}

/// Sorts by key and keeps the last of equal keys.
fn sort_members(members: &mut Vec<(&str, TapePiece<'_>)>, profile: JsonProfile) {
    let utf16 = |a: &str, b: &str| a.encode_utf16().cmp(b.encode_utf16());
    // The sort is stable. After the reversal, the last of equal keys comes first and `dedup` keeps it.
    members.reverse();
    members.sort_by(|(a, _), (b, _)| match profile {
        JsonProfile::Jq16 | JsonProfile::Jq17 | JsonProfile::Python | JsonProfile::PythonRaw => {
            a.cmp(b)
        }
        JsonProfile::Jcs => utf16(a, b),
        JsonProfile::Js => match (array_index(a), array_index(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => utf16(a, b),
        },
    });
    members.dedup_by(|(a, _), (b, _)| a == b);
}

/// Returns the number as which JavaScript orders a key, if it does.
fn array_index(key: &str) -> Option<u32> {
    let canonical = key == "0" || key.starts_with(|c: char| matches!(c, '1'..='9'));
    let digits = key.bytes().all(|b| b.is_ascii_digit());
    (canonical && digits).then(|| key.parse().ok())?.filter(|n| *n < u32::MAX)
}

/// Appends a string in quotes.
fn push_text(out: &mut String, text: &str, profile: JsonProfile) {
    push_escaped(out, text, |c| match profile {
        JsonProfile::Jcs | JsonProfile::Js | JsonProfile::PythonRaw => false,
        JsonProfile::Jq16 | JsonProfile::Jq17 => c == '\u{7f}',
        JsonProfile::Python => c >= '\u{7f}',
    });
}

#[cfg(test)]
mod tests;
