//! The saved state of a link: its cursor in the stream, and the end of each writer's published log.
//!
//! The state is one file to which lines are appended: first the changed writers, then the cursor, and both only after
//! the logs are on disk. So the cursor may lag but never leads; a line that is read twice is recognized by its
//! position. No other program reads the folder. Losing it costs one reading of the stream.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::log::NatsLogTail;
use crate::model::push_json_line;
use crate::store::append_log::{AppendLog, AppendSync, read_log, split_log};
use crate::store::fs::{self, Stamp};

const LOCK: &str = "lock";
/// The name of the journal in the folder of a link.
pub const JOURNAL: &str = "journal.jsonl";

/// The limit on the size of a journal.
const MAX_JOURNAL: u64 = 256 << 20;

/// The size above which a journal is rewritten, if it is also four times longer than its estimated content.
const LONG: u64 = 1 << 20;

/// The limit on the number of published ranges of a log that are known.
const RANGES: usize = 32;

/// The cursor in the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCursor {
    /// The time at which the stream was made, by the server. A different time means another stream.
    pub created: String,
    /// The number of the last message that was read.
    pub seq: u64,
    /// The time of that message in nanoseconds. A different time means another message.
    pub time: i64,
    /// The largest payload that the server takes, in bytes.
    pub most: u64,
    /// True if reading the message directly may kill the connection, so that only the API is asked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_risky: bool,
}

/// The position in a writer's subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectPosition {
    /// The end of the log as it was published.
    pub end: u64,
    /// The number of the subject's last message.
    pub seq: u64,
    /// The inode and length of the local log at the last comparison, if the log is neither a beginning nor a
    /// continuation of the published one.
    pub odd: Option<(u64, u64)>,
    /// True if the local log may lack published lines. They are put back after its new lines are published. It is
    /// saved, since the cursor is already past these lines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_lines: bool,
    /// The last published line, by which the log is recognized. Earlier builds did not save it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<NatsLogTail>,
    /// The published ranges of the local log, if it is `odd`: the newest ones. Between them are lines that stay here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<(u64, u64)>,
    /// The last line of these ranges, by which an `odd` log is recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_tail: Option<NatsLogTail>,
}

impl SubjectPosition {
    /// Returns the offset up to which the local log was compared with the published one.
    pub fn compared_upto(&self) -> u64 {
        self.odd.map_or(self.end, |(_, done)| done)
    }

    /// Returns true if a log is the compared one, which may have grown.
    pub fn is_of(&self, file: &File) -> io::Result<bool> {
        let stamp = Stamp::from_file(file)?;
        let is_same_file = self.odd.is_none_or(|(ino, _)| ino == stamp.ino);
        let tail = if self.odd.is_some() { self.local_tail } else { self.tail };
        Ok(is_same_file
            && stamp.size >= self.compared_upto()
            && tail.map_or(Ok(true), |tail| tail.is_in(file))?)
    }

    /// Returns the ranges of the local log that are known to be published.
    pub fn published_ranges(&self) -> Vec<(u64, u64)> {
        let is_proven = self.tail.is_some_and(|tail| tail.end_offset() == self.end);
        match self.odd {
            Some(_) => self.published.clone(),
            None => is_proven.then_some((0, self.end)).into_iter().collect(),
        }
    }

    /// Sets or clears `odd`, and forgets the local tail and the published ranges.
    pub fn set_odd(&mut self, odd: Option<(u64, u64)>) {
        (self.odd, self.local_tail) = (odd, None);
        self.published.clear();
    }

    /// Moves past the next line of the local log, which ends at an offset. It is published, or it stays here. From the
    /// first line that stays on, positions differ.
    pub fn pass_local_line(&mut self, ino: u64, (line, end): (&[u8], u64), is_published: bool) {
        if self.odd.is_none() {
            (self.published, self.local_tail) = (self.published_ranges(), self.tail);
        }
        let at = self.compared_upto();
        self.odd = Some((ino, end));
        if !is_published {
            return;
        }
        match self.published.last_mut() {
            Some((_, last)) if *last == at => *last = end,
            _ => self.published.push((at, end)),
        }
        if self.published.len() > RANGES {
            self.published.remove(0);
        }
        self.local_tail = Some(NatsLogTail::new(at, line));
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NatsStateLine<'a> {
    Writer {
        writer: std::borrow::Cow<'a, str>,
        #[serde(flatten)]
        place: SubjectPosition,
    },
    Cursor(StreamCursor),
}

/// The state of one link. Only the process that holds it carries for the link on this machine.
#[derive(Debug)]
pub struct NatsState {
    log: AppendLog,
    /// The cursor in the stream.
    pub cursor: StreamCursor,
    _lock: File,
}

impl NatsState {
    /// Takes the lock and reads the state; `None` if another process has the lock.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(dir: &Path) -> io::Result<Option<(Self, HashMap<String, SubjectPosition>)>> {
        fs::make_dirs(dir, 0o700)?;
        let lock = fs::open_read_write(&dir.join(LOCK), 0o600)?;
        if !fs::lock_with_timeout(&lock, Duration::ZERO)? {
            return Ok(None);
        }
        let path = dir.join(JOURNAL);
        let (cursor, places) = read_journal(&path)?;
        let mut state = Self { log: AppendLog::new(path), cursor, _lock: lock };
        state.rewrite_file(places.iter().map(|(w, p)| (w.as_str(), p)))?;
        Ok(Some((state, places)))
    }

