//! `AgentAZAll`'s own program and a mount on the same mailboxes.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::agz::{self, ME, Tree};
use crate::common::proc::Running;
use crate::common::shown::{self, Shown, message};
use crate::common::{Bed, Mount, PATIENCE, run_for, samp, soon, wait_for};
use crate::peer;

const ALICE: &str = "alice@localhost";

/// Makes two agents with keys in one folder of mailboxes: bar has a mount, and alice has only the other program.
fn two() -> (Bed, Tree, Tree, Mount) {
    let bed = Bed::new();
    let bar = Tree::with(&bed, ME, &peer::nowhere());
    let alice = bar.beside(ALICE, &peer::nowhere());
    agz::identity(&bar.base(), &samp::key(1));
    agz::identity(&bar.mailbox(ALICE), &samp::key(2));
    bed.config(&bar.store());
    let m = bed.mount("bar");
    (bed, bar, alice, m)
}

fn valid(seed: u8) -> String {
    format!("valid {}", samp::fingerprint(&samp::key(seed)))
}

/// Returns the files of a folder of a mailbox.
fn files(tree: &Tree, who: &str, folder: &str) -> Vec<PathBuf> {
    tree.list(who, folder)
        .iter()
        .map(|(d, n)| tree.mailbox(who).join(d).join(folder).join(n))
        .collect()
}

/// A message that the other program sends or replies is in the mount: valid, whole, with its attachments, in one
/// thread.
#[test]
fn their_send_and_reply_are_read() {
    let (bed, _bar, alice, m) = two();
    fs::write(bed.path("plan.bin"), [0u8, 1, 255]).unwrap();
    let file = bed.path("plan.bin");
    let text = "first line\n\ngr\u{fc}n \u{1faa8}\n---\nStatus: new";
    let said = peer::ok(
        &bed,
        &alice,
        &["send", "--to", ME, "-s", "the plan", "-b", text, "-a", file.to_str().unwrap()],
    );
    let id = peer::id(&said);
    soon("it arrives", || m.ls("inbox").len() == 2);
    let got = message(&m, &id);
    assert_eq!((got.must("From"), got.must("To"), got.must("Subject")), (ALICE, ME, "the plan"));
    assert_eq!(
        (got.must("Signature"), got.body.as_str()),
        (valid(2).as_str(), format!("{text}\n").as_str())
    );
    assert_eq!(got.must("Attachments"), "plan.bin (3)");
    let dir = shown::path(&m, "archive", &id).replace(".txt", ".d");
    assert_eq!(m.bytes(&format!("{dir}/plan.bin")), [0, 1, 255]);
    // The message has the present time, although the other program wrote a local time fourteen hours ahead.
    let sent = got.must("Date").to_owned();
    let stamps: Vec<String> = (samp::now() - 60..=samp::now()).map(shown::date).collect();
    assert!(stamps.contains(&sent), "{sent}");
    // The mount answers, and the other program replies to that and quotes the whole signed block.
    let thread = samp::thread_dir(got.must("Thread"));
    m.ok(&format!("echo 'agreed' > 'threads/{thread}/answer'"));
    let (ours, _) = alice_only(&alice);
    let said = peer::ok(&bed, &alice, &["reply", &ours, "-b", "then do it"]);
    let reply = peer::id(&said);
    soon("the reply arrives", || m.ls("inbox").len() == 3);
    let got = message(&m, &reply);
    assert_eq!((got.must("Signature"), got.must("Subject")), (valid(2).as_str(), "Re: the plan"));
    assert!(got.body.starts_with("then do it\n\n--- Original from bar@localhost ("), "{got:?}");
    assert_eq!(samp::thread_dir(got.must("Thread")), thread);
    let listed: Vec<String> = m
        .ls(&format!("threads/{thread}"))
        .into_iter()
        .filter(|n| shown::has_ending(n, "txt"))
        .collect();
    assert_eq!(listed.len(), 3);
    assert_eq!(shown::rejected(&m), [""; 0]);
}

/// Returns the id and text of the only message in alice's inbox.
#[track_caller]
fn alice_only(alice: &Tree) -> (String, String) {
    let (file, text) = alice.only(ALICE, "inbox");
    (file.file_stem().unwrap().to_str().unwrap().to_owned(), text)
}

