//! Logs that another program rewrites in place.

use std::fs;
use std::time::Duration;

use super::{ONE, folder, lines, log, message, thread, two, with};
use crate::common::{samp, soon};

/// S159: a log that is rewritten under a reader loses no message and shows no half one.
#[test]
fn s159_rewrites() {
    let mut all = two();
    all.extend((3..40).map(|n| {
        message(n, "agent", &format!("2026-04-24T18:{n:02}:00.000Z"), &"word ".repeat(200))
    }));
    let (_bed, project, m) = with(|p| thread(p, ONE, "busy", &all));
    let path = folder(&project, ONE).join("messages.jsonl");
    let writer = std::thread::spawn({
        let (path, text) = (path, lines(&all));
        move || {
            for _ in 0..30 {
                // The test truncates and writes, as the application does.
                fs::write(&path, &text).expect("rewrite");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    while !writer.is_finished() {
        let out = m.ok(&format!("cat threads/{ONE}/*.txt"));
        assert_eq!(out.matches("\nMessage-ID: ").count(), all.len());
    }
    writer.join().expect("writer");
}

/// S318: a co-writer that writes the log from its memory all the time removes nothing from sent/.
#[test]
fn s318_overwritten_at_once() {
    let (_bed, project, m) = with(|p| thread(p, ONE, "co-written", &two()));
    let path = folder(&project, ONE).join("messages.jsonl");
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (path, text, done) = (path, lines(&two()), done.clone());
        move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&path, &text).expect("rewrite");
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    });
    for n in 0..40 {
        m.ok(&format!("echo 'mine {n}' > threads/{ONE}/answer"));
        let sent = m.ok("cat sent/$(date -u +%F)/*.txt");
        assert!(sent.contains(&format!("\n\nmine {n}\n")), "{n}: {sent}");
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("writer");
    assert_eq!(m.ok("cat sent/$(date -u +%F)/*.txt").matches("\nMessage-ID: ").count(), 40);
}

/// S160: a message that I appended and a co-writer overwrote stays in sent/, is reported, and is never appended
/// again.
#[test]
fn s160_lost_to_a_co_writer() {
    let (bed, project, m) = with(|p| thread(p, ONE, "co-written", &two()));
    m.ok(&format!("echo 'mine' > threads/{ONE}/answer"));
    assert_eq!(log(&project, ONE).len(), 3);
    let path = folder(&project, ONE).join("messages.jsonl");
    let mut theirs = two();
    theirs.push(message(9, "agent", "2026-04-24T19:00:00.000Z", "theirs"));
    fs::write(&path, lines(&theirs)).expect("rewrite");
    soon("theirs", || m.ok(&format!("cat threads/{ONE}/*.txt")).contains("theirs"));
    let told = |m: &crate::common::Mount| {
        soon("told in status.txt", || {
            m.cat("status.txt").lines().any(|l| l.contains(ONE) && l.contains("rewrote"))
        });
        assert!(m.ok("cat sent/*/*.txt").ends_with("\n\nmine\n"));
    };
    told(&m);
    drop(m);
    fs::remove_dir_all(bed.path("cache/msgfs")).expect("cache");
    let m = bed.mount("bar");
    told(&m);
    assert_eq!(fs::read_to_string(&path).expect("log"), lines(&theirs));
}

/// S1355: a message of mine that no thread has any more is not `stored` in `sent.txt` and has a warning beside it,
/// until a thread has it again.
#[test]
fn s1355_lost_is_not_stored() {
    let (bed, project, m) = with(|p| thread(p, ONE, "co-written", &two()));
    m.ok(&format!("echo 'mine' > threads/{ONE}/answer"));
    let path = folder(&project, ONE).join("messages.jsonl");
    let whole = fs::read_to_string(&path).expect("log");
    let day = format!("sent/{}", samp::today());
    let has_warning = || m.ls(&day).iter().any(|name| name.ends_with(".warning"));
    let waits = || m.cat("sent.txt").contains("\twaiting\t");
    assert!(!waits() && !has_warning());
    fs::write(&path, lines(&two())).expect("rewrite");
    soon("it is not stored", waits);
    soon("it is said beside it", has_warning);
    let text = m.ok("cat sent/*/*.warning");
    assert!(text.contains(ONE) && text.contains("not sent again"), "{text}");
    let told = bed.msgfs_out(&["--me", "bar", "sent", "--json"]).stdout;
    assert!(told.contains("rewrote"), "it has the reason: {told}");
    fs::write(&path, &whole).expect("rewrite");
    soon("it is stored", || !waits());
    soon("nothing is said", || !has_warning());
}

/// S571: if a co-writer drops the signature of a message, the verdict is `missing`. If it changes the text, too,
/// the message is refused.
#[test]
fn s571_lost_signature() {
    let (bed, project, m) = with(|p| thread(p, ONE, "busy", &two()));
    m.ok(&format!("echo 'pay 10' > threads/{ONE}/new"));
    let shown = |what: &str| {
        m.sh(&format!("grep -rh -A9 '^From: user' threads/{ONE} | grep {what}")).stdout
    };
    soon("signed", || shown("^Signature:").contains("valid"));
    let signed = log(&project, ONE);
    let path = folder(&project, ONE).join("messages.jsonl");
    let mut dropped = signed.clone();
    dropped[2].as_object_mut().expect("an object").remove("signature");
    fs::write(&path, lines(&dropped)).expect("rewrite");
    soon("missing", || shown("^Signature:").contains("missing"));
    assert!(shown("pay").contains("pay 10"));
    let mut changed = dropped.clone();
    changed[2]["content"][0]["text"] = "pay 9999".into();
    fs::write(&path, lines(&changed)).expect("rewrite");
    soon("refused", || m.ls("rejected").len() == 1);
    assert!(m.ok("cat rejected/*").contains("changed after it was verified"));
    let kept = |m: &crate::common::Mount| {
        let shown = m.sh("cat archive/*/* threads/*/* sent/*/*").stdout;
        assert!(!shown.contains("9999") && shown.contains("pay 10"), "{shown}");
        assert!(m.cat("status.txt").contains("another program rewrote or removed the log"));
    };
    kept(&m);
    m.umount();
    // What I sent is known without the cache, too.
    fs::remove_dir_all(bed.path("cache/msgfs")).expect("cache");
    let m = bed.mount("bar");
    assert_eq!(m.ls("rejected").len(), 1);
    kept(&m);
    fs::write(&path, lines(&signed)).expect("rewrite");
    soon("valid again", || m.ls("rejected").is_empty());
    assert!(m.ok(&format!("cat threads/{ONE}/*")).contains("Signature: valid"));
}
