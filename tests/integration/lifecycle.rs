//! Mounting, unmounting, dying.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::fixtures::{mounted_three, strs, three};
use crate::common::proc::Running;
use crate::common::samp::{self, bodies};
use crate::common::{
    Bed, Mount, PATIENCE, alive, binary, detach, mounted, need_root, quote, run, run_for, soon,
};

/// S86: the command returns when the mount answers. It prints the folder, the name, its source, and the number of
/// unread messages. It holds no pipe open, so that `$(msgfs mount)` ends.
#[test]
fn s86_says() {
    let bed = Bed::new();
    three(&bed);
    let m = bed.mount("bar");
    assert!(m.said.contains(m.dir.to_str().unwrap()), "{}", m.said);
    assert!(m.said.contains("bar") && m.said.contains("--me"), "{}", m.said);
    assert!(m.said.contains('3'), "three are unread: {}", m.said);
    m.umount();
    let dir = bed.path("mnt-bar");
    let mut c = bed.command("bash");
    c.args(["-c", "x=$(\"$0\" mount \"$1\" --me bar 2>&1) && ls \"$1/inbox\" | wc -l"]);
    c.arg(crate::common::binary()).arg(&dir);
    let m = bed.mount_by(c, &dir, "bar");
    assert!(m.said.contains('3'), "{}", m.said);
}

/// S86: without arguments there are `~/mail`, the SAMP store at its default place, and me from the folder. Folders
/// and key are made.
#[test]
fn s86_defaults() {
    let mut bed = Bed::new();
    bed.env.push(("AGENT_MESSAGE_DIR".into(), "".into()));
    fs::create_dir(bed.path("cwd/worker-7")).unwrap();
    let mut c = bed.msgfs(["mount"]);
    c.current_dir(bed.path("cwd/worker-7"));
    let mail = bed.path("home/mail");
    let m = bed.mount_by(c, &mail, "worker-7");
    assert!(m.said.contains("worker-7"), "{}", m.said);
    m.ok("echo hi > outbox/bob");
    let store = bed.path("state/agent-message");
    assert_eq!(bodies(&store, "worker-7"), ["hi"], "an empty AGENT_MESSAGE_DIR counts as unset");
}

/// S86: `-f` stays in the foreground until the mount ends.
#[test]
fn s86_foreground() {
    let bed = Bed::new();
    let dir = bed.path("fg");
    let mut c = bed.msgfs(["mount", "-f", "--me", "bar"]);
    c.arg(&dir);
    let mut daemon = Running::start(c, None).unwrap();
    soon("it mounts", || mounted(&dir));
    assert!(daemon.running());
    daemon.signal(Signal::INT);
    let out = daemon.finish(PATIENCE).unwrap();
    detach(&dir);
    assert!(out.ok(), "Ctrl-C is a proper end: {out:?}");
}

/// S87: a missing mount point is made. A mount point that is full, mounted, a file or above a store is refused
/// with the reason.
#[test]
fn s87_mount_points() {
    let bed = Bed::new();
    let m = bed.mount_at(&bed.path("a/b/c"), "bar", &[]);
    m.ok("ls inbox");
    let refuse = |dir: &std::path::Path, me: &str, word: &str| {
        let out = bed.msgfs_out(&["mount", dir.to_str().unwrap(), "--me", me]);
        if out.ok() {
            detach(dir);
        }
        assert_eq!(out.code(), Some(1), "{out:?}");
        assert!(out.stderr.contains(word), "wanted {word}: {out:?}");
    };
    refuse(&bed.path("a/b/c"), "other", "mounted");
    fs::create_dir(bed.path("full")).unwrap();
    fs::write(bed.path("full/x"), "").unwrap();
    refuse(&bed.path("full"), "other", "empty");
    fs::write(bed.path("file"), "").unwrap();
    refuse(&bed.path("file"), "other", "file");
    m.ok("ls inbox");
}