/// S931: a letter is delivered when it lies in the mailbox, and read when the other program reads it. Its replies name
/// no message, so they prove nothing.
#[test]
fn s931_their_read_is_a_proof() {
    let (bed, _bar, alice, m) = two();
    m.ok(&format!("echo question > outbox/{ALICE}"));
    let state = || m.ok(&format!("grep -F '{ALICE}' sent.txt | cut -f 4")).trim().to_owned();
    soon("it is delivered", || state() == "delivered");
    let (id, _) = alice_only(&alice);
    peer::ok(&bed, &alice, &["inbox", "--offline", "--all"]);
    assert_eq!(state(), "delivered", "a listing reads nothing");
    peer::ok(&bed, &alice, &["read", &id]);
    soon("it is read", || state() == "read");
    peer::ok(&bed, &alice, &["reply", &id, "-b", "an answer"]);
    soon("the answer arrives", || m.sh("grep -rl 'an answer' archive").ok());
    assert_eq!(state(), "read", "its replies name no message");
}

/// The other program lists, reads and verifies each message that the mount sends, whatever its text is.
#[test]
fn ours_is_read_and_verified() {
    let (bed, _bar, alice, m) = two();
    fs::write(bed.path("a.txt"), "attached").unwrap();
    m.ok(&format!(
        "printf 'Subject: schema change\\nAttach: {}\\n\\nneed your review\\n\\nplease\\n' | tee outbox/{ALICE} > /dev/null",
        bed.path("a.txt").display()
    ));
    let (id, _) = alice_only(&alice);
    let listed = peer::ok(&bed, &alice, &["inbox", "--offline", "--all"]);
    for word in [
        "[1] [NEW] [ATTACH]",
        "From: bar@localhost",
        "Subject: schema change",
        "Preview: need your review | please",
        &format!("ID: {id}"),
    ] {
        assert!(listed.contains(word), "{word} missing in\n{listed}");
    }
    let read = peer::ok(&bed, &alice, &["read", &id]);
    assert!(
        read.contains("need your review\n\nplease") && read.contains("a.txt (8 bytes)"),
        "{read}"
    );
    let quoted = agz::block("quoted", &samp::key(9), &[]);
    let texts = [
        "plain".to_owned(),
        "two\n\nparagraphs\n\n\n".to_owned(),
        "  leading blanks \t and trailing ones \u{a0}\u{3000} \n".to_owned(),
        "---\nFrom: boss\n---\nobey".to_owned(),
        format!("quote:\n{quoted}\nend"),
        "---END AGENTAZALL SIGNED MESSAGE---\nafter".to_owned(),
        "crlf\r\nlone cr\rend\r\n".to_owned(),
        "\u{1faa8} \u{2028} \u{85} \u{1c} end".to_owned(),
        "Status: new\n\nPublic-Key: AAAA\n\nSignature-V2: x".to_owned(),
    ];
    for text in &texts {
        fs::write(bed.path("draft"), format!("\n{text}")).unwrap();
        m.ok(&format!("cat {} > outbox/{ALICE}", bed.path("draft").display()));
    }
    let files = files(&alice, ALICE, "inbox");
    assert_eq!(files.len(), texts.len() + 1);
    let all = peer::verify(&bed, &files);
    let fingerprint = samp::fingerprint(&samp::key(1));
    for v in &all {
        assert_eq!((&v["verified"], &v["envelope"]), (&json!(true), &json!(true)), "{v:#}");
        assert_eq!(
            (&v["fingerprint"], &v["claimed"]),
            (&json!(fingerprint), &json!(fingerprint)),
            "{v:#}"
        );
        assert!(v["attachments"].as_object().unwrap().values().all(|ok| ok == true), "{v:#}");
        for k in ["To", "Subject", "Date", "Message-ID"] {
            let line = format!("{k}: {}", v["headers"][k].as_str().unwrap());
            assert!(
                v["metadata"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|l| l.as_str().unwrap().trim_end() == line.trim_end()),
                "{line} in {v:#}"
            );
        }
    }
    let bodies: Vec<&str> = all.iter().map(|v| v["body"].as_str().unwrap()).collect();
    for text in texts.iter().filter(|t| !t.contains("AGENTAZALL")) {
        let plain = text.replace("\r\n", "\n").replace('\r', "\n");
        assert!(bodies.contains(&plain.trim_end()), "{plain:?} is not among {bodies:#?}");
    }
}

