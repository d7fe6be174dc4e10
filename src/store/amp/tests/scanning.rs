//! The scan of messages as files come, change and go.

use super::*;
use crate::model::QUALIFIER;
use crate::store::{MessageReader as _, RepeatKind};

#[test]
fn inbox_and_sent_flat_and_in_folders() {
    let host = Host::new(&["alice", "bob"]);
    host.deliver("bob", &Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") });
    host.put("bob", "inbox/msg_2_a.json", mail("msg_2_a", "alice", "bob").json().as_bytes());
    host.put(
        "bob",
        "sent/y/msg_3_a.json",
        Mail { signer: Some("bob"), ..mail("msg_3_a", "bob", "alice") }.json().as_bytes(),
    );
    // These are hidden, of another kind, or too deep.
    host.put("bob", "inbox/x/.msg_4_a.tmp", b"{");
    host.put("bob", "inbox/x/.msg_4_a.json", b"{");
    host.put("bob", "inbox/x/note.txt", b"{");
    host.put("bob", "inbox/x/y/msg_5_a.json", mail("msg_5_a", "alice", "bob").json().as_bytes());
    let store = host.open("bob");
    let books = Book::scanned(&store);
    assert_eq!(ids(&books), ["msg_1_a", "msg_2_a", "msg_3_a"]);
    let one = books.one("msg_1_a");
    assert_eq!(
        (one.to_me, one.from_me, one.read, one.valid()),
        (true, false, Some(false), Some(true))
    );
    assert_eq!(one.time.iso8601_basic(), "20260424T174203.000Z");
    assert_eq!(books.one("msg_2_a").valid(), None);
    let sent = books.one("msg_3_a");
    assert_eq!(
        (sent.to_me, sent.from_me, sent.read, sent.valid()),
        (false, true, None, Some(true))
    );
    assert!(books.rejected.is_empty());
    assert!(store.health().iter().any(|l| l.contains("inbox/x/y is skipped: it is a folder")));
    assert_eq!(store.source_path(one.at.source).unwrap(), "messages/inbox/x/msg_1_a.json");
}

#[test]
fn strange_files_are_reported_and_never_opened() {
    let host = Host::new(&["bob"]);
    let good = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    let dir = good.parent().unwrap();
    std::os::unix::fs::symlink(&good, dir.join("msg_2_a.json")).unwrap();
    std::fs::create_dir(dir.join("msg_3_a.json")).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(dir.join("msg_4_a.json"))
            .status()
            .unwrap()
            .success()
    );
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("msg_5_a.json"), mail("msg_5_a", "eve", "bob").json())
        .unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), dir.parent().unwrap().join("link")).unwrap();
    let store = host.open("bob");
    assert_eq!(ids(&Book::scanned(&store)), ["msg_1_a"]);
    let health = store.health().join("\n");
    for what in [
        "msg_2_a.json is skipped: it is a symbolic link",
        "a FIFO",
        "a folder",
        "inbox/link is skipped",
    ] {
        assert!(health.contains(what), "{what}: {health}");
    }
}

#[test]
fn what_is_not_for_me_or_not_a_message_is_refused() {
    let host = Host::new(&["bob"]);
    let cases = [
        ("msg_1_a", "bob@globex.aimaestro.local", "not addressed to me"),
        ("msg_2_a", "carol", "not addressed to me"),
    ];
    for (id, to, _) in cases {
        host.deliver("bob", &Mail { to: to.into(), ..mail(id, "eve", "bob") });
    }
    for ok in ["bob", "bob@local", "bob@default.local", "BOB@Acme.Aimaestro.Local"] {
        let id = format!("msg_9_{}", ok.len());
        host.deliver("bob", &Mail { to: ok.into(), ..mail(&id, "eve", "bob") });
    }
    let broken = host.put("bob", "inbox/x/msg_3_a.json", b"{\"envelope\":");
    let twice = host.put(
        "bob",
        "inbox/x/msg_4_a.json",
        mail("msg_4_a", "eve", "bob")
            .json()
            .replace("\"version\"", "\"to\": \"x\", \"version\"")
            .as_bytes(),
    );
    let traversal =
        host.put("bob", "inbox/x/msg_5_a.json", mail("../../x", "eve", "bob").json().as_bytes());
    host.put(
        "bob",
        "inbox/x/msg_6_a.json",
        Mail { from: "eve/../x@acme.aimaestro.local".into(), ..mail("msg_6_a", "eve", "bob") }
            .json()
            .as_bytes(),
    );
    host.put("bob", "sent/x/msg_7_a.json", mail("msg_7_a", "eve", "bob").json().as_bytes());
    for path in [&broken, &twice, &traversal] {
        age(path);
    }
    let store = host.open("bob");
    let started = std::time::Instant::now();
    let books = Book::scanned(&store);
    assert!(started.elapsed().as_millis() < 800, "old files are not waited for");
    assert_eq!(ids(&books).len(), 4, "{:?}", ids(&books));
    assert_eq!(books.rejected.len(), 7, "{:?}", books.rejected);
    assert_eq!(books.reasons().iter().filter(|r| r.contains("not addressed to me")).count(), 2);
    assert_eq!(books.rejected.values().filter(|r| r.incomplete).count(), 1);
}

