//! Files that are broken, that another client changed, or that have too many attachments.

use std::fs;

use serde_json::json;

use crate::amp::with;
use crate::common::agz::put;
use crate::common::amp::Msg;
use crate::common::samp::{fingerprint, key};
use crate::common::shown::message;
use crate::common::{Mount, soon};

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

/// S1286, S1440: while the file of a message is broken, the message is listed, and `status.txt` says if its text is
/// there. The text is there after a remount, too, but not if the file broke before it: then one line stands for it.
#[test]
fn s1286_a_broken_file_is_told_with_or_without_its_text() {
    let msgs = [("hello", 1), ("bye", 2)].map(|(text, n)| Msg::new("s", text, n).signed(2));
    let mut files = Vec::new();
    let (bed, _home, mut m) = with(|_, home| files.extend(msgs.iter().map(|m| home.receive(m))));
    let names = msgs.each_ref().map(Msg::name);
    let names = names.each_ref().map(String::as_str);
    let breaks = |n: usize| fs::write(&files[n], &msgs[n].text()[..40]).unwrap();
    let shows = |m: &Mount, n: usize, text: &str| {
        let out = m.sh(&format!("cat '{}'", msgs[n].archived())).stdout;
        out.ends_with(&format!("\n\n{text}\n"))
    };
    breaks(0);
    for _ in 0..3 {
        soon("its text is there", || {
            m.cat("status.txt").contains("its last readable text is shown")
        });
        m.inbox_stays(&names);
        assert!(shows(&m, 0, "hello"));
        m.umount();
        m = bed.mount("bar");
    }
    m.umount();
    breaks(1);
    m = bed.mount("bar");
    soon("the other text is not there", || {
        m.cat("status.txt").contains("it stays listed, without text until the file is mended")
    });
    m.inbox_stays(&names);
    assert!(shows(&m, 0, "hello"));
    let line = "\nThe text of this message cannot be read now.\n";
    assert_eq!(m.ok(&format!("cat 'inbox/{}'", names[1])), line);
    assert_eq!(
        m.ok(&format!("stat -c %s '{}'", msgs[1].archived())).trim(),
        line.len().to_string()
    );
    m.ok("tar cf /dev/null inbox archive threads transcripts .maildir");
    m.inbox_stays(&names);
    files.iter().zip(&msgs).for_each(|(file, msg)| put(file, msg.text()));
    soon("both texts are there", || shows(&m, 0, "hello") && shows(&m, 1, "bye"));
    soon("the fault is over", || !m.cat("status.txt").contains("cannot be read as a message now"));
}
