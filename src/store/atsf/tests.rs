//! The store over real folders: a project with threads, and a sink that keeps the books like an index.

mod checking;
mod following;
mod lost;
mod naming;
mod reading;
mod round_trip;
mod sending;
mod worktrees;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::verify;
use crate::store::Kind;
use crate::store::testing::{Book, Kept, Key, traits::*};

const TIME: &str = "2025-02-14T10:30:00.000Z";

/// A project.
struct Project {
    dir: tempfile::TempDir,
}

/// Returns the reported messages in the order of files and lines.
fn in_order(books: &Book) -> Vec<&Kept> {
    let mut all: Vec<&Kept> = books.messages.values().collect();
    assert!(
        all.iter()
            .all(|kept| kept.repeat_kind == RepeatKind::Rewritten && kept.from_me != kept.to_me)
    );
    all.sort_by_key(|kept| (kept.at.source, kept.at.offset));
    all
}

fn ids(books: &Book) -> Vec<&str> {
    in_order(books).into_iter().map(|kept| &*kept.id).collect()
}

fn in_thread<'a>(books: &'a Book, thread: &str) -> Vec<&'a str> {
    let inside = in_order(books).into_iter().filter(|kept| kept.thread == thread);
    inside.map(|kept| &*kept.id).collect()
}

fn message(id: &str, role: &str, text: &str) -> String {
    let block = serde_json::json!({"type": "text", "text": text});
    format!(r#"{{"id":"{id}","role":"{role}","timestamp":"{TIME}","content":[{block}]}}"#)
}

fn meta(id: &str, title: &str) -> String {
    edit::NewThread {
        id,
        title,
        created: line::parse_time(TIME).time().unwrap(),
        agent: "claude-code",
        project: "/p".into(),
    }
    .render()
}

/// Returns a thread's folder in a root.
fn thread_dir(root: &Path, id: &str) -> PathBuf {
    root.join(".agent/threads").join(id)
}

fn put_thread(root: &Path, id: &str, lines: &[String]) {
    let dir = thread_dir(root, id);
    std::fs::create_dir_all(&dir).unwrap();
    let log: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    std::fs::write(dir.join("messages.jsonl"), log).unwrap();
    std::fs::write(dir.join("thread.json"), meta(id, &format!("title of {id}"))).unwrap();
}

impl Project {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn thread(&self, id: &str, lines: &[String]) {
        put_thread(&self.root(), id, lines);
    }

    fn log(&self, id: &str) -> PathBuf {
        thread_dir(&self.root(), id).join("messages.jsonl")
    }

    fn meta(&self, id: &str) -> PathBuf {
        thread_dir(&self.root(), id).join("thread.json")
    }

    fn spec(&self) -> StoreSpec {
        StoreSpec {
            may_create: true,
            name: "atsf".into(),
            kind: Kind::Atsf,
            dir: self.root(),
            me: "foo".into(),
            state: Some(self.dir.path().join("state")),
            ..StoreSpec::default()
        }
    }

    fn open(&self) -> AtsfStore {
        std::fs::create_dir_all(self.root()).unwrap();
        AtsfStore::open(&self.spec()).unwrap()
    }

    /// Opens the store and scans everything.
    fn opened(&self) -> (AtsfStore, Book) {
        let store = self.open();
        let mut books = Book::default();
        store.scan(true, &mut books).unwrap();
        (store, books)
    }
}

/// Scans after something changed.
fn follow(store: &AtsfStore, books: &mut Book, path: &Path) {
    store.note_change(path);
    store.scan(false, books).unwrap();
}

/// Makes a file look as if its writer had finished long ago.
fn age(path: &Path) {
    let file = std::fs::File::options().append(true).open(path).unwrap();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    file.set_modified(before).unwrap();
}

/// Prepares a draft as the outbox does.
fn prepare(store: &AtsfStore, draft: &Draft) -> Result<PreparedRecord, StoreError> {
    let (now, key) = (line::parse_time("2025-02-14T12:00:00.123Z").time().unwrap(), Key::new(7));
    Ok(store.prepare_records(draft, &PrepareContext::new(now, &key))?.pop().unwrap())
}

fn draft(thread: Option<&str>, subject: Option<&str>, body: &str) -> Draft {
    Draft {
        to: vec!["agent".into()],
        thread: thread.map(str::to_owned),
        subject: subject.map(str::to_owned),
        body: body.to_owned(),
        ..Draft::default()
    }
}

fn read(path: &Path) -> String {
    String::from_utf8(std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn only_roles_can_be_me() {
    let project = Project::new();
    std::fs::create_dir_all(project.root()).unwrap();
    for (role, ok) in [("user", true), ("agent", true), ("system", true), ("bob", false)] {
        let spec = StoreSpec { own_address: Some(role.into()), ..project.spec() };
        assert_eq!(AtsfStore::open(&spec).is_ok(), ok, "{role}");
    }
    let spec = StoreSpec { dir: project.root().join(".agent"), ..project.spec() };
    let store = AtsfStore::open(&spec).unwrap();
    assert_eq!((store.dir(), store.me()), (project.root().as_path(), "user"));
    for (address, fit) in [
        ("user", AddressFit::Via),
        ("claude-code", AddressFit::Via),
        ("", AddressFit::No),
        ("a\nb", AddressFit::No),
    ] {
        assert_eq!(store.address_fit(address), fit, "{address}");
    }
    assert!(
        store.properties().uses_roles
            && store.properties().has_thread_labels()
            && store.properties().can_repeat_appends
    );
}
