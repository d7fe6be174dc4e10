//! Messages that msgfs leaves in `outbox/` travel by the daemon and transports of `AgentAZAll`, and arrive.

use std::fs;

use serde_json::json;

use crate::common::agz::{self, ME, Tree};
use crate::common::shown::{self, message};
use crate::common::{Bed, samp, soon};
use crate::peer;

/// Makes a second machine: another folder of mailboxes with one agent.
fn far(bed: &Bed, agent: &str, more: &serde_json::Value) -> Tree {
    let tree = Tree { root: bed.path("far"), agent: agent.to_owned() };
    fs::create_dir_all(tree.base()).unwrap();
    tree.configure(more);
    agz::identity(&tree.base(), &samp::key(2));
    tree
}

/// By FTP: the daemon takes the message with its attachments out of `outbox/`. In the mount it stays one message and no
/// longer waits. On the other machine it is valid and complete, and the other program verifies it.
#[test]
fn by_ftp() {
    let bed = Bed::new();
    let server = peer::ftp_server(&bed);
    let config = json!({"transport": "ftp", "log_file": "", "ftp": {"host": "127.0.0.1", "port": server.port}});
    let bar = Tree::with(&bed, ME, &config);
    agz::identity(&bar.base(), &samp::key(1));
    let zed = far(&bed, "zed@far.example", &config);
    bed.config(&bar.store());
    let m = bed.mount("bar");
    fs::write(bed.path("data.bin"), [0u8, 9, 255]).unwrap();
    m.ok(&format!(
        "printf 'Subject: across\\nAttach: {}\\n\\nby ftp\\n' | tee outbox/zed@far.example > /dev/null",
        bed.path("data.bin").display()
    ));
    let (file, text) = bar.only(ME, "outbox");
    assert!(m.cat("status.txt").contains("zed@far.example"));
    peer::ok(&bed, &bar, &["daemon", "--once"]);
    assert_eq!(bar.list(ME, "outbox"), []);
    assert_eq!(bar.only(ME, "sent").1, text);
    soon("nothing waits", || {
        !m.cat("status.txt").lines().any(|l| l.contains("zed@far.example") && l.contains("wait"))
    });
    let sent: Vec<String> = m
        .ls(&format!("sent/{}", samp::today()))
        .into_iter()
        .filter(|n| shown::has_ending(n, "txt"))
        .collect();
    assert_eq!(sent.len(), 1, "one message, wherever its file lies: {sent:?}");
    peer::ok(&bed, &zed, &["daemon", "--once"]);
    let (there, same) = zed.only("zed@far.example", "inbox");
    assert_eq!((there.file_name(), &same), (file.file_name(), &text));
    let v = peer::verify(&bed, &[there]).remove(0);
    assert_eq!(
        (&v["verified"], &v["envelope"], &v["attachments"]["data.bin"]),
        (&json!(true), &json!(true), &json!(true))
    );
    let second = Bed::new();
    second.config(&zed.store());
    let other = second.mount("zed");
    let got = shown::all(&other, "inbox").remove(0);
    assert_eq!((got.must("Subject"), got.body.as_str()), ("across", "by ftp\n"));
    assert_eq!(got.must("Signature"), format!("valid {}", samp::fingerprint(&samp::key(1))));
    assert_eq!(other.ok("cat inbox/*.d/data.bin | wc -c").trim(), "3");
    // The other program replies, and the reply comes back while both are mounted.
    let id = v["headers"]["Message-ID"].as_str().unwrap().to_owned();
    peer::ok(&bed, &zed, &["reply", &id, "-b", "got it"]);
    peer::ok(&bed, &bar, &["daemon", "--once"]);
    soon("the reply arrives", || m.ls("inbox").iter().any(|n| shown::has_ending(n, "txt")));
    let reply = shown::all(&m, "inbox").remove(0);
    assert!(
        reply.body.starts_with("got it\n") && reply.must("Signature").starts_with("valid "),
        "{reply:?}"
    );
    assert_eq!(
        reply.must("Thread"),
        message(&other, &id).must("Thread"),
        "subject and people agree on both machines"
    );
}

/// By relay, which keeps neither id nor date nor Cc: the signed envelope restores them, and a duplicate that also came
/// by the local way is the same message.
#[test]
fn by_relay() {
    let bed = Bed::new();
    let relay = peer::relay(&bed);
    let bar = Tree::with(&bed, "bar.agenttalk", &peer::register(&bed, &relay, "bar"));
    agz::identity(&bar.base(), &samp::key(1));
    let zed = far(&bed, "zed.agenttalk", &peer::register(&bed, &relay, "zed"));
    bed.config(&bar.store());
    let m = bed.mount("bar");
    m.ok("printf 'To: zed.agenttalk\\nSubject: by relay\\n\\nover the wire\\n' > outbox/x");
    let (file, text) = bar.only("bar.agenttalk", "outbox");
    peer::ok(&bed, &bar, &["daemon", "--once"]);
    assert_eq!(bar.list("bar.agenttalk", "outbox"), []);
    peer::ok(&bed, &zed, &["daemon", "--once"]);
    let (there, arrived) = zed.only("zed.agenttalk", "inbox");
    assert_ne!(arrived, text, "the relay makes its own envelope");
    assert_eq!(peer::verify(&bed, &[there])[0]["verified"], true);
    let second = Bed::new();
    second.config(&zed.store());
    let other = second.mount("zed");
    let id = file.file_stem().unwrap().to_str().unwrap();
    let got = message(&other, id);
    assert_eq!(
        (got.must("From"), got.must("Subject"), got.body.as_str()),
        ("bar.agenttalk", "by relay", "over the wire\n")
    );
    assert_eq!(got.must("Signature"), format!("valid {}", samp::fingerprint(&samp::key(1))));
    let mine = shown::all(&m, "sent").remove(0);
    assert_eq!(got.must("Date"), mine.must("Date"), "the date that was signed");
    let day = agz::today();
    agz::put(&zed.base().join(&day).join("inbox").join(file.file_name().unwrap()), &text);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(other.ls("inbox").len(), 1, "one message");
}
