//! Marks, and the few bytes of a file that tell them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::amp::with;
use crate::common::amp::{self, ALICE, Home, Msg};
use crate::common::wait_for;

/// Writes a file with spellings that a JSON library would not write back.
fn spelled(home: &Home, msg: &Msg, tail: &str) -> (std::path::PathBuf, String) {
    let text = format!(
        "{{ \"envelope\" : {{\"id\":\"{}\",\"from\":\"{ALICE}\",\"to\":\"{}\",\"subject\":\"s\\u0065\",\n\t\"priority\":\"normal\",\"timestamp\":\"{}\",\"in_reply_to\":null,\"thread_id\":\"x\",\"signature\":\"\"}},\r\n \"payload\":{{\"type\":\"request\",\"message\":\"\\\"status\\\": \\\"unread\\\" \\/\",\"context\":{{\"n\":1.10,\"e\":1e2,\"big\":12345678901234567890,\"z\":-0}}}}{tail}}}",
        msg.id, msg.to, msg.timestamp
    );
    let file = home.place("bar", "inbox", ALICE, &msg.id);
    crate::common::agz::put(&file, &text);
    (file, text)
}

#[track_caller]
fn status(file: &Path, wanted: &str) {
    let limit = std::time::Duration::from_secs(15);
    wait_for(limit, &format!("{} is {wanted}", file.display()), || {
        let text = fs::read_to_string(file).unwrap_or_default();
        serde_json::from_str::<Value>(&text).is_ok_and(|v| v["local"]["status"] == wanted)
    });
}

/// S131: a mark changes `local.status`, `metadata.status` if there is one, and `local.read_at`. All other bytes
/// stay, whatever their spelling is.
#[test]
fn s131_bytes() {
    let msg = Msg::new("s", "x", 1);
    let tail = ",\"metadata\":{\"status\":\"unread\",\"delivery_attempts\":0},\n  \"local\": {\"received_at\":\"2026-04-24T17:42:03Z\", \"status\" :\"unread\"} ,\"x\":[1.50]";
    let mut pair = None;
    let (_bed, _home, m) = with(|_, home| {
        pair = Some(spelled(home, &msg, tail));
        fs::set_permissions(&pair.as_ref().unwrap().0, fs::Permissions::from_mode(0o644)).unwrap();
    });
    let (file, text) = pair.unwrap();
    m.cat(&format!("inbox/{}", msg.name()));
    m.inbox_becomes(&[]);
    status(&file, "read");
    let after = fs::read_to_string(&file).unwrap();
    let v: Value = serde_json::from_str(&after).unwrap();
    let at = v["local"]["read_at"].as_str().unwrap().to_owned();
    assert!(at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    assert_eq!(v["metadata"]["status"], "read");
    // Before the local object only the one word of metadata changes.
    let (old, new) =
        (text.split("\"local\"").next().unwrap(), after.split("\"local\"").next().unwrap());
    assert_eq!(
        new,
        old.replace("\"metadata\":{\"status\":\"unread\"", "\"metadata\":{\"status\":\"read\"")
    );
    assert!(after.ends_with(",\"x\":[1.50]}"), "{after}");
    assert!(
        after.contains("\"received_at\":\"2026-04-24T17:42:03Z\", \"status\" :\"read\""),
        "{after}"
    );
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let left = crate::common::agz::names(file.parent().unwrap());
    assert_eq!(left.len(), 1, "{left:?}");
}

/// S213: the mark of a message whose file is broken now is reported, and written when the file is whole.
#[test]
fn s213_a_broken_file_takes_no_mark() {
    let msg = Msg::new("s", "x", 1);
    let mut file = None;
    let (_bed, _home, m) = with(|_, home| file = Some(home.receive(&msg)));
    let file = file.unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..100]).unwrap();
    let limit = std::time::Duration::from_secs(15);
    let told = |why: &str| m.cat("status.txt").contains(why);
    wait_for(limit, "it is broken", || told("cannot be read as a message now; "));
    m.cat(&format!("inbox/{}", msg.name()));
    m.inbox_becomes(&[]);
    wait_for(limit, "it is reported", || {
        told("cannot be read as a message now, so it takes no mark")
    });
    fs::write(&file, &text).unwrap();
    status(&file, "read");
    wait_for(limit, "the report is gone", || !told("takes no mark"));
}

/// S131: a file without `local` gets one, and a `local` without a status gets that.
#[test]
fn s131_added() {
    for tail in ["", ",\"local\":{}", ",\"local\":{\"received_at\":\"2026-04-24T17:42:03Z\"}"] {
        let msg = Msg::new("s", "x", 1);
        let mut pair = None;
        let (_bed, _home, m) = with(|_, home| pair = Some(spelled(home, &msg, tail)));
        let (file, text) = pair.unwrap();
        m.cat(&format!("inbox/{}", msg.name()));
        status(&file, "read");
        let after = fs::read_to_string(&file).unwrap();
        let end = text.rfind("}}").unwrap();
        let kept = if tail.is_empty() {
            &text[..text.len() - 1]
        } else {
            &text[..end.min(text.rfind(",\"local\"").unwrap())]
        };
        assert!(after.starts_with(kept), "{tail}: {after}");
        let v: Value = serde_json::from_str(&after).unwrap();
        assert!(v.get("metadata").is_none() && v["local"]["read_at"].is_string(), "{v}");
    }
}

