//! `.wait`, `.next` and `.watch`.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::common::fixtures::{mounted_three, strs};
use crate::common::proc::Running;
use crate::common::samp::{self, Rec, T0, append_raw, log};
use crate::common::{Bed, Mount, PATIENCE, need_root, run, soon, wait_for};

fn reader(bed: &Bed, m: &Mount, script: &str) -> Running {
    let mut c = bed.command("bash");
    c.args(["-c", script]).current_dir(&m.dir);
    Running::start(c, None).unwrap()
}

/// S78: with unread mail `.wait` gives the names at once, and marks nothing.
#[test]
fn s78_at_once() {
    let (_bed, m, _, names) = mounted_three();
    // If it had waited, it would have given nothing.
    assert_eq!(m.cat(".wait"), names.join("\n") + "\n");
    m.inbox_stays(&strs(&names));
}

/// S78: `.wait` blocks, and wakes when mail comes.
#[test]
fn s78_wakes() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut r = reader(&bed, &m, "cat .wait");
    std::thread::sleep(Duration::from_millis(400));
    assert!(r.running(), "it blocks");
    samp::append(&bed.store, "foo", "carol", "t", "not for bar", T0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(r.running(), "other people's mail does not wake it");
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for bar", T0);
    let out = r.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout == format!("{}\n", mail.name(1)), "{out:?}");
    m.inbox_stays(&[&mail.name(1)]);
}

/// S78: after `wait_timeout` it gives nothing, with success.
#[test]
fn s78_timeout() {
    let bed = Bed::new();
    bed.config("wait_timeout = \"1s\"\n");
    let m = bed.mount("bar");
    let start = Instant::now();
    let out = m.sh("cat .wait");
    assert!(out.ok() && out.stdout.is_empty(), "{out:?}");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(900), "{took:?}");
    assert_eq!(m.cat(".next"), "");
}

/// S79: `.next` gives the oldest message, marks it, and then gives the next one.
#[test]
fn s79_next() {
    let (_bed, m, recs, names) = mounted_three();
    for (i, r) in recs.iter().enumerate() {
        assert_eq!(m.cat(".next"), r.file("none"));
        m.inbox_becomes(&strs(&names[i + 1..]));
    }
}

/// S79: `.next` blocks until mail comes.
#[test]
fn s79_next_blocks() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut r = reader(&bed, &m, "cat .next");
    std::thread::sleep(Duration::from_millis(300));
    assert!(r.running());
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for bar", T0);
    let out = r.finish(PATIENCE).unwrap();
    assert_eq!(out.stdout, mail.file("none"));
    m.inbox_becomes(&[]);
}

/// S79: a message that was not read to the end stays unread.
#[test]
fn s79_not_to_the_end() {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", "t", &"long text ".repeat(400_000), T0);
    let m = bed.mount("bar");
    m.ok("head -c 10 .next > /dev/null");
    m.inbox_stays(&[&r.name(0)]);
    assert_eq!(m.ok("cat .next | wc -c").trim(), r.file("none").len().to_string());
    m.inbox_becomes(&[]);
}

/// S1217: a message whose log cannot be read keeps no other from `.next`. It comes when the log can be read.
#[test]
fn s1217_unreadable_message() {
    need_root();
    let bed = Bed::new();
    let locked = samp::append(&bed.store, "foo", "bar", "t", "locked", T0);
    let good = samp::append(&bed.store, "zed", "bar", "t", "good", T0 + 50);
    let m = bed.mount_without_override("bar");
    let path = samp::log(&bed.store, "foo").display().to_string();
    assert!(bed.sh(&format!("chmod 0 {path}; chown 65534 {path}")).ok());
    soon("it is reported", || m.cat("status.txt").contains("log-foo.jsonl"));
    assert_eq!(m.cat(".next"), good.file("none"));
    let out = m.sh("cat .next");
    assert!(!out.ok() && out.stderr.contains("Permission denied"), "{out:?}");
    assert!(bed.sh(&format!("chmod 644 {path}")).ok());
    assert_eq!(m.cat(".next"), locked.file("none"));
    m.inbox_becomes(&[]);
}

