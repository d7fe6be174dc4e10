//! The saved state of the store. It lies in the folder of msgfs's own state, because the cache may be lost. It has the
//! ids by which messages are known ([`id_ledger`](super::id_ledger)), the recipients that have mail which waits for
//! others, and the removed texts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;

use super::deliver::DeliveredRecipients;
use super::id_ledger::IdLedger;
use crate::model::to_json;
use crate::store::append_log::{AppendLog, AppendSync};
use crate::store::{StoreError, atomic_file, fs};

/// Size limit of each file; none grows so large.
const LIMIT: u64 = 1 << 30;

/// The folder. Without a folder nothing is saved and nothing fails.
#[derive(Debug, Default)]
pub(super) struct AgentAzallState {
    dir: Option<PathBuf>,
    ids: Option<Mutex<IdFile>>,
    /// The recipients of each file, as `delivered.json` has them.
    delivered: Mutex<DeliveredRecipients>,
    /// Texts in `me/` that were removed, with the day.
    removed: Mutex<BTreeMap<String, String>>,
}

/// The file of ids, which only grows.
#[derive(Debug)]
struct IdFile {
    log: AppendLog,
    /// Lines that could not be written yet.
    unwritten: Vec<u8>,
}

impl AgentAzallState {
    /// Opens a folder that may be written, or none. The folder is made when there is something to save.
    pub fn new(dir: Option<&Path>) -> Self {
        let id_file =
            |dir: &Path| IdFile { log: AppendLog::new(dir.join("ids")), unwritten: Vec::new() };
        Self {
            dir: dir.map(Path::to_owned),
            ids: dir.map(|dir| Mutex::new(id_file(dir))),
            ..Self::default()
        }
    }

    /// Reads the state that is saved in a folder. Returns the ids and the recipients of each file.
    ///
    /// # Errors
    /// If a file exists and cannot be read. Without it, marks would pass to other messages and recipients would get
    /// mail twice.
    pub fn load(&self, dir: &Path) -> Result<(IdLedger, DeliveredRecipients), StoreError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::empty_if_absent(fs::read_small_file(&path, LIMIT))
                .map_err(|e| StoreError::io(&path, e))
        };
        let ledger = IdLedger::from_lines(&read("ids")?);
        let delivered: DeliveredRecipients =
            serde_json::from_slice(&read("delivered.json")?).unwrap_or_default();
        *self.removed.lock() = serde_json::from_slice(&read("removed.json")?).unwrap_or_default();
        self.delivered.lock().clone_from(&delivered);
        Ok((ledger, delivered))
    }

    /// Returns the day on which a text was removed last.
    pub fn removal_day(&self, text: &str) -> Option<String> {
        self.removed.lock().get(text).cloned()
    }

    /// Saves the removal of a text. It is on disk when this returns.
    ///
    /// # Errors
    /// The error of the system.
    pub fn save_removed(&self, text: &str, day: &str) -> Result<(), StoreError> {
        let mut removed = self.removed.lock();
        removed.insert(text.to_owned(), day.to_owned());
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join("removed.json");
        let text = to_json(&*removed);
        fs::make_dirs(dir, 0o700)
            .and_then(|()| atomic_file::write_atomic(&path, &text, 0o600))
            .map_err(|e| StoreError::io(&path, e))
    }

    /// Adds lines to the file of ids; `sync` waits for the disk. Lines that cannot be written are written the next
    /// time.
    pub fn append_ids(&self, lines: &[u8], sync: bool) {
        let Some(mut ids) = self.ids.as_ref().map(Mutex::lock) else { return };
        ids.unwritten.extend_from_slice(lines);
        if ids.unwritten.is_empty() {
            return;
        }
        let IdFile { log, unwritten } = &mut *ids;
        match log.append(unwritten, if sync { AppendSync::Now } else { AppendSync::Later }) {
            Ok(_) => unwritten.clear(),
            Err(error) => tracing::warn!(%error, "the list of message ids could not be saved"),
        }
    }

    /// Saves the recipients of each file, if they changed. They are on disk when this returns.
    ///
    /// # Errors
    /// The error of the system.
    pub fn save_delivered(&self, now: &DeliveredRecipients) -> Result<(), StoreError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut kept = self.delivered.lock();
        if *kept == *now {
            return Ok(());
        }
        let path = dir.join("delivered.json");
        let text = to_json(now);
        fs::make_dirs(dir, 0o700)
            .and_then(|()| atomic_file::write_atomic(&path, &text, 0o600))
            .map_err(|e| StoreError::io(&path, e))?;
        kept.clone_from(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::IdAssignment;
    use super::super::group::tests::kept;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_kept_comes_back_and_the_folder_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("stores/a");
        let state = AgentAzallState::new(Some(&at));
        let (mut ledger, _) = state.load(&at).unwrap();
        state.append_ids(b"", true);
        state.save_delivered(&DeliveredRecipients::new()).unwrap();
        assert!(!at.exists(), "nothing is made for nothing");
        ledger.assign_id(&kept("a", "x", 1), IdAssignment::Plain);
        state.append_ids(&ledger.take_unsaved_lines(), true);
        let delivered = DeliveredRecipients::from([("p".to_owned(), ["bob".to_owned()].into())]);
        state.save_delivered(&delivered).unwrap();
        assert_eq!(std::fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o700);
        for file in ["ids", "delivered.json"] {
            let mode = std::fs::metadata(at.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let saved = || AgentAzallState::new(None).load(&at);
        let (ledger, saved_delivered) = saved().unwrap();
        assert_eq!(saved_delivered, delivered);
        assert!(ledger.find_ruling(&kept("a", "x", 2)).unwrap().is_id_taken);
        std::fs::write(at.join("delivered.json"), "{torn").unwrap();
        assert!(saved().unwrap().1.is_empty());
        std::fs::remove_file(at.join("ids")).unwrap();
        std::fs::create_dir(at.join("ids")).unwrap();
        assert!(saved().is_err());
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let state = AgentAzallState::new(None);
        state.append_ids(b"plain", true);
        state
            .save_delivered(&DeliveredRecipients::from([("p".to_owned(), ["b".to_owned()].into())]))
            .unwrap();
        assert!(state.delivered.lock().is_empty());
    }
}
