//! The plugin of Claude Code: its content, and the harnesses that msgfs leaves alone where the plugin is in use.

use std::fs;
use std::path::Path;

use super::bed;
use super::installer::NEW;
use crate::common::Bed;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[track_caller]
fn said(bed: &Bed, args: &[&str]) -> String {
    let mut command = bed.command("msgfs");
    command.args(args);
    let out = crate::common::run(command, None);
    assert!(out.ok(), "{args:?} {out:?}");
    out.stdout
}

/// S771: the plugin has the hooks that `msgfs hook install` writes and the instructions that `msgfs init
/// --integrate` writes.
#[test]
fn s771_the_plugin_has_what_is_installed_otherwise() {
    let bed = bed(0);
    fs::create_dir(bed.path("home/.claude")).unwrap();
    said(&bed, &["hook", "plugin", bed.path("plugin").to_str().unwrap()]);
    let read = |name: &str| fs::read_to_string(bed.path("plugin").join(name)).unwrap();
    let (_, _, hooks) = NEW.iter().find(|(name, ..)| *name == "claude-code").unwrap();
    assert_eq!(read("hooks/hooks.json"), *hooks);
    said(&bed, &["init", "--integrate", "--for", "claude-code"]);
    let rules = fs::read_to_string(bed.path("home/.claude/rules/msgfs.md")).unwrap();
    let skill = read("skills/msgfs/SKILL.md");
    assert!(skill.starts_with("---\nname: msgfs\n") && skill.ends_with(&rules), "{skill}");
    assert!(read(".claude-plugin/plugin.json").contains("\"name\": \"msgfs\""));
}

/// S771: if Claude Code uses the plugin, `hook install` and `init --integrate` leave Claude Code alone and say so.
/// `hook status` reports the plugin and what is installed beside it. Other harnesses are not left alone.
#[test]
fn s771_where_the_plugin_is_nothing_is_installed() {
    let bed = bed(0);
    let own = bed.path("home/.claude/settings.json");
    let project = bed.path("cwd/.claude/settings.json");
    let local = bed.path("cwd/.claude/settings.local.json");
    let skill = bed.path("home/.claude/skills/msgfs/.claude-plugin/plugin.json");
    fs::create_dir_all(bed.path("home/.codex")).unwrap();
    let with = |id: &str, on: bool| format!("{{\"enabledPlugins\": {{\"{id}\": {on}}}}}\n");
    let is_left = |file: Option<&str>| {
        let install = said(&bed, &["hook", "install", "--dry-run"]);
        let integrate = said(&bed, &["init", "--integrate", "--dry-run"]);
        let status = said(&bed, &["hook", "status"]);
        for text in [&install, &integrate] {
            let left = text.lines().find(|line| line.starts_with("claude-code: left alone"));
            assert_eq!(left.is_some(), file.is_some(), "{text}");
            assert!(left.is_none_or(|left| left.contains(file.unwrap())), "{text}");
            assert!(text.contains("codex: ") && !text.contains("codex: left alone"), "{text}");
        }
        let by = "claude-code: here; hooks and instructions: by the plugin msgfs@";
        let line = status.lines().find(|line| line.starts_with(by));
        assert_eq!(line.is_some(), file.is_some(), "{status}");
        assert!(line.is_none_or(|line| line.contains(file.unwrap())), "{status}");
    };
    write(&own, "{}\n");
    is_left(None);
    write(&own, &with("msgfs@msgfs", true));
    is_left(Some("(~/.claude/settings.json)"));
    // The project's settings have precedence over these, and the project's local ones over both.
    write(&project, &with("msgfs@msgfs", false));
    is_left(None);
    write(&local, &with("msgfs@msgfs", true));
    is_left(Some("settings.local.json)"));
    fs::remove_file(&project).unwrap();
    fs::remove_file(&local).unwrap();
    for other in ["notmsgfs@msgfs", "other@msgfs", "msgfs"] {
        write(&own, &with(other, true));
        is_left(None);
    }
    // In the folder for skills it needs no setting.
    write(&own, "{}\n");
    write(&skill, "{\"name\": \"msgfs\"}\n");
    is_left(Some("(~/.claude/skills/msgfs/.claude-plugin/plugin.json)"));
    write(&own, &with("msgfs@skills-dir", false));
    is_left(None);
    fs::remove_file(&skill).unwrap();
    write(&own, &with("msgfs@skills-dir", true));
    is_left(None);

    // `hook status` reports what was installed before, and it can be removed.
    write(&own, "{}\n");
    said(&bed, &["hook", "install", "--for", "claude-code"]);
    let hooks = fs::read_to_string(&own).unwrap();
    write(&own, &hooks.replacen('{', "{\"enabledPlugins\": {\"msgfs@x\": true},", 1));
    let before = fs::read(&own).unwrap();
    let text = said(&bed, &["hook", "install", "--for", "claude-code"]);
    let doubled = "  There are also hooks in ~/.claude/settings.json; remove them with: msgfs hook uninstall --for claude-code\n";
    assert!(text.contains(doubled) && said(&bed, &["hook", "status"]).contains(doubled), "{text}");
    assert_eq!(fs::read(&own).unwrap(), before);
    said(&bed, &["hook", "uninstall", "--for", "claude-code"]);
    let left = fs::read_to_string(&own).unwrap();
    assert!(left.contains("msgfs@x") && !left.contains("hook run"), "{left}");
}

