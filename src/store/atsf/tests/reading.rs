//! The threads and messages that a scan finds, and the reading of one.

use super::*;
use crate::store::MessageReader as _;
use crate::store::RawTree as _;

#[test]
fn messages_in_line_order() {
    let project = Project::new();
    let late = message("m1", "user", "one").replace("10:30:00.000", "10:31:00.000");
    let lines = [late, message("m2", "agent", "two"), message("m3", "system", "three")];
    project.thread("t1", &lines);
    project.thread("t2", &[message("n1", "user", "x")]);
    let (store, books) = project.opened();
    assert_eq!(ids(&books), ["m1", "m2", "m3", "n1"]);
    let [m1, m2, m3] = ["m1", "m2", "m3"].map(|id| books.one(id));
    // Names are in line order, times are the messages' own.
    assert_eq!(m2.time.millis(), m1.time.millis() - 60_000);
    let name = |kept: &Kept| kept.name_time.unwrap().millis();
    assert_eq!(name(m2), name(m1) + 1);
    assert_eq!(name(m3), name(m1) + 2);
    assert_eq!([m1, m2, m3].map(|m| &*m.to), ["agent", "user", "user"]);
    assert_eq!([m1, m2, m3].map(|m| m.from_me), [true, false, false]);
    let record = store.read_record(&m2.at).unwrap();
    assert_eq!(record.message.subject.as_deref(), Some("title of t1"));
    assert_eq!(record.message.thread.as_deref(), Some("t1"));
    assert_eq!((record.message.id.as_str(), record.message.body.as_str()), ("m2", "two"));
    assert_eq!(record.message.time, m2.time);
    assert_eq!(store.source_path(m2.at.source).unwrap(), "t1/messages.jsonl");
    assert!(store.empty_threads().is_empty() && store.health().is_empty());
}

#[test]
fn a_message_without_a_role_has_no_sender() {
    let project = Project::new();
    project.thread("t", &[message("a", "", "x"), message("b", "agent", "y")]);
    let (store, books) = project.opened();
    let from = ["a", "b"].map(|id| store.read_record(&books.one(id).at).unwrap().message.from);
    assert_eq!(from, [None, Some("agent".to_owned())]);
}

#[test]
fn bad_lines_hide_nothing() {
    let project = Project::new();
    let bom = format!("\u{feff}{}", message("a", "user", "x"));
    let crlf = format!("{}\r", message("b", "agent", "\u{e9}"));
    let lines =
        [bom, String::new(), "{\"id\":".into(), crlf, "[1]".into(), message("c", "x y", "")];
    project.thread("t", &lines);
    let mut log = std::fs::read(project.log("t")).unwrap();
    log.extend_from_slice(
        b"{\"id\":\"d\",\"role\":\"user\",\"timestamp\":\"\",\"content\":[\"\xff\"]}\n{\"half",
    );
    std::fs::write(project.log("t"), log).unwrap();
    age(&project.log("t"));
    let (store, books) = project.opened();
    assert_eq!(ids(&books), ["a", "b", "c", "d"]);
    let told: Vec<(u64, bool)> = books.rejected.values().map(|r| (r.line, r.incomplete)).collect();
    assert_eq!(told, [(3, false), (5, false), (8, true)]);
    for id in ["a", "b", "c", "d"] {
        assert_eq!(store.read_record(&books.one(id).at).unwrap().message.id, id);
    }
    assert_eq!(store.read_record(&books.one("c").at).unwrap().message.to, ["user"]);
    let d = store.read_record(&books.one("d").at).unwrap().message;
    assert_eq!(d.warnings, ["time cannot be read"]);
    let &(source, offset) = books.rejected.keys().next().unwrap();
    let at = Location { source, offset, len: 6 };
    assert_eq!(store.read_bytes(&at, 100).unwrap(), b"{\"id\":");
}

#[test]
fn a_whole_last_line_without_newline_is_a_message() {
    let project = Project::new();
    project.thread("t", &[message("a", "user", "x")]);
    std::fs::write(project.log("t"), message("a", "user", "x")).unwrap();
    let (store, mut books) = project.opened();
    assert_eq!(ids(&books), ["a"]);
    assert!(store.empty_threads().is_empty());
    // The writer adds the newline and another message.
    std::fs::write(
        project.log("t"),
        format!("{}\n{}\n", message("a", "user", "x"), message("b", "user", "y")),
    )
    .unwrap();
    follow(&store, &mut books, &project.log("t"));
    assert_eq!(ids(&books), ["a", "b"]);
}

