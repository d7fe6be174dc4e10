//! `me/`: the texts that a mailbox keeps for its agent.

use std::fs;

use crate::common::agz::{self, Tree};
use crate::common::{Bed, Mount, samp};

const FOLDERS: [&str; 4] = ["notes", "remember", "what_am_i_doing", "who_am_i"];

#[track_caller]
fn with(files: &[(&str, &str, &str, &str)]) -> (Bed, Tree, Mount) {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    for (day, folder, name, text) in files {
        agz::put(&tree.file(day, folder, name), text);
    }
    let m = bed.mount("bar");
    (bed, tree, m)
}

/// S113: `me/` is there only if a store keeps such texts. It holds one current text of each name, the newest that
/// is not empty, and no marker files.
#[test]
fn s113_current_texts() {
    let (_bed, tree, m) = with(&[
        ("2026-04-20", "notes", "plan.txt", "old plan"),
        ("2026-04-25", "notes", "plan.txt", "new plan"),
        ("2026-04-22", "notes", "only-old.txt", "still here"),
        ("2026-04-20", "who_am_i", "identity.txt", "I am bar"),
        ("2026-04-25", "who_am_i", "identity.txt", ""),
        ("2026-04-25", "who_am_i", "identity.synced", ""),
        ("2026-04-25", "notes", "plan.txt.ftp_synced", "x"),
        ("2026-04-24", "remember", "fact.txt", "water is wet\n"),
        ("2026-04-24", "remember", "empty.txt", ""),
    ]);
    assert_eq!(m.ls("me"), FOLDERS);
    assert_eq!(m.ls("me/notes"), ["only-old.txt", "plan.txt"]);
    assert_eq!(m.ls("me/who_am_i"), ["identity.txt"]);
    assert_eq!(m.ls("me/what_am_i_doing"), [""; 0]);
    assert_eq!(m.cat("me/notes/plan.txt"), "new plan");
    assert_eq!(m.cat("me/who_am_i/identity.txt"), "I am bar", "an empty newer file hides nothing");
    assert_eq!(m.cat("me/remember/fact.txt"), "water is wet\n");
    assert!(m.ls("me/remember").contains(&"fact.txt".to_owned()));
    assert_eq!(m.ok("stat -c '%a' me me/notes me/notes/plan.txt"), "700\n700\n600\n");
    assert_eq!(m.ok("stat -c %s me/notes/plan.txt").trim(), "8");
    // The text that the reference program writes now is shown without a remount.
    agz::put(&tree.file(&agz::today(), "notes", "plan.txt"), "today's plan");
    crate::common::soon("the new text is shown", || m.cat("me/notes/plan.txt") == "today's plan");

    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "x", samp::T0);
    let m = bed.mount("bar");
    assert!(!m.ls(".").contains(&"me".to_owned()), "SAMP keeps no texts");
}

/// S113: writing goes to today's file and leaves the older ones alone. Appending starts from the text that is
/// shown.
#[test]
fn s113_writing() {
    let (_bed, tree, m) = with(&[("2026-04-20", "notes", "plan.txt", "line one\n")]);
    let today = |folder: &str, name: &str| tree.file(&agz::today(), folder, name);
    m.ok("echo 'line two' >> me/notes/plan.txt");
    assert_eq!(fs::read_to_string(today("notes", "plan.txt")).unwrap(), "line one\nline two\n");
    assert_eq!(m.cat("me/notes/plan.txt"), "line one\nline two\n");
    assert_eq!(
        fs::read_to_string(tree.file("2026-04-20", "notes", "plan.txt")).unwrap(),
        "line one\n"
    );
    m.ok("echo 'line three' >> me/notes/plan.txt");
    assert_eq!(m.cat("me/notes/plan.txt"), "line one\nline two\nline three\n");
    m.ok("echo anew > me/notes/plan.txt");
    assert_eq!(fs::read_to_string(today("notes", "plan.txt")).unwrap(), "anew\n");
    m.ok("echo 'I am bar, and I test' > me/who_am_i/identity.txt");
    assert_eq!(
        fs::read_to_string(today("who_am_i", "identity.txt")).unwrap(),
        "I am bar, and I test\n"
    );
    m.ok("(echo a; cat <<< b; (sleep 0.2; echo c)) > me/what_am_i_doing/tasks.txt");
    assert_eq!(fs::read_to_string(today("what_am_i_doing", "tasks.txt")).unwrap(), "a\nb\nc\n");
    assert_eq!(m.ls("me/what_am_i_doing"), ["tasks.txt"]);
    m.ok("cp me/notes/plan.txt me/remember/copied.txt; printf x | dd of=me/notes/plan.txt bs=1 seek=1 conv=notrunc status=none");
    assert_eq!(m.cat("me/remember/copied.txt"), "anew\n");
    assert_eq!(m.cat("me/notes/plan.txt"), "axew\n");
    let left = agz::names(today("notes", "").as_path());
    assert_eq!(left, ["plan.txt"], "no temporary file is left");
}

