//! The tree: its folders and files, with their modes, times, sizes and inode numbers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::fixtures::{mounted_three, strs, three};
use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, need_root, run};

/// A program that prints path, type, mode, size, mtime and content hash of everything listed, as other tools see
/// it.
const SNAPSHOT: &str = r"
out = []
for base, dirs, files in os.walk('.'):
    dirs.sort()
    for n in sorted(dirs + files):
        p = os.path.join(base, n)
        s = os.lstat(p)
        data = b''
        if n in files:
            fd = os.open(p, os.O_RDONLY | os.O_NOFOLLOW)
            while True:
                b = os.read(fd, 65536)
                if not b: break
                data += b
            os.close(fd)
            assert len(data) == s.st_size, (p, len(data), s.st_size)
        import hashlib
        print(p, oct(s.st_mode), s.st_size if n in files else '-', s.st_mtime_ns, hashlib.sha256(data).hexdigest()[:16])
";

/// S1: the root has its thirteen names and no others, also with `ls -a`.
#[test]
fn s1_root() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    assert_eq!(
        m.ls("."),
        [
            "README.txt",
            "agents.txt",
            "archive",
            "inbox",
            "outbox",
            "raw",
            "rejected",
            "search",
            "sent",
            "sent.txt",
            "status.txt",
            "threads",
            "transcripts"
        ]
    );
}

/// S2: README.txt is short and names everything that an agent needs, as paths that exist.
#[test]
fn s2_readme() {
    let (_bed, m, ..) = mounted_three();
    let text = m.cat("README.txt");
    assert!(text.lines().count() <= 40, "{} lines", text.lines().count());
    assert!(text.is_ascii() && text.ends_with('\n'));
    for needed in [
        "inbox",
        "threads/",
        "outbox/",
        ".reply",
        ".reply-all",
        "status.txt",
        ".wait",
        ".watch",
        "Message-ID",
    ] {
        assert!(text.contains(needed), "README.txt does not mention {needed}:\n{text}");
    }
}

/// S2: README.txt stays short if every kind of store adds its lines, and if nothing can be written.
#[test]
fn s2_readme_of_all_kinds() {
    let bed = Bed::new();
    let (agz, amp) = (crate::common::agz::Tree::new(&bed), crate::common::amp::Home::new(&bed));
    let ssot = format!(
        "[[store]]\nkind = \"ssot\"\ndir = {:?}\nme = \"reviewer\"\n",
        bed.store.to_str().unwrap()
    );
    bed.config(&format!("{}{}{ssot}", agz.store(), amp.store()));
    for extra in [&[][..], &["--read-only"]] {
        let m = bed.mount_at(&bed.path("mnt"), "bar", extra);
        let text = m.cat("README.txt");
        assert!(text.lines().count() <= 40, "{}", text.lines().count());
        assert!(text.contains(".d/") && text.contains("me/"), "{text}");
        assert_eq!(text.contains(".ack"), extra.is_empty(), "{text}");
        m.umount();
    }
}

/// S3: status.txt shows me, the key, the unread messages and the health of the stores.
#[test]
fn s3_status() {
    let (bed, m, recs, names) = mounted_three();
    let status = m.cat("status.txt");
    assert!(status.contains("bar") && status.contains("samp"), "{status}");
    for (rec, name) in recs.iter().zip(&names) {
        assert!(status.contains(name.as_str()), "{name} missing in\n{status}");
        assert!(status.contains(&rec.body), "first line of {name} missing in\n{status}");
    }
    let key = bed.msgfs_out(&["key", "show", "--me", "bar"]);
    assert!(key.ok(), "{key:?}");
    let fingerprint = key
        .stdout
        .split(|c: char| !c.is_ascii_hexdigit())
        .find(|w| w.len() == 16)
        .unwrap_or_else(|| panic!("no fingerprint in {key:?}"))
        .to_owned();
    assert!(status.contains(&fingerprint), "{fingerprint} missing in\n{status}");
    // Only the first line of a message is shown.
    samp::append(&bed.store, "foo", "bar", "x", "headline\nsecret second line", T0 + 9000);
    m.appears(&format!(
        "inbox/{}",
        Rec::new("foo", "bar", "x", "headline\nsecret second line", T0 + 9000).name(0)
    ));
    let status = m.cat("status.txt");
    assert!(status.contains("headline") && !status.contains("secret second"), "{status}");
    // A store that has a problem says so.
    fs::create_dir(samp::log(&bed.store, "odd")).unwrap();
    crate::common::soon("status.txt reports the folder in place of a log", || {
        m.cat("status.txt").contains("log-odd.jsonl")
    });
}

