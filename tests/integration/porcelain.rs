//! `msgfs send`, `inbox`, `reply`, `wait`.

use std::time::Duration;

use crate::common::fixtures::three;
use crate::common::proc::Running;
use crate::common::samp::{self, T0, member, only, read_log};
use crate::common::{Bed, Out, PATIENCE, run};

fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// S92: `send` sends standard input, signed, with and without a mount.
#[test]
fn s92_send() {
    let bed = Bed::new();
    let out = bar(&bed, &["send", "foo"], "hello foo\n");
    assert!(out.ok(), "{out:?}");
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("foo", "hello foo"));
    assert!(r.contains_key("sig"));
    let m = bed.mount("bar");
    let out = bar(&bed, &["send", "foo"], "beside the mount\n");
    assert!(out.ok(), "{out:?}");
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 2);
    assert_eq!(read_log(&bed.store, "bar").len(), 2);
    let out = bar(&bed, &["send", "bad name"], "x");
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert_eq!(bar(&bed, &["send"], "x").code(), Some(2));
}

/// S92: `inbox` shows the unread messages.
#[test]
fn s92_inbox() {
    let bed = Bed::new();
    let recs = three(&bed);
    let out = bar(&bed, &["inbox"], "");
    assert!(out.ok(), "{out:?}");
    for r in &recs {
        assert!(out.stdout.contains(&r.body) && out.stdout.contains(&r.from), "{out:?}");
    }
}

/// S92: `reply` answers the newest message to me and inherits its thread.
#[test]
fn s92_reply() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "plan", "old", T0);
    let newest = samp::append(&bed.store, "carol", "bar", "lunch", "newest", T0 + 5);
    samp::append(&bed.store, "foo", "zed", "plan", "not to bar", T0 + 9);
    let out = bar(&bed, &["reply"], "to carol\n");
    assert!(out.ok(), "{out:?}");
    let r = only(&bed.store, "bar");
    assert_eq!(
        (member(&r, "to"), member(&r, "thread"), member(&r, "body")),
        ("carol", "lunch", "to carol")
    );
    assert_eq!(member(&r, "re"), newest.id);
    // A tie between senders is refused and both are named.
    samp::append(&bed.store, "foo", "bar", "plan", "tie", T0 + 5);
    let out = bar(&bed, &["reply"], "to whom?\n");
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.contains("carol") && out.stderr.contains("foo"), "{out:?}");
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
    let out = run(bed.msgfs(["reply", "--me", "lonely"]), Some(b"x"));
    assert_eq!(out.code(), Some(1), "{out:?}");
}

/// S92: `wait` returns when there is unread mail.
#[test]
fn s92_wait() {
    let bed = Bed::new();
    let mut waiting = Running::start(bed.msgfs(["wait", "--me", "bar"]), None).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.running(), "it blocks");
    let r = samp::append(&bed.store, "foo", "bar", "t", "for bar", T0);
    let out = waiting.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout.contains(&r.name(0)), "{out:?}");
    assert!(bar(&bed, &["wait"], "").ok(), "at once when there already is some");
    assert_eq!(bed.mount("bar").ls("inbox"), [r.name(0)]);
}

/// S388: `send --new` takes the place of the draft that was refused before, with and without a mount.
#[test]
fn s388_send_new_replaces_the_refused_draft() {
    let bed = Bed::new();
    samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        let out = bar(&bed, &["send", "bobb", "hi"], "");
        assert!(!out.ok() && out.stderr.contains("--new"), "{out:?}");
        assert!(bar(&bed, &["ls", "outbox"], "").stdout.contains("bobb.error"));
        assert!(bar(&bed, &["send", "--new", "bobb", "hi"], "").ok());
        assert_eq!(bar(&bed, &["ls", "outbox"], "").stdout, "");
        assert!(bar(&bed, &["status"], "").stdout.contains("last refusal: none"));
        assert_eq!(member(&only(&bed.store, "bar"), "to"), "bobb");
        drop(m);
        std::fs::remove_file(samp::log(&bed.store, "bar")).unwrap();
        let _ = std::fs::remove_dir_all(bed.path("cache/msgfs"));
    }
}
