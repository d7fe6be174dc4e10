//! JSON as this format wants it (docs/formats/amp.md, section 11): strict, with the source text of
//! every value at hand, because numbers count as they are spelled and marks may change only their
//! own bytes.
//!
//! The scanner below it reads what Python reads. Here everything that is not standard JSON is
//! refused, and so are duplicate keys, halves of surrogate pairs and numbers without a finite value.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use crate::store::text::json::{self, Event, JsonError, RawStr, Value};

/// Deeper nesting is refused. No known program writes a tenth of it; the limit bounds memory.
pub const MAX_DEPTH: usize = 10_000;

/// White space between the tokens of JSON.
const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// A member of an object and where its parts stand in the object's text.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The key; halves of surrogate pairs are U+FFFD.
    pub key: Cow<'a, str>,
    /// The value.
    pub value: Value<'a>,
    /// Where the key stands, quotes included, in bytes.
    pub key_at: Range<usize>,
    /// Where the value stands, in bytes.
    pub value_at: Range<usize>,
}

/// The members of the object that a text is, in order, duplicates included.
///
/// # Errors
/// If the text is not one object, as [`json::members`].
pub fn members(text: &str) -> Result<Vec<Member<'_>>, JsonError> {
    let mut members = Vec::new();
    json::members(text, |key, value| members.push(member(text, key, value)))?;
    // Python strips more than JSON calls white space.
    let braces = text.trim_matches(SPACE);
    if !(braces.starts_with('{') && braces.ends_with('}')) {
        return Err(JsonError::Syntax {
            at: 0,
            problem: "a white space character that JSON does not allow",
        });
    }
    Ok(members)
}

/// The member of this name; of equal keys the last counts, as for every reader.
pub fn last<'m, 'a>(members: &'m [Member<'a>], name: &str) -> Option<&'m Member<'a>> {
    members.iter().rev().find(|m| m.key == name)
}

fn member<'a>(text: &str, key: RawStr<'a>, value: Value<'a>) -> Member<'a> {
    let offset = |part: &str| part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let key_start = offset(key.raw()).saturating_sub(1);
    let key_end = offset(key.raw()) + key.raw().len() + 1;
    let rest = text.get(key_end..).unwrap_or_default();
    let behind = rest.trim_start_matches(SPACE).trim_start_matches(':').trim_start_matches(SPACE);
    let start = key_end + (rest.len() - behind.len());
    let len = match value {
        Value::String(text) => text.raw().len() + 2,
        Value::Int(text) | Value::Float(text) | Value::Constant(text) | Value::Compound(text) => {
            text.len()
        }
        Value::Bool(false) => 5,
        Value::Bool(true) | Value::Null => 4,
    };
    let (key_at, value_at) = (key_start..key_end, start..start + len);
    Member { key: key.to_text(), value, key_at, value_at }
}

/// Whether a text that failed to parse may be the beginning of one that parses.
pub fn is_cut_short(text: &str, error: &JsonError) -> bool {
    let JsonError::Syntax { at, .. } = error else { return false };
    // The scanner takes what Python strips off the end, which may be part of a string here.
    let end = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
    let rest = text.trim_end_matches(end).get(*at..).unwrap_or_default();
    let word = ["true", "false", "null"].iter().any(|word| word.starts_with(rest));
    let escape = rest
        .strip_prefix('u')
        .is_some_and(|hex| hex.len() < 4 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    word || escape || matches!(rest, "." | "e" | "E" | "e+" | "e-" | "E+" | "E-")
}

/// What is wrong inside a value that parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// This key is in one object twice.
    Duplicate(String),
    /// A number overflows, or is one of the words Python reads as numbers.
    NotFinite,
    /// A string holds half a surrogate pair.
    LoneSurrogate,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// Looks through a value at every depth and reports the first flaw.
///
/// # Errors
/// [`Flaw`].
pub fn check(text: &str) -> Result<(), Flaw> {
    let mut open: Vec<Keys<'_>> = Vec::new();
    let mut flaw = None;
    let walked = json::walk(text, |event| {
        if flaw.is_none() {
            flaw = step(&mut open, event).err();
        }
    });
    match flaw {
        Some(flaw) => Err(flaw),
        // The caller has parsed it; should it not parse here, it is not trusted.
        None => walked.map_err(|_| Flaw::NotFinite),
    }
}

/// The keys of an object. A few are compared one by one, which costs less than to hash them.
#[derive(Default)]
struct Keys<'a> {
    few: Vec<Cow<'a, str>>,
    more: HashSet<Cow<'a, str>>,
}

impl<'a> Keys<'a> {
    const FEW: usize = 16;

    /// Whether it is new.
    fn add(&mut self, key: Cow<'a, str>) -> bool {
        if self.few.contains(&key) {
            return false;
        }
        if self.few.len() < Self::FEW {
            self.few.push(key);
            return true;
        }
        self.more.insert(key)
    }
}

