//! Conversion of letters to e-mail and back (RFC 5322, 2045 to 2047, 2231).
//!
//! A sent mail depends only on its letter, so that every try sends the same. A fetched mail is foreign: any bytes make
//! some letter.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::tz::TimeZone;
use mail_builder::MessageBuilder;
use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::raw::Raw;
use mail_builder::mime::MimePart;
use mail_parser::{Address, Message, MimeHeaders as _};
use sha2::{Digest, Sha256};

use crate::link::agentazall::attachment_error;
use crate::link::agentazall::letter::{self, AttachmentFaults, MAX_PARTS, make_usable_name};
use crate::link::disk_space;
use crate::link::engine::EncodeError;
use crate::mime::compose::{self, clean_header_value};
use crate::mime::reading::written_date;
use crate::mime::{self, MailError};
use crate::model::{Timestamp, encode_hex};
use crate::store::agentazall::{block, date, names, text};
use crate::store::{InboundMail, OutboundMail, fs};

/// The domain for ids that have none.
const DOMAIN: &str = "agentazall";
/// The header with the recipient of a mail, for accounts where I get a copy of each mail.
const FOR: &str = "X-Msgfs-For";
/// The day for a mail without a date.
const NO_DAY: &str = "1970-01-01";

/// Composes the mail for a letter; with its recipient in a header if a copy must show it.
///
/// # Errors
/// Fails if an attachment cannot be read, or the mail is larger than `limit`.
pub fn compose_mail(
    parcel: &OutboundMail,
    with_recipient: bool,
    limit: u64,
) -> Result<Vec<u8>, EncodeError> {
    let letter = text::parse(&parcel.bytes);
    let reading = block::read(&letter);
    let mut total = parcel.bytes.len() as u64;
    let mut parts = Vec::new();
    for (name, path) in &parcel.parts {
        let why = |e: io::Error| attachment_error(name, &e);
        let file = fs::open_regular(path).map_err(why)?;
        let mut bytes = Vec::new();
        let left = limit.saturating_sub(total);
        total += file.take(left.saturating_add(1)).read_to_end(&mut bytes).map_err(why)? as u64;
        if total > limit {
            return Err(format!(
                "with its attachments it is larger than {limit} bytes, the most that a mail may \
                 have"
            )
            .into());
        }
        parts.push((name, bytes));
    }
    let mut headers = vec![
        ("From", encode_header_text(letter.get("From").unwrap_or_default())),
        ("To", format_address_list(&letter.list_values("To"))),
    ];
    let cc = letter.list_values("Cc");
    if !cc.is_empty() {
        headers.push(("Cc", format_address_list(&cc)));
    }
    headers.push(("Subject", encode_header_text(letter.get("Subject").unwrap_or_default())));
    headers.push(("Date", format_mail_date(letter.get("Date").unwrap_or_default())));
    headers.push(("Message-ID", format_mail_id(&parcel.message_id)));
    let answers = reading.in_reply_to.as_deref().or_else(|| letter.get("In-Reply-To"));
    if let Some(id) = answers.map(format_mail_id) {
        headers.extend([("In-Reply-To", id.clone()), ("References", id)]);
    }
    if with_recipient {
        headers.push((FOR, encode_header_text(&parcel.to)));
    }
    // As bytes the text is sent in base64, which no server changes.
    let mut body = MimePart::raw(letter.body.as_bytes())
        .header("Content-Type", Raw::new("text/plain; charset=utf-8"));
    if !parts.is_empty() {
        let digest = encode_hex(&Sha256::digest(&parcel.bytes));
        let boundary = format!("=_msgfs_{}", digest.get(..24).unwrap_or_default());
        let mixed = ContentType::new("multipart/mixed").attribute("boundary", boundary);
        let files = parts.into_iter().map(|(name, bytes)| {
            MimePart::new("application/octet-stream", bytes).attachment(name.as_str())
        });
        body = MimePart::new(mixed, [body].into_iter().chain(files).collect::<Vec<_>>());
    }
    let mail = headers
        .into_iter()
        .fold(MessageBuilder::new(), |mail, (key, value)| mail.header(key, Raw::new(value)));
    mail.body(body).write_to_vec().map_err(|e| e.to_string().into())
}

