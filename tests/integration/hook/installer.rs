//! Hooks in the files of harnesses.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bed;
use crate::common::{Bed, Out, binary, need_root, run, write_script};

/// Each harness whose hooks are in a JSON file, and the content of a new file, except for the path of msgfs.
pub(super) const NEW: &[(&str, &str, &str)] = &[
    (
        "claude-code",
        ".claude/settings.json",
        r#"{"hooks":{
"SessionStart":[{"hooks":[{"type":"command","command":"msgfs hook run session-start --for claude-code 2>/dev/null || true","timeout":5}]},
{"hooks":[{"type":"command","command":"msgfs hook run session-start --for claude-code --wait; test $? -eq 10 && exit 2; exit 0","timeout":28800,"asyncRewake":true,"rewakeSummary":"msgfs: mail from another agent","rewakeMessage":"Mail has come."}]}],
"UserPromptSubmit":[{"hooks":[{"type":"command","command":"msgfs hook run prompt --for claude-code 2>/dev/null || true","timeout":5}]},
{"hooks":[{"type":"command","command":"msgfs hook run prompt --for claude-code --wait; test $? -eq 10 && exit 2; exit 0","timeout":28800,"asyncRewake":true,"rewakeSummary":"msgfs: mail from another agent","rewakeMessage":"Mail has come."}]}],
"Stop":[{"hooks":[{"type":"command","command":"msgfs hook run stop --for claude-code --wait; test $? -eq 10 && exit 2; exit 0","timeout":28800,"asyncRewake":true,"rewakeSummary":"msgfs: mail from another agent","rewakeMessage":"Mail has come."}]}],
"SessionEnd":[{"hooks":[{"type":"command","command":"msgfs hook run session-end --for claude-code 2>/dev/null || true","timeout":1}]}]}}
"#,
    ),
    (
        "codex",
        ".codex/hooks.json",
        r#"{"hooks":{
"SessionStart":[{"hooks":[{"type":"command","command":"msgfs hook run session-start --for codex 2>/dev/null || true","timeout":5}]}],
"UserPromptSubmit":[{"hooks":[{"type":"command","command":"msgfs hook run prompt --for codex 2>/dev/null || true","timeout":5}]}],
"Stop":[{"hooks":[{"type":"command","command":"msgfs hook run stop --for codex 2>/dev/null || true","timeout":5}]}]}}
"#,
    ),
    (
        "gemini",
        ".gemini/settings.json",
        r#"{"hooks":{
"SessionStart":[{"hooks":[{"name":"msgfs","type":"command","command":"msgfs hook run session-start --for gemini 2>/dev/null || true","timeout":5000}]}],
"BeforeAgent":[{"hooks":[{"name":"msgfs","type":"command","command":"msgfs hook run prompt --for gemini 2>/dev/null || true","timeout":5000}]}],
"AfterAgent":[{"hooks":[{"name":"msgfs","type":"command","command":"msgfs hook run stop --for gemini 2>/dev/null || true","timeout":5000}]}]}}
"#,
    ),
    (
        "copilot",
        ".copilot/hooks/msgfs.json",
        r#"{"version":1,"hooks":{
"sessionStart":[{"type":"command","bash":"msgfs hook run session-start --for copilot 2>/dev/null || true","timeoutSec":5}],
"userPromptSubmitted":[{"type":"command","bash":"msgfs hook run prompt --for copilot 2>/dev/null || true","timeoutSec":5}],
"agentStop":[{"type":"command","bash":"msgfs hook run stop --for copilot 2>/dev/null || true","timeoutSec":5}]}}
"#,
    ),
    (
        "cursor",
        ".cursor/hooks.json",
        r#"{"version":1,"hooks":{
"sessionStart":[{"command":"msgfs hook run session-start --for cursor 2>/dev/null || true","timeout":5}],
"stop":[{"command":"msgfs hook run stop --for cursor 2>/dev/null || true","timeout":5,"loop_limit":5}]}}
"#,
    ),
];

/// Returns the same text with the msgfs of a bed in its commands.
fn with_path(bed: &Bed, text: &str) -> String {
    text.replace("msgfs hook run", &format!("{} hook run", bed.path("tools/msgfs").display()))
}

/// Returns the harnesses whose file has the hooks of other programs, too.
fn shared() -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    NEW.iter().filter(|(name, ..)| *name != "copilot")
}

