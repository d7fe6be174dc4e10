//! The decoded values of a mail: its addresses, ids, times and text (RFC 5322, 2045 to 2047, 3676).

use jiff::fmt::rfc2822::DateTimeParser;
use mail_parser::decoders::html::html_to_text;
use mail_parser::{
    Addr, Address, DateTime, Header, HeaderForm, HeaderValue, Message, MimeHeaders as _, PartType,
};
use memchr::memmem;

use super::{MailError, decode_texts, parse};

/// The largest mail that is read, in bytes.
pub const FILE_BYTES: usize = 64 << 20;
/// The largest header, in bytes.
const HEADER_BYTES: usize = 1 << 20;
/// The most parts of a mail.
const MAX_PARTS: usize = 1_000;
/// The most multiparts one in the other.
const MAX_LEVELS: usize = 100;

/// A reason why a mail is not read.
#[derive(Debug, thiserror::Error)]
pub enum MailLimitError {
    /// Nothing was written yet.
    #[error("the file is empty")]
    Empty,
    /// It is no mail, or it is made to hold up its reader.
    #[error(transparent)]
    Mail(#[from] MailError),
    /// It is larger than anything that is read.
    #[error("it is larger than 64 MiB")]
    TooLarge,
    /// Its header is larger than anything that is read.
    #[error("its header is larger than 1 MiB")]
    LongHeader,
    /// It has too many parts.
    #[error("it has more than {MAX_PARTS} parts, or more than {MAX_LEVELS} one in the other")]
    TooManyParts,
}

/// Removes the line with which a mailbox file begins a mail.
pub fn strip_mbox_line(raw: &[u8]) -> &[u8] {
    if !raw.starts_with(b"From ") && !raw.starts_with(b">From ") {
        return raw;
    }
    let end = memchr::memchr(b'\n', raw).map_or(raw.len(), |at| at + 1);
    raw.get(end..).unwrap_or_default()
}

/// Parses a mail that keeps the limits, and decodes its texts.
///
/// # Errors
/// Returns a [`MailLimitError`].
pub fn parse_limited(raw: &[u8]) -> Result<Message<'static>, MailLimitError> {
    decode_texts(parse_bounded(strip_mbox_line(raw))?, parse_bounded)
}

/// Parses a mail that keeps the limits.
fn parse_bounded(raw: &[u8]) -> Result<Message<'static>, MailLimitError> {
    if raw.len() > FILE_BYTES {
        return Err(MailLimitError::TooLarge);
    }
    if raw.trim_ascii().is_empty() {
        return Err(MailLimitError::Empty);
    }
    let start = raw.get(..HEADER_BYTES).unwrap_or(raw);
    let ends = |end: &[u8]| memmem::find(start, end).is_some();
    if start.len() < raw.len() && !ends(b"\n\n") && !ends(b"\n\r\n") {
        return Err(MailLimitError::LongHeader);
    }
    let mail = parse(raw)?;
    let line = raw.split(|b| *b == b'\n').next().unwrap_or_default();
    let name = line.split(|b| *b == b':').next().unwrap_or_default().trim_ascii_end();
    if name.len() == line.len() || name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
        return Err(MailError::NoMail.into());
    }
    let mut levels = vec![0usize; mail.parts.len()];
    for (n, part) in mail.parts.iter().enumerate() {
        let level = levels.get(n).copied().unwrap_or_default() + 1;
        for child in part.sub_parts().unwrap_or_default() {
            if let Some(of_child) = levels.get_mut(*child as usize) {
                *of_child = level;
            }
        }
    }
    let deepest = levels.into_iter().max().unwrap_or_default();
    if mail.parts.len() > MAX_PARTS || deepest > MAX_LEVELS {
        return Err(MailLimitError::TooManyParts);
    }
    Ok(mail)
}

/// Returns the first header of a name.
fn first_header<'m>(mail: &'m Message<'_>, name: &str) -> Option<&'m HeaderValue<'m>> {
    let found = mail.headers().iter().find(|header| header.name().eq_ignore_ascii_case(name));
    found.map(Header::value)
}

