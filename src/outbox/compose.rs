//! Messages from composing folders: closed, checked, and sent once the folder is quiet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folders::ComposeHandle;
use super::lifecycle::rename_refusal_text;
use super::pack::empty_draft_error;
use super::{
    BODY, DraftId, DraftTarget, OpenDraft, OpenDraftEntry, Outbox, OutboxError, WriteTime,
};
use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::store::StoreError;

impl Outbox {
    /// Sends the composing folders that an earlier process had promised to send.
    pub fn resume_folders(self: &Arc<Self>) {
        for name in self.folders.names() {
            self.send_when_quiet(&name);
        }
    }

    /// Returns the names of the composing folders.
    pub fn folder_names(&self) -> Vec<String> {
        self.folders.names()
    }

    /// Returns the time of the last change in a composing folder, if there is one of this name.
    pub fn folder_time(&self, folder: &str) -> Option<Timestamp> {
        self.folders.folder_time(folder)
    }

    /// Returns the names of the files in a composing folder.
    pub fn folder_files(&self, folder: &str) -> Option<Vec<String>> {
        self.folders.file_names(folder)
    }

    /// Returns length and time of a file of a composing folder.
    pub fn stat_folder_file(&self, folder: &str, file: &str) -> Option<(u64, Timestamp)> {
        self.folders.stat_file(folder, file)
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// The errors of [`Outbox::check_name`]; [`OutboxError::Exists`].
    pub fn create_folder(&self, name: &str) -> Result<(), OutboxError> {
        self.check_name(name)?;
        self.folders.create_folder(name)
    }

    /// Removes a composing folder without files. Returns true if it had none.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove_folder(&self, name: &str) -> Result<bool, OutboxError> {
        let removed = self.folders.remove_empty(name)?;
        if removed {
            self.forget_folder_note(name);
        }
        Ok(removed)
    }

