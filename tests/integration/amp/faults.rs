//! Files that are broken, that another client changed, or that have too many attachments.

use std::fs;

use serde_json::json;

use crate::amp::with;
use crate::common::agz::put;
use crate::common::amp::Msg;
use crate::common::samp::{fingerprint, key};
use crate::common::shown::message;
use crate::common::soon;

/// S1280: the first 64 attachments are shown as they are, and one entry counts the rest.
#[test]
fn s1280_too_many_attachments_are_counted() {
    let list = vec![json!({"id": "att_1_a1", "filename": "same.txt", "size": 4}); 70];
    let msg = Msg::new("s", "see files", 1)
        .payload(&json!({"type": "notification", "message": "see files", "attachments": list}))
        .signed(2);
    let (_bed, _home, m) = with(|_, home| drop(home.receive(&msg)));
    let got = message(&m, &msg.id);
    let line = got.must("Attachments");
    assert!(line.ends_with(", 6 more (withheld: too many)"), "{line}");
    assert_eq!(line.matches("(withheld: ").count(), 65, "{line}");
    assert!(got.must("Warnings").contains("over limit"), "{got:?}");
}

/// S1281: a copy that came first, and to which another client added a line end, hides no message whose signature is
/// valid. This holds after a remount without the cache, too.
#[test]
fn s1281_a_changed_copy_hides_no_valid_message() {
    let good = Msg::new("s", "hello", 1).signed(2);
    let mut copy = good.clone();
    copy.payload = copy.payload.replace("hello", "hello\\n");
    copy.local = json!({"received_at": "2026-10-31T00:00:00Z", "status": "unread"});
    let (bed, home, m) = with(|_, home| {
        put(&home.place("bar", "inbox", "eve@acme.aimaestro.local", &copy.id), copy.text());
    });
    home.receive(&good);
    let valid = format!("valid {}", fingerprint(&key(2)));
    m.inbox_becomes(&[&good.name()]);
    assert_eq!(message(&m, &good.id).must("Signature"), valid);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    m.inbox_becomes(&[&good.name()]);
    assert_eq!(message(&m, &good.id).must("Signature"), valid);
}

/// S1286: while the file of a message is broken, the message is listed, and `status.txt` says if its text is there. A
/// remount has no text of it.
#[test]
fn s1286_a_broken_file_is_told_with_or_without_its_text() {
    let msg = Msg::new("s", "hello", 1).signed(2);
    let mut file = None;
    let (bed, _home, m) = with(|_, home| file = Some(home.receive(&msg)));
    let file = file.unwrap();
    fs::write(&file, &msg.text()[..40]).unwrap();
    soon("its text is there", || m.cat("status.txt").contains("its last readable text is shown"));
    assert!(m.cat(&msg.archived()).ends_with("\n\nhello\n"));
    m.umount();
    let m = bed.mount("bar");
    soon("its text is not there", || {
        m.cat("status.txt").contains("it stays listed, without text until the file is mended")
    });
    m.inbox_stays(&[&msg.name()]);
    put(&file, msg.text());
    soon("its text is there again", || {
        m.sh(&format!("cat '{}'", msg.archived())).stdout.ends_with("\n\nhello\n")
    });
    soon("the fault is over", || !m.cat("status.txt").contains("cannot be read as a message now"));
}