/// Returns the first header of a name as one line of decoded text.
pub fn first_text(mail: &Message<'_>, name: &str) -> Option<String> {
    let found = mail.headers().iter().find(|header| header.name().eq_ignore_ascii_case(name))?;
    let text = match mail.header_as(found.name.clone(), HeaderForm::Text).into_iter().next()? {
        HeaderValue::Text(text) => text.to_string(),
        HeaderValue::TextList(list) => list.join(" "),
        _ => return None,
    };
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>())
}

/// Returns the bare addresses of a header.
pub fn list_addresses(mail: &Message<'_>, name: &str) -> Vec<String> {
    let all = first_header(mail, name).and_then(HeaderValue::as_address);
    all.into_iter().flat_map(Address::iter).filter_map(bare_address).collect()
}

/// Returns the bare address of a mailbox. The parser takes a local part before a comment or in quotes for a name, and
/// keeps the route before an address of old times.
fn bare_address(one: &Addr<'_>) -> Option<String> {
    let clean = |text: &str| -> String {
        text.chars().filter(|c| !c.is_control() && !c.is_whitespace() && *c != ',').collect()
    };
    let local = || {
        let name = one.name.as_deref()?;
        Some(name.split_once(" (").map_or(name, |(local, _)| local))
            .filter(|local| !local.is_empty())
    };
    let address = match one.address.as_deref() {
        Some(route) if route.starts_with('@') && route.contains(':') => {
            clean(route.rsplit(':').next().unwrap_or_default())
        }
        Some(host) if host.starts_with('@') => match local()? {
            blank if blank.contains(char::is_whitespace) => {
                let quoted = blank.replace(|c: char| c.is_control() || matches!(c, ',' | '"'), "");
                format!("\"{quoted}\"{}", clean(host))
            }
            local => clean(local) + &clean(host),
        },
        Some(address) => clean(address),
        None => return None,
    };
    Some(address).filter(|address| !address.is_empty())
}

/// Returns the ids in a header, without blanks and angle brackets.
pub fn list_ids(mail: &Message<'_>, name: &str) -> Vec<String> {
    let list = first_header(mail, name).and_then(HeaderValue::as_text_list).unwrap_or_default();
    let clean = |id: &str| -> String {
        id.chars()
            .filter(|c| !c.is_control() && !c.is_whitespace() && !matches!(c, '<' | '>'))
            .collect()
    };
    list.iter().map(|id| clean(id)).filter(|id| !id.is_empty()).collect()
}

/// Returns the first date of a mail, as it is written.
fn date_text<'m>(mail: &'m Message<'_>) -> Option<&'m str> {
    let header = mail.headers().iter().find(|header| header.name().eq_ignore_ascii_case("Date"))?;
    let raw = mail.raw_message.get(header.offset_start as usize..header.offset_end as usize)?;
    std::str::from_utf8(raw).ok()
}

/// Returns the date of a mail in the time zone of its writer, also if it cannot be.
pub fn written_date(mail: &Message<'_>) -> Option<DateTime> {
    DateTime::parse_rfc822(date_text(mail)?)
}

/// Returns the time at which a mail was written.
pub fn written_seconds(mail: &Message<'_>) -> Option<i64> {
    let strict = date_text(mail).and_then(|text| {
        let parser = DateTimeParser::new().relaxed_weekday(true);
        parser.parse_timestamp(text.split_whitespace().collect::<Vec<_>>().join(" ")).ok()
    });
    strict
        .map(jiff::Timestamp::as_second)
        .or_else(|| written_date(mail).as_ref().and_then(date_seconds))
}

fn date_seconds(date: &DateTime) -> Option<i64> {
    date.is_valid().then(|| date.to_timestamp())
}

/// Returns the time at which the last machine received a mail.
pub fn received_seconds(mail: &Message<'_>) -> Option<i64> {
    let date = first_header(mail, "Received").and_then(HeaderValue::as_received)?.date?;
    date_seconds(&date)
}

/// Returns the number of the part that is the text: the first plain text without a name, or else the first HTML.
pub fn find_body(mail: &Message<'_>) -> Option<u32> {
    let find = |is_it: fn(&PartType<'_>) -> bool| {
        mail.text_body.iter().copied().find(|n| {
            let part = mail.parts.get(*n as usize);
            part.is_some_and(|part| part.attachment_name().is_none() && is_it(&part.body))
        })
    };
    find(|body| matches!(body, PartType::Text(_)))
        .or_else(|| find(|body| matches!(body, PartType::Html(_))))
}

