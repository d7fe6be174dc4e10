//! Mails (RFC 5322, 2045 to 2049) that anybody can have written, read by another's parser.
//!
//! The parser makes a tree of a mail that holds mails, without a bound, and walks it by recursion. Some header
//! lines and dividing lines cost it the square of their number. So the parser gets a text in which no part is a
//! mail, and a mail that would take too long is refused before. Afterwards, parsed parts whose bytes were
//! changed are made again from the mail itself, so nobody sees the difference.

pub mod attachments;
pub mod charset;
pub mod compose;
pub mod reading;
pub mod utf7;

use std::ops::Range;
use std::panic::UnwindSafe;
use std::sync::LazyLock;

use mail_parser::MimeHeaders as _;
use mail_parser::decoders::charsets::map::charset_decoder;
use mail_parser::{
    ContentType, HeaderName, HeaderValue, Message, MessageParser, MessagePart, PartType,
};
use memchr::memmem;

/// The most mails that a mail may hold, one in the other or side by side.
const MAX_MAILS: usize = 1_000;
/// The most lines of a mail that may divide parts.
const MAX_DIVIDERS: usize = 50_000;
/// The most bytes that the parser may compare to find dividing lines.
const MAX_COMPARED: u64 = 8 << 30;
/// The longest header line of a part that counts: the parser needs the square of its length.
const MAX_HEADER: usize = 64 << 10;
/// The byte that replaces the first letter of the type of a part that is a mail, and the last one of a header
/// name.
const STAND_IN: u8 = b'x';
/// The masked and the true form of the words that make the parser read a part as a mail.
const MAILS: [(&str, &str); 2] = [("xessage", "message"), ("xigest", "digest")];

/// A reason why a text cannot be read as a mail.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// It does not begin with a header.
    #[error("this cannot be read as a mail")]
    NoMail,
    /// It is made to crash the reader.
    #[error(
        "this mail holds more than {MAX_MAILS} mails, one in the other or side by side; it is not read"
    )]
    TooManyMails,
    /// It is made to hold up the reader.
    #[error(
        "this mail has more dividing lines than can be read (at most {MAX_DIVIDERS}); it is not read"
    )]
    TooManyParts,
}

/// Parses a mail. The time is proportional to the length, whatever the content.
///
/// # Errors
/// Returns a [`MailError`].
pub fn parse(raw: &[u8]) -> Result<Message<'static>, MailError> {
    let text = MaskedMail::new(raw)?;
    let mail = catch_parser_panic(|| Some(PARSER.parse(&text.bytes)?.into_owned()));
    let mut mail = mail.ok_or(MailError::NoMail)?;
    text.unmask_mail(&mut mail, raw);
    Ok(mail)
}

/// Parses the header of a mail.
///
/// # Errors
/// Returns a [`MailError`].
pub fn parse_headers(raw: &[u8]) -> Result<Message<'static>, MailError> {
    let text = MaskedMail::new(raw)?;
    let mail = catch_parser_panic(|| Some(PARSER.parse_headers(&text.bytes)?.into_owned()));
    let mut mail = mail.ok_or(MailError::NoMail)?;
    mail.raw_message = raw.to_owned().into();
    Ok(mail)
}

/// The parser. It does not parse dates: after a date that ends with a letter it would take the next line for a part of
/// the date. A parser with settings for some headers parses only those, so all needed headers are listed.
static PARSER: LazyLock<MessageParser> = LazyLock::new(|| {
    MessageParser::new()
        .with_mime_headers()
        .with_address_headers()
        .with_message_ids()
        .header_text(HeaderName::Subject)
        .header_received(HeaderName::Received)
});

/// Returns the result of the parser, or `None` if it fails or panics.
fn catch_parser_panic(
    parse: impl FnOnce() -> Option<Message<'static>> + UnwindSafe,
) -> Option<Message<'static>> {
    std::panic::catch_unwind(parse).ok().flatten()
}