#[test]
fn other_things_in_the_folder_are_left_alone() {
    let project = Project::new();
    project.thread("good", &[message("a", "user", "x")]);
    let threads = project.root().join(".agent/threads");
    std::fs::write(threads.join("notes.md"), "x").unwrap();
    std::fs::create_dir_all(threads.join("jan")).unwrap();
    std::fs::write(threads.join("jan/thread.json"), "{\"id\":\"jan\"}").unwrap();
    std::fs::write(threads.join("jan/messages.jsonl"), message("j", "user", "x")).unwrap();
    std::fs::create_dir_all(threads.join("bare")).unwrap();
    std::os::unix::fs::symlink(threads.join("good"), threads.join("link")).unwrap();
    project.thread("linked", &[]);
    std::fs::remove_file(project.log("linked")).unwrap();
    std::os::unix::fs::symlink(project.log("good"), project.log("linked")).unwrap();
    project.thread("piped", &[]);
    std::fs::remove_file(project.log("piped")).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(project.log("piped")).status().unwrap().success()
    );
    let (store, books) = project.opened();
    assert_eq!(ids(&books), ["a"]);
    let health = store.health().join("\n");
    for what in [
        "link is skipped: it is a symbolic link",
        "linked/messages.jsonl is skipped: it is a symbolic link",
        "piped/messages.jsonl is skipped: it is a FIFO",
    ] {
        assert!(health.contains(what), "{health}");
    }
    assert!(
        !health.contains("jan") && !health.contains("notes") && !health.contains("bare"),
        "{health}"
    );
    let empty: Vec<String> = store.empty_threads().into_iter().map(|t| t.id).collect();
    assert_eq!(empty, ["linked", "piped"]);
}

#[test]
fn threads_that_must_not_be_read() {
    let project = Project::new();
    for (id, version) in [("two", "2.0"), ("odd", "one")] {
        project.thread(id, &[message(id, "user", "x")]);
        let text = meta(id, "t").replace("1.1", version);
        std::fs::write(project.meta(id), text).unwrap();
    }
    project.thread("dir", &[message("m", "user", "x")]);
    std::fs::write(project.meta("dir"), meta("other", "t")).unwrap();
    let before = read(&project.log("two"));
    let (store, mut books) = project.opened();
    assert_eq!(ids(&books), ["m"]);
    assert_eq!(books.one("m").thread, "dir");
    let reasons = books.reasons();
    assert!(reasons.iter().any(|r| r.contains("version 2.0")), "{reasons:?}");
    assert!(reasons.iter().any(|r| r.contains("MAJOR.MINOR")), "{reasons:?}");
    assert!(store.health().iter().any(|l| l.contains("names the thread \"other\"")));
    let mut paths: Vec<String> =
        books.rejected.keys().map(|(s, _)| store.source_path(*s).unwrap()).collect();
    paths.sort();
    assert_eq!(paths, ["odd/thread.json", "two/thread.json"]);
    for id in ["two", "odd", "dir"] {
        let refused = prepare(&store, &draft(Some(id), None, "x")).unwrap_err();
        assert!(matches!(refused, StoreError::NotPermitted(_)), "{id}: {refused}");
    }
    assert_eq!(read(&project.log("two")), before);
    // After the repair it is read.
    std::fs::write(project.meta("two"), meta("two", "t")).unwrap();
    follow(&store, &mut books, &project.meta("two"));
    assert_eq!(books.rejected.len(), 1);
    assert_eq!(books.one("two").thread, "two");
}

#[test]
fn threads_without_messages() {
    let project = Project::new();
    project.thread("empty", &[]);
    project.thread("elsewhere", &[]);
    std::fs::remove_file(project.log("elsewhere")).unwrap();
    let before = read(&project.meta("elsewhere"));
    let (store, _) = project.opened();
    let shown: Vec<(String, Option<String>)> =
        store.empty_threads().into_iter().map(|t| (t.id, t.title)).collect();
    let title = |id: &str| (id.to_owned(), Some(format!("title of {id}")));
    assert_eq!(shown, [title("elsewhere"), title("empty")]);
    let refused = prepare(&store, &draft(Some("elsewhere"), None, "x")).unwrap_err();
    assert!(refused.to_string().contains("the log is not here"), "{refused}");
    assert!(matches!(refused, StoreError::NotPermitted(_)));
    assert!(store.repair_files().unwrap().is_empty());
    assert_eq!(read(&project.meta("elsewhere")), before);
}

#[test]
fn ids_used_twice() {
    let project = Project::new();
    let first = message("a", "user", "one");
    let spelled = first.replacen('{', "{ ", 1);
    project.thread(
        "t",
        &[first.clone(), spelled, message("a", "user", "two"), message("a", "agent", "one")],
    );
    // A fork holds the same messages.
    project.thread("u", &[first, message("b", "user", "three")]);
    let (store, books) = project.opened();
    assert_eq!(books.messages.len(), 5);
    let plain: Vec<&str> = ids(&books).into_iter().map(crate::model::plain_id).collect();
    assert_eq!(plain, ["a", "a", "a", "a", "b"]);
    assert_eq!(in_thread(&books, "u").len(), 2);
    for ((from, id), kept) in &books.messages {
        let record = store.read_record(&kept.at).unwrap();
        assert_eq!((&record.message.id, record.message.from.as_ref()), (id, Some(from)));
    }
    // Every machine has the same ids.
    let again = project.opened().1;
    assert_eq!(again.messages, books.messages);
}

