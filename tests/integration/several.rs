//! Stores of several kinds in one mount.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;

use crate::amq::Queue;
use crate::common::agz::{self, Letter, ME, Tree};
use crate::common::amp::{Home, Msg};
use crate::common::samp::{self, T0};
use crate::common::shown;
use crate::common::{Bed, Mount, detach, run, soon};

/// Makes a bed with a store of each kind, mounted for bar after `fill`.
#[track_caller]
fn three(extra: &str, fill: impl FnOnce(&Bed, &Tree, &Home)) -> (Bed, Tree, Home, Mount) {
    let bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    let samp = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
    bed.config(&format!("{extra}{samp}{}{}", tree.store(), home.store()));
    fill(&bed, &tree, &home);
    let m = bed.mount("bar");
    (bed, tree, home, m)
}

/// S133: there are one inbox in time order, one archive and one set of threads. raw/ keeps the stores apart.
#[test]
fn s133_one_inbox() {
    let l1 =
        Letter::new("alice@localhost", "from azall", "second", 1).set("Date", &agz::local(T0 + 60));
    let a1 = Msg::new("from amp", "third", 2).signed(2);
    let (_bed, _tree, _home, m) = three("", |bed, tree, home| {
        samp::append(&bed.store, "foo", "bar", "t", "first", T0);
        samp::append(&bed.store, "foo", "bar", "t", "fourth", T0 + 180);
        tree.receive(&l1);
        home.receive(&a1);
    });
    let bodies: Vec<String> =
        shown::all(&m, "inbox").into_iter().map(|s| s.body.trim().to_owned()).collect();
    assert_eq!(bodies, ["first", "second", "third", "fourth"]);
    let kinds: Vec<String> = shown::all(&m, "inbox")
        .iter()
        .map(|s| s.must("Message-ID").rsplit('@').next().unwrap().trim_end_matches('>').to_owned())
        .collect();
    assert_eq!(kinds, ["samp", "agentazall", "amp", "samp"]);
    assert_eq!(m.ls("raw"), ["agentazall", "amp", "samp"]);
    assert_eq!(m.ls("threads").len(), 3);
    assert_eq!(m.ls("archive"), ["2026-04-24"]);
    let status = m.cat("status.txt");
    for word in ["samp", "agentazall", "amp", ME, "bar@acme.aimaestro.local"] {
        assert!(status.contains(word), "{word} missing in\n{status}");
    }
    assert_eq!(m.cat(".wait").lines().count(), 4);
    assert!(m.cat(".next").ends_with("\n\nfirst\n"));
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
}

