//! Mail in mailboxes, and claiming it.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use serde_json::{Value, json};

use super::{file, is_there, mail, name, with};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, soon};

/// S201: a message in `new/` is in `inbox/` under its header lines. Reading it to the end moves the file unchanged
/// to `cur/`, and writes the receipt for which its sender may wait.
#[test]
fn s201_claim() {
    let text =
        file(&json!({"subject": "schema change", "refs": ["x", "y"]}), "need your\r\nreview");
    let (_bed, queue, m) = with(|_, queue| queue.put("bob/inbox/new/m.md", &text));
    let name = name("alice", "m");
    m.inbox_becomes(&[&name]);
    let got = m.cat(&format!("inbox/{name}"));
    assert_eq!(
        got,
        "From: alice\nTo: bob\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nSubject: schema change\nThread: \
         p2p/alice__bob\nIn-Reply-To: <y@amq>\nMessage-ID: <m@amq>\nSignature: none\n\nneed \
         your\nreview\n"
    );
    m.inbox_becomes(&[]);
    soon("it is claimed", || queue.names("bob/receipts") == ["m__bob__drained.json"]);
    assert_eq!(queue.text("bob/inbox/cur/m.md"), text);
    assert!(queue.names("bob/inbox/new").is_empty());
    let receipt = queue.text("bob/receipts/m__bob__drained.json");
    let parsed: Value = serde_json::from_str(&receipt).unwrap();
    let at = parsed["emitted_at"].as_str().unwrap();
    assert!(at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    assert_eq!(
        receipt,
        format!(
            "{{\n  \"schema\": 1,\n  \"msg_id\": \"m\",\n  \"thread\": \"p2p/alice__bob\",\n  \
             \"sender\": \"alice\",\n  \"consumer\": \"bob\",\n  \"stage\": \"drained\",\n  \
             \"emitted_at\": \"{at}\"\n}}\n"
        )
    );
    assert_eq!(m.cat(&format!("archive/2026-04-24/{name}")), got);
    assert_eq!(m.ls("raw/amq/agents/bob/inbox"), ["cur", "new"]);
    assert_eq!(m.cat("raw/amq/agents/bob/inbox/cur/m.md"), text);
    // Another program claims one. It is read, and msgfs writes no receipt for it.
    queue.put("bob/inbox/new/n.md", &file(&json!({"id": "n"}), "two\n"));
    soon("it arrives", || m.ls("inbox").len() == 1);
    fs::rename(queue.at("bob/inbox/new/n.md"), queue.at("bob/inbox/cur/n.md")).unwrap();
    m.inbox_becomes(&[]);
    assert_eq!(m.ls("archive/2026-04-24").len(), 2);
    assert_eq!(queue.names("bob/receipts").len(), 1);
}

/// S202: looking claims nothing. With `mark_read = "on-remove"`, removing claims.
#[test]
fn s202_looking() {
    let (bed, queue, m) =
        with(|_, queue| queue.put("bob/inbox/new/m.md", &file(&json!({}), "x\n")));
    let name = name("alice", "m");
    m.ok("grep -r x . > /dev/null; tar cf /dev/null .; cat archive/*/* threads/*/* > /dev/null");
    m.inbox_stays(&[&name]);
    assert_eq!(queue.names("bob/inbox/new"), ["m.md"]);
    m.umount();
    bed.config(&format!("mark_read = \"on-remove\"\n{}", queue.store()));
    let m = bed.mount("bob");
    m.cat(&format!("inbox/{name}"));
    m.inbox_stays(&[&name]);
    assert_eq!(queue.names("bob/inbox/new"), ["m.md"]);
    m.ok(&format!("rm inbox/{name}"));
    soon("it is claimed", || queue.names("bob/receipts").len() == 1);
    assert_eq!(queue.names("bob/inbox/cur"), ["m.md"]);
    // msgfs only notes locally that it is unread again: moving the file back would ring the peer.
    m.ok(&format!("mv archive/2026-04-24/{name} inbox/"));
    m.inbox_stays(&[&name]);
    assert!(queue.names("bob/inbox/new").is_empty());
    m.umount();
    let m = bed.mount("bob");
    m.inbox_stays(&[&name]);
}

/// S203: a message that cannot be claimed stays unread, `mark --all` fails, and `status.txt` says so until a claim
/// succeeds.
#[test]
fn s203_a_claim_that_fails() {
    let (bed, queue, m) =
        with(|_, queue| queue.put("bob/inbox/new/m.md", &file(&json!({}), "x\n")));
    let receipts = queue.at("bob/receipts");
    fs::remove_dir(&receipts).unwrap();
    let name = name("alice", "m");
    m.cat(&format!("inbox/{name}"));
    let out = bed.msgfs_out(&["mark", "--all", "--me", "bob"]);
    assert!(out.code() == Some(1) && out.stderr.contains("still unread"), "{out:?}");
    m.inbox_stays(&[&name]);
    let told = "so it is still unread; mend this and read it again: ";
    assert!(m.cat("status.txt").contains(told), "{}", m.cat("status.txt"));
    fs::create_dir(&receipts).unwrap();
    let out = bed.msgfs_out(&["mark", "--all", "--me", "bob"]);
    assert!(out.ok() && out.stderr.contains("1 message marked as read"), "{out:?}");
    assert_eq!(queue.names("bob/receipts"), ["m__bob__drained.json"]);
    assert!(!m.cat("status.txt").contains(told));
}

/// S203, S204: a message whose name is in `cur/`, too, cannot be claimed and stays unread. `status.txt` says why. When
/// that file is away, it is claimed with its receipt.
#[test]
fn s203_its_name_is_taken() {
    let (bed, queue, m) = with(|_, queue| {
        queue.put("bob/inbox/new/m.md", &file(&json!({}), "x\n"));
        queue.put("bob/inbox/cur/m.md", &file(&json!({"id": "other"}), "y\n"));
    });
    let name = name("alice", "m");
    m.inbox_becomes(&[&name]);
    m.cat(&format!("inbox/{name}"));
    m.inbox_stays(&[&name]);
    let told =
        "read it again: agents/bob/inbox/new/m.md and agents/bob/inbox/cur/m.md have one name";
    assert!(m.cat("status.txt").contains(told), "{}", m.cat("status.txt"));
    let out = bed.msgfs_out(&["mark", "--all", "--me", "bob"]);
    assert!(out.code() == Some(1), "{out:?}");
    m.umount();
    let m = bed.mount("bob");
    m.inbox_stays(&[&name]);
    assert!(queue.names("bob/receipts").is_empty());
    fs::rename(queue.at("bob/inbox/cur/m.md"), queue.at("bob/inbox/cur/other.md")).unwrap();
    m.cat(&format!("inbox/{name}"));
    m.inbox_becomes(&[]);
    assert_eq!(queue.names("bob/receipts"), ["m__bob__drained.json"]);
    assert_eq!(queue.names("bob/inbox/cur"), ["m.md", "other.md"]);
    assert!(!m.cat("status.txt").contains(told));
}

/// S203: if a message was claimed and its sender was not told, msgfs tells it at the next mount.
#[test]
fn s203_killed() {
    let (bed, queue, m) =
        with(|_, queue| queue.put("bob/inbox/new/m.md", &file(&json!({}), "x\n")));
    let receipts = queue.at("bob/receipts");
    m.cat(&format!("inbox/{}", name("alice", "m")));
    assert_eq!(queue.names("bob/receipts"), ["m__bob__drained.json"]);
    m.kill9();
    let begun = queue.at("bob/extensions/msgfs/m__bob__drained.json");
    fs::rename(receipts.join("m__bob__drained.json"), &begun).unwrap();
    let _m = bed.mount("bob");
    soon("its sender is told", || queue.names("bob/receipts") == ["m__bob__drained.json"]);
    assert!(!is_there(&begun));
}

/// S1190: a message with a very long id is claimed, though no file can have the name of its receipt.
#[test]
fn s1190_claimed_without_a_receipt() {
    let id = "m".repeat(240);
    let (_bed, queue, m) = with(|_, queue| {
        queue.put(&format!("bob/inbox/new/{id}.md"), &file(&json!({ "id": id }), "x\n"));
    });
    m.ok("cat inbox/*");
    m.inbox_becomes(&[]);
    assert_eq!(queue.names("bob/inbox/cur"), [format!("{id}.md")]);
    assert!(queue.names("bob/receipts").is_empty());
}

/// S201: while mail is being claimed, it stays in its listing, and programs can read it there.
#[test]
fn s201_it_can_be_read_while_it_is_claimed() {
    const MAIL: i64 = 60;
    let (_bed, _queue, m) = with(|_, queue| {
        for n in 0..MAIL {
            let (path, text) = mail(n);
            queue.put(path.strip_prefix("agents/").unwrap(), &text);
        }
    });
    soon("it arrives", || m.ls("inbox").len() == MAIL as usize);
    let folders = ["archive/2026-04-24".to_owned(), format!("threads/{}", m.ls("threads")[0])];
    for (n, name) in m.ls("inbox").iter().enumerate() {
        std::thread::scope(|scope| {
            for folder in &folders {
                let file = m.path(folder).join(name);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(500 * (n as u64 % 20)));
                    fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
                });
            }
            fs::read(m.path("inbox").join(name)).unwrap();
        });
    }
}

