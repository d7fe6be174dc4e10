//! AMQ mailboxes below one root.

mod reading;
mod sending;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::agz::{names, put};
use crate::common::{Bed, Mount};

/// The folders that the queue's own program makes for each agent.
const LEAVES: [&str; 8] = [
    "inbox/tmp",
    "inbox/new",
    "inbox/cur",
    "outbox/sent",
    "receipts",
    "dlq/tmp",
    "dlq/new",
    "dlq/cur",
];

/// A queue root.
pub(crate) struct Queue {
    pub(crate) root: PathBuf,
}

impl Queue {
    /// Makes a queue with mailboxes of these agents.
    pub(crate) fn new(bed: &Bed, agents: &[&str]) -> Self {
        let root = bed.path("queue/collab");
        for (agent, leaf) in agents.iter().flat_map(|a| LEAVES.map(|leaf| (a, leaf))) {
            fs::create_dir_all(root.join("agents").join(agent).join(leaf)).expect("mkdir");
        }
        put(&root.join("meta/config.json"), json!({"version": 1, "agents": agents}).to_string());
        Self { root }
    }

    /// Returns the lines that make the queue a store of the mount.
    pub(crate) fn store(&self) -> String {
        format!("[[store]]\nkind = \"amq\"\ndir = {:?}\n", self.root.to_str().expect("UTF-8"))
    }

    /// Returns a folder of a mailbox, such as `bob/inbox/new`.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join("agents").join(path)
    }

    /// Puts a file in its place by a rename, as its writer would.
    fn put(&self, path: &str, text: &str) {
        put(&self.root.join("being-written"), text);
        fs::rename(self.root.join("being-written"), self.at(path)).expect("rename");
    }

    /// Returns the names in a folder of a mailbox, hidden ones too.
    fn names(&self, path: &str) -> Vec<String> {
        names(&self.at(path))
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect(path)
    }
}

/// Returns the path and the id of mail number `n` from alice to bob, and its file.
pub(crate) fn mail(n: i64) -> (String, String) {
    let head = json!({"id": format!("m{n}"), "created": format!("2026-04-24T17:42:{n:02}.25Z")});
    (format!("agents/bob/inbox/new/m{n}.md"), file(&head, &format!("mail {n}\n")))
}

/// Returns a message file whose header is changed by `head`.
fn file(head: &Value, body: &str) -> String {
    let mut header = json!({
        "schema": 1, "id": "m", "from": "alice", "to": ["bob"], "thread": "p2p/alice__bob",
        "created": "2026-04-24T17:42:03.25Z",
    });
    for (name, value) in head.as_object().expect("an object") {
        header[name] = value.clone();
    }
    format!("---json\n{header:#}\n---\n{body}")
}

/// Returns the header and the body of a message file.
fn parsed(text: &str) -> (Value, &str) {
    let rest = text.strip_prefix("---json\n").expect(text);
    let (head, body) = rest.split_once("\n---\n").expect(text);
    (serde_json::from_str(head).expect(text), body)
}

/// Makes a bed whose only store is a queue with alice, bob and carol, filled by `fill`, and mounts it for bob.
#[track_caller]
fn with(fill: impl FnOnce(&Bed, &Queue)) -> (Bed, Queue, Mount) {
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["alice", "bob", "carol"]);
    bed.config(&queue.store());
    fill(&bed, &queue);
    let m = bed.mount("bob");
    (bed, queue, m)
}

/// Returns the name in the mount of a message of [`file`] with this id and sender.
fn name(from: &str, id: &str) -> String {
    format!("20260424T174203.250Z-{from}-{}.txt", crate::common::samp::sha_hex(id.as_bytes(), 8))
}

/// Returns true if the file is there.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
