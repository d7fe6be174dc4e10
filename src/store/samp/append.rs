//! Writing: from a draft to one line, and the one `write` that appends it
//! (formats/samp.md, sections 2 and 11, D9 to D11 and D20 to D24).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::record::{NewRecord, build_line};
use super::{alias, bad_alias, thread};
use crate::model::Draft;
use crate::store::fs::Stamp;
use crate::store::{Prepared, Preparing, StoreError, fs};

/// A log that did not change for this long is not being written.
const STILL: Duration = Duration::from_millis(300);

/// One record per recipient, signed, with ids that no earlier message of mine has.
pub(super) fn prepare(
    me: &str,
    draft: &Draft,
    with: &Preparing<'_>,
) -> Result<Vec<Prepared>, StoreError> {
    let (thread, body) = match &draft.thread {
        Some(thread) => (thread.clone(), draft.body.clone()),
        None if draft.is_reply => (String::new(), draft.body.clone()),
        None => thread::derive(&draft.body, me, &with.now.day().to_string()),
    };
    let mut recipients: Vec<&str> = Vec::new();
    for to in draft.to.iter().chain(&draft.cc) {
        if !alias::is_valid(to) {
            return Err(StoreError::Invalid(bad_alias(to)));
        }
        if !recipients.contains(&to.as_str()) {
            recipients.push(to);
        }
    }
    let all: Vec<Prepared> =
        recipients.into_iter().map(|to| one(me, to, &thread, &body, draft, with)).collect();
    if all.iter().any(|record| record.bytes.len() > fs::MAX_RECORD) {
        return Err(StoreError::TooLarge(format!(
            "the record would be longer than {} MiB, which no reader takes for a message",
            fs::MAX_RECORD >> 20
        )));
    }
    Ok(all)
}

fn one(
    me: &str,
    to: &str,
    thread: &str,
    body: &str,
    draft: &Draft,
    with: &Preparing<'_>,
) -> Prepared {
    let mut ts = with.now.secs();
    loop {
        let record = NewRecord {
            ts,
            from: me,
            to,
            thread,
            body,
            re: draft.in_reply_to.as_deref(),
            subject: draft.subject.as_deref(),
            idem: draft.idempotency_key.as_deref(),
        };
        let (bytes, id) = build_line(&record, with.signer);
        // The same text twice in one second would have one id, and readers would show it once.
        if (with.taken)(&id) && ts < i64::MAX {
            ts += 1;
            continue;
        }
        let (to, thread) = (to.to_owned(), thread.to_owned());
        return Prepared { to, id, thread, bytes, files: Vec::new() };
    }
}

/// Whether the log could take this many more bytes now.
pub(super) fn possible(dir: &Path, log: &Path, bytes: u64) -> Result<(), StoreError> {
    match fs::open_existing_append(log) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(StoreError::io(log, e)),
        _ => {}
    }
    fs::room_for(dir, bytes).map_err(|e| StoreError::io(dir, e))
}

/// What was appended and may not be on disk.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// The log is new, and so is its name.
    new: bool,
    /// Where it begins, and in which file.
    from: Option<(u64, Stamp)>,
    /// The disk has failed to take it.
    failed: bool,
}

impl Unsynced {
    fn add(&mut self, new: bool, before: u64, file: Stamp) {
        self.new |= new;
        if !self.from.is_some_and(|(_, first)| first.same_file(&file)) {
            (self.from, self.failed) = (Some((before, file)), false);
        }
    }

    /// Waits until the log, and its name if it is new, are on disk.
    pub fn sync(&mut self, dir: &Path, log: &Path) -> Result<(), StoreError> {
        let io = |e| StoreError::io(log, e);
        let mut file = fs::open_regular(log).map_err(io)?;
        if let Some((from, first)) = self.from.filter(|_| self.failed)
            && first.same_file(&Stamp::of(&file).map_err(io)?)
        {
            file = fs::open_existing(log).map_err(io)?;
            fs::write_again(&file, from).map_err(io)?;
        }
        if let Err(e) = file.sync_data() {
            self.failed = true;
            return Err(io(e));
        }
        if self.new {
            fs::sync_dir(dir).map_err(|e| StoreError::io(dir, e))?;
        }
        *self = Self::default();
        Ok(())
    }
}

/// Appends one line with a single `write`, after a newline if the log does not end in one.
pub(super) fn append(
    dir: &Path,
    log: &Path,
    line: &str,
    unsynced: &mut Unsynced,
) -> Result<(), StoreError> {
    let io = |e| StoreError::io(log, e);
    fs::make_dirs(dir, 0o777).map_err(|e| StoreError::io(dir, e))?;
    let new = !log.exists();
    let mut file = fs::open_append(log, 0o644).map_err(io)?;
    let stamp = Stamp::of(&file).map_err(io)?;
    let before = stamp.size;
    let mut text = Vec::with_capacity(line.len() + 2);
    if !ends_in_newline(&file, before).map_err(io)? {
        text.push(b'\n');
    }
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    write_once(&mut file, &text, before).map_err(io)?;
    unsynced.add(new, before, stamp);
    Ok(())
}