/// S972: `hook status` and `doctor` tell that an older msgfs wrote the plugin, with the command that renews it.
#[test]
fn s972_a_plugin_that_is_old_is_told() {
    let bed = bed(0);
    let check = |command: &str, old: bool| {
        let status = said(&bed, &["hook", "status"]);
        assert_eq!(status.contains(&format!("  To renew: {command}\n")), old, "{status}");
        let doctor = bed.msgfs_out(&["doctor"]).stdout;
        assert_eq!(doctor.contains("of Claude Code in ~/"), old, "{doctor}");
        assert_eq!(doctor.contains(&format!("; mend it with: {command}")), old, "{doctor}");
    };
    let home = bed.path("home");
    let listed = home.join("plug in");
    for folder in [home.join(".claude/skills/msgfs"), listed.clone()] {
        if folder == listed {
            fs::remove_dir_all(home.join(".claude/skills")).unwrap();
            let known =
                format!("{{\"x\": {{\"installLocation\": {:?}}}}}", listed.to_str().unwrap());
            write(&home.join(".claude/plugins/known_marketplaces.json"), &known);
            write(&home.join(".claude/settings.json"), "{\"enabledPlugins\": {\"msgfs@x\": true}}");
        }
        let path = folder.to_str().unwrap();
        let shown = if path.contains(' ') { format!("'{path}'") } else { path.to_owned() };
        let command = format!("msgfs hook plugin {shown}");
        said(&bed, &["hook", "plugin", path]);
        check(&command, false);
        write(&folder.join("hooks/hooks.json"), "{\"hooks\":{}}\n");
        check(&command, true);
        said(&bed, &["hook", "plugin", path]);
        check(&command, false);
    }
}

/// S1157: `hook plugin` writes nothing into a folder in which one of its files is somebody else's. It names that file
/// and asks for another folder. Over files that msgfs wrote, now or earlier, it writes.
#[test]
fn s1157_no_file_of_others_is_overwritten() {
    for name in ["README.md", ".claude-plugin/plugin.json", "skills/msgfs/SKILL.md"] {
        let bed = bed(0);
        let folder = bed.path("plugin");
        write(&folder.join(name), "{\"name\": \"other\"}\n");
        let before = super::snapshot(&folder);
        let out = bed.msgfs_out(&["hook", "plugin", folder.to_str().unwrap()]);
        assert_eq!(out.code(), Some(1), "{out:?}");
        let file = folder.join(name).display().to_string();
        assert!(out.stderr.contains(&file) && out.stderr.contains("another folder"), "{out:?}");
        assert_eq!(super::snapshot(&folder), before);
    }
    let bed = bed(0);
    let folder = bed.path("plugin");
    let path = folder.to_str().unwrap();
    said(&bed, &["hook", "plugin", path]);
    // A first run may have ended before it wrote all files.
    fs::remove_file(folder.join(".claude-plugin/plugin.json")).unwrap();
    said(&bed, &["hook", "plugin", path]);
    write(&folder.join("README.md"), "as an older msgfs wrote it\n");
    said(&bed, &["hook", "plugin", path]);
    assert!(fs::read_to_string(folder.join("README.md")).unwrap().starts_with("# msgfs"));
    fs::remove_file(folder.join("README.md")).unwrap();
    fs::remove_dir_all(folder.join(".claude-plugin")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("README.md")).unwrap();
    assert_eq!(bed.msgfs_out(&["hook", "plugin", path]).code(), Some(1));
    assert!(!folder.join(".claude-plugin").exists());
}
