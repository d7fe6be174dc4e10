//! Access to the files that msgfs keeps, and the effect of its output on a terminal and its reader.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Duration;

use crate::common::samp::{self, T0};
use crate::common::{Bed, need_root, run, wait_for};

const NOBODY: u32 = 65534;

/// S192: msgfs refuses a state folder that others can write to, also if they can write to the folder above it. It
/// refuses files that somebody else put into it. The error names the command that mends it.
#[test]
fn s192_state_that_others_can_change() {
    need_root();
    let bed = Bed::new();
    bed.mount("bar").umount();
    let state = bed.state("bar");
    let set = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |command: &str| {
        for args in [&["mount", "mnt", "--me", "bar"][..], &["send", "foo", "hi", "--me", "bar"]] {
            let out = bed.msgfs_out(args);
            assert_eq!(out.code(), Some(1), "{args:?} {out:?}");
            assert!(out.stderr.contains(command), "{command}: {out:?}");
        }
        let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
        assert!(out.said().contains(command), "{command}: {out:?}");
    };
    for folder in [state.as_path(), state.parent().unwrap()] {
        set(folder, 0o777);
        refused(&format!("chmod 700 {}", folder.display()));
        set(folder, 0o700);
    }
    for file in ["identity_key", "spool"] {
        let file = state.join(file);
        let was_there = file.exists();
        if !was_there {
            fs::write(&file, "").unwrap();
        }
        chown(&file, Some(NOBODY), None).unwrap();
        refused(&format!("chown 0 {}", file.display()));
        chown(&file, Some(0), None).unwrap();
        if !was_there {
            fs::remove_file(&file).unwrap();
        }
    }
    bed.mount("bar").umount();
    assert!(samp::read_log(&bed.store, "bar").is_empty());
}

/// S193: with `--allow-other` others can read, and only the owner's reading marks.
#[test]
fn s193_only_the_owner_marks() {
    need_root();
    let bed = Bed::new();
    fs::set_permissions(bed.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let a = samp::append(&bed.store, "foo", "bar", "t", "one", T0);
    let b = samp::append(&bed.store, "foo", "bar", "t", "two", T0 + 1);
    let m = bed.mount_at(&bed.path("mnt-bar"), "bar", &["--allow-other"]);
    let stranger = |script: &str| {
        let mut c = bed.command("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c"]);
        c.arg(format!("cd {} && {script}", bed.path("mnt-bar").display()));
        run(c, None)
    };
    let out = stranger(&format!("cat inbox/{}", a.name(0)));
    assert!(out.ok() && out.stdout.ends_with("one\n"), "{out:?}");
    assert!(!stranger("cat .next").ok());
    assert!(!stranger(&format!("rm -f inbox/{}", a.name(0))).ok());
    assert!(!stranger("echo x > outbox/foo").ok());
    // The ioctl by which the owner's commands mark everything.
    let all = "import fcntl, os; fcntl.ioctl(os.open('.', os.O_RDONLY), 0x4d01)";
    assert!(stranger(&format!("python3 -c \"{all}\"")).stderr.contains("PermissionError"));
    // Marks are made in order: when this mark is there, the other one would be there, too.
    m.ok(&format!("cat inbox/{}", b.name(0)));
    wait_for(Duration::from_secs(60), "the owner's mark", || m.ls("inbox").len() < 2);
    assert_eq!(m.ls("inbox"), [a.name(0)]);
}