/// S113: editors and copy tools work with private names first and then the rename.
#[test]
fn s113_tools() {
    let (_bed, tree, m) = with(&[("2026-04-20", "notes", "plan.txt", "one\ntwo\n")]);
    let today = |name: &str| tree.file(&agz::today(), "notes", name);
    m.ok("sed -i 's/two/2/' me/notes/plan.txt");
    assert_eq!(fs::read_to_string(today("plan.txt")).unwrap(), "one\n2\n");
    m.ok("echo from-rsync > ../note.txt; rsync -a ../note.txt me/notes/");
    assert_eq!(fs::read_to_string(today("note.txt")).unwrap(), "from-rsync\n");
    m.ok("echo draft > me/notes/.plan.swp");
    assert_eq!(
        agz::names(today("").as_path()),
        ["note.txt", "plan.txt"],
        "private names are not stored"
    );
    m.ok("mv me/notes/.plan.swp me/notes/plan.txt");
    assert_eq!(fs::read_to_string(today("plan.txt")).unwrap(), "draft\n");
    m.ok("vim -u NONE -es -c 'normal Goby vim' -c wq me/notes/plan.txt < /dev/null || true");
    assert_eq!(m.cat("me/notes/plan.txt"), fs::read_to_string(today("plan.txt")).unwrap());
    assert!(m.cat("me/notes/plan.txt").contains("draft"));
}

/// S320: the reference program leaves a text without a last newline. A text that is appended to it begins a new
/// line. Appending to a text that was written here goes on at its end.
#[test]
fn s320_appending() {
    let (_bed, tree, m) = with(&[("2026-04-20", "notes", "plan.txt", "line one")]);
    m.ok("echo 'line two' >> me/notes/plan.txt");
    let today = tree.file(&agz::today(), "notes", "plan.txt");
    assert_eq!(fs::read_to_string(&today).unwrap(), "line one\nline two\n");
    m.ok("printf a > me/notes/own.txt; printf b >> me/notes/own.txt");
    assert_eq!(m.cat("me/notes/own.txt"), "ab");
    m.ok("echo anew > me/notes/plan.txt");
    assert_eq!(m.cat("me/notes/plan.txt"), "anew\n");
}

/// S320: a text can be removed and renamed. The newest file is then empty, as the reference program reads it, and
/// older ones stay as they are. The text stays away after a remount. After it is written again, it is there again.
#[test]
fn s320_removing_and_renaming() {
    let files = [("2026-04-20", "notes", "plan.txt", "old"), ("2026-04-20", "notes", "x.txt", "x")];
    let (bed, tree, m) = with(&files);
    m.ok("rm me/notes/plan.txt; mv me/notes/x.txt me/notes/y.txt");
    let today = |name: &str| fs::read_to_string(tree.file(&agz::today(), "notes", name)).unwrap();
    assert_eq!(["plan.txt", "x.txt", "y.txt"].map(today), ["", "", "x"]);
    let old = |name: &str| fs::read_to_string(tree.file("2026-04-20", "notes", name)).unwrap();
    assert_eq!((old("plan.txt"), old("x.txt")), ("old".to_owned(), "x".to_owned()));
    assert_eq!(m.ls("me/notes"), ["y.txt"]);
    assert!(!m.sh("cat me/notes/plan.txt").ok());
    m.umount();
    // A command without a mount, and a read-only mount, know it, too.
    assert_eq!(bed.msgfs_out(&["--me", "bar", "ls", "me/notes"]).stdout, "y.txt\n");
    let m = bed.mount_at(&bed.path("reader"), "bar", &["--read-only"]);
    assert_eq!(m.ls("me/notes"), ["y.txt"]);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("me/notes"), ["y.txt"]);
    m.ok("echo back > me/notes/plan.txt");
    assert_eq!(m.ls("me/notes"), ["plan.txt", "y.txt"]);
    assert_eq!(m.cat("me/notes/plan.txt"), "back\n");
}

/// S113: impossible names and other folders are refused, and touching changes nothing.
#[test]
fn s113_refusals() {
    let (_bed, tree, m) = with(&[("2026-04-20", "notes", "plan.txt", "text")]);
    for script in ["mkdir me/other", "rmdir me/notes", "echo x > me/plain"] {
        let out = m.sh(script);
        assert!(!out.ok() && out.stderr.contains("Operation not permitted"), "{script}: {out:?}");
    }
    for name in ["no-ending", "sp ace.txt", "a*b.txt"] {
        let out = m.sh(&format!("echo x | tee 'me/notes/{name}'"));
        assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{name}: {out:?}");
    }
    m.ok("touch me/notes/plan.txt; : >> me/notes/plan.txt; cat me/notes/plan.txt");
    assert!(!tree.file(&agz::today(), "notes", "plan.txt").exists(), "nothing was written");
    assert_eq!(fs::read_to_string(tree.file("2026-04-20", "notes", "plan.txt")).unwrap(), "text");
    let m2 = m;
    m2.umount();
}

/// S113: a read-only mount shows the texts and refuses to write them.
#[test]
fn s113_read_only() {
    let (bed, tree, m) = with(&[("2026-04-20", "notes", "plan.txt", "text")]);
    m.umount();
    let m = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    assert_eq!(m.cat("me/notes/plan.txt"), "text");
    let out = m.sh("echo x > me/notes/plan.txt");
    assert!(!out.ok() && out.stderr.contains("Read-only file system"), "{out:?}");
    assert!(!tree.file(&agz::today(), "notes", "plan.txt").exists());
}
