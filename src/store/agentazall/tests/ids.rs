//! Tests of the ids of messages through changes of files and cache.

use super::*;
use crate::store::MessageReader;

const PATH: &str = "2026-03-11/inbox/a1.txt";
const DATE: &str = "2026-03-11 14:23:55";

fn namesake(bed: &Bed, path: &str, id: &str) -> String {
    let file = std::fs::read(bed.base().join(path)).unwrap();
    let hash: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest(file).into();
    format!("{id}{QUALIFIER}{}", crate::model::encode_hex(&hash))
}

#[test]
fn another_text_under_the_same_name_and_id_is_another_message() {
    let bed = Bed::new();
    bed.letter(PATH, "bob@x", "a1", DATE, "first");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let first = seen.one("a1").at;
    bed.letter(PATH, "bob@x", "a1", DATE, "other");
    let other = namesake(&bed, PATH, "a1");
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), vec![other.clone()]);
    assert_ne!(seen.one(&other).at.source, first.source);
    let record = MessageReader::read_record(&store, &seen.one(&other).at).unwrap();
    assert_eq!((record.message.body.as_str(), &record.message.id), ("other", &other));
    assert!(matches!(MessageReader::read_record(&store, &first), Err(StoreError::Moved)));
    // It keeps its id without the cache, and with a cache that has not seen it.
    let (_, seen) = bed.lose_cache();
    assert_eq!(ids(&seen), vec![other.clone()]);
    // The first text gets its id back when it comes back, and so does the second.
    bed.letter(PATH, "bob@x", "a1", DATE, "first");
    let (_, seen) = bed.lose_cache();
    assert_eq!(ids(&seen), ["a1"]);
    bed.letter("2026-03-12/inbox/a1.txt", "bob@x", "a1", DATE, "other");
    let (_, seen) = bed.lose_cache();
    assert_eq!(ids(&seen), ["a1".to_owned(), other]);
}

#[test]
fn a_snapshot_knows_the_text_that_was_overwritten_meanwhile() {
    let bed = Bed::new();
    bed.letter(PATH, "bob@x", "a1", DATE, "first");
    let saved = bed.scanned().save_cursors();
    bed.letter(PATH, "bob@x", "a1", DATE, "other");
    let store = bed.store();
    assert!(store.restore_cursors(&saved));
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), [namesake(&bed, PATH, "a1")]);
}

#[test]
fn who_was_marked_or_is_gone_keeps_the_id() {
    let bed = Bed::new();
    for id in ["a1", "b1"] {
        bed.letter(&format!("2026-03-11/inbox/{id}.txt"), "bob@x", id, DATE, "first");
    }
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    // The message was marked, though nothing could be written to the file yet; then the process was killed.
    assert!(matches!(store.write_mark(&seen.one("b1").at, true), Err(StoreError::Busy(_))));
    std::fs::remove_file(bed.base().join(PATH)).unwrap();
    store.scan(true, &mut seen).unwrap();
    for id in ["a1", "b1"] {
        bed.letter(&format!("2026-03-11/inbox/{id}.txt"), "bob@x", id, DATE, "other");
    }
    let (_, seen) = bed.lose_cache();
    let other = |id| namesake(&bed, &format!("2026-03-11/inbox/{id}.txt"), id);
    assert_eq!(ids(&seen), [other("a1"), other("b1")]);
}

#[test]
fn a_file_that_only_grows_while_it_is_young_is_completed() {
    let bed = Bed::new();
    bed.letter(PATH, "bob@x", "a1", DATE, "first");
    let store = bed.store();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    bed.letter(PATH, "bob@x", "a1", DATE, "first\nsecond");
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), ["a1"]);
    let body = MessageReader::read_record(&store, &seen.one("a1").at).unwrap().message.body;
    assert_eq!(body, "first\nsecond");
    // Long after it was written, it is another text that begins in the same way.
    age(&bed.base().join(PATH), 60);
    store.scan(true, &mut seen).unwrap();
    bed.letter(PATH, "bob@x", "a1", DATE, "first\nsecond\nthird");
    store.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), [namesake(&bed, PATH, "a1")]);
    // A file that was plainly unfinished is the exception.
    let path = "2026-03-11/inbox/h1.txt";
    let whole = letter("bob@x", "h1", DATE, "whole");
    let (half, _) = whole.split_once("---").unwrap();
    bed.put(path, half);
    age(&bed.base().join(path), 60);
    store.scan(true, &mut seen).unwrap();
    assert_eq!(MessageReader::read_record(&store, &seen.one("h1").at).unwrap().message.body, "");
    bed.put(path, &whole);
    store.scan(true, &mut seen).unwrap();
    assert_eq!(
        MessageReader::read_record(&store, &seen.one("h1").at).unwrap().message.body,
        "whole"
    );
    assert_eq!(seen.messages.len(), 2);
}