#[test]
fn only_what_is_noted_is_looked_at_and_nothing_unchanged_is_read_again() {
    let host = Host::new(&["bob"]);
    let first = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let second = host.deliver("bob", &mail("msg_2_a", "eve", "bob"));
    books.scan(&store, false);
    assert_eq!(ids(&books), ["msg_1_a"]);
    store.note_change(&second.canonicalize().unwrap());
    books.scan(&store, false);
    assert_eq!((ids(&books).len(), books.reported), (2, 2));
    books.scan(&store, true);
    assert_eq!(books.reported, 2);
    std::fs::remove_file(&first).unwrap();
    store.note_change(&first.parent().unwrap().canonicalize().unwrap().join("msg_1_a.json"));
    books.scan(&store, false);
    assert_eq!(ids(&books), ["msg_2_a"]);
    std::fs::remove_dir_all(second.parent().unwrap()).unwrap();
    books.scan(&store, true);
    assert!(ids(&books).is_empty());
}

#[test]
fn a_new_folder_is_noted_and_watched() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let path = host.deliver("bob", &mail("msg_1_a", "eve", "bob")).canonicalize().unwrap();
    let inbox = path.parent().unwrap().parent().unwrap();
    assert!(store.is_relevant(inbox.parent().unwrap(), OsStr::new("inbox")));
    store.note_change(inbox);
    books.scan(&store, false);
    assert_eq!(ids(&books), ["msg_1_a"]);
    let watched = store.folders_to_watch();
    assert!(watched.contains(&inbox.to_owned()) && watched.contains(&inbox.join("x")));
    assert!(store.is_relevant(&inbox.join("x"), OsStr::new("msg_2_a.json")));
    assert!(!store.is_relevant(&inbox.join("x"), OsStr::new(".msg_2_a.tmp")));
    assert!(!store.is_relevant(store.dir(), OsStr::new("keys")));
}

#[test]
fn a_half_written_file_is_waited_for_and_delays_nobody() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let whole = mail("msg_1_a", "eve", "bob").json();
    let path = host.put("bob", "inbox/x/msg_1_a.json", &whole.as_bytes()[..50]);
    let other = host.deliver("bob", &mail("msg_2_a", "eve", "bob"));
    store.note_change(&path.canonicalize().unwrap());
    store.note_change(&other.canonicalize().unwrap());
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            std::fs::write(&path, &whole).unwrap();
        });
        books.scan(&store, false);
    });
    assert_eq!(ids(&books), ["msg_1_a", "msg_2_a"]);
    assert!(books.rejected.is_empty());
}

#[test]
fn what_stays_broken_is_refused_after_a_second_and_leaves_when_complete() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let whole = mail("msg_1_a", "eve", "bob").json();
    let path = host.put("bob", "inbox/x/msg_1_a.json", b"").canonicalize().unwrap();
    store.note_change(&path);
    let started = std::time::Instant::now();
    books.scan(&store, false);
    let took = started.elapsed().as_millis();
    assert!((900..3000).contains(&took), "{took} ms");
    assert!(books.rejected.values().all(|r| r.incomplete) && books.rejected.len() == 1);
    std::fs::write(&path, &whole).unwrap();
    store.note_change(&path);
    books.scan(&store, false);
    assert!(books.rejected.is_empty());
    assert_eq!(ids(&books), ["msg_1_a"]);
}

