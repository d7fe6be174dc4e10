//! Features that only some kinds of store have, in a mount without such a store; and features for people that
//! every kind has.

use crate::common::fixtures::three;
use crate::common::samp::{self, T0, append_raw, log, member, only};
use crate::common::{Bed, run};

/// S138: without a store that has tasks, `Task:` begins no header block and is refused in one.
#[test]
fn s138_task() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let out = m.sh("printf 'To: foo\\nTask: T1\\n\\nbody\\n' > outbox/foo");
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
    let note = m.cat("outbox/foo.error");
    assert!(note.contains("Task: no store here has tasks; remove the line"), "{note}");
    m.ok("rm outbox/foo");
    m.ok("printf 'Task: T1\\n\\nbody\\n' > outbox/foo");
    assert_eq!(member(&only(&bed.store, "bar"), "body"), "Task: T1\n\nbody");
    // An option of a command is never text.
    let refuse = |args: &[&str], option: &str| {
        let out = run(bed.msgfs([&["--me", "bar", "send", "foo"], args, &["hi"]].concat()), None);
        let names_it = out.stderr.contains(&format!("leave out {option}"));
        assert!(out.code() == Some(1) && names_it, "{args:?}: {out:?}");
    };
    let refuse_all = || {
        refuse(&["--task", "T1"], "--task");
        refuse(&["--task", "T1", "--subject", "s"], "--task");
        refuse(&["--priority", "high"], "--priority");
    };
    refuse_all();
    m.umount();
    refuse_all();
    only(&bed.store, "bar");
}

/// S139: SAMP has no derived state, so repair makes nothing. The check follows, also beside a mount.
#[test]
fn s139_repair() {
    let bed = Bed::new();
    three(&bed);
    let bar = |args: &[&str]| {
        let mut c = bed.msgfs(args);
        c.args(["--me", "bar"]);
        run(c, None)
    };
    let out = bar(&["check", "--repair"]);
    assert!(out.ok() && out.stdout.is_empty(), "{out:?}");
    assert!(out.stderr.contains("no violations"), "{out:?}");
    append_raw(&log(&bed.store, "foo"), "junk\n");
    let before = std::fs::read(log(&bed.store, "foo")).unwrap();
    let m = bed.mount("bar");
    for args in [&["check", "--repair"][..], &["check", "samp", "--repair", "--json"]] {
        let out = bar(args);
        assert_eq!(out.code(), Some(1), "{out:?}");
        assert_eq!(out.stdout.lines().count(), 1, "{out:?}");
    }
    assert_eq!(std::fs::read(log(&bed.store, "foo")).unwrap(), before);
    samp::append(&bed.store, "foo", "bar", "plan", "still mounted", T0 + 99);
    m.appears(&format!("archive/{}", samp::Rec::new("foo", "bar", "plan", "x", T0 + 99).day()));
}

/// S140: `msgfs KIND` prints the commands of a kind. A command is refused if there is no such store, and a kind
/// may have no commands.
#[test]
fn s140_commands_of_a_kind() {
    let bed = Bed::new();
    let out = bed.msgfs_out(&["ssot"]);
    assert!(out.ok() && out.stdout.contains("resume TASK"), "{out:?}");
    let out = bed.msgfs_out(&["ssot", "frobnicate", "--me", "bar"]);
    assert_eq!(out.code(), Some(2), "{out:?}");
    assert!(out.stderr.contains("frobnicate") && out.stderr.contains("resume TASK"), "{out:?}");
    let out = bed.msgfs_out(&["ssot", "resume", "T1", "--me", "bar"]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.contains("there is no ssot store here"), "{out:?}");
    let out = bed.msgfs_out(&["samp", "x"]);
    assert_eq!(out.code(), Some(2), "SAMP has no commands: {out:?}");
}
