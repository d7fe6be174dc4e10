//! `msgfs check` and its repair.

use crate::store::MessageReader as _;
use sha2::Digest as _;

use super::*;

fn violations(store: &AtsfStore) -> Vec<(String, u64, &'static str)> {
    let mut out = Vec::new();
    store.check(&verify::find_claim_fault, &mut |v| out.push((v.file, v.line, v.rule))).unwrap();
    out.sort();
    out
}

#[test]
fn sound_threads_have_no_violations() {
    let project = Project::new();
    let (store, _) = project.opened();
    assert!(violations(&store).is_empty());
    let prepared = prepare(&store, &draft(None, Some("s"), "x")).unwrap();
    store.append_record(&prepared).unwrap();
    store.scan(false, &mut Book::default()).unwrap();
    let next = prepare(&store, &draft(Some(&prepared.thread), None, "y")).unwrap();
    store.append_record(&next).unwrap();
    assert_eq!(violations(&store), []);
    assert_eq!(violations(&project.open()), []);
}

#[test]
fn every_rule_is_checked() {
    let project = Project::new();
    let asset = message("e", "user", "x").replace(
        "\"content\":[",
        "\"content\":[{\"type\":\"image\",\"assetRef\":\"../x\",\"mimeType\":\"\"},",
    );
    let lines = [
        message("a", "user", "x"),
        message("a", "bot", "x"),
        "{".into(),
        String::new(),
        message("b", "agent", "x").replace("000Z", "000"),
        message("c", "agent", "x").replace(TIME, "now"),
        message("f", "user", "x").replace("\"text\":\"x\"", "\"text\":5"),
        message("d", "user", "x").replacen('{', "{\"signature\":{\"pub\":\"\",\"sig\":\"\"},", 1),
        asset,
    ];
    project.thread("t", &lines);
    std::fs::write(project.log("t"), read(&project.log("t")) + "{").unwrap();
    age(&project.log("t"));
    std::fs::write(project.meta("t"), meta("u", "x").replace("\"id\": \"claude-code\",", ""))
        .unwrap();
    project.thread("v", &[]);
    std::fs::write(project.meta("v"), meta("v", "x").replace("1.1", "3.0")).unwrap();
    let file = |name: &str| format!(".agent/threads/{name}");
    let log = file("t/messages.jsonl");
    let json = file("t/thread.json");
    let rules: &[(&str, u64, &str)] = &[
        (&log, 2, "duplicate"),
        (&log, 2, "role"),
        (&log, 3, "schema"),
        (&log, 5, "time"),
        (&log, 6, "time"),
        (&log, 7, "schema"),
        (&log, 8, "signature"),
        (&log, 9, "asset"),
        (&log, 10, "unterminated"),
        (&json, 0, "schema"),
        (&json, 0, "stats"),
        (&json, 0, "stats"),
        (&json, 0, "stats"),
        (&json, 0, "thread-id"),
        (&file("v/thread.json"), 0, "version"),
    ];
    let found = violations(&project.open());
    let found: Vec<(&str, u64, &str)> =
        found.iter().map(|(f, n, r)| (f.as_str(), *n, *r)).collect();
    assert_eq!(found, rules);
}

#[test]
fn a_repair_makes_derived_values_anew() {
    let project = Project::new();
    let system = message("s", "system", "x").replace("10:30:00.000Z", "11:30:00+01:00");
    project.thread("t", &[message("a", "user", "x"), system]);
    let (store, mut books) = project.opened();
    assert_eq!(violations(&store).len(), 2);
    assert_eq!(store.repair_files().unwrap().len(), 1);
    assert_eq!(violations(&store), []);
    assert!(store.repair_files().unwrap().is_empty());
    let text = read(&project.meta("t"));
    assert!(text.contains("\"messageCount\": 2") && text.contains("\"agentMessageCount\": 0"));
    store.scan(false, &mut books).unwrap();
    assert_eq!(ids(&books), ["a", "s"]);
    // Some programs count system messages as the agent's.
    std::fs::write(
        project.meta("t"),
        text.replace("\"agentMessageCount\": 0", "\"agentMessageCount\": 1"),
    )
    .unwrap();
    assert_eq!(violations(&store), []);
}

/// The application's own files, in its spelling (docs/formats/atsf.md, sections 3 and 4).
#[test]
fn what_the_application_writes_has_no_violations() {
    let project = Project::new();
    let asset =
        crate::model::encode_hex(&sha2::Sha256::digest(b"x")).chars().take(16).collect::<String>();
    let blocks = format!(
        r#"{{"type":"thinking","text":"hm"}},{{"type":"tool_call_ref","toolCallId":"c"}},
        {{"type":"image","assetRef":"sha256-{asset}.png","mimeType":"image/png"}},
        {{"type":"audio","assetRef":"sha256-{asset}.png","mimeType":"audio/wav"}},
        {{"type":"resource","uri":"file:///a","mimeType":"text/plain","text":"A"}},
        {{"type":"resource","uri":"file:///b","assetRef":"sha256-{asset}.png"}},
        {{"type":"resource_link","uri":"file:///c","name":"c","title":"C","size":7}},"#
    )
    .replace('\n', "");
    let calls =
        r#"[{"toolCallId":"c","name":"Edit","title":"edit","status":"in_progress","kind":"edit",
        "locations":[{"path":"a","line":1}],"input":"{}","output":"",
        "diff":{"path":"a","oldText":null,"newText":"b"}},
        {"toolCallId":"d","name":"Bash","status":"pending"}]"#
            .replace('\n', "");
    let agent =
        message("b", "agent", "x").replace("\"content\":[", &format!("\"content\":[{blocks}"));
    let agent = agent.replacen('{', &format!("{{\"toolCalls\":{calls},"), 1);
    project.thread("t", &[message("a", "user", "x"), agent]);
    let assets = project.log("t").with_file_name("assets");
    std::fs::create_dir(&assets).unwrap();
    std::fs::write(assets.join(format!("sha256-{asset}.png")), "x").unwrap();
    let text = read(&project.meta("t"));
    let text = text.replacen('{', "{\n  \"parentThreadId\": \"p\",", 1);
    std::fs::write(project.meta("t"), text).unwrap();
    let store = project.open();
    store.repair_files().unwrap();
    assert_eq!(violations(&store), []);
}
