//! Read marks in the files.

use super::*;

fn status(path: &Path) -> (serde_json::Value, serde_json::Value) {
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (value["local"]["status"].clone(), value["metadata"]["status"].clone())
}

#[test]
fn a_mark_is_told_and_taken_back() {
    let host = Host::new(&["alice", "bob"]);
    let path =
        host.deliver("bob", &Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") });
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let at = books.one("msg_1_a").at;
    assert!(store.write_mark(&at, true).unwrap());
    assert_eq!(status(&path), ("read".into(), "read".into()));
    assert!(store.write_mark(&at, true).unwrap(), "it says so already");
    books.scan(&store, false);
    let kept = books.one("msg_1_a");
    assert_eq!((kept.read, kept.valid()), (Some(true), Some(true)));
    assert_eq!(u64::from(kept.at.len), std::fs::metadata(&path).unwrap().len());
    assert!(store.write_mark(&at, false).unwrap());
    assert_eq!(status(&path), ("unread".into(), "unread".into()));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o644);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn marks_of_other_clients_are_seen() {
    let host = Host::new(&["bob"]);
    let path = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    for (word, read) in [("archived", true), ("unread", false), ("read", true)] {
        std::fs::write(&path, Mail { status: word, ..mail("msg_1_a", "eve", "bob") }.json())
            .unwrap();
        store.note_change(&path.canonicalize().unwrap());
        books.scan(&store, false);
        assert_eq!(books.one("msg_1_a").read, Some(read), "{word}");
    }
}

#[test]
fn what_is_gone_or_not_in_my_inbox_cannot_be_marked() {
    let host = Host::new(&["bob"]);
    let path = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    let sent =
        host.put("bob", "sent/x/msg_2_a.json", mail("msg_2_a", "bob", "eve").json().as_bytes());
    let store = host.open("bob");
    let books = Book::scanned(&store);
    let before = std::fs::read(&sent).unwrap();
    assert!(!store.write_mark(&books.one("msg_2_a").at, true).unwrap());
    assert_eq!(std::fs::read(&sent).unwrap(), before);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(store.write_mark(&books.one("msg_1_a").at, true), Err(StoreError::Moved)));
}
