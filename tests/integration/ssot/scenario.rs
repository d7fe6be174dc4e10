//! A task from its dispatch to its approval, with a lock on the way, by four agents that have only `cat` and
//! `echo`.

use std::fs;

use serde_json::{Value, json};

use super::{TASK, bed, draft, only, payload, send};
use crate::common::{Bed, Mount, soon};

/// Returns the derived state of the task.
fn task(bed: &Bed) -> Value {
    let text = fs::read_to_string(bed.path(format!("ssot/tasks/{TASK}.json"))).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// S314: a coordinator's clock is an hour ahead, so the result's own time lies before the dispatch. The result
/// counts after the dispatch, so every view and command calls the task submitted and not in progress. A verdict
/// counts in the same way. A message that the executor sends from its mount is later than the message that it
/// answers.
#[test]
fn s314_clocks_that_differ() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let hour = 3_600_000;
    let t0 = crate::common::samp::now() * 1000 - 2 * hour;
    let dispatch = super::record(
        "task_dispatch",
        "coordinator",
        "executor",
        t0 + hour,
        &payload("task_dispatch"),
    );
    let result = super::record(
        "task_result",
        "executor",
        "coordinator",
        t0 + 600_000,
        &payload("task_result"),
    );
    let id = |record: &Value| record["msg_id"].as_str().expect("msg_id").to_owned();
    // The time is by the executor's clock.
    let seconds = t0 / 1000 + 60;
    let ack = json!({
        "ack_for": dispatch["msg_id"], "from": "executor", "task_id": TASK,
        "timestamp": crate::common::samp::strftime(seconds, "%Y-%m-%dT%H:%M:%SZ"),
        "protocol_version": "AMP/1.0"
    });
    super::deliver(&bed, &dispatch);
    soon("dispatched", || task(&bed)["status"] == "dispatched");
    let file = bed.path(format!("ssot/acks/{TASK}/{}.json", id(&dispatch)));
    crate::common::agz::put(&file, format!("{ack:#}\n"));
    soon("in progress", || task(&bed)["status"] == "in_progress");
    super::deliver(&bed, &result);
    soon("submitted", || task(&bed)["status"] == "submitted");
    // Names and dates stay as the writers gave them.
    let name = crate::common::samp::strftime(t0 / 1000 + 600, "%Y%m%dT%H%M%S");
    assert!(only(&m).starts_with(&name), "{name}");
    let mut review = request(&id(&dispatch), &id(&result), 0);
    review["reject_count"] = json!(0);
    super::deliver(
        &bed,
        &super::record("review_request", "coordinator", "reviewer", t0 + hour + 1, &review),
    );
    soon("in review", || task(&bed)["status"] == "in_review");
    let verdict = super::record(
        "review_verdict",
        "reviewer",
        "coordinator",
        t0 + 1_200_000,
        &verdict("rejected"),
    );
    super::deliver(&bed, &verdict);
    soon("rejected", || task(&bed)["status"] == "rejected");
    let status = m.cat("status.txt");
    assert!(!status.contains("reject_count_wrong"), "{status}");
    m.umount();
    let out = bed.msgfs_out(&["--me", "coordinator", "check"]);
    assert!(out.ok(), "{out:?}");
    // An answer is later than the message that it answers, whatever its writer's clock says.
    let ahead = crate::common::samp::now() * 1000 + hour;
    super::deliver(
        &bed,
        &super::record(
            "task_dispatch",
            "coordinator",
            "executor",
            ahead,
            &payload("task_dispatch"),
        ),
    );
    let e = bed.mount("executor");
    let (_, sent) = send(&bed, &e, "coordinator", "task_result", &payload("task_result"));
    assert_eq!(sent["msg_id"], format!("task_result-{TASK}-{}", ahead + 1));
}

/// Reads the one new message and acknowledges it, as an agent does.
#[track_caller]
fn take(bed: &Bed, m: &Mount, id: &str) -> String {
    let name = only(m);
    let text = m.cat(&format!("inbox/{name}"));
    assert!(text.contains(&format!("Message-ID: <{id}@ssot>\n")), "{text}");
    let ack = bed.path(format!("ssot/acks/{TASK}/{id}.json"));
    assert!(!ack.exists(), "reading acknowledged {id}");
    m.ok(&format!("echo ok > inbox/{}.ack", name.strip_suffix(".txt").expect("name")));
    let said: Value = serde_json::from_str(&fs::read_to_string(ack).expect("ack")).expect("JSON");
    assert_eq!((&said["ack_for"], &said["task_id"]), (&json!(id), &json!(TASK)));
    m.inbox_becomes(&[]);
    text
}

