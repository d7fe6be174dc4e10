//! The files that a draft becomes in two mailboxes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::amp::with;
use crate::common::amp::{self, ALICE, BAR, Home, Msg};
use crate::common::samp::{self, key};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, soon};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Checks that the script fails with this error and that nothing is sent. Returns the text of the error file.
#[track_caller]
fn refused(home: &Home, m: &Mount, script: &str, errno: &str) -> String {
    let out = m.sh(script);
    assert!(!out.ok() && out.stderr.contains(errno), "{script}: wanted {errno}, got {out:?}");
    assert!(
        home.list("bar", "sent").is_empty() && home.list("alice", "inbox").is_empty(),
        "{script}"
    );
    let why = m.ok("cat outbox/*.error");
    m.sh("rm -f outbox/*");
    why
}

/// S253: each of several recipients gets a message of its own. It names all of them in the signed context, which
/// the format leaves to its writers. A message to one recipient has no such list. A list says nothing if it leaves
/// out the message's own recipient or names something that is no address.
#[test]
fn s253_to_several() {
    let (bed, home, m) = with(|_, home| {
        home.agent("carol", "acme", 3);
        for (n, list) in
            [json!([ALICE]), json!([BAR, "x/../y@z"]), json!(BAR)].into_iter().enumerate()
        {
            let msg = Msg::new("odd", "x", n as i64);
            let payload =
                json!({"type": "status", "message": "x", "context": {"recipients": list}});
            home.receive(&msg.payload(&payload).signed(2));
        }
    });
    assert!(shown::all(&m, "inbox").iter().all(|s| s.must("To") == BAR));
    m.ok("printf 'To: alice\\nCc: carol\\n\\nboth of you\\n' > outbox/x");
    let carol = "carol@acme.aimaestro.local";
    for name in ["alice", "carol"] {
        let (_, v) = home.only(name, "inbox");
        amp::verify(&v, &key(1));
        assert_eq!(v["payload"]["context"], json!({"recipients": [ALICE, carol]}));
        assert!(v["envelope"]["to"].as_str().unwrap().starts_with(name));
        let got = shown::all(&bed.mount(name), "inbox").remove(0);
        assert_eq!(got.must("To"), format!("{ALICE}, {carol}"));
        assert!(got.must("Signature").starts_with("valid "), "{got:?}");
    }
    assert!(shown::all(&m, "sent").iter().all(|s| s.must("To") == format!("{ALICE}, {carol}")));
}

/// S127, S1282: another user can list and read what I put into its folders, whatever my umask. My own folders stay
/// private.
#[test]
fn s127_another_user() {
    crate::common::need_root();
    let (bed, home, m) = with(|_, _| {});
    let alice = home.dir("alice");
    let chown = |to: &str| {
        let out = bed.sh(&format!("chown -R {to} {}", crate::common::quote(&alice)));
        assert!(out.ok(), "{out:?}");
    };
    // S1282: I make all folders that are missing.
    for missing in ["messages", "attachments"] {
        fs::remove_dir_all(alice.join(missing)).unwrap();
    }
    chown("65534");
    fs::write(bed.path("plan.txt"), "plan").unwrap();
    let file = bed.path("plan.txt");
    m.ok(&format!(
        "printf 'Attach: {}\\n\\nhi\\n' > outbox/alice@acme.aimaestro.local",
        file.display()
    ));
    let (there, value) = home.only("alice", "inbox");
    assert_eq!((mode(&there), mode(there.parent().unwrap())), (0o644, 0o755), "{value}");
    let above = ["messages", "messages/inbox", "attachments"].map(|dir| mode(&alice.join(dir)));
    assert_eq!(above, [0o755; 3]);
    let attached =
        bed.sh(&format!("cd {}/attachments && stat -c %a * */*", crate::common::quote(&alice)));
    assert_eq!(attached.stdout, "755\n644\n");
    let (here, _) = home.only("bar", "sent");
    assert_eq!((mode(&here), mode(here.parent().unwrap())), (0o600, 0o700));
    chown("0");
}

