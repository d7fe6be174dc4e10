//! Refusals: the errno, the moment, and the place of the reason afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::fixtures::{mounted_three, strs};
use crate::common::proc::Running;
use crate::common::samp::{self, bodies, read_log};
use crate::common::{Bed, Mount, Out, mounted, need_root, run, soon, wait_for};

const EINVAL: &str = "Invalid argument";
const EPERM: &str = "Operation not permitted";
const ENOENT: &str = "No such file or directory";

/// Checks that the script fails and prints this errno.
#[track_caller]
fn refused(m: &Mount, script: &str, errno: &str) -> Out {
    let out = m.sh(script);
    assert!(!out.ok() && out.stderr.contains(errno), "{script}: wanted {errno}, got {out:?}");
    out
}

/// S62: a bad name is refused at create, so that the builtin echo sees it.
#[test]
fn s62_bad_names() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let long = "a".repeat(65);
    for name in ["bad name", "sp\u{e9}cial", "a*b", "-dash", &long, "@", "a,b", "_x"] {
        refused(&m, &format!("echo hi > $'outbox/{name}'"), EINVAL);
    }
    assert_eq!(m.ls("outbox"), [""; 0], "nothing was created");
    m.ok(&format!("echo hi > outbox/{}", "a".repeat(64)));
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
}

/// S62: a bad header in a single write is refused at that write, so that the builtin sees it.
#[test]
fn s62_bad_headers() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for head in ["To: bad name", "To: bob, ../x", "Cc: -x", "To: b\\001b"] {
        refused(&m, &format!("printf '{head}\\n\\nbody\\n' > outbox/bob"), EINVAL);
        m.sh("rm -f outbox/*");
    }
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S63: each refusal has its own errno, which programs that check `close` see.
#[test]
fn s63_errnos() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    refused(&m, "printf 'To: \\n\\nbody\\n' | tee outbox/x", "Destination address required");
    let out = m.sh("printf 'Via: elsewhere\\n\\nbody\\n' | tee outbox/bob");
    let unreachable = ["No route to host", EINVAL].iter().any(|e| out.stderr.contains(e));
    assert!(!out.ok() && unreachable, "{out:?}");
    refused(&m, "printf 'caf\\351\\n' | tee outbox/bob", "Invalid or incomplete multibyte");
    m.ok("printf 'caf\\351\\n' > ../d");
    refused(&m, "cp ../d outbox/bob", "Invalid or incomplete multibyte");
    refused(&m, "printf 'Attach: /dev/null\\n\\nbody\\n' | tee outbox/bob", EINVAL);
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S63: the write that exceeds the limit fails, and the builtin printf sees it.
#[test]
fn s63_too_large() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    refused(&m, "head -c 17000000 /dev/zero | tr '\\0' a > outbox/bob", "File too large");
    assert!(read_log(&bed.store, "bar").is_empty());
    m.sh("rm -f outbox/*");
    m.ok("head -c 16000000 /dev/zero | tr '\\0' a > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar")[0].len(), 16_000_000);
}

/// S63: `max_message` moves the limit.
#[test]
fn s63_max_message() {
    let bed = Bed::new();
    bed.config("max_message = \"1 KiB\"\n");
    let m = bed.mount("bar");
    refused(&m, "printf '%02000d' 1 > outbox/bob", "File too large");
    m.ok("printf '%0900d' 1 > outbox/bob");
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
}

/// S64: everything outside the rules gives EPERM or ENOENT and changes nothing.
#[test]
fn s64_outside_the_rules() {
    let (bed, m, recs, names) = mounted_three();
    let (x, a) = (format!("inbox/{}", names[0]), recs[0].archived(0));
    for script in [
        "echo x > inbox/new".into(),
        "echo x > README.txt".into(),
        "echo x >> status.txt".into(),
        format!("echo x >> '{x}'"),
        format!("echo x > '{a}'"),
        format!("rm -f '{a}'"),
        format!("rm -f threads/plan/{}", names[0]),
        "rm -f README.txt".into(),
        "rm -f raw/samp/log-foo.jsonl".into(),
        "echo x >> raw/samp/log-foo.jsonl".into(),
        "mkdir inbox/folder".into(),
        "mkdir new".into(),
        "rmdir inbox".into(),
        "rmdir archive/2026-04-24".into(),
        "touch archive/new".into(),
        "touch newfile".into(),
        format!("ln '{x}' hard"),
        format!("ln -s '{x}' soft"),
        format!("mv '{x}' inbox/renamed.txt"),
        format!("mv '{a}' outbox/bob"),
        "mv README.txt outbox/bob".into(),
        "mkfifo outbox/fifo".into(),
        format!("chmod 777 '{a}'"),
        format!("truncate -s 0 '{a}'"),
        "mv threads/plan threads/other".into(),
    ] {
        refused(&m, &script, EPERM);
    }
    for script in [
        "cat nothing",
        "cat inbox/nothing.txt",
        "ls threads/nothing",
        "rm inbox/nothing.txt",
        "cat .x",
    ] {
        refused(&m, script, ENOENT);
    }
    m.inbox_stays(&strs(&names));
    assert!(read_log(&bed.store, "bar").is_empty());
    assert_eq!(read_log(&bed.store, "foo").len(), 2);
}

