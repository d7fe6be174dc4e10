//! The order of messages: the first keeps the id, the later is the replay, and this does not change.

use super::*;
use crate::model::QUALIFIER;
use crate::store::MessageReader as _;

/// Returns the file as if it had arrived at this second.
fn came(second: u32, message: &Mail<'_>) -> String {
    message.json().replace("17:42:05Z", &format!("17:43:{second:02}Z"))
}

fn keys(books: &Book) -> Vec<(String, String)> {
    books.messages.keys().cloned().collect()
}

fn replays(store: &AmpStore, books: &Book) -> Vec<(String, Vec<String>)> {
    let warned = |((_, id), kept): (&(String, String), &Kept)| {
        (id.clone(), store.read_record(&kept.at).unwrap().message.warnings)
    };
    books.messages.iter().map(warned).collect()
}

fn checked(store: &AmpStore, rule: &str) -> Vec<String> {
    let mut out = Vec::new();
    store.check(&|_| None, &mut |v| out.extend((v.rule == rule).then_some(v.file))).unwrap();
    out
}

#[test]
fn a_cold_scan_gives_the_ids_a_warm_one_gave() {
    let host = Host::new(&["alice", "bob"]);
    let real = Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") };
    // The genuine message is last by name.
    host.put("bob", "inbox/z/msg_1_a.json", came(1, &real).as_bytes());
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let forged = Mail { body: "send money", signer: None, ..real.clone() };
    let path = host.put("bob", "inbox/a/msg_1_a.json", came(2, &forged).as_bytes());
    books.scan(&store, true);
    let warm = keys(&books);
    assert_eq!(warm.len(), 2);
    assert_eq!(books.one("msg_1_a").valid(), Some(true));
    let hash = crate::model::encode_hex(&sha2::Sha256::digest(std::fs::read(&path).unwrap()));
    let namesake = (address("alice"), format!("msg_1_a{QUALIFIER}{hash}"));
    assert!(warm.contains(&namesake), "{warm:?}");
    // Marks change files, but neither order nor ids.
    for kept in books.messages.values() {
        assert!(store.write_mark(&kept.at, true).unwrap());
    }
    let cold = Book::scanned(&host.open("bob"));
    assert_eq!(keys(&cold), warm);
    assert_eq!(cold.one("msg_1_a").valid(), Some(true));
    assert_eq!(checked(&store, "duplicate"), ["messages/inbox/a/msg_1_a.json"]);
    store.reset_cursors();
    assert_eq!(keys(&Book::scanned(&store)), warm);
}

#[test]
fn the_copy_is_the_replay_whatever_its_name() {
    let host = Host::new(&["alice", "bob"]);
    let real = Mail { signer: Some("alice"), ..mail("msg_9_a", "alice", "bob") };
    let copy = Mail { id: "msg_1_a", ..real.clone() };
    host.put("bob", "inbox/x/msg_9_a.json", came(1, &real).as_bytes());
    host.put("bob", "inbox/x/msg_1_a.json", came(2, &copy).as_bytes());
    let store = host.open("bob");
    let books = Book::scanned(&store);
    let expected = [
        ("msg_1_a".to_owned(), vec!["replay of msg_9_a".to_owned()]),
        ("msg_9_a".to_owned(), Vec::new()),
    ];
    assert_eq!(replays(&store, &books), expected);
    for kept in books.messages.values() {
        assert!(store.write_mark(&kept.at, true).unwrap());
    }
    let again = host.open("bob");
    assert_eq!(replays(&again, &Book::scanned(&again)), expected);
    assert_eq!(checked(&store, "replay"), ["messages/inbox/x/msg_1_a.json"]);
}

/// S1284: what a link delivered under two ids is one message for `check`, too.
#[test]
fn s1284_a_carried_copy_is_no_replay() {
    let host = Host::new(&["alice", "bob"]);
    let context = serde_json::json!({"msgfs": {"id": "msg_5_a"}});
    let real =
        Mail { signer: Some("alice"), context: Some(context), ..mail("msg_9_a", "alice", "bob") };
    let copy = Mail { id: "msg_1_a", ..real.clone() };
    host.put("bob", "inbox/x/msg_9_a.json", came(1, &real).as_bytes());
    host.put("bob", "inbox/x/msg_1_a.json", came(2, &copy).as_bytes());
    let store = host.open("bob");
    let books = Book::scanned(&store);
    assert_eq!((books.messages.len(), books.one("msg_9_a").valid()), (1, Some(true)));
    assert_eq!(checked(&store, "replay"), [""; 0]);
}

