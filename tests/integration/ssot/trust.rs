//! Records that trust refuses.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};

use super::{TASK, bed, bed_with, deliver, payload, record, send};
use crate::common::agz::put;
use crate::common::samp::{self, key};
use crate::common::{Bed, Mount, soon};

const T0: i64 = 1_777_052_523_000;

/// Signs the file of a record as msgfs does; if `spoiled`, over other bytes.
fn sign(file: &Path, key: &SigningKey, spoiled: bool) {
    let end: &[u8] = if spoiled { b"?" } else { b"" };
    let signed = [b"ssot-sig-v1\n", fs::read(file).expect("record").as_slice(), end].concat();
    let sig = json!({
        "pub": BASE64.encode(key.verifying_key().as_bytes()),
        "sig": BASE64.encode(key.sign(&signed).to_bytes()),
    });
    put(&file.with_extension("sig"), format!("{sig}\n"));
}

/// Returns the content of `tasks/`.
fn task(bed: &Bed) -> Value {
    let text = fs::read_to_string(bed.path(format!("ssot/tasks/{TASK}.json"))).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Returns the source files of `errors.log` with the rule `signature`.
fn logged(bed: &Bed) -> Vec<String> {
    let log = fs::read_to_string(bed.path("ssot/errors.log")).unwrap_or_default();
    let lines = log.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
    let of = |line: Value| {
        assert_eq!(line["rules"], json!(["signature"]), "{line}");
        line["source"].as_str().expect("source").to_owned()
    };
    let mut out: Vec<String> = lines.map(of).collect();
    out.sort();
    out
}

fn source(record: &Value) -> String {
    format!("messages/{TASK}/{}.json", record["msg_id"].as_str().expect("msg_id"))
}

/// Delivers a record after its signature. An unsigned record would count until its signature comes.
fn deliver_signed(bed: &Bed, record: &Value, key: &SigningKey) {
    let (file, aside) = (bed.path("ssot").join(source(record)), bed.path("aside.json"));
    put(&aside, format!("{record:#}\n"));
    sign(&aside, key, false);
    for ending in ["sig", "json"] {
        fs::rename(aside.with_extension(ending), file.with_extension(ending)).expect("rename");
    }
}

/// Returns an acknowledged dispatch, three rejections and a critical escalation.
fn locked_task() -> Vec<Value> {
    let verdict =
        |n| record("review_verdict", "reviewer", "coordinator", n, &payload("review_verdict"));
    let escalation = record("escalation", "executor", "admin", T0 + 4, &payload("escalation"));
    let dispatch =
        record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    vec![dispatch, verdict(T0 + 1), verdict(T0 + 2), verdict(T0 + 3), escalation]
}

/// Checks that only these records are refused, and that they count for nothing in any view or command.
#[track_caller]
fn counts_for_nothing(bed: &Bed, m: &Mount, refused: &[Value]) {
    soon("in rejected/", || m.ls("rejected").len() == refused.len());
    soon("tasks/ is written", || task(bed)["status"] == "dispatched");
    assert_eq!((&task(bed)["reject_count"], &task(bed)["locked"]), (&json!(0), &json!(false)));
    let status = m.cat("status.txt");
    for record in refused {
        let id = record["msg_id"].as_str().expect("msg_id");
        assert!(!status.contains(id), "{status}");
    }
    assert!(!status.contains("locked") && !status.contains("suspended"), "{status}");
    let mine = refused.iter().filter(|r| r["to"] == "coordinator").map(source);
    let mine: Vec<String> = mine.collect();
    soon("errors.log", || logged(bed) == mine);
}

/// S312: rejections and an escalation with wrong signatures lock and suspend nothing. This holds in `tasks/`, in
/// `status.txt`, and when something is sent, checked, repaired or resumed, with and without the cache.
#[test]
fn s312_wrong_signatures_count_for_nothing() {
    let bed = bed();
    let all = locked_task();
    for record in &all {
        let file = deliver(&bed, record);
        sign(&file, &key(3), record["type"] != "task_dispatch");
    }
    for round in 0..3 {
        let m = bed.mount("coordinator");
        counts_for_nothing(&bed, &m, &all[1..]);
        if round == 0 {
            send(&bed, &m, "executor", "task_dispatch", &payload("task_dispatch"));
        }
        m.umount();
        if round == 1 {
            fs::remove_dir_all(bed.path("cache")).expect("the cache");
        }
    }
    let said = bed.msgfs_out(&["--me", "coordinator", "check"]).said();
    assert_eq!(said.matches(": signature: ").count(), 4, "{said}");
    assert!(!said.contains("task_locked") && !said.contains("task_state"), "{said}");
    let said = bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]).said();
    assert!(!said.contains("made anew"), "{said}");
    let out = bed.msgfs_out(&["--me", "admin", "ssot", "resume", TASK]);
    assert!(!out.ok() && out.said().contains("neither locked nor suspended"), "{out:?}");
}

