//! Decoding of the bytes of a mail that names no charset. They are read as UTF-8, and invalid bytes as
//! Windows-1252, like mail programs do. So no byte is lost.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mail_parser::decoders::base64::base64_decode;
use mail_parser::decoders::charsets::map::charset_decoder;
use mail_parser::decoders::quoted_printable::quoted_printable_decode;
use mail_parser::{Encoding, Message, MessagePart, MimeHeaders as _, PartType};

/// The charset of older mail.
const OLD: &[u8] = b"windows-1252";
/// Charsets that say no more than none does: many programs write them for any text.
const WEAK: [&str; 4] = ["us-ascii", "ascii", "utf-8", "utf8"];

/// Returns bytes as a text.
pub fn decode_unlabelled(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| decode_old_byte(*byte)));
    }
    text
}

/// Returns a byte in the old charset; the few that are undefined there stand for themselves.
fn decode_old_byte(byte: u8) -> char {
    let decoded = charset_decoder(OLD).and_then(|old| old(&[byte]).chars().next());
    decoded.filter(|c| *c != char::REPLACEMENT_CHARACTER).unwrap_or_else(|| char::from(byte))
}

/// Returns true if a charset is named and is one of the known ones.
fn is_known_charset(charset: &str) -> bool {
    charset_decoder(charset.as_bytes()).is_some()
        && !WEAK.iter().any(|weak| charset.eq_ignore_ascii_case(weak))
}

/// Returns the bytes of an encoded word at the beginning of a text, and its length. `None` if the word names a
/// known charset.
fn parse_encoded_word(text: &str) -> Option<(Vec<u8>, usize)> {
    let mut parts = text.strip_prefix("=?")?.splitn(4, '?');
    let (charset, encoding, inner) = (parts.next()?, parts.next()?, parts.next()?);
    let is_word = parts.next()?.starts_with('=') && inner.bytes().all(|b| b.is_ascii_graphic());
    if !is_word || is_known_charset(charset.split('*').next().unwrap_or_default()) {
        return None;
    }
    let bytes = match encoding {
        "q" | "Q" => quoted_printable_decode(inner.replace('_', "=20").as_bytes())?,
        "b" | "B" => base64_decode(inner.as_bytes())?,
        _ => return None,
    };
    Some((bytes, "=????=".len() + charset.len() + encoding.len() + inner.len()))
}

/// Joins encoded words without a known charset to one encoded word, even if a character was cut in two. The
/// word stays encoded, so its text can be no header line and no address.
fn join_encoded_words(head: &str) -> String {
    let (mut made, mut rest) = (String::with_capacity(head.len()), head);
    while let Some(at) = rest.find("=?") {
        let (before, word) = rest.split_at(at);
        made.push_str(before);
        let Some((mut bytes, mut end)) = parse_encoded_word(word) else {
            made.push_str("=?");
            rest = word.get(2..).unwrap_or_default();
            continue;
        };
        while let Some(after) = word.get(end..)
            && let next = after.trim_start()
            && let Some((more, length)) = parse_encoded_word(next)
        {
            bytes.extend(more);
            end += after.len() - next.len() + length;
        }
        let told = STANDARD.encode(decode_unlabelled(&bytes));
        made.extend(["=?utf-8?b?", &told, "?="]);
        rest = word.get(end..).unwrap_or_default();
    }
    made + rest
}

/// Returns the mail with headers in UTF-8, those of its parts too; `None` if they already are.
pub fn convert_headers_to_utf8(mail: &Message<'_>) -> Option<Vec<u8>> {
    let raw = mail.raw_message();
    let mut heads: Vec<_> = mail.parts.iter().map(|p| (p.offset_header, p.offset_body)).collect();
    heads.sort_unstable();
    let (mut made, mut done, mut changed) = (Vec::with_capacity(raw.len()), 0, false);
    for (from, to) in heads.into_iter().map(|(from, to)| (from as usize, to as usize)) {
        let (Some(between), Some(head)) = (raw.get(done..from), raw.get(from..to)) else {
            continue;
        };
        made.extend_from_slice(between);
        let told = join_encoded_words(&decode_unlabelled(head));
        changed |= told.as_bytes() != head;
        made.extend_from_slice(told.as_bytes());
        done = to;
    }
    made.extend_from_slice(raw.get(done..).unwrap_or_default());
    changed.then_some(made)
}

