//! Letters in the form in which links write them for the mailbox.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use crate::mime::compose::clean_header_value;
use crate::model::{sanitize_line, shorten_name};
use crate::store::InboundMail;
use crate::store::agentazall::names::{self, MAX_NAME};
use crate::store::agentazall::{block, text};

/// The limit on the number of attachments of a letter that a link brought.
pub const MAX_PARTS: usize = 100;
/// The line in a letter that has more attachments.
pub const PARTS_LEFT_OUT: &str = "\n[Left out: all attachments after the 100th.]\n";

/// Renders a letter of these header lines and this text. Foreign text cannot begin a header line.
pub fn render_letter(lines: &[(&str, String)], body: &str) -> Vec<u8> {
    let mut text = String::new();
    for (key, value) in lines {
        text.push_str(format!("{key}: {}", clean_header_value(value)).trim_end());
        text.push('\n');
    }
    text.push_str("---\n");
    text.push_str(body);
    text.into_bytes()
}

/// Builds the mail to file of these header lines, this text and these files. Its name is the id that its writer signed,
/// if that is a valid name, else `other_name`.
pub fn build_arrived_letter(
    mut lines: Vec<(&str, String)>,
    body: &str,
    parts: Vec<(String, PathBuf)>,
    other_name: String,
    day: String,
) -> InboundMail {
    if !parts.is_empty() {
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        lines.push(("Attachments", names.join(", ")));
    }
    let bytes = render_letter(&lines, body);
    let signed = block::read(&text::parse(&bytes)).signed_id;
    let name = signed.filter(|id| is_file_stem(id)).unwrap_or_else(|| other_name.clone());
    InboundMail { name, other_name, day: Some(day), bytes, parts, keys: Vec::new() }
}

/// Builds the mail to file for unreadable bytes. The store rejects it, and shows the reason and the bytes.
pub fn build_unreadable_letter(came: &[u8], why: &str, name: String, day: &str) -> InboundMail {
    let lines = [
        ("Subject", "(cannot be read)".to_owned()),
        ("Message-ID", name.clone()),
        (text::UNREADABLE, why.to_owned()),
        ("Status", "new".to_owned()),
    ];
    let mut bytes = render_letter(&lines, "");
    bytes.extend_from_slice(came);
    let day = Some(day.to_owned());
    InboundMail { other_name: name.clone(), name, day, bytes, ..InboundMail::default() }
}

/// Returns the reason why a letter with an unreadable attachment cannot go.
pub fn describe_read_error(name: &str, why: &io::Error) -> String {
    format!("the attachment {} cannot be read: {why}", sanitize_line(name))
}

/// Returns true if an id can be the name of a file unchanged.
pub fn is_file_stem(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=100).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with(['.', '-'])
}

/// Returns a name for an attachment: its last component, without characters that file names cannot have, and unique.
pub fn make_usable_name(name: &str, n: usize, taken: &[(String, PathBuf)]) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_bad = |c: char| c.is_control() || "<>:\"|?*,".contains(c);
    let name: String = last.chars().map(|c| if is_bad(c) { '_' } else { c }).collect();
    let name = shorten_name(name.trim().trim_start_matches('.'), MAX_NAME);
    let name =
        if names::is_attachment_name(&name) { name } else { format!("attachment{}.bin", n + 1) };
    let taken: HashSet<&str> = taken.iter().map(|(other, _)| other.as_str()).collect();
    if !taken.contains(name.as_str()) {
        return name;
    }
    let short = shorten_name(&name, MAX_NAME - 10);
    let mut candidates = (2..).map(|k| format!("{short}~{k}"));
    candidates.find(|name| !taken.contains(name.as_str())).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_ending_and_are_told_apart() {
        let long = format!("{}.pdf", "x".repeat(300));
        let mut taken = Vec::new();
        for n in 0..3 {
            let name = make_usable_name(&long, n, &taken);
            assert!(names::is_attachment_name(&name), "{name}");
            assert!(name.starts_with("xxx") && name.contains(".pdf"), "{name}");
            assert!(taken.iter().all(|(other, _)| *other != name), "{name}");
            taken.push((name, PathBuf::new()));
        }
        assert_eq!(make_usable_name("..", 4, &taken), "attachment5.bin");
    }
}