/// S87: neither the store nor its state may be below the mount point, also through a symlink.
#[test]
fn s87_store_below() {
    let mut bed = Bed::new();
    let dir = bed.path("mail");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&dir, bed.path("link")).unwrap();
    for store in ["mail", "link", "mail/store", "link/store"] {
        bed.env = vec![("AGENT_MESSAGE_DIR".into(), bed.path(store).into())];
        let out = run_for(
            bed.msgfs(["mount", dir.to_str().unwrap(), "--me", "bar"]),
            None,
            Duration::from_secs(10),
        );
        if out.ok() {
            detach(&dir);
        }
        assert_eq!(out.code(), Some(1), "{store}: {out:?}");
        assert!(out.stderr.contains("store"), "{store}: {out:?}");
        let _ = fs::remove_dir(bed.path("mail/store"));
    }
}

/// S88: SIGTERM and SIGINT unmount, finish the sending, and leave an empty folder.
#[test]
fn s88_signals() {
    for signal in [Signal::TERM, Signal::INT] {
        let bed = Bed::new();
        let m = bed.mount("bar");
        m.ok("echo hi > outbox/foo");
        m.signal(signal);
        assert!(!mounted(&m.dir), "{signal:?}");
        assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 0);
        assert_eq!(bodies(&bed.store, "bar"), ["hi"]);
    }
}

/// S88: `msgfs umount` ends mount and daemon. On a folder that is not mounted it exits with 1.
#[test]
fn s88_umount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let (dir, pid) = (m.dir.clone(), rustix::process::Pid::from_raw(m.pid()).unwrap());
    m.umount();
    soon("the daemon is gone", || !alive(pid));
    let out = bed.msgfs_out(&["umount", dir.to_str().unwrap()]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    // It works again at once, ten times.
    for _ in 0..10 {
        bed.mount("bar").umount();
    }
}

/// S88: if a process stands in the mount, `umount` either says so and everything goes on, or detaches. `--lazy`
/// detaches. No dead mount is ever left.
#[test]
fn s88_busy() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut c = bed.command("sleep");
    c.arg("30").current_dir(m.path("inbox"));
    let shell = Running::start(c, None).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let out = bed.msgfs_out(&["umount", m.dir.to_str().unwrap()]);
    if out.ok() {
        assert!(!mounted(&m.dir));
    } else {
        assert_eq!(out.code(), Some(1));
        assert!(out.stderr.contains("busy") || out.stderr.contains("use"), "{out:?}");
        m.ok("ls inbox");
        let out = bed.msgfs_out(&["umount", "--lazy", m.dir.to_str().unwrap()]);
        assert!(out.ok() && !mounted(&m.dir), "{out:?}");
    }
    assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 0);
    drop(shell);
    bed.mount_at(&bed.path("again"), "bar", &[]).umount();
}

/// S168: the error names the process that stands in the mount and a command that works. The refusal of a new mount
/// after the old one was detached names a command that works, too.
#[test]
fn s168_busy_says_who_and_what_to_type() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let dir = m.dir.to_str().unwrap().to_owned();
    let mut c = bed.command("sleep");
    c.arg("600").current_dir(m.path("inbox"));
    let mut user = Running::start(c, None).unwrap();
    soon("the mount is in use", || {
        let out = bed.msgfs_out(&["umount", &dir]);
        assert_eq!(out.code(), Some(1), "{out:?}");
        out.stderr.contains("sleep (") && out.stderr.contains(&format!("umount --lazy {dir}"))
    });
    let out = bed.msgfs_out(&["umount", "--lazy", &dir]);
    assert!(out.ok() && out.said().contains("sleep ("), "{out:?}");
    assert!(out.said().contains(&format!("msgfs umount {dir}")), "{out:?}");
    let elsewhere = bed.path("elsewhere");
    let again = ["mount", "--me", "bar", elsewhere.to_str().unwrap()];
    let out = bed.msgfs_out(&again);
    assert!(!out.ok() && out.stderr.contains(&format!("msgfs umount {dir}")), "{out:?}");
    let out = bed.msgfs_out(&["umount", &dir]);
    assert!(out.ok(), "{out:?}");
    assert!(user.running());
    bed.mount_at(&elsewhere, "bar", &[]).umount();
}

