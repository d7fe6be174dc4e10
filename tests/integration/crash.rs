//! `kill -9` at random moments: what `close` accepted is in the store exactly once.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::proc::Running;
use crate::common::samp::{self, member};
use crate::common::{Bed, wait_for};

/// Three threads send numbered messages as fast as they can and note which `close` returned 0.
/// A failed send is never repeated: its outcome is unknown to the writer.
const SENDER: &str = r"
import os, sys, threading, time
mount, notes = sys.argv[1:]
log = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(writer):
    number = 0
    while not os.path.exists(notes + '.stop'):
        number += 1
        text = f'{writer}-{number}'
        try:
            f = os.open(mount + '/outbox/foo', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(f, (text + '\n').encode())
            except OSError:
                os.close(f)
                raise
            os.close(f)
        except OSError:
            time.sleep(0.002)
            continue
        os.write(log, (text + '\n').encode())
all = [threading.Thread(target=work, args=(w,)) for w in 'abc']
[t.start() for t in all]
[t.join() for t in all]
";

/// A small generator; its seed is printed so that a failure can be looked into.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// S55: at least 200 kills (`MSGFS_TEST_KILLS`), between, during and right after sends and during
/// recovery.
#[test]
fn s55_kill_loop() {
    let kills: u32 =
        std::env::var("MSGFS_TEST_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(200);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "hello", samp::T0);
    let notes = bed.path("notes");
    let mut c = bed.command("python3");
    c.arg("-c").arg(SENDER).arg(bed.path("mnt-bar")).arg(&notes);
    let sender = Running::start(c, None).unwrap();
    let start = Instant::now();
    for _ in 0..kills {
        let m = bed.mount("bar");
        std::thread::sleep(Duration::from_micros(dice.below(60_000)));
        m.kill9();
    }
    fs::write(bed.path("notes.stop"), "").unwrap();
    let m = bed.mount("bar");
    let out = sender.finish(Duration::from_secs(20)).unwrap();
    assert!(out.ok(), "{out:?}");
    wait_for(Duration::from_secs(10), "the outbox drains", || m.ls("outbox").is_empty());
    m.umount();
    let accepted = fs::read_to_string(&notes).unwrap();
    let accepted: Vec<&str> = accepted.lines().collect();
    println!("{kills} kills in {:?}, {} messages accepted", start.elapsed(), accepted.len());
    assert!(accepted.len() > kills as usize, "the sender hardly ever got through");
    let text = fs::read_to_string(samp::log(&bed.store, "bar")).unwrap();
    let mut count: BTreeMap<String, u32> = BTreeMap::new();
    let mut ids = std::collections::BTreeSet::new();
    for line in text.lines().filter(|l| !l.is_empty()) {
        // A line that was torn by the kill may remain, closed by a newline; it is nobody's message.
        let Ok(serde_json::Value::Object(r)) = serde_json::from_str(line) else { continue };
        *count.entry(member(&r, "body").to_owned()).or_default() += 1;
        assert!(ids.insert(member(&r, "id").to_owned()), "two records with one id: {line}");
    }
    let lost: Vec<_> = accepted.iter().filter(|a| !count.contains_key(**a)).collect();
    assert!(lost.is_empty(), "{} accepted and lost: {lost:?}", lost.len());
    let doubled: Vec<_> = count.iter().filter(|(_, n)| **n > 1).collect();
    assert!(doubled.is_empty(), "sent more than once: {doubled:?}");
}

/// The bodies in my log, torn lines left out.
pub(crate) fn bodies(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(samp::log(&bed.store, "bar")).unwrap_or_default();
    let records = text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    records.filter_map(|r| r["body"].as_str().map(str::to_owned)).collect()
}

/// S55: death at one particular system call: the first, second, ... write and fdatasync after the
/// draft was opened. Whatever `close` said, the log agrees after the next mount.
#[test]
fn s55_death_at_each_call() {
    let mut deadly = Vec::new();
    for call in [
        "fdatasync",
        "fsync",
        "write",
        "pwrite64",
        "rename",
        "renameat",
        "renameat2",
        "unlink",
        "unlinkat",
        "ftruncate",
    ] {
        for nth in 1..=3 {
            let bed = Bed::new();
            let m = bed.mount("bar");
            m.ok("echo first > outbox/foo");
            let mut c = bed.command("strace");
            let inject = format!("inject={call}:signal=KILL:when={nth}");
            c.args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                &format!("trace={call}"),
                "-e",
                &inject,
                "-p",
            ]);
            c.arg(m.pid().to_string());
            let tracer = Running::start(c, None).unwrap();
            wait_for(Duration::from_secs(5), "strace is attached", || {
                let status =
                    fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap_or_default();
                status.lines().any(|l| l.starts_with("TracerPid:") && !l.ends_with("\t0"))
            });
            std::thread::sleep(Duration::from_millis(50));
            let sent = m.sh("/bin/echo second > outbox/foo");
            let again = m.sh("sleep 0.05; /bin/echo third > outbox/foo");
            std::thread::sleep(Duration::from_millis(50));
            tracer.signal(rustix::process::Signal::INT);
            drop(tracer);
            let pid = rustix::process::Pid::from_raw(m.pid()).unwrap();
            if !crate::common::alive(pid) {
                deadly.push(inject.clone());
            }
            m.kill9();
            bed.mount("bar").umount();
            let count = |b: &str| bodies(&bed).iter().filter(|x| *x == b).count();
            assert_eq!(count("first"), 1, "{inject}");
            for (out, body) in [(&sent, "second"), (&again, "third")] {
                let n = count(body);
                assert!(
                    n <= 1 && (!out.ok() || n == 1),
                    "{inject}: {body} {n} times after {out:?}"
                );
            }
        }
    }
    // Otherwise nothing was tested: sending needs at least a write and its way to the disk.
    println!("died at {deadly:?}");
    for call in ["write", "sync"] {
        assert!(deadly.iter().any(|d| d.contains(call)), "never died at {call}: {deadly:?}");
    }
}
