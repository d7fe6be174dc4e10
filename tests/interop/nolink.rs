//! No link at all: programs that copy folders between machines, and msgfs on both ends.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::proc::Running;
use crate::common::{Bed, Mount, quote, run, soon, wait_for};
use crate::pair::{LONG, expected, same_trees, texts, thousands};
use crate::ports::free_port;

/// The views that show threads.
const CONVERSATIONS: [&str; 2] = ["threads", "transcripts"];

/// A Syncthing with one folder and one partner.
struct Syncthing {
    home: PathBuf,
    running: Option<Running>,
}

fn syncthing(bed: &Bed, args: &[&str], home: &Path) -> Command {
    let mut c = bed.command("syncthing");
    c.args(args).arg(format!("--home={}", home.display())).env("STNOUPGRADE", "1");
    // Without its monitor process, Syncthing is one process. A test that has waited for its end may then start the next
    // one, which ends at once while the database is still open.
    c.env("STMONITORED", "yes");
    c
}

impl Syncthing {
    /// Makes two of them, each in its bed, over the stores of both.
    fn pair(one: &Bed, two: &Bed) -> (Self, Self) {
        assert!(
            one.sh("command -v syncthing").ok(),
            "these tests need Syncthing; install it with:\n\n    apt-get install syncthing"
        );
        let ports = [free_port(), free_port()];
        let id = |bed: &Bed| {
            let home = bed.path("syncthing");
            let made = run(syncthing(bed, &["generate", "--no-default-folder"], &home), None);
            assert!(made.ok(), "{made:?}");
            let out = run(syncthing(bed, &["--device-id"], &home), None);
            out.stdout.trim().to_owned()
        };
        let ids = [id(one), id(two)];
        let make = |bed: &Bed, me: usize| {
            let home = bed.path("syncthing");
            let devices = |inner: &str| {
                let device = |n: usize| {
                    let address = format!("tcp://127.0.0.1:{}", ports[n]);
                    let inner = inner.replace("ADDRESS", &address);
                    format!("<device id=\"{}\" compression=\"never\">{inner}</device>", ids[n])
                };
                device(0) + &device(1)
            };
            let text = format!(
                "<configuration version=\"36\">\
                 <folder id=\"mail\" path=\"{store}\" type=\"sendreceive\" rescanIntervalS=\"5\" \
                 fsWatcherEnabled=\"true\" fsWatcherDelayS=\"1\">{plain}<maxConflicts>10</maxConflicts></folder>{full}\
                 <gui enabled=\"false\"></gui><options>\
                 <listenAddress>tcp://127.0.0.1:{port}</listenAddress>\
                 <globalAnnounceEnabled>false</globalAnnounceEnabled>\
                 <localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled>\
                 <natEnabled>false</natEnabled><urAccepted>-1</urAccepted>\
                 <crashReportingEnabled>false</crashReportingEnabled><autoUpgradeIntervalH>0</autoUpgradeIntervalH>\
                 <reconnectionIntervalS>1</reconnectionIntervalS><startBrowser>false</startBrowser>\
                 </options></configuration>",
                store = bed.store.display(),
                plain = devices(""),
                full = devices("<address>ADDRESS</address>"),
                port = ports[me],
            );
            fs::write(home.join("config.xml"), text).unwrap();
            let patterns = concat!(env!("CARGO_MANIFEST_DIR"), "/mount-scripts/stignore");
            fs::copy(patterns, bed.store.join(".stignore")).unwrap();
            fs::create_dir_all(bed.store.join(".stfolder")).unwrap();
            Self { home, running: None }
        };
        (make(one, 0), make(two, 1))
    }

    fn start(&mut self, bed: &Bed) {
        let command = syncthing(bed, &["serve", "--no-browser", "--no-restart"], &self.home);
        self.running = Some(Running::start(command, None).unwrap());
    }

    /// Kills it, as a loss of power would.
    fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.signal(rustix::process::Signal::KILL);
            soon("it is gone", || !running.running());
        }
    }
}

