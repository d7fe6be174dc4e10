//! Lines of my own SAMP log that another program removed from it, on a mount.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::time::Duration;

use crate::common::samp::{T0, append, log, read_log};
use crate::common::{Bed, wait_for};

/// A time for something that takes milliseconds by itself, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Returns the bodies in the log of `foo`, in order.
fn bodies(bed: &Bed) -> Vec<String> {
    let body = |line: &serde_json::Map<String, serde_json::Value>| {
        line["body"].as_str().unwrap().to_owned()
    };
    read_log(&bed.store, "foo").iter().map(body).collect()
}

/// S743: a synchronizing program puts an older version in the place of my log. The end that was cut off comes back
/// once, while mounted and at the next mount, and `status.txt` reports it.
#[test]
fn s743_an_end_that_was_cut_off_comes_back() {
    let bed = Bed::new();
    let m = bed.mount("foo");
    let cut = || {
        let older = read_log(&bed.store, "foo").remove(0);
        let temp = bed.store.join(".syncthing.log-foo.jsonl.tmp");
        fs::write(&temp, serde_json::to_string(&older).unwrap() + "\n").unwrap();
        fs::rename(temp, log(&bed.store, "foo")).unwrap();
    };
    for body in ["one", "two", "three"] {
        m.ok(&format!("echo {body} > outbox/bar"));
    }
    wait_for(LONG, "all are appended", || bodies(&bed) == ["one", "two", "three"]);
    cut();
    wait_for(LONG, "the end is appended again", || bodies(&bed) == ["one", "two", "three"]);
    assert!(
        m.cat("status.txt").contains("appended 2 missing messages again"),
        "{}",
        m.cat("status.txt")
    );
    drop(m);
    cut();
    let m = bed.mount("foo");
    wait_for(LONG, "the end is appended again", || bodies(&bed) == ["one", "two", "three"]);
    assert_eq!(m.ok("ls sent/*/*.txt | wc -l").trim(), "3");
}

/// S1192: what stood in my log when another program emptied it does not come back, also after a remount.
#[test]
fn s1192_what_was_emptied_stays_out() {
    let bed = Bed::new();
    let m = bed.mount("foo");
    for body in ["one", "two", "three"] {
        m.ok(&format!("echo {body} > outbox/bar"));
    }
    wait_for(LONG, "all are appended", || bodies(&bed) == ["one", "two", "three"]);
    fs::write(log(&bed.store, "foo"), "").unwrap();
    wait_for(LONG, "it is reported", || m.cat("status.txt").contains("was found empty or gone"));
    append(&bed.store, "foo", "bar", "t", "other", T0);
    m.umount();
    let m = bed.mount("foo");
    // Lost lines come back before anything else is appended.
    m.ok("echo last > outbox/bar");
    wait_for(LONG, "it is appended", || bodies(&bed).contains(&"last".to_owned()));
    assert_eq!(bodies(&bed), ["other", "last"]);
}

/// S742: the lines of a conflict copy of my log that my key signed are appended to the log, and no others.
#[test]
fn s742_signed_lines_of_a_conflict_copy_come_back() {
    let bed = Bed::new();
    let other = Bed::new();
    let m = bed.mount("foo");
    m.ok("echo mine > outbox/bar");
    wait_for(LONG, "it is appended", || bodies(&bed) == ["mine"]);
    // The other machine acts for the same name with the same key.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(other.state("foo")).unwrap();
    fs::copy(bed.state("foo").join("identity_key"), other.state("foo").join("identity_key"))
        .unwrap();
    let w = other.mount("foo");
    w.ok("echo theirs > outbox/bar");
    wait_for(LONG, "it is appended there", || bodies(&other) == ["theirs"]);
    drop(w);
    let signed = fs::read_to_string(log(&other.store, "foo")).unwrap();
    let mut forged = read_log(&other.store, "foo").remove(0);
    forged.insert("body".to_owned(), "forged".into());
    let copy = bed.store.join("log-foo.sync-conflict-20261126-010203-ABCDEFG.jsonl");
    let text = signed + &serde_json::to_string(&forged).unwrap() + "\n";
    fs::write(&copy, &text).unwrap();
    wait_for(LONG, "the signed line is appended", || bodies(&bed) == ["mine", "theirs"]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), text);
    drop(m);
}
