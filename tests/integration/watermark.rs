//! `.seen-<me>`: my marks as other readers of the store see them, and their marks as I see them.

use std::fs;

use serde_json::{Value, json};

use crate::common::fixtures::{mounted_three, three};
use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, Mount, run, soon, wait_for};
use crate::receipts::becomes;

/// Returns the messages that the other program would show to bar, by the rule of one of its releases. Moves
/// nothing.
#[track_caller]
fn peer_unread(bed: &Bed, rule: &str) -> Vec<String> {
    peer(bed, &["inbox", "bar", rule, "--peek"])
}

#[track_caller]
fn peer(bed: &Bed, args: &[&str]) -> Vec<String> {
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py")).arg(&bed.store);
    c.args(args);
    let out = run(c, None);
    assert!(out.ok(), "{out:?}");
    out.stdout.lines().map(str::to_owned).collect()
}

fn seen(bed: &Bed) -> Option<(i64, Vec<String>)> {
    let text = fs::read_to_string(bed.store.join(".seen-bar")).ok()?;
    let v: Value = serde_json::from_str(&text).expect(".seen-bar is JSON at every moment");
    let ids = v["ids"].as_array().expect("ids").iter().map(|i| i.as_str().unwrap().to_owned());
    Some((v["ts"].as_i64().expect("ts"), ids.collect()))
}

fn set_seen(bed: &Bed, ts: i64, ids: &[&str]) {
    let temporary = bed.store.join(".seen-bar.1.tmp");
    fs::write(&temporary, json!({"ts": ts, "ids": ids}).to_string()).unwrap();
    fs::rename(temporary, bed.store.join(".seen-bar")).unwrap();
}

fn read(m: &Mount, r: &Rec) {
    m.cat(&format!("inbox/{}", r.name(0)));
}

/// S36: on the first mount, everything that the watermark covers is read, in either spelling of the ids.
#[test]
fn s36_first_contact() {
    for spelling in ["bare", "with sender"] {
        let bed = Bed::new();
        let old = samp::append(&bed.store, "foo", "bar", "t", "below the mark", T0);
        let at = samp::append(&bed.store, "foo", "bar", "t", "at the mark, read", T0 + 10);
        let at_new = samp::append(&bed.store, "zed", "bar", "t", "at the mark, unread", T0 + 10);
        let above = samp::append(&bed.store, "foo", "bar", "t", "above", T0 + 20);
        let id = if spelling == "bare" { at.id.clone() } else { format!("foo:{}", at.id) };
        set_seen(&bed, T0 + 10, &[&id]);
        let m = bed.mount("bar");
        assert_eq!(m.ls("inbox"), [at_new.name(0), above.name(0)], "{spelling}");
        assert_eq!(m.cat(&old.archived(0)), old.file("none"));
    }
}

/// S36: while mounted, a message that the other program reads leaves my inbox.
#[test]
fn s36_other_reader_while_mounted() {
    for rule in ["r111", "r12"] {
        let (bed, m, ..) = mounted_three();
        assert_eq!(peer(&bed, &["inbox", "bar", rule]).len(), 3);
        wait_for(std::time::Duration::from_secs(5), "the other reader's marks count", || {
            m.ls("inbox").is_empty()
        });
    }
}

/// S36: marks of another reader count although msgfs writes the position before it has looked at the folder again.
#[test]
fn s36_other_reader_at_the_same_moment() {
    let bed = Bed::new();
    let recs = three(&bed);
    bed.config("watch = \"poll\"\n");
    let m = bed.mount("bar");
    // A listed name still opens after the mount has noticed what the other program read.
    assert_eq!(m.ls("inbox").len(), 3);
    assert_eq!(peer(&bed, &["inbox", "bar", "r12"]).len(), 3);
    read(&m, &recs[0]);
    soon("all are read", || m.ls("inbox").is_empty());
    assert_eq!(peer_unread(&bed, "r12"), [""; 0]);
}

/// S36: a message that the other program read while nothing was mounted is read at the next mount.
#[test]
fn s36_other_reader_while_unmounted() {
    let (bed, m, ..) = mounted_three();
    m.umount();
    assert_eq!(peer(&bed, &["inbox", "bar", "r12"]).len(), 3);
    assert_eq!(bed.mount("bar").ls("inbox"), [""; 0]);
}

