//! Messages, their attachments, and the tree's notes about them.

use super::*;
use crate::view::folder_scope::FolderScope;
use crate::view::me::MeKey;
use crate::view::messages::{MessagesKey, file_node, message_of};
use crate::view::sidecars::MessageFile;
use crate::view::table::ViewKey;

#[test]
fn files_lie_beside_their_message_wherever_it_is() {
    let mut with = letter("00000001aaaa", T0, &[("plan.pdf", "12345"), ("no.txt", "x")]);
    with.message.attachments[1].withheld = Some("withheld: digest does not match".into());
    let bare = letter("00000002aaaa", T0 + 1, &[]);
    let mut sent = letter("00000003aaaa", T0 + 2, &[("mine", "abc")]);
    sent.from_me = true;
    let b = bed(vec![store(vec![with, bare, sent])]);
    let folder = format!("{STEM}.d");
    let places = ["inbox".to_owned(), format!("archive/{DAY}"), "threads/00000001aaaa".to_owned()];
    for place in &places {
        assert_eq!(b.names(place)[..2], [folder.clone(), format!("{STEM}.txt")]);
        assert_eq!(b.names(&format!("{place}/{folder}")), ["plan.pdf"]);
        let dir = b.attr(&format!("{place}/{folder}"));
        assert!(dir.is_dir && dir.mode == 0o700 && dir.time == Timestamp::from_secs(T0));
        let path = format!("{place}/{folder}/plan.pdf");
        let part = b.attr(&path);
        assert_eq!((part.mode, part.size, part.time), (0o400, 5, Timestamp::from_secs(T0)));
        assert_eq!(b.cat(&path), "12345");
        assert_eq!(b.errno(&format!("{place}/{folder}/no.txt")), libc::ENOENT);
    }
    assert_eq!(b.names(&format!("sent/{DAY}")).len(), 2);
    assert_eq!(b.errno(&format!("inbox/{}.d", STEM.replace("0001", "0002"))), libc::ENOENT);
    let text = b.cat(&format!("archive/{DAY}/{STEM}.txt"));
    let line = "Attachments: plan.pdf (5), no.txt (withheld: digest does not match)\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn files_of_a_message_are_read_only_and_reading_them_marks_nothing() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[("a", "12"), ("b", "3")])])]);
    let dir = format!("inbox/{STEM}.d");
    b.cat(&format!("{dir}/a"));
    assert_eq!(b.tree.index().read().marks.unread_count(), 1);
    let eperm = |done: Result<(), Error>| {
        let e = done.unwrap_err();
        assert_eq!(e.errno(), libc::EPERM, "{e}");
        assert!(e.to_string().contains("copy them"), "{e}");
    };
    eperm(b.unlink(&dir, "a"));
    eperm(b.rename(&dir, "a", "c"));
    eperm(b.try_open(&dir, "a", true).map(drop));
    eperm(b.try_open(&dir, "new", false).map(drop));
    let inbox = b.tree.resolve_path("inbox").unwrap();
    assert_eq!(
        b.tree.writer().rmdir(&inbox, &format!("{STEM}.d")).unwrap_err().errno(),
        libc::EPERM
    );
    assert_eq!(
        b.tree.writer().mkdir(&b.tree.resolve_path(&dir).unwrap(), "x").unwrap_err().errno(),
        libc::EPERM
    );
    // A read message leaves the inbox, and its folder with it; names known already still open.
    b.cat(&format!("inbox/{STEM}.txt"));
    assert!(b.names("inbox").is_empty());
    assert_eq!(b.cat(&format!("{dir}/b")), "3");
}

#[test]
fn looking_at_many_files_reads_the_message_once() {
    let files: Vec<(String, String)> = (0..50).map(|n| (format!("f{n}"), "x".repeat(n))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &files)])]);
    let dir = format!("archive/{DAY}/{STEM}.d");
    assert_eq!(list_path(&b.tree, &dir).unwrap().iter().map(|l| l.size).sum::<u64>(), 49 * 50 / 2);
    assert_eq!(b.stores[0].folder.lock().reads, 1);
    // A file that changed in the store is seen as it is now, at the latest after a moment.
    b.stores[0].folder.lock().change(0, |l| {
        l.files[3] = b"longer".to_vec();
        l.message.attachments[3].size = 6;
    });
    assert_eq!(b.cat(&format!("{dir}/f3")), "longer");
    assert_eq!(b.attr(&format!("{dir}/f3")).size, 6);
}

