//! Sending: the members that are filled in, the refusals, and a task from dispatch to approval.

use crate::store::MessageReader as _;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Returns the text of a refusal.
fn refusal(result: Result<impl std::fmt::Debug, StoreError>) -> String {
    match result.unwrap_err() {
        StoreError::Refused(why) => why,
        other => panic!("not refused by a rule: {other:?}"),
    }
}

fn invalid(result: Result<impl std::fmt::Debug, StoreError>) -> String {
    match result.unwrap_err() {
        StoreError::Invalid(why) => why,
        other => panic!("not invalid: {other:?}"),
    }
}

fn rejecting() -> Draft {
    draft("coordinator", SsotMessageType::ReviewVerdict, &payload(SsotMessageType::ReviewVerdict))
}

#[test]
fn a_payload_becomes_a_message() {
    let bed = Bed::new();
    let store = bed.open("coordinator");
    assert!(!bed.dir().exists());
    let body = "{\"description\": \"Gr\\u00f6\u{df}e\", \"repo\": \"/r\", \"branch\": \"b\", \"subtasks\": \
                [{\"subtask_id\": \"S1\", \"description\": \"d\", \"estimated_lines\": 1e0, \
                \"x\": 1e2}], \"acceptance_criteria\": [\"a\"], \"risk_level\": \"low\"}";
    let bad =
        Draft { body: body.into(), ..draft("executor", SsotMessageType::Dispatch, &json!({})) };
    let now = Timestamp::from_millis(START);
    assert!(refusal(prepare_at(&store, &bad, now)).contains("wrong_type: payload.subtasks[0]"));
    assert!(!bed.dir().exists());
    let good = Draft { body: body.replace("1e0", "1"), idempotency_key: Some("k".into()), ..bad };
    let made = prepare_at(&store, &good, now).unwrap();
    assert_eq!(
        (made.id.as_str(), made.to.as_str(), made.thread.as_str()),
        ("task_dispatch-T-2026-007-1772116327001", "executor", TASK)
    );
    store.append_record(&made).unwrap();
    store.append_record(&made).unwrap();
    let path = format!("messages/{TASK}/{}", made.id);
    assert_eq!(
        bed.text(&format!("{path}.json")),
        format!(
            "{{\n  \"msg_id\": \"{}\",\n  \
        \"protocol_version\": \"AMP/1.0\",\n  \"type\": \"task_dispatch\",\n  \"from\": \
        \"coordinator\",\n  \"to\": \"executor\",\n  \"task_id\": \"T-2026-007\",\n  \"timestamp\": \
        \"2026-02-26T14:32:07.001Z\",\n  \"requires_ack\": true,\n  \"ack_timeout_sec\": 300,\n  \
        \"payload\": {{\n    \"description\": \"Gr\u{f6}\u{df}e\",\n    \"repo\": \"/r\",\n    \"branch\": \
        \"b\",\n    \"subtasks\": [\n      {{\n        \"subtask_id\": \"S1\",\n        \
        \"description\": \"d\",\n        \"estimated_lines\": 1,\n        \"x\": 1e2\n      }}\n    \
        ],\n    \"acceptance_criteria\": [\n      \"a\"\n    ],\n    \"risk_level\": \"low\"\n  \
        }},\n  \"idem\": \"k\"\n}}\n",
            made.id
        )
    );
    let mode =
        |path: &str| std::fs::metadata(bed.dir().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&format!("{path}.json")), mode(&format!("{path}.sig"))], [0o444; 2]);
    let folder = std::fs::read_dir(bed.dir().join("messages").join(TASK)).unwrap();
    assert_eq!(folder.count(), 2);
    assert_eq!(bed.text(".gitignore"), ".locks/\n.*.tmp\n");
    assert_eq!(bed.text(".gitattributes"), "errors.log merge=union\n");
    // This is the same millisecond again.
    assert!(prepare_at(&store, &good, now).unwrap().id.ends_with("7002"));
    let books = Book::scanned(&store);
    let kept = books.one(&made.id);
    assert!(kept.from_me && !kept.to_me && kept.read.is_none() && kept.thread == TASK);
    assert_eq!(crate::model::verify::find_claim_fault(kept.claim.as_ref().unwrap()), None);
    assert_eq!(violations(&store), []);
}

