//! The preparation, the append and the delivery of messages.

use super::*;
use crate::model::{DraftAttachment, Message, encode_hex};
use crate::store::MessageReader as _;

fn signer() -> Key {
    Key::from(key_of("alice"))
}

pub(super) fn prepare(
    store: &AmpStore,
    draft: &Draft,
    parent: Option<&Message>,
) -> Result<Vec<PreparedRecord>, StoreError> {
    let signer = signer();
    let with = PrepareContext { parent, ..PrepareContext::new(Timestamp::now(), &signer) };
    store.prepare_records(draft, &with)
}

pub(super) fn draft(to: &str, body: &str) -> Draft {
    Draft { to: vec![to.to_owned()], body: body.to_owned(), ..Draft::default() }
}

fn envelope(p: &PreparedRecord) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(&p.bytes).unwrap()["envelope"].clone()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_message_goes_to_both_sides_and_verifies_there() {
    let host = Host::new(&["alice", "bob"]);
    let (alice, bob) = (host.open("alice"), host.open("bob"));
    let made = prepare(&alice, &draft("bob", "tests are green\nall of them"), None).unwrap();
    assert_eq!((made.len(), made[0].to.as_str()), (1, "bob@acme.aimaestro.local"));
    alice.append_record(&made[0]).unwrap();
    alice.append_record(&made[0]).unwrap();
    alice.sync_appends().unwrap();
    let name = format!("{}.json", made[0].id);
    let sent = host.agents().join("alice/messages/sent/bob_acme_aimaestro_local").join(&name);
    let inbox = host.agents().join("bob/messages/inbox/alice_acme_aimaestro_local").join(&name);
    assert_eq!((mode(&sent), mode(&inbox)), (0o600, 0o600));
    assert_eq!(mode(inbox.parent().unwrap()), 0o700);
    assert_eq!(std::fs::read_dir(inbox.parent().unwrap()).unwrap().count(), 1);
    let mine = Book::scanned(&alice);
    let kept = mine.one(&made[0].id);
    assert!(kept.from_me && !kept.to_me && kept.valid() == Some(true));
    let theirs = Book::scanned(&bob);
    let kept = theirs.one(&made[0].id);
    assert!(kept.to_me && !kept.from_me && kept.valid() == Some(true) && kept.read == Some(false));
    let message = bob.read_record(&kept.at).unwrap().message;
    assert_eq!(message.subject.as_deref(), Some("tests are green"));
    assert_eq!(message.extra, [("Type", "notification".to_owned())]);
    assert_eq!(message.body, "tests are green\nall of them");
}

#[test]
fn an_append_of_mine_is_scanned_without_being_noted() {
    let host = Host::new(&["alice", "bob"]);
    let alice = host.open("alice");
    let mut books = Book::scanned(&alice);
    let made = prepare(&alice, &draft("alice", "note to self"), None).unwrap();
    alice.append_record(&made[0]).unwrap();
    books.scan(&alice, false);
    let kept = books.one(&made[0].id);
    assert!(kept.from_me && kept.to_me);
}

#[test]
fn an_interrupted_append_is_finished() {
    let host = Host::new(&["alice", "bob"]);
    let (alice, bob) = (host.open("alice"), host.open("bob"));
    let made = prepare(&alice, &draft("bob", "x"), None).unwrap();
    alice.append_record(&made[0]).unwrap();
    let path = host.agents().join("bob/messages/inbox/alice_acme_aimaestro_local");
    std::fs::remove_file(path.join(format!("{}.json", made[0].id))).unwrap();
    alice.append_record(&made[0]).unwrap();
    assert_eq!(ids(&Book::scanned(&bob)), [made[0].id.as_str()]);
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 1);
}

