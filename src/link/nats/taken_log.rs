//! The proof that the server of a link has taken lines of a log: the saved state of the link, and the log itself. It
//! needs no running link, and holds over restarts. The other lines wait for the link.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::log::{NatsLogFolder, NatsLogReader};
use super::state::{self, SubjectPosition};
use crate::link::board::{HealthReader, LogBacklog, NOT_CARRIED, read_saved_health};
use crate::link::{LinkHealth, LinkState, TakenLogProof};
use crate::model::locks::Mutex;
use crate::store::fs::Stamp;

/// The log of one writer in a folder whose lines a link carries.
#[derive(Debug)]
pub struct NatsTakenLog {
    folder: PathBuf,
    writer: String,
    /// The folder with the state of the link.
    state: PathBuf,
    /// The position that the journal of this stamp has.
    cached_position: Mutex<Option<(Stamp, SubjectPosition)>>,
}

impl NatsTakenLog {
    /// Returns the log of a writer in a folder. The link saves its state in the folder `state`.
    pub fn new(folder: &Path, writer: &str, state: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            writer: writer.to_owned(),
            state: state.to_owned(),
            cached_position: Mutex::default(),
        }
    }

    /// Returns the log, and the position in it if it is the log that the link knows.
    fn find_position(&self) -> io::Result<Option<(File, SubjectPosition)>> {
        let place = self.read_position()?;
        let file = NatsLogFolder::open(&self.folder)?.open_log(&self.writer)?;
        let Some(file) = file else { return Ok(None) };
        Ok(place.is_of(&file)?.then_some((file, place)))
    }

    fn read_position(&self) -> io::Result<SubjectPosition> {
        let journal = self.state.join(state::JOURNAL);
        // The stamp is taken before the content, so that a later change is noticed.
        let Some(stamp) = Stamp::from_path(&journal)? else {
            return Ok(SubjectPosition::default());
        };
        let mut cached = self.cached_position.lock();
        if let Some((of, place)) = &*cached
            && *of == stamp
        {
            return Ok(place.clone());
        }
        let (_, mut places) = state::read_journal(&journal)?;
        let place = places.remove(&self.writer).unwrap_or_default();
        *cached = Some((stamp, place.clone()));
        Ok(place)
    }

    /// Returns the number of lines that the link has not examined, and the offset of the first.
    fn count_backlog(&self) -> io::Result<(u64, u64)> {
        let Some((file, place)) = self.find_position()? else { return Ok((0, 0)) };
        let (mut lines, mut count) = (NatsLogReader::read_from(file, place.compared_upto())?, 0);
        while lines.next()?.is_some() {
            count += 1;
        }
        Ok((count, place.compared_upto()))
    }
}

impl HealthReader for NatsTakenLog {
    fn read_health(&self) -> LinkHealth {
        if state::is_carried(&self.state) {
            let saved = read_saved_health(&self.state).unwrap_or_default();
            return LinkHealth { by_another: true, ..saved };
        }
        let (waiting, from) = self.count_backlog().unwrap_or_default();
        let backlog = (waiting > 0).then(|| (self.writer.clone(), LogBacklog { from, why: None }));
        let state = LinkState::Stopped { why: NOT_CARRIED.to_owned() };
        LinkHealth {
            state,
            waiting,
            behind: backlog.into_iter().collect(),
            ..LinkHealth::default()
        }
    }
}

impl TakenLogProof for NatsTakenLog {
    fn taken_ranges(&self) -> Vec<(u64, u64)> {
        let found = self.find_position().ok().flatten();
        found.map(|(_, place)| place.published_ranges()).unwrap_or_default()
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

    /// S1365: all lines wait that no process has carried, and a process that carries tells its own state.
    #[test]
    fn s1365_lines_wait_while_nothing_carries() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-a.jsonl");
        let taken = NatsTakenLog::new(dir.path(), "a", &dir.path().join("state"));
        let backlog = || {
            let health = taken.read_health();
            assert_eq!(health.state, LinkState::Stopped { why: NOT_CARRIED.to_owned() });
            (health.waiting, health.behind.get("a").map(|behind| behind.from))
        };
        assert_eq!(backlog(), (0, None), "there is no log");
        fs::write(&log, LOG).unwrap();
        assert_eq!(backlog(), (2, Some(0)), "no link ever ran");
        save(dir.path(), |_| {});
        assert_eq!(backlog(), (0, None));
        fs::write(&log, format!("{LOG}{{\"n\":3}}\n")).unwrap();
        assert_eq!(backlog(), (1, Some(16)));
        let carried = NatsState::open(&dir.path().join("state")).unwrap().unwrap();
        let health = taken.read_health();
        assert!(health.by_another && health.behind.is_empty(), "{health:?}");
        drop(carried);
        fs::write(&log, "{\"n\":9}\n{\"n\":9}\n").unwrap();
        assert_eq!(backlog(), (0, None), "nothing is known of another log");
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
