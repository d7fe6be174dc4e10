//! `ls`, `cat`, `write`, `check`, `status`, `doctor` and the exit codes.

use crate::common::fixtures::three;
use crate::common::samp::{self, T0, append_raw, bodies, log, member, only};
use crate::common::{Bed, Out, run};

/// Runs `msgfs ... --me bar` with a text on standard input.
#[track_caller]
fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// S91: without any mount there are the same names and bytes as through a mount.
#[test]
fn s91_ls_and_cat() {
    let bed = Bed::new();
    let recs = three(&bed);
    let ls = |p: &str| {
        let out = bar(&bed, &["ls", p], "");
        assert!(out.ok(), "{p}: {out:?}");
        let mut names: Vec<_> = out.stdout.lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(ls("inbox"), [recs[0].name(0), recs[1].name(0), recs[2].name(0)]);
    assert_eq!(ls("threads"), ["lunch", "plan"]);
    let out = bar(&bed, &["cat", &recs[0].archived(0)], "");
    assert!(out.ok() && out.stdout == recs[0].file("none"), "{out:?}");
    let (root, transcript) = (ls(""), bar(&bed, &["cat", "transcripts/plan.txt"], "").stdout);
    let m = bed.mount("bar");
    assert_eq!(root, m.ls("."));
    assert_eq!(transcript, m.cat("transcripts/plan.txt"));
}

/// S91: `cat inbox/X` marks as cat does in the mount. Listing does not.
#[test]
fn s91_cat_marks() {
    let bed = Bed::new();
    let recs = three(&bed);
    bar(&bed, &["ls", "inbox"], "");
    let out = bar(&bed, &["cat", &format!("inbox/{}", recs[0].name(0))], "");
    assert_eq!(out.stdout, recs[0].file("none"), "{out:?}");
    bar(&bed, &["cat", &recs[1].archived(0)], "");
    assert_eq!(bed.mount("bar").ls("inbox"), [recs[1].name(0), recs[2].name(0)]);
}

/// S91: `write` sends its standard input. A refusal has exit code 1 and prints the reason.
#[test]
fn s91_write() {
    let bed = Bed::new();
    three(&bed);
    let out = bar(&bed, &["write", "outbox/foo"], "from the command line\n");
    assert!(out.ok(), "{out:?}");
    assert_eq!(bodies(&bed.store, "bar"), ["from the command line"]);
    let out = bar(&bed, &["write", "threads/lunch/answer"], "\u{e9}\n");
    assert!(out.ok(), "{out:?}");
    assert_eq!(member(&samp::read_log(&bed.store, "bar")[1], "to"), "carol");
    for (path, text, word) in [
        ("outbox/bad name", "x", "name"),
        ("archive/x", "x", "outbox"),
        ("outbox/foo", "To: a b\n\nx", "a b"),
    ] {
        let out = bar(&bed, &["write", path], text);
        assert_eq!(out.code(), Some(1), "{path}: {out:?}");
        assert!(out.stderr.contains(word), "{path}: {out:?}");
    }
    let mut c = bed.msgfs(["write", "outbox/foo", "--me", "bar"]);
    c.env("LC_ALL", "C");
    let out = run(c, Some(b"caf\xe9"));
    assert!(out.code() == Some(1) && out.stderr.contains("UTF-8"), "{out:?}");
    assert_eq!(samp::read_log(&bed.store, "bar").len(), 2);
}

/// S91: an unknown path has exit code 1. The error names the path without letting it drive the terminal.
#[test]
fn s91_unknown_path() {
    let bed = Bed::new();
    for args in [["cat", "inbox/no\x1b[31mthing"], ["ls", "threads/nothing"]] {
        let out = bar(&bed, &args, "");
        assert_eq!(out.code(), Some(1), "{out:?}");
        assert!(out.stderr.contains("thing") && !out.stderr.contains('\x1b'), "{out:?}");
    }
}

/// S91: the commands work beside a mount of the same me.
#[test]
fn s91_beside_a_mount() {
    let bed = Bed::new();
    let recs = three(&bed);
    let m = bed.mount("bar");
    let out = bar(&bed, &["ls", "inbox"], "");
    assert!(out.ok() && out.stdout.contains(&recs[0].name(0)), "{out:?}");
    let out = bar(&bed, &["write", "outbox/foo"], "beside\n");
    assert!(out.ok(), "{out:?}");
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 1);
    assert_eq!(member(&only(&bed.store, "bar"), "body"), "beside");
}

