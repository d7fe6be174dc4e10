//! A message as the mount shows it, and a draft as a person wrote it.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Timestamp, encode_hex};

/// A complete message, in the terms that all stores share.
///
/// Absent values are `None` or empty, and the header omits them (docs/SEMANTICS.md, S19).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The sender, in the store's own address form.
    pub from: Option<String>,
    /// The recipients.
    pub to: Vec<String>,
    /// The other recipients.
    pub cc: Vec<String>,
    /// The time when it was written.
    pub time: Timestamp,
    /// The subject, as one line.
    pub subject: Option<String>,
    /// Header lines that only some stores have (`Type`, `Priority`, `Task`), in order, after Subject.
    pub extra: Vec<(&'static str, String)>,
    /// The store's thread id, verbatim.
    pub thread: Option<String>,
    /// The id of the message that it answers, verbatim.
    pub in_reply_to: Option<String>,
    /// The store's message id, verbatim. [`QUALIFIER`] and a hash follow if another message of the same sender has it
    /// too.
    pub id: String,
    /// The attachments.
    pub attachments: Vec<Attachment>,
    /// The store's warnings for the reader.
    pub warnings: Vec<String>,
    /// The body.
    pub body: String,
}

/// Separator between an id and the SHA-256 of the message's file, in hex, where a store holds two different
/// messages under one id. People see the id alone; names take the hash.
pub const QUALIFIER: &str = "\0sha256:";

/// Returns an id with the hash of the message's file, if there is one: another message then has the id too.
pub fn qualify_id<'a>(id: impl Into<Cow<'a, str>>, qualifier: Option<&[u8; 32]>) -> Cow<'a, str> {
    let id = id.into();
    match qualifier {
        None => id,
        Some(hash) => format!("{id}{QUALIFIER}{}", encode_hex(hash)).into(),
    }
}

/// Longest subject of an answer, in characters. It is what a line of a mail holds.
const REPLY_SUBJECT_CHARS: usize = 998;

/// Returns the subject of an answer to a message with this subject: the same with one `Re: ` before it, however many it
/// has. `None` if nothing else is left of it.
pub fn reply_subject(subject: &str) -> Option<String> {
    let is_space = |c: char| c.is_whitespace() || c.is_control();
    let mut rest = subject.trim_matches(is_space);
    while let Some((head, tail)) = rest.split_at_checked(3)
        && head.eq_ignore_ascii_case("re:")
    {
        rest = tail.trim_start_matches(is_space);
    }
    let plain = "Re: ".chars().chain(rest.chars().map(|c| if c.is_control() { ' ' } else { c }));
    let answer: String = plain.take(REPLY_SUBJECT_CHARS).collect();
    (!rest.is_empty()).then(|| answer.trim_end().to_owned())
}

/// Separator between a thread id and the label of its origin, where a store has several threads of one id.
pub const ORIGIN: char = '\0';

/// Returns a thread's id without the label of its origin.
pub fn plain_thread_id(id: &str) -> &str {
    id.split_once(ORIGIN).map_or(id, |(plain, _)| plain)
}

/// Returns the label of a thread's origin, if its id carries one.
pub fn thread_label(id: &str) -> Option<&str> {
    id.split_once(ORIGIN).map(|(_, label)| label)
}

/// Returns the id as the store has it.
pub fn plain_id(id: &str) -> &str {
    // Each message asks while it is indexed, and almost no id has a NUL, which is found faster than a word.
    match memchr::memchr(0, id.as_bytes()) {
        Some(_) => id.split_once(QUALIFIER).map_or(id, |(plain, _)| plain),
        None => id,
    }
}

/// Returns the hash that separates two messages of one id.
pub fn id_qualifier(id: &str) -> Option<&str> {
    id.split_once(QUALIFIER).map(|(_, hash)| hash)
}

/// A file that comes with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// File name, already safe to use as one path component.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// The reason why it is withheld, or `None`. It stands in parentheses after the name, where other
    /// attachments have their size: `withheld: digest does not match` or `does not match its signed hash`.
    pub withheld: Option<String>,
}

impl Attachment {
    /// Creates an attachment that is not withheld.
    pub fn new(name: impl Into<String>, size: usize) -> Self {
        Self { name: name.into(), size: size as u64, withheld: None }
    }
}

/// A file that a message will carry, copied to a place where nobody changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftAttachment {
    /// The sender's name for the file: one path component.
    pub name: String,
    /// The copy.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes in lower-case hex.
    pub sha256: String,
}