/// S490: two machines share a SAMP folder by Syncthing. Both write, both mounts and both Syncthings are killed again
/// and again, and for a while they do not reach each other. In the end each message is there once, and both trees are
/// equal.
#[test]
fn s490_syncthing() {
    let (one, two) = (Bed::new(), Bed::new());
    let (mut a, mut b) = Syncthing::pair(&one, &two);
    let count = 40;
    for round in 0..4 {
        let (m, w) = (one.mount("alice"), two.mount("bob"));
        // One round runs without a network.
        if round != 2 {
            a.start(&one);
            b.start(&two);
        }
        let (first, last) = (round * count / 4, (round + 1) * count / 4 - 1);
        let write = |me: &str, to: &str| {
            format!(
                "for i in $(seq {first} {last}); do echo text {me} $i > outbox/{to}; sleep 0.02; done"
            )
        };
        m.ok(&write("alice", "bob"));
        w.ok(&write("bob", "alice"));
        std::thread::sleep(Duration::from_millis(500 + 700 * round as u64));
        a.kill();
        m.kill9();
        b.kill();
        w.kill9();
    }
    a.start(&one);
    b.start(&two);
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    wait_for(Duration::from_secs(90), "bob has all of alice", || {
        texts(&w, "archive") == expected(&["alice"], count)
    });
    wait_for(Duration::from_secs(90), "alice has all of bob", || {
        texts(&m, "archive") == expected(&["bob"], count)
    });
    same_trees(&m, &w, &CONVERSATIONS);
    for log in ["log-alice.jsonl", "log-bob.jsonl"] {
        let read = |bed: &Bed| fs::read(bed.store.join(log)).unwrap();
        soon("the logs are equal", || read(&one) == read(&two));
    }
}

/// S452: a thousand messages, while both Syncthings are killed and cut off and both mounts are killed.
#[test]
fn s452_thousands_by_syncthing() {
    let (mut one, mut two) = (Bed::new(), Bed::new());
    (one.limit, two.limit) = (LONG, LONG);
    let (mut a, mut b) = Syncthing::pair(&one, &two);
    thousands(&one, &two, |round| {
        // Some rounds run without a network.
        if round % 4 != 2 || round == 10 {
            a.start(&one);
            b.start(&two);
        }
        if round < 10 {
            std::thread::sleep(Duration::from_millis(1500 + 700 * (round as u64 % 4)));
            a.kill();
            b.kill();
        }
    });
    for log in ["log-alice.jsonl", "log-bob.jsonl"] {
        let read = |bed: &Bed| fs::read(bed.store.join(log)).unwrap();
        soon("the logs are equal", || read(&one) == read(&two));
    }
}

/// Gives the second machine the key that the first one made for this name.
fn share_key(one: &Bed, two: &Bed, me: &str) {
    one.mount(me).umount();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(two.state(me)).unwrap();
    fs::copy(one.state(me).join("identity_key"), two.state(me).join("identity_key")).unwrap();
}

/// Returns the messages that a mount shows as sent, sorted.
fn letters(m: &Mount) -> Vec<String> {
    let find = "find sent -name '*.txt' -type f -exec tail -n +1 -q {} + | grep '^letter ' | sort";
    m.sh(find).stdout.lines().map(str::to_owned).collect()
}

/// Asserts that both machines show each of these messages once, and the same.
fn all_are_there(m: &Mount, w: &Mount, accepted: &[String]) {
    let missing = || {
        let both = [letters(m), letters(w)];
        let lacks = |letter: &&String| both.iter().any(|all| !all.contains(letter));
        let missing: Vec<String> = accepted.iter().filter(lacks).cloned().collect();
        (missing, both[0] == both[1])
    };
    let end = Instant::now() + Duration::from_secs(120);
    while missing() != (Vec::new(), true) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(missing(), (Vec::new(), true), "both have each letter, and the same");
    let mut all = letters(m);
    all.dedup();
    assert_eq!(all, letters(m), "each is there once");
}

