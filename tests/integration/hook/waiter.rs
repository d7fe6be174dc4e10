//! The waiter: it wakes a session that is idle.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SECRET, bed, deliver, hook, payload, says};
use crate::common::proc::Running;
use crate::common::{Bed, Out, run, soon, write_script};

/// The line as it is installed for Claude Code.
const LINE: &str = "msgfs hook run stop --for claude-code --wait; test $? -eq 10 && exit 2; exit 0";
/// The longest time for something that must happen.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Starts a waiter of a session, and waits until it is the one that may ring.
#[track_caller]
fn wait(bed: &Bed, session: &str) -> Running {
    let mut told = payload("claude-code", "stop");
    told["session_id"] = session.into();
    // A turn that a hook prolonged gets a waiter as well.
    told["stop_hook_active"] = true.into();
    let mut command = hook(bed, LINE);
    command.env("CLAUDE_CODE_SESSION_ID", session);
    soon_waits(bed, command, &told)
}

/// Starts a waiter, and waits until it is the one that may ring.
#[track_caller]
pub(super) fn soon_waits(bed: &Bed, command: Command, told: &Value) -> Running {
    let before = tokens(bed);
    let mut running = Running::start(command, Some(told.to_string().as_bytes())).unwrap();
    soon("the waiter waits, or has rung", || tokens(bed) != before || !running.running());
    running
}

pub(super) fn sessions(bed: &Bed) -> Vec<(PathBuf, Value)> {
    let entries = fs::read_dir(bed.path("run/msgfs/hook")).into_iter().flatten().flatten();
    let files = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json"));
    let read =
        |path: PathBuf| Some((path.clone(), serde_json::from_slice(&fs::read(&path).ok()?).ok()?));
    files.filter_map(read).collect()
}

/// Returns the waiters that may ring, of all sessions.
fn tokens(bed: &Bed) -> Vec<String> {
    let mut all: Vec<String> =
        sessions(bed).iter().filter_map(|(_, s)| Some(s["waiter"].as_str()?.to_owned())).collect();
    all.sort();
    all
}

#[track_caller]
pub(super) fn ends(running: Running) -> Out {
    let out = running.finish(LIMIT).unwrap();
    assert!(!out.said().contains(SECRET), "{out:?}");
    out
}

#[track_caller]
pub(super) fn rings(running: Running, text: &str) {
    let out = ends(running);
    assert_eq!(out.code(), Some(2), "{out:?}");
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", format!("{text}\n").as_str()));
}

#[track_caller]
pub(super) fn is_silent(running: Running) {
    let out = ends(running);
    assert!(out.code() == Some(0) && out.said().is_empty(), "{out:?}");
}

/// S510: the waiter rings with exit code 10 when mail comes. It rings at once for mail that was not told before,
/// and rings once for mail that comes together. The installed line turns 10 into the code that wakes.
#[test]
fn s510_a_waiter_rings_when_mail_comes() {
    let bed = bed(1);
    let rec = crate::common::samp::read_log(&bed.store, "bob");
    let id = crate::common::samp::member(&rec[0], "id")[..8].to_owned();
    rings(
        wait(&bed, "s1"),
        &format!(
            "msgfs: 1 unread message for alice, from bob: msgfs --me alice cat inbox/{id}.txt"
        ),
    );
    let waiter = wait(&bed, "s1");
    // None of it is for alice.
    crate::common::samp::append(&bed.store, "bob", "carol", "t", SECRET, 5);
    // It sees both messages at one moment, however busy the machine is.
    waiter.signal(Signal::STOP);
    deliver(&bed, "carol", 2);
    deliver(&bed, "bob", 3);
    waiter.signal(Signal::CONT);
    rings(
        waiter,
        "msgfs: 3 unread messages for alice, 2 new, from carol and bob: msgfs --me alice ls inbox",
    );
    // Mail that a prompt has told is not told again, and both sessions are woken.
    let (one, two) = (wait(&bed, "s1"), wait(&bed, "s2"));
    rings(two, "msgfs: 3 unread messages for alice, from bob and carol: msgfs --me alice ls inbox");
    let two = wait(&bed, "s2");
    deliver(&bed, "dave", 4);
    for waiter in [one, two] {
        rings(
            waiter,
            "msgfs: 4 unread messages for alice, 1 new, from dave: msgfs --me alice ls inbox",
        );
    }
}

