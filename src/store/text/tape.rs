//! JSON with sorted keys, as the programs that sign it print it (docs/formats/amp.md, section 9;
//! docs/formats/samp.md, section 10).
//!
//! Each program has its own idea of that. A [`Tape`] is a value taken apart once; it prints itself in
//! every [`Profile`]. Its tokens are listed first and written then, so that sorting moves no text: the
//! cost stays near linear however the objects are nested.

use std::borrow::Cow;

use super::canonical::push_escaped;
use super::json::{self, Event, RawStr, Value};
use super::number::{self, Style};
use super::strict::MAX_DEPTH;

/// How a program prints JSON before it signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// RFC 8785: raw UTF-8, keys by UTF-16 unit. This is what msgfs writes.
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
pub struct Tape<'a> {
    tokens: Vec<Token<'a>>,
    traits: Traits,
}

/// What makes the profiles differ.
#[derive(Clone, Copy, Debug, Default)]
struct Traits {
    non_ascii: bool,
    del: bool,
    odd_number: bool,
    index_key: bool,
    /// `__proto__`, which JavaScript drops. To accept that would let anybody add such a member.
    proto_key: bool,
}

#[derive(Debug)]
enum Token<'a> {
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

/// Something to print.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'t> {
    /// The value at this token.
    At(usize),
    /// `null`.
    Null,
    /// A string.
    Text(&'t str),
}

/// A container that is being printed.
enum Frame<'t> {
    /// The members that are left, in order.
    Object(std::vec::IntoIter<(&'t str, Piece<'t>)>),
    /// The next element and the end.
    Array { next: usize, end: usize },
}

impl<'a> Tape<'a> {
    /// Takes a value apart; `None` if it is not JSON, nested too deeply, or has half a surrogate pair in
    /// a key.
    pub fn of(text: &'a str) -> Option<Self> {
        let mut tape = Self { tokens: Vec::new(), traits: Traits::default() };
        let mut open = Vec::new();
        let mut sound = true;
        json::walk(text, |event| sound = sound && tape.add(&mut open, event).is_some()).ok()?;
        sound.then_some(tape)
    }

    fn add(&mut self, open: &mut Vec<usize>, event: Event<'a>) -> Option<()> {
        let here = self.tokens.len();
        let token = match event {
            Event::ObjectStart | Event::ArrayStart => {
                open.push(here);
                match event {
                    Event::ObjectStart => Token::Object { end: 0 },
                    _ => Token::Array { end: 0 },
                }
            }
            Event::ObjectEnd | Event::ArrayEnd => {
                let start = open.pop().and_then(|start| self.tokens.get_mut(start));
                if let Some(Token::Object { end } | Token::Array { end }) = start {
                    *end = here;
                }
                return Some(());
            }
            Event::Key(key) => {
                let key = self.text(key)?;
                self.traits.index_key |= array_index(&key).is_some();
                self.traits.proto_key |= key == "__proto__";
                Token::Key(key)
            }
            Event::Scalar(Value::String(text)) => self.text(text).map_or(Token::Lone, Token::Text),
            Event::Scalar(Value::Int(number) | Value::Float(number)) => {
                self.traits.odd_number |= !number::is_plain(number);
                Token::Number(number)
            }
            Event::Scalar(Value::Bool(true)) => Token::Word("true"),
            Event::Scalar(Value::Bool(false)) => Token::Word("false"),
            Event::Scalar(Value::Null) => Token::Word("null"),
            Event::Scalar(Value::Constant(text)) => Token::Constant(text),
            Event::Scalar(Value::Compound(_)) => return None,
        };
        self.tokens.push(token);
        (open.len() <= MAX_DEPTH).then_some(())
    }

