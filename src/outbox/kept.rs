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
use crate::store::{fs, place};

/// A draft that is not open and was not sent.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The name under which it was written, in the place that `target` says.
    pub name: String,
    /// What a retry does.
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
    place: String,
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

impl Kept {
    /// Whether it is shown in `outbox/`: everything but drafts in the making in a thread's folder.
    pub fn is_shown(&self) -> bool {
        !(matches!(self.target, Target::Thread { .. }) && super::names::is_private(&self.name))
    }
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
            let (name, target) = (d.name, d.target);
            let kept = Kept { name, target, text: text.into(), error: d.error, time };
            drafts.insert(d.place, kept);
        }
        Ok(Self { dir: dir.to_owned(), drafts })
    }

    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.drafts.get(name)
    }

    /// The place of what was written under this name for this target.
    pub fn place(&self, name: &str, target: &Target) -> Option<&String> {
        let same = |k: &Kept| k.name == name && k.target == *target;
        self.drafts.iter().find(|(_, k)| same(k)).map(|(place, _)| place)
    }

    /// What was written under this name for this target.
    pub fn find(&self, name: &str, target: &Target) -> Option<&Kept> {
        self.drafts.get(self.place(name, target)?)
    }

    /// Keeps a draft: in place of an earlier one of its name and target, else under its name, or the
    /// next free one.
    pub fn keep(&mut self, kept: Kept) {
        let place = self.place(&kept.name, &kept.target).cloned().unwrap_or_else(|| {
            let hidden = if kept.is_shown() { "" } else { ".in-thread." };
            let name = format!("{hidden}{}", kept.name);
            let numbered = (2..).map(|n| format!("{name}.{n}"));
            std::iter::once(name.clone())
                .chain(numbered)
                .find(|place| !self.drafts.contains_key(place))
                .unwrap_or(name)
        });
        self.put(&place, kept);
    }

    /// Forgets what was written under this name for this target.
    pub fn forget(&mut self, name: &str, target: &Target) {
        if let Some(place) = self.place(name, target).cloned() {
            self.remove(&place);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.drafts.iter()
    }

    /// Keeps a draft. That it may not reach the disk is logged and no reason to lose it from memory.
    pub fn put(&mut self, place: &str, kept: Kept) {
        let on_disk = OnDisk {
            place: place.to_owned(),
            name: kept.name.clone(),
            target: kept.target.clone(),
            text: STANDARD.encode(&kept.text),
            error: kept.error.clone(),
            time_ms: kept.time.millis(),
        };
        let written = serde_json::to_vec(&on_disk)
            .map_err(std::io::Error::from)
            .and_then(|bytes| place::write_atomic(&self.path(place), &bytes, 0o600));
        if let Err(e) = written {
            tracing::error!(name = %crate::model::one_line(place), error = %e, "draft kept in memory only");
        }
        self.drafts.insert(place.to_owned(), kept);
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
    fn drafts_of_one_name_for_different_targets_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let mut shelf = Shelf::open(dir.path()).unwrap();
        let thread = |id: &str| Target::Thread { store: "samp".into(), id: id.into() };
        let kept = |target, error: Option<&str>| Kept {
            name: "new".into(),
            target,
            text: b"x".to_vec().into(),
            error: error.map(str::to_owned),
            time: Timestamp::from_secs(5),
        };
        shelf.keep(kept(Target::Outbox, Some("why")));
        shelf.keep(kept(thread("a"), Some("why")));
        shelf.keep(kept(thread("a"), Some("again")));
        shelf.keep(Kept { name: ".new".into(), ..kept(thread("b"), None) });
        let places: Vec<&String> = shelf.iter().map(|(p, _)| p).collect();
        assert_eq!(places, [".in-thread..new", "new", "new.2"]);
        assert_eq!(shelf.iter().filter(|(_, k)| k.is_shown()).count(), 2);
        assert_eq!(shelf.find("new", &thread("a")).unwrap().error.as_deref(), Some("again"));
        shelf.forget("new", &thread("a"));
        assert!(shelf.find("new", &thread("a")).is_none());
        assert!(shelf.find("new", &Target::Outbox).is_some());
    }

    #[test]
    fn drafts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept {
            name: "bob".into(),
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
