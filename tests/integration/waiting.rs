//! `.wait` and `.next`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::fixtures::{mounted_three, strs};
use crate::common::proc::Running;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount};

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