/// S740: one identity on two machines that share a SAMP folder by Syncthing with its default settings. Both write into
/// one log, both mounts are killed sixteen times and both Syncthings now and then. More conflict copies are made than
/// Syncthing keeps, and nothing is lost.
#[test]
fn s740_one_identity_by_syncthing() {
    let (one, two) = (Bed::new(), Bed::new());
    share_key(&one, &two, "anna");
    let (mut a, mut b) = Syncthing::pair(&one, &two);
    let mut accepted = Vec::new();
    for round in 0..16 {
        if round % 4 == 0 {
            a.start(&one);
            b.start(&two);
        }
        std::thread::scope(|scope| {
            let first = scope.spawn(|| one.killed_while_sending("anna", "bob", 2 * round));
            let second = scope.spawn(|| two.killed_while_sending("anna", "bob", 2 * round + 1));
            accepted.extend(first.join().unwrap());
            accepted.extend(second.join().unwrap());
        });
        std::thread::sleep(Duration::from_millis(1200));
        if round % 4 == 3 {
            a.kill();
            b.kill();
        }
    }
    a.start(&one);
    b.start(&two);
    assert!(accepted.len() > 100, "{}", accepted.len());
    let (m, w) = (one.mount("anna"), two.mount("anna"));
    all_are_there(&m, &w, &accepted);
    same_trees(&m, &w, &["sent"]);
    let told = m.cat("status.txt") + &w.cat("status.txt");
    assert!(told.contains("msgfs appended"), "what happened to the logs is told: {told}");
}

/// S741: the same with `rsync -a --modify-window=-1` of whole files, both ways: each run replaces the log of the other
/// machine.
#[test]
fn s741_one_identity_by_rsync() {
    let (one, two) = (Bed::new(), Bed::new());
    share_key(&one, &two, "anna");
    // With whole seconds alone, two logs of one size that changed in the same second would stay different.
    let rsync = "rsync -a --modify-window=-1 --exclude='.*'";
    let both = format!(
        "while :; do {rsync} {0}/ {1}/; {rsync} {1}/ {0}/; done",
        quote(&one.store),
        quote(&two.store)
    );
    let mut accepted = Vec::new();
    for round in 0..30 {
        // A busy machine takes fewer messages in a round, and needs more rounds.
        if round >= 6 && accepted.len() > 50 {
            break;
        }
        let mut command = one.command("bash");
        command.args(["-c", &both]);
        let syncing = Running::start(command, None).unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| one.killed_while_sending("anna", "bob", 2 * round));
            let second = scope.spawn(|| two.killed_while_sending("anna", "bob", 2 * round + 1));
            accepted.extend(first.join().unwrap());
            accepted.extend(second.join().unwrap());
        });
        drop(syncing);
    }
    assert!(accepted.len() > 50, "{}", accepted.len());
    let mut command = one.command("bash");
    command.args(["-c", &both]);
    let (m, w) = (one.mount("anna"), two.mount("anna"));
    let _syncing = Running::start(command, None).unwrap();
    all_are_there(&m, &w, &accepted);
}

/// S491: two machines share a SAMP folder by `rsync --append` in a loop, both ways.
#[test]
fn s491_rsync_in_a_loop() {
    let (one, two) = (Bed::new(), Bed::new());
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    let both = format!(
        "while :; do rsync -a --append --exclude='.*' {0}/ {1}/; rsync -a --append --exclude='.*' {1}/ {0}/; done",
        quote(&one.store),
        quote(&two.store)
    );
    let mut command = one.command("bash");
    command.args(["-c", &both]);
    let syncing = Running::start(command, None).unwrap();
    let count = 60;
    for round in 0..3 {
        let (first, last) = (round * 20, round * 20 + 19);
        m.ok(&format!("for i in $(seq {first} {last}); do echo text alice $i > outbox/bob; done"));
        w.ok(&format!("for i in $(seq {first} {last}); do echo text bob $i > outbox/alice; done"));
    }
    soon("bob has all", || texts(&w, "archive") == expected(&["alice"], count));
    soon("alice has all", || texts(&m, "archive") == expected(&["bob"], count));
    drop(syncing);
    same_trees(&m, &w, &CONVERSATIONS);
}

