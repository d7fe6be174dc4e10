//! The files that a draft becomes in the mailboxes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{file, is_there, name, parsed, with};
use crate::common::proc::Running;
use crate::common::shown::{self, Shown};
use crate::common::{Bed, samp, soon};

/// S209: one file of the same name and bytes is in `new/` of every recipient and in my `outbox/sent`, as the
/// format's own program makes it. Two more members sign it. Nothing else in the queue changes.
#[test]
fn s209_file() {
    let (bed, queue, m) = with(|_, _| {});
    m.ok("printf 'To: carol, alice\\nSubject: a < b\\nType: question\\n\\ntests are green?\\n' > outbox/x");
    let names = queue.names("alice/inbox/new");
    assert_eq!(names.len(), 1);
    let text = queue.text(&format!("alice/inbox/new/{}", names[0]));
    for place in ["carol/inbox/new", "bob/outbox/sent"] {
        assert_eq!(queue.names(place), names, "{place}");
        assert_eq!(queue.text(&format!("{place}/{}", names[0])), text, "{place}");
    }
    let (head, body) = parsed(&text);
    let id = head["id"].as_str().unwrap();
    assert_eq!((names[0].as_str(), body), (format!("{id}.md").as_str(), "tests are green?\n"));
    let rest = id.strip_prefix(&samp::today()).unwrap();
    let (time, rest) = rest.split_once("Z_pid").unwrap();
    let (pid, chance) = rest.split_once('_').unwrap();
    assert!(time.len() == 13 && pid.parse::<u32>().is_ok() && chance.len() == 8, "{id}");
    let start = format!(
        "---json\n{{\n  \"schema\": 1,\n  \"id\": \"{id}\",\n  \"from\": \"bob\",\n  \"to\": [\n    \
         \"carol\",\n    \"alice\"\n  ],\n  \"thread\": \"msgfs/alice__bob__carol\",\n  \"subject\": \
         \"a \\u003c b\",\n  \"created\": {},\n  \"priority\": \"normal\",\n  \"kind\": \"question\",\n  \
         \"pub\": ",
        head["created"]
    );
    assert!(text.starts_with(&start), "{text}\n{start}");
    let mode = |path: &str| fs::metadata(queue.at(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&format!("carol/inbox/new/{}", names[0])), 0o600);
    for agent in ["alice", "bob", "carol"] {
        assert!(queue.names(&format!("{agent}/inbox/tmp")).is_empty());
        assert!(!is_there(&queue.at(&format!("{agent}/presence.json"))));
    }
    m.ok("echo hi > outbox/alice");
    let second = queue.names("bob/outbox/sent").into_iter().find(|n| *n != names[0]).unwrap();
    let (head, _) = parsed(&queue.text(&format!("alice/inbox/new/{second}"))).clone();
    assert_eq!((&head["thread"], &head["kind"]), (&json!("p2p/alice__bob"), &json!(null)));
    // She reads it in her own mount, and both sides have one conversation.
    let alice = bed.mount("alice");
    let got = shown::all(&alice, "inbox").remove(0);
    assert_eq!((got.must("Subject"), got.must("To")), ("a < b", "carol, alice"));
    assert!(got.must("Signature").starts_with("valid "), "{got:?}");
    assert_eq!(m.ls("threads"), alice.ls("threads"));
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 2);
    let forged = text.replace("tests are green?", "tests are red!");
    queue.put(&format!("carol/inbox/new/{}", names[0]), &forged);
    let carol = bed.mount("carol");
    let why = shown::one_rejected(&carol);
    assert!(why.starts_with("Reason: ") && why.contains("signature"), "{why}");
}

/// S250: a thread of two handles that others write in is no conversation of these two.
#[test]
fn s250_a_new_conversation_joins_none_with_other_people() {
    let (_bed, queue, m) = with(|_, queue| {
        let head = json!({"id": "c", "from": "carol", "thread": "p2p/alice__bob"});
        queue.put("bob/inbox/new/c.md", &file(&head, "for bob only\n"));
    });
    m.ok("echo one > outbox/alice; echo two > outbox/alice; echo three > outbox/carol");
    let names = queue.names("bob/outbox/sent");
    let heads: Vec<_> =
        names.iter().map(|n| parsed(&queue.text(&format!("bob/outbox/sent/{n}"))).0).collect();
    let mut threads: Vec<_> = heads.iter().map(|h| h["thread"].as_str().unwrap()).collect();
    threads.sort_unstable();
    assert_eq!(threads, ["p2p/alice__bob-2", "p2p/alice__bob-2", "p2p/bob__carol"]);
}

