//! Faults that pass: disks and descriptors that fail for a while, and leftovers of killed programs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::agz::names;
use crate::common::proc::Running;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, wait_for};
use crate::gone::{Kind, all};

const LONG: Duration = Duration::from_secs(100);

/// A guard that makes system calls of the daemon fail until [`Injected::end`].
struct Injected(Running);

impl Injected {
    #[track_caller]
    fn start(bed: &Bed, m: &Mount, calls: &str, how: &str, only: &[&str]) -> Self {
        let mut c = bed.command("strace");
        c.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        c.args(["-e", &format!("inject={calls}:{how}")]);
        for path in only {
            c.args(["-P", path]);
        }
        c.args(["-p", &m.pid().to_string()]);
        let tracer = Running::start(c, None).unwrap();
        m.wait_until_traced();
        Self(tracer)
    }

    fn end(self) {
        self.0.signal(rustix::process::Signal::INT);
        self.0.finish(Duration::from_secs(30)).unwrap();
    }
}

/// S171: an arrival that cannot be read now comes later, in every kind of store. The messages that were read
/// before stay, and no event is needed for the rest to come.
#[test]
fn s171_an_arrival_that_cannot_be_read_now() {
    for Kind { bed, deliver, .. } in all() {
        let file = deliver(1);
        let m = bed.mount("bar");
        wait_for(LONG, "the first is listed", || m.ls("inbox").len() == 1);
        let before = m.ls("inbox");
        // Putting the third message there and removing it again tells its path.
        let second = deliver(2);
        let is_log = second == file;
        wait_for(LONG, "the second is listed", || m.ls("inbox").len() == 2);
        let third = if is_log { file } else { deliver(3) };
        if !is_log {
            wait_for(LONG, "the third is listed", || m.ls("inbox").len() == 3);
            fs::remove_file(&third).unwrap();
            wait_for(LONG, "the third is gone", || m.ls("inbox").len() == 2);
        }
        let name = third.file_name().unwrap().to_str().unwrap();
        let only = [third.to_str().unwrap(), name];
        let injected = Injected::start(&bed, &m, "open,openat", "error=EIO", &only);
        deliver(3);
        wait_for(LONG, "status.txt tells the fault", || {
            m.cat("status.txt").contains("cannot be read")
        });
        let now = m.ls("inbox");
        assert!(before.iter().all(|name| now.contains(name)) && now.len() == 2, "{name}: {now:?}");
        injected.end();
        wait_for(LONG, "it is read by itself", || m.ls("inbox").len() == 3);
        wait_for(LONG, "status.txt tells nothing", || {
            !m.cat("status.txt").contains("cannot be read")
        });
        m.umount();
    }
}

/// Returns system calls and how they fail. `MSGFS_TEST_FAULTS=all` adds every number of calls that succeed before
/// one that does not.
fn table() -> Vec<(&'static str, String)> {
    let failing = [
        ("open,openat", &["EIO", "EMFILE", "EINTR"][..]),
        ("pread64", &["EIO", "EINTR"]),
        ("statx", &["EIO", "ENOMEM"]),
        ("getdents64", &["EIO"]),
        ("fsync", &["EINTR"]),
        ("stat,lstat,newfstatat,fstat", &["EIO", "ENOMEM"]),
        ("fdatasync", &["EINTR"]),
        ("write", &["EINTR"]),
        ("rename,renameat,renameat2", &["EINTR"]),
        ("unlink,unlinkat", &["EINTR"]),
        ("mkdir,mkdirat", &["EIO"]),
    ];
    let all = std::env::var("MSGFS_TEST_FAULTS").is_ok_and(|which| which == "all");
    let mut out = Vec::new();
    for (call, errors) in failing {
        for error in errors {
            let whens: &[&str] = if all { &["1", "2", "3", "4", "5", "1..8"] } else { &["1..2"] };
            out.extend(whens.iter().map(|when| (call, format!("error={error}:when={when}"))));
        }
    }
    out
}

/// Returns the number of records with this body in my log.
fn sent(bed: &Bed, body: &str) -> usize {
    crate::crash::bodies(bed).iter().filter(|b| *b == body).count()
}

/// S172: an arrival, a mark and a send end under each error of each call as they do without it.
#[test]
fn s172_while_mounted() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for (n, (call, how)) in (0i64..).zip(table()) {
        let old = samp::append(&bed.store, "foo", "bar", "t", &format!("old {n}"), T0 + 10 * n);
        wait_for(LONG, "the old one is listed", || m.ls("inbox").contains(&old.name(0)));
        let injected = Injected::start(&bed, &m, call, &how, &[]);
        let new = samp::append(&bed.store, "foo", "bar", "t", &format!("new {n}"), T0 + 10 * n + 1);
        let out = m.sh(&format!("/bin/echo 'mine {n}' > outbox/foo"));
        let read = m.sh(&format!("cat 'inbox/{}'", old.name(0)));
        injected.end();
        let what = format!("{call}:{how}");
        assert!(out.ok() || !how.contains("EINTR"), "{what}: {out:?}");
        wait_for(LONG, &format!("the new one is listed after {what}"), || {
            m.ls("inbox").contains(&new.name(0))
        });
        wait_for(LONG, &format!("the old one is marked after {what}"), || {
            !read.ok() || !m.ls("inbox").contains(&old.name(0))
        });
        let mine = format!("mine {n}");
        wait_for(LONG, &format!("it is sent after {what}"), || !out.ok() || sent(&bed, &mine) == 1);
        assert!(sent(&bed, &mine) <= 1, "{what}");
        m.ok("rm -f outbox/*");
        m.ok("rm -f inbox/*");
    }
    let listed = m.ls("archive/2026-04-24");
    assert_eq!(listed.len(), 2 * table().len(), "nothing is doubled or lost");
    m.umount();
    let again = bed.mount("bar");
    assert_eq!(again.ls("archive/2026-04-24"), listed);
    again.umount();
}