/// S1382: a position with a fraction covers what is earlier, and reading does not move it back.
#[test]
fn s1382_a_position_with_a_fraction() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "earlier in its second", T0);
    let later = samp::append(&bed.store, "foo", "bar", "t", "later", T0 + 1);
    fs::write(bed.store.join(".seen-bar"), format!("{{\"ts\": {T0}.5, \"ids\": []}}")).unwrap();
    let m = bed.mount("bar");
    m.inbox_becomes(&[&later.name(0)]);
    let position = || fs::read_to_string(bed.store.join(".seen-bar")).unwrap();
    let late = samp::append(&bed.store, "zed", "bar", "t", "comes late", T0 - 1);
    m.inbox_becomes(&[&late.name(0), &later.name(0)]);
    read(&m, &late);
    soon("it lists the id", || position().contains(&late.id));
    assert!(position().starts_with(&format!("{{\"ts\": {T0}.5, ")), "{}", position());
    read(&m, &later);
    soon("it moves on", || position().starts_with(&format!("{{\"ts\": {}, ", T0 + 1)));
}

/// S1383: a folder in the place of `.seen-bar` is reported. When it is gone, the position is written without a new mark.
#[test]
fn s1383_a_folder_in_the_place_of_the_position() {
    let bed = Bed::new();
    let mail = samp::append(&bed.store, "foo", "bar", "t", "hi", T0);
    let place = bed.store.join(".seen-bar");
    fs::create_dir(&place).unwrap();
    let m = bed.mount("bar");
    read(&m, &mail);
    let is_told = || m.cat("status.txt").contains(".seen-bar: Is a directory");
    soon("it is reported", is_told);
    fs::remove_dir(&place).unwrap();
    wait_for(std::time::Duration::from_secs(30), "it is written", || seen(&bed).is_some());
    soon("nothing is wrong", || !is_told());
}

/// S36: a broken `.seen-bar` counts as absent and is no obstacle.
#[test]
fn s36_garbage() {
    for garbage in
        ["", "garbage", "[]", "null", "{\"ts\": \"x\", \"ids\": null}", "{\"ids\": [[1]]}"]
    {
        let bed = Bed::new();
        let recs = three(&bed);
        fs::write(bed.store.join(".seen-bar"), garbage).unwrap();
        let m = bed.mount("bar");
        assert_eq!(m.ls("inbox").len(), 3, "{garbage:?}");
        read(&m, &recs[0]);
        m.inbox_becomes(&[&recs[1].name(0), &recs[2].name(0)]);
    }
}

/// S37: the watermark waits for the oldest unread message, and then covers everything that was read. Both
/// spellings are there, on one line without newline.
#[test]
fn s37_contiguous_prefix() {
    let (bed, m, recs, _) = mounted_three();
    read(&m, &recs[1]);
    m.inbox_becomes(&[&recs[0].name(0), &recs[2].name(0)]);
    for rule in ["r111", "r12"] {
        let shown = peer_unread(&bed, rule);
        assert!(
            shown.contains(&recs[0].id) && shown.contains(&recs[2].id),
            "{rule}: {shown:?} {:?}",
            seen(&bed)
        );
    }
    read(&m, &recs[0]);
    soon("the mark moves over the first two", || seen(&bed).is_some_and(|s| s.0 == recs[1].ts));
    let (_, ids) = seen(&bed).unwrap();
    for spelled in [recs[1].id.clone(), format!("carol:{}", recs[1].id)] {
        assert!(ids.contains(&spelled), "{spelled} missing in {ids:?}");
    }
    for rule in ["r111", "r12"] {
        assert_eq!(peer_unread(&bed, rule), [recs[2].id.as_str()], "{rule}");
    }
    read(&m, &recs[2]);
    soon("the mark covers all", || seen(&bed).is_some_and(|s| s.0 == recs[2].ts));
    for rule in ["r111", "r12"] {
        assert_eq!(peer_unread(&bed, rule), [""; 0], "{rule}");
    }
    let text = fs::read_to_string(bed.store.join(".seen-bar")).unwrap();
    assert!(!text.contains('\n'), "{text:?}");
}

