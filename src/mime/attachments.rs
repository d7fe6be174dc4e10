//! The files that come with a mail.

use std::borrow::Cow;

use mail_parser::{Message, MessagePart, MimeHeaders as _, PartType};

use super::{charset, is_mail_part};
use crate::model::FileNames;

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
    let mut names = FileNames::default();
    let mut files = Vec::new();
    for part in parts {
        let kind = if is_mail_part(part) { "message.eml" } else { "attachment" };
        let name = names.choose(part.attachment_name(), kind);
        let bytes = match part.body {
            PartType::Text(_) | PartType::Html(_) => charset::bytes(mail, part),
            _ => part.contents().into(),
        };
        files.push(MailAttachment { name, bytes });
    }
    files
}
