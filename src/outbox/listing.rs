//! The contents of `outbox/`: its entries and their texts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::saved_drafts::{SavedDrafts, unlisted_place};
use super::{DraftId, DraftTarget, OpenDraft, Outbox, OutboxEntry, SavedDraft, render_note};
use crate::model::Timestamp;

impl OutboxEntry {
    fn from_open(draft: &OpenDraft) -> Self {
        Self::from_text(&draft.name, &draft.text, draft.written.time())
    }

    fn from_text(name: &str, text: &[u8], time: Timestamp) -> Self {
        Self { name: name.to_owned(), len: text.len() as u64, time, is_note: false }
    }

    fn from_note(draft: &str, reason: &str, time: Timestamp) -> Self {
        let name = format!("{draft}.error");
        Self { name, len: render_note(reason).len() as u64, time, is_note: true }
    }
}

impl Outbox {
    /// Calls `look` on the open drafts, of this name or all, the oldest first, and returns its results. The table's
    /// lock is not held meanwhile: a draft is locked while its flush waits for the disk, and a caller that needs one
    /// draft must not wait for others. A draft is saved before it leaves the table, so a caller that looks here first
    /// misses none.
    pub(super) fn visit_open<T>(
        &self,
        name: Option<&str>,
        mut look: impl FnMut(DraftId, &mut OpenDraft) -> Option<T>,
    ) -> impl DoubleEndedIterator<Item = T> {
        let table = self.open_drafts.lock();
        let named = table.iter().filter(|(_, open)| name.is_none_or(|name| name == open.name));
        let open: Vec<_> = named.map(|(id, open)| (*id, Arc::clone(&open.draft))).collect();
        drop(table);
        open.into_iter().filter_map(move |(id, draft)| {
            let mut d = draft.lock();
            if d.finished { None } else { look(id, &mut d) }
        })
    }

    /// Returns all entries of `outbox/`, by name.
    pub fn list_entries(&self) -> Vec<OutboxEntry> {
        let open = self.visit_open(None, |_, d| d.is_listed().then(|| OutboxEntry::from_open(d)));
        let open: Vec<OutboxEntry> = open.collect();
        let mut out: Vec<OutboxEntry> = Vec::new();
        for (name, kept) in self.saved_drafts.lock().iter().filter(|(_, k)| k.is_shown()) {
            out.push(OutboxEntry::from_text(name, &kept.text, kept.time));
            out.extend(
                kept.note_text(name).map(|error| OutboxEntry::from_note(name, &error, kept.time)),
            );
        }
        for (name, (error, time)) in self.folder_notes.lock().iter() {
            out.push(OutboxEntry::from_note(name, error, *time));
        }
        out.extend(open);
        // The last entry of a name counts.
        let by_name: BTreeMap<String, OutboxEntry> =
            out.into_iter().map(|file| (file.name.clone(), file)).collect();
        by_name.into_values().collect()
    }

    /// Returns the time of the newest entry of `outbox/`, without waiting for drafts that wait for the disk.
    pub fn newest_time(&self) -> Option<Timestamp> {
        let open = self.open_drafts.lock();
        let listed = open.values().filter(|open| open.listed).map(|open| open.written.time());
        let newest = listed.max();
        drop(open);
        let saved_drafts = self.saved_drafts.lock();
        let kept =
            saved_drafts.iter().filter(|(_, kept)| kept.is_shown()).map(|(_, kept)| kept.time);
        let newest = newest.max(kept.max());
        drop(saved_drafts);
        let notes = self.folder_notes.lock().values().map(|(_, time)| *time).max();
        newest.max(notes).max(self.folders.newest_time())
    }

    /// Returns one entry of `outbox/`.
    pub fn find_entry(&self, name: &str) -> Option<OutboxEntry> {
        if let Some(open) = self.find_open_draft(name, &DraftTarget::Outbox) {
            return Some(open);
        }
        let saved_drafts = self.saved_drafts.lock();
        if let Some(kept) = saved_drafts.get(name).filter(|k| k.is_shown()) {
            return Some(OutboxEntry::from_text(name, &kept.text, kept.time));
        }
        let draft = name.strip_suffix(".error")?;
        let (reason, time) = self.refusal_reason(&saved_drafts, draft)?;
        Some(OutboxEntry::from_note(draft, &reason, time))
    }

