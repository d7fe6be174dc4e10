//! What does not change as long as a store is open.

use std::path::PathBuf;

use super::{Kind, StoreError, StoreSpec};

/// How a format tells threads apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadScheme {
    /// Messages carry the id of their thread.
    #[default]
    Ids,
    /// The same, and the id may carry a label after [`ORIGIN`](crate::model::ORIGIN) that tells threads
    /// of the same id apart.
    Labels,
    /// There are no thread ids: threads are made of reply links
    /// ([`Found::answers`](super::Found::answers)).
    Links,
}

/// What a store is. A format fills in what it has not in common with most.
#[derive(Clone, Debug)]
pub struct StoreProperties {
    /// The format.
    pub kind: Kind,
    /// Its name in the mount (default: the kind).
    pub name: String,
    /// The address it knows me by.
    pub me: String,
    /// The folder it lives in.
    pub dir: PathBuf,
    /// How threads are told apart.
    pub threads: ThreadScheme,
    /// Addresses are roles that several may fill: a signature is verified with the key it carries, and
    /// no key is pinned to an address.
    pub uses_roles: bool,
    /// Times are whole seconds, so names count the messages of one second (docs/SEMANTICS.md, S17).
    pub whole_seconds: bool,
    /// The largest body it takes, in bytes.
    pub max_body: u64,
    /// Header lines that only drafts for this store carry, in their canonical spelling.
    pub headers: &'static [&'static str],
    /// Whom a text goes to that names nobody: an answer to a thread without messages.
    pub default_recipient: Option<&'static str>,
    /// The recipient that a text names itself, if a text can be a whole message of the format.
    pub recipient_in: Option<fn(&str) -> Option<String>>,
    /// An append may be made again and then only does what is still missing. If not, what the index
    /// knows as mine counts as appended.
    pub can_repeat_appends: bool,
    /// Whether a message can carry files of these names and sizes; `None` if it carries none at all.
    pub attachment_rule: Option<AttachmentRule>,
    /// Returns the text that a signature of a record covers, if the format's programs may rewrite its logs.
    pub signed_text: Option<SignedTextFn>,
    /// The folder for what must outlive the cache ([`Spec::state`]).
    pub state: Option<PathBuf>,
}

/// Says why a message cannot carry files of these names and sizes:
/// [`StoreError::Invalid`] for a name, [`StoreError::TooLarge`].
pub type AttachmentRule = fn(&[(String, u64)]) -> Result<(), StoreError>;

/// Gives the bytes that a signature of a record covers, whether it carries one or not.
pub type SignedTextFn = fn(&str) -> Option<Vec<u8>>;

impl StoreProperties {
    /// A store of a format that is like most.
    pub fn new(spec: &StoreSpec, me: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self {
            kind: spec.kind,
            name: spec.name.clone(),
            me: me.into(),
            dir: dir.into(),
            threads: ThreadScheme::Ids,
            uses_roles: false,
            whole_seconds: false,
            max_body: u64::MAX,
            headers: &[],
            default_recipient: None,
            recipient_in: None,
            can_repeat_appends: true,
            attachment_rule: None,
            signed_text: None,
            state: spec.state.clone(),
        }
    }

    /// Whether threads are made of reply links.
    pub fn has_reply_links(&self) -> bool {
        self.threads == ThreadScheme::Links
    }

    /// Whether a thread id may carry a label.
    pub fn has_thread_labels(&self) -> bool {
        self.threads == ThreadScheme::Labels
    }

    /// Whether a message can carry these files.
    ///
    /// # Errors
    /// As [`Carries`].
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