/// S1286: the fault says if the last text of the message is there.
#[test]
fn a_message_stays_while_its_file_is_broken() {
    let host = Host::new(&["bob"]);
    let path = host.deliver("bob", &mail("msg_1_a", "eve", "bob"));
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let whole = std::fs::read(&path).unwrap();
    let before = store.save_cursors();
    std::fs::write(&path, &whole[..40]).unwrap();
    books.scan(&store, true);
    let at = books.one("msg_1_a").at;
    assert!(books.rejected.is_empty());
    assert!(store.health()[0].contains("its last readable text is shown"), "{:?}", store.health());
    assert_eq!(store.read_record(&at).unwrap().message.body, "how are you");
    // A process that has only the table shows the text, too, unless the table is from before.
    for (saved, has_text) in [(store.save_cursors(), true), (before, false)] {
        let again = host.open("bob");
        assert!(again.restore_cursors(&saved));
        books.scan(&again, true);
        assert!(books.rejected.is_empty() && ids(&books) == ["msg_1_a"]);
        let without = again.health()[0].contains("it stays listed, without text");
        assert_eq!((!without, again.read_record(&at).is_ok()), (has_text, has_text));
    }
    std::fs::write(&path, &whole).unwrap();
    books.scan(&store, true);
    assert!(!store.health().iter().any(|l| l.contains("cannot be read as a message now")));
    std::fs::remove_file(&path).unwrap();
    books.scan(&store, true);
    assert!(ids(&books).is_empty());
}

#[test]
fn a_remount_reads_nothing_that_has_not_changed() {
    let host = Host::new(&["bob"]);
    for n in 0..20 {
        host.deliver("bob", &mail(&format!("msg_{n}_a"), "eve", "bob"));
    }
    host.deliver("bob", &Mail { to: "x".into(), ..mail("msg_77_a", "eve", "bob") });
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let again = host.open("bob");
    assert!(again.restore_cursors(&store.save_cursors()));
    host.deliver("bob", &mail("msg_99_a", "eve", "bob"));
    books.scan(&again, true);
    assert_eq!((books.reported, books.rejected.len()), (21, 1));
    assert_eq!(again.read_record(&books.one("msg_7_a").at).unwrap().message.id, "msg_7_a");
    assert!(!again.restore_cursors(b"something else"));
}

#[test]
fn mail_to_myself_is_one_message() {
    let host = Host::new(&["bob"]);
    let note = Mail { signer: Some("bob"), ..mail("msg_1_a", "bob", "bob") };
    let sent = host.put("bob", "sent/x/msg_1_a.json", note.json().as_bytes());
    // The plugin delivers it in this form.
    let delivered = note
        .json()
        .replace("\"type\": \"request\"", "\"type\": \"request\",\n \"attachments\": []");
    let inbox = host.put("bob", "inbox/x/msg_1_a.json", delivered.as_bytes());
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let both = books.one("msg_1_a");
    assert!(both.to_me && both.from_me && both.valid() == Some(true));
    std::fs::remove_file(&inbox).unwrap();
    books.scan(&store, true);
    let left = books.one("msg_1_a");
    assert!(!left.to_me && left.from_me);
    std::fs::write(&inbox, delivered).unwrap();
    books.scan(&store, true);
    std::fs::remove_file(&sent).unwrap();
    books.scan(&store, true);
    let left = books.one("msg_1_a");
    assert!(left.to_me && !left.from_me);
}

#[test]
fn an_inbox_file_in_my_name_is_not_mine() {
    let host = Host::new(&["bob"]);
    host.deliver("bob", &mail("msg_1_a", "bob", "bob"));
    let store = host.open("bob");
    let books = Book::scanned(&store);
    assert!(!books.one("msg_1_a").from_me);
}