/// Ends the last line of my own log if it was torn, so that nobody's next line is glued to it.
pub(super) fn end_torn(log: &Path) -> io::Result<()> {
    let deadline = Instant::now() + STILL * 2;
    let mut file = match fs::open_existing_append(log) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    while !ends_in_newline(&file, file.metadata()?.len())? {
        // Another program of this alias may be in the middle of it.
        let age = file.metadata()?.modified()?.elapsed().unwrap_or(STILL);
        if age >= STILL || Instant::now() >= deadline {
            let before = file.metadata()?.len();
            return write_once(&mut file, b"\n", before);
        }
        std::thread::sleep(STILL.saturating_sub(age));
    }
    Ok(())
}

fn ends_in_newline(file: &File, len: u64) -> io::Result<bool> {
    let mut last = [b'\n'];
    if len > 0 {
        fs::read_at_most(file, &mut last, len - 1)?;
    }
    Ok(last == *b"\n")
}

/// One `write`; if the disk takes only a part of it, the part is taken back, so that no reader
/// sees half a line.
fn write_once(file: &mut File, text: &[u8], before: u64) -> io::Result<()> {
    let written = loop {
        match file.write(text) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if written == text.len() {
        return Ok(());
    }
    // Nobody else owns this log, but a program under the same alias may have appended meanwhile:
    // then cutting would take its line, and the torn part is left for readers to skip.
    if file.metadata()?.len() == before + written as u64 {
        file.set_len(before)?;
    }
    Err(io::Error::from_raw_os_error(libc::ENOSPC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PublicKey, Timestamp};
    use crate::store::Signer;

    struct Unsigned;
    impl Signer for Unsigned {
        fn public_key(&self) -> PublicKey {
            PublicKey([0; 32])
        }
        fn sign(&self, _: &[u8]) -> [u8; 64] {
            [0; 64]
        }
    }

    fn with(taken: &dyn Fn(&str) -> bool) -> Preparing<'_> {
        let now = Timestamp::from_secs(1_700_000_000);
        Preparing { now, parent: None, signer: &Unsigned, taken }
    }

    fn draft(to: &[&str], body: &str) -> Draft {
        Draft {
            to: to.iter().map(|s| (*s).to_owned()).collect(),
            body: body.to_owned(),
            ..Draft::default()
        }
    }

    #[test]
    fn one_record_each_and_none_twice() {
        let made = prepare("me", &draft(&["a", "b", "a"], "hi"), &with(&|_| false)).unwrap();
        assert_eq!(made.iter().map(|p| p.to.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.iter().all(|p| p.thread == "2023-11-14-me-hi"));
    }

    #[test]
    fn a_taken_id_moves_to_the_next_second() {
        let first = prepare("me", &draft(&["a"], "hi"), &with(&|_| false)).unwrap();
        let id = first[0].id.clone();
        let second = prepare("me", &draft(&["a"], "hi"), &with(&|i| i == id)).unwrap();
        assert_ne!(second[0].id, id);
        assert!(second[0].bytes.contains("1700000001"));
    }

    #[test]
    fn bad_recipients_are_refused_with_reasons() {
        for bad in ["", "../x", "a b", "\u{e9}"] {
            let e = prepare("me", &draft(&[bad], "hi"), &with(&|_| false)).unwrap_err();
            assert!(e.to_string().contains("is not a SAMP alias"), "{e}");
        }
    }

    #[test]
    fn a_torn_tail_is_closed_before_appending() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        let append = |text| append(dir.path(), &log, text, &mut Unsynced::default()).unwrap();
        append("one");
        append("two");
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntwo\n");
        std::fs::write(&log, b"one\ntor").unwrap();
        append("three");
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntor\nthree\n");
        std::fs::write(&log, b"one\ntor").unwrap();
        for _ in 0..2 {
            end_torn(&log).unwrap();
            assert_eq!(std::fs::read(&log).unwrap(), b"one\ntor\n");
        }
    }

    #[test]
    fn a_symlinked_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        std::os::unix::fs::symlink("/dev/null", &log).unwrap();
        assert!(append(dir.path(), &log, "x", &mut Unsynced::default()).is_err());
    }

    #[test]
    fn what_the_disk_did_not_take_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        let mut unsynced = Unsynced::default();
        for line in ["one", "two"] {
            append(dir.path(), &log, line, &mut unsynced).unwrap();
        }
        unsynced.failed = true;
        let before = Stamp::of(&File::open(&log).unwrap()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        unsynced.sync(dir.path(), &log).unwrap();
        let after = Stamp::of(&File::open(&log).unwrap()).unwrap();
        assert!(after.same_file(&before) && after.mtime > before.mtime, "written");
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntwo\n");
        assert!(unsynced.from.is_none() && !unsynced.failed);
        // A file that was put in its place is left alone.
        append(dir.path(), &log, "three", &mut unsynced).unwrap();
        unsynced.failed = true;
        std::fs::remove_file(&log).unwrap();
        std::fs::write(&log, b"other\n").unwrap();
        unsynced.sync(dir.path(), &log).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"other\n");
    }
}
