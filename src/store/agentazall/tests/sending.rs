//! Messages that leave, and their delivery to mailboxes of this machine.

use super::*;
use crate::model::{DraftAttachment, SignatureScope, verify};
use crate::store::{Durability, MessageReader};
use std::os::unix::fs::MetadataExt;

fn with<'a>(signer: &'a Key, taken: &'a dyn Fn(&str) -> bool) -> PrepareContext<'a> {
    PrepareContext { is_id_taken: taken, ..PrepareContext::new(Timestamp::now(), signer) }
}

/// Returns a store with the key 7.
fn sender(bed: &Bed) -> AgentAzall {
    let store = bed.scanned();
    assert_eq!(store.adopt_key(&seed(7)).unwrap(), seed(7));
    store
}

fn prepared(store: &AgentAzall, draft: &Draft) -> PreparedRecord {
    let mut made = store.prepare_records(draft, &with(&Key::new(7), &|_| false)).unwrap();
    assert_eq!(made.len(), 1);
    made.remove(0)
}

/// Returns the paths of all files below a folder, sorted.
fn tree(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, root: &Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, root, out);
            } else {
                let inside = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                // The day is the current one, so it is left out.
                out.push(
                    inside.split_once('/').map_or(inside.clone(), |(_, rest)| rest.to_owned()),
                );
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, dir, &mut out);
    out.sort();
    out.retain(|path| path != ".identity_key");
    out
}

#[test]
fn the_key_is_taken_made_once_and_never_replaced() {
    let bed = Bed::new();
    let store = bed.store();
    assert_eq!(store.signing_key().unwrap(), None);
    assert_eq!(store.adopt_key(&seed(7)).unwrap(), seed(7));
    let file = bed.base().join(".identity_key");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(store.adopt_key(&seed(8)).unwrap(), seed(7), "the store's own wins");
    assert_eq!(store.signing_key().unwrap(), Some(seed(7)));
    std::fs::write(&file, "damaged").unwrap();
    assert!(matches!(store.signing_key(), Err(StoreError::NoKey(_))));
    assert!(matches!(store.adopt_key(&seed(8)), Err(StoreError::NoKey(_))));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "damaged");
    // Without a mailbox the key waits for the first message.
    let bed = Bed::without_mailbox();
    let store = bed.store();
    assert_eq!(store.adopt_key(&seed(7)).unwrap(), seed(7));
    assert!(!bed.base().exists());
    store.append_record(&prepared(&store, &draft(&["carol@far"], "hi"))).unwrap();
    assert_eq!(key::read_key(&bed.base()).unwrap(), Some(seed(7)));
}

#[test]
fn a_local_recipient_has_it_at_once_and_it_moves_to_sent() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    let store = sender(&bed);
    let file = bed.root().join("plan");
    std::fs::write(&file, "the plan").unwrap();
    let hash: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest("the plan").into();
    let attached = vec![DraftAttachment {
        name: "plan.pdf".into(),
        path: file,
        size: 8,
        sha256: crate::model::encode_hex(&hash),
    }];
    let message =
        prepared(&store, &Draft { attachments: attached, ..draft(&["bob@x"], "hi bob\n") });
    store.append_record(&message).unwrap();
    store.sync_appends().unwrap();
    let id = &message.id;
    let there = [format!("inbox/{id}.txt"), format!("inbox/{id}/plan.pdf")];
    assert_eq!(tree(&bed.mailbox("bob@x")), there);
    assert_eq!(tree(&bed.base()), [format!("sent/{id}.txt"), format!("sent/{id}/plan.pdf")]);
    assert!(store.remarks().is_empty());
    let mut seen = Book::default();
    store.scan(false, &mut seen).unwrap();
    let found = seen.one(id).clone();
    assert!(found.from_me && found.has_parts && found.to == "bob@x");
    assert_eq!(found.thread, message.thread);
    let claim = found.claim.as_deref().unwrap();
    assert!(verify::verify_claim(&Key::new(7).public_key(), claim));
    assert!(matches!(claim, SignatureClaim::Signed { scope: SignatureScope::Whole, .. }));
    let read = MessageReader::read_record(&store, &found.at).unwrap().message;
    assert_eq!((read.body.as_str(), read.attachments[0].withheld.clone()), ("hi bob", None));
    // A second append, as after a crash, writes nothing more.
    let before = (tree(&bed.base()), tree(&bed.mailbox("bob@x")));
    store.append_record(&message).unwrap();
    assert!(!store.deliver_waiting().unwrap());
    assert_eq!((tree(&bed.base()), tree(&bed.mailbox("bob@x"))), before);
    // Another file in its place is not shown.
    let part =
        store.mailbox_dir().join(store.source_path(found.at.source).unwrap()).with_extension("");
    std::fs::write(part.join("plan.pdf"), "evil plan").unwrap();
    std::fs::write(part.join("more.pdf"), "evil").unwrap();
    let read = MessageReader::read_record(&store, &found.at).unwrap().message;
    let why: Vec<_> = read.attachments.iter().map(|a| a.withheld.as_deref().unwrap()).collect();
    assert_eq!(why, ["does not match its signed hash", "is not among the signed attachments"]);
    assert!(store.open_part(&found.at, "plan.pdf").is_err());
}