fn file(bed: &Bed, name: &str) -> PathBuf {
    bed.path("home").join(name)
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn change(bed: &Bed, verb: &str, harness: &str, more: &[&str]) -> Out {
    bed.msgfs_out(&[&["hook", verb, "--for", harness], more].concat())
}

#[track_caller]
fn install(bed: &Bed, harness: &str) -> String {
    let out = change(bed, "install", harness, &[]);
    assert!(out.ok(), "{harness}: {out:?}");
    out.stdout
}

#[track_caller]
fn uninstall(bed: &Bed, harness: &str) -> String {
    let out = change(bed, "uninstall", harness, &[]);
    assert!(out.ok(), "{harness}: {out:?}");
    out.stdout
}

fn value(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the files beside a file in its folder.
fn kept(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
    entries.map(|e| e.path()).filter(|p| p != path && p.is_file()).collect()
}

/// S515: a file that was not there holds the hooks and nothing else, byte for byte. Uninstall removes it again.
#[test]
fn s515_a_new_file_and_back() {
    for (harness, name, text) in NEW {
        let bed = bed(0);
        let path = file(&bed, name);
        let said = install(&bed, harness);
        assert!(said.starts_with(&format!("{harness}: ~/{name}: written\n")), "{said}");
        assert!(said.contains("Before its hooks run:") && said.contains("To test:"), "{said}");
        // Cursor's hook at a prompt cannot tell the model anything.
        assert!(*harness != "cursor" || !said.contains("prompt"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), with_path(&bed, text));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(install(&bed, harness).contains(": unchanged\n"));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert!(uninstall(&bed, harness).contains(": removed\n"));
        assert!(!path.exists() && kept(&path).is_empty());
        assert!(uninstall(&bed, harness).contains(": unchanged\n"));
    }
}

/// S515, S516: the same holds with the hook for tools, whether it is installed at once or later.
#[test]
fn s515_mid_turn_and_back() {
    for (harness, name, _) in NEW {
        for first in [&["--mid-turn"][..], &[]] {
            let mut files = vec![None, Some("{\"version\":1,\n\"hooks\": {}\n}\n"), Some("{}\n")];
            if *harness == "copilot" {
                files.truncate(1);
            }
            for before in files {
                let bed = bed(0);
                let path = file(&bed, name);
                if let Some(before) = before {
                    put(&path, before);
                }
                assert!(change(&bed, "install", harness, first).ok());
                if before.is_none() {
                    assert!(kept(&path).is_empty(), "of ours alone no copy is kept");
                }
                assert!(change(&bed, "install", harness, &["--mid-turn"]).ok());
                uninstall(&bed, harness);
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), before, "{harness}");
                if before.is_none() {
                    assert!(kept(&path).is_empty(), "of ours alone no copy is kept");
                }
            }
        }
    }
}

/// S1265: the hook for tools stays when the hooks are installed again without it, and `msgfs hook status` does not
/// call the hooks old.
#[test]
fn s1265_mid_turn_stays() {
    for (harness, name, _) in NEW {
        let bed = bed(0);
        assert!(change(&bed, "install", harness, &["--mid-turn"]).ok());
        let text = fs::read_to_string(file(&bed, name)).unwrap();
        let status = bed.msgfs_out(&["hook", "status"]).stdout;
        assert!(!status.contains("installed by an older msgfs"), "{harness}: {status}");
        assert!(install(&bed, harness).contains(": unchanged\n"), "{harness}");
        assert_eq!(fs::read_to_string(file(&bed, name)).unwrap(), text);
    }
}

/// Returns files as people lay them out: two spaces, four, tabs, one line, Windows, odd ones.
fn laid_out(value: &Value) -> Vec<String> {
    let pretty = serde_json::to_string_pretty(value).unwrap();
    let indent = |by: &str| {
        let line = |line: &str| {
            let rest = line.trim_start_matches(' ');
            by.repeat((line.len() - rest.len()) / 2) + rest
        };
        pretty.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
    };
    vec![
        indent("  "),
        indent("    "),
        indent("\t"),
        pretty.clone(),
        pretty.replace('\n', "\r\n") + "\r\n",
        value.to_string(),
        format!(" {value} \n\n"),
    ]
}

