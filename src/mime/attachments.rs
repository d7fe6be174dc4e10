//! The files that come with a mail.

use std::borrow::Cow;
use std::collections::BTreeSet;

use mail_parser::{Message, MessagePart, MimeHeaders as _, PartType};

use super::{charset, is_mail_part};
use crate::model::{sanitize_line, shorten_name};

/// The longest name of a file, in bytes.
const NAME: usize = 150;

/// A file that comes with a mail.
#[derive(Debug)]
pub struct MailAttachment<'a> {
    /// A name that no other file of the mail has.
    pub name: String,
    /// The decoded content.
    pub bytes: Cow<'a, [u8]>,
}

/// Returns these parts of a mail as files.
pub fn list_attachments<'m>(
    mail: &'m Message<'_>,
    parts: impl Iterator<Item = &'m MessagePart<'m>>,
) -> Vec<MailAttachment<'m>> {
    let mut taken = BTreeSet::new();
    let mut files = Vec::new();
    for (n, part) in parts.enumerate() {
        let given = part.attachment_name().map(sanitize_file_name).filter(|name| !name.is_empty());
        let kind = if is_mail_part(part) { "message.eml" } else { "attachment" };
        let name = given.unwrap_or_else(|| kind.to_owned());
        let (stem, end) =
            name.rsplit_once('.').filter(|(s, _)| !s.is_empty()).unwrap_or((&name, ""));
        let dot = if end.is_empty() { "" } else { "." };
        let numbered = (2..).map(|n| format!("{stem}-{n}{dot}{end}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name));
        let name = free.unwrap_or_else(|| n.to_string());
        taken.insert(name.clone());
        let bytes = match part.body {
            PartType::Text(_) | PartType::Html(_) => charset::bytes(mail, part),
            _ => part.contents().into(),
        };
        files.push(MailAttachment { name, bytes });
    }
    files
}

/// Returns the name of a file without folders and without unsafe characters.
fn sanitize_file_name(given: &str) -> String {
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = sanitize_line(last.trim()).chars().filter(|c| *c != '\u{fffd}').collect();
    shorten_name(name.trim().trim_start_matches('.').trim_end(), NAME)
}
