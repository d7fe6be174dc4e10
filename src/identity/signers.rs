//! The registry of keys that have signed for me. A key that goes missing is not replaced: readers who know it would
//! refuse the signatures of another under my name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::{KeyError, disk};
use crate::model::PublicKey;
use crate::model::locks::Mutex;
use crate::store::fs::{self, Stamp};

/// The last signing key of each place. The file is a JSON object of base64. It is read again when it changes: a person
/// may remove it, and other processes add to it.
#[derive(Debug)]
pub struct SignerRegistry {
    path: PathBuf,
    read_only: bool,
    list: Mutex<SignerList>,
}

/// The content of the file, or why it cannot be read.
#[derive(Debug)]
struct SignerList {
    /// The stamp of the file before it was read; `None` if there was no file.
    stamp: Option<Stamp>,
    keys: Result<BTreeMap<String, String>, String>,
}

impl SignerList {
    /// Reads the file; a missing one is empty.
    fn read(path: &Path) -> Self {
        let stamp = Stamp::from_path(path).ok().flatten();
        let keys = match fs::read_small_file(path, disk::MAX_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(e) => Err(e.to_string()),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| e.to_string()),
        };
        Self { stamp, keys }
    }

    /// Reads the file again if it is not the one that was read, or could not be read.
    fn refresh(&mut self, path: &Path) {
        let is_same = Stamp::from_path(path).is_ok_and(|now| now == self.stamp);
        if !is_same || self.keys.is_err() {
            *self = Self::read(path);
        }
    }
}

impl SignerRegistry {
    /// The place of the mount's own key. The place of a store's key is its folder.
    pub const OWN: &'static str = "msgfs";

    /// Reads the registry; a missing file is an empty one.
    pub fn open(path: &Path, read_only: bool) -> Self {
        let list = Mutex::new(SignerList::read(path));
        Self { path: path.to_owned(), read_only, list }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the key that signed last in a place, if any did, as the file has it now.
    ///
    /// # Errors
    /// [`KeyError::SignersUnreadable`] if the registry cannot be read: then nobody knows.
    pub fn last_key(&self, place: &str) -> Result<Option<PublicKey>, KeyError> {
        let mut list = self.list.lock();
        list.refresh(&self.path);
        let known = list.keys.as_ref().map_err(|e| self.unreadable(e))?;
        let Some(text) = known.get(place) else { return Ok(None) };
        let key = PublicKey::from_base64(text);
        key.map(Some).ok_or_else(|| self.unreadable("it holds something that is not a key"))
    }

    fn unreadable(&self, why: &str) -> KeyError {
        KeyError::SignersUnreadable(self.path.clone(), why.to_owned())
    }

    /// Records that a key signs in a place, beside what other processes recorded. The record is on disk when this
    /// returns.
    ///
    /// # Errors
    /// [`KeyError::SignersUnreadable`] if the registry cannot be read: it stays as it is. [`KeyError::Io`] if it cannot
    /// be written.
    pub fn record_key(&self, place: &str, key: PublicKey) -> Result<(), KeyError> {
        if self.read_only || self.last_key(place)? == Some(key) {
            return Ok(());
        }
        let io = |e| KeyError::Io(self.path.clone(), e);
        let mut list = self.list.lock();
        let _lock = disk::lock_beside(&self.path).map_err(io)?;
        *list = SignerList::read(&self.path);
        let mut new = list.keys.as_ref().map_err(|e| self.unreadable(e))?.clone();
        new.insert(place.to_owned(), key.to_base64());
        let text = serde_json::to_string_pretty(&new).map_err(|e| io(e.into()))?;
        disk::replace_file(&self.path, format!("{text}\n").as_bytes()).map_err(io)?;
        let stamp = Stamp::from_path(&self.path).map_err(io)?;
        *list = SignerList { stamp, keys: Ok(new) };
        Ok(())
    }

    /// Records a key like [`SignerRegistry::record_key`], but only logs that the registry cannot be read: a key that is
    /// there can sign.
    ///
    /// # Errors
    /// [`KeyError::Io`] if the registry cannot be written.
    pub fn record_key_if_readable(&self, place: &str, key: PublicKey) -> Result<(), KeyError> {
        match self.record_key(place, key) {
            Err(e @ KeyError::SignersUnreadable(..)) => {
                tracing::warn!("{e}");
                Ok(())
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_signed_is_known_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signers.json");
        let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let used = SignerRegistry::open(&path, false);
        assert_eq!(used.last_key(SignerRegistry::OWN).unwrap(), None);
        used.record_key(SignerRegistry::OWN, a).unwrap();
        used.record_key("/box", a).unwrap();
        used.record_key("/box", b).unwrap();
        let again = SignerRegistry::open(&path, true);
        assert_eq!(again.last_key(SignerRegistry::OWN).unwrap(), Some(a));
        assert_eq!(again.last_key("/box").unwrap(), Some(b));
        again.record_key("/box", a).unwrap();
        assert_eq!(
            SignerRegistry::open(&path, true).last_key("/box").unwrap(),
            Some(b),
            "only read"
        );
    }

    /// S1341: the file decides, whatever was read before.
    #[test]
    fn a_list_that_others_change_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signers.json");
        let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let (one, other) = (SignerRegistry::open(&path, false), SignerRegistry::open(&path, false));
        one.record_key("/a", a).unwrap();
        other.record_key("/b", b).unwrap();
        for used in [&one, &other, &SignerRegistry::open(&path, true)] {
            assert_eq!(used.last_key("/a").unwrap(), Some(a));
            assert_eq!(used.last_key("/b").unwrap(), Some(b));
        }
        std::fs::write(&path, "{ half").unwrap();
        assert!(matches!(one.last_key("/a"), Err(KeyError::SignersUnreadable(..))));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(one.last_key("/a").unwrap(), None);
        one.record_key("/a", b).unwrap();
        assert_eq!(other.last_key("/a").unwrap(), Some(b));
        assert_eq!(other.last_key("/b").unwrap(), None);
    }

    #[test]
    fn notes_that_cannot_be_read_say_nothing_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signers.json");
        for text in ["", "[]", "{\"msgfs\": \"AAAA\"}"] {
            std::fs::write(&path, text).unwrap();
            let used = SignerRegistry::open(&path, false);
            assert!(
                matches!(used.last_key(SignerRegistry::OWN), Err(KeyError::SignersUnreadable(..))),
                "{text}"
            );
            let error = used.record_key(SignerRegistry::OWN, PublicKey([1; 32])).unwrap_err();
            assert!(matches!(error, KeyError::SignersUnreadable(..)), "{error}");
            assert!(error.to_string().contains(&format!("mv {0} {0}.bad", path.display())));
            used.record_key_if_readable(SignerRegistry::OWN, PublicKey([1; 32])).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
