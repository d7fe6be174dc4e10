//! Tests of the messages in logs as Claude Code writes them.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::store::Kind;
use crate::store::sessions::message::{
    CallStatus, SessionBlock, SessionMessage, SessionRole, TokenCount, list_sessions,
};
use crate::store::sessions::testing::{SessionBed, ids, show_blocks as texts, three};
use crate::store::testing::Book;

/// The log of a session in a project.
fn log(session: &str) -> String {
    format!("projects/{PROJECT}/{session}.jsonl")
}

/// A base folder of Claude Code.
struct Sessions(SessionBed);

impl Sessions {
    fn new() -> Self {
        let bed = SessionBed::new(Kind::Claude);
        std::fs::create_dir_all(bed.path(&format!("projects/{PROJECT}"))).unwrap();
        Self(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(&format!("projects/{PROJECT}/{name}"))
    }

    fn write(&self, session: &str, text: &str) {
        self.0.write(&log(session), text);
    }

    fn append(&self, session: &str, text: &str) {
        self.0.append(&log(session), text);
    }
}

impl std::ops::Deref for Sessions {
    type Target = SessionBed;

    fn deref(&self) -> &SessionBed {
        &self.0
    }
}

const A: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const B: &str = "bbbbbbbb-0000-4000-8000-000000000002";
const C: &str = "cccccccc-0000-4000-8000-000000000003";
const PROJECT: &str = "-home-anna-p";

/// A log that is made of records, a second each.
#[derive(Clone)]
struct Transcript {
    session: &'static str,
    text: String,
    second: u32,
}

impl Transcript {
    fn new(session: &'static str) -> Self {
        Self { session, text: String::new(), second: 0 }
    }

    fn record(mut self, uuid: &str, kind: &str, more: &str) -> Self {
        self.second += 1;
        let (hour, minute, second) =
            (10 + self.second / 3600, self.second / 60 % 60, self.second % 60);
        let session = self.session;
        writeln!(
            self.text,
            r#"{{"parentUuid":null,"isSidechain":false,"cwd":"/a/b-c","sessionId":"{session}","version":"2.1.332","gitBranch":"main","type":"{kind}","uuid":"{uuid}","timestamp":"2026-11-25T{hour:02}:{minute:02}:{second:02}.000Z",{more}}}"#
        )
        .unwrap();
        self
    }

