//! Messages that arrive, change, move and go.

use super::*;
use crate::store::MessageReader;

const DAY: &str = "2026-03-11";

#[test]
fn who_i_am_and_what_is_not_made() {
    let bed = Bed::without_mailbox();
    let store = bed.scanned();
    assert_eq!((store.me(), store.kind()), ("me@x", Kind::AgentAzall));
    assert!(!bed.root().join("data").exists(), "opening and reading make nothing");
    let spec = StoreSpec { own_address: Some("other@x".into()), ..bed.spec() };
    assert_eq!(AgentAzall::open(&spec).unwrap().me(), "other@x");
    let file = StoreSpec { dir: bed.root().join("config.json"), ..bed.spec() };
    assert_eq!(AgentAzall::open(&file).unwrap().me(), "me@x");
    for bad in [
        r#"{"agent_name": "../x"}"#,
        r#"{"agent_name": "Me <me@x>"}"#,
        r#"{"agent_name": ""}"#,
        "{}",
    ] {
        bed.config(bad);
        assert!(matches!(AgentAzall::open(&bed.spec()), Err(StoreError::Invalid(_))), "{bad}");
    }
    std::fs::remove_file(bed.root().join("config.json")).unwrap();
    assert!(AgentAzall::open(&bed.spec()).unwrap_err().to_string().contains("agentazall setup"));
    assert!(!bed.root().join("config.json").exists());
}

#[test]
fn every_day_and_folder_is_read() {
    let bed = Bed::new();
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 14:23:55", "hi");
    bed.letter("2020-01-01/sent/b1.txt", "me@x", "b1", "2020-01-01 10:00:00", "old");
    bed.letter("2026-03-12/outbox/c1.txt", "me@x", "c1", "", "waits");
    bed.put("2026-03-12/inbox/bare.txt", "only text\nof two lines");
    bed.put("2026-03-12/inbox/.hidden.txt", "From: eve@x\n---\nx");
    bed.put("2026-03-12/inbox/half.tmp", "From: eve@x\n---\nx");
    bed.put("2026-3-12/inbox/no.txt", "From: eve@x\n---\nx");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), [".hidden", "a1", "b1", "bare", "c1"]);
    let a = seen.one("a1");
    assert!(
        a.to_me
            && !a.from_me
            && a.repeat_kind == crate::store::RepeatKind::Restated
            && a.read == Some(false)
    );
    assert_eq!(a.time.iso8601_basic(), "20260311T132355.000Z");
    let b = seen.one("b1");
    assert!(b.from_me && !b.to_me && b.read.is_none());
    assert_eq!(
        seen.one("c1").time.iso8601_basic(),
        "20260311T230000.000Z",
        "local midnight of the folder"
    );
    let bare = MessageReader::read_record(&store, &seen.one("bare").at).unwrap().message;
    assert_eq!((bare.from, bare.body.as_str()), (None, "only text\nof two lines"));
    let read = MessageReader::read_record(&store, &a.at).unwrap().message;
    assert_eq!((read.id.as_str(), read.body.as_str()), ("a1", "hi"));
    assert_eq!(read.thread.as_deref(), Some(&*a.thread));
    assert_eq!(store.source_path(a.at.source).as_deref(), Some("2026-03-11/inbox/a1.txt"));
}

#[test]
fn nothing_is_read_twice_and_a_remount_reads_nothing() {
    let bed = Bed::new();
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 14:23:55", "hi");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    store.scan(true, &mut seen).unwrap();
    assert_eq!((seen.reported, seen.rescans), (1, 0));
    let again = bed.store();
    assert!(again.restore_cursors(&store.save_cursors()));
    let mut none = Book::default();
    again.scan(true, &mut none).unwrap();
    assert_eq!(none.reported, 0);
    assert_eq!(MessageReader::read_record(&again, &seen.one("a1").at).unwrap().message.id, "a1");
    // A file that was marked meanwhile is reported under its old number.
    let read = letter("bob@x", "a1", "2026-03-11 14:23:55", "hi").replace("new", "read");
    bed.put("2026-03-11/inbox/a1.txt", &read);
    let third = bed.store();
    assert!(third.restore_cursors(&store.save_cursors()) && !third.restore_cursors(b"junk"));
    third.scan(true, &mut seen).unwrap();
    assert_eq!((ids(&seen), seen.one("a1").at.source), (vec!["a1".to_owned()], 0));
    assert_eq!(seen.one("a1").read, Some(true));
}