/// Decodes again all of a mail that names no known charset, and finds its text. `parse` is the function that parsed it.
///
/// # Errors
/// Returns the error of `parse`.
pub fn decode_texts<E>(
    mut mail: Message<'static>,
    parse: impl Fn(&[u8]) -> Result<Message<'static>, E>,
) -> Result<Message<'static>, E> {
    if let Some(text) = charset::convert_headers_to_utf8(&mail) {
        mail = parse(&text)?;
    }
    charset::decode_unlabelled_texts(&mut mail);
    find_text(&mut mail);
    Ok(mail)
}

/// Returns true if a part is a mail. Its bytes are that mail.
pub fn is_mail_part(part: &MessagePart<'_>) -> bool {
    part.content_type().is_some_and(|kind| {
        kind.ctype() == "message" && matches!(kind.subtype(), Some("rfc822" | "global"))
    })
}

/// Makes the text of a truncated mail, or of one without its dividing line, the mail's text and not a file.
pub fn find_text(mail: &mut Message<'_>) {
    let is_text = |n: &u32| {
        mail.parts.get(*n as usize).is_some_and(|part| {
            let kind = part.content_type().map_or("text", |kind| kind.ctype());
            let placed =
                part.content_disposition().is_some_and(mail_parser::ContentType::is_attachment);
            let fits = match part.body {
                PartType::Text(_) | PartType::Html(_) => kind == "text",
                PartType::Binary(_) => kind == "multipart",
                _ => false,
            };
            fits && !placed && part.attachment_name().is_none()
        })
    };
    if mail.text_body.is_empty()
        && let Some(at) = mail.attachments.iter().position(is_text)
    {
        let n = mail.attachments.remove(at);
        mail.text_body.push(n);
        if let Some(part) = mail.parts.get_mut(n as usize)
            && let PartType::Binary(bytes) = &part.body
        {
            part.body = PartType::Text(charset::decode_unlabelled(bytes).into());
        }
    }
}

/// A mail in the form for the parser: of the same length, but no part of it is a mail.
struct MaskedMail {
    bytes: Vec<u8>,
    /// The positions of the changed bytes, in order.
    masked: Vec<usize>,
    mails: usize,
    /// The number of header lines that say that a part has parts, and the length of the longest one.
    multiparts: (usize, usize),
}

impl MaskedMail {
    fn new(raw: &[u8]) -> Result<Self, MailError> {
        let mut text =
            Self { bytes: raw.to_owned(), masked: Vec::new(), mails: 0, multiparts: (0, 0) };
        let mut at = 0;
        while let Some(line) = find_folded_line(raw, at) {
            at = line.end;
            text.mask_line(raw, line);
        }
        text.masked.sort_unstable();
        if text.mails > MAX_MAILS {
            return Err(MailError::TooManyMails);
        }
        let (multiparts, longest) = text.multiparts;
        if multiparts > 0 {
            let (pairs, lines) = count_dividers(raw);
            let compared = (multiparts as u64)
                .saturating_mul(raw.len() as u64)
                .saturating_add((longest as u64).saturating_mul(pairs));
            if lines > MAX_DIVIDERS || compared > MAX_COMPARED {
                return Err(MailError::TooManyParts);
            }
        }
        Ok(text)
    }

    /// Masks a line together with its continuation lines. The start of a header in it is unknown: after a
    /// dividing line it can be anywhere.
    fn mask_line(&mut self, raw: &[u8], line: Range<usize>) {
        let Some(text) = raw.get(line.clone()) else { return };
        let colons = |name: &[u8]| -> Vec<usize> {
            let all = memchr::memchr_iter(b':', text);
            all.filter(|at| ends_with_name(text.get(..*at).unwrap_or_default(), name)).collect()
        };
        let types = colons(b"content-type");
        if text.len() > MAX_HEADER {
            // None of them is a header that the parser knows.
            for colon in types.into_iter().chain(colons(b"content-disposition")) {
                let name = text.get(..colon).unwrap_or_default();
                if let Some(last) = name.iter().rposition(|b| !b.is_ascii_whitespace()) {
                    self.mask_byte(line.start + last);
                }
            }
            return;
        }
        let Some(first) = types.first() else { return };
        let value = text.get(first + 1..).unwrap_or_default();
        let end = value.iter().position(|b| *b == b';').unwrap_or(value.len());
        let kind = value.get(..end).unwrap_or_default();
        // In a comment the sign that ends the type ends nothing.
        let kind = if types.len() == 1 && !kind.contains(&b'(') { kind } else { value };
        let lower = kind.to_ascii_lowercase();
        let start = line.start + first + 1;
        for (_, word) in MAILS {
            for at in memmem::find_iter(&lower, word.as_bytes()) {
                self.mask_byte(start + at);
            }
        }
        if memmem::find(&lower, b"message").is_some() {
            self.mails += types.len();
        }
        if memmem::find(&lower, b"multipart").is_some() {
            self.multiparts.0 += types.len();
            self.multiparts.1 = self.multiparts.1.max(text.len());
        }
    }

