//! A normal user who mounts through fusermount3.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::agz::{self, Tree};
use crate::common::samp::{self, T0};
use crate::common::{Bed, Out, binary, need_root, run, soon};

const NOBODY: u32 = 65534;

/// A guard that opens /dev/fuse for everybody while it lives.
struct OpenFuse(u32);

impl OpenFuse {
    fn new() -> Self {
        let mode = fs::metadata("/dev/fuse").unwrap().mode() & 0o7777;
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        Self(mode)
    }
}

impl Drop for OpenFuse {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(self.0));
    }
}

fn give(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.is_dir() {
        for e in fs::read_dir(path).unwrap() {
            give(&e.unwrap().path());
        }
    }
}

/// Copies the program to where the user may run it. A child process copies it: a program that another test starts
/// meanwhile would inherit the file open for writing, and nobody can run such a file.
fn copy_program(bed: &Bed) -> PathBuf {
    let program = bed.path("msgfs");
    let copied = Command::new("install").args(["-m", "755"]).arg(binary()).arg(&program).status();
    assert!(copied.unwrap().success());
    program
}

/// S90, S11: the tree is the same, is owned by the user, is closed to root, and ends by `umount` and SIGTERM. If
/// /dev/fuse is closed, the error says what to do.
#[test]
fn s90_normal_user() {
    need_root();
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", "t", "hello", T0);
    let program = copy_program(&bed);
    give(&bed.path(""));
    let user = |args: &[&str]| {
        let mut c = bed.command("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
        c.args(args);
        c
    };
    // Without privileges to gain, fusermount3 cannot help. The refusal must be readable.
    let dir = bed.path("mnt-bar");
    let out = run(
        user(&[program.to_str().unwrap(), "mount", dir.to_str().unwrap(), "--me", "bar"]),
        None,
    );
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.len() > 20 && !out.stderr.contains("panicked"), "{out:?}");

    let fuse = OpenFuse::new();
    let user = |args: &[&str]| {
        let mut c = bed.command("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(args);
        c
    };
    let sh = |script: &str| -> Out {
        run(user(&["bash", "-c", &format!("cd {} && {script}", dir.display())]), None)
    };
    let mount =
        || user(&[program.to_str().unwrap(), "mount", dir.to_str().unwrap(), "--me", "bar"]);
    let m = bed.mount_by(mount(), &dir, "bar");
    let out = sh("ls inbox; stat -c '%u %a' inbox");
    assert_eq!(out.stdout, format!("{}\n{NOBODY} 700\n", r.name(0)), "{out:?}");
    assert!(!m.sh("ls").ok(), "root has no business in a user's mail");
    assert!(sh("cat inbox/* && echo answer > threads/t/answer && ls sent/*").ok());
    assert_eq!(samp::bodies(&bed.store, "bar"), ["answer"]);
    soon("it is marked", || sh("ls inbox").stdout.is_empty());
    let out = sh("echo x > inbox/new; echo y > README.txt; rm -f README.txt");
    assert!(!out.ok(), "{out:?}");
    let out = run(user(&[program.to_str().unwrap(), "umount", dir.to_str().unwrap()]), None);
    assert!(out.ok() && !crate::common::mounted(&dir), "{out:?}");
    drop(m);
    let m = bed.mount_by(mount(), &dir, "bar");
    m.signal(rustix::process::Signal::TERM);
    assert!(!crate::common::mounted(&dir));
    drop(m);
    // A normal user's next mount clears a dead mount of that user.
    bed.mount_by(mount(), &dir, "bar").kill9();
    let m = bed.mount_by(mount(), &dir, "bar");
    assert!(sh("ls sent").ok());
    drop(m);
    drop(fuse);
}

/// S289, S288: if my own mailbox cannot be written, a letter is refused at the close. If the recipient's mailbox
/// cannot be written, the letter waits in `sent/`, with a note about the reason beside it.
#[test]
fn s289_mailboxes_that_cannot_be_written() {
    need_root();
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let program = copy_program(&bed);
    let mine = tree.base().join(agz::today());
    let his = tree.mailbox("bob@localhost").join(agz::today());
    for folder in [mine.join("outbox"), mine.join("sent"), mine.join("inbox"), his.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    give(&bed.path(""));
    let mode = |folder: &Path, mode| {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    };
    let fuse = OpenFuse::new();
    let user = |args: &[&str]| {
        let mut c = bed.command("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(args);
        c
    };
    let dir = bed.path("mnt-bar");
    let mount = user(&[program.to_str().unwrap(), "mount", dir.to_str().unwrap(), "--me", "bar"]);
    let m = bed.mount_by(mount, &dir, "bar");
    let sh = |script: &str| -> Out {
        run(user(&["bash", "-c", &format!("cd {} && {script}", dir.display())]), None)
    };
    for folder in ["outbox", "sent"] {
        mode(&mine.join(folder), 0o555);
        let out = sh("echo hi | tee outbox/bob@localhost");
        assert!(!out.ok() && out.stderr.contains("Permission denied"), "{folder}: {out:?}");
        mode(&mine.join(folder), 0o755);
    }
    assert!(sh("cat outbox/bob@localhost.error; rm outbox/bob@localhost").ok());
    mode(&his, 0o555);
    let out = sh("echo hi | tee outbox/bob@localhost && ls outbox && cat sent/*/*.warning");
    assert!(out.ok() && out.stdout.contains("waits for bob@localhost"), "{out:?}");
    assert!(out.stdout.contains("Permission denied"), "{out:?}");
    mode(&his, 0o755);
    soon("it is delivered", || sh("! ls sent/*/*.warning").ok());
    assert_eq!(tree.list("bob@localhost", "inbox").len(), 1);
    assert_eq!(sh("ls sent/*").stdout.lines().count(), 1);
    drop(m);
    drop(fuse);
}

/// S1263, S1264: `doctor` is content with transcripts of somebody else, which are only read. Its remedy for a folder
/// that I cannot write takes over one of my home folder, and none that others may use.
#[test]
fn s1263_folders_of_others() {
    need_root();
    let bed = Bed::new();
    let program = copy_program(&bed);
    let (transcripts, shared, own) =
        (bed.path("theirs/.claude"), bed.path("shared"), bed.path("home/own"));
    let store = |kind: &str, name: &str, dir: &Path| {
        format!("[[store]]\nkind = \"{kind}\"\nname = \"{name}\"\ndir = {dir:?}\n")
    };
    let stores = [
        store("claude", "talks", &transcripts),
        store("samp", "shared", &shared),
        store("samp", "own", &own),
    ];
    bed.config(&stores.concat());
    give(&bed.path(""));
    for dir in [&transcripts.join("projects"), &transcripts, &shared, &own] {
        fs::create_dir_all(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut c = bed.command("setpriv");
    c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    c.arg(&program).args(["doctor", "--me", "bar"]);
    let out = run(c, None);
    let told = |name: &str| {
        let mut lines = out.stdout.lines();
        lines.find(|line| line.starts_with(&format!("the store {name} at "))).unwrap_or_default()
    };
    assert_eq!(told("talks"), "", "{out:?}");
    let held = "cannot be written (Permission denied); it belongs to the user 0 and has mode 755";
    assert!(told("shared").ends_with(held), "{out:?}");
    let mend = format!("; mend it with: sudo install -d -o 65534 -m 700 {}", own.display());
    assert!(told("own").ends_with(&mend), "{out:?}");
}
