//! `search/` and `msgfs search`: queries, the files of a result, freshness, damage, kills, and hostile texts.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::proc::Running;
use crate::common::samp::{self, Rec, T0, append_raw, log};
use crate::common::{Bed, Mount, PATIENCE, soon};

/// Makes a store with four messages to bar, and one between others in a thread of bar.
fn bed() -> Bed {
    let bed = Bed::new();
    let day = 86_400;
    for (from, to, thread, body, ts) in [
        ("foo", "bar", "plan", "the Parser has a bug in Äpfel.rs", T0),
        ("foo", "bar", "plan", "no parser here\nbut a needle in line two", T0 + 60),
        ("carol", "bar", "other", "a long phrase of words; Thu is a day", T0 + day),
        ("bar", "foo", "plan", "the bug is fixed", T0 + 2 * day),
        ("carol", "bar", "other", "crème brûlée and foo-bar, ελληνικά, ёлка", T0 + 3 * day),
    ] {
        samp::append(&bed.store, from, to, thread, body, ts);
    }
    bed
}

/// Returns the names of the messages that a query lists.
#[track_caller]
fn found(m: &Mount, query: &str) -> Vec<String> {
    let mut names = m.ls(&format!("search/{query}"));
    assert_eq!(names.iter().filter(|name| *name == "hits.txt").count(), 1, "{names:?}");
    names.retain(|name| name.strip_suffix(".txt").is_some_and(|name| name != "hits"));
    names
}

/// Returns the bodies of the messages that a query lists.
#[track_caller]
fn bodies(m: &Mount, query: &str) -> Vec<String> {
    let names = found(m, query);
    let text =
        |name: &String| String::from_utf8(m.bytes(&format!("search/{query}/{name}"))).unwrap();
    let body = |name: &String| text(name).split_once("\n\n").unwrap().1.trim().to_owned();
    names.iter().map(body).collect()
}

/// Returns the numbers of the found messages, in the order in which [`bed`] has them.
#[track_caller]
fn numbers(m: &Mount, query: &str) -> String {
    const BEGINNINGS: [&str; 5] = ["the Parser", "no parser", "a long", "the bug", "crème"];
    let at = |body: &String| BEGINNINGS.iter().position(|begin| body.starts_with(begin)).unwrap();
    bodies(m, query).iter().map(|body| (at(body) + 1).to_string()).collect()
}

fn index_file(bed: &Bed) -> PathBuf {
    bed.path("cache/msgfs/bar/search")
}

/// S936: `search/` lists nothing; the folder of a query has the messages with all its words, in subject or body and in
/// no header line.
#[test]
fn s936_words() {
    let bed = bed();
    let m = bed.mount("bar");
    assert_eq!(m.ok("ls -A search"), "");
    assert!(m.ls(".").contains(&"search".to_owned()));
    for (query, wanted) in [
        ("parser", "12"),
        ("parser bug", "1"),
        ("bug", "14"),
        ("nothing", ""),
        ("Thu", "3"),
        ("carol", ""),
        ("plan", ""),
        ("needle line", "2"),
        ("foo-bar", "5"),
        ("'a", "123"),
    ] {
        assert_eq!(numbers(&m, query), wanted, "{query}");
    }
    assert_eq!(m.ls("search/nothing"), ["hits.txt"]);
    assert_eq!(m.ok("find search"), "search\n");
    m.ok("test $(find search/parser -name '*.txt' | wc -l) = 3");
    m.ok("grep -rq needle search/needle");
}

