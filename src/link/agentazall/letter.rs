//! Letters as links write them for the mailbox.

use std::path::PathBuf;

use crate::store::agentazall::names;

/// A letter of these header lines and this text. What is foreign begins no line of its own.
pub fn compose(lines: &[(&str, String)], body: &str) -> Vec<u8> {
    let mut text = String::new();
    for (key, value) in lines {
        text.push_str(format!("{key}: {}", header_value(value)).trim_end());
        text.push('\n');
    }
    text.push_str("---\n");
    text.push_str(body);
    text.into_bytes()
}

/// A value that cannot begin another line of the header.
pub fn header_value(text: &str) -> String {
    let ends = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    text.replace(ends, " ").trim().to_owned()
}

/// Whether an id can be the name of a file as it is.
pub fn is_stem(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=100).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with(['.', '-'])
}

/// A name for an attachment: its last part, without what cannot be in a file name, and none twice.
pub fn usable(name: &str, n: usize, taken: &[(String, PathBuf)]) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_bad = |c: char| c.is_control() || "<>:\"|?*,".contains(c);
    let name: String = last.chars().map(|c| if is_bad(c) { '_' } else { c }).collect();
    let name = name.trim().trim_start_matches('.').to_owned();
    let name =
        if names::is_attachment_name(&name) { name } else { format!("attachment{}.bin", n + 1) };
    let is_taken = |name: &String| taken.iter().any(|(other, _)| other == name);
    let mut candidates = (2..).map(|k| format!("{name}~{k}"));
    if is_taken(&name) { candidates.find(|name| !is_taken(name)).unwrap_or(name) } else { name }
}
