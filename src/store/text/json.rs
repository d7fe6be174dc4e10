//! A JSON scanner that gives the text of each value and accepts what Python's `json` module accepts.
//!
//! # Why not `serde_json`
//!
//! The programs that already read these logs decide whether a record exists, and they use Python's parser.
//! `serde_json` differs where it hurts:
//!
//! - a lone surrogate escape (`"\ud800"`) in a member nobody asked for makes it refuse the line;
//! - so does nesting deeper than 128, which Python reads and a recursive parser must limit;
//! - `NaN`, `Infinity` and `-Infinity` are refused, and numbers beyond `f64` too;
//! - integers beyond 64 bits lose digits, and the text of a number is gone, yet the id of a record is a hash over the
//!   number as Python would print it again;
//! - derived structs refuse duplicate keys, where Python lets the last one win.
//!
//! So this scanner reports the members of one object in order, with the text of each value as it stands, and leaves
//! meaning to its caller. It keeps no tree, borrows everything and does not recurse, so no input can exhaust the
//! stack.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::pytext;

/// The largest number of digits of an integer: Python refuses to convert longer ones, and with them the line.
const MAX_INT_DIGITS: usize = 4300;

/// The reason why a line is not a JSON object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// A break of the grammar at this byte.
    #[error("not JSON: at byte {at}, {problem}")]
    Syntax {
        /// Offset in the line, in bytes from 0.
        at: usize,
        /// A description of the problem.
        problem: &'static str,
    },
    /// An integer with more digits than Python converts.
    #[error("at byte {at}, an integer has more than 4300 digits")]
    LongInteger {
        /// Offset of the number, in bytes from 0.
        at: usize,
    },
    /// A JSON value that is not an object.
    #[error("JSON, but not an object: a record is written between {{ and }}")]
    NotAnObject,
}

/// The spelling of the characters of a string. It is as wide as a word: writing a narrower value writes only a part of
/// the word, and a copy of the whole word waits until that part has reached the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
enum EscapeStyle {
    /// No backslash: the text is the value.
    Plain,
    /// Only escapes that Python would write in the same way.
    Canonical,
    /// Any escapes.
    Free,
}

/// A string as it stands between its quotes, already known to be well formed.
#[derive(Clone, Copy, Debug)]
pub struct RawStr<'a> {
    text: &'a str,
    spelling: EscapeStyle,
}

impl<'a> RawStr<'a> {
    /// Creates a text that needs no escapes.
    pub(in crate::store) fn from_plain(text: &'a str) -> Self {
        Self { text, spelling: EscapeStyle::Plain }
    }

    /// Returns the text between the quotes, escapes and all.
    pub fn raw_text(&self) -> &'a str {
        self.text
    }

    /// Returns true if it holds a backslash. If not, [`RawStr::raw_text`] is the value.
    pub fn has_escapes(&self) -> bool {
        self.spelling != EscapeStyle::Plain
    }

    /// Returns true if Python would print the value again in exactly these bytes.
    pub fn is_canonical(&self) -> bool {
        self.spelling != EscapeStyle::Free
    }

    /// Returns the value, and true if it held a lone surrogate, which is shown as U+FFFD.
    pub fn decode(&self) -> (Cow<'a, str>, bool) {
        if !self.has_escapes() {
            return (Cow::Borrowed(self.text), false);
        }
        let mut out = String::with_capacity(self.text.len());
        let mut lone = false;
        let mut rest = self.text;
        while let Some((before, tail)) =
            memchr(b'\\', rest.as_bytes()).and_then(|n| rest.split_at_checked(n))
        {
            out.push_str(before);
            let (c, used) = decode_escape(tail);
            lone |= c.is_none();
            out.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = tail.get(used..).unwrap_or_default();
        }
        out.push_str(rest);
        (Cow::Owned(out), lone)
    }

    /// Returns the value, with lone surrogates shown as U+FFFD.
    pub fn to_text(&self) -> Cow<'a, str> {
        self.decode().0
    }
}

/// Decodes the escape at the start. Returns the character (`None` for a lone surrogate) and the number of its bytes.
/// The scanner has checked the text, so every escape is complete.
fn decode_escape(text: &str) -> (Option<char>, usize) {
    let simple = match text.as_bytes().get(1) {
        Some(b'u') => {
            let high = parse_hex4(text, 2);
            if !(0xd800..0xdc00).contains(&high) {
                return (char::from_u32(high), 6);
            }
            let low = if text.get(6..8) == Some("\\u") { parse_hex4(text, 8) } else { 0 };
            if !(0xdc00..0xe000).contains(&low) {
                return (None, 6);
            }
            return (char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)), 12);
        }
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(&b) => char::from(b),
        None => char::REPLACEMENT_CHARACTER,
    };
    (Some(simple), 2)
}

