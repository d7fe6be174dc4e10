//! Threads in git worktrees.

use super::{ONE, TWO, thread, two, with};
use crate::common::agz;
use crate::common::{Bed, soon};

#[track_caller]
fn git(bed: &Bed, script: &str) {
    let out = bed.sh(&format!(
        "set -e; cd ../shop; export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t \
         GIT_COMMITTER_EMAIL=t@t; {script}"
    ));
    assert!(out.ok(), "{out:?}");
}

/// S161: a thread that goes while mounted is no longer shown, and one that comes afterwards is shown.
#[test]
fn s161_removed() {
    let (bed, project, m) = with(|p| {
        thread(p, ONE, "stays", &two());
        thread(p, TWO, "goes", &two());
    });
    m.ok(&format!("echo mine > threads/{TWO}/answer"));
    std::fs::remove_dir_all(super::folder(&project, TWO)).expect("remove");
    // A name may be gone between the shell's list and `cat`.
    let goes = || m.ok("cat threads/*/*.txt || true").matches("Subject: goes").count();
    soon("one thread less", || goes() == 1);
    let mut all = two();
    all.push(super::message(3, "agent", "2026-04-24T17:50:00.000Z", "afterwards"));
    agz::put(&super::folder(&project, ONE).join("messages.jsonl"), super::lines(&all));
    soon("what came afterwards", || {
        m.ok(&format!("cat threads/{ONE}/*.txt || true")).contains("afterwards")
    });
    assert!(m.ok("cat sent/*/*.txt").contains("\n\nmine\n"));
    let out = bed.msgfs_out(&["umount", m.dir.to_str().expect("UTF-8")]);
    assert!(out.ok(), "{out:?}");
}

/// S318: my message in a worktree can be read under its name in sent/, also at the moment when the worktree is
/// removed.
#[test]
fn s318_removed_worktree() {
    let (bed, _project, m) = with(|p| thread(p, ONE, "main", &two()));
    git(&bed, "git init -q; git commit -q --allow-empty -m x; git worktree add -q ../fix-upload");
    thread(&bed.path("fix-upload"), TWO, "in the worktree", &two());
    soon("the worktree's thread", || m.ls("threads").len() == 2);
    m.ok(&format!("echo mine > threads/{TWO}/answer"));
    let name = m.ok("ls -d sent/$(date -u +%F)/*.txt").trim().to_owned();
    std::fs::remove_dir_all(bed.path("fix-upload")).expect("remove");
    for _ in 0..20 {
        assert!(m.cat(&name).ends_with("\n\nmine\n"));
    }
}

/// S161: threads of worktrees are there, also of a worktree that is added while mounted. One id in two worktrees
/// makes two folders.
#[test]
fn s161_worktrees() {
    let (bed, _project, m) = with(|p| {
        thread(p, ONE, "main", &two());
    });
    git(&bed, "git init -q; git commit -q --allow-empty -m x; git worktree add -q ../fix-upload");
    thread(&bed.path("fix-upload"), TWO, "in the worktree", &two());
    thread(&bed.path("fix-upload"), ONE, "the same id", &two());
    let both = format!("{ONE}~fix-upload");
    soon("the worktree's threads", || m.ls("threads").len() == 3);
    assert_eq!(m.ls("threads"), [TWO, ONE, both.as_str()]);
    let text = m.ok(&format!("cat threads/{both}/*.txt"));
    assert!(
        text.contains("Subject: the same id\n") && text.contains(&format!("Thread: {ONE}\n")),
        "{text}"
    );
    m.ok(&format!("echo there > threads/{both}/answer"));
    assert_eq!(super::log(&bed.path("fix-upload"), ONE).len(), 3);
    assert_eq!(super::log(&bed.path("shop"), ONE).len(), 2);
}
