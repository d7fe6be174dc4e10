//! Commands that only look change nothing: no accepted message, no spool entry, no draft and no temporary file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::atsf::{ONE, message, thread};
use crate::common::amp::{ALICE, Home, read};
use crate::common::{Bed, Mount, Out, quote, run, soon};

/// Commands that look. `check` may find something, and then exits with 1.
const LOOKS: [&[&str]; 20] = [
    &["check"],
    &["check", "--json"],
    &["check", "amp"],
    &["status"],
    &["status", "--json"],
    &["agents"],
    &["agents", "--json"],
    &["ls"],
    &["ls", "outbox"],
    &["ls", "outbox/alice"],
    &["ls", "sent"],
    &["cat", "status.txt"],
    &["cat", "outbox/alice/plan"],
    &["cat", "outbox/nobody@nowhere.error"],
    &["wait", "--timeout", "0"],
    &["doctor"],
    &["key", "show"],
    &["key", "list"],
    &["hook", "status"],
    &["check", "--repair"],
];

/// Commands that act, each in its own way.
const ACTS: [(&[&str], &str); 6] = [
    (&["send", ALICE, "something else"], ""),
    (&["write", "outbox/.other"], "private"),
    (&["inbox"], ""),
    (&["mark", "--all"], ""),
    (&["rm", "outbox/.secret"], ""),
    (&["mv", "outbox/.secret", "outbox/.hidden"], ""),
];

/// A guard that holds the lock of a thread's log, as another program does, until it is dropped.
struct Locked(Child);

