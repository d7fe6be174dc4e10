//! Store folders that go away and come back while they are mounted.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::amq::{self, Queue};
use crate::common::agz::{DAY, Letter, Tree, put};
use crate::common::amp::{Home, Msg};
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, need_root, quote, run, wait_for};

/// A time for something that takes milliseconds by itself, and up to a minute if only the check once a minute
/// helps.
const LONG: Duration = Duration::from_secs(100);

/// A store of one kind: its configuration, the folder that goes, and a way to put mail into it.
pub(crate) struct Kind {
    pub(crate) bed: Bed,
    pub(crate) dir: PathBuf,
    /// Puts the mail of this number into the store, and returns its file.
    pub(crate) deliver: Box<dyn Fn(i64) -> PathBuf>,
}

/// Makes a store of each kind.
pub(crate) fn all() -> [Kind; 6] {
    [samp_store(), agentazall_store(), amp_store(), atsf_store(), ssot_store(), amq_store()]
}

fn samp_store() -> Kind {
    let bed = Bed::new();
    let dir = bed.path("above/store");
    fs::create_dir_all(&dir).unwrap();
    bed.config(&format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", dir.to_str().unwrap()));
    let log = dir.clone();
    let deliver = move |n| {
        samp::append(&log, "foo", "bar", "t", &format!("mail {n}"), T0 + n);
        samp::log(&log, "foo")
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

fn agentazall_store() -> Kind {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let inbox = tree.base().join(DAY).join("inbox");
    let dir = tree.base();
    let deliver = move |n| {
        let letter = Letter::new("alice@localhost", "s", &format!("mail {n}"), n);
        let file = inbox.join(format!("{}.txt", letter.id()));
        put(&file, letter.text());
        file
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

fn amp_store() -> Kind {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    let dir = home.dir("bar");
    let inbox = dir.join("messages/inbox/alice_acme_aimaestro_local");
    let deliver = move |n| {
        let msg = Msg::new("s", &format!("mail {n}"), n);
        let file = inbox.join(format!("{}.json", msg.id));
        put(&file, msg.text());
        file
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

fn atsf_store() -> Kind {
    let bed = Bed::new();
    let dir = bed.path("shop");
    let thread = dir.join(".agent/threads/5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01");
    bed.config(&format!("[[store]]\nkind = \"atsf\"\ndir = {:?}\n", dir.to_str().unwrap()));
    fs::create_dir_all(&dir).unwrap();
    let deliver = move |n: i64| {
        let line = json!({
            "id": format!("6a0f8f7e-0000-4000-8000-{n:012}"),
            "role": "agent",
            "timestamp": samp::strftime(T0 + n, "%Y-%m-%dT%H:%M:%S.000Z"),
            "content": [{"type": "text", "text": format!("mail {n}")}]
        });
        fs::create_dir_all(&thread).unwrap();
        samp::append_raw(&thread.join("messages.jsonl"), format!("{line}\n"));
        let meta = json!({
            "specVersion": "1.1",
            "threadId": "5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01",
            "title": "t",
            "createdAt": "2026-04-24T17:00:00.000Z",
            "updatedAt": "2026-04-24T17:00:00.000Z",
            "agent": {"id": "claude-code", "name": "Claude Code", "protocol": "acp"},
            "context": {"workingDir": "/srv/shop"},
            "stats": {
                "messageCount": 1, "userMessageCount": 0, "agentMessageCount": 1, "toolCallCount": 0
            }
        });
        put(&thread.join("thread.json"), format!("{meta:#}\n"));
        thread.join("messages.jsonl")
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

fn amq_store() -> Kind {
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["alice", "bob", "bar"]);
    bed.config(&format!("{}me = \"bob\"\n", queue.store()));
    let dir = queue.root;
    let root = dir.clone();
    let deliver = move |n| {
        let (path, text) = amq::mail(n);
        put(&root.join(&path), text);
        root.join(path)
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

fn ssot_store() -> Kind {
    let bed = Bed::new();
    let dir = bed.path("ssot");
    bed.config(&format!(
        "[[store]]\nkind = \"ssot\"\nme = \"executor\"\ndir = {:?}\n",
        dir.to_str().unwrap()
    ));
    let messages = dir.join("messages/T-2026-001");
    fs::create_dir_all(&messages).unwrap();
    let deliver = move |n: i64| {
        let millis = 1_777_000_000_000 + n;
        let id = format!("task_dispatch-T-2026-001-{millis}");
        let record = json!({
            "msg_id": id,
            "protocol_version": "AMP/1.0",
            "type": "task_dispatch",
            "from": "coordinator",
            "to": "executor",
            "task_id": "T-2026-001",
            "timestamp": "2026-04-24T17:42:03Z",
            "requires_ack": true,
            "payload": {
                "description": format!("mail {n}"),
                "repo": "/srv/shop",
                "branch": "agent/x",
                "subtasks": [
                    {"subtask_id": "T-2026-001-S1", "description": "x", "estimated_lines": 4}
                ],
                "acceptance_criteria": ["x"],
                "risk_level": "low"
            }
        });
        let file = messages.join(format!("{id}.json"));
        put(&file, format!("{record:#}\n"));
        file
    };
    Kind { bed, dir, deliver: Box::new(deliver) }
}

#[track_caller]
fn count(m: &Mount, n: usize, what: &str) {
    wait_for(LONG, &format!("{n} messages after {what}"), || m.ls("inbox").len() == n);
}

/// Lets the folder go in every way, and come back.
fn follow(kind: &Kind, made_anew: bool) {
    let Kind { bed, dir, deliver } = kind;
    deliver(1);
    let m = bed.mount("bar");
    count(&m, 1, "the mount");
    m.ok("cat archive/*/* threads/*/* > /dev/null");
    let before = m.ls("inbox");
    // Another program keeps a file of it open, so that the removal of the folder is not reported.
    let file = walk(dir).pop().expect("a file");
    let held = fs::File::open(&file).unwrap();
    let away = |to: &Path| fs::rename(dir, to).unwrap();
    let elsewhere = bed.path("elsewhere");
    away(&elsewhere);
    wait_for(LONG, "status.txt tells that it is gone", || m.cat("status.txt").contains("is gone"));
    assert_eq!(m.ls("inbox"), before, "what was read stays listed");
    fs::rename(&elsewhere, dir).unwrap();
    wait_for(LONG, "status.txt tells nothing", || !m.cat("status.txt").contains("is gone"));
    deliver(2);
    count(&m, 2, "a move away and back");
    // A copy takes its place at once.
    away(&elsewhere);
    assert!(bed.sh(&format!("cp -a {} {}", quote(&elsewhere), quote(dir))).ok());
    deliver(3);
    count(&m, 3, "a copy in its place");
    fs::remove_dir_all(&elsewhere).unwrap();
    if made_anew {
        fs::remove_dir_all(dir).unwrap();
        fs::create_dir_all(dir).unwrap();
        deliver(4);
        wait_for(LONG, "the new one is followed", || {
            m.sh("grep -rhx 'mail 4' archive").stdout.lines().count() == 1
        });
        deliver(5);
        wait_for(LONG, "and goes on", || {
            m.sh("grep -rhx 'mail 5' archive").stdout.lines().count() == 1
        });
    }
    drop(held);
    m.umount();
}

/// Returns all files below a folder.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { out.extend(walk(&path)) } else { out.push(path) }
    }
    out
}

/// S170: the folder of a SAMP store may go away and come back.
#[test]
fn s170_samp() {
    follow(&samp_store(), true);
}

/// S170: the same holds for an AgentAZAll mailbox.
#[test]
fn s170_agentazall() {
    follow(&agentazall_store(), true);
}

/// S170: the same holds for the folder of an AMP agent. If it is made anew without its config, it is no agent's
/// folder.
#[test]
fn s170_amp() {
    follow(&amp_store(), false);
}

/// S170: the same holds for a project with ATSF threads.
#[test]
fn s170_atsf() {
    follow(&atsf_store(), true);
}

/// S170: the same holds for a queue root.
#[test]
fn s170_amq() {
    follow(&amq_store(), true);
}

/// S170: the same holds for a folder of task records.
#[test]
fn s170_ssot() {
    follow(&ssot_store(), true);
}

/// S311: if a store's folder was moved away while mounted, sending does not make it anew, whatever the kind, also
/// if nothing was in it. The draft stays, says why, and is sent when the folder is back.
#[test]
fn s311_no_folder_is_made_anew() {
    for (kind, deliver, to, text) in [
        (samp_store(), true, "foo", "hi\n"),
        (samp_store(), false, "foo", "hi\n"),
        (agentazall_store(), true, "alice@localhost", "hi\n"),
        (agentazall_store(), false, "alice@localhost", "hi\n"),
        (amp_store(), true, "alice", "hi\n"),
        (atsf_store(), true, "agent", "Via: atsf\nSubject: x\n\nhi\n"),
        (ssot_store(), false, "coordinator", RESULT),
    ] {
        let Kind { bed, dir, deliver: put } = &kind;
        if deliver {
            put(1);
        }
        let m = bed.mount("bar");
        let name = m.cat("status.txt");
        let elsewhere = bed.path("elsewhere");
        fs::rename(dir, &elsewhere).unwrap();
        let out = m.sh(&format!("printf '{text}' | tee outbox/{to}"));
        // The key was in the folder too.
        let keyed = ["agentazall (", " amp ("].iter().any(|kind| name.contains(kind));
        let errno = if keyed { "Required key not available" } else { "No such file" };
        assert!(!out.ok() && out.stderr.contains(errno), "{name}: {out:?}");
        let why = m.cat(&format!("outbox/{to}.error"));
        assert!(keyed || why.contains("is gone") && why.contains("move it back"), "{name}: {why}");
        assert!(!dir.exists(), "{name}: made anew");
        fs::rename(&elsewhere, dir).unwrap();
        m.ok(&format!("mv outbox/{to} outbox/{to}.txt"));
        assert_eq!(m.ok("find sent -type f -name '*.txt' | wc -l").trim(), "1", "{name}");
        m.umount();
    }
}

/// A task record of the executor.
const RESULT: &str = concat!(
    "Type: task_result\nTask: T-2026-001\n\n",
    r#"{"subtask_id": "T-2026-001-S1", "completion_status": "complete", "#,
    r#""diff_summary": {"files_changed": [], "lines_added": 1, "lines_removed": 0}, "#,
    r#""self_assessment": {"criteria_met": [true], "notes": ["x"]}, "work_log": []}"#,
);

/// S170: the configured folder may become a link to a folder, the folder above it may be moved away and back, and
/// its disk may be unmounted and mounted.
#[test]
fn s170_links_and_disks() {
    need_root();
    let Kind { bed, dir, deliver } = &samp_store();
    deliver(1);
    let m = bed.mount("bar");
    m.ok("cat archive/*/*");
    let (above, other) = (bed.path("above"), bed.path("other"));
    fs::rename(dir, &other).unwrap();
    symlink(&other, dir).unwrap();
    deliver(2);
    count(&m, 2, "a link in its place");
    let aside = bed.path("aside");
    fs::rename(&above, &aside).unwrap();
    wait_for(LONG, "status.txt tells that it is gone", || m.cat("status.txt").contains("is gone"));
    fs::rename(&aside, &above).unwrap();
    deliver(3);
    count(&m, 3, "the folder above moved away and back");
    let disk = |args: &[&str]| {
        let mut c = bed.command(args[0]);
        c.args(&args[1..]);
        let out = run(c, None);
        assert!(out.ok(), "{args:?} {out:?}");
    };
    let place = other.to_str().unwrap();
    disk(&["mount", "-t", "tmpfs", "msgfs-test", place]);
    deliver(11);
    wait_for(LONG, "the disk is followed", || m.sh("grep -rhx 'mail 11' archive").ok());
    m.ok("cat archive/*/*");
    disk(&["umount", place]);
    wait_for(LONG, "what lies below it is back", || m.sh("grep -rhx 'mail 3' archive").ok());
    deliver(4);
    wait_for(LONG, "and is followed", || m.sh("grep -rhx 'mail 4' archive").ok());
    assert_eq!(m.ls("inbox").len(), 4);
    m.umount();
}