/// S937: case and accents are folded; phrases, beginnings of words, and words that must not occur.
#[test]
fn s937_folding_and_phrases() {
    let bed = bed();
    let m = bed.mount("bar");
    for (query, wanted) in [
        ("PARSER", "12"),
        ("apfel", "1"),
        ("äpfel", "1"),
        ("ÄPFEL", "1"),
        ("A\u{308}pfel", "1"),
        ("creme brulee", "5"),
        ("ελληνικα", "5"),
        ("ΕΛΛΗΝΙΚΆ елка", "5"),
        ("\"long phrase\"", "3"),
        ("\"phrase long\"", ""),
        ("phr*", "3"),
        ("\"long phr\"*", "3"),
        ("parser -bug", "2"),
        ("-parser", "345"),
        ("-\"long phrase\" -bug", "25"),
    ] {
        assert_eq!(numbers(&m, query), wanted, "{query}");
    }
}

/// S938: senders, recipients, threads, subjects, stores, days and marks are conditions; `%2F` stands for a slash.
#[test]
fn s938_conditions() {
    let bed = bed();
    append_raw(
        &log(&bed.store, "foo"),
        Rec::new("foo", "bar", "s", "a/b of it", T0 + 500)
            .line_with(&[("subject", json!("Release notes"))]),
    );
    let m = bed.mount("bar");
    let count = |query: &str| found(&m, query).len();
    for (query, wanted) in [
        ("from:foo", 3),
        ("from:FOO bug", 1),
        ("from:fo", 0),
        ("from:fo*", 3),
        ("to:foo", 1),
        ("-from:foo", 3),
        ("thread:plan", 3),
        ("thread:plan -from:foo", 1),
        ("subject:release", 1),
        ("subject:\"release notes\"", 1),
        ("subject:bug", 0),
        ("release", 1),
        ("store:samp", 6),
        ("store:other", 0),
        ("after:2026-04-25", 3),
        ("before:2026-04-25", 3),
        ("after:2026-04-25 before:2026-04-26", 1),
        ("is:unread", 5),
        ("is:unread from:carol", 2),
        ("a%2Fb", 1),
    ] {
        assert_eq!(count(query), wanted, "{query}");
    }
    m.ok("cat inbox/* > /dev/null");
    soon("all is read", || count("is:unread") == 0);
}

/// S939: the entries are the files of `archive/` or `threads/`, with their names, bytes, sizes and inode numbers. Short
/// names and `.reply` work. Reading marks nothing.
#[test]
fn s939_the_same_files() {
    let bed = bed();
    let m = bed.mount("bar");
    let unread = m.ls("inbox");
    for query in ["parser", "from:carol", "bug"] {
        for name in found(&m, query) {
            let here = fs::metadata(m.path(format!("search/{query}/{name}"))).unwrap();
            let at =
                m.ok(&format!("ls -d archive/*/{name} threads/*/{name} 2>/dev/null | head -n 1"));
            let there = fs::metadata(m.path(at.trim())).unwrap();
            assert_eq!((here.ino(), here.size()), (there.ino(), there.size()), "{name}");
            assert_eq!((here.mtime(), here.mode()), (there.mtime(), there.mode()), "{name}");
            m.ok(&format!("cmp {at} search/{query}/{name}", at = at.trim()));
        }
    }
    let id = samp::id("foo", "bar", "plan", "the Parser has a bug in Äpfel.rs", T0);
    for name in [format!("{}.txt", &id[..8]), id.clone(), format!("{id}.txt")] {
        assert!(m.cat(&format!("search/parser/{name}")).contains("Äpfel.rs"), "{name}");
        assert!(!m.sh(&format!("cat search/needle/{name}")).ok(), "{name}");
    }
    let listed = "ls -l --time-style=+%s search/parser; stat -c %Y search/parser";
    assert_eq!(m.ok(listed), m.ok(listed));
    assert_eq!(m.ok("stat -c %Y search/parser"), format!("{}\n", T0 + 60));
    assert_eq!(m.ls("inbox"), unread, "reading marks nothing");
    m.ok(&format!("echo 'I see' > search/parser/{}.reply", &id[..8]));
    soon("the reply is found", || bodies(&m, "\"I see\"") == ["I see"]);
    assert!(!m.sh("echo x > search/parser/new.txt").ok() && !m.sh("mkdir search/parser").ok());
    assert!(!m.sh("rm search/parser/*.txt").ok());
}

