//! Loss of power: an accepted message is in the store exactly once, whatever the disk had not taken yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::amq::Queue;
use crate::common::agz::Tree;
use crate::common::amp::Home;
use crate::common::proc::Running;
use crate::common::{Bed, binary, mounted, run_for, wait_for};
use crate::ssot;

const LONG: Duration = Duration::from_secs(60);

/// A program whose threads send, and note each accepted message and its time. Then the mount is killed, if the
/// test asks for it.
const SENDER: &str = r"
import os, sys, threading, time
mount, notes, writers, each, pid = sys.argv[1:]
log = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(writer):
    for number in range(int(each)):
        text = f'{writer}-{number}'
        f = os.open(mount + '/outbox/foo', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(f, (text + '\n').encode())
        os.close(f)
        os.write(log, f'{time.time():.6f} {text}\n'.encode())
all = [threading.Thread(target=work, args=(w,)) for w in writers]
[t.start() for t in all]
[t.join() for t in all]
if pid:
    time.sleep(0.02)
    os.kill(int(pid), 9)
";

/// The calls that change the content of a disk, those that tell the file, and those that start a process.
const CALLS: &str = "trace=openat,open,creat,close,fcntl,dup,write,pwrite64,ftruncate,fsync,fdatasync,\
                     rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,\
                     clone,clone3,fork,vfork";

/// Mounts under strace and sends.
fn record(bed: &Bed, me: &str, writers: &str, each: usize, kill: bool) {
    let dir = bed.path(format!("mnt-{me}"));
    let mut c = bed.command("strace");
    c.args(["-f", "-qq", "-y", "-xx", "-ttt", "-s", "1000000", "-e", CALLS]);
    if kill {
        // The delay makes the end come between an append and its sync.
        c.args(["-e", "inject=fdatasync:delay_enter=60000"]);
    }
    c.args(["-A", "-o"]).arg(bed.path("trace")).arg(binary());
    c.args(["mount", "-f", "--me", me]).arg(&dir);
    let daemon = Running::start(c, None).unwrap();
    let lock = || fs::read_to_string(bed.state(me).join("lock")).unwrap_or_default();
    let pid = || serde_json::from_str::<serde_json::Value>(&lock()).ok()?["pid"].as_i64();
    let child = |pid: &i64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains(&format!("TracerPid:\t{}\n", daemon.pid()))
    };
    wait_for(LONG, "it mounts", || pid().as_ref().is_some_and(child) && mounted(&dir));
    wait_for(LONG, "it answers", || bed.sh(&format!("ls {}", dir.display())).ok());
    let pid = pid().filter(|_| kill).map(|pid| pid.to_string()).unwrap_or_default();
    let mut c = bed.command("python3");
    c.args(["-c", SENDER]).arg(&dir).arg(bed.path("notes")).args([
        writers,
        &each.to_string(),
        &pid,
    ]);
    let out = run_for(c, None, LONG);
    assert!(out.ok(), "{out:?}");
    if !kill {
        assert!(bed.msgfs_out(&["umount", dir.to_str().unwrap()]).ok());
    }
    daemon.finish(LONG).unwrap();
}

/// S183: a very first mount is killed. This mount and the next one are cut before their system calls (as many as
/// fit in `MSGFS_TEST_POWER` seconds). The disk then has only the synced data, or everything of one folder
/// besides.
#[test]
fn s183_loss_of_power() {
    let seconds = std::env::var("MSGFS_TEST_POWER").unwrap_or_else(|_| "20".into());
    let bed = Bed::new();
    record(&bed, "bar", "a", 4, true);
    record(&bed, "bar", "bcdefghi", 2, false);
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/power/replay.py"));
    c.args([bed.path("trace"), bed.path(""), bed.path("notes"), binary()]).arg(&seconds);
    let limit = Duration::from_secs(120 + seconds.parse::<u64>().unwrap() * 3);
    let out = run_for(c, None, limit);
    println!("{}", out.said());
    assert!(out.ok(), "{out:?}");
}

/// Checks that a folder was synced before the first end of a message was written to the spool.
#[track_caller]
fn is_synced_before_an_end(bed: &Bed, folder: &Path) {
    let hex = |text: &str| text.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let trace = fs::read_to_string(bed.path("trace")).unwrap();
    let find = |call: &str, text: String| {
        trace.lines().position(|line| line.contains(call) && line.contains(&text))
    };
    let synced = find("fsync(", format!("<{}>", hex(folder.to_str().unwrap())));
    let ended = find("pwrite64(", hex("\"end\":true")).expect("an end");
    assert!(
        synced.is_some_and(|synced| synced < ended),
        "{}: {synced:?} {ended}",
        folder.display()
    );
}

/// S183: a log that an ended process has made is perhaps not on disk under its name. Its folder is synced before a
/// message in it counts as sent.
#[test]
fn s183_the_name_of_a_log_that_is_there() {
    let bed = Bed::new();
    let store = fs::canonicalize(bed.path("store")).unwrap();
    fs::write(store.join("log-bar.jsonl"), "").unwrap();
    record(&bed, "bar", "a", 1, false);
    is_synced_before_an_end(&bed, &store);
}

/// Returns the files below a folder that have a text.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let has_text = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|all| all.contains(text));
    let below = folders.iter().flat_map(|folder| files_with(folder, text));
    below.chain(files.into_iter().filter(has_text)).collect()
}

/// Sends a message, lets the spool have it still, as after a kill, and checks that the next mount syncs the folders of
/// all its files before it counts as sent.
#[track_caller]
fn syncs_what_is_there(bed: &Bed, me: &str, root: &Path, send: &str) {
    let m = bed.mount(me);
    m.ok(send);
    m.umount();
    let spool = bed.state(me).join("spool");
    let mut bytes = fs::read(&spool).unwrap();
    let end = bytes.windows(12).position(|piece| piece == b"\"end\":true,\"").unwrap();
    let line = bytes[..end].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    bytes[line..].fill(0);
    fs::write(&spool, bytes).unwrap();
    let files = files_with(&fs::canonicalize(root).unwrap(), "power text");
    assert!(!files.is_empty());
    record(bed, me, "", 0, false);
    for file in files {
        is_synced_before_an_end(bed, file.parent().unwrap());
    }
}

/// S183: the same for files, which an ended process has made.
#[test]
fn s183_the_names_of_files_that_are_there() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    fs::create_dir(tree.mailbox("dave@localhost")).unwrap();
    syncs_what_is_there(&bed, "bar", &tree.root, "echo power text > outbox/dave@localhost");
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    syncs_what_is_there(&bed, "bar", &home.root, "echo power text > outbox/alice");
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["bar", "bob"]);
    bed.config(&queue.store());
    syncs_what_is_there(&bed, "bar", &queue.root, "echo power text > outbox/bob");
    let bed = ssot::bed();
    let mut payload = ssot::payload("task_dispatch");
    payload["description"] = "power text".into();
    let draft = ssot::draft("executor", "task_dispatch", &payload);
    let send = format!("cat > outbox/executor <<'EOF'\n{draft}EOF");
    syncs_what_is_there(&bed, "coordinator", &bed.path("ssot"), &send);
}