#[test]
fn a_file_on_disk_is_read_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let big = "0123456789".repeat(100_000);
    let s = store(vec![letter("00000001aaaa", T0, &[("big", &big)])]);
    s.folder.lock().on_disk = Some(dir.path().to_owned());
    let b = bed(vec![s]);
    let path = format!("archive/{DAY}/{STEM}.d/big");
    let node = b.tree.resolve_path(&path).unwrap();
    let file = b.tree.open(&node, &OpenRequest::default()).unwrap();
    assert!(matches!(file, OpenFile::Raw(_)), "a large file is not held in memory");
    assert_eq!(b.tree.read(&file, 999_995, 100, 0).unwrap(), b"56789");
    assert_eq!(b.cat(&path).len(), 1_000_000);
}

#[test]
fn inode_numbers_of_files_are_those_of_the_message_and_the_name() {
    let letters = vec![
        letter("00000001aaaa", T0, &[("a", "1"), ("b", "2")]),
        letter("00000002aaaa", T0 + 1, &[("a", "1")]),
    ];
    let mut s = store(letters);
    s.book = Some(Texts::default());
    s.book.as_ref().unwrap().put("notes", "x.txt", "x");
    let b = bed(vec![s]);
    let other = STEM.replace("0001", "0002").replace("4203", "4204");
    let paths = [
        format!("archive/{DAY}/{STEM}.d"),
        format!("archive/{DAY}/{STEM}.d/a"),
        format!("archive/{DAY}/{STEM}.d/b"),
        format!("inbox/{STEM}.d"),
        format!("inbox/{STEM}.d/a"),
        format!("inbox/{other}.d/a"),
        "me".into(),
        "me/notes".into(),
        "me/plans".into(),
        "me/notes/x.txt".into(),
    ];
    let numbers: Vec<u64> = paths.iter().map(|p| b.attr(p).ino).collect();
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), paths.len());
    for (path, ino) in paths.iter().zip(&numbers) {
        assert_eq!(b.tree.node_by_inode(*ino), Some(b.tree.resolve_path(path).unwrap()));
    }
    let again = tree(&b.dir, &b.stores, true);
    for (path, ino) in paths.iter().zip(&numbers) {
        assert_eq!(again.inode_number(&again.resolve_path(path).unwrap()), *ino, "{path}");
    }
}

#[test]
fn numbers_say_what_they_stand_for() {
    let asking = Letter { wants_ack: true, ..letter("00000001aaaa", T0, &[("a", "1")]) };
    let b = bed(vec![store(vec![asking])]);
    let ix = b.tree.index().read().messages.find_message(0, "bob@x", "00000001aaaa").unwrap();
    let identity = b.tree.index().read().messages.entry(ix).identity() & ((1 << 56) - 1);
    let node = |ino: Ino| b.tree.node_by_inode(ino);
    let folders = ["inbox", &format!("archive/{DAY}"), "sent", "threads/00000001aaaa"];
    for (place, folder) in folders.iter().enumerate().filter(|(_, folder)| **folder != "sent") {
        for (tag, ending) in [(16, "txt"), (24, "reply"), (32, "d"), (40, "ack"), (56, "reply-all")]
        {
            let path = format!("{folder}/{STEM}.{ending}");
            let ino = b.attr(&path).ino;
            assert_eq!(ino, (tag + place as u64) << 56 | identity, "{path}");
            assert_eq!(node(ino), Some(b.tree.resolve_path(&path).unwrap()), "{path}");
        }
    }
    let path = format!(".maildir/new/{STEM}");
    assert_eq!(b.attr(&path).ino, 20 << 56 | identity);
    assert_eq!(node(20 << 56 | identity), Some(b.tree.resolve_path(&path).unwrap()));
    let warning = file_node(MessageFolder::Sent, ix, MessageFile::Warning);
    assert_eq!(node(48 << 56 | identity), Some(warning));
    for (secs, tag) in [(-1, 1), (0, 2), (T0, 2)] {
        let day = Timestamp::from_secs(secs).day();
        let ino = tag << 56 | (day.number() + (1 << 40)) as u64;
        let scope = if tag == 1 { FolderScope::ArchiveDay(day) } else { FolderScope::SentDay(day) };
        assert_eq!((b.tree.inode_number(&scope.into()), node(ino)), (ino, Some(scope.into())));
    }
    for (ino, path) in
        [(1, ""), (6, "inbox"), (7, "archive"), (8, "sent"), (9, "threads"), (25, ".status")]
    {
        assert_eq!((b.attr(path).ino, node(ino)), (ino, b.tree.resolve_path(path).ok()));
    }
    for unknown in [0, 26, 21 << 56 | identity, 49 << 56 | identity, u64::MAX] {
        assert_eq!(node(unknown), None, "{unknown}");
    }
}

