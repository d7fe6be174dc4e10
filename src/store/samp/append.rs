//! The way from a draft to one line, and the one `write` that appends it.

use std::io::{self, Seek as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::files::{self, MAX_RECORD_WITH_FILES, NewSampFile};
use super::record::{NewSampRecord, build_line};
use super::thread;
use super::{alias, describe_bad_alias};
use crate::model::{Draft, Timestamp, reply_subject};
use crate::store::engine::lines::append::{
    LogPath, UnsyncedLogs, append_line, append_once, has_final_newline,
};
use crate::store::fs::Stamp;
use crate::store::{PrepareContext, PreparedRecord, StoreError, confined};

/// The length of a line, with its newline, at which the Go reader stops its whole scan (D16).
const LONGEST_LINE: u64 = 16 << 20;
/// The time without a change after which a log is not being written.
const STILL: Duration = Duration::from_millis(300);

/// Prepares one signed record per recipient, with ids that no earlier message of mine has.
pub(super) fn prepare_records(
    me: &str,
    draft: &Draft,
    with: &PrepareContext<'_>,
) -> Result<Vec<PreparedRecord>, StoreError> {
    let mut recipients: Vec<&str> = Vec::new();
    for to in draft.to.iter().chain(&draft.cc) {
        if !alias::is_valid_alias(to) {
            return Err(StoreError::Invalid(describe_bad_alias(to)));
        }
        if !recipients.contains(&to.as_str()) {
            recipients.push(to);
        }
    }
    let (thread, mut body) = match &draft.thread {
        Some(thread) => (thread.clone(), draft.body.clone()),
        None if draft.is_reply => (String::new(), draft.body.clone()),
        None => match thread::split_thread(&draft.body) {
            (Some(thread), body) if !draft.is_blind => (thread, body),
            (_, body) => {
                let heading = draft.subject.as_deref().unwrap_or(&body);
                let thread = thread::derive_thread(heading, me, &with.now.day().to_string());
                (with.unused_thread_id(thread), body)
            }
        },
    };
    if body.trim().is_empty() && draft.attachments.is_empty() {
        let why = "the text is empty but for the name of its thread, so there is nothing to send; write a text";
        return Err(StoreError::Invalid(why.into()));
    }
    let parent = with.parent.filter(|_| draft.is_reply);
    let answered = parent.and_then(|parent| reply_subject(parent.subject.as_deref()?));
    let draft = &Draft { subject: draft.subject.clone().or(answered), ..draft.clone() };
    let files = files::read_attachments(&draft.attachments)?;
    files::add_notes(&mut body, &files);
    let mut time = with.now;
    let all = loop {
        let all = recipients.iter().map(|to| {
            let text = SampText { thread: &thread, body: &body, files: &files };
            prepare_record(me, to, &recipients, text, time, draft, with)
        });
        let all: Vec<PreparedRecord> = all.collect();
        // The same text twice in one second would have one id, and readers would show it once. All records of a
        // message have one time.
        if !all.iter().any(|record| (with.is_id_taken)(&record.id))
            || time.secs() == i64::MAX / 1000
        {
            break all;
        }
        time = Timestamp::from_secs(time.secs() + 1);
    };
    with.used_time.set(time);
    let longest = all.iter().map(|record| record.bytes.len() as u64 + 1).max().unwrap_or(0);
    if !files.is_empty() && longest > MAX_RECORD_WITH_FILES {
        return Err(files::too_large_error(longest));
    }
    if longest >= LONGEST_LINE {
        return Err(StoreError::TooLarge(format!(
            "the message would take a line of {longest} bytes in the log, escapes included; a line must be shorter than \
             {} MiB, for a reader of SAMP stops at such a line and shows nobody's mail",
            LONGEST_LINE >> 20
        )));
    }
    Ok(all)
}

/// The values that all records of a message have.
#[derive(Clone, Copy)]
struct SampText<'a> {
    thread: &'a str,
    body: &'a str,
    files: &'a [NewSampFile],
}

fn prepare_record(
    me: &str,
    to: &str,
    rcpt: &[&str],
    SampText { thread, body, files }: SampText<'_>,
    time: Timestamp,
    draft: &Draft,
    with: &PrepareContext<'_>,
) -> PreparedRecord {
    let record = NewSampRecord {
        time,
        from: me,
        to,
        thread,
        body,
        re: draft.in_reply_to.as_deref(),
        subject: draft.subject.as_deref(),
        idem: draft.idempotency_key.as_deref(),
        rcpt,
        files,
    };
    let (bytes, id) = build_line(&record, with.signer);
    let (to, thread) = (to.to_owned(), thread.to_owned());
    PreparedRecord { to, id, thread, bytes, files: Vec::new() }
}

/// Hands my own log to `use_it`.
pub(super) fn with_own_log<T>(
    dir: &Path,
    me: &str,
    use_it: impl FnOnce(&LogPath<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let folder = confined::open_dir(dir, &[]).map_err(|e| StoreError::io(dir, e))?;
    let name = alias::log_name(me);
    use_it(&LogPath { dir: &folder, name: &name, path: &dir.join(&name) })
}

/// Fails if the log exists and cannot be written now.
pub(super) fn check_log_writable(dir: &Path, me: &str) -> Result<(), StoreError> {
    with_own_log(dir, me, |log| match log.open(false) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(log.io_error(e)),
        _ => Ok(()),
    })
}

