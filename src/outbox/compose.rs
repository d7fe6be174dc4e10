//! Messages from composing folders: closed, judged, and sent once the folder is quiet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folders::Composed;
use super::life::not_renamed;
use super::pack::nothing_in_it;
use super::{BODY, DraftId, Named, Open, Outbox, OutboxError, Target, Written};
use crate::model::locks::Mutex;
use crate::model::{Timestamp, one_line};
use crate::store::StoreError;

impl Outbox {
    /// Sends the composing folders that an earlier process had promised to send.
    pub fn resume(self: &Arc<Self>) {
        for name in self.folders.names() {
            self.await_quiet(&name);
        }
    }

    /// The composing folders.
    pub fn folders(&self) -> Vec<String> {
        self.folders.names()
    }

    /// When something in a composing folder last changed, if there is one of this name.
    pub fn folder_time(&self, folder: &str) -> Option<Timestamp> {
        self.folders.time(folder)
    }

    /// The files in a composing folder.
    pub fn folder_files(&self, folder: &str) -> Option<Vec<String>> {
        self.folders.files(folder)
    }

    /// Length and time of a file of a composing folder.
    pub fn folder_file(&self, folder: &str, file: &str) -> Option<(u64, Timestamp)> {
        self.folders.stat(folder, file)
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// As [`Outbox::check_name`]; [`OutboxError::Exists`].
    pub fn make_folder(&self, name: &str) -> Result<(), OutboxError> {
        self.check_name(name)?;
        self.folders.make(name)
    }

    /// Removes a composing folder without files; whether it had none.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove_folder(&self, name: &str) -> Result<bool, OutboxError> {
        let removed = self.folders.remove_empty(name)?;
        if removed {
            self.forget_note(name);
        }
        Ok(removed)
    }

