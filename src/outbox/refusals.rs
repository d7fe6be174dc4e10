//! The refusals of drafts: the drafts that they leave, and the last one.

use super::saved_drafts::{AskedNames, SavedDrafts};
use super::{DraftTarget, OpenDraft, Outbox, OutboxError, Refusal, SavedDraft, names, route};
use crate::model::{Timestamp, sanitize_line};

impl Outbox {
    /// Forgets saved drafts, notes and refusals of the name of a draft that is sent.
    pub(super) fn forget_earlier_drafts(&self, d: &OpenDraft) {
        let shown = self.saved_drafts.lock().forget_draft(&d.name, &d.target);
        self.folder_notes.lock().remove(&d.name);
        self.clear_last_refusal(shown.as_ref().unwrap_or(&d.name));
    }

    /// Saves a draft that is not sent, with the reason if it was refused. A draft that nobody needs is dropped.
    pub(super) fn save_draft(&self, d: &OpenDraft) {
        // An editor that has just made an empty private file removes it by itself.
        let is_kept = !d.text.is_empty() || names::is_private(&d.name);
        let is_dropped = d.refused.is_none() && d.target != DraftTarget::Outbox && !is_kept;
        let saved = self.with_asked_names(|saved_drafts, asked| {
            if is_dropped || !d.touched && saved_drafts.find_draft(&d.name, &d.target).is_some() {
                return Ok(None);
            }
            if d.composed {
                return Ok(Some(d.name.clone()));
            }
            let kept = SavedDraft {
                name: d.name.clone(),
                target: d.target.clone(),
                text: d.text.clone().into(),
                error: d.refused.as_ref().map(ToString::to_string),
                time: d.written.time(),
            };
            saved_drafts.save_draft(kept, asked).map(Some)
        });
        let (Some(shown), Some(refused)) = (saved, &d.refused) else { return };
        self.note_refusal(&shown, &refused.to_string(), d.written.time());
        if d.composed {
            // The folder keeps the text; only the note is ours.
            self.folder_notes
                .lock()
                .insert(d.name.clone(), (refused.to_string(), d.written.time()));
        }
    }

    /// Calls `act` on the saved drafts, again after each name about which it has to know more. The lock of the drafts
    /// is not held while the stores are asked: their disks may not answer, and listings take that lock.
    fn with_asked_names<T>(
        &self,
        mut act: impl FnMut(&mut SavedDrafts, &AskedNames) -> Result<T, String>,
    ) -> T {
        let mut asked = AskedNames::default();
        loop {
            let done = act(&mut self.saved_drafts.lock(), &asked);
            let name = match done {
                Ok(done) => return done,
                Err(name) => name,
            };
            let is_recipient = self.is_recipient_name(&name);
            asked.insert(name, is_recipient);
        }
    }

    /// Returns true if a draft of this name in `outbox/` goes to somebody who is known by it.
    fn is_recipient_name(&self, name: &str) -> bool {
        route::is_recipient_name(&self.context.index, name, &self.settings)
    }

    /// Returns the saved draft at this place of `outbox/`, for a text that replaces it. A refused reply may lie under
    /// the name of a recipient who became known later. A text may then be meant for the recipient, or as a correction
    /// of the reply. So the text is refused, and the reply is moved to another place.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if the reply was moved, so that the next text goes to the recipient, or if it could not
    /// be moved.
    pub(super) fn find_at_place(&self, place: &str) -> Result<Option<SavedDraft>, OutboxError> {
        let (kept, moved) = self.with_asked_names(|saved_drafts, asked| {
            let kept = saved_drafts.get(place).cloned();
            let is_reply = kept.as_ref().is_some_and(|k| k.target != DraftTarget::Outbox);
            if !is_reply || !asked.is_recipient(place)? {
                return Ok((kept, None));
            }
            let moved = saved_drafts.move_aside(place, asked)?;
            Ok((kept, Some(moved)))
        });
        let Some(moved) = moved else { return Ok(kept) };
        let why = describe_moved_answer(place, &moved);
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

/// Returns the refusal of a text for a recipient in whose place a reply lay. `moved` is the present place of the reply.
fn describe_moved_answer(place: &str, moved: &str) -> String {
    let (shown, now) = (sanitize_line(place), sanitize_line(moved));
    if moved == place {
        return format!(
            "{shown} is the name of a recipient, and a refused answer lies here, which cannot be moved: the state \
             folder takes no drafts at present; make room there, or remove outbox/{shown}, and write again"
        );
    }
    format!(
        "{shown} is the name of a recipient, and a refused answer lay here; the answer is now in outbox/{now}: \
         mend it there, or write to outbox/{shown} again to send to that recipient"
    )
}