/// S204: a name that is in `new/` and in `cur/` is one line of `status.txt`. msgfs leaves it alone, whatever is
/// read.
#[test]
fn s204_pairs() {
    let (bed, queue, m) = with(|_, queue| {
        for leaf in ["new", "cur"] {
            queue.put(&format!("bob/inbox/{leaf}/same.md"), &file(&json!({"id": "same"}), "x\n"));
            let other = file(&json!({"id": "other"}), &format!("{leaf}\n"));
            queue.put(&format!("bob/inbox/{leaf}/other.md"), &other);
        }
    });
    assert_eq!(m.ls("archive/2026-04-24").len(), 3, "equal bytes are one message");
    let status = m.cat("status.txt");
    for name in ["same.md", "other.md"] {
        let line = format!("agents/bob/inbox/new/{name} and agents/bob/inbox/cur/{name} ");
        assert_eq!(status.matches(&line).count(), 1, "{status}");
    }
    assert!(status.contains("amq drain"), "{status}");
    assert_eq!(m.ok("cat inbox/*").matches("\nnew\n").count(), 1);
    let unread = m.ls("inbox");
    assert_eq!(unread.len(), 1, "{unread:?}");
    m.inbox_stays(&[&unread[0]]);
    assert_eq!(queue.names("bob/inbox/new"), ["other.md", "same.md"]);
    assert!(queue.names("bob/receipts").is_empty());
    let out = bed.msgfs_out(&["check", "amq", "--me", "bob"]);
    assert!(
        !out.ok() && out.stdout.matches("there is a file of this name in cur/, too").count() == 2,
        "{out:?}"
    );
    fs::remove_file(queue.at("bob/inbox/cur/same.md")).unwrap();
    soon("one line less", || !m.cat("status.txt").contains("cur/same.md"));
}

