//! Foreign text made safe for a terminal.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

/// Returns a body that cannot control a terminal (docs/SEMANTICS.md, S21 and S22). CRLF becomes a newline.
/// Control characters other than tab and newline become visible pictures (C0, DEL) or U+FFFD (C1).
pub fn sanitize_text(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    // Only bytes below 0x20, DEL and the lead byte 0xC2 of C1 can start a character to replace.
    let may_be = |b: u8| (b < 0x20 && b != b'\n' && b != b'\t') || b == 0x7f || b == 0xc2;
    if !text.bytes().fold(false, |any, b| any | may_be(b)) || !text.chars().any(bad) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(replace_chars(&text.replace("\r\n", "\n"), bad).into_owned())
}

/// Returns a number with its noun, such as `1 message` or `2 messages`.
pub fn format_count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Returns a value on one line. It replaces every control character, line and paragraph separators, and
/// characters that are invisible or reorder text. A value can so neither start a new header line nor disguise
/// itself.
pub fn sanitize_line(text: &str) -> Cow<'_, str> {
    // Most values are plain, and every message has several.
    if is_visible(text) {
        return Cow::Borrowed(text);
    }
    replace_chars(text, is_deceptive)
}

/// Returns true if every character is visible ASCII or a space. It checks all of them, many at once.
pub fn is_visible(text: &str) -> bool {
    text.bytes().fold(true, |visible, b| visible & matches!(b, b' '..=b'~'))
}

/// Returns the name of a file in at most `max` bytes. A longer name is cut before its ending.
pub fn shorten_name(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() && ending.len() < max / 2 => {
            (stem, format!(".{ending}"))
        }
        _ => (name, String::new()),
    };
    let room = max.saturating_sub(ending.len());
    let fits = (0..=room).rev().find_map(|end| stem.get(..end)).unwrap_or_default();
    fits.trim_end().to_owned() + &ending
}

/// Returns the first `max` characters of a text, and `…` after them if there are more.
pub fn cut_text(text: &str, max: usize) -> Cow<'_, str> {
    let cut = text.char_indices().nth(max).and_then(|(at, _)| text.get(..at));
    cut.map_or(Cow::Borrowed(text), |cut| Cow::Owned(format!("{cut}…")))
}

/// Returns each text once, in the order in which they come.
pub fn list_distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

/// Returns a path on one line, for use in a sentence.
pub fn display_path(path: &Path) -> String {
    sanitize_line(&path.to_string_lossy()).into_owned()
}

/// Returns a value as one line for a file. It replaces only control characters and line ends.
pub fn flatten_line(text: &str) -> Cow<'_, str> {
    replace_chars(text, |c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'))
}

/// Returns text safe for a terminal, with its newlines and tabs.
pub fn sanitize_lines(text: &str) -> Cow<'_, str> {
    replace_chars(text, |c| is_deceptive(c) && !matches!(c, '\n' | '\t'))
}

fn replace_chars(text: &str, bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&bad) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if !bad(c) => c,
        c if c.is_control() => control_picture(c),
        _ => '\u{fffd}',
    };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Returns true for a character that controls a terminal, ends a line, has no width, turns the direction of