/// Formats an id for a mail.
fn format_mail_id(id: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"<>()[]\\,;:\"".contains(&b);
    match id {
        id if id.is_empty() || id.len() > 200 || !id.bytes().all(is_plain) => {
            let digest = encode_hex(&Sha256::digest(id));
            format!("<{}@{DOMAIN}>", digest.get(..24).unwrap_or_default())
        }
        id if id.contains('@') => format!("<{id}>"),
        id => format!("<{id}@{DOMAIN}>"),
    }
}

/// Formats the date of a letter for a mail.
fn format_mail_date(of: &str) -> String {
    let zone = TimeZone::system();
    let at = date::parse_date(of, &zone).map_or(0, |(at, _)| at.millis());
    let at = jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let printer = DateTimePrinter::new();
    let text = printer.zoned_to_string(&at.to_zoned(zone));
    text.unwrap_or_else(|_| "Thu, 1 Jan 1970 00:00:00 +0000".to_owned())
}

/// Encodes a text for a header that mail-builder folds.
fn encode_header_text(value: &str) -> String {
    compose::encode_header_text(value).replace("\r\n ", " ")
}

/// Formats addresses for a header that mail-builder folds.
fn format_address_list(addresses: &[String]) -> String {
    compose::format_address_list(addresses).replace("\r\n ", " ")
}

/// Returns the id of a mail and its recipient, if it is a copy for me.
pub fn parse_copy_recipient(raw: &[u8]) -> Option<(String, String)> {
    let message = mime::parse_headers(raw).ok()?;
    let to = message.header_raw(FOR)?.trim().replace("\r\n", "");
    Some((message.message_id()?.to_owned(), to))
}

/// Returns true if the recipient from [`parse_copy_recipient`] is this address.
pub fn is_copy_for(to: &str, address: &str) -> bool {
    to.eq_ignore_ascii_case(&encode_header_text(address))
}

/// Converts a mail to a letter, and writes its attachments to a folder. The same bytes always make the same letter. A
/// mail that is dangerous to parse is filed as one that cannot be read.
///
/// # Errors
/// Returns the system's error, if an attachment cannot be written.
pub fn mail_to_letter(raw: &[u8], folder: &Path) -> io::Result<InboundMail> {
    let hashed = hash_mail_name(raw);
    let mut message = match mime::parse(raw) {
        Ok(message) if !message.headers().is_empty() => message,
        Ok(_) | Err(MailError::NoMail) => {
            let body = String::from_utf8_lossy(raw).into_owned();
            let lines = vec![("Subject", "(not a mail)".into()), ("Message-ID", hashed.clone())];
            return Ok(letter::build_arrived_letter(
                lines,
                body,
                Vec::new(),
                &AttachmentFaults::default(),
                hashed,
                NO_DAY.to_owned(),
            ));
        }
        Err(why) => return Ok(build_unreadable_mail(raw, &why.to_string())),
    };
    mime::find_text(&mut message);
    let id = message.message_id().map(str::trim).unwrap_or_default();
    let id = id.strip_suffix(&format!("@{DOMAIN}")).unwrap_or(id);
    let is_id = !id.is_empty() && id.len() <= 200 && !id.contains(char::is_whitespace);
    let body = join_text_bodies(&message);
    let mut faults = AttachmentFaults::default();
    let parts = write_attachments(&message, folder, &mut faults)?;
    let mut lines = vec![
        ("From", format_people(message.from(), true)),
        ("To", format_people(message.to(), false)),
    ];
    let cc = format_people(message.cc(), false);
    if !cc.is_empty() {
        lines.push(("Cc", cc));
    }
    lines.push(("Subject", message.subject().unwrap_or_default().to_owned()));
    let written = message.header_raw("Date").map(clean_header_value);
    if let Some(date) = written.filter(|date| !date.is_empty()) {
        lines.push(("Date", date));
    }
    lines.push(("Message-ID", if is_id { id.to_owned() } else { String::new() }));
    lines.push(("Status", "new".to_owned()));
    Ok(letter::build_arrived_letter(lines, body, parts, &faults, hashed, mail_day(&message)))
}