#[test]
fn an_attachment_that_is_too_large_to_be_checked_is_withheld() {
    let bed = Bed::new();
    let store = sender(&bed);
    let file = bed.root().join("plan");
    std::fs::write(&file, "the plan").unwrap();
    let hash: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest("the plan").into();
    let plan = |size: u64| {
        let (name, sha256) = ("plan.pdf".into(), crate::model::encode_hex(&hash));
        let attachments = vec![DraftAttachment { name, path: file.clone(), size, sha256 }];
        Draft { attachments, ..draft(&["carol@far"], "hi") }
    };
    let message = prepared(&store, &plan(8));
    store.append_record(&message).unwrap();
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    let at = seen.one(&message.id).at;
    let path = store.mailbox_dir().join(store.source_path(at.source).unwrap());
    let part = path.with_extension("").join("plan.pdf");
    let part = std::fs::File::options().write(true).open(part).unwrap();
    part.set_len(attachments::MAX_ATTACHMENT + 1).unwrap();
    let read = MessageReader::read_record(&store, &at).unwrap().message;
    assert_eq!(read.attachments[0].withheld.as_deref(), Some("is too large to be checked"));
    assert!(store.open_part(&at, "plan.pdf").is_err());
    // No reader would show it, so it is not sent.
    let large = plan(attachments::MAX_ATTACHMENT + 1);
    let refused = store.prepare_records(&large, &with(&Key::new(7), &|_| false));
    assert!(matches!(refused, Err(StoreError::TooLarge(_))), "{refused:?}");
}

#[test]
fn the_copy_of_an_only_recipient_is_on_disk_before_the_letter_moves_to_sent() {
    for (durability, is_synced) in [(Durability::Fsync, true), (Durability::None, false)] {
        let bed = Bed::new();
        std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
        let spec = StoreSpec { durability, ..bed.spec() };
        let store = AgentAzall::open_in_zone(&spec, TimeZone::UTC).unwrap();
        store.scan(true, &mut Book::default()).unwrap();
        store.adopt_key(&seed(7)).unwrap();
        let message = prepared(&store, &draft(&["bob@x"], "text"));
        store.append_record(&message).unwrap();
        assert_eq!(tree(&bed.base()), [format!("sent/{}.txt", message.id)]);
        let day = date::format_local_day(Timestamp::now(), store.zone());
        let inbox = bed.mailbox("bob@x").join(&day).join("inbox");
        let waits = |folder: &Path| store.format.unsynced_dirs.lock().contains(folder);
        assert_eq!(waits(&inbox), !is_synced);
        assert!(waits(&bed.base().join(&day).join("sent")), "that is synced once, later");
        store.sync_appends().unwrap();
        assert!(!waits(&inbox));
    }
}

