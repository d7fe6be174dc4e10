//! Transcripts of Claude Code, on real mounts.

mod footprint;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::agz::put;
use crate::common::shown::{Shown, has_ending};
use crate::common::{Bed, Mount, soon};

const A: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const B: &str = "bbbbbbbb-0000-4000-8000-000000000002";

/// A base folder with one project.
pub(crate) struct Sessions {
    pub(crate) base: PathBuf,
    second: std::cell::Cell<u32>,
}

impl Sessions {
    fn new(bed: &Bed) -> Self {
        let base = bed.path("home/.claude");
        fs::create_dir_all(base.join("projects/-home-anna-p")).expect("mkdir");
        Self { base, second: std::cell::Cell::new(0) }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.base.join("projects/-home-anna-p").join(name)
    }

    /// Returns a record of a session, a second after the last one.
    fn record(&self, session: &str, uuid: &str, kind: &str, more: &Value) -> String {
        let second = self.second.replace(self.second.get() + 1);
        let (minute, second) = (second / 60, second % 60);
        let mut record = json!({
            "parentUuid": null, "isSidechain": false, "cwd": "/home/anna/p", "sessionId": session,
            "version": "2.1.332", "gitBranch": "main", "type": kind, "uuid": uuid,
            "timestamp": format!("2026-11-25T10:{minute:02}:{second:02}.000Z"),
        });
        for (name, value) in more.as_object().expect("an object") {
            record[name] = value.clone();
        }
        format!("{record}\n")
    }

    fn user(&self, session: &str, uuid: &str, content: Value) -> String {
        let message = json!({"role": "user", "content": content});
        self.record(session, uuid, "user", &json!({ "message": message }))
    }

    fn assistant(&self, session: &str, uuid: &str, answer: &str, block: Value) -> String {
        let message = json!({
            "id": answer, "role": "assistant", "model": "opus", "content": [block],
            "usage": {"input_tokens": 10, "output_tokens": 3},
        });
        self.record(session, uuid, "assistant", &json!({ "message": message }))
    }

    fn text(&self, session: &str, uuid: &str, answer: &str, text: &str) -> String {
        self.assistant(session, uuid, answer, json!({"type": "text", "text": text}))
    }

    /// Returns a conversation: a prompt, a text, a call with its result, a text.
    fn conversation(&self, session: &str) -> String {
        let call =
            json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}});
        let result = json!([{"type": "tool_result", "tool_use_id": "t1", "content": "out"}]);
        [
            self.user(session, "a", json!("please look")),
            self.assistant(session, "b", "m1", json!({"type": "thinking", "thinking": "hm"})),
            self.text(session, "c", "m1", "Let me look."),
            self.assistant(session, "d", "m1", call),
            self.user(session, "e", result),
            self.text(session, "f", "m2", "ran"),
        ]
        .concat()
    }
}

/// The lines that make the transcripts a store, beside one of SAMP.
const CONFIG: &str = "[[store]]\nkind = \"samp\"\n\n[[store]]\nkind = \"claude\"\n";

#[track_caller]
fn with(fill: impl FnOnce(&Sessions)) -> (Bed, Sessions, Mount) {
    let bed = Bed::new();
    let sessions = Sessions::new(&bed);
    bed.config(CONFIG);
    fill(&sessions);
    let m = bed.mount("bob");
    (bed, sessions, m)
}

/// Returns the messages of a folder, in the order of their names.
fn messages(m: &Mount, folder: &str) -> Vec<Shown> {
    let names = m.ls(folder).into_iter().filter(|name| has_ending(name, "txt"));
    let text =
        |name| String::from_utf8(m.bytes_quietly(&format!("{folder}/{name}"))).expect("UTF-8");
    names.map(|name| Shown::parse(&text(name))).collect()
}

fn bodies(m: &Mount, folder: &str) -> Vec<String> {
    messages(m, folder).into_iter().map(|shown| shown.body.trim_end().to_owned()).collect()
}

/// S1000, S1001, S1002: a session is a thread, a message ends with its text, and what came before lies in `.d/`.
#[test]
fn s1000_messages() {
    let (_bed, _sessions, m) = with(|s| put(&s.at(&format!("{A}.jsonl")), s.conversation(A)));
    let thread = format!("threads/{A}");
    assert_eq!(
        bodies(&m, &thread),
        [
            "please look",
            "[thinking: 2 characters -> 01-thinking.txt]\nLet me look.",
            "[tool call: Bash completed -> 01-tool-Bash.json]\nran"
        ]
    );
    let all = messages(&m, &thread);
    let heads: Vec<_> =
        all.iter().map(|s| (s.must("From"), s.must("To"), s.must("Subject"))).collect();
    assert_eq!(heads[0], ("user", "agent", "please look"));
    assert_eq!(heads[2], ("agent", "user", "please look"));
    assert_eq!(all[2].must("Message-ID"), "<f@claude>");
    let last = m.ls(&thread).into_iter().rfind(|name| has_ending(name, "txt")).unwrap();
    let call: Value = serde_json::from_str(
        &m.cat(&format!("{thread}/{}.d/01-tool-Bash.json", last.trim_end_matches(".txt"))),
    )
    .unwrap();
    assert_eq!(call["output"], "out");
    assert_eq!(call["input"]["command"], "ls");
    assert_eq!(call["is_error"], false);
    assert!(
        m.cat(&format!("transcripts/{A}.txt")).contains("Let me look."),
        "{:?}",
        m.ls("transcripts")
    );
}