#[test]
fn attachments_are_there_before_the_message_on_both_sides() {
    let host = Host::new(&["alice", "bob"]);
    let (alice, bob) = (host.open("alice"), host.open("bob"));
    let copy = host.dir.path().join("copy");
    std::fs::write(&copy, "report").unwrap();
    let file = DraftAttachment {
        name: "my report.txt".into(),
        path: copy.clone(),
        size: 6,
        sha256: encode_hex(&sha2::Sha256::digest(b"report")),
    };
    let mut with_file = draft("bob", "see attached");
    with_file.attachments = vec![file];
    let made = prepare(&alice, &with_file, None).unwrap();
    alice.append_record(&made[0]).unwrap();
    std::fs::remove_file(&copy).unwrap();
    alice.append_record(&made[0]).unwrap();
    std::fs::remove_dir_all(host.agents().join("alice/attachments")).unwrap();
    let at = Book::scanned(&bob).one(&made[0].id).at;
    let shown = bob.read_record(&at).unwrap().message.attachments;
    assert_eq!((shown[0].name.as_str(), &shown[0].withheld), ("my_report.txt", &None));
    assert!(
        matches!(bob.open_part(&at, "my_report.txt").unwrap(), PartContent::Bytes(b) if &*b == b"report")
    );
    // The file changed between draft and append, so nothing is delivered.
    std::fs::write(&copy, "longer than it was").unwrap();
    with_file.attachments[0].path = copy;
    let made = prepare(&alice, &with_file, None).unwrap();
    assert!(alice.append_record(&made[0]).is_err());
    assert_eq!(Book::scanned(&host.open("bob")).messages.len(), 1);
}

#[test]
fn recipients() {
    let host = Host::new(&["alice", "bob"]);
    host.add("c1", "carol", "carol@acme.aimaestro.local");
    host.add("c2", "carol", "carol@globex.aimaestro.local");
    std::fs::create_dir_all(host.agents().join("dave/messages/inbox")).unwrap();
    let store = host.open("alice");
    let to = |to: &str| prepare(&store, &draft(to, "x"), None).map(|made| made[0].to.clone());
    for ok in ["bob", "bob@local", "bob@default.local", "BOB@acme.AIMAESTRO.local"] {
        assert_eq!(to(ok).unwrap(), address("bob"), "{ok}");
    }
    assert_eq!(to("carol@globex.aimaestro.local").unwrap(), "carol@globex.aimaestro.local");
    for nobody in
        ["dave", "dave@acme.aimaestro.local", "bob@globex.aimaestro.local", "bob@acme.crabmail.ai"]
    {
        let error = to(nobody).unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{nobody}: {error}");
    }
    for bad in ["carol", "bob/../bob@acme.aimaestro.local", "", "a b", "bob@", "bob|x"] {
        let error = to(bad).unwrap_err();
        assert!(matches!(error, StoreError::Invalid(_)), "{bad}: {error}");
    }
    let several = Draft {
        to: vec!["bob".into(), "bob@local".into()],
        cc: vec!["carol@acme.aimaestro.local".into()],
        body: "x".into(),
        ..Draft::default()
    };
    let made = prepare(&store, &several, None).unwrap();
    assert_eq!(made.len(), 2);
    assert_ne!(made[0].id, made[1].id);
}

#[test]
fn a_recipient_who_leaves_before_delivery_is_unreachable_and_nothing_is_sent() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let made = prepare(&store, &draft("bob", "x"), None).unwrap();
    std::fs::remove_file(host.agents().join("bob/config.json")).unwrap();
    assert!(matches!(store.append_record(&made[0]), Err(StoreError::Unreachable(_))));
    assert!(!host.agents().join("alice/messages/sent").exists());
}