/// S172: the first index and its snapshot are made under each error of each call. The next index has everything
/// that this one could not read.
#[test]
fn s172_first_index() {
    for (call, how) in table() {
        let bed = Bed::new();
        for n in 0..3 {
            samp::append(&bed.store, "foo", "bar", "t", &format!("mail {n}"), T0 + n);
            samp::append(&bed.store, "zed", "bar", "u", &format!("mail {n}"), T0 + n);
        }
        // The fault is limited to these paths, so it does not hit the loading of the program.
        let mut c = bed.command("strace");
        c.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(&bed.store);
        c.arg("-P").arg(samp::log(&bed.store, "foo"));
        c.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{how}")]);
        c.arg(crate::common::binary()).args(["ls", "inbox", "--me", "bar"]);
        let _ = crate::common::run(c, None);
        let out = bed.msgfs_out(&["ls", "inbox", "--me", "bar"]);
        assert_eq!(out.stdout.lines().count(), 6, "{call}:{how}: {out:?}");
    }
}

/// S173: a torn line is found at the mount, and by `check` in any case.
#[test]
fn s173_torn_line() {
    let bed = Bed::new();
    bed.mount("bar").umount();
    let log = samp::log(&bed.store, "bar");
    let whole = samp::Rec::new("bar", "foo", "t", "whole", T0).line();
    let half = samp::Rec::new("bar", "foo", "t", "half", T0 + 1).line();
    let half = &half[..half.len() / 2];
    fs::write(&log, format!("{whole}{half}")).unwrap();
    let check = || bed.msgfs_out(&["check", "--me", "bar"]);
    let out = check();
    assert!(out.ok() && out.stdout.contains("log-bar.jsonl:2: torn: "), "{out:?}");
    let m = bed.mount("bar");
    assert_eq!(fs::read_to_string(&log).unwrap(), format!("{whole}{half}\n"));
    m.ok("echo next > outbox/foo");
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 1);
    assert_eq!(crate::crash::bodies(&bed), ["whole", "next"]);
    m.umount();
    let out = check();
    assert!(out.ok() && out.stdout.lines().count() == 1, "{out:?}");
    samp::append_raw(&log, "{\"v\": 1}\n");
    assert!(!check().ok());
}

/// Returns the temporary files of a folder, hidden ones included.
fn temps(dir: &Path) -> Vec<String> {
    names(dir).into_iter().filter(|name| name.rsplit('.').next() == Some("tmp")).collect()
}

/// S174: the leftovers of a killed msgfs are removed, and those of no other program.
#[test]
fn s174_leftovers() {
    let mut left = 0;
    for Kind { bed, dir, deliver } in all() {
        let folder = deliver(1).parent().unwrap().to_owned();
        let m = bed.mount("bar");
        wait_for(LONG, "the first is listed", || m.ls("inbox").len() == 1);
        // Only msgfs knows the names, so the test catches one by killing msgfs before it renames.
        let injected = Injected::start(&bed, &m, "rename,renameat,renameat2", "signal=KILL", &[]);
        let _ = m.sh("rm inbox/*; for n in 1 2 3; do echo x > threads/*/answer; sleep 0.2; done");
        drop(injected);
        m.kill9();
        let state = bed.state("bar");
        let folders = [dir.clone(), folder, state, bed.path("cache/msgfs/bar")];
        left += folders.iter().map(|f| temps(f).len()).sum::<usize>();
        fs::write(dir.join(".somebody.4194305.tmp"), "x").unwrap();
        let m = bed.mount("bar");
        wait_for(LONG, "what was left is removed", || {
            folders.iter().flat_map(|f| temps(f)).all(|name| !name.ends_with(".msgfs.tmp"))
        });
        assert!(dir.join(".somebody.4194305.tmp").exists());
        m.umount();
    }
    assert!(left > 0, "nothing was left, so nothing was tested");
}

/// S1212: if a mark cannot be saved, `rm` and `msgfs mark --all` fail with the system's error, and `status.txt` says
/// so. The mark is saved by itself when that is possible again.
#[test]
fn s1212_marks_that_cannot_be_saved() {
    let bed = Bed::new();
    let recs = [0, 1, 2].map(|n| samp::append(&bed.store, "foo", "bar", "t", "x", T0 + n));
    let m = bed.mount("bar");
    let (full, note) = ("No space left", "is not saved");
    let injected = Injected::start(&bed, &m, "pwrite64", "error=ENOSPC", &[]);
    let out = m.sh(&format!("rm inbox/{}", recs[0].name(0)));
    assert!(!out.ok() && out.stderr.contains(full), "{out:?}");
    let out = bed.msgfs_out(&["--me", "bar", "mark", "--all"]);
    assert!(out.code() == Some(1) && out.stderr.contains(full), "{out:?}");
    assert!(m.cat("status.txt").contains(note), "{}", m.cat("status.txt"));
    injected.end();
    wait_for(LONG, "they are saved", || !m.cat("status.txt").contains(note));
    m.kill9();
    assert_eq!(bed.mount("bar").ls("inbox"), [""; 0]);
}
