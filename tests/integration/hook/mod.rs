//! The bell for coding agents: the texts that a harness gets, their times, and the changes in its configuration.
//! Nothing here needs a harness; the tests play each one from what is known of it (docs/HARNESSES.md).

mod claude_plugin;
mod codex;
mod installer;
mod integrate;
mod plugin;
mod private;
mod ring;
mod turns;
mod volume;
mod waiter;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, Out, binary, run};

/// A word in every text of these tests that no hook may print.
const SECRET: &str = "xylophone-secret";
/// The time after which a hook may have given up a part of its work.
const SLOW: Duration = Duration::from_millis(180);

/// Makes a bed with mail from bob to alice. Her name is in the configuration and the environment, and msgfs is on
/// the PATH as in a harness.
fn bed(messages: usize) -> Bed {
    let mut bed = Bed::new();
    bed.config("me = \"alice\"\n");
    let tools = bed.path("tools");
    fs::create_dir(&tools).unwrap();
    std::os::unix::fs::symlink(binary(), tools.join("msgfs")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", tools.display());
    let env = [
        ("PATH", path.as_str()),
        ("MSGFS_ME", "alice"),
        ("CLAUDECODE", "1"),
        ("CLAUDE_CODE_SESSION_ID", "s1"),
    ];
    bed.env.extend(env.map(|(name, value)| (name.into(), value.into())));
    for n in 0..messages {
        deliver(&bed, "bob", n as i64);
    }
    bed
}

fn deliver(bed: &Bed, from: &str, n: i64) -> Rec {
    let body = format!("{SECRET} number {n}");
    samp::append(&bed.store, from, "alice", SECRET, &body, T0 + n)
}

/// Returns a hook as a harness would start it, in a shell of its own.
fn hook(bed: &Bed, line: &str) -> Command {
    let mut command = bed.command("sh");
    command.args(["-c", line]);
    for unset in [
        "CLAUDE_PROJECT_DIR",
        "CLAUDE_PID",
        "CLAUDE_CODE_ENTRYPOINT",
        "GEMINI_PROJECT_DIR",
        "MSGFS_HOOK",
    ] {
        if !bed.env.iter().any(|(name, _)| name == unset) {
            command.env_remove(unset);
        }
    }
    command
}

/// Runs `msgfs hook run …` with this payload.
#[track_caller]
fn ring(bed: &Bed, event: &str, harness: &str, payload: &Value) -> Out {
    let line = format!("exec msgfs hook run {event} --for {harness}");
    let out = run(hook(bed, &line), Some(format!("{payload}\n").as_bytes()));
    assert!(!out.said().contains(SECRET), "{out:?}");
    out
}

/// Returns the output of a hook, which must do nothing but print. If the hook gave up because the machine was
/// busy, as it says in its log if there is time for that, it has told nothing and is run again. So is a hook that said
/// nothing and was slow.
#[track_caller]
fn says(bed: &Bed, event: &str, harness: &str, payload: &Value) -> String {
    let log = || fs::read_to_string(bed.path("run/msgfs/hook/hook.log")).unwrap_or_default();
    let late = || log().matches("it took longer than").count();
    for tries in 1..=20 {
        let (before, began) = (late(), Instant::now());
        let out = ring(bed, event, harness, payload);
        assert!(out.ok() && out.stderr.is_empty(), "{event} {harness}: {out:?}");
        let is_slow = began.elapsed() >= SLOW && tries < 5;
        if !out.stdout.is_empty() || late() == before && !is_slow {
            return out.stdout;
        }
    }
    panic!("the hook is late again and again: {}", log());
}

/// Returns the input that a harness gives at an event.
fn payload(harness: &str, event: &str) -> Value {
    let name = match (harness, event) {
        ("gemini", "prompt") => "BeforeAgent",
        ("gemini", "stop") => "AfterAgent",
        (_, "session-start") => "SessionStart",
        (_, "prompt") => "UserPromptSubmit",
        (_, "tool") => "PostToolUse",
        (_, "session-end") => "SessionEnd",
        _ => "Stop",
    };
    let mut told = match harness {
        "copilot" => json!({"sessionId":"s1","timestamp":1,"cwd":"/p","stopReason":"end_turn"}),
        "cursor" => json!({
            "conversation_id":"s1","cursor_version":"3","workspace_roots":["/p"],
            "status":"completed","loop_count":0,
        }),
        _ => json!({"session_id":"s1","cwd":"/p","hook_event_name":name,"prompt":"x"}),
    };
    match harness {
        "codex" => {
            told["turn_id"] = "t".into();
            told["model"] = "m".into();
        }
        "gemini" => told["timestamp"] = "2026-11-22T00:00:00Z".into(),
        _ => {}
    }
    if event == "stop" && harness != "cursor" {
        told["stop_hook_active"] = false.into();
    }
    told
}

/// Returns mode, time and content of everything below a folder, except for the hook's own files.
fn snapshot(root: &Path) -> BTreeMap<String, (u32, i64, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // The hook's own files are made below it.
            if path == root.join("run") {
                continue;
            }
            let meta = fs::symlink_metadata(&path).unwrap();
            let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let shown = path.strip_prefix(root).unwrap().display().to_string();
            all.insert(shown, (meta.mode(), meta.mtime(), meta.mtime_nsec(), bytes));
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    all
}