#[test]
fn a_mailbox_behind_a_symlink_is_not_written() {
    let host = Host::new(&["alice", "bob"]);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(host.agents().join("bob/messages")).unwrap();
    let store = host.open("alice");
    let made = prepare(&store, &draft("bob", "x"), None).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), host.agents().join("bob/messages/inbox")).unwrap();
    assert!(store.append_record(&made[0]).is_err());
    assert!(matches!(prepare(&store, &draft("bob", "x"), None), Err(StoreError::Io { .. })));
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn replies_inherit() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let parent = Message {
        id: "msg_1700000000_ab".into(),
        subject: Some("RE: re: schema".into()),
        extra: vec![("Type", "task".into()), ("Priority", "urgent".into())],
        ..Message::default()
    };
    let reply = Draft {
        is_reply: true,
        in_reply_to: Some(parent.id.clone()),
        thread: Some("msg_1600000000_cd".into()),
        ..draft("bob", "ok")
    };
    let made = prepare(&store, &reply, Some(&parent)).unwrap().remove(0);
    let e = envelope(&made);
    assert_eq!((&e["subject"], &e["priority"]), (&"Re: schema".into(), &"urgent".into()));
    assert_eq!(
        (&e["in_reply_to"], &e["thread_id"]),
        (&"msg_1700000000_ab".into(), &"msg_1600000000_cd".into())
    );
    assert_eq!(made.thread, "msg_1600000000_cd");
    assert!(made.bytes.contains("\"type\": \"response\""));
    let own = Draft {
        subject: Some("new".into()),
        priority: Some("LOW".into()),
        kind: Some("github:pr".into()),
        ..reply
    };
    let made = prepare(&store, &own, Some(&parent)).unwrap().remove(0);
    assert_eq!(
        (&envelope(&made)["subject"], &envelope(&made)["priority"]),
        (&"new".into(), &"low".into())
    );
    assert!(made.bytes.contains("\"type\": \"github:pr\""));
}