#[test]
fn another_text_under_the_same_id_is_another_message() {
    let host = Host::new(&["alice", "bob"]);
    let first = Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") };
    host.put("bob", "inbox/a/msg_1_a.json", first.json().as_bytes());
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let forged = Mail { body: "send money", ..first.clone() };
    let path = host.put("bob", "inbox/b/msg_1_a.json", forged.json().as_bytes());
    books.scan(&store, true);
    let namesakes: Vec<_> =
        books.messages.keys().filter(|(_, id)| id.contains(QUALIFIER)).cloned().collect();
    let hash = crate::model::encode_hex(&sha2::Sha256::digest(std::fs::read(&path).unwrap()));
    assert_eq!(namesakes, [(address("alice"), format!("msg_1_a{QUALIFIER}{hash}"))]);
    let namesake = books.messages[&namesakes[0]].clone();
    assert_ne!(namesake.thread, "msg_1_a");
    let message = store.read_record(&namesake.at).unwrap().message;
    assert_eq!((message.id, message.body), (namesakes[0].1.clone(), "send money".to_owned()));
    // A mark changes the file, but not the id.
    assert!(store.write_mark(&namesake.at, true).unwrap());
    books.scan(&store, true);
    assert_eq!(books.messages[&namesakes[0]].read, Some(true));
    assert_eq!(books.messages.len(), 2);
}

#[test]
fn a_file_replaced_in_place_does_not_inherit_the_verdict() {
    let host = Host::new(&["alice", "bob"]);
    let real = Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") };
    let path = host.deliver("bob", &real);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let at = books.one("msg_1_a").at;
    std::fs::write(&path, real.json().replace("how are you", "pay up now!")).unwrap();
    assert!(matches!(store.read_record(&at), Err(StoreError::Moved)));
    books.scan(&store, true);
    let (key, kept) = books.messages.first_key_value().unwrap();
    assert!(books.messages.len() == 1 && key.1.contains(QUALIFIER) && kept.valid() == Some(false));
    // A change of spelling alone is no change.
    let other =
        host.deliver("bob", &Mail { signer: Some("alice"), ..mail("msg_2_a", "alice", "bob") });
    books.scan(&store, true);
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&other).unwrap()).unwrap();
    std::fs::write(&other, value.to_string()).unwrap();
    books.scan(&store, true);
    assert_eq!(books.one("msg_2_a").valid(), Some(true));
}

#[test]
fn stale_mail_has_a_warning_and_stays_unread_until_it_is_marked() {
    let host = Host::new(&["bob"]);
    let path = host.deliver(
        "bob",
        &Mail { expires: Some("2026-04-25T00:00:00Z"), ..mail("msg_1_a", "eve", "bob") },
    );
    let soon = crate::store::text::time::format_time(Timestamp::now().plus_millis(1500));
    host.deliver("bob", &Mail { expires: Some(&soon), ..mail("msg_2_a", "eve", "bob") });
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    assert_eq!(books.one("msg_1_a").read, Some(false));
    let at = books.one("msg_1_a").at;
    assert!(store.read_record(&at).unwrap().message.warnings.contains(&"expired".to_owned()));
    let second = books.one("msg_2_a").clone();
    assert_eq!(second.read, Some(false));
    assert!(store.read_record(&second.at).unwrap().message.warnings.is_empty());
    std::thread::sleep(std::time::Duration::from_millis(2600));
    books.scan(&store, false);
    let second = books.one("msg_2_a").clone();
    assert_eq!((second.read, second.repeat_kind), (Some(false), RepeatKind::Rewritten));
    assert!(
        store.read_record(&second.at).unwrap().message.warnings.contains(&"expired".to_owned())
    );
    assert!(store.write_mark(&at, true).unwrap());
    assert!(std::fs::read_to_string(&path).unwrap().contains("read_at"));
    books.scan(&store, true);
    assert_eq!(books.one("msg_1_a").read, Some(true));
}

#[test]
fn replies_name_what_they_answer_in_either_spelling() {
    let host = Host::new(&["bob"]);
    host.deliver("bob", &Mail { re: Some("msg_1_a"), ..mail("msg_2_a", "eve", "bob") });
    host.deliver("bob", &Mail { re: Some("msg-1-a"), ..mail("msg_3_a", "eve", "bob") });
    let books = Book::scanned(&host.open("bob"));
    for id in ["msg_2_a", "msg_3_a"] {
        assert_eq!(books.one(id).in_reply_to.as_deref(), Some("msg_1_a"));
        assert_eq!(books.one(id).thread, id);
    }
}

