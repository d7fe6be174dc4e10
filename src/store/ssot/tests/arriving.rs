//! Files of others in the SSOT: messages, signatures, acknowledgements, rubbish; in any order.

use super::*;
use crate::store::MessageReader as _;
use crate::store::RawTree as _;
use crate::store::ssot::envelope::FILE_BYTES;

fn path(id: &str) -> String {
    format!("messages/{TASK}/{id}.json")
}

fn log(bed: &Bed) -> Vec<Value> {
    let text = std::fs::read_to_string(bed.dir().join("errors.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_message_is_shown_with_its_payload() {
    let bed = Bed::new();
    let mut m = message(SsotMessageType::Dispatch, 0);
    m["timestamp"] = json!("2025-02-26T14:32:07+01:00");
    m["x_trace"] = json!({"span": 7});
    m["payload"]["subtasks"][0]["description"] = json!("Count\nattempts");
    bed.deliver(&m);
    let store = bed.open("executor");
    let books = Book::scanned(&store);
    let kept = books.one(&id(SsotMessageType::Dispatch, 0));
    assert!(kept.to_me && !kept.from_me && !kept.has_note && kept.claim.is_none());
    assert_eq!(kept.time, Timestamp::from_millis(START));
    let record = store.read_record(&kept.at).unwrap();
    let shown = &record.message;
    assert_eq!(shown.time.rfc2822(), "Wed, 26 Feb 2025 13:32:07 +0000");
    assert_eq!(shown.thread.as_deref(), Some(TASK));
    assert_eq!(shown.extra, [("Type", "task_dispatch".to_owned())]);
    assert_eq!(
        (shown.subject.as_deref(), shown.id.as_str()),
        (None, &*id(SsotMessageType::Dispatch, 0))
    );
    assert!(
        shown.body.starts_with(
            "Add a retry budget\n\nRepo: /srv/git/uploader\nBranch: feature/retry-budget\nRisk: \
         medium\n\nSubtasks:\n1. S1 (about 40 lines): Count\n   attempts\n\nAcceptance criteria:\n\
         1. tried at most 5 times\n\nAcknowledgement: within 300 seconds\n\nOther members:\n{\n  \
         \"x_trace\": {\n    \"span\": 7\n  }\n}\n\nPayload:\n{\n  \"acceptance_criteria\": ["
        ),
        "{}",
        shown.body
    );
    assert!(shown.body.ends_with("\n}\n"));
}

#[test]
fn names_and_copies() {
    let bed = Bed::new();
    let m = message(SsotMessageType::Dispatch, 0);
    let id = id(SsotMessageType::Dispatch, 0);
    let original = bed.deliver(&m);
    let bytes = std::fs::read(&original).unwrap();
    let copy = bed.put(&format!("messages/{TASK}/{id}.sync-conflict-20260301-1-A.json"), &bytes);
    let store = bed.open("executor");
    let mut books = Book::scanned(&store);
    assert_eq!((books.messages.len(), books.reasons().len()), (1, 0));
    // Other bytes under the same id are another message.
    let mut other = m.clone();
    other["payload"]["description"] = json!("rm -rf");
    let copy = bed.put(copy.to_str().unwrap(), other.to_string());
    noted(&mut books, &store, &copy);
    assert!(books.reasons()[0].starts_with("duplicate_msg_id: msg_id"), "{:?}", books.reasons());
    bed.put("messages/T-2026-008/x.json", m.to_string().replace(&id, "task_dispatch-T-2026-007-5"));
    bed.put("messages/loose.json", m.to_string());
    for skipped in [".hidden.json", "a.json.tmp", "b.json~", "c.txt"] {
        bed.put(&format!("messages/{TASK}/{skipped}"), "{");
    }
    books.scan(&store, true);
    assert_eq!(books.messages.len(), 1);
    let reasons = books.reasons();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|r| r.contains("belongs at messages/T-2026-007/task_dispatch-T-2026-007-5"))
    );
    // Without its rival the copy is judged again.
    std::fs::remove_file(&copy).unwrap();
    noted(&mut books, &store, &copy);
    assert_eq!(books.reasons().len(), 2);
    std::fs::remove_file(&original).unwrap();
    noted(&mut books, &store, &original);
    assert!(books.messages.is_empty());
}

