//! Tests of the messages in logs as Codex writes them.

use std::fmt::Write as _;

use super::line::derive_message_id;
use crate::store::Kind;
use crate::store::sessions::message::{CallStatus, SessionBlock, TokenCount};
use crate::store::sessions::testing::{SessionBed, ids, show_blocks, three};
use crate::store::testing::Book;

const A: &str = "01a21513-c9d0-7083-aec5-c7538fdc5181";
const B: &str = "01a21513-c9d0-7083-aec5-c7538fdc5182";

fn log(thread: &str) -> String {
    format!("sessions/2026/11/25/rollout-2026-11-25T23-39-08-{thread}.jsonl")
}

/// A log that is made of records, a second each.
#[derive(Clone)]
struct Rollout {
    text: String,
    second: u32,
    /// True for the older form of events.
    legacy: bool,
}

fn stamp(second: u32) -> String {
    format!("2026-11-25T23:{:02}:{:02}.000Z", second / 60, second % 60)
}

impl Rollout {
    fn new(thread: &str, more: &str) -> Self {
        Self { text: String::new(), second: 0, legacy: false }.meta(thread, more)
    }

    fn legacy(thread: &str, more: &str) -> Self {
        Self { text: String::new(), second: 0, legacy: true }.meta(thread, more)
    }