#[test]
fn folders_know_the_folder_above() {
    let mut s = store(vec![letter("00000001aaaa", T0, &[("a", "1")])]);
    s.book = Some(Texts::default());
    let b = bed(vec![s]);
    for path in ["inbox", &format!("archive/{DAY}"), "threads/00000001aaaa"]
        .map(|f| format!("{f}/{STEM}.d"))
    {
        let (above, _) = path.rsplit_once('/').unwrap();
        let parent = b.tree.parent_folder(&b.tree.resolve_path(&path).unwrap());
        assert_eq!(parent, b.tree.resolve_path(above).unwrap());
    }
    let notes = b.tree.resolve_path("me/notes").unwrap();
    assert_eq!(
        (b.tree.parent_folder(&notes), b.tree.parent_folder(&ViewKey::Me(MeKey::Top).into())),
        (ViewKey::Me(MeKey::Top).into(), Node::ROOT)
    );
}

#[test]
fn two_messages_of_one_id_are_told_apart_by_the_hash_of_their_files() {
    let hash = "0f".repeat(32);
    let mut namesake = letter(&format!("00000001aaaa{QUALIFIER}{hash}"), T0, &[("f", "namesake")]);
    namesake.message.in_reply_to = Some(format!("p{QUALIFIER}{hash}"));
    let mut nameless = letter("00000003aaaa", T0 + 1, &[]);
    nameless.message.from = None;
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[]), namesake, nameless])]);
    let full = format!("20260424T174203.000Z-bob@x-{hash}");
    // The store has these bytes of each message.
    let first = format!(
        "20260424T174203.000Z-bob@x-{}",
        crate::model::short_id::short_hash("half a letter", 64)
    );
    let third = "20260424T174204.000Z-unknown-00000003.txt";
    assert_eq!(
        b.names("inbox"),
        [format!("{first}.txt"), format!("{full}.d"), format!("{full}.txt"), third.to_owned()]
    );
    assert_eq!(b.cat(&format!("inbox/{full}.d/f")), "namesake");
    let text = b.cat(&format!("inbox/{full}.txt"));
    assert!(text.contains("In-Reply-To: <p@amp>\nMessage-ID: <00000001aaaa@amp>\n"), "{text}");
    assert!(b.cat(&format!("inbox/{third}")).starts_with("To: me\n"));
}

fn signed(seed: u8, mut letter: Letter) -> Letter {
    let key = SigningKey::from_bytes(&[seed; 32]);
    letter.claim = Some(SignatureClaim::Signed {
        key: Some(PublicKey(key.verifying_key().to_bytes())),
        signature: key.sign(letter.message.body.as_bytes()).to_bytes(),
        covered: SignedBytes::from_bytes(letter.message.body.clone().into_bytes()),
        scope: SignatureScope::Whole,
    });
    letter
}

#[test]
fn what_a_valid_signature_covers_is_shown_first() {
    let covered = "hello\n--- not covered by the signature ---\nmore\n".to_owned();
    let part =
        |id: &str, secs| Letter { body_if_valid: Some(covered.clone()), ..letter(id, secs, &[]) };
    let b =
        bed(vec![store(vec![signed(1, part("00000001aaaa", T0)), part("00000002aaaa", T0 + 1)])]);
    let valid = b.cat(&format!("archive/{DAY}/{STEM}.txt"));
    assert!(valid.contains("Signature: valid ") && valid.ends_with(&covered), "{valid}");
    let name = b.names("inbox").pop().unwrap();
    let unsigned = b.cat(&format!("archive/{DAY}/{name}"));
    assert!(unsigned.contains("Signature: missing ") && unsigned.ends_with("\n\nhello\n"));
}

