//! Drafts that stay: refused ones with the note that says why, and private ones in the making.
//!
//! They outlive the process: one file each in the state folder. While that takes nothing, they are kept in
//! memory, their notes say so, and they are saved as soon as it does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Refusal, Target, names};
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
    /// Places of drafts that are in memory only.
    unsaved: BTreeSet<String>,
}

/// What the note of a draft says that could not be saved.
const UNSAVED: &str = "the state folder takes no drafts at present, so this one lasts only until the \
                       mount ends; make room there, or copy it to another place";

impl Kept {
    /// Whether it is shown in `outbox/`: everything but drafts in the making beside messages.
    pub fn is_shown(&self) -> bool {
        self.target == Target::Outbox || !names::is_private(&self.name)
    }

    /// What the note beside it says, if it was refused: of an answer, which was written elsewhere, also
    /// where it is now.
    pub(super) fn note(&self, place: &str) -> Option<String> {
        let error = self.error.as_deref()?;
        Some(if self.target == Target::Outbox || !self.is_shown() {
            error.to_owned()
        } else {
            format!(
                "{error}\nthe text is kept in outbox/{place}, where it can be mended or removed"
            )
        })
    }
}

impl Shelf {
    /// Loads what earlier processes kept.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        fs::make_dirs(dir, 0o700)?;
        Self::open_read_only(dir)
    }

    /// The same to look at only: nothing is made.
    pub fn open_read_only(dir: &Path) -> std::io::Result<Self> {
        let mut drafts = BTreeMap::new();
        let entries = match std::fs::read_dir(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        for entry in entries.into_iter().flatten().flatten() {
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
        Ok(Self { dir: dir.to_owned(), drafts, unsaved: BTreeSet::new() })
    }

    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.drafts.get(name)
    }

    /// The place of what was written under this name for this target.
    fn place(&self, name: &str, target: &Target) -> Option<&String> {
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
            let hidden = || unlisted(&kept.name, &kept.target);
            let mut places =
                names::numbered(if kept.is_shown() { kept.name.clone() } else { hidden() });
            places.find(|place| !self.drafts.contains_key(place)).unwrap_or_default()
        });
        self.put(&place, kept);
    }

    /// Forgets what was written under this name for this target.
    pub fn forget(&mut self, name: &str, target: &Target) {
        if let Some(place) = self.place(name, target).cloned() {
            self.remove(&place);
        }
        // Something was sent, so there is room again.
        self.save_rest();
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.drafts.iter()
    }

    /// The newest refusal of what is kept.
    pub fn last_refusal(&self) -> Option<Refusal> {
        let refused = self.iter().filter_map(|(place, kept)| {
            let (reason, time) = (kept.error.clone()?, kept.time);
            let name = if kept.is_shown() { place } else { &kept.name };
            Some(Refusal { name: name.clone(), reason, time })
        });
        refused.max_by_key(|r| r.time)
    }

    /// Keeps a draft. That it may not reach the disk is told in its note and no reason to lose it from
    /// memory.
    pub fn put(&mut self, place: &str, mut kept: Kept) {
        match self.write(place, &kept) {
            Ok(()) => {
                self.unsaved.remove(place);
                self.drafts.insert(place.to_owned(), kept);
                self.save_rest();
            }
            Err(e) => {
                tracing::error!(name = %crate::model::one_line(place), error = %e, "a refused \
                    draft could not be saved; it lasts until the mount ends");
                let said = |error: String| format!("{}\n{UNSAVED}", without_unsaved(&error));
                kept.error = kept.error.map(said);
                self.unsaved.insert(place.to_owned());
                self.drafts.insert(place.to_owned(), kept);
            }
        }
    }

    /// Saves what is in memory only, if that can be done now.
    pub fn save_rest(&mut self) {
        while let Some(place) = self.unsaved.pop_first() {
            let Some(mut kept) = self.drafts.get(&place).cloned() else { continue };
            kept.error = kept.error.map(|error| without_unsaved(&error).to_owned());
            if self.write(&place, &kept).is_err() {
                self.unsaved.insert(place);
                return;
            }
            self.drafts.insert(place, kept);
        }
    }

    fn write(&self, place: &str, kept: &Kept) -> std::io::Result<()> {
        let on_disk = OnDisk {
            place: place.to_owned(),
            name: kept.name.clone(),
            target: kept.target.clone(),
            text: STANDARD.encode(&kept.text),
            error: kept.error.clone(),
            time_ms: kept.time.millis(),
        };
        let bytes = serde_json::to_vec(&on_disk)?;
        place::write_atomic(&self.path(place), &bytes, 0o600)
    }

    fn remove(&mut self, place: &str) -> Option<Kept> {
        let kept = self.drafts.remove(place)?;
        let _ = std::fs::remove_file(self.path(place));
        Some(kept)
    }

    /// The place of the draft that has this name there. In `outbox/` the place counts: what was refused
    /// in a thread lies there, too.
    pub fn place_at(&self, name: &str, target: &Target) -> Option<String> {
        match target {
            Target::Outbox => self.drafts.contains_key(name).then(|| name.to_owned()),
            _ => self.place(name, target).cloned(),
        }
    }

    /// The draft that has this name there.
    pub fn at(&self, name: &str, target: &Target) -> Option<&Kept> {
        self.drafts.get(&self.place_at(name, target)?)
    }

    /// Takes it out.
    pub fn take(&mut self, name: &str, target: &Target) -> Option<Kept> {
        self.remove(&self.place_at(name, target)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        let mut hex = hex(&Sha256::digest(name.as_bytes()));
        hex.truncate(32);
        self.dir.join(hex)
    }
}