/// A message that the other program marks leaves `inbox/`; a message that the mount marks is read for the other
/// program.
#[test]
fn marks_agree() {
    let (bed, bar, alice, m) = two();
    let send = |text: &str| {
        peer::id(&peer::ok(&bed, &alice, &["send", "--to", ME, "-s", text, "-b", text]))
    };
    let (a, b) = (send("one"), send("Status: new in the subject"));
    soon("both arrive", || m.ls("inbox").len() == 2);
    let read = peer::ok(&bed, &bar, &["read", &a]);
    assert!(read.contains("Subject: one"), "{read}");
    soon("what it read leaves inbox/", || m.ls("inbox").len() == 1);
    let name = m.ls("inbox")[0].clone();
    assert!(Shown::parse(&m.cat(&format!("inbox/{name}"))).must("Message-ID").contains(&b));
    m.inbox_becomes(&[]);
    let listed = || peer::ok(&bed, &bar, &["inbox", "--offline", "--all"]);
    wait_for(Duration::from_secs(10), "the peer sees the mark", || listed().contains("(0 new)"));
    assert!(listed().matches("[READ]").count() == 2, "{}", listed());
    // The marks of the other program changed no signed byte.
    for v in peer::verify(&bed, &files(&bar, ME, "inbox")) {
        assert_eq!(v["verified"], true, "{v:#}");
    }
}

/// Each side reads the notes, memories, identity and tasks that the other side writes.
#[test]
fn me_agrees() {
    let (bed, bar, _alice, m) = two();
    peer::ok(&bed, &bar, &["note", "plan", "--set", "first plan"]);
    peer::ok(&bed, &bar, &["whoami", "--set", "I am bar"]);
    peer::ok(&bed, &bar, &["remember", "--text", "water is wet", "--title", "fact"]);
    soon("the note is shown", || m.sh("cat me/notes/plan.txt").stdout.contains("first plan"));
    assert!(m.cat("me/who_am_i/identity.txt").contains("I am bar"));
    assert!(m.cat("me/remember/fact.txt").contains("water is wet"));
    m.ok("echo 'second plan' >> me/notes/plan.txt; echo 'I test' > me/what_am_i_doing/tasks.txt; echo 'sky is blue' > me/remember/sky.txt");
    let note = peer::ok(&bed, &bar, &["note", "plan"]);
    assert!(note.contains("first plan") && note.contains("second plan"), "{note}");
    assert!(peer::ok(&bed, &bar, &["doing"]).contains("I test"));
    assert!(peer::ok(&bed, &bar, &["recall", "blue"]).contains("sky is blue"));
}

/// Mount and other program send, receive, read and mark in one mailbox at the same time; each message is there once on
/// both sides, signed and whole.
#[test]
fn both_at_once() {
    let (bed, bar, alice, m) = two();
    let script = |who: &Tree, body: &str| {
        let mut c = bed.command("bash");
        c.env("AGENTAZALL_CONFIG", who.root.join("config.json"));
        c.env("A", peer::program("agentazall")).args(["-c", body]);
        Running::start(c, None).unwrap()
    };
    let sender = script(
        &alice,
        "for i in 1 2 3 4 5 6; do \"$A\" send --to bar@localhost -s \"theirs $i\" -b \"text $i\" </dev/null || exit 1; done",
    );
    let same = script(
        &bar,
        "for i in 1 2 3; do \"$A\" inbox --all </dev/null >/dev/null; \"$A\" send --to alice@localhost -s \"beside $i\" -b \"beside $i\" </dev/null || exit 1; \"$A\" index --rebuild </dev/null >/dev/null; done",
    );
    for i in 0..30 {
        m.ok(&format!("echo 'ours {i}' > outbox/{ALICE}; cat inbox/* > /dev/null 2>&1; :"));
    }
    for running in [sender, same] {
        let out = running.finish(PATIENCE).unwrap();
        assert!(out.ok(), "{out:?}");
    }
    soon("nothing waits", || bar.list(ME, "outbox").is_empty());
    let theirs = files(&alice, ALICE, "inbox");
    let all = peer::verify(&bed, &theirs);
    assert!(all.iter().all(|v| v["verified"] == true), "{all:#?}");
    let bodies: Vec<&str> = all.iter().map(|v| v["body"].as_str().unwrap()).collect();
    for text in (0..30).map(|i| format!("ours {i}")) {
        assert_eq!(bodies.iter().filter(|b| **b == text).count(), 1, "{text} in {bodies:#?}");
    }
    let archive = shown::all(&m, "archive");
    for i in 1..=6 {
        let n = archive.iter().filter(|s| s.body == format!("text {i}\n")).count();
        assert_eq!(n, 1, "text {i}");
    }
    let mine = shown::all(&m, "sent");
    let unique: BTreeSet<&str> = mine.iter().map(|s| s.must("Message-ID")).collect();
    assert_eq!(unique.len(), mine.len(), "each once in sent/");
    assert_eq!(mine.iter().filter(|s| s.body.starts_with("ours ")).count(), 30);
    assert_eq!(shown::rejected(&m), [""; 0]);
}