#[test]
fn status_tells_what_stores_remark_and_whose_keys_are_shared() {
    let from = |name: &str, id: &str, secs| {
        let mut l = letter(id, secs, &[]);
        l.message.from = Some(name.into());
        signed(1, l)
    };
    let to = |name: &str, id: &str| {
        let mut l = letter(id, T0 + 9, &[]);
        (l.message.from, l.message.to, l.from_me) = (Some("me".into()), vec![name.into()], true);
        l
    };
    let s = store(vec![
        from("bob@x", "00000001aaaa", T0),
        from("alice@x", "00000002aaaa", T0 + 1),
        to("BOB@x", "00000003aaaa"),
        to("registered", "00000004aaaa"),
        to("nobody@x", "00000005aaaa"),
    ]);
    s.folder.lock().remarks = vec!["waiting in outbox: 5 to carol\nforged: line".into()];
    let b = bed(vec![s]);
    let status = b.cat("status.txt");
    let key = PublicKey(SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes());
    let shared =
        format!("note: the key {} of alice@x is also pinned to bob@x\n", key.fingerprint());
    assert!(status.contains(&shared), "{status}");
    assert!(status.contains("; healthy\n    waiting in outbox: 5 to carol\u{240a}forged: line\n"));
    let strangers: Vec<&str> = status.lines().filter(|l| l.contains("has written yet")).collect();
    assert_eq!(strangers, ["note: nobody called nobody@x has written yet"]);
    assert_eq!(b.cat("status.txt"), status, "nothing changes while nothing happens");
}

#[test]
fn a_refused_file_is_named_after_itself_and_says_where_it_is() {
    let s = store(vec![letter("00000001aaaa", T0, &[])]);
    s.folder.lock().refuse(None, "is not JSON");
    let b = bed(vec![s]);
    let hash = crate::model::short_id::short_hash("inbox/letter1.json:0", 8);
    let name = format!("letter1-{hash}.txt");
    assert_eq!(b.names("rejected"), std::slice::from_ref(&name));
    assert_eq!(
        b.cat(&format!("rejected/{name}")),
        "Reason: is not JSON\nSource: raw/amp/inbox/letter1.json\n\nhalf a letter\n"
    );
}

#[test]
fn a_message_that_moves_to_another_thread_is_shown_there() {
    let letters = vec![
        letter("00000001aaaa", T0, &[]),
        letter("00000002aaaa", T0 + 1, &[("f", "x")]),
        letter("00000003aaaa", T0 + 2, &[]),
    ];
    let b = bed(vec![store(letters)]);
    let find = |id: &str| b.tree.index().read().messages.find_message(0, "bob@x", id).unwrap();
    let thread = |id: &str| {
        let tables = b.tree.index().read();
        tables.threads.find_thread(&tables.messages, 0, id).unwrap()
    };
    let (ix, old) = (find("00000002aaaa"), thread("00000003aaaa"));
    let name = b.tree.names.message_name(ix);
    assert!(b.cat(&format!("archive/{DAY}/{name}")).contains("Thread: 00000002aaaa\n"));
    let changes = IndexChanges { moved: vec![(ix, old)], ..IndexChanges::default() };
    let folder = b.tree.inode_number(&FolderScope::Thread(old).into());
    assert!(!b.tree.stale_inodes(&changes).contains(&folder), "nobody was told of it");
    assert_eq!(b.attr("threads/00000003aaaa").ino, folder);
    // The message behaves as if it had left the thread `old`, which is now empty: its only message is gone.
    b.stores[0].folder.lock().refuse(Some(2), "gone");
    b.tree.index().refresh_store(0, true).unwrap();
    b.tree.drop_stale_caches(&changes);
    let stale = b.tree.stale_inodes(&changes);
    let new = thread("00000002aaaa");
    let texts = [MessageFolder::Archive, MessageFolder::Thread]
        .map(|place| file_node(place, ix, MessageFile::Text));
    for expected in [
        FolderScope::Thread(old).into(),
        FolderScope::Thread(new).into(),
        transcript::transcript_node(new),
        MessagesKey::Threads.into(),
        maildir::maildir_node(ix),
    ]
    .iter()
    .chain(&texts)
    {
        assert!(stale.contains(&b.tree.inode_number(expected)), "{expected:?} missing");
    }
    // A name that leads from one folder to the other is not trusted for long.
    assert_eq!(b.attr(&format!("threads/00000002aaaa/{name}")).caching, CachePolicy::Folder);
    // The kernel drops its pages of the message once, in each folder.
    for text in &texts {
        let policies = [(); 2].map(|()| b.tree.page_policy(text));
        assert_eq!(policies, [PagePolicy::Drop, PagePolicy::Keep]);
    }
    let other = file_node(MessageFolder::Archive, find("00000001aaaa"), MessageFile::Text);
    assert_eq!(b.tree.page_policy(&other), PagePolicy::Keep);
}

