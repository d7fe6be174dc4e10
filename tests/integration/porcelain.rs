//! `msgfs send`, `inbox`, `reply`, `wait`.

use std::time::Duration;

use crate::common::fixtures::three;
use crate::common::proc::Running;
use crate::common::samp::{self, T0, member, only, read_log};
use crate::common::{Bed, Out, PATIENCE, run};

fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// S92: `send` sends standard input, signed, with and without a mount.
#[test]
fn s92_send() {
    let bed = Bed::new();
    let out = bar(&bed, &["send", "foo"], "hello foo\n");
    assert!(out.ok(), "{out:?}");
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("foo", "hello foo"));
    assert!(r.contains_key("sig"));
    let m = bed.mount("bar");
    let out = bar(&bed, &["send", "foo"], "beside the mount\n");
    assert!(out.ok(), "{out:?}");
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 2);
    assert_eq!(read_log(&bed.store, "bar").len(), 2);
    let out = bar(&bed, &["send", "bad name"], "x");
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert_eq!(bar(&bed, &["send"], "x").code(), Some(2));
}

/// S92: `inbox` shows the unread messages.
#[test]
fn s92_inbox() {
    let bed = Bed::new();
    let recs = three(&bed);
    let out = bar(&bed, &["inbox"], "");
    assert!(out.ok(), "{out:?}");
    for r in &recs {
        assert!(out.stdout.contains(&r.body) && out.stdout.contains(&r.from), "{out:?}");
    }
}

/// S92, S722: `reply` answers the message that was read last, in its thread, and prints the recipient and the
/// message that it answers. It does not guess between two messages from different senders that were read right
/// after each other.
#[test]
fn s722_reply_to_what_was_read_last() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let m = mounted.then(|| bed.mount("bar"));
        let read = || assert!(bar(&bed, &["inbox"], "").ok());
        let nothing = bar(&bed, &["reply", "to whom?"], "");
        assert!(
            nothing.code() == Some(1) && nothing.stderr.contains("no message to answer"),
            "{nothing:?}"
        );
        let asked = samp::append(&bed.store, "carol", "bar", "lunch", "lunch at one?", T0);
        // The message is there, and was not read.
        let unread = bar(&bed, &["reply", "to whom?"], "");
        assert!(unread.code() == Some(1) && unread.stderr.contains("lunch at one?"), "{unread:?}");
        read();
        // A newer message that was not read is not the one to answer.
        let newest = samp::append(&bed.store, "foo", "bar", "plan", "newest", T0 + 5);
        let out = bar(&bed, &["reply"], "to carol\n");
        let said = format!(
            "replied to carol ({}: lunch at one?)\n",
            asked.name(0).trim_end_matches(".txt")
        );
        assert_eq!((out.code(), out.stderr), (Some(0), said));
        // A draft is in the store once `sent/` was listed.
        let sent = || assert!(bar(&bed, &["ls", "sent"], "").ok());
        sent();
        let r = only(&bed.store, "bar");
        let told = (member(&r, "to"), member(&r, "thread"), member(&r, "body"), member(&r, "re"));
        assert_eq!(told, ("carol", "lunch", "to carol", asked.id.as_str()));
        // Now both messages were read a moment ago.
        read();
        let out = bar(&bed, &["reply", "to whom?"], "");
        assert_eq!(out.code(), Some(1), "{out:?}");
        for words in [
            "from carol and foo",
            "msgfs reply NAME TEXT",
            newest.name(0).trim_end_matches(".txt"),
            "lunch at one?",
        ] {
            assert!(out.stderr.contains(words), "{words}: {out:?}");
        }
        assert_eq!(read_log(&bed.store, "bar").len(), 1);
        // A message that is named is answered, whatever was read.
        let name = newest.name(0);
        let path = format!("archive/2026-04-24/{name}");
        for word in [&newest.id[..8], &newest.id, &name, &path, name.trim_end_matches(".txt")] {
            let out = bar(&bed, &["reply", word, "named", "it"], "");
            assert!(out.ok() && out.stderr.starts_with("replied to foo ("), "{word}: {out:?}");
            sent();
            let r = read_log(&bed.store, "bar").pop().unwrap();
            assert_eq!((member(&r, "re"), member(&r, "body")), (newest.id.as_str(), "named it"));
        }
        let out = bar(&bed, &["reply", &asked.id[..8]], "by standard input");
        assert!(out.ok() && out.stderr.contains("carol"), "{out:?}");
        let out = bar(&bed, &["reply", "20260424T174203.000Z-bob-00000000.txt", "x"], "");
        assert!(out.code() == Some(1) && out.stderr.contains("no message"), "{out:?}");
        sent();
        assert_eq!(read_log(&bed.store, "bar").len(), 7);
        drop(m);
    }
}

