//! ATSF threads of projects in the mount.

mod reading;
mod rewritten;
mod worktrees;
mod writing;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::agz::put;
use crate::common::{Bed, Mount};

/// Ids of threads, in no order.
pub(crate) const ONE: &str = "5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01";
const TWO: &str = "0d3be1b2-77ab-4c55-8f0e-53f8d0c7e902";

/// Returns the text of a thread.json as the real application writes it.
fn manifest(id: &str, title: &str, messages: &[Value]) -> Value {
    let of = |role: &str| messages.iter().filter(|m| m["role"] == role).count();
    let calls: usize =
        messages.iter().filter_map(|m| m["toolCalls"].as_array()).map(Vec::len).sum();
    json!({
        "specVersion": "1.1",
        "threadId": id,
        "title": title,
        "createdAt": "2026-04-24T17:00:00.000Z",
        "updatedAt": messages.last().map_or(json!("2026-04-24T17:00:00.000Z"), |m| m["timestamp"].clone()),
        "agent": {"id": "claude-code", "name": "Claude Code", "protocol": "acp"},
        "context": {"workingDir": "/srv/shop"},
        "stats": {
            "messageCount": messages.len(),
            "userMessageCount": of("user"),
            "agentMessageCount": of("agent"),
            "toolCallCount": calls
        }
    })
}

/// Returns a message with one text block.
pub(crate) fn message(n: u32, role: &str, time: &str, text: &str) -> Value {
    json!({
        "id": format!("6a0f8f7e-0000-4000-8000-{n:012}"),
        "role": role,
        "timestamp": time,
        "content": [{"type": "text", "text": text}]
    })
}

fn lines(messages: &[Value]) -> String {
    messages.iter().map(|m| format!("{m}\n")).collect()
}

/// Returns the folder of a thread.
fn folder(project: &Path, id: &str) -> PathBuf {
    project.join(".agent/threads").join(id)
}

/// Writes a thread with its log.
pub(crate) fn thread(project: &Path, id: &str, title: &str, messages: &[Value]) {
    let dir = folder(project, id);
    put(&dir.join("messages.jsonl"), lines(messages));
    put(&dir.join("thread.json"), format!("{:#}\n", manifest(id, title, messages)));
}

/// Returns the lines of a thread's log.
fn log(project: &Path, id: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder(project, id).join("messages.jsonl")).expect("log");
    assert!(text.ends_with('\n') || text.is_empty(), "{text:?}");
    text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

/// Makes a bed whose only store is a project filled by `fill`, and mounts it.
#[track_caller]
fn with(fill: impl FnOnce(&Path)) -> (Bed, PathBuf, Mount) {
    let bed = Bed::new();
    let project = bed.path("shop");
    fs::create_dir(&project).expect("mkdir");
    bed.config(&store(&project));
    fill(&project);
    let m = bed.mount("bar");
    (bed, project, m)
}

pub(crate) fn store(project: &Path) -> String {
    format!("[[store]]\nkind = \"atsf\"\ndir = {:?}\n", project.to_str().expect("UTF-8"))
}

/// Returns two messages: a question of the user and an answer of the agent.
fn two() -> Vec<Value> {
    vec![
        message(1, "user", "2026-04-24T17:42:03.100Z", "Why does the upload fail?"),
        message(2, "agent", "2026-04-24T17:42:09.250Z", "The connection is cut."),
    ]
}