#[test]
fn nothing_but_files_is_opened() {
    let bed = Bed::new();
    let secret = bed.put("../secret.json", message(SsotMessageType::Dispatch, 0).to_string());
    std::fs::create_dir_all(bed.dir().join("messages").join(TASK)).unwrap();
    std::os::unix::fs::symlink(&secret, bed.dir().join(path(&id(SsotMessageType::Dispatch, 0))))
        .unwrap();
    let fifo = bed.dir().join(path(&id(SsotMessageType::Dispatch, 1)));
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    std::os::unix::fs::symlink(bed.top.path(), bed.dir().join("messages/T-2026-009")).unwrap();
    std::fs::create_dir(bed.dir().join(path(&id(SsotMessageType::Dispatch, 2)))).unwrap();
    let store = bed.open("executor");
    let books = Book::scanned(&store);
    assert!(books.messages.is_empty());
    let health = store.health().join("\n");
    assert!(health.contains("a symbolic link") && health.contains("a FIFO"), "{health}");
}

/// Makes a dispatch that is acknowledged, and an escalation that is lifted.
fn one_of_each(bed: &Bed) -> String {
    let (dispatch, escalation) =
        (id(SsotMessageType::Dispatch, 0), id(SsotMessageType::Escalation, 5));
    bed.deliver(&message(SsotMessageType::Dispatch, 0));
    bed.deliver(&message(SsotMessageType::Escalation, 5));
    let now = Timestamp::from_millis(START + 9);
    let ack = folder::render_ack(&dispatch, Role::Executor, TASK, now);
    bed.put(&format!("acks/{TASK}/{dispatch}.json"), ack);
    let resume = state::TaskResume { time: now, lock: None, escalations: vec![escalation] };
    let text = folder::render_resume(TASK, &resume);
    bed.put(&format!("resumes/{TASK}/{}.json", now.millis()), text);
    dispatch
}

/// Puts a link to a folder in its place. Returns a closure that removes it.
fn linked<'b>(bed: &'b Bed, path: &str) -> impl Fn() + use<'b> {
    let (here, there) = (bed.dir().join(path), bed.top.path().join("elsewhere"));
    std::fs::rename(&here, &there).unwrap();
    std::os::unix::fs::symlink(&there, &here).unwrap();
    move || {
        std::fs::remove_file(&here).unwrap();
        std::fs::rename(&there, &here).unwrap();
    }
}

#[test]
fn a_link_in_the_place_of_a_folder_is_told_and_not_followed() {
    let task = |area: &str| format!("{area}/{TASK}");
    for path in ["messages", "acks", "resumes"].map(|area| [area.to_owned(), task(area)]).concat() {
        let bed = Bed::new();
        let dispatch = one_of_each(&bed);
        let store = bed.open("executor");
        // This checks the reports about a store with and without the link.
        let sees = |books: &mut Book, all: bool| {
            let has = |area: &str| all || !path.starts_with(area);
            let found = books.messages.values().find(|kept| kept.id == dispatch);
            assert_eq!(found.is_some(), has("messages"), "{path}");
            let acked = found.is_none_or(|kept| kept.read == Some(true));
            assert_eq!(acked, has("acks") || found.is_none(), "{path}");
            let held = store.remarks().iter().any(|line| line.contains("suspended by"));
            assert_eq!(held, found.is_some() && !has("resumes"), "{path}");
            let (health, said) =
                (store.health(), format!("{path} is skipped: it is a symbolic link"));
            assert_eq!(health.iter().any(|line| line.starts_with(&said)), !all, "{health:?}");
            assert_eq!(violations(&store).contains(&("file", path.clone())), !all, "{path}");
        };
        let away = linked(&bed, &path);
        let mut books = Book::scanned(&store);
        sees(&mut books, false);
        if path.starts_with("acks") {
            let before = std::fs::read_dir(bed.top.path().join("elsewhere")).unwrap().count();
            assert!(store.acknowledge_message(&books.one(&dispatch).at).is_err());
            let after = std::fs::read_dir(bed.top.path().join("elsewhere")).unwrap().count();
            assert_eq!(before, after);
        }
        away();
        noted(&mut books, &store, &bed.dir().join(&path));
        sees(&mut books, true);
        // The same holds while changes are followed.
        let away = linked(&bed, &path);
        noted(&mut books, &store, &bed.dir().join(&path));
        sees(&mut books, false);
        away();
        noted(&mut books, &store, &bed.dir().join(&path));
        sees(&mut books, true);
    }
}

