//! Tests that a journal is read as it was written.

use super::*;
use proptest::prelude::*;

fn stages(journal: &Journal) -> Vec<(u64, JournalEntry)> {
    journal.entries.iter().map(|(no, entry)| (*no, entry.clone())).collect()
}

fn taken(given: Option<&str>) -> EntryChange {
    EntryChange::Taken { given: given.map(str::to_owned) }
}

fn refused(why: &str) -> EntryChange {
    EntryChange::Refused { why: why.to_owned() }
}

fn later(why: &str, until: i64) -> EntryChange {
    EntryChange::Later { why: why.to_owned(), until, is_unanswered: false }
}

fn spool(journal: &mut Journal, message: &str, to: &str, wire: &[u8], now: i64) -> io::Result<()> {
    let (no, path) = journal.reserve_number();
    write_wire_file(&path, wire)?;
    if !journal.add_unsynced(no, message, to, now) {
        remove_wire_files(&[path]);
        return Ok(());
    }
    sync_wire_files(&[path])?;
    journal.record_accepted(&[no])
}

/// Entries that a carrier did not come to are as they were; the others of its job are not.
#[test]
fn what_was_not_begun_counts_as_not_tried() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    for message in ["a", "b", "c"] {
        spool(&mut journal, message, "bob", b"x", 1).unwrap();
    }
    assert_eq!(journal.list_due_entries(1, 2), [0, 1]);
    journal.record_tries(vec![0, 1, 2]).unwrap();
    let changes = vec![(0, taken(None)), (1, later("down", 9)), (2, EntryChange::Untried)];
    remove_wire_files(&journal.record_changes(changes, 5).unwrap());
    for journal in [&mut journal, &mut Journal::open(dir.path(), 5).unwrap()] {
        assert_eq!(journal.entry(1).unwrap().tries, 1);
        let untried = journal.entry(2).unwrap();
        assert_eq!(
            (untried.tries, &untried.stage),
            (0, &DeliveryStage::Waits { until: 5, why: None })
        );
        assert_eq!(journal.list_due_entries(5, 9), [2]);
        assert_eq!(journal.list_due_entries(9, 9), [1, 2]);
    }
    assert!(!journal.wire_path(0).exists() && journal.wire_path(2).exists());
}

/// A try without an answer is remembered, also after later tries, until the engine refuses the message.
#[test]
fn a_try_without_an_answer_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    let lost = |until| EntryChange::Later { why: "reset".into(), until, is_unanswered: true };
    let give_up = || EntryChange::GivenUp { why: "no".into(), is_unanswered: false };
    for to in ["bob", "carol", "dan", "eve"] {
        spool(&mut journal, "m", to, b"x", 1).unwrap();
    }
    for (first, second) in [(lost(2), later("down", 3)), (later("down", 2), later("down", 3))] {
        let no = u64::from(first != lost(2));
        journal.record_tries(vec![no]).unwrap();
        journal.record_changes(vec![(no, first)], 2).unwrap();
        journal.record_tries(vec![no]).unwrap();
        journal.record_changes(vec![(no, second), (no, give_up())], 3).unwrap();
    }
    journal.record_tries(vec![2, 3]).unwrap();
    journal.record_changes(vec![(2, lost(2)), (3, lost(2))], 2).unwrap();
    journal.record_changes(vec![(2, refused("no"))], 3).unwrap();
    let is_unanswered = |journal: &Journal| {
        stages(journal).into_iter().map(|(_, e)| e.has_unanswered_try).collect::<Vec<_>>()
    };
    assert_eq!(is_unanswered(&journal), [true, false, false, true]);
    let mut again = Journal::open(dir.path(), 4).unwrap();
    assert_eq!(stages(&again), stages(&journal));
    again.compact_file().unwrap();
    let again = Journal::open(dir.path(), 4).unwrap();
    assert_eq!(is_unanswered(&again), is_unanswered(&journal));
}