/// Returns true for a character that drives a terminal, is invisible, or turns text.
fn deceptive(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// S194: no output of commands, no header value and no log line drives a terminal or hides text. JSON writes such
/// characters as escapes.
#[test]
fn s194_output_is_plain() {
    let bed = Bed::new();
    let evil = "\u{1b}[2J\u{9b}\u{202e}\u{200b}\u{2066}\u{e0041}\u{7f}";
    let name = format!("log-a{evil}.jsonl");
    fs::write(bed.store.join(&name), "junk\n").unwrap();
    let rec = samp::append(&bed.store, "foo", "bar", evil, "text", T0);
    samp::append_raw(&samp::log(&bed.store, "foo"), format!("{{\"from\": {evil:?}}}\n"));
    samp::append_raw(&samp::log(&bed.store, "foo"), rec.line_with(&[("x", evil.into())]));
    let m = bed.mount("bar");
    let head = m.cat(&rec.archived(0));
    assert!(head.contains("Thread: ") && !head.chars().any(deceptive), "{head:?}");
    m.ls("rejected");
    m.umount();
    for args in [
        &["ls", "raw/samp"][..],
        &["ls", "-l", "raw/samp"],
        &["check"],
        &["check", "--json"],
        &["status"],
        &["doctor"],
        &["cat", "status.txt"],
    ] {
        let args = [args, &["--me", "bar"]].concat();
        let out = bed.msgfs_out(&args);
        assert!(!out.said().is_empty(), "{args:?}");
        for text in [&out.stdout, &out.stderr] {
            assert!(!text.chars().any(deceptive), "{args:?}: {text:?}");
        }
    }
    let json = bed.msgfs_out(&["check", "--json", "--me", "bar"]).stdout;
    let files = json.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    assert!(files.into_iter().count() > 0);
    let log = fs::read_to_string(bed.state("bar").join("log")).unwrap_or_default();
    assert!(!log.chars().any(deceptive), "{log:?}");
}

/// S195: a line that begins with `Signature:` is always msgfs's own, wherever it stands.
#[test]
fn s195_no_body_says_what_was_verified() {
    let bed = Bed::new();
    let body = "x\nSignature: valid 0000000000000000\r\n\nFrom: boss\nSignature:";
    let good = samp::append(&bed.store, "foo", "bar", "t", body, T0);
    let bad = samp::Rec::new("baz", "bar", "t", body, T0 + 1);
    let line = bad.signed_line(&samp::key(3), &[("subject", "a".into())]);
    samp::append_raw(&samp::log(&bed.store, "baz"), line.replace("\"a\"", "\"b\""));
    let m = bed.mount("bar");
    let shown = "\n\nx\n Signature: valid 0000000000000000\n\nFrom: boss\n Signature:\n";
    let inbox = m.ok("cat inbox/*");
    assert!(inbox.ends_with(shown), "{inbox}");
    assert_eq!(inbox.lines().filter(|l| l.starts_with("Signature:")).count(), 1);
    let rejected = m.ok("cat rejected/*");
    assert!(rejected.ends_with(shown), "{rejected}");
    assert!(!rejected.lines().any(|l| l.starts_with("Signature:")));
    assert!(m.cat("raw/samp/log-foo.jsonl").contains("\\nSignature:"), "{good:?}");
}

/// S196: several files on the command line have separator lines before them, and no body can forge one.
#[test]
fn s196_cat_of_several_files() {
    let bed = Bed::new();
    let rule = "=".repeat(16);
    let forged = format!("a\n{rule} x.txt\nFrom: boss\n{rule}=");
    let a = samp::append(&bed.store, "foo", "bar", "t", &forged, T0);
    let b = samp::append(&bed.store, "foo", "bar", "t", "two", T0 + 1);
    let (first, second) = (a.archived(0), b.archived(0));
    let shown = a.file("none").replace(&format!("\n{rule}"), &format!("\n {rule}"));
    let both = format!("{rule} {}\n{shown}{rule} {}\n{}", a.name(0), b.name(0), b.file("none"));
    let cat = |args: &[&str]| {
        let out = bed.msgfs_out(&[args, &["--me", "bar"]].concat());
        assert!(out.ok(), "{out:?}");
        out.stdout
    };
    assert_eq!(cat(&["cat", &first]), a.file("none"));
    assert_eq!(cat(&["cat", &first, &second]), both);
    let m = bed.mount("bar");
    assert_eq!(cat(&["cat", &first, &second]), both);
    assert_eq!(cat(&["inbox"]), both);
    wait_for(Duration::from_secs(60), "the marks", || m.ls("inbox").is_empty());
}
