//! The names of files and folders of a Maildir (docs/formats/maildir.md, sections 1 and 3).

use super::settings::MaildirSettings;
use crate::mime::utf7::decode_utf7;

/// The separators before the flags. Systems that cannot have the first in names use one of the others.
const SEPARATORS: [&str; 3] = [":2,", ";2,", "!2,"];
/// The folders whose mail is not shown.
const HIDDEN: [&str; 4] = ["Drafts", "Trash", "Junk", "Spam"];
/// The folder for copies of sent mail.
pub const SENT: &str = "Sent";
/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;
/// The number of folders one in the other that are examined.
const MAX_DEPTH: usize = 8;

/// Splits the name of a file before its flags. The flags keep their separator.
fn split_flags(name: &str) -> (&str, &str) {
    let at = SEPARATORS.iter().filter_map(|separator| name.rfind(separator)).max();
    name.split_at(at.unwrap_or(name.len()))
}

/// Returns the part of a name that stays when flags change.
pub fn unique_part(name: &str) -> &str {
    split_flags(name).0
}

/// Returns the part of a name that programs keep that carry mail to a server: they add numbers and sizes to it, behind
/// a comma. A name that msgfs gives has no comma.
pub fn delivery_part(name: &str) -> &str {
    unique_part(name).split(',').next().unwrap_or_default()
}

/// Returns true if a file has a flag.
pub fn has_flag(name: &str, flag: char) -> bool {
    split_flags(name).1.get(3..).is_some_and(|flags| flags.contains(flag))
}

/// Returns a name with or without a flag. All other flags and their order stay. `None` if it would be too long.
pub fn set_flag(name: &str, flag: char, on: bool) -> Option<String> {
    let (unique, info) = split_flags(name);
    let (separator, flags) = info.split_at_checked(3).unwrap_or((SEPARATORS[0], ""));
    let mut flags = flags.to_owned();
    if !on {
        flags.retain(|c| c != flag);
    } else if !flags.contains(flag) {
        flags.insert(flags.find(|c| c > flag).unwrap_or(flags.len()), flag);
    }
    let name = format!("{unique}{separator}{flags}");
    (name.len() <= MAX_NAME).then_some(name)
}

/// Returns the seconds since 1970 with which a name begins.
pub fn name_seconds(name: &str) -> Option<i64> {
    name.split('.').next()?.parse().ok()
}

/// The role of a mail folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MailFolderRole {
    /// Its mail is for me.
    Inbox,
    /// Its mail is mine.
    Sent,
    /// Its mail is not shown.
    Hidden,
}

/// Returns the name of a mail folder, with `/` between a folder and one in it. The name of the inbox is empty. `None`
/// if there can be no mail folder at the path.
pub fn folder_name(path: &[&str]) -> Option<String> {
    let decoded = |part: &&str| decode_utf7(part).unwrap_or_else(|| (*part).to_owned());
    match path {
        [] => Some(String::new()),
        // A program that knows Maildir++ only writes `.` between the names.
        [one] if one.starts_with('.') => {
            let name: Vec<String> = one.split('.').skip(1).map(|part| decoded(&part)).collect();
            let name = name.join("/");
            Some(name.strip_prefix("INBOX/").unwrap_or(&name).to_owned())
        }
        all if all.len() > MAX_DEPTH
            || all.iter().any(|p| p.starts_with('.') || matches!(*p, "new" | "cur" | "tmp")) =>
        {
            None
        }
        all => Some(all.iter().map(decoded).collect::<Vec<_>>().join("/")),
    }
}

/// Returns the role of a mail folder by its name.
pub fn folder_role(name: &str, settings: &MaildirSettings) -> MailFolderRole {
    let is_it = |other: &str| name.eq_ignore_ascii_case(other);
    let top = name.split('/').next().unwrap_or_default();
    match &settings.folders {
        _ if name.is_empty() => MailFolderRole::Inbox,
        _ if is_it(settings.sent.as_deref().unwrap_or(SENT)) => MailFolderRole::Sent,
        Some(folders) if folders.iter().any(|folder| is_it(folder)) => MailFolderRole::Inbox,
        _ if top.eq_ignore_ascii_case(SENT) => MailFolderRole::Sent,
        None if !HIDDEN.iter().any(|hidden| top.eq_ignore_ascii_case(hidden)) => {
            MailFolderRole::Inbox
        }
        _ => MailFolderRole::Hidden,
    }
}