#[test]
fn a_message_goes_from_spooled_to_taken_and_is_not_taken_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    spool(&mut journal, "m", "bob", b"bytes", 1).unwrap();
    spool(&mut journal, "m", "bob", b"others", 2).unwrap();
    spool(&mut journal, "m", "carol", b"bytes", 2).unwrap();
    assert_eq!(std::fs::read(journal.wire_path(0)).unwrap(), b"bytes");
    assert_eq!(journal.open_entries().count(), 2);
    journal.record_tries(vec![0]).unwrap();
    let journal_again = Journal::open(dir.path(), 3).unwrap();
    assert_eq!(journal_again.find_entry("m", "bob").unwrap().stage, DeliveryStage::Trying);
    assert_eq!(journal_again.find_entry("m", "bob").unwrap().tries, 1);
    let over = journal.record_changes(vec![(0, taken(Some("theirs")))], 4).unwrap();
    remove_wire_files(&over);
    assert!(!journal.wire_path(0).exists() && !journal.wire_path(1).exists());
    assert!(journal.wire_path(2).exists());
    journal.record_changes(vec![(2, refused("nobody"))], 5).unwrap();
    assert_eq!(journal.open_entries().count(), 0);
    let again = Journal::open(dir.path(), 6).unwrap();
    assert_eq!(stages(&again), stages(&journal));
    assert_eq!(
        again.find_entry("m", "carol").unwrap().stage,
        DeliveryStage::Refused("nobody".into())
    );
    let late = Journal::open(dir.path(), 6 + REMEMBERED).unwrap();
    assert_eq!((late.entries.len(), late.next_no), (0, 3), "numbers are not used again");
}

/// A failed try before a long pause is no week of tries, also for a journal that an older build wrote or that was made
/// anew meanwhile.
#[test]
fn s1292_a_message_is_given_up_only_after_a_week_of_tries() {
    const DAY: i64 = 24 * 3600 * 1000;
    let new = |dir: &Path| {
        let mut journal = Journal::open(dir, 1).unwrap();
        spool(&mut journal, "m", "bob", b"x", 1).unwrap();
        journal.record_tries(vec![0]).unwrap();
        journal.record_changes(vec![(0, later("down", 2))], 2).unwrap();
    };
    let old = |dir: &Path| {
        let lines = concat!(
            r#"{"is":"spooled","no":0,"message":"m","to":"bob","at":1}"#,
            "\n",
            r#"{"is":"trying","no":0,"tries":1}"#,
            "\n",
            r#"{"is":"later","no":0,"until":2,"why":"down"}"#,
            "\n"
        );
        std::fs::write(dir.join(FILE), lines).unwrap();
    };
    for write in [&new as &dyn Fn(&Path), &old] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let mut days = 0;
        for day in 8.. {
            let mut journal = Journal::open(dir.path(), day * DAY).unwrap();
            journal.record_tries(vec![0]).unwrap();
            if journal.entry(0).unwrap().next_try_time(day * DAY, None).is_none() {
                break;
            }
            journal.record_changes(vec![(0, later("down", day * DAY))], day * DAY).unwrap();
            journal.record_tries(vec![0]).unwrap();
            journal.record_changes(vec![(0, EntryChange::Untried)], day * DAY).unwrap();
            let before = stages(&journal);
            journal.compact_file().unwrap();
            assert_eq!(stages(&Journal::open(dir.path(), day * DAY).unwrap()), before);
            days += 1;
        }
        assert_eq!(days, 7);
    }
}

#[test]
fn bytes_of_messages_that_were_never_accepted_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    spool(&mut journal, "m", "bob", b"bytes", 1).unwrap();
    let (_, left) = journal.reserve_number();
    write_wire_file(&left, b"left").unwrap();
    // S1296: the process was killed before it removed the bytes of a message that is over.
    for (no, change) in [(2, taken(None)), (3, refused("no"))] {
        spool(&mut journal, "m", &no.to_string(), b"carried", 1).unwrap();
        journal.record_changes(vec![(no, change)], 1).unwrap();
        std::fs::write(progress_note_path(&journal.wire_path(no)), b"").unwrap();
    }
    let journal = Journal::open(dir.path(), 2).unwrap();
    assert!(!left.exists() && journal.wire_path(0).exists());
    assert_eq!(std::fs::read_dir(dir.path().join("out")).unwrap().count(), 1);
}

#[test]
fn what_was_torn_off_did_not_happen_and_takes_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    spool(&mut journal, "a", "bob", b"", 1).unwrap();
    journal.record_changes(vec![(0, taken(None))], 1).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let first = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
    for cut in first..whole.len() - 1 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let mut journal = Journal::open(dir.path(), 1).unwrap();
        assert!(matches!(journal.entry(0).unwrap().stage, DeliveryStage::Waits { .. }), "{cut}");
        spool(&mut journal, "b", "bob", b"", 1).unwrap();
        let again = Journal::open(dir.path(), 1).unwrap();
        assert_eq!(again.open_entries().count(), 2, "{cut}");
    }
}

