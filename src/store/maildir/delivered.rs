//! The recipients on this machine who have a mail that others are still to get. They may move or remove it, and an
//! append that is made again must not deliver it again. A file in the state folder lists them until the mail has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::model::locks::Mutex;
use crate::store::{atomic_file, fs};

/// The name of the file.
const FILE: &str = "delivered.json";
/// A size that the file never reaches.
const LIMIT: u64 = 1 << 30;

/// The recipients who have a mail, by its id.
type RecipientsById = BTreeMap<String, BTreeSet<String>>;

/// The mails of a store that only some of their recipients have.
#[derive(Debug, Default)]
pub(super) struct DeliveredMails {
    /// The file; unset for a store that has no state.
    file: OnceLock<PathBuf>,
    /// Those that are not in the file.
    unsaved: Mutex<RecipientsById>,
}

impl DeliveredMails {
    /// Keeps the list in a folder.
    pub fn keep_in(&self, dir: &Path) {
        // A store has one state folder.
        let _ = self.file.set(dir.join(FILE));
    }

    /// Returns the recipients who have a mail.
    ///
    /// # Errors
    /// The error of the system.
    pub fn find(&self, id: &str) -> io::Result<BTreeSet<String>> {
        if let Some(having) = self.unsaved.lock().get(id) {
            return Ok(having.clone());
        }
        let saved = self.file.get().map_or_else(|| Ok(RecipientsById::new()), |f| read_list(f));
        Ok(saved?.remove(id).unwrap_or_default())
    }

    /// Notes who has a mail. If that cannot be saved, it is known until this process ends.
    pub fn note(&self, id: &str, having: BTreeSet<String>) {
        let mut unsaved = self.unsaved.lock();
        unsaved.insert(id.to_owned(), having);
        let Some(file) = self.file.get() else { return };
        let saved = read_list(file).and_then(|mut all| {
            all.extend(unsaved.clone());
            save_list(file, &all)
        });
        match saved {
            Ok(()) => unsaved.clear(),
            Err(error) => {
                tracing::warn!(path = %file.display(), %error, "who has a mail was not saved");
            }
        }
    }

    /// Forgets a mail that has ended.
    pub fn forget(&self, id: &str) {
        let mut unsaved = self.unsaved.lock();
        unsaved.remove(id);
        let Some(file) = self.file.get() else { return };
        let saved = read_list(file).and_then(|mut all| match all.remove(id) {
            Some(_) => save_list(file, &all),
            None => Ok(()),
        });
        if let Err(error) = saved {
            // Nobody asks for this mail any more.
            tracing::debug!(path = %file.display(), %error, "an ended mail was not forgotten");
        }
    }
}

/// Reads the list. A damaged one is as good as none: then the Maildirs of the recipients tell.
fn read_list(file: &Path) -> io::Result<RecipientsById> {
    let bytes = fs::empty_if_absent(fs::read_small_file(file, LIMIT))?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

fn save_list(file: &Path, all: &RecipientsById) -> io::Result<()> {
    if all.is_empty() {
        return std::fs::remove_file(file);
    }
    fs::make_dirs(file.parent().unwrap_or(file), 0o700)?;
    atomic_file::write_atomic(file, &serde_json::to_vec(all)?, 0o600)
}
