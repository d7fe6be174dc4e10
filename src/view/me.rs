//! `me/`: the texts that stores keep for me ([`Notebook`]), as files that can be written. The path is
//! `me/<folder>/<name>`, or `me/<store>/<folder>/<name>` if several stores keep texts.

use std::collections::BTreeSet;

use super::draft_writers::is_opener;
use super::file::OpenFile;
use super::listing::Listing;
use super::node::{Ino, Node, NodeProperty, PagePolicy};
use super::table::{NodeAttributes, TreeChanges, View, ViewKey};
use super::text_buffers::{MissingText, OpenTexts, TextKey};
use super::{CachePolicy, Error, OpenRequest, TextHandle, Tree};
use crate::model::{Timestamp, sanitize_line};
use crate::outbox::names;
use crate::store::{Notebook, NotebookEntry, StoreError};

/// A node of `me/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MeKey {
    /// `me/`
    Top,
    /// `me/<store>/`, if several stores keep texts.
    Store(usize),
    /// A folder of texts, of a store.
    Folder(usize, &'static str),
    /// A text.
    Text(TextKey),
}

/// The view `me/`.
#[derive(Debug, Default)]
pub(super) struct MeView {
    open_texts: OpenTexts,
}

impl View for MeView {
    type Key = MeKey;

    const CHANGES_WITHOUT_INDEX: bool = true;

    fn node_properties(key: &MeKey) -> &'static [NodeProperty] {
        use NodeProperty::{Editable, Folder, Pages, TakesFiles};
        match key {
            MeKey::Top | MeKey::Store(_) => &[Folder],
            MeKey::Folder(..) => &[Folder, TakesFiles],
            MeKey::Text(_) => &[Editable, Pages(PagePolicy::Bypass)],
        }
    }

    fn is_shown(&self, tree: &Tree, _key: &MeKey) -> bool {
        stores_with_texts(tree).next().is_some()
    }

    fn inode_number(&self, tree: &Tree, key: &MeKey) -> Option<Ino> {
        let node = ViewKey::Me(key.clone()).into();
        let number = |path: &[&str]| Some(tree.assign_path_inode(path, &node));
        match key {
            MeKey::Top => None,
            MeKey::Store(n) => number(&["me", tree.store_name(*n)]),
            MeKey::Folder(n, folder) => number(&["me", tree.store_name(*n), folder]),
            MeKey::Text((n, folder, name)) => number(&["me", tree.store_name(*n), folder, name]),
        }
    }

    fn stat(&self, tree: &Tree, key: &MeKey) -> Result<NodeAttributes, Error> {
        let MeKey::Text(text) = key else {
            let time = self.newest_time(tree, key);
            return Ok(NodeAttributes::of_folder(time, CachePolicy::Volatile));
        };
        let (len, time) = self.text_size(tree, text)?;
        let mode = if tree.is_view_only() { 0o400 } else { 0o600 };
        Ok(NodeAttributes::of_draft(mode, len, time))
    }

    fn list(&self, tree: &Tree, folder: &MeKey) -> Result<Listing, Error> {
        match folder {
            MeKey::Text(_) => Err(Error::NotDir),
            MeKey::Folder(number, folder) => {
                let names = self.text_names(tree, *number, folder)?;
                let named = |name: String| (name.clone(), text_node((*number, *folder, name)));
                Ok(Listing::from_named(names.into_iter().map(named)))
            }
            MeKey::Store(number) => list_folders(tree, *number),
            MeKey::Top => match stores_with_texts(tree).collect::<Vec<_>>()[..] {
                [] => Err(Error::NotFound),
                [only] => list_folders(tree, only),
                ref all => {
                    let node = |n: usize| ViewKey::Me(MeKey::Store(n)).into();
                    let named = |n: &usize| (tree.store_name(*n).to_owned(), node(*n));
                    Ok(Listing::from_named(all.iter().map(named)))
                }
            },
        }
    }

    fn find(&self, tree: &Tree, folder: &MeKey, name: &str) -> Result<Option<Node>, Error> {
        let MeKey::Folder(number, of) = folder else {
            return Ok(tree.find_in(&self.list(tree, folder)?, name));
        };
        let key = (*number, *of, name.to_owned());
        Ok(self.text_size(tree, &key).ok().map(|_| text_node(key)))
    }

    fn parent_folder(&self, tree: &Tree, folder: &MeKey) -> Option<MeKey> {
        match folder {
            MeKey::Folder(number, _) if stores_with_texts(tree).nth(1).is_some() => {
                Some(MeKey::Store(*number))
            }
            MeKey::Folder(..) | MeKey::Store(_) => Some(MeKey::Top),
            MeKey::Top | MeKey::Text(_) => None,
        }
    }

    fn open(&self, tree: &Tree, key: &MeKey, access: &OpenRequest) -> Result<OpenFile, Error> {
        match key {
            MeKey::Text(text) => self.open_text(tree, text.clone(), access),
            _ => Err(Error::IsDir),
        }
    }

    fn name_file(&self, _tree: &Tree, folder: &MeKey, name: &str) -> Result<Option<Node>, Error> {
        let MeKey::Folder(number, folder) = folder else { return Ok(None) };
        Ok(Some(text_node((*number, *folder, name.to_owned()))))
    }

    fn set_len(&self, tree: &Tree, key: &MeKey, len: u64) -> Result<bool, Error> {
        let MeKey::Text(text) = key else { return Ok(false) };
        self.truncate_text(tree, text, len)?;
        Ok(true)
    }

    fn remove(&self, tree: &Tree, folder: &MeKey, name: &str) -> Result<bool, Error> {
        let MeKey::Folder(number, folder) = folder else { return Ok(false) };
        self.remove_text(tree, &(*number, *folder, name.to_owned()))?;
        Ok(true)
    }

    fn rename(
        &self,
        tree: &Tree,
        folder: &MeKey,
        name: &str,
        (to, new_name): (&Node, &str),
        replace: bool,
    ) -> Result<bool, Error> {
        let MeKey::Folder(number, of) = folder else { return Ok(false) };
        if *to != Node::from(ViewKey::Me(folder.clone())) {
            return Ok(false);
        }
        let key = |name: &str| (*number, *of, name.to_owned());
        self.rename_text(tree, &key(name), &key(new_name), replace)?;
        Ok(true)
    }

    /// Returns the time of the newest text in a folder, or below one.
    fn newest_time(&self, tree: &Tree, key: &MeKey) -> Option<Timestamp> {
        match key {
            MeKey::Text(_) => None,
            MeKey::Folder(number, folder) => {
                let (stored, here) = self.list_texts(tree, *number, folder).ok()?;
                let keys = here.into_iter().map(|name| (*number, *folder, name));
                let open = keys.filter_map(|key| self.text_size(tree, &key).ok());
                stored.iter().map(|note| note.modified).chain(open.map(|(_, time)| time)).max()
            }
            MeKey::Store(number) => {
                let folders = notebook(tree, *number).ok()?.folders().iter();
                folders.filter_map(|f| self.newest_time(tree, &MeKey::Folder(*number, f))).max()
            }
            MeKey::Top => stores_with_texts(tree)
                .filter_map(|number| self.newest_time(tree, &MeKey::Store(number)))
                .max(),
        }
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<MeKey> {
        if changes.index.stores { vec![MeKey::Top] } else { Vec::new() }
    }
}

