//! The life of an open draft: written, flushed, released, renamed, removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::model::locks::{LockLevel, Mutex};

use super::saved_drafts::{AskedNames, unlisted_place};
use super::{
    CLOSING, DraftId, DraftTarget, EARLY_LIMIT, OpenDraft, OpenDraftEntry, Outbox, OutboxError,
    REFUSING, SavedDraft, WriteTime, address, invalid_address_error, names,
    pack::empty_draft_error, route, whole_message,
};
use crate::model::{Remedy, Timestamp, write_at};

impl Outbox {
    /// Checks that a file of this name may be created in `outbox/`. A plain name may, even if no store has such
    /// addresses: its headers may give the recipient. If they do not, the draft is saved with its note.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if the name is neither an address nor that of a private draft, and
    /// [`OutboxError::NotPermitted`] if it ends in `.error`.
    pub fn check_name(&self, name: &str) -> Result<(), OutboxError> {
        if self.is_private(name, &DraftTarget::Outbox) {
            return Ok(());
        }
        if name.strip_suffix(".error").is_some() {
            return Err(OutboxError::NotPermitted(
                "a name that ends in .error is the note about a refused draft; choose another name"
                    .into(),
            ));
        }
        let index = &self.context.index;
        let (stores, recipient) = (index.stores(), names::recipient_in_name(name));
        if names::is_reply_name(recipient)
            && !route::is_known_recipient(index, recipient, &self.settings)
        {
            return Err(OutboxError::Invalid(format!(
                "{0} is the name of a reply, and outbox/{0} would go to nobody: write it beside the message, as \
                 inbox/{0} or archive/DAY/{0}",
                crate::model::sanitize_line(recipient)
            )));
        }
        if route::is_well_formed(stores, recipient) {
            return Ok(());
        }
        Err(invalid_address_error(stores, recipient))
    }

    /// Returns true if a file of this name is a private draft. A name that only programs make up is not private if it
    /// is somebody's address.
    pub(super) fn is_private(&self, name: &str, target: &DraftTarget) -> bool {
        let index = &self.context.index;
        let is_recipient =
            || route::is_known_recipient(index, names::recipient_in_name(name), &self.settings);
        names::is_private(name)
            && !(*target == DraftTarget::Outbox && names::is_temporary(name) && is_recipient())
    }

    /// Starts a draft. It begins with the text of a saved draft of this name and target, unless `truncate` is set. A
    /// draft of a thread or a reply that was refused lies in `outbox/`, and can be written again there.
    ///
    /// # Errors
    /// The errors of [`Outbox::check_name`]. [`OutboxError::Invalid`] if a reply lay under the name of a recipient.
    pub fn start_draft(
        &self,
        name: &str,
        target: DraftTarget,
        truncate: bool,
    ) -> Result<DraftId, OutboxError> {
        let kept = self.saved_drafts.lock().find_draft(name, &target).cloned();
        let kept = match kept {
            None if target == DraftTarget::Outbox => self.find_at_place(name)?,
            kept => kept,
        };
        if kept.is_none() && target == DraftTarget::Outbox {
            self.check_name(name).inspect_err(|e| {
                self.note_refusal(name, &e.to_string(), Timestamp::now());
            })?;
        }
        let Some(kept) = kept else {
            return Ok(self.insert_open(OpenDraft::new(name, target, Vec::new())));
        };
        let text = if truncate { Vec::new() } else { kept.text.to_vec() };
        let touched = truncate && !kept.text.is_empty();
        // A draft at a numbered place keeps the name under which it was written.
        Ok(self.insert_open(OpenDraft { touched, ..OpenDraft::new(&kept.name, kept.target, text) }))
    }

    /// Returns an open draft by its number.
    pub(super) fn draft(&self, id: DraftId) -> Result<Arc<Mutex<OpenDraft>>, OutboxError> {
        let open = self.open_drafts.lock();
        open.get(&id).map(|open| Arc::clone(&open.draft)).ok_or(OutboxError::NotFound)
    }

    /// Adds an open draft. Returns its number.
    pub(super) fn insert_open(&self, draft: OpenDraft) -> DraftId {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.unlisted_notes.remove(&draft.name);
        let (name, listed) = (draft.name.clone(), draft.is_listed());
        let written = draft.written.clone();
        let draft = Arc::new(Mutex::with_level(LockLevel::Draft, draft));
        self.open_drafts.lock().insert(id, OpenDraftEntry { name, listed, written, draft });
        id
    }

    /// Updates the entry of a draft in the table of open drafts.
    fn update_open_entry(&self, id: DraftId, d: &OpenDraft) {
        if let Some(open) = self.open_drafts.lock().get_mut(&id) {
            d.name.clone_into(&mut open.name);
            open.listed = d.is_listed();
        }
    }

