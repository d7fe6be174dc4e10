//! Flags, renames, and messages that disappear for a moment.

use super::*;
use crate::model::plain_id;
use crate::store::MessageReader as _;

#[test]
fn reading_renames_and_keeps_every_flag() {
    let place = Place::new();
    place.put("new/1.M1P1.h", &mail("a@x", "", "a"));
    place.put("cur/2.h:2,FPa", &mail("b@x", "", "b"));
    let store = place.store();
    let mut book = Book::scanned(&store);
    for kept in book.messages.values() {
        assert_eq!(kept.read, Some(false));
        assert!(store.write_mark(&kept.at, true).unwrap());
    }
    assert_eq!(place.names("box/new"), Vec::<String>::new());
    assert_eq!(place.names("box/cur"), ["1.M1P1.h:2,S", "2.h:2,FPSa"]);
    book.scan(&store, false);
    assert!(book.vanished.is_empty() && book.messages.len() == 2);
    for kept in book.messages.values() {
        assert_eq!((kept.read, kept.unmarked_hash), (Some(true), 0));
        assert!(store.write_mark(&kept.at, false).unwrap());
    }
    assert_eq!(place.names("box/cur"), ["1.M1P1.h:2,", "2.h:2,FPa"]);
    book.scan(&store, false);
    assert!(book.messages.values().all(|kept| kept.read == Some(false)));
}

#[test]
fn marks_of_other_programs_are_seen_wherever_the_file_lies() {
    let place = Place::new();
    place.put("new/1.h", &mail("a@x", "", "a"));
    let store = place.store();
    let mut book = Book::scanned(&store);
    let first = only(&book).id.to_string();
    for (from, to, read) in [
        ("new/1.h", "new/1.h:2,", false),
        ("new/1.h:2,", "cur/1.h:2,", false),
        ("cur/1.h:2,", "cur/1.h:2,FS", true),
        ("cur/1.h:2,FS", "new/1.h:2,FS", true),
        ("new/1.h:2,FS", "cur/other:2,", false),
    ] {
        place.rename(from, to);
        book.scan(&store, true);
        assert_eq!((&*only(&book).id, only(&book).read), (&*first, Some(read)), "{to}");
        assert_eq!(store.read_record(&only(&book).at).unwrap().message.body, "a");
    }
    assert!(book.vanished.is_empty());
}

#[test]
fn a_reader_does_not_notice_a_rename() {
    let place = Place::new();
    place.put("new/1.h", &mail("a@x", "", "a"));
    let store = place.store();
    let book = Book::scanned(&store);
    place.rename("new/1.h", "cur/1.h:2,S");
    assert_eq!(store.read_record(&only(&book).at).unwrap().message.body, "a");
    assert!(matches!(store.write_mark(&only(&book).at, true), Err(StoreError::Moved)));
    std::fs::remove_file(place.path("box/cur/1.h:2,S")).unwrap();
    assert!(matches!(store.read_record(&only(&book).at), Err(StoreError::Moved)));
}

/// Ends the time for which messages are held.
fn end_holds(store: &MaildirStore) {
    let mut table = store.table.write();
    let held = table.iter_all().filter(|(_, _, facts)| facts.gone_at != 0);
    let held: Vec<u32> = held.map(|(n, ..)| n).collect();
    for n in held {
        table.update_row(n, |_, facts| facts.gone_at = 1);
    }
}

#[test]
fn a_message_that_disappears_is_held() {
    let place = Place::new();
    let text = mail("a@x", "", "a");
    place.put("new/1.h", &text);
    place.put("new/2.h", &mail("b@x", "", "b"));
    let store = place.store();
    let mut book = Book::scanned(&store);
    std::fs::remove_file(place.path("box/new/1.h")).unwrap();
    book.scan(&store, true);
    assert_eq!(book.messages.len(), 2);
    assert!(store.is_failing(), "another scan follows");
    place.put("cur/7.h:2,S", &text);
    book.scan(&store, true);
    assert_eq!(book.messages.values().find(|k| plain_id(&k.id) == "a@x").unwrap().read, Some(true));
    assert!(book.vanished.is_empty());
    end_holds(&store);
    book.scan(&store, true);
    assert_eq!((book.messages.len(), store.is_failing()), (2, false));

    std::fs::remove_file(place.path("box/cur/7.h:2,S")).unwrap();
    book.scan(&store, true);
    assert_eq!(book.messages.len(), 2);
    // A later process goes on with it.
    let later = place.store();
    assert!(later.restore_cursors(&store.save_cursors()));
    book.scan(&later, true);
    assert_eq!(book.messages.len(), 2);
    end_holds(&later);
    book.scan(&later, true);
    assert_eq!(plain_id(&only(&book).id), "b@x");
    assert!(!later.is_failing());
}

/// S1320: a process that did not see a message disappear does not hold it, also if its folder was changed just now.
#[test]
fn a_loss_that_nobody_saw_is_not_held() {
    let place = Place::new();
    place.put("new/1.h", &mail("a@x", "", "a"));
    let store = place.store();
    let mut book = Book::scanned(&store);
    let saved = store.save_cursors();
    std::fs::remove_file(place.path("box/new/1.h")).unwrap();
    let later = place.store();
    assert!(later.restore_cursors(&saved));
    book.scan(&later, true);
    assert_eq!((book.messages.len(), later.is_failing()), (0, false));
}

#[test]
fn the_last_copy_counts() {
    let place = Place::new();
    let text = mail("a@x", "", "a");
    place.put("new/1.h", &text);
    place.put("cur/1.h.sync-conflict:2,", &text);
    let store = place.store();
    let mut book = Book::scanned(&store);
    assert_eq!(only(&book).read, Some(false));
    assert!(store.write_mark(&only(&book).at, true).unwrap());
    assert_eq!(place.names("box/cur"), ["1.h.sync-conflict:2,S", "1.h:2,S"]);
    book.scan(&store, true);
    std::fs::remove_file(place.path("box/cur/1.h:2,S")).unwrap();
    book.scan(&store, true);
    assert_eq!(store.read_record(&only(&book).at).unwrap().message.body, "a");
    assert!(!store.is_failing() && book.vanished.is_empty());
}

#[test]
fn marks_can_be_left_to_others() {
    let place = Place::new();
    place.put("new/1.h", &mail("a@x", "", "a"));
    let store = place
        .store_with(MaildirSettings { marks: MaildirMarks::Off, ..MaildirSettings::default() });
    let book = Book::scanned(&store);
    assert_eq!((only(&book).read, only(&book).unmarked_hash), (Some(false), 0));
    assert!(store.facets().marks.is_none());
}

#[test]
fn a_rescan_reads_only_what_moved() {
    let place = Place::new();
    for n in 0..300 {
        place.put(&format!("new/{n}.h"), &mail(&format!("{n}@x"), "", "x"));
    }
    let store = place.store();
    let mut book = Book::scanned(&store);
    let before = book.reported;
    for n in 0..10 {
        place.rename(&format!("new/{n}.h"), &format!("cur/{n}.h:2,S"));
    }
    book.scan(&store, true);
    assert_eq!((book.reported - before, book.messages.len()), (10, 300));
}
