//! The derived members of `thread.json`: four numbers and a time.
//!
//! Only the bytes of wrong values change. A JSON library would print the file again and change the spelling of
//! everything else.

use std::borrow::Cow;

use super::line::{AtsfThreadStats, parse_time};
use crate::model::Timestamp;
use crate::store::engine::lines::log::BOM;
use crate::store::text::edit::JsonEdits;
use crate::store::text::json::JsonValue;
use crate::store::text::strict_json::{JsonMember, find_last, parse_members};

/// Returns the names of the derived numbers and their values.
pub(super) fn derived_numbers(stats: &AtsfThreadStats) -> [(&'static str, u64); 4] {
    [
        ("messageCount", stats.messages),
        ("userMessageCount", stats.user),
        ("agentMessageCount", stats.agent),
        ("toolCallCount", stats.calls),
    ]
}

/// Returns the file with correct derived members; `None` if they are correct already.
///
/// # Errors
/// The reason why the file cannot be changed, in a sentence.
pub fn set_derived(
    bytes: &[u8],
    stats: &AtsfThreadStats,
    updated: Option<Timestamp>,
) -> Result<Option<Vec<u8>>, String> {
    edit_object(bytes, |edits, outer| {
        if let (Some(updated), Some(member)) = (updated, find_last(outer, "updatedAt"))
            && parse_value_time(&member.value) != Some(updated)
        {
            edits.replace_range(&member.value_at, format!("\"{}\"", updated.rfc3339()));
        }
        let inner = find_last(outer, "stats").and_then(|member| edits.nested_members(member));
        let inner = inner.unwrap_or_default();
        for (name, number) in derived_numbers(stats) {
            if let Some(member) = find_last(&inner, name)
                && !is_number(&member.value, number)
            {
                edits.replace_range(&member.value_at, number.to_string());
            }
        }
    })
}

/// Returns a file with a JSON object after an edit of its members; `None` if nothing was edited. All other bytes stay.
///
/// # Errors
/// The reason why the file cannot be changed, in a sentence.
pub(super) fn edit_object(
    bytes: &[u8],
    edit: impl for<'t> FnOnce(&mut JsonEdits<'t>, &[JsonMember<'t>]),
) -> Result<Option<Vec<u8>>, String> {
    let whole = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    let text = whole.strip_prefix(BOM).unwrap_or(whole);
    let outer = parse_members(text).map_err(|e| e.to_string())?;
    let mut edits = JsonEdits::new(text);
    edit(&mut edits, &outer);
    let mark = whole.strip_suffix(text).unwrap_or_default();
    Ok(edits.apply().map(|changed| [mark.as_bytes(), &changed].concat()))
}

fn parse_value_time(value: &JsonValue<'_>) -> Option<Timestamp> {
    let JsonValue::String(text) = value else { return None };
    parse_time(&text.to_text()).time()
}

/// Returns true if a value is this number in any spelling.
pub(super) fn is_number(value: &JsonValue<'_>, number: u64) -> bool {
    match value {
        JsonValue::Int(text) | JsonValue::Float(text) => {
            text.parse() == Ok(number)
                || text.parse::<f64>().is_ok_and(|f| f.total_cmp(&(number as f64)).is_eq())
        }
        _ => false,
    }
}

/// The contents of a new `thread.json`.
pub(super) struct NewThread<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub created: Timestamp,
    pub agent: &'a str,
    pub project: Cow<'a, str>,
}

impl NewThread<'_> {
    /// Renders the file without messages, in the order and with the spacing of the known application.
    pub fn render(&self) -> String {
        let quoted = |text: &str| {
            let mut out = String::new();
            crate::store::text::canonical::push_text(&mut out, text);
            out
        };
        let (time, agent) = (self.created.rfc3339(), quoted(self.agent));
        format!(
            "{{\n  \"specVersion\": \"{}\",\n  \"threadId\": {},\n  \"title\": {},\n  \
             \"createdAt\": \"{time}\",\n  \"updatedAt\": \"{time}\",\n  \"agent\": {{\n    \
             \"id\": {agent},\n    \"name\": {agent}\n  }},\n  \"context\": {{\n    \
             \"workingDir\": {}\n  }},\n  \"stats\": {{\n    \"messageCount\": 0,\n    \
             \"userMessageCount\": 0,\n    \"agentMessageCount\": 0,\n    \
             \"toolCallCount\": 0\n  }},\n  \"metadata\": {{}}\n}}\n",
            super::thread::VERSION,
            quoted(self.id),
            quoted(self.title),
            quoted(&self.project),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATS: AtsfThreadStats =
        AtsfThreadStats { messages: 12, user: 5, agent: 7, system: 0, calls: 23 };

    fn at(text: &str) -> Option<Timestamp> {
        parse_time(text).time()
    }

    #[test]
    fn only_wrong_values_change() {
        let text = "\u{feff}{ \"stats\" : {\"toolCallCount\":1e2,\"messageCount\":1.2e1,\r\n\"x\":1e2, \"userMessageCount\":-0,\t\"agentMessageCount\":7.0},\"updatedAt\":\"2025-02-14T11:45:00+00:00\",\"\\u0073tats\":\"\\ud800\",\"stats\":{\"messageCount\": 11 ,\"y\":1E2}}\r\n";
        let out =
            set_derived(text.as_bytes(), &STATS, at("2025-02-14T11:45:00Z")).unwrap().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text.replace(" 11 ", " 12 "));
        let one = text.replace(
            ",\"\\u0073tats\":\"\\ud800\",\"stats\":{\"messageCount\": 11 ,\"y\":1E2}",
            "",
        );
        let out = set_derived(one.as_bytes(), &STATS, at("2025-02-14T11:45:00.001Z")).unwrap();
        let expected = one
            .replace("toolCallCount\":1e2", "toolCallCount\":23")
            .replace("\":-0", "\":5")
            .replace("2025-02-14T11:45:00+00:00", "2025-02-14T11:45:00.001Z");
        assert_eq!(String::from_utf8(out.unwrap()).unwrap(), expected);
        assert_eq!(set_derived(expected.as_bytes(), &STATS, None), Ok(None));
    }

    #[test]
    fn what_is_no_object_is_not_touched() {
        for bad in [&b"[]"[..], b"{", b"", b"{\"a\":\"\xff\"}"] {
            assert!(set_derived(bad, &STATS, None).is_err());
        }
        assert_eq!(set_derived(b"{\"stats\":7}", &STATS, at("2025-02-14T11:45:00Z")), Ok(None));
    }

    #[test]
    fn a_new_thread_is_one() {
        let new = NewThread {
            id: "t",
            title: "a \"b\"\n",
            created: Timestamp::from_secs(1_739_529_000),
            agent: "claude-code",
            project: "/p".into(),
        };
        let text = new.render();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["title"], "a \"b\"\n");
        assert_eq!(value["updatedAt"], "2025-02-14T10:30:00.000Z");
        assert!(matches!(
            super::super::thread::parse(text.as_bytes()),
            super::super::thread::AtsfThreadFile::Thread(_)
        ));
        let out = set_derived(text.as_bytes(), &STATS, None).unwrap().unwrap();
        assert!(String::from_utf8(out).unwrap().contains("\"toolCallCount\": 23\n"));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in "[\\[\\]{}\":,a0.e+ \\\\ustatpdA-]{0,60}") {
            let _ = set_derived(bytes.as_bytes(), &STATS, Some(Timestamp::default()));
        }
    }
}