/// S722: after a kill, msgfs still knows the message that was read last. A first word that looks like an id and is none
/// is not sent as text, unless it stands after `--`.
#[test]
fn s722_after_a_kill() {
    let bed = Bed::new();
    let asked = samp::append(&bed.store, "carol", "bar", "lunch", "lunch?", T0);
    // A name is judged before the last message that was read is looked for.
    let unread = bar(&bed, &["reply", "deadbeef", "x"], "");
    assert!(unread.stderr.contains("no message to you has the id or name deadbeef"), "{unread:?}");
    let m = bed.mount("bar");
    m.ok("cat inbox/*");
    let mistyped = format!("{}x", &asked.name(0).trim_end_matches(".txt"));
    let near = asked.name(0).trim_end_matches(".txt").to_owned();
    let refuse = |word: &str, told: &str| {
        let out = bar(&bed, &["reply", word, "looks", "good"], "");
        assert_eq!(out.code(), Some(1), "{word}: {out:?}");
        for words in [told, "msgfs reply -- TEXT"] {
            assert!(out.stderr.contains(words), "{word}: {words}: {out:?}");
        }
    };
    let all = ["deadbeef", "inbox/nope", "archive/nope.txt", "nope.reply", "sent/x", "<x@samp>"];
    for word in all {
        refuse(word, "no message to you has");
    }
    refuse(&mistyped, &near);
    m.kill9();
    for word in all {
        refuse(word, "no message to you has");
    }
    refuse(&mistyped, &near);
    assert!(bar(&bed, &["ls", "sent"], "").ok());
    assert!(read_log(&bed.store, "bar").is_empty());
    let out = run(bed.msgfs(["--me", "bar", "reply", "--", "deadbeef"]), None);
    assert!(out.ok(), "{out:?}");
    assert_eq!(member(&only(&bed.store, "bar"), "body"), "deadbeef");
}

/// S92: `wait` returns when there is unread mail.
#[test]
fn s92_wait() {
    let bed = Bed::new();
    let mut waiting = Running::start(bed.msgfs(["wait", "--me", "bar"]), None).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.running(), "it blocks");
    let r = samp::append(&bed.store, "foo", "bar", "t", "for bar", T0);
    let out = waiting.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout.contains(&r.name(0)), "{out:?}");
    assert!(bar(&bed, &["wait"], "").ok(), "at once when there already is some");
    assert_eq!(bed.mount("bar").ls("inbox"), [r.name(0)]);
}

/// S388: `send --new` takes the place of the draft that was refused before, with and without a mount. The commands that
/// a refusal names act for the same name.
#[test]
fn s388_send_new_replaces_the_refused_draft() {
    let bed = Bed::new();
    samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        let out = bar(&bed, &["send", "bobb", "hi"], "");
        assert!(!out.ok(), "{out:?}");
        for command in ["`msgfs --me bar send --new bobb TEXT`", "msgfs --me bar rm outbox/bobb\n"]
        {
            assert!(out.stderr.contains(command), "{out:?}");
        }
        assert!(bar(&bed, &["ls", "outbox"], "").stdout.contains("bobb.error"));
        assert!(bar(&bed, &["send", "--new", "bobb", "hi"], "").ok());
        assert_eq!(bar(&bed, &["ls", "outbox"], "").stdout, "");
        assert!(bar(&bed, &["status"], "").stdout.contains("last refusal: none"));
        assert_eq!(member(&only(&bed.store, "bar"), "to"), "bobb");
        drop(m);
        std::fs::remove_file(samp::log(&bed.store, "bar")).unwrap();
        let _ = std::fs::remove_dir_all(bed.path("cache/msgfs"));
    }
}

