//! The life of an open draft: written, flushed, released, renamed, removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::{
    CLOSING, DraftId, EARLY_LIMIT, Kept, Open, Outbox, OutboxError, Refusal, Target, address,
    draft, names, not_an_address,
};
use crate::model::Timestamp;

impl Outbox {
    /// Whether a file of this name may be created in `outbox/`.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if the name is neither an address nor that of a private draft.
    pub fn check_name(&self, name: &str) -> Result<(), OutboxError> {
        if names::is_private(name) {
            return Ok(());
        }
        if names::is_error_note(name) {
            return Err(OutboxError::NotPermitted(
                "names that end in .error are notes about refused drafts".into(),
            ));
        }
        let stores = self.index.stores();
        let recipient = names::recipient(name);
        if stores.iter().all(|s| s.fits(recipient) == crate::store::Fit::No) {
            return Err(not_an_address(stores, recipient));
        }
        Ok(())
    }

    /// Starts a draft. One that is kept under this name lends its text unless `truncate`, and its
    /// target.
    ///
    /// # Errors
    /// As [`Outbox::check_name`].
    pub fn start(
        &self,
        name: &str,
        target: Target,
        truncate: bool,
    ) -> Result<DraftId, OutboxError> {
        let kept = self.shelf.lock().get(name).cloned();
        if kept.is_none() && target == Target::Outbox {
            self.check_name(name).inspect_err(|e| {
                self.note_refusal(name, &e.to_string(), Timestamp::now());
            })?;
        }
        let (target, text, touched) = match kept {
            Some(kept) => {
                let cut = truncate && !kept.text.is_empty();
                (kept.target, if truncate { Vec::new() } else { kept.text.to_vec() }, cut)
            }
            None => (target, Vec::new(), false),
        };
        Ok(self.add(Open { touched, ..Open::new(name, target, text) }))
    }

    pub(super) fn draft(&self, id: DraftId) -> Result<Arc<Mutex<Open>>, OutboxError> {
        self.open.lock().get(&id).cloned().ok_or(OutboxError::NotFound)
    }

    /// Starts the text of a composing folder.
    pub fn compose(&self, folder: &str, text: Vec<u8>) -> DraftId {
        let target = Target::Outbox;
        self.add(Open { composed: true, ..Open::new(folder, target, text) })
    }