/// S312: the same holds for unsigned records under `unsigned = "refuse"`, also for repair and resume, which need
/// the policy.
#[test]
fn s312_unsigned_records_count_for_nothing() {
    let bed = bed_with("unsigned = \"refuse\"\n");
    let all = locked_task();
    for record in &all {
        let file = deliver(&bed, record);
        if record["type"] == "task_dispatch" {
            sign(&file, &key(3), false);
        }
    }
    let m = bed.mount("coordinator");
    counts_for_nothing(&bed, &m, &all[1..]);
    m.umount();
    let said = bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]).said();
    assert!(!said.contains("made anew") && said.contains("no violations"), "{said}");
    let out = bed.msgfs_out(&["--me", "admin", "ssot", "resume", TASK]);
    assert!(!out.ok() && out.said().contains("neither locked nor suspended"), "{out:?}");
}

/// S1171: an unsigned record that only says it is from my role is refused, and counts for nothing. Mine is signed.
#[test]
fn s1171_unsigned_records_of_my_role() {
    for policy in ["known", "refuse"] {
        for pins in ["", "[trust]\nroles = \"pin\"\n"] {
            let bed = bed_with(&format!("unsigned = \"{policy}\"\n{pins}"));
            let m = bed.mount("coordinator");
            let (id, _) = send(&bed, &m, "executor", "task_dispatch", &payload("task_dispatch"));
            soon("tasks/ is written", || task(&bed)["last_successful_msg_id"] == id);
            // Without pinned roles, only a policy against all unsigned messages refuses one.
            let is_refused = policy == "refuse" || !pins.is_empty();
            let millis: i64 = id.rsplit('-').next().expect("time").parse().expect("number");
            let dispatch = payload("task_dispatch");
            let said = record("task_dispatch", "coordinator", "executor", millis + 1, &dispatch);
            deliver(&bed, &said);
            soon("it is judged", || m.ls("rejected").len() == usize::from(is_refused));
            let sent = 2 - usize::from(is_refused);
            soon("sent/", || m.ok("ls sent/*/*.txt").lines().count() == sent);
            let last = if is_refused { &json!(id) } else { &said["msg_id"] };
            soon("tasks/", || task(&bed)["last_successful_msg_id"] == *last);
        }
    }
}

/// S1380: a record that was changed after it was verified is named by check, and neither the mount nor check nor its
/// repair counts it, with and without the cache. S1381: if none is left, the task has no file in `tasks/`.
#[test]
fn s1380_s1381_changed_records_count_for_nothing() {
    let bed = bed();
    let dispatch =
        |n| record("task_dispatch", "coordinator", "executor", n, &payload("task_dispatch"));
    let all = [dispatch(T0), dispatch(T0 + 1)];
    for record in &all {
        sign(&deliver(&bed, record), &key(3), false);
    }
    let m = bed.mount("coordinator");
    for left in [1, 0] {
        let changed = &all[left];
        let last = if left == 0 { Value::Null } else { all[0]["msg_id"].clone() };
        let file = bed.path("ssot").join(source(changed));
        fs::remove_file(file.with_extension("sig")).expect("signature");
        put(&file, changed.to_string().replace("agent/", "evil/"));
        soon("tasks/ follows", || task(&bed)["last_successful_msg_id"] == last);
        for args in
            [&["--me", "coordinator", "check"][..], &["--me", "coordinator", "check", "--repair"]]
        {
            let out = bed.msgfs_out(args);
            let said = out.said();
            assert!(!out.ok() && !said.contains("tasks/"), "{said}");
            let name = format!("{}: signature: was changed", source(changed));
            assert_eq!(
                (said.matches(": signature: ").count(), said.contains(&name)),
                (2 - left, true),
                "{said}"
            );
        }
        assert_eq!(task(&bed)["last_successful_msg_id"], last);
    }
    assert!(!bed.path(format!("ssot/tasks/{TASK}.json")).exists());
    m.umount();
    fs::remove_dir_all(bed.path("cache")).expect("the cache");
    put(&bed.path(format!("ssot/tasks/{TASK}.json")), "{}");
    let said = bed.msgfs_out(&["--me", "coordinator", "check"]).said();
    assert!(said.contains("task_state: no message of this task counts"), "{said}");
    let said = bed.msgfs_out(&["--me", "coordinator", "check", "--repair"]).said();
    assert!(said.contains("removed, because no message") && !said.contains("task_state"), "{said}");
    assert!(!bed.path(format!("ssot/tasks/{TASK}.json")).exists());
}

