//! Strict JSON (docs/formats/amp.md, section 11) with the source text of every value, because numbers count as they
//! are spelled and marks may change only their own bytes.
//!
//! The scanner below it reads what Python reads. This module refuses everything that is not standard JSON, and also
//! duplicate keys, halves of surrogate pairs and numbers without a finite value.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use crate::store::text::json::{self, JsonError, JsonEvent, JsonValue, RawStr};

/// The deepest nesting that is accepted. No known program writes a tenth of it; the limit bounds memory.
pub const MAX_DEPTH: usize = 10_000;

/// White space between the tokens of JSON.
const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// A member of an object, and the places of its parts in the object's text.
#[derive(Clone, Debug)]
pub struct JsonMember<'a> {
    /// The key; halves of surrogate pairs are U+FFFD.
    pub key: Cow<'a, str>,
    /// The value.
    pub value: JsonValue<'a>,
    /// The place of the key, quotes included, in bytes.
    pub key_at: Range<usize>,
    /// The place of the value, in bytes.
    pub value_at: Range<usize>,
}

/// Returns the members of the object in a text, in order, duplicates included.
///
/// # Errors
/// If the text is not one object, as [`json::visit_members`].
pub fn parse_members(text: &str) -> Result<Vec<JsonMember<'_>>, JsonError> {
    let mut members = Vec::new();
    json::visit_members(text, |key, value| members.push(locate_member(text, key, value)))?;
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

/// Returns the member of this name. The last of equal keys counts, as for every reader.
pub fn find_last<'m, 'a>(members: &'m [JsonMember<'a>], name: &str) -> Option<&'m JsonMember<'a>> {
    members.iter().rev().find(|m| m.key == name)
}

fn locate_member<'a>(text: &str, key: RawStr<'a>, value: JsonValue<'a>) -> JsonMember<'a> {
    let offset = |part: &str| part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let key_start = offset(key.raw_text()).saturating_sub(1);
    let key_end = offset(key.raw_text()) + key.raw_text().len() + 1;
    let rest = text.get(key_end..).unwrap_or_default();
    let behind = rest.trim_start_matches(SPACE).trim_start_matches(':').trim_start_matches(SPACE);
    let start = key_end + (rest.len() - behind.len());
    let len = match value {
        JsonValue::String(text) => text.raw_text().len() + 2,
        JsonValue::Int(text)
        | JsonValue::Float(text)
        | JsonValue::Constant(text)
        | JsonValue::Compound(text) => text.len(),
        JsonValue::Bool(false) => 5,
        JsonValue::Bool(true) | JsonValue::Null => 4,
    };
    let (key_at, value_at) = (key_start..key_end, start..start + len);
    JsonMember { key: key.to_text(), value, key_at, value_at }
}

/// Returns true if a text that failed to parse may be the beginning of one that parses.
pub fn is_cut_short(text: &str, error: &JsonError) -> bool {
    let JsonError::Syntax { at, .. } = error else { return false };
    // The scanner accepts the white space that Python strips off the end. It may be part of a string here.
    let end = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
    let rest = text.trim_end_matches(end).get(*at..).unwrap_or_default();
    let word = ["true", "false", "null"].iter().any(|word| word.starts_with(rest));
    let escape = rest
        .strip_prefix('u')
        .is_some_and(|hex| hex.len() < 4 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    word || escape || matches!(rest, "." | "e" | "E" | "e+" | "e-" | "E+" | "E-")
}

/// A flaw inside a value that parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonFlaw {
    /// A key that is in one object twice.
    Duplicate(String),
    /// A number that overflows, or one of the words that Python reads as numbers.
    NotFinite,
    /// A string with half a surrogate pair.
    LoneSurrogate,
    /// A value that is nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// Checks a value at every depth and reports the first flaw.
///
/// # Errors
/// [`JsonFlaw`].
pub fn check_value(text: &str) -> Result<(), JsonFlaw> {
    let mut open: Vec<ObjectKeys<'_>> = Vec::new();
    let mut flaw = None;
    let walked = json::walk_value(text, |event| {
        if flaw.is_none() {
            flaw = check_event(&mut open, event).err();
        }
    });
    match flaw {
        Some(flaw) => Err(flaw),
        // The caller has parsed the value. If it does not parse here, it is not trusted.
        None => walked.map_err(|_| JsonFlaw::NotFinite),
    }
}

/// The keys of an object. A few are compared one by one, which costs less than hashing them.
#[derive(Default)]
struct ObjectKeys<'a> {
    few: Vec<Cow<'a, str>>,
    more: HashSet<Cow<'a, str>>,
}

impl<'a> ObjectKeys<'a> {
    const FEW: usize = 16;