impl Locked {
    fn new(project: &Path) -> Self {
        let mut flock = Command::new("flock");
        let log = project.join(".agent/threads").join(ONE).join("messages.jsonl");
        flock.arg(log).args(["sh", "-c", "echo; read x"]);
        let mut child = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("flock");
        let mut told = [0];
        child.stdout.take().expect("piped").read_exact(&mut told).expect("the lock is held");
        Self(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Makes stores of AMP and ATSF. Beside accepted messages there are a private, a refused and an unfinished draft.
fn prepared() -> (Bed, Home, PathBuf) {
    let bed = Bed::new();
    let home = Home::new(&bed);
    let project = bed.path("shop");
    fs::create_dir(&project).expect("mkdir");
    let time = |n: u32| format!("2026-04-24T17:42:0{n}.000Z");
    let all = [message(1, "user", &time(1), "begin"), message(2, "agent", &time(2), "begun")];
    thread(&project, ONE, "locked", &all);
    let atsf = format!("[[store]]\nkind = \"atsf\"\ndir = {:?}\n", project.to_str().unwrap());
    bed.config(&format!("{}{atsf}", home.store()));
    (bed, home, project)
}

fn drafts(m: &Mount) {
    m.ok("echo secret > outbox/.secret; echo hi > 'outbox/nobody@nowhere' || true
          mkdir outbox/unfinished; echo part > outbox/unfinished/part");
    soon("it is refused", || m.ls("outbox").contains(&"nobody@nowhere.error".to_owned()));
}

/// Has a message with an attachment accepted, and does not wait until it is sent.
fn compose(bed: &Bed, m: &Mount, token: &str) {
    let out = bed.sh(&format!(
        "cd {}; mkdir outbox/alice; echo plan > outbox/alice/plan
         printf 'Subject: x\\n\\n{token}\\n' > outbox/alice/body",
        quote(&m.dir)
    ));
    assert!(out.ok(), "{out:?}");
}

fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// Returns the number of times that alice got each text.
fn delivered(home: &Home) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for file in home.list("alice", "inbox") {
        let text = read(&file)["payload"]["message"].as_str().expect("message").trim().to_owned();
        *all.entry(text).or_default() += 1;
    }
    all
}

/// Returns every file below a folder with its bytes, and every folder. Derived files are left out.
fn everything(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).expect("state") {
            let path = entry.expect("state").path();
            if ["lock", "log", "socket", "stores"].iter().any(|own| path == dir.join(own)) {
                continue;
            }
            if path.is_dir() {
                left.push(path.clone());
                all.insert(path, None);
            } else {
                let bytes = fs::read(&path).expect("state");
                all.insert(path, Some(bytes));
            }
        }
    }
    all
}

#[track_caller]
fn unchanged(bed: &Bed, before: &BTreeMap<PathBuf, Option<Vec<u8>>>, by: &[&str]) {
    let now = everything(&bed.state("bar"));
    let other = |path: &&PathBuf| now.get(*path) != before.get(*path);
    let paths: BTreeSet<&PathBuf> = now.keys().chain(before.keys()).filter(other).collect();
    assert!(paths.is_empty(), "{by:?} changed {paths:?}");
}

/// S701: beside a mount, a command that looks takes nothing in the second for which a composing folder waits. The
/// accepted message is sent once.
#[test]
fn s701_looking_beside_a_mount() {
    let (bed, home, project) = prepared();
    let _lock = Locked::new(&project);
    let m = bed.mount("bar");
    drafts(&m);
    m.ok(&format!("echo waits > threads/{ONE}/a"));
    for (n, look) in LOOKS.iter().enumerate() {
        compose(&bed, &m, &format!("token-{n}"));
        bar(&bed, look, "");
        soon(&format!("{look:?} beside it: it is sent"), || {
            delivered(&home).contains_key(&format!("token-{n}"))
        });
        soon("the folder is gone", || !m.ls("outbox").contains(&"alice".to_owned()));
    }
    let all = delivered(&home);
    assert_eq!((all.len(), all.values().max()), (LOOKS.len(), Some(&1)), "{all:?}");
    let left = [".secret", "nobody@nowhere", "nobody@nowhere.error", "unfinished"];
    assert_eq!(m.ls("outbox"), left);
    assert_eq!(m.cat("outbox/unfinished/part"), "part\n");
}

/// S701: after a kill, a command that looks changes nothing at all. The next mount sends the accepted messages
/// once, also those that wait for a locked thread.
#[test]
fn s701_looking_after_a_kill() {
    let (bed, home, project) = prepared();
    let lock = Locked::new(&project);
    let m = bed.mount("bar");
    drafts(&m);
    m.ok(&format!("echo waits > threads/{ONE}/a"));
    fs::write(bed.state("bar").join("drafts/.msgfs-left.tmp.1"), "left").expect("write");
    compose(&bed, &m, "token");
    m.kill9();
    let before = everything(&bed.state("bar"));
    assert!(before.keys().any(|path| path.ends_with("promised")), "{:?}", before.keys());
    for look in LOOKS {
        bar(&bed, look, "");
        unchanged(&bed, &before, look);
    }
    let told =
        br#"{"session_id":"s","cwd":"/p","hook_event_name":"UserPromptSubmit","prompt":"x"}"#;
    let hook = bed.msgfs(["hook", "run", "prompt", "--for", "codex", "--me", "bar"]);
    run(hook, Some(told));
    unchanged(&bed, &before, &["hook"]);
    let shows = bed.mount_at(&bed.path("shows"), "bar", &["--read-only"]);
    shows.ok("ls -R . > /dev/null; cat status.txt");
    shows.umount();
    unchanged(&bed, &before, &["a mount that only shows"]);
    assert_eq!(delivered(&home), BTreeMap::new());
    let m = bed.mount("bar");
    soon("it is sent", || delivered(&home).contains_key("token"));
    drop(lock);
    let log = project.join(".agent/threads").join(ONE).join("messages.jsonl");
    let waits = || fs::read_to_string(&log).expect("log").matches("waits").count();
    soon("so is what waited for the thread", || waits() == 1);
    m.umount();
    assert_eq!((delivered(&home), waits()), (BTreeMap::from([("token".to_owned(), 1)]), 1));
}

/// S701, S293: the next command that acts sends the messages that a killed mount had accepted, once, and keeps the
/// drafts.
#[test]
fn s701_acting_after_a_kill() {
    for (n, (act, input)) in ACTS.iter().enumerate() {
        let (bed, home, project) = prepared();
        let lock = Locked::new(&project);
        let m = bed.mount("bar");
        drafts(&m);
        m.ok(&format!("echo waits > threads/{ONE}/a"));
        compose(&bed, &m, "token");
        m.kill9();
        bar(&bed, &["status"], "");
        let out = bar(&bed, act, input);
        assert!(out.ok(), "{act:?}: {out:?}");
        assert_eq!(delivered(&home).get("token"), Some(&1), "{act:?}");
        drop(lock);
        let m = bed.mount("bar");
        let log = project.join(".agent/threads").join(ONE).join("messages.jsonl");
        let waits = || fs::read_to_string(&log).expect("log").matches("waits").count();
        soon("so is what waited for the thread", || waits() == 1);
        let listed = m.ls("outbox");
        for kept in ["nobody@nowhere", "nobody@nowhere.error", "unfinished"] {
            assert!(listed.contains(&kept.to_owned()), "{act:?}: {listed:?}");
        }
        let private = listed.iter().filter(|name| name.starts_with('.')).count();
        assert_eq!(private, [1, 2, 1, 1, 0, 1][n], "{act:?}: {listed:?}");
        m.umount();
        assert_eq!((delivered(&home).get("token"), waits()), (Some(&1), 1), "{act:?}");
    }
}
