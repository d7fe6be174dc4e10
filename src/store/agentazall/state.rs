//! What is kept in the folder of msgfs's own state, because the cache may be lost: by what ids messages
//! are known ([`held`](super::held)), who has got mail that waits for others, and which texts were removed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;

use super::deliver::Delivered;
use super::held::Ledger;
use crate::store::{StoreError, fs, place};

/// Larger than either file becomes.
const LIMIT: u64 = 1 << 30;

/// The folder. Where there is none, nothing is kept and nothing fails.
#[derive(Debug, Default)]
pub(super) struct State {
    dir: Option<PathBuf>,
    ids: Mutex<Ids>,
    /// Who has got what, as the file has it.
    delivered: Mutex<Delivered>,
    /// Texts in `me/` that were removed, and the day.
    removed: Mutex<BTreeMap<String, String>>,
}

/// The file of ids, which is only ever added to.
#[derive(Debug, Default)]
struct Ids {
    file: Option<File>,
    /// What could not be written yet.
    unwritten: Vec<u8>,
}

impl State {
    /// Reads what is kept. The folder is made when there is something to keep.
    ///
    /// # Errors
    /// If there is something that cannot be read: without it, marks would pass to other messages and
    /// people would get mail twice.
    pub fn open(dir: Option<&Path>) -> Result<(Self, Ledger), StoreError> {
        let Some(dir) = dir else { return Ok((Self::default(), Ledger::default())) };
        let read = |name: &str| {
            let path = dir.join(name);
            fs::or_nothing(fs::read_small(&path, LIMIT)).map_err(|e| StoreError::io(&path, e))
        };
        let ledger = Ledger::load(&read("ids")?);
        let delivered = serde_json::from_slice(&read("delivered.json")?).unwrap_or_default();
        let removed = serde_json::from_slice(&read("removed.json")?).unwrap_or_default();
        let state = Self {
            dir: Some(dir.to_owned()),
            delivered: Mutex::new(delivered),
            removed: Mutex::new(removed),
            ..Self::default()
        };
        Ok((state, ledger))
    }

    /// Who has got what, as it was kept.
    pub fn delivered(&self) -> Delivered {
        self.delivered.lock().clone()
    }

    /// The day on which a text was removed last.
    pub fn removed(&self, text: &str) -> Option<String> {
        self.removed.lock().get(text).cloned()
    }

    /// Keeps that a text was removed. On disk when it returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn keep_removed(&self, text: &str, day: &str) -> Result<(), StoreError> {
        let mut removed = self.removed.lock();
        removed.insert(text.to_owned(), day.to_owned());
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join("removed.json");
        let text = serde_json::to_vec(&*removed).unwrap_or_default();
        fs::make_dirs(dir, 0o700)
            .and_then(|()| place::write_atomic(&path, &text, 0o600))
            .map_err(|e| StoreError::io(&path, e))
    }

    /// Adds lines to the file of ids; `sync` waits for the disk. What cannot be written is written
    /// the next time.
    pub fn add_ids(&self, lines: &[u8], sync: bool) {
        let Some(dir) = &self.dir else { return };
        let mut ids = self.ids.lock();
        ids.unwritten.extend_from_slice(lines);
        if ids.unwritten.is_empty() {
            return;
        }
        if let Err(error) = ids.write(dir, sync) {
            tracing::warn!(path = %dir.display(), %error, "the list of message ids could not be \
                saved");
        }
    }

    /// Keeps who has got what, if that changed. On disk when it returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn keep_delivered(&self, now: &Delivered) -> Result<(), StoreError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut kept = self.delivered.lock();
        if *kept == *now {
            return Ok(());
        }
        let path = dir.join("delivered.json");
        let text = serde_json::to_vec(now).unwrap_or_default();
        fs::make_dirs(dir, 0o700)
            .and_then(|()| place::write_atomic(&path, &text, 0o600))
            .map_err(|e| StoreError::io(&path, e))?;
        kept.clone_from(now);
        Ok(())
    }
}

impl Ids {
    fn write(&mut self, dir: &Path, sync: bool) -> io::Result<()> {
        if self.file.is_none() {
            fs::make_dirs(dir, 0o700)?;
            let mut file = fs::open_append(&dir.join("ids"), 0o600)?;
            // A line that was torn off takes no other with it.
            file.write_all(b"\n")?;
            fs::sync_dir(dir)?;
            self.file = Some(file);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(e) = file.write_all(&self.unwritten) {
            self.file = None;
            return Err(e);
        }
        self.unwritten.clear();
        if sync { file.sync_data() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::Held;
    use super::super::group::tests::kept;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_kept_comes_back_and_the_folder_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("stores/a");
        let (state, mut ledger) = State::open(Some(&at)).unwrap();
        state.add_ids(b"", true);
        state.keep_delivered(&Delivered::new()).unwrap();
        assert!(!at.exists(), "nothing is made for nothing");
        ledger.settle(&kept("a", "x", 1), Held::Plain);
        state.add_ids(&ledger.take_lines(), true);
        let delivered = Delivered::from([("p".to_owned(), ["bob".to_owned()].into())]);
        state.keep_delivered(&delivered).unwrap();
        assert_eq!(std::fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o700);
        for file in ["ids", "delivered.json"] {
            let mode = std::fs::metadata(at.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let (state, ledger) = State::open(Some(&at)).unwrap();
        assert_eq!(state.delivered(), delivered);
        assert!(ledger.look(&kept("a", "x", 2)).unwrap().taken);
        std::fs::write(at.join("delivered.json"), "{torn").unwrap();
        assert!(State::open(Some(&at)).unwrap().0.delivered().is_empty());
        std::fs::remove_file(at.join("ids")).unwrap();
        std::fs::create_dir(at.join("ids")).unwrap();
        assert!(State::open(Some(&at)).is_err());
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let (state, _) = State::open(None).unwrap();
        state.add_ids(b"plain", true);
        state
            .keep_delivered(&Delivered::from([("p".to_owned(), ["b".to_owned()].into())]))
            .unwrap();
        assert!(state.delivered().is_empty());
    }
}
