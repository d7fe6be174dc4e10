//! Mails, names and folders, and scans of them.

use std::time::Instant;

use crate::store::MessageReader as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;

use super::*;
use crate::mime::utf7::{decode_utf7, encode_utf7};
use crate::model::verify::find_claim_fault;
use crate::model::{PublicKey, plain_id};
use crate::store::Signer as _;
use crate::store::maildir::names::MailFolderRole::{Hidden, Inbox, Sent};
use crate::store::maildir::names::*;

#[test]
fn the_signed_vector() {
    let vectors = vectors();
    let signed = &vectors["signed"];
    let read = parse(vectors["valid"][0]["text"].as_str().unwrap());
    assert_eq!(read.canonical, signed["canonical"].as_str().unwrap());
    let key = PublicKey::from_base64(signed["key"].as_str().unwrap()).unwrap();
    assert_eq!(key.fingerprint().to_string(), signed["fingerprint"].as_str().unwrap());
    let own = vector_key();
    assert_eq!(own.public_key(), key);
    let signature = BASE64.encode(own.sign(&mail::signed_bytes(&read.canonical)));
    assert_eq!(signature, signed["signature"].as_str().unwrap());
    assert_eq!(read.message.time, Timestamp::from_millis(1_777_052_523_250));
    assert_eq!(read.message.from.as_deref(), Some("bob@example.org"));
}

#[test]
fn a_signature_survives_other_programs_and_no_forgery() {
    let vectors = vectors();
    let digest = parse(vectors["valid"][0]["text"].as_str().unwrap()).facts.digest;
    for vector in vectors["valid"].as_array().unwrap() {
        let read = parse(vector["text"].as_str().unwrap());
        assert!(read.is_signed, "{}: {}", vector["name"], read.canonical);
        assert_eq!(read.facts.digest, digest, "{}", vector["name"]);
    }
    for vector in vectors["wrong"].as_array().unwrap() {
        let read = parse(vector["text"].as_str().unwrap());
        assert!(!read.is_signed, "{}", vector["name"]);
        assert!(read.claim.as_ref().and_then(find_claim_fault).is_some(), "{}", vector["name"]);
    }
}

#[test]
fn names_of_files_and_folders() {
    let vectors = vectors();
    for vector in vectors["flags"].as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let (flag, on) = match vector["set"].as_str() {
            Some(flag) => (flag, true),
            None => (vector["clear"].as_str().unwrap(), false),
        };
        let flag = flag.chars().next().unwrap();
        let made = set_flag(name, flag, on).unwrap();
        assert_eq!(made, vector["becomes"].as_str().unwrap(), "{name}");
        assert_eq!(has_flag(&made, flag), on);
        assert_eq!(unique_part(&made), unique_part(name));
    }
    for vector in vectors["folders"].as_array().unwrap() {
        let path = vector["path"].as_str().unwrap();
        let parts = crate::store::engine::files::path_parts(path);
        assert_eq!(folder_name(&parts).as_deref(), vector["name"].as_str(), "{path}");
    }
    assert_eq!(set_flag(&"x".repeat(252), 'S', true), None);
    assert_eq!(encode_utf7("Wörk & co"), "W&APY-rk &- co");
}

#[test]
fn roles_of_folders() {
    let with = |folders: &[&str], sent: Option<&str>| MaildirSettings {
        folders: (!folders.is_empty()).then(|| folders.iter().map(|f| (*f).to_owned()).collect()),
        sent: sent.map(str::to_owned),
        ..MaildirSettings::default()
    };
    for (name, all, some) in [
        ("", Inbox, Inbox),
        ("Work", Inbox, Hidden),
        ("Wörk/sub", Inbox, Inbox),
        ("Sent", Sent, Sent),
        ("out", Inbox, Sent),
        ("trash/old", Hidden, Hidden),
        ("Junk", Hidden, Inbox),
        ("Drafts", Hidden, Hidden),
    ] {
        assert_eq!(folder_role(name, &with(&[], None)), all, "{name}");
        assert_eq!(folder_role(name, &with(&["Wörk/sub", "Junk"], Some("Out"))), some, "{name}");
    }
}