/// S1146: a text that was refused stays if another text goes to the same name, with and without a mount.
#[test]
fn s1146_a_refused_text_stays() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let m = mounted.then(|| bed.mount("bar"));
        let out = bar(&bed, &["write", "outbox/bob"], "Priority: high\n\nalso\n\nto be mended\n");
        assert!(!out.ok(), "{out:?}");
        let out = bar(&bed, &["send", "bob", "another text"], "");
        assert!(out.ok(), "{out:?}");
        // The end of a text is another text.
        assert!(bar(&bed, &["send", "bob", "to be mended"], "").ok());
        assert!(bar(&bed, &["cat", "outbox/bob"], "").stdout.ends_with("to be mended\n"));
        let out = bar(&bed, &["send", "bob", "also\n\nto be mended"], "");
        assert!(out.ok() && bar(&bed, &["ls", "outbox"], "").stdout.is_empty(), "{out:?}");
        assert_eq!(read_log(&bed.store, "bar").len(), 3);
        drop(m);
    }
}

/// S702: what a command could not print is unread, with and without a mount.
#[test]
fn s702_what_is_not_printed_is_unread() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let recs = three(&bed);
        let m = mounted.then(|| bed.mount("bar"));
        let program = crate::common::binary().display().to_string();
        for command in
            ["inbox", "inbox --json", "cat .next", "cat inbox/$(NAME ls inbox | head -n 1)"]
        {
            for (to, why) in [
                ("> /dev/full", "No space left"),
                (">&-", "Bad file descriptor"),
                ("1< /dev/null", "Bad file descriptor"),
            ] {
                let script =
                    format!("NAME {command} {to}").replace("NAME", &format!("{program} --me bar"));
                let out = bed.sh(&script);
                assert!(out.code() == Some(1) && out.stderr.contains(why), "{script}: {out:?}");
                let left = bar(&bed, &["ls", "inbox"], "").stdout;
                assert_eq!(left.lines().count(), recs.len(), "{script}: {left}");
            }
        }
        for command in ["--help", "--version", "send --help", "status", "completions bash", "man"] {
            for to in ["> /dev/full", ">&-"] {
                let out = bed.sh(&format!("{program} {command} {to}"));
                assert!(out.code() == Some(1) && !out.stderr.is_empty(), "{command} {to}: {out:?}");
            }
        }
        drop(m);
    }
}

/// S722: where reading marks nothing, `reply` knows what was read all the same.
#[test]
fn s722_reading_without_marks() {
    for mounted in [false, true] {
        let bed = Bed::new();
        bed.config("mark_read = \"on-remove\"\n");
        let r = samp::append(&bed.store, "carol", "bar", "lunch", "lunch at one?", T0);
        let m = mounted.then(|| bed.mount("bar"));
        assert!(bar(&bed, &["inbox"], "").ok());
        let out = bar(&bed, &["reply", "yes"], "");
        assert!(out.ok() && out.stderr.contains("replied to carol"), "{out:?}");
        assert_eq!(bar(&bed, &["ls", "inbox"], "").stdout.trim_end(), r.name(0));
        drop(m);
    }
}

/// S1147: an id counts with its place and without brackets, as `.warning` prints it.
#[test]
fn s1147_an_id_with_its_place() {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "carol", "bar", "lunch", "lunch at one?", T0);
    let id = format!("{}@samp", r.id);
    assert!(bar(&bed, &["send", "carol", "--re", &id, "one"], "").ok());
    let out = bar(&bed, &["reply", &id, "two"], "");
    assert!(out.ok(), "{out:?}");
    let short = format!("{}@samp", &r.id[..8]);
    assert!(bar(&bed, &["send", "carol", "--re", &short, "three"], "").ok());
    let all = read_log(&bed.store, "bar");
    assert_eq!(all.iter().map(|r| member(r, "body")).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert!(all.iter().all(|answer| member(answer, "re") == r.id), "{all:?}");
}

/// S1148: a cache that cannot be written is told, and nothing else is lost.
#[test]
fn s1148_no_cache() {
    let bed = Bed::new();
    three(&bed);
    std::fs::remove_dir_all(bed.path("cache")).unwrap();
    std::fs::write(bed.path("cache"), "a file").unwrap();
    assert!(bar(&bed, &["send", "foo", "hi"], "").ok());
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), 3);
    assert!(
        m.cat("status.txt").contains("each start reads the stores anew"),
        "{}",
        m.cat("status.txt")
    );
}

/// S92: `wait` goes on without the mount if that is killed.
#[test]
fn s92_wait_outlives_a_mount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut waits =
        Running::start(bed.msgfs(["--me", "bar", "wait", "--timeout", "60s"]), None).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    m.kill9();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waits.running());
    let r = samp::append(&bed.store, "carol", "bar", "lunch", "lunch?", T0);
    let out = waits.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout.trim_end() == r.name(0), "{out:?}");
}