fn step<'a>(open: &mut Vec<Keys<'a>>, event: Event<'a>) -> Result<(), Flaw> {
    match event {
        Event::ObjectStart | Event::ArrayStart => {
            if open.len() >= MAX_DEPTH {
                return Err(Flaw::TooDeep);
            }
            open.push(Keys::default());
        }
        Event::ObjectEnd | Event::ArrayEnd => drop(open.pop()),
        Event::Key(key) => {
            let (key, lone) = key.decode();
            if lone {
                return Err(Flaw::LoneSurrogate);
            }
            if open.last_mut().is_some_and(|keys| !keys.add(key.clone())) {
                return Err(Flaw::Duplicate(key.into_owned()));
            }
        }
        // The escapes that Python writes hold no surrogates.
        Event::Scalar(Value::String(text)) if !text.is_canonical() && text.decode().1 => {
            return Err(Flaw::LoneSurrogate);
        }
        Event::Scalar(Value::Int(number) | Value::Float(number))
            if !number.parse::<f64>().is_ok_and(f64::is_finite) =>
        {
            return Err(Flaw::NotFinite);
        }
        Event::Scalar(Value::Constant(_)) => return Err(Flaw::NotFinite),
        Event::Scalar(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(text: &str) -> Vec<(String, String)> {
        let part = |at: &Range<usize>| text[at.clone()].to_owned();
        members(text).unwrap().iter().map(|m| (part(&m.key_at), part(&m.value_at))).collect()
    }

    #[test]
    fn a_key_that_comes_twice_is_found_among_many() {
        for count in [1, 15, 16, 17, 40] {
            let keys: Vec<String> = (0..count).map(|n| format!("\"k{n}\":{{\"k0\":1}}")).collect();
            assert_eq!(check(&format!("{{{}}}", keys.join(","))), Ok(()));
            for twice in [0, count / 2, count - 1] {
                let text = format!("{{{},\"k{twice}\":1}}", keys.join(","));
                assert_eq!(check(&text), Err(Flaw::Duplicate(format!("k{twice}"))));
            }
        }
    }

    #[test]
    fn members_know_where_they_stand() {
        let text = " {\"a\" : null,\"\":\"x\\\"\", \"b\"\n:\t{\"c\": 1} ,\"d\":-1.5e3,\"e\":false,\"f\":[ ] , \"g\":\"\"} ";
        let got = spans(text);
        let expected = [
            ("\"a\"", "null"),
            ("\"\"", "\"x\\\"\""),
            ("\"b\"", "{\"c\": 1}"),
            ("\"d\"", "-1.5e3"),
            ("\"e\"", "false"),
            ("\"f\"", "[ ]"),
            ("\"g\"", "\"\""),
        ];
        assert_eq!(got.len(), expected.len());
        for ((key, value), (k, v)) in got.iter().zip(expected) {
            assert_eq!((key.as_str(), value.as_str()), (k, v));
        }
    }

    #[test]
    fn only_the_white_space_of_json() {
        assert!(members("\u{a0}{}").is_err());
        assert!(members("{}\u{b}").is_err());
        assert!(members("\u{1c}{}").is_err());
        assert!(members(" \t\r\n{} \n").is_ok());
        assert!(members("{\u{a0}}").is_err());
    }

    #[test]
    fn every_beginning_is_cut_short() {
        let whole = r#"{"a":"x\u00e9\n  ","b":[true,false,null,-1.5e+3,{"c":{}}],"d":0.25}"#;
        for end in 1..whole.len() {
            let text = &whole[..end];
            let error = members(text).unwrap_err();
            assert!(is_cut_short(text, &error), "{text}: {error}");
        }
        for text in ["{\"a\":\"x\u{a0}", "{\"a\":\"\u{3000}\u{85}", "{\"a\u{2028}"] {
            assert!(is_cut_short(text, &members(text).unwrap_err()), "{text}");
        }
        for bad in [r#"{"a":1}}"#, r#"{"a":trux"#, r#"{"a":"\x"#, "[1]", r#"{"a":01"#, "{'a':1}"] {
            let error = members(bad).unwrap_err();
            assert!(!is_cut_short(bad, &error), "{bad}: {error}");
        }
    }

    #[test]
    fn flaws_are_found_at_every_depth() {
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        let cases = [
            (r#"{"a":1,"a":2}"#, Some(Flaw::Duplicate("a".into()))),
            (r#"[{"x":{"a":1,"\u0061":2}}]"#, Some(Flaw::Duplicate("a".into()))),
            (r#"{"a":{"a":1},"b":{"a":1}}"#, None),
            (r#"[{"a":1},{"a":1}]"#, None),
            (r#"{"a":[1e400]}"#, Some(Flaw::NotFinite)),
            (r#"{"a":-1e999}"#, Some(Flaw::NotFinite)),
            (r#"{"a":NaN}"#, Some(Flaw::NotFinite)),
            (r#"{"a":1e308}"#, None),
            (r#"{"a":["\ud800"]}"#, Some(Flaw::LoneSurrogate)),
            (r#"{"\udc00":1}"#, Some(Flaw::LoneSurrogate)),
            (r#"{"a":"\ud83d\ude00"}"#, None),
            (&deep, Some(Flaw::TooDeep)),
        ];
        for (text, flaw) in cases {
            assert_eq!(check(text).err(), flaw, "{}", text.get(..40).unwrap_or(text));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[\\[\\]{}\":,a0.e+ \\\\u\u{a0}ntf-]{0,40}") {
            if let Ok(members) = members(&text) {
                for m in members {
                    prop_assert!(text.get(m.key_at).is_some());
                    prop_assert!(text.get(m.value_at).is_some());
                }
                let _ = check(&text);
            }
        }
    }
}