#[test]
fn what_breaks_a_hard_rule_is_logged_once_by_its_reader() {
    let bed = Bed::new();
    let mut bad = message(SsotMessageType::Dispatch, 0);
    bad["payload"]["branch"] = json!("main");
    bed.deliver(&bad);
    bed.put(&path("rubbish"), "[1]");
    let reviewer = bed.open("reviewer");
    Book::scanned(&reviewer);
    assert!(reviewer.deliver_waiting().unwrap());
    let executor = bed.open("executor");
    let books = Book::scanned(&executor);
    assert!(books.reasons().iter().any(|r| r.starts_with("branch_protected: payload.branch")));
    assert!(books.messages.is_empty());
    assert!(executor.deliver_waiting().unwrap());
    assert!(!executor.deliver_waiting().unwrap());
    let again = bed.open("executor");
    Book::scanned(&again);
    assert!(!again.deliver_waiting().unwrap());
    let lines = log(&bed);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["msg_id"], Value::Null);
    assert_eq!(
        (&lines[0]["receiver"], &lines[0]["rules"]),
        (&json!("reviewer"), &json!(["not_an_object"]))
    );
    assert_eq!(lines[1]["source"], json!(path(&id(SsotMessageType::Dispatch, 0))));
    assert_eq!(lines[1]["msg_id"], json!(id(SsotMessageType::Dispatch, 0)));
    assert_eq!(lines[1]["receiver"], json!("executor"));
    assert_eq!(lines[1]["rules"], json!(["branch_protected"]));
    assert_eq!(lines[1]["bytes"], json!(format!("{bad:#}\n").len()));
    assert!(violations(&executor).iter().any(|v| v.0 == "branch_protected"));
}

#[test]
fn a_half_written_file_is_waited_for() {
    let bed = Bed::new();
    let store = bed.open("executor");
    let text = message(SsotMessageType::Dispatch, 0).to_string();
    let target = bed.put(&path(&id(SsotMessageType::Dispatch, 0)), "");
    std::fs::write(&target, &text[..100]).unwrap();
    let writer = std::thread::spawn({
        let (target, text) = (target.clone(), text.clone());
        move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            std::fs::write(target, text).unwrap();
        }
    });
    let mut books = Book::scanned(&store);
    writer.join().unwrap();
    assert_eq!((books.messages.len(), books.reasons().len()), (1, 0));
    // A torn file that nobody completes is rejected, and becomes a message when it is completed.
    let late = bed.put(&path(&id(SsotMessageType::Dispatch, 1)), &text[..100]);
    noted(&mut books, &store, &late);
    assert!(books.rejected.values().all(|r| r.incomplete) && books.rejected.len() == 1);
    bed.deliver(&message(SsotMessageType::Dispatch, 1));
    noted(&mut books, &store, &late);
    assert_eq!((books.messages.len(), books.reasons().len()), (2, 0));
}