/// S1003: nothing of a session is in `inbox/`, in `sent.txt`, in `last sent:`, or wakes anybody; prompts are in
/// `sent/`.
#[test]
fn s1003_no_mail() {
    let (bed, _sessions, m) = with(|s| put(&s.at(&format!("{A}.jsonl")), s.conversation(A)));
    m.inbox_stays(&[]);
    assert_eq!(bodies(&m, "sent/2026-11-25"), ["please look"]);
    assert_eq!(bodies(&m, "archive/2026-11-25").len(), 3);
    assert_eq!(m.cat("sent.txt").lines().count(), 1, "{}", m.cat("sent.txt"));
    let status = m.cat("status.txt");
    assert!(status.contains("last sent: none") && status.contains("unread: 0"), "{status}");
    assert!(m.cat("agents.txt").contains("agent"), "{}", m.cat("agents.txt"));
    assert_eq!(m.cat(&format!("raw/claude/-home-anna-p/{A}.jsonl")).lines().count(), 6);
    let out = bed.msgfs_out(&["doctor", "--me", "bob"]);
    assert!(!out.said().contains("claude:"), "{}", out.said());
}

/// S1004: nothing is sent to a store of transcripts, and it takes no recipient from another store.
#[test]
fn s1004_read_only() {
    let (bed, sessions, m) = with(|s| put(&s.at(&format!("{A}.jsonl")), s.conversation(A)));
    let before = fs::read(sessions.at(&format!("{A}.jsonl"))).unwrap();
    let out = bed.msgfs_out(&["send", "--me", "bob", "--via", "claude", "agent", "hello"]);
    assert!(!out.ok() && out.said().contains("the store claude is only read"), "{}", out.said());
    m.ok("printf 'hello' > outbox/agent");
    soon("SAMP has it", || m.cat("sent.txt").contains("\tagent\t"));
    assert_eq!(fs::read(sessions.at(&format!("{A}.jsonl"))).unwrap(), before);
}

/// S1005: a fork has its own messages only, whatever is read first, and the first of them answers the last shared one.
#[test]
fn s1005_forks() {
    let bed = Bed::new();
    let sessions = Sessions::new(&bed);
    bed.config(CONFIG);
    let own = sessions.conversation(A);
    let more = sessions.user(B, "g", json!("go on")) + &sessions.text(B, "h", "m3", "yes");
    let fork = own.replace(A, B) + &more;
    put(&sessions.at(&format!("{B}.jsonl")), &fork);
    let m = bed.mount("bob");
    assert_eq!(bodies(&m, &format!("threads/{B}")).len(), 5);
    put(&sessions.at(&format!("{A}.jsonl")), &own);
    soon("the fork has two", || {
        m.ls("threads").len() == 2 && bodies(&m, &format!("threads/{B}")).len() == 2
    });
    assert_eq!(bodies(&m, &format!("threads/{A}")).len(), 3);
    let first = &messages(&m, &format!("threads/{B}"))[0];
    assert_eq!((first.body.trim_end(), first.must("In-Reply-To")), ("go on", "<f@claude>"));
}

/// S1006: torn and glued lines cost only themselves: a cut last line waits, others are in `rejected/`.
#[test]
fn s1006_torn_lines() {
    let (_bed, sessions, m) = with(|s| {
        put(&s.at(&format!("{A}.jsonl")), s.conversation(A) + "{\"parentUuid\":null,\"costUSD");
    });
    assert!(m.ls("rejected").is_empty());
    let next = sessions.user(A, "g", json!("go on"));
    append(&sessions.at(&format!("{A}.jsonl")), &format!("\n{next}"));
    soon("it is read", || bodies(&m, &format!("threads/{A}")).len() == 4);
    soon("one is rejected", || {
        m.ls("rejected").iter().filter(|name| name.contains("reason")).count() <= 1
            && !m.ls("rejected").is_empty()
    });
}