    fn text(&mut self, text: RawStr<'a>) -> Option<Cow<'a, str>> {
        let (text, lone) = text.decode();
        self.traits.non_ascii |= !text.is_ascii();
        self.traits.del |= text.contains('\u{7f}');
        (!lone).then_some(text)
    }

    /// The profiles that can print this value differently, the most likely first.
    pub fn profiles(&self) -> impl Iterator<Item = Profile> + use<> {
        let t = self.traits;
        // Sorting differs only for keys outside the basic plane, which are not ASCII.
        let jq = t.del || t.odd_number || t.non_ascii || t.index_key;
        [
            (Profile::Jcs, true),
            (Profile::Jq16, jq),
            (Profile::Jq17, t.odd_number),
            (Profile::Js, t.index_key && !t.proto_key),
            (Profile::Python, jq),
        ]
        .into_iter()
        .filter_map(|(profile, differs)| differs.then_some(profile))
    }

    /// Appends the value in a profile, the members of its outermost object `change`d before they are
    /// sorted; `None` if something in it has no form there.
    pub fn print<'t>(
        &'t self,
        out: &mut String,
        profile: Profile,
        change: impl FnOnce(&mut Vec<(&'t str, Piece<'t>)>),
    ) -> Option<()> {
        let mut change = Some(change);
        let mut stack: Vec<Frame<'_>> = Vec::new();
        let mut piece = Piece::At(0);
        loop {
            let at = if let Piece::At(at) = piece { self.tokens.get(at)? } else { &Token::Lone };
            match (piece, at) {
                (Piece::Null, _) => out.push_str("null"),
                (Piece::Text(text), _) => push_text(out, text, profile),
                (Piece::At(at), Token::Object { end }) => {
                    out.push('{');
                    let mut members = self.members(at, *end)?;
                    change.take().into_iter().for_each(|change| change(&mut members));
                    sort(&mut members, profile);
                    stack.push(Frame::Object(members.into_iter()));
                }
                (Piece::At(at), Token::Array { end }) => {
                    out.push('[');
                    change = None;
                    stack.push(Frame::Array { next: at + 1, end: *end });
                }
                (_, Token::Text(text)) => push_text(out, text, profile),
                (_, Token::Number(text)) => number::push(out, text, profile.numbers())?,
                (_, Token::Word(word)) => out.push_str(word),
                (_, Token::Constant(text)) if profile.numbers() == Style::Python => {
                    out.push_str(text);
                }
                (_, Token::Constant(_) | Token::Lone | Token::Key(_)) => return None,
            }
            let Some((key, next)) = self.next(out, &mut stack) else { return Some(()) };
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

    /// What is printed next, and the key before it; closes what has ended. `None` at the end.
    fn next<'t>(
        &self,
        out: &mut String,
        stack: &mut Vec<Frame<'t>>,
    ) -> Option<(Option<&'t str>, Piece<'t>)> {
        loop {
            let (next, close) = match stack.last_mut()? {
                Frame::Object(members) => {
                    (members.next().map(|(key, piece)| (Some(key), piece)), '}')
                }
                Frame::Array { next, end } => {
                    let at = *next;
                    *next = self.after(at);
                    ((at < *end).then_some((None, Piece::At(at))), ']')
                }
            };
            if next.is_some() {
                return next;
            }
            out.push(close);
            stack.pop();
        }
    }

    /// The members of the object at this token, as written.
    fn members(&self, object: usize, end: usize) -> Option<Vec<(&str, Piece<'_>)>> {
        let mut members = Vec::new();
        let mut at = object + 1;
        while at < end {
            let Some(Token::Key(key)) = self.tokens.get(at) else { return None };
            members.push((&**key, Piece::At(at + 1)));
            at = self.after(at + 1);
        }
        Some(members)
    }

    /// The token behind the value at this one.
    fn after(&self, at: usize) -> usize {
        match self.tokens.get(at) {
            Some(Token::Object { end } | Token::Array { end }) => *end,
            _ => at + 1,
        }
    }
}

impl Profile {
    const fn numbers(self) -> Style {
        match self {
            Self::Jcs | Self::Js => Style::Ecma,
            Self::Jq16 => Style::Jq16,
            Self::Jq17 => Style::Jq17,
            Self::Python | Self::PythonRaw => Style::Python,
        }
    }
}

/// Sorts by key and keeps the last of equal keys.
fn sort(members: &mut Vec<(&str, Piece<'_>)>, profile: Profile) {
    let utf16 = |a: &str, b: &str| a.encode_utf16().cmp(b.encode_utf16());
    // The sort is stable; reversed, the last of equal keys comes first and `dedup` keeps it.
    members.reverse();
    members.sort_by(|(a, _), (b, _)| match profile {
        Profile::Jq16 | Profile::Jq17 | Profile::Python | Profile::PythonRaw => a.cmp(b),
        Profile::Jcs => utf16(a, b),
        Profile::Js => match (array_index(a), array_index(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => utf16(a, b),
        },
    });
    members.dedup_by(|(a, _), (b, _)| a == b);
}

/// The number that JavaScript takes a key for, if it orders it as one.
fn array_index(key: &str) -> Option<u32> {
    let canonical = key == "0" || key.starts_with(|c: char| matches!(c, '1'..='9'));
    let digits = key.bytes().all(|b| b.is_ascii_digit());
    (canonical && digits).then(|| key.parse().ok())?.filter(|n| *n < u32::MAX)
}

/// Appends a string in quotes.
fn push_text(out: &mut String, text: &str, profile: Profile) {
    push_escaped(out, text, |c| match profile {
        Profile::Jcs | Profile::Js | Profile::PythonRaw => false,
        Profile::Jq16 | Profile::Jq17 => c == '\u{7f}',
        Profile::Python => c >= '\u{7f}',
    });
}

#[cfg(test)]
mod tests;
