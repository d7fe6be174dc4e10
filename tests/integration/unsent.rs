//! Drafts that are not sent: a close refused them, or a killed program had not finished them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::proc::Running;
use crate::common::samp::{self, bodies, read_log};
use crate::common::{Bed, Mount, binary, mounted, need_root, run, wait_for};

const LONG: Duration = Duration::from_secs(30);

/// S180: the disk fails once, at the close. The draft is kept with its reason. Neither the last close nor the next
/// mount sends it, until it is renamed.
#[test]
fn s180_a_refused_close_sends_nothing() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo first > outbox/bob");
    let tracer = m.meddle("fdatasync", "error=EIO");
    let out = m.sh("/bin/echo second > outbox/bob");
    assert!(!out.ok() && out.stderr.contains("Input/output error"), "{out:?}");
    tracer.signal(Signal::INT);
    tracer.finish(LONG).unwrap();
    wait_for(LONG, "the refusal shows", || m.ls("outbox") == ["bob", "bob.error"]);
    m.ok("echo third > outbox/carol");
    m.kill9();
    let m = bed.mount("bar");
    assert_eq!(bodies(&bed.store, "bar"), ["first", "third"]);
    assert_eq!(m.ls("outbox"), ["bob", "bob.error"]);
    m.ok("mv outbox/bob outbox/bob.txt");
    wait_for(LONG, "it is sent", || bodies(&bed.store, "bar").len() == 3);
    assert_eq!(bodies(&bed.store, "bar")[2], "second");
}

/// Makes a bed whose state folder is a disk with room for 256 KiB, and returns that folder.
fn with_little_room() -> (Bed, PathBuf) {
    need_root();
    let bed = Bed::new();
    let full = bed.path("state");
    let mut c = bed.command("mount");
    c.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&full);
    assert!(run(c, None).ok());
    (bed, full)
}

/// S180: room comes and goes while many write. A draft that a close refused is not in the store, and an accepted
/// one is.
#[test]
fn s180_room_that_comes_and_goes() {
    let (bed, full) = with_little_room();
    let m = bed.mount("bar");
    // This fills the rest and empties it again, out of step with the writer.
    let script = format!(
        "while [ ! -e '{0}/stop' ]; do head -c 262144 /dev/zero > '{1}/x' 2>/dev/null; : > '{1}/x'; done",
        bed.path("cwd").display(),
        full.display()
    );
    let mut c = bed.command("bash");
    c.args(["-c", &script]);
    let filler = Running::start(c, None).unwrap();
    let said = m.py(
        r"
for n in range(300):
    try:
        f = os.open('outbox/bob', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(f, b'%d\n' % n)
        finally:
            os.close(f)
    except OSError as e:
        print('refused', n)
    else:
        print('accepted', n)
",
        &[],
    );
    fs::write(bed.path("cwd/stop"), "").unwrap();
    assert!(filler.finish(LONG).unwrap().ok());
    let words = |what: &str| -> Vec<String> {
        said.lines().filter_map(|l| l.strip_prefix(what)).map(|n| n.trim().to_owned()).collect()
    };
    let (refused, accepted) = (words("refused"), words("accepted"));
    println!("{} refused, {} accepted", refused.len(), accepted.len());
    m.ok("rm -f outbox/*; echo last > outbox/bob");
    wait_for(LONG, "what waits is sent", || {
        bodies(&bed.store, "bar").iter().filter(|b| *b != "last").count() >= accepted.len()
    });
    let mut sent = bodies(&bed.store, "bar");
    assert_eq!(sent.pop().as_deref(), Some("last"));
    sent.sort_by_key(|n| n.parse::<u32>().unwrap());
    assert_eq!(sent, accepted);
}

/// S182: if the disk of the state folder is full, the mount lives and reads, and sending fails. The refused drafts
/// are kept in memory, and their `.error` says so. With room again msgfs sends and saves.
#[test]
fn s182_full_state_disk() {
    let (bed, full) = with_little_room();
    let m = bed.mount("bar");
    samp::append(&bed.store, "foo", "bar", "t", "hello", samp::T0);
    m.ok("echo first > outbox/bob");
    let fill = format!("cat /dev/zero > '{0}/x'; cat /dev/zero > '{0}/y'", full.display());
    for n in 0..30 {
        // Room that becomes free on the way is filled again.
        bed.sh(&fill);
        // This is more than the room that the spool has reserved.
        let text = format!("echo refused {n}; head -c 40000 /dev/zero | tr '\\0' a");
        let out = m.sh(&format!("({text}) | tee outbox/bob > /dev/null"));
        assert!(!out.ok() && out.stderr.contains("No space left"), "{out:?}");
    }
    wait_for(LONG, "it arrives", || m.sh("cat archive/*/*").stdout.contains("hello"));
    let why = m.cat("outbox/bob.error");
    assert!(why.contains("No space left") && why.contains("until the mount ends"), "{why}");
    assert!(m.cat("outbox/bob").starts_with("refused 29\naaa"));
    bed.sh(&format!("rm '{0}/x' '{0}/y'", full.display()));
    m.ok("echo second > outbox/carol");
    assert_eq!(bodies(&bed.store, "bar"), ["first", "second"]);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("outbox"), ["bob", "bob.error"]);
    assert!(!m.cat("outbox/bob.error").contains("until the mount ends"));
    m.ok("mv outbox/bob outbox/bob.txt");
    wait_for(LONG, "it is sent", || bodies(&bed.store, "bar").len() == 3);
}

