//! `kill -9` at random moments of two mounts that write to each other, in every kind of store. Each accepted
//! message is there once and whole on both sides, and each mark stays.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::common::dice::Dice;
use crate::common::proc::Running;
use crate::common::{Bed, Mount, agz, amp, samp, wait_for};
use crate::{amq, atsf, ssot};

/// A program whose threads send numbered messages as fast as they can, and note each `close` that returned 0.
/// Another thread removes messages from `inbox/` and notes that. A failed call is never repeated: its outcome is
/// unknown to the caller.
const AGENT: &str = r"
import os, sys, threading, time
mount, notes, path, draft, stop, writers = sys.argv[1:]
text = open(draft).read()
parent = os.getppid()
def over():
    # Nobody is left to say so if the test was killed.
    return os.path.exists(stop) or os.getppid() != parent
log = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def send(writer):
    number = 0
    while not over():
        number += 1
        token = f'token-{writer}-{number}-end'
        try:
            f = os.open(f'{mount}/{path}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(f, text.replace('TOKEN', token).encode())
            except OSError:
                os.close(f)
                raise
            os.close(f)
        except OSError:
            time.sleep(0.005)
            continue
        os.write(log, f'sent {token}\n'.encode())
        time.sleep(0.04 / len(writers))
def mark():
    while not over():
        try:
            for name in sorted(os.listdir(mount + '/inbox'))[:2]:
                os.unlink(f'{mount}/inbox/{name}')
                os.write(log, f'read {name}\n'.encode())
        except OSError:
            pass
        time.sleep(0.03)
who = os.path.basename(notes)
threads = [threading.Thread(target=send, args=(who + w,)) for w in writers] + [threading.Thread(target=mark)]
[t.start() for t in threads]
[t.join() for t in threads]
";

/// A program that prints `folder count token` for each token in a message file below a folder of the mount.
const COUNT: &str = r"
import os, re, collections
for top in ('sent', 'archive'):
    count = collections.Counter()
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith('.txt'):
                text = open(f'{folder}/{name}').read()
                found = set(re.findall('token-[a-z]+-[0-9]+-end', text))
                assert found or 'hello' in text, f'half a message: {folder}/{name}: {text!r}'
                count.update(found)
    for token, n in count.items():
        print(top, n, token)
";

/// One of the two mounts that write to each other.
struct Side {
    me: &'static str,
    config: PathBuf,
    /// The path of a draft to the other one, and its text.
    path: String,
    draft: String,
    /// A character for each thread that sends.
    writers: &'static str,
}

impl Side {
    fn new(bed: &Bed, me: &'static str, store: &str, path: &str, draft: &str) -> Self {
        let config = bed.path(format!("{me}.toml"));
        fs::write(&config, store).expect("config");
        let (path, draft) = (path.to_owned(), draft.to_owned());
        Self { me, config, path, draft, writers: "xy" }
    }

    fn mount(&self, bed: &Bed) -> Mount {
        let dir = bed.path(format!("mnt-{}", self.me));
        bed.mount_at(&dir, self.me, &["--config", self.config.to_str().unwrap()])
    }

    fn notes(&self, bed: &Bed) -> PathBuf {
        bed.path("cwd").join(self.me)
    }

    fn start(&self, bed: &Bed, stop: &Path) -> Running {
        let draft = bed.path(format!("{}.draft", self.me));
        fs::write(&draft, &self.draft).expect("draft");
        let mut c = bed.command("python3");
        c.args(["-c", AGENT]).arg(bed.path(format!("mnt-{}", self.me))).arg(self.notes(bed));
        c.arg(&self.path).args([&draft, stop]).arg(self.writers);
        Running::start(c, None).expect("python3")
    }
}

/// Kills the two in turn, `MSGFS_TEST_KILLS` or `kills` times, while they work.
fn loop_of(bed: &Bed, sides: &[Side; 2], kills: u32) {
    let kills =
        std::env::var("MSGFS_TEST_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(kills);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let stop = bed.path("stop");
    let start = Instant::now();
    let mut mounts = sides.each_ref().map(|side| Some(side.mount(bed)));
    let agents = sides.each_ref().map(|side| side.start(bed, &stop));
    for _ in 0..kills {
        let which = dice.below(2) as usize;
        std::thread::sleep(Duration::from_micros(dice.below(100_000)));
        mounts[which].take().expect("mounted").kill9();
        mounts[which] = Some(sides[which].mount(bed));
    }
    fs::write(&stop, "").unwrap();
    for agent in agents {
        let out = agent.finish(Duration::from_secs(120)).unwrap();
        assert!(out.ok(), "{out:?}");
    }
    // With neither a snapshot nor anything in memory, only the content of the stores counts.
    for mount in mounts.into_iter().flatten() {
        wait_for(Duration::from_secs(60), "the outbox drains", || mount.ls("outbox").is_empty());
        mount.umount();
    }
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let [a, b] = sides.each_ref().map(|side| side.mount(bed));
    let mut all = 0;
    for (side, mine, other) in [(&sides[0], &a, &b), (&sides[1], &b, &a)] {
        let notes = fs::read_to_string(side.notes(bed)).unwrap();
        let noted = |what: &str| {
            let of = |line: &str| line.strip_prefix(what).map(|rest| rest.trim().to_owned());
            notes.lines().filter_map(of).collect::<Vec<_>>()
        };
        let sent = noted("sent");
        all += sent.len();
        check("sent", &sent, side, mine);
        check("archive", &sent, side, other);
        let inbox = mine.ls("inbox");
        let gone: Vec<_> = noted("read").into_iter().filter(|n| inbox.contains(n)).collect();
        assert!(gone.is_empty(), "marked by {} and unread again: {gone:?}", side.me);
    }
    println!("{kills} kills in {:?}, {all} messages accepted", start.elapsed());
    assert!(all as u32 > kills, "they hardly ever got through");
    a.umount();
    b.umount();
}

/// Checks that a folder of a mount has everything that one side sent, each message once.
fn check(folder: &str, sent: &[String], side: &Side, mount: &Mount) {
    let mine = format!("token-{}", side.me);
    let counted: BTreeMap<String, u32> = mount
        .py(COUNT, &[])
        .lines()
        .filter_map(|line| line.strip_prefix(folder)?.trim().split_once(' '))
        .filter(|(_, token)| token.starts_with(&mine))
        .map(|(n, token)| (token.to_owned(), n.parse().unwrap()))
        .collect();
    let lost: Vec<_> = sent.iter().filter(|token| !counted.contains_key(*token)).collect();
    assert!(lost.is_empty(), "accepted and not in {folder}: {lost:?}");
    let doubled: Vec<_> = counted.iter().filter(|(_, n)| **n > 1).collect();
    assert!(doubled.is_empty(), "more than once in {folder}: {doubled:?}");
}

/// S35, S55: each accepted message is there once and each mark stays, in SAMP.
#[test]
fn s55_samp() {
    samp("xy", 60);
}

/// S35, S55: the same in SAMP with so many senders at once that they share each sync.
#[test]
fn s55_samp_many_at_once() {
    samp("rstuvwxy", 30);
}

fn samp(writers: &'static str, kills: u32) {
    let bed = Bed::new();
    let store = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
    let sides = [("foo", "bar"), ("bar", "foo")].map(|(me, other)| {
        samp::append(&bed.store, me, other, "t", "hello", samp::T0);
        let side = Side::new(&bed, me, &store, &format!("outbox/{other}"), "TOKEN\n");
        Side { writers, ..side }
    });
    loop_of(&bed, &sides, kills);
}

/// S35, S55: the same in `AgentAZAll`.
#[test]
fn s55_agentazall() {
    let bed = Bed::new();
    let tree = agz::Tree::new(&bed);
    let other = tree.beside("foo@localhost", &json!({}));
    let sides = [("bar", &tree, &other), ("foo", &other, &tree)].map(|(me, mine, other)| {
        Side::new(&bed, me, &mine.store(), &format!("outbox/{}", other.agent), "TOKEN\n")
    });
    loop_of(&bed, &sides, 25);
}

/// S35, S55: the same in AMP.
#[test]
fn s55_amp() {
    let bed = Bed::new();
    let home = amp::Home::new(&bed);
    let sides = [("bar", "alice"), ("alice", "bar")].map(|(me, other)| {
        Side::new(&bed, me, &home.store(), &format!("outbox/{other}"), "TOKEN\n")
    });
    loop_of(&bed, &sides, 25);
}

/// S35, S55: the same in AMQ.
#[test]
fn s55_amq() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["foo", "bar"]);
    let sides = [("foo", "bar"), ("bar", "foo")].map(|(me, other)| {
        Side::new(&bed, me, &queue.store(), &format!("outbox/{other}"), "TOKEN\n")
    });
    loop_of(&bed, &sides, 25);
}

