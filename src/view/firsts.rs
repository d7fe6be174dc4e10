//! Who keeps a short name (docs/SEMANTICS.md, S190 and S191).
//!
//! Where several ids have one short name, the one that came first keeps it, also when a later one
//! says that it is older, and also after the index was made anew from stores that do not know what
//! came when. So the choice is noted in the state folder, one line a name: the name, and the hash of
//! who keeps it. Nothing is noted while no two names are equal.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::model::locks::Mutex;

/// The names that several ids have, and who keeps each.
#[derive(Debug, Default)]
pub(super) struct ShortNameOwners {
    owners: Mutex<HashMap<String, String>>,
    /// Where choices are noted; `None` if nothing may be written.
    file: Option<PathBuf>,
}

impl ShortNameOwners {
    /// What was noted before; an incomplete line counts for nothing.
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

    /// Nobody ever had to choose.
    pub fn is_empty(&self) -> bool {
        self.owners.lock().is_empty()
    }

    /// The one that keeps a name, if anybody had to choose.
    pub fn find_owner(&self, name: &str) -> Option<String> {
        self.owners.lock().get(name).cloned()
    }

    /// Gives a name that several have to the one with this hash, for good.
    pub fn record_owner(&self, name: &str, keeper: &str) {
        self.owners.lock().insert(name.to_owned(), keeper.to_owned());
        let Some(file) = &self.file else { return };
        // The newline before it ends what a kill may have left.
        let line = format!("\n{name}\t{keeper}\n");
        let options = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
        if let Err(error) = options.and_then(|mut f| f.write_all(line.as_bytes())) {
            tracing::warn!(path = %file.display(), %error, "a file name that was given could not \
                be saved");
        }
    }
}
