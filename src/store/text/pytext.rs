//! Text as Python sees it: white space, line ends, and NFC.
//!
//! A Python program defines SAMP, so its words "white space" and "line" mean Python's. They differ from Rust's:
//! `char::is_whitespace` lacks U+001C to U+001F, and `str::lines` knows only two of the eleven line ends.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Returns true for white space of `str.strip` and `\s` of Python.
pub fn is_space(c: char) -> bool {
    matches!(
        c,
        '\t'..='\r'
            | '\u{1c}'..='\u{20}'
            | '\u{85}'
            | '\u{a0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200a}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202f}'
            | '\u{205f}'
            | '\u{3000}'
    )
}

/// Returns true for a line boundary of `str.splitlines`.
pub fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns the text as `str.strip()` does.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Returns the text as `str.lstrip()` does.
pub fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Returns the lines of `str.splitlines()`: `\r\n` is one boundary, and a boundary at the end of the text starts no
/// further line.
pub fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(end) = rest.find(is_line_end) else {
            return Some(std::mem::take(&mut rest));
        };
        let (line, tail) = rest.split_at(end);
        let mut after = tail.chars();
        if after.next() == Some('\r') && after.as_str().starts_with('\n') {
            after.next();
        }
        rest = after.as_str();
        Some(line)
    })
}

/// Returns the text before the first line boundary; empty if the text starts with one.
pub fn first_line(text: &str) -> &str {
    text.split(is_line_end).next().unwrap_or_default()
}

/// Returns true if the text is certainly in NFC. False means that only [`to_nfc`] can tell.
pub fn is_surely_nfc(text: &str) -> bool {
    // Every character below U+0300, whose UTF-8 starts with 0xCC, is inert. This is most text. The loop has no
    // branches so that it runs on vectors.
    text.bytes().fold(0, |max, b| b.max(max)) < 0xcc
        || text.chars().all(is_inert)
        || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

/// Returns true for common characters that NFC leaves alone whatever surrounds them. They have no decomposition that
/// NFC keeps, have combining class 0, and are never the second half of a composition. This spares most text that is
/// not Latin the look-up in tables.
fn is_inert(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{2ff}'
            // Cyrillic.
            | '\u{400}'..='\u{482}'
            // Punctuation, from quotation marks to currency.
            | '\u{2002}'..='\u{20cf}'
            // Arrows, mathematics, box drawing, dingbats.
            | '\u{2190}'..='\u{2328}'
            | '\u{232b}'..='\u{2adb}'
            // CJK punctuation, kana, ideographs, Hangul syllables, full-width forms.
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{309b}'..='\u{30ff}'
            | '\u{3400}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7a3}'
            | '\u{fe0f}'
            | '\u{ff01}'..='\u{ffee}'
            // Emoji.
            | '\u{1f000}'..='\u{1faff}'
    )
}

/// Returns the text in NFC.
pub fn to_nfc(text: &str) -> Cow<'_, str> {
    if is_surely_nfc(text) { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn white_space_is_rusts_plus_four() {
        for c in '\0'..=char::MAX {
            let extra = matches!(c, '\u{1c}'..='\u{1f}');
            assert_eq!(is_space(c), c.is_whitespace() || extra, "{c:?}");
        }
    }

    #[test]
    fn lines_end_where_python_ends_them() {
        let text =
            "a\nb\rc\r\nd\u{b}e\u{c}f\u{1c}g\u{1d}h\u{1e}i\u{85}j\u{2028}k\u{2029}l\u{1f}m\tn";
        let got: Vec<_> = split_lines(text).collect();
        let expected = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l\u{1f}m\tn"];
        assert_eq!(got, expected);
        assert_eq!(split_lines("").count(), 0);
        assert_eq!(split_lines("a\n").collect::<Vec<_>>(), ["a"]);
        assert_eq!(split_lines("\n\na\r\n\r\n").collect::<Vec<_>>(), ["", "", "a", ""]);
        assert_eq!(split_lines("\n\r").collect::<Vec<_>>(), ["", ""]);
        assert_eq!(first_line("\nx"), "");
        assert_eq!(first_line("x\u{1e}y"), "x");
        assert_eq!(first_line(""), "");
    }

    #[test]
    fn strips_what_python_strips() {
        assert_eq!(strip("\u{1c}\u{a0} a b\u{3000}\u{1f}\n"), "a b");
        assert_eq!(strip("\u{feff}a\u{200b}"), "\u{feff}a\u{200b}");
        assert_eq!(strip_start("\u{1d} a "), "a ");
    }

    #[test]
    fn inert_characters_are_inert() {
        use unicode_normalization::char::canonical_combining_class;
        for c in ('\0'..=char::MAX).filter(|c| is_inert(*c)) {
            assert_eq!(is_nfc_quick(std::iter::once(c)), IsNormalized::Yes, "{c:?}");
            assert_eq!(canonical_combining_class(c), 0, "{c:?}");
        }
    }

    #[test]
    fn normalises_only_what_needs_it() {
        assert!(matches!(to_nfc("caf\u{e9} \u{2014} \u{65e5}\u{1faa8}"), Cow::Borrowed(_)));
        assert_eq!(to_nfc("cafe\u{301}"), "caf\u{e9}");
        assert_eq!(to_nfc("\u{fb1d}"), "\u{5d9}\u{5b4}");
        assert_eq!(to_nfc("a\u{301}\u{323}"), "\u{1ea1}\u{301}");
    }

    proptest! {
        #[test]
        fn nfc_equals_the_full_algorithm(s in any::<String>()) {
            prop_assert_eq!(to_nfc(&s).into_owned(), s.nfc().collect::<String>());
        }

        #[test]
        fn first_line_is_the_first_of_lines(s in any::<String>()) {
            prop_assert_eq!(first_line(&s), split_lines(&s).next().unwrap_or_default());
        }
    }
}
