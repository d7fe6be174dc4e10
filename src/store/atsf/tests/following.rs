//! Logs that grow, shrink and are rewritten under the store.

use crate::store::MessageReader as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::*;

fn append(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn what_is_new_is_read_and_nothing_else() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x")]);
    project.thread("u", &[message("b", "user", "x")]);
    let (store, mut books) = project.opened();
    append(&project.log("t"), &format!("{}\n{{\"id\"", message("c", "agent", "y")));
    age(&project.log("t"));
    books.reported = 0;
    follow(&store, &mut books, &project.log("t"));
    assert_eq!((books.reported, books.rejected.len()), (1, 1));
    append(&project.log("t"), &message("d", "agent", "y").replacen("{\"id\"", "", 1));
    append(&project.log("t"), "\n");
    follow(&store, &mut books, &project.log("t"));
    assert_eq!((books.reported, books.rejected.len()), (2, 0));
    assert_eq!(ids(&books), ["a", "c", "d", "b"]);
    // Nothing changed, so nothing is reported.
    store.scan(true, &mut books).unwrap();
    assert_eq!(books.reported, 2);
    assert!(books.vanished.is_empty());
}

#[test]
fn half_a_line_is_told_of_when_its_writer_had_a_second() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x")]);
    let (store, mut books) = project.opened();
    store.repair_files().unwrap();
    let wrong = || {
        let mut wrong = Vec::new();
        store
            .check(&verify::find_claim_fault, &mut |v| wrong.extend(v.is_wrong().then_some(v.rule)))
            .unwrap();
        wrong
    };
    append(&project.log("t"), "{\"id\":\"ha");
    follow(&store, &mut books, &project.log("t"));
    assert!(books.rejected.is_empty() && wrong().is_empty());
    // The store reads it again although nothing happens.
    assert!(store.is_failing());
    std::thread::sleep(Duration::from_millis(1100));
    let saved = store.save_cursors();
    store.scan(true, &mut books).unwrap();
    assert_eq!((books.rejected.len(), wrong()), (1, vec!["unterminated"]));
    assert!(!store.is_failing());
    // The next mount does the same.
    let next = project.open();
    assert!(next.restore_cursors(&saved));
    books.rejected.clear();
    next.scan(true, &mut books).unwrap();
    assert_eq!(books.rejected.len(), 1);
    // A complete last line is reported at once.
    append(&project.log("t"), &message("half", "agent", "y").replacen("{\"id\":\"ha", "", 1));
    follow(&store, &mut books, &project.log("t"));
    assert_eq!((ids(&books), books.rejected.len()), (vec!["a", "half"], 0));
}

#[test]
fn a_log_rewritten_in_place_loses_nothing_on_the_way() {
    let project = Project::new();
    let lines: Vec<String> = (0..50).map(|n| message(&format!("m{n}"), "agent", "x")).collect();
    project.thread("t", &lines);
    let (store, mut books) = project.opened();
    let path = project.log("t");
    let writer = std::thread::spawn({
        let (path, lines) = (path.clone(), lines.clone());
        move || {
            let mut file = std::fs::File::create(&path).unwrap();
            std::thread::sleep(Duration::from_millis(150));
            for line in &lines {
                let line = line.replace("\"x\"", "\"longer\"");
                let (a, b) = line.split_at(40);
                file.write_all(a.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                file.write_all(b.as_bytes()).unwrap();
                file.write_all(b"\n").unwrap();
            }
        }
    });
    while !writer.is_finished() {
        follow(&store, &mut books, &path);
        assert_eq!(books.messages.len(), 50);
    }
    writer.join().unwrap();
    follow(&store, &mut books, &path);
    assert_eq!((books.messages.len(), books.vanished.len()), (50, 0));
    let record = store.read_record(&books.one("m49").at).unwrap();
    assert_eq!(record.message.body, "longer");
}

#[test]
fn what_stays_away_is_gone_after_a_second() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x"), message("b", "user", "x")]);
    let (store, mut books) = project.opened();
    std::fs::write(project.log("t"), format!("{}\n", message("a", "user", "x"))).unwrap();
    let start = Instant::now();
    follow(&store, &mut books, &project.log("t"));
    assert!(start.elapsed() > Duration::from_millis(500));
    assert_eq!(ids(&books), ["a"]);
    std::fs::remove_dir_all(thread_dir(&project.root(), "t")).unwrap();
    follow(&store, &mut books, &thread_dir(&project.root(), "t"));
    assert!(books.messages.is_empty());
}

#[test]
fn a_line_that_changed_is_the_same_message() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x"), message("b", "agent", "par")]);
    let (store, mut books) = project.opened();
    let text = read(&project.log("t")).replace("par", "partial, now whole");
    std::fs::write(project.log("t"), text).unwrap();
    follow(&store, &mut books, &project.log("t"));
    assert_eq!(ids(&books), ["a", "b"]);
    assert_eq!(store.read_record(&books.one("b").at).unwrap().message.body, "partial, now whole");
}