#[test]
fn who_is_not_here_keeps_it_in_the_outbox_and_others_get_it_once() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    let store = sender(&bed);
    let message = prepared(&store, &draft(&["bob@x", "carol@far", "me@x"], "to three"));
    let id = message.id.clone();
    store.append_record(&message).unwrap();
    store.scan(true, &mut Book::default()).unwrap();
    assert_eq!(tree(&bed.mailbox("bob@x")), [format!("inbox/{id}.txt")]);
    assert_eq!(tree(&bed.base()), [format!("inbox/{id}.txt"), format!("outbox/{id}.txt")]);
    assert!(!bed.mailbox("carol@far").exists(), "no mailbox is made for others");
    let remarks = store.remarks();
    assert_eq!(remarks.len(), 1);
    assert!(remarks[0].starts_with(&format!("waiting in outbox: {id} to carol@far (no mailbox")));
    assert!(remarks[0].contains("delivered to bob@x, me@x"), "{remarks:?}");
    // Bob reads it and deletes it: he does not get it again, also after a remount.
    std::fs::remove_dir_all(bed.mailbox("bob@x")).unwrap();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    // This holds although nothing was saved when the process was killed.
    let again = bed.scanned();
    assert!(!again.deliver_waiting().unwrap());
    assert!(tree(&bed.mailbox("bob@x")).is_empty());
    assert!(again.remarks()[0].contains("delivered to bob@x, me@x"));
    // A mailbox that is away for a while does not remove the notes of deliveries.
    let away = bed.root().join("away");
    std::fs::rename(bed.base(), &away).unwrap();
    again.scan(true, &mut Book::default()).unwrap();
    assert!(!again.deliver_waiting().unwrap());
    std::fs::rename(&away, bed.base()).unwrap();
    again.scan(true, &mut Book::default()).unwrap();
    assert!(!again.deliver_waiting().unwrap());
    assert!(again.is_relevant(bed.base().parent().unwrap(), OsStr::new("carol@far")));
    // A mailbox that is a link does not exist.
    std::os::unix::fs::symlink("bob@x", bed.mailbox("carol@far")).unwrap();
    assert!(!again.deliver_waiting().unwrap());
    std::fs::remove_file(bed.mailbox("carol@far")).unwrap();
    std::fs::create_dir(bed.mailbox("carol@far")).unwrap();
    assert!(again.deliver_waiting().unwrap());
    assert_eq!(tree(&bed.mailbox("carol@far")), [format!("inbox/{id}.txt")]);
    assert!(tree(&bed.mailbox("bob@x")).is_empty());
    assert_eq!(tree(&bed.base()), [format!("inbox/{id}.txt"), format!("sent/{id}.txt")]);
    assert!(again.remarks().is_empty());
    let kept = std::fs::read_to_string(bed.root().join("state/delivered.json")).unwrap();
    assert_eq!(kept, "{}");
}

#[test]
fn a_name_that_is_taken_is_never_overwritten() {
    let bed = Bed::new();
    let store = sender(&bed);
    let message = prepared(&store, &draft(&["bob@x"], "text"));
    store.append_record(&message).unwrap();
    store.scan(true, &mut Book::default()).unwrap();
    let day = date::format_local_day(Timestamp::now(), store.zone());
    let inbox = bed.mailbox("bob@x").join(day).join("inbox");
    std::fs::create_dir_all(&inbox).unwrap();
    let target = inbox.join(format!("{}.txt", message.id));
    std::fs::write(&target, "something else").unwrap();
    assert!(!store.deliver_waiting().unwrap());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "something else");
    assert!(store.remarks()[0].contains("another file has its name"));
    // These bytes, read or not, count as delivered.
    std::fs::write(&target, message.bytes.replace("Status: new", "Status: read")).unwrap();
    assert!(store.deliver_waiting().unwrap());
    assert!(std::fs::read_to_string(&target).unwrap().contains("Status: read"));
    assert_eq!(tree(&bed.base()), [format!("sent/{}.txt", message.id)]);
}

#[test]
fn another_file_in_sent_is_left_alone() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    let store = sender(&bed);
    let message = prepared(&store, &draft(&["bob@x"], "text"));
    let day = date::format_local_day(Timestamp::now(), store.zone());
    let path = |folder: &str| format!("{day}/{folder}/{}.txt", message.id);
    bed.put(&path("outbox"), &message.bytes);
    bed.put(&path("sent"), "something else");
    store.scan(true, &mut Book::default()).unwrap();
    assert!(store.deliver_waiting().unwrap(), "Bob gets it");
    assert!(!store.deliver_waiting().unwrap(), "and then there is nothing to do");
    assert_eq!(bed.get(&path("sent")), "something else");
    assert_eq!(bed.get(&path("outbox")), message.bytes);
    assert!(store.remarks()[0].contains("sent/ has another file of its name"));
}