#[test]
fn only_what_was_noted_is_looked_at() {
    let bed = Bed::new();
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 14:23:55", "hi");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    for id in ["b1", "b2"] {
        bed.letter(&format!("{DAY}/inbox/{id}.txt"), "bob@x", id, "2026-03-11 15:00:00", id);
    }
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1"]);
    store.note_change(&bed.base().join("2026-03-11/inbox/b1.txt"));
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1", "b1"]);
    store.note_change(&bed.base().join("2026-03-11/inbox"));
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1", "b1", "b2"]);
    std::fs::remove_file(bed.base().join("2026-03-11/inbox/b1.txt")).unwrap();
    store.note_change(&bed.base().join("2026-03-11/inbox/b1.txt"));
    bed.letter("2026-03-12/inbox/c1.txt", "bob@x", "c1", "2026-03-12 15:00:00", "c");
    store.note_change(&bed.base().join("2026-03-12"));
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1", "b2", "c1"]);
    std::fs::remove_dir_all(bed.base().join(DAY)).unwrap();
    store.note_change(&bed.base().join(DAY));
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["c1"]);
    std::fs::remove_dir_all(bed.base()).unwrap();
    store.note_change(&bed.base());
    store.scan(false, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["c1"], "what was in a mailbox that is gone stays");
    assert!(store.health().iter().any(|line| line.contains("is gone")), "{:?}", store.health());
}

#[test]
fn copies_are_one_message_and_namesakes_are_two() {
    let bed = Bed::new();
    let text = letter("me@x", "a1", "2026-03-11 14:23:55", "to myself");
    bed.put("2026-03-11/sent/a1.txt", &text);
    bed.put("2026-03-11/inbox/a1.txt", &text.replace("Status: new", "Status: read"));
    bed.letter("2026-03-11/inbox/b1.txt", "bob@x", "same", "2026-03-11 10:00:00", "one");
    bed.letter("2026-03-11/inbox/b2.txt", "bob@x", "same", "2026-03-11 11:00:00", "two");
    bed.letter("2026-03-11/inbox/b3.txt", "eve@x", "same", "2026-03-11 11:00:00", "two");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let own = seen.one("a1");
    assert!(own.to_me && own.from_me && own.read == Some(true));
    let bobs: Vec<String> = seen
        .messages
        .keys()
        .filter(|(from, _)| from == "bob@x")
        .map(|(_, id)| id.clone())
        .collect();
    assert_eq!(bobs.len(), 2);
    let namesake = bobs.iter().find(|id| id.contains(QUALIFIER)).unwrap();
    let file = std::fs::read(bed.base().join("2026-03-11/inbox/b2.txt")).unwrap();
    let hash: [u8; 32] =
        sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(file)).into();
    assert_eq!(*namesake, format!("same{QUALIFIER}{}", crate::model::encode_hex(&hash)));
    let at = seen.one(namesake).at;
    assert_eq!(MessageReader::read_record(&store, &at).unwrap().message.id, *namesake);
    // A mark changes neither the key nor the number of messages.
    age(&bed.base().join("2026-03-11/inbox/b2.txt"), 3);
    assert!(store.write_mark(&at, true).unwrap());
    store.scan(false, &mut seen).unwrap();
    assert_eq!(seen.one(namesake).read, Some(true));
    assert_eq!(seen.messages.len(), 4);
}

