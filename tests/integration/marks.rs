//! The actions that mark a message as read, and those that do not.

use std::fs;

use serde_json::json;

use crate::common::fixtures::{mounted_three, strs, three};
use crate::common::samp::{self, T0};
use crate::common::{Bed, soon};

/// S25, S27: `cat inbox/*` prints everything once, and then the inbox is empty.
#[test]
fn s25_cat_marks() {
    let (_bed, m, recs, _) = mounted_three();
    let all = m.ok("cat inbox/*");
    assert_eq!(all, recs.iter().map(|r| r.file("none")).collect::<String>());
    m.inbox_becomes(&[]);
    assert!(!m.cat("status.txt").contains(&recs[0].body), "status.txt lists unread mail only");
}

/// S25: reading one message marks it, and the others stay.
#[test]
fn s25_one_of_three() {
    let (_bed, m, _, names) = mounted_three();
    m.cat(&format!("inbox/{}", names[1]));
    m.inbox_becomes(&[&names[0], &names[2]]);
}

/// S25: other readers than cat mark too: Python, a shell redirection by a shell that did not list, programs that
/// show a text in another form.
#[test]
fn s25_other_readers() {
    for reader in [
        "python3 -c 'import sys;print(open(sys.argv[1]).read())' \"$f\"",
        "read -r x < \"$f\"; cat < \"$f\" > /dev/null",
        "nl \"$f\"; tac \"$f\"",
        "dd if=\"$f\" of=/dev/null status=none",
    ] {
        let (_bed, m, _, names) = mounted_three();
        m.ok(&format!("f='inbox/{}'; {reader}", names[0]));
        m.inbox_becomes(&[&names[1], &names[2]]);
    }
}

/// S26: reading the start of a long message does not mark it.
#[test]
fn s26_partial_read() {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", "t", &"long text ".repeat(400_000), T0);
    let m = bed.mount("bar");
    let name = r.name(0);
    m.ok(&format!("head -c 10 'inbox/{name}'"));
    m.ok(&format!("stat 'inbox/{name}'; : < 'inbox/{name}'"));
    m.py("f = open(sys.argv[1], 'rb'); f.seek(0, 2); print(f.read())", &[&format!("inbox/{name}")]);
    m.inbox_stays(&[&name]);
    m.ok(&format!("cat 'inbox/{name}' > /dev/null"));
    m.inbox_becomes(&[]);
}

/// S26: an open handle marks nothing until it is closed.
#[test]
fn s26_still_open() {
    let (_bed, m, _, names) = mounted_three();
    let listed = m.ok(&format!(
        "exec 3< 'inbox/{}'; cat <&3 > /dev/null; sleep 0.3; ls inbox | wc -l; exec 3<&-",
        names[0]
    ));
    assert_eq!(listed.trim(), "3");
    m.inbox_becomes(&[&names[1], &names[2]]);
}

/// S27: a name that is known still opens after the mark, with the same bytes.
#[test]
fn s27_known_name_opens() {
    let (_bed, m, recs, names) = mounted_three();
    let path = format!("inbox/{}", names[0]);
    assert_eq!(m.cat(&path), recs[0].file("none"));
    m.inbox_becomes(&[&names[1], &names[2]]);
    assert_eq!(m.cat(&path), recs[0].file("none"));
    assert_eq!(
        m.ok(&format!("stat -c %s '{path}'")).trim(),
        recs[0].file("none").len().to_string()
    );
    m.inbox_stays(&[&names[1], &names[2]]);
}

/// S28: `O_NOATIME` and `O_NOFOLLOW` never mark, even if the message is read to the end.
#[test]
fn s28_flags() {
    let (_bed, m, _, names) = mounted_three();
    for flag in ["O_NOATIME", "O_NOFOLLOW"] {
        m.py(
            "fd=os.open(sys.argv[1], os.O_RDONLY|getattr(os,sys.argv[2]))\nassert os.read(fd, 1<<20) and not os.read(fd, 1)\nos.close(fd)",
            &[&format!("inbox/{}", names[0]), flag],
        );
    }
    m.inbox_stays(&strs(&names));
}

/// S28: searching, archiving and copying the whole tree consumes nothing.
#[test]
fn s28_recursive_tools() {
    let (bed, m, _, names) = mounted_three();
    let out = bed.path("out");
    fs::create_dir(&out).unwrap();
    let o = out.display();
    for tool in [
        "grep -r three . > /dev/null".to_owned(),
        format!("tar cf {o}/all.tar inbox archive threads"),
        format!("cp -a inbox {o}/cp"),
        format!("rsync -a inbox/ {o}/rsync/"),
        format!("rsync -a . {o}/whole/"),
        "find . -type f -size +0 -printf '%f\\n' > /dev/null".to_owned(),
        "ls -laR > /dev/null; du -a . > /dev/null".to_owned(),
    ] {
        m.ok(&tool);
        m.inbox_stays(&strs(&names));
    }
    m.ok(&format!("diff -r inbox {o}/cp && diff -r {o}/cp {o}/rsync"));
}