/// S80: Ctrl-C, SIGTERM and SIGKILL end a blocked reader within a second.
#[test]
fn s80_signals() {
    let bed = Bed::new();
    bed.config("wait_timeout = \"600s\"\n");
    let m = bed.mount("bar");
    for file in [".wait", ".next", ".watch"] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let r = reader(&bed, &m, &format!("exec cat {file}"));
            std::thread::sleep(Duration::from_millis(300));
            r.signal(signal);
            // This is far less than it would have waited.
            let out = r.finish(PATIENCE).unwrap();
            assert!(out.status.is_some() && !out.ok(), "{file} {signal:?}: {out:?}");
        }
    }
    let mail = samp::append(&bed.store, "foo", "bar", "t", "after", T0);
    m.inbox_stays(&[&mail.name(0)]);
}

/// S80: fifty blocked readers delay nobody, and all wake.
#[test]
fn s80_many() {
    let bed = Bed::new();
    bed.config("wait_timeout = \"600s\"\n");
    let m = bed.mount("bar");
    let mut readers: Vec<_> = (0..50).map(|_| reader(&bed, &m, "exec cat .wait")).collect();
    std::thread::sleep(Duration::from_millis(500));
    m.ok("ls -la . inbox archive > /dev/null; cat status.txt > /dev/null; echo hi > outbox/foo");
    assert!(readers.iter_mut().all(Running::running), "nobody had to end for that");
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for all", T0);
    for r in readers {
        let out = r.finish(PATIENCE).unwrap();
        assert_eq!(out.stdout, format!("{}\n", mail.name(0)));
    }
}

/// S165: a thousand reads wait at once, delay nobody, and all get their answer.
#[test]
fn s165_a_thousand() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    // It is one process with one thread for each reader, so that the machine of the test does not fail.
    let readers = r"
import threading, sys
got = []
def wait():
    with open('.wait') as f: got.append(f.read())
all = [threading.Thread(target=wait) for _ in range(1000)]
[t.start() for t in all]
open(sys.argv[1], 'w').close()
[t.join() for t in all]
print(len(got), len(set(got)), got[0].strip())
";
    let mut c = bed.command("python3");
    let started = bed.path("started");
    c.args(["-c", readers]).arg(&started).current_dir(&m.dir);
    let mut r = Running::start(c, None).unwrap();
    wait_for(Duration::from_secs(60), "all wait", || started.exists());
    m.ok("ls -la . inbox archive > /dev/null; cat status.txt > /dev/null");
    assert!(r.running());
    let threads = std::fs::read_dir(format!("/proc/{}/task", m.pid())).unwrap().count();
    assert!(threads < 200, "a thread each: {threads}");
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for all", T0);
    let out = r.finish(PATIENCE).unwrap();
    assert_eq!(out.stdout, format!("1000 1 {}\n", mail.name(0)));
}

/// S166: each of ten open `.next` has another message. A message that is closed before its end is the next one's.
#[test]
fn s166_one_message_to_one_reader() {
    let bed = Bed::new();
    let recs: Vec<_> =
        (0..10).map(|n| samp::append(&bed.store, "foo", "bar", "t", "text", T0 + n)).collect();
    let m = bed.mount("bar");
    let said = m.py(
        r"
import os
fds = [os.open('.next', os.O_RDONLY) for _ in range(10)]
first = [os.read(fd, 1 << 20) for fd in fds]
print(len(set(first)))
print(sorted(os.listdir('inbox')) == [n for n in sorted(os.listdir('archive/' + os.listdir('archive')[0]))])
[os.close(fd) for fd in fds]
print(len(os.listdir('inbox')))
",
        &[],
    );
    assert_eq!(said, "10\nTrue\n0\n");
    let late = samp::append(&bed.store, "foo", "bar", "t", &"long ".repeat(1000), T0 + 20);
    m.appears(&format!("inbox/{}", late.name(0)));
    let said = m.py(
        r"
import os
one = os.open('.next', os.O_RDONLY)
part = os.read(one, 100)
other = os.open('.next', os.O_RDONLY)
import threading
got = []
reader = threading.Thread(target=lambda: got.append(os.read(other, 1 << 20)))
reader.start()
reader.join(1)
print(reader.is_alive())
os.close(one)
reader.join(60)
print(got[0].startswith(part))
",
        &[],
    );
    assert_eq!(said, "True\nTrue\n");
    assert_eq!(recs.len(), 10);
    m.inbox_becomes(&[]);
}

