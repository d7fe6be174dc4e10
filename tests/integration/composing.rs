//! Composing folders: a message and its files, put together in any order.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::agentazall::with;
use crate::common::agz::{ME, Tree, names};
use crate::common::samp;
use crate::common::{Bed, Mount, soon};

const BOB: &str = "bob@localhost";

fn mounted() -> (Bed, Tree, Mount) {
    with(|_, tree| fs::create_dir_all(tree.mailbox(BOB)).unwrap())
}

/// Returns the folder of the files that came with bob's only message.
#[track_caller]
fn delivered(tree: &Tree) -> PathBuf {
    tree.only(BOB, "inbox").0.with_extension("")
}

/// Checks that nothing was sent, and that the error file says why.
#[track_caller]
fn refused(m: &Mount, tree: &Tree, words: &str) {
    soon("it says why", || m.ls("outbox").contains(&format!("{BOB}.error")));
    let why = m.cat(&format!("outbox/{BOB}.error"));
    assert!(why.contains(words), "{why}");
    assert_eq!((tree.list(BOB, "inbox"), tree.list(ME, "outbox")), (vec![], vec![]));
}

/// S290: `rsync -a` and `cp -a` copy a whole folder whose text comes before its files. They end with 0 and send
/// one message with all of them.
#[test]
fn s290_the_text_may_come_before_the_files() {
    for copy in ["rsync -a ../msg/ outbox/bob@localhost/", "cp -a ../msg outbox/bob@localhost"] {
        let (bed, tree, m) = mounted();
        fs::create_dir(bed.path("msg")).unwrap();
        for (name, text) in [("body", "see files\n"), ("plan.txt", "plan\n"), ("zeta", "z\n")] {
            fs::write(bed.path("msg").join(name), text).unwrap();
        }
        let out = m.sh(&format!("{copy}; echo $?; ls sent/{}", samp::today()));
        assert!(out.stdout.starts_with("0\n"), "{copy}: {out:?}");
        assert!(out.stdout.contains(".txt"), "who has closed sees: {out:?}");
        soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
        let dir = delivered(&tree);
        assert_eq!(names(&dir), ["plan.txt", "zeta"], "{copy}");
        assert_eq!(fs::read_to_string(dir.join("plan.txt")).unwrap(), "plan\n");
        assert_eq!(m.ls("outbox"), [""; 0]);
    }
}