/// Ten senders write into one mailbox at once. Five of them are runs of the other program, each of which moves the
/// whole outbox. No message of the mount is lost or doubled.
#[test]
fn ten_senders() {
    let (bed, bar, alice, m) = two();
    let peers: Vec<Running> = (0..5)
        .map(|i| {
            let text = format!("peer {i}");
            let c = peer::command(&bed, &bar, &["send", "--to", ALICE, "-s", &text, "-b", &text]);
            Running::start(c, Some(b"")).unwrap()
        })
        .collect();
    let ours: Vec<Running> = (0..5)
        .map(|i| {
            let mut c = bed.command("bash");
            let body = format!("for n in $(seq 10); do echo \"ours {i}-$n\" | tee outbox/{ALICE} > /dev/null || exit 1; done");
            c.args(["-c", &body]).current_dir(&m.dir);
            Running::start(c, None).unwrap()
        })
        .collect();
    for running in ours {
        let out = running.finish(PATIENCE).unwrap();
        assert!(out.ok(), "{out:?}");
    }
    for running in peers {
        running.finish(PATIENCE).unwrap();
    }
    // A listing of sent/ waits until the store has every accepted draft.
    m.ls("sent");
    soon("nothing of ours waits", || {
        !files(&bar, ME, "outbox")
            .iter()
            .any(|f| fs::read_to_string(f).unwrap_or_default().contains("\nours "))
    });
    let all = peer::verify(&bed, &files(&alice, ALICE, "inbox"));
    let mut got: Vec<&str> = all
        .iter()
        .map(|v| v["body"].as_str().unwrap())
        .filter(|b| b.starts_with("ours "))
        .collect();
    got.sort_unstable();
    let mut wanted: Vec<String> =
        (0..5).flat_map(|i| (1..=10).map(move |n| format!("ours {i}-{n}"))).collect();
    wanted.sort();
    assert_eq!(got, wanted, "in alice's inbox");
    assert!(
        all.iter()
            .filter(|v| v["body"].as_str().unwrap().starts_with("ours "))
            .all(|v| v["verified"] == true)
    );
    let mut sent: Vec<String> = shown::all(&m, "sent")
        .into_iter()
        .map(|s| s.body.trim().to_owned())
        .filter(|b| b.starts_with("ours "))
        .collect();
    sent.sort();
    assert_eq!(sent, wanted, "in the mount's sent/");
    let second = bed_of(&alice);
    let other = second.mount("alice");
    let mut seen: Vec<String> = shown::all(&other, "inbox")
        .into_iter()
        .map(|s| s.body.trim().to_owned())
        .filter(|b| b.starts_with("ours "))
        .collect();
    seen.sort();
    assert_eq!(seen, wanted, "in alice's own mount");
}

/// Makes another bed whose only store is this project.
fn bed_of(tree: &Tree) -> Bed {
    let bed = Bed::new();
    bed.config(&tree.store());
    bed
}

/// The other program signs with the key that msgfs makes in a mailbox, and msgfs with the key of the other program.
#[test]
fn one_key_for_both() {
    let bed = Bed::new();
    let bar = Tree::with(&bed, ME, &peer::nowhere());
    let alice = bar.beside(ALICE, &peer::nowhere());
    bed.config(&bar.store());
    let m = bed.mount("bar");
    m.ok(&format!("echo ours > outbox/{ALICE}"));
    let out = run_for(
        peer::command(&bed, &bar, &["send", "--to", ALICE, "-s", "s", "-b", "theirs"]),
        Some(b""),
        Duration::from_secs(40),
    );
    assert!(out.ok(), "{out:?}");
    let all = peer::verify(&bed, &files(&alice, ALICE, "inbox"));
    let prints: BTreeSet<&str> = all.iter().map(|v| v["fingerprint"].as_str().unwrap()).collect();
    assert_eq!((all.len(), prints.len()), (2, 1), "{all:#?}");
    assert!(all.iter().all(|v| v["verified"] == true), "{all:#?}");
    // The other program makes alice's key; a mount for her signs with it.
    peer::ok(&bed, &alice, &["crypto-identity"]);
    let second = bed_of(&alice);
    let other = second.mount("alice");
    other.ok("echo hello > outbox/bar@localhost");
    let key: Value = serde_json::from_str(
        &fs::read_to_string(alice.mailbox(ALICE).join(".identity_key")).unwrap(),
    )
    .unwrap();
    let got = peer::verify(&bed, &files(&bar, ME, "inbox"));
    assert_eq!((&got[0]["verified"], &got[0]["fingerprint"]), (&json!(true), &key["fingerprint"]));
    soon("it is valid here", || m.ls("inbox").len() == 1);
    assert_eq!(
        shown::all(&m, "inbox")[0].must("Signature"),
        format!("valid {}", key["fingerprint"].as_str().unwrap())
    );
}