/// S64: a read-only mount shows everything, marks nothing and refuses drafts with EROFS.
#[test]
fn s64_read_only() {
    let bed = Bed::new();
    let recs = crate::common::fixtures::three(&bed);
    let names: Vec<_> = recs.iter().map(|r| r.name(0)).collect();
    let m = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    refused(&m, "echo hi > outbox/bob", "Read-only file system");
    m.ok("cat inbox/* > /dev/null");
    m.inbox_stays(&strs(&names));
    assert!(read_log(&bed.store, "bar").is_empty() && !bed.store.join(".seen-bar").exists());
}

/// S65: the refused draft stays with its reason, status.txt shows it, and writing it again sends it.
#[test]
fn s65_error_file() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    refused(&m, "printf 'caf\\351\\n' | tee outbox/bob", "multibyte");
    assert_eq!(m.ls("outbox"), ["bob", "bob.error"]);
    let why = m.cat("outbox/bob.error");
    assert!(why.contains("UTF-8") && why.ends_with('\n'), "{why}");
    assert_eq!(m.bytes("outbox/bob"), b"caf\xe9\n", "the text is not lost");
    let status = m.cat("status.txt");
    assert!(status.contains("bob") && status.contains("UTF-8"), "{status}");
    m.ok("echo mended > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["mended"]);
    soon("draft and error are gone", || m.ls("outbox").is_empty());
}

/// S65: `rm` discards a refused draft with its error. A remount does not retry a refused draft.
#[test]
fn s65_discard() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.sh("printf 'caf\\351\\n' > outbox/bob");
    soon("the refusal shows", || m.ls("outbox") == ["bob", "bob.error"]);
    m.umount();
    let m = bed.mount("bar");
    assert!(read_log(&bed.store, "bar").is_empty());
    m.sh("rm -f outbox/bob; rm -f outbox/bob.error");
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S65: `echo` of a shell cannot see an error of close, but the reason is in a file.
#[test]
fn s65_builtin_echo() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.sh("exec 3>outbox/bob; printf 'caf\\351' >&3; exec 3>&-");
    soon("the reason is there", || m.ls("outbox").contains(&"bob.error".to_owned()));
}

