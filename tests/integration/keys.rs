//! Keys that change: refused ones, imported ones, and what is known of used ones.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::common::samp::{Rec, T0, append_signed, fingerprint, key};
use crate::common::{Bed, run, soon};

/// S1226: a command waits for a killed mount that still holds the lock.
#[test]
fn s1226_a_killed_mount_is_waited_for() {
    let bed = Bed::new();
    bed.mount("bar").umount();
    // Nobody waits for this process until the test ends, so it is like one whose threads wait for a disk.
    let mut ended = bed.command("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    soon("it has ended", || fs::read_to_string(&stat).unwrap().contains(") Z "));
    let lock = bed.state("bar").join("lock");
    fs::write(&lock, format!("{{\"pid\": {}, \"mountpoint\": \"/nowhere\"}}", ended.id())).unwrap();
    let held = fs::File::open(&lock).unwrap();
    held.lock().expect("the lock is free");
    std::thread::scope(|s| {
        let check = s.spawn(|| bed.msgfs_out(&["check", "--me", "bar"]));
        let start = Instant::now();
        while !check.is_finished() && start.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!check.is_finished(), "it gave up");
        drop(held);
        let out = check.join().unwrap();
        assert!(out.ok(), "{out:?}");
    });
    ended.wait().unwrap();
}
