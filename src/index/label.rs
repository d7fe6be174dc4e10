//! Labels that mail programs keep with a message, and whether I answered it (docs/SEMANTICS.md, S551 to S558).
//!
//! Labels are in the file of marks, so that a mark and its label are one write.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::entry::{IndexEntry, MsgIx};
use super::intern::stable_hash;
use super::marks::MarkValue;
use super::tables::IndexTables;
use super::{Index, IndexChanges, write_pending_marks};
use crate::model::plain_id;
use crate::store::{FoundMessage, StoreError};

/// The flag of a message in the trash, which can still be restored.
pub const TRASHED: char = 'T';

/// The label that mail programs keep with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailLabel {
    /// Its flags as a program spelled them, including flags that other programs do not know; `None` if it
    /// spelled none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// True if a program has seen it and nobody has read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub old: bool,
    /// True if it was removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// True if a program cleared the flag for answered messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
}

impl MailLabel {
    /// Returns true if mail programs do not list the message any more.
    pub fn is_hidden(&self) -> bool {
        self.removed || self.flags.as_ref().is_some_and(|flags| flags.contains(TRASHED))
    }

    /// Resets the label of a message that is unread again. Mail programs then see it as new.
    fn reset_for_unread(&mut self) {
        (self.old, self.removed) = (false, false);
        if let Some(flags) = &mut self.flags {
            flags.retain(|flag| flag != TRASHED);
        }
        self.flags.take_if(|flags| flags.is_empty());
    }
}

impl IndexTables {
    /// Returns the label of a message.
    pub fn label(&self, entry: &IndexEntry) -> Option<&MailLabel> {
        self.labels.get(&entry.identity())
    }

    /// Returns true if a message of mine answers this one, as far as the format has reply links.
    pub fn is_answered(&self, entry: &IndexEntry) -> bool {
        !self.answered.is_empty()
            && self.answered.contains(&self.answer_hash(entry.store(), &self.id(entry)))
    }

    fn answer_hash(&self, store: usize, id: &str) -> u64 {
        let store = self.stores.get(store).map_or("", |s| s.name.as_str());
        stable_hash(6, &[store, plain_id(id)])
    }

    /// Records the id that a message of mine answers.
    pub(super) fn note_answer(&mut self, store: usize, found: &FoundMessage<'_>) {
        if let Some(id) = found.in_reply_to.as_deref().filter(|_| found.from_me) {
            self.answered.insert(self.answer_hash(store, id));
        }
    }

    /// Sets a label by its message's identity. Returns true if that changed anything.
    pub(super) fn set_label(&mut self, identity: u64, label: MailLabel) -> bool {
        let before = if label == MailLabel::default() {
            self.labels.remove(&identity)
        } else {
            self.labels.insert(identity, label.clone())
        };
        let changed = before.unwrap_or_default() != label;
        if changed {
            self.generation += 1;
            self.mark_changes += 1;
        }
        changed
    }

    /// Resets the label of a message that is unread again, so that mail programs list it. Returns true if that
    /// changed anything.
    pub(super) fn reset_label(&mut self, identity: u64) -> bool {
        let Some(mut label) = self.labels.get(&identity).cloned() else { return false };
        label.reset_for_unread();
        self.set_label(identity, label)
    }
}

impl Index {
    /// Sets the label of a message, and its mark if `read` is given, in one step. It is as durable as
    /// [`Index::mark_message`].
    ///
    /// # Errors
    /// The same as [`Index::mark_message`].
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
        let Some(key) = self.message_key(ix) else { return Ok(()) };
        let mut marks = self.marks.lock();
        let labelled = {
            let mut core = self.core.write();
            let Some(identity) = core.entry(ix).map(IndexEntry::identity) else { return Ok(()) };
            if let Some(read) = read {
                core.set_own_mark(ix, read, false);
            }
            core.set_label(identity, label.clone())
        };
        // In this order, because marking it unread clears a part of the label.
        if let Some(read) = read {
            marks.push(&(key.clone(), MarkValue::Read(read)));
        }
        if labelled {
            marks.push(&(key, MarkValue::Label(label)));
        }
        write_pending_marks(&mut marks);
        drop(marks);
        // This also syncs the file.
        self.has_untold_marks.store(true, Ordering::Relaxed);
        self.publish_changes(&IndexChanges { marked: vec![ix], ..IndexChanges::default() });
        if claimed {
            self.rescan_store_of(ix);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unread_again_is_there_again() {
        let mut label = MailLabel {
            flags: Some("FTa".into()),
            old: true,
            removed: true,
            ..MailLabel::default()
        };
        assert!(label.is_hidden());
        label.reset_for_unread();
        assert_eq!(label, MailLabel { flags: Some("Fa".into()), ..MailLabel::default() });
        assert!(!label.is_hidden());
        let said = serde_json::to_string(&label).unwrap();
        assert_eq!(said, r#"{"flags":"Fa"}"#);
        assert_eq!(serde_json::from_str::<MailLabel>("{}").unwrap(), MailLabel::default());
    }
}