/// S168: the end of a detached mount does not touch a mount that has taken its place.
#[test]
fn s168_a_detached_mount_does_not_end_its_successor() {
    let bed = Bed::new();
    let (m, _user) = detached(&bed, "bar");
    let other = bed.mount_at(&m.dir, "carol", &[]);
    m.signal(Signal::TERM);
    assert!(mounted(&other.dir));
    other.ok("ls inbox");
    other.umount();
}

/// Mounts on `<bed>/mail`, and detaches the mount while a program uses it.
fn detached(bed: &Bed, me: &str) -> (Mount, Running) {
    let m = bed.mount_at(&bed.path("mail"), me, &[]);
    let mut c = bed.command("sleep");
    c.arg("600").current_dir(m.path("inbox"));
    let user = Running::start(c, None).unwrap();
    soon("the mount is in use", || !bed.msgfs_out(&["umount", m.dir.to_str().unwrap()]).ok());
    assert!(bed.msgfs_out(&["umount", "--lazy", m.dir.to_str().unwrap()]).ok());
    (m, user)
}

/// S1244: a command acts for its name, also if another mount has taken the folder of that name's detached mount.
#[test]
fn s1244_a_command_never_uses_the_mount_of_another() {
    let bed = Bed::new();
    let (m, _user) = detached(&bed, "bar");
    let other = bed.mount_at(&m.dir, "carol", &[]);
    let out = bed.msgfs_out(&["send", "--me", "bar", "bob", "hi"]);
    assert!(out.ok(), "{out:?}");
    assert_eq!(bodies(&bed.store, "bar"), ["hi"]);
    assert_eq!(bodies(&bed.store, "carol"), [""; 0]);
    other.umount();
}

/// S1245: in a folder that had other mounts before, which still run, the mount gives its own name, and `msgfs umount`
/// waits for its own msgfs.
#[test]
fn s1245_a_folder_that_detached_mounts_had() {
    let bed = Bed::new();
    let before = ["bar", "dan"].map(|me| detached(&bed, me));
    let m = bed.mount_at(&bed.path("mail"), "carol", &[]);
    let status = m.ok(&format!("{} status", quote(&crate::common::binary())));
    assert!(status.contains("me: carol\n"), "{status}");
    let pid = rustix::process::Pid::from_raw(m.pid()).unwrap();
    m.umount();
    soon("the daemon is gone", || !alive(pid));
    for (m, _) in &before {
        assert!(alive(rustix::process::Pid::from_raw(m.pid()).unwrap()));
    }
}

