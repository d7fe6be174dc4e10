//! The rule for lines that may travel, which is the same for publishing and for receiving.
//!
//! Other readers of a log fail at a line that is no record, so no such line is ever appended.

use async_nats::HeaderMap;

use super::subject::NatsSpace;
use crate::model::sanitize_line;
use crate::store::samp::record::{self, SampRecordError, SampScratch};
use crate::store::text::json::{self, JsonError, JsonEvent, JsonValue};

/// The header with the offset of a line in the published log.
pub const AT: &str = "Msgfs-At";

/// The headers that the server adds once each when it answers. A message that brings its own is an answer that was put
/// into the stream.
const ANSWERS: [&str; 5] =
    ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending"];

/// The limit on the size of a log, up to which every program can count.
const MAX_LOG: u64 = 1 << 53;

/// The limit on nesting; deeper values crash readers that recurse.
const MAX_DEPTH: u32 = 100;

/// The first second after the year 9999, which other readers' calendars cannot hold.
const MAX_SECS: i64 = 253_402_300_800;

/// The reason why a line does not travel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishedLineRejection {
    /// A subject that belongs to no writer.
    #[error("its subject does not belong to a writer")]
    Subject,
    /// A message with headers of an answer.
    #[error("it is an answer of the server, not a line that a writer published")]
    Answer,
    /// A missing offset.
    #[error("it does not say where in the log it belongs")]
    At,
    /// Bytes that are not one line.
    #[error("it is not one line with a newline at its end")]
    NotOneLine,
    /// Bytes that are not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
    /// A line that is no record.
    #[error(transparent)]
    Record(#[from] SampRecordError),
    /// A line that is not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A sender who is not the writer of the subject.
    #[error("it says it is from {:?}", sanitize_line(.0))]
    From(String),
    /// A value that is nested too deeply.
    #[error("it is nested deeper than 100 levels")]
    Deep,
    /// An id that is not text.
    #[error("its id is not a text")]
    Id,
    /// A time that is too far away.
    #[error("its time is beyond the year 9999")]
    Time,
}

/// A line as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedLine<'a> {
    /// The offset at which it begins in the published log.
    pub at: u64,
    /// The line, with its newline.
    pub bytes: &'a [u8],
    /// The id of its record.
    pub id: String,
}

impl PublishedLine<'_> {
    /// Returns the offset at which it ends.
    pub fn end_offset(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

/// Checks that a writer may publish these bytes as a line, and returns the id of its record.
///
/// # Errors
/// Returns the reason if it may not.
pub fn validate_line(writer: &str, bytes: &[u8]) -> Result<String, PublishedLineRejection> {
    let line = bytes.strip_suffix(b"\n").ok_or(PublishedLineRejection::NotOneLine)?;
    if memchr::memchr2(b'\n', b'\r', line).is_some() {
        return Err(PublishedLineRejection::NotOneLine);
    }
    let text = std::str::from_utf8(line).map_err(|_| PublishedLineRejection::NotText)?;
    let parsed = record::parse(text, &mut SampScratch::default())?;
    if parsed.from != writer {
        return Err(PublishedLineRejection::From(parsed.from.chars().take(80).collect()));
    }
    if !(1 - MAX_SECS..MAX_SECS).contains(&parsed.secs) {
        return Err(PublishedLineRejection::Time);
    }
    let mut id = None;
    json::visit_members(text, |key, value| {
        if key.to_text() == "id" {
            id = Some(value);
        }
    })?;
    match id {
        None => {}
        Some(JsonValue::String(text)) if !text.raw_text().is_empty() => {}
        Some(_) => return Err(PublishedLineRejection::Id),
    }
    let (mut depth, mut deepest) = (0u32, 0);
    json::walk_value(text, |event| match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth = depth.saturating_sub(1),
        JsonEvent::Key(_) | JsonEvent::Scalar(_) => {}
    })?;
    if deepest > MAX_DEPTH {
        return Err(PublishedLineRejection::Deep);
    }
    Ok(parsed.id.into_owned())
}

