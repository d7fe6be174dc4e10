//! Drafts that stay: refused ones with their note, and private ones in the making.
//!
//! They outlive the process: one file each in the state folder. While the folder takes no files, they are kept in
//! memory and their notes say so. They are saved as soon as it does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DraftTarget, Refusal, names};
use crate::model::{Timestamp, encode_hex};
use crate::store::{atomic_file, fs};

/// A draft that is not open and was not sent.
#[derive(Clone, Debug)]
pub struct SavedDraft {
    /// The name under which it was written, in the place of its `target`.
    pub name: String,
    /// The kind of message that a retry makes of it.
    pub target: DraftTarget,
    /// The text.
    pub text: Arc<[u8]>,
    /// The reason, if it was refused.
    pub error: Option<String>,
    /// The time at which it was written.
    pub time: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct SavedDraftFile {
    place: String,
    name: String,
    target: DraftTarget,
    text: String,
    error: Option<String>,
    time_ms: i64,
}

/// All saved drafts by name.
#[derive(Debug)]
pub(super) struct SavedDrafts {
    dir: PathBuf,
    drafts: BTreeMap<String, SavedDraft>,
    /// Places of drafts that are in memory only.
    unsaved: BTreeSet<String>,
}

/// The names about which the stores were asked, and for each true if it is that of a recipient. The stores may wait for
/// their disks, so they are asked without the lock of the saved drafts.
#[derive(Debug, Default)]
pub(super) struct AskedNames(BTreeMap<String, bool>);

impl AskedNames {
    /// Notes the answer of the stores about a name.
    pub fn insert(&mut self, name: String, is_recipient: bool) {
        self.0.insert(name, is_recipient);
    }

    /// Returns true if the name is that of a recipient.
    ///
    /// # Errors
    /// The name, if the stores were not asked about it.
    pub fn is_recipient(&self, name: &str) -> Result<bool, String> {
        self.0.get(name).copied().ok_or_else(|| name.to_owned())
    }
}

/// The remark in the note of a draft that could not be saved.
const UNSAVED: &str = "the state folder takes no drafts at present, so this one lasts only until the \
                       mount ends; make room there, or copy it to another place";

impl SavedDraft {
    /// Returns true if the draft is shown in `outbox/`: all but drafts in the making beside messages.
    pub fn is_shown(&self) -> bool {
        self.target == DraftTarget::Outbox || !names::is_private(&self.name)
    }

    /// Returns the name under which the draft is shown if it lies at this place.
    fn name_at<'a>(&'a self, place: &'a str) -> &'a str {
        if self.is_shown() { place } else { &self.name }
    }

    /// Returns the text of the note beside a refused draft. For a reply, which was written elsewhere, the note also
    /// says where the draft is now.
    pub(super) fn note_text(&self, place: &str) -> Option<String> {
        let error = self.error.as_deref()?;
        Some(if self.target == DraftTarget::Outbox || !self.is_shown() {
            error.to_owned()
        } else {
            format!(
                "{error}\nthe text is kept in outbox/{place}, where it can be mended or removed"
            )
        })
    }
}

impl SavedDrafts {
    /// Loads the drafts that earlier processes saved.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        fs::make_dirs(dir, 0o700)?;
        Self::open_read_only(dir)
    }

    /// Loads the drafts to look at only, and makes nothing on disk.
    pub fn open_read_only(dir: &Path) -> std::io::Result<Self> {
        let mut drafts = BTreeMap::new();
        let entries = match std::fs::read_dir(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        for entry in entries.into_iter().flatten().flatten() {
            let draft = fs::read_small_file(&entry.path(), 1 << 30)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<SavedDraftFile>(&bytes).ok());
            let Some(d) = draft else { continue };
            let Ok(text) = STANDARD.decode(&d.text) else { continue };
            let time = Timestamp::from_millis(d.time_ms);
            let (name, target) = (d.name, d.target);
            let kept = SavedDraft { name, target, text: text.into(), error: d.error, time };
            drafts.insert(d.place, kept);
        }
        Ok(Self { dir: dir.to_owned(), drafts, unsaved: BTreeSet::new() })
    }

    /// Returns the saved draft of a name.
    pub fn get(&self, name: &str) -> Option<&SavedDraft> {
        self.drafts.get(name)
    }

    /// Returns the place of the draft written under this name for this target.
    fn find_place(&self, name: &str, target: &DraftTarget) -> Option<&String> {
        let same = |k: &SavedDraft| k.name == name && k.target == *target;
        self.drafts.iter().find(|(_, k)| same(k)).map(|(place, _)| place)
    }