/// S1391: the last day that a calendar has is shown as it is.
#[test]
fn s1391_the_last_day() {
    let (_bed, _queue, m) = with(|_, queue| {
        let head = json!({"created": "9999-12-31T10:00:00Z"});
        queue.put("bob/inbox/new/m.md", &file(&head, "x\n"));
    });
    let [name] = &m.ls("archive/9999-12-31")[..] else { panic!("{:?}", m.ls("archive")) };
    assert!(name.starts_with("99991231T100000.000Z-alice-"), "{name}");
    let shown = Shown::parse(&m.cat(&format!("archive/9999-12-31/{name}")));
    assert_eq!(shown.must("Date"), "Fri, 31 Dec 9999 10:00:00 +0000");
}

/// S205: kind and priority are header lines. Labels and context are files in `NAME.d/`.
#[test]
fn s205_members() {
    let head = json!({
        "kind": "review_request", "priority": "urgent", "labels": ["a", "b\u{1b}[31m"],
        "context": {"paths": ["x.rs"]}, "future": {"deep": [1]}
    });
    let (_bed, _queue, m) = with(|_, queue| queue.put("bob/inbox/new/m.md", &file(&head, "x\n")));
    let folder = format!("archive/2026-04-24/{}", name("alice", "m").replace(".txt", ".d"));
    let got = shown::message(&m, "m");
    assert_eq!((got.must("Type"), got.must("Priority")), ("review_request", "urgent"));
    assert_eq!(m.ls(&folder), ["context.json", "labels.txt"]);
    let context: Value = serde_json::from_str(&m.cat(&format!("{folder}/context.json"))).unwrap();
    assert_eq!(context, head["context"]);
    let labels = m.cat(&format!("{folder}/labels.txt"));
    assert!(labels.starts_with("a\nb") && !labels.contains('\u{1b}'), "{labels:?}");
}