/// S127: the file is in my sent/ and in the recipient's inbox/, with the names, modes, members and the signature
/// that every known client takes.
#[test]
fn s127_file() {
    let (_bed, home, m) = with(|_, _| {});
    let before = samp::now();
    m.ok("printf 'tests are green\\n\\nall of them\\n' > outbox/alice@acme.aimaestro.local");
    let (file, v) = home.only("alice", "inbox");
    let (mine, sent) = home.only("bar", "sent");
    for value in [&v, &sent] {
        amp::verify(value, &key(1));
    }
    assert_eq!(amp::canonical(&v["payload"]), amp::canonical(&sent["payload"]));
    assert_eq!(
        v["payload"],
        json!({"type": "notification", "message": "tests are green\n\nall of them"})
    );
    let e = &v["envelope"];
    let id = e["id"].as_str().unwrap();
    let parts: Vec<&str> = id.split('_').collect();
    assert!(
        parts.len() == 3 && parts[0] == "msg" && parts[1].len() == 10 && parts[2].len() == 16,
        "{id}"
    );
    let stamp: i64 = parts[1].parse().unwrap();
    assert!((before..=samp::now()).contains(&stamp), "{id}");
    assert!(parts[2].bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{id}");
    assert_eq!(
        (&e["version"], &e["from"], &e["to"]),
        (&json!("amp/0.1"), &json!(BAR), &json!(ALICE))
    );
    assert_eq!((&e["subject"], &e["priority"]), (&json!("tests are green"), &json!("normal")));
    assert_eq!(e["thread_id"], json!(id));
    assert!(e["in_reply_to"].is_null() || e["in_reply_to"] == "");
    assert!(e["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    assert_eq!(e["signature"].as_str().unwrap().len(), 88);
    assert_eq!(v["local"]["status"], "unread");
    assert!(v["local"]["received_at"].is_string() && sent["local"].is_object());
    let name = format!("{id}.json");
    assert_eq!(file, home.dir("alice").join("messages/inbox").join(amp::bucket(BAR)).join(&name));
    assert_eq!(mine, home.dir("bar").join("messages/sent").join(amp::bucket(ALICE)).join(&name));
    for f in [&file, &mine] {
        assert_eq!((mode(f), mode(f.parent().unwrap())), (0o600, 0o700), "{}", f.display());
        assert_eq!(crate::common::agz::names(f.parent().unwrap()), std::slice::from_ref(&name));
    }
    let today = samp::today();
    let listed = m.ls(&format!("sent/{today}"));
    assert_eq!(listed.len(), 1);
    let got = Shown::parse(&m.cat(&format!("sent/{today}/{}", listed[0])));
    assert_eq!((got.must("To"), got.must("Type")), (ALICE, "notification"));
    assert_eq!(got.must("Signature"), format!("valid {}", samp::fingerprint(&key(1))));
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S127: headers, bare names and local forms of the address arrive. The texts hash differently if anything goes
/// wrong.
#[test]
fn s127_headers() {
    let (bed, home, m) = with(|_, _| {});
    for (i, to) in ["alice", "alice@local", "alice@default.local", "Alice@Acme.AIMaestro.local"]
        .iter()
        .enumerate()
    {
        m.ok(&format!("echo {i} > outbox/{to}"));
        assert_eq!(home.list("alice", "inbox").len(), i + 1, "{to}");
    }
    m.ok("printf 'Subject: gr\\303\\274n \\\\ \"x\"\\nType: task\\nPriority: urgent\\n\\n\\ttab / \\342\\200\\250 \\360\\237\\230\\200 \\\\n\\n\\nend\\n' > outbox/alice");
    let all: Vec<Value> = home.list("alice", "inbox").iter().map(|f| amp::read(f)).collect();
    let v = all.iter().find(|v| v["payload"]["type"] == "task").unwrap();
    assert_eq!(
        (&v["envelope"]["subject"], &v["envelope"]["priority"]),
        (&json!("gr\u{fc}n \\ \"x\""), &json!("urgent"))
    );
    assert_eq!(v["payload"]["message"], "\ttab / \u{2028} \u{1f600} \\n\n\nend");
    for v in &all {
        amp::verify(v, &key(1));
    }
    fs::write(bed.path("draft"), format!("\n{}\n", "x".repeat(100))).unwrap();
    m.ok(&format!(
        "cat {} > outbox/alice; printf '\\n\\n\\n' > outbox/alice",
        bed.path("draft").display()
    ));
    let subjects: Vec<String> = home
        .list("alice", "inbox")
        .iter()
        .map(|f| amp::read(f)["envelope"]["subject"].as_str().unwrap().to_owned())
        .collect();
    assert!(subjects.contains(&"x".repeat(80)), "cut to 80 characters: {subjects:?}");
    assert!(
        subjects.contains(&"(no subject)".to_owned()) || home.list("alice", "inbox").len() == 6,
        "{subjects:?}"
    );
}

/// S127, S56, S51: `Idempotency-Key` sends once, also across a remount without the index. `In-Reply-To` takes the
/// id as it is shown.
#[test]
fn s127_retries_and_links() {
    let (bed, home, m) = with(|_, _| {});
    let send = "printf 'Idempotency-Key: job-17\\n\\ndeployed\\n' | tee outbox/alice > /dev/null";
    m.ok(send);
    m.ok(send);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    m.ok(send);
    let (file, v) = home.only("alice", "inbox");
    let id = v["envelope"]["id"].as_str().unwrap();
    m.ok(&format!("printf 'In-Reply-To: <{id}@amp>\\n\\nmore\\n' > outbox/alice"));
    let all = home.list("alice", "inbox");
    assert_eq!(all.len(), 2);
    let other = amp::read(all.iter().find(|f| **f != file).unwrap());
    assert_eq!(other["envelope"]["in_reply_to"], json!(id));
    amp::verify(&other, &key(1));
    assert_eq!(m.ls("threads").len(), 1);
}

/// S127: alice reads the message in her own mount as valid and answers. Both see one thread.
#[test]
fn s127_two_mounts() {
    let (bed, _home, m) = with(|_, _| {});
    let alice = bed.mount("alice");
    m.ok("printf 'Subject: lunch\\n\\nnoon?\\n' > outbox/alice");
    soon("it arrives", || alice.ls("inbox").len() == 1);
    let got = shown::all(&alice, "inbox").remove(0);
    assert_eq!(got.must("Signature"), format!("valid {}", samp::fingerprint(&key(1))));
    let thread = samp::thread_dir(got.must("Thread"));
    alice.ok(&format!("echo fine > threads/{thread}/answer"));
    soon("the answer arrives", || m.ls("inbox").len() == 1);
    assert_eq!(m.ls(&format!("threads/{thread}")), alice.ls(&format!("threads/{thread}")));
    assert_eq!(m.ls(&format!("threads/{thread}")).len(), 2);
    let answer = shown::all(&m, "inbox").remove(0);
    assert_eq!(
        (answer.must("Subject"), answer.must("Signature")),
        ("Re: lunch", format!("valid {}", samp::fingerprint(&key(2))).as_str())
    );
}

/// S129: a remote provider and a local name without a mailbox give EHOSTUNREACH, whatever the policy for unknown
/// recipients is. The draft is kept with a sentence.
#[test]
fn s129_unreachable() {
    for policy in ["accept", "refuse"] {
        let (_bed, home, m) = with(|bed, home| {
            bed.config(&format!("unknown_recipient = \"{policy}\"\n{}", home.store()));
            // A skeleton without a configuration is no agent.
            fs::create_dir_all(home.root.join("agents/ghost/messages/inbox")).unwrap();
        });
        for to in [
            "carol@acme.crabmail.ai",
            "carol@acme.internal",
            "nobody@acme.aimaestro.local",
            "ghost",
            "alice@globex.aimaestro.local",
        ] {
            let why = refused(&home, &m, &format!("echo hi | tee outbox/{to}"), "No route to host");
            let name = to.split('@').next().unwrap();
            assert!(why.contains(name) && why.trim().len() > 20, "{to}: {why}");
        }
        assert_eq!(
            crate::common::agz::names(&home.root.join("agents/ghost/messages/inbox")),
            [""; 0]
        );
    }
}

/// S129: a draft that breaks the format gives EINVAL, and one that exceeds it EFBIG. Hostile recipients are no
/// names.
#[test]
fn s129_rules() {
    let (bed, home, m) = with(|_, _| {});
    for head in [
        format!("Subject: {}", "s".repeat(257)),
        "Subject: a\\001b".to_owned(),
        "Priority: soonest".to_owned(),
        "In-Reply-To: ../../x".to_owned(),
        "In-Reply-To: null".to_owned(),
        "To: bob/../alice@acme.aimaestro.local".to_owned(),
        "To: a|b@acme.aimaestro.local".to_owned(),
    ] {
        refused(
            &home,
            &m,
            &format!("printf '{head}\\n\\nbody\\n' | tee outbox/alice"),
            "Invalid argument",
        );
    }
    refused(&home, &m, "printf 'nul \\000 byte' | tee outbox/alice", "Invalid argument");
    // jq and the other clients sign this text differently, so some of them would refuse any signature of msgfs.
    refused(&home, &m, "printf 'del \\177 byte' | tee outbox/alice", "Invalid argument");
    fs::write(bed.path("big"), "x".repeat(65_537)).unwrap();
    refused(
        &home,
        &m,
        &format!("cat {} | tee outbox/alice > /dev/null", bed.path("big").display()),
        "File too large",
    );
    fs::write(bed.path("fits"), "x".repeat(65_536)).unwrap();
    m.ok(&format!("cat {} > outbox/alice", bed.path("fits").display()));
    assert_eq!(home.list("alice", "inbox").len(), 1);
}

/// S130: a private key that others can read, a broken key and a missing key give ENOKEY. Reading works.
#[test]
fn s130_keys() {
    for fault in ["exposed", "broken", "missing"] {
        let msg = Msg::new("s", "hello", 1).signed(2);
        let (bed, home, m) = with(|_, home| {
            home.receive(&msg);
            let file = home.dir("bar").join("keys/private.pem");
            match fault {
                "exposed" => fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap(),
                "broken" => fs::write(
                    file,
                    "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                )
                .unwrap(),
                _ => fs::remove_file(file).unwrap(),
            }
        });
        assert!(m.cat(&msg.archived()).contains("Signature: valid "), "{fault}");
        let why = refused(&home, &m, "echo hi | tee outbox/alice", "Required key not available");
        assert!(why.contains("private.pem"), "{fault}: {why}");
        let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
        assert!(out.said().contains("private.pem"), "{fault}: {out:?}");
        assert_eq!(
            home.dir("bar").join("keys/private.pem").exists(),
            fault != "missing",
            "none is made"
        );
    }
}

/// S127, S55: a msgfs that is killed again and again while it sends leaves each message exactly once on both
/// sides.
#[test]
fn s127_killed() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    let mut accepted = Vec::new();
    for round in 0..6 {
        accepted.extend(bed.killed_while_sending("bar", "alice", round));
    }
    let m = bed.mount("bar");
    let texts = |who: &str, folder: &str| {
        let mut all: Vec<String> = home
            .list(who, folder)
            .iter()
            .map(|f| amp::read(f)["payload"]["message"].as_str().unwrap().to_owned())
            .collect();
        all.sort();
        all
    };
    soon("both sides agree", || texts("bar", "sent") == texts("alice", "inbox"));
    let got = texts("alice", "inbox");
    let mut once = got.clone();
    once.dedup();
    assert_eq!(once.len(), got.len(), "doubled");
    assert!(!accepted.is_empty());
    for text in &accepted {
        assert!(got.binary_search(text).is_ok(), "{text} was accepted and is lost");
    }
    assert_eq!(m.ok("grep -rh '^letter ' sent | wc -l").trim(), got.len().to_string());
    for f in home.list("alice", "inbox") {
        assert!(!f.file_name().unwrap().to_str().unwrap().starts_with('.'));
    }
}