/// S290: msgfs waits for a file that is still open.
#[test]
fn s290_an_open_file_is_waited_for() {
    let (_bed, tree, m) = mounted();
    m.ok("mkdir outbox/bob@localhost; cd outbox/bob@localhost
         exec 3> late; echo one >&3; echo 'see file' > body
         sleep 1.5; test -e body; echo two >&3; exec 3>&-");
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(fs::read_to_string(delivered(&tree).join("late")).unwrap(), "one\ntwo\n");
}

/// S291: a file may be larger than a text, and is not held in memory.
#[test]
fn s291_large_files() {
    let (bed, tree, m) = mounted();
    let peak = |m: &Mount| -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let size = 96 << 20;
    let file = fs::File::create(bed.path("big")).unwrap();
    file.set_len(size).unwrap();
    let before = peak(&m);
    m.ok("mkdir outbox/bob@localhost; cat ../big | tee outbox/bob@localhost/big | wc -c");
    m.ok("echo 'see file' | tee outbox/bob@localhost/body");
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(fs::metadata(delivered(&tree).join("big")).unwrap().len(), size);
    assert!(peak(&m) - before < 48 << 10, "{before} kB, then {} kB", peak(&m));
}

/// S292: the message is refused if it has a file with a private name, or a file whose writer was killed. The error
/// names the file. All files stay, and the message is sent when the cause is mended.
#[test]
fn s292_files_that_cannot_go_along_are_named() {
    for (bad, mend) in [(".env", "rm .env"), ("x.part", "mv x.part x"), ("n~", "rm n~")] {
        let (_bed, tree, m) = mounted();
        m.ok(&format!("mkdir outbox/{BOB}; cd outbox/{BOB}; echo a > a; echo b > '{bad}'"));
        m.ok(&format!("echo hi > outbox/{BOB}/body"));
        refused(&m, &tree, &format!("the file {bad} has the name of a private draft"));
        // A program that looks at the error of the close gets it there, unless the file is still being written.
        let out = m.sh(&format!("sleep 1; echo hi | tee outbox/{BOB}/body"));
        assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
        assert_eq!(m.cat(&format!("outbox/{BOB}/{bad}")), "b\n", "nothing is lost");
        m.ok(&format!("cd outbox/{BOB}; {mend}"));
        soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
        assert_eq!(m.ls("outbox"), [""; 0]);
    }
    let (_bed, tree, m) = mounted();
    m.sh(&format!(
        "mkdir outbox/{BOB}; sh -c 'echo half; kill -9 $$' > outbox/{BOB}/data; echo hi > outbox/{BOB}/body"
    ));
    refused(
        &m,
        &tree,
        "the file data is not whole: the program that wrote it was ended by signal 9",
    );
    m.ok(&format!("echo whole > outbox/{BOB}/data; echo hi > outbox/{BOB}/body"));
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(fs::read_to_string(delivered(&tree).join("data")).unwrap(), "whole\n");
}

/// S293: a composing folder outlives a remount and a kill. The next mount sends an accepted message once. A file
/// that was being written does not count as whole.
#[test]
fn s293_folders_outlive_the_mount() {
    let (bed, tree, m) = mounted();
    m.ok("mkdir outbox/bob@localhost; echo kept > outbox/bob@localhost/a");
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.cat("outbox/bob@localhost/a"), "kept\n");
    m.ok("echo hi > outbox/bob@localhost/body");
    m.kill9();
    let m = bed.mount("bar");
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(names(&delivered(&tree)), ["a"]);
    soon("the folder is gone", || m.ls("outbox").is_empty());
    // An accepted message meets a file that was cut off.
    m.ok("mkdir outbox/bob@localhost");
    let cut = fs::File::create(m.path("outbox/bob@localhost/cut")).unwrap();
    std::io::Write::write_all(&mut &cut, b"half").unwrap();
    m.ok("echo again > outbox/bob@localhost/body");
    m.kill9();
    drop(cut);
    let m = bed.mount("bar");
    soon("it says why", || m.ls("outbox").contains(&format!("{BOB}.error")));
    assert!(m.cat(&format!("outbox/{BOB}.error")).contains("the file cut is not whole"));
    m.umount();
    let m = bed.mount("bar");
    assert!(m.cat(&format!("outbox/{BOB}.error")).contains("the file cut is not whole"));
    m.ok("cd outbox/bob@localhost; rm cut; echo again > body");
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 2);
}

/// S290: a folder that is put together under a private name is sent when it gets its own name.
#[test]
fn s290_a_folder_under_a_private_name() {
    let (_bed, tree, m) = mounted();
    m.ok(
        "mkdir outbox/new.tmp; echo a > outbox/new.tmp/a; echo hi > outbox/new.tmp/body; sleep 1.5",
    );
    assert_eq!(tree.list(BOB, "inbox"), []);
    m.ok("mv outbox/new.tmp outbox/bob@localhost");
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
    assert_eq!(names(&delivered(&tree)), ["a"]);
}