/// S206: messages that `drain` would make dead letters, and dead letters, are in `rejected/` with the reason and
/// stay in their place. Hidden files and folders count for nothing, and no link is followed.
#[test]
fn s206_rejected() {
    let (_bed, queue, m) = with(|bed, queue| {
        let dead = "---\n{\"schema\": \"amq/dlq/v1\", \"failure_reason\": \"parse_error\"}\n---\nx";
        queue.put("bob/dlq/new/dlq_1_2_3.md", dead);
        queue.put("bob/inbox/new/a.md", "hello");
        queue.put("bob/inbox/new/k.md", &file(&json!({"id": "k", "kind": "memo"}), "x\n"));
        queue.put("bob/inbox/new/note.txt", "hello");
        queue.put("bob/inbox/new/.hidden.md", "hello");
        queue.put("alice/inbox/new/a.md", "theirs to mend");
        fs::create_dir(queue.at("bob/inbox/new/folder")).unwrap();
        fs::write(bed.path("secret"), file(&json!({"id": "s"}), "secret\n")).unwrap();
        symlink(bed.path("secret"), queue.at("bob/inbox/new/link.md")).unwrap();
        symlink(queue.at("alice"), queue.at("eve")).unwrap();
        queue.put("bob/inbox/new/m.md", &file(&json!({}), "good\n"));
    });
    let rejected = shown::rejected(&m);
    assert_eq!(rejected.len(), 4, "{rejected:#?}");
    for why in ["it does not begin with", "kind is \"memo\"", "ends in .md", "letter: parse_error"]
    {
        let of = rejected.iter().filter(|text| text.lines().next().unwrap().contains(why));
        assert_eq!(of.count(), 1, "{why}: {rejected:#?}");
    }
    assert!(!m.ok("grep -rh . .").contains("secret"));
    let status = m.cat("status.txt");
    assert!(status.contains("link.md is skipped") && status.contains("eve is skipped"), "{status}");
    m.ok("cat inbox/* > /dev/null");
    soon("only the message is claimed", || queue.names("bob/inbox/cur") == ["m.md"]);
    assert_eq!(queue.names("bob/inbox/new").len(), 6);
    // A half written file is a message once it is whole.
    fs::write(queue.at("bob/inbox/new/a.md"), file(&json!({"id": "a"}), "now\n")).unwrap();
    soon("it is a message", || m.ls("inbox").len() == 1 && m.ls("rejected").len() == 3);
}

/// S206: odd files are messages if the queue's own program delivers them. The others are rejected.
#[test]
fn s206_odd_files() {
    let odd = |id: &str, head: Value| {
        let mut head = head;
        head["id"] = id.into();
        (format!("bob/inbox/new/{id}.md"), file(&head, "x\n"))
    };
    let good = [
        odd("far", json!({"created": "9999-12-31T23:59:59Z"})),
        odd("fine", json!({"created": "2026-04-24T17:42:03.1234567890123Z"})),
        odd("nulls", json!({"refs": [null], "labels": [null]})),
        odd("blank", json!({})),
    ];
    let bad = [
        odd("schema", json!({"schema": "1"})),
        odd("huge", json!({"schema": 1e20})),
        odd("small", json!({"created": "2026-04-24t17:42:03z"})),
        odd("leap", json!({"created": "2026-04-24T17:42:60Z"})),
        odd("zone", json!({"created": "2026-04-24T17:42:03+0200"})),
    ];
    let (_bed, queue, m) = with(|_, queue| {
        for (path, text) in good.iter().chain(&bad) {
            let text = if path.ends_with("blank.md") {
                text.replacen("\n---\n", "\n--- \n", 1)
            } else {
                text.clone()
            };
            queue.put(path, &text);
        }
    });
    assert_eq!(shown::rejected(&m).len(), bad.len());
    assert_eq!(m.ls("inbox").len(), good.len());
    m.ok("for f in inbox/*.txt; do cat $f > /dev/null; done");
    soon("the messages are claimed", || queue.names("bob/inbox/cur").len() == good.len());
    assert_eq!(queue.names("bob/inbox/new").len(), bad.len());
}

