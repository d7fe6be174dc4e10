//! Changes of single values in a JSON text. No other byte is touched: numbers count as they are spelled, and a library
//! that prints the text again would break signatures.

use std::ops::Range;

use super::strict_json::{JsonMember, parse_members};

/// Replacements of ranges of a text.
#[derive(Debug)]
pub struct JsonEdits<'a> {
    /// The text.
    pub text: &'a str,
    /// The ranges and their replacements.
    pub list: Vec<(Range<usize>, String)>,
}

impl<'a> JsonEdits<'a> {
    /// Returns an empty list of changes.
    pub fn new(text: &'a str) -> Self {
        Self { text, list: Vec::new() }
    }

    /// Replaces these bytes.
    pub fn replace_range(&mut self, at: &Range<usize>, with: impl Into<String>) {
        self.list.push((at.clone(), with.into()));
    }

    /// Returns the members of an object that is a value, with their places in the whole text; `None` if the value is
    /// something else.
    pub fn nested_members(&self, outer: &JsonMember<'a>) -> Option<Vec<JsonMember<'a>>> {
        let text = self.text.get(outer.value_at.clone()).filter(|text| text.starts_with('{'))?;
        let mut members = parse_members(text).ok()?;
        let by = outer.value_at.start;
        for m in &mut members {
            m.key_at = m.key_at.start + by..m.key_at.end + by;
            m.value_at = m.value_at.start + by..m.value_at.end + by;
        }
        Some(members)
    }

    /// Returns the changed text; `None` if there are no changes.
    pub fn apply(mut self) -> Option<Vec<u8>> {
        if self.list.is_empty() {
            return None;
        }
        // The sort is stable: additions at one place stay in order.
        self.list.sort_by_key(|(at, _)| (at.start, at.end));
        let mut out = String::with_capacity(self.text.len() + 128);
        let mut done = 0;
        for (at, with) in &self.list {
            out.push_str(self.text.get(done..at.start)?);
            out.push_str(with);
            done = at.end;
        }
        out.push_str(self.text.get(done..)?);
        Some(out.into_bytes())
    }
}