#[test]
fn signatures_and_acknowledgements_come_later() {
    let bed = Bed::new();
    let file = bed.deliver(&message(SsotMessageType::Dispatch, 0));
    let id = id(SsotMessageType::Dispatch, 0);
    let store = bed.open("executor");
    let mut books = Book::scanned(&store);
    assert!(books.one(&id).claim.is_none());
    let line = sign::render_signature(&std::fs::read(file).unwrap(), &Key::new(3));
    let sig = bed.put(&format!("messages/{TASK}/{id}.sig"), &line);
    noted(&mut books, &store, &sig);
    let claim = books.one(&id).claim.clone().unwrap();
    assert_eq!(crate::model::verify::find_claim_fault(&claim), None);
    assert_eq!(store.read_record(&books.one(&id).at).unwrap().claim, Some(*claim));
    bed.put(&format!("messages/{TASK}/{id}.sig"), "{}");
    noted(&mut books, &store, &sig);
    assert!(matches!(books.one(&id).claim.as_deref(), Some(SignatureClaim::Malformed(_))));
    assert_eq!(violations(&store)[0].0, "signature");
    let ack = |by: Role| folder::render_ack(&id, by, TASK, Timestamp::from_millis(START + 5));
    let path = bed.put(&format!("acks/{TASK}/{id}.json"), ack(Role::Reviewer));
    noted(&mut books, &store, &path);
    assert_eq!(books.one(&id).read, None);
    assert!(matches!(
        store.acknowledge_message(&books.one(&id).at),
        Err(StoreError::NotPermitted(_))
    ));
    assert!(violations(&store).iter().any(|v| v.0 == "ack"));
    bed.put(&format!("acks/{TASK}/{id}.json"), ack(Role::Executor));
    noted(&mut books, &store, &path);
    assert_eq!(books.one(&id).read, Some(true));
    assert_eq!(
        bed.open("coordinator").acknowledge_message(&books.one(&id).at).unwrap_err().to_string(),
        StoreError::Moved.to_string()
    );
}

#[test]
fn what_waits_is_told_to_both_sides() {
    let bed = Bed::new();
    bed.deliver(&message(SsotMessageType::Dispatch, 0));
    for (role, lines) in [("coordinator", 1), ("executor", 1), ("reviewer", 0), ("admin", 0)] {
        let store = bed.open(role);
        Book::scanned(&store);
        let at = |secs: i64| store.render_task_remarks(Timestamp::from_secs(1_772_116_327 + secs));
        assert_eq!(at(10).len(), lines, "{role}");
        for line in at(10) {
            assert!(
                line.contains(&id(SsotMessageType::Dispatch, 0))
                    && line.contains("2026-02-26T14:37:07.000Z")
            );
            assert!(!line.contains("overdue"));
        }
        assert!(at(301).iter().all(|line| line.ends_with("overdue")));
    }
}

#[test]
fn rules_about_other_messages_hold_nothing_back() {
    let bed = Bed::new();
    let mut request = message(SsotMessageType::ReviewRequest, 3);
    request["payload"]["reject_count"] = json!(1);
    bed.deliver(&request);
    bed.deliver(&message(SsotMessageType::Escalation, 5));
    bed.deliver(&message(SsotMessageType::Dispatch, 7));
    let store = bed.open("reviewer");
    let mut books = Book::scanned(&store);
    assert_eq!((books.messages.len(), books.reasons().len()), (3, 0));
    let said = store.remarks().join("\n");
    for rule in ["ref_unreadable", "reject_count_wrong", "task_suspended"] {
        assert!(said.contains(rule), "{said}");
    }
    // The missing messages come by sync.
    store.note_change(&bed.deliver(&message(SsotMessageType::Dispatch, 0)));
    store.note_change(&bed.deliver(&message(SsotMessageType::Result, 1)));
    let last = bed.deliver(&message(SsotMessageType::ReviewVerdict, 2));
    noted(&mut books, &store, &last);
    let said = store.remarks().join("\n");
    assert!(!said.contains("ref_unreadable") && !said.contains("reject_count_wrong"), "{said}");
}

