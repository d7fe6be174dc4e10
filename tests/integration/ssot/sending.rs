//! Drafts of task records, and the rules that refuse them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};
use serde_json::{Value, json};

use super::{TASK, bed, deliver, draft, files, only, payload, record, send};
use crate::common::shown::has_ending;
use crate::common::soon;

/// S142: a draft with headers becomes a whole, signed, immutable record.
#[test]
fn s142_headers_and_a_payload() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let (id, sent) = send(&bed, &m, "executor", "task_dispatch", &payload("task_dispatch"));
    assert_eq!(sent["protocol_version"], "AMP/1.0");
    assert_eq!((&sent["requires_ack"], &sent["ack_timeout_sec"]), (&json!(true), &json!(300)));
    assert_eq!((&sent["from"], &sent["to"]), (&json!("coordinator"), &json!("executor")));
    assert_eq!(sent["payload"], payload("task_dispatch"));
    let file = bed.path(format!("ssot/messages/{TASK}/{id}.json"));
    let bytes = fs::read(&file).expect("record");
    assert!(bytes.starts_with(b"{\n  \"msg_id\"") && bytes.ends_with(b"}\n"));
    assert_eq!(fs::metadata(&file).expect("record").permissions().mode() & 0o777, 0o444);

    let sig = fs::read_to_string(file.with_extension("sig")).expect("signature");
    let sig: Value = serde_json::from_str(&sig).expect("JSON");
    let raw = |name: &str| BASE64.decode(sig[name].as_str().expect(name)).expect("base64");
    let key: [u8; 32] = raw("pub").try_into().expect("32 bytes");
    let signature: [u8; 64] = raw("sig").try_into().expect("64 bytes");
    VerifyingKey::from_bytes(&key)
        .expect("key")
        .verify(&[b"ssot-sig-v1\n", &bytes[..]].concat(), &Signature::from_bytes(&signature))
        .expect("the signature fits the bytes of the file");

    let e = bed.mount("executor");
    let name = only(&e);
    let text = e.cat(&format!("inbox/{name}"));
    assert!(text.contains("\nSignature: valid "), "{text}");
}

/// S142: a draft that is a whole record is sent as it is, to the recipient that it names.
#[test]
fn s142_a_whole_record() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let mut whole = record(
        "task_dispatch",
        "coordinator",
        "executor",
        1_777_052_523_000,
        &payload("task_dispatch"),
    );
    whole["x_trace"] = json!({"n": 1});
    fs::write(bed.path("cwd/whole.json"), format!("{whole:#}")).expect("draft");
    m.ok(&format!("cat {:?} > outbox/anything", bed.path("cwd/whole.json")));
    let [file] = &files(&bed)[..] else { panic!("{:?}", m.sh("cat outbox/*.error")) };
    let mut sent: Value = serde_json::from_slice(&fs::read(file).expect("record")).expect("JSON");
    assert_eq!(sent["ack_timeout_sec"], 300);
    sent.as_object_mut().expect("object").remove("ack_timeout_sec");
    assert_eq!(sent, whole);
    whole.as_object_mut().expect("object").remove("protocol_version");
    fs::write(bed.path("cwd/whole.json"), format!("{whole:#}")).expect("draft");
    m.sh(&format!("cat {:?} > outbox/anything", bed.path("cwd/whole.json")));
    let error = m.cat("outbox/anything.error");
    assert!(error.contains("protocol_version is missing"), "{error}");
}

/// S143: a draft that breaks a rule is refused with the rule's name, and nothing is written.
#[test]
fn s143_rules_are_named() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let broken = |path: &str, value: Value| {
        let mut p = payload("task_dispatch");
        p[path] = value;
        p
    };
    let cases = [
        (broken("branch", json!("main")), "branch_protected"),
        (broken("repo", json!("shop")), "repo_not_absolute"),
        (broken("acceptance_criteria", json!([])), "acceptance_criteria_empty"),
        (broken("risk_level", json!("none")), "bad_enum"),
        (broken("description", json!(7)), "wrong_type"),
    ];
    for (payload, rule) in cases {
        let out = m.sh(&format!(
            "cat > outbox/executor <<'EOF'\n{}EOF",
            draft("executor", "task_dispatch", &payload)
        ));
        let error = m.cat("outbox/executor.error");
        assert!(error.contains(rule), "{rule}: {error}\n{out:?}");
        assert_eq!(files(&bed), [] as [std::path::PathBuf; 0]);
        m.ok("rm outbox/executor");
    }
    let out = m.py(
        "try:\n f = open('outbox/executor', 'w'); f.write(sys.argv[1]); f.close()\n\
         except OSError as e: print(e.errno)",
        &[&draft("executor", "task_dispatch", &broken("branch", json!("master")))],
    );
    assert_eq!(out.trim(), "74", "EBADMSG");
}