/// S66: a full disk under the store gives ENOSPC, and the draft is kept. Readers see no half record. When there is
/// room again, the next message is written whole.
#[test]
fn s66_disk_full() {
    need_root();
    let bed = Bed::new();
    let mut c = bed.command("mount");
    c.args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&bed.store);
    assert!(run(c, None).ok());
    let unmount = Unmount(bed.store.clone());
    samp::append(&bed.store, "foo", "bar", "t", "hello", samp::T0);
    let m = bed.mount("bar");
    let out = refused(
        &m,
        "head -c 200000 /dev/zero | tr '\\0' a | tee outbox/foo > /dev/null",
        "No space left",
    );
    let log = fs::read(samp::log(&bed.store, "bar")).unwrap_or_default();
    for line in log.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
        let whole = serde_json::from_slice::<serde_json::Value>(line).is_ok();
        assert!(whole, "half a record is in the log after {out:?}");
    }
    assert!(m.ls("outbox").contains(&"foo.error".to_owned()));
    m.sh("rm -f outbox/*");
    m.ok("echo small > outbox/foo");
    let text = fs::read_to_string(samp::log(&bed.store, "bar")).unwrap();
    assert!(text.lines().last().unwrap().contains("\"body\": \"small\""), "{text:.300}");
    assert_eq!(m.ls("sent").len(), 1);
    m.umount();
    drop(unmount);
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// S68: a refusal is a line in the log, without any control character of the draft.
#[test]
fn s68_log() {
    let bed = Bed::new();
    let dir = bed.path("fg");
    let mut c = bed.msgfs(["mount", "-f", "--me", "bar"]);
    c.arg(&dir);
    let daemon = Running::start(c, None).unwrap();
    wait_for(std::time::Duration::from_secs(10), "it mounts", || mounted(&dir));
    soon("it answers", || bed.sh(&format!("ls {}", dir.display())).ok());
    bed.sh(&format!("cd {}; echo x > outbox/$'bad\\e[31mname'; printf 'To: \\033[2J!\\n\\nx\\n' > outbox/bob; printf 'caf\\351' | tee outbox/carol", dir.display()));
    assert!(bed.msgfs_out(&["umount", dir.to_str().unwrap()]).ok());
    let out = daemon.finish(std::time::Duration::from_secs(10)).unwrap();
    assert!(out.ok(), "{out:?}");
    let said = out.said();
    assert!(said.contains("carol") && said.contains("UTF-8"), "{said}");
    assert!(!said.contains("\x1b[31mname") && !said.contains("\x1b[2J"), "{said:?}");
}

/// S70: the state folder stays private. The tests of ENOKEY are in `identity`.
#[test]
fn s70_state_is_private() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo x > outbox/bob");
    let mode = fs::metadata(bed.state("bar")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

/// S169: names of 256 bytes are refused in every folder and for every call. Names of 255 bytes are looked up.
#[test]
fn s169_names_too_long() {
    let (_bed, m, recs, names) = mounted_three();
    let long = "x".repeat(256);
    let archived = recs[0].archived(0);
    for folder in ["", "inbox/", "outbox/", "archive/", "threads/plan/", "raw/samp/", "rejected/"] {
        for call in [
            format!("stat {folder}{long}"),
            format!("touch {folder}{long}"),
            format!("mkdir {folder}{long}"),
            format!("rm {folder}{long}"),
            format!("rmdir {folder}{long}"),
            format!("python3 -c 'import os; os.rename(\"{archived}\", \"{folder}{long}\")'"),
        ] {
            let out = m.sh(&call);
            assert!(out.stderr.contains("File name too long"), "{call}: {out:?}");
        }
        let out = m.sh(&format!("stat {folder}{}", &long[1..]));
        assert!(out.stderr.contains("No such file"), "{out:?}");
    }
    m.inbox_becomes(&strs(&names));
}

/// S283: an empty draft has an `.error` that says so, wherever it was written, and sends nothing.
#[test]
fn s283_empty_texts() {
    let (bed, m, recs, _) = mounted_three();
    let reply = recs[0].archived(0).replace(".txt", ".reply");
    let name = reply.rsplit('/').next().unwrap();
    for (place, kept) in
        [("outbox/bob", "bob"), ("threads/plan/answer", "answer"), (reply.as_str(), name)]
    {
        m.ok(&format!(": > '{place}'"));
        let why = m.cat(&format!("outbox/{kept}.error"));
        assert!(why.contains("the text is empty"), "{place}: {why}");
        for script in
            ["echo", "printf 'To: bob\\n\\n'", "printf 'To: bob\\nSubject: x\\n---\\n\\n\\n'"]
        {
            // The builtin does not see the error of its close; tee does.
            m.ok(&format!("{script} > '{place}'"));
            refused(&m, &format!("{script} | tee '{place}'"), EINVAL);
            assert!(
                m.cat(&format!("outbox/{kept}.error")).contains("the text is empty"),
                "{script}"
            );
        }
        let out = m.sh(&format!(
            "{} --me bar write '{place}' < /dev/null",
            crate::common::binary().display()
        ));
        assert!(!out.ok() && out.stderr.contains("is empty"), "{place}: {out:?}");
    }
    refused(&m, "echo '[thread:zz]' | tee outbox/bob", EINVAL);
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("echo x > outbox/bob");
    assert!(!m.ls("outbox").contains(&"bob.error".to_owned()), "a text mends it");
    // Opening a kept draft without writing is no attempt to send it.
    m.ok("echo later > outbox/bob.tmp; : >> outbox/bob.tmp");
    assert_eq!(m.cat("outbox/bob.tmp"), "later\n");
}

/// S284: text right after a header block is refused at the write. A block without an end is refused at the close.
#[test]
fn s284_headers_without_an_empty_line() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    refused(&m, "printf 'To: bob\\nSubject: x\\ntext\\n' > outbox/x", EINVAL);
    assert!(m.cat("outbox/x.error").contains("leave an empty line"));
    // The same holds line by line: the third write fails.
    let out = m.sh("{ echo 'To: bob' && echo 'Subject: x' && echo text && echo more; } > outbox/x");
    assert!(out.stderr.matches(EINVAL).count() == 1 && !out.ok(), "{out:?}");
    refused(&m, "printf 'Subject: it failed\\n' | tee outbox/bob", EINVAL);
    assert!(m.cat("outbox/bob.error").contains("no empty line after it"));
    m.ok("printf 'Subject: it failed\\n' > outbox/bob");
    assert!(m.cat("outbox/bob.error").contains("no empty line after it"));
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("{ echo 'To: bob'; echo 'Subject: a'; echo ' b'; echo; echo text; } > outbox/x");
    assert_eq!(bodies(&bed.store, "bar"), ["text"]);
}

