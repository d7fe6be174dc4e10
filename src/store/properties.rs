//! The properties of a store.

use std::path::PathBuf;

use super::{Durability, Kind, StoreError, StoreSpec};

/// The way in which a format tells threads apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadScheme {
    /// Thread ids that messages carry.
    #[default]
    Ids,
    /// Thread ids that messages carry, and that may have a label after [`ORIGIN`](crate::model::ORIGIN). The label
    /// tells threads of the same id apart.
    Labels,
    /// Thread ids that messages carry. A message without one joins the thread of its parent
    /// ([`FoundMessage::parent`](super::FoundMessage::parent)), which may come later: only the index knows it.
    Joined,
    /// No thread ids: reply links make the threads ([`FoundMessage::in_reply_to`](super::FoundMessage::in_reply_to)).
    Links,
}

/// The way in which a format tells which message another answers.
#[derive(Clone, Copy, Debug, Default)]
pub enum AnswerScheme {
    /// The format does not tell.
    Unnamed,
    /// An answer names the id of the answered message
    /// ([`FoundMessage::in_reply_to`](super::FoundMessage::in_reply_to)).
    #[default]
    Named,
    /// An answer names the id, or it names none and is what its writer wrote next in the thread.
    NamedOrNext(NextAnswerRule),
}

/// The rule for answers that name no id: such a message answers the newest message to its writer before it in the
/// thread, and only that one.
#[derive(Clone, Copy, Debug)]
pub struct NextAnswerRule {
    /// True if only unsigned messages answer so.
    pub unsigned_only: bool,
    /// A function that returns true if a message with the second id can answer one with the first; `None` if each can.
    pub fits: Option<fn(&str, &str) -> bool>,
}

/// The properties of a store, which do not change as long as it is open. A format sets those in which it differs from
/// most.
#[derive(Clone, Debug)]
pub struct StoreProperties {
    /// The kind.
    pub kind: Kind,
    /// Its name in the mount (default: the kind).
    pub name: String,
    /// The address by which it knows me.
    pub me: String,
    /// Further addresses of mine. I send from none of them.
    pub further_addresses: Vec<String>,
    /// Its folder.
    pub dir: PathBuf,
    /// The way in which it tells threads apart.
    pub threads: ThreadScheme,
    /// The way in which it tells answers.
    pub answers: AnswerScheme,
    /// True if addresses are roles that several agents may fill. A signature is then verified with the key it carries,
    /// and no key is pinned to an address.
    pub uses_roles: bool,
    /// True if messages name no key, and the store offers that of the sender. A later one may have replaced the one
    /// that signed.
    pub offers_keys: bool,
    /// True if its messages are transcripts, which are only read: they are shown as if they were mine, but are mail to
    /// nobody.
    pub holds_transcripts: bool,
    /// True if times are whole seconds. Names then count the messages of one second (docs/SEMANTICS.md, S17).
    pub whole_seconds: bool,
    /// True if an agent that has a mount on this machine counts as known before it has written.
    pub shows_mounted: bool,
    /// The largest body it takes, in bytes.
    pub max_body: u64,
    /// Header lines that only drafts for this store carry, in their canonical spelling.
    pub headers: &'static [&'static str],
    /// The recipient of a text that names none: an answer to a thread without messages.
    pub default_recipient: Option<&'static str>,
    /// A function that returns the recipient that a text names itself, if a text can be a whole message of the format.
    pub recipient_in: Option<fn(&str) -> Option<String>>,
    /// True if an append may be made again and then only does what is still missing. Else a message counts as appended
    /// when the index has it as mine.
    pub can_repeat_appends: bool,
    /// True if its programs lock a thread while they append to it. A message then waits behind the earlier ones of its
    /// thread; elsewhere a message that cannot be appended delays no other one.
    pub locks_threads: bool,
    /// The rule for the names and sizes of files that a message can carry; `None` if it carries none at all.
    pub attachment_rule: Option<AttachmentRule>,
    /// A function that returns the part of a record that must stay as it was verified, if the format's programs may
    /// rewrite its logs and drop members that they do not know.
    pub signed_text: Option<SignedTextFn>,
    /// The way in which an append treats the disk.
    pub durability: Durability,
    /// The folder for state that must outlive the cache ([`StoreSpec::state`]).
    pub state: Option<PathBuf>,
}

/// A function that fails if a message cannot carry files of these names and sizes: [`StoreError::Invalid`] for a name,
/// [`StoreError::TooLarge`].
pub type AttachmentRule = fn(&[(String, u64)]) -> Result<(), StoreError>;

/// A function that returns the bytes that a signature of a record covers, even if the record carries none.
pub type SignedTextFn = fn(&str) -> Option<Vec<u8>>;

impl StoreProperties {
    /// Returns the properties of a store whose format is like most.
    pub fn new(spec: &StoreSpec, me: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self {
            kind: spec.kind,
            name: spec.name.clone(),
            me: me.into(),
            further_addresses: Vec::new(),
            dir: dir.into(),
            threads: ThreadScheme::Ids,
            answers: AnswerScheme::default(),
            uses_roles: false,
            offers_keys: false,
            holds_transcripts: false,
            whole_seconds: false,
            shows_mounted: false,
            max_body: u64::MAX,
            headers: &[],
            default_recipient: None,
            recipient_in: None,
            can_repeat_appends: true,
            locks_threads: false,
            attachment_rule: None,
            signed_text: None,
            durability: spec.durability,
            state: spec.state.clone(),
        }
    }

    /// Returns all my addresses, the one from which I send first.
    pub fn my_addresses(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.me).chain(&self.further_addresses).map(String::as_str)
    }

    /// Returns true if reply links make the threads.
    pub fn has_reply_links(&self) -> bool {
        self.threads == ThreadScheme::Links
    }

    /// Returns true if only the index knows the thread of a message.
    pub fn has_indexed_threads(&self) -> bool {
        matches!(self.threads, ThreadScheme::Links | ThreadScheme::Joined)
    }

    /// Returns true if a thread id may carry a label.
    pub fn has_thread_labels(&self) -> bool {
        self.threads == ThreadScheme::Labels
    }

    /// Fails if a message cannot carry these files.
    ///
    /// # Errors
    /// As [`AttachmentRule`].
    pub fn check_attachments(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        match self.attachment_rule {
            _ if files.is_empty() => Ok(()),
            Some(carries) => carries(files),
            None => Err(StoreError::Invalid(format!(
                "Attach: a message in the store {} carries text only; put the file where the \
                 recipient can read it and name its path in the text",
                self.name
            ))),
        }
    }
}