#[test]
fn a_remount_reads_nothing_twice() {
    let bed = Bed::new();
    for n in 0..20 {
        bed.deliver(&message(SsotMessageType::Dispatch, n));
    }
    bed.put(&path("bad"), "[]");
    let store = bed.open("coordinator");
    let mut books = Book::scanned(&store);
    store.deliver_waiting().unwrap();
    let tasks = bed.text(&format!("tasks/{TASK}.json"));
    assert_eq!(books.reported, 20);
    let saved = store.save_cursors();
    let next = bed.open("coordinator");
    assert!(next.restore_cursors(&saved) && !bed.open("admin").restore_cursors(&saved));
    books.scan(&next, true);
    assert_eq!((books.reported, books.messages.len(), books.rejected.len()), (20, 20, 1));
    assert!(!next.deliver_waiting().unwrap());
    assert_eq!(bed.text(&format!("tasks/{TASK}.json")), tasks);
    assert_eq!(log(&bed).len(), 1);
    let new = bed.deliver(&message(SsotMessageType::Dispatch, 50));
    noted(&mut books, &next, &new);
    assert_eq!((books.reported, books.messages.len()), (21, 21));
    assert!(next.deliver_waiting().unwrap());
    next.reset_cursors();
    books.scan(&next, true);
    assert_eq!(books.messages.len(), 21);
}

#[test]
fn folders_and_raw_files() {
    let bed = Bed::new();
    let store = bed.open("executor");
    assert_eq!(store.folders_to_watch(), [bed.top.path()]);
    assert!(store.is_relevant(bed.top.path(), "ssot".as_ref()));
    assert!(store.list_raw_folder("").is_none());
    let books = Book::scanned(&store);
    assert!(books.messages.is_empty());
    let missing = [format!("there is no {}", bed.dir().join("messages").display())];
    assert!(store.health().iter().zip(&missing).all(|(line, missing)| line.starts_with(missing)));
    assert_eq!((store.health().len(), store.advice().len()), (1, 1));
    bed.deliver(&message(SsotMessageType::Dispatch, 0));
    assert!(store.health().is_empty() && store.advice().is_empty());
    bed.put(&format!("acks/{TASK}/x.json"), "{}");
    Book::scanned(&store);
    let names: Vec<_> = store
        .folders_to_watch()
        .iter()
        .map(|p| p.strip_prefix(bed.dir()).unwrap().to_owned())
        .collect();
    for name in ["", "messages", "acks", "messages/T-2026-007", "acks/T-2026-007"] {
        assert!(names.contains(&PathBuf::from(name)), "{names:?}");
    }
    let concerns =
        |folder: &str, name: &str| store.is_relevant(&bed.dir().join(folder), name.as_ref());
    assert!(concerns("messages", "T-2026-008") && concerns("messages/T-2026-007", "a.sig"));
    assert!(!concerns("", "errors.log") && !concerns("messages/T-2026-007", ".a.1.tmp"));
    assert!(!concerns("tasks", "T-2026-007.json"));
    let list = |folder: &str| -> Vec<String> {
        store.list_raw_folder(folder).unwrap().into_iter().map(|e| e.name).collect()
    };
    assert_eq!((list(""), list("messages")), (vec!["messages".into()], vec![TASK.into()]));
    assert_eq!(list("messages/T-2026-007"), [format!("{}.json", id(SsotMessageType::Dispatch, 0))]);
    assert!(
        store.list_raw_folder("acks").is_none() && store.list_raw_folder("messages/..").is_none()
    );
    assert!(store.open_raw_file(&path(&id(SsotMessageType::Dispatch, 0))).is_ok());
    assert!(
        store.open_raw_file("acks/T-2026-007/x.json").is_err()
            && store.open_raw_file("messages").is_err()
    );
    assert!(
        store.is_registered("reviewer")
            && !store.is_registered("system")
            && !store.is_registered("bob")
    );
}

