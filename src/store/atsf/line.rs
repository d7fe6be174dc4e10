//! One line of a log: a message (docs/formats/atsf.md, section 4).
//!
//! Members that are not read here may be anything: unknown members, lone surrogates, deep nesting, repeated keys. A
//! line is never written again, so nothing is lost.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::model::Timestamp;
use crate::store::engine::lines::log::LogCursor;
use crate::store::text::json::{JsonError, JsonValue};
use crate::store::text::json_values::{as_array, as_text, pick_members, split_elements};
use crate::store::text::time as rfc3339;

/// The reason why a line is no message, in a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtsfLineError {
    /// It is not a JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A required member is missing or has another type.
    #[error("the message has no {1} \"{0}\"")]
    Missing(&'static str, &'static str),
    /// The id is unusable.
    #[error("the id is empty or holds U+0000")]
    BadId,
}

/// The parts of a message that lists need; texts are borrowed from the line.
#[derive(Clone, Debug)]
pub struct AtsfLine<'a> {
    /// The id. It is unique in its log if the writer kept the rule.
    pub id: Cow<'a, str>,
    /// The sender: `user`, `agent`, `system`, or any other word.
    pub role: Cow<'a, str>,
    /// The time, as written.
    pub timestamp: Cow<'a, str>,
    /// The array of content blocks, as spelled.
    pub content: &'a str,
    /// The array of tool calls, as spelled.
    pub calls: Option<&'a str>,
    /// True if it has a member `signature` of any type.
    pub has_signature: bool,
    /// The idempotency key that msgfs wrote into it.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// The time in its name that msgfs wrote into it, if its place in the log gives another one.
    pub name_time: Option<Timestamp>,
}

/// A time and the quality of its spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtsfTimestamp {
    /// With a zone.
    Zoned(Timestamp),
    /// Without a zone, and so read as UTC.
    Naive(Timestamp),
    /// Not a time.
    Unknown,
}

impl AtsfTimestamp {
    /// Returns the time, if there is one.
    pub fn time(self) -> Option<Timestamp> {
        match self {
            Self::Zoned(time) | Self::Naive(time) => Some(time),
            Self::Unknown => None,
        }
    }
}

/// Parses the message on this line, which comes without its newline.
///
/// # Errors
/// [`AtsfLineError`]; it does not affect other lines of the log.
pub fn parse(line: &str) -> Result<AtsfLine<'_>, AtsfLineError> {
    let names =
        ["id", "role", "timestamp", "content", "toolCalls", "signature", "idem", "nameTime"];
    let Some([id, role, timestamp, content, calls, signature, idem, name_time]) =
        pick_members(line, names)
    else {
        // A second parse finds the reason; this is rare.
        crate::store::text::json::visit_members(line, |_, _| {})?;
        return Err(JsonError::NotAnObject.into());
    };
    let id = required_string(id, "id")?;
    if id.is_empty() || id.contains('\0') {
        return Err(AtsfLineError::BadId);
    }
    Ok(AtsfLine {
        id,
        role: required_string(role, "role")?,
        timestamp: required_string(timestamp, "timestamp")?,
        content: as_array(content.as_ref()).ok_or(AtsfLineError::Missing("content", "array"))?,
        calls: as_array(calls.as_ref()),
        has_signature: signature.is_some(),
        idempotency_key: as_text(idem.as_ref()),
        name_time: as_text(name_time.as_ref()).and_then(|time| parse_time(&time).time()),
    })
}

fn required_string<'a>(
    value: Option<JsonValue<'a>>,
    name: &'static str,
) -> Result<Cow<'a, str>, AtsfLineError> {
    as_text(value.as_ref()).ok_or(AtsfLineError::Missing(name, "string"))
}

impl AtsfLine<'_> {
    /// Parses the time of writing.
    pub fn parse_timestamp(&self) -> AtsfTimestamp {
        parse_time(&self.timestamp)
    }

    /// Returns the number of its tool calls.
    pub fn call_count(&self) -> u64 {
        self.calls.map_or(0, |calls| split_elements(calls).len() as u64)
    }

    /// Returns true if it carries anything besides text.
    pub fn has_parts(&self) -> bool {
        let plain = |block: &str| {
            pick_members(block, ["type"])
                .and_then(|[kind]| as_text(kind.as_ref()))
                .is_some_and(|kind| matches!(&*kind, "text" | "tool_call_ref"))
        };
        self.calls.is_some_and(|calls| !split_elements(calls).is_empty())
            || !split_elements(self.content).iter().all(|block| plain(block))
    }
}

/// The derived numbers of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtsfThreadStats {
    /// The lines that are messages.
    pub messages: u64,
    /// The messages of the role `user`.
    pub user: u64,
    /// The messages of the role `agent`.
    pub agent: u64,
    /// The messages of the role `system`; `thread.json` does not count them separately.
    pub system: u64,
    /// The tool calls of all messages.
    pub calls: u64,
}

/// The counts of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtsfCounts {
    /// The numbers that `thread.json` repeats.
    pub stats: AtsfThreadStats,
    /// The time in the name of the last message.
    name_time: Option<i64>,
}

impl AtsfCounts {
    /// Returns the time in the name of the next message, if that was written at this time: it keeps the order of the
    /// log.
    pub(super) fn next_name_time(&self, time: Timestamp) -> Timestamp {
        time.kept_behind(self.name_time.map(Timestamp::from_millis))
    }
}

