//! Threads in git worktrees.

use crate::store::MessageReader as _;
use crate::store::RawTree as _;
use std::process::Command;

use super::*;

fn git(dir: &Path, words: &[&str]) {
    let done = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(["-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"])
        .args(words)
        .output()
        .unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn repository(project: &Project) {
    std::fs::create_dir_all(project.root()).unwrap();
    git(&project.root(), &["init", "-q"]);
    git(&project.root(), &["commit", "-q", "--allow-empty", "-m", "x"]);
}

fn add(project: &Project, name: &str) -> PathBuf {
    let path = project.dir.path().join(name);
    git(&project.root(), &["worktree", "add", "-q", "--detach", path.to_str().unwrap()]);
    path.canonicalize().unwrap()
}

#[test]
fn a_worktree_that_is_added_and_removed() {
    let project = Project::new();
    repository(&project);
    project.thread("t", &[message("a", "agent", "x")]);
    let (store, mut books) = project.opened();
    let common = project.root().join(".git").canonicalize().unwrap();
    assert!(store.folders_to_watch().contains(&common));
    assert!(store.is_relevant(&common, OsStr::new("worktrees")));
    assert!(!store.is_relevant(&common, OsStr::new("index")));
    let wt = add(&project, "wt");
    follow(&store, &mut books, &common.join("worktrees"));
    assert!(store.folders_to_watch().contains(&wt), "{:?}", store.folders_to_watch());
    assert!(store.folders_to_watch().contains(&common.join("worktrees/wt")));
    assert!(store.is_relevant(&common.join("worktrees/wt"), OsStr::new("gitdir")));
    // The same id in both worktrees makes two threads. A message copied from one to the other is in both.
    put_thread(&wt, "t", &[message("a", "agent", "x"), message("b", "agent", "y")]);
    put_thread(&wt, "u", &[message("c", "agent", "z")]);
    follow(&store, &mut books, &wt.join(".agent"));
    assert_eq!(in_thread(&books, "t"), ["a"]);
    assert_eq!(in_thread(&books, "u"), ["c"]);
    let both: Vec<&str> =
        in_thread(&books, "t\0wt").into_iter().map(crate::model::plain_id).collect();
    assert_eq!(both, ["a", "b"]);
    let raw: Vec<String> = store.list_raw_folder("").unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(raw, ["t", "wt"]);
    assert!(store.open_raw_file("wt/u/messages.jsonl").is_ok());
    assert_eq!(store.source_path(books.one("c").at.source).unwrap(), "wt/u/messages.jsonl");
    // My message goes to the worktree's thread.
    let mine = prepare(&store, &draft(Some("t\0wt"), None, "mine")).unwrap();
    store.append_record(&mine).unwrap();
    assert_eq!(read(&thread_dir(&wt, "t").join("messages.jsonl")).lines().count(), 3);
    store.scan(false, &mut books).unwrap();
    assert_eq!(books.one(&mine.id).thread, "t\0wt");
    // When the project's copy is deleted, the other one gets the plain names.
    std::fs::remove_dir_all(thread_dir(&project.root(), "t")).unwrap();
    follow(&store, &mut books, &thread_dir(&project.root(), "t"));
    assert_eq!(in_thread(&books, "t"), ["a", "b", &mine.id]);
    // Then the worktree goes with everything in it except my message.
    git(&project.root(), &["worktree", "remove", "--force", wt.to_str().unwrap()]);
    follow(&store, &mut books, &common.join("worktrees"));
    assert_eq!(ids(&books), [mine.id.as_str()]);
    assert_eq!(store.remarks().len(), 1);
}

#[test]
fn worktrees_that_cannot_be_used_are_skipped() {
    let project = Project::new();
    repository(&project);
    let gone = add(&project, "gone");
    let here = add(&project, "here");
    put_thread(&here, "t", &[message("a", "agent", "x")]);
    put_thread(&gone, "u", &[message("b", "agent", "x")]);
    std::fs::remove_dir_all(&gone).unwrap();
    let (_, books) = project.opened();
    assert_eq!(ids(&books), ["a"]);
    // Seen from the worktree, the project is the other worktree.
    let store = AtsfStore::open(&StoreSpec { dir: here, ..project.spec() }).unwrap();
    project.thread("v", &[message("c", "agent", "x")]);
    let mut books = Book::default();
    store.scan(true, &mut books).unwrap();
    assert_eq!(ids(&books), ["a", "c"]);
}

#[test]
fn nothing_of_the_repository_is_run() {
    let project = Project::new();
    repository(&project);
    let witness = project.dir.path().join("ran");
    let hook = format!("!touch {}", witness.display());
    for (key, value) in
        [("core.fsmonitor", hook.trim_start_matches('!')), ("alias.worktree", &hook)]
    {
        git(&project.root(), &["config", key, value]);
    }
    add(&project, "wt");
    let _ = std::fs::remove_file(&witness);
    let (_store, _) = project.opened();
    assert!(!witness.exists());
}