/// S182: a mount in the foreground runs on if nobody reads its standard error, or if the reader is gone.
#[test]
fn s182_dead_standard_error() {
    for reader in ["exec sleep 600", "exec true"] {
        let bed = Bed::new();
        let dir = bed.path("fg");
        let script = format!("exec \"$0\" mount -f --me bar '{}' 2> >({reader})", dir.display());
        let mut c = bed.command("bash");
        c.args(["-c", &script]).arg(binary()).env("MSGFS_LOG", "debug");
        let daemon = Running::start(c, None).unwrap();
        wait_for(LONG, "it mounts", || mounted(&dir));
        wait_for(LONG, "it answers", || bed.sh(&format!("ls {}", dir.display())).ok());
        // Each of these is a line in the log, and together they are more than a pipe holds.
        let out = bed.sh(&format!(
            "cd {}; for i in $(seq 1500); do : > outbox/bad,name-$i; done 2> /dev/null; echo x > outbox/bob",
            dir.display()
        ));
        assert!(out.ok(), "{out:?}");
        wait_for(LONG, "it sends", || bodies(&bed.store, "bar") == ["x"]);
        assert!(bed.msgfs_out(&["umount", dir.to_str().unwrap()]).ok());
        assert!(daemon.finish(LONG).unwrap().ok());
    }
}

/// Starts a script in the mount as a group of its own, and kills the group once half of the text is written.
fn kill_writer(bed: &Bed, m: &Mount, script: &str, signal: Signal) {
    let mut c = bed.command("bash");
    c.args(["-c", script]).current_dir(&m.dir);
    let writer = Running::start(c, None).unwrap();
    wait_for(LONG, script, || {
        fs::read_to_string(m.path("outbox/bob")).is_ok_and(|text| text.contains("half"))
    });
    writer.signal(signal);
    writer.finish(LONG).unwrap();
}

/// S181: a program that is killed in the middle of a message has sent nothing, however it writes and whatever
/// kills it. The draft stays, and its `.error` says how to send it.
#[test]
fn s181_killed_writers() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for script in [
        "(echo half; sleep 60; echo end) | cat > outbox/bob",
        "(echo half; sleep 60; echo end) > outbox/bob",
        "{ echo half; sleep 60; echo end; } > outbox/bob",
        "(/bin/echo half; sleep 60; /bin/echo end) > outbox/bob",
        "bash -c '/bin/echo half; sleep 60; /bin/echo end' > outbox/bob",
        "(echo half; sleep 60; echo end) | tee outbox/bob > /dev/null",
        "exec python3 -uc 'import time; print(\"half\"); time.sleep(60); print(\"end\")' > outbox/bob",
    ] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            // Python turns a Ctrl-C into an exception and still dies of it; another test covers that.
            kill_writer(&bed, &m, script, signal);
            wait_for(LONG, script, || m.ls("outbox") == ["bob", "bob.error"]);
            let why = m.cat("outbox/bob.error");
            assert!(why.contains("ended by signal") && why.contains("mv outbox/bob "), "{why}");
            assert!(read_log(&bed.store, "bar").is_empty(), "{script} {signal:?}");
            m.ok("rm outbox/bob");
        }
    }
}

/// S181: a writer that `timeout` ends sends nothing, and a rename sends what is there.
#[test]
fn s181_timeout_and_rename() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for script in [
        "timeout 0.5 bash -c 'echo half; sleep 60; echo end' > outbox/bob",
        "timeout -s KILL 0.5 bash -c '/bin/echo half; sleep 60; echo end' > outbox/bob",
    ] {
        m.sh(script);
        wait_for(LONG, script, || m.ls("outbox") == ["bob", "bob.error"]);
        assert!(read_log(&bed.store, "bar").is_empty(), "{script}");
    }
    let why = m.cat("outbox/bob.error");
    m.ok(&why[why.find("mv outbox/").unwrap()..]);
    wait_for(LONG, "it is sent", || bodies(&bed.store, "bar") == ["half"]);
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S181: a killed process delays nothing if others write on, or if it had no part in the message.
#[test]
fn s181_normal_writers() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for (n, script) in [
        "(bash -c 'echo a; kill -9 $$'; echo b) > outbox/bob",
        "(yes | head -2) > outbox/bob 2>&1",
        "{ sleep 60 & echo x; kill $!; wait $!; echo y; } > outbox/bob 2> /dev/null",
        "{ sleep 60 & echo x; kill $!; } > outbox/bob",
        "timeout 60 cat /etc/hostname > outbox/bob",
        "python3 -c 'f = open(\"outbox/bob\", \"w\"); f.write(\"x\"); f.close(); import os; os.kill(os.getpid(), 9)'",
    ]
    .iter()
    .enumerate()
    {
        m.sh(script);
        wait_for(LONG, script, || bodies(&bed.store, "bar").len() == n + 1);
    }
    wait_for(LONG, "nothing stays", || m.ls("outbox").is_empty());
    assert_eq!(bodies(&bed.store, "bar")[0], "a\nb");
}