/// Builds the mail to file for a mail that makes no letter.
pub fn build_unreadable_mail(raw: &[u8], why: &str) -> InboundMail {
    letter::build_unreadable_letter(raw, why, hash_mail_name(raw), NO_DAY)
}

/// Returns a name for a mail that has none. Servers end mails with more or fewer empty lines.
fn hash_mail_name(raw: &[u8]) -> String {
    let digest = encode_hex(&Sha256::digest(raw.trim_ascii_end()));
    digest.get(..12).unwrap_or_default().to_owned()
}

/// Builds the letter about a mail that is too large to be read, from its beginning.
///
/// # Errors
/// Fails like [`mail_to_letter`].
pub fn describe_large_mail(
    begin: &[u8],
    size: u64,
    limit: u64,
    folder: &Path,
) -> io::Result<InboundMail> {
    let mut arrived = mail_to_letter(begin, folder)?;
    arrived.parts.clear();
    let told = format!(
        "[This mail has {size} bytes; msgfs takes at most {limit}. It is still on the server; this is how it \
         begins.]\n\n"
    );
    let letter = text::parse(&arrived.bytes);
    let body = letter.body.get(..64 << 10).unwrap_or(&letter.body);
    let lines = letter.headers.iter().filter(|(key, _)| key != "Attachments");
    let lines: Vec<(&str, String)> = lines.map(|(k, v)| (k.as_str(), v.clone())).collect();
    arrived.bytes = letter::render_letter(&lines, &format!("{told}{body}"));
    arrived.name.clone_from(&arrived.other_name);
    Ok(arrived)
}

/// Returns the day of a mail in the time zone of its writer.
fn mail_day(message: &Message<'_>) -> String {
    let received = message.received().and_then(|received| received.date);
    let date = written_date(message).filter(mail_parser::DateTime::is_valid).or(received);
    let day = date.map(|date| format!("{:04}-{:02}-{:02}", date.year, date.month, date.day));
    let is_day = |day: &String| date::is_day(day) && day.parse::<jiff::civil::Date>().is_ok();
    day.filter(is_day).unwrap_or_else(|| NO_DAY.to_owned())
}

/// Formats the addresses of a header; with the name if there is only one.
fn format_people(all: Option<&Address<'_>>, with_name: bool) -> String {
    let clean = |text: &str| text.replace([',', '<', '>', '"'], " ").trim().to_owned();
    let one = |addr: &mail_parser::Addr<'_>| {
        let address = clean(addr.address.as_deref().unwrap_or_default());
        match addr.name.as_deref().map(clean).filter(|name| with_name && !name.is_empty()) {
            Some(name) if address.is_empty() => name,
            Some(name) => format!("{name} <{address}>"),
            None => address,
        }
    };
    let all = all.into_iter().flat_map(|all| all.iter().map(one)).filter(|one| !one.is_empty());
    let mut all: Vec<String> = if with_name { all.take(1).collect() } else { all.collect() };
    all.dedup();
    all.join(", ")
}

fn join_text_bodies(message: &Message<'_>) -> String {
    let texts = (0..message.text_body_count()).filter_map(|n| message.body_text(n));
    let texts: Vec<String> = texts.map(|text| text.replace("\r\n", "\n")).collect();
    texts.join("\n")
}

/// Writes attachments to a folder, under usable names.
fn write_attachments(
    message: &Message<'_>,
    folder: &Path,
    faults: &mut AttachmentFaults,
) -> io::Result<Vec<(String, PathBuf)>> {
    let mut out: Vec<(String, PathBuf)> = Vec::new();
    for (n, part) in message.attachments().enumerate() {
        let given = part.attachment_name().unwrap_or_default();
        if n >= MAX_PARTS {
            faults.add_left_out();
            break;
        }
        let name = make_usable_name(given, n, &out);
        debug_assert!(names::is_attachment_name(&name));
        let path = folder.join(n.to_string());
        fs::make_dirs(folder, 0o700)?;
        disk_space::write_file(&path, part.contents())?;
        out.push((name, path));
    }
    Ok(out)
}

/// Parses a mail's date, for comparing.
pub fn parse_mail_date(text: &str) -> Option<Timestamp> {
    date::parse_date(text, &TimeZone::UTC).map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
