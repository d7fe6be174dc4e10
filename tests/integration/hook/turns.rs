//! Turns that no person has begun: the number of rings in them, and the events at which a waiter begins to wait.

use std::time::Duration;

use serde_json::{Value, json};

use super::waiter::{LIMIT, ends, is_silent, rings, soon_waits};
use super::{SECRET, bed, deliver, hook, payload, says};
use crate::common::Bed;
use crate::common::proc::Running;
use crate::common::samp::{self, T0};

/// A session of a harness that wakes, and its agent.
struct Agent {
    name: &'static str,
    harness: &'static str,
    session: String,
    /// The number of messages that it has written.
    sent: i64,
}

impl Agent {
    fn new(name: &'static str, harness: &'static str) -> Self {
        Self { name, harness, session: format!("session of {name}"), sent: 0 }
    }

    fn told(&self, event: &str) -> Value {
        let mut told = payload(self.harness, event);
        told["session_id"] = self.session.as_str().into();
        told
    }

    /// Ends its turn, and returns the waiter of the session.
    #[track_caller]
    fn waits(&self, bed: &Bed) -> Running {
        let line = format!("exec msgfs hook run stop --for {} --wait", self.harness);
        let mut command = hook(bed, &line);
        command.env("MSGFS_ME", self.name).env("CLAUDE_CODE_SESSION_ID", &self.session);
        soon_waits(bed, command, &self.told("stop"))
    }

    /// Runs the hook of a prompt that a ring or a person made.
    #[track_caller]
    fn prompted(&self, bed: &Bed, prompt: &str) {
        let mut told = self.told("prompt");
        told["prompt"] = prompt.into();
        let line = format!("exec msgfs hook run prompt --for {}", self.harness);
        let mut command = hook(bed, &line);
        command.env("MSGFS_ME", self.name).env("CLAUDE_CODE_SESSION_ID", &self.session);
        let out = crate::common::run(command, Some(told.to_string().as_bytes()));
        assert!(out.ok(), "{out:?}");
    }

    fn answers(&mut self, bed: &Bed, to: &str) {
        self.sent += 1;
        let body = format!("{SECRET} answer {}", self.sent);
        samp::append(&bed.store, self.name, to, SECRET, &body, T0 + self.sent);
    }
}

/// S513: two sessions that answer each other are rung five times each, and then once a minute, although each ring
/// is a prompt for its harness. A person who types begins the count anew.
#[test]
fn s513_two_sessions_that_answer_each_other() {
    for harness in ["claude-code", "opencode"] {
        let bed = bed(0);
        let (mut alice, mut bob) = (Agent::new("alice", harness), Agent::new("bob", harness));
        for _ in 0..5 {
            bob.answers(&bed, alice.name);
            let out = ends(alice.waits(&bed));
            assert_eq!(out.code(), Some(10), "{harness}: {out:?}");
            alice.prompted(&bed, &woken(harness, &out.said()));
            alice.answers(&bed, bob.name);
            let out = ends(bob.waits(&bed));
            assert_eq!(out.code(), Some(10), "{harness}: {out:?}");
            bob.prompted(&bed, &woken(harness, &out.said()));
        }
        bob.answers(&bed, alice.name);
        let mut waiter = alice.waits(&bed);
        // Without the pace it would have rung at once.
        std::thread::sleep(Duration::from_secs(3));
        assert!(waiter.running(), "{harness}: {:?}", ends(waiter));
        alice.prompted(&bed, "go on");
        if harness == "claude-code" {
            // The prompt has told of it.
            bob.answers(&bed, alice.name);
        }
        assert_eq!(ends(waiter).code(), Some(10), "{harness}");
    }
}

/// Returns the prompt that a harness makes of a ring.
fn woken(harness: &str, said: &str) -> String {
    match harness {
        "claude-code" => "<task-notification>\n<task-id>b1</task-id>\n</task-notification>".into(),
        _ => said.to_owned(),
    }
}

/// S513: the same holds if a turn goes on at its end: five rings, until a person types. The prompt that a harness
/// makes of a ring is not a person's.
#[test]
fn s513_turns_that_go_on() {
    for harness in ["codex", "gemini", "copilot"] {
        let bed = bed(0);
        let stop = payload(harness, "stop");
        let prompted = |text: &str| {
            let mut told = payload(harness, "prompt");
            told["prompt"] = text.into();
            says(&bed, "prompt", harness, &told)
        };
        for n in 0..5 {
            deliver(&bed, "bob", n);
            let said = says(&bed, "stop", harness, &stop);
            assert!(said.contains("1 new") || n == 0, "{harness} {n}: {said}");
            let said: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(prompted(said["reason"].as_str().unwrap()), "");
        }
        deliver(&bed, "bob", 5);
        assert_eq!(says(&bed, "stop", harness, &stop), "", "{harness}");
        assert!(prompted("go on").contains("1 new"), "{harness}: it is told later");
        deliver(&bed, "bob", 6);
        assert!(says(&bed, "stop", harness, &stop).contains("1 new"), "{harness}");
    }
}