/// S29: a process that walks does not mark. A shell that lists and then becomes cat marks.
#[test]
fn s29_listers() {
    let (_bed, m, recs, names) = mounted_three();
    m.py("for n in sorted(os.listdir('inbox')): assert open('inbox/'+n).read()", &[]);
    m.py("for n in os.scandir('inbox'): assert open(n.path).read()", &[]);
    m.inbox_stays(&strs(&names));
    // A script that globs and reads by itself is a walker as well.
    m.ok("for f in inbox/*; do while read -r l; do :; done < \"$f\"; done");
    m.inbox_stays(&strs(&names));
    // The shell replaces itself by cat, with the same pid.
    let out = m.ok("exec bash -c 'cat inbox/*'");
    assert_eq!(out, recs.iter().map(|r| r.file("none")).collect::<String>());
    m.inbox_becomes(&[]);
}

/// S29: `find -exec cat` and `xargs cat` read with programs that did not list, so they mark.
#[test]
fn s29_find_exec() {
    for script in
        ["find inbox -type f -exec cat {} \\;", "find inbox -type f -print0 | xargs -0 cat"]
    {
        let (_bed, m, ..) = mounted_three();
        m.ok(script);
        m.inbox_becomes(&[]);
    }
}

/// S29: only the time since the last execve counts: a lister that executes itself anew reads as a reader.
#[test]
fn s29_since_the_last_execve() {
    let (_bed, m, ..) = mounted_three();
    m.py(
        "names=['inbox/'+n for n in os.listdir('inbox')]\nos.execvp('python3',['python3','-c','import sys\\nfor n in sys.argv[1:]: open(n).read()']+names)",
        &[],
    );
    m.inbox_becomes(&[]);
}

/// S220: searching, summing, comparing and copying consume nothing, however these programs get their list of
/// files.
#[test]
fn s220_searching_and_summing_do_not_consume() {
    let (bed, m, _, names) = mounted_three();
    let out = bed.path("out");
    fs::create_dir(&out).unwrap();
    for looks in [
        "grep -c three inbox/*",
        "find inbox -type f -exec grep three {} +",
        "find inbox -type f -print0 | xargs -0 wc",
        "md5sum inbox/*; sha256sum inbox/*; cksum inbox/*",
        "sort inbox/* | uniq -c; sort -u inbox/*",
        "diff \"$f\" /dev/null; cmp \"$f\" /dev/null",
        "cp inbox/* \"$out\"; rsync inbox/* \"$out\"; tar chf \"$out/all.tar\" inbox/*",
        "gzip -c inbox/*; bzip2 -c inbox/*; xz -c inbox/*; zstd -c inbox/*; zip -q - inbox/*",
        "zgrep three inbox/*; shasum inbox/*; openssl dgst inbox/*; comm \"$f\" /dev/null; install $f $out",
        "git grep --no-index -e three -- inbox; git diff --no-index \"$f\" /dev/null",
        "head -8 inbox/*; head -c 9 inbox/*; tail -n 1 inbox/*; tail -n +1 \"$f\"",
        "sed -n 4p inbox/*; sed -n '1,8p;q' \"$f\"; sed p inbox/*",
        "awk 'FNR==1' inbox/*; gawk 'FNR==1' inbox/*; mawk 'FNR==1' inbox/*; awk 1 inbox/*",
        "strings inbox/*; cut -c 1-20 inbox/*; od -c inbox/*; xxd \"$f\"; hexdump -C inbox/*; hd \"$f\"",
        "jq -R . inbox/*; gpg --batch --list-packets \"$f\"; zip -q \"$out/x.zip\" inbox/*",
        "for p in head tail 'sed p' 'awk 1' 'cut -c 1' strings od hexdump xxd 'grep three' wc md5sum; do \
         busybox $p inbox/*; busybox $p \"$f\"; done",
        "for p in 'head -1' wc 'grep -c three' 'sed -n 1p' 'tr a b' 'cut -c 1' xxd sha256sum; do $p < \"$f\"; done",
        "head -1 < \"$f\" | cat; (tail -1) < \"$f\"; bash -c 'exec head -1 < \"$0\"' \"$f\"",
        "for shell in bash dash 'busybox sh'; do for p in wc 'grep -c .' 'busybox wc' 'head -99'; do \
         $shell -c \"$p < \\\"$f\\\"\"; $shell -c \"$p < \\\"$f\\\"; :\"; done; done; timeout 5 head -c 9999 < \"$f\"",
    ] {
        m.sh(&format!("f='inbox/{}'; out='{}'; {looks}", names[0], out.display()));
        m.inbox_stays(&strs(&names));
    }
    // Some of them are not on every machine, and only the name counts.
    let details = include_str!("../../docs/DETAILS.md");
    let sentence = details.split("**S220**").nth(1).unwrap().split(", by the name").next().unwrap();
    let programs: Vec<&str> = sentence.split('`').skip(1).step_by(2).collect();
    assert!(programs.contains(&"rg") && programs.len() > 30, "{programs:?}");
    for program in programs {
        m.ok(&format!("cp /bin/cat {0}/{program}; {0}/{program} inbox/*", out.display()));
    }
    m.inbox_stays(&strs(&names));
    // `cat` shows the rest of the message after such a program, and marks it.
    m.ok(&format!("{{ head -1; cat; }} < 'inbox/{}' > /dev/null", names[0]));
    m.inbox_becomes(&strs(&names[1..]));
    m.ok(&format!("busybox cat 'inbox/{}' > /dev/null", names[1]));
    m.inbox_becomes(&strs(&names[2..]));
    m.ok(&format!("cp /bin/cat {0}/greppy; {0}/greppy inbox/* > /dev/null", out.display()));
    m.inbox_becomes(&[]);
}