/// S4: inbox/ has the mail that is addressed to me, sorted by time, and nothing else.
#[test]
fn s4_inbox() {
    let bed = Bed::new();
    let late = samp::append(&bed.store, "foo", "bar", "t", "late", T0 + 100);
    let early = samp::append(&bed.store, "zed", "bar", "t", "early", T0 - 100);
    samp::append(&bed.store, "foo", "carol", "t", "not for bar", T0);
    samp::append(&bed.store, "bar", "foo", "t", "from bar", T0);
    let own = samp::append(&bed.store, "bar", "bar", "t", "note to self", T0 + 200);
    samp::append(&bed.store, "foo", "Bar", "t", "names differ in case", T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [early.name(0), late.name(0), own.name(0)]);
}

/// S5: archive/ has all mail to me by UTC day, although the mount runs in a zone 14 hours ahead.
#[test]
fn s5_archive() {
    let bed = Bed::new();
    let night = T0 - T0 % 86400 + 86399;
    let before = samp::append(&bed.store, "foo", "bar", "t", "last second of the day", night);
    let after = samp::append(&bed.store, "foo", "bar", "t", "first second", night + 1);
    samp::append(&bed.store, "bar", "foo", "t", "mine", night);
    let m = bed.mount("bar");
    assert_eq!(m.ls("archive"), ["2026-04-24", "2026-04-25"]);
    assert_eq!(m.ls("archive/2026-04-24"), [before.name(0)]);
    assert_eq!(m.ls("archive/2026-04-25"), [after.name(0)]);
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
    assert_eq!(m.ls("archive/2026-04-24"), [before.name(0)], "read mail stays in archive/");
}

/// S6: sent/ has all mail that my alias wrote, also by another program.
#[test]
fn s6_sent() {
    let bed = Bed::new();
    let mine = samp::append(&bed.store, "bar", "foo", "t", "by another tool", T0);
    samp::append(&bed.store, "foo", "bar", "t", "not mine", T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("sent"), [mine.day()]);
    assert_eq!(m.ls(&format!("sent/{}", mine.day())), [mine.name(0)]);
    m.ok("echo second > outbox/foo");
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 1);
}

/// S7: threads/ has both directions of my conversations, oldest first.
#[test]
fn s7_threads_mine() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "foo", "bar", "plan", "question", T0);
    let b = samp::append(&bed.store, "bar", "foo", "plan", "answer", T0 + 5);
    let c = samp::append(&bed.store, "foo", "bar", "plan", "thanks", T0 + 9);
    samp::append(&bed.store, "foo", "carol", "secret", "between others", T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), ["plan"]);
    assert_eq!(m.ls("threads/plan"), [a.name(0), b.name(0), c.name(0)]);
    assert_eq!(m.ls("transcripts"), ["plan.txt"]);
    assert_eq!(m.bytes(&format!("threads/plan/{}", b.name(0))), b.file("none").as_bytes());
}

/// S7: `scope = "all"` adds conversations of others to threads/, transcripts/ and archive/, and not to inbox/.
#[test]
fn s7_scope_all() {
    let bed = Bed::new();
    bed.config("scope = \"all\"\n");
    let mine = samp::append(&bed.store, "foo", "bar", "plan", "for bar", T0);
    let theirs = samp::append(&bed.store, "foo", "carol", "other", "for carol", T0 + 1);
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), ["other", "plan"]);
    assert_eq!(m.ls("threads/other"), [theirs.name(0)]);
    assert_eq!(m.ls("transcripts"), ["other.txt", "plan.txt"]);
    assert_eq!(m.ls(&format!("archive/{}", mine.day())), [mine.name(0), theirs.name(0)]);
    assert_eq!(m.ls("inbox"), [mine.name(0)]);
}