/// S131: a message that another client marked is read here, whichever member has its mark. My own mark and its
/// removal last.
#[test]
fn s131_others_and_mine() {
    let word = |n: i64, local: &str, meta: Option<&str>| {
        let mut msg = Msg::new("s", "x", n).signed(2);
        msg.local = json!({"status": local});
        if let Some(meta) = meta {
            msg.rest = json!({"metadata": {"status": meta}});
        }
        msg
    };
    let read = word(1, "read", None);
    let archived = word(2, "archived", None);
    let unread = word(3, "unread", Some("unread"));
    let mut only_meta = word(4, "", Some("read"));
    only_meta.local = Value::Null;
    let (bed, home, m) = with(|_, home| {
        for x in [&read, &archived, &unread, &only_meta] {
            home.receive(x);
        }
    });
    m.inbox_stays(&[&unread.name()]);
    assert_eq!(m.ls("archive/2026-04-24").len(), 4);
    // Another client marks it.
    let mut changed = unread.clone();
    changed.local = json!({"status": "read"});
    changed.rest = json!({"metadata": {"status": "read"}});
    home.receive(&changed);
    m.inbox_becomes(&[]);
    m.ok(&format!("mv '{}' inbox/", unread.archived()));
    m.inbox_becomes(&[&unread.name()]);
    let file = home.place("bar", "inbox", ALICE, &unread.id);
    status(&file, "unread");
    amp::verify(&amp::read(&file), &crate::common::samp::key(2));
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    bed.mount("bar").inbox_stays(&[&unread.name()]);
}

/// S131, S30: looking changes none of the files, and signed mail still verifies after a mark.
#[test]
fn s131_looking() {
    let msg = Msg::new("s", "x", 1).signed(2);
    let (bed, home, m) = with(|_, home| {
        home.receive(&msg);
    });
    let state = || {
        bed.sh(&format!("find {} -printf '%P %T@ %i %m %s\\n' | sort", home.root.display())).stdout
    };
    let before = state();
    m.ok(
        "grep -r nothing-like-that . ; tar cf - . | wc -c; cat archive/*/* threads/*/* > /dev/null",
    );
    m.inbox_stays(&[&msg.name()]);
    assert_eq!(state(), before);
    m.cat(&format!("inbox/{}", msg.name()));
    let file = home.place("bar", "inbox", ALICE, &msg.id);
    status(&file, "read");
    amp::verify(&amp::read(&file), &crate::common::samp::key(2));
}

/// S572: every copy in my inbox says that the message was read, whenever it comes.
#[test]
fn s572_every_copy() {
    let msg = Msg::new("s", "x", 1).signed(2);
    let mut copies = Vec::new();
    let put = |home: &Home, sender: &str| {
        let file = home.place("bar", "inbox", sender, &msg.id);
        crate::common::agz::put(&file, msg.text());
        file
    };
    let (bed, home, m) = with(|_, home| {
        copies.push(home.receive(&msg));
        copies.push(put(home, "aside"));
    });
    m.inbox_becomes(&[&msg.name()]);
    m.cat(&format!("inbox/{}", msg.name()));
    m.inbox_becomes(&[]);
    copies.push(put(&home, "late"));
    for copy in &copies {
        status(copy, "read");
    }
    status(&put(&home, "later"), "read");
    m.umount();
    let unseen = put(&home, "unmounted");
    let m = bed.mount("bar");
    status(&unseen, "read");
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let unseen = put(&home, "without-cache");
    let m = bed.mount("bar");
    status(&unseen, "read");
    m.inbox_stays(&[]);
}

/// S1145: a message that took the place of another one of its id is another message, also once the cache is lost. The
/// mark of the first is not its mark.
#[test]
fn s1145_another_message_of_the_same_id() {
    let (bed, home, m) = with(|_, home| drop(home.deliver("bar", &Msg::new("plan", "first", 1))));
    let only = |m: &crate::common::Mount| m.ls("inbox").pop().expect("one message");
    assert!(m.cat(&format!("inbox/{}", only(&m))).contains("first"));
    m.inbox_becomes(&[]);
    let file = home.deliver("bar", &Msg::new("plan", "second", 1));
    crate::common::soon("it arrives", || m.ls("inbox").len() == 1);
    let shown = |m: &crate::common::Mount| {
        let name = only(m);
        let day = m.ls("archive").pop().expect("a day");
        (m.cat(&format!("archive/{day}/{name}")), name)
    };
    let (text, name) = shown(&m);
    assert!(text.contains("second"), "{text}");
    m.umount();
    fs::remove_dir_all(bed.path("cache/msgfs")).expect("cache");
    let m = bed.mount("bar");
    assert_eq!(shown(&m), (text, name));
    assert!(!fs::read_to_string(&file).expect("the file").contains("read_at"));
}
