//! The lines of the spool, on disks that lose some of them.

use super::*;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

pub fn parcel(store: &str, id: &str, thread: &str) -> SpoolParcel {
    let message = PreparedRecord {
        to: "bob".into(),
        id: id.into(),
        thread: thread.into(),
        bytes: "text".into(),
        files: Vec::new(),
    };
    SpoolParcel { store: store.into(), message, keyed: None }
}

fn put(spool: &Spool, id: &str) -> u64 {
    spool.insert(vec![of_id(id)], None).unwrap()
}

fn of_id(id: &str) -> SpoolParcel {
    parcel("samp", id, "t")
}

fn pending(path: &Path) -> Vec<(u64, Vec<SpoolParcel>)> {
    Spool::open(path, Durability::None).unwrap().pending()
}

fn spool() -> (tempfile::TempDir, PathBuf, Spool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spool");
    let spool = Spool::open(&path, Durability::Fsync).unwrap();
    (dir, path, spool)
}

#[test]
fn puts_without_an_end_survive() {
    let (_dir, path, spool) = spool();
    let a = put(&spool, "a");
    let b = spool.insert(vec![of_id("b"), of_id("c")], None).unwrap();
    spool.end_entry(a, true);
    drop(spool);
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"{\"n\":9,\"pu").unwrap();
    let spool = Spool::open(&path, Durability::None).unwrap();
    assert_eq!(spool.pending(), [(b, vec![of_id("b"), of_id("c")])]);
    let d = put(&spool, "d");
    assert!(d > b);
    spool.end_entry(b, true);
    spool.end_entry(d, true);
    drop(spool);
    assert!(pending(&path).is_empty());
}

#[test]
fn at_any_moment_one_of_two_versions_counts() {
    let (_dir, path, spool) = spool();
    let a = put(&spool, "a");
    let b = spool.insert(vec![of_id("b")], Some(a)).unwrap();
    let mut whole = std::fs::read(&path).unwrap();
    whole.retain(|byte| *byte != 0);
    let first = whole.iter().position(|c| *c == b'\n').unwrap() + 1;
    for cut in first..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (n, id) = if cut < whole.len() { (a, "a") } else { (b, "b") };
        assert_eq!(pending(&path), [(n, vec![of_id(id)])], "cut to {cut} bytes");
    }
}

#[test]
fn of_a_line_the_disk_may_have_any_blocks() {
    let (_dir, path, spool) = spool();
    let a = put(&spool, "a");
    let end = spool.state.lock().log.len() as usize;
    let mut long = of_id("b");
    long.message.bytes = "x".repeat(3 * 512);
    spool.insert(vec![long], None).unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len() as u64, AHEAD);
    drop(spool);
    for lost in [0..512, 512..1024, 1024..1536, 1536..2048] {
        let mut torn = whole.clone();
        torn[lost].iter_mut().for_each(|byte| *byte = 0);
        let kept = torn[..end] == whole[..end];
        std::fs::write(&path, &torn).unwrap();
        let spool = Spool::open(&path, Durability::Fsync).unwrap();
        let found: Vec<u64> = spool.pending().into_iter().map(|(n, _)| n).collect();
        assert_eq!(found, if kept { vec![a] } else { vec![] });
        // A put behind it is found, whatever the torn line has left.
        let c = put(&spool, "c");
        drop(spool);
        assert!(pending(&path).contains(&(c, vec![of_id("c")])));
    }
}

#[test]
fn the_file_grows_in_large_steps_and_is_no_longer_than_it_was() {
    let (_dir, path, spool) = spool();
    let len = || std::fs::metadata(&path).unwrap().len();
    for n in 0..40 {
        let n = put(&spool, &n.to_string());
        spool.end_entry(n, true);
        assert_eq!(len(), AHEAD);
    }
    drop(spool);
    let spool = Spool::open(&path, Durability::Fsync).unwrap();
    put(&spool, "more");
    assert_eq!(len(), AHEAD);
    assert_eq!(pending(&path).len(), 1);
}

#[test]
fn what_did_not_reach_the_disk_is_struck_out() {
    let (_dir, path, spool) = spool();
    let (a, b) = (put(&spool, "a"), put(&spool, "b"));
    let (upto, failures) = (spool.state.lock().written, 0);
    // It accepts every write and cannot be synced.
    let null = File::options().write(true).open("/dev/null").unwrap();
    let file = spool.state.lock().log.swap_file(Arc::new(null));
    spool.insert(vec![of_id("c")], None).unwrap_err();
    assert_eq!(spool.pending().len(), 2);
    spool.state.lock().log.swap_file(file);
    assert!(spool.sync_up_to(upto, failures).is_err(), "nobody knows which lines the disk has");
    assert!(spool.sync_up_to(upto, 1).is_ok(), "it had these before");
    spool.roll_back(a, Some(b));
    assert_eq!(pending(&path), []);
}