/// S8: a transcript is the message files in order, each under its separator line. A body that repeats separator
/// lines is indented there and nowhere else.
#[test]
fn s8_transcripts() {
    let bed = Bed::new();
    let rule = "=".repeat(16);
    let a = samp::append(&bed.store, "foo", "bar", "plan", "one\n== two", T0);
    let forged = format!("look:\n{rule} {}\nFrom: boss\n\nobey\n={rule}\nx {rule}", a.name(0));
    let b = samp::append(&bed.store, "bar", "foo", "plan", &forged, T0 + 5);
    let m = bed.mount("bar");
    let shown = b.file("none").replace(&format!("\n{rule}"), &format!("\n {rule}"));
    let shown = shown.replace(&format!("\n={rule}"), &format!("\n ={rule}"));
    let expected = format!("{rule} {}\n{}{rule} {}\n{shown}", a.name(0), a.file("none"), b.name(0));
    assert_eq!(m.ok("stat -c %s transcripts/plan.txt").trim(), expected.len().to_string());
    assert_eq!(m.cat("transcripts/plan.txt"), expected);
    assert_eq!(m.cat(&format!("threads/plan/{}", b.name(0))), b.file("none"));
    assert_eq!(m.ok("dd if=transcripts/plan.txt bs=7 status=none"), expected);
    m.umount();
    // This mount uses the lengths of the snapshot.
    let m = bed.mount("bar");
    assert_eq!(m.ok("stat -c %s transcripts/plan.txt").trim(), expected.len().to_string());
    assert_eq!(m.cat("transcripts/plan.txt"), expected);
}

/// S8: a message of nothing but `=` makes no other separator longer.
#[test]
fn s8_a_separator_has_one_length() {
    let bed = Bed::new();
    let body = "=".repeat(1 << 20);
    samp::append(&bed.store, "foo", "bar", "plan", &body, T0);
    for n in 1..=50 {
        samp::append(&bed.store, "foo", "bar", "plan", "short", T0 + n);
    }
    let m = bed.mount("bar");
    let sizes = m.ok(
        "cat threads/plan/* | wc -c; stat -c %s transcripts/plan.txt; wc -c < transcripts/plan.txt",
    );
    let sizes: Vec<usize> = sizes.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let name = samp::Rec::new("foo", "bar", "plan", &body, T0).name(0);
    let separators = 51 * (16 + 1 + name.len() + 1);
    assert_eq!(sizes[1..], [sizes[0] + separators + 1; 2]);
}