/// S210: an invalid handle gives EINVAL, and a handle without a mailbox EHOSTUNREACH. msgfs never makes a mailbox.
/// Other kinds and priorities give EINVAL. A text that does not fit into a file gives EFBIG.
#[test]
fn s210_refused() {
    let (bed, queue, m) = with(|_, _| {});
    fs::write(bed.path("big"), "x".repeat(10 << 20)).unwrap();
    let big = format!("cat {} | tee outbox/alice > /dev/null", bed.path("big").display());
    for (script, errno) in [
        ("echo hi | tee outbox/Alice", "Invalid argument"),
        ("echo hi | tee outbox/dave", "No route to host"),
        ("printf 'Via: amq\\n\\nhi\\n' | tee outbox/dave", "No route to host"),
        ("printf 'Type: memo\\n\\nhi\\n' | tee outbox/alice", "Invalid argument"),
        ("printf 'Priority: high\\n\\nhi\\n' | tee outbox/alice", "Invalid argument"),
        (&big, "File too large"),
    ] {
        let out = m.sh(script);
        assert!(!out.ok() && out.stderr.contains(errno), "{script}: wanted {errno}, got {out:?}");
        assert!(m.ok("cat outbox/*.error").trim().len() > 20, "{script}");
        m.sh("rm -f outbox/*");
    }
    assert!(queue.names("bob/outbox/sent").is_empty() && queue.names("alice/inbox/new").is_empty());
    assert!(!is_there(&queue.at("dave")));
}

/// S211: an answer takes kind, subject, thread and refs from the message that it answers, and is later than that.
/// An answer that would have to go by another queue gives EXDEV with the reason.
#[test]
fn s211_answers() {
    let (_bed, queue, m) = with(|_, queue| {
        let asked = json!({
            "id": "q", "kind": "question", "subject": "which port?", "thread": "net", "refs": ["p"],
            "created": "2030-01-01T00:00:00Z", "to": ["bob", "carol"]
        });
        queue.put("bob/inbox/new/q.md", &file(&asked, "?\n"));
        let far = json!({"id": "far", "thread": "far", "reply_to": "alice@other"});
        queue.put("bob/inbox/new/far.md", &file(&far, "?\n"));
    });
    m.ok("echo 5432 > \"$(ls -d archive/2030-01-01/*.txt | sed 's/txt$/reply/')\"");
    soon("it is there", || queue.names("alice/inbox/new").len() == 1);
    let name_of = |place: &str| format!("{place}/{}", queue.names(place)[0]);
    let text = queue.text(&name_of("alice/inbox/new"));
    let (head, body) = parsed(&text);
    assert_eq!(
        (&head["to"], &head["thread"], &head["refs"], body),
        (&json!(["alice"]), &json!("net"), &json!(["p", "q"]), "5432\n")
    );
    assert_eq!(
        (&head["subject"], &head["kind"], &head["priority"]),
        (&json!("Re: which port?"), &json!("answer"), &json!("normal"))
    );
    assert_eq!(head["created"], "2030-01-01T00:00:00.001Z");
    assert!(queue.names("carol/inbox/new").is_empty(), "it goes to its writer");
    let reply = name("alice", "far").replace(".txt", ".reply");
    let out = m.sh(&format!("echo hi | tee archive/2026-04-24/{reply}"));
    assert!(!out.ok() && out.stderr.contains("cross-device"), "{out:?}");
    assert!(m.cat("status.txt").contains("another queue"), "the reason is told");
    assert_eq!(queue.names("bob/outbox/sent").len(), 1);
}

/// S212: msgfs is killed again and again while it sends and while the recipient claims. It leaves each message
/// exactly once, and no name is both in `new/` and in `cur/`.
#[test]
fn s212_killed() {
    let bed = Bed::new();
    let queue = super::Queue::new(&bed, &["alice", "bob"]);
    bed.config(&queue.store());
    let mut accepted = Vec::new();
    for round in 0..6 {
        let new = queue.at("alice/inbox/new");
        let mut drain = bed.command("bash");
        drain.args(["-c", "while :; do mv -n new/* cur/ 2>/dev/null; sleep 0.01; done"]);
        drain.current_dir(new.parent().unwrap());
        let drain = Running::start(drain, None).unwrap();
        accepted.extend(bed.killed_while_sending("bob", "alice", round));
        drop(drain);
    }
    let m = bed.mount("bob");
    let texts = |places: &[&str]| {
        let in_place = |place: &&str| {
            let path = (*place).to_owned();
            queue.names(place).into_iter().map(move |name| format!("{path}/{name}"))
        };
        let files = places.iter().flat_map(in_place);
        let mut all: Vec<String> =
            files.map(|path| parsed(&queue.text(&path)).1.trim_end().to_owned()).collect();
        all.sort();
        all
    };
    let theirs = || texts(&["alice/inbox/new", "alice/inbox/cur"]);
    soon("both sides agree", || texts(&["bob/outbox/sent"]) == theirs());
    let got = theirs();
    let mut once = got.clone();
    once.dedup();
    assert_eq!(once.len(), got.len(), "doubled");
    assert!(!accepted.is_empty());
    for text in &accepted {
        assert!(got.binary_search(text).is_ok(), "{text} was accepted and is lost");
    }
    let (new, cur) = (queue.names("alice/inbox/new"), queue.names("alice/inbox/cur"));
    assert!(new.iter().all(|name| !cur.contains(name)), "the pair that stops every reader");
    m.ok("echo last > outbox/alice");
    soon("nothing is left of the killed", || queue.names("alice/inbox/tmp").is_empty());
    let last = shown::all(&m, "sent").pop().unwrap();
    assert_eq!(Shown::get(&last, "To"), Some("alice"));
}