/// Returns the numbers of the stores that keep texts.
fn stores_with_texts(tree: &Tree) -> impl Iterator<Item = usize> + '_ {
    let stores = tree.index.stores().iter().enumerate();
    stores.filter(|(_, s)| s.facets().notebook.is_some()).map(|(number, _)| number)
}

fn notebook(tree: &Tree, number: usize) -> Result<&dyn Notebook, Error> {
    let store = tree.index.stores().get(number);
    store.and_then(|s| s.facets().notebook).ok_or(Error::NotFound)
}

fn text_node(key: TextKey) -> Node {
    ViewKey::Me(MeKey::Text(key)).into()
}

/// Lists the folders of texts of a store.
fn list_folders(tree: &Tree, number: usize) -> Result<Listing, Error> {
    let node = |folder: &'static str| -> Node { ViewKey::Me(MeKey::Folder(number, folder)).into() };
    let folders = notebook(tree, number)?.folders().iter();
    Ok(Listing::from_named(folders.map(|folder| ((*folder).to_owned(), node(folder)))))
}

/// Logs a text that could not be saved (docs/SEMANTICS.md, S68).
fn log_refused_text(tree: &Tree, key: &TextKey, error: &StoreError) {
    let (name, reason) = (format!("{}/{}", key.1, key.2), error.to_string());
    let (name, reason) = (sanitize_line(&name), sanitize_line(&reason));
    let store = tree.store_name(key.0);
    tracing::warn!(store, name = %name, reason = %reason, "text refused");
}

impl MeView {
    fn text_names(
        &self,
        tree: &Tree,
        number: usize,
        folder: &'static str,
    ) -> Result<BTreeSet<String>, Error> {
        let (stored, here) = self.list_texts(tree, number, folder)?;
        Ok(stored.into_iter().map(|note| note.name).chain(here).collect())
    }

    /// Returns the shown texts of a folder that only the store has, and the names of those that are here.
    fn list_texts(
        &self,
        tree: &Tree,
        number: usize,
        folder: &'static str,
    ) -> Result<(Vec<NotebookEntry>, Vec<String>), Error> {
        // A text that is saved and closed meanwhile is in the store's list, which is read last.
        let (here, away) = self.open_texts.list_names(number, folder);
        let mut stored = notebook(tree, number)?.list_entries(folder);
        stored.retain(|note| !here.contains(&note.name) && !away.contains(&note.name));
        Ok((stored, here))
    }

    /// Returns length and time of a text.
    fn text_size(&self, tree: &Tree, key: &TextKey) -> Result<(u64, Timestamp), Error> {
        match self.open_texts.with_text(key, |text| (text.bytes.len() as u64, text.time)) {
            Ok(size) => Ok(size),
            Err(MissingText::Away) => Err(Error::NotFound),
            Err(MissingText::Unknown) => {
                let note =
                    notebook(tree, key.0)?.find_entry(key.1, &key.2).ok_or(Error::NotFound)?;
                Ok((note.size, note.modified))
            }
        }
    }

