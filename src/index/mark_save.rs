//! The way of marks into the file of marks. Marks that could not be written stay pending and are tried again.

use std::sync::atomic::Ordering;

use super::mark_log::{MarkFile, MarkValue};
use super::marks::MailLabel;
use super::position::MsgIx;
use super::{Index, IndexChanges};
use crate::store::StoreError;

impl Index {
    /// Sets the label of a message, and its mark if `read` is given, in one step. It is as durable as
    /// [`Index::mark_message`].
    ///
    /// # Errors
    /// As for [`Index::mark_message`].
    pub fn set_label(
        &self,
        ix: MsgIx,
        label: MailLabel,
        read: Option<bool>,
    ) -> Result<(), StoreError> {
        if self.settings.read_only {
            return Ok(());
        }
        let claimed = read == Some(true) && self.claim_read(ix)?;
        let key = self.message_key(ix);
        let mut marks = self.marks.lock();
        let labelled = {
            let mut tables = self.tables.write();
            let identity = tables.messages.entry(ix).identity();
            if let Some(read) = read {
                tables.set_own_mark(ix, read, false);
            }
            tables.marks.set_label(identity, label.clone())
        };
        // In this order, because marking it unread clears a part of the label.
        if let Some(read) = read {
            marks.push(&(key.clone(), MarkValue::Read(read)));
        }
        if labelled {
            marks.push(&(key, MarkValue::Label(label)));
        }
        let saved = self.save_marks(&mut marks);
        drop(marks);
        // This also syncs the file.
        self.has_unwritten_marks.store(true, Ordering::Relaxed);
        self.publish_changes(&IndexChanges { marked: vec![ix], ..IndexChanges::default() });
        if claimed {
            self.rescan_store_of(ix);
        }
        saved
    }

    /// Writes the pending marks. After this they survive the end of the process.
    ///
    /// # Errors
    /// If the file of marks cannot be written, which is logged, too. The marks then count in this process, and are
    /// tried again.
    pub(super) fn save_marks(&self, marks: &mut MarkFile) -> Result<(), StoreError> {
        let saved = marks.write();
        saved.map_err(|error| {
            tracing::error!(%error, "marks could not be written; they are kept in memory");
            StoreError::io(&self.settings.marks, error)
        })
    }

    /// Syncs the file of marks. No thread that marks messages waits for it. Returns false if that failed.
    pub(super) fn sync_marks(&self) -> bool {
        let sync = {
            let mut marks = self.marks.lock();
            marks.write().map(|()| marks.prepare_sync())
        };
        let synced = sync.and_then(|sync| sync());
        if let Err(e) = &synced {
            tracing::error!(path = %self.settings.marks.display(), error = %e, "marks were not saved");
        }
        synced.is_ok()
    }

    /// Returns a sentence about marks that could not be saved, as long as they are pending.
    pub fn unsaved_marks_fault(&self) -> Option<String> {
        let marks = self.marks.lock();
        let why = marks.fault()?;
        let path = self.settings.marks.display();
        Some(format!(
            "what you have marked or read is not saved, and msgfs tries again: {path}: {why}"
        ))
    }
}

#[cfg(test)]
mod tests;