/// S37: the ids of read messages are listed also beyond the position, and those made unread leave the list.
#[test]
fn s37_read_ids_are_listed() {
    let (bed, m, recs, _) = mounted_three();
    read(&m, &recs[2]);
    let listed = |rec: &Rec| seen(&bed).is_some_and(|(_, ids)| ids.contains(&rec.id));
    soon("a message beyond the position is listed", || listed(&recs[2]));
    let shown = peer_unread(&bed, "r12");
    assert_eq!(shown, [recs[0].id.as_str(), recs[1].id.as_str()], "{:?}", seen(&bed));
    read(&m, &recs[0]);
    read(&m, &recs[1]);
    soon("all are listed", || recs.iter().all(&listed));
    assert_eq!(seen(&bed).unwrap().0, recs[2].ts);
    m.ok(&format!("mv '{}' inbox/", recs[1].archived(0)));
    soon("an unread message leaves the list", || !listed(&recs[1]));
    assert_eq!(seen(&bed).unwrap().0, recs[2].ts, "the position stays");
    assert!(listed(&recs[0]) && listed(&recs[2]));
}

/// S37: if two messages share one second, a watermark for one does not cover the other.
#[test]
fn s37_same_second() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "aaa", "bar", "t", "one", T0);
    let b = samp::append(&bed.store, "bbb", "bar", "t", "two", T0);
    let m = bed.mount("bar");
    read(&m, &a);
    m.inbox_becomes(&[&b.name(0)]);
    soon("the mark is written", || seen(&bed).is_some());
    for rule in ["r111", "r12"] {
        assert_eq!(peer_unread(&bed, rule), [b.id.as_str()], "{rule}: {:?}", seen(&bed));
    }
    read(&m, &b);
    soon("both are marked for every release", || {
        ["r111", "r12"].iter().all(|r| peer_unread(&bed, r).is_empty())
    });
}

/// S37: making a message unread, and a removed or older state, never move the watermark back.
#[test]
fn s37_never_back() {
    let (bed, m, recs, _) = mounted_three();
    m.ok("cat inbox/* > /dev/null");
    soon("the mark covers all", || seen(&bed).is_some_and(|s| s.0 == recs[2].ts));
    let before = seen(&bed).unwrap();
    m.ok(&format!("mv '{}' inbox/", recs[0].archived(0)));
    m.inbox_becomes(&[&recs[0].name(0)]);
    // Another reader is ahead of us, and our next mark must not undo that.
    let later = samp::append(&bed.store, "foo", "bar", "t", "later", T0 + 9000);
    m.appears(&format!("inbox/{}", later.name(0)));
    soon("the id of an unread message leaves the list", || {
        seen(&bed).is_some_and(|(ts, ids)| ts == before.0 && !ids.contains(&recs[0].id))
    });
    set_seen(&bed, later.ts, &[&later.id, &format!("foo:{}", later.id)]);
    m.inbox_becomes(&[&recs[0].name(0)]);
    read(&m, &recs[0]);
    m.inbox_becomes(&[]);
    m.umount();
    assert_eq!(seen(&bed).unwrap().0, later.ts);
}

/// S38: mail that arrives late is unread, while mounted, after a remount, and although another reader moved the
/// watermark beyond it.
#[test]
fn s38_late_arrival() {
    let (bed, m, recs, _) = mounted_three();
    m.ok("cat inbox/* > /dev/null");
    soon("the mark covers all", || seen(&bed).is_some_and(|s| s.0 == recs[2].ts));
    let late =
        samp::append(&bed.store, "foo", "bar", "plan", "written early, synced late", T0 + 60);
    m.inbox_becomes(&[&late.name(0)]);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [late.name(0)]);
    read(&m, &late);
    m.inbox_becomes(&[]);
    m.umount();
    let later =
        samp::append(&bed.store, "zed", "bar", "plan", "while nothing was mounted", T0 + 30);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [later.name(0)]);
}

/// S39: a message from the future is shown and read, and then hides nothing, here or elsewhere.
#[test]
fn s39_future_message() {
    let bed = Bed::new();
    let future = samp::append(&bed.store, "foo", "bar", "t", "tomorrow", samp::now() + 86_400);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [future.name(0)]);
    read(&m, &future);
    m.inbox_becomes(&[]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    if let Some((ts, _)) = seen(&bed) {
        assert!(ts <= samp::now(), "the mark is capped at now, not {ts}");
    }
    let today = samp::append(&bed.store, "foo", "bar", "t", "today", samp::now() + 1);
    m.inbox_becomes(&[&today.name(0)]);
    for rule in ["r111", "r12"] {
        assert!(peer_unread(&bed, rule).contains(&today.id), "{rule}");
    }
}