#[test]
fn what_cannot_be_delivered_says_why_and_is_tried_again() {
    let bed = Bed::new();
    let day = date::format_local_day(Timestamp::now(), bed.store().zone());
    for name in ["bob@x", "carol@x"] {
        std::fs::create_dir_all(bed.mailbox(name).join(&day)).unwrap();
    }
    let elsewhere = bed.root().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let inbox = bed.mailbox("bob@x").join(&day).join("inbox");
    std::os::unix::fs::symlink(&elsewhere, &inbox).unwrap();
    let store = sender(&bed);
    let message = prepared(&store, &draft(&["bob@x", "carol@x"], "text"));
    store.append_record(&message).unwrap();
    store.scan(false, &mut Book::default()).unwrap();
    let why = format!("{}: is a symbolic link, not a folder", inbox.display());
    let e = store.deliver_waiting().unwrap_err().to_string();
    assert_eq!(e, why);
    let remarks = store.remarks();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    let line = format!("{} to bob@x ({why}; delivered to carol@x)", message.id);
    assert!(remarks[0].ends_with(&line), "{remarks:?}");
    assert!(store.deliver_waiting().is_err(), "as often as it is tried");
    assert!(tree(&elsewhere).is_empty());
    std::fs::remove_file(&inbox).unwrap();
    std::fs::create_dir(bed.base().join(&day).join("sent/").join(&message.id)).unwrap();
    assert!(store.deliver_waiting().unwrap());
    assert_eq!(tree(&bed.mailbox("bob@x")), [format!("inbox/{}.txt", message.id)]);
    assert!(store.remarks().is_empty());
    // The same holds for a message that cannot be moved to sent/.
    let message = prepared(&store, &draft(&["bob@x"], "text"));
    let sent = bed.base().join(&day).join("sent");
    std::fs::rename(&sent, bed.root().join("sent")).unwrap();
    std::fs::write(&sent, "").unwrap();
    store.append_record(&message).unwrap_err();
    bed.put(&format!("{day}/outbox/{}.txt", message.id), &message.bytes);
    store.scan(true, &mut Book::default()).unwrap();
    assert!(store.deliver_waiting().is_err());
    assert!(store.remarks()[0].ends_with("sent: is a file, not a folder"), "{:?}", store.remarks());
}

#[test]
fn a_mailbox_that_is_a_link_is_explained() {
    let bed = Bed::without_mailbox();
    let real = bed.root().join("real");
    std::fs::create_dir(&real).unwrap();
    std::fs::create_dir_all(bed.base().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&real, bed.base()).unwrap();
    let store = bed.scanned();
    let status = store.health();
    assert!(status.iter().any(|line| line.contains("is a symbolic link, not a folder")));
    let made = store.prepare_records(&draft(&["bob@x"], "x"), &with(&Key::new(7), &|_| false));
    for e in [made.unwrap_err(), store.check_appendable(1).unwrap_err()] {
        let said = matches!(e, StoreError::Unreachable(_)) && status.contains(&e.to_string());
        assert!(said, "{e}");
    }
    assert!(store.facets().notebook.unwrap().write_entry("notes", "a.txt", b"x").is_err());
    assert!(tree(&real).is_empty());
    std::fs::remove_dir(&real).unwrap();
    assert!(store.check_appendable(1).is_err(), "also one that leads nowhere");
}

#[test]
fn what_others_wrote_is_left_to_them() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("me@y")).unwrap();
    bed.letter("2026-03-11/outbox/f1.txt", "me@x", "f1", "2026-03-11 10:00:00", "not signed");
    let store = sender(&bed);
    let key = Key::new(9);
    let made =
        store.prepare_records(&draft(&["me@y"], "other key"), &with(&key, &|_| false)).unwrap();
    bed.put(&format!("2026-03-11/outbox/{}.txt", made[0].id), &made[0].bytes);
    store.scan(true, &mut Book::default()).unwrap();
    assert!(!store.deliver_waiting().unwrap());
    assert!(tree(&bed.mailbox("me@y")).is_empty());
    let remarks = store.remarks();
    assert_eq!(remarks.len(), 2);
    assert!(remarks.iter().all(|line| line.contains("the program that wrote it must deliver it")));
}

