//! Waking a session of Codex, which has no hook that waits: the hook at the end of a turn starts the waiter.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::waiter::sessions;
use super::{bed, deliver, hook, payload, says};
use crate::common::{Bed, run, soon};

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
        Self { bed, program, folder }
    }

    /// Runs a hook below the program, as long as the program runs.
    #[track_caller]
    fn below(&self, event: &str, rest: &str) -> String {
        let line = format!("msgfs hook run {event} --for codex 2>/dev/null || true; {rest}");
        let mut command = Command::new(&self.program);
        let like = hook(&self.bed, "");
        command.env_clear().args(["-c", &line]).current_dir(&self.folder);
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let told = payload("codex", event).to_string();
        let out = run(command, Some(told.as_bytes()));
        assert!(out.ok(), "{out:?}");
        out.stdout
    }

    fn queued(&self) -> String {
        fs::read_to_string(self.folder.join("queued")).unwrap_or_default()
    }

    fn has_waiter(&self) -> bool {
        sessions(&self.bed).iter().any(|(_, session)| session["waiter"] != Value::Null)
    }
}

/// S970: after a turn of Codex a waiter stays, and mail makes it call `codex queue` once, with the line and no text of
/// mail.
#[test]
fn s970_an_idle_session_of_codex_is_woken() {
    let codex = Codex::new();
    std::thread::scope(|scope| {
        let program = scope.spawn(|| {
            codex.below("stop", "for i in $(seq 300); do [ -e queued ] && exit; sleep 0.2; done")
        });
        soon("the waiter waits", || codex.has_waiter());
        deliver(&codex.bed, "bob", 1);
        soon("it is queued", || !codex.queued().is_empty());
        assert_eq!(program.join().unwrap(), "");
    });
    let said = codex.queued();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(&lines[..3], ["--thread", "s1", "--message"], "{said}");
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[3].starts_with("msgfs: 1 unread message for alice, from bob: "), "{said}");
    // The prompt that this makes is not announced again.
    let mut told = payload("codex", "prompt");
    told["prompt"] = lines[3].into();
    assert_eq!(says(&codex.bed, "prompt", "codex", &told), "");
}

/// S970: a waiter of Codex ends with its program, with the session, and when the next turn begins.
#[test]
fn s970_a_waiter_of_codex_does_not_stay_too_long() {
    let waiting = |codex: &Codex| {
        let status = codex.bed.msgfs_out(&["hook", "status"]).stdout;
        status.contains("(1 with a waiter")
    };
    for (event, stay) in
        [("stop", "sleep 2; true"), ("session-end", "sleep 20; true"), ("prompt", "sleep 20; true")]
    {
        let codex = Codex::new();
        std::thread::scope(|scope| {
            let program = scope.spawn(|| codex.below("stop", stay));
            soon("the waiter waits", || waiting(&codex));
            if event != "stop" {
                assert_eq!(codex.below(event, ""), "");
            }
            soon("the waiter is gone", || !waiting(&codex));
            assert_eq!(program.is_finished(), event == "stop", "it ended for another reason");
            program.join().unwrap();
        });
        deliver(&codex.bed, "bob", 1);
        assert_eq!(codex.queued(), "", "{event}");
    }
}

/// S970: without the program of Codex above it, a hook starts no waiter.
#[test]
fn s970_a_hook_that_codex_does_not_run_starts_no_waiter() {
    let bed = bed(0);
    assert_eq!(says(&bed, "stop", "codex", &payload("codex", "stop")), "");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(sessions(&bed).iter().all(|(_, session)| session["waiter"] == Value::Null));
}