/// S167: when the program that read has ended, the mark is made.
#[test]
fn s167_the_mark_is_made_when_close_returns() {
    let bed = Bed::new();
    for n in 0..40 {
        samp::append(&bed.store, "foo", "bar", "t", "text", T0 + n);
    }
    let m = bed.mount("bar");
    let loops = "for i in {1..20}; do cat .next > /dev/null; ls inbox | wc -l; done; \
                 for i in {1..20}; do cat inbox/$(ls inbox | head -1) > /dev/null; ls inbox | wc -l; done";
    let left: Vec<u32> = m.ok(loops).lines().map(|l| l.trim().parse().unwrap()).collect();
    assert_eq!(left, (0..40).rev().collect::<Vec<_>>());
    // The mark is in the file, too, whatever comes next.
    m.kill9();
    assert!(bed.mount("bar").ls("inbox").is_empty());
}

/// Returns the ids of the messages in a text.
fn ids(text: &str) -> Vec<&str> {
    text.lines().filter(|l| l.starts_with("Message-ID: ")).collect()
}

/// S221: one reader after the other, two files in one program, a loop in one process, and three readers at once:
/// no message comes twice, and none is left.
#[test]
fn s221_next_hands_out_nothing_twice() {
    let bed = Bed::new();
    let lines: String = (0..600)
        .map(|i| samp::Rec::new("foo", "bar", "t", &format!("mail {i}"), T0 + i).line())
        .collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), lines);
    let m = bed.mount("bar");
    let mut all = m.ok("for i in $(seq 50); do cat .next .next; done");
    all += &m.py(
        "for _ in range(200):\n    f = open('.next'); sys.stdout.write(f.read()); f.close()",
        &[],
    );
    all += &m.ok(
        "for r in 1 2 3; do (for i in $(seq 50); do cat .next .next; done > ../cwd/$r) & done; wait; \
         cat ../cwd/[123]",
    );
    let mut got = ids(&all);
    assert_eq!(got.len(), 600);
    got.sort_unstable();
    got.dedup();
    assert_eq!(got.len(), 600);
    assert!(m.ls("inbox").is_empty());
}

/// S221: if reading marks nothing, `.next` hands out each message once as well. A message that is made unread
/// comes once more.
#[test]
fn s221_next_where_reading_marks_nothing() {
    let bed = Bed::new();
    bed.config("mark_read = \"on-remove\"\nwait_timeout = \"1s\"\n");
    let recs = crate::common::fixtures::three(&bed);
    let m = bed.mount("bar");
    m.ok("head -c 10 .next > /dev/null");
    assert_eq!(m.ok("cat .next .next .next"), recs.clone().map(|r| r.file("none")).concat());
    assert_eq!((m.cat(".next"), m.ls("inbox").len()), (String::new(), 3));
    m.ok(&format!("mv {} inbox/", recs[1].archived(0)));
    assert_eq!(m.cat(".next"), recs[1].file("none"));
}

