//! The payload as its signer printed it (docs/formats/amp.md, section 9).
//!
//! The format says "JSON with sorted keys", and each program has its own idea of that. A [`Tape`] is
//! the payload taken apart once; it prints itself in every [`Profile`] and in every [`View`]: with
//! the members that programs are known to add or drop after signing put back as they were.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::store::text::json::{self, Event, RawStr, Value};
use crate::store::text::number::{self, Style};
use crate::store::text::strict::MAX_DEPTH;

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
}

/// Which of the members that change on the way are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View<'a> {
    /// Without `attachments`. Only right where it is empty.
    pub no_attachments: bool,
    /// `context` taken away where it is `null`, or added as `null` where it is absent.
    pub other_context: bool,
    /// This in place of `message`.
    pub message: Option<&'a str>,
}

/// A payload, taken apart.
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
    Object { end: usize },
    Array { end: usize },
    Key(Cow<'a, str>),
    Text(Cow<'a, str>),
    Number(&'a str),
    Word(&'static str),
}

/// Something to print.
#[derive(Clone, Copy)]
enum Piece<'t> {
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
    /// Takes a value apart; `None` if it is not JSON, nested too deeply, or holds what has no
    /// canonical form (half a surrogate pair, `NaN`).
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
            Event::Scalar(Value::String(text)) => Token::Text(self.text(text)?),
            Event::Scalar(Value::Int(number) | Value::Float(number)) => {
                self.traits.odd_number |= !number::is_plain(number);
                Token::Number(number)
            }
            Event::Scalar(Value::Bool(true)) => Token::Word("true"),
            Event::Scalar(Value::Bool(false)) => Token::Word("false"),
            Event::Scalar(Value::Null) => Token::Word("null"),
            Event::Scalar(Value::Constant(_) | Value::Compound(_)) => return None,
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

    /// The profiles that can print this payload differently, the most likely first.
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

    /// Prints the payload; `None` if a number has no form in this profile.
    pub fn print(&self, profile: Profile, view: &View<'_>) -> Option<String> {
        let mut out = String::new();
        let mut stack: Vec<Frame<'_>> = Vec::new();
        let mut piece = Piece::At(0);
        if let Some(Token::Object { end }) = self.tokens.first() {
            out.push('{');
            stack.push(Frame::Object(self.top(*end, profile, view)?.into_iter()));
        } else {
            self.begin(&mut out, &mut stack, piece, profile)?;
        }
        loop {
            let Some(frame) = stack.last_mut() else { return Some(out) };
            let (key, next) = match frame {
                Frame::Object(members) => match members.next() {
                    Some((key, next)) => (Some(key), Some(next)),
                    None => (None, None),
                },
                Frame::Array { next, end } => {
                    let at = *next;
                    *next = self.after(at);
                    (None, (at < *end).then_some(Piece::At(at)))
                }
            };
            let Some(next) = next else {
                out.push(if matches!(frame, Frame::Object(_)) { '}' } else { ']' });
                stack.pop();
                continue;
            };
            piece = next;
            // Only a container that was just opened ends in a bracket: strings end in a quote.
            if !out.ends_with(['{', '[']) {
                out.push(',');
            }
            if let Some(key) = key {
                push_text(&mut out, key, profile);
                out.push(':');
            }
            self.begin(&mut out, &mut stack, piece, profile)?;
        }
    }

    /// Prints a scalar, or opens a container.
    fn begin<'t>(
        &'t self,
        out: &mut String,
        stack: &mut Vec<Frame<'t>>,
        piece: Piece<'t>,
        profile: Profile,
    ) -> Option<()> {
        let at = match piece {
            Piece::At(at) => at,
            Piece::Null => {
                out.push_str("null");
                return Some(());
            }
            Piece::Text(text) => {
                push_text(out, text, profile);
                return Some(());
            }
        };
        match self.tokens.get(at)? {
            Token::Object { end } => {
                out.push('{');
                let mut members = self.members(at, *end)?;
                sort(&mut members, profile);
                stack.push(Frame::Object(members.into_iter()));
            }
            Token::Array { end } => {
                out.push('[');
                stack.push(Frame::Array { next: at + 1, end: *end });
            }
            Token::Text(text) => push_text(out, text, profile),
            Token::Number(text) => number::push(out, text, profile.numbers())?,
            Token::Word(word) => out.push_str(word),
            Token::Key(_) => return None,
        }
        Some(())
    }

    /// The members of the payload itself, as the view wants them.
    fn top<'t>(
        &'t self,
        end: usize,
        profile: Profile,
        view: &View<'t>,
    ) -> Option<Vec<(&'t str, Piece<'t>)>> {
        let mut members = self.members(0, end)?;
        if view.no_attachments {
            members.retain(|(key, _)| *key != "attachments");
        }
        if view.other_context {
            let before = members.len();
            members.retain(|(key, _)| *key != "context");
            if members.len() == before {
                members.push(("context", Piece::Null));
            }
        }
        if let Some(text) = view.message {
            members.retain(|(key, _)| *key != "message");
            members.push(("message", Piece::Text(text)));
        }
        sort(&mut members, profile);
        Some(members)
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
            Self::Python => Style::Python,
        }
    }
}

fn sort(members: &mut [(&str, Piece<'_>)], profile: Profile) {
    let utf16 = |a: &str, b: &str| a.encode_utf16().cmp(b.encode_utf16());
    match profile {
        Profile::Jq16 | Profile::Jq17 | Profile::Python => members.sort_by(|a, b| a.0.cmp(b.0)),
        Profile::Jcs => members.sort_by(|a, b| utf16(a.0, b.0)),
        Profile::Js => members.sort_by(|a, b| match (array_index(a.0), array_index(b.0)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => utf16(a.0, b.0),
        }),
    }
}

/// The number that JavaScript takes a key for, if it orders it as one.
fn array_index(key: &str) -> Option<u32> {
    let canonical = key == "0" || key.starts_with(|c: char| matches!(c, '1'..='9'));
    let digits = key.bytes().all(|b| b.is_ascii_digit());
    (canonical && digits).then(|| key.parse().ok())?.filter(|n| *n < u32::MAX)
}

/// Appends a string in quotes.
fn push_text(out: &mut String, text: &str, profile: Profile) {
    let ascii = profile == Profile::Python;
    let del = matches!(profile, Profile::Jq16 | Profile::Jq17 | Profile::Python);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' || (del && c == '\u{7f}') || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests;
