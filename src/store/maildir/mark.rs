//! Flags in the names of files (docs/formats/maildir.md, section 5). A file is renamed, never copied or written.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::MaildirStore;
use super::format::{self, MaildirFacts, find_mails};
use super::names::{self, MailFolderRole};
use crate::store::atomic_file::rename_new_between;
use crate::store::digest::secure_hash64;
use crate::store::engine::files::{FileTable, StoreFile, path_parts};
use crate::store::{Location, Store as _, StoreError, StoreMarks, confined, fs};

/// The number of attempts to set the flag of an answered mail, and the pause after each.
const REPLIED_TRIES: usize = 8;
const REPLIED_PAUSE: Duration = Duration::from_millis(5);

impl StoreMarks for MaildirStore {
    /// Sets or clears the flag S of all files in my folders that hold a message. Returns true if none is left.
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        let files = {
            let table = self.table.read();
            let facts = table.facts(at.source).ok_or(StoreError::Moved)?;
            self.files_in_inbox(&table, facts.find_copies(&table))
        };
        if files.is_empty() {
            return Err(StoreError::Moved);
        }
        let mut is_done = true;
        for file in files {
            is_done &= self.write_flag(&file, 'S', read)?;
        }
        Ok(is_done)
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

    /// Notes on a mail that I answered it. A mail without the flag is no fault.
    pub(super) fn mark_replied(&self, id: &str) {
        // A read mark may be moving the file, and the table may not have it for that moment.
        for _ in 0..REPLIED_TRIES {
            let files = {
                let table = self.table.read();
                self.files_in_inbox(&table, find_mails(&table, secure_hash64(id.as_bytes())))
            };
            if !files.is_empty() && files.iter().all(|file| self.write_replied_flag(file)) {
                return;
            }
            thread::sleep(REPLIED_PAUSE);
        }
        tracing::debug!(id, "an answered mail could not be marked");
    }

    /// Sets the flag R of a file, also if it has just moved. Returns true if it is done.
    fn write_replied_flag(&self, file: &StoreFile<MaildirFacts>) -> bool {
        let moved = || ["new", "cur"].iter().find_map(|leaf| self.find_sibling(file, leaf));
        let again = |error| moved().map_or(Err(error), |file| self.write_flag(&file, 'R', true));
        self.write_flag(file, 'R', true).or_else(again).is_ok()
    }

    /// Gives a file its name with or without a flag, in `cur/`. Returns false if no name can have it.
    fn write_flag(
        &self,
        file: &StoreFile<MaildirFacts>,
        flag: char,
        on: bool,
    ) -> Result<bool, StoreError> {
        if names::has_flag(&file.name, flag) == on {
            return Ok(true);
        }
        let Some(name) = names::set_flag(&file.name, flag, on) else { return Ok(false) };
        let cur = format::sibling(&file.folder, "cur");
        let base = &self.properties.dir;
        let rename = || {
            let from = confined::open_dir(base, &path_parts(&file.folder))?;
            let to = confined::open_dir(base, &path_parts(&cur))?;
            rename_new_between((&from, Path::new(&file.name)), (&to, Path::new(&name)))?;
            fs::sync_open_dir(&to)?;
            if cur == file.folder { Ok(()) } else { fs::sync_open_dir(&from) }
        };
        let renamed = rename();
        self.note_change(&base.join(file.path()));
        self.note_change(&base.join(&cur).join(&name));
        match renamed {
            Ok(()) => Ok(true),
            // Another program was faster, or its copy has the name.
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
            {
                Err(StoreError::Moved)
            }
            Err(e) => Err(StoreError::io(&base.join(file.path()), e)),
        }
    }
}
