//! Flags in the names of files (docs/formats/maildir.md, section 5). A file is renamed, never copied or written.

use std::collections::BTreeMap;

use super::MaildirStore;
use super::format::{self, MaildirFacts, MaildirFormat};
use super::mail::MaildirMail;
use super::names::{self, MailFolderRole};
use crate::model::display_path;
use crate::store::digest::secure_hash64;
use crate::store::engine::files::{FileFormat as _, FileTable, PlaceOutcome, StoreFile};
use crate::store::{Location, StoreError, StoreMarks};

impl StoreMarks for MaildirStore {
    /// Sets or clears the flag S of all files in my folders that hold a message. The other files are tried, too, if one
    /// cannot have it.
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        let files = {
            let table = self.table.read();
            let facts = table.facts(at.source).ok_or(StoreError::Moved)?;
            self.files_in_inbox(&table, facts.find_copies(&table))
        };
        if files.is_empty() {
            return Err(StoreError::Moved);
        }
        let mut failed = None;
        for file in files {
            failed = failed.or(self.write_flag(&file, 'S', read).err());
        }
        failed.map_or(Ok(true), Err)
    }
}

impl MaildirStore {
    /// Returns those of these files that lie in folders whose mail is for me.
    fn files_in_inbox(
        &self,
        table: &FileTable<MaildirFacts>,
        numbers: Vec<u32>,
    ) -> Vec<StoreFile<MaildirFacts>> {
        let mine = |n: &u32| self.format.file_role(table, *n) == MailFolderRole::Inbox;
        numbers.into_iter().filter(mine).filter_map(|n| StoreFile::from_table(table, n)).collect()
    }

    /// Notes on a mail that I answered it, and these addresses get the answer. If several mails have its id, it is one
    /// that they wrote. A mail without the flag is no fault.
    pub(super) fn mark_replied(&self, id: &str, to: &str) {
        // A read mark may be moving the file, and the table may not have its new place yet.
        let files = {
            let table = self.table.read();
            let all = table.files_with_key(0, secure_hash64(id.as_bytes()));
            self.files_in_inbox(&table, all)
        };
        let lasting = |file: StoreFile<MaildirFacts>| {
            (MaildirFormat::lasting_path(&file.folder, &file.name), file)
        };
        let files: BTreeMap<String, _> = files.into_iter().map(lasting).collect();
        let mut digests: Vec<[u8; 32]> = files.values().map(|file| file.facts.digest).collect();
        digests.dedup();
        let is_from = |mail: MaildirMail| {
            let from = mail.message.from.unwrap_or_default().to_ascii_lowercase();
            to.split(", ").any(|to| to == from)
        };
        for file in files.into_values() {
            if digests.len() > 1 && !self.read_mail(file.n).is_ok_and(is_from) {
                continue;
            }
            let moved = || ["new", "cur"].iter().find_map(|leaf| self.find_sibling(&file, leaf));
            let again = |e| moved().map_or(Err(e), |file| self.write_flag(&file, 'R', true));
            if let Err(error) = self.write_flag(&file, 'R', true).or_else(again) {
                tracing::debug!(id, %error, "an answered mail could not be marked");
            }
        }
    }

    /// Gives a file its name with or without a flag, in `cur/`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it cannot have that name.
    fn write_flag(
        &self,
        file: &StoreFile<MaildirFacts>,
        flag: char,
        on: bool,
    ) -> Result<(), StoreError> {
        if names::has_flag(&file.name, flag) == on {
            return Ok(());
        }
        let refuse = |why: &str| {
            let shown = display_path(&self.properties.dir.join(file.path()));
            Err(StoreError::Invalid(format!("{shown} cannot have the flag {flag}: {why}")))
        };
        let Some(name) = names::set_flag(&file.name, flag, on) else {
            return refuse("its name would be too long");
        };
        // A folder that is gone took its files along.
        let from = self.open_folder(&file.folder).map_err(|_| StoreError::Moved)?;
        let cur = self.open_folder(&format::sibling(&file.folder, "cur"))?;
        match cur.move_as((&from, &file.name), &name)? {
            PlaceOutcome::Done => Ok(()),
            PlaceOutcome::NameTaken => refuse("another file in cur/ has the name with it"),
            // Another program was faster.
            PlaceOutcome::Gone => Err(StoreError::Moved),
        }
    }
}