#[test]
fn a_long_journal_is_made_anew_and_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    for n in 0..4 {
        spool(&mut journal, "m", &n.to_string(), b"x", 1).unwrap();
    }
    for _ in 0..FEW_LINES {
        journal.record_tries(vec![0]).unwrap();
        journal.record_changes(vec![(0, later("down", 7))], 1).unwrap();
    }
    journal.record_changes(vec![(1, refused("no"))], 2).unwrap();
    journal.record_changes(vec![(2, taken(Some("theirs")))], 2).unwrap();
    journal.record_seen(&["x".into(), "y".into()], 2).unwrap();
    let before = stages(&journal);
    let again = Journal::open(dir.path(), 3).unwrap();
    assert!(again.lines < 20, "{}", again.lines);
    assert_eq!(stages(&again), before);
    let once_more = Journal::open(dir.path(), 3).unwrap();
    assert_eq!(stages(&once_more), before);
    assert!(once_more.is_seen("x") && once_more.is_seen("y") && !once_more.is_seen("z"));
}

#[test]
fn what_is_still_listed_is_not_forgotten_nor_is_anything_while_it_was_off() {
    let dir = tempfile::tempdir().unwrap();
    let ids = |names: &[&str]| -> Vec<String> { names.iter().map(|n| (*n).into()).collect() };
    let mut journal = Journal::open(dir.path(), 1).unwrap();
    journal.record_seen(&ids(&["gone", "stays"]), 1).unwrap();
    let mut journal = Journal::open(dir.path(), 9 * REMEMBERED).unwrap();
    assert!(journal.is_seen("gone") && journal.is_seen("stays"));
    journal.record_seen(&ids(&["stays"]), 9 * REMEMBERED).unwrap();
    let lines = journal.lines;
    journal.record_seen(&ids(&["stays"]), 9 * REMEMBERED + 5).unwrap();
    assert_eq!(journal.lines, lines, "nothing is written while nothing happens");
    let journal = Journal::open(dir.path(), 9 * REMEMBERED + 9).unwrap();
    assert!(!journal.is_seen("gone") && journal.is_seen("stays"));
}

/// Checks that the counters equal a count over all entries.
fn is_counted(journal: &mut Journal, now: i64) {
    let until = |entry: &JournalEntry| match entry.stage {
        DeliveryStage::Waits { until, .. } => until,
        _ => 0,
    };
    let open: Vec<(u64, i64)> =
        journal.open_entries().map(|(no, entry)| (no, until(entry))).collect();
    let refused = |entry: &&JournalEntry| matches!(entry.stage, DeliveryStage::Refused(_));
    assert_eq!(journal.refused_count(), journal.entries.values().filter(refused).count());
    assert_eq!(journal.open_count(), open.len());
    let due = open.iter().filter(|(_, until)| *until <= now).map(|(no, _)| *no);
    let due = due.min_by_key(|no| (journal.entries[no].rank(), *no));
    assert_eq!(journal.list_due_entries(now, 1).first().copied(), due);
    assert_eq!(journal.next_due_time().is_some(), !open.is_empty());
    if due.is_none() {
        assert_eq!(journal.next_due_time(), open.iter().map(|(_, until)| *until).min());
    }
}

proptest! {
    #[test]
    fn the_oldest_that_may_go_goes_first(steps in proptest::collection::vec((0u64..6, 0u8..5, 0i64..20), 0..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), 1).unwrap();
        for (now, (no, what, until)) in (1..).zip(steps) {
            let is_open = journal.open_entries().any(|(other, _)| other == no);
            match what {
                0 => spool(&mut journal, "m", &no.to_string(), b"", now).unwrap(),
                1 => journal.refuse_at_once("m", &no.to_string(), "no", now).unwrap(),
                _ if !is_open => {}
                2 => journal.record_tries(vec![no]).unwrap(),
                3 => journal.record_changes(vec![(no, later("down", now + until))], now).map(drop).unwrap(),
                _ => journal.record_changes(vec![(no, taken(None))], now).map(drop).unwrap(),
            }
            is_counted(&mut journal, now);
            if now % 8 == 0 {
                is_counted(&mut Journal::open(dir.path(), now).unwrap(), now);
            }
        }
        let mut late = Journal::open(dir.path(), REMEMBERED + 99).unwrap();
        is_counted(&mut late, REMEMBERED + 99);
    }

    #[test]
    fn any_bytes_are_a_journal(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), bytes).unwrap();
        let mut journal = Journal::open(dir.path(), 1).unwrap();
        spool(&mut journal, "m", "bob", b"x", 1).unwrap();
        prop_assert!(Journal::open(dir.path(), 1).unwrap().find_entry("m", "bob").is_some());
    }
}