#[test]
fn an_ssot_that_is_there_gets_what_git_should_know_and_keeps_what_it_has() {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.dir().join("messages")).unwrap();
    bed.put(".gitignore", "mine\n");
    bed.open("coordinator").deliver_waiting().unwrap();
    assert_eq!(bed.text(".gitignore"), "mine\n");
    assert_eq!(bed.text(".gitattributes"), "errors.log merge=union\n");
}

#[test]
fn a_whole_message_is_taken_as_it_is() {
    let bed = Bed::new();
    let store = bed.open("coordinator");
    let made = prepare(&store, &whole(&message(SsotMessageType::Dispatch, 0))).unwrap();
    let (_, text) = made.bytes.split_once('\n').unwrap();
    let mut expected = message(SsotMessageType::Dispatch, 0);
    expected["ack_timeout_sec"] = json!(300);
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expected);
    assert_eq!(
        store.properties().recipient_in.unwrap()(&expected.to_string()).as_deref(),
        Some("executor")
    );
    assert_eq!(store.properties().recipient_in.unwrap()("{\"to\": \"executor\"}"), None);
    store.append_record(&made).unwrap();
    // The same message again is accepted; with other words it is a duplicate.
    assert_eq!(send(&store, &whole(&message(SsotMessageType::Dispatch, 0))).unwrap(), made.id);
    let mut other = message(SsotMessageType::Dispatch, 0);
    other["payload"]["description"] = json!("something else");
    assert!(refusal(prepare(&store, &whole(&other))).starts_with("duplicate_msg_id: msg_id"));
    let said =
        refusal(prepare(&bed.open("executor"), &whole(&message(SsotMessageType::Dispatch, 5))));
    assert!(said.starts_with("writer_role: from is not executor"), "{said}");
    other["payload"]["branch"] = json!("main");
    let said = refusal(prepare(&store, &whole(&other)));
    assert!(said.starts_with("branch_protected: payload.branch"), "{said}");
    let escalation = message(SsotMessageType::Escalation, 0);
    let made = prepare(&store, &whole(&escalation)).unwrap();
    assert!(!made.bytes.contains("ack_timeout_sec"));
}

#[test]
fn drafts_that_are_no_task_records() {
    let bed = Bed::new();
    let store = bed.open("coordinator");
    let plain = Draft { to: vec!["executor".into()], body: "please".into(), ..Draft::default() };
    let said = refusal(prepare(&store, &plain));
    assert!(said.contains("not_an_object") && said.contains("acceptance_criteria"), "{said}");
    let good = draft("executor", SsotMessageType::Dispatch, &payload(SsotMessageType::Dispatch));
    let cases = [
        (Draft { subject: Some("s".into()), ..good.clone() }, "Subject:"),
        (Draft { priority: Some("high".into()), ..good.clone() }, "Priority:"),
        (Draft { cc: vec!["admin".into()], ..good.clone() }, "Cc:"),
        (Draft { to: vec!["executor".into(), "reviewer".into()], ..good.clone() }, "route:"),
        (Draft { to: vec!["system".into()], ..good.clone() }, "task record goes to"),
        (Draft { kind: Some("dispatch".into()), ..good.clone() }, "Type:"),
        (Draft { task: None, ..good.clone() }, "Task: is missing"),
        (Draft { task: Some("7".into()), ..good.clone() }, "T-YYYY-NNN"),
    ];
    for (draft, words) in cases {
        let said = invalid(prepare(&store, &draft));
        assert!(said.contains(words), "{said}");
    }
    assert!(store.properties().check_attachments(&[("a.txt".into(), 1)]).is_err());
    // The type follows from sender and recipient, the task from the thread.
    let untyped = Draft { kind: None, ..good.clone() };
    let thread = Draft { task: None, thread: Some(TASK.into()), is_reply: true, ..good };
    for draft in [untyped, thread] {
        assert!(prepare(&store, &draft).unwrap().id.starts_with("task_dispatch-T-2026-007-"));
    }
    let wrong =
        draft("executor", SsotMessageType::ReviewVerdict, &payload(SsotMessageType::ReviewVerdict));
    assert!(refusal(prepare(&store, &wrong)).starts_with("route: from, to:"));
    let nobody = Draft { kind: None, ..draft("executor", SsotMessageType::Dispatch, &json!({})) };
    assert!(refusal(prepare(&bed.open("admin"), &nobody)).starts_with("route:"));
    let error = Ssot::open(&bed.spec("foo")).unwrap_err().to_string();
    assert!(error.contains("admin, coordinator, executor, reviewer"), "{error}");
    assert!(!bed.dir().exists());
}