/// text, or is a tag.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns JSON in which every such character is escaped. It means the same and shows everything. Newlines
/// between values stay.
pub fn escape_json(json: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_deceptive(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns a word quoted for a shell, so that a command in an error text can be pasted.
pub fn quote_shell_word(text: &str) -> String {
    let text = sanitize_line(text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns bytes as lower-case hex digits.
pub fn encode_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// Returns the value of 16 lower-case hex digits.
pub fn decode_hex_u64(text: &str) -> Option<u64> {
    let (high, low) = text.as_bytes().split_first_chunk::<8>()?;
    let (high, low) = (decode_hex_u32(*high)?, decode_hex_u32(low.try_into().ok()?)?);
    Some(high << 32 | low)
}

/// Returns the value of 8 lower-case hex digits. It decodes all at once: each byte of a word is one digit.
fn decode_hex_u32(digits: [u8; 8]) -> Option<u64> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let word = u64::from_be_bytes(digits);
    // In ASCII the low half byte of a digit is its value. For a letter it is nine less, and bit 6 is set.
    let values = (word & (0xf * ONES)) + 9 * ((word >> 6) & ONES);
    let letters = ((values + 6 * ONES) >> 4) & ONES;
    let spelled = values + 0x30 * ONES + 0x27 * letters;
    let pairs = (values >> 4 | values) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs >> 8 | pairs) & 0x0000_ffff_0000_ffff;
    let fits = values & (0xf0 * ONES) == 0 && spelled == word;
    fits.then_some((fours >> 16 | fours) & 0xffff_ffff)
}

/// Returns the visible stand-in for a control character.
fn control_picture(c: char) -> char {
    match u32::from(c) {
        n @ 0..=0x1f => char::from_u32(0x2400 + n).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    }
}

/// Writes into a buffer as into a file, at an offset or at its end. Returns false and writes nothing if the
/// buffer would exceed `limit` bytes.
pub fn write_at(buffer: &mut Vec<u8>, at: Option<u64>, data: &[u8], limit: u64) -> bool {
    let at = at.unwrap_or(buffer.len() as u64);
    let end = at.saturating_add(data.len() as u64);
    if end > limit {
        return false;
    }
    let (at, end) = (at as usize, end as usize);
    if buffer.len() < end {
        buffer.resize(end, 0);
    }
    if let Some(slot) = buffer.get_mut(at..end) {
        slot.copy_from_slice(data);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sixteen_digits_and_nothing_else_are_a_number() {
        let digits = "0123456789abcdef";
        assert_eq!(decode_hex_u64(digits), Some(0x0123_4567_89ab_cdef));
        for at in 0..16 {
            for c in '\0'..='\u{ff}' {
                let mut text: String = digits.into();
                text.replace_range(at..=at, &c.to_string());
                let good = digits.contains(c);
                let value = u64::from_str_radix(&text, 16).ok().filter(|_| good);
                assert_eq!(decode_hex_u64(&text), value, "{text:?}");
            }
        }
        assert!(
            ["", &digits[1..], "00000000000000000"].iter().all(|s| decode_hex_u64(s).is_none())
        );
    }

    #[test]
    fn a_name_that_is_cut_keeps_its_ending() {
        for (name, max, cut) in [
            ("plan.pdf", 8, "plan.pdf"),
            ("the plan.pdf", 8, "the.pdf"),
            ("the plan.pdf", 11, "the pla.pdf"),
            ("\u{e4}\u{e4}\u{e4}.md", 8, "\u{e4}\u{e4}.md"),
            ("no ending at all", 8, "no endin"),
            ("a.long ending", 8, "a.long e"),
            (".bashrc-of-me", 8, ".bashrc-"),
        ] {
            assert_eq!(shorten_name(name, max), cut, "{name}");
        }
    }

    #[test]
    fn bodies_keep_layout_and_lose_control() {
        assert_eq!(sanitize_text("a\r\nb\tc\n"), "a\nb\tc\n");
        assert_eq!(
            sanitize_text("\x1b[31m\r\u{9b}\x7f\0"),
            "\u{241b}[31m\u{240d}\u{fffd}\u{2421}\u{2400}"
        );
        assert!(matches!(sanitize_text("plain \u{e9} text"), Cow::Borrowed(_)));
    }

    #[test]
    fn values_stay_on_one_line() {
        assert_eq!(sanitize_line("a\nFrom: x"), "a\u{240a}From: x");
        assert_eq!(sanitize_line("a\u{202e}b\u{2028}"), "a\u{fffd}b\u{fffd}");
        let unseen = "\u{200b}\u{feff}\u{e0041}\u{2066}\u{ad}";
        assert_eq!(sanitize_line(unseen), "\u{fffd}".repeat(5));
        assert_eq!(sanitize_lines("a\tb\n\x1b"), "a\tb\n\u{241b}");
        assert!(matches!(sanitize_line("\u{e9} \u{5d0} \u{1f600}"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_means_the_same_and_shows_everything() {
        let text = "a\u{7f}\u{9b}\u{202e}\u{e0041}\u{e9}\n\"";
        let json = escape_json(&serde_json::json!([text]).to_string());
        assert_eq!(json, r#"["a\u007f\u009b\u202e\udb40\udc41é\n\""]"#);
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
    }

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(quote_shell_word("bob@host"), "bob@host");
        assert_eq!(quote_shell_word("my key"), "'my key'");
        assert_eq!(quote_shell_word("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quote_shell_word(""), "''");
        assert_eq!(quote_shell_word("a\nrm"), "'a\u{240a}rm'");
    }

    proptest! {
        #[test]
        fn nothing_shown_controls_a_terminal(s in any::<String>()) {
            prop_assert!(!sanitize_text(&s).chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            prop_assert!(!sanitize_line(&s).chars().any(char::is_control));
        }
    }
}
