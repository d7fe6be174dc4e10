//! `msgfs keep`: sessions of coding agents as threads, and their place in the mount.

mod keeping;
mod standing_in;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::agz::put;
use crate::common::{Bed, Mount, Out};

const ONE: &str = "5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01";
const TWO: &str = "0d3be1b2-77ab-4c55-8f0e-53f8d0c7e902";
/// A sub-agent of the first session.
const SUB: &str = "a1b2c3d4e5f6a7b8c";

/// Returns the id of a line.
fn uuid(n: u32) -> String {
    format!("6a0f8f7e-0000-4000-8000-{n:012}")
}

/// A session that is being written.
struct Session {
    file: PathBuf,
    id: String,
    cwd: String,
    lines: u32,
}

impl Session {
    fn new(bed: &Bed, id: &str, first: u32) -> Self {
        let file = bed.path(format!("home/.claude/projects/-shop/{id}.jsonl"));
        let cwd = bed.path("shop").to_str().unwrap().to_owned();
        Self { file, id: id.into(), cwd, lines: first }
    }

    fn time(&self) -> String {
        format!("2026-04-24T17:{:02}:{:02}.100Z", self.lines / 60 % 60, self.lines % 60)
    }

    fn add(&mut self, kind: &str, message: Value, more: Value) {
        self.lines += 1;
        let mut line = json!({
            "type": kind,
            "uuid": uuid(self.lines),
            "parentUuid": null,
            "timestamp": self.time(),
            "sessionId": self.id,
            "cwd": self.cwd,
            "version": "2.1.332",
            "gitBranch": "main",
            "isSidechain": false,
            "userType": "external",
            "message": message
        });
        for (name, value) in more.as_object().unwrap() {
            line[name] = value.clone();
        }
        let mut text = fs::read_to_string(&self.file).unwrap_or_default();
        text.push_str(&format!("{line}\n"));
        put(&self.file, text);
    }

    /// Adds a call whose whole result is in a file of its own.
    fn long_call(&mut self, id: &str) {
        let file = self.file.with_extension("").join("tool-results").join(format!("{id}.txt"));
        put(&file, "the whole result\n".repeat(9));
        self.call(id, "cat long", &format!("Output saved to {}\nthe whole", file.display()));
    }

    /// Adds the summary of a compaction.
    fn compact(&mut self) {
        self.lines += 1;
        let boundary = json!({
            "type": "system", "subtype": "compact_boundary", "uuid": uuid(self.lines), "parentUuid": null,
            "timestamp": self.time(), "sessionId": self.id, "cwd": self.cwd, "version": "2.1.332"
        });
        let mut text = fs::read_to_string(&self.file).expect("session");
        text.push_str(&format!("{boundary}\n"));
        put(&self.file, text);
        let message = json!({"role": "user", "content": "This is the summary."});
        self.add("user", message, json!({"isCompactSummary": true}));
    }

    /// Begins a session with copies of all lines of this one.
    fn fork(&self, bed: &Bed, id: &str) -> Self {
        let fork = Self { lines: self.lines, ..Self::new(bed, id, 0) };
        let text = fs::read_to_string(&self.file).expect("session");
        let copy = |line: &str| {
            let mut copy: Value = serde_json::from_str(line).expect("JSON");
            copy["sessionId"] = json!(id);
            copy["forkedFrom"] = json!({"sessionId": self.id, "messageUuid": copy["uuid"]});
            format!("{copy}\n")
        };
        put(&fork.file, text.lines().map(copy).collect::<String>());
        fork
    }

    fn block(&mut self, block: &Value, more: Value) {
        let message = json!({
            "id": format!("msg_{}", self.lines / 10),
            "role": "assistant",
            "model": "opus",
            "content": [block],
            "stop_reason": null,
            "usage": {"input_tokens": 3, "output_tokens": 7}
        });
        self.add("assistant", message, more);
    }

    fn text(&mut self, text: &str) {
        self.block(&json!({"type": "text", "text": text}), json!({}));
    }

