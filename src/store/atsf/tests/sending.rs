//! New messages and new threads.

use crate::store::MessageReader as _;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sha2::Digest as _;

use super::*;
use crate::model::{DraftAttachment, encode_hex};
use crate::store::engine::lines::log::MAX_LINE;

fn values(path: &Path) -> Vec<serde_json::Value> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&read(path)).unwrap()
}

#[test]
fn a_message_is_appended_once() {
    let project = Project::new();
    project.thread("t", &[message("a", "agent", "x"), message("s", "system", "y")]);
    let (store, mut books) = project.opened();
    let before = read(&project.log("t"));
    let prepared = prepare(&store, &draft(Some("t"), None, "hi \u{e9}\n\"there\"\u{1}")).unwrap();
    assert_eq!((prepared.thread.as_str(), prepared.to.as_str()), ("t", "agent"));
    store.append_record(&prepared).unwrap();
    store.append_record(&prepared).unwrap();
    store.sync_appends().unwrap();
    let after = read(&project.log("t"));
    assert_eq!(after, format!("{before}{}\n", prepared.bytes));
    let line = prepared.bytes.as_str();
    let order = [
        "{\"id\":",
        "\"role\":\"user\"",
        "\"timestamp\":\"2025-02-14T12:00:00.123Z\"",
        "\"content\":",
        "\"signature\":{",
    ];
    let places: Vec<usize> = order.iter().map(|part| line.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{line}");
    assert!(line.contains("hi \u{e9}\\n\\\"there\\\"\\u0001"), "{line}");
    store.scan(false, &mut books).unwrap();
    let kept = books.one(&prepared.id);
    assert!(kept.from_me && kept.to == "agent");
    let record = store.read_record(&kept.at).unwrap();
    assert_eq!(verify::find_claim_fault(&record.claim.unwrap()), None);
    let meta = json(&project.meta("t"));
    assert_eq!(meta["updatedAt"], "2025-02-14T12:00:00.123Z");
    assert_eq!(
        meta["stats"],
        serde_json::json!({"messageCount": 3, "userMessageCount": 1, "agentMessageCount": 1, "toolCallCount": 0})
    );
    let left: Vec<_> = std::fs::read_dir(thread_dir(&project.root(), "t")).unwrap().collect();
    assert_eq!(left.len(), 2);
}

#[test]
fn thread_json_keeps_its_mode_and_gets_a_new_time() {
    let project = Project::new();
    project.thread("t", &[]);
    let meta = project.meta("t");
    std::fs::set_permissions(&meta, PermissionsExt::from_mode(0o666)).unwrap();
    age(&meta);
    let before = std::fs::metadata(&meta).unwrap().modified().unwrap();
    let (store, _) = project.opened();
    let prepared = prepare(&store, &draft(Some("t"), None, "hi")).unwrap();
    store.append_record(&prepared).unwrap();
    assert_eq!(json(&meta)["stats"]["messageCount"], 1);
    let after = std::fs::metadata(&meta).unwrap();
    assert_eq!(after.permissions().mode() & 0o777, 0o666);
    assert!(after.modified().unwrap() > before);
}

#[test]
fn an_append_made_again_after_a_crash_does_what_is_missing() {
    let project = Project::new();
    project.thread("t", &[message("a", "agent", "x")]);
    let (store, _) = project.opened();
    let prepared = prepare(&store, &draft(Some("t"), None, "hi")).unwrap();
    // The line was written, and then the power failed.
    let log = format!("{}{}\n", read(&project.log("t")), prepared.bytes);
    std::fs::write(project.log("t"), &log).unwrap();
    for store in [store, project.opened().0] {
        store.append_record(&prepared).unwrap();
        assert_eq!(read(&project.log("t")), log);
        assert_eq!(json(&project.meta("t"))["stats"]["messageCount"], 2);
    }
}

#[test]
fn a_subject_begins_a_thread_each_time() {
    let project = Project::new();
    let (store, mut books) = project.opened();
    let config = project.root().join(".agent/config.json");
    let mut ids = HashSet::new();
    for round in 0..2 {
        let draft = Draft { to: vec!["gemini".into()], ..draft(None, Some("A \"title\""), "hi") };
        let prepared = prepare(&store, &draft).unwrap();
        store.append_record(&prepared).unwrap();
        store.append_record(&prepared).unwrap();
        assert!(ids.insert(prepared.thread.clone()));
        let meta = json(&project.meta(&prepared.thread));
        assert_eq!(meta["title"], "A \"title\"");
        assert_eq!(meta["threadId"], prepared.thread.as_str());
        assert_eq!(meta["agent"]["id"], if round == 0 { "gemini" } else { "claude-code" });
        assert_eq!(meta["context"]["workingDir"], project.root().to_str().unwrap());
        assert_eq!(meta["stats"]["messageCount"], 1);
        assert_eq!(values(&project.log(&prepared.thread)).len(), 1);
        store.scan(false, &mut books).unwrap();
        assert_eq!(books.one(&prepared.id).thread, prepared.thread);
        assert_eq!(json(&config)["createdBy"]["name"] == "msgfs", round == 0);
        // Existing files are not changed.
        let with = r#"{"specVersion":"1.1","defaults":{"agentId":"claude-code"}}"#;
        std::fs::write(&config, with).unwrap();
        std::fs::write(project.root().join(".agent/.gitignore"), "mine").unwrap();
    }
    let third = prepare(&store, &draft(None, Some("x"), "hi")).unwrap();
    store.append_record(&third).unwrap();
    assert_eq!(read(&project.root().join(".agent/.gitignore")), "mine");
    // The settings of a later version have no effect.
    std::fs::write(&config, r#"{"specVersion":"2.0","defaults":{"agentId":"x"}}"#).unwrap();
    let fourth = prepare(&store, &draft(None, Some("x"), "hi")).unwrap();
    assert!(fourth.bytes.contains("\"id\": \"agent\""), "{}", fourth.bytes);
}

#[test]
fn a_whole_line_behind_a_byte_order_mark_stays() {
    let project = Project::new();
    project.thread("t", &[]);
    let whole = format!("\u{feff}{}", message("a", "agent", "x"));
    std::fs::write(project.log("t"), &whole).unwrap();
    let (store, _) = project.opened();
    let prepared = prepare(&store, &draft(Some("t"), None, "hi")).unwrap();
    store.append_record(&prepared).unwrap();
    assert_eq!(read(&project.log("t")), format!("{whole}\n{}\n", prepared.bytes));
    assert_eq!(json(&project.meta("t"))["stats"]["messageCount"], 2);
}

#[test]
fn a_last_line_that_is_too_long_is_ended_and_not_cut() {
    let project = Project::new();
    project.thread("t", &[message("a", "agent", "x")]);
    let log = std::fs::File::options().append(true).open(project.log("t")).unwrap();
    let long = log.metadata().unwrap().len() + MAX_LINE as u64 + 1;
    log.set_len(long).unwrap();
    let (store, mut books) = project.opened();
    let prepared = prepare(&store, &draft(Some("t"), None, "hi")).unwrap();
    store.append_record(&prepared).unwrap();
    let bytes = std::fs::read(project.log("t")).unwrap();
    let (before, end) = bytes.split_at(long as usize);
    assert!(before.ends_with(b"\0"));
    assert_eq!(String::from_utf8_lossy(end), format!("\n{}\n", prepared.bytes));
    follow(&store, &mut books, &project.log("t"));
    assert_eq!(ids(&books), ["a", prepared.id.as_str()]);
}

#[test]
fn what_cannot_be_sent_is_refused_at_once() {
    let project = Project::new();
    project.thread("t", &[]);
    let (store, _) = project.opened();
    let refusal = |draft: Draft| prepare(&store, &draft).unwrap_err();
    for (draft, what) in [
        (draft(None, None, "x"), "Subject: "),
        (draft(None, Some(" "), "x"), "Subject: "),
        (draft(Some("nope"), Some("s"), "x"), "there is no thread \"nope\""),
        (Draft { to: vec!["user".into()], ..draft(Some("t"), None, "x") }, "write to agent"),
    ] {
        let why = refusal(draft);
        assert!(matches!(why, StoreError::Invalid(_)) && why.to_string().contains(what), "{why}");
    }
    // Each NUL becomes six bytes.
    let long = "\0".repeat(MAX_LINE / 6);
    for draft in [draft(Some("t"), None, &long), draft(None, Some("s"), &long)] {
        assert!(matches!(refusal(draft), StoreError::TooLarge(_)));
    }
    assert!(std::fs::read_dir(project.root().join(".agent/threads")).unwrap().count() == 1);
}

#[test]
fn a_torn_end_is_mended() {
    let whole = message("b", "agent", "y");
    for (tail, count) in
        [("{\"id\":\"half", 2), ("12", 2), (whole.as_str(), 3), ("\u{feff}", 2), ("  ", 2)]
    {
        let project = Project::new();
        project.thread("t", &[message("a", "agent", "x")]);
        let before = read(&project.log("t"));
        std::fs::write(project.log("t"), format!("{before}{tail}")).unwrap();
        let (store, _) = project.opened();
        let prepared = prepare(&store, &draft(Some("t"), None, "hi")).unwrap();
        store.append_record(&prepared).unwrap();
        let kept = if tail == whole { format!("{whole}\n") } else { String::new() };
        assert_eq!(
            read(&project.log("t")),
            format!("{before}{kept}{}\n", prepared.bytes),
            "{tail}"
        );
        assert_eq!(json(&project.meta("t"))["stats"]["messageCount"], count, "{tail}");
    }
}

#[test]
fn a_locked_thread_is_busy_and_delays_nobody() {
    let project = Project::new();
    project.thread("t", &[]);
    project.thread("u", &[]);
    let (store, _) = project.opened();
    let other = std::fs::File::open(project.log("t")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let [locked, free] = ["t", "u"].map(|t| prepare(&store, &draft(Some(t), None, "x")).unwrap());
    let start = Instant::now();
    assert!(matches!(store.append_record(&locked), Err(StoreError::Busy(_))));
    store.append_record(&free).unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(read(&project.log("t")), "");
    drop(other);
    store.append_record(&locked).unwrap();
    assert_eq!(values(&project.log("t")).len(), 1);
}

#[test]
fn a_locked_thread_delays_no_numbers_of_others() {
    let project = Project::new();
    for thread in ["t", "u"] {
        project.thread(thread, &[message("a", "agent", "x")]);
    }
    let (store, _) = project.opened();
    let locked = std::fs::File::open(project.log("t")).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let numbers = ["t", "u"].map(|t| store.table.read().find_log(0, t).unwrap());
    store.format.stale_threads.lock().extend(numbers);
    let count = |thread| json(&project.meta(thread))["stats"]["messageCount"].clone();
    assert!(matches!(store.deliver_waiting(), Err(StoreError::Busy(_))));
    assert_eq!((count("t"), count("u")), (0.into(), 1.into()));
    drop(locked);
    assert!(store.deliver_waiting().unwrap());
    assert_eq!((count("t"), count("u")), (1.into(), 1.into()));
}

fn attached(project: &Project, name: &str, bytes: &[u8]) -> DraftAttachment {
    let path = project.dir.path().join(format!("copy-of-{name}"));
    std::fs::write(&path, bytes).unwrap();
    let sha256 = encode_hex(&sha2::Sha256::digest(bytes));
    DraftAttachment { name: name.into(), path, size: bytes.len() as u64, sha256 }
}

#[test]
fn files_that_go_along_are_assets() {
    let project = Project::new();
    project.thread("t", &[]);
    let (store, mut books) = project.opened();
    let png = attached(&project, "shot.jpg", b"\x89PNG\r\n\x1a\nrest");
    let pdf = attached(&project, "plan 1.pdf", b"%PDF");
    store.properties().check_attachments(&[("shot.jpg".into(), 8)]).unwrap();
    let draft =
        Draft { attachments: vec![png.clone(), pdf.clone()], ..draft(Some("t"), None, "look") };
    for _ in 0..2 {
        let prepared = prepare(&store, &draft).unwrap();
        store.append_record(&prepared).unwrap();
        store.scan(false, &mut books).unwrap();
        let record = store.read_record(&books.one(&prepared.id).at).unwrap();
        let names: Vec<(&str, u64)> =
            record.message.attachments.iter().map(|a| (a.name.as_str(), a.size)).collect();
        let [a, b] = [(&png, "png"), (&pdf, "pdf")]
            .map(|(f, ext)| format!("sha256-{}.{ext}", &f.sha256[..16]));
        assert_eq!(names, [(a.as_str(), 12), (b.as_str(), 4)]);
        assert_eq!(
            record.message.body,
            format!(
                "look\n[image: image/png -> {a}]\n[resource: plan%201.pdf application/pdf -> {b}]"
            )
        );
    }
    let assets = thread_dir(&project.root(), "t").join("assets");
    assert_eq!(std::fs::read_dir(&assets).unwrap().count(), 2);
    // Another file under the same name is not replaced.
    let name = format!("sha256-{}.pdf", &pdf.sha256[..16]);
    std::fs::write(assets.join(&name), "other").unwrap();
    let refused = prepare(&store, &draft).unwrap_err();
    let StoreError::Io { source, .. } = &refused else { panic!("{refused}") };
    assert_eq!(source.kind(), io::ErrorKind::AlreadyExists);
    assert!(refused.to_string().ends_with(".pdf: another file has this name, so nothing was sent"));
    assert_eq!(read(&assets.join(&name)), "other");
}

#[test]
fn a_key_makes_retries_known() {
    let project = Project::new();
    project.thread("t", &[]);
    let (store, _) = project.opened();
    let draft = Draft { idempotency_key: Some("k\"1".into()), ..draft(Some("t"), None, "x") };
    let prepared = prepare(&store, &draft).unwrap();
    assert!(prepared.bytes.contains(r#"],"idem":"k\"1","signature""#), "{}", prepared.bytes);
    assert_eq!(line::parse(&prepared.bytes).unwrap().idempotency_key.unwrap(), "k\"1");
}
