//! Marks beside writers that are not finished.

use crate::store::MessageReader;
use std::io::Write;

use super::super::tests::{Bed, age, letter};
use super::*;
use crate::store::Store;

const PATH: &str = "2026-03-11/inbox/a1.txt";

fn text(body: &str) -> String {
    letter("bob@x", "a1", "2026-03-11 14:23:55", body)
}

fn read(body: &str) -> String {
    text(body).replacen("Status: new", "Status: read", 1)
}

/// Returns a message that was written a while ago, and its writer, which still has it open.
fn half() -> (Bed, AgentAzall, std::fs::File) {
    let bed = Bed::new();
    bed.put(PATH, &text("first"));
    let path = bed.base().join(PATH);
    let writer = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    age(&path, 3);
    let store = bed.scanned();
    (bed, store, writer)
}

fn one(store: &AgentAzall) -> crate::store::Location {
    let table = store.table.read();
    let n = table.find_path(PATH).unwrap();
    StoreFile::<LetterFacts>::location(n, table.row(n).unwrap().len as usize)
}

fn id(store: &AgentAzall) -> String {
    store.scan(false, &mut crate::store::testing::Book::default()).unwrap();
    MessageReader::read_record(store, &one(store)).unwrap().message.id
}

#[test]
fn a_file_that_was_just_written_is_left_for_later() {
    let bed = Bed::new();
    bed.put(PATH, &text("first"));
    let store = bed.scanned();
    let at = one(&store);
    assert!(matches!(store.write_mark(&at, true), Err(StoreError::Busy(_))));
    assert_eq!(bed.get(PATH), text("first"));
    age(&bed.base().join(PATH), 3);
    store.scan(true, &mut crate::store::testing::Book::default()).unwrap();
    assert!(store.write_mark(&at, true).unwrap());
    assert_eq!(bed.get(PATH), read("first"));
    // A file that is marked already need not be touched, and a clock in the future blocks nothing.
    bed.put(PATH, &read("first"));
    assert!(store.write_mark(&at, true).unwrap());
    bed.put(PATH, &text("first"));
    age(&bed.base().join(PATH), -3600);
    assert!(store.write_mark(&at, true).unwrap());
}

#[test]
fn another_text_under_the_name_is_not_marked() {
    let (bed, store, _) = half();
    let at = one(&store);
    bed.put(PATH, &text("other"));
    age(&bed.base().join(PATH), 3);
    assert!(matches!(store.write_mark(&at, true), Err(StoreError::Moved)));
    assert_eq!(bed.get(PATH), text("other"));
    // This holds also after a scan: the location of the first is not that of the second.
    store.scan(false, &mut crate::store::testing::Book::default()).unwrap();
    assert!(matches!(store.write_mark(&at, true), Err(StoreError::Moved)));
    assert!(matches!(MessageReader::read_record(&store, &at), Err(StoreError::Moved)));
    assert_eq!(bed.get(PATH), text("other"));
    assert!(store.write_mark(&one(&store), true).unwrap());
    assert_eq!(bed.get(PATH), read("other"));
}

#[test]
fn what_is_added_to_a_file_while_it_is_marked_is_put_in_place() {
    let (bed, store, mut writer) = half();
    assert!(store.write_mark(&one(&store), true).unwrap());
    assert_eq!(bed.get(PATH), read("first"));
    assert_eq!(id(&store), "a1");
    writer.write_all(b"\nsecond").unwrap();
    store.restore_late_writes();
    assert_eq!(bed.get(PATH), read("first\nsecond"));
    assert_eq!(id(&store), "a1", "it is the same message");
    writer.write_all(b"\nthird").unwrap();
    assert_eq!(id(&store), "a1", "a scan looks after it too");
    assert_eq!(bed.get(PATH), read("first\nsecond\nthird"));
    assert_eq!(std::fs::read_dir(bed.base().join("2026-03-11/inbox")).unwrap().count(), 1);
}

#[test]
fn another_text_in_the_replaced_file_is_a_message_of_its_own() {
    let (bed, store, mut writer) = half();
    assert!(store.write_mark(&one(&store), true).unwrap());
    assert_eq!(id(&store), "a1");
    writer.set_len(0).unwrap();
    writer.write_all(text("a new one").as_bytes()).unwrap();
    let id = id(&store);
    assert_eq!(bed.get(PATH), text("a new one"), "nobody has read it");
    assert!(id.contains(crate::model::QUALIFIER), "{id:?}");
}

#[test]
fn what_somebody_else_put_there_is_left_alone() {
    let (bed, store, mut writer) = half();
    assert!(store.write_mark(&one(&store), true).unwrap());
    let path = bed.base().join(PATH);
    std::fs::write(path.with_extension("tmp"), text("his")).unwrap();
    std::fs::rename(path.with_extension("tmp"), &path).unwrap();
    writer.write_all(b"late").unwrap();
    store.restore_late_writes();
    assert_eq!(bed.get(PATH), text("his"));
    std::fs::remove_file(&path).unwrap();
    writer.write_all(b"later").unwrap();
    store.restore_late_writes();
    assert!(!path.exists());
}