#[test]
fn references_and_counts_are_checked() {
    let bed = Bed::new();
    let coordinator = bed.open("coordinator");
    let request =
        draft("reviewer", SsotMessageType::ReviewRequest, &payload(SsotMessageType::ReviewRequest));
    let said = refusal(prepare(&coordinator, &request));
    assert!(said.starts_with("ref_unreadable: payload.original_dispatch_ref"), "{said}");
    bed.deliver(&message(SsotMessageType::Dispatch, 0));
    let said = refusal(prepare(&coordinator, &request));
    assert!(said.starts_with("ref_unreadable: payload.task_result_ref"), "{said}");
    bed.deliver(&message(SsotMessageType::Result, 1));
    prepare(&coordinator, &request).unwrap();
    bed.deliver(&message(SsotMessageType::ReviewVerdict, 2));
    let said = refusal(prepare(&coordinator, &request));
    assert!(said.starts_with("reject_count_wrong: payload.reject_count is 0"), "{said}");
}

#[test]
fn a_reference_to_another_task_is_refused_and_found() {
    let bed = Bed::new();
    let coordinator = bed.open("coordinator");
    bed.deliver(&message(SsotMessageType::Dispatch, 0));
    bed.deliver(&message(SsotMessageType::Result, 1));
    let kind = SsotMessageType::ReviewRequest;
    let other = "T-2026-008";
    let why =
        |name: &str, kind: &str| format!("payload.{name} names a {kind} of another task, {TASK}");
    let dispatch = why("original_dispatch_ref", "task_dispatch");
    let request = Draft { task: Some(other.into()), ..draft("reviewer", kind, &payload(kind)) };
    let said = refusal(prepare(&coordinator, &request));
    assert_eq!(said, format!("ref_unreadable: {dispatch}"));
    // Another program does not ask.
    let mut request = message(kind, 2);
    let id = format!("review_request-{other}-{START}");
    (request["task_id"], request["msg_id"]) = (json!(other), json!(id));
    bed.deliver(&request);
    let found = [dispatch, why("task_result_ref", "task_result")];
    let mut details = Vec::new();
    coordinator
        .check(&crate::model::verify::find_claim_fault, &mut |v| details.push(v.detail))
        .unwrap();
    details.retain(|detail| detail.contains("another task"));
    assert_eq!(details, found);
    Book::scanned(&coordinator);
    let remarks = coordinator.remarks().join("\n");
    assert!(found.iter().all(|why| remarks.contains(why)), "{remarks}");
}

/// A send needs no messages of other tasks. A check reads each once, however many requests name it.
#[test]
fn messages_of_other_tasks_are_read_once_at_most() {
    let bed = Bed::new();
    let coordinator = bed.open("coordinator");
    let named = bed.deliver(&message(SsotMessageType::Dispatch, 0));
    bed.deliver(&message(SsotMessageType::Result, 1));
    let other = "T-2026-008";
    let kind = SsotMessageType::ReviewRequest;
    for later in 2..5 {
        let mut request = message(kind, later);
        let id = format!("review_request-{other}-{}", START + later);
        (request["task_id"], request["msg_id"]) = (json!(other), json!(id));
        bed.deliver(&request);
    }
    let mut watch = inotify::Inotify::init().unwrap();
    watch.watches().add(&named, inotify::WatchMask::OPEN).unwrap();
    let mut buffer = [0; 1024];
    assert_eq!(task::load_state(&coordinator, other).unwrap().message_count, 3);
    let opened = watch.read_events(&mut buffer);
    assert!(opened.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));

    let mut looked_up = task::LookedUpTasks::new();
    for _ in 0..2 {
        let state = task::load_checked_state(&coordinator, other, &mut looked_up).unwrap();
        let whys: Vec<&str> = state.breaches.iter().map(|breach| &*breach.why).collect();
        assert_eq!(whys.len(), 6, "{whys:?}");
        assert!(whys.iter().all(|why| why.contains(TASK)), "{whys:?}");
        // The second time nothing is read.
        let _ = std::fs::remove_file(&named);
    }
    assert_eq!(looked_up.len(), 2);
    assert!(watch.read_events(&mut buffer).is_ok());
}