/// S30: reading in the other views marks nothing, whoever reads.
#[test]
fn s30_other_views() {
    let (_bed, m, recs, names) = mounted_three();
    for r in &recs {
        m.cat(&r.archived(0));
        m.cat(&format!("threads/{}/{}", r.thread, r.name(0)));
    }
    m.ok("cat transcripts/* raw/samp/* README.txt status.txt > /dev/null");
    m.inbox_stays(&strs(&names));
}

/// S31: bytes may have been cached by a reader that does not mark, or through another view. They still mark when
/// `cat` gets them. A message that was made unread is marked again.
#[test]
fn s31_cached_bytes_mark() {
    let (_bed, m, recs, names) = mounted_three();
    m.ok("grep -r three inbox > /dev/null");
    m.cat(&recs[1].archived(0));
    m.inbox_stays(&strs(&names));
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
    m.ok(&format!("mv '{}' inbox/", recs[1].archived(0)));
    m.inbox_becomes(&[&names[1]]);
    m.cat(&format!("inbox/{}", names[1]));
    m.inbox_becomes(&[]);
}

/// S32: with on-remove only `rm` marks.
#[test]
fn s32_on_remove() {
    let bed = Bed::new();
    bed.config("mark_read = \"on-remove\"\n");
    let recs = three(&bed);
    let names: Vec<_> = recs.iter().map(|r| r.name(0)).collect();
    let m = bed.mount("bar");
    m.ok("cat inbox/* > /dev/null");
    m.inbox_stays(&strs(&names));
    m.ok(&format!("rm 'inbox/{}'", names[0]));
    m.inbox_becomes(&[&names[1], &names[2]]);
}

/// S33: `rm inbox/X` marks without reading. Log, archive and thread keep the message.
#[test]
fn s33_rm() {
    let (bed, m, recs, names) = mounted_three();
    let log = fs::read(samp::log(&bed.store, "foo")).unwrap();
    m.ok(&format!("rm -f 'inbox/{}'", names[0]));
    assert_eq!(m.ls("inbox"), names[1..], "rm shows at once");
    assert_eq!(fs::read(samp::log(&bed.store, "foo")).unwrap(), log);
    assert_eq!(m.cat(&recs[0].archived(0)), recs[0].file("none"));
    m.ok("rm inbox/*");
    assert_eq!(m.ls("inbox"), [""; 0]);
}

/// S33: a removed name is gone, whether its message was read before or not. Its id and `.reply` stay.
#[test]
fn s33_removed_name() {
    let (_bed, m, recs, names) = mounted_three();
    m.cat(&format!("inbox/{}", names[1]));
    for (rec, name) in recs.iter().zip(&names).take(2) {
        let stem = name.strip_suffix(".txt").unwrap();
        m.ok(&format!("rm 'inbox/{name}' && ! ls 'inbox/{name}' && ls 'inbox/{stem}.reply'"));
        let (_, id8) = stem.rsplit_once('-').unwrap();
        assert_eq!(m.cat(&format!("inbox/{id8}")), rec.file("none"));
    }
}