    /// Returns the draft written under this name for this target.
    pub fn find_draft(&self, name: &str, target: &DraftTarget) -> Option<&SavedDraft> {
        self.drafts.get(self.find_place(name, target)?)
    }

    /// Saves a draft: in place of an earlier one of its name and target, else under its name, or the next free one.
    /// Returns the name under which it is shown. No reply gets the name of a recipient.
    ///
    /// # Errors
    /// A name about which the stores must be asked first. Then nothing was saved.
    pub fn save_draft(&mut self, kept: SavedDraft, asked: &AskedNames) -> Result<String, String> {
        let place = match self.find_place(&kept.name, &kept.target) {
            Some(earlier) => earlier.clone(),
            None => self.find_free_place(&kept, asked)?,
        };
        let shown = kept.name_at(&place).to_owned();
        self.save_at(&place, kept);
        Ok(shown)
    }

    /// Returns the place of a new draft.
    ///
    /// # Errors
    /// A name about which the stores must be asked first.
    fn find_free_place(&self, kept: &SavedDraft, asked: &AskedNames) -> Result<String, String> {
        let is_reply = kept.is_shown() && kept.target != DraftTarget::Outbox;
        let hidden = || unlisted_place(&kept.name, &kept.target);
        let name = if kept.is_shown() { kept.name.clone() } else { hidden() };
        // A whole address with a number behind it may be another address.
        let numbered = if is_reply { name.replace('@', ".") } else { name.clone() };
        for place in std::iter::once(name).chain(names::numbered_names(numbered)) {
            let is_free = !self.drafts.contains_key(&place);
            if is_free && !(is_reply && asked.is_recipient(&place)?) {
                return Ok(place);
            }
        }
        panic!("the names with a number behind them came to an end")
    }

    /// Moves the reply at this place to another place, and returns that place. The reply stays if it cannot be saved
    /// there: its present file may be the only one that outlives the process.
    ///
    /// # Errors
    /// A name about which the stores must be asked first. Then nothing was moved.
    pub fn move_aside(&mut self, place: &str, asked: &AskedNames) -> Result<String, String> {
        let Some(mut kept) = self.drafts.get(place).cloned() else { return Ok(place.to_owned()) };
        let moved = self.find_free_place(&kept, asked)?;
        kept.error = kept.error.map(|error| strip_unsaved_remark(&error).to_owned());
        if let Err(e) = self.write_file(&moved, &kept) {
            tracing::error!(name = %crate::model::sanitize_line(place), error = %e, "a refused \
                answer could not be moved");
            return Ok(place.to_owned());
        }
        self.drafts.insert(moved.clone(), kept);
        self.remove(place);
        self.save_unsaved();
        Ok(moved)
    }

    /// Forgets the draft written under this name for this target. Returns the name under which it was shown.
    pub fn forget_draft(&mut self, name: &str, target: &DraftTarget) -> Option<String> {
        let place = self.find_place(name, target).cloned();
        let forgotten = place.and_then(|place| self.remove(&place));
        // Something was sent, so there may be room again.
        self.save_unsaved();
        forgotten.map(|(shown, _)| shown)
    }