/// Returns the file of the task in `tasks/`, after the coordinator brought it up to date.
fn task(bed: &Bed, coordinator: &Ssot) -> Value {
    Book::scanned(coordinator);
    coordinator.deliver_waiting().unwrap();
    serde_json::from_str(&bed.text(&format!("tasks/{TASK}.json"))).unwrap()
}

fn status(bed: &Bed, coordinator: &Ssot) -> String {
    task(bed, coordinator)["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_task_from_dispatch_to_approval() {
    let bed = Bed::new();
    let [admin, coordinator, executor, reviewer] =
        ["admin", "coordinator", "executor", "reviewer"].map(|role| bed.open(role));
    let body = payload(SsotMessageType::Dispatch);
    let dispatch =
        send(&coordinator, &draft("executor", SsotMessageType::Dispatch, &body)).unwrap();
    assert_eq!(status(&bed, &coordinator), "dispatched");
    let mut books = Book::scanned(&executor);
    let at = books.one(&dispatch).at;
    assert!(executor.read_record(&at).unwrap().wants_ack);
    executor.acknowledge_message(&at).unwrap();
    executor.acknowledge_message(&at).unwrap();
    let ack: Value =
        serde_json::from_str(&bed.text(&format!("acks/{TASK}/{dispatch}.json"))).unwrap();
    assert_eq!((&ack["ack_for"], &ack["from"]), (&json!(dispatch), &json!("executor")));
    books.scan(&executor, false);
    assert_eq!(books.one(&dispatch).read, Some(true));
    assert!(!executor.read_record(&at).unwrap().wants_ack);
    assert_eq!(status(&bed, &coordinator), "in_progress");
    let body = payload(SsotMessageType::Result);
    let result = send(&executor, &draft("coordinator", SsotMessageType::Result, &body)).unwrap();
    assert_eq!(task(&bed, &coordinator)["last_successful_msg_id"], json!(result));
    for round in 0..3 {
        let mut body = payload(SsotMessageType::ReviewRequest);
        body["original_dispatch_ref"] = json!(dispatch);
        body["task_result_ref"] = json!(result);
        body["reject_count"] = json!(round);
        send(&coordinator, &draft("reviewer", SsotMessageType::ReviewRequest, &body)).unwrap();
        assert_eq!(status(&bed, &coordinator), "in_review");
        send(&reviewer, &rejecting()).unwrap();
    }
    let now = task(&bed, &coordinator);
    assert_eq!(
        [&now["status"], &now["reject_count"], &now["locked"]],
        [&json!("locked"), &json!(3), &json!(true)]
    );
    assert_eq!(now["last_successful_msg_id"], json!(dispatch));
    locked(&bed, &coordinator, &reviewer);
    resumed(&bed, &admin, &coordinator, &reviewer);
    let before = bed.text(&format!("tasks/{TASK}.json"));
    std::fs::write(bed.dir().join(format!("tasks/{TASK}.json")), "{}").unwrap();
    assert_eq!(violations(&admin), [("task_state", format!("tasks/{TASK}.json"))]);
    assert!(matches!(admin.repair_files(), Err(StoreError::NotPermitted(_))));
    assert_eq!(coordinator.repair_files().unwrap().len(), 1);
    assert_eq!(coordinator.repair_files().unwrap().len(), 0);
    assert_eq!(bed.text(&format!("tasks/{TASK}.json")), before);
    assert_eq!(violations(&admin), []);
}

/// Checks that only escalations can be sent.
fn locked(bed: &Bed, coordinator: &Ssot, reviewer: &Ssot) {
    assert!(refusal(send(reviewer, &rejecting())).starts_with("task_locked: task_id"));
    let dispatch =
        draft("executor", SsotMessageType::Dispatch, &payload(SsotMessageType::Dispatch));
    assert!(refusal(send(coordinator, &dispatch)).starts_with("task_locked"));
    assert!(coordinator.remarks()[0].contains("T-2026-007: locked after 3 rejected"));
    let body = payload(SsotMessageType::Escalation);
    send(coordinator, &draft("admin", SsotMessageType::Escalation, &body)).unwrap();
    assert_eq!(status(bed, coordinator), "locked");
    assert!(coordinator.remarks()[0].contains("suspended by escalation-"));
}

/// Checks that the admin lifts the lock and the suspension, and that the next rejection locks again.
fn resumed(bed: &Bed, admin: &Ssot, coordinator: &Ssot, reviewer: &Ssot) {
    let resume = |store: &Ssot| store.run_command(&["resume".into(), TASK.into()]);
    assert!(matches!(resume(coordinator), Err(StoreError::NotPermitted(_))));
    let said = resume(admin).unwrap();
    assert_eq!(said.matches("lifted: ").count(), 2, "{said}");
    assert!(refusal(resume(admin)).contains("neither locked nor suspended"));
    assert!(invalid(admin.run_command(&["resume".into(), "x".into()])).contains("T-YYYY-NNN"));
    let now = task(bed, coordinator);
    assert_eq!([&now["status"], &now["reject_count"]], [&json!("rejected"), &json!(3)]);
    assert!(!coordinator.remarks().iter().any(|line| line.contains("locked")));
    send(reviewer, &rejecting()).unwrap();
    assert_eq!(task(bed, coordinator)["locked"], json!(true));
    resume(admin).unwrap();
    let mut body = payload(SsotMessageType::ReviewVerdict);
    body["decision"] = json!("approved");
    body["criteria_results"][0]["passed"] = json!(true);
    send(reviewer, &draft("coordinator", SsotMessageType::ReviewVerdict, &body)).unwrap();
    let now = task(bed, coordinator);
    assert_eq!([&now["status"], &now["reject_count"]], [&json!("approved"), &json!(4)]);
    let breaches = coordinator.remarks();
    assert!(!breaches.iter().any(|line| line.contains("task_locked")), "{breaches:?}");
}

#[test]
fn two_senders_of_one_id() {
    let bed = Bed::new();
    let made: Vec<(Ssot, PreparedRecord)> = (0..8)
        .map(|n| {
            let store = bed.open("coordinator");
            let mut m = message(SsotMessageType::Dispatch, 0);
            m["payload"]["description"] = json!(format!("number {n}"));
            let made = prepare(&store, &whole(&m)).unwrap();
            (store, made)
        })
        .collect();
    let sent: Vec<bool> = std::thread::scope(|scope| {
        let append = |(store, made): &'_ (Ssot, PreparedRecord)| store.append_record(made).is_ok();
        let threads: Vec<_> = made.iter().map(|m| scope.spawn(move || append(m))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(sent.iter().filter(|ok| **ok).count(), 1);
    assert_eq!(violations(&made[0].0), []);
    let winner = sent.iter().position(|ok| *ok).unwrap();
    assert!(
        bed.text(&format!("messages/{TASK}/{}.json", id(SsotMessageType::Dispatch, 0)))
            .contains(&format!("number {winner}"))
    );
}

#[test]
fn a_folder_that_was_moved_away_is_not_made_anew() {
    let bed = Bed::new();
    bed.deliver(&message(SsotMessageType::Dispatch, 1));
    let coordinator = bed.open("coordinator");
    Book::scanned(&coordinator);
    let away = bed.top.path().join("away");
    std::fs::rename(bed.dir(), &away).unwrap();
    let refused = coordinator.deliver_waiting().unwrap_err().to_string();
    assert!(refused.contains("is gone") && !bed.dir().exists(), "{refused}");
    std::fs::rename(&away, bed.dir()).unwrap();
    assert!(coordinator.deliver_waiting().unwrap());
    assert!(bed.text(&format!("tasks/{TASK}.json")).contains(TASK));
}

/// Thousands of files must not keep a mount from ending.
#[test]
fn tasks_are_written_in_portions() {
    let bed = Bed::new();
    for n in 1..4 {
        let (mut dispatch, task) = (message(SsotMessageType::Dispatch, n), format!("T-2026-10{n}"));
        dispatch["msg_id"] = json!(id(SsotMessageType::Dispatch, n).replace(TASK, &task));
        dispatch["task_id"] = json!(task);
        bed.deliver(&dispatch);
    }
    let coordinator = bed.open("coordinator");
    Book::scanned(&coordinator);
    let written = || std::fs::read_dir(bed.dir().join("tasks")).map_or(0, Iterator::count);
    let none = std::time::Duration::ZERO;
    for n in 1..4 {
        assert!(coordinator.write_task_files(none).unwrap() && written() == n);
        assert_eq!(coordinator.has_more(), n < 3);
    }
    assert!(!coordinator.write_task_files(none).unwrap() && !coordinator.has_more());
}