/// Appends one line with a single `write`, after a newline if the log does not end in one. Other programs take no
/// lock, so nothing is cut. Returns the offset of the line and the new stamp of the log. `None`, with nothing written,
/// if it does not continue the log that is `known`.
pub(super) fn append_to_log(
    log: &LogPath<'_>,
    line: &str,
    known: Option<&Stamp>,
    unsynced: &mut UnsyncedLogs,
) -> Result<Option<(u64, Stamp)>, StoreError> {
    let append = || {
        let mut file = log.open(true)?;
        let before = Stamp::from_file(&file)?;
        if known.is_some_and(|known| !is_continuation(&before, known)) {
            return Ok(None);
        }
        append_line(&file, before.size, !has_final_newline(&file, before.size)?, line)?;
        // Others may have appended since its length was read. The position of the file gives the offset of this line.
        let at = file.stream_position()?.saturating_sub(line.len() as u64 + 1);
        Ok(Some((before, at, Stamp::from_file(&file)?)))
    };
    let Some((before, at, stamp)) = append().map_err(|e: io::Error| log.io_error(e))? else {
        return Ok(None);
    };
    unsynced.note_append(log.path, before.size, before);
    Ok(Some((at, stamp)))
}

/// Returns true if a log is the same file as before and has not become shorter.
pub(super) fn is_continuation(log: &Stamp, before: &Stamp) -> bool {
    log.is_same_file(before) && log.size >= before.size
}

/// Ends the last line of my own log if it was torn, so that no later line is glued to it.
pub(super) fn end_torn_line(dir: &Path, me: &str) -> Result<(), StoreError> {
    with_own_log(dir, me, |log| {
        let deadline = Instant::now() + STILL * 2;
        let end = || {
            let file = log.open(false)?;
            while !has_final_newline(&file, file.metadata()?.len())? {
                // Another program of this alias may be in the middle of the line.
                let age = file.metadata()?.modified()?.elapsed().unwrap_or(STILL);
                if age >= STILL || Instant::now() >= deadline {
                    return append_once(&file, b"\n", file.metadata()?.len());
                }
                std::thread::sleep(STILL.saturating_sub(age));
            }
            Ok(())
        };
        match end() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            ended => ended.map_err(|e| log.io_error(e)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PublicKey;
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

    fn with(taken: &dyn Fn(&str) -> bool) -> PrepareContext<'_> {
        let now = Timestamp::from_secs(1_700_000_000);
        PrepareContext { is_id_taken: taken, ..PrepareContext::new(now, &Unsigned) }
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
        let made =
            prepare_records("me", &draft(&["a", "b", "a"], "hi"), &with(&|_| false)).unwrap();
        assert_eq!(made.iter().map(|p| p.to.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.iter().all(|p| p.thread == "2023-11-14-me-hi"));
    }

    #[test]
    fn a_new_conversation_is_named_after_its_subject_and_joins_none() {
        let begun = ["2023-11-14-me-plan", "2023-11-14-me-hi", "2023-11-14-me-hi-2", "t"];
        let with =
            PrepareContext { is_thread_begun: &|id| begun.contains(&id), ..with(&|_| false) };
        let thread = |subject: Option<&str>, body: &str| {
            let draft = Draft { subject: subject.map(str::to_owned), ..draft(&["a"], body) };
            prepare_records("me", &draft, &with).unwrap().remove(0).thread
        };
        for (subject, body, wanted) in [
            (None, "hi\nthere", "2023-11-14-me-hi-3"),
            (Some("Plan"), "hi", "2023-11-14-me-plan-2"),
            (Some("cafe\u{301}"), "hi", "2023-11-14-me-caf"),
            (Some("[thread:t] x"), "hi", "2023-11-14-me-thread-t-x"),
            (Some("plan"), "[thread:t] hi", "t"),
            (None, "[thread: ] hi", "2023-11-14-me-hi-3"),
        ] {
            assert_eq!(thread(subject, body), wanted, "{subject:?} {body:?}");
        }
    }

    #[test]
    fn a_taken_id_moves_to_the_next_second() {
        let first = prepare_records("me", &draft(&["a"], "hi"), &with(&|_| false)).unwrap();
        let id = first[0].id.clone();
        let second = prepare_records("me", &draft(&["a"], "hi"), &with(&|i| i == id)).unwrap();
        assert_ne!(second[0].id, id);
        assert!(second[0].bytes.contains("1700000001"));
    }

    #[test]
    fn bad_recipients_are_refused_with_reasons() {
        for bad in ["", "../x", "a b", "\u{e9}"] {
            let e = prepare_records("me", &draft(&[bad], "hi"), &with(&|_| false)).unwrap_err();
            assert!(e.to_string().contains("is no name in SAMP"), "{e}");
        }
    }

    #[test]
    fn a_torn_tail_is_closed_before_appending() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        let append = |text| {
            with_own_log(dir.path(), "me", |log| {
                append_to_log(log, text, None, &mut UnsyncedLogs::default())
            })
            .unwrap()
        };
        assert_eq!(append("one").unwrap().0, 0);
        assert_eq!(append("two").unwrap().0, 4);
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntwo\n");
        std::fs::write(&log, b"one\ntor").unwrap();
        append("three");
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntor\nthree\n");
        std::fs::write(&log, b"one\ntor").unwrap();
        for _ in 0..2 {
            end_torn_line(dir.path(), "me").unwrap();
            assert_eq!(std::fs::read(&log).unwrap(), b"one\ntor\n");
        }
    }

    #[test]
    fn a_symlinked_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log-me.jsonl");
        std::os::unix::fs::symlink("/dev/null", &log).unwrap();
        let append =
            |log: &LogPath<'_>| append_to_log(log, "x", None, &mut UnsyncedLogs::default());
        assert!(with_own_log(dir.path(), "me", append).is_err());
    }
}
