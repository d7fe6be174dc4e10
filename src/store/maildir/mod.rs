//! Maildir: one mail a file, as mail programs and servers keep them (docs/formats/maildir.md).
//!
//! - [`mail`]: one mail. [`names`]: names of files, flags and folders. [`mod@format`]: a Maildir as files of the
//!   engine.
//! - `settings`: the keys of the configuration. `mark`: flags. `compose`: the bytes of a new mail. `send`: its way.
//!   `outcomes`: who has a mail that others wait for, and what `sendmail` refused. `receipts`: proofs that a mail was
//!   read. `check`: `msgfs check`.

mod check;
mod compose;
pub mod format;
pub mod mail;
mod mark;
pub mod names;
mod outcomes;
mod receipts;
mod send;
mod settings;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::settings::{MaildirMarks, MaildirSettings};
use super::engine::files::{FileStore, StoreFile};
use super::kind::{DefaultPlace, KindRow, KindSettings};
use super::{
    Location, PartContent, PartReader, Store, StoreError, StoreProperties, StoreSpec, ThreadScheme,
};
use crate::mime::reading::FILE_BYTES;
use crate::model::sanitize_line;
use format::{MaildirFacts, MaildirFormat};
use mail::MaildirMail;

/// The row of this kind. A Maildir is read only where a person says so.
pub(super) const KIND: KindRow = KindRow {
    place: DefaultPlace::Home("Maildir"),
    dir_variables: &["MAILDIR"],
    is_offered: Some(|dir| ["new", "cur"].iter().all(|leaf| dir.join(leaf).is_dir())),
    keys: settings::KEYS,
    ..KindRow::new("maildir", "mail goes to an address written NAME@HOST", EXAMPLE, open)
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "maildir"
# dir = "~/Maildir"                  # the folder of new/ and cur/; default: $MAILDIR, else this
# me = "bob@example.org"             # or a list; mail is sent from the first address
# sendmail = "/usr/sbin/sendmail"    # sends mail to other machines; default: none is sent
"#;

/// The largest body of a sent mail, in bytes.
const MAX_BODY: u64 = 16 << 20;

/// A Maildir, read and written as one person.
type MaildirStore = FileStore<MaildirFormat>;

/// Opens a Maildir. It creates nothing.
///
/// # Errors
/// If one of my addresses is none.
fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(MaildirStore::open(spec)?))
}

impl MaildirStore {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let mut settings = match &spec.settings {
            KindSettings::Maildir(settings) => settings.clone(),
            KindSettings::None => MaildirSettings::default(),
        };
        settings.me.extend(spec.own_address.clone());
        settings.me.iter_mut().for_each(|me| me.make_ascii_lowercase());
        settings.local =
            settings.local.into_iter().map(|(to, dir)| (to.to_ascii_lowercase(), dir)).collect();
        if let Some(odd) = settings.me.iter().chain(settings.local.keys()).find(|a| !is_address(a))
        {
            let odd = sanitize_line(odd);
            return Err(StoreError::Invalid(format!("{odd:?} is not written NAME@HOST")));
        }
        let me = settings.me.first().unwrap_or(&spec.me).clone();
        let properties = StoreProperties {
            further_addresses: settings.me.iter().skip(1).cloned().collect(),
            max_body: MAX_BODY,
            attachment_rule: Some(send::check_attachments),
            threads: ThreadScheme::Joined,
            ..StoreProperties::new(spec, me, &spec.dir)
        };
        let format = MaildirFormat::new(settings);
        if let Some(dir) = &properties.state {
            format.outcomes.keep_in(dir);
        }
        Self::new(properties, format)
    }

    /// Reads the mail from which a message was reported, wherever it lies now.
    fn read_mail(&self, source: u32) -> Result<MaildirMail, StoreError> {
        let (file, copies) = {
            let table = self.table.read();
            let file = StoreFile::from_table(&table, source).ok_or(StoreError::Moved)?;
            let copies = file.facts.find_copies(&table);
            let copies = copies.into_iter().filter_map(|n| StoreFile::from_table(&table, n));
            (file, copies.collect::<Vec<_>>())
        };
        let read = |at: &StoreFile<MaildirFacts>| {
            let (stamp, bytes) = self.read_file_bytes(at, FILE_BYTES + 1).ok()?;
            let mail = mail::parse_mail(&bytes, &at.name, stamp.modified()).ok()?;
            (mail.facts.digest == file.facts.digest).then_some(mail)
        };
        // Another program may move the file while its new place is looked for.
        let moved = ["new", "cur", "new"].iter().filter_map(|leaf| self.find_sibling(&file, leaf));
        let found =
            copies.iter().find_map(read).or_else(|| moved.into_iter().find_map(|at| read(&at)));
        found.ok_or(StoreError::Moved)
    }

    /// Finds the file with the unique part of this one's name in a leaf of its mail folder.
    fn find_sibling(
        &self,
        file: &StoreFile<MaildirFacts>,
        leaf: &str,
    ) -> Option<StoreFile<MaildirFacts>> {
        let folder = format::sibling(&file.folder, leaf);
        let names = self.open_folder(&folder).and_then(|dir| dir.list_names()).ok()?;
        let unique = names::unique_part(&file.name);
        let name = names.into_iter().find(|name| names::unique_part(name) == unique)?;
        Some(StoreFile { folder, name, ..file.clone() })
    }
}

/// Returns true if a text is an address to which mail can go.
fn is_address(text: &str) -> bool {
    let is_plain =
        |c: char| !c.is_whitespace() && !c.is_control() && !"<>()[]\\,;:\"`|".contains(c);
    let is_host = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.split_once('@').is_some_and(|(name, host)| {
        !name.is_empty() && !name.starts_with('-') && !host.is_empty() && host.chars().all(is_host)
    }) && text.len() <= 254
        && text.chars().all(is_plain)
}

impl PartReader for MaildirStore {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let mail = self.read_mail(at.source)?;
        let mut parts = mail.message.attachments.iter().zip(mail.files);
        let part = parts.find(|(part, _)| part.name == name);
        PartContent::from_bytes(name, part.map(|(_, bytes)| bytes))
    }
}
