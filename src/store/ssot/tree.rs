//! JSON as a tree, strict: what `store::json` reads less duplicate keys, halves of surrogate pairs,
//! numbers without a value and a BOM. Numbers keep their spelling, members their order.

use std::borrow::Cow;

use crate::model::one_line;
use crate::store::text::json::{self, Event, JsonError, Value};
use crate::store::text::strict;

/// Deeper nesting is refused; no message needs a tenth of it.
const MAX_DEPTH: usize = 128;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Node<'a> {
    /// An object's members in order.
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// An array.
    Array(Vec<Node<'a>>),
    /// A string.
    Text(Cow<'a, str>),
    /// An integer, as written.
    Int(Cow<'a, str>),
    /// A number with a fraction or an exponent, as written.
    Float(Cow<'a, str>),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

/// Why a text is no JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJson {
    /// One sentence.
    pub why: String,
    /// It may be the beginning of one.
    pub incomplete: bool,
}

impl<'a> Node<'a> {
    /// Reads the object that these bytes are.
    ///
    /// # Errors
    /// If they are anything else.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NotJson> {
        let no = |why: String| NotJson { why, incomplete: false };
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => {
                let why = format!("it is not UTF-8 (byte {})", e.valid_up_to());
                return Err(NotJson { why, incomplete: e.error_len().is_none() });
            }
        };
        if text.starts_with('\u{feff}') {
            return Err(no("it begins with a byte order mark".into()));
        }
        if text.trim().is_empty() {
            return Err(NotJson { why: "it is empty".into(), incomplete: true });
        }
        strict::members(text).map_err(|e| NotJson {
            incomplete: strict::is_cut_short(text, &e),
            why: e.to_string(),
        })?;
        strict::check(text).map_err(|flaw| no(describe(&flaw)))?;
        let mut build = Build::default();
        let walked = json::walk(text, |event| build.take(event));
        match (walked, build.done) {
            _ if build.too_deep => Err(no("it is nested deeper than 128".into())),
            (Ok(()), Some(node)) => Ok(node),
            (walked, _) => Err(no(walked.err().unwrap_or(JsonError::NotAnObject).to_string())),
        }
    }

    /// The member of this name; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let found = members.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        found.filter(|value| **value != Self::Null)
    }

    /// The member of this name, if it is a string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }

    /// The string that it is.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The items of the member of this name, if it is an array.
    pub fn items(&self, name: &str) -> &[Self] {
        match self.get(name) {
            Some(Self::Array(items)) => items,
            _ => &[],
        }
    }

    /// The member of this name, if it is an integer; what is beyond 64 bits is the nearest number
    /// of 64 bits.
    pub fn int(&self, name: &str) -> Option<i64> {
        let Some(Self::Int(digits)) = self.get(name) else { return None };
        let far = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
        Some(digits.parse().unwrap_or(far))
    }

    /// The member of this name, if it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            Self::Int(digits) | Self::Float(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The member of this name, if it is `true` or `false`.
    pub fn flag(&self, name: &str) -> Option<bool> {
        if let Self::Bool(flag) = self.get(name)? { Some(*flag) } else { None }
    }

    /// The value as text, two blanks a level, without a final newline. Strings are UTF-8, numbers as
    /// they were written.
    pub fn pretty(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut String, level: usize) {
        match self {
            Self::Object(members) => block(out, level, ['{', '}'], members, |out, (key, value)| {
                out.push_str(&quoted(key));
                out.push_str(": ");
                value.write(out, level + 1);
            }),
            Self::Array(items) => {
                block(out, level, ['[', ']'], items, |out, item| item.write(out, level + 1));
            }
            Self::Text(text) => out.push_str(&quoted(text)),
            Self::Int(number) | Self::Float(number) => out.push_str(number),
            Self::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Self::Null => out.push_str("null"),
        }
    }
}