#[test]
fn a_rejection_is_logged_once_its_file_can_be_read() {
    let bed = Bed::new();
    let bad = bed.put(&path("bad"), "{}");
    let store = bed.open("coordinator");
    Book::scanned(&store);
    let aside = bed.top.path().join("aside");
    std::fs::rename(&bad, &aside).unwrap();
    store.deliver_waiting().unwrap();
    assert!(log(&bed).is_empty());
    std::fs::rename(&aside, &bad).unwrap();
    for _ in 0..2 {
        store.deliver_waiting().unwrap();
        assert_eq!(log(&bed).len(), 1);
    }
}

#[test]
fn a_file_that_is_too_large_is_logged_with_each_length() {
    let bed = Bed::new();
    bed.put(&path("large"), vec![b' '; FILE_BYTES + 1]);
    let store = bed.open("coordinator");
    let mut books = Book::scanned(&store);
    for count in 1..3 {
        let large = bed.put(&path("large"), vec![b' '; FILE_BYTES + count]);
        noted(&mut books, &store, &large);
        store.deliver_waiting().unwrap();
        let sizes: Vec<u64> = log(&bed).iter().filter_map(|line| line["bytes"].as_u64()).collect();
        assert_eq!((sizes.len(), sizes.last()), (count, Some(&((FILE_BYTES + count) as u64))));
    }
}

/// A slow index: it reads the store before it judges the reported messages.
struct Slow<'a> {
    store: &'a Ssot,
    refuses: bool,
    /// The text of `tasks/` and the remarks, before the decision and right after it.
    seen: Vec<[String; 2]>,
}

/// Returns the current text of `tasks/`, and the remarks.
fn said(store: &Ssot) -> String {
    store.deliver_waiting().unwrap();
    let task = store.properties.dir.join(format!("tasks/{TASK}.json"));
    let task: Value = serde_json::from_slice(&std::fs::read(task).unwrap()).unwrap();
    format!("{} {} {:?}", task["status"], task["updated_at"], store.remarks())
}

impl ScanSink for Slow<'_> {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        _: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        let decided: Vec<(Location, bool)> = found.iter().map(|f| (f.at, self.refuses)).collect();
        // The scan before left something to write.
        self.store.format.stale_tasks.lock().insert(TASK.to_owned());
        let before = said(self.store);
        SsotFormat::note_decisions(self.store, &decided);
        self.seen.push([before, said(self.store)]);
        decided
    }

    fn begin_rescan(&mut self, _: &[u32]) {}

    fn end_rescan(&mut self, _: &[u32]) {}

    fn resume_source(&mut self, _: u32) {}

    fn report_progress(&mut self, _: u64, _: u64) {}
}

/// Checks that a record does not count before it was judged. It counts at once when it was accepted, for every reader
/// in between. A refused record never counts.
#[test]
fn nothing_counts_before_it_is_judged() {
    let bed = Bed::new();
    for kind in
        [SsotMessageType::Dispatch, SsotMessageType::ReviewRequest, SsotMessageType::ReviewVerdict]
    {
        bed.deliver(&message(kind, kind as i64));
    }
    let store = bed.open("coordinator");
    Book::scanned(&store);
    let judged = said(&store);
    assert!(judged.contains("rejected"), "{judged}");
    for refuses in [true, false] {
        let mut result = message(SsotMessageType::Result, 50 + i64::from(refuses));
        result["payload"]["task_result_ref"] = json!(null);
        let path = bed.deliver(&result);
        let mut slow = Slow { store: &store, refuses, seen: Vec::new() };
        store.note_change(&path);
        store.scan(false, &mut slow).unwrap();
        let [[before, after]] = slow.seen.as_slice() else { panic!("{:?}", slow.seen) };
        assert_eq!(*before, judged);
        assert_eq!(after.contains("submitted"), !refuses, "{after}");
        assert_eq!(said(&store), *after);
    }
}