    /// Returns all saved drafts with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &SavedDraft)> {
        self.drafts.iter()
    }

    /// Returns the newest refusal among the saved drafts.
    pub fn last_refusal(&self) -> Option<Refusal> {
        let refused = self.iter().filter_map(|(place, kept)| {
            let (reason, time) = (kept.error.clone()?, kept.time);
            Some(Refusal { name: kept.name_at(place).to_owned(), reason, time })
        });
        refused.max_by_key(|r| r.time)
    }

    /// Saves a draft. If it does not reach the disk, its note says so, and it stays in memory.
    pub fn save_at(&mut self, place: &str, mut kept: SavedDraft) {
        match self.write_file(place, &kept) {
            Ok(()) => {
                self.unsaved.remove(place);
                self.drafts.insert(place.to_owned(), kept);
                self.save_unsaved();
            }
            Err(e) => {
                tracing::error!(name = %crate::model::sanitize_line(place), error = %e, "a refused \
                    draft could not be saved; it lasts until the mount ends");
                let said = |error: String| format!("{}\n{UNSAVED}", strip_unsaved_remark(&error));
                kept.error = kept.error.map(said);
                self.unsaved.insert(place.to_owned());
                self.drafts.insert(place.to_owned(), kept);
            }
        }
    }

    /// Saves the drafts that are in memory only, if possible now.
    pub fn save_unsaved(&mut self) {
        while let Some(place) = self.unsaved.pop_first() {
            let Some(mut kept) = self.drafts.get(&place).cloned() else { continue };
            kept.error = kept.error.map(|error| strip_unsaved_remark(&error).to_owned());
            if self.write_file(&place, &kept).is_err() {
                self.unsaved.insert(place);
                return;
            }
            self.drafts.insert(place, kept);
        }
    }

    fn write_file(&self, place: &str, kept: &SavedDraft) -> std::io::Result<()> {
        let on_disk = SavedDraftFile {
            place: place.to_owned(),
            name: kept.name.clone(),
            target: kept.target.clone(),
            text: STANDARD.encode(&kept.text),
            error: kept.error.clone(),
            time_ms: kept.time.millis(),
        };
        let bytes = serde_json::to_vec(&on_disk)?;
        atomic_file::write_atomic(&self.file_path(place), &bytes, 0o600)
    }

    /// Removes the draft at this place. Returns it and the name under which it was shown.
    fn remove(&mut self, place: &str) -> Option<(String, SavedDraft)> {
        let kept = self.drafts.remove(place)?;
        let _ = std::fs::remove_file(self.file_path(place));
        Some((kept.name_at(place).to_owned(), kept))
    }

    /// Returns the place of the draft that has this name there. In `outbox/` the place counts: refused replies lie
    /// there, too.
    pub fn resolve_place(&self, name: &str, target: &DraftTarget) -> Option<String> {
        match target {
            DraftTarget::Outbox => self.drafts.contains_key(name).then(|| name.to_owned()),
            _ => self.find_place(name, target).cloned(),
        }
    }

    /// Returns the draft that has this name there.
    pub fn resolve_draft(&self, name: &str, target: &DraftTarget) -> Option<&SavedDraft> {
        self.drafts.get(&self.resolve_place(name, target)?)
    }

    /// Removes the draft that has this name there. Returns it and the name under which it was shown.
    pub fn remove_draft(
        &mut self,
        name: &str,
        target: &DraftTarget,
    ) -> Option<(String, SavedDraft)> {
        self.remove(&self.resolve_place(name, target)?)
    }

    fn file_path(&self, name: &str) -> PathBuf {
        let mut hex = encode_hex(&Sha256::digest(name.as_bytes()));
        hex.truncate(32);
        self.dir.join(hex)
    }
}

/// Returns the place of a draft that is not listed in `outbox/`.
pub(super) fn unlisted_place(name: &str, target: &DraftTarget) -> String {
    if *target == DraftTarget::Outbox { name.to_owned() } else { format!(".in-thread.{name}") }
}