#[test]
fn recipients_that_cannot_be_or_do_not_want_it() {
    let bed = Bed::new();
    let store = sender(&bed);
    let refused =
        |to: &str| store.prepare_records(&draft(&[to], "x"), &with(&Key::new(7), &|_| false));
    for bad in ["../x", "a/b", ".hidden", "a\nb", "a\0b"] {
        assert!(matches!(refused(bad), Err(StoreError::Invalid(_))), "{bad:?}");
        assert_eq!(store.address_fit(bad), AddressFit::No, "{bad:?}");
    }
    assert!(refused("bob@x").is_ok());
    let block = |name: &str, mailboxes: &str| {
        format!(
            r#"{{"agent_name": "{name}", "mailbox_dir": "{mailboxes}",
                "address_filter": {{"mode": "blacklist", "blacklist": ["me@*"]}}}}"#
        )
    };
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    std::fs::write(bed.mailbox("bob@x").join("config.json"), block("bob@x", "..")).unwrap();
    let e = refused("bob@x").unwrap_err();
    assert!(
        matches!(e, StoreError::Refused(_)) && e.to_string().contains("bob@x does not accept"),
        "{e}"
    );
    // Another agent's configuration says nothing about Bob.
    std::fs::write(bed.mailbox("bob@x").join("config.json"), block("carol@x", "..")).unwrap();
    assert!(refused("bob@x").is_ok());
    // A recipient who begins to refuse while mail waits does not get it.
    let message = prepared(&store, &draft(&["dave@x"], "x"));
    store.append_record(&message).unwrap();
    store.scan(true, &mut Book::default()).unwrap();
    std::fs::create_dir_all(bed.mailbox("dave@x")).unwrap();
    std::fs::write(bed.mailbox("dave@x").join("config.json"), block("dave@x", "..")).unwrap();
    assert!(!store.deliver_waiting().unwrap());
    assert!(store.remarks()[0].contains("does not accept mail"));
}

#[test]
fn which_names_are_whose() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob")).unwrap();
    let store = bed.store();
    for (name, fit) in [
        ("a@localhost", AddressFit::Exact),
        ("name.0123456789abcdef.agenttalk", AddressFit::Exact),
        ("bob", AddressFit::Exact),
        ("a@b.c", AddressFit::Plain),
        ("alice", AddressFit::No),
        ("", AddressFit::No),
    ] {
        assert_eq!(store.address_fit(name), fit, "{name}");
    }
    assert!(store.is_registered("bob") && !store.is_registered("alice"));
    assert_eq!(store.canonical_address("Bob <bob@x>"), "bob@x");
}

#[test]
fn attachments_have_names_that_can_be() {
    let bed = Bed::new();
    let store = bed.store();
    let carries = |names: &[&str]| {
        store
            .properties()
            .check_attachments(&names.iter().map(|n| ((*n).to_owned(), 1)).collect::<Vec<_>>())
    };
    carries(&["a", "b.txt"]).unwrap();
    for bad in [&["a/b"][..], &[".."], &[""], &["a", "a"], &["a\nb"], &[" a"]] {
        assert!(matches!(carries(bad), Err(StoreError::Invalid(_))), "{bad:?}");
    }
}

#[test]
fn an_answer_names_its_parent() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 10:00:00", "question");
    let store = sender(&bed);
    let mut seen = Book::default();
    store.scan(true, &mut seen).unwrap();
    store.reset_cursors();
    store.scan(true, &mut seen).unwrap();
    let parent = MessageReader::read_record(&store, &seen.one("a1").at).unwrap().message;
    let key = Key::new(7);
    let with = PrepareContext { parent: Some(&parent), ..with(&key, &|_| false) };
    let answer = Draft {
        subject: None,
        in_reply_to: Some("a1".into()),
        is_reply: true,
        ..draft(&["bob@x"], "answer")
    };
    let made = store.prepare_records(&answer, &with).unwrap().remove(0);
    store.append_record(&made).unwrap();
    store.scan(false, &mut seen).unwrap();
    let found = seen.one(&made.id);
    assert_eq!(found.in_reply_to.as_deref(), Some("a1"));
    assert_eq!(found.thread, parent.thread.clone().unwrap());
    let read = MessageReader::read_record(&store, &found.at).unwrap().message;
    assert_eq!(
        (read.subject.as_deref(), read.in_reply_to.as_deref()),
        (Some("Re: hello"), Some("a1"))
    );
}