fn request(dispatch: &str, result: &str, rejected: u32) -> Value {
    let mut payload = json!({
        "original_dispatch_ref": dispatch,
        "task_result_ref": result,
        "review_scope": "full",
        "diff_url": "/srv/shop/upload.diff",
        "reject_count": rejected
    });
    if rejected >= 2 {
        payload["coordinator_notes"] = json!("Lock is approaching");
    }
    payload
}

fn verdict(decision: &str) -> Value {
    let mut payload = json!({
        "decision": decision,
        "criteria_results": [
            {"criterion": "an upload survives one lost connection", "passed": decision == "approved",
             "evidence": "ran it"}
        ],
        "confidence": 0.95
    });
    if decision == "rejected" {
        payload["issues"] = json!([
            {"severity": "major", "file": "src/upload.rs", "line": 12, "description": "no back-off",
             "suggested_fix": "wait between tries"}
        ]);
    }
    payload
}

/// S141: a task goes through dispatch, acknowledgement, result, review, three rejections, lock, escalation, resume
/// and approval.
#[test]
fn s141_a_task_from_dispatch_to_approval() {
    let bed = bed();
    let (coordinator, executor) = (bed.mount("coordinator"), bed.mount("executor"));
    let (reviewer, admin) = (bed.mount("reviewer"), bed.mount("admin"));

    let (dispatch, _) =
        send(&bed, &coordinator, "executor", "task_dispatch", &payload("task_dispatch"));
    soon("dispatched", || task(&bed)["status"] == "dispatched");
    let text = take(&bed, &executor, &dispatch);
    assert!(text.contains("From: coordinator\nTo: executor\n"), "{text}");
    assert!(text.contains(&format!("Type: task_dispatch\nThread: {TASK}\n")), "{text}");
    assert!(text.contains("Add a retry to the upload."), "{text}");
    soon("in progress", || task(&bed)["status"] == "in_progress");

    let mut last = String::new();
    for round in 0..3 {
        let (result, _) =
            send(&bed, &executor, "coordinator", "task_result", &payload("task_result"));
        take(&bed, &coordinator, &result);
        let asked = request(&dispatch, &result, round);
        let (review, _) = send(&bed, &coordinator, "reviewer", "review_request", &asked);
        take(&bed, &reviewer, &review);
        let (id, _) = send(&bed, &reviewer, "coordinator", "review_verdict", &verdict("rejected"));
        take(&bed, &coordinator, &id);
        soon("counted", || task(&bed)["reject_count"] == round + 1);
        last = result;
    }
    assert_eq!((&task(&bed)["locked"], &task(&bed)["status"]), (&json!(true), &json!("locked")));
    let status = coordinator.cat("status.txt");
    assert!(status.lines().any(|l| l.contains(TASK) && l.contains("locked")), "{status}");

    // A locked task takes no further review.
    let asked = request(&dispatch, &last, 3);
    let out = coordinator.sh(&format!(
        "cat > outbox/reviewer <<'EOF'\n{}EOF",
        draft("reviewer", "review_request", &asked)
    ));
    let error = coordinator.cat("outbox/reviewer.error");
    assert!(error.contains("task_locked"), "{out:?}\n{error}");
    coordinator.ok("rm outbox/reviewer");

    let (escalation, _) = send(&bed, &coordinator, "admin", "escalation", &payload("escalation"));
    let name = only(&admin);
    let text = admin.cat(&format!("inbox/{name}"));
    assert!(text.contains(&format!("Message-ID: <{escalation}@ssot>\n")), "{text}");
    assert!(text.contains("Three rejections in a row."), "{text}");

    let out = bed.msgfs_out(&["--me", "executor", "ssot", "resume", TASK]);
    assert!(!out.ok() && out.stderr.contains("admin"), "{out:?}");
    let out = bed.msgfs_out(&["--me", "admin", "ssot", "resume", TASK]);
    assert!(out.ok(), "{out:?}");
    soon("unlocked", || task(&bed)["locked"] == false);
    assert_eq!(task(&bed)["reject_count"], 3, "the count is cumulative");

    let (review, _) = send(&bed, &coordinator, "reviewer", "review_request", &asked);
    take(&bed, &reviewer, &review);
    let (approved, _) =
        send(&bed, &reviewer, "coordinator", "review_verdict", &verdict("approved"));
    take(&bed, &coordinator, &approved);
    soon("approved", || task(&bed)["status"] == "approved");

    // Every participant sees the whole task, in order. A rebuild changes nothing.
    let before = fs::read(bed.path(format!("ssot/tasks/{TASK}.json"))).expect("task");
    for m in [&coordinator, &executor, &reviewer] {
        assert_eq!(m.ls(&format!("threads/{TASK}")).len(), 13, "{:?}", m.dir);
    }
    let out = bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]);
    assert!(out.ok(), "{out:?}");
    assert_eq!(fs::read(bed.path(format!("ssot/tasks/{TASK}.json"))).expect("task"), before);
}
