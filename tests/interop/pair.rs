//! Two machines that share messages, and the state that both must reach.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::Command;
use std::time::Duration;

use crate::common::{Bed, Mount, run, wait_for};

/// A limit for two busy machines until both have all messages.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Returns the texts of all messages in a folder of the tree, sorted.
pub(crate) fn texts(m: &Mount, folder: &str) -> Vec<String> {
    let script = format!(
        "find {folder} -name '*.txt' -type f -exec tail -n +1 -q {{}} + | grep '^text ' | sort"
    );
    let mut all: Vec<String> = m.sh(&script).stdout.lines().map(str::to_owned).collect();
    all.sort();
    all
}

/// Returns `text NAME 0` to `text NAME count - 1` of each name, sorted.
pub(crate) fn expected(names: &[&str], count: usize) -> Vec<String> {
    let all = names.iter().flat_map(|name| (0..count).map(move |n| format!("text {name} {n}")));
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

/// Asserts that both mounts show the same in these folders, byte for byte.
#[track_caller]
pub(crate) fn same_trees(one: &Mount, two: &Mount, folders: &[&str]) {
    for folder in folders {
        wait_for(Duration::from_secs(60), &format!("{folder} is the same"), || {
            let mut diff = Command::new("diff");
            diff.arg("-r").arg(one.path(folder)).arg(two.path(folder));
            run(diff, None).ok()
        });
    }
}

/// Writes a thousand messages, or as many as `MSGFS_TEST_MESSAGES` says (10,000 take a minute or two), half of them on
/// each machine. Meanwhile `disturb` disturbs the connection, and both mounts are killed with `kill -9` once a round.
/// In the end both machines have each message once, and the same trees.
pub(crate) fn thousands(one: &Bed, two: &Bed, mut disturb: impl FnMut(usize) + Send) {
    const ROUNDS: usize = 10;
    let all: usize =
        std::env::var("MSGFS_TEST_MESSAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let count = all / 2;
    for round in 0..ROUNDS {
        let (m, w) = (one.mount("alice"), two.mount("bob"));
        let (first, last) = (round * count / ROUNDS, (round + 1) * count / ROUNDS);
        std::thread::scope(|scope| {
            for (mount, me, to) in [(&m, "alice", "bob"), (&w, "bob", "alice")] {
                scope.spawn(move || {
                    for n in first..last {
                        fs::write(mount.path(format!("outbox/{to}")), format!("text {me} {n}\n"))
                            .unwrap();
                    }
                });
            }
            scope.spawn(|| disturb(round));
        });
        m.kill9();
        w.kill9();
    }
    disturb(ROUNDS);
    for (me, from, home, other) in [("alice", "bob", one, two), ("bob", "alice", two, one)] {
        // A second machine with my key also has the messages that I sent.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(other.state(me)).unwrap();
        fs::copy(home.state(me).join("identity_key"), other.state(me).join("identity_key"))
            .unwrap();
        let (m, w) = (home.mount(me), other.mount(me));
        for mount in [&m, &w] {
            wait_for(LONG, &format!("{me} has all of {from}"), || {
                let out = mount.sh("find archive -name '*.txt' -type f | wc -l");
                out.stdout.trim().parse() == Ok(count)
            });
            for (folder, name) in [("archive", from), ("sent", me)] {
                let (has, should) = (texts(mount, folder), expected(&[name], count));
                let first = has.iter().zip(&should).find(|(a, b)| a != b);
                assert_eq!((has.len(), first), (count, None), "{folder} of {me} has each once");
            }
        }
        same_trees(&m, &w, &["archive", "threads", "sent"]);
    }
}