/// S1402: a violation is a failure, also if nobody reads the line about it.
#[test]
fn s1402_check_with_a_closed_output() {
    let bed = Bed::new();
    append_raw(&log(&bed.store, "foo"), "junk\n");
    let closed = "exec {out}> >(:); wait $!";
    let out =
        bed.sh(&format!("{closed}; {} --me bar check >&$out", crate::common::binary().display()));
    assert_eq!(out.code(), Some(1), "{out:?}");
}

/// S93: a clean store gives exit code 0. Broken rules give exit code 1 and one line each with file and line.
#[test]
fn s93_check() {
    let bed = Bed::new();
    three(&bed);
    let out = bar(&bed, &["check"], "");
    assert_eq!(out.code(), Some(0), "{out:?}");
    append_raw(&log(&bed.store, "foo"), "junk\n");
    let mut wrong = samp::Rec::new("foo", "bar", "t", "id does not match", T0 + 9);
    wrong.id = "0000000000000000".into();
    append_raw(&log(&bed.store, "foo"), wrong.line());
    let key = samp::key(1);
    let r = samp::Rec::new("foo", "bar", "t", "signed", T0 + 10);
    append_raw(
        &log(&bed.store, "foo"),
        r.signed_line(&key, &[]).replace("\"sig\": \"", "\"sig\": \"AAAA"),
    );
    let out = bar(&bed, &["check"], "");
    assert_eq!(out.code(), Some(1), "{out:?}");
    for line in [3, 4, 5] {
        let place = format!("log-foo.jsonl:{line}");
        assert_eq!(
            out.said().lines().filter(|l| l.contains(&place)).count(),
            1,
            "{place} in {out:?}"
        );
    }
    let out = bar(&bed, &["check", "samp", "--json"], "");
    assert_eq!(out.code(), Some(1));
    let values: Vec<serde_json::Value> = serde_json::Deserializer::from_str(&out.stdout)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let text = serde_json::to_string(&values).unwrap();
    assert!(text.contains("log-foo.jsonl") && text.contains("\"line\":4"), "{text}");
}

/// S93: a usage error exits with 2, help and version with 0.
#[test]
fn s93_usage() {
    let bed = Bed::new();
    for args in [&["frobnicate"][..], &["mount", "--no-such-flag"], &["umount"], &[]] {
        assert_eq!(bed.msgfs_out(args).code(), Some(2), "{args:?}");
    }
    for args in [&["--help"][..], &["--version"], &["mount", "--help"], &["help", "send"]] {
        let out = bed.msgfs_out(args);
        assert!(out.ok() && !out.stdout.is_empty(), "{args:?}: {out:?}");
    }
    let out = bed.msgfs_out(&["check", "nosuchstore", "--me", "bar"]);
    assert!(matches!(out.code(), Some(1 | 2)) && out.stderr.contains("nosuchstore"), "{out:?}");
}

/// S93: status and doctor say something useful with and without a mount. man and completions print.
#[test]
fn s93_other_commands() {
    let bed = Bed::new();
    three(&bed);
    let out = bar(&bed, &["status"], "");
    assert!(out.ok() && out.stdout.contains("bar"), "{out:?}");
    let m = bed.mount("bar");
    let out = bar(&bed, &["status"], "");
    assert!(out.ok() && out.stdout.contains('3'), "{out:?}");
    m.ok("ls inbox");
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    assert!(matches!(out.code(), Some(0 | 1)) && !out.said().is_empty(), "{out:?}");
    for shell in ["bash", "zsh", "fish"] {
        let out = bed.msgfs_out(&["completions", shell]);
        assert!(out.ok() && out.stdout.contains("msgfs"), "{out:?}");
    }
    let out = bed.msgfs_out(&["man"]);
    assert!(out.ok() && out.stdout.contains(".TH"), "{out:?}");
}

/// S93: `status` and every command that only looks mark nothing.
#[test]
fn s91_looking_marks_nothing() {
    let bed = Bed::new();
    let recs = three(&bed);
    for args in [&["status"][..], &["check"], &["ls", "inbox"], &["cat", "status.txt"], &["doctor"]]
    {
        bar(&bed, args, "");
    }
    let names: Vec<_> = recs.iter().map(|r| r.name(0)).collect();
    assert_eq!(bed.mount("bar").ls("inbox"), names);
}
