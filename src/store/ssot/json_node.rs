//! JSON as a strict tree. It accepts the JSON of `store::text::json` without duplicate keys, halves of surrogate pairs,
//! numbers without a value, and a BOM. Numbers keep their spelling, members their order.

use std::borrow::Cow;

use crate::model::sanitize_line;
use crate::store::text::json::{self, JsonError, JsonEvent, JsonValue};
use crate::store::text::strict_json;

/// Limit of nesting; no message needs a tenth of it.
const MAX_DEPTH: usize = 128;

/// The number of levels that are indented.
const MAX_INDENT: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonNode<'a> {
    /// An object's members in order.
    Object(Vec<(Cow<'a, str>, JsonNode<'a>)>),
    /// An array.
    Array(Vec<JsonNode<'a>>),
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

/// The reason why a text is no JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonNodeError {
    /// One sentence.
    pub why: String,
    /// True if it may be the beginning of one.
    pub is_incomplete: bool,
}

impl<'a> JsonNode<'a> {
    /// Parses the object that these bytes are.
    ///
    /// # Errors
    /// If they are anything else.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, JsonNodeError> {
        let no = |why: String| JsonNodeError { why, is_incomplete: false };
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => {
                let why = format!("it is not UTF-8 (byte {})", e.valid_up_to());
                return Err(JsonNodeError { why, is_incomplete: e.error_len().is_none() });
            }
        };
        if text.starts_with('\u{feff}') {
            return Err(no("it begins with a byte order mark".into()));
        }
        if text.trim().is_empty() {
            return Err(JsonNodeError { why: "it is empty".into(), is_incomplete: true });
        }
        strict_json::parse_members(text).map_err(|e| JsonNodeError {
            is_incomplete: strict_json::is_cut_short(text, &e),
            why: e.to_string(),
        })?;
        strict_json::check_value(text).map_err(|flaw| no(describe_flaw(&flaw)))?;
        let mut build = JsonNodeBuilder::default();
        let walked = json::walk_value(text, |event| build.accept_event(event));
        match (walked, build.finished_root) {
            _ if build.too_deep => Err(no("it is nested deeper than 128".into())),
            (Ok(()), Some(node)) => Ok(node),
            (walked, _) => Err(no(walked.err().unwrap_or(JsonError::NotAnObject).to_string())),
        }
    }

    /// Returns the member of this name; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let found = members.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        found.filter(|value| **value != Self::Null)
    }

    /// Returns the member of this name, if it is a string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }

    /// Returns the string, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Returns the items of the member of this name, if it is an array.
    pub fn items(&self, name: &str) -> &[Self] {
        match self.get(name) {
            Some(Self::Array(items)) => items,
            _ => &[],
        }
    }

    /// Returns the member of this name, if it is an integer. A number beyond 64 bits becomes the nearest one of 64
    /// bits.
    pub fn int(&self, name: &str) -> Option<i64> {
        let Some(Self::Int(digits)) = self.get(name) else { return None };
        let far = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
        Some(digits.parse().unwrap_or(far))
    }

    /// Returns the member of this name, if it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            Self::Int(digits) | Self::Float(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// Returns the member of this name, if it is `true` or `false`.
    pub fn flag(&self, name: &str) -> Option<bool> {
        if let Self::Bool(flag) = self.get(name)? { Some(*flag) } else { None }
    }

    /// Returns the value as text, two blanks a level, without a final newline. Strings are UTF-8; numbers keep their
    /// spelling. Values deeper than 16 levels are written on one line.
    pub fn render_pretty(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut String, level: usize) {
        match self {
            Self::Object(members) => {
                write_block(out, level, ['{', '}'], members, |out, (key, value)| {
                    out.push_str(&quote_json(key));
                    out.push_str(": ");
                    value.write(out, level + 1);
                });
            }
            Self::Array(items) => {
                write_block(out, level, ['[', ']'], items, |out, item| item.write(out, level + 1));
            }
            Self::Text(text) => out.push_str(&quote_json(text)),
            Self::Int(number) | Self::Float(number) => out.push_str(number),
            Self::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Self::Null => out.push_str("null"),
        }
    }
}

fn write_block<T>(
    out: &mut String,
    level: usize,
    [open, close]: [char; 2],
    items: &[T],
    mut each: impl FnMut(&mut String, &T),
) {
    // Else a small file of deep values would become a huge text.
    let is_flat = level >= MAX_INDENT;
    out.push(open);
    for (n, item) in items.iter().enumerate() {
        match (n, is_flat) {
            (0, true) => {}
            (_, true) => out.push_str(", "),
            (0, false) => out.push('\n'),
            (_, false) => out.push_str(",\n"),
        }
        if !is_flat {
            out.push_str(&"  ".repeat(level + 1));
        }
        each(out, item);
    }
    if !items.is_empty() && !is_flat {
        out.push('\n');
        out.push_str(&"  ".repeat(level));
    }
    out.push(close);
}