/// S1246: of two mounts that begin together on one folder, one is refused. No lock file is left there.
#[test]
fn s1246_two_mounts_that_begin_together() {
    let bed = Bed::new();
    let dir = bed.path("mail");
    fs::create_dir(&dir).unwrap();
    // Both check the folder before either mounts.
    let folder = fs::File::open(&dir).unwrap();
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mail = dir.to_str().unwrap();
    let both = ["alice", "bob"]
        .map(|me| Running::start(bed.msgfs(["mount", "--me", me, mail]), None).unwrap());
    let has_checked = |me: &&str| {
        let lock = fs::read_to_string(bed.state(me).join("lock"));
        lock.is_ok_and(|lock| lock.contains("/mail\""))
    };
    soon("both have checked it", || ["alice", "bob"].iter().all(has_checked));
    assert!(!mounted(&dir));
    drop(folder);
    let outs = both.map(|mount| mount.finish(PATIENCE).unwrap());
    let refused: Vec<_> = outs.iter().filter(|out| !out.ok()).collect();
    assert_eq!(refused.len(), 1, "{outs:?}");
    assert!(refused[0].stderr.contains("is mounted already"), "{outs:?}");
    let out = bed.msgfs_out(&["umount", mail]);
    assert!(out.ok() && !mounted(&dir), "one mount was there: {out:?}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// S168: if a sandbox still has a mount, the error names the mount and the sandbox, and a second command ends it.
#[test]
fn s168_a_mount_that_a_sandbox_still_has() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let dir = m.dir.to_str().unwrap().to_owned();
    let mut c = bed.command("unshare");
    // The mounts of other tests end in the sandbox at once, because it must not keep them.
    let alone = "findmnt -rn -o TARGET -t fuse.msgfs,fuse | grep -vxF \"$0\" | xargs -rd'\\n' -n1 umount -l; exec sleep 600";
    c.args(["-m", "--propagation", "private", "sh", "-c", alone, &dir]);
    let mut sandbox = Running::start(c, None).unwrap();
    let pid = sandbox.pid();
    soon("the sandbox runs", || {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    let out = bed.msgfs_out(&["umount", &dir]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.contains(&format!("sleep ({pid}, mount)")), "{out:?}");
    assert!(out.stderr.contains(&format!("msgfs umount {dir}")), "{out:?}");
    assert!(!mounted(&m.dir));
    let out = bed.msgfs_out(&["umount", &dir]);
    assert!(out.ok(), "{out:?}");
    assert!(sandbox.running());
    bed.mount_at(&m.dir, "bar", &[]).umount();
}

/// S88: SIGTERM while a process stands in the mount ends the daemon and leaves no dead mount.
#[test]
fn s88_busy_sigterm() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut c = bed.command("sleep");
    c.arg("30").current_dir(m.path("inbox"));
    let _shell = Running::start(c, None).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    m.signal(Signal::TERM);
    assert!(!mounted(&m.dir));
    assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 0);
}

/// S88: if the writer of an open draft did not ask for the unmount, half of the draft is not sent. The daemon ends
/// although the file is open.
#[test]
fn s88_open_draft() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut c = bed.command("bash");
    c.args(["-c", "exec 3>outbox/foo; echo half >&3; sleep 30"]).current_dir(&m.dir);
    let _writer = Running::start(c, None).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    m.signal(Signal::TERM);
    assert!(!mounted(&m.dir));
    let m = bed.mount("bar");
    assert!(bodies(&bed.store, "bar").len() <= 1);
    m.ok("echo whole > outbox/foo");
    assert!(bodies(&bed.store, "bar").contains(&"whole".to_owned()));
}

/// S89: after `kill -9` the mount point is dead, and the next mount of the same folder works.
#[test]
fn s89_stale_mount() {
    let (bed, m, _, names) = mounted_three();
    let dir = m.dir.clone();
    m.kill9();
    // While the process ends, the kernel says that the connection was aborted.
    soon("the mount is dead", || {
        let out = bed.sh(&format!("ls {}", dir.display()));
        assert!(!out.ok(), "{out:?}");
        out.stderr.contains("Transport endpoint is not connected")
    });
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), names);
    m.umount();
    assert!(!mounted(&dir), "no dead mount is left underneath");
}

/// S89: `msgfs umount` clears a dead mount too, and another folder can be mounted instead.
#[test]
fn s89_umount_stale() {
    let (bed, m, _, names) = mounted_three();
    let dir = m.dir.clone();
    m.kill9();
    let elsewhere = bed.mount_at(&bed.path("elsewhere"), "bar", &[]);
    assert_eq!(elsewhere.ls("inbox"), names);
    let out = bed.msgfs_out(&["umount", dir.to_str().unwrap()]);
    assert!(out.ok() && !mounted(&dir), "{out:?}");
    elsewhere.inbox_stays(&strs(&names));
}

/// S89: a shell that stands in the dead mount does not prevent the next one.
#[test]
fn s89_stale_and_busy() {
    let (bed, m, _, names) = mounted_three();
    let mut c = bed.command("sleep");
    c.arg("30").current_dir(m.path("inbox"));
    let _shell = Running::start(c, None).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    m.kill9();
    assert_eq!(bed.mount("bar").ls("inbox"), names);
}

