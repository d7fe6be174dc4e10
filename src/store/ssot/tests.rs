//! Tests of the store over real folders: four roles over one SSOT, and a sink that keeps the books like an index.

mod arriving;
mod order;
mod sending;
mod vectors;

use crate::store::MessageReader as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::model::{Draft, SignatureClaim, Timestamp};
use crate::store::engine::files::FileFormat as _;
use crate::store::testing::{Book, Key, traits::*};
use crate::store::{
    FoundMessage, Kind, Location, PrepareContext, PreparedRecord, Rejection, ScanSink,
};

const TASK: &str = "T-2026-007";
/// 2026-02-26T14:32:07.001Z.
const START: i64 = 1_772_116_327_001;

/// An SSOT in a folder that is not there yet.
struct Bed {
    top: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Self { top: tempfile::tempdir().unwrap() }
    }

    fn dir(&self) -> PathBuf {
        self.top.path().join("ssot")
    }

    fn open(&self, role: &str) -> Ssot {
        Ssot::open(&self.spec(role)).unwrap()
    }

    fn spec(&self, role: &str) -> StoreSpec {
        StoreSpec {
            may_create: true,
            name: "ssot".into(),
            kind: Kind::Ssot,
            dir: self.dir(),
            me: role.into(),
            ..StoreSpec::default()
        }
    }

    /// Writes a file below the SSOT, as another program would, long ago.
    fn put(&self, path: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(10);
        file.set_modified(then).unwrap();
        path
    }

    /// Puts a message where it belongs.
    fn deliver(&self, message: &Value) -> PathBuf {
        let (task, id) =
            (message["task_id"].as_str().unwrap(), message["msg_id"].as_str().unwrap());
        self.put(&format!("messages/{task}/{id}.json"), format!("{message:#}\n"))
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.dir().join(path)).unwrap()
    }
}

/// Returns a payload that breaks no rule and follows every recommendation.
fn payload(kind: SsotMessageType) -> Value {
    match kind {
        SsotMessageType::Dispatch => json!({
            "description": "Add a retry budget", "repo": "/srv/git/uploader",
            "branch": "feature/retry-budget", "risk_level": "medium",
            "subtasks": [{"subtask_id": "S1", "description": "Count", "estimated_lines": 40}],
            "acceptance_criteria": ["tried at most 5 times"],
        }),
        SsotMessageType::Result => json!({
            "subtask_id": "S1", "completion_status": "complete",
            "diff_summary": {"files_changed": ["a.rs"], "lines_added": 38, "lines_removed": 4},
            "self_assessment": {"criteria_met": [true], "notes": ["test added"]}, "work_log": [],
        }),
        SsotMessageType::ReviewRequest => json!({
            "original_dispatch_ref": id(SsotMessageType::Dispatch, 0), "task_result_ref": id(SsotMessageType::Result, 1),
            "review_scope": "full", "diff_url": "/tmp/d.diff", "reject_count": 0,
        }),
        SsotMessageType::ReviewVerdict => json!({
            "decision": "rejected", "confidence": 0.93,
            "criteria_results": [{"criterion": "5 times", "passed": false, "evidence": "6 seen"}],
            "issues": [{"severity": "major", "file": "a.rs", "line": 88, "description": "reset",
                        "suggested_fix": "persist"}],
        }),
        SsotMessageType::Escalation => json!({
            "escalation_type": "hallucination_lock", "severity": "critical",
            "triggered_by": "coordinator", "description": "rejected three times",
            "affected_msgs": [], "auto_suspended": true,
            "system_state_snapshot": {"task_status": "locked", "reject_count": 3,
                                      "last_successful_msg_id": null},
        }),
    }
}

fn id(kind: SsotMessageType, later: i64) -> String {
    format!("{}-{TASK}-{}", kind.as_str(), START + later)
}

/// Returns a message of a type, `later` milliseconds after the first.
fn message(kind: SsotMessageType, later: i64) -> Value {
    let (from, to) = match kind {
        SsotMessageType::Dispatch => ("coordinator", "executor"),
        SsotMessageType::Result => ("executor", "coordinator"),
        SsotMessageType::ReviewRequest => ("coordinator", "reviewer"),
        SsotMessageType::ReviewVerdict => ("reviewer", "coordinator"),
        SsotMessageType::Escalation => ("coordinator", "admin"),
    };
    json!({
        "msg_id": id(kind, later), "protocol_version": "AMP/1.0", "type": kind.as_str(),
        "from": from, "to": to, "task_id": TASK, "timestamp": "2026-02-26T14:32:07+00:00",
        "requires_ack": kind != SsotMessageType::Escalation, "payload": payload(kind),
    })
}

use vocabulary::SsotMessageType;

/// Returns a draft with header lines.
fn draft(to: &str, kind: SsotMessageType, body: &Value) -> Draft {
    Draft {
        to: vec![to.to_owned()],
        kind: Some(kind.as_str().to_owned()),
        task: Some(TASK.to_owned()),
        body: body.to_string(),
        ..Draft::default()
    }
}

fn whole(message: &Value) -> Draft {
    Draft { to: vec!["x".into()], body: message.to_string(), ..Draft::default() }
}

fn prepare(store: &Ssot, draft: &Draft) -> Result<PreparedRecord, StoreError> {
    prepare_at(store, draft, Timestamp::now())
}

fn prepare_at(store: &Ssot, draft: &Draft, now: Timestamp) -> Result<PreparedRecord, StoreError> {
    Ok(store.prepare_records(draft, &PrepareContext::new(now, &Key::new(7)))?.remove(0))
}

/// Sends a draft and returns its id.
fn send(store: &Ssot, draft: &Draft) -> Result<String, StoreError> {
    let made = prepare(store, draft)?;
    store.append_record(&made)?;
    Ok(made.id)
}

/// Scans a change at a path.
fn noted(books: &mut Book, store: &Ssot, path: &Path) {
    store.note_change(path);
    books.scan(store, false);
}

/// Returns the findings of `msgfs check`: rule and file.
fn violations(store: &Ssot) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    store
        .check(&crate::model::verify::find_claim_fault, &mut |v| out.push((v.rule, v.file)))
        .unwrap();
    out
}

#[test]
fn what_is_kept_of_a_message_is_small() {
    assert_eq!(size_of::<format::SsotFileFacts>(), 96);
}
