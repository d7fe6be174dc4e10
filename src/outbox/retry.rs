//! The comparison of a draft with messages that were sent under the same idempotency key.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DraftTarget, OpenDraft};
use crate::model::{Draft, Message, plain_id, plain_thread_id};
use crate::store::Store;

/// The parts of a draft that its writer stated, for a comparison with sent messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DraftOutline {
    subject: Option<String>,
    thread: Option<String>,
    /// The id of the answered message.
    answers: Option<String>,
    /// The sizes of the files in bytes, in order and each once; `None` if a file is gone. Stores change names, and keep
    /// equal files once.
    sizes: Option<Vec<u64>>,
    pub body: String,
}

impl DraftOutline {
    /// Returns the outline of a draft: as it was `parsed`, and as it was completed.
    pub fn new(open: &OpenDraft, parsed: &Draft, completed: &Draft) -> Self {
        let is_reply =
            matches!(open.target, DraftTarget::Reply { .. } | DraftTarget::ReplyAll { .. });
        let states_answer = is_reply || parsed.in_reply_to.is_some();
        let named = parsed.attach_paths.iter().map(Path::new);
        let files = named.chain(open.files.iter().map(|(_, path)| path.as_path()));
        let sizes = files.map(|path| std::fs::metadata(path).ok().map(|meta| meta.len()));
        let sizes: Option<Vec<u64>> = sizes.collect();
        Self {
            subject: parsed.subject.clone(),
            thread: parsed.thread.clone(),
            answers: completed.in_reply_to.clone().filter(|_| states_answer),
            sizes: sizes.map(sorted),
            body: completed.body.clone(),
        }
    }

    /// Returns the outline of a blind copy, which begins its own conversation.
    #[must_use]
    pub fn without_thread(&self) -> Self {
        Self { thread: None, answers: None, ..self.clone() }
    }

    /// Returns the part in which a sent message differs from the draft; `None` if the draft may be a retry of it. The
    /// texts are not compared. Parts that a store changes or computes are left out.
    pub fn find_difference(&self, store: &dyn Store, sent: &Message) -> Option<&'static str> {
        let properties = store.properties();
        let keeps_links = !properties.has_reply_links() && !properties.has_indexed_threads();
        let sizes = sent.attachments.iter().map(|file| file.size).collect();
        let is_withheld = sent.attachments.iter().any(|file| file.withheld.is_some());
        let own = Self {
            // A message has the subject of its thread there.
            subject: self.subject.clone().filter(|_| !properties.has_thread_labels()),
            sizes: self.sizes.clone().filter(|_| !is_withheld),
            ..if keeps_links { self.clone() } else { self.without_thread() }
        };
        own.find_difference_of_drafts(&Self {
            subject: sent.subject.clone(),
            thread: sent.thread.clone(),
            answers: sent.in_reply_to.as_deref().map(|id| plain_id(id).to_owned()),
            sizes: Some(sorted(sizes)),
            body: String::new(),
        })
    }

    /// Returns the part in which an earlier draft differs. The texts are not compared.
    pub fn find_difference_of_drafts(&self, earlier: &Self) -> Option<&'static str> {
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let subject = |outline: &Self| outline.subject.as_deref().map(line).unwrap_or_default();
        let differ = |own: &Option<String>, other: &Option<String>| match (own, other) {
            (Some(own), Some(other)) => plain_thread_id(own) != plain_thread_id(other),
            _ => false,
        };
        let has_other_files = match (&self.sizes, &earlier.sizes) {
            (Some(own), Some(other)) => !own.is_empty() && own != other,
            _ => false,
        };
        if self.subject.is_some() && subject(self) != subject(earlier) {
            Some("another subject")
        } else if differ(&self.thread, &earlier.thread) {
            Some("another thread")
        } else if differ(&self.answers, &earlier.answers) {
            Some("an answer to another message")
        } else if has_other_files {
            Some("other files")
        } else {
            None
        }
    }
}

fn sorted(mut sizes: Vec<u64>) -> Vec<u64> {
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns true if a sent text is that of a draft. Formats differ in line ends and in blanks around a text.
pub(super) fn is_same_text(sent: &str, draft: &str) -> bool {
    use unicode_normalization::UnicodeNormalization;
    let plain = |text: &str| -> String {
        text.replace("\r\n", "\n").replace('\r', "\n").trim().nfc().collect()
    };
    let (sent, draft) = (plain(sent), plain(draft));
    // A thread prefix was taken off when it was sent.
    sent == draft || draft.ends_with(&sent) && draft.starts_with("[thread:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(subject: Option<&str>, thread: Option<&str>, sizes: &[u64]) -> DraftOutline {
        DraftOutline {
            subject: subject.map(str::to_owned),
            thread: thread.map(str::to_owned),
            sizes: Some(sizes.to_vec()),
            ..DraftOutline::default()
        }
    }

    #[test]
    fn what_the_writer_stated_is_compared() {
        let sent = outline(Some("a  plan"), Some("t"), &[7]);
        for same in [outline(None, None, &[]), outline(Some("a plan "), Some("t"), &[7])] {
            assert_eq!(same.find_difference_of_drafts(&sent), None, "{same:?}");
        }
        for (other, told) in [
            (outline(Some("b"), None, &[]), "another subject"),
            (outline(None, Some("u"), &[]), "another thread"),
            (outline(None, None, &[8]), "other files"),
        ] {
            assert_eq!(other.find_difference_of_drafts(&sent), Some(told));
            let blind = DraftOutline { subject: None, sizes: None, ..other.without_thread() };
            assert_eq!(blind.find_difference_of_drafts(&sent), None);
        }
        let unnamed = outline(None, None, &[]);
        let named = outline(Some("b"), None, &[]);
        assert_eq!(named.find_difference_of_drafts(&unnamed), Some("another subject"));
        let with_files = outline(None, None, &[7]);
        assert_eq!(with_files.find_difference_of_drafts(&unnamed), Some("other files"));
        let gone = DraftOutline { sizes: None, ..with_files };
        assert_eq!(gone.find_difference_of_drafts(&unnamed), None);
    }
}
