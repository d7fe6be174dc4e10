//! The command line where there is no mount, and beside one: drafts, marks, and what is said.

use crate::common::fixtures::three;
use crate::common::samp::{append_raw, bodies, log, today};
use crate::common::{Bed, Out, run};

/// `msgfs ... --me bar`, with a text on standard input.
#[track_caller]
fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// What a command prints that has to end with 0 and say nothing on standard error.
#[track_caller]
fn quiet(bed: &Bed, args: &[&str]) -> String {
    let out = bar(bed, args, "");
    assert!(out.ok() && out.stderr.is_empty(), "{args:?}: {out:?}");
    out.stdout
}

/// S350: drafts and their notes are listed, read, removed and sent without a mount, and `status`
/// tells the refusal and no read-only mailbox.
#[test]
fn s350_drafts_without_a_mount() {
    let bed = Bed::new();
    let refused = bar(&bed, &["write", "outbox/z"], "Via: nowhere\n\nhi");
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "z\nz.error\n");
    assert!(quiet(&bed, &["cat", "outbox/z.error"]).contains("nowhere"));
    assert_eq!(quiet(&bed, &["cat", "outbox/z"]), "Via: nowhere\n\nhi");
    let status = quiet(&bed, &["status"]);
    assert!(!status.contains("read-only") && status.contains("Z z: Via: there is no"), "{status}");
    quiet(&bed, &["rm", "outbox/z", "outbox/z.error"]);
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "");
    assert!(bar(&bed, &["write", "outbox/.d"], "in the making").ok());
    assert!(!log(&bed.store, "bar").exists());
    quiet(&bed, &["mv", "outbox/.d", "outbox/foo"]);
    assert_eq!(bodies(&bed.store, "bar"), ["in the making"]);
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "");
    assert_eq!(bar(&bed, &["rm", "archive"], "").code(), Some(1));
}

/// S350: the same beside a mount.
#[test]
fn s350_drafts_beside_a_mount() {
    let bed = Bed::new();
    let recs = three(&bed);
    let m = bed.mount("bar");
    assert!(bar(&bed, &["write", "outbox/.d"], "in the making").ok());
    assert_eq!(quiet(&bed, &["ls", "outbox"]), ".d\n");
    quiet(&bed, &["mv", "outbox/.d", "threads/plan/"]);
    quiet(&bed, &["mv", "threads/plan/.d", "threads/plan/answer"]);
    assert_eq!(bodies(&bed.store, "bar"), ["in the making"]);
    quiet(&bed, &["rm", &format!("inbox/{}", recs[0].name(0))]);
    m.inbox_becomes(&[&recs[1].name(0), &recs[2].name(0)]);
    quiet(&bed, &["mv", &recs[0].archived(0), "inbox"]);
    assert_eq!(m.ls("inbox").len(), 3);
}

/// S351: `mark --all` marks what is in `inbox/`, with and without a mount.
#[test]
fn s351_mark_all() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let recs = three(&bed);
        let m = mounted.then(|| bed.mount("bar"));
        assert_eq!(bar(&bed, &["mark"], "").code(), Some(2));
        let out = bar(&bed, &["mark", "--all"], "");
        assert!(out.ok() && out.stderr == "3 messages marked as read\n", "{out:?}");
        assert_eq!(quiet(&bed, &["ls", "inbox"]), "");
        quiet(&bed, &["mv", &recs[1].archived(0), "inbox/"]);
        assert_eq!(quiet(&bed, &["ls", "inbox"]), recs[1].name(0) + "\n");
        drop(m);
    }
}

/// S352: what was refused on the way in is in `rejected/` and `status.txt`, and no command says it
/// again.
#[test]
fn s352_garbage_is_not_told_by_every_command() {
    let bed = Bed::new();
    three(&bed);
    append_raw(&log(&bed.store, "eve"), "garbage\n");
    assert_eq!(quiet(&bed, &["ls", "rejected"]).lines().count(), 1);
    assert!(quiet(&bed, &["status"]).contains("1 rejected"));
    quiet(&bed, &["inbox"]);
    // Nor does one that is refused say why in two ways.
    let refused = bar(&bed, &["write", "outbox/foo"], "To: a b\n\nx");
    assert_eq!((refused.code(), refused.stderr.lines().count()), (Some(1), 1), "{refused:?}");
}

/// S353: the last refusal has its time, and goes when that draft was sent or removed.
#[test]
fn s353_the_last_refusal_has_a_time_and_goes() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let last = || {
        let status = m.cat("status.txt");
        let line = status.lines().find_map(|l| l.strip_prefix("last refusal: "));
        line.unwrap().to_owned()
    };
    assert_eq!(last(), "none");
    for (draft, ends) in [
        ("foo", "echo hi > outbox/foo"),
        ("foo", "rm outbox/foo"),
        ("foo", "mv outbox/foo outbox/foo2 2>/dev/null; echo hi > outbox/foo2"),
    ] {
        m.sh(&format!("printf 'Via: nowhere\\n\\nhi' > outbox/{draft}"));
        let said = last();
        let (time, rest) = said.split_once(' ').unwrap();
        let day = today();
        assert!(time.starts_with(&day) && time.len() == 24 && time.ends_with('Z'), "{said}");
        assert!(rest.starts_with("foo: Via:"), "{said}");
        m.ok(ends);
        assert_eq!(last(), "none", "{ends}");
    }
    // Another draft's success says nothing of this one.
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/foo");
    m.ok("echo hi > outbox/carol");
    assert!(last().contains("foo: Via:"));
}

/// S354: `rm outbox/*` ends with 0 where drafts have their notes beside them.
#[test]
fn s354_rm_of_everything_in_the_outbox() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.sh("for n in a b c; do printf 'Via: nowhere\\n\\nhi' > outbox/$n; done");
    assert_eq!(m.ls("outbox").len(), 6);
    m.ok("rm outbox/*");
    assert!(m.ls("outbox").is_empty());
    // The note of a new refusal is there as ever.
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/a");
    assert_eq!(m.ls("outbox"), ["a", "a.error"]);
    m.ok("rm outbox/a.error && test -e outbox/a && rm outbox/a");
    assert!(!m.sh("rm outbox/a.error").ok(), "nobody has asked for both");
}
