//! `.ack` beside a message to me, `.warning` beside one of mine.

use super::*;
use crate::store::StoreError;
use crate::view::sidecars::MessageFile;

fn asking(id: &str, secs: i64) -> Letter {
    Letter { wants_ack: true, read: Some(false), ..letter(id, secs, &[]) }
}

fn acks(b: &Bed) -> Vec<u32> {
    std::mem::take(&mut b.stores[0].folder.lock().acks)
}

#[test]
fn writing_beside_a_message_that_asks_acknowledges_it() {
    for place in ["inbox".to_owned(), format!("archive/{DAY}"), "threads/00000001aaaa".into()] {
        let b = bed(vec![store(vec![asking("00000001aaaa", T0)])]);
        let name = format!("{STEM}.ack");
        assert_eq!(b.names(&place), [format!("{STEM}.txt")], "it is not listed");
        let attr = b.attr(&format!("{place}/{name}"));
        assert_eq!((attr.mode, attr.size, attr.is_dir), (0o200, 0, false));
        assert_eq!(
            b.tree.node_by_inode(attr.ino),
            Some(b.tree.resolve_path(&format!("{place}/{name}")).unwrap())
        );
        b.write(&place, &name, "ok", false).unwrap();
        assert_eq!(acks(&b), [0], "{place}");
        assert_eq!((b.names("inbox").len(), b.tree.index().read().marks.unread_count()), (0, 0));
        // A process that knows the name may acknowledge again.
        b.write(&place, &name, "ok", true).unwrap_or_else(|e| panic!("{place}: {e}"));
        b.write(&format!("archive/{DAY}"), &name, "ok", true).unwrap();
        // The next process does not know that there was anything to acknowledge.
        let again = tree(&b.dir, &b.stores, false);
        assert!(again.resolve_path(&format!("archive/{DAY}/{name}")).is_err());
    }
}

#[test]
fn only_bytes_acknowledge_and_once_is_enough() {
    let b = bed(vec![store(vec![asking("00000001aaaa", T0)])]);
    let file = b.open("inbox", &format!("{STEM}.ack"), false);
    b.tree.writer().write_file(&file, 0, b"").unwrap();
    b.tree.flush(&file, 7).unwrap();
    assert!(acks(&b).is_empty());
    let node = b.tree.resolve_path(&format!("inbox/{STEM}.ack")).unwrap();
    b.tree.writer().set_len(&node, Some(&file), 0).unwrap();
    b.tree.writer().set_len(&node, None, 0).unwrap();
    assert!(node.has(NodeProperty::Editable) && b.tree.read(&file, 0, 9, 0).is_err());
    assert!(b.tree.open(&node, &OpenRequest::default()).is_err(), "it cannot be read");
    b.tree.writer().write_file(&file, 0, b"ok").unwrap();
    b.tree.writer().write_file(&file, 2, b"\n").unwrap();
    b.tree.flush(&file, 7).unwrap();
    b.tree.release(&file);
    assert_eq!(acks(&b), [0]);
    // It works the same without a mount.
    b.stores[0].folder.lock().change(0, |l| (l.wants_ack, l.read) = (true, Some(false)));
    write_path(&b.tree, &format!("archive/{DAY}/{STEM}.ack"), b"seen").unwrap();
    assert_eq!(acks(&b), [0]);
}

#[test]
fn the_writer_hears_why_it_cannot_be_acknowledged() {
    let b = bed(vec![store(vec![asking("00000001aaaa", T0)])]);
    let fails = |list: Vec<StoreError>| b.stores[0].folder.lock().ack_fails = list;
    let write = || b.write("inbox", &format!("{STEM}.ack"), "ok", false);
    fails(vec![StoreError::Refused("task_locked: it is locked".into())]);
    let e = write().unwrap_err();
    assert_eq!((e.errno(), e.to_string().as_str()), (libc::EBADMSG, "task_locked: it is locked"));
    assert_eq!(b.tree.index().read().marks.unread_count(), 1);
    // A message that only moved is looked for, once.
    fails(vec![StoreError::Moved, StoreError::Moved]);
    assert_eq!(write().unwrap_err().errno(), libc::ENOENT);
    fails(vec![StoreError::Moved]);
    let before = b.stores[0].folder.lock().deliveries;
    write().unwrap();
    assert_eq!(b.tree.index().read().marks.unread_count(), 0);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while b.stores[0].folder.lock().deliveries == before {
        assert!(std::time::Instant::now() < deadline, "what is derived is brought up to date");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_answer_that_was_removed_can_be_made() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[])])]);
    let access = OpenRequest { write: true, opener: 7, ..OpenRequest::default() };
    for place in ["inbox", &format!("archive/{DAY}"), "threads/00000001aaaa"] {
        let folder = b.tree.resolve_path(place).unwrap();
        for stem in [STEM, "00000001"] {
            for ending in ["reply", "reply-all"] {
                let name = format!("{stem}.{ending}");
                b.unlink(place, &name).unwrap_or_else(|e| panic!("{place}/{name}: {e}"));
                let (made, file) = b.tree.writer().create(&folder, &name, &access).unwrap();
                assert_eq!(made, b.tree.lookup(&folder, &name).unwrap(), "{place}/{name}");
                b.tree.release(&file);
            }
        }
        assert!(b.unlink(place, "00000002.reply").is_err());
    }
    assert_eq!(b.names("inbox"), [format!("{STEM}.txt")], "the message stays unread");
}

