//! Texts that stores keep, while they are being written. Each change that `>`, `>>`, editors and `mv` make to a
//! file becomes one [`Notebook::write_entry`].
//!
//! 1. All handles of a text share one buffer, as they would share a file. So two programs that append lose
//!    nothing of each other's text.
//! 2. The buffer goes to the store when the process that opened it closes it, and at the latest when a handle
//!    is released. A truncation alone (`: > NAME`, or the flush that a shell sends before its first byte) waits
//!    for the release, so a text is never empty in the store while it is being replaced.
//! 3. Another program may write the text in the store meanwhile. If the buffer only adds to the text that was
//!    opened, the addition is appended to the other program's text. Any other buffer replaces it.
//! 4. Private names (of editors, `sed -i`, `rsync`) exist only here, until they are renamed to a plain name.
//!    The rename replaces the text of that name.
//! 5. An editor may move a text away to a private name. The text is then hidden under its own name until it is
//!    written anew or the private text is gone. The store keeps it all the while.
//! 6. A text stays as `.<name>.unsaved` if it could not be saved and no program was left to get the error.
//!
//! # Locks
//!
//! The lock of a text comes before that of the table. No thread locks two texts at once. While a store writes,
//! only the text is locked.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use crate::model::locks::{LockLevel, Mutex};

use super::OpenRequest;
use crate::model::{Timestamp, write_at};
use crate::outbox::names;
use crate::store::{Notebook, StoreError};

/// The key of a text: number of the store, folder, name.
pub(super) type TextKey = (usize, &'static str, String);

/// The buffer of one text that is being written.
#[derive(Debug, Default)]
pub(super) struct TextBuffer {
    key: TextKey,
    pub bytes: Vec<u8>,
    /// The store's text at the last load or save; `None` if that text is to be replaced.
    base: Option<Vec<u8>>,
    /// True once `bytes` was loaded, so it is no longer the empty default.
    is_loaded: bool,
    /// True if bytes were written since the last save.
    is_dirty: bool,
    /// True if the text was created or truncated since the last save.
    is_reset: bool,
    /// Reason why the text is incomplete. The store's text then stays until this one is truncated.
    too_long: Option<String>,
    /// True if the store's text lacks a final newline, so an addition must begin with one.
    lacks_newline: bool,
    /// True if the text was removed while open. Closing it then saves nothing.
    is_removed: bool,
    pub time: Timestamp,
}

/// A text that is open for writing.
#[derive(Debug)]
pub struct TextHandle {
    text: Arc<Mutex<TextBuffer>>,
    /// The process that opened it; 0 if it is unknown.
    pub(super) opener: u32,
    /// True if writes go to the end.
    append: bool,
}

#[derive(Debug)]
struct TextSlot {
    text: Arc<Mutex<TextBuffer>>,
    handles: usize,
    /// Set if this is the private copy of a text that could not be saved under its own name.
    unsaved: Option<UnsavedText>,
}

impl TextSlot {
    fn new(text: TextBuffer) -> Self {
        Self { text: Arc::new(Mutex::with_level(LockLevel::File, text)), handles: 0, unsaved: None }
    }
}

/// A text that could not be saved.
#[derive(Clone, Debug)]
pub(super) struct UnsavedText {
    /// Its present key.
    pub key: TextKey,
    /// Its former name.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// The time of the failure.
    pub time: Timestamp,
}

#[derive(Debug, Default)]
struct TextTable {
    slots: BTreeMap<TextKey, TextSlot>,
    /// Texts that were moved away, each with its private name.
    moved_away: HashMap<TextKey, TextKey>,
}

/// The texts of one mount that are open or private.
#[derive(Debug, Default)]
pub(super) struct OpenTexts(Mutex<TextTable>);

/// Reason why a name has no text here.
#[derive(Debug)]
pub(super) enum MissingText {
    /// The text of the name was moved away, although the store has one.
    Away,
    /// Nothing is known of the name here; the store has to be asked.
    Unknown,
}

impl TextBuffer {
    fn new(key: TextKey) -> Self {
        Self { key, time: Timestamp::now(), ..Self::default() }
    }

    fn is_private(&self) -> bool {
        names::is_private(&self.key.2)
    }

    /// Returns true if the text exists and still has this name.
    fn is_present_at(&self, key: &TextKey) -> bool {
        self.is_loaded && !self.is_removed && self.key == *key
    }

    /// Loads the store's text. `afresh` is true if the text is to be replaced, or was moved away; the buffer then
    /// begins empty.
    fn load_from_store(&mut self, book: &dyn Notebook, afresh: bool) -> io::Result<()> {
        let (_, folder, name) = &self.key;
        let stored = if afresh || self.is_private() {
            None
        } else {
            match book.read_entry(folder, name) {
                Ok(bytes) => Some(bytes),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e),
            }
        };
        self.is_reset = stored.is_none();
        self.base = if afresh { None } else { Some(stored.clone().unwrap_or_default()) };
        self.bytes = stored.unwrap_or_default();
        let lacks_newline = self.bytes.last().is_some_and(|last| *last != b'\n');
        self.lacks_newline = lacks_newline && book.may_lack_newline(folder, name);
        if let Some(note) = book.find_entry(folder, name).filter(|_| !afresh) {
            self.time = note.modified;
        }
        self.is_loaded = true;
        Ok(())
    }

    /// Returns an error if the buffer holds only the beginning of an intended text.
    fn check_complete(&self) -> Result<(), StoreError> {
        self.too_long.as_ref().map_or(Ok(()), |why| Err(StoreError::TooLarge(why.clone())))
    }

    /// Writes the text to the store if it changed.
    fn save_to_store(&mut self, book: &dyn Notebook) -> Result<(), StoreError> {
        if self.is_removed || self.is_private() || !(self.is_dirty || self.is_reset) {
            return Ok(());
        }
        self.check_complete()?;
        self.merge_stored_changes(book);
        let (_, folder, name) = &self.key;
        book.write_entry(folder, name, &self.bytes)?;
        self.note_saved(book);
        Ok(())
    }

    /// Takes over what another program wrote since the text was opened, if this buffer only adds to it.
    fn merge_stored_changes(&mut self, book: &dyn Notebook) {
        let (_, folder, name) = &self.key;
        let Some(base) = &self.base else { return };
        let Ok(mut theirs) = book.read_entry(folder, name) else { return };
        if theirs != *base
            && let Some(added) = self.bytes.strip_prefix(base.as_slice())
        {
            theirs.extend_from_slice(added);
            self.bytes = theirs;
        }
    }

    /// Notes that the store has the text, and takes the time that the store shows from now on.
    fn note_saved(&mut self, book: &dyn Notebook) {
        let (_, folder, name) = &self.key;
        self.is_dirty = false;
        self.is_reset = false;
        self.base = book.read_entry(folder, name).ok().filter(|now| *now == self.bytes);
        if let Some(note) = book.find_entry(folder, name) {
            self.time = note.modified;
        }
    }
}