#[test]
fn dates_ids_and_threads() {
    let vectors = vectors();
    for vector in vectors["dates"].as_array().unwrap() {
        let text = vector["text"].as_str().unwrap().as_bytes();
        let file = vector["file"].as_str().unwrap_or("x");
        let read = mail::parse_mail(text, file, MODIFIED).unwrap();
        let secs = vector["secs"].as_i64().unwrap();
        assert_eq!(read.message.time, Timestamp::from_secs(secs), "{}", vector["name"]);
        assert!(read.message.id.starts_with("sha256-") && read.message.id.len() == 39);
    }
    for vector in vectors["threads"].as_array().unwrap() {
        let read = parse(&mail("m@x", vector["head"].as_str().unwrap(), "x"));
        assert_eq!(read.message.thread.as_deref(), vector["thread"].as_str(), "{vector}");
        assert_eq!(read.message.in_reply_to.as_deref(), vector["answers"].as_str(), "{vector}");
    }
}

#[test]
fn texts_and_attachments() {
    let text = "From: b@x\nContent-Type: multipart/mixed; boundary=o\n\n--o\n\
        Content-Type: multipart/alternative; boundary=i\n\n--i\nContent-Type: text/plain; charset=iso-8859-1\n\
        Content-Transfer-Encoding: quoted-printable\n\ngr=FCn\n--i\nContent-Type: text/html\n\n<p>green</p>\n--i--\n--o\nContent-Type: application/pdf\n\
        Content-Disposition: attachment; filename=\"=?iso-8859-1?q?r=E9sum=E9.pdf?=\"\n\
        Content-Transfer-Encoding: base64\n\nYWJj\n--o\nContent-Type: message/rfc822\n\nSubject: in\n\nx\n--o--\n";
    let read = parse(text);
    assert_eq!(read.message.body, "gr\u{fc}n");
    let names: Vec<&str> = read.message.attachments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["r\u{e9}sum\u{e9}.pdf", "message.eml"]);
    assert_eq!(read.files[0], b"abc");
    let html = parse(
        "From: b@x\nContent-Type: text/html\n\n<p>one &amp; two</p><img src=\"http://x/y\">\n",
    );
    assert_eq!(html.message.body.trim(), "one & two");
    let flowed = parse(
        "From: b@x\nContent-Type: text/plain; format=flowed\n\none \ntwo\n> a \n> b\n  x\n-- \nme\n",
    );
    assert_eq!(flowed.message.body, "one two\n> a b\n x\n-- \nme");
    for given in ["../../x", "/etc/passwd", "a\\b", "\u{202e}x", &"n".repeat(300), ".."] {
        let text = format!(
            "From: b@x\nContent-Type: application/x; name=\"{given}\"\nContent-Disposition: attachment\n\nx\n"
        );
        let read = parse(&text);
        let name = &read.message.attachments[0].name;
        assert!(crate::store::confined::is_component(name) && name.len() <= 150, "{name}");
        assert!(!name.contains('\u{202e}') && !name.contains(['/', '\\']), "{name}");
    }
}

#[test]
fn the_first_header_counts_and_names_of_people_are_not_addresses() {
    let read = parse(
        "From: \"bob@bank.example\" <eve@x>\nFrom: second@x\nTo: Team: a@x, B <B@x>;, c@x\nMessage-ID: <one@x>\n\
         Message-ID: <two@x>\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nDate: Fri, 24 Apr 2020 17:42:03 +0000\n\n\n",
    );
    assert_eq!(read.message.from.as_deref(), Some("eve@x"));
    assert_eq!(read.message.to, ["a@x", "B@x", "c@x"]);
    assert_eq!((read.message.id.as_str(), read.message.time.secs()), ("one@x", 1_777_052_523));
}