/// Returns the number of four hexadecimal digits at this offset.
fn parse_hex4(text: &str, at: usize) -> u32 {
    text.get(at..at + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// The value of a member.
#[derive(Clone, Copy, Debug)]
pub enum JsonValue<'a> {
    /// A string.
    String(RawStr<'a>),
    /// An integer, as written.
    Int(&'a str),
    /// A number with a fraction or an exponent, as written.
    Float(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
    /// `NaN`, `Infinity` or `-Infinity`, which Python reads and writes although JSON has no such
    /// values.
    Constant(&'a str),
    /// The text of an array or object, checked to be well formed. [`walk_value`] goes through it.
    Compound(&'a str),
}

/// A step of [`walk_value`].
#[derive(Clone, Copy, Debug)]
pub enum JsonEvent<'a> {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// The key of the value that follows.
    Key(RawStr<'a>),
    /// A value that is neither array nor object.
    Scalar(JsonValue<'a>),
}

/// Reports the members of the object on this line, in order, duplicates included.
///
/// White space around the object is allowed as far as Python's `str.strip` removes it.
///
/// # Errors
/// If the line is anything but exactly one JSON object. Members before the error were reported.
pub fn visit_members<'a>(
    line: &'a str,
    mut visit: impl FnMut(RawStr<'a>, JsonValue<'a>),
) -> Result<(), JsonError> {
    let mut s = JsonScanner::new(line);
    if s.peek() != Some(b'{') {
        s.read_value(&mut |_| {})?;
        s.expect_end()?;
        return Err(JsonError::NotAnObject);
    }
    s.at += 1;
    s.skip_space();
    if s.peek() == Some(b'}') {
        s.at += 1;
        return s.expect_end();
    }
    loop {
        let key = s.read_key()?;
        let value = s.read_member_value()?;
        visit(key, value);
        s.skip_space();
        match s.peek() {
            Some(b',') => s.at += 1,
            Some(b'}') => break,
            _ => return Err(s.syntax_error("a comma or } is missing after a value")),
        }
        s.skip_space();
    }
    s.at += 1;
    s.expect_end()
}

/// Reports the elements of an array, in order: the text of each, and its value.
///
/// # Errors
/// If the text is anything but exactly one JSON array. Elements before the error were reported.
pub fn visit_elements<'a>(
    array: &'a str,
    mut visit: impl FnMut(&'a str, JsonValue<'a>),
) -> Result<(), JsonError> {
    let mut s = JsonScanner::new(array);
    if s.peek() != Some(b'[') {
        return Err(s.syntax_error("an array is expected"));
    }
    s.at += 1;
    s.skip_space();
    if s.peek() == Some(b']') {
        s.at += 1;
        return s.expect_end();
    }
    loop {
        let start = s.at;
        let value = s.read_member_value()?;
        visit(s.text_since(start), value);
        s.skip_space();
        match s.peek() {
            Some(b',') => s.at += 1,
            Some(b']') => break,
            _ => return Err(s.syntax_error("a comma or ] is missing after a value")),
        }
        s.skip_space();
    }
    s.at += 1;
    s.expect_end()
}

/// Returns the text of the value at the start of a text, and the text after it; `None` if there is no value.
pub fn split_first_value(text: &str) -> Option<(&str, &str)> {
    let mut s = JsonScanner { text, at: 0 };
    s.read_value(&mut |_| {}).ok()?;
    Some((s.text_since(0), text.get(s.at..)?))
}

/// Goes through one JSON value of any kind and depth.
///
/// # Errors
/// If the text is anything but exactly one JSON value.
pub fn walk_value<'a>(
    text: &'a str,
    mut visit: impl FnMut(JsonEvent<'a>),
) -> Result<(), JsonError> {
    let mut s = JsonScanner::new(text);
    s.read_value(&mut visit)?;
    s.expect_end()
}

/// A position in a line.
struct JsonScanner<'a> {
    /// The line up to its last character that is not white space.
    text: &'a str,
    at: usize,
}

impl<'a> JsonScanner<'a> {
    fn new(line: &'a str) -> Self {
        let text = line.trim_end_matches(pytext::is_space);
        Self { text, at: text.len() - pytext::strip_start(text).len() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn remaining_bytes(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn text_since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn syntax_error(&self, problem: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, problem }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect_end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at == self.text.len() {
            return Ok(());
        }
        Err(self.syntax_error("something follows the end of the value"))
    }

    /// Reads a key and its colon, and stops at the value.
    #[expect(
        clippy::inline_always,
        reason = "what it gives stays in registers; through memory, a third of a parse was waiting for it"
    )]
    #[inline(always)]
    fn read_key(&mut self) -> Result<RawStr<'a>, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.syntax_error("a key in double quotes is missing"));
        }
        self.at += 1;
        let key = self.read_string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.syntax_error("a colon is missing after a key"));
        }
        self.at += 1;
        self.skip_space();
        Ok(key)
    }

    /// Reads one value. Of an array or object it keeps the text.
    #[expect(clippy::inline_always, reason = "see read_key()")]
    #[inline(always)]
    fn read_member_value(&mut self) -> Result<JsonValue<'a>, JsonError> {
        if !matches!(self.peek(), Some(b'{' | b'[')) {
            return self.read_scalar();
        }
        let start = self.at;
        self.read_value(&mut |_| {})?;
        Ok(JsonValue::Compound(self.text_since(start)))
    }

    /// Reads one value of any kind, with an explicit stack instead of recursion.
    fn read_value(&mut self, visit: &mut impl FnMut(JsonEvent<'a>)) -> Result<(), JsonError> {
        // The open containers, outermost first. `true` is an object.
        let mut open: Vec<bool> = Vec::new();
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.skip_space();
                    visit(JsonEvent::ObjectStart);
                    if self.peek() != Some(b'}') {
                        open.push(true);
                        visit(JsonEvent::Key(self.read_key()?));
                        continue;
                    }
                    self.at += 1;
                    visit(JsonEvent::ObjectEnd);
                }
                Some(b'[') => {
                    self.at += 1;
                    self.skip_space();
                    visit(JsonEvent::ArrayStart);
                    if self.peek() != Some(b']') {
                        open.push(false);
                        continue;
                    }
                    self.at += 1;
                    visit(JsonEvent::ArrayEnd);
                }
                _ => visit(JsonEvent::Scalar(self.read_scalar()?)),
            }
            if !self.finish_value(&mut open, visit)? {
                return Ok(());
            }
        }
    }

    /// Closes containers that end after a value, and stops at the start of the next value. Returns false if the
    /// outermost value has ended.
    fn finish_value(
        &mut self,
        open: &mut Vec<bool>,
        visit: &mut impl FnMut(JsonEvent<'a>),
    ) -> Result<bool, JsonError> {
        while let Some(&in_object) = open.last() {
            self.skip_space();
            match (self.peek(), in_object) {
                (Some(b','), _) => {
                    self.at += 1;
                    self.skip_space();
                    if in_object {
                        visit(JsonEvent::Key(self.read_key()?));
                    }
                    return Ok(true);
                }
                (Some(b'}'), true) => visit(JsonEvent::ObjectEnd),
                (Some(b']'), false) => visit(JsonEvent::ArrayEnd),
                (_, true) => return Err(self.syntax_error("a comma or } is missing after a value")),
                (_, false) => {
                    return Err(self.syntax_error("a comma or ] is missing after a value"));
                }
            }
            self.at += 1;
            open.pop();
        }
        Ok(false)
    }

    #[expect(clippy::inline_always, reason = "see read_key()")]
    #[inline(always)]
    fn read_scalar(&mut self) -> Result<JsonValue<'a>, JsonError> {
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                Ok(JsonValue::String(self.read_string()?))
            }
            Some(b'-' | b'0'..=b'9') => self.read_number(),
            Some(b't') => self.read_word("true", JsonValue::Bool(true)),
            Some(b'f') => self.read_word("false", JsonValue::Bool(false)),
            Some(b'n') => self.read_word("null", JsonValue::Null),
            Some(b'N') => self.read_word("NaN", JsonValue::Constant("NaN")),
            Some(b'I') => self.read_word("Infinity", JsonValue::Constant("Infinity")),
            Some(_) => Err(self.syntax_error("a value is expected")),
            None => Err(self.syntax_error("the text ends where a value is expected")),
        }
    }

    fn read_word(&mut self, word: &str, value: JsonValue<'a>) -> Result<JsonValue<'a>, JsonError> {
        if !self.remaining_bytes().starts_with(word.as_bytes()) {
            return Err(self.syntax_error("a value is expected"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn read_number(&mut self) -> Result<JsonValue<'a>, JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
            if self.peek() == Some(b'I') {
                return self.read_word("Infinity", JsonValue::Constant("-Infinity"));
            }
        }
        let first_digit = self.at;
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.skip_digits(),
            _ => return Err(self.syntax_error("a digit is missing after the minus sign")),
        }
        let int_end = self.at;
        if let [b'.', b'0'..=b'9', ..] = self.remaining_bytes() {
            self.at += 1;
            self.skip_digits();
        }
        match self.remaining_bytes() {
            [b'e' | b'E', b'+' | b'-', b'0'..=b'9', ..] => {
                self.at += 2;
                self.skip_digits();
            }
            [b'e' | b'E', b'0'..=b'9', ..] => {
                self.at += 1;
                self.skip_digits();
            }
            _ => {}
        }
        if self.at > int_end {
            return Ok(JsonValue::Float(self.text_since(start)));
        }
        if int_end - first_digit > MAX_INT_DIGITS {
            return Err(JsonError::LongInteger { at: start });
        }
        Ok(JsonValue::Int(self.text_since(start)))
    }

    fn skip_digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    /// Reads the rest of a string after its opening quote, and stops after the closing one.
    #[expect(clippy::inline_always, reason = "see read_key()")]
    #[inline(always)]
    fn read_string(&mut self) -> Result<RawStr<'a>, JsonError> {
        let start = self.at;
        let mut spelling = EscapeStyle::Plain;
        loop {
            self.at += plain_run_len(self.remaining_bytes());
            match self.peek() {
                Some(b'"') => {
                    let text = self.text_since(start);
                    self.at += 1;
                    return Ok(RawStr { text, spelling });
                }
                Some(b'\\') => {
                    self.at += 1;
                    spelling = spelling.max(self.read_escape()?);
                }
                Some(_) => {
                    return Err(self.syntax_error("a control character in a string is not escaped"));
                }
                None => return Err(self.syntax_error("a string does not end")),
            }
        }
    }

    /// Reads the rest of an escape after its backslash.
    fn read_escape(&mut self) -> Result<EscapeStyle, JsonError> {
        let (spelling, len) = match self.remaining_bytes() {
            [b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't', ..] => (EscapeStyle::Canonical, 1),
            [b'/', ..] => (EscapeStyle::Free, 1),
            [b'u', hex @ ..] => match hex.first_chunk::<4>() {
                // These are control characters without a short form, as Python writes them.
                Some(
                    [b'0', b'0', b'0', b'0'..=b'7' | b'b' | b'e' | b'f']
                    | [b'0', b'0', b'1', b'0'..=b'9' | b'a'..=b'f'],
                ) => (EscapeStyle::Canonical, 5),
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => (EscapeStyle::Free, 5),
                _ => {
                    return Err(self.syntax_error("\\u is not followed by four hexadecimal digits"));
                }
            },
            _ => return Err(self.syntax_error("a backslash is followed by no known escape")),
        };
        self.at += len;
        Ok(spelling)
    }
}