#[test]
fn a_mark_is_told_to_every_copy_in_the_inbox_and_only_there() {
    let bed = Bed::new();
    let text = letter("bob@x", "a1", "2026-03-11 14:23:55", "Status: new");
    for path in ["2026-03-11/inbox/a1.txt", "2026-03-12/inbox/a1.txt", "2026-03-11/sent/a1.txt"] {
        bed.put(path, &text);
    }
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let at = seen.one("a1").at;
    for copy in ["2026-03-11/inbox/a1.txt", "2026-03-12/inbox/a1.txt"] {
        age(&bed.base().join(copy), 3);
    }
    assert!(!store.write_mark(&at, false).unwrap());
    assert!(store.write_mark(&at, true).unwrap());
    let read = text.replacen("Status: new", "Status: read", 1);
    assert_eq!(bed.get("2026-03-11/inbox/a1.txt"), read);
    assert_eq!(bed.get("2026-03-12/inbox/a1.txt"), read);
    assert_eq!(bed.get("2026-03-11/sent/a1.txt"), text);
    store.scan(false, &mut seen).unwrap();
    assert_eq!(seen.one("a1").read, Some(true));
    let names = std::fs::read_dir(bed.base().join("2026-03-11/inbox")).unwrap().count();
    assert_eq!(names, 1, "no temporary file stays");
    // Without a Status nothing can be set; a file that is gone is Moved.
    bed.put("2026-03-12/inbox/n.txt", "From: bob@x\nMessage-ID: n\n---\nx");
    store.scan(true, &mut seen).unwrap();
    let bare = seen.one("n").at;
    assert!(!store.write_mark(&bare, true).unwrap());
    std::fs::remove_file(bed.base().join("2026-03-12/inbox/n.txt")).unwrap();
    assert!(matches!(store.write_mark(&bare, true), Err(StoreError::Moved)));
    assert!(matches!(MessageReader::read_record(&store, &bare), Err(StoreError::Moved)));
}