#[test]
fn hostile_mails_are_rejected_soon() {
    let deep = |n: usize| {
        let mut text = String::from("From: b@x\n");
        for n in 0..n {
            let begin = format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n");
            text.push_str(&begin);
        }
        text + "\nx\n"
    };
    let many = format!(
        "From: b@x\nContent-Type: multipart/mixed; boundary=b\n\n{}",
        "--b\n\nx\n".repeat(1_100)
    );
    let start = std::time::Instant::now();
    for text in [
        deep(1_000),
        many,
        "no header at all".into(),
        format!("Subject: {}", "x".repeat(50 << 20)),
        format!("From: b@x\n{}\nx\n", "X: y\n".repeat(300_000)),
    ] {
        assert!(mail::parse_mail(text.as_bytes(), "x", MODIFIED).is_err(), "{}", text.len());
    }
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    let odd = parse("From: b@x\nSubject: a\0b\u{9b}c\n\nx\0y\n");
    assert!(!odd.message.subject.unwrap().contains(['\0', '\u{9b}']));
}

#[test]
fn a_scan_finds_all_folders() {
    let place = Place::new();
    for folder in [".Work.sub", "Plain/deep", ".Sent", ".Trash", ".W&APY-rk &- co", ".Drafts"] {
        place.make(&format!("box/{folder}"));
        place.put(
            &format!("{folder}/cur/1.{}:2,S", folder.len()),
            &mail(&format!("{}@x", folder.len()), "", folder),
        );
    }
    place.put("new/2.a", &mail("new@x", "", "hi"));
    place.put("cur/2.t:2,ST", &mail("trash@x", "", "hi"));
    place.put("new/.hidden", "nothing");
    place.put("dovecot-uidlist", "3 V1");
    let store = place.store();
    let book = Book::scanned(&store);
    let mut ids: Vec<&str> = book.messages.values().map(|kept| plain_id(&kept.id)).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["10@x", "15@x", "5@x", "9@x", "new@x"]);
    assert!(book.rejected.is_empty(), "{:?}", book.reasons());
    for kept in book.messages.values() {
        let in_sent = plain_id(&kept.id) == "5@x";
        assert_eq!((kept.from_me, kept.to_me), (in_sent, !in_sent), "{}", kept.id);
        assert_eq!(kept.from, "bob@example.org");
    }
    assert_eq!(store.health(), Vec::<String>::new());
}

#[test]
fn only_a_copy_in_sent_proves_that_i_wrote_a_mail() {
    let place = Place::new();
    place.make("box/.Sent");
    let mine = |id: &str| mail(id, "", "x").replace("Bob <Bob@example.org>", "anna@localhost");
    place.put("new/1.h", &mine("said@x"));
    place.put("new/2.h", &mine("both@x"));
    place.put(".Sent/cur/2.h:2,S", &mine("both@x"));
    place.put(".Sent/cur/3.h:2,S", &mine("sent@x"));
    let store = place.store();
    let book = Book::scanned(&store);
    assert_eq!(book.messages.len(), 3);
    for kept in book.messages.values() {
        let is_unproven = plain_id(&kept.id) == "said@x";
        assert_eq!(kept.from_me, !is_unproven, "{}", kept.id);
        assert_eq!(kept.is_my_name_unproven, is_unproven, "{}", kept.id);
        let record = store.read_record(&kept.at).unwrap();
        assert_eq!(record.is_my_name_unproven, is_unproven, "{}", kept.id);
    }
}

