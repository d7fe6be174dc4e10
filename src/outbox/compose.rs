//! Messages from composing folders: closed, checked, and sent once the folder is quiet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folders::ComposeHandle;
use super::lifecycle::rename_refusal_text;
use super::pack::empty_draft_error;
use super::{
    BODY, CLOSING, DraftId, DraftTarget, OpenDraft, OpenDraftEntry, Outbox, OutboxError, WriteTime,
};
use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::store::StoreError;

/// The composing folders of an outbox: messages that are put together from several files.
#[derive(Clone, Copy)]
pub struct Composer<'a> {
    outbox: &'a Arc<Outbox>,
}

impl Outbox {
    /// Returns the composing folders.
    pub fn composer(self: &Arc<Self>) -> Composer<'_> {
        Composer { outbox: self }
    }
}

impl Composer<'_> {
    /// Sends the composing folders that an earlier process had accepted to send.
    pub fn resume_folders(self) {
        for name in self.outbox.folders.names() {
            self.send_when_quiet(&name);
        }
    }

    /// Returns the names of the composing folders.
    pub fn folder_names(self) -> Vec<String> {
        self.outbox.folders.names()
    }

    /// Returns the time of the last change in a composing folder, if there is one of this name.
    pub fn folder_time(self, folder: &str) -> Option<Timestamp> {
        self.outbox.folders.folder_time(folder)
    }

    /// Returns the names of the files in a composing folder.
    pub fn folder_files(self, folder: &str) -> Option<Vec<String>> {
        self.outbox.folders.file_names(folder)
    }

    /// Returns length and time of a file of a composing folder.
    pub fn stat_folder_file(self, folder: &str, file: &str) -> Option<(u64, Timestamp)> {
        self.outbox.folders.stat_file(folder, file)
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// The errors of [`Outbox::check_name`]; [`OutboxError::Exists`].
    pub fn create_folder(self, name: &str) -> Result<(), OutboxError> {
        self.outbox.check_name(name)?;
        self.outbox.folders.create_folder(name)
    }

    /// Removes a composing folder without files. Returns true if it had none.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove_folder(self, name: &str) -> Result<bool, OutboxError> {
        let removed = self.outbox.folders.remove_empty(name)?;
        if removed {
            self.outbox.forget_folder_note(name);
        }
        Ok(removed)
    }

    /// Gives a composing folder another name. A private folder that gets a plain name is sent, if it has a text.
    ///
    /// # Errors
    /// The errors of [`Outbox::check_name`], and the refusal. After an error the folder is as it was, with its note.
    pub fn rename_folder(self, from: &str, to: &str) -> Result<(), OutboxError> {
        self.outbox.check_name(to)?;
        if self.outbox.folders.folder_time(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let refused = |e: &OutboxError| {
            let reason = rename_refusal_text(to, e);
            self.note_folder_refusal(from, &reason);
            self.outbox.unlisted_notes.add(to, &reason);
        };
        let has_body = self.outbox.folders.stat_file(from, BODY).is_some();
        if has_body && !self.outbox.is_private(to, &DraftTarget::Outbox) {
            let text = self.outbox.folders.read_body(from);
            text.and_then(|text| self.check_folder((from, BODY), to, text)).inspect_err(refused)?;
        }
        self.outbox.folders.rename_folder(from, to)?;
        self.outbox.forget_folder_note(from);
        if !has_body {
            return Ok(());
        }
        self.accept_existing_body(to).inspect_err(|e| {
            // A check that passed a moment ago fails now.
            self.outbox.forget_folder_note(to);
            if self.outbox.folders.rename_folder(to, from).is_ok() {
                refused(e);
            }
        })
    }

    /// Opens a file of a composing folder, not its text.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; I/O errors.
    pub fn open_folder_file(
        self,
        folder: &str,
        file: &str,
        write: bool,
        how: (bool, bool),
    ) -> Result<ComposeHandle, OutboxError> {
        self.outbox.folders.open_file(folder, file, write, how)
    }

    /// Writes to a file of a composing folder.
    ///
    /// # Errors
    /// [`OutboxError::Store`] if the file is too large for every store; I/O errors. The file is then not whole, and the
    /// message is refused.
    pub fn write_folder_file(
        self,
        to: &ComposeHandle,
        at: u64,
        data: &[u8],
    ) -> Result<(), OutboxError> {
        self.check_file_size(to, at.saturating_add(data.len() as u64))?;
        self.outbox.folders.write(to, at, data)
    }

    /// Cuts or extends a file of a composing folder.
    ///
    /// # Errors
    /// The errors of [`Composer::write_folder_file`].
    pub fn resize_folder_file(self, file: &ComposeHandle, len: u64) -> Result<(), OutboxError> {
        self.check_file_size(file, len)?;
        let what = "the file cannot be written";
        file.set_len(len).map_err(|error| OutboxError::Io { what, error })
    }

    /// Refuses a size that no store with attachments carries. The recipients are not known before the text.
    fn check_file_size(self, file: &ComposeHandle, size: u64) -> Result<(), OutboxError> {
        let sized = [("the file".to_owned(), size)];
        let mut refused = None;
        for store in self.outbox.context.index.stores() {
            let about = store.properties();
            match about.attachment_rule.map(|_| about.check_attachments(&sized)) {
                Some(Err(e @ StoreError::TooLarge(_))) => refused = Some(e),
                Some(_) => return Ok(()),
                None => {}
            }
        }
        let Some(why) = refused else { return Ok(()) };
        self.outbox.folders.mark_cut(file, why.to_string());
        Err(why.into())
    }

    /// Notes that a signal ended the program that wrote a file of a composing folder.
    pub fn mark_folder_file_cut(self, file: &ComposeHandle, signal: u32) {
        self.outbox
            .folders
            .mark_cut(file, format!("the program that wrote it was ended by signal {signal}"));
    }

    /// Handles the close of the last descriptor of a file of a composing folder.
    pub fn close_folder_file(self, file: &ComposeHandle) {
        if self.outbox.folders.close(file) {
            self.retry_folder(file.folder());
        }
    }

    /// Removes a file of a composing folder. A folder without its text is not sent.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; I/O errors.
    pub fn remove_folder_file(self, folder: &str, file: &str) -> Result<(), OutboxError> {
        self.outbox.folders.unlink(folder, file)?;
        self.retry_folder(folder);
        Ok(())
    }

    /// Renames a file of a composing folder. If the new name is that of the text, the folder is sent.
    ///
    /// # Errors
    /// The refusal, and then the folder is as it was; I/O errors.
    pub fn rename_folder_file(self, folder: &str, from: &str, to: &str) -> Result<(), OutboxError> {
        if to == BODY && from != BODY && !self.outbox.is_private(folder, &DraftTarget::Outbox) {
            let text = self.outbox.folders.read_file(folder, from)?;
            let refused = |e: &OutboxError| self.note_folder_refusal(folder, &e.to_string());
            self.check_folder((folder, from), folder, text).inspect_err(refused)?;
        }
        self.outbox.folders.rename_file(folder, from, to)?;
        if to == BODY {
            return self.accept_existing_body(folder);
        }
        self.retry_folder(folder);
        Ok(())
    }

    /// Moves a file of a folder with a private name into `outbox/` as a draft. Under a plain name the draft is sent:
    /// `rsync --delay-updates` puts all files into such a folder and moves them out at the end. Returns true if there
    /// is such a folder.
    ///
    /// # Errors
    /// The errors of [`Outbox::rename_draft`]; the file then stays in the folder.
    pub fn move_file_out(
        self,
        folder: &str,
        file: &str,
        to: &str,
        replace: bool,
    ) -> Result<bool, OutboxError> {
        let target = DraftTarget::Outbox;
        if !self.outbox.is_private(folder, &target) {
            return Ok(false);
        }
        self.outbox.check_name(to)?;
        if self.outbox.folders.folder_time(to).is_some()
            || !replace && self.outbox.find_entry(to).is_some()
        {
            return Err(OutboxError::Exists);
        }
        let (size, time) =
            self.outbox.folders.stat_file(folder, file).ok_or(OutboxError::NotFound)?;
        if size > self.outbox.max_message() {
            return Err(OutboxError::TooLarge(self.outbox.max_message()));
        }
        let text = self.outbox.folders.read_file(folder, file)?;
        let written = WriteTime::from_time(time);
        let mut d = OpenDraft { touched: true, written, ..OpenDraft::new(to, target, text) };
        let is_sent = !self.outbox.is_private(to, &d.target);
        if is_sent {
            let empty = d.is_empty().then(empty_draft_error);
            let judged = empty.map_or_else(|| self.outbox.spool_draft(&mut d), Err);
            judged.inspect_err(|e| {
                self.outbox.note_refusal(to, &e.to_string(), Timestamp::now());
                self.outbox.unlisted_notes.add(to, &e.to_string());
            })?;
        }
        let spooled = d.spooled.take();
        if let Err(e) = self.outbox.folders.unlink(folder, file) {
            // Another caller was faster.
            self.outbox.discard_spooled(spooled);
            return Err(e);
        }
        if is_sent {
            self.outbox.forget_earlier_drafts(&d);
            self.outbox.send_spooled(spooled);
        } else {
            self.outbox.save_draft(&d);
        }
        Ok(true)
    }

    /// Tries a refused folder again after a change in it, which may have removed the reason.
    fn retry_folder(self, folder: &str) {
        if !self.outbox.is_private(folder, &DraftTarget::Outbox)
            && self.outbox.folders.is_refused(folder)
        {
            // The note beside it gives the result.
            let _ = self.accept_existing_body(folder);
        }
    }

    /// Notes why a composing folder was refused.
    fn note_folder_refusal(self, folder: &str, reason: &str) {
        let now = Timestamp::now();
        self.outbox.note_refusal(folder, reason, now);
        self.outbox.folder_notes.lock().insert(folder.to_owned(), (reason.to_owned(), now));
        self.outbox.folders.set_error(folder, Some(reason));
    }

    /// Accepts a folder whose text is there.
    fn accept_existing_body(self, folder: &str) -> Result<(), OutboxError> {
        let id = self.start_body(folder, self.outbox.folders.read_body(folder)?);
        let done = self.outbox.draft(id).and_then(|draft| {
            draft.lock().dirty = true;
            self.flush_body(id, true)
        });
        self.release_body(id);
        done
    }

    /// Starts the text of a composing folder.
    pub fn start_body(self, folder: &str, text: Vec<u8>) -> DraftId {
        self.outbox.folders.set_writing(folder, true);
        self.outbox.insert_open(OpenDraft {
            composed: true,
            ..OpenDraft::new(folder, DraftTarget::Outbox, text)
        })
    }

    /// Returns the saved text of a composing folder, which is empty if there is none.
    ///
    /// # Errors
    /// I/O errors.
    pub fn folder_body(self, folder: &str) -> Result<Vec<u8>, OutboxError> {
        self.outbox.folders.read_body(folder)
    }

    /// Handles the close of a descriptor of a folder's text, like [`Outbox::flush`]. The message is sent later, when
    /// the folder is quiet; a refusal that is certain now is returned now.
    ///
    /// # Errors
    /// The refusal, like [`Outbox::flush`].
    pub fn flush_body(self, id: DraftId, by_opener: bool) -> Result<(), OutboxError> {
        let draft = self.outbox.draft(id)?;
        let (name, text) = {
            let d = draft.lock();
            if let Some(said) = self.outbox.known_close_result(id, &d) {
                return said;
            }
            if !d.dirty {
                let (name, has_text) = (d.name.clone(), !d.is_empty());
                drop(d);
                if by_opener && has_text && self.outbox.folders.is_accepted(&name) {
                    // If that was the last close, a listing waits for the message.
                    self.outbox.sender.note_closing(id, Instant::now() + CLOSING);
                }
                return Ok(());
            }
            (d.name.clone(), d.text.clone())
        };
        // The lock of the folders comes before that of a draft.
        let accepted = self.save_accepted(&name, text.clone());
        let mut d = draft.lock();
        if accepted.is_ok() {
            d.dirty = d.text != text;
        }
        self.outbox.finish_close(id, &mut d, accepted, by_opener)
    }

    /// Saves the text of a folder, and that it is accepted with the files that are there then.
    fn save_accepted(self, folder: &str, text: Vec<u8>) -> Result<(), OutboxError> {
        self.check_folder((folder, BODY), folder, text.clone())?;
        self.outbox.folders.save_body(folder, &text, true)
    }

    /// Checks that a folder could be sent under this name with this text, which lies in it as `file`.
    fn check_folder(
        self,
        (folder, file): (&str, &str),
        name: &str,
        text: Vec<u8>,
    ) -> Result<(), OutboxError> {
        let files = self.outbox.folders.list_attachments((folder, file), false)?;
        let d =
            OpenDraft { files, composed: true, ..OpenDraft::new(name, DraftTarget::Outbox, text) };
        if d.is_empty() {
            return Err(empty_draft_error());
        }
        // The message is signed once more when it is sent, with the files that have come until then.
        let parcels = self.outbox.packer.prepare_parcels(&d, &[])?;
        self.outbox.context.release_parcels(&parcels);
        Ok(())
    }

    /// Handles the close of the last descriptor of a folder's text.
    pub fn release_body(self, id: DraftId) {
        let Some(OpenDraftEntry { draft, .. }) = self.outbox.open_drafts.lock().remove(&id) else {
            return;
        };
        let (name, text, changed, late) = {
            let d = draft.lock();
            let late =
                d.refused.is_none() && !d.unlinked && !self.outbox.is_private(&d.name, &d.target);
            // If nothing was written, no close could have reported the refusal.
            let changed = d.dirty || d.text.is_empty();
            (d.name.clone(), d.text.clone(), changed, late && changed)
        };
        let accepted = if late { self.save_accepted(&name, text.clone()) } else { Ok(()) };
        let refused = {
            let mut d = draft.lock();
            if let Err(e) = accepted {
                d.record_refusal(e);
            }
            d.refused.is_some()
        };
        if refused {
            self.refuse_folder(&draft, &text);
        } else if changed && !late {
            self.save_body(&name, &text);
        } else {
            self.outbox.forget_folder_note(&name);
        }
        self.outbox.folders.set_writing(&name, false);
        self.send_when_quiet(&name);
        self.outbox.sender.note_released(id);
    }

    /// Saves the text of a folder that is not accepted yet.
    fn save_body(self, folder: &str, text: &[u8]) {
        if let Err(e) = self.outbox.folders.save_body(folder, text, false) {
            tracing::warn!(folder = %sanitize_line(folder), error = %e, "the text of this composing \
                folder could not be saved");
        }
    }

    /// Saves a folder that was refused, with the reason.
    fn refuse_folder(self, draft: &Mutex<OpenDraft>, text: &[u8]) {
        let (name, why, half) = {
            let d = draft.lock();
            self.outbox.save_draft(&d);
            let why = d.refused.as_ref();
            let half = why.is_some_and(|why| matches!(**why, OutboxError::CutOff(_)));
            (d.name.clone(), why.map(ToString::to_string), half)
        };
        self.save_body(&name, text);
        if half {
            self.outbox.folders.mark_body_cut(&name);
        }
        self.outbox.folders.set_error(&name, why.as_deref());
    }

    /// Has an accepted folder sent as soon as it is quiet.
    fn send_when_quiet(self, folder: &str) {
        if !self.outbox.folders.claim_quiet_wait(folder) {
            return;
        }
        let (outbox, name) = (Arc::clone(self.outbox), folder.to_owned());
        let wait = move || {
            if outbox.folders.wait_until_quiet(&name) {
                outbox.composer().send_folder(&name);
            }
        };
        if let Err(e) = std::thread::Builder::new().name("msgfs-quiet".into()).spawn(wait) {
            tracing::error!(error = %e, "a composing folder cannot be sent now; the next mount \
                sends it");
        }
    }

    /// Sends a folder that is quiet.
    pub(super) fn send_folder(self, folder: &str) {
        if let Err(e) = self.try_send_folder(folder) {
            // The folder keeps the text; only the note is made here.
            let none = OpenDraft::new(folder, DraftTarget::Outbox, Vec::new());
            let mut d = OpenDraft { composed: true, ..none };
            d.record_refusal(e);
            self.outbox.save_draft(&d);
            // The note comes before the folder may be tried again: it must not replace a later reason.
            let why = d.refused.as_ref().map(ToString::to_string);
            self.outbox.folders.set_error(folder, why.as_deref());
            self.outbox.folders.cancel_send(folder);
        }
    }

    fn try_send_folder(self, folder: &str) -> Result<(), OutboxError> {
        let files = self.outbox.folders.list_attachments((folder, BODY), true)?;
        let text = self.outbox.folders.read_body(folder)?;
        let d = OpenDraft {
            files,
            composed: true,
            ..OpenDraft::new(folder, DraftTarget::Outbox, text)
        };
        if d.is_empty() {
            return Err(empty_draft_error());
        }
        let parcels = self.outbox.packer.prepare_parcels(&d, &[])?;
        if parcels.is_empty() {
            // The message is a retry under an idempotency key.
            self.outbox.folders.delete_from_disk(folder);
            self.outbox.forget_folder_note(folder);
            self.outbox.folders.forget_folder(folder);
            return Ok(());
        }
        let ids: Vec<&str> = parcels.iter().map(|p| p.message.id.as_str()).collect();
        let put = self.outbox.folders.note_sent_ids(folder, &ids).and_then(|()| {
            let put = self.outbox.context.spool.insert(parcels.clone(), None);
            let what = "the message could not be put into the spool";
            put.map_err(|error| OutboxError::Io { what, error })
        });
        let number = put.inspect_err(|_| self.outbox.context.release_parcels(&parcels))?;
        // The folder goes before the message can be sent and leave the spool, from which the next process would know.
        self.outbox.folders.delete_from_disk(folder);
        self.outbox.forget_folder_note(folder);
        self.outbox.sender.send(number, parcels, false);
        // The folder is forgotten last, for callers that wait until the message is in its store.
        self.outbox.folders.forget_folder(folder);
        Ok(())
    }

    /// Waits at most `limit`, until the closed composing folders are on their way.
    pub fn wait_for_folders(self, limit: Duration) {
        self.outbox.folders.wait_until_sent(Instant::now() + limit);
    }
}