/// S384: blanks and NULs are no text, however they come. With attachments they are.
#[test]
fn s384_blank_texts() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for script in [
        "printf '  \\n\\t\\n'",
        "printf '\\302\\240\\n'",
        "head -c 5 /dev/zero",
        "printf 'Subject: x\\n\\n   \\n'",
    ] {
        refused(&m, &format!("{script} | tee outbox/bob"), EINVAL);
        assert!(m.cat("outbox/bob.error").contains("the text is empty"), "{script}");
        m.ok("rm outbox/*");
    }
    m.sh("truncate -s 5 outbox/bob");
    soon("it says why", || m.ls("outbox") == ["bob", "bob.error"]);
    assert!(m.cat("outbox/bob.error").contains("the text is empty"));
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("printf ' x \\n' > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar").len(), 1);
}

/// S385: the `.error` of an answer is also where the answer was written, under its name, and by the short name
/// too. It says where the text is, and is not listed there.
#[test]
fn s385_notes_beside_messages() {
    let (bed, m, recs, names) = mounted_three();
    let stem = names[0].trim_end_matches(".txt");
    let id = &recs[0].id[..8];
    let bad = "printf 'To: bad name\\n\\nx\\n'";
    for (answer, note) in [
        (format!("inbox/{stem}.reply"), format!("inbox/{id}.reply.error")),
        (format!("inbox/{id}.reply-all"), format!("inbox/{stem}.reply-all.error")),
        ("threads/plan/new".into(), "threads/plan/new.error".into()),
    ] {
        let folder = answer.rsplit_once('/').unwrap().0;
        let before = m.ls(folder);
        assert!(!m.sh(&format!("cat {note}")).ok());
        refused(&m, &format!("{bad} | tee {answer}"), EINVAL);
        let why = m.cat(&note);
        assert!(why.contains("bad name") && why.contains("is kept in outbox/"), "{note}: {why}");
        assert_eq!(m.ok(&format!("stat -c %s {note}")).trim(), why.len().to_string());
        assert_eq!(m.ls(folder), before);
        let place = why.rsplit("is kept in outbox/").next().unwrap().split(',').next().unwrap();
        assert_eq!(m.cat(&format!("outbox/{place}")), "To: bad name\n\nx\n");
        m.ok(&format!("rm {note}"));
        assert!(!m.sh(&format!("cat {note}")).ok());
        m.ok("rm -f outbox/*");
    }
    m.sh("echo x > 'outbox/bad' ; : > outbox/bob");
    refused(&m, "cat threads/plan/bob.error", ENOENT);
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
}

/// S390: an `.error` file stays with its draft: renaming it gives EPERM.
#[test]
fn s390_renaming_a_note() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok(": > outbox/bob");
    soon("there is a note", || m.ls("outbox") == ["bob", "bob.error"]);
    for to in ["outbox/bob.txt", "outbox/why", "outbox/bob", "outbox/x.error"] {
        refused(&m, &format!("mv outbox/bob.error {to}"), EPERM);
    }
    assert_eq!(m.ls("outbox"), ["bob", "bob.error"]);
    m.ok("mv outbox/bob.error ../why; grep -q 'text is empty' ../why");
}