    fn user(self, uuid: &str, text: &str) -> Self {
        let text = serde_json::json!(text);
        self.record(uuid, "user", &format!(r#""message":{{"role":"user","content":{text}}}"#))
    }

    fn assistant(self, uuid: &str, answer: &str, block: &str) -> Self {
        let more = format!(
            r#""message":{{"id":"{answer}","role":"assistant","model":"opus","content":[{block}],"stop_reason":"end_turn","usage":{{"input_tokens":10,"output_tokens":3}}}}"#
        );
        self.record(uuid, "assistant", &more)
    }

    fn text(self, uuid: &str, answer: &str, text: &str) -> Self {
        self.assistant(uuid, answer, &format!(r#"{{"type":"text","text":"{text}"}}"#))
    }

    fn call(self, uuid: &str, answer: &str, id: &str) -> Self {
        let block = format!(
            r#"{{"type":"tool_use","id":"{id}","name":"Bash","input":{{"command":"run {id}"}}}}"#
        );
        self.assistant(uuid, answer, &block)
    }

    fn result(self, uuid: &str, id: &str, output: &str) -> Self {
        let more = format!(
            r#""message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{output}","is_error":false}}]}}"#
        );
        self.record(uuid, "user", &more)
    }

    fn raw(mut self, line: &str) -> Self {
        self.text.push_str(line);
        self
    }

    /// Returns the same records as those of another session.
    fn forked(&self, session: &'static str) -> Self {
        Self { session, text: self.text.replace(self.session, session), second: self.second }
    }
}

/// The first conversation of the facts.
fn conversation(session: &'static str) -> Transcript {
    Transcript::new(session)
        .user("a", "hi")
        .assistant("b", "m1", r#"{"type":"thinking","thinking":"hm","signature":"x"}"#)
        .text("c", "m1", "Let me look.")
        .call("d", "m1", "t1")
        .result("e", "t1", "out")
        .text("f", "m2", "ran")
}

#[test]
fn a_message_ends_with_its_text() {
    let sessions = Sessions::new();
    sessions.write(A, &conversation(A).text);
    let store = sessions.open();
    let book = Book::scanned(&*store);
    let expected = three(&[("a", "user", A), ("c", "agent", A), ("f", "agent", A)]);
    assert_eq!(ids(&book), expected);
    let a = book.one("a");
    assert!(a.from_me && !a.to_me && !a.has_parts);
    assert!(!book.one("f").to_me && book.one("f").has_parts);
    let record = store.read_record(&book.one("f").at).unwrap();
    assert_eq!(record.message.body, "[tool call: Bash completed -> 01-tool-Bash.json]\nran");
    assert_eq!(record.message.subject.as_deref(), Some("hi"));
    assert_eq!((record.parts.len(), record.message.to), (1, vec!["user".to_owned()]));
    let (head, all) = sessions.read(A);
    assert_eq!((head.title.as_str(), head.cwd.as_str()), ("hi", "/a/b-c"));
    assert_eq!((head.version.as_str(), head.git_branch.as_deref()), ("2.1.332", Some("main")));
    assert_eq!(head.parent, None);
    let shown: Vec<_> = all.iter().map(texts).collect();
    assert_eq!(shown[0], ["hi"]);
    assert_eq!(shown[1], ["thinking hm", "Let me look."]);
    assert_eq!(shown[2], ["call t1 Bash \"out\"", "ran"]);
    // The tokens of an answer count once.
    let tokens: Vec<_> = all.iter().map(|message| message.tokens).collect();
    let once = Some(TokenCount { input: 10, output: 3 });
    assert_eq!(tokens, [None, once, once]);
    assert_eq!(all[2].model.as_deref(), Some("opus"));
    let roles: Vec<_> = all.iter().map(|message| message.role).collect();
    assert_eq!(roles, [SessionRole::User, SessionRole::Agent, SessionRole::Agent]);
}

#[test]
fn parallel_calls_are_in_one_message() {
    let sessions = Sessions::new();
    let lines = Transcript::new(A)
        .user("a", "hi")
        .call("b", "m1", "t1")
        .result("c", "t1", "one")
        .call("d", "m1", "t2")
        .result("e", "t2", "two")
        .text("f", "m2", "both");
    sessions.write(A, &lines.text);
    let (_, all) = sessions.read(A);
    assert_eq!(all.len(), 2);
    assert_eq!(texts(&all[1]), ["call t1 Bash \"one\"", "call t2 Bash \"two\"", "both"]);
}

#[test]
fn a_fork_has_its_own_messages_only() {
    let fork = conversation(A).forked(B).user("g", "go on").text("h", "m3", "yes");
    let expected = three(&[
        ("a", "user", A),
        ("c", "agent", A),
        ("f", "agent", A),
        ("g", "user", B),
        ("h", "agent", B),
    ]);
    let sessions = Sessions::new();
    sessions.write(A, &conversation(A).text);
    sessions.write(B, &fork.text);
    let store = sessions.open();
    let book = Book::scanned(&*store);
    assert_eq!(ids(&book), expected);
    assert_eq!(book.one("g").in_reply_to.as_deref(), Some("f"));
    let record = store.read_record(&book.one("g").at).unwrap();
    assert_eq!(record.message.in_reply_to.as_deref(), Some("f"));
    let (head, all) = sessions.read(B);
    assert_eq!((head.parent.as_deref(), head.title.as_str(), all.len()), (Some(A), "go on", 2));
    // The fork is read first.
    let sessions = Sessions::new();
    sessions.write(B, &fork.text);
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    assert_eq!(book.messages.len(), 5);
    sessions.write(A, &conversation(A).text);
    book.scan(&*store, true);
    assert_eq!(ids(&book), expected);
    // The original is deleted.
    std::fs::remove_file(sessions.path(&format!("{A}.jsonl"))).unwrap();
    book.scan(&*store, true);
    assert!(book.messages.len() == 5 && ids(&book).iter().all(|(_, _, thread)| thread == B));
}

#[test]
fn the_older_session_owns_what_two_have() {
    let begun = |time: &str| format!("{{\"type\":\"queue-operation\",\"timestamp\":\"{time}\"}}\n");
    let sessions = Sessions::new();
    // The session with the smaller name is younger.
    let young = conversation(A).raw(&begun("2026-11-26T10:00:00.000Z")).user("g", "go on");
    let old = begun("2026-11-25T10:00:00.000Z") + &conversation(B).text;
    sessions.write(A, &young.text);
    sessions.write(B, &old);
    let all = ids(&sessions.book());
    let of = |id: &str| all.iter().find(|(known, ..)| known == id).unwrap().2.clone();
    assert_eq!((of("a"), of("f"), of("g"), all.len()), (B.into(), B.into(), A.into(), 4));
    // A copy that says so is one, whatever the times.
    let sessions = Sessions::new();
    let named = format!(r#""forkedFrom":{{"sessionId":"{A}"}},"cwd""#);
    sessions.write(A, &conversation(A).raw(&begun("2026-11-26T10:00:00.000Z")).text);
    let copy = conversation(A).forked(B).text.replace("\"cwd\"", &named);
    sessions.write(B, &(begun("2026-11-25T10:00:00.000Z") + &copy));
    assert!(ids(&sessions.book()).iter().all(|(_, _, thread)| thread == A));
}

#[test]
fn a_fork_of_a_fork_has_its_own_messages_only() {
    // The fork of the fork has the smallest name.
    let (origin, fork, last) = (C, B, A);
    let fork_of = |of: &Transcript, whole: Transcript| {
        let named = format!(r#""forkedFrom":{{"sessionId":"{}"}},"cwd""#, of.session);
        let copies = of.forked(whole.session).text;
        let own = whole.text.strip_prefix(&copies).unwrap();
        (whole.session, copies.replace("\"cwd\"", &named) + own)
    };
    let whole_a = conversation(origin);
    let whole_b = whole_a.forked(fork).user("g", "go on").text("h", "m3", "yes");
    let a = (origin, whole_a.text.clone());
    let b = fork_of(&whole_a, whole_b.clone());
    let c = fork_of(&whole_b, whole_b.forked(last).user("i", "and on"));
    let expected = three(&[
        ("a", "user", origin),
        ("c", "agent", origin),
        ("f", "agent", origin),
        ("g", "user", fork),
        ("h", "agent", fork),
        ("i", "user", last),
    ]);
    let order =
        [[&a, &b, &c], [&a, &c, &b], [&b, &a, &c], [&b, &c, &a], [&c, &a, &b], [&c, &b, &a]];
    for logs in order {
        let sessions = Sessions::new();
        let store = sessions.open();
        let mut book = Book::scanned(&*store);
        for (session, text) in logs {
            sessions.write(session, text);
            book.scan(&*store, true);
        }
        assert_eq!(ids(&book), expected);
        assert_eq!(book.one("i").in_reply_to.as_deref(), Some("h"));
    }
}

#[test]
fn a_repeated_line_is_one_message() {
    let sessions = Sessions::new();
    let line = Transcript::new(A).user("a", "hi").text;
    let other = Transcript::new(A).user("a", "other").text;
    sessions.write(A, &(line.repeat(4) + &other));
    let book = sessions.book();
    assert_eq!(ids(&book), three(&[("a", "user", A)]));
    assert_eq!(book.reasons(), ["another line with the id \"a\" stands before it"]);
}

/// S1001: the time that a message takes from the one before it stays.
#[test]
fn a_message_with_an_unreadable_time_keeps_its_time() {
    let sessions = Sessions::new();
    let timeless = |uuid: &str| {
        let line = Transcript::new(A).user(uuid, "hm").text;
        line.replace("2026-11-25T10:00:01.000Z", "yesterday")
    };
    let lines = Transcript::new(A).user("a", "hi").raw(&timeless("b")).user("c", "go on");
    sessions.write(A, &(timeless("z") + &lines.text));
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    let times = |book: &Book| {
        let times = |id: &str| {
            let found = book.one(id);
            let record = store.read_record(&found.at).unwrap();
            assert_eq!(record.message.time, found.time, "{id}");
            found.time.rfc3339()
        };
        ["z", "a", "b"].map(times)
    };
    let known = times(&book);
    assert_eq!(known[0], "1970-01-01T00:00:00.000Z");
    assert_eq!(known[1..], ["2026-11-25T10:00:01.000Z"; 2]);
    sessions.append(A, lines.clone().user("d", "more").text.strip_prefix(&lines.text).unwrap());
    book.scan(&*store, true);
    assert_eq!(book.messages.len(), 5);
    assert_eq!(times(&book), known);
}

#[test]
fn check_lists_each_rejected_line() {
    let sessions = Sessions::new();
    let lines = Transcript::new(A).user("a", "hi").user("", "no id").raw("no JSON\n");
    let other = Transcript::new(A).user("a", "other").text;
    sessions.write(A, &(lines.text + &other));
    let other = Transcript::new(B).user("b", "hi").user("a", "from another session").text;
    sessions.write(B, &other);
    let store = sessions.open();
    let mut found = Vec::new();
    let verify = &crate::model::verify::find_claim_fault;
    store.check(verify, &mut |v| found.push((v.file, v.line, v.rule))).unwrap();
    found.sort();
    let expected = [(A, 2, "rejected"), (A, 3, "schema"), (A, 4, "rejected"), (B, 2, "rejected")];
    assert_eq!(found, expected.map(|(session, line, rule)| (log(session), line, rule)));
    assert_eq!(sessions.book().reasons().len(), found.len());
}

#[test]
fn calls_without_a_text_are_a_message_when_the_turn_ends() {
    let sessions = Sessions::new();
    let lines = Transcript::new(A).user("a", "hi").call("b", "m1", "t1").result("c", "t1", "x");
    sessions.write(A, &lines.text);
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    assert_eq!(book.messages.len(), 1);
    let more = lines.clone().user("d", "next").text;
    sessions.append(A, more.strip_prefix(&lines.text).unwrap());
    book.scan(&*store, true);
    assert_eq!(ids(&book), three(&[("a", "user", A), ("c", "agent", A), ("d", "user", A)]));
    let (_, all) = sessions.read(A);
    assert_eq!(texts(&all[1]), ["call t1 Bash \"x\""]);
    assert_eq!(book.rescans, 0);
}

#[test]
fn a_late_result_stands_in_the_later_message() {
    let sessions = Sessions::new();
    let lines = Transcript::new(A)
        .call("a", "m1", "t1")
        .text("b", "m1", "begun")
        .result("c", "t1", "x")
        .text("d", "m2", "done");
    sessions.write(A, &lines.text);
    let (_, all) = sessions.read(A);
    assert_eq!(texts(&all[0]), ["call t1 Bash \"-\"", "begun"]);
    assert_eq!(texts(&all[1]), ["call t1  \"x\"", "done"]);
    let status = |message: &SessionMessage| match &message.blocks[0] {
        SessionBlock::Call(call) => call.status,
        _ => panic!("no call"),
    };
    assert_eq!((status(&all[0]), status(&all[1])), (CallStatus::Pending, CallStatus::Completed));
}

#[test]
fn a_compaction_is_a_message_of_the_harness() {
    let sessions = Sessions::new();
    let summary = r#""isCompactSummary":true,"message":{"role":"user","content":"Summary: x"}"#;
    let lines = conversation(A)
        .record("g", "system", r#""subtype":"compact_boundary","logicalParentUuid":"f""#)
        .record("h", "user", summary)
        .user("i", "go on");
    sessions.write(A, &lines.text);
    let all = ids(&sessions.book());
    assert_eq!(all[3..], three(&[("h", "system", A), ("i", "user", A)]));
    assert_eq!(all.len(), 5);
}

#[test]
fn torn_lines_cost_only_themselves() {
    let sessions = Sessions::new();
    let torn = "{\"parentUuid\":null,\"costUSD";
    sessions.write(A, &conversation(A).raw(torn).text);
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    assert!(book.messages.len() == 3 && book.rejected.is_empty());
    let next = Transcript::new(A).user("g", "go on").text;
    sessions.append(A, &format!("\n{next}"));
    book.scan(&*store, true);
    assert!(book.messages.len() == 4 && book.rejected.len() == 1, "{:?}", book.rejected);
    // The next record is glued to a torn line.
    let sessions = Sessions::new();
    let lines = conversation(A).raw("{\"sessionId\":").user("g", "lost").user("h", "read");
    sessions.write(A, &lines.text);
    let book = sessions.book();
    assert!(book.messages.len() == 4 && book.rejected.len() == 1);
    assert!(ids(&book).iter().any(|(id, ..)| id == "h"));
}

#[test]
fn a_sub_agent_has_a_thread_of_its_own() {
    let sessions = Sessions::new();
    let lines = Transcript::new(A).user("x", "look for it").text("y", "m9", "found");
    sessions.write(A, &conversation(A).text);
    sessions.write(&format!("{A}/subagents/agent-0123456789abcdef0"), &lines.text);
    let meta = sessions.path(&format!("{A}/subagents/agent-0123456789abcdef0.meta.json"));
    std::fs::write(meta, r#"{"agentType":"Explore","toolUseId":"t1"}"#).unwrap();
    let old = Transcript::new(B).user("v", "old").text("w", "m8", "style");
    sessions.write("agent-0123abcd", &old.text);
    let book = sessions.book();
    let thread = format!("{A}.0123456789abcdef0");
    let x = book.one("x");
    assert_eq!((&*x.from, &*x.to, &*x.thread), ("agent", "agent.Explore", &*thread));
    let y = book.one("y");
    assert_eq!((&*y.from, &*y.to, y.from_me), ("agent.Explore", "agent", false));
    assert_eq!(&*book.one("w").from, "agent.0123abcd");
    assert_eq!(&*book.one("w").thread, format!("{B}.0123abcd"));
    let (head, all) = sessions.read(&thread);
    assert_eq!((head.parent.as_deref(), all.len()), (Some(A), 2));
    assert_eq!(all[0].agent.as_deref(), Some("Explore"));
    let ids: Vec<_> = list_sessions(Kind::Claude, sessions.dir())
        .unwrap()
        .into_iter()
        .map(|head| head.id)
        .collect();
    assert_eq!(ids, [A.to_owned(), thread, format!("{B}.0123abcd")]);
}

#[test]
fn a_session_that_grows_is_followed() {
    let sessions = Sessions::new();
    let whole = conversation(A).user("g", "go on").text("h", "m3", "yes").text;
    let store = sessions.open();
    let mut book = Book::default();
    for line in whole.split_inclusive('\n') {
        let (head, tail) = line.split_at(line.len() / 2);
        for piece in [head, tail] {
            sessions.append(A, piece);
            book.scan(&*store, true);
        }
    }
    assert_eq!((book.rescans, book.messages.len()), (0, 5));
    sessions.write(A, &whole);
    assert!(Book::scanned(&*sessions.open()).messages == book.messages);
    // A saved table goes on where it was.
    let again = sessions.open();
    assert!(again.restore_cursors(&store.save_cursors()));
    sessions.append(A, &Transcript::new(A).user("i", "more").text);
    book.scan(&*again, true);
    assert_eq!(book.messages.len(), 6);
    // A log that was replaced is read anew.
    sessions.write(A, &Transcript::new(A).user("z", "other").text);
    book.scan(&*again, true);
    assert_eq!(ids(&book), three(&[("z", "user", A)]));
}

#[test]
fn a_title_that_comes_later_is_the_title_of_all() {
    let sessions = Sessions::new();
    sessions.write(A, &conversation(A).text);
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    let title =
        |title: &str| format!("{{\"type\":\"custom-title\",\"customTitle\":\"{title}\"}}\n");
    for (named, rescans) in [("one", 1), ("one", 1), ("two", 2)] {
        sessions.append(A, &title(named));
        book.scan(&*store, true);
        let record = store.read_record(&book.one("a").at).unwrap();
        assert_eq!(record.message.subject.as_deref(), Some(named));
        assert_eq!(book.rescans, rescans);
    }
    // A summary of another session is not the title.
    let sessions = Sessions::new();
    let summary = |text: &str, leaf: &str| {
        format!("{{\"type\":\"summary\",\"summary\":\"{text}\",\"leafUuid\":\"{leaf}\"}}\n")
    };
    sessions.write(A, &(summary("own", "f") + &conversation(A).text + &summary("foreign", "q")));
    assert_eq!(sessions.read(A).0.title, "own");
}

#[test]
fn only_the_results_of_the_own_session_are_opened() {
    let sessions = Sessions::new();
    let folder = sessions.path(A).join("tool-results");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("toolu_1.txt"), "the whole").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("passwd")).unwrap();
    let lines = Transcript::new(A)
        .call("a", "m1", "t1")
        .result("b", "t1", "saved to /other/tool-results/toolu_1.txt")
        .result("c", "t2", "saved to /x/tool-results/passwd or /etc/passwd")
        .result("d", "t3", "saved to /x/tool-results/../../../etc/passwd")
        .text("e", "m2", "done");
    sessions.write(A, &lines.text);
    let store = sessions.open();
    let book = Book::scanned(&*store);
    let at = book.one("e").at;
    let record = store.read_record(&at).unwrap();
    let names: Vec<_> = record.parts.iter().map(|part| part.name.as_str()).collect();
    let calls = ["01-tool-Bash.json", "02-tool-result.json", "03-tool-result.json"];
    assert_eq!(names, [&calls[..], &["toolu_1.txt"]].concat());
    let parts = store.facets().parts.unwrap();
    assert!(parts.open_part(&at, "toolu_1.txt").is_ok());
    assert!(parts.open_part(&at, "passwd").is_err());
}

#[test]
fn a_compressed_log_is_the_same_log() {
    let sessions = Sessions::new();
    sessions.write(A, &conversation(A).text);
    let store = sessions.open();
    let mut book = Book::scanned(&*store);
    let before = ids(&book);
    let packed = ruzstd::encoding::compress_to_vec(
        conversation(A).text.as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    std::fs::write(sessions.path(&format!("{A}.jsonl.zst")), packed).unwrap();
    book.scan(&*store, true);
    assert_eq!((ids(&book), book.rescans), (before.clone(), 0), "the plain log counts");
    std::fs::remove_file(sessions.path(&format!("{A}.jsonl"))).unwrap();
    book.scan(&*store, true);
    assert_eq!(ids(&book), before);
    assert!(store.read_record(&book.one("f").at).unwrap().message.body.ends_with("ran"));
    let folder = store.list_raw_folder(PROJECT).unwrap();
    assert_eq!(folder.len(), 1);
    assert_eq!(folder[0].name, format!("{A}.jsonl.zst"));
    assert!(store.open_raw_file(&format!("{PROJECT}/{A}.jsonl.zst")).is_ok());
    sessions.write(A, &conversation(A).user("g", "go on").text);
    std::fs::remove_file(sessions.path(&format!("{A}.jsonl.zst"))).unwrap();
    book.scan(&*store, true);
    assert_eq!(book.messages.len(), 4);
}

#[test]
fn check_names_what_is_not_known_once() {
    let sessions = Sessions::new();
    let odd = "{\"type\":\"new-thing-2027\"}\n";
    sessions.write(A, &conversation(A).raw(odd).raw(odd).raw("{}x\n").text);
    sessions.write(B, odd);
    let mut told = Vec::new();
    sessions.open().check(&|_| None, &mut |wrong| told.push((wrong.line, wrong.rule))).unwrap();
    assert_eq!(told, [(7, "unknown"), (9, "schema")]);
}

#[test]
fn images_lie_beside_the_message() {
    let image =
        r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AQID"}}"#;
    let sessions = Sessions::new();
    let lines = Transcript::new(A)
        .record(
            "a",
            "user",
            &format!(
                r#""message":{{"role":"user","content":[{{"type":"text","text":"see"}},{image}]}}"#
            ),
        )
        .call("b", "m1", "t1")
        .record(
            "c",
            "user",
            &format!(
                r#""message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{{"type":"text","text":"out"}},{image}]}}]}}"#
            ),
        )
        .text("d", "m2", "seen");
    sessions.write(A, &lines.text);
    let (_, all) = sessions.read(A);
    assert_eq!(texts(&all[0]), ["see", "image image/png"]);
    assert_eq!(texts(&all[1]), ["call t1 Bash \"out\"", "image image/png", "seen"]);
    let SessionBlock::Call(call) = &all[1].blocks[0] else { panic!("no call") };
    assert_eq!(call.status, CallStatus::Failed);
    let store = sessions.open();
    let at = Book::scanned(&*store).one("a").at;
    let record = store.read_record(&at).unwrap();
    let part = &record.parts[0];
    assert!(part.name.starts_with("sha256-") && part.name.contains(".png") && part.size == 3);
}

#[test]
fn a_long_log_is_the_same_on_all_cores() {
    let sessions = Sessions::new();
    let mut lines = Transcript::new(A);
    for n in 0..900 {
        let text = "word ".repeat(n % 400);
        lines = lines
            .user(&format!("a{n}"), &format!("{n} {text}"))
            .call(&format!("b{n}"), &format!("m{n}"), &format!("t{n}"))
            .result(&format!("c{n}"), &format!("t{n}"), &text)
            .text(&format!("d{n}"), &format!("n{n}"), &text.replace(' ', "."));
    }
    assert!(lines.text.len() > 2 << 20);
    sessions.write(A, &lines.text);
    let book = sessions.book();
    let expected = 1800 - 3;
    assert!((expected..=1800).contains(&book.messages.len()), "{}", book.messages.len());
    let (_, all) = sessions.read(A);
    assert_eq!(all.len(), book.messages.len());
    assert!(all.iter().all(|message| message.blocks.len() <= 2));
    let times: Vec<_> = all.iter().map(|message| message.time).collect();
    assert!(times.is_sorted());
}
