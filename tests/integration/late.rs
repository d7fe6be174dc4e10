//! Stores that cannot be opened at the mount and come later (S200).

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::agz::{Letter, Tree, put};
use crate::common::amp::{self, ALICE, Home, Msg};
use crate::common::proc::Running;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, PATIENCE, need_root, quote, run, soon};
use crate::gone::{self, Kind};

/// Another agent in the store of [`Tree`].
const BOB: &str = "bob@localhost";

/// Returns the configuration of a store that is always there, so that there is something to mount.
fn base(bed: &Bed) -> String {
    format!(
        "[[store]]\nname = \"base\"\nkind = \"samp\"\ndir = {:?}\n",
        bed.store.to_str().unwrap()
    )
}

/// Adds that store to the configuration of a bed.
fn add_base(bed: &Bed) {
    let said = fs::read_to_string(bed.path("config/msgfs/config.toml")).unwrap();
    bed.config(&format!("{}{said}", base(bed)));
}

/// Returns the path of a folder while it is away.
fn away(place: &Path) -> PathBuf {
    place.with_extension("away")
}

fn leave(place: &Path) {
    fs::rename(place, away(place)).unwrap();
}

fn come(place: &Path) {
    fs::rename(away(place), place).unwrap();
}

/// Returns the number of messages to me, read or not, that have this line.
fn times(m: &Mount, line: &str) -> usize {
    m.sh(&format!("grep -rhx '{line}' archive")).stdout.lines().count()
}

#[track_caller]
fn is_shown(m: &Mount, line: &str) {
    soon(&format!("{line} is shown"), || times(m, line) > 0);
}

/// S200: the folder of a store of each kind comes after the mount. The messages in it, read and unread, are shown
/// as they were, and later messages are shown, too. The process stays the same.
#[test]
fn s200_each_kind_comes_later() {
    for kind in gone::all() {
        let Kind { bed, dir, deliver } = &kind;
        let below = dir.strip_prefix(bed.path("")).unwrap();
        let place = bed.path(below.iter().next().unwrap());
        add_base(bed);
        deliver(1);
        let m = bed.mount("bar");
        is_shown(&m, "mail 1");
        m.ok("cat inbox/* > /dev/null");
        m.inbox_becomes(&[]);
        m.umount();
        deliver(2);
        leave(&place);
        for round in 0..2 {
            let m = bed.mount("bar");
            let pid = m.pid();
            assert_eq!((times(&m, "mail 1"), times(&m, "mail 2")), (0, 0), "{place:?}");
            if round == 0 {
                continue;
            }
            samp::append(&bed.store, "foo", "bar", "t", "meanwhile", T0);
            is_shown(&m, "meanwhile");
            come(&place);
            is_shown(&m, "mail 2");
            deliver(3);
            is_shown(&m, "mail 3");
            assert_eq!((times(&m, "mail 1"), times(&m, "mail 2")), (1, 1), "{place:?}");
            assert_eq!(m.ls("inbox").len(), 3, "what was read is read: {:?}", m.ls("inbox"));
            assert_eq!(m.pid(), pid);
            assert!(!m.cat("status.txt").contains("is left out"));
            m.umount();
        }
        let m = bed.mount("bar");
        assert_eq!((times(&m, "mail 1"), times(&m, "mail 3"), m.ls("inbox").len()), (1, 1, 3));
    }
}

/// Makes a bed with stores of AMP and AgentAZAll that are away, with a message to me in each.
fn two_away(extra: &str) -> (Bed, Tree, Home) {
    let bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    fs::create_dir_all(tree.mailbox(BOB)).unwrap();
    bed.config(&format!("{extra}{}{}{}", base(&bed), tree.store(), home.store()));
    home.receive(&Msg::new("s", "from amp", 1));
    tree.receive(&Letter::new("alice@localhost", "s", "from agentazall", 2));
    leave(&tree.root);
    leave(&home.root);
    (bed, tree, home)
}

