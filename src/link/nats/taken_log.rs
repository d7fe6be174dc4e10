//! The proof that the server of a link has taken lines of a log: the saved state of the link, and the log itself. It
//! needs no running link, and holds over restarts.

use std::path::{Path, PathBuf};

use super::log::NatsLogFolder;
use super::state::{self, SubjectPosition};
use crate::link::TakenLogProof;
use crate::model::locks::Mutex;
use crate::store::fs::Stamp;

/// The log of one writer in a folder whose lines a link carries.
#[derive(Debug)]
pub struct NatsTakenLog {
    folder: PathBuf,
    writer: String,
    journal: PathBuf,
    /// The position that the journal of this stamp has.
    cached_position: Mutex<Option<(Stamp, SubjectPosition)>>,
}

impl NatsTakenLog {
    /// Returns the log of a writer in a folder. The link saves its state in the folder `state`.
    pub fn new(folder: &Path, writer: &str, state: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            writer: writer.to_owned(),
            journal: state.join(state::JOURNAL),
            cached_position: Mutex::default(),
        }
    }

    fn find_ranges(&self) -> Option<Vec<(u64, u64)>> {
        let place = self.read_position()?;
        let file = NatsLogFolder::open(&self.folder).ok()?.open_log(&self.writer).ok()??;
        place.is_of(&file).ok()?.then(|| place.published_ranges())
    }

    fn read_position(&self) -> Option<SubjectPosition> {
        // The stamp is taken before the content, so that a later change is noticed.
        let stamp = Stamp::from_path(&self.journal).ok()??;
        let mut cached = self.cached_position.lock();
        if cached.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let (_, mut places) = state::read_journal(&self.journal).ok()?;
            *cached = Some((stamp, places.remove(&self.writer).unwrap_or_default()));
        }
        cached.as_ref().map(|(_, place)| place.clone())
    }
}

impl TakenLogProof for NatsTakenLog {
    fn taken_ranges(&self) -> Vec<(u64, u64)> {
        self.find_ranges().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::link::nats::line::PublishedLine;
    use crate::link::nats::log::NatsLogTail;
    use crate::link::nats::state::NatsState;

    const LOG: &str = "{\"n\":1}\n{\"n\":2}\n";

    /// Saves the position behind the second line of the log of `a`.
    fn save(dir: &Path, change: impl FnOnce(&mut SubjectPosition)) {
        let line = PublishedLine { at: 8, bytes: b"{\"n\":2}\n", id: String::new() };
        let tail = Some(NatsLogTail::from_line(&line));
        let mut place = SubjectPosition { end: 16, seq: 2, tail, ..SubjectPosition::default() };
        change(&mut place);
        let (mut state, _) = NatsState::open(&dir.join("state")).unwrap().unwrap();
        let changed = [("a", &place)];
        state.save_changes(changed.into_iter(), changed.into_iter()).unwrap();
    }

    #[test]
    fn the_saved_state_and_the_log_prove_what_was_taken() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-a.jsonl");
        let taken = NatsTakenLog::new(dir.path(), "a", &dir.path().join("state"));
        let none: [(u64, u64); 0] = [];
        assert_eq!(taken.taken_ranges(), none, "nothing is saved");
        save(dir.path(), |_| {});
        assert_eq!(taken.taken_ranges(), none, "there is no log");
        fs::write(&log, format!("{LOG}{{\"n\":3}}\n")).unwrap();
        assert_eq!(taken.taken_ranges(), [(0, 16)]);
        let other = NatsTakenLog::new(dir.path(), "b", &dir.path().join("state"));
        assert_eq!(other.taken_ranges(), none);
        for other in ["{\"n\":1}\n{\"n\":9}\n{\"n\":3}\n", "{\"n\":2}\n", ""] {
            fs::write(&log, other).unwrap();
            assert_eq!(taken.taken_ranges(), none, "another log: {other}");
        }
        fs::write(&log, LOG).unwrap();
        assert_eq!(taken.taken_ranges(), [(0, 16)]);
        save(dir.path(), |place| place.tail = None);
        assert_eq!(taken.taken_ranges(), none, "an earlier build saved it");
        save(dir.path(), |place| place.end = 24);
        assert_eq!(taken.taken_ranges(), none, "its last line is elsewhere");
        save(dir.path(), |_| {});
        assert_eq!(taken.taken_ranges(), [(0, 16)]);
    }

    /// Lines that stay here prove nothing for themselves, and nothing against the others.
    #[test]
    fn lines_that_stay_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-a.jsonl");
        let taken = NatsTakenLog::new(dir.path(), "a", &dir.path().join("state"));
        fs::write(&log, format!("{LOG}odd\n{{\"n\":3}}\n")).unwrap();
        let ino = Stamp::from_path(&log).unwrap().unwrap().ino;
        let mut place = SubjectPosition::default();
        save(dir.path(), |saved| {
            saved.pass_local_line(ino, (b"odd\n", 20), false);
            place = saved.clone();
        });
        assert_eq!(taken.taken_ranges(), [(0, 16)]);
        place.pass_local_line(ino, (b"{\"n\":3}\n", 28), true);
        save(dir.path(), |saved| *saved = place.clone());
        assert_eq!(taken.taken_ranges(), [(0, 16), (20, 28)]);
        fs::write(&log, format!("{LOG}odd\n{{\"n\":4}}\n")).unwrap();
        assert_eq!(taken.taken_ranges(), [(0, 0); 0], "another log");
        fs::remove_file(&log).unwrap();
        // An earlier build did not save which lines stay.
        fs::write(&log, format!("{LOG}odd\n")).unwrap();
        let ino = Stamp::from_path(&log).unwrap().unwrap().ino;
        save(dir.path(), |saved| saved.set_odd(Some((ino, 20))));
        assert_eq!(taken.taken_ranges(), [(0, 0); 0]);
        for n in 0..100 {
            place.pass_local_line(ino, (b"odd\n", 32 + 8 * n), false);
            place.pass_local_line(ino, (b"odd\n", 36 + 8 * n), true);
        }
        assert!(place.published.len() <= 32, "the newest ones are known");
    }
}
