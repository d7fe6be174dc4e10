//! Drafts that stay: refused ones with the note that says why, and private ones in the making.
//!
//! They outlive the process: one file each in the state folder.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Target;
use crate::model::{Timestamp, hex};
use crate::store::fs;

/// A draft that is not open and was not sent.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What a retry under this name does.
    pub target: Target,
    /// The text.
    pub text: Arc<[u8]>,
    /// Why it was refused, if it was.
    pub error: Option<String>,
    /// When it was written.
    pub time: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct OnDisk {
    name: String,
    target: Target,
    text: String,
    error: Option<String>,
    time_ms: i64,
}

/// All kept drafts by name.
#[derive(Debug)]
pub(super) struct Shelf {
    dir: PathBuf,
    drafts: BTreeMap<String, Kept>,
}

impl Shelf {
    /// Loads what earlier processes kept.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut drafts = BTreeMap::new();
        for entry in std::fs::read_dir(dir)?.flatten() {
            let draft = fs::read_small(&entry.path(), 1 << 30)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<OnDisk>(&bytes).ok());
            let Some(d) = draft else { continue };
            let Ok(text) = STANDARD.decode(&d.text) else { continue };
            let time = Timestamp::from_millis(d.time_ms);
            let kept = Kept { target: d.target, text: text.into(), error: d.error, time };
            drafts.insert(d.name, kept);
        }
        Ok(Self { dir: dir.to_owned(), drafts })
    }

    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.drafts.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.drafts.iter()
    }

    /// Keeps a draft. That it may not reach the disk is logged and no reason to lose it from memory.
    pub fn put(&mut self, name: &str, kept: Kept) {
        let on_disk = OnDisk {
            name: name.to_owned(),
            target: kept.target.clone(),
            text: STANDARD.encode(&kept.text),
            error: kept.error.clone(),
            time_ms: kept.time.millis(),
        };
        let written = serde_json::to_vec(&on_disk)
            .map_err(std::io::Error::from)
            .and_then(|bytes| fs::write_atomic(&self.path(name), &bytes, 0o600));
        if let Err(e) = written {
            tracing::error!(name = %crate::model::one_line(name), error = %e, "draft kept in memory only");
        }
        self.drafts.insert(name.to_owned(), kept);
    }

    pub fn remove(&mut self, name: &str) -> Option<Kept> {
        let kept = self.drafts.remove(name)?;
        let _ = std::fs::remove_file(self.path(name));
        Some(kept)
    }

    fn path(&self, name: &str) -> PathBuf {
        let mut hex = hex(&Sha256::digest(name.as_bytes()));
        hex.truncate(32);
        self.dir.join(hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept {
            target: Target::Outbox,
            text: b"hi\xff".to_vec().into(),
            error: Some("why".into()),
            time: Timestamp::from_secs(5),
        };
        let mut shelf = Shelf::open(dir.path()).unwrap();
        shelf.put("../bob", kept.clone());
        shelf.put("x", kept);
        shelf.remove("x");
        let shelf = Shelf::open(dir.path()).unwrap();
        let names: Vec<&String> = shelf.iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["../bob"]);
        let back = shelf.get("../bob").unwrap();
        assert_eq!((&back.text[..], back.error.as_deref()), (&b"hi\xff"[..], Some("why")));
    }
}