/// S940: `hits.txt` has a line of at most 80 characters for each of the ten newest hits, newest first, and then the
/// number of all.
#[test]
fn s940_hits() {
    let bed = bed();
    let m = bed.mount("bar");
    let text = m.cat("search/parser/hits.txt");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[2]), (3, "2 hits"), "{text}");
    let fields: Vec<&str> = lines[0].split('\t').collect();
    let id = samp::id("foo", "bar", "plan", "no parser here\nbut a needle in line two", T0 + 60);
    assert_eq!(&fields[..3], [&id[..8], "foo", "2026-04-24"]);
    assert!(fields[4].contains("no parser here"), "{text}");
    assert!(m.cat("search/needle/hits.txt").contains("but a needle in line two"));
    assert!(m.cat("search/nothing/hits.txt").starts_with("0 hits"));
    assert_eq!(m.ok("stat -c %s search/parser/hits.txt").trim(), text.len().to_string());
    for n in 0..40 {
        let far = "far away ".repeat(200);
        let body = format!("{far}\u{1b}[31m haystack\u{202e} {far}{n}");
        samp::append(&bed.store, "foo", "bar", "many", &body, T0 + 1000 + n);
    }
    soon("all are found", || m.cat("search/haystack/hits.txt").ends_with("40 hits\n"));
    let text = m.cat("search/haystack/hits.txt");
    assert_eq!(text.lines().count(), 11, "{text}");
    for line in text.lines().take(10) {
        assert!(line.chars().count() <= 80 && line.contains("haystack"), "{line}");
    }
    assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.len() < 2400, "{text}");
}

