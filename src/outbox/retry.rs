//! Whether a draft is a retry of a message that was sent under the same idempotency key.

use std::collections::BTreeSet;
use std::path::Path;

use super::{DraftTarget, OpenDraft};
use crate::model::{Draft, Message, plain_id, plain_thread_id};
use crate::store::Store;

/// The parts of a draft that its writer stated, for a comparison with sent messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftOutline {
    subject: Option<String>,
    thread: Option<String>,
    /// The id of the answered message.
    answers: Option<String>,
    /// The names of the files.
    files: BTreeSet<String>,
    pub body: String,
}

impl DraftOutline {
    /// Returns the outline of a draft: as it was `parsed`, and as it was completed.
    pub fn new(open: &OpenDraft, parsed: &Draft, completed: &Draft) -> Self {
        let is_reply =
            matches!(open.target, DraftTarget::Reply { .. } | DraftTarget::ReplyAll { .. });
        let states_answer = is_reply || parsed.in_reply_to.is_some();
        let named = parsed.attach_paths.iter().filter_map(|path| Path::new(path).file_name());
        let named = named.map(|name| name.to_string_lossy().into_owned());
        Self {
            subject: parsed.subject.clone(),
            thread: parsed.thread.clone(),
            answers: completed.in_reply_to.clone().filter(|_| states_answer),
            files: named.chain(open.files.iter().map(|(name, _)| name.clone())).collect(),
            body: completed.body.clone(),
        }
    }

    /// Returns what a sent message has otherwise, in words; `None` if this may be a retry of it. The texts are not
    /// compared.
    pub fn find_difference(&self, store: &dyn Store, sent: &Message) -> Option<&'static str> {
        let properties = store.properties();
        let own_threads = !properties.has_reply_links() && !properties.joins_threads();
        let thread = self.thread.as_deref().filter(|_| own_threads).map(plain_thread_id);
        let files = sent.attachments.iter().map(|file| file.name.clone()).collect();
        self.find_header_difference(&Self {
            subject: sent.subject.clone(),
            thread: sent
                .thread
                .as_deref()
                .filter(|_| thread.is_some())
                .map(|id| plain_thread_id(id).to_owned()),
            answers: sent.in_reply_to.as_deref().map(|id| plain_id(id).to_owned()),
            files,
            body: String::new(),
        })
    }

    /// Returns what an earlier draft has otherwise, in words. The texts are not compared.
    pub fn find_header_difference(&self, earlier: &Self) -> Option<&'static str> {
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let subject = |outline: &Self| outline.subject.as_deref().map(line).unwrap_or_default();
        let differ = |own: &Option<String>, other: &Option<String>| match (own, other) {
            (Some(own), Some(other)) => plain_thread_id(own) != plain_thread_id(other),
            _ => false,
        };
        // A store may write a name in another way if it is not plain.
        let is_plain = |name: &String| {
            name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        let own_files = !self.files.is_empty() && self.files.iter().all(is_plain);
        if self.subject.is_some() && subject(self) != subject(earlier) {
            Some("another subject")
        } else if differ(&self.thread, &earlier.thread) {
            Some("another thread")
        } else if differ(&self.answers, &earlier.answers) {
            Some("an answer to another message")
        } else if own_files && self.files != earlier.files {
            Some("other files")
        } else {
            None
        }
    }
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

    fn outline(subject: Option<&str>, thread: Option<&str>, files: &[&str]) -> DraftOutline {
        DraftOutline {
            subject: subject.map(str::to_owned),
            thread: thread.map(str::to_owned),
            files: files.iter().map(|name| (*name).to_owned()).collect(),
            ..DraftOutline::default()
        }
    }

    #[test]
    fn what_the_writer_stated_is_compared() {
        let sent = outline(Some("a  plan"), Some("t"), &["a.pdf"]);
        for same in [
            outline(None, None, &[]),
            outline(Some("a plan "), Some("t"), &["a.pdf"]),
            outline(None, None, &["an odd name"]),
        ] {
            assert_eq!(same.find_header_difference(&sent), None, "{same:?}");
        }
        for (other, told) in [
            (outline(Some("b"), None, &[]), "another subject"),
            (outline(None, Some("u"), &[]), "another thread"),
            (outline(None, None, &["b.pdf"]), "other files"),
        ] {
            assert_eq!(other.find_header_difference(&sent), Some(told));
        }
        let unnamed = outline(None, None, &[]);
        assert_eq!(
            outline(Some("b"), None, &[]).find_header_difference(&unnamed),
            Some("another subject")
        );
    }
}