/// S207: a conversation shows the messages of everybody in it, each once. The same id with other bytes is another
/// message.
#[test]
fn s207_threads() {
    let thread = |id: &str, from: &str, to: &[&str], second: u32| {
        let head = json!({
            "id": id, "from": from, "to": to, "thread": "plan",
            "created": format!("2026-04-24T17:42:{second:02}Z")
        });
        file(&head, &format!("{id} by {from}\n"))
    };
    let (_bed, queue, m) = with(|_, queue| {
        let one = thread("one", "alice", &["bob", "carol"], 1);
        for place in ["bob/inbox/new", "carol/inbox/cur", "alice/outbox/sent"] {
            queue.put(&format!("{place}/one.md"), &one);
        }
        queue.put("alice/inbox/new/two.md", &thread("two", "carol", &["alice"], 2));
        let mine = thread("three", "bob", &["alice"], 3);
        queue.put("bob/outbox/sent/three.md", &mine);
        queue.put("alice/inbox/new/three.md", &mine);
        let other = file(&json!({"id": "x", "to": ["carol"], "thread": "others"}), "private\n");
        queue.put("carol/inbox/new/x.md", &other);
    });
    let bodies = |folder: &str| -> Vec<String> {
        shown::all(&m, folder).into_iter().map(|s| s.body).collect()
    };
    assert_eq!(m.ls("threads"), ["plan"]);
    assert_eq!(bodies("threads/plan"), ["one by alice\n", "two by carol\n", "three by bob\n"]);
    assert_eq!((bodies("archive").len(), bodies("sent")), (1, vec!["three by bob\n".to_owned()]));
    let both = shown::message(&m, "one");
    assert_eq!(both.must("To"), "bob, carol");
    queue.put(
        "bob/inbox/new/again.md",
        &thread("one", "alice", &["bob"], 4).replace("by", "not by"),
    );
    soon("another message under the id", || m.ls("inbox").len() == 2);
    assert_eq!(m.ls("raw/amq/agents"), ["bob"], "the mail of others is not mine to show");
}

/// S208: `$AM_ROOT` is the default place if it holds `agents/`. The mount's me is the handle in lower case. If a
/// folder of the mailbox is missing, msgfs names the command that makes it.
#[test]
fn s208_place() {
    let mut bed = Bed::new();
    let queue = super::Queue::new(&bed, &["alice", "bob"]);
    bed.env.push(("AM_ROOT".into(), bed.path("nowhere").into()));
    assert!(!bed.msgfs_out(&["status", "--me", "bob"]).said().contains("(amq)"));
    bed.env.push(("AM_ROOT".into(), queue.root.clone().into()));
    queue.put("bob/inbox/new/m1.md", &mail(1).1);
    let m = bed.mount("Bob");
    assert_eq!(m.ls("raw"), ["amq", "samp"]);
    assert_eq!(m.ls("inbox").len(), 1);
    fs::remove_dir(queue.at("bob/receipts")).unwrap();
    soon("it is told", || m.cat("status.txt").contains("agents/bob/receipts is not there"));
    let out = bed.msgfs_out(&["doctor", "--me", "Bob"]);
    let command = format!("amq init --root {} --agents bob", queue.root.display());
    assert!(!out.ok() && out.said().contains(&command), "{out:?}");
    assert!(!is_there(&queue.at("bob/receipts")), "nothing is made by reading");
    let out = bed.msgfs_out(&["check", "amq", "--me", "Bob"]);
    assert!(!out.ok() && out.stdout.contains("agents/bob/receipts"), "{out:?}");
    let shown = Shown::parse(&m.cat(&shown::path(&m, "archive", "m1")));
    assert_eq!(shown.must("To"), "bob");
}

