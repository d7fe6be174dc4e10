//! `.wait` and `.next`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::fixtures::{mounted_three, strs};
use crate::common::proc::Running;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, wait_for};

fn reader(bed: &Bed, m: &Mount, script: &str) -> Running {
    let mut c = bed.command("bash");
    c.args(["-c", script]).current_dir(&m.dir);
    Running::start(c, None).unwrap()
}

/// S78: with unread mail it gives the names at once, and marks nothing.
#[test]
fn s78_at_once() {
    let (_bed, m, _, names) = mounted_three();
    let start = Instant::now();
    assert_eq!(m.cat(".wait"), names.join("\n") + "\n");
    assert!(start.elapsed() < Duration::from_secs(2));
    m.inbox_stays(&strs(&names));
}

/// S78: it blocks, and wakes when mail comes.
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
    let out = r.finish(Duration::from_secs(2)).unwrap();
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
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(4), "{took:?}");
    assert_eq!(m.cat(".next"), "");
}

/// S79: `.next` gives the oldest, marks it, then the next.
#[test]
fn s79_next() {
    let (_bed, m, recs, names) = mounted_three();
    for (i, r) in recs.iter().enumerate() {
        assert_eq!(m.cat(".next"), r.file("none"));
        m.inbox_becomes(&strs(&names[i + 1..]));
    }
}

/// S79: it blocks until mail comes.
#[test]
fn s79_next_blocks() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut r = reader(&bed, &m, "cat .next");
    std::thread::sleep(Duration::from_millis(300));
    assert!(r.running());
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for bar", T0);
    let out = r.finish(Duration::from_secs(2)).unwrap();
    assert_eq!(out.stdout, mail.file("none"));
    m.inbox_becomes(&[]);
}

/// S79: what was not read to the end stays unread.
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

/// S80: Ctrl-C, SIGTERM and SIGKILL end a blocked reader within a second.
#[test]
fn s80_signals() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for file in [".wait", ".next"] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let r = reader(&bed, &m, &format!("exec cat {file}"));
            std::thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            r.signal(signal);
            let out = r.finish(Duration::from_secs(5)).unwrap();
            assert!(out.status.is_some() && !out.ok(), "{file} {signal:?}: {out:?}");
            assert!(
                start.elapsed() < Duration::from_millis(1500),
                "{file} {signal:?}: {:?}",
                start.elapsed()
            );
        }
    }
    let mail = samp::append(&bed.store, "foo", "bar", "t", "after", T0);
    m.inbox_stays(&[&mail.name(0)]);
}

/// S80: fifty blocked readers delay nobody, and all wake.
#[test]
fn s80_many() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let readers: Vec<_> = (0..50).map(|_| reader(&bed, &m, "exec cat .wait")).collect();
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    m.ok("ls -la . inbox archive > /dev/null; cat status.txt > /dev/null; echo hi > outbox/foo");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let mail = samp::append(&bed.store, "foo", "bar", "t", "for all", T0);
    for r in readers {
        let out = r.finish(Duration::from_secs(5)).unwrap();
        assert_eq!(out.stdout, format!("{}\n", mail.name(0)));
    }
}

/// S165: a thousand reads wait at once, delay nobody, and all get their answer.
#[test]
fn s165_a_thousand() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    // One process with a thread a reader, so that the test's machine is not what fails.
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
    let out = r.finish(Duration::from_secs(60)).unwrap();
    assert_eq!(out.stdout, format!("1000 1 {}\n", mail.name(0)));
}

/// S166: of ten open `.next` each has another message, and what one closes before its end is the next
/// one's.
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
    // And in the file, whatever comes next.
    m.kill9();
    assert!(bed.mount("bar").ls("inbox").is_empty());
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
