//! What mail programs keep with a message, and whether I answered it (docs/SEMANTICS.md, S551 to S558).
//!
//! It is kept in the file of marks, so that a mark and what was said with it are one write.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::entry::{Entry, MsgIx};
use super::intern::stable_hash;
use super::marks::Said;
use super::{Changes, Index, write_marks};
use crate::model::plain_id;
use crate::store::{Found, StoreError};

/// The flag of what was thrown away and can still be taken back.
pub const TRASHED: char = 'T';

/// What mail programs keep with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Its flags as a program spelled them, those it does not share with others too; `None` if it
    /// spelled none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// A program has seen it, and nobody has read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub old: bool,
    /// It was removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// A program took away the flag that says that it was answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
}

impl Label {
    /// Whether mail programs list the message no more.
    pub fn is_hidden(&self) -> bool {
        self.removed || self.flags.as_ref().is_some_and(|flags| flags.contains(TRASHED))
    }

    /// The message is unread again: it is new for mail programs, too.
    fn renew(&mut self) {
        (self.old, self.removed) = (false, false);
        if let Some(flags) = &mut self.flags {
            flags.retain(|flag| flag != TRASHED);
        }
        self.flags.take_if(|flags| flags.is_empty());
    }
}

impl Core {
    /// What mail programs keep with a message.
    pub fn label(&self, entry: &Entry) -> Option<&Label> {
        self.labels.get(&entry.identity())
    }

    /// Whether a message of mine answers this one, as far as the format says what answers what.
    pub fn is_answered(&self, entry: &Entry) -> bool {
        !self.answered.is_empty()
            && self.answered.contains(&self.answer_print(entry.store(), &self.id(entry)))
    }

    fn answer_print(&self, store: usize, id: &str) -> u64 {
        let store = self.stores.get(store).map_or("", |s| s.name.as_str());
        stable_hash(6, &[store, plain_id(id)])
    }

    /// Notes what a message answers, if it is mine.
    pub(super) fn note_answer(&mut self, store: usize, found: &Found<'_>) {
        if let Some(id) = found.answers.as_deref().filter(|_| found.from_me) {
            self.answered.insert(self.answer_print(store, id));
        }
    }

    /// Sets what is kept with a message, by its identity. Whether that changed anything.
    pub(super) fn set_label(&mut self, identity: u64, label: Label) -> bool {
        let before = if label == Label::default() {
            self.labels.remove(&identity)
        } else {
            self.labels.insert(identity, label.clone())
        };
        let changed = before.unwrap_or_default() != label;
        if changed {
            self.generation += 1;
            self.marked += 1;
        }
        changed
    }

    /// A message is unread again: what hid it from mail programs is over. Whether anything did.
    pub(super) fn renew_label(&mut self, identity: u64) -> bool {
        let Some(mut label) = self.labels.get(&identity).cloned() else { return false };
        label.renew();
        self.set_label(identity, label)
    }
}

impl Index {
    /// Keeps what a mail program says of a message, and marks it read or unread if it says so: both in
    /// one step, durable as [`Index::mark`] is.
    ///
    /// # Errors
    /// As there.
    pub fn label(&self, ix: MsgIx, label: Label, read: Option<bool>) -> Result<(), StoreError> {
        if self.settings.read_only {
            return Ok(());
        }
        let claimed = read == Some(true) && self.claim(ix)?;
        let Some(key) = self.key(ix) else { return Ok(()) };
        let mut marks = self.marks.lock();
        let labelled = {
            let mut core = self.core.write();
            let Some(identity) = core.entry(ix).map(Entry::identity) else { return Ok(()) };
            if let Some(read) = read {
                core.set_own(ix, read, false);
            }
            core.set_label(identity, label.clone())
        };
        // In this order: to mark it unread takes away some of what was kept.
        if let Some(read) = read {
            marks.push(&(key.clone(), Said::Read(read)));
        }
        if labelled {
            marks.push(&(key, Said::Label(label)));
        }
        write_marks(&mut marks);
        drop(marks);
        // Also brings the file to the disk.
        self.untold.store(true, Ordering::Relaxed);
        self.publish(&Changes { marked: vec![ix], ..Changes::default() });
        if claimed {
            self.look_again(ix);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unread_again_is_there_again() {
        let mut label =
            Label { flags: Some("FTa".into()), old: true, removed: true, ..Label::default() };
        assert!(label.is_hidden());
        label.renew();
        assert_eq!(label, Label { flags: Some("Fa".into()), ..Label::default() });
        assert!(!label.is_hidden());
        let said = serde_json::to_string(&label).unwrap();
        assert_eq!(said, r#"{"flags":"Fa"}"#);
        assert_eq!(serde_json::from_str::<Label>("{}").unwrap(), Label::default());
    }
}