/// The place of what is not listed in `outbox/`.
pub(super) fn unlisted(name: &str, target: &Target) -> String {
    if *target == Target::Outbox { name.to_owned() } else { format!(".in-thread.{name}") }
}

/// Returns a note without its remark that the state folder could not save it.
fn without_unsaved(error: &str) -> &str {
    error.strip_suffix(UNSAVED).map_or(error, |error| error.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str, target: Target, error: Option<&str>) -> Kept {
        let error = error.map(str::to_owned);
        let (text, time) = (b"hi\xff".to_vec().into(), Timestamp::from_secs(5));
        Kept { name: name.into(), target, text, error, time }
    }

    #[test]
    fn drafts_of_one_name_for_different_targets_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let mut shelf = Shelf::open(dir.path()).unwrap();
        let thread = |id: &str| Target::Thread { store: "samp".into(), id: id.into() };
        shelf.keep(kept("new", Target::Outbox, Some("why")));
        shelf.keep(kept("new", thread("a"), Some("why")));
        shelf.keep(kept("new", thread("a"), Some("again")));
        shelf.keep(kept(".new", thread("b"), None));
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
        let kept = kept("bob", Target::Outbox, Some("why"));
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

    #[test]
    fn a_draft_that_cannot_be_saved_says_so_and_is_saved_later() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("drafts");
        let mut shelf = Shelf::open(&at).unwrap();
        let kept = kept("bob", Target::Outbox, Some("why"));
        std::fs::remove_dir(&at).unwrap();
        std::fs::write(&at, "in the way").unwrap();
        for _ in 0..2 {
            shelf.keep(kept.clone());
            let error = shelf.get("bob").unwrap().error.clone().unwrap();
            assert_eq!(error, format!("why\n{UNSAVED}"));
        }
        std::fs::remove_file(&at).unwrap();
        std::fs::create_dir(&at).unwrap();
        shelf.save_rest();
        assert_eq!(shelf.get("bob").unwrap().error.as_deref(), Some("why"));
        assert_eq!(Shelf::open(&at).unwrap().get("bob").unwrap().error.as_deref(), Some("why"));
    }
}
