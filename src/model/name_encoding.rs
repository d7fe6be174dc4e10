//! File names of any bytes, encoded as text.
//!
//! A byte that is not UTF-8 is encoded as NUL and two hex digits. No file name has a NUL, so each name has one
//! encoding, and no two names have the same.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The character before the two digits of a byte.
const MARK: char = '\0';

/// Returns the name of a file, encoded.
pub fn encode_name(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(name.len() + 2);
    for chunk in name.utf8_chunks() {
        out.push_str(chunk.valid());
        for b in chunk.invalid() {
            let _ = write!(out, "{MARK}{b:02X}");
        }
    }
    Cow::Owned(out)
}

/// Returns true if an encoded name or path is not UTF-8 on disk.
pub fn is_encoded(spelled: &str) -> bool {
    spelled.contains(MARK)
}

/// Returns the bytes of an encoded name or path. A NUL that encodes nothing stays.
pub fn decode_name(spelled: &str) -> Cow<'_, [u8]> {
    if !is_encoded(spelled) {
        return Cow::Borrowed(spelled.as_bytes());
    }
    let mut pieces = spelled.split(MARK);
    let mut out = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (byte, rest) = split_encoded_byte(piece).unwrap_or((0, piece));
        out.push(byte);
        out.extend_from_slice(rest.as_bytes());
    }
    Cow::Owned(out)
}

/// Splits off the byte that two digits encode. ASCII is never encoded so, because a slash would lead elsewhere.
fn split_encoded_byte(piece: &str) -> Option<(u8, &str)> {
    let (digits, rest) = piece.split_at_checked(2)?;
    let byte = u8::from_str_radix(digits, 16).ok()?;
    (!byte.is_ascii()).then_some((byte, rest))
}

/// Returns an encoded name or path for people: with U+FFFD for bytes that are not UTF-8.
pub fn display_name(spelled: &str) -> Cow<'_, str> {
    match decode_name(spelled) {
        Cow::Borrowed(_) => Cow::Borrowed(spelled),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_utf8_is_spelled() {
        assert_eq!(encode_name(b"caf\xe9.md"), "caf\0E9.md");
        assert_eq!(encode_name("caf\u{e9}.md".as_bytes()), "caf\u{e9}.md");
        assert_eq!(display_name("caf\0E9.md"), "caf\u{fffd}.md");
        assert!(is_encoded("caf\0E9.md") && !is_encoded("caf%E9.md"));
        for nothing in ["a\0", "a\0F", "a\0zz", "a\x002F", "a\x0000b", "a\0\0", "a\0+9"] {
            assert!(decode_name(nothing).contains(&0), "{nothing:?}");
            assert!(!decode_name(nothing).contains(&b'/'), "{nothing:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_has_one_spelling(name in proptest::collection::vec(1u8.., 0..40)) {
            let text = encode_name(&name);
            prop_assert_eq!(&*decode_name(&text), &*name);
            prop_assert_eq!(is_encoded(&text), std::str::from_utf8(&name).is_err());
        }
    }
}
