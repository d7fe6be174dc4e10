//! The mail that rings, by the keys `bell` and `muted`.

use std::fs;

use serde_json::json;

use super::waiter::{LIMIT, soon_waits};
use super::{SECRET, bed, deliver, hook, payload, says};
use crate::amq::Queue;
use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, run};

/// Puts a message from somebody to several agents into the store. It may answer another message.
fn write_to(bed: &Bed, from: &str, to: &[&str], n: i64, re: Option<&Rec>) {
    for one in to {
        let rec = Rec::new(from, one, SECRET, &format!("{SECRET} {n}"), T0 + n);
        let mut extra = vec![("rcpt", json!(to))];
        extra.extend(re.map(|re| ("re", json!(re.id))));
        samp::append_raw(&samp::log(&bed.store, from), rec.line_with(&extra));
    }
}

/// Sets the configuration of alice.
fn configure(bed: &Bed, text: &str) {
    bed.config(&format!("me = \"alice\"\n{text}"));
}

fn prompt(bed: &Bed) -> String {
    says(bed, "prompt", "codex", &payload("codex", "prompt"))
}

/// S965: with `bell = "direct"`, mail to me alone rings, and an answer to my mail. Other mail stays unread in silence,
/// and the next ring counts it.
#[test]
fn s965_only_what_is_meant_for_me_rings() {
    let bed = bed(0);
    configure(&bed, "bell = \"direct\"\n");
    let mine = samp::append(&bed.store, "alice", "bob", SECRET, SECRET, T0);
    write_to(&bed, "bob", &["alice", "carol"], 1, None);
    assert_eq!(prompt(&bed), "");
    assert_eq!(prompt(&bed), "");
    write_to(&bed, "bob", &["alice", "carol"], 2, Some(&mine));
    let said = prompt(&bed);
    assert!(said.contains("msgfs: 2 unread messages for alice, 1 new, from bob: "), "{said}");
    deliver(&bed, "carol", 3);
    let said = prompt(&bed);
    assert!(said.contains("msgfs: 3 unread messages for alice, 1 new, from carol: "), "{said}");
    let listed = bed.msgfs_out(&["ls", "inbox"]).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
}

/// S965: the start of a session is silent if no unread mail rings.
#[test]
fn s965_a_start_is_silent_if_no_mail_rings() {
    let bed = bed(0);
    configure(&bed, "bell = \"direct\"\n");
    let start = |bed: &Bed| says(bed, "session-start", "codex", &payload("codex", "session-start"));
    write_to(&bed, "bob", &["alice", "carol"], 1, None);
    assert_eq!(start(&bed), "");
    deliver(&bed, "carol", 2);
    let said = start(&bed);
    assert!(said.contains("msgfs: 2 unread messages for alice, 1 new, from carol: "), "{said}");
    let said = start(&bed);
    assert!(said.contains("msgfs: 2 unread messages for alice: "), "{said}");
}

/// S966: with `bell = "urgent"`, only mail of high priority rings.
#[test]
fn s966_only_urgent_mail_rings() {
    let bed = bed(0);
    let queue = Queue::new(&bed, &["alice", "bob"]);
    configure(&bed, &format!("bell = \"urgent\"\n{}", queue.store()));
    for (id, priority, rings) in [
        ("a", Some("normal"), false),
        ("b", Some("low"), false),
        ("c", None, false),
        ("d", Some("urgent"), true),
    ] {
        let mut head = json!({
            "schema": 1, "id": id, "from": "bob", "to": ["alice"], "thread": "p2p/alice__bob",
            "created": "2026-04-24T17:42:03.25Z", "kind": "status",
        });
        if let Some(priority) = priority {
            head["priority"] = priority.into();
        }
        let file = queue.root.join(format!("agents/alice/inbox/new/{id}.md"));
        fs::write(file, format!("---json\n{head:#}\n---\n{SECRET}\n")).unwrap();
        assert_eq!(!prompt(&bed).is_empty(), rings, "{id}");
    }
}