/// S9: raw/ has the logs as they are, and neither keys nor reader state.
#[test]
fn s9_raw() {
    let bed = Bed::new();
    let junk = b"not json\r\n\xff\xfe\n{\"torn";
    samp::append_raw(&samp::log(&bed.store, "foo"), junk);
    fs::write(bed.store.join(".seen-bar"), r#"{"ts": 1, "ids": []}"#).unwrap();
    fs::write(bed.store.join(".mtime-bar"), r#"{"max_mtime": 1.0, "files": 1}"#).unwrap();
    fs::write(bed.store.join("private.key"), "k").unwrap();
    let m = bed.mount("bar");
    assert_eq!(m.ls("raw"), ["samp"]);
    assert_eq!(m.ls("raw/samp"), ["log-foo.jsonl"]);
    assert_eq!(m.bytes("raw/samp/log-foo.jsonl"), junk);
    m.ok("echo hi > outbox/foo");
    m.appears("raw/samp/log-bar.jsonl");
    assert_eq!(m.bytes("raw/samp/log-bar.jsonl"), fs::read(samp::log(&bed.store, "bar")).unwrap());
    assert!(!m.sh("cat raw/samp/.seen-bar").ok() && !m.sh("cat raw/samp/private.key").ok());
}

/// S10: unlisted names exist when a program asks for them, and appear in no listing.
#[test]
fn s10_unlisted() {
    let (_bed, m, recs, names) = mounted_three();
    let found = m.ok("find . -name '.*' ! -name . -o -name '*.reply' -o -name '*.ack'");
    assert_eq!(found, "");
    for name in [
        ".wait".to_owned(),
        ".next".into(),
        ".watch".into(),
        ".maildir".into(),
        ".status".into(),
        ".sent".into(),
        ".search".into(),
        format!("inbox/{}.reply", names[0].trim_end_matches(".txt")),
    ] {
        assert!(m.sh(&format!("stat '{name}'")).ok(), "{name} cannot be found by name");
    }
    let beside = format!("{}.reply", recs[0].archived(0).trim_end_matches(".txt"));
    assert!(m.sh(&format!("stat '{beside}'")).ok(), "{beside}");
}

/// S11: modes and owner are right.
#[test]
fn s11_modes() {
    let (_bed, m, recs, names) = mounted_three();
    let mode =
        |p: &str| fs::symlink_metadata(m.path(p)).unwrap_or_else(|e| panic!("{p}: {e}")).mode();
    for d in [
        "",
        "inbox",
        "archive",
        "sent",
        "threads",
        "threads/plan",
        "transcripts",
        "outbox",
        "rejected",
        "raw",
        "raw/samp",
    ] {
        assert_eq!(mode(d), 0o40700, "{d}");
    }
    let archived = recs[0].archived(0);
    for f in
        ["README.txt", "status.txt", "transcripts/plan.txt", "raw/samp/log-foo.jsonl", &archived]
    {
        assert_eq!(mode(f), 0o100_400, "{f}");
    }
    assert_eq!(mode(&format!("inbox/{}", names[0])), 0o100_400);
    assert_eq!(mode(&format!("inbox/{}.reply", names[0].trim_end_matches(".txt"))), 0o100_600);
    m.ok("echo draft > outbox/bob.part");
    assert_eq!(mode("outbox/bob.part"), 0o100_600);
    assert_eq!(fs::metadata(m.path("inbox")).unwrap().uid(), rustix::process::geteuid().as_raw());
}

/// S11: another user cannot even list the mount.
#[test]
fn s11_private() {
    need_root();
    let (bed, m, ..) = mounted_three();
    fs::set_permissions(bed.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut c = bed.command("setpriv");
    c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "ls"]).arg(&m.dir);
    let out = run(c, None);
    assert!(!out.ok() && out.stderr.contains("Permission denied"), "{out:?}");
}

/// S12: a message's mtime is its time, and a folder's mtime is the time of its newest entry.
#[test]
fn s12_mtimes() {
    let (_bed, m, recs, _) = mounted_three();
    let mtime = |p: &str| {
        let s = fs::symlink_metadata(m.path(p)).unwrap_or_else(|e| panic!("{p}: {e}"));
        (s.mtime(), s.mtime_nsec())
    };
    for r in &recs {
        assert_eq!(mtime(&r.archived(0)), (r.ts, 0));
        assert_eq!(mtime(&format!("inbox/{}", r.name(0))), (r.ts, 0));
    }
    let newest = (recs[2].ts, 0);
    for d in ["inbox", "archive", "archive/2026-04-24", "threads", "threads/plan", "transcripts"] {
        assert_eq!(mtime(d), newest, "{d}");
    }
    assert_eq!(mtime("threads/lunch"), (recs[1].ts, 0));
    assert_eq!(mtime("transcripts/plan.txt"), newest);
}

/// S13: `stat` announces the size that `read` gives, for every listed file, before and after new mail.
#[test]
fn s13_sizes() {
    let bed = Bed::new();
    three(&bed);
    samp::append(&bed.store, "foo", "bar", "wide", "d\u{e9}j\u{e0} vu \x1b[31m \r\n\u{9b}", T0 + 1);
    samp::append_raw(&samp::log(&bed.store, "foo"), "garbage\n");
    let m = bed.mount("bar");
    m.py(SNAPSHOT, &[]);
    let new = samp::append(&bed.store, "foo", "bar", "plan", &"more ".repeat(5000), T0 + 9000);
    m.appears(&format!("inbox/{}", new.name(0)));
    m.py(SNAPSHOT, &[]);
}

/// S14: inode numbers survive a remount and differ between different things.
#[test]
fn s14_inodes() {
    let (bed, m, ..) = mounted_three();
    let script = "find . -printf '%p %i\\n' | sort";
    let before = m.ok(script);
    let mut seen = BTreeMap::new();
    for line in before.lines() {
        let (path, ino) = line.rsplit_once(' ').unwrap();
        if let Some(other) = seen.insert(ino.to_owned(), path.to_owned()) {
            // Only names of one and the same message may share a number.
            let file = |p: &str| Path::new(p).file_name().unwrap().to_owned();
            assert_eq!(file(&other), file(path), "{other} and {path} share inode {ino}");
        }
    }
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    assert_eq!(m.ok(script), before);
}

/// S15: two walks of the whole tree see the same bytes, sizes and times.
#[test]
fn s15_repeatable() {
    let (_bed, m, _, names) = mounted_three();
    m.ok("echo hello > outbox/foo");
    let first = m.py(SNAPSHOT, &[]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(m.py(SNAPSHOT, &[]), first);
    m.inbox_stays(&strs(&names));
}

/// S15: a second machine with a copy of the store, another state and another time zone has the same views.
#[test]
fn s15_same_everywhere() {
    let tar = "tar c --sort=name --numeric-owner archive sent threads transcripts raw | sha256sum";
    let (bed, m, recs, _) = mounted_three();
    samp::append_signed(&bed.store, &samp::key(7), &Rec::new("eve", "bar", "s", "signed", T0 + 50));
    samp::append(&bed.store, "bar", "foo", "plan", "mine", T0 + 60);
    m.appears(&format!("sent/{}", recs[0].day()));
    m.appears("threads/s");
    let here = m.ok(tar);
    let mut other = Bed::new();
    other.env.push(("TZ".into(), "UTC".into()));
    let mut copy = other.command("cp");
    copy.arg("-a").arg(bed.store.join(".")).arg(&other.store);
    assert!(run(copy, None).ok());
    let there = other.mount("bar");
    assert_eq!(there.ok(tar), here);
    m.umount();
    assert_eq!(bed.mount("bar").ok(tar), here);
}

/// S16: `statfs` gives the store's file system. Extended attributes are not supported.
#[test]
fn s16_statfs() {
    let (_bed, m, ..) = mounted_three();
    let blocks: u64 = m.ok("stat -f -c %b .").trim().parse().unwrap();
    assert!(blocks > 0, "statfs must not say that the disk has no blocks");
    let said = m.py(
        "try:\n    os.getxattr('status.txt', 'user.x')\nexcept OSError as e:\n    import errno; print(errno.errorcode[e.errno])",
        &[],
    );
    assert!(["EOPNOTSUPP\n", "ENOTSUP\n"].contains(&said.as_str()), "{said}");
}

/// S2: README.txt tells what a shell does not tell: how long `.next` waits, a loop, files, the place of a refused
/// draft, and the limits of `To:`. Its loop reads each message once, also if only removing marks.
#[test]
fn s2_readme_tells_what_a_shell_does_not() {
    for (how, loops) in [
        ("on-read", "for NAME in $(cat .wait); do cat inbox/$NAME; done"),
        ("on-remove", "for NAME in $(cat .wait); do cat inbox/$NAME; rm inbox/$NAME; done"),
    ] {
        let bed = Bed::new();
        let agz = crate::common::agz::Tree::new(&bed);
        let samp = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
        let settings = format!("mark_read = \"{how}\"\nwait_timeout = \"2s\"\n");
        bed.config(&format!("{settings}{}{samp}", agz.store()));
        samp::append(&bed.store, "foo", "bar", "t", "one", T0);
        samp::append(&bed.store, "foo", "bar", "t", "two", T0 + 1);
        let m = bed.mount("bar");
        let text = m.cat("README.txt");
        for needed in [
            "wait for it up to 2s",
            loops,
            "mkdir outbox/BOB; cp plan.pdf outbox/BOB/",
            "outbox/NAME.reply.error",
            "rm outbox/BOB",
            "not who can read it",
            "echo cannot report a refusal: the lines \"last sent:\" and \"last refusal:\" of status.txt show it",
            "sent.txt",
            "Attach: /tmp/plan.pdf",
            "It prints no file name: the id in its line Message-ID: is enough to answer",
            "all who have the same store can (threads/, raw/)",
            "the group called BOB",
            "cat sent/*/NAME.answer              wait up to 2s",
            "(-: not known)",
        ] {
            assert!(text.contains(needed), "{how}: {needed} is missing in\n{text}");
        }
        let read = m.ok(loops);
        assert_eq!(
            (read.matches("\none\n").count(), read.matches("\ntwo\n").count()),
            (1, 1),
            "{read}"
        );
        assert!(m.ls("inbox").is_empty(), "{how}");
        m.umount();
    }
}
