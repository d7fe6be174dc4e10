//! AMP/1.0 task records in a shared folder.

mod arriving;
mod scenario;
mod sending;
mod trust;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::agz::put;
use crate::common::{Bed, Mount};

/// The task of most tests.
const TASK: &str = "T-2026-001";

/// Makes a bed whose only store is an SSOT folder.
pub(crate) fn bed() -> Bed {
    bed_with("")
}

/// Makes the same with further lines of configuration before the store.
fn bed_with(more: &str) -> Bed {
    let bed = Bed::new();
    bed.config(&format!(
        "{more}[[store]]\nkind = \"ssot\"\ndir = {:?}\n",
        bed.path("ssot").to_str().unwrap()
    ));
    bed
}

/// Returns a payload of each type that breaks no rule. The refs are those of the first round.
pub(crate) fn payload(kind: &str) -> Value {
    match kind {
        "task_dispatch" => json!({
            "description": "Add a retry to the upload.",
            "repo": "/srv/shop",
            "branch": "agent/upload-retry",
            "subtasks": [
                {"subtask_id": "T-2026-001-S1", "description": "retry three times", "estimated_lines": 40}
            ],
            "acceptance_criteria": ["an upload survives one lost connection"],
            "risk_level": "low"
        }),
        "task_result" => json!({
            "subtask_id": "T-2026-001-S1",
            "completion_status": "complete",
            "diff_summary": {"files_changed": ["src/upload.rs"], "lines_added": 38, "lines_removed": 2},
            "self_assessment": {"criteria_met": [true], "notes": ["tested with a cut connection"]},
            "work_log": []
        }),
        "escalation" => json!({
            "escalation_type": "hallucination_lock",
            "severity": "critical",
            "triggered_by": "coordinator",
            "description": "Three rejections in a row.",
            "affected_msgs": [],
            "system_state_snapshot": {
                "task_status": "locked", "reject_count": 3, "last_successful_msg_id": null
            },
            "auto_suspended": true
        }),
        "review_verdict" => json!({
            "decision": "rejected",
            "criteria_results": [],
            "issues": [{
                "severity": "major", "file": "src/upload.rs", "line": 3,
                "description": "it never ends", "suggested_fix": "count"
            }],
            "confidence": 0.9
        }),
        other => panic!("no payload for {other}"),
    }
}

/// Returns a whole record.
pub(crate) fn record(kind: &str, from: &str, to: &str, millis: i64, payload: &Value) -> Value {
    json!({
        "msg_id": format!("{kind}-{TASK}-{millis}"),
        "protocol_version": "AMP/1.0",
        "type": kind,
        "from": from,
        "to": to,
        "task_id": TASK,
        "timestamp": "2026-04-24T17:42:03Z",
        "requires_ack": kind != "escalation",
        "payload": payload
    })
}

/// Puts a record where its writer would.
pub(crate) fn deliver(bed: &Bed, record: &Value) -> PathBuf {
    let id = record["msg_id"].as_str().expect("msg_id");
    let file = bed.path("ssot/messages").join(TASK).join(format!("{id}.json"));
    put(&file, serde_json::to_string_pretty(record).expect("JSON") + "\n");
    file
}

/// Returns the text of a draft with headers.
pub(crate) fn draft(to: &str, kind: &str, payload: &Value) -> String {
    format!("To: {to}\nType: {kind}\nTask: {TASK}\n\n{payload:#}\n")
}

/// Sends a draft by a shell redirection. Returns the bytes of the file that it became.
#[track_caller]
fn send(bed: &Bed, m: &Mount, to: &str, kind: &str, payload: &Value) -> (String, Value) {
    let before = files(bed);
    m.ok(&format!("cat > outbox/{to} <<'EOF'\n{}EOF", draft(to, kind, payload)));
    let new: Vec<PathBuf> = files(bed).into_iter().filter(|f| !before.contains(f)).collect();
    let [file] = &new[..] else {
        panic!("expected one new record, found {new:?}\n{}", m.sh("cat outbox/*.error").stdout)
    };
    let text = fs::read_to_string(file).expect("record");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    (value["msg_id"].as_str().expect("msg_id").to_owned(), value)
}

/// Returns the records of the task.
fn files(bed: &Bed) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(bed.path("ssot/messages").join(TASK)) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
}

/// Returns the only name in `inbox/`, once it is there.
#[track_caller]
fn only(m: &Mount) -> String {
    crate::common::soon("one message in inbox/", || m.ls("inbox").len() == 1);
    m.ls("inbox").remove(0)
}