/// S516: the text that is there stays, byte for byte and in its order. Our hooks come last in each event's list.
/// Uninstall restores the bytes from before.
#[test]
fn s516_what_others_wrote_stays() {
    for (harness, name, text) in shared() {
        let ours: Value = serde_json::from_str(text).unwrap();
        let event = ours["hooks"].as_object().unwrap().keys().next().unwrap().clone();
        let grouped = *harness != "cursor";
        let handler = json!({"type":"command","command":"echo \u{e4} \"x\"","timeout":7});
        let foreign = if grouped { json!({"matcher":"*","hooks":[handler]}) } else { handler };
        let mut files = vec!["{}".to_owned(), "{}\n".into(), "{\n}\n".into(), "{ }".into()];
        for content in [
            json!({"hooks":{}}),
            json!({"hooks":{&event:[]}}),
            json!({"theme":"dark","hooks":{&event:[foreign]},"z":[1.50,{"a":null}]}),
            json!({"hooks":{"stop":[],"Stop":[]}}),
        ] {
            let mut content = content;
            if !grouped {
                content["version"] = 1.into();
                content["hooks"].as_object_mut().unwrap().remove("Stop");
            }
            files.extend(laid_out(&content));
        }
        for before in files {
            let bed = bed(0);
            let ours: Value = serde_json::from_str(&with_path(&bed, text)).unwrap();
            let path = file(&bed, name);
            put(&path, &before);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let was: Value = serde_json::from_str(&before).unwrap();
            install(&bed, harness);
            let after = fs::read_to_string(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
            let now: Value = serde_json::from_str(&after).unwrap();
            for (member, value) in was.as_object().unwrap().iter().filter(|(m, _)| *m != "hooks") {
                assert_eq!(&now[member], value, "{after}");
            }
            for (key, list) in ours["hooks"].as_object().unwrap() {
                let theirs = was["hooks"][key].as_array().cloned().unwrap_or_default();
                let expected = [theirs, list.as_array().unwrap().clone()].concat();
                assert_eq!(now["hooks"][key], Value::from(expected), "{after}");
            }
            // Every line of others is there, in its order.
            let mut lines = after.lines().map(|l| l.trim_end_matches(','));
            for line in before.lines().filter(|l| l.contains('"') && !l.contains("{\"")) {
                let line = line.trim_end_matches(',').trim_end_matches("[]").trim_end_matches("{}");
                assert!(lines.any(|l| l.starts_with(line)), "{line:?} of\n{before}\nin\n{after}");
            }
            let aside = kept(&path);
            assert_eq!(aside.len(), 1, "{aside:?}");
            assert_eq!(fs::read_to_string(&aside[0]).unwrap(), before);
            let mtime = fs::metadata(&path).unwrap().modified().unwrap();
            assert!(install(&bed, harness).contains(": unchanged\n"));
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), mtime);
            uninstall(&bed, harness);
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
        }
    }
}

/// S517: an older hook of ours is replaced in its place, also if it calls msgfs by a path. Several of ours become
/// one. Entries that others added since install stay when ours go, and a command in which more follows a call of ours
/// is one of others.
#[test]
fn s517_ours_are_replaced_in_place() {
    for (harness, name, text) in shared() {
        let bed = bed(0);
        let path = file(&bed, name);
        let ours: Value = serde_json::from_str(&with_path(&bed, text)).unwrap();
        let (event, list) = ours["hooks"].as_object().unwrap().iter().next().unwrap();
        let grouped = *harness != "cursor";
        let of = |command: &str| {
            let handler = json!({"type":"command","command":command});
            if grouped { json!({"hooks":[handler]}) } else { handler }
        };
        let older = |program: &str, event: &str| {
            of(&format!("{program} hook run {event} --for {harness} 2>/dev/null || true"))
        };
        let old = [
            of("echo one"),
            older("/opt/bin/msgfs", "session-start"),
            of(&format!("msgfs hook run session-start --for {harness}; /home/anna/mine.sh")),
            older("msgfs", "prompt"),
            older("msgfs", "tool"),
        ];
        let mut content = json!({"hooks":{event:old}});
        if !grouped {
            content["version"] = 1.into();
        }
        put(&path, &content.to_string());
        install(&bed, harness);
        let now = value(&path);
        // Claude Code has two of our hooks there.
        let expected: Vec<&Value> = [&old[0], &list[0], &old[2]]
            .into_iter()
            .chain(list.as_array().unwrap().get(1))
            .collect();
        assert_eq!(now["hooks"][event], json!(expected));
        // Another program adds something after our hooks.
        let mut later = now.clone();
        later["hooks"][event].as_array_mut().unwrap().push(of("echo three"));
        fs::write(&path, serde_json::to_string_pretty(&later).unwrap()).unwrap();
        uninstall(&bed, harness);
        let mut expected = json!({"hooks":{event:[old[0], old[2], of("echo three")]}});
        if !grouped {
            expected["version"] = 1.into();
        }
        assert_eq!(value(&path), expected);
    }
    // A handler of ours shares a group with a handler of another program.
    let bed = bed(0);
    let path = file(&bed, ".claude/settings.json");
    let theirs = json!({"type":"command","command":"echo"});
    let line = "/old/msgfs hook run prompt --for claude-code 2>/dev/null || true";
    let mine = json!({"type":"command","command":line});
    put(&path, &json!({"hooks":{"UserPromptSubmit":[{"hooks":[theirs, mine]}]}}).to_string());
    install(&bed, "claude-code");
    let group = &value(&path)["hooks"]["UserPromptSubmit"];
    assert_eq!(group[0]["hooks"].as_array().unwrap().len(), 2);
    assert_eq!(group[0]["hooks"][1]["timeout"], 5);
    uninstall(&bed, "claude-code");
    assert_eq!(value(&path), json!({"hooks":{"UserPromptSubmit":[{"hooks":[theirs]}]}}));
}

