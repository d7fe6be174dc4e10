//! The file grammar (docs/formats/agentazall.md, section 2): header lines, a line `---`, the text.
//!
//! The reference is a Python program. So "white space" is what `str.strip` removes, and a line ends at LF, CR or CRLF.
//! Every byte string is a letter: nothing is rejected here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::block::signed_block::{BEGIN, SIGNATURE_END};
use crate::store::text::pytext::{strip, strip_start};

/// UTF-8's byte order mark. The reference joins it to the first key; here it is dropped.
const BOM: &str = "\u{feff}";
/// The line, once stripped, that ends the header.
const SEPARATOR: &str = "---";
/// The header with the mark of the message: new or read.
const STATUS: &str = "Status";
/// The header with the reason why a link could make no letter of a message. The text is then the message as it came.
pub const UNREADABLE: &str = "X-Msgfs-Unreadable";
/// The two headers of the signature form of version 1.0.17.
const LEGACY: [&str; 2] = ["Public-Key", "Signature"];

/// A message file, split as the reference splits it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letter {
    /// Keys and values, stripped, in file order. Of a repeated key the last value counts, at the place of the first.
    pub headers: Vec<(String, String)>,
    /// The text after the separator, with every line end as LF.
    ///
    /// Without a separator it is empty, as in the reference. If there is no header either, it is the whole file, which
    /// would be lost otherwise.
    pub body: String,
}

/// Parses a file. Bytes that are not UTF-8 become U+FFFD; a byte order mark is dropped.
pub fn parse(bytes: &[u8]) -> Letter {
    let text = String::from_utf8_lossy(bytes);
    let text = normalize_newlines(text.strip_prefix(BOM).unwrap_or(&text));
    let mut headers: Vec<(String, String)> = Vec::new();
    // The index keeps a file of a million distinct keys linear.
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut rest = Some(text.as_ref());
    while let Some(here) = rest {
        let (line, tail) =
            here.split_once('\n').map_or((here, None), |(line, tail)| (line, Some(tail)));
        if strip(line) == SEPARATOR {
            return Letter { headers, body: tail.unwrap_or_default().to_owned() };
        }
        if let Some((key, value)) = line.split_once(':') {
            let (key, value) = (strip(key), strip(value).to_owned());
            let at = *index.entry(key).or_insert(headers.len());
            match headers.get_mut(at) {
                Some((_, old)) => *old = value,
                None => headers.push((key.to_owned(), value)),
            }
        }
        rest = tail;
    }
    let body = if headers.is_empty() { text.as_ref() } else { "" };
    Letter { headers, body: body.to_owned() }
}

impl Letter {
    /// Returns the value of a header. Keys are case-sensitive: `to` is not `To`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.headers.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns the values of a header that is a list (`To`, `Cc`, `Attachments`): separated by commas, stripped, empty
    /// ones dropped.
    pub fn list_values(&self, key: &str) -> Vec<String> {
        self.get(key).map(split_comma_list).unwrap_or_default()
    }

    /// Returns true if the file is marked read. A missing `Status` is unread.
    pub fn is_read(&self) -> bool {
        self.get(STATUS).is_some_and(|status| status.eq_ignore_ascii_case("read"))
    }

    /// Returns true if it carries a signature in the headers, which covers `Status`. Such a file must never be edited.
    pub fn is_legacy(&self) -> bool {
        LEGACY.iter().all(|key| self.get(key).is_some_and(|value| !value.is_empty()))
    }
}

/// Returns true if a file looks unfinished: it is empty, no line ends its header, or its signed block does not end.
pub fn is_unfinished(bytes: &[u8], letter: &Letter) -> bool {
    !find_header_status(bytes).has_end || has_torn_signature(letter)
}

/// Returns true if the text begins a signed block that does not end.
pub fn has_torn_signature(letter: &Letter) -> bool {
    let body = letter.body.as_str();
    let is_begun = body.starts_with(BEGIN) || !body.is_empty() && BEGIN.starts_with(body);
    is_begun && !body.contains(SIGNATURE_END)
}