#[test]
fn what_asks_for_nothing_has_no_acknowledgement() {
    let mut mine = asking("00000002aaaa", T0 + 1);
    mine.from_me = true;
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[]), mine])]);
    let sent = b.names(&format!("sent/{DAY}")).pop().unwrap().replace(".txt", ".ack");
    let day = format!("archive/{DAY}");
    for (folder, name) in [
        ("inbox", format!("{STEM}.ack")),
        (day.as_str(), format!("{STEM}.ack")),
        ("threads/00000001aaaa", format!("{STEM}.ack")),
        ("threads/00000002aaaa", sent.clone()),
        (&format!("sent/{DAY}"), sent),
        ("inbox", "nothing.ack".into()),
    ] {
        assert_eq!(b.errno(&format!("{folder}/{name}")), libc::ENOENT);
        let e = b.try_open(folder, &name, false).unwrap_err();
        assert_eq!(e.errno(), libc::ENOENT, "{folder}/{name}");
        assert!(e.to_string().contains("asks you for an acknowledgement"), "{e}");
    }
    let e = b.try_open("inbox", "nothing.reply", false).unwrap_err();
    assert!(e.errno() == libc::ENOENT && e.to_string().contains("to answer"), "{e}");
    assert!(acks(&b).is_empty());
    let b = bed_with(vec![store(vec![asking("00000001aaaa", T0)])], true);
    assert_eq!(
        b.try_open("inbox", &format!("{STEM}.ack"), false).unwrap_err().errno(),
        libc::EROFS
    );
}

#[test]
fn what_i_should_know_of_my_message_lies_beside_it_in_sent() {
    let note = "summary: is longer than 200 characters\nforged: \u{1b}[2J\n";
    let noted = |id: &str, from_me, note: Option<&str>| Letter {
        from_me,
        note: note.map(str::to_owned),
        ..letter(id, T0, &[("f", "x")])
    };
    let b = bed(vec![store(vec![
        noted("00000001aaaa", true, Some(note)),
        noted("00000002aaaa", true, None),
        noted("00000003aaaa", false, Some(note)),
    ])]);
    let (one, two) = (STEM.to_owned(), STEM.replace("0001", "0002"));
    let sent = format!("sent/{DAY}");
    assert_eq!(
        b.names(&sent),
        [
            format!("{one}.d"),
            format!("{one}.txt"),
            format!("{one}.warning"),
            format!("{two}.d"),
            format!("{two}.txt")
        ]
    );
    let path = format!("{sent}/{one}.warning");
    let text = b.cat(&path);
    assert_eq!(text, "summary: is longer than 200 characters\nforged: \u{241b}[2J\n");
    let attr = b.attr(&path);
    assert_eq!((attr.mode, attr.size), (0o400, text.len() as u64));
    assert_eq!(attr.time, Timestamp::from_secs(T0));
    assert_eq!(b.tree.node_by_inode(attr.ino), Some(b.tree.resolve_path(&path).unwrap()));
    assert_eq!(
        b.try_open(&sent, &format!("{one}.warning"), true).unwrap_err().errno(),
        libc::EPERM
    );
    for place in [format!("{sent}/{two}"), format!("threads/00000001aaaa/{one}")] {
        assert_eq!(b.errno(&format!("{place}.warning")), libc::ENOENT);
    }
    let listed = b.names(&format!("archive/{DAY}"));
    assert_eq!(listed.len(), 2, "none beside a message to me: {listed:?}");
    // Removing the message invalidates the warning for programs that looked at it.
    let ix = b.tree.index().read().messages.find_message(0, "bob@x", "00000001aaaa").unwrap();
    let stale = b.tree.stale_inodes(&IndexChanges { removed: vec![ix], ..IndexChanges::default() });
    let warning = messages::file_node(MessageFolder::Sent, ix, MessageFile::Warning);
    assert!(stale.contains(&b.tree.inode_number(&warning)));
}