/// S967: a wrong word is refused with its line and the nearest word, and `urgent` where no store has priorities.
#[test]
fn s967_a_bell_that_cannot_ring_is_refused() {
    for (text, line, word) in [
        ("bell = \"dirct\"\n", 2, "direct"),
        ("\nbell = 3\n", 3, "text"),
        ("bel = \"all\"\n", 2, "bell"),
        ("mutd = []\n", 2, "muted"),
        ("muted = \"bob\"\n", 2, "list of senders and threads"),
        ("muted = [\"bob\", \"\"]\n", 2, "cannot be empty"),
        ("bell = \"urgent\"\n", 2, "no store here has priorities"),
        ("bell = \"urgent\"\n[[store]]\nkind = \"samp\"\n", 2, "\"amp\", \"amq\""),
    ] {
        let bed = bed(1);
        configure(&bed, text);
        let out = bed.msgfs_out(&["ls", "inbox"]);
        assert!(!out.ok(), "{text:?}: {out:?}");
        let place = format!("config.toml:{line}: ");
        assert!(out.stderr.contains(&place) && out.stderr.contains(word), "{text:?}: {out:?}");
        // A hook is silent, and status says why.
        assert_eq!(prompt(&bed), "");
        let status = bed.msgfs_out(&["hook", "status"]).stdout;
        assert!(status.contains("no mail rings, because the configuration is wrong: "), "{status}");
    }
}

/// S968: mail of muted senders, and of muted threads, never rings.
#[test]
fn s968_muted_mail_never_rings() {
    let bed = bed(1);
    configure(&bed, "muted = [\"bob\", \"night builds\", \"a%20b\"]\n");
    assert_eq!(prompt(&bed), "");
    for (n, thread) in [(2, "night builds"), (3, "a b")] {
        samp::append(&bed.store, "carol", "alice", thread, SECRET, T0 + n);
        assert_eq!(prompt(&bed), "", "{thread}");
    }
    deliver(&bed, "carol", 4);
    let said = prompt(&bed);
    assert!(said.contains("msgfs: 4 unread messages for alice, 1 new, from carol: "), "{said}");
    configure(&bed, "");
    assert_eq!(prompt(&bed), "", "what was muted does not ring later");
}

/// S969: with `bell = "off"` nothing rings and no waiter stays. `hook status` says how loud the bell is.
#[test]
fn s969_the_bell_can_be_off_and_status_says_so() {
    let bed = bed(1);
    let status = || bed.msgfs_out(&["hook", "status"]).stdout;
    assert!(status().contains("\nbell = \"all\": all mail rings\n"), "{}", status());
    configure(&bed, "bell = \"off\"\n");
    assert!(status().contains("\nbell = \"off\": no mail rings\n"), "{}", status());
    for event in ["session-start", "prompt", "stop"] {
        assert_eq!(says(&bed, event, "codex", &payload("codex", event)), "");
    }
    let line = "exec msgfs hook run stop --for claude-code --wait";
    let told = payload("claude-code", "stop").to_string();
    let out = run(hook(&bed, line), Some(told.as_bytes()));
    assert!(out.ok() && out.said().is_empty(), "{out:?}");
    configure(&bed, "bell = \"direct\"\nmuted = [\"bob\", \"builds\"]\n");
    let said = "bell = \"direct\": mail to me alone and answers to my mail ring, except that of bob, builds\n";
    assert!(status().contains(said), "{}", status());
}

/// S968: a waiter does not wake a session for mail that does not ring, and a change of the configuration holds at once.
#[test]
fn s968_a_waiter_sleeps_through_muted_mail() {
    let bed = bed(0);
    configure(&bed, "muted = [\"bob\"]\n");
    let line = "exec msgfs hook run stop --for claude-code --wait";
    let mut waiter = soon_waits(&bed, hook(&bed, line), &payload("claude-code", "stop"));
    deliver(&bed, "bob", 1);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(waiter.running());
    deliver(&bed, "carol", 2);
    let out = waiter.finish(LIMIT).unwrap();
    assert_eq!(out.code(), Some(10), "{out:?}");
    assert!(out.stderr.contains("2 unread messages for alice, 1 new, from carol: "), "{out:?}");
}
