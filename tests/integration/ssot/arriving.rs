//! Records that others wrote.

use std::fs;

use serde_json::{Value, json};

use super::{TASK, bed, deliver, only, payload, record};
use crate::common::agz::put;
use crate::common::soon;

const T0: i64 = 1_777_052_523_000;

/// S146: a record is shown as header lines, readable text and indented JSON. Reading acknowledges nothing.
#[test]
fn s146_reading() {
    let bed = bed();
    let mut dispatch =
        record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    dispatch["payload"]["x_budget"] = json!(1e2);
    let file = deliver(&bed, &dispatch);
    let text = fs::read_to_string(&file).expect("record").replace("100.0", "1e2");
    put(&file, &text);
    let m = bed.mount("executor");
    let name = only(&m);
    assert!(name.starts_with("20260424T174203.000Z-coordinator-"), "{name}");
    let shown = m.cat(&format!("inbox/{name}"));
    let head = format!(
        "From: coordinator\nTo: executor\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nType: task_dispatch\n\
         Thread: {TASK}\nMessage-ID: <task_dispatch-{TASK}-{T0}@ssot>\nSignature: none\n\n"
    );
    assert!(shown.starts_with(&head), "{shown}");
    assert!(shown.contains("Add a retry to the upload.") && shown.contains("1e2"), "{shown}");
    assert!(!bed.path("ssot/acks").join(TASK).exists());
    let status = m.cat("status.txt");
    let waits =
        |l: &&str| l.contains(&format!("task_dispatch-{TASK}-{T0}")) && l.contains("overdue");
    assert!(status.lines().any(|l| waits(&l)), "{status}");
    // A read record is not acknowledged, and both sides see the acknowledgement that is missing.
    let c = bed.mount("coordinator");
    let status = c.cat("status.txt");
    assert!(status.lines().any(|l| waits(&l)), "{status}");
}

/// S147: an acknowledgement by the recipient marks the record read. It can be given once. One by another role
/// counts for nothing.
#[test]
fn s147_acknowledgements() {
    let bed = bed();
    let record = record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    deliver(&bed, &record);
    let m = bed.mount("executor");
    let name = only(&m);
    let stem = name.strip_suffix(".txt").expect("name");
    assert!(!m.ok("ls -a inbox").contains(".ack"), "not listed");
    let ack = bed.path(format!("ssot/acks/{TASK}/task_dispatch-{TASK}-{T0}.json"));
    let other = json!({"ack_for": record["msg_id"], "from": "reviewer", "task_id": TASK,
                       "timestamp": "2026-04-24T17:43:00Z", "protocol_version": "AMP/1.0"});
    put(&ack, format!("{other:#}\n"));
    m.inbox_stays(&[&name]);
    fs::remove_file(&ack).expect("remove");
    m.ok(&format!("echo yes > inbox/{stem}.ack; echo again > archive/2026-04-24/{stem}.ack"));
    let said: Value = serde_json::from_str(&fs::read_to_string(&ack).expect("ack")).expect("JSON");
    assert_eq!((&said["from"], &said["ack_for"]), (&json!("executor"), &record["msg_id"]));
    m.inbox_becomes(&[]);
    let status = m.cat("status.txt");
    assert!(!status.contains("overdue"), "{status}");
}

/// S148: a record that breaks a rule is not delivered. It gives one line in errors.log, once, and a file in
/// rejected/.
#[test]
fn s148_refused() {
    let bed = bed();
    let mut bad = record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    bad["payload"]["branch"] = json!("main");
    deliver(&bed, &bad);
    for _ in 0..2 {
        let m = bed.mount("executor");
        soon("in rejected/", || m.ls("rejected").len() == 1);
        let text = m.ok("cat rejected/*");
        assert!(text.starts_with("Reason: ") && text.contains("branch_protected"), "{text}");
        m.inbox_stays(&[]);
        let log = bed.path("ssot/errors.log");
        soon("logged", || log.exists());
        let log = fs::read_to_string(log).expect("errors.log");
        let lines: Vec<Value> =
            log.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert_eq!(lines[0]["rules"], json!(["branch_protected"]));
        assert_eq!(
            (&lines[0]["receiver"], &lines[0]["msg_id"]),
            (&json!("executor"), &bad["msg_id"])
        );
    }
}

/// S148: a thing in the place of a record that is no file is reported, and hides nothing else.
#[test]
fn s148_no_files() {
    let bed = bed();
    deliver(
        &bed,
        &record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch")),
    );
    let folder = format!("task_dispatch-{TASK}-{}.json", T0 + 1);
    fs::create_dir(bed.path("ssot/messages").join(TASK).join(&folder)).expect("mkdir");
    let m = bed.mount("executor");
    only(&m);
    let status = m.cat("status.txt");
    assert!(status.lines().any(|l| l.contains(&folder) && l.contains("a folder")), "{status}");
    let out = m.ok("stat -c %Y archive/*/*.txt");
    assert_eq!(out.trim(), (T0 / 1000).to_string(), "the time of a record is that of its id");
}

/// S148: a link in the place of a folder is reported, is not followed, and does not stop the mount.
#[test]
fn s148_links() {
    for area in ["messages", "acks", "resumes"] {
        let bed = bed();
        deliver(
            &bed,
            &record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch")),
        );
        let (here, there) = (bed.path("ssot").join(area), bed.path("elsewhere"));
        fs::create_dir_all(&here).expect("mkdir");
        fs::rename(&here, &there).expect("rename");
        std::os::unix::fs::symlink(&there, &here).expect("symlink");
        let m = bed.mount("executor");
        let told = |l: &str| l.contains(area) && l.contains("a symbolic link");
        soon("told", || m.cat("status.txt").lines().any(told));
        if area == "messages" {
            m.inbox_stays(&[]);
        } else {
            only(&m);
        }
        // A folder that takes the place of the link is followed.
        fs::remove_file(&here).expect("remove");
        fs::rename(&there, &here).expect("rename back");
        only(&m);
        soon("well again", || !m.cat("status.txt").lines().any(told));
    }
}

/// S149: check names the errors, and rebuilds the derived state from the records.
#[test]
fn s149_check_and_repair() {
    let bed = bed();
    deliver(
        &bed,
        &record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch")),
    );
    let out = bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]);
    assert!(out.ok(), "{out:?}");
    let task = bed.path(format!("ssot/tasks/{TASK}.json"));
    let made = fs::read_to_string(&task).expect("derived state");
    let state: Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!(
        (&state["status"], &state["updated_at"]),
        (&json!("dispatched"), &json!("2026-04-24T17:42:03.000Z"))
    );
    fs::write(&task, "{}").expect("damage");
    let out = bed.msgfs_out(&["--me", "coordinator", "check"]);
    assert!(!out.ok() && out.said().contains(&format!("tasks/{TASK}.json")), "{out:?}");
    assert!(bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]).ok());
    assert_eq!(fs::read_to_string(&task).expect("derived state"), made);
}