/// S39: a watermark from the future, written by an older program, does not hide today's mail.
#[test]
fn s39_future_watermark() {
    let bed = Bed::new();
    let old = samp::append(&bed.store, "foo", "bar", "t", "old", T0);
    set_seen(&bed, samp::now() + 86_400, &[]);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [""; 0], "{} is below the mark", old.id);
    let new = samp::append(&bed.store, "foo", "bar", "t", "new", samp::now() + 1);
    m.inbox_becomes(&[&new.name(0)]);
    m.umount();
    assert_eq!(bed.mount("bar").ls("inbox"), [new.name(0)]);
}

/// S39: a position from the future hides no message that came after the position was written, also while nothing was
/// mounted and within one second. It covers all that was there.
#[test]
fn s39_future_watermark_before_the_mount() {
    let bed = Bed::new();
    let now = samp::now();
    samp::append(&bed.store, "foo", "bar", "t", "shown, of a fast clock", now + 300);
    // Logs count by the time of their change.
    std::thread::sleep(std::time::Duration::from_millis(20));
    set_seen(&bed, now + 400, &[]);
    let late = samp::append(&bed.store, "carol", "bar", "t", "late", samp::now());
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [late.name(0)]);
    set_seen(&bed, now + 500, &[]);
    let same_moment = samp::append(&bed.store, "carol", "bar", "t", "now", samp::now());
    soon("it arrives, unread", || m.ls("inbox").iter().any(|n| n.contains(&same_moment.id[..8])));
    m.umount();
    assert_eq!(bed.mount("bar").ls("inbox").len(), 2);
}

/// S39: records with absurd times are shown and block nothing.
#[test]
fn s39_absurd_times() {
    let bed = Bed::new();
    let zero = samp::append(&bed.store, "foo", "bar", "t", "ts 0", 0);
    let before = samp::append(&bed.store, "foo", "bar", "t", "ts -5", -5);
    samp::append(&bed.store, "foo", "bar", "t", "year 300 million", 9_999_999_999_999_999);
    let good = samp::append(&bed.store, "foo", "bar", "t", "good", T0);
    let m = bed.mount("bar");
    let names = m.ls("inbox");
    assert_eq!(names.len(), 4, "{names:?}");
    for r in [&zero, &before, &good] {
        assert!(names.contains(&r.name(0)), "{} not in {names:?}", r.name(0));
    }
    assert!(m.ok("cat inbox/*").contains("year 300 million"));
    m.inbox_becomes(&[]);
}

/// S1211: a message that the position of another program only passed stays `passed` for its sender when the recipient
/// mounts and reads other mail. It becomes `read` when it is read.
#[test]
fn s1211_a_mount_reads_nothing_that_a_position_only_passed() {
    let bed = Bed::new();
    let late = samp::append(&bed.store, "foo", "bar", "t", "it came late", T0);
    set_seen(&bed, T0 + 10, &[]);
    let foo = bed.mount("foo");
    becomes(&foo, "bar", "passed");
    let late_state = || {
        let text = foo.cat("sent.txt");
        let line = text.lines().find(|line| line.ends_with("it came late")).expect("its line");
        line.split('\t').nth(3).expect("its state").to_owned()
    };
    for n in 1..3 {
        let bar = bed.mount("bar");
        assert_eq!(bar.ls("inbox"), [""; 0]);
        let other = samp::append(&bed.store, "foo", "bar", "t", "another", T0 + 20 * n);
        bar.inbox_becomes(&[&other.name(0)]);
        read(&bar, &other);
        becomes(&foo, "bar", "read");
        assert_eq!(late_state(), "passed", "{:?}", seen(&bed));
        bar.umount();
        fs::remove_dir_all(bed.path("cache/msgfs/bar")).unwrap();
    }
    let bar = bed.mount("bar");
    bar.ok(&format!("mv '{}' inbox/", late.archived(0)));
    bar.inbox_becomes(&[&late.name(0)]);
    read(&bar, &late);
    soon("the late message is read, too", || late_state() == "read");
}