fn too_long_error(limit: u64) -> StoreError {
    StoreError::TooLarge(format!("a text here may have {limit} bytes (max_message)"))
}

impl TextHandle {
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.text.lock().bytes.len() as u64
    }

    /// Returns at most `size` bytes of the buffer from an offset on.
    pub(super) fn read(&self, offset: u64, size: usize) -> Vec<u8> {
        super::file::slice_range(&self.text.lock().bytes, offset, size).to_vec()
    }

    /// Writes at `offset`, or at the end. The text can have at most `limit` bytes.
    pub(super) fn write(&self, offset: u64, data: &[u8], limit: u64) -> Result<(), StoreError> {
        let text = &mut *self.text.lock();
        let begins = self.append && std::mem::take(&mut text.lacks_newline);
        if begins && !text.bytes.is_empty() && !data.starts_with(b"\n") {
            text.bytes.push(b'\n');
        }
        if !write_at(&mut text.bytes, (!self.append).then_some(offset), data, limit) {
            let why = too_long_error(limit);
            text.too_long = Some(why.to_string());
            return Err(why);
        }
        text.is_dirty = true;
        text.time = Timestamp::now();
        Ok(())
    }

    /// Cuts or extends the text. The text can have at most `limit` bytes.
    pub(super) fn set_len(&self, len: u64, limit: u64) -> Result<(), StoreError> {
        if len > limit {
            return Err(too_long_error(limit));
        }
        let mut text = self.text.lock();
        text.too_long = None;
        if text.bytes.len() as u64 != len {
            text.bytes.resize(len as usize, 0);
            text.is_reset = true;
            text.time = Timestamp::now();
        }
        Ok(())
    }

    /// Returns the present key of the text, which may have been renamed.
    pub(super) fn key(&self) -> TextKey {
        self.text.lock().key.clone()
    }

    /// Saves what was written, when the opener has closed a descriptor.
    pub(super) fn flush(&self, book: &dyn Notebook) -> Result<(), StoreError> {
        let mut text = self.text.lock();
        if text.is_dirty { text.save_to_store(book) } else { Ok(()) }
    }
}

