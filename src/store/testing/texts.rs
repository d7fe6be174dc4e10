//! A notebook in memory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::{Notebook, NotebookEntry, StoreError};

/// Texts and their times, by folder and name.
type Kept = BTreeMap<(String, String), (Vec<u8>, Timestamp)>;

/// The texts, and the names that were written, in order.
#[derive(Debug, Default)]
pub struct Texts {
    kept: Mutex<Kept>,
    pub written: Mutex<Vec<(String, String)>>,
    pub full: AtomicBool,
    /// True if texts can be removed.
    pub removable: AtomicBool,
}

impl Texts {
    pub fn put(&self, folder: &str, name: &str, text: &str) {
        let mut texts = self.kept.lock();
        let time = Timestamp::from_secs(1_000 + texts.len() as i64);
        texts.insert((folder.into(), name.into()), (text.into(), time));
    }

    pub fn get(&self, folder: &str, name: &str) -> Option<String> {
        let texts = self.kept.lock();
        let (text, _) = texts.get(&(folder.to_owned(), name.to_owned()))?;
        Some(String::from_utf8(text.clone()).unwrap())
    }
}

impl Notebook for Texts {
    fn folders(&self) -> &'static [&'static str] {
        &["notes", "plans"]
    }

    fn list_entries(&self, folder: &str) -> Vec<NotebookEntry> {
        let texts = self.kept.lock();
        let of = texts.iter().filter(|((f, _), _)| f == folder);
        of.map(|((_, name), (text, time))| NotebookEntry {
            name: name.clone(),
            size: text.len() as u64,
            modified: *time,
        })
        .collect()
    }

    fn read_entry(&self, folder: &str, name: &str) -> io::Result<Vec<u8>> {
        let texts = self.kept.lock();
        let text = texts.get(&(folder.to_owned(), name.to_owned()));
        text.map(|(text, _)| text.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn check_name(&self, _folder: &str, name: &str) -> Result<(), StoreError> {
        if name.strip_suffix(".txt").is_some() {
            return Ok(());
        }
        Err(StoreError::Invalid(format!("{name}: names of texts end in .txt")))
    }

    fn write_entry(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError> {
        self.check_name(folder, name)?;
        if self.full.load(Ordering::Relaxed) {
            let full = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(StoreError::io(Path::new(name), full));
        }
        self.put(folder, name, &String::from_utf8_lossy(text));
        self.written.lock().push((name.to_owned(), String::from_utf8_lossy(text).into_owned()));
        Ok(())
    }

    fn can_remove(&self) -> bool {
        self.removable.load(Ordering::Relaxed)
    }

    fn remove_entry(&self, folder: &str, name: &str) -> Result<(), StoreError> {
        self.kept.lock().remove(&(folder.to_owned(), name.to_owned()));
        Ok(())
    }
}
