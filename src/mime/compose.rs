//! The pieces of which a mail is composed (RFC 5322, 2045 to 2047, 2231). Lines end with CRLF.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The number of bytes in a line of base64.
const LINE: usize = 57;
/// The same number, for offsets.
pub const BASE64_LINE_BYTES: u64 = LINE as u64;
/// The length of a full line of base64 that ends with LF.
pub const BASE64_LINE: u64 = BASE64_LINE_BYTES / 3 * 4 + 1;
/// The header lines of a text, but for its encoding.
pub const TEXT_PART_HEAD: &str =
    "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: ";
/// The longest line that is written as it is, in bytes.
const MAX_LINE: usize = 990;
/// The number of bytes in an encoded word.
const WORD: usize = 39;

/// Returns a value that cannot begin another line of the header.
pub fn clean_header_value(text: &str) -> String {
    let ends = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    text.replace(ends, " ").trim().to_owned()
}

/// Encodes a text for a header: unchanged, or in encoded words. A text that looks like encoded words is encoded, too,
/// unlike by mail-builder.
pub fn encode_header_text(value: &str) -> String {
    let value = clean_header_value(value);
    let is_plain = value.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    if is_plain && value.len() <= 900 && !value.contains("=?") {
        return value;
    }
    let mut words = Vec::new();
    let mut word = String::new();
    for c in value.chars() {
        if word.len() + c.len_utf8() > WORD {
            words.push(std::mem::take(&mut word));
        }
        word.push(c);
    }
    words.push(word);
    let words = words.iter().map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
    words.collect::<Vec<_>>().join("\r\n ")
}

/// Formats addresses, one a line.
pub fn format_address_list(addresses: &[String]) -> String {
    addresses.iter().map(|a| encode_header_text(a)).collect::<Vec<_>>().join(",\r\n ")
}

/// Formats the name of an attachment.
fn format_file_name(name: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._- ".contains(&b);
    if name.bytes().all(is_plain) && name.len() <= 60 {
        return format!("filename=\"{name}\"");
    }
    let encoded = |b: u8| match b {
        b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    let all: Vec<String> = name.bytes().map(encoded).collect();
    let pieces = all.chunks(20).enumerate().map(|(n, piece)| {
        let charset = if n == 0 { "utf-8''" } else { "" };
        format!("filename*{n}*={charset}{}", piece.concat())
    });
    pieces.collect::<Vec<_>>().join(";\r\n ")
}

/// Returns bytes as lines of base64 that end with LF.
pub fn encode_base64_lines(bytes: &[u8]) -> String {
    let mut lines = String::with_capacity(bytes.len() / 3 * 4 + bytes.len() / LINE + 8);
    for line in bytes.chunks(LINE) {
        STANDARD.encode_string(line, &mut lines);
        lines.push('\n');
    }
    lines
}

/// Returns the header line of a mail of several parts, and the empty line behind it.
pub fn format_multipart_head(boundary: &str) -> String {
    format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\n\n")
}

/// Returns the text before the base64 of a file: the boundary and the header of the part.
pub fn format_file_head(name: &str, boundary: &str) -> String {
    let name = format_file_name(name);
    format!(
        "--{boundary}\nContent-Type: application/octet-stream\n\
         Content-Transfer-Encoding: base64\nContent-Disposition: attachment; {name}\n\n"
    )
}

/// Appends bytes as lines of base64.
fn push_base64_lines(out: &mut String, bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        STANDARD.encode_string(line, out);
        out.push_str("\r\n");
    }
}

/// Composes a text and attachments, with the header lines about them. Lines end with LF where they can.
pub fn compose_content(body: &str, files: &[(String, Vec<u8>)], boundary: &str) -> String {
    let is_plain = |line: &str| line.len() <= MAX_LINE && !line.contains(['\r', '\0']);
    let mut text = String::from(TEXT_PART_HEAD);
    if body.split('\n').all(is_plain) {
        text.extend(["8bit\n\n", body, "\n"]);
    } else {
        text.push_str("base64\n\n");
        push_base64_lines(&mut text, body.as_bytes());
    }
    if files.is_empty() {
        return text;
    }
    let mut out = format_multipart_head(boundary);
    out.extend(["--", boundary, "\n", &text]);
    for (name, bytes) in files {
        out.push_str(&format_file_head(name, boundary));
        push_base64_lines(&mut out, bytes);
    }
    out.extend(["--", boundary, "--\n"]);
    out
}