/// S386: a refused folder is tried again when the file that was the reason is gone, has another name, or was
/// written again.
#[test]
fn s386_the_cause_is_removed() {
    let (_bed, tree, m) = mounted();
    for (n, mend) in
        ["rm bad.part", "mv bad.part good", "rm bad.part; echo x > other"].iter().enumerate()
    {
        m.ok("mkdir outbox/bob@localhost; cd outbox/bob@localhost; echo a > bad.part; sleep 1.2
             echo hi > body || true");
        soon("it says why", || m.ls("outbox").contains(&format!("{BOB}.error")));
        assert!(m.cat(&format!("outbox/{BOB}.error")).contains("bad.part"));
        m.ok(&format!("cd outbox/bob@localhost; {mend}"));
        soon("it is delivered", || tree.list(BOB, "inbox").len() == n + 1);
        soon("nothing stays", || m.ls("outbox").is_empty());
    }
    // A folder that is thrown away as a whole is not sent on its way out.
    m.ok("mkdir outbox/bob@localhost; cd outbox/bob@localhost; echo a > bad.part; sleep 1.2
         echo hi > body || true");
    soon("it says why", || m.ls("outbox").contains(&format!("{BOB}.error")));
    m.ok("rm outbox/bob@localhost/bad.part; rm -r outbox/bob@localhost; sleep 1.5");
    assert_eq!((m.ls("outbox"), tree.list(BOB, "inbox").len()), (vec![], 3));
}

/// S386: a text whose writer was killed stays half, whatever happens to the files beside it.
#[test]
fn s386_half_a_text_is_not_sent() {
    let (_bed, tree, m) = mounted();
    m.ok("mkdir outbox/bob@localhost; cd outbox/bob@localhost; echo a > a
         bash -c 'echo half; kill -9 $$' > body || true");
    soon("it says why", || m.ls("outbox").contains(&format!("{BOB}.error")));
    m.ok("rm outbox/bob@localhost/a; sleep 1.5");
    assert_eq!(tree.list(BOB, "inbox"), []);
    let why = m.cat(&format!("outbox/{BOB}.error"));
    let how = why.rsplit("send what is here: ").next().unwrap();
    m.ok(how);
    soon("it is delivered", || tree.list(BOB, "inbox").len() == 1);
}

/// S387: a file that no store carries gives EFBIG at the write. The message is sent once the file is gone.
#[test]
fn s387_too_large_at_the_write() {
    let bed = Bed::new();
    let home = crate::common::amp::Home::new(&bed);
    bed.config(&home.store());
    let file = fs::File::create(bed.path("big")).unwrap();
    file.set_len((25 << 20) + 1).unwrap();
    let m = bed.mount("bar");
    m.ok("mkdir outbox/alice");
    let out = m.sh("cp ../big outbox/alice/big");
    assert!(!out.ok() && out.stderr.contains("File too large"), "{out:?}");
    let out = m.sh("truncate -s 26M outbox/alice/other");
    assert!(!out.ok() && out.stderr.contains("File too large"), "{out:?}");
    m.sh("sleep 1.2; printf 'Subject: x\\n\\nsee files\\n' > outbox/alice/body");
    soon("it says why", || m.ls("outbox").contains(&"alice.error".to_owned()));
    assert!(m.cat("outbox/alice.error").contains("at most 26214400 bytes"));
    m.ok("rm outbox/alice/big outbox/alice/other; echo fits > outbox/alice/small");
    soon("it is delivered", || home.list("alice", "inbox").len() == 1);
    soon("nothing stays", || m.ls("outbox").is_empty());
}

/// S1223: the mtime of `outbox/` is that of a composing folder, if nothing there is newer.
#[test]
fn s1223_time_of_the_outbox() {
    let (_bed, _tree, m) = mounted();
    let mtime = |path: &str| {
        let found = fs::metadata(m.path(path)).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    m.ok("mkdir outbox/bob@localhost");
    let made = mtime("outbox/bob@localhost");
    assert!(made.0 > samp::T0, "{made:?}");
    soon("it counts", || mtime("outbox") == made);
    m.ok("echo a > outbox/bob@localhost/a");
    soon("its files count", || {
        let changed = mtime("outbox/bob@localhost");
        changed > made && mtime("outbox") == changed
    });
}