/// S221: the mark is made when the last close returns, whichever process closes last. Here the opener has ended
/// before.
#[test]
fn s221_the_mark_is_made_by_who_inherited_the_file() {
    let bed = Bed::new();
    for n in 0..20 {
        samp::append(&bed.store, "foo", "bar", "t", "text", T0 + n);
    }
    let m = bed.mount("bar");
    m.py(
        r"
import subprocess, time
for left in reversed(range(20)):
    r, w = os.pipe()
    middle = os.fork()
    if middle == 0:
        fd = os.open('.next', os.O_RDONLY)
        opener = os.getpid()
        if os.fork() == 0:
            while os.getppid() == opener: time.sleep(0.001)
            assert os.read(fd, 1 << 20)
            os.close(fd)
            os.write(w, b'%d' % len(os.listdir('inbox')))
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(w)
    seen = os.read(r, 9)
    assert int(seen) == left, (seen, left)
    os.close(r)
",
        &[],
    );
}

/// S225: `.watch` gives each name once, as it arrives, and not the messages that were unread before. It also gives
/// a name that another reader took meanwhile.
#[test]
fn s225_watch() {
    let bed = Bed::new();
    let old = samp::append(&bed.store, "foo", "bar", "t", "unread before", T0);
    let m = bed.mount("bar");
    let out = bed.path("out");
    let script = format!("cat .watch | while read name; do echo $name >> {}; done", out.display());
    let mut r = reader(&bed, &m, &script);
    let told = || std::fs::read_to_string(&out).unwrap_or_default();
    // Once it waits in the file, it has opened it.
    let file = m.path(".watch");
    let waits = format!("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q '{}'", file.display());
    crate::common::soon("it is open", || bed.sh(&waits).ok());
    let mut names = String::new();
    for n in 1..=5 {
        let mail = samp::append(&bed.store, "foo", "bar", "t", &format!("mail {n}"), T0 + n);
        names += &(mail.name(0) + "\n");
        crate::common::soon("the name is told", || told() == names);
        if n == 2 {
            m.ok("cat .next .next > /dev/null");
        }
    }
    samp::append(&bed.store, "foo", "carol", "t", "not for bar", T0 + 9);
    m.ok(&format!("mv {} inbox/", old.archived(0)));
    samp::append(&bed.store, "foo", "bar", "t", "last", T0 + 10);
    crate::common::soon("the last is told", || told().lines().count() == 6);
    assert!(r.running() && told().starts_with(&names), "{}", told());
    r.signal(Signal::INT);
    r.finish(PATIENCE).unwrap();
}

/// S225: readers that share an open `.watch` share the names. Two readers that each open it get all of them. A
/// reader that takes a byte at a time gets whole lines.
#[test]
fn s225_watch_for_several() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let program = r"
import threading, select
shared, alone = os.open('.watch', os.O_RDONLY), os.open('.watch', os.O_RDONLY)
try: os.lseek(alone, 0, os.SEEK_SET); sys.exit('it can be sought in')
except OSError: pass
parts = []
lock = threading.Lock()
def take():
    while sum(p.count(b'\n') for p in parts) < 20:
        part = os.read(shared, 1)
        assert part, 'an end'
        with lock: parts.append(part)
one = threading.Thread(target=take)
one.start()
open(sys.argv[1], 'w').close()
one.join()
whole = b''
while whole.count(b'\n') < 20: whole += os.read(alone, 7)
assert b''.join(parts) == whole, (parts, whole)
sys.stdout.write(whole.decode())
";
    let started = bed.path("started");
    let mut c = bed.command("python3");
    c.args(["-c", &format!("import os, sys{program}")]).arg(&started).current_dir(&m.dir);
    let mut r = Running::start(c, None).unwrap();
    crate::common::soon("it is open", || started.exists() || !r.running());
    let recs: Vec<_> = (0..20)
        .map(|n| samp::append(&bed.store, "foo", "bar", "t", &format!("mail {n}"), T0 + n))
        .collect();
    let out = r.finish(PATIENCE).unwrap();
    let mut names: Vec<_> = out.stdout.lines().collect();
    names.sort_unstable();
    assert_eq!(names, recs.iter().map(|r| r.name(0)).collect::<Vec<_>>(), "{out:?}");
    m.inbox_stays(&names);
}