    /// Gives a composing folder another name. A private one that gets a plain name is sent, if it has a
    /// text.
    ///
    /// # Errors
    /// As [`Outbox::check_name`]; the refusal, and then the folder is what it was, with its note.
    pub fn rename_folder(self: &Arc<Self>, from: &str, to: &str) -> Result<(), OutboxError> {
        self.check_name(to)?;
        if self.folders.time(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let refused = |e: &OutboxError| {
            let reason = not_renamed(to, e);
            self.note_folder(from, &reason);
            self.note_unlisted(to, &reason);
        };
        let has_body = self.folders.stat(from, BODY).is_some();
        if has_body && !self.is_private(to, &Target::Outbox) {
            self.judge((from, BODY), to, self.folders.body(from)).inspect_err(refused)?;
        }
        self.folders.rename(from, to)?;
        self.forget_note(from);
        if !has_body {
            return Ok(());
        }
        self.send_again(to).inspect_err(|e| {
            // What was good a moment ago is not any more.
            self.forget_note(to);
            if self.folders.rename(to, from).is_ok() {
                refused(e);
            }
        })
    }

    /// Opens a file of a composing folder, not its text.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; as the system gave it.
    pub fn open_composed(
        &self,
        folder: &str,
        file: &str,
        write: bool,
        how: (bool, bool),
    ) -> Result<Composed, OutboxError> {
        self.folders.open_file(folder, file, write, how)
    }

    /// Writes to such a file.
    ///
    /// # Errors
    /// Too large for every store; as the system gave it. The file is then not whole, and refuses the
    /// message.
    pub fn write_composed(&self, to: &Composed, at: u64, data: &[u8]) -> Result<(), OutboxError> {
        self.someone_carries(to, at.saturating_add(data.len() as u64))?;
        self.folders.write(to, at, data)
    }

    /// Cuts or extends such a file.
    ///
    /// # Errors
    /// As for writing.
    pub fn resize_composed(&self, file: &Composed, len: u64) -> Result<(), OutboxError> {
        self.someone_carries(file, len)?;
        let what = "the file cannot be written";
        file.set_len(len).map_err(|error| OutboxError::Io { what, error })
    }

    /// Whom the message goes to is not known before its text: a size is refused where none of the stores
    /// that carry files carries one so large.
    fn someone_carries(&self, file: &Composed, size: u64) -> Result<(), OutboxError> {
        let sized = [("the file".to_owned(), size)];
        let mut refused = None;
        for store in self.tools.index.stores() {
            let about = store.about();
            match about.carries.map(|_| about.carries(&sized)) {
                Some(Err(e @ StoreError::TooLarge(_))) => refused = Some(e),
                Some(_) => return Ok(()),
                None => {}
            }
        }
        let Some(why) = refused else { return Ok(()) };
        self.folders.cut(file, why.to_string());
        Err(why.into())
    }

    /// The program that wrote such a file was ended by a signal.
    pub fn cut_composed(&self, file: &Composed, signal: u32) {
        self.folders.cut(file, format!("the program that wrote it was ended by signal {signal}"));
    }

    /// The last descriptor of such a file was closed.
    pub fn close_composed(self: &Arc<Self>, file: &Composed) {
        if self.folders.close(file) {
            self.try_folder_again(file.folder());
        }
    }

    /// Removes a file of a composing folder. Without its text it is not sent.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; as the system gave it.
    pub fn remove_composed(self: &Arc<Self>, folder: &str, file: &str) -> Result<(), OutboxError> {
        self.folders.unlink(folder, file)?;
        self.try_folder_again(folder);
        Ok(())
    }

    /// A file of a composing folder gets another name; if that is that of the text, the folder is sent.
    ///
    /// # Errors
    /// The refusal, and then the folder is what it was; as the system gave it.
    pub fn rename_composed(
        self: &Arc<Self>,
        folder: &str,
        from: &str,
        to: &str,
    ) -> Result<(), OutboxError> {
        if to == BODY && from != BODY && !self.is_private(folder, &Target::Outbox) {
            let text = self.folders.text(folder, from);
            let refused = |e: &OutboxError| self.note_folder(folder, &e.to_string());
            self.judge((folder, from), folder, text).inspect_err(refused)?;
        }
        self.folders.rename_file(folder, from, to)?;
        if to == BODY {
            return self.send_again(folder);
        }
        self.try_folder_again(folder);
        Ok(())
    }

    /// A file of a folder with a private name becomes a draft in `outbox/`, and is sent under a plain name:
    /// `rsync --delay-updates` puts everything into one and moves it out at the end. Whether there is such
    /// a folder.
    ///
    /// # Errors
    /// As [`Outbox::rename`]; the file then stays where it is.
    pub fn rename_out(
        &self,
        folder: &str,
        file: &str,
        to: &str,
        replace: bool,
    ) -> Result<bool, OutboxError> {
        let target = Target::Outbox;
        if !self.is_private(folder, &target) {
            return Ok(false);
        }
        self.check_name(to)?;
        if self.folders.time(to).is_some() || !replace && self.find(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let (size, time) = self.folders.stat(folder, file).ok_or(OutboxError::NotFound)?;
        if size > self.max_message() {
            return Err(OutboxError::TooLarge(self.max_message()));
        }
        let text = self.folders.text(folder, file);
        let written = Written::at(time);
        let mut d = Open { touched: true, written, ..Open::new(to, target, text) };
        let is_sent = !self.is_private(to, &d.target);
        if is_sent {
            let empty = d.is_empty().then(nothing_in_it);
            let judged = empty.map_or_else(|| self.spool_draft(&mut d), Err);
            judged.inspect_err(|e| {
                self.note_refusal(to, &e.to_string(), Timestamp::now());
                self.note_unlisted(to, &e.to_string());
            })?;
        }
        let spooled = d.spooled.take();
        if let Err(e) = self.folders.unlink(folder, file) {
            // Somebody else was faster.
            self.forget(spooled);
            return Err(e);
        }
        if is_sent {
            self.done_with(&d);
            self.send(spooled);
        } else {
            self.keep(&d);
        }
        Ok(true)
    }

    /// Something in a folder that was refused changed: that may have been the reason.
    fn try_folder_again(self: &Arc<Self>, folder: &str) {
        if !self.is_private(folder, &Target::Outbox) && self.folders.was_refused(folder) {
            // The note beside it says what came of it.
            let _ = self.send_again(folder);
        }
    }

    /// Notes why a composing folder was refused.
    fn note_folder(&self, folder: &str, reason: &str) {
        let now = Timestamp::now();
        self.note_refusal(folder, reason, now);
        self.notes.lock().insert(folder.to_owned(), (reason.to_owned(), now));
        self.folders.set_error(folder, Some(reason));
    }

    /// Promises to send a folder whose text is there.
    fn send_again(self: &Arc<Self>, folder: &str) -> Result<(), OutboxError> {
        let id = self.compose(folder, self.folders.body(folder));
        let done = self.draft(id).and_then(|draft| {
            draft.lock().dirty = true;
            self.flush_body(id, true)
        });
        self.release_body(id);
        done
    }

    /// Starts the text of a composing folder.
    pub fn compose(&self, folder: &str, text: Vec<u8>) -> DraftId {
        self.folders.writing(folder, true);
        self.add(Open { composed: true, ..Open::new(folder, Target::Outbox, text) })
    }

    /// The text of a composing folder as it is kept.
    pub fn body(&self, folder: &str) -> Vec<u8> {
        self.folders.body(folder)
    }

    /// A descriptor of the text of a composing folder was closed: as [`Outbox::flush`]. It is sent later,
    /// when the folder is quiet; what can be refused now, is.
    ///
    /// # Errors
    /// The refusal, as there.
    pub fn flush_body(&self, id: DraftId, by_opener: bool) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let (name, text) = {
            let d = draft.lock();
            if let Some(said) = self.said_already(id, &d) {
                return said;
            }
            if !d.dirty {
                return Ok(());
            }
            (d.name.clone(), d.text.clone())
        };
        // The lock of the folders comes before that of a draft.
        let promised = self.promise(&name, text.clone());
        let mut d = draft.lock();
        if promised.is_ok() {
            d.dirty = d.text != text;
        }
        self.answer_close(id, &mut d, promised, by_opener)
    }

    /// Keeps the text of a folder and the promise that it will be sent with what is in it then.
    fn promise(&self, folder: &str, text: Vec<u8>) -> Result<(), OutboxError> {
        self.judge((folder, BODY), folder, text.clone())?;
        self.folders.keep_body(folder, &text, true)
    }

    /// Whether a folder could be sent under this name with this text, which lies in it as this file.
    fn judge(
        &self,
        (folder, file): (&str, &str),
        name: &str,
        text: Vec<u8>,
    ) -> Result<(), OutboxError> {
        let files = self.folders.attached((folder, file), false)?;
        let d = Open { files, composed: true, ..Open::new(name, Target::Outbox, text) };
        if d.is_empty() {
            return Err(nothing_in_it());
        }
        // Signed once more when it goes, with what has come until then.
        let parcels = self.prepare(&d, &[])?;
        self.tools.let_go(&parcels);
        Ok(())
    }

    /// The last descriptor of the text of a composing folder was closed.
    pub fn release_body(self: &Arc<Self>, id: DraftId) {
        let Some(Named { draft, .. }) = self.open.lock().remove(&id) else { return };
        let (name, text, changed, late) = {
            let d = draft.lock();
            let late = d.refused.is_none() && !d.unlinked && !self.is_private(&d.name, &d.target);
            // Where nothing was written there was no close that could have said so.
            let changed = d.dirty || d.text.is_empty();
            (d.name.clone(), d.text.clone(), changed, late && changed)
        };
        let promised = if late { self.promise(&name, text.clone()) } else { Ok(()) };
        let refused = {
            let mut d = draft.lock();
            if let Err(e) = promised {
                d.refuse(e);
            }
            d.refused.is_some()
        };
        if refused {
            self.refuse_folder(&draft, &text);
        } else if changed && !late {
            self.keep_text(&name, &text);
        } else {
            self.forget_note(&name);
        }
        self.folders.writing(&name, false);
        self.await_quiet(&name);
        self.sender.released(id);
    }

    /// Keeps the text of a folder without a promise.
    fn keep_text(&self, folder: &str, text: &[u8]) {
        if let Err(e) = self.folders.keep_body(folder, text, false) {
            tracing::warn!(folder = %one_line(folder), error = %e, "the text of this composing \
                folder could not be saved");
        }
    }

    /// Keeps a folder that was refused, with the reason.
    fn refuse_folder(&self, draft: &Mutex<Open>, text: &[u8]) {
        let (name, why, half) = {
            let d = draft.lock();
            self.keep(&d);
            let why = d.refused.as_ref();
            let half = why.is_some_and(|why| matches!(**why, OutboxError::CutOff(_)));
            (d.name.clone(), why.map(ToString::to_string), half)
        };
        self.keep_text(&name, text);
        if half {
            self.folders.text_is_half(&name);
        }
        self.folders.set_error(&name, why.as_deref());
    }

    /// Has a folder that is promised sent as soon as it is quiet.
    fn await_quiet(self: &Arc<Self>, folder: &str) {
        if !self.folders.begin_watch(folder) {
            return;
        }
        let (outbox, name) = (Arc::clone(self), folder.to_owned());
        let wait = move || {
            if outbox.folders.wait_quiet(&name) {
                outbox.send_folder(&name);
            }
        };
        if let Err(e) = std::thread::Builder::new().name("msgfs-quiet".into()).spawn(wait) {
            tracing::error!(error = %e, "a composing folder cannot be sent now; the next mount \
                sends it");
        }
    }

    /// Sends a folder on which nobody works any more.
    pub(super) fn send_folder(&self, folder: &str) {
        if let Err(e) = self.try_send_folder(folder) {
            let text = self.folders.body(folder);
            let mut d = Open { composed: true, ..Open::new(folder, Target::Outbox, text) };
            d.refuse(e);
            self.keep(&d);
            // Before the folder may be tried again: a later reason must not be replaced by this one.
            let why = d.refused.as_ref().map(ToString::to_string);
            self.folders.set_error(folder, why.as_deref());
            self.folders.stay(folder);
        }
    }

    fn try_send_folder(&self, folder: &str) -> Result<(), OutboxError> {
        let files = self.folders.attached((folder, BODY), true)?;
        let text = self.folders.body(folder);
        let d = Open { files, composed: true, ..Open::new(folder, Target::Outbox, text) };
        if d.is_empty() {
            return Err(nothing_in_it());
        }
        let parcels = self.prepare(&d, &[])?;
        if parcels.is_empty() {
            // A retry under an idempotency key.
            self.folders.clear(folder);
            self.forget_note(folder);
            self.folders.forget(folder);
            return Ok(());
        }
        let ids: Vec<&str> = parcels.iter().map(|p| p.message.id.as_str()).collect();
        let put = self.folders.sent_as(folder, &ids).and_then(|()| {
            let put = self.tools.spool.put(parcels.clone(), None);
            let what = "the message could not be put into the spool";
            put.map_err(|error| OutboxError::Io { what, error })
        });
        let number = put.inspect_err(|_| self.tools.let_go(&parcels))?;
        // Before it can be sent and leave the spool, from where the next process would know.
        self.folders.clear(folder);
        self.forget_note(folder);
        self.sender.send(number, parcels, false);
        // Only now, for those who wait until it is in its store.
        self.folders.forget(folder);
        Ok(())
    }

    /// Waits until the composing folders that are closed are on their way, at most `limit`.
    pub fn settle_folders(&self, limit: Duration) {
        self.folders.settle(Instant::now() + limit);
    }
}