/// S941: a query that cannot be parsed is ENOENT, and `status.txt` has the last one and why. Names that begin with a
/// dot are ENOENT, too.
#[test]
fn s941_bad_queries() {
    let bed = bed();
    let m = bed.mount("bar");
    for query in ["\"open", "from:", "before:2026-02-31", "!?", "a -", "is:there"] {
        let error = fs::metadata(m.path(format!("search/{query}"))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{query}");
    }
    let before = m.cat("status.txt");
    assert!(before.contains("\nlast bad query: is:there ("), "{before}");
    for name in [".git", ".", "..", ".parser"] {
        let there = fs::metadata(m.path(format!("search/{name}")));
        assert_eq!(there.is_ok(), matches!(name, "." | ".."), "{name}");
    }
    assert_eq!(m.cat("status.txt"), before, "a dot is no query");
    let _ = fs::metadata(m.path("search/from:"));
    soon("the last one is shown", || m.cat("status.txt").contains("\nlast bad query: from: ("));
    for (name, shown) in
        [(&b".caf\xe9"[..], "from: ("), (b"caf\xe9", "caf\u{fffd} (it is not UTF-8)")]
    {
        let error = fs::metadata(m.path("search").join(OsStr::from_bytes(name))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{shown}");
        let line = format!("\nlast bad query: {shown}");
        soon("it is shown", || m.cat("status.txt").contains(&line));
    }
}

/// S942: a search sees every message that a listing shows, right after it came or was sent.
#[test]
fn s942_fresh() {
    let bed = bed();
    let m = bed.mount("bar");
    assert_eq!(found(&m, "fresh").len(), 0);
    for n in 1..20_usize {
        samp::append(&bed.store, "foo", "bar", "new", &format!("fresh {n}"), T0 + 90 + n as i64);
        soon("it is listed", || m.ls("archive/2026-04-24").len() == 2 + n);
        assert_eq!(found(&m, "fresh").len(), n);
    }
    m.ok("echo 'fresh from me' > outbox/foo; ls search/fresh | grep -c 2 | grep -qx 20");
    m.ok("grep -q '^20 hits' search/fresh/hits.txt");
}

/// A way to damage a file, and its name.
type Harm = (&'static str, fn(&PathBuf));

/// S943: an index that was deleted, cut or overwritten is made again. A cut file never ends the mount, and hides
/// nothing.
#[test]
fn s943_damage() {
    let bed = bed();
    let file = index_file(&bed);
    let harms: [Harm; 6] = [
        ("deleted", |file| fs::remove_file(file).unwrap()),
        ("empty", |file| fs::write(file, "").unwrap()),
        ("cut", |file| {
            let whole = fs::metadata(file).unwrap().len();
            fs::File::options().write(true).open(file).unwrap().set_len(whole / 2).unwrap();
        }),
        ("zeros", |file| fs::write(file, vec![0; 50_000]).unwrap()),
        ("garbage", |file| {
            let bytes: Vec<u8> =
                (0..80_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            fs::write(file, bytes).unwrap();
        }),
        ("page", |file| {
            let mut bytes = fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle..middle + 200].fill(0x55);
            fs::write(file, bytes).unwrap();
        }),
    ];
    for (name, harm) in harms {
        let m = bed.mount("bar");
        assert_eq!(numbers(&m, "parser"), "12", "{name}");
        harm(&file);
        assert_eq!(numbers(&m, &format!("parser -{name}open")), "12", "{name}, while mounted");
        let pid = m.pid();
        m.umount();
        harm(&file);
        let m = bed.mount("bar");
        assert_ne!(m.pid(), pid);
        assert_eq!(numbers(&m, &format!("parser -{name}closed")), "12", "{name}, while closed");
        assert_eq!(numbers(&m, "bug"), "14", "{name}");
        m.umount();
    }
}

/// S943: a pipe, a link or a folder in the place of a file of the index holds no search up and leads nowhere. A cache
/// folder that was removed is made again while mounted.
#[test]
fn s943_no_file() {
    let bed = bed();
    let m = bed.mount("bar");
    assert_eq!(numbers(&m, "parser"), "12");
    let file = index_file(&bed);
    let other = bed.path("other");
    fs::write(&other, "mine").unwrap();
    for (number, name) in
        ["search", "search-journal", "search.seal", "search.lock"].iter().enumerate()
    {
        let place = file.with_file_name(name);
        for harm in ["mkfifo", "ln -s ../../../other"] {
            let _ = fs::remove_file(&place);
            m.ok(&format!("{harm} {}", place.display()));
            assert_eq!(numbers(&m, &format!("parser -{number}")), "12", "{name}: {harm}");
            let out = bed.msgfs_out(&["--me", "bar", "search", "needle"]);
            assert!(out.stdout.contains("1 hit"), "{name}: {harm}: {out:?}");
        }
        fs::remove_file(&place).ok();
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    let mut asked = 0;
    soon("the index is made again", || {
        asked += 1;
        assert_eq!(numbers(&m, &format!("parser -{asked}again")), "12");
        file.is_file()
    });
    soon("nothing is said of it", || !m.cat("status.txt").contains("the index of search"));
}

/// S944: one process writes the index, and others only read it. Without an index, or where it cannot be written,
/// nothing is hidden, and `status.txt` says so.
#[test]
fn s944_one_writer() {
    let bed = bed();
    let file = index_file(&bed);
    let m = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    assert_eq!(numbers(&m, "parser"), "12");
    assert!(!file.exists(), "a mount that only reads writes nothing");
    let rw = bed.mount("bar");
    assert_eq!(numbers(&rw, "parser"), "12");
    let before = fs::metadata(&file).unwrap();
    assert_eq!(numbers(&m, "bug"), "14");
    let after = fs::metadata(&file).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    rw.umount();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fs::write(file.join("in the way"), "").unwrap();
    let rw = bed.mount("bar");
    assert_eq!(numbers(&rw, "parser"), "12");
    let status = rw.cat("status.txt");
    assert!(status.contains("the index of search cannot be written"), "{status}");
}

/// S945: the first search holds no other request up, and its program can be interrupted.
#[test]
fn s945_a_long_first_search() {
    let bed = Bed::new();
    let path = log(&bed.store, "foo");
    let mut out = std::io::BufWriter::new(fs::File::create(&path).unwrap());
    let words = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do ".repeat(30);
    for n in 0..30_000 {
        let rec = Rec::new("foo", "bar", "t", &format!("{words}{n}"), T0 + n);
        out.write_all(rec.line().as_bytes()).unwrap();
    }
    drop(out);
    let m = bed.mount("bar");
    let mut searches: Vec<Running> = (0..6)
        .map(|n| {
            let mut c = bed.command("ls");
            c.arg(m.path(format!("search/lorem -x{n}")));
            Running::start(c, None).unwrap()
        })
        .collect();
    let start = Instant::now();
    m.ok("cat README.txt > /dev/null; ls threads > /dev/null; cat status.txt > /dev/null");
    let quick = start.elapsed();
    let mut interrupted = searches.pop().unwrap();
    if interrupted.running() {
        interrupted.signal(rustix::process::Signal::INT);
        let out = interrupted.finish(Duration::from_secs(20)).unwrap();
        assert!(!out.ok() || !out.stdout.is_empty(), "{out:?}");
    }
    for search in searches {
        let out = search.finish(PATIENCE * 3).unwrap();
        assert_eq!(out.stdout.lines().count(), 30_001, "{out:?}");
    }
    assert!(quick < Duration::from_secs(20), "{quick:?}");
    assert!(m.cat("search/29999/hits.txt").ends_with("1 hit\n"));
}

/// S946: long lines, many words, odd bytes and hostile queries cost bounded time and memory.
#[test]
fn s946_hostile() {
    let bed = Bed::new();
    let long = "a".repeat(10 << 20);
    let words: String = (0..200_000).map(|n| format!("w{n:x} ")).collect();
    let bombs = "(a+)+$ .*.*.*.* [[:alpha:]]* \u{1}\u{7f}\u{feff}\u{200b} end";
    for (n, body) in [&long, &words, bombs].into_iter().enumerate() {
        samp::append(&bed.store, "foo", "bar", "t", body, T0 + n as i64);
    }
    let m = bed.mount("bar");
    assert_eq!(found(&m, "w30d3f").len(), 1);
    assert_eq!(found(&m, "aaaaaaaa*").len(), 1);
    assert_eq!(found(&m, "(a+)+$").len(), 1, "as words");
    assert_eq!(found(&m, "w1*").len(), 1);
    assert_eq!(found(&m, &"x".repeat(255)).len(), 0);
    assert_eq!(found(&m, &"a ".repeat(127)).len(), 1);
    assert_eq!(found(&m, "a\u{1}b\u{1b}").len(), 0);
    assert!(m.sh(&format!("ls search/{}", "x".repeat(256))).stderr.contains("too long"));
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let ask = |n: u32| assert!(m.path(format!("search/q{n} -z{n}")).is_dir());
    (0..2000).for_each(ask);
    let before = memory();
    (2000..12_000).for_each(ask);
    let after = memory();
    assert!(after < before + 20_000, "{before} {after} KiB");
}

/// S947: `msgfs search` prints `hits.txt`, with a mount and without one, for queries of any length. It exits with 0,
/// without hits with 1, and with 2 for a bad query.
#[test]
fn s947_the_command() {
    let bed = bed();
    let search = |args: &[&str]| {
        let all: Vec<&str> = ["--me", "bar", "search"].iter().chain(args).copied().collect();
        bed.msgfs_out(&all)
    };
    let m = bed.mount("bar");
    let hits = m.cat("search/parser bug/hits.txt");
    let long = format!("parser {}", "parser ".repeat(2000));
    for mounted in [true, false] {
        let out = search(&["parser", "bug"]);
        assert_eq!((out.code(), out.stdout), (Some(0), hits.clone()), "{mounted}");
        let out = search(&["parser", "-bug", "--limit", "5"]);
        assert!(out.ok() && out.stdout.ends_with("\n1 hit\n"), "{out:?}");
        let out = search(&[&long]);
        assert!(out.ok() && out.stdout.ends_with("\n2 hits\n"), "{mounted}: {out:?}");
        let out = search(&["nothing"]);
        assert_eq!((out.code(), out.stdout.as_str()), (Some(1), "0 hits: no message matches\n"));
        let out = search(&["from:"]);
        assert_eq!(out.code(), Some(2), "{out:?}");
        assert!(out.stderr.contains("a value must follow from: at once"), "{out:?}");
        let out = search(&["parser", "--json", "--limit", "1"]);
        let all: Value = serde_json::from_str(&out.stdout).unwrap();
        assert_eq!(all.as_array().unwrap().len(), 1, "{out:?}");
        assert_eq!(all[0]["from"], "foo");
        assert_eq!(all[0]["line"], "no parser here");
        if mounted {
            m.ok(&format!("test -e archive/*/{}", all[0]["name"].as_str().unwrap()));
            let out = bed.msgfs_out(&["umount", m.dir.to_str().unwrap()]);
            assert!(out.ok(), "{out:?}");
            fs::remove_file(index_file(&bed)).unwrap();
        }
    }
    assert!(index_file(&bed).exists(), "the command makes the index if nobody acts");
}

/// S948: with `search = false` there is no `search/`, and the command says so.
#[test]
fn s948_turned_off() {
    let bed = bed();
    bed.config("search = false\n");
    let m = bed.mount("bar");
    assert!(!m.ls(".").contains(&"search".to_owned()));
    assert!(!m.sh("ls search").ok() && !m.sh("cat search/parser/hits.txt").ok());
    assert!(!m.cat("README.txt").contains("search/"));
    let out = bed.msgfs_out(&["--me", "bar", "search", "parser"]);
    assert_eq!(out.code(), Some(2), "{out:?}");
    assert!(out.stderr.contains("search = false"), "{out:?}");
    assert!(!index_file(&bed).exists());
}

/// S949: a kill while the index is built loses nothing and hides nothing, and leaves no file behind but the index.
#[test]
fn s949_kills() {
    let bed = Bed::new();
    for n in 0..6000 {
        let body = format!("number {n} {}", "some more words of no meaning ".repeat(20));
        append_raw(&log(&bed.store, "foo"), Rec::new("foo", "bar", "t", &body, T0 + n).line());
    }
    for round in 0..6_u64 {
        let m = bed.mount("bar");
        let mut c = bed.command("ls");
        c.arg(m.path(format!("search/number -x{round}")));
        let search = Running::start(c, None).unwrap();
        std::thread::sleep(Duration::from_millis(30 + 60 * round));
        m.kill9();
        let _ = search.finish(PATIENCE);
        let m = bed.mount("bar");
        let hits = m.cat(&format!("search/number -y{round}/hits.txt"));
        assert!(hits.ends_with("6000 hits\n"), "{hits}");
        assert!(m.cat("search/5999/hits.txt").ends_with("1 hit\n"));
        m.umount();
        if round % 2 == 0 {
            fs::remove_file(index_file(&bed)).unwrap();
        }
    }
    let left: Vec<String> = fs::read_dir(bed.path("cache/msgfs/bar"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("search"))
        .collect();
    let known = ["search", "search.lock", "search.seal", "search-journal"];
    assert!(left.iter().all(|name| known.contains(&name.as_str())), "{left:?}");
}

/// S1150: no hits are no number of hits.
#[test]
fn s1150_no_hits() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "parser", samp::T0);
    let m = bed.mount("bar");
    let out = bed.msgfs_out(&["search", "--me", "bar", "parser", "--limit", "0"]);
    assert!(out.code() == Some(2) && out.stderr.contains("at least 1"), "{out:?}");
    let out = m.sh("cat 'search/parser/.hits=0'");
    assert!(out.stderr.contains("No such file"), "{out:?}");
}