/// Splits a comma-separated list: items stripped, empty ones dropped.
pub(super) fn split_comma_list(value: &str) -> Vec<String> {
    value.split(',').map(strip).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// The mark in a header, and its place.
#[derive(Debug, Default)]
pub(super) struct HeaderStatus {
    /// The value of the last `Status` line, if it is `new` or `read` in any case.
    pub status: Option<Range<usize>>,
    /// True if a signature covers it ([`Letter::is_legacy`]).
    is_legacy: bool,
    /// True if the header has its end.
    pub has_end: bool,
}

/// Searches the header for the mark.
pub(super) fn find_header_status(bytes: &[u8]) -> HeaderStatus {
    let mut marks = HeaderStatus::default();
    let mut legacy = [false; LEGACY.len()];
    let mut at = if bytes.starts_with(BOM.as_bytes()) { BOM.len() } else { 0 };
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let line = rest.split(|b| matches!(b, b'\n' | b'\r')).next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        if strip(&text) == SEPARATOR {
            marks.has_end = true;
            break;
        }
        if let Some((key, value)) = text.split_once(':') {
            let name = strip(key);
            if name == STATUS {
                // Offsets hold in the bytes too. A line whose key has bytes that are not UTF-8 has another key; in the
                // value it has another value.
                let from = at + key.len() + 1 + (value.len() - strip_start(value).len());
                let says = |word: &&str| strip(value).eq_ignore_ascii_case(word);
                marks.status = ["new", "read"].into_iter().find(says).map(|w| from..from + w.len());
            }
            for (slot, key) in legacy.iter_mut().zip(LEGACY) {
                if name == key {
                    *slot = !strip(value).is_empty();
                }
            }
        }
        at += line.len() + 1;
    }
    marks.is_legacy = legacy == [true; LEGACY.len()];
    marks
}

/// Returns the bytes with the value of the last header line `Status: new` (any case of `new`) made `read`. Line ends,
/// invalid bytes and everything else stay.
///
/// Returns `None` if there is nothing to change: no `Status`, another value, or a signature that covers it
/// ([`Letter::is_legacy`]).
pub fn set_read(bytes: &[u8]) -> Option<Vec<u8>> {
    find_new_status(bytes).map(|at| replace_range(bytes, at, b"read"))
}

/// Returns true if [`set_read`] would change anything.
pub(super) fn may_set_read(bytes: &[u8]) -> bool {
    find_new_status(bytes).is_some()
}

/// Returns the place of a Status `new` that may be set.
fn find_new_status(bytes: &[u8]) -> Option<Range<usize>> {
    let marks = find_header_status(bytes);
    let at = marks.status.filter(|_| !marks.is_legacy)?;
    bytes.get(at.clone())?.eq_ignore_ascii_case(b"new").then_some(at)
}

/// Returns the bytes of a message file as they were before it was marked read: the value of the last Status line of the
/// header is `new`. Thus a mark changes neither hash nor identity of a message.
pub(super) fn without_mark(bytes: &[u8]) -> Cow<'_, [u8]> {
    let status = find_header_status(bytes).status;
    status.map_or(Cow::Borrowed(bytes), |at| Cow::Owned(replace_range(bytes, at, b"new")))
}

fn replace_range(bytes: &[u8], at: Range<usize>, with: &[u8]) -> Vec<u8> {
    let before = bytes.get(..at.start).unwrap_or_default();
    [before, with, bytes.get(at.end..).unwrap_or_default()].concat()
}