/// S510: a signal does not end a waiter that has claimed a ring and not printed it yet, as when the next waiter is
/// started at that moment. Nobody else would ring for this mail.
#[test]
fn s510_a_claimed_ring_is_printed() {
    let bed = bed(0);
    let (mut output, full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    let filled = (0..1 << 20).take_while(|_| (&full).write(b"x").is_ok()).count();
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut command = hook(&bed, "exec msgfs hook run stop --for opencode --wait");
    let mut waiter = command.stdin(Stdio::piped()).stdout(full).spawn().unwrap();
    drop(command);
    let told = payload("opencode", "stop").to_string();
    waiter.stdin.take().unwrap().write_all(told.as_bytes()).unwrap();
    soon("the waiter waits", || !tokens(&bed).is_empty());
    deliver(&bed, "bob", 1);
    let is_claimed =
        |(_, session): &(PathBuf, Value)| !session["rings"].as_array().unwrap().is_empty();
    soon("the ring is claimed", || sessions(&bed).iter().any(is_claimed));
    let pid = rustix::process::Pid::from_child(&waiter);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(waiter.wait().unwrap().code(), Some(10), "{text:.100}");
    assert!(text[filled..].starts_with("msgfs: 1 unread message for alice"), "{}", &text[filled..]);
}

/// S511: a waiter waits only for the session of the harness that started it. It does not wait where the harness
/// runs in a script from start to end.
#[test]
fn s511_where_nobody_waits() {
    let bed = bed(1);
    let told = payload("claude-code", "stop");
    let with = |name: &str, value: Value| {
        let mut told = told.clone();
        told[name] = value;
        told
    };
    for (env, told) in [
        ("CLAUDE_CODE_ENTRYPOINT=sdk-cli", told.clone()),
        ("CLAUDE_CODE_ENTRYPOINT=sdk-py", told.clone()),
        ("CLAUDECODE=", told.clone()),
        ("CLAUDECODE=0", told.clone()),
        ("CLAUDE_CODE_SESSION_ID=other", told.clone()),
        ("CLAUDE_CODE_SESSION_ID=", told.clone()),
        ("MSGFS_HOOK=off", told.clone()),
        ("A=", with("cursor_version", "3".into())),
        ("A=", with("agent_id", "a".into())),
        ("A=", json!({})),
    ] {
        let line = format!("export {env}; {LINE}");
        let out = run(hook(&bed, &line), Some(told.to_string().as_bytes()));
        assert!(out.ok() && out.said().is_empty(), "{env} {told}: {out:?}");
    }
    for odd in ["prompt --for claude-code", "stop --for codex", "stop --for gemini"] {
        let out = run(
            hook(&bed, &format!("msgfs hook run {odd} --wait")),
            Some(told.to_string().as_bytes()),
        );
        assert!(out.ok() && out.said().is_empty(), "{odd}: {out:?}");
    }
    assert!(tokens(&bed).is_empty(), "nobody waited");
}

/// S512: a session has one waiter, the newest. The waiter ends with 0 and without output when its session ends,
/// when its parent or the harness is gone, and when it is told to end.
#[test]
fn s512_a_waiter_ends_when_it_is_not_needed() {
    let bed = bed(0);
    let first = wait(&bed, "s1");
    let second = wait(&bed, "s1");
    is_silent(first);
    says(&bed, "session-end", "claude-code", &payload("claude-code", "session-end"));
    is_silent(second);
    for signal in [Signal::TERM, Signal::HUP] {
        let told = payload("claude-code", "stop").to_string();
        let line = "exec msgfs hook run stop --for claude-code --wait";
        let before = tokens(&bed);
        let waiter = Running::start(hook(&bed, line), Some(told.as_bytes())).unwrap();
        soon("it waits", || tokens(&bed) != before);
        waiter.signal(signal);
        is_silent(waiter);
    }
    // The shell that started it dies, and so does the waiter.
    let orphan = wait(&bed, "s3");
    let pid = rustix::process::Pid::from_raw(orphan.pid()).unwrap();
    let child = child_of(&orphan);
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    soon("the waiter ends with its parent", || !crate::common::alive(child));
    drop(orphan);
    // There is no such process.
    let line = "CLAUDE_PID=2147483646 exec msgfs hook run stop --for claude-code --wait";
    let waiter = Running::start(
        hook(&bed, line),
        Some(payload("claude-code", "stop").to_string().as_bytes()),
    );
    is_silent(waiter.unwrap());
    // The harness dies.
    let line = format!(
        "sleep 1000 & export CLAUDE_PID=$!; (sleep 1; kill $CLAUDE_PID) & exec 3<&0; {}",
        LINE.replace("--wait;", "--wait <&3;")
    );
    let out = run(hook(&bed, &line), Some(payload("claude-code", "stop").to_string().as_bytes()));
    assert!(out.code() == Some(0) && out.stdout.is_empty(), "{out:?}");
}

/// S525: a waiter makes no store either, and it notices a store that comes later.
#[test]
fn s525_a_waiter_makes_no_store() {
    let mut bed = bed(0);
    let store = bed.path("new/state/agent-message");
    bed.env.push(("AGENT_MESSAGE_DIR".into(), store.clone().into()));
    let waiter = wait(&bed, "s1");
    std::thread::sleep(Duration::from_secs(1));
    assert!(!bed.path("new").exists());
    fs::create_dir_all(&store).unwrap();
    crate::common::samp::append(&store, "bob", "alice", "x", "x", crate::common::samp::T0);
    assert_eq!(ends(waiter).code(), Some(2));
}

/// S513: after five rings a session is rung once a minute, until a person types a prompt.
#[test]
fn s513_ringing_is_slowed() {
    let bed = bed(0);
    for n in 0..5 {
        deliver(&bed, "bob", n);
        let out = ends(wait(&bed, "s1"));
        assert_eq!(out.code(), Some(2), "{n}: {out:?}");
    }
    deliver(&bed, "bob", 5);
    let mut waiter = wait(&bed, "s1");
    // Without the pace it would have rung at once.
    std::thread::sleep(Duration::from_secs(3));
    assert!(waiter.running());
    // This prompt tells of the mail, and later mail rings again.
    assert!(
        says(&bed, "prompt", "claude-code", &payload("claude-code", "prompt")).contains("1 new")
    );
    deliver(&bed, "bob", 6);
    rings(waiter, "msgfs: 7 unread messages for alice, 1 new, from bob: msgfs --me alice ls inbox");
}

/// S514: an installed line ends with 0 and an empty standard output, whatever stands in the place of msgfs. Only a
/// waiter's 10 wakes.
#[test]
fn s514_the_installed_lines_do_no_harm() {
    let bed = bed(1);
    let out = bed.msgfs_out(&["hook", "install", "--for", "auto", "--mid-turn"]);
    assert!(out.ok(), "{out:?}");
    let mut lines = Vec::new();
    for harness in ["claude-code", "codex", "gemini", "copilot", "cursor"] {
        let out = bed.msgfs_out(&["hook", "install", "--for", harness, "--mid-turn", "--dry-run"]);
        let diff = out.stdout.lines().filter_map(|l| l.strip_prefix('+'));
        for line in diff.filter(|l| l.contains("msgfs hook run")) {
            let (_, command) = line.split_once("msgfs hook run").unwrap();
            let (command, _) = command.split_once("\",").unwrap();
            lines.push(format!("msgfs hook run{command}"));
        }
    }
    assert_eq!(lines.len(), 7 + 4 + 4 + 4 + 3, "{lines:#?}");
    let stub = bed.path("stub");
    fs::create_dir(&stub).unwrap();
    let usage = "echo usage >&2; exit 2";
    for body in
        [None, Some("exit 2"), Some("exit 101"), Some("kill -9 $$"), Some(usage), Some("exit 10")]
    {
        for line in &lines {
            let file = stub.join("msgfs");
            let _ = fs::remove_file(&file);
            if let Some(body) = body {
                write_script(&file, &format!("#!/bin/sh\n{body}\n"));
            }
            let mut command = hook(&bed, line);
            command.env("PATH", format!("{}:/usr/bin:/bin", stub.display()));
            let out = run(command, Some(b"{}"));
            let wakes = body == Some("exit 10") && line.contains("--wait");
            assert_eq!(out.code(), Some(if wakes { 2 } else { 0 }), "{line} {body:?} {out:?}");
            assert_eq!(out.stdout, "", "{line} {body:?}");
        }
    }
}

/// S504: a harness may close the input of a waiter late. Its session is rung nevertheless.
#[test]
fn s504_a_waiter_waits_for_its_input() {
    let bed = bed(1);
    let mut child = hook(&bed, LINE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(payload("claude-code", "stop").to_string().as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    drop(input);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

/// Returns the process of the waiter that a shell has started.
fn child_of(shell: &Running) -> rustix::process::Pid {
    let id = shell.pid();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    rustix::process::Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

/// S730: `msgfs hook status` counts the waiters that run, and counts the sessions whose waiter is gone.
#[test]
fn s730_status_looks_at_the_process() {
    let bed = bed(0);
    let status = || {
        let out = bed.msgfs_out(&["hook", "status"]);
        out.stdout.lines().find(|l| l.starts_with("sessions: ")).unwrap_or_default().to_owned()
    };
    let waiter = wait(&bed, "s1");
    assert!(status().starts_with("sessions: 1 (1 with a waiter), "), "{}", status());
    let process = child_of(&waiter);
    rustix::process::kill_process(process, Signal::KILL).unwrap();
    ends(waiter);
    soon("it is gone", || !crate::common::alive(process));
    assert!(
        status().starts_with("sessions: 1 (0 with a waiter, 1 whose waiter is gone), "),
        "{}",
        status()
    );
    // The state of an older msgfs names no process.
    let (path, mut session) = sessions(&bed).remove(0);
    session.as_object_mut().unwrap().remove("process");
    fs::write(path, session.to_string()).unwrap();
    assert!(status().starts_with("sessions: 1 (0 with a waiter), "), "{}", status());
}

/// S730: uninstall ends the waiters of the harness and no other process, whatever the state says.
#[test]
fn s730_uninstall_ends_the_waiters() {
    let bed = bed(0);
    let uninstall = |more: &[&str]| {
        let args = [&["hook", "uninstall", "--for", "claude-code"], more].concat();
        let out = bed.msgfs_out(&args);
        assert!(out.ok(), "{out:?}");
        out.stdout
    };
    let (one, two) = (wait(&bed, "s1"), wait(&bed, "s2"));
    let line = "exec msgfs hook run stop --for opencode --wait";
    let mut other = soon_waits(&bed, hook(&bed, line), &payload("opencode", "stop"));
    assert!(!uninstall(&["--dry-run"]).contains("ended"));
    assert!(uninstall(&[]).contains("  2 processes that waited for mail are ended.\n"));
    is_silent(one);
    is_silent(two);
    assert!(other.running());
    assert!(!uninstall(&[]).contains("ended"));
    // One process got the number of a waiter, and another one never was a waiter.
    let waiter = wait(&bed, "s1");
    let process = child_of(&waiter);
    let mut bystander = {
        let mut sleep = bed.command("sleep");
        sleep.arg("1000");
        Running::start(sleep, None).unwrap()
    };
    let stat = fs::read_to_string(format!("/proc/{}/stat", bystander.pid())).unwrap();
    let began: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let mine = |(_, session): &(PathBuf, Value)| {
        session["waiter"].is_string() && session["harness"] == "claude-code"
    };
    let (path, mut session) = sessions(&bed).into_iter().find(mine).unwrap();
    for (pid, began) in [(bystander.pid(), began), (process.as_raw_nonzero().get(), 1)] {
        session["process"] = json!({"pid": pid, "began": began});
        fs::write(&path, session.to_string()).unwrap();
        assert!(!uninstall(&[]).contains("ended"));
    }
    assert!(bystander.running());
    // It may not ring any more, and ends by itself, as a waiter of an older msgfs does.
    is_silent(waiter);
}