/// Returns the number of bytes before the first `"`, `\` or control character.
fn plain_run_len(bytes: &[u8]) -> usize {
    /// The number of words after which the vector search takes over. It has a price to start.
    const SHORT: usize = 4;
    let (words, _) = bytes.as_chunks::<8>();
    for (n, word) in words.iter().take(SHORT).enumerate() {
        let found = mark_special_bytes(u64::from_le_bytes(*word));
        if found != 0 {
            return n * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let done = words.len().min(SHORT) * 8;
    let rest = bytes.get(done..).unwrap_or_default();
    let run = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
    let run = rest.get(..run).unwrap_or_default();
    // Control characters are very rare, so all bytes are compared without a branch.
    let clean = run.iter().fold(0xff, |least, b| *b.min(&least)) >= 0x20;
    let len = if clean { run.len() } else { run.iter().take_while(|b| **b >= 0x20).count() };
    done + len
}

/// Marks the first byte of the word that is `"`, `\` or a control character by its highest bit. Bytes after it may be
/// marked wrongly. Returns 0 if there is none.
fn mark_special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let below = |x: u64, n: u64| x.wrapping_sub(ONES * n) & !x;
    let quote = below(word ^ (ONES * u64::from(b'"')), 1);
    let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
    (below(word, 0x20) | quote | backslash) & HIGH
}

#[cfg(test)]
pub(super) mod tests;