/// S1381: the file in `tasks/` goes with the folder of the last record, also while nothing is mounted.
#[test]
fn s1381_removed_records_leave_no_state() {
    let bed = bed();
    let dispatch =
        record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    for mounted in [true, false] {
        let file = deliver(&bed, &dispatch);
        let m = bed.mount("coordinator");
        soon("tasks/ is written", || task(&bed)["status"] == "dispatched");
        if mounted {
            fs::remove_file(&file).expect("record");
            soon("it is gone", || task(&bed).is_null());
            m.umount();
            continue;
        }
        m.umount();
        fs::remove_file(&file).expect("record");
        let m = bed.mount("coordinator");
        soon("it is gone", || task(&bed).is_null());
        m.umount();
    }
}

/// S313: each agent in a role signs with its own key, and all are valid. With `roles = "pin"` the first key is the
/// role's, and a record under another key counts once that key is trusted.
#[test]
fn s313_roles_are_pinned_only_if_asked() {
    for pins in [false, true] {
        let bed = bed_with(if pins { "[trust]\nroles = \"pin\"\n" } else { "" });
        let result =
            |n| record("task_result", "executor", "coordinator", n, &payload("task_result"));
        let dispatch =
            record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
        sign(&deliver(&bed, &dispatch), &key(1), false);
        let m = bed.mount("coordinator");
        // The mount acts as the one coordinator that there is.
        assert_eq!(m.ls("rejected").len(), usize::from(pins));
        sign(&deliver(&bed, &result(T0 + 1)), &key(2), false);
        soon("the first", || m.ls("inbox").len() == 1);
        m.ok("rm inbox/*");
        let verdict = payload("review_verdict");
        let verdict = record("review_verdict", "reviewer", "coordinator", T0 + 2, &verdict);
        sign(&deliver(&bed, &verdict), &key(3), false);
        soon("the verdict", || task(&bed)["status"] == "rejected");
        m.ok("rm inbox/*");
        deliver_signed(&bed, &result(T0 + 3), &key(4));
        if pins {
            soon("another key", || m.ls("rejected").len() == 2);
            soon("it is logged", || logged(&bed).contains(&source(&result(T0 + 3))));
            assert_eq!(task(&bed)["status"], "rejected");
            let out = bed.msgfs_out(&["--me", "coordinator", "key", "trust", "executor"]);
            assert!(out.ok(), "{out:?}");
        }
        soon("it counts", || task(&bed)["status"] == "submitted");
        soon("it is there", || m.ls("inbox").len() == 1);
        let listed = bed.msgfs_out(&["--me", "coordinator", "key", "list"]).stdout;
        assert_eq!(listed.contains("executor"), pins, "{listed}");
    }
}

/// S319: when `close` has returned, the folder of a task that was just sent is in `threads/` and `transcripts/`.
#[test]
fn s319_a_new_thread_is_there_after_the_close() {
    let bed = bed();
    let m = bed.mount("coordinator");
    for n in 100..120 {
        let task = format!("T-2026-{n}");
        let draft = super::draft("executor", "task_dispatch", &payload("task_dispatch"));
        let draft = draft.replace(&format!("Task: {TASK}"), &format!("Task: {task}"));
        let look = if n % 2 == 0 {
            "ls threads transcripts"
        } else {
            "cat transcripts/$T.txt; ls threads/$T"
        };
        let out = m.ok(&format!("T={task}; cat > outbox/executor <<'EOF'\n{draft}EOF\n{look}"));
        assert!(out.contains(&task) && out.contains(".txt"), "{out}");
    }
}

/// S319: an existing transcript has the message that was just sent, too.
#[test]
fn s319_a_transcript_has_what_was_just_sent() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "question", samp::T0);
    let m = bed.mount("bar");
    m.ok("for n in $(seq 60); do echo answer $n. > threads/t/x; grep -q \"answer $n\\.\" transcripts/t.txt || exit 1; done");
}

/// S148: a file over the limit is logged with its size and its hash. An existing store gets the entries that git
/// needs, and keeps its own.
#[test]
fn s148_large_files_and_git() {
    let bed = bed();
    let record = record("task_dispatch", "coordinator", "executor", T0, &payload("task_dispatch"));
    let file = deliver(&bed, &record);
    let text = fs::read_to_string(&file).expect("record") + &" ".repeat(20 << 20);
    put(&file, &text);
    put(&bed.path("ssot/.gitignore"), "mine\n");
    let m = bed.mount("executor");
    let log = || fs::read_to_string(bed.path("ssot/errors.log")).unwrap_or_default();
    soon("it is logged", || !log().is_empty());
    let line: Value = serde_json::from_str(log().trim()).expect("JSON");
    assert_eq!(line["bytes"], json!(text.len()));
    let sum = bed.sh(&format!("sha256sum < {}", crate::common::quote(&file)));
    assert!(sum.stdout.starts_with(line["sha256"].as_str().expect("hash")), "{line}");
    let read =
        |name: &str| fs::read_to_string(bed.path(format!("ssot/{name}"))).unwrap_or_default();
    soon("git is told", || read(".gitattributes") == "errors.log merge=union\n");
    assert_eq!(read(".gitignore"), "mine\n");
    m.umount();
}
