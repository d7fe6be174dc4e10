//! The notes of refused drafts that are not listed, for programs that ask for them by name: `rm outbox/*` asks for a
//! draft and for its note, and removes the draft first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::saved_drafts::SavedDrafts;
use crate::model::Timestamp;
use crate::model::locks::Mutex;

/// The time for which a note can be read and removed by its name.
const KEPT: Duration = Duration::from_secs(60);

/// One note.
#[derive(Debug)]
struct UnlistedNote {
    reason: String,
    time: Timestamp,
    since: Instant,
}

/// The notes by the names of their drafts.
#[derive(Debug, Default)]
pub(super) struct UnlistedNotes(Mutex<BTreeMap<String, UnlistedNote>>);

impl UnlistedNotes {
    /// Adds the note of a draft.
    pub fn add(&self, draft: &str, reason: &str) {
        let note = UnlistedNote {
            reason: reason.to_owned(),
            time: Timestamp::now(),
            since: Instant::now(),
        };
        self.0.lock().insert(draft.to_owned(), note);
    }

    /// Removes a note. Returns true if there was one.
    pub fn remove(&self, draft: &str) -> bool {
        self.0.lock().remove(draft).is_some()
    }

    /// Returns why a draft was refused that is not there any more, and the time.
    pub fn find(&self, saved_drafts: &SavedDrafts, draft: &str) -> Option<(String, Timestamp)> {
        let mut notes = self.0.lock();
        notes.retain(|name, note| note.since.elapsed() < KEPT && saved_drafts.get(name).is_none());
        notes.get(draft).map(|note| (note.reason.clone(), note.time))
    }
}
