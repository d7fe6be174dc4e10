//! The text of a ring, and the cases without a ring.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{SECRET, bed, deliver, hook, payload, ring, says, snapshot};
use crate::common::samp::{self, T0};
use crate::common::{Bed, run};

/// The answers of each harness, as its own code reads them. `TEXT` stands for the text.
const ANSWERS: &[(&str, &str, &str)] = &[
    (
        "claude-code",
        "session-start",
        r#"{"hookSpecificOutput":{"hookEventName":"SessionStart","additionalContext":"TEXT"}}"#,
    ),
    (
        "claude-code",
        "prompt",
        r#"{"hookSpecificOutput":{"hookEventName":"UserPromptSubmit","additionalContext":"TEXT"}}"#,
    ),
    (
        "claude-code",
        "tool",
        r#"{"hookSpecificOutput":{"hookEventName":"PostToolBatch","additionalContext":"TEXT"}}"#,
    ),
    ("claude-code", "stop", ""),
    ("claude-code", "session-end", ""),
    (
        "codex",
        "session-start",
        r#"{"hookSpecificOutput":{"hookEventName":"SessionStart","additionalContext":"TEXT"}}"#,
    ),
    (
        "codex",
        "prompt",
        r#"{"hookSpecificOutput":{"hookEventName":"UserPromptSubmit","additionalContext":"TEXT"}}"#,
    ),
    (
        "codex",
        "tool",
        r#"{"hookSpecificOutput":{"hookEventName":"PostToolUse","additionalContext":"TEXT"}}"#,
    ),
    ("codex", "stop", r#"{"decision":"block","reason":"TEXT"}"#),
    (
        "gemini",
        "session-start",
        r#"{"hookSpecificOutput":{"hookEventName":"SessionStart","additionalContext":"TEXT"}}"#,
    ),
    (
        "gemini",
        "prompt",
        r#"{"hookSpecificOutput":{"hookEventName":"BeforeAgent","additionalContext":"TEXT"}}"#,
    ),
    (
        "gemini",
        "tool",
        r#"{"hookSpecificOutput":{"hookEventName":"AfterTool","additionalContext":"TEXT"}}"#,
    ),
    ("gemini", "stop", r#"{"decision":"deny","reason":"TEXT"}"#),
    ("copilot", "session-start", r#"{"additionalContext":"TEXT"}"#),
    ("copilot", "prompt", r#"{"additionalContext":"TEXT"}"#),
    ("copilot", "tool", r#"{"additionalContext":"TEXT"}"#),
    ("copilot", "stop", r#"{"decision":"block","reason":"TEXT"}"#),
    ("cursor", "session-start", r#"{"additional_context":"TEXT"}"#),
    ("cursor", "prompt", ""),
    ("cursor", "tool", r#"{"additional_context":"TEXT"}"#),
    ("cursor", "stop", r#"{"followup_message":"TEXT"}"#),
    ("opencode", "session-start", ""),
    ("opencode", "prompt", ""),
    ("opencode", "stop", ""),
];

fn line(answer: &str, text: &str) -> String {
    if answer.is_empty() { String::new() } else { answer.replace("TEXT", text) + "\n" }
}

/// S500: each harness gets one line in its own format and nothing else. If nothing is unread, it gets no byte.
#[test]
fn s500_each_harness_hears_its_own_words() {
    for messages in [0, 1, 12] {
        for (harness, event, answer) in ANSWERS {
            let bed = bed(0);
            let recs: Vec<_> = (0..messages).map(|n| deliver(&bed, "bob", n)).collect();
            let text = match recs.as_slice() {
                [] => String::new(),
                [one] => {
                    let id = one.id.get(..8).unwrap();
                    let end = format!("msgfs --me alice cat inbox/{id}.txt");
                    format!("msgfs: 1 unread message for alice, from bob: {end}")
                }
                _ => "msgfs: 12 unread messages for alice, from bob: msgfs --me alice ls inbox"
                    .into(),
            };
            let expected = if messages == 0 { String::new() } else { line(answer, &text) };
            assert_eq!(says(&bed, event, harness, &payload(harness, event)), expected);
        }
    }
}

/// S501: the text has at most 240 bytes. It says how much is unread, how much of it is new, at most two senders,
/// and the path in the mount, or the command.
#[test]
fn s501_the_text_is_short_and_names_no_more_than_two_writers() {
    let bed = bed(2);
    let say = |from: &str, n| samp::append(&bed.store, from, "alice", "t", SECRET, T0 + n);
    let prompt = payload("codex", "prompt");
    says(&bed, "prompt", "codex", &prompt);
    for (n, from) in [(10, "carol"), (11, "dave"), (12, "erin"), (13, "carol")] {
        say(from, n);
    }
    let said = says(&bed, "prompt", "codex", &prompt);
    let text = "msgfs: 6 unread messages for alice, 4 new, from carol, dave and 1 other: msgfs --me alice ls inbox";
    assert!(said.contains(&format!("\"{text}\"")), "{said}");
    let long = "x".repeat(64);
    for n in 20..23 {
        say(&format!("{n}{}", &long[2..]), n);
    }
    let said: Value = serde_json::from_str(&says(&bed, "prompt", "codex", &prompt)).unwrap();
    let text = said["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
    assert!(text.len() <= 240 && text.ends_with("msgfs --me alice ls inbox"), "{text}");
    assert!(text.starts_with("msgfs: 9 unread messages for alice, 3 new, from 20x"), "{text}");
    let mount = bed.mount("alice");
    let rec = say("bob", 30);
    mount.appears(&format!("inbox/{}.txt", &rec.id[..8]));
    let said = says(&bed, "prompt", "codex", &prompt);
    let end = format!("alice, 1 new, from bob: {}/inbox\"", mount.dir.display());
    assert!(said.contains(&end), "{said}");
}

/// S502: a session is told of a message once, whichever hook tells it. The start of a session always tells how
/// much is unread. Another session is told of the same messages, too.
#[test]
fn s502_once_for_each_arrival_and_session() {
    let bed = bed(12);
    let told = |event| payload("codex", event);
    assert!(
        says(&bed, "prompt", "codex", &told("prompt"))
            .contains("12 unread messages for alice, from bob:")
    );
    for event in ["prompt", "stop", "tool"] {
        assert_eq!(says(&bed, event, "codex", &told(event)), "");
    }
    for _ in 0..2 {
        let said = says(&bed, "session-start", "codex", &told("session-start"));
        assert!(
            said.contains("\"msgfs: 12 unread messages for alice: msgfs --me alice ls inbox\""),
            "{said}"
        );
    }
    deliver(&bed, "bob", 20);
    let said = says(&bed, "stop", "codex", &told("stop"));
    assert!(said.contains("13 unread messages for alice, 1 new, from bob:"), "{said}");
    assert_eq!(says(&bed, "stop", "codex", &told("stop")), "");
    let mut other = told("prompt");
    other["session_id"] = "s2".into();
    assert!(
        says(&bed, "prompt", "codex", &other).contains("13 unread messages for alice, from bob:")
    );
    assert!(says(&bed, "prompt", "gemini", &payload("gemini", "prompt")).contains("13 unread"));
    // Read messages are not counted. Messages for others and messages that I wrote never were.
    samp::append(&bed.store, "alice", "alice", "t", SECRET, T0 + 30);
    samp::append(&bed.store, "bob", "carol", "t", SECRET, T0 + 31);
    assert_eq!(says(&bed, "prompt", "codex", &told("prompt")), "");
    run(bed.msgfs(["inbox"]), None);
    assert_eq!(says(&bed, "session-start", "codex", &told("session-start")), "");
    // A strange session id is never used as a path.
    let mut odd = told("prompt");
    odd["session_id"] = "../../../../x\u{0}\n".into();
    deliver(&bed, "bob", 40);
    assert!(says(&bed, "prompt", "codex", &odd).contains("1 unread message"));
}

/// S503: a hook says nothing to a turn that a hook has prolonged, to a subagent, where a harness runs the hooks of
/// another one, or where somebody has switched the bell off. It says it later instead.
#[test]
fn s503_when_nothing_is_said() {
    let mut bed = bed(1);
    let with = |harness, event, name: &str, value: Value| {
        let mut told = payload(harness, event);
        told[name] = value;
        told
    };
    let yes = || Value::from(true);
    for (harness, event, told) in [
        ("codex", "stop", with("codex", "stop", "stop_hook_active", yes())),
        ("gemini", "stop", with("gemini", "stop", "stop_hook_active", yes())),
        ("copilot", "stop", with("copilot", "stop", "stop_hook_active", yes())),
        ("cursor", "stop", with("cursor", "stop", "loop_count", 1.into())),
        ("cursor", "stop", with("cursor", "stop", "status", "aborted".into())),
        ("codex", "prompt", with("codex", "prompt", "agent_id", "a1".into())),
        ("codex", "session-start", with("codex", "session-start", "agent_id", "a1".into())),
        ("claude-code", "prompt", with("claude-code", "prompt", "session_id", "s2".into())),
        ("claude-code", "prompt", with("claude-code", "prompt", "cursor_version", "3".into())),
        ("copilot", "stop", json!({"cwd":"/p","stopReason":"end_turn"})),
    ] {
        assert_eq!(says(&bed, event, harness, &told), "", "{harness} {event} {told}");
    }
    bed.env.push(("MSGFS_HOOK".into(), "off".into()));
    assert_eq!(says(&bed, "stop", "codex", &payload("codex", "stop")), "");
    bed.env.pop();
    for (harness, event) in [
        ("codex", "stop"),
        ("gemini", "stop"),
        ("copilot", "stop"),
        ("cursor", "stop"),
        ("claude-code", "prompt"),
    ] {
        assert!(
            says(&bed, event, harness, &payload(harness, event)).contains("1 unread"),
            "{harness}"
        );
    }
    deliver(&bed, "bob", 9);
    bed.env.retain(|(name, _)| name != "CLAUDECODE");
    let line = "unset CLAUDECODE; exec msgfs hook run prompt --for claude-code";
    let told = payload("claude-code", "prompt").to_string();
    let out = run(hook(&bed, line), Some(told.as_bytes()));
    assert!(out.ok() && out.said().is_empty(), "{out:?}");
}

/// S504: a hook reads the harness's input for a moment and up to a mebibyte. It answers nothing to an empty input,
/// to half an input, to too much of it and to an input that never ends. It holds nobody up.
#[test]
fn s504_odd_input_is_silence() {
    let bed = bed(1);
    let line = "exec msgfs hook run prompt --for codex";
    let good = payload("codex", "prompt").to_string();
    let large = format!("{good}{}", " ".repeat(2 << 20));
    for input in ["", "{", "[]", "null", "\u{feff}{}", &good[..good.len() - 1], &large] {
        let mut child = hook(&bed, line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success() && out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
    }
    let closed = run(hook(&bed, &format!("{line} <&-")), None);
    assert!(closed.ok() && closed.said().is_empty(), "{closed:?}");
    let limited = line.replace("exec", "exec timeout 60");
    let mut child = hook(&bed, &limited).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(good.as_bytes()).unwrap();
    // It ends although its input does not.
    let status = child.wait().unwrap();
    drop(input);
    assert!(status.success());
    assert!(says(&bed, "prompt", "codex", &payload("codex", "prompt")).contains("1 unread"));
}

/// S505: a hook ends with exit code 0 and no byte of output, whatever is missing, wrong or unknown. The reason is
/// in a small log.
#[test]
fn s505_a_hook_fails_open() {
    let bed = bed(1);
    let told = payload("codex", "prompt").to_string();
    let silent = |bed: &Bed, line: &str| {
        let out = run(hook(bed, line), Some(told.as_bytes()));
        assert!(out.ok() && out.said().is_empty(), "{line}: {out:?}");
    };
    for line in [
        "msgfs hook run",
        "msgfs hook run prompt",
        "msgfs hook run prompt --for nobody",
        "msgfs hook run wake --for codex",
        "msgfs hook run prompt --for codex --loud",
        "msgfs hook run prompt stop --for codex",
        "msgfs --zork hook run prompt --for codex",
        "msgfs hook run prompt --for codex --me a/b",
        "MSGFS_ME=a/b msgfs hook run prompt --for gemini",
        "AGENT_MESSAGE_DIR=/dev/null msgfs hook run prompt --for codex",
        "AGENT_MESSAGE_DIR=/nowhere/at/all msgfs hook run prompt --for codex",
        "HOME=/dev/null XDG_STATE_HOME=/dev/null XDG_CONFIG_HOME=/dev/null msgfs hook run prompt --for codex",
        "env -i PATH=\"$PATH\" msgfs hook run prompt --for codex",
        "XDG_RUNTIME_DIR=/proc XDG_STATE_HOME=/proc msgfs hook run prompt --for codex",
    ] {
        silent(&bed, line);
    }
    // A bell that could not be printed has not rung.
    for (to, why) in [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")] {
        silent(&bed, &format!("msgfs hook run prompt --for codex {to}"));
        let log = fs::read_to_string(bed.path("run/msgfs/hook/hook.log")).unwrap();
        assert!(log.contains(&format!("the text cannot be printed: {why}")), "{log}");
    }
    assert!(says(&bed, "prompt", "codex", &payload("codex", "prompt")).contains("1 unread"));
    bed.config("this is no configuration");
    silent(&bed, "msgfs hook run prompt --for codex");
    let kept = bed.path("run/msgfs/hook");
    let log = fs::read_to_string(kept.join("hook.log")).unwrap();
    assert!(log.contains("config.toml") && !log.contains(SECRET), "{log}");
    for why in [
        "no event is named",
        "--for is missing",
        "the harness \"nobody\" is not known",
        "the event \"wake\" is not known",
        "the option \"--loud\" is not known",
        "the option \"--zork\" is not known",
        "\"stop\" is one word too many",
    ] {
        assert!(log.contains(why), "{why}: {log}");
    }
    for cut in ["", "{\"session_id\":", "[]"] {
        fs::remove_file(kept.join("hook.log")).unwrap();
        let out = run(hook(&bed, "msgfs hook run prompt --for codex"), Some(cut.as_bytes()));
        assert!(out.ok() && out.said().is_empty(), "{cut}: {out:?}");
        let log = fs::read_to_string(kept.join("hook.log")).unwrap();
        assert!(log.contains("is not a JSON object"), "{log}");
    }
    bed.config("me = \"alice\"\n");
    // The text that went to a full disk is lost, and the next start tells the total.
    assert_eq!(says(&bed, "prompt", "codex", &payload("codex", "prompt")), "");
    // A state that cannot be read causes one silence, and begins anew.
    let session = fs::read_dir(&kept).unwrap().flatten();
    let session = session.map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "json"));
    fs::write(session.unwrap(), "{").unwrap();
    assert_eq!(says(&bed, "prompt", "codex", &payload("codex", "prompt")), "");
    assert!(says(&bed, "prompt", "codex", &payload("codex", "prompt")).contains("1 unread"));
}

/// S506: a hook marks nothing and makes nothing: no key, no state, no store, no configuration, no cache. It keeps
/// its record of rings in a private folder of its own.
#[test]
fn s506_a_hook_changes_nothing() {
    let bed = bed(2);
    let before = snapshot(&bed.path(""));
    for harness in ["claude-code", "codex", "gemini", "copilot", "cursor"] {
        for event in ["session-start", "prompt", "tool", "stop", "session-end"] {
            ring(&bed, event, harness, &payload(harness, event));
        }
    }
    assert_eq!(snapshot(&bed.path("")), before);
    let kept = bed.path("run/msgfs/hook");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&kept).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        let text = fs::read_to_string(entry.path()).unwrap();
        assert!(!text.contains(SECRET), "{text}");
    }
    // The same holds if an identity has a state and marks.
    run(bed.msgfs(["cat", "inbox"]), None);
    assert!(bed.msgfs_out(&["send", "bob", "hello"]).ok());
    let before = snapshot(&bed.path(""));
    ring(&bed, "session-start", "codex", &payload("codex", "session-start"));
    assert_eq!(snapshot(&bed.path("")), before);
}

/// S507: `$MSGFS_ME` says for whom the mail is, else the project's folder does. The harness names this folder; if
/// it names none, the folder in which the session first appeared counts. The folder of the process does not count.
#[test]
fn s507_who_the_mail_is_for() {
    let mut bed = bed(1);
    bed.env.retain(|(name, _)| name != "MSGFS_ME");
    bed.config("");
    for (folder, me) in [("p", "alice"), ("q", "erin")] {
        fs::create_dir(bed.path(folder)).unwrap();
        fs::write(bed.path(folder).join(".agent-message"), me).unwrap();
    }
    samp::append(&bed.store, "bob", "erin", "t", SECRET, T0);
    samp::append(&bed.store, "bob", "cwd", "t", SECRET, T0);
    let at = |harness: &str, event: &str, folder: &str, session: &str| {
        let mut told = payload(harness, event);
        told["session_id"] = session.into();
        told["cwd"] = bed.path(folder).to_str().unwrap().into();
        told
    };
    let said = |harness, event: &str, told: &Value| says(&bed, event, harness, told);
    assert!(said("codex", "prompt", &at("codex", "prompt", "p", "a")).contains("for alice,"));
    // The session has gone elsewhere.
    let total = said("codex", "session-start", &at("codex", "session-start", "q", "a"));
    assert!(total.contains("for alice:"), "{total}");
    assert!(said("codex", "prompt", &at("codex", "prompt", "q", "b")).contains("for erin,"));
    let mut told = payload("cursor", "stop");
    told["workspace_roots"] = json!([bed.path("q").to_str().unwrap(), "/p"]);
    assert!(said("cursor", "stop", &told).contains("for erin,"));
    for (harness, variable) in
        [("claude-code", "CLAUDE_PROJECT_DIR"), ("gemini", "GEMINI_PROJECT_DIR")]
    {
        let line = format!(
            "CLAUDE_PROJECT_DIR=/elsewhere GEMINI_PROJECT_DIR=/elsewhere {variable}={} exec msgfs hook run prompt --for {harness}",
            bed.path("q").display()
        );
        let told = at(harness, "prompt", "p", "s1").to_string();
        let out = run(hook(&bed, &line), Some(told.as_bytes()));
        assert!(out.stdout.contains("for erin,"), "{out:?}");
    }
    // A folder that says nothing stands for nobody in particular. Without a folder there is nobody.
    assert_eq!(said("codex", "prompt", &json!({"session_id":"c","cwd":"/"})), "");
    assert_eq!(said("codex", "prompt", &json!({"session_id":"d"})), "");
}

/// S508: a mount that hangs delays nobody, because no hook asks it. A hook that something else delays gives up,
/// with exit code 0 and without output.
#[test]
fn s508_nobody_is_kept() {
    let mut bed = bed(0);
    let mount = bed.mount("alice");
    mount.stop();
    let rec = deliver(&bed, "bob", 1);
    let out = ring(&bed, "prompt", "codex", &payload("codex", "prompt"));
    // The store itself hangs.
    bed.env.push(("AGENT_MESSAGE_DIR".into(), mount.path("archive").into()));
    let mut other = payload("codex", "prompt");
    other["session_id"] = "s2".into();
    let hung = ring(&bed, "prompt", "codex", &other);
    bed.env.pop();
    mount.go_on();
    assert!(hung.ok() && hung.said().is_empty(), "{hung:?}");
    let path = mount.path(format!("inbox/{}.txt", &rec.id[..8]));
    let expected = format!("from bob: {}\"", path.display());
    assert!(out.ok() && out.stdout.contains(&expected), "{out:?}");
    mount.appears(&format!("inbox/{}.txt", &rec.id[..8]));
    assert!(mount.ok(&format!("cat {}", path.display())).contains(SECRET), "it is its name");
    // The folder with the record of rings hangs.
    mount.stop();
    for event in ["prompt", "nonsense"] {
        let line = format!(
            "XDG_RUNTIME_DIR={} exec msgfs hook run {event} --for codex",
            mount.path("archive").display()
        );
        let told = payload("codex", "prompt").to_string();
        let hung = run(hook(&bed, &line), Some(told.as_bytes()));
        assert!(hung.ok() && hung.said().is_empty(), "{hung:?}");
    }
    mount.go_on();
    // Another process keeps the lock.
    deliver(&bed, "bob", 2);
    let lock = fs::File::open(bed.path("run/msgfs/hook/hook.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(says(&bed, "prompt", "codex", &payload("codex", "prompt")), "");
    drop(lock);
    assert!(says(&bed, "prompt", "codex", &payload("codex", "prompt")).contains("1 unread"));
}

/// S509: a session that begins without an id is the one that appears first in its folder.
#[test]
fn s509_a_session_gets_its_id_later() {
    let bed = bed(1);
    let start = json!({"timestamp":1,"cwd":"/p","source":"new"});
    assert!(says(&bed, "session-start", "copilot", &start).contains("1 unread"));
    assert_eq!(says(&bed, "stop", "copilot", &payload("copilot", "stop")), "");
    deliver(&bed, "carol", 2);
    assert!(
        says(&bed, "stop", "copilot", &payload("copilot", "stop")).contains("1 new, from carol:")
    );
    let mut second = payload("copilot", "stop");
    second["sessionId"] = "s2".into();
    assert!(
        says(&bed, "stop", "copilot", &second)
            .contains("2 unread messages for alice, from bob and carol:")
    );
}

/// S525: a command that only looks makes nothing. `msgfs ls`, `status` and `cat` without a mount leave no state
/// and no cache behind.
#[test]
fn s525_looking_makes_nothing() {
    let bed = bed(1);
    let before = snapshot(&bed.path(""));
    for args in [&["ls"][..], &["ls", "-l", "inbox"], &["status"], &["status", "--json"], &["wait"]]
    {
        let out = bed.msgfs_out(args);
        assert!(out.ok(), "{args:?} {out:?}");
    }
    assert_eq!(snapshot(&bed.path("")), before);
}

/// S525: the same holds where there is nothing at all. No command makes the folder of the store, and the store
/// reads as empty.
#[test]
fn s525_looking_makes_no_store() {
    let mut bed = bed(0);
    let store = bed.path("new/state/agent-message");
    bed.env.push(("AGENT_MESSAGE_DIR".into(), store.clone().into()));
    let before = snapshot(&bed.path(""));
    for args in [&["ls"][..], &["ls", "inbox"], &["agents"], &["status"], &["check"]] {
        let out = bed.msgfs_out(args);
        assert!(out.ok() && !out.said().contains("gone"), "{args:?} {out:?}");
        assert_eq!(snapshot(&bed.path("")), before, "{args:?}");
    }
    for event in ["session-start", "prompt", "stop"] {
        assert_eq!(says(&bed, event, "codex", &payload("codex", event)), "");
        assert_eq!(snapshot(&bed.path("")), before, "{event}");
    }
    fs::create_dir_all(&store).unwrap();
    samp::append(&store, "bob", "alice", SECRET, SECRET, T0);
    assert!(says(&bed, "prompt", "codex", &payload("codex", "prompt")).contains("1 unread"));
}

/// S507: Codex runs its hooks in the environment of the first terminal, so neither `$MSGFS_ME` nor the name of a
/// folder counts. The configuration counts, else the project's `.agent-message`. Else nobody is told, and `msgfs
/// hook status` says why. The folder in which the hook itself runs counts in no harness.
#[test]
fn s507_codex_keeps_the_first_environment() {
    let mut bed = bed(1);
    bed.env.retain(|(name, _)| name != "MSGFS_ME");
    bed.env.push(("MSGFS_ME".into(), "erin".into()));
    for name in ["erin", "cwd", "p"] {
        samp::append(&bed.store, "bob", name, "t", SECRET, T0);
    }
    fs::create_dir(bed.path("p")).unwrap();
    fs::write(bed.path("cwd/.agent-message"), "cwd").unwrap();
    let said = |event: &str, session: &str, folder: Option<&str>| {
        let mut told = payload("codex", event);
        told["session_id"] = session.into();
        told["cwd"] = folder.map(|folder| bed.path(folder).display().to_string()).into();
        says(&bed, event, "codex", &told)
    };
    let status = || bed.msgfs_out(&["hook", "status"]).stdout;
    assert!(said("prompt", "a", Some("p")).contains("for alice, from bob"));
    bed.config("");
    for event in ["session-start", "prompt", "tool", "stop"] {
        assert_eq!(said(event, "b", Some("p")), "", "{event}");
        let why =
            format!("codex: no name is set for the agent in {}; write", bed.path("p").display());
        assert!(status().contains(&why), "{}", status());
        fs::remove_file(bed.path("run/msgfs/hook/hook.log")).unwrap();
    }
    fs::write(bed.path("p/.agent-message"), "alice").unwrap();
    assert!(said("prompt", "b", Some("p")).contains("for alice, from bob"));
    assert_eq!(said("prompt", "c", None), "");
    assert!(status().contains("codex: the harness does not say in which folder"), "{}", status());
    // Before anything has happened, status looks at the current folder.
    assert!(bed.msgfs_out(&["hook", "install", "--for", "codex"]).ok());
    assert!(!status().contains("Here it is silent"), "{}", status());
    fs::remove_file(bed.path("cwd/.agent-message")).unwrap();
    assert!(
        status().contains("  Here it is silent: no name is set for the agent in "),
        "{}",
        status()
    );
    // The other harnesses have an environment of their own.
    assert!(says(&bed, "prompt", "gemini", &payload("gemini", "prompt")).contains("for erin"));
    bed.env.retain(|(name, _)| name != "MSGFS_ME");
    for harness in ["claude-code", "codex", "gemini", "copilot"] {
        let mut told = payload(harness, "session-start");
        told["cwd"] = Value::Null;
        if harness == "gemini" {
            // This session appeared before.
            told["session_id"] = "fresh".into();
        }
        assert_eq!(says(&bed, "session-start", harness, &told), "", "{harness}");
    }
}
