//! A client of `jq` and `openssl` on the same AMP mailboxes as a mount.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::common::agz::names;
use crate::common::amp::{self, ALICE, BAR, Home};
use crate::common::shown::{self, message};
use crate::common::{Bed, Out, run, samp, soon, wait_for};

fn shell(bed: &Bed, args: &[&str]) -> Out {
    let mut c = bed.command("bash");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/amp_shell.sh")).args(args);
    run(c, None)
}

#[track_caller]
fn verified(bed: &Bed, public: &Path, file: &Path) {
    let out = shell(bed, &["verify", public.to_str().unwrap(), file.to_str().unwrap()]);
    assert!(
        out.ok() && out.stdout.contains("Signature Verified Successfully"),
        "{}: {out:?}\n{}",
        file.display(),
        fs::read_to_string(file).unwrap()
    );
}

/// Makes the bed's two agents with keys that openssl made.
fn with_keys() -> (Bed, Home) {
    let bed = Bed::new();
    let home = Home::new(&bed);
    for who in ["bar", "alice"] {
        let out = shell(&bed, &["key", home.dir(who).join("keys").to_str().unwrap()]);
        assert!(out.ok(), "{out:?}");
    }
    bed.config(&home.store());
    (bed, home)
}

/// openssl verifies each message of the mount from the file in both mailboxes, whatever the text is. It refuses the
/// message when one byte is changed.
#[test]
fn openssl_verifies_ours() {
    let (bed, home) = with_keys();
    let m = bed.mount("bar");
    fs::write(bed.path("file.txt"), "attached").unwrap();
    let drafts = [
        "plain\n".to_owned(),
        "Subject: gr\u{fc}n \\ \"quoted\" / tab\nPriority: urgent\nType: alert\n\nline one\n\n\tline \u{1f600} \u{2028} \\n \\u0041 /\n\n".to_owned(),
        format!("Attach: {}\nSubject: with a file\n\nsee file\n", bed.path("file.txt").display()),
        "\n{\"looks\": \"like JSON\", \"n\": 1.10}\n".to_owned(),
        "\n\u{1} \u{1f} control\n".to_owned(),
    ];
    for draft in &drafts {
        fs::write(bed.path("draft"), draft).unwrap();
        m.ok(&format!("cat {} > outbox/alice", bed.path("draft").display()));
    }
    let public = home.dir("bar").join("keys/public.pem");
    for (who, folder) in [("alice", "inbox"), ("bar", "sent")] {
        let files = home.list(who, folder);
        assert_eq!(files.len(), drafts.len());
        for file in &files {
            verified(&bed, &public, file);
        }
    }
    // The check must also be able to fail.
    let file = &home.list("alice", "inbox")[0];
    let text = fs::read_to_string(file).unwrap();
    let mut v: Value = serde_json::from_str(&text).unwrap();
    v["payload"]["message"] = "changed".into();
    fs::write(bed.path("changed.json"), v.to_string()).unwrap();
    let out = shell(
        &bed,
        &["verify", public.to_str().unwrap(), bed.path("changed.json").to_str().unwrap()],
    );
    assert!(!out.ok() && out.said().contains("Verification Failure"), "{out:?}");
    // The file still verifies after a mark.
    let alice = bed.mount("alice");
    alice.ok("cat inbox/*.txt > /dev/null");
    wait_for(Duration::from_secs(15), "all are marked", || {
        home.list("alice", "inbox").iter().all(|f| amp::read(f)["local"]["status"] == "read")
    });
    for file in home.list("alice", "inbox") {
        verified(&bed, &public, &file);
    }
}

/// The mount reads and verifies each message that the shell client writes, although local delivery adds members after
/// signing. The client also verifies the mount's reply.
#[test]
fn theirs_is_verified_by_us() {
    let (bed, home) = with_keys();
    let m = bed.mount("bar");
    let texts = ["plain", "gr\u{fc}n \u{1f600} \u{2028} \"q\" \\ /", "two\n\nparagraphs", ""];
    for (i, text) in texts.iter().enumerate() {
        let file = home.place(
            "bar",
            "inbox",
            ALICE,
            &format!("msg_{}_0000000{i}", samp::now() - 100 + i as i64),
        );
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let key = home.dir("alice").join("keys/private.pem");
        let out = shell(
            &bed,
            &[
                "send",
                key.to_str().unwrap(),
                ALICE,
                BAR,
                &format!("subject {i}"),
                text,
                "",
                file.to_str().unwrap(),
            ],
        );
        assert!(out.ok(), "{out:?}");
    }
    soon("all arrive", || m.ls("inbox").len() == texts.len());
    assert_eq!(shown::rejected(&m), [""; 0]);
    let public = home.dir("alice").join("keys/public.pem");
    let raw = fingerprint(&public);
    let all = shown::all(&m, "inbox");
    let subject = |i: usize| {
        let wanted = format!("subject {i}");
        all.iter().find(|s| s.must("Subject") == wanted).unwrap()
    };
    for (i, text) in texts.iter().enumerate() {
        let s = subject(i);
        assert_eq!(s.must("Signature"), format!("valid {raw}"), "{s:?}");
        assert_eq!(s.body.trim_end_matches('\n'), *text);
    }
    // A message that is changed on disk is rejected.
    let file = home.list("bar", "inbox").remove(0);
    let text = fs::read_to_string(&file).unwrap();
    let mut v: Value = serde_json::from_str(&text).unwrap();
    v["envelope"]["id"] = "msg_1777052523_0badcafe".into();
    v["payload"]["message"] = "changed".into();
    crate::common::agz::put(&file.with_file_name("msg_1777052523_0badcafe.json"), v.to_string());
    assert!(shown::one_rejected(&m).contains("changed"));
    let beside = format!(
        "{}.reply",
        shown::path(
            &m,
            "archive",
            subject(0).must("Message-ID").trim_matches(['<', '>']).trim_end_matches("@amp")
        )
        .trim_end_matches(".txt")
    );
    m.ok(&format!("echo answer > '{beside}'"));
    let (answer, v) = home.only("alice", "inbox");
    verified(&bed, &home.dir("bar").join("keys/public.pem"), &answer);
    assert_eq!(v["envelope"]["subject"], "Re: subject 0");
    assert_eq!(names(answer.parent().unwrap()).len(), 1);
    let id = v["envelope"]["in_reply_to"].as_str().unwrap();
    assert_eq!(message(&m, id).must("Subject"), "subject 0");
}

/// Returns the fingerprint that the mount shows for a public key in a PEM file.
fn fingerprint(pem: &Path) -> String {
    let text = fs::read_to_string(pem).unwrap();
    let b64: String = text.lines().filter(|l| !l.starts_with('-')).collect();
    let der = BASE64.decode(b64).unwrap();
    samp::sha_hex(&der[12..], 16)
}
