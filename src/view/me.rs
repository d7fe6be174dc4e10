//! `me/`: the texts that stores keep for me ([`Notebook`]), as files that can be written. The path is
//! `me/<folder>/<name>`, or `me/<store>/<folder>/<name>` if several stores keep texts.

use std::collections::BTreeSet;

use super::file::OpenFile;
use super::listing::Listing;
use super::node::Node;
use super::text_buffers::{MissingText, TextKey, find_note};
use super::{Error, OpenRequest, TextHandle, Tree};
use crate::model::{Timestamp, sanitize_line};
use crate::outbox::names;
use crate::store::{Notebook, StoreError};

impl Tree {
    /// Returns the numbers of the stores that keep texts.
    fn stores_with_texts(&self) -> impl Iterator<Item = usize> + '_ {
        let stores = self.index.stores().iter().enumerate();
        stores.filter(|(_, s)| s.facets().notebook.is_some()).map(|(number, _)| number)
    }

    /// Returns true if any store keeps texts.
    pub(super) fn has_texts(&self) -> bool {
        self.stores_with_texts().next().is_some()
    }

    pub(super) fn notebook(&self, number: usize) -> Result<&dyn Notebook, Error> {
        let store = self.index.stores().get(number);
        store.and_then(|s| s.facets().notebook).ok_or(Error::NotFound)
    }

    /// Returns the folder above the folders of texts of a store.
    pub(super) fn parent_of_texts(&self, number: usize) -> Node {
        if self.stores_with_texts().nth(1).is_some() { Node::MeStore(number) } else { Node::Me }
    }

    pub(super) fn list_texts(&self, node: &Node) -> Result<Listing, Error> {
        let folders = |number: usize| {
            let folders = self.notebook(number)?.folders().iter();
            Ok(Listing::from_named(folders.map(|f| ((*f).to_owned(), Node::TextFolder(number, f)))))
        };
        match node {
            Node::TextFolder(number, folder) => {
                let names = self.text_names(*number, folder)?;
                let node = |n: &String| Node::Text(*number, folder, n.clone());
                Ok(Listing::from_named(names.into_iter().map(|n| (n.clone(), node(&n)))))
            }
            Node::MeStore(number) => folders(*number),
            _ => match self.stores_with_texts().collect::<Vec<_>>()[..] {
                [] => Err(Error::NotFound),
                [only] => folders(only),
                ref all => {
                    let named = |n: &usize| (self.store_name(*n).to_owned(), Node::MeStore(*n));
                    Ok(Listing::from_named(all.iter().map(named)))
                }
            },
        }
    }

    fn text_names(&self, number: usize, folder: &'static str) -> Result<BTreeSet<String>, Error> {
        let notes = self.notebook(number)?.list_entries(folder);
        let (here, away) = self.open_texts.list_names(number, folder);
        let mut names: BTreeSet<String> = notes.into_iter().map(|n| n.name).collect();
        for name in away {
            names.remove(&name);
        }
        names.extend(here);
        Ok(names)
    }

    /// Returns length and time of a text.
    pub(super) fn text_size(&self, key: &TextKey) -> Result<(u64, Timestamp), Error> {
        match self.open_texts.with_text(key, |text| (text.bytes.len() as u64, text.time)) {
            Ok(size) => Ok(size),
            Err(MissingText::Away) => Err(Error::NotFound),
            Err(MissingText::Unknown) => {
                let note =
                    find_note(self.notebook(key.0)?, key.1, &key.2).ok_or(Error::NotFound)?;
                Ok((note.size, note.modified))
            }
        }
    }

    /// Returns the time of the newest text in a folder, or below one.
    pub(super) fn newest_text_time(&self, node: &Node) -> Option<Timestamp> {
        let (number, folder) = match node {
            Node::TextFolder(number, folder) => (*number, *folder),
            Node::MeStore(number) => {
                let folders = self.notebook(*number).ok()?.folders().iter();
                return folders
                    .filter_map(|f| self.newest_text_time(&Node::TextFolder(*number, f)))
                    .max();
            }
            _ => {
                return self
                    .stores_with_texts()
                    .filter_map(|n| self.newest_text_time(&Node::MeStore(n)))
                    .max();
            }
        };
        let names = self.text_names(number, folder).ok()?;
        let keys = names.into_iter().map(|name| (number, folder, name));
        keys.filter_map(|key| self.text_size(&key).ok()).map(|(_, time)| time).max()
    }

    /// Opens a text, or makes one.
    pub(super) fn open_text(&self, key: TextKey, access: &OpenRequest) -> Result<OpenFile, Error> {
        let book = self.notebook(key.0)?;
        if !access.write && !access.truncate {
            let bytes = match self.open_texts.with_text(&key, |text| text.bytes.clone()) {
                Ok(bytes) => bytes,
                Err(MissingText::Away) => return Err(Error::NotFound),
                Err(MissingText::Unknown) => book.read_entry(key.1, &key.2)?,
            };
            return Ok(OpenFile::from_bytes(bytes));
        }
        self.writable_outbox()?;
        if !names::is_private(&key.2) {
            // Every program gets an error of open; few check that of close.
            book.check_name(key.1, &key.2).inspect_err(|e| self.log_refused_text(&key, e))?;
        }
        Ok(OpenFile::Text(self.open_texts.open(key, book, access)?))
    }

    /// Sets the length of an open text.
    pub(super) fn set_text_len(&self, file: &TextHandle, len: u64) -> Result<(), Error> {
        Ok(file.set_len(len, self.writable_outbox()?.max_message())?)
    }

    /// Sets the length of a text that the caller does not hold open, for `truncate NAME`.
    pub(super) fn truncate_text(&self, key: &TextKey, len: u64) -> Result<(), Error> {
        self.text_size(key)?;
        let access = OpenRequest { write: true, ..OpenRequest::default() };
        let OpenFile::Text(file) = self.open_text(key.clone(), &access)? else {
            return Err(Error::NotFound);
        };
        let cut = self.set_text_len(&file, len);
        let saved = self.release_text(&file);
        cut.and(saved)
    }

    pub(super) fn release_text(&self, file: &TextHandle) -> Result<(), Error> {
        let saved = self.open_texts.release(file, self.notebook(file.key().0)?);
        Ok(saved.inspect_err(|e| self.log_refused_text(&file.key(), e))?)
    }

    /// Removes a text, for `rm`. A text that a store keeps is removed only if the store allows it.
    pub(super) fn remove_text(&self, key: &TextKey) -> Result<(), Error> {
        self.text_size(key)?;
        if find_note(self.notebook(key.0)?, key.1, &key.2).is_none() && self.open_texts.remove(key)
        {
            return Ok(());
        }
        let book = self.notebook(key.0)?;
        if !book.can_remove() {
            return Err(Error::not_permitted(
                "a text in me/ cannot be removed: write a new one in its place (`echo text > \
                 NAME`)",
            ));
        }
        if names::is_private(&key.2) {
            return Err(Error::NotFound);
        }
        book.remove_entry(key.1, &key.2).inspect_err(|e| self.log_refused_text(key, e))?;
        self.open_texts.remove(key);
        Ok(())
    }

    /// Renames a text within its folder, for `mv`. A private text replaces that of the plain name.
    pub(super) fn rename_text(
        &self,
        from: &TextKey,
        to: &TextKey,
        replace: bool,
    ) -> Result<(), Error> {
        let book = self.notebook(from.0)?;
        self.text_size(from)?;
        if !replace && self.text_size(to).is_ok() {
            return Err(Error::from_errno(libc::EEXIST));
        }
        match (names::is_private(&from.2), names::is_private(&to.2)) {
            _ if from == to => Ok(()),
            (true, _) => {
                let done = self.open_texts.rename(from, to, book);
                Ok(done.inspect_err(|e| self.log_refused_text(to, e))?)
            }
            (false, true) => Ok(self.open_texts.move_away(from, to, book)?),
            (false, false) if !book.can_remove() => Err(Error::not_permitted(
                "a text in me/ cannot be renamed; copy it to the new name (`cp OLD NEW`)",
            )),
            // A program that has it open would write to the old name.
            (false, false) if self.open_texts.with_text(from, |_| ()).is_ok() => {
                Err(Error::from_errno(libc::EBUSY))
            }
            (false, false) => {
                let moved = book
                    .read_entry(from.1, &from.2)
                    .map_err(|e| StoreError::io(from.2.as_ref(), e));
                let moved = moved.and_then(|text| book.write_entry(to.1, &to.2, &text));
                let moved = moved.and_then(|()| book.remove_entry(from.1, &from.2));
                self.open_texts.remove(to);
                Ok(moved.inspect_err(|e| self.log_refused_text(to, e))?)
            }
        }
    }

    /// Logs a text that could not be saved (docs/SEMANTICS.md, S68).
    fn log_refused_text(&self, key: &TextKey, error: &StoreError) {
        let (name, reason) = (format!("{}/{}", key.1, key.2), error.to_string());
        let (name, reason) = (sanitize_line(&name), sanitize_line(&reason));
        let store = self.store_name(key.0);
        tracing::warn!(store, name = %name, reason = %reason, "text refused");
    }

    /// Returns a line for each text that could not be saved.
    pub(super) fn unsaved_lines(&self) -> Vec<String> {
        let several = self.stores_with_texts().nth(1).is_some();
        let line = |u: super::text_buffers::UnsavedText| {
            let store =
                if several { format!("{}/", self.store_name(u.key.0)) } else { String::new() };
            let path = |name: &str| format!("me/{store}{}/{name}", u.key.1);
            format!(
                "{} was not saved: {}; the text is in {} until you remove it or the mount ends",
                path(&u.name),
                u.reason,
                path(&u.key.2),
            )
        };
        self.open_texts.list_unsaved().into_iter().map(line).collect()
    }

    /// Returns the time at which a text last could not be saved.
    pub(super) fn unsaved_time(&self) -> Option<Timestamp> {
        self.open_texts.list_unsaved().iter().map(|u| u.time).max()
    }
}