    /// Opens a text, or makes one.
    fn open_text(
        &self,
        tree: &Tree,
        key: TextKey,
        access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let book = notebook(tree, key.0)?;
        if !access.write && !access.truncate {
            let bytes = match self.open_texts.with_text(&key, |text| text.bytes.clone()) {
                Ok(bytes) => bytes,
                Err(MissingText::Away) => return Err(Error::NotFound),
                Err(MissingText::Unknown) => book.read_entry(key.1, &key.2)?,
            };
            return Ok(OpenFile::from_bytes(bytes));
        }
        tree.writable_outbox()?;
        if !names::is_private(&key.2) {
            // Every program notices an error of `open`; few check for one of `close`.
            book.check_name(key.1, &key.2).inspect_err(|e| log_refused_text(tree, &key, e))?;
        }
        Ok(OpenFile::Text(self.open_texts.open(key, book, access)?))
    }

    /// Sets the length of an open text.
    pub fn set_text_len(tree: &Tree, file: &TextHandle, len: u64) -> Result<(), Error> {
        Ok(file.set_len(len, tree.writable_outbox()?.max_message())?)
    }

    /// Sets the length of a text that the caller does not hold open, for `truncate NAME`.
    fn truncate_text(&self, tree: &Tree, key: &TextKey, len: u64) -> Result<(), Error> {
        self.text_size(tree, key)?;
        let access = OpenRequest { write: true, ..OpenRequest::default() };
        let OpenFile::Text(file) = self.open_text(tree, key.clone(), &access)? else {
            return Err(Error::NotFound);
        };
        let cut = Self::set_text_len(tree, &file, len);
        let saved = self.release_text(tree, &file);
        cut.and(saved)
    }

    /// Releases an open text; the last handle saves it.
    pub fn release_text(&self, tree: &Tree, file: &TextHandle) -> Result<(), Error> {
        let saved = self.open_texts.release(file, notebook(tree, file.key().0)?);
        Ok(saved.inspect_err(|e| log_refused_text(tree, &file.key(), e))?)
    }

    /// Removes a text, for `rm`. A text that a store keeps is removed only if the store allows it.
    fn remove_text(&self, tree: &Tree, key: &TextKey) -> Result<(), Error> {
        self.text_size(tree, key)?;
        let is_stored = notebook(tree, key.0)?.find_entry(key.1, &key.2).is_some();
        if !is_stored && self.open_texts.remove(key) {
            return Ok(());
        }
        let book = notebook(tree, key.0)?;
        if !book.can_remove() {
            return Err(Error::not_permitted(
                "a text in me/ cannot be removed: write a new one in its place (`echo text > \
                 NAME`)",
            ));
        }
        if names::is_private(&key.2) {
            return Err(Error::NotFound);
        }
        book.remove_entry(key.1, &key.2).inspect_err(|e| log_refused_text(tree, key, e))?;
        self.open_texts.remove(key);
        Ok(())
    }

    /// Renames a text within its folder, for `mv`. A private text replaces that of the plain name.
    fn rename_text(
        &self,
        tree: &Tree,
        from: &TextKey,
        to: &TextKey,
        replace: bool,
    ) -> Result<(), Error> {
        let book = notebook(tree, from.0)?;
        self.text_size(tree, from)?;
        if !replace && self.text_size(tree, to).is_ok() {
            return Err(Error::from_errno(libc::EEXIST));
        }
        match (names::is_private(&from.2), names::is_private(&to.2)) {
            _ if from == to => Ok(()),
            (true, _) => {
                let done = self.open_texts.rename(from, to, book);
                Ok(done.inspect_err(|e| log_refused_text(tree, to, e))?)
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
                let moved = moved.and_then(|text| {
                    book.write_entry(to.1, &to.2, &text)?;
                    self.open_texts.note_replaced(to);
                    book.remove_entry(from.1, &from.2)
                });
                Ok(moved.inspect_err(|e| log_refused_text(tree, to, e))?)
            }
        }
    }

    /// Returns a line for each text that could not be saved.
    pub fn unsaved_lines(&self, tree: &Tree) -> Vec<String> {
        let several = stores_with_texts(tree).nth(1).is_some();
        let line = |u: super::text_buffers::UnsavedText| {
            let store =
                if several { format!("{}/", tree.store_name(u.key.0)) } else { String::new() };
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
    pub fn unsaved_time(&self) -> Option<Timestamp> {
        self.open_texts.list_unsaved().iter().map(|u| u.time).max()
    }

    /// Saves an open text, if the process that closes it has opened it.
    pub fn flush_text(tree: &Tree, file: &TextHandle, by: u32) -> Result<(), Error> {
        if is_opener(file.opener, by) {
            Ok(file.flush(notebook(tree, file.key().0)?)?)
        } else {
            Ok(())
        }
    }
}
