//! Owners of short names (docs/SEMANTICS.md, S190 and S191).
//!
//! If several ids have the same short name, the one that came first keeps it. It keeps it even if a later one
//! claims to be older, and even after the index was made anew from stores that record no order of arrival. So
//! the choice is noted in the state folder. Each line has the name and the hash of its owner. Nothing is noted
//! while no two names are equal.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::model::locks::Mutex;

/// The names that several ids have, each with its owner.
#[derive(Debug, Default)]
pub(super) struct ShortNameOwners {
    owners: Mutex<HashMap<String, String>>,
    /// The file with the choices; `None` if nothing may be written.
    file: Option<PathBuf>,
}

impl ShortNameOwners {
    /// Reads the choices of earlier runs. An incomplete line is ignored.
    pub fn open(file: PathBuf, read_only: bool) -> Self {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                tracing::warn!(path = %file.display(), %error, "the list of file names that were \
                    given cannot be read");
                String::new()
            }
        };
        let line = |line: &str| {
            let (name, keeper) = line.split_once('\t')?;
            (keeper.len() == 64).then(|| (name.to_owned(), keeper.to_owned()))
        };
        let kept = text.lines().filter_map(line).collect();
        Self { owners: Mutex::new(kept), file: (!read_only).then_some(file) }
    }

    /// Returns true if no choice was ever made.
    pub fn is_empty(&self) -> bool {
        self.owners.lock().is_empty()
    }

    /// Returns the hash of the owner of a name, if a choice was made.
    pub fn find_owner(&self, name: &str) -> Option<String> {
        self.owners.lock().get(name).cloned()
    }

    /// Records for good that the message with this hash owns a name that several have.
    pub fn record_owner(&self, name: &str, keeper: &str) {
        self.owners.lock().insert(name.to_owned(), keeper.to_owned());
        let Some(file) = &self.file else { return };
        // The newline before it ends a line that a kill may have left unfinished.
        let line = format!("\n{name}\t{keeper}\n");
        let options = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
        if let Err(error) = options.and_then(|mut f| f.write_all(line.as_bytes())) {
            tracing::warn!(path = %file.display(), %error, "a file name that was given could not \
                be saved");
        }
    }
}