/// S34: a message is made unread also by the short name that it had before another message came.
#[test]
fn s34_by_an_earlier_name() {
    let bed = Bed::new();
    let rec = |n: u32| {
        let id = format!("aaaaaaaaaaaaaaa{n}");
        let mut rec =
            json!({"id": id, "ts": T0, "from": "h", "to": "bar", "thread": "t", "body": id});
        if n > 1 {
            // With milliseconds of its own it takes no free one.
            rec["ms"] = json!(0);
        }
        samp::append_raw(&samp::log(&bed.store, "h"), format!("{rec}\n"));
    };
    rec(1);
    let m = bed.mount("bar");
    let name = m.ls("inbox").remove(0);
    rec(2);
    soon("the names are longer", || m.ls("inbox").len() == 2 && !m.ls("inbox").contains(&name));
    let day = m.ls("archive").remove(0);
    assert!(m.cat(&format!("inbox/{name}")).contains("aaaaaaaaaaaaaaa1"));
    soon("it is read", || m.ls("inbox").len() == 1);
    m.ok(&format!("mv archive/{day}/{name} inbox/"));
    assert_eq!(m.ls("inbox").len(), 2);
}

/// S34: `mv archive/<day>/X inbox/` makes X unread again. Both folders have it.
#[test]
fn s34_unread_again() {
    let (bed, m, recs, names) = mounted_three();
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
    m.ok(&format!("mv '{}' inbox/", recs[0].archived(0)));
    m.inbox_becomes(&[&names[0]]);
    assert_eq!(m.cat(&recs[0].archived(0)), recs[0].file("none"), "X stays in archive/");
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [names[0].as_str()], "being unread survives a remount");
}

/// S35: marks survive a proper remount and the loss of the cache and of `.seen-bar`.
#[test]
fn s35_remount() {
    let (bed, m, _, names) = mounted_three();
    m.cat(&format!("inbox/{}", names[1]));
    m.inbox_becomes(&[&names[0], &names[2]]);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let _ = fs::remove_file(bed.store.join(".seen-bar"));
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [names[0].as_str(), &names[2]]);
}

/// S35: a mark that a listing has shown survives `kill -9` at that moment.
#[test]
fn s35_kill9() {
    let bed = Bed::new();
    let recs = three(&bed);
    let names: Vec<_> = recs.iter().map(|r| r.name(0)).collect();
    for read in 0..3 {
        let m = bed.mount("bar");
        assert_eq!(m.ls("inbox"), names[read..]);
        m.cat(&format!("inbox/{}", names[read]));
        m.inbox_becomes(&strs(&names[read + 1..]));
        m.kill9();
        fs::remove_dir_all(bed.path("cache")).unwrap();
    }
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [""; 0]);
}

/// S40: a message that comes through two logs, twice in one log, or in a conflict copy, is one message.
#[test]
fn s40_one_message() {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", "t", "once", T0);
    samp::append_raw(&samp::log(&bed.store, "foo"), r.line());
    let copy = bed.store.join("log-foo.sync-conflict-20260413-091523-K3X2R2T.jsonl");
    samp::append_raw(&copy, r.line());
    // A synchronizing program duplicated the record into another writer's log (docs/formats/samp.md, section 6).
    samp::append_raw(&samp::log(&bed.store, "zed"), r.line());
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [r.name(0)]);
    assert_eq!(m.ls("threads/t"), [r.name(0)]);
    // The duplicate arrives while the store is mounted and after the message was read.
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
    samp::append_raw(&samp::log(&bed.store, "foo"), r.line());
    samp::append_raw(&copy, r.line());
    let probe = samp::append(&bed.store, "foo", "bar", "t", "probe", T0 + 1);
    m.inbox_becomes(&[&probe.name(0)]);
}

/// S41: reading, marking, sending and refusing touch no file but my log and my `.seen`.
#[test]
fn s41_store_files() {
    let (bed, m, recs, _) = mounted_three();
    let mine = [".seen-bar", "log-bar.jsonl"];
    let rest = || {
        let mut all: Vec<_> = fs::read_dir(&bed.store)
            .unwrap()
            .map(|e| e.unwrap())
            .filter(|e| !mine.contains(&e.file_name().to_str().unwrap()))
            .map(|e| {
                (
                    e.file_name(),
                    fs::read(e.path()).unwrap(),
                    e.metadata().unwrap().modified().unwrap(),
                )
            })
            .collect();
        all.sort();
        all
    };
    let before = rest();
    m.ok("cat inbox/* > /dev/null; echo hi > outbox/foo; echo yes > threads/plan/answer");
    m.sh("echo x > outbox/'bad name'");
    m.ok(&format!("mv '{}' inbox/; rm inbox/*", recs[0].archived(0)));
    soon("the watermark is written", || bed.store.join(".seen-bar").exists());
    m.umount();
    assert_eq!(rest(), before);
}