    fn mask_byte(&mut self, at: usize) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte = STAND_IN;
            self.masked.push(at);
        }
    }

    /// Restores the mail's own bytes where the parser saw masked ones.
    fn unmask_mail(&self, mail: &mut Message<'_>, raw: &[u8]) {
        mail.raw_message = raw.to_owned().into();
        if self.masked.is_empty() {
            return;
        }
        for part in &mut mail.parts {
            let kinds = part.headers.iter_mut().filter_map(|header| match &mut header.value {
                HeaderValue::ContentType(kind) => Some(kind),
                _ => None,
            });
            kinds.for_each(unmask_type);
            let body = part.offset_body as usize..part.offset_end as usize;
            let first = self.masked.partition_point(|at| *at < body.start);
            if self.masked.get(first).is_none_or(|at| *at >= body.end) {
                continue;
            }
            let bytes = charset::decode_part(raw, part);
            let charset = part.content_type().and_then(|kind| kind.attribute("charset"));
            let charset = charset.and_then(|charset| charset_decoder(charset.as_bytes()));
            let text = || match charset {
                Some(decode) => decode(&bytes),
                None => String::from_utf8_lossy(&bytes).into_owned(),
            };
            part.body = match &part.body {
                PartType::Text(_) => PartType::Text(text().into()),
                PartType::Html(_) => PartType::Html(text().into()),
                PartType::Binary(_) => PartType::Binary(bytes.into_owned().into()),
                PartType::InlineBinary(_) => PartType::InlineBinary(bytes.into_owned().into()),
                PartType::Message(_) | PartType::Multipart(_) => continue,
            };
        }
    }
}

/// Restores the true type of a part.
fn unmask_type(kind: &mut ContentType<'_>) {
    let meant = |name: &str| MAILS.iter().find(|(other, _)| *other == name).map(|(_, own)| *own);
    if let Some(own) = meant(&kind.c_type) {
        kind.c_type = own.into();
    }
    if let Some(own) = kind.c_subtype.as_deref().and_then(meant) {
        kind.c_subtype = Some(own.into());
    }
}

/// Returns the range of the line that begins at `from`, with its continuation lines.
fn find_folded_line(raw: &[u8], from: usize) -> Option<Range<usize>> {
    let rest = raw.get(from..).filter(|rest| !rest.is_empty())?;
    let ends = memchr::memchr_iter(b'\n', rest).map(|at| at + 1);
    let mut ends = ends.filter(|end| !matches!(rest.get(*end), Some(b' ' | b'\t')));
    Some(from..from + ends.next().unwrap_or(rest.len()))
}

/// Returns true if a text ends with this name. White space is ignored, like in the parser.
fn ends_with_name(text: &[u8], name: &[u8]) -> bool {
    let mut letters = text.iter().rev().filter(|b| !b.is_ascii_whitespace());
    name.iter().rev().all(|n| letters.next().is_some_and(|b| b.eq_ignore_ascii_case(n)))
}

/// Counts the places where a dividing line may begin, and the lines that have such a place.
fn count_dividers(raw: &[u8]) -> (u64, usize) {
    let (mut pairs, mut lines) = (0, 0);
    for line in raw.split(|b| *b == b'\n') {
        let here = line.windows(2).filter(|pair| pair == b"--").count();
        pairs += here as u64;
        lines += usize::from(here > 0);
    }
    (pairs, lines)
}

#[cfg(test)]
mod tests;