#[test]
fn parts_and_assets() {
    use sha2::Digest as _;
    let project = Project::new();
    let digest = crate::model::encode_hex(&sha2::Sha256::digest(b"png"));
    let good = format!("sha256-{}.png", &digest[..16]);
    let bad = "sha256-0123456789abcdef.png";
    let line = message("a", "agent", "look").replace(
        "\"content\":[",
        &format!(r#""toolCalls":[{{"toolCallId":"t","name":"Bash","status":"completed"}}],"content":[{{"type":"image","assetRef":"{good}","mimeType":"image/png"}},{{"type":"image","assetRef":"{bad}","mimeType":"image/png"}},{{"type":"image","assetRef":"../../../x.png","mimeType":"image/png"}},"#),
    );
    project.thread("t", &[line]);
    let assets = thread_dir(&project.root(), "t").join("assets");
    std::fs::create_dir_all(&assets).unwrap();
    std::fs::write(assets.join(&good), "png").unwrap();
    std::fs::write(assets.join(bad), "other").unwrap();
    let (store, books) = project.opened();
    let at = books.one("a").at;
    assert!(books.one("a").has_parts);
    let record = store.read_record(&at).unwrap();
    let shown: Vec<(&str, u64, Option<&str>)> = record
        .message
        .attachments
        .iter()
        .map(|a| (a.name.as_str(), a.size, a.withheld.as_deref()))
        .collect();
    assert_eq!(
        shown,
        [
            (good.as_str(), 3, None),
            (bad, 0, Some("withheld: digest does not match")),
            ("../../../x.png", 0, Some("withheld: not the name of an asset"))
        ]
    );
    assert_eq!(
        record.parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
        ["05-tool-Bash.json"]
    );
    assert!(matches!(store.open_part(&at, &good).unwrap(), PartContent::File(_)));
    let PartContent::Bytes(call) = store.open_part(&at, "05-tool-Bash.json").unwrap() else {
        panic!()
    };
    assert_eq!(&*call, br#"{"toolCallId":"t","name":"Bash","status":"completed"}"#);
    for name in [bad, "../../../x.png", "messages.jsonl", ""] {
        assert!(store.open_part(&at, name).is_err(), "{name}");
    }
    // A file that is too large is not read.
    let huge = std::fs::File::create(assets.join(bad)).unwrap();
    huge.set_len(assets::MAX_BYTES + 1).unwrap();
    let withheld = store.read_record(&at).unwrap().message.attachments.remove(1).withheld;
    assert_eq!(withheld.as_deref(), Some("withheld: too large to be verified"));
    let names = |folder: &str| -> Vec<String> {
        store.list_raw_folder(folder).unwrap().into_iter().map(|e| e.name).collect()
    };
    assert_eq!(names(""), ["t"]);
    assert_eq!(names("t"), ["assets", "messages.jsonl", "thread.json"]);
    assert_eq!(names("t/assets"), [bad, good.as_str()]);
    assert!(store.list_raw_folder("u").is_none() && store.list_raw_folder("t/..").is_none());
    assert!(
        store.open_raw_file("t/messages.jsonl").is_ok()
            && store.open_raw_file("t/assets/x").is_err()
    );
    assert!(store.newest_raw_time("").is_some());
}

#[test]
fn files_of_a_kept_thread_have_safe_names() {
    use sha2::Digest as _;
    let project = Project::new();
    let digest = crate::model::encode_hex(&sha2::Sha256::digest(b"whole"));
    let asset = format!("sha256-{}.txt", &digest[..16]);
    let block = |name: &str| {
        let uri = format!("tool-results/{name}");
        serde_json::json!({"type": "resource", "uri": uri, "assetRef": asset})
    };
    let content = serde_json::json!([block("a\u{1b}[31m.txt"), block("../a.txt"), block("a.txt")]);
    let line = format!(r#"{{"id":"k","role":"agent","timestamp":"{TIME}","content":{content}}}"#);
    project.thread("t", &[line]);
    let metadata = r#""metadata": {"msgfs":{"source":"claude"}}"#;
    let kept = meta("t", "x").replace(r#""metadata": {}"#, metadata);
    std::fs::write(project.meta("t"), kept).unwrap();
    let assets = thread_dir(&project.root(), "t").join("assets");
    std::fs::create_dir_all(&assets).unwrap();
    std::fs::write(assets.join(&asset), "whole").unwrap();
    let (store, books) = project.opened();
    let at = books.one("k").at;
    let parts = store.read_record(&at).unwrap().parts;
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["a\u{241b}[31m.txt", "a.txt", "a-2.txt"]);
    for name in names {
        let PartContent::Bytes(bytes) = store.open_part(&at, name).unwrap() else { panic!() };
        assert_eq!(&*bytes, b"whole");
    }
}