impl OpenTexts {
    /// Opens a text for writing.
    pub fn open(
        &self,
        key: TextKey,
        book: &dyn Notebook,
        access: &OpenRequest,
    ) -> io::Result<TextHandle> {
        let (text, was_away) = {
            let mut table = self.0.lock();
            let was_away = table.moved_away.remove(&key).is_some();
            let new = || TextSlot::new(TextBuffer::new(key.clone()));
            let slot = table.slots.entry(key.clone()).or_insert_with(new);
            slot.handles += 1;
            (Arc::clone(&slot.text), was_away)
        };
        let file = TextHandle { text, opener: access.opener, append: access.append };
        let mut text = file.text.lock();
        if !text.is_loaded {
            if let Err(e) = text.load_from_store(book, access.truncate || was_away) {
                self.drop_handle(&file, &text);
                return Err(e);
            }
        } else if access.truncate {
            text.bytes.clear();
            text.too_long = None;
            text.base = None;
            text.is_reset = true;
        }
        drop(text);
        Ok(file)
    }

    /// Saves the text when the last descriptor of a handle was closed. If that fails, the text is kept under a
    /// private name.
    ///
    /// # Errors
    /// The reason why the text cannot be saved.
    pub fn release(&self, file: &TextHandle, book: &dyn Notebook) -> Result<(), StoreError> {
        let mut text = file.text.lock();
        let saved = text.save_to_store(book);
        if let Err(e) = &saved
            && self.is_last_handle(file, &text)
        {
            self.retain_unsaved(&mut text, &e.to_string());
        }
        self.drop_handle(file, &text);
        saved
    }

    /// Returns true if no other handle will try to save the text again.
    fn is_last_handle(&self, file: &TextHandle, text: &TextBuffer) -> bool {
        let table = self.0.lock();
        let slot = table.slots.get(&text.key).filter(|s| Arc::ptr_eq(&s.text, &file.text));
        slot.is_none_or(|s| s.handles <= 1)
    }

    fn drop_handle(&self, file: &TextHandle, text: &TextBuffer) {
        let table = &mut *self.0.lock();
        let Some(slot) = table.slots.get_mut(&text.key) else { return };
        if !Arc::ptr_eq(&slot.text, &file.text) {
            return;
        }
        slot.handles = slot.handles.saturating_sub(1);
        let keep = text.is_private() && text.is_loaded && !text.is_removed;
        if slot.handles == 0 && !keep {
            table.slots.remove(&text.key);
        }
    }

    fn retain_unsaved(&self, text: &mut TextBuffer, reason: &str) {
        let (number, folder, name) = text.key.clone();
        (text.is_dirty, text.is_reset) = (false, false);
        if text.bytes.is_empty() {
            return;
        }
        let time = Timestamp::now();
        let table = &mut *self.0.lock();
        let names = names::numbered_names(format!(".{name}.unsaved"));
        let mut keys = names.map(|name| (number, folder, name));
        let Some(key) = keys.find(|key| !table.slots.contains_key(key)) else { return };
        let kept = TextBuffer {
            bytes: text.bytes.clone(),
            is_loaded: true,
            time,
            ..TextBuffer::new(key.clone())
        };
        let unsaved = Some(UnsavedText { key: key.clone(), name, reason: reason.to_owned(), time });
        table.slots.insert(key, TextSlot { unsaved, ..TextSlot::new(kept) });
    }

    /// Returns the result of `look` for the text that exists here under a key.
    pub fn with_text<T>(
        &self,
        key: &TextKey,
        look: impl FnOnce(&TextBuffer) -> T,
    ) -> Result<T, MissingText> {
        let text = self.find_buffer(key)?;
        let text = text.lock();
        if text.is_present_at(key) { Ok(look(&text)) } else { Err(MissingText::Unknown) }
    }

