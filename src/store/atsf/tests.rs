//! The store over real folders: a project with threads, and a sink that keeps the books like an index.

mod checking;
mod following;
mod lost;
mod reading;
mod round_trip;
mod sending;
mod worktrees;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;

use super::*;
use crate::model::verify;
use crate::store::testing::Key;
use crate::store::{Rejected, Sink, Store as _};

const TIME: &str = "2025-02-14T10:30:00.000Z";

/// A project.
struct Project {
    dir: tempfile::TempDir,
}

/// What an index keeps of a message.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    at: Location,
    thread: String,
    from_me: bool,
    to: String,
    time: Timestamp,
    name: Timestamp,
    parts: bool,
}

/// The books.
#[derive(Debug, Default)]
struct Books {
    /// By writer and id.
    messages: BTreeMap<(String, String), Kept>,
    rejected: BTreeMap<(u32, u64), (u64, String, bool)>,
    stale: HashMap<u32, Vec<(String, String)>>,
    /// Messages that were missing at the end of any rescan.
    vanished: HashSet<String>,
    reported: usize,
}

impl Sink for Books {
    fn batch(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>) {
        for f in found.drain(..) {
            self.reported += 1;
            assert!(f.id_verified);
            let kept = Kept {
                at: f.at,
                thread: f.thread.into_owned(),
                from_me: f.from_me,
                to: f.to.into_owned(),
                time: f.time,
                name: f.name_time.unwrap(),
                parts: f.parts,
            };
            assert_ne!(f.from_me, f.to_me);
            self.messages.insert((f.from.into_owned(), f.id.into_owned()), kept);
        }
        for r in rejected.drain(..) {
            self.rejected.insert((r.at.source, r.at.offset), (r.line, r.reason, r.incomplete));
        }
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        for source in sources {
            let theirs = self.messages.iter().filter(|(_, m)| m.at.source == *source);
            self.stale.insert(*source, theirs.map(|(key, _)| key.clone()).collect());
            self.rejected.retain(|(of, _), _| of != source);
        }
        // Whatever is reported from now on is told from what was there.
        for keys in self.stale.values() {
            for key in keys {
                if let Some(message) = self.messages.get_mut(key) {
                    message.at.len |= 1 << 31;
                }
            }
        }
    }

    fn end_rescan(&mut self, sources: &[u32]) {
        for source in sources {
            for key in self.stale.remove(source).unwrap_or_default() {
                if self.messages.get(&key).is_some_and(|m| m.at.len >> 31 == 1) {
                    self.messages.remove(&key);
                    self.vanished.insert(key.1);
                }
            }
        }
    }

    fn resume(&mut self, source: u32) {
        self.rejected.retain(|(of, _), (_, _, incomplete)| *of != source || !*incomplete);
    }

    fn progress(&mut self, done: u64, total: u64) {
        assert!(done <= total);
    }
}

impl Books {
    fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<(&Kept, &str)> =
            self.messages.iter().map(|((_, id), kept)| (kept, id.as_str())).collect();
        ids.sort_by_key(|(kept, _)| (kept.at.source, kept.at.offset));
        ids.into_iter().map(|(_, id)| id).collect()
    }

    fn get(&self, id: &str) -> &Kept {
        let mut found = self.messages.iter().filter(|((_, of), _)| of == id);
        found.next().unwrap_or_else(|| panic!("no {id} in {:?}", self.ids())).1
    }

    fn in_thread(&self, thread: &str) -> Vec<&str> {
        self.ids().into_iter().filter(|id| self.get(id).thread == thread).collect()
    }
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
    .text()
}

/// A thread's folder in a root.
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

    fn spec(&self) -> Spec {
        Spec {
            name: "atsf".into(),
            kind: Kind::Atsf,
            dir: self.root(),
            me: "foo".into(),
            as_me: None,
            state: Some(self.dir.path().join("state")),
            home: None,
        }
    }

    fn open(&self) -> Atsf {
        std::fs::create_dir_all(self.root()).unwrap();
        Atsf::open(&self.spec()).unwrap()
    }

    /// Opens the store and takes in everything.
    fn opened(&self) -> (Atsf, Books) {
        let store = self.open();
        let mut books = Books::default();
        store.scan(true, &mut books).unwrap();
        (store, books)
    }
}

/// Scans after something changed.
fn follow(store: &Atsf, books: &mut Books, path: &Path) {
    store.note(path);
    store.scan(false, books).unwrap();
}

/// Makes a file one whose writer was done long ago.
fn age(path: &Path) {
    let file = std::fs::File::options().append(true).open(path).unwrap();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    file.set_modified(before).unwrap();
}

/// Prepares a draft as the outbox does.
fn prepare(store: &Atsf, draft: &Draft) -> Result<Prepared, StoreError> {
    let with = Preparing {
        now: line::parse_time("2025-02-14T12:00:00.123Z").time().unwrap(),
        parent: None,
        signer: &Key::new(7),
        taken: &|_| false,
    };
    Ok(store.prepare(draft, &with)?.pop().unwrap())
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
        let spec = Spec { as_me: Some(role.into()), ..project.spec() };
        assert_eq!(Atsf::open(&spec).is_ok(), ok, "{role}");
    }
    let spec = Spec { dir: project.root().join(".agent"), ..project.spec() };
    let store = Atsf::open(&spec).unwrap();
    assert_eq!((store.dir(), store.me()), (project.root().as_path(), "user"));
    for (address, fit) in
        [("user", Fit::Via), ("claude-code", Fit::Via), ("", Fit::No), ("a\nb", Fit::No)]
    {
        assert_eq!(store.fits(address), fit, "{address}");
    }
    assert!(store.roles() && store.origins() && store.restates() && store.repeats());
}
