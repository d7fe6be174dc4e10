//! A state folder that an earlier msgfs left when it was killed, opened by this one.
//!
//! `tests/vectors/recorded-state.json` was recorded with msgfs 9e63b1f: three stores, a link without a server, six read
//! messages, three unread ones of another store, drafts, a composing folder whose body was closed within the second
//! before the kill, and eight programs that were sending when the mount was killed. `{root}` stands for the folder of
//! all, and `{now}` for the time at which a letter began to wait, because letters wait a week at most.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use crate::common::samp::read_log;
use crate::common::{Bed, wait_for};

/// Returns a bed with the recorded folders and files, and the texts that the earlier msgfs accepted while it was
/// killed.
fn recorded() -> (Bed, Vec<String>) {
    let mut bed = Bed::new();
    let all: Value =
        serde_json::from_str(include_str!("../vectors/recorded-state.json")).expect("vectors");
    let texts = |member: &str| -> Vec<String> {
        let list = all[member].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
    };
    for folder in texts("folders") {
        let path = bed.path(folder);
        fs::create_dir_all(&path).expect("mkdir");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_millis();
    let root = bed.path("").display().to_string();
    for (name, file) in all["files"].as_object().expect("files") {
        let bytes = if let Some(text) = file["text"].as_str() {
            let text = text.replace("{root}", root.trim_end_matches('/'));
            text.replace("{now}", &now.to_string()).into_bytes()
        } else {
            let mut bytes =
                BASE64_STANDARD.decode(file["base64"].as_str().expect("a text")).expect("base64");
            let len = file["length"].as_u64().expect("a number");
            bytes.resize(usize::try_from(len).expect("a length"), 0);
            bytes
        };
        fs::write(bed.path(name), bytes).expect("write");
        fs::set_permissions(bed.path(name), fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    bed.store = bed.path("stores/samp");
    (bed, texts("accepted"))
}

/// Returns the bodies in the SAMP log of `bob`, sorted.
fn bodies(bed: &Bed) -> Vec<String> {
    let log = read_log(&bed.store, "bob");
    let mut bodies: Vec<String> =
        log.iter().map(|line| line["body"].as_str().expect("a body").to_owned()).collect();
    bodies.sort();
    bodies
}

/// S746: the state of an earlier msgfs is taken over: marks, keys, drafts, what it accepted and did not deliver, and
/// the letter that waits for its link. Its snapshots are replaced.
#[test]
fn s746_the_state_of_an_earlier_msgfs() {
    let (bed, accepted) = recorded();
    let missing = accepted.iter().filter(|text| !bodies(&bed).contains(text)).count();
    assert!(missing > 0, "some accepted messages are in the spool only");
    let m = bed.mount("bob");

    let inbox = m.ls("inbox");
    let of = |store: &str| inbox.iter().filter(|name| name.contains(store)).count();
    assert_eq!((inbox.len(), of("@localhost"), of("@acme.")), (9, 5, 4), "{inbox:?}");
    assert!(of("-anna-") == 0 && !inbox.iter().any(|name| name.contains("agent3@localhost")));
    assert_eq!(m.ok("ls archive/*/*.txt | wc -l").trim(), "15");

    let keys = bed.msgfs_out(&["--me", "bob", "key", "list"]).stdout;
    for key in [
        "agent1@localhost 6a3803d5f059902a 2026-11-26 first use",
        "anna a6245df2892267ff 2026-11-26 first use",
        "bob 81db362044e5e74f 2026-11-26 by hand",
        "bob@localhost 2b61f0ec7a2b2352 2026-11-26 by hand",
    ] {
        let words: Vec<&str> = key.split(' ').collect();
        let has = |line: &str| line.split_whitespace().zip(&words).filter(|(a, b)| a == *b).count();
        assert!(keys.lines().any(|line| has(line) == words.len()), "{key}: {keys}");
    }
    assert!(!m.ok("cat archive/*/*-anna-*.txt").contains("WARNING"));

    wait_for(Duration::from_secs(60), "what was accepted is in the log", || {
        let bodies = bodies(&bed);
        accepted.iter().all(|text| bodies.contains(text))
    });
    let mut once = bodies(&bed);
    once.dedup();
    assert_eq!(once, bodies(&bed), "each message is there once");
    let theirs = bed.path("stores/amp/agents/00000002-0000-4000-8000-000000000000/messages/inbox");
    let find = format!("grep -rl 'a promised body' {} | wc -l", theirs.display());
    wait_for(Duration::from_secs(60), "the promised message is delivered", || {
        bed.sh(&find).stdout.trim() == "1"
    });

    let outbox = m.ls("outbox");
    for name in ["carol.agenttalk", "carol.agenttalk.error", "draftfolder"] {
        assert!(outbox.contains(&name.to_owned()), "{outbox:?}");
    }
    assert_eq!(m.cat("outbox/carol.agenttalk"), "to the far 2");
    assert!(m.cat("outbox/carol.agenttalk.error").contains("several stores could carry this"));
    assert_eq!(m.cat("outbox/draftfolder/a.txt"), "a part");
    assert_eq!(m.cat("outbox/.unfinished.swp"), "To: anna@samp\n\nunfinished");

    let warning = m.ok("cat sent/*/*8a18eb79.warning");
    assert!(warning.contains("carol.agenttalk"), "{warning}");
    let link = bed.msgfs_out(&["--me", "bob", "link"]).stdout;
    assert!(link.contains("relay") && link.contains("1 waiting"), "{link}");
    assert!(m.cat("status.txt").contains("healthy"), "{}", m.cat("status.txt"));

    m.umount();
    let m = bed.mount("bob");
    assert_eq!(m.ls("inbox"), inbox, "the marks are those of before");
    assert_eq!(once, bodies(&bed), "nothing is sent again");
    assert_eq!(bed.sh(&find).stdout.trim(), "1");
}