#[test]
fn ids_do_not_depend_on_the_cache_or_the_order_of_files() {
    for turn in [false, true] {
        let bed = Bed::new();
        let (one, two) = if turn { ("y", "x") } else { ("x", "y") };
        bed.letter(&format!("2026-03-11/inbox/{one}.txt"), "bob@x", "a1", DATE, one);
        let store = bed.scanned();
        bed.letter(&format!("2026-03-11/inbox/{two}.txt"), "bob@x", "a1", DATE, two);
        let mut seen = Book::default();
        store.scan(true, &mut seen).unwrap();
        let (again, seen) = bed.lose_cache();
        assert_eq!(again.source_path(seen.one("a1").at.source).unwrap().get(17..18), Some(one));
        let id = namesake(&bed, &format!("2026-03-11/inbox/{two}.txt"), "a1");
        assert_eq!(ids(&seen), ["a1".to_owned(), id]);
    }
}

#[test]
fn a_message_in_several_copies_keeps_id_and_time() {
    let bed = Bed::new();
    let store = bed.store();
    let key = Key::new(5);
    let made = store.prepare_records(
        &draft(&["me@x"], "text"),
        &PrepareContext::new(Timestamp::from_secs(1_773_000_000), &key),
    );
    // Only the block of the text is signed, so that copies may have other ids.
    let text = made.unwrap().remove(0).bytes;
    let meta = ["From", "To", "Subject", "Date", "Message-ID", "Signature-V2"];
    let (head, block) = text.split_once("\n---\n").unwrap();
    let in_block = |line: &&str| !meta.iter().any(|m| line.starts_with(&format!("{m}: ")));
    let block = block.split('\n').filter(in_block).collect::<Vec<_>>().join("\n");
    let copy = |id: &str, date: &str| {
        let lines = head.lines().map(|line| match line.split_once(": ") {
            Some(("Date", _)) => format!("Date: {date}"),
            Some(("Message-ID", _)) => format!("Message-ID: {id}"),
            _ => line.to_owned(),
        });
        format!("{}\n---\n{block}", lines.collect::<Vec<_>>().join("\n"))
    };
    bed.put("2026-03-11/inbox/r1.txt", &copy("r1", "2026-03-11T12:00:05.000000"));
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let time = seen.one("r1").time;
    bed.put("2026-03-11/inbox/l1.txt", &copy("l1", "2026-03-11 13:00:00"));
    bed.put("2026-03-11/inbox/l1/file", "x");
    store.scan(true, &mut seen).unwrap();
    assert_eq!((ids(&seen), seen.one("r1").time), (vec!["r1".to_owned()], time));
    let (again, seen) = bed.lose_cache();
    assert_eq!((ids(&seen), seen.one("r1").time), (vec!["r1".to_owned()], time));
    let found = seen.one("r1");
    assert!(found.has_parts);
    let message = MessageReader::read_record(&again, &found.at).unwrap().message;
    assert_eq!((message.id.as_str(), message.time), ("r1", time));
}

#[test]
fn another_zone_changes_times_and_nothing_else() {
    let bed = Bed::new();
    bed.letter(PATH, "bob@x", "a1", DATE, "first");
    let store = bed.scanned();
    bed.letter(PATH, "bob@x", "a1", DATE, "other");
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let before = ids(&seen);
    let time = seen.one(&before[0]).time;
    let elsewhere = AgentAzall::open_in_zone(&bed.spec(), TimeZone::UTC).unwrap();
    assert!(elsewhere.restore_cursors(&store.save_cursors()));
    elsewhere.scan(true, &mut seen).unwrap();
    assert_eq!(ids(&seen), before);
    assert_eq!(seen.one(&before[0]).time.secs(), time.secs() + 3600);
}

#[test]
fn nothing_is_kept_for_messages_that_need_nothing() {
    let bed = Bed::new();
    for n in 0..20 {
        bed.letter(&format!("2026-03-11/inbox/{n}.txt"), "bob@x", &n.to_string(), DATE, "hi");
    }
    bed.letter("2026-03-11/outbox/o.txt", "me@x", "o", DATE, "hi");
    let store = bed.scanned();
    std::fs::create_dir(bed.base().join("2026-03-11/sent")).unwrap();
    let base = bed.base();
    std::fs::rename(base.join("2026-03-11/outbox/o.txt"), base.join("2026-03-11/sent/o.txt"))
        .unwrap();
    store.scan(true, &mut Book::default()).unwrap();
    assert!(!bed.root().join("state").exists());
}