/// S133: with all five kinds at once there is one inbox, each kind has its threads and files, and each draft goes
/// to its store.
#[test]
fn s133_five_kinds() {
    let atsf = json!({
        "id": "6a0f8f7e-0000-4000-8000-000000000001", "role": "agent",
        "timestamp": "2026-04-24T17:45:03.000Z", "content": [{"type": "text", "text": "fourth"}]
    });
    let record = json!({
        "msg_id": "task_dispatch-T-2026-001-1777052763000", "protocol_version": "AMP/1.0",
        "type": "task_dispatch", "from": "coordinator", "to": "executor", "task_id": "T-2026-001",
        "timestamp": "2026-04-24T17:46:03.000Z", "requires_ack": true,
        "payload": {
            "description": "fifth", "repo": "/srv/shop", "branch": "b", "subtasks": [],
            "acceptance_criteria": ["done"], "risk_level": "low"
        }
    });
    let bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    let (project, ssot) = (bed.path("project"), bed.path("ssot"));
    let store = |kind: &str, dir: &Path, more: &str| {
        format!("[[store]]\nkind = \"{kind}\"\ndir = {:?}\n{more}", dir.to_str().unwrap())
    };
    bed.config(&format!(
        "{}{}{}{}{}",
        store("samp", &bed.store, ""),
        tree.store(),
        home.store(),
        store("atsf", &project, ""),
        store("ssot", &ssot, "me = \"executor\"\n")
    ));
    samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    tree.receive(
        &Letter::new("alice@localhost", "letter", "second", 1).set("Date", &agz::local(T0 + 60)),
    );
    home.receive(&Msg::new("from amp", "third", 2).signed(2));
    let thread = project.join(".agent/threads/one");
    agz::put(&thread.join("messages.jsonl"), format!("{atsf}\n"));
    agz::put(
        &thread.join("thread.json"),
        json!({
            "specVersion": "1.1", "threadId": "one", "title": "a thread",
            "createdAt": "2026-04-24T17:45:03.000Z", "updatedAt": "2026-04-24T17:45:03.000Z",
            "agent": {"id": "a", "name": "a"}, "context": {"workingDir": "/srv/shop"},
            "stats": {"messageCount": 1, "userMessageCount": 0, "agentMessageCount": 1, "toolCallCount": 0}
        })
        .to_string(),
    );
    let dir = ssot.join("messages/T-2026-001");
    agz::put(&dir.join("task_dispatch-T-2026-001-1777052763000.json"), record.to_string());
    let m = bed.mount("bar");

    let shown = shown::all(&m, "inbox");
    let firsts: Vec<&str> = shown.iter().filter_map(|s| s.body.trim().lines().next()).collect();
    assert_eq!(firsts, ["first", "second", "third", "fourth", "fifth"]);
    assert_eq!(m.ls("raw"), ["agentazall", "amp", "atsf", "samp", "ssot"]);
    assert_eq!(m.ls("threads").len(), 5);
    assert!(m.ok("cat rejected/* 2>/dev/null; true").is_empty());

    // For an unknown recipient the form of the address decides.
    m.ok("echo hello > outbox/foo; echo hello > threads/one/answer; \
          for f in inbox/*coordinator*.txt; do echo ok > \"${f%.txt}.ack\"; done");
    assert!(bed.path("store/log-bar.jsonl").exists());
    let log = fs::read_to_string(thread.join("messages.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 2, "{log}");
    assert!(ssot.join("acks/T-2026-001/task_dispatch-T-2026-001-1777052763000.json").exists());
    // A store that takes every name is chosen only for those who are in its messages.
    m.ok("echo hello > outbox/claude; printf 'Thread: one\n\nhello\n' > outbox/agent");
    let sent = fs::read_to_string(bed.path("store/log-bar.jsonl")).unwrap();
    assert!(sent.contains("\"to\": \"claude\"") && !sent.contains("\"to\": \"agent\""), "{sent}");
    let log = fs::read_to_string(thread.join("messages.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    let status = m.cat("status.txt");
    for kind in ["samp", "agentazall", "amp", "atsf", "ssot"] {
        assert!(status.contains(&format!("({kind})")), "{status}");
    }
}

/// S133: with no configuration the mount has SAMP and every store that is found at its default place.
#[test]
fn s133_default_places() {
    for way in ["home", "AMP_DIR", "agent"] {
        let mut bed = Bed::new();
        let (tree, home) = (Tree::new(&bed), Home::new(&bed));
        tree.receive(&Letter::new("alice@localhost", "s", "x", 1));
        home.receive(&Msg::new("s", "x", 1).signed(2));
        samp::append(&bed.store, "foo", "bar", "t", "x", T0);
        bed.env.push(("AGENTAZALL_ROOT".into(), tree.root.clone().into()));
        match way {
            "home" => fs::rename(&home.root, bed.path("home/.agent-messaging")).unwrap(),
            "AMP_DIR" => {
                // It has precedence over the home folder.
                let other = bed.path("home/.agent-messaging/agents/other");
                fs::create_dir_all(other.join("messages/inbox")).unwrap();
                bed.env.push(("AMP_DIR".into(), home.root.clone().into()));
            }
            _ => bed.env.push(("AMP_DIR".into(), home.dir("bar").into())),
        }
        let m = bed.mount("bar");
        assert_eq!(m.ls("raw"), ["agentazall", "amp", "samp"], "{way}");
        assert_eq!(m.ls("inbox").len(), 3, "{way}");
    }
    // A store that cannot be used is left out with a message, and the other stores are not affected.
    let bed = Bed::new();
    let home = Home::new(&bed);
    fs::rename(&home.root, bed.path("home/.agent-messaging")).unwrap();
    samp::append(&bed.store, "foo", "somebody", "t", "x", T0);
    let m = bed.mount("somebody");
    assert_eq!(m.ls("raw"), ["samp"]);
    assert_eq!(m.ls("inbox").len(), 1);
    let status = m.cat("status.txt");
    assert!(status.contains("amp") && status.contains("bar"), "who there is: {status}");
}

/// S200: a store that cannot be opened is left out with a message. If it is the only one, the mount fails.
#[test]
fn s200_one_that_cannot_be_opened() {
    let bed = Bed::new();
    let samp = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
    let amp = "[[store]]\nkind = \"amp\"\nname = \"lost\"\ndir = \"/nowhere\"\n";
    let ssot = "[[store]]\nkind = \"ssot\"\nname = \"tasks\"\ndir = \"/nowhere\"\n";
    bed.config(&format!("{amp}{samp}{ssot}"));
    samp::append(&bed.store, "foo", "somebody", "t", "x", T0);
    let m = bed.mount("somebody");
    assert_eq!((m.ls("raw"), m.ls("inbox").len()), (vec!["samp".to_owned()], 1));
    m.ok("echo hello > outbox/foo");
    let status = m.cat("status.txt");
    for why in ["the store lost is left out: ", "the store tasks is left out: "] {
        assert!(status.contains(why), "{status}");
    }
    drop(m);
    bed.config(&format!("{amp}{ssot}"));
    let dir = bed.path("again");
    let out = bed.msgfs_out(&["mount", dir.to_str().unwrap(), "--me", "somebody"]);
    if out.ok() {
        detach(&dir);
    }
    assert!(out.code() == Some(1) && out.stderr.contains("store lost: "), "{out:?}");
}

/// S1158: `check` fails if a configured store cannot be opened, and says why. It says so too if that store is named. A
/// store at a default place, for which nobody asked, is no failure.
#[test]
fn s1158_check_names_a_store_that_it_cannot_open() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "somebody", "t", "x", T0);
    let check = |more: &[&str]| {
        let mut command = bed.msgfs([&["check", "--me", "somebody"], more].concat());
        // The log tells of the store, too.
        command.env("MSGFS_LOG", "off");
        run(command, None)
    };
    bed.config(&format!(
        "[[store]]\nkind = \"amp\"\nname = \"lost\"\ndir = \"/nowhere\"\n\
         [[store]]\nkind = \"samp\"\ndir = {:?}\n",
        bed.store.to_str().unwrap()
    ));
    let out = check(&[]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    let told = |text: &str| text.contains("msgfs: the store lost is left out: ");
    assert!(told(&out.stderr) && out.stderr.contains("could not be checked"), "{out:?}");
    let out = check(&["lost"]);
    assert!(out.code() == Some(1) && told(&out.stderr), "{out:?}");
    assert!(!out.stderr.contains("there is no store named"), "{out:?}");
    let out = check(&["samp"]);
    assert!(out.ok() && out.stderr.contains("1 store checked, no violations"), "{out:?}");

    bed.config("");
    let out = check(&[]);
    assert!(out.ok() && !out.stderr.contains("left out"), "{out:?}");
    let home = Home::new(&bed);
    fs::rename(&home.root, bed.path("home/.agent-messaging")).unwrap();
    let out = check(&[]);
    assert!(out.ok() && !out.stderr.contains("left out"), "{out:?}");
    let out = check(&["amp"]);
    assert!(out.code() == Some(1) && out.stderr.contains("the amp store at ~/"), "{out:?}");
}

/// S134: each message goes to the store that knows its recipient, else to the store with that form of address.
#[test]
fn s134_routing() {
    let (bed, tree, home, m) = three("", |bed, tree, _| {
        samp::append(&bed.store, "foo", "bar", "t", "x", T0);
        tree.receive(&Letter::new("writer@elsewhere", "s", "x", 1));
        fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
    });
    let counts = || {
        (
            samp::read_log(&bed.store, "bar").len(),
            tree.list(ME, "sent").len() + tree.list(ME, "outbox").len(),
            home.list("bar", "sent").len(),
        )
    };
    for (to, after) in [
        ("foo", (1, 0, 0)),
        ("bob@localhost", (1, 1, 0)),
        ("alice", (1, 1, 1)),
        ("alice@acme.aimaestro.local", (1, 1, 2)),
        ("writer@elsewhere", (1, 2, 2)),
        ("stranger", (2, 2, 2)),
        ("new@relay.agenttalk", (2, 3, 2)),
    ] {
        m.ok(&format!("echo hi > outbox/{to}"));
        assert_eq!(counts(), after, "{to}");
    }
    // A reply goes to the store that the message came from, whatever store the name would fit.
    let file = shown::path(&m, "archive", Letter::new("writer@elsewhere", "s", "x", 1).id());
    m.ok(&format!("echo yes > '{}'", file.replace(".txt", ".reply")));
    assert_eq!(counts(), (2, 4, 2));
}

/// S134, S63: a recipient that several stores know is refused with the choices, and `Via` chooses. A recipient
/// that no store reaches is refused, and the draft is kept.
#[test]
fn s134_ambiguous() {
    let (bed, _tree, home, m) = three("", |bed, _, _| {
        samp::append(&bed.store, "alice", "bar", "t", "alice is known here, too", T0);
    });
    let out = m.sh("echo hi | tee outbox/alice");
    assert!(!out.ok() && out.stderr.contains("No route to host"), "{out:?}");
    let why = m.cat("outbox/alice.error");
    assert!(why.contains("samp") && why.contains("amp") && why.contains("Via"), "{why}");
    assert_eq!(m.bytes("outbox/alice"), b"hi\n");
    m.sh("rm -f outbox/*");
    m.ok("printf 'Via: amp\\n\\nto amp\\n' > outbox/alice");
    assert_eq!(home.only("alice", "inbox").1["payload"]["message"], "to amp");
    m.ok("printf 'Via: samp\\n\\nto samp\\n' > outbox/alice");
    assert_eq!(samp::bodies(&bed.store, "bar"), ["to samp"]);
    for head in ["Via: nowhere", "Via: sam"] {
        let out = m.sh(&format!("printf '{head}\\n\\nx\\n' | tee outbox/alice"));
        assert!(!out.ok(), "{head}: {out:?}");
        let why = m.cat("outbox/alice.error");
        assert!(
            ["samp", "agentazall", "amp"].iter().all(|s| why.contains(s)),
            "the stores there are: {why}"
        );
        m.sh("rm -f outbox/*");
    }
    let out = m.sh("echo hi | tee outbox/carol@acme.crabmail.ai");
    assert!(!out.ok() && out.stderr.contains("No route to host"), "{out:?}");
    assert_eq!(m.ls("outbox"), ["carol@acme.crabmail.ai", "carol@acme.crabmail.ai.error"]);
}

/// S254, S1170: where two stores know me by different names, a group writes to neither of them. If somebody else has one
/// of these names in the other store, the group is refused: either could be meant.
#[test]
fn s254_my_names_in_two_stores() {
    let bed = Bed::new();
    let dirs = ["work", "play"].map(|name| bed.path(name));
    let [work, play] = dirs.each_ref().map(|dir| {
        fs::create_dir(dir).unwrap();
        format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", dir.to_str().unwrap())
    });
    bed.config(&format!(
        "[groups]\nmixed = [\"bob@work\", \"bar\"]\nboth = [\"ally\", \"bob@work\"]\n{work}name = \"work\"\n\
         {play}name = \"play\"\nme = \"ally\"\n"
    ));
    let m = bed.mount("bar");
    m.ok("echo one > outbox/mixed; echo two > outbox/both");
    assert_eq!(samp::bodies(&dirs[0], "bar"), ["one", "two"]);
    assert!(!dirs[1].join("log-ally").exists());
    samp::append(&dirs[1], "bar", "ally", "t", "I am another", T0);
    soon("it is there", || m.ls("inbox").len() == 1);
    let out = m.sh("echo three | tee outbox/mixed");
    assert!(!out.ok() && m.cat("outbox/mixed.error").contains("several stores"), "{out:?}");
}

/// S1258: a role that has a message in a project's threads is known there, so mail to it does not go to SAMP. Without a
/// thread it is refused, and the error says how to name one.
#[test]
fn s1258_a_role_of_a_project() {
    for unknown in ["near", "refuse"] {
        let bed = Bed::new();
        let project = bed.path("shop");
        let said = crate::atsf::message(1, "agent", "2026-04-24T17:45:03.000Z", "hello");
        crate::atsf::thread(&project, crate::atsf::ONE, "a thread", &[said]);
        let samp = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
        let atsf = crate::atsf::store(&project);
        bed.config(&format!("unknown_recipient = \"{unknown}\"\n{samp}{atsf}"));
        let m = bed.mount("bar");
        let out = m.sh("echo x | tee outbox/agent");
        assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
        let why = m.cat("outbox/agent.error");
        assert!(["atsf", "Subject: ", "Thread: "].iter().all(|s| why.contains(s)), "{why}");
        m.ok("rm outbox/agent; printf 'Subject: new\n\nx\n' > outbox/agent");
        m.ok(&format!("printf 'Thread: {}\n\nx\n' > outbox/agent", crate::atsf::ONE));
        assert!(m.ls("outbox").is_empty() && samp::read_log(&bed.store, "bar").is_empty());
        soon("both threads", || m.ls("threads").len() == 2);
        let log = project.join(".agent/threads").join(crate::atsf::ONE).join("messages.jsonl");
        assert_eq!(fs::read_to_string(log).unwrap().lines().count(), 2);
        let status = m.cat("status.txt");
        assert!(!status.contains("nobody called agent"), "{status}");
    }
}

/// S134: one draft may have recipients of several kinds. Each store gets its own recipients, or nothing is sent.
#[test]
fn s134_mixed() {
    let (bed, tree, home, m) = three("", |bed, tree, _| {
        samp::append(&bed.store, "foo", "bar", "t", "x", T0);
        fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
    });
    m.ok("printf 'To: foo, bob@localhost, alice\\nSubject: all\\n\\nto all\\n' > outbox/x");
    assert_eq!(samp::bodies(&bed.store, "bar"), ["to all"]);
    assert_eq!(tree.list("bob@localhost", "inbox").len(), 1);
    assert_eq!(home.only("alice", "inbox").1["payload"]["message"], "to all");
    let out = m.sh("printf 'To: foo, zed@acme.crabmail.ai\\nVia: amp\\n\\nx\\n' | tee outbox/y");
    assert!(!out.ok(), "{out:?}");
    assert_eq!((samp::bodies(&bed.store, "bar").len(), home.list("bar", "sent").len()), (1, 1));
}

/// S135: `check` names file and rule in both kinds, and is silent about good files. `doctor` finds what a person
/// must mend.
#[test]
fn s135_check_and_doctor() {
    let (bed, tree, home, m) = three("", |_, tree, home| {
        tree.receive(&Letter::new("alice@localhost", "s", "good", 1).signed(&samp::key(1)));
        home.receive(&Msg::new("s", "good", 1).signed(2));
    });
    m.umount();
    for store in ["agentazall", "amp"] {
        let out = bed.msgfs_out(&["check", store, "--me", "bar"]);
        assert_eq!(out.code(), Some(0), "{store}: {out:?}");
    }
    let bad = Letter::new("alice@localhost", "s", "pay 10", 2)
        .signed(&samp::key(1))
        .text()
        .replace("pay 10", "pay 99");
    tree.put(agz::DAY, "inbox", "tampered", bad);
    let mut broken = Msg::new("s", "pay 10", 2).signed(2);
    broken.payload = broken.payload.replace("10", "99");
    let file = home.receive(&broken);
    for (store, name) in
        [("agentazall", "tampered.txt"), ("amp", file.file_name().unwrap().to_str().unwrap())]
    {
        let out = bed.msgfs_out(&["check", store, "--me", "bar"]);
        assert_eq!(out.code(), Some(1), "{store}: {out:?}");
        assert!(out.stdout.lines().any(|l| l.contains(name) && l.contains("signature")), "{out:?}");
        let out = bed.msgfs_out(&["check", store, "--json", "--me", "bar"]);
        assert!(
            out.stdout.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()),
            "{out:?}"
        );
    }
    fs::remove_file(home.dir("bar").join("keys/private.pem")).unwrap();
    tree.identity(&samp::key(5));
    home.agent_in("second-bar", "bob", "acme", 9);
    let config = home.root.join("agents/second-bar/config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("bob@acme", "bar@acme")).unwrap();
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    let said = out.said();
    for word in ["private.pem", "chmod 600", "bar@acme.aimaestro.local", "second-bar"] {
        assert!(said.contains(word), "{word} missing in {out:?}");
    }
}

/// S137: in stores of files, a rejected file is named after the file and its folder. It says the reason and the
/// path, and shows what could be read.
#[test]
fn s137_rejected_files() {
    let (_bed, _tree, home, m) = three("", |_, tree, _| {
        let l = Letter::new("alice@localhost", "a subject", "pay 10", 1).signed(&samp::key(1));
        tree.put(agz::DAY, "inbox", "odd name!", l.text().replace("pay 10", "pay 99"));
    });
    let path = home.dir("bar").join("messages/inbox/junk.json");
    agz::put(&path, "{\"envelope\": 5, \"payload\": {}}");
    crate::common::soon("both are rejected", || m.ls("rejected").len() == 2);
    let names = m.ls("rejected");
    for (stem, source) in [
        ("odd%20name%21", format!("raw/agentazall/{}/inbox/odd name!.txt", agz::DAY)),
        ("junk", "raw/amp/messages/inbox/junk.json".to_owned()),
    ] {
        let name = names
            .iter()
            .find(|n| n.starts_with(stem))
            .unwrap_or_else(|| panic!("{stem} in {names:?}"));
        let hash =
            name.strip_prefix(&format!("{stem}-")).and_then(|s| s.strip_suffix(".txt")).unwrap();
        assert!(hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        let text = m.cat(&format!("rejected/{name}"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("Reason: ") && lines[0].len() > 15, "{text}");
        assert_eq!(lines[1], format!("Source: {source}"));
        m.ok(&format!("cat '{source}'"));
        if stem.starts_with("odd") {
            assert!(
                text.contains("\nFrom: alice@localhost\n")
                    && text.contains("\nSubject: a subject\n")
                    && text.contains("pay 99"),
                "{text}"
            );
        }
    }
}

/// S573: nobody else can open what msgfs keeps for all six kinds, in its state folder, its cache and the runtime
/// folder. Folders are 0700 and files 0600.
#[test]
fn s573_what_is_kept_is_private() {
    let bed = Bed::new();
    fs::create_dir_all(bed.path("ssot/messages")).unwrap();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    let queue = Queue::new(&bed, &["alice", "bar"]);
    let (project, ssot) = (bed.path("project"), bed.path("ssot"));
    let store = |kind: &str, dir: &Path, more: &str| {
        format!("[[store]]\nkind = \"{kind}\"\ndir = {:?}\n{more}", dir.to_str().unwrap())
    };
    bed.config(&format!(
        "me = \"bar\"\n{}{}{}{}{}{}",
        store("samp", &bed.store, ""),
        tree.store(),
        home.store(),
        queue.store(),
        store("atsf", &project, ""),
        store("ssot", &ssot, "me = \"executor\"\n")
    ));
    samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    tree.receive(&Letter::new("alice@localhost", "letter", "second", 1));
    home.receive(&Msg::new("from amp", "third", 2).signed(2));
    let said = crate::atsf::message(1, "agent", "2026-04-24T17:45:03.000Z", "fourth");
    crate::atsf::thread(&project, crate::atsf::ONE, "a thread", &[said]);
    let m = bed.mount("bar");
    fs::write(bed.path("attached.txt"), "x").unwrap();
    // If a thread takes no answer, msgfs keeps a note of that.
    m.sh("for f in threads/*/; do echo hello > \"$f\"answer; done; ls -lR > /dev/null");
    let draft = format!("Attach: {}\n\ntext\n", bed.path("attached.txt").display());
    m.sh(&format!("cat inbox/* > /dev/null; printf '{draft}' > outbox/foo"));
    let told = serde_json::json!({"session_id": "s", "cwd": "/"}).to_string();
    for event in ["session-start", "stop"] {
        let hook = bed.msgfs(["hook", "run", event, "--for", "codex"]);
        assert!(crate::common::run(hook, Some(told.as_bytes())).ok());
    }
    drop(m);
    let tops = [bed.path("state/msgfs"), bed.path("cache/msgfs"), bed.path("run/msgfs")];
    let mut seen = Vec::new();
    let mut folders = tops.to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "{} is {mode:o}", path.display());
            if meta.is_dir() {
                folders.push(path.clone());
            }
            seen.push(path);
        }
    }
    assert!(
        tops.iter().all(|top| fs::metadata(top).unwrap().permissions().mode() & 0o777 == 0o700)
    );
    assert!(seen.iter().any(|path| path.ends_with("stores/atsf")), "{seen:#?}");
}