/// S510: a waiter of Claude Code also begins to wait at the start of a session, and at a prompt that no person has
/// typed. Mail that the hook of the same event has told does not ring.
#[test]
fn s510_a_waiter_from_the_start() {
    let bed = bed(1);
    let waits = |event: &str, prompt: &str| {
        let line = format!(
            "msgfs hook run {event} --for claude-code --wait; test $? -eq 10 && exit 2; exit 0"
        );
        let mut told = payload("claude-code", event);
        told["prompt"] = prompt.into();
        (hook(&bed, &line), told)
    };
    let (command, told) = waits("session-start", "");
    let mut waiter = soon_waits(&bed, command, &told);
    let said = says(&bed, "session-start", "claude-code", &payload("claude-code", "session-start"));
    assert!(said.contains("1 unread message for alice, from bob: "), "{said}");
    // It would have rung by then.
    std::thread::sleep(Duration::from_secs(7));
    assert!(waiter.running(), "{:?}", ends(waiter));
    deliver(&bed, "bob", 1);
    rings(waiter, "msgfs: 2 unread messages for alice, 1 new, from bob: msgfs --me alice ls inbox");
    // Mail that nothing has told does ring.
    deliver(&bed, "bob", 2);
    let (command, told) = waits("prompt", "<task-notification>\n</task-notification>");
    rings(
        soon_waits(&bed, command, &told),
        "msgfs: 3 unread messages for alice, 1 new, from bob: msgfs --me alice ls inbox",
    );
    // After a person's prompt, the waiter from before stays.
    let (command, told) = waits("session-start", "");
    let before = soon_waits(&bed, command, &told);
    let (command, told) = waits("prompt", "go on");
    is_silent(Running::start(command, Some(told.to_string().as_bytes())).unwrap());
    deliver(&bed, "bob", 3);
    assert_eq!(before.finish(LIMIT).unwrap().code(), Some(2));
    // No waiter waits at the end of a session.
    let (command, told) = waits("session-end", "");
    is_silent(Running::start(command, Some(told.to_string().as_bytes())).unwrap());
}

/// S731: if Claude Code does not set its variables, msgfs names that as the reason for silence.
#[test]
fn s731_variables_that_are_missing() {
    let mut bed = bed(1);
    bed.env.retain(|(name, _)| !name.to_string_lossy().starts_with("CLAUDE"));
    for line in ["prompt --for claude-code", "stop --for claude-code --wait"] {
        let line = format!("unset CLAUDECODE CLAUDE_CODE_SESSION_ID; exec msgfs hook run {line}");
        let told = json!({"session_id":"s1","cwd":"/p","prompt":"x"}).to_string();
        is_silent(Running::start(hook(&bed, &line), Some(told.as_bytes())).unwrap());
        let status = bed.msgfs_out(&["hook", "status"]).stdout;
        let why = "claude-code: $CLAUDECODE and $CLAUDE_CODE_SESSION_ID are not set; Claude Code sets them from 2.1.145 on";
        assert!(status.contains(why), "{status}");
        std::fs::remove_file(bed.path("run/msgfs/hook/hook.log")).unwrap();
    }
}

/// S971: the hook of the prompt that a ring made tells the person of Claude Code who wrote. Other prompts that no
/// person typed, and prompts of other harnesses, get no answer.
#[test]
fn s971_the_person_sees_who_wrote() {
    let bed = bed(0);
    let line = "exec msgfs hook run stop --for claude-code --wait";
    let waiter = soon_waits(&bed, hook(&bed, line), &payload("claude-code", "stop"));
    deliver(&bed, "bob", 1);
    let out = waiter.finish(LIMIT).unwrap();
    let text = out.stderr.trim_end();
    assert!(text.contains("1 unread message for alice, from bob: "), "{out:?}");
    let said = |prompt: String| {
        let mut told = payload("claude-code", "prompt");
        told["prompt"] = prompt.into();
        says(&bed, "prompt", "claude-code", &told)
    };
    let woken = format!(
        "<task-notification>\n</task-notification>\n<system-reminder>\nMail has come. {text}\n\n</system-reminder>"
    );
    assert_eq!(said(woken), format!("{{\"systemMessage\":\"{text}\"}}\n"));
    assert_eq!(said("<task-notification>\n</task-notification>".into()), "");
    assert_eq!(said("a person's words".into()), "");
}
