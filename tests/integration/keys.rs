//! Keys that change: refused ones, imported ones, and what is known of used ones.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::common::samp::{Rec, T0, append_signed, fingerprint, key};
use crate::common::{Bed, run, soon};

/// S1224: the remedy in a rejected message names its key, and trusts that key alone. Without a named key none of
/// several refused ones is trusted.
#[test]
fn s1224_the_remedy_names_the_key() {
    let bed = Bed::new();
    let put = |seed, n| {
        append_signed(&bed.store, &key(seed), &Rec::new("foo", "bar", "t", "hello", T0 + n));
    };
    put(1, 0);
    let m = bed.mount("bar");
    soon("the first key is pinned", || m.ls("inbox").len() == 1);
    put(2, 1);
    put(3, 2);
    soon("both are refused", || m.ls("rejected").len() == 2);
    let ring = bed.state("bar").join("keyring.json");
    let is_noted =
        |seed| fs::read_to_string(&ring).is_ok_and(|text| text.contains(&fingerprint(&key(seed))));
    soon("both are noted", || is_noted(2) && is_noted(3));
    let encoded = |seed| BASE64.encode(key(seed).verifying_key().as_bytes());
    let remedy = |seed| format!("msgfs key trust foo --key {}", encoded(seed));
    let out = bed.msgfs_out(&["key", "trust", "foo", "--me", "bar"]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    let rejected = m.ok("cat rejected/*");
    for seed in [2, 3] {
        assert!(rejected.contains(&remedy(seed)), "{rejected}");
        assert!(out.stderr.contains(&remedy(seed)), "{out:?}");
    }
    let out = bed.msgfs_out(&["key", "trust", "foo", "--key", &encoded(2), "--me", "bar"]);
    assert!(out.ok(), "{out:?}");
    soon("only the named key is trusted", || m.ls("rejected").len() == 1);
    assert!(m.ok("cat rejected/*").contains(&remedy(3)));
}

/// S1225: while the list of used keys cannot be read, it stays as it is, my key signs, and a missing key is not
/// replaced.
#[test]
fn s1225_an_unreadable_list_of_used_keys_stays() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo");
    m.umount();
    let (list, own) =
        (bed.state("bar").join("signers.json"), bed.state("bar").join("identity_key"));
    fs::write(&list, "{ half").unwrap();
    let m = bed.mount("bar");
    m.ok("echo two > outbox/foo");
    m.umount();
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    assert!(out.said().contains("signers.json") && out.code() == Some(1), "{out:?}");
    fs::remove_file(&own).unwrap();
    let m = bed.mount("bar");
    let out = m.sh("echo three | tee outbox/foo");
    assert!(!out.ok() && out.stderr.contains("Required key not available"), "{out:?}");
    assert!(!own.exists(), "nothing took its place");
    assert_eq!(fs::read_to_string(&list).unwrap(), "{ half");
}

/// S1226: a mount waits for a killed mount that still holds the lock.
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
        let next = s.spawn(|| bed.mount("bar"));
        let start = Instant::now();
        while !next.is_finished() && start.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!next.is_finished(), "it gave up");
        drop(held);
        next.join().unwrap();
    });
    ended.wait().unwrap();
}

/// S1227: a key that is imported beside a mount signs from the next message on, and no text says otherwise.
#[test]
fn s1227_an_imported_key_signs_at_once() {
    let (one, two) = (Bed::new(), Bed::new());
    let m = two.mount("bar");
    m.ok("echo one > outbox/foo");
    let exported = one.msgfs_out(&["--me", "bar", "key", "export"]);
    assert!(exported.ok(), "{exported:?}");
    let shown = one.msgfs_out(&["--me", "bar", "key", "show"]).stdout;
    let print = shown.split_whitespace().nth(1).expect("a fingerprint");
    let import = two.msgfs(["--me", "bar", "key", "import"]);
    let done = run(import, Some(exported.stdout.as_bytes()));
    assert!(done.ok() && done.said().contains(&format!("{print} signs for bar")), "{done:?}");
    assert!(!done.said().contains("until it is started again"), "{done:?}");
    m.ok("echo two > outbox/foo");
    let signature = format!("valid {print}");
    let sent = || m.ok("grep -rh ^Signature: sent").matches(&signature).count();
    soon("the imported key signs", || sent() == 1);
}