    /// Writes at `offset`, or at the end if `None` (`O_APPEND`).
    ///
    /// # Errors
    /// A refusal that is already certain. The draft is then kept with its note, and so is the text written after it.
    pub fn write(&self, id: DraftId, offset: Option<u64>, data: &[u8]) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if d.refused_at_close {
            d.clear_refusal();
        }
        // A failed write moves no file offset. Text after a refusal therefore goes to the end, or it would overwrite
        // the refused text.
        let at = offset.filter(|_| d.refused.is_none());
        d.touched = true;
        d.written.touch();
        let limit = self.settings.max_message;
        if !write_at(&mut d.text, at, data, limit) {
            return Err(d.record_refusal(OutboxError::TooLarge(limit)));
        }
        d.dirty = true;
        if let Some(refused) = &d.refused {
            return Err(OutboxError::Already(Arc::clone(refused)));
        }
        if self.is_private(&d.name, &d.target) || d.text.len() > EARLY_LIMIT {
            return Ok(());
        }
        self.check_partial(&d).map_err(|e| d.record_refusal(e))
    }

    /// Checks a draft that may not be complete.
    pub(super) fn check_partial(&self, d: &OpenDraft) -> Result<(), OutboxError> {
        let Some(mut draft) = self.packer.draft_parser().parse_partial(&d.text)? else {
            return Ok(());
        };
        if whole_message::may_become_whole(self.context.index.stores(), &draft, &d.target) {
            return Ok(());
        }
        address::complete_draft(&self.context.index, &mut draft, &d.name, &d.target)?;
        let routes = self.packer.route_draft(&draft)?;
        for store in routes.iter().filter_map(|r| self.context.index.stores().get(r.store)) {
            self.keys.key_for_store(store.as_ref())?;
            store.require_appender()?.check_header(&draft)?;
        }
        // The files of a retry may be gone by now, which the close knows.
        if draft.idempotency_key.is_some() {
            return Ok(());
        }
        self.packer.check_files(&draft, &routes)
    }

    /// Cuts or extends the text.
    ///
    /// # Errors
    /// [`OutboxError::TooLarge`].
    pub fn truncate(&self, id: DraftId, len: u64) -> Result<(), OutboxError> {
        if len > self.settings.max_message {
            return Err(OutboxError::TooLarge(self.settings.max_message));
        }
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if d.text.len() as u64 != len {
            d.text.resize(len as usize, 0);
            d.dirty = true;
            d.touched = true;
            d.clear_refusal();
        }
        Ok(())
    }

    /// Returns the result of a close that needs no new check: the draft is private, removed, or already refused.
    pub(super) fn known_close_result(
        &self,
        id: DraftId,
        d: &OpenDraft,
    ) -> Option<Result<(), OutboxError>> {
        if self.is_private(&d.name, &d.target) || d.unlinked {
            return Some(Ok(()));
        }
        let refused = d.refused.as_ref()?;
        self.sender.note_refused(id, Instant::now() + REFUSING);
        Some(Err(OutboxError::Already(Arc::clone(refused))))
    }

    /// Handles the close of a descriptor, by the process that opened the draft or by another that shares it. When this
    /// returns `Ok` to the opener of a draft with text, the message survives whatever happens to this process.
    ///
    /// # Errors
    /// The refusal. It stands, also at the last close, until more text comes. Other processes than the opener learn
    /// only of refusals that no further text can mend; the last close tries the others again.
    pub fn flush(&self, id: DraftId, by_opener: bool) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if let Some(said) = self.known_close_result(id, &d) {
            return said;
        }
        if !d.dirty {
            if by_opener && d.is_empty() {
                // If that was the last close, a reader who looks for the reason finds it.
                self.sender.note_refused(id, Instant::now() + CLOSING);
            } else if by_opener && d.spooled.is_some() {
                // If that was the last close, a listing waits for the message.
                self.sender.note_closing(id, Instant::now() + CLOSING);
            }
            return Ok(());
        }
        let judged = self.spool_draft(&mut d);
        if judged.is_ok() {
            d.dirty = false;
        }
        self.finish_close(id, &mut d, judged, by_opener)
    }

    /// Returns the result of a close whose text was just checked.
    pub(super) fn finish_close(
        &self,
        id: DraftId,
        d: &mut OpenDraft,
        judged: Result<(), OutboxError>,
        by_opener: bool,
    ) -> Result<(), OutboxError> {
        match judged {
            Ok(()) => {
                self.sender.note_closing(id, Instant::now() + CLOSING);
                Ok(())
            }
            Err(e) if by_opener || e.is_fault() => {
                self.sender.note_refused(id, Instant::now() + REFUSING);
                Err(d.record_close_refusal(e))
            }
            Err(_) => Ok(()),
        }
    }

    /// Refuses a draft because a signal ended a program that wrote it. It is not sent unless somebody writes on or
    /// renames it.
    pub fn refuse_interrupted(&self, id: DraftId, signal: u32) {
        let Ok(draft) = self.draft(id) else { return };
        let mut d = draft.lock();
        if !d.text.is_empty()
            && d.touched
            && d.refused.is_none()
            && !self.is_private(&d.name, &d.target)
        {
            // The spool entry ends now, and not at the last close: the next process must not send it either.
            self.unspool(&mut d);
            let why = interrupted_error(&d, signal);
            d.record_close_refusal(why);
        }
    }

    /// Handles the last close: sends a spooled draft and saves any other. Returns true if it was sent.
    pub fn release(&self, id: DraftId) -> bool {
        let Ok(draft) = self.draft(id) else { return false };
        let mut d = draft.lock();
        if !d.unlinked && !self.is_private(&d.name, &d.target) && d.refused.is_none() {
            // The last flush came from another process, which got no refusal, or there was no flush.
            let late = if d.dirty { self.spool_draft(&mut d).err() } else { None };
            // A close cannot be refused before anything was written: a shell's redirection begins with one.
            let late = late.or_else(|| d.is_empty().then(empty_draft_error));
            late.map(|why| d.record_refusal(why));
        }
        let spooled = d.spooled.take();
        let sent = spooled.is_some() && !d.unlinked && d.refused.is_none();
        if sent {
            self.forget_earlier_drafts(&d);
            self.send_spooled(spooled);
        } else {
            self.discard_spooled(spooled);
        }
        if !sent && !d.unlinked {
            self.save_draft(&d);
        }
        // The draft leaves the table last, so that a reader always finds it either here or there.
        d.finished = true;
        drop(d);
        self.open_drafts.lock().remove(&id);
        self.sender.note_released(id);
        sent
    }

    /// Renames a draft in `outbox/` or beside messages, and so changes its target. A private draft that gets a plain
    /// name is sent.
    ///
    /// # Errors
    /// The refusal. The draft then stays as it was, and its note says why it was not renamed.
    pub fn rename_draft(
        &self,
        (from, of): &(String, DraftTarget),
        (to, target): &(String, DraftTarget),
        replace: bool,
    ) -> Result<(), OutboxError> {
        if !replace && (self.find_draft(to, target).is_some() || self.find_entry(to).is_some()) {
            return Err(OutboxError::Exists);
        }
        // A draft of a thread or a reply that was refused lies in `outbox/`. The text in its place goes where it went.
        let kept = if *target == DraftTarget::Outbox { self.find_at_place(to)? } else { None };
        let replaced = kept.filter(|kept| kept.target != DraftTarget::Outbox);
        let (to, target) =
            replaced.as_ref().map_or((to, target), |kept| (&kept.name, &kept.target));
        if *target == DraftTarget::Outbox {
            self.check_name(to)?;
        }
        if self.rename_open((from, of), (to, target)) {
            return Ok(());
        }
        let kept = self
            .saved_drafts
            .lock()
            .resolve_draft(from, of)
            .cloned()
            .ok_or(OutboxError::NotFound)?;
        let written = WriteTime::from_time(kept.time);
        let mut d = OpenDraft { written, ..OpenDraft::new(to, target.clone(), kept.text.to_vec()) };
        let is_sent = !self.is_private(to, target);
        if is_sent {
            let empty = d.is_empty().then(empty_draft_error);
            let judged = empty.map_or_else(|| self.spool_draft(&mut d), Err);
            judged.inspect_err(|e| self.note_rename_refusal((from, of), (to, target), e))?;
        }
        let (moved, replaced) = {
            let mut saved_drafts = self.saved_drafts.lock();
            if saved_drafts
                .resolve_draft(from, of)
                .is_none_or(|now| !Arc::ptr_eq(&now.text, &kept.text))
            {
                // Another caller was faster.
                drop(saved_drafts);
                self.discard_spooled(d.spooled);
                return Err(OutboxError::NotFound);
            }
            let moved = saved_drafts.remove_draft(from, of).map(|(shown, _)| shown);
            let replaced = saved_drafts.forget_draft(to, target);
            if !is_sent {
                let kept =
                    SavedDraft { name: to.clone(), target: target.clone(), error: None, ..kept };
                // No store is asked about the name of a private draft.
                let _ = saved_drafts.save_draft(kept, &AskedNames::default());
            }
            (moved, replaced)
        };
        self.clear_last_refusal(moved.as_ref().unwrap_or(from));
        if is_sent {
            self.clear_last_refusal(replaced.as_ref().unwrap_or(to));
            self.send_spooled(d.spooled);
        }
        Ok(())
    }

    /// Notes why a draft was not renamed. For a while, the note can also be read beside the intended name.
    fn note_rename_refusal(
        &self,
        (from, of): (&str, &DraftTarget),
        (to, target): (&str, &DraftTarget),
        why: &OutboxError,
    ) {
        let reason = rename_refusal_text(to, why);
        self.note_refusal(from, &reason, Timestamp::now());
        self.unlisted_notes.add(&unlisted_place(to, target), &reason);
        let mut saved_drafts = self.saved_drafts.lock();
        let place = saved_drafts.resolve_place(from, of);
        if let Some((place, kept)) =
            place.and_then(|p| saved_drafts.get(&p).cloned().map(|k| (p, k)))
        {
            saved_drafts.save_at(&place, SavedDraft { error: Some(reason), ..kept });
        }
    }

    /// Renames drafts that are open. A draft that was spooled under the old name is spooled again under the new one, at
    /// the last close at the latest.
    fn rename_open(&self, from: (&str, &DraftTarget), to: (&str, &DraftTarget)) -> bool {
        let renamed = self.visit_open(Some(from.0), |id, d| {
            if !d.is_named(from.0, from.1) || d.unlinked || d.composed {
                return None;
            }
            to.0.clone_into(&mut d.name);
            to.1.clone_into(&mut d.target);
            self.update_open_entry(id, d);
            d.clear_refusal();
            self.unspool(d);
            Some(())
        });
        renamed.count() > 0
    }

    /// Removes a draft from `outbox/` or a thread's folder, or the note beside one. A private draft may have the name
    /// of a note; then it is removed.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove(&self, name: &str, target: &DraftTarget) -> Result<(), OutboxError> {
        let open = self.visit_open(Some(name), |id, d| {
            if !d.is_named(name, target) {
                return None;
            }
            d.unlinked = true;
            self.update_open_entry(id, d);
            // The spool entry ends now, and not at the last close: the next process must not send it.
            self.unspool(d);
            Some(())
        });
        let open = open.count();
        let kept = self.saved_drafts.lock().remove_draft(name, target);
        if let Some((shown, kept)) = &kept {
            self.clear_last_refusal(shown);
            if let Some(reason) = &kept.error {
                self.unlisted_notes.add(shown, reason);
            }
        }
        if kept.is_some() || open > 0 {
            return Ok(());
        }
        self.remove_note(name.strip_suffix(".error").ok_or(OutboxError::NotFound)?)
    }

    /// Removes the note beside a draft or a composing folder.
    fn remove_note(&self, draft: &str) -> Result<(), OutboxError> {
        if self.forget_folder_note(draft) || self.unlisted_notes.remove(draft) {
            return Ok(());
        }
        let mut saved_drafts = self.saved_drafts.lock();
        let kept = saved_drafts.get(draft).filter(|k| k.error.is_some()).cloned();
        let kept = kept.ok_or(OutboxError::NotFound)?;
        saved_drafts.save_at(draft, SavedDraft { error: None, ..kept });
        Ok(())
    }

    /// Forgets why a composing folder was refused. Returns true if there was a note.
    pub fn forget_folder_note(&self, folder: &str) -> bool {
        self.folders.set_error(folder, None);
        self.folder_notes.lock().remove(folder).is_some()
    }

    /// Ends an open draft without sending it, and saves it as it is.
    pub fn close_unsent(&self, id: DraftId) {
        let Ok(draft) = self.draft(id) else { return };
        let mut d = draft.lock();
        self.save_draft(&d);
        d.finished = true;
        drop(d);
        self.open_drafts.lock().remove(&id);
    }
}

