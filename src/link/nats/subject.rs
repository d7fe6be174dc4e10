//! The mapping between writers and subjects.

use crate::link::kind::is_space_name;
use crate::store::samp::alias::{self, SampLogName};

/// The group of machines that share one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSpace(String);

impl NatsSpace {
    /// Returns the space with this name, if the name is valid.
    pub fn new(name: &str) -> Option<Self> {
        is_space_name(name).then(|| Self(name.to_owned()))
    }

    /// Returns the name of the space.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns the name of the stream that holds its lines.
    pub fn stream_name(&self) -> String {
        format!("MSGFS_{}", self.0)
    }

    /// Returns the pattern for all its subjects.
    pub fn all_subjects(&self) -> String {
        format!("msgfs.{}.*", self.0)
    }

    /// Returns the subject of a writer.
    pub fn writer_subject(&self, writer: &str) -> String {
        format!("msgfs.{}.{}", self.0, encode_token(writer))
    }

    /// Returns the writer whose lines a subject carries. Only the one spelling that [`NatsSpace::writer_subject`] makes
    /// counts, so that no writer has two subjects. Only names that can have a log count.
    pub fn parse_writer(&self, subject: &str) -> Option<String> {
        let rest = subject.strip_prefix("msgfs.")?.strip_prefix(&*self.0)?;
        let writer = decode_token(rest.strip_prefix('.')?)?;
        // A name that looks like a conflict copy of another writer's log is no writer.
        let own = alias::classify_log_name(&alias::log_name(&writer)) == SampLogName::Main(&writer);
        (own && self.writer_subject(&writer) == subject).then_some(writer)
    }
}

fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Encodes a writer as one token of a subject, which takes no dots: other bytes become `%XX`.
pub(super) fn encode_token(writer: &str) -> String {
    let mut out = String::with_capacity(writer.len());
    for byte in writer.bytes() {
        if is_plain_byte(byte) {
            out.push(byte.into());
        } else {
            out.push('%');
            let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0').to_ascii_uppercase();
            out.extend([digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out
}

/// Returns true if a pattern of the server and another one have a subject in common.
pub(super) fn do_subjects_meet(pattern: &str, other: &str) -> bool {
    let mut other = other.split('.');
    for token in pattern.split('.') {
        match (token, other.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) | (_, Some("*")) => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    other.next().is_none()
}

fn decode_token(token: &str) -> Option<String> {
    let mut out = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    loop {
        match rest {
            [] => return String::from_utf8(out).ok(),
            [b'%', high, low, tail @ ..] => {
                let digit = |b: u8| char::from(b).to_digit(16);
                out.push((digit(*high)? * 16 + digit(*low)?) as u8);
                rest = tail;
            }
            [byte, tail @ ..] => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn team() -> NatsSpace {
        NatsSpace::new("team").unwrap()
    }

    #[test]
    fn spaces() {
        for good in ["a", "team", "A_b-9", &"x".repeat(32)] {
            assert!(NatsSpace::new(good).is_some(), "{good}");
        }
        for bad in ["", "a.b", "a*", "a>", "a b", "\u{e9}", "a/b", &"x".repeat(33)] {
            assert!(NatsSpace::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, subject, is) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
            ("*.b.>", "a.b.c", true),
            ("a", "a.b", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a", false),
            ("a.b", "a.c", false),
            ("a.b", "a.*", true),
            ("*.*", "a.*", true),
            ("b.*", "a.*", false),
            ("a", "a.*", false),
        ] {
            assert_eq!(do_subjects_meet(pattern, subject), is, "{pattern} {subject}");
        }
    }

    #[test]
    fn one_spelling_each() {
        let team = team();
        assert_eq!(team.writer_subject("a.x"), "msgfs.team.a%2Ex");
        for (subject, writer) in [
            ("msgfs.team.b", Some("b")),
            ("msgfs.team.a%2Ex", Some("a.x")),
            ("msgfs.team.a%2ex", None),
            ("msgfs.team.%61", None),
            ("msgfs.team.a.x", None),
            ("msgfs.team.", None),
            ("msgfs.team", None),
            ("msgfs.team.*", None),
            ("msgfs.team.%", None),
            ("msgfs.team.%2", None),
            ("msgfs.team.%2Ex", None),
            ("msgfs.team.a*b", None),
            ("msgfs.team.a%00", None),
            ("msgfs.team.a%2Fb", None),
            ("msgfs.team.%FF", None),
            ("msgfs.team.\u{e9}", None),
            ("msgfs.team2.b", None),
            ("msgfs.other.b", None),
            ("msgfs.team.a%2Esync-conflict-20260413-091523-K3X2R2T", None),
        ] {
            assert_eq!(team.parse_writer(subject).as_deref(), writer, "{subject}");
        }
    }

    proptest! {
        #[test]
        fn there_and_back(writer in "[A-Za-z0-9][A-Za-z0-9._-]{0,63}") {
            prop_assume!(!writer.contains("sync-conflict"));
            let subject = team().writer_subject(&writer);
            prop_assert!(subject.len() <= "msgfs.team.".len() + 192);
            prop_assert!(subject.bytes().all(|b| is_plain_byte(b) || matches!(b, b'.' | b'%')));
            prop_assert_eq!(subject.matches('.').count(), 2);
            prop_assert_eq!(team().parse_writer(&subject), Some(writer));
        }

        #[test]
        fn what_is_taken_is_spelled_so(subject in "msgfs\\.team\\.(%[0-9a-fA-F]{2}|[a-zA-Z0-9._%-]){0,9}") {
            if let Some(writer) = team().parse_writer(&subject) {
                prop_assert_eq!(team().writer_subject(&writer), subject);
            }
        }
    }
}