/// The key of a message in its mount: store, sender and the sender's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageKey {
    /// Name of the store in this mount.
    pub store: String,
    /// The sender.
    pub from: String,
    /// The message's id, unique for this sender.
    pub id: String,
}

/// A message that a person wants to send, before any store has seen it (docs/SEMANTICS.md, "Writing").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// Recipients, in the order given.
    pub to: Vec<String>,
    /// True if nobody wrote them: the answered message or the thread gives them. They are then no groups.
    pub to_is_inherited: bool,
    /// True if the recipient is only the name of the draft's file.
    pub to_is_name: bool,
    /// True if a person typed the recipients at a command. Such a name may be mistyped, like that of a draft.
    pub is_typed: bool,
    /// True if the text is a whole message of the store that `via` names. That store checks it and its
    /// recipients.
    pub is_whole: bool,
    /// Further recipients.
    pub cc: Vec<String>,
    /// Recipients whom the others do not see. Each gets a message of its own.
    pub bcc: Vec<String>,
    /// True if it is for one of `bcc`. It then starts a thread of its own, whatever its header says, because
    /// other members of a thread would see it there.
    pub is_blind: bool,
    /// Subject line.
    pub subject: Option<String>,
    /// Thread to continue, or to start under this id.
    pub thread: Option<String>,
    /// Id of the message that it answers, without `<>` and `@store`.
    pub in_reply_to: Option<String>,
    /// The same id as a mail has it, `id@place`, until it is resolved.
    pub in_reply_to_mail: Option<String>,
    /// True if it is only the id of a mail: of a message that is here, or of none.
    pub answers_mail: bool,
    /// Name of the store of the answered message. That store carries the reply if several could.
    pub answered_store: Option<String>,
    /// True if it answers a message. It then inherits the thread, and its text is taken as typed.
    pub is_reply: bool,
    /// `Priority:` as written.
    pub priority: Option<String>,
    /// `Type:` as written.
    pub kind: Option<String>,
    /// `Task:` as written.
    pub task: Option<String>,
    /// Absolute paths of files to attach, as written.
    pub attach_paths: Vec<String>,
    /// The same files after they were copied to the place where they stay until the message is sent.
    pub attachments: Vec<DraftAttachment>,
    /// Name of the store that shall carry it.
    pub via: Option<String>,
    /// A key that makes retries of the same send harmless for a week.
    pub idempotency_key: Option<String>,
    /// The text, without trailing newlines.
    pub body: String,
}

/// The reason why a text is not a draft. The error text says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// Bytes that are not UTF-8, from this offset on.
    #[error("the text is not UTF-8 (byte {0}); convert it with `iconv -t UTF-8` first")]
    NotUtf8(usize),
    /// A header block without an end.
    #[error(
        "the header has no empty line after it, so there is no text; write an empty line between the \
         header and the text, or begin the text with an empty line if it has no header"
    )]
    OpenHeader,
    /// A line in a header block that is no header.
    #[error(
        "the line {0:?} stands in the header, but is no header line; leave an empty line between the \
         header and the text"
    )]
    NoHeader(String),
    /// A `To:` or `Cc:` line without an address.
    #[error("{0}: names nobody; write one address or several separated by commas")]
    NoRecipient(&'static str),
    /// A header line with an unusable value.
    #[error("{header}: {problem}")]
    BadHeader {
        /// The header's name.
        header: String,
        /// The problem and its remedy.
        problem: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_has_one_prefix() {
        for (parent, subject) in [
            ("plan", Some("Re: plan")),
            ("Re: plan", Some("Re: plan")),
            ("RE:re:  rE: plan ", Some("Re: plan")),
            ("regarding", Some("Re: regarding")),
            ("Re\u{e9}: x", Some("Re: Re\u{e9}: x")),
            ("two\nlines", Some("Re: two lines")),
            ("Re: ", None),
            ("", None),
        ] {
            assert_eq!(reply_subject(parent).as_deref(), subject, "{parent:?}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_to_an_answer_keeps_the_subject(subject in any::<String>()) {
            if let Some(first) = reply_subject(&subject) {
                prop_assert_eq!(reply_subject(&first), Some(first.clone()));
                prop_assert!(!first.contains(char::is_control) && first.starts_with("Re: "));
            }
        }
    }
}
