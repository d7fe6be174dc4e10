//! The files of composing folders: opened, written, renamed, and listed as attachments.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use super::{
    BODY, ComposeFile, ComposeFolders, QUIET, create_if_missing, remove_if_exists, save_error,
    withdraw_acceptance,
};
use crate::model::{Timestamp, sanitize_line};
use crate::outbox::{OutboxError, names};
use crate::store::{Durability, fs};

/// An open file of a composing folder.
#[derive(Debug)]
#[allow(clippy::len_without_is_empty)] // Nobody asks.
pub struct ComposeHandle {
    folder: String,
    id: u64,
    file: File,
    /// True if it was opened for writing.
    write: bool,
}

impl ComposeHandle {
    /// Returns the name of its folder.
    pub(in crate::outbox) fn folder(&self) -> &str {
        &self.folder
    }

    /// Reads up to this many bytes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        fs::read_range(&self.file, offset, size)
    }

    /// Returns its length.
    pub fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    /// Cuts or extends it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Returns why a file cannot be attached. A file that is still being written has no fault.
fn describe_fault(name: &str, file: &ComposeFile) -> Option<String> {
    if file.writers > 0 {
        return None;
    }
    let shown = sanitize_line(name);
    if let Some(why) = &file.cut {
        return Some(format!("the file {shown} is not whole: {why}; write it again"));
    }
    names::is_private(name).then(|| {
        format!(
            "the file {shown} has the name of a private draft and is never sent; give it another \
             name, or remove it"
        )
    })
}

impl ComposeFolders {
    /// Opens a file. For writing, it is made if it does not exist.
    pub fn open_file(
        &self,
        name: &str,
        file: &str,
        write: bool,
        (truncate, append): (bool, bool),
    ) -> Result<ComposeHandle, OutboxError> {
        let id = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next
        };
        self.update_folder(name, |folder| {
            let known = folder.files.contains_key(file);
            if !known && !write {
                return Err(OutboxError::NotFound);
            }
            if write {
                create_if_missing(&folder.cut_mark_path(file)).map_err(save_error)?;
            }
            let mut options = OpenOptions::new();
            options.read(true).write(write && !append).append(append).create(write);
            options.truncate(truncate && !append).mode(0o600);
            let opened = options.open(folder.file_path(file)).map_err(save_error)?;
            if truncate && append {
                opened.set_len(0).map_err(save_error)?;
            }
            let new = || ComposeFile { id, time: Timestamp::now(), writers: 0, cut: None };
            let entry = folder.files.entry(file.to_owned()).or_insert_with(new);
            if write {
                entry.writers += 1;
                if truncate {
                    entry.cut = None;
                }
            }
            let id = entry.id;
            Ok(ComposeHandle { folder: name.to_owned(), id, file: opened, write })
        })
    }

    /// Writes to an open file. A write that fails marks the file as not whole.
    pub fn write(&self, to: &ComposeHandle, offset: u64, data: &[u8]) -> Result<(), OutboxError> {
        to.file.write_all_at(data, offset).map_err(|error| {
            self.mark_cut(to, format!("writing it failed ({error})"));
            OutboxError::Io { what: "the file cannot be written", error }
        })
    }

    /// Notes that a file is not whole.
    pub fn mark_cut(&self, file: &ComposeHandle, why: String) {
        // A folder that is gone needs no note.
        let _ = self.update_folder(&file.folder, |folder| {
            if let Some((_, entry)) = folder.find_file(file.id) {
                entry.cut = Some(why);
            }
            Ok(())
        });
    }

    /// Handles the close of the last descriptor of a handle. Returns true if the handle was open for writing.
    pub fn close(&self, file: &ComposeHandle) -> bool {
        if !file.write {
            return false;
        }
        let closed = self.update_folder(&file.folder, |folder| {
            folder.touch();
            let accepted = folder.accepted;
            let Some((name, entry)) = folder.find_file(file.id) else { return Ok(()) };
            entry.writers = entry.writers.saturating_sub(1);
            entry.time = Timestamp::now();
            if entry.writers > 0 || entry.cut.is_some() {
                return Ok(());
            }
            let name = name.clone();
            if accepted && self.durability == Durability::Fsync {
                file.file.sync_all().map_err(save_error)?;
            }
            remove_if_exists(&folder.cut_mark_path(&name)).map_err(save_error)
        });
        if let Err(e) = closed {
            tracing::warn!(folder = %sanitize_line(&file.folder), error = %e, "a file could not be \
                saved");
        }
        true
    }

    /// Removes a file of a folder. Without its text, the folder is not sent any more.
    pub fn unlink(&self, name: &str, file: &str) -> Result<(), OutboxError> {
        self.update_folder(name, |folder| {
            folder.files.remove(file).ok_or(OutboxError::NotFound)?;
            folder.touch();
            if file == BODY {
                withdraw_acceptance(folder)?;
            }
            remove_if_exists(&folder.file_path(file)).map_err(save_error)?;
            remove_if_exists(&folder.cut_mark_path(file)).map_err(save_error)
        })
    }

    /// Renames a file of a folder. Without its text, the folder is not sent any more.
    pub fn rename_file(&self, name: &str, from: &str, to: &str) -> Result<(), OutboxError> {
        self.update_folder(name, |folder| {
            if !folder.files.contains_key(from) {
                return Err(OutboxError::NotFound);
            }
            // The mark goes first: a cut file without its mark would count as whole.
            match std::fs::rename(folder.cut_mark_path(from), folder.cut_mark_path(to)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(save_error(e)),
                _ => {}
            }
            let entry = folder.files.remove(from).ok_or(OutboxError::NotFound)?;
            let moved =
                std::fs::rename(folder.file_path(from), folder.file_path(to)).map_err(save_error);
            folder.files.insert(if moved.is_ok() { to } else { from }.to_owned(), entry);
            folder.touch();
            if from == BODY {
                withdraw_acceptance(folder)?;
            }
            moved
        })
    }

    /// Returns the content of a file.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; I/O errors.
    pub fn read_file(&self, name: &str, file: &str) -> Result<Vec<u8>, OutboxError> {
        let path = self.read_folder(name, |folder| folder.file_path(file));
        std::fs::read(path.ok_or(OutboxError::NotFound)?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OutboxError::NotFound,
            _ => OutboxError::Io { what: "a file of the message cannot be read", error },
        })
    }

    /// Returns the files to attach to the text `text`. Files that are still being written are left out.
    ///
    /// # Errors
    /// If one of the other files cannot be attached. With `at_last` no fault is excused because a file is young.
    pub fn list_attachments(
        &self,
        (name, text): (&str, &str),
        at_last: bool,
    ) -> Result<Vec<(String, PathBuf)>, OutboxError> {
        let all = self.read_folder(name, |folder| {
            let now = Timestamp::now().millis();
            let young = |file: &ComposeFile| now - file.time.millis() < QUIET.as_millis() as i64;
            let files = folder.files.iter().filter(|(name, _)| *name != BODY && *name != text);
            let one = |(name, file): (&String, &ComposeFile)| match describe_fault(name, file) {
                Some(_) if !at_last && young(file) => None,
                Some(why) => Some(Err(OutboxError::Invalid(why))),
                None if file.writers > 0 => None,
                None => Some(Ok((name.clone(), folder.file_path(name)))),
            };
            files.filter_map(one).collect()
        });
        all.ok_or(OutboxError::NotFound)?
    }
}