#[test]
fn odd_things_are_rejected_and_never_opened() {
    let place = Place::new();
    std::fs::write(place.path("secret"), mail("secret@x", "", "secret")).unwrap();
    std::os::unix::fs::symlink(place.path("secret"), place.path("box/new/evil")).unwrap();
    std::fs::create_dir(place.path("box/cur/folder")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(place.path("box/new/f")).status().unwrap();
    assert!(fifo.success());
    place.put("new/text", "this is no mail\n");
    let book = Book::scanned(&place.store());
    assert!(book.messages.is_empty(), "{:?}", book.messages);
    let mut reasons = book.reasons();
    reasons.sort_unstable();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    assert!(reasons.iter().any(|why| why.contains("a symbolic link")), "{reasons:?}");
    assert!(reasons.iter().any(|why| why.contains("a FIFO")), "{reasons:?}");
}

/// A scan that a watcher follows leaves a mail without its last newline to a later scan. That one takes it when its end
/// comes, or when its time is over.
#[test]
fn a_watched_scan_does_not_wait_for_unfinished_mail() {
    let place = Place::new();
    let store = place.store();
    let mut book = Book::scanned(&store);
    book.watched = true;
    let whole = mail("a@x", "", "a");
    place.put("new/1.h", whole.trim_end());
    place.put("new/2.h", &mail("b@x", "", "b"));
    book.scan(&store, true);
    assert_eq!(plain_id(&only(&book).id), "b@x");
    assert!(store.due_time().is_some());
    place.put("new/1.h", &whole);
    book.scan(&store, false);
    assert_eq!((book.messages.len(), store.due_time()), (2, None));
    place.put("new/3.h", mail("c@x", "", "c").trim_end());
    book.scan(&store, true);
    assert_eq!(book.messages.len(), 2);
    let due = store.due_time().unwrap();
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    book.scan(&store, false);
    assert_eq!((book.messages.len(), store.due_time()), (3, None));
}

/// A scan that can judge nothing leaves no file due, or the store would be scanned again and again. The next one that
/// can reads the file without being told.
#[test]
fn nothing_is_due_while_the_store_cannot_be_read() {
    let place = Place::new();
    let store = place.store();
    let mut book = Book::scanned(&store);
    book.watched = true;
    let whole = mail("a@x", "", "a");
    place.put("new/1.h", whole.trim_end());
    book.scan(&store, true);
    assert!(book.messages.is_empty() && store.due_time().is_some());
    std::fs::rename(place.path("box"), place.path("away")).unwrap();
    book.scan(&store, true);
    assert_eq!(store.due_time(), None);
    std::fs::rename(place.path("away"), place.path("box")).unwrap();
    place.put("new/1.h", &whole);
    book.scan(&store, false);
    assert_eq!(plain_id(&only(&book).id), "a@x");
}

#[test]
fn copies_are_one_message_and_other_texts_are_others() {
    let place = Place::new();
    place.put("new/1.a", &mail("one@x", "", "same"));
    place.put("cur/1.a:2,", &format!("Received: from a by b\n{}", mail("one@x", "", "same")));
    place.put("new/1.b", &mail("one@x", "", "other"));
    let store = place.store();
    let mut book = Book::scanned(&store);
    assert_eq!(book.messages.len(), 2, "{:?}", book.messages.keys());
    place.rename("cur/1.a:2,", "cur/1.a:2,S");
    book.scan(&store, true);
    assert_eq!(book.messages.len(), 2);
    let read: Vec<Option<bool>> = book.messages.values().map(|kept| kept.read).collect();
    assert!(read.contains(&Some(true)) && read.contains(&Some(false)), "{read:?}");
    let one = book.messages.values().find(|kept| kept.read == Some(true)).unwrap();
    assert_ne!(one.unmarked_hash, 0);
    let record = store.read_record(&one.at).unwrap();
    assert_eq!((record.message.id.as_str(), record.message.body.as_str()), (&*one.id, "same"));
}

/// S1325: copies of a mail without an id are one message, whatever the programs wrote that carried them.
#[test]
fn copies_without_an_id_are_one_message() {
    let place = Place::new();
    let text = "From: b@x\nDate: Fri, 24 Apr 2026 17:42:03 +0000\n\nhi\n";
    place.put("new/1.a", text);
    place.put("cur/2.a:2,S", &format!("Return-Path: <b@x>\nReceived: from a by b\n{text}"));
    let book = Book::scanned(&place.store());
    assert!(only(&book).id.starts_with("sha256-"), "{}", only(&book).id);
    assert_eq!(only(&book).read, Some(true));
}

/// An id in the index does not depend on which mail comes first, or on what was there before.
#[test]
fn nobody_takes_the_id_of_another_mail() {
    let vectors = vectors();
    let signed = vectors["valid"][0]["text"].as_str().unwrap();
    let again = signed_anew(signed, "pay 10");
    let forged = vectors["wrong"][0]["text"].as_str().unwrap();
    let mut known = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let place = Place::new();
        let store = place.store();
        let mut book = Book::scanned(&store);
        for (n, which) in order.iter().enumerate() {
            place.put(&format!("new/{n}.h"), [signed, &again, forged][*which]);
            book.scan(&store, true);
        }
        assert!(book.vanished.is_empty());
        assert!(
            book.messages
                .values()
                .all(|kept| plain_id(&kept.id) == "ab12cd34ef567890@msgfs.example.org")
        );
        let ids: Vec<String> = book.messages.values().map(|kept| kept.id.to_string()).collect();
        let ids: std::collections::BTreeSet<String> = ids.into_iter().collect();
        assert_eq!(ids.len(), 3);
        known.push(ids);
    }
    assert!(known.iter().all(|ids| *ids == known[0]), "{known:?}");
}