    /// Forgets everything, and starts with this cursor.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn restart_at(&mut self, cursor: StreamCursor) -> io::Result<()> {
        self.cursor = cursor;
        self.rewrite_file(std::iter::empty())
    }

    /// Saves the changed positions and the cursor.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn save_changes<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a str, &'a SubjectPosition)>,
        all: impl Iterator<Item = (&'a str, &'a SubjectPosition)> + Clone,
    ) -> io::Result<()> {
        self.log.append(&self.render_lines(changed), AppendSync::Later)?;
        if self.log.len() > LONG && self.log.len() > 4 * 100 * all.clone().count() as u64 {
            self.rewrite_file(all)?;
        }
        Ok(())
    }

    fn rewrite_file<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a str, &'a SubjectPosition)>,
    ) -> io::Result<()> {
        self.log.replace(&self.render_lines(places))
    }

    /// Renders positions, and the cursor behind them.
    fn render_lines<'a>(
        &self,
        places: impl Iterator<Item = (&'a str, &'a SubjectPosition)>,
    ) -> Vec<u8> {
        let mut text = Vec::new();
        for (writer, place) in places {
            let (writer, place) = (writer.into(), place.clone());
            push_json_line(&mut text, &NatsStateLine::Writer { writer, place });
        }
        push_json_line(&mut text, &NatsStateLine::Cursor(self.cursor.clone()));
        text
    }
}

/// Returns true if a process carries for the link whose state is in this folder.
pub fn is_carried(dir: &Path) -> bool {
    let lock = fs::open_regular(&dir.join(LOCK));
    lock.is_ok_and(|lock| {
        let tried = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared);
        tried == Err(Errno::WOULDBLOCK)
    })
}

/// Reads a journal up to its last cursor. Later lines were not finished.
pub fn read_journal(path: &Path) -> io::Result<(StreamCursor, HashMap<String, SubjectPosition>)> {
    let (mut cursor, mut places, mut open) = (StreamCursor::default(), HashMap::new(), Vec::new());
    for line in split_log(&read_log(path, MAX_JOURNAL)?) {
        match serde_json::from_slice(line.text) {
            Ok(NatsStateLine::Writer { writer, place }) => open.push((writer.into_owned(), place)),
            Ok(NatsStateLine::Cursor(read)) => {
                cursor = read;
                places.extend(open.drain(..));
            }
            Err(_) => break,
        }
    }
    Ok((cursor, places))
}

/// Returns the longest line that the server of a link takes, if it is known.
pub fn longest_line(dir: &Path) -> Option<u64> {
    let most = read_journal(&dir.join(JOURNAL)).ok()?.0.most;
    (most > super::publish::HEADERS).then(|| most - super::publish::HEADERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::nats::line::PublishedLine;

    fn all(
        places: &HashMap<String, SubjectPosition>,
    ) -> impl Iterator<Item = (&str, &SubjectPosition)> + Clone {
        places.iter().map(|(w, p)| (w.as_str(), p))
    }

    fn open(dir: &Path) -> (NatsState, HashMap<String, SubjectPosition>) {
        NatsState::open(dir).unwrap().unwrap()
    }

    #[test]
    fn what_was_noted_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut state, mut places) = open(dir.path());
        assert_eq!(state.cursor, StreamCursor::default());
        assert!(NatsState::open(dir.path()).unwrap().is_none(), "one at a time");
        let line = PublishedLine { at: 5, bytes: b"abc\n", id: String::new() };
        places.insert("a".into(), SubjectPosition { end: 7, seq: 1, ..SubjectPosition::default() });
        places.insert(
            "b".into(),
            SubjectPosition {
                end: 9,
                seq: 2,
                odd: Some((1, 2)),
                lacks_lines: true,
                tail: Some(NatsLogTail::from_line(&line)),
                published: vec![(0, 2), (3, 5)],
                local_tail: Some(NatsLogTail::from_line(&line)),
            },
        );
        state.cursor =
            StreamCursor { created: "then".into(), seq: 2, time: 5, most: 1 << 20, is_risky: true };
        state.save_changes(all(&places), all(&places)).unwrap();
        let kept = (state.cursor.clone(), places.clone());
        drop(state);
        let (state, places) = open(dir.path());
        assert_eq!((state.cursor.clone(), places), kept);
        assert_eq!(longest_line(dir.path()), Some((1 << 20) - 1024));
    }

    #[test]
    fn what_was_not_finished_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let whole = "{\"writer\":\"a\",\"end\":7,\"seq\":1,\"odd\":null}\n\
                     {\"created\":\"c\",\"seq\":1,\"time\":3,\"most\":0}\n";
        let more = "{\"writer\":\"a\",\"end\":9,\"seq\":2,\"odd\":null}\n\
                    {\"created\":\"c\",\"seq\":2,\"time\":4,\"most\":0}\n";
        for cut in 0..more.len() {
            std::fs::write(dir.path().join(JOURNAL), format!("{whole}{}", &more[..cut])).unwrap();
            let (state, places) = open(dir.path());
            assert_eq!((state.cursor.seq, places["a"].end), (1, 7), "{cut}");
        }
        std::fs::write(dir.path().join(JOURNAL), format!("{whole}{more}")).unwrap();
        let (state, places) = open(dir.path());
        assert_eq!((state.cursor.seq, places["a"].end), (2, 9));
        drop(state);
        std::fs::write(dir.path().join(JOURNAL), b"\xff\xfe nonsense").unwrap();
        assert_eq!(open(dir.path()).0.cursor, StreamCursor::default());
    }

    #[test]
    fn a_long_journal_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (mut state, mut places) = open(dir.path());
        places.insert("a".into(), SubjectPosition::default());
        for seq in 0..20_000 {
            state.cursor.seq = seq;
            state.save_changes(all(&places), all(&places)).unwrap();
        }
        assert!(std::fs::metadata(dir.path().join(JOURNAL)).unwrap().len() <= LONG);
        drop(state);
        assert_eq!(open(dir.path()).0.cursor.seq, 19_999);
    }
}
