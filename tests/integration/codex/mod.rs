//! Transcripts of Codex, on real mounts.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::agz::put;
use crate::common::shown::{Shown, has_ending};
use crate::common::{Bed, Mount, soon};

const A: &str = "01a21513-c9d0-7083-aec5-c7538fdc5181";
const B: &str = "01a21513-c9d0-7083-aec5-c7538fdc5182";

/// A log that is made of records, a second each.
struct Rollout {
    text: String,
    second: u32,
    /// True for the older form of events.
    is_legacy: bool,
}

impl Rollout {
    fn new(thread: &str, is_legacy: bool, more: &Value) -> Self {
        let mut meta = json!({"id": thread, "cwd": "/home/anna/p", "cli_version": "0.169.0"});
        for (name, value) in more.as_object().expect("an object") {
            meta[name] = value.clone();
        }
        Self { text: String::new(), second: 0, is_legacy }.record("session_meta", &meta)
    }

    fn record(mut self, kind: &str, payload: &Value) -> Self {
        self.second += 1;
        let time = format!("2026-11-25T23:00:{:02}.000Z", self.second);
        let record = json!({"timestamp": time, "type": kind, "payload": payload});
        self.text.push_str(&format!("{record}\n"));
        self
    }

    fn seen(self, old: &str, new: &str, part: &str, text: &str) -> Self {
        let payload = if self.is_legacy {
            json!({"type": old, "message": text})
        } else {
            let content = json!([{"type": part, "text": text}]);
            json!({"type": "item_completed", "item": {"type": new, "id": "x", "content": content}})
        };
        self.record("event_msg", &payload)
    }

    fn prompt(self, text: &str) -> Self {
        self.seen("user_message", "UserMessage", "text", text)
    }

    fn answer(self, text: &str) -> Self {
        self.seen("agent_message", "AgentMessage", "Text", text)
    }