/// Returns a signed mail with another text, signed by the same key.
fn signed_anew(signed: &str, body: &str) -> String {
    let (head, _) = signed.split_once("\n\n").unwrap();
    let is_kept = |line: &&str| !line.starts_with("X-Msgfs-Signature") && !line.starts_with(' ');
    let head: Vec<&str> = head.lines().filter(is_kept).collect();
    let unsigned = format!("{}\n\n{body}\n", head.join("\n"));
    let canonical = parse(&unsigned).canonical;
    let signature = BASE64.encode(vector_key().sign(&mail::signed_bytes(&canonical)));
    let (first, second) = signature.split_at(44);
    let made = format!("X-Msgfs-Signature: {first}\n {second}\n{unsigned}");
    assert!(parse(&made).is_signed, "{made}");
    made
}

proptest! {
    #[test]
    fn utf7_has_a_way_back(text in any::<String>()) {
        prop_assert_eq!(decode_utf7(&encode_utf7(&text)), Some(text));
    }

    #[test]
    fn any_utf7_is_read(text in "[&A-Za-z0-9+,./ -]{0,30}") {
        if let Some(decoded) = decode_utf7(&text) {
            prop_assert_eq!(decode_utf7(&encode_utf7(&decoded)), Some(decoded));
        }
    }

    #[test]
    fn flags_keep_the_rest_of_a_name(name in "[^/\0]{1,60}", flag in "[A-Za-z]", on in any::<bool>()) {
        let flag = flag.chars().next().unwrap();
        let made = set_flag(&name, flag, on).unwrap();
        prop_assert_eq!(unique_part(&made), unique_part(&name));
        prop_assert_eq!(has_flag(&made, flag), on);
        for other in ['D', 'F', 'P', 'R', 'T', 'a'] {
            if other != flag {
                prop_assert_eq!(has_flag(&made, other), has_flag(&name, other));
            }
        }
        prop_assert_eq!(set_flag(&made, flag, on), Some(made.clone()));
    }

    #[test]
    fn any_bytes_are_a_mail_or_none(raw in prop::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
        let raw = if head { [b"From: a@b\nX: ", raw.as_slice()].concat() } else { raw };
        let _ = mail::parse_mail(&raw, "x", MODIFIED);
    }
}