/// Sends a message that makes the file long.
fn send_long(spool: &Spool) {
    let mut long = of_id("l");
    long.message.bytes = "x".repeat(KEEP as usize);
    let n = spool.insert(vec![long], None).unwrap();
    spool.end_entry(n, true);
}

#[test]
fn a_long_file_is_cut_back_to_what_is_pending() {
    let (_dir, path, spool) = spool();
    let len = || std::fs::metadata(&path).unwrap().len();
    let a = put(&spool, "a");
    let b = spool.insert(vec![of_id("b"), parcel("amp", "b", "t")], Some(a)).unwrap();
    send_long(&spool);
    let before = pending(&path);
    assert!(spool.is_long());
    spool.trim_if_long();
    assert!(len() < 1000 && !spool.is_long());
    assert_eq!((before.len(), pending(&path)), (1, before));
    // The next lines follow in the new file, and a refused one is found there.
    let c = put(&spool, "c");
    assert!(c > b);
    spool.roll_back(c, Some(a));
    assert_eq!(pending(&path), spool.pending());
    spool.end_entry(b, true);
    send_long(&spool);
    spool.trim_if_long();
    assert_eq!(len(), 0);
    let d = put(&spool, "d");
    assert_eq!(pending(&path), [(d, vec![of_id("d")])]);
}

#[test]
fn a_file_that_is_long_by_what_is_pending_is_seldom_rewritten() {
    let (_dir, _, spool) = spool();
    let mut long = of_id("l");
    long.message.bytes = "x".repeat(3 * KEEP as usize);
    spool.insert(vec![long], None).unwrap();
    for _ in 0..2 {
        send_long(&spool);
        assert!(!spool.is_long());
    }
    send_long(&spool);
    assert!(spool.is_long());
    spool.trim_if_long();
    assert!(!spool.is_long());
}

#[test]
fn a_cut_keeps_what_a_store_has_not_taken_over() {
    let (_dir, path, spool) = spool();
    for (store, id) in [("amp", "a"), ("samp", "b"), ("samp", "c")] {
        let n = spool.insert(vec![parcel(store, id, "t")], None).unwrap();
        spool.end_entry(n, true);
    }
    let p = put(&spool, "p");
    drop(spool);
    let spool = Spool::open(&path, Durability::Fsync).unwrap();
    spool.forget_sent("amp");
    send_long(&spool);
    spool.trim_if_long();
    drop(spool);
    let spool = Spool::open(&path, Durability::Fsync).unwrap();
    assert_eq!(spool.list_sent("amp"), []);
    assert_eq!(spool.list_sent("samp"), [of_id("b"), of_id("c")]);
    assert_eq!(spool.pending(), [(p, vec![of_id("p")])]);
}

#[test]
fn what_was_sent_long_ago_is_reported_no_more() {
    let (_dir, path, spool) = spool();
    let n = put(&spool, "a");
    let long_ago = Timestamp::now().plus_millis(-REPORTED_MS - 1000);
    let mut state = spool.state.lock();
    state.append_line(&SpoolLine::new_end(n, Some(long_ago))).unwrap();
    drop(state);
    let spool = Spool::open(&path, Durability::None).unwrap();
    assert_eq!((spool.list_sent("samp"), spool.pending()), (vec![], vec![]));
}

#[test]
fn what_was_sent_is_told_and_what_was_taken_back_is_not() {
    let (_dir, path, spool) = spool();
    let (a, b, c) = (put(&spool, "a"), put(&spool, "b"), put(&spool, "c"));
    spool.insert(vec![of_id("d")], Some(c)).unwrap();
    spool.end_entry(b, true);
    spool.end_entry(a, false);
    drop(spool);
    let spool = Spool::open(&path, Durability::None).unwrap();
    assert_eq!(spool.list_sent("other"), []);
    assert_eq!(spool.list_sent("samp"), [of_id("b")]);
    spool.forget_sent("samp");
    assert_eq!((spool.list_sent("samp").len(), spool.pending().len()), (0, 1));
}