/// S35, S55: the same in ATSF.
#[test]
fn s55_atsf() {
    let bed = Bed::new();
    let project = bed.path("shop");
    let hello = [
        atsf::message(1, "user", "2026-04-24T17:42:03.100Z", "hello"),
        atsf::message(2, "agent", "2026-04-24T17:42:09.250Z", "hello, too"),
    ];
    atsf::thread(&project, atsf::ONE, "Uploads", &hello);
    let sides = [("foo", "user"), ("bar", "agent")].map(|(me, role)| {
        let store = format!("{}me = \"{role}\"\n", atsf::store(&project));
        Side::new(&bed, me, &store, &format!("threads/{}/answer", atsf::ONE), "TOKEN\n")
    });
    loop_of(&bed, &sides, 25);
}

/// S35, S55: the same in task records.
#[test]
fn s55_ssot() {
    let bed = ssot::bed();
    let mut dispatch = ssot::payload("task_dispatch");
    dispatch["description"] = json!("TOKEN");
    let mut result = ssot::payload("task_result");
    result["self_assessment"]["notes"] = json!(["TOKEN"]);
    let store = fs::read_to_string(bed.path("config/msgfs/config.toml")).unwrap();
    let sides = [
        ("coordinator", "executor", "task_dispatch", dispatch),
        ("executor", "coordinator", "task_result", result),
    ]
    .map(|(me, other, kind, payload)| {
        let draft = ssot::draft(other, kind, &payload);
        Side::new(&bed, me, &store, &format!("outbox/{other}"), &draft)
    });
    loop_of(&bed, &sides, 25);
}
