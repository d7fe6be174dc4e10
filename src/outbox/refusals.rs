//! The refusals of drafts: the drafts that they leave, and the last one.

use super::{DraftTarget, OpenDraft, Outbox, OutboxError, Refusal, SavedDraft, names, route};
use crate::model::{Timestamp, sanitize_line};

impl Outbox {
    /// Forgets saved drafts, notes and refusals of the name of a draft that is sent.
    pub(super) fn forget_earlier_drafts(&self, d: &OpenDraft) {
        let shown = self.saved_drafts.lock().forget_draft(&d.name, &d.target);
        self.folder_notes.lock().remove(&d.name);
        self.clear_last_refusal(shown.as_ref().unwrap_or(&d.name));
    }

    pub(super) fn save_draft(&self, d: &OpenDraft) {
        let mut shelf = self.saved_drafts.lock();
        if !d.touched && shelf.find_draft(&d.name, &d.target).is_some() {
            return;
        }
        // An editor that has just made an empty private file removes it by itself.
        let is_kept = !d.text.is_empty() || names::is_private(&d.name);
        if d.refused.is_none() && d.target != DraftTarget::Outbox && !is_kept {
            return;
        }
        let shown = if d.composed {
            d.name.clone()
        } else {
            shelf.save_draft(
                SavedDraft {
                    name: d.name.clone(),
                    target: d.target.clone(),
                    text: d.text.clone().into(),
                    error: d.refused.as_ref().map(ToString::to_string),
                    time: d.written.time(),
                },
                |name| self.is_recipient_name(name),
            )
        };
        let Some(refused) = &d.refused else { return };
        self.note_refusal(&shown, &refused.to_string(), d.written.time());
        if d.composed {
            // The folder keeps the text; only the note is ours.
            self.folder_notes
                .lock()
                .insert(d.name.clone(), (refused.to_string(), d.written.time()));
        }
    }

    /// Returns true if a draft of this name in `outbox/` goes to somebody who is known by it.
    pub(super) fn is_recipient_name(&self, name: &str) -> bool {
        route::is_recipient_name(&self.context.index, name, &self.settings)
    }

    /// Returns the saved draft at this place of `outbox/`, for a text that replaces it. An answer may lie under the
    /// name of a recipient, who became known later. A text may then be for the recipient, or mend the answer. It is
    /// refused, and the answer goes to another place.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if the answer went to another place. The next text goes to the recipient.
    pub(super) fn find_at_place(&self, place: &str) -> Result<Option<SavedDraft>, OutboxError> {
        let mut shelf = self.saved_drafts.lock();
        let Some(kept) = shelf.get(place).cloned() else { return Ok(None) };
        if kept.target == DraftTarget::Outbox || !self.is_recipient_name(place) {
            return Ok(Some(kept));
        }
        let moved = shelf.move_aside(place, |name| self.is_recipient_name(name));
        drop(shelf);
        let (shown, moved) = (sanitize_line(place), sanitize_line(&moved));
        let why = format!(
            "{shown} is the name of a recipient, and a refused answer lay here; the answer is now in outbox/{moved}: \
             mend it there, or write to outbox/{shown} again to send to that recipient"
        );
        self.note_refusal(place, &why, Timestamp::now());
        self.unlisted_notes.add(place, &why);
        Err(OutboxError::Invalid(why))
    }

    /// Notes a refusal as the last one, and logs it.
    pub fn note_refusal(&self, name: &str, reason: &str, time: Timestamp) {
        let (shown, why) = (sanitize_line(name), sanitize_line(reason));
        tracing::warn!(name = %shown, reason = %why, "refused");
        *self.last_refusal.lock() =
            Some(Refusal { name: name.to_owned(), reason: reason.to_owned(), time });
    }

    /// Drops the last refusal if it is that of a draft of this name, which was sent or removed.
    pub fn clear_last_refusal(&self, name: &str) {
        self.unlisted_notes.remove(name);
        let newest = self.saved_drafts.lock().last_refusal();
        let mut last = self.last_refusal.lock();
        if last.as_ref().is_some_and(|refusal| refusal.name == name) {
            *last = newest;
        }
    }
}