/// Decodes again the texts that name no known charset.
pub fn decode_unlabelled_texts(mail: &mut Message<'_>) {
    let is_told = |part: &MessagePart<'_>| {
        let charset = part.content_type().and_then(|kind| kind.attribute("charset"));
        charset.is_some_and(is_known_charset)
    };
    let texts = mail.parts.iter().enumerate().filter(|(_, part)| !is_told(part));
    let anew: Vec<(usize, String)> = texts
        .filter(|(_, part)| matches!(part.body, PartType::Text(_) | PartType::Html(_)))
        .map(|(n, part)| (n, decode_unlabelled(&bytes(mail, part))))
        .collect();
    for (n, text) in anew {
        let body = mail.parts.get_mut(n).map(|part| &mut part.body);
        if let Some(PartType::Text(old) | PartType::Html(old)) = body {
            *old = text.into();
        }
    }
}

/// Returns the decoded bytes of a part.
pub fn bytes<'m>(mail: &'m Message<'_>, part: &MessagePart<'_>) -> Cow<'m, [u8]> {
    decode_part(mail.raw_message(), part)
}

/// Returns the decoded content of a part of these bytes.
pub(super) fn decode_part<'m>(mail: &'m [u8], part: &MessagePart<'_>) -> Cow<'m, [u8]> {
    let within = part.offset_body as usize..part.offset_end as usize;
    let raw = mail.get(within).unwrap_or_default();
    let decoded = match part.encoding {
        Encoding::None => None,
        Encoding::QuotedPrintable => quoted_printable_decode(raw),
        Encoding::Base64 => base64_decode(raw),
    };
    decoded.map_or(Cow::Borrowed(raw), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_lost() {
        let every: Vec<u8> = (1..=255).collect();
        let text = decode_unlabelled(&every);
        assert_eq!((text.chars().count(), text.contains('\u{fffd}')), (255, false));
        assert_eq!(decode_unlabelled("Gr\u{fc}\u{df}e".as_bytes()), "Gr\u{fc}\u{df}e");
        assert_eq!(decode_unlabelled(b"Gr\xfc\xdfe \x80"), "Gr\u{fc}\u{df}e \u{20ac}");
        let cut = ["\u{fc} ".as_bytes(), b"\xc3"].concat();
        assert_eq!(decode_unlabelled(&cut), "\u{fc} \u{c3}");
    }

    #[test]
    fn words_are_whole_and_stay_encoded() {
        let word = |text: &str| format!("=?utf-8?b?{}?=", STANDARD.encode(text));
        for (head, wanted) in [
            ("Subject: plain =? x\n", "Subject: plain =? x\n".to_owned()),
            ("S: =?iso-8859-1?q?=FC?=\n", "S: =?iso-8859-1?q?=FC?=\n".into()),
            ("S: =?utf-8?q?=C3?=\n =?UTF-8?B?vA==?= x\n", format!("S: {} x\n", word("\u{fc}"))),
            ("S: =?x-odd?q?=FC_a?= b\n", format!("S: {} b\n", word("\u{fc} a"))),
            ("T: =?utf-8?q?a=0AX:?= <b>\n", format!("T: {} <b>\n", word("a\nX:"))),
            ("S: =?utf-8?q?a b?= =?utf-8?x?y?= =?", "S: =?utf-8?q?a b?= =?utf-8?x?y?= =?".into()),
        ] {
            assert_eq!(join_encoded_words(head), wanted, "{head}");
        }
    }
}