fn block<T>(
    out: &mut String,
    level: usize,
    [open, close]: [char; 2],
    items: &[T],
    mut each: impl FnMut(&mut String, &T),
) {
    out.push(open);
    for (n, item) in items.iter().enumerate() {
        out.push_str(if n == 0 { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(level + 1));
        each(out, item);
    }
    if !items.is_empty() {
        out.push('\n');
        out.push_str(&"  ".repeat(level));
    }
    out.push(close);
}

/// A string between quotes.
pub fn quoted(text: &str) -> String {
    // A string always has a JSON form.
    serde_json::to_string(text).unwrap_or_default()
}

fn describe(flaw: &strict::Flaw) -> String {
    match flaw {
        strict::Flaw::Duplicate(key) => {
            let key: String = one_line(key).chars().take(80).collect();
            format!("it has the key {key:?} twice in one object")
        }
        strict::Flaw::NotFinite => "it holds a number that has no value (NaN, 1e999)".into(),
        strict::Flaw::LoneSurrogate => "it holds half a surrogate pair".into(),
        strict::Flaw::TooDeep => "it is nested deeper than 128".into(),
    }
}

/// Makes a tree of events.
#[derive(Default)]
struct Build<'a> {
    /// What is open, with the key it will get.
    open: Vec<(Option<Cow<'a, str>>, Node<'a>)>,
    key: Option<Cow<'a, str>>,
    done: Option<Node<'a>>,
    too_deep: bool,
}

impl<'a> Build<'a> {
    fn take(&mut self, event: Event<'a>) {
        if self.too_deep {
            return;
        }
        match event {
            Event::ObjectStart => self.start(Node::Object(Vec::new())),
            Event::ArrayStart => self.start(Node::Array(Vec::new())),
            Event::Key(key) => self.key = Some(key.to_text()),
            Event::Scalar(value) => {
                let key = self.key.take();
                self.put(key, scalar(value));
            }
            Event::ObjectEnd | Event::ArrayEnd => {
                if let Some((key, node)) = self.open.pop() {
                    self.put(key, node);
                }
            }
        }
    }

    fn start(&mut self, node: Node<'a>) {
        self.too_deep = self.open.len() >= MAX_DEPTH;
        self.open.push((self.key.take(), node));
    }

    fn put(&mut self, key: Option<Cow<'a, str>>, node: Node<'a>) {
        match self.open.last_mut() {
            Some((_, Node::Object(members))) => members.push((key.unwrap_or_default(), node)),
            Some((_, Node::Array(items))) => items.push(node),
            _ => self.done = Some(node),
        }
    }
}

fn scalar(value: Value<'_>) -> Node<'_> {
    match value {
        Value::String(text) => Node::Text(text.to_text()),
        Value::Int(digits) => Node::Int(digits.into()),
        Value::Float(digits) => Node::Float(digits.into()),
        Value::Bool(flag) => Node::Bool(flag),
        Value::Null => Node::Null,
        Value::Constant(text) | Value::Compound(text) => Node::Text(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spelling_and_order_are_kept() {
        let text = r#"{"z":1e2,"a":[1.50,-0,{}],"s":"\u00e9\n","e":[],"n":null}"#;
        assert_eq!(
            Node::parse(text.as_bytes()).unwrap().pretty(),
            "{\n  \"z\": 1e2,\n  \"a\": [\n    1.50,\n    -0,\n    {}\n  ],\n  \"s\": \"é\\n\",\n  \
             \"e\": [],\n  \"n\": null\n}"
        );
    }

    #[test]
    fn what_is_no_object() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        for (text, words, incomplete) in [
            ("", "empty", true),
            ("[1]", "not an object", false),
            ("{\"a\":1", "", true),
            ("{\"a\":1,\"a\":2}", "twice", false),
            ("\u{feff}{}", "byte order mark", false),
            ("{\"a\":NaN}", "no value", false),
            ("{\"a\":\"\\ud800\"}", "surrogate", false),
            ("{} x", "", false),
            (&deep, "deeper", false),
        ] {
            let e = Node::parse(text.as_bytes()).unwrap_err();
            assert!(e.why.contains(words) && e.incomplete == incomplete, "{text}: {e:?}");
        }
        assert!(Node::parse(b"{\"a\":\"\xff\"}").unwrap_err().why.contains("UTF-8"));
    }

    proptest! {
        #[test]
        fn printing_changes_no_value(text in r#"\{"a":[\[\]{}:,"a0.e+ ntf-]{0,30}\}"#) {
            if let Ok(node) = Node::parse(text.as_bytes()) {
                let printed = node.pretty();
                let again = Node::parse(printed.as_bytes()).unwrap();
                prop_assert_eq!(&again, &node);
                prop_assert_eq!(again.pretty(), printed);
            }
        }
    }
}