/// Two clones of one repository.
struct Clones {
    one: Bed,
    two: Bed,
}

/// The thread of the project.
const THREAD: &str = "5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01";

impl Clones {
    /// Makes a project with one thread, and a clone of it on another machine.
    fn new() -> Self {
        let clones = Self { one: Bed::new(), two: Bed::new() };
        let (one, two) = (&clones.one, &clones.two);
        let folder = one.path("repo/.agent/threads").join(THREAD);
        fs::create_dir_all(&folder).unwrap();
        let first = json!({"id": "0b0e7c1e-6a8e-4a51-8b7e-000000000001", "role": "user",
            "timestamp": "2026-04-24T17:42:03.100Z", "content": [{"type": "text", "text": "begin"}]});
        fs::write(folder.join("messages.jsonl"), format!("{first}\n")).unwrap();
        let about = json!({"specVersion": "1.1", "threadId": THREAD, "title": "t",
            "createdAt": "2026-04-24T17:42:03.000Z", "updatedAt": "2026-04-24T17:42:03.000Z"});
        fs::write(folder.join("thread.json"), about.to_string()).unwrap();
        Self::git(
            one,
            "git init -q -b main; git config merge.ours.driver true; git add -A; \
             printf 'messages.jsonl merge=union\nthread.json merge=ours\n' > .gitattributes; git add -A; \
             git commit -qm begin; git clone -q --bare . ../origin; git remote add origin $PWD/../origin",
        );
        let (from, to) = (quote(&one.path("origin")), quote(&two.path("repo")));
        assert!(two.sh(&format!("git clone -q -c merge.ours.driver=true {from} {to}")).ok());
        clones
    }

    #[track_caller]
    fn git(bed: &Bed, script: &str) {
        let mut c = bed.command("bash");
        c.args(["-c", &format!("set -e; cd ../repo; {script}")]);
        for name in
            ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"]
        {
            c.env(name, "x@x");
        }
        let out = run(c, None);
        assert!(out.ok(), "{script}: {out:?}");
    }

    /// Commits the changes of each clone, and merges those of the other one.
    #[track_caller]
    fn exchange(&self) {
        let both = "git add -A; git diff --cached --quiet || git commit -qm mail; \
                    git pull -q --no-rebase --no-edit origin main; git push -q origin HEAD:main";
        for bed in [&self.one, &self.two, &self.one] {
            Self::git(bed, both);
        }
    }
}

/// S492: the threads of an ATSF project travel with its git repository. Both machines write into one thread, commit,
/// pull and push; no merge has a conflict, and each message is there once.
#[test]
fn s492_a_git_repository_of_a_project() {
    let clones = Clones::new();
    for (bed, me) in [(&clones.one, "user"), (&clones.two, "agent")] {
        let dir = bed.path("repo");
        let dir = dir.to_str().unwrap();
        bed.config(&format!("[[store]]\nkind = \"atsf\"\ndir = {dir:?}\nme = {me:?}\n"));
    }
    let (m, w) = (clones.one.mount("user"), clones.two.mount("agent"));
    let count = 6;
    for n in 0..count {
        m.ok(&format!("echo text user {n} > threads/{THREAD}/answer"));
        w.ok(&format!("echo text agent {n} > threads/{THREAD}/answer"));
        if n % 2 == 1 {
            clones.exchange();
        }
    }
    let all = expected(&["user", "agent"], count);
    soon("one has all", || texts(&m, "threads") == all);
    soon("the other one has all", || texts(&w, "threads") == all);
    same_trees(&m, &w, &CONVERSATIONS);
}
