//! Death at one particular system call: an accepted message is in the store exactly once.

use std::fs;
use std::time::Duration;

use crate::common::{Bed, run_for, samp};

/// Returns the bodies in my log without torn lines.
pub(crate) fn bodies(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(samp::log(&bed.store, "bar")).unwrap_or_default();
    let records = text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    records.filter_map(|r| r["body"].as_str().map(str::to_owned)).collect()
}

/// S55: msgfs dies at one particular system call: the first, second, ... write and fdatasync after the draft was
/// opened. The log agrees with the result of `close` after the next mount.
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
            let how = format!("signal=KILL:when={nth}");
            let tracer = m.meddle(call, &how);
            let inject = format!("{call}:{how}");
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
    // Otherwise nothing was tested: sending needs at least a write and its sync.
    println!("died at {deadly:?}");
    for call in ["write", "sync"] {
        assert!(deadly.iter().any(|d| d.contains(call)), "never died at {call}: {deadly:?}");
    }
}

/// Processes that send numbered messages as fast as they can, each under a name of its own.
const TOGETHER: &str = r"
import os, sys
mount, senders, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def send(sender):
    for number in range(each):
        f = os.open(f'{mount}/outbox/to{sender}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(f, f'{sender}-{number}\n'.encode())
        os.close(f)
    os._exit(0)
children = [os.fork() or send(sender) for sender in range(senders)]
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
";

/// S606: on a slow disk the programs that close at once wait together. msgfs is killed as soon as the last of them
/// got its answer.
#[test]
fn s606_who_closes_at_once_waits_together() {
    const SENDERS: usize = 8;
    const EACH: usize = 10;
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo first > outbox/foo");
    let notes = bed.path("trace");
    let tracer = m.trace("fdatasync", "delay_enter=100000", &notes);
    let mut c = bed.command("python3");
    c.args(["-c", TOGETHER]).arg(&m.dir).args([SENDERS.to_string(), EACH.to_string()]);
    let out = run_for(c, None, Duration::from_secs(100));
    m.kill9();
    drop(tracer);
    assert!(out.ok(), "{out:?}");
    let trace = fs::read_to_string(notes).unwrap();
    let waits = |file: &str| trace.lines().filter(|line| line.contains(file)).count();
    let (spool, log) = (waits("/spool>"), waits("/log-bar.jsonl>"));
    let shared = 1..=SENDERS * EACH * 3 / 4;
    assert!(shared.contains(&spool) && shared.contains(&log), "{spool} and {log} waits:\n{trace}");
    bed.mount("bar").umount();
    let sent = bodies(&bed);
    for sender in 0..SENDERS {
        let of_one: Vec<&String> =
            sent.iter().filter(|body| body.starts_with(&format!("{sender}-"))).collect();
        let in_order: Vec<String> = (0..EACH).map(|number| format!("{sender}-{number}")).collect();
        assert_eq!(of_one, in_order.iter().collect::<Vec<_>>(), "once each, in order");
    }
}