#[test]
fn a_location_that_holds_another_line_has_moved() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x"), message("b", "agent", "y")]);
    let (store, books) = project.opened();
    let at = books.one("b").at;
    let text = read(&project.log("t")).replacen("\"x\"", "\"xyz\"", 1);
    std::fs::write(project.log("t"), text).unwrap();
    assert!(matches!(store.read_record(&at), Err(StoreError::Moved)));
    std::fs::remove_file(project.log("t")).unwrap();
    assert!(matches!(store.read_record(&at), Err(StoreError::Moved)));
}

#[test]
fn a_new_title_reports_the_messages_again() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x")]);
    let (store, mut books) = project.opened();
    std::fs::write(project.meta("t"), meta("t", "another")).unwrap();
    books.reported = 0;
    follow(&store, &mut books, &project.meta("t"));
    assert_eq!(books.reported, 1);
    let subject = store.read_record(&books.one("a").at).unwrap().message.subject;
    assert_eq!(subject.as_deref(), Some("another"));
    // A `thread.json` that is broken for a moment removes nothing.
    std::fs::write(project.meta("t"), "{").unwrap();
    follow(&store, &mut books, &project.meta("t"));
    assert_eq!(ids(&books), ["a"]);
    assert!(store.health()[0].contains("cannot be read as a thread now"), "{:?}", store.health());
    std::fs::write(project.meta("t"), meta("t", "another")).unwrap();
    follow(&store, &mut books, &project.meta("t"));
    assert!(store.health().is_empty());
}

#[test]
fn a_thread_json_that_is_removed_and_made_anew_takes_nothing_away() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x")]);
    let (store, mut books) = project.opened();
    let path = project.meta("t");
    let text = read(&path);
    std::fs::remove_file(&path).unwrap();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            std::thread::sleep(Duration::from_millis(100));
            std::fs::write(path, text).unwrap();
        }
    });
    follow(&store, &mut books, &path);
    writer.join().unwrap();
    assert!(books.vanished.is_empty() && ids(&books) == ["a"]);
    std::fs::remove_file(&path).unwrap();
    follow(&store, &mut books, &path);
    assert!(books.messages.is_empty());
}

#[test]
fn positions_survive_a_restart() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x"), message("a", "user", "y")]);
    let (store, mut books) = project.opened();
    let saved = store.save_cursors();
    let store = project.open();
    assert!(store.restore_cursors(&saved) && !store.restore_cursors(b"x"));
    append(&project.log("t"), &format!("{}\n", message("b", "user", "z")));
    project.thread("u", &[message("c", "user", "x")]);
    books.reported = 0;
    store.scan(true, &mut books).unwrap();
    assert_eq!((books.reported, books.messages.len()), (2, 4));
    store.reset_cursors();
    let mut again = Book::default();
    store.scan(false, &mut again).unwrap();
    assert_eq!(again.messages, books.messages);
}

#[test]
fn folders_in_which_something_may_appear_are_watched() {
    let project = Project::new();
    let (store, mut books) = project.opened();
    let root = project.root();
    assert_eq!(store.folders_to_watch(), std::slice::from_ref(&root));
    assert!(store.is_relevant(&root, OsStr::new(".agent")));
    assert!(!store.is_relevant(&root, OsStr::new("src")));
    std::fs::create_dir_all(root.join(".agent")).unwrap();
    follow(&store, &mut books, &root.join(".agent"));
    // It may become a repository.
    assert_eq!(store.folders_to_watch(), [root.clone(), root.join(".agent")]);
    assert!(store.is_relevant(&root, OsStr::new(".git")));
    let threads = root.join(".agent/threads");
    std::fs::create_dir_all(threads.join("t")).unwrap();
    follow(&store, &mut books, &threads);
    assert_eq!(store.folders_to_watch(), [root.clone(), threads.clone(), threads.join("t")]);
    assert!(
        store.is_relevant(&threads, OsStr::new("u"))
            && !store.is_relevant(&threads, OsStr::new(".x"))
    );
    assert!(store.is_relevant(&threads.join("t"), OsStr::new("messages.jsonl")));
    assert!(!store.is_relevant(&threads.join("t"), OsStr::new(".thread.json.1.tmp")));
    project.thread("t", &[message("a", "user", "x")]);
    follow(&store, &mut books, &project.meta("t"));
    assert_eq!(ids(&books), ["a"]);
}

#[test]
fn many_threads_are_read_in_little_memory() {
    let project = Project::new();
    let (threads, each) = (100, 200);
    for t in 0..threads {
        let lines: Vec<String> = (0..each)
            .map(|n| {
                message(&format!("{t:08}-0000-4000-8000-{n:012}"), "agent", &"text ".repeat(40))
            })
            .collect();
        project.thread(&format!("t{t:04}"), &lines);
    }
    let store = project.open();
    let mut books = Book::default();
    store.scan(true, &mut books).unwrap();
    assert_eq!(books.messages.len(), threads * each);
    assert!(store.save_cursors().len() < threads * each * 40);
}