#[test]
fn a_crash_at_any_step_is_mended_without_loss_or_double() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.mailbox("bob@x")).unwrap();
    let store = sender(&bed);
    let file = bed.root().join("f");
    std::fs::write(&file, "data").unwrap();
    let hash: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest("data").into();
    let sha256 = crate::model::encode_hex(&hash);
    let attached = vec![DraftAttachment { name: "f".into(), path: file.clone(), size: 4, sha256 }];
    let message = prepared(&store, &Draft { attachments: attached, ..draft(&["bob@x"], "text") });
    let day = date::format_local_day(Timestamp::now(), store.zone());
    let (id, out) = (message.id.clone(), bed.base().join(&day).join("outbox"));
    let inbox = bed.mailbox("bob@x").join(&day).join("inbox");
    let parts = |dir: &Path| {
        std::fs::create_dir_all(dir.join(&id)).unwrap();
        std::fs::write(dir.join(&id).join("f"), "data").unwrap();
    };
    let text = |dir: &Path| std::fs::write(dir.join(format!("{id}.txt")), &message.bytes).unwrap();
    let steps: [&dyn Fn(); 6] =
        [&|| {}, &|| parts(&out), &|| text(&out), &|| parts(&inbox), &|| text(&inbox), &|| {
            std::fs::create_dir_all(bed.base().join(&day).join("sent")).unwrap();
            std::fs::rename(out.join(&id), bed.base().join(&day).join("sent").join(&id)).unwrap();
        }];
    for done in 1..=steps.len() {
        for mailbox in [bed.base(), bed.mailbox("bob@x")] {
            let _ = std::fs::remove_dir_all(mailbox.join(&day));
        }
        steps.iter().take(done).for_each(|step| step());
        let store = bed.scanned();
        store.append_record(&message).unwrap();
        store.scan(true, &mut Book::default()).unwrap();
        store.deliver_waiting().unwrap();
        assert_eq!(tree(&bed.base()), [format!("sent/{id}.txt"), format!("sent/{id}/f")], "{done}");
        assert_eq!(
            tree(&bed.mailbox("bob@x")),
            [format!("inbox/{id}.txt"), format!("inbox/{id}/f")],
            "{done}"
        );
    }
}

#[test]
fn two_processes_deliver_one_tree_once() {
    let bed = Bed::new();
    for name in ["bob@x", "carol@x"] {
        std::fs::create_dir_all(bed.mailbox(name)).unwrap();
    }
    let store = sender(&bed);
    let messages: Vec<PreparedRecord> = (0..20)
        .map(|n| prepared(&store, &draft(&["bob@x", "carol@x"], &format!("text {n}"))))
        .collect();
    let day = date::format_local_day(Timestamp::now(), store.zone());
    for m in &messages {
        bed.put(&format!("{day}/outbox/{}.txt", m.id), &m.bytes);
    }
    // Each store has a state of its own, as two agents' mounts have.
    let other = |n: u32| {
        let spec = StoreSpec { state: Some(bed.root().join(format!("state{n}"))), ..bed.spec() };
        let store = AgentAzall::open_in_zone(&spec, TimeZone::fixed(jiff::tz::offset(1))).unwrap();
        store.scan(true, &mut Book::default()).unwrap();
        store
    };
    let others: Vec<AgentAzall> = (0..4).map(other).collect();
    std::thread::scope(|scope| {
        for store in &others {
            scope.spawn(|| store.deliver_waiting().unwrap());
        }
    });
    for name in ["bob@x", "carol@x"] {
        assert_eq!(tree(&bed.mailbox(name)).len(), 20);
    }
    assert_eq!(tree(&bed.base()).iter().filter(|p| p.starts_with("sent/")).count(), 20);
}
