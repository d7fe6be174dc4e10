//! Replies: to one message, to a thread, and when it is not clear to whom.

use crate::common::Bed;
use crate::common::fixtures::mounted_three;
use crate::common::samp::{self, T0, member, only, read_log};

/// S51: `<name>.reply` answers that message, wherever it is written; the thread is inherited.
#[test]
fn s51_reply_beside() {
    let (bed, m, recs, names) = mounted_three();
    let stem = |n: &str| n.trim_end_matches(".txt").to_owned();
    for (i, place) in
        [format!("inbox/{}", names[1]), recs[1].archived(0), format!("threads/lunch/{}", names[1])]
            .iter()
            .enumerate()
    {
        m.ok(&format!("echo 'answer {i}' > '{}.reply'", stem(place)));
        let all = read_log(&bed.store, "bar");
        assert_eq!(all.len(), i + 1);
        let r = &all[i];
        assert_eq!((member(r, "to"), member(r, "thread")), ("carol", "lunch"), "{place}");
        assert_eq!(member(r, "body"), format!("answer {i}"));
        assert_eq!(member(r, "re"), recs[1].id, "{place}");
    }
    let sent = m.ls(&format!("sent/{}", samp::today()));
    let text = m.cat(&format!("sent/{}/{}", samp::today(), sent[0]));
    assert!(text.contains(&format!("\nIn-Reply-To: <{}@samp>\n", recs[1].id)), "{text}");
}

/// S51: an answer keeps `[thread:x]` as text, for the thread is given.
#[test]
fn s51_no_override_in_replies() {
    let (bed, m, recs, _) = mounted_three();
    let beside = recs[0].archived(0).replace(".txt", ".reply");
    m.ok(&format!("echo '[thread:other] text' > '{beside}'"));
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "thread"), member(&r, "body")), ("plan", "[thread:other] text"));
}

/// S51: a reply file takes text and gives none; beside a message that does not exist there is none.
#[test]
fn s51_write_only() {
    let (bed, m, _, names) = mounted_three();
    let reply = format!("inbox/{}", names[0].replace(".txt", ".reply"));
    assert!(m.sh(&format!("cat '{reply}'")).stdout.is_empty());
    let out = m.sh("echo x > inbox/20200101T000000.000Z-foo-00000000.reply");
    assert!(!out.ok(), "{out:?}");
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S52: any new name in a thread answers the newest message to me, not the newest of all.
#[test]
fn s52_thread_reply() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "plan", "old", T0);
    let newest = samp::append(&bed.store, "carol", "bar", "plan", "newest to bar", T0 + 10);
    samp::append(&bed.store, "bar", "dave", "plan", "mine, newer still", T0 + 20);
    let m = bed.mount("bar");
    m.ok("echo 'to carol' > threads/plan/answer.txt");
    let r = read_log(&bed.store, "bar").remove(1);
    assert_eq!((member(&r, "to"), member(&r, "thread")), ("carol", "plan"));
    assert_eq!(member(&r, "re"), newest.id);
    assert_eq!(m.ls("threads/plan").len(), 4, "the draft's name is not in the listing");
}

/// S52: in a thread that only I wrote to, it goes to whom I wrote last.
#[test]
fn s52_only_mine() {
    let bed = Bed::new();
    samp::append(&bed.store, "bar", "foo", "plan", "first", T0);
    samp::append(&bed.store, "bar", "carol", "plan", "then", T0 + 5);
    let m = bed.mount("bar");
    m.ok("echo 'one more thing' > threads/plan/more");
    assert_eq!(member(&read_log(&bed.store, "bar")[2], "to"), "carol");
}

/// S53, S63: a tie between senders is refused and both are named; a tie of one sender is none.
#[test]
fn s53_ties() {
    let bed = Bed::new();
    samp::append(&bed.store, "carol", "bar", "plan", "one", T0);
    samp::append(&bed.store, "foo", "bar", "plan", "two", T0);
    let m = bed.mount("bar");
    let out = m.sh("echo x | tee threads/plan/answer");
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
    let status = m.cat("status.txt");
    assert!(status.contains("carol") && status.contains("foo"), "{status}");
    assert!(read_log(&bed.store, "bar").is_empty());
    let last = samp::append(&bed.store, "foo", "bar", "plan", "three", T0 + 1);
    samp::append(&bed.store, "foo", "bar", "plan", "four", T0 + 1);
    m.appears(&format!("inbox/{}", last.name(0)));
    m.appears(&format!("inbox/{}", samp::Rec::new("foo", "bar", "plan", "four", T0 + 1).name(1)));
    m.ok("echo y > threads/plan/answer");
    assert_eq!(member(&only(&bed.store, "bar"), "to"), "foo");
}

/// S67: nothing in SAMP asks for an acknowledgement, so there is nothing to acknowledge.
#[test]
fn s67_ack() {
    let (bed, m, recs, names) = mounted_three();
    for beside in [format!("inbox/{}", names[0]), recs[0].archived(0)] {
        let ack = beside.replace(".txt", ".ack");
        assert!(!m.sh(&format!("stat '{ack}'")).ok(), "{ack}");
        let out = m.sh(&format!("echo seen > '{ack}'"));
        assert!(!out.ok(), "{ack}: {out:?}");
    }
    assert!(read_log(&bed.store, "bar").is_empty());
    assert_eq!(m.ls("inbox").len(), 3);
}