/// Counts a message in the stats of its thread. A line that gives no message of its own counts, too.
pub(super) fn count_line(tally: &mut LogCursor<AtsfCounts>, line: &AtsfLine<'_>) {
    let stats = &mut tally.count.stats;
    stats.messages += 1;
    match &*line.role {
        "user" => stats.user += 1,
        "agent" => stats.agent += 1,
        "system" => stats.system += 1,
        _ => {}
    }
    stats.calls += line.call_count();
}

/// Counts a message, and returns its time and the time in its name. A message without a valid time gets the time of the
/// one before, or `else_time`.
pub(super) fn count_message(
    tally: &mut LogCursor<AtsfCounts>,
    line: &AtsfLine<'_>,
    else_time: Timestamp,
) -> (Timestamp, Timestamp) {
    count_line(tally, line);
    let own = line.parse_timestamp().time();
    let before = tally.last_time.map_or(else_time, Timestamp::from_millis);
    let time = own.unwrap_or(before);
    tally.last_time = own.map(Timestamp::millis).or(tally.last_time);
    let name = line.name_time.unwrap_or_else(|| tally.count.next_name_time(time));
    tally.count.name_time = Some(name.millis());
    (time, name)
}

/// Parses a time: RFC 3339, or the same without a zone.
pub fn parse_time(text: &str) -> AtsfTimestamp {
    if let Some(time) = rfc3339::parse_time(text) {
        return AtsfTimestamp::Zoned(time);
    }
    rfc3339::parse_time(&format!("{text}Z")).map_or(AtsfTimestamp::Unknown, AtsfTimestamp::Naive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: &str = r#"{"id":"m1","role":"user","timestamp":"2025-02-14T10:30:00.000Z","content":[{"type":"text","text":"hi"}]}"#;

    #[test]
    fn what_a_message_needs() {
        let line = parse(PLAIN).unwrap();
        assert_eq!((&*line.id, &*line.role, line.call_count()), ("m1", "user", 0));
        assert_eq!(
            line.parse_timestamp(),
            AtsfTimestamp::Zoned(Timestamp::from_secs(1_739_529_000))
        );
        assert!(!line.has_signature && !line.has_parts());
        for (from, to, why) in [
            ("\"id\":\"m1\",", "", "the message has no string \"id\""),
            ("\"m1\"", "1", "the message has no string \"id\""),
            ("\"m1\"", "\"\"", "the id is empty or holds U+0000"),
            ("\"m1\"", "\"a\\u0000b\"", "the id is empty or holds U+0000"),
            ("\"user\"", "null", "the message has no string \"role\""),
            ("\"2025-02-14T10:30:00.000Z\"", "0", "the message has no string \"timestamp\""),
            (
                "[{\"type\":\"text\",\"text\":\"hi\"}]",
                "\"hi\"",
                "the message has no array \"content\"",
            ),
        ] {
            let bad = PLAIN.replacen(from, to, 1);
            assert_eq!(parse(&bad).unwrap_err().to_string(), why, "{bad}");
        }
        for bad in ["", "[]", "null", "{", "{\"id\":}", "12"] {
            assert!(matches!(parse(bad), Err(AtsfLineError::Json(_))), "{bad}");
        }
    }

    #[test]
    fn odd_members_lose_no_message() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for odd in [r#""x":"\ud800""#, r#""id":"m1""#, r#""n":1e2"#, &format!("\"d\":{deep}")] {
            let line = PLAIN.replacen('{', &format!("{{{odd},"), 1);
            assert_eq!(parse(&line).unwrap().id, "m1", "{odd}");
        }
        assert!(parse(&format!(" \t{PLAIN}\r")).is_ok());
    }

    #[test]
    fn times_without_a_zone_are_utc() {
        let at = Timestamp::from_millis(1_739_529_000_500);
        assert_eq!(parse_time("2025-02-14T11:30:00.5+01:00"), AtsfTimestamp::Zoned(at));
        assert_eq!(parse_time("2025-02-14T10:30:00.500"), AtsfTimestamp::Naive(at));
        assert_eq!(parse_time("yesterday"), AtsfTimestamp::Unknown);
        assert_eq!(at.rfc3339(), "2025-02-14T10:30:00.500Z");
    }

    #[test]
    fn parts_are_what_is_not_text() {
        for (content, calls, parts) in [
            ("[]", "[]", false),
            (r#"[{"type":"tool_call_ref","toolCallId":"x"}]"#, "[]", false),
            (r#"[{"type":"thinking","text":"x"}]"#, "[]", true),
            (r#"[{"kind":1}]"#, "[]", true),
            ("[1]", "[]", true),
            ("[]", "[{}]", true),
        ] {
            let text = format!(
                r#"{{"id":"m","role":"r","timestamp":"","content":{content},"toolCalls":{calls}}}"#
            );
            assert_eq!(parse(&text).unwrap().has_parts(), parts, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in any::<String>()) {
            let _ = parse(&text);
            let _ = parse_time(&text);
        }

        #[test]
        fn what_is_written_is_read(ms in -62_135_596_800_000i64..253_402_207_200_000) {
            let at = Timestamp::from_millis(ms);
            prop_assert_eq!(parse_time(&at.rfc3339()), AtsfTimestamp::Zoned(at));
        }
    }
}
