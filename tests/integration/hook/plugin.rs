//! The plugin for `OpenCode`, under node.

use std::fs;
use std::path::Path;

use super::bed;
use crate::common::{Bed, run, write_script};

/// A script that plays `OpenCode`, in both of its versions, with a replacement of msgfs in `PATH`.
const PLAY: &str = include_str!("opencode.mjs");

#[track_caller]
fn play(bed: &Bed, plugin: &Path, scene: &str, path: &str) -> String {
    let script = bed.path("play.mjs");
    fs::write(&script, PLAY).unwrap();
    let mut command = bed.command("/usr/bin/env");
    command.args(["node".as_ref(), script.as_os_str(), plugin.as_os_str(), scene.as_ref()]);
    command.env("NEW_PATH", path).env("MSGFS_ME", "leaked");
    let out = run(command, None);
    assert!(
        out.ok() && out.stderr.is_empty(),
        "{scene}: {out:?}\n(node is needed: apt-get install nodejs)"
    );
    out.stdout
}

/// S526: the plugin starts the waiter when a session of `OpenCode`, 1 or 2, becomes idle. If the waiter rang, the
/// plugin gives its output to the session once. Sessions below another one are left alone, and no failure does
/// harm.
#[test]
fn s526_the_plugin_of_opencode() {
    let bed = bed(0);
    assert!(bed.msgfs_out(&["hook", "install", "--for", "opencode"]).ok());
    // Without a package.json, an old node takes .js for CommonJS.
    let plugin = bed.path("msgfs.mjs");
    let text = fs::read_to_string(bed.path("config/opencode/plugins/msgfs.js")).unwrap();
    let called = format!("const PROGRAM = {:?}\n", bed.path("tools/msgfs"));
    assert!(text.contains(&called), "{text}");
    fs::write(&plugin, text.replace(&called, "const PROGRAM = \"msgfs\"\n")).unwrap();
    let mut check = bed.command("node");
    check.args(["--check".as_ref(), plugin.as_os_str()]);
    let out = run(check, None);
    assert!(out.ok(), "{out:?}");
    let stub = bed.path("stub");
    fs::create_dir(&stub).unwrap();
    let set = |body: &str| {
        write_script(&stub.join("msgfs"), &format!("#!/bin/sh\n{body}\n"));
    };
    let path = format!("{}:/usr/bin:/bin", stub.display());
    let log = bed.path("log");
    set(&format!(
        "cat >>{0}; echo \"$MSGFS_ME $*\" >>{0}; echo 'msgfs: 1 unread'; exit 10",
        log.display()
    ));
    for (age, me) in [("1", "leaked"), ("2", "")] {
        let _ = fs::remove_file(&log);
        assert_eq!(play(&bed, &plugin, &format!("{age} idle"), &path), "s msgfs: 1 unread\n");
        let expected = format!(
            "{{\"session_id\":\"s\",\"cwd\":\"/project\"}}\n{me} hook run stop --for opencode --wait\n"
        );
        assert_eq!(fs::read_to_string(&log).unwrap(), expected);
        let _ = fs::remove_file(&log);
        assert_eq!(play(&bed, &plugin, &format!("{age} child"), &path), "");
        assert_eq!(
            play(&bed, &plugin, &format!("{age} asked"), &path),
            "",
            "the child is asked for"
        );
        assert!(!log.exists(), "nothing was started for a child");
        assert_eq!(play(&bed, &plugin, &format!("{age} throws"), &path), "");
        assert_eq!(play(&bed, &plugin, &format!("{age} idle"), "/nowhere"), "", "msgfs is missing");
    }
    // The plugin calls the prompt hook once for each prompt of a person, and not for the prompt that it makes of a
    // ring.
    for (age, me) in [("1", "leaked"), ("2", "")] {
        let _ = fs::remove_file(&log);
        assert_eq!(play(&bed, &plugin, &format!("{age} typed"), &path), "s msgfs: 1 unread\n");
        let text = fs::read_to_string(&log).unwrap();
        let calls: Vec<&str> = text.lines().filter(|line| line.contains("hook run")).collect();
        let expected = ["prompt --for opencode", "stop --for opencode --wait"];
        assert_eq!(calls, expected.map(|call| format!("{me} hook run {call}")), "{text}");
        assert!(!text.contains("\"c\""), "a session below another: {text}");
    }
    for body in ["echo x; exit 0", "echo x; exit 2", "exit 10", "exit 101"] {
        set(body);
        for age in ["1", "2"] {
            assert_eq!(play(&bed, &plugin, &format!("{age} idle"), &path), "", "{body}");
        }
    }
    // The former waiter is ended, and the last one ends with the session.
    set(&format!(
        "trap 'echo ended >>{0}; exit 0' TERM; echo began >>{0}; sleep 100 & wait $!; kill $!",
        log.display()
    ));
    for age in ["1", "2"] {
        let _ = fs::remove_file(&log);
        assert_eq!(play(&bed, &plugin, &format!("{age} twice"), &path), "");
        crate::common::soon("all have ended", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.matches("ended").count() == 2 && text.matches("began").count() == 2
        });
    }
    // The session that was left is disarmed, and stays so although a turn of it ends later.
    set(&format!(
        "trap 'echo ended $session >>{0}; exit 0' TERM; read -r line; session=${{line#*:}}; session=${{session%%,*}}; \
         echo $3 $session >>{0}; [ $3 = stop ] || exit 0; sleep 100 & wait $!; kill $!",
        log.display()
    ));
    for age in ["1", "2"] {
        let _ = fs::remove_file(&log);
        assert_eq!(play(&bed, &plugin, &format!("{age} left"), &path), "");
        crate::common::soon("all have ended", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.matches("ended").count() == 2
        });
        let text = fs::read_to_string(&log).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let mut expected = vec!["ended \"s\"", "ended \"t\"", "prompt \"s\"", "prompt \"t\""];
        expected.extend(["session-end \"s\"", "stop \"s\"", "stop \"t\""]);
        assert_eq!(lines, expected, "{age}");
    }
    // A plugin that is removed while it runs starts nothing any more.
    let _ = fs::remove_file(&log);
    for age in ["1", "2"] {
        assert_eq!(play(&bed, &plugin, &format!("{age} removed"), &path), "");
        fs::write(&plugin, text.replace(&called, "const PROGRAM = \"msgfs\"\n")).unwrap();
    }
    assert!(!log.exists());
}