/// Returns the text with CRLF and CR as LF.
pub(super) fn normalize_newlines(text: &str) -> Cow<'_, str> {
    if text.contains('\r') {
        Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(text: &[u8]) -> Vec<(String, String)> {
        parse(text).headers
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn half_of_a_file_is_noticed() {
        let unfinished = |bytes: &[u8]| is_unfinished(bytes, &parse(bytes));
        assert!(unfinished(b""));
        assert!(unfinished(b"From: a\nTo: b\n"));
        assert!(unfinished(b"From: a\n---\n---BEGIN AGENTAZALL SIGNED MESSAGE---\nFinger"));
        assert!(unfinished(b"From: a\n---\n---BEGIN AGENT"));
        assert!(!unfinished(b"From: a\n---\n"));
        assert!(!unfinished(b"From: a\r\n  --- \r\nhello"));
    }

    #[test]
    fn lines_are_split_as_the_reference_splits_them() {
        let letter = parse(b" indented: x\n  From : a:b \nno colon\n\n : v\n---\nz\n---\n");
        assert_eq!(letter.headers, [pair("indented", "x"), pair("From", "a:b"), pair("", "v")]);
        assert_eq!(letter.body, "z\n---\n");
        assert_eq!(headers(b"A: 1\nB: 2\nA: 3"), [pair("A", "3"), pair("B", "2")]);
        assert_eq!(headers("\u{1c}A\u{a0}:\u{85}v\u{3000}\n".as_bytes()), [pair("A", "v")]);
        assert_eq!(headers(b"\xff: a\n---\n"), [pair("\u{fffd}", "a")]);
    }

    #[test]
    fn a_byte_order_mark_does_not_hide_the_sender() {
        assert_eq!(parse("\u{feff}From: x\n---\n\u{feff}b".as_bytes()).get("From"), Some("x"));
        assert_eq!(parse("\u{feff}From: x\n---\n\u{feff}b".as_bytes()).body, "\u{feff}b");
    }

    #[test]
    fn text_without_any_structure_is_not_lost() {
        for (file, body) in [
            ("hello\rworld\n", "hello\nworld\n"),
            ("hello\n---\nbody\n", "body\n"),
            ("", ""),
            ("A: b\nhello", ""),
            ("---", ""),
        ] {
            assert_eq!(parse(file.as_bytes()).body, body, "{file:?}");
        }
    }

    #[test]
    fn lists_drop_empty_items() {
        let letter = parse(b"To: b@l, c@l,,d@l ,\nCc:\n");
        assert_eq!(letter.list_values("To"), ["b@l", "c@l", "d@l"]);
        assert!(letter.list_values("Cc").is_empty() && letter.list_values("to").is_empty());
    }

    #[test]
    fn only_the_last_status_of_the_header_is_edited() {
        for (before, after) in [
            ("Status: new\n---\nStatus: new", Some("Status: read\n---\nStatus: new")),
            (
                "Subject: Status: new\r\nStatus: NeW \r\n---\r\nx",
                Some("Subject: Status: new\r\nStatus: read \r\n---\r\nx"),
            ),
            ("Status: new\rStatus:new\r---\r", Some("Status: new\rStatus:read\r---\r")),
            ("\u{feff}Status: new", Some("\u{feff}Status: read")),
            (" Status\u{a0}:\u{2003}new\n", Some(" Status\u{a0}:\u{2003}read\n")),
            ("Status: new\nStatus: read\n---\n", None),
            ("Status: read\nStatus: new\n---\n", Some("Status: read\nStatus: read\n---\n")),
            ("status: new\n---\nStatus: new", None),
            ("Status: newer\n", None),
            ("Status:\n", None),
            ("From: a\n---\nStatus: new", None),
            ("Public-Key: k\nSignature: s\nStatus: new\n", None),
            ("Public-Key: k\nStatus: new\n", Some("Public-Key: k\nStatus: read\n")),
            ("", None),
        ] {
            let got = set_read(before.as_bytes()).map(|b| String::from_utf8(b).unwrap());
            assert_eq!(got.as_deref(), after, "{before:?}");
        }
        let raw = b"X: \xff\xfe\nStatus: new\n---\n\xff".to_vec();
        assert_eq!(set_read(&raw).unwrap(), b"X: \xff\xfe\nStatus: read\n---\n\xff");
    }

    /// Returns files of the pieces that matter, in any order.
    fn files() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"Status: new".to_vec()),
            Just(b"Status: READ".to_vec()),
            Just(b"status:new".to_vec()),
            Just(b"---".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just("\u{feff}".as_bytes().to_vec()),
            Just("\u{1c}\u{a0}".as_bytes().to_vec()),
            Just(b"Signature: x".to_vec()),
            Just(b"Public-Key: y".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let letter = parse(&bytes);
            prop_assert!(!letter.body.contains('\r'));
        }

        #[test]
        fn set_read_changes_the_status_and_nothing_else(file in files()) {
            let before = parse(&file);
            let Some(edited) = set_read(&file) else {
                let new = before.get(STATUS).is_some_and(|s| s.eq_ignore_ascii_case("new"));
                prop_assert!(!new || before.is_legacy(), "{before:?}");
                return Ok(());
            };
            prop_assert!(!before.is_legacy());
            prop_assert_eq!(edited.len(), file.len() + 1);
            let same = file.iter().zip(&edited).take_while(|(a, b)| a == b).count();
            prop_assert!(file[same..][..3].eq_ignore_ascii_case(b"new"));
            prop_assert_eq!(&edited[same..][..4], b"read");
            prop_assert_eq!(&file[same + 3..], &edited[same + 4..]);
            let mut expected = before;
            expected.headers.iter_mut().filter(|(k, _)| k == STATUS).for_each(|(_, v)| {
                *v = "read".into();
            });
            let after = parse(&edited);
            prop_assert!(after.is_read());
            prop_assert_eq!(after, expected);
            prop_assert_eq!(set_read(&edited), None);
        }
    }
}