/// S201: when `close` returns, the message is claimed and its sender is told, so that nobody else gets it.
#[test]
fn s201_claimed_before_close_returns() {
    let (_bed, queue, m) = with(|_, queue| {
        for n in 0..20 {
            let id = format!("m{n}");
            queue.put(&format!("bob/inbox/new/{id}.md"), &file(&json!({"id": id}), "x\n"));
        }
    });
    soon("all are there", || m.ls("inbox").len() == 20);
    let (new, receipts) = (queue.at("bob/inbox/new"), queue.at("bob/receipts"));
    let left = m.ok(&format!(
        "for f in inbox/*; do cat $f > /dev/null; ls {} | wc -l; ls {} | wc -l; done",
        new.display(),
        receipts.display()
    ));
    let wanted: String = (1..=20).map(|n| format!("{}\n{n}\n", 20 - n)).collect();
    assert_eq!(left, wanted);
    m.inbox_becomes(&[]);
    queue.put("bob/inbox/new/n.md", &file(&json!({"id": "n"}), "x\n"));
    soon("another one", || m.ls("inbox").len() == 1);
    m.ok("cat .next > /dev/null");
    assert!(queue.names("bob/inbox/new").is_empty(), "by .next, too");
}

/// S203: a message that cannot be claimed is not marked either, and `status.txt` says why.
#[test]
fn s203_not_claimed() {
    let (bed, queue, m) =
        with(|_, queue| queue.put("bob/inbox/new/m.md", &file(&json!({}), "x\n")));
    let name = name("alice", "m");
    let (receipts, away) = (queue.at("bob/receipts"), queue.at("bob/receipts-away"));
    fs::rename(&receipts, &away).unwrap();
    m.cat(&format!("inbox/{name}"));
    m.inbox_stays(&[&name]);
    assert!(!m.sh(&format!("rm inbox/{name}")).ok());
    assert!(m.cat("status.txt").contains("what you have read"), "{}", m.cat("status.txt"));
    assert_eq!(queue.names("bob/inbox/new"), ["m.md"], "nobody else is kept from it");
    m.umount();
    let m = bed.mount("bob");
    m.inbox_stays(&[&name]);
    fs::rename(&away, &receipts).unwrap();
    m.cat(&format!("inbox/{name}"));
    assert_eq!(queue.names("bob/receipts"), ["m__bob__drained.json"]);
    m.inbox_becomes(&[]);
    assert!(!m.cat("status.txt").contains("what you have read"));
}

/// S572: a copy in `new/` under another name that comes after the reading is claimed, too.
#[test]
fn s572_every_copy() {
    let text = file(&json!({}), "x\n");
    let (_bed, queue, m) = with(|_, queue| queue.put("bob/inbox/new/m.md", &text));
    m.cat(&format!("inbox/{}", name("alice", "m")));
    m.inbox_becomes(&[]);
    queue.put("bob/inbox/new/copy.md", &text);
    soon("it is claimed", || queue.names("bob/inbox/cur").len() == 2);
    assert!(queue.names("bob/inbox/new").is_empty());
    m.inbox_stays(&[]);
}

/// S221: a message that cannot be claimed keeps no other message from `.next`.
#[test]
fn s221_next_after_a_message_that_cannot_be_claimed() {
    let (_bed, queue, m) = with(|_, queue| {
        for n in 1..=2 {
            let (path, text) = mail(n);
            queue.put(path.strip_prefix("agents/").unwrap(), &text);
        }
        fs::remove_dir(queue.at("bob/receipts")).unwrap();
    });
    assert!(m.cat(".next").ends_with("mail 1\n"));
    assert!(m.cat(".next").ends_with("mail 2\n"));
    assert_eq!(m.ls("inbox").len(), 2, "neither could be claimed");
    fs::create_dir(queue.at("bob/receipts")).unwrap();
    m.ok("cat inbox/*");
    m.inbox_becomes(&[]);
    assert_eq!(queue.names("bob/receipts").len(), 2);
}