#[test]
fn subjects_are_made_or_refused() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let subject = |d: &Draft| {
        prepare(&store, d, None)
            .map(|made| envelope(&made[0])["subject"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        subject(&draft("bob", &format!("{}\nmore", "\u{e9}".repeat(90)))).unwrap(),
        "\u{e9}".repeat(80)
    );
    assert_eq!(subject(&draft("bob", "")).unwrap(), "(no subject)");
    assert_eq!(subject(&draft("bob", "a\tb")).unwrap(), "a b");
    let given = |s: &str| Draft { subject: Some(s.into()), ..draft("bob", "x") };
    assert_eq!(subject(&given(&"x".repeat(256))).unwrap().len(), 256);
    for bad in ["x".repeat(257), "a\tb".into(), "a\u{7f}".into()] {
        assert!(matches!(subject(&given(&bad)), Err(StoreError::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(subject(&draft("bob", "a\0b")), Err(StoreError::Invalid(_))));
    assert!(
        matches!(subject(&draft("bob", "a\u{7f}b")), Err(StoreError::Invalid(why)) if why.contains("U+007F"))
    );
    assert!(matches!(subject(&draft("bob", &"x".repeat(65_537))), Err(StoreError::TooLarge(_))));
    for (priority, kind) in [(Some("asap"), None), (None, Some("gossip"))] {
        let bad = Draft {
            priority: priority.map(Into::into),
            kind: kind.map(Into::into),
            ..draft("bob", "x")
        };
        assert!(matches!(subject(&bad), Err(StoreError::Invalid(_))));
    }
}

#[test]
fn an_idempotency_key_is_kept_with_what_i_sent() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let keyed = Draft { idempotency_key: Some("idk_1".into()), ..draft("bob", "x") };
    let made = prepare(&store, &keyed, None).unwrap();
    assert_eq!(envelope(&made[0])["idempotency_key"], "idk_1");
}

#[test]
fn a_taken_id_is_not_used() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let (signer, asked) = (signer(), std::cell::Cell::new(0));
    let taken = |_: &str| {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    let with =
        PrepareContext { is_id_taken: &taken, ..PrepareContext::new(Timestamp::now(), &signer) };
    store.prepare_records(&draft("bob", "x"), &with).unwrap();
    assert_eq!(asked.get(), 3);
}

#[test]
fn the_signing_key_is_the_agents_own_and_guarded() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    assert_eq!(store.signing_key().unwrap().unwrap().bytes(), &key_of("alice").to_bytes());
    let path = host.agents().join("alice/keys/private.pem");
    let refused = || match store.signing_key() {
        Err(StoreError::NoKey(why)) => why,
        other => panic!("{other:?}"),
    };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(refused().contains("chmod 600 "));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::copy(host.agents().join("bob/keys/private.pem"), &path).unwrap();
    assert!(refused().contains("not the other half"));
    std::fs::write(&path, "garbage").unwrap();
    assert!(refused().contains("never replaces it"));
    std::fs::write(&path, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n").unwrap();
    assert!(refused().contains("is encrypted") && refused().contains("openssl pkey -in "));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(host.agents().join("bob/keys/private.pem"), &path).unwrap();
    assert!(
        refused().contains("is a symbolic link") && refused().contains("cp --remove-destination")
    );
    std::fs::remove_file(&path).unwrap();
    assert!(refused().contains("there is no signing key"));
    assert!(store.health().iter().any(|l| l.contains("nothing can be sent")));
}

#[test]
fn what_a_message_can_carry() {
    let host = Host::new(&["alice"]);
    let store = host.open("alice");
    let files = |n: usize, size: u64| -> Vec<(String, u64)> {
        (0..n).map(|i| (format!("f{i}.txt"), size)).collect()
    };
    assert!(store.properties().check_attachments(&files(10, 10 << 20)).is_ok());
    for (n, size) in [(11, 1), (1, (25 << 20) + 1), (5, 21 << 20)] {
        assert!(
            matches!(
                store.properties().check_attachments(&files(n, size)),
                Err(StoreError::TooLarge(_))
            ),
            "{n} {size}"
        );
    }
    let error = store
        .properties()
        .check_attachments(&[("big.iso".to_owned(), (25 << 20) + 1)])
        .unwrap_err()
        .to_string();
    assert!(error.contains("big.iso") && error.contains("26214400"), "{error}");
    let same = [("a b".to_owned(), 1), ("a_b".to_owned(), 1)];
    assert!(matches!(store.properties().check_attachments(&same), Err(StoreError::Invalid(_))));
}

#[test]
fn a_mailbox_that_takes_nothing_is_told_before_and_tried_again() {
    let host = Host::new(&["alice", "bob"]);
    let store = host.open("alice");
    let made = prepare(&store, &draft("bob", "x"), None).unwrap();
    let inbox = host.agents().join("bob/messages/inbox");
    for path in [inbox.join("alice_acme_aimaestro_local"), inbox.clone()] {
        let _ = std::fs::remove_dir_all(&inbox);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "in the way").unwrap();
        let error = prepare(&store, &draft("bob", "x"), None).unwrap_err();
        assert!(
            matches!(&error, StoreError::Io { path: at, .. } if at.ends_with(&path)),
            "{error}"
        );
        assert!(matches!(store.append_record(&made[0]), Err(StoreError::Io { .. })));
        std::fs::remove_file(&path).unwrap();
    }
    store.append_record(&made[0]).unwrap();
    assert_eq!(ids(&Book::scanned(&host.open("bob"))), [made[0].id.as_str()]);
    let sent = host.agents().join("alice/messages/sent");
    assert!(store.check_appendable(1).is_ok());
    std::fs::remove_dir_all(&sent).unwrap();
    std::fs::write(&sent, "").unwrap();
    assert!(matches!(store.check_appendable(1), Err(StoreError::Io { .. })));
}

#[test]
fn a_recipient_whose_config_breaks_is_tried_again_soon() {
    let host = Host::new(&["alice", "bob"]);
    let made = prepare(&host.open("alice"), &draft("bob", "x"), None).unwrap();
    let config = host.agents().join("bob/config.json");
    let whole = std::fs::read(&config).unwrap();
    std::fs::write(&config, "{").unwrap();
    // After a restart only his folder is known.
    let store = host.open("alice");
    assert!(matches!(store.append_record(&made[0]), Err(StoreError::Busy(_))));
    std::fs::write(&config, whole).unwrap();
    store.append_record(&made[0]).unwrap();
    assert_eq!(ids(&Book::scanned(&host.open("bob"))), [made[0].id.as_str()]);
}