    fn thought(&mut self, text: &str) {
        self.block(&json!({"type": "thinking", "thinking": text, "signature": "x"}), json!({}));
    }

    fn call(&mut self, id: &str, command: &str, output: &str) {
        let call =
            json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}});
        self.block(&call, json!({}));
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": output});
        self.add("user", json!({"role": "user", "content": [result]}), json!({}));
    }

    /// Adds a prompt and an answer with all that a session may have.
    fn turn(&mut self, n: u32) {
        let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}});
        let prompt = json!([{"type": "text", "text": format!("prompt {n}")}, image]);
        self.add("user", json!({"role": "user", "content": prompt}), json!({}));
        self.thought("What is \"it\"?\nLook at the log.");
        self.call(&format!("t{n}"), "tail log", "a\tb\n\u{1b}[31mred\n");
        self.long_call(&format!("long{n}"));
        self.text(&format!("answer {n}\nwith two lines"));
    }

    /// Adds the session of a sub-agent, with its task and its answer.
    fn sub_agent(&self) {
        let folder = self.file.with_extension("").join("subagents");
        let file = folder.join(format!("agent-{SUB}.jsonl"));
        put(&file.with_extension("meta.json"), r#"{"agentType":"Explore","toolUseId":"t1"}"#);
        let mut sub =
            Self { file, id: self.id.clone(), cwd: self.cwd.clone(), lines: self.lines + 500 };
        let more = || json!({"isSidechain": true, "agentId": SUB});
        sub.add("user", json!({"role": "user", "content": "find the file"}), more());
        sub.block(&json!({"type": "text", "text": "It is src/main.rs."}), more());
    }
}

/// The stores of a configuration: the project, the sessions, or both.
fn stores(bed: &Bed, kinds: &[&str]) -> String {
    let dir = |kind: &str| match kind {
        "atsf" => bed.path("shop"),
        "codex" => bed.path("home/.codex"),
        _ => bed.path("home/.claude"),
    };
    let one =
        |kind: &&str| format!("[[store]]\nkind = {kind:?}\ndir = \"{}\"\n", dir(kind).display());
    kinds.iter().map(one).collect()
}

/// Returns a bed with a project and both stores.
fn bed() -> Bed {
    let bed = Bed::new();
    fs::create_dir(bed.path("shop")).expect("mkdir");
    bed.config(&stores(&bed, &["claude", "atsf"]));
    bed
}

fn keep(bed: &Bed, args: &[&str]) -> Out {
    bed.msgfs_out(&[&["--me", "anna", "keep"], args].concat())
}

#[track_caller]
fn kept(bed: &Bed, args: &[&str]) -> String {
    let out = keep(bed, args);
    assert!(out.ok(), "{out:?}");
    out.said()
}

/// Returns the folder of a thread.
fn folder(bed: &Bed, id: &str) -> PathBuf {
    bed.path("shop/.agent/threads").join(id)
}

/// Returns the lines of a thread's log.
fn log(bed: &Bed, id: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder(bed, id).join("messages.jsonl")).expect("log");
    assert!(text.ends_with('\n'), "{text:?}");
    text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

fn meta(bed: &Bed, id: &str) -> Value {
    let text = fs::read_to_string(folder(bed, id).join("thread.json")).expect("thread.json");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the bytes of all files below a folder.
fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.to_str().unwrap().to_owned();
        if path.is_dir() {
            all.extend(tree(&path));
        } else {
            all.push((name, fs::read(&path).expect("file")));
        }
    }
    all.sort();
    all
}

/// Returns the names, inode numbers and checksums of everything in the folders that show conversations.
fn look(m: &Mount) -> String {
    let dirs = "threads transcripts sent archive";
    let stat = format!("find {dirs} -printf '%p %i %s %TY-%Tm-%TdT%TT\\n' | LC_ALL=C sort");
    let sums = format!("find {dirs} -type f -exec sha256sum {{}} + | LC_ALL=C sort");
    m.ok(&format!("{stat}; {sums}; cat threads/*/*.txt"))
}