    /// Returns why a draft or a composing folder was refused, and the time.
    fn refusal_reason(
        &self,
        saved_drafts: &SavedDrafts,
        draft: &str,
    ) -> Option<(String, Timestamp)> {
        let of_folder = self.folder_notes.lock().get(draft).cloned();
        let of_draft = || saved_drafts.get(draft).and_then(|k| Some((k.note_text(draft)?, k.time)));
        of_folder.or_else(of_draft).or_else(|| self.unlisted_notes.find(saved_drafts, draft))
    }

    /// Returns true if the only thing of this name is a draft whose last close has just returned. Others see such a
    /// draft as sent, although its release is still on the way. A caller that asks at once, as a writer of many
    /// messages does, does not wait. A later one waits until it is clear if that was the last close.
    pub fn is_leaving(&self, name: &str) -> bool {
        let named = self
            .visit_open(Some(name), |id, d| d.is_named(name, &DraftTarget::Outbox).then_some(id));
        let named: Vec<DraftId> = named.collect();
        !named.is_empty() && named.iter().all(|id| self.sender.is_leaving(*id))
    }

    /// Returns a draft by name and target: an open one, or a saved private one.
    pub fn find_draft(&self, name: &str, target: &DraftTarget) -> Option<OutboxEntry> {
        self.find_open_draft(name, target).or_else(|| {
            let saved_drafts = self.saved_drafts.lock();
            let beside = |k: &&SavedDraft| k.error.is_none() || !k.is_shown();
            let kept = saved_drafts.find_draft(name, target).filter(beside)?;
            Some(OutboxEntry::from_text(name, &kept.text, kept.time))
        })
    }

    /// Returns the name in `outbox/` of the note about the draft written under this name for this target.
    pub fn note_name(&self, name: &str, target: &DraftTarget) -> Option<String> {
        let saved_drafts = self.saved_drafts.lock();
        let place = saved_drafts
            .resolve_place(name, target)
            .unwrap_or_else(|| unlisted_place(name, target));
        self.refusal_reason(&saved_drafts, &place).map(|_| format!("{place}.error"))
    }

    /// Returns an open draft by name and target.
    pub fn find_open_draft(&self, name: &str, target: &DraftTarget) -> Option<OutboxEntry> {
        let mut found = self.visit_open(Some(name), |_, d| {
            (d.is_named(name, target) && !d.unlinked && !d.composed)
                .then(|| OutboxEntry::from_open(d))
        });
        found.next()
    }

    /// Returns the largest text in bytes.
    pub fn max_message(&self) -> u64 {
        self.settings.max_message
    }

    /// Returns the text of a draft by name and target: of the newest open one, else of a saved one; in `outbox/` also
    /// of the note beside it.
    pub fn read_text(&self, name: &str, target: &DraftTarget) -> Option<Arc<[u8]>> {
        let open =
            |d: &OpenDraft| (d.is_named(name, target) && !d.composed).then(|| d.text.clone());
        if let Some(text) = self.visit_open(Some(name), |_, d| open(d)).next_back() {
            return Some(text.into());
        }
        let saved_drafts = self.saved_drafts.lock();
        if *target != DraftTarget::Outbox {
            return saved_drafts.find_draft(name, target).map(|k| Arc::clone(&k.text));
        }
        if let Some(kept) = saved_drafts.get(name) {
            return Some(Arc::clone(&kept.text));
        }
        let (reason, _) = self.refusal_reason(&saved_drafts, name.strip_suffix(".error")?)?;
        Some(render_note(&reason).into_bytes().into())
    }

    /// Returns the text of an open draft.
    pub fn open_text(&self, id: DraftId) -> Option<Vec<u8>> {
        self.draft(id).ok().map(|d| d.lock().text.clone())
    }

    /// Returns the length of an open draft.
    pub fn open_len(&self, id: DraftId) -> Option<u64> {
        self.draft(id).ok().map(|d| d.lock().text.len() as u64)
    }
}