    /// Gives a composing folder another name. A private folder that gets a plain name is sent, if it has a text.
    ///
    /// # Errors
    /// The errors of [`Outbox::check_name`], and the refusal. After an error the folder is as it was, with its note.
    pub fn rename_folder(self: &Arc<Self>, from: &str, to: &str) -> Result<(), OutboxError> {
        self.check_name(to)?;
        if self.folders.folder_time(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let refused = |e: &OutboxError| {
            let reason = rename_refusal_text(to, e);
            self.note_folder_refusal(from, &reason);
            self.note_unlisted(to, &reason);
        };
        let has_body = self.folders.stat_file(from, BODY).is_some();
        if has_body && !self.is_private(to, &DraftTarget::Outbox) {
            self.check_folder((from, BODY), to, self.folders.read_body(from))
                .inspect_err(refused)?;
        }
        self.folders.rename_folder(from, to)?;
        self.forget_folder_note(from);
        if !has_body {
            return Ok(());
        }
        self.promise_existing_body(to).inspect_err(|e| {
            // A check that passed a moment ago fails now.
            self.forget_folder_note(to);
            if self.folders.rename_folder(to, from).is_ok() {
                refused(e);
            }
        })
    }

    /// Opens a file of a composing folder, not its text.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; I/O errors.
    pub fn open_folder_file(
        &self,
        folder: &str,
        file: &str,
        write: bool,
        how: (bool, bool),
    ) -> Result<ComposeHandle, OutboxError> {
        self.folders.open_file(folder, file, write, how)
    }

    /// Writes to such a file.
    ///
    /// # Errors
    /// [`OutboxError::Store`] if the file is too large for every store; I/O errors. The file is then not whole, and the
    /// message is refused.
    pub fn write_folder_file(
        &self,
        to: &ComposeHandle,
        at: u64,
        data: &[u8],
    ) -> Result<(), OutboxError> {
        self.check_file_size(to, at.saturating_add(data.len() as u64))?;
        self.folders.write(to, at, data)
    }

    /// Cuts or extends such a file.
    ///
    /// # Errors
    /// The errors of [`Outbox::write_folder_file`].
    pub fn resize_folder_file(&self, file: &ComposeHandle, len: u64) -> Result<(), OutboxError> {
        self.check_file_size(file, len)?;
        let what = "the file cannot be written";
        file.set_len(len).map_err(|error| OutboxError::Io { what, error })
    }

    /// Refuses a size that no store with attachments carries. The recipients are not known before the text.
    fn check_file_size(&self, file: &ComposeHandle, size: u64) -> Result<(), OutboxError> {
        let sized = [("the file".to_owned(), size)];
        let mut refused = None;
        for store in self.context.index.stores() {
            let about = store.properties();
            match about.attachment_rule.map(|_| about.check_attachments(&sized)) {
                Some(Err(e @ StoreError::TooLarge(_))) => refused = Some(e),
                Some(_) => return Ok(()),
                None => {}
            }
        }
        let Some(why) = refused else { return Ok(()) };
        self.folders.mark_cut(file, why.to_string());
        Err(why.into())
    }

    /// Notes that a signal ended the program that wrote such a file.
    pub fn mark_folder_file_cut(&self, file: &ComposeHandle, signal: u32) {
        self.folders
            .mark_cut(file, format!("the program that wrote it was ended by signal {signal}"));
    }

    /// Handles the close of the last descriptor of such a file.
    pub fn close_folder_file(self: &Arc<Self>, file: &ComposeHandle) {
        if self.folders.close(file) {
            self.retry_folder(file.folder());
        }
    }

    /// Removes a file of a composing folder. A folder without its text is not sent.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; I/O errors.
    pub fn remove_folder_file(
        self: &Arc<Self>,
        folder: &str,
        file: &str,
    ) -> Result<(), OutboxError> {
        self.folders.unlink(folder, file)?;
        self.retry_folder(folder);
        Ok(())
    }

    /// Renames a file of a composing folder. If the new name is that of the text, the folder is sent.
    ///
    /// # Errors
    /// The refusal, and then the folder is as it was; I/O errors.
    pub fn rename_folder_file(
        self: &Arc<Self>,
        folder: &str,
        from: &str,
        to: &str,
    ) -> Result<(), OutboxError> {
        if to == BODY && from != BODY && !self.is_private(folder, &DraftTarget::Outbox) {
            let text = self.folders.read_file(folder, from);
            let refused = |e: &OutboxError| self.note_folder_refusal(folder, &e.to_string());
            self.check_folder((folder, from), folder, text).inspect_err(refused)?;
        }
        self.folders.rename_file(folder, from, to)?;
        if to == BODY {
            return self.promise_existing_body(folder);
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
        &self,
        folder: &str,
        file: &str,
        to: &str,
        replace: bool,
    ) -> Result<bool, OutboxError> {
        let target = DraftTarget::Outbox;
        if !self.is_private(folder, &target) {
            return Ok(false);
        }
        self.check_name(to)?;
        if self.folders.folder_time(to).is_some() || !replace && self.find_entry(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let (size, time) = self.folders.stat_file(folder, file).ok_or(OutboxError::NotFound)?;
        if size > self.max_message() {
            return Err(OutboxError::TooLarge(self.max_message()));
        }
        let text = self.folders.read_file(folder, file);
        let written = WriteTime::from_time(time);
        let mut d = OpenDraft { touched: true, written, ..OpenDraft::new(to, target, text) };
        let is_sent = !self.is_private(to, &d.target);
        if is_sent {
            let empty = d.is_empty().then(empty_draft_error);
            let judged = empty.map_or_else(|| self.spool_draft(&mut d), Err);
            judged.inspect_err(|e| {
                self.note_refusal(to, &e.to_string(), Timestamp::now());
                self.note_unlisted(to, &e.to_string());
            })?;
        }
        let spooled = d.spooled.take();
        if let Err(e) = self.folders.unlink(folder, file) {
            // Another caller was faster.
            self.discard_spooled(spooled);
            return Err(e);
        }
        if is_sent {
            self.forget_earlier_drafts(&d);
            self.send_spooled(spooled);
        } else {
            self.save_draft(&d);
        }
        Ok(true)
    }

    /// Tries a refused folder again after a change in it, which may have removed the reason.
    fn retry_folder(self: &Arc<Self>, folder: &str) {
        if !self.is_private(folder, &DraftTarget::Outbox) && self.folders.is_refused(folder) {
            // The note beside it gives the result.
            let _ = self.promise_existing_body(folder);
        }
    }

    /// Notes why a composing folder was refused.
    fn note_folder_refusal(&self, folder: &str, reason: &str) {
        let now = Timestamp::now();
        self.note_refusal(folder, reason, now);
        self.folder_notes.lock().insert(folder.to_owned(), (reason.to_owned(), now));
        self.folders.set_error(folder, Some(reason));
    }

    /// Promises to send a folder whose text is there.
    fn promise_existing_body(self: &Arc<Self>, folder: &str) -> Result<(), OutboxError> {
        let id = self.start_body(folder, self.folders.read_body(folder));
        let done = self.draft(id).and_then(|draft| {
            draft.lock().dirty = true;
            self.flush_body(id, true)
        });
        self.release_body(id);
        done
    }

    /// Starts the text of a composing folder.
    pub fn start_body(&self, folder: &str, text: Vec<u8>) -> DraftId {
        self.folders.set_writing(folder, true);
        self.insert_open(OpenDraft {
            composed: true,
            ..OpenDraft::new(folder, DraftTarget::Outbox, text)
        })
    }

    /// Returns the saved text of a composing folder.
    pub fn folder_body(&self, folder: &str) -> Vec<u8> {
        self.folders.read_body(folder)
    }

    /// Handles the close of a descriptor of a folder's text, like [`Outbox::flush`]. The message is sent later, when
    /// the folder is quiet; a refusal that is certain now is returned now.
    ///
    /// # Errors
    /// The refusal, like [`Outbox::flush`].
    pub fn flush_body(&self, id: DraftId, by_opener: bool) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let (name, text) = {
            let d = draft.lock();
            if let Some(said) = self.known_close_result(id, &d) {
                return said;
            }
            if !d.dirty {
                return Ok(());
            }
            (d.name.clone(), d.text.clone())
        };
        // The lock of the folders comes before that of a draft.
        let promised = self.save_and_promise(&name, text.clone());
        let mut d = draft.lock();
        if promised.is_ok() {
            d.dirty = d.text != text;
        }
        self.finish_close(id, &mut d, promised, by_opener)
    }

    /// Saves the text of a folder and the promise to send it with the files that are there then.
    fn save_and_promise(&self, folder: &str, text: Vec<u8>) -> Result<(), OutboxError> {
        self.check_folder((folder, BODY), folder, text.clone())?;
        self.folders.save_body(folder, &text, true)
    }

    /// Checks that a folder could be sent under this name with this text, which lies in it as `file`.
    fn check_folder(
        &self,
        (folder, file): (&str, &str),
        name: &str,
        text: Vec<u8>,
    ) -> Result<(), OutboxError> {
        let files = self.folders.list_attachments((folder, file), false)?;
        let d =
            OpenDraft { files, composed: true, ..OpenDraft::new(name, DraftTarget::Outbox, text) };
        if d.is_empty() {
            return Err(empty_draft_error());
        }
        // The message is signed once more when it is sent, with the files that have come until then.
        let parcels = self.prepare_parcels(&d, &[])?;
        self.context.release_parcels(&parcels);
        Ok(())
    }

    /// Handles the close of the last descriptor of a folder's text.
    pub fn release_body(self: &Arc<Self>, id: DraftId) {
        let Some(OpenDraftEntry { draft, .. }) = self.open_drafts.lock().remove(&id) else {
            return;
        };
        let (name, text, changed, late) = {
            let d = draft.lock();
            let late = d.refused.is_none() && !d.unlinked && !self.is_private(&d.name, &d.target);
            // If nothing was written, no close could have reported the refusal.
            let changed = d.dirty || d.text.is_empty();
            (d.name.clone(), d.text.clone(), changed, late && changed)
        };
        let promised = if late { self.save_and_promise(&name, text.clone()) } else { Ok(()) };
        let refused = {
            let mut d = draft.lock();
            if let Err(e) = promised {
                d.record_refusal(e);
            }
            d.refused.is_some()
        };
        if refused {
            self.refuse_folder(&draft, &text);
        } else if changed && !late {
            self.save_body(&name, &text);
        } else {
            self.forget_folder_note(&name);
        }
        self.folders.set_writing(&name, false);
        self.send_when_quiet(&name);
        self.sender.note_released(id);
    }

    /// Saves the text of a folder without a promise.
    fn save_body(&self, folder: &str, text: &[u8]) {
        if let Err(e) = self.folders.save_body(folder, text, false) {
            tracing::warn!(folder = %sanitize_line(folder), error = %e, "the text of this composing \
                folder could not be saved");
        }
    }

    /// Saves a folder that was refused, with the reason.
    fn refuse_folder(&self, draft: &Mutex<OpenDraft>, text: &[u8]) {
        let (name, why, half) = {
            let d = draft.lock();
            self.save_draft(&d);
            let why = d.refused.as_ref();
            let half = why.is_some_and(|why| matches!(**why, OutboxError::CutOff(_)));
            (d.name.clone(), why.map(ToString::to_string), half)
        };
        self.save_body(&name, text);
        if half {
            self.folders.mark_body_cut(&name);
        }
        self.folders.set_error(&name, why.as_deref());
    }

    /// Has a promised folder sent as soon as it is quiet.
    fn send_when_quiet(self: &Arc<Self>, folder: &str) {
        if !self.folders.claim_quiet_wait(folder) {
            return;
        }
        let (outbox, name) = (Arc::clone(self), folder.to_owned());
        let wait = move || {
            if outbox.folders.wait_until_quiet(&name) {
                outbox.send_folder(&name);
            }
        };
        if let Err(e) = std::thread::Builder::new().name("msgfs-quiet".into()).spawn(wait) {
            tracing::error!(error = %e, "a composing folder cannot be sent now; the next mount \
                sends it");
        }
    }

    /// Sends a folder that is quiet.
    pub(super) fn send_folder(&self, folder: &str) {
        if let Err(e) = self.try_send_folder(folder) {
            let text = self.folders.read_body(folder);
            let mut d =
                OpenDraft { composed: true, ..OpenDraft::new(folder, DraftTarget::Outbox, text) };
            d.record_refusal(e);
            self.save_draft(&d);
            // The note comes before the folder may be tried again: it must not replace a later reason.
            let why = d.refused.as_ref().map(ToString::to_string);
            self.folders.set_error(folder, why.as_deref());
            self.folders.cancel_send(folder);
        }
    }

    fn try_send_folder(&self, folder: &str) -> Result<(), OutboxError> {
        let files = self.folders.list_attachments((folder, BODY), true)?;
        let text = self.folders.read_body(folder);
        let d = OpenDraft {
            files,
            composed: true,
            ..OpenDraft::new(folder, DraftTarget::Outbox, text)
        };
        if d.is_empty() {
            return Err(empty_draft_error());
        }
        let parcels = self.prepare_parcels(&d, &[])?;
        if parcels.is_empty() {
            // The message is a retry under an idempotency key.
            self.folders.delete_from_disk(folder);
            self.forget_folder_note(folder);
            self.folders.forget_folder(folder);
            return Ok(());
        }
        let ids: Vec<&str> = parcels.iter().map(|p| p.message.id.as_str()).collect();
        let put = self.folders.note_sent_ids(folder, &ids).and_then(|()| {
            let put = self.context.spool.insert(parcels.clone(), None);
            let what = "the message could not be put into the spool";
            put.map_err(|error| OutboxError::Io { what, error })
        });
        let number = put.inspect_err(|_| self.context.release_parcels(&parcels))?;
        // The folder goes before the message can be sent and leave the spool, from which the next process would know.
        self.folders.delete_from_disk(folder);
        self.forget_folder_note(folder);
        self.sender.send(number, parcels, false);
        // The folder is forgotten last, for callers that wait until the message is in its store.
        self.folders.forget_folder(folder);
        Ok(())
    }

    /// Waits at most `limit`, until the closed composing folders are on their way.
    pub fn wait_for_folders(&self, limit: Duration) {
        self.folders.wait_until_sent(Instant::now() + limit);
    }
}