    fn find_buffer(&self, key: &TextKey) -> Result<Arc<Mutex<TextBuffer>>, MissingText> {
        let table = self.0.lock();
        match table.slots.get(key) {
            Some(slot) => Ok(Arc::clone(&slot.text)),
            None if table.moved_away.contains_key(key) => Err(MissingText::Away),
            None => Err(MissingText::Unknown),
        }
    }

    /// Returns the names that exist here in a folder of a store, and those that were moved away.
    pub fn list_names(&self, number: usize, folder: &str) -> (Vec<String>, Vec<String>) {
        let table = self.0.lock();
        let of = |key: &&TextKey| key.0 == number && key.1 == folder;
        let name = |key: &TextKey| key.2.clone();
        let here = table.slots.keys().filter(of).map(name).collect();
        (here, table.moved_away.keys().filter(of).map(name).collect())
    }

    /// Returns the texts that could not be saved and are still here.
    pub fn list_unsaved(&self) -> Vec<UnsavedText> {
        self.0.lock().slots.values().filter_map(|slot| slot.unsaved.clone()).collect()
    }

    /// Removes a text that exists only here. Returns false if there is none.
    pub fn remove(&self, key: &TextKey) -> bool {
        let Ok(text) = self.find_buffer(key) else { return false };
        let mut text = text.lock();
        if !text.is_present_at(key) {
            return false;
        }
        text.is_removed = true;
        let mut table = self.0.lock();
        table.slots.remove(key);
        table.moved_away.retain(|_, private| private != key);
        true
    }

    /// Notes that another text of the store got a name. It is shown there, also if the name's own text was moved away,
    /// and a program that has the replaced text open saves it no more.
    pub fn note_replaced(&self, key: &TextKey) {
        self.remove(key);
        self.0.lock().moved_away.remove(key);
    }

    /// Renames a private text. Under a plain name the store keeps it.
    ///
    /// # Errors
    /// `NotFound` if there is none, else the store's error. Nothing has changed then.
    pub fn rename(
        &self,
        from: &TextKey,
        to: &TextKey,
        book: &dyn Notebook,
    ) -> Result<(), StoreError> {
        let text = self.find_buffer(from).map_err(|_| not_found_error(from))?;
        let mut text = text.lock();
        if !text.is_present_at(from) {
            return Err(not_found_error(from));
        }
        let plain = !names::is_private(&to.2);
        if plain {
            text.check_complete()?;
            book.write_entry(to.1, &to.2, &text.bytes)?;
        }
        text.key.clone_from(to);
        if plain {
            text.note_saved(book);
        }
        let table = &mut *self.0.lock();
        let moved = table.slots.remove(from).filter(|slot| !plain || slot.handles > 0);
        // Programs that have the replaced text open keep it; the last one to close wins.
        table.slots.remove(to);
        if let Some(slot) = moved {
            table.slots.insert(to.clone(), TextSlot { unsaved: None, ..slot });
        }
        table.moved_away.remove(to);
        if plain {
            table.moved_away.retain(|_, private| private != from);
        } else {
            table.moved_away.values_mut().filter(|p| *p == from).for_each(|p| p.clone_from(to));
        }
        Ok(())
    }

    /// Moves a text of the store away to a private name.
    ///
    /// # Errors
    /// The store's error.
    pub fn move_away(
        &self,
        from: &TextKey,
        to: &TextKey,
        book: &dyn Notebook,
    ) -> Result<(), StoreError> {
        let file = self
            .open(from.clone(), book, &OpenRequest::default())
            .map_err(|e| io_store_error(from, e))?;
        let mut text = file.text.lock();
        let done = text.save_to_store(book);
        if done.is_ok() {
            text.key.clone_from(to);
            let table = &mut *self.0.lock();
            if let Some(slot) = table.slots.remove(from) {
                table.slots.insert(to.clone(), slot);
            }
            table.moved_away.insert(from.clone(), to.clone());
        }
        self.drop_handle(&file, &text);
        done
    }
}

fn not_found_error(key: &TextKey) -> StoreError {
    io_store_error(key, io::ErrorKind::NotFound.into())
}

fn io_store_error(key: &TextKey, error: io::Error) -> StoreError {
    StoreError::io(std::path::Path::new(&key.2), error)
}