#[test]
fn readme_tells_of_what_there_is_in_forty_lines() {
    let mut s = store(Vec::new());
    s.about.attachment_rule = Some(|_| Ok(()));
    s.book = Some(Texts::default());
    for read_only in [false, true] {
        let mut plain = store(Vec::new());
        plain.about.name = "plain".into();
        let b = bed_with(vec![plain], read_only);
        let text = b.cat("README.txt");
        assert!(!text.contains("NAME.d/") && !text.contains("me/{") && text.lines().count() <= 40);
        assert!(!b.names("").contains(&"me".to_owned()));
        assert_eq!(b.errno("me"), libc::ENOENT);
    }
    let b = bed_with(vec![s], true);
    let text = b.cat("README.txt");
    assert!(text.contains("NAME.d/") && text.contains("me/{notes,plans}/"), "{text}");
    assert!(text.lines().count() <= 40 && text.is_ascii());
}

#[test]
fn a_message_with_files_is_a_mail_of_several_parts_in_the_maildir() {
    let big: String = (0..200_001).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    let files = [("a b.txt", "text\n"), ("empty", ""), ("gr\u{fc}n", big.as_str()), ("x", "57")];
    for on_disk in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let letters = vec![letter("00000001aaaa", T0, &files), letter("00000002aaaa", T0 + 1, &[])];
        let s = store(letters);
        s.folder.lock().on_disk = on_disk.then(|| dir.path().to_owned());
        let b = bed(vec![s]);
        let names = b.names(".maildir/new");
        let path = format!(".maildir/new/{}", names[0]);
        let text = b.cat(&path);
        assert_eq!(b.attr(&path).size, text.len() as u64);
        let shown = b.cat(&format!("archive/{DAY}/{STEM}.txt"));
        let (head, body) = shown.split_once("\n\n").unwrap();
        let head = head.split("\nMIME-Version").next().unwrap();
        assert!(text.starts_with(&format!("{head}\nMIME-Version: 1.0\n")), "{text:.500}");
        assert_eq!(text.matches("MIME-Version").count(), 1);
        let mail = mail_parser::MessageParser::default().parse(text.as_bytes()).unwrap();
        assert_eq!(mail.body_text(0).unwrap(), body);
        let parts: Vec<(String, String)> = mail
            .attachments()
            .map(|part| {
                use mail_parser::MimeHeaders as _;
                let name = part.attachment_name().unwrap().to_owned();
                (name, String::from_utf8(part.contents().to_vec()).unwrap())
            })
            .collect();
        let wanted = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(parts, wanted);
        // Each range of it is the same, in whatever steps it is read.
        let node = b.tree.resolve_path(&path).unwrap();
        let file = b.tree.open(&node, &OpenRequest::default()).unwrap();
        for step in [1usize, 76, 77, 78, 4096] {
            let from = text.len() / 2 - 500;
            let mut read = Vec::new();
            while read.len() < 1000 {
                read.extend(b.tree.read(&file, (from + read.len()) as u64, step, 0).unwrap());
            }
            assert_eq!(&read[..1000], &text.as_bytes()[from..from + 1000], "{step}");
        }
        assert!(b.tree.read(&file, text.len() as u64, 10, 0).unwrap().is_empty());
        let plain = b.cat(&format!(".maildir/new/{}", names[1]));
        assert!(!plain.contains("multipart") && plain.starts_with("From: "));
    }
}

