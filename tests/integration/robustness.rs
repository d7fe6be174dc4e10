//! Odd things that other programs may leave in a store.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::common::samp::{self, Rec, T0, append, append_raw, log, read_log};
use crate::common::{Bed, Mount, need_root, run, soon};
use crate::gone::{Kind, all};

/// Makes a store with one good message from zed, mounted for bar after `spoil`.
#[track_caller]
fn with(spoil: impl FnOnce(&Bed)) -> (Bed, Mount, Rec) {
    let bed = Bed::new();
    let good = append(&bed.store, "zed", "bar", "t", "good", T0 + 50);
    spoil(&bed);
    let m = bed.mount("bar");
    (bed, m, good)
}

fn rejected(m: &Mount) -> Vec<String> {
    m.ls("rejected").iter().map(|n| m.cat(&format!("rejected/{n}"))).collect()
}

/// S81: each line that is no record is shown with reason and line number. The good lines around it are delivered.
#[test]
fn s81_malformed_lines() {
    let lines = [
        "not json",
        "[]",
        "5",
        "null",
        "\"x\"",
        "{}",
        "{\"ts\": 1,}",
        "{'a': 1}",
        r#"{"ts":1,"from":"foo","to":"bar","thread":"t"}"#,
        r#"{"ts":1,"from":"foo","to":"bar","thread":"t","body":7}"#,
        r#"{"ts":1,"from":"foo","to":"bar","thread":5,"body":"x"}"#,
        r#"{"ts":"1","from":"foo","to":"bar","thread":"t","body":"x"}"#,
        r#"{"ts":NaN,"from":"foo","to":"bar","thread":"t","body":"x"}"#,
        r#"{"ts":null,"from":"foo","to":"bar","thread":"t","body":"x"}"#,
        r#"{"ts":1,"from":"foo","to":["bar"],"thread":"t","body":"x"}"#,
    ];
    let (_bed, m, good) = with(|bed| {
        for l in lines {
            append_raw(&log(&bed.store, "foo"), format!("{l}\n"));
        }
        append_raw(&log(&bed.store, "foo"), "\n   \n\r\n");
        append(&bed.store, "foo", "bar", "t", "after the junk", T0 + 60);
    });
    let after = Rec::new("foo", "bar", "t", "after the junk", T0 + 60);
    assert_eq!(m.ls("inbox"), [good.name(0), after.name(0)]);
    let all = rejected(&m);
    assert_eq!(all.len(), lines.len(), "blank lines are no records");
    for (i, line) in lines.iter().enumerate() {
        let n = i + 1;
        let mine = all.iter().find(|t| {
            let source = t.lines().nth(1).unwrap_or_default();
            source.starts_with("Source: raw/samp/log-foo.jsonl")
                && source.split(|c: char| !c.is_ascii_digit()).any(|w| w == n.to_string())
        });
        let text = mine.unwrap_or_else(|| panic!("line {n} ({line}) is not in {all:#?}"));
        let reason = text.lines().next().unwrap();
        assert!(reason.starts_with("Reason: ") && reason.len() > 15, "{text}");
    }
    for name in m.ls("rejected") {
        let hash = name.strip_prefix("log-foo-").and_then(|s| s.strip_suffix(".txt"));
        let hex = hash.is_some_and(|h| h.len() == 8 && h.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(hex, "{name}");
    }
}

/// S81: a record under a foreign name is not delivered, suppresses nothing, and is shown.
#[test]
fn s81_foreign_record() {
    let (_bed, m, good) = with(|bed| {
        let r = Rec::new("foo", "bar", "t", "genuine", T0);
        append_raw(&log(&bed.store, "foo"), r.line());
        // A log that sorts earlier claims the same id, under foo's name and under its own.
        append_raw(&log(&bed.store, "aaa"), Rec { body: "forged".into(), ..r.clone() }.line());
    });
    let genuine = Rec::new("foo", "bar", "t", "genuine", T0);
    assert_eq!(m.ls("inbox"), [genuine.name(0), good.name(0)]);
    assert_eq!(m.cat(&genuine.archived(0)), genuine.file("none"));
    let all = rejected(&m);
    assert_eq!(all.len(), 1);
    assert!(all[0].contains("forged") && all[0].contains("From: foo"), "{}", all[0]);
    assert!(all[0].lines().nth(1).unwrap().contains("log-aaa.jsonl"));
}

/// S81: rejected texts drive no terminal either.
#[test]
fn s81_rejected_is_harmless() {
    let (_bed, m, _) =
        with(|bed| append_raw(&log(&bed.store, "foo"), "\x1b]0;x\x07\u{9b}2J {bad\n"));
    let all = rejected(&m).concat() + &m.cat("status.txt");
    assert!(!all.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{all:?}");
}

/// S81: one bad line among ten thousand, nesting, huge numbers and huge keys do no harm.
#[test]
fn s81_bombs() {
    let (_bed, m, good) = with(|bed| {
        let mut text = String::new();
        text += &format!("{}1{}\n", "[".repeat(100_000), "]".repeat(100_000));
        text += &format!(
            "{{\"ts\":1{},\"from\":\"foo\",\"to\":\"bar\",\"thread\":\"t\",\"body\":\"x\"}}\n",
            "0".repeat(5000)
        );
        text += &format!("{{\"{}\":1}}\n", "k".repeat(2_000_000));
        let deep = format!("{}0{}", "[".repeat(900), "]".repeat(900));
        text += &Rec::new("foo", "bar", "t", "deep", T0)
            .line()
            .replace("}\n", &format!(", \"x\": {deep}}}\n"));
        text += &Rec::new("foo", "bar", "t", "last", T0 + 1).line();
        append_raw(&log(&bed.store, "foo"), text);
    });
    let deep = Rec::new("foo", "bar", "t", "deep", T0);
    let last = Rec::new("foo", "bar", "t", "last", T0 + 1);
    assert_eq!(m.ls("inbox"), [deep.name(0), last.name(0), good.name(0)]);
    rejected(&m);
}

/// S82: half a record is no message. When the rest arrives it is one, and rejected/ is empty again.
#[test]
fn s82_torn_tail_completes() {
    let r = Rec::new("foo", "bar", "t", "caf\u{e9} in two pieces", T0);
    let line = r.line().into_bytes();
    let cut = line.iter().position(|&b| b == 0xc3).unwrap() + 1;
    let (bed, m, good) = with(|bed| append_raw(&log(&bed.store, "foo"), &line[..cut]));
    assert_eq!(m.ls("inbox"), [good.name(0)]);
    append_raw(&log(&bed.store, "foo"), &line[cut..]);
    m.inbox_becomes(&[&r.name(0), &good.name(0)]);
    soon("rejected/ is empty", || m.ls("rejected").is_empty());
    assert!(m.cat(&r.archived(0)).contains("caf\u{e9} in two pieces"));
}

/// S82: half a record is not reported as long as its writer may still be writing. Then it is reported, although
/// nothing happens any more.
#[test]
fn s82_half_a_line_has_a_second() {
    let half = br#"{"id": "half"#;
    let (bed, m, good) = with(|_| {});
    append_raw(&log(&bed.store, "foo"), half);
    let next = append(&bed.store, "baz", "bar", "t", "next", T0 + 1);
    m.inbox_becomes(&[&next.name(0), &good.name(0)]);
    let out = bed.msgfs_out(&["check", "--me", "bar"]);
    assert!(out.ok() && m.ls("rejected").is_empty(), "{out:?}");
    soon("it is told of", || m.ls("rejected").len() == 1);
    assert!(m.ok("cat rejected/*").contains("not complete yet"));
}

/// S82: a complete last line without newline is delivered once.
#[test]
fn s82_unterminated() {
    let r = Rec::new("foo", "bar", "t", "no newline yet", T0);
    let (bed, m, good) = with(|bed| append_raw(&log(&bed.store, "foo"), r.line().trim_end()));
    assert_eq!(m.ls("inbox"), [r.name(0), good.name(0)]);
    append_raw(&log(&bed.store, "foo"), "\n");
    let next = append(&bed.store, "foo", "bar", "t", "next", T0 + 1);
    m.inbox_becomes(&[&r.name(0), &next.name(0), &good.name(0)]);
}

/// S83: a FIFO, a folder, symlinks and a socket in the place of logs are skipped and reported.
#[test]
fn s83_not_files() {
    let (bed, m, good) = with(|bed| {
        assert!(bed.sh(&format!("mkfifo {}", log(&bed.store, "fifo").display())).ok());
        fs::create_dir(log(&bed.store, "folder")).unwrap();
        fs::write(bed.store.join("target.txt"), Rec::new("link", "bar", "t", "x", T0).line())
            .unwrap();
        symlink("target.txt", log(&bed.store, "link")).unwrap();
        symlink("nowhere", log(&bed.store, "dangling")).unwrap();
        symlink("/dev/zero", log(&bed.store, "zero")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(log(&bed.store, "socket")).unwrap());
    });
    assert_eq!(m.ls("inbox"), [good.name(0)]);
    let status = m.cat("status.txt");
    for alias in ["fifo", "folder", "link", "dangling", "zero", "socket"] {
        assert!(status.contains(&format!("log-{alias}.jsonl")), "{alias} is not in\n{status}");
    }
    m.ok("cat raw/samp/* > /dev/null");
    // The same holds while mounted, and when one of them turns into a real log.
    assert!(bed.sh(&format!("mkfifo {}", log(&bed.store, "late").display())).ok());
    fs::remove_file(log(&bed.store, "fifo")).unwrap();
    let real = append(&bed.store, "fifo", "bar", "t", "now a file", T0 + 60);
    m.inbox_becomes(&[&good.name(0), &real.name(0)]);
}

/// S83: if my own log is a symlink, msgfs never writes through it.
#[test]
fn s83_own_log_is_a_symlink() {
    let (bed, m, _) = with(|bed| {
        fs::write(bed.path("precious"), "precious\n").unwrap();
        symlink(bed.path("precious"), log(&bed.store, "bar")).unwrap();
    });
    let out = m.sh("echo x | tee outbox/zed");
    assert!(!out.ok(), "{out:?}");
    assert_eq!(fs::read(bed.path("precious")).unwrap(), b"precious\n");
}

/// S83: if `.seen-bar` is a symlink, msgfs never writes through it either.
#[test]
fn s83_seen_is_a_symlink() {
    let (bed, m, good) = with(|bed| {
        fs::write(bed.path("precious"), "precious\n").unwrap();
        symlink(bed.path("precious"), bed.store.join(".seen-bar")).unwrap();
        symlink(bed.path("precious"), bed.store.join(".seen-bar.tmp")).unwrap();
        symlink(bed.path("precious"), bed.store.join(".seen-bar.1.tmp")).unwrap();
    });
    m.cat(&format!("inbox/{}", good.name(0)));
    m.inbox_becomes(&[]);
    m.umount();
    assert_eq!(fs::read(bed.path("precious")).unwrap(), b"precious\n");
}

/// S83: a log that cannot be read is reported and hides nothing. It is read when it can be.
#[test]
fn s83_unreadable() {
    need_root();
    let bed = Bed::new();
    let good = append(&bed.store, "zed", "bar", "t", "good", T0 + 50);
    let secret = append(&bed.store, "foo", "bar", "t", "locked", T0);
    let run_ok = |cmd: &str| assert!(bed.sh(cmd).ok(), "{cmd}");
    let path = log(&bed.store, "foo");
    run_ok(&format!("chmod 0 {0}; chown 65534 {0}", path.display()));
    let m = bed.mount_without_override("bar");
    assert_eq!(m.ls("inbox"), [good.name(0)]);
    assert!(m.cat("status.txt").contains("log-foo.jsonl"));
    run_ok(&format!("chmod 644 {}", path.display()));
    m.inbox_becomes(&[&secret.name(0), &good.name(0)]);
}

/// S84: bytes that are not UTF-8 cost one character each, and neither the record nor the log.
#[test]
fn s84_invalid_utf8() {
    let (_bed, m, good) = with(|bed| {
        append_raw(&log(&bed.store, "foo"), b"caf\xe9\n");
        append_raw(&log(&bed.store, "foo"), b"{\"ts\":1777052523,\"from\":\"foo\",\"to\":\"bar\",\"thread\":\"t\",\"body\":\"a\xffb\"}\n");
    });
    let shown = Rec::new("foo", "bar", "t", "a\u{fffd}b", T0);
    assert_eq!(m.ls("inbox"), [shown.name(0), good.name(0)]);
    assert!(m.cat(&shown.archived(0)).contains("\n\na\u{fffd}b\n"));
    assert_eq!(m.ls("rejected").len(), 1);
    assert!(m.ok("cat raw/samp/log-foo.jsonl | wc -c").trim().parse::<u64>().unwrap() > 60);
}

/// S85: conflict copies of Syncthing, Dropbox, Nextcloud and iCloud add the lines that the log lost, for the
/// writer of the log. They cannot speak for others.
#[test]
fn s85_conflict_copies() {
    let names = [
        "log-foo.sync-conflict-20260413-091523-K3X2R2T.jsonl",
        "log-foo (host's conflicted copy 2026-04-13).jsonl",
        "log-foo (conflicted copy 2026-04-13 091523).jsonl",
        "log-foo 2.jsonl",
    ];
    let (bed, m, good) = with(|bed| {
        append(&bed.store, "foo", "bar", "t", "in the log", T0);
        for (i, n) in names.iter().enumerate() {
            let lost = Rec::new("foo", "bar", "t", &format!("only in copy {i}"), T0 + 1 + i as i64);
            append_raw(
                &bed.store.join(n),
                Rec::new("foo", "bar", "t", "in the log", T0).line() + &lost.line(),
            );
        }
        append_raw(&bed.store.join(names[0]), Rec::new("zed", "bar", "t", "forged", T0 + 9).line());
    });
    let mut expected = vec![Rec::new("foo", "bar", "t", "in the log", T0).name(0)];
    expected
        .extend((0..4).map(|i| {
            Rec::new("foo", "bar", "t", &format!("only in copy {i}"), T0 + 1 + i).name(0)
        }));
    expected.push(good.name(0));
    assert_eq!(m.ls("inbox"), expected);
    assert!(m.cat("status.txt").contains("conflict"), "a warning is shown");
    for n in names {
        assert!(bed.store.join(n).exists());
    }
    m.ok("echo hi > outbox/foo");
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
}

/// S77: a log may be truncated, grow beyond the old size, be replaced by a rename, be removed and come back.
#[test]
fn s77_replaced_logs() {
    let (bed, m, good) = with(|bed| {
        for i in 0..20 {
            append(&bed.store, "foo", "bar", "t", &format!("mail {i}"), T0 + i);
        }
    });
    let path = log(&bed.store, "foo");
    let whole = fs::read_to_string(&path).unwrap();
    let all: Vec<_> =
        (0..20).map(|i| Rec::new("foo", "bar", "t", &format!("mail {i}"), T0 + i)).collect();
    let listed = |recs: &[Rec]| -> Vec<String> {
        recs.iter().map(|r| r.name(0)).chain([good.name(0)]).collect()
    };
    assert_eq!(m.ls("inbox"), listed(&all));
    // An identical copy replaces the log, as a synchronizing program does it.
    fs::write(bed.store.join(".syncthing.log-foo.jsonl.tmp"), &whole).unwrap();
    fs::rename(bed.store.join(".syncthing.log-foo.jsonl.tmp"), &path).unwrap();
    let new = append(&bed.store, "foo", "bar", "t", "mail 20", T0 + 20);
    m.appears(&format!("inbox/{}", new.name(0)));
    let mut recs = all.clone();
    recs.push(new);
    assert_eq!(m.ls("inbox"), listed(&recs));
    // The log is truncated and rewritten longer within one watch interval, so the old offsets mean nothing.
    let more = Rec::new("foo", "bar", "t", &"x".repeat(100_000), T0 + 21);
    fs::write(&path, format!("{}{whole}", more.line())).unwrap();
    m.appears(&format!("inbox/{}", more.name(0)));
    for r in &all {
        assert_eq!(m.cat(&r.archived(0)), r.file("none"));
    }
    // The log is removed and comes back.
    fs::remove_file(&path).unwrap();
    m.ok("ls -laR > /dev/null; cat transcripts/* > /dev/null");
    fs::write(&path, &whole).unwrap();
    let last = append(&bed.store, "foo", "bar", "t", "mail 22", T0 + 22);
    m.appears(&format!("inbox/{}", last.name(0)));
    let names = m.ls("inbox");
    assert!(listed(&all).iter().all(|n| names.contains(n)), "{names:?}");
    let mut once = names.clone();
    once.dedup();
    assert_eq!(once, names);
    m.ok("cat inbox/* > /dev/null");
}

/// S77: a message that was read stays read when its log is rewritten.
#[test]
fn s77_marks_survive_rewriting() {
    let (bed, m, good) = with(|bed| {
        append(&bed.store, "foo", "bar", "t", "read", T0);
        append(&bed.store, "foo", "bar", "t", "unread", T0 + 1);
    });
    let (read, unread) =
        (Rec::new("foo", "bar", "t", "read", T0), Rec::new("foo", "bar", "t", "unread", T0 + 1));
    m.cat(&format!("inbox/{}", read.name(0)));
    m.inbox_becomes(&[&unread.name(0), &good.name(0)]);
    let path = log(&bed.store, "foo");
    fs::write(bed.path("new"), unread.line() + &read.line()).unwrap();
    let mut mv = bed.command("mv");
    mv.arg(bed.path("new")).arg(&path);
    assert!(run(mv, None).ok());
    let probe = append(&bed.store, "foo", "bar", "t", "probe", T0 + 2);
    m.appears(&format!("inbox/{}", probe.name(0)));
    assert_eq!(m.ls("inbox"), [unread.name(0), probe.name(0), good.name(0)]);
}

/// S29, S81: files that are no logs do not count as logs.
#[test]
fn s81_other_files() {
    let (bed, m, good) = with(|bed| {
        let line = Rec::new("foo", "bar", "t", "x", T0).line();
        for n in [
            "log-foo.jsonl.bak",
            "LOG-foo.jsonl",
            ".log-foo.jsonl",
            ".syncthing.log-foo.jsonl.tmp",
            "log-foo.json",
            "log-.jsonl",
            "log-a b c.jsonl",
        ] {
            fs::write(bed.store.join(n), &line).unwrap();
        }
    });
    assert_eq!(m.ls("inbox"), [good.name(0)]);
    assert!(samp::read_log(&bed.store, "bar").is_empty());
}

/// S84: a message file whose name is not UTF-8 is reported in `status.txt` and is in `rejected/` with its bytes.
/// This holds if it comes while the store is mounted and after a remount, until it is gone.
#[test]
fn s84_names_that_are_not_utf8_while_mounted() {
    for Kind { bed, deliver, .. } in all() {
        let file = deliver(1);
        let m = bed.mount("bar");
        if m.ok("find raw -type f").lines().any(|l| l.contains(".jsonl")) {
            continue; // A log, not a store of files.
        }
        let inbox = m.ls("inbox");
        let told = |m: &Mount| m.cat("status.txt").contains("its name is not UTF-8");
        let ending = file.extension().unwrap().as_bytes();
        let odd = |begin: &[u8]| {
            file.with_file_name(std::ffi::OsStr::from_bytes(&[begin, b".", ending].concat()))
        };
        fs::copy(&file, odd(b"odd\xff")).unwrap();
        soon("it is told", || told(&m));
        soon("it is refused", || m.ls("rejected").len() == 1);
        let refused = |m: &Mount| {
            let [name] = &m.ls("rejected")[..] else { panic!("{:?}", m.ls("rejected")) };
            (name.clone(), m.cat(&format!("rejected/{name}")))
        };
        let first = refused(&m);
        assert!(first.0.starts_with("odd%FF-"), "{first:?}");
        assert!(first.1.starts_with("Reason: its name is not UTF-8\nSource: raw/"), "{first:?}");
        assert!(first.1.contains("mail 1"), "its bytes are there: {first:?}");
        assert_eq!(m.ls("inbox"), inbox, "it is nowhere else");
        m.umount();
        let m = bed.mount("bar");
        assert_eq!((refused(&m), told(&m), m.ls("inbox")), (first.clone(), true, inbox.clone()));
        m.umount();
        fs::remove_dir_all(bed.path("cache")).unwrap();
        let m = bed.mount("bar");
        assert_eq!((refused(&m), told(&m), m.ls("inbox")), (first.clone(), true, inbox));
        fs::rename(odd(b"odd\xff"), odd(b"\xfe")).unwrap();
        soon("it has the other name", || m.ls("rejected")[..] != [first.0.clone()]);
        soon("it is refused under it", || m.ls("rejected").len() == 1);
        assert!(refused(&m).0.starts_with("%FE-"), "{:?}", refused(&m));
        fs::remove_file(odd(b"\xfe")).unwrap();
        soon("it is no longer told", || !told(&m));
        soon("nor refused", || m.ls("rejected").is_empty());
        m.umount();
        assert_eq!(bed.mount("bar").ls("rejected"), [""; 0]);
    }
}
