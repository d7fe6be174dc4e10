//! What a store has besides messages: texts of mine, a read position, its files, advice.

use std::io;

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::model::{Timestamp, sanitize_line};

/// Texts that the store keeps for me beside the messages: notes, memories, who I am. A folder holds
/// named texts; of each name there is one current text.
pub trait Notebook: Send + Sync {
    /// The folders, in the order in which they are listed.
    fn folders(&self) -> &'static [&'static str];

    /// The current texts of a folder, by name.
    fn list_entries(&self, folder: &str) -> Vec<NotebookEntry>;

    /// The current text.
    ///
    /// # Errors
    /// `NotFound` if there is none, else as the system gave it.
    fn read_entry(&self, folder: &str, name: &str) -> io::Result<Vec<u8>>;

    /// Whether a text can have this name, asked before it is written.
    ///
    /// # Errors
    /// As [`Notebook::write`] for the name.
    fn check_name(&self, _folder: &str, _name: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes this the current text of the name, without touching older ones. On disk when it
    /// returns.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a name that cannot be one, else as the system gave it.
    fn write_entry(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError>;

    /// Whether what is added to a text that does not end in a newline begins a new line: its writer leaves
    /// the last newline out.
    fn may_lack_newline(&self, _folder: &str, _name: &str) -> bool {
        false
    }

    /// Whether texts can be removed.
    fn can_remove(&self) -> bool {
        false
    }

    /// Has the name mean no text any more, without touching older ones. On disk when it returns.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] where nothing [is removed](Notebook::removes), else as the system gave
    /// it.
    fn remove_entry(&self, _folder: &str, name: &str) -> Result<(), StoreError> {
        Err(StoreError::NotPermitted(format!(
            "{}: a text here cannot be removed",
            sanitize_line(name)
        )))
    }
}

/// One text of a [`Notebook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotebookEntry {
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was written.
    pub modified: Timestamp,
}

/// The read position of me as the store keeps it for its other readers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// Everything before this time counts as read.
    pub time: Timestamp,
    /// Ids at or after `time` that count as read, in either spelling (`id`, `from:id`).
    pub ids: std::collections::HashSet<String>,
}

/// What a store tells of how far somebody has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReadState {
    /// What this one has not read yet.
    pub unread: PeerUnread,
    /// When that last changed by reading, as far as it can be told.
    pub since: Option<Timestamp>,
}

/// What somebody has not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUnread {
    /// What a read position does not cover.
    Position(Watermark),
    /// So many messages.
    Count(u64),
}

impl Watermark {
    /// Whether the mark says that this message was read.
    pub fn has_read(&self, time: Timestamp, from: &str, id: &str) -> bool {
        time.secs() < self.time.secs()
            || self.ids.contains(&format!("{from}:{id}"))
            || (time.secs() == self.time.secs() && self.ids.contains(id))
    }
}

/// A file or folder below `raw/<store>/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// One path component.
    pub name: String,
    /// A folder.
    pub is_dir: bool,
    /// Size in bytes (0 for folders).
    pub size: u64,
    /// Modification time on disk.
    pub modified: Timestamp,
    /// The source number, if the file is one of the sources of messages.
    pub source: Option<u32>,
}

/// One broken rule found by `msgfs check`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// Path of the file, relative to the store.
    pub file: String,
    /// Line in the file, counted from 1; 0 for the file as a whole.
    pub line: u64,
    /// A short word for programs.
    pub rule: &'static str,
    /// A sentence for people.
    pub detail: String,
}

impl Violation {
    /// The rule of a line that ends in its middle: its writer was stopped while it wrote, readers skip
    /// it, and nothing has to be mended.
    pub const TORN: &'static str = "torn";

    /// Whether something is wrong, and not only torn.
    pub fn is_wrong(&self) -> bool {
        self.rule != Self::TORN
    }

    /// What is said of a torn line, if this is one: an object that begins and does not end.
    pub fn describe_torn(line: &[u8]) -> Option<String> {
        let cut = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof());
        (cut && line.trim_ascii_start().starts_with(b"{")).then(|| {
            "the line ends in its middle, because its writer was stopped; readers skip it"
                .to_owned()
        })
    }
}

/// Something about a store that a person should mend, for `msgfs doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What is wrong, in a sentence.
    pub problem: String,
    /// The command that mends it, if one does.
    pub command: Option<String>,
    /// Nothing works until it is mended; else it is only a warning.
    pub serious: bool,
}

impl Advice {
    /// A warning that no command mends.
    pub fn warning(problem: String) -> Self {
        Self { problem, command: None, serious: false }
    }
}