    /// Returns the begin of a fork of [`A`] in the older form that is made at a second.
    fn fork_at(second: u32) -> Self {
        let forked = format!(r#","forked_from_id":"{A}""#);
        Self { text: String::new(), second, legacy: true }.meta(B, &forked).meta(A, "")
    }

    fn meta(self, thread: &str, more: &str) -> Self {
        self.record(
            "session_meta",
            &format!(
                r#"{{"id":"{thread}","cwd":"/a/b","cli_version":"0.169.0","git":{{"branch":"main","commit_hash":"c0ffee"}}{more}}}"#
            ),
        )
    }

    fn record(mut self, kind: &str, payload: &str) -> Self {
        self.second += 1;
        let time = stamp(self.second);
        writeln!(self.text, r#"{{"timestamp":"{time}","type":"{kind}","payload":{payload}}}"#)
            .unwrap();
        self
    }

    fn prompt(self, text: &str) -> Self {
        let payload = if self.legacy {
            format!(r#"{{"type":"user_message","message":"{text}","images":[]}}"#)
        } else {
            format!(
                r#"{{"type":"item_completed","item":{{"type":"UserMessage","id":"x","content":[{{"type":"text","text":"{text}"}}]}}}}"#
            )
        };
        self.record("event_msg", &payload)
    }

    fn answer(self, text: &str) -> Self {
        let payload = if self.legacy {
            format!(r#"{{"type":"agent_message","message":"{text}"}}"#)
        } else {
            format!(
                r#"{{"type":"item_completed","item":{{"type":"AgentMessage","id":"x","content":[{{"type":"Text","text":"{text}"}}]}}}}"#
            )
        };
        let item = format!(
            r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{text}"}}]}}"#
        );
        self.record("event_msg", &payload).record("response_item", &item)
    }

    fn call(self, id: &str, output: &str) -> Self {
        let call = format!(
            r#"{{"type":"function_call","name":"exec_command","arguments":"{{\"cmd\":\"ls\"}}","call_id":"{id}"}}"#
        );
        let result =
            format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"{output}"}}"#);
        self.record("response_item", &call).record("response_item", &result)
    }

    /// Returns the log with numbers in its lines.
    fn numbered(&self) -> String {
        let number =
            |(n, line): (usize, &str)| line.replacen('{', &format!("{{\"ordinal\":{n},"), 1) + "\n";
        self.text.lines().enumerate().map(number).collect()
    }

    fn thought(self, text: &str) -> Self {
        let item = format!(
            r#"{{"type":"reasoning","summary":[{{"type":"summary_text","text":"{text}"}}],"encrypted_content":"x"}}"#
        );
        self.record("response_item", &item)
    }
}

/// Returns the id of a message.
fn id(thread: &str, second: u32, role: &str, text: &str) -> String {
    derive_message_id(thread, &stamp(second), role, text)
}

fn bodies(book: &Book, bed: &SessionBed) -> Vec<String> {
    let store = bed.open();
    let mut all = Book::scanned(&*store).messages.into_values().collect::<Vec<_>>();
    assert_eq!(all.len(), book.messages.len());
    all.sort_by_key(|kept| kept.name_time);
    all.iter().map(|kept| store.read_record(&kept.at).unwrap().message.body).collect()
}

#[test]
fn a_message_ends_with_its_text() {
    let bed = SessionBed::new(Kind::Codex);
    let command = r#"{"type":"item_completed","item":{"type":"CommandExecution","id":"c1","exit_code":3,"duration":{"secs":1,"nanos":5000000}}}"#;
    let usage = r#"{"usage":{"input_tokens":10,"output_tokens":3}}"#;
    let lines = Rollout::new(A, "")
        .record("turn_context", r#"{"model":"gpt"}"#)
        .prompt("hi")
        .thought("hm")
        .call("c1", "out")
        .record("token_usage_record", usage)
        .record("event_msg", command)
        .answer("ran")
        .record("token_usage_record", usage)
        .prompt("bye");
    bed.write(&log(A), &lines.text);
    let book = bed.book();
    let expected = three(&[
        (&id(A, 3, "user", "hi"), "user", A),
        (&id(A, 9, "agent", "ran"), "agent", A),
        (&id(A, 12, "user", "bye"), "user", A),
    ]);
    assert_eq!(ids(&book), expected);
    let (head, all) = bed.read(A);
    assert_eq!((head.title.as_str(), head.cwd.as_str()), ("hi", "/a/b"));
    assert_eq!(
        (head.git_branch.as_deref(), head.git_commit.as_deref()),
        (Some("main"), Some("c0ffee"))
    );
    assert_eq!(show_blocks(&all[1]), ["thinking hm", "call c1 exec_command \"out\"", "ran"]);
    let SessionBlock::Call(call) = &all[1].blocks[1] else { panic!("no call") };
    assert_eq!((call.status, call.duration_ms), (CallStatus::Failed, Some(1005)));
    assert_eq!(call.input, r#"{"cmd":"ls"}"#);
    assert_eq!(all[1].model.as_deref(), Some("gpt"));
    assert_eq!(all[1].tokens, Some(TokenCount { input: 20, output: 6 }));
    assert_eq!((all[0].tokens, all[0].model.as_deref()), (None, None));
}

#[test]
fn a_migrated_log_has_the_same_messages() {
    let bed = SessionBed::new(Kind::Codex);
    let make = |lines: Rollout| lines.prompt("hi").call("c1", "out").answer("ran").prompt("bye");
    bed.write(&log(A), make(Rollout::legacy(A, "")).text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let (before, texts) = (ids(&book), bodies(&book, &bed));
    bed.write(&log(A), make(Rollout::new(A, r#","history_mode":"paginated""#)).text);
    book.scan(&*store, true);
    assert_eq!((ids(&book), bodies(&book, &bed)), (before, texts));
    assert_eq!(book.messages.len(), 3);
}

#[test]
fn a_compressed_log_that_grows_loses_nothing() {
    let bed = SessionBed::new(Kind::Codex);
    let lines = Rollout::new(A, "").prompt("hi").answer("ran");
    let packed = ruzstd::encoding::compress_to_vec(
        lines.text.as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    bed.write(&log(A), &lines.text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let before = ids(&book);
    let zst = format!("{}.zst", log(A));
    bed.write(&zst, packed);
    book.scan(&*store, true);
    std::fs::remove_file(bed.path(&log(A))).unwrap();
    book.scan(&*store, true);
    assert_eq!(ids(&book), before);
    bed.write(&log(A), &lines.clone().prompt("more").text);
    book.scan(&*store, true);
    std::fs::remove_file(bed.path(&zst)).unwrap();
    book.scan(&*store, true);
    assert_eq!((ids(&book)[..2].to_vec(), book.messages.len()), (before, 3));
}

#[test]
fn a_fork_without_copies_has_its_own_lines() {
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), Rollout::new(A, "").prompt("hi").answer("ran").numbered());
    let base = format!(
        r#","forked_from_id":"{A}","history_mode":"paginated","history_base":{{"thread_id":"{A}","end_ordinal_exclusive":2}}"#
    );
    bed.write(&log(B), Rollout::new(B, &base).prompt("other").answer("way").text);
    let of_b = |book: &Book| ids(book).into_iter().filter(|(.., thread)| thread == B).count();
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    assert_eq!((book.messages.len(), of_b(&book)), (4, 2));
    let (head, all) = bed.read(B);
    assert_eq!((head.parent.as_deref(), head.title.as_str(), all.len()), (Some(A), "other", 2));
    let first = book.one(&id(B, 2, "user", "other"));
    assert_eq!(first.in_reply_to.as_deref(), Some(&*id(A, 2, "user", "hi")));
    std::fs::remove_file(bed.path(&log(A))).unwrap();
    book.scan(&*store, true);
    assert_eq!((book.messages.len(), of_b(&book)), (2, 2));
}

#[test]
fn a_fork_that_repeats_its_origin_has_its_own_messages_only() {
    let origin = Rollout::legacy(A, "").prompt("hi").call("c1", "out").answer("ran");
    let fork = Rollout::fork_at(10)
        .prompt("hi")
        .call("c1", "out")
        .answer("ran")
        .prompt("other")
        .answer("way");
    for first in [A, B] {
        let bed = SessionBed::new(Kind::Codex);
        let (one, two) =
            if first == A { ((A, &origin), (B, &fork)) } else { ((B, &fork), (A, &origin)) };
        bed.write(&log(one.0), &one.1.text);
        let store = bed.open();
        let mut book = Book::scanned(&*store);
        assert_eq!(book.messages.len(), if first == A { 2 } else { 4 });
        bed.write(&log(two.0), &two.1.text);
        book.scan(&*store, true);
        let threads: Vec<String> = ids(&book).into_iter().map(|(.., thread)| thread).collect();
        assert_eq!(threads, [A, A, B, B], "{first} first");
        let answered = id(A, 5, "agent", "ran");
        let prompt = book.one(&id(B, 18, "user", "other"));
        assert_eq!(prompt.in_reply_to.as_deref(), Some(&*answered));
        // Without its origin, what it repeats is its own.
        std::fs::remove_file(bed.path(&log(A))).unwrap();
        book.scan(&*store, true);
        let threads: Vec<String> = ids(&book).into_iter().map(|(.., thread)| thread).collect();
        assert_eq!(threads, [B, B, B, B], "{first} first");
    }
}

/// S1236: a fork keeps its own prompt and its own calls if its origin goes on later with the same prompt, also if the
/// fork is read for the first time after that.
#[test]
fn a_fork_keeps_what_its_origin_says_later_too() {
    let origin = Rollout::legacy(A, "").prompt("hi").call("c1", "out").answer("ran");
    let copies = Rollout::fork_at(10).prompt("hi").call("c1", "out").answer("ran");
    let fork = copies.prompt("continue").call("c2", "out").answer("done B");
    let mut resumed = origin.clone();
    resumed.second = 40;
    let resumed = resumed.prompt("continue").call("c9", "out").answer("done A");
    let of_b = |book: &Book| -> Vec<_> {
        ids(book).into_iter().filter(|(.., thread)| thread == B).collect()
    };
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), &origin.text);
    bed.write(&log(B), &fork.text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let before = of_b(&book);
    assert_eq!(before.len(), 2);
    bed.write(&log(A), &resumed.text);
    book.scan(&*store, true);
    assert_eq!(of_b(&book), before);
    assert_eq!(of_b(&bed.book()), before);
    let texts: Vec<_> = bed.read(B).1.iter().map(show_blocks).collect();
    let answer = vec!["call c2 exec_command \"out\"", "done B"];
    assert_eq!(texts, [vec!["continue"], answer]);
}

/// S1236: a fork that goes on from an earlier message with the same prompt keeps its own calls. A call that the origin
/// has, and the fork lacks, ends no copies.
#[test]
fn a_call_that_the_origin_lacks_ends_the_copies() {
    let origin = Rollout::legacy(A, "").prompt("hi").call("c0", "").call("c1", "out").answer("ran");
    let origin = origin.prompt("continue").call("c9", "out").answer("done A");
    let copies = Rollout::fork_at(20).prompt("hi").call("c1", "out").answer("ran");
    let fork = copies.prompt("continue").call("c2", "out").answer("done B");
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), &origin.text);
    bed.write(&log(B), &fork.text);
    let texts: Vec<_> = bed.read(B).1.iter().map(show_blocks).collect();
    assert_eq!(texts, [["call c2 exec_command \"out\"", "done B"]]);
}

#[test]
fn a_migrated_fork_has_its_own_messages_only() {
    let bed = SessionBed::new(Kind::Codex);
    let talk = |lines: Rollout| lines.prompt("hi").call("c1", "out").answer("ran");
    bed.write(&log(A), talk(Rollout::legacy(A, "")).text);
    let own = |lines: Rollout| lines.prompt("other").answer("way");
    let forked = format!(r#","forked_from_id":"{A}""#);
    bed.write(&log(B), own(talk(Rollout::fork_at(10))).text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let before = ids(&book);
    assert_eq!(before.len(), 4);
    // The migration leaves out the description of the origin, and its line numbers begin anew.
    let paginated = forked + r#","history_mode":"paginated""#;
    let empty = Rollout { text: String::new(), second: 10, legacy: false };
    let mut lines = empty.meta(B, &paginated);
    lines.second = 12;
    bed.write(&log(B), own(talk(lines)).numbered());
    book.scan(&*store, true);
    assert_eq!(ids(&book), before);
    assert_eq!(ids(&bed.book()), before);
    // A fork in that form names what it shares, and repeats nothing.
    let named = format!(r#","forked_from_id":"{A}","forked_from_ordinal_exclusive":0"#);
    bed.write(&log(B), talk(Rollout::new(B, &named)).numbered());
    book.scan(&*store, true);
    assert_eq!(ids(&book).iter().filter(|(.., thread)| thread == B).count(), 2);
}

#[test]
fn both_branches_of_a_rewind_are_one_thread() {
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), Rollout::new(A, "").prompt("hi").answer("ran").prompt("left").text);
    let base = format!(r#","history_base":{{"thread_id":"{A}","end_ordinal_exclusive":3}}"#);
    let mut branch = Rollout::new(A, &base);
    branch.second = 30;
    bed.write(
        &format!("sessions/2026/11/26/rollout-2026-11-26T00-00-00-{A}_{B}.jsonl"),
        branch.prompt("right").text,
    );
    let (head, all) = bed.read(A);
    let texts: Vec<_> = all.iter().map(show_blocks).collect();
    assert_eq!(texts, [["hi"], ["ran"], ["left"], ["right"]]);
    assert_eq!(head.title, "hi");
    // They have one subject, which is that of the other branch when one is gone.
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let right = id(A, 31, "user", "right");
    let subject = |book: &Book| store.read_record(&book.one(&right).at).unwrap().message.subject;
    assert_eq!(subject(&book).as_deref(), Some("hi"));
    std::fs::remove_file(bed.path(&log(A))).unwrap();
    book.scan(&*store, true);
    assert_eq!(subject(&book).as_deref(), Some("right"));
}

#[test]
fn a_compaction_is_no_message() {
    let bed = SessionBed::new(Kind::Codex);
    let summary = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Summary"}]}"#;
    let lines = Rollout::new(A, "")
        .prompt("hi")
        .record("response_item", summary)
        .record("compacted", r#"{"message":"Summary","replacement_history":[{"a":[1]}]}"#)
        .answer("done");
    bed.write(&log(A), lines.text);
    assert_eq!(bed.book().messages.len(), 2);
}

#[test]
fn a_log_without_a_description_is_rejected() {
    let bed = SessionBed::new(Kind::Codex);
    let lines = Rollout::new(A, "").prompt("hi").text;
    let (_, rest) = lines.split_once('\n').unwrap();
    bed.write(&log(A), rest);
    let book = bed.book();
    assert_eq!(book.messages.len(), 0);
    assert_eq!(book.reasons(), ["the first line of the log does not describe a session"]);
}

#[test]
fn an_archived_thread_keeps_its_messages() {
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), Rollout::new(A, "").prompt("hi").call("c", "x").answer("ran").text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let before = ids(&book);
    let archived = bed.path("archived_sessions");
    std::fs::create_dir_all(&archived).unwrap();
    let name = log(A).rsplit('/').next().unwrap().to_owned();
    std::fs::rename(bed.path(&log(A)), archived.join(name)).unwrap();
    book.scan(&*store, true);
    assert_eq!(ids(&book), before);
    let texts: Vec<_> = bed.read(A).1.iter().map(show_blocks).collect();
    assert_eq!(texts, [vec!["hi"], vec!["call c exec_command \"x\"", "ran"]]);
}

#[test]
fn the_name_that_a_person_gave_is_the_title() {
    let bed = SessionBed::new(Kind::Codex);
    bed.write(&log(A), Rollout::new(A, "").prompt("hi").text);
    let store = bed.open();
    let mut book = Book::scanned(&*store);
    let name = |name: &str| format!("{{\"id\":\"{A}\",\"thread_name\":\"{name}\"}}\n");
    bed.write("session_index.jsonl", name("one") + &name("two"));
    assert!(store.is_relevant(bed.dir(), "session_index.jsonl".as_ref()));
    store.note_change(&bed.path("session_index.jsonl"));
    book.scan(&*store, false);
    let subject = store.read_record(&book.messages.values().next().unwrap().at).unwrap();
    assert_eq!(subject.message.subject.as_deref(), Some("two"));
    assert_eq!(book.rescans, 1);
}

#[test]
fn a_sub_agent_has_its_own_thread() {
    let bed = SessionBed::new(Kind::Codex);
    let source = format!(
        r#","parent_thread_id":"{A}","source":{{"subagent":{{"thread_spawn":{{"parent_thread_id":"{A}","agent_nickname":"Robie"}}}}}}"#
    );
    bed.write(&log(B), Rollout::new(B, &source).prompt("look").answer("found").text);
    let names: Vec<_> = ids(&bed.book()).into_iter().map(|(_, from, _)| from).collect();
    assert_eq!(names, ["agent", "agent.Robie"]);
    let (head, all) = bed.read(B);
    assert_eq!((head.parent.as_deref(), all[1].agent.as_deref()), (Some(A), Some("Robie")));
}

#[test]
fn calls_of_an_aborted_turn_are_a_message() {
    let bed = SessionBed::new(Kind::Codex);
    let lines = Rollout::new(A, "").prompt("hi").call("c", "x");
    bed.write(&log(A), &lines.text);
    assert_eq!(bed.book().messages.len(), 1);
    let lines = lines.record("event_msg", r#"{"type":"turn_aborted","reason":"interrupted"}"#);
    bed.write(&log(A), lines.prompt("next").text);
    let book = bed.book();
    assert_eq!(ids(&book)[1].0, id(A, 4, "agent", ""));
    let texts: Vec<_> = bed.read(A).1.iter().map(show_blocks).collect();
    assert_eq!(texts[1], ["call c exec_command \"x\""]);
    assert_eq!(bed.read(A).1[1].id, ids(&book)[1].0);
}