/// S518: a file that msgfs does not understand is left alone. msgfs prints the reason and the lines to add, and
/// exits with code 1.
#[test]
fn s518_what_is_not_understood_is_left_alone() {
    for (harness, name, text) in shared() {
        let ours: Value = serde_json::from_str(text).unwrap();
        let (key, _) = ours["hooks"].as_object().unwrap().iter().next().unwrap();
        for odd in [
            "",
            "{",
            "[]",
            "// comment\n{}",
            "{\"a\":1,}",
            "{\"a\":1,\"a\":2}",
            "{\"x\":{\"hooks\":1,\"hooks\":2}}",
            "{\"hooks\":[]}",
            &format!("{{\"hooks\":{{\"{key}\":{{}}}}}}"),
            "{'a':1}",
            "{} {}",
            "\u{feff}{}",
            "{\"a\":NaN}",
        ] {
            let bed = bed(0);
            let path = file(&bed, name);
            put(&path, odd);
            let out = change(&bed, "install", harness, &[]);
            assert_eq!(out.code(), Some(1), "{odd}: {out:?}");
            assert!(
                out.stdout.contains(": refused (")
                    && out.stdout.contains(with_path(&bed, text).trim()),
                "{out:?}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), odd);
            assert!(kept(&path).is_empty());
            assert!(uninstall(&bed, harness).contains(": unchanged"), "nothing of ours is in it");
        }
    }
    let bed = bed(0);
    let path = file(&bed, ".claude/settings.json");
    put(&path, "{}");
    for mode in [0o444, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let out = change(&bed, "install", "claude-code", &[]);
        assert!(out.code() == Some(1) && out.stdout.contains("read-only"), "{out:?}");
    }
    fs::remove_file(&path).unwrap();
    symlink("nowhere", &path).unwrap();
    let out = change(&bed, "install", "claude-code", &[]);
    assert!(out.code() == Some(1) && out.stdout.contains("leads nowhere"), "{out:?}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(change(&bed, "install", "claude-code", &[]).code(), Some(1));
    // One refusal does not keep another file from being written.
    let path = file(&bed, ".cursor/hooks.json");
    put(&path, r#"{"version":1,"hooks":{"onWhatever":[]}}"#);
    fs::create_dir(bed.path("home/.gemini")).unwrap();
    let out = bed.msgfs_out(&["hook", "install"]);
    assert!(
        out.code() == Some(1) && out.stdout.contains("\"onWhatever\" is not a known event"),
        "{out:?}"
    );
    assert!(file(&bed, ".gemini/settings.json").exists());
    put(&path, r#"{"version":2,"hooks":{}}"#);
    assert_eq!(change(&bed, "install", "cursor", &[]).code(), Some(1));
}

/// S519: a symlink stays a symlink, and its target is written. A symlink to somebody else's file is refused.
#[test]
fn s519_symlinks() {
    let bed = bed(0);
    let (path, target) = (file(&bed, ".claude/settings.json"), bed.path("dotfiles/claude.json"));
    put(&target, "{}\n");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(&target, &path).unwrap();
    install(&bed, "claude-code");
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    assert!(fs::read_to_string(&target).unwrap().contains("msgfs hook run"));
    uninstall(&bed, "claude-code");
    assert_eq!(fs::read_to_string(&target).unwrap(), "{}\n");
    need_root();
    std::os::unix::fs::chown(&target, Some(4711), None).unwrap();
    let out = change(&bed, "install", "claude-code", &[]);
    assert!(out.code() == Some(1) && out.stdout.contains("belongs to the user 4711"), "{out:?}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "{}\n");
}

/// S520: if Codex keeps hooks in `config.toml`, msgfs writes nothing and prints the TOML. Codex's own notes of
/// trust are no hooks.
#[test]
fn s520_codex_with_hooks_in_toml() {
    let bed = bed(0);
    let (toml, path) = (file(&bed, ".codex/config.toml"), file(&bed, ".codex/hooks.json"));
    for hooks in ["[[hooks.Stop]]\nmatcher = \"x\"\n", "hooks = 1\n", "this is no TOML"] {
        put(&toml, hooks);
        let out = change(&bed, "install", "codex", &[]);
        assert_eq!(out.code(), Some(1), "{out:?}");
        let (_, add) = out.stdout.split_once("by hand:\n").unwrap();
        let add: toml::Table = add.parse().unwrap();
        let text = NEW.iter().find(|(name, ..)| *name == "codex").unwrap().2;
        let expected: Value = serde_json::from_str(&with_path(&bed, text)).unwrap();
        assert_eq!(serde_json::to_value(add).unwrap(), expected);
        assert!(!path.exists());
    }
    put(&toml, "model = \"m\"\n[hooks.state.\"x\"]\ntrusted_hash = \"y\"\n");
    assert!(install(&bed, "codex").contains("/hooks"));
    assert!(path.exists());
}

/// S521: Copilot's file and `OpenCode`'s plugin are completely ours. Install leaves a file alone that is not.
#[test]
fn s521_files_that_are_all_ours() {
    let bed = bed(0);
    let plugin = bed.path("config/opencode/plugins/msgfs.js");
    install(&bed, "opencode");
    let text = fs::read_to_string(&plugin).unwrap();
    assert!(text.starts_with("// msgfs-hook 2\n"), "{text}");
    fs::write(&plugin, "// msgfs-hook 1\nold").unwrap();
    install(&bed, "opencode");
    assert_eq!(fs::read_to_string(&plugin).unwrap(), text);
    uninstall(&bed, "opencode");
    assert!(!plugin.exists());
    fs::write(&plugin, "export default {}\n").unwrap();
    assert_eq!(change(&bed, "install", "opencode", &[]).code(), Some(1));
    uninstall(&bed, "opencode");
    assert_eq!(fs::read_to_string(&plugin).unwrap(), "export default {}\n");

    let own = file(&bed, ".copilot/hooks/msgfs.json");
    install(&bed, "copilot");
    let text = fs::read_to_string(&own).unwrap();
    put(&own, &text.replace("\"timeoutSec\":5", "\"timeoutSec\":9"));
    install(&bed, "copilot");
    assert_eq!(fs::read_to_string(&own).unwrap(), text);
    let foreign = text.replace(" hook run stop", " echo");
    put(&own, &foreign);
    assert_eq!(change(&bed, "install", "copilot", &[]).code(), Some(1));
    assert_eq!(fs::read_to_string(&own).unwrap(), foreign);
    let mut left = value(&own);
    left["hooks"].as_object_mut().unwrap().retain(|event, _| event == "agentStop");
    uninstall(&bed, "copilot");
    assert_eq!(value(&own), left);
}

/// S1155: if somebody adds something to Copilot's file, status says that our hooks are there. Uninstall removes them,
/// and nothing else.
#[test]
fn s1155_what_others_added_to_our_file_stays() {
    let bed = bed(0);
    let own = file(&bed, ".copilot/hooks/msgfs.json");
    install(&bed, "copilot");
    let theirs = json!({"type":"command","bash":"echo","timeoutSec":5});
    let [mut with_member, mut with_hook] = [value(&own), value(&own)];
    with_member["theirs"] = true.into();
    with_hook["hooks"]["agentStop"].as_array_mut().unwrap().push(theirs.clone());
    for (mixed, left) in [
        (with_member, json!({"version":1,"theirs":true})),
        (with_hook, json!({"version":1,"hooks":{"agentStop":[theirs]}})),
    ] {
        put(&own, &mixed.to_string());
        assert_eq!(change(&bed, "install", "copilot", &[]).code(), Some(1));
        assert_eq!(value(&own), mixed);
        let status = bed.msgfs_out(&["hook", "status"]).stdout;
        let told = "copilot: here; hooks: installed by an older msgfs (";
        assert!(status.contains(told), "{status}");
        assert!(uninstall(&bed, "copilot").contains(": written\n"));
        assert_eq!(value(&own), left);
        assert!(uninstall(&bed, "copilot").contains(": unchanged\n"));
    }
}

/// S522: without a name, the command covers each harness whose folder or program is here. `--dry-run` prints a
/// diff that patch takes, and writes nothing. Variables that move a harness's folder count.
#[test]
fn s522_which_harnesses_and_what_would_change() {
    let mut bed = bed(0);
    let out = bed.msgfs_out(&["hook", "install"]);
    assert!(out.ok() && out.stderr.contains("--for"), "{out:?}");
    let tool = bed.path("tools/codex");
    write_script(&tool, "#!/bin/sh\n");
    let claude = bed.path("moved");
    fs::create_dir(&claude).unwrap();
    bed.env.push(("CLAUDE_CONFIG_DIR".into(), claude.clone().into()));
    let settings = claude.join("settings.json");
    put(&settings, "{\n  \"a\": 1\n}\n");
    let before = super::snapshot(&bed.path(""));
    let out = bed.msgfs_out(&["hook", "install", "--dry-run"]);
    assert!(out.ok(), "{out:?}");
    assert_eq!(super::snapshot(&bed.path("")), before);
    assert!(
        out.stdout.contains("claude-code: ")
            && out.stdout.contains("codex: ~/.codex/hooks.json: would be written\n")
    );
    assert!(out.stdout.contains("\n+++ ") && !out.stdout.contains("gemini"), "{out:?}");
    assert!(bed.msgfs_out(&["hook", "install"]).ok());
    let after = fs::read_to_string(&settings).unwrap();
    uninstall(&bed, "claude-code");
    let mut patch = bed.command("git");
    patch
        .args(["apply", "--unsafe-paths", "-p0", "--include", settings.to_str().unwrap()])
        .current_dir("/");
    let applied = run(patch, Some(out.stdout.as_bytes()));
    assert!(applied.ok(), "{applied:?}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), after);
    let status = bed.msgfs_out(&["hook", "status"]);
    assert!(status.stdout.contains("claude-code: here; hooks: installed ("), "{status:?}");
    assert!(status.stdout.contains("gemini: not found; hooks: not installed ("), "{status:?}");
}

/// S523: the hooks call the first msgfs on the PATH by its path, quoted for a shell and with its symlinks. If
/// there is none, they use the path by which install was called. A path that will not last is refused, with the
/// command that installs.
#[test]
fn s523_by_which_path_msgfs_is_called() {
    let bed = bed(0);
    let path = file(&bed, ".codex/hooks.json");
    let calls = |path: &Path| value(path)["hooks"]["Stop"][0]["hooks"][0]["command"].clone();
    let line = |program: &str| format!("{program} hook run stop --for codex 2>/dev/null || true");
    let by = |program: &Path, path: &str| {
        let mut command = bed.command(program);
        command.args(["hook", "install", "--for", "codex"]).env("PATH", path);
        run(command, None)
    };
    let linked = |folder: &str| {
        let program = bed.path(folder).join("msgfs");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        symlink(binary(), &program).unwrap();
        program
    };
    let odd = linked("my tools");
    let out = by(&odd, "/usr/bin:/bin");
    assert!(out.ok() && out.stderr.is_empty(), "{out:?}");
    assert_eq!(calls(&path), line(&format!("'{}'", odd.display())));
    assert!(install(&bed, "codex").contains(": written\n"), "now it is on the PATH");
    assert_eq!(calls(&path), line(&bed.path("tools/msgfs").display().to_string()));
    uninstall(&bed, "codex");
    assert!(!path.exists(), "only install made it");
    let quoted = linked("it's \"mine\"");
    for said in [": written\n", ": unchanged\n"] {
        let out = by(&quoted, "/usr/bin:/bin");
        assert!(out.ok() && out.stderr.is_empty() && out.stdout.contains(said), "{out:?}");
    }
    let word = quoted.display().to_string().replace('\'', r"'\''");
    assert_eq!(calls(&path), line(&format!("'{word}'")));
    uninstall(&bed, "codex");
    for (place, why, install) in [
        ("target/debug", "folder of a build", "cargo install"),
        (".cache/uv/archive-v0/x/bin", "cache of uvx", "uv tool install"),
        (".npm/_npx/1f/node_modules/.bin", "cache of npx", "npm install --global"),
    ] {
        let program = linked(place);
        let folder = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
        for out in [by(&program, "/usr/bin:/bin"), by(&odd, &folder)] {
            assert_eq!(out.code(), Some(1), "{out:?}");
            assert!(out.stderr.contains(why) && out.stderr.contains(install), "{out:?}");
        }
        assert!(!path.exists());
    }
}

/// S732: `msgfs hook status` and `msgfs doctor` report hooks and standing instructions of an older msgfs, and
/// hooks that call a msgfs that is gone. They name the command that renews them. After it they report nothing.
#[test]
fn s732_what_is_installed_and_old_is_told() {
    let bed = bed(0);
    let said = || {
        let status = bed.msgfs_out(&["hook", "status"]).stdout;
        let doctor = bed.msgfs_out(&["doctor"]).stdout;
        let of_hooks = doctor.lines().filter(|l| l.contains("hook") || l.contains("instructions"));
        (status, of_hooks.collect::<Vec<_>>().join("\n"))
    };
    let renew = |what: &str, old: bool| {
        let (status, doctor) = said();
        let told = status.contains(&format!("  To renew: {what}\n"));
        assert_eq!(
            (told, doctor.contains(&format!("; mend it with: {what}"))),
            (old, old),
            "{what} {status} {doctor}"
        );
    };
    for (harness, name, text) in NEW {
        let command = format!("msgfs hook install --for {harness}");
        renew(&command, false);
        install(&bed, harness);
        renew(&command, false);
        // The text as older versions wrote it.
        let path = file(&bed, name);
        fs::write(&path, text).unwrap();
        renew(&command, true);
        assert!(said().1.contains("are of an older msgfs"), "{}", said().1);
        install(&bed, harness);
        let other_event = |text: String| text.replace(" run stop ", " run session-end ");
        fs::write(&path, other_event(fs::read_to_string(&path).unwrap())).unwrap();
        renew(&command, true);
        install(&bed, harness);
        let gone = bed.path("gone/msgfs").display().to_string();
        let now = bed.path("tools/msgfs").display().to_string();
        fs::write(&path, fs::read_to_string(&path).unwrap().replace(&now, &gone)).unwrap();
        renew(&command, true);
        let (status, doctor) = said();
        assert!(status.contains(&format!("installed, but {gone} is gone")), "{status}");
        assert!(doctor.contains(&format!("call {gone}, which is gone")), "{doctor}");
        assert_eq!(doctor.contains("trusted again"), *harness == "codex", "{doctor}");
        install(&bed, harness);
        renew(&command, false);
    }
    let command = "msgfs hook install --for opencode";
    install(&bed, "opencode");
    renew(command, false);
    let plugin = bed.path("config/opencode/plugins/msgfs.js");
    fs::write(&plugin, "// msgfs-hook 1\nconst PROGRAM = \"msgfs\"\n").unwrap();
    renew(command, true);
    install(&bed, "opencode");
    for (harness, name) in [
        ("claude-code", "home/.claude/rules/msgfs.md"),
        ("codex", "home/.codex/AGENTS.md"),
        ("cursor", "cwd/.cursor/rules/msgfs.mdc"),
    ] {
        let command = format!("msgfs init --integrate --for {harness}");
        renew(&command, false);
        assert!(bed.msgfs_out(&["init", "--integrate", "--for", harness]).ok());
        renew(&command, false);
        let path = bed.path(name);
        let old = fs::read_to_string(&path).unwrap().replace("Answer it", "Answer it soon");
        fs::write(&path, old).unwrap();
        renew(&command, true);
        assert!(said().1.contains("standing instructions"), "{}", said().1);
        assert!(bed.msgfs_out(&["init", "--integrate", "--for", harness]).ok());
        renew(&command, false);
    }
}

/// S564: status and install report a setting that keeps a harness from running the hooks, with its file.
#[test]
fn s564_why_nothing_rings() {
    let bed = bed(0);
    let status = || {
        let out = run(bed.msgfs(["hook", "status"]), None);
        assert!(out.ok(), "{out:?}");
        out.stdout
    };
    assert!(!status().contains("runs no hooks"), "{}", status());
    let home = |name: &str| bed.path("home").join(name);
    let here = |name: &str| bed.path("cwd").join(name);
    for (harness, path, text, setting) in [
        (
            "claude-code",
            home(".claude/settings.json"),
            r#"{"disableAllHooks":true}"#,
            "disableAllHooks",
        ),
        (
            "claude-code",
            here(".claude/settings.local.json"),
            r#"{"disableAllHooks":true}"#,
            "disableAllHooks",
        ),
        ("codex", home(".codex/config.toml"), "[features]\nhooks = false\n", "features.hooks"),
        (
            "codex",
            home(".codex/config.toml"),
            "[features]\ncodex_hooks = false\n",
            "features.codex_hooks",
        ),
        (
            "gemini",
            home(".gemini/settings.json"),
            "{\"hooksConfig\":{\"enabled\":false}} // off\n",
            "hooksConfig.enabled",
        ),
        (
            "gemini",
            here(".gemini/settings.json"),
            r#"{"hooksConfig":{"disabled":["x","msgfs"]}}"#,
            "hooksConfig.disabled",
        ),
        (
            "copilot",
            home(".copilot/settings.json"),
            r#"{"disableAllHooks":true}"#,
            "disableAllHooks",
        ),
    ] {
        put(&path, text);
        let said = status();
        let mut lines = said.lines().skip_while(|line| !line.starts_with(&format!("{harness}: ")));
        let line = lines.nth(1).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        assert!(line.contains(setting) && line.contains(file), "{said}");
        assert_eq!(said.matches("runs no hooks").count(), 1, "{said}");
        let out = change(&bed, "install", harness, &["--dry-run"]);
        assert!(out.stdout.contains(line), "{out:?}");
        for (on, off) in [("true", "false"), ("false", "true"), ("\"msgfs\"", "\"y\"")] {
            put(&path, &text.replace(on, off));
            if text.contains(on) {
                assert!(!status().contains("runs no hooks"), "{}", status());
            }
        }
        fs::remove_file(&path).unwrap();
    }
    let mut c = bed.msgfs(["hook", "status"]);
    c.env("MSGFS_HOOK", "off");
    assert!(run(c, None).stdout.contains("MSGFS_HOOK=off"));
}

/// S567: Cursor's standing instructions belong to a project. In the home folder, status and install say that it is
/// no project, and nothing is written there.
#[test]
fn s567_the_home_folder_is_no_project() {
    let bed = bed(0);
    let said = |folder: &str, args: &[&str]| {
        let mut c = bed.msgfs(args);
        c.current_dir(bed.path(folder));
        run(c, None)
    };
    let status = |folder: &str| {
        let all = said(folder, &["hook", "status"]).stdout;
        all.lines().find(|line| line.starts_with("cursor: ")).unwrap_or_default().to_owned()
    };
    let why = "its rules belong to a project, and the home folder is not a project; run this in the project's folder";
    let (home, project) = (status("home"), status("cwd"));
    let told = format!("; instructions: {why} (.cursor/rules/msgfs.mdc)");
    assert!(home.ends_with(&told) && !home.contains("not understood"), "{home}");
    assert!(
        project.contains("; instructions: not installed (") && project.contains("msgfs.mdc"),
        "{project}"
    );
    assert!(!bed.path("home/.cursor/rules").exists());
    // A user who did not ask for Cursor gets no refusal because of it.
    fs::create_dir_all(bed.path("home/.cursor")).unwrap();
    for more in [&[][..], &["--dry-run"], &["--uninstall"]] {
        let out = said("home", &[&["init", "--integrate"], more].concat());
        assert!(out.ok() && out.stdout.contains(&format!(": left out ({why})")), "{out:?}");
        let named = said("home", &[&["init", "--integrate", "--for", "cursor"], more].concat());
        assert_eq!(named.code(), Some(1), "{named:?}");
    }
    assert!(!bed.path("home/.cursor/rules").exists());
}
