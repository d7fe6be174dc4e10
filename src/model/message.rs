//! A message as the mount shows it, and a draft as a person wrote it.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Timestamp, encode_hex};

/// One message, complete, in the terms every store shares.
///
/// Absent values are `None` or empty and are left out of the header (docs/SEMANTICS.md, S19).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who wrote it, in the store's own address form.
    pub from: Option<String>,
    /// Whom it is for.
    pub to: Vec<String>,
    /// Who else gets it.
    pub cc: Vec<String>,
    /// When it was written.
    pub time: Timestamp,
    /// One line that says what it is about.
    pub subject: Option<String>,
    /// Header lines only some stores have (`Type`, `Priority`, `Task`), in order, after Subject.
    pub extra: Vec<(&'static str, String)>,
    /// The store's thread id, verbatim.
    pub thread: Option<String>,
    /// The id of the message this answers, verbatim.
    pub in_reply_to: Option<String>,
    /// The store's message id, verbatim; with [`TWIN`] and a hash where another message of the
    /// same writer has it too.
    pub id: String,
    /// What comes with it.
    pub attachments: Vec<Attachment>,
    /// What the store wants the reader to be warned of.
    pub warnings: Vec<String>,
    /// The text.
    pub body: String,
}

/// Separates an id from the SHA-256 of the message's file, in hex, where a store holds two different
/// messages under one id. People see the id alone; names take the hash.
pub const TWIN: &str = "\0sha256:";

/// The id of a message whose file has this hash, if another message has the id too.
pub fn qualify_id<'a>(id: impl Into<Cow<'a, str>>, twin: Option<&[u8; 32]>) -> Cow<'a, str> {
    let id = id.into();
    match twin {
        None => id,
        Some(hash) => format!("{id}{TWIN}{}", encode_hex(hash)).into(),
    }
}

/// Separates a thread id from the label of the place it comes from, where a store has
/// several threads of one id.
pub const ORIGIN: char = '\0';

/// A thread's id without the label of the place it comes from.
pub fn plain_thread_id(id: &str) -> &str {
    id.split_once(ORIGIN).map_or(id, |(plain, _)| plain)
}

/// The label of the place a thread comes from, if its id carries one.
pub fn thread_label(id: &str) -> Option<&str> {
    id.split_once(ORIGIN).map(|(_, label)| label)
}

/// The id as the store has it.
pub fn plain_id(id: &str) -> &str {
    id.split_once(TWIN).map_or(id, |(plain, _)| plain)
}

/// The hash that tells two messages of one id apart.
pub fn id_qualifier(id: &str) -> Option<&str> {
    id.split_once(TWIN).map(|(_, hash)| hash)
}

/// A file that comes with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// File name, already safe to use as one path component.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Why it is withheld, if it is: what stands in parentheses behind its name where others have
    /// their size, as in `withheld: digest does not match` or `does not match its signed hash`.
    pub withheld: Option<String>,
}

impl Attachment {
    /// One that is not withheld.
    pub fn new(name: impl Into<String>, size: usize) -> Self {
        Self { name: name.into(), size: size as u64, withheld: None }
    }
}

/// A file that a message will carry, copied where nobody changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftAttachment {
    /// Its file name as the sender called it: one path component.
    pub name: String,
    /// The copy.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes in lower-case hex.
    pub sha256: String,
}

/// What makes a message unique in its store: the writer and the writer's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageKey {
    /// Name of the store in this mount.
    pub store: String,
    /// Who wrote the message.
    pub from: String,
    /// The message's id, unique for this writer.
    pub id: String,
}

/// What a person wants to send, before any store has seen it (docs/SEMANTICS.md, "Writing").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// Recipients, in the order given.
    pub to: Vec<String>,
    /// The recipient is the name of its file; nobody wrote it into the draft.
    pub to_is_name: bool,
    /// A person typed the recipients at a command, where a name may have gone wrong like that of a draft.
    pub is_typed: bool,
    /// The text is a whole message of the store that `via` names; what is wrong with it, and with whom it
    /// is for, that store says.
    pub is_whole: bool,
    /// Further recipients.
    pub cc: Vec<String>,
    /// Recipients of whom the others are not told: each gets a message of its own.
    pub bcc: Vec<String>,
    /// It is for one of `bcc`: it begins a conversation of its own, whatever it says, for those in another
    /// one would see it there.
    pub is_blind: bool,
    /// Subject line.
    pub subject: Option<String>,
    /// Thread to continue, or to start under this id.
    pub thread: Option<String>,
    /// Id of the message that is answered, without `<>` and `@store`.
    pub in_reply_to: Option<String>,
    /// The same as a mail has it, `id@place`, until it is known what is meant.
    pub in_reply_to_mail: Option<String>,
    /// It is the id of a mail and nothing else: of a message that is here, or of none.
    pub answers_mail: bool,
    /// Name of the store of the message that is answered: it carries what several could.
    pub answered_store: Option<String>,
    /// It answers a message, so its thread is inherited and its text is taken as typed.
    pub is_reply: bool,
    /// `Priority:` as written.
    pub priority: Option<String>,
    /// `Type:` as written.
    pub kind: Option<String>,
    /// `Task:` as written.
    pub task: Option<String>,
    /// Absolute paths of files to send along, as written.
    pub attach_paths: Vec<String>,
    /// The same files once copied to where they stay until the message is sent.
    pub attachments: Vec<DraftAttachment>,
    /// Name of the store that shall carry it.
    pub via: Option<String>,
    /// Makes retries of the same send harmless for a week.
    pub idempotency_key: Option<String>,
    /// The text, without trailing newlines.
    pub body: String,
}

/// Why a text is not a draft. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The bytes are not UTF-8, from this byte on.
    #[error("the text is not UTF-8 (byte {0}); convert it with `iconv -t UTF-8` first")]
    NotUtf8(usize),
    /// A header block that nothing ends.
    #[error(
        "the header has no empty line after it, so there is no text; write an empty line between the \
         header and the text, or begin the text with an empty line if it has no header"
    )]
    OpenHeader,
    /// `To:` or `Cc:` without an address.
    #[error("{0}: names nobody; write one address or several separated by commas")]
    NoRecipient(&'static str),
    /// A header line has a value that cannot be used.
    #[error("{header}: {problem}")]
    BadHeader {
        /// The header's name.
        header: String,
        /// What is wrong and how to mend it.
        problem: String,
    },
}