/// S225: the same stream exists without a mount.
#[test]
fn s225_watch_without_a_mount() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "unread before", T0);
    let out = bed.path("out");
    let mut c = bed.msgfs(["cat", ".watch", "--me", "bar"]);
    c.stdout(std::fs::File::create(&out).unwrap());
    let mut child = c.spawn().unwrap();
    let mut n = 0;
    // It takes a moment until it looks, and mail that came before is not reported.
    crate::common::soon("a name is told", || {
        n += 1;
        samp::append(&bed.store, "foo", "bar", "t", &format!("mail {n}"), T0 + n);
        std::thread::sleep(Duration::from_millis(200));
        !std::fs::read_to_string(&out).unwrap().is_empty()
    });
    let mail = samp::append(&bed.store, "foo", "bar", "t", "last", T0 + 1000);
    crate::common::soon("the next is told", || {
        std::fs::read_to_string(&out).unwrap().ends_with(&(mail.name(0) + "\n"))
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

/// S80, S88: an unmount does not wait for a blocked reader.
#[test]
fn s80_unmount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut r = reader(&bed, &m, &format!("cd /; exec cat {}/.wait", m.dir.display()));
    std::thread::sleep(Duration::from_millis(300));
    m.signal(Signal::TERM);
    crate::common::soon("the reader ends", || !r.running());
    assert!(!crate::common::mounted(&m.dir));
}

/// S1232: `msgfs send --wait-for` beside a mount works with a key that is longer than the name of a file. If the state
/// cannot be read when the time is over, it ends with 3 and says that the message is sent.
#[test]
fn s1232_a_long_key() {
    let bed = Bed::new();
    let _m = bed.mount("bar");
    let send = |key: &str, time: &str| {
        let line = ["send", "foo", "--new", "--wait-for", "stored", "--me", "bar", "hello"];
        let mut command = bed.msgfs(line);
        command.args(["--key", key, "--timeout", time]);
        run(command, None)
    };
    for key in ["/".repeat(256), "%a".repeat(120), "x".repeat(252)] {
        let out = send(&key, "60s");
        assert_eq!(out.code(), Some(0), "{key}: {out:?}");
    }
    let (socket, aside) = (bed.state("bar").join("socket"), bed.state("bar").join("aside"));
    std::fs::rename(&socket, &aside).unwrap();
    let out = send(&"y".repeat(256), "1s");
    std::fs::rename(&aside, &socket).unwrap();
    assert_eq!(out.code(), Some(3), "{out:?}");
    assert!(out.stderr.contains("the message is sent"), "{out:?}");
}

/// S1230: if the answer cannot be printed, `msgfs ask` ends with 3 and says that the message is sent. The answer stays
/// unread.
#[test]
fn s1230_an_answer_that_is_not_printed() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let program = crate::common::binary().display().to_string();
    let ask = format!("{program} ask foo --new --key k --timeout 0 --me bar 'which port?'");
    let out = bed.sh(&ask);
    assert_eq!(out.code(), Some(3), "{out:?}");
    let asked = samp::only(&bed.store, "bar");
    let thread = samp::member(&asked, "thread");
    let answer = Rec::new("foo", "bar", thread, "port 80", samp::now() + 1);
    let re = ("re", json!(samp::member(&asked, "id")));
    append_raw(&log(&bed.store, "foo"), answer.line_with(&[re]));
    wait_for(PATIENCE, "it arrives", || m.ls("inbox").len() == 1);
    for to in ["> /dev/full", ">&-"] {
        let out = bed.sh(&format!("{ask} {to}"));
        assert_eq!(out.code(), Some(3), "{to}: {out:?}");
        assert!(out.stderr.contains("the message is sent, but cannot write"), "{to}: {out:?}");
        assert_eq!(m.ls("inbox").len(), 1);
    }
    assert_eq!(bed.sh(&ask).stdout, "port 80\n");
}