/// Both kinds whose mailboxes belong to other programs come. A message that is sent to them before is refused, and
/// its draft is kept. A message that is sent afterwards arrives, and a program that waits for mail gets it.
#[track_caller]
fn both_come(m: &Mount, tree: &Tree, home: &Home, mut comes: impl FnMut(&Path)) {
    for (place, line) in [(&home.root, "from amp"), (&tree.root, "from agentazall")] {
        comes(place);
        is_shown(m, line);
    }
    m.ok(&format!("echo to alice > outbox/{ALICE}; echo to bob > outbox/{BOB}"));
    soon("alice has it", || home.list("alice", "inbox").len() == 1);
    soon("bob has it", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(amp::read(&home.only("alice", "inbox").0)["payload"]["message"], "to alice");
    assert!(tree.only(BOB, "inbox").1.contains("\nto bob\n"));
    home.receive(&Msg::new("s", "more amp", 3));
    tree.receive(&Letter::new("alice@localhost", "s", "more agentazall", 4));
    for line in ["more amp", "more agentazall", "from amp", "from agentazall"] {
        is_shown(m, line);
        assert_eq!(times(m, line), 1, "{line}");
    }
    assert_eq!(m.ls("raw"), ["agentazall", "amp", "base"]);
    assert!(!m.cat("status.txt").contains("is left out"));
    assert!(m.cat("README.txt").contains("me/{"), "the texts of AgentAZAll");
}

/// S200: folders come, one of them where not even its parent folders were. A reader that waits is not disturbed.
#[test]
fn s200_a_folder_comes_later() {
    let (bed, mut tree, home) = two_away("");
    let deep = bed.path("deep/er/agz");
    let said = fs::read_to_string(bed.path("config/msgfs/config.toml")).unwrap();
    bed.config(&said.replace(tree.root.to_str().unwrap(), deep.to_str().unwrap()));
    fs::rename(away(&tree.root), away(&bed.path("other"))).unwrap();
    tree.root = deep;
    let m = bed.mount("bar");
    assert_eq!(m.said.matches("is left out").count(), 2, "{}", m.said);
    assert_eq!(m.cat("status.txt").matches("is left out").count(), 2);
    let mut waiter = bed.command("bash");
    waiter.args(["-c", &format!("cat {}", quote(&m.path(".next")))]);
    let waiter = Running::start(waiter, None).unwrap();
    m.ok("echo hello > outbox/foo");
    let other = away(&bed.path("other"));
    both_come(&m, &tree, &home, |place| {
        if place.exists() || away(place).exists() {
            return come(place);
        }
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(&other, place).unwrap();
    });
    let out = waiter.finish(PATIENCE).unwrap();
    assert!(out.stdout.contains("from amp"), "{out:?}");
    assert_eq!(samp::read_log(&bed.store, "bar").len(), 1);
}

/// S200: the same holds where folders are polled, because there is no inotify.
#[test]
fn s200_a_folder_comes_later_and_is_polled() {
    let (bed, tree, home) = two_away("watch = \"poll\"\n");
    let m = bed.mount("bar");
    both_come(&m, &tree, &home, come);
}

/// S200: a disk is mounted over the empty folder. The messages that it holds are shown, and so are later ones.
#[test]
fn s200_a_disk_comes_later() {
    need_root();
    let (bed, tree, home) = two_away("");
    for place in [&tree.root, &home.root] {
        fs::create_dir(place).unwrap();
    }
    let m = bed.mount("bar");
    let mut disk = 0;
    both_come(&m, &tree, &home, |place| {
        let (place, away) = (quote(place), quote(&away(place)));
        disk += 1;
        let how = if disk == 1 {
            format!("mount --bind {away} {place}")
        } else {
            format!("mount -t tmpfs msgfs-test {place} && sleep 0.3 && cp -a {away}/. {place}")
        };
        let out = bed.sh(&how);
        assert!(out.ok(), "{out:?}");
    });
    m.umount();
    for place in [&tree.root, &home.root] {
        bed.sh(&format!("umount {}", quote(place)));
    }
}

/// S200: a read-only mount shows the store, too.
#[test]
fn s200_a_folder_comes_later_read_only() {
    let (bed, tree, home) = two_away("");
    let m = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    for (place, line) in [(&home.root, "from amp"), (&tree.root, "from agentazall")] {
        come(place);
        is_shown(&m, line);
    }
    assert_eq!(m.ls("inbox").len(), 2);
}

/// S200: without a configuration, a store that comes to its default place is shown. Until then nothing is said of
/// it, unless a variable leads there.
#[test]
fn s200_default_places() {
    let mut bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    home.receive(&Msg::new("s", "from amp", 1));
    tree.receive(&Letter::new("alice@localhost", "s", "from agentazall", 2));
    leave(&tree.root);
    bed.env.push(("AGENTAZALL_ROOT".into(), tree.root.clone().into()));
    samp::append(&bed.store, "foo", "bar", "t", "x", T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("raw"), ["samp"]);
    let status = m.cat("status.txt");
    assert!(
        !status.contains("amp store") && status.contains("$AGENTAZALL_ROOT is set"),
        "{status}"
    );
    fs::rename(&home.root, bed.path("home/.agent-messaging")).unwrap();
    is_shown(&m, "from amp");
    come(&tree.root);
    is_shown(&m, "from agentazall");
    soon("nothing is said", || !m.cat("status.txt").contains("AGENTAZALL_ROOT"));
}

/// S200: if a folder is there and is no store of mine, msgfs says why, and says another reason when the reason
/// changes. The folder that was in the way stays as it was.
#[test]
fn s200_the_reason_is_that_of_now() {
    let (bed, tree, _home) = two_away("");
    let m = bed.mount("bar");
    put(&tree.root.join("config.json"), "{");
    soon("the new reason is told", || {
        let status = m.cat("status.txt");
        let told = status.lines().find(|line| line.contains("the store agentazall is left out"));
        told.is_some_and(|line| line.contains("config.json") && !line.contains("No such file"))
    });
    fs::remove_dir_all(&tree.root).unwrap();
    come(&tree.root);
    is_shown(&m, "from agentazall");
    assert_eq!(m.cat("status.txt").matches("is left out").count(), 1, "the other one");
}

/// S200: if a store is away when msgfs starts anew, accepted messages to it are sent once when it comes.
#[test]
fn s200_what_was_promised_waits() {
    for round in 0..4 {
        let bed = Bed::new();
        let home = Home::new(&bed);
        bed.config(&format!("{}{}", base(&bed), home.store()));
        let told = bed.killed_while_sending("bar", ALICE, round);
        leave(&home.root);
        let m = bed.mount("bar");
        m.ok("cat status.txt > /dev/null; echo hello > outbox/foo");
        come(&home.root);
        let arrived = || {
            let texts = home
                .list("alice", "inbox")
                .into_iter()
                .map(|file| amp::read(&file)["payload"]["message"].as_str().unwrap().to_owned());
            let mut texts: Vec<String> = texts.collect();
            texts.sort();
            texts
        };
        soon("all that was promised is there", || {
            let arrived = arrived();
            told.iter().all(|letter| arrived.contains(letter))
        });
        m.umount();
        let all = arrived();
        let mut once = all.clone();
        once.dedup();
        assert_eq!(all, once);
        assert!(all.len() <= told.len() + 1, "{told:?} {all:?}");
    }
}

/// S200: `msgfs carry` runs on although a store is left out, because the links may come with that store.
#[test]
fn s200_carry_waits_for_a_store() {
    let (bed, _tree, home) = two_away("");
    let mut carry = Running::start(bed.msgfs(["--me", "bar", "carry", "--all"]), None).unwrap();
    let lists = || run(bed.msgfs(["--me", "bar", "ls", "inbox"]), None);
    soon("commands are served", || {
        bed.state("bar").join("socket").symlink_metadata().is_ok() && lists().ok()
    });
    come(&home.root);
    soon("its mail is shown", || lists().stdout.lines().count() == 1);
    assert!(carry.running());
    carry.signal(rustix::process::Signal::TERM);
    let out = carry.finish(PATIENCE).unwrap();
    assert!(out.stderr.contains("can be opened now"), "{out:?}");
}