/// S143: a byte order mark is no JSON, in a draft as in a file.
#[test]
fn s143_a_byte_order_mark() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let p = payload("task_dispatch");
    let whole = record("task_dispatch", "coordinator", "executor", 1_777_052_523_000, &p);
    fs::write(bed.path("cwd/bom"), format!("\u{feff}{whole}")).expect("draft");
    m.sh(&format!("cat {:?} > outbox/executor", bed.path("cwd/bom")));
    let error = m.cat("outbox/executor.error");
    assert!(error.contains("not_an_object"), "{error}");
    assert_eq!(files(&bed), [] as [std::path::PathBuf; 0]);
}

/// S143: rules that need other records are checked, too.
#[test]
fn s143_state_rules_are_named() {
    let bed = bed();
    let m = bed.mount("executor");
    let whole = record(
        "task_result",
        "coordinator",
        "executor",
        1_777_052_523_000,
        &payload("task_result"),
    );
    fs::write(bed.path("cwd/d"), format!("{whole:#}")).expect("draft");
    m.sh(&format!("cat {:?} > outbox/x", bed.path("cwd/d")));
    let error = m.cat("outbox/x.error");
    assert!(error.contains("route") || error.contains("writer_role"), "{error}");

    let c = bed.mount("coordinator");
    let asked = json!({
        "original_dispatch_ref": format!("task_dispatch-{TASK}-1777052523000"),
        "task_result_ref": format!("task_result-{TASK}-1777052523000"),
        "review_scope": "full", "diff_url": "/d", "reject_count": 0
    });
    c.sh(&format!(
        "cat > outbox/reviewer <<'EOF'\n{}EOF",
        draft("reviewer", "review_request", &asked)
    ));
    let error = c.cat("outbox/reviewer.error");
    assert!(error.contains("ref_unreadable"), "{error}");
}

/// S1257: a review request that names records of another task is refused, so `check` finds no such fault in what was
/// sent.
#[test]
fn s1257_records_of_another_task() {
    let bed = bed();
    let dispatch = payload("task_dispatch");
    let dispatch = record("task_dispatch", "coordinator", "executor", 1_777_052_523_000, &dispatch);
    let result = payload("task_result");
    let result = record("task_result", "executor", "coordinator", 1_777_052_524_000, &result);
    deliver(&bed, &dispatch);
    deliver(&bed, &result);
    let m = bed.mount("coordinator");
    let asked = json!({
        "original_dispatch_ref": dispatch["msg_id"], "task_result_ref": result["msg_id"],
        "review_scope": "full", "diff_url": "/d", "reject_count": 0
    });
    let text = draft("reviewer", "review_request", &asked);
    let other = text.replace(&format!("Task: {TASK}"), "Task: T-2026-002");
    let out = m.sh(&format!("cat > outbox/q <<'EOF'\n{other}EOF"));
    let error = m.cat("outbox/q.error");
    assert!(
        error.contains("ref_unreadable") && error.contains(&format!("of another task, {TASK}")),
        "{error}\n{out:?}"
    );
    assert!(!bed.path("ssot/messages/T-2026-002").exists());
    m.ok(&format!("rm outbox/q; cat > outbox/q <<'EOF'\n{text}EOF"));
    assert_eq!(files(&bed).len(), 3);
    let out = bed.msgfs_out(&["check", "--me", "coordinator"]);
    assert!(!out.said().contains("ref_unreadable"), "{out:?}");
}

/// S144: a draft that is only unwise is sent, with a note beside the copy in sent/.
#[test]
fn s144_warnings() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let mut p = payload("task_dispatch");
    p["subtasks"] = json!([]);
    send(&bed, &m, "executor", "task_dispatch", &p);
    let names = m.ok("cd sent/*/ && ls");
    let warning = names.lines().find(|n| n.ends_with(".warning")).expect("a note is listed");
    let note = m.ok(&format!("cat sent/*/{warning}"));
    assert!(note.contains("subtasks_empty"), "{note}");
    // Nobody else sees the note.
    let e = bed.mount("executor");
    assert!(has_ending(&only(&e), "txt"));
}

/// S145: a critical escalation stops everything but further escalations.
#[test]
fn s145_suspended() {
    let bed = bed();
    let m = bed.mount("coordinator");
    send(&bed, &m, "admin", "escalation", &payload("escalation"));
    m.sh(&format!(
        "cat > outbox/executor <<'EOF'\n{}EOF",
        draft("executor", "task_dispatch", &payload("task_dispatch"))
    ));
    let error = m.cat("outbox/executor.error");
    assert!(error.contains("task_suspended") && error.contains("resume"), "{error}");
    send(&bed, &m, "admin", "escalation", &payload("escalation"));
    deliver(
        &bed,
        &record(
            "task_dispatch",
            "coordinator",
            "executor",
            1_777_052_523_000,
            &payload("task_dispatch"),
        ),
    );
    let e = bed.mount("executor");
    soon("what others wrote is not held back", || e.ls("inbox").len() == 1);
}

