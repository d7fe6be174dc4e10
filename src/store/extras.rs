//! Extras of a store besides messages: texts of mine, a read position, its files, advice.

use std::io;

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::model::{Timestamp, sanitize_line};

/// A store that keeps texts for me beside the messages: notes, memories, a description of me. A folder holds named
/// texts. Each name has one current text.
pub trait Notebook: Send + Sync {
    /// Returns the folders, in the order in which they are listed.
    fn folders(&self) -> &'static [&'static str];

    /// Returns the current texts of a folder, by name.
    fn list_entries(&self, folder: &str) -> Vec<NotebookEntry>;

    /// Returns the current text of a name, as the list has it.
    fn find_entry(&self, folder: &str, name: &str) -> Option<NotebookEntry> {
        self.list_entries(folder).into_iter().find(|entry| entry.name == name)
    }

    /// Returns the bytes of the current text.
    ///
    /// # Errors
    /// `NotFound` if there is none, else as the system gave it.
    fn read_entry(&self, folder: &str, name: &str) -> io::Result<Vec<u8>>;

    /// Fails unless a text can have this name. The caller checks it before it writes.
    ///
    /// # Errors
    /// As [`Notebook::write_entry`] for the name.
    fn check_name(&self, _folder: &str, _name: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes this the current text of the name, without touching older ones. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a name that cannot be one, else as the system gave it.
    fn write_entry(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError>;

    /// Returns true if an addition to a text without a final newline begins a new line: its writer leaves the last
    /// newline out.
    fn may_lack_newline(&self, _folder: &str, _name: &str) -> bool {
        false
    }

    /// Returns true if texts can be removed.
    fn can_remove(&self) -> bool {
        false
    }

    /// Removes the current text of a name, without touching older ones. The removal is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] where [no text can be removed](Notebook::can_remove), else as the system gave it.
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
    /// The time at which it was written.
    pub modified: Timestamp,
}

/// My read position as the store keeps it for its other readers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// The time before which everything counts as read.
    pub time: Timestamp,
    /// Ids at or after `time` that count as read, in either spelling (`id`, `from:id`).
    pub ids: std::collections::HashSet<String>,
}

/// The knowledge of a store on how far a peer has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReadState {
    /// The messages that the peer has not read yet.
    pub unread: PeerUnread,
    /// The time at which reading last changed that, as far as it is known.
    pub since: Option<Timestamp>,
}

/// The messages that a peer has not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUnread {
    /// All messages that a read position does not cover.
    Position(Watermark),
    /// A number of messages.
    Count(u64),
}

impl Watermark {
    /// Returns true if this message counts as read.
    pub fn has_read(&self, time: Timestamp, from: &str, id: &str) -> bool {
        time < self.time
            || self.names_in_full(from, id)
            || (time.secs() == self.time.secs() && self.names_bare(id))
    }

    /// Returns true if the position names this message. A bare id that stands beside the form of another sender is the
    /// id of that sender's message.
    pub fn names(&self, from: &str, id: &str) -> bool {
        self.names_in_full(from, id) || self.names_bare(id)
    }

    fn names_in_full(&self, from: &str, id: &str) -> bool {
        self.ids.contains(&format!("{from}:{id}"))
    }

    fn names_bare(&self, id: &str) -> bool {
        let mut full = self.ids.iter().filter_map(|spelled| spelled.rsplit_once(':'));
        self.ids.contains(id) && !full.any(|(_, named)| named == id)
    }
}

/// A file or folder below `raw/<store>/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// One path component.
    pub name: String,
    /// True for a folder.
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
    /// The rule of a torn line: its writer was stopped while it wrote. Readers skip the line, and nobody has to mend
    /// it.
    pub const TORN: &'static str = "torn";

    /// Returns true if something is wrong, and not only torn.
    pub fn is_wrong(&self) -> bool {
        self.rule != Self::TORN
    }

    /// Describes a torn line, if this is one: an object that begins and does not end.
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
    /// A sentence that describes the problem.
    pub problem: String,
    /// The command that mends it, if there is one.
    pub command: Option<String>,
    /// True if nothing works until it is mended. Else it is only a warning.
    pub serious: bool,
}

impl Advice {
    /// Returns a warning that no command mends.
    pub fn warning(problem: String) -> Self {
        Self { problem, command: None, serious: false }
    }

    /// Returns the problem and its command as one line.
    pub fn to_line(&self) -> String {
        let command = self.command.iter().map(|command| format!("; mend it with: {command}"));
        std::iter::once(self.problem.clone()).chain(command).collect()
    }
}