/// Returns a string between quotes.
pub fn quote_json(text: &str) -> String {
    // A string always has a JSON form.
    serde_json::to_string(text).unwrap_or_default()
}

fn describe_flaw(flaw: &strict_json::JsonFlaw) -> String {
    match flaw {
        strict_json::JsonFlaw::Duplicate(key) => {
            let key: String = sanitize_line(key).chars().take(80).collect();
            format!("it has the key {key:?} twice in one object")
        }
        strict_json::JsonFlaw::NotFinite => {
            "it holds a number that has no value (NaN, 1e999)".into()
        }
        strict_json::JsonFlaw::LoneSurrogate => "it holds half a surrogate pair".into(),
        strict_json::JsonFlaw::TooDeep => "it is nested deeper than 128".into(),
    }
}

/// A builder that makes a tree of events.
#[derive(Default)]
struct JsonNodeBuilder<'a> {
    /// The open nodes, with the keys they will get.
    open_nodes: Vec<(Option<Cow<'a, str>>, JsonNode<'a>)>,
    key: Option<Cow<'a, str>>,
    finished_root: Option<JsonNode<'a>>,
    too_deep: bool,
}

impl<'a> JsonNodeBuilder<'a> {
    fn accept_event(&mut self, event: JsonEvent<'a>) {
        if self.too_deep {
            return;
        }
        match event {
            JsonEvent::ObjectStart => self.open_node(JsonNode::Object(Vec::new())),
            JsonEvent::ArrayStart => self.open_node(JsonNode::Array(Vec::new())),
            JsonEvent::Key(key) => self.key = Some(key.to_text()),
            JsonEvent::Scalar(value) => {
                let key = self.key.take();
                self.insert_node(key, scalar_node(value));
            }
            JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => {
                if let Some((key, node)) = self.open_nodes.pop() {
                    self.insert_node(key, node);
                }
            }
        }
    }

    fn open_node(&mut self, node: JsonNode<'a>) {
        self.too_deep = self.open_nodes.len() >= MAX_DEPTH;
        self.open_nodes.push((self.key.take(), node));
    }

    fn insert_node(&mut self, key: Option<Cow<'a, str>>, node: JsonNode<'a>) {
        match self.open_nodes.last_mut() {
            Some((_, JsonNode::Object(members))) => members.push((key.unwrap_or_default(), node)),
            Some((_, JsonNode::Array(items))) => items.push(node),
            _ => self.finished_root = Some(node),
        }
    }
}

fn scalar_node(value: JsonValue<'_>) -> JsonNode<'_> {
    match value {
        JsonValue::String(text) => JsonNode::Text(text.to_text()),
        JsonValue::Int(digits) => JsonNode::Int(digits.into()),
        JsonValue::Float(digits) => JsonNode::Float(digits.into()),
        JsonValue::Bool(flag) => JsonNode::Bool(flag),
        JsonValue::Null => JsonNode::Null,
        JsonValue::Constant(text) | JsonValue::Compound(text) => JsonNode::Text(text.into()),
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
            JsonNode::parse(text.as_bytes()).unwrap().render_pretty(),
            "{\n  \"z\": 1e2,\n  \"a\": [\n    1.50,\n    -0,\n    {}\n  ],\n  \"s\": \"é\\n\",\n  \
             \"e\": [],\n  \"n\": null\n}"
        );
    }

    #[test]
    fn deep_values_stand_in_one_line() {
        let (open, close) = ("[".repeat(15), "]".repeat(15));
        let text = format!("{{\"a\":{open}{{\"b\":[1,{{\"c\":2,\"d\":[]}}]}}{close}}}");
        let node = JsonNode::parse(text.as_bytes()).unwrap();
        let shown = node.render_pretty();
        assert!(
            shown.contains(
                "\n                                {\"b\": [1, {\"c\": 2, \"d\": []}]}\n"
            )
        );
        assert_eq!(JsonNode::parse(shown.as_bytes()).unwrap(), node);

        let many =
            format!("{{\"a\":{}1{}{}}}", "[".repeat(100), ",1".repeat(10_000), "]".repeat(100));
        let shown = JsonNode::parse(many.as_bytes()).unwrap().render_pretty();
        assert!(shown.len() < 2 * many.len(), "{}", shown.len());
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
            let e = JsonNode::parse(text.as_bytes()).unwrap_err();
            assert!(e.why.contains(words) && e.is_incomplete == incomplete, "{text}: {e:?}");
        }
        assert!(JsonNode::parse(b"{\"a\":\"\xff\"}").unwrap_err().why.contains("UTF-8"));
    }

    proptest! {
        #[test]
        fn printing_changes_no_value(text in r#"\{"a":[\[\]{}:,"a0.e+ ntf-]{0,30}\}"#) {
            if let Ok(node) = JsonNode::parse(text.as_bytes()) {
                let printed = node.render_pretty();
                let again = JsonNode::parse(printed.as_bytes()).unwrap();
                prop_assert_eq!(&again, &node);
                prop_assert_eq!(again.render_pretty(), printed);
            }
        }
    }
}