    fn call(self) -> Self {
        let call =
            json!({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"});
        let result = json!({"type": "function_call_output", "call_id": "c1", "output": "out"});
        self.record("response_item", &call).record("response_item", &result)
    }
}

fn log(bed: &Bed, thread: &str) -> PathBuf {
    let folder = bed.path("home/.codex/sessions/2026/11/25");
    fs::create_dir_all(&folder).expect("mkdir");
    folder.join(format!("rollout-2026-11-25T23-00-00-{thread}.jsonl"))
}

#[track_caller]
fn with(fill: impl FnOnce(&Bed)) -> (Bed, Mount) {
    let bed = Bed::new();
    bed.config("[[store]]\nkind = \"samp\"\n\n[[store]]\nkind = \"codex\"\n");
    fill(&bed);
    let m = bed.mount("bob");
    (bed, m)
}

fn conversation(is_legacy: bool) -> String {
    Rollout::new(A, is_legacy, &json!({})).prompt("please look").call().answer("ran").text
}

/// Returns the messages of a folder, in the order of their names.
fn messages(m: &Mount, folder: &str) -> Vec<Shown> {
    let names = m.ls(folder).into_iter().filter(|name| has_ending(name, "txt"));
    let text =
        |name| String::from_utf8(m.bytes_quietly(&format!("{folder}/{name}"))).expect("UTF-8");
    names.map(|name| Shown::parse(&text(name))).collect()
}

fn bodies(m: &Mount, thread: &str) -> Vec<String> {
    messages(m, &format!("threads/{thread}"))
        .into_iter()
        .map(|shown| shown.body.trim_end().to_owned())
        .collect()
}

/// Returns the names and inode numbers of a thread's messages, and their texts.
fn tree(m: &Mount) -> Vec<(String, u64, String)> {
    let folder = format!("threads/{A}");
    let names = m.ls(&folder).into_iter().filter(|name| has_ending(name, "txt"));
    let one = |name: String| {
        let path = format!("{folder}/{name}");
        let inode = fs::metadata(m.path(&path)).expect("stat").ino();
        let text = m.cat(&path);
        (name, inode, text)
    };
    names.map(one).collect()
}

/// S1010: a thread of Codex is a thread, and its messages are what the person saw.
#[test]
fn s1010_messages() {
    let (_bed, m) = with(|bed| put(&log(bed, A), conversation(false)));
    assert_eq!(
        bodies(&m, A),
        ["please look", "[tool call: shell completed -> 01-tool-shell.json]\nran"]
    );
    let all = messages(&m, &format!("threads/{A}"));
    assert_eq!((all[0].must("From"), all[1].must("From")), ("user", "agent"));
    assert_eq!(all[1].must("Subject"), "please look");
    m.inbox_stays(&[]);
    assert_eq!(m.ls("raw/codex/sessions/2026/11/25").len(), 1);
}

/// S1011: a migration changes no name, no inode number and no text.
#[test]
fn s1011_migration() {
    let (bed, m) = with(|bed| put(&log(bed, A), conversation(true)));
    let before = tree(&m);
    assert_eq!(before.len(), 2);
    let new = conversation(false);
    fs::write(log(&bed, A), &new).unwrap();
    let raw = format!("raw/codex/sessions/2026/11/25/rollout-2026-11-25T23-00-00-{A}.jsonl");
    soon("it is read anew", || m.cat(&raw) == new);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(tree(&m), before);
}

/// S1012: a log that is moved to the archive keeps its messages under their names.
#[test]
fn s1012_archive() {
    let (bed, m) = with(|bed| put(&log(bed, A), conversation(false)));
    let before = tree(&m);
    let folder = bed.path("home/.codex/archived_sessions");
    fs::create_dir_all(&folder).unwrap();
    let from = log(&bed, A);
    fs::rename(&from, folder.join(from.file_name().unwrap())).unwrap();
    soon("it is in the archive", || m.ls("raw/codex") == ["archived_sessions"]);
    soon("it is shown as before", || m.ls("threads").len() == 1 && tree(&m) == before);
}

/// S1013: forks and rewinds have their own messages, whether they repeat their origin or not.
#[test]
fn s1013_forks() {
    let (bed, m) = with(|bed| {
        put(&log(bed, A), conversation(true));
        let begun = Rollout { text: String::new(), second: 10, is_legacy: true };
        let fork = begun
            .record("session_meta", &json!({"id": B, "cwd": "/home/anna/p", "forked_from_id": A}))
            .record("session_meta", &json!({"id": A}))
            .prompt("please look")
            .call()
            .answer("ran")
            .prompt("another way");
        put(&log(bed, B), fork.text);
    });
    assert_eq!(bodies(&m, B), ["another way"]);
    let mut branch = Rollout::new(A, false, &json!({"history_base": {"thread_id": A}}));
    branch.second = 30;
    put(&log(&bed, &format!("{A}_{B}")), branch.prompt("or right").text);
    soon("the branch", || bodies(&m, A).len() == 3);
    assert_eq!(bodies(&m, A)[2], "or right");
}

/// S1236: a fork keeps its own prompt and its own call if its origin had the same prompt later, before the fork was
/// read.
#[test]
fn s1236_an_origin_that_goes_on() {
    let (_bed, m) = with(|bed| {
        let talk = |begun: Rollout| begun.prompt("please look").call().answer("ran");
        let mut origin = talk(Rollout::new(A, true, &json!({})));
        origin.second = 40;
        put(&log(bed, A), origin.prompt("continue").call().answer("done A").text);
        let begun = Rollout { text: String::new(), second: 10, is_legacy: true };
        let fork = begun
            .record("session_meta", &json!({"id": B, "cwd": "/home/anna/p", "forked_from_id": A}))
            .record("session_meta", &json!({"id": A}));
        put(&log(bed, B), talk(fork).prompt("continue").call().answer("done B").text);
    });
    let call = "[tool call: shell completed -> 01-tool-shell.json]";
    assert_eq!(bodies(&m, B), ["continue".to_owned(), format!("{call}\ndone B")]);
}

/// S1014: a log whose first line describes no session is in `rejected/`.
#[test]
fn s1014_no_description() {
    let (_bed, m) = with(|bed| {
        let text = conversation(false);
        put(&log(bed, A), text.split_once('\n').unwrap().1);
    });
    assert!(m.ls("threads").is_empty());
    soon("it is rejected", || !m.ls("rejected").is_empty());
}
