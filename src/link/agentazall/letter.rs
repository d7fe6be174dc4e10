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

/// The faults of a letter's attachments.
#[derive(Debug, Default)]
pub struct AttachmentFaults {
    /// The lines that describe the faults in a text.
    text: String,
    /// The names that describe the faults in the list of attachments, where each is shown as missing.
    missing: Vec<String>,
}

impl AttachmentFaults {
    /// Adds that all attachments after the limit are left out.
    pub fn add_left_out(&mut self) {
        self.text.push_str("\n[Left out: all attachments after the 100th.]\n");
        self.missing.push("each attachment after the 100th".to_owned());
    }

    /// Adds that an attachment is kept as it came, because it is not base64.
    pub fn add_undecoded(&mut self, name: &str) {
        let told = ["\n[The attachment ", name, " is not base64. It is kept as it came.]\n"];
        self.text.extend(told);
        self.missing.push(format!("{name} in base64"));
    }
}

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
/// if that is a valid name, else `other_name`. An empty Message-ID becomes that name, because the program of the format
/// lists letters by Message-ID and opens them by name. The faults stand behind the text, unless that is one signed
/// block, which they would void. Then the list of attachments describes them, or the hashes in the block itself show
/// them.
pub fn build_arrived_letter(
    mut lines: Vec<(&str, String)>,
    mut body: String,
    parts: Vec<(String, PathBuf)>,
    faults: &AttachmentFaults,
    other_name: String,
    day: String,
) -> InboundMail {
    let reading = block::read(&text::parse(&render_letter(&lines, &body)));
    let mut names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    if reading.claim.is_none() || reading.body_if_valid.is_some() {
        body.push_str(&faults.text);
    } else if reading.signed_attachments.is_none() {
        names.extend(faults.missing.iter().map(String::as_str));
    }
    if !names.is_empty() {
        lines.push(("Attachments", names.join(", ")));
    }
    let signed = reading.signed_id.filter(|id| is_file_stem(id));
    let name = signed.unwrap_or_else(|| other_name.clone());
    let unnamed = lines.iter_mut().filter(|(key, id)| *key == "Message-ID" && id.is_empty());
    unnamed.for_each(|(_, id)| id.clone_from(&name));
    let bytes = render_letter(&lines, &body);
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

    /// A text that its own signature covers.
    const SIGNED: &str = concat!(
        "---BEGIN AGENTAZALL SIGNED MESSAGE---\n",
        "Fingerprint: 56475aa75463474c\n",
        "Public-Key: A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n\n",
        "Line 1\nLine 2\n\nParagraph 2\n",
        "---END AGENTAZALL SIGNED MESSAGE---\n---BEGIN AGENTAZALL SIGNATURE---\n",
        "8Gj91yNx42SVdnps13A4jptDxrVe6TRRIYqxf1z7nFqYwVcWtNSH1TZOYQFHuLf+B0c/ZdFYfvDcCyezSxroDA==\n",
        "---END AGENTAZALL SIGNATURE---"
    );
    /// A text whose signature covers the list of its attachments, too.
    const SIGNED_V2: &str = concat!(
        "---BEGIN AGENTAZALL SIGNED MESSAGE---\n",
        "Fingerprint: 2b61f0ec7a2b2352\n",
        "Public-Key: p/bfr484uJuozmSbWU+R5NAf3Ff5yUk99DteUKmYc2c=\n",
        "From: bob@localhost\nTo: carol.agenttalk\nSubject:\nDate: 2026-11-26 21:03:07\n",
        "Message-ID: 8a18eb7943b7\nTime: 2026-11-26T21:03:07.439Z\nSignature-V2: ",
        "ZQ27mIOidu1hppT6T1CphFyeHsg74I1pvV7Ahdwdomo30V5q33t5aHo3b/zbheuk32bacFOSPQxzg3iIE667CQ==\n\n",
        "to the far\n",
        "---END AGENTAZALL SIGNED MESSAGE---\n---BEGIN AGENTAZALL SIGNATURE---\n",
        "kZZy8DAFD1cDNgQFGC/RTQBuMWEzSEeiPMH16KcZrpNkEOLASzv25ndV6e2maOyTz6W2iGWcsjuJ1GXJ0x1vAw==\n",
        "---END AGENTAZALL SIGNATURE---"
    );

    #[test]
    fn the_faults_of_attachments_void_no_signature() {
        let mut faults = AttachmentFaults::default();
        faults.add_undecoded("x");
        faults.add_left_out();
        let broken = SIGNED.replace("Line 1", "Line 9");
        let listed = Some("x, x in base64, each attachment after the 100th");
        for (body, list, is_told) in [
            (SIGNED, listed, false),
            (&*broken, listed, false),
            (SIGNED_V2, Some("x"), false),
            ("text", Some("x"), true),
            (&*format!("I quote:\n{SIGNED}"), Some("x"), true),
        ] {
            let (part, name) = (("x".to_owned(), PathBuf::new()), "n".to_owned());
            let (body, day) = (body.to_owned(), "2026-03-11".to_owned());
            let arrived =
                build_arrived_letter(vec![], body.clone(), vec![part], &faults, name, day);
            let letter = text::parse(&arrived.bytes);
            let told = if is_told { faults.text.as_str() } else { "" };
            assert_eq!(letter.body, format!("{body}{told}"));
            assert_eq!(letter.get("Attachments"), list, "{body}");
        }
    }

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