/// S1007: sub-agents have threads and addresses of their own.
#[test]
fn s1007_sub_agents() {
    let (_bed, _sessions, m) = with(|s| {
        put(&s.at(&format!("{A}.jsonl")), s.conversation(A));
        let folder = s.at(&format!("{A}/subagents"));
        fs::create_dir_all(&folder).unwrap();
        let lines = s.user(A, "x", json!("look for it")) + &s.text(A, "y", "m9", "found");
        put(&folder.join("agent-0123456789abcdef0.jsonl"), lines);
        put(&folder.join("agent-0123456789abcdef0.meta.json"), r#"{"agentType":"Explore"}"#);
    });
    let all = messages(&m, &format!("threads/{A}.0123456789abcdef0"));
    let heads: Vec<_> = all.iter().map(|s| (s.must("From"), s.must("To"))).collect();
    assert_eq!(heads, [("agent", "agent.Explore"), ("agent.Explore", "agent")]);
    assert_eq!(m.ls("threads").len(), 2);
}

/// S1008: a new project, a new session and new lines of it are shown while it is mounted, and a session that its
/// program deletes is gone.
#[test]
fn s1008_following() {
    let (_bed, sessions, m) = with(|_| {});
    let project = sessions.base.join("projects/-new-project");
    let log = project.join(format!("{A}.jsonl"));
    fs::create_dir_all(&project).unwrap();
    let whole = sessions.conversation(A);
    let (first, rest) = whole.split_at(whole.find('\n').unwrap() + 1);
    put(&log, first);
    soon("the prompt", || m.ls("threads") == [A]);
    append(&log, rest);
    soon("the answers", || bodies(&m, &format!("threads/{A}")).len() == 3);
    let folder = project.join(format!("{A}/subagents"));
    fs::create_dir_all(&folder).unwrap();
    put(&folder.join("agent-0.jsonl"), sessions.user(A, "x", json!("look")));
    soon("the sub-agent", || m.ls("threads").len() == 2);
    fs::remove_file(&log).unwrap();
    soon("it is gone", || m.ls("threads") == [format!("{A}.0")]);
}

/// S1009: a type that is not known is skipped, and `check` names it once.
#[test]
fn s1009_unknown_types() {
    let odd = "{\"type\":\"new-thing-2027\"}\n";
    let (bed, _sessions, m) = with(|s| {
        put(&s.at(&format!("{A}.jsonl")), s.conversation(A) + odd + odd);
        put(&s.at(&format!("{B}.jsonl")), odd);
    });
    assert!(m.ls("rejected").is_empty() && bodies(&m, &format!("threads/{A}")).len() == 3);
    let out = bed.msgfs_out(&["check", "--me", "bob"]);
    assert_eq!(out.said().matches("new-thing-2027").count(), 1, "{}", out.said());
}

fn append(path: &std::path::Path, text: &str) {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("open");
    file.write_all(text.as_bytes()).expect("write");
}

/// Returns the subjects of the messages of a thread.
fn subjects(m: &Mount, thread: &str) -> Vec<String> {
    let name_of = |name: &String| m.cat(&format!("{thread}/{name}"));
    let line = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Subject: "));
        line.unwrap_or_default().to_owned()
    };
    m.ls(thread).iter().filter(|name| has_ending(name, "txt")).map(|n| line(name_of(n))).collect()
}

/// S1000: the title of a session that gets one late is the subject of its earlier messages, too. S942: a search by
/// subject finds them by the title that they show, also if it was changed while nothing was mounted.
#[test]
fn s1000_late_titles() {
    let path = format!("{A}.jsonl");
    let (bed, s, m) = with(|s| put(&s.at(&path), s.text(A, "a", "m1", "good morning")));
    let thread = format!("threads/{A}");
    assert_eq!(subjects(&m, &thread), [""]);
    let found = |m: &Mount, word: &str| m.ls(&format!("search/subject:{word}")).len() - 1;
    assert_eq!(found(&m, "please"), 0);
    let add = |line: String| {
        let old = fs::read_to_string(s.at(&path)).unwrap();
        put(&s.at(&path), old + &line);
    };
    add(s.user(A, "b", json!("please look")));
    soon("both have it", || subjects(&m, &thread) == ["please look"; 2]);
    assert_eq!(found(&m, "please"), 2);
    m.umount();
    let title = json!({"type": "custom-title", "customTitle": "Another look", "sessionId": A});
    add(format!("{title}\n"));
    let m = bed.mount("bob");
    assert_eq!(subjects(&m, &thread), ["Another look"; 2]);
    assert_eq!((found(&m, "another"), found(&m, "please")), (2, 0));
    m.umount();
    let title = json!({"type": "custom-title", "customTitle": "Third", "sessionId": A});
    add(format!("{title}\n"));
    let out = bed.msgfs_out(&["--me", "bob", "search", "subject:third"]);
    assert!(out.stdout.contains("2 hits"), "{out:?}");
}
