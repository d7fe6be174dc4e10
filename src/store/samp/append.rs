//! Writing: from a draft to one line, and the one `write` that appends it
//! (formats/samp.md, sections 2 and 11, D9 to D11 and D20 to D24).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::record::{NewRecord, build_line};
use super::{alias, bad_alias, thread};
use crate::model::Draft;
use crate::store::{Prepared, Preparing, StoreError, fs};

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

/// Appends one line with a single `write`, after a newline if the log does not end in one. True if
/// the log is new.
pub(super) fn append(dir: &Path, log: &Path, line: &str) -> Result<bool, StoreError> {
    let io = |e| StoreError::io(log, e);
    std::fs::create_dir_all(dir).map_err(|e| StoreError::io(dir, e))?;
    let new = !log.exists();
    let mut file = fs::open_append(log, 0o644).map_err(io)?;
    let before = file.metadata().map_err(io)?.len();
    let mut text = Vec::with_capacity(line.len() + 2);
    if !ends_in_newline(&file, before).map_err(io)? {
        text.push(b'\n');
    }
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    write_once(&mut file, &text, before).map_err(io)?;
    Ok(new)
}

/// Waits until the log, and its name if it is new, are on disk.
pub(super) fn sync(dir: &Path, log: &Path, new: bool) -> Result<(), StoreError> {
    let file = fs::open_regular(log).map_err(|e| StoreError::io(log, e))?;
    file.sync_data().map_err(|e| StoreError::io(log, e))?;
    if new {
        fs::sync_dir(dir).map_err(|e| StoreError::io(dir, e))?;
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
        append(dir.path(), &log, "one").unwrap();
        append(dir.path(), &log, "two").unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntwo\n");
        std::fs::write(&log, b"one\ntor").unwrap();
        append(dir.path(), &log, "three").unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntor\nthree\n");
    }

    #[test]
    fn a_symlinked_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        std::os::unix::fs::symlink("/dev/null", &log).unwrap();
        assert!(append(dir.path(), &log, "x").is_err());
    }
}