    /// Adds a key, and returns true if it is new.
    fn insert(&mut self, key: Cow<'a, str>) -> bool {
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

fn check_event<'a>(open: &mut Vec<ObjectKeys<'a>>, event: JsonEvent<'a>) -> Result<(), JsonFlaw> {
    match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            if open.len() >= MAX_DEPTH {
                return Err(JsonFlaw::TooDeep);
            }
            open.push(ObjectKeys::default());
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => drop(open.pop()),
        JsonEvent::Key(key) => {
            let (key, lone) = key.decode();
            if lone {
                return Err(JsonFlaw::LoneSurrogate);
            }
            if open.last_mut().is_some_and(|keys| !keys.insert(key.clone())) {
                return Err(JsonFlaw::Duplicate(key.into_owned()));
            }
        }
        // The escapes that Python writes hold no surrogates.
        JsonEvent::Scalar(JsonValue::String(text)) if !text.is_canonical() && text.decode().1 => {
            return Err(JsonFlaw::LoneSurrogate);
        }
        JsonEvent::Scalar(JsonValue::Int(number) | JsonValue::Float(number))
            if !number.parse::<f64>().is_ok_and(f64::is_finite) =>
        {
            return Err(JsonFlaw::NotFinite);
        }
        JsonEvent::Scalar(JsonValue::Constant(_)) => return Err(JsonFlaw::NotFinite),
        JsonEvent::Scalar(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(text: &str) -> Vec<(String, String)> {
        let part = |at: &Range<usize>| text[at.clone()].to_owned();
        parse_members(text).unwrap().iter().map(|m| (part(&m.key_at), part(&m.value_at))).collect()
    }

    #[test]
    fn a_key_that_comes_twice_is_found_among_many() {
        for count in [1, 15, 16, 17, 40] {
            let keys: Vec<String> = (0..count).map(|n| format!("\"k{n}\":{{\"k0\":1}}")).collect();
            assert_eq!(check_value(&format!("{{{}}}", keys.join(","))), Ok(()));
            for twice in [0, count / 2, count - 1] {
                let text = format!("{{{},\"k{twice}\":1}}", keys.join(","));
                assert_eq!(check_value(&text), Err(JsonFlaw::Duplicate(format!("k{twice}"))));
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
        assert!(parse_members("\u{a0}{}").is_err());
        assert!(parse_members("{}\u{b}").is_err());
        assert!(parse_members("\u{1c}{}").is_err());
        assert!(parse_members(" \t\r\n{} \n").is_ok());
        assert!(parse_members("{\u{a0}}").is_err());
    }

    #[test]
    fn every_beginning_is_cut_short() {
        let whole = r#"{"a":"x\u00e9\n  ","b":[true,false,null,-1.5e+3,{"c":{}}],"d":0.25}"#;
        for end in 1..whole.len() {
            let text = &whole[..end];
            let error = parse_members(text).unwrap_err();
            assert!(is_cut_short(text, &error), "{text}: {error}");
        }
        for text in ["{\"a\":\"x\u{a0}", "{\"a\":\"\u{3000}\u{85}", "{\"a\u{2028}"] {
            assert!(is_cut_short(text, &parse_members(text).unwrap_err()), "{text}");
        }
        for bad in [r#"{"a":1}}"#, r#"{"a":trux"#, r#"{"a":"\x"#, "[1]", r#"{"a":01"#, "{'a':1}"] {
            let error = parse_members(bad).unwrap_err();
            assert!(!is_cut_short(bad, &error), "{bad}: {error}");
        }
    }

    #[test]
    fn flaws_are_found_at_every_depth() {
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        let cases = [
            (r#"{"a":1,"a":2}"#, Some(JsonFlaw::Duplicate("a".into()))),
            (r#"[{"x":{"a":1,"\u0061":2}}]"#, Some(JsonFlaw::Duplicate("a".into()))),
            (r#"{"a":{"a":1},"b":{"a":1}}"#, None),
            (r#"[{"a":1},{"a":1}]"#, None),
            (r#"{"a":[1e400]}"#, Some(JsonFlaw::NotFinite)),
            (r#"{"a":-1e999}"#, Some(JsonFlaw::NotFinite)),
            (r#"{"a":NaN}"#, Some(JsonFlaw::NotFinite)),
            (r#"{"a":1e308}"#, None),
            (r#"{"a":["\ud800"]}"#, Some(JsonFlaw::LoneSurrogate)),
            (r#"{"\udc00":1}"#, Some(JsonFlaw::LoneSurrogate)),
            (r#"{"a":"\ud83d\ude00"}"#, None),
            (&deep, Some(JsonFlaw::TooDeep)),
        ];
        for (text, flaw) in cases {
            assert_eq!(check_value(text).err(), flaw, "{}", text.get(..40).unwrap_or(text));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[\\[\\]{}\":,a0.e+ \\\\u\u{a0}ntf-]{0,40}") {
            if let Ok(members) = parse_members(&text) {
                for m in members {
                    prop_assert!(text.get(m.key_at).is_some());
                    prop_assert!(text.get(m.value_at).is_some());
                }
                let _ = check_value(&text);
            }
        }
    }
}