/// Returns the writer and the line of a message. `answers` is the number of times that the server itself added each
/// header of an answer.
///
/// # Errors
/// Returns the reason if it is none.
pub fn accept_message<'a>(
    space: &NatsSpace,
    subject: &str,
    headers: Option<&HeaderMap>,
    payload: &'a [u8],
    answers: usize,
) -> Result<(String, PublishedLine<'a>), PublishedLineRejection> {
    let writer = space.parse_writer(subject).ok_or(PublishedLineRejection::Subject)?;
    let all = |name: &str| {
        let same = headers.into_iter().flat_map(HeaderMap::iter);
        let same = same.filter(move |(key, _)| {
            let key: &str = key.as_ref();
            key.eq_ignore_ascii_case(name)
        });
        same.flat_map(|(_, values)| values).map(async_nats::HeaderValue::as_str).collect::<Vec<_>>()
    };
    if ANSWERS.iter().any(|name| all(name).len() > answers) {
        return Err(PublishedLineRejection::Answer);
    }
    let at = match all(AT).as_slice() {
        [at] if at.bytes().all(|b| b.is_ascii_digit()) => at.parse::<u64>().ok(),
        _ => None,
    };
    let at = at
        .filter(|at| at.saturating_add(payload.len() as u64) <= MAX_LOG)
        .ok_or(PublishedLineRejection::At)?;
    let id = validate_line(&writer, payload)?;
    Ok((writer, PublishedLine { at, bytes: payload, id }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"id":"1","ts":1700000000,"from":"a","to":"b","thread":"t","body":"hi"}"#;

    fn fits(line: &str) -> Result<String, PublishedLineRejection> {
        validate_line("a", format!("{line}\n").as_bytes())
    }

    #[test]
    fn what_may_travel() {
        assert_eq!(fits(GOOD), Ok("1".into()));
        for good in [
            GOOD.replace("1700000000", "1.5"),
            GOOD.replace("1700000000", "-253402300799"),
            GOOD.replace("hi", "\u{2028}\\n\u{e9}"),
            GOOD.replace(r#""id":"1","#, ""),
            GOOD.replace(r#""from":"a""#, r#""from":"x","from":"a""#),
            GOOD.replace(r#""hi""#, &format!(r#""hi","x":{}1{}"#, "[".repeat(99), "]".repeat(99))),
        ] {
            assert!(fits(&good).is_ok(), "{good}: {:?}", fits(&good));
        }
    }

    #[test]
    fn what_may_not() {
        use PublishedLineRejection::{Deep, Id, NotOneLine, NotText, Time};
        let table = [
            (GOOD.replace(r#""1""#, r#""""#), Id),
            (GOOD.replace(r#""1""#, "1"), Id),
            (GOOD.replace(r#""id":"1""#, r#""id":"1","id":null"#), Id),
            (GOOD.replace("1700000000", "253402300800"), Time),
            (GOOD.replace("1700000000", "-253402300800"), Time),
            (GOOD.replace("1700000000", "1e300"), Time),
            (
                GOOD.replace(r#""from":"a""#, r#""from":"a","from":"x""#),
                PublishedLineRejection::From("x".into()),
            ),
            (format!("{GOOD}\r"), NotOneLine),
            (format!("{GOOD}\n{GOOD}"), NotOneLine),
            (
                GOOD.replace(
                    r#""hi""#,
                    &format!(r#""hi","x":{}1{}"#, "[".repeat(100), "]".repeat(100)),
                ),
                Deep,
            ),
        ];
        for (line, why) in table {
            assert_eq!(fits(&line), Err(why), "{line}");
        }
        for bad in [
            "",
            "[]",
            "1",
            "{}",
            "x",
            &GOOD.replace("1700000000", "true"),
            &GOOD.replace("1700000000", "NaN"),
            &GOOD.replace(r#""to":"b""#, r#""to":1"#),
            &GOOD.replace(r#""body":"hi""#, r#""body":null"#),
            &GOOD.replace('}', ""),
            &format!("{GOOD}{GOOD}"),
        ] {
            assert!(fits(bad).is_err(), "{bad}");
        }
        assert_eq!(validate_line("a", GOOD.as_bytes()), Err(NotOneLine));
        assert_eq!(validate_line("a", b""), Err(NotOneLine));
        assert_eq!(validate_line("a", b"{\"\xff\"}\n"), Err(NotText));
    }

    #[test]
    fn headers_say_where_and_nothing_else() {
        let team = NatsSpace::new("team").unwrap();
        let payload = format!("{GOOD}\n");
        let with = |headers: &[(&'static str, &str)], answers| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, *value);
            }
            accept_message(&team, "msgfs.team.a", Some(&map), payload.as_bytes(), answers)
                .map(|(_, line)| line.at)
        };
        assert_eq!(with(&[(AT, "7")], 0), Ok(7));
        assert_eq!(with(&[("msgfs-at", "7")], 0), Ok(7));
        let most = (MAX_LOG - payload.len() as u64).to_string();
        assert!(with(&[(AT, &most)], 0).is_ok());
        for bad in ["", "x", "-1", "+1", "1.0", " 1", "9007199254740992", "99999999999999999999"] {
            assert_eq!(with(&[(AT, bad)], 0), Err(PublishedLineRejection::At), "{bad}");
        }
        assert_eq!(with(&[], 0), Err(PublishedLineRejection::At));
        assert_eq!(with(&[(AT, "1"), (AT, "1")], 0), Err(PublishedLineRejection::At));
        for name in ANSWERS {
            assert_eq!(with(&[(AT, "1"), (name, "x")], 0), Err(PublishedLineRejection::Answer));
            assert_eq!(with(&[(AT, "1"), (name, "x")], 1), Ok(1));
            assert_eq!(
                with(&[(AT, "1"), (name, "x"), (name, "y")], 1),
                Err(PublishedLineRejection::Answer)
            );
        }
        assert_eq!(
            with(&[(AT, "1"), ("nats-sequence", "1")], 0),
            Err(PublishedLineRejection::Answer)
        );
        let none = accept_message(&team, "msgfs.team.a", None, payload.as_bytes(), 0);
        assert_eq!(none, Err(PublishedLineRejection::At));
        let other = accept_message(&team, "msgfs.team.%61", None, payload.as_bytes(), 0);
        assert_eq!(other, Err(PublishedLineRejection::Subject));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = validate_line("a", &bytes);
        }

        #[test]
        fn what_travels_is_one_record(body in ".{0,40}", extra in ".{0,20}") {
            let line = format!("{}{extra}\n", GOOD.replace("hi", &body));
            if validate_line("a", line.as_bytes()).is_ok() {
                prop_assert_eq!(line.matches(['\n', '\r']).count(), 1);
                let trimmed = line.trim_end();
                prop_assert!(record::parse(trimmed, &mut SampScratch::default()).is_ok());
            }
        }
    }
}