#[test]
fn what_i_sent_comes_before_what_comes_back() {
    let host = Host::new(&["bob"]);
    let sent = Mail { signer: Some("bob"), ..mail("msg_9_a", "bob", "bob") };
    let sent_file = sent.json().replace("received_at", "sent_at");
    host.put("bob", "sent/x/msg_9_a.json", sent_file.as_bytes());
    let back = Mail { id: "msg_1_a", ..sent }.json().replace("17:42:05Z", "17:42:03Z");
    host.put("bob", "inbox/a/msg_1_a.json", back.as_bytes());
    let store = host.open("bob");
    let found = replays(&store, &Book::scanned(&store));
    assert_eq!(found[0].1, ["replay of msg_9_a"], "{found:?}");
    assert!(found[1].1.is_empty(), "{found:?}");
}

#[test]
fn files_noted_together_are_taken_in_the_order_in_which_they_came() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    for second in 0..20 {
        let path = format!("inbox/f{}/msg_1_a.json", 20 - second);
        let text = format!("text {second}");
        let message = Mail { body: &text, ..mail("msg_1_a", "eve", "bob") };
        let path = host.put("bob", &path, came(second, &message).as_bytes());
        store.note_change(&path.canonicalize().unwrap());
    }
    books.scan(&store, false);
    assert_eq!(books.messages.len(), 20);
    assert_eq!(store.read_record(&books.one("msg_1_a").at).unwrap().message.body, "text 0");
    assert_eq!(keys(&Book::scanned(&host.open("bob"))), keys(&books));
}

#[test]
fn a_kept_time_hides_no_mark_from_others() {
    let host = Host::new(&["bob"]);
    let path = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    age(&path);
    let time = || std::fs::metadata(&path).unwrap().modified().unwrap();
    let before = time();
    let (mine, other) = (host.open("bob"), host.open("bob"));
    let at = Book::scanned(&mine).one("msg_1_a").at;
    let mut theirs = Book::scanned(&other);
    for read in [true, false, true] {
        assert!(mine.write_mark(&at, read).unwrap());
        assert_eq!(time(), before);
        theirs.scan(&other, true);
        assert_eq!(theirs.one("msg_1_a").read, Some(read));
    }
}

#[test]
fn what_nobody_saw_is_replaced_and_not_doubled() {
    let host = Host::new(&["alice", "bob"]);
    let plain = mail("msg_1_a", "alice", "bob");
    let signed = Mail { signer: Some("alice"), ..plain.clone() };
    let malformed = plain.json().replace("\"signature\": null", "\"signature\": \"AAAA\"");
    let wrong = Mail { signer: Some("bob"), ..plain.clone() }.json();
    assert!(malformed.contains("AAAA"));
    for bad in [&malformed, &wrong] {
        for good in [plain.json(), signed.json()] {
            let path = host.put("bob", "inbox/x/msg_1_a.json", bad.as_bytes());
            let store = host.open("bob");
            let mut books = Book::scanned(&store);
            assert_eq!(books.one("msg_1_a").valid(), Some(false));
            std::fs::write(&path, &good).unwrap();
            books.scan(&store, true);
            assert_eq!(keys(&books), [(address("alice"), "msg_1_a".to_owned())]);
            assert_ne!(books.one("msg_1_a").valid(), Some(false));
        }
    }
}

#[test]
fn links_and_ids_meet_in_either_spelling_and_order() {
    let host = Host::new(&["bob"]);
    let dashed = mail("msg-1-a", "eve", "bob");
    host.deliver("bob", &Mail { re: Some("msg_1_a"), ..mail("msg_2_a", "eve", "bob") });
    host.deliver("bob", &Mail { re: Some("msg-1-a"), ..mail("msg_3_a", "eve", "bob") });
    host.deliver("bob", &Mail { re: Some("msg_7_a"), ..mail("msg_4_a", "eve", "bob") });
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let answers = |books: &Book, id: &str| books.one(id).in_reply_to.clone().unwrap();
    assert_eq!(answers(&books, "msg_2_a"), "msg_1_a");
    let reported = books.reported;
    host.deliver("bob", &dashed);
    books.scan(&store, true);
    for books in [&books, &Book::scanned(&host.open("bob"))] {
        for id in ["msg_2_a", "msg_3_a"] {
            assert_eq!(answers(books, id), "msg-1-a");
            let message = store.read_record(&books.one(id).at).unwrap().message;
            assert_eq!(message.in_reply_to.as_deref(), Some("msg-1-a"));
        }
        assert_eq!(answers(books, "msg_4_a"), "msg_7_a");
    }
    assert_eq!(books.reported, reported + 3, "the message and its two answers");
}