    /// Sets the files that go along with an open draft.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`]; if the files cannot be kept.
    pub fn attach(&self, id: DraftId, files: Vec<(String, Vec<u8>)>) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        d.attach = self.lay_out(&d.name, &files)?;
        Ok(())
    }

    fn add(&self, draft: Open) -> DraftId {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(id, Arc::new(Mutex::new(draft)));
        id
    }

    /// Writes at `offset`, or at the end if `None` (`O_APPEND`).
    ///
    /// # Errors
    /// What is already certain to be refused; the draft is then kept with its note.
    pub fn write(&self, id: DraftId, offset: Option<u64>, data: &[u8]) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if let Some(refused) = &d.refused {
            // What follows a refused part would stand alone, and be judged as something else.
            return Err(OutboxError::Already(Arc::clone(refused)));
        }
        let at = offset.unwrap_or(d.text.len() as u64);
        let end = at.saturating_add(data.len() as u64);
        d.touched = true;
        d.time = Timestamp::now();
        if end > self.settings.max_message {
            return Err(d.refuse(OutboxError::TooLarge(self.settings.max_message)));
        }
        let (at, end) = (at as usize, end as usize);
        if d.text.len() < end {
            d.text.resize(end, 0);
        }
        if let Some(slot) = d.text.get_mut(at..end) {
            slot.copy_from_slice(data);
        }
        d.dirty = true;
        if names::is_private(&d.name) || d.text.len() > EARLY_LIMIT {
            return Ok(());
        }
        self.judge_early(&d).map_err(|e| d.refuse(e))
    }

    /// What can be said of a draft that may not be complete.
    pub(super) fn judge_early(&self, d: &Open) -> Result<(), OutboxError> {
        let Some(mut draft) = draft::parse_partial(&d.text)? else { return Ok(()) };
        address::complete(&self.index, &mut draft, &d.name, &d.target)?;
        self.signer.as_ref().map_err(|e| OutboxError::NoKey(e.clone()))?;
        self.routes(&draft).map(drop)
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
            d.refused = None;
        }
        Ok(())
    }

    /// A descriptor was closed. When this returns `Ok` for a draft with text, the message survives
    /// whatever happens to this process.
    ///
    /// # Errors
    /// The refusal.
    pub fn flush(&self, id: DraftId) -> Result<(), OutboxError> {
        let draft = self.draft(id)?;
        let mut d = draft.lock();
        if names::is_private(&d.name) || d.unlinked {
            return Ok(());
        }
        if let Some(refused) = &d.refused {
            return Err(OutboxError::Already(Arc::clone(refused)));
        }
        if !d.dirty {
            return Ok(());
        }
        self.spool_draft(&mut d).map_err(|e| d.refuse(e))?;
        d.dirty = false;
        self.sender.closing(id, Instant::now() + CLOSING);
        Ok(())
    }

    /// The last descriptor was closed: a spooled draft is sent, any other is kept. Whether it was sent.
    pub fn release(&self, id: DraftId) -> bool {
        let Some(draft) = self.open.lock().remove(&id) else { return false };
        let mut d = draft.lock();
        if d.dirty && !d.unlinked && !names::is_private(&d.name) && d.refused.is_none() {
            // No flush came: the process was killed with a full buffer.
            if let Err(e) = self.spool_draft(&mut d) {
                d.refuse(e);
            }
        }
        let sent = match d.spooled.take() {
            Some((n, parcels)) if d.unlinked || d.refused.is_some() => {
                self.forget(n, &parcels);
                false
            }
            Some((n, parcels)) => {
                self.shelf.lock().remove(&d.name);
                self.notes.lock().remove(&d.name);
                if n != 0 {
                    self.commit(n, parcels);
                }
                true
            }
            None => false,
        };
        if d.composed {
            let _ = std::fs::remove_dir_all(self.composed(&d.name));
        }
        if !sent && !d.unlinked {
            self.keep(&d);
        }
        self.sender.released(id);
        sent
    }

    pub(super) fn keep(&self, d: &Open) {
        let mut shelf = self.shelf.lock();
        if !d.touched && shelf.get(&d.name).is_some() {
            return;
        }
        if d.refused.is_none() && d.target != Target::Outbox && d.text.is_empty() {
            return;
        }
        if let Some(refused) = &d.refused {
            self.note_refusal(&d.name, &refused.to_string(), d.time);
            if d.composed {
                // The folder keeps the text; only the note is ours.
                self.notes.lock().insert(d.name.clone(), (refused.to_string(), d.time));
            }
        }
        if d.composed {
            return;
        }
        shelf.put(
            &d.name,
            Kept {
                target: d.target.clone(),
                text: d.text.clone().into(),
                error: d.refused.as_ref().map(ToString::to_string),
                time: d.time,
            },
        );
    }

    pub(super) fn note_refusal(&self, name: &str, reason: &str, time: Timestamp) {
        let (shown, why) = (crate::model::one_line(name), crate::model::one_line(reason));
        tracing::warn!(name = %shown, reason = %why, "draft refused");
        *self.last_refusal.lock() =
            Some(Refusal { name: name.to_owned(), reason: reason.to_owned(), time });
    }

    /// Renames a draft. A private one that gets a plain name is sent.
    ///
    /// # Errors
    /// The refusal; the draft then stays under its old name and the note stands beside the new one.
    pub fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), OutboxError> {
        let kept = self.shelf.lock().get(from).cloned();
        if kept.as_ref().is_none_or(|k| k.target == Target::Outbox) {
            self.check_name(to)?;
        }
        if !replace && self.find(to).is_some() {
            return Err(OutboxError::Exists);
        }
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        let renamed =
            open.iter().filter(|d| d.lock().name == from).map(|d| d.lock().name = to.into());
        if renamed.count() > 0 {
            return Ok(());
        }
        let kept = kept.ok_or(OutboxError::NotFound)?;
        let mut d = Open {
            dirty: true,
            touched: true,
            time: kept.time,
            ..Open::new(to, kept.target.clone(), kept.text.to_vec())
        };
        if names::is_private(to) || d.text.is_empty() {
            let mut shelf = self.shelf.lock();
            shelf.remove(from);
            shelf.put(to, Kept { error: None, ..kept });
            return Ok(());
        }
        match self.spool_draft(&mut d) {
            Ok(()) => {
                let mut shelf = self.shelf.lock();
                shelf.remove(from);
                shelf.remove(to);
                drop(shelf);
                if let Some((n, parcels)) = d.spooled.take().filter(|(n, _)| *n != 0) {
                    self.commit(n, parcels);
                }
                Ok(())
            }
            Err(e) => {
                // Both: who renamed still has the old name, who looks for the new one finds why.
                let e = d.refuse(e);
                self.keep(&d);
                self.shelf.lock().remove(from);
                Err(e)
            }
        }
    }

    /// Removes a draft, or the note beside one.
    ///
    /// # Errors
    /// [`OutboxError::NotFound`].
    pub fn remove(&self, name: &str) -> Result<(), OutboxError> {
        if let Some(draft) = name.strip_suffix(".error") {
            if self.notes.lock().remove(draft).is_some() {
                return Ok(());
            }
            let mut shelf = self.shelf.lock();
            let Some(kept) = shelf.get(draft).filter(|k| k.error.is_some()).cloned() else {
                return Err(OutboxError::NotFound);
            };
            shelf.put(draft, Kept { error: None, ..kept });
            return Ok(());
        }
        let mut found = self.shelf.lock().remove(name).is_some();
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        for d in open {
            let mut d = d.lock();
            if d.name == name {
                d.unlinked = true;
                found = true;
            }
        }
        if found { Ok(()) } else { Err(OutboxError::NotFound) }
    }

    /// Ends an open draft without sending it: it is kept as it is.
    pub fn set_aside(&self, id: DraftId) {
        if let Some(draft) = self.open.lock().remove(&id) {
            self.keep(&draft.lock());
        }
    }
}
