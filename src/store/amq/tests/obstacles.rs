//! Deliveries and claims that another process or the file system hinders.

use super::*;
use crate::store::engine::files::PlaceOutcome;

#[test]
fn a_message_that_is_nowhere_is_not_sent() {
    let root = Root::new(&["alice", "bob"]);
    let alice = root.store("alice");
    let [tmp, new, cur] = alice.open_mailbox("bob").unwrap();
    let confirm = |outcome| send::confirm_placement(outcome, &[&new, &cur], "m.md", b"hi\n");
    confirm(PlaceOutcome::Done).unwrap();
    for outcome in [PlaceOutcome::NameTaken, PlaceOutcome::Gone] {
        assert!(matches!(confirm(outcome), Err(StoreError::Busy(_))), "{outcome:?}");
    }
    // Another process was faster; then bob claims its file.
    for place in ["new", "cur"] {
        let path = format!("agents/bob/inbox/{place}/m.md");
        root.put(&path, "hi\n");
        confirm(PlaceOutcome::NameTaken).unwrap();
        assert!(matches!(confirm(PlaceOutcome::Gone), Err(StoreError::Busy(_))));
        root.put(&path, "other\n");
        assert!(matches!(confirm(PlaceOutcome::NameTaken), Err(StoreError::Refused(_))));
        std::fs::remove_file(root.path(&path)).unwrap();
    }
    // The mailbox goes away between the two steps.
    let file = tmp.stage_file("m.md", b"hi\n").unwrap();
    std::fs::remove_dir(root.path("agents/bob/inbox/new")).unwrap();
    assert_eq!(new.publish_file("m.md", &file).unwrap(), PlaceOutcome::Gone);
}

#[test]
fn a_message_whose_receipt_has_too_long_a_name_is_claimed_without_it() {
    let root = Root::new(&["alice", "bob"]);
    // With `__bob__drained.json`, the longer id exceeds 255 bytes by one.
    let ids = [236, 237].map(|len| "m".repeat(len));
    let names = ids.clone().map(|id| format!("{id}.md"));
    for (id, name) in ids.iter().zip(&names) {
        root.put(&format!("agents/bob/inbox/new/{name}"), &file(&json!({ "id": id }), "hi\n"));
    }
    let bob = root.store("bob");
    let mut books = Book::scanned(&bob);
    for id in &ids {
        assert!(bob.write_mark(&books.one(id).at, true).unwrap());
    }
    assert_eq!(root.names("agents/bob/inbox/cur"), names);
    assert_eq!(root.names("agents/bob/receipts"), [format!("{}__bob__drained.json", ids[0])]);
    assert!(root.names("agents/bob/extensions/msgfs").is_empty());
    books.scan(&bob, false);
    assert!(ids.iter().all(|id| books.one(id).read == Some(true)));
}

#[test]
fn only_copies_that_can_be_claimed_count_as_unmarked() {
    let root = Root::new(&["alice", "bob"]);
    let (text, other) = (file(&json!({}), "hi\n"), file(&json!({"id": "x"}), "hi\n"));
    for (name, text) in [("m.md", &text), ("again.md", &text), ("x.md", &other)] {
        root.put(&format!("agents/bob/inbox/new/{name}"), text);
    }
    for (name, text) in [("m.md", text.clone()), ("x.md", file(&json!({"id": "y"}), "hi\n"))] {
        root.put(&format!("agents/bob/inbox/cur/{name}"), &text);
    }
    let bob = root.store("bob");
    let books = Book::scanned(&bob);
    let again = bob.table.read().find_path("agents/bob/inbox/new/again.md").unwrap();
    let expected = crate::store::engine::files::hash_unmarked_files([again]);
    assert_eq!(books.one("m").unmarked_hash, expected);
    assert_eq!(books.one("x").unmarked_hash, 0);
    assert_eq!(bob.remarks().len(), 2);
}