#[test]
fn attachments_that_a_store_names_badly_do_not_become_paths() {
    let mut l = letter("00000001aaaa", T0, &[("ok", "1")]);
    let bad = |name: &str| Attachment { name: name.into(), size: 1, withheld: None };
    l.message.attachments.extend([bad("../x"), bad(".."), bad("ok")]);
    let b = bed(vec![store(vec![l])]);
    assert_eq!(b.names(&format!("inbox/{STEM}.d")), ["ok"]);
}

#[test]
fn messages_of_one_time_have_a_name_each_and_the_same_in_every_folder() {
    let mut letters: Vec<Letter> = ["00000001aaaa", "00000001bbbb", "00000001cccc"]
        .map(|id| {
            let mut l = letter(id, T0, &[]);
            l.message.thread = Some("t".to_owned());
            l
        })
        .into();
    // The digest of another id serves as an id.
    let digest = crate::model::short_id::short_hash("x", 64);
    for id in ["x", &digest, &digest[..8]] {
        let mut l = letters[0].clone();
        l.message.id = id.to_owned();
        letters.push(l);
    }
    let late = letters.remove(0);
    let mut b = bed(vec![store(letters)]);
    let before = b.names("inbox");
    b.stores[0].folder.lock().push(late);
    b.tree.index().refresh_store(0, true).unwrap();
    for round in ["while it runs", "without a snapshot"] {
        let names = b.names("inbox");
        let distinct: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!((names.len(), distinct.len()), (6, 6), "{names:?}");
        assert!(before.iter().all(|n| names.contains(n)), "{round}: {before:?} {names:?}");
        let mut texts = std::collections::HashSet::new();
        for name in &names {
            assert!(texts.insert(b.cat(&format!("threads/t/{name}"))), "{name}");
        }
        let day = b.names("archive").remove(0);
        assert_eq!(b.names(&format!("archive/{day}")), names);
        b.tree.index().close();
        std::fs::remove_file(b.dir.path().join("snapshot")).unwrap();
        b.tree = tree(&b.dir, &b.stores, false);
    }
    // Reading a message does not give its name to another.
    let names = b.names("inbox");
    let text = b.cat(&format!("inbox/{}", names[0]));
    assert_eq!(b.names("inbox"), names[1..]);
    assert_eq!(b.cat(&format!("inbox/{}", names[0])), text);
}

#[test]
fn a_listing_is_taken_once_a_change() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[])])]);
    let day = b.tree.resolve_path(&format!("archive/{DAY}")).unwrap();
    let taken = b.tree.cached_listing(&day).unwrap();
    assert!(Arc::ptr_eq(&taken, &b.tree.cached_listing(&day).unwrap()));
    b.stores[0].folder.lock().push(letter("00000002aaaa", T0 + 1, &[]));
    b.tree.index().refresh_store(0, true).unwrap();
    assert_eq!((taken.len(), b.tree.cached_listing(&day).unwrap().len()), (1, 2));
}

#[test]
fn a_message_is_rendered_again_only_for_who_reads_it() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[])])]);
    let path = format!("archive/{DAY}/{STEM}.txt");
    let (text, node) = (b.cat(&path), b.tree.resolve_path(&path).unwrap());
    let ix = message_of(&node).unwrap();
    b.tree.texts.forget(ix);
    let open = || b.tree.open(&node, &OpenRequest::default()).unwrap();
    let (unread, file) = (open(), open());
    assert!(!b.tree.texts.is_cached(ix));
    assert_eq!(b.tree.read(&file, 0, 4096, 0).unwrap(), text.as_bytes());
    assert!(b.tree.texts.is_cached(ix));
    // The open file keeps the text that was read first.
    b.stores[0].folder.lock().change(0, |l| l.message.body = "changed".into());
    b.tree.texts.forget(ix);
    assert_eq!(b.tree.read(&file, 5, 4096, 0).unwrap(), &text.as_bytes()[5..]);
    assert_ne!(b.tree.read(&unread, 0, 4096, 0).unwrap(), text.as_bytes());
}