#[test]
fn times_fall_back_to_what_the_store_noted_and_to_the_file() {
    let host = Host::new(&["bob"]);
    host.deliver("bob", &Mail { time: "yesterday", ..mail("msg_1_a", "eve", "bob") });
    let path = host.put(
        "bob",
        "inbox/x/msg_2_a.json",
        Mail { time: "", ..mail("msg_2_a", "eve", "bob") }
            .json()
            .replace("received_at", "other")
            .as_bytes(),
    );
    age(&path);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    assert_eq!(books.one("msg_1_a").time.iso8601_basic(), "20260424T174205.000Z");
    let by_file = books.one("msg_2_a").clone();
    assert!(Timestamp::now().millis() - by_file.time.millis() > 9000);
    assert!(store.write_mark(&by_file.at, true).unwrap());
    books.scan(&store, true);
    assert_eq!(books.one("msg_2_a").time, by_file.time);
}

/// S1281: a changed copy that came first hides no message with a valid signature.
#[test]
fn s1281_a_changed_copy_hides_no_valid_message() {
    for changed in ["how are you\\n", "how are you\\r\\n"] {
        let host = Host::new(&["alice", "bob", "eve"]);
        let good = Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") };
        let copy = good.json().replace("how are you", changed).replace("17:42:05Z", "17:42:04Z");
        host.put("bob", "inbox/eve/msg_1_a.json", copy.as_bytes());
        let store = host.open("bob");
        let mut books = Book::scanned(&store);
        host.deliver("bob", &good);
        for full in [true, false] {
            books.scan(&store, full);
            let one = books.one("msg_1_a");
            assert_eq!((one.valid(), one.to_me), (Some(true), true), "{changed}");
        }
        // Another store finds both at once.
        let later = host.open("bob");
        assert_eq!(Book::scanned(&later).one("msg_1_a").valid(), Some(true), "{changed}");
    }
}

/// S1281: a client that removes the last newline on delivery breaks the copy in my inbox, not the one in my `sent/`.
#[test]
fn s1281_mail_to_myself_with_a_last_newline_is_in_sent() {
    let host = Host::new(&["bob"]);
    let sent = Mail { signer: Some("bob"), body: "hi\n", ..mail("msg_1_a", "bob", "bob") };
    let json = sent.json();
    host.put("bob", "sent/x/msg_1_a.json", json.as_bytes());
    host.put("bob", "inbox/x/msg_1_a.json", json.replace("\"hi\\n\"", "\"hi\"").as_bytes());
    let store = host.open("bob");
    let books = Book::scanned(&store);
    let one = books.one("msg_1_a");
    assert_eq!((one.valid(), one.to_me, one.from_me), (Some(true), false, true));
    assert_eq!(store.source_path(one.at.source).unwrap(), "messages/sent/x/msg_1_a.json");
}

/// S1283: a sender's key that is there later judges the messages that came before it.
#[test]
fn s1283_a_key_of_this_machine_that_comes_later_counts() {
    let host = Host::new(&["bob"]);
    host.deliver("bob", &Mail { signer: Some("alice"), ..mail("msg_1_a", "alice", "bob") });
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let is_keyless = |books: &Book| {
        let claim = books.one("msg_1_a").claim.as_deref();
        matches!(claim, Some(SignatureClaim::Signed { key: None, .. }))
    };
    assert!(is_keyless(&books));
    let saved = store.save_cursors();
    // A restart with the same keys judges nothing again.
    let again = host.open("bob");
    assert!(again.restore_cursors(&saved));
    books.scan(&again, true);
    assert_eq!(books.reported, 1);
    host.add("alice", "alice", &address("alice"));
    books.scan(&store, false);
    assert!(!is_keyless(&books));
    assert_eq!((books.one("msg_1_a").valid(), books.reported), (Some(true), 2));
    books.scan(&store, false);
    assert_eq!(books.reported, 2);
    // The same holds if the key came while msgfs was not running.
    let again = host.open("bob");
    assert!(again.restore_cursors(&saved));
    assert_eq!(Book::scanned(&again).one("msg_1_a").valid(), Some(true));
}