/// S1261: the last command of the units detaches the mount of a msgfs that was killed. After a start that was refused
/// it leaves the mount that was in the way alone.
#[test]
fn s1261_the_last_command_of_the_units() {
    for (unit, folder) in [("msgfs.service", "mail"), ("msgfs@.service", "mail-foo")] {
        let bed = Bed::new();
        let home = bed.path("home");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts").join(unit);
        let text = fs::read_to_string(file).unwrap();
        let command = text.lines().find_map(|line| line.strip_prefix("ExecStopPost=-")).unwrap();
        let command = command.replace("%h", home.to_str().unwrap()).replace("%i", "foo");
        // Here in the words of a shell.
        let command = command.replace("$$", "$");
        let end = |code: &str| {
            let mut c = bed.command("sh");
            c.args(["-c", &command]).env("EXIT_CODE", code);
            run(c, None)
        };
        let m = bed.mount_at(&home.join(folder), "foo", &[]);
        let dir = m.dir.clone();
        let out = end("exited");
        assert!(out.ok() && mounted(&dir), "{unit}: {out:?}");
        m.kill9();
        assert!(mounted(&dir));
        let out = end("killed");
        assert!(out.ok() && !mounted(&dir), "{unit}: {out:?}");
    }
}

/// S1262: mount(8)'s helper mounts each line of the example for /etc/fstab, and none of them lets systemd mount there
/// first.
#[test]
fn s1262_lines_of_fstab() {
    need_root();
    let bed = Bed::new();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts");
    let (home, programs) = (bed.path("home"), bed.path("home/.local/bin"));
    fs::create_dir_all(&programs).unwrap();
    symlink(binary(), programs.join("msgfs")).unwrap();
    fs::write(home.join("second.toml"), "me = \"anna\"\n").unwrap();
    let text = fs::read_to_string(scripts.join("fstab.example")).unwrap();
    let text = text.replace("/home/anna", home.to_str().unwrap()).replace("setuid=anna,", "");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [source, folder, kind, options, "0", "0"] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        assert!(kind == "fuse.msgfs" && !options.contains("automount"), "{line}");
        let dir = home.join(Path::new(folder).file_name().unwrap());
        let mut c = bed.command(scripts.join("mount.fuse.msgfs"));
        c.args([source, dir.to_str().unwrap(), "-o", options]);
        let m = bed.mount_by(c, &dir, "anna");
        assert!(m.cat("status.txt").contains("anna"), "{line}");
    }
}

/// S75, S89: a lock file whose process is gone, or whose pid belongs to another process, blocks nothing.
#[test]
fn s89_stale_lock() {
    let bed = Bed::new();
    bed.mount("bar").umount();
    let lock = bed.state("bar").join("lock");
    let ours = std::process::id();
    fs::write(&lock, format!("{{\"pid\": {ours}, \"mountpoint\": \"/nowhere\"}}")).unwrap();
    bed.mount("bar").ok("ls inbox");
    fs::write(&lock, "garbage").unwrap();
    bed.mount_at(&bed.path("again"), "bar", &[]).ok("ls inbox");
}

/// S88: two mounts for two identities on one store do not disturb each other.
#[test]
fn s88_two_identities() {
    let bed = Bed::new();
    let (a, b) = (bed.mount("alice"), bed.mount("bob"));
    a.ok("echo one > outbox/bob");
    soon("it arrives", || b.ls("inbox").len() == 1);
    a.umount();
    b.ok("cat inbox/*; echo two > outbox/alice");
    let a = bed.mount("alice");
    assert_eq!(a.ls("inbox").len(), 1);
}

/// S35, S88: a proper end is quick, and its cache can be deleted.
#[test]
fn s88_cache_is_disposable() {
    let (bed, m, _, names) = mounted_three();
    m.umount();
    for damage in ["remove", "garbage", "truncate"] {
        let mut c = bed.command("bash");
        c.args(["-c", match damage {
            "remove" => "rm -rf \"$XDG_CACHE_HOME\"/*",
            "garbage" => "find \"$XDG_CACHE_HOME\" -type f -exec sh -c 'head -c 300 /dev/urandom > \"$1\"' - {} \\;",
            _ => "find \"$XDG_CACHE_HOME\" -type f -exec sh -c 'truncate -s $(($(stat -c %s \"$1\") / 2)) \"$1\"' - {} \\;",
        }]);
        assert!(run(c, None).ok());
        let new = samp::append(&bed.store, "zed", "zed", "t", damage, samp::T0);
        let m = bed.mount("bar");
        assert_eq!(m.ls("inbox"), names, "{damage} {}", new.id);
        m.umount();
    }
}
