//! Waking a session of Codex, which has no hook that waits: the hook at the end of a turn starts the waiter.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::waiter::{LIMIT, sessions};
use super::{bed, deliver, hook, payload, says};
use crate::common::proc::Running;
use crate::common::{Bed, soon};

/// A program that stands for Codex: a shell of that name. `codex queue …` makes it run the file `queue` in the current
/// folder.
struct Codex {
    bed: Bed,
    program: PathBuf,
    folder: PathBuf,
}

impl Codex {
    fn new() -> Self {
        let bed = bed(0);
        let folder = bed.path("project");
        fs::create_dir(&folder).unwrap();
        let program = bed.path("codex");
        fs::copy("/bin/bash", &program).unwrap();
        fs::write(folder.join("queue"), "printf '%s\\n' \"$@\" >> queued\n").unwrap();
        fs::write(
            folder.join("turn"),
            "msgfs hook run stop --for codex < told; while [ ! -e over ]; do sleep 0.1; done\n",
        )
        .unwrap();
        let codex = Self { bed, program, folder };
        fs::write(codex.folder.join("told"), codex.told("stop", "s1").to_string()).unwrap();
        codex
    }

    fn told(&self, event: &str, session: &str) -> Value {
        let mut told = payload("codex", event);
        told["session_id"] = session.into();
        told["cwd"] = self.folder.to_str().unwrap().into();
        told
    }

    /// Starts the program, in a terminal or without one. Its turn ends at once, and the program stays until
    /// [`Codex::leave`].
    fn start(&self, in_terminal: bool) -> Running {
        let line = format!("exec {} turn", self.program.display());
        let mut command = Command::new("script");
        if in_terminal {
            command.args(["-qec", &line, "/dev/null"]);
        } else {
            command = Command::new("sh");
            command.args(["-c", &line]);
        }
        let like = hook(&self.bed, "");
        command.env_clear().env("SHELL", "/bin/sh").current_dir(&self.folder);
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Running::start(command, None).unwrap()
    }

    #[track_caller]
    fn leave(&self, running: Running) {
        fs::write(self.folder.join("over"), "").unwrap();
        running.finish(LIMIT).unwrap();
    }

    fn says(&self, event: &str, session: &str) -> String {
        says(&self.bed, event, "codex", &self.told(event, session))
    }

    fn queued(&self) -> String {
        fs::read_to_string(self.folder.join("queued")).unwrap_or_default()
    }

    fn is_waiting(&self) -> bool {
        let status = self.bed.msgfs_out(&["hook", "status"]).stdout;
        status.contains("(1 with a waiter")
    }
}

/// S970: after a turn of Codex a waiter stays, and mail makes it call `codex queue` once, with the line and no text of
/// mail.
#[test]
fn s970_an_idle_session_of_codex_is_woken() {
    let codex = Codex::new();
    let running = codex.start(true);
    soon("the waiter waits", || codex.is_waiting());
    deliver(&codex.bed, "bob", 1);
    soon("it is queued", || codex.queued().lines().count() == 4);
    soon("the waiter is gone", || !codex.is_waiting());
    let said = codex.queued();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(&lines[..3], ["--thread", "s1", "--message"], "{said}");
    assert!(lines[3].starts_with("msgfs: 1 unread message for alice, from bob: "), "{said}");
    // The prompt that this makes is not announced again.
    let mut told = codex.told("prompt", "s1");
    told["prompt"] = lines[3].into();
    assert_eq!(says(&codex.bed, "prompt", "codex", &told), "");
    codex.leave(running);
}

/// S970: a process that Codex started and that looks like it, as until it runs its own program, may end.
#[test]
fn s970_a_child_of_codex_is_no_session() {
    let codex = Codex::new();
    let turn = fs::read_to_string(codex.folder.join("turn")).unwrap();
    let child = "( while [ ! -e end-child ]; do read -t 0.05 line; done; : > child-ended ) <&0 &\n";
    fs::write(codex.folder.join("turn"), child.to_owned() + &turn).unwrap();
    let running = codex.start(true);
    soon("the waiter waits", || codex.is_waiting());
    fs::write(codex.folder.join("end-child"), "").unwrap();
    soon("the child ends", || codex.folder.join("child-ended").exists());
    deliver(&codex.bed, "bob", 1);
    soon("it is queued", || codex.queued().lines().count() == 4);
    codex.leave(running);
}

/// S970: a Codex that has no `codex queue` is told at its next prompt, and `hook status` says why it was not woken.
#[test]
fn s970_a_codex_that_cannot_be_woken_is_told_at_the_next_prompt() {
    let codex = Codex::new();
    fs::remove_file(codex.folder.join("queue")).unwrap();
    let running = codex.start(true);
    soon("the waiter waits", || codex.is_waiting());
    deliver(&codex.bed, "bob", 1);
    soon("the waiter is gone", || !codex.is_waiting());
    let status = codex.bed.msgfs_out(&["hook", "status"]).stdout;
    assert!(status.contains("codex: the session was not woken: codex ended with "), "{status}");
    assert!(codex.says("prompt", "s1").contains("1 unread message for alice, from bob: "));
    codex.leave(running);
}

/// S970: a waiter of Codex ends with the terminal, with the session, when the next turn begins, and when a person types
/// in another session of the folder. Then nothing is queued.
#[test]
fn s970_a_waiter_of_codex_does_not_stay_too_long() {
    for end in [None, Some(("session-end", "s1")), Some(("prompt", "s1")), Some(("prompt", "s2"))] {
        let codex = Codex::new();
        let running = codex.start(true);
        soon("the waiter waits", || codex.is_waiting());
        let running = if let Some((event, session)) = end {
            assert_eq!(codex.says(event, session), "");
            Some(running)
        } else {
            codex.leave(running);
            None
        };
        soon("the waiter is gone", || !codex.is_waiting());
        deliver(&codex.bed, "bob", 1);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(codex.queued(), "", "{end:?}");
        if let Some(running) = running {
            codex.leave(running);
        }
    }
}

/// S970: a hook starts no waiter without the program of Codex above it, and none that could wake a session that nobody
/// sees.
#[test]
fn s970_a_session_without_a_terminal_gets_no_waiter() {
    let codex = Codex::new();
    assert_eq!(codex.says("stop", "s1"), "");
    let running = codex.start(false);
    std::thread::sleep(Duration::from_secs(2));
    let any =
        sessions(&codex.bed).into_iter().find(|(_, session)| session["waiter"] != Value::Null);
    assert_eq!(any, None);
    codex.leave(running);
}