#[test]
fn odd_things_are_rejected_or_named_and_hide_nothing() {
    let bed = Bed::new();
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 14:23:55", "hi");
    bed.put("2026-03-11/inbox/empty.txt", "");
    bed.put("2026-03-11/inbox/folder.txt/x", "");
    let inbox = bed.base().join("2026-03-11/inbox");
    std::os::unix::fs::symlink("a1.txt", inbox.join("link.txt")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        inbox.join("fifo.txt"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    std::fs::write(inbox.join("junk.txt"), b"\xff\xfe\0\x01 From: \xc3(\n---\n\x80").unwrap();
    std::os::unix::fs::symlink("2026-03-11", bed.base().join("2026-03-12")).unwrap();
    std::fs::create_dir(bed.base().join("2026-03-13")).unwrap();
    std::os::unix::fs::symlink("../2026-03-11/inbox", bed.base().join("2026-03-13/inbox")).unwrap();
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1", "junk"]);
    let mut reasons = seen.reasons();
    reasons.sort_unstable();
    assert_eq!(
        reasons,
        [
            "it is a FIFO, not a file",
            "it is a folder, not a file",
            "it is a symbolic link, not a file",
            "the file is empty"
        ]
    );
    let health = store.health().join("\n");
    assert!(
        health.contains("2026-03-12 is skipped") && health.contains("2026-03-13/inbox is skipped")
    );
    // A file that becomes complete leaves rejected/.
    bed.letter("2026-03-11/inbox/empty.txt", "bob@x", "e1", "2026-03-11 14:23:55", "now");
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1", "e1", "junk"]);
    assert_eq!(seen.rejected.len(), 3);
}

#[test]
fn the_filter_acts_on_arrival_and_again_when_it_changes() {
    let bed = Bed::new();
    bed.config(r#"{"agent_name": "me@x", "address_filter": {"mode": "blacklist", "blacklist": ["eve@*"]}}"#);
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 14:23:55", "hi");
    bed.letter("2026-03-11/inbox/e1.txt", "\"Bob\" <Eve@x>", "e1", "2026-03-11 14:23:55", "hi");
    bed.letter("2026-03-11/sent/m1.txt", "me@x", "m1", "2026-03-11 14:23:55", "mine");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    assert_eq!((ids(&seen), seen.rejected.len()), (vec!["a1".into(), "m1".into()], 1));
    assert!(bed.base().join("2026-03-11/inbox/e1.txt").exists(), "refused mail is not destroyed");
    bed.config(r#"{"agent_name": "me@x", "filter": {"mode": "whitelist", "whitelist": []}}"#);
    store.scan(false, &mut seen).unwrap();
    assert_eq!((ids(&seen), seen.rejected.len()), (vec!["m1".to_owned()], 2));
    bed.config("{");
    store.scan(false, &mut seen).unwrap();
    assert_eq!(seen.rejected.len(), 2);
    assert!(store.health().iter().any(|line| line.contains("stays in use")));
    // A remount judges by the current filter.
    bed.config(r#"{"agent_name": "me@x"}"#);
    let again = bed.store();
    assert!(again.restore_cursors(&store.save_cursors()));
    again.scan(true, &mut seen).unwrap();
    assert_eq!((ids(&seen).len(), seen.rejected.len()), (3, 0));
}

#[test]
fn attachments_lie_beside_the_message() {
    let bed = Bed::new();
    let text = letter("bob@x", "a1", "2026-03-11 14:23:55", "see files")
        .replace("Status: new\n", "Status: new\nAttachments: plan.pdf, a, b.txt, gone.bin\n");
    bed.put("2026-03-11/inbox/a1.txt", &text);
    bed.put("2026-03-11/inbox/a1/plan.pdf", "12345");
    bed.put("2026-03-11/inbox/a1/a, b.txt", "1");
    bed.put("2026-03-11/inbox/a1/extra", "1");
    std::os::unix::fs::symlink("/etc/passwd", bed.base().join("2026-03-11/inbox/a1/link")).unwrap();
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let found = seen.one("a1");
    assert!(found.has_parts);
    let read = MessageReader::read_record(&store, &found.at).unwrap().message;
    let mut list: Vec<(String, u64, Option<String>)> =
        read.attachments.into_iter().map(|a| (a.name, a.size, a.withheld)).collect();
    list.sort();
    let plain = |name: &str, size| (name.to_owned(), size, None);
    let held = |name: &str, why: &str| (name.to_owned(), 0, Some(why.to_owned()));
    assert_eq!(
        list,
        [
            plain("a, b.txt", 1),
            plain("extra", 1),
            held("gone.bin", "is missing"),
            held("link", "it is a symbolic link, not a file"),
            plain("plan.pdf", 5)
        ]
    );
    assert!(matches!(store.open_part(&found.at, "plan.pdf"), Ok(PartContent::File(_))));
    for closed in ["link", "gone.bin", "../a1.txt", ""] {
        assert!(store.open_part(&found.at, closed).is_err(), "{closed}");
    }
    // Attachments that come after the text are noticed.
    bed.letter("2026-03-12/inbox/b1.txt", "bob@x", "b1", "2026-03-12 14:23:55", "x");
    store.scan(true, &mut seen).unwrap();
    assert!(!seen.one("b1").has_parts);
    bed.put("2026-03-12/inbox/b1/late", "1");
    store.note_change(&bed.base().join("2026-03-12/inbox/b1"));
    store.scan(false, &mut seen).unwrap();
    assert!(seen.one("b1").has_parts);
}

#[test]
fn a_half_written_file_is_waited_for() {
    let bed = Bed::new();
    bed.put("2026-03-11/inbox/a1.txt", "");
    let store = bed.store();
    let path = bed.base().join("2026-03-11/inbox/a1.txt");
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(40));
        std::fs::write(path, letter("bob@x", "a1", "2026-03-11 14:23:55", "whole")).unwrap();
    });
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    writer.join().unwrap();
    assert_eq!((ids(&seen), seen.rejected.len()), (vec!["a1".to_owned()], 0));
}

#[test]
fn nobody_waits_for_a_file_of_a_mailbox_that_went_away() {
    let bed = Bed::new();
    bed.put("2026-03-11/inbox/a1.txt", "");
    let store = bed.store();
    let (base, away) = (bed.base(), bed.root().join("away"));
    let mover = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(40));
        std::fs::rename(base, away).unwrap();
    });
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    mover.join().unwrap();
    std::fs::rename(bed.root().join("away"), bed.base()).unwrap();
    store.scan(true, &mut seen).unwrap();
    assert_eq!((ids(&seen).len(), seen.rejected.len()), (0, 1), "it is looked at when it is back");
}

#[test]
fn twenty_thousand_files_in_a_folder() {
    let bed = Bed::new();
    let inbox = bed.base().join("2026-03-11/inbox");
    std::fs::create_dir_all(&inbox).unwrap();
    for n in 0..20_000 {
        let id = format!("{n:012x}");
        let text = letter("bob@x", &id, "2026-03-11 14:23:55", &id);
        std::fs::write(inbox.join(format!("{id}.txt")), text).unwrap();
    }
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    assert_eq!((seen.messages.len(), seen.reported), (20_000, 20_000));
    let again = bed.store();
    assert!(again.restore_cursors(&store.save_cursors()));
    again.scan(true, &mut seen).unwrap();
    assert_eq!(seen.reported, 20_000);
}