/// Returns the text of a part, without empty lines at its end.
pub fn read_body(mail: &Message<'_>, n: u32) -> String {
    let Some(part) = mail.parts.get(n as usize) else { return String::new() };
    let mut text = match &part.body {
        PartType::Text(text) => text.replace("\r\n", "\n"),
        PartType::Html(html) => html_to_text(html).replace("\r\n", "\n"),
        _ => String::new(),
    };
    let attribute = |name| part.content_type().and_then(|kind| kind.attribute(name));
    if attribute("format").is_some_and(|format| format.eq_ignore_ascii_case("flowed")) {
        let joins = attribute("delsp").is_some_and(|delsp| delsp.eq_ignore_ascii_case("yes"));
        text = unfold_flowed(&text, joins);
    }
    text.truncate(text.trim_end_matches('\n').len());
    text
}

/// Joins the lines of a text that was folded for the way (RFC 3676).
fn unfold_flowed(text: &str, deletes_space: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut open: Option<usize> = None;
    for line in text.split('\n') {
        let rest = line.trim_start_matches('>');
        let depth = line.len() - rest.len();
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        if open != Some(depth) {
            out.extend(open.map(|_| '\n'));
            out.push_str(line.get(..depth).unwrap_or_default());
            out.extend((depth > 0).then_some(' '));
        }
        let flows = rest.ends_with(' ') && rest != "-- ";
        out.push_str(if flows && deletes_space { rest.trim_end_matches(' ') } else { rest });
        open = flows.then_some(depth);
        out.extend((!flows).then_some('\n'));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_every_form() {
        for (from, expected) in [
            ("Bob <bob@x.org>", "bob@x.org"),
            ("bob(work)@localhost", "bob@localhost"),
            ("\"bob smith\"@x.org", "\"bob smith\"@x.org"),
            ("<@a,@b:joe@x.org>", "joe@x.org"),
            ("Joe <joe(x)@y>", "joe@y"),
            ("bob @ x.org", "bob@x.org"),
            ("root (Cron Daemon)", "root"),
            ("\"bob@bank\" <eve@x>", "eve@x"),
        ] {
            let raw = format!("From: {from}\nSubject: s\n\nx\n");
            let mail = parse_limited(raw.as_bytes()).unwrap();
            assert_eq!(list_addresses(&mail, "From"), [expected], "{from}");
        }
        let mail = parse_limited(b"From: Bob\nTo: (undisclosed)\n\nx\n").unwrap();
        assert!(list_addresses(&mail, "From").is_empty() && list_addresses(&mail, "To").is_empty());
    }

    /// The line behind a date is a line of its own, whatever zone the date has.
    #[test]
    fn dates_of_every_zone() {
        for (zone, hours) in [
            ("+0000", 10),
            ("Z", 10),
            ("UT", 10),
            ("UTC", 10),
            ("GMT", 10),
            ("EST", 15),
            ("PDT", 17),
            ("-0500 (EST)", 15),
        ] {
            let raw = format!(
                "Date: Fri, 24 Apr 2026 10:00:00 {zone}\nFrom: a@x\nResent-Date: Fri, 24 Apr 2026 \
                 10:00:00 {zone}\nSubject: s\n\nfirst\n\nsecond\n"
            );
            let mail = parse_limited(raw.as_bytes()).unwrap();
            assert_eq!(written_seconds(&mail), Some(1_776_988_800 + hours * 3600), "{zone}");
            assert_eq!(list_addresses(&mail, "From"), ["a@x"], "{zone}");
            assert_eq!(first_text(&mail, "Subject").as_deref(), Some("s"), "{zone}");
            assert_eq!(read_body(&mail, find_body(&mail).unwrap()), "first\n\nsecond", "{zone}");
        }
        let last = "From: a@x\nDate: Fri, 24 Apr 2026 10:00:00 Z\n\nfirst\n\nsecond\n";
        let mail = parse_limited(last.as_bytes()).unwrap();
        assert_eq!(read_body(&mail, find_body(&mail).unwrap()), "first\n\nsecond");
    }
}