/// Returns why a draft or a composing folder keeps its name.
pub(super) fn rename_refusal_text(to: &str, why: &OutboxError) -> String {
    format!("it was not renamed to {}: {why}", crate::model::sanitize_line(to))
}

/// Returns the refusal of a text whose program was ended by a signal. It says how to send the text.
fn interrupted_error(d: &OpenDraft, signal: u32) -> OutboxError {
    let name = &d.name;
    let how = match &d.target {
        // A rename sends the draft; the new name must lead to the same recipient.
        DraftTarget::Outbox if d.composed => Remedy::SendFolder(name.clone()).to_string(),
        DraftTarget::Outbox => match names::recipient_in_name(name) {
            bare if bare == name => Remedy::Rename(name.clone(), format!("{name}.txt")).to_string(),
            bare => Remedy::Rename(name.clone(), bare.to_owned()).to_string(),
        },
        DraftTarget::Reply { .. } | DraftTarget::ReplyAll { .. } => {
            Remedy::WriteAgain(name.clone()).to_string()
        }
        DraftTarget::Thread { .. } => {
            "copy the kept text to a new name in the thread's folder".to_owned()
        }
    };
    OutboxError::CutOff(format!(
        "the program that wrote this was ended by signal {signal}, so it may be half a message and was \
         not sent; write it again, or send what is here: {how}"
    ))
}
