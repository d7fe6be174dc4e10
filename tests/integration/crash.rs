//! Death at one particular system call: what `close` accepted is in the store exactly once.

use std::fs;
use std::time::Duration;

use crate::common::{Bed, samp};

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
    // Otherwise nothing was tested: sending needs at least a write and its way to the disk.
    println!("died at {deadly:?}");
    for call in ["write", "sync"] {
        assert!(deadly.iter().any(|d| d.contains(call)), "never died at {call}: {deadly:?}");
    }
}