/// Returns a note without its remark that the state folder could not save it.
fn strip_unsaved_remark(error: &str) -> &str {
    error.strip_suffix(UNSAVED).map_or(error, |error| error.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `act` as the outbox does: with the names about which it asks.
    fn ask<T>(
        is_recipient: impl Fn(&str) -> bool,
        mut act: impl FnMut(&AskedNames) -> Result<T, String>,
    ) -> T {
        let mut asked = AskedNames::default();
        loop {
            match act(&asked) {
                Ok(done) => return done,
                Err(name) => asked.insert(name.clone(), is_recipient(&name)),
            }
        }
    }

    fn kept(name: &str, target: DraftTarget, error: Option<&str>) -> SavedDraft {
        let error = error.map(str::to_owned);
        let (text, time) = (b"hi\xff".to_vec().into(), Timestamp::from_secs(5));
        SavedDraft { name: name.into(), target, text, error, time }
    }

    #[test]
    fn drafts_of_one_name_for_different_targets_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let mut saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        let thread = |id: &str| DraftTarget::Thread { store: "samp".into(), id: id.into() };
        let mut save =
            |kept: SavedDraft| ask(|_| false, |asked| saved_drafts.save_draft(kept.clone(), asked));
        save(kept("new", DraftTarget::Outbox, Some("why")));
        save(kept("new", thread("a"), Some("why")));
        save(kept("new", thread("a"), Some("again")));
        save(kept(".new", thread("b"), None));
        let places: Vec<&String> = saved_drafts.iter().map(|(p, _)| p).collect();
        assert_eq!(places, [".in-thread..new", "new", "new.2"]);
        assert_eq!(saved_drafts.iter().filter(|(_, k)| k.is_shown()).count(), 2);
        assert_eq!(
            saved_drafts.find_draft("new", &thread("a")).unwrap().error.as_deref(),
            Some("again")
        );
        saved_drafts.forget_draft("new", &thread("a"));
        assert!(saved_drafts.find_draft("new", &thread("a")).is_none());
        assert!(saved_drafts.find_draft("new", &DraftTarget::Outbox).is_some());
    }

    /// S1201.
    #[test]
    fn an_answer_never_lies_under_the_name_of_a_recipient() {
        let dir = tempfile::tempdir().unwrap();
        let mut saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        let thread = DraftTarget::Thread { store: "samp".into(), id: "a".into() };
        let is_recipient = |name: &str| name == "bob" || name == "bob.2" || name.contains('@');
        for (name, place) in [("bob", "bob.3"), ("new@host", "new.host"), ("zed", "zed")] {
            let answer = kept(name, thread.clone(), Some("why"));
            let shown = ask(is_recipient, |asked| saved_drafts.save_draft(answer.clone(), asked));
            assert_eq!(shown, place);
        }
        let draft = kept("bob", DraftTarget::Outbox, Some("why"));
        // The name of a draft is not asked about.
        assert_eq!(saved_drafts.save_draft(draft, &AskedNames::default()).unwrap(), "bob");
        // Somebody becomes known by the name of a draft.
        let moved = ask(|name| name == "zed", |asked| saved_drafts.move_aside("zed", asked));
        assert_eq!(moved, "zed.2");
        let saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        let places: Vec<&String> = saved_drafts.iter().map(|(place, _)| place).collect();
        assert_eq!(places, ["bob", "bob.3", "new.host", "zed.2"]);
        assert_eq!(saved_drafts.get("zed.2").unwrap().name, "zed");
    }

    #[test]
    fn drafts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let kept = kept("bob", DraftTarget::Outbox, Some("why"));
        let mut saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        saved_drafts.save_at("../bob", kept.clone());
        saved_drafts.save_at("x", kept);
        saved_drafts.remove("x");
        let saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        let names: Vec<&String> = saved_drafts.iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["../bob"]);
        let back = saved_drafts.get("../bob").unwrap();
        assert_eq!((&back.text[..], back.error.as_deref()), (&b"hi\xff"[..], Some("why")));
    }

    /// A kill at any moment leaves the text on disk.
    #[test]
    fn an_answer_whose_new_place_cannot_be_saved_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut saved_drafts = SavedDrafts::open(dir.path()).unwrap();
        let thread = DraftTarget::Thread { store: "samp".into(), id: "a".into() };
        saved_drafts.save_at("zed", kept("zed", thread, Some("why")));
        // A folder lies where the file would.
        let in_the_way = saved_drafts.file_path("zed.2");
        std::fs::create_dir(&in_the_way).unwrap();
        let mut moved = || ask(|name| name == "zed", |asked| saved_drafts.move_aside("zed", asked));
        assert_eq!(moved(), "zed");
        let on_disk = |place: &str| {
            let saved_drafts = SavedDrafts::open(dir.path()).unwrap();
            saved_drafts.get(place).and_then(|kept| kept.error.clone())
        };
        assert_eq!(on_disk("zed").as_deref(), Some("why"));
        std::fs::remove_dir(&in_the_way).unwrap();
        assert_eq!(moved(), "zed.2");
        assert_eq!(on_disk("zed.2").as_deref(), Some("why"));
        assert_eq!(on_disk("zed"), None);
    }

    #[test]
    fn a_draft_that_cannot_be_saved_says_so_and_is_saved_later() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("drafts");
        let mut saved_drafts = SavedDrafts::open(&at).unwrap();
        let kept = kept("bob", DraftTarget::Outbox, Some("why"));
        std::fs::remove_dir(&at).unwrap();
        std::fs::write(&at, "in the way").unwrap();
        for _ in 0..2 {
            saved_drafts.save_draft(kept.clone(), &AskedNames::default()).unwrap();
            let error = saved_drafts.get("bob").unwrap().error.clone().unwrap();
            assert_eq!(error, format!("why\n{UNSAVED}"));
        }
        std::fs::remove_file(&at).unwrap();
        std::fs::create_dir(&at).unwrap();
        saved_drafts.save_unsaved();
        assert_eq!(saved_drafts.get("bob").unwrap().error.as_deref(), Some("why"));
        assert_eq!(
            SavedDrafts::open(&at).unwrap().get("bob").unwrap().error.as_deref(),
            Some("why")
        );
    }
}