/// S286, S56: the same key and payload, however it is spaced, is a retry that succeeds and writes nothing. Another
/// payload under the key is refused.
#[test]
fn s286_a_retry_under_its_key_is_a_success() {
    let bed = bed();
    let mut m = bed.mount("coordinator");
    let body = payload("task_dispatch");
    let head = format!("To: executor\nType: task_dispatch\nTask: {TASK}\nIdempotency-Key: k1\n\n");
    for (n, text) in
        [format!("{body:#}"), format!("{body:#}"), format!("{body}")].iter().enumerate()
    {
        fs::write(bed.path("cwd/draft"), format!("{head}{text}\n")).expect("draft");
        m.ok(&format!("cat {:?} | tee outbox/executor > /dev/null", bed.path("cwd/draft")));
        assert_eq!((files(&bed).len(), m.ls("outbox")), (1, vec![]), "{n}");
        if n == 1 {
            m.umount();
            m = bed.mount("coordinator");
        }
    }
    let mut other = body;
    other["description"] = json!("Something else.");
    fs::write(bed.path("cwd/draft"), format!("{head}{other}\n")).expect("draft");
    let out = m.sh(&format!("cat {:?} | tee outbox/executor > /dev/null", bed.path("cwd/draft")));
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
    assert!(m.cat("outbox/executor.error").contains("another text"));
    assert_eq!(files(&bed).len(), 1);
}

/// S287: the rules also judge the recipient of a whole record, like everything else in it.
#[test]
fn s287_whole_records_to_nobody_break_a_rule() {
    let bed = bed();
    let m = bed.mount("coordinator");
    for to in ["system", "bob", "Executor", "", "nobody"] {
        let kind = "task_dispatch";
        let mut whole = record(kind, "coordinator", to, 1_777_052_523_000, &payload(kind));
        if to == "nobody" {
            whole.as_object_mut().unwrap().remove("to");
        }
        fs::write(bed.path("cwd/whole.json"), format!("{whole:#}\n")).expect("draft");
        let out = m.sh(&format!("cat {:?} | tee outbox/x > /dev/null", bed.path("cwd/whole.json")));
        assert!(!out.ok() && out.stderr.contains("Bad message"), "{to}: {out:?}");
        let why = m.cat("outbox/x.error");
        assert!(why.contains(": to "), "{to}: {why}");
        assert_eq!(files(&bed), [""; 0].map(std::path::PathBuf::from), "{to}");
    }
}

/// S288: a record whose task another program locks is in `sent/` at once, in its final form.
#[test]
fn s288_what_waits_for_a_locked_task_is_in_sent() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let lock = bed.path(format!("ssot/.locks/{TASK}.lock"));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let lock = fs::File::create(lock).unwrap();
    lock.lock().expect("the lock is free");
    let text = draft("executor", "task_dispatch", &payload("task_dispatch"));
    m.ok(&format!("cat > outbox/executor <<'EOF'\n{text}EOF"));
    let day = format!("sent/{}", crate::common::samp::today());
    let [name, note] = &m.ls(&day)[..] else { panic!("{:?}", m.ls(&day)) };
    let (shown, why) = (m.cat(&format!("{day}/{name}")), m.cat(&format!("{day}/{note}")));
    assert!(shown.contains("\nType: task_dispatch\n") && why.contains("executor"), "{shown}{why}");
    assert!(files(&bed).is_empty());
    drop(lock);
    soon("it is in the task", || files(&bed).len() == 1);
    soon("nothing waits", || m.ls(&day) == [name.clone()]);
    assert_eq!(m.cat(&format!("{day}/{name}")), shown);
}

/// S1151: a thread that is not the task is refused, and why an acknowledgement was refused is told.
#[test]
fn s1151_what_cannot_be() {
    let bed = bed();
    let m = bed.mount("coordinator");
    let text = draft("executor", "task_dispatch", &payload("task_dispatch"));
    let text = text.replacen("\n\n", "\nThread: T-2026-999\n\n", 1);
    fs::write(bed.path("cwd/draft"), text).expect("draft");
    let out = m.sh(&format!("cat {:?} | tee outbox/executor > /dev/null", bed.path("cwd/draft")));
    assert!(!out.ok(), "{out:?}");
    let why = m.cat("outbox/executor.error");
    assert!(why.contains("Thread: ") && why.contains(TASK), "{why}");
    assert!(files(&bed).is_empty());

    let (id, _) = send(&bed, &m, "executor", "task_dispatch", &payload("task_dispatch"));
    let e = bed.mount("executor");
    let ack = format!("inbox/{}", only(&e).replace(".txt", ".ack"));
    let place = bed.path(format!("ssot/acks/{TASK}/{id}.json"));
    fs::create_dir_all(place.parent().expect("a folder")).expect("acks");
    fs::write(&place, "of somebody else").expect("file");
    let told = "is not one by executor; remove it";
    let out = bed.msgfs_out(&["write", "--me", "executor", &ack, "seen"]);
    assert!(!out.ok() && !e.sh(&format!("echo seen > {ack}")).ok(), "{out:?}");
    let status = e.cat("status.txt");
    let refusal = status.lines().find(|line| line.starts_with("last refusal: "));
    assert!(refusal.is_some_and(|line| line.contains(told)), "{status}");
}
